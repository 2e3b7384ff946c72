r"""The symmetries of a law of labels, found at random fields.

A group is taken where every label of some fields stays what it is [theory: multi-index, section 9],
the largest of: rotation, (even) signed permutations and permutations of all rows; else the sign of
single rows, and a joint sign of the others.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.models.symmetry import AbstractSymmetry, symmetry_of

_POINTS = 24  # a link that changes on 10 % of all fields is missed with a probability of 0.08
_MOST = 8  # rows up to which orders are tested
# relative difference of labels that counts as rounding, of links with some hundred operations
_CLOSE = {jnp.dtype("float64"): 1e-9, jnp.dtype("float32"): 1e-4}


def symmetries_of(
    law: Callable[[Array], Array], indices: int, tokens: int, even: bool = True
) -> tuple[AbstractSymmetry, ...]:
    """The symmetries of labels law(z) of fields z (P, M); none where the law is traced, or is not
    finite there. Without an `even` prior, which tells signs, only orders of rows.

    Cost: some hundred labels.
    """
    if not concrete(law):
        return ()
    P = indices
    rows = tuple(range(P))
    eye = np.eye(P)
    flips = [(p,) for p in rows] + [(0, p) for p in rows[1:]]
    # exchanges of neighbours generate all orders
    swaps = [eye[[*rows[:p], p + 1, p, *rows[p + 2 :]]] for p in rows[:-1]] if P <= _MOST else []
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((P, P)))[0]
    same = _unchanged(law, [*(_flip(P, move) for move in flips), *swaps, turn], tokens)
    if same is None:
        return ()
    single = [even and x for x in same[:P]]
    pairs = all(even and x for x in same[P : len(flips)])
    if P > 1 and same[-1] and even:
        return (symmetry_of(rows, "rotation", P),)
    if swaps and all(same[len(flips) : -1]):
        kind = "even signed permutation" if pairs else "permutation"
        return (symmetry_of(rows, "signed permutation" if all(single) else kind, P),)
    free = tuple(p for p in rows if single[p])
    rest = tuple(p for p in rows if not single[p])
    found = [symmetry_of(free, "sign", P)] if free else []
    if even and len(rest) > 1:
        joint = _unchanged(law, [_flip(P, rest)], tokens)
        found += [symmetry_of(rest, "joint sign", P)] if joint and joint[0] else []
    return tuple(found)


def _flip(indices: int, rows: tuple[int, ...]) -> np.ndarray:
    """The matrix (P, P) that flips the signs of some rows."""
    signs = np.ones(indices)
    signs[list(rows)] = -1.0
    return np.diag(signs)


def _unchanged(
    law: Callable[[Array], Array], moves: list[np.ndarray], tokens: int
) -> list[bool] | None:
    """Labels stay the same after each of some matrices (P, P) on the fields; None where they are
    not finite."""
    dtype = theory_dtype()
    # 1.5: links that saturate beyond one standard deviation are seen there, too
    points = np.random.default_rng(0).standard_normal((_POINTS, len(moves[0]), tokens)) * 1.5
    every = np.stack([np.eye(len(moves[0])), *moves])
    moved = np.einsum("rpq,nqm->rnpm", every, points)
    with jax.ensure_compile_time_eval():
        labels = jax.vmap(jax.vmap(law))(jnp.asarray(moved, dtype))
        if not concrete(labels):  # the law closes over traced arrays
            return None
    values = np.asarray(labels, float).reshape(len(moved), -1)
    if not np.isfinite(values).all():
        return None
    scale = np.abs(values[0]).max() + np.ptp(values[0])
    close = np.abs(values[1:] - values[0]).max(axis=1) <= _CLOSE[jnp.dtype(dtype)] * scale
    return [bool(x) for x in close]
