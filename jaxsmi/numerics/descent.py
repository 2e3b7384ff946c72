r"""A smooth objective of a few parameters, each of whose values is expensive: guarded quasi-Newton
steps of optax.

Equation here [theory: multi-index, Eq. (61)]: the gradient is scaled so that the first step has
length 0.2, steps are at most 0.3 long, a step after which the objective rose goes half way back,
and where the curvature has the wrong sign the step is down the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.core.progress import Bar

__all__ = ["Descent", "Ended", "Point"]

_FIRST_STEP = 0.2
_LONGEST_STEP = 0.3


_Found = TypeVar("_Found")


class Point(NamedTuple, Generic[_Found]):
    """One evaluation: the objective, its gradient with its norm, the `number` that is recorded, and
    whatever else was `found`, from which the next evaluation may go on."""

    parameters: PyTree
    value: float
    gradient: PyTree
    size: float
    number: Array
    found: _Found

    @property
    def finite(self) -> bool:
        """Whether the objective and its gradient exist."""
        return bool(np.isfinite(self.value) and np.isfinite(self.size))


class Ended(eqx.Module):
    """The end of a search.

    Attributes:
        parameters: The best parameters.
        gradient: Of the objective there.
        steps: Evaluations taken.
        result: A code: SUCCESS, MAX_STEPS, NONFINITE.
        history: One entry an evaluation: "parameters", the objective by its name, "gradient".
    """

    parameters: PyTree
    gradient: PyTree
    steps: int
    result: Array
    history: dict[str, list[PyTree]]

    @property
    def message(self) -> str:
        """The sentence that goes with the result code."""
        return Result(int(self.result)).remedy


def _lbfgs() -> optax.GradientTransformation:
    """L-BFGS with steps of bounded length."""
    clipped = optax.clip_by_global_norm(_LONGEST_STEP)
    return optax.chain(optax.scale_by_lbfgs(), clipped, optax.scale(-1.0))


class Descent(Generic[_Found]):
    """The iteration (module docstring).

    Args:
        evaluate: evaluate(parameters, found) -> `Point`; `found` is that of the last good point.
        optimizer: Any optax optimiser; None: L-BFGS, whose steps are guarded.
        tolerance: Stop where a step is shorter (an optimiser of one's own: where the gradient is
            less than so much of the first one).
        done: done(point): whether the objective is as good as it can be.
        number: What to call the number that is recorded.
        allowed: What parameters to start at, for the message where the objective is not finite.
    """

    def __init__(
        self,
        evaluate: Callable[[PyTree, _Found | None], Point[_Found]],
        optimizer: optax.GradientTransformation | None,
        tolerance: float,
        done: Callable[[Point[_Found]], bool],
        number: str,
        allowed: str,
    ):
        self.evaluate = evaluate
        self.default = optimizer is None
        self.optimizer = _lbfgs() if optimizer is None else optimizer
        self.tolerance = tolerance
        self.done = done
        self.number = number
        self.allowed = allowed
        self.best: Point[_Found] | None = None
        self.first_size = 0.0
        self.history: dict[str, list[PyTree]] = {"parameters": [], number: [], "gradient": []}

    def run(self, parameters: PyTree, max_steps: int, bar: Bar) -> tuple[Point[_Found], Ended]:
        """Evaluate and step until a test of convergence holds, or so many times; returns the best
        point and how the search ended."""
        memory = self.optimizer.init(parameters)
        found = None
        code = Result.MAX_STEPS
        for _ in range(max_steps):
            point = self.evaluate(parameters, found)
            self._record(point, bar)
            if self._lost(point):
                code = Result.NONFINITE
                break
            if self.default and self.best is not None and not point.value <= self.best.value:
                parameters, length = self._half_way_back(parameters, self.best.parameters)
                memory = self.optimizer.init(parameters)
                if length < self.tolerance:
                    code = Result.SUCCESS
                    break
                continue
            if self.best is None or point.value <= self.best.value:
                self.best = point
            found = point.found
            if self._converged(point):
                code = Result.SUCCESS
                break
            updates, memory = self._updates(point, memory)
            if self.default and float(optax.global_norm(updates)) < self.tolerance:
                code = Result.SUCCESS
                break
            parameters = jax.tree.map(jnp.add, parameters, updates)
        assert self.best is not None  # the first evaluation was checked
        steps = len(self.history["gradient"])
        best = self.best
        end = Ended(best.parameters, best.gradient, steps, jnp.asarray(code), self.history)
        return best, end

    def _record(self, point: Point[_Found], bar: Bar) -> None:
        entries = {
            "parameters": point.parameters,
            self.number: point.number,
            "gradient": point.gradient,
        }
        for name, entry in entries.items():
            self.history[name].append(jax.tree.map(np.asarray, entry))
        bar.update(1, {self.number: f"{float(point.number):.4f}"})

    def _lost(self, point: Point[_Found]) -> bool:
        """Whether to give up here; raises a ValueError for a start without a finite objective."""
        if self.best is None:
            check(point.finite, "start", point.parameters, self.allowed)
            self.first_size = point.size if point.size > 0 else 1.0
            return False
        return not point.finite and not self.default

    @staticmethod
    def _half_way_back(parameters: PyTree, best: PyTree) -> tuple[PyTree, float]:
        """The middle between some parameters and the best ones, and the way to it."""
        back = jax.tree.map(lambda p, b: 0.5 * (b - p), parameters, best)
        return jax.tree.map(jnp.add, parameters, back), float(optax.global_norm(back))

    def _converged(self, point: Point[_Found]) -> bool:
        if self.done(point):
            return True
        return not self.default and point.size < self.tolerance * self.first_size

    def _updates(
        self, point: Point[_Found], memory: optax.OptState
    ) -> tuple[PyTree, optax.OptState]:
        """The next step in the parameters, and the optimiser's memory."""
        scale = _FIRST_STEP / self.first_size if self.default else 1.0
        scaled = jax.tree.map(lambda g: scale * g, point.gradient)
        updates, memory = self.optimizer.update(scaled, memory, point.parameters)
        products = jax.tree.map(lambda u, g: jnp.sum(u * g), updates, point.gradient)
        if self.default and float(sum(jax.tree.leaves(products))) > 0:
            # curvature of the wrong sign: down the gradient instead
            downhill = jax.tree.map(lambda g: -g, scaled)
            return downhill, self.optimizer.init(point.parameters)
        return updates, memory
