"""A mixture of Gaussians Σ_k π_k N(μ_k, S_k) in R^P as a prior: the one formula, and averages over its fields.

Equations that live here ([TCDKZ25]; see iid.py for what they are used for):

* log Z_w(b, A), its first derivative f and second derivative C, in `Mixture.respond`
* E h(b, Q̂) over b = Q̂w + Q̂^{1/2}ξ, a deterministic quadrature (`_nodes`), in `average`

Derivatives of the averages never differentiate Q̂^{1/2}, which is singular where a direction is unlearned: b is a
diffusion in the "time" Q̂ whose drift is f, so by Itô's formula

    d E[h] = E[ ∂_Q̂ h·dQ̂ + fᵀ dQ̂ ∇h + ½ tr(dQ̂ ∇²h) ],

which is ½ fᵀ dQ̂ f for h = log Z_w, C dQ̂ C for f fᵀ, and -C dQ̂ C for C (the derivative of the MMSE matrix: Payaró and
Palomar, IEEE Trans. Inf. Theory 55, 2009). It holds at Q̂ = 0, at singular Q̂, and to every order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

_TRAPEZOID = {
    1: (1024, 9.0),
    2: (128, 8.5),
    3: (48, 7.5),
}  # P: nodes per axis, standard deviations spanned


_MEMORY = 2**22  # numbers that the posterior of one batch of columns may hold


_CHUNK = 512  # nodes at a time: small enough for the cache


def symmetric(a: Array) -> Array:
    """Half of a + aᵀ."""
    return 0.5 * (a + jnp.swapaxes(a, -1, -2))


@jax.custom_jvp
def square_root(a: Array) -> Array:
    """Symmetric square root of a PSD matrix, zero where rounding made it negative."""
    eigenvalue, vector = jnp.linalg.eigh(a)
    return (vector * jnp.sqrt(jnp.maximum(eigenvalue, 0.0))) @ vector.T


@square_root.defjvp
def _square_root_jvp(primals, tangents):
    """r dr + dr r = da, for equal eigenvalues too, which the derivative of eigh does not allow."""
    eigenvalue, vector = jnp.linalg.eigh(primals[0])
    root = jnp.sqrt(jnp.maximum(eigenvalue, 0.0))
    total = root[:, None] + root
    change = vector.T @ symmetric(tangents[0]) @ vector
    change = jnp.where(total > 0.0, change / jnp.where(total > 0.0, total, 1.0), 0.0)
    return (vector * root) @ vector.T, vector @ change @ vector.T


class Mixture(eqx.Module):
    """Σ_k π_k N(μ_k, L_k L_kᵀ) in R^P, as log π_k, μ_k and L_k; the same for w and -w."""

    log_weight: Float[Array, " K"]
    mean: Float[Array, "K P"]
    factor: Float[Array, "K P P"]

    @property
    def covariance(self) -> Float[Array, "K P P"]:
        """S_k = L_k L_kᵀ."""
        return self.factor @ jnp.swapaxes(self.factor, 1, 2)

    @eqx.filter_jit
    def respond(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> tuple[Array, Array, Array]:
        """log Z_w, posterior mean f and posterior covariance C at one field b; NaN where the integral diverges.

        Component k: log π_k - ½ log det(I + S_k A) + ½ (b - Aμ_k)ᵀ C_k (b - Aμ_k) + b·μ_k - ½ μ_kᵀAμ_k, with
        C_k = (I + S_k A)^{-1} S_k and posterior mean m_k = μ_k + C_k (b - Aμ_k). With I + LᵀAL = KKᵀ and H = K^{-1}Lᵀ,
        C_k = HᵀH; C_k itself times a large b would cancel where A is nearly singular, H does not.
        """
        transposed = jnp.swapaxes(self.factor, 1, 2)
        gain = jnp.linalg.cholesky(
            jnp.eye(b.shape[0], dtype=b.dtype) + transposed @ A @ self.factor
        )
        half = jax.scipy.linalg.solve_triangular(gain, transposed, lower=True)
        log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(gain, axis1=1, axis2=2)), axis=1)
        pull = jnp.einsum("kpq,kq->kp", half, b - self.mean @ A)
        log_term = self.log_weight - 0.5 * log_det + 0.5 * jnp.sum(pull**2, axis=1)
        log_term += jnp.sum(self.mean * (b - 0.5 * self.mean @ A), axis=1)
        log_partition = jax.nn.logsumexp(log_term)
        weight = jnp.exp(log_term - log_partition)
        # Differences from the likeliest component keep C accurate relative to itself when it is exponentially small.
        center = self.mean + jnp.einsum("kpq,kp->kq", half, pull)
        likeliest = center[jnp.argmax(log_term)]
        offset = center - likeliest
        shift = weight @ offset
        offset = offset - shift
        covariance = jnp.einsum("k,krp,krq->pq", weight, half, half) + jnp.einsum(
            "k,kp,kq->pq", weight, offset, offset
        )
        return log_partition, likeliest + shift, covariance


@eqx.filter_jit
def posterior(mixture: Mixture, b: Array, A: Array) -> tuple[Array, Array]:
    """Posterior means (P, D) of the columns of b, and the average of their covariances (P, P)."""
    respond = lambda column: mixture.respond(column, A)[1:]
    batch = max(1, _MEMORY // mixture.factor.size)
    if b.shape[1] <= batch:
        mean, covariance = jax.vmap(respond, in_axes=1)(b)
    else:
        mean, covariance = jax.lax.map(respond, b.T, batch_size=batch)
    return mean.T, jnp.mean(covariance, axis=0)


def _nodes(mixture: Mixture, root: Array) -> tuple[Array, Array]:
    """Nodes u (n, P) and weights (n,) for u = Q̂^{1/2}w + ξ, where `root` is Q̂^{1/2}; n is a multiple of the chunk.

    P <= 3: a tensor trapezoid rule for each component, of nodes ξ = center + width·sinh(t), which are dense where the
    posterior switches between components and still span the Gaussian. P > 3: a Kronecker sequence over (ξ, component).
    """
    indices = mixture.mean.shape[1]
    mean = mixture.mean @ root
    covariance = root @ mixture.covariance @ root + jnp.eye(indices, dtype=root.dtype)
    spread = jnp.linalg.cholesky(covariance)
    if indices > 3:
        return _sequence(jnp.exp(mixture.log_weight), mean, spread)
    count, reach = _TRAPEZOID[indices]

    def rule(mean: Array, spread: Array, turn: Array) -> tuple[Array, Array]:
        if indices == 1:
            center = -mean / spread[0]  # b = 0, where Rademacher switches sign
            center = jnp.where(jnp.abs(center) < 40.0, center, 0.0)  # beyond, its weight underflows
            width = 1.0 / jnp.sqrt(spread[0] ** 2 + root[0] ** 2)
        else:
            spread = spread @ turn
            center, width = jnp.zeros_like(mean), 3.0 / jnp.linalg.norm(spread, axis=0)
        t = jnp.linspace(-1.0, 1.0, count, dtype=root.dtype)[:, None] * jnp.arcsinh(
            (reach + jnp.abs(center)) / width
        )
        xi = center + width * jnp.sinh(t)
        weight = jnp.exp(-0.5 * xi**2) * jnp.cosh(t)
        weight = weight / jnp.sum(weight, axis=0)
        xi = xi / jnp.sqrt(
            jnp.sum(weight * xi**2, axis=0)
        )  # the second moment is exact, however sharp the nodes
        grid = jnp.stack(jnp.meshgrid(*xi.T, indexing="ij"), axis=-1).reshape(-1, indices)
        weights = functools.reduce(jnp.multiply.outer, weight.T)
        return mean + grid @ spread.T, weights.reshape(-1)

    # axes turned to those of w, the best known first, along which Bernoulli–Gauss has its narrow bands
    seen = jax.scipy.linalg.solve_triangular(spread, root @ mixture.covariance, lower=True)
    order = jnp.argsort(-jnp.linalg.norm(seen, axis=1), axis=1)
    turn = jnp.linalg.qr(jnp.take_along_axis(seen, order[:, None, :], axis=2))[0]
    u, weight = jax.vmap(rule)(mean, spread, turn)
    return u.reshape(-1, indices), (jnp.exp(mixture.log_weight)[:, None] * weight).reshape(-1)


def _sequence(weight: Array, mean: Array, spread: Array) -> tuple[Array, Array]:
    """2^(22-P) nodes ±u: the components share a Kronecker sequence in P dimensions, half by weight, half evenly."""
    (components, indices), count = mean.shape, 2 ** (21 - mean.shape[1])
    root = 2.0
    for _ in range(
        64
    ):  # the root above one of x^(P+1) = x + 1: its inverse powers spread the points evenly
        root = (1.0 + root) ** (1.0 / (indices + 1))
    step = np.array([int(2**32 * root ** -(p + 1)) for p in range(indices)], dtype=np.uint32)
    point = jnp.arange(1, count + 1, dtype=jnp.uint32)[:, None] * step  # modulo 2^32 by overflow
    point = jnp.clip(
        (point.astype(mean.dtype) + 0.5) / 2.0**32, 1e-10, 1.0 - jnp.finfo(mean.dtype).eps
    )
    xi = jax.scipy.special.ndtri(point)
    share = jnp.cumsum(0.5 * weight + 0.5 / components)
    member = jnp.searchsorted(share[:-1], (jnp.arange(count, dtype=mean.dtype) + 0.5) / count)
    taken = jnp.bincount(member, length=components)
    # the second moment of each component's nodes is made exact, where there are enough of them
    moment = jax.ops.segment_sum(xi[:, :, None] * xi[:, None, :], member, components)
    number = taken[:, None, None]
    moment = jnp.where(number > 4 * indices, moment / number, jnp.eye(indices, dtype=mean.dtype))
    factor = spread @ jnp.linalg.inv(jnp.linalg.cholesky(moment))
    u = mean[member] + jnp.einsum("npq,nq->np", factor[member], xi)
    weight = 0.5 * weight[member] / taken[member]
    return jnp.concatenate([u, -u]), jnp.concatenate([weight, weight])


@eqx.filter_custom_jvp
@eqx.filter_jit
def average(prior: Any, Qhat: Array, *, function: Callable, drift: Callable | None = None) -> Array:
    """E function(prior, b, Q̂) over b = Q̂w + Q̂^{1/2}ξ; `drift` (..., P, P), where known, is its derivative in Q̂."""
    mixture = prior._mixture(len(Qhat))
    root = square_root(Qhat)
    u, weights = _nodes(mixture, root)

    def add(total, chunk):
        b, weight = chunk
        values = jax.vmap(lambda field: function(prior, field, Qhat))(b)
        return total + jnp.tensordot(weight, values, 1), None

    shape = jax.eval_shape(lambda: function(prior, u[0], Qhat))
    chunks = (u @ root).reshape(-1, _CHUNK, len(Qhat)), weights.reshape(-1, _CHUNK)
    return jax.lax.scan(add, jnp.zeros(shape.shape, shape.dtype), chunks)[0]


@average.def_jvp
def _average_jvp(primals, tangents, *, function, drift=None):
    """Averages again, so that every order exists, and free of the tangents, so that reverse mode keeps this rule."""
    (prior, Qhat), (d_prior, d_Qhat) = primals, tangents
    value = average(prior, Qhat, function=function, drift=drift)
    total = jnp.zeros_like(value)
    if d_Qhat is not None:
        slope = average(prior, Qhat, function=drift or _generator(function))
        total += jnp.einsum("...pq,pq->...", slope, d_Qhat)
    if jax.tree.leaves(d_prior):
        filled = jax.tree.map(lambda p, t: jnp.zeros_like(p) if t is None else t, prior, d_prior)
        total += average(prior, Qhat, function=_score(function)) @ ravel_pytree(filled)[0]
    return value, total


@functools.cache
def _generator(function: Callable) -> Callable:
    """Itô's formula for a function of (prior, b, Q̂): its coefficients of dQ̂, (..., P, P)."""

    def generator(prior, b, Qhat):
        slope, ageing = jax.jacfwd(function, argnums=(1, 2))(prior, b, Qhat)
        curvature = jax.jacfwd(jax.jacfwd(function, argnums=1), argnums=1)(prior, b, Qhat)
        return ageing + slope[..., :, None] * _respond(prior, b, Qhat)[1] + 0.5 * curvature

    return generator


