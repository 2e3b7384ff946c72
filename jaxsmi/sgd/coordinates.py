r"""The state of online SGD as coordinates of rows, instead of their Gram matrices.

Equations here [theory: online-sgd, Eqs. (53), (54)]: O are k + n orthonormal directions that
contain the span of the fixed rows T (k, D) and of the n rows that move, the student's W and, with
momentum, its velocities below:

    T = √D [L 0] O,   W = √D [Y Z] O,   L, Z lower triangular
    ρ = L Lᵀ,   M = Y Lᵀ,   Q = Y Yᵀ + Z Zᵀ

and fields of teacher and student with the slopes s of the loss there [Eqs. (51), (55)], N_T (k, BM)
and N_Z (n, BM) iid N(0, 1) for the B M tokens of a batch, U = L_Uᵀ Eᵀ their means, the rows of L
that belong to directions of the inputs L_U:

    h = L (N_T + U),   z = Y (N_T + U) + Z N_Z,   s = ∂ℓ/∂z

Letters here: T fixed rows (not tokens), L their coordinates (not layers), Z, Y those of W.

Where L or Z is singular the directions beyond the span are arbitrary, and the step stays exact:
nothing is inverted. (With M and Q as the state Q - M ρ⁺ Mᵀ would be factored at each step, which
loses half of the digits near recovery.) Groups of rows and runs (or points of an average) lie on
the last two axes of every array, so that a small matrix is a few operations over all of them at
once.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.numerics.linear_algebra import coordinates_of


class Coordinates(eqx.Module):
    """Coordinates of rows (module docstring); `groups` g of rows share T and nothing else.

    Attributes:
        frame: L (k, k, runs).
        along: Y (n, k, g, runs).
        across: Z (n, n, g, runs).
    """

    frame: Array
    along: Array
    across: Array

    def teacher_overlap(self, rows: int) -> Array:
        """M (g P, k, runs) of the first P rows of each group."""
        M = jnp.sum(self.along[:rows, None] * self.frame[:, :, None], axis=2)
        return jnp.moveaxis(M, 2, 0).reshape(-1, len(self.frame), M.shape[-1])

    def overlap(self, rows: int) -> Array:
        """Q (g P, g P, runs) of the first P rows of each group; NaN between groups."""
        both = jnp.concatenate([self.along, self.across], axis=1)[:rows]
        Q = jnp.moveaxis(jnp.sum(both[:, None] * both, axis=2), 2, 0)
        groups, _, _, runs = Q.shape
        # not zero: groups have an overlap, but nothing depends on it and no step follows it
        same = jnp.eye(groups, dtype=bool)[:, None, :, None, None]
        return jnp.where(same, Q[:, :, None], jnp.nan).reshape(groups * rows, -1, runs)

    def norms(self, rows: int) -> Array:
        """‖w_p‖/√D (P, g, runs) of the first P rows of each group."""
        square = jnp.sum(self.along[:rows] ** 2, axis=1) + jnp.sum(self.across[:rows] ** 2, axis=1)
        return jnp.sqrt(square)

    def gram(self) -> Array:
        """ρ (k, k, runs)."""
        return jnp.sum(self.frame[:, None] * self.frame, axis=2)

    def distance(self, rows: int, targets: int) -> Array:
        """‖w_p ∓ w*_p‖²/D (g P, runs), the sign that of M_pp, without cancellation; NaN where the
        teacher has other rows."""
        Y = self.along[:rows]
        if rows != targets:
            return jnp.full((Y.shape[2] * rows, Y.shape[-1]), jnp.nan, Y.dtype)
        # a difference of rows: Q - 2M + ρ would end at 1e-16
        L = self.frame[:targets, :, None]
        sign = jnp.where(jnp.sum(Y * L, axis=1, keepdims=True) < 0.0, -1.0, 1.0)
        square = jnp.sum((Y - sign * L) ** 2, axis=1) + jnp.sum(self.across[:rows] ** 2, axis=1)
        return jnp.moveaxis(square, 1, 0).reshape(-1, Y.shape[-1])


def coordinates_at(pair: TeacherStudent, frame: Array, M: Array, Q: Array) -> Coordinates:
    """Coordinates of rows with overlaps M (g P, k) and Q (g P, g P), without an axis of runs."""
    split = M.reshape(pair.groups, pair.rows, pair.fixed)
    blocks = Q.reshape(pair.groups, pair.rows, pair.groups, pair.rows)
    # rows of different groups see different tokens: nothing depends on their overlap
    own = jnp.stack([blocks[g, :, g] for g in range(pair.groups)])
    coordinates = jax.vmap(coordinates_of, (None, 0, 0), -1)
    return Coordinates(frame, *coordinates(frame, split, own))


def fields_of(rows: Array, tokens: Array) -> Array:
    """Fields (p, BM, g, runs) of rows (p, m, g, runs) and tokens (m, BM, g, runs)."""
    return jnp.sum(rows[:, :, None] * tokens, axis=1)


def add_means(pair: TeacherStudent, frame: Array, fixed: Array) -> Array:
    """Add the means U of the tokens to N_T along the fixed rows (k, BM, g, runs)."""
    if not pair.directions:
        return fixed
    # a direction of the inputs is a row of L, like the teacher's rows
    means = jnp.einsum("bjr,tb->jtr", frame[pair.targets :], pair.encoding)
    means = means.reshape(pair.fixed, 1, pair.tokens, pair.groups, -1)
    runs = fixed.shape[-1]
    each = fixed.reshape(pair.fixed, -1, pair.tokens, pair.groups, runs) + means
    return each.reshape(fixed.shape)


def slopes(pair: TeacherStudent, teacher_fields: Array, fields: Array, noise: Array) -> Array:
    """Slopes s (P, BM, g, runs) of samples, from the label noise (entries, B, runs)."""
    split = lambda x: x.reshape(len(x), noise.shape[1], -1, x.shape[-1])
    # samples inside, runs outside: the innermost axis of memory stays that of the runs
    one = jax.grad(pair.sample_loss, argnums=1)
    samples = jax.vmap(one, in_axes=1, out_axes=1)
    every = jax.vmap(samples, in_axes=-1, out_axes=-1)
    return every(split(teacher_fields), split(fields), noise).reshape(fields.shape)


# Up to so many rows the steps of `factor` are unrolled, and XLA fuses them into one pass over the
# runs; more of them it would repeat for every entry. Empirical, at 1000 runs.
_MAX_UNROLLED = 3


def factor(matrix: Array) -> Array:
    """Lower triangular Λ (n, n, ..) with Λ Λᵀ = A Aᵀ of a matrix A (n, m, ..).

    Modified Gram-Schmidt, whose triangular factor has the backward error of Householder's. A row in
    the span of those before it has a zero pivot, and nothing of it is subtracted from the others.
    """
    n = len(matrix)
    below = jnp.arange(n).reshape(-1, *[1] * (matrix.ndim - 2))

    def step(i: int | Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rest, Lambda = state
        square = jnp.sum(rest[i] ** 2, axis=0)
        nonzero = square > 0.0
        norm = jnp.sqrt(jnp.where(nonzero, square, 1.0))
        inverse = jnp.where(nonzero, 1.0 / norm, 0.0)
        column = jnp.where(below > i, jnp.sum(rest * rest[i], axis=1) * inverse, 0.0)
        rest = rest - (column * inverse)[:, None] * rest[i]
        column = column.at[i].set(jnp.where(nonzero, norm, 0.0))
        return rest, Lambda.at[:, i].set(column)

    state = matrix, jnp.zeros((n, n, *matrix.shape[2:]), matrix.dtype)
    if n > _MAX_UNROLLED:
        return lax.fori_loop(0, n, step, state)[1]
    for i in range(n):
        state = step(i, state)
    return state[1]


def rows_of(matrix: Array) -> Array:
    """[L 0; Y Z] (m, m) of rows (m, D) of √D: lower triangular, by a QR decomposition of the
    transpose, with a diagonal >= 0."""
    D = matrix.shape[1]
    R = jnp.linalg.qr(matrix.T / np.sqrt(D), mode="r")
    signs = jnp.where(jnp.diagonal(R) < 0.0, -1.0, 1.0)
    return (signs[:, None] * R).T
