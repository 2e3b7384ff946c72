r"""Deep attention as a link on the fields, its exact inversion, and the exact noiseless channel.

Equations here [TCDKZ25; spec section 1 and 2]. With Z_ℓ (P_ℓ, M) the block of layer ℓ, B_0 = I_M:

    h_ℓ = Z_ℓ B_{ℓ-1}ᵀ,   A_ℓ = c_ℓ I + S_ℓ(h_ℓ),   B_ℓ = A_ℓ B_{ℓ-1},   y = S_L(h_L),
    S(h) = σ_β(hᵀh)                      one head, query and key tied;
    S(h) = (1/H) Σ_a σ_β(q_aᵀ k_a)       H heads, h the rows q_1, k_1, q_2, k_2, ..; tied: q_a = k_a, written once
    σ_β(s)_ij = exp(β s_ij) / Σ_k exp(β s_ik)        row softmax; hardmax is its limit β → ∞

Inversion, the last layer one tied head of rank one, u = h_L: log(y_ij/y_ii)/β = u_i (u_j - u_i) gives u up to one global sign.
Channel: Z_out = Σ_{s=±1} ∫ dZ_1..dZ_{L-1} |det B_{L-1}|^{-1} N((Z_1, .., Z_{L-1}, s u B_{L-1}^{-ᵀ}); ω, V).

In whitened fields τ = chol(V)^{-1}(z - ω), the inner blocks are standard Gaussians t and the last block is a residual
r_s(t); that is the form `integrate.self_refining_moments` takes, and it stays right when V goes to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.channels.base import AbstractChannel, ClosedFormChannel, Posterior, as_posterior, unwhiten
from jaxsmi.integrate import Budget, level_for_width, self_refining_moments
from jaxsmi.types import Array, check

Components = Sequence[Sequence[Array]]  # a small matrix whose entries are arrays of any common shape


class Layer(NamedTuple):
    """One attention layer: `rank` of a query (and of a key), number of `heads`, query and key `tied` or not."""

    rank: int = 1
    heads: int = 1
    tied: bool = True

    @property
    def indices(self) -> int:
        """Rows of W that the layer has."""
        return self.rank * self.heads * (1 if self.tied else 2)

    @property
    def invertible(self) -> bool:
        """Whether its attention matrix gives its fields back, up to a sign."""
        return self == Layer()


def row_softmax(scores: Components, beta: Array) -> list[list[Array]]:
    """σ_β of an M×M matrix of arrays, row by row, without overflow, every entry to full relative accuracy."""
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
    M, size = len(h[0]), len(h) // layer.heads
    found = []
    for head in range(layer.heads):
        rows = h[head * size : (head + 1) * size]
        q, k = (rows, rows) if layer.tied else (rows[: size // 2], rows[size // 2 :])
        found.append([[sum(a[i] * b[j] for a, b in zip(q, k, strict=True)) for j in range(M)] for i in range(M)])
    return found


def averaged(heads: Sequence[Components]) -> list[list[Array]]:
    """Mean of the attention matrices of the heads."""
    if len(heads) == 1:
        return [list(row) for row in heads[0]]
    M = len(heads[0])
    return [[sum(head[i][j] for head in heads) / len(heads) for j in range(M)] for i in range(M)]  # pyright: ignore


def transfer(A: Components, block: Components) -> list[list[Array]]:
    """Z Aᵀ for a block Z of rows: mixes the tokens of each row."""
    return [[sum(a * z for a, z in zip(A_row, row, strict=True)) for A_row in A] for row in block]  # pyright: ignore


def mixing(h: Components, layer: Layer, skip: Array, beta: Array) -> list[list[Array]]:
    """A = c I + S(h), M×M."""
    raw = scores(h, layer)
    if len(raw[0]) == 2:  # one logistic function a row: an absolute accuracy of 1e-16 is enough here, and twice as fast
        heads = []
        for s in raw:
            stay = [0.5 + 0.5 * jnp.tanh((0.5 * beta) * (s[i][i] - s[i][1 - i])) for i in range(2)]
            heads.append([[stay[0], 1.0 - stay[0]], [1.0 - stay[1], stay[1]]])
    else:
        heads = [row_softmax(s, beta) for s in raw]
    return [[entry + skip if i == j else entry for j, entry in enumerate(row)] for i, row in enumerate(averaged(heads))]


def eliminate(A: Components, right: Sequence[Array]) -> tuple[list[Array], Array]:
    """A^{-1} right and 1/|det A|.

    No pivoting: c I + σ(Gram) has positive leading minors, being similar to a PSD matrix. A mean of heads, or untied ones,
    may be singular on a surface, where the weight of the integrand vanishes.
    """
    A, x, M = [list(row) for row in A], list(right), len(A)
    pivots = []
    for k in range(M):
        # zero where c = 0 and two tokens agree: weight zero there
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
    inverse_det = pivots[0]
    for pivot in pivots[1:]:
        inverse_det = inverse_det * pivot
    return x, jnp.abs(inverse_det)


def inner_matrices(
    blocks: Sequence[Components], layers: Sequence[Layer], skip: Array, beta: Array
) -> list[list[list[Array]]]:
    """A_1 .. A_{L-1} from the blocks Z_1 .. Z_{L-1} (each a list of rows of M arrays)."""
    matrices: list[list[list[Array]]] = []
    for number, (block, layer) in enumerate(zip(blocks, layers, strict=True)):
        h = block
        for A in matrices:
            h = transfer(A, h)
        matrices.append(mixing(h, layer, skip[number], beta))
    return matrices


def _split(rows: Sequence[Any], layers: Sequence[Layer]) -> list[list[Any]]:
    """Rows grouped by layer."""
    ends = np.cumsum([layer.indices for layer in layers])
    return [list(rows[end - layer.indices : end]) for end, layer in zip(ends, layers, strict=True)]


def last_fields(fields: Array, layers: tuple[Layer, ...], skip: Array, beta: Array) -> Array:
    """h_L = Z_L B_{L-1}ᵀ (P_L, M) from the fields (P, M)."""
    *inner, last = _split([list(row) for row in fields], layers)
    for A in inner_matrices(inner, layers[:-1], skip, beta):
        last = transfer(A, last)
    return jnp.stack([jnp.stack(row) for row in last])


def attention_link(fields: Array, layers: tuple[Layer, ...], skip: Array, beta: Array) -> Array:
    """y = S_L(h_L) (M, M) from the fields (P, M)."""
    h = last_fields(fields, layers, skip, beta)
    heads = [row_softmax(s, beta) for s in scores([list(row) for row in h], layers[-1])]
    return jnp.stack([jnp.stack(row) for row in averaged(heads)])


def hardmax_link(fields: Array, layers: tuple[Layer, ...], skip: Array) -> Array:
    """y (M, M) of the same network with every softmax a hardmax: the limit β → ∞, whose derivative is zero."""

    def hard(block: Array, layer: Layer) -> Array:
        each = scores([list(row) for row in block], layer)
        heads = jnp.stack([jnp.stack([jnp.stack(row) for row in s]) for s in each])
        return jnp.mean(jax.nn.one_hot(jnp.argmax(heads, axis=-1), heads.shape[-1], dtype=fields.dtype), axis=0)

    *inner, last = _split(list(fields), layers)
    B = jnp.eye(fields.shape[1], dtype=fields.dtype)
    for number, (block, layer) in enumerate(zip(inner, layers[:-1], strict=True)):
        B = skip[number] * B + hard(jnp.stack(block) @ B.T, layer) @ B
    return hard(jnp.stack(last) @ B.T, layers[-1])


def invert_attention(labels: Array, beta: Array) -> Array:
    r"""u (M,), up to one global sign, from y = σ_β(u uᵀ) (M, M) in float64.

    a_ij = log(y_ij/y_ii)/β = u_i(u_j - u_i); a_ij + a_ji = -(u_i - u_j)². The pair with the largest |u_i - u_j| gives
    sign and scale, its larger member r the others by u_k = u_r + a_rk/u_r, and Gauss-Newton steps on all pairs the rest.
    """
    M = labels.shape[0]
    logs = jnp.log(jnp.maximum(labels, 1e-300))
    a = (logs - jnp.diagonal(logs)[:, None]) / beta
    gap = jnp.maximum(-(a + a.T), 0.0)
    flat = jnp.argmax(jnp.where(jnp.eye(M, dtype=bool), -1.0, gap))
    i, j = flat // M, flat % M
    delta = jnp.sqrt(jnp.maximum(gap[i, j], 1e-300))
    u_i, u_j = -a[i, j] / delta, a[j, i] / delta
    reference = jnp.where(jnp.abs(u_i) >= jnp.abs(u_j), i, j)
    u_r = jnp.where(jnp.abs(u_i) >= jnp.abs(u_j), u_i, u_j)
    u = u_r + a[reference] / jnp.where(u_r == 0.0, 1.0, u_r)

    def polish(u: Array, _: None) -> tuple[Array, None]:
        eye = jnp.eye(M, dtype=u.dtype)
        residual = u[:, None] * (u[None, :] - u[:, None]) - a
        # d/du_k [u_i(u_j - u_i)] = δ_ik (u_j - 2u_i) + δ_jk u_i
        jac = eye[:, None, :] * (u[None, :] - 2 * u[:, None])[:, :, None] + eye[None, :, :] * u[:, None, None]
        jac, residual = jac.reshape(M * M, M), residual.reshape(M * M)
        normal = jac.T @ jac
        # tokens that agree exactly leave one direction unseen: a tiny ridge keeps the step finite there
        ridge = 1e-14 * (jnp.trace(normal) + 1e-30) * eye
        return u - jnp.linalg.solve(normal + ridge, jac.T @ residual), None

    return jax.lax.scan(polish, u, None, length=2)[0]


class _AttentionLabels(AbstractChannel):
    """What the channels of noiseless attention share: the link, its labels and their inversion."""

    layers: eqx.AbstractVar[tuple[Layer, ...]]
    skip: eqx.AbstractVar[Array]
    beta: eqx.AbstractVar[Array]

    @property
    def visible(self) -> int:
        """Combinations of the fields that a label fixes: u (M,), up to its sign."""
        return self.tokens

    @property
    def noise_size(self) -> int:
        """Noiseless."""
        return 0

    def label(self, fields: Array, noise: Array) -> Array:
        """y = S_L(h_L)."""
        return attention_link(fields, self.layers, self.skip, self.beta)

    def check_labels(self, labels: Array) -> None:
        """Rows of y must be probabilities, in float64."""
        M = self.tokens
        check(labels.ndim == 3 and labels.shape[1:] == (M, M), "labels", labels, f"an array of shape (N, {M}, {M})")
        check(
            labels.dtype == jnp.float64,
            "labels",
            labels.dtype.name,
            "float64, by jax.config.update('jax_enable_x64', True) (a float32 softmax cannot be inverted)",
        )
        check(jnp.all(labels > 0.0), "labels", labels, "strictly positive attention weights (none underflowed to zero)")
        check(jnp.all(jnp.abs(jnp.sum(labels, -1) - 1.0) < 1e-8), "labels", labels, "rows of y that sum to one")

    def observe(self, fields: Array, noise: Array) -> Array:
        """u = h_L itself: exact where labels would underflow."""
        return last_fields(fields, self.layers, self.skip, self.beta)[0]

    @property
    def noiseless(self) -> Array:
        """Always."""
        return jnp.asarray(True)

    def statistic(self, labels: Array) -> Array:
        """u (N, M), up to a sign for each sample."""
        return jax.vmap(lambda y: invert_attention(y, self.beta))(labels)


class SingleAttentionChannel(ClosedFormChannel, _AttentionLabels):
    """One attention layer of rank one: the fields are seen up to a sign, Z_out = Σ_s Π_m N(s u_m; ω_m, V)."""

    tokens: int = eqx.field(static=True)
    indices: int = eqx.field(static=True)
    layers: tuple[Layer, ...] = eqx.field(static=True)
    skip: Array
    beta: Array

    def __init__(self, tokens: int, beta: Array):
        self.tokens, self.indices, self.layers, self.skip, self.beta = tokens, 1, (Layer(),), jnp.zeros((0,)), beta

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Σ_{s=±1} Π_m N(s u_m; ω_m, V)."""
        v = V[0, 0]
        exponents = [-0.5 * jnp.sum((s * statistic - omega[0]) ** 2) / v for s in (1.0, -1.0)]
        return jnp.logaddexp(*exponents) - 0.5 * self.tokens * jnp.log(2 * jnp.pi * v)


