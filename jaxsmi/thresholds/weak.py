r"""Weak recovery: the sample complexity from which on anything is learned from labels alone.

Equations here [TDDZLK24; TCDKZ25; theory: multi-index, Eqs. (52) to (54)], F the growth map of
`growth` at Q = 0:

    α_c = 1/λ_max(F),   α_c = 0 where E g gᵀ ≠ 0,   stderr(α_c) = α_c² stderr(λ_max)
    dα_c = -α_c² ⟨X, dF X⟩, X the leading eigenmatrix    (`growth` holds X, so that this is α_c
                                                         differentiated as it stands)
    noiseless without a channel: 1/α_c = lim_{Δ → 0} λ_max(F_Δ)      [Eqs. (70) to (72)]
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny, nan
from jaxsmi.core.codes import INACCURATE_SHARE, Result, worst
from jaxsmi.core.options import Averages
from jaxsmi.core.results import Threshold
from jaxsmi.core.validate import check
from jaxsmi.models.base import AbstractModel, model_argument
from jaxsmi.numerics.continuation import ladder, limit
from jaxsmi.numerics.implicit import forwards, not_differentiable
from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.growth import check_model, growth, sizes_of

__all__ = ["weak_recovery"]


def weak_recovery(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    averages: Averages | None = None,
    noises: ArrayLike | None = None,
) -> Threshold:
    r"""Compute the smallest α at which anything is learned from labels alone.

    α_c = 1/λ_max(F),  F(X) = E Σ_{m,n} G_{mn} X G_{mn}ᵀ,  G = E[zzᵀ|y] - I at ω = 0

    Args:
        model: An index model with a channel and a prior of mean zero.
        key: Random key, common random numbers: two calls with one key differ smoothly.
        averages: `smi.Averages(points, nets)`. Default 2^16 points in 16 nets, whose spread is the
            error bar. Take 16 nets or more: G has heavy tails, and `Threshold.interval` needs the
            degrees of freedom.
        noises: For a noiseless link that is continuous but has no channel (several heads, untied
            query and key, any function): variances Δ of label noise, four or more, each the same
            fraction of the one before, such as (.08, .04, .02, .01). 1/α_c at each is extrapolated
            to Δ = 0 by a fitted power Δ^p, p in [1/4, 2], and `stderr` contains the error of that.
            The first Δ should lie below the variance of a label. Default None.

    Returns:
        A `Threshold`: `alpha` is 0 where a direction is learned at any α > 0 (E[z|y] ≠ 0), and inf
        where nothing grows; `subspace` (P, P) is what is learned. Differentiable, forwards and
        backwards, in every array of the model (NaN where labels jump, unless they are few and
        summed over). Codes: SUCCESS, INACCURATE, NONFINITE; INVALID.

    Raises:
        ValueError: For a model without inference, a prior with a mean, or fewer than two points a
            net. Under jit the answer is NaN with the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, few = smi.links.phase_retrieval(), smi.Averages(points=2**13)
        >>> round(float(smi.weak_recovery(model, key=jax.random.key(0), averages=few).alpha), 1)
        0.5

    Cost:
        One posterior a point: 2^16 of two-layer attention take about 2 s on one core after
        compilation; with `noises` so many at each, by the integral over all fields.

    Source:
        [TDDZLK24], [TCDKZ25], [theory: multi-index, Eqs. (52) to (54), (70) to (72)].
    """
    key = validate.key("key", key)
    points, nets = sizes_of(averages, 2**16, 16)
    model = model_argument(model)
    if noises is None:
        valid = check_model(model)
        return _masked(_differentiable(model, key, power_of_two(points), nets), valid)
    steps = ladder("noises", noises)
    check(model.design.rows, "noises", noises, "None for a matrix model")
    channels = model.channel.noisy(steps)
    # only numbers of the channel differ: one compilation for all noises
    models = [eqx.tree_at(lambda m: m.channel, model, channel) for channel in channels]
    valid = check_model(models[0]) & validate.valid((models[-1], steps))
    thresholds = [_differentiable(m, key, power_of_two(points), nets) for m in models]
    return _masked(_extrapolated(steps, thresholds), valid)


def _masked(threshold: Threshold, valid: Array, code: Result = Result.INVALID) -> Threshold:
    """The threshold, with NaN for its numbers and a result code where it is not valid."""
    numbers = lambda t: (t.alpha, t.stderr, t.replicas)
    masked = [jnp.where(valid, x, nan()) for x in numbers(threshold)]
    result = jnp.where(valid, threshold.result, int(code))
    return eqx.tree_at(lambda t: (*numbers(t), t.result), threshold, (*masked, result))


def _differentiable(model: AbstractModel, key: PRNGKeyArray, points: int, nets: int) -> Threshold:
    """`_weak_recovery` with its derivatives in the model."""
    threshold = forwards(lambda model, key: _weak_recovery(model, key, points, nets), model, key)
    # labels that jump have no derivative along the sampled ones
    return not_differentiable(threshold, model, unless=model.channel.pathwise)


@eqx.filter_jit
def _weak_recovery(model: AbstractModel, key: PRNGKeyArray, points: int, nets: int) -> Threshold:
    S = model.prior.second_moment(model.indices)
    all_directions = jnp.eye(len(S), dtype=S.dtype)
    at_zero = growth(model, jnp.zeros_like(S), S, all_directions, key, (points, nets))
    vectors, first_order = at_zero.first_order_directions()
    trivial = jnp.any(first_order)
    rate, absent = at_zero.rate, at_zero.absent
    alpha = jnp.where(trivial, 0.0, jnp.where(absent, jnp.inf, 1.0 / jnp.where(absent, 1.0, rate)))
    exact = trivial | absent
    squared = jnp.where(exact, 0.0, alpha) ** 2
    # the mean of 1/λ_r is biased; 1/λ to first order in λ_r - λ is not
    replicas = jnp.where(exact, alpha, alpha - (at_zero.each - rate) * squared)
    stderr = jnp.std(at_zero.each, ddof=1) / np.sqrt(nets) * squared
    stderr = jnp.where(exact, 0.0, stderr)
    projector = jnp.where(first_order, vectors, 0.0) @ vectors.T
    subspace = jnp.where(trivial, projector, jnp.where(absent, 0.0, at_zero.subspace))
    root = sqrt_psd(S)
    subspace = root @ subspace @ root  # of the signal, not of the whitened one
    subspace = subspace / clamp_to_tiny(jnp.trace(subspace))
    finite = jnp.isfinite(rate) & jnp.all(jnp.isfinite(at_zero.first_order))
    inaccurate = at_zero.inaccurate > INACCURATE_SHARE
    code = jnp.where(inaccurate, int(Result.INACCURATE), int(Result.SUCCESS))
    threshold = Threshold(alpha, stderr, replicas, subspace, jnp.zeros_like(S), code)
    return _masked(threshold, finite, Result.NONFINITE)


def _extrapolated(noises: Array, thresholds: Sequence[Threshold]) -> Threshold:
    """The threshold at zero noise, from those at each of the noises, by their rates 1/α_c."""
    alphas = jnp.stack([threshold.alpha for threshold in thresholds])
    replicas = jnp.stack([threshold.replicas for threshold in thresholds], axis=1)
    # the smallest noise decides: the classes of a threshold do not change on the way to zero
    trivial, absent = alphas[-1] == 0.0, jnp.isinf(alphas[-1])
    grows = jnp.isfinite(alphas) & (alphas > 0.0)
    safe = jnp.where(grows, alphas, 1.0)
    # the replicas of α are those of 1/α to first order
    rates = jnp.where(grows, 2.0 / safe - replicas / safe**2, 0.0)
    # rates, not α: these are averages, and follow the power law in Δ
    zero = limit(noises, rates)
    exact = trivial | absent
    rate = jnp.where(exact, 1.0, zero.value)
    alpha = jnp.where(trivial, 0.0, jnp.where(absent, jnp.inf, 1.0 / rate))
    squared = jnp.where(exact, 0.0, 1.0 / rate) ** 2
    statistical = jnp.std(zero.replicas, ddof=1) / np.sqrt(len(replicas))
    stderr = jnp.where(exact, 0.0, jnp.hypot(statistical, zero.error) * squared)
    each = jnp.where(exact, alpha, alpha - (zero.replicas - rate) * squared)
    last = thresholds[-1]
    code = worst(jnp.stack([threshold.result for threshold in thresholds]))
    threshold = Threshold(alpha, stderr, each, last.subspace, last.overlap, code)
    return _masked(threshold, exact | (jnp.isfinite(rate) & (rate > 0.0)), Result.NONFINITE)
