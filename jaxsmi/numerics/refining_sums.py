r"""Sums over the nodes of a rule, the moments that they make, and the sizes of their blocks.

Equations here, w the weights of the nodes (of all branches):

    table = Σ w τ̃ τ̃ᵀ,   τ̃ = (1, t, r);      mass = table₀₀,   ⟨τ⟩ = table₀/mass
    effective number of nodes   ESS = mass²/Σ w²

Weights are relative to the largest logarithm so far, chunk of nodes by chunk of nodes: nothing
overflows, and nothing is read twice [theory: numerics, section 3].

An integral over fields goes over blocks of samples and nodes. A device that reports its memory, an
accelerator, needs large blocks, and a small share of its memory bounds them. A device that reports
none, such as a CPU, works from its cache: there the smallest blocks are the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.linear_algebra import total

CACHE = 2**19  # bytes of a block without reported memory: half of a core's usual second-level cache
_SHARE = 64  # a block takes 1/64 of the memory: several live at once, beside the data


class Block(NamedTuple):
    """Samples and nodes of a block; powers of two, unless they are the least of a rule."""

    samples: int
    nodes: int


def working_memory() -> int:
    """Bytes that a block of an integral may take: a 64th of the memory that JAX may use on the
    device, or half a megabyte where it is not reported."""
    try:
        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    except jax.errors.JaxRuntimeError:  # a plug-in without memory statistics
        limit = 0
    return limit // _SHARE if limit else CACHE


def block_within(available: int, width: int, least: Block, most: Block) -> Block:
    """The largest block, from `least` to `most`, whose numbers fit into so many bytes.

    Samples are doubled first: they share the nodes.

    Args:
        available: Bytes.
        width: Numbers of eight bytes for each pair of a sample and a node.
        least: The block where nothing larger fits.
        most: The largest block that is useful.

    Returns:
        A `Block`.

    Example:
        >>> tuple(block_within(2**24, 8, Block(16, 512), Block(512, 2048)))
        (512, 512)
    """
    pairs = available // (8 * width)
    # powers of two: blocks divide nets without a remainder
    samples = _grown(least.samples, most.samples, pairs // least.nodes)
    return Block(samples, _grown(least.nodes, most.nodes, pairs // samples))


def _grown(least: int, most: int, allowed: int) -> int:
    """The largest power of two, from `least` to `most`, that is allowed."""
    return max(least, min(most, 1 << max(allowed.bit_length() - 1, 0)))


def no_weight(dtype: DTypeLike) -> np.floating:
    """The logarithm of no weight: finite, so that the difference of two of them is not NaN."""
    return jnp.finfo(dtype).min / 4


class Nodes(NamedTuple):
    """Points t (n, d), their log-weights (n,), and the weight (n,) of the tail that is cut off."""

    points: Array
    log_weight: Array
    tail: Array


class Branch(NamedTuple):
    """One copy of the integrand: ℓ (S, n), and the residuals r_1 .. r_outer (S, n).

    Where a copy is itself an integral, residuals are its means, and `products` its second moments
    ⟨r_m r_n⟩ (S, n), m <= n.
    """

    log_weight: Array
    residuals: Sequence[Array]
    products: Mapping[tuple[int, int], Array] | None = None

    def product(self, m: int, n: int) -> Array:
        """⟨r_m r_n⟩, m and n in any order."""
        if self.products is None:
            return self.residuals[m] * self.residuals[n]
        return self.products[min(m, n), max(m, n)]


class Sums(NamedTuple):
    """Sums over nodes, relative to the largest log-weight `top` (S,): the table (S, K+1, K+1), the
    weight (S,) of the tail, and the sum (S,) of w²."""

    top: Array
    table: Array
    tail: Array
    squares: Array

    def relative_to(self, top: Array) -> Sums:
        """The same sums, relative to another log-weight."""
        scale = jnp.exp(self.top - top)
        table = self.table * scale[..., None, None]
        return Sums(top, table, self.tail * scale, self.squares * scale**2)

    @property
    def mass(self) -> Array:
        """Σ w (S,)."""
        return self.table[:, 0, 0]


def no_sums(samples: int, components: int) -> Sums:
    """Sums over no nodes, of τ with so many components."""
    zero = jnp.zeros((samples,), theory_dtype())
    table = jnp.zeros((samples, components + 1, components + 1), zero.dtype)
    return Sums(jnp.full_like(zero, no_weight(zero.dtype)), table, zero, zero)


def sums_over(nodes: Nodes, shared: int, factor: Array, branches: Sequence[Branch]) -> Sums:
    """The sums over some nodes, from the factor and the branches of the integrand there; the first
    `shared` variables of a node are components of τ."""
    logs = [branch.log_weight + nodes.log_weight for branch in branches]
    top = jnp.max(jnp.stack([jnp.max(ell, axis=1) for ell in logs]), axis=0)
    top = lax.stop_gradient(jnp.maximum(top, no_weight(top.dtype) / 2))
    weights = [factor * jnp.exp(ell - top[:, None]) for ell in logs]
    dot = lambda a, b: jnp.dot(a, b, precision="highest")
    weight = total(weights)
    # (1, t) is the same for all samples: its part of the table is one product of matrices
    u = jnp.concatenate([jnp.ones_like(nodes.tail)[:, None], nodes.points[:, :shared]], axis=1)
    pairs = (u[:, :, None] * u[:, None, :]).reshape(len(u), -1)
    table = dot(weight, pairs).reshape(-1, 1 + shared, 1 + shared)
    outer = range(len(branches[0].residuals))
    if outer:
        each = list(zip(weights, branches, strict=True))
        cross = [dot(total([w * b.residuals[m] for w, b in each]), u) for m in outer]
        square = [
            [jnp.sum(total([w * b.product(m, n) for w, b in each]), axis=1) for n in outer]
            for m in outer
        ]
        rows = jnp.stack(cross, axis=1)
        corner = jnp.stack([jnp.stack(row, axis=-1) for row in square], axis=1)
        above = jnp.concatenate([table, rows.swapaxes(1, 2)], axis=2)
        table = jnp.concatenate([above, jnp.concatenate([rows, corner], axis=2)], axis=1)
    squares = jnp.sum(total([w * w for w in weights]), axis=1)
    sums = Sums(top, table, dot(weight, nodes.tail), squares)
    return jax.tree.map(lambda x: x.astype(theory_dtype()), sums)


def merged(one: Sums, two: Sums) -> Sums:
    """The sums over the nodes of both."""
    top = jnp.maximum(one.top, two.top)
    both = jax.tree.map(jnp.add, one.relative_to(top), two.relative_to(top))
    return both._replace(top=top)


def moments_of(table: Array) -> tuple[Array, Array]:
    """Mean (..., K) and covariance (..., K, K) of τ."""
    normalised = table / table[..., :1, :1]
    mean = normalised[..., 0, 1:]
    return mean, normalised[..., 1:, 1:] - mean[..., :, None] * mean[..., None, :]
