r"""Nodes over the field of one column: the quadrature behind field_averages.py.

Equations here [theory: numerics, section 6]: b = Q̂^{1/2}u with u = Q̂^{1/2}w + ξ, whose law has

    a scale of about one over the size of w where the posterior changes its mind (between peaks, at
    an edge), and the width of w times Q̂^{1/2} elsewhere.

One index: the trapezoidal rule in t = Σ_c arsinh((u - c)/s) over several centres c: nodes are dense
around each on the scale s, and everything is analytic, so that it converges exponentially. Two or
three indices: a tensor rule for each Gaussian component. More: a Kronecker sequence.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

CHUNK = 512  # nodes at a time: small enough for the cache
REACH = 9.0  # standard deviations spanned, of one index

# more centres share the nodes of sixteen: the cost stays bounded, and close peaks overlap
_MOST_CENTERS = 16
_FIRST = 128  # points for each centre from which Newton's method starts
_NEWTON = 4

# P: nodes per axis, standard deviations spanned
_TRAPEZOID = {2: (128, 8.5), 3: (48, 7.5)}


def on_a_line(
    centers: Array, width: Array, low: Array, high: Array, each: int = CHUNK
) -> tuple[Array, Array]:
    """Nodes u (n,) from `low` to `high` and their weights du, dense around each of the `centers`
    (k,) on the scale `width`, a number or one each; n is k times `each`, for up to sixteen."""
    width = jnp.broadcast_to(width, centers.shape)
    coordinate = lambda u: jnp.sum(jnp.arcsinh((u[:, None] - centers) / width), axis=1)
    rate = lambda u: jnp.sum(((u[:, None] - centers) ** 2 + width**2) ** -0.5, axis=1)
    ends = jnp.arcsinh((jnp.stack([low, high]) - centers[:, None]) / width[:, None])
    around = jnp.linspace(ends[:, 0], ends[:, 1], _FIRST, axis=1)
    coarse = jnp.sort((centers[:, None] + width[:, None] * jnp.sinh(around)).reshape(-1))
    first = coordinate(coarse)
    count = each * min(len(centers), _MOST_CENTERS)
    step = (first[-1] - first[0]) / count
    t = first[0] + step * (jnp.arange(count, dtype=centers.dtype) + 0.5)
    u = jnp.interp(t, first, coarse)
    for _ in range(_NEWTON):
        u = u + (t - coordinate(u)) / rate(u)
    return u, step / rate(u)


def mixture_nodes(
    log_weight: Array, mean: Array, covariance: Array, root: Array
) -> tuple[Array, Array]:
    """Nodes u (n, P) and weights (n,) for u = Q̂^{1/2}w + ξ, where `root` is Q̂^{1/2}.

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
    """Nodes (n, 1) and weights (n,) for a mixture of numbers, dense at its peaks and half-way
    between neighbours, where the posterior switches; `precision`: Q̂ times the size of w²."""
    peaks = jnp.sort(mean)
    centers = jnp.concatenate([peaks, 0.5 * (peaks[1:] + peaks[:-1])])
    reach = REACH * jnp.sqrt(variance)
    width = 1.0 / jnp.sqrt(1.0 + precision)
    u, step = on_a_line(centers, width, jnp.min(mean - reach), jnp.max(mean + reach))
    exponent = log_weight - 0.5 * (u[:, None] - mean) ** 2 / variance
    density = jnp.sum(jnp.exp(exponent) / jnp.sqrt(2.0 * np.pi * variance), axis=1)
    weight = density * step
    return u[:, None], weight / jnp.sum(weight)


def _grid(mean: Array, spread: Array, turn: Array, root: Array) -> tuple[Array, Array]:
    """Nodes (n, P) and weights (n,) of one component of two or three indices.

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
    """2^(22-P) nodes, in pairs around the mean of a component.

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
    center = mean[member]
    away = jnp.einsum("npq,nq->np", factor[member], xi)
    weight = 0.5 * weight[member] / taken[member]
    u = jnp.concatenate([center + away, center - away])
    return u, jnp.concatenate([weight, weight])
