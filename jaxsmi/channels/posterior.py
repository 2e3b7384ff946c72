r"""The posterior of the fields of a sample, and its averages over fields and labels, on common
random numbers.

Equations here [TCDKZ25; theory: multi-index, Eqs. (42) to (46)], V = S - Q:

    response(Q) = E Σ_m g_m g_mᵀ,  ω = Q^{1/2} ξ, z = ω + V^{1/2} η, y ~ p(y|z)    (P, P)
                = E_ω Σ_y Z_out(y; ω, V) Σ_m g_m g_mᵀ  for finitely many labels y
    d response(Q)[dQ] = E Σ_{m,n} ∂g_{mn} dQ ∂g_{mn}ᵀ

The points depend on the key alone, so that Q -> response(Q) is one smooth map. `points` counts
those of each net; the spread of independent `nets` is the statistical error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.numerics.linear_algebra import conjugation, sqrt_psd, symmetric
from jaxsmi.numerics.quadrature import covariance_and_variance, quotient, randomised_gaussians

if TYPE_CHECKING:
    from jaxsmi.channels.base import AbstractChannel

Key = PRNGKeyArray | None  # of random nodes; None where there are none


class Posterior(eqx.Module):
    """Posterior of the fields of one sample (or, with a leading axis, of a batch).

    Attributes:
        log_partition: log Z_out.
        g: Response V^{-1}(E[z|y] - ω), (P, M).
        dg: Its derivative in ω, (P, M, P, M).
        ess: Effective number of integration nodes (inf for closed forms).
        error: Estimated error of g, relative to 1 + max|g|.
        dg_error: Estimated error of dg, relative to 1 + max|dg|.
        halves: g and dg of two independent halves of random nodes, (N, 2, ...); None where nodes
            are not random.
    """

    log_partition: Array
    g: Array
    dg: Array
    ess: Array
    error: Array
    dg_error: Array
    halves: tuple[Array, Array] | None = None

    @property
    def factors(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """(g, ∂g) of a batch twice, as the two factors of a product that is averaged."""
        # independent halves: the noise of random nodes drops out of a product, not of a square
        if self.halves is None:
            return (self.g, self.dg), (self.g, self.dg)
        g, dg = self.halves
        return (g[:, 0], dg[:, 0]), (g[:, 1], dg[:, 1])

    def mean(self, omega: Array, V: Array) -> Array:
        """Posterior mean of the fields, E[z|y] = ω + V g (one sample)."""
        return omega + V @ self.g


class Response(eqx.Module):
    """Average of g gᵀ over fields and labels at one overlap.

    Attributes:
        mean: E Σ_m g_m g_mᵀ, (P, P).
        replicas: The same from each net of outer points, (R, P, P): their spread is the
            statistical error.
        jacobian: d mean_{ab} / d Q_{cd}, (P, P, P, P).
        log_partition: E log Z_out from each net, (R,).
        error: Largest error of an inner integral that met its tolerance.
        inaccurate: Fraction of samples whose inner integral missed its tolerance.
    """

    mean: Array
    replicas: Array
    jacobian: Array
    log_partition: Array
    error: Array
    inaccurate: Array


def redraw_labels(
    channel: AbstractChannel, omega: Array, V: Array, normal: Array, noise: Array
) -> Array:
    """Labels (N, ...) of fields ω + V^{1/2} η: ω and η, standard `normal`, (N, P, M), V (P, P), and
    `noise` (N, noise_size)."""
    fields = omega + jnp.einsum("pq,nqm->npm", sqrt_psd(V), normal)
    return jax.vmap(channel.label)(fields, noise)


def draw_posteriors(
    channel: AbstractChannel, Q: Array, V: Array, *, key: PRNGKeyArray, points: int, nets: int
) -> Posterior:
    """Posteriors of points × nets labels that are drawn at overlap Q, net by net."""
    P, M, count = channel.indices, channel.tokens, points * nets
    normals = randomised_gaussians(key, points, nets, 2 * P * M + channel.noise_size)
    normals = normals.reshape(count, -1)
    xi, eta, noise = jnp.split(normals, [P * M, 2 * P * M], axis=1)
    omega = jnp.einsum("pq,nqm->npm", sqrt_psd(Q), xi.reshape(count, P, M))
    # a lower triangular root keeps each index on its own coordinates of the net
    root = jnp.linalg.cholesky(V)
    fields = omega + jnp.einsum("pq,nqm->npm", root, eta.reshape(count, P, M))
    statistic = jax.vmap(channel.observe)(fields, noise)
    # another stream than that of the points: inner nodes must not depend on them
    return _respond_by_net(channel, statistic, omega, V, jax.random.fold_in(key, 1), nets)


def weighted_posteriors(
    channel: AbstractChannel, Q: Array, V: Array, *, key: PRNGKeyArray, points: int, nets: int
) -> tuple[Posterior, Array]:
    """Posteriors at overlap Q with weights (n,) of mean one, net by net: those of drawn labels, or,
    of finitely many, of every label at every ω with its probability Z_out."""
    outcomes = channel.outcomes
    if outcomes is None:
        post = draw_posteriors(channel, Q, V, key=key, points=points, nets=nets)
        return post, jnp.ones_like(post.log_partition)
    P, M = channel.indices, channel.tokens
    xi = randomised_gaussians(key, points, nets, P * M).reshape(-1, P, M)
    # the sum over labels is exact at every ω: no fields and no noise are drawn
    omega = jnp.repeat(jnp.einsum("pq,nqm->npm", sqrt_psd(Q), xi), len(outcomes), axis=0)
    labels = jnp.tile(outcomes, (len(xi), *[1] * (outcomes.ndim - 1)))
    statistic = channel.statistic(labels)
    post = _respond_by_net(channel, statistic, omega, V, jax.random.fold_in(key, 1), nets)
    return post, len(outcomes) * jnp.exp(post.log_partition)


def _respond_by_net(
    channel: AbstractChannel, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray, nets: int
) -> Posterior:
    averaging = channel.averaging
    if not channel.random_nodes:
        return averaging.respond(statistic, omega, V, key)
    # each net has random nodes of its own, so that the spread over nets holds their error, too:
    # nodes that nets share would err alike in all of them
    split = lambda x: x.reshape(nets, -1, *x.shape[1:])
    keys = jax.random.split(key, nets)
    post = lax.map(
        lambda part: averaging.respond(part[0], part[1], V, part[2]),
        (split(statistic), split(omega), keys),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), post)


def response_of(
    channel: AbstractChannel, post: Posterior, weight: Array, nets: int, tangents: bool = True
) -> Response:
    """The response from the posteriors and weights of `weighted_posteriors`."""
    P = channel.indices
    each = weight[:, None, None]
    (g, dg), (g_too, dg_too) = post.factors
    outer = each * symmetric(jnp.einsum("npm,nqm->npq", g, g_too))
    curvature = -each * jnp.einsum("npmqm->npq", 0.5 * (dg + dg_too))
    outer, curvature = (x.reshape(nets, -1, P, P) for x in (outer, curvature))
    # summed over all labels, E Σ g gᵀ = -E Σ ∂g holds at every ω: nothing is left to control
    drawn = channel.outcomes is None
    replicas = _controlled(outer, outer - curvature) if drawn else jnp.mean(outer, axis=1)
    jacobian = jnp.zeros((P, P, P, P), outer.dtype)
    if tangents:
        jacobian = conjugation(each[..., None, None] * dg, dg_too)
    # 0 log 0 = 0, of labels without probability
    values = jnp.where(weight > 0.0, weight * post.log_partition, 0.0)
    log_partition = jnp.mean(values.reshape(nets, -1), axis=1)
    missed = post.error > channel.averaging.tolerance
    error = jnp.max(jnp.where(missed, 0.0, post.error))
    share = jnp.mean(jnp.where(missed, weight, 0.0))
    return Response(jnp.mean(replicas, 0), replicas, jacobian, log_partition, error, share)


def _controlled(values: Array, control: Array) -> Array:
    """Means (R, ...) of values (R, n, ...) with a control variate of mean zero.

    E Σ g gᵀ = -E Σ ∂g: their difference is the control. It is exact for a linear channel.
    """
    covariance, variance = (
        # of the other nets: a coefficient from the same one would bias its mean
        jnp.sum(x, 0) - x
        for x in covariance_and_variance(values, control, axis=1)
    )
    slope = lax.stop_gradient(quotient(covariance, variance))
    return jnp.mean(values, axis=1) - slope * jnp.mean(control, axis=1)
