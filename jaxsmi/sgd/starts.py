r"""Where runs of online SGD begin: the frame of the teacher, and the student in it.

Equations here [theory: online-sgd, Eqs. (53), (60), (61)], exact at every D:

    iid teacher      L Lᵀ = W* W*ᵀ/D drawn, U = R*ᵀ S^{-1} W* + (G - R*ᵀ S^{-1} R*)^{1/2} N(0, 1)
    Gram matrix ρ    L Lᵀ = ρ
    iid student      √D Y = s N(0, 1) (P, k),   √D Z = s Bartlett(P, D - k);   sphere: rows over
                     their norm, times s
    (M, Q)           Y = M L^{-ᵀ},   Z Zᵀ = Q - Y Yᵀ
    W and W*         [L 0; Y Z] from a QR decomposition of the rows
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.numerics.triangular import bartlett, bartlett_size, triangular_root
from jaxsmi.sgd.coordinates import Coordinates, placed, rows_of
from jaxsmi.sgd.problem import Initial, Point, gram_of, point_of

_STREAM = 2**31 - 1  # of the random start; blocks of steps have the streams from zero on


class Beginning(NamedTuple):
    """Where runs begin.

    Attributes:
        gram: ρ (k, k) of the fixed rows; None: drawn.
        scale: Size of a random student; None: it is not random.
        point: Overlaps M (P, k) and Q (P, P) of the student; None: it has weights or is random.
        rows: Weights [W*; W] (P* + P, D); None: overlaps alone.
    """

    gram: Array | None = None
    scale: Array | None = None
    point: Point | None = None
    rows: Array | None = None


def beginning_of(pair: TeacherStudent, initial: Initial, dimension: int) -> Beginning:
    """Where runs begin, from the arguments of a call."""
    student, teacher = initial.student, initial.teacher
    words = "'iid', 'orthonormal', ρ (k, k) or weights (P*, D)"
    named = teacher is None or isinstance(teacher, str)
    weights = None if named else validate.array("teacher", teacher, words)
    # an array of another shape is ρ
    if weights is not None and weights.shape != (pair.targets, dimension):
        weights = None
    overlaps = pair.spherical or isinstance(student, (tuple, list))
    if not overlaps and np.ndim(student) == 2:
        allowed = f"W* ({pair.targets}, {dimension}) beside weights, of inputs without directions"
        if weights is None or pair.directions:
            raise ValueError(f"teacher: got {teacher!r}; allowed: {allowed}.")
        allowed = f"a scale, overlaps (M, Q), or weights ({pair.rows}, {dimension})"
        W = validate.array("start", student, allowed, shape=(pair.rows, dimension))
        return Beginning(rows=jnp.concatenate([weights, W]))
    if weights is None:
        gram = gram_of(pair, teacher)
    else:
        gram = pair.gram.at[: pair.targets, : pair.targets].set(weights @ weights.T / dimension)
        least = jnp.linalg.eigvalsh(gram)[0] >= -1e-9 * jnp.max(jnp.abs(gram))
        allowed = "weights whose Gram matrix fits the overlaps with directions of the inputs"
        check(least & (not pair.spherical), "teacher", teacher, allowed)
    if student is None or not overlaps:
        allowed = "a scale > 0, overlaps (M, Q), or weights (P, D)"
        kind = dataclasses.replace(POSITIVE, allowed=allowed)
        scale = validate.number("start", 1.0 if student is None else student, kind)
        iid = teacher == "iid" if isinstance(teacher, str) else teacher is None
        # the direction of a model on the sphere has norm one at every D
        return Beginning(None if iid and not pair.spherical else gram, scale)
    # overlaps with a teacher that is still to be drawn would be of another one
    fixed = not (isinstance(teacher, str) and teacher == "iid")
    check(fixed, "teacher", teacher, "'orthonormal', ρ or weights, beside overlaps of a start")
    return Beginning(gram, point=point_of(pair, gram, student))


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
        extra = moving - len(start.along)  # velocities: optax starts them at zero, too
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
    P, k = pair.rows, pair.fixed
    if beginning.rows is not None:
        rows = rows_of(beginning.rows)
        return Coordinates(rows[:k, :k], rows[k:, :k, None], rows[k:, k:, None])
    frame = _frame(pair, beginning.gram, jax.random.fold_in(key, 1), dimension)
    if beginning.point is not None:
        return placed(pair, frame, *beginning.point)
    size = P * k + bartlett_size(P)
    normals = jax.random.normal(key, (size, pair.groups), theory_dtype())
    # projections of iid rows on the fixed rows are normal, and what is left of them is Wishart's
    Y = normals[: P * k].reshape(P, k, -1)
    Z = jax.vmap(lambda x: bartlett(x, P, dimension - k), -1, -1)(normals[P * k :])
    if projected:
        norm = jnp.sqrt(jnp.sum(Y**2, axis=1) + jnp.sum(Z**2, axis=1))[:, None]
    else:
        norm = jnp.sqrt(jnp.asarray(dimension, Y.dtype))
    scale = 1.0 if beginning.scale is None else beginning.scale
    return Coordinates(frame, scale * Y / norm, scale * Z / norm)


def _frame(
    pair: TeacherStudent, gram: Array | None, key: PRNGKeyArray, dimension: int | Array
) -> Array:
    """L (k, k) of one run."""
    if gram is not None:
        return triangular_root(gram)
    P, K = pair.targets, pair.directions
    teacher = triangular_root(pair.draw_gram(key, dimension))
    if not K:
        return teacher
    # the directions of the inputs given the teacher: Gaussian, with the cross moments R*
    S, R, G = pair.gram[:P, :P], pair.gram[:P, P:], pair.gram[P:, P:]
    into = jnp.linalg.solve(S, R).T
    rest = triangular_root(G - into @ R)
    root = jnp.sqrt(jnp.asarray(dimension, S.dtype))
    size = K * P + bartlett_size(K)
    normals = jax.random.normal(jax.random.fold_in(key, 1), (size,), S.dtype)
    beside = into @ teacher + rest @ normals[: K * P].reshape(K, P) / root
    own = rest @ bartlett(normals[K * P :], K, dimension - P) / root
    return jnp.block([[teacher, jnp.zeros((P, K))], [beside, own]])
