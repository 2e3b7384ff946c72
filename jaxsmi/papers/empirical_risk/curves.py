"""What the figures share: theory of a learner along α, its numbers as arrays, and runs.

No equation lives here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import jax
import numpy as np
from tqdm import tqdm

from jaxsmi.core.codes import Result
from jaxsmi.core.results import LearnerSolution, Solution
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.learners.erm import Erm
from jaxsmi.models.index import AbstractIndexModel

__all__ = ["arrays_of", "column", "curve_of", "error_bars", "followed", "runs_of", "theory_key"]


def theory_key() -> jax.Array:
    """One key for all theory here: common random numbers along a curve."""
    return jax.random.key(0)


def curve_of(
    model: AbstractIndexModel, alphas: np.ndarray, learner: Erm, samples: int | None = None
) -> list[LearnerSolution]:
    """Theory of a learner at several α."""
    settings = {"learner": learner, "key": theory_key(), "samples": samples}
    points = [state_evolution(model, float(alpha), **settings) for alpha in alphas]
    return [cast(LearnerSolution, point) for point in points]


def followed(model: AbstractIndexModel, alphas: np.ndarray, learner: Erm) -> list[LearnerSolution]:
    """The same, each begun where the last ended: V is far from any other start for a small λ."""
    curve: list[LearnerSolution] = []
    for alpha in alphas:
        begin = {}
        if curve:
            last = curve[-1]
            begin = {"q0": last.overlap, "m0": last.teacher_overlap, "v0": last.covariance}
        point = state_evolution(model, float(alpha), learner=learner, key=theory_key(), **begin)
        curve.append(cast(LearnerSolution, point))
    return curve


def column(curve: Sequence[Solution], quantity: str) -> np.ndarray:
    """A number of every solution; of matrices the first entry."""
    return np.array([float(np.ravel(getattr(point, quantity))[0]) for point in curve])


def error_bars(curve: Sequence[LearnerSolution], quantity: str) -> np.ndarray:
    """The standard errors of `column`."""
    each = [p.stderr if quantity == "overlap" else p.stderrs[quantity] for p in curve]
    return np.array([float(np.ravel(bar)[0]) for bar in each])


def arrays_of(curve: Sequence[LearnerSolution], name: str) -> dict[str, np.ndarray]:
    """What is stored of a curve; NaN where no fixed point was reached."""
    result = column(curve, "result")
    lost = ~np.isin(result, (Result.SUCCESS, Result.UNSTABLE))
    arrays = {f"{name}_result": result}
    for quantity in ("overlap", "teacher_overlap", "covariance", "energy", "error"):
        arrays[f"{name}_{quantity}"] = np.where(lost, np.nan, column(curve, quantity))
        arrays[f"{name}_{quantity}_stderr"] = error_bars(curve, quantity)
    for quantity in ("stability", "jump_fraction"):
        arrays[f"{name}_{quantity}"] = column(curve, quantity)
    return arrays


def runs_of(
    model: AbstractIndexModel,
    at: np.ndarray,
    dimension: int,
    seeds: int,
    progress: bool,
    measure: Callable[..., float],
) -> np.ndarray:
    """A number (α, seeds) of runs, each on its own data: `measure(data, key)`."""
    values = np.full((len(at), seeds), np.nan)
    bar = tqdm(total=values.size, desc=f"runs, D={dimension}", disable=not progress, leave=False)
    for i, alpha in enumerate(at):
        for seed in range(seeds):
            data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
            data = model.sample(data_key, dimension=dimension, alpha=float(alpha))
            values[i, seed] = measure(data, key)
            bar.update()
    return values
