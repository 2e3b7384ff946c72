"""Grids of problems: solved row by row, kept as they are finished, continued after whatever
interrupted them.

A row is all α at one point of the other parameters, and a row is what is written, in one go, under
the name of its number. What is finished is never computed again; a folder that holds another sweep
is refused. How rows are solved is said in `jaxsmi.workbench.sweeps.rows`, where they are kept in
`jaxsmi.workbench.sweeps.folder`. No equation lives here.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from jaxsmi.core import labelled
from jaxsmi.core.border import (
    checked,
    choice,
    either,
    flag,
    function,
    instance,
    is_path,
    mapping,
    numbers,
    optional,
    sequence,
    whole,
)
from jaxsmi.core.checks import POSITIVE, Arguments, check
from jaxsmi.core.progress import tqdm
from jaxsmi.core.provenance import parameters as parameters_of
from jaxsmi.core.provenance import provenance
from jaxsmi.core.results import Solution
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench.sweeps.cluster import solve_beside, solve_here, solve_there
from jaxsmi.workbench.sweeps.folder import finished, open_folder, write_row
from jaxsmi.workbench.sweeps.rows import KEPT, Row, Sweep
from jaxsmi.workbench.sweeps.solvers import SOLVERS, settings_of

if TYPE_CHECKING:
    import xarray
    from dask.distributed import Client

__all__ = ["planned", "sweep"]

_KEY = whole(-(2**63), 2**63 - 1)
_SEED = whole(0, 2**32 - 1)  # what jax.random.fold_in takes
_SCHEDULER = "an address 'host:port', a dask Client, or a number of processes >= 1"
_TAKEN = ("alpha", "seed", "point", "message", "cosine", "index", "index_", *KEPT)


@runtime_checkable
class Submits(Protocol):
    """What takes work: a Client of dask."""

    def submit(self, *arguments: object) -> object:
        """A piece of work, to be asked for later."""


def _address(name: str, value: object) -> object:
    """Where a scheduler listens."""
    check(isinstance(value, str) and ":" in value, name, value, _SCHEDULER)
    return value


@checked(
    build=function("a function of the parameters that makes a model"),
    alpha=numbers("finite numbers > 0, ascending", POSITIVE),
    parameters=optional(
        either(
            "values by name, or a list of points",
            mapping(""),
            sequence("", mapping(""), empty=True),
        )
    ),
    key=_KEY,
    seeds=either(
        "a number of seeds, or a list of whole numbers from 0 to 2^32 - 1",
        whole(),
        sequence("", _SEED),
    ),
    solver=either(f"one of {tuple(SOLVERS)}, or a function", choice(*SOLVERS), function("")),
    settings=optional(mapping("settings of the solver, by name")),
    out=optional(is_path),
    scheduler=optional(either(_SCHEDULER, _address, whole(1, 2**16), instance(Submits, ""))),
    progress=optional(flag),
)
def sweep(
    build: Callable[..., AbstractModel],
    alpha: Sequence[float],
    parameters: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None = None,
    *,
    key: int = 0,
    seeds: int | Sequence[int] = 1,
    solver: str | Callable[..., Solution] = "state_evolution",
    settings: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    scheduler: str | int | Client | None = None,
    progress: bool = False,
) -> xarray.Dataset:
    r"""A grid of problems: α × parameters × seeds, solved row by row and kept in a folder as it
    grows.

    Args:
        build: Makes a model of the parameters, e.g. `lambda skip: smi.DeepAttention(2, 2,
            skip=skip)`.
        alpha: Sample complexities, positive and ascending.
        parameters: Names and their values, of which all combinations are taken, or a list of points
            [{name: value}]. Default none: one model.
        key: An integer, the seed of all random numbers. Default 0.
        seeds: How many, or which (message passing, training: teachers, data and starts; state
            evolution: nets). Default 1.
        solver: "state_evolution" (each α starts where the one before converged; the setting
            {"stderr": 0.02} takes more samples where it must), "gamp" (settings {"dimension":
            1000}), "train" ({"dimension": 500, "optimizer": "adam", "learning_rate": 0.01}, any
            optimizer of optax that is made of a learning rate), or a function (model, alpha, key,
            previous solution, **settings) -> Solution.
        settings: Keyword arguments of the solver.
        out: A folder, from which a sweep that was interrupted continues. Default None: nothing is
            kept.
        scheduler: A number of processes on this machine, the address of a Dask cluster, or its
            Client: rows are solved there, each again if its worker is lost. A script that asks for
            processes does so under `if __name__ == "__main__":`. Default None: this process.
        progress: Whether to show a bar with rate and time left. Default False.

    Returns:
        An xarray.Dataset over (parameters.., seed, alpha): overlap, stderr, covariance (.., index,
        index_), error, steps, residual, rho, result, of runs the cosine, and the `message` of
        points that failed, with provenance. A list of points has the axis "point". Needs the extra
        `data`.

    Raises:
        ValueError: `build` is not callable; no α, or α that are not positive or do not ascend;
            parameters without values, or called "alpha", "seed" or as a variable of the result; an
            unknown solver, or a setting that it does not take; a folder that holds another sweep
            (the message says in what it differs).
        ImportError: Without xarray, or dask where an address is named, with the remedy.

    Example:
        >>> import jaxsmi as smi
        >>> table = smi.sweep(
        ...     lambda noise: smi.links.linear(noise), [0.5, 1.0], {"noise": [0.1, 0.5]}
        ... )
        >>> table.overlap.dims, round(float(table.overlap.sel(noise=0.5, alpha=1.0).squeeze()), 4)
        (('noise', 'seed', 'alpha', 'index', 'index_'), 0.5)

    Cost:
        That of its points; a row is lost where a run is killed.

    Source:
        The workbench of this library; no equation.
    """
    task = planned(build, alpha, parameters, key=key, seeds=seeds, solver=solver, settings=settings)
    labelled.import_xarray()
    folder = None if out is None else pathlib.Path(out)
    rows: dict[int, Row] = {}
    if folder is not None:
        open_folder(folder, task)
        rows = finished(task, folder)
    chunks = task.chunks([number for number in range(len(task.rows)) if number not in rows])
    if scheduler is None:
        solved = solve_here(task, chunks)
    elif isinstance(scheduler, (int, np.integer)):
        solved = solve_beside(task, chunks, int(scheduler))
    else:
        solved = solve_there(task, chunks, scheduler)
    with tqdm(total=len(task.rows), initial=len(rows), desc="rows", disable=not progress) as bar:
        for numbers, chunk in solved:
            for number, row in zip(numbers, chunk, strict=True):
                if number in rows:  # solved again, beside one that was missing
                    continue
                if folder is not None:
                    write_row(folder, number, row)
                rows[number] = row
                bar.update()
    return _assembled(task, rows)


def planned(
    build: Callable[..., AbstractModel],
    alpha: Sequence[float],
    parameters: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None = None,
    *,
    key: int = 0,
    seeds: int | Sequence[int] = 1,
    solver: str | Callable[..., Solution] = "state_evolution",
    settings: Mapping[str, Any] | None = None,
) -> Sweep:
    """What `sweep` does with these arguments, which it checks; nothing is computed."""
    arguments = Arguments()
    arguments.condition(
        callable(build), "build", build, "a function of the parameters that makes a model"
    )
    points, sizes = _points(arguments, parameters)
    whole = isinstance(key, (int, np.integer)) and not isinstance(key, bool)
    arguments.condition(whole, "key", key, "an integer")
    return Sweep(
        build,
        _ascending(arguments, alpha),
        points,
        sizes,
        _seeds(arguments, seeds),
        solver,
        _settings(arguments, solver, settings),
        int(key),
    )


def _ascending(arguments: Arguments, alpha: Sequence[float]) -> list[float]:
    """The sample complexities, in double precision whatever that of JAX."""
    allowed = "finite numbers > 0, ascending"
    try:
        grid = np.atleast_1d(np.asarray(alpha, float))
    except (TypeError, ValueError):
        raise ValueError(f"alpha: got {alpha!r}; allowed: {allowed}.") from None
    positive = grid.ndim == 1 and grid.size >= 1 and bool(np.all(np.isfinite(grid) & (grid > 0)))
    arguments.condition(positive and bool(np.all(np.diff(grid) > 0)), "alpha", alpha, allowed)
    return grid.tolist()


def _points(
    arguments: Arguments,
    parameters: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None,
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The parameters of each point, and the sizes of the axes."""
    if parameters is None or isinstance(parameters, Mapping):
        axes = {name: list(values) for name, values in (parameters or {}).items()}
        for name, values in axes.items():
            # what is shown of a module leaves out large arrays, what it consists of does not
            kinds = {f"{value!r} {parameters_of(value, np.inf)}" for value in values}
            once = len(kinds) == len(values)
            arguments.condition(
                len(values) >= 1 and once,
                f"parameters[{name!r}]",
                values,
                "at least one value, each once",
            )
        combinations = itertools.product(*axes.values())
        points = [dict(zip(axes, values, strict=True)) for values in combinations]
        sizes = {name: len(values) for name, values in axes.items()}
    else:
        points = [dict(point) for point in parameters]
        arguments.condition(
            len(points) >= 1 and len({tuple(sorted(point)) for point in points}) == 1,
            "parameters",
            parameters,
            "at least one point, all of the same parameters",
        )
        sizes = {"point": len(points)}
    for name in points[0]:
        allowed = f"names other than {', '.join(_TAKEN)}"
        arguments.condition(name not in _TAKEN, "parameters", name, allowed)
    return points, sizes


