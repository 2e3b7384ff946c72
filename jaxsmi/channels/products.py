r"""Noiseless channels of products of fields (M = 1): sums over the signs that a label leaves open.

Equations here (ω, V as in channels/base.py; N_k the k-dimensional Gaussian density of mean ω and
covariance V):

* product, y = z_1 z_2. With z = (s√|y| e^x, s sign(y) √|y| e^{-x}), s = ±1, the measure dz_1/|z_1|
  is dx, and the integral is one-dimensional, refined sample by sample:

      Z_out = Σ_s ∫ dx N_2(z(s, x); ω, V)

* square plus parity, y = z_1² + sign(z_1 z_2 z_3): p = sign(z_1 z_2 z_3) = ±1 and
  z_1 = s√(y - p) remain open,

      Z_out = Σ_{p, s} N_1(z_1)/(2√(y - p)) P(sign(z_2 z_3) = p s | z_1),   p <= y

* parity of three signs, y = sign(z_1 z_2 z_3): Z_out = (1 + y T)/2, T = E s_1 s_2 s_3, by
  Plackett's identity ∂T/∂V_ij = 4 N_2(z_i = z_j = 0) E[s_k | z_i = z_j = 0], integrated along
  V(λ) = diag V + λ (V - diag V):

      T = Π_i erf(ω_i/√(2V_ii)) + ∫_0^1 dλ Σ_{i<j} V_ij ∂T/∂V_ij(V(λ))

Source: [TDDZLK24], [P54]; [theory: multi-index, Eqs. (26) to (29)].
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf, logsumexp, ndtr
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import (
    ClosedFormChannel,
    Posterior,
    as_posterior,
    unwhiten,
)
from jaxsmi.channels.scalar import AbstractScalarChannel, AbstractSignsChannel, check_label_shape
from jaxsmi.core.arrays import off_zero
from jaxsmi.core.checks import check
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.refining import Budget, self_refining_moments
from jaxsmi.numerics.refining_rules import RADIUS, WIDE_RADIUS, no_weight

__all__ = ["ProductChannel", "SquarePlusSignParityChannel", "TripleSignChannel", "log_parity"]

_NODES, _WEIGHTS = legendre(48)
_REACH = 12.0  # standard deviations from ω that the curve z_1 z_2 = y is followed to


class ProductChannel(AbstractScalarChannel):
    """y = z_1 z_2 (P = 2, M = 1), any V: a hyperbola in the plane of the fields, integrated along
    its two branches.

    Trapezoidal sums in x = log|z_1| - log√|y| converge faster than any power; `budget` bounds error
    and nodes.
    """

    budget: Budget
    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    def __init__(self, budget: Budget):
        self.budget = budget
        self.indices = 2
        self.tokens = 1

    @property
    def constraints(self) -> int:
        """One combination of the fields is fixed by a label."""
        return 1

    def link(self, fields: Array) -> Array:
        """z_1 z_2."""
        return fields[0, 0] * fields[1, 0]

    def check_labels(self, labels: Array) -> None:
        """Finite numbers, shape (N,)."""
        check_label_shape(labels, ())

    @property
    def tolerance(self) -> Array:
        """The tolerance of the integral along the hyperbola."""
        return self.budget.tolerance

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Batch posterior from y (N,), omega (N, 2, 1), V (2, 2)."""
        del key
        L = jnp.linalg.cholesky(V)
        log_root = 0.5 * jnp.log(off_zero(jnp.abs(statistic)))
        sign_of_label = jnp.where(statistic >= 0.0, 1.0, -1.0)

        boxes = [
            _interval(sign, sign_of_label, omega[:, :, 0], log_root, V) for sign in (1.0, -1.0)
        ]

        def integrand(
            block: tuple[Array, Array, Array, list], t: Array
        ) -> tuple[Array, list[tuple[Array, list[Array]]]]:
            sign_of_label, w, log_root, boxes = block
            branches = []
            for sign, (centre, scale) in zip((1.0, -1.0), boxes, strict=True):
                x = centre[:, None] + scale[:, None] * t[:, 0]
                first = (sign * jnp.exp(log_root[:, None] + x) - w[:, 0]) / L[0, 0]
                second = sign * sign_of_label[:, None] * jnp.exp(log_root[:, None] - x)
                second = (second - w[:, 1] - L[1, 0] * first) / L[1, 1]
                # dx = scale dt; out of the box exponentials overflow, and have no weight
                outside = ~(jnp.abs(first) + jnp.abs(second) < 1e100)
                first = jnp.where(outside, 0.0, first)
                second = jnp.where(outside, 0.0, second)
                ell = -0.5 * (first**2 + second**2) + jnp.log(scale)[:, None]
                ell = jnp.where(outside, no_weight(ell.dtype), ell)
                branches.append((ell, [first, second]))
            # dt in place of the rule's φ(t) dt (nodes beyond its widest box, t > 9, have no weight)
            square = jnp.minimum(t[:, 0] ** 2, WIDE_RADIUS**2)
            return jnp.sqrt(2 * jnp.pi) * jnp.exp(0.5 * square), branches

        moments = self_refining_moments(
            integrand,
            (sign_of_label, omega, log_root, boxes),
            lambda mean, covariance: unwhiten(L, 1, mean[:, 1:], covariance[:, 1:, 1:]),
            inner=1,
            outer=2,
            budget=self.budget,
        )
        post = as_posterior(moments, omega.shape)
        log_norm = jnp.log(2 * jnp.pi * L[0, 0] * L[1, 1])
        return eqx.tree_at(lambda p: p.log_partition, post, post.log_partition - log_norm)


