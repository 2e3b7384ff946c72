r"""All fixed points of a learner, lowest energy first, and the best learner of a family.

Equations here [CBKZ24; theory: empirical-risk, Eqs. (9), (20), section 4], S = E[w* w*ᵀ], G =
U Uᵀ/D, the starts of a search for minima:

    informed     Q = S,    M = 0.8 S,  B = 0
    uninformed   Q = S,    M = 0,      B = 0
    directions   Q = S/4,  M = 0,      B = ½ (Q G)^{1/2}

(of V from small to the 1/λ of a weight that no label holds), and the global minimum of R is the
branch of lowest energy. Gradient descent and message passing reach the branch that is connected to
their start.

The best ridge, or shape of a loss: minimise log E(p), E the test error of the learner with
parameters p at its fixed point, whose derivative is implicit; guarded quasi-Newton steps
(numerics/minimum.py), each begun at the fixed point of the best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, as_module
from jaxsmi.core.display import safe_repr
from jaxsmi.core.driver import Bar, tqdm
from jaxsmi.core.options import Averages, Iteration, Start
from jaxsmi.core.results import Result
from jaxsmi.core.solution import LearnerSolution
from jaxsmi.core.validate import check
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.learner_map import typical_ridge
from jaxsmi.learners.base import AbstractIndexLearner, learner_of
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.index import IndexModel
from jaxsmi.numerics.minimum import SearchEnd, minimise

_NAMES = ("informed", "uninformed", "directions")
_REACHED = (Result.SUCCESS, Result.UNSTABLE, Result.INACCURATE)
_SAME = 1e-3  # relative distance below which two fixed points are one
_NOTHING = 1e-6  # largest overlap that counts as zero

_BUILD = "a function of `start` that makes a learner"
_FAR = 10.0  # a factor of 2e4 of a ridge exp(p)
_INFINITE = (
    "The best value of a parameter this large may be infinite, and the objective flat: of "
    "ridge=exp(p) at p < -10 it is no ridge."
)
_OBJECTIVES = ("error", "test_loss", "cosine")
_MAX_STEPS = 30
_TOLERANCE = 1e-3  # one unit of log ridge is a sensible step


def global_minimum(
    model: AbstractModel,
    alpha: ArrayLike,
    *,
    learner: AbstractIndexLearner,
    key: PRNGKeyArray,
    starts: Sequence[str | LearnerSolution] = _NAMES,
    averages: Averages | None = None,
    iteration: Iteration | None = None,
    progress: bool = False,
) -> list[LearnerSolution]:
    r"""Find the minima of a risk in theory, from several starts, lowest energy first.

    According to replica theory the first one is the global minimum of the risk. A first-order
    transition is an α at which the energies of two branches cross; along each branch dE/dα = E 𝓜.

    Args:
        model: Who makes the labels.
        alpha: N/D, a number > 0.
        learner: `smi.Erm(..)` (a posterior has no energy).
        key: As in `state_evolution`: one key for all branches.
        starts: Words ("informed", "uninformed", "directions", module docstring), or solutions to go
            on from: a branch followed from a nearby α. Default: all three words; "directions" is
            left out where inputs have none.
        averages, iteration: As in `state_evolution`; default 100 steps.
        progress: Show a bar on stderr.

    Returns:
        Solutions, distinct up to the signs of M and B: those that are fixed points by energy, then
        those that were not reached, with their code.

    Raises:
        ValueError: For a learner without a risk, other starts, or what `state_evolution` refuses.

    Example:
        >>> import jax, jaxsmi as smi
        >>> learner = smi.Erm(smi.links.linear(), ridge=0.5)
        >>> branches = smi.global_minimum(
        ...     smi.links.linear(0.1),
        ...     2.0,
        ...     learner=learner,
        ...     key=jax.random.key(0),
        ...     averages=smi.Averages(4096),
        ... )
        >>> [round(float(branch.energy), 2) for branch in branches]
        [0.24]

    Cost:
        One to four runs of `state_evolution` for each start.

    Source:
        [CBKZ24], [theory: empirical-risk, section 4].
    """
    alpha = validate.number("alpha", alpha, validate.POSITIVE)
    key = validate.key("key", key)
    averages = Averages.of(averages)
    iteration = Iteration.of(Iteration(max_steps=100) if iteration is None else iteration)
    validate.optional(validate.flag, "progress", progress)
    allowed = f"names among {_NAMES}, or solutions of state_evolution with a learner"
    starts = validate.sequence("starts", starts, allowed)
    for start in starts:
        known = isinstance(start, LearnerSolution) or start in _NAMES
        check(known, "starts", start, allowed)
    # last: the examination of a loss (smooth, convex) takes seconds
    student, teacher = learner_of(learner, model)
    allowed = "smi.Erm(..): only a learner that minimises a loss has an energy"
    check(student.penalty is not None, "learner", learner, allowed)
    settings = {"learner": student, "averages": averages, "iteration": iteration}
    reached: list[LearnerSolution] = []
    failed: list[LearnerSolution] = []
    words = [s for s in starts if s != "directions" or teacher.inputs is not None]
    for start in tqdm(words, desc="branches", leave=False, disable=not progress):
        for begin in _starts(start, teacher, student):
            last = _learner_solution(model, alpha, key, start=begin, **settings)
            if _is_sought(last, start):
                break
        if int(last.result) not in _REACHED:
            failed.append(last)
        elif not any(_same(last, other) for other in reached):
            reached.append(last)
    return sorted(reached, key=lambda s: float(jnp.asarray(s.energy))) + failed


def _learner_solution(
    model: AbstractModel, alpha: Array, key: PRNGKeyArray, **settings: Any
) -> LearnerSolution:
    solution = state_evolution(model, alpha, key=key, **settings)
    assert isinstance(solution, LearnerSolution)
    return solution


def _order(solution: LearnerSolution) -> tuple[Array, ...]:
    """Return Q, M, V and B without derivatives, as arguments of `Start`."""
    names = ("overlap", "teacher_overlap", "covariance", "direction_overlap")
    return tuple(lax.stop_gradient(getattr(solution, name)) for name in names)


def _starts(
    start: str | LearnerSolution, teacher: IndexModel, learner: AbstractIndexLearner
) -> list[Start]:
    """Starts to try in turn until one reaches a fixed point of this kind: one with small V, one
    with large V."""
    if isinstance(start, LearnerSolution):
        return [Start(*_order(start))]
    # half of V where no label holds the weights
    loose = 0.5 / max(typical_ridge(learner.ridge), 1e-3)
    if start == "directions":
        assert teacher.inputs is not None
        S = teacher.prior.second_moment(teacher.indices)
        Q = float(jnp.trace(S)) / teacher.indices
        G = np.diag(np.asarray(teacher.inputs.gram)).clip(0.0)
        # weights that share their norm among the directions
        B = np.ones((learner.network.indices, 1)) * np.sqrt(Q * G / len(G))
        identity = np.eye(learner.network.indices)
        return [
            Start(part * Q * identity, 0.0, V, share * np.sqrt(part) * B)
            for part, share, V in ((0.25, 0.5, loose), (1.0, 0.5, 0.5), (0.25, 0.8, loose))
        ]
    M = 0.8 if start == "informed" else 0.0
    return [Start(part, M * part, V, 0.0) for part, V in ((1.0, 0.5), (0.25, loose))]


def _is_sought(solution: LearnerSolution, start: str | LearnerSolution) -> bool:
    """True if a run ended at a fixed point of the kind that its start names."""
    reached = int(solution.result) in _REACHED
    learned = jnp.max(jnp.abs(jnp.asarray(solution.direction_overlap)), initial=0.0) > _NOTHING
    return reached and (start != "directions" or bool(learned))


def _same(one: LearnerSolution, other: LearnerSolution) -> bool:
    """True if two fixed points agree up to signs of the rows of M and B."""
    size = float(jnp.sqrt(jnp.max(jnp.abs(one.overlap))))
    scales = (size**2, size, float(jnp.max(jnp.abs(one.covariance))), size)
    pairs = zip(_order(one), _order(other), scales, strict=True)
    return all(np.all(np.abs(np.abs(a) - np.abs(b)) <= _SAME * scale) for a, b, scale in pairs)


class LearnerSearch(SearchEnd):
    """The result of a search for a learner; its history has the objective by its name, of "cosine"
    the mean over the indices.

    Attributes:
        solution: Theory of the learner that has the best parameters.
    """

    solution: LearnerSolution

    def __repr__(self) -> str:
        return safe_repr(self, lambda: f"{self._text('learner')}\n{self.solution!r}")


@dataclasses.dataclass(frozen=True, eq=False)
class _Constants:
    """A tree of numbers that stay concrete in compiled code, compared by value: the convexity of a
    loss can be examined only on labels of a model that is not traced."""

    tree: PyTree

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self.tree))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constants) and bool(eqx.tree_equal(self.tree, other.tree))


@eqx.filter_jit
def _evaluate(
    parameters: PyTree,
    last: LearnerSolution,
    alpha: Array,
    key: PRNGKeyArray,
    known: _Constants,
    averages: Averages | None,
    name: str,
) -> tuple[tuple[Array, tuple[Array, LearnerSolution]], PyTree]:
    """The logarithm of the objective with its number and solution, and its gradient; compiled once
    for all α and keys."""
    model, build = known.tree

    def logarithm(parameters: PyTree) -> tuple[Array, tuple[Array, LearnerSolution]]:
        settings = {"learner": build(parameters), "averages": averages}
        solution = _learner_solution(model, alpha, key, start=Start(*_order(last)), **settings)
        number = getattr(solution, name)
        if name == "cosine":
            return jnp.log(jnp.mean(1.0 - number**2)), (jnp.mean(number), solution)
        return jnp.log(number), (number, solution)

    return jax.value_and_grad(logarithm, has_aux=True)(parameters)


def search_learner(
    model: AbstractModel,
    alpha: ArrayLike,
    build: Callable[[PyTree], AbstractIndexLearner],
    start: PyTree,
    *,
    key: PRNGKeyArray,
    objective: str = "error",
    averages: Averages | None = None,
    iteration: Iteration | None = None,
) -> LearnerSearch:
    r"""Find the parameters of a learner that minimise its test error, such as the best ridge.

    Args:
        model: Who makes the labels.
        alpha: N/D, a number > 0.
        build: Parameters to learner, e.g. `lambda p: smi.Erm(student, ridge=jnp.exp(p))`: a
            logarithm keeps a ridge positive and makes one unit of it a sensible step. A loss whose
            own numbers are parameters counts as not convex unless it says `convex=True`.
        start: Parameters, a number, an array or a tree of them.
        key: As in `state_evolution`: one key for all parameters.
        objective: "error", E ‖ŷ - y‖² without label noise; "test_loss", E ℓ(ŷ, y); or "cosine",
            for classes: the mean of 1 - cosine² over the indices, which is smallest where, for
            signs, the share of wrong labels is. Default "error".
        averages: As in `state_evolution`.
        iteration: `smi.Iteration(max_steps, tolerance)`: evaluations at most, default 30, and the
            step in the parameters below which the search ends, default 1e-3. A bar is shown where
            stderr is a terminal.

    Returns:
        A `LearnerSearch`; its `message` says why it ended.

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
        A fixed point and its derivative an evaluation: two to five of them from the best parameter
        at another α, as a rule up to ten from afar. Where the best is at infinity (no ridge) there
        are about twenty. Of logistic regression on signs the first search takes half a minute,
        almost all of it compilation, and another α or key, which takes the same compiled code,
        0.3 s of processor time (4096 points) or 1.3 s (32768, the default); another model or
        `build` is compiled anew.

    Source:
        [theory: empirical-risk, Eqs. (9), (20)].
    """
    alpha = validate.number("alpha", alpha, validate.POSITIVE)
    key = validate.key("key", key)
    averages, iteration = Averages.of(averages), Iteration.of(iteration)
    validate.function("build", build, _BUILD)
    first = jax.tree.map(lambda x: validate.array("start", x, "a tree of real numbers"), start)
    name = validate.choice("objective", objective, _OBJECTIVES)
    learner = validate.call_user_function("build", build, _BUILD, first)
    learner_of(learner, model)
    known = _Constants((model, as_module(build)))
    with Bar(iteration.max_steps or _MAX_STEPS, "learner search", None) as bar:
        best, end = minimise(
            lambda parameters, last: _evaluate(parameters, last, alpha, key, known, averages, name),
            first,
            _learner_solution(model, alpha, key, learner=learner, averages=averages),
            name=name,
            tolerance=_TOLERANCE if iteration.tolerance is None else float(iteration.tolerance),
            allowed="parameters at which state evolution has a fixed point with a derivative",
            bar=bar,
        )
    words, solution = [end.message], best.extra
    if any(np.any(np.abs(leaf) > _FAR) for leaf in jax.tree.leaves(end.parameters)):
        words.append(_INFINITE)
    if not solution.converged:
        words.append(f"The theory there: {solution.message}")
    found = LearnerSearch(**vars(end), solution=solution)
    return dataclasses.replace(found, message=" ".join(words))
