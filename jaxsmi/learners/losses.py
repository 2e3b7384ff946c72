r"""Losses of one sample, ℓ(ŷ, y), as `smi.Erm` and `smi.train` take them.

Equations here [theory: empirical-risk, section 1]:

    squared   ½ ‖ŷ - y‖²
    logistic  Σ log(1 + exp(-y ŷ)),    labels ±1
    hinge     Σ max(0, 1 - y ŷ),       labels ±1

Any JAX function (prediction, label) -> number does as well.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate

__all__ = ["hinge", "logistic", "squared"]


def squared(prediction: ArrayLike, label: ArrayLike) -> Array:
    """Return ½ ‖ŷ - y‖². (The default of `smi.train` is without the ½.)

    Args:
        prediction: ŷ of one sample, any shape.
        label: y, of that shape.

    Returns:
        A number.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> float(smi.losses.squared(jnp.array(3.0), jnp.array(1.0)))
        2.0

    Source:
        [theory: empirical-risk, section 1].
    """
    prediction, label = _numbers(prediction, label)
    return 0.5 * jnp.sum((prediction - label) ** 2)


def logistic(prediction: ArrayLike, label: ArrayLike) -> Array:
    """Return Σ log(1 + exp(-y ŷ)), labels ±1.

    Args:
        prediction: ŷ of one sample, a real number (of a student such as `smi.links.linear()`).
        label: y = ±1.

    Returns:
        A number.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> round(float(smi.losses.logistic(jnp.array(0.0), jnp.array(1.0))), 4)  # log 2
        0.6931

    Source:
        [AKLZ20], [theory: empirical-risk, section 1].
    """
    prediction, label = _numbers(prediction, label)
    return jnp.sum(jax.nn.softplus(-label * prediction))


def hinge(prediction: ArrayLike, label: ArrayLike) -> Array:
    """Return Σ max(0, 1 - y ŷ), labels ±1. It has a kink: its proximal point is a formula.

    Args:
        prediction: ŷ of one sample, a real number (of a student such as `smi.links.linear()`).
        label: y = ±1.

    Returns:
        A number.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> float(smi.losses.hinge(jnp.array(0.5), jnp.array(1.0)))
        0.5

    Source:
        [AKLZ20], [theory: empirical-risk, section 1].
    """
    prediction, label = _numbers(prediction, label)
    return jnp.sum(jnp.maximum(0.0, 1.0 - label * prediction))


def _numbers(prediction: ArrayLike, label: ArrayLike) -> tuple[Array, Array]:
    """Validate both, without a change of precision."""
    for name, value in (("prediction", prediction), ("label", label)):
        if not isinstance(value, jax.Array):
            validate.array(name, value, "real numbers")
    return jnp.asarray(prediction), jnp.asarray(label)
