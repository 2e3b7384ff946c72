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
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, off_zero
from jaxsmi.core.border import anything, checked, random_key, whole
from jaxsmi.core.checks import Arguments
from jaxsmi.core.codes import INACCURATE_SHARE, Result, worst
from jaxsmi.core.results import Threshold
from jaxsmi.inference.continuation import noisy_models
from jaxsmi.models.base import AbstractModel, is_model
from jaxsmi.numerics.continuation import limit
from jaxsmi.numerics.implicit import derivative, differentiable
from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.growth import checked_sizes, growth

__all__ = ["weak_recovery"]


@eqx.filter_jit
def _weak_recovery(
    model: AbstractModel, key: PRNGKeyArray, samples: int, randomisations: int
) -> Threshold:
    """`weak_recovery` with `samples` points in each net, without its checks."""
    S = model.prior.second_moment(model.indices)
    everything = jnp.eye(len(S), dtype=S.dtype)
    at_zero = growth(model, jnp.zeros_like(S), S, everything, key, samples, randomisations)
    vectors, known = at_zero.known()
    trivial = jnp.any(known)
    rate = at_zero.rate
    never = at_zero.never
    alpha = jnp.where(trivial, 0.0, jnp.where(never, jnp.inf, 1.0 / jnp.where(never, 1.0, rate)))
    fixed = trivial | never
    squared = jnp.where(fixed, 0.0, alpha) ** 2
    # the mean of 1/λ_r is biased; the first-order replicas are not
    replicas = jnp.where(fixed, alpha, alpha - (at_zero.each - rate) * squared)
    stderr = jnp.std(at_zero.each, ddof=1) / np.sqrt(randomisations) * squared
    stderr = jnp.where(fixed, 0.0, stderr)
    grown = (vectors * known) @ vectors.T
    subspace = jnp.where(trivial, grown, jnp.where(never, 0.0, at_zero.subspace))
    root = sqrt_psd(S)
    subspace = root @ subspace @ root  # of the signal, not of the whitened one
    subspace = subspace / off_zero(jnp.trace(subspace))
    finite = jnp.isfinite(rate) & jnp.all(jnp.isfinite(at_zero.first_order))
    code = jnp.where(at_zero.inaccurate > INACCURATE_SHARE, Result.INACCURATE, Result.SUCCESS)
    code = jnp.where(finite, code, Result.NONFINITE)
    return _masked(
        Threshold(alpha, stderr, replicas, subspace, jnp.zeros_like(S), code), finite, code
    )


def _masked(threshold: Threshold, valid: Array, code: Array) -> Threshold:
    """The threshold with NaN for its numbers where it is not valid, and a result code."""
    numbers = (threshold.alpha, threshold.stderr, threshold.replicas)
    masked = [jnp.where(valid, x, jnp.nan) for x in numbers]
    return eqx.tree_at(
        lambda t: (t.alpha, t.stderr, t.replicas, t.result), threshold, (*masked, code)
    )


