"""A design: the shapes and laws of the data of a model, and the linear map from signal to fields.

With N samples of inputs X_μ and n entries of the signal (α = N/n), the operator of a data set is a
linear map and its exact transpose:

    forward     Z_μ = X_μ[signal]                                                fields (N, P, M)
    adjoint     Σ_μ X_μᵀ[g_μ]                                                    shape of the signal
    precision   A = α ⟨Σ_m g gᵀ⟩ = -α ⟨Σ_m ∂g_m/∂ω_m⟩                             (P, P)

The two forms of A agree at Bayes-optimality [theory: multi-index, Eqs. (37), (38)]. Products with
bfloat16 are float32. Where the samples are spread over devices each device holds a part of them,
and every sum over samples goes over the `axes` of the mesh.

There are three designs: rows W (P, D) of an index model, one rectangular matrix S (L, d), and L
symmetric matrices, each with its operator [theory: multi-index, Eqs. (1), (37) to (40); bilinear,
Eqs. (26) to (29); attention-indexed, Eqs. (43) to (47)]
"""

from __future__ import annotations

import abc
import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, concrete, symmetric, theory_dtype
from jaxsmi.core.data import Regenerated
from jaxsmi.core.validate import check
from jaxsmi.design.products import (
    LAWS,
    MAX_BLOCK_SIZE,
    Inputs,
    Law,
    back_project,
    gaussian,
    mapped,
    product_dtype,
    project,
    summed,
)
from jaxsmi.design.tokens import Directions, Tokens
from jaxsmi.numerics.linear_algebra import conjugation, goe, positive_part
from jaxsmi.numerics.quadrature import covariance_and_variance, quotient
from jaxsmi.priors.iid import AbstractIidPrior
from jaxsmi.priors.spectral import SpectralPrior


class Shapes(NamedTuple):
    """Shapes of the signal and of its fields (N, P, M)."""

    signal: tuple[int, ...]
    fields: tuple[int, ...]


class MessagePassing(NamedTuple):
    """Settings of message passing for a family.

    Attributes:
        precisions: Estimates of the precision A, the default first.
        dampings: Dampings that are tried one after the other while a run diverges.
        calibrated: Whether precision and fields can be calibrated by the data.
    """

    precisions: tuple[str, ...]
    dampings: tuple[float, ...]
    calibrated: bool


