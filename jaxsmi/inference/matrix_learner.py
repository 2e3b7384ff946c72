r"""Theory and message passing of empirical risk over one matrix.

Equations here [theory: empirical-risk, Eqs. (27) to (31)], labels linear in S, f_Δ(V) the
information of a label with noise Δ and M_y its measurements (a loss ½ ‖.‖² answers as one that
believes in Δ = 1), F the shrinkage of the penalty and F_B that of the posterior mean:

    e = Q_0 - 2 M + Q,   δ = 1/(α f_Δ(e)),   A = α f_1(V)
    Q = ∫ F(x)² μ_δ,   M = ∫ F(x) F_B(x) μ_δ,   V = ∫ F(x) (x - F_B(x)) μ_δ/(δ A)
    test loss  M_y²/(2 f_Δ(e)),   train loss  test · (f_1(V)/f_1(0))²
    energy  α train + (λ/2) Q + τ ∫ |F(x)| μ_δ
    stability  ∫∫ [(F(x) - F(y))/(x - y)]² μ_δ μ_δ/(α M_y), below one

μ_δ is the law of the eigenvalues, or singular values, of S + √δ Z (for a rectangular matrix over
√R₁, and with the part of its long side). V by parts is the divergence ∫∫ (F(x) - F(y))/(x - y)/A.
The risk is convex: there is one fixed point, wherever the iteration starts.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, frozen, nan, nan_unless, not_recorded, theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Run, init_run, run_solver
from jaxsmi.core.options import Averages, Iteration, Start
from jaxsmi.core.results import LearnerSolution
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.inference.iteration import GampIteration, GampState, Position
from jaxsmi.inference.learner_passing import SIZE, Plan, passed
from jaxsmi.learners.base import AbstractResponder
from jaxsmi.learners.matrix_erm import MatrixErm, Shrinkage, residual, student_of
from jaxsmi.models.base import AbstractModel, check_data, title
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.numerics.anderson import Anderson, Place
from jaxsmi.numerics.linear_algebra import spectral_radius
from jaxsmi.numerics.random_matrix.base import NODES, AbstractSpectrum, band_nodes

__all__ = ["Order", "Theory", "matrix_evolved", "matrix_learned"]

_MAX_STEPS = 300
_TOLERANCE = 1e-8  # relative; accelerated steps get there at no cost
_LARGEST = 1e8  # response that the iteration starts with, at most
_TINY = 1e-14  # an order parameter that counts as zero
_RESOLVED = 1e-10  # δ at least, what the spectra resolve: a smaller e is not told from it
_GROWTH = 1.2  # of the part of a step that is taken
_AGAIN = (Result.DIVERGED, Result.MAX_STEPS)  # ends after which plain steps are taken
_PANELS = 4  # of a band
_ROWS = 256  # pairs of so many nodes with all others at a time


def _believed(model: MatrixModel) -> MatrixModel:
    """The same with label noise of variance one: what a loss ½ ‖ŷ - y‖² believes in."""
    return eqx.tree_at(lambda m: m.noise, model, jnp.ones_like(model.noise))


# Theory
# --------------------------------------------------------------------------------------------


class Order(eqx.Module):
    """Order parameters, numbers: the error e, and the response V."""

    error: Array
    response: Array


class _Seen(eqx.Module):
    """A matrix seen with noise δ: nodes `x` with their `weight`, the density in it, cut where F
    has kinks, the values `best` of the posterior mean there, and its `error`."""

    x: Array
    weight: Array
    best: Array
    error: Array
    aspect: Array
    symmetric: bool = eqx.field(static=True)

    def mean(self, values: Array) -> Array:
        """∫ · μ over the entries of the matrix."""
        return jnp.sum(self.weight * values) / jnp.sqrt(self.aspect)

    def pairs(self, shrinkage: Shrinkage, power: int) -> Array:
        """The mean of ∂F/∂R over the entries of R, or of its square: ∫∫ [(F(x) - F(y))/(x - y)]^n
        with what opposite singular values and the long side of a matrix add."""
        x = self.x
        weight = self.weight

        def of_one(y: Array) -> Array:
            near = shrinkage.quotient(y, x) ** power
            if self.symmetric:
                return weight @ near
            return 0.5 * weight @ (near + shrinkage.quotient(y, -x) ** power)

        square = weight @ lax.map(of_one, x, batch_size=_ROWS)
        if self.symmetric:
            return square
        rest = jnp.sum(weight * (shrinkage(x) / x) ** power)
        return square / self.aspect + (1.0 - 1.0 / self.aspect) * rest


def _seen(law: AbstractSpectrum, aspect: Array, threshold: Array, symmetric: bool) -> _Seen:
    """The law with nodes on both sides of the kinks ±threshold, and in panels that the law's own
    nodes make: they are dense where bands are about to part."""
    first, low, high, last = law.edges
    inner = jnp.sort(law.x[:: NODES // _PANELS])[None, 1:]
    starts = jnp.stack([first, jnp.where(law.gap, high, last)])[:, None]
    ends = jnp.stack([jnp.where(law.gap, low, last), last])[:, None]
    marks = jnp.concatenate([starts, jnp.clip(inner, starts, ends), ends], axis=1)
    cuts = jnp.stack([-threshold, threshold] if symmetric else [threshold])
    below = jnp.concatenate([jnp.full(1, -jnp.inf), cuts])
    above = jnp.concatenate([cuts, jnp.full(1, jnp.inf)])
    lows = jnp.clip(marks[:, :-1, None], below, above).ravel()
    highs = jnp.clip(marks[:, 1:, None], below, above).ravel()
    x, measure = (a.ravel() for a in lax.stop_gradient(band_nodes(lows, highs)))
    inside = measure > 0.0
    x = jnp.where(inside, x, lax.stop_gradient(last))
    hilbert, density = law.green(x)
    weight = law.copies * jnp.where(inside, measure * density, 0.0)
    return _Seen(x, weight, law.best(x, hilbert), law.error, aspect, symmetric)


class _At(NamedTuple):
    """What is known at order parameters: the matrix `seen`, F (`shrinkage`), the noise δ and the
    precision A."""

    seen: _Seen
    shrinkage: Shrinkage
    noise: Array
    precision: Array


class Theory(eqx.Module):
    """State evolution of a learner of one matrix (module docstring)."""

    model: MatrixModel
    learner: MatrixErm
    alpha: Array

    def at(self, x: Order) -> _At:
        """The averages at order parameters."""
        prior = self.model.prior
        noise = 1.0 / (self.alpha * self._information(self.model, x.error))
        noise = jnp.maximum(noise, _RESOLVED)
        precision = self.alpha * self._information(_believed(self.model), x.response)
        shrinkage = self.learner.shrinkage(precision, prior.weight, prior.symmetric)
        law, aspect = prior.law.spectrum(noise)
        seen = _seen(law, aspect, shrinkage.threshold, prior.symmetric)
        return _At(seen, shrinkage, noise, precision)

    def _information(self, model: MatrixModel, V: Array) -> Array:
        """f(V) of linear labels, which does not depend on q."""
        return model.explicit_readout.information(jnp.zeros_like(V), V)

    def __call__(self, x: Order) -> Order:
        """The next order parameters: e as the error of the posterior mean and what F is from it,
        which does not cancel."""
        seen, shrinkage, noise, precision = self.at(x)
        kept = shrinkage(seen.x)
        error = seen.error + seen.mean((kept - seen.best) ** 2)
        response = seen.mean(kept * (seen.x - seen.best)) / (noise * precision)
        return Order(error, response)

    def divergence(self, x: Order) -> Array:
        """V as the divergence of F at order parameters."""
        seen, shrinkage, _, precision = self.at(x)
        return seen.pairs(shrinkage, 1) / precision

    def end(self, x: Order) -> dict[str, Array]:
        """What a solution says at the fixed point."""
        seen, shrinkage, _, _ = self.at(x)
        kept = shrinkage(seen.x)
        readout = self.model.explicit_readout
        Q = seen.mean(kept**2)
        zero = jnp.zeros_like(x.response)
        test = 0.5 * readout.measurements**2 / self._information(self.model, x.error)
        answer = self._information(_believed(self.model), x.response)
        part = answer / self._information(_believed(self.model), zero)
        train = test * part**2
        penalty = 0.5 * self.learner.ridge * Q
        penalty = penalty + self.learner.nuclear * seen.mean(jnp.abs(kept))
        matrix = lambda value: value * jnp.ones((1, 1))
        return {
            "overlap": matrix(Q),
            "teacher_overlap": matrix(seen.mean(kept * seen.best)),
            "covariance": matrix(x.response),
            "error": x.error,
            "train_loss": train,
            "test_loss": test,
            "energy": self.alpha * train + penalty,
            "stability": seen.pairs(shrinkage, 2) / (self.alpha * readout.measurements),
        }


class _Logarithmic(eqx.Module):
    """The map of the logarithms of the order parameters: near recovery they fall by orders, and an
    extrapolation of the numbers themselves would go through zero."""

    problem: Theory

    def __call__(self, x: Order) -> Order:
        return _logarithms(self.problem(jax.tree.map(jnp.exp, x)))


def _logarithms(x: Order) -> Order:
    """Of what is not smaller than next to nothing."""
    return jax.tree.map(lambda a: jnp.log(jnp.maximum(a, _TINY)), x)


def _ones(x: Order) -> Order:
    """Units of logarithms."""
    return jax.tree.map(jnp.ones_like, x)


def _sound(x: Order) -> Array:
    """Whether the map is defined."""
    return jnp.isfinite(x.error + x.response)


def _observed(x: Order) -> dict[str, Array]:
    """What is recorded."""
    return {"error": jnp.exp(x.error), "covariance": jnp.exp(x.response) * jnp.ones((1, 1))}


def matrix_evolved(
    model: AbstractModel,
    alpha: Array,
    learner: MatrixErm,
    key: PRNGKeyArray | None,
    start: Start,
    averages: Averages,
    settings: Iteration,
    progress: bool,
) -> LearnerSolution:
    """`state_evolution` of a learner of one matrix, which needs no start and no points."""
    del start, averages, progress
    teacher = student_of(model)
    finite = jnp.isfinite(teacher.prior.law.aspect_ratio)
    check(finite, "model", title(teacher), "one of finite aspect_ratio")
    alpha = nan_unless(alpha, validate.valid(teacher), finite, validate.valid(learner))
    accelerated = settings.newton is not False
    max_steps = settings.max_steps or _MAX_STEPS
    tolerance = _TOLERANCE if settings.tolerance is None else settings.tolerance
    problem = Theory(teacher, learner, alpha)
    largest = jnp.minimum(1.0 / (learner.ridge + learner.nuclear), _LARGEST)
    iteration = Anderson(
        map_of=_Logarithmic(frozen(problem)),
        initial=lax.stop_gradient(_logarithms(Order(teacher.prior.norm, largest))),
        units=_ones,
        admissible=_sound,
        observed=_observed,
        tolerance=jnp.asarray(tolerance, theory_dtype()),
        accelerated=accelerated,
        max_steps=max_steps,
        growth=_GROWTH,
    )
    run = run_solver(iteration, init_run(iteration, max_steps), max_steps)
    if accelerated and concrete(run.result) and int(run.result) in _AGAIN:
        # plain steps fall from the start to the fixed point: slower, and never past it
        plain = dataclasses.replace(iteration, accelerated=False)
        run = run_solver(plain, init_run(plain, max_steps), max_steps)
    return _theory(problem, run, key)


@eqx.filter_jit
def _theory(problem: Theory, run: Run[Place], key: PRNGKeyArray | None) -> LearnerSolution:
    """What the fixed point says; a Newton step from it has its derivatives."""
    still = frozen(problem)
    x = lax.stop_gradient(jax.tree.map(jnp.exp, run.state.x))
    flat = lambda x: jnp.stack([x.error, x.response])
    J = jax.jacfwd(lambda a: flat(still(Order(a[0], a[1]))))(flat(x))
    move = jnp.linalg.solve(jnp.eye(2) - lax.stop_gradient(J), flat(problem(x)) - flat(x))
    success = run.result == Result.SUCCESS
    # its value is x, its derivative that of the fixed point, NaN where there is none
    moved = flat(x) + jnp.where(success, 1.0, nan()) * move
    moved = jnp.where(success, moved, flat(x))
    end = problem.end(Order(moved[0], moved[1]))
    code = jnp.where(jnp.isnan(problem.alpha), Result.INVALID, run.result)
    lost = (code == Result.INVALID) | (code == Result.DIVERGED)
    end = {name: jnp.where(lost, nan(), value) for name, value in end.items()}
    return LearnerSolution(
        overlap=end["overlap"],
        teacher_overlap=end["teacher_overlap"],
        covariance=end["covariance"],
        error=end["error"],
        train_loss=end["train_loss"],
        test_loss=end["test_loss"],
        energy=end["energy"],
        stability=end["stability"],
        stderr=jnp.zeros((1, 1), theory_dtype()),
        alpha=problem.alpha,
        steps=run.step,
        residual=run.state.residual,
        result=code,
        history=run.history,
        spectral_radius=jnp.where(lost, nan(), spectral_radius(J)),
        jump_fraction=jnp.zeros((), theory_dtype()),
        model=problem.model,
        key=key,
        kind="state_evolution",
    )


# Message passing
# --------------------------------------------------------------------------------------------


class _Responder(AbstractResponder):
    """A learner of one matrix in message passing: responses of `model` with label noise of variance
    one, and the shrinkage of the penalty."""

    model: MatrixModel
    learner: MatrixErm

    @property
    def tolerance(self) -> Array:
        """The readout's."""
        return self.model.explicit_readout.tolerance

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """The readout's."""
        return self.model.explicit_readout.respond(statistic, omega, V, key)

    def statistic(self, labels: Array) -> Array:
        """The readout's."""
        return self.model.explicit_readout.statistic(labels)

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """S (1, L, d) and V (1, 1) from b (1, L, d) of precision A (1, 1)."""
        prior = self.model.prior
        precision = A[0, 0]
        shrinkage = self.learner.shrinkage(precision, prior.weight, prior.symmetric)
        unit = float(b.shape[1] * b.shape[2]) ** 0.25
        R = b[0] / (precision * unit)
        made, slope = shrinkage.symmetric_matrix(R) if prior.symmetric else shrinkage.matrix(R)
        return unit * made[None], slope / precision * jnp.ones((1, 1))


