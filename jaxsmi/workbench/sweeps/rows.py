"""Rows of a sweep: all α at one point of the other parameters, solved one after the other or many
at once.

State evolution starts each α at the fixed point before it (`warm_start`). A problem that fails is
NaN with its code and the reason, and stops nothing. The random numbers of a point depend on the key
and on its seed alone: they are common to all α and all parameters, and the same in whatever order
and wherever the rows are computed. Rows of matrix models, whose state evolution takes less time
than its launch, are solved many at once by vmap. No equation lives here.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.codes import Result
from jaxsmi.core.provenance import fields_of, parameters
from jaxsmi.core.results import Solution
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench.sweeps.solvers import SOLVERS

__all__ = ["KEPT", "Row", "Sweep"]

KEPT = ("overlap", "stderr", "covariance", "error", "steps", "residual", "rho", "result")

_TOGETHER = 64  # rows of a matrix model

Row = dict[str, np.ndarray]  # arrays over α, and "message" and "seconds"


@dataclasses.dataclass
class Sweep:
    """A grid of problems, checked by `planned`.

    Args:
        build: Makes a model of the parameters of a point.
        alpha: Sample complexities, ascending.
        points: The parameters of each point.
        sizes: Sizes of the axes whose product the points are (a list of points: one axis, "point").
        seeds: The seeds, which all points have in common.
        solver: A name, or a function (model, alpha, key, previous solution or None, **settings) ->
            Solution.
        settings: Keyword arguments of the solver.
        key: An integer, the seed of all keys.
    """

    build: Callable[..., AbstractModel]
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

    @property
    def dimension(self) -> int | None:
        """Dimension of a token in runs of a named solver; None for theory."""
        if not isinstance(self.solver, str):
            return None
        return self.settings.get("dimension", SOLVERS[self.solver].dimension)

    def chunks(self, missing: Sequence[int]) -> list[list[int]]:
        """The rows that are solved at once with one that is missing.

        They are always the same ones, so that their numbers are too.
        """
        size = self.together
        numbers = range(len(self.rows))
        return [
            list(numbers[k * size : (k + 1) * size])
            for k in sorted({number // size for number in missing})
        ]

    def solve(self, numbers: Sequence[int]) -> list[Row]:
        """Rows of these numbers: arrays over α, and "message": why a point failed, empty where it
        did not.
        """
        models = self._alike(numbers) if len(numbers) > 1 else None
        if models is not None:
            try:
                return self._solve_together(numbers, *models)
            except Exception as failure:  # one by one they say which point it is
                warnings.warn(f"{len(numbers)} rows are solved one by one: {failure}", stacklevel=3)
        return [self._solve_one(number) for number in numbers]

    def _alike(self, numbers: Sequence[int]) -> tuple[AbstractModel, AbstractModel] | None:
        """The models of these rows as one with stacked arrays, and what they share.

        None where one of them is of another kind, or cannot be made.
        """
        try:
            parts = [
                eqx.partition(self.build(**self.rows[number][0]), eqx.is_array)
                for number in numbers
            ]
        except Exception:  # its own row will say why
            return None
        form = lambda arrays: jax.tree.map(lambda x: (x.shape, x.dtype), arrays)
        first, shared = parts[0]
        if any(
            not eqx.tree_equal(other, shared) or form(arrays) != form(first)
            for arrays, other in parts[1:]
        ):
            return None
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(arrays for arrays, _ in parts))
        return stacked, shared

    def _solve_together(
        self, numbers: Sequence[int], stacked: AbstractModel, shared: AbstractModel
    ) -> list[Row]:
        """Rows by one compiled program."""
        begin = time.perf_counter()
        solutions = _evolve_many(stacked, shared, jnp.asarray(self.alpha))
        table = {name: np.asarray(value) for name, value in fields_of(solutions, KEPT).items()}
        seconds = np.asarray((time.perf_counter() - begin) / len(numbers))
        aside = {"message": np.zeros(len(self.alpha), "<U1"), "seconds": seconds}
        return [
            {name: values[k] for name, values in table.items()} | aside for k in range(len(numbers))
        ]

    def _solve_one(self, number: int) -> Row:
        """One row, α by α."""
        values, seed = self.rows[number]
        solver = SOLVERS[self.solver].solve if isinstance(self.solver, str) else self.solver
        entries: list[Row | None] = []
        messages: list[str] = []
        previous: Solution | None = None
        model: AbstractModel | None = None
        begin = time.perf_counter()
        for alpha in self.alpha:
            message = ""
            entry = None
            try:
                if model is None:
                    model = self.build(**values)
                key = jax.random.fold_in(jax.random.key(self.key), seed)
                solution = solver(model, alpha, key, previous, **self.settings)
                solution = jax.block_until_ready(solution)
                entry = _entry(solution)
                previous = solution if bool(solution.converged) else previous
            except Exception as failure:  # whatever it is, the rest of the sweep goes on
                message = f"{type(failure).__name__}: {failure}".splitlines()[0]
            entries.append(entry)
            messages.append(message)
        seconds = np.asarray(time.perf_counter() - begin)
        return _table(entries) | {"message": np.array(messages, str), "seconds": seconds}

    def description(self) -> dict[str, Any]:
        """What decides the numbers, for JSON.

        Axes, settings, key, solver, and the models at the first and the last point.
        """
        corners = []
        for values, _ in (self.rows[0], self.rows[-1]):
            try:
                model = self.build(**values)
                corners.append([repr(type(model).__name__), parameters(model)])
            except Exception as failure:
                corners.append(f"{type(failure).__name__}: {failure}")
        described: dict[str, object] = {
            "alpha": self.alpha,
            "points": self.points,
            "sizes": self.sizes,
            "seeds": self.seeds,
            "solver": self.solver if isinstance(self.solver, str) else _source(self.solver),
            "settings": self.settings,
            "key": self.key,
            "models": corners,
            "x64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        }
        return parameters(described, largest=np.inf)


def _entry(solution: Solution) -> Row:
    """What a row keeps of a solution: numbers, and of runs the cosines."""
    entry = {name: np.asarray(value) for name, value in fields_of(solution, KEPT).items()}
    return entry | ({"cosine": solution.cosine} if "cosine" in solution.history else {})


def _table(entries: Sequence[Mapping[str, np.ndarray] | None]) -> Row:
    """Entries of all α as arrays.

    An α that failed is NaN with the code INVALID, in the shape of the others.
    """
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(KEPT, ())
    for entry in reversed(entries):
        if entry is not None:
            shapes = {name: values.shape for name, values in entry.items()}
    failed = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
    failed |= {"result": np.asarray(int(Result.INVALID))}
    return {
        name: np.stack([(failed if entry is None else entry)[name] for entry in entries])
        for name in shapes
    }


@eqx.filter_jit
def _evolve_many(models: AbstractModel, static: AbstractModel, alpha: Array) -> Solution:
    """State evolution of many matrix models at all α."""
    one = lambda model, a: state_evolution(eqx.combine(model, static), a)
    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(models, alpha)


def _source(function: Callable[..., Solution]) -> str:
    """The source of a user's solver, or its type where there is none."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return repr(type(function))
