"""Stored numbers of a data set: real, finite, in their own precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import arithmetic, concrete, theory_dtype
from jaxsmi.core.validate import check, is_real

__all__ = ["all_finite", "as_inputs", "as_numbers"]


def all_finite(x: Array) -> Array | bool:
    """No NaN and no infinity: of many numbers in one pass, without a copy of a large array."""
    if arithmetic(x) is np:
        return bool(np.isfinite(np.asarray(x)).all())
    return _finite(x)


@jax.jit
def _finite(x: Array) -> Array:
    return jnp.all(jnp.isfinite(x))


def as_numbers(name: str, value: ArrayLike, allowed: str) -> Array:
    """An array of finite real numbers that is not empty."""
    try:
        check(is_real(value), name, value, allowed)
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        check(False, name, value, allowed)
        raise
    check(array.size > 0, name, value, allowed)
    if concrete(array):
        check(all_finite(array), name, array, "finite numbers")
    return array


def as_inputs(inputs: ArrayLike) -> Array:
    """Inputs (N, M, D); integers become the theory's precision."""
    allowed = "real numbers (N, M, D): samples, tokens (one: x[:, None, :]), entries"
    array = as_numbers("inputs", inputs, allowed)
    check(array.ndim == 3, "inputs", inputs, allowed)
    if jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool:
        array = array.astype(theory_dtype())
    return array
