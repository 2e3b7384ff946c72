r"""Sensing of a symmetric matrix by pairs of tokens: the attention-indexed family.

Equations here [theory: attention-indexed, Eqs. (40) to (44)]; signal √d S (1, d, d), inputs
X (N, T, d), g symmetric:

    forward     h_μ = (X_μ (√d S) X_μᵀ - I Tr √d S)/d        (N, 1, T²)
    adjoint     Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d              (1, d, d)
    precision   A = α ⟨‖g‖²⟩, α = N/d²                        (1, 1)
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.sensing.base import AbstractMatrixSensing
from jaxsmi.sensing.blocks import Inputs, mapped, product_dtype, summed

__all__ = ["SymmetricSensing"]


class SymmetricSensing(AbstractMatrixSensing):
    """Fields of a symmetric matrix (module docstring).

    Products are in the precision of the inputs, sums over blocks in float64. Memory beyond the
    inputs: batch·T·d numbers and the fields. Cost of `forward` or `adjoint`: N·T·d² operations.

    Args:
        inputs: Inputs (N, T, d).
        axes: Axes of the mesh that the samples are spread over. Default: none.
        batch: Samples worked on at once. Default 4096.
    """

    inputs: Inputs
    axes: tuple[str, ...] = eqx.field(static=True, default=())
    batch: int = eqx.field(static=True, default=4096)

    @property
    def entries(self) -> int:
        """d²."""
        return self.inputs.shape[2] ** 2

    def forward(self, W: Array) -> Array:
        """Fields (N, 1, T²) of the signal (1, d, d)."""
        _, T, d = self.inputs.shape
        narrow = W[0].astype(product_dtype(self.inputs))

        def fields(x: Array) -> Array:
            half = jnp.matmul(x, narrow, precision="highest")
            scores = jnp.matmul(half, jnp.swapaxes(x, 1, 2), precision="highest")
            return scores.astype(theory_dtype())

        h = mapped(fields, self.inputs, self.batch) - jnp.trace(W[0]) * jnp.eye(T)
        return h.reshape(len(h), 1, T * T) / d

    def adjoint(self, g: Array) -> Array:
        """Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d (1, d, d) of per-sample matrices (N, 1, T²)."""
        _, T, d = self.inputs.shape
        g = g.reshape(-1, T, T)

        def add(x: Array, g: Array) -> Array:
            weighted = jnp.einsum("nab,nbd->nad", g.astype(x.dtype), x, precision="highest")
            return jnp.matmul(x.reshape(-1, d).T, weighted.reshape(-1, d), precision="highest")

        total = summed(add, self.inputs, g, self.batch) - jnp.trace(jnp.sum(g, axis=0)) * jnp.eye(d)
        return self.over_devices(total)[None] / d
