r"""Averaged gradient descent: the mean of the matrices that runs from different starts end at, on
the same data.

    S̄ = (1/K) Σ_k Ŝ_k,      V = (K error(S̄) - error(one))/(K - 1)

If each run ended at a sample of the posterior, error(one) = 2V and error(S̄) = V (1 + 1/K), which
gives the second equation. Factors W are never averaged: they are known up to a rotation only.
Source: [theory: descent, Eqs. (7) to (9)].
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import check


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
    check(not failed.any(), "fit", shown, "runs that stayed finite")
    errors = jax.vmap(lambda S: model.metric.estimation_error(S, truth))(matrices)
    mean, single = jnp.mean(matrices, axis=0), jnp.mean(errors)
    error = model.metric.estimation_error(mean, truth)
    extrapolated = (K * error - single) / (K - 1)
    return Averaged(mean, single, error, extrapolated, jnp.std(errors, ddof=1) / np.sqrt(K))
