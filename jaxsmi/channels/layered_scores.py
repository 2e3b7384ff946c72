r"""Output channel of several attention layers of extensive rank: inner scores are integrated over.

Equations here [theory: attention-indexed, Eqs. (45), (52) to (57)]. Layer l has scores h^l (T, T),
ω^l + a Gaussian symmetric matrix of covariance V (L, L) across the layers, entries as GOE(T):

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

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.attention_link import Components, eliminate, total, with_skip
from jaxsmi.channels.base import AbstractChannel, Posterior, Response, as_posterior, unwhiten
from jaxsmi.channels.matrix_scores import SoftmaxScores, centred
from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.numerics.nets import randomised_gaussians
from jaxsmi.numerics.refining import Budget, level_for_width, self_refining_moments

__all__ = ["LayeredScores", "layered_scores"]


def layered_scores(h: Array, skip: Array, attention: Callable[[Array], Array]) -> Array:
    """B_{L-1} h^L B_{L-1}ᵀ (T, T), of which a label is the attention, from the scores (L, T, T)."""
    identity = jnp.eye(h.shape[-1], dtype=h.dtype)
    B = identity
    for inner in h[:-1]:
        B = (skip * identity + attention(B @ inner @ B.T)) @ B
    return B @ h[-1] @ B.T


class LayeredScores(AbstractChannel):
    """What the label of two or more softmax layers says about the scores of each.

    One field vector of T² components a layer. The (L-1) m inner coordinates are integrated over
    with `self_refining_moments`; `budget` says how accurate Γ must be and how many nodes a sample
    may cost.
    """

    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    skip: Array
    readout: SoftmaxScores
    budget: Budget

    @property
    def basis(self) -> np.ndarray:
        """E_i (m, T, T): orthonormal symmetric matrices of mean zero."""
        T = self.tokens
        rows, columns = np.triu_indices(T)
        units = np.zeros((len(rows), T, T))
        units[np.arange(len(rows)), rows, columns] = 1.0
        units = units + np.swapaxes(units, 1, 2)
        ones = np.ones((1, T, T))
        frame = np.concatenate([ones, units]).reshape(-1, T * T)
        # the rows of Q are orthonormal, the first along 1 1ᵀ; one of the units is dependent
        return np.linalg.qr(frame.T)[0][:, 1 : len(rows)].T.reshape(-1, T, T)

    @property
    def constraints(self) -> int:
        """m, the coordinates that a label fixes."""
        return (self.tokens**2 + self.tokens - 2) // 2

    def coordinates(self, h: Array) -> Array:
        """z (.., m) of scores (.., T²)."""
        return h @ self.basis.reshape(-1, self.tokens**2).T / np.sqrt(2.0)

    def matrices(self, z: Array) -> Array:
        """√2 Σ_i z_i E_i (.., T²) of coordinates (.., m): scores of mean zero, or Γ."""
        return np.sqrt(2.0) * z @ self.basis.reshape(-1, self.tokens**2)

    # Labels

    def last_scores(self, fields: Array) -> Array:
        """B h^L Bᵀ (T, T) from the fields (L, T²)."""
        h = fields.reshape(self.indices, self.tokens, self.tokens)
        return layered_scores(h, self.skip, self.readout.link)

    def link(self, fields: Array) -> Array:
        """y (T, T) from the fields (L, T²)."""
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

    # Posterior

    def _matrix(self, z: Sequence[Array]) -> list[list[Array]]:
        """√2 Σ_i z_i E_i of m coordinates, as rows of arrays."""
        T = self.tokens
        E = np.sqrt(2.0) * self.basis
        entry = lambda a, b: total(x * e for x, e in zip(z, E[:, a, b], strict=True) if e != 0.0)
        return [[entry(a, b) for b in range(T)] for a in range(T)]

    def _last(
        self, s: Array, inner: Sequence[Components], dtype: DTypeLike
    ) -> tuple[Components, Array]:
        """B^{-1} s B^{-ᵀ} and 1/|det B| at the nodes, from the scores of the inner layers."""
        T = self.tokens
        skip = self.skip.astype(dtype)
        beta = self.readout.beta.astype(dtype)
        mixings: list[list[list[Array]]] = []
        for h in inner:
            for A in mixings:
                h = _sandwich(A, h)
            mixings.append(with_skip([h], skip, beta))
        last: Components = [[s[:, a, b, None] for b in range(T)] for a in range(T)]
        inverse_det = jnp.ones((), dtype)
        for A in reversed(mixings):
            last, one = _undone(A, last)
            inverse_det = inverse_det * one
        return last, inverse_det

    def whitened(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None
    ) -> Posterior:
        """Batch posterior of the coordinates: s (N, T, T), ω (N, L, m), V (L, L)."""
        L = self.indices
        T = self.tokens
        m = self.constraints
        chol = jnp.linalg.cholesky(V)
        E = self.basis / np.sqrt(2.0)

        def integrand(
            block: tuple[Array, Array], t: Array
        ) -> tuple[Array, list[tuple[Array, list[Array]]]]:
            s, w = block
            root = chol.astype(t.dtype)
            rows = t.T.reshape(L - 1, m, -1)
            moved = jnp.einsum("lk,kin->lin", root[:-1, :-1], rows)
            z = [[w[:, l, i, None] + moved[l, i] for i in range(m)] for l in range(L - 1)]
            last, inverse_det = self._last(s, [self._matrix(each) for each in z], t.dtype)
            shift = jnp.einsum("k,kin->in", root[-1, :-1], rows)
            r = []
            for i in range(m):
                seen = total(last[a][b] * E[i, a, b] for a in range(T) for b in range(T))
                r.append((seen - w[:, -1, i, None] - shift[i]) / root[-1, -1])
            return inverse_det ** (T + 1), [(-0.5 * total(x * x for x in r), r)]

        inner = (L - 1) * m
        # narrowest feature in t: the last layer's width over that of the widest inner one
        steepness = jnp.maximum(self.readout.beta, 1.0)
        width = chol[-1, -1] / (jnp.max(jnp.diagonal(chol)[:-1]) * steepness)
        single = jnp.finfo(jnp.float32).eps <= 0.01 * self.budget.tolerance * chol[-1, -1] ** 2
        moments = self_refining_moments(
            integrand,
            (statistic, omega),
            lambda *tau: unwhiten(chol, m, *tau),
            inner=inner,
            outer=m,
            budget=self.budget,
            start=level_for_width(inner, self.budget, width),
            key=key,
            single=single,
        )
        log_norm = m * (jnp.log(chol[-1, -1]) + 0.5 * jnp.log(2 * jnp.pi))
        post = as_posterior(moments, omega.shape)
        return eqx.tree_at(lambda p: p.log_partition, post, post.log_partition - log_norm)

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Batch posterior from s (N, T, T), ω (N, L, T²), V (L, L): g = Γ, ∂g = ∂Γ/∂ω."""
        post = self.whitened(statistic, self.coordinates(omega), V, key)
        E = self.basis.reshape(-1, self.tokens**2)
        dg = jnp.einsum("npiqj,ia,jb->npaqb", post.dg, E, E)
        return eqx.tree_at(lambda p: (p.g, p.dg), post, (self.matrices(post.g), dg))

    def draw(
        self, Q: Array, V: Array, *, key: PRNGKeyArray, samples: int, randomisations: int
    ) -> Posterior:
        """Posteriors of the coordinates (`whitened`) of drawn labels."""
        shape = (samples * randomisations, 2, self.indices, self.constraints)
        size = 2 * self.indices * self.constraints
        points = randomised_gaussians(key, samples, randomisations, size).reshape(shape)
        omega = jnp.einsum("lk,nki->nli", sqrt_psd(Q), points[:, 0])
        z = omega + jnp.einsum("lk,nki->nli", jnp.linalg.cholesky(V), points[:, 1])
        statistic = jax.vmap(lambda h: centred(self.last_scores(h)))(self.matrices(z))
        return self.whitened(statistic, omega, V, jax.random.fold_in(key, 1))

    def response(
        self,
        Q: Array,
        V: Array,
        *,
        key: PRNGKeyArray | None,
        samples: int,
        randomisations: int,
        tangents: bool = True,
    ) -> Response:
        """E Tr Γ^l Γ^k (L, L): twice that of the coordinates."""
        one = super().response(
            Q, V, key=key, samples=samples, randomisations=randomisations, tangents=tangents
        )
        doubled = lambda r: (r.mean, r.replicas, r.jacobian)
        return eqx.tree_at(doubled, one, tuple(2.0 * x for x in doubled(one)))

    def expected(self, Q: Array, V: Array, key: PRNGKeyArray) -> Array:
        """The diagonal of `response` on few points: layers are treated one by one."""
        few = self.response(Q, V, key=key, samples=256, randomisations=4, tangents=False)
        return jnp.diag(jnp.diagonal(few.mean))

    @property
    def tolerance(self) -> Array:
        """The tolerance of the inner integral."""
        return self.budget.tolerance


def _product(A: Components, X: Components) -> list[list[Array]]:
    """A X."""
    T = len(A)
    return [[total(A[a][c] * X[c][b] for c in range(T)) for b in range(T)] for a in range(T)]


def _sandwich(A: Components, X: Components) -> list[list[Array]]:
    """A X Aᵀ."""
    return _product(A, list(zip(*_product(A, X), strict=True)))  # X symmetric


def _undone(A: Components, X: Components) -> tuple[list[list[Array]], Array]:
    """A^{-1} X A^{-ᵀ} of a symmetric X, and 1/|det A|."""
    columns, dets = zip(*(eliminate(A, column) for column in zip(*X, strict=True)), strict=True)
    rows = [eliminate(A, row)[0] for row in zip(*columns, strict=True)]
    return rows, dets[0]
