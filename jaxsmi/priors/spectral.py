r"""Priors on matrices that are invariant under rotations: known by their spectrum.

Equations here [theory: random-matrices, Eqs. (1), (2), (12), (14), (16), (18)],
S = W Wᵀ/√(r d), W (d, r) iid N(0, 1), ρ = r/d, seen with precision q̂ as
R = S + q̂^{-1/2} Z:

    (1/d) E Tr S = √ρ,    Q_0 = (1/d) E Tr S² = 1 + ρ       ((r + d + 1)/d at finite d),
    q = F(q̂) = Q_0 - V(q̂),   V(q̂): the error of the shrunk matrix (random_matrix/symmetric.py),   F(0) = ρ: the trace is known
    V q̂ → D(ρ) = 2ρ - ρ² (ρ <= 1), 1 (above), for q̂ → ∞: d² D/2 numbers make a symmetric positive matrix of rank r
    I(q̂): mutual information per d², dI/dq̂ = V/4
    small width, q̂ = tρ, ρ → 0:  F = max(1 - 1/t, 0)²       (print has 1 - t [theory: attention-indexed, Eq. (33)])

and [theory: random-matrices, Eqs. (19), (20), (30) to (36)],
S = U V/√r, U (d, r), V (r, L) iid N(0, 1), ρ = r/d, β = L/d, seen as S + q̂^{-1/2} Z; the
law does not change under β, ρ → 1/β, ρ/β, and R₁ = max(β, 1/β), R₂ = r/min(d, L):

    Q_0 = E S_ij² = 1,   V(q̂) = MMSE(1/q̂), V(0) = 1,   dI/dq̂ = V/2           (random_matrix/rectangular.py)
    V q̂ → D = R₂ (1 + R₁ - R₂)/R₁ (R₂ <= 1), 1 (above):  r (d + L - r) numbers make a matrix of rank r
    β = ∞:  x = V q̂ is the smaller root of x² - x (1 + ρ + ρ/q̂) + ρ = 0
    small width, q̂ = tρ/β, ρ → 0:  V = 1 - (t² - β)²/(t² (t + 1)(t + β)) for t > √β, else 1
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.priors.base import AbstractPrior


class AbstractSpectralPrior(AbstractPrior):
    """A prior on one matrix, of entries whose variance is one, V(0) = 1: overlap and precision are scalars.

    `weight` of q̂ (Q_0 - q) in the free entropy, so that dI/dq̂ = weight · V.
    """

    rank_ratio: eqx.AbstractVar[Array]
    weight: eqx.AbstractClassVar[float]

    @property
    def continuous(self) -> bool:
        """It has a density on the matrices of its rank."""
        return True

    @property
    def discrete(self) -> bool:
        """Not on finitely many points."""
        return False

    @abc.abstractmethod
    def mutual_information(self, qhat: ArrayLike) -> Array:
        """I(q̂), dI/dq̂ = weight · V."""

    def entropy_term(self, Q: Array, Qhat: Array) -> Array:
        """weight q̂ (Q_0 - q) - I(q̂): the prior's part of the free entropy at overlaps (1, 1)."""
        q, qhat = Q[0, 0], Qhat[0, 0]
        return self.weight * qhat * (self.norm - q) - self.mutual_information(qhat)

    def width(self, dimension: int) -> int:
        """r = round(ρ d), at least one."""
        return max(round(float(self.rank_ratio) * dimension), 1)

    @property
    def valid(self) -> Array:
        """Whether the parameters are in their ranges (under jit nothing else says so)."""
        return jnp.isfinite(self.rank_ratio) & (self.rank_ratio > 0.0)

    @property
    @abc.abstractmethod
    def norm(self) -> Array:
        """Q_0."""

    @property
    @abc.abstractmethod
    def degrees_of_freedom(self) -> Array:
        """V q̂ as q̂ → ∞."""

    @abc.abstractmethod
    def error(self, qhat: Array) -> Array:
        """V(q̂) of a number q̂."""

    def mmse(self, Qhat: ArrayLike) -> Array:
        """V(q̂), 1 at q̂ = 0, of a number q̂ or a matrix (1, 1)."""
        Qhat = jnp.asarray(Qhat, theory_dtype())
        return self.error(Qhat.reshape(())).reshape(Qhat.shape)

    @abc.abstractmethod
    def small_width(self, t: Array) -> Array:
        """V as ρ → 0, t the precision q̂ in units of ρ (of a product, of ρ/β)."""

    @property
    @abc.abstractmethod
    def small_width_start(self) -> tuple[Array, Array]:
        """The t up to which V does not move, and t/(ᾱ f): ᾱ is n over the numbers in the factors, as ρ → 0."""

    def overlap(self, Qhat: ArrayLike) -> Array:
        """q = F(q̂) = Q_0 - V(q̂)."""
        return self.norm - self.mmse(Qhat)

    def second_moment(self, indices: int = 1) -> Array:
        """Q_0 as a matrix (1, 1)."""
        return self.norm * jnp.ones((indices, indices), theory_dtype())

    def side_information(self, key: Array, signal: Array, strength: Any) -> tuple[Array, Array]:
        """(A, b) of √λ signal + √(1-λ) Z."""
        seen = jnp.sqrt(strength) * signal + jnp.sqrt(1.0 - strength) * self.noise(
            key, signal.shape
        )
        return strength / (1.0 - strength) * jnp.ones((1, 1)), jnp.sqrt(strength) / (
            1.0 - strength
        ) * seen

    @staticmethod
    def noise(key: Array, shape: tuple[int, ...]) -> Array:
        """Z, entries of variance one."""
        return jax.random.normal(key, shape, theory_dtype())

    @abc.abstractmethod
    def shrunk(self, R: Array, qhat: Any) -> tuple[Array, Array]:
        """The best estimate of S from R = S + q̂^{-1/2} Z, and V(q̂)."""

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Mean of the signal (1, a, b), entries O(1), and V (1, 1) from b = A signal + A^{1/2} Z: `denoise` for the engine."""
        precision, unit = jnp.maximum(A[0, 0], 1e-12), (b.shape[1] * b.shape[2]) ** 0.25
        mean, V = self.shrunk(b[0] / (precision * unit), precision)
        return unit * mean[None], V * jnp.ones((1, 1))
