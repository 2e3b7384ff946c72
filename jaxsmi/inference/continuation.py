r"""State evolution of noiseless labels without a channel: the limit of vanishing label noise.

Equations here [theory: multi-index, Eqs. (70) to (72)]: V_k is the fixed point at the noise Δ_k, on
common random numbers, with replicas to first order in the spread of the map,

    V_kr = V_k + (I - J_k)^{-1} (F_kr - F_k),   V = lim V_k,   Q = S - V

by `numerics.continuation`, and V and Q are positive semi-definite.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.codes import Result, worst
from jaxsmi.core.results import Solution
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.models.base import AbstractModel, model_argument, title
from jaxsmi.numerics.continuation import ladder, limit
from jaxsmi.numerics.fixed_point import resolvent
from jaxsmi.numerics.linear_algebra import positive_part

__all__ = ["continued", "noisy_models"]


def noisy_models(
    arguments: Arguments, model: AbstractModel, noises: ArrayLike
) -> tuple[Array, Sequence[AbstractModel]]:
    """The argument `noises`, checked, and the model at each of them."""
    steps = ladder("noises", noises)
    model = model_argument(model)
    check(model.design.rows, "noises", f"some for {title(model)}", "None for this model")
    channels = model.channel.noisy(steps)
    return steps, [eqx.tree_at(lambda m: m.channel, model, channel) for channel in channels]


def continued(
    model: AbstractModel, noises: Array, runs: Sequence[tuple[OverlapMap, Solution]]
) -> Solution:
    """The solution of the noiseless `model` from those at each of the `noises` (K,)."""
    moved = jnp.stack([_replicas(problem, solution) for problem, solution in runs], axis=1)
    V = limit(noises, moved)
    R = len(moved)
    statistical = jnp.std(V.replicas, axis=0, ddof=1) / jnp.sqrt(R)
    S = model.prior.second_moment(model.indices)
    overlap = positive_part(S - positive_part(V.value))
    problem, last = runs[-1]
    assert last.key is not None
    drawn = {"key": jax.random.fold_in(last.key, 2), "points": problem.samples}
    error = model.metric.theory_error(S - overlap, **drawn)
    codes = jnp.stack([solution.result for _, solution in runs])
    code = worst(codes)
    lost = (code == Result.INVALID) | (code == Result.NONFINITE)
    ended = lost | jnp.any((codes == Result.MAX_STEPS) | (codes == Result.DIVERGED))
    return dataclasses.replace(
        last,
        overlap=jnp.where(lost, jnp.nan, overlap),
        covariance=jnp.where(lost, jnp.nan, S - overlap),
        stderr=jnp.where(ended, jnp.nan, jnp.sqrt(statistical**2 + V.error**2)),
        error=jnp.where(lost, jnp.nan, error),
        result=code,
        model=model,
    )


@eqx.filter_jit
def _replicas(problem: OverlapMap, solution: Solution) -> Array:
    """V of each net (R, P, P), to first order."""
    spread = jax.lax.stop_gradient(problem).evaluate(jax.lax.stop_gradient(solution.covariance))
    apart = spread.replicas - jnp.mean(spread.replicas, axis=0)
    return solution.covariance + jax.vmap(lambda F: resolvent(spread.jacobian, F))(apart)
