r"""Fields of teacher and student in the coordinates of their rows, and slopes of the loss there.

Equations here [theory: online-sgd, Eqs. (51), (55)], N_T (k, T) and N_Z (n, T) iid N(0, 1) for T
tokens, U = L_Uᵀ Eᵀ their means, the rows of L that belong to directions of the inputs L_U:

    h = L (N_T + U),   z = Y (N_T + U) + Z N_Z,   S = ∂ℓ/∂z

Tokens are T = B M of a batch; groups of rows and runs (or points of an average) lie on the last two
axes. Sums over rows are written out, so that XLA fuses them into one pass over the runs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.numerics.triangular import total
from jaxsmi.sgd.coordinates import Coordinates

__all__ = ["fields", "fixed_fields", "shifted", "slopes"]


def shifted(pair: TeacherStudent, frame: Array, fixed: Array) -> Array:
    """N_T + U (k, T, g, runs): tokens with their means, along the fixed rows."""
    if not pair.directions:
        return fixed
    rows = frame[pair.targets :]
    E = pair.encoding
    means = [
        total([rows[b, j] * E[:, b, None] for b in range(pair.directions)])
        for j in range(pair.fixed)
    ]
    one = jnp.stack(means).reshape(pair.fixed, 1, pair.tokens, pair.groups, -1)
    shape = (pair.fixed, fixed.shape[1] // pair.tokens, *one.shape[2:])
    return fixed + jnp.broadcast_to(one, shape).reshape(*fixed.shape[:3], -1)


def fixed_fields(frame: Array, inputs: Array, rows: int) -> Array:
    """h (rows, T, g, runs) of the first fixed rows, z* first."""
    return jnp.stack([total([frame[q, j] * inputs[j] for j in range(q + 1)]) for q in range(rows)])


def fields(rows: int, position: Coordinates, inputs: Array, moving: Array) -> Array:
    """z (P, T, g, runs)."""
    Y, Z = position.along, position.across

    def one(p: int) -> Array:
        along = [Y[p, j] * x for j, x in enumerate(inputs)]
        return total([*along, *(Z[p, i] * moving[i] for i in range(p + 1))])

    return jnp.stack([one(p) for p in range(rows)])


def slopes(pair: TeacherStudent, hidden: Array, fields: Array, label: Array) -> Array:
    """S (P, T, g, runs) of samples with labels' noise (noise, B, runs)."""
    B = label.shape[1]
    runs = fields.shape[-1]
    split = lambda x: x.reshape(len(x), B, -1, runs)
    # samples inside, runs outside: the innermost axis of memory stays that of the runs
    one = jax.grad(pair.sample_loss, argnums=1)
    samples = jax.vmap(one, in_axes=1, out_axes=1)
    every = jax.vmap(samples, in_axes=-1, out_axes=-1)
    return every(split(hidden), split(fields), label).reshape(fields.shape)
