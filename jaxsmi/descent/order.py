r"""When each index is learned, by message passing or by descent.

Equations here [TCDKZ25; theory: descent, Eqs. (5), (6)]: a layer p has been learned at the first
step (of message passing or of descent, or the first α of a curve) at which its cosine similarity
with the teacher, up to the symmetries, has reached a level c, between two records by linear
interpolation:

    t_p = t_k + (c - cos_p(t_k)) / (cos_p(t_{k+1}) - cos_p(t_k)) · (t_{k+1} - t_k),   inf if never.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import UNIT_INTERVAL, check


def crossing(steps: Array, cosines: Array, level: ArrayLike) -> Array:
    """First step at which cosines reach a level; records that are not finite are skipped.

    Args:
        steps: Of the records, (T,).
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
            different α (of gamp the last cosine; of state evolution √(Q_pp/ρ_p), to which the
            cosine of message passing tends).
        level: The cosine c in (0, 1). Default 0.5.

    Returns:
        Steps or α, (P,) or (runs, P): inf where the level was never reached, NaN without cosines (a
        teacher of another number of rows). Of ranks above one the cosines are those of the spans of
        the rows: a layer may pass and still give other labels.

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

    def cosine(point: Solution) -> Array:
        if "cosine" in point.history:
            return jnp.asarray(point.cosine)
        # of theory: cos² → Q_pp/ρ_p, with ρ = Q + V
        rho = jnp.diagonal(point.overlap) + jnp.diagonal(point.covariance)
        return jnp.sqrt(jnp.maximum(jnp.diagonal(point.overlap), 0.0) / rho)

    return crossing(alphas, jnp.stack([cosine(point) for point in curve]), level)