def matrix_learned(
    model: AbstractModel,
    data: Dataset,
    learner: MatrixErm,
    key: PRNGKeyArray | None,
    plan: Plan,
) -> LearnerSolution:
    """`gamp` of a learner of one matrix."""
    teacher = student_of(model)
    student = _believed(teacher)
    check_data(student, data, teacher=False)
    student.readout.check_labels(data.labels)
    key = validate.key("key", key)
    signal, fields = student.design.shapes(data.inputs.shape)
    start_key, run_key = jax.random.split(jax.random.fold_in(key, 1))
    state = plan.state
    if state is None:
        size = validate.number("start", SIZE if plan.init is None else plan.init, POSITIVE)
        state = GampState.start(*student.prior.start(start_key, signal, size), fields)
    responder = _Responder(student, learner)
    run, running = passed(student, responder, data, state, run_key, plan, "state")
    valid = validate.valid(teacher) & validate.valid(
        (learner, state.weights, plan.damping, plan.tolerance)
    )
    return _found(running, teacher, learner, run, key, valid)


@eqx.filter_jit
def _found(
    problem: GampIteration,
    teacher: MatrixModel,
    learner: MatrixErm,
    end: Run[Position],
    key: PRNGKeyArray,
    valid: Array,
) -> LearnerSolution:
    """What the end of a run means."""
    data = problem.data
    state = end.state.state
    S = state.weights
    sensing = teacher.design.operator(data.inputs)
    overlaps = teacher.metric.overlaps(S, data.teacher)
    missed = residual(teacher, S, data)
    loss = 0.5 * jnp.sum(missed**2) / data.samples
    code = jnp.where(valid, end.result, int(Result.INVALID))
    nothing = ~valid | (code == Result.NONFINITE) | (code == Result.DIVERGED)
    masked = lambda x: jnp.where(nothing, nan(), x)
    return LearnerSolution(
        overlap=masked(overlaps["overlap"]),
        stderr=jnp.zeros((1, 1), theory_dtype()),
        error=masked(teacher.metric.error(S, data, key=key)),
        alpha=jnp.asarray(sensing.alpha, S.dtype),
        steps=state.step,
        residual=end.state.residual,
        result=code,
        history=jax.tree.map(lambda x: jnp.where(valid, x, nan()), end.history),
        covariance=masked(state.covariance),
        spectral_radius=not_recorded((), S.dtype),
        weights=jnp.where(valid, teacher.student.estimate(S), nan()),
        state=state,
        model=teacher,
        key=key,
        kind="gamp",
        teacher_overlap=masked(overlaps["teacher_overlap"]),
        train_loss=masked(loss),
        energy=masked(sensing.alpha * loss + learner.penalty(S)),
        gradient_norm=masked(_gradient(teacher, learner, S, sensing.adjoint(missed))),
    )


def _gradient(model: MatrixModel, learner: MatrixErm, S: Array, pull: Array) -> Array:
    """What a step of size one down the loss, and the penalty's shrinkage, move S by, over its
    entries: zero at the minimum alone, and without a nuclear norm (1 + λ)^{-1} ‖∇R‖."""
    one = jnp.ones((1, 1), theory_dtype()) / (2.0 * model.prior.weight)
    moved, _ = _Responder(model, learner).posterior((S + pull) * one[0, 0], one)
    return jnp.sqrt(jnp.mean((moved - S) ** 2))
