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

import dataclasses
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, frozen, nan_unless, not_recorded, theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.core.driver import Run, advance, begin
from jaxsmi.core.results import LearnerSolution, Solution
from jaxsmi.core.validate import check
from jaxsmi.inference.order_map import AbstractOrderMap, End, Numbers, Settings, drive
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.learners.matrix_erm import MatrixErm, Shrinkage, believed, student_of
from jaxsmi.models.base import AbstractModel, title
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.numerics import roots
from jaxsmi.numerics.anderson import Anderson, Place
from jaxsmi.numerics.fixed_point import resolvent
from jaxsmi.numerics.linear_algebra import spectral_radius
from jaxsmi.numerics.random_matrix.base import NODES, AbstractSpectrum, band_nodes

_LARGEST_PRECISION = 1e10  # beyond it V is below what the spectra resolve
_LARGEST = 1e8  # response that the iteration starts with, at most
_TINY = 1e-14  # an order parameter that counts as zero
_RESOLVED = 1e-10  # δ at least, what the spectra resolve: a smaller e is not told from it
_GROWTH = 1.2  # empirical: of the part of a step that is taken
_AGAIN = (Result.DIVERGED, Result.MAX_STEPS)  # ends after which plain steps are taken
_PANELS = 4  # of a band: dense where the law's own nodes are
_ROWS = 256  # pairs of so many nodes with all others at a time: some megabytes

_matrix = lambda value: value * jnp.ones((1, 1))


# Bayes
# --------------------------------------------------------------------------------------------


class _Root(NamedTuple):
    """A root log q̂ of the module's equation; there is none where the signal is `recovered`."""

    x: Array
    recovered: Array
    residual: Array


class PrecisionMap(AbstractOrderMap):
    """State evolution of Bayes, as a map of log q̂."""

    twice: ClassVar[bool] = True
    model: MatrixModel
    alpha: Array
    key: PRNGKeyArray | None

    @classmethod
    def of(
        cls, model: AbstractModel, alpha: Array, key: PRNGKeyArray | None
    ) -> tuple[PrecisionMap, None]:
        """The map, from the arguments of `state_evolution`: a root needs no start."""
        return cls(model, nan_unless(alpha, validate.valid(model)), key), None  # pyright: ignore[reportArgumentType]

    def __call__(self, x: Array) -> tuple[Array, Numbers]:
        """log (α f(V)), and the numbers at log q̂."""
        numbers = self.numbers(x)
        V = numbers["error"]
        f = self.model.explicit_readout.information(self.model.prior.norm - V, V)
        return jnp.log(self.alpha) + jnp.log(f), numbers

    def numbers(self, x: Array) -> Numbers:
        """q, V and the error, which is V."""
        V = self.model.prior.mmse(jnp.exp(x))
        return {"overlap": _matrix(self.model.prior.norm - V), "covariance": _matrix(V), "error": V}

    def solve(self, start: None, settings: Settings) -> tuple[PrecisionMap, Run[_Root]]:
        """The root, and the plain trajectory from q̂ = 0 if Newton steps are not taken."""
        steps = 0 if settings.newton else settings.max_steps
        return self, _solved(frozen(self), steps)

    def end(self, run: Run[_Root]) -> End:
        """V at the root, without a statistical error."""
        root = run.state
        J = self.slope(root.x, root.x)
        V = self.numbers(root.x)["error"]
        fields = {
            "spectral_radius": not_recorded((), V.dtype),
            "state": {"qhat": jnp.where(root.recovered, jnp.inf, jnp.exp(root.x))},
        }
        errors = {"overlap": _matrix(jnp.zeros_like(V))}
        return End(root.x, self.numbers(root.x), J, errors, run.result, fields)

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
    f = model.explicit_readout.information(model.prior.norm - start, start)
    lowest = jnp.log(alpha) + jnp.log(f)
    highest = jnp.log(jnp.asarray(_LARGEST_PRECISION, alpha.dtype))
    level = lambda x: x - problem(x)[0]
    x, beyond = roots.root(level, lowest, highest)
    recovered = (alpha >= model.recovery) | (beyond & jnp.isfinite(model.recovery))
    # where all is recovered any number at which the map is finite will do
    x = jnp.where(recovered, lowest, x)
    # beyond the largest precision without recovery, V is only known to be as small
    code = jnp.where(beyond, Result.INACCURATE, Result.SUCCESS)
    code = jnp.where(recovered, Result.RECOVERED, code)
    history = {}
    if steps:
        key = jax.random.key(0)  # explicit averages have no random points
        plain = OverlapMap(model, alpha, key, 1, 2)
        zero = jnp.zeros((), alpha.dtype)
        solver = plain.iteration(_matrix(start), max_steps=steps, tolerance=zero, newton=False)
        history = advance(solver, begin(solver, steps), jnp.asarray(steps)).history
    return Run(_Root(x, recovered, jnp.zeros_like(x)), jnp.asarray(steps), code, history)


