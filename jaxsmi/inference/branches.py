r"""All fixed points of a learner, lowest energy first: which minimum is the global one.

Equations here [CBKZ24; theory: empirical-risk, section 4], S = E[w* w*ᵀ], G = U Uᵀ/D:

    informed     Q = S,    M = 0.8 S,  B = 0
    uninformed   Q = S,    M = 0,      B = 0
    directions   Q = S/4,  M = 0,      B = ½ (Q G)^{1/2}

(of V from small to the 1/λ of a weight that no label holds), and the global minimum of R is the
branch of lowest energy. Gradient descent and message passing reach the branch that is connected to
their start.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.codes import Result
from jaxsmi.core.options import Averages, Iteration, Start
from jaxsmi.core.progress import tqdm
from jaxsmi.core.results import LearnerSolution
from jaxsmi.core.validate import check
from jaxsmi.inference.evolution import state_evolution, validate_settings
from jaxsmi.learners.base import AbstractIndexLearner, learner_of
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.index import IndexModel

_NAMES = ("informed", "uninformed", "directions")
_REACHED = (Result.SUCCESS, Result.UNSTABLE, Result.INACCURATE)
_SAME = 1e-3  # relative distance below which two fixed points are one
_NOTHING = 1e-6  # of an overlap that is zero


def global_minimum(
    model: AbstractModel,
    alpha: ArrayLike,
    *,
    learner: AbstractIndexLearner,
    key: PRNGKeyArray,
    starts: Sequence[str | LearnerSolution] = _NAMES,
    averages: Averages = Averages(),  # noqa: B008  (immutable)
    iteration: Iteration = Iteration(max_steps=100),  # noqa: B008
    progress: bool = False,
) -> list[LearnerSolution]:
    r"""Every branch of fixed points that some starts lead to, lowest energy first.

    The first is the global minimum of the risk, as replica theory has it; energies of two branches
    that cross with α are a first-order transition, where dE/dα = E 𝓜 of each.

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
        >>> [round(float(branch.energy), 3) for branch in branches]
        [0.244]

    Cost:
        One to four runs of `state_evolution` for each start.

    Source:
        [CBKZ24], [theory: empirical-risk, section 4].
    """
    alpha = validate.number("alpha", alpha, validate.POSITIVE)
    key = validate.key("key", key)
    validate_settings(averages, iteration, progress)
    allowed = f"words of {_NAMES}, or solutions of state_evolution with a learner"
    starts = validate.sequence("starts", starts, allowed)
    for start in starts:
        known = isinstance(start, LearnerSolution) or start in _NAMES
        check(known, "starts", start, allowed)
    # last: the examination of a loss (smooth, convex) takes seconds
    student, teacher = learner_of(learner, model)
    allowed = "smi.Erm(..): the posterior of another model has no energy"
    check(jnp.isfinite(student.decay), "learner", learner, allowed)
    reached: list[LearnerSolution] = []
    missed: list[LearnerSolution] = []
    words = [s for s in starts if s != "directions" or teacher.inputs is not None]
    for start in tqdm(words, desc="branches", leave=False, disable=not progress):
        for begin in _starts(start, teacher, student):
            settings = {"averages": averages, "iteration": iteration}
            last = state_evolution(model, alpha, key=key, learner=student, start=begin, **settings)
            assert isinstance(last, LearnerSolution)
            if _is_sought(last, start):
                break
        if int(last.result) not in _REACHED:
            missed.append(last)
        elif not any(_same(last, other) for other in reached):
            reached.append(last)
    return sorted(reached, key=lambda s: float(_given(s.energy))) + missed


def _starts(
    start: str | LearnerSolution, teacher: IndexModel, learner: AbstractIndexLearner
) -> list[Start]:
    """Order parameters to begin at, one after the other until a fixed point of that kind is
    reached: both of a stiff and of a loose V, as either basin may be narrow."""
    if isinstance(start, LearnerSolution):
        M, B = start.teacher_overlap, start.direction_overlap
        return [Start(start.overlap, M, start.covariance, B)]
    # half of V where no label holds the weights
    loose = 0.5 / max(float(learner.decay), 1e-3)
    if start == "directions":
        S = teacher.prior.second_moment(teacher.indices)
        Q = float(jnp.trace(S)) / teacher.indices * np.eye(learner.network.indices)
        return [
            Start(part * Q, 0.0, V, share * _along(part * Q, teacher))
            for part, share, V in ((0.25, 0.5, loose), (1.0, 0.5, 0.5), (0.25, 0.8, loose))
        ]
    M = 0.8 if start == "informed" else 0.0
    return [Start(part, M * part, V, 0.0) for part, V in ((1.0, 0.5), (0.25, loose))]


def _along(Q: np.ndarray, teacher: IndexModel) -> np.ndarray:
    """B (P, K) of weights that share their norm among the directions."""
    assert teacher.inputs is not None
    gram = np.asarray(teacher.inputs.gram)
    size = np.sqrt(np.diag(gram).clip(0.0) / len(gram))
    return np.sqrt(np.diag(Q))[:, None] * size[None, :]


def _given(number: Array | None) -> Array:
    """A number that a solution of theory has."""
    assert number is not None
    return number


def _is_sought(solution: LearnerSolution, start: str | LearnerSolution) -> bool:
    """Whether a run ended at a fixed point, and of the kind that its start names."""
    if int(solution.result) not in _REACHED:
        return False
    if start == "directions":
        return bool(jnp.max(jnp.abs(_given(solution.direction_overlap))) > _NOTHING)
    return True


def _same(one: LearnerSolution, other: LearnerSolution) -> bool:
    """Whether two fixed points agree, up to signs of the rows of M and B."""
    parts = lambda s: jax.tree.map(
        np.abs,
        (s.overlap, s.covariance, _given(s.teacher_overlap), _given(s.direction_overlap)),
    )
    size = float(jnp.sqrt(jnp.max(jnp.abs(one.overlap))))
    scales = (size**2, float(jnp.max(jnp.abs(one.covariance))), size, size)
    return all(
        bool(np.all(np.abs(a - b) <= _SAME * scale))
        for a, b, scale in zip(parts(one), parts(other), scales, strict=True)
    )
