"""TODO workbench.sweeps.folder."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsmi.core.checks import check

if TYPE_CHECKING:
    pass
from jaxsmi.core import records

if TYPE_CHECKING:
    from jaxsmi.workbench.sweeps.grid import Sweep


# The folder ----------------------------------------------------------------------------------------------------------------


def open_folder(folder: pathlib.Path, task: Sweep) -> None:
    """Say in the folder what is swept, or find that it says the same."""
    folder.mkdir(parents=True, exist_ok=True)
    path, ours = folder / "sweep.json", json.loads(json.dumps(task.description()))
    if path.exists():
        theirs = json.loads(path.read_text())["sweep"]
        differs = [name for name in ours if ours[name] != theirs.get(name)]
        check(
            not differs,
            "out",
            str(folder),
            f"an empty folder, or one of this sweep: it differs in {', '.join(differs)}",
        )
        return
    replace_file(
        path,
        lambda handle: handle.write(
            json.dumps({"sweep": ours} | records.provenance(), indent=1).encode()
        ),
    )


def _row_path(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f"row-{number:05d}.npz"


def finished(task: Sweep, folder: pathlib.Path) -> dict[int, dict[str, np.ndarray]]:
    """The rows that lie in a folder, by number."""
    found = {number: read_row(folder, number) for number in range(len(task.rows))}
    return {number: row for number, row in found.items() if row is not None}


def write_row(folder: pathlib.Path, number: int, row: dict[str, np.ndarray]) -> None:
    replace_file(_row_path(folder, number), lambda handle: np.savez(handle, **row))  # pyright: ignore[reportArgumentType]


def replace_file(path: pathlib.Path, write: Callable[[Any], Any]) -> None:
    """Write a file so that it is there whole or not at all, whenever the program dies."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "wb") as handle:
        write(handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(aside, path)


def read_row(folder: pathlib.Path, number: int) -> dict[str, np.ndarray] | None:
    path = _row_path(folder, number)
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
