r"""The best learner of a family, by gradients of its theory: the best ridge, or shape of a loss.

Equation here [theory: empirical-risk, Eqs. (9), (20)]: minimise log E(p), E the test error of the
learner with parameters p at its fixed point, whose derivative is implicit; guarded quasi-Newton
steps (numerics/descent.py), each begun at the fixed point of the last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree
from jaxsmi.core.options import Averages, Iteration, Start
from jaxsmi.core.progress import Bar
from jaxsmi.core.results import LearnerSolution
from jaxsmi.inference.evolution import state_evolution, validate_settings
from jaxsmi.learners.base import AbstractIndexLearner, learner_of
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.descent import SearchEnd, minimise

_BUILD = "a function of `start` that makes a learner"
_OBJECTIVES = ("error", "test_loss")
_MAX_STEPS = 30
_TOLERANCE = 1e-3  # one unit of log ridge is a sensible step


class LearnerSearch(SearchEnd):
    """The end of a search for a learner; its history has the objective by its name.

    Attributes:
        solution: Theory of the learner that has the best parameters.
    """

    solution: LearnerSolution


def search_learner(
    model: AbstractModel,
    alpha: ArrayLike,
    build: Callable[[PyTree], AbstractIndexLearner],
    start: PyTree,
    *,
    key: PRNGKeyArray,
    objective: str = "error",
    averages: Averages = Averages(),  # noqa: B008  (immutable)
    iteration: Iteration = Iteration(),  # noqa: B008
) -> LearnerSearch:
    r"""The parameters of a learner that minimise its test error: the best ridge, say.

    Args:
        model: Who makes the labels.
        alpha: N/D, a number > 0.
        build: Parameters to learner, e.g. `lambda p: smi.Erm(student, ridge=jnp.exp(p))`: a
            logarithm keeps a ridge positive and makes one unit of it a sensible step. A loss whose
            own numbers are parameters counts as not convex unless it says `convex=True`.
        start: Parameters, a number, an array or a tree of them.
        key: As in `state_evolution`: one key for all parameters.
        objective: "error", E ‖ŷ - y‖² without label noise, or "test_loss", E ℓ(ŷ, y). Default
            "error".
        averages: As in `state_evolution`.
        iteration: `smi.Iteration(max_steps, tolerance)`: evaluations at most, default 30, and the
            step in the parameters below which the search ends, default 1e-3. A bar is shown where
            stderr is a terminal.

    Returns:
        A `LearnerSearch`.

    Raises:
        ValueError: For an argument out of its range, a learner that the labels do not fit, or a
            start at which there is no fixed point.

    Example:
        >>> import jax, jax.numpy as jnp, jaxsmi as smi
        >>> best = smi.search_learner(  # of a linear teacher of noise 1/4 the best ridge is 1/4
        ...     smi.links.linear(0.25),
        ...     2.0,
        ...     lambda p: smi.Erm(smi.links.linear(), ridge=jnp.exp(p)),
        ...     0.0,
        ...     key=jax.random.key(0),
        ... )  # doctest: +SKIP
        >>> round(float(jnp.exp(best.parameters)), 2)  # doctest: +SKIP
        0.25

    Cost:
        A fixed point and its derivative an evaluation, compiled once.

    Source:
        [theory: empirical-risk, Eqs. (9), (20)].
    """
    alpha = validate.number("alpha", alpha, validate.POSITIVE)
    key = validate.key("key", key)
    validate_settings(averages, iteration, False)
    validate.function("build", build, _BUILD)
    allowed = "a tree of real numbers"
    first = jax.tree.map(lambda x: validate.array("start", x, allowed), start)
    name = validate.choice("objective", objective, _OBJECTIVES)
    learner_of(validate.call_user_function("build", build, _BUILD, first), model)

    def solve(parameters: PyTree, begin: Start) -> LearnerSolution:
        settings = {"learner": build(parameters), "start": begin, "averages": averages}
        solution = state_evolution(model, alpha, key=key, **settings)
        assert isinstance(solution, LearnerSolution)
        return solution

    @eqx.filter_jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def logarithm(
        parameters: PyTree, last: LearnerSolution
    ) -> tuple[Array, tuple[Array, LearnerSolution]]:
        solution = solve(parameters, _continued(last))
        number = getattr(solution, name)
        return jnp.log(number), (number, solution)

    with Bar(iteration.max_steps or _MAX_STEPS, "learner search", None) as bar:
        best, end = minimise(
            logarithm,
            first,
            solve(first, Start()),
            name=name,
            tolerance=_TOLERANCE if iteration.tolerance is None else float(iteration.tolerance),
            allowed="parameters at which state evolution has a fixed point with a derivative",
            bar=bar,
        )
    return LearnerSearch(**vars(end), solution=best.extra)


def _continued(last: LearnerSolution) -> Start:
    """The fixed point of the last evaluation, as a start."""
    names = ("overlap", "teacher_overlap", "covariance", "direction_overlap")
    return Start(*(lax.stop_gradient(getattr(last, name)) for name in names))
