r"""Students and teachers of matrix models: factors, and the matrices that they make.

Equations here [theory: attention-indexed, Eqs. (1), (40); bilinear, Eq. (1)]:

    symmetric    S_l = W_lᵀ W_l/√(r d),  W (L r, d) of L layers;   signal √d S (L, d, d)
    product      S = Uᵀ V/√r,  [U, V] (r, L + d), or S = Wᵀ W/√r of W (r, d);   signal S (1, L, d)

A signal has entries O(1). The teacher of a symmetric model is its factors, of a product S itself.
"""

from __future__ import annotations

import abc
import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.design.blocks import Inputs, mapped, product_dtype
from jaxsmi.models.base import AbstractStudent
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.priors.factors import WishartLaw


class AbstractFactors(AbstractStudent):
    """Factors of matrices (module docstring)."""

    model: MatrixModel

    @abc.abstractmethod
    def unit(self, dimension: int) -> float:
        """The signal over S."""

    def start(
        self,
        key: PRNGKeyArray,
        dimension: int,
        scale: ArrayLike = 1.0,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Random factors: scale × N(0, 1), drawn in the precision of theory: the teacher's law."""
        # float32 and float64 students start at the same point, so that they can be compared
        factors = super().start(key, dimension, scale)
        return factors.astype(dtype or factors.dtype)

    def estimate(self, weights: Array) -> Array:
        """S (a, b), of several layers (L, a, b), from the signal or from factors."""
        signal = self.to_signal(weights)
        S = signal / self.unit(signal.shape[-1])
        return S if self.model.indices > 1 else S[0]

    def signal(self, estimate: Array) -> Array:
        """The signal (L, a, b) of S."""
        design = self.model.design
        d = estimate.shape[-1] if estimate.ndim else 0
        shape = design.shapes((1, *design.input_shape(d))).signal if d else ()
        shape = shape if self.model.indices > 1 else shape[1:]
        check(estimate.shape == shape, "solution", estimate, f"a matrix {shape}")
        return self.unit(d) * estimate.reshape(-1, *estimate.shape[-2:])


class SymmetricFactors(AbstractFactors):
    """Factors W (L r, d) of symmetric matrices, seen by tokens; r = round(ρ d)."""

    def unit(self, dimension: int) -> float:
        """√d."""
        return math.sqrt(dimension)

    def shape(self, dimension: int) -> tuple[int, int]:
        """(L r, d)."""
        return (self.model.indices * self.model.prior.width(dimension), dimension)

    def _layers(self, weights: Array) -> Array:
        return weights.reshape(self.model.indices, -1, weights.shape[-1])

    def fields(self, weights: Array, inputs: Inputs) -> Array:
        """Scores h (n, L, T, T), in the wider precision of factors and inputs."""
        return jnp.stack([_scores(W, inputs) for W in self._layers(weights)], axis=1)

    def to_signal(self, weights: Array, teacher: Array | None = None) -> Array:
        """√d S (L, d, d) of factors (L r, d), or itself."""
        del teacher
        weights = weights.astype(theory_dtype())
        if weights.ndim == 3:
            return weights
        matrices = jax.vmap(lambda W: WishartLaw.matrix(W.T))(self._layers(weights))
        return self.unit(weights.shape[-1]) * matrices

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Factors W (L r, d) of iid N(0, 1) entries."""
        return self.start(key, dimension)

    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """Factors (L r, d), of any r >= 1."""
        L = self.model.indices
        fits = teacher.ndim == 2 and teacher.shape[1] == dimension
        fits = fits and teacher.shape[0] % L == 0 and teacher.shape[0] > 0
        check(fits, "teacher", teacher, f"factors ({'' if L == 1 else f'{L} '}r, {dimension})")


def _scores(W: Array, inputs: Inputs) -> Array:
    """Scores h (n, T, T) of inputs (n, T, d) for W (r, d)."""
    r, d = W.shape
    narrow = W.T.astype(product_dtype(inputs))
    wide = jnp.promote_types(W.dtype, narrow.dtype)
    trace = jnp.sum(W.astype(wide) ** 2)

    # products through W, never S, which keep the digits that Tr S would take
    def products(x: Array) -> Array:
        z = jnp.einsum("ntd,dr->ntr", x, narrow, precision="highest").astype(wide)
        return jnp.einsum("nar,nbr->nab", z, z, precision="highest")

    scores = mapped(products, inputs) - trace * jnp.eye(inputs.shape[1], dtype=wide)
    return scores / math.sqrt(r * d) / math.sqrt(d)


class ProductFactors(AbstractFactors):
    """Factors (r, L + d) of a matrix S (L, d), or (r, d) of a symmetric one; r = round(ρ d)."""

    def unit(self, dimension: int) -> float:
        """One."""
        del dimension
        return 1.0

    def shape(self, dimension: int) -> tuple[int, int]:
        """(r, L + d), or (r, d) if symmetric."""
        prior = self.model.prior
        columns = dimension + (0 if prior.symmetric else prior.length(dimension))
        return (prior.width(dimension), columns)

    def _product(self, factors: Array, length: int | None = None) -> Array:
        """S (L, d) of factors, in their precision."""
        first = second = factors
        if not self.model.prior.symmetric:
            columns = factors.shape[1]  # L + d, L = round(β d)
            # training knows only its factors, and L from L + d is exact for β = L/d
            if length is None:
                beta = float(self.model.prior.law.aspect_ratio)
                length = max(columns - round(columns / (1.0 + beta)), 1)
            first, second = factors[:, :length], factors[:, length:]
        return jnp.matmul(first.T, second, precision="highest") / math.sqrt(factors.shape[0])

    def fields(self, weights: Array, inputs: Inputs) -> Array:
        """⟨X, S⟩/√(dL) (n, 1, 1) of factors."""
        S = self._product(weights.astype(product_dtype(inputs)), inputs.shape[1])
        return self.teacher_fields(S, inputs)

    def teacher_fields(self, teacher: Array, inputs: Inputs) -> Array:
        """⟨X, S⟩/√(dL) (n, 1, 1) of S."""
        return self.model.design.operator(inputs).forward(teacher[None])

    def to_signal(self, weights: Array, teacher: Array | None = None) -> Array:
        """S (1, L, d) of factors, or itself; NaN where only a traced β tells L."""
        weights = weights.astype(theory_dtype())
        if weights.ndim == 3:
            return weights
        prior = self.model.prior
        length = None if teacher is None else len(teacher)
        if length is None and not (prior.symmetric or concrete(prior.law.aspect_ratio)):
            return jnp.full((1, 1, 1), jnp.nan, weights.dtype)
        return self._product(weights, length)[None]

    def teacher_signal(self, teacher: Array) -> Array:
        """S (1, L, d)."""
        return teacher[None].astype(theory_dtype())

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """S (L, d) of Gaussian factors."""
        return self._product(self.start(key, dimension))

    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """S (L, d), of any rank; symmetric where the model is."""
        prior = self.model.prior
        known = prior.symmetric or concrete(prior.law.aspect_ratio)
        shape = self.model.design.input_shape(dimension) if known else teacher.shape
        check(teacher.shape == shape, "teacher", teacher, f"S {shape}")
        if prior.symmetric:
            # rounding of a product W Wᵀ in float32
            gap = jnp.max(jnp.abs(teacher - teacher.T)) <= 1e-6 * jnp.max(jnp.abs(teacher))
            check(gap, "teacher", teacher, "a symmetric matrix")
