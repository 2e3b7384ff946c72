r"""The prior on symmetric positive matrices of a given width: S = W Wᵀ/√(r d).

Equations here [theory: random-matrices, Eqs. (1), (2), (12), (14), (16), (18)], W (d, r)
iid N(0, 1), ρ = r/d, seen with precision q̂ as R = S + q̂^{-1/2} Z:

    (1/d) E Tr S = √ρ,    Q_0 = (1/d) E Tr S² = 1 + ρ       ((r + d + 1)/d at finite d)
    F(0) = ρ: the trace is known
    V q̂ → D(ρ) = 2ρ - ρ² (ρ <= 1), 1 (above), for q̂ → ∞
        (d² D/2 numbers make a symmetric positive matrix of rank r)
    I(q̂): mutual information per d², dI/dq̂ = V/4
    small width, q̂ = tρ, ρ → 0:  F = max(1 - 1/t, 0)²
        (print has 1 - t [theory: attention-indexed, Eq. (33)])
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import checked, numbers, random_key, scalar, whole
from jaxsmi.core.checks import POSITIVE, Arguments, check
from jaxsmi.numerics.linear_algebra import goe, symmetric
from jaxsmi.numerics.random_matrix.base import AbstractSpectrum
from jaxsmi.numerics.random_matrix.symmetric import mutual_information, shrinkage_error, spectrum
from jaxsmi.priors.spectral import AbstractSpectralPrior, informed

__all__ = ["WishartPrior"]


class WishartPrior(AbstractSpectralPrior):
    """S = W Wᵀ/√(r d), W (d, r) iid N(0, 1), at fixed width ratio ρ = r/d.

    Args:
        rank_ratio: ρ, a finite number > 0.

    Returns:
        A prior on symmetric matrices.

    Raises:
        ValueError: For a ρ that is not finite and positive.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(WishartPrior(0.5).overlap(1.0)), 6)
        1.103051

    Cost:
        Averages: microseconds after compilation.

    Source:
        [BTEZ25], [theory: random-matrices, section 1].
    """

    rank_ratio: Array
    weight: ClassVar[float] = 0.25
    symmetric: ClassVar[bool] = True

    @checked(rank_ratio=scalar(POSITIVE))
    def __init__(self, rank_ratio: ArrayLike):
        self.rank_ratio = Arguments().number("rank_ratio", rank_ratio, POSITIVE)

    @checked(key=random_key, dimension=whole(2))
    def sample(self, key: PRNGKeyArray, dimension: int) -> Array:
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
    def mean_square(self) -> Array:
        """Tr (E S)²/d = ρ."""
        return self.rank_ratio

    @property
    def degrees_of_freedom(self) -> Array:
        """D(ρ): twice the number of free entries of S over d²."""
        rho = self.rank_ratio
        return jnp.where(rho < 1.0, 2.0 * rho - rho**2, 1.0)

    def error(self, qhat: Array) -> Array:
        """V(q̂); 1 at q̂ = 0."""
        return shrinkage_error(self.rank_ratio, qhat)

    @informed
    def mutual_information(self, qhat: ArrayLike) -> Array:
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
    def noise(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        """Symmetric Z, entries of variance one (two on the diagonal)."""
        Z = jax.random.normal(key, shape, theory_dtype())
        return goe(Z)

    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """The mean of √d S (L, d, d) plus a little symmetric noise, and V = 1."""
        mean = jnp.sqrt(self.rank_ratio * shape[-1]) * jnp.eye(shape[-1])
        signal = mean + size * jnp.sqrt(0.5) * self.noise(key, shape)
        return signal, self.mmse(0.0) * jnp.eye(shape[0])

    @checked(R=numbers("a symmetric matrix (d, d)", dimensions=2), qhat=scalar(POSITIVE))
    def denoise(self, R: ArrayLike, qhat: ArrayLike) -> tuple[Array, Array]:
        """The mean of S given R = S + q̂^{-1/2} Z, and V(q̂).

        Eigenvalues are shrunk by f(λ) = λ - 2 Δ H(λ), Δ = 1/q̂.

        Args:
            R: The matrix that is seen (d, d), symmetric.
            qhat: q̂, a number > 0.

        Returns:
            The mean (d, d), and V.

        Raises:
            ValueError: For an R that is not square, symmetric and finite.

        Cost:
            One symmetric eigendecomposition, O(d³).

        Source:
            [theory: random-matrices, Eq. (10)].
        """
        R = jnp.asarray(R)
        qhat = jnp.asarray(qhat, theory_dtype())
        check(jnp.isfinite(qhat) & (qhat > 0), "qhat", qhat, "a finite number > 0")
        check(R.ndim == 2 and R.shape[0] == R.shape[1], "R", R, "a square matrix (d, d)")
        check(jnp.all(jnp.isfinite(R)), "R", R, "finite numbers")
        check(jnp.max(jnp.abs(R - R.T)) <= 1e-6 * jnp.max(jnp.abs(R)), "R", R, "a symmetric matrix")
        return self.shrunk(R, qhat)

    def shrunk(self, R: Array, qhat: ArrayLike) -> tuple[Array, Array]:
        """`denoise` without its checks, of the symmetric part of R."""
        law = spectrum(self.rank_ratio, 1.0 / jnp.asarray(qhat, theory_dtype()))
        values, vectors = jnp.linalg.eigh(symmetric(R))
        return (vectors * law.shrink(values)) @ vectors.T, law.error

    @property
    def decay_scale(self) -> Array:
        """√ρ/2."""
        return 0.5 * jnp.sqrt(self.rank_ratio)

    def seen(self, delta: Array) -> tuple[AbstractSpectrum, Array]:
        """That of the eigenvalues, and one."""
        return spectrum(self.rank_ratio, delta), jnp.ones((), theory_dtype())
