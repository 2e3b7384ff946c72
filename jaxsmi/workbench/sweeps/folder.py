"""The folder of a sweep: `sweep.json`, what is swept, and `row-00012.npz`, one file for each row.

No equation lives here.
"""

from __future__ import annotations

import pathlib

import numpy as np

from jaxsmi.core.provenance import provenance
from jaxsmi.workbench.store import Store
from jaxsmi.workbench.sweeps.rows import Row, Sweep

__all__ = ["finished", "open_folder", "write_row"]


def open_folder(folder: pathlib.Path, task: Sweep) -> None:
    """Say in the folder what is swept, or find that it says the same.

    A ValueError where it holds another sweep.
    """
    Store(folder, task.description()).claim("sweep.json", "sweep", provenance(), "out")


def finished(task: Sweep, folder: pathlib.Path) -> dict[int, Row]:
    """The rows that lie in a folder, by number."""
    files = {number: _file(number) for number in range(len(task.rows))}
    return Store(folder, {}).finished(files, _read)


def write_row(folder: pathlib.Path, number: int, row: Row) -> None:
    """Keep a row."""
    store = Store(folder, {})
    # NumPy types the keywords of savez as if they were its own
    store.write(_file(number), lambda handle: np.savez(handle, **row))  # pyright: ignore


def _file(number: int) -> str:
    """Name of the file of a row."""
    return f"row-{number:05d}.npz"


def _read(path: pathlib.Path) -> Row:
    """A row from its file."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
