r"""The state of online SGD as coordinates of rows, instead of their Gram matrices.

Equations here [theory: online-sgd, Eqs. (53), (54)]: O are k + n orthonormal directions that
contain the span of the fixed rows T (k, D) and of the moving rows R (n, D), the student's W and,
with momentum, its velocities V:

    T = √D [L 0] O,   R = √D [Y Z] O,   L, Z lower triangular
    ρ = L Lᵀ,   M = Y Lᵀ,   Q = Y Yᵀ + Z Zᵀ

Where L or Z is singular the directions beyond the span are arbitrary, and the step stays exact:
nothing is inverted. (With M and Q as the state Q - M ρ⁺ Mᵀ would be factored at each step, which
loses half of the digits near recovery.) Runs lie on the last axis of every array, so that a small
matrix is a few operations over all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.numerics.triangular import total

__all__ = [
    "Coordinates",
    "Row",
    "entries",
    "factor",
    "plus",
    "product",
    "rows_of",
    "times",
]


class Coordinates(eqx.Module):
    """Rows in coordinates (module docstring); `groups` g of rows share T and nothing else.

    Attributes:
        frame: L (k, k, runs).
        along: Y (n, k, g, runs).
        across: Z (n, n, g, runs).
    """

    frame: Array
    along: Array
    across: Array

    @property
    def groups(self) -> int:
        """Number of groups of rows."""
        return self.along.shape[-2]

    def teacher_overlap(self, rows: int) -> Array:
        """M (g P, k, runs) of the first P rows of each group."""
        k = len(self.frame)
        entry = lambda p, g, j: total(
            [self.along[p, i, g] * self.frame[j, i] for i in range(j + 1)]
        )
        every = [(g, p) for g in range(self.groups) for p in range(rows)]
        return jnp.stack([jnp.stack([entry(p, g, j) for j in range(k)]) for g, p in every])

    def overlap(self, rows: int) -> Array:
        """Q (g P, g P, runs) of the first P rows of each group; NaN between groups."""
        unknown = jnp.full_like(self.along[0, 0, 0], jnp.nan)
        parts = [[*self.along[p], *self.across[p]] for p in range(rows)]
        entry = lambda p, q, g: total(
            [x[g] * y[g] for x, y in zip(parts[p], parts[q], strict=True)]
        )
        every = [(g, p) for g in range(self.groups) for p in range(rows)]
        return jnp.stack(
            [jnp.stack([entry(p, q, g) if g == h else unknown for h, q in every]) for g, p in every]
        )

    def norms(self, rows: int) -> Array:
        """‖w_p‖/√D (P, g, runs) of the first P rows of each group."""
        square = jnp.sum(self.along[:rows] ** 2, axis=1) + jnp.sum(self.across[:rows] ** 2, axis=1)
        return jnp.sqrt(square)

    def gram(self) -> Array:
        """ρ (k, k, runs)."""
        L = self.frame
        k = range(len(L))
        return jnp.stack(
            [jnp.stack([total([*(L[i] * L[j])[: min(i, j) + 1]]) for j in k]) for i in k]
        )

    def distance(self, rows: int, targets: int) -> Array:
        """‖w_p ∓ w*_p‖²/D (g P, runs), the sign that of M_pp, without cancellation; NaN where the
        teacher has other rows."""
        Y = self.along[:rows]
        if rows != targets:
            return jnp.full((self.groups * rows, Y.shape[-1]), jnp.nan, Y.dtype)
        # a difference of rows: Q - 2M + ρ would end at 1e-16
        goal = self.frame[:targets, :, None]
        sign = jnp.where(jnp.sum(Y * goal, axis=1, keepdims=True) < 0.0, -1.0, 1.0)
        square = jnp.sum((Y - sign * goal) ** 2, axis=1) + jnp.sum(self.across[:rows] ** 2, axis=1)
        return jnp.moveaxis(square, 1, 0).reshape(-1, Y.shape[-1])


# A small matrix is unrolled, entry by entry: XLA fuses these into one pass over the runs, while
# jnp.linalg.qr calls LAPACK for each run. Longer rows stay arrays. From the fourth row on the
# factor is a loop: fused unrolled steps are repeated for every entry. Empirical, at 1000 runs.
_UNROLLED = 16
_STEPS = 3
Row = list[Array] | Array


def entries(row: Row) -> Row:
    """The entries of a row (m, ..) as a list, where they are few."""
    return list(row) if len(row) <= _UNROLLED else row


def product(a: Row, b: Row) -> Array:
    """Σ_i a_i b_i of two rows."""
    if isinstance(a, list):
        return total([x * y for x, y in zip(a, b, strict=True)])
    return jnp.sum(a * jnp.asarray(b), axis=0)


def plus(a: Row, scale: Array, b: Row) -> Row:
    """a + s b of two rows."""
    if isinstance(a, list):
        return [x + scale * y for x, y in zip(a, b, strict=True)]
    return a + scale * jnp.asarray(b)


def times(scale: Array, row: Row) -> Row:
    """s a of a row."""
    return [scale * x for x in row] if isinstance(row, list) else scale * row


def factor(rows: Sequence[Row]) -> list[list[Array]]:
    """Lower triangular Λ (n, n) with Λ Λᵀ = A Aᵀ of a matrix A (n, m) given by its rows, entries of
    any common shape.

    Modified Gram-Schmidt, whose triangular factor has the backward error of Householder's. A row in
    the span of those before it has a zero pivot, and nothing of it is subtracted from the others.
    """
    if len(rows) > _STEPS:
        return _factor_by_steps(jnp.stack([jnp.stack(list(row)) for row in rows]))
    rest = list(rows)
    zero = jnp.zeros_like(rest[0][0])
    Lambda = [[zero] * len(rows) for _ in rows]
    for i in range(len(rows)):
        square = product(rest[i], rest[i])
        nonzero = square > 0.0
        norm = jnp.where(nonzero, jnp.sqrt(jnp.where(nonzero, square, 1.0)), 0.0)
        Lambda[i][i] = norm
        inverse = jnp.where(nonzero, 1.0 / jnp.where(nonzero, norm, 1.0), 0.0)
        for j in range(i + 1, len(rows)):
            Lambda[j][i] = product(rest[j], rest[i]) * inverse
            rest[j] = plus(rest[j], -Lambda[j][i] * inverse, rest[i])
    return Lambda


def _factor_by_steps(matrix: Array) -> list[list[Array]]:
    """`factor` of a matrix (n, m, ..), one step a pass of a loop."""
    n = len(matrix)
    below = jnp.arange(n).reshape(-1, *[1] * (matrix.ndim - 2))

    def step(i: int | Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, Lambda = state
        pivot = rest[i]
        square = jnp.sum(pivot**2, axis=0)
        nonzero = square > 0.0
        norm = jnp.sqrt(jnp.where(nonzero, square, 1.0))
        inverse = jnp.where(nonzero, 1.0 / norm, 0.0)
        column = jnp.where(below > i, jnp.sum(rest * pivot, axis=1) * inverse, 0.0)
        rest = rest - (column * inverse)[:, None] * pivot
        column = column.at[i].set(jnp.where(nonzero, norm, 0.0))
        return rest, Lambda.at[:, i].set(column)

    empty = jnp.zeros((n, n, *matrix.shape[2:]), matrix.dtype)
    _, Lambda = lax.fori_loop(0, n, step, (matrix, empty))
    return [list(row) for row in Lambda]


def rows_of(matrix: Array) -> Array:
    """[L 0; Y Z] (m, m) of rows (m, D) of √D: lower triangular, by a QR decomposition of the
    transpose, with a diagonal >= 0."""
    D = matrix.shape[1]
    R = jnp.linalg.qr(matrix.T / np.sqrt(D), mode="r")
    signs = jnp.where(jnp.diagonal(R) < 0.0, -1.0, 1.0)
    return (signs[:, None] * R).T
