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

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Response
from jaxsmi.core import validate
from jaxsmi.core.arrays import frozen, nan
from jaxsmi.core.options import Averages
from jaxsmi.core.results import Estimate, Solution
from jaxsmi.models.base import AbstractModel, model_argument
from jaxsmi.numerics import implicit
from jaxsmi.numerics.linear_algebra import symmetric
from jaxsmi.numerics.nets import power_of_two

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
    model: AbstractModel, alpha: Array, Q: Array, key: PRNGKeyArray | None, points: int, nets: int
) -> Estimate:
    """`free_entropy` without its checks, `points` in each of the nets."""
    prior = model.prior

    def respond(model: AbstractModel, context: tuple[Array, PRNGKeyArray | None]) -> Response:
        Q, key = context
        V = model.prior.second_moment(model.indices) - Q
        return model.channel.response(Q, V, key=key, points=points, nets=nets)

    explicit = model.channel.explicit
    # exact functions have derivatives of any order, by the rules of JAX
    fixed = Q if explicit else frozen(Q)
    at = (fixed, key)
    response = respond(model, at) if explicit else implicit.forwards(respond, model, at)
    Qhat = alpha * symmetric(response.mean)
    value = prior.entropy_term(fixed, Qhat) + alpha * jnp.mean(response.log_partition)
    pull = prior.weight * (prior.overlap(Qhat) - fixed)
    # to first order in the fluctuations of Q̂ and of log Z_out
    change = jnp.einsum("rpq,pq->r", response.replicas - response.mean, pull)
    each = frozen(alpha * (change + response.log_partition))
    stderr = jnp.std(each, ddof=1) / jnp.sqrt(float(nets))
    if not explicit:
        value = implicit.not_differentiable(value, model, unless=model.channel.pathwise)
        # dΦ by its equation, as the points of labels that jump with Q miss the jumps
        slope = alpha * jnp.einsum("pq,pqrs->rs", pull, response.jacobian)
        value = implicit.with_slope(value, Q, slope)
    return Estimate(value, stderr)
