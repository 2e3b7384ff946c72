"""In which order things are learned: message passing, gradient methods and their theories on one
teacher, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.data import Dataset
from jaxsmi.core.display import Described, describe, number
from jaxsmi.core.options import Iteration
from jaxsmi.core.solution import Solution
from jaxsmi.core.validate import UNIT_INTERVAL, check
from jaxsmi.descent.analysis import learned_at
from jaxsmi.descent.options import Monitor
from jaxsmi.descent.training import train
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.models.base import AbstractModel
from jaxsmi.sgd.multi_pass import descent_theory

# Size of the start of message passing beside descent: random, as the start of descent is. Larger
# ones would know the teacher by chance at small D (empirical).
_RANDOM = 1e-3


class LearningOrder(Described):
    """Several methods on one teacher.

    Attributes:
        solutions: Of each method, with a leading axis of runs.
        learned: Step at which each index was learned, (runs, P) for each method.
        level: The cosine that counts as learned.
        alpha: Sample complexity of each method's data.
    """

    solutions: dict[str, Solution]
    learned: dict[str, Array]
    level: float
    alpha: dict[str, float]

    def _text(self) -> str:
        rows = []
        for method, solution in self.solutions.items():
            times = self.median(method)
            own = [number(time) if np.isfinite(time) else "not learned" for time in times]
            order = ", then ".join(str(p + 1) for p in self.order(method)) or "none"
            rows.append([method, number(self.alpha[method]), *own, order, str(len(solution.steps))])
        indices = [f"index {p + 1}" for p in range(len(rows[0]) - 4)]
        return describe(
            f"LearningOrder: steps until half of the runs reach a cosine of {self.level:g}",
            rows=[["method", "α", *indices, "order", "runs"], *rows],
            remark="jaxsmi.workbench.plotting.learning_order draws it.",
        )

    def median(self, method: str) -> np.ndarray:
        """Step at which half of the runs had learned each index (P,); inf if fewer did."""
        # the lower median: a run that never learned is infinite, and so would be a mean with it
        times = np.sort(np.asarray(self.learned[method]), axis=0)
        return times[(len(times) - 1) // 2]

    def order(self, method: str) -> list[int]:
        """Indices by their median step, without those that fewer than half of the runs learned."""
        times = self.median(method)
        return [int(p) for p in np.argsort(times, kind="stable") if np.isfinite(times[p])]


def learning_order(
    model: AbstractModel,
    data: Dataset,
    methods: Mapping[str, Mapping[str, Any]],
    *,
    key: PRNGKeyArray,
    seeds: int = 4,
    level: float = 0.5,
    progress: bool = False,
) -> LearningOrder:
    r"""Run message passing and gradient methods on one teacher, and find when each learns an index.

        t_p of each method and run, as `learned_at` computes it

    Args:
        model: The student.
        data: A `Dataset` with a teacher.
        methods: Settings by name. With "optimizer" they are those of `train` (all seeds in one
            vmapped run), with "theory": True those of `state_evolution` (undamped: a step of it is
            one of message passing), with "rate" those of `descent_theory` (from overlaps 1/√D with
            the teacher by default), else those of `gamp`, from a random start. "alpha" takes the
            first αD samples; "model" is another student.
        key: Random key.
        seeds: Runs of each method, from different random starts, an integer >= 1. Default 4.
        level: The cosine that counts, in (0, 1). Default 0.5.
        progress: Show bars on stderr. Default False.

    Returns:
        A `LearningOrder`; `plotting.learning_order` draws it.

    Raises:
        ValueError: Without a teacher, for an alpha that the data do not reach, or from the methods.

    Example:
        >>> import jax, optax, jaxsmi as smi
        >>> model, key = smi.links.linear(0.1), jax.random.key(0)
        >>> data = model.sample(key, dimension=50, alpha=4.0)
        >>> methods = {"GAMP": {"alpha": 2.0}, "Adam": {"optimizer": optax.adam(0.1), "steps": 100}}
        >>> order = smi.learning_order(model, data, methods, key=key, seeds=2)  # doctest: +SKIP
        >>> order.order("GAMP")  # doctest: +SKIP
        [0]

    Cost: that of the runs. Source: [TCDKZ25], [theory: descent, sections 1 and 2].
    """
    validate.instance("model", model, AbstractModel, "a model")
    validate.instance("data", data, Dataset, "a smi.Dataset")
    check(data.teacher is not None, "data.teacher", None, "a teacher: cosines are measured with it")
    allowed = "at least one name with its settings, such as {'GAMP': {}}"
    named = isinstance(methods, Mapping) and len(methods) > 0
    named = named and all(isinstance(settings, Mapping) for settings in methods.values())
    check(named, "methods", methods, allowed)
    keys = jax.random.split(validate.key("key", key), validate.count("seeds", seeds))
    validate.number("level", level, UNIT_INTERVAL)
    progress = validate.flag("progress", progress)
    solutions, alphas = {}, {}
    for name, given in methods.items():
        settings = dict(given)
        part = _first_samples(model, data, name, settings.pop("alpha", None))
        alphas[name] = part.samples / model.design.entries(part.dimension)
        law: Any = model if data.model is None else data.model
        if "rate" in settings:
            others = sorted({"optimizer", "theory"} & settings.keys())
            check(not others, f"methods[{name!r}]", f"rate beside {others}", "one of them")
            start = (part.dimension**-0.5, 1.0)
            settings = {"start": start, "student": settings.pop("model", model)} | settings
            path = descent_theory(law, part.alpha, key=keys[0], **settings)
            solutions[name] = _single(path, model)
        elif settings.pop("theory", False):
            solutions[name] = _theory(law, part, keys[0], settings | {"progress": progress})
        else:
            student = settings.pop("model", model)
            solutions[name] = _learn(student, part, keys, settings, progress)
    learned = {name: learned_at(solution, level) for name, solution in solutions.items()}
    return LearningOrder(solutions, learned, level, alphas)


def _first_samples(model: AbstractModel, data: Dataset, name: str, alpha: Any) -> Dataset:
    """The data up to the sample complexity of a method (None: all)."""
    if alpha is None:
        return data
    # the student counts: its α may be n/d² where the teacher's is N/D
    entries = model.design.entries(data.dimension)
    most, samples = data.samples / entries, round(float(alpha) * entries)
    allowed = f"a number in (0, {most:g}], the α of the data"
    check(1 <= samples <= data.samples, f"methods[{name!r}]['alpha']", alpha, allowed)
    return data.first(samples)


def _learn(
    student: AbstractModel,
    data: Dataset,
    keys: PRNGKeyArray,
    settings: dict[str, Any],
    progress: bool,
) -> Solution:
    """All runs of one method, with a leading axis."""
    if "optimizer" in settings:
        monitor = dataclasses.replace(settings.pop("monitor", Monitor()), progress=progress)
        return train(student, data, key=keys, monitor=monitor, **settings)
    settings = {"start": None if "learner" in settings else _RANDOM, **settings}
    runs = [gamp(student, data, key=key, progress=progress, **settings) for key in keys]
    # one after the other: vmapped, all would take the steps of the slowest
    bare = [dataclasses.replace(run, model=None) for run in runs]
    stack = lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0]
    return dataclasses.replace(jax.tree.map(stack, *bare), model=student)


def _theory(law: Any, data: Dataset, key: PRNGKeyArray, settings: dict[str, Any]) -> Solution:
    """State evolution step by step, with the cosines that runs tend to in its history."""
    # the trajectory is the result: Newton's steps would leave it before its end
    plain = dataclasses.replace(settings.pop("iteration", Iteration()), newton=False)
    solution = state_evolution(law, data.alpha, key=key, iteration=plain, **settings)
    shape = solution.history.get("teacher_overlap", solution.overlap).shape[-2:]
    allowed = "a learner whose student has as many indices as the teacher"
    check(shape[0] == shape[1], "methods", f"theory of M {shape}", allowed)
    history = {**solution.history, "cosine": solution.cosines(solution.history)}
    return _single(dataclasses.replace(solution, history=history), law)


def _single(solution: Solution, model: Any) -> Solution:
    """A theory as a batch of one run."""
    # its arrays alone get the axis of runs: the model is common to all
    bare = dataclasses.replace(solution, model=None, state=None)
    batched = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, bare)
    return dataclasses.replace(batched, model=model)
