r"""Channels of coordinates of scores: any function of them, and layers of extensive rank.

Equations here [theory: attention-indexed, Eqs. (49) to (51), (54)]: v = c E·h are coordinates of a
symmetric h (T, T) along orthonormal matrices E_i under the Frobenius product. A Gaussian h of
variance V off the diagonal and 2V on it has independent v_i of variance 2c²V, of which any channel
knows g_v:

    Γ = 2c Σ_i g_v,i(y; c E·ω, 2c²V) E_i,   f(q) = 4c² E‖g_v‖² at (2c²q, 2c²V),   Ψ unchanged

c = 1 and all T(T+1)/2 matrices: any function of the scores. T = 1 is the field of a symmetric
matrix seen through symmetric Gaussian inputs. c² = 1/2 and matrices of mean zero: several softmax
layers, whose inner scores are integrated over [theory: attention-indexed, Eqs. (45), (52) to (57)].
Layer l has scores h^l (T, T), ω^l + a Gaussian symmetric matrix of covariance V (L, L) across the
layers, entries as GOE(T):

    B_0 = I,   B_l = (c I + softmax(β B_{l-1} h^l B_{l-1}ᵀ)) B_{l-1},
    y = softmax(β B_{L-1} h^L B_{L-1}ᵀ)
    B_l 1 = (1 + c)^l 1:   y is a function of the P h^l = h^l - mean(h^l) 1 1ᵀ alone
    h^l = √2 Σ_i z^l_i E_i + (a multiple of 1 1ᵀ),  E_i orthonormal:  z_i ~ N(ω_i, V), i = 1 .. m,
    m = (T² + T - 2)/2
    Z_out = E_{z^1..z^{L-1}} |det B_{L-1}|^{-(T+1)} N(coordinates of B^{-1} s B^{-ᵀ}; ω^L, V),
    s = P(log y/β, symmetric),    Γ^l = √2 Σ_i (∂ log Z_out/∂ω^l_i) E_i

For the common engine a sample has L field vectors of T² components, g = Γ:
q̂_lk = α ⟨Tr Γ^l Γ^k⟩ = 2 α ⟨Σ_i g^l_i g^k_i⟩.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.attention import shifted_rows
from jaxsmi.channels.attention_link import Matrix, transfer, unmix, with_skip
from jaxsmi.channels.base import AbstractChannel, Posterior, Response
from jaxsmi.channels.fibres import Fibre, FibreChannel, single_suffices, whitened_response
from jaxsmi.channels.matrix_scores import SoftmaxScores, centred
from jaxsmi.channels.posterior import Key
from jaxsmi.numerics.linear_algebra import symmetric_basis
from jaxsmi.numerics.refining import Budget, Integral, level_for_width
from jaxsmi.numerics.refining_sums import Branch


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
        scaled = (f * r.mean, f * r.replicas, f * s * r.jacobian)
        return eqx.tree_at(lambda r: (r.mean, r.replicas, r.jacobian), r, scaled)

    def expected(self, Q: Array, V: Array, key: PRNGKeyArray) -> Array:
        """`response` on few points."""
        # off the diagonal Monte-Carlo noise would couple layers that the ansatz has independent
        mean = super().expected(Q, V, key)
        return jnp.diag(jnp.diagonal(mean)) if self.diagonal else mean


# Layers


def layered_scores(h: Array, skip: Array, attention: Callable[[Array], Array]) -> Array:
    """B_{L-1} h^L B_{L-1}ᵀ (T, T), of which a label is the attention, from the scores (L, T, T)."""
    identity = jnp.eye(h.shape[-1], dtype=h.dtype)
    B = identity
    for inner in h[:-1]:
        B = (skip * identity + attention(B @ inner @ B.T)) @ B
    return B @ h[-1] @ B.T


def layered_channel(
    layers: int, skip: Array, readout: SoftmaxScores, budget: Budget
) -> PullbackChannel:
    """The channel of the scores of two or more softmax layers, under the diagonal ansatz."""
    size = (readout.tokens**2 + readout.tokens - 2) // 2
    inner = LayeredCoordinates(
        indices=layers, tokens=size, skip=skip, readout=readout, budget=budget
    )
    # coordinates of a GOE matrix have variance 2: c² = 1/2 makes it V
    basis = inner.basis.reshape(size, -1).T
    return PullbackChannel(inner, basis, scale=0.5**0.5, diagonal=True)


class LayeredCoordinates(FibreChannel):
    """Coordinates z^l (L, m) of the scores of two or more softmax layers; the (L-1) m inner ones
    are integrated over. `tokens` is m."""

    skip: Array
    readout: SoftmaxScores
    pathwise = property(lambda self: True)  # smooth in the fields

    @property
    def size(self) -> int:
        """T."""
        return self.readout.tokens

    @property
    def constraints(self) -> int:
        """m, the coordinates that a label fixes."""
        return self.tokens

    @property
    def open_variables(self) -> int:
        """The coordinates of the inner layers."""
        return (self.indices - 1) * self.tokens

    @property
    def basis(self) -> np.ndarray:
        """E_i (m, T, T): orthonormal symmetric matrices of mean zero."""
        ones = np.ones((self.size**2, 1))
        # the columns of Q are orthonormal, the first along 1 1ᵀ; one of the frame is dependent
        Q = np.linalg.qr(np.concatenate([ones, frame(self.size)], axis=1))[0]
        return Q[:, 1 : self.tokens + 1].T.reshape(-1, self.size, self.size)

    def last_scores(self, fields: Array) -> Array:
        """B h^L Bᵀ (T, T) from the coordinates (L, m)."""
        T = self.size
        h = np.sqrt(2.0) * fields @ self.basis.reshape(-1, T * T)
        return layered_scores(h.reshape(-1, T, T), self.skip, self.readout.link)

    def link(self, fields: Array) -> Array:
        """y (T, T) from the coordinates (L, m)."""
        return self.readout.link(self.last_scores(fields))

    def check_labels(self, labels: Array) -> None:
        """Rows of positive numbers of sum one."""
        self.readout.check_labels(labels)

    def statistic(self, labels: Array) -> Array:
        """s (N, T, T), the last scores without their mean."""
        return self.readout.statistic(labels)

    def observe(self, fields: Array, noise: Array) -> Array:
        """s itself: exact where labels would underflow."""
        return centred(self.last_scores(fields))

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """From s (N, T, T)."""
        L, T, m = self.indices, self.size, self.tokens

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
            s, w = block
            inner, centre = shifted_rows(w, root.astype(t.dtype), t, L - 1)
            E = jnp.asarray(self.basis, t.dtype)
            # along a unit matrix E a GOE matrix has variance 2V, its coordinate z here V
            h = jnp.sqrt(2.0).astype(t.dtype) * _contract("iab,li...->lab...", E, inner)
            last, inverse_det = self._last(jnp.moveaxis(s, 0, -1)[..., None], h)
            z = jnp.sqrt(0.5).astype(t.dtype) * _contract("iab,ab...->i...", E, last)
            r = (z - centre[0]) / root[-1, -1].astype(t.dtype)
            return inverse_det ** (T + 1), [Branch(-0.5 * jnp.sum(r * r, axis=0), list(r))]

        # narrowest feature in t: the last layer's width over that of the widest inner one
        # a softmax turns within 1/β of a score
        steepness = jnp.maximum(self.readout.beta, 1.0)
        width = root[-1, -1] / (jnp.max(jnp.diagonal(root)[:-1]) * steepness)
        integral = Integral(
            integrand,
            (statistic, omega),
            whitened_response(root, m),
            inner=self.open_variables,
            outer=m,
            start=level_for_width(self.open_variables, self.budget, width),
            single=single_suffices(self.budget, root[-1, -1]),
        )
        return Fibre(integral, m * (jnp.log(root[-1, -1]) + 0.5 * jnp.log(2 * jnp.pi)))

    def _last(self, s: Array, inner: Array) -> tuple[Array, Array]:
        """B^{-1} s B^{-ᵀ} (T, T, ...) and 1/|det B| at the nodes, from the scores of the inner
        layers (L - 1, T, T, ...)."""
        skip, beta = self.skip.astype(s.dtype), self.readout.beta.astype(s.dtype)
        transposed = lambda X: X.swapaxes(0, 1)
        matrices: list[Matrix] = []
        for h in inner:
            for A in matrices:
                h = transfer(A, transposed(transfer(A, h)))  # A h Aᵀ of a symmetric h
            matrices.append(with_skip(h[None], skip, beta))
        half, inverse_det = unmix(matrices, s)
        return jnp.stack(unmix(matrices, transposed(jnp.stack(half)))[0]), inverse_det


# in full precision: a contraction would round in single precision on some GPUs
_contract = functools.partial(jnp.einsum, precision="highest")
