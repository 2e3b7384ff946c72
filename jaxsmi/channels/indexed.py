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
from scipy.special import ndtr

from jaxsmi.channels.closed_form import log_quadrant
from jaxsmi.types import Array, theory_dtype

__all__ = ["HardmaxIndices", "LinearIndices", "SoftmaxIndices"]


class LinearIndices(eqx.Module):
    """All T(T+1)/2 indices, with noise of variance Δ on the diagonal and Δ/2 off it (Δ = 0: none)."""

    tokens: int = eqx.field(static=True)
    noise: Array

    def response(self, q: Array, V: Array) -> Array:
        """f(q) = T(T+1)/(V + Δ/2)."""
        del q
        return self.measurements / (V + 0.5 * self.noise)

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

        Relative error below 1e-9 (against 160² nodes, 1 - x from 1e-6 to 1).
        """
        total = q + V
        u = jnp.sqrt(jnp.clip(V / total, 0.0, 1.0))
        return _clenshaw(_hardmax_table(), 2.0 * u - 1.0) / (u * total)

    def respond(self, signs: Array, omega: Array, V: Array) -> Array:
        """Γ (.., 2, 2) from the signs s (.., 2) and ω (.., 2, 2)."""
        one, two = signs[..., 0], signs[..., 1]
        sigma = jnp.sqrt(3.0 * V)
        x, y = (s * (omega[..., i, i] - omega[..., 0, 1]) / sigma for i, s in enumerate((one, two)))
        _, g, h = _gaussian_pair(x, y, one * two / 3.0)
        g, h = one * g / sigma, two * h / sigma
        return jnp.stack([jnp.stack([2.0 * g, -(g + h)], -1), jnp.stack([-(g + h), 2.0 * h], -1)], -2)


@jnp.vectorize
def _gaussian_pair(one: Array, two: Array, c: Array) -> tuple[Array, Array, Array]:
    """log Φ₂(x_1, x_2; c), and ∂_1, ∂_2 of it: ∂_1 Φ₂ = φ(x_1) Φ((x_2 - c x_1)/√(1 - c²)), far in the tails too."""
    log_mass = log_quadrant(one, two, c)

    def slope(a: Array, b: Array) -> Array:
        log_edge = -0.5 * a**2 - 0.5 * np.log(2 * np.pi) + log_ndtr((b - c * a) / jnp.sqrt(1.0 - c**2))
        return jnp.exp(log_edge - log_mass)

    return log_mass, slope(one, two), slope(two, one)


_ORDER, _NODES = 16, 64


@functools.lru_cache(maxsize=1)
def _hardmax_table() -> np.ndarray:
    """Chebyshev coefficients in 2u - 1 of u f_1(1 - u²), u in [0, 1], once in a process.

    Its limit at u = 0 is 12 K/√(18π), K = ∫ φ²/(Φ(1 - Φ)), one of the two signs being known there [spec/2, section 3.3].
    """
    x, weights = (8.0 * z for z in np.polynomial.legendre.leggauss(200))
    K = np.sum(weights * np.exp(-(x**2)) / (2.0 * np.pi * ndtr(x) * ndtr(-x)))
    points = np.cos(np.pi * np.arange(_ORDER + 1) / _ORDER)
    u = 0.5 * (1.0 + points)
    with jax.ensure_compile_time_eval():
        V = jnp.asarray(u[:-1] ** 2)
        values = np.append(
            u[:-1] * np.asarray(lax.map(lambda v: hardmax_response(1.0 - v, v), V)), 12.0 * K / np.sqrt(18.0 * np.pi)
        )
    return np.polynomial.chebyshev.chebfit(points, values, _ORDER)


def _clenshaw(coefficients: np.ndarray, x: Array) -> Array:
    """Σ c_k T_k(x)."""
    last, before = jnp.zeros_like(x), jnp.zeros_like(x)
    for c in coefficients[:0:-1]:
        last, before = 2.0 * x * last - before + c, last
    return x * last - before + coefficients[0]


@jax.jit
def hardmax_response(q: Array, V: Array) -> Array:
    """f_1(q) = 2 E_w Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2) at q + V = 1, in x_i = s_i w_i/σ = sinh(t_i), Gauss–Legendre in t.

    x ~ N(0, (q/V) [[1, c], [c, 1]]), c = s_1 s_2/3: symmetric in x_1 and x_2, and s = (1, ±1) stand for all four.
    """
    q, V = jnp.asarray(q, theory_dtype()), jnp.asarray(V, theory_dtype())
    nodes, weights = (jnp.asarray(x) for x in np.polynomial.legendre.leggauss(_NODES))
    high = jnp.arcsinh(8.0 * jnp.sqrt(q / V))
    low = -jnp.minimum(high, jnp.arcsinh(8.5))  # below that P_s is less than 1e-16
    t = 0.5 * (low + high) + 0.5 * (high - low) * nodes
    points, measure = jnp.sinh(t), 0.5 * (high - low) * weights * jnp.cosh(t)
    i, j = np.triu_indices(_NODES)
    x, y, weight = points[i], points[j], measure[i] * measure[j] * np.where(i == j, 1.0, 2.0)
    sign = np.array([[1.0], [-1.0]])  # both in one call: it takes long to compile
    c, ratio = sign / 3.0, jnp.where(q > 0.0, q / V, 1.0)
    exponent = -0.5 * (x**2 + y**2 - 2.0 * c * x * y) / ((1.0 - c**2) * ratio)
    weight = weight * jnp.exp(exponent) / (2.0 * np.pi * ratio * np.sqrt(1.0 - c**2))
    weight = jnp.where(q > 0.0, weight, 1.0 / len(i))  # q = 0: all points are at x = 0
    log_p, g, h = _gaussian_pair(x, y, c)
    return 4.0 * jnp.sum(weight * jnp.exp(log_p) * (3.0 * g**2 + 3.0 * h**2 + 2.0 * sign * g * h)) / (3.0 * V)
