r"""Priors on matrices that are invariant under rotations: known by their spectrum.

Equations here [spec/2, sections 1.1, 2.2, 3.6 and 6], S = W Wᵀ/√(r d), W (d, r) iid N(0, 1), ρ = r/d, seen with precision q̂ as
R = S + q̂^{-1/2} Z:

    (1/d) E Tr S = √ρ,    Q_0 = (1/d) E Tr S² = 1 + ρ       ((r + d + 1)/d at finite d),
    q = F(q̂) = Q_0 - V(q̂),   V(q̂): the error of the shrunk matrix (random_matrix/symmetric.py),   F(0) = ρ: the trace is known
    V q̂ → D(ρ) = 2ρ - ρ² (ρ <= 1), 1 (above), for q̂ → ∞: d² D/2 numbers make a symmetric positive matrix of rank r
    I(q̂): mutual information per d², dI/dq̂ = V/4
    small width, q̂ = tρ, ρ → 0:  F = max(1 - 1/t, 0)²       (print has 1 - t: only 1 - 1/t agrees with F, spec/2 section 3.6)
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxsmi.random_matrix import mutual_information, shrinkage_error, spectrum
from jaxsmi.types import Array, check, theory_dtype

__all__ = ["WishartPrior"]


class WishartPrior(eqx.Module):
    """S = W Wᵀ/√(r d), W (d, r) iid N(0, 1), at fixed width ratio ρ = r/d.

    Arguments: `rank_ratio` ρ > 0. Raises: ValueError for a ρ that is not finite and positive.
    Example:
    >>> import jax
    >>> jax.config.update("jax_enable_x64", True)
    >>> round(float(WishartPrior(0.5).overlap(1.0)), 6)
    1.103051
    """

    rank_ratio: Array

    def __init__(self, rank_ratio: Any):
        rho = jnp.asarray(rank_ratio, theory_dtype())
        check(rho.ndim == 0 and jnp.isfinite(rho) & (rho > 0), "rank_ratio", rank_ratio, "a finite number > 0")
        self.rank_ratio = rho

    def sample(self, key: Array, dimension: int) -> Array:
        """Draw W (d, r), r = round(ρ d), at least one."""
        check(dimension >= 2, "dimension", dimension, "an integer d >= 2")
        return jax.random.normal(key, (dimension, self.width(dimension)), theory_dtype())

    def width(self, dimension: int) -> int:
        """r = round(ρ d), at least one."""
        return max(round(float(self.rank_ratio) * dimension), 1)

    @staticmethod
    def matrix(W: Array) -> Array:
        """S (d, d) = W Wᵀ/√(r d)."""
        d, r = W.shape
        return W @ W.T / jnp.sqrt(float(r * d))

    @property
    def norm(self) -> Array:
        """Q_0 = 1 + ρ."""
        return 1.0 + self.rank_ratio

    def second_moment(self, indices: int = 1) -> Array:
        """Q_0 as a matrix (1, 1)."""
        return self.norm * jnp.ones((indices, indices), theory_dtype())

    @property
    def degrees_of_freedom(self) -> Array:
        """D(ρ): twice the number of free entries of S over d²."""
        rho = self.rank_ratio
        return jnp.where(rho < 1.0, 2.0 * rho - rho**2, 1.0)

    def mmse(self, qhat: Any) -> Array:
        """V(q̂); 1 at q̂ = 0."""
        return shrinkage_error(self.rank_ratio, qhat)

    def overlap(self, qhat: Any) -> Array:
        """q = F(q̂) = 1 + ρ - V(q̂)."""
        return self.norm - self.mmse(qhat)

    def mutual_information(self, qhat: Any) -> Array:
        """I(q̂) per d²."""
        return mutual_information(self.rank_ratio, qhat)

    def start(self, key: Array, shape: tuple[int, ...], size: Array) -> tuple[Array, Array]:
        """Where message passing begins: the mean of √d S (1, d, d) plus a little symmetric noise, and V = 1."""
        noise = jax.random.normal(key, shape, theory_dtype())
        mean = jnp.sqrt(self.rank_ratio * shape[-1]) * jnp.eye(shape[-1])
        return mean + size * 0.5 * (noise + jnp.swapaxes(noise, 1, 2)), self.mmse(0.0) * jnp.ones((1, 1))

    def side_information(self, key: Array, signal: Array, strength: Any) -> tuple[Array, Array]:
        """(A, b) of √λ √d S + √(1-λ) Z, Z symmetric with entries of variance one (two on the diagonal)."""
        noise = jax.random.normal(key, signal.shape, theory_dtype())
        noise = jnp.sqrt(0.5) * (noise + jnp.swapaxes(noise, 1, 2))
        seen = jnp.sqrt(strength) * signal + jnp.sqrt(1.0 - strength) * noise
        return strength / (1.0 - strength) * jnp.ones((1, 1)), jnp.sqrt(strength) / (1.0 - strength) * seen

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Mean of √d S (1, d, d) and V (1, 1) from b = A √d S + A^{1/2} Z: the engine's side of `denoise`."""
        precision = jnp.maximum(A[0, 0], 1e-12)
        mean, V = self._shrunk(b[0] / (precision * jnp.sqrt(float(b.shape[-1]))), precision)
        return jnp.sqrt(float(b.shape[-1])) * mean[None], V * jnp.ones((1, 1))

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
        return self._shrunk(R, qhat)

    def _shrunk(self, R: Array, qhat: Any) -> tuple[Array, Array]:
        law = spectrum(self.rank_ratio, 1.0 / jnp.asarray(qhat, theory_dtype()))
        values, vectors = jnp.linalg.eigh(0.5 * (R + R.T))
        return (vectors * law.shrink(values)) @ vectors.T, law.error
