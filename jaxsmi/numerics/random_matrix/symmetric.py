r"""The free convolution of a Wishart-like law with a semicircle: what a low-rank matrix seen through noise looks like.

Equations here [theory: random-matrices, Eqs. (1) to (17)],
S = W Wᵀ/√(r d) (ρ = r/d, a = √ρ) and R = S + √Δ Z, Z ~ GOE(d)/√d:

    G(x) = ∫ μ(dy)/(x - y),   z(g) = -ρ/(g - a) + Δ g + 1/g,   z(G(x)) = x                       (R-transform √ρ/(1 - g/√ρ))
    on the support a real root s > a and a pair u ∓ i v:    H(x) = u,   μ(x) = v/π,
        x(s) = z(s),   u = (a + x/Δ - s)/2,   v² = a/(Δ s) - u²          (sum and product of the roots)
    edges: z'(g) = 0, with partner s = a/(Δ g²); a gap opens for ρ < 1 and Δ < Δ_c = (1 - ρ^{1/3})³/ρ
    V = MMSE = Δ - (4π²/3) Δ² ∫ μ³,      f(λ) = λ - 2 Δ H(λ)                          (error and estimator of S from R)
    Σ = ∫∫ log|x - y| μ μ,   ∫ log|x - y| μ(dy) = Re[g x + ρ log(1 - g/a) - Δ g²/2 - log g] - 1,   g = u - i v
    I(q̂) = 1/8 + ¼ log q̂ + ½ Σ,   Δ = 1/q̂,      dI/dq̂ = V/4

x(s) is smooth and increasing along a band, so that no cubic is ever solved on the support: integrals run over s, roots are
bisected in log(s - a) (outside the support in log|g|), then polished by two Newton steps, through which derivatives go.
Integrands vanish at the ends of the bands: there, the limits of integration are held while differentiating.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.numerics.roots import bisect

_NODES = 96  # Gauss–Legendre nodes a band: 1e-13 for V, 1e-11 at the cusp Δ = Δ_c


_THETA, _WEIGHT = (np.pi / 2 * x for x in np.polynomial.legendre.leggauss(_NODES))


_THETA = _THETA + np.pi / 2


def inverse_green(g: Array, rho: Array, delta: Array) -> Array:
    """z(g) = -ρ/(g - √ρ) + Δ g + 1/g: the point whose Green function is g."""
    return -rho / (g - jnp.sqrt(rho)) + delta * g + 1.0 / g


def _slope(g: Array, rho: Array, delta: Array) -> Array:
    """z'(g)."""
    return rho / (g - jnp.sqrt(rho)) ** 2 + delta - 1.0 / g**2


