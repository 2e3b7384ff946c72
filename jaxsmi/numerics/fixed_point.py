"""Fixed points of monotone maps of a covariance.

Equations here, for V ↦ F(V) on P×P symmetric matrices with Jacobian J:

* residual r = F(V) - V; the distance to the fixed point is about (I - J)^{-1} r, and where J has
  large errors ‖r‖/(1 - ρ), ρ the spectral radius of J: the larger of them, not the (damped) step,
  is compared with the tolerance (J is not normal: one layer's uncertainty can move another thirty
  times as much);
* 2^k steps of the linearised map at once, V + Σ_j J^j r, j < 2^k, where they change V and S - V
  little; k grows by one after a step that lowered the residual, and falls after one that went too
  far;
* Newton polish V + t (I - J)^{-1} r, t halved after a step that did not halve the residual, taken
  only where the iteration already contracts, the residual falls, and the step stays near V;
* ρ by the growth of the powers of J on symmetric matrices: J maps positive matrices to positive
  ones, so that its leading eigenvalue is its spectral radius;
* the error implied by the tolerance: (I - J)^{-1} r less the last step, at least half of it after a
  Newton step, which has to halve the residual;
* a fixed point V > 0 or perfect recovery: as long as V is no larger than twice that distance and
  falls geometrically, zero is as good an answer, and the iteration goes on;
* V that moves by a fiftieth of the statistical error of F, seven steps in a row with 1 <= ρ < 1.05:
  the points do not tell whether F contracts, and the iteration ends there, at a threshold;
* error propagation: an error δ of F moves the fixed point by (I - J)^{-1} δ.

Source: [theory: numerics, Eqs. (23) to (28)]. Derivatives of fixed points: implicit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree, missing_where, symmetric
from jaxsmi.core.driver import AbstractSolver, Run, advance, new_run
from jaxsmi.core.results import Result, choose
from jaxsmi.numerics.linear_algebra import (
    positive_part,
    relative_eigenvalues,
    spectral_radius,
    symmetric_basis,
)
from jaxsmi.numerics.quadrature import standard_error

# Newton steps need a contraction, as J has statistical errors; next to the end of a branch, where
# plain steps creep, one that turns out to have left the region is undone instead.
_NEWTON_BELOW, _NEWTON_BELOW_FOLD = 0.98, 0.998
_MIN_GAP = 1e-6  # 1 - ρ in the distance, at least: beyond, α is at a threshold
# A Newton step stays near V, or the statistical errors of J throw it onto another branch next to a
# spinodal: eigenvalues at least 0.3 of those of V, entries within 5 % of S, all of it below S up to
# rounding of its trace.
_MIN_EIGENVALUE_RATIO, _MAX_STEP, _MAX_EXCESS = 0.3, 0.05, 1e-3
# Discrete priors: V collapses faster than any geometric decay. The iteration stops before V is so
# small that no sample resolves it, where F falls back to S.
_COLLAPSE_BELOW, _COLLAPSE_RATIO = 1e-6, 1e-2
_POWERS = 64  # power iterations: eigenvalues 5 % apart leave 4 % of the second direction
# A part of the points is enough as long as V moves by three of its standard errors; a residual that
# grows by a tenth a step leaves a saddle.
_ROUGH_SIGMAS, _GROWS = 3.0, 1.1
# Least trust: seven Newton steps that did not halve the residual. Empirical: three tanh units by
# 1024 points, where one sample moves F by 2e-3, cycled for all of 300 steps; it takes 27.
_STALLED = 2.0**-7
# Share of the statistical error of F within which V stands still, steps in a row, and error of ρ by
# that of J. Chosen on one link of two mixed fields next to its threshold: with ρ = 1.01 by 8192
# points it stood for all of 300 steps; with 512 points ρ is 1.1, and it still does.
_STANDS, _STANDING, _ERROR_OF_RADIUS = 0.02, 7, 0.05
# Where Newton steps are not sound, as off a saddle or on the way to V = 0, up to 2^4 steps of the
# linearised map are taken at once, as errors of J of a few per cent add up; twice as many after one
# that lowered the residual, a quarter after one that went too far. Two layers at α = 1, where V
# falls as 1/t: 48 steps, not 300.
_DOUBLINGS, _MOST_DOUBLINGS = 4, 10
# Limits on the overlap S - V: it rises tenfold at most, and falls to zero only from below a
# thousandth of S. Empirical, of 288 scalar maps with several fixed points: plain and Newton steps
# took the wrong branch for two, these steps for one, and for five without limits on the overlap.
_MAX_RISE, _SMALL_OVERLAP = 10.0, 1e-3
# √q of two directions above which the random points determine the slope of the map between them
_RESOLVED = 0.1


def apply(J: Array, X: Array) -> Array:
    """J[X] for a Jacobian (P, P, P, P) and a matrix (P, P)."""
    return jnp.einsum("abcd,cd->ab", J, X)


def perron_value(J: Array) -> Array:
    """Leading eigenvalue of a positive map J (P, P, P, P) on symmetric matrices."""
    # on symmetric matrices alone: derivatives of a Cholesky factor see one triangle, so that off
    # them the entries of J mean nothing
    basis = symmetric_basis(len(J))
    return spectral_radius(jnp.einsum("iab,abcd,jcd->ij", basis, J, basis))


def perron(J: Array) -> tuple[Array, Array]:
    """`perron_value`, and its eigenmatrix (P, P), positive semi-definite and of trace one."""
    step = lambda X: apply(J, X) / (jnp.trace(apply(J, X)) + jnp.finfo(J.dtype).tiny)
    start = jnp.eye(len(J), dtype=J.dtype) / len(J)
    return perron_value(J), lax.fori_loop(0, _POWERS, lambda _, X: symmetric(step(X)), start)


def resolvent(J: Array, move: PyTree) -> PyTree:
    """(I - J)^{-1} of a change of n numbers in any tree: J (n, n), or (P, P, P, P) of a matrix."""
    flat, build = ravel_pytree(move)
    one = jnp.eye(flat.size, dtype=J.dtype)
    return build(jnp.linalg.solve(one - J.reshape(one.shape), flat))


def _linear_steps(
    J: Array, difference: Array, V: Array, overlap: Array, longest: Array, doublings: Array
) -> Array:
    """Σ_k J^k of a difference (P, P), over as many steps 1, 2, 4, .., up to 2^doublings, as change
    no entry of V by more than `longest`, and eigenvalues of V and of the overlap by small factors:
    a fixed point in between would be jumped over."""

    def doubled(steps: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        count, power, total = steps
        return count + 1, power @ power, total + power @ total

    def allowed(steps: tuple[Array, Array, Array]) -> Array:
        change = symmetric(doubled(steps)[2].reshape(V.shape))
        size = jnp.max(jnp.abs(change))
        of_V = 1.0 + relative_eigenvalues(change, V)
        of_overlap = 1.0 - relative_eigenvalues(change, overlap)[::-1]
        similar = jnp.minimum(of_V[0], of_overlap[0]) > _MIN_EIGENVALUE_RATIO
        similar = similar & (of_V[-1] < 1.0 / _MIN_EIGENVALUE_RATIO) & (of_overlap[-1] < _MAX_RISE)
        return (steps[0] < doublings) & similar & (size > 0.0) & (size <= longest)

    matrix = J.reshape(difference.size, difference.size)
    start = (jnp.zeros_like(doublings), matrix, difference.ravel())
    return symmetric(lax.while_loop(allowed, doubled, start)[2].reshape(V.shape))


class Evaluation(eqx.Module):
    """F(V), its Jacobian (P, P, P, P), its replicas (R, P, P), the fraction of samples whose inner
    integral was inaccurate, and the error of F (P, P) that the others leave."""

    value: Array
    jacobian: Array
    replicas: Array
    inaccurate: Array
    integral_error: Array


class FixedPointState(eqx.Module):
    """State of the iteration: V, the last evaluation of F (at the V before), its `difference` from
    that V and the `residual`, its largest entry.

    `ratio`: tr F(V)/tr V; `decay_count`: consecutive steps of geometric decay;
    `trust`: the part of a Newton step that is taken; `polished`: the last step was one;
    `doublings` of the steps of the linearised map;
    `remaining`: distance of the fixed point from V, (P, P) without signs; `undecided`: the fixed
    point may be zero; `use_part`: the next evaluation takes a part of the points; `used_all`: the
    last one took all; `standing`: steps in a row in which V stood still with ρ about one.
    """

    V: Array
    evaluation: Evaluation
    difference: Array
    residual: Array
    distance: Array
    spectral_radius: Array
    ratio: Array
    decay_count: Array
    trust: Array
    polished: Array
    doublings: Array
    remaining: Array
    undecided: Array
    recovered: Array
    standing: Array
    use_part: Array
    used_all: Array

    @property
    def points_changed(self) -> Array:
        """The next evaluation takes other points than the last one: residuals do not compare."""
        return self.use_part == self.used_all

    @property
    def finite(self) -> Array:
        """F of the last V is finite."""
        return jnp.all(jnp.isfinite(self.evaluation.value))


class GeometricDecay(eqx.Module):
    """Perfect recovery as an iteration shows it: V falls to zero by the same factor a step.

    It is reached after `steps` steps in a row in which tr V was below 1e-3 of its largest value,
    its ratio from step to step below `slowest`, and that ratio steady to `spread`; or once tr V is
    rounding, 1e-12 of its largest value. Theory has no fluctuations and may ask for a steady ratio;
    a run of finite dimension fluctuates, and must be watched for longer.
    """

    largest: Array
    slowest: float = eqx.field(static=True)
    spread: float = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def follow(self, count: Array, trace: Array, ratio: Array, previous: Array) -> Array:
        """Steps in a row of such a decay: `trace` of V, and its last two ratios."""
        # above it V may fall geometrically towards a fixed point V > 0
        falling = (trace < 1e-3 * self.largest) & (ratio < self.slowest)
        return jnp.where(falling & (jnp.abs(ratio - previous) < self.spread), count + 1, 0)

    def reached(self, count: Array, trace: Array) -> Array:
        """V is on its way to zero, or there."""
        # V = S - Q cancels down to rounding, about 1e-16 times the length of the sums
        return (count >= self.steps) | (trace < 1e-12 * self.largest)


class FixedPointSolver(AbstractSolver[FixedPointState]):
    """V ← F(V) until the distance to the fixed point is within the tolerance, polished by Newton
    steps where the map contracts (module docstring).

    Args:
        map_of: V (P, P) to an `Evaluation` of F.
        V0: Where to start, (P, P).
        scale: The largest V (P, P), the second moment of the prior, the unit of sizes.
        tolerance: On the largest entry of the distance.
        geometric: V may decay geometrically to zero (`GeometricDecay`), which is then
            perfect recovery; so is V below 1e-6 of its scale that falls a hundredfold.
        newton: Polish once the iteration contracts.
        max_steps: Step budget.
        downwards: Only the direction that V0 leads to matters. F is monotone: once V ≻ V0 the
            iteration never comes back (MAX_STEPS), and once V ≺ V0 it stays below, which without
            noise counts as perfect recovery (RECOVERED). Default None: it goes on.
        fold: The end of a branch may be near: Newton steps are then taken up to ρ = 0.998, and one
            that leaves the region where F contracts is undone, with plain steps from there. Default
            False: up to 0.98.
        rough: Share of the points that a step takes as long as V moves by much more than the
            statistical error of that part; `map_of` is then called with a share as well. The last
            step takes all. Default None: all of them do.
        jumps: F is smooth but for jumps of the size of its errors (integrals over random nodes,
            where a sample changes its rule). Newton steps that keep missing then end the iteration
            within the standard error of the fixed point, not the tolerance. Default False.
    """

    map_of: Callable[..., Evaluation]
    V0: Array
    scale: Array
    tolerance: Array
    geometric: Array | bool
    newton: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    downwards: Array | None = None
    fold: bool = eqx.field(static=True, default=False)
    rough: float | None = eqx.field(static=True, default=None)
    jumps: bool = eqx.field(static=True, default=False)

    @property
    def decay(self) -> GeometricDecay:
        """Without fluctuations: a ratio below one that is steady to 1 % for five steps."""
        return GeometricDecay(jnp.trace(self.scale), slowest=0.995, spread=0.01, steps=5)

    def init(self) -> FixedPointState:
        """V0, without an evaluation of F."""
        V0 = self.V0
        dtype = self.V0.dtype
        no = jnp.zeros((), bool)
        shapes = eqx.filter_eval_shape(_mapped, self.map_of, V0, *self._share(no))
        unknown = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        infinite = jnp.asarray(jnp.inf, dtype)
        return FixedPointState(
            V=V0,
            evaluation=unknown,
            difference=jnp.zeros_like(V0),
            residual=infinite,
            distance=infinite,
            spectral_radius=infinite,
            ratio=infinite,
            decay_count=jnp.zeros((), int),
            trust=jnp.ones((), dtype),
            polished=jnp.zeros((), dtype),
            doublings=jnp.full((), _DOUBLINGS),
            remaining=jnp.full_like(V0, jnp.inf),
            undecided=no,
            recovered=no,
            standing=jnp.zeros((), int),
            use_part=jnp.asarray(self.rough is not None),
            used_all=no,
        )

    def step(self, state: FixedPointState, count: Array) -> FixedPointState:
        """The Newton step where that is sound, else steps of the linearised map, of which F(V) is
        the first."""
        V = state.V
        scale = self.scale
        evaluation = _mapped(self.map_of, V, *self._share(state.use_part))
        # V ⪯ S: sampled averages may point beyond, where a direction is not learned, for ever
        inside = lambda X: scale - positive_part(scale - X)
        value = inside(evaluation.value)
        difference = value - V
        residual = jnp.max(jnp.abs(difference))
        rho = perron_value(evaluation.jacobian)
        newton_step = resolvent(evaluation.jacobian, difference)
        plain = residual / jnp.maximum(1.0 - rho, _MIN_GAP)
        distance = jnp.maximum(plain, jnp.max(jnp.abs(newton_step)))
        changed = state.points_changed
        # a Newton step that did not halve the residual: the error of J is too large for all of it
        expected = (1.0 - 0.5 * state.polished) * state.residual
        failed = (state.polished > 0.0) & (residual > expected) & ~changed
        trust = jnp.where(failed, 0.5 * state.trust, state.trust)
        longest = _MAX_STEP * jnp.max(scale)
        part = jnp.minimum(trust, longest / jnp.maximum(jnp.max(jnp.abs(newton_step)), longest))
        candidate = symmetric(value + part * (V + newton_step - value))
        # after a Newton step the trust decides, not the residual
        lower = residual < state.residual
        falls = lower | (state.polished > 0.0) | changed
        contracts = rho < (_NEWTON_BELOW_FOLD if self.fold else _NEWTON_BELOW)
        take = self.newton & contracts & falls & (trust > 0.0) & self._sound(V, candidate)
        lower = lower & ~changed
        too_far = (jnp.sum(difference * state.difference) < 0.0) & ~changed
        doublings = self._next_doublings(state.doublings, lower, too_far)
        # `_sound` allows rounding above S, but the next overlap S - V has to be positive
        further = value
        if self.newton and not self.fold:
            J, overlap = evaluation.jacobian, scale - V + _SMALL_OVERLAP * scale
            further = inside(V + _linear_steps(J, difference, V, overlap, longest, doublings))
        new = jnp.where(take, inside(candidate), further)
        if self.fold:
            # a Newton step ended beyond the fold: plain steps from before it, and no more Newton
            left = (state.polished > 0.0) & (rho >= 1.0)
            trust = jnp.where(left, 0.0, trust)
            new = jnp.where(left, state.evaluation.value, new)
        trace = jnp.trace(V)
        ratio = jnp.trace(value) / trace
        decay_count = self.decay.follow(state.decay_count, trace, ratio, state.ratio)
        undecided = (ratio < self.decay.slowest) & (trace <= 2.0 * len(V) * distance)
        remaining = jnp.where(take, (1.0 - 0.5 * part) * newton_step, V + newton_step - new)
        # two conditions: a start below `_COLLAPSE_BELOW` need not be on its way to zero
        small = jnp.trace(value) < _COLLAPSE_BELOW * jnp.trace(scale)
        collapsed = small & (ratio < _COLLAPSE_RATIO)
        recovered = self.geometric & (self.decay.reached(decay_count, jnp.trace(new)) | collapsed)
        return FixedPointState(
            V=new,
            evaluation=evaluation,
            difference=difference,
            residual=residual,
            distance=distance,
            spectral_radius=rho,
            ratio=ratio,
            decay_count=decay_count,
            trust=trust,
            polished=jnp.where(take, part, 0.0),
            doublings=doublings,
            remaining=jnp.abs(symmetric(remaining)),
            undecided=self.geometric & undecided,
            recovered=recovered,
            standing=jnp.where(self._stands(evaluation, V, rho), state.standing + 1, 0),
            use_part=self._part_is_enough(state, evaluation, difference) & ~recovered,
            used_all=~state.use_part,
        )

    def _share(self, use_part: Array) -> tuple[Array, ...]:
        """Return (share,) of the points that an evaluation takes; () where it takes all."""
        return () if self.rough is None else (jnp.where(use_part, self.rough, 1.0),)

    def _part_is_enough(
        self, state: FixedPointState, evaluation: Evaluation, difference: Array
    ) -> Array:
        """True while V moves by more than the statistical error of a part of the points."""
        if self.rough is None:
            return jnp.zeros((), bool)
        # the error by a part, whatever points this evaluation took
        spread = standard_error(evaluation.replicas)
        spread = spread * jnp.where(state.use_part, 1.0, self.rough**-0.5)
        moves = jnp.abs(difference) > jnp.maximum(_ROUGH_SIGMAS * spread, 0.01 * self.tolerance)
        # back to a part only where V leaves a saddle: both maps in turns would not end
        grows = jnp.max(jnp.abs(difference)) > _GROWS * state.residual
        return jnp.any(moves) & (state.use_part | (~state.points_changed & grows))

    def _stands(self, evaluation: Evaluation, V: Array, rho: Array) -> Array:
        """True if F moves V by little of its statistical error, and ρ is one up to the error of J:
        the points do not tell whether F contracts. Never in searches for the end of a branch."""
        still = jnp.abs(evaluation.value - V) <= _STANDS * standard_error(evaluation.replicas)
        searches = self.fold or self.downwards is not None
        near_one = (rho >= 1.0) & (rho < 1.0 + _ERROR_OF_RADIUS)
        return jnp.asarray(not searches) & jnp.all(still) & near_one

    def _next_doublings(self, doublings: Array, lower: Array, too_far: Array) -> Array:
        """Return one more after a step that lowered the residual, two fewer after one that raised
        it and went too far; else the number of the start."""
        more = jnp.where(lower, jnp.minimum(doublings + 1, _MOST_DOUBLINGS), _DOUBLINGS)
        fewer = jnp.where(lower, doublings, jnp.maximum(doublings - 2, 0))
        return jnp.where(too_far, fewer, more)

    def _sound(self, V: Array, candidate: Array) -> Array:
        """True if a Newton step is short, and its end a covariance near V with 0 ⪯ V ⪯ S."""
        # eigenvalues relative to V: entries alone would let small directions change sign
        similar = 1.0 + relative_eigenvalues(candidate - V, V)[0] > _MIN_EIGENVALUE_RATIO
        # twice: a cut Newton step holds a part of the plain one as well
        short = jnp.max(jnp.abs(candidate - V)) < 2.0 * _MAX_STEP * jnp.max(self.scale)
        spare = jnp.linalg.eigvalsh(self.scale - candidate)[0]
        inside = spare > -_MAX_EXCESS * jnp.trace(self.scale)
        inside = inside & (jnp.linalg.eigvalsh(candidate)[0] > 0.0)
        return similar & short & inside & jnp.all(jnp.isfinite(candidate))

    def observe(self, state: FixedPointState, count: Array) -> dict[str, Array]:
        """V, Q = S - V and the residual."""
        V = missing_where(~state.finite, state.V)
        return {
            "step": count.astype(V.dtype),
            "covariance": V,
            "overlap": self.scale - V,
            "residual": missing_where(count == 0, state.residual),
        }

    def progress(self, state: FixedPointState) -> Mapping[str, str]:
        """The overlaps of the single directions."""
        return {"Q": " ".join(f"{q:.4f}" for q in jnp.diagonal(self.scale - state.V))}

    def terminate(self, state: FixedPointState, count: Array) -> Array:
        """SUCCESS within the tolerance and away from zero, or where V stands still at ρ about one;
        RECOVERED on geometric decay; else MAX_STEPS or NONFINITE."""
        converged = state.distance <= self.tolerance
        # next to the end of a branch a short distance may still lead to another one
        if self.jumps and not self.fold:
            error = propagated_error(state.evaluation.jacobian, state.evaluation.replicas)
            converged = converged | ((state.trust <= _STALLED) & (state.distance <= jnp.max(error)))
        converged = converged & (state.spectral_radius < 1.0)
        converged = converged | (state.standing >= _STANDING)
        rises: Array | bool = False
        falls: Array | bool = False
        if self.downwards is not None:
            change = jnp.linalg.eigvalsh(state.V - self.V0)
            rises = self.downwards & (change[0] > 0.0)
            falls = self.downwards & self.geometric & (change[-1] < 0.0)
        return choose(
            ((count >= self.max_steps) | rises, Result.MAX_STEPS),
            # later entries win; an undecided V may still turn out to be zero
            (converged & ~state.undecided & state.used_all, Result.SUCCESS),
            ((state.recovered & state.used_all) | falls, Result.RECOVERED),
            (~state.finite, Result.NONFINITE),
        )


@eqx.filter_jit
def _mapped(map_of: Callable[..., Evaluation], V: Array, *share: Array) -> Evaluation:
    # one trace for the shapes of the start and for the steps
    return map_of(V, *share)


def solve(solver: FixedPointSolver) -> Run[FixedPointState]:
    """Run to the end, inside jit: codes SUCCESS, RECOVERED, MAX_STEPS, NONFINITE."""
    steps = solver.max_steps
    return advance(solver, new_run(solver, steps), jnp.asarray(steps))


def propagated_error(J: Array, replicas: Array) -> Array:
    """Standard error (P, P) of the fixed point: independent errors of F (replicas (R, P, P))
    carried by (I - J)^{-1}."""
    return standard_error(jax.vmap(lambda F: resolvent(J, F))(replicas))


def pathwise_jacobian(map_of: Callable[[Array], Evaluation], V: Array, Q: Array) -> Array:
    """Jacobian (P, P, P, P) of the map on its own random points, as differences on common points
    measure it.

    In the directions of the null space of Q, where fields are of size √Q and the slope of the
    points is all noise, the stated Jacobian of the map takes its place.
    """
    values, vectors = jnp.linalg.eigh(symmetric(Q))
    roots = jnp.sqrt(jnp.maximum(values, 0.0))
    stated = map_of(V).jacobian
    # symmetric X only: the map is not defined off them
    rows, columns = np.triu_indices(len(values))

    def along(pair: tuple[Array, Array]) -> Array:
        i, j = pair
        outer = vectors[:, i][:, None] * vectors[:, j]
        X = symmetric(outer)
        moved = jax.jvp(lambda x: map_of(x).value, (V,), (X,))[1]
        return jnp.where(roots[i] + roots[j] > _RESOLVED, symmetric(moved), apply(stated, X))

    entries = lax.map(along, (jnp.asarray(rows), jnp.asarray(columns)))
    table = jnp.zeros((*Q.shape, *Q.shape), V.dtype).at[rows, columns].set(entries)
    table = table.at[columns, rows].set(entries)
    return jnp.einsum("ijab,ci,dj->abcd", table, vectors, vectors)
