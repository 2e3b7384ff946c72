"""The scan of the staircase: along the branch from one threshold to near the next.

Equations here [theory: multi-index, Eqs. (54) to (56), (74) to (76)]: h = log α λ_max(F_{Q(α)}) is
followed upwards in α, along the branch on which only some directions are learned, until it is
positive. The scan gives the start for `root`, or directions that labels tell at first order.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.results import Threshold
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.branch import BranchPoint, branch_end, branch_point

_NETS = 16  # enough for a spread that separates E g gᵀ from zero
# The scan gives a start, no result: a part of the points is enough, and less where each is costly.
_SHARE, _SHARE_RANDOM = 32, 128
# The longest step in V, relative, and in log α. Empirical: with larger ones the next average can
# lie on another branch.
_STRIDE = 0.35
_FACTOR = 0.18
# A step that moves α by less stalls: V falls to zero at a finite α, and no linear step gets there.
_STALLED = 0.005
_NEAR = 0.5  # |h| up to which a guess saves the scan: Newton reaches the root in a few steps
_BEGUN = 0.9  # V/S of new directions at the start of a branch: a tenth is learned
# Where the branch folds back or a step stalls, α jumps by this factor, and the fixed point is
# iterated there to a few per mille.
_JUMP = 1.1
_ITERATION = (100, 1e-3)


def scan_branch(
    model: AbstractModel, learned: Array, alpha: Array, key: PRNGKeyArray, points: int
) -> OverlapMap:
    """State evolution with some directions (P, k) learned, on the few points of a scan."""
    share = _SHARE_RANDOM if model.channel.random_nodes else _SHARE
    size = power_of_two(max(points // share, 2))
    return OverlapMap(model, alpha, key, size, _NETS, learned=learned)


def next_crossing(
    branch: OverlapMap, Q: Array, guess: Threshold | None, alpha_max: float
) -> BranchPoint | None:
    """The point of the branch next to the root of h, or at which labels tell new directions at
    first order; None up to `alpha_max`. A level that is not finite ends the scan.

    Args:
        branch: The branch at the last threshold.
        Q: The overlap (P, P) there.
        guess: The threshold of a model nearby.
        alpha_max: Where the scan ends.
    """
    S = branch.second_moment
    lowest = float(branch.alpha)
    if guess is not None:
        V = S - branch.restrict(lax.stop_gradient(guess.overlap))
        alpha = jnp.clip(lax.stop_gradient(guess.alpha), lowest * 1.001, alpha_max)
        here = _point(branch, V, alpha)
        if _ends(here) or abs(float(here.level)) < _NEAR:
            return here
    values, vectors = jnp.linalg.eigh(S - branch.restrict(Q))
    most = _BEGUN * jnp.trace(S) / len(S)
    here = _point(branch, (vectors * jnp.minimum(values, most)) @ vectors.T)
    last: BranchPoint | None = None
    jumped = False  # an iterated point is on the stable branch, whatever errors its J has
    while not _ends(here):
        alpha = float(here.alpha)
        stable = jumped or bool(here.perfect) or float(here.spectral_radius) < 1.0
        if alpha > lowest and stable:
            if float(here.level) >= 0.0:
                return here if last is None else _crossing(last, here)
            if alpha >= (1.0 - 1e-9) * alpha_max:
                return None
        stalled = last is not None and np.log(alpha / float(last.alpha)) < _STALLED
        jumped = not stable or bool(stalled) or bool(here.perfect)
        if not jumped:
            last = here
            here = _step(branch, here, jnp.asarray(alpha_max, S.dtype))
        else:
            last = None
            here = _jumped(branch, jnp.asarray(min(_JUMP * max(alpha, lowest), alpha_max), S.dtype))
    return here


def _ends(point: BranchPoint) -> bool:
    """The scan ends: labels tell a direction at first order, or the growth is not finite."""
    _, first_order = point.growth.first_order_directions()
    return bool(jnp.any(first_order)) or not bool(jnp.isfinite(point.level))


_point = eqx.filter_jit(branch_point)


@eqx.filter_jit
def _step(branch: OverlapMap, point: BranchPoint, alpha_max: Array) -> BranchPoint:
    """The next point upwards in α, at most `alpha_max`."""
    size = jnp.maximum(point.relative_size(point.tangent), 1e-30)
    change = jnp.minimum(_FACTOR, _STRIDE / size)
    change = jnp.clip(change, 0.0, jnp.log(alpha_max / point.alpha))
    alpha, V = point.moved(change)
    return branch_point(branch, V, alpha)


@eqx.filter_jit
def _jumped(branch: OverlapMap, alpha: Array) -> BranchPoint:
    """The stable point at α, by iteration from nearly nothing learned."""
    branch = eqx.tree_at(lambda b: b.alpha, branch, alpha)
    V, _ = branch_end(branch, _BEGUN * branch.second_moment, *_ITERATION)
    return branch_point(branch, V, alpha)


def _crossing(last: BranchPoint, here: BranchPoint) -> BranchPoint:
    """Where h is zero between two points, by a line in log α and in V; the rest as at the second
    one."""
    share = last.level / (last.level - here.level)
    share = jnp.where((share >= 0.0) & (share <= 1.0), share, 1.0)
    alpha = last.alpha ** (1.0 - share) * here.alpha**share
    V = (1.0 - share) * last.V + share * here.V
    return eqx.tree_at(lambda p: (p.alpha, p.V), here, (alpha, V))
