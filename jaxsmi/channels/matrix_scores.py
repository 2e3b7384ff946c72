r"""Output channels of attention scores: the posterior of the matrix h (T, T) given a label.

Equations here [theory: attention-indexed, Eqs. (3) to (5), (8) to (24)]. ω ~ √q GOE(T),
h = ω + √V GOE(T) (variance one off the diagonal, two on it), Q_0 = q + V:

    Γ(y, ω, V) = (E[h|y, ω] - ω)/V,      f(q) = E ‖Γ‖² = 4 Ψ'(q),      q̂ = α f(q)
    linear      y = h + noise (variance Δ on the diagonal, Δ/2 off it):
                Γ = (y - ω)/(V + Δ/2),  f = T(T+1)/(V + Δ/2)
    softmax     log(y_ab)/β gives h up to h + k 1 1ᵀ; with P m = m - mean(m) 1 1ᵀ,
                Γ = P(h - ω)/V,  f = (T² + T - 2)/V
    hardmax     T = 2: two signs s of u = (h_11 - h_12, h_22 - h_12), whose covariance is
                [[3, 1], [1, 3]] per unit of variance,
                P_s(w) = Φ₂(s_1 w_1/σ, s_2 w_2/σ; s_1 s_2/3),  σ² = 3V,  g = ∂ log P_s/∂w
                Γ_11 = 2 g_1,  Γ_22 = 2 g_2,  Γ_12 = -(g_1 + g_2)
                f = 2 E Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2)
                As a function of x = q/(q + V) alone, f(q) = f_1(x)/(q + V), and u f_1 is a
                polynomial in u = √(1 - x): Ψ = -½ ∫_0^u (u f_1) du

and of one number ω ~ N(0, q), h = ω + √V N(0, 1) [theory: bilinear, Eq. (8)]:

    linear      y = h + noise (variance Δ):  g = (y - ω)/(V + Δ),  f = 2 Ψ' = 1/(V + Δ)

Responses are functions of two numbers in closed form, the overlap q and the rest V
[theory: attention-indexed, Eqs. (10) to (12)]:

    response(Q) = f,   E log Z_out = Ψ(q),   f = Ψ'/weight of the prior's scalar product

For the common engine a sample has one field vector of T² components, g = Γ: q̂ = α ⟨‖Γ‖²⟩ is its
precision, V Γ its Onsager term.
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
from jaxtyping import Array

from jaxsmi.channels.attention_link import hardmax
from jaxsmi.channels.base import AbstractChannel, Key, Posterior, Response
from jaxsmi.channels.signs import log_quadrant
from jaxsmi.core.arrays import positive_root, symmetric, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.numerics.quadrature import legendre, legendre_panel


class AbstractScores(AbstractChannel):
    """Channel of the T(T+1)/2 scores of a sample: Γ(y, ω, V), and its mean square over labels, a
    function f(q, V) of two numbers in closed form.

    One index, whose field vector has T² components: ω, g = Γ are (1, T²). `weight` is the
    weight of the prior's scalar product, 1/4 for a symmetric matrix.
    """

    closed_form: ClassVar[bool] = True
    weight: ClassVar[float] = 0.25
    indices: int = eqx.field(static=True, default=1, kw_only=True)
    pathwise: ClassVar[property] = property(lambda self: True)  # smooth in the fields

    @property
    @abc.abstractmethod
    def measurements(self) -> int:
        """M with f = M/V, without noise: how many numbers a label fixes, an off-diagonal one
        counting twice."""

    @abc.abstractmethod
    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Return Γ (.., T, T) from the statistic of the labels and ω (.., T, T)."""

    @property
    def spread(self) -> Array | float:
        """Variance that noise adds to V."""
        return 0.0

    def information(self, q: Array, V: Array) -> Array:
        """Return f(q) = E ‖g‖² = M/(V + spread) at the overlap q and the rest V: the precision that
        a sample adds."""
        return self.measurements / (V + self.spread)

    def mean_log_partition(self, q: Array, V: Array) -> Array:
        """Return Ψ(q) = E log Z_out = -w M log(V + spread), up to a constant if labels are
        noiseless numbers."""
        return -self.weight * self.measurements * jnp.log(V + self.spread)

    def _log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Return log Z_out (N,) of labels that fix M numbers, up to the constant of Ψ: its mean is
        Ψ, as E ‖Γ‖² = M/(V + spread)."""
        square = jnp.sum(self.gamma(statistic, omega, V) ** 2, axis=(-2, -1))
        v = V + self.spread
        return self.weight * (self.measurements * (1.0 - jnp.log(v)) - v * square)

    @property
    def tolerance(self) -> Array:
        """Infinity: closed forms are exact."""
        return jnp.asarray(jnp.inf)

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Return log Z_out, g = Γ and ∂g in the layout of the engine: ω (N, 1, T²), V (1, 1)."""
        N, T, v = len(omega), self.tokens, V[0, 0]

        def gamma(statistic: Array, omega: Array) -> Array:
            return self.gamma(statistic, omega.reshape(T, T), v).reshape(1, T * T)

        # ∂g is not computed where it is not used, as in the steps of message passing
        dg = jax.vmap(jax.jacfwd(gamma, argnums=1))(statistic, omega)
        log_partition = self._log_partition(statistic, omega.reshape(N, T, T), v)
        zero = jnp.zeros((N,), omega.dtype)
        exact = jnp.full((N,), jnp.inf, omega.dtype)
        return Posterior(log_partition, jax.vmap(gamma)(statistic, omega), dg, exact, zero, zero)

    def response(
        self, Q: Array, V: Array, *, nets: int = 2, tangents: bool = True, **others: Any
    ) -> Response:
        """Return f and Ψ at Q, V (1, 1), in the form of sampled channels: replicas all equal,
        `jacobian` exact."""
        q, v = Q[0, 0], V[0, 0]
        mean = self.information(q, v) * jnp.ones((1, 1), v.dtype)
        slope = zero = jnp.zeros((), v.dtype)
        if tangents:  # along a fixed second moment: dV = -dq
            slope = jax.jvp(self.information, (q, v), (jnp.ones_like(q), -jnp.ones_like(v)))[1]
        # equal replicas have no spread: the statistical error of a closed form is zero
        log_partition = jnp.broadcast_to(self.mean_log_partition(q, v), (nets,))
        replicas = jnp.broadcast_to(mean, (nets, 1, 1))
        return Response(mean, replicas, slope.reshape(1, 1, 1, 1), log_partition, 0.0 * mean, zero)


