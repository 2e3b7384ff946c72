"""Grids of problems: solved row by row, kept as they are finished, continued after whatever interrupted them.

A row is all α at one point of the other parameters: state evolution starts each α at the fixed point before it
(`warm_start`), and a row is what is written, in one go, under the name of its number. What is finished is never computed
again; a folder that holds another sweep is refused; a problem that fails is NaN with its code and the reason, and stops
nothing. The random numbers of a point depend on the key and on its seed alone: they are common to all α and all parameters,
and the same in whatever order and wherever the rows are computed.

No equation lives here. Files: `sweep.json`, what is swept; `row-00012.npz`, one for each row.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from tqdm.auto import tqdm

from jaxsmi import storage
from jaxsmi.evolution import state_evolution
from jaxsmi.message_passing import gamp
from jaxsmi.types import Array, Result, Solution, check

if TYPE_CHECKING:
    import xarray

__all__ = ["Sweep", "sweep", "warm_start"]

KEPT = ("overlap", "stderr", "covariance", "error", "steps", "residual", "rho", "result")
_RETRIES = 5  # of a row whose worker is lost


def warm_start(solution: Solution) -> Array:
    """Where to start the next α: not quite at Q, so that unlearned indices can grow, and V > 0 where they are recovered."""
    return 0.995 * solution.overlap + 0.03 * solution.covariance


def _evolve(model: Any, alpha: float, key: Array, before: Solution | None, **settings: Any) -> Solution:
    start = {"q0": warm_start(before)} if before is not None and "q0" not in settings else {}
    return state_evolution(model, alpha, key=key, **start, **settings)


def _pass_messages(
    model: Any, alpha: float, key: Array, before: Solution | None, dimension: int = 1000, **settings: Any
) -> Solution:
    del before  # every run is one of its own
    data_key, start_key = jax.random.split(key)
    return gamp(model, model.sample(data_key, dimension=dimension, alpha=alpha), key=start_key, **settings)


SOLVERS: dict[str, Callable[..., Solution]] = {"state_evolution": _evolve, "gamp": _pass_messages}


@dataclasses.dataclass
class Sweep:
    """What is swept: `build(**parameters)` makes a model; `alpha`; `parameters` by name, each a list of values; `seeds`;
    `solver`, a
    name or a function (model, alpha, key, solution before or None, **settings) -> Solution; its `settings`; `key`, an integer."""

    build: Callable[..., Any]
    alpha: list[float]
    parameters: dict[str, list[Any]]
    seeds: list[int]
    solver: str | Callable[..., Solution]
    settings: dict[str, Any]
    key: int

    @property
    def names(self) -> list[str]:
        """The axes but α: the parameters in their order, then "seed"."""
        return [*self.parameters, "seed"]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The points of these axes."""
        return list(itertools.product(*self.parameters.values(), self.seeds))

    def solve(self, number: int) -> dict[str, np.ndarray]:
        """Row `number`: arrays over α, and "message": why a point failed, empty where it did not."""
        *values, seed = self.rows[number]
        found: list[Any] = []
        messages, before, model = [], None, None
        solver: Any = SOLVERS[self.solver] if isinstance(self.solver, str) else self.solver
        begin = time.perf_counter()
        for alpha in self.alpha:
            message = ""
            try:
                if model is None:
                    model = self.build(**dict(zip(self.parameters, values, strict=True)))
                key = jax.random.fold_in(jax.random.key(self.key), seed)
                solution = jax.block_until_ready(solver(model, alpha, key, before, **self.settings))
                found.append({name: np.asarray(getattr(solution, name)) for name in KEPT})
                before = solution if bool(solution.converged) else before
            except Exception as failure:  # whatever it is, the rest of the sweep goes on
                message = f"{type(failure).__name__}: {failure}".splitlines()[0]
                found.append(None)
            messages.append(message)
        shapes = next(
            ({name: one[name].shape for name in KEPT} for one in found if one is not None), dict.fromkeys(KEPT, ())
        )
        failed = {name: np.full(shape, np.nan) for name, shape in shapes.items()} | {
            "result": np.asarray(int(Result.INVALID))
        }
        table = {name: np.stack([(failed if one is None else one)[name] for one in found]) for name in KEPT}
        return table | {"message": np.array(messages, str), "seconds": np.asarray(time.perf_counter() - begin)}

    def description(self) -> dict[str, Any]:
        """What decides the numbers, for JSON: axes, settings, key, solver, and the models at the first and the last point."""
        corners = []
        for row in (self.rows[0], self.rows[-1]):
            try:
                model = self.build(**dict(zip(self.parameters, row[:-1], strict=True)))
                corners.append([repr(type(model).__name__), storage.parameters(model)])
            except Exception as failure:
                corners.append(f"{type(failure).__name__}: {failure}")
        solver = self.solver if isinstance(self.solver, str) else _source(self.solver)
        return storage.parameters(
            {
                "alpha": self.alpha, "parameters": self.parameters, "seeds": self.seeds, "solver": solver,
                "settings": self.settings, "key": self.key, "models": corners, "x64": bool(jax.config.jax_enable_x64),  # pyright: ignore
            },
            largest=np.inf,
        )  # fmt: skip


