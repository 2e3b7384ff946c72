r"""The two branches of a first-order transition, and the α at which each begins, ends or wins.

Equations here [theory: multi-index, Eqs. (45), (49), (59)], V = S - Q, Φ the free entropy:

* uninformed branch: state evolution from a small overlap; informed branch: from Q near S;
* spinodal: the informed branch appears; algorithmic threshold: the uninformed one ends;
  information-theoretic: Φ(informed) = Φ(uninformed) in between;
* noiseless labels, a continuous prior, Q = S: Φ = ∞, so that perfect recovery is optimal wherever
  it is stable.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.codes import Result
from jaxsmi.core.programs import program
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.inference.potential import potential_at
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.roots import bisect
from jaxsmi.thresholds.branch import NETS, branch_end

__all__ = [
    "HALVINGS",
    "RESOLUTION",
    "SMALL",
    "Bracket",
    "Edges",
    "apart",
    "edges",
    "informed",
    "uninformed",
]

SMALL = 1e-3  # Q/S where the uninformed branch starts
HALVINGS = 9  # of the bisections between the two ends of the hysteresis
RESOLUTION = 5e-4  # of the end of the uninformed branch, relative, whatever the grid

_NEAREST = 1e-6  # V/S where the informed branch starts ..
_NEAR = 1e-3  # .. and where too few samples see a V so small
_APART = 0.02  # V that differ by more, relative to the larger one, are of two branches ..
_TINY = 1e-4  # .. if they differ by more than this
_TIP = 1e-6  # V/S that stands for Q = S


class Bracket(eqx.Module):
    """Between which α the ends of the branches lie, and what the branches are there.

    Attributes:
        algorithmic: Two α between which the uninformed branch ends (2,).
        spinodal: Two α between which the informed branch appears (2,).
        before: V (P, P) of the uninformed branch below the transition.
        end: V of the uninformed branch at its last α.
        samples: Points in each net of a replica.
        steps: Step budget of a fixed point.
        perfect: Whether the informed branch is Q = S.
        appears: Whether the informed branch appears between the two α of `spinodal`.
        halvings: Of the bisection between the two α of `algorithmic`.
    """

    algorithmic: Array
    spinodal: Array
    before: Array
    end: Array
    samples: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    perfect: bool = eqx.field(static=True)
    appears: bool = eqx.field(static=True)
    halvings: Array


class Edges(NamedTuple):
    """The three thresholds, one number for each replica."""

    algorithmic: Array
    information_theoretic: Array
    spinodal: Array


def uninformed(problem: OverlapMap, V: Array, steps: int) -> tuple[Array, Array]:
    """V of the uninformed branch and its code, from V of a smaller α.

    A little of every direction is learned and unlearned first: Q = 0 and V = 0 are fixed points
    however unstable.
    """
    perturbed = V + 2.0 * SMALL * (0.5 * problem.second_moment - V)
    return branch_end(problem, perturbed, steps, 1e-5)


def informed(problem: OverlapMap, steps: int) -> tuple[Array, Array]:
    """V of the informed branch and its code, from next to V = 0.

    The start is as near as the basin of Q = S may ask for, and, where too few samples see a V so
    small, farther away.
    """
    S = problem.second_moment
    starts = jnp.asarray((_NEAREST, _NEAR), S.dtype)
    # one after the other, in one program
    V, codes = lax.map(lambda start: branch_end(problem, start * S, steps, 1e-2 * start), starts)
    taken = jnp.where(codes[0] == Result.RECOVERED, 0, 1)
    return V[taken], codes[taken]


def apart(V: Array, W: Array) -> Array:
    """Whether two V are of two branches."""
    largest = jnp.maximum(jnp.max(jnp.abs(V)), jnp.max(jnp.abs(W)))
    return jnp.max(jnp.abs(V - W)) > jnp.maximum(_APART * largest, _TINY)


class _Replica(eqx.Module):
    """One replica of the bisections: questions that change their answer at a threshold."""

    model: AbstractModel
    key: PRNGKeyArray
    bracket: Bracket

    def problem(self, alpha: Array) -> OverlapMap:
        """State evolution at one α."""
        return OverlapMap(self.model, alpha, self.key, self.bracket.samples, NETS)

    def uninformed(self, alpha: Array, V: Array) -> Array:
        """V of the uninformed branch."""
        return uninformed(self.problem(alpha), V, self.bracket.steps)[0]

    def informed(self, alpha: Array) -> tuple[Array, Array]:
        """V of the informed branch, and whether it was reached."""
        V, code = informed(self.problem(alpha), self.bracket.steps)
        return V, (code == Result.SUCCESS) | (code == Result.RECOVERED)

    def ended(self, alpha: Array) -> Array:
        """Whether the uninformed branch has become the informed one of the same α.

        V at other α says little: up to its end the uninformed branch moves by as much again.
        """
        low = self.uninformed(alpha, self.bracket.end)
        high, reached = self.informed(alpha)
        return ~apart(low, high) & reached

    def exists(self, alpha: Array) -> Array:
        """Whether there is an informed branch apart from the uninformed one."""
        low = self.uninformed(alpha, self.bracket.before)
        high, reached = self.informed(alpha)
        return apart(low, high) & reached

    def wins(self, alpha: Array) -> Array:
        """Whether the informed branch has the larger free entropy."""
        low = self.uninformed(alpha, self.bracket.before)
        ordinary = self.free_entropy(alpha, low)
        if self.bracket.perfect:
            return self.model.prior.continuous | (self.perfect_free_entropy(alpha) > ordinary)
        high, reached = self.informed(alpha)
        return reached & apart(low, high) & (self.free_entropy(alpha, high) > ordinary)

    def free_entropy(self, alpha: Array, V: Array) -> Array:
        """Φ at V."""
        Q = self.problem(alpha).second_moment - V
        return potential_at(self.model, alpha, Q, self.key, self.bracket.samples, NETS).value

    def perfect_free_entropy(self, alpha: Array) -> Array:
        """Φ at Q = S, where its first two terms are minus the entropy of the prior."""
        S = self.problem(alpha).second_moment
        large = jnp.eye(len(S), dtype=S.dtype) / _TIP  # whatever a large Q̂
        entropy = self.model.prior.entropy_term(S, large)
        response = self.model.channel.response(
            (1 - _TIP) * S,
            _TIP * S,
            key=self.key,
            samples=self.bracket.samples,
            randomisations=NETS,
            tangents=False,
        )
        return entropy + alpha * jnp.mean(response.log_partition)

    def edges(self) -> Edges:
        """The three thresholds of this replica."""
        bracket = self.bracket
        spinodal = bracket.spinodal[0]
        if bracket.appears:
            spinodal = bisect(self.exists, spinodal, bracket.spinodal[1], HALVINGS)
        last = bracket.algorithmic[0]
        algorithmic = bisect(self.ended, last, bracket.algorithmic[1], bracket.halvings)
        if bracket.perfect and self.model.prior.continuous and bracket.appears:
            return Edges(algorithmic, spinodal, spinodal)
        first = spinodal if bracket.appears else bracket.spinodal[1]
        optimal = bisect(self.wins, first, algorithmic, HALVINGS)
        # without a change of sign between its ends it lies outside them
        open_above = bracket.algorithmic[1] <= last
        optimal = jnp.where(~self.wins(last) & open_above, jnp.inf, optimal)
        if not bracket.appears:
            optimal = jnp.where(self.wins(first), 0.0, optimal)
        return Edges(algorithmic, optimal, spinodal)


@program
def edges(model: AbstractModel, bracket: Bracket, keys: PRNGKeyArray) -> Edges:
    """The three thresholds of each key, by bisection in α between the given ends."""
    return lax.map(lambda key: _Replica(model, key, bracket).edges(), keys)
