"""TODO numerics.quadrature."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def covariance_and_variance(
    values: Array, control: Array, axis: int, mean: Callable[..., Array] = jnp.mean
) -> tuple[Array, Array]:
    """Cov(x, d) and Var(d) along an axis, by `mean(.., axis=axis)`: their quotient is the coefficient of a control variate."""
    centred = control - jnp.expand_dims(mean(control, axis=axis), axis)
    return mean(values * centred, axis=axis), mean(centred**2, axis=axis)


def quotient(numerator: Array, denominator: Array) -> Array:
    """numerator/denominator, zero where the denominator is not positive."""
    return jnp.where(
        denominator > 0.0, numerator / jnp.where(denominator > 0.0, denominator, 1.0), 0.0
    )


def hermite_polynomials(x: Array, degree: int) -> Array:
    """h_0(x) .. h_degree(x), stacked along a new first axis; He_n = √n! h_n."""
    table = [jnp.ones_like(x), x]
    for n in range(1, degree):
        table.append((x * table[n] - np.sqrt(n) * table[n - 1]) / np.sqrt(n + 1))
    return jnp.stack(table[: degree + 1])
