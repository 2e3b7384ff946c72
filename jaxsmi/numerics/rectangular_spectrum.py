r"""The rectangular free convolution: singular values of a Gaussian product plus noise.

Equations here [ETBMZ25; theory: random-matrices, Eqs. (19) to (41)], Y = S + √R Z/(d₁d₂)^¼, short
side d₁, k² = R₁ = d₂/d₁ >= 1, R₂ = r/d₁, μ the law of the singular values of Y and of their
opposites, G(z) = ∫ μ/(z - y) = H + iπμ just below the real axis; s(D), N, M and B as in
rectangular_branches.py:

    z² = s(D),     z G(z) = N(D)/D
    edges: s'(D) = 0: above R₂ (the last), between the positive roots of M and N (the first,
        R₁ > 1), and, if there is a gap, twice between n, the negative root of N, and 0
    on the support two roots are real, p below m, the negative root of M, and q in (n, 0), and
        there is a pair u ± iv:
        2u = (m - p) - (q - n) + n₊ + m₊,   u² + v² = B²/(p q)       (sum and product of the roots)
        x H = A₁ + u (1 - B/(u² + v²)),    π x μ = v (1 + B/(u² + v²))
    f(x) = x - (2R/k) [(R₁ - 1)/(2x) + H(x)]         (estimator of the singular values of S)
    MMSE = 1 - (1/k) ∫ μ f²  =  R [1 - (1 + p₀) (R₁ - 1)/R₁] - (4π²/3) R² R₁^{-3/2} ∫ μ³, ∫ over ℝ,
        1 + p₀ = (a + √(a² + 4 R R₂))/2,  a = 1 - R₂ - R R₂
    ∫ log|x² - y²| μ(dy) = Re L(D),     dL = (N/D) d log s:
        L = 2 (D - R₂) + (R₁ - R₂) log(D/R₂) - B/D + R R₂ - (R₁ - 1) log(M/(R₁ R₂))
            - log(D - R₂) + log k
    Σ = (1/(2R₁)) ∫∫ log|x² - y²| μ μ + ((R₁-1)/R₁) ∫ log|x| μ
    Σ₀ = ((R₁-1)/4) log R₁ - ((R₁-1)²/(4R₁)) log(R₁-1) - ¼
    I(h) = Σ(1/h) - Σ₀ + ½ log h,     dI/dh = MMSE(1/h)/2        (mutual information per entry)

p is a coordinate of the whole real axis, and no quartic is solved. The integrals run over log
√((m-p)(n-p)) (R₁ = 1: arcsinh((n-p)/n)), in two bands: split at the gap, or where bands are about
to merge (s'/s is smallest), which is then harmless.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import positive_root, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.numerics.rectangular_branches import (
    WIDE,
    CriticalPoints,
    below,
    between,
    beyond,
    critical_points,
    edges_on_branches,
    halves,
    solve,
    within,
)
from jaxsmi.numerics.roots import quadratic_root
from jaxsmi.numerics.symmetric_spectrum import (
    NODES,
    AbstractSpectrum,
    band_nodes,
    existing_edges,
)

_LEAST = 1e-12  # singular values may be zero, where H has a pole for R₁ > 1


class RectangularSpectrum(AbstractSpectrum):
    """The law of the singular values of Y, at `aspect` R₁, `rank` R₂ and `noise` R.

    The nodes are the positive ones of an even law. `critical`: the coordinates of the edges on the
    branches of s. `gap`: whether there is one.
    """

    copies: ClassVar[float] = 2.0

    gap: Array
    critical: Array
    aspect: Array
    rank: Array
    noise: Array

    @property
    def error(self) -> Array:
        """MMSE: mean squared error per entry of the best estimate of S from Y."""
        R1, R2, R = self.aspect, self.rank, self.noise
        by_estimate = 1.0 - self.mean(_shrunk(self.x, self.hilbert, R1, R) ** 2) / jnp.sqrt(R1)
        mass = quadratic_root(1.0 - R2 - R * R2, R * R2)  # 1 + p₀
        cubed = 4.0 * np.pi**2 / 3.0 * R**2 * R1**-1.5 * self.mean(self.density**2)
        by_density = R * (1.0 - (R1 - 1.0) / R1 * mass) - cubed
        # the first loses digits for small R, the second for large R and R₁ > 1
        return jnp.where(R > 1.0, by_estimate, by_density)

    @jax.jit
    def green(self, points: Array) -> tuple[Array, Array]:
        """(H, μ) at real points of any shape, on the support, in the gap or outside."""
        x = jnp.maximum(jnp.asarray(points, theory_dtype()), _LEAST)
        c = critical_points(self.aspect, self.rank, self.noise)
        log_s = 2.0 * jnp.log(x)
        first, low, high, last = lax.stop_gradient(self.edges)
        critical = lax.stop_gradient(self.critical)
        hole = self.gap & (x > low) & (x < high)
        outer = x >= last
        inner = (c.apart > 0.0) & (x <= first)
        p = jnp.exp(solve(below, log_s, -WIDE, WIDE, c))
        q = _q_of(log_s, self.gap & (x >= high), critical, self.gap, c)
        u, v, size = _pair(p, q, c)
        H, mu = _green(u, v, size, x, c)
        # off the support one real root takes the place of the pair
        D_hole = -c.n * halves(solve(between, log_s, critical[2], critical[1], c))[1]
        D_outer = c.rank + jnp.exp(solve(beyond, log_s, -WIDE, critical[3], c))
        t = solve(within, log_s, critical[0], 0.5 * WIDE, c)
        D_inner = c.m_plus + c.width * halves(t)[0]
        off = hole | outer | inner
        D = jnp.where(outer, D_outer, jnp.where(hole, D_hole, D_inner))
        D = jnp.where(off, D, 1.0)
        real = (D + 1.0 - c.rank + c.noise * c.rank - c.noise * c.rank**2 / D) / x
        return jnp.where(off, real, H), jnp.where(off, 0.0, mu)

    def shrink(self, values: Array, hilbert: Array | None = None) -> Array:
        """f(x) = x - (2R/k) [(R₁ - 1)/(2x) + H(x)]: the singular values of the best estimate."""
        hilbert = self.green(values)[0] if hilbert is None else hilbert
        x = jnp.maximum(values, _LEAST)
        faint = _faint(self.aspect, self.rank, 1.0 / self.noise)
        full = _shrunk(x, hilbert, self.aspect, self.noise)
        return jnp.where(faint, x / (1.0 + self.noise), full)


def _shrunk(x: Array, hilbert: Array, aspect: Array, noise: Array) -> Array:
    """f(x) from H(x)."""
    return x - 2.0 * noise / jnp.sqrt(aspect) * (0.5 * (aspect - 1.0) / x + hilbert)


def _q_of(log_s: Array, second: Array, critical: Array, gap: Array, c: CriticalPoints) -> Array:
    """Logit of q on the first or the `second` band.

    Its ends at the gap have the logits critical[2] and critical[1].
    """
    low = jnp.where(gap & second, critical[1], -0.5 * WIDE)
    high = jnp.where(gap & ~second, critical[2], 0.5 * WIDE)
    return solve(between, log_s, low, high, c)


def _pair(p: Array, t: Array, c: CriticalPoints) -> tuple[Array, Array, Array]:
    """(u, v, u² + v²) of the complex roots, from -m - p and the logit of q."""
    to_n, to_zero = (c.n * x for x in halves(t))
    size_p = c.m + p
    excess = c.n_plus + c.m_plus - c.rank
    product = c.n_plus * c.m_plus
    # (m - p) - (q + n), small where both are large, from s(p) = s(q) divided by p - q
    bracket = excess * size_p * to_zero + product * (size_p + to_zero + c.rank)
    change = to_n * (to_n + c.apart) * bracket
    below_it = to_zero * (to_zero + c.rank) * (size_p + c.n_plus) * (size_p + c.m_plus)
    change = change / below_it
    u = 0.5 * (change + c.n_plus + c.m_plus)
    size = product / (size_p / c.m) / (to_zero / c.n)  # B²/(p q), B = n n₊ = m m₊
    # v² = size - u² without its cancellation at small x, where u + iv -> n₊ = m₊ (R₁ = 1);
    # there are two ways to write it
    tilt = jnp.where(to_zero < to_n, to_n * c.m - to_zero * p, to_n * (c.apart + p) - change * c.n)
    square = size * tilt / (c.n * c.m)
    square = square - 0.5 * change * (c.n_plus + c.m_plus) - 0.25 * c.width**2 - 0.25 * change**2
    return u, positive_root(square), size


def _green(u: Array, v: Array, size: Array, x: Array, c: CriticalPoints) -> tuple[Array, Array]:
    """(H, μ) on the support."""
    B = c.n * c.n_plus
    return (c.n - c.n_plus + u * (1.0 - B / size)) / x, v * (1.0 + B / size) / (np.pi * x)


@jax.jit
def rectangular_spectrum(
    aspect: ArrayLike, rank: ArrayLike, noise: ArrayLike
) -> RectangularSpectrum:
    r"""The law of the singular values of Y = S + √R Z/(d₁d₂)^¼ with its quadrature.

        z² = s(D),   z G(z) = N(D)/D

    Args:
        aspect: R₁ = d₂/d₁, long side over short, a number >= 1 (vmap for more).
        rank: R₂ = r/d₁, a number > 0.
        noise: R, variance of the noise, a number > 0.

    Returns:
        A `RectangularSpectrum`: edges, density and Hilbert transform anywhere, error, shrinkage,
        differentiable twice in all three (in R₁ to the right of 1).

    Raises:
        ValueError: Without float64: distances to the roots span a hundred orders of magnitude.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(rectangular_spectrum(2.0, 0.2, 0.1).error), 10)
        0.0276518663

    Source:
        [ETBMZ25], [theory: random-matrices, Eqs. (19) to (29)].
    """
    aspect, rank, noise = (jnp.asarray(x, theory_dtype()) for x in (aspect, rank, noise))
    needed = "True for this law: jax.config.update('jax_enable_x64', True) at the start"
    check(theory_dtype() == jnp.float64, "jax_enable_x64", False, needed)
    c = critical_points(aspect, rank, noise)
    critical, gap = edges_on_branches(c)
    square = c.apart <= 0.0
    # log s at the edges
    first = jnp.where(square, 0.0, within(critical[0], c).log_s(c))
    last = beyond(critical[3], c).log_s(c)
    heights = jnp.stack([first, *between(critical[1:3], c).log_s(c), last])
    p, slope, measure = _band_coordinate(heights, gap, c)
    place = below(jnp.log(p), c)
    log_s = place.log_s(c)
    x = jnp.exp(0.5 * log_s)
    second = jnp.arange(2 * NODES) >= NODES
    u, v, size = _pair(p, _q_of(log_s, second, critical, gap, c), c)
    hilbert, density = _green(u, v, size, x, c)
    edges = jnp.exp(0.5 * heights) * jnp.where(square, jnp.asarray([0.0, 1.0, 1.0, 1.0]), 1.0)
    return RectangularSpectrum(
        aspect=aspect,
        rank=rank,
        noise=noise,
        critical=critical,
        edges=existing_edges(edges, gap),
        gap=gap,
        x=x,
        density=density,
        hilbert=hilbert,
        log_potential=_log_potential(u, v, size, c),
        # d log s/d log p is rate × speed
        weight=x * (place.rate * place.speed) * slope * measure,
    )


def _band_coordinate(heights: Array, gap: Array, c: CriticalPoints) -> tuple[Array, Array, Array]:
    """The nodes of both bands (192,): -m - p, half of d log p/dw, and the weights in w.

    The coordinate of a band is w = log y with y² = (m - p)(n - p); of a square matrix w =
    arcsinh(y/n), which begins at zero.
    """
    square = c.apart <= 0.0
    unit = lax.stop_gradient(c.n)
    p = jnp.exp(solve(below, heights, -WIDE, WIDE, c))
    y = jnp.sqrt(p * (p + c.apart))
    ends = jnp.where(square, jnp.arcsinh(y.at[0].set(0.0) / unit), jnp.log(y))
    merging = (ends[1] > ends[0]) & (ends[1] < ends[3])  # else the split is anywhere
    known = gap | merging | jnp.asarray([True, False, False, True])
    ends = jnp.where(known, ends, 0.5 * (ends[0] + ends[3]))
    nodes, weights = band_nodes(ends[::2], ends[1::2])
    w = nodes.reshape(-1)
    y = jnp.where(square, unit * jnp.sinh(w), jnp.exp(w))
    p = quadratic_root(-c.apart, y * y)
    # d log p/d log y = 2 (p + apart)/(2 p + apart); x = √s gives the factor ½
    slope = (p + c.apart) / (2.0 * p + c.apart) / jnp.where(square, jnp.tanh(w), 1.0)
    return p, slope, weights.reshape(-1)


def _log_potential(u: Array, v: Array, size: Array, c: CriticalPoints) -> Array:
    """Re L(u + iv)."""
    R1, R2, R = c.aspect, c.rank, c.noise
    modulus = 0.5 * jnp.log(size)  # log|D|
    to_rank = 0.5 * jnp.log((u - R2) ** 2 + v**2)
    M = 0.5 * jnp.log((u + c.m) ** 2 + v**2) + 0.5 * jnp.log((u - c.m_plus) ** 2 + v**2)
    logs = (R1 - R2) * (modulus - jnp.log(R2)) - (R1 - 1.0) * (M - jnp.log(R1 * R2))
    logs = logs - to_rank + 0.5 * jnp.log(R1)
    return 2.0 * (u - R2) - R * R2**2 * u / size + R * R2 + logs


def _faint(aspect: Array, rank: Array, qhat: Array) -> Array:
    """Noise so large that an expansion in q̂ is exact to 1e-13."""
    return qhat < 3e-4 * jnp.minimum(1.0, rank / jnp.sqrt(aspect))


@jax.jit
def rectangular_error(aspect: ArrayLike, rank: ArrayLike, qhat: ArrayLike) -> Array:
    r"""MMSE(1/q̂), the error per entry of the best estimate of S observed with precision q̂ = 1/R.

        MMSE = 1 - (1/k) ∫ μ f²;   1 - q̂ + q̂² - (1 + R₁/R₂²) q̂³ for small q̂

    R₁ >= 1 and R₂ > 0 as in `rectangular_spectrum`; q̂ >= 0.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(rectangular_error(1.0, 0.2, 10.0)), 10)
        0.0355502515

    Source:
        [ETBMZ25], [theory: random-matrices, Eqs. (30) to (33)].
    """
    aspect, rank, qhat = (jnp.asarray(x, theory_dtype()) for x in (aspect, rank, qhat))
    faint = _faint(aspect, rank, qhat)
    full = rectangular_spectrum(aspect, rank, 1.0 / jnp.where(faint, 1.0, qhat)).error
    return jnp.where(faint, 1.0 - qhat + qhat**2 - (1.0 + aspect / rank**2) * qhat**3, full)


@jax.jit
def rectangular_information(aspect: ArrayLike, rank: ArrayLike, qhat: ArrayLike) -> Array:
    r"""I(q̂), per entry and in nats: the mutual information of S and Y, q̂ > 0.

        I = Σ(1/q̂) - Σ₀ + ½ log q̂,   dI/dq̂ = MMSE(1/q̂)/2

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(rectangular_information(2.0, 0.5, 1.0)), 9)
        0.316555691

    Source:
        [ETBMZ25], [theory: random-matrices, Eqs. (37) to (41)].
    """
    aspect, rank, qhat = (jnp.asarray(x, theory_dtype()) for x in (aspect, rank, qhat))
    faint = _faint(aspect, rank, qhat)
    law = rectangular_spectrum(aspect, rank, 1.0 / jnp.where(faint, 1.0, qhat))
    R1, R2, R = law.aspect, law.rank, law.noise
    c = critical_points(R1, R2, R)
    over = R1 - 1.0
    log_over = jnp.log(jnp.where(over > 0.0, over, 1.0))
    # L at x = 0, where D = n₊ and M = (R₁ - 1) n₊
    centre = 2.0 * (c.n_plus - R2) + (1.0 - R2) * jnp.log(c.n_plus / R2) - c.n + R * R2
    centre = centre - over * (log_over - jnp.log(R1)) - jnp.log(R2 / (R2 + c.n)) + 0.5 * jnp.log(R1)
    sigma = (0.5 * law.mean(law.log_potential) + 0.5 * over * centre) / R1
    sigma_0 = 0.25 * over * jnp.log(R1) - 0.25 * over**2 / R1 * log_over - 0.25
    series = 0.5 * qhat - 0.25 * qhat**2 + qhat**3 / 6.0 - 0.125 * (1.0 + R1 / R2**2) * qhat**4
    return jnp.where(faint, series, sigma - sigma_0 - 0.5 * jnp.log(R))
