r"""Output channels of attention indices: what a label says about the symmetric matrix h (T, T) of one sample.

Equations here [spec/2, sections 1.3, 2.1, 3.1 to 3.5 and 6]. ω ~ √q GOE(T), h = ω + √V GOE(T) (variance one off the diagonal, two
on it), Q_0 = q + V:

    Γ(y, ω, V) = (E[h|y, ω] - ω)/V,      f(q) = E ‖Γ‖² = 4 Ψ'(q),      q̂ = α f(q)
    linear      y = h + noise (variance Δ on the diagonal, Δ/2 off it):  Γ = (y - ω)/(V + Δ/2),  f = T(T+1)/(V + Δ/2)
    softmax     log(y_ab)/β gives h up to h + k 1 1ᵀ: P h, P m = m - mean(m) 1 1ᵀ:  Γ = P(h - ω)/V,  f = (T² + T - 2)/V
    hardmax     T = 2: two signs s of u = (h_11 - h_12, h_22 - h_12), covariance C = [[3, 1], [1, 3]] per unit of variance:
                P_s(w) = Φ₂(s_1 w_1/σ, s_2 w_2/σ; s_1 s_2/3),  σ² = 3V,  g = ∂ log P_s/∂w
                Γ_11 = 2 g_1, Γ_22 = 2 g_2, Γ_12 = -(g_1 + g_2),   f = 2 E Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2)

For the common engine a sample has one field vector of T² components, g = Γ: q̂ = α ⟨‖Γ‖²⟩ is its precision, V Γ its Onsager term.
"""

from __future__ import annotations

import abc
import functools
import warnings
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr
from scipy.special import ndtr

from jaxsmi.channels.base import Posterior
from jaxsmi.channels.closed_form import log_quadrant
from jaxsmi.types import Array, check, theory_dtype

__all__ = ["HardmaxIndices", "LinearIndices", "SoftmaxIndices"]


class AbstractIndices(eqx.Module):
    """What a label says about the T(T+1)/2 indices of its sample: Γ(y, ω, V), and its mean square over labels."""

    smooth: ClassVar[bool] = True
    tokens: eqx.AbstractVar[int]

    @abc.abstractmethod
    def response(self, q: Array, V: Array) -> Array:
        """f(q)."""

    @abc.abstractmethod
    def log_partition(self, q: Array, V: Array) -> Array:
        """Ψ(q) = E log p(y|ω), f = 4 Ψ'; of noiseless labels that are no words but numbers, up to a constant."""

    @abc.abstractmethod
    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ (.., T, T) from the statistic of the labels and ω (.., T, T)."""

    @abc.abstractmethod
    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError for labels (N, T, T) that the channel cannot produce."""

    @abc.abstractmethod
    def statistic(self, labels: Array) -> Array:
        """What `gamma` needs of the labels (N, T, T), once per dataset."""

    @property
    def noiseless(self) -> Array:
        """Whether the label is a function of the indices alone, and V can fall to zero."""
        return jnp.asarray(True)

    @property
    def tolerated(self) -> Array:
        """Any error: these are closed forms."""
        return jnp.asarray(jnp.inf)

    def expected(self, Q: Array, V: Array, key: Array) -> Array:
        """f(q) as a matrix (1, 1), for the precision "state" of `gamp`."""
        del key
        return self.response(Q, V)

    def respond(self, statistic: Array, omega: Array, V: Array, key: Any = None) -> Posterior:
        """g = Γ as the engine's fields: ω (N, 1, T²), V (1, 1)."""
        del key
        N, T = omega.shape[0], self.tokens
        g = self.gamma(statistic, omega.reshape(N, T, T), V[0, 0]).reshape(N, 1, T * T)
        nan, zero = jnp.full((N,), jnp.nan, g.dtype), jnp.zeros((N,), g.dtype)
        return Posterior(nan, g, jnp.full((N,), jnp.nan, g.dtype), nan, zero, zero)


def _check_symmetric(labels: Array, name: str) -> None:
    gap = jnp.max(jnp.abs(labels - jnp.swapaxes(labels, -1, -2)))
    check(gap <= 1e-6 * (1.0 + jnp.max(jnp.abs(labels))), name, labels, "symmetric matrices (N, T, T)")


class LinearIndices(AbstractIndices):
    """All T(T+1)/2 indices, with noise of variance Δ on the diagonal and Δ/2 off it (Δ = 0: none)."""

    tokens: int = eqx.field(static=True)
    noise: Array

    @property
    def noiseless(self) -> Array:
        """Whether Δ = 0."""
        return self.noise == 0.0

    def log_partition(self, q: Array, V: Array) -> Array:
        """-(T(T+1)/4) log(V + Δ/2)."""
        del q
        return -0.25 * self.measurements * jnp.log(V + 0.5 * self.noise)

    def check_labels(self, labels: Array) -> None:
        """Symmetric matrices."""
        _check_symmetric(labels, "labels")

    def statistic(self, labels: Array) -> Array:
        """The labels."""
        return labels

    def response(self, q: Array, V: Array) -> Array:
        """f(q) = T(T+1)/(V + Δ/2)."""
        del q
        return self.measurements / (V + 0.5 * self.noise)

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (y - ω)/(V + Δ/2)."""
        return (statistic - omega) / (V + 0.5 * self.noise)

    @property
    def measurements(self) -> int:
        """M with f = M/V, without noise."""
        return self.tokens * (self.tokens + 1)


class SoftmaxIndices(AbstractIndices):
    """Rows of the softmax of β h, noiseless."""

    tokens: int = eqx.field(static=True)
    beta: Array

    def response(self, q: Array, V: Array) -> Array:
        """f(q) = (T² + T - 2)/V."""
        del q
        return self.measurements / V

    def log_partition(self, q: Array, V: Array) -> Array:
        """-(M/4) log V."""
        del q
        return -0.25 * self.measurements * jnp.log(V)

    def check_labels(self, labels: Array) -> None:
        """Rows of positive numbers of sum one; a warning where they are float32."""
        check(jnp.all(labels > 0.0), "labels", labels, "positive numbers (no softmax that has underflowed to zero)")
        rows = jnp.abs(jnp.sum(labels, axis=-1) - 1.0)
        check(jnp.max(rows) <= 1e-4, "labels", labels, "rows of sum one")
        if labels.dtype != jnp.float64:
            warnings.warn("jaxsmi: softmax labels in float32 give indices with errors of about 1e-7/beta.", stacklevel=3)

    def statistic(self, labels: Array) -> Array:
        """P h (.., T, T) from y (.., T, T): log y/β = h - (a constant a row)."""
        L = jnp.log(labels.astype(theory_dtype())) / self.beta
        rows = jnp.mean(jnp.swapaxes(L, -1, -2) - L, axis=-1)  # u_a = mean_b (L_ba - L_ab)
        h = L + rows[..., :, None]
        return centred(0.5 * (h + jnp.swapaxes(h, -1, -2)))

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (P h - P ω)/V."""
        return (statistic - centred(omega)) / V

    @property
    def measurements(self) -> int:
        """M = T² + T - 2: all of h but its mean, an off-diagonal entry counting twice."""
        return self.tokens**2 + self.tokens - 2


