r"""The real branches of the map s(D) behind the rectangular law, without loss of digits.

Equations here [theory: random-matrices, Eqs. (21) to (28)]; R₁ aspect, R₂ rank, R noise, k² = R₁:

    A₁ = 1 - R₂ + R R₂,  A₂ = R₁ - R₂ + R R₂,  B = R R₂²
    N(D) = D² + A₁ D - B,  M(D) = D² + A₂ D - B
    s(D) = N(D) M(D)/(k R₂ D (D - R₂)),      d log s/dD = N'/N + M'/M - 1/D - 1/(D - R₂)

N has the roots -n and n₊, M the roots -m and m₊, with m >= n and m₊ <= n₊ < R₂. On four intervals s
is a coordinate:

    below     D < -m          s falls from ∞ to 0: a coordinate of the whole real axis
    between   -n < D < 0      two edges where there is a gap
    within    m₊ < D < n₊     the first edge (R₁ > 1)
    beyond    D > R₂          the last edge

Distances of D to the roots and poles are carried, not D itself, so that R → 0 costs no digits. The
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

from jaxsmi.numerics.roots import bisect

__all__ = [
    "WIDE",
    "Branch",
    "Roots",
    "below",
    "between",
    "beyond",
    "edges_on_branches",
    "halves",
    "roots_of",
    "solved",
    "within",
]

WIDE = 160.0  # the largest logarithm of a distance that is looked at


class Roots(NamedTuple):
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


def roots_of(aspect: Array, rank: Array, noise: Array) -> Roots:
    """The roots of N and M."""
    B = noise * rank**2

    def negative(A: Array) -> tuple[Array, Array]:
        """Minus the negative root of D² + A D - B, and the square root of the discriminant."""
        discriminant = jnp.sqrt(A * A + 4.0 * B)
        other = discriminant - jnp.where(A < 0.0, A, -discriminant)
        return jnp.where(A < 0.0, 2.0 * B / other, 0.5 * (discriminant + A)), discriminant

    n, root_n = negative(1.0 - rank + noise * rank)
    m, root_m = negative(aspect - rank + noise * rank)
    apart = (aspect - 1.0) * (n + m) / (root_n + root_m)
    return Roots(aspect, rank, noise, n, B / n, m, B / m, apart)


class Distances(NamedTuple):
    """D + n, D - n₊, D + m, D - m₊, D and D - R₂, none of them a difference of large numbers."""

    n: Array
    n_plus: Array
    m: Array
    m_plus: Array
    zero: Array
    rank: Array


class Place(NamedTuple):
    """A D on a branch of s: its `distances`, and `speed` = dD/dt of the branch's coordinate t."""

    distances: Distances
    speed: Array

    def log_s(self, c: Roots) -> Array:
        """log s(D): one logarithm, which compiles faster than six."""
        n, n_plus, m, m_plus, zero, rank = self.distances
        return jnp.log(n * n_plus * m * m_plus / (zero * rank)) - c.scale

    @property
    def rate(self) -> Array:
        """d log s/dD."""
        n, n_plus, m, m_plus, zero, rank = (1.0 / x for x in self.distances)
        return n + n_plus + m + m_plus - zero - rank

    @property
    def bend(self) -> Array:
        """d² log s/dD²."""
        n, n_plus, m, m_plus, zero, rank = (1.0 / x**2 for x in self.distances)
        return zero + rank - n - n_plus - m - m_plus


Branch = Callable[[Array, Roots], Place]


def halves(t: Array) -> tuple[Array, Array]:
    """sigmoid(t) and sigmoid(-t)."""
    grown = jnp.exp(-jnp.abs(t))
    small = grown / (1.0 + grown)
    large = 1.0 / (1.0 + grown)
    return jnp.where(t < 0.0, small, large), jnp.where(t < 0.0, large, small)


def below(t: Array, c: Roots) -> Place:
    """D = -(m + e^t)."""
    grown = jnp.exp(t)
    size = c.m + grown
    distances = Distances(
        n=-grown - c.apart,
        n_plus=-size - c.n_plus,
        m=-grown,
        m_plus=-size - c.m_plus,
        zero=-size,
        rank=-size - c.rank,
    )
    return Place(distances, -grown)


