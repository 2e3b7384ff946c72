"""TODO sensing.symmetric."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.sensing.base import AbstractSensing
from jaxsmi.sensing.blocks import mapped, product_dtype, summed


class MatrixSensing(AbstractSensing):
    """Fields of a symmetric matrix. `batch` samples at a time: beyond the inputs, batch·T·d numbers and the fields.

    Products are in the precision of the inputs, sums over batches in float64. Cost of forward or adjoint: N·T·d² operations.
    """

    inputs: Any
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
            return jnp.matmul(half, jnp.swapaxes(x, 1, 2), precision="highest").astype(
                theory_dtype()
            )

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