class LinearScores(AbstractScores):
    """The scores themselves, with noise of variance Δ on the diagonal and Δ/2 off it."""

    noise: Array

    @property
    def spread(self) -> Array:
        """Δ/2."""
        return 0.5 * self.noise

    @property
    def measurements(self) -> int:
        """T(T+1)."""
        return self.tokens * (self.tokens + 1)

    @property
    def noise_size(self) -> int:
        """One normal for each entry of a matrix, of which the symmetric part is used."""
        return self.tokens**2

    @property
    def noiseless(self) -> Array:
        """Δ = 0."""
        return self.noise == 0.0

    def link(self, fields: Array) -> Array:
        """h (T, T)."""
        return fields.reshape(self.tokens, self.tokens)

    def label(self, fields: Array, noise: Array) -> Array:
        """Return h + noise of variance Δ on the diagonal, Δ/2 off it."""
        normal = noise.reshape(self.tokens, self.tokens)
        return self.link(fields) + positive_root(self.noise) * 0.5 * (normal + normal.T)

    def check_labels(self, labels: Array) -> None:
        """Check that labels are symmetric matrices."""
        y = self.statistic(labels)
        # symmetric up to the rounding of float32
        gap = jnp.max(jnp.abs(y - jnp.swapaxes(y, -1, -2)))
        scale = 1.0 + jnp.max(jnp.abs(y))
        check(gap <= 1e-6 * scale, "labels", labels, "symmetric matrices (N, T, T)")

    def statistic(self, labels: Array) -> Array:
        """Return the labels (N, T, T); for one token (N,) is allowed, too."""
        return labels.reshape(-1, self.tokens, self.tokens)

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (y - ω)/(V + spread)."""
        return (statistic - omega) / (V + self.spread)


class LinearField(LinearScores):
    """One number a sample, with noise of variance Δ; its field has variance V, not 2V."""

    tokens: int = eqx.field(static=True, default=1, kw_only=True)
    weight: ClassVar[float] = 0.5
    measurements: ClassVar[int] = 1

    @property
    def spread(self) -> Array:
        """Δ."""
        return self.noise


class SoftmaxScores(AbstractScores):
    """Rows of the softmax of β h, noiseless."""

    beta: Array

    @property
    def measurements(self) -> int:
        """M = T² + T - 2: all of h but its mean, an off-diagonal entry counting twice."""
        return self.tokens**2 + self.tokens - 2

    def link(self, fields: Array) -> Array:
        """softmax(β h), row by row."""
        return jax.nn.softmax(self.beta * fields.reshape(self.tokens, self.tokens), axis=-1)

    def check_labels(self, labels: Array) -> None:
        """Check that rows are positive numbers of sum one; warn if they are float32."""
        allowed = "positive numbers (softmax weights must not underflow to zero)"
        check(jnp.all(labels > 0.0), "labels", labels, allowed)
        gap = jnp.max(jnp.abs(jnp.sum(labels, axis=-1) - 1.0))
        check(gap <= 1e-4, "labels", labels, "rows that sum to one")
        # logarithms of small probabilities amplify rounding
        if labels.dtype != jnp.float64:
            message = "softmax labels in float32 give scores with errors of about 1e-7/beta."
            warnings.warn(message, stacklevel=3)

    def statistic(self, labels: Array) -> Array:
        """Solve for P h (.., T, T) from y (.., T, T): log y/β = h - (a constant a row)."""
        L = jnp.log(labels.astype(theory_dtype())) / self.beta
        # a softmax forgets a constant of each row, which the symmetry of h gives back
        rows = jnp.mean(jnp.swapaxes(L, -1, -2) - L, axis=-1)  # u_a = mean_b (L_ba - L_ab)
        h = L + rows[..., :, None]
        return centred(symmetric(h))

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ = (P h - P ω)/V."""
        return (statistic - centred(omega)) / V


