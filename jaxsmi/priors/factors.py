r"""Laws of matrices of finite width: symmetric S = W Wᵀ/√(r d), rectangular S = (U V)ᵀ/√r.

Equations here [theory: random-matrices, Eqs. (1), (2), (12), (14), (16), (18)], W (d, r)
iid N(0, 1), ρ = r/d, observed with precision q̂ as R = S + q̂^{-1/2} Z:

    (1/d) E Tr S = √ρ,    Q_0 = (1/d) E Tr S² = 1 + ρ       ((r + d + 1)/d at finite d)
    F(0) = ρ: the trace is known
    V q̂ → D_f(ρ) = 2ρ - ρ² (ρ <= 1), 1 (above), for q̂ → ∞
        (d² D/2 numbers determine a symmetric positive matrix of rank r)
    I(q̂): mutual information per d², dI/dq̂ = V/4
    small width, q̂ = tρ, ρ → 0:  F = max(1 - 1/t, 0)²
        (print has 1 - t [theory: attention-indexed, Eq. (36)])

Rectangular [theory: random-matrices, Eqs. (19), (20), (30) to (36)], S (L, d), U (d, r), V (r, L)
iid N(0, 1), ρ = r/d, β = L/d, observed as S + q̂^{-1/2} Z (below V is the error). The law does not
change under β, ρ → 1/β, ρ/β; R₁ = max(β, 1/β), R₂ = r/min(d, L):

    Q_0 = E S_ij² = 1,   V(q̂) = MMSE(1/q̂), V(0) = 1,   dI/dq̂ = V/2
    V q̂ → D = R₂ (1 + R₁ - R₂)/R₁ (R₂ <= 1), 1 (above)
        (r (d + L - r) numbers determine a matrix of rank r)
    β = ∞:  x = V q̂ is the smaller root of x² - x (1 + ρ + ρ/q̂) + ρ = 0
    small width, q̂ = tρ/β, ρ → 0:  V = 1 - (t² - β)²/(t² (t + 1)(t + β)) for t > √β, else 1
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.rectangular_spectrum import (
    rectangular_error,
    rectangular_information,
    rectangular_spectrum,
)
from jaxsmi.numerics.roots import quadratic_root
from jaxsmi.numerics.symmetric_spectrum import (
    AbstractSpectrum,
    mutual_information,
    shrinkage_error,
    spectrum,
)
from jaxsmi.priors.spectral import (
    AbstractMatrixLaw,
    AbstractSymmetricLaw,
    SmallWidth,
    SpectralPrior,
)

ASPECT = validate.Interval("a number > 0, or infinity", low=0.0, open_low=True, infinite=True)
_WIDTH = validate.Interval(
    "a finite number > 0 (in the limit zero: model.small_width_error)", low=0.0, open_low=True
)
# above it the law of β = ∞ is used: its error 1/β equals the rounding of the law of finite β
_MAX_ASPECT = 1e8


class WishartLaw(AbstractSymmetricLaw):
    """S = W Wᵀ/√(r d), W (d, r) iid N(0, 1), at a fixed width ratio ρ = r/d."""

    @staticmethod
    def matrix(W: Array) -> Array:
        """Return S (d, d) = W Wᵀ/√(r d)."""
        d, r = W.shape
        return W @ W.T / jnp.sqrt(float(r * d))

    def factors(self, key: PRNGKeyArray, shape: tuple[int, int]) -> Array:
        """Draw iid N(0, 1)."""
        return jax.random.normal(key, shape, theory_dtype())

    def eigenvalues(self, count: int) -> tuple[Array, Array]:
        """Return nodes and weights (count,) of averages over the spectrum of S as d → ∞: the Gauss
        rule of its orthogonal polynomials, which satisfy p_1 = (s - √ρ) p_0 and
        p_{n+1} = (s - √ρ - 1/√ρ) p_n - p_{n-1}; the zeros of S (ρ < 1) are in it."""
        root = jnp.sqrt(self.rank_ratio)
        first = jnp.arange(count) == 0
        middle = jnp.where(first, root, root + 1.0 / root)
        beside = jnp.eye(count, k=1) + jnp.eye(count, k=-1)
        nodes, vectors = jnp.linalg.eigh(jnp.diag(middle) + beside)
        return nodes, vectors[0] ** 2

    @property
    def norm(self) -> Array:
        return 1.0 + self.rank_ratio

    @property
    def mean_square(self) -> Array:
        return self.rank_ratio

    @property
    def degrees_of_freedom(self) -> Array:
        """D_f(ρ): twice the number of free entries of S over d²."""
        rho = self.rank_ratio
        # at full rank all d(d + 1)/2 entries are free
        return jnp.where(rho < 1.0, 2.0 * rho - rho**2, 1.0)

    def error(self, qhat: Array) -> Array:
        return shrinkage_error(self.rank_ratio, qhat)

    def mutual_information(self, qhat: ArrayLike) -> Array:
        return mutual_information(self.rank_ratio, qhat)

    def spectrum(self, delta: Array) -> tuple[AbstractSpectrum, Array]:
        return spectrum(self.rank_ratio, delta), jnp.ones((), theory_dtype())

    @property
    def small_width(self) -> SmallWidth:
        """V(t) at q̂ = tρ (Q_0 = 1), below 1 from t = 1 on; t = ᾱ f, ᾱ = α/ρ."""
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


class ProductLaw(AbstractMatrixLaw):
    """Law of S = (U V)ᵀ/√r (L, d), U (d, r), V (r, L) iid N(0, 1), at fixed β = L/d and ρ = r/d."""

    symmetric: ClassVar[bool] = False

    @property
    def sides(self) -> tuple[Array, Array]:
        """(R₁, R₂): long over short side, width over short side.

        V is even in log β at fixed ρ/√β, and so are its derivatives.
        """
        # any finite number: at β = ∞ this branch is not taken, but must stay finite
        beta = jnp.where(jnp.isinf(self.aspect_ratio), 2.0, self.aspect_ratio)
        side = jnp.sign(jnp.log(beta))  # 0 at β = 1, and with it the derivative of R₁
        long = jnp.exp(lax.stop_gradient(side) * jnp.log(beta))
        return long, self.rank_ratio / jnp.sqrt(beta) * jnp.sqrt(long)

    @property
    def norm(self) -> Array:
        return jnp.ones((), theory_dtype())

    @property
    def mean_square(self) -> Array:
        return jnp.zeros((), theory_dtype())

    @property
    def degrees_of_freedom(self) -> Array:
        """D: numbers in S over d L."""
        long, wide = self.sides
        thin = wide * (1.0 + (1.0 - wide) / long)
        tall = jnp.where(jnp.isinf(self.aspect_ratio), self.rank_ratio, thin)
        return jnp.where(wide < 1.0, tall, 1.0)

    def error(self, qhat: Array) -> Array:
        tall = tall_error(self.rank_ratio, qhat)
        return jnp.where(jnp.isinf(self.aspect_ratio), tall, rectangular_error(*self.sides, qhat))

    def mutual_information(self, qhat: ArrayLike) -> Array:
        """Return I(q̂) per d L to 1e-7; above β = 1e8 at β = ∞, by quadrature over log(1 + q̂)."""
        nodes, weights = legendre(64)
        # V falls as 1/q̂, and is smooth in log(1 + q̂)
        top = jnp.log1p(qhat)
        at = 0.5 * top * (1.0 + nodes)
        errors = tall_error(self.rank_ratio, jnp.expm1(at))
        tall = 0.25 * top * jnp.sum(weights * jnp.exp(at) * errors)
        finite = rectangular_information(*self.sides, qhat)
        return jnp.where(self.aspect_ratio > _MAX_ASPECT, tall, finite)

    def shrink(self, R: Array, qhat: Array) -> tuple[Array, Array]:
        """Shrink the singular values of R, at the ratios of R itself."""
        # a matrix has rounded sides: its own ratios give the right law
        short, long = sorted(R.shape)
        rank = jnp.maximum(jnp.round(self.rank_ratio * R.shape[1]), 1.0) / short
        law = rectangular_spectrum(long / short, rank, 1.0 / jnp.asarray(qhat, theory_dtype()))
        rows, values, columns = jnp.linalg.svd(R, full_matrices=False)
        mean = (rows * law.shrink(values)) @ columns
        return mean, rectangular_error(long / short, rank, qhat)

    def spectrum(self, delta: Array) -> tuple[AbstractSpectrum, Array]:
        long, wide = self.sides
        return rectangular_spectrum(long, wide, delta), long

    @property
    def decay_scale(self) -> Array:
        return jnp.sqrt(self.rank_ratio) / self.aspect_ratio**0.25

    @property
    def small_width(self) -> SmallWidth:
        """V(t) at q̂ = tρ/β, below 1 from t = √β on; t = (1 + β) ᾱ f, ᾱ = n/(r (d + L))."""
        beta = self.aspect_ratio

        def error(t: Array) -> Array:
            learned = 1.0 - (t**2 - beta) ** 2 / (t**2 * (t + 1.0) * (t + beta))
            return jnp.where(t > jnp.sqrt(beta), learned, 1.0)

        return SmallWidth(error, jnp.sqrt(beta), 1.0 + beta)


def ProductPrior(aspect_ratio: ArrayLike, rank_ratio: ArrayLike) -> SpectralPrior:
    """Prior on rectangular matrices S = (U V)ᵀ/√r (L, d), U (d, r), V (r, L) iid N(0, 1).

    Args:
        aspect_ratio: β = L/d, a number > 0; in theory also infinity.
        rank_ratio: ρ = r/d, a finite number > 0.

    Returns:
        A `SpectralPrior`.

    Raises:
        ValueError: For ratios out of range.

    Example:
        >>> import jax
        >>> jax.config.update("jax_enable_x64", True)
        >>> round(float(ProductPrior(2.0, 0.5).mmse(1.0)), 6)
        0.40503
        >>> round(float(ProductPrior(0.5, 0.25).mmse(1.0)), 6)  # the transposed matrix
        0.40503

    Source:
        [ETBMZ25], [theory: random-matrices, section 2].
    """
    beta = validate.number("aspect_ratio", aspect_ratio, ASPECT)
    rho = validate.number("rank_ratio", rank_ratio, _WIDTH)
    return SpectralPrior(ProductLaw(aspect_ratio=beta, rank_ratio=rho))


def gaussian_error(alpha: Array, noise: Array) -> Array:
    """Return V of a Gaussian S: the root of V (1 + α/(Δ + V)) = 1 (ridge regression).

    It is the limit ρ → ∞, and the limit of small width at β = ∞.
    """
    return quadratic_root(1.0 - alpha - noise, noise)


def tall_error(rho: Array, qhat: ArrayLike) -> Array:
    """Return V(q̂) at β = ∞ [theory: random-matrices, Eq. (35)]."""
    c = rho + (1.0 + rho) * qhat
    return 2.0 * rho / (c + jnp.sqrt(c * c - 4.0 * rho * qhat**2))