class AbstractDesign(eqx.Module):
    """Shapes and sizes of the data of a model, and its inputs.

    α = N/`entries`. Class attributes: `has_rows`, whether the signal is rows W (P, D) seen through
    W x/√D; `least_dimension`, the smallest dimension of data.
    """

    message_passing: MessagePassing
    # not annotated: class attributes, not fields of constructors
    has_rows = False
    least_dimension = 1

    @property
    def laws(self) -> Mapping[str, Law]:
        """Laws of the entries of inputs by name."""
        return LAWS

    @property
    def iid_inputs(self) -> bool:
        """All entries of inputs are independent, of one variance."""
        return True

    def entries(self, dimension: int) -> int:
        """Return n of α = N/n: the number of entries of a row, or of a matrix, of the signal."""
        return math.prod(self.shapes((1, *self.input_shape(dimension))).signal[1:])

    @abc.abstractmethod
    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input."""

    @abc.abstractmethod
    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """Return the shapes of signal and fields in message passing, given that of the inputs
        (N, ., .)."""

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise a ValueError for inputs of another shape."""
        size = inputs.shape[2]
        rows = self.input_shape(size)[0]
        allowed = f"(N, {rows}, D) with D >= {self.least_dimension}"
        fits = inputs.shape[1] == rows and size >= self.least_dimension
        check(fits, "data.inputs", inputs, allowed)

    @abc.abstractmethod
    def operator(self, inputs: Inputs) -> AbstractOperator:
        """Return the linear map from signal to fields of some inputs."""

    def directions(
        self, key: PRNGKeyArray | None, teacher: Array, vectors: ArrayLike | None
    ) -> Directions | None:
        """Return the fixed directions around which inputs lie, `vectors` or drawn ones; None if
        inputs are centred, which have no vectors."""
        allowed = "None: inputs of this model have no fixed directions (inputs=smi.Tokens(..))"
        check(vectors is None, "directions", vectors, allowed)

    def warn_of_rounding(self, dimension: int, samples: int, alpha: float) -> None:
        """Warn if rounding to whole numbers moves a ratio of the model noticeably."""
        # only designs with several ratios round more than one number


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
        """n of α = N/n: entries of a row, or of a matrix, of the signal."""

    @abc.abstractmethod
    def forward(self, W: Array) -> Array:
        """Compute the fields (N, P, M) of a signal."""

    @abc.abstractmethod
    def adjoint(self, g: Array) -> Array:
        """Apply the transpose of `forward` to vectors g (N, P, M); the result has the shape of the
        signal."""

    @property
    def precisions(self) -> Mapping[str, Callable[[Array, Array], Array]]:
        """Estimates of A (P, P) from g (N, P, M) and ∂g (N, P, M, P, M), by name."""
        return {"outer": self._outer_precision, "divergence": self._divergence_precision}

    def _divergence_precision(self, g: Array, dg: Array) -> Array:
        """Estimate A as -(1/n) Σ_μ Σ_m ∂g_m/∂ω_m (P, P)."""
        # symmetric in expectation only
        total = self.sum_devices(jnp.einsum("npmqm->pq", self._along_fields(dg)))
        return symmetric(-total / self.entries)

    def _along_fields(self, dg: Array) -> Array:
        """∂g times the covariance of the fields in units of V."""
        return dg

    def _outer_precision(self, g: Array, dg: Array) -> Array:
        """Estimate A (P, P) as (1/n) Σ_μ Σ_m g gᵀ, g (N, P, M): positive semi-definite."""
        # positive semi-definite by construction, as the mean of -∂g is only in expectation
        return self.sum_devices(jnp.einsum("npm,nqm->pq", g, g)) / self.entries

    def squared(self, dg: Array, dg_too: Array) -> Array:
        """Compute X ↦ (1/n) Σ_μ Σ_{m,k} ∂g_{mk} X ∂g_{mk}ᵀ (P, P, P, P) from two independent
        estimates of ∂g (N, P, M, P, M): the covariance of fields of covariance X, passed back."""
        pair = conjugation(self._along_fields(dg), dg_too)
        return self.alpha * self.mean(dg.shape[0] * pair[None])

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
        self, W: Array, rows: PyTree, response: Callable[[Array, PyTree], tuple[Array, PyTree]]
    ) -> tuple[PyTree, Array]:
        """Compute fields, a response to them and its adjoint with one drawing of regenerated
        inputs.

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
        # regenerated inputs come in equal blocks, without a rest
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
        """Sum over all devices the sums over the samples of one."""
        return lax.psum(total, self.axes) if self.axes else total

    def mean(self, values: Array) -> Array:
        """Average values (N, ...) over all samples."""
        return self.sum_devices(jnp.sum(values, axis=0)) / self.samples


_MAX_READ_SIZE = 2**26  # numbers of inputs (0.5 GB in float64) that `weighted` reads at once


class IndexDesign(AbstractDesign):
    """Rows W (P, D) of iid columns, seen by M tokens: inputs (N, M, D), α = N/D.

    Args:
        prior: Prior of the rows.
        indices: P.
        tokens: M.
        inputs: Fixed directions of the inputs; None: they are centred.
    """

    prior: AbstractIidPrior
    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    inputs: Tokens | None = None
    has_rows = True
    # the control variate first; undamped, so that a run follows state evolution
    message_passing: ClassVar[MessagePassing] = MessagePassing(
        ("controlled", "outer", "divergence", "state"), (0.0,), True
    )

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(M, D)."""
        return (self.tokens, dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(P, D) and (N, P, M)."""
        return Shapes((self.indices, inputs[2]), (inputs[0], self.indices, self.tokens))

    def operator(self, inputs: Inputs) -> IndexOperator:
        """W -> W x/√D."""
        return IndexOperator(inputs)

    def directions(
        self, key: PRNGKeyArray | None, teacher: Array, vectors: ArrayLike | None
    ) -> Directions | None:
        """Return the directions of `inputs`, `vectors` or drawn ones."""
        if self.inputs is None:
            return super().directions(key, teacher, vectors)
        S = self.prior.second_moment(self.indices)
        return self.inputs.directions(key, teacher.astype(S.dtype), S, vectors)


class IndexOperator(AbstractOperator):
    r"""Fields of rows W (P, D), inputs x_μ (M, D):

        forward     Z_μ = W x_μᵀ/√D                                                   (N, P, M)
        adjoint     Σ_μ g_μ x_μ/√D                                                    (P, D)
        weighted    Σ_μ x_μ T_μ x_μᵀ W/D                                             (K, P, D)
        precision   A = α ⟨Σ_m g gᵀ⟩ = -α ⟨Σ_m ∂g_m/∂ω_m⟩,   α = N/D                   (P, P)

    The difference of the two forms of A has mean zero, which makes it a control variate:

        A = α ⟨g gᵀ - β (g gᵀ + ∂g)⟩,   β regressed in [0, 1]

    Measured for two-layer attention, D = 1000, α = 1.2 (docs/print.md): with g gᵀ alone the
    covariance C is off I - Q by up to 0.27 and perfect recovery is not reached (an underestimate of
    V makes g gᵀ too large); with -∂g alone it is off by up to 3.6 while a layer is unlearned. β is
    0 in the second case and 1 in the first.

    Inputs may be float32: products are then float32 at highest precision, sums over blocks of
    samples float64. Memory beyond the inputs: O(N P M + P D). Cost of `forward` or `adjoint`: one
    pass over N·M·D numbers.

    Args:
        inputs: Inputs (N, M, D).
        axes: Axes of the mesh that the samples are spread over. Default: none.
    """

    @property
    def entries(self) -> int:
        """D."""
        return self.inputs.shape[2]

    def forward(self, W: Array) -> Array:
        """Compute fields (N, P, M) of the signal (P, D), in the wider precision of signal and
        products."""
        return project(W, self.inputs)

    def adjoint(self, g: Array) -> Array:
        """Compute Σ_μ g_μ x_μ/√D (P, D) of per-sample vectors (N, P, M)."""
        return self.sum_devices(back_project(g, self.inputs))

    def weighted(self, T: Array, W: Array) -> Array:
        """Compute Σ_μ x_μ T_μ x_μᵀ W/D of signals W (K, P, D), T (N, PM, PM), in one pass over the
        inputs."""
        K, P, D = W.shape
        narrow = W.reshape(K * P, D).T.astype(product_dtype(self.inputs))

        def add(x: Array, T: Array) -> Array:
            n, M, _ = x.shape
            flat = x.reshape(n * M, D)
            fields = jnp.matmul(flat, narrow, precision="highest").reshape(n, M, K, P)
            weights = T.reshape(n, P, M, P, M).astype(x.dtype)
            moved = jnp.einsum("npmqt,ntkq->nmkp", weights, fields, precision="highest")
            return jnp.matmul(moved.reshape(n * M, K * P).T, flat, precision="highest")

        # a product of a large array with several columns would keep several copies of it
        samples, M, _ = self.inputs.shape
        size = max(MAX_BLOCK_SIZE // (M * D), 1) if samples * M * D > _MAX_READ_SIZE else None
        return self.sum_devices(summed(add, self.inputs, T, size)).reshape(W.shape) / D

    @property
    def precisions(self) -> Mapping[str, Callable[[Array, Array], Array]]:
        """g gᵀ, ∂g, and both: their difference is a control variate."""
        return {**super().precisions, "controlled": self.controlled_precision}

    def controlled_precision(self, g: Array, dg: Array) -> Array:
        """Estimate A as α ⟨g gᵀ - β (g gᵀ + ∂g)⟩ (P, P), its negative part (if any) cut."""
        outer = jnp.einsum("npm,nqm->npq", g, g)
        control = outer + jnp.einsum("npmqm->npq", dg)
        parts = covariance_and_variance(outer, control, axis=0, mean=lambda x, axis: self.mean(x))
        # β from the same samples is biased by O(1/N); outside [0, 1] it would extrapolate
        beta = jnp.clip(quotient(*parts), 0.0, 1.0)
        return positive_part(self.alpha * (self.mean(outer) - beta * self.mean(control)))


def symmetric_gaussian(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Draw symmetric matrices (n, d, d): variance 1 off the diagonal, 2 on it."""
    return goe(gaussian(key, shape, dtype))


class RectangularDesign(AbstractDesign):
    """One matrix S (L, d), L = round(β d), seen by matrices X (L, d), symmetric ones of a symmetric
    S: α = N/(dL).

    Args:
        message_passing: Its settings.
        prior: Prior of S: `ProductPrior`, or `WishartPrior` for a symmetric S.
    """

    message_passing: MessagePassing = eqx.field(static=True)
    prior: SpectralPrior
    least_dimension = 2

    @property
    def laws(self) -> Mapping[str, Law]:
        """All laws of iid entries, or the Gaussian one for symmetric inputs."""
        # iid entries of another law would have variance one on the diagonal, too, where theory has
        # two
        return {"gaussian": symmetric_gaussian} if self.prior.symmetric else LAWS

    @property
    def iid_inputs(self) -> bool:
        """Symmetric inputs have twice the variance on the diagonal."""
        return not self.prior.symmetric

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(L, d)."""
        return (self.prior.length(dimension), dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(1, L, d) and (n, 1, 1)."""
        return Shapes((1, *inputs[1:]), (inputs[0], 1, 1))

    def check_inputs(self, inputs: Inputs) -> None:
        """Check that inputs are matrices (L, d), symmetric ones for a symmetric S."""
        # L of a traced β is unknown
        if concrete(self.prior.law.aspect_ratio):
            super().check_inputs(inputs)
        if self.prior.symmetric and isinstance(inputs, jax.Array):
            # regenerated ones are symmetric by their law; float32 ones to rounding
            gap = jnp.max(jnp.abs(inputs - jnp.swapaxes(inputs, 1, 2)))
            allowed = "symmetric matrices (of vectors: AttentionIndexed(1, ρ, 'linear'))"
            check(gap <= 1e-5, "data.inputs", inputs, allowed)

    def operator(self, inputs: Inputs) -> RectangularOperator:
        """S -> ⟨X, S⟩/√(dL)."""
        return RectangularOperator(inputs, symmetric=self.prior.symmetric)

    def warn_of_rounding(self, dimension: int, samples: int, alpha: float) -> None:
        """Warn if rounding moves β, ρ or α by more than 1 %."""
        d = dimension
        L = self.prior.length(d)
        with jax.ensure_compile_time_eval():  # a known model is known inside jit, too
            rho = float(self.prior.law.rank_ratio)
            beta = float(self.prior.law.aspect_ratio)
        ratios = {
            "rank_ratio": (rho, self.prior.width(d) / d),
            "alpha": (alpha, samples / (d * L)),
            "aspect_ratio": (beta, L / d),
        }
        # a shift of 1 % is of the order 1/d of fluctuations between runs at d = 100
        moved = ", ".join(
            f"{name} {exact:g} -> {rounded:g}"
            for name, (exact, rounded) in ratios.items()
            if abs(rounded / exact - 1.0) > 0.01
        )
        if moved:
            said = f"at dimension {d} these ratios are rounded by more than 1 %: {moved}."
            warnings.warn(said, stacklevel=4)


class RectangularOperator(AbstractOperator):
    r"""Fields of S (1, L, d), inputs X (N, L, d) that are matrices themselves: of the vectors X of
    dL numbers, S is one row.

        forward     ⟨X_μ, S⟩/√(dL)                             (N, 1, 1)
        adjoint     Σ_μ g_μ X_μ/√(dL)                          (1, L, d)
        precision   A = α ⟨g²⟩, α = N/(dL)                      (1, 1)

    Cost of `forward` or `adjoint`: one pass over N·L·d numbers.

    Args:
        inputs: Inputs (N, L, d).
        axes: Axes of the mesh that the samples are spread over. Default: none.
        symmetric: Inputs are symmetric, of variance two on the diagonal.
    """

    symmetric: bool = eqx.field(static=True, default=False)

    def _along_fields(self, dg: Array) -> Array:
        """Fields of symmetric inputs have variance two."""
        return 2.0 * dg if self.symmetric else dg

    @property
    def entries(self) -> int:
        """L·d."""
        return self.inputs.shape[1] * self.inputs.shape[2]

    def forward(self, W: Array) -> Array:
        """Compute fields (N, 1, 1) of the signal (1, L, d)."""
        return project(W.reshape(1, -1), self.inputs)

    def adjoint(self, g: Array) -> Array:
        """Compute Σ_μ g_μ X_μ/√(dL) (1, L, d) of numbers (N, 1, 1)."""
        total = self.sum_devices(back_project(g, self.inputs))
        return total.reshape(1, *self.inputs.shape[1:])


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
    # theory is about a spectrum, which one number does not have
    least_dimension = 2

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(T, d)."""
        return (self.tokens, dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(L, d, d) and (n, L, T²)."""
        return Shapes((self.layers, inputs[2], inputs[2]), (inputs[0], self.layers, self.tokens**2))

    # a student's scores go through its factors (models/matrix.py), but an estimate of message
    # passing has none: two products
    def operator(self, inputs: Inputs) -> SymmetricOperator:
        """√d S -> scores."""
        return SymmetricOperator(inputs)


class SymmetricOperator(AbstractOperator):
    r"""Fields of L signals √d S_l (L, d, d), inputs X (N, T, d), g symmetric:

        forward     h_μ = (X_μ (√d S_l) X_μᵀ - I Tr √d S_l)/d     (N, L, T²)
        adjoint     Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d               (L, d, d)
        precision   A_l = α ⟨‖g_l‖²⟩, A_lk = 0, α = N/d²           (L, L)

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

    def _outer_precision(self, g: Array, dg: Array) -> Array:
        """Estimate A (L, L) as the diagonal of (1/n) Σ_μ Σ_m g gᵀ: matrices are denoised one by
        one."""
        return jnp.diag(jnp.diagonal(super()._outer_precision(g, dg)))

    def _along_fields(self, dg: Array) -> Array:
        """Fields are symmetric, of variance two on the diagonal."""
        T = self.inputs.shape[1]
        halves = dg.reshape(*dg.shape[:-1], T, T)
        return (halves + jnp.swapaxes(halves, -1, -2)).reshape(dg.shape)

    def forward(self, W: Array) -> Array:
        """Compute fields (N, L, T²) of the signals (L, d, d)."""
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
        """Compute Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d (L, d, d) of per-sample matrices (N, L, T²)."""
        _, T, d = self.inputs.shape
        g = g.reshape(len(g), -1, T, T)

        def add(x: Array, g: Array) -> Array:
            weighted = jnp.einsum("nlab,nbd->lnad", g.astype(x.dtype), x, precision="highest")
            weighted = weighted.reshape(len(weighted), -1, d)
            return jnp.matmul(x.reshape(-1, d).T, weighted, precision="highest")

        traces = jnp.trace(jnp.sum(g, axis=0), axis1=1, axis2=2)
        total = summed(add, self.inputs, g, self.batch) - traces[:, None, None] * jnp.eye(d)
        return self.sum_devices(total) / d


# How an array lies on the devices of a mesh: one part of the samples each, or the same on all
SPREAD = "spread"
EVERYWHERE = "everywhere"

Answer = TypeVar("Answer")


def on_devices(
    function: Callable[..., Answer],
    mesh: Mesh | None,
    arguments: tuple[object, ...],
    of_samples: Callable[..., Sequence[object]],
    out: object,
) -> Answer:
    """function(*arguments), by each device of the mesh on its own samples; None: as it is.

    Args:
        function: What to compute; it sees only its device's samples, and sums over all of them by
            `AbstractOperator.sum_devices`.
        mesh: The devices.
        arguments: Trees of arrays and other things.
        of_samples: The arrays of the arguments that have a leading axis of samples.
        out: The tree of the answer, SPREAD or EVERYWHERE for each of its arrays.

    Returns:
        The answer, its spread arrays put together.
    """
    if mesh is None:
        return function(*arguments)
    arrays, rest = eqx.partition(arguments, eqx.is_array)
    places = {SPREAD: PartitionSpec(mesh.axis_names), EVERYWHERE: PartitionSpec()}
    marks = jax.tree.map(lambda _: EVERYWHERE, arrays)
    marks = eqx.tree_at(of_samples, marks, replace_fn=lambda _: SPREAD)
    return jax.shard_map(
        lambda arrays: function(*eqx.combine(arrays, rest)),
        mesh=mesh,
        in_specs=(jax.tree.map(places.get, marks),),
        out_specs=jax.tree.map(places.get, out),
        # loops inside start from zeros that are alike on all devices, which the check refuses
        check_vma=False,
    )(arrays)
