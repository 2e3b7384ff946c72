r"""Priors on matrices that are invariant under rotations: known by their spectrum.

Equations here [spec/2, sections 1.1, 2.2, 3.6 and 6], S = W Wᵀ/√(r d), W (d, r) iid N(0, 1), ρ = r/d, seen with precision q̂ as
R = S + q̂^{-1/2} Z:

    (1/d) E Tr S = √ρ,    Q_0 = (1/d) E Tr S² = 1 + ρ       ((r + d + 1)/d at finite d),
    q = F(q̂) = Q_0 - V(q̂),   V(q̂): the error of the shrunk matrix (random_matrix/symmetric.py),   F(0) = ρ: the trace is known
    V q̂ → D(ρ) = 2ρ - ρ² (ρ <= 1), 1 (above), for q̂ → ∞: d² D/2 numbers make a symmetric positive matrix of rank r
    I(q̂): mutual information per d², dI/dq̂ = V/4
    small width, q̂ = tρ, ρ → 0:  F = max(1 - 1/t, 0)²       (print has 1 - t: only 1 - 1/t agrees with F, spec/2 section 3.6)

and [spec/3, sections 1.1, 2.1, 2.8], S = U V/√r, U (d, r), V (r, L) iid N(0, 1), ρ = r/d, β = L/d, seen as S + q̂^{-1/2} Z; the
law does not change under β, ρ → 1/β, ρ/β, and R₁ = max(β, 1/β), R₂ = r/min(d, L):

    Q_0 = E S_ij² = 1,   V(q̂) = MMSE(1/q̂), V(0) = 1,   dI/dq̂ = V/2           (random_matrix/rectangular.py)
    V q̂ → D = R₂ (1 + R₁ - R₂)/R₁ (R₂ <= 1), 1 (above):  r (d + L - r) numbers make a matrix of rank r
    β = ∞:  x = V q̂ is the smaller root of x² - x (1 + ρ + ρ/q̂) + ρ = 0
    small width, q̂ = tρ/β, ρ → 0:  V = 1 - (t² - β)²/(t² (t + 1)(t + β)) for t > √β, else 1
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsmi.random_matrix import (
    mutual_information,
    rectangular_error,
    rectangular_information,
    rectangular_spectrum,
    shrinkage_error,
    spectrum,
)
from jaxsmi.types import Array, check, concrete, theory_dtype

__all__ = ["AbstractSpectralPrior", "ProductPrior", "WishartPrior"]


class AbstractSpectralPrior(eqx.Module):
    """A prior on one matrix, of entries whose variance is one, V(0) = 1: overlap and precision are scalars.

    `weight` of q̂ (Q_0 - q) in the free entropy, so that dI/dq̂ = weight · V.
    """

    rank_ratio: eqx.AbstractVar[Array]
    weight: eqx.AbstractClassVar[float]

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
    def mmse(self, qhat: Any) -> Array:
        """V(q̂)."""

    @abc.abstractmethod
    def small_width(self, t: Array) -> Array:
        """V as ρ → 0, t the precision q̂ in units of ρ (of a product, of ρ/β)."""

    @property
    @abc.abstractmethod
    def small_width_start(self) -> tuple[Array, Array]:
        """The t up to which V does not move, and t/(ᾱ f): ᾱ is n over the numbers in the factors, as ρ → 0."""

    def overlap(self, qhat: Any) -> Array:
        """q = F(q̂) = Q_0 - V(q̂)."""
        return self.norm - self.mmse(qhat)

    def second_moment(self, indices: int = 1) -> Array:
        """Q_0 as a matrix (1, 1)."""
        return self.norm * jnp.ones((indices, indices), theory_dtype())

    def side_information(self, key: Array, signal: Array, strength: Any) -> tuple[Array, Array]:
        """(A, b) of √λ signal + √(1-λ) Z."""
        seen = jnp.sqrt(strength) * signal + jnp.sqrt(1.0 - strength) * self.noise(key, signal.shape)
        return strength / (1.0 - strength) * jnp.ones((1, 1)), jnp.sqrt(strength) / (1.0 - strength) * seen

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


class WishartPrior(AbstractSpectralPrior):
    """S = W Wᵀ/√(r d), W (d, r) iid N(0, 1), at fixed width ratio ρ = r/d.

    Arguments: `rank_ratio` ρ > 0. Raises: ValueError for a ρ that is not finite and positive.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(WishartPrior(0.5).overlap(1.0)), 6)
    1.103051
    """

    rank_ratio: Array
    weight: ClassVar[float] = 0.25

    def __init__(self, rank_ratio: Any):
        rho = jnp.asarray(rank_ratio, theory_dtype())
        check(rho.ndim == 0 and jnp.isfinite(rho) & (rho > 0), "rank_ratio", rank_ratio, "a finite number > 0")
        self.rank_ratio = rho

    def sample(self, key: Array, dimension: int) -> Array:
        """Draw W (d, r), r = round(ρ d), at least one."""
        check(dimension >= 2, "dimension", dimension, "an integer d >= 2")
        return jax.random.normal(key, (dimension, self.width(dimension)), theory_dtype())

    @staticmethod
    def matrix(W: Array) -> Array:
        """S (d, d) = W Wᵀ/√(r d)."""
        d, r = W.shape
        return W @ W.T / jnp.sqrt(float(r * d))

    @property
    def norm(self) -> Array:
        """Q_0 = 1 + ρ."""
        return 1.0 + self.rank_ratio

    @property
    def degrees_of_freedom(self) -> Array:
        """D(ρ): twice the number of free entries of S over d²."""
        rho = self.rank_ratio
        return jnp.where(rho < 1.0, 2.0 * rho - rho**2, 1.0)

    def mmse(self, qhat: Any) -> Array:
        """V(q̂); 1 at q̂ = 0."""
        return shrinkage_error(self.rank_ratio, qhat)

    def mutual_information(self, qhat: Any) -> Array:
        """I(q̂) per d²."""
        return mutual_information(self.rank_ratio, qhat)

    def small_width(self, t: Array) -> Array:
        """V at q̂ = tρ, ρ → 0 (Q_0 = 1)."""
        return 1.0 - jnp.maximum(1.0 - 1.0 / t, 0.0) ** 2

    @property
    def small_width_start(self) -> tuple[Array, Array]:
        """t = 1; t = ᾱ f, ᾱ = α/ρ."""
        return jnp.ones((), theory_dtype()), jnp.ones((), theory_dtype())

    @staticmethod
    def noise(key: Array, shape: tuple[int, ...]) -> Array:
        """Symmetric Z, entries of variance one (two on the diagonal)."""
        Z = jax.random.normal(key, shape, theory_dtype())
        return jnp.sqrt(0.5) * (Z + jnp.swapaxes(Z, -1, -2))

    def start(self, key: Array, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Where message passing begins: the mean of √d S (1, d, d) plus a little symmetric noise, and V = 1."""
        mean = jnp.sqrt(self.rank_ratio * shape[-1]) * jnp.eye(shape[-1])
        return mean + size * jnp.sqrt(0.5) * self.noise(key, shape), self.mmse(0.0) * jnp.ones((1, 1))

    def denoise(self, R: Array, qhat: Any) -> tuple[Array, Array]:
        """The mean (d, d) of S given R = S + q̂^{-1/2} Z: eigenvalues shrunk by f(λ) = λ - 2 Δ H(λ); and V(q̂).

        Arguments: `R` (d, d), symmetric; `qhat` > 0. Raises: ValueError for an R that is not square, symmetric and finite.
        Cost: one symmetric eigendecomposition, O(d³).
        """
        R, qhat = jnp.asarray(R), jnp.asarray(qhat, theory_dtype())
        check(jnp.isfinite(qhat) & (qhat > 0), "qhat", qhat, "a finite number > 0")
        check(R.ndim == 2 and R.shape[0] == R.shape[1], "R", R, "a square matrix (d, d)")
        check(jnp.all(jnp.isfinite(R)), "R", R, "finite numbers")
        check(jnp.max(jnp.abs(R - R.T)) <= 1e-6 * jnp.max(jnp.abs(R)), "R", R, "a symmetric matrix")
        return self.shrunk(R, qhat)

    def shrunk(self, R: Array, qhat: Any) -> tuple[Array, Array]:
        """`denoise` without its checks, of the symmetric part of R."""
        law = spectrum(self.rank_ratio, 1.0 / jnp.asarray(qhat, theory_dtype()))
        values, vectors = jnp.linalg.eigh(0.5 * (R + R.T))
        return (vectors * law.shrink(values)) @ vectors.T, law.error


