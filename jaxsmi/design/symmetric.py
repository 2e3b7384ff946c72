r"""Design of attention-indexed models: symmetric matrices seen by pairs of tokens.

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
from jaxsmi.core.validate import check
from jaxsmi.design.base import AbstractDesign, AbstractOperator, MessagePassing, Shapes
from jaxsmi.design.blocks import Inputs, mapped, product_dtype, summed


class SymmetricDesign(AbstractDesign):
    """L symmetric matrices S_l (d, d), seen by T tokens: α = N/d².

    Args:
        message_passing: Its settings.
        tokens: T.
        layers: L.
    """

    message_passing: MessagePassing = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    # theory is of a spectrum, which one number has not
    least_dimension = 2

    def entries(self, dimension: int) -> int:
        """d²."""
        return dimension**2

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(T, d)."""
        return (self.tokens, dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(L, d, d) and (n, L, T²)."""
        return Shapes((self.layers, inputs[2], inputs[2]), (inputs[0], self.layers, self.tokens**2))

    def check_inputs(self, inputs: Inputs) -> None:
        """T tokens a sample, of dimension two or more."""
        allowed = f"(n, {self.tokens}, d): T tokens a sample"
        check(inputs.shape[1] == self.tokens, "data.inputs", inputs, allowed)
        check(inputs.shape[2] >= 2, "data.inputs", inputs, "a dimension d >= 2")

    # a student's scores go through its factors (models/factors.py), but an estimate of message
    # passing has none: two products
    def operator(self, inputs: Inputs) -> SymmetricOperator:
        """√d S -> scores."""
        return SymmetricOperator(inputs)


class SymmetricOperator(AbstractOperator):
    """Fields of a symmetric matrix (module docstring).

    Products are in the precision of the inputs, sums over blocks in float64. Memory beyond the
    inputs: batch·T·d numbers and the fields. Cost of `forward` or `adjoint`: N·T·d² operations.

    Args:
        inputs: Inputs (N, T, d).
        axes: Axes of the mesh that the samples are spread over. Default: none.
        batch: Samples worked on at once. Default 4096.
    """

    batch: int = eqx.field(static=True, default=4096)  # empirical

    @property
    def entries(self) -> int:
        """d²."""
        return self.inputs.shape[2] ** 2

    def outer_precision(self, g: Array) -> Array:
        """A (L, L), the diagonal of (1/n) Σ_μ Σ_m g gᵀ: matrices are treated one by one."""
        return jnp.diag(jnp.diagonal(super().outer_precision(g)))

    def forward(self, W: Array) -> Array:
        """Fields (N, L, T²) of the signals (L, d, d)."""
        _, T, d = self.inputs.shape
        narrow = W.astype(product_dtype(self.inputs))

        def fields(x: Array) -> Array:
            x = x[:, None]
            half = jnp.matmul(x, narrow, precision="highest")
            scores = jnp.matmul(half, jnp.swapaxes(x, 2, 3), precision="highest")
            return scores.astype(theory_dtype())

        # off the scores, not off the inputs: E x xᵀ = I shifts the diagonal by Tr S, which is O(d)
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
        return self.sum_devices(total) / d
