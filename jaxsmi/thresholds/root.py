r"""The α at which the growth of the next directions crosses one: one step of the staircase.

Equations here [theory: multi-index, Eqs. (63), (65) to (67), (71)], θ the numbers of a model, c ≈
∂log λ_max/∂V by secants:

    h(α, θ) = log α λ_max(𝒢_{Q(α, θ)}) = 0,     dα_c = -∂_θ h/∂_α h
    Newton's step in α and V together:   δ log α = -(h + ⟨c, N⟩)/(1 + ⟨c, T⟩)

Letters here: N Newton's step in V and T its tangent, as in branch.py.

The eigenvector of 𝒢 is constant in the derivative, as its change is of second order, and Q moves by
the implicit derivative of the fixed point.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import clamp_to_tiny, symmetric
from jaxsmi.core.results import Result, choose
from jaxsmi.inference.order_map import OverlapMap
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.thresholds.branch import MAX_RADIUS, NETS, BranchPoint, branch_growth, branch_point

# Newton steps; more than four are needed only where the branch folds or begins
_MAX_STEPS, _USUAL_STEPS = 25, 4
# The last step in log α and in V, relative: what it leaves is of second order. Averages over random
# nodes are smooth to their tolerance only, far below the error bars.
_LAST_STEPS = (1e-4, 1e-3)
_LAST_STEPS_RANDOM = (2e-3, 2e-2)
# d log λ α/d log α lies between a half (one: λ constant) and thirty (a steep rise of the overlap):
# secants with larger ones are noise
_SLOPE_RANGE = (0.5, 30.0)
_UNSTABLE = 1.1  # a spectral radius above one by more than the noise of random nodes (branch.py)
_MIN_GAP = 0.01  # smallest 1 - ρ that is resolved
_MAX_LOG_STEP = 0.15  # largest step in log α: within it the leading eigenmatrix hardly turns


class SearchRegion(eqx.Module):
    """Region in which roots are searched.

    Attributes:
        learned: Basis U (P, k) of the learned directions.
        guess: An α near the roots.
        floor: The smallest α allowed.
        V0: V (k, k) near `guess`.
        eigenmatrix: X (P, P) near `guess`, for all nets: one alone may not resolve which of two
            directions grows faster.
        keys: One key for each independent threshold (R,).
        points_per_net: Points in each of its nets.
    """

    learned: Array
    guess: Array
    floor: Array
    V0: Array
    eigenmatrix: Array
    keys: PRNGKeyArray
    points_per_net: int = eqx.field(static=True)

    def branch(self, model: AbstractModel, alpha: Array, key: PRNGKeyArray) -> OverlapMap:
        """State evolution with these directions learned."""
        return OverlapMap(model, alpha, key, self.points_per_net, NETS, learned=self.learned)


class Roots(eqx.Module):
    """One root for each key: α (R,), V (R, k, k), the leading eigenmatrix X (R, P, P), and a result
    code."""

    alpha: Array
    V: Array
    eigenmatrix: Array
    result: Array


_Prepared = tuple[Roots, Array, Array]  # with the Jacobian of each fixed point, and dh/dα


def roots(model: AbstractModel, region: SearchRegion) -> Roots:
    """The root of h for each key; `alpha` has one derivative in every array of the model."""
    return implicit.differentiable(_roots, _tangent, model, region, _linearized)


class _NewtonState(NamedTuple):
    """Latest point, c, the next step in log α and its end, and the number of steps."""

    point: BranchPoint
    gradient: Array
    change: Array
    next: tuple[Array, Array]
    count: Array


@eqx.filter_jit
def _roots(model: AbstractModel, region: SearchRegion) -> Roots:
    return lax.map(lambda key: _root(model, region, key), region.keys)


def _root(model: AbstractModel, region: SearchRegion, key: PRNGKeyArray) -> Roots:
    """Root of h near the guess, by Newton steps in α and V together with secants for c."""
    branch = region.branch(model, region.guess, key)
    S = branch.second_moment
    random_nodes = model.channel.averaging.random_nodes
    last_alpha, last_V = _LAST_STEPS_RANDOM if random_nodes else _LAST_STEPS

    def unstable(point: BranchPoint) -> Array:
        return point.spectral_radius > (_UNSTABLE if random_nodes else 1.0)

    def is_last(state: _NewtonState) -> Array:
        point = state.point
        size = point.relative_size(point.newton + state.change * point.tangent)
        # the radius of J is cut to MAX_RADIUS: near one the step is a part of what is missing
        gap = 1.0 - point.spectral_radius
        size = size * jnp.maximum((1.0 - MAX_RADIUS) / jnp.maximum(gap, _MIN_GAP), 1.0)
        # the noise of random nodes may exceed the limits: those of late steps are wider
        wider = jnp.maximum(state.count / _USUAL_STEPS, 1.0) if random_nodes else 1.0
        near = (jnp.abs(state.change) <= wider * last_alpha) & (size <= wider * last_V)
        return near & ~unstable(point)

    def running(state: _NewtonState) -> Array:
        begun = state.count > 0
        ended = is_last(state) | ~jnp.isfinite(state.point.log_growth)
        return (state.count < _MAX_STEPS) & ~(begun & ended)

    def step(state: _NewtonState) -> _NewtonState:
        old, (alpha, V) = state.point, state.next
        new = branch_point(branch, V, jnp.maximum(alpha, region.floor), region.eigenmatrix)
        dV = new.V - old.V
        rise = (new.log_growth - jnp.log(new.alpha)) - (old.log_growth - jnp.log(old.alpha))
        # Broyden: the smallest change of c, in the metric of V, that explains the rise of log λ
        missing = rise - jnp.sum(state.gradient * dV)
        # no gradient is known at first: typically log λ rises as fast as log α
        first = state.count == 0
        guessed, correction = _dual(new.V, new.tangent), missing * _dual(old.V, dV)
        c = jnp.where(first, guessed, state.gradient + correction)
        slope = jnp.clip(1.0 + jnp.sum(c * new.tangent), *_SLOPE_RANGE)
        change = -(new.log_growth + jnp.sum(c * new.newton)) / slope
        change = jnp.clip(change, -_MAX_LOG_STEP, _MAX_LOG_STEP)
        change = jnp.where(unstable(new), 0.0, change)  # V comes first
        return _NewtonState(new, c, change, new.after_step(change, S), state.count + 1)

    # one program serves the first point and the others: compiling it dominates
    shapes = eqx.filter_eval_shape(
        branch_point, branch, region.V0, region.guess, region.eigenmatrix
    )
    unknown = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)
    unknown = eqx.tree_at(lambda p: p.V, unknown, jnp.eye(len(region.V0), dtype=region.V0.dtype))
    none = jnp.zeros((), region.guess.dtype)
    start = (region.guess, region.V0)
    state = _NewtonState(unknown, jnp.zeros_like(region.V0), none, start, jnp.zeros((), int))
    end = lax.while_loop(running, step, state)
    alpha, V = end.next
    code = choose(
        (True, Result.MAX_STEPS),
        (is_last(end), Result.SUCCESS),
        (~jnp.isfinite(end.point.log_growth), Result.NONFINITE),
    )
    alpha = jnp.maximum(alpha, region.floor)
    return Roots(alpha, V, end.point.growth.subspace, code)


def _dual(V: Array, step: Array) -> Array:
    """The covector c with ⟨c, step⟩ = 1 in the metric tr(V^{-1} A V^{-1} B), zero for no step."""
    inverse = jnp.linalg.inv(V)
    c = inverse @ step @ inverse
    return symmetric(c) / clamp_to_tiny(jnp.sum(c * step))


def _log_growth(branch: OverlapMap, root: Roots, jacobian: Array) -> Array:
    """Compute h of a branch near a root; the fixed point moves with it to first order."""
    value = branch.evaluate(root.V).value
    V = root.V + fixed_point.resolvent(jacobian, value - lax.stop_gradient(value))
    return jnp.log(branch.alpha * branch_growth(branch, V, root.eigenmatrix)[1].rate)


@eqx.filter_jit
def _linearized(model: AbstractModel, region: SearchRegion, roots: Roots) -> _Prepared:
    """Prepare the part of the derivative that all directions share."""

    def one(at: tuple[PRNGKeyArray, Roots]) -> tuple[Array, Array]:
        key, root = at
        branch = region.branch(model, root.alpha, key)
        Q = branch.restrict(branch.overlaps(root.V)[0])
        jacobian = fixed_point.pathwise_jacobian(branch.evaluate, root.V, Q)
        h = lambda alpha: _log_growth(region.branch(model, alpha, key), root, jacobian)
        return jacobian, jax.jvp(h, (root.alpha,), (jnp.ones_like(root.alpha),))[1]

    return roots, *lax.map(one, (region.keys, roots))


@eqx.filter_jit
def _tangent(
    model: AbstractModel, region: SearchRegion, prepared: _Prepared, directions: list[Array]
) -> Roots:
    """Compute dα of each root along directions of the model's numbers; the rest is constant."""

    def one(at: tuple[PRNGKeyArray, Roots, Array, Array]) -> Array:
        key, root, jacobian, slope = at
        h = lambda model: _log_growth(region.branch(model, root.alpha, key), root, jacobian)
        dh = implicit.derivative(h, model, directions)
        # labels that jump have no derivative along the sampled ones
        return jnp.where(model.channel.regular[0], -dh / slope, jnp.nan)

    roots = prepared[0]
    zero = jnp.zeros_like
    alpha = lax.map(one, (region.keys, *prepared))
    code: Any = None  # a code has no tangent
    return Roots(alpha, zero(roots.V), zero(roots.eigenmatrix), code)
