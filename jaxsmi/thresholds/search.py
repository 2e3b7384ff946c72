r"""Threshold search by gradients: the parameter of a link that minimises or prescribes a threshold.

Equations here [theory: multi-index, Eqs. (60), (61)], for a model built from parameters p and the
threshold α_c(p) of one step of its staircase:

    minimise log α_c(p),  or ½ (log α_c(p) - log target)²,

by a quasi-Newton iteration (optax) on the derivative of `thresholds`, scaled so that the first
step has length 0.2. One key for all p: the function is smooth in p, and the result is the optimum
of that sample, off the true one by about stderr(α_c') / α_c''.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, nan, theory_dtype
from jaxsmi.core.options import Averages, Iteration
from jaxsmi.core.progress import Bar
from jaxsmi.core.results import Threshold
from jaxsmi.core.validate import POSITIVE
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.descent import Point, SearchEnd, minimise
from jaxsmi.thresholds.growth import sizes_of
from jaxsmi.thresholds.stairs import staircase
from jaxsmi.thresholds.weak import weak_recovery

__all__ = ["Search", "search_threshold"]

_BUILD = "a function of `start` that makes a model"


class Search(SearchEnd):
    """The end of a search for a threshold; its history has "alpha".

    Attributes:
        threshold: That of the best parameters.
    """

    threshold: Threshold


def search_threshold(
    build: Callable[[PyTree], AbstractModel],
    start: PyTree,
    *,
    key: PRNGKeyArray,
    step: int = 0,
    target: ArrayLike | None = None,
    alpha_max: ArrayLike = 10.0,
    averages: Averages | None = None,
    iteration: Iteration | None = None,
) -> Search:
    r"""Find the parameters that minimise a threshold, or give it a prescribed value, by gradients.

    minimise log α_c(p),  or ½ (log α_c(p) - log target)²

    Args:
        build: Parameters to model, e.g. `lambda p: smi.DeepAttention(2, 2, skip=jnp.exp(p))`: a
            logarithm keeps a strength positive and makes one unit of it a sensible step.
        start: Parameters, a number, an array or a tree of them.
        key: Random key, common random numbers for all parameters.
        step: Number of the threshold in the staircase, 0 for weak recovery. Default 0.
        target: The prescribed α, a number > 0; None to minimise. Default None.
        alpha_max: Largest α, as in `staircase`. Default 10.
        averages: `smi.Averages(points, nets)`, as in `staircase`. Default 2^12 points, 16 nets.
        iteration: `smi.Iteration(max_steps=, tolerance=)`: largest number of evaluations; the
            search ends where a step in the parameters is shorter than the tolerance, or
            |log α_c/target| smaller. Default 30, 2e-3.

    Returns:
        A `Search`. Codes: SUCCESS, MAX_STEPS. A bar shows the evaluations on a terminal and in a
        notebook.

    Raises:
        ValueError: For a number out of its range, or a threshold that is absent at the start.

    Example:
        >>> import jax, jaxsmi as smi
        >>> noisy = lambda noise: smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, noise=noise)
        >>> few = smi.Averages(points=2**10)
        >>> key = jax.random.key(0)
        >>> search = smi.search_threshold(  # doctest: +SKIP
        ...     noisy, 0.5, key=key, target=1.0, averages=few
        ... )

    Cost:
        A threshold and its derivative per evaluation. It runs outside jit.

    Source:
        [theory: multi-index, Eqs. (60), (61)].
    """
    validate.function("build", build, _BUILD)
    allowed = "a tree of real numbers"
    first = jax.tree.map(lambda x: validate.array("start", x, allowed), start)
    step = validate.count("step", step, 0)
    aim = validate.optional(validate.number, "target", target, POSITIVE)
    points, nets = sizes_of(averages, 2**12, 16)
    iteration = Iteration() if iteration is None else iteration
    validate.instance("iteration", iteration, Iteration, "smi.Iteration(max_steps=.., ..)")
    tolerance = 2e-3 if iteration.tolerance is None else float(iteration.tolerance)
    max_steps = iteration.max_steps or 30
    objective = _Objective(
        build=build,
        key=validate.key("key", key),
        step=step,
        target=None if aim is None else float(aim),
        alpha_max=float(validate.number("alpha_max", alpha_max, POSITIVE)),
        averages=Averages(points * nets, nets),
    )
    with Bar(max_steps, "threshold search", None, "compiling") as bar:
        best, end = minimise(
            objective.at,
            first,
            name="alpha",
            tolerance=tolerance,
            max_steps=max_steps,
            allowed=(
                f"parameters at which threshold {step} and its derivative exist, below alpha_max = "
                f"{objective.alpha_max:g}"
            ),
            bar=bar,
            # a hit ends the search: to shrink the steps as well takes evaluations for nothing
            done=lambda point: objective.is_hit(point.number, tolerance),
        )
    return Search(**vars(end), threshold=best.extra[step])


class _Objective(NamedTuple):
    """The objective, as a function of parameters and of the stairs of a model nearby."""

    build: Callable[[PyTree], AbstractModel]
    key: PRNGKeyArray
    step: int
    target: float | None
    alpha_max: float
    averages: Averages

    def stairs(self, model: AbstractModel, guess: Sequence[Threshold] | None) -> list[Threshold]:
        """The thresholds of a model up to the one of `step`."""
        if self.step > 0:
            # the scan in α is most of the cost: the stairs of the last parameters replace it
            return staircase(
                model,
                key=self.key,
                alpha_max=self.alpha_max,
                averages=self.averages,
                guess=guess,
                steps=self.step + 1,
                progress=False,
            )
        # no scan, and the same rule for alpha_max as in `staircase`
        first = weak_recovery(model, key=self.key, averages=self.averages)
        return [first] if float(jax.lax.stop_gradient(first.alpha)) <= self.alpha_max else []

    def value(
        self, parameters: PyTree, guess: Sequence[Threshold] | None
    ) -> tuple[Array, list[Threshold]]:
        """The objective and the stairs; NaN where the threshold is missing."""
        model = validate.call_user_function("build", self.build, _BUILD, parameters)
        stairs = self.stairs(model, guess)
        if len(stairs) <= self.step:
            # `minimise` goes half way back where a step lost the threshold
            return jnp.asarray(nan(), theory_dtype()), stairs
        # logarithms: the gradient has the same size for a threshold of any order
        height = jnp.log(stairs[self.step].alpha)
        if self.target is None:
            return height, stairs
        return 0.5 * (height - jnp.log(self.target)) ** 2, stairs

    def is_hit(self, alpha: Array, tolerance: float) -> bool:
        """A threshold is the prescribed one."""
        return self.target is not None and abs(float(jnp.log(alpha / self.target))) < tolerance

    def at(self, parameters: PyTree, guess: list[Threshold] | None) -> Point[list[Threshold]]:
        """Value and gradient at some parameters."""
        (value, stairs), gradient = jax.value_and_grad(self.value, has_aux=True)(parameters, guess)
        present = len(stairs) > self.step
        alpha = stairs[self.step].alpha if present else jnp.asarray(nan())
        return Point(parameters, float(value), gradient, alpha, stairs)
