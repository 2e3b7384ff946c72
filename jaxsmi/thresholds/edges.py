r"""The two branches of a first-order transition, and the α at which each begins, ends or wins.

Equations here [theory: multi-index, Eqs. (45), (49), (59)], V = S - Q, Φ the free entropy:

* uninformed branch: state evolution from a small overlap; informed branch: from Q near S;
* spinodal: the informed branch appears; algorithmic threshold: the uninformed one ends;
  information-theoretic: Φ(informed) = Φ(uninformed) in between;
* noiseless labels, a continuous prior, Q = S: Φ = ∞, so that perfect recovery is optimal wherever
  it is stable;
* F is monotone: from V_t ⪰ V_0 on the iteration only rises, and Q = S is out of its reach.

Both branches of all keys are one program with one fixed point; the halvings of the bisections call
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.codes import Result
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.inference.potential import potential_at
from jaxsmi.models.base import AbstractModel
from jaxsmi.thresholds.branch import NETS, branch_end

SMALL = 1e-3  # Q/S at the start of the uninformed branch: below errors of overlaps, above rounding
HALVINGS = 9  # of an interval between two points of the grid: to 1/512 of it
# V/S at the start of the informed branch: a basin of Q = S as small is missed by about its root
NEAREST = 1e-6
_NEAR = 1e-3  # V/S at the second start: too few samples resolve a V as small as the first one
# V that differ by more, relative to the larger one and absolute, are two branches: ten times the
# tolerance of the fixed points, and far below the jumps of order one of a transition
_DISTANCE, _ABSOLUTE = 0.02, 1e-4
_TOLERANCE, _TOLERANCE_NEAR = 1e-5, 1e-2  # of the uninformed branch; relative to V/S of the others
_PERFECT = 1e-6  # V/S that stands for Q = S in the free entropy


class Branches(NamedTuple):
    """The two branches, for R keys each at its α.

    Attributes:
        uninformed: V (R, P, P) of the uninformed branch.
        informed: V (R, P, P) of the informed branch.
        codes: Result codes (R, 2) of both fixed points.
    """

    uninformed: Array
    informed: Array
    codes: Array

    @property
    def converged(self) -> Array:
        """The informed branch ended at a fixed point (R,)."""
        code = self.codes[:, 1]
        return (code == Result.SUCCESS) | (code == Result.RECOVERED)

    @property
    def distinct(self) -> Array:
        """The branches differ (R,)."""
        largest = jnp.maximum(jnp.abs(self.uninformed), jnp.abs(self.informed)).max((1, 2))
        distance = jnp.abs(self.uninformed - self.informed).max((1, 2))
        return distance > jnp.maximum(_DISTANCE * largest, _ABSOLUTE)


@eqx.filter_jit
def branches(
    model: AbstractModel, alpha: Array, V: Array, keys: PRNGKeyArray, points: int, max_steps: int
) -> Branches:
    """The two branches at one α (R,) for each key, the uninformed one from V (P, P) of a smaller
    α."""

    def one(pair: tuple[Array, PRNGKeyArray]) -> Branches:
        return _branches(OverlapMap(model, *pair, points, NETS), V, max_steps)

    return lax.map(one, (alpha, keys))


def _branches(problem: OverlapMap, V: Array, max_steps: int) -> Branches:
    """The two branches for one key, the uninformed one from V of a smaller α.

    A little of every direction is learned and unlearned first: Q = 0 and V = 0 are fixed points
    however unstable. The informed start is as near to V = 0 as the basin of Q = S may ask for, and,
    where it does not lead there, farther away.
    """
    S = problem.second_moment
    starts = jnp.stack([V + 2.0 * SMALL * (0.5 * S - V), NEAREST * S, _NEAR * S])
    near = (_TOLERANCE_NEAR * NEAREST, _TOLERANCE_NEAR * _NEAR)
    tolerances = jnp.asarray((_TOLERANCE, *near), S.dtype)
    downwards = jnp.asarray((False, True, False))

    def follow(recovered: Array, start: tuple[Array, Array, Array]) -> tuple[Array, tuple]:
        V0, tolerance, down = start
        end, code = lax.cond(
            recovered,
            lambda: (V0, jnp.asarray(int(Result.RECOVERED))),
            lambda: branch_end(problem, V0, max_steps, tolerance, downwards=down, fold=True),
        )
        return down & (code == Result.RECOVERED), (end, code)

    # a scan, so that the fixed point is compiled once
    _, (ends, codes) = lax.scan(follow, jnp.asarray(False), (starts, tolerances, downwards))
    informed = jnp.where(codes[1] == Result.RECOVERED, 1, 2)
    return Branches(ends[0], ends[informed], jnp.stack([codes[0], codes[informed]]))


@eqx.filter_jit
def free_entropies(
    model: AbstractModel, alpha: Array, V: Array, keys: PRNGKeyArray, points: int
) -> Array:
    """Φ (R,) at V (R, P, P)."""
    S = model.prior.second_moment(model.indices)

    def one(point: tuple[Array, Array, PRNGKeyArray]) -> Array:
        alpha, V, key = point
        return potential_at(model, alpha, S - V, key, points, NETS).value

    return lax.map(one, (alpha, V, keys))


@eqx.filter_jit
def perfect_free_entropies(
    model: AbstractModel, alpha: Array, keys: PRNGKeyArray, points: int
) -> Array:
    """Φ (R,) at Q = S, where its first two terms are minus the entropy of the prior."""
    S = model.prior.second_moment(model.indices)
    large = jnp.eye(len(S), dtype=S.dtype) / _PERFECT  # the term does not depend on a large Q̂
    entropy = model.prior.entropy_term(S, large)

    def one(key: PRNGKeyArray) -> Array:
        # no tangents: Φ needs the partition function alone
        sizes = {"points": points, "nets": NETS}
        response = model.channel.response(
            (1 - _PERFECT) * S, _PERFECT * S, key=key, tangents=False, **sizes
        )
        return jnp.mean(response.log_partition)

    return entropy + alpha * lax.map(one, keys)


def first_alpha(
    condition: Callable[[Array], Array], low: Array, high: Array, halvings: int
) -> tuple[Array, float]:
    """The smallest α (R,) at which a condition holds, by bisection, and the length of its last
    cell; on the host, so that all conditions share one program of `branches`."""
    cell = float(jnp.mean(high - low)) / 2**halvings
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        above = condition(middle)
        low, high = jnp.where(above, low, middle), jnp.where(above, middle, high)
    return 0.5 * (low + high), cell
