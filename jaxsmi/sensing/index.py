"""TODO sensing.index."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.quadrature import covariance_and_variance, quotient
from jaxsmi.sensing.base import AbstractSensing
from jaxsmi.sensing.blocks import mapped, product_dtype, summed


class IndexSensing(AbstractSensing):
    """Fields of the index family. Inputs may be float32: products are then float32 at highest precision, sums of theory
    float64. Memory beyond the inputs: O(N P M + P D). Cost of forward or adjoint: one pass over N·M·D numbers.
    """

    inputs: Any
    axes: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def dimension(self) -> int:
        """D."""
        return self.inputs.shape[2]

    @property
    def entries(self) -> int:
        """D."""
        return self.dimension

    def forward(self, W: Array) -> Array:
        """Fields (N, P, M) of the signal (P, D)."""
        narrow = W.T.astype(product_dtype(self.inputs))

        def fields(x: Array) -> Array:
            n, M, D = x.shape
            flat = jnp.matmul(x.reshape(n * M, D), narrow, precision="highest")
            return jnp.swapaxes(flat.reshape(n, M, -1), 1, 2).astype(theory_dtype())

        return mapped(fields, self.inputs) / jnp.sqrt(float(self.dimension))

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ x_μ/√D (P, D) of per-sample vectors (N, P, M)."""

        def add(x: Array, g: Array) -> Array:
            n, M, D = x.shape
            flat = jnp.swapaxes(g, 1, 2).reshape(n * M, -1).astype(x.dtype)
            return jnp.matmul(flat.T, x.reshape(n * M, D), precision="highest")

        return self.over_devices(summed(add, self.inputs, g)) / jnp.sqrt(float(self.dimension))

    def controlled_precision(self, g: Array, dg: Array) -> Array:
        """α ⟨g gᵀ - β (g gᵀ + ∂g)⟩ (P, P), its negative part (if any) cut."""
        outer = jnp.einsum("npm,nqm->npq", g, g)
        control = outer + jnp.einsum("npmqm->npq", dg)
        parts = covariance_and_variance(outer, control, axis=0, mean=lambda x, axis: self.mean(x))
        slope = jnp.clip(quotient(*parts), 0.0, 1.0)
        A = self.alpha * (self.mean(outer) - slope * self.mean(control))
        values, vectors = jnp.linalg.eigh(0.5 * (A + A.T))
        return (vectors * jnp.maximum(values, 0.0)) @ vectors.T

    def divergence_precision(self, dg: Array) -> Array:
        """-(1/D) Σ_μ Σ_m ∂g_m/∂ω_m (P, P)."""
        A = -self.over_devices(jnp.einsum("npmqm->pq", dg)) / self.dimension
        return 0.5 * (A + A.T)