class Spectrum(eqx.Module):
    """The law of R. `rho`, `delta`; `critical` (4,): g at the edges, from left to right; `edges` (4,): the edges, the two of the
    gap NaN where there is none; `gap`: whether there is one; on 2 × 96 nodes of
    quadrature, band by band: `x`, `density`, `hilbert`, `weight` (∫ f dμ = Σ weight · density · f(x)). A band of width zero has
    weight zero."""

    rho: Array
    delta: Array
    critical: Array
    edges: Array
    gap: Array
    x: Array
    density: Array
    hilbert: Array
    weight: Array

    def mean(self, values: Array) -> Array:
        """∫ f dμ from f at the nodes `x`."""
        return jnp.sum(self.weight * self.density * values)

    @property
    def cubed(self) -> Array:
        """∫ μ³ dx."""
        return jnp.sum(self.weight * self.density**3)

    @property
    def error(self) -> Array:
        """V: mean squared error per row of the best estimate of S from R."""
        return self.delta - 4.0 * np.pi**2 / 3.0 * self.delta**2 * self.cubed

    @property
    def log_potential(self) -> Array:
        """∫ log|x - y| μ(dy) at the nodes."""
        a, u, v = jnp.sqrt(self.rho), self.hilbert, np.pi * self.density
        real_square = u * u - v * v
        far = 0.5 * self.rho * jnp.log((1.0 - u / a) ** 2 + (v / a) ** 2)
        return (
            u * self.x + far - 0.5 * self.delta * real_square - 0.5 * jnp.log(u * u + v * v) - 1.0
        )

    def green(self, points: Array) -> tuple[Array, Array]:
        """(H, μ) at real points of any shape, on the support, in the gap or outside."""
        points = jnp.asarray(points, theory_dtype())
        rho, delta, a = self.rho, self.delta, jnp.sqrt(self.rho)
        held = lax.stop_gradient
        g = held(self.critical)
        left, low, high, right = held(self.edges)
        outer_right, outer_left = points >= right, points <= left
        hole = self.gap & (points > low) & (points < high)
        second = self.gap & (points >= high) & ~outer_right
        # node = origin + sign·exp(t), t between two ends; z falls with g off the support, rises with s on it
        ends = held(_bands(self.critical, self.gap, rho, delta))
        tiny = jnp.finfo(g.dtype).tiny
        away = jnp.log(
            jnp.maximum(1.0 / jnp.maximum(jnp.abs(points), tiny), tiny)
        )  # g = 1/x: z > x
        beyond = jnp.log(1.0 / jnp.maximum(a - points, tiny))  # |g| = 1/(a - x): z < x
        options = (
            (outer_right, 0.0, 1.0, jnp.minimum(away, jnp.log(g[3])), jnp.log(g[3]), -1.0),
            (outer_left, 0.0, -1.0, jnp.minimum(beyond, jnp.log(-g[0])), jnp.log(-g[0]), 1.0),
            (
                hole,
                a,
                1.0,
                jnp.log(jnp.maximum(g[2] - a, tiny)),
                jnp.log(jnp.maximum(g[1] - a, tiny)),
                -1.0,
            ),
            (second, a, 1.0, ends[1, 0], ends[1, 1], 1.0),
        )
        origin, sign, start, stop, rising = (
            jnp.broadcast_to(x, points.shape) for x in (a, 1.0, ends[0, 0], ends[0, 1], 1.0)
        )
        for inside, *values in options:
            new = (
                jnp.where(inside, v, w)
                for v, w in zip(values, (origin, sign, start, stop, rising), strict=True)
            )
            origin, sign, start, stop, rising = new
        held_rho, held_delta, at = held(rho), held(delta), held(points)
        still = held(origin)

        def above(t: Array) -> Array:
            return (
                rising * (inverse_green(still + sign * jnp.exp(t), held_rho, held_delta) - at) > 0.0
            )

        t = held(bisect(above, held(start), held(stop)))
        for _ in range(2):  # derivatives of first and second order go through these
            node = origin + sign * jnp.exp(t)
            fall = _slope(node, rho, delta) * sign * jnp.exp(t)
            t = t - (inverse_green(node, rho, delta) - points) / jnp.where(fall == 0.0, 1.0, fall)
        node = origin + sign * jnp.exp(t)
        inside = ~(outer_right | outer_left | hole)
        s = jnp.where(inside, node, 2.0 * a)
        u, v = _pair(s, points, rho, delta)
        return jnp.where(inside, u, node), jnp.where(inside, v / np.pi, 0.0)

    def shrink(self, eigenvalues: Array) -> Array:
        """f(λ) = λ - 2 Δ H(λ): the eigenvalues of the best estimate of S."""
        return eigenvalues - 2.0 * self.delta * self.green(eigenvalues)[0]


def _pair(s: Array, x: Array, rho: Array, delta: Array) -> tuple[Array, Array]:
    """(u, v) of the complex roots from the real one; v = 0 off the support."""
    a = jnp.sqrt(rho)
    u = 0.5 * (a + x / delta - s)
    square = a / (delta * s) - u * u
    positive = square > 0.0
    return u, jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def _bands(critical: Array, gap: Array, rho: Array, delta: Array) -> Array:
    """log(s - a) at the ends of the two bands (2, 2); without a gap the first takes all and the second is empty."""
    a = jnp.sqrt(rho)
    # s - a = a/(Δ g²) - a without cancellation, from z'(g) = 0
    l = jnp.log(a * rho / ((critical - a) ** 2 * delta))
    left = jnp.stack([l[0], jnp.where(gap, l[1], l[3])])
    return jnp.stack([left, jnp.stack([jnp.where(gap, l[2], l[3]), l[3]])])


def _critical(rho: Array, delta: Array) -> tuple[Array, Array]:
    """g at the four edges, from left to right, and whether there is a gap."""
    a, b = jnp.sqrt(rho), 1.0 / jnp.sqrt(delta)
    star = a / jnp.where(
        rho < 1.0, 1.0 - jnp.cbrt(rho), 0.5
    )  # where z' is least between a and infinity (ρ >= 1: nowhere)
    gap = (rho < 1.0) & (delta < jnp.where(rho < 1.0, 1.0 - jnp.cbrt(rho), 0.0) ** 3 / rho)

    def root(low: Array, high: Array, rising: float) -> Array:
        held_rho, held_delta = lax.stop_gradient((rho, delta))
        ends = lax.stop_gradient((low, high))
        g = lax.stop_gradient(
            bisect(lambda g: rising * _slope(g, held_rho, held_delta) > 0.0, *ends)
        )
        for _ in range(2):
            curve = -2.0 * rho / (g - a) ** 3 + 2.0 / g**3
            g = g - _slope(g, rho, delta) / jnp.where(curve == 0.0, 1.0, curve)
        return g

    # z' = Δ - 1/g² + ρ/(g-a)²: from -∞ at 0 up to +∞ at a; from 0 downwards likewise
    right = root(jnp.zeros_like(a), jnp.minimum(a, b), 1.0)
    left = root(-b, jnp.zeros_like(a), -1.0)
    first = jnp.where(gap, root(a, star, -1.0), star)  # z' falls from +∞ at a to its minimum
    second = jnp.where(gap, root(star, jnp.maximum(b, star), 1.0), star)
    # in x: left, z(second), z(first), right
    return jnp.stack([left, second, first, right]), gap


