r"""Minima of smooth functions of a few variables: many cheap ones at once, or an expensive one.

Equations of `lowest_minima` [theory: empirical-risk, Eq. (18)], F the function, μ >= 0 the damping
of Levenberg and Marquardt:

    (∇²F + μ I) δ = -∇F,   accepted where F falls by 1e-4 |∇F·δ|;  μ ← μ/5, or 4 μ where it is not

Each start of each sample is one lane of a vectorised loop. A few steps are taken by all of them;
then those that have not ended are gathered, some at a time, so that the slowest do not hold up the
rest. A minimiser of a library would be called once a sample and is built for few large problems.

`minimise` [theory: multi-index, Eq. (72)]: steps δ = -H⁻¹∇F, the first of length 0.2. Differences
of gradients make the model H of the Hessian (BFGS; of one parameter the secant on the derivative),
also those along a step that is not taken as F rose. Along the axes of H steps have a bound, which
good steps double and failed ones halve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree
from jaxsmi.core.display import number
from jaxsmi.core.driver import Bar
from jaxsmi.core.results import Result
from jaxsmi.core.validate import check
from jaxsmi.numerics.linear_algebra import solve_definite

Function = Callable[[PyTree, Array], Array]  # F of a sample's numbers and of x (k,)

# empirical: a descent takes 5 to 10 steps, so that few lanes are left after 6
_STEPS = 80
_TOGETHER = 6  # steps that all lanes take first
_PART = 16  # then lanes are gathered, 1/16 of them at a time
_DISTINCT = 1e-3  # minima closer than this, relative to their size, are one
# rounding of F and of its derivatives leaves a gradient of about ε^{2/3}; a thousand times that is
# still a flat minimum, not a slope
_TOLERANCE, _FLAT = 3.0, 1e3
_DESCENT = 1e-4  # Armijo's share of the slope: usual
_ROUNDING = 64.0  # rounding of F in units of ε: F is a sum
# damping of Levenberg and Marquardt, μ ← μ/5 or 4μ: usual. The first is a hundredth of a unit
# Hessian; below 1e-5 it is dropped, so that the last steps converge quadratically
_SMALLER, _LARGER, _FIRST, _LEAST = 0.2, 4.0, 1e-2, 1e-5


class Minimum(NamedTuple):
    """The lowest minimum of each sample: its `position` (n, k), the `residual` |∇F| there, and
    True where the starts led to a `second` one."""

    position: Array
    residual: Array
    has_other_minimum: Array


class _State(NamedTuple):
    """State of the descents: x (lanes, k), F, ∇F, ∇²F, μ and the number of steps."""

    x: Array
    value: Array
    gradient: Array
    hessian: Array
    damping: Array
    count: Array

    @property
    def residual(self) -> Array:
        return jnp.linalg.norm(self.gradient, axis=-1)

    @property
    def tolerance(self) -> Array:
        limit = _TOLERANCE * float(jnp.finfo(self.x.dtype).eps) ** (2.0 / 3.0)
        return limit * (1.0 + jnp.linalg.norm(self.x, axis=-1))

    @property
    def unfinished(self) -> Array:
        return (self.residual > self.tolerance) & (self.count < _STEPS)


def hessian(function: Callable[[Array], Array], x: Array) -> Array:
    """∇²F (k, k) of few variables, a column at a time: twice as fast under `vmap` as
    `jax.hessian`, which makes small batches of its columns."""
    _, push = jax.linearize(jax.grad(function), x)
    return jnp.stack([push(unit) for unit in jnp.eye(x.size, dtype=x.dtype)], axis=1)


def lowest_minima(function: Function, samples: PyTree, starts: Array) -> Minimum:
    """The lowest of the minima that a descent reaches from each start, for many samples.

    Args:
        function: F(sample, x) of a vector x (k,), twice differentiable; k is small.
        samples: Numbers of each sample, arrays with a leading axis n.
        starts: Where to begin, (n, K, k).

    Returns:
        A `Minimum`; its residual is NaN where F is not finite at any start.

    Cost:
        n × K × 5 to 10 Hessians.
    """
    n, K, k = starts.shape
    lanes = _descend(function, samples, starts.reshape(n * K, k), K)
    end = jax.tree.map(lambda a: a.reshape(n, K, *a.shape[1:]), lanes)
    sound = end.residual <= _FLAT * end.tolerance
    value = jnp.where(jnp.isfinite(end.value), end.value, jnp.inf)
    none = ~jnp.any(sound, axis=1, keepdims=True)
    best = jnp.argmin(jnp.where(sound | none, value, jnp.inf), axis=1)
    position = jnp.take_along_axis(end.x, best[:, None, None], axis=1)
    distance = jnp.linalg.norm(end.x - position, axis=-1)
    distinct = distance > _DISTINCT * (1.0 + jnp.linalg.norm(position, axis=-1))
    residual = jnp.take_along_axis(end.residual, best[:, None], axis=1)[:, 0]
    return Minimum(position[:, 0], residual, jnp.any(sound & distinct, axis=1))


def _descend(function: Function, samples: PyTree, starts: Array, each: int) -> _State:
    """Descend from starts (lanes, k), `each` of them for every sample."""
    lanes = len(starts)
    owner = jnp.arange(lanes) // each
    step = jax.vmap(lambda sample, state: _step(function, sample, state))
    take = lambda tree, rows: jax.tree.map(lambda a: a[rows], tree)

    def run(rows: Array, state: _State, steps: int) -> _State:
        """Take up to `steps` steps of some lanes; lanes that have ended stay."""
        own = take(samples, owner[rows])

        def move(carry: tuple[Array, _State]) -> tuple[Array, _State]:
            count, state = carry
            on = state.unfinished
            keep = lambda a, b: jnp.where(on.reshape(-1, *[1] * (a.ndim - 1)), a, b)
            return count + 1, jax.tree.map(keep, step(own, state), state)

        goes_on = lambda carry: (carry[0] < steps) & jnp.any(carry[1].unfinished)
        return lax.while_loop(goes_on, move, (jnp.zeros((), int), state))[1]

    def gathered(state: _State) -> _State:
        size = max(lanes // _PART, 1)
        rows = jnp.nonzero(state.unfinished, size=size, fill_value=lanes - 1)[0]
        new = run(rows, take(state, rows), 2 * _TOGETHER)
        return jax.tree.map(lambda a, b: a.at[rows].set(b), state, new)

    every = jnp.arange(lanes)
    begin = jax.vmap(lambda sample, x: _evaluate(function, sample, x))
    first = begin(take(samples, owner), starts)
    if each == 1:  # a convex function: all lanes take about as long
        return run(every, first, _STEPS)
    state = run(every, first, _TOGETHER)
    return lax.while_loop(lambda state: jnp.any(state.unfinished), gathered, state)


def _evaluate(function: Function, sample: PyTree, x: Array) -> _State:
    """The state of one lane at x, before its first step."""
    along = lambda x: function(sample, x)
    value, gradient = jax.value_and_grad(along)(x)
    zero = jnp.zeros((), x.dtype)
    return _State(x, value, gradient, hessian(along, x), zero, jnp.zeros((), int))


def _step(function: Function, sample: PyTree, state: _State) -> _State:
    """One step of one lane."""
    rounding = _ROUNDING * float(jnp.finfo(state.x.dtype).eps)
    damped = state.hessian + state.damping * jnp.eye(state.x.size, dtype=state.x.dtype)
    move, definite = solve_definite(damped, -state.gradient[:, None])
    move = jnp.where(definite, move[:, 0], 0.0)
    new = _evaluate(function, sample, state.x + move)
    enough = new.value <= state.value + _DESCENT * jnp.sum(state.gradient * move)
    # a fall of F below its rounding shows nothing: the step is good if the gradient halves
    # (its square falls to a quarter)
    halved = jnp.sum(new.gradient**2) <= 0.25 * jnp.sum(state.gradient**2)
    level = new.value <= state.value + rounding * (1.0 + jnp.abs(state.value))
    finite = jnp.isfinite(new.value) & jnp.all(jnp.isfinite(new.hessian))
    accept = definite & finite & (enough | (level & halved))
    smaller = jnp.where(state.damping > _LEAST, _SMALLER * state.damping, 0.0)
    larger = jnp.maximum(_LARGER * state.damping, _FIRST)
    # half of the damping that makes the matrix definite by Gershgorin's rows, at least
    missing = jnp.sum(jnp.abs(damped), 1) - jnp.abs(jnp.diagonal(damped)) - jnp.diagonal(damped)
    larger = jnp.where(definite, larger, jnp.maximum(larger, 0.5 * jnp.max(missing)))
    moved = jax.tree.map(lambda a, b: jnp.where(accept, a, b), new, state)
    damping = jnp.where(accept, smaller, larger)
    return moved._replace(damping=damping, count=state.count + 1)


# Parameters are logarithms of strengths, or of order one: a first step of a fifth changes a model
# by twenty per cent. Then e-folds: a ridge ten times too small is 2.3 away
_FIRST_STEP, _BOUND, _LARGEST_BOUND = 0.2, 1.0, 2.0
# The objective is a logarithm. Averages whose points pass a jump of the labels scatter by up to
# half a per cent (errors of linear students of signs), and their derivatives do not: the slopes
# tell the sign of smaller changes
_SCATTER = 1e-2
_ENOUGH = 0.25  # share of the predicted fall from which the bound may grow: usual
# smallest fall, over the squared tolerance: that of one step of a tolerance in a flat minimum,
# where the curvature of log E in a logarithm of a ridge is 0.02
_FLATTEST = 1e-2
_LEAST_CURVATURE = 0.2  # least curvature over the old one (Powell, usual): the model stays convex
_SHORT = "Converged: the next step is shorter than the tolerance."
_LEVEL = "Converged: the next step lowers the objective by less than {:.0e} of it."
_TARGET = "Converged: the target is reached."
_MOST = (
    "Not converged: take more evaluations, iteration=smi.Iteration(max_steps=..), or another start."
)

_Extra = TypeVar("_Extra")


class Trial(NamedTuple, Generic[_Extra]):
    """One evaluation: the objective and its gradient, the `number` for the history, and `extra`
    results, from which the next evaluation may go on."""

    parameters: PyTree
    value: Array
    gradient: PyTree
    number: Array
    extra: _Extra

    @property
    def slope(self) -> np.ndarray:
        """The gradient as one vector."""
        return np.asarray(ravel_pytree(self.gradient)[0], float)

    @property
    def finite(self) -> bool:
        """The objective and its gradient are finite."""
        return bool(np.isfinite(self.value) and np.all(np.isfinite(self.slope)))


class SearchEnd(eqx.Module):
    """The end of a search.

    Attributes:
        parameters: The best parameters.
        gradient: Of the objective there.
        steps: Evaluations taken.
        result: A code: SUCCESS, MAX_STEPS.
        history: One entry per evaluation: "parameters", the objective by its name, "gradient".
        message: The sentence that says why it ended.
    """

    parameters: PyTree
    gradient: PyTree
    steps: int
    result: Array
    history: dict[str, list[PyTree]]
    message: str = eqx.field(static=True)

    def _text(self, name: str) -> str:
        """Return the title of a representation; the solution that was found follows it."""
        leaves = ", ".join(number(leaf) for leaf in jax.tree.leaves(self.parameters))
        code = Result(int(self.result)).name
        return f"Search for a {name}: {code} after {self.steps} steps at parameters {leaves}"


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
) -> tuple[Trial[_Extra], SearchEnd]:
    """The best point and the end of a search (module docstring).

    Args:
        objective: objective(parameters, extra) -> ((value, (number, extra)), gradient), as of
            `jax.value_and_grad(.., has_aux=True)`; `extra` is that of the last good point.
        start: The first parameters.
        extra: What the first evaluation goes on from.
        name: Of the number that is recorded.
        tolerance: The search ends where a step is shorter, or its fall as small as that of one.
        allowed: Parameters to start at, for the message where the objective is not finite.
        bar: The progress bar, whose total is the largest number of evaluations.
        done: done(number): it is as good as it can be. Default: never.
    """

    def evaluate(parameters: PyTree, extra: _Extra) -> Trial[_Extra]:
        (value, (number, extra)), gradient = objective(parameters, extra)
        return Trial(parameters, value, gradient, number, extra)

    first = best = evaluate(start, extra)
    check(first.finite, "start", start, allowed)
    vector, as_tree = ravel_pytree(start)
    x = np.asarray(vector, float)
    level = max(float(jnp.finfo(vector.dtype).eps) ** (2.0 / 3.0), _FLATTEST * tolerance**2)
    hessian = (np.linalg.norm(first.slope) / _FIRST_STEP or 1.0) * np.eye(x.size)
    bound, along, step, expected = _BOUND, x, np.zeros_like(x), 0.0
    history: dict[str, list[PyTree]] = {"parameters": [], name: [], "gradient": []}
    code, said = Result.MAX_STEPS, _MOST
    for count in range(bar.total):
        # start from the extras of the best point: a failed one may lie on another branch
        moved = as_tree(jnp.asarray(x + step, vector.dtype))
        point = evaluate(moved, best.extra) if count else first
        entries = {"parameters": point.parameters, name: point.number, "gradient": point.gradient}
        for entry, value in entries.items():
            history[entry].append(jax.tree.map(np.asarray, value))
        bar.update(1, {name: f"{float(point.number):.4f}"})
        if count:
            fall = _fall(best, point, step)
            if point.finite:  # a step that failed tells the curvature, too
                hessian = _curved(hessian, step, point.slope - best.slope, count == 1)
            longest = float(np.max(np.abs(along)))
            if fall > _ENOUGH * expected and longest > 0.9 * bound:
                bound = min(2.0 * bound, _LARGEST_BOUND)
            elif not fall > 0.0:
                bound = 0.5 * longest
            if fall > 0.0:
                x, best = x + step, point
        if done(best.number):
            code, said = Result.SUCCESS, _TARGET
            break
        curvature, axes = np.linalg.eigh(hessian)
        along = np.clip(-(axes.T @ best.slope) / curvature, -bound, bound)
        step = axes @ along
        expected = -float(best.slope @ step + 0.5 * step @ hessian @ step)
        if np.linalg.norm(step) < tolerance or expected < level:
            code = Result.SUCCESS
            said = _SHORT if np.linalg.norm(step) < tolerance else _LEVEL.format(level)
            break
    steps = len(history["gradient"])
    result = jnp.asarray(int(code))
    return best, SearchEnd(best.parameters, best.gradient, steps, result, history, said)


def _fall(best: Trial[Any], point: Trial[Any], step: np.ndarray) -> float:
    """Return the fall of the objective along a step; NaN if it or its gradient is not finite."""
    if not point.finite:
        return np.nan
    fall = float(best.value) - float(point.value)
    between = -0.5 * float((best.slope + point.slope) @ step)
    return fall if abs(fall) > _SCATTER else between


def _curved(hessian: np.ndarray, step: np.ndarray, change: np.ndarray, first: bool) -> np.ndarray:
    """Update the Hessian by the change of the gradient along a step: damped BFGS."""
    if first and step @ change > 0.0:  # the scale of the other directions
        hessian = (change @ change) / (step @ change) * np.eye(step.size)
    known = hessian @ step
    least = _LEAST_CURVATURE * (step @ known)
    if step @ change < least:
        share = (step @ known - least) / (step @ known - step @ change)
        change = share * change + (1.0 - share) * known
    update = np.outer(change, change) / (step @ change) - np.outer(known, known) / (step @ known)
    return hessian + update
