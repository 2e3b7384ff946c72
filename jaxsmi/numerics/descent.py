r"""Minimum of a smooth objective of a few parameters, each of whose values is expensive.

Equation here [theory: multi-index, Eq. (61)]: L-BFGS steps of optax on the gradient, scaled so that
the first step has length 0.2; steps are at most 0.3 long, a step after which the objective rose
goes half way back, and where the curvature has the wrong sign the step is down the gradient.
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
from jaxsmi.core.codes import Result
from jaxsmi.core.progress import Bar
from jaxsmi.core.validate import check

# Parameters are logarithms of strengths, or of order one: a step of a fifth changes a model by
# twenty per cent, and one above a third may leave the region where its threshold exists.
_FIRST_STEP = 0.2
_LONGEST_STEP = 0.3

_Extra = TypeVar("_Extra")


class Point(NamedTuple, Generic[_Extra]):
    """One evaluation: the objective and its gradient, the `number` for the history, and `extra`
    results, from which the next evaluation may go on."""

    parameters: PyTree
    value: Array
    gradient: PyTree
    number: Array
    extra: _Extra

    @property
    def size(self) -> float:
        """The norm of the gradient."""
        return float(optax.global_norm(self.gradient))

    @property
    def finite(self) -> bool:
        """The objective and its gradient are finite."""
        return bool(np.isfinite(self.value) and np.isfinite(self.size))


class SearchEnd(eqx.Module):
    """The end of a search.

    Attributes:
        parameters: The best parameters.
        gradient: Of the objective there.
        steps: Evaluations taken.
        result: A code: SUCCESS, MAX_STEPS.
        history: One entry per evaluation: "parameters", the objective by its name, "gradient".
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


def minimise(
    objective: Callable[[PyTree, _Extra], tuple[tuple[Array, tuple[Array, _Extra]], PyTree]],
    start: PyTree,
    extra: _Extra,
    *,
    name: str,
    tolerance: float,
    allowed: str,
    bar: Bar,
    done: Callable[[Array], bool] = lambda number: False,
) -> tuple[Point[_Extra], SearchEnd]:
    """The best point and the end of a search (module docstring).

    Args:
        objective: objective(parameters, extra) -> ((value, (number, extra)), gradient), as of
            `jax.value_and_grad(.., has_aux=True)`; `extra` is that of the last good point.
        start: The first parameters.
        extra: What the first evaluation goes on from.
        name: Of the number that is recorded.
        tolerance: The search ends where a step is shorter.
        allowed: Parameters to start at, for the message where the objective is not finite.
        bar: The progress bar, whose total is the largest number of evaluations.
        done: done(number): it is as good as it can be. Default: never.
    """

    def evaluate(parameters: PyTree, extra: _Extra) -> Point[_Extra]:
        (value, (number, extra)), gradient = objective(parameters, extra)
        return Point(parameters, value, gradient, number, extra)

    # clipped after L-BFGS, whose steps are long where the curvature is small
    clipped = optax.clip_by_global_norm(_LONGEST_STEP)
    optimizer = optax.chain(optax.scale_by_lbfgs(), clipped, optax.scale(-1.0))
    first = best = evaluate(start, extra)
    check(first.finite, "start", start, allowed)
    scale = _FIRST_STEP / first.size if first.size > 0.0 else 1.0
    memory = optimizer.init(start)
    history: dict[str, list[PyTree]] = {"parameters": [], name: [], "gradient": []}
    parameters, code = start, Result.MAX_STEPS
    for step in range(bar.total):
        # from the extras of the best point: those of a failed one may be of another branch
        point = evaluate(parameters, best.extra) if step else first
        entries = {"parameters": point.parameters, name: point.number, "gradient": point.gradient}
        for entry, value in entries.items():
            history[entry].append(jax.tree.map(np.asarray, value))
        bar.update(1, {name: f"{float(point.number):.4f}"})
        if not point.value <= best.value:  # or NaN: half way back to the best parameters
            updates = jax.tree.map(lambda p, b: 0.5 * (b - p), point.parameters, best.parameters)
            memory = optimizer.init(start)  # its curvature is that of the failed step
        else:
            best = point
            if done(point.number):
                code = Result.SUCCESS
                break
            scaled = jax.tree.map(lambda g: scale * g, point.gradient)
            updates, memory = optimizer.update(scaled, memory, point.parameters)
            products = jax.tree.map(lambda u, g: jnp.sum(u * g), updates, point.gradient)
            if float(sum(jax.tree.leaves(products))) > 0.0:  # curvature of the wrong sign
                updates = jax.tree.map(lambda g: -g, scaled)
                memory = optimizer.init(start)
        if float(optax.global_norm(updates)) < tolerance:
            code = Result.SUCCESS
            break
        parameters = jax.tree.map(jnp.add, point.parameters, updates)
    steps = len(history["gradient"])
    return best, SearchEnd(best.parameters, best.gradient, steps, jnp.asarray(int(code)), history)
