"""First-order transitions: two branches of fixed points, which one is optimal, where each ends (of
one index: one_index.py; of several: hysteresis.py); and the α above which perfect recovery is
stable [theory: multi-index, Eqs. (52), (56), (68) to (70)].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import frozen, missing
from jaxsmi.core.display import Described, describe, format_estimate, number
from jaxsmi.core.driver import Bar
from jaxsmi.core.options import Averages, Iteration
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Solution, Threshold, load_workbench
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.inference.order_map import OverlapMap
from jaxsmi.models.base import AbstractModel, model_argument
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.quadrature import power_of_two
from jaxsmi.thresholds.branch import NETS
from jaxsmi.thresholds.hysteresis import HALVINGS, Bisections, Branches, Hysteresis
from jaxsmi.thresholds.one_index import (
    SCAN,
    Ends,
    FixedPointCurve,
    Sizes,
    free_entropy_diverges,
)
from jaxsmi.thresholds.weak import check_model

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

# standard errors of the end of a branch between it and the last point of the branch
_BESIDE = 3.0
# relative distance from an exact threshold of the point of a branch beside it
_BESIDE_EXACT = 1e-9
# one index: intervals of α are halved so many times where Q grows by more than this share of its
# maximum, down to this relative length
_REFINEMENTS, _STEP, _CLOSE = 4, 0.05, 1e-3
# distance of two such points, one on each side, at most, and the change of Q that is a jump
_SIDES, _JUMP = 4.0 * _BESIDE_EXACT, 1e-3


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
        intervals. An arrow at the edge stands for thresholds below or above the grid (of one index:
        at any α, at no α).

        Args:
            ax: Axes to draw in. Default None: new ones.
            runs: Of `gamp`, or the table of a sweep of them, as in `Curve.plot`: next to a
                threshold some may recover and others not, so that dots show them beside their mean.
                Default None: none.

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
        grid, or the noise is so small that rounding hides the informed branch, and the
        information-theoretic threshold is NaN).

        Of several indices the thresholds are bisected, and their derivatives are NaN. A spinodal or
        information-theoretic threshold of 0 lies below the grid, an algorithmic threshold of inf
        above it. Error bars include the last interval of the bisection. Codes: SUCCESS, MAX_STEPS
        (a branch did not converge where both exist: raise `max_steps`, and do not rely on `kind`),
        NONFINITE (a branch broke on the grid: thresholds may be missed).

    Raises:
        ValueError: For a model without inference or a prior with a mean.

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
    hysteresis = Hysteresis(frozen(model), frozen(S), size * nets, max_steps or 3000)
    with Bar(len(grid), "first-order transition: branches", progress) as bar:
        branches = _on_grid(hysteresis, grid, key, bar)
    distinct = np.asarray(branches.distinct)
    recovered = np.asarray(branches.results)[distinct, 1] == Result.RECOVERED
    kind, thresholds = "none", (None, None, None)
    if distinct.any():
        keys = jax.vmap(lambda k: jax.random.fold_in(key, 200 + k))(jnp.arange(nets))
        all_recovered = bool(recovered.all())
        sizes = Sizes(key, size, NETS)
        diverges = all_recovered and free_entropy_diverges(hysteresis.model, sizes)
        with Bar(3 * HALVINGS, "first-order transition: ends", progress) as bar:
            fewer = dataclasses.replace(
                hysteresis, points_per_net=size, informed_is_perfect=all_recovered
            )
            bisections = Bisections(fewer, grid, branches, keys, bar)
            thresholds = bisections.thresholds(diverges)
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


def _on_grid(hysteresis: Hysteresis, grid: np.ndarray, key: PRNGKeyArray, bar: Bar) -> Branches:
    """Follow both branches along the grid, the uninformed one upwards."""
    V = hysteresis.unlearned
    points = []
    for alpha in grid:
        points.append(hysteresis.branches(jnp.asarray([alpha], V.dtype), V, key[None]))
        V = points[-1].uninformed[0]
        bar.update(1, {"α": f"{alpha:.4g}"})
    return jax.tree.map(lambda *x: jnp.concatenate(x), *points)


def _with_points(
    hysteresis: Hysteresis, grid: np.ndarray, branches: Branches, ends: Ends, key: PRNGKeyArray
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
