"""Sweeps: grids of problems, solved row by row, each row kept in a folder when it is solved.

The folder holds `sweep.json`, which describes the sweep, and one file `row-00012.npz` for each row.
Files are written completely or not at all, so that a killed sweep continues and ends with the same
numbers, bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import pathlib
import signal
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxsmi.core import validate
from jaxsmi.core.driver import attended, tqdm
from jaxsmi.core.options import CACHE_SETTINGS
from jaxsmi.core.results import Result, counts
from jaxsmi.core.solution import Solution
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench.rows import FIELDS, Grid, Row
from jaxsmi.workbench.storage import (
    CODES,
    atomic_write,
    import_xarray,
    learner_name,
    make_folder,
    provenance,
    save,
)

if TYPE_CHECKING:
    import xarray
    from dask.distributed import Client

_RETRIES = 5  # empirical: a worker lost more often than that was killed by the row, not by chance
_SCHEDULER = "a number of processes >= 1, an address 'host:port', or a dask Client"


def sweep(
    build: Callable[..., AbstractModel],
    alpha: Sequence[float],
    parameters: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    solver: str | Callable[..., Solution] = "state_evolution",
    out: str | os.PathLike[str] | None = None,
    scheduler: str | int | Client | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> xarray.Dataset:
    r"""Solve a grid of problems, α × parameters × seeds, and keep each row in a folder.

    Args:
        build: Makes a model of the parameters, e.g. `lambda skip: smi.DeepAttention(2, 2,
            skip=skip)`.
        alpha: Sample complexities, positive and ascending.
        parameters: Names and their values, of which all combinations are taken. Default none: one
            model.
        seeds: How many, or which (message passing, training: teachers, data and starts; state
            evolution: nets). Default 1.
        solver: "state_evolution" (each α starts where the one before converged; the setting
            `stderr=0.02` takes more points where it must), "gamp" (`dimension=1000`), "train"
            (`dimension=500, optimizer="adam", learning_rate=0.01`), or a function (model, alpha,
            key, previous solution or None, **settings) -> Solution.
        out: A folder, from which a sweep that was interrupted continues; the result is its
            `sweep.nc`. Default None: no files.
        scheduler: Number of Dask processes on this machine, the address of a Dask cluster, or its
            Client. A script that starts processes does so under `if __name__ == "__main__":`.
            Default None: this process, without Dask.
        progress: Show a bar with rate and time left. Default None: on a terminal and in a notebook.
        **settings: Keyword arguments of the solver.

    Returns:
        An xarray.Dataset over (parameters.., seed, alpha): the fields of a `Solution`, of runs the
        cosine, and the `message` of points that failed, with provenance. The attributes of
        `result` name its codes; points with `result > 1` did not converge.

    Warns:
        UserWarning: That points failed, with the first message, or that points did not converge,
            with the remedy of the first one.

    Raises:
        ValueError: For a wrong argument or setting, before anything is solved; for a folder that
            holds another sweep.
        ImportError: Without xarray, or without Dask where a scheduler is named.

    Example:
        >>> import jaxsmi as smi
        >>> table = smi.sweep(
        ...     lambda noise: smi.links.linear(noise), [0.5, 1.0], {"noise": [0.1, 0.5]}
        ... )
        >>> table.overlap.dims, round(float(table.overlap.sel(noise=0.5, alpha=1.0).squeeze()), 4)
        (('noise', 'seed', 'alpha', 'index', 'index_'), 0.5)

    Cost:
        The cost of its points; runs on data compile once for each α (about 4 s of processor time,
        of deep attention 10 to 20 s), and not for further seeds. A killed run repeats only its
        unfinished row.
    """
    grid = Grid(build, alpha, parameters, seeds, solver, settings)
    results = solve_grid(grid, out, scheduler, progress)
    if out is not None:
        save(results, pathlib.Path(out) / "sweep.nc")
    failed = results.message.values[results.message.values != ""]
    if failed.size:
        first = f"{failed.size} of {results.message.size} points failed, and are NaN: {failed[0]}"
        warnings.warn(f"{first} (all: .message of the result)", stacklevel=2)
    missed = unconverged(grid, results)
    if missed:
        warnings.warn(missed, stacklevel=2)
    return results


def unconverged(grid: Grid, results: xarray.Dataset) -> str:
    """How many of the points that were solved did not converge, and what to try for the first; ""
    where all did."""
    failed = (results.result > int(Result.RECOVERED)) & (results.message == "")
    codes = results.result.values[failed.values]
    if not codes.size:
        return ""
    first = results.result[dict(zip(failed.dims, np.argwhere(failed.values)[0], strict=True))]
    place = ", ".join(f"{name}={x.item()}" for name, x in first.coords.items())
    learner = isinstance(grid.settings.get("learner"), AbstractLearner)
    kind = "training" if grid.solver == "train" else "learner" if learner else "remedy"
    ended = f"{codes.size} of {results.result.size} points did not converge ({counts(codes)}; "
    said = getattr(Result(codes[0]), kind)
    return f"{ended}select them by result > 1). The first one, {place}: {said}"


def mean_error(values: xarray.DataArray, errors: xarray.DataArray) -> xarray.DataArray:
    """Standard error of the mean over seeds: their spread, or the errors of the solutions where
    these are larger. Of few seeds the spread is itself uncertain, and of exact averages zero."""
    seeds = values.sizes["seed"]
    own: Any = (errors**2).sum("seed", skipna=False) ** 0.5 / seeds
    spread: Any = own if seeds == 1 else values.std("seed", ddof=1) / seeds**0.5
    return np.fmax(own, spread)


def solve_grid(
    grid: Grid,
    out: str | os.PathLike[str] | None,
    scheduler: str | int | Client | None,
    progress: bool | None,
) -> xarray.Dataset:
    """Solve the rows of a grid that are not in the folder yet; returns all."""
    progress = validate.optional(validate.flag, "progress", progress)
    progress = attended() if progress is None else progress
    _check_scheduler(scheduler)
    import_xarray()
    grid.check_models()
    folder = None if out is None else pathlib.Path(validate.path("out", out))
    if folder is not None:
        _claim(folder, grid)
    try:
        rows = _solve_rows(grid, folder, scheduler, progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_rows_kept(grid, folder)) from None
    return _dataset(grid, rows)


def _solve_rows(
    grid: Grid, folder: pathlib.Path | None, scheduler: str | int | Client | None, progress: bool
) -> dict[int, Row]:
    """All rows by number, each written into the folder as soon as it is solved."""
    rows = {} if folder is None else solved_rows(grid, folder)
    missing = [number for number in range(len(grid.rows)) if number not in rows]
    here = ((number, grid.solve(number)) for number in missing)  # solved in this process
    solved = here if scheduler is None else _solve(grid, missing, scheduler)
    hidden = not progress or not missing  # a bar that begins at its end shows no rate
    size = len(grid.rows)
    if progress and rows:
        print(f"{len(rows)} of {size} rows were solved before.", file=sys.stderr)
    bar = tqdm(total=size, initial=len(rows), desc="rows", disable=hidden, leave=False)
    with bar, contextlib.closing(solved), _noted_interrupts() as interrupts:
        for number, row in solved:
            if interrupts:  # one that was lost: what it broke may be a failure of this row
                raise KeyboardInterrupt
            if folder is not None:
                with atomic_write(folder / _file(number)) as temporary:
                    # NumPy types the keywords of savez as if they were its own
                    np.savez(temporary, **row)  # pyright: ignore[reportArgumentType]
            rows[number] = row
            bar.update()
    return rows


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Note each Ctrl-C: Python drops a KeyboardInterrupt in a callback of C++ or a destructor."""
    noted: list[int] = []
    raising: Any = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        noted.append(number)
        raising(number, frame)
        noted.pop()  # a handler that does not raise ends nothing

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if main and callable(raising) else None
    try:
        yield noted
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _rows_kept(grid: Grid, folder: pathlib.Path | None) -> str:
    """Which rows an interrupted sweep keeps, and how to go on."""
    if folder is None:
        return "interrupted, and no row is kept: out= names a folder that keeps them"
    count = sum((folder / _file(k)).is_file() for k in range(len(grid.rows)))
    kept = f"{count} of {len(grid.rows)} rows are kept in {folder}"
    return f"interrupted; {kept}: the same call solves the others"


