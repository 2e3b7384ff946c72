r"""State evolution as a map of order parameters: the interface, and the map of Bayes.

Equations here [theory: numerics, Eqs. (24), (28)], F the map of the order parameters x = (Q, M, V,
B), J its Jacobian, F_r the map by the points of one net, n(x) the numbers that a solution reports:

    x = F(x),   δx_r = (I - J)^{-1} (F_r - F)        error bars
    dx = (I - J)^{-1} ∂_θF dθ,   dn = ∂_θn dθ + ∂_x n dx        derivatives

Bayes is the learner with M = Q, V = S - Q and B = 0, so that its x is V alone: one step of undamped
message passing [TCDKZ25; theory: multi-index, Eqs. (50), (52), (53), (62)], S the second moment of
the prior, Λ the precision of side information:

    V ↦ prior.mmse(Q̂),   Q̂ = α channel.response(S - V) + Λ

With an orthonormal basis U (P, k) of the learned directions only they carry an overlap, and the
map is one of the (k, k) matrix V on them:

    Q = U (Uᵀ S U - V) Uᵀ,   V ↦ Uᵀ prior.mmse(U Q̂ Uᵀ) U,   Q̂ = α Uᵀ channel.response(Q) U + Λ
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Response
from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, array_module, frozen, missing, nan_unless, symmetric
from jaxsmi.core.driver import AbstractSolver, Run, init_run, one_by_one, run_solver
from jaxsmi.core.options import Averages, Start
from jaxsmi.core.results import INACCURATE_SHARE, Result, choose
from jaxsmi.core.solution import Estimate, Solution
from jaxsmi.core.validate import check
from jaxsmi.learners.base import AbstractLearner
from jaxsmi.models.base import AbstractModel, regular_along
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.numerics.quadrature import INTEGRAL_ERROR, power_of_two

_MARGIN = 1e-3  # a spectral radius within this of one is a threshold: no derivative there
_START = 1e-3  # overlap of an uninformed start: zero is a fixed point of even links
# empirical, over 48 keys: with 8 nets of 1024 points the error bars of |z| at α = .745 missed the
# truth by two of them 19 times in 100, with 16 nets of 512 those at spectral radius .94 10 times
POINTS = 16384
NETS = 16

# share of the points used by steps far from the fixed point, and its least number a net
_ROUGH, _ROUGH_POINTS = 1.0 / 8.0, 64

_State = TypeVar("_State")

Numbers = dict[str, Array]  # fields of a solution by name


class Arguments(NamedTuple):
    """Arguments of `state_evolution`, which a map and its start are made of; `learner`: None of
    Bayes."""

    model: AbstractModel
    alpha: Array
    key: PRNGKeyArray | None
    start: Start
    averages: Averages
    learner: AbstractLearner | None = None


class Settings(NamedTuple):
    """Step budget, tolerance, Newton or accelerated steps, and the label of a progress bar (None:
    none)."""

    max_steps: int
    tolerance: Array
    newton: bool
    label: str | None


class End(eqx.Module):
    """The end of an iteration: order parameters `x`, the `numbers` n(x), J (n, n) in the entries of
    x, standard errors of some numbers, a result code, and other `fields` of the solution."""

    x: PyTree
    numbers: Numbers
    jacobian: Array
    stderrs: Numbers
    code: Array
    fields: dict[str, PyTree]


class AbstractOrderMap(eqx.Module):
    """The map of the order parameters of one learner at one α; `of(arguments)` makes a map and its
    start.

    Attributes:
        solution: The class of what `finish` returns.
        stationary: Names of numbers with ∂_x n = 0 at a fixed point, as the energy of a minimum.
        tolerance: The default of the iteration.
        twice: Solutions have derivatives of any order; sampled averages have one.
    """

    solution: ClassVar[type[Solution]] = Solution
    stationary: ClassVar[tuple[str, ...]] = ()
    tolerance: ClassVar[float] = 0.0
    twice: ClassVar[bool] = False
    model: AbstractModel
    alpha: Array
    key: PRNGKeyArray | None

    @abc.abstractmethod
    def __call__(self, x: PyTree) -> tuple[PyTree, Numbers]:
        """F(x) and n(x)."""

    def numbers(self, x: PyTree) -> Numbers:
        """n(x)."""
        return self(x)[1]

    @abc.abstractmethod
    def solve(self, start: PyTree, settings: Settings) -> tuple[AbstractOrderMap, Run[Any]]:
        """The end of the iteration from a start, and the map that it was taken of."""

    @abc.abstractmethod
    def end(self, run: Run[Any]) -> End:
        """The end of an iteration as numbers with error bars."""

    def slope(self, x: PyTree, jacobian: Array) -> Array:
        """J (n, n) for derivatives, from that of the error bars."""
        del x
        return jacobian

    def tangent(self, x: PyTree, directions: list[Array]) -> tuple[PyTree, Numbers]:
        """∂_θF dθ and ∂_θn dθ along directions of the numbers θ of this map."""
        return implicit.derivative(lambda m: m(x), self, directions)


# compiled once: it may search a link for jumps
_sharp = eqx.filter_jit(lambda channel: channel.sharp)


def run_from(solver: AbstractSolver[_State], settings: Settings) -> Run[_State]:
    """Run a solver from its start."""
    steps = settings.max_steps

    def whole() -> Run[_State]:
        return run_solver(solver, init_run(solver, steps), steps, label=settings.label)

    return one_by_one(whole, solver)


@eqx.filter_jit
def finish(order_map: AbstractOrderMap, run: Run[Any]) -> Solution:
    """The solution at the end of an iteration, with derivatives, error bars and a result code."""
    end = frozen(order_map).end(run)
    invalid = ~(jnp.isfinite(order_map.alpha) & (order_map.alpha > 0.0))
    code = jnp.where(invalid, Result.INVALID, end.code)
    recovered = code == Result.RECOVERED
    failed = invalid | (code == Result.NONFINITE) | (code == Result.DIVERGED)
    numbers = _differentiable(order_map, end, code)
    masked = lambda a: jnp.where(failed, missing(), a)
    stderrs = jax.tree.map(lambda a: masked(jnp.where(recovered, 0.0, a)), end.stderrs)
    stderr = stderrs.pop("overlap")
    if "cosine" not in stderrs:  # Bayes: the cosine is √(Q/S)
        # frozen, as all error bars: the root has no derivative at Q = 0
        stderrs["cosine"] = masked(_cosine_error(frozen(numbers), stderr))
    return order_map.solution(
        **jax.tree.map(masked, numbers),
        stderrs=stderrs,
        **end.fields,
        stderr=stderr,
        alpha=order_map.alpha,
        steps=run.step,
        residual=run.state.residual,
        result=code,
        history=jax.tree.map(lambda a: jnp.where(invalid, missing(), a), run.history),
        model=order_map.model,
        key=order_map.key,
        kind="state_evolution",
    )


def _cosine_error(numbers: Numbers, stderr: Array) -> Array:
    """Return the error of √(Q/S) of each index: finite at Q = 0, NaN where that of Q is."""
    Q, V, bar = (jnp.diagonal(x) for x in (numbers["overlap"], numbers["covariance"], stderr))
    known = jnp.isfinite(Q) & jnp.isfinite(V) & jnp.isfinite(bar) & (Q + V > 0.0)
    # roots of NaN stop with jax_debug_nans
    Q, rho, safe = (jnp.where(known, x, 1.0) for x in (jnp.maximum(Q, 0.0), Q + V, bar))
    return jnp.where(known, (jnp.sqrt(Q + safe) - jnp.sqrt(Q)) / jnp.sqrt(rho), missing())


def _at_recovery(numbers: Numbers, recovered: Array) -> Numbers:
    """Move numbers, or their derivatives, to V = 0 where the signal is recovered."""
    # the iteration ends before V is zero, but Q + V is the second moment all the way
    limits = {"overlap": numbers["overlap"] + numbers["covariance"], "covariance": 0.0}
    limits["error"] = 0.0
    return numbers | {k: jnp.where(recovered, x, numbers[k]) for k, x in limits.items()}


def _differentiable(order_map: AbstractOrderMap, end: End, code: Array) -> Numbers:
    """The numbers of a fixed point with their implicit derivatives (module docstring): those at
    fixed x where the signal is recovered, NaN where x is marginal or was not reached."""
    recovered = code == Result.RECOVERED
    fixed = (code == Result.SUCCESS) | (code == Result.INACCURATE) | (code == Result.UNSTABLE)
    # UNSTABLE is a fixed point of the replica-symmetric map, whose derivative exists all the same
    weight = jnp.where(fixed | recovered, 1.0, missing())
    context = (end.x, _at_recovery(end.numbers, recovered), end.jacobian, weight, recovered)

    def solve(_: AbstractOrderMap, context: Any) -> tuple[PyTree, Numbers]:
        return context[:2]

    def prepare(order_map: AbstractOrderMap, context: Any, answer: Any) -> tuple[PyTree, Array]:
        # costly for sampled averages, so only where a derivative is taken
        return answer[0], order_map.slope(answer[0], context[2])

    def push(
        order_map: AbstractOrderMap, context: Any, prepared: Any, directions: list[Array]
    ) -> tuple[PyTree, Numbers]:
        (x, J), (*_, weight, recovered) = prepared, context
        slope, explicit = order_map.tangent(x, directions)
        dx = fixed_point.resolvent(J, slope)
        # recovered V stays zero: the resolvent of an iteration that never ended means nothing
        dx = jax.tree.map(lambda a: jnp.where(recovered, 0.0, weight * a), dx)
        change = jax.jvp(order_map.numbers, (x,), (dx,))[1]
        # exactly zero: their slopes at an end within the tolerance are rounding times large moves
        change |= {k: jnp.zeros_like(change[k]) for k in order_map.stationary}
        total = jax.tree.map(lambda a, b: weight * (a + b), explicit, change)
        return dx, _at_recovery(total, recovered)

    return implicit.differentiable(solve, push, order_map, context, prepare, twice=order_map.twice)[
        1
    ]


class OverlapMap(AbstractOrderMap):
    """State evolution of a model at one α, as a map of V (k, k) on the learned directions.

    Args:
        model: A model whose channel has a response.
        alpha: Sample complexity N/D, an array of no dimension.
        key: Random key of the outer average: the map is one smooth function for each key.
        points_per_net: Points in each net of the outer average.
        nets: Independent nets, R; the map returns R replicas of its value.
        side_information: Precision Λ that is added to Q̂, times the identity. Default 0.
        learned: Orthonormal basis U (P, k) of the learned directions. Default all of them.
    """

    tolerance: ClassVar[float] = 1e-4  # a tenth of the usual statistical error
    model: AbstractModel
    alpha: Array
    key: PRNGKeyArray
    points_per_net: int = eqx.field(static=True)
    nets: int = eqx.field(static=True)
    side_information: Array | float = 0.0
    learned: Array | None = None

    @classmethod
    def of(cls, arguments: Arguments) -> tuple[OverlapMap, Array]:
        """The map and the first V."""
        model, alpha, key, start, averages, _ = arguments
        key = validate.key("key", key)
        if start.overlap is not None and start.overlap.ndim == 0:
            validate.number("start", start.overlap, validate.FRACTION)  # before any computation
        numbers = (start.teacher_overlap, start.variance, start.direction_overlap)
        allowed = "an overlap alone without a learner: Bayes has M = Q and V = S - Q"
        check(all(x is None for x in numbers), "start", start, allowed)
        points, nets = averages.sizes(POINTS, NETS, 2)
        strength = start.side_information
        S = model.prior.second_moment(model.indices)
        xp = array_module(S)
        S = xp.asarray(S)
        prior_overlap = xp.asarray(model.prior.mean_overlap(model.indices))
        uninformed = prior_overlap + _START * (S - prior_overlap)
        Q = validate.overlap("start", uninformed if start.overlap is None else start.overlap, S)
        # outside jit all of this holds; inside, a bad value becomes a bad α: the code INVALID
        alpha = nan_unless(alpha, validate.valid((Q, strength)), validate.valid(model))
        side = strength / (1.0 - strength)
        V = jnp.asarray(S - array_module(S, Q).asarray(Q))
        return cls(model, alpha, key, power_of_two(points), nets, side), V

    # The map

    def restrict(self, X: Array) -> Array:
        """Uᵀ X U: a (P, P) matrix on the learned directions."""
        return X if self.learned is None else self.learned.T @ X @ self.learned

    def embed(self, X: Array) -> Array:
        """U X Uᵀ: a matrix on the learned directions, in all of them."""
        return X if self.learned is None else self.learned @ X @ self.learned.T

    @property
    def second_moment(self) -> Array:
        """S on the learned directions (k, k): the largest V."""
        return self.restrict(self.model.prior.second_moment(self.model.indices))

    def overlaps(self, V: Array) -> tuple[Array, Array]:
        """Q and S - Q, both (P, P), that belong to V on the learned directions."""
        Q = self.embed(self.second_moment - V)
        if self.learned is None:
            return Q, V
        return Q, self.model.prior.second_moment(self.model.indices) - Q

    def evaluate(self, V: Array, share: Array | None = None) -> fixed_point.Evaluation:
        """The value of the map at V, its Jacobian, and one replica for each net; `share`: by the
        first points of each net alone, this fraction of them.

        The Jacobian is that of the infinite average, d response[dQ] = E Σ ∂g dQ ∂gᵀ.
        """
        Q, covariance = self.overlaps(symmetric(V))
        channel = self.model.channel
        response = (channel if share is None else channel.partial(share)).response(
            Q, covariance, key=self.key, points=self.points_per_net, nets=self.nets
        )
        return self.returned(V, response)

    def returned(self, V: Array, response: Response) -> fixed_point.Evaluation:
        """`evaluate`, from the channel's response at V."""
        prior = self.model.prior
        side = self.side_information * jnp.eye(V.shape[0], dtype=V.dtype)

        def precision(replica: Array) -> Array:
            return self.alpha * symmetric(self.restrict(replica)) + side

        Qhat = precision(response.mean)
        # nets differ little: the prior is averaged once, and its slope carries the differences
        value, pull = jax.linearize(lambda A: self.restrict(prior.mmse(self.embed(A))), Qhat)
        jacobian = self.alpha * self._restrict_tensor(response.jacobian)
        return fixed_point.Evaluation(
            value,
            -jax.vmap(jax.vmap(pull, 2, 2), 3, 3)(jacobian),  # dQ = -dV
            value + jax.vmap(lambda R: pull(precision(R) - Qhat))(response.replicas),
            response.inaccurate,
            self._integral_error(pull, self.restrict(response.error)),
        )

    def _integral_error(self, pull: Callable[[Array], Array], error: Array) -> Array:
        """Carry the errors of α response, entry by entry and without signs, to F."""
        k = len(error)
        unit = symmetric(jnp.eye(k * k, dtype=error.dtype).reshape(k * k, k, k))
        return jnp.einsum("n,nab->ab", self.alpha * error.ravel(), jnp.abs(jax.vmap(pull)(unit)))

    def _restrict_tensor(self, J: Array) -> Array:
        """A map of (P, P) matrices on the learned directions, (k, k, k, k)."""
        U = self.learned
        return J if U is None else jnp.einsum("pi,qj,pqrs,rk,sl->ijkl", U, U, J, U, U)

    # Its fixed point

    @property
    def recovers(self) -> Array:
        """True if V may fall to 0: under a discrete prior labels that jump are enough."""
        channel = self.model.channel
        return _sharp(channel) if self.model.prior.traits.discrete else channel.noiseless

    def solver(
        self, V0: Array, *, max_steps: int, tolerance: Array, newton: bool = True
    ) -> fixed_point.FixedPointSolver:
        """The iteration of the map from V0 (k, k)."""
        return fixed_point.FixedPointSolver(
            map_of=self.evaluate,
            V0=V0,
            scale=self.second_moment,
            tolerance=tolerance,
            geometric=self.recovers,
            newton=newton,
            max_steps=max_steps,
            jumps=self.model.channel.averaging.random_nodes,
        )

    def solve(
        self, start: Array, settings: Settings
    ) -> tuple[OverlapMap, Run[fixed_point.FixedPointState]]:
        """Iterate with `fixed_point.FixedPointSolver`."""
        # derivatives come from the fixed point, not from the way to it
        frozen_map, start = frozen(self), lax.stop_gradient(start)
        steps = {"max_steps": settings.max_steps, "newton": settings.newton}
        solver = frozen_map.solver(start, tolerance=settings.tolerance, **steps)
        channel = self.model.channel
        divisible = channel.partial(self.alpha) is not channel  # it can skip points
        if self.points_per_net >= _ROUGH_POINTS / _ROUGH and divisible:
            solver = dataclasses.replace(solver, rough=_ROUGH)
        return self, run_from(solver, settings)

    def __call__(self, x: Array) -> tuple[Array, Numbers]:
        """F(V), and the numbers at V."""
        return self.evaluate(x).value, self.numbers(x)

    def numbers(self, x: Array) -> Numbers:
        """Q, V and the plug-in error."""
        error = self._error(x).value
        return {"overlap": self.second_moment - x, "covariance": x, "error": error}

    def _error(self, V: Array) -> Estimate:
        key = jax.random.fold_in(self.key, 2)
        return self.model.metric.theory_error(V, key=key, points=self.points_per_net)

    def end(self, run: Run[fixed_point.FixedPointState]) -> End:
        """The last V, with the error of the last evaluation: no other one is needed."""
        last = run.state
        evaluation = last.evaluation
        success = run.result == Result.SUCCESS
        code = choose(
            (success & (evaluation.inaccurate > INACCURATE_SHARE), Result.INACCURATE),
            (success & (last.spectral_radius > 1.0 - _MARGIN), Result.MARGINAL),
            start=run.result,
        )
        spread = fixed_point.propagated_error(evaluation.jacobian, evaluation.replicas)
        # nets that are grids agree to rounding, below the errors of the integrals inside
        spread = jnp.hypot(spread, INTEGRAL_ERROR * self.second_moment)
        inside = fixed_point.resolvent(evaluation.jacobian, evaluation.integral_error)
        spread = jnp.hypot(spread, inside)
        # add the error that the tolerance leaves to the statistical one
        reached, distance = code != Result.MAX_STEPS, jnp.hypot(spread, last.remaining)
        J = evaluation.jacobian.reshape(last.V.size, last.V.size)
        fields = {"spectral_radius": last.spectral_radius}
        # its own sampling, and what the error of V changes; roots of NaN stop with jax_debug_nans
        safe = jnp.where(reached & jnp.isfinite(distance), distance, 0.0)
        error, shifted = self._error(last.V), self._error(last.V + safe).value
        bars = {"overlap": distance, "error": jnp.hypot(error.stderr, shifted - error.value)}
        stderrs = {name: jnp.where(reached, bar, missing()) for name, bar in bars.items()}
        return End(last.V, self.numbers(last.V), J, stderrs, code, fields)

    def slope(self, x: Array, jacobian: Array) -> Array:
        """Jacobian of the sampled map, whose labels move with the fields."""
        del jacobian
        stated = self.evaluate(x).jacobian
        regular, _ = self.model.channel.regular
        if regular is not False:
            Q = self.second_moment - x
            pathwise = fixed_point.pathwise_jacobian(self.evaluate, x, Q)
            stated = jnp.where(regular, pathwise, stated)
        return stated.reshape(x.size, x.size)

    def tangent(self, x: Array, directions: list[Array]) -> tuple[Array, Numbers]:
        """NaN along numbers of the model that move jumps of the label: the average along drawn
        labels misses them. That in α is exact."""
        slope, numbers = super().tangent(x, directions)
        # the numbers of the model come first
        known = regular_along(self.model, directions)
        return jnp.where(known, slope, jnp.nan), numbers
