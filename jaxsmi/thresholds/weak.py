r"""Weak recovery: the sample complexity from which on anything is learned from labels alone.

Equations here [TDDZLK24; TCDKZ25; theory: multi-index, Eqs. (52) to (54)], F the growth map of
`growth` at Q = 0:

    α_c = 1/λ_max(F),   α_c = 0 where E g gᵀ ≠ 0,   stderr(α_c) = α_c² stderr(λ_max)
    dα_c = -α_c² ⟨X, dF X⟩, X the leading eigenmatrix    (`growth` holds X, so that this is α_c
                                                         differentiated as it stands)
    noiseless without a channel: 1/α_c = lim_{Δ → 0} λ_max(F_Δ)      [Eqs. (70) to (72)]
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.averages import weighted_posteriors
from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny, nan
from jaxsmi.core.codes import INACCURATE_SHARE, Result
from jaxsmi.core.options import Averages
from jaxsmi.core.results import Threshold
from jaxsmi.core.validate import check
from jaxsmi.models.base import AbstractModel, model_argument
from jaxsmi.numerics.continuation import Limit, ladder, limit
from jaxsmi.numerics.implicit import forwards, not_differentiable
from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.growth import Growth, check_model, growth, sizes_of


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
    models, steps = [model], None
    if noises is not None:
        steps = ladder("noises", noises)
        check(model.design.rows, "noises", noises, "None for a matrix model")
        # only numbers of the channel differ: one compilation for all noises
        channels = model.channel.noisy(steps)
        models = [eqx.tree_at(lambda m: m.channel, model, channel) for channel in channels]
    valid = check_model(models[0]) & validate.valid((models[-1], steps))
    growths = [_growth(m, key, power_of_two(points), nets) for m in models]
    return _threshold(growths, steps, model.prior.second_moment(model.indices), valid)


def _growth(model: AbstractModel, key: PRNGKeyArray, points: int, nets: int) -> Growth:
    """Growth at Q = 0, with its derivatives in the model."""
    grown = forwards(lambda model, key: _at_zero(model, key, points, nets), model, key)
    # labels that jump have no derivative along the sampled ones
    return not_differentiable(grown, model, unless=model.channel.pathwise)


@eqx.filter_jit
def _at_zero(model: AbstractModel, key: PRNGKeyArray, points: int, nets: int) -> Growth:
    S = model.prior.second_moment(model.indices)
    sizes = {"points": points, "nets": nets}
    sample = weighted_posteriors(model.channel, jnp.zeros_like(S), S, key=key, **sizes)
    return growth(model, sample, S, jnp.eye(len(S), dtype=S.dtype), nets)


@eqx.filter_jit
def _threshold(growths: list[Growth], steps: Array | None, S: Array, valid: Array) -> Threshold:
    """The threshold, from the growth at each of the noises, or at the only one."""
    # the smallest noise decides: the classes of a threshold do not change on the way to zero
    last = growths[-1]
    vectors, first_order = last.first_order_directions()
    trivial, absent = jnp.any(first_order), last.absent
    exact = trivial | absent
    rates = Limit(last.rate, last.each, jnp.zeros_like(last.rate))
    if steps is not None:
        # rates, not α: these are averages, and follow the power law in Δ
        rates = limit(steps, jnp.stack([grown.each for grown in growths], axis=1))
    rate = jnp.where(exact, 1.0, rates.value)
    alpha = jnp.where(trivial, 0.0, jnp.where(absent, jnp.inf, 1.0 / rate))
    squared = jnp.where(exact, 0.0, 1.0 / rate) ** 2
    # the mean of 1/λ_r is biased; 1/λ to first order in λ_r - λ is not
    replicas = jnp.where(exact, alpha, alpha - (rates.replicas - rate) * squared)
    statistical = jnp.std(rates.replicas, ddof=1) / np.sqrt(len(replicas))
    stderr = jnp.where(exact, 0.0, jnp.hypot(statistical, rates.error) * squared)
    projector = jnp.where(first_order, vectors, 0.0) @ vectors.T
    subspace = jnp.where(trivial, projector, jnp.where(absent, 0.0, last.subspace))
    root = sqrt_psd(S)
    subspace = root @ subspace @ root  # of the signal, not of the whitened one
    subspace = subspace / clamp_to_tiny(jnp.trace(subspace))
    inaccurate = jnp.max(jnp.stack([grown.inaccurate for grown in growths])) > INACCURATE_SHARE
    code = jnp.where(inaccurate, int(Result.INACCURATE), int(Result.SUCCESS))
    finite = exact | (jnp.isfinite(rate) & (rate > 0.0))
    finite = finite & jnp.all(jnp.isfinite(last.first_order))
    code = jnp.where(finite, code, int(Result.NONFINITE))
    code = jnp.where(valid, code, int(Result.INVALID))
    masked = lambda x: jnp.where(valid & finite, x, nan())
    alpha, stderr, replicas = masked(alpha), masked(stderr), masked(replicas)
    return Threshold(alpha, stderr, replicas, subspace, jnp.zeros_like(S), code)
