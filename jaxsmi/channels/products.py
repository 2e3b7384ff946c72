r"""Noiseless channels of products of fields (M = 1): sums over the signs that a label leaves open.

Equations here (ω, V as in channels/base.py; N_k the k-dimensional Gaussian density of mean ω and
covariance V):

* product, y = z_1 z_2. With z = (s√|y| e^x, s sign(y) √|y| e^{-x}), s = ±1, the measure dz_1/|z_1|
  is dx, and the integral is one-dimensional:

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

from jaxsmi.channels import orbits
from jaxsmi.channels.base import ClosedFormChannel, check_label_shape
from jaxsmi.channels.fibres import Fibre, FibreChannel, whitened_response
from jaxsmi.channels.signs import log_parity
from jaxsmi.core.arrays import clamp_to_tiny
from jaxsmi.core.validate import check
from jaxsmi.numerics.refining import Integral
from jaxsmi.numerics.refining_rules import no_weight
from jaxsmi.numerics.refining_sums import Branch


class ProductChannel(FibreChannel):
    """y = z_1 z_2 (P = 2, M = 1), any V: a hyperbola in the plane of the fields, integrated along
    its two branches (orbits.py); `budget` says which error counts as accurate.

    Of labels below 1e-12 in units of the fields the curve outgrows its nodes, as its error says.
    """

    indices: int = eqx.field(static=True, default=2, kw_only=True)
    tokens: int = eqx.field(static=True, default=1, kw_only=True)

    @property
    def constraints(self) -> int:
        """A label fixes one combination of the fields."""
        return 1

    @property
    def open_variables(self) -> int:
        """None: the place along the hyperbola has a rule of its own."""
        return 0

    def link(self, fields: Array) -> Array:
        """z_1 z_2."""
        return fields[0, 0] * fields[1, 0]

    def check_labels(self, labels: Array) -> None:
        """Finite numbers, shape (N,)."""
        check_label_shape(labels, ())

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """From y (N,)."""

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
            y, w = block
            # both fields of one size: then neither exponential overflows
            size = jnp.sqrt(clamp_to_tiny(jnp.abs(y)))[:, None]
            second = jnp.where(y >= 0.0, 1.0, -1.0)[:, None] * size
            fields = jnp.stack([size, second])[:, None]
            return jnp.ones((), w.dtype), orbits.products(
                fields, w.transpose(1, 2, 0)[..., None], root
            )

        respond = whitened_response(root, 1, nested=True)
        # both fields are residuals, and the error of the rule is the third
        integral = Integral(integrand, (statistic, omega), respond, inner=0, outer=3)
        return Fibre(integral, jnp.log(2 * jnp.pi * root[0, 0] * root[1, 1]), nested=True)


class SquarePlusSignParityChannel(ClosedFormChannel):
    """y = z_1² + sign(z_1 z_2 z_3) (P = 3, M = 1), any V."""

    indices: int = eqx.field(static=True, default=3)
    tokens: int = eqx.field(static=True, default=1)

    @property
    def pathwise(self) -> bool:
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
            # any positive number where no z_1 exists: derivatives of what is masked must be finite
            root = jnp.sqrt(jnp.where(square > 0.0, square, 1.0))
            for sign in (1.0, -1.0):
                d = sign * root - w[0]
                log_density = -0.5 * d * d / v - 0.5 * jnp.log(2 * jnp.pi * v) - jnp.log(2 * root)
                # a label fixes z_1 but for its sign: the other two are conditioned on it
                term = log_density + log_parity(parity * sign, w[1:] + slope * d, conditional)
                terms.append(jnp.where(square > 0.0, term, no_weight(term.dtype)))
        return logsumexp(jnp.stack(terms))
