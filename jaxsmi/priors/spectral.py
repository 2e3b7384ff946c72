r"""Priors on matrices that are invariant under rotations: known by their spectrum.

A matrix S is seen as S + q̂^{-1/2} Z, Z with entries iid N(0, 1) up to the symmetry of S. What such
a prior says:

    q = F(q̂) = Q_0 - V(q̂),   V(q̂): the error of the shrunk matrix, V(0) = 1
    V q̂ → D for q̂ → ∞: how many numbers make the matrix, over its entries
    I(q̂): mutual information an entry, dI/dq̂ = weight · V

Of L independent matrices, which messages treat one by one, Q̂ and V are (L, L), of which only the
diagonal counts [theory: attention-indexed, Eq. (56)]:

    V_l = V(q̂_ll),   V_lk = 0,   Q = S - V

wishart.py: S = W Wᵀ/√(r d), symmetric. product.py: S = U V/√r, rectangular.
Source: [theory: random-matrices, sections 1 and 2].
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import checked, scalar, square
from jaxsmi.core.checks import POSITIVE
from jaxsmi.numerics.random_matrix.base import AbstractSpectrum
from jaxsmi.priors.base import AbstractPrior

__all__ = ["AbstractSpectralPrior", "averaged", "informed"]

# what the arguments of a prior's methods may be, whichever class defines them
averaged = checked(Qhat=square("a number >= 0, or a matrix (L, L)"))
informed = checked(qhat=scalar(POSITIVE))


class AbstractSpectralPrior(AbstractPrior):
    """A prior on one matrix, of entries of variance one: overlap and precision are numbers.

    Attributes:
        rank_ratio: ρ = r/d, the width of the factors over the dimension.
        weight: The factor of q̂ (Q_0 - q) in the free entropy, so that dI/dq̂ = weight · V.
        symmetric: Whether S is: it is then known by its eigenvalues, else by its singular values.
    """

    rank_ratio: eqx.AbstractVar[Array]
    weight: eqx.AbstractClassVar[float]
    symmetric: eqx.AbstractClassVar[bool]

    # What a family says

    @property
    @abc.abstractmethod
    def norm(self) -> Array:
        """Q_0, the mean square of an entry (of a symmetric matrix: E Tr S²/d)."""

    @property
    @abc.abstractmethod
    def degrees_of_freedom(self) -> Array:
        """V q̂ as q̂ → ∞."""

    @abc.abstractmethod
    def error(self, qhat: Array) -> Array:
        """V(q̂) of a number q̂ >= 0."""

    @abc.abstractmethod
    @informed
    def mutual_information(self, qhat: ArrayLike) -> Array:
        """I(q̂) of a number q̂ > 0, in nats an entry; dI/dq̂ = weight · V."""

    @abc.abstractmethod
    def small_width(self, t: Array) -> Array:
        """V as ρ → 0, t the precision q̂ in units of ρ (of a product, of ρ/β)."""

    @property
    @abc.abstractmethod
    def small_width_start(self) -> tuple[Array, Array]:
        """The t up to which V does not move, and t/(ᾱ f).

        Here ᾱ is n over the numbers in the factors, as ρ → 0.
        """

    @abc.abstractmethod
    def shrunk(self, R: Array, qhat: ArrayLike) -> tuple[Array, Array]:
        """The best estimate of S from a matrix R = S + q̂^{-1/2} Z, and V(q̂)."""

    @property
    @abc.abstractmethod
    def decay_scale(self) -> Array:
        """The τ of the penalty τ (dL)^{1/4} ‖S‖_* that weight decay one of the factors is."""

    @abc.abstractmethod
    def seen(self, delta: Array) -> tuple[AbstractSpectrum, Array]:
        """The law of the eigenvalues or singular values of S + √δ Z, and the long side over the
        short one."""

    # What follows

    @property
    def valid(self) -> Array:
        """Whether the parameters are in their ranges: under jit nothing else says so."""
        return jnp.isfinite(self.rank_ratio) & (self.rank_ratio > 0.0)

    @property
    def bounded(self) -> Array:
        """Whether the sides of the matrix have a finite ratio."""
        return jnp.ones((), bool)

    @property
    def continuous(self) -> bool:
        """It has a density on the matrices of its rank."""
        return True

    @property
    def discrete(self) -> bool:
        """Not on finitely many points."""
        return False

    def width(self, dimension: int) -> int:
        """r = round(ρ d), at least one."""
        return max(round(float(self.rank_ratio) * dimension), 1)

    @averaged
    def mmse(self, Qhat: ArrayLike) -> Array:
        """V(q̂), 1 at q̂ = 0, of a number q̂; of a matrix (L, L) that of its diagonal."""
        Qhat = jnp.asarray(Qhat, theory_dtype())
        if Qhat.size == 1:
            return self.error(Qhat.reshape(())).reshape(Qhat.shape)
        return jnp.diag(jax.vmap(self.error)(jnp.diagonal(Qhat)))

    @averaged
    def overlap(self, Qhat: ArrayLike) -> Array:
        """q = F(q̂) = Q_0 - V(q̂) of a number q̂, S - V(Q̂) of a matrix (L, L)."""
        V = self.mmse(Qhat)
        return self.second_moment(len(V)) - V if V.ndim else self.norm - V

    @property
    def mean_square(self) -> Array:
        """The overlap of two independent matrices: zero where their mean is."""
        return jnp.zeros((), theory_dtype())

    def second_moment(self, indices: int = 1) -> Array:
        """Q_0 as a matrix (1, 1); of several independent matrices (P, P)."""
        apart = (self.norm - self.mean_square) * jnp.eye(indices, dtype=theory_dtype())
        return apart + self.known(indices)

    def known(self, indices: int = 1) -> Array:
        """`mean_square`, of several independent matrices, too."""
        return self.mean_square * jnp.ones((indices, indices), theory_dtype())

    def entropy_term(self, Q: Array, Qhat: Array) -> Array:
        """weight q̂ (Q_0 - q) - I(q̂): the prior's part of the free entropy at overlaps (L, L), a
        sum over their diagonals."""
        q = jnp.diagonal(Q)
        qhat = jnp.diagonal(Qhat)
        information = jax.vmap(self.mutual_information)(qhat)
        return jnp.sum(self.weight * qhat * (self.norm - q) - information)

    @staticmethod
    def noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        """Z, entries of variance one."""
        return jax.random.normal(key, shape, theory_dtype())

    def side_information(
        self, key: PRNGKeyArray, signal: Array, strength: ArrayLike
    ) -> tuple[Array, Array]:
        """What observing √λ signal + √(1-λ) Z, λ = `strength`, adds to A (L, L) and to b."""
        strength = jnp.asarray(strength)
        noise = self.noise(key, signal.shape)
        observed = jnp.sqrt(strength) * signal + jnp.sqrt(1.0 - strength) * noise
        A = strength / (1.0 - strength) * jnp.eye(len(signal))
        return A, jnp.sqrt(strength) / (1.0 - strength) * observed

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Mean of the signal (L, a, b), of entries O(1), and V (L, L), from its field b, matrix by
        matrix: of A its diagonal."""
        unit = (b.shape[1] * b.shape[2]) ** 0.25

        def one(field: tuple[Array, Array]) -> tuple[Array, Array]:
            b, precision = field
            return self.shrunk(b / (precision * unit), precision)

        mean, V = lax.map(one, (b, jnp.maximum(jnp.diagonal(A), 1e-12)))
        return unit * mean, jnp.diag(V)
