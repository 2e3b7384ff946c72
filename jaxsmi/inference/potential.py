r"""The replica free entropy: the potential whose stationary points are those of state evolution.

Equations here [TCDKZ25; theory: multi-index, Eqs. (49) to (51)], S the second moment of the prior,
V = S - Q:

    Φ(Q) = -½ tr(Q Q̂) + Φ_w(Q̂) + α E log Z_out(y; Q^{1/2} ξ, V),     Q̂ = α channel.response(Q)
    ∂_Q [α E log Z_out] = ½ Q̂,   ∂Φ_w/∂Q̂ = ½ prior.overlap(Q̂)
    so that   dΦ = ½ tr[(prior.overlap(Q̂) - Q) dQ̂]

The largest Φ among the fixed points is the Bayes-optimal one. Noiseless channels have Φ → ∞ at
Q = S beyond perfect recovery: compare differences away from there. log Z_out is that of
`channel.statistic(y)`, which for attention is a density of u.

Matrices, per entry [theory: attention-indexed, Eq. (29); bilinear, Eq. (12)], q̂ = α f(q), I the
mutual information of the prior, f = Ψ'/w:

    Φ(q) = w q̂ (Q_0 - q) - I(q̂) + α Ψ(q),      w = ¼ (symmetric), ½ (rectangular)
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Response
from jaxsmi.core import validate
from jaxsmi.core.arrays import nan
from jaxsmi.core.options import Averages
from jaxsmi.core.results import Estimate, Solution
from jaxsmi.models.base import AbstractModel, model_argument
from jaxsmi.numerics import implicit
from jaxsmi.numerics.linear_algebra import symmetric
from jaxsmi.numerics.nets import power_of_two

__all__ = ["free_entropy", "potential_at"]

_POINTS = 8192
_NETS = 8


def free_entropy(
    model: AbstractModel,
    alpha: ArrayLike,
    overlap: ArrayLike | Solution,
    *,
    key: PRNGKeyArray | None = None,
    averages: Averages = Averages(),  # noqa: B008  (immutable)
) -> Estimate:
    r"""Φ(Q) in nats per dimension, at Q̂ = α·response(Q), with its standard error.

    Φ = -½ tr(Q Q̂) + Φ_w(Q̂) + α E log Z_out           (matrix models: module docstring)

    Args:
        model: Any model with a channel.
        alpha: Sample complexity, a number > 0 (as in `state_evolution`).
        overlap: Q (P, P), a number (times the second moment S), or a Solution; 0 ⪯ Q ≺ S.
        key: Random key of the outer average. Differences of Φ at one key are much sharper than Φ
            itself. Matrix models need none.
        averages: `smi.Averages(points, nets)`; the spread of the nets is the standard error.
            Default 8192 points in 8 nets.

    Returns:
        An `Estimate` (value, stderr). At a fixed point the error of Q̂ enters to second order only.
        Matrix models, whose functions are explicit, have no statistical error.

    Raises:
        ValueError: For an argument out of its range, or a model without inference. Under jit the
            answer is NaN.

    Example:
        >>> import jax, jaxsmi as smi
        >>> value = smi.free_entropy(smi.links.linear(1.0), 1.0, 0.0, key=jax.random.key(0))
        >>> round(float(value.value), 2)  # -½ - ½ log 4π + ½ q̂ - ½ log(1 + q̂), q̂ = 1/2
        -1.72

    Cost:
        `points` posteriors.

    Source:
        [TCDKZ25], [theory: multi-index, Eqs. (49), (51)].
    """
    model = model_argument(model, "inference")
    alpha = validate.number("alpha", alpha, validate.POSITIVE)
    validate.instance("averages", averages, Averages, "smi.Averages(points, nets)")
    S = model.prior.second_moment(model.indices)
    overlap = overlap.overlap if isinstance(overlap, Solution) else overlap
    Q = validate.overlap("overlap", overlap, S)
    if key is not None or not model.channel.explicit:
        key = validate.key("key", key)
    points, nets = averages.sizes(_POINTS, _NETS)
    valid = validate.valid((alpha, Q)) & validate.valid(model)
    Q = jnp.where(valid, Q, 0.5 * S)
    estimate = potential_at(model, alpha, Q, key, power_of_two(max(points, 2)), nets)
    return Estimate(*(jnp.where(valid, x, nan()) for x in estimate))


@eqx.filter_jit
def potential_at(
    model: AbstractModel,
    alpha: Array,
    Q: Array,
    key: PRNGKeyArray | None,
    samples: int,
    randomisations: int,
) -> Estimate:
    """`free_entropy` without its checks, `samples` points in each of `randomisations` nets."""
    respond = _Response(key, samples, randomisations)
    # exact functions have derivatives of any order, by the rules of JAX
    response = respond(model, Q) if model.channel.explicit else _differentiable(respond, model, Q)
    Qhat = alpha * symmetric(response.mean)
    value = model.prior.entropy_term(Q, Qhat) + alpha * jnp.mean(response.log_partition)
    # to first order in the fluctuations of Q̂ and of log Z_out
    pull = model.prior.weight * (model.prior.overlap(Qhat) - Q)
    each = alpha * (
        jnp.einsum("rpq,pq->r", response.replicas - response.mean, pull) + response.log_partition
    )
    return Estimate(value, jnp.std(each, ddof=1) / jnp.sqrt(float(randomisations)))


class _Response(eqx.Module):
    """The channel's response of a model at Q, on points of a key."""

    key: PRNGKeyArray | None
    points: int = eqx.field(static=True)
    nets: int = eqx.field(static=True)

    def __call__(self, model: AbstractModel, Q: Array, tangents: bool = False) -> Response:
        V = model.prior.second_moment(model.indices) - Q
        sizes = {"points": self.points, "nets": self.nets}
        return model.channel.response(Q, V, key=self.key, tangents=tangents, **sizes)


