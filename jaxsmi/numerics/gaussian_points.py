r"""Points and weights of a Gaussian average, in independent rules.

Equations here [theory: empirical-risk, Eqs. (16), (17)]: in few variables a trapezoidal sum over a
grid with a random shift u,

    E f(t) ≈ h^d Σ_i f(h (i + u)) Π_k φ(h (i_k + u_k)),   i_k = -n/2, .., n/2 - 1

whose average over u is the integral itself, and whose error for a smooth f falls faster than any
power of h; in many variables a randomised net (nets.py). Independent shifts or nets give the
standard error of either.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.nets import power_of_two, randomised_gaussians

_FEWEST = (
    8  # points per axis below which a grid is worse than a net [theory: empirical-risk, Eq. (16)]
)
_WIDEST = 8.3  # a Gaussian has 1e-16 of its mass outside


class Points(NamedTuple):
    """Points of independent rules: `position` (R, n, d), `weight` (R, n), of sum one in each."""

    position: Array
    weight: Array


def gaussian_points(
    key: PRNGKeyArray,
    samples: int,
    randomisations: int,
    dimension: int,
    fewest: int = _FEWEST,
) -> Points:
    """Rules for averages over `dimension` standard normals.

    Args:
        key: Of the shifts or the nets; the points depend on it alone.
        samples: Points of each rule, at most.
        randomisations: R, independent rules.
        dimension: d, the number of variables.
        fewest: Points an axis below which a grid is worse than a net: more where the function has
            poles near the real axis. Default 8.

    Returns:
        `Points`: a grid where every axis has `fewest` points or more, else a net.
    """
    # 1e-9: the d-th root of a d-th power may round to below the integer
    side = int(np.floor(samples ** (1.0 / dimension) + 1e-9))
    if side < fewest:
        # the largest power of two up to `samples`: other counts lose the balance of a net
        size = power_of_two(samples // 2 + 1)
        position = randomised_gaussians(key, size, randomisations, dimension)
        return Points(position, jnp.full(position.shape[:2], 1.0 / size, position.dtype))
    # the mass outside and the error of the sum inside fall alike where the width is √(π n)
    width = min(np.sqrt(np.pi * side), _WIDEST)
    step = 2.0 * width / side
    axes = np.meshgrid(*[np.arange(side) - side // 2] * dimension, indexing="ij")
    index = jnp.asarray(np.stack([axis.ravel() for axis in axes], -1), theory_dtype())
    shift = jax.random.uniform(key, (randomisations, 1, dimension), index.dtype)
    position = step * (index + shift)
    density = jnp.exp(-0.5 * jnp.sum(position**2, -1)) * (step / np.sqrt(2.0 * np.pi)) ** dimension
    # normalised in each rule: the average of a constant is exact, as in a net
    return Points(position, density / jnp.sum(density, -1, keepdims=True))
