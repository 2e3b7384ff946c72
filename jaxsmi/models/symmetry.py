"""Symmetries of labels: groups up to which overlaps and errors are measured.

Symmetries are groups that act on rows of W and change no label, so that labels cannot determine
them. A symmetry acts on a block of rows. It measures an estimate up to its group, and brings one
onto a teacher [theory: multi-index, section 9, Eqs. (80), (81)], with M = Ŵ W*ᵀ/D, Q = Ŵ Ŵᵀ/D and
ρ = W* W*ᵀ/D of the block:

    none, sign, joint sign       M_pp/√(Q_pp ρ_pp), with its sign, |..|, or one common sign
    permutation                  any order: the best one of M_pq/√(Q_pp ρ_qq)
    signed permutation           any order, any signs: the best order of |M_pq|/√(Q_pp ρ_qq)
    even signed permutation      the signs multiply to one: the best order, less the cost of flips
    rotation                     O(P): the singular values of Q^{-1/2} M ρ^{-1/2}
    query and key                q -> A q, k -> A^{-ᵀ} k: a joint sign for rank one, else a rotation
                                 of each

Blocks with the same symmetry (the heads of a layer) can also be exchanged: `Exchange`.
`symmetries_of` searches those of a link at random fields.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny, concrete, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.numerics.linear_algebra import inverse_root

# rows of W, or blocks of rows that can be exchanged
Block = Sequence[int] | Sequence[Sequence[int]]
_MAX_ENUMERATED = 6  # rows up to which all orders are tried: 720 orders are one vectorised sum
# random fields: a link that changes on 10 % of them is missed with a probability of 0.08
_PROBES = 24
_MAX_ROWS = 8  # rows up to which symmetries under orders are searched (cost)
# relative difference of labels that counts as rounding: links have some hundred operations
_ROUNDING = {jnp.dtype("float64"): 1e-9, jnp.dtype("float32"): 1e-4}


def _candidates(table: Array, anchored: int = 0) -> Array:
    """Return orders (K, n) of the columns of a square table, one of which has the largest sum; the
    first `anchored` columns keep their places. All orders of up to six other columns, above that
    the one of the Hungarian algorithm."""
    count = len(table) - anchored
    if count <= _MAX_ENUMERATED:
        moving = jnp.asarray(list(itertools.permutations(range(count))))
    else:
        from optax.assignment import hungarian_algorithm  # here: importing it takes long

        rows, columns = hungarian_algorithm(-table[anchored:, anchored:])
        moving = columns[jnp.argsort(rows)][None]
    fixed = jnp.tile(jnp.arange(anchored), (len(moving), 1))
    return jnp.concatenate([fixed, anchored + moving], axis=1)


def best_order(table: Array) -> Array:
    """Return the column of each row of a square table for which the sum is largest: an exact
    assignment."""
    orders = _candidates(table)
    return orders[jnp.argmax(jnp.sum(table[jnp.arange(len(table)), orders], axis=1))]


def _signs(values: Array) -> Array:
    """Return the sign of each number, with sign 0 = 1."""
    # an overlap of zero must not make the product of all signs zero
    return jnp.where(values < 0.0, -1.0, 1.0)


def cosine_table(cross: Array, Q: Array, rho: Array) -> Array:
    """Return M_pq/√(Q_pp ρ_qq) (P, P); zero for a zero estimate."""
    squares = jnp.outer(jnp.diagonal(Q), jnp.diagonal(rho))
    # 0/0 of an estimate that is zero
    return cross / jnp.sqrt(clamp_to_tiny(squares))


class AbstractSymmetry(eqx.Module):
    """A group that acts on a block of rows of W and changes no label (module docstring).

    `indices`: the rows of W in the block. `kind`: its name in `MultiIndex(symmetry=[(indices,
    kind)])`.
    """

    indices: tuple[int, ...]
    kind: str

    @abc.abstractmethod
    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosines (n,) of the rows of an estimate with those of a teacher, up to the
        group, from the overlaps M, Q and ρ (n, n) of the n rows of the block."""

    @abc.abstractmethod
    def align(self, estimate: Array, teacher: Array) -> Array:
        """Bring the rows (n, D) of an estimate onto those of a teacher by the group."""


class _Moves(NamedTuple):
    """Elements of a group of orders and signs.

    Attributes:
        ordered: Rows may change places.
        signs: "fixed", "each" free, "joint" (one for all rows), or "even" (an even number of -1).
        anchored: Number of first rows that keep their places.
    """

    ordered: bool
    signs: str
    anchored: int = 0


