r"""Symmetries: what can be done to rows of W without changing any label, and so cannot be learned.

A symmetry acts on a block of rows. It measures an estimate up to its group, and brings an estimate
onto a teacher [theory: multi-index, section 9, Eqs. (65), (66)], with M = Ŵ W*ᵀ/D, Q = Ŵ Ŵᵀ/D and
ρ = W* W*ᵀ/D of the block:

    sign                         each row by itself: |M_pp|/√(Q_pp ρ_pp)
    joint sign                   all rows together: ± M_pp/√(Q_pp ρ_pp), one common sign
    permutation                  any order: the best one of M_pq/√(Q_pp ρ_qq)
    signed permutation           any order, any signs: the best order of |M_pq|/√(Q_pp ρ_qq)
    even signed permutation      the signs multiply to one: the best order with what its flips cost
    rotation                     O(P): the singular values of Q^{-1/2} M ρ^{-1/2}
    query and key                q -> A q, k -> A^{-ᵀ} k: a joint sign for rank one, else a rotation
                                 of each

Blocks with the same symmetry (the heads of a layer) can also be exchanged: `Exchange`.
"""

from __future__ import annotations

import abc
import itertools
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.border import checked, instance, numbers
from jaxsmi.core.checks import Arguments, check
from jaxsmi.numerics.linear_algebra import inverse_root

if TYPE_CHECKING:
    from jaxsmi.models.index import AbstractIndexModel

__all__ = [
    "SYMMETRIES",
    "AbstractSymmetry",
    "AnchoredEvenSignedPermutation",
    "Block",
    "EvenSignedPermutation",
    "Exchange",
    "JointSign",
    "NoSymmetry",
    "Permutation",
    "QueryAndKey",
    "Rotation",
    "Sign",
    "SignedPermutation",
    "align",
    "best_order",
    "symmetry_of",
]


# rows of W, or blocks of rows that can be exchanged
Block = Sequence[int] | Sequence[Sequence[int]]


_ENUMERATED = 6  # rows up to which all orders are tried


def _orders(count: int) -> Array:
    """All orders of so many rows, (count!, count)."""
    return jnp.asarray(list(itertools.permutations(range(count))))


def best_order(table: Array) -> Array:
    """The column of each row of a square table for which the sum is largest: an exact assignment,
    over all orders up to six rows, by the Hungarian algorithm above."""
    count = len(table)
    if count <= _ENUMERATED:
        orders = _orders(count)
        return orders[jnp.argmax(jnp.sum(table[jnp.arange(count), orders], axis=1))]
    from optax.assignment import hungarian_algorithm  # here: importing it takes long

    rows, columns = hungarian_algorithm(-table)
    return columns[jnp.argsort(rows)]


def _signs(values: Array) -> Array:
    """The sign of each number, with sign 0 = 1."""
    return jnp.where(values < 0.0, -1.0, 1.0)


def _scale(Q: Array, rho: Array) -> Array:
    """√(Q_pp ρ_qq) (P, P), kept from zero: the cosines of a zero estimate are zero."""
    squares = jnp.outer(jnp.diagonal(Q), jnp.diagonal(rho))
    return jnp.sqrt(jnp.maximum(squares, jnp.finfo(Q.dtype).tiny))


def _signed_cosines(cross: Array, Q: Array, rho: Array) -> Array:
    """M_pp/√(Q_pp ρ_pp) of each row, with its sign."""
    return jnp.diagonal(cross) / jnp.diagonal(_scale(Q, rho))


class AbstractSymmetry(eqx.Module):
    """A group that acts on a block of rows of W and changes no label (module docstring).

    `indices`: the rows of W in the block. `kind`: the words that name the class in
    `MultiIndex(symmetry=[(indices, kind)])`.
    """

    indices: eqx.AbstractVar[tuple[int, ...]]
    kind: eqx.AbstractClassVar[str]

    @abc.abstractmethod
    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Cosines (n,) of the rows of an estimate with those of a teacher, up to the group, from
        the overlaps M, Q and ρ (n, n) of the n rows of the block."""

    @abc.abstractmethod
    def align(self, estimate: Array, teacher: Array) -> Array:
        """The rows (n, D) of an estimate, brought onto those of a teacher by the group."""


class NoSymmetry(AbstractSymmetry):
    """The trivial group: every row is determined by the labels, with its sign."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "none"

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """M_pp/√(Q_pp ρ_pp), with its sign."""
        return _signed_cosines(cross, Q, rho)

    def align(self, estimate: Array, teacher: Array) -> Array:
        """The estimate itself."""
        del teacher
        return estimate


class Sign(AbstractSymmetry):
    """The sign of each row by itself."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "sign"

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """|M_pp|/√(Q_pp ρ_pp)."""
        return jnp.abs(_signed_cosines(cross, Q, rho))

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Each row with the sign of its overlap with the teacher's row."""
        return estimate * _signs(jnp.sum(estimate * teacher, axis=1))[:, None]


