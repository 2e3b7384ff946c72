r"""Deep attention as a link on the fields, and its exact inversion.

Equations here [TCDKZ25; theory: deep-attention, Eqs. (1) to (10)]. With Z_ℓ (P_ℓ, M) the block of
layer ℓ, B_0 = I_M:

    h_ℓ = Z_ℓ B_{ℓ-1}ᵀ,   A_ℓ = c_ℓ I + S_ℓ(h_ℓ),   B_ℓ = A_ℓ B_{ℓ-1},   y = S_L(h_L)
    S(h) = σ_β(hᵀh)                    one head, query and key tied
    S(h) = (1/H) Σ_a σ_β(q_aᵀ k_a)     H heads, h the rows q_1, k_1, q_2, k_2, ..; tied: q_a = k_a,
                                       written once
    σ_β(s)_ij = exp(β s_ij) / Σ_k exp(β s_ik)        row softmax; hardmax is its limit β -> ∞

Tokens come first, and any axes may follow: the same lines serve one sample and all nodes of an
integral at once. Small sums over tokens are written as sums, not as contractions: elementwise over
the nodes, these fuse with what surrounds them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.arrays import clamp_to_tiny, symmetric

# entries (...) of a small matrix: nested sequences, or an array (M, M, ...)
Matrix = Sequence[Sequence[Array]] | Array


class Layer(NamedTuple):
    """One attention layer: `rank` of a query (and of a key), number of `heads`, query and key
    `tied` or not."""

    rank: int = 1
    heads: int = 1
    tied: bool = True

    @property
    def indices(self) -> int:
        """Number of rows of W in the layer."""
        return self.rank * self.heads * (1 if self.tied else 2)

    @property
    def invertible(self) -> bool:
        """True if the attention matrix determines the fields of the layer, up to a sign or a
        rotation of the plane, untied up to a scale (which the channel integrates over)."""
        return self.heads == 1 and self.rank <= (2 if self.tied else 1)


def scores(h: Array, layer: Layer) -> Array:
    """Compute qᵀk of each head (H, M, M, ...), of fields h (P, M, ...)."""
    parts = h.reshape(layer.heads, 1 if layer.tied else 2, layer.rank, *h.shape[1:])
    return jnp.sum(parts[:, 0, :, :, None] * parts[:, -1, :, None], axis=1)


def transfer(A: Matrix, block: Array) -> Array:
    """Mix the tokens of each row of a block Z (P, M, ...): Z Aᵀ."""
    mixed = [sum(a * block[:, j] for j, a in enumerate(row)) for row in A]
    return jnp.stack(mixed, axis=1)


def softmax(scores: Array, beta: Array) -> Array:
    """Average σ_β (M, M, ...) over heads, every entry to full relative accuracy."""
    return jnp.mean(jax.nn.softmax(beta * scores, axis=2), axis=0)


def hardmax(scores: Array) -> Array:
    """Compute σ_∞ of scores (.., M, M): each row points at its largest entry."""
    return jax.nn.one_hot(jnp.argmax(scores, axis=-1), scores.shape[-1], dtype=scores.dtype)


def with_skip(scores: Array, skip: Array, beta: Array) -> Matrix:
    """Compute A = c I + the mean over heads of σ_β of the scores (H, M, M, ...)."""
    # entries by themselves: XLA on a CPU computes a stack anew for each entry that is read
    M = scores.shape[1]
    if M == 2:
        # one logistic function a row: an absolute accuracy of 1e-16 is enough here, and twice as
        # fast
        gaps = (scores[:, i, i] - scores[:, i, 1 - i] for i in range(2))
        p, q = (jnp.mean(0.5 + 0.5 * jnp.tanh(0.5 * beta * gap), axis=0) for gap in gaps)
        return [[p + skip, 1.0 - p], [1.0 - q, q + skip]]
    A = softmax(scores, beta)
    return [[A[i, j] + skip if i == j else A[i, j] for j in range(M)] for i in range(M)]


def eliminate(A: Matrix, right: Sequence[Array] | Array) -> tuple[list[Array], Array]:
    """Solve for A^{-1} right, of right sides (M, ...) or (M, K, ...), and return 1/|det A| too.

    No pivoting: c I + σ(Gram) has positive leading minors, being similar to a PSD matrix. A mean of
    heads, or untied ones, may be singular on a surface, where the weight of the integrand vanishes.
    """
    rows = [list(row) for row in A]
    x = list(right)
    M = len(rows)
    tiny = 1e-100 if rows[0][0].dtype == jnp.float64 else 1e-15
    pivots = []
    for k in range(M):
        # a pivot is zero where c = 0 and two tokens agree: the weight is zero there
        pivots.append(1.0 / jnp.where(jnp.abs(rows[k][k]) < tiny, tiny, rows[k][k]))
        for i in range(k + 1, M):
            factor = rows[i][k] * pivots[k]
            for j in range(k + 1, M):
                rows[i][j] = rows[i][j] - factor * rows[k][j]
            x[i] = x[i] - factor * x[k]
    for k in reversed(range(M)):
        for j in range(k + 1, M):
            x[k] = x[k] - rows[k][j] * x[j]
        x[k] = x[k] * pivots[k]
    return x, jnp.abs(functools.reduce(operator.mul, pivots))


def unmix(matrices: Sequence[Matrix], right: Sequence[Array] | Array) -> tuple[list[Array], Array]:
    """Solve for B^{-1} right, B = .. A_2 A_1, and return 1/|det B| too; right sides as in
    `eliminate`."""
    x = list(right)
    inverse_det = jnp.ones((), x[0].dtype)
    for A in reversed(matrices):
        x, one = eliminate(A, x)
        inverse_det = inverse_det * one
    return x, inverse_det


def mixing_matrices(
    fields: Array, layers: Sequence[Layer], skip: Array, mixing: Callable[[Array, Array], Matrix]
) -> list[Matrix]:
    """Compute A_1, A_2, .. of layers whose fields (P, M, ...) are Z, by `mixing` of the scores of a
    layer and of c_ℓ."""
    matrices: list[Matrix] = []
    for number, (h, layer) in enumerate(zip(split_rows(fields, layers), layers, strict=True)):
        for A in matrices:
            h = transfer(A, h)
        matrices.append(mixing(scores(h, layer), skip[number]))
    return matrices


def split_rows(rows: Array, layers: Sequence[Layer]) -> list[Array]:
    """Group rows (P, ...) by layer."""
    ends = np.cumsum([layer.indices for layer in layers])
    return [rows[end - layer.indices : end] for end, layer in zip(ends, layers, strict=True)]


def last_fields(
    fields: Array,
    layers: Sequence[Layer],
    skip: Array,
    beta: Array | float,
    mixing: Callable[..., Matrix] = with_skip,
) -> Array:
    """Compute h_L = Z_L B_{L-1}ᵀ (P_L, M) from the fields (P, M)."""
    free = sum(layer.indices for layer in layers[:-1])
    # layer by layer, as the mixing of a layer needs the fields of those before
    h = fields[free:]
    inner = functools.partial(mixing, beta=beta)
    for A in mixing_matrices(fields[:free], layers[:-1], skip, inner):
        h = transfer(A, h)
    return h


def attention_link(fields: Array, layers: tuple[Layer, ...], skip: Array, beta: Array) -> Array:
    """Compute y = S_L(h_L) (M, M) from the fields (P, M)."""
    return softmax(scores(last_fields(fields, layers, skip, beta), layers[-1]), beta)


def hardmax_link(fields: Array, layers: tuple[Layer, ...], skip: Array) -> Array:
    """Compute y (M, M) of the same network with every softmax a hardmax: the limit β -> ∞, whose
    derivative is zero."""
    mean = lambda scores: jnp.mean(hardmax(scores), axis=0)
    mixing = lambda scores, skip, beta: mean(scores) + skip * jnp.eye(fields.shape[1])
    h = last_fields(fields, layers, skip, jnp.inf, mixing)
    return mean(scores(h, layers[-1]))


def invert_attention(labels: Array, beta: Array, rank: int = 1) -> Array:
    r"""Solve y = σ_β(hᵀh) (M, M), in float64, for h (r, M), up to an orthogonal matrix, r < M.

    a_ij = log(y_ij/y_ii)/β = h_i·(h_j - h_i); a_ij + a_ji = -|h_i - h_j|². Distances give h up to
    its mean, which is then linear in a. Then Gauss-Newton steps on all pairs.
    """
    M = labels.shape[0]
    logs = jnp.log(clamp_to_tiny(labels))
    a = (logs - jnp.diagonal(logs)[:, None]) / beta

    def misfit(h: Array) -> Array:
        return (jnp.sum(h[:, :, None] * (h[:, None, :] - h[:, :, None]), axis=0) - a).ravel()

    def polish(h: Array, _: None) -> tuple[Array, None]:
        jac = jax.jacfwd(misfit)(h).reshape(M * M, rank * M)
        normal = jac.T @ jac
        # rotations, and tokens that agree exactly, leave directions unseen: a tiny ridge keeps the
        # step finite
        ridge = 1e-14 * (jnp.trace(normal) + 1e-30) * jnp.eye(rank * M, dtype=h.dtype)
        step = jnp.linalg.solve(normal + ridge, jac.T @ misfit(h))
        return h - step.reshape(rank, M), None

    # derivatives come by the steps: eigenvectors have none where eigenvalues agree
    start = _from_distances(jax.lax.stop_gradient(a), rank)
    return jax.lax.scan(polish, start, None, length=2)[0]


def invert_untied_attention(labels: Array, beta: Array) -> Array:
    r"""Solve y = σ_β(q kᵀ) (M, M), in float64, for query and centred key (2, M), `balanced`.

    log y/β less its mean over each row is q κᵀ, κ = k less its mean: its row and its column through
    the largest entry, and one step of least squares for each.
    """
    logs = jnp.log(clamp_to_tiny(labels)) / beta
    product = logs - jnp.mean(logs, axis=1, keepdims=True)
    # the largest entry loses the fewest digits in a quotient
    column = jnp.argmax(jnp.abs(product)) % len(product)
    q = product[:, column]
    least = lambda a, b: a @ b / clamp_to_tiny(jnp.sum(b * b))
    k = least(product.T, q)
    return balanced(least(product, k), k)


def balanced(q: Array, k: Array) -> Array:
    """Scale to (x, x') (2, M) of one length: c x and x'/c are q and k less its mean, c > 0."""
    k = k - jnp.mean(k)
    lengths = (jnp.sum(q * q), jnp.sum(k * k))
    # c as a ratio of lengths: neither factor overflows
    ratio = (lengths[1] / clamp_to_tiny(lengths[0])) ** 0.25
    return jnp.stack([ratio * q, k / clamp_to_tiny(ratio)])


def _from_distances(a: Array, rank: int) -> Array:
    """Solve a_ij = h_i·(h_j - h_i) for h (r, M): distances give h - mean, by the leading
    eigenvectors of its Gram matrix, and a_ij - a_ii = h_i·(h_j - h_i) is linear in the mean."""
    M = a.shape[0]
    centring = jnp.eye(M, dtype=a.dtype) - 1.0 / M
    values, vectors = jnp.linalg.eigh(centring @ symmetric(a) @ centring)
    lengths = jnp.sqrt(clamp_to_tiny(values[-rank:]))
    d = lengths[:, None] * vectors[:, -rank:].T
    # Σ_i over pairs: a_ij = d_i·(d_j - d_i) + mean·(d_j - d_i), projected on d_j
    gram = d.T @ d
    rest = jnp.mean(a - (gram - jnp.diagonal(gram)[:, None]), axis=0)
    mean = (d @ rest) / lengths**2
    return d + mean[:, None]
