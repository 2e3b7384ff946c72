r"""How a signal becomes fields, and back: forward and adjoint, exactly transposes of each other.

Index family: signal W (P, D), inputs x (N, M, D):
    forward   Z_μ = W x_μᵀ/√D                          (N, P, M)
    adjoint   Σ_μ g_μ x_μ/√D                           (P, D)
    precision A = α ⟨Σ_m g gᵀ⟩ = -α ⟨Σ_m ∂g_m/∂ω_m⟩         (P, P), equal at Bayes-optimality (Nishimori)
Their difference has mean zero, which makes it a control variate: A = α ⟨g gᵀ - β (g gᵀ + ∂g)⟩, β regressed in [0, 1].
Measured, two-layer attention, D = 1000, α = 1.2 (docs/print.md): with g gᵀ alone C is off I - Q by up to 0.27 and perfect
recovery is not reached (an underestimate of V makes g gᵀ too large); with -∂g alone by up to 3.6, while a layer is unlearned.
β goes to 0 in the second case and to 1 in the first.
Source: [TCDKZ25], [theory: multi-index, Eqs. (1), (33) to (36)].

Attention-indexed family [theory: attention-indexed, Eqs. (40) to (44)]: signal √d S (1, d, d), inputs X (N, T, d), g symmetric:
    forward   h_μ = (X_μ (√d S) X_μᵀ - I Tr √d S)/d        (N, 1, T²)
    adjoint   Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d            (1, d, d)
    precision A = α ⟨‖g‖²⟩, α = N/d²                      (1, 1)

Bilinear family [theory: bilinear, Eqs. (21) to (24)]: signal S (1, L, d), inputs X (N, L, d); of a symmetric S, L = d and X
symmetric:
    forward   ⟨X_μ, S⟩/√(dL)                             (N, 1, 1)
    adjoint   Σ_μ g_μ X_μ/√(dL)                          (1, L, d)
    precision A = α ⟨g²⟩, α = N/(dL)                      (1, 1)

A sample is read in blocks: all at once where inputs are stored in the precision of the products, and in blocks where they are
`Regenerated` or stored as bfloat16 (then float32 products). Where the samples are spread over devices each device holds a
part of them, and every sum over samples goes over the `axes` of the mesh.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


class AbstractSensing(eqx.Module):
    """Fields of N samples of inputs (N, ., .), and sums over them; spread over the devices along `axes` of a mesh, if named."""

    inputs: eqx.AbstractVar[Any]
    axes: eqx.AbstractVar[tuple[str, ...]]

    @property
    @abc.abstractmethod
    def entries(self) -> int:
        """What N is measured in: D, or the entries of the matrix."""

    @property
    def samples(self) -> int:
        """N, on all devices."""
        return self.inputs.shape[0] * (lax.axis_size(self.axes) if self.axes else 1)

    @property
    def alpha(self) -> float:
        """N over the entries."""
        return self.samples / self.entries

    def over_devices(self, total: Array) -> Array:
        """Σ of a sum over the samples of each device."""
        return lax.psum(total, self.axes) if self.axes else total

    def mean(self, values: Array) -> Array:
        """Mean over all samples of values (N, ...)."""
        return self.over_devices(jnp.sum(values, axis=0)) / self.samples

    def outer_precision(self, g: Array) -> Array:
        """(1/entries) Σ_μ Σ_m g gᵀ (P, P): positive semi-definite."""
        return self.over_devices(jnp.einsum("npm,nqm->pq", g, g)) / self.entries
