r"""Losses of one sample, ℓ(ŷ, y), as `smi.Erm` and `smi.train` take them.

Equations here [theory: empirical-risk, section 1]:

    squared   ½ ‖ŷ - y‖²
    logistic  Σ log(1 + exp(-y ŷ)),    labels ±1
    hinge     Σ max(0, 1 - y ŷ),       labels ±1
    huber     Σ ½ r² up to |r| = δ, δ|r| - ½ δ² beyond,   r = y - ŷ
    quantile  Σ max(τ r, (τ - 1) r)
    cross entropy  log Σ_k exp ŷ_k - ŷ_y,   classes y
    misclassification  1 if sign ŷ is not y, or argmax ŷ is not the class y, else 0

Any JAX function (prediction, label) -> number does as well.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate

__all__ = [
    "cross_entropy",
    "hinge",
    "huber",
    "logistic",
    "misclassification",
    "quantile",
    "squared",
]


_SYNONYMS = {"mse": "squared", "zero_one": "misclassification"}
validate.suggest_names(__name__, "smi.losses", _SYNONYMS)


def __dir__() -> list[str]:
    return __all__


class Residual(eqx.Module):
    """The loss of r = y - ŷ whose slope is clip(r/s, low, high), s = 1 if `curved`, else s -> 0.
    Its proximal point is a formula."""

    low: Array
    high: Array
    curved: bool = eqx.field(static=True)

    @property
    def __name__(self) -> str:
        return "huber" if self.curved else "quantile"

    def __call__(self, prediction: ArrayLike, label: ArrayLike) -> Array:
        """Return ℓ, summed over the numbers of a prediction."""
        prediction, label = _numbers(prediction, label)
        r = label - prediction
        # float32 data stay float32
        low, high = self.low.astype(r.dtype), self.high.astype(r.dtype)
        if not self.curved:
            return jnp.sum(jnp.maximum(high * r, low * r))
        inner = jnp.clip(r, low, high)
        return jnp.sum(inner * (r - 0.5 * inner))

    def point(self, label: Array, omega: Array, V: Array) -> Array:
        """Return the proximal point for ŷ = z, z = ω + V clip((y - ω)/(s + V), low, high)."""
        v = V[0, 0]
        low, high = self.low.astype(v.dtype), self.high.astype(v.dtype)
        return omega + v * jnp.clip((label - omega) / (v + float(self.curved)), low, high)


def huber(threshold: ArrayLike = 1.0) -> Residual:
    """Return Huber's loss, ½ r² up to |r| = δ and δ|r| - ½ δ² beyond, r = y - ŷ.

    Args:
        threshold: δ > 0. Default 1.

    Returns:
        A loss (prediction, label) -> number.

    Raises:
        ValueError: For a threshold that is not positive.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> float(smi.losses.huber(1.0)(jnp.array(3.0), jnp.array(0.0)))
        2.5

    Source:
        [theory: empirical-risk, section 1].
    """
    threshold = validate.number("threshold", threshold, validate.POSITIVE)
    return Residual(-threshold, threshold, True)


def quantile(level: ArrayLike = 0.5) -> Residual:
    """Return the loss of a quantile, max(τ r, (τ - 1) r), r = y - ŷ: ½ |r| of the median.

    Args:
        level: τ in (0, 1). Default ½.

    Returns:
        A loss (prediction, label) -> number. It has a kink: its proximal point is a formula.

    Raises:
        ValueError: For a level outside (0, 1).

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> round(float(smi.losses.quantile(0.9)(jnp.array(0.0), jnp.array(2.0))), 6)
        1.8

    Source:
        [theory: empirical-risk, section 1].
    """
    level = validate.number("level", level, validate.UNIT_INTERVAL)
    return Residual(level - 1.0, level, False)


def cross_entropy(prediction: ArrayLike, label: ArrayLike) -> Array:
    """Return log Σ_k exp ŷ_k - ŷ_y of K classes.

    Args:
        prediction: ŷ (K,), of a student such as `smi.MultiIndex(lambda z: z[:, 0], indices=K)`.
        label: The class, a number from 0 to K - 1, or probabilities of the classes (K,).

    Returns:
        A number.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> round(float(smi.losses.cross_entropy(jnp.zeros(3), jnp.array(2.0))), 4)  # log 3
        1.0986

    Source:
        [theory: empirical-risk, section 1].
    """
    prediction, label = _numbers(prediction, label)
    if label.shape != prediction.shape:
        classes = jnp.arange(prediction.size, dtype=prediction.dtype)
        # not an index: labels may be traced, and floating point numbers
        label = (jnp.round(label.reshape(())) == classes).astype(prediction.dtype)
    return -jnp.sum(label * jax.nn.log_softmax(prediction))


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


def misclassification(prediction: ArrayLike, label: ArrayLike) -> Array:
    """Return 1 for a prediction of the wrong sign, or the wrong class, else 0: what
    `smi.generalization_error(.., loss=)` averages to the share of errors. It has no slope to learn
    by.

    Args:
        prediction: ŷ of one sample, a score of which the sign counts (zero as +), or K scores of
            classes of which the largest counts.
        label: y of the same shape, of which the sign counts; or the class, from 0 to K - 1.

    Returns:
        A number.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> float(smi.losses.misclassification(jnp.array(-0.3), jnp.array(1.0)))
        1.0

    Source:
        [AKLZ20].
    """
    prediction, label = _numbers(prediction, label)
    if prediction.size == label.size:
        wrong = jnp.any((prediction.ravel() >= 0.0) != (label.ravel() >= 0.0))
    else:
        wrong = jnp.argmax(prediction) != jnp.round(label.reshape(()))
    return wrong.astype(prediction.dtype)


def _numbers(prediction: ArrayLike, label: ArrayLike) -> tuple[Array, Array]:
    """Validate both, without a change of precision."""
    for name, value in (("prediction", prediction), ("label", label)):
        if not isinstance(value, jax.Array):
            validate.array(name, value, "real numbers")
    return jnp.asarray(prediction), jnp.asarray(label)
