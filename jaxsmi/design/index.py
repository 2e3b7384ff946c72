r"""Design of index models: P indices W (P, D) seen through inputs of M tokens.

Equations here [TCDKZ25], [theory: multi-index, Eqs. (1), (33) to (36)]; inputs x_μ (M, D):

    forward     Z_μ = W x_μᵀ/√D                                                   (N, P, M)
    adjoint     Σ_μ g_μ x_μ/√D                                                    (P, D)
    weighted    Σ_μ x_μ T_μ x_μᵀ W/D                                             (K, P, D)
    precision   A = α ⟨Σ_m g gᵀ⟩ = -α ⟨Σ_m ∂g_m/∂ω_m⟩,   α = N/D                   (P, P)

The difference of the two forms of A has mean zero, which makes it a control variate:

    A = α ⟨g gᵀ - β (g gᵀ + ∂g)⟩,   β regressed in [0, 1]

Measured for two-layer attention, D = 1000, α = 1.2 (docs/print.md): with g gᵀ alone the covariance
C is off I - Q by up to 0.27 and perfect recovery is not reached (an underestimate of V makes g gᵀ
too large); with -∂g alone it is off by up to 3.6 while a layer is unlearned. β goes to 0 in the
second case and to 1 in the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.validate import check
from jaxsmi.design.base import AbstractDesign, AbstractOperator, MessagePassing, Shapes
from jaxsmi.design.blocks import BLOCK, Inputs, product_dtype, summed
from jaxsmi.design.passes import back_project, project
from jaxsmi.design.tokens import Directions, Tokens
from jaxsmi.numerics.linear_algebra import positive_part, symmetric
from jaxsmi.numerics.quadrature import covariance_and_variance, quotient
from jaxsmi.priors.iid import AbstractIidPrior

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

    def entries(self, dimension: int) -> int:
        """D."""
        return dimension

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(M, D)."""
        return (self.tokens, dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(P, D) and (N, P, M)."""
        return Shapes((self.indices, inputs[2]), (inputs[0], self.indices, self.tokens))

    def check_inputs(self, inputs: Inputs) -> None:
        """M tokens a sample."""
        allowed = f"(N, {self.tokens}, D): M tokens a sample"
        check(inputs.shape[1] == self.tokens, "data.inputs", inputs, allowed)

    def operator(self, inputs: Inputs) -> IndexOperator:
        """W -> W x/√D."""
        return IndexOperator(inputs)

    def check_directions(self, vectors: ArrayLike | None) -> None:
        """Rows (K, D), where inputs have directions."""
        if self.inputs is None:
            return super().check_directions(vectors)
        allowed = "None, or U (K, D)"
        U = validate.optional(validate.array, "directions", vectors, allowed)
        check(U is None or U.ndim == 2, "directions", vectors, allowed)

    def directions(
        self, key: PRNGKeyArray | None, teacher: Array, vectors: ArrayLike | None
    ) -> Directions | None:
        """Those of `inputs`."""
        if self.inputs is None:
            return super().directions(key, teacher, vectors)
        S = self.prior.second_moment(self.indices)
        return self.inputs.directions(key, teacher.astype(S.dtype), S, vectors)


class IndexOperator(AbstractOperator):
    """Fields of the index family (module docstring).

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
