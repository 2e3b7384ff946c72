r"""Priors on matrices that are invariant under rotations: defined by their spectrum.

A matrix S is observed as S + q̂^{-1/2} Z, Z with entries iid N(0, 1) up to the symmetry of S. The
law of S gives:

    q = F(q̂) = Q_0 - V(q̂),   V(q̂): the error of the shrunk matrix, V(0) = 1
    V q̂ → D for q̂ → ∞: the numbers that determine the matrix, over its entries
    I(q̂): mutual information per entry, dI/dq̂ = weight · V

For L independent matrices, denoised one by one, Q̂ and V are (L, L), and only the diagonal counts
[theory: attention-indexed, section 7]:

    V_l = V(q̂_ll),   V_lk = 0,   Q = S - V

Letters here: L is the number of matrices in Q̂, V (L, L) and signals (L, a, b), and the number of
rows of one matrix S (L, d). Source: [theory: random-matrices, sections 1 and 2].
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, symmetric, theory_dtype
from jaxsmi.numerics.linear_algebra import goe
from jaxsmi.numerics.symmetric_spectrum import AbstractSpectrum
from jaxsmi.priors.base import AbstractPrior, Traits

_MIN_PRECISION = 1e-12  # a posterior divides by the precision; below this it is the prior


class SmallWidth(NamedTuple):
    """The limit ρ → 0, in t, the precision q̂ in units of ρ (of a product, of ρ/β).

    Attributes:
        error: V(t).
        threshold: The t up to which nothing is learned.
        scale: t/(ᾱ f), with ᾱ the samples per number in the factors, f the output's response.
    """

    error: Callable[[Array], Array]
    threshold: Array
    scale: Array


class AbstractMatrixLaw(eqx.Module):
    """The law of one matrix with entries of variance one.

    Attributes:
        rank_ratio: ρ = r/d, the width of the factors over the dimension.
        aspect_ratio: β = L/d, rows over columns of S (L, d); 1 for symmetric S.
        symmetric: A symmetric matrix has eigenvalues, other matrices singular values.
    """

    rank_ratio: Array
    aspect_ratio: Array
    symmetric: ClassVar[bool]

    @property
    @abc.abstractmethod
    def norm(self) -> Array:
        """Q_0, the mean square of an entry (of a symmetric matrix: E Tr S²/d)."""

    @property
    @abc.abstractmethod
    def mean_square(self) -> Array:
        """The overlap of two independent matrices, Tr (E S)²/d."""

    @property
    @abc.abstractmethod
    def degrees_of_freedom(self) -> Array:
        """V q̂ as q̂ → ∞."""

    @abc.abstractmethod
    def error(self, qhat: Array) -> Array:
        """Return V(q̂) for a number q̂ >= 0."""

    @abc.abstractmethod
    def mutual_information(self, qhat: ArrayLike) -> Array:
        """Return I(q̂) for a number q̂ > 0, in nats per entry; dI/dq̂ = weight · V."""

    @abc.abstractmethod
    def shrink(self, R: Array, qhat: Array) -> tuple[Array, Array]:
        """Return the posterior mean of S given R = S + q̂^{-1/2} Z, and V(q̂)."""

    @abc.abstractmethod
    def spectrum(self, delta: Array) -> tuple[AbstractSpectrum, Array]:
        """Return the law of the eigenvalues or singular values of S + √δ Z, and the long side over
        the short one."""

    @property
    @abc.abstractmethod
    def decay_scale(self) -> Array:
        """The τ of the penalty τ (dL)^{1/4} ‖S‖_* that is equivalent to weight decay of one of the
        factors."""

    @property
    @abc.abstractmethod
    def small_width(self) -> SmallWidth:
        """The limit ρ → 0."""


class AbstractSymmetricLaw(AbstractMatrixLaw):
    """The law of one symmetric matrix."""

    symmetric: ClassVar[bool] = True

    @abc.abstractmethod
    def eigenvalues(self, count: int) -> tuple[Array, Array]:
        """Return nodes and weights of averages over the spectrum of S as d → ∞, `count` of them if
        it is continuous."""

    @abc.abstractmethod
    def factors(self, key: PRNGKeyArray, shape: tuple[int, int]) -> Array:
        """Draw factors (L r, d) of L independent matrices, S = Wᵀ W/√(r d) of W (r, d) each."""

    def shrink(self, R: Array, qhat: Array) -> tuple[Array, Array]:
        """Shrink the eigenvalues of the symmetric part of R."""
        law, _ = self.spectrum(1.0 / jnp.asarray(qhat, theory_dtype()))
        # an estimate of message passing is symmetric to rounding only, and eigh reads one triangle
        values, vectors = jnp.linalg.eigh(symmetric(R))
        return (vectors * law.shrink(values)) @ vectors.T, self.error(qhat)

    @property
    def decay_scale(self) -> Array:
        """√ρ/2."""
        return 0.5 * jnp.sqrt(self.rank_ratio)


class SpectralPrior(AbstractPrior):
    """A prior on matrices of one law: overlap and precision of each are numbers.

    Args:
        law: The law of one matrix, such as `WishartLaw` or `ProductLaw`.
    """

    traits: ClassVar[Traits] = Traits(continuous=True)
    law: AbstractMatrixLaw

    @property
    def weight(self) -> float:
        """The factor of q̂ (Q_0 - q) in the free entropy, so that dI/dq̂ = weight · V: half of the
        independent entries over all of them."""
        return 0.25 if self.symmetric else 0.5

    @property
    def norm(self) -> Array:
        """Q_0, the mean square of an entry."""
        return self.law.norm

    @property
    def symmetric(self) -> bool:
        """True if the matrix is symmetric."""
        return self.law.symmetric

    def width(self, dimension: int) -> int:
        """Return r = round(ρ d), at least one."""
        # a matrix of rank zero has no student
        return max(round(float(self.law.rank_ratio) * dimension), 1)

    def length(self, dimension: int) -> int:
        """Return L = round(β d), at least one."""
        if self.symmetric:
            return dimension
        beta = self.law.aspect_ratio
        allowed = "a known number, as shapes depend on it: make the model outside jit"
        # L is a shape
        validate.check(concrete(beta), "aspect_ratio", "a traced number", allowed)
        allowed = "a finite number (infinite ones are for theory only)"
        validate.check(jnp.isfinite(beta), "aspect_ratio", beta, allowed)
        return max(round(float(beta) * dimension), 1)

    def mmse(self, Qhat: ArrayLike) -> Array:
        """Return V(q̂), 1 at q̂ = 0, of a number q̂; of a matrix (L, L), V of its diagonal."""
        Qhat = _precision(Qhat)
        # a number stays a number: thresholds solve for scalars
        if Qhat.size == 1:
            return self.law.error(Qhat.reshape(())).reshape(Qhat.shape)
        return jnp.diag(jax.vmap(self.law.error)(jnp.diagonal(Qhat)))

    def overlap(self, Qhat: ArrayLike) -> Array:
        """Return q = F(q̂) = Q_0 - V(q̂) for a number q̂, S - V(Q̂) for a matrix (L, L)."""
        V = self.mmse(Qhat)
        return self.second_moment(len(V)) - V if V.ndim else self.norm - V

    def second_moment(self, indices: int = 1) -> Array:
        """Return Q_0 as a matrix (1, 1), or (L, L) for several independent matrices."""
        excess = (self.norm - self.law.mean_square) * jnp.eye(indices, dtype=theory_dtype())
        return excess + self.mean_overlap(indices)

    def mean_overlap(self, indices: int = 1) -> Array:
        """Return the overlap of the means, (L, L)."""
        return self.law.mean_square * jnp.ones((indices, indices), theory_dtype())

    def free_entropy(self, Qhat: ArrayLike) -> Array:
        """Return the sum of weight q̂ Q_0 - I(q̂) over the diagonal of Q̂ (L, L)."""
        qhat = jnp.diagonal(jnp.asarray(Qhat))
        information = jax.vmap(self.law.mutual_information)(qhat)
        return jnp.sum(self.weight * qhat * self.norm - information)

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        """Draw Z with entries of variance one (two on the diagonal of a symmetric matrix)."""
        Z = jax.random.normal(key, shape, theory_dtype())
        return goe(Z) if self.symmetric else Z

    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Return the mean of √d S (L, a, b) plus noise, and V = 1."""
        # the trace is known before any label
        mean = jnp.sqrt(self.law.mean_square * shape[-1]) * jnp.eye(shape[-2], shape[-1])
        signal = mean + size * jnp.sqrt(2.0 * self.weight) * self.noise(key, shape)
        return signal, jnp.eye(shape[0], dtype=theory_dtype())

    def side_information(
        self, key: PRNGKeyArray, signal: Array, strength: ArrayLike
    ) -> tuple[Array, Array]:
        """Return additions to A (L, L) and b from observing √λ signal + √(1-λ) Z, λ =
        `strength`."""
        strength = jnp.asarray(strength)
        noise = self.noise(key, signal.shape)
        observed = jnp.sqrt(strength) * signal + jnp.sqrt(1.0 - strength) * noise
        A = strength / (1.0 - strength) * jnp.eye(len(signal))
        return A, jnp.sqrt(strength) / (1.0 - strength) * observed

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Compute the mean of the signal (L, a, b), with entries O(1), and V (L, L), matrix by
        matrix: only the diagonal of A counts."""
        # laws are of matrices with singular values O(1), signals have entries O(1)
        unit = (b.shape[1] * b.shape[2]) ** 0.25

        def of_one(field: tuple[Array, Array]) -> tuple[Array, Array]:
            b, precision = field
            return self.law.shrink(b / (precision * unit), precision)

        precisions = jnp.maximum(jnp.diagonal(A), _MIN_PRECISION)
        # one by one: the memory of one eigendecomposition
        mean, V = lax.map(of_one, (b, precisions))
        return unit * mean, jnp.diag(V)

    def bethe_terms(self, b: Array, A: Array) -> tuple[Array, Array]:
        """See `AbstractPrior.bethe_terms`: log Z_w as it is on average, where it leaves minus the
        mutual information; C ⊗ C by what one field of noise becomes, to first order."""
        noise = self.noise(jax.random.key(0), b.shape)
        (mean, V), (moved, _) = jax.jvp(lambda b: self.posterior(b, A), (b,), (noise,))
        average = lambda x: jnp.mean(x, axis=(1, 2))
        qhat = jnp.diagonal(A)
        mutual = jax.vmap(self.law.mutual_information)(qhat)
        explained = 2.0 * average(b * mean) - qhat * (average(mean**2) + jnp.diagonal(V))
        rows = jnp.arange(len(b))
        squared = jnp.zeros((len(b),) * 4, b.dtype).at[rows, rows, rows, rows]
        return jnp.sum(self.weight * explained - mutual), squared.set(average(moved**2))


def _precision(Qhat: ArrayLike) -> Array:
    """Validate a precision: one number, or a square matrix (L, L)."""
    allowed = "a number >= 0, or a matrix (L, L) of numbers >= 0"
    Qhat = validate.array("Qhat", Qhat, allowed, interval=validate.NON_NEGATIVE)
    square = Qhat.size == 1 or (Qhat.ndim == 2 and Qhat.shape[0] == Qhat.shape[1])
    validate.check(square, "Qhat", Qhat, allowed)
    return Qhat
