r"""The channel of hardmax attention: each token points at the largest score of its row.

Equations here [theory: attention-indexed, Eqs. (15) to (24)]. T = 2: two signs s of
u = (h_11 - h_12, h_22 - h_12), whose covariance is [[3, 1], [1, 3]] per unit of variance,

    P_s(w) = Φ₂(s_1 w_1/σ, s_2 w_2/σ; s_1 s_2/3),  σ² = 3V,  g = ∂ log P_s/∂w
    Γ_11 = 2 g_1,  Γ_22 = 2 g_2,  Γ_12 = -(g_1 + g_2)
    f = 2 E Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2)

T >= 3: Γ by refined integrals (hardmax_posterior.py), f by Monte-Carlo. As a function of
x = q/(q + V) alone, f(q) = f_1(x)/(q + V), and u f_1 is a polynomial in u = √(1 - x), made once in
a process: Ψ = -½ ∫_0^u (u f_1) du.
"""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.attention_link import hardmax
from jaxsmi.channels.base import Posterior
from jaxsmi.channels.hardmax_posterior import TOLERANCE, hardmax_moments, possible
from jaxsmi.channels.matrix_scores import AbstractScores
from jaxsmi.channels.posterior import Key
from jaxsmi.channels.signs import log_quadrant
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.numerics.nets import randomised_gaussians
from jaxsmi.numerics.quadrature import clenshaw, legendre, legendre_panel


