"""Files of programs that may be killed at any time: each is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator
from typing import IO

__all__ = ["discard", "whole", "write_text", "write_whole"]


@contextlib.contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A path beside a file's, of the same ending, to write to: it becomes the file at the end.

    No other thread or process is given the same one, whichever file they write.
    """
    named = pathlib.Path(path)
    aside = named.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.{named.name}")
    try:
        yield aside
        os.replace(aside, named)
    finally:
        aside.unlink(missing_ok=True)


def discard(folder: pathlib.Path) -> None:
    """Remove what this process has begun to write in a folder, before it leaves."""
    for aside in folder.glob(f".{os.getpid()}.*"):
        aside.unlink(missing_ok=True)


def write_whole(path: pathlib.Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that it is there whole or not at all, whenever the program dies."""
    with whole(path) as aside, open(aside, "wb") as handle:
        write(handle)
        handle.flush()
        os.fsync(handle.fileno())


def write_text(path: pathlib.Path, text: str) -> None:
    """Write a text file, in UTF-8, whole or not at all."""
    write_whole(path, lambda handle: handle.write(text.encode()))
