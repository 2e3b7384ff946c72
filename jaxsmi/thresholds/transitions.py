"""First-order transitions: two branches of fixed points, which one is optimal, where each ends, by
bisections (of one index: one_index.py); and the α above which perfect recovery is stable [theory:
multi-index, Eqs. (52), (56), (68) to (70)].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import frozen, missing
from jaxsmi.core.display import Described, describe, format_estimate, number
from jaxsmi.core.driver import Bar
from jaxsmi.core.options import Averages, Iteration
from jaxsmi.core.results import Result, choose
from jaxsmi.core.solution import Solution, Threshold, load_workbench
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.inference.evolution import potential_at
from jaxsmi.inference.order_map import OverlapMap
from jaxsmi.models.base import AbstractModel, model_argument
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.quadrature import power_of_two, standard_error
from jaxsmi.thresholds.branch import NETS, branch_end
from jaxsmi.thresholds.one_index import SCAN, Ends, FixedPointCurve, Sizes
from jaxsmi.thresholds.weak import check_model

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

# Q/S at the start of the uninformed branch: below errors of overlaps, above rounding
_SMALL_Q = 1e-3
_HALVINGS = 9  # an interval between two points of the grid shrinks to 1/512 of it
# V/S at the start of the informed branch: a basin of Q = S as small is missed by about its root
_INFORMED_V = 1e-6
# V/S at the second start: too few samples resolve a V as small as the first one
_RETRY_V = 1e-3
# V that differ by more, relative to the larger one and absolute, are two branches: ten times the
# tolerance of the fixed points, and far below the jumps of order one of a transition
_MIN_DISTANCE, _MIN_DISTANCE_ABSOLUTE = 0.02, 1e-4
# tolerance of the uninformed branch, and that of informed starts relative to their V/S
_UNINFORMED_TOLERANCE, _INFORMED_TOLERANCE = 1e-5, 1e-2
# standard errors of the end of a branch between it and the last point of the branch
_BESIDE = 3.0
# V/S that stands for Q = S in the free entropy: for signs the error is of order √V
_PERFECT_V = 1e-10

# relative distance from an exact threshold of the point of a branch beside it
_BESIDE_EXACT = 1e-9
# one index: intervals of α are halved so many times where Q grows by more than this share of its
# maximum, down to this relative length
_REFINEMENTS, _STEP, _CLOSE = 4, 0.05, 1e-3
# distance of two such points, one on each side, at most, and the change of Q that is a jump
_SIDES, _JUMP = 4.0 * _BESIDE_EXACT, 1e-3
_PRIORS = (
    "a Gaussian prior, one of points as smi.priors.Rademacher(), or label noise (1e-4 is little): "
    "recovery is perfect at α = {:.4g} (free entropies of others diverge, or may diverge)"
)


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


class _Hysteresis(eqx.Module):
    """Both branches of a model, by points in each net and a step budget; `informed_is_perfect`: the
    informed branch is Q = S."""

    model: AbstractModel
    S: Array
    points_per_net: int = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    informed_is_perfect: bool = eqx.field(static=True, default=False)

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
        overlaps = (1.0 - _PERFECT_V) * self.S, _PERFECT_V * self.S
        # the term does not depend on a large Q̂
        large = jnp.eye(len(self.S), dtype=self.S.dtype) / _PERFECT_V
        # no tangents: Φ needs the partition function alone
        settings = {"points": self.points_per_net, "nets": NETS, "tangents": False}

        def one(key: PRNGKeyArray) -> Array:
            response = self.model.channel.response(*overlaps, key=key, **settings)
            return jnp.mean(response.log_partition)

        return self.model.prior.entropy_term(self.S, large) + alpha * lax.map(one, keys)


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


# relative resolution of the end of the uninformed branch on any grid: below error bars
_END_RESOLUTION = 5e-4
# Independent thresholds have fewer samples than the grid, and their branch may end on the other
# side of one of its points: the interval reaches a tenth beyond its cell.
_CELL_MARGIN = 0.1


def jumps(alpha: ArrayLike, Q: ArrayLike) -> np.ndarray:
    """The numbers k of points of a branch, α and Q (K,), that a jump separates from the one before:
    `first_order` of one index puts an α on each side of a jump."""
    alpha, change = np.asarray(alpha), np.abs(np.diff(np.asarray(Q)))
    return np.flatnonzero((np.diff(alpha) < _SIDES * alpha[1:]) & (change > _JUMP)) + 1


class FirstOrder(Described):
    """A first-order transition, or its absence.

    Attributes:
        kind: "first order" or "none".
        algorithmic: The α from which on message passing reaches the informed branch, or None; its
            `overlap` is the last one of the uninformed branch.
        information_theoretic: The α from which on the informed branch is optimal, or None; its
            `overlap` is that of the informed branch.
        spinodal: The α at which the informed branch appears, or None; its `overlap` is the first
            one of that branch.
        alpha: The grid (K,) of the hysteresis curves, with the information-theoretic threshold and
            α next to each end of a branch.
        uninformed: Q (K, P, P) of the uninformed branch.
        informed: Q (K, P, P) of the informed branch.
        second_moment: S (P, P) of the signal; None: that of variances one.
    """

    kind: str = eqx.field(static=True)
    algorithmic: Threshold | None
    information_theoretic: Threshold | None
    spinodal: Threshold | None
    alpha: Array
    uninformed: Array
    informed: Array
    second_moment: Array | None = None

    @property
    def message(self) -> str:
        """The sentences that go with the result codes (outside jit and vmap)."""
        sentences = dict.fromkeys(x.message for x in self.thresholds.values() if x is not None)
        if self.kind != "none":
            return "\n".join([*sentences, *self._other_jumps])
        if self.informed.shape[1] == 1:
            return "α grows along the curve of fixed points: no transition."
        spacing = number(jnp.max(jnp.diff(self.alpha)))
        return (
            f"The branches agree at all {len(self.alpha)} α of the grid: no transition, or one "
            f"that is narrower than its spacing, at most {spacing}."
        )

    @property
    def _other_jumps(self) -> list[str]:
        """List sentences on the jumps of a branch to a third one."""
        ends = [float(x.alpha) for x in self.thresholds.values() if x is not None]
        texts = []
        for name in ("uninformed", "informed"):
            alpha = np.asarray(self.alpha)[jumps(self.alpha, getattr(self, name)[:, 0, 0])]
            places = [a for a in alpha if not np.isclose(a, ends, rtol=_SIDES, atol=0.0).any()]
            if places:
                listed = " and ".join(number(a) for a in places)
                texts.append(f"The {name} branch jumps at α = {listed}, too: to a third branch.")
        return texts

    @property
    def thresholds(self) -> dict[str, Threshold | None]:
        """The three thresholds by name, from below."""
        names = ("spinodal", "information_theoretic", "algorithmic")
        return {name.replace("_", "-"): getattr(self, name) for name in names}

    def shown(self, threshold: Threshold | None) -> str:
        """A threshold as text."""
        if threshold is None:
            return "none"
        # with several indices 0 and inf stand for ends outside of the grid
        low, high = f"below {number(self.alpha[0])}", f"above {number(self.alpha[-1])}"
        alone = self.informed.shape[1] == 1
        ends = {0.0: "0: at any α" if alone else low, math.inf: "at no α" if alone else high}
        estimate = format_estimate(threshold.alpha, threshold.stderr)
        return ends.get(float(threshold.alpha), estimate)

    def _text(self) -> str:
        rows = [[name, self.shown(x)] for name, x in self.thresholds.items() if x]
        grid = f"{len(self.alpha)} α from {number(self.alpha[0])} to {number(self.alpha[-1])}"
        table = [["", "α"], *rows] if rows else []
        remark = "\n".join(self._other_jumps) if rows else self.message
        return describe(f"Transition: {self.kind}", [grid], table, remark)

    def plot(
        self,
        ax: Axes | None = None,
        runs: Solution | Iterable[Solution] | xarray.Dataset | None = None,
    ) -> Axes:
        """Draw Q/S of each index against α: the uninformed branch as a line up to the algorithmic
        threshold, the informed one dashed from the spinodal on (elsewhere the two agree), without a
        line across jumps, and the three thresholds as vertical lines with bands of their 95 %
        intervals. An arrow at the edge stands for thresholds below or above the grid.

        Args:
            ax: Axes to draw in. Default None: new ones.
            runs: Of `gamp`, or the table of a sweep of them, as in `Curve.plot`. Default None:
                none.

        Returns:
            The axes.

        Raises:
            ValueError: For runs of a learner other than Bayes.
            ImportError: Without matplotlib, with the remedy.
        """
        return load_workbench("plotting.curves").transition(self, ax, runs)


def first_order(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    alpha: ArrayLike | None = None,
    averages: Averages | None = None,
    iteration: Iteration | None = None,
    progress: bool | None = None,
) -> FirstOrder:
    r"""Compute the algorithmic, information-theoretic and spinodal thresholds of a transition.

    α_spinodal ≤ α_IT ≤ α_algorithmic,   Φ(informed) = Φ(uninformed) at α_IT

    Args:
        model: An index model with a channel and a prior of mean zero.
        key: Random key of all averages.
        alpha: Increasing grid (K,) of the branches, three numbers > 0 or more. Of several indices a
            transition narrower than its spacing is not seen. Default: 40 from 0.1 to 5,
            geometric, and of one index more where Q grows fast.
        averages: `smi.Averages(points, nets)`: points of all averages together, and independent
            nets, whose spread is the error bar. Default 2^16 points (one index: 2^14), 8 nets.
        iteration: `smi.Iteration(max_steps=)`, of several indices: the step budget of each fixed
            point; beyond the algorithmic threshold α_a the iteration takes about |α - α_a|^{-1/2}
            steps. Default 3000.
        progress: Show bars on stderr. Default None: on a terminal and in a notebook.

    Returns:
        A `FirstOrder`, which `.plot()` draws. If the branches agree everywhere, its `kind` is
        "none" and the thresholds are None.

        Of one index all fixed points are on one curve α(Q), so that thresholds do not depend on the
        grid, may lie outside of it, and have derivatives in the model's numbers. A spinodal of 0
        means that the informed branch exists at any α > 0, an algorithmic threshold of inf that the
        uninformed branch never ends. Codes: SUCCESS, INACCURATE (integrals failed at an α of the
        grid).

        Of several indices the thresholds are bisected, and their derivatives are NaN. A spinodal or
        information-theoretic threshold of 0 lies below the grid, an algorithmic threshold of inf
        above it. Error bars include the last interval of the bisection. Codes: SUCCESS, MAX_STEPS
        (a branch did not converge where both exist: raise `max_steps`, and do not rely on `kind`),
        NONFINITE (a branch broke on the grid: thresholds may be missed).

    Raises:
        ValueError: For a model without inference, a prior with a mean, or, at the first α where it
            occurs, perfect recovery under a prior that is neither continuous nor discrete.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, few = smi.links.linear(0.1), smi.Averages(points=2**9)
        >>> key, grid = jax.random.key(0), [0.1, 0.5, 2.0]
        >>> smi.first_order(model, key=key, alpha=grid, averages=few).kind
        'none'

    Cost:
        One index: about 170 averages, compilation included 3 to 6 s on one core for signs of
        Rademacher weights and for |z|, a minute for a law of your own that jumps, 2 minutes for |z|
        with noise. Several: two compilations of a
        fixed point (5 to 15 s each), two or three fixed points for each α of the grid, and as many
        for each net and each of up to three bisections of nine halvings or more. A fixed point
        takes a few steps away from the ends of the branches, and up to `max_steps` next to them,
        where the bisections are; a grid with a narrow transition inside takes minutes: begin with
        fewer points and nets. It runs outside jit.

    Source:
        [theory: multi-index, section 7.5].
    """
    validate.outside_jit("model", model)
    key = validate.key("key", key)
    points_per_net, nets = Averages.of(averages).sizes(2**16, 8, 2)
    max_steps = Iteration.of(iteration).max_steps
    progress = validate.optional(validate.flag, "progress", progress)
    allowed = "an increasing vector of three numbers > 0 or more"
    chosen = np.geomspace(0.1, 5.0, 40) if alpha is None else alpha
    grid = np.asarray(validate.array("alpha", chosen, allowed, interval=POSITIVE))
    ordered = grid.ndim == 1 and len(grid) >= 3 and bool(np.all(np.diff(grid) > 0.0))
    check(ordered, "alpha", alpha, allowed)
    check_model(model)
    if model.indices == 1:
        return _of_one_index(model, grid, alpha is None, Averages.of(averages), key, progress)
    size = power_of_two(max(points_per_net // NETS, 2))
    prior = model.prior
    S = prior.second_moment(model.indices)
    # the grid takes one key, with the points of all nets
    hysteresis = _Hysteresis(frozen(model), frozen(S), size * nets, max_steps or 3000)
    with Bar(len(grid), "first-order transition: branches", progress) as bar:
        branches = _on_grid(hysteresis, grid, key, bar)
    distinct = np.asarray(branches.distinct)
    recovered = np.asarray(branches.results)[distinct, 1] == Result.RECOVERED
    kind, thresholds = "none", (None, None, None)
    if distinct.any():
        keys = jax.vmap(lambda k: jax.random.fold_in(key, 200 + k))(jnp.arange(nets))
        # Φ = ∞ at perfect recovery under a density: it wins wherever it is stable
        all_recovered = bool(recovered.all())
        diverges = prior.traits.continuous and all_recovered
        with Bar(3 * _HALVINGS, "first-order transition: ends", progress) as bar:
            ends = dataclasses.replace(
                hysteresis, points_per_net=size, informed_is_perfect=all_recovered
            )
            thresholds = _thresholds(ends, grid, branches, keys, diverges, bar)
        kind = "first order"
        grid, branches, thresholds = _with_points(hysteresis, grid, branches, thresholds, key)
    curves = jnp.asarray(grid), S - branches.uninformed, S - branches.informed
    return not_differentiable(FirstOrder(kind, *thresholds, *curves, S), model)


def _of_one_index(
    model: AbstractModel,
    grid: np.ndarray,
    refined: bool,
    averages: Averages,
    key: PRNGKeyArray,
    progress: bool | None,
) -> FirstOrder:
    """`first_order` by the curve of all fixed points; `refined`: on more α than those of the grid
    where Q grows fast."""
    points_per_net, nets = averages.sizes(2**14, 8, 2)
    sizes = Sizes(key, power_of_two(points_per_net), nets)
    frozen_model = frozen(model)
    recovers = bool(OverlapMap(frozen_model, jnp.ones(()), *sizes).recovers)
    with Bar(SCAN, "first-order transition", progress) as bar:
        curve = FixedPointCurve(frozen_model, sizes, grid[-1], recovers, bar.update)
        traits = model.prior.traits
        finite = traits.continuous or traits.discrete or curve.recovery > grid[-1]
        check(finite, "model", model.prior, _PRIORS.format(curve.recovery))
        ends = curve.thresholds(model)
        folds = [float(frozen(end.alpha)) for end in ends or ()] + curve.other_folds()
    # points on both sides of the ends of the branches
    more = np.outer(folds, (1.0 - _BESIDE_EXACT, 1.0 + _BESIDE_EXACT))
    grid = np.union1d(grid, more[(more > grid[0]) & (more < grid[-1])])
    for _ in range(_REFINEMENTS * refined):
        Q = np.asarray([curve.overlaps(x)[:, 0, 0] for x in curve.branches(grid)])
        change = np.max(np.abs(np.diff(Q)), axis=0) / np.max(Q)
        wide = (change > _STEP) & (np.diff(grid) > _CLOSE * grid[1:])
        grid = np.union1d(grid, np.sqrt(grid[1:] * grid[:-1])[wide])
    uninformed, informed = map(curve.overlaps, curve.branches(grid))
    S = model.prior.second_moment(1)
    curves = not_differentiable((jnp.asarray(grid), uninformed, informed, S), model)
    if ends is None:
        return FirstOrder("none", None, None, None, *curves)
    return FirstOrder("first order", *ends, *curves)


def _on_grid(hysteresis: _Hysteresis, grid: np.ndarray, key: PRNGKeyArray, bar: Bar) -> Branches:
    """Follow both branches along the grid, the uninformed one upwards."""
    V = (1.0 - _SMALL_Q) * hysteresis.S
    prior, points = hysteresis.model.prior, []
    for alpha in grid:
        points.append(hysteresis.branches(jnp.asarray([alpha], V.dtype), V, key[None]))
        V = points[-1].uninformed[0]
        # here, not at the end: the rest of the grid takes minutes
        recovered = points[-1].distinct & (points[-1].results[:, 1] == Result.RECOVERED)
        finite = prior.traits.continuous or prior.traits.discrete or not recovered
        check(finite, "model", prior, _PRIORS.format(alpha))
        bar.update(1, {"α": f"{alpha:.4g}"})
    return jax.tree.map(lambda *x: jnp.concatenate(x), *points)


def _with_points(
    hysteresis: _Hysteresis, grid: np.ndarray, branches: Branches, ends: Ends, key: PRNGKeyArray
) -> tuple[np.ndarray, Branches, Ends]:
    """Add points beside the ends of the branches and beside equal Φ to the grid and its branches,
    where the branches differ, and the overlaps there to the thresholds."""
    thresholds = []
    names = ("uninformed", "informed", "informed")
    for end, side, name in zip(ends, (-_BESIDE, 0.0, _BESIDE), names, strict=True):
        alpha = float(end.alpha + side * end.stderr)
        index = int(np.searchsorted(grid, alpha))
        if 0 < index < len(grid):
            V = branches.uninformed[index - 1]
            new = hysteresis.branches(jnp.asarray([alpha], V.dtype), V, key[None])
            if bool(new.distinct[0]):
                grid = np.insert(grid, index, alpha)
                insert = lambda x, y, k=index: jnp.insert(x, k, y[0], axis=0)
                branches = jax.tree.map(insert, branches, new)
                end = dataclasses.replace(end, overlap=hysteresis.S - getattr(new, name)[0])
        thresholds.append(end)
    return grid, branches, (thresholds[0], thresholds[1], thresholds[2])


def _thresholds(
    hysteresis: _Hysteresis,
    grid: np.ndarray,
    branches: Branches,
    keys: PRNGKeyArray,
    diverges: bool,
    bar: Bar,
) -> Ends:
    """The algorithmic, information-theoretic and spinodal thresholds with their error bars, from
    the branches on the grid; `diverges`: Φ of the informed branch does."""
    indices = np.flatnonzero(np.asarray(branches.distinct))
    first, last = indices[[0, -1]]
    # the informed branch appears inside the grid, the uninformed one ends there
    appears, ends = bool(first > 0), bool(last + 1 < len(grid))
    of_keys = lambda alpha: jnp.full(len(keys), alpha, branches.uninformed.dtype)

    def branches_at(alpha: Array, index: int) -> Branches:
        bar.update(1, {"α": f"{float(jnp.mean(alpha)):.4g}"})
        return hysteresis.branches(alpha, branches.uninformed[index], keys)

    def merged(alpha: Array) -> Array:
        # True if the iteration from V of the last point reaches the informed branch; V of other
        # points is no guide, as the uninformed branch moves up to its end
        here = branches_at(alpha, last)
        return ~here.distinct & here.converged

    def exists(alpha: Array) -> Array:
        here = branches_at(alpha, max(first - 1, 0))
        return here.distinct & here.converged

    def wins(alpha: Array) -> Array:
        here = branches_at(alpha, max(first - 1, 0))
        return hysteresis.informed_wins(alpha, here, keys)

    lower, upper = of_keys(grid[first]), of_keys(grid[last])
    cell_start = cell_end = 0.0
    if appears:
        lower, cell_start = first_alpha(exists, of_keys(grid[first - 1]), lower, _HALVINGS)
    if ends:
        margin = _CELL_MARGIN * (grid[last + 1] - grid[last])
        low, high = max(grid[last] - margin, grid[first]), grid[last + 1] + margin
        cells = max((high - low) / (_END_RESOLUTION * low), 2.0)
        halvings = math.ceil(math.log2(cells))
        upper, cell_end = first_alpha(merged, of_keys(low), of_keys(high), halvings)
    spinodal = lower if appears else 0.0 * lower
    algorithmic = upper if ends else jnp.full_like(upper, jnp.inf)
    optimal, cell = spinodal, cell_start
    if not diverges:
        optimal, cell = first_alpha(wins, lower, upper, _HALVINGS)
        cell = max(cell, cell_end)
        # without a change of sign inside, the crossing lies outside
        if not ends:
            optimal = jnp.where(wins(upper), optimal, jnp.inf)
        if not appears:
            optimal = jnp.where(wins(lower), 0.0, optimal)
    # the start has to lie in the new basin of Q = S: α exceeds the spinodal by about √V
    basin = math.sqrt(_INFORMED_V) if diverges else 0.0
    # MAX_STEPS next to a spinodal moves no threshold: it counts inside the hysteresis only
    codes = np.asarray(branches.results)
    converged = bool(np.isin(codes[indices], (Result.SUCCESS, Result.RECOVERED)).all())
    # a branch that is no number counts as absent, and would be taken for a spinodal
    failed = bool((codes == Result.NONFINITE).any())
    code = choose((True, Result.MAX_STEPS), (converged, Result.SUCCESS), (failed, Result.NONFINITE))

    def threshold(values: Array, cell: float, V: Array, basin: float) -> Threshold:
        alpha = jnp.mean(values)
        regular = jnp.isfinite(alpha) & (alpha > 0)
        # a cell is uniform, and common to all keys: no average over them makes it smaller
        shared = jnp.hypot(cell / np.sqrt(12.0), basin * alpha)
        stderr = jnp.where(regular, jnp.hypot(standard_error(values), shared), 0.0)
        finite = alpha if bool(jnp.isfinite(alpha)) else grid[last]
        index = indices[np.argmin(np.abs(grid[indices] - float(finite)))]
        growth = branches.uninformed[index] - branches.informed[index]
        return Threshold(
            alpha, stderr, values, growth / jnp.trace(growth), hysteresis.S - V[index], code
        )

    return (
        threshold(algorithmic, cell_end, branches.uninformed, 0.0),
        threshold(optimal, cell, branches.informed, basin),
        threshold(spinodal, cell_start, branches.informed, basin),
    )


def recovery_threshold(model: AbstractModel) -> Threshold:
    r"""Compute the α above which perfect recovery is stable: P/M for noiseless rank-one attention.

    tr(V Q̂) → αk for V → 0, so that V falls by P/(αk) a step, for labels that fix k combinations of
    their fields: k = M where the last layer has rank one, 2M - 1 of rank two, 2 with two tokens,
    and 2M - 2 where query and key are untied, of rank one.

    Stability does not prove that the branch from small overlap reaches Q = S. Measured for two
    tokens: it does, and without a jump. Fixed points with a small V lie at α < P/M, which they
    reach as V → 0: α M/P = 0.955, 0.986, 0.996 at V_11 = 0.1, 0.03, 0.01 for one layer, 0.968(4),
    0.989(2), 0.997(1) for two, and 0.98(1) at V_11 = 0.1 for three.

    Args:
        model: A noiseless attention model with a Gaussian prior and a last layer of one head, tied
            of rank one or two, or untied of rank one, or another link whose labels fix a known
            number of combinations (phase retrieval, z1 z2, the part of ReLU's labels that is not
            zero), or a matrix model (by counting: D_f(ρ)/M_y, inf where nothing is recovered). A
            sparse prior replaces P by P times its density.

    Returns:
        A `Threshold`, exact, without an error bar; its subspace is everything. Of index models it
        is a count, whose derivative is zero; of matrix models it is differentiable in the numbers
        of the model (rank ratio, aspect ratio).

    Raises:
        ValueError: For models whose labels fix no combination.

    Example:
        >>> import jaxsmi as smi
        >>> float(smi.recovery_threshold(smi.DeepAttention(3, 2)).alpha)
        1.5

    Source:
        [theory: multi-index, Eqs. (68), (69)].
    """
    model = model_argument(model)
    valid = validate.valid(model)
    # a traced model cannot raise: it gets NaN and a code
    alpha = jnp.where(valid, model.recovery_alpha, missing())
    S = model.prior.second_moment(model.indices)
    code = jnp.where(valid, int(Result.SUCCESS), int(Result.INVALID))
    return Threshold(alpha, jnp.zeros_like(alpha), alpha[None], S / jnp.trace(S), S, code)