def spectrum(rho: Any, delta: Any) -> Spectrum:
    r"""The law of R = S + √Δ Z with its quadrature (module docstring).

    Arguments: `rho` = r/d > 0, width over dimension; `delta` Δ > 0, variance of the noise. Scalars (vmap for more).
    Returns: a `Spectrum`: edges, density and Hilbert transform anywhere, moments, error, shrinkage, all differentiable in ρ, Δ.
    Raises: ValueError for a ρ or Δ that is not finite and positive. Cost: microseconds after compilation.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(spectrum(0.5, 1.0).error), 8)
    0.39694864
    """
    rho, delta = jnp.asarray(rho, theory_dtype()), jnp.asarray(delta, theory_dtype())
    for name, value in (("rho", rho), ("delta", delta)):
        check(jnp.all(jnp.isfinite(value) & (value > 0.0)), name, value, "a finite number > 0")
    return _spectrum(rho, delta)


@jax.jit
def _spectrum(rho: Array, delta: Array) -> Spectrum:
    critical, gap = _critical(rho, delta)
    bands = lax.stop_gradient(_bands(critical, gap, rho, delta))
    half = 0.5 * (bands[:, 1] - bands[:, 0])[:, None]
    l = 0.5 * (bands[:, 1] + bands[:, 0])[:, None] - half * np.cos(_THETA)
    grown = jnp.exp(l)
    s = jnp.sqrt(rho) + grown  # log(s - a) is what is held
    x = -rho / grown + delta * s + 1.0 / s
    slope = rho / grown**2 + delta - 1.0 / s**2
    u, v = _pair(s, x, rho, delta)
    weight = slope * grown * half * np.sin(_THETA) * _WEIGHT
    edges = inverse_green(critical, rho, delta)
    edges = jnp.where(gap | jnp.asarray([True, False, False, True]), edges, jnp.nan)
    nodes = (value.reshape(-1) for value in (x, v / np.pi, u, weight))
    return Spectrum(rho, delta, critical, edges, gap, *nodes)


def shrinkage_error(rho: Any, qhat: Any) -> Array:
    r"""V(q̂), the mean squared error per row of the best estimate of S seen with precision q̂ = 1/Δ: 1 at q̂ = 0.

    Arguments: `rho` > 0, `qhat` >= 0, scalars. Returns: V. For q̂ < 1e-4 min(1, ρ): 1 - q̂ + (1 - 1/ρ) q̂².
    Raises: ValueError for arguments out of range. Cost: microseconds.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(shrinkage_error(1.0, 10.0)), 8)
    0.08054567
    """
    rho, qhat = jnp.asarray(rho, theory_dtype()), jnp.asarray(qhat, theory_dtype())
    check(jnp.all(jnp.isfinite(rho) & (rho > 0.0)), "rho", rho, "a finite number > 0")
    check(jnp.all(jnp.isfinite(qhat) & (qhat >= 0.0)), "qhat", qhat, "a finite number >= 0")
    small = qhat < 1e-4 * jnp.minimum(1.0, rho)
    full = _spectrum(rho, 1.0 / jnp.where(small, 1.0, qhat)).error
    return jnp.where(small, 1.0 - qhat + (1.0 - 1.0 / rho) * qhat**2, full)


def mutual_information(rho: Any, qhat: Any) -> Array:
    r"""I(q̂) = 1/8 + ¼ log q̂ + ½ Σ, per d²: what R says about S; dI/dq̂ = V/4.

    Arguments: `rho` > 0, `qhat` > 0, scalars. Returns: I. Raises: ValueError for arguments out of range.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(mutual_information(0.5, 1.0)), 8)
    0.15453186
    """
    law = spectrum(rho, 1.0 / jnp.asarray(qhat, theory_dtype()))
    return 0.125 - 0.25 * jnp.log(law.delta) + 0.5 * law.mean(law.log_potential)
