r"""How a signal becomes fields, and back: what message passing asks of a sensing law.

With N samples of inputs X_μ, and n the number of entries that N is measured in (α = N/n), a sensing
law is a linear map and its exact transpose:

    forward     Z_μ = X_μ[signal]                                                fields (N, P, M)
    adjoint     Σ_μ X_μᵀ[g_μ]                                                    shape of the signal
    precision   A = α ⟨Σ_m g gᵀ⟩ = -α ⟨Σ_m ∂g_m/∂ω_m⟩                             (P, P)

The two forms of A agree at Bayes-optimality [theory: multi-index, Eqs. (33), (34)]. index.py:
signal W (P, D), n = D. symmetric.py: a symmetric matrix, n = d². rectangular.py: a rectangular one,
n = d L.

Inputs are read all at once where they are stored, and in blocks where they are `Regenerated`
(blocks.py). Products with bfloat16 are float32. A pass over many rows is in passes.py.
Where the samples are spread over devices each device holds a part of them, and every sum over
samples goes over the `axes` of the mesh.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.data import Regenerated
from jaxsmi.sensing.blocks import Inputs

__all__ = ["AbstractMatrixSensing", "AbstractSensing"]


class AbstractSensing(eqx.Module):
    """Fields of N samples of inputs (N, ., .), and sums over them.

    Attributes:
        inputs: The inputs of the samples on this device, an array or `Regenerated`.
        axes: Axes of the mesh that the samples are spread over; none: one device.
    """

    inputs: eqx.AbstractVar[Inputs]
    axes: eqx.AbstractVar[tuple[str, ...]]

    @property
    @abc.abstractmethod
    def entries(self) -> int:
        """What N is measured in: D, or the entries of the matrix."""

    @abc.abstractmethod
    def forward(self, W: Array) -> Array:
        """Fields (N, P, M) of a signal."""

    @abc.abstractmethod
    def adjoint(self, g: Array) -> Array:
        """The transpose of `forward`: of vectors g (N, P, M), in the shape of the signal."""

    @property
    @abc.abstractmethod
    def precisions(self) -> Mapping[str, Callable[[Array, Array], Array]]:
        """Estimates of A (P, P) from g (N, P, M) and ∂g (N, P, M, P, M), by their names."""

    def outer_precision(self, g: Array) -> Array:
        """A (P, P) = (1/n) Σ_μ Σ_m g gᵀ from g (N, P, M): positive semi-definite."""
        return self.over_devices(jnp.einsum("npm,nqm->pq", g, g)) / self.entries

    @property
    def samples(self) -> int:
        """N, on all devices."""
        return self.inputs.shape[0] * (lax.axis_size(self.axes) if self.axes else 1)

    @property
    def alpha(self) -> float:
        """N over the entries."""
        return self.samples / self.entries

    @property
    def drawn_again(self) -> bool:
        """Whether each pass draws the inputs again, which costs more than anything else."""
        return isinstance(self.inputs, Regenerated)

    def there_and_back(
        self,
        W: Array,
        of_samples: PyTree,
        answer: Callable[[Array, PyTree], tuple[Array, PyTree]],
    ) -> tuple[PyTree, Array]:
        """Fields and the transpose of what they are answered by, of one drawing of the inputs.

        Args:
            W: The signal.
            of_samples: Arrays (N, ...), what else an answer looks at.
            answer: `answer(fields, of_samples)` of a block: g (n, P, M) of its samples, and arrays
                (n, ...) to keep.

        Returns:
            What was kept, (N, ...), and `adjoint(g)`.
        """
        inputs = self.inputs
        assert isinstance(inputs, Regenerated)
        count = len(inputs.numbers)
        rows = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), of_samples)

        def block(total: Array, at: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
            k, rows = at
            drawn = lax.optimization_barrier(inputs.block(k))
            part = dataclasses.replace(self, inputs=drawn, axes=())
            g, kept = answer(part.forward(W), rows)
            return total + part.adjoint(g).astype(total.dtype), kept

        start = jnp.zeros(W.shape, theory_dtype())
        total, kept = lax.scan(block, start, (jnp.arange(count), rows))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), kept), self.over_devices(total)

    def over_devices(self, total: Array) -> Array:
        """The sum over all devices of a sum over the samples of one."""
        return lax.psum(total, self.axes) if self.axes else total

    def mean(self, values: Array) -> Array:
        """Mean over all samples of values (N, ...)."""
        return self.over_devices(jnp.sum(values, axis=0)) / self.samples


class AbstractMatrixSensing(AbstractSensing):
    """Fields of one matrix, or of several that are treated one by one.

    A is a number (of several matrices a diagonal), and g² estimates it well enough that no other
    estimate is offered.
    """

    def outer_precision(self, g: Array) -> Array:
        """A (L, L), the diagonal of (1/n) Σ_μ Σ_m g gᵀ."""
        return jnp.diag(jnp.diagonal(super().outer_precision(g)))

    @property
    def precisions(self) -> Mapping[str, Callable[[Array, Array], Array]]:
        """g gᵀ alone."""
        return {"outer": lambda g, _: self.outer_precision(g)}
