r"""The minimum of a function of a few variables, of many samples at once: whitened damped Newton.

Equations here [theory: empirical-risk, Eq. (18)], F the function, μ >= 0 the damping of Levenberg
and Marquardt:

    (∇²F + μ I) δ = -∇F,   accepted where F falls by 1e-4 |∇F·δ|;  μ ← μ/5, or 4 μ where it is not

Each start of each sample is one lane of a vectorised loop. A few steps are taken by all of them;
then those that have not ended are gathered, some at a time, so that the slowest do not hold up the
rest. A minimiser of a library would be called once a sample and is built for few large problems.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree
from jaxsmi.numerics.linear_algebra import solve_definite

__all__ = ["Minimum", "hessian", "lowest_minima"]

Function = Callable[[PyTree, Array], Array]  # F of a sample's numbers and of x (k,)

_STEPS = 80
_TOGETHER = 6  # steps of all lanes
_PART = 16  # part of the lanes that is gathered then
_APART = 1e-3  # minima closer than this, relative to their size, are one


class Minimum(NamedTuple):
    """The lowest minimum of each sample: its `position` (n, k), the `residual` |∇F| there, and
    whether the starts led to a `second` one."""

    position: Array
    residual: Array
    second: Array


class _Place(NamedTuple):
    """Where the descents are: x (lanes, k), F, ∇F, ∇²F, μ and the steps taken."""

    x: Array
    value: Array
    gradient: Array
    hessian: Array
    damping: Array
    count: Array


def hessian(function: Callable[[Array], Array], x: Array) -> Array:
    """∇²F (k, k) of few variables, a column at a time: twice as fast under `vmap` as
    `jax.hessian`, which makes small batches of its columns."""
    _, push = jax.linearize(jax.grad(function), x)
    return jnp.stack([push(unit) for unit in jnp.eye(x.size, dtype=x.dtype)], axis=1)


def lowest_minima(function: Function, samples: PyTree, starts: Array) -> Minimum:
    """The lowest of the minima that a descent reaches from each start, for many samples.

    Args:
        function: F(sample, x) of a vector x (k,), twice differentiable; k is small.
        samples: What F takes of each sample, arrays with a leading axis n.
        starts: Where to begin, (n, K, k).

    Returns:
        A `Minimum`; its residual is NaN where F is not finite at any start.

    Cost:
        n × K × 5 to 10 Hessians.
    """
    n, K, k = starts.shape
    lanes = _descended(function, samples, starts.reshape(n * K, k), K)
    place = jax.tree.map(lambda a: a.reshape(n, K, *a.shape[1:]), lanes)
    size = jnp.linalg.norm(place.gradient, axis=-1)
    sound = size <= 1e3 * _tolerance(place)
    value = jnp.where(jnp.isfinite(place.value), place.value, jnp.inf)
    none = ~jnp.any(sound, axis=1, keepdims=True)
    best = jnp.argmin(jnp.where(sound | none, value, jnp.inf), axis=1)
    position = jnp.take_along_axis(place.x, best[:, None, None], axis=1)
    distance = jnp.linalg.norm(place.x - position, axis=-1)
    apart = _APART * (1.0 + jnp.linalg.norm(position, axis=-1))
    residual = jnp.take_along_axis(size, best[:, None], axis=1)[:, 0]
    return Minimum(position[:, 0], residual, jnp.any(sound & (distance > apart), axis=1))


def _tolerance(place: _Place) -> Array:
    """The gradient that rounding allows to ask for."""
    limit = 3.0 * float(jnp.finfo(place.x.dtype).eps) ** (2.0 / 3.0)
    return limit * (1.0 + jnp.linalg.norm(place.x, axis=-1))


def _unfinished(place: _Place) -> Array:
    """Which lanes go on."""
    size = jnp.linalg.norm(place.gradient, axis=-1)
    return (size > _tolerance(place)) & (place.count < _STEPS)


def _descended(function: Function, samples: PyTree, starts: Array, each: int) -> _Place:
    """The ends of the descents from starts (lanes, k), `each` of them of a sample."""
    lanes = len(starts)
    owner = jnp.arange(lanes) // each
    look = jax.vmap(lambda sample, x: _looked(function, sample, x))
    step = jax.vmap(lambda sample, place: _stepped(function, sample, place))
    take = lambda tree, rows: jax.tree.map(lambda a: a[rows], tree)

    def run(rows: Array, place: _Place, steps: int) -> _Place:
        """So many steps of some lanes; those that have ended stay."""
        mine = take(samples, owner[rows])

        def move(carry: tuple[Array, _Place]) -> tuple[Array, _Place]:
            done, place = carry
            on = _unfinished(place)
            new = step(mine, place)
            keep = lambda a, b: jnp.where(on.reshape(-1, *[1] * (a.ndim - 1)), a, b)
            return done + 1, jax.tree.map(keep, new, place)

        goes_on = lambda carry: (carry[0] < steps) & jnp.any(_unfinished(carry[1]))
        return lax.while_loop(goes_on, move, (jnp.zeros((), int), place))[1]

    def gathered(place: _Place) -> _Place:
        rows = jnp.nonzero(_unfinished(place), size=part, fill_value=lanes - 1)[0]
        new = run(rows, take(place, rows), 2 * _TOGETHER)
        return jax.tree.map(lambda a, b: a.at[rows].set(b), place, new)

    every = jnp.arange(lanes)
    first = look(take(samples, owner), starts)
    if each == 1:  # as of a convex function: all lanes take about as long
        return run(every, first, _STEPS)
    place = run(every, first, _TOGETHER)
    part = max(lanes // _PART, 1)
    return lax.while_loop(lambda place: jnp.any(_unfinished(place)), gathered, place)


def _looked(function: Function, sample: PyTree, x: Array) -> _Place:
    """The place of one lane at x, before its first step."""
    along = lambda x: function(sample, x)
    value, gradient = jax.value_and_grad(along)(x)
    zero = jnp.zeros((), x.dtype)
    return _Place(x, value, gradient, hessian(along, x), zero, jnp.zeros((), int))


def _stepped(function: Function, sample: PyTree, place: _Place) -> _Place:
    """One step of one lane."""
    rounding = 64.0 * float(jnp.finfo(place.x.dtype).eps)
    identity = jnp.eye(place.x.size, dtype=place.x.dtype)
    damped = place.hessian + place.damping * identity
    move, definite = solve_definite(damped, -place.gradient[:, None])
    move = jnp.where(definite, move[:, 0], 0.0)
    new = _looked(function, sample, place.x + move)
    enough = new.value <= place.value + 1e-4 * jnp.sum(place.gradient * move)
    # next to the minimum F falls by less than its rounding
    halved = jnp.sum(new.gradient**2) <= 0.25 * jnp.sum(place.gradient**2)
    level = new.value <= place.value + rounding * (1.0 + jnp.abs(place.value))
    finite = jnp.isfinite(new.value) & jnp.all(jnp.isfinite(new.hessian))
    take = definite & finite & (enough | (level & halved))
    smaller = jnp.where(place.damping > 1e-5, 0.2 * place.damping, 0.0)
    larger = jnp.maximum(4.0 * place.damping, 1e-2)
    # no smaller than half of what makes the matrix definite, by its rows
    missing = jnp.sum(jnp.abs(damped), 1) - jnp.abs(jnp.diagonal(damped)) - jnp.diagonal(damped)
    larger = jnp.where(definite, larger, jnp.maximum(larger, 0.5 * jnp.max(missing)))
    kept = jax.tree.map(lambda a, b: jnp.where(take, a, b), new, place)
    damping = jnp.where(take, smaller, larger)
    return kept._replace(damping=damping, count=place.count + 1)
