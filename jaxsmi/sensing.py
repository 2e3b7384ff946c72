r"""How a signal becomes fields, and back: forward and adjoint, exactly transposes of each other.

Index family: signal W (P, D), inputs x (N, M, D):
    forward   Z_μ = W x_μᵀ/√D                          (N, P, M)
    adjoint   Σ_μ g_μ x_μ/√D                           (P, D)
    precision A = α ⟨Σ_m g gᵀ⟩ = -α ⟨Σ_m ∂g_m/∂ω_m⟩         (P, P), equal at Bayes-optimality (Nishimori)
Their difference has mean zero, which makes it a control variate: A = α ⟨g gᵀ - β (g gᵀ + ∂g)⟩, β regressed in [0, 1].
Measured, two-layer attention, D = 1000: with g gᵀ alone V feeds back on itself near perfect recovery (an underestimate makes
g gᵀ too large) and collapses before the error does; with -∂g alone V leaves its true value while a layer is still unlearned.
β goes to 0 in the second case and to 1 in the first.
Source: [TCDKZ25], spec section 4.

Attention-indexed family: signal √d S (1, d, d), inputs X (N, T, d), g symmetric [spec/2, section 4]:
    forward   h_μ = (X_μ (√d S) X_μᵀ - I Tr √d S)/d        (N, 1, T²)
    adjoint   Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d            (1, d, d)
    precision A = α ⟨‖g‖²⟩, α = N/d²                      (1, 1)

Bilinear family: signal S (1, L, d), inputs X (N, L, d) [spec/3, section 3]; of a symmetric S, L = d and X symmetric:
    forward   ⟨X_μ, S⟩/√(dL)                             (N, 1, 1)
    adjoint   Σ_μ g_μ X_μ/√(dL)                          (1, L, d)
    precision A = α ⟨g²⟩, α = N/(dL)                      (1, 1)
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jax import lax

from jaxsmi.integrate import covariance_and_variance, quotient
from jaxsmi.types import Array, theory_dtype


class IndexSensing(eqx.Module):
    """Fields of the index family. Inputs may be float32: products are then float32 at highest precision, sums of theory
    float64. Memory beyond the inputs: O(N P M + P D). Cost of forward or adjoint: one pass over N·M·D numbers.
    """

    inputs: Array

    @property
    def samples(self) -> int:
        """N."""
        return self.inputs.shape[0]

    @property
    def dimension(self) -> int:
        """D."""
        return self.inputs.shape[2]

    @property
    def alpha(self) -> float:
        """N/D."""
        return self.samples / self.dimension

    def forward(self, W: Array) -> Array:
        """Fields (N, P, M) of the signal (P, D)."""
        N, M, D = self.inputs.shape
        flat = jnp.matmul(self.inputs.reshape(N * M, D), W.T.astype(self.inputs.dtype), precision="highest")
        return jnp.swapaxes(flat.reshape(N, M, -1), 1, 2).astype(theory_dtype()) / jnp.sqrt(float(D))

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ x_μ/√D (P, D) of per-sample vectors (N, P, M)."""
        N, M, D = self.inputs.shape
        flat = jnp.swapaxes(g, 1, 2).reshape(N * M, -1).astype(self.inputs.dtype)
        return jnp.matmul(flat.T, self.inputs.reshape(N * M, D), precision="highest").astype(theory_dtype()) / jnp.sqrt(
            float(D)
        )

    def outer_precision(self, g: Array) -> Array:
        """(1/D) Σ_μ Σ_m g gᵀ (P, P): positive semi-definite."""
        return jnp.einsum("npm,nqm->pq", g, g) / self.dimension

    def controlled_precision(self, g: Array, dg: Array) -> Array:
        """α ⟨g gᵀ - β (g gᵀ + ∂g)⟩ (P, P), its negative part (if any) cut."""
        outer = jnp.einsum("npm,nqm->npq", g, g)
        control = outer + jnp.einsum("npmqm->npq", dg)
        slope = jnp.clip(quotient(*covariance_and_variance(outer, control, axis=0)), 0.0, 1.0)
        A = self.alpha * (jnp.mean(outer, axis=0) - slope * jnp.mean(control, axis=0))
        values, vectors = jnp.linalg.eigh(0.5 * (A + A.T))
        return (vectors * jnp.maximum(values, 0.0)) @ vectors.T

    def divergence_precision(self, dg: Array) -> Array:
        """-(1/D) Σ_μ Σ_m ∂g_m/∂ω_m (P, P)."""
        A = -jnp.einsum("npmqm->pq", dg) / self.dimension
        return 0.5 * (A + A.T)


