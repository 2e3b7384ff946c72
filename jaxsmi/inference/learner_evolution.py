r"""State evolution of a learner other than Bayes: its iteration, its error bars, and what it says.

Equations here [Cui24; theory: empirical-risk, Eqs. (9) to (13), (20)], at a fixed point
x = (Q, M, V, B) of the map F (inference/learner_map.py) with Jacobian J:

    train loss  E ℓ_y(prox),   test loss  E ℓ(link(ω), y),   error  E ‖link(ω) - link*(z*)‖²
    energy  E = α E ℓ_y(prox) + (λ/2) tr Q,   dE = ∂Φ at fixed order parameters
    stability: the spectral radius of  T(X) = α Σ_{mn} E[C ∂g_{mn} X ∂g_{mn}ᵀ C]
    δx = (I - J)^{-1} δF: of one rule of the average (error bars), and of a number θ (derivatives)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, frozen, nan, nan_unless, theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.core.driver import Run, init_run, run_solver
from jaxsmi.core.options import Averages, Iteration, Start
from jaxsmi.core.results import LearnerSolution
from jaxsmi.core.validate import check
from jaxsmi.inference.learner_map import Answers, LearnerMap, admissible
from jaxsmi.learners.base import AbstractIndexLearner, Conjugates, Overlaps, Truth, learner_of
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.index import IndexModel
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.numerics.anderson import Anderson, Place
from jaxsmi.numerics.linear_algebra import spectral_radius

__all__ = ["evolved", "initial_overlaps"]

_POINTS = 16384  # empirical: twice those of Bayes, as each has its mirror images
_NETS = 8
_MAX_STEPS = 300
_TOLERANCE = 1e-8  # relative; accelerated steps get there at no cost

_SIGNIFICANT = 5.0  # standard errors between the two estimates of V̂ that are a jump
_SUSPECT = 2.0  # above which V̂ is taken by parts
_NOTICEABLE = 1e-4  # of V̂: what a jump must make of it


def initial_overlaps(start: Start, learner: AbstractIndexLearner, truth: Truth) -> Overlaps:
    """Validate the initial order parameters; NaN where traced ones are not admissible."""
    S = truth.second_moment
    P = learner.network.indices
    K = len(truth.gram)
    identity = jnp.eye(P, dtype=S.dtype)
    # value where None, and what a number multiplies
    defaults = {
        "overlap": (1.0, jnp.trace(S) / len(S) * identity),
        "teacher_overlap": (0.8, _aligned(P, S)),
        "variance": (0.5, identity),
        "direction_overlap": (0.0, jnp.ones((P, K), S.dtype)),
    }
    parts = {}
    for name, (default, unit) in defaults.items():
        value = getattr(start, name)
        value = jnp.asarray(default, S.dtype) if value is None else value
        allowed = f"a number or an array of shape {unit.shape}"
        check(value.shape in ((), unit.shape), name, value, allowed)
        parts[name] = value * unit if value.ndim == 0 else value
    x = Overlaps(*parts.values())
    joint = jnp.block([[x.overlap, x.direction], [x.direction.T, truth.gram]])
    conditions = {
        "variance": (jnp.linalg.eigvalsh(x.covariance)[0] > 0.0, "a positive definite V"),
        "overlap": (jnp.linalg.eigvalsh(x.overlap)[0] > 0.0, "a positive definite Q"),
        "direction_overlap": (
            # an eigenvalue of zero is negative by rounding
            jnp.linalg.eigvalsh(joint)[0] >= -1e-9 * jnp.max(jnp.abs(joint)),
            "B with [[Q, B], [Bᵀ, G]] positive semi-definite",
        ),
        "teacher_overlap": (
            admissible(x, truth),
            "M with S - Mᵀ Q^{-1} M positive semi-definite",
        ),
    }
    for name, (condition, allowed) in conditions.items():
        check(condition, name, parts[name], allowed)
    sound = jnp.all(jnp.stack([condition for condition, _ in conditions.values()]))
    return jax.tree.map(lambda a: jnp.where(sound, a, nan()), x)


def _aligned(indices: int, S: Array) -> Array:
    """M (P, P*) of a student whose indices share those of the teacher evenly, of norm one each."""
    rows = jnp.arange(indices)[:, None]
    columns = jnp.arange(len(S))[None, :]
    fewer = min(indices, len(S))
    shared = (rows % fewer == columns % fewer).astype(S.dtype)
    return shared / jnp.linalg.norm(shared, axis=1, keepdims=True) @ S


def evolved(
    model: AbstractModel,
    alpha: Array,
    learner: AbstractIndexLearner,
    key: PRNGKeyArray | None,
    start: Start,
    averages: Averages,
    iteration: Iteration,
    progress: bool,
) -> LearnerSolution:
    """`state_evolution` of a learner of indices: the fixed point that the iteration reaches."""
    key = validate.key("key", key)
    if start.overlap is not None and start.overlap.ndim == 0:
        validate.number("start", start.overlap, validate.POSITIVE)  # before anything is computed
    learner, teacher = learner_of(learner, model)
    check(not start.aided, "side_information", start.side_information, "0 with a learner")
    truth = truth_of(teacher)
    points, nets = averages.sizes(_POINTS, _NETS, 4)
    initial = lax.stop_gradient(initial_overlaps(start, learner, truth))
    tolerance = _TOLERANCE if iteration.tolerance is None else iteration.tolerance
    settings = _Settings(
        jnp.asarray(tolerance, theory_dtype()),
        iteration.max_steps or _MAX_STEPS,
        iteration.newton is not False,
        progress,
    )
    # where proximal points may jump V̂ is taken by parts, until the fixed point shows no jumps
    looked = learner.jumps and settings.accelerated
    problem = LearnerMap(
        teacher=teacher,
        learner=learner,
        truth=truth,
        encoding=encoding_of(teacher),
        alpha=nan_unless(alpha, validate.valid(teacher), validate.valid(initial)),
        key=key,
        points=points,
        nets=nets,
        jumps=jnp.asarray(learner.kinked or learner.jumps),
    )
    run = _driven(problem, initial, settings)
    if not looked:
        return _solution(problem, run)
    if concrete((problem, run)):
        solution = _solution(problem, run)
        jumps = _differ(solution.state, _SUSPECT)
        if bool(jumps):
            return solution
    else:
        jumps = _differ(_answers(frozen(problem), run.state.x), _SUSPECT)
    problem = eqx.tree_at(lambda p: p.jumps, problem, jumps)
    end = _driven(problem, run.state.x, settings)
    return _solution(problem, Run(end.state, run.step + end.step, end.result, run.history))


_answers = eqx.filter_jit(LearnerMap.answers)


class _Settings(NamedTuple):
    """How the iteration goes."""

    tolerance: Array
    max_steps: int
    accelerated: bool
    progress: bool


def _driven(problem: LearnerMap, start: Overlaps, settings: _Settings) -> Run[Place]:
    """Iterate from a start to the end."""
    iteration = _iteration(frozen(problem), start, settings)
    steps = settings.max_steps
    label = None
    if settings.progress:
        label = f"state evolution of a learner, α={float(problem.alpha):g}"
    return run_solver(iteration, init_run(iteration, steps), steps, label=label)


def truth_of(teacher: IndexModel) -> Truth:
    """What the weights of a model are."""
    P = teacher.indices
    S = teacher.prior.second_moment(P)
    law = teacher.inputs
    if law is None:
        return Truth(teacher.prior, S, jnp.zeros((P, 0), S.dtype), jnp.zeros((0, 0), S.dtype))
    return Truth(teacher.prior, S, law.teacher_overlap(P), law.gram)


def encoding_of(teacher: IndexModel) -> Array:
    """E (M, K) of the inputs; K = 0 where they are centred."""
    if teacher.inputs is None:
        return jnp.zeros((teacher.tokens, 0), theory_dtype())
    return teacher.inputs.encoding


def _iteration(problem: LearnerMap, start: Overlaps, settings: _Settings) -> Anderson:
    return Anderson(
        map_of=_Step(problem),
        initial=start,
        units=_Units(problem.truth),
        admissible=_Admissible(problem.truth),
        observed=_observed,
        tolerance=settings.tolerance,
        accelerated=settings.accelerated,
        max_steps=settings.max_steps,
    )


class _Step(eqx.Module):
    """The map F of the order parameters."""

    problem: LearnerMap

    def __call__(self, x: Overlaps) -> Overlaps:
        return self.problem.step(self.problem.answers(x))[0]


class _Units(eqx.Module):
    """The size of each order parameter: M and B by Q and what they are overlaps with."""

    truth: Truth

    def __call__(self, x: Overlaps) -> Overlaps:
        size = lambda matrix: jnp.trace(matrix) / max(len(matrix), 1)
        Q = size(x.overlap)
        teacher = jnp.sqrt(Q * size(self.truth.second_moment))
        direction = jnp.sqrt(Q * size(self.truth.gram))
        full = lambda array, value: jnp.broadcast_to(value, array.shape)
        return Overlaps(
            full(x.overlap, Q),
            full(x.teacher, teacher),
            full(x.covariance, size(x.covariance)),
            full(x.direction, direction),
        )


class _Admissible(eqx.Module):
    """Whether the map is defined."""

    truth: Truth

    def __call__(self, x: Overlaps) -> Array:
        return admissible(x, self.truth)


def _observed(x: Overlaps) -> dict[str, Array]:
    """What is recorded."""
    return {
        "overlap": x.overlap,
        "teacher_overlap": x.teacher,
        "covariance": x.covariance,
        "direction_overlap": x.direction,
    }


def _differ(answers: Answers, errors: float) -> Array:
    """Whether V̂ by parts and as a divergence differ by so many standard errors, where proximal
    points have rivals: what jumps of g make of it."""
    gap = answers.by_parts - answers.divergence
    spread = jnp.std(gap, axis=0, ddof=1) / jnp.sqrt(float(len(gap)))
    size = jnp.max(jnp.abs(jnp.mean(answers.divergence, 0)))
    differ = jnp.abs(jnp.mean(gap, 0)) > errors * spread + _NOTICEABLE * size
    return jnp.any(differ) & (answers.second > 0.0)


class _Measured(eqx.Module):
    """Numbers of a fixed point."""

    train_loss: Array
    test_loss: Array
    error: Array
    energy: Array


class _End(eqx.Module):
    """What is known at order parameters x: F(x), on average (`value`) and of each rule (`values`),
    the numbers `measured`, on average and of `each` rule, and the `answers` they come from."""

    value: Overlaps
    measured: _Measured
    values: Overlaps
    each: _Measured
    answers: Answers


def _end(problem: LearnerMap, x: Overlaps) -> _End:
    """All of it from one evaluation."""
    answers = problem.answers(x)
    value, values = problem.step(answers)
    ridge = 0.5 * problem.learner.decay * jnp.trace(x.overlap)
    energy = problem.alpha * answers.train_loss + ridge
    each = _Measured(answers.train_loss, answers.test_loss, answers.error, energy)
    return _End(value, jax.tree.map(jnp.mean, each), values, each, answers)


def _differentiated(end: _End) -> tuple[tuple[Overlaps, _Measured], _End]:
    """What has a derivative in x, and all."""
    return (end.value, end.measured), end


def _resolvent(J: Array, move: Overlaps) -> Overlaps:
    """(I - J)^{-1} of a change of the order parameters."""
    flat, build = ravel_pytree(move)
    return build(jnp.linalg.solve(jnp.eye(len(J), dtype=J.dtype) - J, flat))


class _Known(eqx.Module):
    """What a fixed point is, with its derivatives: `x`, `measured` and the `potential`."""

    x: Overlaps
    measured: _Measured
    potential: Array


def _differentiable(
    problem: LearnerMap, known: _Known, conjugates: Conjugates, J: Array, sound: Array
) -> _Known:
    """The numbers of a fixed point with their implicit derivatives; NaN where it is none.

    dx = (I - J)^{-1} ∂F, and of the energy ∂Φ at fixed order parameters.
    """

    def solve(_: LearnerMap, context: _Context) -> _Known:
        return context.known

    def push(
        problem: LearnerMap, context: _Context, prepared: _Known, directions: list[Array]
    ) -> _Known:
        x = context.known.x
        slope = implicit.derivative(lambda m: m.step(m.answers(x))[0], problem, directions)
        moved = _resolvent(context.jacobian, slope)

        along = lambda x, m: _end(m, x).measured
        through = jax.jvp(lambda x: along(x, problem), (x,), (moved,))[1]
        explicit = implicit.derivative(lambda m: along(x, m), problem, directions)
        potential = implicit.derivative(
            lambda m: m.potential(x, context.conjugates, jnp.mean(m.answers(x).envelope)),
            problem,
            directions,
        )
        measured = jax.tree.map(jnp.add, through, explicit)
        measured = eqx.tree_at(lambda m: m.energy, measured, potential)
        return jax.tree.map(lambda a: context.weight * a, _Known(moved, measured, potential))

    context = _Context(known, conjugates, J, jnp.where(sound, 1.0, nan()))
    return implicit.differentiable(solve, push, problem, context)


class _Context(eqx.Module):
    """What the derivatives need besides the problem."""

    known: _Known
    conjugates: Conjugates
    jacobian: Array
    weight: Array


def _code(problem: LearnerMap, end: Run[Place], answers: Answers, stability: Array) -> Array:
    """What became of the iteration."""
    success = end.result == Result.SUCCESS
    jumps = problem.learner.jumps & _differ(answers, _SIGNIFICANT)
    unstable = (stability >= 1.0) | jumps
    missed = answers.residual > problem.learner.tolerance
    code = jnp.where(success & missed, Result.INACCURATE, end.result)
    code = jnp.where(success & unstable, Result.UNSTABLE, code)
    return jnp.where(jnp.isnan(problem.alpha), Result.INVALID, code)


@eqx.filter_jit
def _solution(problem: LearnerMap, run: Run[Place]) -> LearnerSolution:
    """What the end of the iteration says."""
    still = frozen(problem)
    x = run.state.x
    _, push, end = jax.linearize(lambda x: _differentiated(_end(still, x)), x, has_aux=True)
    flat, build = ravel_pytree(x)
    columns = lax.map(lambda unit: ravel_pytree(push(build(unit))[0])[0], jnp.eye(flat.size))
    J = columns.T
    errors = _errors(x, end, J, push)
    answers = end.answers
    average = jax.tree.map(lambda c: jnp.mean(c, 0), answers.conjugates)
    squared = problem.learner.moments(average, problem.truth).squared
    stability = fixed_point.perron_value(jnp.einsum("abcd,cdef->abef", squared, answers.squared))
    code = _code(still, run, answers, stability)
    sound = (code == Result.SUCCESS) | (code == Result.UNSTABLE) | (code == Result.INACCURATE)
    potential = still.potential(x, average, jnp.mean(answers.envelope))
    known = _differentiable(problem, _Known(x, end.measured, potential), average, J, sound)
    lost = (code == Result.INVALID) | (code == Result.DIVERGED)
    masked = lambda a: jnp.where(lost, nan(), a)
    known, bars = jax.tree.map(
        masked, (known, jax.tree.map(lambda e: jnp.where(sound, e, nan()), errors))
    )
    x, measured = known.x, known.measured
    return LearnerSolution(
        overlap=x.overlap,
        stderr=bars[0].overlap,
        error=measured.error,
        alpha=problem.alpha,
        steps=run.step,
        residual=run.state.residual,
        result=code,
        history=run.history,
        covariance=x.covariance,
        spectral_radius=masked(spectral_radius(J)),
        state=answers,
        model=problem.teacher,
        key=problem.key,
        kind="state_evolution",
        teacher_overlap=x.teacher,
        direction_overlap=x.direction,
        train_loss=measured.train_loss,
        test_loss=measured.test_loss,
        energy=measured.energy,
        potential=known.potential,
        stability=masked(stability),
        jump_fraction=masked(answers.second),
        stderrs=_named(*bars),
    )


def _errors(
    x: Overlaps, end: _End, J: Array, push: Callable[[Overlaps], tuple[Overlaps, _Measured]]
) -> tuple[Overlaps, _Measured]:
    """Standard errors from the spread over the rules of the average: of the fixed point, which an
    error of F moves by (I - J)^{-1}, and of the numbers measured there; with them (I - J)^{-1} of
    the residual at x, which the tolerance leaves open."""
    off = jax.tree.map(lambda r, v: r - v, end.values, end.value)
    moves = jax.vmap(lambda move: _resolvent(J, move))(off)
    through = jax.vmap(lambda move: push(move)[1])(moves)
    spread = lambda moved: jnp.sqrt(jnp.sum(moved**2, 0) / (len(moved) * (len(moved) - 1.0)))
    measured = jax.tree.map(lambda r, m, d: spread(r - m + d), end.each, end.measured, through)
    rest = _resolvent(J, jax.tree.map(lambda f, x: f - x, end.value, x))
    spreads = (jax.tree.map(spread, moves), measured)
    return jax.tree.map(jnp.hypot, spreads, (rest, push(rest)[1]))


def _named(x: Overlaps, measured: _Measured) -> dict[str, Array]:
    """Standard errors by the names of a solution."""
    return {
        "teacher_overlap": x.teacher,
        "covariance": x.covariance,
        "direction_overlap": x.direction,
        "train_loss": measured.train_loss,
        "test_loss": measured.test_loss,
        "error": measured.error,
        "energy": measured.energy,
    }