# Empirical risk
# --------------------------------------------------------------------------------------------


class Order(eqx.Module):
    """Logarithms of the order parameters: the error e, and the response V."""

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
    return _Seen(x, weight, law.shrink(x, hilbert), law.error, aspect, symmetric)


class _At(NamedTuple):
    """What is known at order parameters: the matrix `seen`, F (`shrinkage`), the noise δ and the
    precision A."""

    seen: _Seen
    shrinkage: Shrinkage
    noise: Array
    precision: Array


class MatrixLearnerMap(AbstractOrderMap):
    """State evolution of a minimiser of a risk, as a map of log e and log V: near recovery they
    fall by orders, and an extrapolation of the numbers themselves would go through zero."""

    solution: ClassVar[type[Solution]] = LearnerSolution
    tolerance: ClassVar[float] = 1e-8  # relative; accelerated steps get there at no cost
    model: MatrixModel
    alpha: Array
    key: PRNGKeyArray | None
    learner: MatrixErm

    @classmethod
    def of(
        cls,
        model: AbstractModel,
        learner: AbstractLearner,
        alpha: Array,
        key: PRNGKeyArray | None,
    ) -> tuple[MatrixLearnerMap, Order]:
        """The map and the largest order parameters, from the arguments of `state_evolution`."""
        teacher = student_of(model)
        finite = jnp.isfinite(teacher.prior.law.aspect_ratio)
        check(finite, "model", title(teacher), "one of finite aspect_ratio")
        alpha = nan_unless(alpha, validate.valid(teacher), finite, validate.valid(learner))
        problem = cls(teacher, alpha, key, learner)  # pyright: ignore[reportArgumentType]
        largest = jnp.minimum(1.0 / (problem.learner.ridge + problem.learner.nuclear), _LARGEST)
        return problem, _logarithms(Order(teacher.prior.norm, largest))

    def at(self, x: Order) -> _At:
        """What the learner sees at order parameters."""
        prior = self.model.prior
        noise = 1.0 / (self.alpha * self._information(self.model, jnp.exp(x.error)))
        noise = jnp.maximum(noise, _RESOLVED)
        answer = self._information(believed(self.model), jnp.exp(x.response))
        precision = self.alpha * answer
        shrinkage = self.learner.shrinkage(precision, prior.weight, prior.symmetric)
        law, aspect = prior.law.spectrum(noise)
        seen = _seen(law, aspect, shrinkage.threshold, prior.symmetric)
        return _At(seen, shrinkage, noise, precision)

    def _information(self, model: MatrixModel, V: Array) -> Array:
        """f(V) of linear labels, which does not depend on q."""
        return model.explicit_readout.information(jnp.zeros_like(V), V)

    def value(self, x: Order) -> Order:
        """The next logarithms."""
        return self._next(self.at(x))

    def __call__(self, x: Order) -> tuple[Order, Numbers]:
        """The next logarithms, and the numbers."""
        at = self.at(x)
        return self._next(at), self._numbers(x, at)

    def _next(self, at: _At) -> Order:
        """The next logarithms: e as the error of the posterior mean and what F is from it, which
        does not cancel."""
        seen = at.seen
        kept = at.shrinkage(seen.x)
        error = seen.error + seen.mean((kept - seen.best) ** 2)
        response = seen.mean(kept * (seen.x - seen.best)) / (at.noise * at.precision)
        return _logarithms(Order(error, response))

    def _numbers(self, x: Order, at: _At) -> Numbers:
        """Overlaps, losses and the energy (module docstring)."""
        seen = at.seen
        kept = at.shrinkage(seen.x)
        Q = seen.mean(kept**2)
        e, V = jnp.exp(x.error), jnp.exp(x.response)
        answer = lambda V: self._information(believed(self.model), V)
        test = 0.5 * self._measurements**2 / self._information(self.model, e)
        train = test * (answer(V) / answer(jnp.zeros_like(V))) ** 2
        penalty = 0.5 * self.learner.ridge * Q
        penalty = penalty + self.learner.nuclear * seen.mean(jnp.abs(kept))
        return {
            "overlap": _matrix(Q),
            "teacher_overlap": _matrix(seen.mean(kept * seen.best)),
            "covariance": _matrix(V),
            "error": e,
            "train_loss": train,
            "test_loss": test,
            "energy": self.alpha * train + penalty,
        }

    @property
    def _measurements(self) -> int:
        return self.model.explicit_readout.measurements

    def solve(self, start: Order, settings: Settings) -> tuple[MatrixLearnerMap, Run[Place]]:
        """Accelerated steps; where these fail, plain ones, which fall from the start to the fixed
        point: slower, and never past it."""
        solver = Anderson(
            map_of=frozen(self).value,
            initial=lax.stop_gradient(start),
            # functions of the module, as a lambda would be another program at each call
            units=_units,
            admissible=_admissible,
            observed=_observed,
            tolerance=settings.tolerance,
            accelerated=settings.newton,
            max_steps=settings.max_steps,
            growth=_GROWTH,
        )
        run = drive(solver, settings)
        if settings.newton and concrete(run.result) and int(run.result) in _AGAIN:
            run = drive(dataclasses.replace(solver, accelerated=False), settings)
        return self, run

    def end(self, run: Run[Place]) -> End:
        """The fixed point, polished by a Newton step; explicit averages have no error."""
        flat = lambda x: jnp.stack([x.error, x.response])
        before = flat(run.state.x)
        step = lambda a: flat(self.value(Order(a[0], a[1])))
        value, push = jax.linearize(step, before)
        J = jax.vmap(push, out_axes=1)(jnp.eye(2))
        success = run.result == Result.SUCCESS
        e, V = jnp.where(success, before + resolvent(J, value - before), before)
        x = Order(e, V)
        at = self.at(x)
        zero = jnp.zeros((), theory_dtype())
        pairs = at.seen.pairs(at.shrinkage, 2)
        fields = {
            "spectral_radius": spectral_radius(J),
            "stability": pairs / (self.alpha * self._measurements),
            "jump_fraction": zero,
        }
        return End(x, self._numbers(x, at), J, {"overlap": _matrix(zero)}, run.result, fields)


def _logarithms(x: Order) -> Order:
    """Of what is not smaller than next to nothing."""
    return jax.tree.map(lambda a: jnp.log(jnp.maximum(a, _TINY)), x)


def _units(x: Order) -> Order:
    return jax.tree.map(jnp.ones_like, x)


def _admissible(x: Order) -> Array:
    return jnp.isfinite(x.error + x.response)


def _observed(x: Order) -> dict[str, Array]:
    """The record of a step."""
    return {"error": jnp.exp(x.error), "covariance": _matrix(jnp.exp(x.response))}
