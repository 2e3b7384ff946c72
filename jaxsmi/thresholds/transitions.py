r"""First-order transitions: two branches of fixed points, which one is optimal, where each ends.

Equations here [theory: multi-index, Eqs. (45), (49), (59)]: the uninformed branch is followed
upwards in α, the informed one is started next to Q = S at each α. Where they differ there is
hysteresis, and its ends are bisected (`edges`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import frozen
from jaxsmi.core.border import checked, flag, optional, random_key, scalar, whole
from jaxsmi.core.checks import POSITIVE, Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.core.progress import Bar
from jaxsmi.core.results import Threshold
from jaxsmi.core.shown import Shown, readable, with_error
from jaxsmi.models.base import AbstractModel, is_model
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.branch import NETS
from jaxsmi.thresholds.edges import (
    HALVINGS,
    NEAREST,
    RESOLUTION,
    SMALL,
    Bracket,
    Edges,
    Pair,
    branches,
    edges,
    questions,
)
from jaxsmi.thresholds.growth import checked_sizes

__all__ = ["FirstOrder", "first_order"]


class FirstOrder(eqx.Module):
    """A first-order transition, or its absence.

    Attributes:
        kind: "first order" or "none".
        algorithmic: The α from which on message passing reaches the informed branch, or None.
        information_theoretic: The α from which on the informed branch is optimal, or None.
        spinodal: The α at which the informed branch appears, or None.
        alpha: The grid (K,) of the hysteresis curves, from which the thresholds were read.
        uninformed: Q (K, P, P) of the uninformed branch.
        informed: Q (K, P, P) of the informed branch.
    """

    kind: str = eqx.field(static=True)
    algorithmic: Threshold | None
    information_theoretic: Threshold | None
    spinodal: Threshold | None
    alpha: Array
    uninformed: Array
    informed: Array

    def __repr__(self) -> str:
        return readable(self, self._shown)

    def _repr_html_(self) -> str:
        return self._shown().html()

    def _shown(self) -> Shown:
        """What a reader sees (`core.shown`)."""
        found = {
            "spinodal": self.spinodal,
            "information-theoretic": self.information_theoretic,
            "algorithmic": self.algorithmic,
        }
        rows = [
            [name, with_error(threshold.alpha, threshold.stderr)]
            for name, threshold in found.items()
            if threshold is not None
        ]
        grid = f"α on a grid of {len(self.alpha)} points"
        return Shown(f"Transition: {self.kind}", [grid], ["", "α"], rows)


@checked(
    model=is_model,
    key=random_key,
    alpha_min=scalar(POSITIVE),
    alpha_max=scalar(POSITIVE),
    points=whole(3),
    samples=whole(),
    replicas=whole(2),
    max_steps=whole(),
    progress=optional(flag),
)
def first_order(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    alpha_min: ArrayLike = 0.1,
    alpha_max: ArrayLike = 5.0,
    points: int = 40,
    samples: int = 2**16,
    replicas: int = 8,
    max_steps: int = 3000,
    progress: bool | None = None,
) -> FirstOrder:
    r"""Algorithmic, information-theoretic and spinodal thresholds of a first-order transition.

    spinodal <= Φ(informed) = Φ(uninformed) <= algorithmic

    Args:
        model: Any index model with a channel and a prior of mean zero.
        key: Random key of all averages.
        alpha_min: Where the grid of α begins, a number > 0. Default 0.1.
        alpha_max: Where it ends, a number > alpha_min. Default 5.
        points: Points of the geometric grid on which the branches are followed; a transition
            narrower than its spacing is not seen. Default 40.
        samples: Points of the average, over all replicas. Default 2^16.
        replicas: Independent bisections, whose spread is the error bar. Default 8.
        max_steps: Step budget of each fixed point; beyond the algorithmic threshold α_a the
            iteration takes about |α - α_a|^{-1/2} steps. Default 3000.
        progress: Whether to show two bars on stderr, of the grid and of the bisections. Default
            None: on a terminal and in a notebook.

    Returns:
        A `FirstOrder`; kind "none" and None for the thresholds where the branches agree
        everywhere. A spinodal of 0 says that the informed branch exists at alpha_min already, an
        information-theoretic 0 that it is optimal there. A transition that is not over at
        alpha_max has an algorithmic threshold of inf. Error bars include the cell of the
        bisection. Codes: SUCCESS, MAX_STEPS (a branch did not converge somewhere in the
        hysteresis: raise `max_steps`, doubt the kind). Not differentiable: derivatives in the
        model's numbers are NaN.

    Raises:
        ValueError: For an argument out of its range, a model without inference, a prior with a
            mean, or perfect recovery under a prior that is neither continuous nor discrete.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model = smi.links.linear(0.1)
        >>> smi.first_order(model, key=jax.random.key(0), points=6, samples=2**9).kind
        'none'

    Cost:
        Two compilations of a fixed point (5 to 15 s each), then 2·points of them and about 50 a
        replica. Half a minute on one core for signs of Rademacher weights, 40 s for
        `Bilinear(output="absolute")`. It runs outside jit.

    Source:
        [theory: multi-index, section 7.5].
    """
    arguments = Arguments()
    samples, replicas = checked_sizes(arguments, model, samples, replicas, "replicas")
    low = float(arguments.number("alpha_min", alpha_min, POSITIVE))
    high = float(arguments.number("alpha_max", alpha_max, POSITIVE))
    check(low < high, "alpha_max", (low, high), "0 < alpha_min < alpha_max, finite")
    steps = max_steps
    shown = arguments.shown(progress)
    given = model
    model = frozen(given)
    each = power_of_two(max(samples // (replicas * NETS), 2))
    with Bar(points, "first-order transition: branches", shown, "compiling") as bar:
        curves = _followed(model, np.geomspace(low, high, points), key, each * replicas, steps, bar)
    Q = (curves.overlaps(curves.uninformed), curves.overlaps(curves.informed))
    grid = jnp.asarray(curves.grid)
    if not curves.apart.any():
        return not_differentiable(FirstOrder("none", None, None, None, grid, *Q), given)
    prior = model.prior
    perfect = bool(curves.perfect[curves.apart].any())
    allowed = "a Gaussian or a discrete prior where recovery is perfect (Φ diverges otherwise)"
    check(prior.traits.continuous or prior.traits.discrete or not perfect, "model", prior, allowed)
    keys = jax.vmap(lambda k: jax.random.fold_in(key, 200 + k))(jnp.arange(replicas))
    bracket = curves.bracket(each, steps)
    with Bar(questions(model, bracket), "first-order transition: ends", shown, "compiling") as bar:
        bisected = edges(model, bracket, keys, bar)
    # where Q = S gains its basin, the start has to lie in it: α exceeds the spinodal by about √V
    basin = math.sqrt(NEAREST) if bracket.perfect and prior.traits.continuous else 0.0
    ends = _thresholds(curves, bisected, *Q, basin)
    transition = FirstOrder("first order", *ends, grid, *Q)
    return not_differentiable(transition, given)


class _Hysteresis(NamedTuple):
    """The two branches on the grid of α.

    `uninformed`, `informed`: V at each α; `apart`: whether they differ there; `perfect`: whether
    the informed branch is Q = S; `settled`: whether both fixed points were reached.
    """

    second_moment: Array
    grid: np.ndarray
    uninformed: list[Array]
    informed: list[Array]
    apart: np.ndarray
    perfect: np.ndarray
    settled: np.ndarray

    def overlaps(self, branch: list[Array]) -> Array:
        """Q (K, P, P) of a branch."""
        return self.second_moment - jnp.stack(branch)

    @property
    def first(self) -> int:
        """The first point of the hysteresis."""
        return int(np.flatnonzero(self.apart)[0])

    @property
    def last(self) -> int:
        """The last point of the hysteresis."""
        return int(np.flatnonzero(self.apart)[-1])

    @property
    def over(self) -> bool:
        """Whether it ends on the grid."""
        return self.last + 1 < len(self.grid)

    @property
    def appears(self) -> bool:
        """Whether it begins on the grid."""
        return self.first > 0

    @property
    def end(self) -> tuple[float, float]:
        """The two α between which the uninformed branch ends.

        They reach a little beyond the cell of the grid: a replica has fewer samples than the grid,
        and its branch may end on the other side of a point.
        """
        low = self.grid[self.last]
        high = self.grid[self.last + 1 if self.over else self.last]
        room = 0.1 * (high - low)
        return max(low - room, self.grid[self.first]), high + room

    @property
    def start(self) -> tuple[float, float]:
        """The two α between which the informed branch appears."""
        return self.grid[self.first - 1] if self.appears else 0.0, self.grid[self.first]

    @property
    def halvings(self) -> int:
        """How often the interval of its end is halved, to a relative `RESOLUTION`."""
        low, high = self.end
        return max(math.ceil(math.log2(max((high - low) / (RESOLUTION * low), 1.0))), 1)

    def bracket(self, samples: int, steps: int) -> Bracket:
        """Where to bisect."""
        return Bracket(
            algorithmic=self.end,
            spinodal=self.start,
            before=self.uninformed[max(self.first - 1, 0)],
            end=self.uninformed[self.last],
            samples=samples,
            steps=steps,
            perfect=bool(self.perfect[self.apart].all()),
            appears=self.appears,
            halvings=self.halvings,
        )

    def nearest(self, values: Array) -> int:
        """The point of the hysteresis that is nearest to a threshold."""
        finite = jnp.where(jnp.isfinite(values), values, self.grid[self.last])
        inside = np.flatnonzero(self.apart)
        return int(inside[np.argmin(np.abs(self.grid[inside] - float(jnp.mean(finite))))])


def _followed(
    model: AbstractModel,
    grid: np.ndarray,
    key: PRNGKeyArray,
    samples: int,
    steps: int,
    bar: Bar,
) -> _Hysteresis:
    """Both branches on the grid, the uninformed one upwards; the bar moves with each point."""
    S = model.prior.second_moment(model.indices)
    pairs: list[Pair] = []
    V = (1.0 - SMALL) * S
    for alpha in grid:
        pair = branches(model, jnp.asarray([alpha], S.dtype), V, key[None], samples, steps)
        V = pair.uninformed[0]
        pairs.append(pair)
        bar.update(1, {"α": f"{alpha:.4g}"})
    codes = np.concatenate([pair.codes for pair in pairs])
    return _Hysteresis(
        S,
        grid,
        [pair.uninformed[0] for pair in pairs],
        [pair.informed[0] for pair in pairs],
        np.concatenate([pair.apart for pair in pairs]),
        codes[:, 1] == Result.RECOVERED,
        np.all(np.isin(codes, (Result.SUCCESS, Result.RECOVERED)), axis=1),
    )


def _thresholds(
    curves: _Hysteresis, bisected: Edges, low: Array, high: Array, basin: float
) -> tuple[Threshold, Threshold, Threshold]:
    """The three thresholds with their error bars.

    `low`, `high`: Q of the two branches; `basin`: error of where Q = S is stable, relative.
    """
    end = (curves.end[1] - curves.end[0]) / 2**curves.halvings
    start = (curves.start[1] - curves.start[0]) * curves.appears
    hysteresis = curves.grid[curves.last] - curves.grid[curves.first]
    unfinished = bool((curves.apart & ~curves.settled).any())
    code = Result.MAX_STEPS if unfinished else Result.SUCCESS

    def threshold(
        values: Array, cell: float, place: int, branch: Array, start: float = 0.0
    ) -> Threshold:
        alpha = jnp.mean(values)
        spread = jnp.std(values, ddof=1) / np.sqrt(len(values))
        regular = jnp.isfinite(alpha) & (alpha > 0)
        # the replicas share their cells: what lies inside one is no average over them
        shared = jnp.hypot(cell / np.sqrt(12.0), start * alpha)
        stderr = jnp.where(regular, jnp.hypot(spread, shared), 0.0)
        grows = high[place] - low[place]
        subspace = grows / jnp.trace(grows)
        return Threshold(alpha, stderr, values, subspace, branch[place], jnp.asarray(code))

    spinodal = bisected.spinodal
    last = bisected.algorithmic if curves.over else jnp.full_like(bisected.algorithmic, jnp.inf)
    optimal = bisected.information_theoretic
    return (
        threshold(last, end, curves.last, low),
        threshold(
            optimal, max(hysteresis / 2**HALVINGS, end), curves.nearest(optimal), high, basin
        ),
        threshold(spinodal, start / 2**HALVINGS, curves.nearest(spinodal), high, basin),
    )