class DeepAttentionChannel(_AttentionLabels):
    """The exact noiseless channel of two or more attention layers, the last one tied head of rank one, the others any.

    The inner blocks Z_1..Z_{L-1} (M Σ_{ℓ<L} P_ℓ variables) are integrated over with `self_refining_moments`; `budget` says
    how accurate g must be and how many nodes a sample may cost. Two layers of two tokens cost about 20 ns × 1024 nodes at
    the first level on one CPU core.
    """

    tokens: int = eqx.field(static=True)
    indices: int = eqx.field(static=True)
    layers: tuple[Layer, ...] = eqx.field(static=True)
    skip: Array
    beta: Array
    budget: Budget

    def __init__(self, tokens: int, layers: tuple[Layer, ...], skip: Array, beta: Array, budget: Budget):
        self.tokens, self.indices, self.layers = tokens, sum(layer.indices for layer in layers), layers
        self.skip, self.beta, self.budget = skip, beta, budget

    @property
    def tolerated(self) -> Array:
        """The tolerance of the inner integral."""
        return self.budget.tolerance

    def respond(self, statistic: Array, omega: Array, V: Array, key: Any = None) -> Posterior:
        """Batch posterior from u (N, M), omega (N, P, M), V (P, P)."""
        P, M = self.indices, self.tokens
        chol = jnp.linalg.cholesky(V)

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[tuple[Array, list[Array]]]]:
            u, w = block  # (S, M), (S, P, M)
            L, skip, beta = (x.astype(t.dtype) for x in (chol, self.skip, self.beta))
            rows = t.T.reshape(P - 1, M, -1)  # t_{p,m} at the n nodes
            deviation = jnp.einsum("pq,qmn->pmn", L[:-1, :-1], rows)
            z = [[w[:, p, m, None] + deviation[p, m] for m in range(M)] for p in range(P - 1)]
            matrices = inner_matrices(_split(z, self.layers[:-1]), self.layers[:-1], skip, beta)
            # Z_L = ±u B^{-ᵀ}, that is v = A_1^{-1} .. A_{L-1}^{-1} u
            scale = 1.0 / L[-1, -1]
            v, jacobian = [u[:, m, None] * scale for m in range(M)], 1.0
            for A in reversed(matrices):
                v, inverse_det = eliminate(A, v)
                jacobian = jacobian * inverse_det
            shift = jnp.einsum("q,qmn->mn", L[-1, :-1], rows)  # mean of the last block given the inner ones, minus ω
            centre = [w[:, -1, m, None] * scale + shift[m] * scale for m in range(M)]
            branches = []
            for sign in (1.0, -1.0):
                r = [sign * v[m] - centre[m] for m in range(M)]
                branches.append((-0.5 * sum(x * x for x in r), r))
            return jacobian, branches  # pyright: ignore[reportReturnType]

        # narrowest feature in t: the width of the last block's conditional, in units of the widest inner field
        width = chol[-1, -1] / jnp.max(jnp.diagonal(chol)[:-1])
        # rounding moves z_L by ε|z_L| and with it g by ε|z_L|/V: a hundredth of the tolerance is no loss
        single = jnp.finfo(jnp.float32).eps <= 0.01 * self.budget.tolerance * chol[-1, -1] ** 2
        start = level_for_width((P - 1) * M, self.budget, width)
        moments = self_refining_moments(
            integrand, (statistic, omega), lambda *tau: unwhiten(chol, M, *tau), inner=(P - 1) * M, outer=M,
            budget=self.budget, start=start, key=key, single=single,
        )  # fmt: skip
        log_norm = M * (jnp.log(chol[-1, -1]) + 0.5 * jnp.log(2 * jnp.pi))
        post = as_posterior(moments, omega.shape)
        return eqx.tree_at(lambda p: p.log_partition, post, post.log_partition - log_norm)
