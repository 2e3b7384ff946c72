"""What a prior must say: the face that message passing, state evolution and the free entropy read."""

from __future__ import annotations

import abc

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

__all__ = ["AbstractPrior"]


class AbstractPrior(eqx.Module):
    """A prior on the signal W: iid columns w ∈ R^P (`AbstractIidPrior`), or one matrix
    (`AbstractSpectralPrior`).

    A and Q̂ are precisions, (P, P); of one matrix a number will do as well.
    """

    @property
    @abc.abstractmethod
    def continuous(self) -> bool:
        """Whether it has a density: perfect recovery then means infinite information."""

    @property
    @abc.abstractmethod
    def discrete(self) -> bool:
        """Whether it is a law on finitely many points, of finite entropy."""

    @abc.abstractmethod
    def second_moment(self, indices: int) -> Array:
        """S (P, P): V = S - Q."""

    @abc.abstractmethod
    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Posterior mean of the signal and its covariance (P, P), from b = A signal + A^{1/2} noise."""

    @abc.abstractmethod
    def overlap(self, Qhat: ArrayLike) -> Array:
        """Q(Q̂): the overlap that a field of precision Q̂ gives."""

    @abc.abstractmethod
    def mmse(self, Qhat: ArrayLike) -> Array:
        """V(Q̂) = S - Q(Q̂), without the cancellation near perfect recovery."""

    @abc.abstractmethod
    def entropy_term(self, Q: Array, Qhat: Array) -> Array:
        """The prior's part of the free entropy at overlaps Q and Q̂ (P, P), in nats a coordinate."""

    @abc.abstractmethod
    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Where message passing begins: a signal of that shape and its covariance (P, P)."""

    @abc.abstractmethod
    def side_information(
        self, key: PRNGKeyArray, signal: Array, strength: ArrayLike
    ) -> tuple[Array, Array]:
        """What observing √λ signal + √(1-λ) noise adds to A and to b."""
