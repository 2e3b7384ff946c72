"""TODO priors.product."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.numerics.random_matrix.rectangular import (
    rectangular_error,
    rectangular_information,
    rectangular_spectrum,
)
from jaxsmi.priors.spectral import AbstractSpectralPrior


class ProductPrior(AbstractSpectralPrior):
    """S = U V/√r, U (d, r), V (r, L) iid N(0, 1), at fixed ratios β = L/d and ρ = r/d.

    Arguments: `aspect_ratio` β > 0, infinite too (theory only); `rank_ratio` ρ > 0.
    Raises: ValueError for ratios out of range.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> (
    ...     round(float(ProductPrior(2.0, 0.5).mmse(1.0)), 6),
    ...     round(float(ProductPrior(0.5, 0.25).mmse(1.0)), 6),
    ... )  # transposed
    (0.40503, 0.40503)
    """

    aspect_ratio: Array
    rank_ratio: Array
    weight: ClassVar[float] = 0.5

    def __init__(self, aspect_ratio: Any, rank_ratio: Any):
        beta, rho = (jnp.asarray(x, theory_dtype()) for x in (aspect_ratio, rank_ratio))
        check(
            beta.ndim == 0 and beta > 0, "aspect_ratio", aspect_ratio, "a number > 0, or infinity"
        )
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
        check(
            known,
            "aspect_ratio",
            "a traced number",
            "a known one, for shapes: make the model outside jit",
        )
        check(
            jnp.isfinite(self.aspect_ratio),
            "aspect_ratio",
            self.aspect_ratio,
            "a finite number, outside theory",
        )
        return max(round(float(self.aspect_ratio) * dimension), 1)

    @property
    def norm(self) -> Array:
        """Q_0 = 1."""
        return jnp.ones((), theory_dtype())

    @property
    def degrees_of_freedom(self) -> Array:
        """D: numbers in S over d L."""
        long, wide = self.sides
        tall = jnp.where(
            jnp.isinf(self.aspect_ratio), self.rank_ratio, wide * (1.0 + (1.0 - wide) / long)
        )
        return jnp.where(wide < 1.0, tall, 1.0)

    def error(self, qhat: Array) -> Array:
        """V(q̂); 1 at q̂ = 0."""
        return jnp.where(
            jnp.isinf(self.aspect_ratio),
            tall_error(self.rank_ratio, qhat),
            rectangular_error(*self.sides, qhat),
        )

    def mutual_information(self, qhat: Any) -> Array:
        """I(q̂) per d L (β > 1e8: that of β = ∞, by quadrature over log(1 + q̂)); to 1e-7."""
        nodes, weights = np.polynomial.legendre.leggauss(64)
        top = jnp.log1p(qhat)
        at = 0.5 * top * (1.0 + nodes)
        tall = (
            0.25 * top * jnp.sum(weights * jnp.exp(at) * tall_error(self.rank_ratio, jnp.expm1(at)))
        )
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
    return jnp.where(
        gap < 0.0, 2.0 * noise / jnp.where(gap < 0.0, root - gap, 1.0), 0.5 * (root + gap)
    )


def tall_error(rho: Array, qhat: Any) -> Array:
    """V(q̂) at β = ∞."""
    c = rho + (1.0 + rho) * qhat
    return 2.0 * rho / (c + jnp.sqrt(c * c - 4.0 * rho * qhat**2))
