"""TODO sensing.rectangular."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.sensing.base import AbstractSensing
from jaxsmi.sensing.blocks import mapped, product_dtype, summed


class DenseSensing(AbstractSensing):
    """Inputs X (N, L, d) that are matrices themselves. Products in the precision of the inputs; one pass over N·L·d numbers."""

    inputs: Any
    axes: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def entries(self) -> int:
        """L·d."""
        return self.inputs.shape[1] * self.inputs.shape[2]

    def forward(self, W: Array) -> Array:
        """Fields (N, 1, 1) of the signal (1, L, d)."""
        narrow = W.reshape(-1).astype(product_dtype(self.inputs))
        fields = lambda x: jnp.matmul(x.reshape(len(x), -1), narrow, precision="highest").astype(
            theory_dtype()
        )
        return mapped(fields, self.inputs)[:, None, None] / jnp.sqrt(float(self.entries))

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ X_μ/√(dL) (1, L, d) of numbers (N, 1, 1)."""
        add = lambda x, g: jnp.matmul(g.astype(x.dtype), x.reshape(len(x), -1), precision="highest")
        total = self.over_devices(summed(add, self.inputs, g.reshape(-1)))
        return total.reshape(1, *self.inputs.shape[1:]) / jnp.sqrt(float(self.entries))
