r"""Channels whose response is known in closed form, as a function of two numbers.

Equations here [theory: attention-indexed, Eqs. (10) to (12); bilinear, Eq. (8)], overlap q, V left:

    response(Q) = f,   E log Z_out = Ψ(q),   f = Ψ'/weight of the prior's scalar product
"""

from __future__ import annotations

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel, Response

__all__ = ["ExplicitChannel"]


class ExplicitChannel(AbstractChannel):
    """A channel of one field vector a sample, whose response is an explicit function f(q, V) of
    two numbers (module docstring)."""

    explicit: ClassVar[bool] = True

    @abc.abstractmethod
    def information(self, q: Array, V: Array) -> Array:
        """f(q) = E ‖g‖² at the overlap q, with V left: the precision that a sample adds."""

    @abc.abstractmethod
    def mean_log_partition(self, q: Array, V: Array) -> Array:
        """Ψ(q) = E log Z_out, up to a constant where labels are noiseless numbers."""

    @property
    @abc.abstractmethod
    def measurements(self) -> int:
        """M with f = M/V, without noise: how many numbers a label fixes, an off-diagonal one
        counting twice."""

    @property
    def sampled(self) -> bool:
        """Whether f comes from Monte-Carlo, with an `uncertainty`."""
        return False

    def uncertainty(self, q: Array, V: Array) -> Array:
        """Relative standard error of f: zero unless it comes from Monte-Carlo."""
        del q
        return jnp.zeros_like(V)

    def response(
        self,
        Q: Array,
        V: Array,
        *,
        key: PRNGKeyArray | None = None,
        samples: int = 0,
        randomisations: int = 2,
        tangents: bool = True,
    ) -> Response:
        """f and Ψ at Q, V (1, 1), in the form that sampled channels give: replicas all equal,
        `jacobian` exact."""
        del key, samples
        q = Q[0, 0]
        v = V[0, 0]
        mean = self.information(q, v) * jnp.ones((1, 1), v.dtype)
        slope = jnp.zeros((), v.dtype)
        if tangents:  # along a fixed second moment: dV = -dq
            slope = jax.jvp(self.information, (q, v), (jnp.ones_like(q), -jnp.ones_like(v)))[1]
        zero = jnp.zeros((), v.dtype)
        log_partition = jnp.broadcast_to(self.mean_log_partition(q, v), (randomisations,))
        replicas = jnp.broadcast_to(mean, (randomisations, 1, 1))
        return Response(mean, replicas, slope.reshape(1, 1, 1, 1), log_partition, zero, zero)

    def expected(self, Q: Array, V: Array, key: PRNGKeyArray) -> Array:
        """f as a matrix (1, 1)."""
        del key
        return self.information(Q, V)

    @property
    def tolerance(self) -> Array:
        """Closed forms are exact."""
        return jnp.asarray(jnp.inf)
