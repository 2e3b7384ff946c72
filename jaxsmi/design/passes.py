r"""One pass over the inputs: the two products X Wᵀ and Gᵀ X of a tall array X, for few rows W.

Both read all of X and do little with it, so that memory is the limit. A matrix product of a CPU
packs X before it multiplies, and adds up all rows in the precision of X. Here Gᵀ X is taken over
blocks that stay in a core's cache: they are read from memory once for all rows of W, bfloat16 is
widened there, and the sums of blocks are added up in float64. X Wᵀ of float32 and float64 is a
plain product, whose sums are short. (A float32 product Gᵀ X would be faster, but loses a digit of
sums over many samples.) Measured on one busy core, D = 16000, P = 2, in GB of X a
second, the product beside the blocks (jaxlib 0.10):

                Gᵀ X: product   blocks       X Wᵀ: product   blocks
    float64              0.9      7.7                16.0        -
    float32             17.9      7.7                25.4        -
    bfloat16             0.7      3.8                 4.3      4.7
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core.data import Regenerated
from jaxsmi.design.blocks import Inputs, mapped, product_dtype, summed

# numbers of inputs in a block on a CPU: 1 MiB of float64, the cache of a core. Twice as many, or
# half, are up to a third slower
_CACHED = 2**17


def project(W: Array, inputs: Inputs) -> Array:
    """Fields W X/√D (N, P, M) of rows W (P, D), of samples of M·D numbers each; in the wider
    precision of W and of products with the inputs."""
    P, D = W.shape
    narrow = W.T.astype(product_dtype(inputs))
    wide = jnp.promote_types(W.dtype, narrow.dtype)

    def fields(x: Array) -> Array:
        rows = jnp.matmul(x.reshape(-1, D), narrow, precision="highest")
        return jnp.swapaxes(rows.reshape(len(x), -1, P), 1, 2).astype(wide)

    every = lambda inputs, size: mapped(fields, inputs, size)
    # only what has to be widened gains by blocks
    return _by_blocks(every, inputs, inputs.dtype == jnp.bfloat16) / math.sqrt(D)


def back_project(g: Array, inputs: Inputs) -> Array:
    """Σ_μ g_μ X_μ/√D (P, D) of vectors g (N, P, M), the transpose of `project`; in float64."""

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
    """`apply(inputs, size)`; on a CPU, if it gains, with blocks that stay in its cache."""
    # regenerated inputs have blocks of their own; few numbers are in the cache as they are
    if not gains or isinstance(inputs, Regenerated) or inputs.size <= _CACHED:
        return apply(inputs, None)
    size = max(_CACHED // math.prod(inputs.shape[1:]), 1)
    # other devices read memory at full speed only by large products
    whole = lambda inputs: apply(inputs, None)
    return lax.platform_dependent(inputs, cpu=lambda x: apply(x, size), default=whole)
