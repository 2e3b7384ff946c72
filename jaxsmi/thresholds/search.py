r"""Threshold search by gradients: the parameter of a link that minimises or prescribes a threshold.

Equations here [theory: multi-index, Eqs. (60), (61)], for a model built from parameters p and the
threshold α_c(p) of one step of its staircase:

    minimise log α_c(p),  or ½ (log α_c(p) - log target)²,

by a quasi-Newton iteration (optax) on the derivative of `thresholds`, scaled so that the first
step has length 0.2. One key for all p: the function is smooth in p, and the result is the optimum
of that sample, off the true one by about stderr(α_c') / α_c''.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray, PyTree
from tqdm import tqdm

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import POSITIVE, Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Threshold
from jaxsmi.models.base import AbstractModel
from jaxsmi.thresholds.stairs import staircase
from jaxsmi.thresholds.weak import weak_recovery

__all__ = ["Search", "search_threshold"]

_FIRST_STEP = 0.2
_LONGEST_STEP = 0.3


class Search(eqx.Module):
    """The end of a search.

    Attributes:
        parameters: The best parameters.
        threshold: Their threshold.
        gradient: The gradient of the objective there.
        steps: Evaluations taken.
        result: A code: SUCCESS, MAX_STEPS, NONFINITE.
        history: One entry an evaluation: "parameters", "alpha", "gradient".
    """

    parameters: PyTree
    threshold: Threshold
    gradient: PyTree
    steps: int
    result: Array
    history: dict[str, list[PyTree]]

    @property
    def message(self) -> str:
        """The sentence that goes with the result code."""
        return Result(int(self.result)).remedy


def search_threshold(
    build: Callable[[PyTree], AbstractModel],
    start: PyTree,
    *,
    key: PRNGKeyArray,
    step: int = 0,
    target: ArrayLike | None = None,
    alpha_max: ArrayLike = 10.0,
    samples: int = 2**12,
    replicas: int = 16,
    optimizer: optax.GradientTransformation | None = None,
    max_steps: int = 30,
    tolerance: ArrayLike = 2e-3,
    progress: bool = False,
) -> Search:
    r"""The parameters that minimise a threshold, or give it a prescribed value, by gradients.

    minimise log α_c(p),  or ½ (log α_c(p) - log target)²

    Args:
        build: Parameters to model, e.g. `lambda p: smi.DeepAttention(2, 2, skip=jnp.exp(p))`: a
            logarithm keeps a strength positive and makes one unit of it a sensible step.
        start: Parameters, a number, an array or a tree of them.
        key: Random key, common random numbers for all parameters.
        step: Which threshold of the staircase, 0 for weak recovery. Default 0.
        target: The α wanted, a number > 0; None to minimise. Default None.
        alpha_max: How far to look, as in `staircase`. Default 10.
        samples: Points of the average, over all replicas. Default 2^12.
        replicas: Independent replicas of the threshold. Default 16.
        optimizer: Any optax optimiser. Default L-BFGS with steps of at most 0.3, which goes half
            way back where α_c rose.
        max_steps: Largest number of evaluations. Default 30.
        tolerance: Stop where a step in the parameters is shorter (your own optimiser: where the
            gradient is less than so much of the first one), or |log α_c/target| smaller. Default
            2e-3.
        progress: Whether to show a bar on stderr. Default False.

    Returns:
        A `Search`. Codes: SUCCESS, MAX_STEPS, NONFINITE (the threshold or its gradient was not
        finite: it lies above alpha_max, or the step is missing there).

    Raises:
        ValueError: For an argument out of its range, or a threshold that is absent at the start.

    Example:
        >>> import jax, jaxsmi as smi
        >>> noisy = lambda noise: smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, noise=noise)
        >>> settings = {"key": jax.random.key(0), "target": 1.0, "samples": 2**10}
        >>> search = smi.search_threshold(noisy, 0.5, **settings)  # doctest: +SKIP

    Cost:
        A threshold and its derivative an evaluation. It runs outside jit.

    Source:
        [theory: multi-index, Eqs. (60), (61)].
    """
    arguments = Arguments()
    check(callable(build), "build", build, "a function of `start` that makes a model")
    replicas = arguments.count("replicas", replicas, at_least=2)
    progress = arguments.flag("progress", progress)
    first = jax.tree.map(lambda x: arguments.array("start", x, "a tree of real numbers"), start)
    objective = _Objective(
        build,
        arguments.key("key", key),
        arguments.count("step", step, at_least=0),
        None if target is None else float(arguments.number("target", target, POSITIVE)),
        float(arguments.number("alpha_max", alpha_max, POSITIVE)),
        arguments.count("samples", samples, at_least=2 * replicas),
        replicas,
    )
    max_steps = arguments.count("max_steps", max_steps)
    limit = float(arguments.number("tolerance", tolerance, POSITIVE))
    descent = _Descent(
        objective,
        _lbfgs() if optimizer is None else optimizer,
        limit,
        default=optimizer is None,
    )
    with tqdm(total=max_steps, desc="threshold search", leave=False, disable=not progress) as bar:
        end = descent.run(first, max_steps, bar)
    return end


def _lbfgs() -> optax.GradientTransformation:
    """L-BFGS with steps of bounded length."""
    clipped = optax.clip_by_global_norm(_LONGEST_STEP)
    return optax.chain(optax.scale_by_lbfgs(), clipped, optax.scale(-1.0))


class _Objective(NamedTuple):
    """What is minimised, as a function of parameters and of the stairs of a model nearby."""

    build: Callable[[PyTree], AbstractModel]
    key: PRNGKeyArray
    step: int
    target: float | None
    alpha_max: float
    samples: int
    replicas: int

    def stairs(self, model: AbstractModel, guess: list[Threshold] | None) -> list[Threshold]:
        """The thresholds of a model up to the one that is wanted."""
        if self.step > 0:
            return staircase(
                model,
                key=self.key,
                alpha_max=self.alpha_max,
                samples=self.samples,
                replicas=self.replicas,
                guess=guess,
                steps=self.step + 1,
            )
        first = weak_recovery(
            model, key=self.key, samples=self.samples, randomisations=self.replicas
        )
        return [first] if float(jax.lax.stop_gradient(first.alpha)) <= self.alpha_max else []

    def value(
        self, parameters: PyTree, guess: list[Threshold] | None
    ) -> tuple[Array, list[Threshold]]:
        """The objective and the stairs; NaN where the threshold is missing."""
        stairs = self.stairs(self.build(parameters), guess)
        if len(stairs) <= self.step:
            return jnp.asarray(jnp.nan, theory_dtype()), stairs
        height = jnp.log(stairs[self.step].alpha)
        if self.target is None:
            return height, stairs
        return 0.5 * (height - jnp.log(self.target)) ** 2, stairs

    def at(self, parameters: PyTree, guess: list[Threshold] | None) -> _Point:
        """Value and gradient at some parameters."""
        slope = jax.value_and_grad(self.value, has_aux=True)
        (value, stairs), gradient = slope(parameters, guess)
        alpha = stairs[self.step].alpha if len(stairs) > self.step else jnp.asarray(jnp.nan)
        size = float(optax.global_norm(gradient))
        return _Point(parameters, float(value), gradient, size, stairs, alpha)


class _Point(NamedTuple):
    """One evaluation: objective, gradient and its norm, the stairs, and the threshold's α."""

    parameters: PyTree
    value: float
    gradient: PyTree
    size: float
    stairs: list[Threshold]
    alpha: Array

    @property
    def finite(self) -> bool:
        """Whether the threshold and its gradient exist."""
        return bool(np.isfinite(self.value) and np.isfinite(self.size))


