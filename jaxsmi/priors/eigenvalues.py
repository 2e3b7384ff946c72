r"""Prior on symmetric matrices of any eigenvalues, in a basis of uniform law.

Equations here [theory: random-matrices, section 6], S = O diag(λ) Oᵀ with eigenvalues λ_k of
weights p_k, of variance one:

    Q_0 = Σ p λ²,   F(0) = (Σ p λ)²,   V(0) = 1,   V q̂ → 1 - Σ p²  (q̂ → ∞)
    V = 1 - q̂ + (1 - κ_3²) q̂² + ..,  κ_3 = Σ p (λ - Σ p λ)³
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.validate import NON_NEGATIVE, POSITIVE, check
from jaxsmi.numerics.atomic_spectrum import AtomicSpectrum, atomic_spectrum
from jaxsmi.priors.spectral import AbstractSymmetricLaw, SmallWidth, SpectralPrior

_SMALL = 1e-4  # q̂ up to which V is its series: beyond, the error of that is 1e-12


class SpectrumLaw(AbstractSymmetricLaw):
    """S = O diag(λ) Oᵀ, O of uniform law (module docstring)."""

    values: Array
    weights: Array

    def _mean(self, values: Array) -> Array:
        return jnp.sum(self.weights * values)

    def eigenvalues(self, count: int) -> tuple[Array, Array]:
        """Return the eigenvalues and their weights, of any count."""
        return self.values, self.weights

    def factors(self, key: PRNGKeyArray, shape: tuple[int, int]) -> Array:
        """Draw factors with the quantiles of the law as eigenvalues, r = d."""
        rows, d = shape
        rank = jnp.searchsorted(jnp.cumsum(self.weights), (jnp.arange(d) + 0.5) / d)
        # the sum of the weights may be rounded to below one
        values = self.values[jnp.minimum(rank, len(self.values) - 1)]
        normal = jax.random.normal(key, (rows // d, d, d), theory_dtype())
        return (jnp.sqrt(d * values)[:, None] * jnp.linalg.qr(normal)[0]).reshape(shape)

    @property
    def norm(self) -> Array:
        return self._mean(self.values**2)

    @property
    def mean_square(self) -> Array:
        return self._mean(self.values) ** 2

    @property
    def degrees_of_freedom(self) -> Array:
        """1 - Σ p²: rotations that move no eigenvalue into another are not counted."""
        return 1.0 - jnp.sum(self.weights**2)

    def error(self, qhat: Array) -> Array:
        qhat = jnp.asarray(qhat, theory_dtype())
        small = qhat < _SMALL
        full = self.spectrum(1.0 / jnp.where(small, 1.0, qhat))[0].error
        third = self._mean((self.values - self._mean(self.values)) ** 3)
        return jnp.where(small, 1.0 - qhat + (1.0 - third**2) * qhat**2, full)

    def mutual_information(self, qhat: ArrayLike) -> Array:
        return self.spectrum(1.0 / jnp.asarray(qhat, theory_dtype()))[0].information

    def spectrum(self, delta: Array) -> tuple[AtomicSpectrum, Array]:
        return atomic_spectrum(self.values, self.weights, delta), jnp.ones(())

    @property
    def small_width(self) -> SmallWidth:
        """Raises: the width is d."""
        check(False, "prior", "given eigenvalues", "factors of a width, such as WishartPrior(0.1)")
        raise AssertionError


def Spectrum(eigenvalues: ArrayLike, weights: ArrayLike | None = None) -> SpectralPrior:
    """Prior on symmetric matrices of given eigenvalues, of `smi.AttentionIndexed(tokens, prior)`.

    Eigenvalues are divided by their standard deviation: entries of √d S have variance one, apart
    from the mean.

    Args:
        eigenvalues: λ_k >= 0 (K,), not all equal. Power laws are `smi.priors.power_law(K, a)`.
        weights: p_k > 0 (K,), divided by their sum. Default: equal ones.

    Returns:
        A `SpectralPrior`.

    Raises:
        ValueError: For eigenvalues that are negative or all equal, or weights of another number.

    Example:
        >>> import jax, jaxsmi as smi
        >>> jax.config.update("jax_enable_x64", True)
        >>> prior = smi.priors.Spectrum([0.0, 1.0], weights=[0.8, 0.2])
        >>> round(float(prior.norm), 10), round(float(prior.mmse(0.0)), 10)
        (1.25, 1.0)

    Cost:
        K² operations a node; 0.1 s for V with K = 100.

    Source:
        [B97], [theory: random-matrices, section 6].
    """
    allowed = "numbers >= 0 (K,), not all equal"
    values = validate.array("eigenvalues", eigenvalues, allowed, interval=NON_NEGATIVE)
    check(values.ndim == 1 and values.size > 1, "eigenvalues", eigenvalues, allowed)
    share = jnp.ones_like(values) if weights is None else weights
    share = validate.array("weights", share, f"positive numbers {values.shape}", interval=POSITIVE)
    shapes = f"shapes {values.shape} and {share.shape}"
    check(share.shape == values.shape, "eigenvalues, weights", shapes, "arrays of one length")
    share = share / jnp.sum(share)
    variance = jnp.sum(share * (values - jnp.sum(share * values)) ** 2)
    check(variance > 0.0, "eigenvalues", eigenvalues, allowed)
    order = jnp.argsort(values)
    values, share = (values / jnp.sqrt(variance))[order], share[order]
    one = jnp.ones((), values.dtype)
    law = SpectrumLaw(values=values, weights=share, rank_ratio=one, aspect_ratio=one)
    return SpectralPrior(law)
