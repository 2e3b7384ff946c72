"""TODO thresholds.weak."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.codes import Result
from jaxsmi.core.results import Threshold
from jaxsmi.numerics.implicit import derivative, differentiable
from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.growth import check_problem, growth

# Weak recovery -------------------------------------------------------------------------------------------------------------


@eqx.filter_jit
def _weak_recovery(model: Any, key: Array, samples: int, R: int) -> Threshold:
    S = model.prior.second_moment(model.indices)
    seen = growth(model, jnp.zeros_like(S), S, jnp.eye(len(S), dtype=S.dtype), key, samples, R)
    vectors, known = seen.known()
    trivial, rate, never = jnp.any(known), seen.rate, seen.never
    alpha = jnp.where(trivial, 0.0, jnp.where(never, jnp.inf, 1.0 / jnp.where(never, 1.0, rate)))
    fixed = trivial | never
    # the mean of 1/λ_r is biased; the first-order replicas are not
    replicas = jnp.where(
        fixed, alpha, alpha - (seen.each - rate) * jnp.where(fixed, 0.0, alpha) ** 2
    )
    stderr = jnp.where(
        fixed, 0.0, jnp.std(seen.each, ddof=1) / np.sqrt(R) * jnp.where(fixed, 0.0, alpha) ** 2
    )
    grows = (vectors * known) @ vectors.T
    subspace = jnp.where(trivial, grows, jnp.where(never, 0.0, seen.subspace))
    root = sqrt_psd(S)
    subspace = root @ subspace @ root  # of the signal, not of the whitened one
    subspace = subspace / jnp.maximum(jnp.trace(subspace), 1e-300)
    finite = jnp.isfinite(rate) & jnp.all(jnp.isfinite(seen.start))
    code = jnp.where(seen.inaccurate > 0.01, Result.INACCURATE, Result.SUCCESS)
    code = jnp.where(finite, code, Result.NONFINITE)
    alpha, stderr, replicas = (jnp.where(finite, x, jnp.nan) for x in (alpha, stderr, replicas))
    return Threshold(alpha, stderr, replicas, subspace, jnp.zeros_like(S), code)


def weak_recovery(
    model: Any, *, key: Array, samples: int = 2**16, randomisations: int = 16
) -> Threshold:
    r"""The smallest α at which anything is learned from labels alone: α_c = 1/λ_max(F) (module docstring).

    F(X) = E Σ_{m,n} G_{mn} X G_{mn}ᵀ,  G = E[zzᵀ|y] - I at ω = 0

    Arguments: `model`: any index model with a channel and a prior of mean zero; `key`: common random numbers, so that two
    calls with one key differ smoothly; `samples` in all, split over `randomisations` independent nets whose spread is the
    error bar (16 or more: G has heavy tails, and Student's law of `Threshold.interval` needs the degrees of freedom).
    Returns: a `Threshold`: `alpha` 0 where a direction is learned at any α > 0 (E[z|y] ≠ 0), inf where nothing grows;
    `subspace` (P, P) the directions learned. Differentiable, forwards and backwards, in every array of the model.
    Codes: SUCCESS, INACCURATE, NONFINITE. Raises: ValueError for a model without inference or a prior with a mean.
    Cost: `samples` posteriors: 2^16 of two-layer attention take about 2 s on one core after compilation.
    Source: [TDDZLK24], [TCDKZ25], [theory: multi-index, Eqs. (52) to (54)].
    Example:
    >>> import jax, jaxsmi as smi
    >>> threshold = smi.weak_recovery(
    ...     smi.links.phase_retrieval(), key=jax.random.key(0), samples=2**13
    ... )
    >>> round(float(threshold.alpha), 1)
    0.5
    """
    check_problem(model, samples, randomisations)
    each = power_of_two(max(samples // randomisations, 2))

    def solve(model: Any, key: Array) -> Threshold:
        return _weak_recovery(model, key, each, randomisations)

    def push(model: Any, key: Array, _: Threshold, directions: list[Array]) -> Any:
        return derivative(lambda m: solve(m, key), model, directions)

    return differentiable(solve, push, model, key)