def _source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return repr(type(function))


def sweep(
    build: Callable[..., Any],
    alpha: Sequence[float],
    parameters: Mapping[str, Sequence[Any]] | None = None,
    *,
    key: int = 0,
    seeds: int | Sequence[int] = 1,
    solver: str | Callable[..., Solution] = "state_evolution",
    settings: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    scheduler: Any = None,
    progress: bool = False,
) -> xarray.Dataset:
    r"""A grid of problems: α × parameters × seeds, solved row by row and kept in a folder as it grows (module docstring).

    Arguments: `build`: makes a model of the parameters, e.g. `lambda skip: smi.DeepAttention(2, 2, skip=skip)`; `alpha`,
    ascending; `parameters`: names and their values; `key`, an integer; `seeds`: how many, or which (GAMP: teachers, data
    and starts; state
    evolution: nets); `solver`: "state_evolution" (each α starts where the one before converged), "gamp" (with settings
    {"dimension": 1000}), or a function (model, alpha, key, solution before, **settings) -> Solution; `settings` of the
    solver; `out`: a folder, from which a sweep that was interrupted continues; `scheduler`: the address of a Dask cluster,
    or its Client: rows are solved there, each again if its worker is lost; `progress`: a bar with rate and time left.

    Returns: an xarray.Dataset over (parameters.., seed, alpha): overlap, stderr, covariance (.., index, index_), error, steps,
    residual, rho, result, and the `message` of points that failed, with provenance. Needs the extra `data`.
    Raises: ValueError for no α or parameters without values, α that do not ascend, an unknown solver, a parameter
    that is called "alpha" or "seed", or a folder that holds another sweep (it says in what it differs); ImportError with
    the remedy without xarray, or dask where a scheduler is named.

    Example:
    >>> import jaxsmi as smi
    >>> table = smi.sweep(lambda noise: smi.links.linear(noise), [0.5, 1.0], {"noise": [0.1, 0.5]})
    >>> table.overlap.dims, round(float(table.overlap.sel(noise=0.5, alpha=1.0).squeeze()), 4)
    (('noise', 'seed', 'alpha', 'index', 'index_'), 0.5)

    Cost: that of its points; a row is lost where a run is killed. Source: architecture of this library, no equation.
    """
    storage.require()
    task = _task(build, alpha, parameters or {}, key, seeds, solver, settings or {})
    folder = None if out is None else pathlib.Path(out)
    kept: dict[int, dict[str, np.ndarray]] = {}
    if folder is not None:
        _open(folder, task)
        kept = {number: row for number in range(len(task.rows)) if (row := _read(folder, number)) is not None}
    missing = [number for number in range(len(task.rows)) if number not in kept]
    with tqdm(total=len(task.rows), initial=len(kept), desc="rows", disable=not progress) as bar:
        for number, row in _here(task, missing) if scheduler is None else _there(task, missing, scheduler):
            if folder is not None:
                _write(folder, number, row)
            kept[number] = row
            bar.update()
    return _assembled(task, kept)


def _task(
    build: Any, alpha: Any, parameters: Mapping[str, Any], key: int, seeds: Any, solver: Any, settings: Mapping[str, Any]
) -> Sweep:
    alpha = [float(x) for x in np.atleast_1d(np.asarray(alpha, float))]
    check(len(alpha) >= 1 and bool(np.all(np.isfinite(alpha))) and bool(np.all(np.diff(alpha) > 0)), "alpha", alpha,
          "finite numbers, ascending")  # fmt: skip
    for name, values in parameters.items():
        check(name not in ("alpha", "seed"), "parameters", name, "names other than alpha and seed")
        check(len(list(values)) >= 1, f"parameters[{name!r}]", values, "at least one value")
    check(isinstance(key, (int, np.integer)), "key", key, "an integer")
    seeds = list(range(seeds)) if isinstance(seeds, (int, np.integer)) else [int(s) for s in seeds]
    check(len(seeds) >= 1 and len(set(seeds)) == len(seeds), "seeds", seeds, "at least one, each once")
    check(callable(solver) or solver in SOLVERS, "solver", solver, f"one of {tuple(SOLVERS)}, or a function")
    solver_: Any = solver
    return Sweep(build, alpha, {n: list(v) for n, v in parameters.items()}, seeds, solver_, dict(settings), int(key))