class JointSign(AbstractSymmetry):
    """One sign for all rows together."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "joint sign"

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """M_pp/√(Q_pp ρ_pp), with the common sign that makes their sum positive."""
        values = _signed_cosines(cross, Q, rho)
        return values * _signs(jnp.sum(values))

    def align(self, estimate: Array, teacher: Array) -> Array:
        """All rows with the sign of the sum of their overlaps."""
        return estimate * _signs(jnp.sum(estimate * teacher))


class AbstractSignedPermutation(AbstractSymmetry):
    """Rows in any order with any signs; `even`: the signs multiply to one; the first `anchored`
    rows stay in place (their signs are free)."""

    even: eqx.AbstractClassVar[bool]
    anchored: eqx.AbstractClassVar[int]

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Those of the best order and signs; where the best is one with a wrong sign, as only an
        even number of flips is allowed, the smallest cosine is negative."""
        table = cross / _scale(Q, rho)
        order, signs = self._best(table)
        return table[jnp.arange(len(table)), order] * signs

    def align(self, estimate: Array, teacher: Array) -> Array:
        """The order and signs of the largest sum of overlaps."""
        order, signs = self._best(estimate @ teacher.T)
        return estimate.at[order].set(estimate * signs[:, None])

    def _best(self, table: Array) -> tuple[Array, Array]:
        """The column and the sign (n,) of each row of a table (n, n) for which the sum is
        largest."""
        order = self._order(table)
        values = table[jnp.arange(len(table)), order]
        signs = _signs(values)
        if self.even:
            signs = signs.at[jnp.argmin(jnp.abs(values))].multiply(jnp.prod(signs))
        return order, signs

    def _order(self, table: Array) -> Array:
        """The best order of the rows that may move; of an even group of more than six rows the best
        for any signs."""
        first = self.anchored
        count = len(table) - first
        fixed = jnp.arange(first)
        if not self.even or count > _ENUMERATED:
            return jnp.concatenate([fixed, first + best_order(jnp.abs(table)[first:, first:])])
        moving = first + _orders(count)
        orders = jnp.concatenate([jnp.tile(fixed, (len(moving), 1)), moving], axis=1)
        values = table[jnp.arange(len(table)), orders]
        odd = jnp.prod(_signs(values), axis=1) < 0.0
        # an odd number of flips leaves the smallest entry with the wrong sign
        lost = jnp.where(odd, 2.0 * jnp.min(jnp.abs(values), axis=1), 0.0)
        return orders[jnp.argmax(jnp.sum(jnp.abs(values), axis=1) - lost)]


class SignedPermutation(AbstractSignedPermutation):
    """Rows in any order, with any signs."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "signed permutation"
    even: ClassVar[bool] = False
    anchored: ClassVar[int] = 0


class EvenSignedPermutation(AbstractSignedPermutation):
    """Rows in any order, with an even number of flipped signs: what a product of fields allows."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "even signed permutation"
    even: ClassVar[bool] = True
    anchored: ClassVar[int] = 0


