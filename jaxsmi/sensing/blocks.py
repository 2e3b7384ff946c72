"""TODO sensing.blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import Regenerated

BLOCK = (
    2**23
)  # numbers in a block of regenerated inputs: 32 MiB, and three times that while they are drawn


_LARGE = 2**27  # numbers of inputs that are drawn all at once


def gaussian(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """iid N(0, 1); bfloat16 ones are rounded from float32, whose tails are right."""
    return jax.random.normal(key, shape, jnp.float32 if dtype == jnp.bfloat16 else dtype).astype(
        dtype
    )


def draw_inputs(
    key: Array,
    samples: int,
    form: tuple[int, ...],
    dtype: Any,
    store: bool,
    law: Callable[..., Array] = gaussian,
) -> Any:
    """Inputs (N, *form) of a law, stored, or regenerated in blocks: then N is rounded to K equal blocks, K a multiple of 8
    (so that 2, 4 or 8 devices can share them), by no more than K/2, and not at all where N has a suitable divisor."""
    if store and samples * math.prod(form) <= _LARGE:
        return law(key, (samples, *form), dtype)
    if store:
        return _drawn_in_blocks(key, samples, form, jnp.dtype(dtype), law)
    least = 8 * math.ceil(samples / 8 / max(BLOCK // math.prod(form), 1))
    count = next((k for k in range(least, 2 * least, 8) if samples % k == 0), least)
    each = max(round(samples / count), 1)
    return Regenerated(jnp.arange(count), key, law, each, form, jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _drawn_in_blocks(
    key: Array, samples: int, form: tuple[int, ...], dtype: Any, law: Callable[..., Array]
) -> Array:
    """Inputs (N, *form), stored; drawn block by block, since all at once takes four times their memory on a CPU."""
    each = min(max(BLOCK // math.prod(form), 1), samples)

    def put(k: Array, inputs: Array) -> Array:
        block = law(jax.random.fold_in(key, k), (each, *form), dtype)
        return lax.dynamic_update_slice_in_dim(
            inputs, block, jnp.minimum(k * each, samples - each), 0
        )

    return lax.fori_loop(0, -(-samples // each), put, jnp.zeros((samples, *form), dtype))


def product_dtype(inputs: Any) -> Any:
    """The precision of products with the inputs: theirs, and float32 of bfloat16."""
    return jnp.dtype(jnp.float32) if inputs.dtype == jnp.bfloat16 else jnp.dtype(inputs.dtype)


def blocks_of(inputs: Any, size: int | None) -> tuple[int, int, int, Callable[[Any, Any], Array]]:
    """How many whole blocks, samples in each, those left over, and how to read the first samples of block k."""
    if isinstance(inputs, Regenerated):
        return (
            len(inputs.numbers),
            inputs.each,
            0,
            lambda k, count: inputs.block(k).astype(product_dtype(inputs)),
        )
    N = inputs.shape[0]
    if size is None and inputs.dtype == jnp.bfloat16:
        size = max(BLOCK // math.prod(inputs.shape[1:]), 1)
    each = N if size is None else min(size, N)
    if each == N:
        return 1, N, 0, lambda k, count: inputs.astype(product_dtype(inputs))
    read = lambda k, count: lax.dynamic_slice_in_dim(inputs, k * each, count).astype(
        product_dtype(inputs)
    )
    return N // each, each, N % each, read


def mapped(function: Callable[[Array], Array], inputs: Any, size: int | None = None) -> Array:
    """function(block) of all blocks of samples, stacked: (N, ...)."""
    count, each, left, read = blocks_of(inputs, size)
    if count == 1 and not left:
        return function(read(0, each))
    found = lax.map(lambda k: function(read(k, each)), jnp.arange(count))
    found = found.reshape(count * each, *found.shape[2:])
    return jnp.concatenate([found, function(read(count, left))]) if left else found


def summed(
    function: Callable[[Array, Array], Array], inputs: Any, g: Array, size: int | None = None
) -> Array:
    """Σ of function(block, g of the block) over the blocks of samples, in float64."""
    count, each, left, read = blocks_of(inputs, size)
    part = lambda k, n: function(read(k, n), lax.dynamic_slice_in_dim(g, k * each, n)).astype(
        theory_dtype()
    )
    if count == 1 and not left:
        return part(0, each)
    total = lax.fori_loop(1, count, lambda k, total: total + part(k, each), part(0, each))
    return total + part(count, left) if left else total
