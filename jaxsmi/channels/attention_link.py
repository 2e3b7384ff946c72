r"""Deep attention as a link on the fields, and its exact inversion.

Equations here [TCDKZ25; theory: deep-attention, Eqs. (1) to (10)]. With Z_ℓ (P_ℓ, M) the block of
layer ℓ, B_0 = I_M:

    h_ℓ = Z_ℓ B_{ℓ-1}ᵀ,   A_ℓ = c_ℓ I + S_ℓ(h_ℓ),   B_ℓ = A_ℓ B_{ℓ-1},   y = S_L(h_L)
    S(h) = σ_β(hᵀh)                    one head, query and key tied
    S(h) = (1/H) Σ_a σ_β(q_aᵀ k_a)     H heads, h the rows q_1, k_1, q_2, k_2, ..; tied: q_a = k_a,
                                       written once
    σ_β(s)_ij = exp(β s_ij) / Σ_k exp(β s_ik)        row softmax; hardmax is its limit β -> ∞

A small matrix is written as rows of arrays of any common shape (`Components`): the same lines serve
one sample and all nodes of an integral at once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.arrays import clamp_to_tiny

__all__ = [
    "Components",
    "Layer",
    "attention_link",
    "averaged",
    "balanced",
    "eliminate",
    "hardmax",
    "hardmax_link",
    "inner_matrices",
    "invert_attention",
    "invert_untied_attention",
    "last_fields",
    "scores",
    "split_rows",
    "total",
    "with_skip",
]

# a small matrix whose entries are arrays of any common shape
Components = Sequence[Sequence[Array]]
_Row = TypeVar("_Row")


class Layer(NamedTuple):
    """One attention layer: `rank` of a query (and of a key), number of `heads`, query and key
    `tied` or not."""

    rank: int = 1
    heads: int = 1
    tied: bool = True

    @property
    def indices(self) -> int:
        """Rows of W that the layer has."""
        return self.rank * self.heads * (1 if self.tied else 2)

    @property
    def invertible(self) -> bool:
        """Its attention matrix gives its fields back, up to a sign or a rotation of the plane,
        untied up to a scale (which the channel integrates over)."""
        return self.heads == 1 and self.rank <= (2 if self.tied else 1)


def total(terms: Iterable[Array]) -> Array:
    """The sum of arrays, from left to right."""
    return functools.reduce(operator.add, terms)


def row_softmax(scores: Components, beta: Array) -> list[list[Array]]:
    """σ_β of an M×M matrix of arrays, row by row, without overflow, every entry to full relative
    accuracy."""
    rows = []
    for row in scores:
        top = row[0]
        for entry in row[1:]:
            top = jnp.maximum(top, entry)
        raised = [jnp.exp(beta * (entry - jax.lax.stop_gradient(top))) for entry in row]
        norm = 1.0 / sum(raised[1:], raised[0])
        rows.append([x * norm for x in raised])
    return rows


def scores(h: Components, layer: Layer) -> list[list[list[Array]]]:
    """qᵀk (M×M) of each head, for h given as rows of M arrays."""
    size = len(h) // layer.heads
    heads = []
    for head in range(layer.heads):
        rows = h[head * size : (head + 1) * size]
        q, k = (rows, rows) if layer.tied else (rows[: size // 2], rows[size // 2 :])
        pairs = list(zip(q, k, strict=True))
        M = range(len(q[0]))
        heads.append([[total(a[i] * b[j] for a, b in pairs) for j in M] for i in M])
    return heads


def averaged(heads: Sequence[Components]) -> list[list[Array]]:
    """Mean of the attention matrices of the heads."""
    if len(heads) == 1:
        return [list(row) for row in heads[0]]
    M = range(len(heads[0]))
    return [[total(head[i][j] for head in heads) / len(heads) for j in M] for i in M]


def transfer(A: Components, block: Components) -> list[list[Array]]:
    """Z Aᵀ for a block Z of rows: mixes the tokens of each row."""
    return [[total(a * z for a, z in zip(A_row, row, strict=True)) for A_row in A] for row in block]


def with_skip(raw: Sequence[Components], skip: Array, beta: Array) -> list[list[Array]]:
    """c I + the mean of σ_β of the scores of each head."""
    if len(raw[0]) == 2:
        # one logistic function a row: an absolute accuracy of 1e-16 is enough here, and twice as
        # fast
        heads = []
        for s in raw:
            stay = [0.5 + 0.5 * jnp.tanh((0.5 * beta) * (s[i][i] - s[i][1 - i])) for i in range(2)]
            heads.append([[stay[0], 1.0 - stay[0]], [1.0 - stay[1], stay[1]]])
    else:
        heads = [row_softmax(s, beta) for s in raw]
    return [
        [entry + skip if i == j else entry for j, entry in enumerate(row)]
        for i, row in enumerate(averaged(heads))
    ]


def eliminate(A: Components, right: Sequence[Array]) -> tuple[list[Array], Array]:
    """A^{-1} right and 1/|det A|.

    No pivoting: c I + σ(Gram) has positive leading minors, being similar to a PSD matrix. A mean of
    heads, or untied ones, may be singular on a surface, where the weight of the integrand vanishes.
    """
    A = [list(row) for row in A]
    x = list(right)
    M = len(A)
    pivots = []
    for k in range(M):
        # a pivot is zero where c = 0 and two tokens agree: the weight is zero there
        tiny = 1e-100 if A[k][k].dtype == jnp.float64 else 1e-15
        pivots.append(1.0 / jnp.where(jnp.abs(A[k][k]) < tiny, tiny, A[k][k]))
        for i in range(k + 1, M):
            factor = A[i][k] * pivots[k]
            A[i] = A[i][: k + 1] + [A[i][j] - factor * A[k][j] for j in range(k + 1, M)]
            x[i] = x[i] - factor * x[k]
    for k in reversed(range(M)):
        for j in range(k + 1, M):
            x[k] = x[k] - A[k][j] * x[j]
        x[k] = x[k] * pivots[k]
    return x, jnp.abs(functools.reduce(operator.mul, pivots))


def inner_matrices(
    blocks: Sequence[Components], layers: Sequence[Layer], skip: Array, beta: Array
) -> list[list[list[Array]]]:
    """A_1 .. A_{L-1} from the blocks Z_1 .. Z_{L-1} (each a list of rows of M arrays)."""
    matrices: list[list[list[Array]]] = []
    for number, (block, layer) in enumerate(zip(blocks, layers, strict=True)):
        h = block
        for A in matrices:
            h = transfer(A, h)
        matrices.append(with_skip(scores(h, layer), skip[number], beta))
    return matrices


def split_rows(rows: Sequence[_Row], layers: Sequence[Layer]) -> list[list[_Row]]:
    """Rows grouped by layer."""
    ends = np.cumsum([layer.indices for layer in layers])
    return [list(rows[end - layer.indices : end]) for end, layer in zip(ends, layers, strict=True)]


def last_fields(fields: Array, layers: tuple[Layer, ...], skip: Array, beta: Array) -> Array:
    """h_L = Z_L B_{L-1}ᵀ (P_L, M) from the fields (P, M)."""
    *inner, last = split_rows([list(row) for row in fields], layers)
    for A in inner_matrices(inner, layers[:-1], skip, beta):
        last = transfer(A, last)
    return jnp.stack([jnp.stack(row) for row in last])


def attention_link(fields: Array, layers: tuple[Layer, ...], skip: Array, beta: Array) -> Array:
    """y = S_L(h_L) (M, M) from the fields (P, M)."""
    h = last_fields(fields, layers, skip, beta)
    heads = [row_softmax(s, beta) for s in scores([list(row) for row in h], layers[-1])]
    return jnp.stack([jnp.stack(row) for row in averaged(heads)])


def hardmax(scores: Array) -> Array:
    """σ_∞ of scores (.., M, M): each row points at its largest entry."""
    return jax.nn.one_hot(jnp.argmax(scores, axis=-1), scores.shape[-1], dtype=scores.dtype)


def hardmax_link(fields: Array, layers: tuple[Layer, ...], skip: Array) -> Array:
    """y (M, M) of the same network with every softmax a hardmax: the limit β -> ∞, whose derivative
    is zero."""

    def hard(block: Array, layer: Layer) -> Array:
        each = scores([list(row) for row in block], layer)
        heads = jnp.stack([jnp.stack([jnp.stack(row) for row in s]) for s in each])
        return jnp.mean(hardmax(heads), axis=0)

    *inner, last = split_rows(list(fields), layers)
    B = jnp.eye(fields.shape[1], dtype=fields.dtype)
    for number, (block, layer) in enumerate(zip(inner, layers[:-1], strict=True)):
        B = skip[number] * B + hard(jnp.stack(block) @ B.T, layer) @ B
    return hard(jnp.stack(last) @ B.T, layers[-1])


def invert_attention(labels: Array, beta: Array, rank: int = 1) -> Array:
    r"""h (r, M), up to an orthogonal matrix, from y = σ_β(hᵀh) (M, M) in float64, r < M.

    a_ij = log(y_ij/y_ii)/β = h_i·(h_j - h_i); a_ij + a_ji = -|h_i - h_j|². Rank one: the pair with
    the largest |h_i - h_j| gives sign and scale, its larger member r the others by
    h_k = h_r + a_rk/h_r. Above: distances give h up to its mean, which is then linear in a. Then
    Gauss-Newton steps on all pairs.
    """
    M = labels.shape[0]
    logs = jnp.log(clamp_to_tiny(labels))
    a = (logs - jnp.diagonal(logs)[:, None]) / beta
    h = _from_largest_gap(a)[None] if rank == 1 else _from_distances(a, rank)

    def polish(h: Array, _: None) -> tuple[Array, None]:
        eye = jnp.eye(M, dtype=h.dtype)
        residual = jnp.sum(h[:, :, None] * (h[:, None, :] - h[:, :, None]), axis=0) - a
        # d/dh_k [h_i·(h_j - h_i)] = δ_ik (h_j - 2h_i) + δ_jk h_i
        jac = (
            eye[:, None, None, :]
            * (h[:, None, :] - 2 * h[:, :, None]).transpose(1, 2, 0)[..., None]
            + eye[None, :, None, :] * h.T[:, None, :, None]
        )
        jac = jac.reshape(M * M, rank * M)
        normal = jac.T @ jac
        # rotations, and tokens that agree exactly, leave directions unseen: a tiny ridge keeps the
        # step finite
        ridge = 1e-14 * (jnp.trace(normal) + 1e-30) * jnp.eye(rank * M, dtype=h.dtype)
        step = jnp.linalg.solve(normal + ridge, jac.T @ residual.reshape(M * M))
        return h - step.reshape(rank, M), None

    return jax.lax.scan(polish, h, None, length=2)[0]


def invert_untied_attention(labels: Array, beta: Array) -> Array:
    r"""`balanced` query and centred key (2, M) from y = σ_β(q kᵀ) (M, M) in float64.

    log y/β less its mean over each row is q κᵀ, κ = k less its mean: its row and its column through
    the largest entry, and one step of least squares for each.
    """
    logs = jnp.log(clamp_to_tiny(labels)) / beta
    product = logs - jnp.mean(logs, axis=1, keepdims=True)
    column = jnp.argmax(jnp.abs(product)) % len(product)
    q = product[:, column]
    least = lambda a, b: a @ b / clamp_to_tiny(jnp.sum(b * b))
    k = least(product.T, q)
    return balanced(least(product, k), k)


def balanced(q: Array, k: Array) -> Array:
    """(x, x') (2, M), of one length: c x and x'/c are q and k less its mean, for some c > 0."""
    k = k - jnp.mean(k)
    lengths = (jnp.sum(q * q), jnp.sum(k * k))
    ratio = (lengths[1] / clamp_to_tiny(lengths[0])) ** 0.25
    return jnp.stack([ratio * q, k / clamp_to_tiny(ratio)])


def _from_largest_gap(a: Array) -> Array:
    """h (M,) of rank one from a_ij = h_i (h_j - h_i)."""
    M = a.shape[0]
    gap = jnp.maximum(-(a + a.T), 0.0)
    flat = jnp.argmax(jnp.where(jnp.eye(M, dtype=bool), -1.0, gap))
    i = flat // M
    j = flat % M
    delta = jnp.sqrt(clamp_to_tiny(gap[i, j]))
    u_i = -a[i, j] / delta
    u_j = a[j, i] / delta
    reference = jnp.where(jnp.abs(u_i) >= jnp.abs(u_j), i, j)
    u_r = jnp.where(jnp.abs(u_i) >= jnp.abs(u_j), u_i, u_j)
    return u_r + a[reference] / jnp.where(u_r == 0.0, 1.0, u_r)


def _from_distances(a: Array, rank: int) -> Array:
    """h (r, M) from a_ij = h_i·(h_j - h_i): distances give h - mean, by the leading eigenvectors of
    its Gram matrix, and a_ij - a_ii = h_i·(h_j - h_i) is linear in the mean."""
    M = a.shape[0]
    centring = jnp.eye(M, dtype=a.dtype) - 1.0 / M
    values, vectors = jnp.linalg.eigh(centring @ (0.5 * (a + a.T)) @ centring)
    lengths = jnp.sqrt(clamp_to_tiny(values[-rank:]))
    d = lengths[:, None] * vectors[:, -rank:].T
    # Σ_i over pairs: a_ij = d_i·(d_j - d_i) + mean·(d_j - d_i), projected on d_j
    gram = d.T @ d
    rest = jnp.mean(a - (gram - jnp.diagonal(gram)[:, None]), axis=0)
    mean = (d @ rest) / lengths**2
    return d + mean[:, None]