class AnchoredEvenSignedPermutation(AbstractSignedPermutation):
    """An even number of flipped signs, and any order of all rows but the first, which stays in
    place: what z_1² + sign(z_1 z_2 z_3) allows."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "even signed permutation, the first in place"
    even: ClassVar[bool] = True
    anchored: ClassVar[int] = 1


class Permutation(AbstractSymmetry):
    """Rows in any order, with their signs: what a committee allows."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "permutation"

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Those of the best order, with their signs."""
        table = cross / _scale(Q, rho)
        return table[jnp.arange(len(table)), best_order(table)]

    def align(self, estimate: Array, teacher: Array) -> Array:
        """The order of the largest sum of overlaps."""
        order = best_order(estimate @ teacher.T)
        return jnp.zeros_like(estimate).at[order].set(estimate)


class Rotation(AbstractSymmetry):
    """O(n) on the n rows of the block: only their span is determined by the labels."""

    indices: tuple[int, ...] = eqx.field(static=True)
    kind: ClassVar[str] = "rotation"

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Cosines of the principal angles between the two row spaces."""
        return jnp.linalg.svd(inverse_root(Q) @ cross @ inverse_root(rho), compute_uv=False)

    def align(self, estimate: Array, teacher: Array) -> Array:
        """R Ŵ with the orthogonal R that comes closest (Procrustes)."""
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
        """Of rank one those up to a joint sign; above, principal angles of query and of key."""
        half = len(self.indices) // 2
        if half == 1:
            return JointSign(self.indices).cosines(cross, Q, rho)
        parts = [
            Rotation(self.indices[part]).cosines(cross[part, part], Q[part, part], rho[part, part])
            for part in (slice(None, half), slice(half, None))
        ]
        return jnp.concatenate(parts)

    def align(self, estimate: Array, teacher: Array) -> Array:
        """The query by least squares; the key moves against it."""
        query, key = jnp.split(estimate, 2)
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

    def _parts(self) -> list[slice]:
        """Where each block lies among the rows of `indices`."""
        size = len(self.blocks[0].indices)
        return [slice(k * size, (k + 1) * size) for k in range(len(self.blocks))]

    def _pairs(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Cosines (blocks, blocks, size) of each block of the estimate with each of the teacher."""
        parts = self._parts()
        return jnp.stack(
            [
                jnp.stack([block.cosines(cross[a, b], Q[a, a], rho[b, b]) for b in parts])
                for block, a in zip(self.blocks, parts, strict=True)
            ]
        )

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Those of each block with the teacher's block that the best order gives it."""
        pairs = self._pairs(cross, Q, rho)
        order = best_order(jnp.sum(pairs, axis=-1))
        return pairs[jnp.arange(len(self.blocks)), order].ravel()

    def align(self, estimate: Array, teacher: Array) -> Array:
        """Each block brought onto the teacher's block that the closest order gives it."""
        parts = self._parts()
        moved = jnp.stack(
            [
                jnp.stack([block.align(estimate[a], teacher[b]) for b in parts])
                for block, a in zip(self.blocks, parts, strict=True)
            ]
        )
        goals = teacher.reshape(len(parts), -1, teacher.shape[1])
        order = best_order(-jnp.sum((moved - goals) ** 2, axis=(2, 3)))
        chosen = moved[jnp.arange(len(parts)), order]
        return jnp.zeros_like(goals).at[order].set(chosen).reshape(estimate.shape)


_CLASSES = (
    NoSymmetry,
    Sign,
    JointSign,
    Permutation,
    SignedPermutation,
    EvenSignedPermutation,
    AnchoredEvenSignedPermutation,
    Rotation,
    QueryAndKey,
)
_BY_KIND = {each.kind: each for each in _CLASSES}
SYMMETRIES = tuple(_BY_KIND)


def symmetry_of(block: Block, kind: str, indices: int) -> AbstractSymmetry:
    """The symmetry that a word names, of a block of rows, or of exchangeable blocks of one size.

    Args:
        block: Rows of W, or a sequence of such blocks.
        kind: One of `SYMMETRIES`.
        indices: P, the number of rows that there are.

    Raises:
        ValueError: For another word, or a row that is not there.
    """
    kind = Arguments().choice("symmetry", kind, SYMMETRIES)
    rows = [np.atleast_1d(np.asarray(part)) for part in block]
    check(len(rows) > 0, "symmetry", block, "at least one index")
    there = all(0 <= index < indices for part in rows for index in part)
    check(there, "symmetry", tuple(block), f"indices from 0 to {indices - 1}")
    make = _BY_KIND[kind]
    if np.ndim(block[0]) == 0:
        return make(tuple(int(part[0]) for part in rows))
    blocks = [make(tuple(int(index) for index in part)) for part in rows]
    return blocks[0] if len(blocks) == 1 else Exchange(blocks)


@typing.runtime_checkable
class Symmetric(typing.Protocol):
    """What has rows with symmetries."""

    indices: int
    symmetry: Sequence[AbstractSymmetry]


has_symmetry = instance(Symmetric, "an index model, such as smi.DeepAttention(2, 2)")


@checked(
    estimate=numbers("rows (P, D)", dimensions=2),
    teacher=numbers("rows (P, D)", dimensions=2),
    model=has_symmetry,
)
def align(estimate: ArrayLike, teacher: ArrayLike, model: AbstractIndexModel) -> Array:
    r"""Bring an estimate onto a teacher by the symmetries of its model.

    Minimises ‖R Ŵ - W*‖_F over the group: signs of M_pp; the best signed permutation; Procrustes
    R = U Vᵀ of M_bᵀ. Two groups come near, and no nearer: of a query and its key the query is
    brought closest, and the key follows; an even group of more than six rows takes the order that
    is best for any signs.

    Args:
        estimate: Rows Ŵ (P, D).
        teacher: Rows W* (P, D).
        model: The index model whose symmetries may be used.

    Returns:
        The aligned estimate (P, D).

    Raises:
        ValueError: Where the shapes differ from each other or from P.

    Example:
        >>> import jax, jax.numpy as jnp, jaxsmi as smi
        >>> W = jax.random.normal(jax.random.key(0), (2, 5))
        >>> bool(jnp.allclose(smi.align(-W, W, smi.DeepAttention(2, 2)), W))
        True

    Cost:
        O(P² D).

    Source:
        [theory: multi-index, section 9].
    """
    estimate = jnp.asarray(estimate)
    teacher = jnp.asarray(teacher)
    rows = teacher.ndim == 2 and teacher.shape[0] == model.indices
    check(rows, "teacher", teacher, f"({model.indices}, D)")
    same = estimate.shape == teacher.shape
    check(same, "estimate", estimate, f"the teacher's shape {teacher.shape}")
    check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")
    check(jnp.all(jnp.isfinite(estimate)), "estimate", estimate, "finite numbers")
    for symmetry in model.symmetry:
        block = np.asarray(symmetry.indices)
        estimate = estimate.at[block].set(symmetry.align(estimate[block], teacher[block]))
    return estimate