def _differentiable(respond: _Response, model: AbstractModel, Q: Array) -> Response:
    """The response with its derivative: along the points of the average, forwards, as integrals
    refine their rules in loops. Where labels jump with the fields the points miss the jumps: in Q
    it is then d E log Z_out = ½ tr(response dQ) and the stated Jacobian, in the model NaN."""

    def solve(parameters: _Point, respond: _Response) -> Response:
        return respond(*parameters)

    def prepare(parameters: _Point, respond: _Response, answer: Response) -> Response:
        if parameters[0].channel.smooth is True:
            return answer
        return eqx.tree_at(lambda r: r.jacobian, answer, respond(*parameters, True).jacobian)

    def push(
        parameters: _Point, respond: _Response, known: Response, directions: list[Array]
    ) -> Response:
        smooth = parameters[0].channel.smooth
        if smooth is False:
            return _stated(parameters[0], known, directions)
        moved = implicit.derivative(lambda p: respond(*p), parameters, directions)
        if smooth is True:
            return moved
        stated = _stated(parameters[0], known, directions)
        return jax.tree.map(lambda a, b: jnp.where(smooth, a, b), moved, stated)

    return implicit.differentiable(solve, push, (model, Q), respond, prepare)


_Point = tuple[AbstractModel, Array]  # a model, and an overlap


def _stated(model: AbstractModel, known: Response, directions: list[Array]) -> Response:
    """The tangents of a response of labels that jump."""
    *others, dQ = directions
    moved = jnp.einsum("abcd,cd->ab", known.jacobian, dQ)
    moves = sum((jnp.sum(jnp.abs(x)) for x in others), jnp.zeros(()))
    missing = jnp.where(moves > 0.0, jnp.nan, 0.0)
    unknown = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), known)
    return dataclasses.replace(
        unknown,
        mean=moved + missing,
        replicas=jnp.broadcast_to(moved, known.replicas.shape) + missing,
        log_partition=model.prior.weight * jnp.einsum("rpq,pq->r", known.replicas, dQ) + missing,
    )
