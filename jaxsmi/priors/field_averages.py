r"""Averages over the field b = Q̂w + Q̂^{1/2}ξ of a prior with iid columns.

Equations here [TCDKZ25], [theory: numerics, Eqs. (14) to (16)],
[theory: multi-index, Eqs. (14) to (16)]:

* E h(b, Q̂) by a deterministic quadrature over u, b = Q̂^{1/2}u, whose nodes a column knows;
* derivatives in Q̂ never differentiate Q̂^{1/2}, which is singular where a direction is unlearned:
  b is a diffusion in the "time" Q̂ whose drift is f, so that by Itô's formula

      d E[h] = E[ ∂_Q̂ h·dQ̂ + fᵀ dQ̂ ∇h + ½ tr(dQ̂ ∇²h) ],

  which is ½ fᵀ dQ̂ f for h = log Z_w, C dQ̂ C for f fᵀ, and -C dQ̂ C for C (the derivative of the
  MMSE matrix: Payaró and Palomar, IEEE Trans. Inf. Theory 55, 2009). It holds at Q̂ = 0, at
  singular Q̂, and to every order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.priors.nodes import CHUNK

if TYPE_CHECKING:
    from jaxsmi.priors.iid import AbstractIidPrior

Integrand = Callable[["AbstractIidPrior", Array, Array], Array]  # of the prior, b and Q̂


# Averages and their derivatives ------------------------------------------------------------------


@eqx.filter_custom_jvp
@eqx.filter_jit
def average(
    prior: AbstractIidPrior, Qhat: Array, *, function: Integrand, drift: Integrand | None = None
) -> Array:
    """E function(prior, b, Q̂) over b = Q̂w + Q̂^{1/2}ξ.

    Args:
        prior: A prior with iid columns.
        Qhat: Q̂ (P, P), positive semi-definite.
        function: What is averaged, of any shape.
        drift: The derivative of the average in Q̂ as another average, (..., P, P), where it is
            known. Default: by Itô's formula.
    """
    root = sqrt_psd(Qhat)
    u, weights = prior.column(len(Qhat)).nodes(root)

    def add(total: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
        b, weight = chunk
        values = jax.vmap(lambda field: function(prior, field, Qhat))(b)
        return total + jnp.tensordot(weight, values, 1), None

    shape = jax.eval_shape(lambda: function(prior, u[0], Qhat))
    # chunk by chunk: values of all nodes at once would leave the cache
    chunks = (u @ root).reshape(-1, CHUNK, len(Qhat)), weights.reshape(-1, CHUNK)
    return jax.lax.scan(add, jnp.zeros(shape.shape, shape.dtype), chunks)[0]


@average.def_jvp
def _average_jvp(
    primals: tuple[AbstractIidPrior, Array],
    tangents: tuple[AbstractIidPrior, Array | None],
    *,
    function: Integrand,
    drift: Integrand | None = None,
) -> tuple[Array, Array]:
    """Averages again, free of tangents: every order exists, and reverse mode keeps this rule."""
    prior, Qhat = primals
    prior_tangent, Qhat_tangent = tangents
    value = average(prior, Qhat, function=function, drift=drift)
    total = jnp.zeros_like(value)
    if Qhat_tangent is not None:
        # an exact derivative where it is known: by Itô it takes second derivatives of the posterior
        slope = average(prior, Qhat, function=drift or generator(function))
        total += jnp.einsum("...pq,pq->...", slope, Qhat_tangent)
    if jax.tree.leaves(prior_tangent):
        # parameters that are not differentiated have no tangent
        filled = jax.tree.map(
            lambda p, t: jnp.zeros_like(p) if t is None else t, prior, prior_tangent
        )
        total += average(prior, Qhat, function=_score(function)) @ ravel_pytree(filled)[0]
    return value, total


@functools.cache
def generator(function: Integrand) -> Integrand:
    """Itô's formula for a function of (prior, b, Q̂): its coefficients of dQ̂, (..., P, P)."""

    def generator(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
        slope, ageing = jax.jacfwd(function, argnums=(1, 2))(prior, b, Qhat)
        curvature = jax.jacfwd(jax.jacfwd(function, argnums=1), argnums=1)(prior, b, Qhat)
        return ageing + slope[..., :, None] * _respond(prior, b, Qhat)[1] + 0.5 * curvature

    return generator


@functools.cache
def _score(function: Integrand) -> Integrand:
    """∂h + h ∂ log Z_w in the parameters of the prior, (..., n).

    The law of b is N(0, Q̂) Z_w(b, Q̂).
    """

    def score(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
        parameters, restore = ravel_pytree(prior)
        change = jax.jacfwd(lambda x: function(restore(x), b, Qhat))(parameters)
        log_change = jax.jacfwd(lambda x: _respond(restore(x), b, Qhat)[0])(parameters)
        return change + function(prior, b, Qhat)[..., None] * log_change

    return score


# What is averaged --------------------------------------------------------------------------------


def _respond(prior: AbstractIidPrior, b: Array, Qhat: Array) -> tuple[Array, Array, Array]:
    """log Z_w, f and C."""
    return prior.column(len(b)).respond(b, Qhat)


def log_partition_of(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
    """log Z_w."""
    return _respond(prior, b, Qhat)[0]


def half_outer(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
    """½ f fᵀ."""
    return 0.5 * _outer(prior, b, Qhat)


def _outer(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
    """f fᵀ."""
    f = _respond(prior, b, Qhat)[1]
    return jnp.outer(f, f)


def _covariance(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
    """Posterior covariance C of one column, from its field."""
    return _respond(prior, b, Qhat)[2]


def _covariance_twice(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
    """C ⊗ C (P, P, P, P), which makes C dQ̂ C."""
    C = _respond(prior, b, Qhat)[2]
    return jnp.einsum("ip,jq->ijpq", C, C)


def _minus_covariance_twice(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
    """-C ⊗ C."""
    return -_covariance_twice(prior, b, Qhat)


def free_entropy(prior: AbstractIidPrior, Qhat: Array) -> Array:
    """E log Z_w; its derivative is ½ E fᵀ dQ̂ f."""
    return average(prior, Qhat, function=log_partition_of, drift=half_outer)


def overlap(prior: AbstractIidPrior, Qhat: Array) -> Array:
    """E f fᵀ; its derivative is E C dQ̂ C."""
    return average(prior, Qhat, function=_outer, drift=_covariance_twice)


def mmse(prior: AbstractIidPrior, Qhat: Array) -> Array:
    """E C; its derivative is -E C dQ̂ C."""
    return average(prior, Qhat, function=_covariance, drift=_minus_covariance_twice)
