r"""The prior on rectangular matrices of a given width: S = U V/√r.

Equations here [theory: random-matrices, Eqs. (19), (20), (30) to (36)], U (d, r), V (r, L)
iid N(0, 1), ρ = r/d, β = L/d, seen as S + q̂^{-1/2} Z. The law does not change under
β, ρ → 1/β, ρ/β; R₁ = max(β, 1/β), R₂ = r/min(d, L):

    Q_0 = E S_ij² = 1,   V(q̂) = MMSE(1/q̂), V(0) = 1,   dI/dq̂ = V/2
    V q̂ → D = R₂ (1 + R₁ - R₂)/R₁ (R₂ <= 1), 1 (above)
        (r (d + L - r) numbers make a matrix of rank r)
    β = ∞:  x = V q̂ is the smaller root of x² - x (1 + ρ + ρ/q̂) + ρ = 0
    small width, q̂ = tρ/β, ρ → 0:  V = 1 - (t² - β)²/(t² (t + 1)(t + β)) for t > √β, else 1
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.border import checked, numbers, scalar
from jaxsmi.core.checks import POSITIVE, Arguments, Interval, check
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.random_matrix.base import AbstractSpectrum
from jaxsmi.numerics.random_matrix.rectangular import (
    rectangular_error,
    rectangular_information,
    rectangular_spectrum,
)
from jaxsmi.priors.spectral import AbstractSpectralPrior, informed

__all__ = [
    "ASPECT",
    "ProductPrior",
    "gaussian_error",
]


ASPECT = Interval("a number > 0, or infinity", low=0.0, open_low=True, infinite=True)
_WIDTH = Interval(
    "a finite number > 0 (for rank_ratio -> 0: small_width_error of the model)",
    low=0.0,
    open_low=True,
)


class ProductPrior(AbstractSpectralPrior):
    """S = U V/√r, U (d, r), V (r, L) iid N(0, 1), at fixed ratios β = L/d and ρ = r/d.

    Args:
        aspect_ratio: β, a number > 0; infinity too, in theory.
        rank_ratio: ρ, a finite number > 0.

    Returns:
        A prior on rectangular matrices.

    Raises:
        ValueError: For ratios out of range.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(ProductPrior(2.0, 0.5).mmse(1.0)), 6)
        0.40503
        >>> round(float(ProductPrior(0.5, 0.25).mmse(1.0)), 6)  # the transposed matrix
        0.40503

    Cost:
        Averages: a fraction of a millisecond after compilation.

    Source:
        [ETBMZ25], [theory: random-matrices, section 2].
    """

    aspect_ratio: Array
    rank_ratio: Array
    weight: ClassVar[float] = 0.5
    symmetric: ClassVar[bool] = False

    @checked(aspect_ratio=scalar(ASPECT), rank_ratio=scalar(_WIDTH))
    def __init__(self, aspect_ratio: ArrayLike, rank_ratio: ArrayLike):
        arguments = Arguments()
        self.aspect_ratio = arguments.number("aspect_ratio", aspect_ratio, ASPECT)
        self.rank_ratio = arguments.number("rank_ratio", rank_ratio, _WIDTH)

    @property
    def valid(self) -> Array:
        """Whether β > 0, and ρ is finite and positive."""
        return super().valid & (self.aspect_ratio > 0.0)

    @property
    def bounded(self) -> Array:
        """Whether β is finite."""
        return jnp.isfinite(self.aspect_ratio)

    @property
    def sides(self) -> tuple[Array, Array]:
        """(R₁, R₂): long over short side, width over short side.

        V is even in log β at fixed ρ/√β, and so are its derivatives.
        """
        beta = jnp.where(jnp.isinf(self.aspect_ratio), 2.0, self.aspect_ratio)
        side = jnp.sign(jnp.log(beta))  # 0 at β = 1, and with it the derivative of R₁
        long = jnp.exp(lax.stop_gradient(side) * jnp.log(beta))
        return long, self.rank_ratio / jnp.sqrt(beta) * jnp.sqrt(long)

    def length(self, dimension: int) -> int:
        """L = round(β d), at least one."""
        known = "a known one, for shapes: make the model outside jit"
        check(concrete(self.aspect_ratio), "aspect_ratio", "a traced number", known)
        finite = jnp.isfinite(self.aspect_ratio)
        check(finite, "aspect_ratio", self.aspect_ratio, "a finite number, outside theory")
        return max(round(float(self.aspect_ratio) * dimension), 1)

    @property
    def norm(self) -> Array:
        """Q_0 = 1."""
        return jnp.ones((), theory_dtype())

    @property
    def degrees_of_freedom(self) -> Array:
        """D: numbers in S over d L."""
        long, wide = self.sides
        thin = wide * (1.0 + (1.0 - wide) / long)
        tall = jnp.where(jnp.isinf(self.aspect_ratio), self.rank_ratio, thin)
        return jnp.where(wide < 1.0, tall, 1.0)

    def error(self, qhat: Array) -> Array:
        """V(q̂); 1 at q̂ = 0."""
        tall = tall_error(self.rank_ratio, qhat)
        return jnp.where(jnp.isinf(self.aspect_ratio), tall, rectangular_error(*self.sides, qhat))

    @informed
    def mutual_information(self, qhat: ArrayLike) -> Array:
        """I(q̂) per d L to 1e-7; above β = 1e8 that of β = ∞, by quadrature over log(1 + q̂)."""
        nodes, weights = legendre(64)
        top = jnp.log1p(qhat)
        at = 0.5 * top * (1.0 + nodes)
        errors = tall_error(self.rank_ratio, jnp.expm1(at))
        tall = 0.25 * top * jnp.sum(weights * jnp.exp(at) * errors)
        # at β = 1e8 the first is off by 1/β; so is the second, a difference of large numbers
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

    def start(self, key: PRNGKeyArray, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Where message passing begins: a little noise, and V = 1."""
        return size * self.noise(key, shape), jnp.ones((1, 1))

    @checked(R=numbers("a matrix (L, d)", dimensions=2), qhat=scalar(POSITIVE))
    def denoise(self, R: ArrayLike, qhat: ArrayLike) -> tuple[Array, Array]:
        """The mean of S/(dL)^¼ given R = S/(dL)^¼ + q̂^{-1/2} Z/(dL)^¼, and V(q̂).

        Singular values are shrunk by f(x). The ratios are those of the matrix at hand, its width
        round(ρ d).

        Args:
            R: The matrix that is seen (L, d).
            qhat: q̂, a number > 0.

        Returns:
            The mean (L, d), and V.

        Raises:
            ValueError: For an R that is no matrix, or not finite.

        Cost:
            One singular value decomposition, O(d L min(d, L)).

        Source:
            [theory: random-matrices, Eq. (29)].
        """
        R = jnp.asarray(R)
        qhat = jnp.asarray(qhat, theory_dtype())
        check(jnp.isfinite(qhat) & (qhat > 0), "qhat", qhat, "a finite number > 0")
        check(R.ndim == 2, "R", R, "a matrix (L, d)")
        check(jnp.all(jnp.isfinite(R)), "R", R, "finite numbers")
        return self.shrunk(R, qhat)

    def shrunk(self, R: Array, qhat: ArrayLike) -> tuple[Array, Array]:
        """`denoise` without its checks."""
        short = min(R.shape)
        long = max(R.shape)
        rank = jnp.maximum(jnp.round(self.rank_ratio * R.shape[1]), 1.0) / short
        law = rectangular_spectrum(long / short, rank, 1.0 / jnp.asarray(qhat, theory_dtype()))
        rows, values, columns = jnp.linalg.svd(R, full_matrices=False)
        mean = (rows * law.shrink(values)) @ columns
        return mean, rectangular_error(long / short, rank, qhat)

    @property
    def decay_scale(self) -> Array:
        """√ρ/β^{1/4}."""
        return jnp.sqrt(self.rank_ratio) / self.aspect_ratio**0.25

    def seen(self, delta: Array) -> tuple[AbstractSpectrum, Array]:
        """That of the singular values, at finite β, and R₁."""
        long, wide = self.sides
        return rectangular_spectrum(long, wide, delta), long


def gaussian_error(alpha: Array, noise: Array) -> Array:
    """V of a Gaussian S: the root of V (1 + α/(Δ + V)) = 1 (ridge regression).

    It is the limit ρ → ∞, and that of small width at β = ∞.
    """
    gap = 1.0 - alpha - noise
    root = jnp.sqrt(gap**2 + 4.0 * noise)
    divisor = jnp.where(gap < 0.0, root - gap, 1.0)
    return jnp.where(gap < 0.0, 2.0 * noise / divisor, 0.5 * (root + gap))


def tall_error(rho: Array, qhat: ArrayLike) -> Array:
    """V(q̂) at β = ∞ [theory: random-matrices, Eq. (35)]."""
    c = rho + (1.0 + rho) * qhat
    return 2.0 * rho / (c + jnp.sqrt(c * c - 4.0 * rho * qhat**2))
