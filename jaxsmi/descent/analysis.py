"""Answers read off solutions of training: when each index is learned, and the mean of several runs
[TCDKZ25; theory: descent, Eqs. (5) to (9)]."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Solution
from jaxsmi.core.validate import UNIT_INTERVAL, check
from jaxsmi.numerics.quadrature import standard_error


def crossing(steps: Array, cosines: Array, level: ArrayLike) -> Array:
    """First step at which cosines reach a level; records that are not finite are skipped.

    Args:
        steps: Steps of the records, (T,).
        cosines: (T, P).
        level: The level c.

    Returns:
        Steps (P,): inf where the level is never reached, NaN where there is no number at all.
    """
    finite = jnp.isfinite(cosines)
    records = jnp.arange(len(steps))[:, None]
    above = finite & (cosines >= level)
    k = jnp.argmax(above, axis=0)
    # the last finite record before k: a run on data may have lost a record in between
    last_finite = lax.cummax(jnp.where(finite, records, -1), axis=0)
    before = jnp.take_along_axis(last_finite, jnp.maximum(k - 1, 0)[None], 0)[0]
    before = jnp.where((k > 0) & (before >= 0), before, k)
    low, high = (jnp.take_along_axis(cosines, at[None], 0)[0] for at in (before, k))
    # level reached at the first record: no interval, and high = low would be 0/0
    part = jnp.where(before < k, (level - low) / jnp.where(high > low, high - low, 1.0), 0.0)
    step = steps[before] + part * (steps[k] - steps[before])
    never = jnp.where(jnp.any(finite, axis=0), jnp.inf, jnp.nan)
    return jnp.where(jnp.any(above, axis=0), step, never)


def learned_at(solution: Solution | Sequence[Solution], level: float = 0.5) -> Array:
    r"""Find the first step, or the first α, at which the cosine of each index reaches a level.

        t_p = min {t: cos_p(t) >= c}, between records by linear interpolation

    Args:
        solution: A Solution of gamp or train (its history; a batch of runs too), or several, at
            different α (`solution.cosine` of each).
        level: The cosine c in (0, 1). Default 0.5.

    Returns:
        Steps or α, (P,) or (runs, P): inf where the level was never reached. Of ranks above
        one the cosines are those of the spans of the rows: a layer may pass and still give other
        labels.

    Raises:
        ValueError: For a level outside (0, 1), or solutions without cosines.

    Example:
        >>> import jax, optax, jaxsmi as smi
        >>> model, key = smi.links.linear(0.0), jax.random.key(0)
        >>> data = model.sample(key, dimension=50, alpha=4.0)
        >>> fit = smi.train(model, data, optax.adam(0.1), key=key, steps=100)
        >>> bool(smi.learned_at(fit, 0.9)[0] < 50)
        True

    Source:
        [TCDKZ25], [theory: descent, Eqs. (5), (6)].
    """
    validate.number("level", level, UNIT_INTERVAL)
    if isinstance(solution, Solution):
        allowed = "a solution of gamp or train, with cosines in its history"
        check("cosine" in solution.history, "solution", solution.kind, allowed)
        steps, cosines = solution.history["step"], solution.history["cosine"]
        if steps.ndim == 1:
            return crossing(steps, cosines, level)
        return jax.vmap(lambda s, c: crossing(s, c, level))(steps, cosines)
    allowed = "a Solution, or a list of them"
    points = validate.sequence("solution", solution, allowed, validate.instance, Solution, allowed)
    curve = sorted(points, key=lambda point: float(point.alpha))
    alphas = jnp.asarray([point.alpha for point in curve])
    return crossing(alphas, jnp.stack([point.cosine for point in curve]), level)


class Averaged(eqx.Module):
    """The mean of several runs of descent on one matrix.

    Attributes:
        weights: The mean S̄, (d, d).
        single: Estimation error of one run, averaged over the runs.
        error: Estimation error of S̄.
        extrapolated: Estimation error of the mean of infinitely many runs.
        stderr: Standard error of `single` over the runs.
    """

    weights: Array
    single: Array
    error: Array
    extrapolated: Array
    stderr: Array


def averaged(fit: Solution, teacher: ArrayLike) -> Averaged:
    r"""Average the matrices of several runs of descent, and measure the error of the mean.

        S̄ = (1/K) Σ_k Ŝ_k,   extrapolated = (K error(S̄) - error(one))/(K - 1)

    Args:
        fit: Solution of `train` with K >= 2 keys, of a matrix model.
        teacher: `data.teacher`.

    Returns:
        An `Averaged`.

    Raises:
        ValueError: For a single run, runs that did not stay finite, or a model whose estimates
            cannot be averaged.

    Example:
        >>> import jax, optax, jaxsmi as smi
        >>> model, key = smi.AttentionIndexed(2, 0.5), jax.random.key(0)
        >>> data = model.sample(key, dimension=12, alpha=0.2)
        >>> keys = jax.random.split(key, 4)
        >>> fit = smi.train(model, data, optax.adam(0.05), key=keys, steps=200)  # doctest: +SKIP
        >>> mean = smi.averaged(fit, data.teacher)  # doctest: +SKIP
        >>> bool(mean.error < mean.single)  # doctest: +SKIP
        True

    Cost:
        O(K d²).

    Source:
        [theory: descent, Eqs. (7) to (9)].
    """
    validate.instance("fit", fit, Solution, "a Solution of train")
    model, runs = fit.model, fit.result.shape
    check(model is not None, "fit", "a solution without its model", "a Solution of train")
    # factors are known up to a rotation only: their mean has no meaning
    reason = model.unsupported_reason("averages")
    if reason is not None:
        raise ValueError(reason)
    allowed = "at least two runs: train(..., key=jax.random.split(key, 16))"
    check(len(runs) == 1 and runs[0] >= 2, "fit", f"runs of shape {runs}", allowed)
    truth = validate.array("teacher", teacher, "data.teacher")
    matrices, K = jnp.asarray(fit.weights), runs[0]
    model.student.check_teacher(truth, matrices.shape[-1])
    # one lost run would spoil the mean of all
    failed = np.isin(np.asarray(fit.result), (Result.NONFINITE, Result.DIVERGED))
    shown = f"{failed.sum()} of {K} runs with code NONFINITE or DIVERGED"
    check(not failed.any(), "fit", shown, "runs whose weights stay finite")
    errors = jax.vmap(lambda S: model.metric.estimation_error(S, truth))(matrices)
    mean, single = jnp.mean(matrices, axis=0), jnp.mean(errors)
    error = model.metric.estimation_error(mean, truth)
    extrapolated = (K * error - single) / (K - 1)
    return Averaged(mean, single, error, extrapolated, standard_error(errors))
