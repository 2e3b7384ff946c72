r"""Design of attention-indexed models: symmetric matrices seen by pairs of tokens.

Equations here [theory: attention-indexed, Eqs. (40) to (44), (56)]; L signals √d S_l (L, d, d),
inputs X (N, T, d), g symmetric:

    forward     h_μ = (X_μ (√d S_l) X_μᵀ - I Tr √d S_l)/d     (N, L, T²)
    adjoint     Σ_μ (X_μᵀ g_μ X_μ - I Tr g_μ)/d               (L, d, d)
    precision   A_l = α ⟨‖g_l‖²⟩, A_lk = 0, α = N/d²           (L, L)
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.design.base import AbstractMatrixDesign, AbstractMatrixOperator, MessagePassing, Shapes
from jaxsmi.design.blocks import Inputs, mapped, product_dtype, summed
from jaxsmi.priors.spectral import SpectralPrior
from jaxsmi.priors.wishart import WishartLaw

__all__ = ["SymmetricDesign", "SymmetricOperator"]


class SymmetricDesign(AbstractMatrixDesign):
    """L symmetric matrices S_l (d, d) of factors W_l (r, d), seen by T tokens: α = N/d².

    Teachers and students are factors (L r, d).

    Args:
        prior: Of each matrix.
        tokens: T.
        layers: L.
        settings: Of message passing.
    """

    prior: SpectralPrior
    tokens: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    settings: MessagePassing = eqx.field(static=True)

    @property
    def message_passing(self) -> MessagePassing:
        """The settings."""
        return self.settings

    def entries(self, dimension: int) -> int:
        """d²."""
        return dimension**2

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """(T, d)."""
        return (self.tokens, dimension)

    def shapes(self, inputs: tuple[int, ...]) -> Shapes:
        """(L, d, d) and (n, L, T²)."""
        return Shapes((self.layers, inputs[2], inputs[2]), (inputs[0], self.layers, self.tokens**2))

    def factor_shape(self, dimension: int) -> tuple[int, int]:
        """(L r, d), r = round(ρ d)."""
        return (self.layers * self.prior.width(dimension), dimension)

    def factors(self, weights: Array) -> Array:
        """Factors (L, r, d) of each layer."""
        return weights.reshape(self.layers, -1, weights.shape[-1])

    def factor_fields(self, factors: Array, inputs: Inputs) -> Array:
        """Scores h (n, L, T, T), in the wider precision of factors and inputs."""
        each = [self._scores(W, inputs) for W in self.factors(factors)]
        return jnp.stack(each, axis=1)

    def _scores(self, W: Array, inputs: Inputs) -> Array:
        """Scores h (n, T, T) of inputs (n, T, d) for W (r, d): products through W, never S, which
        keep the digits that Tr S would take."""
        r, d = W.shape
        narrow = W.T.astype(product_dtype(inputs))
        wide = jnp.promote_types(W.dtype, narrow.dtype)
        trace = jnp.sum(W.astype(wide) ** 2)

        def products(x: Array) -> Array:
            z = jnp.einsum("ntd,dr->ntr", x, narrow, precision="highest").astype(wide)
            return jnp.einsum("nar,nbr->nab", z, z, precision="highest")

        scores = mapped(products, inputs) - trace * jnp.eye(inputs.shape[1], dtype=wide)
        return scores / math.sqrt(r * d) / math.sqrt(d)

    def signal(self, weights: Array, length: int | None = None) -> Array:
        """√d S (L, d, d) of factors (L r, d), or itself."""
        del length
        weights = weights.astype(theory_dtype())
        if weights.ndim == 3:
            return weights
        matrices = jax.vmap(lambda W: WishartLaw.matrix(W.T))(self.factors(weights))
        return self.unit(weights.shape[-1]) * matrices

    def teacher_signal(self, teacher: Array) -> Array:
        """√d S (L, d, d) of factors."""
        return self.signal(teacher)

    def unit(self, dimension: int) -> float:
        """√d."""
        return math.sqrt(dimension)

    def check_inputs(self, inputs: Inputs) -> None:
        """T tokens a sample, of dimension two or more."""
        allowed = f"(n, {self.tokens}, d): T tokens a sample"
        check(inputs.shape[1] == self.tokens, "data.inputs", inputs, allowed)
        check(inputs.shape[2] >= 2, "data.inputs", inputs, "a dimension d >= 2")

    # a student's scores go through its factors, a message-passing estimate has none: two products
    def operator(self, inputs: Inputs) -> SymmetricOperator:
        """√d S -> scores."""
        return SymmetricOperator(inputs)

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Factors W (L r, d) of iid N(0, 1) entries."""
        return jax.random.normal(key, self.factor_shape(dimension), theory_dtype())

    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """Factors (L r, d), of any r >= 1."""
        fits = teacher.ndim == 2 and teacher.shape[1] == dimension
        fits = fits and teacher.shape[0] % self.layers == 0 and teacher.shape[0] > 0
        layers = "" if self.layers == 1 else f"{self.layers} "
        check(fits, "teacher", teacher, f"factors ({layers}r, {dimension})")


class SymmetricOperator(AbstractMatrixOperator):
    """Fields of a symmetric matrix (module docstring).

    Products are in the precision of the inputs, sums over blocks in float64. Memory beyond the
    inputs: batch·T·d numbers and the fields. Cost of `forward` or `adjoint`: N·T·d² operations.

    Args:
        inputs: Inputs (N, T, d).
        axes: Axes of the mesh that the samples are spread over. Default: none.
        batch: Samples worked on at once. Default 4096.
    """

    inputs: Inputs
    axes: tuple[str, ...] = eqx.field(static=True, default=())
    batch: int = eqx.field(static=True, default=4096)  # empirical

    @property
    def entries(self) -> int:
        """d²."""
        return self.inputs.shape[2] ** 2

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
