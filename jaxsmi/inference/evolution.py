r"""State evolution: what message passing does as D → ∞, and where it ends.

Equations here [TCDKZ25; theory: multi-index, Eqs. (43) to (48)], S the second moment of the prior:

    Q̂ = α · channel.response(Q),   Q ← prior.overlap(Q̂)        (Gaussian prior: Q̂ (I + Q̂)^{-1})

Undamped message passing at iteration t has the overlap Q^t. The iteration is carried on
V = S - Q, which stays accurate when it goes to zero (`overlap_map`). Where the overlap is one
number and both functions are explicit, as for matrix models, a root takes its place (`inversion`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import arithmetic, frozen, nan, nan_unless, not_recorded
from jaxsmi.core.codes import INACCURATE_SHARE, Result
from jaxsmi.core.driver import Run, init_run, run_solver
from jaxsmi.core.options import Averages, Bayes, Iteration, Start
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.inference.inversion import inverted
from jaxsmi.inference.learner_evolution import evolved
from jaxsmi.inference.matrix_learner import matrix_evolved
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.models.base import AbstractModel, model_argument
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.numerics.fixed_point import Iterate
from jaxsmi.numerics.nets import power_of_two

__all__ = ["state_evolution"]

_MARGIN = 1e-3  # a spectral radius within this of one is a threshold: no derivative there
_START = 1e-3  # overlap of an uninformed start: zero is a fixed point of even links
_POINTS = 8192  # empirical: standard error 1e-3 for two layers at α = .5
_NETS = 8
_MAX_STEPS = 300
_TOLERANCE = 1e-4


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
    known = learner is None or isinstance(learner, Bayes)
    model = model_argument(model, "inference" if known else None)
    alpha = validate.number("alpha", alpha, POSITIVE)
    key = validate.optional(validate.key, "key", key)
    start = as_start(start)
    validate.instance("averages", averages, Averages, "smi.Averages(points, nets)")
    validate.instance("iteration", iteration, Iteration, "smi.Iteration(max_steps, ..)")
    validate.optional(validate.flag, "progress", progress)
    if learner is None or isinstance(learner, Bayes):
        if not model.channel.explicit:
            return solve(model, alpha, key, start, averages, iteration, progress)[1]
        _check_explicit(start, averages)
        check(iteration.tolerance is None, "tolerance", iteration.tolerance, "None: a root")
        steps = 0 if iteration.newton is not False else iteration.max_steps or _MAX_STEPS
        alpha = nan_unless(alpha, validate.valid(model))
        return inverted(model, alpha, key, steps)  # pyright: ignore[reportArgumentType]
    allowed = "smi.Bayes(), smi.Erm(..), smi.Mismatched(..) or smi.MatrixErm(..)"
    learner = validate.instance("learner", learner, AbstractLearner, allowed)
    if learner.explicit:
        _check_explicit(start, averages)
    return _ENGINES[learner.explicit](
        model, alpha, learner, key, start, averages, iteration, progress
    )


# of a learner with averages over random points, and of one with explicit averages
_ENGINES: Mapping[bool, Callable[..., Solution]] = {False: evolved, True: matrix_evolved}


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


def solve(
    model: AbstractModel,
    alpha: Array,
    key: PRNGKeyArray | None,
    start: Start,
    averages: Averages,
    iteration: Iteration,
    progress: bool,
) -> tuple[OverlapMap, Solution]:
    """Iterate the map of a model whose response is an average over random points."""
    key = validate.key("key", key)
    if start.overlap is not None and start.overlap.ndim == 0:
        validate.number("start", start.overlap, validate.FRACTION)  # before anything is computed
    if model.metric.ansatz is not None:
        warnings.warn(model.metric.ansatz, stacklevel=4)
    numbers = (start.teacher_overlap, start.variance, start.direction_overlap)
    allowed = "an overlap alone without a learner: Bayes has M = Q and V = S - Q"
    check(all(x is None for x in numbers), "start", start, allowed)
    points, nets = averages.sizes(_POINTS, _NETS, 2)
    strength = start.side_information
    S = model.prior.second_moment(model.indices)
    xp = arithmetic(S)
    S = xp.asarray(S)
    prior_overlap = xp.asarray(model.prior.mean_overlap(model.indices))
    uninformed = prior_overlap + _START * (S - prior_overlap)
    Q0 = validate.overlap("start", uninformed if start.overlap is None else start.overlap, S)
    # outside jit all of this holds; inside, a bad value becomes a bad α: NaN and the code INVALID
    overlap_map = OverlapMap(
        model,
        nan_unless(alpha, validate.valid((Q0, strength)), validate.valid(model)),
        key,
        power_of_two(max(points, 2)),
        nets,
        strength / (1.0 - strength),
    )
    # derivatives come from the fixed point, not from the way to it
    V0 = lax.stop_gradient(jnp.asarray(S - arithmetic(S, Q0).asarray(Q0)))
    steps = iteration.max_steps or _MAX_STEPS
    tolerance = _TOLERANCE if iteration.tolerance is None else iteration.tolerance
    solver = frozen(overlap_map).iteration(
        V0,
        max_steps=steps,
        tolerance=jnp.asarray(tolerance, V0.dtype),
        newton=iteration.newton is not False,
    )
    label = f"state evolution, α={float(overlap_map.alpha):g}" if progress else None
    end = run_solver(solver, init_run(solver, steps), steps, label=label)
    return overlap_map, _solution(overlap_map, end)


def _differentiable(overlap_map: OverlapMap, V: Array, code: Array) -> Array:
    """V of the fixed point with its implicit derivative (I - J)^{-1} ∂F.

    It is zero at perfect recovery, and NaN where the fixed point is marginal or not reached.
    """
    regular = (code == Result.SUCCESS) | (code == Result.INACCURATE)
    unknown = not_recorded((), jnp.result_type(float))
    weight = jnp.where(code == Result.RECOVERED, 0.0, jnp.where(regular, 1.0, unknown))

    def solve(_: OverlapMap, context: tuple[Array, Array]) -> Array:
        return context[0]

    def prepare(
        overlap_map: OverlapMap, context: tuple[Array, Array], V: Array
    ) -> tuple[Array, Array]:
        regular = overlap_map.model.channel.pathwise
        stated = overlap_map.evaluate(V).jacobian
        if regular is False:
            return V, stated
        Q = overlap_map.second_moment - V
        pathwise = fixed_point.pathwise_jacobian(overlap_map.evaluate, V, Q)
        return V, jnp.where(regular, pathwise, stated)

    def push(
        overlap_map: OverlapMap,
        context: tuple[Array, Array],
        prepared: tuple[Array, Array],
        directions: list[Array],
    ) -> Array:
        V, J = prepared
        slope = implicit.derivative(lambda m: m.evaluate(V).value, overlap_map, directions)
        # where labels jump, those of the model's numbers miss the jumps; that in α is exact
        numbers = len(implicit.numbers_of(overlap_map.model)[0])
        moves = sum(jnp.sum(jnp.abs(x)) for x in directions[:numbers]) > 0.0
        known = jnp.where(moves, overlap_map.model.channel.pathwise, True)
        return context[1] * fixed_point.resolvent(J, jnp.where(known, slope, jnp.nan))

    return implicit.differentiable(solve, push, overlap_map, (V, weight), prepare)


@eqx.filter_jit
def _solution(overlap_map: OverlapMap, end: Run[Iterate]) -> Solution:
    """What the end of the iteration says, with derivatives, errors and a result code."""
    S = overlap_map.second_moment
    model = overlap_map.model
    last = end.state
    success = end.result == Result.SUCCESS
    inaccurate = last.evaluation.inaccurate
    code = jnp.where(success & (inaccurate > INACCURATE_SHARE), Result.INACCURATE, end.result)
    code = jnp.where(success & (last.rho > 1.0 - _MARGIN), Result.MARGINAL, code)
    recovered = end.result == Result.RECOVERED
    moved = _differentiable(overlap_map, last.V, code)
    V = jnp.where(recovered, 0.0, moved)
    error = model.metric.theory_error(
        moved, key=jax.random.fold_in(overlap_map.key, 2), points=overlap_map.points
    )
    spread = fixed_point.propagated_error(last.evaluation.jacobian, last.evaluation.replicas)
    stderr = jnp.hypot(spread, last.open)
    stderr = jnp.where(code == Result.MAX_STEPS, nan(), stderr)
    invalid = ~(jnp.isfinite(overlap_map.alpha) & (overlap_map.alpha > 0))
    code = jnp.where(invalid, Result.INVALID, code)
    lost = invalid | (code == Result.NONFINITE)

    def masked(x: Array) -> Array:
        return jnp.where(lost, nan(), x)

    def unless_invalid(x: Array) -> Array:
        return jnp.where(invalid, nan(), x)

    return Solution(
        overlap=masked(S - V),
        stderr=masked(jnp.where(recovered, 0.0, stderr)),
        error=masked(jnp.where(recovered, 0.0, error)),
        alpha=overlap_map.alpha,
        steps=end.step,
        residual=last.residual,
        result=code,
        history=jax.tree.map(unless_invalid, end.history),
        covariance=masked(V),
        spectral_radius=last.rho,
        model=model,
        key=overlap_map.key,
        kind="state_evolution",
    )
