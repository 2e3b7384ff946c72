r"""In which order things are learned: message passing and gradient methods on the same teacher and
data, side by side.

Equations here [TCDKZ25; theory: descent, Eqs. (5), (6)]: a layer p has been learned at the first
step (of message passing or of descent, or the first α of a curve) at which its cosine similarity
with the teacher, up to the symmetries, has reached a level c, between two records by linear
interpolation:

    t_p = t_k + (c - cos_p(t_k)) / (cos_p(t_{k+1}) - cos_p(t_k)) · (t_{k+1} - t_k),   inf if never.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.checks import UNIT_INTERVAL, Arguments, check
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution
from jaxsmi.descent.training import train
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.models.base import AbstractModel, model_argument

__all__ = ["LearningOrder", "crossing", "learned_at", "learning_order"]

_RANDOM = 1e-3  # the start of message passing beside descent from random weights


def crossing(steps: Array, cosines: Array, level: ArrayLike) -> Array:
    """First step at which cosines reach a level, records without a number left out.

    Args:
        steps: Of the records, (T,).
        cosines: (T, P).
        level: The level c.

    Returns:
        Steps (P,): inf where the level is never reached, NaN where there is no number at all.
    """
    known = jnp.isfinite(cosines)
    records = jnp.arange(len(steps))[:, None]
    last_known = lax.cummax(jnp.where(known, records, -1), axis=0)
    above = known & (cosines >= level)
    k = jnp.argmax(above, axis=0)
    before = jnp.take_along_axis(last_known, jnp.maximum(k - 1, 0)[None], 0)[0]
    before = jnp.where((k > 0) & (before >= 0), before, k)
    low = jnp.take_along_axis(cosines, before[None], 0)[0]
    high = jnp.take_along_axis(cosines, k[None], 0)[0]
    part = jnp.where(before < k, (level - low) / jnp.where(high > low, high - low, 1.0), 0.0)
    step = steps[before] + part * (steps[k] - steps[before])
    never = jnp.where(jnp.any(known, axis=0), jnp.inf, jnp.nan)
    return jnp.where(jnp.any(above, axis=0), step, never)


def learned_at(solution: Solution | Sequence[Solution], level: float = 0.5) -> Array:
    r"""When each index was learned: the first step, or the first α, at which its cosine reached a
    level.

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

    Cost:
        None.

    Source:
        [TCDKZ25], [theory: descent, Eqs. (5), (6)].
    """
    Arguments().number("level", level, UNIT_INTERVAL)
    if isinstance(solution, Solution):
        allowed = "a solution of gamp or train, with cosines in its history"
        check("cosine" in solution.history, "solution", solution.kind, allowed)
        steps = solution.history["step"]
        cosines = solution.history["cosine"]
        if steps.ndim == 1:
            return crossing(steps, cosines, level)
        return jax.vmap(lambda s, c: crossing(s, c, level))(steps, cosines)
    curve = sorted(solution, key=lambda point: float(point.alpha))
    check(len(curve) > 0, "solution", "none", "at least one")
    alphas = jnp.asarray([point.alpha for point in curve])
    return crossing(alphas, jnp.stack([_last_cosine(point) for point in curve]), level)


def _last_cosine(point: Solution) -> Array:
    """Cosines (P,) at the end of a solution."""
    if "cosine" in point.history:
        return jnp.asarray(point.cosine)
    rho = jnp.diagonal(point.overlap) + jnp.diagonal(point.covariance)
    return jnp.sqrt(jnp.maximum(jnp.diagonal(point.overlap), 0.0) / rho)


class LearningOrder(eqx.Module):
    """Several methods on one teacher.

    Attributes:
        solutions: Of each method, with a leading axis of runs.
        learned: When each index was learned, (runs, P) for each method.
        level: The cosine that counts as learned.
        alpha: Sample complexity of each method's data.
        seconds: Time that each method took.
    """

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
        """Indices in the order of their median time of learning, without those that fewer than half
        of the runs learned."""
        times = self.median(method)
        return [int(p) for p in np.argsort(times, kind="stable") if np.isfinite(times[p])]


def learning_order(
    model: AbstractModel,
    data: Dataset,
    methods: Mapping[str, Mapping[str, object]],
    *,
    key: PRNGKeyArray | None = None,
    seeds: int = 4,
    level: float = 0.5,
    progress: bool = False,
) -> LearningOrder:
    r"""Message passing and gradient methods on the same teacher and data: when does each learn
    what?

        t_p of each method and run, as `learned_at` says

    Args:
        model: The student.
        data: A `Dataset` with a teacher.
        methods: A name and the settings of each: with "optimizer" they go to `train` (all seeds in
            one vmapped run), with "theory": True to `state_evolution` (undamped, a step of it is
            one of message passing), else to `gamp`, whose start is random here, as theirs is;
            "alpha" takes the first αD samples; "model" is another student than `model`;
            "learner" makes message passing, or theory, those of `smi.Erm`.
        key: Random key, required.
        seeds: Runs of each method, from different random starts. Default 4.
        level: The cosine that counts, in (0, 1). Default 0.5.
        progress: Show bars on stderr. Default False.

    Returns:
        A `LearningOrder`; `plotting.learning_order` draws it.

    Raises:
        ValueError: Without a teacher, for an alpha the data do not reach, or what gamp and train
            refuse.

    Example:
        >>> import jax, optax, jaxsmi as smi
        >>> model, key = smi.links.linear(0.1), jax.random.key(0)
        >>> data = model.sample(key, dimension=50, alpha=4.0)
        >>> methods = {"GAMP": {"alpha": 2.0}, "Adam": {"optimizer": optax.adam(0.1), "steps": 100}}
        >>> sorted(
        ...     smi.learning_order(model, data, methods, key=key, seeds=2).learned
        ... )  # doctest: +SKIP
        ['Adam', 'GAMP']

    Cost:
        That of the runs.

    Source:
        [TCDKZ25], [theory: descent, sections 1 and 2].
    """
    arguments = Arguments()
    arguments.instance("data", data, Dataset, "a Dataset with a teacher")
    check(data.teacher is not None, "data.teacher", None, "a teacher: cosines are measured with it")
    arguments.count("seeds", seeds)
    arguments.number("level", level, UNIT_INTERVAL)
    check(len(methods) > 0, "methods", dict(methods), "at least one, such as {'GAMP': {}}")
    keys = jax.random.split(arguments.key("key", key), seeds)
    solutions: dict[str, Solution] = {}
    alphas: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for name, given in methods.items():
        settings = dict(given)
        part = _first_samples(model, data, name, settings.pop("alpha", None))
        student = arguments.instance(
            f"methods[{name!r}]['model']", settings.pop("model", model), AbstractModel, "a model"
        )
        begin = time.perf_counter()
        solutions[name] = _runs(student, part, keys, settings, progress)
        jax.block_until_ready(solutions[name].overlap)
        seconds[name] = time.perf_counter() - begin
        alphas[name] = model.complexity(part.samples, part.dimension)
    learned = {name: learned_at(solution, level) for name, solution in solutions.items()}
    return LearningOrder(solutions, learned, level, alphas, seconds)


def _first_samples(model: AbstractModel, data: Dataset, name: str, alpha: object) -> Dataset:
    """The data up to the sample complexity of a method (None: all)."""
    if alpha is None:
        return data
    most = model.complexity(data.samples, data.dimension)
    samples = round(float(alpha) / model.complexity(1, data.dimension))  # pyright: ignore
    allowed = f"a number in (0, {most:g}], what the data reach"
    check(1 <= samples <= data.samples, f"methods[{name!r}]['alpha']", alpha, allowed)
    return data.first(samples)


def _runs(
    student: AbstractModel, data: Dataset, keys: PRNGKeyArray, settings: dict, progress: bool
) -> Solution:
    """All runs of one method (theory: one), with a leading axis."""
    if "optimizer" in settings:
        return train(student, data, key=keys, progress=progress, **settings)
    if settings.pop("theory", False):
        return _theory(student, data, keys[0], settings, progress)
    start = _RANDOM if "learner" not in settings else None
    settings = {"init": start, **settings}
    runs = [gamp(student, data, key=key, progress=progress, **settings) for key in keys]
    bare = [dataclasses.replace(run, model=None) for run in runs]
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *bare
    )
    return dataclasses.replace(stacked, model=runs[0].model)


def _theory(
    model: AbstractModel, data: Dataset, key: PRNGKeyArray, settings: dict, progress: bool
) -> Solution:
    """State evolution step by step, with the cosines that runs tend to in its history."""
    law = model_argument(model if data.model is None else data.model)
    settings = {"newton": False, **settings}
    solution = state_evolution(law, data.alpha, key=key, progress=progress, **settings)
    history = dict(solution.history)
    rho = jnp.diagonal(law.prior.second_moment(law.indices))
    Q = jnp.diagonal(history["overlap"], axis1=-2, axis2=-1)
    if "teacher_overlap" in history:
        shape = history["teacher_overlap"].shape[-2:]
        allowed = "a learner whose student has as many indices as the teacher"
        check(shape[0] == shape[1], "methods", f"theory of M {shape}", allowed)
        M = jnp.diagonal(history["teacher_overlap"], axis1=-2, axis2=-1)
        history["cosine"] = jnp.abs(M) / jnp.sqrt(Q * rho)
    else:
        history["cosine"] = jnp.sqrt(jnp.maximum(Q, 0.0) / rho)
    bare = dataclasses.replace(solution, history=history, model=None, state=None)
    batched = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, bare)
    return dataclasses.replace(batched, model=law)
