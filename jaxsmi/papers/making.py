"""Recipes run and kept: NAME.png, .svg and .pdf (the picture), NAME.nc (the arrays), NAME.json
(caption, comparisons, what the arrays are, the recipe, seconds, provenance).

A figure that is there already, with the same settings and the same version, is not made again; one
that fails is recorded with its reason and stops nothing. The record is written last, so that a
figure with a record is whole. No equation lives here.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import inspect
import json
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

import jax
import numpy as np

from jaxsmi.core.files import write_text
from jaxsmi.core.provenance import parameters, provenance, version
from jaxsmi.papers.common import Drawn, Folder
from jaxsmi.workbench import plotting, storage
from jaxsmi.workbench.processes import processes
from jaxsmi.workbench.store import Store

__all__ = [
    "FILES",
    "Record",
    "draw",
    "every",
    "finished",
    "folder_of_published",
    "keep",
    "records",
    "source",
    "title",
]

Recipe = Callable[..., Drawn]
Record = dict[str, Any]  # what NAME.json holds

_PICTURES = (".png", ".svg", ".pdf")
FILES = (".json", ".nc", *_PICTURES)
_LISTED = 8  # so many numbers of an array stand in its record, of longer ones their range
_BROKEN = (
    "the process ended, perhaps for want of memory; the same command again makes what is missing"
)


def title(recipe: Recipe) -> str:
    """What a recipe draws: the first paragraph of its docstring, and its bound arguments."""
    bound = ""
    if isinstance(recipe, functools.partial):
        bound = ", ".join(f"{name} = {value:g}" for name, value in recipe.keywords.items())
        recipe = recipe.func
    line = " ".join((inspect.getdoc(recipe) or "").split("\n\n")[0].split()).rstrip(".")
    return f"{line} ({bound})" if bound else line


def source(recipe: Recipe) -> dict[str, str]:
    """Where the code of a recipe is, `module.function`, and its text."""
    while isinstance(recipe, functools.partial):
        recipe = recipe.func
    code = inspect.getsource(recipe)
    return {"function": f"{recipe.__module__}.{recipe.__name__}", "code": code}


def _described(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """What the arrays of a figure are: few numbers themselves, else the shape and the range."""
    words = {}
    for name, values in arrays.items():
        numbers = np.asarray(values, float)
        known = numbers[np.isfinite(numbers)]
        if numbers.ndim < 2 and numbers.size <= _LISTED:
            words[name] = ", ".join(f"{x:.4g}" for x in numbers.ravel())
            continue
        shape = " × ".join(map(str, numbers.shape))
        span = f" from {known.min():.4g} to {known.max():.4g}" if known.size else ""
        words[name] = f"{shape}{span}"
    return words


def folder_of_published(given: Folder = None) -> Folder:
    """The folder of published data.

    Args:
        given: The folder. Default None: the one that the environment's JAXSMI_REFERENCE names, else
            ../shared/reference if it is there, else none.

    Returns:
        The folder, or None.

    Raises:
        ValueError: A folder given, or named by the environment, is not there.
    """
    named = os.environ.get("JAXSMI_REFERENCE")
    if given is None and not named:
        usual = pathlib.Path("../shared/reference")
        return usual if usual.is_dir() else None
    folder = pathlib.Path(given if given is not None else str(named))
    if not folder.is_dir():
        source = "--reference" if given is not None else "JAXSMI_REFERENCE"
        raise ValueError(f"{source}: got {folder}; allowed: a folder of published data.")
    return folder


def commit() -> str | None:
    """The commit of the sources, where they are files of a git repository."""
    here = pathlib.Path(__file__).resolve()
    ask = functools.partial(
        subprocess.run, cwd=here.parent, capture_output=True, text=True, timeout=10, check=True
    )
    try:
        ask(["git", "ls-files", "--error-unmatch", here.name])
        changed = ask(["git", "status", "--porcelain", "--untracked-files=no"]).stdout.strip()
        return ask(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip() + (
            " with changes" if changed else ""
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _record(
    name: str,
    recipe: Recipe,
    settings: Mapping[str, object],
    seconds: float,
    *,
    drawn: Drawn | None = None,
    failed: str = "",
) -> Record:
    """The record of a figure, or of its failure."""
    compared = drawn.compared if drawn else []
    made: dict[str, object] = {
        "platform": platform.platform(),
        "commit": commit(),
        "command": "figure",
        "settings": {"name": name, **settings},
    }
    record = {
        "name": name,
        "title": title(recipe),
        "seconds": seconds,
        "caption": drawn.caption if drawn else "",
        "compared": [dataclasses.asdict(one) | {"agrees": one.agrees} for one in compared],
        "arrays": _described(drawn.arrays) if drawn else {},
        "inches": [round(float(x), 2) for x in drawn.figure.get_size_inches()] if drawn else [],
        "recipe": source(recipe),
        "failed": failed,
        "provenance": provenance(**made),
    }
    return parameters(record, largest=float("inf"))


def draw(
    name: str,
    recipe: Recipe,
    *,
    full: bool = False,
    reference: Folder = None,
    progress: bool = False,
) -> tuple[Drawn, Record]:
    """Run a recipe: what it drew, and the record of it. Raises whatever the recipe raises."""
    begin = time.perf_counter()
    with plotting.style():
        drawn = recipe(full=full, progress=progress, reference=reference)
    seconds = time.perf_counter() - begin
    settings = {"full": full, "reference": reference}
    return drawn, _record(name, recipe, settings, seconds, drawn=drawn)


def keep(drawn: Drawn | None, record: Mapping[str, Any], folder: pathlib.Path) -> None:
    """Write the figure and its arrays, where something was drawn, and then the record."""
    stem = folder / record["name"]
    if drawn is not None:
        made = {
            "command": "figure",
            "settings": record["provenance"]["settings"],
            "caption": record["caption"],
        }
        stem.with_suffix(".json").unlink(
            missing_ok=True
        )  # of another run: it is not of these files
        for ending in _PICTURES:
            plotting.savefig(drawn.figure, stem.with_suffix(ending), **made)
        storage.save(storage.arrays(drawn.arrays), stem.with_suffix(".nc"), **made)
    write_text(stem.with_suffix(".json"), json.dumps(record, indent=1, allow_nan=False) + "\n")


def finished(name: str, folder: pathlib.Path, settings: Mapping[str, object]) -> Record | None:
    """The record of a figure made before, if its files are there and settings and version are the
    same.

    None where a file is missing or cut short, where the figure failed, or where full sizes, the
    folder of published data or the version are others.
    """
    if not all((folder / f"{name}{ending}").is_file() for ending in FILES):
        return None
    deciding = {key: settings.get(key) for key in ("full", "reference")}
    store = Store(folder, parameters({**deciding, "jaxsmi": version()}))

    def read(path: pathlib.Path) -> Record | None:
        record = _read(path)
        made = record["provenance"]
        same = not store.differences({**made["settings"], "jaxsmi": made["jaxsmi"]})
        return record if same and not record["failed"] else None

    return store.read(f"{name}.json", read)


class _Make(Protocol):
    """Makes and keeps one figure, here or in a process of its own."""

    def __call__(self, name: str, recipe: Recipe) -> Record: ...


def _make(
    name: str, recipe: Recipe, folder: pathlib.Path, x64: bool, settings: Mapping[str, Any]
) -> Record:
    """Draw and keep one figure, or the record of its failure; in a process of its own too."""
    jax.config.update("jax_enable_x64", x64)
    begin = time.perf_counter()
    try:
        drawn, record = draw(name, recipe, **settings)
    except Exception as failure:  # whatever it is, the other figures go on
        seconds = time.perf_counter() - begin
        reason = f"{type(failure).__name__}: {failure}".splitlines()[0]
        drawn = None
        record = _record(name, recipe, settings, seconds, failed=reason)
    keep(drawn, record, folder)
    jax.clear_caches()  # no figure shares a compiled program with another
    return record


def every(
    recipes: Mapping[str, Recipe],
    folder: pathlib.Path,
    *,
    full: bool = False,
    reference: Folder = None,
    workers: int = 1,
    again: bool = False,
) -> Iterator[tuple[Record, bool]]:
    """Make figures that are not there yet, one after the other or in several processes.

    Args:
        recipes: The recipes by name.
        folder: Where figures are kept.
        full: Whether they have the sizes of the articles. Default False.
        reference: The folder of published data. Default None.
        workers: How many processes draw at once. Default 1: this one.
        again: Whether finished figures are made again. Default False.

    Returns:
        Pairs (record, whether the figure was there already), as they are finished.
    """
    settings = {"full": full, "reference": reference}
    missing: dict[str, Recipe] = {}
    for name, recipe in recipes.items():
        record = None if again else finished(name, folder, settings)
        if record is None:
            missing[name] = recipe
        else:
            yield record, True
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    make = functools.partial(_make, folder=folder, x64=x64, settings=settings)
    if workers == 1 or len(missing) < 2:
        for name, recipe in missing.items():
            yield make(name, recipe), False
        return
    failed = functools.partial(_record, settings=settings, seconds=0.0, failed=_BROKEN)
    for name, record in _in_processes(make, missing, workers):
        if record is None:
            record = failed(name, missing[name])
            keep(None, record, folder)
        yield record, False


def _in_processes(
    make: _Make, recipes: Mapping[str, Recipe], workers: int
) -> Iterator[tuple[str, Record | None]]:
    """Names and records of figures as they are finished; None where the process died."""
    pool = processes(min(workers, len(recipes)))
    try:
        jobs = {pool.submit(make, name, recipe): name for name, recipe in recipes.items()}
        for job in concurrent.futures.as_completed(jobs):
            try:
                record = job.result()
            except BrokenProcessPool:
                record = None
            yield jobs[job], record
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def records(names: Sequence[str], folder: pathlib.Path) -> list[Record]:
    """The records in a folder, in the order of the names."""
    files = {name: f"{name}.json" for name in names}
    return list(Store(folder, {}).finished(files, _read).values())


def _read(path: pathlib.Path) -> Record:
    """A record from its file."""
    return json.loads(path.read_text(encoding="utf-8"))
