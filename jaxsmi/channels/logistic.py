r"""The logistic channel: labels ±1 that are right with probability ς(β|z|).

Equation here, P = M = 1, ς(x) = 1/(1 + e^{-x}) [theory: multi-index, Eq. (69)]:

    Z_out(y; ω, V) = ∫ Dt ς(β(yω + √V t))

by a trapezoidal sum around the largest term. Its error is e^{-2π²/(βh√V)}, h the step: rounding up
to β√V = 10, of derivatives too; 5e-9 at 20, of g 2e-7 and of ∂g 8e-5.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array

from jaxsmi.channels.base import ClosedFormChannel
from jaxsmi.channels.scalar import AbstractSignsChannel
from jaxsmi.numerics.roots import bisect

__all__ = ["LogisticChannel"]

_STEP = 0.05
_NODES = _STEP * np.arange(-180, 181)  # 9 standard deviations on either side
_HALVINGS = 20


class LogisticChannel(AbstractSignsChannel, ClosedFormChannel):
    """P(y = ±1|z) = ς(βyz) (P = M = 1)."""

    beta: Array
    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    def __init__(self, beta: Array):
        self.beta = beta
        self.indices = 1
        self.tokens = 1

    @property
    def noise_size(self) -> int:
        """One normal, of which Φ is uniform."""
        return 1

    def link(self, fields: Array) -> Array:
        """The likelier label, sign z."""
        return jnp.where(fields[0, 0] >= 0.0, 1.0, -1.0)

    def label(self, fields: Array, noise: Array) -> Array:
        """+1 where Φ(ξ) < ς(βz)."""
        return jnp.where(ndtr(noise[0]) < jax.nn.sigmoid(self.beta * fields[0, 0]), 1.0, -1.0)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Z_out."""
        w = self.beta * statistic * omega[0, 0]
        s = self.beta * jnp.sqrt(V[0, 0])
        at, width = jax.lax.stop_gradient((w, s))
        # the largest term: t = s ς(-(w + s t))
        rising = lambda t: t >= width * jax.nn.sigmoid(-(at + width * t))
        centre = bisect(rising, jnp.zeros_like(width), width, _HALVINGS)
        t = centre + jnp.asarray(_NODES)
        terms = -0.5 * t**2 + log_sigmoid(w + s * t)
        return logsumexp(terms) + np.log(_STEP / np.sqrt(2 * np.pi))
