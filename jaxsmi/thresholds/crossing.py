r"""Where the growth of the next directions crosses one: the root of one step of the staircase.

Equations here [theory: multi-index, Eqs. (56), (60)], θ the numbers of a model:

    h(α, θ) = log α λ_max(F_{Q(α, θ)}) = 0,     dα_c = -∂_θ h/∂_α h

The eigenvector of F is held in the derivative, as its change is of second order, and Q moves by
the implicit derivative of the fixed point.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.codes import Result
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.thresholds.branch import NETS, branch_end, branch_growth
from jaxsmi.thresholds.following import approach

__all__ = ["Crossings", "SearchRegion", "crossings"]

_LEVEL = 1e-4  # |h| that counts as zero
_SECANTS = 25  # at most


class SearchRegion(eqx.Module):
    """Where roots are looked for.

    Attributes:
        learned: Basis U (P, k) of the learned directions.
        guess: An α near the roots.
        floor: The smallest α allowed.
        V0: V (k, k) near `guess`, from which the fixed point is followed.
        keys: One key for each replica (R,).
        samples: Points in each net of a replica.
        X: The leading eigenmatrix (P, P) near `guess`, of all replicas: one replica alone may
            not tell which of two directions grows faster. Default: each its own.
    """

    learned: Array
    guess: Array
    floor: Array
    V0: Array
    keys: PRNGKeyArray
    samples: int = eqx.field(static=True)
    X: Array | None = None

    def branch(self, model: AbstractModel, alpha: Array, key: PRNGKeyArray) -> OverlapMap:
        """State evolution of one replica with these directions learned."""
        return OverlapMap(model, alpha, key, self.samples, NETS, learned=self.learned)


class Crossings(eqx.Module):
    """One root for each replica: α, V (R, k, k), leading eigenmatrix X (R, P, P), h at the last
    average, and a code."""

    alpha: Array
    V: Array
    X: Array
    level: Array
    code: Array


class _Point(NamedTuple):
    """h at one α, with V and X there, and the code of the fixed point."""

    alpha: Array
    level: Array
    V: Array
    X: Array
    code: Array


class _Secant(NamedTuple):
    """Two points, and how many steps were taken."""

    count: Array
    previous_alpha: Array
    previous_level: Array
    point: _Point


def crossings(model: AbstractModel, region: SearchRegion) -> Crossings:
    """The root of h for each key; `alpha` has one derivative in every array of the model."""
    return implicit.differentiable(_crossings, _tangent, model, region, _linearized)


@eqx.filter_jit
def _crossings(model: AbstractModel, region: SearchRegion) -> Crossings:
    # random nodes are costly, and h is no smoother than they are
    one = _approached if model.channel.random_nodes else _crossing
    return lax.map(lambda key: one(model, region, key), region.keys)


def _approached(model: AbstractModel, region: SearchRegion, key: PRNGKeyArray) -> Crossings:
    """Root of h near the guess, V and α moving together."""
    end = approach(region.branch(model, region.guess, key), region.V0, region.X, region.floor)
    alpha, V = end.stand.moved(end.stretch)
    code = jnp.where(end.near, Result.SUCCESS, Result.MAX_STEPS)
    code = jnp.where(jnp.isfinite(end.stand.level), code, Result.NONFINITE)
    alpha = jnp.maximum(alpha, region.floor)
    return Crossings(alpha, V, end.stand.grown.subspace, end.stand.level, code)


def _crossing(model: AbstractModel, region: SearchRegion, key: PRNGKeyArray) -> Crossings:
    """Root of h near the guess by safeguarded secants, the fixed point followed along."""

    def at(alpha: Array, V0: Array) -> _Point:
        branch = region.branch(model, alpha, key)
        V, code = branch_end(branch, V0, 60, 1e-5)
        grown = branch_growth(branch, V, region.X)
        level = jnp.log(jnp.maximum(alpha * grown.rate, 1e-30))
        return _Point(alpha, level, V, grown.subspace, code)

    def step(s: _Secant) -> _Secant:
        here = s.point
        slope = (here.level - s.previous_level) / jnp.log(here.alpha / s.previous_alpha)
        # between a slope of one (λ constant) and thirty (a steep rise of the overlap)
        slope = jnp.where(jnp.isfinite(slope), jnp.clip(slope, 0.5, 30.0), 1.0)
        move = jnp.exp(jnp.clip(-here.level / slope, -0.15, 0.15))
        there = at(jnp.maximum(here.alpha * move, region.floor), here.V)
        return _Secant(s.count + 1, here.alpha, here.level, there)

    def unfinished(s: _Secant) -> Array:
        level = s.point.level
        return (s.count < _SECANTS) & (jnp.abs(level) > _LEVEL) & jnp.isfinite(level)

    first = at(region.guess, region.V0)
    move = jnp.exp(jnp.clip(-first.level / 2.0, -0.1, 0.1)) * 1.003
    second = at(jnp.maximum(region.guess * move, region.floor), first.V)
    begin = _Secant(jnp.zeros((), int), first.alpha, first.level, second)
    end = lax.while_loop(unfinished, step, begin).point
    settled = (end.code == Result.SUCCESS) | (end.code == Result.RECOVERED)
    code = jnp.where(settled & (jnp.abs(end.level) <= _LEVEL), Result.SUCCESS, Result.MAX_STEPS)
    code = jnp.where(jnp.isfinite(end.level), code, Result.NONFINITE)
    return Crossings(end.alpha, end.V, end.X, end.level, code)


class _Root(NamedTuple):
    """The root of one replica, with the Jacobian of its fixed point and dh/dα."""

    key: PRNGKeyArray
    alpha: Array
    V: Array
    X: Array
    jacobian: Array
    slope: Array


def _still(branch: OverlapMap) -> OverlapMap:
    """A tangent of the branch: zero for each of its numbers."""
    return jax.tree.map(lambda x: jnp.zeros_like(x) if eqx.is_inexact_array(x) else x, branch)


def _slope_along(
    branch: OverlapMap, V: Array, X: Array, jacobian: Array, tangent: OverlapMap
) -> Array:
    """Derivative of h along a tangent of the branch, the fixed point moving with it."""
    directions, _ = implicit.numbers_of(tangent)
    slope = implicit.derivative(lambda b: b.evaluate(V).value, branch, directions)
    moved = fixed_point.resolvent(jacobian, slope)

    def level(both: tuple[OverlapMap, Array]) -> Array:
        branch, V = both
        return jnp.log(branch.alpha * branch_growth(branch, V, X).rate)

    return implicit.derivative(level, (branch, V), [*directions, moved])


@eqx.filter_jit
def _linearized(model: AbstractModel, region: SearchRegion, roots: Crossings) -> _Root:
    """What derivatives of all replicas have in common."""

    def one(replica: tuple[PRNGKeyArray, Array, Array, Array]) -> _Root:
        key, alpha, V, X = replica
        branch = region.branch(model, alpha, key)
        Q = branch.restrict(branch.overlaps(V)[0])
        jacobian = fixed_point.pathwise_jacobian(branch.evaluate, V, Q)
        unit = eqx.tree_at(lambda b: b.alpha, _still(branch), jnp.ones_like(alpha))
        return _Root(key, alpha, V, X, jacobian, _slope_along(branch, V, X, jacobian, unit))

    return lax.map(one, (region.keys, roots.alpha, roots.V, roots.X))


@eqx.filter_jit
def _tangent(
    model: AbstractModel, region: SearchRegion, roots: _Root, directions: list[Array]
) -> Crossings:
    """dα of each replica along directions of the model's numbers; the rest is held."""

    def one(root: _Root) -> Array:
        branch = region.branch(model, root.alpha, root.key)
        still = _still(branch)
        moving = implicit.numbers_of(still.model)[1](directions)
        tangent = eqx.tree_at(lambda b: b.model, still, moving)
        slope = _slope_along(branch, root.V, root.X, root.jacobian, tangent)
        moved = -slope / root.slope
        # labels that jump have no derivative along the sampled ones: see AbstractChannel
        return jnp.where(model.channel.smooth, moved, jnp.nan)

    moved = lax.map(one, roots)
    return Crossings(
        moved,
        jnp.zeros_like(roots.V),
        jnp.zeros_like(roots.X),
        jnp.zeros_like(roots.alpha),
        None,  # pyright: ignore[reportArgumentType] (a code has no tangent)
    )
