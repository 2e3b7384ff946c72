r"""Sensing of symmetric matrices by pairs of tokens: the attention-indexed family.

Equations here [theory: attention-indexed, Eqs. (40) to (44), (56)]; L signals √d S_l (L, d, d),
inputs X (N, T, d), g symmetric:

    forward     h_μ = (X_μ (√d S_l) X_μᵀ - I Tr √d S_l)/d     (N, L, T²)
    adjoint     Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d               (L, d, d)
    precision   A_l = α ⟨‖g_l‖²⟩, A_lk = 0, α = N/d²           (L, L)
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
        """Fields (N, L, T²) of the signals (L, d, d)."""
        _, T, d = self.inputs.shape
        narrow = W.astype(product_dtype(self.inputs))

        def fields(x: Array) -> Array:
            x = x[:, None]
            half = jnp.matmul(x, narrow, precision="highest")
            scores = jnp.matmul(half, jnp.swapaxes(x, 2, 3), precision="highest")
            return scores.astype(theory_dtype())

        traces = jnp.trace(W, axis1=1, axis2=2)
        h = mapped(fields, self.inputs, self.batch) - traces[:, None, None] * jnp.eye(T)
        return h.reshape(len(h), len(W), T * T) / d

    def adjoint(self, g: Array) -> Array:
        """Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d (L, d, d) of per-sample matrices (N, L, T²)."""
        _, T, d = self.inputs.shape
        g = g.reshape(len(g), -1, T, T)

        def add(x: Array, g: Array) -> Array:
            weighted = jnp.einsum("nlab,nbd->lnad", g.astype(x.dtype), x, precision="highest")
            weighted = weighted.reshape(len(weighted), -1, d)
            return jnp.matmul(x.reshape(-1, d).T, weighted, precision="highest")

        traces = jnp.trace(jnp.sum(g, axis=0), axis1=1, axis2=2)
        total = summed(add, self.inputs, g, self.batch) - traces[:, None, None] * jnp.eye(d)
        return self.over_devices(total) / d