@checked(model=is_model, key=random_key, samples=whole(), randomisations=whole(2), noises=anything)
def weak_recovery(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    samples: int = 2**16,
    randomisations: int = 16,
    noises: ArrayLike | None = None,
) -> Threshold:
    r"""The smallest α at which anything is learned from labels alone.

    α_c = 1/λ_max(F),  F(X) = E Σ_{m,n} G_{mn} X G_{mn}ᵀ,  G = E[zzᵀ|y] - I at ω = 0

    Args:
        model: Any index model with a channel and a prior of mean zero.
        key: Random key, common random numbers: two calls with one key differ smoothly.
        samples: Points of the average, over all nets. Default 2^16.
        randomisations: Independent nets, whose spread is the error bar. Take 16 or more: G has
            heavy tails, and `Threshold.interval` needs the degrees of freedom. Default 16.
        noises: For a noiseless link that is continuous but has no channel (several heads, untied
            query and key, any function): variances Δ of label noise, four or more, each the same
            fraction of the one before, such as (.08, .04, .02, .01). 1/α_c at each is extrapolated
            to Δ = 0 by a power Δ^p that is found, p in [1/4, 2], and `stderr` contains the error of
            that. The first Δ should lie below the variance of a label. Default None.

    Returns:
        A `Threshold`: `alpha` is 0 where a direction is learned at any α > 0 (E[z|y] ≠ 0), and inf
        where nothing grows; `subspace` (P, P) is what is learned. Differentiable, forwards and
        backwards, in every array of the model (NaN where labels jump). Codes: SUCCESS, INACCURATE,
        NONFINITE; INVALID.

    Raises:
        ValueError: For a model without inference, a prior with a mean, or too few samples. Under
            jit the answer is NaN with the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model = smi.links.phase_retrieval()
        >>> threshold = smi.weak_recovery(model, key=jax.random.key(0), samples=2**13)
        >>> round(float(threshold.alpha), 1)
        0.5

    Cost:
        `samples` posteriors: 2^16 of two-layer attention take about 2 s on one core after
        compilation; with `noises` so many at each, by the integral over all fields.

    Source:
        [TDDZLK24], [TCDKZ25], [theory: multi-index, Eqs. (52) to (54), (70) to (72)].
    """
    arguments = Arguments()
    models: Sequence[AbstractModel] = [model]
    steps = jnp.zeros(1)
    if noises is not None:
        steps, models = noisy_models(arguments, model, noises)
    samples, nets = checked_sizes(arguments, models[0], samples, randomisations, "randomisations")
    each = power_of_two(max(samples // nets, 2))
    thresholds = [_differentiable(model, key, each, nets) for model in models]
    threshold = thresholds[0] if noises is None else _continued(steps, thresholds)
    conditions = (arguments.valid, validate.valid(models[-1]))
    if concrete(conditions) and all(map(bool, conditions)):
        return threshold
    valid = conditions[0] & conditions[1]
    return _masked(threshold, valid, jnp.where(valid, threshold.result, Result.INVALID))


def _differentiable(model: AbstractModel, key: PRNGKeyArray, samples: int, nets: int) -> Threshold:
    """`_weak_recovery` with its derivatives in the model."""

    def solve(model: AbstractModel, key: PRNGKeyArray) -> Threshold:
        return _weak_recovery(model, key, samples, nets)

    def push(
        model: AbstractModel, key: PRNGKeyArray, _: Threshold, directions: list[Array]
    ) -> Threshold:
        moved = derivative(lambda m: solve(m, key), model, directions)
        # labels that jump have no derivative along the sampled ones: see AbstractChannel
        return jax.tree.map(lambda x: jnp.where(model.channel.smooth, x, jnp.nan), moved)

    return differentiable(solve, push, model, key)


def _continued(noises: Array, thresholds: Sequence[Threshold]) -> Threshold:
    """The threshold at zero noise, from those at each of the noises, by their rates 1/α_c."""
    alphas = jnp.stack([threshold.alpha for threshold in thresholds])
    replicas = jnp.stack([threshold.replicas for threshold in thresholds], axis=1)
    trivial = alphas[-1] == 0.0
    never = jnp.isinf(alphas[-1])
    grows = jnp.isfinite(alphas) & (alphas > 0.0)
    some = jnp.where(grows, alphas, 1.0)
    # the replicas of α are first-order ones of 1/α
    rates = jnp.where(grows, 2.0 / some - replicas / some**2, 0.0)
    zero = limit(noises, rates)
    fixed = trivial | never
    rate = jnp.where(fixed, 1.0, zero.value)
    alpha = jnp.where(trivial, 0.0, jnp.where(never, jnp.inf, 1.0 / rate))
    squared = jnp.where(fixed, 0.0, 1.0 / rate) ** 2
    statistical = jnp.std(zero.replicas, ddof=1) / np.sqrt(len(replicas))
    stderr = jnp.where(fixed, 0.0, jnp.hypot(statistical, zero.error) * squared)
    each = jnp.where(fixed, alpha, alpha - (zero.replicas - rate) * squared)
    last = thresholds[-1]
    code = worst(jnp.stack([threshold.result for threshold in thresholds]))
    threshold = Threshold(alpha, stderr, each, last.subspace, last.overlap, code)
    return _masked(threshold, fixed | (jnp.isfinite(rate) & (rate > 0.0)), code)