def between(t: Array, c: Roots) -> Place:
    """D = -n sigmoid(-t)."""
    to_n, to_zero = (c.n * x for x in halves(t))
    distances = Distances(
        n=to_n,
        n_plus=-to_zero - c.n_plus,
        m=to_n + c.apart,
        m_plus=-to_zero - c.m_plus,
        zero=-to_zero,
        rank=-to_zero - c.rank,
    )
    return Place(distances, to_n * to_zero / c.n)


def beyond(t: Array, c: Roots) -> Place:
    """D = R₂ + e^t; N(R₂) = R₂ and M(R₂) = R₁ R₂."""
    grown = jnp.exp(t)
    D = c.rank + grown
    distances = Distances(
        n=D + c.n,
        n_plus=grown + c.rank / (c.rank + c.n),
        m=D + c.m,
        m_plus=grown + c.aspect * c.rank / (c.rank + c.m),
        zero=D,
        rank=grown,
    )
    return Place(distances, grown)


def within(t: Array, c: Roots) -> Place:
    """D = m₊ + (n₊ - m₊) sigmoid(t)."""
    width = jnp.where(c.apart > 0.0, c.n_plus * c.apart / c.m, 1.0)
    low, high = (width * x for x in halves(t))
    D = c.m_plus + low
    distances = Distances(
        n=D + c.n,
        n_plus=-high,
        m=D + c.m,
        m_plus=low,
        zero=D,
        rank=-high - c.rank / (c.rank + c.n),
    )
    return Place(distances, low * high / width)


def solved(branch: Branch, goal: Array, low: ArrayLike, high: ArrayLike, c: Roots) -> Array:
    """t with log s = goal on a branch, from `low` to `high`.

    It is bisected, then moved by three Newton steps. Derivatives go through the Newton steps. Goals
    that the branch does not reach give some t, without NaN.
    """
    fixed, at = lax.stop_gradient((c, goal))
    low, high = (
        jnp.broadcast_to(lax.stop_gradient(jnp.asarray(x, at.dtype)), at.shape) for x in (low, high)
    )
    middle = 0.5 * (low + high)
    start, end, half = branch(jnp.stack([low, high, middle]), fixed).log_s(fixed)
    rising = end > start
    reached = (at >= jnp.minimum(start, end)) & (at <= jnp.maximum(start, end))
    goal = jnp.where(reached, goal, half)
    at = lax.stop_gradient(goal)
    above = lambda t: (branch(t, fixed).log_s(fixed) > at) == rising
    t = lax.stop_gradient(bisect(above, low, high, 32))
    place = lax.stop_gradient(branch(t, fixed))
    slope = place.rate * place.speed
    slope = jnp.where(jnp.abs(slope) > 1e-12, slope, jnp.inf)  # at an edge
    return lax.fori_loop(0, 3, lambda _, t: t - (branch(t, c).log_s(c) - goal) / slope, t)


def edges_on_branches(c: Roots) -> tuple[Array, Array]:
    """t (4,) at the edges from left to right, and whether there is a gap.

    The edges lie on the branches `within`, `between` (two of them) and `beyond`.
    """
    fixed = lax.stop_gradient(c)
    wide = jnp.full_like(fixed.n, WIDE)
    # d² log s/dD² grows from -∞ at -n to ∞ at 0
    middle = bisect(lambda t: between(t, fixed).bend > 0.0, -0.5 * wide, 0.5 * wide)
    gap = between(middle, fixed).rate < 0.0
    # the rate falls up to `middle` and grows from there
    lows = jnp.stack([-0.5 * wide, middle])
    highs = jnp.stack([middle, 0.5 * wide])
    falling = jnp.asarray([True, False])
    high, low = bisect(lambda t: (between(t, fixed).rate < 0.0) == falling, lows, highs)
    high = jnp.where(gap, high, middle)
    low = jnp.where(gap, low, middle)
    first = bisect(lambda t: within(t, fixed).rate < 0.0, -0.5 * wide, 0.5 * wide)
    last = bisect(lambda t: beyond(t, fixed).rate > 0.0, -wide, wide)

    def moved(branch: Branch, t: Array, is_edge: Array | bool = True) -> Array:
        """Two Newton steps, through which derivatives go."""
        place = branch(t, fixed)
        curvature = jnp.where(is_edge & (place.bend != 0.0), place.bend * place.speed, jnp.inf)
        return lax.fori_loop(0, 2, lambda _, t: t - branch(t, c).rate / curvature, t)

    pair = moved(between, jnp.stack([low, high]), gap)
    return jnp.stack([moved(within, first), *pair, moved(beyond, last)]), gap
