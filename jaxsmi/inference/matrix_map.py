r"""State evolution of one matrix, by averages over a law of eigenvalues or singular values.

Bayes [theory: attention-indexed, Eq. (27)], f the information of the channel and V(q̂) the error of
the prior at the precision q̂:

    q̂ = α f(Q_0 - V(q̂))   ⇔   log q̂ - log f(Q_0 - V(q̂)) = log α

The left side increases with q̂, so that its root is bracketed and found however slowly an
iteration would crawl.

Empirical risk [theory: empirical-risk, Eqs. (27) to (31)], labels linear in S, f_Δ(V) the
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

from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, frozen, missing_array, nan_unless, theory_dtype
from jaxsmi.core.driver import Result, Run
from jaxsmi.core.validate import check
from jaxsmi.inference.learner_map import AbstractLearnerMap
from jaxsmi.inference.order_map import (
    AbstractOrderMap,
    Arguments,
    End,
    Numbers,
    OverlapMap,
    Settings,
)
from jaxsmi.learners.matrix_erm import MatrixErm, Shrinkage, student_of, with_unit_noise
from jaxsmi.models.base import title
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.numerics import fixed_point, roots
from jaxsmi.numerics.anderson import AndersonState
from jaxsmi.numerics.linear_algebra import spectral_radius
from jaxsmi.numerics.symmetric_spectrum import NODES, AbstractSpectrum, band_nodes

_MAX_PRECISION = 1e12  # beyond it only V < 1e-12 is known; spectra resolve 1e14
_MAX_RESPONSE = 1e8  # response that the iteration starts with, at most
_MIN_PARAMETER = 1e-14  # an order parameter that counts as zero
_MIN_NOISE = 1e-10  # δ at least, what the spectra resolve: a smaller e is rounding
_PLAIN_AFTER = (Result.DIVERGED, Result.MAX_STEPS)  # ends after which plain steps are taken
_PANELS = 4  # of a band: dense where the law's own nodes are
_PAIR_BATCH = 256  # pairs of so many nodes with all others at a time: some megabytes

_matrix = lambda value: value * jnp.ones((1, 1))


def _information(model: MatrixModel, V: Array) -> Array:
    """f of the channel where the error of the estimate is V, and its overlap the rest."""
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
    alpha: Array
    key: PRNGKeyArray | None

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
        steps = 0 if settings.newton else settings.max_steps
        return self, _solved(frozen(self), steps)

    def end(self, run: Run[_Root]) -> End:
        """V at the root, without a statistical error."""
        x = run.state.x
        numbers = self.numbers(x)
        V = numbers["error"]
        recovered = run.result == Result.RECOVERED
        fields = {
            "spectral_radius": missing_array((), V.dtype),
            "state": {"qhat": jnp.where(recovered, jnp.inf, jnp.exp(x))},
        }
        errors = {"overlap": _matrix(jnp.zeros_like(V))}
        return End(x, numbers, self.slope(x, x), errors, run.result, fields)

    def slope(self, x: Array, jacobian: Array) -> Array:
        """The derivative of the map at x, which has derivatives itself."""
        return jax.jvp(lambda x: self(x)[0], (x,), (jnp.ones_like(x),))[1].reshape(1, 1)


@eqx.filter_jit
def _solved(problem: PrecisionMap, steps: int) -> Run[_Root]:
    """The root between q̂ = α f(q(0)), below which no root lies as f grows, and the largest q̂."""
    model = problem.model
    valid = jnp.isfinite(problem.alpha) & (problem.alpha > 0.0)
    alpha = jnp.where(valid, problem.alpha, 1.0)
    problem = eqx.tree_at(lambda p: p.alpha, problem, alpha)
    start = jnp.ones((), alpha.dtype)  # V at q̂ = 0
    lowest = jnp.log(alpha) + jnp.log(_information(model, start))
    highest = jnp.log(jnp.asarray(_MAX_PRECISION, alpha.dtype))
    x, beyond = roots.root(lambda x: x - problem(x)[0], lowest, highest)
    recovered = (alpha >= model.recovery_alpha) | (beyond & jnp.isfinite(model.recovery_alpha))
    # where all is recovered any number at which the map is finite will do
    x = jnp.where(recovered, lowest, x)
    # beyond the largest precision without recovery, V is only known to be as small
    code = jnp.where(beyond, Result.INACCURATE, Result.SUCCESS)
    code = jnp.where(recovered, Result.RECOVERED, code)
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


class _Estimate(NamedTuple):
    """A matrix seen with noise δ, and its estimate at a precision A: nodes `x` with their `weight`,
    F = `shrinkage` of them, the values `best` of the posterior mean, and the `error` of that."""

    noise: Array
    precision: Array
    x: Array
    weight: Array
    shrinkage: Shrinkage
    best: Array
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


def _nodes(law: AbstractSpectrum, threshold: Array, symmetric: bool) -> tuple[Array, Array]:
    """Nodes with their measure on both sides of the kinks ±threshold, and in panels that the law's
    own nodes make: they are dense where bands are about to part."""
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
    return jnp.where(inside, x, lax.stop_gradient(last)), measure


class MatrixLearnerMap(AbstractLearnerMap):
    """State evolution of a minimiser of a risk, as a map of x = (log e, log V): near recovery both
    fall by orders, and an extrapolation of the numbers themselves would go through zero."""

    growth: ClassVar[float] = 1.2  # empirical
    model: MatrixModel
    alpha: Array
    key: PRNGKeyArray | None
    learner: MatrixErm

    @classmethod
    def of(cls, arguments: Arguments) -> tuple[MatrixLearnerMap, Array]:
        """The map and the largest order parameters."""
        model, alpha, key, *_, learner = arguments
        teacher = student_of(model)
        finite = jnp.isfinite(teacher.prior.law.aspect_ratio)
        check(finite, "model", title(teacher), "one of finite aspect_ratio")
        alpha = nan_unless(alpha, validate.valid(teacher), finite, validate.valid(learner))
        problem = cls(teacher, alpha, key, learner)  # pyright: ignore[reportArgumentType]
        V = jnp.minimum(1.0 / (problem.learner.ridge + problem.learner.nuclear), _MAX_RESPONSE)
        return problem, _logarithms(teacher.prior.norm, V)

    def estimate(self, x: Array) -> _Estimate:
        """Average what the learner makes of the matrix at order parameters."""
        prior = self.model.prior
        e, V = jnp.exp(x)
        noise = jnp.maximum(1.0 / (self.alpha * _information(self.model, e)), _MIN_NOISE)
        precision = self.alpha * _information(with_unit_noise(self.model), V)
        signed = prior.symmetric  # singular values are positive, eigenvalues have both signs
        shrinkage = self.learner.shrinkage(precision, prior.weight, signed)
        law, aspect = prior.law.spectrum(noise)
        grid, measure = _nodes(law, shrinkage.threshold, signed)
        hilbert, density = law.green(grid)
        weight = law.copies * jnp.where(measure > 0.0, measure * density, 0.0)
        best = law.shrink(grid, hilbert)
        return _Estimate(noise, precision, grid, weight, shrinkage, best, law.error, aspect, signed)

    def __call__(self, x: Array) -> tuple[Array, Numbers]:
        """The next logarithms, and the numbers (module docstring)."""
        estimate = self.estimate(x)
        mean, best = estimate.mean, estimate.best
        kept = estimate.shrinkage(estimate.x)
        # the error of the posterior mean and what F is from it: their sum does not cancel
        error = estimate.error + mean((kept - best) ** 2)
        response = mean(kept * (estimate.x - best)) / (estimate.noise * estimate.precision)
        Q = mean(kept**2)
        e, V = jnp.exp(x)
        answer = lambda V: _information(with_unit_noise(self.model), V)
        test = 0.5 * self._measurements**2 / _information(self.model, e)
        train = test * (answer(V) / answer(jnp.zeros_like(V))) ** 2
        penalty = 0.5 * self.learner.ridge * Q
        penalty = penalty + self.learner.nuclear * mean(jnp.abs(kept))
        return _logarithms(error, response), {
            "overlap": _matrix(Q),
            "teacher_overlap": _matrix(mean(kept * best)),
            "covariance": _matrix(V),
            "error": e,
            "train_loss": train,
            "test_loss": test,
            "energy": self.alpha * train + penalty,
        }

    @property
    def _measurements(self) -> int:
        return self.model.closed_form_readout.measurements

    def units(self, x: Array) -> Array:
        """Logarithms are of order one."""
        return jnp.ones_like(x)

    def admissible(self, x: Array) -> Array:
        """e and V are finite."""
        return jnp.all(jnp.isfinite(x))

    def observed(self, x: Array) -> Numbers:
        """e and V."""
        e, V = jnp.exp(x)
        return {"error": e, "covariance": _matrix(V)}

    def solve(self, start: Array, settings: Settings) -> tuple[Self, Run[AndersonState]]:
        """Accelerated steps; where these fail, plain ones, which fall from the start to the fixed
        point: slower, and never past it."""
        run = self.iterate(start, settings)
        if settings.newton and concrete(run.result) and int(run.result) in _PLAIN_AFTER:
            run = self.iterate(start, settings._replace(newton=False))
        return self, run

    def end(self, run: Run[AndersonState]) -> End:
        """The fixed point, polished by a Newton step; closed forms have no error."""
        before = run.state.x
        value, push = jax.linearize(self.value, before)
        J = jax.vmap(push, out_axes=1)(jnp.eye(2))
        success = run.result == Result.SUCCESS
        move = fixed_point.resolvent(J, value - before)
        x = jnp.where(success, before + move, before)
        zero = jnp.zeros((), theory_dtype())
        fields = {
            "spectral_radius": spectral_radius(J),
            "stability": self.estimate(x).pairs(2) / (self.alpha * self._measurements),
            "jump_fraction": zero,
        }
        return End(x, self.numbers(x), J, {"overlap": _matrix(zero)}, run.result, fields)


def _logarithms(e: Array, V: Array) -> Array:
    """x of what is not smaller than next to nothing."""
    return jnp.log(jnp.maximum(jnp.stack([e, V]), _MIN_PARAMETER))
