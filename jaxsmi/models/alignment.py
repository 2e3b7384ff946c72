"""An estimate brought onto a teacher by the symmetries of its model."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.checks import check
from jaxsmi.models.index import AbstractIndexModel
from jaxsmi.models.symmetry import block_cosines


def align(estimate: Any, teacher: Any, model: AbstractIndexModel) -> Array:
    r"""Bring an estimate onto a teacher by the model's symmetries: sign, permutation, rotation within a layer.

    Minimises ‖R Ŵ - W*‖_F over the group: signs of M_pp; the best signed permutation; Procrustes R = U Vᵀ of M_bᵀ.
    Arguments: `estimate`, `teacher` (P, D); `model`. Returns: the aligned estimate (P, D).
    Raises: ValueError where the shapes differ from each other or from P. Cost: O(P² D). Source:
    [theory: multi-index, section 9].
    Example:
    >>> import jax, jax.numpy as jnp, jaxsmi as smi
    >>> W = jax.random.normal(jax.random.key(0), (2, 5))
    >>> bool(jnp.allclose(smi.align(-W, W, smi.DeepAttention(2, 2)), W))
    True
    """
    estimate, teacher = jnp.asarray(estimate), jnp.asarray(teacher)
    check(
        teacher.ndim == 2 and teacher.shape[0] == model.indices,
        "teacher",
        teacher,
        f"({model.indices}, D)",
    )
    check(
        estimate.shape == teacher.shape,
        "estimate",
        estimate,
        f"the teacher's shape {teacher.shape}",
    )
    check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")
    check(jnp.all(jnp.isfinite(estimate)), "estimate", estimate, "finite numbers")
    for block, kind in model.symmetry:
        if kind.endswith("signed permutation"):
            rows, cross = np.asarray(block), np.asarray(estimate @ teacher.T)
            part = cross[np.ix_(rows, rows)]
            taken, goal = _matched(np.abs(part))
            signs = np.where(part[taken, goal] < 0, -1.0, 1.0)
            if kind.startswith(
                "even"
            ):  # an odd number of flips changes the label: the least certain row pays
                signs[np.argmin(np.abs(part[taken, goal]))] *= np.prod(signs)
            estimate = estimate.at[rows[goal]].set(estimate[rows[taken]] * signs[:, None])
            continue
        heads = np.atleast_2d(block)
        cross, Q, rho = estimate @ teacher.T, estimate @ estimate.T, teacher @ teacher.T
        each = [[jnp.sum(block_cosines(kind, cross, Q, rho, a, b)) for b in heads] for a in heads]
        taken, goal = _matched(np.asarray(each))
        moved = [
            _block_aligned(kind, estimate[heads[i]], teacher[heads[j]])
            for i, j in zip(taken, goal, strict=True)
        ]
        estimate = estimate.at[heads[goal]].set(jnp.stack(moved))
    return estimate


def _matched(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the assignment of largest sum."""
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(-table)


def _block_aligned(kind: str, rows: Array, goal: Array) -> Array:
    """Rows of an estimate brought onto those of a teacher by what leaves the labels of the block unchanged."""
    if kind == "sign":
        return rows * jnp.where(jnp.sum(rows * goal, axis=1) < 0, -1.0, 1.0)[:, None]
    if kind == "joint sign":
        return rows * jnp.where(jnp.sum(rows * goal) < 0, -1.0, 1.0)
    if kind == "rotation":
        u, _, vt = jnp.linalg.svd(goal @ rows.T, full_matrices=False)
        return (u @ vt) @ rows
    if kind == "query and key":  # least squares for the query; the key moves against it
        query, key = jnp.split(rows, 2)
        A = jnp.linalg.lstsq(query.T, jnp.split(goal, 2)[0].T)[0].T
        return jnp.concatenate([A @ query, jnp.linalg.solve(A.T, key)])
    return rows
