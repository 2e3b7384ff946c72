"""Control variates.

Equation here [theory: numerics, Eq. (10)]: E x = E[x - β d] for any d of mean zero, and the
variance is smallest at β = Cov(x, d)/Var(d).
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

__all__ = ["covariance_and_variance", "quotient"]


def covariance_and_variance(
    values: Array, control: Array, axis: int, mean: Callable[..., Array] = jnp.mean
) -> tuple[Array, Array]:
    """Cov(x, d) and Var(d) along an axis: their quotient is the coefficient β of a control variate.

    Args:
        values: x, an array.
        control: d, of the shape of `values`.
        axis: The axis of the samples.
        mean: Their average, called as `mean(array, axis=axis)`. Default jnp.mean.

    Returns:
        Covariance and variance, without that axis.
    """
    centred = control - jnp.expand_dims(mean(control, axis=axis), axis)
    return mean(values * centred, axis=axis), mean(centred**2, axis=axis)


def quotient(numerator: Array, denominator: Array) -> Array:
    """numerator/denominator, zero where the denominator is not positive."""
    positive = denominator > 0.0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), 0.0)
