r"""The interface of a prior, as message passing, state evolution and the free entropy use it.

Message passing passes a prior a field b = A signal + A^{1/2} noise; state evolution passes it the
precision Q̂ of such a field. The prior returns the posterior mean and covariance, and their
averages:

    overlap Q(Q̂),   V(Q̂) = S - Q(Q̂),   S the second moment

For P indices A, Q̂, Q, V and S are (P, P); for a prior on one matrix they are (1, 1), and Q̂ may be
a number. The signal and b are (P, D) for independent columns (`AbstractIidPrior`), and
(L, a, b) for L matrices (`SpectralPrior`).
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.display import constructor_repr


class Traits(NamedTuple):
    """Properties of a prior that decide which results exist.

    Attributes:
        continuous: Has a density; perfect recovery then means infinite information.
        discrete: A law on finitely many points, of finite entropy.
        even: w and -w have the same law, so that the prior does not determine signs.
        identical: All columns have the same law.
        wishart: The Gram matrix of rows is a Wishart matrix, which can be drawn at a traced D.
    """

    # the defaults claim symmetry and iid columns only
    continuous: bool = False
    discrete: bool = False
    even: bool = True
    identical: bool = True
    # the Gram matrix of other rows needs all of W, and an integer D
    wishart: bool = False


class AbstractPrior(eqx.Module):
    """A prior on the signal."""

    def __repr__(self) -> str:
        return constructor_repr(self)

    @property
    def weight(self) -> float:
        """w, the factor of tr(Q̂ (S - Q)) in the free entropy: dΨ = w tr(response dQ)."""
        # I-MMSE has 1/2 for real numbers; half of the entries of a symmetric matrix are free
        return 0.5

    @property
    @abc.abstractmethod
    def traits(self) -> Traits:
        """Properties that decide which results exist."""

    @abc.abstractmethod
    def second_moment(self, indices: int) -> Array:
        """Return the second moment S (P, P), P = `indices`."""

    @abc.abstractmethod
    def mean_overlap(self, indices: int) -> Array:
        """Return the overlap (P, P) before any label: m mᵀ for a prior of mean m."""

    @abc.abstractmethod
    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Compute the posterior mean of the signal and its covariance (P, P), from the field b and
        A (P, P)."""

    @abc.abstractmethod
    def overlap(self, Qhat: ArrayLike) -> Array:
        """Return the overlap Q(Q̂) (P, P) for a field of precision Q̂."""

    @abc.abstractmethod
    def mmse(self, Qhat: ArrayLike) -> Array:
        """Return V(Q̂) = S - Q(Q̂) (P, P), without the cancellation near perfect recovery."""

    @abc.abstractmethod
    def free_entropy(self, Qhat: ArrayLike) -> Array:
        """Return E log Z_w for a field of precision Q̂ (P, P), in nats per coordinate."""

    def entropy_term(self, Q: Array, Qhat: Array) -> Array:
        """Return the prior's part of the free entropy at Q, Q̂ (P, P), in nats per coordinate."""
        return self.free_entropy(Qhat) - self.weight * jnp.sum(Q * Qhat)

    @abc.abstractmethod
    def bethe_terms(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Compute (1/n) log Z_w(b, A) of a signal of n entries a row, and the average over them of
        C_i ⊗ C_i, the map X ↦ C_i X C_i (P, P, P, P) of posterior covariances."""

    @abc.abstractmethod
    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Draw an initial signal of this shape, with noise of this size; return its covariance (P,
        P) too."""

    @abc.abstractmethod
    def side_information(
        self, key: PRNGKeyArray, signal: Array, strength: ArrayLike
    ) -> tuple[Array, Array]:
        """Return additions to A and b from observing √λ signal + √(1-λ) noise, λ = `strength`."""
