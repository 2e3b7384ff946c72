r"""State evolution: what message passing does as D → ∞, and where it ends.

Equations here [TCDKZ25; theory: multi-index, Eqs. (43) to (48)], S the second moment of the prior:

    Q̂ = α · channel.response(Q),   Q ← prior.overlap(Q̂)        (Gaussian prior: Q̂ (I + Q̂)^{-1})

Undamped message passing at iteration t has the overlap Q^t. The iteration is carried on
V = S - Q, which stays accurate when it goes to zero. Each learner is a map of order parameters
(`order_map`): Bayes (`overlap_map`), minimisers and other posteriors (`learner_map`), and both for
a matrix, whose averages are explicit (`matrix_map`).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.options import Averages, Bayes, Iteration, Start
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.inference.learner_map import LearnerMap
from jaxsmi.inference.matrix_map import MatrixLearnerMap, PrecisionMap
from jaxsmi.inference.order_map import AbstractOrderMap, Settings, finish
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.models.base import AbstractModel, model_argument

# empirical: a hundred plain steps next to a threshold, before Newton steps begin
_MAX_STEPS = 300


def state_evolution(
    model: AbstractModel,
    alpha: ArrayLike,
    *,
    key: PRNGKeyArray | None = None,
    learner: Bayes | AbstractLearner | None = None,
    start: ArrayLike | Start | None = None,
    averages: Averages = Averages(),  # noqa: B008  (immutable)
    iteration: Iteration = Iteration(),  # noqa: B008
    progress: bool = False,
) -> Solution:
    r"""Solve state evolution: the overlap that message passing reaches at α, with its error bar.

        Q̂ = α E Σ_m g gᵀ,   Q ← prior.overlap(Q̂)

    The functions of models of one matrix are explicit: the fixed point is then a root, without
    random points or an iteration, and `start`, `averages` and a tolerance must be left out. Two
    layers of `AttentionIndexed` are solved under an ansatz (`model.metric.ansatz`, also a warning):
    overlaps between the layers are those of their means.

    Args:
        model: Any model with a channel.
        alpha: Sample complexity, a number > 0: N/D for index models, n/d² or n/(dL) for matrices.
        key: Random key of the outer average, common random numbers: two calls with one key differ
            smoothly. Matrix models need none.
        learner: The learner, if not Bayes: `smi.Erm` or `smi.Mismatched`; for a matrix
            `smi.MatrixErm`.
        start: Initial overlap, a number (times the second moment S) or (P, P), 0 ⪯ Q ≺ S. A small
            one is uninformed, one near S informed. Default 1e-3, plus the overlap of the prior's
            mean. A `smi.Start` also sets side information (λ/(1-λ) is added to Q̂; λ = 1/D is what
            chance tells a run of dimension D about an unlearned direction) and, with a learner, M,
            V and B; defaults with a learner: Q = tr S/P, 0.8 of the teacher shared evenly, V = 1/2,
            B = 0.
        averages: `smi.Averages(points, nets)`. Default 8192 points, with a learner 16384, in 8
            nets.
        iteration: `smi.Iteration(max_steps, tolerance, newton)`. Default 300 steps; tolerance: the
            largest distance to the fixed point, entry by entry, 1e-4 (with a learner the largest
            relative residual, 1e-8); newton: end by Newton steps (with a learner: accelerated
            ones), True. False gives the plain undamped trajectory; for matrix models that from
            q̂ = 0, and their history is empty otherwise.
        progress: Show a bar on stderr (not under jit).

    Returns:
        A `Solution` with `overlap` Q, its error `stderr` (statistical, and the error implied by the
        tolerance; NaN where not converged), `covariance` V, plug-in `error`, `spectral_radius` of
        the map, and `history` with one entry a step ("step", "overlap", "covariance", "residual").
        Codes: SUCCESS, RECOVERED, MARGINAL, MAX_STEPS, INACCURATE, NONFINITE, INVALID. With a
        learner a `LearnerSolution`, with `teacher_overlap` M, `direction_overlap` B, losses,
        `energy`, `stability`, and the codes UNSTABLE and DIVERGED.
        `overlap`, `covariance` and `error` have one derivative, forwards and backwards, in α and in
        every array of the model, dV = (I - J)^{-1} ∂F: NaN where the fixed point is marginal or was
        not reached, for the `error` of links that jump, and in the numbers of those whose average
        is along sampled labels (not in α). Matrix models have two, with a learner one.

    Raises:
        ValueError: For an argument out of its range, or a model without inference. Under jit the
            result is NaN with the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> solution = smi.state_evolution(smi.links.linear(0.5), 1.0, key=jax.random.key(0))
        >>> round(float(solution.overlap[0, 0]), 4)  # q = q̂/(1 + q̂), q̂ = α/(1 - q + Δ)
        0.5

    Cost:
        `points` posteriors a step: 8192 of two-layer attention take about 0.3 s on one core.

    Source:
        [TCDKZ25], [theory: multi-index, Eqs. (42) to (48), (70) to (72)]; matrix models
        [theory: attention-indexed, Eq. (27)].
    """
    bayes = learner is None or isinstance(learner, Bayes)
    model = model_argument(model, "inference" if bayes else None)
    alpha = validate.number("alpha", alpha, POSITIVE)
    key = validate.optional(validate.key, "key", key)
    start = as_start(start)
    validate_settings(averages, iteration, progress)
    if bayes:
        if not model.channel.explicit:
            return solve(OverlapMap.of(model, alpha, key, start, averages), iteration, progress)
        _check_explicit(start, averages)
        check(iteration.tolerance is None, "tolerance", iteration.tolerance, "None: a root")
        return solve(PrecisionMap.of(model, alpha, key), iteration, progress)
    allowed = "smi.Bayes(), smi.Erm(..), smi.Mismatched(..) or smi.MatrixErm(..)"
    learner = validate.instance("learner", learner, AbstractLearner, allowed)
    if not learner.explicit:
        problem = LearnerMap.of(model, learner, alpha, key, start, averages)
        return solve(problem, iteration, progress)
    _check_explicit(start, averages)
    return solve(MatrixLearnerMap.of(model, learner, alpha, key), iteration, progress)


def solve(
    problem: tuple[AbstractOrderMap, PyTree], iteration: Iteration, progress: bool
) -> Solution:
    """The fixed point of a map from its start."""
    order_map, start = problem
    steps = iteration.max_steps or _MAX_STEPS
    tolerance = order_map.tolerance if iteration.tolerance is None else iteration.tolerance
    tolerance = jnp.asarray(tolerance, theory_dtype())
    label = f"state evolution, α={float(order_map.alpha):g}" if progress else None
    settings = Settings(steps, tolerance, iteration.newton is not False, label)
    return finish(*order_map.solve(start, settings))


def validate_settings(averages: object, iteration: object, progress: object) -> None:
    """Validate the records of settings of a public function."""
    validate.instance("averages", averages, Averages, "smi.Averages(points, nets)")
    validate.instance("iteration", iteration, Iteration, "smi.Iteration(max_steps, ..)")
    validate.optional(validate.flag, "progress", progress)


def as_start(start: ArrayLike | Start | None) -> Start:
    """A start as the record: an overlap stands for `Start(overlap)`."""
    if isinstance(start, Start):
        check(start.weights is None, "start.weights", start.weights, "None in theory: an overlap")
        return start
    allowed = "an overlap (a number or (P, P)), or smi.Start(..)"
    overlap = validate.optional(validate.array, "start", start, allowed)
    check(overlap is None or overlap.ndim in (0, 2), "start", start, allowed)
    return Start(overlap)


def _check_explicit(start: Start, averages: Averages) -> None:
    """Raise a ValueError for settings of an iteration on random points, which would be ignored."""
    reason = "for a matrix model, whose averages need no random points and no start"
    numbers = (start.overlap, start.teacher_overlap, start.variance, start.direction_overlap)
    check(all(x is None for x in numbers) and not start.aided, "start", start, f"None {reason}")
    unset = averages.points is None and averages.nets is None
    check(unset, "averages", averages, f"the default {reason}")