_MOVES = {
    "none": _Moves(False, "fixed"),
    "sign": _Moves(False, "each"),
    "joint sign": _Moves(False, "joint"),
    "permutation": _Moves(True, "fixed"),  # units of a committee
    "signed permutation": _Moves(True, "each"),
    "even signed permutation": _Moves(True, "even"),  # factors of a product
    # fields of z_1² + sign(z_1 z_2 z_3)
    "even signed permutation, the first in place": _Moves(True, "even", 1),
}


class SignedOrder(AbstractSymmetry):
    """Group of orders and signs of the rows of a block, named by `kind`."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosines in the best order, with the best signs. If only an even number of
        flips is allowed, the smallest cosine may stay negative."""
        table = cosine_table(cross, Q, rho)
        order, signs = self._best(table)
        return table[jnp.arange(len(table)), order] * signs

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Bring the rows into the order, with the signs, of the largest sum of overlaps."""
        order, signs = self._best(estimate @ teacher.T)
        return jnp.zeros_like(estimate).at[order].set(estimate * signs[:, None])

    def _best(self, table: Array) -> tuple[Array, Array]:
        """Find the column and the sign (n,) of each row of a table (n, n) for which the sum is
        largest; for an even group of more than six rows, the order that is best for any signs."""
        moves = _MOVES[self.kind]
        orders = jnp.arange(len(table))[None]
        if moves.ordered:
            sizes = table if moves.signs == "fixed" else jnp.abs(table)
            orders = _candidates(sizes, moves.anchored)
        values = table[jnp.arange(len(table)), orders]
        signs = _best_signs(values, moves.signs)
        best = jnp.argmax(jnp.sum(values * signs, axis=1))
        return orders[best], signs[best]


def _best_signs(values: Array, kind: str) -> Array:
    """Find the signs, among those that are allowed, for which the sum of each row is largest."""
    if kind == "fixed":
        return jnp.ones_like(values)
    if kind == "joint":
        return _signs(jnp.sum(values, axis=1, keepdims=True)) * jnp.ones_like(values)
    signs = _signs(values)
    if kind == "each":
        return signs
    # an odd product is corrected at the smallest entry, at the least cost
    smallest = jnp.arange(values.shape[1]) == jnp.argmin(jnp.abs(values), axis=1, keepdims=True)
    return jnp.where(smallest, signs * jnp.prod(signs, axis=1, keepdims=True), signs)


class Rotation(AbstractSymmetry):
    """O(n) on the n rows of the block: labels determine only their span."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "rotation"

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosines of the principal angles between the two row spaces."""
        return jnp.linalg.svd(inverse_root(Q) @ cross @ inverse_root(rho), compute_uv=False)

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Return R Ŵ with the orthogonal R that comes closest (Procrustes)."""
        u, _, vt = jnp.linalg.svd(teacher @ estimate.T, full_matrices=False)
        return (u @ vt) @ estimate


