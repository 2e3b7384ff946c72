r"""State evolution of one matrix, by averages over a law of eigenvalues or singular values.

Bayes [theory: attention-indexed, Eq. (30)], f the information of the channel and V(q̂) the error of
the prior at the precision q̂:

    q̂ = α f(Q_0 - V(q̂))   ⇔   log q̂ - log f(Q_0 - V(q̂)) = log α

The left side increases with q̂, so that its root is bracketed and found however slowly an
iteration would crawl.

Empirical risk [theory: empirical-risk, Eqs. (27) to (31); trained-attention, section 2]. The labels
make a field of precision A and noise N A², c S + √(N) Z, of which the penalty keeps F; F_B is the
posterior mean of S, and δ = N/c²:

    Q = ∫ F(c x)² μ_δ,   M = ∫ F(c x) F_B(x) μ_δ,   V = ∫ F(c x) (x - F_B(x)) μ_δ/(c δ A)
    e = Q_0 - 2 M + Q,   energy  α train + (λ/2) Q + τ ∫ |F(c x)| μ_δ
    stability  κ³ T ∫∫ [(F(c x) - F(c y))/(c x - c y)]² μ_δ μ_δ/A², below one

μ_δ is the law of the eigenvalues, or singular values, of S + √δ Z (for a rectangular matrix over
√R₁, and with the part of its long side). V by parts is the divergence
∫∫ (F(c x) - F(c y))/(c x - c y)/A. With averages (Q̂, M̂, V̂, T = α E ‖∂g‖²) over labels
(inference/label_averages.py) of the coordinates of the fields, of overlaps κ Q, κ M and response
κ V, κ = 1/(2w):

    A = κ² V̂,   N A² = κ² Q̂,   c = M̂/V̂

Labels linear in S and the square loss have closed forms, f_Δ(V) the information of a label with
noise Δ and M_y its measurements (a loss ½ ‖.‖² answers as one that believes in Δ = 1):

    A = α f_1(V),   N = 1/(α f_Δ(e)),   c = 1,   κ³ T/A² = 1/(α M_y)
    test loss  M_y²/(2 f_Δ(e)),   train loss  test · (f_1(V)/f_1(0))²

That risk is convex: there is one fixed point, wherever the iteration starts. The iteration is one
of x = (log e, log V, (Q - M)/√e), in which Q = Q_0 + 2 (Q - M) - e cancels nothing.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, frozen, missing_array, nan_unless, theory_dtype
from jaxsmi.core.driver import Run
from jaxsmi.core.results import Result, choose
from jaxsmi.core.validate import check
from jaxsmi.inference.label_averages import LabelAverages, LearnerAverages
from jaxsmi.inference.learner_map import (
    NETS,
    AbstractLearnerMap,
    jacobian_of,
    judged,
)
from jaxsmi.inference.order_map import (
    AbstractOrderMap,
    Arguments,
    End,
    Numbers,
    OverlapMap,
    Settings,
)
from jaxsmi.learners.base import OrderParameters
from jaxsmi.learners.learned_spectrum import LearnedSpectrum
from jaxsmi.learners.matrix_erm import (
    MatrixErm,
    Shrinkage,
    one_matrix,
    with_unit_noise,
)
from jaxsmi.models.base import title
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.numerics import fixed_point, roots
from jaxsmi.numerics.anderson import AndersonState
from jaxsmi.numerics.linear_algebra import spectral_radius
from jaxsmi.numerics.symmetric_spectrum import AbstractSpectrum

_POINTS = 8192  # empirical: e to .4 % in trained softmax attention of two tokens
_MAX_PRECISION = 1e12  # beyond it only V < 1e-12 is known; spectra resolve 1e14
_MAX_RESPONSE = 1e8  # response that the iteration starts with, at most
_MIN_PARAMETER = 1e-14  # an order parameter that counts as zero
_MIN_GAIN = 1e-6  # c at least: labels that tell nothing of S
_MIN_NOISE = 1e-10  # δ at least, what the spectra resolve: a smaller e is rounding
_PLAIN_AFTER = (Result.DIVERGED, Result.MAX_STEPS)  # ends after which plain steps are taken
_PAIR_BATCH = 256  # nodes whose pairs with all others are in memory together: some megabytes

_matrix = lambda value: value * jnp.ones((1, 1))


def _information(model: MatrixModel, V: Array) -> Array:
    """Return f of the channel for an estimate of error V, whose overlap is the rest."""
    return model.closed_form_readout.information(model.prior.norm - V, V)


# Bayes
# --------------------------------------------------------------------------------------------


class _Root(NamedTuple):
    """A root log q̂ of the module's equation."""

    x: Array
    residual: Array


