r"""Design of bilinear models: one matrix S (L, d), seen by sequences X (L, d).

Equations here [theory: bilinear, Eqs. (21) to (24)]; signal S (1, L, d), inputs X (N, L, d); of a
symmetric S, L = d and X symmetric:

    forward     ⟨X_μ, S⟩/√(dL)                             (N, 1, 1)
    adjoint     Σ_μ g_μ X_μ/√(dL)                          (1, L, d)
    precision   A = α ⟨g²⟩, α = N/(dL)                      (1, 1)
"""

from __future__ import annotations

import math
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.design.base import AbstractMatrixDesign, AbstractMatrixOperator, MessagePassing, Shapes
from jaxsmi.design.blocks import LAWS, Inputs, draw_inputs, gaussian, mapped, product_dtype, summed
from jaxsmi.design.passes import rows_combined, rows_times
from jaxsmi.numerics.linear_algebra import goe
from jaxsmi.priors.spectral import SpectralPrior

__all__ = ["RectangularDesign", "RectangularOperator"]


def symmetric_gaussian(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Symmetric matrices (n, d, d): off-diagonal entries of variance 1, diagonal ones of 2."""
    return goe(gaussian(key, shape, dtype))


class RectangularDesign(AbstractMatrixDesign):
    """One matrix S (L, d) of width r, L = round(β d), seen by matrices X (L, d): α = N/(dL).

    Teachers are S itself; students factors (r, L + d), V beside Uᵀ, or W (r, d) if symmetric.

    Args:
        prior: Of S: `ProductPrior`, or `WishartPrior` of a symmetric one.
        settings: Of message passing.
    """

    prior: SpectralPrior
    settings: MessagePassing = eqx.field(static=True)

    @property
    def symmetric(self) -> bool:
        """S and X are symmetric, L = d."""
        return self.prior.symmetric

    @property
    def aspect_ratio(self) -> Array:
        """β."""
        return self.prior.law.aspect_ratio

    @property
    def laws(self) -> tuple[str, ...]:
        """Symmetric inputs are Gaussian."""
        return ("gaussian",) if self.symmetric else tuple(LAWS)

    def length(self, dimension: int) -> int:
        """L = round(β d)."""
        return self.prior.length(dimension)

    @property
    def message_passing(self) -> MessagePassing:
        """The settings."""
        return self.settings

    def entries(self, dimension: int) -> int:
        """d L."""
        return dimension * self.length(dimension)

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(L, d)."""
        return (self.length(dimension), dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(1, L, d) and (n, 1, 1)."""
        return Shapes((1, *inputs[1:]), (inputs[0], 1, 1))

    def factor_shape(self, dimension: int) -> tuple[int, int]:
        """(r, L + d), or (r, d) if symmetric."""
        columns = dimension + (0 if self.symmetric else self.length(dimension))
        return (self.prior.width(dimension), columns)

    def factor_fields(self, factors: Array, inputs: Inputs) -> Array:
        """⟨X, S⟩/√(dL) (n, 1, 1) of factors."""
        S = self.product(factors.astype(product_dtype(inputs)), inputs.shape[1])
        return RectangularOperator(inputs).forward(S[None])

    def teacher_fields(self, teacher: Array, inputs: Inputs) -> Array:
        """⟨X, S⟩/√(dL) (n, 1, 1) of S."""
        return RectangularOperator(inputs).forward(teacher)

    def signal(self, weights: Array, length: int | None = None) -> Array:
        """S (1, L, d) of factors, or itself; `length`: L. NaN where only a traced β tells L."""
        weights = weights.astype(theory_dtype())
        if weights.ndim == 3:
            return weights
        if length is None and not (self.symmetric or concrete(self.aspect_ratio)):
            return jnp.full((1, 1, 1), jnp.nan, weights.dtype)
        return self.product(weights, length)[None]

    def teacher_signal(self, teacher: Array) -> Array:
        """S (1, L, d)."""
        return teacher[None].astype(theory_dtype())

    def unit(self, dimension: int) -> float:
        """One."""
        del dimension
        return 1.0

    def product(self, factors: Array, length: int | None = None) -> Array:
        """S (L, d) of factors, in their precision."""
        first = second = factors
        if not self.symmetric:
            columns = factors.shape[1]  # L + d, L = round(β d)
            if length is None:
                length = max(columns - round(columns / (1.0 + float(self.aspect_ratio))), 1)
            first = factors[:, :length]
            second = factors[:, length:]
        return jnp.matmul(first.T, second, precision="highest") / math.sqrt(factors.shape[0])

    def check_inputs(self, inputs: Inputs) -> None:
        """Matrices (L, d), symmetric ones for a symmetric S."""
        L, d = inputs.shape[1:]
        if not self.symmetric:
            length = self.length(d) if concrete(self.aspect_ratio) else L
            allowed = f"(n, {length}, {d}): β d tokens a sample"
            check(length == L, "data.inputs", inputs, allowed)
            return
        check(d == L, "data.inputs", inputs, "(n, d, d)")
        if isinstance(inputs, jax.Array):  # regenerated ones are symmetric by their law
            gap = jnp.max(jnp.abs(inputs - jnp.swapaxes(inputs, 1, 2)))
            allowed = "symmetric matrices (of vectors: AttentionIndexed(1, ρ, 'linear'))"
            check(gap <= 1e-5, "data.inputs", inputs, allowed)  # float32 inputs, to rounding

    def operator(self, inputs: Inputs) -> RectangularOperator:
        """S -> ⟨X, S⟩/√(dL)."""
        return RectangularOperator(inputs)

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
        """Inputs (n, L, d) of iid entries; symmetric Gaussian ones for a symmetric S."""
        entries = symmetric_gaussian if self.symmetric else LAWS[law]
        return draw_inputs(key, samples, shape, dtype, store, entries)

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """S (L, d) of Gaussian factors."""
        return self.product(jax.random.normal(key, self.factor_shape(dimension), theory_dtype()))

    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """S (L, d), of any rank; symmetric where the model is."""
        known = self.symmetric or concrete(self.aspect_ratio)
        shape = self.input_shape(dimension) if known else teacher.shape
        check(teacher.shape == shape, "teacher", teacher, f"S {shape}")
        if self.symmetric:
            gap = jnp.max(jnp.abs(teacher - teacher.T)) <= 1e-6 * jnp.max(jnp.abs(teacher))
            check(gap, "teacher", teacher, "a symmetric matrix")

    def warn_of_rounding(self, dimension: int, samples: int, alpha: float) -> None:
        """Warn where rounding moves β, ρ or α by more than 1 %."""
        d = dimension
        L = self.length(d)
        with jax.ensure_compile_time_eval():  # a known model is known inside jit, too
            rho = float(self.prior.law.rank_ratio)
            beta = float(self.aspect_ratio)
        ratios = {
            "rank_ratio": (rho, self.prior.width(d) / d),
            "alpha": (alpha, samples / (d * L)),
            "aspect_ratio": (beta, L / d),
        }
        moved = [
            f"{name} {exact:g} -> {rounded:g}"
            for name, (exact, rounded) in ratios.items()
            if abs(rounded / exact - 1.0) > 0.01
        ]
        if moved:
            warnings.warn(f"rounded at dimension {d}: {', '.join(moved)}.", stacklevel=4)


class RectangularOperator(AbstractMatrixOperator):
    """Inputs X (N, L, d) that are matrices themselves (module docstring).

    Products are in the precision of the inputs. Cost of `forward` or `adjoint`: one pass over N·L·d
    numbers.

    Args:
        inputs: Inputs (N, L, d).
        axes: Axes of the mesh that the samples are spread over. Default: none.
    """

    inputs: Inputs
    axes: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def entries(self) -> int:
        """L·d."""
        return self.inputs.shape[1] * self.inputs.shape[2]

    def forward(self, W: Array) -> Array:
        """Fields (N, 1, 1) of the signal (1, L, d)."""
        narrow = W.reshape(1, -1).astype(product_dtype(self.inputs))
        fields = lambda x: rows_times(x, narrow).astype(theory_dtype())
        flat = mapped(fields, self.inputs, as_stored=True)
        return flat[:, :, None] / jnp.sqrt(float(self.entries))

    def adjoint(self, g: Array) -> Array:
        """Σ_μ g_μ X_μ/√(dL) (1, L, d) of numbers (N, 1, 1)."""
        narrow = g.reshape(-1, 1).astype(product_dtype(self.inputs))
        add = lambda x, g: rows_combined(g, x)
        total = self.sum_devices(summed(add, self.inputs, narrow, as_stored=True))
        return total.reshape(1, *self.inputs.shape[1:]) / jnp.sqrt(float(self.entries))
