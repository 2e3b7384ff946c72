r"""Noiseless channels of products of fields (M = 1): sums over the signs that a label leaves open.

Equations here (ω, V as in channels/base.py; N_k the k-dimensional Gaussian density of mean ω and
covariance V):

* product, y = z_1 z_2. With z = (s√|y| e^x, s sign(y) √|y| e^{-x}), s = ±1, the measure dz_1/|z_1|
  is dx, and the integral is one-dimensional, refined sample by sample:

      Z_out = Σ_s ∫ dx N_2(z(s, x); ω, V)

* square plus parity, y = z_1² + sign(z_1 z_2 z_3): p = sign(z_1 z_2 z_3) = ±1 and
  z_1 = s√(y - p) remain open,

      Z_out = Σ_{p, s} N_1(z_1)/(2√(y - p)) P(sign(z_2 z_3) = p s | z_1),   p <= y

Source: [TDDZLK24]; [theory: multi-index, Eqs. (26) to (28)].
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array

from jaxsmi.channels.base import ClosedFormChannel, check_label_shape
from jaxsmi.channels.fibres import Fibre, FibreChannel, whitened_response
from jaxsmi.channels.signs import log_parity
from jaxsmi.core.arrays import clamp_to_tiny
from jaxsmi.core.validate import check
from jaxsmi.numerics.refining import Budget, Integral
from jaxsmi.numerics.refining_rules import RADIUS, WIDE_RADIUS, no_weight
from jaxsmi.numerics.refining_sums import Branch

__all__ = ["ProductChannel", "SquarePlusSignParityChannel"]

# standard deviations from ω that the curve z_1 z_2 = y is followed to: e^{-72} is left out
_REACH = 12.0


class ProductChannel(FibreChannel):
    """y = z_1 z_2 (P = 2, M = 1), any V: a hyperbola in the plane of the fields, integrated along
    its two branches.

    Trapezoidal sums in x = log|z_1| - log√|y| converge faster than any power; `budget` bounds error
    and nodes.
    """

    budget: Budget
    indices: int = eqx.field(static=True, default=2, kw_only=True)
    tokens: int = eqx.field(static=True, default=1, kw_only=True)

    @property
    def constraints(self) -> int:
        """A label fixes one combination of the fields."""
        return 1

    @property
    def open_variables(self) -> int:
        """The place along the hyperbola."""
        return 1

    def link(self, fields: Array) -> Array:
        """z_1 z_2."""
        return fields[0, 0] * fields[1, 0]

    def check_labels(self, labels: Array) -> None:
        """Finite numbers, shape (N,)."""
        check_label_shape(labels, ())

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """From y (N,)."""
        L = root
        log_root = 0.5 * jnp.log(clamp_to_tiny(jnp.abs(statistic)))
        side = jnp.where(statistic >= 0.0, 1.0, -1.0)
        V = root @ root.T
        boxes = [_interval(sign, side, omega[:, :, 0], log_root, V) for sign in (1.0, -1.0)]

        def integrand(
            block: tuple[Array, Array, Array, list], t: Array
        ) -> tuple[Array, list[Branch]]:
            side, w, log_root, boxes = block
            branches = []
            for sign, (centre, scale) in zip((1.0, -1.0), boxes, strict=True):
                x = centre[:, None] + scale[:, None] * t[:, 0]
                first = (sign * jnp.exp(log_root[:, None] + x) - w[:, 0]) / L[0, 0]
                second = sign * side[:, None] * jnp.exp(log_root[:, None] - x)
                second = (second - w[:, 1] - L[1, 0] * first) / L[1, 1]
                # dx = scale dt; out of the box exponentials overflow, and have no weight
                outside = ~(jnp.abs(first) + jnp.abs(second) < 1e100)
                first, second = (jnp.where(outside, 0.0, r) for r in (first, second))
                ell = -0.5 * (first**2 + second**2) + jnp.log(scale)[:, None]
                ell = jnp.where(outside, no_weight(ell.dtype), ell)
                branches.append(Branch(ell, [first, second]))
            # the integral is over x, without a Gaussian: dt in place of the rule's φ(t) dt (nodes
            # beyond its widest box, t > 9, have no weight)
            square = jnp.minimum(t[:, 0] ** 2, WIDE_RADIUS**2)
            return jnp.sqrt(2 * jnp.pi) * jnp.exp(0.5 * square), branches

        integral = Integral(
            integrand,
            (side, omega, log_root, boxes),
            whitened_response(L, 1),
            inner=1,
            outer=2,
            shared=0,
        )
        return Fibre(integral, jnp.log(2 * jnp.pi * L[0, 0] * L[1, 1]))


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
        return [jnp.log(clamp_to_tiny(end)) - log_root for end in ends]

    low = logs(-1.0)
    high = logs(1.0)
    first = jnp.maximum(low[0], -high[1])
    last = jnp.minimum(high[0], -low[1])
    return 0.5 * (first + last), jnp.where(last > first, 0.5 * (last - first), 1.0) / RADIUS


class SquarePlusSignParityChannel(ClosedFormChannel):
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