def centred(m: Array) -> Array:
    """P m = m - mean(m) 1 1ᵀ."""
    return m - jnp.mean(m, axis=(-2, -1), keepdims=True)


# Hardmax

# the table of u f_1 errs by less than 1e-9, against 160² nodes
_TABLE_ORDER = 16  # order of its Chebyshev series
_TABLE_NODES = 64  # nodes on each axis of the integral at its points


class HardmaxScores(AbstractScores):
    """Each token points at the largest of its scores; the posterior is known for two tokens.

    Relative error of f below 1e-9 (against 160² nodes, 1 - x from 1e-6 to 1).
    """

    tokens: int = eqx.field(static=True, default=2)
    measurements: ClassVar[int] = 0  # a label fixes signs, no numbers
    pathwise: ClassVar[property] = property(lambda self: False)  # labels jump

    @property
    def noiseless(self) -> Array:
        """False: labels that jump fix no combination, and V falls with α² only."""
        return jnp.asarray(False)

    def link(self, fields: Array) -> Array:
        """Point each token at the largest score of its row."""
        return hardmax(fields.reshape(self.tokens, self.tokens))

    def check_labels(self, labels: Array) -> None:
        """Check that rows have a single one."""
        binary = jnp.all((labels == 0.0) | (labels == 1.0))
        ones = binary & jnp.all(jnp.sum(labels, axis=-1) == 1.0)
        check(ones, "labels", labels, "rows with one entry 1 and zeros")

    def statistic(self, labels: Array) -> Array:
        """Return s (.., 2), 1 where a token points at itself, else -1."""
        return 2.0 * jnp.diagonal(labels, axis1=-2, axis2=-1).astype(theory_dtype()) - 1.0

    def mean_log_partition(self, q: Array, V: Array) -> Array:
        """E Σ_y P_y log P_y."""
        integral = np.polynomial.chebyshev.chebint(_hardmax_table(), lbnd=-1.0)
        series = np.polynomial.chebyshev.chebval(2.0 * _unknown(q, V) - 1.0, integral)
        return -0.25 * jnp.asarray(series)

    def information(self, q: Array, V: Array) -> Array:
        """f(q)."""
        u = _unknown(q, V)
        # NumPy's Chebyshev series are products and sums, which JAX arrays take as well
        series = np.polynomial.chebyshev.chebval(2.0 * u - 1.0, _hardmax_table())
        return jnp.asarray(series) / (u * (q + V))

    def _log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log P_y (N,)."""
        return self._pair(statistic, omega, V)[0]

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ (.., 2, 2), from the `statistic` and ω (.., 2, 2)."""
        sigma = jnp.sqrt(3.0 * V)
        _, *slopes = self._pair(statistic, omega, V)
        g, h = (statistic[..., i] * slope / sigma for i, slope in enumerate(slopes))
        first = jnp.stack([2.0 * g, -(g + h)], -1)
        return jnp.stack([first, jnp.stack([-(g + h), 2.0 * h], -1)], -2)

    def _pair(self, statistic: Array, omega: Array, V: Array) -> tuple[Array, Array, Array]:
        """log P_y, and its slopes in the two signs' fields over their standard deviation."""
        one, two = statistic[..., 0], statistic[..., 1]
        fields = jnp.diagonal(omega, axis1=-2, axis2=-1) - omega[..., :1, 1]
        x, y = jnp.moveaxis(statistic * fields / jnp.sqrt(3.0 * V), -1, 0)
        return _gaussian_pair(x, y, one * two / 3.0)


