r"""How a signal becomes fields, and back: forward and adjoint, exactly transposes of each other.

Index family: signal W (P, D), inputs x (N, M, D):
    forward   Z_μ = W x_μᵀ/√D                          (N, P, M)
    adjoint   Σ_μ g_μ x_μ/√D                           (P, D)
    precision A = α ⟨Σ_m g gᵀ⟩ = -α ⟨Σ_m ∂g_m/∂ω_m⟩         (P, P), equal at Bayes-optimality (Nishimori)
Their difference has mean zero, which makes it a control variate: A = α ⟨g gᵀ - β (g gᵀ + ∂g)⟩, β regressed in [0, 1].
Measured, two-layer attention, D = 1000, α = 1.2 (docs/print.md): with g gᵀ alone C is off I - Q by up to 0.27 and perfect
recovery is not reached (an underestimate of V makes g gᵀ too large); with -∂g alone by up to 3.6, while a layer is unlearned.
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

A sample is read in blocks: all at once where inputs are stored in the precision of the products, and in blocks where they are
`Regenerated` or stored as bfloat16 (then float32 products). Where the samples are spread over devices each device holds a
part of them, and every sum over samples goes over the `axes` of the mesh.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxsmi.integrate import covariance_and_variance, quotient
from jaxsmi.types import Array, Regenerated, theory_dtype

__all__ = ["DenseSensing", "IndexSensing", "MatrixSensing", "draw_inputs", "gaussian", "mapped", "product_dtype"]

_BLOCK = 2**23  # numbers in a block of regenerated inputs: 32 MiB, and three times that while they are drawn
_LARGE = 2**27  # numbers of inputs that are drawn all at once


def gaussian(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """iid N(0, 1); bfloat16 ones are rounded from float32, whose tails are right."""
    return jax.random.normal(key, shape, jnp.float32 if dtype == jnp.bfloat16 else dtype).astype(dtype)


def draw_inputs(
    key: Array, samples: int, form: tuple[int, ...], dtype: Any, store: bool, law: Callable[..., Array] = gaussian
) -> Any:
    """Inputs (N, *form) of a law, stored, or regenerated in blocks: then N is rounded to K equal blocks, K a multiple of 8
    (so that 2, 4 or 8 devices can share them), by no more than K/2, and not at all where N has a suitable divisor."""
    if store and samples * math.prod(form) <= _LARGE:
        return law(key, (samples, *form), dtype)
    if store:
        return _drawn_in_blocks(key, samples, form, jnp.dtype(dtype), law)
    least = 8 * math.ceil(samples / 8 / max(_BLOCK // math.prod(form), 1))
    count = next((k for k in range(least, 2 * least, 8) if samples % k == 0), least)
    each = max(round(samples / count), 1)
    return Regenerated(jnp.arange(count), key, law, each, form, jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _drawn_in_blocks(key: Array, samples: int, form: tuple[int, ...], dtype: Any, law: Callable[..., Array]) -> Array:
    """Inputs (N, *form), stored; drawn block by block, since all at once takes four times their memory on a CPU."""
    each = min(max(_BLOCK // math.prod(form), 1), samples)

    def put(k: Array, inputs: Array) -> Array:
        block = law(jax.random.fold_in(key, k), (each, *form), dtype)
        return lax.dynamic_update_slice_in_dim(inputs, block, jnp.minimum(k * each, samples - each), 0)

    return lax.fori_loop(0, -(-samples // each), put, jnp.zeros((samples, *form), dtype))


def product_dtype(inputs: Any) -> Any:
    """The precision of products with the inputs: theirs, and float32 of bfloat16."""
    return jnp.dtype(jnp.float32) if inputs.dtype == jnp.bfloat16 else jnp.dtype(inputs.dtype)


def _blocks(inputs: Any, size: int | None) -> tuple[int, int, int, Callable[[Any, Any], Array]]:
    """How many whole blocks, samples in each, those left over, and how to read the first samples of block k."""
    if isinstance(inputs, Regenerated):
        return len(inputs.numbers), inputs.each, 0, lambda k, count: inputs.block(k).astype(product_dtype(inputs))
    N = inputs.shape[0]
    if size is None and inputs.dtype == jnp.bfloat16:
        size = max(_BLOCK // math.prod(inputs.shape[1:]), 1)
    each = N if size is None else min(size, N)
    if each == N:
        return 1, N, 0, lambda k, count: inputs.astype(product_dtype(inputs))
    read = lambda k, count: lax.dynamic_slice_in_dim(inputs, k * each, count).astype(product_dtype(inputs))
    return N // each, each, N % each, read


def mapped(function: Callable[[Array], Array], inputs: Any, size: int | None = None) -> Array:
    """function(block) of all blocks of samples, stacked: (N, ...)."""
    count, each, left, read = _blocks(inputs, size)
    if count == 1 and not left:
        return function(read(0, each))
    found = lax.map(lambda k: function(read(k, each)), jnp.arange(count))
    found = found.reshape(count * each, *found.shape[2:])
    return jnp.concatenate([found, function(read(count, left))]) if left else found


def summed(function: Callable[[Array, Array], Array], inputs: Any, g: Array, size: int | None = None) -> Array:
    """Σ of function(block, g of the block) over the blocks of samples, in float64."""
    count, each, left, read = _blocks(inputs, size)
    part = lambda k, n: function(read(k, n), lax.dynamic_slice_in_dim(g, k * each, n)).astype(theory_dtype())
    if count == 1 and not left:
        return part(0, each)
    total = lax.fori_loop(1, count, lambda k, total: total + part(k, each), part(0, each))
    return total + part(count, left) if left else total


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
        fields = lambda x: jnp.matmul(x.reshape(len(x), -1), narrow, precision="highest").astype(theory_dtype())
        return mapped(fields, self.inputs)[:, None, None] / jnp.sqrt(float(self.entries))

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ X_μ/√(dL) (1, L, d) of numbers (N, 1, 1)."""
        add = lambda x, g: jnp.matmul(g.astype(x.dtype), x.reshape(len(x), -1), precision="highest")
        total = self.over_devices(summed(add, self.inputs, g.reshape(-1)))
        return total.reshape(1, *self.inputs.shape[1:]) / jnp.sqrt(float(self.entries))


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
            return jnp.matmul(half, jnp.swapaxes(x, 1, 2), precision="highest").astype(theory_dtype())

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
