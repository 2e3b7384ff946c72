r"""Output channels of attention indices: what a label says about the symmetric matrix h (T, T) of one sample.

Equations here [spec/2, sections 1.3, 2.1, 3.1 to 3.5 and 6]. ω ~ √q GOE(T), h = ω + √V GOE(T) (variance one off the diagonal, two
on it), Q_0 = q + V:

    Γ(y, ω, V) = (E[h|y, ω] - ω)/V,      f(q) = E ‖Γ‖² = 4 Ψ'(q),      q̂ = α f(q)
    linear      y = h + noise (variance Δ on the diagonal, Δ/2 off it):  Γ = (y - ω)/(V + Δ/2),  f = T(T+1)/(V + Δ/2)
    softmax     log(y_ab)/β gives h up to h + k 1 1ᵀ: P h, P m = m - mean(m) 1 1ᵀ:  Γ = P(h - ω)/V,  f = (T² + T - 2)/V
    hardmax     T = 2: two signs s of u = (h_11 - h_12, h_22 - h_12), covariance C = [[3, 1], [1, 3]] per unit of variance:
                P_s(w) = Φ₂(s_1 w_1/σ, s_2 w_2/σ; s_1 s_2/3),  σ² = 3V,  g = ∂ log P_s/∂w
                Γ_11 = 2 g_1, Γ_22 = 2 g_2, Γ_12 = -(g_1 + g_2),   f = 2 E Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2)

In the fields of one sample, ½V GOE-like noise and g = Γ/2 are the common engine's V and g: a factor two each, no special case.
"""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr

from jaxsmi.types import Array, theory_dtype

__all__ = ["HardmaxIndices", "LinearIndices", "SoftmaxIndices"]


class LinearIndices(eqx.Module):
    """All T(T+1)/2 indices, with noise of variance Δ on the diagonal and Δ/2 off it (Δ = 0: none)."""

    tokens: int = eqx.field(static=True)
    noise: Array

    def response(self, q: Array, V: Array) -> Array:
        """f(q) = T(T+1)/(V + Δ/2)."""
        del q
        return self.tokens * (self.tokens + 1) / (V + 0.5 * self.noise)

    def respond(self, y: Array, omega: Array, V: Array) -> Array:
        """Γ (.., T, T) from labels and ω (.., T, T)."""
        return (y - omega) / (V + 0.5 * self.noise)

    @property
    def measurements(self) -> int:
        """M with f = M/V, without noise."""
        return self.tokens * (self.tokens + 1)


