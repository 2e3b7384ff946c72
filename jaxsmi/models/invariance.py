r"""Which symmetries a law of labels has, found by looking at it at random fields.

A group is taken where every label of some fields stays what it is [theory: multi-index, section 9],
the largest of: rotation, (even) signed permutations and permutations of all rows; else the sign of
single rows, and a joint sign of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.models.symmetry import AbstractSymmetry, symmetry_of

__all__ = ["symmetries_of"]

_POINTS = 24
_MOST = 8  # rows up to which orders are looked at
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
    flips: dict[tuple[int, ...], np.ndarray] = {(p,): _flipped(P, (p,)) for p in range(P)}
    joint = tuple(p for p in range(P))
    flips[joint] = _flipped(P, joint)
    flips |= {(0, p): _flipped(P, (0, p)) for p in range(1, P)}
    moves = {"order": _swaps(P)} if 1 < P <= _MOST else {}
    spun = np.linalg.qr(np.random.default_rng(1).standard_normal((P, P)))[0]
    every = [*flips.values(), *moves.get("order", []), spun]
    kept = _unchanged(law, np.stack(every), tokens)
    if kept is None:
        return ()
    flipped = {move: even and same for move, same in zip(flips, kept, strict=False)}
    ordered = all(kept[len(flips) : -1]) and bool(moves)
    single = all(flipped[(p,)] for p in range(P))
    if P == 1:
        return (symmetry_of((0,), "sign", 1),) if single else ()
    if kept[-1] and even:
        return (symmetry_of(joint, "rotation", P),)
    if ordered:
        pairs = all(flipped[(0, p)] for p in range(1, P))
        kind = "signed permutation" if single else "even signed permutation"
        return (symmetry_of(joint, kind if single or pairs else "permutation", P),)
    return _signs(law, flipped, indices, tokens) if even else ()


def _signs(
    law: Callable[[Array], Array], flipped: dict[tuple[int, ...], bool], indices: int, tokens: int
) -> tuple[AbstractSymmetry, ...]:
    """The signs of rows that may be flipped alone, and the joint sign of the others."""
    alone = tuple(p for p in range(indices) if flipped[(p,)])
    rest = tuple(p for p in range(indices) if p not in alone)
    found = [symmetry_of(alone, "sign", indices)] if alone else []
    if len(rest) > 1:
        together = _unchanged(law, _flipped(indices, rest)[None], tokens)
        if together is not None and together[0]:
            found.append(symmetry_of(rest, "joint sign", indices))
    return tuple(found)


def _flipped(indices: int, rows: tuple[int, ...]) -> np.ndarray:
    """The matrix (P, P) that flips the signs of some rows."""
    signs = np.ones(indices)
    signs[list(rows)] = -1.0
    return np.diag(signs)


def _swaps(indices: int) -> list[np.ndarray]:
    """The matrices (P, P) that exchange two rows each."""
    eye = np.eye(indices)
    swapped = []
    for p, q in itertools.pairwise(range(indices)):
        order = list(range(indices))
        order[p], order[q] = q, p
        swapped.append(eye[order])
    return swapped


def _unchanged(law: Callable[[Array], Array], moves: np.ndarray, tokens: int) -> list[bool] | None:
    """Whether labels are the same after each of some matrices (n, P, P) on the fields; None where
    they are not finite."""
    dtype = theory_dtype()
    points = np.random.default_rng(0).standard_normal((_POINTS, moves.shape[-1], tokens)) * 1.5
    moved = np.einsum("rpq,nqm->rnpm", np.concatenate([np.eye(len(moves[0]))[None], moves]), points)
    with jax.ensure_compile_time_eval():
        labels = jax.vmap(jax.vmap(law))(jnp.asarray(moved, dtype))
        if not concrete(labels):  # what the law closes over is traced
            return None
    values = np.asarray(labels, float).reshape(len(moved), -1)
    if not np.isfinite(values).all():
        return None
    scale = np.abs(values[0]).max() + np.ptp(values[0])
    close = np.abs(values[1:] - values[0]).max(axis=1) <= _CLOSE[jnp.dtype(dtype)] * scale
    return [bool(x) for x in close]
