r"""The designs: rows W (P, D) of an index model, one rectangular matrix S (L, d), and L symmetric
matrices, each with its operator. [theory: multi-index, Eqs. (1), (33) to (36); bilinear, Eqs. (21)
to (24); attention-indexed, Eqs. (40) to (44)]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.design.base import AbstractDesign, AbstractOperator, MessagePassing, Shapes
from jaxsmi.design.blocks import (
    BLOCK,
    LAWS,
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
from jaxsmi.numerics.linear_algebra import goe, positive_part, symmetric
from jaxsmi.numerics.quadrature import covariance_and_variance, quotient
from jaxsmi.priors.iid import AbstractIidPrior
from jaxsmi.priors.spectral import SpectralPrior

_LARGE = 2**26  # numbers of inputs (0.5 GB in float64) that `weighted` reads at once


class IndexDesign(AbstractDesign):
    """Rows W (P, D) of iid columns, seen by M tokens: inputs (N, M, D), α = N/D.

    Args:
        prior: Of the rows.
        indices: P.
        tokens: M.
        inputs: Fixed directions of the inputs; None: they are centred.
    """

    prior: AbstractIidPrior
    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    inputs: Tokens | None = None
    rows = True
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

    def check_directions(self, vectors: ArrayLike | None) -> None:
        """As the base class, without `inputs`."""
        if self.inputs is None:
            super().check_directions(vectors)

    def directions(
        self, key: PRNGKeyArray | None, teacher: Array, vectors: ArrayLike | None
    ) -> Directions | None:
        """Those of `inputs`."""
        if self.inputs is None:
            return None
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
        """Fields (N, P, M) of the signal (P, D), in the wider precision of signal and products."""
        return project(W, self.inputs)

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ x_μ/√D (P, D) of per-sample vectors (N, P, M)."""
        return self.sum_devices(back_project(g, self.inputs))

    def weighted(self, T: Array, W: Array) -> Array:
        """Σ_μ x_μ T_μ x_μᵀ W/D of signals W (K, P, D), T (N, PM, PM): one pass over the inputs."""
        K, P, D = W.shape
        narrow = W.reshape(K * P, D).T.astype(product_dtype(self.inputs))

        def add(x: Array, T: Array) -> Array:
            n, M, _ = x.shape
            flat = x.reshape(n * M, D)
            fields = jnp.matmul(flat, narrow, precision="highest").reshape(n, M, K, P)
            weights = T.reshape(n, P, M, P, M).astype(x.dtype)
            moved = jnp.einsum("npmqt,ntkq->nmkp", weights, fields, precision="highest")
            return jnp.matmul(moved.reshape(n * M, K * P).T, flat, precision="highest")

        # of a large array a product with several columns would keep copies, one for each place
        # that it is taken in
        samples, M, _ = self.inputs.shape
        size = max(BLOCK // (M * D), 1) if samples * M * D > _LARGE else None
        return self.sum_devices(summed(add, self.inputs, T, size)).reshape(W.shape) / D

    @property
    def precisions(self) -> Mapping[str, Callable[[Array, Array], Array]]:
        """g gᵀ, ∂g, and both: their difference is a control variate."""
        return {
            **super().precisions,
            "controlled": self.controlled_precision,
            "divergence": lambda _, dg: self.divergence_precision(dg),
        }

    def controlled_precision(self, g: Array, dg: Array) -> Array:
        """α ⟨g gᵀ - β (g gᵀ + ∂g)⟩ (P, P), its negative part (if any) cut."""
        outer = jnp.einsum("npm,nqm->npq", g, g)
        control = outer + jnp.einsum("npmqm->npq", dg)
        parts = covariance_and_variance(outer, control, axis=0, mean=lambda x, axis: self.mean(x))
        # β from the same samples is biased by O(1/N); outside [0, 1] it would extrapolate
        beta = jnp.clip(quotient(*parts), 0.0, 1.0)
        return positive_part(self.alpha * (self.mean(outer) - beta * self.mean(control)))

    def divergence_precision(self, dg: Array) -> Array:
        """-(1/D) Σ_μ Σ_m ∂g_m/∂ω_m (P, P)."""
        # symmetric in expectation only
        return symmetric(-self.sum_devices(jnp.einsum("npmqm->pq", dg)) / self.entries)


def symmetric_gaussian(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Symmetric matrices (n, d, d): off-diagonal entries of variance 1, diagonal ones of 2."""
    return goe(gaussian(key, shape, dtype))


class RectangularDesign(AbstractDesign):
    """One matrix S (L, d), L = round(β d), seen by matrices X (L, d), symmetric ones of a symmetric
    S: α = N/(dL).

    Args:
        message_passing: Its settings.
        prior: Of S: `ProductPrior`, or `WishartPrior` of a symmetric one.
    """

    message_passing: MessagePassing = eqx.field(static=True)
    prior: SpectralPrior
    least_dimension = 2

    @property
    def laws(self) -> Mapping[str, Law]:
        """Symmetric inputs are Gaussian."""
        # iid entries of another law would have variance one on the diagonal, too, where theory has
        # two
        return {"gaussian": symmetric_gaussian} if self.prior.symmetric else LAWS

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(L, d)."""
        return (self.prior.length(dimension), dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(1, L, d) and (n, 1, 1)."""
        return Shapes((1, *inputs[1:]), (inputs[0], 1, 1))

    def check_inputs(self, inputs: Inputs) -> None:
        """Matrices (L, d), symmetric ones for a symmetric S."""
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
        return RectangularOperator(inputs)

    def warn_of_rounding(self, dimension: int, samples: int, alpha: float) -> None:
        """Warn where rounding moves β, ρ or α by more than 1 %."""
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
        moved = [
            f"{name} {exact:g} -> {rounded:g}"
            for name, (exact, rounded) in ratios.items()
            if abs(rounded / exact - 1.0) > 0.01
        ]
        if moved:
            warnings.warn(f"rounded at dimension {d}: {', '.join(moved)}.", stacklevel=4)


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
    """

    @property
    def entries(self) -> int:
        """L·d."""
        return self.inputs.shape[1] * self.inputs.shape[2]

    def forward(self, W: Array) -> Array:
        """Fields (N, 1, 1) of the signal (1, L, d)."""
        return project(W.reshape(1, -1), self.inputs)

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ X_μ/√(dL) (1, L, d) of numbers (N, 1, 1)."""
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
    # theory is of a spectrum, which one number has not
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
