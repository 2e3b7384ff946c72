r"""Channels of signs: closed forms, and one-dimensional integrals to rounding.

Equations here (ω, V as in channels/base.py; φ, Φ the Gaussian density and distribution function,
ς(x) = 1/(1 + e^{-x})):

* sign, y = sign(z + √Δ ξ):                  Z_out = Φ(y ω/√(V + Δ))
  flipped with probability p:                Z_out = (1 - p) Φ(x) + p Φ(-x),  x = y ω/√(V + Δ)
* logistic, P(y|z) = ς(βyz):                 Z_out = ∫ Dt ς(β(yω + √V t))
* parity of two signs, y = sign(z_1 z_2):    Z_out = P(z_1 z_2 y > 0), each quadrant an integral
  over its correlation (Plackett's identity)
* parity of three, y = sign(z_1 z_2 z_3):    Z_out = (1 + y T)/2, T = E s_1 s_2 s_3, by Plackett's
  identity ∂T/∂V_ij = 4 N_2(z_i = z_j = 0) E[s_k | z_i = z_j = 0], integrated along
  V(λ) = diag V + λ (V - diag V):

      T = Π_i erf(ω_i/√(2V_ii)) + ∫_0^1 dλ Σ_{i<j} V_ij ∂T/∂V_ij(V(λ))

* square plus parity, y = z_1² + sign(z_1 z_2 z_3): p = sign(z_1 z_2 z_3) = ±1 and
  z_1 = s√(y - p), s = ±1, remain open,

      Z_out = Σ_{p, s} N(z_1; ω_1, V_11)/(2√(y - p)) P(sign(z_2 z_3) = p s | z_1),   p <= y

Source: [TCDKZ25], [TDDZLK24], [BKMMZ19], [P54]; [theory: multi-index, Eqs. (23), (25), (27) to
(29), (34)].
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import erf, log_ndtr, logsumexp, ndtr
from jaxtyping import Array

from jaxsmi.channels.base import ClosedFormChannel, check_label_shape, check_outcomes
from jaxsmi.core.validate import check
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.refining_rules import no_weight
from jaxsmi.numerics.roots import bisect

_QUADRANT_NODES, _QUADRANT_WEIGHTS = legendre(40)
# fall of a log-integrand below which it is rounding, and the t where 1/cosh t has fallen by it
_FALL, _REACH = 40.0, 45.0
_LOG_2 = float(np.log(2.0))
_PLACKETT_NODES, _PLACKETT_WEIGHTS = legendre(48)

# The logistic integral is a trapezoidal sum around the largest term. Its error is e^{-2π²/(βh√V)},
# h the step: rounding up to β√V = 10, of derivatives too; 5e-9 at 20, of g 2e-7 and of ∂g 8e-5
_LOGISTIC_STEP = 0.05
_LOGISTIC_NODES = _LOGISTIC_STEP * np.arange(-180, 181)  # 9 standard deviations on either side
_HALVINGS = 20


class AbstractSignsChannel(ClosedFormChannel):
    """Labels ±1."""

    @property
    def outcomes(self) -> Array:
        """+1 and -1."""
        return jnp.array([1.0, -1.0])

    def link(self, fields: Array) -> Array:
        """Return the sign of the product of the fields, with sign 0 = 1."""
        return jnp.where(jnp.prod(fields[:, 0]) >= 0.0, 1.0, -1.0)

    def check_labels(self, labels: Array) -> None:
        """Check that labels are ±1, shape (N,)."""
        check_label_shape(labels, ())
        check_outcomes(labels, (1.0, -1.0), jnp.abs(labels) == 1.0)


class SignChannel(AbstractSignsChannel):
    """y = sign(z + √Δ ξ) (P = M = 1), or the opposite with probability p.

    Args:
        noise: Δ; if infinite, labels are independent of the fields. None: no noise.
        flip: p in (0, 1/2]. None: no label is flipped.
    """

    noise: Array | None = None
    flip: Array | None = None
    indices: int = eqx.field(static=True, default=1)
    tokens: int = eqx.field(static=True, default=1)

    @property
    def noise_size(self) -> int:
        """One normal if there is noise, one more for flips."""
        return (self.noise is not None) + (self.flip is not None)

    def label(self, fields: Array, noise: Array) -> Array:
        """Return sign(z + √Δ ξ), or the opposite if Φ(ξ') < p."""
        if self.noise is not None:
            fields = fields + jnp.sqrt(self.noise) * noise[0]
        clean = self.link(fields)
        if self.flip is None:
            return clean
        return jnp.where(ndtr(noise[-1]) < self.flip, -clean, clean)

    @property
    def sharp(self) -> Array:
        """True without noise inside the sign: a flip keeps its jump."""
        return jnp.asarray(self.noise is None)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Φ(x), or log[(1 - p) Φ(x) + p Φ(-x)], x = y ω/√(V + Δ)."""
        variance = V[0, 0] if self.noise is None else V[0, 0] + self.noise
        x = statistic * omega[0, 0] / jnp.sqrt(variance)
        if self.flip is None:
            return log_ndtr(x)
        p = self.flip
        return jnp.logaddexp(jnp.log1p(-p) + log_ndtr(x), jnp.log(p) + log_ndtr(-x))


class LogisticChannel(AbstractSignsChannel):
    """P(y = ±1|z) = ς(βyz) (P = M = 1)."""

    beta: Array
    indices: int = eqx.field(static=True, default=1, kw_only=True)
    tokens: int = eqx.field(static=True, default=1, kw_only=True)

    @property
    def noise_size(self) -> int:
        """One normal ξ: Φ(ξ) is uniform."""
        return 1

    def label(self, fields: Array, noise: Array) -> Array:
        """Return +1 if Φ(ξ) < ς(βz), else -1."""
        return jnp.where(ndtr(noise[0]) < jax.nn.sigmoid(self.beta * fields[0, 0]), 1.0, -1.0)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Z_out."""
        w = self.beta * statistic * omega[0, 0]
        s = self.beta * jnp.sqrt(V[0, 0])
        at, width = jax.lax.stop_gradient((w, s))
        # the largest term: t = s ς(-(w + s t))
        rising = lambda t: t >= width * jax.nn.sigmoid(-(at + width * t))
        centre = bisect(rising, jnp.zeros_like(width), width, _HALVINGS)
        t = centre + jnp.asarray(_LOGISTIC_NODES)
        terms = -0.5 * t**2 + log_sigmoid(w + s * t)
        return logsumexp(terms) + np.log(_LOGISTIC_STEP / np.sqrt(2 * np.pi))


class SignProductChannel(AbstractSignsChannel):
    """y = sign(z_1 .. z_P) (P = 2 or 3, M = 1), any V.

    For three fields with V far from diagonal, labels of probability below 1e-15 lose their digits.
    """

    indices: int = eqx.field(static=True, default=2)
    tokens: int = eqx.field(static=True, default=1)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log P(z_1 .. z_P y > 0)."""
        if self.indices == 3:
            return log_parity(statistic, omega[:, 0], V)
        scale = jnp.sqrt(jnp.diagonal(V))
        a = omega[0, 0] / scale[0]
        b = statistic * omega[1, 0] / scale[1]
        rho = statistic * V[0, 1] / (scale[0] * scale[1])
        return jnp.logaddexp(*log_quadrants(a, b, rho))


class SquarePlusSignParityChannel(ClosedFormChannel):
    """y = z_1² + sign(z_1 z_2 z_3) (P = 3, M = 1), any V."""

    indices: int = eqx.field(static=True, default=3)
    tokens: int = eqx.field(static=True, default=1)

    @property
    def pathwise(self) -> bool:
        """False: labels jump."""
        return False

    def link(self, fields: Array) -> Array:
        """Return z_1² + sign(z_1 z_2 z_3), with sign 0 = 1."""
        z = fields[:, 0]
        return z[0] ** 2 + jnp.where(z[0] * z[1] * z[2] >= 0.0, 1.0, -1.0)

    def check_labels(self, labels: Array) -> None:
        """Check that labels are numbers >= -1, shape (N,)."""
        check_label_shape(labels, ())
        check(jnp.all(labels >= -1.0), "labels", labels, "numbers z_1² ± 1 >= -1")

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log of the sum over p and s."""
        w = omega[:, 0]
        v = V[0, 0]
        slope = V[1:, 0] / V[0, 0]
        conditional = V[1:, 1:] - jnp.outer(slope, V[0, 1:])
        terms = []
        for parity in (1.0, -1.0):
            square = statistic - parity
            # a positive number stands for a missing z_1: masked values need finite derivatives
            root = jnp.sqrt(jnp.where(square > 0.0, square, 1.0))
            for sign in (1.0, -1.0):
                d = sign * root - w[0]
                log_density = -0.5 * d * d / v - 0.5 * jnp.log(2 * jnp.pi * v) - jnp.log(2 * root)
                # a label fixes z_1 but for its sign: the other two are conditioned on it
                term = log_density + log_parity(parity * sign, w[1:] + slope * d, conditional)
                terms.append(jnp.where(square > 0.0, term, no_weight(term.dtype)))
        return logsumexp(jnp.stack(terms))


def log_quadrant(a: Array, b: Array, rho: Array) -> Array:
    """log P(x > -a, x' > -b) for standard Gaussians of correlation ρ."""
    return log_quadrants(a, b, rho)[0]


@jax.custom_jvp
def log_quadrants(a: Array, b: Array, rho: Array) -> Array:
    r"""log P(x > -a, x' > -b) and log P(x < -a, x' < -b) for standard Gaussians of correlation ρ.

    P grows with ρ by their density at (a, b), from max(0, Φ(a) - Φ(-b)) at ρ = -1, so that nothing
    cancels. With ρ = tanh t

        P = max(0, Φ(a) - Φ(-b)) + (1/2π) ∫_{-∞}^{artanh ρ} dt e^{-E(t)}/cosh t,
        E = ¼(a² + b²) + ⅛[(a - b)² e^{2t} + (a + b)² e^{-2t}]

    for the first, and for the second with -a and -b, of which E is the same. The logarithm of the
    integrand is concave and smooth on the scale one: bisection finds its mode and where it has
    fallen by e^{-40}; 40 Gauss-Legendre nodes on either side do the rest. Derivatives have closed
    forms (`_quadrant_tangents`).
    """
    across, along = 0.125 * (a - b) ** 2, 0.125 * (a + b) ** 2
    most = 1.0 - jnp.finfo(rho.dtype).eps
    end = jnp.arctanh(jnp.clip(rho, -most, most))

    def log_integrand(t: Array) -> Array:
        log_cosh = jnp.abs(t) + jnp.log1p(jnp.exp(-2.0 * jnp.abs(t))) - _LOG_2
        return -across * jnp.exp(2.0 * t) - along * jnp.exp(-2.0 * t) - log_cosh

    def slope(t: Array) -> Array:
        return 2.0 * (along * jnp.exp(-2.0 * t) - across * jnp.exp(2.0 * t)) - jnp.tanh(t)

    bound = jnp.full_like(end, 20.0)
    mode = jnp.minimum(bisect(lambda t: slope(t) <= 0.0, -bound, bound, 20), end)
    top = log_integrand(mode)
    above = lambda t: log_integrand(t) >= top - _FALL
    # concave: below its tangent
    reach = jnp.minimum(_REACH, _FALL / jnp.maximum(slope(mode), 1e-3))
    low = bisect(above, mode - reach, mode, 12)
    high = jnp.minimum(bisect(lambda t: ~above(t), mode, mode + _REACH, 12), end)
    centre = 0.5 * jnp.stack([mode + low, high + mode])[:, None]
    half = 0.5 * jnp.stack([mode - low, high - mode])[:, None]
    terms = jnp.exp(log_integrand(centre + half * jnp.asarray(_QUADRANT_NODES)) - top)
    integral = jnp.sum(half * jnp.asarray(_QUADRANT_WEIGHTS) * terms)
    grown = jnp.log(integral) + top - 0.25 * (a**2 + b**2) - np.log(2.0 * np.pi)
    # Φ(a) - Φ(-b) = Φ(b) - Φ(-a): the smaller of the two first keeps its digits
    both, other = jnp.stack([a, -a]), jnp.stack([b, -b])
    less, more = log_ndtr(jnp.minimum(both, other)), log_ndtr(-jnp.maximum(both, other))
    apart = both + other > 0.0
    rest = less + jnp.log(-jnp.expm1(jnp.where(apart, more - less, -1.0)))
    return jnp.logaddexp(grown, jnp.where(apart, rest, -jnp.inf))


@log_quadrants.defjvp
def _quadrant_tangents(
    point: tuple[Array, Array, Array], tangent: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
    """∂_a P = φ(a) Φ((b - ρa)/√(1-ρ²)), ∂_ρ P = N(a, b; ρ) (Plackett's identity), over P."""
    a, b, rho = point
    value = log_quadrants(a, b, rho)
    signs = jnp.asarray([1.0, -1.0], rho.dtype)
    root = jnp.sqrt(1.0 - rho**2)

    def edge(x: Array, other: Array) -> Array:
        log_density = -0.5 * x**2 - 0.5 * np.log(2 * np.pi)
        return signs * jnp.exp(log_density + log_ndtr(signs * (other - rho * x) / root) - value)

    joint = -0.5 * (a**2 - 2.0 * rho * a * b + b**2) / root**2 - jnp.log(2 * np.pi * root)
    da, db, drho = tangent
    return value, edge(a, b) * da + edge(b, a) * db + jnp.exp(joint - value) * drho


def log_parity(y: Array | float, w: Array, V: Array) -> Array:
    """log P(sign(z_1 .. z_k) = y), k = 2 or 3, z ~ N(w, V): Plackett's identity around independent
    fields."""
    scaled = w / jnp.sqrt(jnp.diagonal(V))
    # (1 + yΠe_i)/2 with e_i = s_i (1 - 2q_i): where the label disagrees with all signs,
    # -expm1(Σ log(1 - 2q_i))/2 keeps the digits of a small probability
    agrees = y * jnp.prod(jnp.where(scaled >= 0.0, 1.0, -1.0)) > 0.0
    tails = jnp.minimum(2.0 * ndtr(-jnp.abs(scaled)), 0.999)
    unlikely = -0.5 * jnp.expm1(jnp.sum(jnp.log1p(-tails)))
    plain = 0.5 * (1.0 + y * jnp.prod(erf(scaled / np.sqrt(2.0))))
    digits = jnp.where(agrees, 1.0 - unlikely, unlikely)
    independent = jnp.where(jnp.all(tails < 0.999), digits, plain)
    return jnp.log(jnp.maximum(independent + 0.5 * y * _correlations(w, V), 1e-100))


def _correlations(w: Array, V: Array) -> Array:
    """∫_0^1 dλ Σ_{i<j} 4 V_ij N_2(0; ω_ij, V_ij(λ)) E[s_k | z_i = z_j = 0] (k absent: 1)."""
    levels, weights = plackett_nodes()
    total = jnp.zeros_like(levels)
    for i, j, k in ((0, 1, 2), (0, 2, 1), (1, 2, 0)) if len(w) == 3 else ((0, 1, None),):
        density, mean, variance = pair_at_zero(w, V, levels, i, j, k)
        signs = 1.0 if k is None else erf(mean / jnp.sqrt(2.0 * variance))
        total = total + 4.0 * V[i, j] * density * signs
    return jnp.sum(weights * total)


def plackett_nodes() -> tuple[Array, Array]:
    """48 Gauss-Legendre nodes λ and weights on [0, 1], in 1 - √(1-λ): densities of two fields,
    which grow as (1 - λ²ρ²)^{-1/2}, are smooth there up to strong correlations."""
    rest = jnp.asarray(0.5 - 0.5 * _PLACKETT_NODES)
    return 1.0 - rest**2, jnp.asarray(_PLACKETT_WEIGHTS) * rest


def pair_at_zero(
    w: Array, V: Array, levels: Array, i: int, j: int, k: int | None
) -> tuple[Array, Array, Array]:
    """Density N_2(z_i = z_j = 0) under N(w, V(λ)), and mean and variance of z_k there (of no k: 0
    and 1), for each λ."""
    c = levels * V[i, j]
    det = V[i, i] * V[j, j] - c * c
    # inverse of the 2×2 block, times (ω_i, ω_j)
    x = (V[j, j] * w[i] - c * w[j]) / det
    y = (V[i, i] * w[j] - c * w[i]) / det
    density = jnp.exp(-0.5 * (w[i] * x + w[j] * y)) / (2 * jnp.pi * jnp.sqrt(det))
    if k is None:
        return density, jnp.zeros_like(det), jnp.ones_like(det)
    a, b = levels * V[i, k], levels * V[j, k]
    variance = V[k, k] - (a * a * V[j, j] - 2 * a * b * c + b * b * V[i, i]) / det
    return density, w[k] - a * x - b * y, variance