class PrecisionMap(AbstractOrderMap):
    """State evolution of Bayes, as a map of log q̂."""

    twice: ClassVar[bool] = True
    model: MatrixModel

    @classmethod
    def of(cls, arguments: Arguments) -> tuple[PrecisionMap, None]:
        """The map; a root needs no start."""
        model, alpha, key, *_ = arguments
        return cls(model, nan_unless(alpha, validate.valid(model)), key), None  # pyright: ignore[reportArgumentType]

    def __call__(self, x: Array) -> tuple[Array, Numbers]:
        """log (α f(V)), and the numbers at log q̂: q, V and the error, which is V."""
        V = self.model.prior.mmse(jnp.exp(x))
        value = jnp.log(self.alpha) + jnp.log(_information(self.model, V))
        q = self.model.prior.norm - V
        return value, {"overlap": _matrix(q), "covariance": _matrix(V), "error": V}

    def solve(self, start: None, settings: Settings) -> tuple[PrecisionMap, Run[_Root]]:
        """The root, and the plain trajectory from q̂ = 0 if Newton steps are not taken."""
        return self, _solved(frozen(self), 0 if settings.newton else settings.max_steps)

    def end(self, run: Run[_Root]) -> End:
        """V at the root, without a statistical error."""
        x = run.state.x
        numbers = self.numbers(x)
        V = numbers["error"]
        recovered = run.result == Result.RECOVERED
        qhat = jnp.where(recovered, jnp.inf, jnp.exp(x))
        fields = {"spectral_radius": missing_array((), V.dtype), "state": {"qhat": qhat}}
        errors = {"overlap": _matrix(jnp.zeros_like(V))}
        return End(x, numbers, self.slope(x, x), errors, run.result, fields)

    def slope(self, x: Array, jacobian: Array) -> Array:
        """The derivative of the map at x, which has derivatives itself."""
        return jax.jvp(lambda x: self(x)[0], (x,), (jnp.ones_like(x),))[1].reshape(1, 1)


@eqx.filter_jit
def _solved(order_map: PrecisionMap, steps: int) -> Run[_Root]:
    """Find q̂ between α f(q(0)), below which no root lies as f grows, and the largest q̂."""
    model = order_map.model
    valid = jnp.isfinite(order_map.alpha) & (order_map.alpha > 0.0)
    alpha = jnp.where(valid, order_map.alpha, 1.0)
    order_map = eqx.tree_at(lambda p: p.alpha, order_map, alpha)
    start = jnp.ones((), alpha.dtype)  # V at q̂ = 0
    lowest = jnp.log(alpha) + jnp.log(_information(model, start))
    highest = jnp.log(jnp.asarray(_MAX_PRECISION, alpha.dtype))
    x, beyond = roots.root(lambda x: x - order_map(x)[0], lowest, highest)
    recovered = (alpha >= model.recovery_alpha) | (beyond & jnp.isfinite(model.recovery_alpha))
    # recovery: x is not used, but the map must be finite at it
    x = jnp.where(recovered, lowest, x)
    # beyond the largest precision without recovery, V is only known to be as small
    code = choose((beyond, Result.INACCURATE), (recovered, Result.RECOVERED), start=Result.SUCCESS)
    history = {}
    if steps:
        key = jax.random.key(0)  # closed forms have no random points
        plain = OverlapMap(model, alpha, key, 1, 2)
        zero = jnp.zeros((), alpha.dtype)
        solver = plain.solver(_matrix(start), max_steps=steps, tolerance=zero, newton=False)
        history = fixed_point.solve(solver).history
    return Run(_Root(x, jnp.zeros_like(x)), jnp.asarray(steps), code, history)


# Empirical risk
# --------------------------------------------------------------------------------------------


class FieldOfMatrix(NamedTuple):
    """The field of the matrix from all labels: b = `signal` S + √`noise` Z, of `precision` A."""

    noise: Array
    signal: Array
    precision: Array


class _Labels(NamedTuple):
    """Averages over labels by each rule (R,): the `field` of the matrix, losses, and T."""

    field: FieldOfMatrix
    train: Array
    test: Array
    squared: Array


