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
from jaxtyping import Array

from jaxsmi.core.border import checked, numbers

__all__ = ["hinge", "logistic", "squared"]


@checked(prediction=numbers("real numbers"), label=numbers("real numbers"))
def squared(prediction: Array, label: Array) -> Array:
    """½ ‖ŷ - y‖². (The default of `smi.train` is without the ½.)

    Args:
        prediction: ŷ of one sample, any shape.
        label: y, of that shape.

    Returns:
        A number.

    Raises:
        Nothing.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> float(smi.losses.squared(jnp.array(3.0), jnp.array(1.0)))
        2.0

    Cost:
        The entries of the label.

    Source:
        [theory: empirical-risk, section 1].
    """
    return 0.5 * jnp.sum(jnp.subtract(prediction, label) ** 2)


@checked(prediction=numbers("real numbers"), label=numbers("real numbers"))
def logistic(prediction: Array, label: Array) -> Array:
    """Σ log(1 + exp(-y ŷ)), labels ±1.

    Args:
        prediction: ŷ of one sample, a real number (of a student such as `smi.links.linear()`).
        label: y = ±1.

    Returns:
        A number.

    Raises:
        Nothing.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> round(float(smi.losses.logistic(jnp.array(0.0), jnp.array(1.0))), 4)  # log 2
        0.6931

    Cost:
        One exponential.

    Source:
        [AKLZ20], [theory: empirical-risk, section 1].
    """
    return jnp.sum(jax.nn.softplus(-label * prediction))


@checked(prediction=numbers("real numbers"), label=numbers("real numbers"))
def hinge(prediction: Array, label: Array) -> Array:
    """Σ max(0, 1 - y ŷ), labels ±1. It has a kink: its proximal point is a formula.

    Args:
        prediction: ŷ of one sample, a real number (of a student such as `smi.links.linear()`).
        label: y = ±1.

    Returns:
        A number.

    Raises:
        Nothing.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> float(smi.losses.hinge(jnp.array(0.5), jnp.array(1.0)))
        0.5

    Cost:
        None to speak of.

    Source:
        [AKLZ20], [theory: empirical-risk, section 1].
    """
    return jnp.sum(jnp.maximum(0.0, 1.0 - label * prediction))
