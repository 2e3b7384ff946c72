r"""Students of one direction over L tokens: attention and networks, as functions of the fields.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (1) to (7)], z (L,):

    attention         F(z) = Red(A(z)),   A_ij = exp(z_i z_j)/Σ_j' exp(z_i z_j')
                      Red: trace (Σ_i A_ii, over √L by default), identity (A itself), aᵀ A b
    linear attention  F = (Σ_l z_l/√L)²
    networks          F = σ(Σ_l x_l·w_l/√L), all w_l = w ("tied") or each its own ("untied")
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.validate import check

REDUCTIONS = ("trace", "identity", "bilinear")


class Attention(eqx.Module):
    """Tied softmax attention, head dimension one, values the tokens themselves (module docstring).

    The factor of the trace decides the sign of a curvature [theory: online-sgd, Table 2].

    Args:
        reduction: "trace" (the default), "identity" or "bilinear".
        trace_norm: "sqrtL" (over √L, the default) or "none".
        left: a (L,) of the bilinear reduction.
        right: b (L,) of the bilinear reduction.

    Raises:
        ValueError: For an unknown name, or `left`, `right` that are no vectors of norm > 0.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> smi.sgd.Attention("identity")(jnp.zeros(2)).shape
        (2, 2)
    """

    left: Array | None
    right: Array | None
    reduction: str = eqx.field(static=True)
    trace_norm: str = eqx.field(static=True)

    def __init__(
        self,
        reduction: str = "trace",
        trace_norm: str = "sqrtL",
        left: ArrayLike | None = None,
        right: ArrayLike | None = None,
    ):
        self.reduction = validate.choice("reduction", reduction, REDUCTIONS)
        self.trace_norm = validate.choice("trace_norm", trace_norm, ("sqrtL", "none"))
        allowed = "a vector (L,) of norm > 0, with reduction='bilinear' and only there"
        bilinear = self.reduction == "bilinear"
        for name, value in (("left", left), ("right", right)):
            # a vector that the reduction does not use is refused, and so is one that it lacks
            check((value is not None) == bilinear, name, value, allowed)
            vector = validate.optional(validate.array, name, value, allowed)
            check(vector is None or vector.ndim == 1, name, value, allowed)
            check(vector is None or jnp.any(vector != 0.0), name, value, allowed)
            setattr(self, name, vector)

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        A = jax.nn.softmax(fields[:, None] * fields, axis=-1)
        if self.left is not None and self.right is not None:
            return self.left @ A @ self.right
        if self.reduction == "identity":
            return A
        # over √L the trace of many tokens fluctuates by O(1)
        return jnp.trace(A) / (np.sqrt(len(fields)) if self.trace_norm == "sqrtL" else 1.0)


class LinearAttention(eqx.Module):
    """Attention without softmax: F = (Σ_l z_l/√L)²."""

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        return jnp.sum(fields) ** 2 / len(fields)


class Network(eqx.Module):
    """F = σ(Σ_l x_l·w_l/√L): one direction for all tokens, or one for each. No encoding.

    Args:
        activation: Any JAX function of a number, smooth but perhaps at 0. Default: relu.
        tied: One direction for all tokens. Default True.

    Raises:
        ValueError: For an activation that is no function.
    """

    activation: Callable[[Array], Array] = eqx.field(static=True)
    tied: bool = eqx.field(static=True)

    def __init__(self, activation: Callable[[Array], Array] = jax.nn.relu, tied: bool = True):
        self.activation = validate.function("activation", activation, "a JAX function of a number")
        self.tied = validate.flag("tied", tied)

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        return self.activation(jnp.sum(fields) / np.sqrt(len(fields)))
