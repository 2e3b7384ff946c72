"""Inputs of a design: laws of their entries, blocks of samples, and products with weights.

Inputs are an array (N, ., .), or `Regenerated`, whose block k is drawn from the key and its number
whenever it is read. A pass over them is one of two products, X Wᵀ and Gᵀ X of a few rows W. Sums
over blocks are float64 whatever the precision of the products.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import Regenerated

Inputs = Array | Regenerated
Law = Callable[[PRNGKeyArray, tuple[int, ...], DTypeLike], Array]  # draws iid entries

# numbers in a block of regenerated inputs: 32 MiB, and three times as much while they are drawn
MAX_BLOCK_SIZE = 2**23

_SPARSE_DENSITY = 0.1  # share of entries of sparse inputs that are not 0: a kurtosis of 30

# numbers of inputs in a block on a CPU: 1 MiB of float64, the cache of a core. Twice as many, or
# half, are up to a third slower
_CACHE_SIZE = 2**17

_MAX_DRAW_SIZE = 2**27  # numbers of inputs drawn at once: 1 GB in float64, 4 GB in between


def gaussian(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Draw iid N(0, 1); bfloat16 numbers are rounded from float32, whose tails are right."""
    drawn = jnp.float32 if dtype == jnp.bfloat16 else dtype
    return jax.random.normal(key, shape, drawn).astype(dtype)


@jax.jit
def streams(key: PRNGKeyArray) -> tuple[PRNGKeyArray, ...]:
    """Split a key into those of a teacher, of inputs, of label noise and of directions."""
    teacher_key, input_key, noise_key = jax.random.split(key, 3)
    return teacher_key, input_key, noise_key, jax.random.fold_in(teacher_key, 1)


