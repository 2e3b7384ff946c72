"""The branch of state evolution on which only some directions are learned, as a curve (α, V), and
the scan along it from one threshold of the staircase to near the next."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior, response_of, weighted_posteriors
from jaxsmi.core.arrays import clamp_to_tiny, symmetric
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Threshold
from jaxsmi.core.validate import check
from jaxsmi.inference.order_map import OverlapMap
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics import fixed_point, roots
from jaxsmi.numerics.linear_algebra import positive_part, relative_eigenvalues
from jaxsmi.numerics.quadrature import power_of_two
from jaxsmi.priors.base import AbstractPrior
from jaxsmi.thresholds.weak import Growth, growth

NETS = 4  # nets inside one independent threshold: enough to detect E g gᵀ by its spread
_RECOVERED_V = 1e-7  # V/S at perfect recovery: small enough for the signs of labels to be certain
# Relative changes of V, and falls of S - V: beyond a half a linear step is no estimate, and V stays
# positive. Empirical: without the second one of 16 searches left the branch of three layers, with
# one of three keys in six.
_MAX_V_STEP = 0.5
# Largest spectral radius of the Jacobian in a step. Empirical: J of 1024 points of three layers has
# a radius of .84(6) from key to key, and beyond one (I - J)^{-1} points away from the branch.
MAX_RADIUS = 0.95
# search interval of the α at which tr F(V) = tr V: thresholds are of order one, far inside
_ALPHA_RANGE = (1e-4, 1e4)
_TEST_PRECISION = 4.0  # precision, over 1/S, at which a prior is tested for oblique directions
# largest dependence over S: above errors of quadrature and of the learned directions
_MAX_DEPENDENCE = 0.05


def branch_end(
    branch: OverlapMap,
    V0: Array,
    max_steps: int,
    tolerance: Array | float,
    downwards: Array | None = None,
    fold: bool = False,
) -> tuple[Array, Array]:
    """The fixed point V (k, k) reached from V0, and the result code; at perfect recovery V/S is
    that of `_RECOVERED_V`. `downwards`, `fold`: as in `fixed_point.FixedPointSolver`."""
    S = branch.second_moment
    tolerance = jnp.asarray(tolerance, S.dtype)
    solver = branch.solver(V0, max_steps=max_steps, tolerance=tolerance)
    end = fixed_point.solve(dataclasses.replace(solver, downwards=downwards, fold=fold))
    V = end.state.V
    # the iteration stops at any small V; what follows needs one size for all recovered runs
    shrunk = V * jnp.minimum(_RECOVERED_V * jnp.trace(S) / jnp.trace(V), 1.0)
    return jnp.where(end.result == Result.RECOVERED, shrunk, V), end.result


class BranchPoint(eqx.Module):
    r"""One average at (α, V), on the branch with the learned directions Π.

    F(α, V) is the map of the branch, J its Jacobian in V, a = δ log α:

        V = S - Π [S - prior.mmse(α Π response(Q) Π)] Π
        δV = N + a T,   N = (I - J)^{-1} (F - V),   T = (I - J)^{-1} ∂F/∂log α

    Letters here: N Newton's step (in weak.py the projector on unlearned directions), T the tangent
    (not tokens).

    A posterior is the cost. F, J and the growth rate of new directions are averages over the same
    posteriors, so that a point of the curve costs one average.
    [theory: multi-index, Eqs. (59), (62), (65) to (67)]

    Attributes:
        alpha: α.
        V: V (k, k).
        newton: N (k, k), the step to the fixed point at this α.
        tangent: T (k, k), the change of the fixed point with log α.
        spectral_radius: Spectral radius of J.
        growth: Growth of the directions that are not learned.
    """

    alpha: Array
    V: Array
    newton: Array
    tangent: Array
    spectral_radius: Array
    growth: Growth

    @property
    def log_growth(self) -> Array:
        """h = log α λ_max: new directions grow from h = 0 on."""
        return self.growth.log_growth(self.alpha)

    @property
    def is_recovered(self) -> Array:
        """True if every learned direction is recovered perfectly (steps in V have no meaning)."""
        return jnp.all(self.newton == 0.0) & jnp.all(self.tangent == 0.0)

    def relative_size(self, step: Array) -> Array:
        """The largest relative change of V by a step."""
        return jnp.max(jnp.abs(relative_eigenvalues(step, self.V)))

    def after_step(self, change: Array, S: Array) -> tuple[Array, Array]:
        """(α, V) after a step `change` in log α along the branch, shortened if V changes, or S - V
        falls, by more than half."""
        step = self.newton + change * self.tangent
        fall = jnp.max(relative_eigenvalues(step, S - self.V))
        size = jnp.maximum(self.relative_size(step), fall)
        part = jnp.minimum(1.0, _MAX_V_STEP / clamp_to_tiny(size))
        return self.alpha * jnp.exp(part * change), symmetric(self.V + part * step)


def branch_point(
    branch: OverlapMap, V: Array, alpha: Array, eigenmatrix: Array | None = None
) -> BranchPoint:
    """The average at V (k, k) and α; at α = 0 that at the α at which F(V) has the trace of V.
    `eigenmatrix`: that of the growth, where it is known."""
    S = branch.second_moment
    least = _RECOVERED_V * jnp.trace(S)
    # a linear step may leave 0 ⪯ V ⪯ S by its second order, and Cholesky factors need V > 0
    V = S - positive_part(S - V)
    V = V * jnp.maximum(least / jnp.trace(V), 1.0)
    sample, grown = branch_growth(branch, V, eigenmatrix)
    response = response_of(branch.model.channel, *sample, branch.nets)

    # posteriors do not depend on α: another α costs one pass through the prior
    def at(log_alpha: Array) -> fixed_point.Evaluation:
        return eqx.tree_at(lambda b: b.alpha, branch, jnp.exp(log_alpha)).returned(V, response)

    def crossing() -> Array:
        # tr F falls as α grows, so that it crosses tr V once
        low, high = jnp.log(jnp.asarray(_ALPHA_RANGE, V.dtype))
        return roots.bisect(lambda x: jnp.trace(at(x).value) < jnp.trace(V), low, high)

    log_alpha = lax.cond(alpha > 0.0, lambda: jnp.log(alpha), crossing)
    evaluation = at(log_alpha)
    J = evaluation.jacobian
    slope = jax.jvp(lambda x: at(x).value, (log_alpha,), (jnp.ones_like(log_alpha),))[1]
    radius = fixed_point.perron_value(J)
    J = J * jnp.minimum(1.0, MAX_RADIUS / radius)
    newton = symmetric(fixed_point.resolvent(J, evaluation.value - V))
    tangent = symmetric(fixed_point.resolvent(J, slope))
    # a fixed point V = 0: V stays at its least size, and growth alone depends on α
    recovered = jnp.trace(V + newton) < least
    newton, tangent = (jnp.where(recovered, 0.0, x) for x in (newton, tangent))
    return BranchPoint(jnp.exp(log_alpha), V, newton, tangent, radius, grown)


def branch_growth(
    branch: OverlapMap, V: Array, eigenmatrix: Array | None = None
) -> tuple[tuple[Posterior, Array], Growth]:
    """Posteriors at V (k, k) with their weights, and the growth of the directions that are not
    learned."""
    Q, covariance = branch.overlaps(V)
    sizes = {"points": branch.points_per_net, "nets": branch.nets}
    sample = weighted_posteriors(branch.model.channel, Q, covariance, key=branch.key, **sizes)
    unlearned = jnp.eye(len(Q), dtype=Q.dtype) - branch.embed(jnp.eye(len(V), dtype=Q.dtype))
    return sample, growth(branch.model, sample, covariance, unlearned, branch.nets, eigenmatrix)


@eqx.filter_jit
def _dependence(prior: AbstractPrior, learned: Array) -> tuple[Array, Array]:
    """Dependence of unlearned directions on the learned ones, relative to S.

    With a field on the learned directions alone: their overlap N overlap(Q̂) N, and the change of
    the derivative along a small field on them, N d overlap[N] N, which is N S² N without any field.
    """
    S = prior.second_moment(len(learned))
    projector = learned @ learned.T
    unlearned = jnp.eye(len(S), dtype=S.dtype) - projector
    Qhat = _TEST_PRECISION * len(S) / jnp.trace(S) * projector
    value, pull = jax.linearize(prior.overlap, Qhat)
    overlap = unlearned @ value @ unlearned
    change = unlearned @ (pull(unlearned) - S @ unlearned @ S) @ unlearned
    largest = jnp.max(S)
    return jnp.max(jnp.abs(overlap)) / largest, jnp.max(jnp.abs(change)) / largest**2


def check_oblique(model: AbstractModel, learned: Array) -> None:
    """Raise a ValueError if unlearned directions depend on the learned ones (P, k) under the
    prior.

    They keep the covariance S: exact for a Gaussian prior, and wherever learned and new directions
    are independent under the prior, as coordinates are. For another prior and oblique directions
    E[C ⊗ C] differs from S ⊗ S [theory: multi-index, section 11].
    """
    overlap, change = _dependence(model.prior, learned)
    check(
        (overlap < _MAX_DEPENDENCE) & (change < _MAX_DEPENDENCE),
        "model",
        model.prior,
        "a Gaussian prior, or a link whose learned directions are along the coordinates: "
        "these are oblique, and this prior couples the others to them",
    )


_SCAN_NETS = 16  # enough for a spread that separates E g gᵀ from zero
# The scan gives a start, no result: a part of the points is enough, and less where each is costly.
_SCAN_SHARE, _SCAN_SHARE_RANDOM = 32, 128
# The longest step in V, relative, and in log α. Empirical: with larger ones the next average can
# lie on another branch.
_SCAN_V_STEP = 0.35
_SCAN_LOG_STEP = 0.18
# A step that moves α by less stalls: V falls to zero at a finite α, and no linear step gets there.
_MIN_LOG_STEP = 0.005
# |h| up to which a guess saves the scan: Newton reaches the root in a few steps
_MAX_GUESS_GROWTH = 0.5
_START_V = 0.9  # V/S of new directions at the start of a branch: a tenth is learned
# Where the branch folds back or a step stalls, α jumps by this factor, and the fixed point is
# iterated there to a few per mille.
_JUMP = 1.1
_JUMP_ITERATION = (100, 1e-3)


def scan_branch(
    model: AbstractModel, learned: Array, alpha: Array, key: PRNGKeyArray, points: int
) -> OverlapMap:
    """State evolution with some directions (P, k) learned, on the few points of a scan."""
    share = _SCAN_SHARE_RANDOM if model.channel.averaging.random_nodes else _SCAN_SHARE
    size = power_of_two(max(points // share, 2))
    return OverlapMap(model, alpha, key, size, _SCAN_NETS, learned=learned)


def next_crossing(
    branch: OverlapMap, Q: Array, guess: Threshold | None, alpha_max: float
) -> BranchPoint | None:
    """The point of the branch next to the root of h = log α λ_max(𝒢), or at which labels depend
    on new directions linearly; None up to `alpha_max`. An h that is not finite ends the scan.

    Args:
        branch: The branch at the last threshold.
        Q: The overlap (P, P) there.
        guess: The threshold of a model nearby.
        alpha_max: The α at which the scan ends.
    """
    S = branch.second_moment
    lowest = float(branch.alpha)
    # a failed search gives a threshold without α
    if guess is not None and bool(jnp.isfinite(lax.stop_gradient(guess.alpha))):
        V = S - branch.restrict(lax.stop_gradient(guess.overlap))
        alpha = jnp.clip(lax.stop_gradient(guess.alpha), lowest * 1.001, alpha_max)
        point = _point(branch, V, alpha)
        if _scan_ends(point) or abs(float(point.log_growth)) < _MAX_GUESS_GROWTH:
            return point
    values, vectors = jnp.linalg.eigh(S - branch.restrict(Q))
    cap = _START_V * jnp.trace(S) / len(S)
    V = (vectors * jnp.minimum(values, cap)) @ vectors.T
    point = _point(branch, V, jnp.zeros((), V.dtype))
    last: BranchPoint | None = None
    jumped = False  # an iterated point is on the stable branch, whatever errors its J has
    while not _scan_ends(point):
        alpha = float(point.alpha)
        stable = jumped or bool(point.is_recovered) or float(point.spectral_radius) < 1.0
        if alpha > lowest and stable:
            if float(point.log_growth) >= 0.0:
                return point if last is None else _crossing(last, point)
            if alpha >= (1.0 - 1e-9) * alpha_max:
                return None
        stalled = last is not None and np.log(alpha / float(last.alpha)) < _MIN_LOG_STEP
        jumped = not stable or bool(stalled) or bool(point.is_recovered)
        if not jumped:
            last = point
            point = _point(branch, *_next(point, jnp.asarray(alpha_max, S.dtype), S))
        else:
            last = None
            point = _jump(branch, jnp.asarray(min(_JUMP * max(alpha, lowest), alpha_max), S.dtype))
    return point


def _scan_ends(point: BranchPoint) -> bool:
    """Return whether labels depend on a direction linearly, or the growth is not finite."""
    _, is_linear = point.growth.linear_directions()
    return bool(jnp.any(is_linear)) or not bool(jnp.isfinite(point.log_growth))


_point, _end = eqx.filter_jit(branch_point), eqx.filter_jit(branch_end)


@eqx.filter_jit
def _next(point: BranchPoint, alpha_max: Array, S: Array) -> tuple[Array, Array]:
    """V and α of the next point upwards in α, at most `alpha_max`."""
    size = clamp_to_tiny(point.relative_size(point.tangent))
    change = jnp.minimum(_SCAN_LOG_STEP, _SCAN_V_STEP / size)
    alpha, V = point.after_step(jnp.clip(change, 0.0, jnp.log(alpha_max / point.alpha)), S)
    return V, alpha


def _jump(branch: OverlapMap, alpha: Array) -> BranchPoint:
    """The stable point at α, by iteration from nearly nothing learned."""
    branch = eqx.tree_at(lambda b: b.alpha, branch, alpha)
    V, _ = _end(branch, _START_V * branch.second_moment, *_JUMP_ITERATION)
    return _point(branch, V, alpha)


def _crossing(last: BranchPoint, here: BranchPoint) -> BranchPoint:
    """Point of h = 0 between two others, on a line in log α and in V; its other fields are those of
    the second one."""
    share = last.log_growth / (last.log_growth - here.log_growth)
    share = jnp.where((share >= 0.0) & (share <= 1.0), share, 1.0)
    alpha = last.alpha ** (1.0 - share) * here.alpha**share
    V = (1.0 - share) * last.V + share * here.V
    return eqx.tree_at(lambda p: (p.alpha, p.V), here, (alpha, V))
