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
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import nan
from jaxsmi.core.codes import Result, worst
from jaxsmi.core.options import Averages, Iteration, Start
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import check
from jaxsmi.inference.evolution import as_start, solve, validate_settings
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.models.base import AbstractModel, model_argument, title
from jaxsmi.numerics.continuation import ladder, limit
from jaxsmi.numerics.fixed_point import resolvent
from jaxsmi.numerics.linear_algebra import positive_part


def noiseless_limit(
    model: AbstractModel,
    alpha: ArrayLike,
    noises: ArrayLike,
    *,
    key: PRNGKeyArray,
    start: ArrayLike | Start | None = None,
    averages: Averages = Averages(),  # noqa: B008  (immutable)
    iteration: Iteration = Iteration(),  # noqa: B008
    progress: bool = False,
) -> Solution:
    r"""Solve state evolution of a noiseless link without a channel, by vanishing label noise.

        V = lim_{Δ → 0} V(Δ)

    Args:
        model: A `MultiIndex` with a link and no label noise.
        alpha: Sample complexity N/D, a number > 0.
        noises: Label noises Δ (K,), four or more, each the same fraction of the one before.
        key, start, averages, iteration, progress: As in `state_evolution`.

    Returns:
        A `Solution`; `stderr` has the error of the extrapolation. `history`, `steps` and
        `spectral_radius` are those of the smallest noise.

    Raises:
        ValueError: For an argument out of its range, or a model whose noise is fixed.

    Example:
        >>> import jax, jax.numpy as jnp, jaxsmi as smi
        >>> model = smi.MultiIndex(lambda z: z[0, 0] * jnp.tanh(z[1, 0]), indices=2)
        >>> end = smi.noiseless_limit(
        ...     model, 1.5, [0.08, 0.04, 0.02, 0.01], key=jax.random.key(0)
        ... )  # doctest: +SKIP

    Cost:
        One `state_evolution` for each noise.

    Source:
        [theory: multi-index, Eqs. (70) to (72)].
    """
    model = model_argument(model)
    validate_settings(averages, iteration, progress)
    alpha = validate.number("alpha", alpha, validate.POSITIVE)
    steps = ladder("noises", noises)
    key = validate.key("key", key)
    begin = as_start(start)
    if begin.overlap is not None:
        validate.overlap("start", begin.overlap, model.prior.second_moment(model.indices))
    check(model.design.rows, "noises", f"some for {title(model)}", "None for this model")
    runs = []
    for channel in model.channel.noisy(steps):
        noisy = eqx.tree_at(lambda m: m.channel, model, channel)
        problem, V = OverlapMap.of(noisy, alpha, key, begin, averages)
        runs.append((problem, solve((problem, V), iteration, progress)))
    return continued(model, steps, runs)


def continued(
    model: AbstractModel, noises: Array, runs: Sequence[tuple[OverlapMap, Solution]]
) -> Solution:
    """The solution of the noiseless `model` from those at each of the `noises` (K,)."""
    replicas = jnp.stack([_replicas(problem, solution) for problem, solution in runs], axis=1)
    V = limit(noises, replicas)
    R = len(replicas)
    statistical = jnp.std(V.replicas, axis=0, ddof=1) / jnp.sqrt(R)
    S = model.prior.second_moment(model.indices)
    overlap = positive_part(S - positive_part(V.value))
    problem, last = runs[-1]
    assert last.key is not None
    error_key = jax.random.fold_in(last.key, 2)
    error = model.metric.theory_error(S - overlap, key=error_key, points=problem.points)
    codes = jnp.stack([solution.result for _, solution in runs])
    code = worst(codes)
    lost = (code == Result.INVALID) | (code == Result.NONFINITE)
    ended = lost | jnp.any((codes == Result.MAX_STEPS) | (codes == Result.DIVERGED))
    return dataclasses.replace(
        last,
        overlap=jnp.where(lost, nan(), overlap),
        covariance=jnp.where(lost, nan(), S - overlap),
        stderr=jnp.where(ended, nan(), jnp.sqrt(statistical**2 + V.error**2)),
        error=jnp.where(lost, nan(), error),
        result=code,
        model=model,
    )


@eqx.filter_jit
def _replicas(problem: OverlapMap, solution: Solution) -> Array:
    """V of each net (R, P, P), to first order."""
    spread = jax.lax.stop_gradient(problem).evaluate(jax.lax.stop_gradient(solution.covariance))
    apart = spread.replicas - jnp.mean(spread.replicas, axis=0)
    return solution.covariance + jax.vmap(lambda F: resolvent(spread.jacobian, F))(apart)