def _check_scheduler(scheduler: object) -> None:
    if isinstance(scheduler, (int, np.integer)):
        validate.count("scheduler", scheduler, 1, 2**16)
        return
    address = isinstance(scheduler, str) and ":" in scheduler
    client = scheduler is None or callable(getattr(scheduler, "submit", None))
    validate.check(address or client, "scheduler", scheduler, _SCHEDULER)


# The folder


def _file(number: int) -> str:
    return f"row-{number:05d}.npz"


def _claim(folder: pathlib.Path, grid: Grid) -> None:
    """Write the description of the sweep into the folder, or compare it with the one there."""
    make_folder(folder)
    check_folder(grid, folder)
    path = folder / "sweep.json"
    if not path.exists():
        with atomic_write(path) as temporary:
            text = json.dumps({"sweep": grid.description(), **provenance()}, indent=1)
            temporary.write_text(text, encoding="utf-8")


def check_folder(grid: Grid, folder: pathlib.Path) -> None:
    """Raise a ValueError for the folder of another sweep; it need not exist."""
    path = folder / "sweep.json"
    if not path.exists():
        return
    # the description as it is read back: JSON has no tuples
    description = json.loads(json.dumps(grid.description()))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        other = dict(content["sweep"])
    except (ValueError, KeyError, TypeError) as failure:
        allowed = "an empty folder: its sweep.json does not describe a sweep"
        raise ValueError(f"out: got {str(folder)!r}; allowed: {allowed}.") from failure
    differing = [name for name, value in description.items() if other.get(name, ...) != value]
    allowed = f"another folder, as this one is of a sweep that differs in {', '.join(differing)}"
    validate.check(not differing, "out", str(folder), allowed)
    begun, now = content.get("jaxsmi"), provenance()["jaxsmi"]
    if begun != now:
        versions = f"version {begun}, and goes on with {now}"
        warnings.warn(f"{folder} was begun by {versions}.", stacklevel=5)


