r"""What a prior must say: the face that message passing, state evolution and the free entropy read.

Message passing hands a prior a field b = A signal + A^{1/2} noise; state evolution hands it the
precision Q̂ of such a field. The prior answers with the posterior mean and covariance, and with
their averages:

    overlap Q(Q̂),   V(Q̂) = S - Q(Q̂),   S the second moment

Of P indices A, Q̂, Q, V and S are (P, P); of a prior on one matrix they are (1, 1), and a number
will do for Q̂. The signal and b are (P, D) where its columns are independent (`AbstractIidPrior`),
and (1, a, b) where it is one matrix (`AbstractSpectralPrior`).
"""

from __future__ import annotations

import abc

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

__all__ = ["AbstractPrior"]


class AbstractPrior(eqx.Module):
    """A prior on the signal: its columns are independent, or it is one matrix.

    Attributes:
        weight: w, the factor of tr(Q̂ (S - Q)) in the free entropy: dΨ = w tr(response dQ).
    """

    weight: eqx.AbstractClassVar[float]

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
        """S (P, P) for P = `indices`."""

    @abc.abstractmethod
    def known(self, indices: int) -> Array:
        """The overlap (P, P) before any label, that of the mean with itself."""

    @abc.abstractmethod
    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Posterior mean of the signal and its covariance (P, P), from its field b and A (P, P)."""

    @abc.abstractmethod
    def overlap(self, Qhat: ArrayLike) -> Array:
        """Q(Q̂) (P, P): the overlap that a field of precision Q̂ gives."""

    @abc.abstractmethod
    def mmse(self, Qhat: ArrayLike) -> Array:
        """V(Q̂) = S - Q(Q̂) (P, P), without the cancellation near perfect recovery."""

    @abc.abstractmethod
    def entropy_term(self, Q: Array, Qhat: Array) -> Array:
        """The prior's part of the free entropy at overlaps Q and Q̂ (P, P), in nats a
        coordinate."""

    @abc.abstractmethod
    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Where message passing begins.

        It is a signal of that shape, of about that size, and its covariance (P, P).
        """

    @abc.abstractmethod
    def side_information(
        self, key: PRNGKeyArray, signal: Array, strength: ArrayLike
    ) -> tuple[Array, Array]:
        """What observing √λ signal + √(1-λ) noise, λ = `strength`, adds to A (P, P) and to b."""
