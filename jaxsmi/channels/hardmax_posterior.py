r"""The posterior of scores from a hardmax label of any number of tokens.

Equations here [theory: attention-indexed, Eqs. (58), (59)]: row a points at y_a. An edge {a, y_a},
y_a ≠ a, is above all other edges at a: a partial order of the T(T-1)/2 scores off the diagonal.
They are drawn from the top down, each below the least x_e of those above it,

    h_e = ω_e + √V s_e,   Φ(s_e) = Φ(t_e) Φ((x_e - ω_e)/√V),   t ~ N(0, I)
    weight = Π_e Φ((x_e - ω_e)/√V) Π_a Φ(±z_a),   z_a = (ω_aa - max_b h_ab)/√(2V)

with + where a token points at itself. Diagonal scores are integrated in closed form. The integrals
over t refine themselves, with an error estimate; no label is without weight.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr, ndtri
from jaxtyping import Array

from jaxsmi.numerics.refining import Budget, Integral, Moments, self_refining_moments
from jaxsmi.numerics.refining_sums import Branch

TOLERANCE = 1e-2  # of Γ, relative to 1 + max|Γ| (empirical)


def _above(targets: Array) -> Array:
    """Edges that must be above others (.., E, E), [e, f]: f above e, from y (.., T)."""
    tokens = targets.shape[-1]
    rows, columns = np.triu_indices(tokens, 1)
    top = jnp.zeros((*targets.shape[:-1], len(rows), len(rows)), bool)
    for a in range(tokens):
        here = (rows == a) | (columns == a)
        other = np.where(rows == a, columns, rows)
        chosen = here & (targets[..., a, None] == other)  # none where a points at itself
        top = top | (chosen[..., None, :] & (here & ~chosen)[..., :, None])
    return top


def _depth(above: Array) -> Array:
    """Length of the longest chain of edges above each one (.., E); E or more in a circle."""
    edges = above.shape[-1]

    def longer(_: int | Array, depth: Array) -> Array:
        return jnp.max(jnp.where(above, depth[..., None, :] + 1, 0), axis=-1)

    return lax.fori_loop(0, edges, longer, jnp.zeros(above.shape[:-1], int))


def possible(targets: Array) -> Array:
    """Some symmetric scores have these largest ones (..,), from y (.., T)."""
    above = _above(targets)
    return jnp.all(_depth(above) < above.shape[-1], axis=-1)


def _below(edge: Array, t: Array) -> tuple[Array, Array]:
    """s < edge with Φ(s) = Φ(t) Φ(edge), and log Φ(edge)."""
    log_mass = log_ndtr(edge)
    smallest = np.log(jnp.finfo(t.dtype).tiny)
    goal = jnp.maximum(log_mass + log_ndtr(t), smallest)
    # log ½ = -0.7: else the small number is 1 - Φ(s), and keeps its digits there
    low = goal < -0.7
    s = ndtri(jnp.where(low, jnp.exp(goal), -jnp.expm1(goal)))
    return jnp.where(low, s, -s), log_mass


def _drawn(above: Array, centre: Array, scale: Array, t: Array) -> tuple[Array, Array]:
    """Scores (n, E) of one sample off its diagonal from nodes t (n, E), and the logarithms of
    their weights (n,)."""
    order = jnp.argsort(_depth(above))

    def draw(k: int | Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        h, log_weight = now
        edge = order[k]
        limit = jnp.min(jnp.where(above[edge], h, jnp.inf), axis=-1)
        # beyond nine deviations a limit does not matter
        s, log_mass = _below(jnp.minimum((limit - centre[edge]) / scale, 9.0), t[:, edge])
        return h.at[:, edge].set(centre[edge] + scale * s), log_weight + log_mass

    start = (jnp.full(t.shape, jnp.inf, t.dtype), jnp.zeros(t.shape[0], t.dtype))
    return lax.fori_loop(0, t.shape[1], draw, start)


def _weighted(targets: Array, omega: Array, V: Array, t: Array) -> tuple[Array, Array]:
    """The logarithm of a node's weight (n,), and E[h - ω|its scores off the diagonal]/V, those
    scores first (n, E + T), of one sample."""
    tokens = targets.shape[0]
    pairs = np.triu_indices(tokens, 1)
    centre = omega[pairs]
    off, log_weight = _drawn(_above(targets), centre, jnp.sqrt(V), t)
    h = jnp.full((len(t), tokens, tokens), -jnp.inf, t.dtype).at[:, pairs[0], pairs[1]].set(off)
    highest = jnp.max(jnp.maximum(h, jnp.swapaxes(h, 1, 2)), axis=-1)
    sign = jnp.where(targets == jnp.arange(tokens), 1.0, -1.0)
    z = sign * (jnp.diagonal(omega) - highest) / jnp.sqrt(2.0 * V)
    log_mass = log_ndtr(z)
    rate = jnp.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_mass)
    diagonal = sign * rate * jnp.sqrt(2.0 / V)
    gamma = jnp.concatenate([(off - centre) / V, diagonal], axis=-1)
    return log_weight + jnp.sum(log_mass, axis=-1), gamma


def hardmax_moments(targets: Array, omega: Array, V: Array) -> Moments:
    """Γ (N, T²) as `g`, log Z_out and the error of Γ, from y (N, T), ω (N, T, T) and the number V.

    `dg` is empty.
    """
    tokens = targets.shape[1]
    pairs = np.triu_indices(tokens, 1)
    edges = len(pairs[0])
    place = np.zeros((tokens, tokens), int)  # of each score among the values of a node
    place[pairs] = np.arange(edges)
    place = place + place.T + np.diag(edges + np.arange(tokens))

    def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
        one = lambda y, w: _weighted(y, w, jnp.asarray(V, t.dtype), t)
        log_weight, gamma = jax.vmap(one)(*block)
        return jnp.ones_like(log_weight), [Branch(log_weight, list(jnp.moveaxis(gamma, -1, 0)))]

    integral = Integral(
        integrand,
        (targets, omega),
        lambda mean, _: (mean[:, edges:][:, place.ravel()], jnp.zeros_like(mean[:, :1])),
        inner=edges,
        outer=edges + tokens,
        analytic=False,
    )
    return self_refining_moments(integral, Budget(TOLERANCE))
