r"""The minimum of a function of a few variables, of many samples at once: whitened damped Newton.

Equations here [theory: empirical-risk, Eq. (18)], F the function, μ >= 0 the damping of Levenberg
and Marquardt:

    (∇²F + μ I) δ = -∇F,   accepted where F falls by 1e-4 |∇F·δ|;  μ ← μ/5, or 4 μ where it is not

Each sample is one lane of a vectorised loop, which ends with the slowest. A minimiser of a library
would be called once a sample and is built for few large problems; what is needed here is the
Hessian at the end, several starts, and lanes that do not branch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.numerics.linear_algebra import solve_definite

__all__ = ["Minimum", "lowest_minimum"]

_STEPS = 80
_APART = 1e-3  # minima closer than this, relative to their size, are one


class Minimum(NamedTuple):
    """The lowest minimum: its `position` (k,), the `residual` |∇F| there, and whether the starts
    led to a `second` one."""

    position: Array
    residual: Array
    second: Array


class _Place(NamedTuple):
    """Where a descent is: x, F, ∇F, ∇²F, μ and the steps taken."""

    x: Array
    value: Array
    gradient: Array
    hessian: Array
    damping: Array
    count: Array


def lowest_minimum(function: Callable[[Array], Array], starts: Array) -> Minimum:
    """The lowest of the minima that a descent reaches from each start.

    Args:
        function: F of a vector (k,), twice differentiable; k is small.
        starts: Where to begin, (K, k).

    Returns:
        A `Minimum`; its residual is NaN where F is not finite at any start.

    Cost:
        K × 5 to 15 Hessians; of many samples under `vmap`, those of the slowest.
    """
    place = jax.vmap(lambda start: _descend(function, start))(starts)
    size = jnp.linalg.norm(place.gradient, axis=1)
    sound = size <= 1e3 * _tolerance(place)
    value = jnp.where(jnp.isfinite(place.value), place.value, jnp.inf)
    best = jnp.argmin(jnp.where(sound | ~jnp.any(sound), value, jnp.inf))
    position = place.x[best]
    distance = jnp.linalg.norm(place.x - position, axis=1)
    second = jnp.any(sound & (distance > _APART * (1.0 + jnp.linalg.norm(position))))
    return Minimum(position, size[best], second)


def _tolerance(place: _Place) -> Array:
    """The gradient that rounding allows to ask for."""
    limit = 3.0 * float(jnp.finfo(place.x.dtype).eps) ** (2.0 / 3.0)
    return limit * (1.0 + jnp.linalg.norm(place.x, axis=-1))


def _descend(function: Callable[[Array], Array], start: Array) -> _Place:
    """The descent from one start."""
    both = jax.value_and_grad(function)
    hessian = jax.hessian(function)
    identity = jnp.eye(start.size, dtype=start.dtype)
    rounding = 64.0 * float(jnp.finfo(start.dtype).eps)

    def look(x: Array, damping: Array, count: Array) -> _Place:
        return _Place(x, *both(x), hessian(x), damping, count)

    def goes_on(place: _Place) -> Array:
        size = jnp.linalg.norm(place.gradient)
        return (size > _tolerance(place)) & (place.count < _STEPS)

    def step(place: _Place) -> _Place:
        damped = place.hessian + place.damping * identity
        move, definite = solve_definite(damped, -place.gradient[:, None])
        move = jnp.where(definite, move[:, 0], 0.0)
        new = look(place.x + move, place.damping, place.count + 1)
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

    none = jnp.zeros((), start.dtype)
    return lax.while_loop(goes_on, step, look(start, none, jnp.zeros((), int)))
