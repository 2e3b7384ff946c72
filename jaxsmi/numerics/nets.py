"""TODO numerics.nets."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype

_BITS = 20  # a net has at most 2^20 points


@functools.cache
def _directions(dimension: int) -> np.ndarray:
    """Sobol direction numbers (dimension, 20), uint32, read off SciPy's generator."""
    from scipy.stats import qmc  # here: importing scipy.stats takes a second

    columns = []
    for k in range(
        _BITS
    ):  # the Gray code of 2^(k+1) - 1 is 2^k: that point is the k-th direction number
        point = (
            qmc.Sobol(dimension, scramble=False, bits=32)
            .fast_forward(2 ** (k + 1) - 1)
            .random(1)[0]
        )
        columns.append((point * 2.0**32).astype(np.uint32))
    return np.stack(columns, axis=1)


class Net(eqx.Module):
    """One randomisation of a Sobol net: a random linear scramble and a digital shift [M98].

    Averages over its first 2^k points are unbiased; independent nets give independent averages.
    """

    directions: Array
    shift: Array

    def __init__(self, key: Array, dimension: int):
        scramble_key, shift_key = jax.random.split(key)
        lower = jnp.tril(jax.random.bits(scramble_key, (dimension, 32, 32), jnp.uint8) & 1, -1)
        lower = (lower | jnp.eye(32, dtype=jnp.uint8)).astype(jnp.uint32)
        place = jnp.uint32(1) << jnp.arange(
            31, -1, -1, dtype=jnp.uint32
        )  # bit of each row, the most significant first
        masks = jnp.sum(lower * place, axis=-1, dtype=jnp.uint32)
        parity = (
            lax.population_count(
                masks[:, None, :] & jnp.asarray(_directions(dimension))[:, :, None]
            )
            & 1
        )
        self.directions = jnp.sum(parity * place, axis=-1, dtype=jnp.uint32)
        self.shift = jax.random.bits(shift_key, (dimension,), jnp.uint32)

    def uniforms(self, start: Any, count: int) -> Array:
        """The `count` points (count, dimension) in (0, 1) from position `start` on: a power of two, and a multiple of it."""
        base = self.shift
        for k in range(_BITS):
            base = base ^ (self.directions[:, k] * ((jnp.asarray(start, jnp.uint32) >> k) & 1))
        index = jnp.arange(count, dtype=jnp.uint32)
        x = jnp.broadcast_to(base[:, None], (base.shape[0], count))
        for k in range(count.bit_length() - 1):
            x = x ^ (self.directions[:, k, None] * ((index >> k) & 1))
        dtype = theory_dtype()
        return jnp.minimum((x.astype(dtype) + 0.5) / 2.0**32, 1.0 - jnp.finfo(dtype).eps).T

    def gaussians(self, start: Any, count: int) -> Array:
        """Standard Gaussian points Φ^{-1}(x), (count, dimension)."""
        return ndtri(self.uniforms(start, count).T).T  # the long axis last while computing


def nets(key: Array, randomisations: int, dimension: int) -> Net:
    """Independent randomisations of one net, stacked along a leading axis."""
    return jax.vmap(lambda k: Net(k, dimension))(jax.random.split(key, randomisations))


def randomised_gaussians(key: Array, samples: int, randomisations: int, dimension: int) -> Array:
    """Independent randomisations of a Gaussian net: (randomisations, samples, dimension).

    Averages over the middle axis are independent and unbiased, so that their spread is an honest standard error.
    `samples` must be a power of two, at most 2^20. The points depend on `key` alone: common random numbers.
    """
    return jax.vmap(lambda net: net.gaussians(0, samples))(nets(key, randomisations, dimension))


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`, at most 2^20."""
    return min(1 << max(int(count) - 1, 0).bit_length(), 1 << 20)
