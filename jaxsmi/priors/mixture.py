"""A mixture of Gaussians Σ_k π_k N(μ_k, S_k) in R^P as a prior: the one formula, and averages over its fields.

Equations that live here ([TCDKZ25, section 2]; see iid.py for what they are used for):

* log Z_w(b, A), its first derivative f and second derivative C, in `Mixture.respond`
* E h(b, Q̂) over b = Q̂w + Q̂^{1/2}ξ, a deterministic quadrature (`_nodes`), in `average`

Derivatives of the averages never differentiate Q̂^{1/2}, which is singular where a direction is unlearned: b is a
diffusion in the "time" Q̂ whose drift is f, so by Itô's formula

    d E[h] = E[ ∂_Q̂ h·dQ̂ + fᵀ dQ̂ ∇h + ½ tr(dQ̂ ∇²h) ],

which is ½ fᵀ dQ̂ f for h = log Z_w, C dQ̂ C for f fᵀ, and -C dQ̂ C for C (the derivative of the MMSE matrix: Payaró and
Palomar, IEEE Trans. Inf. Theory 55, 2009). It holds at Q̂ = 0, at singular Q̂, and to every order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxsmi.types import Array, Float

__all__ = ["Mixture", "average", "free_entropy", "mmse", "overlap", "symmetric"]


def symmetric(a: Array) -> Array:
    return 0.5 * (a + jnp.swapaxes(a, -1, -2))


class Mixture(eqx.Module):
    """Σ_k π_k N(μ_k, S_k) in R^P, as log weights, means and covariances."""

    log_weight: Float[Array, " K"]
    mean: Float[Array, "K P"]
    covariance: Float[Array, "K P P"]

    def respond(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> tuple[Array, Array, Array]:
        """log Z_w, posterior mean f and posterior covariance C at one field b.

        Component k: log π_k - ½ log det(I + S_k A) + ½ (b - Aμ_k)ᵀ C_k (b - Aμ_k) + b·μ_k - ½ μ_kᵀAμ_k, with
        C_k = (I + S_k A)^{-1} S_k and posterior mean m_k = μ_k + C_k (b - Aμ_k): nothing is inverted but I + S_k A.
        """
        gain = jnp.eye(b.shape[0], dtype=b.dtype) + self.covariance @ A
        spread = symmetric(jnp.linalg.solve(gain, self.covariance))
        sign, log_det = jnp.linalg.slogdet(gain)
        log_det = jnp.where(sign > 0, log_det, jnp.nan)  # beyond the domain: the integral diverges
        pull = b - self.mean @ A
        push = jnp.einsum("kpq,kq->kp", spread, pull)
        log_term = self.log_weight - 0.5 * log_det + 0.5 * jnp.sum(pull * push, axis=1)
        log_term += jnp.sum(self.mean * (b - 0.5 * self.mean @ A), axis=1)
        log_partition = jax.nn.logsumexp(log_term)
        weight = jnp.exp(log_term - log_partition)
        # Differences from the likeliest component keep C accurate relative to itself when it is exponentially small.
        center = self.mean + push
        likeliest = center[jnp.argmax(log_term)]
        offset = center - likeliest
        shift = weight @ offset
        offset = offset - shift
        covariance = jnp.einsum("k,kpq->pq", weight, spread) + jnp.einsum("k,kp,kq->pq", weight, offset, offset)
        return log_partition, likeliest + shift, covariance


def _nodes(indices: int, member: Array, center: Array, width: Array) -> tuple[Array, Array]:
    """Nodes (n, P) and weights (n,) for N(0, I_P): P <= 3: a trapezoid rule per axis, P > 3: a Kronecker sequence.

    The trapezoid nodes ξ = center + width·sinh(t) are dense where the posterior switches between components and still
    span the Gaussian. `member` numbers the component, each of which takes its own stretch of the Kronecker sequence.
    """
    if indices > 3:
        count = max(64, 2**18 // 4**indices)
        root = 2.0
        for _ in range(64):  # the root above one of x^(P+1) = x + 1 spreads the points evenly in P dimensions
            root = (1.0 + root) ** (1.0 / (indices + 1))
        step = root ** -jnp.arange(1.0, indices + 1, dtype=center.dtype)
        number = member * count + jnp.arange(count, dtype=center.dtype)
        half = jax.scipy.special.ndtri(jnp.mod(0.5 + number[:, None] * step, 1.0))
        return jnp.concatenate([half, -half]), jnp.full(2 * count, 0.5 / count, dtype=center.dtype)
    count, reach = {1: (1024, 9.0), 2: (128, 8.5), 3: (40, 7.0)}[indices]
    t = jnp.linspace(-1.0, 1.0, count, dtype=center.dtype)[:, None] * jnp.arcsinh((reach + jnp.abs(center)) / width)
    axis = center + width * jnp.sinh(t)
    weight = jnp.exp(-0.5 * axis**2) * jnp.cosh(t)
    weight = weight / jnp.sum(weight, axis=0)
    grid = jnp.stack(jnp.meshgrid(*axis.T, indexing="ij"), axis=-1).reshape(-1, indices)
    weights = math.prod(jnp.meshgrid(*weight.T, indexing="ij")).reshape(-1)  # pyright: ignore
    return grid, weights


@eqx.filter_custom_jvp
@eqx.filter_jit
def average(mixture: Mixture, Qhat: Array, extra: Any, *, function: Callable, drift: Callable | None) -> Array:
    """E function(mixture, b, Q̂, extra) over b = Q̂w + Q̂^{1/2}ξ; `drift`, where known, is Itô's formula for it."""
    indices = Qhat.shape[0]
    eigenvalue, vector = jnp.linalg.eigh(Qhat)
    root = (vector * jnp.sqrt(jnp.maximum(eigenvalue, 0.0))) @ vector.T

    def one(member: Array) -> Array:
        # u = Q̂^{-1/2}b is N(root μ, I + root S root) in this component
        mean, covariance = mixture.mean[member] @ root, root @ mixture.covariance[member] @ root
        spread = jnp.linalg.cholesky(jnp.eye(indices, dtype=root.dtype) + covariance)
        if indices == 1:
            center = -mean / spread[0]  # b = 0, where Rademacher switches sign
            center = jnp.where(jnp.abs(center) < 40.0, center, 0.0)  # else its weight underflows
            width = 1.0 / jnp.sqrt(spread[0] ** 2 + root[0] ** 2)
        else:
            # the axes turned to those of w, along which Bernoulli–Gauss has its narrow bands
            turn, _, back = jnp.linalg.svd(
                jax.scipy.linalg.solve_triangular(spread, root @ mixture.covariance[member], lower=True)
            )
            spread = spread @ turn @ back
            center, width = jnp.zeros_like(mean), 3.0 / jnp.linalg.norm(spread, axis=0)
        xi, weights = _nodes(indices, member, center, width)
        b = (mean + xi @ spread.T) @ root
        values = jax.vmap(lambda field: function(mixture, field, Qhat, extra))(b)
        return jnp.exp(mixture.log_weight[member]) * jnp.tensordot(weights, values, 1)

    return jnp.sum(jax.lax.map(one, jnp.arange(mixture.log_weight.shape[0])), axis=0)


