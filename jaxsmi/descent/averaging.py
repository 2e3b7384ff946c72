"""TODO descent.averaging."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.checks import Ability, check, require
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Solution


class Averaged(NamedTuple):
    """Several runs of descent on one matrix. `weights` S̄ (d, d); estimation errors: `single`, the mean of the runs, `error` of
    S̄, and `extrapolated` to infinitely many runs; `stderr` of `single` over the runs."""

    weights: Array
    single: Array
    error: Array
    extrapolated: Array
    stderr: Array


def averaged(fit: Solution, teacher: Array) -> Averaged:
    r"""Averaged gradient descent: the mean of the matrices that runs from different starts found on the same data.

    S̄ = (1/K) Σ_k Ŝ_k,   extrapolated = (K error(S̄) - error(one))/(K - 1)

    Arguments: `fit` of `train` with K >= 2 keys, of a matrix model; `teacher`: `data.teacher`.
    Returns: an `Averaged`. Factors W are never averaged: they are known up to a rotation only.
    Raises: ValueError for a single run, or a model without a matrix. Cost: O(K d²). Source: [theory: descent, Eqs. (7) to (9)].
    Example:
    >>> import jax, optax, jaxsmi as smi
    >>> model, key = smi.AttentionIndexed(2, 0.5), jax.random.key(0)
    >>> data = model.sample(key, dimension=12, alpha=0.2)
    >>> fit = smi.train(
    ...     model, data, optax.adam(0.05), key=jax.random.split(key, 4), steps=200
    ... )  # doctest: +SKIP
    >>> mean = smi.averaged(fit, data.teacher)  # doctest: +SKIP
    >>> bool(mean.error < mean.single)  # doctest: +SKIP
    True
    """
    model, many = fit.model, fit.result.ndim == 1 and fit.result.shape[0] >= 2
    require(model, Ability.AVERAGES)
    check(
        many,
        "fit",
        f"runs of shape {fit.result.shape}",
        "at least two runs: train(..., key=jax.random.split(key, 16))",
    )
    check(teacher is not None, "teacher", None, "data.teacher")
    matrices = jnp.asarray(fit.weights)
    model.check_teacher(teacher, matrices.shape[1:])
    lost = np.asarray(fit.result) == Result.NONFINITE
    check(
        not np.any(lost),
        "fit",
        f"{int(lost.sum())} of {len(lost)} runs with code NONFINITE",
        "runs that stayed finite",
    )
    K = fit.result.shape[0]
    errors = jax.vmap(lambda S: model.estimation_error(S, teacher))(matrices)
    mean = jnp.mean(matrices, axis=0)
    single, error = jnp.mean(errors), model.estimation_error(mean, teacher)
    return Averaged(
        mean, single, error, (K * error - single) / (K - 1), jnp.std(errors, ddof=1) / np.sqrt(K)
    )
