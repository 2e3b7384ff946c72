r"""Along a branch of state evolution by Newton steps in V and α together, one average a step.

Equations here [theory: multi-index, Eqs. (74) to (76)], F(α, V) the map of the branch, J its
Jacobian in V, and a = δ log α:

    δV = N + a T,   N = (I - J)^{-1} (F - V),   T = (I - J)^{-1} ∂F/∂log α
    scan:   a as large as the branch allows, |δV| relative to V bounded
    root of h = log α λ_max:   a = -(h + ⟨c, N⟩)/(1 + ⟨c, T⟩),   c ≈ ∂log λ_max/∂V by secants

What is costly is a posterior. F, J and λ_max are averages over the same ones, so that a point of
the branch costs one average, where solving for V at each α first costs ten.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import off_zero
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.numerics import fixed_point, roots
from jaxsmi.numerics.linear_algebra import symmetric
from jaxsmi.thresholds.branch import branch_point
from jaxsmi.thresholds.growth import Growth

__all__ = ["Approach", "Stand", "approach", "begin", "proceed"]

_LONGEST = 0.5  # of a step, relative to V
_STRIDE = 0.35  # of a step of the scan, relative to V
_FACTOR = 0.18  # of a step of the scan, in log α
_RANGE = (1e-4, 1e4)  # of α in which the first one is looked for
_SECANTS = 25  # at most
_CLOSE = 2e-3  # a step in log α that is the last one: what it leaves is of second order
_CLOSE_V = 2e-2  # the same in V, relative


class Stand(eqx.Module):
    """What one average says at (α, V).

    Attributes:
        alpha: α.
        V: V (k, k).
        newton: N (k, k), to the fixed point at this α.
        tangent: T (k, k), how the fixed point moves with log α.
        rho: Spectral radius of J.
        level: h = log α λ_max.
        grown: Growth of the directions that are not learned.
    """

    alpha: Array
    V: Array
    newton: Array
    tangent: Array
    rho: Array
    level: Array
    grown: Growth

    def moved(self, stretch: Array) -> tuple[Array, Array]:
        """(α, V) after a step `stretch` in log α along the branch, shortened where it is long."""
        step = self.newton + stretch * self.tangent
        part = jnp.minimum(1.0, _LONGEST / jnp.maximum(_size(self.V, step), 1e-30))
        return self.alpha * jnp.exp(part * stretch), symmetric(self.V + part * step)


def _size(V: Array, step: Array) -> Array:
    """The largest relative change of V by a step."""
    root = jnp.linalg.cholesky(V)
    half = jax.scipy.linalg.solve_triangular(root, step, lower=True)
    whole = jax.scipy.linalg.solve_triangular(root, half.T, lower=True)
    return jnp.max(jnp.abs(jnp.linalg.eigvalsh(symmetric(whole))))


def _inside(branch: OverlapMap, V: Array) -> Array:
    """V, no larger than S."""
    S = branch.second_moment
    values, vectors = jnp.linalg.eigh(S - V)
    return S - (vectors * jnp.maximum(values, 0.0)) @ vectors.T


def _at(branch: OverlapMap, alpha: Array) -> OverlapMap:
    """The same branch at another α."""
    return eqx.tree_at(lambda b: b.alpha, branch, alpha)


def _stand(branch: OverlapMap, alpha: Array | None, V: Array, X: Array | None = None) -> Stand:
    """The average at (α, V); without α at the one at which F(V) has the trace of V."""
    V = _inside(branch, V)
    response, grown = branch_point(branch, V, X)

    def value(log_alpha: Array) -> Array:
        return _at(branch, jnp.exp(log_alpha)).returned(V, response).value

    if alpha is None:
        ends = jnp.log(jnp.asarray(_RANGE, V.dtype))
        less = lambda x: jnp.trace(value(x)) < jnp.trace(V)
        log_alpha = roots.bisect(less, *ends)
    else:
        log_alpha = jnp.log(alpha)
    alpha = jnp.exp(log_alpha)
    evaluation = _at(branch, alpha).returned(V, response)
    J = evaluation.jacobian
    slope = jax.jvp(value, (log_alpha,), (jnp.ones_like(log_alpha),))[1]
    return Stand(
        alpha=alpha,
        V=V,
        newton=symmetric(fixed_point.resolvent(J, evaluation.value - V)),
        tangent=symmetric(fixed_point.resolvent(J, slope)),
        rho=fixed_point.perron_value(J),
        level=jnp.log(jnp.maximum(alpha * grown.rate, 1e-30)),
        grown=grown,
    )


@eqx.filter_jit
def begin(branch: OverlapMap, V: Array, alpha: Array | None = None) -> Stand:
    """The average at V (k, k), at α or at the one that fits best."""
    return _stand(branch, alpha, V)


@eqx.filter_jit
def proceed(branch: OverlapMap, stand: Stand, most: Array) -> Stand:
    """The next point of a scan of the branch upwards in α, up to `most`."""
    size = jnp.maximum(_size(stand.V, stand.tangent), 1e-30)
    stretch = jnp.minimum(jnp.minimum(_FACTOR, _STRIDE / size), jnp.log(most / stand.alpha))
    return _stand(branch, *stand.moved(jnp.maximum(stretch, 0.0)))


class Approach(NamedTuple):
    """On the way to a root of h: the latest point, c, the next step in log α, how many points."""

    stand: Stand
    gradient: Array
    stretch: Array
    count: Array

    @property
    def near(self) -> Array:
        """Whether the next step is the last one."""
        step = self.stand.newton + self.stretch * self.stand.tangent
        return (jnp.abs(self.stretch) <= _CLOSE) & (_size(self.stand.V, step) <= _CLOSE_V)

    @property
    def unfinished(self) -> Array:
        """Whether another point is needed, and may be had."""
        return (self.count < _SECANTS) & ~self.near & jnp.isfinite(self.stand.level)


def _dual(V: Array, step: Array) -> Array:
    """The covector c with ⟨c, step⟩ = 1, of the metric tr(V^{-1} A V^{-1} B)."""
    inverse = jnp.linalg.inv(V)
    c = inverse @ step @ inverse
    return symmetric(c) / off_zero(jnp.sum(c * step))


def _step(stand: Stand, gradient: Array, count: Array) -> Approach:
    """Newton's step in log α with c for the gradient of log λ."""
    # between a slope of one half and thirty (a steep rise of the overlap)
    slope = jnp.clip(1.0 + jnp.sum(gradient * stand.tangent), 0.5, 30.0)
    stretch = -(stand.level + jnp.sum(gradient * stand.newton)) / slope
    return Approach(stand, gradient, jnp.clip(stretch, -0.15, 0.15), count)


def approach(branch: OverlapMap, V0: Array, X: Array | None, floor: Array) -> Approach:
    """The root of h near the branch's α and V0, with α no less than `floor`; X is the leading
    eigenmatrix where it is known.

    The end's `stand.moved(stretch)` is the root, found to second order in `_CLOSE`.
    """

    def onwards(state: Approach) -> Approach:
        old = state.stand
        alpha, V = old.moved(state.stretch)
        new = _stand(branch, jnp.maximum(alpha, floor), V, X)
        step = new.V - old.V
        rise = (new.level - jnp.log(new.alpha)) - (old.level - jnp.log(old.alpha))
        missing = rise - jnp.sum(state.gradient * step)
        return _step(new, state.gradient + missing * _dual(old.V, step), state.count + 1)

    first = _stand(branch, branch.alpha, V0, X)
    start = _step(first, _dual(first.V, first.tangent), jnp.zeros((), int))
    return lax.while_loop(lambda state: state.unfinished, onwards, start)
