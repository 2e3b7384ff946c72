"""The scan of the staircase: from one threshold on, to where the next direction begins to grow.

Equations here [theory: multi-index, Eqs. (54) to (56), (74) to (76)]: h = log α λ_max(F_{Q(α)}) is
followed along the branch on which only some directions are learned, until it is zero. It says where
`crossing` has to look, or what labels tell at once, or that nothing more grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.results import Threshold
from jaxsmi.inference.overlap_map import OverlapMap
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.branch import branch_end, branch_growth
from jaxsmi.thresholds.following import Stand, begin, proceed

__all__ = ["Known", "Lost", "Place", "Scan"]

_SCAN_NETS = 16  # of the scan in α
_SCAN_FACTOR = 1.2  # from one α of the scan to the next
_MOST_STEPS = 60  # of a scan along the branch
_NEAR = 0.5  # |log α λ_max| up to which a guess saves the scan


class Place(NamedTuple):
    """An α next to the root, V and the leading eigenmatrix X there, and the fraction of inaccurate
    inner integrals."""

    alpha: float
    V: Array
    X: Array
    inaccurate: float


class Known(NamedTuple):
    """Directions (P, n) that labels tell as soon as the learned ones are known."""

    directions: np.ndarray


class Lost:
    """The growth rate is not finite: nothing can be said from there on."""


Outcome = Place | Known | Lost | None  # None: nothing more up to alpha_max


class _Glance(eqx.Module):
    """The branch at one α of the scan: V, X, λ_max, and the directions known at once."""

    V: Array
    X: Array
    rate: Array
    vectors: Array
    known: Array
    inaccurate: Array

    @classmethod
    def of(cls, stand: Stand) -> _Glance:
        """That of a point on the branch."""
        grown = stand.grown
        return cls(stand.V, grown.subspace, grown.rate, *grown.known(), grown.inaccurate)

    def level(self, alpha: float) -> float:
        """h = log α λ_max."""
        return float(jnp.log(jnp.maximum(alpha * self.rate, 1e-30)))

    def outcome(self, alpha: float) -> Outcome:
        """What the scan ends with here, should it end here."""
        if bool(jnp.any(self.known)):
            return Known(np.asarray(self.vectors)[:, np.asarray(self.known)])
        if not np.isfinite(self.level(alpha)):
            return Lost()
        return Place(alpha, self.V, self.X, float(self.inaccurate))


@eqx.filter_jit
def _glance(branch: OverlapMap, V0: Array) -> _Glance:
    V = branch_end(branch, V0, 100, 1e-3)[0]
    grown = branch_growth(branch, V)
    return _Glance(V, grown.subspace, grown.rate, *grown.known(), grown.inaccurate)


class Scan(NamedTuple):
    """The search in α, from the threshold `lowest` on, for where the next direction grows."""

    model: AbstractModel
    learned: Array
    lowest: float
    alpha_max: float
    key: PRNGKeyArray
    samples: int
    overlap: Array

    @classmethod
    def of(
        cls,
        model: AbstractModel,
        learned: np.ndarray,
        lowest: float,
        stairs: Sequence[Threshold],
        key: PRNGKeyArray,
        alpha_max: float,
        samples: int,
    ) -> Scan:
        """The scan for the next step of a staircase."""
        dtype = model.prior.second_moment(model.indices).dtype
        # it says where to look, no more: where posteriors are costly a quarter of the points do
        share = 128 if model.channel.random_nodes else 32
        return cls(
            model,
            jnp.asarray(learned, dtype),
            lowest,
            alpha_max,
            jax.random.fold_in(key, 7 + len(stairs)),
            power_of_two(max(samples // share, 2)),
            lax.stop_gradient(stairs[-1].overlap),
        )

    def branch(self, alpha: float) -> OverlapMap:
        """State evolution of the scan at one α."""
        return OverlapMap(
            self.model,
            jnp.asarray(alpha, self.learned.dtype),
            self.key,
            self.samples,
            _SCAN_NETS,
            learned=self.learned,
        )

    def glance(self, alpha: float, V0: Array | None) -> _Glance:
        """The branch at one α, from V0, by default a little below S."""
        branch = self.branch(alpha)
        return _glance(branch, 0.9 * branch.second_moment if V0 is None else V0)

    def next(self, guess: Threshold | None) -> Outcome:
        """Next to the guess where that is near a root, else by going upwards in α."""
        if self.model.channel.random_nodes:
            return self.along(guess)
        if guess is not None:
            at = min(max(float(guess.alpha), self.lowest * 1.001), self.alpha_max)
            here = self.glance(at, None)
            outcome = here.outcome(at)
            if not isinstance(outcome, Place) or abs(here.level(at)) < _NEAR:
                return outcome
        return self.upwards()

    def along(self, guess: Threshold | None) -> Outcome:
        """From the last threshold on along the branch, one average a step, until α λ_max >= 1.

        Where that leads back in α, onto a branch that is not stable, `upwards` goes on.
        """
        branch = self.branch(self.lowest)
        S = branch.second_moment
        if guess is not None:
            V = S - branch.restrict(lax.stop_gradient(guess.overlap))
            here = begin(branch, V, jnp.asarray(float(guess.alpha), V.dtype))
            outcome = _Glance.of(here).outcome(float(here.alpha))
            if not isinstance(outcome, Place) or abs(float(here.level)) < _NEAR:
                return outcome
        # new directions are learned by a tenth
        values, vectors = jnp.linalg.eigh(S - branch.restrict(self.overlap))
        most = 0.9 * jnp.trace(S) / len(S)
        here = begin(branch, (vectors * jnp.minimum(values, most)) @ vectors.T)
        last: Stand | None = None
        for _ in range(_MOST_STEPS):
            alpha = float(here.alpha)
            outcome = _Glance.of(here).outcome(alpha)
            if not isinstance(outcome, Place):
                return outcome
            if alpha > self.lowest:
                if float(here.level) >= 0.0:
                    return outcome if last is None else _amid(last, here)
                if alpha >= (1.0 - 1e-9) * self.alpha_max:
                    return None
            if not float(here.rho) < 1.0:
                break
            last = here
            here = proceed(branch, last, jnp.asarray(self.alpha_max, S.dtype))
        return self.upwards()

    def upwards(self) -> Outcome:
        """From the last threshold on in equal steps of log α, until α λ_max >= 1."""
        at = max(self.lowest * 1.1, 1e-2 if self.lowest == 0.0 else 0.0)
        V: Array | None = None
        last: tuple[float, float] | None = None
        while True:
            at = min(at, self.alpha_max)
            here = self.glance(at, V)
            outcome = here.outcome(at)
            if not isinstance(outcome, Place):
                return outcome
            level = here.level(at)
            if level >= 0.0:
                return outcome._replace(alpha=_between(last, at, level))
            if at >= self.alpha_max:
                return None
            V = here.V
            last = (at, level)
            at = at * _SCAN_FACTOR


def _amid(last: Stand, here: Stand) -> Place:
    """Where h is zero between two points of a scan, by a line in log α and in V."""
    share = float(last.level / (last.level - here.level))
    if not 0.0 <= share <= 1.0:
        share = 1.0
    alpha = float(last.alpha) ** (1.0 - share) * float(here.alpha) ** share
    V = (1.0 - share) * last.V + share * here.V
    return Place(alpha, V, here.grown.subspace, float(here.grown.inaccurate))


def _between(last: tuple[float, float] | None, alpha: float, level: float) -> float:
    """Where h is zero between the last two points of a scan, by a line in log α."""
    if last is None:
        return alpha
    low, below = last
    return float(np.exp(np.log(low) + np.log(alpha / low) * below / (below - level)))
