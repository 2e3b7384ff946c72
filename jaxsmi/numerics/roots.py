"""Roots of functions of one variable in a bracket.

`bisect` takes a condition, `differentiable_root` a cheap function of many numbers at once, and
`root` one function that is dear: Newton's method [theory: numerics, section 5], which halves the
bracket where a step would leave it. `quadratic_root` has a closed form.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

_STEPS = 60  # bisections bring a bracket of any size that occurs down to rounding
_FLAT = 1e-12  # a smaller slope is that of a double root, where an edge of a band has no derivative
# `root` ends at a step this small relative to 1 + |x| (its error is the square), or after so many
# steps, twice those of a bisection
_LAST, _MOST = 1e-10, 120


def quadratic_root(a: Array, b: Array) -> Array:
    """The positive root (a + √(a² + 4b))/2 of x² - a x - b, b >= 0, without cancellation."""
    root = jnp.sqrt(a * a + 4.0 * b)
    divisor = jnp.where(a < 0.0, root - a, 1.0)
    return jnp.where(a < 0.0, 2.0 * b / divisor, 0.5 * (root + a))


def bisect(
    above: Callable[[Array], Array], low: Array, high: Array, steps: int | Array = _STEPS
) -> Array:
    """The point from which on `above(x)` is true, to (high - low)/2^(steps + 1).

    The ends `low` and `high` are arrays of one shape.
    """

    # a fixed number of steps: it can be vmapped and differentiated forwards
    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        over = above(middle)
        return jnp.where(over, ends[0], middle), jnp.where(over, middle, ends[1])

    low, high = lax.fori_loop(0, steps, halve, (low, high))
    return 0.5 * (low + high)


def differentiable_root(function: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Where a function that grows through zero between `low` and `high` is zero, elementwise; an
    end where it does not change its sign.

    Derivatives of all orders in whatever the function closes over are implicit ones.
    """

    def divided_by_slope(push: Callable[[Array], Array], y: Array) -> Array:
        slope = push(jnp.ones_like(y))
        return y / jnp.where(jnp.abs(slope) > _FLAT, slope, jnp.inf)

    solve = lambda function, start: bisect(lambda x: function(x) > 0.0, start, high)
    return lax.custom_root(function, low, solve, divided_by_slope)


def root(function: Callable[[Array], Array], low: Array, high: Array) -> tuple[Array, Array]:
    """Where a growing function of one number is zero, and True where it is not yet at `high`.

    The function occurs once in the compiled program, as such functions take seconds to compile.
    """

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        x, _, low, high, count = state
        value, slope = jax.jvp(function, (x,), (jnp.ones_like(x),))
        low, high = jnp.where(value < 0.0, x, low), jnp.where(value < 0.0, high, x)
        newton = x - value / jnp.where(slope > 0.0, slope, 1.0)
        inside = (newton >= low) & (newton <= high)
        return jnp.where(inside, newton, 0.5 * (low + high)), x, low, high, count + 1

    def running(state: tuple[Array, ...]) -> Array:
        x, before, _, _, count = state
        return (jnp.abs(x - before) > _LAST * (1.0 + jnp.abs(x))) & (count < _MOST)

    # start at `high`, so that its sign is known; a negative one empties the bracket at once
    start = (high, low, low, high, jnp.zeros((), int))
    x, _, low, _, _ = lax.while_loop(running, step, start)
    return x, low >= high