# Where rows are solved -----------------------------------------------------------------------------------------------------


def _here(task: Sweep, numbers: list[int]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    for number in numbers:
        yield number, task.solve(number)


def _solved_there(task: Sweep, number: int, x64: bool) -> tuple[int, dict[str, np.ndarray]]:
    jax.config.update("jax_enable_x64", x64)  # a worker is a program of its own
    return number, task.solve(number)


def _there(task: Sweep, numbers: list[int], scheduler: Any) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    try:
        from dask.distributed import Client, as_completed
    except ImportError as failure:
        raise ImportError("a scheduler needs dask: pip install 'jaxsmi[cluster]'") from failure
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    client = Client(scheduler) if isinstance(scheduler, str) else scheduler
    try:
        futures = [client.submit(_solved_there, task, number, x64, pure=False, retries=_RETRIES) for number in numbers]
        for future in as_completed(futures):
            yield future.result()
            future.release()
    finally:
        if isinstance(scheduler, str):
            client.close()


# The folder ----------------------------------------------------------------------------------------------------------------


def _open(folder: pathlib.Path, task: Sweep) -> None:
    """Say in the folder what is swept, or find that it says the same."""
    folder.mkdir(parents=True, exist_ok=True)
    path, ours = folder / "sweep.json", json.loads(json.dumps(task.description()))
    if path.exists():
        theirs = json.loads(path.read_text())["sweep"]
        differs = [name for name in ours if ours[name] != theirs.get(name)]
        check(not differs, "out", str(folder), f"an empty folder, or one of this sweep: it differs in {', '.join(differs)}")
        return
    _replace(path, lambda handle: handle.write(json.dumps({"sweep": ours} | storage.provenance(), indent=1).encode()))


def _row_path(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f"row-{number:05d}.npz"


def _write(folder: pathlib.Path, number: int, row: dict[str, np.ndarray]) -> None:
    _replace(_row_path(folder, number), lambda handle: np.savez(handle, **row))  # pyright: ignore[reportArgumentType]


def _replace(path: pathlib.Path, write: Callable[[Any], Any]) -> None:
    """Write a file so that it is there whole or not at all, whenever the program dies."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "wb") as handle:
        write(handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(aside, path)


def _read(folder: pathlib.Path, number: int) -> dict[str, np.ndarray] | None:
    path = _row_path(folder, number)
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _assembled(task: Sweep, kept: dict[int, dict[str, np.ndarray]]) -> xarray.Dataset:
    """All rows as one dataset; a row that failed as a whole takes the shape of the others."""
    xarray = storage.require()
    sizes = [len(values) for values in (*task.parameters.values(), task.seeds)]
    data: dict[str, Any] = {}
    for name in (*KEPT, "message"):
        rows = [kept[number][name] for number in range(len(task.rows))]
        shape = max((row.shape for row in rows), key=len)
        same = all(row.shape == shape or row.ndim < len(shape) for row in rows)
        check(same, "parameters", f"models whose {name} differ in shape", "models with the same number of indices")
        fill = np.nan if name != "message" else ""
        rows = [row if row.shape == shape else np.full(shape, fill) for row in rows]
        names = [*task.names, "alpha", *("index", "index_")[: len(shape) - 1]]
        data[name] = (names, np.stack(rows).reshape(*sizes, *shape))
    label = lambda value: value if isinstance(value, (int, float, str, bool, np.number)) else repr(value)
    coordinates: dict[str, Any] = {n: [label(v) for v in values] for n, values in task.parameters.items()}
    coordinates |= {"seed": task.seeds, "alpha": task.alpha}
    attributes = {name: json.dumps(value) for name, value in task.description().items()}
    attributes |= {name: str(value) for name, value in storage.provenance().items()}
    return xarray.Dataset(data, coordinates, attributes)
