r"""Averages over the field b = Q̂w + Q̂^{1/2}ξ of a prior with iid columns, by quadrature.

Equations here [TCDKZ25], [theory: numerics, section 6, Eqs. (18) to (21)],
[theory: multi-index, Eqs. (14) to (16)]:

* E h(b, Q̂) over nodes u, b = Q̂^{1/2}u, u = Q̂^{1/2}w + ξ. The posterior varies in u on a scale of
  about one over the size of w where it switches between peaks, elsewhere on that of w times
  Q̂^{1/2}. One index: the trapezoidal rule in t = Σ_c arsinh((u - c)/s) over several
  centres c: nodes are dense around each on the scale s, and everything is analytic, so that it
  converges exponentially. Two or three indices: a tensor rule for each Gaussian component. More: a
  Kronecker sequence;
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

if TYPE_CHECKING:
    from jaxsmi.priors.iid import AbstractIidPrior

Integrand = Callable[["AbstractIidPrior", Array, Array], Array]  # function of the prior, b and Q̂

CHUNK = 512  # nodes at a time: small enough for the cache
REACH = 9.0  # standard deviations spanned, of one index

# more centres share the nodes of sixteen: the cost stays bounded, and close peaks overlap
_MAX_CENTERS = 16
_START_POINTS = 128  # points around each centre, between which Newton's method starts
_NEWTON_STEPS = 4

# P: nodes per axis, standard deviations spanned
_TRAPEZOID = {2: (128, 8.5), 3: (48, 7.5)}


# Averages and their derivatives ------------------------------------------------------------------


@eqx.filter_custom_jvp
@eqx.filter_jit
def average(
    prior: AbstractIidPrior, Qhat: Array, *, function: Integrand, drift: Integrand | None = None
) -> Array:
    """Average function(prior, b, Q̂) over b = Q̂w + Q̂^{1/2}ξ.

    Args:
        prior: A prior with iid columns.
        Qhat: Q̂ (P, P), positive semi-definite.
        function: The average is over its values, of any shape.
        drift: A function whose average is the derivative in Q̂, (..., P, P), if known. Default: by
            Itô's formula.
    """
    root = sqrt_psd(Qhat)
    column = prior.column(len(Qhat))
    u, weights = mixture_nodes(column.log_weight, column.mean, column.covariance, root)

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
    """Derivatives as averages, free of tangents: every order exists, and reverse mode works."""
    prior, Qhat = primals
    prior_tangent, Qhat_tangent = tangents
    value = average(prior, Qhat, function=function, drift=drift)
    total = jnp.zeros_like(value)
    if Qhat_tangent is not None:
        # an exact derivative if it is known: by Itô it takes second derivatives of the posterior
        slope = average(prior, Qhat, function=drift or generator(function))
        total += jnp.einsum("...pq,pq->...", slope, Qhat_tangent)
    if jax.tree.leaves(prior_tangent):
        # parameters that are not differentiated have no tangent
        fill = lambda p, t: jnp.zeros_like(p) if t is None else t
        filled = jax.tree.map(fill, prior, prior_tangent)
        total += average(prior, Qhat, function=_score(function)) @ ravel_pytree(filled)[0]
    return value, total


@functools.cache
def generator(function: Integrand) -> Integrand:
    """Apply Itô's formula to a function of (prior, b, Q̂): coefficients of dQ̂, (..., P, P)."""

    def generator(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
        slope, ageing = jax.jacfwd(function, argnums=(1, 2))(prior, b, Qhat)
        curvature = jax.jacfwd(jax.jacfwd(function, argnums=1), argnums=1)(prior, b, Qhat)
        return ageing + slope[..., :, None] * _respond(prior, b, Qhat)[1] + 0.5 * curvature

    return generator


@functools.cache
def _score(function: Integrand) -> Integrand:
    """Return ∂h + h ∂ log Z_w in the parameters of the prior, (..., n).

    The law of b is N(0, Q̂) Z_w(b, Q̂).
    """

    def score(prior: AbstractIidPrior, b: Array, Qhat: Array) -> Array:
        parameters, restore = ravel_pytree(prior)
        change = jax.jacfwd(lambda x: function(restore(x), b, Qhat))(parameters)
        log_change = jax.jacfwd(lambda x: _respond(restore(x), b, Qhat)[0])(parameters)
        return change + function(prior, b, Qhat)[..., None] * log_change

    return score


# Integrands ------------------------------------------------------------------------------------


def _respond(prior: AbstractIidPrior, b: Array, Qhat: Array) -> tuple[Array, Array, Array]:
    """Return log Z_w, f and C."""
    return prior.column(len(b)).respond(b, Qhat)


def _of_posterior(function: Callable[[Array, Array, Array], Array]) -> Integrand:
    """Turn a function of log Z_w, f and C into one of the prior, b and Q̂."""
    return lambda prior, b, Qhat: function(*_respond(prior, b, Qhat))


# constants, as a new function would be compiled anew
log_partition: Integrand = _of_posterior(lambda log_partition, f, C: log_partition)
half_outer: Integrand = _of_posterior(lambda log_partition, f, C: 0.5 * jnp.outer(f, f))
outer: Integrand = _of_posterior(lambda log_partition, f, C: jnp.outer(f, f))
covariance: Integrand = _of_posterior(lambda log_partition, f, C: C)
covariance_twice = _of_posterior(lambda log_partition, f, C: jnp.einsum("ip,jq->ijpq", C, C))
minus_covariance_twice = _of_posterior(lambda log_partition, f, C: -jnp.einsum("ip,jq->ijpq", C, C))


# Nodes ------------------------------------------------------------------------------------------


def _on_a_line(centers: Array, width: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Place nodes u (n,) from `low` to `high`, with weights du, dense around each of the `centers`
    (k,) on the scale `width`; n is k times the chunk, for up to sixteen."""
    coordinate = lambda u: jnp.sum(jnp.arcsinh((u[:, None] - centers) / width), axis=1)
    rate = lambda u: jnp.sum(((u[:, None] - centers) ** 2 + width**2) ** -0.5, axis=1)
    ends = jnp.arcsinh((jnp.stack([low, high]) - centers[:, None]) / width)
    around = jnp.linspace(ends[:, 0], ends[:, 1], _START_POINTS, axis=1)
    coarse = jnp.sort((centers[:, None] + width * jnp.sinh(around)).reshape(-1))
    first = coordinate(coarse)
    count = CHUNK * min(len(centers), _MAX_CENTERS)
    step = (first[-1] - first[0]) / count
    t = first[0] + step * (jnp.arange(count, dtype=centers.dtype) + 0.5)
    u = jnp.interp(t, first, coarse)
    for _ in range(_NEWTON_STEPS):
        u = u + (t - coordinate(u)) / rate(u)
    return u, step / rate(u)


def mixture_nodes(
    log_weight: Array, mean: Array, covariance: Array, root: Array
) -> tuple[Array, Array]:
    """Place nodes u (n, P) with weights (n,) for u = Q̂^{1/2}w + ξ, `root` = Q̂^{1/2}.

    The law of w is Σ_k π_k N(μ_k, S_k), of `log_weight` (K,), `mean` (K, P), `covariance`
    (K, P, P). n is a multiple of the chunk.
    """
    indices = mean.shape[1]
    size = jnp.max(jnp.abs(mean) ** 2 + jnp.diagonal(covariance, axis1=1, axis2=2))
    center = mean @ root
    spread = root @ covariance @ root + jnp.eye(indices, dtype=root.dtype)
    if indices == 1:
        return _line(log_weight, center[:, 0], spread[:, 0, 0], root[0, 0] ** 2 * size)
    spread = jnp.linalg.cholesky(spread)
    if indices > 3:
        return _sequence(jnp.exp(log_weight), center, spread)
    # axes turned to those of w, the best known first: there Bernoulli–Gauss has its narrow bands
    signal = jax.scipy.linalg.solve_triangular(spread, root @ covariance, lower=True)
    order = jnp.argsort(-jnp.linalg.norm(signal, axis=1), axis=1)
    turn = jnp.linalg.qr(jnp.take_along_axis(signal, order[:, None, :], axis=2))[0]
    u, weight = jax.vmap(_grid, in_axes=(0, 0, 0, None))(center, spread, turn, root)
    return u.reshape(-1, indices), (jnp.exp(log_weight)[:, None] * weight).reshape(-1)


def _line(log_weight: Array, mean: Array, variance: Array, precision: Array) -> tuple[Array, Array]:
    """Place nodes (n, 1) with weights (n,) for a mixture of numbers, dense at its peaks and
    half-way between neighbours, where the posterior switches; `precision`: Q̂ times the size of
    w²."""
    peaks = jnp.sort(mean)
    centers = jnp.concatenate([peaks, 0.5 * (peaks[1:] + peaks[:-1])])
    reach = REACH * jnp.sqrt(variance)
    width = 1.0 / jnp.sqrt(1.0 + precision)
    u, step = _on_a_line(centers, width, jnp.min(mean - reach), jnp.max(mean + reach))
    exponent = log_weight - 0.5 * (u[:, None] - mean) ** 2 / variance
    density = jnp.sum(jnp.exp(exponent) / jnp.sqrt(2.0 * np.pi * variance), axis=1)
    weight = density * step
    return u[:, None], weight / jnp.sum(weight)


def _grid(mean: Array, spread: Array, turn: Array, root: Array) -> tuple[Array, Array]:
    """Place nodes (n, P) with weights (n,) for one component of two or three indices.

    A trapezoidal rule along each axis: nodes ξ = center + width·sinh(t) are dense where the
    posterior switches between components and still span the Gaussian. Their weights and second
    moment are normalised exactly, however sharp they are.
    """
    indices = mean.shape[0]
    count, reach = _TRAPEZOID[indices]
    spread = spread @ turn
    width = 3.0 / jnp.linalg.norm(spread, axis=0)
    end = jnp.arcsinh(reach / width)
    t = jnp.linspace(-1.0, 1.0, count, dtype=root.dtype)[:, None] * end
    xi = width * jnp.sinh(t)
    weight = jnp.exp(-0.5 * xi**2) * jnp.cosh(t)
    weight = weight / jnp.sum(weight, axis=0)
    xi = xi / jnp.sqrt(jnp.sum(weight * xi**2, axis=0))
    grid = jnp.stack(jnp.meshgrid(*xi.T, indexing="ij"), axis=-1).reshape(-1, indices)
    weights = functools.reduce(jnp.multiply.outer, weight.T)
    return mean + grid @ spread.T, weights.reshape(-1)


def _sequence(weight: Array, mean: Array, spread: Array) -> tuple[Array, Array]:
    """Place 2^(22-P) nodes, in pairs around the mean of a component.

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
    # the second moment of each component's nodes is made exact, if there are enough of them
    moment = jax.ops.segment_sum(xi[:, :, None] * xi[:, None, :], member, components)
    number = taken[:, None, None]
    moment = jnp.where(number > 4 * indices, moment / number, jnp.eye(indices, dtype=dtype))
    factor = spread @ jnp.linalg.inv(jnp.linalg.cholesky(moment))
    center = mean[member]
    away = jnp.einsum("npq,nq->np", factor[member], xi)
    weight = 0.5 * weight[member] / taken[member]
    u = jnp.concatenate([center + away, center - away])
    return u, jnp.concatenate([weight, weight])
