"""Recipes run and kept: NAME.png, NAME.nc (the arrays), NAME.json (caption, comparisons, seconds, provenance). No equation here.

A figure that is there already, with the same settings and the same version, is not made again; one that fails is recorded with
its reason and stops nothing.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import inspect
import json
import multiprocessing
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax

from jaxsmi.core.records import parameters, provenance
from jaxsmi.papers.common import Drawn
from jaxsmi.workbench import plotting, storage

Recipe = Callable[..., Drawn]


_DECIDING = ("full", "reference")  # what of the settings decides the numbers


def title(recipe: Recipe) -> str:
    """What a recipe draws: the first line of its docstring, and its bound arguments."""
    bound = ""
    if isinstance(recipe, functools.partial):
        bound = ", ".join(f"{name} = {value:g}" for name, value in recipe.keywords.items())
        recipe = recipe.func
    line = (inspect.getdoc(recipe) or "").splitlines()[0].rstrip(".")
    return f"{line} ({bound})" if bound else line


def folder_of_published(given: pathlib.Path | None = None) -> pathlib.Path | None:
    """The folder of published data: the one given, else JAXSMI_REFERENCE, else ../shared/reference if it is there, else none.

    Raises ValueError for a folder given, or named by the environment, that is not there.
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
    name: str, recipe: Recipe, settings: Mapping[str, Any], seconds: float, **found: Any
) -> dict[str, Any]:
    made = {
        "platform": platform.platform(),
        "commit": commit(),
        "command": "figure",
        "settings": dict(settings),
    }
    record = {
        "name": name,
        "title": title(recipe),
        "seconds": seconds,
        **found,
        "provenance": provenance(**made),
    }
    return parameters(record, largest=float("inf"))


def draw(
    name: str,
    recipe: Recipe,
    *,
    full: bool = False,
    reference: pathlib.Path | None = None,
    progress: bool = False,
) -> tuple[Drawn, dict[str, Any]]:
    """Run a recipe: what it drew, and the record of it. Raises whatever the recipe raises."""
    settings = {"name": name, "full": full, "reference": reference}
    begin = time.perf_counter()
    drawn = recipe(full=full, progress=progress, reference=reference)
    seconds = time.perf_counter() - begin
    compared = [dataclasses.asdict(one) | {"agrees": one.agrees} for one in drawn.compared]
    return drawn, _record(
        name, recipe, settings, seconds, caption=drawn.caption, compared=compared, failed=""
    )


def keep(drawn: Drawn | None, record: Mapping[str, Any], folder: pathlib.Path) -> None:
    """Write the record and, where something was drawn, the figure and its arrays; the record last."""
    stem = folder / record["name"]
    if drawn is not None:
        made = {
            "command": "figure",
            "settings": record["provenance"]["settings"],
            "caption": record["caption"],
        }
        plotting.savefig(drawn.figure, stem.with_suffix(".png"), **made)
        storage.save(storage.arrays(drawn.arrays), stem.with_suffix(".nc"), **made)
    part = stem.with_suffix(".json.part")
    part.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(stem.with_suffix(".json"))


def finished(name: str, folder: pathlib.Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of a figure made before, if its files are there and settings and version are the same; else None."""
    stem = folder / name
    if not all(stem.with_suffix(ending).is_file() for ending in (".json", ".png", ".nc")):
        return None
    try:
        record = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
        made, wanted = record["provenance"], parameters(dict(settings))
        same = all(made["settings"][key] == wanted[key] for key in _DECIDING)
        return (
            record
            if same and made["jaxsmi"] == records.version() and not record["failed"]
            else None
        )
    except (ValueError, KeyError, TypeError):
        return None


def _make(
    name: str, recipe: Recipe, folder: pathlib.Path, x64: bool, **settings: Any
) -> dict[str, Any]:
    """Draw and keep one figure, or the record of its failure; in a process of its own too."""
    jax.config.update("jax_enable_x64", x64)
    begin = time.perf_counter()
    try:
        drawn, record = draw(name, recipe, **settings)
    except Exception as failure:  # whatever it is, the other figures go on
        seconds, reason = (
            time.perf_counter() - begin,
            f"{type(failure).__name__}: {failure}".splitlines()[0],
        )
        told = {"caption": "", "compared": [], "failed": reason}
        drawn, record = None, _record(name, recipe, {"name": name, **settings}, seconds, **told)
    keep(drawn, record, folder)
    jax.clear_caches()  # no figure shares a compiled program with another
    return record


def every(
    recipes: Mapping[str, Recipe],
    folder: pathlib.Path,
    *,
    workers: int = 1,
    again: bool = False,
    **settings: Any,
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Make these figures, in `workers` processes at once: (record, whether it was there already), as they are finished."""
    left: dict[str, Recipe] = {}
    for name, recipe in recipes.items():
        record = None if again else finished(name, folder, settings)
        if record is None:
            left[name] = recipe
        else:
            yield record, True
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    if workers == 1 or len(left) < 2:
        for name, recipe in left.items():
            yield _make(name, recipe, folder, x64, **settings), False
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        min(workers, len(left)), multiprocessing.get_context("spawn")
    )
    try:
        jobs = {
            pool.submit(_make, name, recipe, folder, x64, **settings): name
            for name, recipe in left.items()
        }
        for job in concurrent.futures.as_completed(jobs):
            yield _outcome(job, jobs[job], left, folder, settings), False
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _outcome(
    job: concurrent.futures.Future,
    name: str,
    recipes: Mapping[str, Recipe],
    folder: pathlib.Path,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    try:
        return job.result()
    except BrokenProcessPool:
        reason = "the process ended, perhaps for want of memory; the same command again makes what is missing"
        told: dict[str, Any] = {"caption": "", "compared": [], "failed": reason}
        record = _record(name, recipes[name], {"name": name, **settings}, 0.0, **told)
        keep(None, record, folder)
        return record


def records(names: Sequence[str], folder: pathlib.Path) -> list[dict[str, Any]]:
    """The records in a folder, in the order of the names."""
    files = [folder / f"{name}.json" for name in names]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
