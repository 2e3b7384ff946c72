r"""State evolution of learners other than Bayes: their iteration, and the map of those of indices.

Equations here [Cui24; theory: empirical-risk, Eqs. (9) to (13), (20)], averages of
inference/label_averages.py, at a fixed point x = (Q, M, V, B):

    Q, M, V, B ← learner.weight_averages(Q̂, M̂, V̂, B̂)
    train loss  E ℓ_y(prox),   test loss  E ℓ(link(ω), y),   error  E ‖link(ω) - link*(z*)‖²
    energy  E = α E ℓ_y(prox) + E r(f), r the penalty,   dE = ∂Φ at fixed order parameters
    stability: the spectral radius of  T(X) = α Σ_{mn} E[C ∂g_{mn} X ∂g_{mn}ᵀ C]
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, concrete, frozen, missing, missing_array, nan_unless
from jaxsmi.core.driver import Run
from jaxsmi.core.options import Start
from jaxsmi.core.results import Result, choose
from jaxsmi.core.solution import LearnerSolution, Solution
from jaxsmi.core.validate import check
from jaxsmi.inference.label_averages import LabelAverages, LearnerAverages
from jaxsmi.inference.order_map import (
    AbstractOrderMap,
    Arguments,
    End,
    Numbers,
    Settings,
    run_from,
)
from jaxsmi.learners.base import (
    AbstractIndexLearner,
    Conjugates,
    OrderParameters,
    WeightAverages,
    learner_of,
)
from jaxsmi.numerics import fixed_point
from jaxsmi.numerics.anderson import Anderson, AndersonState
from jaxsmi.numerics.linear_algebra import spectral_radius
from jaxsmi.numerics.quadrature import standard_error

_POINTS = 32768  # empirical: twice those of Bayes, as each has its mirror images
NETS = 16

# standard errors by which the two estimates of V̂ must differ to count as a jump
_SIGNIFICANT = 5.0
_SUSPECT = 2.0  # standard errors above which V̂ is taken by parts
_NOTICEABLE = 1e-4  # share of V̂ below which a jump does not matter
_NOTHING = 0.1  # cosine below which M may be zero: 2048 points of |z| left 0.04
_ROUGHLY = 1e-4  # tolerance of plain steps before accelerated ones
_GROWS = 0.01  # growth of M beyond one, less of which is not told from none
# Q or V without a ridge, of a run that took all its steps, and of one that seems to have ended.
# Least squares have V = 1/(α - 1) above the interpolation threshold; where labels can be fitted
# V grows without bound.
_UNBOUNDED, _INFINITE = 1e4, 1e8
# First ridge for a run that did not end, and number of ridges down to λ. Empirical: the logistic
# loss at α = 50 fails with factors of 10 at λ = 0.01, with factors of 3.2 at λ = 0.003.
_EASY_RIDGE, _RIDGES = 0.1, 8


class Bars(NamedTuple):
    """Errors of numbers: their `spread` between the rules of an average, and their `distance` from
    those of the fixed point."""

    spread: Numbers
    distance: Numbers


Push = Callable[[PyTree], tuple[PyTree, Numbers]]


class AbstractLearnerMap(AbstractOrderMap):
    """The map of a learner, whose fixed point accelerated steps find.

    Attributes:
        growth: Of the part of a step that is taken (`Anderson`).
    """

    solution: ClassVar[type[Solution]] = LearnerSolution
    tolerance: ClassVar[float] = 1e-8  # relative; accelerated steps get there at no cost
    growth: ClassVar[float] = 1.0

    def value(self, x: PyTree) -> PyTree:
        """F(x)."""
        return self(x)[0]

    @abc.abstractmethod
    def units(self, x: PyTree) -> PyTree:
        """The size of each order parameter, which residuals are measured by."""

    @abc.abstractmethod
    def admissible(self, x: PyTree) -> Array:
        """True where the map is defined."""

    @abc.abstractmethod
    def observed(self, x: PyTree) -> Numbers:
        """The record of a step."""

    def _bars(
        self,
        numbers: Numbers,
        residual: PyTree,
        rules: tuple[PyTree, Numbers],
        push: Push,
        J: Array,
    ) -> Bars:
        """Errors of all numbers at x.

        Args:
            numbers: Those at x.
            residual: F(x) - x.
            rules: Differences of F, and of the numbers at fixed x, between each rule (R, ..) and
                the mean over rules.
            push: Derivative of F and of the numbers along a change of x.
            J: (n, n).
        """
        stationary = dict.fromkeys(self.stationary, jnp.zeros(()))
        nothing = jax.tree.map(jnp.zeros_like, numbers)
        pair = lambda numbers: (numbers["teacher_overlap"], numbers["overlap"])

        def carried(move: PyTree, change: Numbers) -> Numbers:
            """Propagate changes of F and of the numbers at fixed x to all numbers."""
            response = push(fixed_point.resolvent(J, move))[1] | stationary
            total = jax.tree.map(jnp.add, nothing | change, response)
            return total | {"cosine": jax.jvp(self._cosines, pair(numbers), pair(total))[1]}

        # the part that the tolerance leaves open is no fluctuation: it is added in quadrature
        distance = carried(residual, {})
        return Bars(jax.tree.map(standard_error, jax.vmap(carried)(*rules)), distance)

    def _cosines(self, M: Array, Q: Array) -> Array:
        """Compute `LearnerSolution.cosines`."""
        return self.model.metric.cosines(M, Q, self.model.prior.second_moment(M.shape[1]))

    def iterate(self, start: PyTree, settings: Settings) -> Run[AndersonState]:
        """The end of the iteration from a start."""
        frozen_map = frozen(self)
        solver = Anderson(
            map_of=frozen_map.value,
            # derivatives come from the fixed point, not from the way to it
            initial=lax.stop_gradient(start),
            units=frozen_map.units,
            admissible=frozen_map.admissible,
            observed=frozen_map.observed,
            tolerance=settings.tolerance,
            accelerated=settings.newton,
            max_steps=settings.max_steps,
            growth=self.growth,
        )
        return run_from(solver, settings)

    def _without_jumps(
        self, run: Run[AndersonState], settings: Settings
    ) -> tuple[Self, Run[AndersonState]]:
        """Repeat a run with V̂ by parts, with V̂ as a divergence, if the fixed point shows no
        jumps."""
        regularity = self.averages().learner.regularity
        # the divergence of a response with kinks is noisy
        if regularity.kinks or not (regularity.jumps and settings.newton):
            return self, run
        use_parts = _differ(self.answers_at(run), _SUSPECT)
        if concrete(use_parts) and bool(use_parts):
            return self, run
        order_map = self.with_parts(use_parts)
        end = order_map.iterate(run.state.x, settings)
        return order_map, Run(end.state, run.step + end.step, end.result, run.history)

    def answers_at(self, run: Run[AndersonState]) -> LearnerAverages:
        """Averages over labels at the end of a run."""
        return _answers(frozen(self.averages()), self.parameters(run.state.x))

    @abc.abstractmethod
    def averages(self) -> LabelAverages:
        """The averages over labels that the map is made of."""

    @abc.abstractmethod
    def parameters(self, x: PyTree) -> OrderParameters:
        """Order parameters of the averages over labels."""

    def with_parts(self, use_parts: Array) -> Self:
        """The map with V̂ by parts, or as a divergence."""
        return eqx.tree_at(lambda p: p.averages().use_parts, self, use_parts)


class LearnerMap(LabelAverages, AbstractLearnerMap):
    """State evolution of a learner of indices on labels of a teacher at one α."""

    stationary: ClassVar[tuple[str, ...]] = ("energy", "potential")

    @classmethod
    def of(cls, arguments: Arguments) -> tuple[LearnerMap, OrderParameters]:
        """The map and the first order parameters."""
        model, alpha, key, start, averages, learner = arguments
        key = validate.key("key", key)
        if start.overlap is not None and start.overlap.ndim == 0:
            validate.number("start", start.overlap, validate.POSITIVE)  # before any computation
        student, teacher = learner_of(learner, model)
        check(not start.aided, "side_information", start.side_information, "0 with a learner")
        points_per_net, nets = averages.sizes(_POINTS, NETS, 4)
        # proximal points may jump: V̂ is taken by parts until the fixed point shows no jumps
        use_parts = jnp.asarray(student.regularity.kinks or student.regularity.jumps)
        order_map = cls(teacher, alpha, key, student, points_per_net, nets, use_parts)
        x = order_map._initial(start)
        alpha = nan_unless(alpha, validate.valid(teacher), validate.valid(x))
        return eqx.tree_at(lambda p: p.alpha, order_map, alpha), x

    def _initial(self, start: Start) -> OrderParameters:
        """Validate the initial order parameters; NaN where traced ones are not admissible."""
        teacher = self.teacher_law
        S = teacher.second_moment
        P = self.learner.network.indices
        identity = jnp.eye(P, dtype=S.dtype)
        # the value for None, and the matrix that a number multiplies
        defaults = {
            "overlap": (1.0, jnp.trace(S) / len(S) * identity),
            "teacher_overlap": (0.8, _aligned(P, S)),
            "variance": (0.5, identity),
            "direction_overlap": (0.0, jnp.ones((P, len(teacher.direction_gram)), S.dtype)),
        }
        parts = {}
        for name, (default, unit) in defaults.items():
            value = getattr(start, name)
            value = jnp.asarray(default, S.dtype) if value is None else value
            allowed = f"a number or an array of shape {unit.shape}"
            check(value.shape in ((), unit.shape), name, value, allowed)
            parts[name] = value * unit if value.ndim == 0 else value
        x = OrderParameters(*parts.values())
        B = x.direction_overlap
        joint = jnp.block([[x.overlap, B], [B.T, teacher.direction_gram]])
        # an eigenvalue of zero is negative by rounding
        fits = jnp.linalg.eigvalsh(joint)[0] >= -1e-9 * jnp.max(jnp.abs(joint))
        conditions = {
            "variance": (jnp.linalg.eigvalsh(x.covariance)[0] > 0.0, "a positive definite V"),
            "overlap": (jnp.linalg.eigvalsh(x.overlap)[0] > 0.0, "a positive definite Q"),
            "direction_overlap": (fits, "B with [[Q, B], [Bᵀ, G]] positive semi-definite"),
            "teacher_overlap": (self.admissible(x), "M with S - MᵀQ^{-1}M positive semi-definite"),
        }
        for name, (condition, allowed) in conditions.items():
            check(condition, name, parts[name], allowed)
        sound = jnp.all(jnp.stack([condition for condition, _ in conditions.values()]))
        return jax.tree.map(lambda a: jnp.where(sound, a, missing()), x)

    # The map

    def _next(self, answers: LearnerAverages) -> tuple[OrderParameters, OrderParameters]:
        """Return the next order parameters and, to first order, the difference of those of each
        rule (R, ...)."""
        average = jax.tree.map(lambda c: jnp.mean(c, 0), answers.conjugates)
        follow = lambda c: self.learner.weight_averages(c, self.teacher_law).overlaps
        value, push = jax.linearize(follow, average)
        off = jax.tree.map(lambda c, a: c - a, answers.conjugates, average)
        return value, jax.vmap(push)(off)

    def _potential(
        self, x: OrderParameters, c: Conjugates, end: WeightAverages, envelope: Array
    ) -> Array:
        """Φ of a minimiser [theory: empirical-risk, Eq. (11)]: stationary at a fixed point, and
        there the energy."""
        overlaps = end.overlaps
        # E min_w ½ wᵀV̂w - b·w + penalty: by Stein E b·f is linear in M, B and V
        minimum = 0.5 * jnp.sum(c.precision * overlaps.overlap) + end.penalty
        minimum = minimum - jnp.sum(c.noise * overlaps.covariance)
        linear = jnp.sum(c.signal * (x.teacher_overlap - overlaps.teacher_overlap))
        gap = x.direction_overlap - overlaps.direction_overlap
        linear = linear + jnp.sum(c.direction * gap)
        quadratic = jnp.sum(c.noise * x.covariance) - jnp.sum(c.precision * x.overlap)
        return 0.5 * quadratic + linear + minimum + self.alpha * envelope

    def _measured(self, x: OrderParameters, answers: LearnerAverages) -> Numbers:
        """Losses, error and energy by each rule (R,)."""
        conjugates = frozen(jax.tree.map(lambda c: jnp.mean(c, 0), answers.conjugates))
        end = self.learner.weight_averages(conjugates, self.teacher_law)
        potential = self._potential(x, conjugates, end, answers.envelope)
        energy = jnp.mean(self.alpha * answers.train_loss) + end.penalty
        return {
            "train_loss": answers.train_loss,
            "test_loss": answers.test_loss,
            "error": answers.error,
            # its own value, but derivatives and errors of the potential, which is stationary
            "energy": frozen(energy - jnp.mean(potential)) + potential,
            "potential": potential,
        }

    def __call__(self, x: OrderParameters) -> tuple[OrderParameters, Numbers]:
        """The next order parameters, and the numbers at x."""
        answers = self.answers(x)
        measured = jax.tree.map(jnp.mean, self._measured(x, answers))
        return self._next(answers)[0], vars(x) | measured

    def units(self, x: OrderParameters) -> OrderParameters:
        """The size of each order parameter: M and B by Q and what they are overlaps with."""
        teacher = self.teacher_law
        size = lambda matrix: jnp.trace(matrix) / max(len(matrix), 1)
        Q = size(x.overlap)
        M = jnp.sqrt(Q * size(teacher.second_moment))
        B = jnp.sqrt(Q * size(teacher.direction_gram))
        sizes = OrderParameters(Q, M, size(x.covariance), B)
        return jax.tree.map(lambda a, s: jnp.broadcast_to(s, a.shape), x, sizes)

    def observed(self, x: OrderParameters) -> Numbers:
        """x itself."""
        return vars(x)

    # Its fixed point

    def solve(self, start: OrderParameters, settings: Settings) -> tuple[Self, Run[AndersonState]]:
        """Accelerated steps; where the fixed point shows no jumps, again with V̂ as a
        divergence."""
        run = self._through_ridges(start, self.iterate(start, settings), settings)
        return self._without_jumps(self._off_zero(run, settings), settings)

    def averages(self) -> Self:
        """The map itself."""
        return self

    def parameters(self, x: OrderParameters) -> OrderParameters:
        """x itself."""
        return x

    def _through_ridges(
        self, start: OrderParameters, run: Run[AndersonState], settings: Settings
    ) -> Run[AndersonState]:
        """Repeat a run that did not end, from the ends at larger ridges (outside jit): as λ
        vanishes, V grows up to 1/λ, too far from any start."""
        ridge = self.learner.ridge
        if not (settings.newton and concrete((run.result, ridge))):
            return run
        size = typical_ridge(ridge)
        if not 0.0 < size < _EASY_RIDGE or int(run.result) != Result.MAX_STEPS:
            return run
        # steps and history are those at the ridge itself, the last one
        x, last = start, _EASY_RIDGE
        for larger in np.geomspace(_EASY_RIDGE, size, _RIDGES):
            # V is of the order 1/λ where labels can be fitted, and stays there
            x = eqx.tree_at(lambda x: x.covariance, x, x.covariance * last / larger)
            order_map = eqx.tree_at(lambda p: p.learner.ridge, self, ridge * (larger / size))
            run = order_map.iterate(x, settings)
            x, last = run.state.x, larger
        return run

    def _off_zero(self, run: Run[AndersonState], settings: Settings) -> Run[AndersonState]:
        """Repeat a run that ended at M = 0, a fixed point of even labels, if a small M grows there:
        by plain steps, as message passing, then by accelerated ones (outside jit)."""
        x = run.state.x
        if not (settings.newton and concrete((run.result, x.teacher_overlap))):
            return run
        ended = int(run.result) in (Result.SUCCESS, Result.MAX_STEPS)
        if not (ended and bool(self._unlearned(x))):
            return run
        S, P = self.teacher_law.second_moment, len(x.overlap)
        # at M = 0 a posterior mean has Q = 0, too
        Q = x.overlap + _NOTHING**2 * jnp.trace(S) / len(S) * jnp.eye(P)
        x = eqx.tree_at(lambda x: x.overlap, x, Q)
        small = jnp.where(_aligned(P, S) != 0.0, _NOTHING * self.units(x).teacher_overlap, 0.0)
        x = eqx.tree_at(lambda x: x.teacher_overlap, x, small)
        after = frozen(self).value(x).teacher_overlap
        if not bool(jnp.max(jnp.abs(after)) > (1.0 + _GROWS) * jnp.max(small)):
            return run
        plain = self.iterate(x, settings._replace(newton=False, tolerance=jnp.asarray(_ROUGHLY)))
        end = self.iterate(plain.state.x, settings)
        return Run(end.state, run.step + plain.step + end.step, end.result, end.history)

    def _unlearned(self, x: OrderParameters) -> Array:
        """True if M may be zero, up to errors of sampled averages."""
        return jnp.all(jnp.abs(x.teacher_overlap) < _NOTHING * self.units(x).teacher_overlap)

    def end(self, run: Run[AndersonState]) -> End:
        """The fixed point with its error bars, from one evaluation and its derivatives."""
        x = run.state.x

        def look(x: OrderParameters) -> tuple[tuple[OrderParameters, Numbers], tuple[Any, ...]]:
            answers = self.answers(x)
            value, shifts = self._next(answers)
            measured = self._measured(x, answers)
            numbers = vars(x) | jax.tree.map(jnp.mean, measured)
            return (value, numbers), (shifts, measured, answers)

        (value, numbers), push, (shifts, measured, answers) = jax.linearize(look, x, has_aux=True)
        J = jacobian_of(lambda move: push(move)[0], x)
        average = jax.tree.map(lambda c: jnp.mean(c, 0), answers.conjugates)
        squared = self.learner.weight_averages(average, self.teacher_law).squared
        replicon = jnp.einsum("abcd,cdef->abef", squared, answers.squared)
        stability = fixed_point.perron_value(replicon)

        residual = jax.tree.map(jnp.subtract, value, x)
        changes = {name: a - numbers[name] for name, a in measured.items()}
        bars = self._bars(numbers, residual, (shifts, changes), push, J)
        code, errors = judged(run, self.learner, answers, stability, bars, vars(x))
        size = jnp.maximum(jnp.max(jnp.abs(x.overlap)), jnp.max(jnp.abs(x.covariance)))
        bound = jnp.where(code == Result.MAX_STEPS, _UNBOUNDED, _INFINITE)
        # accelerated steps under jit need not leave M = 0
        place = slice(x.overlap.size, x.overlap.size + x.teacher_overlap.size)
        grows = self._unlearned(x) & (spectral_radius(J[place, place]) > 1.0 + _GROWS)
        code = jnp.where((code == Result.SUCCESS) & grows, Result.UNSTABLE, code)
        # at the interpolation threshold the steps stop with an error of Q above Q itself
        undetermined = (code == Result.SUCCESS) & (jnp.max(errors["overlap"]) > size)
        unbounded = jnp.all(self.learner.ridge == 0.0) & ((size > bound) | undetermined)
        unbounded &= self.learner.penalty is not None  # a posterior is bounded by its prior
        code = jnp.where(unbounded, Result.DIVERGED, code)
        if self.learner.penalty is None:
            # a posterior minimises no risk: zeros stand for its losses in all averages
            unknown = lambda a: missing_array(a.shape, a.dtype)
            losses = lambda a: (a.train_loss, a.test_loss, a.envelope)
            answers = eqx.tree_at(losses, answers, replace_fn=unknown)
            names = ("train_loss", "test_loss", *self.stationary)
            masked = lambda a: a | {name: unknown(a[name]) for name in names}
            numbers, errors = masked(numbers), masked(errors)
        fields = {
            "spectral_radius": spectral_radius(J),
            "stability": stability,
            "jump_fraction": answers.other_minimum,
            "state": answers,
        }
        return End(x, numbers, J, errors, code, fields)


_answers = eqx.filter_jit(LabelAverages.answers)


def jacobian_of(push: Callable[[PyTree], PyTree], x: PyTree) -> Array:
    """J (n, n) of a map of n numbers in a tree, from its derivative along a change of x."""
    flat, build = ravel_pytree(x)
    return lax.map(lambda unit: ravel_pytree(push(build(unit)))[0], jnp.eye(flat.size)).T


def typical_ridge(ridge: Array) -> float:
    """Harmonic mean of the ridges; without data, V is the mean of 1/λ_i."""
    values = np.asarray(ridge)
    return 0.0 if np.any(values == 0.0) else float(1.0 / np.mean(1.0 / values))


def judged(
    run: Run[AndersonState],
    learner: AbstractIndexLearner,
    answers: LearnerAverages,
    stability: Array,
    bars: Bars,
    names: Iterable[str],
) -> tuple[Array, Numbers]:
    """The code of an end and the errors of its numbers, NaN where it is no fixed point; `names`: of
    the numbers whose distance from the fixed point decides whether a run has reached it.

    UNSTABLE where replicas break their symmetry, INACCURATE where minima were missed.
    """
    # on a finite number of points the map of a loss with kinks jumps: x is an end where its
    # distance to the fixed point is within its statistical error
    inside = [jnp.all(jnp.abs(bars.distance[name]) <= bars.spread[name]) for name in names]
    steady = jnp.all(jnp.stack(inside))
    success = (run.result == Result.SUCCESS) | steady & (run.result == Result.MAX_STEPS)
    regularity = learner.regularity
    jumps = regularity.jumps & _differ(answers, _SIGNIFICANT)
    # a convex loss has stability at most one: more is an error of the sampled averages
    broken = (stability >= 1.0) & (not regularity.convex)
    missed = answers.residual > learner.tolerance
    code = choose(
        (success, Result.SUCCESS),
        (success & missed, Result.INACCURATE),
        (success & (broken | jumps), Result.UNSTABLE),
        start=run.result,
    )
    sound = (code == Result.SUCCESS) | (code == Result.UNSTABLE) | (code == Result.INACCURATE)
    error = lambda a, b: jnp.where(sound, jnp.hypot(a, b), missing())
    return code, jax.tree.map(error, bars.spread, bars.distance)


def _aligned(indices: int, S: Array) -> Array:
    """M (P, P*) of a student whose rows share the teacher's rows evenly, each with norm one."""
    rows = jnp.arange(indices)[:, None]
    columns = jnp.arange(len(S))[None, :]
    fewer = min(indices, len(S))
    shared = (rows % fewer == columns % fewer).astype(S.dtype)
    return shared / jnp.linalg.norm(shared, axis=1, keepdims=True) @ S


def _differ(answers: LearnerAverages, errors: float) -> Array:
    """Return whether V̂ by parts and as a divergence differ by so many standard errors, as they do
    where jumps of g count (proximal points with rivals)."""
    gap = answers.by_parts - answers.divergence
    size = jnp.max(jnp.abs(jnp.mean(answers.divergence, 0)))
    differ = jnp.abs(jnp.mean(gap, 0)) > errors * standard_error(gap) + _NOTICEABLE * size
    return jnp.any(differ) & (answers.other_minimum != 0.0)  # also where it is unknown
