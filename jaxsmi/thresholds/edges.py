r"""The two branches of a first-order transition, and the α at which each begins, ends or wins.

Equations here [theory: multi-index, Eqs. (45), (49), (59)], V = S - Q, Φ the free entropy:

* uninformed branch: state evolution from a small overlap; informed branch: from Q near S;
* spinodal: the informed branch appears; algorithmic threshold: the uninformed one ends;
  information-theoretic: Φ(informed) = Φ(uninformed) in between;
* noiseless labels, a continuous prior, Q = S: Φ = ∞, so that perfect recovery is optimal wherever
  it is stable;
* F is monotone: from V_t ⪰ V_0 on the iteration only rises, and Q = S is out of its reach.

Both branches of all replicas are one program, which compiles one fixed point; the halvings of the
bisections call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.codes import Result
from jaxsmi.core.progress import Bar
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.inference.potential import potential_at
from jaxsmi.models.base import AbstractModel
from jaxsmi.thresholds.branch import NETS, branch_end

__all__ = [
    "HALVINGS",
    "NEAREST",
    "RESOLUTION",
    "SMALL",
    "Bracket",
    "Edges",
    "Pair",
    "apart",
    "branches",
    "edges",
    "questions",
]

SMALL = 1e-3  # Q/S where the uninformed branch starts
HALVINGS = 9  # of the bisections between the two ends of the hysteresis
NEAREST = 1e-6  # V/S where the informed branch starts: a basin as small is missed by about its root
RESOLUTION = 5e-4  # of the end of the uninformed branch, relative, whatever the grid

_NEAR = 1e-3  # the same, where too few samples see a V so small
_APART = 0.02  # V that differ by more, relative to the larger one, are of two branches ..
_TINY = 1e-4  # .. if they differ by more than this
_TIP = 1e-6  # V/S that stands for Q = S


class Bracket(NamedTuple):
    """Between which α the ends of the branches lie, and what the branches are there.

    Attributes:
        algorithmic: Two α between which the uninformed branch ends.
        spinodal: Two α between which the informed branch appears.
        before: V (P, P) of the uninformed branch below the transition.
        end: V of the uninformed branch at its last α.
        samples: Points in each net of a replica.
        steps: Step budget of a fixed point.
        perfect: Whether the informed branch is Q = S.
        appears: Whether the informed branch appears between the two α of `spinodal`.
        halvings: Of the bisection between the two α of `algorithmic`.
    """

    algorithmic: tuple[float, float]
    spinodal: tuple[float, float]
    before: Array
    end: Array
    samples: int
    steps: int
    perfect: bool
    appears: bool
    halvings: int


class Edges(NamedTuple):
    """The three thresholds, one number for each replica."""

    algorithmic: Array
    information_theoretic: Array
    spinodal: Array


class Pair(NamedTuple):
    """The two branches, of R replicas each at its α.

    Attributes:
        uninformed: V (R, P, P) of the uninformed branch.
        informed: V (R, P, P) of the informed branch.
        codes: Result codes (R, 2) of both fixed points.
        apart: Whether they are two (R,).
    """

    uninformed: Array
    informed: Array
    codes: Array
    apart: Array

    @property
    def reached(self) -> Array:
        """Whether the informed branch was reached (R,)."""
        code = self.codes[:, 1]
        return (code == Result.SUCCESS) | (code == Result.RECOVERED)


def apart(V: Array, W: Array) -> Array:
    """Whether two V are of two branches."""
    largest = jnp.maximum(jnp.max(jnp.abs(V)), jnp.max(jnp.abs(W)))
    return jnp.max(jnp.abs(V - W)) > jnp.maximum(_APART * largest, _TINY)


def _branches(problem: OverlapMap, V: Array, steps: int) -> Pair:
    """The two branches of one replica, the uninformed one from V of a smaller α.

    A little of every direction is learned and unlearned first: Q = 0 and V = 0 are fixed points
    however unstable. The informed start is as near to V = 0 as the basin of Q = S may ask for, and,
    where that is not where it leads, farther away: too few samples see a V so small.
    """
    S = problem.second_moment
    starts = jnp.stack([V + 2.0 * SMALL * (0.5 * S - V), NEAREST * S, _NEAR * S])
    tolerances = jnp.asarray((1e-5, 1e-2 * NEAREST, 1e-2 * _NEAR), S.dtype)
    falling = jnp.asarray((False, True, False))

    def follow(known: Array, start: tuple[Array, Array, Array]) -> tuple[Array, tuple]:
        V0, tolerance, only_down = start
        end, code = lax.cond(
            known,
            lambda: (V0, jnp.asarray(int(Result.RECOVERED))),
            lambda: branch_end(problem, V0, steps, tolerance, downwards=only_down, fold=True),
        )
        return only_down & (code == Result.RECOVERED), (end, code)

    # one after the other, in one program
    start = (starts, tolerances, falling)
    recovered, (ends, codes) = lax.scan(follow, jnp.asarray(False), start)
    del recovered
    taken = jnp.where(codes[1] == Result.RECOVERED, 1, 2)
    pair = jnp.stack([codes[0], codes[taken]])
    return Pair(ends[0], ends[taken], pair, apart(ends[0], ends[taken]))


@eqx.filter_jit
def branches(
    model: AbstractModel, alpha: Array, V: Array, keys: PRNGKeyArray, samples: int, steps: int
) -> Pair:
    """The two branches at one α (R,) for each key, the uninformed one from V (P, P) of a smaller
    α."""

    def one(given: tuple[Array, PRNGKeyArray]) -> Pair:
        return _branches(OverlapMap(model, *given, samples, NETS), V, steps)

    return lax.map(one, (alpha, keys))


@eqx.filter_jit
def _free_entropies(
    model: AbstractModel, alpha: Array, V: Array, keys: PRNGKeyArray, samples: int
) -> Array:
    """Φ (R,) at V (R, P, P)."""
    S = model.prior.second_moment(model.indices)

    def one(given: tuple[Array, Array, PRNGKeyArray]) -> Array:
        alpha, V, key = given
        return potential_at(model, alpha, S - V, key, samples, NETS).value

    return lax.map(one, (alpha, V, keys))


@eqx.filter_jit
def _perfect_free_entropies(
    model: AbstractModel, alpha: Array, keys: PRNGKeyArray, samples: int
) -> Array:
    """Φ (R,) at Q = S, where its first two terms are minus the entropy of the prior."""
    S = model.prior.second_moment(model.indices)
    large = jnp.eye(len(S), dtype=S.dtype) / _TIP  # whatever a large Q̂
    entropy = model.prior.entropy_term(S, large)

    def one(key: PRNGKeyArray) -> Array:
        response = model.channel.response(
            (1 - _TIP) * S,
            _TIP * S,
            key=key,
            points=samples,
            nets=NETS,
            tangents=False,
        )
        return jnp.mean(response.log_partition)

    return entropy + alpha * lax.map(one, keys)


class _Replicas(NamedTuple):
    """All replicas of the bisections: questions that change their answer at a threshold."""

    model: AbstractModel
    keys: PRNGKeyArray
    bracket: Bracket
    bar: Bar

    def pair(self, alpha: Array, V: Array) -> Pair:
        """The two branches (and the bar moves)."""
        bracket = self.bracket
        pair = branches(self.model, alpha, V, self.keys, bracket.samples, bracket.steps)
        self.bar.update(1, {"α": f"{float(jnp.mean(alpha)):.4g}"})
        return pair

    def ended(self, alpha: Array) -> Array:
        """Whether the uninformed branch has become the informed one of the same α.

        V at other α says little: up to its end the uninformed branch moves by as much again.
        """
        pair = self.pair(alpha, self.bracket.end)
        return ~pair.apart & pair.reached

    def exists(self, alpha: Array) -> Array:
        """Whether there is an informed branch apart from the uninformed one."""
        pair = self.pair(alpha, self.bracket.before)
        return pair.apart & pair.reached

    def wins(self, alpha: Array) -> Array:
        """Whether the informed branch has the larger free entropy."""
        samples = self.bracket.samples
        pair = self.pair(alpha, self.bracket.before)
        ordinary = _free_entropies(self.model, alpha, pair.uninformed, self.keys, samples)
        if self.bracket.perfect:
            return _perfect_free_entropies(self.model, alpha, self.keys, samples) > ordinary
        better = _free_entropies(self.model, alpha, pair.informed, self.keys, samples)
        return pair.reached & pair.apart & (better > ordinary)

    def bisect(
        self, above: Callable[[Array], Array], low: Array, high: Array, halvings: int
    ) -> Array:
        """The α (R,) from which on `above` is true: `numerics.roots.bisect` on the host, so that
        all questions share one program."""
        for _ in range(halvings):
            middle = 0.5 * (low + high)
            over = above(middle)
            low = jnp.where(over, low, middle)
            high = jnp.where(over, middle, high)
        return 0.5 * (low + high)

    def edges(self) -> Edges:
        """The three thresholds of each replica."""
        bracket = self.bracket
        ones = jnp.ones(len(self.keys), bracket.end.dtype)
        first = bracket.spinodal[0 if bracket.appears else 1] * ones
        spinodal = bracket.spinodal[0] * ones
        if bracket.appears:
            spinodal = self.bisect(self.exists, spinodal, bracket.spinodal[1] * ones, HALVINGS)
            first = spinodal
        last, beyond = bracket.algorithmic
        algorithmic = self.bisect(self.ended, last * ones, beyond * ones, bracket.halvings)
        if bracket.perfect and self.model.prior.traits.continuous:  # it wins wherever it is
            return Edges(algorithmic, spinodal, spinodal)
        optimal = self.bisect(self.wins, first, algorithmic, HALVINGS)
        # without a change of sign between its ends it lies outside them
        if beyond <= last:
            optimal = jnp.where(self.wins(last * ones), optimal, jnp.inf)
        if not bracket.appears:
            optimal = jnp.where(self.wins(first), 0.0, optimal)
        return Edges(algorithmic, optimal, spinodal)


def edges(model: AbstractModel, bracket: Bracket, keys: PRNGKeyArray, bar: Bar) -> Edges:
    """The three thresholds of each key, by bisection in α between the given ends; the bar moves
    with each question."""
    return _Replicas(model, keys, bracket, bar).edges()


def questions(model: AbstractModel, bracket: Bracket) -> int:
    """How often `edges` asks for both branches."""
    count = bracket.halvings + HALVINGS * bracket.appears
    if bracket.perfect and model.prior.traits.continuous:
        return count
    first, last = bracket.algorithmic
    return count + HALVINGS + (last <= first) + (not bracket.appears)
