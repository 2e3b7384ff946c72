r"""Threshold search by gradients: the parameter of a link that minimises or prescribes a threshold.

Equations here [theory: multi-index, Eqs. (71), (72)], for a model built from parameters p and the
threshold α_c(p) of one step of its staircase:

    minimise log α_c(p),  or ½ (log α_c(p) - log target)²,

by a quasi-Newton iteration (numerics/minimum.py) on the derivative of `staircase`, whose first
step has length 0.2. One key for all p: the function is smooth in p, and the result is the optimum
of that sample, off the true one by about stderr(α_c') / α_c''.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, missing, theory_dtype
from jaxsmi.core.display import safe_repr
from jaxsmi.core.driver import Bar
from jaxsmi.core.options import Averages, Iteration
from jaxsmi.core.solution import Threshold
from jaxsmi.core.validate import POSITIVE
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.minimum import SearchEnd, minimise
from jaxsmi.thresholds.stairs import staircase

_BUILD = "a function of `start` that makes a model"


class Search(SearchEnd):
    """The end of a search for a threshold; its history has "alpha".

    Attributes:
        threshold: The threshold of the best parameters.
    """

    threshold: Threshold

    def __repr__(self) -> str:
        return safe_repr(self, lambda: f"{self._text('threshold')}\n{self.threshold!r}")


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
        [theory: multi-index, Eqs. (71), (72)].
    """
    validate.outside_jit("start", start)
    validate.function("build", build, _BUILD)
    allowed = "a tree of real numbers"
    first = jax.tree.map(lambda x: validate.array("start", x, allowed), start)
    step = validate.count("step", step, 0)
    aim = validate.optional(validate.number, "target", target, POSITIVE)
    most = float(validate.number("alpha_max", alpha_max, POSITIVE))
    key = validate.key("key", key)
    points_per_net, nets = Averages.of(averages).sizes(2**12, 16, 2)
    averages = Averages(points_per_net * nets, nets)
    iteration = Iteration.of(iteration)
    tolerance = 2e-3 if iteration.tolerance is None else float(iteration.tolerance)
    stairs_of = functools.partial(
        staircase, key=key, alpha_max=most, averages=averages, max_thresholds=step + 1
    )

    @functools.partial(jax.value_and_grad, has_aux=True)
    def objective(
        parameters: PyTree, guess: list[Threshold]
    ) -> tuple[Array, tuple[Array, list[Threshold]]]:
        model = validate.call_user_function("build", build, _BUILD, parameters)
        # the scan in α is most of the cost: the stairs of the last parameters replace it
        stairs = stairs_of(model, guess=guess, progress=False)
        if len(stairs) <= step:
            # `minimise` goes half way back where a step lost the threshold
            lost = jnp.asarray(missing(), theory_dtype())
            return lost, (lost, stairs)
        alpha = stairs[step].alpha
        # logarithms: the gradient has the same size for a threshold of any order
        height = jnp.log(alpha)
        return height if aim is None else 0.5 * (height - jnp.log(aim)) ** 2, (alpha, stairs)

    with Bar(iteration.max_steps or 30, "threshold search", None) as bar:
        best, end = minimise(
            objective,
            first,
            [],
            name="alpha",
            tolerance=tolerance,
            allowed=f"parameters at which threshold {step} and its derivative exist, below "
            f"alpha_max = {most:g}",
            bar=bar,
            # a hit ends the search: to shrink the steps as well takes evaluations for nothing
            done=lambda alpha: aim is not None and abs(float(jnp.log(alpha / aim))) < tolerance,
        )
    return Search(**vars(end), threshold=best.extra[step])
