r"""State evolution of a learner other than Bayes: its iteration, its error bars, and what it says.

Equations here [Cui24; theory: empirical-risk, Eqs. (9) to (13), (20)], at a fixed point
x = (Q, M, V, B) of the map F (inference/learner_map.py) with Jacobian J:

    train loss  E ℓ_y(prox),   test loss  E ℓ(link(ω), y),   error  E ‖link(ω) - link*(z*)‖²
    energy  E = α E ℓ_y(prox) + (λ/2) tr Q,   dE = ∂Φ at fixed order parameters
    stability: the spectral radius of  T(X) = α Σ_{mn} E[C ∂g_{mn} X ∂g_{mn}ᵀ C]
    δx = (I - J)^{-1} δF: of one rule of the average (error bars), and of a number θ (derivatives)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, frozen, theory_dtype
from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.core.driver import Run, drive, ready
from jaxsmi.core.results import LearnerSolution
from jaxsmi.inference.learner_map import Answers, LearnerMap, admissible
from jaxsmi.learners.base import AbstractLearner, Conjugates, Overlaps, Truth
from jaxsmi.models.index import IndexModel
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.numerics.anderson import Anderson, Place
from jaxsmi.numerics.linear_algebra import spectral_radius

__all__ = ["Settings", "Start", "evolved"]

_SIGNIFICANT = 5.0  # standard errors between the two estimates of V̂ that are a jump
_SUSPECT = 2.0  # above which V̂ is taken by parts
_NOTICEABLE = 1e-4  # of V̂: what a jump must make of it


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an iteration goes: sizes of the average, steps, and whether they are accelerated."""

    samples: int
    randomisations: int
    max_steps: int
    accelerated: bool
    progress: bool


@dataclasses.dataclass(frozen=True)
class Start:
    """Where it begins, as `state_evolution` takes them: numbers, arrays, or None for the usual."""

    overlap: ArrayLike | None
    teacher: ArrayLike | None
    covariance: ArrayLike | None
    direction: ArrayLike | None

    def at(self, learner: AbstractLearner, truth: Truth, arguments: Arguments) -> Overlaps:
        """The order parameters (P, P), (P, P*), (P, P), (P, K) of the start, checked."""
        S = truth.second_moment
        P = learner.network.indices
        identity = jnp.eye(P, dtype=S.dtype)
        scale = jnp.trace(S) / len(S)
        shapes = {"q0": (P, P), "m0": (P, len(S)), "v0": (P, P), "b0": (P, len(truth.gram))}
        usual = {"q0": scale * identity, "m0": _aligned(P, S), "v0": identity}
        usual["b0"] = jnp.ones(shapes["b0"], S.dtype)
        values = (
            1.0 if self.overlap is None else self.overlap,
            0.8 if self.teacher is None else self.teacher,
            0.5 if self.covariance is None else self.covariance,
            0.0 if self.direction is None else self.direction,
        )
        made = {}
        for (name, shape), value in zip(shapes.items(), values, strict=True):
            allowed = f"a number or an array of shape {shape}"
            given = arguments.array(name, value, allowed)
            check(given.shape in ((), shape), name, value, allowed)
            made[name] = given * usual[name] if given.ndim == 0 else given
        x = Overlaps(made["q0"], made["m0"], made["v0"], made["b0"])
        definite = jnp.linalg.eigvalsh(x.covariance)[0] > 0.0
        arguments.condition(definite, "v0", self.covariance, "a positive definite V")
        definite = jnp.linalg.eigvalsh(x.overlap)[0] > 0.0
        arguments.condition(definite, "q0", self.overlap, "a positive definite Q")
        joint = jnp.block([[x.overlap, x.direction], [x.direction.T, truth.gram]])
        possible = jnp.linalg.eigvalsh(joint)[0] >= -1e-9 * jnp.max(jnp.abs(joint))
        allowed = "B with [[Q, B], [Bᵀ, G]] positive semi-definite"
        arguments.condition(possible, "b0", self.direction, allowed)
        allowed = "M with S - Mᵀ Q^{-1} M positive semi-definite"
        arguments.condition(admissible(x, truth), "m0", self.teacher, allowed)
        return x


def _aligned(indices: int, S: Array) -> Array:
    """M (P, P*) of a student whose indices share those of the teacher evenly, of norm one each."""
    rows = jnp.arange(indices)[:, None]
    columns = jnp.arange(len(S))[None, :]
    fewer = min(indices, len(S))
    shared = (rows % fewer == columns % fewer).astype(S.dtype)
    return shared / jnp.linalg.norm(shared, axis=1, keepdims=True) @ S


def evolved(
    teacher: IndexModel,
    alpha: Array,
    learner: AbstractLearner,
    key: PRNGKeyArray,
    start: Overlaps,
    tolerance: Array,
    settings: Settings,
    valid: Array,
) -> LearnerSolution:
    """The fixed point of a learner that the iteration from a start reaches (module docstring)."""
    truth = truth_of(teacher)
    # where proximal points may jump V̂ is taken by parts, until it is seen that none do
    looked = learner.jumps and settings.accelerated
    problem = LearnerMap(
        teacher=teacher,
        learner=learner,
        truth=truth,
        encoding=encoding_of(teacher),
        alpha=jnp.where(valid & validate.valid(teacher), alpha, jnp.nan),
        key=key,
        samples=settings.samples,
        randomisations=settings.randomisations,
        jumps=jnp.asarray(learner.kinked or learner.jumps),
    )
    start = lax.stop_gradient(start)
    run = _driven(problem, start, tolerance, settings)
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
    end = _driven(problem, run.state.x, tolerance, settings)
    return _solution(problem, Run(end.state, run.step + end.step, end.result, run.history))


_answers = eqx.filter_jit(LearnerMap.answers)


def _driven(
    problem: LearnerMap, start: Overlaps, tolerance: Array, settings: Settings
) -> Run[Place]:
    """The iteration from a start to its end."""
    iteration = _iteration(frozen(problem), start, tolerance, settings)
    steps = settings.max_steps
    label = None
    if settings.progress:
        label = f"state evolution of a learner, α={float(problem.alpha):g}"
    return drive(iteration, ready(iteration, steps), steps, label=label)


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


def _iteration(
    problem: LearnerMap, start: Overlaps, tolerance: Array, settings: Settings
) -> Anderson:
    """The solver."""
    return Anderson(
        map_of=_Step(problem),
        initial=start,
        units=_Units(problem.truth),
        admissible=_Admissible(problem.truth),
        observed=_observed,
        tolerance=tolerance,
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

    context = _Context(known, conjugates, J, jnp.where(sound, 1.0, jnp.nan))
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
    masked = lambda a: jnp.where(lost, jnp.nan, a)
    known, bars = jax.tree.map(
        masked, (known, jax.tree.map(lambda e: jnp.where(sound, e, jnp.nan), errors))
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
        rho=masked(spectral_radius(J)),
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