def _interval(
    sign: float, sign_of_label: Array, omega: Array, log_root: Array, V: Array
) -> tuple[Array, Array]:
    """Centre and half-width over 5.5 (the rule's box) of the x at which both fields of a branch lie
    within `_REACH` standard deviations of ω (N, 2)."""
    spread = _REACH * jnp.sqrt(jnp.diagonal(V))
    # where |z_1| and |z_2| are expected
    expected = [sign * omega[:, 0], sign * sign_of_label * omega[:, 1]]

    def logs(side: float) -> list[Array]:
        ends = [w + side * spread[i] for i, w in enumerate(expected)]
        return [jnp.log(off_zero(end)) - log_root for end in ends]

    low = logs(-1.0)
    high = logs(1.0)
    first = jnp.maximum(low[0], -high[1])
    last = jnp.minimum(high[0], -low[1])
    return 0.5 * (first + last), jnp.where(last > first, 0.5 * (last - first), 1.0) / RADIUS


class SquarePlusSignParityChannel(AbstractScalarChannel, ClosedFormChannel):
    """y = z_1² + sign(z_1 z_2 z_3) (P = 3, M = 1), any V."""

    indices: int = eqx.field(static=True, default=3)
    tokens: int = eqx.field(static=True, default=1)

    @property
    def smooth(self) -> bool:
        """Labels jump."""
        return False

    def link(self, fields: Array) -> Array:
        """z_1² + sign(z_1 z_2 z_3), with sign 0 = 1."""
        z = fields[:, 0]
        return z[0] ** 2 + jnp.where(z[0] * z[1] * z[2] >= 0.0, 1.0, -1.0)

    def check_labels(self, labels: Array) -> None:
        """Numbers >= -1, shape (N,)."""
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
            root = jnp.sqrt(jnp.where(square > 0.0, square, 1.0))
            for sign in (1.0, -1.0):
                d = sign * root - w[0]
                log_density = -0.5 * d * d / v - 0.5 * jnp.log(2 * jnp.pi * v) - jnp.log(2 * root)
                term = log_density + log_parity(parity * sign, w[1:] + slope * d, conditional)
                terms.append(jnp.where(square > 0.0, term, no_weight(term.dtype)))
        return logsumexp(jnp.stack(terms))


class TripleSignChannel(AbstractSignsChannel, ClosedFormChannel):
    """y = sign(z_1 z_2 z_3) (P = 3, M = 1), any V. Where V is far from diagonal, labels of a
    probability below 1e-15 lose their digits."""

    indices: int = eqx.field(static=True, default=3)
    tokens: int = eqx.field(static=True, default=1)

    def link(self, fields: Array) -> Array:
        """sign(z_1 z_2 z_3), with sign 0 = 1."""
        return jnp.where(jnp.prod(fields[:, 0]) >= 0.0, 1.0, -1.0)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log (1 + y T)/2."""
        return log_parity(statistic, omega[:, 0], V)


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
    """∫_0^1 dλ Σ_{i<j} 4 V_ij N_2(0; ω_ij, V_ij(λ)) E[s_k | z_i = z_j = 0], on 48 Gauss-Legendre
    nodes (k absent: 1).

    With λ = 1 - (1-μ)² the density, which grows as (1 - λρ²)^{-1/2}, is smooth in μ up to strong
    correlations.
    """
    rest = jnp.asarray(0.5 - 0.5 * _NODES)  # 1 - μ
    levels = 1.0 - rest**2
    weights = jnp.asarray(_WEIGHTS) * rest
    total = jnp.zeros_like(levels)
    for i, j, k in ((0, 1, 2), (0, 2, 1), (1, 2, 0)) if len(w) == 3 else ((0, 1, None),):
        c = levels * V[i, j]
        det = V[i, i] * V[j, j] - c * c
        # inverse of the 2×2 block, times (ω_i, ω_j)
        x = (V[j, j] * w[i] - c * w[j]) / det
        y = (V[i, i] * w[j] - c * w[i]) / det
        term = 4.0 * V[i, j] * jnp.exp(-0.5 * (w[i] * x + w[j] * y)) / (2 * jnp.pi * jnp.sqrt(det))
        if k is not None:
            a = levels * V[i, k]
            b = levels * V[j, k]
            variance = V[k, k] - (a * a * V[j, j] - 2 * a * b * c + b * b * V[i, i]) / det
            term = term * erf((w[k] - a * x - b * y) / jnp.sqrt(2.0 * variance))
        total = total + term
    return jnp.sum(weights * total)
