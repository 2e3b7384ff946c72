r"""The limit of a quantity as a small parameter goes to zero by an unknown power.

Equations here [theory: multi-index, Eqs. (73), (74)]: x_k at Δ_k = Δ_1 r^{1-k}, k = 1 .. K,

    x_k = x + a Δ_k^p  ⟹  r^p = ⟨d_{K-1}, d_K⟩/⟨d_K, d_K⟩,   d_k = x_k - x_{k-1}
    x ≈ A_K = x_K + d_K/(r^p - 1)                       (Aitken),   p in [1/4, 2]
    error   = max{ |A_K - A_{K-1}|, |A_K - L_K| },    L_K = x_K + d_K/(r - 1), A_K at p = 1

The second keeps two A that agree by chance from counting as exact.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import nan_unless
from jaxsmi.core.validate import check

_FEWEST = 4  # values: of three differences the last two give a power, the first two the one before
_POWERS = (0.25, 2.0)  # range of the power of Δ: outside, differences are noise
_EVEN = 1e-3  # relative error of the ratio of two variances, as rounded by hand


class Limit(NamedTuple):
    """The limit x of values, pseudo-values (R, ...) of its replicas, whose spread is the
    statistical error, and the error of the extrapolation."""

    value: Array
    replicas: Array
    error: Array


def geometric_steps(name: str, values: ArrayLike) -> Array:
    """The argument `name` as steps to zero: four values or more (K,), positive, each the same
    fraction of the one before; NaN where it is traced and is none."""
    allowed = "four variances or more, falling by one factor: (.08, .04, .02, .01)"
    steps = validate.array(name, values, allowed)
    check(steps.ndim == 1 and len(steps) >= _FEWEST, name, values, allowed)
    ratios = steps[:-1] / jnp.where(steps[1:] > 0.0, steps[1:], 1.0)
    even = jnp.max(jnp.abs(ratios / ratios[0] - 1.0)) <= _EVEN
    falls = jnp.all(steps > 0.0) & (ratios[0] > 1.0)
    check(even & falls, name, values, allowed)
    return nan_unless(steps, even, falls)


def limit(steps: Array, replicas: Array) -> Limit:
    """The limit at zero of values at steps towards it.

    Args:
        steps: The steps (K,).
        replicas: Independent replicas (R, K, ...) of the values; R = 1 leaves their spread out.

    Returns:
        A `Limit`: of the mean of the replicas, with the pseudo-values R x - (R - 1) x_{-r} of the
        jackknife, which carry the error of the power, too.
    """
    ratio = steps[-2] / steps[-1]
    mean = jnp.mean(replicas, axis=0)
    value = _aitken(ratio, mean[-3:])
    before = _aitken(ratio, mean[-4:-1])
    linear = mean[-1] + (mean[-1] - mean[-2]) / (ratio - 1.0)
    error = jnp.maximum(jnp.abs(value - before), jnp.abs(value - linear))
    R = len(replicas)
    if R == 1:  # the jackknife divides by R - 1
        return Limit(value, value[None], error)
    # leave one out: the power is a ratio, whose error the spread of single replicas overstates
    without = (R * mean - replicas) / (R - 1)
    others = jax.vmap(lambda x: _aitken(ratio, x[-3:]))(without)
    return Limit(value, R * value - (R - 1) * others, error)


def _aitken(ratio: Array, three: Array) -> Array:
    """The limit of three values (3, ...) by their own power."""
    first = three[1] - three[0]
    second = three[2] - three[1]
    # one power for all entries: that of a single small entry would be noise
    squares = jnp.sum(second**2)
    moves = squares > 0.0
    factor = jnp.where(moves, jnp.sum(first * second) / jnp.where(moves, squares, 1.0), ratio)
    low, high = _POWERS
    factor = jnp.clip(factor, ratio**low, ratio**high)  # r^p
    return three[2] + second / (factor - 1.0)
