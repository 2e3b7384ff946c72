r"""Eigenvectors of the spectral matrix of a data set, and what is made of those that come together.

    T_s W = (1/D) Σ_μ x_μ 𝒯_μ x_μᵀ W    by one pass over the inputs, stored, regenerated or sharded

The eigensolver is block Lanczos, begun again from its best vectors until those that are wanted have
settled: each vector of the space it looks in costs one product, where the LOBPCG of JAX takes four.

Source: [theory: spectral, section 4].
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.design.index import IndexOperator
from jaxsmi.inference.observations import EVERYWHERE, Observations, on_devices
from jaxsmi.inference.spectral_outlier import MOST, Outlier
from jaxsmi.numerics.linear_algebra import symmetric

RESIDUAL = 1e-3  # over a gap of 0.05: an angle of 0.02
_DENSE = 64  # P D up to which the matrix is diagonalised
_STAGE = 25  # iterations between two looks at the residual
_MOST_ITERATIONS = 200
_COMBINATIONS = 4096  # on the unit sphere of four vectors 0.2 apart; each round halves that
_ROUNDS = 8
_NEAR = 0.02  # a squared distance of Gram matrices, relative
_FAR = 0.5  # another
_NULL = 1e-8  # of D: a squared length that is zero


def orthonormal(W: Array) -> Array:
    """Rows (P, D) of length one, or zero, that span those of W, which may be zero."""
    values, vectors = jnp.linalg.eigh(symmetric(W @ W.T))
    kept = values > _NULL * W.shape[1]
    return (vectors * jnp.where(kept, lax.rsqrt(jnp.where(kept, values, 1.0)), 0.0)).T @ W


class Product(eqx.Module):
    """The matrix T_s - shift in the unknown directions, on W orthogonal to what is known.

    The shift (P, P) is α⟨Tr_M G⟩, and what α⟨Tr_M H⟩ of all labels has beyond that of those which
    theory's averages were taken over: zero but for the labels at hand, it moves all eigenvalues
    together, and those of different indices against each other.
    """

    observations: Observations
    T: Array
    shift: Array
    unknown: Array
    others: Array

    def __call__(self, vectors: Array) -> Array:
        """Of vectors (P D, k)."""
        P, D = self.others.shape
        weights = self.projected(vectors.T.reshape(-1, P, D))
        moved = on_devices(
            _weighted,
            self.observations.mesh,
            (self.observations, self.T, weights),
            lambda arguments: [*arguments[0].data.of_samples, arguments[1]],
            EVERYWHERE,
        )
        moved = self.projected(moved - jnp.einsum("pq,kqd->kpd", self.shift, weights))
        return moved.reshape(-1, P * D).T

    def projected(self, weights: Array) -> Array:
        """Weights (k, P, D) in the unknown directions, without what they have of the others."""
        weights = jnp.einsum("pq,kqd->kpd", self.unknown, weights)
        shares = jnp.einsum("kpd,qd->kpq", weights, self.others)
        return weights - jnp.einsum("kpq,qd->kpd", shares, self.others)


def _weighted(observations: Observations, T: Array, W: Array) -> Array:
    axes = () if observations.mesh is None else observations.mesh.axis_names
    return IndexOperator(observations.data.inputs, axes).weighted(T, W)


class Search(NamedTuple):
    """Eigenvectors of norm one, their values (k,), the largest residual of those that are wanted,
    and the iterations taken."""

    vectors: Array
    values: Array
    residual: Array
    iterations: Array


def eigenvectors(product: Product, wanted: Array, learned: Array, key: PRNGKeyArray) -> Search:
    """The top eigenvectors (k, P, D) of the matrix, up to four, the first `wanted` of them to the
    residual; it does not begin where nothing is `learned`."""
    P, D = product.others.shape
    k = min(MOST, P * D)
    small = P * D <= _DENSE or P + 3 * k > D
    end = _dense(product, k, learned) if small else _lanczos(product, k, wanted, learned, key)
    vectors = end.vectors.T
    # rounding would choose the signs, and a run on several devices begin elsewhere than on one
    largest = jnp.argmax(jnp.abs(vectors), axis=1, keepdims=True)
    signs = jnp.where(jnp.take_along_axis(vectors, largest, 1) < 0.0, -1.0, 1.0)
    return end._replace(vectors=(signs * vectors).reshape(k, P, D))


def _dense(product: Product, k: int, learned: Array) -> Search:
    """By the whole matrix."""
    matrix = symmetric(product(jnp.eye(product.others.size, dtype=product.T.dtype)))
    sound = learned & jnp.all(jnp.isfinite(matrix))  # an eigensolver may not end on NaN
    values, vectors = jnp.linalg.eigh(jnp.where(sound, matrix, 0.0))
    zero = jnp.zeros((), product.T.dtype)
    return Search(vectors[:, ::-1][:, :k], values[::-1][:k], zero, jnp.zeros((), int))


def _lanczos(product: Product, k: int, wanted: Array, learned: Array, key: PRNGKeyArray) -> Search:
    """By block Lanczos, begun again from its best vectors."""
    P, D = product.others.shape
    # in one unknown direction there are at least D - P dimensions: the blocks are independent
    blocks = min(_STAGE, (D - P) // k)

    def stage(now: Search) -> Search:
        values, vectors = _ritz(product, now.vectors, blocks)
        missed = jnp.linalg.norm(product(vectors) - values * vectors, axis=0)
        worst = jnp.max(jnp.where(jnp.arange(k) < wanted, missed, 0.0))
        return Search(vectors, values, worst, now.iterations + blocks)

    def goes_on(now: Search) -> Array:
        return learned & (now.residual > RESIDUAL) & (now.iterations < _MOST_ITERATIONS)

    start = product.projected(jax.random.normal(key, (k, P, D), product.T.dtype))
    start = jnp.linalg.qr(start.reshape(k, P * D).T)[0]
    unsettled = jnp.asarray(jnp.inf, start.dtype)
    first = Search(start, jnp.zeros(k, start.dtype), unsettled, jnp.zeros((), int))
    return lax.while_loop(goes_on, stage, first)


def _ritz(product: Product, start: Array, blocks: int) -> tuple[Array, Array]:
    """The top eigenvalues (k,) and vectors (n, k) of a symmetric matrix on the space that it makes
    of orthonormal `start` (n, k) in so many products, less one."""
    n, k = start.shape
    size = blocks * k
    basis = jnp.zeros((n, size + k), start.dtype).at[:, :k].set(start)

    def grown(j: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        basis, matrix = now
        moved = product(lax.dynamic_slice_in_dim(basis, j * k, k, axis=1)).astype(basis.dtype)
        known = basis.T @ moved  # of later blocks zero: the upper triangle of the matrix
        matrix = lax.dynamic_update_slice_in_dim(matrix, known[:size], j * k, axis=1)
        # orthogonal to all blocks before, and twice: once leaves rounding over a small rest
        new = jnp.linalg.qr(moved - basis @ known)[0]
        new = jnp.linalg.qr(new - basis @ (basis.T @ new))[0]
        return lax.dynamic_update_slice_in_dim(basis, new, (j + 1) * k, axis=1), matrix

    nothing = jnp.zeros((size, size), start.dtype)
    basis, matrix = lax.fori_loop(0, blocks, grown, (basis, nothing))
    upper = jnp.triu(matrix)
    values, vectors = jnp.linalg.eigh(upper + jnp.triu(upper, 1).T, symmetrize_input=False)
    top = vectors[:, ::-1][:, :k]
    return values[::-1][:k], basis[:, :size] @ top


def combined(vectors: Array, theory: Outlier, key: PRNGKeyArray) -> Array:
    """W_a (A, P, D): of each group of eigenvectors (k, P, D) the combination whose Gram matrix is
    nearest to that of theory; zero where there is no group. Signs are those of theory's W_a W_bᵀ.
    """
    A, D = len(theory.copies), vectors.shape[-1]
    of_group = lambda a: _nearest(vectors, theory.gram[a, a], a, theory.copies[a], key)
    W = lax.map(of_group, jnp.arange(A))
    W = jnp.where((theory.copies > 0)[:, None, None], W, 0.0)
    for a in range(1, A):
        common = jnp.einsum("bpd,qd->bqp", W[:a], W[a]) / D
        agreement = jnp.sum(common * theory.gram[a, :a])
        W = W.at[a].multiply(jnp.where(agreement < 0.0, -1.0, 1.0))
    return W


def _nearest(weights: Array, gram: Array, rank: Array, copies: Array, key: PRNGKeyArray) -> Array:
    """W (P, D), c · eigenvectors from this rank on, scaled, of a Gram matrix nearest to `gram`.

    One eigenvector where there is one copy, the first that is not far; else the best of many random
    combinations, looked for around the best so far at ever smaller distance, of as many vectors as
    there are copies, or of more where these do not do. At finite D copies are split, and others
    between, or above what is one.
    """
    k, _, D = weights.shape
    grams = jnp.einsum("apd,bqd->abpq", weights, weights) / D
    ranks, single = jnp.arange(k), jnp.eye(k)

    def factor(c: Array) -> Array:
        norms = jnp.einsum("...a,...b,abpp->...", c, c, grams)
        return jnp.sqrt(jnp.trace(gram) / norms)

    def distance(c: Array) -> Array:
        c = c * factor(c)[..., None]
        made = jnp.einsum("...a,...b,abpq->...pq", c, c, grams)
        square = jnp.sum((made - gram) ** 2, axis=(-1, -2))
        return jnp.where(jnp.isfinite(square), square, jnp.inf)

    def among(count: Array) -> Array:
        taken = (ranks >= rank) & (ranks < rank + count)

        def search(n: int | Array, best: Array) -> Array:
            normal = jax.random.normal(jax.random.fold_in(key, n), (_COMBINATIONS, k))
            tried = jnp.where(taken, best + 0.5**n * normal, 0.0)
            tried = jnp.concatenate([best[None], tried / jnp.linalg.norm(tried, axis=1)[:, None]])
            return tried[jnp.argmin(distance(tried))]

        return lax.fori_loop(0, _ROUNDS, search, single[rank])

    several = copies > 1
    counts = ranks + 1
    tried = jnp.where(several, jax.vmap(among)(counts), single)
    allowed = jnp.where(several, counts >= copies, ranks >= rank)
    away = distance(tried)
    # of those that are near enough the first: with more vectors noise fits the Gram matrix, too
    near = away < jnp.where(several, _NEAR, _FAR) * jnp.sum(gram**2)
    c = tried[jnp.argmin(jnp.where(allowed, jnp.where(near, 0.0, away), jnp.inf))]
    return factor(c) * jnp.tensordot(c, weights, axes=1)
