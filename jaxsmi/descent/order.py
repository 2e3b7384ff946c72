r"""In which order things are learned: message passing and gradient methods on the same teacher and data, side by side.

Equations here [TCDKZ25; theory: descent, Eqs. (5), (6)]: layer p has been learned at the first step (of GAMP or of descent,
or the first α of a curve) at which its cosine similarity with the teacher, up to the symmetries, has reached c, between two
records by linear interpolation:

    t_p = t_k + (c - cos_p(t_k)) / (cos_p(t_{k+1}) - cos_p(t_k)) · (t_{k+1} - t_k),   inf if it never does.

Averaged descent [theory: descent, Eqs. (7) to (9)]:
S̄ = (1/K) Σ_k Ŝ_k over runs from K starts on the same data. If each run ended at a sample of
the posterior, error(one) = 2V and error(S̄) = V (1 + 1/K), so that V = (K error(S̄) - error(one))/(K - 1).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.checks import check
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution
from jaxsmi.descent.training import train
from jaxsmi.inference.message_passing import gamp


def crossing(steps: Array, cosines: Array, level: Any) -> Array:
    """First step (P,) at which cosines (T, P) reach `level`, records without a number aside; inf where they never do, NaN
    where there is no number at all."""
    known = jnp.isfinite(cosines)
    last = lax.cummax(
        jnp.where(known, jnp.arange(len(steps))[:, None], -1), axis=0
    )  # the last record with a number
    above = known & (cosines >= level)
    k = jnp.argmax(above, axis=0)
    before = jnp.take_along_axis(last, jnp.maximum(k - 1, 0)[None], 0)[0]
    before = jnp.where((k > 0) & (before >= 0), before, k)
    low, high = (
        jnp.take_along_axis(cosines, before[None], 0)[0],
        jnp.take_along_axis(cosines, k[None], 0)[0],
    )
    part = jnp.where(before < k, (level - low) / jnp.where(high > low, high - low, 1.0), 0.0)
    at = steps[before] + part * (steps[k] - steps[before])
    return jnp.where(
        jnp.any(above, axis=0), at, jnp.where(jnp.any(known, axis=0), jnp.inf, jnp.nan)
    )


def learned_at(solution: Any, level: float = 0.5) -> Array:
    r"""When each index was learned: the first step, or the first α, at which its cosine reached `level` (module docstring).

    Arguments: `solution` of gamp or train (its history; a batch from vmap too), or solutions at several α (of gamp: the last
    cosine; of state evolution: √(Q_pp/ρ_p), to which the cosine of GAMP tends); `level` in (0, 1).
    Returns: steps or α, (P,) or (runs, P); inf where it was never reached, NaN without cosines (another number of rows). Of
    ranks above one the cosines are those of the spans of the rows: a layer may pass and still give other labels.
    Raises: ValueError for a level outside (0, 1), or solutions without cosines. Cost: none. Source:
    [theory: descent, Eqs. (5), (6)].
    Example:
    >>> import jax, optax, jaxsmi as smi
    >>> model, key = smi.links.linear(0.0), jax.random.key(0)
    >>> fit = smi.train(
    ...     model, model.sample(key, dimension=50, alpha=4.0), optax.adam(0.1), key=key, steps=100
    ... )
    >>> bool(smi.learned_at(fit, 0.9)[0] < 50)
    True
    """
    check(0.0 < level < 1.0, "level", level, "a cosine in (0, 1)")
    if isinstance(solution, Solution):
        has = "cosine" in solution.history
        check(
            has,
            "solution",
            solution.kind,
            "a solution of gamp or train, with cosines in its history",
        )
        steps, cosines = solution.history["step"], solution.history["cosine"]
        if steps.ndim == 1:
            return crossing(steps, cosines, level)
        return jax.vmap(lambda s, c: crossing(s, c, level))(steps, cosines)
    curve = sorted(solution, key=lambda point: float(point.alpha))
    check(len(curve) > 0, "solution", "none", "at least one")
    return crossing(
        jnp.asarray([point.alpha for point in curve]),
        jnp.stack([_end(point) for point in curve]),
        level,
    )


def _end(point: Solution) -> Array:
    """Cosines (P,) at the end of a solution."""
    if "cosine" in point.history:
        return jnp.asarray(point.cosine)
    rho = jnp.diagonal(point.overlap) + jnp.diagonal(point.covariance)
    return jnp.sqrt(jnp.maximum(jnp.diagonal(point.overlap), 0.0) / rho)


class LearningOrder(eqx.Module):
    """Several methods on one teacher. `solutions`: of each method, with a leading axis of runs; `learned` (runs, P): when each
    index was learned; `level`: the cosine that counts as learned; `alpha`, and `seconds` taken, of each method."""

    solutions: dict[str, Solution]
    learned: dict[str, Array]
    level: float
    alpha: dict[str, float]
    seconds: dict[str, float]

    def median(self, method: str) -> np.ndarray:
        """When half of the runs had learned each index (P,): inf where fewer than half did."""
        times = np.sort(np.asarray(self.learned[method]), axis=0)
        return times[(len(times) - 1) // 2]

    def order(self, method: str) -> list[int]:
        """Indices in the order of their median time of learning; those that fewer than half of the runs learned are left out."""
        times = self.median(method)
        return [int(p) for p in np.argsort(times, kind="stable") if np.isfinite(times[p])]


def learning_order(
    model: Any,
    data: Dataset,
    methods: Mapping[str, Mapping[str, Any]],
    *,
    key: Array | None = None,
    seeds: int = 4,
    level: float = 0.5,
    progress: bool = False,
) -> LearningOrder:
    r"""GAMP and gradient methods on the same teacher and data: when does each learn what?

    Arguments: `model`; `data` with a teacher; `methods`: a name and the settings of each: with "optimizer" they go to
    `train` (all seeds in one vmapped run), else to `gamp`; "alpha" takes the first αD samples; "model": another
    student than `model`; `key`; `seeds`: runs of each method, from different random starts; `level`: the cosine that counts.
    Returns: a `LearningOrder`; `plotting.learning_order` draws it.
    Raises: ValueError without a teacher, for an alpha the data do not reach, or what gamp and train refuse.
    Cost: that of the runs. Source: [TCDKZ25], [theory: descent, sections 1 and 2].
    Example:
    >>> import jax, optax, jaxsmi as smi
    >>> model, key = smi.links.linear(0.1), jax.random.key(0)
    >>> data = model.sample(key, dimension=50, alpha=4.0)
    >>> methods = {"GAMP": {"alpha": 2.0}, "Adam": {"optimizer": optax.adam(0.1), "steps": 100}}
    >>> sorted(smi.learning_order(model, data, methods, key=key, seeds=2).learned)  # doctest: +SKIP
    ['Adam', 'GAMP']
    """
    check(data.teacher is not None, "data.teacher", None, "a teacher: cosines are measured with it")
    check(seeds >= 1, "seeds", seeds, "an integer >= 1")
    check(0.0 < level < 1.0, "level", level, "a cosine in (0, 1)")
    check(len(methods) > 0, "methods", dict(methods), "at least one, such as {'GAMP': {}}")
    key = jax.random.key(0) if key is None else key
    solutions, alphas, seconds = {}, {}, {}
    for name, settings in methods.items():
        settings = dict(settings)
        alpha, student = settings.pop("alpha", None), settings.pop("model", model)
        part = data
        if alpha is not None:
            most = model.complexity(data.samples, data.dimension)
            chosen = round(alpha / model.complexity(1, data.dimension))
            allowed = f"a number in (0, {most:g}], what the data reach"
            check(1 <= chosen <= data.samples, f"methods[{name!r}]['alpha']", alpha, allowed)
            part = data.first(chosen)
        keys, begin = jax.random.split(key, seeds), time.perf_counter()
        if "optimizer" in settings:
            solutions[name] = train(student, part, key=keys, progress=progress, **settings)
        else:
            runs = [gamp(student, part, key=k, progress=progress, **settings) for k in keys]
            solutions[name] = _stacked(runs)
        jax.block_until_ready(solutions[name].weights)
        alphas[name], seconds[name] = (
            model.complexity(part.samples, part.dimension),
            time.perf_counter() - begin,
        )
    learned = {name: learned_at(solution, level) for name, solution in solutions.items()}
    return LearningOrder(solutions, learned, level, alphas, seconds)


def _stacked(runs: Sequence[Solution]) -> Solution:
    bare = [dataclasses.replace(run, model=None) for run in runs]
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *bare
    )
    return dataclasses.replace(stacked, model=runs[0].model)