class _Estimate(NamedTuple):
    """A matrix seen with noise δ, and its estimate at a precision A: nodes `x` of R = c S + .. with
    their `weight`, F = `shrinkage` of them, the `difference`: F minus the posterior mean, and the
    `error` of that mean."""

    law: AbstractSpectrum
    gain: Array
    response: Array
    x: Array
    weight: Array
    shrinkage: Shrinkage
    difference: Array
    error: Array
    aspect: Array
    symmetric: bool

    def mean(self, values: Array) -> Array:
        """∫ · μ over the entries of the matrix."""
        return jnp.sum(self.weight * values) / jnp.sqrt(self.aspect)

    def pairs(self, power: int) -> Array:
        """The mean of ∂F/∂R over the entries of R, or of its square: ∫∫ [(F(x) - F(y))/(x - y)]^n
        with what opposite singular values and the long side of a matrix add."""
        x, weight, shrinkage = self.x, self.weight, self.shrinkage

        def of_one(y: Array) -> Array:
            near = shrinkage.quotient(y, x) ** power
            if self.symmetric:
                return weight @ near
            return 0.5 * weight @ (near + shrinkage.quotient(y, -x) ** power)

        square = weight @ lax.map(of_one, x, batch_size=_PAIR_BATCH)
        if self.symmetric:
            return square
        rest = jnp.sum(weight * (shrinkage(x) / x) ** power)
        return square / self.aspect + (1.0 - 1.0 / self.aspect) * rest


@eqx.filter_jit
def _with_response(order_map: MatrixLearnerMap, x: Array) -> Array:
    """Solve for V at fixed e first. From a large V the iteration oscillates: the precision is
    small, the penalty zeroes the matrix, V returns to zero."""
    rise = lambda v: v - order_map(x.at[1].set(v))[0][1]
    low, high = (jnp.full((), sign * jnp.log(_MAX_RESPONSE), x.dtype) for sign in (-1.0, 1.0))
    return x.at[1].set(roots.root(rise, low, high)[0])