@functools.cache
def _score(function: Callable) -> Callable:
    """∂h + h ∂ log Z_w in the parameters of the prior, (..., n): the law of b is N(0, Q̂) Z_w(b, Q̂)."""

    def score(prior, b, Qhat):
        parameters, restore = ravel_pytree(prior)
        change = jax.jacfwd(lambda x: function(restore(x), b, Qhat))(parameters)
        log_change = jax.jacfwd(lambda x: _respond(restore(x), b, Qhat)[0])(parameters)
        return change + function(prior, b, Qhat)[..., None] * log_change

    return score


def _respond(prior: Any, b: Array, Qhat: Array) -> tuple[Array, Array, Array]:
    return prior._mixture(len(b)).respond(b, Qhat)


def _log_partition(prior, b, Qhat):
    return _respond(prior, b, Qhat)[0]


def _half_outer(prior, b, Qhat):
    return 0.5 * _outer(prior, b, Qhat)


def _outer(prior, b, Qhat):
    f = _respond(prior, b, Qhat)[1]
    return jnp.outer(f, f)


def _covariance(prior, b, Qhat):
    return _respond(prior, b, Qhat)[2]


def _covariance_twice(prior, b, Qhat):
    C = _respond(prior, b, Qhat)[2]
    return jnp.einsum("ip,jq->ijpq", C, C)


def _minus_covariance_twice(prior, b, Qhat):
    return -_covariance_twice(prior, b, Qhat)


def free_entropy(prior: Any, Qhat: Array) -> Array:
    """E log Z_w; its derivative is ½ E fᵀ dQ̂ f."""
    return average(prior, Qhat, function=_log_partition, drift=_half_outer)


def overlap(prior: Any, Qhat: Array) -> Array:
    """E f fᵀ; its derivative is E C dQ̂ C."""
    return average(prior, Qhat, function=_outer, drift=_covariance_twice)


def mmse(prior: Any, Qhat: Array) -> Array:
    """E C; its derivative is -E C dQ̂ C."""
    return average(prior, Qhat, function=_covariance, drift=_minus_covariance_twice)
