r"""The free convolution of a Wishart-like law with a semicircle: a matrix plus noise.

Equations here [theory: random-matrices, Eqs. (1) to (17)],
S = W Wᵀ/√(r d) (ρ = r/d, a = √ρ) and R = S + √Δ Z, Z ~ GOE(d)/√d:

    G(x) = ∫ μ(dy)/(x - y),   z(g) = -ρ/(g - a) + Δ g + 1/g,   z(G(x)) = x
    on the support a real root s > a and a pair u ∓ i v:    H(x) = u,   μ(x) = v/π,
        x(s) = z(s),   u = (a + x/Δ - s)/2,   v² = a/(Δ s) - u²    (sum and product of the roots)
    edges: z'(g) = 0, with partner s = a/(Δ g²)
    a gap opens for ρ < 1 and Δ < Δ_c = (1 - ρ^{1/3})³/ρ
    V = MMSE = Δ - (4π²/3) Δ² ∫ μ³,      f(λ) = λ - 2 Δ H(λ)        (error and estimator of S)
    Σ = ∫∫ log|x - y| μ μ
    ∫ log|x - y| μ(dy) = Re[g x + ρ log(1 - g/a) - Δ g²/2 - log g] - 1,   g = u - i v
    I(q̂) = 1/8 + ¼ log q̂ + ½ Σ,   Δ = 1/q̂,      dI/dq̂ = V/4

x(s) is smooth and increasing along a band, so that no cubic is ever solved on the support:
integrals run over s, and roots are bisected in log(s - a) (outside the support in log|g|).
Integrands vanish at the ends of the bands: there, the limits of integration are constants for
differentiation.

Integrals over a law run over a coordinate w in which a band is smooth, w = middle - half·cos θ with
Gauss–Legendre nodes in θ ∈ [0, π], which removes the square roots at the edges: ∫ f dμ = Σ weight ·
density · f(x). A band of width zero has weight zero [theory: random-matrices, section 3].
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import clamp_to_tiny, positive_root, theory_dtype
from jaxsmi.numerics.quadrature import legendre_panel
from jaxsmi.numerics.roots import differentiable_root

_PANELS = 4  # panels of a band in `rule`
NODES = 96  # Gauss–Legendre nodes a band: 1e-13 for errors, 1e-11 where a gap closes


class AbstractSpectrum(eqx.Module):
    """The law μ of the eigenvalues or singular values of a matrix plus noise.

    Attributes:
        edges: The edges (4,) from left to right; the two of the gap are NaN where there is none.
        x: Nodes (192,) of quadrature, band by band.
        density: μ(x).
        hilbert: H(x).
        log_potential: ∫ log|x - y| μ(dy), of an even law over y > 0 with x² - y².
        weight: Weights of `mean`.
        copies: 2 where μ is even and the nodes cover its positive half, else 1.
    """

    edges: Array
    x: Array
    density: Array
    hilbert: Array
    log_potential: Array
    weight: Array
    copies: ClassVar[float]

    def mean(self, values: Array) -> Array:
        """∫ f dμ over the real axis, from f at the nodes `x`."""
        return self.copies * jnp.sum(self.weight * self.density * values)

    @property
    @abc.abstractmethod
    def error(self) -> Array:
        """Mean squared error of the best estimate of the matrix."""

    @abc.abstractmethod
    def green(self, points: Array) -> tuple[Array, Array]:
        """(H, μ) at real points of any shape: on the support, in the gap or outside."""

    @abc.abstractmethod
    def shrink(self, values: Array, hilbert: Array | None = None) -> Array:
        """Eigenvalues or singular values of the best estimate, from `values` and H there, by
        default that of the law."""

    def rule(self, cuts: Array) -> tuple[Array, Array, Array]:
        """Nodes x, their masses and H there, on both sides of cuts (n,) in increasing order: in
        panels that the law's own nodes make, which are dense where bands are about to part."""
        first, low, high, last = self.edges
        inner = jnp.sort(self.x[:: NODES // _PANELS])[None, 1:]
        gap = jnp.isfinite(low)
        starts = jnp.stack([first, jnp.where(gap, high, last)])[:, None]
        ends = jnp.stack([jnp.where(gap, low, last), last])[:, None]
        marks = jnp.concatenate([starts, jnp.clip(inner, starts, ends), ends], axis=1)
        parts = jnp.concatenate([jnp.full(1, -jnp.inf), cuts, jnp.full(1, jnp.inf)])
        marks = jnp.clip(marks[..., None], parts[:-1], parts[1:])
        lows, highs = marks[:, :-1].ravel(), marks[:, 1:].ravel()
        x, measure = (a.ravel() for a in lax.stop_gradient(band_nodes(lows, highs)))
        x = jnp.where(measure > 0.0, x, lax.stop_gradient(last))
        hilbert, density = self.green(x)
        return x, self.copies * jnp.where(measure > 0.0, measure * density, 0.0), hilbert


def band_nodes(low: Array, high: Array, count: int = NODES) -> tuple[Array, Array]:
    """Nodes and weights (bands, count) of the rule on bands from `low` to `high` (bands,)."""
    theta, weight = legendre_panel(count, 0.0, np.pi)
    half = 0.5 * (high - low)[:, None]
    middle = 0.5 * (high + low)[:, None]
    return middle - half * np.cos(theta), half * np.sin(theta) * weight


def existing_edges(edges: Array, gap: Array) -> Array:
    """The edges (4,), those of the gap NaN where there is none."""
    return jnp.where(gap | jnp.asarray([True, False, False, True]), edges, jnp.nan)


def inverse_green(g: Array, rho: Array, delta: Array) -> Array:
    """z(g) = -ρ/(g - √ρ) + Δ g + 1/g: the point whose Green function is g."""
    return -rho / (g - jnp.sqrt(rho)) + delta * g + 1.0 / g


class AbstractSymmetricSpectrum(AbstractSpectrum):
    """The law of R = S + √Δ Z of symmetric matrices."""

    delta: eqx.AbstractVar[Array]

    @property
    def error(self) -> Array:
        """V: mean squared error per row of the best estimate of S from R."""
        return self.delta - 4.0 * np.pi**2 / 3.0 * self.delta**2 * self.mean(self.density**2)

    def shrink(self, values: Array, hilbert: Array | None = None) -> Array:
        """f(λ) = λ - 2 Δ H(λ): the eigenvalues of the best estimate of S."""
        hilbert = self.green(values)[0] if hilbert is None else hilbert
        return values - 2.0 * self.delta * hilbert

    @property
    def information(self) -> Array:
        """I at q̂ = 1/Δ (module docstring)."""
        return 0.125 - 0.25 * jnp.log(self.delta) + 0.5 * self.mean(self.log_potential)


class Spectrum(AbstractSymmetricSpectrum):
    """The law of R at `rho` ρ and `delta` Δ, with a `gap` or none; `critical` is g at the edges."""

    copies: ClassVar[float] = 1.0

    gap: Array
    critical: Array
    rho: Array
    delta: Array

    def green(self, points: Array) -> tuple[Array, Array]:
        """(H, μ) at real points of any shape, on the support, in the gap or outside."""
        x = jnp.asarray(points, theory_dtype())
        rho, delta = self.rho, self.delta
        a = jnp.sqrt(rho)
        bands = _bands(self.critical, self.gap, rho, delta)
        edges, g, bands = lax.stop_gradient((self.edges, self.critical, bands))
        left, right = x <= edges[0], x >= edges[3]
        hole = self.gap & (x > edges[1]) & (x < edges[2])
        second = self.gap & (x >= edges[2]) & ~right
        support = ~(left | right | hole)
        # the real root is g = ±e^t outside, g = a + e^t in the gap, and s = a + e^t on the support
        origin = jnp.where(left | right, 0.0, a)
        sign = jnp.where(left, -1.0, 1.0)
        log = lambda x: jnp.log(clamp_to_tiny(x))
        # outside it lies between g at the edge and a g of the other sign of z(g) - x: 1/x on the
        # right, 1/(x - a) on the left
        outer = [log(-g[0]), log(g[3]), log(g[1] - a), bands[1, 1]]
        inner = [-log(a - x), -log(x), log(g[2] - a), bands[1, 0]]
        regions = [left, right, hole, second]
        high = jnp.select(regions, [jnp.broadcast_to(t, x.shape) for t in outer], bands[0, 1])
        low = jnp.select(regions, [jnp.broadcast_to(t, x.shape) for t in inner], bands[0, 0])
        # along g = e^t and in the gap z falls
        rising = jnp.where(right | hole, -1.0, 1.0)
        node = lambda t: origin + sign * jnp.exp(t)
        excess = lambda t: rising * (inverse_green(node(t), rho, delta) - x)
        root = node(differentiable_root(excess, jnp.minimum(low, high), high))
        u, v = _pair(jnp.where(support, root, 2.0 * a), x, rho, delta)
        return jnp.where(support, u, root), jnp.where(support, v / np.pi, 0.0)


def _pair(s: Array, x: Array, rho: Array, delta: Array) -> tuple[Array, Array]:
    """(u, v) of the complex roots from the real one; v = 0 off the support."""
    a = jnp.sqrt(rho)
    u = 0.5 * (a + x / delta - s)
    return u, positive_root(a / (delta * s) - u * u)


def _log_potential(u: Array, v: Array, x: Array, rho: Array, delta: Array) -> Array:
    """∫ log|x - y| μ(dy)."""
    a = jnp.sqrt(rho)
    pole = 0.5 * rho * jnp.log((1.0 - u / a) ** 2 + (v / a) ** 2)
    logarithm = 0.5 * jnp.log(u * u + v * v)
    return u * x + pole - 0.5 * delta * (u * u - v * v) - logarithm - 1.0


def _bands(critical: Array, gap: Array, rho: Array, delta: Array) -> Array:
    """log(s - a) at the ends of the two bands (2, 2).

    Without a gap the first takes all and the second is empty.
    """
    a = jnp.sqrt(rho)
    # s - a = a/(Δ g²) - a without cancellation, from z'(g) = 0
    l = jnp.log(a * rho / ((critical - a) ** 2 * delta))
    first = jnp.stack([l[0], jnp.where(gap, l[1], l[3])])
    return jnp.stack([first, jnp.stack([jnp.where(gap, l[2], l[3]), l[3]])])


def _critical(rho: Array, delta: Array) -> tuple[Array, Array]:
    """g at the four edges, from left to right, and whether there is a gap."""
    a = jnp.sqrt(rho)
    b = 1.0 / jnp.sqrt(delta)
    below = rho < 1.0
    # minimum of z' between a and infinity (none for ρ >= 1)
    star = a / jnp.where(below, 1.0 - jnp.cbrt(rho), 0.5)
    gap = below & (delta < jnp.where(below, 1.0 - jnp.cbrt(rho), 0.0) ** 3 / rho)

    slope = lambda g: rho / (g - a) ** 2 + delta - 1.0 / g**2  # z'(g)

    def root(low: Array, high: Array, rising: float) -> Array:
        low, high = lax.stop_gradient((low, high))
        return differentiable_root(lambda g: rising * slope(g), low, high)

    # z' = Δ - 1/g² + ρ/(g-a)²: from -∞ at 0 up to +∞ at a; from 0 downwards likewise
    right = root(jnp.zeros_like(a), jnp.minimum(a, b), 1.0)
    left = root(-b, jnp.zeros_like(a), -1.0)
    first = jnp.where(gap, root(a, star, -1.0), star)  # z' falls from +∞ at a to its minimum
    second = jnp.where(gap, root(star, jnp.maximum(b, star), 1.0), star)
    # edges in the order of x: left, z(second), z(first), right
    return jnp.stack([left, second, first, right]), gap


@jax.jit
def spectrum(rho: ArrayLike, delta: ArrayLike) -> Spectrum:
    r"""The law of R = S + √Δ Z with its quadrature.

        z(g) = -ρ/(g - √ρ) + Δ g + 1/g,   z(G(x)) = x

    Args:
        rho: ρ = r/d, width over dimension, a number > 0 (vmap for more).
        delta: Δ, variance of the noise, a number > 0.

    Returns:
        A `Spectrum`: edges, density and Hilbert transform anywhere, moments, error, shrinkage, all
        differentiable in ρ and Δ.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(spectrum(0.5, 1.0).error), 8)
        0.39694864

    Source:
        [theory: random-matrices, Eqs. (4) to (12)].
    """
    rho, delta = (jnp.asarray(x, theory_dtype()) for x in (rho, delta))
    critical, gap = _critical(rho, delta)
    bands = lax.stop_gradient(_bands(critical, gap, rho, delta))
    l, measure = band_nodes(bands[:, 0], bands[:, 1])
    grown = jnp.exp(l)
    s = jnp.sqrt(rho) + grown  # log(s - a) is constant for differentiation
    x = -rho / grown + delta * s + 1.0 / s
    slope = rho / grown**2 + delta - 1.0 / s**2
    u, v = _pair(s, x, rho, delta)
    return Spectrum(
        rho=rho,
        delta=delta,
        critical=critical,
        edges=existing_edges(inverse_green(critical, rho, delta), gap),
        gap=gap,
        x=x.reshape(-1),
        density=(v / np.pi).reshape(-1),
        hilbert=u.reshape(-1),
        log_potential=_log_potential(u, v, x, rho, delta).reshape(-1),
        weight=(slope * grown * measure).reshape(-1),
    )


def shrinkage_error(rho: ArrayLike, qhat: ArrayLike) -> Array:
    r"""V(q̂), the error per row of the best estimate of S observed with precision q̂ = 1/Δ >= 0.

        V = Δ - (4π²/3) Δ² ∫ μ³;   1 - q̂ + (1 - 1/ρ) q̂² for q̂ < 1e-4 min(1, ρ);   V(0) = 1

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(shrinkage_error(1.0, 10.0)), 8)
        0.08054567

    Source:
        [theory: random-matrices, Eqs. (12), (13)].
    """
    rho, qhat = (jnp.asarray(x, theory_dtype()) for x in (rho, qhat))
    small = qhat < 1e-4 * jnp.minimum(1.0, rho)
    full = spectrum(rho, 1.0 / jnp.where(small, 1.0, qhat)).error
    return jnp.where(small, 1.0 - qhat + (1.0 - 1.0 / rho) * qhat**2, full)


def mutual_information(rho: ArrayLike, qhat: ArrayLike) -> Array:
    r"""I(q̂), per d² and in nats: the mutual information of S and R, q̂ > 0.

        I = 1/8 + ¼ log q̂ + ½ Σ,   dI/dq̂ = V/4

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(mutual_information(0.5, 1.0)), 8)
        0.15453186

    Source:
        [theory: random-matrices, Eqs. (15) to (17)].
    """
    return spectrum(rho, 1.0 / jnp.asarray(qhat, theory_dtype())).information
