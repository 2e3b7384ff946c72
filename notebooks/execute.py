"""Execute notebooks and write them with their outputs: `python notebooks/execute.py [--out FOLDER] [NAME ...]`.

The sources are the .py files (jupytext, percent format); the .ipynb files are made here, by a kernel of their own each. What
differs from run to run and is no result (cell numbers, times, versions of the kernel) is left out of them.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
SOURCES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def pair(source: Path) -> nbformat.NotebookNode:
    """The notebook of a source, without outputs."""
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
    return notebook


def execute(notebook: nbformat.NotebookNode, timeout: int = 1800) -> nbformat.NotebookNode:
    """Run all cells in a kernel, beside the notebooks; an error in a cell is raised with its traceback."""
    settings = {
        "timeout": timeout,
        "record_timing": False,
        "resources": {"metadata": {"path": str(FOLDER)}},
    }
    NotebookClient(notebook, kernel_name="python3", **settings).execute()
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """Execute the notebooks named (all, if none is) and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="parts of file names, such as 03")
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help="folder to write to (default: beside the sources)"
    )
    arguments = parser.parse_args()
    os.environ.pop("MPLBACKEND", None)  # the kernel draws into the notebook
    os.environ["TQDM_DISABLE"] = "1"  # no progress bars among the outputs
    os.environ["PYTHONWARNINGS"] = (
        "ignore:IProgress not found"  # of tqdm without widgets; no bar is shown here
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        if arguments.names and not any(name in source.stem for name in arguments.names):
            continue
        begin = time.perf_counter()
        path = arguments.out / f"{source.stem}.ipynb"
        nbformat.write(execute(pair(source)), path)
        print(
            f"{path.name}: {time.perf_counter() - begin:.0f} s, {path.stat().st_size / 1024:.0f} kB",
            flush=True,
        )


if __name__ == "__main__":
    main()
