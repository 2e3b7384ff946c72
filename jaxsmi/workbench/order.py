"""In which order things are learned: message passing, gradient methods and their theories on one
teacher, side by side.

No equation lives here.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import checked, flag, mapping, optional, random_key, scalar, whole
from jaxsmi.core.checks import UNIT_INTERVAL, Arguments, check
from jaxsmi.core.data import Dataset, is_dataset
from jaxsmi.core.options import Iteration
from jaxsmi.core.results import Solution
from jaxsmi.core.shown import Shown, number, readable
from jaxsmi.descent.options import Monitor
from jaxsmi.descent.order import learned_at
from jaxsmi.descent.training import train
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.models.base import AbstractModel, is_model, model_argument
from jaxsmi.models.teacher_student import AbstractTeacher
from jaxsmi.sgd.problem import Initial
from jaxsmi.sgd.simulation import simulate

__all__ = ["LearningOrder", "learning_order"]

_RANDOM = 1e-3  # the start of message passing beside descent from random weights


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

    def __repr__(self) -> str:
        return readable(self, self._shown)

    def _repr_html_(self) -> str:
        return self._shown().html()

    def _shown(self) -> Shown:
        """What a reader sees (`core.shown`)."""
        rows = []
        for method, solution in self.solutions.items():
            times = self.median(method)
            own = [number(time) if np.isfinite(time) else "not learned" for time in times]
            order = ", then ".join(str(p + 1) for p in self.order(method)) or "none"
            rows.append([method, number(self.alpha[method]), *own, order, str(len(solution.steps))])
        indices = [f"index {p + 1}" for p in range(len(rows[0]) - 4)]
        return Shown(
            f"LearningOrder: steps until half of the runs reach a cosine of {self.level:g}",
            header=["method", "α", *indices, "order", "runs"],
            rows=rows,
            remark="jaxsmi.workbench.plotting.learning_order draws it.",
        )

    def median(self, method: str) -> np.ndarray:
        """When half of the runs had learned each index (P,): inf where fewer than half did."""
        times = np.sort(np.asarray(self.learned[method]), axis=0)
        return times[(len(times) - 1) // 2]

    def order(self, method: str) -> list[int]:
        """Indices in the order of their median time of learning, without those that fewer than half
        of the runs learned."""
        times = self.median(method)
        return [int(p) for p in np.argsort(times, kind="stable") if np.isfinite(times[p])]


@checked(
    model=is_model,
    data=is_dataset,
    methods=mapping("settings by method: {'gamp': {}}"),
    key=optional(random_key),
    seeds=whole(),
    level=scalar(UNIT_INTERVAL),
    progress=optional(flag),
)
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
            one of message passing), with "online": {..} these settings, and how many "runs", to
            `smi.sgd.simulate` (fresh samples of the same teacher at every step), else to `gamp`,
            whose start is random here, as theirs is; "alpha" takes the first αD samples; "model" is
            another student than `model`; "learner" makes message passing, or theory, those of
            `smi.Erm`.
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
    check(data.teacher is not None, "data.teacher", None, "a teacher: cosines are measured with it")
    arguments.number("level", level, UNIT_INTERVAL)
    allowed = "at least one name with its settings, such as {'GAMP': {}}"
    named = isinstance(methods, Mapping) and len(methods) > 0
    check(
        named and all(isinstance(x, Mapping) for x in methods.values()), "methods", methods, allowed
    )
    keys = jax.random.split(arguments.key("key", key), seeds)
    solutions: dict[str, Solution] = {}
    alphas: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for name, given in methods.items():
        settings = dict(given)
        _known(name, settings)
        part = _first_samples(model, data, name, settings.pop("alpha", None))
        student = arguments.instance(
            f"methods[{name!r}]['model']", settings.pop("model", model), AbstractModel, "a model"
        )
        begin = time.perf_counter()
        if "online" in settings:
            solutions[name] = _online(model, student, part, keys, settings["online"], progress)
        else:
            solutions[name] = _runs(student, part, keys, settings, progress)
        jax.block_until_ready(solutions[name].overlap)
        seconds[name] = time.perf_counter() - begin
        own = "online" in settings  # whose samples are fresh
        reached = (
            solutions[name].alpha if own else part.samples / model.design.entries(part.dimension)
        )
        alphas[name] = float(reached)
    learned = {name: learned_at(solution, level) for name, solution in solutions.items()}
    return LearningOrder(solutions, learned, level, alphas, seconds)


def _known(name: str, settings: Mapping[str, object]) -> None:
    """Raise a ValueError for a setting that the method does not have."""
    common = {"alpha", "model"}
    where = f"methods[{name!r}]"
    function = train if "optimizer" in settings else state_evolution
    own = {"model", "data", "alpha", "key", "progress"}
    if "online" in settings:
        inner = settings["online"]
        allowed = "settings of runs, such as {'rate': 0.2, 'alpha': 20.0}"
        check(isinstance(inner, Mapping), f"{where}['online']", inner, allowed)
        _refuse(
            f"{where}['online']", inner, _words(simulate, own - {"alpha"} | _ELSEWHERE) | {"runs"}
        )
        _refuse(where, settings, common | {"online"})
        return
    if "optimizer" not in settings and not settings.get("theory", False):
        function = gamp
    _refuse(where, settings, common | {"theory", "online"} | _words(function, own))


_ELSEWHERE = {"dimension", "start", "student", "monitor"}  # settings that runs have from here


def _words(function: Callable[..., object], without: set[str]) -> set[str]:
    """The names of a function's arguments."""
    return set(inspect.signature(function).parameters) - without


