r"""The rectangular free convolution: singular values of a product of two Gaussian matrices seen through Gaussian noise.

Equations here [ETBMZ25; theory: random-matrices, Eqs. (19) to (41)],
Y = S + √R Z/(d₁d₂)^¼, short side d₁, k² = R₁ = d₂/d₁ >= 1,
R₂ = r/d₁, μ the law of the singular values of Y and of their opposites, G(z) = ∫ μ/(z - y) = H + iπμ just below the real axis:

    A₁ = 1 - R₂ + R R₂,  A₂ = R₁ - R₂ + R R₂,  B = R R₂²,     N(D) = D² + A₁ D - B,  M(D) = D² + A₂ D - B
    z² = s(D) = N(D) M(D)/(k R₂ D (D - R₂)),     z G(z) = N(D)/D
    edges: s'(D) = 0: above R₂ (the last), between the positive roots of M and N (the first, R₁ > 1), and, if there is a
        gap, twice between n, the negative root of N, and 0
    on the support two roots are real, p below m, the negative root of M, and q in (n, 0), and there is a pair u ± iv:
        2u = (m - p) - (q - n) + n₊ + m₊,   u² + v² = B²/(p q)       (sum and product of the roots)
        x H = A₁ + u (1 - B/(u² + v²)),    π x μ = v (1 + B/(u² + v²))
    f(x) = x - (2R/k) [(R₁ - 1)/(2x) + H(x)]                                (estimator of the singular values of S)
    MMSE = 1 - (1/k) ∫ μ f²  =  R [1 - (1 + p₀) (R₁ - 1)/R₁] - (4π²/3) R² R₁^{-3/2} ∫ μ³,      ∫ over ℝ,
        1 + p₀ = (a + √(a² + 4 R R₂))/2,  a = 1 - R₂ - R R₂
    ∫ log|x² - y²| μ(dy) = Re L(D),     dL = (N/D) d log s:
        L = 2 (D - R₂) + (R₁ - R₂) log(D/R₂) - B/D + R R₂ - (R₁ - 1) log(M/(R₁ R₂)) - log(D - R₂) + log k
    Σ = (1/(2R₁)) ∫∫ log|x² - y²| μ μ + ((R₁-1)/R₁) ∫ log|x| μ,  Σ₀(b) = ((b-1)/4) log b - ((b-1)²/(4b)) log(b-1) - ¼
    I(h) = Σ(1/h) - Σ₀ + ½ log h,     dI/dh = MMSE(1/h)/2                          (mutual information per entry)

s falls from ∞ to 0 on (-∞, m): p is a coordinate of the whole real axis and no quartic is solved. Distances to the roots of N and
M, not D itself, are carried, so that R → 0 costs no digits. The integrals run over log √((m-p)(n-p)) (R₁ = 1: arcsinh((n-p)/n)),
in two bands: split at the gap, or where bands are about to merge (s'/s is smallest), which is then harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.numerics.roots import bisect

_NODES = 96  # Gauss–Legendre nodes a band


_THETA, _WEIGHT = (np.pi / 2 * x for x in np.polynomial.legendre.leggauss(_NODES))


_THETA = _THETA + np.pi / 2


class _Roots(NamedTuple):
    """R₁, R₂, R, and the roots of N (-n, n_plus) and M (-m, m_plus), with m - n = `apart`."""

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


def _roots(aspect: Array, rank: Array, noise: Array) -> _Roots:
    B = noise * rank**2

    def negative(A: Array) -> tuple[Array, Array]:
        Q = jnp.sqrt(A * A + 4.0 * B)
        other = Q - jnp.where(A < 0.0, A, -Q)
        return jnp.where(A < 0.0, 2.0 * B / other, 0.5 * (Q + A)), Q

    n, Q = negative(1.0 - rank + noise * rank)
    m, P = negative(aspect - rank + noise * rank)
    return _Roots(aspect, rank, noise, n, B / n, m, B / m, (aspect - 1.0) * (n + m) / (Q + P))


class _Place(NamedTuple):
    """A D on one of the branches of s, as its distances D + n, D - n_plus, D + m, D - m_plus, D, D - R₂, none of them a
    difference of large numbers; and dD/dt of the coordinate t of the branch."""

    distances: tuple[Array, ...]
    speed: Array

    def log_s(self, c: _Roots) -> Array:
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


_Branch = Callable[[Array, _Roots], _Place]


def _below(t: Array, c: _Roots) -> _Place:
    """p = -(m + e^t)."""
    near = jnp.exp(t)
    far = c.m + near
    return _Place(
        (-near - c.apart, -far - c.n_plus, -near, -far - c.m_plus, -far, -far - c.rank), -near
    )


def _between(t: Array, c: _Roots) -> _Place:
    """q = -n sigmoid(-t)."""
    near, far = (c.n * x for x in _halves(t))
    return _Place(
        (near, -far - c.n_plus, near + c.apart, -far - c.m_plus, -far, -far - c.rank),
        near * far / c.n,
    )


def _beyond(t: Array, c: _Roots) -> _Place:
    """D = R₂ + e^t; N(R₂) = R₂ and M(R₂) = R₁ R₂."""
    grown = jnp.exp(t)
    D = c.rank + grown
    to_n_plus, to_m_plus = (
        grown + c.rank / (c.rank + c.n),
        grown + c.aspect * c.rank / (c.rank + c.m),
    )
    return _Place((D + c.n, to_n_plus, D + c.m, to_m_plus, D, grown), grown)


def _within(t: Array, c: _Roots) -> _Place:
    """D = m_plus + (n_plus - m_plus) sigmoid(t)."""
    width = jnp.where(c.apart > 0.0, c.n_plus * c.apart / c.m, 1.0)
    low, high = (width * x for x in _halves(t))
    D = c.m_plus + low
    return _Place(
        (D + c.n, -high, D + c.m, low, D, -high - c.rank / (c.rank + c.n)), low * high / width
    )


def _halves(t: Array) -> tuple[Array, Array]:
    """sigmoid(t) and sigmoid(-t)."""
    grown = jnp.exp(-jnp.abs(t))
    small, large = grown / (1.0 + grown), 1.0 / (1.0 + grown)
    return jnp.where(t < 0.0, small, large), jnp.where(t < 0.0, large, small)


_WIDE = 160.0  # of the logarithms of distances


def _solved(branch: _Branch, goal: Array, low: Any, high: Any, c: _Roots) -> Array:
    """t with log s = goal on a branch, from low to high, bisected and then moved by three Newton steps, through which
    derivatives go."""
    held = lax.stop_gradient
    fixed, at = held(c), held(goal)
    low, high = (jnp.broadcast_to(jnp.asarray(held(x), at.dtype), at.shape) for x in (low, high))
    middle = 0.5 * (low + high)
    start, end, half = branch(jnp.stack([low, high, middle]), fixed).log_s(fixed)
    rising = end > start
    reached = (at >= jnp.minimum(start, end)) & (at <= jnp.maximum(start, end))
    goal = jnp.where(
        reached, goal, half
    )  # points of other branches: no NaN, in derivatives neither
    at = held(goal)
    t = held(bisect(lambda t: (branch(t, fixed).log_s(fixed) > at) == rising, low, high, 32))
    place = held(branch(t, fixed))
    slope = place.rate * place.speed
    slope = jnp.where(jnp.abs(slope) > 1e-12, slope, jnp.inf)  # at an edge
    return lax.fori_loop(0, 3, lambda _, t: t - (branch(t, c).log_s(c) - goal) / slope, t)


def _critical(c: _Roots) -> tuple[Array, Array]:
    """t at the four edges from left to right, in their branches (within, between, between, beyond); whether there is a gap."""
    held = lax.stop_gradient(c)
    wide = jnp.full_like(held.n, _WIDE)
    middle = bisect(
        lambda t: _between(t, held).bend > 0.0, -0.5 * wide, 0.5 * wide
    )  # grows from -∞ at -n to ∞ at 0
    gap = _between(middle, held).rate < 0.0
    # the rate falls up to `middle` and grows from there
    lows, highs = jnp.stack([-0.5 * wide, middle]), jnp.stack([middle, 0.5 * wide])
    falling = jnp.asarray([True, False])
    high, low = bisect(lambda t: (_between(t, held).rate < 0.0) == falling, lows, highs)
    high, low = jnp.where(gap, high, middle), jnp.where(gap, low, middle)
    first = bisect(lambda t: _within(t, held).rate < 0.0, -0.5 * wide, 0.5 * wide)
    last = bisect(lambda t: _beyond(t, held).rate > 0.0, -wide, wide)

    def moved(branch: _Branch, t: Array, is_edge: Any = True) -> Array:
        """Through these two Newton steps derivatives go."""
        place = branch(t, held)
        curvature = jnp.where(is_edge & (place.bend != 0.0), place.bend * place.speed, jnp.inf)
        return lax.fori_loop(0, 2, lambda _, t: t - branch(t, c).rate / curvature, t)

    pair = moved(_between, jnp.stack([low, high]), gap)
    return jnp.stack([moved(_within, first), *pair, moved(_beyond, last)]), gap


class RectangularSpectrum(eqx.Module):
    """The law of the singular values of Y. `aspect` R₁ >= 1, `rank` R₂, `noise` R; `edges` (4,): from left to right, the two of
    the gap NaN where there is none; `gap`: whether there is one; on 2 × 96 nodes of quadrature at positive x, band by band:
    `x`, `density` μ(x), `hilbert` H(x), `log_potential` ∫ log|x² - y²| μ(dy), and the `weight` of `mean`."""

    aspect: Array
    rank: Array
    noise: Array
    critical: Array
    edges: Array
    gap: Array
    x: Array
    density: Array
    hilbert: Array
    log_potential: Array
    weight: Array

    def mean(self, values: Array) -> Array:
        """∫ f dμ over ℝ from an even f at the nodes `x`."""
        return 2.0 * jnp.sum(self.weight * self.density * values)

    @property
    def cubed(self) -> Array:
        """∫ μ³ dx over ℝ."""
        return 2.0 * jnp.sum(self.weight * self.density**3)

    @property
    def error(self) -> Array:
        """MMSE: mean squared error per entry of the best estimate of S from Y."""
        R1, R2, R = self.aspect, self.rank, self.noise
        far = 1.0 - self.mean(_shrunk(self.x, self.hilbert, R1, R) ** 2) / jnp.sqrt(R1)
        a = 1.0 - R2 - R * R2
        root = jnp.sqrt(a * a + 4.0 * R * R2)
        mass = jnp.where(
            a < 0.0, 2.0 * R * R2 / (root - jnp.where(a < 0.0, a, -1.0)), 0.5 * (a + root)
        )  # 1 + p₀
        near = (
            R * (1.0 - (R1 - 1.0) / R1 * mass) - 4.0 * np.pi**2 / 3.0 * R**2 * R1**-1.5 * self.cubed
        )
        return jnp.where(
            R > 1.0, far, near
        )  # far loses digits for small R, near for large R and R₁ > 1

    @jax.jit
    def green(self, points: Array) -> tuple[Array, Array]:
        """(H, μ) at real points x > 0 of any shape, on the support, in the gap or outside."""
        x = jnp.asarray(points, theory_dtype())
        c = _roots(self.aspect, self.rank, self.noise)
        goal = 2.0 * jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))
        left, low, high, right = lax.stop_gradient(self.edges)
        critical = lax.stop_gradient(self.critical)
        hole, outer = self.gap & (x > low) & (x < high), x >= right
        inner = (c.apart > 0.0) & (x <= left)
        second = self.gap & (x >= high)
        p = jnp.exp(_solved(_below, goal, -_WIDE, _WIDE, c))
        q = _q_of(goal, second, critical, self.gap, c)
        u, v, size = _pair(p, q, c)
        # off the support one real root takes the place of the pair
        D_hole = -c.n * _halves(_solved(_between, goal, critical[2], critical[1], c))[1]
        D_outer = c.rank + jnp.exp(_solved(_beyond, goal, -_WIDE, critical[3], c))
        t = _solved(_within, goal, critical[0], 0.5 * _WIDE, c)
        D_inner = c.m_plus + c.n_plus * c.apart / c.m * _halves(t)[0]
        off = hole | outer | inner
        D = jnp.where(outer, D_outer, jnp.where(hole, D_hole, D_inner))
        D = jnp.where(off, D, 1.0)
        H, mu = _green(u, v, size, x, c)
        real = (D + 1.0 - c.rank + c.noise * c.rank - c.noise * c.rank**2 / D) / x
        return jnp.where(off, real, H), jnp.where(off, 0.0, mu)

    def shrink(self, singular_values: Array) -> Array:
        """f(x) = x - (2R/k) [(R₁ - 1)/(2x) + H(x)]: the singular values of the best estimate of S."""
        x, faint = (
            jnp.maximum(singular_values, 1e-12),
            _faint(self.aspect, self.rank, 1.0 / self.noise),
        )
        return jnp.where(
            faint, x / (1.0 + self.noise), _shrunk(x, self.green(x)[0], self.aspect, self.noise)
        )


def _shrunk(x: Array, hilbert: Array, aspect: Array, noise: Array) -> Array:
    return x - 2.0 * noise / jnp.sqrt(aspect) * (0.5 * (aspect - 1.0) / x + hilbert)


def _q_of(goal: Array, second: Array, critical: Array, gap: Array, c: _Roots) -> Array:
    """Logit of q on the first or the `second` band; critical[2] and [1] are the logits at the ends of the gap."""
    low, high = (
        jnp.where(gap & second, critical[1], -0.5 * _WIDE),
        jnp.where(gap & ~second, critical[2], 0.5 * _WIDE),
    )
    return _solved(_between, goal, low, high, c)


def _pair(p: Array, t: Array, c: _Roots) -> tuple[Array, Array, Array]:
    """(u, v, u² + v²) of the complex roots, from -m - p and the logit of q."""
    near, far = (c.n * x for x in _halves(t))
    P, width = c.m + p, c.n_plus * c.apart / c.m  # -p, n_plus - m_plus
    excess, product = c.n_plus + c.m_plus - c.rank, c.n_plus * c.m_plus
    # (m - p) - (q + n), small where both are large, from s(p) = s(q) divided by p - q
    change = near * (near + c.apart) * (excess * P * far + product * (P + far + c.rank))
    change = change / (far * (far + c.rank) * (P + c.n_plus) * (P + c.m_plus))
    u = 0.5 * (change + c.n_plus + c.m_plus)
    size = product / (P / c.m) / (far / c.n)  # B²/(p q), B = n n_plus = m m_plus
    # v² = size - u² without its cancellation at small x, where u + iv -> n_plus = m_plus (R₁ = 1)
    tilt = jnp.where(
        far < near, near * c.m - far * p, near * (c.apart + p) - change * c.n
    )  # two ways to write it
    square = size * tilt / (c.n * c.m)
    square = square - 0.5 * change * (c.n_plus + c.m_plus) - 0.25 * width**2 - 0.25 * change**2
    positive = square > 0.0
    return u, jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0), size


def _green(u: Array, v: Array, size: Array, x: Array, c: _Roots) -> tuple[Array, Array]:
    B = c.n * c.n_plus
    return (c.n - c.n_plus + u * (1.0 - B / size)) / x, v * (1.0 + B / size) / (np.pi * x)


def rectangular_spectrum(aspect: Any, rank: Any, noise: Any) -> RectangularSpectrum:
    r"""The law of the singular values of Y = S + √R Z/(d₁d₂)^¼ with its quadrature (module docstring).

    Arguments: `aspect` R₁ = d₂/d₁ >= 1, long side over short; `rank` R₂ = r/d₁ > 0; `noise` R > 0. Scalars (vmap for more).
    Returns: a `RectangularSpectrum`: edges, density and Hilbert transform anywhere, error, shrinkage, differentiable twice
    in all three (in R₁ to the right of 1).
    Raises: ValueError for arguments that are not finite or out of range. Cost: a fraction of a millisecond after compilation.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(rectangular_spectrum(2.0, 0.2, 0.1).error), 10)
    0.0276518663
    """
    return _spectrum(*_checked(aspect, rank, "noise", noise))


@jax.jit
def _spectrum(aspect: Array, rank: Array, noise: Array) -> RectangularSpectrum:
    c, held = _roots(aspect, rank, noise), lax.stop_gradient
    critical, gap = _critical(c)
    square = c.apart <= 0.0
    # log s at the edges
    first, last = (
        jnp.where(square, 0.0, _within(critical[0], c).log_s(c)),
        _beyond(critical[3], c).log_s(c),
    )
    heights = jnp.stack([first, *_between(critical[1:3], c).log_s(c), last])
    p = jnp.exp(_solved(_below, heights, -_WIDE, _WIDE, c))
    # bands in log y, y² = (m - p)(n - p); of a square matrix in arcsinh(y/n), from 0
    unit = held(c.n)
    y = jnp.sqrt(p * (p + c.apart))
    ends = jnp.where(square, jnp.arcsinh(y.at[0].set(0.0) / unit), jnp.log(y))
    merging = (ends[1] > ends[0]) & (ends[1] < ends[3])  # else the split is anywhere
    ends = jnp.where(
        gap | merging | jnp.asarray([True, False, False, True]), ends, 0.5 * (ends[0] + ends[3])
    )
    half = 0.5 * jnp.stack([ends[1] - ends[0], ends[3] - ends[2]])[:, None]
    w = (
        0.5 * jnp.stack([ends[1] + ends[0], ends[3] + ends[2]])[:, None] - half * np.cos(_THETA)
    ).reshape(-1)
    y = jnp.where(square, unit * jnp.sinh(w), jnp.exp(w))
    p = 2.0 * y * y / (c.apart + jnp.sqrt(c.apart**2 + 4.0 * y * y))
    log_p = jnp.log(p)
    place = _below(log_p, c)
    log_s, rise = place.log_s(c), place.rate * place.speed  # d log s/d log p
    x = jnp.exp(0.5 * log_s)
    # d log p/d log y = 2 (p + apart)/(2 p + apart)
    slope = x * rise * (p + c.apart) / (2.0 * p + c.apart) / jnp.where(square, jnp.tanh(w), 1.0)
    weight = slope * (half * np.sin(_THETA) * _WEIGHT).reshape(-1)
    second = jnp.arange(2 * _NODES) >= _NODES
    t = _q_of(log_s, second, critical, gap, c)
    u, v, size = _pair(p, t, c)
    H, mu = _green(u, v, size, x, c)
    edges = jnp.exp(0.5 * heights) * jnp.where(square, jnp.asarray([0.0, 1.0, 1.0, 1.0]), 1.0)
    edges = jnp.where(gap | jnp.asarray([True, False, False, True]), edges, jnp.nan)
    potential = _log_potential(u, v, size, c)
    return RectangularSpectrum(
        aspect, rank, noise, critical, edges, gap, x, mu, H, potential, weight
    )


def _log_potential(u: Array, v: Array, size: Array, c: _Roots) -> Array:
    """Re L(u + iv)."""
    R1, R2, R = c.aspect, c.rank, c.noise
    B = R * R2**2
    modulus = 0.5 * jnp.log(size)  # log|D|
    far = 0.5 * jnp.log((u - R2) ** 2 + v**2)
    M = 0.5 * jnp.log((u + c.m) ** 2 + v**2) + 0.5 * jnp.log((u - c.m_plus) ** 2 + v**2)
    rest = (
        (R1 - R2) * (modulus - jnp.log(R2))
        - (R1 - 1.0) * (M - jnp.log(R1 * R2))
        - far
        + 0.5 * jnp.log(R1)
    )
    return 2.0 * (u - R2) - B * u / size + R * R2 + rest


def rectangular_error(aspect: Any, rank: Any, qhat: Any) -> Array:
    r"""MMSE(1/q̂): mean squared error per entry of the best estimate of S seen with precision q̂ = 1/R; 1 at q̂ = 0.

    Arguments: `aspect` R₁ >= 1, `rank` R₂ > 0, `qhat` >= 0, scalars. Returns: the error; for small q̂
    1 - q̂ + q̂² - (1 + R₁/R₂²) q̂³.
    Raises: ValueError for arguments out of range.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(rectangular_error(1.0, 0.2, 10.0)), 10)
    0.0355502515
    """
    return _error(*_checked(aspect, rank, "qhat", qhat, zero=True))


def _checked(
    aspect: Any, rank: Any, name: str, third: Any, zero: bool = False
) -> tuple[Array, Array, Array]:
    """R₁, R₂ and a third number, in range; in float64, as distances that span a hundred orders of magnitude need it."""
    aspect, rank, third = (jnp.asarray(x, theory_dtype()) for x in (aspect, rank, third))
    check(jnp.all(jnp.isfinite(aspect) & (aspect >= 1.0)), "aspect", aspect, "a finite number >= 1")
    check(jnp.all(jnp.isfinite(rank) & (rank > 0.0)), "rank", rank, "a finite number > 0")
    inside = (third >= 0.0) if zero else (third > 0.0)
    check(
        jnp.all(jnp.isfinite(third) & inside),
        name,
        third,
        f"a finite number {'>=' if zero else '>'} 0",
    )
    double = theory_dtype() == jnp.float64
    check(
        double,
        "jax_enable_x64",
        False,
        "True for this law: jax.config.update('jax_enable_x64', True) at the start",
    )
    return aspect, rank, third


@jax.jit
def _error(aspect: Array, rank: Array, qhat: Array) -> Array:
    faint = _faint(aspect, rank, qhat)
    full = _spectrum(aspect, rank, 1.0 / jnp.where(faint, 1.0, qhat)).error
    return jnp.where(faint, 1.0 - qhat + qhat**2 - (1.0 + aspect / rank**2) * qhat**3, full)


def _faint(aspect: Array, rank: Array, qhat: Array) -> Array:
    """Whether the noise is so large that an expansion in q̂ is exact to 1e-13."""
    return qhat < 3e-4 * jnp.minimum(1.0, rank / jnp.sqrt(aspect))


def rectangular_information(aspect: Any, rank: Any, qhat: Any) -> Array:
    r"""I(q̂) = Σ(1/q̂) - Σ₀ + ½ log q̂, per entry: what Y says about S; dI/dq̂ = MMSE(1/q̂)/2.

    Arguments: `aspect` R₁ >= 1, `rank` R₂ > 0, `qhat` > 0, scalars. Returns: I. Raises: ValueError for arguments out of range.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(rectangular_information(2.0, 0.5, 1.0)), 9)
    0.316555691
    """
    return _information(*_checked(aspect, rank, "qhat", qhat))


@jax.jit
def _information(aspect: Array, rank: Array, qhat: Array) -> Array:
    faint = _faint(aspect, rank, qhat)
    law = _spectrum(aspect, rank, 1.0 / jnp.where(faint, 1.0, qhat))
    R1, R2, R = law.aspect, law.rank, law.noise
    c = _roots(R1, R2, R)
    over = R1 - 1.0
    log_over = jnp.log(jnp.where(over > 0.0, over, 1.0))
    # L at x = 0, where D = n_plus and M = (R₁ - 1) n_plus
    centre = 2.0 * (c.n_plus - R2) + (1.0 - R2) * jnp.log(c.n_plus / R2) - c.n + R * R2
    centre = centre - over * (log_over - jnp.log(R1)) - jnp.log(R2 / (R2 + c.n)) + 0.5 * jnp.log(R1)
    sigma = (0.5 * law.mean(law.log_potential) + 0.5 * over * centre) / R1
    sigma_0 = 0.25 * over * jnp.log(R1) - 0.25 * over**2 / R1 * log_over - 0.25
    near = 0.5 * qhat - 0.25 * qhat**2 + qhat**3 / 6.0 - 0.125 * (1.0 + R1 / R2**2) * qhat**4
    return jnp.where(faint, near, sigma - sigma_0 - 0.5 * jnp.log(R))