class ProductPrior(AbstractSpectralPrior):
    """S = U V/√r, U (d, r), V (r, L) iid N(0, 1), at fixed ratios β = L/d and ρ = r/d.

    Arguments: `aspect_ratio` β > 0, infinite too (theory only); `rank_ratio` ρ > 0.
    Raises: ValueError for ratios out of range.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(ProductPrior(2.0, 0.5).mmse(1.0)), 6), round(float(ProductPrior(0.5, 0.25).mmse(1.0)), 6)  # transposed
    (0.40503, 0.40503)
    """

    aspect_ratio: Array
    rank_ratio: Array
    weight: ClassVar[float] = 0.5

    def __init__(self, aspect_ratio: Any, rank_ratio: Any):
        beta, rho = (jnp.asarray(x, theory_dtype()) for x in (aspect_ratio, rank_ratio))
        check(beta.ndim == 0 and beta > 0, "aspect_ratio", aspect_ratio, "a number > 0, or infinity")
        allowed = "a finite number > 0 (for rank_ratio -> 0: small_width_error of the model)"
        check(rho.ndim == 0 and jnp.isfinite(rho) & (rho > 0), "rank_ratio", rank_ratio, allowed)
        self.aspect_ratio, self.rank_ratio = beta, rho

    @property
    def valid(self) -> Array:
        """Whether β > 0, and ρ is finite and positive."""
        return super().valid & (self.aspect_ratio > 0.0)

    @property
    def sides(self) -> tuple[Array, Array]:
        """(R₁, R₂): long over short side, width over short side. V is even in log β at fixed ρ/√β, and so are its derivatives."""
        beta = jnp.where(jnp.isinf(self.aspect_ratio), 2.0, self.aspect_ratio)
        side = jnp.sign(jnp.log(beta))  # 0 at β = 1, and with it the derivative of R₁
        long = jnp.exp(lax.stop_gradient(side) * jnp.log(beta))
        return long, self.rank_ratio / jnp.sqrt(beta) * jnp.sqrt(long)

    def length(self, dimension: int) -> int:
        """L = round(β d), at least one."""
        known = concrete(self.aspect_ratio)
        check(known, "aspect_ratio", "a traced number", "a known one, for shapes: make the model outside jit")
        check(jnp.isfinite(self.aspect_ratio), "aspect_ratio", self.aspect_ratio, "a finite number, outside theory")
        return max(round(float(self.aspect_ratio) * dimension), 1)

    @property
    def norm(self) -> Array:
        """Q_0 = 1."""
        return jnp.ones((), theory_dtype())

    @property
    def degrees_of_freedom(self) -> Array:
        """D: numbers in S over d L."""
        long, wide = self.sides
        tall = jnp.where(jnp.isinf(self.aspect_ratio), self.rank_ratio, wide * (1.0 + (1.0 - wide) / long))
        return jnp.where(wide < 1.0, tall, 1.0)

    def mmse(self, qhat: Any) -> Array:
        """V(q̂); 1 at q̂ = 0."""
        return jnp.where(
            jnp.isinf(self.aspect_ratio), _tall_error(self.rank_ratio, qhat), rectangular_error(*self.sides, qhat)
        )

    def mutual_information(self, qhat: Any) -> Array:
        """I(q̂) per d L (β > 1e8: that of β = ∞, by quadrature over log(1 + q̂)); to 1e-7."""
        nodes, weights = np.polynomial.legendre.leggauss(64)
        top = jnp.log1p(qhat)
        at = 0.5 * top * (1.0 + nodes)
        tall = 0.25 * top * jnp.sum(weights * jnp.exp(at) * _tall_error(self.rank_ratio, jnp.expm1(at)))
        # at β = 1e8 the first is off by 1/β, and the second by as much, a difference of large numbers
        return jnp.where(self.aspect_ratio > 1e8, tall, rectangular_information(*self.sides, qhat))

    def small_width(self, t: Array) -> Array:
        """V at q̂ = tρ/β, ρ → 0."""
        beta = self.aspect_ratio
        learned = 1.0 - (t**2 - beta) ** 2 / (t**2 * (t + 1.0) * (t + beta))
        return jnp.where(t > jnp.sqrt(beta), learned, 1.0)

    @property
    def small_width_start(self) -> tuple[Array, Array]:
        """t = √β; t = (1 + β) ᾱ f, ᾱ = n/(r (d + L))."""
        return jnp.sqrt(self.aspect_ratio), 1.0 + self.aspect_ratio

    def start(self, key: Array, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Where message passing begins: a little noise, and V = 1."""
        return size * self.noise(key, shape), jnp.ones((1, 1))

    def denoise(self, R: Array, qhat: Any) -> tuple[Array, Array]:
        """The mean of S/(dL)^¼ (L, d) given R = S/(dL)^¼ + q̂^{-1/2} Z/(dL)^¼: singular values shrunk by f(x); and V(q̂).

        The ratios are those of the matrix at hand, its width round(ρ d).
        Arguments: `R` (L, d); `qhat` > 0. Raises: ValueError for an R that is no matrix, or not finite.
        Cost: one singular value decomposition, O(d L min(d, L)).
        """
        R, qhat = jnp.asarray(R), jnp.asarray(qhat, theory_dtype())
        check(jnp.isfinite(qhat) & (qhat > 0), "qhat", qhat, "a finite number > 0")
        check(R.ndim == 2, "R", R, "a matrix (L, d)")
        check(jnp.all(jnp.isfinite(R)), "R", R, "finite numbers")
        return self.shrunk(R, qhat)

    def shrunk(self, R: Array, qhat: Any) -> tuple[Array, Array]:
        """`denoise` without its checks."""
        short, long = min(R.shape), max(R.shape)
        rank = jnp.maximum(jnp.round(self.rank_ratio * R.shape[1]), 1.0) / short
        law = rectangular_spectrum(long / short, rank, 1.0 / jnp.asarray(qhat, theory_dtype()))
        left, values, right = jnp.linalg.svd(R, full_matrices=False)
        return (left * law.shrink(values)) @ right, rectangular_error(long / short, rank, qhat)


def gaussian_error(alpha: Any, noise: Any) -> Array:
    """V of a Gaussian S: the root of V (1 + α/(Δ + V)) = 1 (ridge regression; ρ → ∞, or small width at β = ∞)."""
    gap = 1.0 - alpha - noise
    root = jnp.sqrt(gap**2 + 4.0 * noise)
    return jnp.where(gap < 0.0, 2.0 * noise / jnp.where(gap < 0.0, root - gap, 1.0), 0.5 * (root + gap))


def _tall_error(rho: Array, qhat: Any) -> Array:
    """V(q̂) at β = ∞."""
    c = rho + (1.0 + rho) * qhat
    return 2.0 * rho / (c + jnp.sqrt(c * c - 4.0 * rho * qhat**2))
