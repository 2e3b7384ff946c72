"""Folders of work that may be killed at any time: files are there whole or not at all, and say
which work they belong to.

A `Store` is a folder together with the description of one work: what decides its numbers. An entry
of the work is a file. An entry is finished if it can be read; the folder, or a record in it,
belongs to the same work if its description is the same. No equation lives here.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import warnings
import zipfile
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

from jaxsmi.core.checks import check
from jaxsmi.core.files import write_text, write_whole

__all__ = ["Store"]

_Entry = TypeVar("_Entry")
_Name = TypeVar("_Name")

_VERSION = "jaxsmi"  # what provenance calls the version
_UNREADABLE = (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)  # a file cut short


@dataclasses.dataclass(frozen=True)
class Store:
    """A folder, and the description of the work whose entries it keeps (module docstring).

    Args:
        folder: The folder; it need not exist before something is written.
        description: What decides the numbers of the work, ready for JSON.
    """

    folder: pathlib.Path
    description: Mapping[str, Any]

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Names of the parts of the description that are missing or other in another one."""
        ours = json.loads(json.dumps(self.description))
        return [name for name in ours if name not in other or ours[name] != other[name]]

    def claim(self, file: str, part: str, aside: Mapping[str, Any], argument: str) -> None:
        """Write the description into the folder, or find that the folder has the same one.

        Args:
            file: Name of the JSON file of the description.
            part: The entry of that file which holds it.
            aside: More entries for a reader, which decide nothing.
            argument: The user's argument that names the folder, for the message.

        Raises:
            ValueError: The folder holds other work; the message names what differs.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / file
        if not path.exists():
            content = {part: json.loads(json.dumps(self.description)), **aside}
            write_text(path, json.dumps(content, indent=1))
            return
        content = self.read(file, lambda p: dict(json.loads(p.read_text(encoding="utf-8"))))
        other = None if content is None else content.get(part)
        ours = isinstance(other, dict)
        allowed = f"an empty folder: its {file} does not describe a {part}"
        check(ours, argument, str(self.folder), allowed)
        differences = self.differences(other) if ours else []
        check(
            not differences,
            argument,
            str(self.folder),
            f"an empty folder, or one of the same work: it differs in {', '.join(differences)}",
        )
        made, now = (content or {}).get(_VERSION), aside.get(_VERSION)
        if made != now:
            warnings.warn(
                f"{self.folder} was begun by version {made}, and goes on with {now}.", stacklevel=3
            )

    def read(self, file: str, read: Callable[[pathlib.Path], _Entry]) -> _Entry | None:
        """An entry by the name of its file; None where it is not there, or cannot be read."""
        path = self.folder / file
        if not path.is_file():
            return None
        try:
            return read(path)
        except _UNREADABLE:
            return None

    def finished(
        self, files: Mapping[_Name, str], read: Callable[[pathlib.Path], _Entry]
    ) -> dict[_Name, _Entry]:
        """The entries that are there, by the names that `files` gives them."""
        entries = {name: self.read(file, read) for name, file in files.items()}
        return {name: entry for name, entry in entries.items() if entry is not None}

    def write(self, file: str, write: Callable[[IO[bytes]], object]) -> None:
        """Write an entry, whole or not at all."""
        write_whole(self.folder / file, write)
