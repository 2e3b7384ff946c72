"""Hysteresis of state evolution of several indices: the branches from a small overlap and from Q
near S, and bisections of their ends and of equal free entropies [theory: multi-index, Eq. (70)].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.driver import Bar
from jaxsmi.core.results import Result, choose
from jaxsmi.core.solution import Threshold
from jaxsmi.inference.evolution import potential_at
from jaxsmi.inference.order_map import OverlapMap
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.quadrature import standard_error
from jaxsmi.thresholds.branch import NETS, branch_end
from jaxsmi.thresholds.one_index import Ends, Sizes, mean_log_partition

# Q/S at the start of the uninformed branch: below errors of overlaps, above rounding
_SMALL_Q = 1e-3
HALVINGS = 9  # an interval between two points of the grid shrinks to 1/512 of it
# V/S at the start of the informed branch: a basin of Q = S as small is missed by about its root
_INFORMED_V = 1e-6
# V/S at the second start: too few samples resolve a V as small as the first one
_RETRY_V = 1e-3
# V that differ by more, relative to the larger one and absolute, are two branches: ten times the
# tolerance of the fixed points, and far below the jumps of order one of a transition
_MIN_DISTANCE, _MIN_DISTANCE_ABSOLUTE = 0.02, 1e-4
# tolerance of the uninformed branch, and that of informed starts relative to their V/S
_UNINFORMED_TOLERANCE, _INFORMED_TOLERANCE = 1e-5, 1e-2
# V/S that stands for Q = S in the free entropy: for signs the error is of order √V
_PERFECT_V = 1e-10
# relative resolution of the end of the uninformed branch on any grid: below error bars
_END_RESOLUTION = 5e-4
# Independent thresholds have fewer samples than the grid, and their branch may end on the other
# side of one of its points: the interval reaches a tenth beyond its cell.
_CELL_MARGIN = 0.1


class Branches(NamedTuple):
    """The two branches, for R keys each at its α: state evolution from a small overlap, and from Q
    near S.

    Attributes:
        uninformed: V (R, P, P) of the uninformed branch.
        informed: V (R, P, P) of the informed branch.
        results: Result codes (R, 2) of both fixed points.
    """

    uninformed: Array
    informed: Array
    results: Array

    @property
    def converged(self) -> Array:
        """True where the informed branch ended at a fixed point (R,)."""
        code = self.results[:, 1]
        return (code == Result.SUCCESS) | (code == Result.RECOVERED)

    @property
    def distinct(self) -> Array:
        """True where the branches differ (R,)."""
        largest = jnp.maximum(jnp.abs(self.uninformed), jnp.abs(self.informed)).max((1, 2))
        distance = jnp.abs(self.uninformed - self.informed).max((1, 2))
        return distance > jnp.maximum(_MIN_DISTANCE * largest, _MIN_DISTANCE_ABSOLUTE)


def _branches(problem: OverlapMap, V: Array, max_steps: int) -> Branches:
    """The two branches for one key, the uninformed one from V of a smaller α.

    A little of every direction is learned and unlearned first: Q = 0 and V = 0 are fixed points
    however unstable. F is monotone, so that from V_t ⪰ V_0 on the iteration only rises, and Q = S
    is out of its reach. The informed start is V = 1e-6 S; if that does not recover, V = 1e-3 S.
    """
    S = problem.second_moment
    starts = jnp.stack([V + 2.0 * _SMALL_Q * (0.5 * S - V), _INFORMED_V * S, _RETRY_V * S])
    near = (_INFORMED_TOLERANCE * _INFORMED_V, _INFORMED_TOLERANCE * _RETRY_V)
    tolerances = jnp.asarray((_UNINFORMED_TOLERANCE, *near), S.dtype)
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


class Hysteresis(eqx.Module):
    """Both branches of a model, by points in each net and a step budget; `informed_is_perfect`: the
    informed branch is Q = S."""

    model: AbstractModel
    S: Array
    points_per_net: int = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    informed_is_perfect: bool = eqx.field(static=True, default=False)

    @property
    def unlearned(self) -> Array:
        """V (P, P) of the uninformed branch at a small α."""
        return (1.0 - _SMALL_Q) * self.S

    @eqx.filter_jit
    def branches(self, alpha: Array, V: Array, keys: PRNGKeyArray) -> Branches:
        """The two branches at one α (R,) for each key, the uninformed one from V (P, P) of a
        smaller α."""

        def one(at: tuple[Array, PRNGKeyArray]) -> Branches:
            return _branches(
                OverlapMap(self.model, *at, self.points_per_net, NETS), V, self.max_steps
            )

        return lax.map(one, (alpha, keys))

    def informed_wins(self, alpha: Array, branches: Branches, keys: PRNGKeyArray) -> Array:
        """True where the informed branch exists, and has the larger free entropy (R,)."""
        # all at the same keys: the errors of both branches cancel in the difference
        uninformed = self.free_entropies(alpha, branches.uninformed, keys)
        # Φ at V = 1e-7 S of the branch itself put the binary perceptron at 1.492, not 1.245
        if self.informed_is_perfect:
            return self.perfect_free_entropies(alpha, keys) > uninformed
        informed = self.free_entropies(alpha, branches.informed, keys)
        return branches.converged & branches.distinct & (informed > uninformed)

    @eqx.filter_jit
    def free_entropies(self, alpha: Array, V: Array, keys: PRNGKeyArray) -> Array:
        """Φ (R,) at V (R, P, P)."""

        def one(at: tuple[Array, Array, PRNGKeyArray]) -> Array:
            alpha, V, key = at
            return potential_at(self.model, alpha, self.S - V, key, self.points_per_net, NETS).value

        return lax.map(one, (alpha, V, keys))

    @eqx.filter_jit
    def perfect_free_entropies(self, alpha: Array, keys: PRNGKeyArray) -> Array:
        """Φ (R,) at Q = S, where its first two terms are minus the entropy of the prior."""
        V, S = _PERFECT_V * self.S, self.S
        # the term does not depend on a large Q̂
        large = jnp.eye(len(self.S), dtype=self.S.dtype) / _PERFECT_V

        def one(key: PRNGKeyArray) -> Array:
            sizes = Sizes(key, self.points_per_net, NETS)
            return mean_log_partition(self.model.channel, V, S, sizes)

        return self.model.prior.entropy_term(S, large) + alpha * lax.map(one, keys)


def _first_alpha(
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


class Bisections(NamedTuple):
    """The bisections of the ends of the branches, from those on the grid, for R keys at once.

    Attributes:
        hysteresis: The model and its points.
        grid: α of the branches.
        branches: The branches on the grid.
        keys: Random keys (R,), one for each estimate of a threshold.
        bar: Counts the steps.
    """

    hysteresis: Hysteresis
    grid: np.ndarray
    branches: Branches
    keys: PRNGKeyArray
    bar: Bar

    @property
    def indices(self) -> np.ndarray:
        """Points of the grid at which the branches differ."""
        return np.flatnonzero(np.asarray(self.branches.distinct))

    def at(self, alpha: Array, index: int) -> Branches:
        """The branches at α (R,), the uninformed one from that of a point of the grid."""
        self.bar.update(1, {"α": f"{float(jnp.mean(alpha)):.4g}"})
        return self.hysteresis.branches(alpha, self.branches.uninformed[index], self.keys)

    def of_keys(self, alpha: ArrayLike) -> Array:
        """One α for each key (R,)."""
        return jnp.full(len(self.keys), alpha, self.branches.uninformed.dtype)

    def spinodal(self) -> tuple[Array, float]:
        """The first α (R,) with an informed branch, and the length of the last cell; the first
        point of the grid where it exists there."""
        first = self.indices[0]
        if first == 0:
            return self.of_keys(self.grid[0]), 0.0

        def exists(alpha: Array) -> Array:
            here = self.at(alpha, first - 1)
            return here.distinct & here.converged

        low, high = (self.of_keys(self.grid[k]) for k in (first - 1, first))
        return _first_alpha(exists, low, high, HALVINGS)

    def algorithmic(self) -> tuple[Array, float]:
        """The α (R,) at which the uninformed branch ends, and the length of the last cell; the last
        point of the grid where it does not end before."""
        first, last = self.indices[[0, -1]]
        if last + 1 == len(self.grid):
            return self.of_keys(self.grid[last]), 0.0

        def merged(alpha: Array) -> Array:
            # True if the iteration from V of the last point reaches the informed branch; V of
            # other points is no guide, as the uninformed branch moves up to its end
            here = self.at(alpha, last)
            return ~here.distinct & here.converged

        margin = _CELL_MARGIN * (self.grid[last + 1] - self.grid[last])
        low = max(self.grid[last] - margin, self.grid[first])
        high = self.grid[last + 1] + margin
        cells = max((high - low) / (_END_RESOLUTION * low), 2.0)
        halvings = math.ceil(math.log2(cells))
        return _first_alpha(merged, self.of_keys(low), self.of_keys(high), halvings)

    def optimal(self, lower: Array, upper: Array) -> tuple[Array, float]:
        """The α (R,) between the ends from which on the informed branch has the larger free
        entropy, and the length of the last cell; 0 or inf outside of the grid."""

        def wins(alpha: Array) -> Array:
            here = self.at(alpha, max(self.indices[0] - 1, 0))
            return self.hysteresis.informed_wins(alpha, here, self.keys)

        alpha, cell = _first_alpha(wins, lower, upper, HALVINGS)
        # without a change of sign inside, the crossing lies outside
        if self.indices[-1] + 1 == len(self.grid):
            alpha = jnp.where(wins(upper), alpha, jnp.inf)
        if self.indices[0] == 0:
            alpha = jnp.where(wins(lower), 0.0, alpha)
        return alpha, cell

    @property
    def code(self) -> Array:
        """The result code."""
        # MAX_STEPS next to a spinodal moves no threshold: it counts inside the hysteresis only
        codes = np.asarray(self.branches.results)
        converged = np.isin(codes[self.indices], (Result.SUCCESS, Result.RECOVERED)).all()
        # a branch that is no number counts as absent, and would be taken for a spinodal
        failed = (codes == Result.NONFINITE).any()
        return choose(
            (True, Result.MAX_STEPS),
            (bool(converged), Result.SUCCESS),
            (bool(failed), Result.NONFINITE),
        )

    def threshold(self, values: Array, cell: float, V: Array, basin: float = 0.0) -> Threshold:
        """The threshold of estimates (R,), and Q of the branch V (K, P, P) next to it; `basin`:
        relative error that all of them share."""
        alpha = jnp.mean(values)
        regular = jnp.isfinite(alpha) & (alpha > 0)
        # a cell is uniform, and common to all keys: no average over them makes it smaller
        shared = jnp.hypot(cell / np.sqrt(12.0), basin * alpha)
        stderr = jnp.where(regular, jnp.hypot(standard_error(values), shared), 0.0)
        finite = alpha if bool(jnp.isfinite(alpha)) else self.grid[self.indices[-1]]
        index = self.indices[np.argmin(np.abs(self.grid[self.indices] - float(finite)))]
        growth = self.branches.uninformed[index] - self.branches.informed[index]
        overlap = self.hysteresis.S - V[index]
        return Threshold(alpha, stderr, values, growth / jnp.trace(growth), overlap, self.code)

    def thresholds(self, diverges: bool) -> Ends:
        """The algorithmic, information-theoretic and spinodal thresholds with their error bars;
        `diverges`: Φ of the informed branch does."""
        lower, cell_start = self.spinodal()
        upper, cell_end = self.algorithmic()
        # an end outside of the grid is at 0, or at infinity
        spinodal = lower if self.indices[0] > 0 else 0.0 * lower
        inside = self.indices[-1] + 1 < len(self.grid)
        algorithmic = upper if inside else jnp.full_like(upper, jnp.inf)
        optimal, cell = (spinodal, cell_start) if diverges else self.optimal(lower, upper)
        # the start has to lie in the new basin of Q = S: α exceeds the spinodal by about √V
        basin = math.sqrt(_INFORMED_V) if diverges else 0.0
        informed = self.branches.informed
        return (
            self.threshold(algorithmic, cell_end, self.branches.uninformed),
            self.threshold(optimal, cell if diverges else max(cell, cell_end), informed, basin),
            self.threshold(spinodal, cell_start, informed, basin),
        )
