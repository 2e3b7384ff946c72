"""Fixed points of state evolution with only some directions learned, and what grows there.

Equations here [theory: multi-index, Eqs. (52), (55)], U a basis of the learned directions,
Π = U Uᵀ:

    V = S - Π [S - prior.mmse(α Π response(Q) Π)] Π

The unlearned directions keep the covariance S. That is exact for a Gaussian prior, and wherever
learned and new directions are independent under the prior, as coordinates are. For another prior
and oblique directions E[C ⊗ C] differs from S ⊗ S: `refuse_oblique` says so
[theory: multi-index, section 11].
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.channels.averages import response_of, weighted_posteriors
from jaxsmi.channels.base import Response
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics import fixed_point
from jaxsmi.priors.base import AbstractPrior
from jaxsmi.thresholds.growth import Growth, growth, growth_from

__all__ = ["NETS", "branch_end", "branch_growth", "branch_point", "refuse_oblique"]

NETS = 4  # nets inside one replica of a threshold
_DEEP = 1e-7  # V/S at perfect recovery: small enough for the signs of labels to be known
_PRECISION = 4.0  # at which the prior is tested for oblique directions, times the inverse of S
_SLACK = 0.05  # of the test: quadrature errors of priors, and errors of the learned directions


def branch_end(
    branch: OverlapMap,
    V0: Array,
    max_steps: int,
    tolerance: ArrayLike,
    downwards: Array | None = None,
    fold: bool = False,
) -> tuple[Array, Array]:
    """The fixed point V (k, k) reached from V0, and the result code; at perfect recovery V/S is
    that of `_DEEP`. `downwards`, `fold`: as in `fixed_point.Iteration`."""
    S = branch.second_moment
    limit = jnp.asarray(tolerance, S.dtype)
    iteration = branch.iteration(V0, max_steps=max_steps, tolerance=limit)
    end = fixed_point.solve(dataclasses.replace(iteration, downwards=downwards, fold=fold))
    V = end.state.V
    deep = V * jnp.minimum(_DEEP * jnp.trace(S) / jnp.trace(V), 1.0)
    return jnp.where(end.result == Result.RECOVERED, deep, V), end.result


def branch_growth(branch: OverlapMap, V: Array, X: Array | None = None) -> Growth:
    """Growth of the directions that are not learned, at V (k, k)."""
    Q, covariance = branch.overlaps(V)
    return growth(
        branch.model,
        Q,
        covariance,
        _unlearned(branch, V),
        branch.key,
        branch.samples,
        branch.randomisations,
        X,
    )


def branch_point(branch: OverlapMap, V: Array, X: Array | None = None) -> tuple[Response, Growth]:
    """The channel's response at V (k, k) and the growth there, of the same posteriors."""
    Q, covariance = branch.overlaps(V)
    nets = branch.randomisations
    channel = branch.model.channel
    sizes = {"points": branch.samples, "nets": nets}
    post, weight = weighted_posteriors(channel, Q, covariance, key=branch.key, **sizes)
    unlearned = _unlearned(branch, V)
    grown = growth_from(branch.model, post, weight, covariance, unlearned, nets, X)
    return response_of(channel, post, weight, nets), grown


def _unlearned(branch: OverlapMap, V: Array) -> Array:
    """The projector (P, P) on the directions that are not learned."""
    everything = jnp.eye(branch.model.indices, dtype=V.dtype)
    return everything - branch.embed(jnp.eye(len(V), dtype=V.dtype))


@eqx.filter_jit
def _ties(prior: AbstractPrior, learned: Array) -> tuple[Array, Array]:
    """How far unlearned directions are from independent of the learned ones, relative to S.

    With a field on the learned directions alone: their overlap N overlap(Q̂) N, and the change of
    the way a small field on them returns, N d overlap[N] N, which is N S² N without any field.
    """
    S = prior.second_moment(len(learned))
    projector = learned @ learned.T
    unlearned = jnp.eye(len(S), dtype=S.dtype) - projector
    Qhat = _PRECISION * len(S) / jnp.trace(S) * projector
    value, pull = jax.linearize(prior.overlap, Qhat)
    overlap = unlearned @ value @ unlearned
    change = unlearned @ (pull(unlearned) - S @ unlearned @ S) @ unlearned
    largest = jnp.max(S)
    return jnp.max(jnp.abs(overlap)) / largest, jnp.max(jnp.abs(change)) / largest**2


def refuse_oblique(model: AbstractModel, learned: Array) -> None:
    """Raise a ValueError where the prior ties unlearned directions to the learned ones (P, k)."""
    overlap, change = _ties(model.prior, learned)
    check(
        (overlap < _SLACK) & (change < _SLACK),
        "model",
        model.prior,
        "a Gaussian prior, or a link that learns sets of coordinates one after the other: the "
        "directions learned here are oblique to the coordinates, and this prior ties the others "
        "to them",
    )
