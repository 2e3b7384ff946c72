"""Overlaps (M, Q) that a user gives, and their validation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, nan_unless, symmetric
from jaxsmi.core.validate import check
from jaxsmi.numerics.linear_algebra import coordinates_of, triangular_root

# Overlaps of a user come from averages or other runs: symmetric and positive to single precision.
_ROUNDING = 1e-9


def pair_of_arrays(value: Any, rows: int, targets: int, fixed: int) -> tuple[Array, Array]:
    """M (rows, fixed) and Q (rows, rows) of a user: numbers are multiples of the identity, and M
    may leave out the columns of the directions of the inputs (none of them is learned)."""
    allowed = f"overlaps (M, Q), arrays ({rows}, {fixed}) and ({rows}, {rows}), or numbers"
    two = isinstance(value, (tuple, list)) and len(value) == 2
    check(two, "(M, Q)", value, allowed)

    def scaled(x: Any, columns: int) -> Any:
        # NumPy, as a JAX array would be traced under jit
        return x if isinstance(x, (tuple, list)) or np.ndim(x) else x * np.eye(rows, columns)

    allowed = f"M of shape ({rows}, {fixed})"
    M = validate.array("M", scaled(value[0], targets), allowed)
    check(M.size in (rows * fixed, rows * targets), "M", value[0], allowed)
    M = M.reshape(rows, -1)
    M = jnp.pad(M, ((0, 0), (0, fixed - M.shape[1])))
    return M, validate.semidefinite("Q", scaled(value[1], rows), rows, _ROUNDING)


def overlaps_of_weights(
    gram: Array, M: Array, Q: Array, groups: int = 1, allowed: str | None = None
) -> tuple[Array, Array]:
    """M and Q, which weights must have beside fixed rows of this Gram matrix; NaN where they are
    traced and no weights have them. Nothing depends on the overlap of rows of two groups."""
    frame = triangular_root(gram)
    Y, _ = coordinates_of(frame, M, Q)
    size = 1.0 + jnp.max(jnp.abs(M))
    inside = jnp.max(jnp.abs(Y @ frame.T - M)) <= _ROUNDING * size
    check(inside, "M", M, "overlaps in the range of the teacher's Gram matrix")
    rows = len(M) // groups
    blocks = np.kron(np.eye(groups), np.ones((rows, rows)))
    rest = jnp.linalg.eigvalsh(symmetric((Q - Y @ Y.T) * blocks))[0]
    definite = rest >= -_ROUNDING * (1.0 + jnp.max(jnp.abs(Q)))
    shown = tuple(x.tolist() if concrete(x) else x for x in (M, Q))
    usual = "Q - M ρ⁺ Mᵀ positive semi-definite (else no weights have these overlaps)"
    check(definite, "(M, Q)", shown, allowed or usual)
    return nan_unless(M, inside, definite), nan_unless(Q, inside, definite)
