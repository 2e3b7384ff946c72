r"""The interfaces of a design: what data a model takes, and the linear map from signal to fields.

With N samples of inputs X_μ and n entries of the signal (α = N/n), the operator of a data set is a
linear map and its exact transpose:

    forward     Z_μ = X_μ[signal]                                                fields (N, P, M)
    adjoint     Σ_μ X_μᵀ[g_μ]                                                    shape of the signal
    precision   A = α ⟨Σ_m g gᵀ⟩ = -α ⟨Σ_m ∂g_m/∂ω_m⟩                             (P, P)

The two forms of A agree at Bayes-optimality [theory: multi-index, Eqs. (33), (34)]. Products with
bfloat16 are float32. Where the samples are spread over devices each device holds a part of them,
and every sum over samples goes over the `axes` of the mesh.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.data import Regenerated
from jaxsmi.core.validate import check
from jaxsmi.design.blocks import LAWS, Inputs, draw_inputs
from jaxsmi.design.tokens import Directions

__all__ = [
    "AbstractDesign",
    "AbstractMatrixDesign",
    "AbstractMatrixOperator",
    "AbstractOperator",
    "MessagePassing",
    "Shapes",
]


class Shapes(NamedTuple):
    """Shapes of the signal and of its fields (N, P, M)."""

    signal: tuple[int, ...]
    fields: tuple[int, ...]


class MessagePassing(NamedTuple):
    """Settings of message passing for a family.

    Attributes:
        precisions: Estimates of the precision A, the default first.
        dampings: Tried one after the other while a run diverges.
        calibrated: Precision and fields can be calibrated by the data.
    """

    precisions: tuple[str, ...]
    dampings: tuple[float, ...]
    calibrated: bool


class AbstractDesign(eqx.Module):
    """Shapes and sizes of the data of a model, its inputs and its teachers.

    α = N/`entries`. Class attributes: `rows`, the signal is rows W (P, D) seen through W x/√D;
    `least_dimension` of data.
    """

    rows = False
    least_dimension = 1

    @property
    def laws(self) -> Sequence[str]:
        """Names of the laws of the entries of inputs; with more than one they are iid."""
        return tuple(LAWS)

    @abc.abstractmethod
    def entries(self, dimension: int) -> int:
        """n, the number that sample sizes are measured in."""

    @abc.abstractmethod
    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input."""

    @abc.abstractmethod
    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """Shapes of signal and fields in message passing, from that of the inputs (N, ., .)."""

    @abc.abstractmethod
    def check_inputs(self, inputs: Inputs) -> None:
        """Raise a ValueError for inputs of another shape."""

    @abc.abstractmethod
    def operator(self, inputs: Inputs) -> AbstractOperator:
        """The linear map from signal to fields of some inputs."""

    @property
    @abc.abstractmethod
    def message_passing(self) -> MessagePassing:
        """Settings of message passing."""

    def draw_inputs(
        self,
        key: PRNGKeyArray,
        samples: int,
        shape: tuple[int, int],
        dtype: DTypeLike,
        *,
        store: bool = True,
        law: str = "gaussian",
    ) -> Inputs:
        """Inputs (N, M, D) of iid entries of one of `laws`, stored or drawn whenever read; `shape`
        is that of one input."""
        return draw_inputs(key, samples, shape, dtype, store, LAWS[law])

    @abc.abstractmethod
    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """A teacher by the prior."""

    @abc.abstractmethod
    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """Raise a ValueError for a teacher that cannot label inputs of this dimension."""

    def directions(
        self, key: PRNGKeyArray | None, teacher: Array, vectors: ArrayLike | None
    ) -> Directions | None:
        """The fixed directions around which inputs lie: `vectors`, or drawn; None: inputs are
        centred."""
        del key, teacher
        allowed = "none: inputs of this model have no fixed directions (inputs=smi.Tokens(..))"
        check(vectors is None, "directions", vectors, allowed)
        return None

    def warn_of_rounding(self, dimension: int, samples: int, alpha: float) -> None:
        """Warn where rounding to whole numbers moves a ratio of the model noticeably."""
        del dimension, samples, alpha


class AbstractMatrixDesign(AbstractDesign):
    """The signal is matrices (L, a, b) of entries O(1), made of factors that students train."""

    least_dimension = 2

    @abc.abstractmethod
    def factor_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the factors."""

    @abc.abstractmethod
    def factor_fields(self, factors: Array, inputs: Inputs) -> Array:
        """Fields of inputs for factors."""

    def teacher_fields(self, teacher: Array, inputs: Inputs) -> Array:
        """Fields of inputs for a teacher."""
        return self.factor_fields(teacher, inputs)

    @abc.abstractmethod
    def signal(self, weights: Array, length: int | None = None) -> Array:
        """The signal (L, a, b) of factors, or itself; `length`: a, where only the data tell it."""

    @abc.abstractmethod
    def teacher_signal(self, teacher: Array) -> Array:
        """The signal (L, a, b) of a teacher."""

    @abc.abstractmethod
    def unit(self, dimension: int) -> float:
        """The signal over S."""


class AbstractOperator(eqx.Module):
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
        """n, the number of entries that N is measured in."""

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
        return self.sum_devices(jnp.einsum("npm,nqm->pq", g, g)) / self.entries

    @property
    def samples(self) -> int:
        """N, on all devices."""
        return self.inputs.shape[0] * (lax.axis_size(self.axes) if self.axes else 1)

    @property
    def alpha(self) -> float:
        """N/n."""
        return self.samples / self.entries

    def forward_adjoint(
        self,
        W: Array,
        rows: PyTree,
        response: Callable[[Array, PyTree], tuple[Array, PyTree]],
    ) -> tuple[PyTree, Array]:
        """Fields, a response to them and its adjoint, of one drawing of regenerated inputs.

        Args:
            W: The signal.
            rows: Arrays (N, ...), further arguments of `response`.
            response: `response(fields, rows)` of a block: g (n, P, M), and arrays (n, ...).

        Returns:
            The arrays of `response` (N, ...), and `adjoint(g)`.
        """
        inputs = self.inputs
        assert isinstance(inputs, Regenerated)
        count = len(inputs.numbers)
        rows = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), rows)

        def block(total: Array, at: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
            k, rows = at
            # without the barrier XLA would draw the block once for each product
            drawn = lax.optimization_barrier(inputs.block(k))
            part = dataclasses.replace(self, inputs=drawn, axes=())
            g, results = response(part.forward(W), rows)
            return total + part.adjoint(g).astype(total.dtype), results

        start = jnp.zeros(W.shape, theory_dtype())
        total, results = lax.scan(block, start, (jnp.arange(count), rows))
        joined = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)
        return joined, self.sum_devices(total)

    def sum_devices(self, total: Array) -> Array:
        """The sum over all devices of a sum over the samples of one."""
        return lax.psum(total, self.axes) if self.axes else total

    def mean(self, values: Array) -> Array:
        """Mean over all samples of values (N, ...)."""
        return self.sum_devices(jnp.sum(values, axis=0)) / self.samples


class AbstractMatrixOperator(AbstractOperator):
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
