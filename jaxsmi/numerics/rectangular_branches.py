r"""The real branches of the map s(D) behind the rectangular law, without loss of digits.

Equations here [theory: random-matrices, Eqs. (21) to (28)]; R₁ aspect, R₂ rank, R noise, k² = R₁:

    A₁ = 1 - R₂ + R R₂,  A₂ = R₁ - R₂ + R R₂,  B = R R₂²
    N(D) = D² + A₁ D - B,  M(D) = D² + A₂ D - B
    s(D) = N(D) M(D)/(k R₂ D (D - R₂)),      d log s/dD = N'/N + M'/M - 1/D - 1/(D - R₂)

N has the roots -n and n₊, M the roots -m and m₊. With the poles they are six points of the axis,

    -m <= -n < 0 < m₊ <= n₊ < R₂

and s is a coordinate on four of the intervals between them:

    below     D < -m          s falls from ∞ to 0: a coordinate of the whole real axis
    between   -n < D < 0      two edges where there is a gap
    within    m₊ < D < n₊     the first edge (R₁ > 1)
    beyond    D > R₂          the last edge

Distances of D to the six points are carried, not D itself, so that R → 0 costs no digits. The
coordinate t of a branch is the logarithm of a distance, or of the quotient of the distances to both
ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.numerics.roots import bisect, differentiable_root, quadratic_root

WIDE = 160.0  # largest log of a distance: the product of four distances stays below overflow
# order of the zero of s at -m, -n, 0, m₊, n₊, R₂; -1 for a pole
_ORDERS = (1, 1, -1, 1, 1, -1)


class CriticalPoints(NamedTuple):
    """The parameters and what follows from them.

    Attributes:
        aspect: R₁.
        rank: R₂.
        noise: R.
        n: N has the roots -n ..
        n_plus: .. and n₊.
        m: M has the roots -m ..
        m_plus: .. and m₊.
        apart: m - n, without cancellation; zero where R₁ = 1.
    """

    aspect: Array
    rank: Array
    noise: Array
    n: Array
    n_plus: Array
    m: Array
    m_plus: Array
    apart: Array

    @property
    def scale(self) -> Array:
        """log(k R₂)."""
        return 0.5 * jnp.log(self.aspect) + jnp.log(self.rank)

    @property
    def width(self) -> Array:
        """n₊ - m₊."""
        return self.n_plus * self.apart / self.m

    def distances(self, position: int, left: Array, right: Array) -> list[Array]:
        """D minus each of the six points, for a D that has `position` of them to its left, at the
        distance `left` from the last of these and `right` from the next one."""
        # sums of positive numbers, none of which is a difference: N(R₂) = R₂ gives R₂ - n₊
        steps = (self.apart, self.n, self.m_plus, self.width, self.rank / (self.rank + self.n))
        below = [left + sum(steps[k : position - 1]) for k in range(position)]
        return below + [-right - sum(steps[position:k]) for k in range(position, 6)]


def critical_points(aspect: Array, rank: Array, noise: Array) -> CriticalPoints:
    """The roots of N and M."""
    B = noise * rank**2
    n = quadratic_root(1.0 - rank + noise * rank, B)
    m = quadratic_root(aspect - rank + noise * rank, B)
    n_plus, m_plus = B / n, B / m
    apart = (aspect - 1.0) * (n + m) / (n + n_plus + m + m_plus)
    return CriticalPoints(aspect, rank, noise, n, n_plus, m, m_plus, apart)


class SpectralPoint(NamedTuple):
    """A D on a branch of s: its `distances` to the six points, and `speed` = dD/dt of the branch's
    coordinate t."""

    distances: list[Array]
    speed: Array

    def log_s(self, c: CriticalPoints) -> Array:
        """log s(D): one logarithm, which compiles faster than six."""
        m, n, zero, m_plus, n_plus, rank = self.distances
        return jnp.log(n * n_plus * m * m_plus / (zero * rank)) - c.scale

    @property
    def rate(self) -> Array:
        """d log s/dD."""
        terms = (order / x for order, x in zip(_ORDERS, self.distances, strict=True))
        return sum(terms, jnp.zeros_like(self.speed))

    @property
    def bend(self) -> Array:
        """d² log s/dD²."""
        terms = (order / x**2 for order, x in zip(_ORDERS, self.distances, strict=True))
        return -sum(terms, jnp.zeros_like(self.speed))


Branch = Callable[[Array, CriticalPoints], SpectralPoint]


def halves(t: Array) -> tuple[Array, Array]:
    """sigmoid(t) and sigmoid(-t)."""
    grown = jnp.exp(-jnp.abs(t))
    small = grown / (1.0 + grown)
    large = 1.0 / (1.0 + grown)
    return jnp.where(t < 0.0, small, large), jnp.where(t < 0.0, large, small)


def below(t: Array, c: CriticalPoints) -> SpectralPoint:
    """D = -(m + e^t)."""
    grown = jnp.exp(t)
    return SpectralPoint(c.distances(0, grown, grown), -grown)


def between(t: Array, c: CriticalPoints) -> SpectralPoint:
    """D = -n sigmoid(-t)."""
    to_n, to_zero = (c.n * x for x in halves(t))
    return SpectralPoint(c.distances(2, to_n, to_zero), to_n * to_zero / c.n)


def within(t: Array, c: CriticalPoints) -> SpectralPoint:
    """D = m₊ + (n₊ - m₊) sigmoid(t)."""
    # a square matrix has no such branch: any width will do
    width = jnp.where(c.apart > 0.0, c.width, 1.0)
    low, high = (width * x for x in halves(t))
    return SpectralPoint(c.distances(4, low, high), low * high / width)


def beyond(t: Array, c: CriticalPoints) -> SpectralPoint:
    """D = R₂ + e^t."""
    grown = jnp.exp(t)
    return SpectralPoint(c.distances(6, grown, grown), grown)


def solve(
    branch: Branch, target: Array, low: ArrayLike, high: ArrayLike, c: CriticalPoints
) -> Array:
    """Find t with log s = target on a branch, from `low` to `high`, or the end nearest to it."""
    low, high = (jnp.broadcast_to(jnp.asarray(x, target.dtype), target.shape) for x in (low, high))
    height = lambda t: branch(t, c).log_s(c)
    rising = height(high) > height(low)
    excess = lambda t: jnp.where(rising, height(t) - target, target - height(t))
    return differentiable_root(excess, low, high)


def edges_on_branches(c: CriticalPoints) -> tuple[Array, Array]:
    """t (4,) at the edges from left to right, and whether there is a gap.

    The edges lie on the branches `within`, `between` (two of them) and `beyond`.
    """
    wide = jnp.full_like(c.n, WIDE)
    fixed = lax.stop_gradient(c)
    # d² log s/dD² grows from -∞ at -n to ∞ at 0
    middle = bisect(lambda t: between(t, fixed).bend > 0.0, -0.5 * wide, 0.5 * wide)
    gap = between(middle, fixed).rate < 0.0
    # the rate falls up to `middle` and grows from there
    sign = jnp.asarray([-1.0, 1.0])
    lows, highs = jnp.stack([-0.5 * wide, middle]), jnp.stack([middle, 0.5 * wide])
    pair = differentiable_root(lambda t: sign * between(t, c).rate, lows, highs)
    high, low = jnp.where(gap, pair, middle)
    first = differentiable_root(lambda t: -within(t, c).rate, -0.5 * wide, 0.5 * wide)
    last = differentiable_root(lambda t: beyond(t, c).rate, -wide, wide)
    return jnp.stack([first, low, high, last]), gap
