r"""Design of bilinear models: one matrix S (L, d), seen by sequences X (L, d).

Equations here [theory: bilinear, Eqs. (21) to (24)]; signal S (1, L, d), inputs X (N, L, d); of a
symmetric S, L = d and X symmetric:

    forward     ⟨X_μ, S⟩/√(dL)                             (N, 1, 1)
    adjoint     Σ_μ g_μ X_μ/√(dL)                          (1, L, d)
    precision   A = α ⟨g²⟩, α = N/(dL)                      (1, 1)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete
from jaxsmi.core.validate import check
from jaxsmi.design.base import AbstractDesign, AbstractOperator, MessagePassing, Shapes
from jaxsmi.design.blocks import LAWS, Inputs, Law, gaussian
from jaxsmi.design.passes import back_project, project
from jaxsmi.numerics.linear_algebra import goe
from jaxsmi.priors.spectral import SpectralPrior


def symmetric_gaussian(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Symmetric matrices (n, d, d): off-diagonal entries of variance 1, diagonal ones of 2."""
    return goe(gaussian(key, shape, dtype))


class RectangularDesign(AbstractDesign):
    """One matrix S (L, d), L = round(β d), seen by matrices X (L, d): α = N/(dL).

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

    def entries(self, dimension: int) -> int:
        """d L."""
        return dimension * self.prior.length(dimension)

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(L, d)."""
        return (self.prior.length(dimension), dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(1, L, d) and (n, 1, 1)."""
        return Shapes((1, *inputs[1:]), (inputs[0], 1, 1))

    def check_inputs(self, inputs: Inputs) -> None:
        """Matrices (L, d), symmetric ones for a symmetric S."""
        L, d = inputs.shape[1:]
        if not self.prior.symmetric:
            length = self.prior.length(d) if concrete(self.prior.law.aspect_ratio) else L
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
    """Inputs X (N, L, d) that are matrices themselves (module docstring): of the vectors X of dL
    numbers, S is one row.

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