class QueryAndKey(AbstractSymmetry):
    """q -> A q, k -> A^{-ᵀ} k: the first half of the rows is a query, the second half its key."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "query and key"

    def __check_init__(self) -> None:
        even = len(self.indices) % 2 == 0
        check(even, "symmetry", self.indices, "as many rows of the key as of the query")

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute cosines up to a joint sign for rank one; above, principal angles of query and of
        key."""
        half = len(self.indices) // 2
        # numbers A and 1/A leave the direction of each row, up to a joint sign
        if half == 1:
            return SignedOrder(self.indices, "joint sign").cosines(cross, Q, rho)
        parts = [
            Rotation(self.indices[part]).cosines(cross[part, part], Q[part, part], rho[part, part])
            for part in (slice(None, half), slice(half, None))
        ]
        return jnp.concatenate(parts)

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Move the query by least squares, and the key by the inverse transpose."""
        query, key = jnp.split(estimate, 2)
        # any A is allowed, not only rotations: the key compensates for it
        A = jnp.linalg.lstsq(query.T, jnp.split(teacher, 2)[0].T)[0].T
        return jnp.concatenate([A @ query, jnp.linalg.solve(A.T, key)])


class Exchange(AbstractSymmetry):
    """Blocks of one size and symmetry (heads), each with that symmetry, in any order."""

    blocks: tuple[AbstractSymmetry, ...]
    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "exchange"

    def __init__(self, blocks: Sequence[AbstractSymmetry]):
        self.blocks = tuple(blocks)
        self.indices = tuple(index for block in blocks for index in block.indices)
        sizes = {len(block.indices) for block in blocks}
        check(len(sizes) == 1, "symmetry", self.indices, "blocks of one size")

    def _pairs(self, of_pair: Callable[[AbstractSymmetry, slice, slice], Array]) -> Array:
        """Stack a function of each block of the estimate and each of the teacher."""
        size = len(self.blocks[0].indices)
        parts = [slice(k * size, (k + 1) * size) for k in range(len(self.blocks))]
        rows = [
            jnp.stack([of_pair(block, a, b) for b in parts])
            for block, a in zip(self.blocks, parts, strict=True)
        ]
        return jnp.stack(rows)

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Compute the cosines of each block with its block of the teacher, in the best order."""
        pairs = self._pairs(lambda block, a, b: block.cosines(cross[a, b], Q[a, a], rho[b, b]))
        order = best_order(jnp.sum(pairs, axis=-1))
        return pairs[jnp.arange(len(pairs)), order].ravel()

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Bring each block onto its block of the teacher, in the closest order."""
        moved = self._pairs(lambda block, a, b: block.align(estimate[a], teacher[b]))
        targets = teacher.reshape(len(moved), -1, teacher.shape[1])
        # distances, not overlaps, are compared: moved blocks differ in norm
        order = best_order(-jnp.sum((moved - targets) ** 2, axis=(2, 3)))
        chosen = moved[jnp.arange(len(moved)), order]
        return jnp.zeros_like(targets).at[order].set(chosen).reshape(estimate.shape)


SYMMETRIES = (*_MOVES, Rotation.kind, QueryAndKey.kind)


def symmetry_of(block: Block, kind: str, indices: int) -> AbstractSymmetry:
    """Build the symmetry named `kind`, one of `SYMMETRIES`, of a block of rows or of exchangeable
    blocks of one size; raise a ValueError for another word, or a row >= `indices`."""
    kind = validate.choice("symmetry", kind, SYMMETRIES)
    rows = [np.atleast_1d(np.asarray(part)) for part in block]
    check(len(rows) > 0, "symmetry", block, "at least one index")
    inside = all(0 <= index < indices for part in rows for index in part)
    check(inside, "symmetry", tuple(block), f"indices from 0 to {indices - 1}")

    def make(part: Iterable[int]) -> AbstractSymmetry:
        rows = tuple(int(index) for index in part)
        if kind in _MOVES:
            return SignedOrder(rows, kind)
        return Rotation(rows) if kind == Rotation.kind else QueryAndKey(rows)

    if np.ndim(block[0]) == 0:
        return make([part[0] for part in rows])
    return make(rows[0]) if len(rows) == 1 else Exchange([make(part) for part in rows])


def symmetries_of(
    law: Callable[[Array], Array], indices: int, tokens: int, even: bool = True
) -> tuple[AbstractSymmetry, ...]:
    """Find the symmetries of labels law(z) of fields z (P, M) at random fields: the largest of
    rotation, (even) signed permutations and permutations of all rows; else the sign of single rows,
    and a joint sign of the others. No symmetry is found for a law that is traced, or not finite
    there. A prior that is not `even` determines signs, which leaves only orders of rows.

    Cost: some hundred labels.
    """
    if not concrete(law):
        return ()
    P = indices
    rows = tuple(range(P))
    flips = [(p,) for p in rows] + [(0, p) for p in rows[1:]]
    # exchanges of neighbours generate all orders
    first = rows[:-1] if P <= _MAX_ROWS else ()
    swaps = [np.eye(P)[[*rows[:p], p + 1, p, *rows[p + 2 :]]] for p in first]
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
    """Return the matrix (P, P) that flips the signs of some rows."""
    signs = np.ones(indices)
    signs[list(rows)] = -1.0
    return np.diag(signs)


def _unchanged(
    law: Callable[[Array], Array], moves: list[np.ndarray], tokens: int
) -> list[bool] | None:
    """Return for each of some matrices (P, P) whether labels are the same after it acts on the
    fields; None if labels are not finite."""
    dtype = theory_dtype()
    # 1.5: links that saturate beyond one standard deviation are seen there, too
    points = np.random.default_rng(0).standard_normal((_PROBES, len(moves[0]), tokens)) * 1.5
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
    close = np.abs(values[1:] - values[0]).max(axis=1) <= _ROUNDING[jnp.dtype(dtype)] * scale
    return [bool(x) for x in close]