def _unknown(q: Array, V: Array) -> Array:
    """u = √(V/(q + V))."""
    # rounding leaves V slightly below zero near q = Q_0
    return jnp.sqrt(jnp.clip(V / (q + V), 0.0, 1.0))


@jnp.vectorize
def _gaussian_pair(one: Array, two: Array, c: Array) -> tuple[Array, Array, Array]:
    """log Φ₂(x_1, x_2; c), and its derivatives in x_1 and x_2, far in the tails too."""
    log_mass, slopes = jax.value_and_grad(log_quadrant, argnums=(0, 1))(one, two, c)
    return log_mass, *slopes


def sign_information() -> float:
    """J = ∫ φ²/(Φ(1 - Φ)) = 1.806: the Fisher information of the sign of x + noise about x."""
    from scipy.special import ndtr  # here: importing it takes longer than the sum

    x, weights = legendre_panel(200, -8.0, 8.0)
    return float(np.sum(weights * np.exp(-(x**2)) / (2.0 * np.pi * ndtr(x) * ndtr(-x))))


@functools.lru_cache(maxsize=1)
def _hardmax_table() -> np.ndarray:
    """Chebyshev coefficients in 2u - 1 of u f_1(1 - u²), u in [0, 1], once in a process. The limit
    at u = 0 is 12 J/√(18π), one of the two signs being known there [theory: attention-indexed,
    Eq. (22)]."""
    points = np.cos(np.pi * np.arange(_TABLE_ORDER + 1) / _TABLE_ORDER)
    u = 0.5 * (1.0 + points)
    with jax.ensure_compile_time_eval():
        V = jnp.asarray(u[:-1] ** 2)
        values = u[:-1] * np.asarray(lax.map(lambda v: hardmax_response(1.0 - v, v), V))
    values = np.append(values, 12.0 * sign_information() / np.sqrt(18.0 * np.pi))
    return np.polynomial.chebyshev.chebfit(points, values, _TABLE_ORDER)


@jax.jit
def hardmax_response(q: Array, V: Array) -> Array:
    """f = 2 E_w Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2), by Gauss-Legendre nodes in t,
    x_i = s_i w_i/σ = sinh(t_i).

    x ~ N(0, (q/V) [[1, c], [c, 1]]), c = s_1 s_2/3: symmetric in x_1 and x_2, and s = (1, ±1) stand
    for all four.
    """
    q, V = (jnp.asarray(x, theory_dtype()) for x in (q, V))
    nodes, weights = (jnp.asarray(x) for x in legendre(_TABLE_NODES))
    high = jnp.arcsinh(8.0 * jnp.sqrt(q / V))
    low = -jnp.minimum(high, jnp.arcsinh(8.5))  # below that P_s is less than 1e-16
    t = 0.5 * (low + high) + 0.5 * (high - low) * nodes
    points = jnp.sinh(t)
    measure = 0.5 * (high - low) * weights * jnp.cosh(t)
    i, j = np.triu_indices(_TABLE_NODES)
    x, y = points[i], points[j]
    weight = measure[i] * measure[j] * np.where(i == j, 1.0, 2.0)
    sign = np.array([[1.0], [-1.0]])  # both in one call: it takes long to compile
    c = sign / 3.0
    ratio = jnp.where(q > 0.0, q / V, 1.0)
    exponent = -0.5 * (x**2 + y**2 - 2.0 * c * x * y) / ((1.0 - c**2) * ratio)
    weight = weight * jnp.exp(exponent) / (2.0 * np.pi * ratio * np.sqrt(1.0 - c**2))
    weight = jnp.where(q > 0.0, weight, 1.0 / len(i))  # q = 0: all points are at x = 0
    log_p, g, h = _gaussian_pair(x, y, c)
    squares = 3.0 * g**2 + 3.0 * h**2 + 2.0 * sign * g * h
    return 4.0 * jnp.sum(weight * jnp.exp(log_p) * squares) / (3.0 * V)
