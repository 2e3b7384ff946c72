r"""Deep attention as a link on the fields, its exact inversion, and the exact noiseless channel.

Equations here [TCDKZ25, Eq. of section 1; spec section 1 and 2]. With Z_ℓ (P_ℓ, M) the block of layer ℓ, B_0 = I_M:

    h_ℓ = Z_ℓ B_{ℓ-1}ᵀ,   A_ℓ = c_ℓ I + σ_β(h_ℓᵀ h_ℓ),   B_ℓ = A_ℓ B_{ℓ-1},   y = σ_β(h_Lᵀ h_L),
    σ_β(s)_ij = exp(β s_ij) / Σ_k exp(β s_ik)                                        (row softmax)

Inversion, P_L = 1, u = h_L: log(y_ij/y_ii)/β = u_i (u_j - u_i), which gives u up to one global sign.
Channel: Z_out = Σ_{s=±1} ∫ dZ_1..dZ_{L-1} |det B_{L-1}|^{-1} N((Z_1, .., Z_{L-1}, s u B_{L-1}^{-ᵀ}); ω, V).

In whitened fields τ = chol(V)^{-1}(z - ω), the inner blocks are standard Gaussians t and the last block is a residual
r_s(t); that is the form `integrate.self_refining_moments` takes, and it stays right when V goes to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.channels.base import AbstractChannel, ClosedFormChannel, Posterior, as_posterior, unwhiten
from jaxsmi.integrate import Budget, level_for_width, self_refining_moments
from jaxsmi.types import Array, check

Components = Sequence[Sequence[Array]]  # a small matrix whose entries are arrays of any common shape


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


def gram(h: Components) -> list[list[Array]]:
    """hᵀh for h given as rows of M arrays."""
    M = len(h[0])
    return [[sum(row[i] * row[j] for row in h) for j in range(M)] for i in range(M)]  # pyright: ignore[reportReturnType]


def transfer(A: Components, block: Components) -> list[list[Array]]:
    """Z Aᵀ for a block Z of rows: mixes the tokens of each row."""
    return [[sum(a * z for a, z in zip(A_row, row, strict=True)) for A_row in A] for row in block]  # pyright: ignore


def mixing(h: Components, skip: Array, beta: Array) -> list[list[Array]]:
    """A = c I + σ_β(hᵀh), M×M."""
    scores = gram(h)
    if len(scores) == 2:  # one logistic function a row: an absolute accuracy of 1e-16 is enough here, and twice as fast
        stay = [0.5 + 0.5 * jnp.tanh((0.5 * beta) * (scores[i][i] - scores[i][1 - i])) for i in range(2)]
        return [[stay[0] + skip, 1.0 - stay[0]], [1.0 - stay[1], stay[1] + skip]]
    A = row_softmax(scores, beta)
    return [[entry + skip if i == j else entry for j, entry in enumerate(row)] for i, row in enumerate(A)]


def eliminate(A: Components, right: Sequence[Array]) -> tuple[list[Array], Array]:
    """A^{-1} right and 1/det A. No pivoting: c I + σ(Gram) has positive leading minors, being similar to a PSD matrix."""
    A, x, M = [list(row) for row in A], list(right), len(A)
    pivots = []
    for k in range(M):
        # zero where c = 0 and two tokens agree: weight zero there
        pivots.append(1.0 / jnp.maximum(A[k][k], 1e-100 if A[k][k].dtype == jnp.float64 else 1e-15))
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
    return x, inverse_det


def inner_matrices(blocks: Sequence[Components], skip: Array, beta: Array) -> list[list[list[Array]]]:
    """A_1 .. A_{L-1} from the blocks Z_1 .. Z_{L-1} (each a list of rows of M arrays)."""
    matrices: list[list[list[Array]]] = []
    for layer, block in enumerate(blocks):
        h = block
        for A in matrices:
            h = transfer(A, h)
        matrices.append(mixing(h, skip[layer], beta))
    return matrices


def _split(fields: Array, ranks: tuple[int, ...]) -> list[list[list[Array]]]:
    """Rows of (P, M, ...) grouped by layer, as components."""
    ends = np.cumsum(ranks)
    rows = [list(row) for row in fields]
    return [rows[end - rank : end] for end, rank in zip(ends, ranks, strict=True)]


def last_fields(fields: Array, ranks: tuple[int, ...], skip: Array, beta: Array) -> Array:
    """h_L = Z_L B_{L-1}ᵀ (P_L, M) from the fields (P, M)."""
    *inner, last = _split(fields, ranks)
    for A in inner_matrices(inner, skip, beta):
        last = transfer(A, last)
    return jnp.stack([jnp.stack(row) for row in last])


def attention_link(fields: Array, ranks: tuple[int, ...], skip: Array, beta: Array) -> Array:
    """y = σ_β(h_Lᵀ h_L) (M, M) from the fields (P, M)."""
    h = last_fields(fields, ranks, skip, beta)
    return jnp.stack([jnp.stack(row) for row in row_softmax(gram([list(row) for row in h]), beta)])


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

    ranks: eqx.AbstractVar[tuple[int, ...]]
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
        """y = σ_β(h_Lᵀ h_L)."""
        return attention_link(fields, self.ranks, self.skip, self.beta)

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
        return last_fields(fields, self.ranks, self.skip, self.beta)[0]

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
    ranks: tuple[int, ...] = eqx.field(static=True)
    skip: Array
    beta: Array

    def __init__(self, tokens: int, beta: Array):
        self.tokens, self.indices, self.ranks, self.skip, self.beta = tokens, 1, (1,), jnp.zeros((0,)), beta

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Σ_{s=±1} Π_m N(s u_m; ω_m, V)."""
        v = V[0, 0]
        exponents = [-0.5 * jnp.sum((s * statistic - omega[0]) ** 2) / v for s in (1.0, -1.0)]
        return jnp.logaddexp(*exponents) - 0.5 * self.tokens * jnp.log(2 * jnp.pi * v)


class DeepAttentionChannel(_AttentionLabels):
    """The exact noiseless channel of two or more attention layers, the last of rank one.

    The inner blocks Z_1..Z_{L-1} (M Σ_{ℓ<L} P_ℓ variables) are integrated over with `self_refining_moments`; `budget` says
    how accurate g must be and how many nodes a sample may cost. Two layers of two tokens cost about 20 ns × 1024 nodes at
    the first level on one CPU core.
    """

    tokens: int = eqx.field(static=True)
    indices: int = eqx.field(static=True)
    ranks: tuple[int, ...] = eqx.field(static=True)
    skip: Array
    beta: Array
    budget: Budget

    def __init__(self, tokens: int, ranks: tuple[int, ...], skip: Array, beta: Array, budget: Budget):
        self.tokens, self.indices, self.ranks = tokens, sum(ranks), ranks
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
            ends = np.cumsum(self.ranks[:-1])
            blocks = [z[end - rank : end] for end, rank in zip(ends, self.ranks[:-1], strict=True)]
            matrices = inner_matrices(blocks, skip, beta)
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