@average.def_jvp
def _average_jvp(primals, tangents, *, function, drift):
    """Itô's formula in Q̂, the score of b in the parameters of the mixture: again averages, so any order exists."""
    mixture, Qhat, extra = primals

    def full(primal, tangent):
        return jax.tree.map(lambda p, t: jnp.zeros_like(p) if t is None else t, primal, tangent)

    def along_mixture(m, b, Q, given):
        inner, dm = given
        value, change = jax.jvp(lambda m: (function(m, b, Q, inner), m.respond(b, Q)[0]), (m,), (dm,))
        return change[0] + value[0] * change[1]

    def along_Qhat(m, b, Q, given):
        inner, dQ = given
        if drift is not None:
            return drift(m, b, Q, dQ)
        at = lambda b: function(m, b, Q, inner)
        _, ageing = jax.jvp(lambda Q: function(m, b, Q, inner), (Q,), (dQ,))
        _, carried = jax.jvp(at, (b,), (dQ @ m.respond(b, Q)[1],))
        return ageing + carried + 0.5 * jnp.einsum("...pq,pq->...", jax.jacfwd(jax.jacfwd(at))(b), dQ)

    def along_extra(m, b, Q, given):
        inner, change = given
        return jax.jvp(lambda e: function(m, b, Q, e), (inner,), (change,))[1]

    value = average(mixture, Qhat, extra, function=function, drift=drift)
    total = jnp.zeros_like(value)
    for primal, tangent, rule in zip(primals, tangents, (along_mixture, along_Qhat, along_extra), strict=True):
        if jax.tree.leaves(tangent):
            total += average(mixture, Qhat, (extra, full(primal, tangent)), function=rule, drift=None)
    return value, total


def free_entropy(mixture: Mixture, Qhat: Array) -> Array:
    """E log Z_w; its derivative is ½ E fᵀ dQ̂ f."""
    return average(mixture, Qhat, None, function=_log_partition, drift=_energy)


def overlap(mixture: Mixture, Qhat: Array) -> Array:
    """E f fᵀ; its derivative is E C dQ̂ C."""
    return average(mixture, Qhat, None, function=_outer, drift=_gain)


def mmse(mixture: Mixture, Qhat: Array) -> Array:
    """E C; its derivative is -E C dQ̂ C."""
    return average(mixture, Qhat, None, function=_covariance, drift=_loss)


def _log_partition(mixture, b, Qhat, _):
    return mixture.respond(b, Qhat)[0]


def _energy(mixture, b, Qhat, dQhat):
    f = mixture.respond(b, Qhat)[1]
    return 0.5 * f @ dQhat @ f


def _outer(mixture, b, Qhat, _):
    f = mixture.respond(b, Qhat)[1]
    return jnp.outer(f, f)


def _covariance(mixture, b, Qhat, _):
    return mixture.respond(b, Qhat)[2]


def _gain(mixture, b, Qhat, dQhat):
    C = mixture.respond(b, Qhat)[2]
    return C @ dQhat @ C


def _loss(mixture, b, Qhat, dQhat):
    return -_gain(mixture, b, Qhat, dQhat)