def centred(m: Array) -> Array:
    """P m = m - mean(m) 1 1ᵀ."""
    return m - jnp.mean(m, axis=(-2, -1), keepdims=True)


class HardmaxIndices(AbstractIndices):
    """Two tokens, each pointing at the larger of its two indices: two signs."""

    smooth: ClassVar[bool] = False
    tokens: int = eqx.field(static=True, default=2)

    @property
    def noiseless(self) -> Array:
        """Never in the sense of V = 0: V falls with α² only."""
        return jnp.asarray(False)

    def check_labels(self, labels: Array) -> None:
        """Rows with a single one."""
        ones = jnp.all((labels == 0.0) | (labels == 1.0)) & jnp.all(jnp.sum(labels, axis=-1) == 1.0)
        check(ones, "labels", labels, "rows of zeros with a single one")

    def statistic(self, labels: Array) -> Array:
        """s (.., 2): 1 where a token points at itself, else -1."""
        return 2.0 * jnp.diagonal(labels, axis1=-2, axis2=-1).astype(theory_dtype()) - 1.0

    def log_partition(self, q: Array, V: Array) -> Array:
        """E Σ_s P_s log P_s, a polynomial in u = √(V/(q + V)) (error 1e-9)."""
        u = jnp.sqrt(jnp.clip(V / (q + V), 0.0, 1.0))
        return _clenshaw(_hardmax_tables()[1], 2.0 * u - 1.0)

    def response(self, q: Array, V: Array) -> Array:
        """f(q) = f_1(x)/(q + V), x = q/(q + V): u f_1 as a polynomial in u = √(1 - x), made once from the quadrature.

        Relative error below 1e-9 (against 160² nodes, 1 - x from 1e-6 to 1).
        """
        total = q + V
        u = jnp.sqrt(jnp.clip(V / total, 0.0, 1.0))
        return _clenshaw(_hardmax_tables()[0], 2.0 * u - 1.0) / (u * total)

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ (.., 2, 2) from the signs s (.., 2) and ω (.., 2, 2)."""
        one, two = statistic[..., 0], statistic[..., 1]
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
def _hardmax_tables() -> tuple[np.ndarray, np.ndarray]:
    """Chebyshev coefficients in 2u - 1 of u f_1(1 - u²) and of Ψ, u in [0, 1], once in a process.

    The limits at u = 0 are 12 K/√(18π), K = ∫ φ²/(Φ(1 - Φ)), one of the two signs being known there [spec/2, section 3.3], and 0.
    """
    x, weights = (8.0 * z for z in np.polynomial.legendre.leggauss(200))
    K = np.sum(weights * np.exp(-(x**2)) / (2.0 * np.pi * ndtr(x) * ndtr(-x)))
    points = np.cos(np.pi * np.arange(_ORDER + 1) / _ORDER)
    u = 0.5 * (1.0 + points)
    with jax.ensure_compile_time_eval():
        V = jnp.asarray(u[:-1] ** 2)
        f, entropy = (np.asarray(x) for x in lax.map(lambda v: hardmax_average(1.0 - v, v), V))
    f, entropy = np.append(u[:-1] * f, 12.0 * K / np.sqrt(18.0 * np.pi)), np.append(entropy, 0.0)
    fit = np.polynomial.chebyshev.chebfit
    return fit(points, f, _ORDER), fit(points, entropy, _ORDER)


def _clenshaw(coefficients: np.ndarray, x: Array) -> Array:
    """Σ c_k T_k(x)."""
    last, before = jnp.zeros_like(x), jnp.zeros_like(x)
    for c in coefficients[:0:-1]:
        last, before = 2.0 * x * last - before + c, last
    return x * last - before + coefficients[0]


@jax.jit
def hardmax_average(q: Array, V: Array) -> tuple[Array, Array]:
    """f = 2 E_w Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2) and Ψ = E_w Σ_s P_s log P_s, in x_i = s_i w_i/σ = sinh(t_i), Gauss–Legendre
    in t.

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
    weight = 2.0 * weight * jnp.exp(log_p)
    f = 2.0 * jnp.sum(weight * (3.0 * g**2 + 3.0 * h**2 + 2.0 * sign * g * h)) / (3.0 * V)
    return f, jnp.sum(weight * log_p)
