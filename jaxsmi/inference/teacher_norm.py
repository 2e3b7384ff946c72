r"""The norm of a teacher as the labels tell it.

Equation here [theory: spectral, Eq. (14)]. The norm of one index, ρ = W* W*ᵀ/D, differs from S by
S √(2/D), and message passing with the wrong norm loses the signal even from the teacher. The
labels tell of it, before any input is looked at:

    Ŝ = argmax_ρ  Σ_μ log Z_out(y_μ; 0, ρ) - (D/2) (ρ/S - log ρ/S)
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.validate import check
from jaxsmi.models.base import AbstractModel
from jaxsmi.priors.gaussian import Gaussian

__all__ = ["with_norm"]

_GRID = 25
_WIDTHS = 6.0  # Ŝ is looked for within so many standard deviations √(2/D) of log ρ/S


def with_norm(model: AbstractModel, data: Dataset, norm: bool | None) -> AbstractModel:
    """The model with the norm of its one index as the labels tell it, if asked to (None: where that
    is known to help)."""
    prior = model.prior
    usual = model.indices == 1 and isinstance(prior, Gaussian) and prior.covariance is None
    if norm is None:
        norm = usual
    check(isinstance(norm, bool), "norm", norm, "True, False or None")
    allowed = "False: it is estimated of one index with the default Gaussian prior"
    check(usual or not norm, "norm", norm, allowed)
    if not norm:
        return model
    covariance = _estimated_norm(model, data)
    return eqx.tree_at(lambda m: m.prior.covariance, model, covariance, is_leaf=lambda x: x is None)


@eqx.filter_jit
def _estimated_norm(model: AbstractModel, data: Dataset) -> Array:
    """Ŝ (1, 1), by a grid and a parabola through its best three points."""
    statistic = model.channel.statistic(data.labels)
    zero = jnp.zeros((data.samples, 1, model.channel.tokens), theory_dtype())
    widest = _WIDTHS * np.sqrt(2.0 / data.dimension)
    grid = jnp.exp(jnp.linspace(-widest, widest, _GRID))
    half = 0.5 * data.dimension

    def evidence(rho: Array) -> Array:
        post = model.channel.respond(statistic, zero, rho * jnp.eye(1), jax.random.key(0))
        return jnp.sum(post.log_partition) - half * (rho - jnp.log(rho))

    values = lax.map(evidence, grid)
    best = jnp.clip(jnp.argmax(values), 1, _GRID - 2)
    low, middle, high = (values[best + k] for k in (-1, 0, 1))
    curvature = low - 2.0 * middle + high
    shift = jnp.where(curvature < 0.0, 0.5 * (low - high) / jnp.minimum(curvature, -1e-30), 0.0)
    step = 2.0 * widest / (_GRID - 1)
    return (grid[best] * jnp.exp(jnp.clip(shift, -1.0, 1.0) * step)).reshape(1, 1)