class AbstractMatrixSensing(eqx.Module):
    """Fields that are linear in one matrix: N samples of inputs (N, ., d)."""

    inputs: eqx.AbstractVar[Array]

    @property
    @abc.abstractmethod
    def entries(self) -> int:
        """Of the matrix."""

    @property
    def samples(self) -> int:
        """N."""
        return self.inputs.shape[0]

    @property
    def alpha(self) -> float:
        """N over the entries of the matrix."""
        return self.samples / self.entries

    def outer_precision(self, g: Array) -> Array:
        """α ⟨‖g‖²⟩ (1, 1)."""
        return jnp.einsum("npm,nqm->pq", g, g) / self.entries


class DenseSensing(AbstractMatrixSensing):
    """Inputs X (N, L, d) that are matrices themselves. Products in the precision of the inputs; one pass over N·L·d numbers."""

    inputs: Array

    @property
    def entries(self) -> int:
        """L·d."""
        return self.inputs.shape[1] * self.inputs.shape[2]

    def forward(self, W: Array) -> Array:
        """Fields (N, 1, 1) of the signal (1, L, d)."""
        flat = self.inputs.reshape(self.samples, -1)
        fields = jnp.matmul(flat, W.reshape(-1).astype(flat.dtype), precision="highest").astype(theory_dtype())
        return fields[:, None, None] / jnp.sqrt(float(self.entries))

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ X_μ/√(dL) (1, L, d) of numbers (N, 1, 1)."""
        flat = self.inputs.reshape(self.samples, -1)
        total = jnp.matmul(g.reshape(-1).astype(flat.dtype), flat, precision="highest").astype(theory_dtype())
        return total.reshape(1, *self.inputs.shape[1:]) / jnp.sqrt(float(self.entries))


class MatrixSensing(AbstractMatrixSensing):
    """Fields of a symmetric matrix. `batch` samples at a time: beyond the inputs, batch·T·d numbers and the fields.

    Products are in the precision of the inputs, sums over batches in float64. Cost of forward or adjoint: N·T·d² operations.
    """

    inputs: Array
    batch: int = eqx.field(static=True, default=4096)

    @property
    def entries(self) -> int:
        """d²."""
        return self.inputs.shape[2] ** 2

    def forward(self, W: Array) -> Array:
        """Fields (N, 1, T²) of the signal (1, d, d)."""
        _, T, d = self.inputs.shape
        matrix = W[0].astype(self.inputs.dtype)

        def one(x: Array) -> Array:
            return jnp.matmul(jnp.matmul(x, matrix, precision="highest"), x.T, precision="highest").astype(theory_dtype())

        h = lax.map(one, self.inputs, batch_size=min(self.batch, self.samples)) - jnp.trace(W[0]) * jnp.eye(T)
        return h.reshape(self.samples, 1, T * T) / d

    def adjoint(self, g: Array) -> Array:
        """Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d (1, d, d) of per-sample matrices (N, 1, T²)."""
        N, T, d = self.inputs.shape
        g = g.reshape(N, T, T)
        narrow = g.astype(self.inputs.dtype)

        def add(total: Array, first: Array | int, count: int) -> Array:
            x = lax.dynamic_slice_in_dim(self.inputs, first, count)
            weighted = jnp.einsum("nab,nbd->nad", lax.dynamic_slice_in_dim(narrow, first, count), x, precision="highest")
            part = jnp.matmul(x.reshape(count * T, d).T, weighted.reshape(count * T, d), precision="highest")
            return total + part.astype(theory_dtype())

        size = min(self.batch, N)
        total = jnp.zeros((d, d), theory_dtype())
        total = lax.fori_loop(0, N // size, lambda k, total: add(total, k * size, size), total)
        if N % size:
            total = add(total, N - N % size, N % size)
        total = total - jnp.trace(jnp.sum(g, axis=0)) * jnp.eye(d)
        return total[None] / d
