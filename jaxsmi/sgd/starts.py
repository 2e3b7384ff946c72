r"""Where runs of online SGD begin: the frame of the teacher, and the student in it.

Equations here [theory: online-sgd, Eqs. (53), (60), (61)], exact at every D:

    iid teacher      L Lᵀ = W* W*ᵀ/D drawn, U = R*ᵀ S^{-1} W* + (G - R*ᵀ S^{-1} R*)^{1/2} N(0, 1)
    of a Gram ρ      L Lᵀ = ρ
    iid student      √D Y = s N(0, 1) (P, k),   √D Z = s Bartlett(P, D - k);   sphere: rows over
                     their norm, times s
    of (M, Q)        Y = M L^{-ᵀ},   Z Zᵀ = Q - Y Yᵀ
    of W and W*      [L 0; Y Z] from a QR decomposition of the rows
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.numerics.triangular import bartlett, bartlett_size, triangular_root
from jaxsmi.sgd.coordinates import Coordinates, rows_of

__all__ = ["Beginning", "begun", "in_frame"]

_STREAM = 2**31 - 1  # of the random start; blocks of steps have the streams from zero on


class Beginning(NamedTuple):
    """Where runs begin.

    Attributes:
        gram: ρ (k, k) of the fixed rows; None: drawn.
        teacher: W* (P*, D), with given weights.
        scale: Size of a random student.
        overlaps: M (P, k) and Q (P, P) of a student of given overlaps.
        weights: A given student (P, D).
        exact: Whether the directions of the inputs are orthonormal to each other and to a drawn
            teacher, instead of drawn beside it.
    """

    gram: Array | None
    teacher: Array | None
    scale: Array
    overlaps: tuple[Array, Array] | None
    weights: Array | None
    exact: bool


def begun(
    pair: TeacherStudent,
    beginning: Beginning,
    keys: PRNGKeyArray,
    dimension: int | Array,
    projected: bool,
    moving: int,
) -> Coordinates:
    """The start of runs, one a key, with zero velocities behind the student's rows."""

    def one(key: PRNGKeyArray) -> Coordinates:
        start = _start(pair, beginning, jax.random.fold_in(key, _STREAM), dimension, projected)
        extra = moving - len(start.along)
        across = jnp.pad(start.across, ((0, extra), (0, extra), (0, 0)))
        return Coordinates(start.frame, jnp.pad(start.along, ((0, extra), (0, 0), (0, 0))), across)

    return jax.vmap(one, out_axes=-1)(keys)


def _start(
    pair: TeacherStudent,
    beginning: Beginning,
    key: PRNGKeyArray,
    dimension: int | Array,
    projected: bool,
) -> Coordinates:
    """The start of one run."""
    k = pair.fixed
    if beginning.weights is not None and beginning.teacher is not None:
        rows = rows_of(jnp.concatenate([beginning.teacher, beginning.weights]))
        return Coordinates(rows[:k, :k], rows[k:, :k, None], rows[k:, k:, None])
    frame = _frame(pair, beginning, jax.random.fold_in(key, 1), dimension)
    if beginning.overlaps is not None:
        M, Q = beginning.overlaps
        split = M.reshape(pair.groups, pair.rows, k)
        blocks = Q.reshape(pair.groups, pair.rows, pair.groups, pair.rows)
        own = jnp.stack([blocks[g, :, g] for g in range(pair.groups)])
        Y, Z = jax.vmap(lambda m, q: in_frame(frame, m, q))(split, own)
        return Coordinates(frame, jnp.moveaxis(Y, 0, -1), jnp.moveaxis(Z, 0, -1))
    P = pair.rows
    size = P * k + bartlett_size(P)
    normals = jax.random.normal(key, (size, pair.groups), theory_dtype())
    Y = normals[: P * k].reshape(P, k, -1)
    Z = jax.vmap(lambda x: bartlett(x, P, dimension - k), -1, -1)(normals[P * k :])
    if projected:
        size = jnp.sqrt(jnp.sum(Y**2, axis=1) + jnp.sum(Z**2, axis=1))[:, None]
    else:
        size = jnp.sqrt(jnp.asarray(dimension, Y.dtype))
    return Coordinates(frame, beginning.scale * Y / size, beginning.scale * Z / size)


def _frame(
    pair: TeacherStudent, beginning: Beginning, key: PRNGKeyArray, dimension: int | Array
) -> Array:
    """L (k, k) of one run."""
    if beginning.gram is not None:
        return triangular_root(beginning.gram)
    P, K = pair.targets, pair.directions
    teacher = triangular_root(pair.draw_gram(key, dimension))
    if not K:
        return teacher
    if beginning.exact:
        return jnp.block([[teacher, jnp.zeros((P, K))], [jnp.zeros((K, P)), jnp.eye(K)]])
    S = pair.gram[:P, :P]
    R = pair.gram[:P, P:]
    G = pair.gram[P:, P:]
    into = jnp.linalg.solve(S, R).T
    rest = triangular_root(G - into @ R)
    root = jnp.sqrt(jnp.asarray(dimension, S.dtype))
    size = K * P + bartlett_size(K)
    normals = jax.random.normal(jax.random.fold_in(key, 1), (size,), S.dtype)
    beside = into @ teacher + rest @ normals[: K * P].reshape(K, P) / root
    own = rest @ bartlett(normals[K * P :], K, dimension - P) / root
    return jnp.block([[teacher, jnp.zeros((P, K))], [beside, own]])


def in_frame(frame: Array, M: Array, Q: Array) -> tuple[Array, Array]:
    """Y (P, k) and Z (P, P) of overlaps M (P, k), Q (P, P): a row of T that the ones before span
    has no coordinate of its own."""
    there = jnp.abs(jnp.diagonal(frame)) > 0.0
    safe = frame + jnp.diag(jnp.where(there, 0.0, 1.0))
    Y = jax.scipy.linalg.solve_triangular(safe, M.T, lower=True)
    Y = jnp.where(there[:, None], Y, 0.0).T
    return Y, triangular_root(Q - Y @ Y.T)