class MatrixLearnerMap(AbstractLearnerMap):
    """State evolution of a minimiser of a risk, as a map of x (module docstring): near recovery e
    and V fall by orders, and an extrapolation of the numbers themselves would go through zero.

    `labels`: averages over labels, None where they have closed forms.
    """

    growth: ClassVar[float] = 1.2  # empirical
    model: MatrixModel
    learner: MatrixErm
    labels: LabelAverages | None

    @classmethod
    def of(cls, arguments: Arguments) -> tuple[MatrixLearnerMap, Array]:
        """The map and the first order parameters: the largest, or those of `Erm`."""
        model, alpha, key, _, averages, learner = arguments
        learner = validate.instance("learner", learner, MatrixErm, "smi.MatrixErm(..)")
        teacher = one_matrix(model)
        finite = jnp.isfinite(teacher.prior.law.aspect_ratio)
        check(finite, "model", title(teacher), "one of finite aspect_ratio")
        alpha = nan_unless(alpha, validate.valid(teacher), finite, validate.valid(learner))
        labels, e = None, teacher.prior.norm
        if not learner.closed_form(teacher):
            key = validate.key("key", key)
            fields, labelled = learner.of_fields(teacher)
            points, nets = averages.sizes(_POINTS, NETS, 4)
            parts = jnp.asarray(fields.regularity.jumps)
            labels = LabelAverages(labelled, fields, alpha, key, points, nets, parts)
            e = 0.2 * e
        order_map = cls(teacher, alpha, key, learner, labels)
        V = jnp.minimum(1.0 / (order_map.learner.ridge + order_map.learner.nuclear), _MAX_RESPONSE)
        V = V if labels is None else jnp.minimum(V, 0.5)
        return order_map, _coordinates(e, V, jnp.zeros_like(e))

    # Averages over labels

    def averages(self) -> LabelAverages:
        """See `AbstractLearnerMap.averages`."""
        assert self.labels is not None  # labels in closed form have no sampled averages
        return self.labels

    @property
    def _scale(self) -> float:
        """κ."""
        return 0.5 / self.model.prior.weight

    def parameters(self, x: Array) -> OrderParameters:
        """Overlaps of the coordinates of the fields."""
        Q, M, V = (self._scale * overlap for overlap in self._overlaps(x))
        return OrderParameters(Q, M, V, jnp.zeros((1, 0)))

    def _overlaps(self, x: Array) -> tuple[Array, Array, Array]:
        """Q, M and V (1, 1) of the entries."""
        e, V = jnp.exp(x[:2])
        difference = x[2] * jnp.sqrt(e)
        M = self.model.prior.norm + difference - e
        return _matrix(M + difference), _matrix(M), _matrix(V)

    def answers(self, x: Array) -> tuple[_Labels, LearnerAverages | None]:
        """Average over labels at order parameters."""
        if self.labels is None:
            return self._linear_answers(x), None
        answers = self.labels.answers(self.parameters(x))
        square = self._scale**2
        number = lambda a: square * a[..., 0, 0]
        c = answers.conjugates
        field = FieldOfMatrix(number(c.noise), number(c.signal), number(c.precision))
        squared = self._scale * square * answers.squared[0, 0, 0, 0]
        return _Labels(field, answers.train_loss, answers.test_loss, squared), answers

    def _linear_answers(self, x: Array) -> _Labels:
        """Return the closed forms as two equal rules, whose spread is zero."""
        e, V = jnp.exp(x[:2])
        answer = lambda V: _information(with_unit_noise(self.model), V)
        precision = self.alpha * answer(V)
        information = _information(self.model, e)
        measurements = self.model.closed_form_readout.measurements
        test = 0.5 * measurements**2 / information
        train = test * (answer(V) / answer(jnp.zeros_like(V))) ** 2
        field = FieldOfMatrix(precision**2 / (self.alpha * information), precision, precision)
        squared = precision**2 / (self.alpha * measurements)
        both = lambda a: jnp.stack([a, a])
        return _Labels(jax.tree.map(both, field), both(train), both(test), squared)

    # The matrix

    def estimate(self, field: FieldOfMatrix) -> _Estimate:
        """Average the learner's estimate of the matrix over the field."""
        prior = self.model.prior
        A = field.precision
        gain = jnp.maximum(field.signal / A, _MIN_GAIN)
        noise = jnp.maximum(field.noise / (gain * A) ** 2, _MIN_NOISE)
        signed = prior.symmetric  # singular values are positive, eigenvalues have both signs
        shrinkage = self.learner.shrinkage(A, prior.weight, signed)
        law, aspect = prior.law.spectrum(noise)
        kink = shrinkage.threshold / gain
        grid, weight, hilbert = law.rule(jnp.stack([-kink, kink] if signed else [kink]))
        best = law.shrink(grid, hilbert)
        x = gain * grid
        difference = shrinkage(x) - best
        response = (grid - best) / (noise * gain * A)
        return _Estimate(
            law, gain, response, x, weight, shrinkage, difference, law.error, aspect, signed
        )

    def follow(self, labels: _Labels) -> tuple[Array, Numbers]:
        """The next x, the losses and the energy, of one rule."""
        estimate = self.estimate(labels.field)
        mean, difference = estimate.mean, estimate.difference
        shrunk = estimate.shrinkage(estimate.x)
        # the error of the posterior mean and the square of the difference: nothing cancels
        error = estimate.error + mean(difference**2)
        V = mean(shrunk * estimate.response)
        Q = mean(shrunk**2)
        penalty = 0.5 * self.learner.ridge * Q
        penalty = penalty + self.learner.nuclear * mean(jnp.abs(shrunk))
        return _coordinates(error, V, mean(shrunk * difference)), {
            "train_loss": labels.train,
            "test_loss": labels.test,
            "energy": self.alpha * labels.train + penalty,
        }

    def __call__(self, x: Array) -> tuple[Array, Numbers]:
        """The next x, and the numbers (module docstring)."""
        value, numbers = self.follow(_mean(self.answers(x)[0]))
        return value, numbers | self.observed(x)

    def units(self, x: Array) -> Array:
        """Logarithms are of order one."""
        return jnp.ones_like(x)

    def admissible(self, x: Array) -> Array:
        """x is finite, and where labels are averaged over, Q and what it leaves open of S are
        positive."""
        finite, labels = jnp.all(jnp.isfinite(x)), self.labels
        return finite if labels is None else finite & labels.admissible(self.parameters(x))

    def observed(self, x: Array) -> Numbers:
        """e, and the overlaps of the entries."""
        Q, M, V = self._overlaps(x)
        return {"error": jnp.exp(x[0]), "overlap": Q, "teacher_overlap": M, "covariance": V}

    def solve(self, start: Array, settings: Settings) -> tuple[Self, Run[AndersonState]]:
        """Accelerated steps; where these fail, plain ones, which fall from the start to the fixed
        point: slower, and never past it. Proximal points are sought from the fields alone at first,
        and from all starts where the fixed point has others."""
        labels = self.labels
        if labels is None:
            return self, self._fall(_with_response(frozen(self), start), settings)
        if not labels.learner.regularity.jumps:
            return self, self._fall(start, settings)
        # a formula finds no other minima to go on from: without them the run would end elsewhere
        if labels.learner.regularity.kinks:
            return self, self.iterate(start, settings)
        near = dataclasses.replace(labels.learner, convex=True)
        near = dataclasses.replace(labels, learner=near, use_parts=jnp.asarray(False))
        run = dataclasses.replace(self, labels=near)._fall(start, settings)
        others = self.answers_at(run).other_minimum
        success = run.result == Result.SUCCESS
        if concrete(others) and bool(success & (others == 0.0)):
            return self.with_parts(jnp.asarray(False)), run
        # a run that failed has no end to go on from
        again = self.iterate(jnp.where(success, run.state.x, start), settings)
        run = Run(again.state, run.step + again.step, again.result, run.history)
        return self._without_jumps(run, settings)

    def _fall(self, start: Array, settings: Settings) -> Run[AndersonState]:
        run = self.iterate(start, settings)
        if settings.newton and concrete(run.result) and int(run.result) in _PLAIN_AFTER:
            run = self.iterate(start, settings._replace(newton=False))
        return run

    def _polished(self, run: Run[AndersonState]) -> Array:
        """The last x, after a Newton step where it converged."""
        x = run.state.x
        value, push = jax.linearize(self.value, x)
        move = fixed_point.resolvent(jacobian_of(push, x), value - x)
        return jnp.where(run.result == Result.SUCCESS, x + move, x)

    def end(self, run: Run[AndersonState]) -> End:
        """The fixed point with its error bars; closed forms have none."""
        x = run.state.x if self.labels is not None else self._polished(run)

        def look(x: Array) -> tuple[tuple[Array, Numbers], tuple[_Labels, LearnerAverages | None]]:
            labels, answers = self.answers(x)
            value, numbers = self.follow(_mean(labels))
            return (value, numbers | self.observed(x)), (labels, answers)

        (value, numbers), push, (labels, answers) = jax.linearize(look, x, has_aux=True)
        J = jacobian_of(lambda move: push(move)[0], x)
        average = _mean(labels)
        A = average.field.precision
        estimate = self.estimate(average.field)
        stability = average.squared * estimate.pairs(2) / A**2
        shrunk = estimate.shrinkage(estimate.x)
        zero_fraction = jnp.sum(estimate.weight * (shrunk == 0.0))
        spectrum = LearnedSpectrum(zero_fraction, estimate.law, estimate.gain, estimate.shrinkage)
        zero = jnp.zeros((), theory_dtype())
        code, errors, state, jumps = run.result, {"overlap": _matrix(zero)}, None, zero
        if self.labels is not None and answers is not None:
            # nets differ little: one map is averaged, and its slope carries the differences
            _, follow = jax.linearize(self.follow, average)
            off = jax.tree.map(lambda a, mean: a - mean, labels, average)
            off = off._replace(squared=jnp.zeros_like(off.train))
            bars = self._bars(numbers, value - x, jax.vmap(follow)(off), push, J)
            names = ("error", "covariance", "overlap")
            code, errors = judged(run, self.labels.learner, answers, stability, bars, names)
            state, jumps = answers, answers.other_minimum
        fields = {
            "spectral_radius": spectral_radius(J),
            "stability": stability,
            "jump_fraction": jumps,
            "spectrum": spectrum,
            "state": state,
        }
        return End(x, numbers, J, errors, code, fields)


def _mean(labels: _Labels) -> _Labels:
    """The average over rules."""
    return jax.tree.map(jnp.mean, labels)


def _coordinates(e: Array, V: Array, difference: Array) -> Array:
    """Return x from e and V (clipped below at `_MIN_PARAMETER`) and the difference Q - M."""
    e, V = (jnp.maximum(a, _MIN_PARAMETER) for a in (e, V))
    return jnp.stack([jnp.log(e), jnp.log(V), difference / jnp.sqrt(e)])
