"""TODO models.symmetry."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.numerics.linear_algebra import inverse_root

# "joint sign": all rows of the block together; "query and key": the block is q over k, and A q, A^{-ᵀ} k are as good
SYMMETRIES = (
    "none",
    "sign",
    "joint sign",
    "signed permutation",
    "even signed permutation",
    "rotation",
    "query and key",
)


class Symmetry(NamedTuple):
    """A block of indices, and what can be done to its rows of W without changing any label.

    A tuple of blocks of one size (heads): each has that symmetry, and they can be exchanged.
    """

    indices: tuple[int, ...] | tuple[tuple[int, ...], ...]
    kind: str


def best_order(table: Array) -> Array:
    """Column of each row of a square table, so that the sum is largest: all orders up to six rows, greedily above."""
    count = len(table)
    if count <= 6:
        orders = jnp.asarray(list(itertools.permutations(range(count))))
        return orders[jnp.argmax(jnp.sum(table[jnp.arange(count), orders], axis=1))]
    order = jnp.zeros((count,), int)
    for _ in range(count):
        row, column = jnp.divmod(jnp.argmax(table), count)
        order = order.at[row].set(column)
        table = table.at[row].set(-jnp.inf).at[:, column].set(-jnp.inf)
    return order


def block_cosines(
    kind: str, cross: Array, Q: Array, rho: Array, rows: np.ndarray, goal: np.ndarray
) -> Array:
    """Cosines of the rows of an estimate with those of a teacher, up to what can be done inside the block."""
    if kind == "query and key":
        half = len(rows) // 2
        if half == 1:
            return block_cosines("joint sign", cross, Q, rho, rows, goal)
        parts = ((rows[:half], goal[:half]), (rows[half:], goal[half:]))
        return jnp.concatenate([block_cosines("rotation", cross, Q, rho, a, b) for a, b in parts])
    cross, Q, rho = cross[np.ix_(rows, goal)], Q[np.ix_(rows, rows)], rho[np.ix_(goal, goal)]
    if kind == "rotation":  # cosines of the principal angles between the two row spaces
        return jnp.linalg.svd(inverse_root(Q) @ cross @ inverse_root(rho), compute_uv=False)
    scale = jnp.sqrt(jnp.maximum(jnp.diagonal(Q) * jnp.diagonal(rho), jnp.finfo(Q.dtype).tiny))
    values = jnp.diagonal(cross) / scale
    if kind == "sign":
        return jnp.abs(values)
    return values * jnp.where(jnp.sum(values) < 0.0, -1.0, 1.0) if kind == "joint sign" else values