class SoftmaxIndices(eqx.Module):
    """Rows of the softmax of β h, noiseless."""

    tokens: int = eqx.field(static=True)
    beta: Array

    def response(self, q: Array, V: Array) -> Array:
        """f(q) = (T² + T - 2)/V."""
        del q
        return self.measurements / V

    def statistic(self, y: Array) -> Array:
        """P h (.., T, T) from y (.., T, T), float64: log y/β = h - (a constant a row)."""
        L = jnp.log(y) / self.beta
        rows = jnp.mean(jnp.swapaxes(L, -1, -2) - L, axis=-1)  # u_a = mean_b (L_ba - L_ab)
        h = L + rows[..., :, None]
        return centred(0.5 * (h + jnp.swapaxes(h, -1, -2)))

    def respond(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (P h - P ω)/V."""
        return (statistic - centred(omega)) / V

    @property
    def measurements(self) -> int:
        """M = T² + T - 2: all of h but its mean, an off-diagonal entry counting twice."""
        return self.tokens**2 + self.tokens - 2


def centred(m: Array) -> Array:
    """P m = m - mean(m) 1 1ᵀ."""
    return m - jnp.mean(m, axis=(-2, -1), keepdims=True)


class HardmaxIndices(eqx.Module):
    """Two tokens, each pointing at the larger of its two indices: two signs."""

    tokens: int = eqx.field(static=True, default=2)

    def response(self, q: Array, V: Array) -> Array:
        """f(q) = f_1(x)/(q + V), x = q/(q + V): u f_1 as a polynomial in u = √(1 - x), made once from the quadrature.

        Error below 1e-8 relative for 1 - x > 1e-2, 1e-5 at 1e-4, 1e-4 below.
        """
        total = q + V
        u = jnp.sqrt(jnp.clip(V / total, 0.0, 1.0))
        return _clenshaw(_hardmax_table(), 2.0 * u - 1.0) / (u * total)

    def respond(self, signs: Array, omega: Array, V: Array) -> Array:
        """Γ (.., 2, 2) from the signs s (.., 2) and ω (.., 2, 2)."""
        w = jnp.stack([omega[..., 0, 0] - omega[..., 0, 1], omega[..., 1, 1] - omega[..., 0, 1]], axis=-1)
        sigma = jnp.sqrt(3.0 * V)
        _, g = sign_pair(signs * w / sigma, signs[..., 0] * signs[..., 1] / 3.0)
        g = signs * g / sigma
        off = -(g[..., 0] + g[..., 1])
        return jnp.stack([jnp.stack([2.0 * g[..., 0], off], -1), jnp.stack([off, 2.0 * g[..., 1]], -1)], -2)


_LEGENDRE = np.polynomial.legendre.leggauss(48)


def sign_pair(x: Array, correlation: Array) -> tuple[Array, Array]:
    r"""log Φ₂(x_1, x_2; c) and its gradient (.., 2) in x, to full relative accuracy far in the tails.

    ∂_1 Φ₂ = φ(x_1) Φ((x_2 - c x_1)/√(1 - c²)). log Φ₂ by Φ₂ = ∫ dt φ(t) Φ((x_2 - c t)/√(1 - c²)), t < x_1, in the log domain on
    nodes around the maximum of the integrand.
    """
    root = jnp.sqrt(1.0 - correlation**2)
    one, two = x[..., 0], x[..., 1]

    def exponent(t: Array) -> Array:
        return (
            -0.5 * t**2 - 0.5 * np.log(2 * np.pi) + log_ndtr((two[..., None] - correlation[..., None] * t) / root[..., None])
        )

    # the integrand is log-concave with curvature at most -1: its mass lies within a few units below min(x_1, its maximum)
    def climb(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        z = (two - correlation * middle) / root
        slope = -middle - correlation / root * jnp.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
        return jnp.where(slope > 0, middle, low), jnp.where(slope > 0, high, middle)

    far = 2.0 * (jnp.abs(one) + jnp.abs(two)) + 10.0
    peak = lax.stop_gradient(0.5 * sum(lax.fori_loop(0, 60, climb, (-far, far))))
    top = jnp.minimum(one, peak + 9.0)
    # where x_1 cuts far below the peak the integrand falls like exp(-slope (x_1 - t)): a width of 1/slope
    z = (two - correlation * one) / root
    rise = jnp.maximum(-one - correlation / root * jnp.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z)), 0.0)
    bottom = jnp.minimum(peak, one) - 9.0 / jnp.maximum(1.0, 0.25 * rise)
    half = 0.5 * (top - bottom)
    t = 0.5 * (top + bottom)[..., None] + half[..., None] * _LEGENDRE[0]
    log_mass = jax.scipy.special.logsumexp(exponent(t), b=half[..., None] * _LEGENDRE[1], axis=-1)

    def slope_of(a: Array, b: Array) -> Array:
        return jnp.exp(-0.5 * a**2 - 0.5 * np.log(2 * np.pi) + log_ndtr((b - correlation * a) / root) - log_mass)

    return log_mass, jnp.stack([slope_of(one, two), slope_of(two, one)], axis=-1)


# lim u f_1: 2·2·3 K/√(6π·3), K = ∫ φ²/(Φ(1 - Φ))
_HARD_LIMIT = 12.0 * 1.8063945711 / np.sqrt(18.0 * np.pi)
_ORDER = 24


@functools.lru_cache(maxsize=1)
def _hardmax_table() -> np.ndarray:
    """Chebyshev coefficients in 2u - 1 of u f_1(1 - u²), u in [0, 1]; a second or two, once in a process."""
    points = np.cos(np.pi * np.arange(_ORDER + 1) / _ORDER)
    u = 0.5 * (1.0 + points)
    with jax.ensure_compile_time_eval():
        V = jnp.asarray(u[:-1] ** 2)
        values = np.append(u[:-1] * np.asarray(lax.map(lambda v: hardmax_response(1.0 - v, v), V)), _HARD_LIMIT)
    return np.polynomial.chebyshev.chebfit(points, values, _ORDER)


def _clenshaw(coefficients: np.ndarray, x: Array) -> Array:
    """Σ c_k T_k(x)."""
    last, before = jnp.zeros_like(x), jnp.zeros_like(x)
    for c in coefficients[:0:-1]:
        last, before = 2.0 * x * last - before + c, last
    return x * last - before + coefficients[0]


@jax.jit
def hardmax_response(q: Array, V: Array) -> Array:
    """f_1(q) = 2 E_w Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2) at q + V = 1, nodes w_i = σ sinh(t_i)."""
    q, V = jnp.asarray(q, theory_dtype()), jnp.asarray(V, theory_dtype())
    sigma = jnp.sqrt(3.0 * V)
    nodes, weights = (jnp.asarray(x) for x in np.polynomial.legendre.leggauss(96))
    reach = jnp.arcsinh(8.0 * jnp.sqrt(3.0 * q) / sigma)
    t = reach * nodes
    x = jnp.sinh(t)  # w/σ
    measure = reach * weights * jnp.cosh(t)
    one, two = jnp.meshgrid(x, x, indexing="ij")
    # w/σ ~ N(0, (q/V) C/3), C/3 = [[1, 1/3], [1/3, 1]]
    ratio = q / V
    safe = jnp.where(ratio > 0, ratio, 1.0)
    quadratic = (one**2 + two**2 - 2.0 / 3.0 * one * two) * 9.0 / 8.0 / safe
    log_density = -0.5 * quadratic - jnp.log(2 * np.pi * safe) - 0.5 * np.log(8.0 / 9.0)
    density = jnp.exp(log_density) * measure[:, None] * measure[None, :]

    def inner(one: Array, two: Array) -> Array:
        total = 0.0
        for second in (1.0, -1.0):  # s = (1, ±1); the other two by w → -w
            log_p, g = sign_pair(jnp.stack([one, second * two], -1), jnp.full(one.shape, second / 3.0))
            a, b = g[..., 0], second * g[..., 1]
            total = total + 2.0 * jnp.exp(log_p) * (3.0 * a**2 + 3.0 * b**2 + 2.0 * a * b)
        return total

    at_zero = 2.0 * inner(jnp.zeros(()), jnp.zeros(())) / (3.0 * V)
    return jnp.where(ratio > 0, 2.0 * jnp.sum(density * inner(one, two)) / (3.0 * V), at_zero)
