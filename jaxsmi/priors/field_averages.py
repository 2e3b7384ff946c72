r"""Averages over the field b = Q̂w + Q̂^{1/2}ξ of a prior that is a mixture of Gaussians.

Equations here [TCDKZ25], [theory: numerics, Eqs. (14) to (16)],
[theory: multi-index, Eqs. (14) to (16)]:

* E h(b, Q̂) by a deterministic quadrature: b = Q̂^{1/2}u, and the law of u is a mixture;
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
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.priors.mixture import Mixture

if TYPE_CHECKING:
    from jaxsmi.priors.iid import AbstractIidPrior

__all__ = ["average", "free_entropy", "mmse", "overlap"]

# P: nodes per axis, standard deviations spanned
_TRAPEZOID = {1: (1024, 9.0), 2: (128, 8.5), 3: (48, 7.5)}

_CHUNK = 512  # nodes at a time: small enough for the cache

Integrand = Callable[["AbstractIidPrior", Array, Array], Array]  # of the prior, b and Q̂


# Quadrature --------------------------------------------------------------------------------------


def _nodes(mixture: Mixture, root: Array) -> tuple[Array, Array]:
    """Nodes u (n, P) and weights (n,) for u = Q̂^{1/2}w + ξ, where `root` is Q̂^{1/2}.

    n is a multiple of the chunk. P <= 3: a tensor trapezoidal rule for each component. P > 3: a
    Kronecker sequence over (ξ, component).
    """
    indices = mixture.mean.shape[1]
    mean = mixture.mean @ root
    covariance = root @ mixture.covariance @ root + jnp.eye(indices, dtype=root.dtype)
    spread = jnp.linalg.cholesky(covariance)
    if indices > 3:
        return _sequence(jnp.exp(mixture.log_weight), mean, spread)
    # axes turned to those of w, the best known first: there Bernoulli–Gauss has its narrow bands
    signal = jax.scipy.linalg.solve_triangular(spread, root @ mixture.covariance, lower=True)
    order = jnp.argsort(-jnp.linalg.norm(signal, axis=1), axis=1)
    turn = jnp.linalg.qr(jnp.take_along_axis(signal, order[:, None, :], axis=2))[0]
    u, weight = jax.vmap(_grid, in_axes=(0, 0, 0, None))(mean, spread, turn, root)
    return u.reshape(-1, indices), (jnp.exp(mixture.log_weight)[:, None] * weight).reshape(-1)


def _grid(mean: Array, spread: Array, turn: Array, root: Array) -> tuple[Array, Array]:
    """Nodes (n, P) and weights (n,) of one component of at most three indices.

    A trapezoidal rule along each axis: nodes ξ = center + width·sinh(t) are dense where the
    posterior switches between components and still span the Gaussian. Their weights and second
    moment are normalised exactly, however sharp they are.
    """
    indices = mean.shape[0]
    count, reach = _TRAPEZOID[indices]
    if indices == 1:
        center = -mean / spread[0]  # b = 0, where Rademacher switches sign
        center = jnp.where(jnp.abs(center) < 40.0, center, 0.0)  # beyond, its weight underflows
        width = 1.0 / jnp.sqrt(spread[0] ** 2 + root[0] ** 2)
    else:
        spread = spread @ turn
        center = jnp.zeros_like(mean)
        width = 3.0 / jnp.linalg.norm(spread, axis=0)
    end = jnp.arcsinh((reach + jnp.abs(center)) / width)
    t = jnp.linspace(-1.0, 1.0, count, dtype=root.dtype)[:, None] * end
    xi = center + width * jnp.sinh(t)
    weight = jnp.exp(-0.5 * xi**2) * jnp.cosh(t)
    weight = weight / jnp.sum(weight, axis=0)
    xi = xi / jnp.sqrt(jnp.sum(weight * xi**2, axis=0))
    grid = jnp.stack(jnp.meshgrid(*xi.T, indexing="ij"), axis=-1).reshape(-1, indices)
    weights = functools.reduce(jnp.multiply.outer, weight.T)
    return mean + grid @ spread.T, weights.reshape(-1)


def _sequence(weight: Array, mean: Array, spread: Array) -> tuple[Array, Array]:
    """2^(22-P) nodes ±u.

    The components share a Kronecker sequence in P dimensions, half by weight, half evenly.
    """
    (components, indices) = mean.shape
    dtype = mean.dtype
    count = 2 ** (21 - indices)
    root = 2.0
    for _ in range(64):
        # the root above one of x^(P+1) = x + 1: its inverse powers spread the points evenly
        root = (1.0 + root) ** (1.0 / (indices + 1))
    step = np.array([int(2**32 * root ** -(p + 1)) for p in range(indices)], dtype=np.uint32)
    point = jnp.arange(1, count + 1, dtype=jnp.uint32)[:, None] * step  # modulo 2^32 by overflow
    uniform = jnp.clip((point.astype(dtype) + 0.5) / 2.0**32, 1e-10, 1.0 - jnp.finfo(dtype).eps)
    xi = jax.scipy.special.ndtri(uniform)
    share = jnp.cumsum(0.5 * weight + 0.5 / components)
    member = jnp.searchsorted(share[:-1], (jnp.arange(count, dtype=dtype) + 0.5) / count)
    taken = jnp.bincount(member, length=components)
    # the second moment of each component's nodes is made exact, where there are enough of them
    moment = jax.ops.segment_sum(xi[:, :, None] * xi[:, None, :], member, components)
    number = taken[:, None, None]
    moment = jnp.where(number > 4 * indices, moment / number, jnp.eye(indices, dtype=dtype))
    factor = spread @ jnp.linalg.inv(jnp.linalg.cholesky(moment))
    u = mean[member] + jnp.einsum("npq,nq->np", factor[member], xi)
    weight = 0.5 * weight[member] / taken[member]
    return jnp.concatenate([u, -u]), jnp.concatenate([weight, weight])


# Averages and their derivatives ------------------------------------------------------------------


@eqx.filter_custom_jvp
@eqx.filter_jit
def average(
    prior: AbstractIidPrior, Qhat: Array, *, function: Integrand, drift: Integrand | None = None
) -> Array:
    """E function(prior, b, Q̂) over b = Q̂w + Q̂^{1/2}ξ.

    Args:
        prior: A prior that is a mixture of Gaussians.
        Qhat: Q̂ (P, P), positive semi-definite.
        function: What is averaged, of any shape.
        drift: The derivative of the average in Q̂ as another average, (..., P, P), where it is
            known. Default: by Itô's formula.
    """
    root = sqrt_psd(Qhat)
    u, weights = _nodes(prior.mixture(len(Qhat)), root)

    def add(total: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
        b, weight = chunk
        values = jax.vmap(lambda field: function(prior, field, Qhat))(b)
        return total + jnp.tensordot(weight, values, 1), None

    shape = jax.eval_shape(lambda: function(prior, u[0], Qhat))
    chunks = (u @ root).reshape(-1, _CHUNK, len(Qhat)), weights.reshape(-1, _CHUNK)
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
        slope = average(prior, Qhat, function=drift or generator(function))
        total += jnp.einsum("...pq,pq->...", slope, Qhat_tangent)
    if jax.tree.leaves(prior_tangent):
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
    return prior.mixture(len(b)).respond(b, Qhat)


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