@dataclasses.dataclass
class _Descent:
    """The iteration: an optimiser, the best point so far, and the scale of the first gradient."""

    objective: _Objective
    optimizer: optax.GradientTransformation
    tolerance: float
    default: bool  # whether the optimiser is ours, whose steps are guarded
    best: _Point | None = None
    first_size: float = 0.0
    history: dict[str, list[PyTree]] = dataclasses.field(
        default_factory=lambda: {"parameters": [], "alpha": [], "gradient": []}
    )

    def run(self, parameters: PyTree, max_steps: int, bar: tqdm) -> Search:
        """Evaluate and step until a test of convergence holds, or so many times."""
        memory = self.optimizer.init(parameters)
        guess: list[Threshold] | None = None
        code = Result.MAX_STEPS
        for _ in range(max_steps):
            point = self.objective.at(parameters, guess)
            self._record(point, bar)
            if self._lost(point):
                code = Result.NONFINITE
                break
            if self.default and self.best is not None and not point.value <= self.best.value:
                parameters, length = self._half_way_back(parameters, self.best.parameters)
                memory = self.optimizer.init(parameters)
                if length < self.tolerance:
                    code = Result.SUCCESS
                    break
                continue
            if self.best is None or point.value <= self.best.value:
                self.best = point
            guess = point.stairs
            if self._converged(point):
                code = Result.SUCCESS
                break
            updates, memory = self._updates(point, memory)
            if self.default and float(optax.global_norm(updates)) < self.tolerance:
                code = Result.SUCCESS
                break
            parameters = jax.tree.map(jnp.add, parameters, updates)
        assert self.best is not None  # the first evaluation was checked
        best = self.best
        return Search(
            best.parameters,
            best.stairs[self.objective.step],
            best.gradient,
            len(self.history["alpha"]),
            jnp.asarray(code),
            self.history,
        )

    def _record(self, point: _Point, bar: tqdm) -> None:
        entries = {
            "parameters": point.parameters,
            "alpha": point.alpha,
            "gradient": point.gradient,
        }
        for name, entry in entries.items():
            self.history[name].append(jax.tree.map(np.asarray, entry))
        bar.update()
        bar.set_postfix(alpha=f"{float(point.alpha):.4f}")

    def _lost(self, point: _Point) -> bool:
        """Whether to give up here; raises a ValueError for a start without a threshold."""
        if self.best is None:
            step = self.objective.step
            most = self.objective.alpha_max
            allowed = (
                f"parameters at which threshold {step} and its derivative exist, below "
                f"alpha_max = {most:g}"
            )
            check(point.finite, "start", point.parameters, allowed)
            self.first_size = point.size if point.size > 0 else 1.0
            return False
        return not point.finite and not self.default

    @staticmethod
    def _half_way_back(parameters: PyTree, best: PyTree) -> tuple[PyTree, float]:
        """The middle between some parameters and the best ones, and the way to it."""
        back = jax.tree.map(lambda p, b: 0.5 * (b - p), parameters, best)
        return jax.tree.map(jnp.add, parameters, back), float(optax.global_norm(back))

    def _converged(self, point: _Point) -> bool:
        target = self.objective.target
        if target is not None and abs(float(jnp.log(point.alpha / target))) < self.tolerance:
            return True
        return not self.default and point.size < self.tolerance * self.first_size

    def _updates(self, point: _Point, memory: optax.OptState) -> tuple[PyTree, optax.OptState]:
        """The next step in the parameters, and the optimiser's memory."""
        scale = _FIRST_STEP / self.first_size if self.default else 1.0
        scaled = jax.tree.map(lambda g: scale * g, point.gradient)
        updates, memory = self.optimizer.update(scaled, memory, point.parameters)
        products = jax.tree.map(lambda u, g: jnp.sum(u * g), updates, point.gradient)
        if self.default and float(sum(jax.tree.leaves(products))) > 0:
            # curvature of the wrong sign: down the gradient instead
            downhill = jax.tree.map(lambda g: -g, scaled)
            return downhill, self.optimizer.init(point.parameters)
        return updates, memory