def _refuse(where: str, settings: object, words: set[str]) -> None:
    """Raise a ValueError for a setting with another name than those."""
    unknown = sorted(set(dict(settings)) - words)  # pyright: ignore
    check(not unknown, where, unknown, f"only {', '.join(sorted(words))}")


def _first_samples(model: AbstractModel, data: Dataset, name: str, alpha: object) -> Dataset:
    """The data up to the sample complexity of a method (None: all)."""
    if alpha is None:
        return data
    most = data.samples / model.design.entries(data.dimension)
    samples = round(float(alpha) * model.design.entries(data.dimension))  # pyright: ignore
    allowed = f"a number in (0, {most:g}], what the data reach"
    check(1 <= samples <= data.samples, f"methods[{name!r}]['alpha']", alpha, allowed)
    return data.first(samples)


def _runs(
    student: AbstractModel, data: Dataset, keys: PRNGKeyArray, settings: dict, progress: bool
) -> Solution:
    """All runs of one method (theory: one), with a leading axis."""
    if "optimizer" in settings:
        monitor = dataclasses.replace(settings.pop("monitor", Monitor()), progress=progress)
        return train(student, data, key=keys, monitor=monitor, **settings)
    if settings.pop("theory", False):
        return _theory(student, data, keys[0], settings, progress)
    start = _RANDOM if "learner" not in settings else None
    settings = {"start": start, **settings}
    runs = [gamp(student, data, key=key, progress=progress, **settings) for key in keys]
    bare = [dataclasses.replace(run, model=None) for run in runs]
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *bare
    )
    return dataclasses.replace(stacked, model=runs[0].model)


def _online(
    model: AbstractModel,
    student: AbstractModel,
    data: Dataset,
    keys: PRNGKeyArray,
    settings: object,
    progress: bool,
) -> Solution:
    """Online SGD of the data's teacher, as a Solution whose history has what that of `train` has;
    its steps are those of SGD."""
    law = model_argument(model if data.model is None else data.model)
    teacher = Arguments().instance("model", law, AbstractTeacher, "an index model")
    allowed = "data without directions of the inputs: runs draw directions of their own"
    check(data.directions is None, "data.directions", data.directions, allowed)
    other = None if student is law else student
    given = Arguments().instance("methods", settings, Mapping, "settings of runs")
    given = dict(given)
    if "runs" in given:
        keys = jax.random.split(keys[0], Arguments().count("runs", given.pop("runs")))
    given |= {"start": Initial(teacher=data.teacher), "monitor": Monitor(progress=progress)}
    runs = simulate(teacher, keys, dimension=data.dimension, student=other, **given)  # pyright: ignore
    count = len(keys)
    steps = jnp.broadcast_to(runs.step.astype(runs.overlap.dtype), (count, len(runs.step)))
    history = {
        "step": jnp.where(jnp.isnan(runs.overlap[:, :, 0, 0]), jnp.nan, steps),
        "cosine": runs.cosine,
        "overlap": runs.overlap,
        "teacher_overlap": runs.teacher_overlap,
    }
    nothing = jnp.full(count, jnp.nan)
    rows = jnp.full(runs.overlap[:, 0].shape, jnp.nan)
    return Solution(
        overlap=runs.overlap[:, -1],
        stderr=jnp.zeros_like(rows),
        error=nothing,
        alpha=jnp.max(runs.alpha),
        steps=runs.steps,
        residual=nothing,
        result=runs.result,
        history=history,
        covariance=rows,
        spectral_radius=nothing,
        model=student,
        kind="online",
    )


def _theory(
    model: AbstractModel, data: Dataset, key: PRNGKeyArray, settings: dict, progress: bool
) -> Solution:
    """State evolution step by step, with the cosines that runs tend to in its history."""
    law = model_argument(model if data.model is None else data.model)
    iteration = settings.get("iteration", Iteration())
    plain = Iteration(iteration.max_steps, iteration.tolerance, newton=False)
    settings = settings | {"iteration": plain}
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
