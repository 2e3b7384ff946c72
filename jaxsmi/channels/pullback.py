r"""The channel of any function of a symmetric matrix of scores.

Equations here [theory: attention-indexed, Eqs. (25) to (27)]: v = E·h are the coordinates of a
symmetric h (T, T) along orthonormal matrices E_i under the Frobenius product. A Gaussian h of
variance V off the diagonal and 2V on it has independent v_i of variance 2V, of which any channel
knows g_v:

    Γ = 2 Σ_i g_v,i(y; E·ω, 2V) E_i,   f(q) = 4 E‖g_v‖² at (2q, 2V),   Ψ unchanged

T = 1 is the field of a symmetric matrix seen through symmetric Gaussian inputs. The other way, Eᵀ
with ½ in place of 2 makes a channel of the coordinates of that of scores.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.channels.base import AbstractChannel, Key, Posterior, Response
from jaxsmi.numerics.linear_algebra import symmetric_basis


def frame(size: int) -> np.ndarray:
    """Return B (T², M), an orthonormal basis of the symmetric matrices (T, T), one per column."""
    return symmetric_basis(size).reshape(-1, size * size).T


class PullbackChannel(AbstractChannel):
    """Channel of scores (T, T) from the channel `inner` of their T(T+1)/2 coordinates; field
    vectors have T² components. `scale`: variance of the fields of `inner` in units of V."""

    inner: AbstractChannel
    _basis: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(self, inner: AbstractChannel, basis: np.ndarray, scale: float = 2.0):
        self.inner = inner
        self.scale = scale
        self.tokens: int = len(basis)
        self.indices: int = inner.indices
        # static, so that it is no leaf with a derivative; as tuples, which can be hashed
        self._basis = tuple(map(tuple, basis.tolist()))

    @property
    def basis(self) -> np.ndarray:
        """E (T², m), one matrix per column."""
        return np.array(self._basis)

    def fields(self, scores: Array) -> Array:
        """Return v (P, m) of scores (T, T), or of field vectors (P, T²)."""
        return scores.reshape(self.indices, -1) @ jnp.asarray(self.basis, scores.dtype)

    # Traits of labels, taken from `inner`

    unsupported_reason: ClassVar[property] = property(lambda self: self.inner.unsupported_reason)
    constraints: ClassVar[property] = property(lambda self: self.inner.constraints)
    outcomes: ClassVar[property] = property(lambda self: self.inner.outcomes)
    pathwise: ClassVar[property] = property(lambda self: self.inner.pathwise)
    regular: ClassVar[property] = property(lambda self: self.inner.regular)
    noise_size: ClassVar[property] = property(lambda self: self.inner.noise_size)
    noiseless: ClassVar[property] = property(lambda self: self.inner.noiseless)
    sharp: ClassVar[property] = property(lambda self: self.inner.sharp)
    drawable: ClassVar[property] = property(lambda self: self.inner.drawable)
    random_nodes: ClassVar[property] = property(lambda self: self.inner.random_nodes)
    tolerance: ClassVar[property] = property(lambda self: self.inner.tolerance)

    def link(self, fields: Array) -> Array:
        """Return the label of scores without its noise."""
        return self.inner.link(self.fields(fields))

    def label(self, fields: Array, noise: Array) -> Array:
        """Return the label of scores."""
        return self.inner.label(self.fields(fields), noise)

    def observe(self, fields: Array, noise: Array) -> Array:
        """Return the statistic of `inner`, which is exact even if labels would underflow."""
        return self.inner.observe(self.fields(fields), noise)

    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError for labels outside the range of `inner`."""
        self.inner.check_labels(labels)

    def statistic(self, labels: Array) -> Array:
        """Return the statistic of `inner`."""
        return self.inner.statistic(labels)

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Return g = Γ in the layout of the engine, from ω (N, P, T²), V (P, P)."""
        # along a unit matrix scores have variance 2V, as on their diagonal
        post = self.inner.respond(statistic, omega @ self.basis, self.scale * V, key)
        return pulled_back(post, self.basis, self.scale)

    def response(self, Q: Array, V: Array, **settings: Any) -> Response:
        """Average Tr Γ^l Γ^k (P, P); `settings` as in `AbstractChannel.response`."""
        # Q and V of the coordinates; one factor of two more for each derivative in Q
        scale = self.scale
        r = self.inner.response(scale * Q, scale * V, **settings)
        scaled = (*(scale**2 * x for x in (r.mean, r.replicas, r.error)), scale**3 * r.jacobian)
        return eqx.tree_at(lambda r: (r.mean, r.replicas, r.error, r.jacobian), r, scaled)


def pulled_back(post: Posterior, basis: np.ndarray, scale: float) -> Posterior:
    """Return Γ = scale·E g and its derivative from the posterior of the fields E·ω."""
    E = jnp.asarray(basis, post.g.dtype)

    def mapped(g: Array, dg: Array) -> tuple[Array, Array]:
        return scale * g @ E.T, scale * jnp.einsum("am,...pmqk,bk->...paqb", E, dg, E)

    halves = None if post.halves is None else mapped(*post.halves)
    g, dg = mapped(post.g, post.dg)
    return Posterior(post.log_partition, g, dg, post.ess, post.error, post.dg_error, halves)


def coordinates(channel: AbstractChannel) -> AbstractChannel:
    """Return the channel of the coordinates E·h of a channel of scores."""
    if isinstance(channel, PullbackChannel):
        return channel.inner
    return PullbackChannel(channel, frame(channel.tokens).T, 0.5)
