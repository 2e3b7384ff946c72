"""Grids of problems: solved row by row, kept as they are finished, continued after whatever interrupted them.

A row is all α at one point of the other parameters: state evolution starts each α at the fixed point before it
(`warm_start`), and a row is what is written, in one go, under the name of its number. What is finished is never computed
again; a folder that holds another sweep is refused; a problem that fails is NaN with its code and the reason, and stops
nothing. The random numbers of a point depend on the key and on its seed alone: they are common to all α and all parameters,
and the same in whatever order and wherever the rows are computed. Rows of matrix models, whose state evolution takes less time
than its launch, are solved many at once by vmap.

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
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Solution
from jaxsmi.inference.evolution import state_evolution

if TYPE_CHECKING:
    import xarray
from jaxsmi.core import records
from jaxsmi.workbench.sweeps.cluster import solve_here, solve_there
from jaxsmi.workbench.sweeps.folder import finished, open_folder, write_row
from jaxsmi.workbench.sweeps.solvers import SOLVERS

KEPT = ("overlap", "stderr", "covariance", "error", "steps", "residual", "rho", "result")


_TOGETHER = 64  # rows of a matrix model


@dataclasses.dataclass
class Sweep:
    """What is swept: `build(**parameters)` makes a model; `alpha`; `points`, the parameters of each; `sizes` of the axes that
    the points are the product of (a list of points: one axis, "point"); `seeds`; `solver`, a name or a function (model, alpha,
    key, solution before or None, **settings) -> Solution; its `settings`; `key`, an integer."""

    build: Callable[..., Any]
    alpha: list[float]
    points: list[dict[str, Any]]
    sizes: dict[str, int]
    seeds: list[int]
    solver: str | Callable[..., Solution]
    settings: dict[str, Any]
    key: int

    @property
    def rows(self) -> list[tuple[dict[str, Any], int]]:
        """Parameters and seed of each row."""
        return list(itertools.product(self.points, self.seeds))

    @property
    def together(self) -> int:
        """How many rows are solved at once."""
        if self.solver != "state_evolution" or self.settings:
            return 1
        try:
            return _TOGETHER if self.build(**self.points[0]).channel.explicit else 1
        except Exception:  # a point that cannot be made, as its row will say
            return 1

    def chunks(self, missing: Sequence[int]) -> list[list[int]]:
        """The rows that are solved at once with one that is missing: always the same ones, so that their numbers are too."""
        size = self.together
        numbers = range(len(self.rows))
        return [
            list(numbers[k * size : (k + 1) * size])
            for k in sorted({number // size for number in missing})
        ]

    def solve(self, numbers: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """Rows of these numbers: arrays over α, and "message": why a point failed, empty where it did not."""
        models = self._alike(numbers) if len(numbers) > 1 else None
        if models is not None:
            try:
                return self._solve_together(numbers, *models)
            except (
                Exception
            ) as failure:  # the rest of the sweep goes on, and one by one says which point it is
                warnings.warn(
                    f"jaxsmi: {len(numbers)} rows are solved one by one: {failure}", stacklevel=2
                )
        return [self._solve_one(number) for number in numbers]

    def _alike(self, numbers: Sequence[int]) -> tuple[Any, Any] | None:
        """The models of these rows as one with stacked arrays, and what they share; None where one of them is of another kind,
        or cannot be made."""
        try:
            parts = [
                eqx.partition(self.build(**self.rows[number][0]), eqx.is_array)
                for number in numbers
            ]
        except Exception:  # its own row will say why
            return None
        form = lambda arrays: jax.tree.map(lambda x: (x.shape, x.dtype), arrays)
        if any(
            not eqx.tree_equal(other, parts[0][1]) or form(arrays) != form(parts[0][0])
            for arrays, other in parts[1:]
        ):
            return None
        return jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(arrays for arrays, _ in parts)
        ), parts[0][1]

    def _solve_together(
        self, numbers: Sequence[int], stacked: Any, shared: Any
    ) -> list[dict[str, np.ndarray]]:
        begin = time.perf_counter()
        found = _evolve_many(stacked, shared, jnp.asarray(self.alpha))
        table = {name: np.asarray(getattr(found, name)) for name in KEPT}
        seconds = np.asarray((time.perf_counter() - begin) / len(numbers))
        aside = {"message": np.zeros(len(self.alpha), "<U1"), "seconds": seconds}
        return [
            {name: values[k] for name, values in table.items()} | aside for k in range(len(numbers))
        ]

    def _solve_one(self, number: int) -> dict[str, np.ndarray]:
        parameters, seed = self.rows[number]
        found: list[Any] = []
        messages, before, model = [], None, None
        solver: Any = SOLVERS[self.solver] if isinstance(self.solver, str) else self.solver
        begin = time.perf_counter()
        for alpha in self.alpha:
            message = ""
            try:
                if model is None:
                    model = self.build(**parameters)
                key = jax.random.fold_in(jax.random.key(self.key), seed)
                solution = jax.block_until_ready(solver(model, alpha, key, before, **self.settings))
                found.append(_kept(solution))
                before = solution if bool(solution.converged) else before
            except Exception as failure:  # whatever it is, the rest of the sweep goes on
                message = f"{type(failure).__name__}: {failure}".splitlines()[0]
                found.append(None)
            messages.append(message)
        shapes = next(
            ({name: one[name].shape for name in one} for one in found if one is not None),
            dict.fromkeys(KEPT, ()),
        )
        failed = {name: np.full(shape, np.nan) for name, shape in shapes.items()} | {
            "result": np.asarray(int(Result.INVALID))
        }
        table = {
            name: np.stack([(failed if one is None else one)[name] for one in found])
            for name in shapes
        }
        return table | {
            "message": np.array(messages, str),
            "seconds": np.asarray(time.perf_counter() - begin),
        }

    def description(self) -> dict[str, Any]:
        """What decides the numbers, for JSON: axes, settings, key, solver, and the models at the first and the last point."""
        corners = []
        for row in (self.rows[0], self.rows[-1]):
            try:
                model = self.build(**row[0])
                corners.append([repr(type(model).__name__), records.parameters(model)])
            except Exception as failure:
                corners.append(f"{type(failure).__name__}: {failure}")
        solver = self.solver if isinstance(self.solver, str) else _source(self.solver)
        return records.parameters(
            {
                "alpha": self.alpha, "points": self.points, "sizes": self.sizes, "seeds": self.seeds, "solver": solver,
                "settings": self.settings, "key": self.key, "models": corners, "x64": bool(jax.config.jax_enable_x64),  # pyright: ignore
            },
            largest=np.inf,
        )  # fmt: skip


def _kept(solution: Solution) -> dict[str, np.ndarray]:
    """What a row keeps of a solution: numbers, and of runs the cosines."""
    kept = {name: np.asarray(getattr(solution, name)) for name in KEPT}
    return kept | ({"cosine": solution.cosine} if "cosine" in solution.history else {})


@eqx.filter_jit
def _evolve_many(models: Any, static: Any, alpha: Array) -> Solution:
    """State evolution of many matrix models at all α."""
    one = lambda model, a: state_evolution(eqx.combine(model, static), a)
    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(models, alpha)


def _source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return repr(type(function))


def sweep(
    build: Callable[..., Any],
    alpha: Sequence[float],
    parameters: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None = None,
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
    ascending; `parameters`: names and their values, of which all combinations are taken, or a list of points [{name: value}];
    `key`, an integer; `seeds`: how many, or which (GAMP, training: teachers, data and starts; state evolution: nets); `solver`:
    "state_evolution" (each α starts where the one before converged; the setting {"stderr": 0.02} takes more samples where it
    must), "gamp" (settings {"dimension": 1000}), "train" ({"dimension": 500, "optimizer": "adam", "learning_rate": 0.01}, any
    name of optax), or a function (model, alpha, key, solution before, **settings) -> Solution; `settings` of the solver; `out`:
    a folder, from which a sweep that was interrupted continues; `scheduler`: the address of a Dask cluster, its Client, or a
    number of processes on this machine: rows are solved there, each again if its worker is lost; `progress`: a bar with rate
    and time left.

    Returns: an xarray.Dataset over (parameters.., seed, alpha): overlap, stderr, covariance (.., index, index_), error, steps,
    residual, rho, result, of runs the cosine, and the `message` of points that failed, with provenance. A list of points has
    the axis "point". Needs the extra `data`.
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
    records.require()
    task = planned(build, alpha, parameters, key=key, seeds=seeds, solver=solver, settings=settings)
    folder = None if out is None else pathlib.Path(out)
    kept: dict[int, dict[str, np.ndarray]] = {}
    if folder is not None:
        open_folder(folder, task)
        kept = finished(task, folder)
    missing = [number for number in range(len(task.rows)) if number not in kept]
    chunks = task.chunks(missing)
    with tqdm(total=len(task.rows), initial=len(kept), desc="rows", disable=not progress) as bar:
        for numbers, rows in (
            solve_here(task, chunks) if scheduler is None else solve_there(task, chunks, scheduler)
        ):
            for number, row in zip(numbers, rows, strict=True):
                if number in kept:  # solved again, beside one that was missing
                    continue
                if folder is not None:
                    write_row(folder, number, row)
                kept[number] = row
                bar.update()
    return _assembled(task, kept)


def planned(
    build: Any,
    alpha: Any,
    parameters: Any = None,
    *,
    key: int = 0,
    seeds: Any = 1,
    solver: Any = "state_evolution",
    settings: Mapping[str, Any] | None = None,
) -> Sweep:
    """What `sweep` does with these arguments, which it checks; nothing is computed."""
    alpha = [float(x) for x in np.atleast_1d(np.asarray(alpha, float))]
    check(len(alpha) >= 1 and bool(np.all(np.isfinite(alpha))) and bool(np.all(np.diff(alpha) > 0)), "alpha", alpha,
          "finite numbers, ascending")  # fmt: skip
    if parameters is None or isinstance(parameters, Mapping):
        axes = {name: list(values) for name, values in (parameters or {}).items()}
        for name, values in axes.items():
            once = len({repr(value) for value in values}) == len(values)
            check(
                len(values) >= 1 and once,
                f"parameters[{name!r}]",
                values,
                "at least one value, each once",
            )
        points = [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]
        sizes = {name: len(values) for name, values in axes.items()}
    else:
        points = [dict(point) for point in parameters]
        check(len(points) >= 1 and len({tuple(sorted(point)) for point in points}) == 1, "parameters", parameters,
              "at least one point, all of the same parameters")  # fmt: skip
        sizes = {"point": len(points)}
    for name in points[0]:
        taken = ("alpha", "seed", "point", "message", "cosine", "index", "index_", *KEPT)
        check(name not in taken, "parameters", name, f"names other than {', '.join(taken)}")
    check(isinstance(key, (int, np.integer)), "key", key, "an integer")
    seeds = list(range(seeds)) if isinstance(seeds, (int, np.integer)) else [int(s) for s in seeds]
    check(
        len(seeds) >= 1 and len(set(seeds)) == len(seeds), "seeds", seeds, "at least one, each once"
    )
    check(
        callable(solver) or solver in SOLVERS,
        "solver",
        solver,
        f"one of {tuple(SOLVERS)}, or a function",
    )
    solver_: Any = solver
    return Sweep(build, alpha, points, sizes, seeds, solver_, dict(settings or {}), int(key))


def _assembled(task: Sweep, kept: dict[int, dict[str, np.ndarray]]) -> xarray.Dataset:
    """All rows as one dataset; a row that failed as a whole takes the shape of the others."""
    xarray = records.require()
    sizes = [*task.sizes.values(), len(task.seeds)]
    data: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in kept.values() for name in row if name != "seconds"):
        rows = [
            kept[number].get(name, np.full(len(task.alpha), np.nan))
            for number in range(len(task.rows))
        ]
        shape = max((row.shape for row in rows), key=len)
        same = all(row.shape == shape or row.ndim < len(shape) for row in rows)
        check(
            same,
            "parameters",
            f"models whose {name} differ in shape",
            "models with the same number of indices",
        )
        fill = np.nan if name != "message" else ""
        rows = [row if row.shape == shape else np.full(shape, fill) for row in rows]
        names = [*task.sizes, "seed", "alpha", *("index", "index_")[: len(shape) - 1]]
        data[name] = (names, np.stack(rows).reshape(*sizes, *shape))
    label = lambda value: (
        value if isinstance(value, (int, float, str, bool, np.number)) else repr(value)
    )
    coordinates: dict[str, Any] = {}
    for name in task.points[0]:
        values = [label(point[name]) for point in task.points]
        coordinates[name] = (
            ("point", values) if "point" in task.sizes else list(dict.fromkeys(values))
        )
    coordinates |= {"seed": task.seeds, "alpha": task.alpha}
    attributes = {name: json.dumps(value) for name, value in task.description().items()}
    attributes |= {name: str(value) for name, value in records.provenance().items()}
    return xarray.Dataset(data, coordinates, attributes)