class HardmaxScores(AbstractScores):
    """Each token points at the largest of its scores (module docstring).

    Relative error of f for T = 2 below 1e-9 (against 160² nodes, 1 - x from 1e-6 to 1); for T >= 3
    see `uncertainty`.
    """

    tokens: int = eqx.field(static=True, default=2)

    @property
    def pathwise(self) -> bool:
        """Labels jump."""
        return False

    @property
    def noiseless(self) -> Array:
        """Never: labels that jump fix no combination, and V falls with α² only."""
        return jnp.asarray(False)

    @property
    def measurements(self) -> int:
        """None: a label fixes signs, no numbers."""
        return 0

    def link(self, fields: Array) -> Array:
        """Each token points at the largest score of its row."""
        return hardmax(fields.reshape(self.tokens, self.tokens))

    def check_labels(self, labels: Array) -> None:
        """Rows with a single one, of some symmetric scores."""
        binary = jnp.all((labels == 0.0) | (labels == 1.0))
        ones = binary & jnp.all(jnp.sum(labels, axis=-1) == 1.0)
        check(ones, "labels", labels, "rows of zeros with a single one")
        allowed = "those of symmetric scores: no tokens that point in a circle"
        check(jnp.all(possible(jnp.argmax(labels, axis=-1))), "labels", labels, allowed)

    def statistic(self, labels: Array) -> Array:
        """Of two tokens s (.., 2), 1 where one points at itself, else -1; of more the token that
        each points at (.., T)."""
        if self.tokens > 2:
            return jnp.argmax(labels, axis=-1)
        return 2.0 * jnp.diagonal(labels, axis1=-2, axis2=-1).astype(theory_dtype()) - 1.0

    @property
    def table(self) -> np.ndarray:
        """Chebyshev coefficients in 2u - 1 of u f_1(1 - u²), u in [0, 1], from each independent
        Monte-Carlo replica (R, n); for T = 2 exact, (1, n)."""
        return _exact_table() if self.tokens == 2 else sampled_table(self.tokens)

    def mean_log_partition(self, q: Array, V: Array) -> Array:
        """E Σ_y P_y log P_y."""
        integral = np.polynomial.chebyshev.chebint(self.table.mean(0), lbnd=-1.0)
        return -0.25 * clenshaw(integral, 2.0 * _unknown(q, V) - 1.0)

    def information(self, q: Array, V: Array) -> Array:
        """f(q)."""
        u = _unknown(q, V)
        return clenshaw(self.table.mean(0), 2.0 * u - 1.0) / (u * (q + V))

    def uncertainty(self, q: Array, V: Array) -> Array | None:
        """Relative standard error of f, from independent Monte-Carlo replicas of T >= 3 tokens."""
        if self.tokens == 2:
            return None
        each = jnp.stack([clenshaw(one, 2.0 * _unknown(q, V) - 1.0) for one in self.table])
        return jnp.std(each, axis=0, ddof=1) / np.sqrt(len(each)) / jnp.mean(each, axis=0)

    @property
    def tolerance(self) -> Array:
        """Of the integrals of three tokens and more."""
        return jnp.asarray(TOLERANCE if self.tokens > 2 else jnp.inf)

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Γ as the engine's fields, of three tokens and more with its error."""
        if self.tokens == 2:
            return super().respond(statistic, omega, V, key)
        scores = omega.reshape(-1, self.tokens, self.tokens)
        moments = hardmax_moments(statistic, scores, V[0, 0])
        nan = jnp.full(moments.error.shape, jnp.nan, moments.g.dtype)
        g = moments.g.reshape(omega.shape)
        return Posterior(moments.log_mass, g, nan, moments.ess, moments.error, nan)

    def gamma(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Γ (.., 2, 2) of two tokens, from the `statistic` and ω (.., 2, 2)."""
        one = statistic[..., 0]
        two = statistic[..., 1]
        sigma = jnp.sqrt(3.0 * V)
        x, y = (s * (omega[..., i, i] - omega[..., 0, 1]) / sigma for i, s in enumerate((one, two)))
        _, g, h = _gaussian_pair(x, y, one * two / 3.0)
        g = one * g / sigma
        h = two * h / sigma
        first = jnp.stack([2.0 * g, -(g + h)], -1)
        return jnp.stack([first, jnp.stack([-(g + h), 2.0 * h], -1)], -2)


def _unknown(q: Array, V: Array) -> Array:
    """u = √(V/(q + V))."""
    # rounding leaves V slightly below zero near q = Q_0
    return jnp.sqrt(jnp.clip(V / (q + V), 0.0, 1.0))


@jnp.vectorize
def _gaussian_pair(one: Array, two: Array, c: Array) -> tuple[Array, Array, Array]:
    """log Φ₂(x_1, x_2; c), and its derivatives in x_1 and x_2, far in the tails too:
    ∂_1 Φ₂ = φ(x_1) Φ((x_2 - c x_1)/√(1 - c²))."""
    log_mass = log_quadrant(one, two, c)

    def slope(a: Array, b: Array) -> Array:
        edge = log_ndtr((b - c * a) / jnp.sqrt(1.0 - c**2))
        log_edge = -0.5 * a**2 - 0.5 * np.log(2 * np.pi) + edge
        return jnp.exp(log_edge - log_mass)

    return log_mass, slope(one, two), slope(two, one)


def sign_information() -> float:
    """K = ∫ φ²/(Φ(1 - Φ)) = 1.806: the Fisher information of the sign of x + noise about x."""
    from scipy.special import ndtr  # here: importing it takes longer than the sum

    x, weights = legendre_panel(200, -8.0, 8.0)
    return float(np.sum(weights * np.exp(-(x**2)) / (2.0 * np.pi * ndtr(x) * ndtr(-x))))


# the table of u f_1 errs by less than 1e-9, against 160² nodes
_ORDER = 16  # of its Chebyshev series
_NODES = 64  # of each axis of the integral at its points


@functools.lru_cache(maxsize=1)
def _exact_table() -> np.ndarray:
    """Two tokens, exact, once in a process. The limit at u = 0 is 12 K/√(18π), one of the two signs
    being known there [theory: attention-indexed, Eq. (22)]."""
    points = np.cos(np.pi * np.arange(_ORDER + 1) / _ORDER)
    u = 0.5 * (1.0 + points)
    with jax.ensure_compile_time_eval():
        V = jnp.asarray(u[:-1] ** 2)
        values = u[:-1] * np.asarray(lax.map(lambda v: hardmax_response(1.0 - v, v), V))
    values = np.append(values, 12.0 * sign_information() / np.sqrt(18.0 * np.pi))
    return np.polynomial.chebyshev.chebfit(points, values, _ORDER)[None]


@jax.jit
def hardmax_response(q: Array, V: Array) -> Array:
    """f = 2 E_w Σ_s P_s (3 g_1² + 3 g_2² + 2 g_1 g_2) of two tokens, by Gauss-Legendre nodes in t,
    x_i = s_i w_i/σ = sinh(t_i).

    x ~ N(0, (q/V) [[1, c], [c, 1]]), c = s_1 s_2/3: symmetric in x_1 and x_2, and s = (1, ±1) stand
    for all four.
    """
    q = jnp.asarray(q, theory_dtype())
    V = jnp.asarray(V, theory_dtype())
    nodes, weights = (jnp.asarray(x) for x in legendre(_NODES))
    high = jnp.arcsinh(8.0 * jnp.sqrt(q / V))
    low = -jnp.minimum(high, jnp.arcsinh(8.5))  # below that P_s is less than 1e-16
    t = 0.5 * (low + high) + 0.5 * (high - low) * nodes
    points = jnp.sinh(t)
    measure = 0.5 * (high - low) * weights * jnp.cosh(t)
    i, j = np.triu_indices(_NODES)
    x = points[i]
    y = points[j]
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


# Three tokens and more

# seconds for T = 3, minutes for T = 5; a spread of eight replicas is an error bar to a quarter
_REPLICAS = 8
_SAMPLED_ORDER = 4  # of the polynomial through eight noisy points (empirical)
# u: below, few labels are uncertain; u f_1 is continued there as a polynomial
_POINTS = np.linspace(0.1, 1.0, 8)


@functools.lru_cache(maxsize=4)
def sampled_table(tokens: int) -> np.ndarray:
    """u f_1 of T tokens, by `sampled_response` at eight u; seconds for T = 3, minutes for T = 5."""
    with jax.ensure_compile_time_eval():
        each = [np.asarray(sampled_response(tokens, 1.0 - u**2, u**2)) for u in _POINTS]
        values = np.stack(each)  # (points, replicas)
    values = _POINTS[:, None] * values
    weights = np.sqrt(_REPLICAS) / np.std(values, axis=1, ddof=1)
    # at u = 1, ω = 0, the error is too small to be true
    weights = np.minimum(weights, 1e3 / np.abs(values.mean(1)))
    return np.polynomial.chebyshev.chebfit(2.0 * _POINTS - 1.0, values, _SAMPLED_ORDER, w=weights).T


@functools.partial(jax.jit, static_argnums=0)
def sampled_response(tokens: int, q: Array, V: Array) -> Array:
    """f of T tokens at q + V = 1 from independent replicas (R,), by Monte-Carlo:
    E_ω Σ_y P_y ‖E[Γ|y, ω]‖²."""
    T = tokens
    pairs = T * (T - 1) // 2
    # labels grow as 2^T, and each needs several draws: more draws at fewer ω for more tokens
    count = max(512 // 4 ** max(T - 3, 0), 8)
    draws = 512 * 2 ** max(T - 3, 0)
    key, points_key = jax.random.split(jax.random.key(tokens))
    points = randomised_gaussians(points_key, count, _REPLICAS, T + pairs)
    points = points.reshape(_REPLICAS * count, -1)
    samples = (points, jax.random.split(key, _REPLICAS * count))
    one = lambda sample: _squared_mean(T, draws, q, V, *sample)
    return jnp.mean(lax.map(one, samples, batch_size=16).reshape(_REPLICAS, count), axis=1)


def _squared_mean(T: int, draws: int, q: Array, V: Array, point: Array, key: PRNGKeyArray) -> Array:
    """Σ_y P_y ‖E[Γ|y, ω]‖² at one ω, from standard normals `point` (T + T(T-1)/2,).

    Given the scores off the diagonal, row a points at itself with probability Φ(z_a),
    z_a = (ω_aa - max_b h_ab)/√(2V), else at that b, and the mean of h_aa is known: only the
    off-diagonal ones are drawn, K for each ω, and each draw counts for all 2^T labels it may have.
    P ‖mean‖² by (|Σ s|² - Σ |s|²)/((Σ w)² - Σ w²); what is left of a bias in 1/K is removed by
    halves: 2 (of all draws) - mean (of the two halves).
    """
    K = draws
    pairs = np.triu_indices(T, 1)
    # does a point at itself?
    choices = np.stack(np.meshgrid(*[[0, 1]] * T, indexing="ij"), -1).reshape(-1, T).astype(bool)
    diagonal = np.sqrt(2.0) * jnp.sqrt(q) * point[:T]
    off = jnp.sqrt(q) * point[T:]
    zeta = jax.random.normal(key, (K, len(pairs[0])))
    full = jnp.full((K, T, T), -jnp.inf)
    full = full.at[:, pairs[0], pairs[1]].set(off + jnp.sqrt(V) * zeta)
    full = jnp.maximum(full, jnp.swapaxes(full, 1, 2))
    z = (diagonal - jnp.max(full, axis=-1)) / jnp.sqrt(2.0 * V)  # (K, T)
    log_in = log_ndtr(z)
    log_out = log_ndtr(-z)
    log_edge = -0.5 * z**2 - 0.5 * np.log(2.0 * np.pi)
    mean_in = jnp.exp(log_edge - log_in)
    mean_out = -jnp.exp(log_edge - log_out)
    each = jnp.where(choices, log_in[:, None], log_out[:, None])
    weight = jnp.exp(jnp.sum(each, axis=-1))  # (K, 2^T)
    # of (h_aa - ω_aa)/√V
    means = np.sqrt(2.0) * jnp.where(choices, mean_in[:, None], mean_out[:, None])
    target = jnp.where(choices, np.arange(T), jnp.argmax(full, axis=-1)[:, None])
    label = jnp.sum(target * T ** np.arange(T), axis=-1).ravel()
    rest = np.sqrt(2.0) * jnp.broadcast_to(zeta[:, None], (*weight.shape, zeta.shape[1]))
    vectors = jnp.concatenate([means, rest], -1)
    vectors = (weight[..., None] * vectors).reshape(-1, vectors.shape[-1])
    weight = weight.ravel()

    squares = jnp.stack([weight, weight**2, jnp.sum(vectors**2, axis=-1)], axis=-1)
    half = jnp.repeat(jnp.arange(K) % 2, 2**T)
    values = jnp.concatenate([squares, vectors], -1)
    sums = jax.ops.segment_sum(values, label + half * T**T, 2 * T**T).reshape(2, T**T, -1)

    def estimate(sums: Array, draws: float) -> Array:
        mass = sums[:, 0]
        below = mass**2 - sums[:, 1]
        # (Σ w)² - Σ w² vanishes where one draw is all there is of a label
        several = below > 1e-12 * mass**2
        above = jnp.sum(sums[:, 3:] ** 2, axis=-1) - sums[:, 2]
        each = jnp.where(several, mass / draws * above / jnp.where(several, below, 1.0), 0.0)
        return jnp.sum(each) / V

    halves = estimate(sums[0], K / 2) + estimate(sums[1], K / 2)
    return 2.0 * estimate(sums[0] + sums[1], K) - 0.5 * halves
