r"""Sensing of a rectangular matrix by matrices: the bilinear family.

Equations here [theory: bilinear, Eqs. (21) to (24)]; signal S (1, L, d), inputs X (N, L, d); of a
symmetric S, L = d and X symmetric:

    forward     ⟨X_μ, S⟩/√(dL)                             (N, 1, 1)
    adjoint     Σ_μ g_μ X_μ/√(dL)                          (1, L, d)
    precision   A = α ⟨g²⟩, α = N/(dL)                      (1, 1)
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.sensing.base import AbstractMatrixSensing
from jaxsmi.sensing.blocks import Inputs, mapped, product_dtype, summed
from jaxsmi.sensing.passes import rows_combined, rows_times

__all__ = ["RectangularSensing"]


class RectangularSensing(AbstractMatrixSensing):
    """Inputs X (N, L, d) that are matrices themselves (module docstring).

    Products are in the precision of the inputs. Cost of `forward` or `adjoint`: one pass over N·L·d
    numbers.

    Args:
        inputs: Inputs (N, L, d).
        axes: Axes of the mesh that the samples are spread over. Default: none.
    """

    inputs: Inputs
    axes: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def entries(self) -> int:
        """L·d."""
        return self.inputs.shape[1] * self.inputs.shape[2]

    def forward(self, W: Array) -> Array:
        """Fields (N, 1, 1) of the signal (1, L, d)."""
        narrow = W.reshape(1, -1).astype(product_dtype(self.inputs))
        fields = lambda x: rows_times(x, narrow).astype(theory_dtype())
        flat = mapped(fields, self.inputs, as_stored=True)
        return flat[:, :, None] / jnp.sqrt(float(self.entries))

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ X_μ/√(dL) (1, L, d) of numbers (N, 1, 1)."""
        narrow = g.reshape(-1, 1).astype(product_dtype(self.inputs))
        add = lambda x, g: rows_combined(g, x)
        total = self.over_devices(summed(add, self.inputs, narrow, as_stored=True))
        return total.reshape(1, *self.inputs.shape[1:]) / jnp.sqrt(float(self.entries))
