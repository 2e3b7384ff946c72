"""TODO numerics.roots."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def bisect(above: Callable[[Array], Array], low: Array, high: Array, steps: int = 60) -> Array:
    """The point from which on `above(x)` is true, to (high - low)/2^(steps + 1); brackets of any one shape."""

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        over = above(middle)
        return jnp.where(over, ends[0], middle), jnp.where(over, middle, ends[1])

    low, high = lax.fori_loop(0, steps, halve, (low, high))
    return 0.5 * (low + high)


class Root(NamedTuple):
    """A root `x`, the `slope` there (a central difference, to about 1e-6), and the `values` at the ends of the bracket."""

    x: Array
    slope: Array
    values: Array


def root(
    function: Callable[[Array], Array],
    low: Array,
    high: Array,
    tolerance: float = 1e-9,
    steps: int = 80,
) -> Root:
    """Where `function`, of opposite signs at `low` and `high`, is zero, to an absolute `tolerance`: Chandrupatla's method,
    inverse quadratic interpolation where that is safe and bisection elsewhere; about ten evaluations. Scalars (vmap for more).

    The function occurs once in the compiled program, ends and slope included: what is solved for here takes seconds to compile.
    """
    apart = 1e-4  # of the two points that give the slope

    def step(c: tuple[Array, ...]) -> tuple[Array, ...]:
        a, b, _, fa, fb, _, t, ends, sides, count, tail = c
        smaller = jnp.abs(fa) < jnp.abs(fb)
        best, f_best = jnp.where(smaller, a, b), jnp.where(smaller, fa, fb)
        # written so that a NaN ends the search
        found = (count >= 2) & (~(jnp.abs(b - a) > tolerance) | (f_best == 0.0) | ~(count < steps))
        x = jnp.where(count == 0, low, jnp.where(count == 1, high, a + t * (b - a)))
        x = jnp.where(found, best + apart * jnp.where(tail == 0, -1.0, 1.0), x)
        f = function(x)
        ends = jnp.where((jnp.arange(2) == count) & ~found, f, ends)
        sides = jnp.where((jnp.arange(2) == tail) & found, f, sides)
        same = jnp.sign(f) == jnp.sign(fa)  # the root is between x and b; else between x and a
        last, f_last = jnp.where(same, a, b), jnp.where(same, fa, fb)
        other, f_other = jnp.where(same, b, a), jnp.where(same, fb, fa)
        xi, phi = (x - other) / (last - other), (f - f_other) / (f_last - f_other)
        safe = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
        one = f / (f_other - f) * f_last / (f_other - f_last)
        two = f / (f_last - f) * f_other / (f_last - f_other) * (last - x) / (other - x)
        edge = jnp.minimum(0.5, 0.25 * tolerance / jnp.abs(other - x))
        t = jnp.clip(jnp.where(safe, one + two, 0.5), edge, 1.0 - edge)
        begun = (low, high, low, ends[0], ends[1], ends[0], 0.5 * jnp.ones_like(t))
        moved = (x, other, last, f, f_other, f_last, t)
        new = (
            jnp.where(found, w, jnp.where(count < 2, u, v))
            for u, v, w in zip(begun, moved, c[:7], strict=True)
        )
        return *new, ends, sides, count + 1, jnp.where(found, tail + 1, tail)

    one, zero = jnp.ones_like(low), jnp.zeros((), int)
    pair = jnp.stack([one, -one])
    start = (low, high, low, one, -one, one, 0.5 * one, pair, pair, zero, zero)
    a, b, _, fa, fb, _, _, ends, sides, *_ = lax.while_loop(lambda c: c[-1] < 2, step, start)
    return Root(
        jnp.where(jnp.abs(fa) < jnp.abs(fb), a, b), (sides[1] - sides[0]) / (2.0 * apart), ends
    )
