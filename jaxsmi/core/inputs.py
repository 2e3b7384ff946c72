"""Stored inputs: real numbers, all finite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check

__all__ = ["all_finite", "as_inputs"]


@jax.jit
def all_finite(x: Array) -> Array:
    """Whether all numbers are finite, in one pass: no copy of a large array, on the device or to
    the host."""
    return jnp.all(jnp.isfinite(x))


def as_inputs(inputs: ArrayLike) -> Array:
    """Stored inputs as an array of real numbers (N, M, D), all finite."""
    array = jnp.asarray(inputs)
    if jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool:
        array = array.astype(theory_dtype())
    if concrete(array):
        check(all_finite(array), "inputs", array, "finite numbers")
    return array
