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
import math
from collections.abc import Callable, Mapping
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
from jaxsmi.design.blocks import LAWS, Inputs, Law, draw_inputs
from jaxsmi.design.tokens import Directions


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
    """Shapes and sizes of the data of a model, and its inputs.

    α = N/`entries`. Class attributes: `rows`, the signal is rows W (P, D) seen through W x/√D;
    `least_dimension` of data.
    """

    message_passing: eqx.AbstractVar[MessagePassing]
    # not annotated: they are no fields, and need no place in constructors
    rows = False
    least_dimension = 1

    @property
    def laws(self) -> Mapping[str, Law]:
        """Laws of the entries of inputs, by their names; with more than one they are iid."""
        return LAWS

    def entries(self, dimension: int) -> int:
        """n, the number that sample sizes are measured in: of a row, or a matrix, of the signal."""
        return math.prod(self.shapes((1, *self.input_shape(dimension))).signal[1:])

    @abc.abstractmethod
    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input."""

    @abc.abstractmethod
    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """Shapes of signal and fields in message passing, from that of the inputs (N, ., .)."""

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise a ValueError for inputs of another shape."""
        size = inputs.shape[2]
        rows = self.input_shape(size)[0]
        allowed = f"(N, {rows}, D) with D >= {self.least_dimension}"
        fits = inputs.shape[1] == rows and size >= self.least_dimension
        check(fits, "data.inputs", inputs, allowed)

    @abc.abstractmethod
    def operator(self, inputs: Inputs) -> AbstractOperator:
        """The linear map from signal to fields of some inputs."""

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
        return draw_inputs(key, samples, shape, dtype, store, self.laws[law])

    def directions(
        self, key: PRNGKeyArray | None, teacher: Array, vectors: ArrayLike | None
    ) -> Directions | None:
        """The fixed directions around which inputs lie: `vectors`, or drawn; None: inputs are
        centred."""
        del key, teacher, vectors
        return None

    def check_directions(self, vectors: ArrayLike | None) -> None:
        """Raise a ValueError for vectors where inputs have no fixed directions."""
        allowed = "None: inputs of this model have no fixed directions (inputs=smi.Tokens(..))"
        check(vectors is None, "directions", vectors, allowed)

    def warn_of_rounding(self, dimension: int, samples: int, alpha: float) -> None:
        """Warn where rounding to whole numbers moves a ratio of the model noticeably."""
        # only designs with several ratios round more than one number
        del dimension, samples, alpha


class AbstractOperator(eqx.Module):
    """Fields of N samples of inputs (N, ., .), and sums over them.

    Attributes:
        inputs: The inputs of the samples on this device, an array or `Regenerated`.
        axes: Axes of the mesh that the samples are spread over; none: one device.
    """

    inputs: Inputs
    axes: tuple[str, ...] = eqx.field(static=True, default=())

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
    def precisions(self) -> Mapping[str, Callable[[Array, Array], Array]]:
        """Estimates of A (P, P) from g (N, P, M) and ∂g (N, P, M, P, M), by their names."""
        # of matrices g gᵀ is a mean over so many samples that no other estimate is needed
        return {"outer": lambda g, _: self.outer_precision(g)}

    def outer_precision(self, g: Array) -> Array:
        """A (P, P) = (1/n) Σ_μ Σ_m g gᵀ from g (N, P, M): positive semi-definite."""
        # positive semi-definite by construction, as the mean of -∂g is only in expectation
        return self.sum_devices(jnp.einsum("npm,nqm->pq", g, g)) / self.entries

    @property
    def samples(self) -> int:
        """N, on all devices."""
        # inside shard_map a device sees its own part of the samples
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
        # regenerated inputs come in equal blocks, so that nothing is left over
        rows = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), rows)

        def block(total: Array, at: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
            k, rows = at
            # without the barrier XLA would draw the block once for each product
            drawn = lax.optimization_barrier(inputs.block(k))
            part = dataclasses.replace(self, inputs=drawn, axes=())
            g, results = response(part.forward(W), rows)
            return total + part.adjoint(g).astype(total.dtype), results

        # products of a block may be float32, but their errors would add up over many blocks
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
