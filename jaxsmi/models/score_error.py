r"""Prediction error of attention-indexed models: what an estimate of the scores costs a label.

Equations here [theory: attention-indexed, Eqs. (34) to (39)], ω ~ √q GOE(T), h = ω + √V GOE(T),
Q_0 = q + V, of E[y|ω] and of y(ω):

    linear            T(T+1) V                                  the same
    hardmax, T = 2    (2/π) arccos(q/Q_0)                       (4/π) arccos √(q/Q_0)
    softmax, T = 2    4 E_w Var_u[sigmoid(β u)]                 4 E (sigmoid(β u) - sigmoid(β w))²
                      w ~ N(0, 3q), u ~ N(w, 3V)
    others            by randomised nets; Q and V of several layers are matrices
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.results import Estimate
from jaxsmi.models.prediction import mean_squared_gap
from jaxsmi.numerics.linear_algebra import goe, sqrt_psd
from jaxsmi.numerics.quadrature import legendre, power_of_two, randomised_gaussians

# Gauss-Legendre nodes over ten standard deviations to either side: an error of 1e-8
# [theory: attention-indexed, section 5]
_NODES = 600


def hardmax_error(q: Array, norm: Array, bayes: bool) -> Estimate:
    """Two tokens that each point at the larger score: an angle."""
    # rounding can take q beyond Q_0, where arccos is NaN
    x = jnp.clip(q / norm, 0.0, 1.0)
    value = 2.0 / np.pi * jnp.arccos(x) if bayes else 4.0 / np.pi * jnp.arccos(jnp.sqrt(x))
    return Estimate(value, jnp.zeros((), x.dtype))


def softmax_error(q: Array, V: Array, beta: Array, bayes: bool) -> Estimate:
    """Two tokens, by quadrature; its error, by half the nodes, shows at steps of a large β."""
    fine, coarse = (_two_tokens(q, V, beta, bayes, nodes) for nodes in (_NODES, _NODES // 2))
    error = jnp.abs(fine - coarse)
    # less is the rounding of the two sums
    return Estimate(fine, jnp.where(error > 1e-8, error, 0.0))


@functools.partial(jax.jit, static_argnums=4)
def _two_tokens(q: Array, V: Array, beta: Array, bayes: bool, nodes: int) -> Array:
    """4 E_w Var_u[sigmoid(β u)], or 4 E (sigmoid(β u) - sigmoid(β w))²."""
    x, weights = legendre(nodes)
    x, weights = 10.0 * x, 10.0 * weights * np.exp(-50.0 * x**2) / np.sqrt(2.0 * np.pi)
    w = jnp.sqrt(3.0 * q) * x
    answers = jax.nn.sigmoid(beta * (w[:, None] + jnp.sqrt(3.0 * V) * x))
    mean = jnp.where(bayes, answers @ weights, jax.nn.sigmoid(beta * w))
    return 4.0 * jnp.sum(weights * (((answers - mean[:, None]) ** 2) @ weights))


def sampled_error(
    link: Callable[[Array], Array],
    tokens: int,
    Q: Array,
    V: Array,
    *,
    bayes: bool,
    key: PRNGKeyArray,
    points: int,
) -> Estimate:
    """Any link of the scores (L, T, T) at Q, V (L, L), by eight randomised nets of `points` points
    in all."""
    T, L = tokens, len(Q)
    nets = 8  # as of index models: the spread of eight gives the error to 27 %
    each = power_of_two(max(points // nets, 2))
    normal = randomised_gaussians(key, each, nets, 3 * L * T * T)
    # ω and two posterior samples from one net: their joint law is what is averaged over
    normal = goe(normal.reshape(nets, each, 3, L, T, T))
    labels = jax.vmap(jax.vmap(link))
    times = lambda X, k: jnp.einsum("lk,rnkab->rnlab", sqrt_psd(X), normal[:, :, k])
    omega = times(Q, 0)
    other = labels(omega + times(V, 2)) if bayes else labels(omega)
    return mean_squared_gap(labels(omega + times(V, 1)), other, bayes)
