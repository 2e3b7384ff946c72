r"""Threshold search by gradients: the parameter of a link that minimises or prescribes a threshold.

Equations here [theory: multi-index, Eqs. (60), (61)], for a model built from parameters p and the
threshold α_c(p) of one step of its staircase:

    minimise log α_c(p),  or ½ (log α_c(p) - log target)²,

by a quasi-Newton iteration (optax) on the derivative of `thresholds`, scaled so that the first
step has length 0.2. One key for all p: the function is smooth in p, and the result is the optimum
of that sample, off the true one by about stderr(α_c') / α_c''.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.border import (
    anything,
    asked,
    checked,
    flag,
    function,
    instance,
    optional,
    random_key,
    scalar,
    whole,
)
from jaxsmi.core.checks import POSITIVE, Arguments
from jaxsmi.core.progress import Bar
from jaxsmi.core.results import Threshold
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.descent import Descent, Ended, Point
from jaxsmi.thresholds.stairs import staircase
from jaxsmi.thresholds.weak import weak_recovery

__all__ = ["Search", "search_threshold"]


class Search(Ended):
    """The end of a search for a threshold; its history has "alpha".

    Attributes:
        threshold: That of the best parameters.
    """

    threshold: Threshold


_BUILD = "a function of `start` that makes a model"


@checked(
    build=function(_BUILD),
    start=anything,
    key=random_key,
    step=whole(0),
    target=optional(scalar(POSITIVE)),
    alpha_max=scalar(POSITIVE),
    samples=whole(),
    replicas=whole(2),
    optimizer=optional(instance(optax.GradientTransformation, "an optimiser of optax")),
    max_steps=whole(),
    tolerance=scalar(POSITIVE),
    progress=optional(flag),
)
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
    progress: bool | None = None,
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
        progress: Whether to show a bar on stderr. Default None: on a terminal and in a notebook.

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
    shown = arguments.shown(progress)
    first = jax.tree.map(lambda x: arguments.array("start", x, "a tree of real numbers"), start)
    objective = _Objective(
        build,
        key,
        step,
        None if target is None else float(arguments.number("target", target, POSITIVE)),
        float(arguments.number("alpha_max", alpha_max, POSITIVE)),
        arguments.count("samples", samples, at_least=2 * replicas),
        replicas,
    )
    limit = float(arguments.number("tolerance", tolerance, POSITIVE))
    allowed = (
        f"parameters at which threshold {objective.step} and its derivative exist, below "
        f"alpha_max = {objective.alpha_max:g}"
    )
    hit = lambda point: objective.is_hit(point.number, limit)
    descent = Descent(objective.at, optimizer, limit, hit, "alpha", allowed)
    with Bar(max_steps, "threshold search", shown, "compiling") as bar:
        best, end = descent.run(first, max_steps, bar)
    return Search(**vars(end), threshold=best.found[objective.step])


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
                progress=False,
            )
        first = weak_recovery(
            model, key=self.key, samples=self.samples, randomisations=self.replicas
        )
        return [first] if float(jax.lax.stop_gradient(first.alpha)) <= self.alpha_max else []

    def value(
        self, parameters: PyTree, guess: list[Threshold] | None
    ) -> tuple[Array, list[Threshold]]:
        """The objective and the stairs; NaN where the threshold is missing."""
        stairs = self.stairs(asked("build", self.build, _BUILD, parameters), guess)
        if len(stairs) <= self.step:
            return jnp.asarray(jnp.nan, theory_dtype()), stairs
        height = jnp.log(stairs[self.step].alpha)
        if self.target is None:
            return height, stairs
        return 0.5 * (height - jnp.log(self.target)) ** 2, stairs

    def is_hit(self, alpha: Array, tolerance: float) -> bool:
        """Whether a threshold is the one that was prescribed."""
        if self.target is None:
            return False
        return abs(float(jnp.log(alpha / self.target))) < tolerance

    def at(self, parameters: PyTree, guess: list[Threshold] | None) -> Point:
        """Value and gradient at some parameters."""
        slope = jax.value_and_grad(self.value, has_aux=True)
        (value, stairs), gradient = slope(parameters, guess)
        alpha = stairs[self.step].alpha if len(stairs) > self.step else jnp.asarray(jnp.nan)
        size = float(optax.global_norm(gradient))
        return Point(parameters, float(value), gradient, size, alpha, stairs)
