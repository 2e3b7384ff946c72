"""Roots of functions of one variable in a bracket: bisection, and Chandrupatla's method.

Chandrupatla's method ([theory: numerics, section 5]) takes an inverse quadratic interpolation
through the last three points where that is safe (φ² < ξ and (1 - φ)² < 1 - ξ in his variables) and
halves the bracket elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

__all__ = ["Root", "bisect", "root"]

_STEP = 1e-4  # of the central difference: its error is about 1e-8, and rounding 1e-12


def bisect(
    above: Callable[[Array], Array], low: Array, high: Array, steps: int | Array = 60
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


class Root(NamedTuple):
    """A root.

    Attributes:
        x: Where the function is zero.
        slope: The derivative there, a central difference good to about 1e-6.
        values: The function at the two ends of the bracket (2,).
    """

    x: Array
    slope: Array
    values: Array


class _Bracket(NamedTuple):
    """The newest point, the other end, their values, and where between them to look next."""

    newest: Array
    other: Array
    f_newest: Array
    f_other: Array
    share: Array

    @property
    def best(self) -> tuple[Array, Array]:
        """The end whose value is smaller, and that value."""
        smaller = jnp.abs(self.f_newest) < jnp.abs(self.f_other)
        return (
            jnp.where(smaller, self.newest, self.other),
            jnp.where(smaller, self.f_newest, self.f_other),
        )


class _Search(NamedTuple):
    """A bracket, values at the first ends and beside the root, and two counters."""

    bracket: _Bracket
    ends: Array
    sides: Array
    count: Array
    tail: Array


def _narrowed(bracket: _Bracket, x: Array, f: Array, tolerance: float) -> _Bracket:
    """The bracket after the function was `f` at `x`, by Chandrupatla's rule."""
    a, b, fa, fb, _ = bracket
    same = jnp.sign(f) == jnp.sign(fa)  # the root is between x and b; else between x and a
    last = jnp.where(same, a, b)
    f_last = jnp.where(same, fa, fb)
    other = jnp.where(same, b, a)
    f_other = jnp.where(same, fb, fa)
    xi = (x - other) / (last - other)
    phi = (f - f_other) / (f_last - f_other)
    safe = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
    one = f / (f_other - f) * f_last / (f_other - f_last)
    two = f / (f_last - f) * f_other / (f_last - f_other) * (last - x) / (other - x)
    # a step of a quarter of the tolerance at least, or the other end would never move
    edge = jnp.minimum(0.5, 0.25 * tolerance / jnp.abs(other - x))
    share = jnp.clip(jnp.where(safe, one + two, 0.5), edge, 1.0 - edge)
    return _Bracket(x, other, f, f_other, share)


def root(
    function: Callable[[Array], Array],
    low: Array,
    high: Array,
    tolerance: float = 1e-9,
    steps: int = 80,
) -> Root:
    """Where a function of opposite signs at `low` and `high` is zero: about ten evaluations.

    Numbers only (vmap for more). The function occurs once in the compiled program, the ends and the
    slope included, as such functions take seconds to compile.

    Args:
        function: A number of a number.
        low: One end of the bracket.
        high: The other.
        tolerance: Absolute error of the root. Default 1e-9.
        steps: Largest number of evaluations. Default 80.

    Returns:
        A `Root`.
    """

    def step(state: _Search) -> _Search:
        bracket, ends, sides, count, tail = state
        best, f_best = bracket.best
        wide = jnp.abs(bracket.other - bracket.newest) > tolerance
        # written so that a NaN ends the search
        done = (count >= 2) & (~wide | (f_best == 0.0) | ~(count < steps))
        inside = bracket.newest + bracket.share * (bracket.other - bracket.newest)
        x = jnp.where(count == 0, low, jnp.where(count == 1, high, inside))
        # the last two evaluations are those of the slope: one call in the program for all three
        x = jnp.where(done, best + _STEP * jnp.where(tail == 0, -1.0, 1.0), x)
        f = function(x)
        ends = jnp.where((jnp.arange(2) == count) & ~done, f, ends)
        sides = jnp.where((jnp.arange(2) == tail) & done, f, sides)
        first = _Bracket(low, high, ends[0], ends[1], 0.5 * jnp.ones_like(bracket.share))
        new = _Bracket(
            *(
                jnp.where(done, old, jnp.where(count < 2, start, better))
                for start, better, old in zip(
                    first, _narrowed(bracket, x, f, tolerance), bracket, strict=True
                )
            )
        )
        return _Search(new, ends, sides, count + 1, jnp.where(done, tail + 1, tail))

    one = jnp.ones_like(low)
    pair = jnp.stack([one, -one])
    zero = jnp.zeros((), int)
    start = _Search(_Bracket(low, high, one, -one, 0.5 * one), pair, pair, zero, zero)
    end = lax.while_loop(lambda state: state.tail < 2, step, start)
    slope = (end.sides[1] - end.sides[0]) / (2.0 * _STEP)
    return Root(end.bracket.best[0], slope, end.ends)