def solved_rows(grid: Grid, folder: pathlib.Path) -> dict[int, Row]:
    """The rows in a folder, by number; a file that cannot be read is no row."""
    rows: dict[int, Row] = {}
    for number in range(len(grid.rows)):
        unreadable = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
        # pickles are not read: a folder may come from somebody else
        with contextlib.suppress(*unreadable), np.load(folder / _file(number)) as file:
            rows[number] = {name: file[name] for name in file.files}
    return rows


# Where rows are solved


def _solve(
    grid: Grid, numbers: Sequence[int], scheduler: str | int | Client
) -> Generator[tuple[int, Row]]:
    """Rows as Dask workers solve them, each again if its worker is lost."""
    try:
        from dask.distributed import Client, LocalCluster, as_completed
    except ImportError as failure:
        raise ImportError("a scheduler needs dask: pip install 'jaxsmi[cluster]'") from failure
    if not numbers:
        return
    with contextlib.ExitStack() as stack:
        if isinstance(scheduler, (int, np.integer)):
            count = min(int(scheduler), len(numbers))
            # one thread each: XLA uses several cores for one program anyway. No logs: at Ctrl-C
            # they are of cancelled tasks and lost heartbeats, and a lost worker is an exception
            with _without_interrupts():
                quiet: Any = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
                cluster = LocalCluster(count, threads_per_worker=1, **quiet)
                stack.enter_context(cluster)
            scheduler = stack.enter_context(Client(cluster))
        elif isinstance(scheduler, str):
            scheduler = stack.enter_context(Client(scheduler))
        client: Client = scheduler
        # JAX is set up anew in each process
        settings = {name: jax.config.values[name] for name in ("jax_enable_x64", *CACHE_SETTINGS)}
        solve = functools.partial(client.submit, _solve_on_worker, pure=False, retries=_RETRIES)
        futures = [solve(grid, number, settings) for number in numbers]
        for future in as_completed(futures):
            yield future.result()
            future.release()  # else its worker keeps the arrays


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C: a terminal sends it to all processes of a command, and
    each would print a traceback. A process inherits the signals that its parent blocks."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # multiprocessing starts this helper before its first process, and then unblocks the signal
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _solve_on_worker(grid: Grid, number: int, settings: Mapping[str, object]) -> tuple[int, Row]:
    for name, value in settings.items():
        jax.config.update(name, value)
    return number, grid.solve(number)


# The result


def _dataset(grid: Grid, rows: Mapping[int, Row]) -> xarray.Dataset:
    """All rows as one dataset; what was not solved is NaN with the code INVALID."""
    ordered = [rows[number] for number in range(len(grid.rows))]
    sizes = [*map(len, grid.axes.values()), len(grid.seeds), len(grid.alpha)]
    axes = (*grid.axes, "seed", "alpha")
    names = dict.fromkeys([*FIELDS, *(name for row in ordered for name in row)])
    messages = np.stack([row["message"] for row in ordered])
    data: dict[str, Any] = {"message": (axes, messages.reshape(sizes))}
    for name in [name for name in names if name not in ("message", "seconds")]:
        shapes = {row[name].shape[1:] for row in ordered if name in row}
        allowed = "models with the same number of indices"
        validate.check(len(shapes) <= 1, "parameters", f"{name} of shapes {shapes}", allowed)
        shape = shapes.pop() if shapes else ()
        missing = int(Result.INVALID) if name == "result" else np.nan
        values = np.full((*messages.shape, *shape), missing)
        for k, row in enumerate(ordered):
            if name in row:
                values[k, messages[k] == ""] = row[name]
        if np.all(messages == ""):  # NaN made floats of integers
            values = values.astype(ordered[0][name].dtype)
        dimensions = (*axes, *("index", "index_")[: len(shape)])
        about = CODES if name == "result" else {}
        data[name] = (dimensions, values.reshape(*sizes, *shape), about)
    label = lambda x: x if isinstance(x, (int, float, str, bool, np.number)) else repr(x)
    coordinates = {name: list(map(label, values)) for name, values in grid.axes.items()}
    coordinates |= {"seed": grid.seeds, "alpha": grid.alpha}
    attributes = {name: json.dumps(value) for name, value in grid.description().items()}
    attributes |= {name: str(value) for name, value in provenance().items()}
    if isinstance(learner := grid.settings.get("learner"), AbstractLearner):
        attributes["learner"] = learner_name(learner)
    return import_xarray().Dataset(data, coordinates, attributes)