def _seeds(arguments: Arguments, seeds: int | Sequence[int]) -> list[int]:
    """The seeds, counted from 0 where only their number is given."""
    if isinstance(seeds, (int, np.integer)):
        numbers = list(range(int(seeds)))
    else:
        numbers = [int(seed) for seed in seeds]
    distinct = len(numbers) >= 1 and len(set(numbers)) == len(numbers)
    arguments.condition(distinct, "seeds", seeds, "at least one, each once")
    return numbers


def _settings(
    arguments: Arguments,
    solver: str | Callable[..., Solution],
    settings: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The settings, if the solver takes them all."""
    given = dict(settings or {})
    if isinstance(solver, str):
        allowed = f"one of {tuple(SOLVERS)}, or a function"
        arguments.condition(solver in SOLVERS, "solver", solver, allowed)
        names = SOLVERS[solver].settings
        unknown = [name for name in given if name not in names]
        SOLVERS[solver].check(given)
    else:
        allowed = f"one of {tuple(SOLVERS)}, or a function"
        arguments.condition(callable(solver), "solver", solver, allowed)
        names, any_other = settings_of(solver)
        unknown = [] if any_other else [name for name in given if name not in names]
    arguments.condition(
        not unknown, "settings", ", ".join(unknown), f"of this solver: {', '.join(names) or 'none'}"
    )
    return given


def _assembled(task: Sweep, rows: Mapping[int, Row]) -> xarray.Dataset:
    """All rows as one dataset; a row that failed as a whole takes the shape of the others."""
    xarray = labelled.import_xarray()
    sizes = [*task.sizes.values(), len(task.seeds)]
    data: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows.values() for name in row if name != "seconds"):
        values = _alike(task, rows, name)
        shape = values[0].shape
        dimensions = [*task.sizes, "seed", "alpha", *("index", "index_")[: len(shape) - 1]]
        data[name] = (dimensions, np.stack(values).reshape(*sizes, *shape))
    attributes = {name: json.dumps(value) for name, value in task.description().items()}
    attributes |= {name: str(value) for name, value in provenance().items()}
    return xarray.Dataset(data, _coordinates(task), attributes)


def _alike(task: Sweep, rows: Mapping[int, Row], name: str) -> list[np.ndarray]:
    """One variable of all rows, in one shape."""
    missing = np.full(len(task.alpha), np.nan)
    values = [rows[number].get(name, missing) for number in range(len(task.rows))]
    shape = max((row.shape for row in values), key=len)
    check(
        all(row.shape == shape or row.ndim < len(shape) for row in values),
        "parameters",
        f"models whose {name} differ in shape",
        "models with the same number of indices",
    )
    fill = np.nan if name != "message" else ""
    return [row if row.shape == shape else np.full(shape, fill) for row in values]


def _coordinates(task: Sweep) -> dict[str, Any]:
    """Values of the parameters, as numbers or words, the seeds and the sample complexities."""
    label = lambda value: (
        value if isinstance(value, (int, float, str, bool, np.number)) else repr(value)
    )
    coordinates: dict[str, Any] = {}
    for name in task.points[0]:
        values = [label(point[name]) for point in task.points]
        listed = "point" in task.sizes
        coordinates[name] = ("point", values) if listed else list(dict.fromkeys(values))
    return coordinates | {"seed": task.seeds, "alpha": task.alpha}