def rademacher(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Draw iid ±1."""
    return jax.random.rademacher(key, shape, dtype)


def uniform(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Draw iid numbers, uniform on [-√3, √3]: of variance one."""
    drawn = jnp.float32 if dtype == jnp.bfloat16 else dtype
    width = math.sqrt(3.0)
    return jax.random.uniform(key, shape, drawn, -width, width).astype(dtype)


def sparse(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Draw iid numbers, zero with probability 0.9, else N(0, 10): of variance one, kurtosis 30."""
    where_key, size_key = jax.random.split(key)
    size = gaussian(size_key, shape, dtype) * math.sqrt(1.0 / _SPARSE_DENSITY)
    there = jax.random.bernoulli(where_key, _SPARSE_DENSITY, shape)
    return jnp.where(there, size, 0.0).astype(dtype)


# laws of the entries of inputs, all of mean zero and variance one
LAWS = {"gaussian": gaussian, "rademacher": rademacher, "uniform": uniform, "sparse": sparse}


def draw_inputs(
    key: PRNGKeyArray,
    samples: int,
    input_shape: tuple[int, ...],
    dtype: DTypeLike,
    store: bool,
    law: Law = gaussian,
) -> Inputs:
    """Draw inputs (N, *input_shape) of a law, stored or regenerated.

    Args:
        key: A random key.
        samples: N. Regenerated inputs come in K equal blocks, K a multiple of 8 (so that 2, 4 or 8
            devices can share them): N is rounded to that by no more than K/2, and not at all where
            it has a suitable divisor.
        input_shape: Shape of one input.
        dtype: Precision of the inputs.
        store: Whether they are stored.
        law: `law(key, shape, dtype)` draws some. Default: iid N(0, 1).

    Returns:
        An array, or `Regenerated`.
    """
    if store:
        return _stored(key, samples, input_shape, jnp.dtype(dtype), law)
    # a multiple of 8, so that 2, 4 or 8 devices share the blocks evenly
    least = 8 * math.ceil(samples / 8 / max(MAX_BLOCK_SIZE // math.prod(input_shape), 1))
    # a count that divides N leaves N as it is
    count = next((k for k in range(least, 2 * least, 8) if samples % k == 0), least)
    size = max(round(samples / count), 1)
    return Regenerated(jnp.arange(count), key, law, size, input_shape, jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _stored(
    key: PRNGKeyArray, samples: int, input_shape: tuple[int, ...], dtype: DTypeLike, law: Law
) -> Array:
    """Draw inputs (N, *input_shape)."""
    if samples * math.prod(input_shape) <= _MAX_DRAW_SIZE:
        return law(key, (samples, *input_shape), dtype)
    # block by block, since all at once takes four times their memory on a CPU
    size = min(max(MAX_BLOCK_SIZE // math.prod(input_shape), 1), samples)

    def put(k: Array, inputs: Array) -> Array:
        block = law(jax.random.fold_in(key, k), (size, *input_shape), dtype)
        # the last block begins earlier, and overwrites rows of the one before: all are of one size
        start = jnp.minimum(k * size, samples - size)
        return lax.dynamic_update_slice_in_dim(inputs, block, start, 0)

    return lax.fori_loop(0, -(-samples // size), put, jnp.zeros((samples, *input_shape), dtype))


def shifted(inputs: Inputs, mean: Array) -> Inputs:
    """Move inputs to a mean (M, D)."""
    if isinstance(inputs, Regenerated):
        # there is no array to add it to: each block is moved when it is drawn
        return dataclasses.replace(inputs, mean=mean)
    return _moved(inputs, mean.astype(inputs.dtype))


@functools.partial(jax.jit, donate_argnums=0)
def _moved(inputs: Array, mean: Array) -> Array:
    """Return inputs + mean, in the memory of the inputs."""
    return inputs + mean


def product_dtype(inputs: Inputs) -> jnp.dtype:
    """Return the precision of products with the inputs: their own, but float32 for bfloat16."""
    return jnp.dtype(jnp.float32) if inputs.dtype == jnp.bfloat16 else jnp.dtype(inputs.dtype)


def as_bits(x: Array) -> Array:
    """Return bfloat16 as its bits (uint16), everything else as it is: XLA for CPUs would make a
    float32 copy of a whole bfloat16 array before the loop that takes slices of it."""
    return lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def widened(x: Array) -> Array:
    """Return bfloat16, or its bits, as float32; everything else as it is."""
    bits = as_bits(x)
    if bits.dtype != jnp.uint16:
        return bits
    return lax.bitcast_convert_type(bits.astype(jnp.uint32) << 16, jnp.float32)


class Blocks(NamedTuple):
    """Inputs as blocks of samples.

    Attributes:
        count: Number of whole blocks.
        block_size: Samples in a whole block.
        rest: Samples left over, which come after them.
        read: `read(k, n)`, the first n samples of block k.
    """

    count: int
    block_size: int
    rest: int
    read: Callable[[Array | int, int], Array]


def blocks_of(inputs: Inputs, size: int | None) -> Blocks:
    """Divide the inputs into blocks of `size` samples, in the precision of products.

    Without a size there is one block, but bfloat16 inputs come in float32 blocks of 2^23 numbers.
    """
    if isinstance(inputs, Regenerated):
        block = lambda k, count: widened(inputs.block(k))
        return Blocks(len(inputs.numbers), inputs.block_size, 0, block)
    N = inputs.shape[0]
    if size is None:
        narrow = inputs.dtype == jnp.bfloat16
        size = max(MAX_BLOCK_SIZE // math.prod(inputs.shape[1:]), 1) if narrow else N
    if size >= N:
        return Blocks(1, N, 0, lambda k, count: widened(inputs))
    bits = as_bits(inputs)
    read = lambda k, count: widened(lax.dynamic_slice_in_dim(bits, k * size, count))
    return Blocks(N // size, size, N % size, read)


def mapped(function: Callable[[Array], Array], inputs: Inputs, size: int | None = None) -> Array:
    """Apply `function(block)` to all blocks of samples, and stack the results (N, ...)."""
    count, size, rest, read = blocks_of(inputs, size)
    if count == 1 and not rest:
        return function(read(0, size))
    # a loop, not vmap: one block at a time is in memory
    values = lax.map(lambda k: function(read(k, size)), jnp.arange(count))
    values = values.reshape(count * size, *values.shape[2:])
    return jnp.concatenate([values, function(read(count, rest))]) if rest else values


def summed(
    function: Callable[[Array, Array], Array], inputs: Inputs, g: Array, size: int | None = None
) -> Array:
    """Sum `function(block, g of the block)` over the blocks of samples, in float64."""
    count, size, rest, read = blocks_of(inputs, size)

    def part(k: Array | int, n: int) -> Array:
        weights = lax.dynamic_slice_in_dim(g, k * size, n)
        return function(read(k, n), weights).astype(theory_dtype())

    # a rest of samples is a program of its own, as padding would copy the inputs
    last = part(count, rest) if rest else part(0, size)
    first = 0 if rest else 1
    return lax.fori_loop(first, count, lambda k, total: total + part(k, size), last)


# Both products read all of X and do little with it, so that memory is the limit. On a CPU a matrix
# product packs X before it multiplies, and adds up all rows in the precision of X. Here Gᵀ X is
# taken over blocks that stay in a core's cache: they are read from memory once for all rows of W,
# bfloat16 is widened there, and the sums of blocks are added up in float64. X Wᵀ of float32 and
# float64 is a plain product, whose sums are short. (A float32 product Gᵀ X would be faster, but
# loses a digit of sums over many samples.) Measured on one busy core, D = 16000, P = 2, in GB of X
# a second, the product beside the blocks (jaxlib 0.10):
#
#                 Gᵀ X: product   blocks       X Wᵀ: product   blocks
#     float64              0.9      7.7                16.0        -
#     float32             17.9      7.7                25.4        -
#     bfloat16             0.7      3.8                 4.3      4.7


def project(W: Array, inputs: Inputs) -> Array:
    """Compute fields W X/√D (N, P, M) of rows W (P, D), of samples of M·D numbers each; in the
    wider precision of W and of products with the inputs."""
    P, D = W.shape
    narrow = W.T.astype(product_dtype(inputs))
    # not promote_types, which strict promotion forbids
    wide = max(W.dtype, narrow.dtype, key=lambda dtype: jnp.finfo(dtype).bits)

    def fields(x: Array) -> Array:
        rows = jnp.matmul(x.reshape(-1, D), narrow, precision="highest")
        tokens = math.prod(x.shape[1:]) // D  # no samples: reshape could not infer it from -1
        return jnp.swapaxes(rows.reshape(len(x), tokens, P), 1, 2).astype(wide)

    every = lambda inputs, size: mapped(fields, inputs, size)
    # only what has to be widened gains by blocks
    return _by_blocks(every, inputs, inputs.dtype == jnp.bfloat16) / math.sqrt(D)


def back_project(g: Array, inputs: Inputs) -> Array:
    """Compute Σ_μ g_μ X_μ/√D (P, D) of vectors g (N, P, M), the transpose of `project`; in
    float64."""

    def add(x: Array, g: Array) -> Array:
        columns = jnp.swapaxes(g, 0, 1).reshape(g.shape[1], -1).astype(product_dtype(inputs))
        rows = x.reshape(columns.shape[1], -1)
        # not one product of all columns, which would pack the rows
        return jnp.stack([jnp.matmul(column, rows, precision="highest") for column in columns])

    # a single column is not packed: its product reads the inputs once as it is
    gains = inputs.dtype == jnp.bfloat16 or g.shape[1] > 1
    total = _by_blocks(lambda inputs, size: summed(add, inputs, g, size), inputs, gains)
    return total / jnp.sqrt(float(total.shape[1]))


def _by_blocks(apply: Callable[[Inputs, int | None], Array], inputs: Inputs, gains: bool) -> Array:
    """Call `apply(inputs, size)`, with blocks that stay in the cache of a CPU if that `gains`."""
    # regenerated inputs have blocks of their own; few numbers are in the cache as they are
    if not gains or isinstance(inputs, Regenerated) or inputs.size <= _CACHE_SIZE:
        return apply(inputs, None)
    size = max(_CACHE_SIZE // math.prod(inputs.shape[1:]), 1)
    # other devices read memory at full speed only by large products
    whole = lambda inputs: apply(inputs, None)
    return lax.platform_dependent(inputs, cpu=lambda x: apply(x, size), default=whole)
