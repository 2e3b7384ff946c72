r"""A channel of independent fields, seen as one of symmetric matrices of scores.

Equations here [theory: attention-indexed, Eqs. (49) to (51), (54)]: v = c E·h are coordinates of a
symmetric h (T, T) along orthonormal matrices E_i under the Frobenius product. A Gaussian h of
variance V off the diagonal and 2V on it has independent v_i of variance 2c²V, of which any channel
knows g_v:

    Γ = 2c Σ_i g_v,i(y; c E·ω, 2c²V) E_i,   f(q) = 4c² E‖g_v‖² at (2c²q, 2c²V),   Ψ unchanged

c = 1 and all T(T+1)/2 matrices: any function of the scores. c² = 1/2 and matrices of mean zero:
layers of softmax attention (layered_scores.py). T = 1 is the field of a symmetric matrix seen
through symmetric Gaussian inputs.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel, Posterior, Response
from jaxsmi.channels.posterior import Key
from jaxsmi.numerics.linear_algebra import symmetric_basis


def frame(size: int) -> np.ndarray:
    """B (T², M): an orthonormal basis of the symmetric matrices (T, T), one a column."""
    return symmetric_basis(size).reshape(-1, size * size).T


class PullbackChannel(AbstractChannel):
    """The channel `inner` of m coordinates of scores (T, T), as one of the scores; field vectors
    have T² components.

    `scale` is c. `diagonal`: overlaps between different rows are left out of the precision "state"
    of message passing, as the diagonal ansatz has it.
    """

    inner: AbstractChannel
    scale: float = eqx.field(static=True)
    diagonal: bool = eqx.field(static=True)
    _basis: tuple[tuple[float, ...], ...] = eqx.field(static=True)

    def __init__(
        self,
        inner: AbstractChannel,
        basis: np.ndarray,
        scale: float = 1.0,
        diagonal: bool = False,
    ):
        self.inner = inner
        self.scale = scale
        self.diagonal = diagonal
        self.tokens = len(basis)
        self.indices = inner.indices
        # static, so that it is no leaf with a derivative; as tuples, which can be hashed
        self._basis = tuple(map(tuple, basis.tolist()))

    @property
    def basis(self) -> np.ndarray:
        """E (T², m), a matrix a column."""
        return np.array(self._basis)

    def fields(self, scores: Array) -> Array:
        """v (P, m) of scores (T, T), or of field vectors (P, T²)."""
        basis = jnp.asarray(self.scale * self.basis, scores.dtype)
        return scores.reshape(self.indices, -1) @ basis

    # Label traits are those of `inner`

    unsupported_reason = property(lambda self: self.inner.unsupported_reason)
    constraints = property(lambda self: self.inner.constraints)
    outcomes = property(lambda self: self.inner.outcomes)
    pathwise = property(lambda self: self.inner.pathwise)
    noise_size = property(lambda self: self.inner.noise_size)
    noiseless = property(lambda self: self.inner.noiseless)
    drawable = property(lambda self: self.inner.drawable)
    random_nodes = property(lambda self: self.inner.random_nodes)
    tolerance = property(lambda self: self.inner.tolerance)

    def link(self, fields: Array) -> Array:
        """The label of scores without its noise."""
        return self.inner.link(self.fields(fields))

    def label(self, fields: Array, noise: Array) -> Array:
        """The label of scores."""
        return self.inner.label(self.fields(fields), noise)

    def observe(self, fields: Array, noise: Array) -> Array:
        """That of `inner`, which is exact where labels would underflow."""
        return self.inner.observe(self.fields(fields), noise)

    def check_labels(self, labels: Array) -> None:
        """As `inner`."""
        self.inner.check_labels(labels)

    def statistic(self, labels: Array) -> Array:
        """That of `inner`."""
        return self.inner.statistic(labels)

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """g = Γ as the engine's fields, from ω (N, P, T²), V (P, P)."""
        c = self.scale
        E = jnp.asarray(self.basis, omega.dtype)
        # along a unit matrix scores have variance 2V, as on their diagonal; c scales it
        post = self.inner.respond(statistic, c * omega @ E, 2.0 * c**2 * V, key)

        def mapped(g: Array, dg: Array) -> tuple[Array, Array]:
            each = jnp.einsum("am,...pmqk,bk->...paqb", E, dg, E)
            return 2.0 * c * g @ E.T, 2.0 * c**2 * each

        halves = None if post.halves is None else mapped(*post.halves)
        g, dg = mapped(post.g, post.dg)
        return Posterior(post.log_partition, g, dg, post.ess, post.error, post.dg_error, halves)

    def response(
        self,
        Q: Array,
        V: Array,
        *,
        key: PRNGKeyArray | None,
        points: int,
        nets: int,
        tangents: bool = True,
    ) -> Response:
        """E Tr Γ^l Γ^k (P, P)."""
        # Q and V of the coordinates; one factor s more for each derivative in Q
        s = 2.0 * self.scale**2
        r = self.inner.response(s * Q, s * V, key=key, points=points, nets=nets, tangents=tangents)
        f = 2.0 * s
        mean, replicas, jacobian = f * r.mean, f * r.replicas, f * s * r.jacobian
        return Response(mean, replicas, jacobian, r.log_partition, r.error, r.inaccurate)

    def expected(self, Q: Array, V: Array, key: PRNGKeyArray) -> Array:
        """`response` on few points."""
        # off the diagonal Monte-Carlo noise would couple layers that the ansatz has independent
        mean = super().expected(Q, V, key)
        return jnp.diag(jnp.diagonal(mean)) if self.diagonal else mean
