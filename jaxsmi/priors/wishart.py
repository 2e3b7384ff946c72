r"""The law of symmetric positive matrices of finite width: S = W Wᵀ/√(r d).

Equations here [theory: random-matrices, Eqs. (1), (2), (12), (14), (16), (18)], W (d, r)
iid N(0, 1), ρ = r/d, observed with precision q̂ as R = S + q̂^{-1/2} Z:

    (1/d) E Tr S = √ρ,    Q_0 = (1/d) E Tr S² = 1 + ρ       ((r + d + 1)/d at finite d)
    F(0) = ρ: the trace is known
    V q̂ → D(ρ) = 2ρ - ρ² (ρ <= 1), 1 (above), for q̂ → ∞
        (d² D/2 numbers determine a symmetric positive matrix of rank r)
    I(q̂): mutual information per d², dI/dq̂ = V/4
    small width, q̂ = tρ, ρ → 0:  F = max(1 - 1/t, 0)²
        (print has 1 - t [theory: attention-indexed, Eq. (33)])
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.linear_algebra import symmetric
from jaxsmi.numerics.random_matrix.base import AbstractSpectrum
from jaxsmi.numerics.random_matrix.symmetric import mutual_information, shrinkage_error, spectrum
from jaxsmi.priors.spectral import AbstractMatrixLaw, SmallWidth, SpectralPrior


class WishartLaw(AbstractMatrixLaw):
    """S = W Wᵀ/√(r d), W (d, r) iid N(0, 1), at a fixed width ratio ρ = r/d."""

    symmetric: ClassVar[bool] = True
    rank_ratio: Array
    aspect_ratio: Array

    @staticmethod
    def matrix(W: Array) -> Array:
        """S (d, d) = W Wᵀ/√(r d)."""
        d, r = W.shape
        return W @ W.T / jnp.sqrt(float(r * d))

    @property
    def norm(self) -> Array:
        return 1.0 + self.rank_ratio

    @property
    def mean_square(self) -> Array:
        return self.rank_ratio

    @property
    def degrees_of_freedom(self) -> Array:
        """D(ρ): twice the number of free entries of S over d²."""
        rho = self.rank_ratio
        # of full rank all d(d + 1)/2 entries are free
        return jnp.where(rho < 1.0, 2.0 * rho - rho**2, 1.0)

    def error(self, qhat: Array) -> Array:
        return shrinkage_error(self.rank_ratio, qhat)

    def mutual_information(self, qhat: ArrayLike) -> Array:
        return mutual_information(self.rank_ratio, qhat)

    def shrink(self, R: Array, qhat: Array) -> tuple[Array, Array]:
        """Shrink the eigenvalues of the symmetric part of R."""
        law = spectrum(self.rank_ratio, 1.0 / jnp.asarray(qhat, theory_dtype()))
        # an estimate of message passing is symmetric to rounding only, and eigh reads one triangle
        values, vectors = jnp.linalg.eigh(symmetric(R))
        return (vectors * law.shrink(values)) @ vectors.T, law.error

    def spectrum(self, delta: Array) -> tuple[AbstractSpectrum, Array]:
        return spectrum(self.rank_ratio, delta), jnp.ones((), theory_dtype())

    @property
    def decay_scale(self) -> Array:
        return 0.5 * jnp.sqrt(self.rank_ratio)

    @property
    def small_width(self) -> SmallWidth:
        """V(t) at q̂ = tρ (Q_0 = 1), learned from t = 1 on; t = ᾱ f, ᾱ = α/ρ."""
        one = jnp.ones((), theory_dtype())
        return SmallWidth(lambda t: 1.0 - jnp.maximum(1.0 - 1.0 / t, 0.0) ** 2, one, one)


def WishartPrior(rank_ratio: ArrayLike) -> SpectralPrior:
    """Prior on symmetric matrices S = W Wᵀ/√(r d), W (d, r) iid N(0, 1).

    Args:
        rank_ratio: ρ = r/d, a finite number > 0.

    Returns:
        A `SpectralPrior`.

    Raises:
        ValueError: For a ρ that is not finite and positive.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(WishartPrior(0.5).overlap(1.0)), 6)
        1.103051

    Source:
        [BTEZ25], [theory: random-matrices, section 1].
    """
    rho = validate.number("rank_ratio", rank_ratio, validate.POSITIVE)
    # sides are equal: β is there for formulas of both laws
    return SpectralPrior(WishartLaw(rank_ratio=rho, aspect_ratio=jnp.ones_like(rho)))
