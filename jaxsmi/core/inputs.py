"""Stored inputs: real numbers, all finite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import arithmetic, concrete, theory_dtype
from jaxsmi.core.checks import check

__all__ = ["all_finite", "as_inputs"]


def all_finite(x: Array) -> Array | bool:
    """Whether all numbers are finite: of many in one pass, without a copy of a large array, on the
    device or to the host."""
    if arithmetic(x) is np:
        return bool(np.isfinite(np.asarray(x)).all())
    return _finite(x)


@jax.jit  # not as a `program`: the older emitters make arrays of the size of x
def _finite(x: Array) -> Array:
    return jnp.all(jnp.isfinite(x))


def as_inputs(inputs: ArrayLike) -> Array:
    """Stored inputs as an array of real numbers (N, M, D), all finite."""
    array = jnp.asarray(inputs)
    if jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool:
        array = array.astype(theory_dtype())
    if concrete(array):
        check(all_finite(array), "inputs", array, "finite numbers")
    return array
