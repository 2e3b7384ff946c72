r"""The spectrum of a matrix that a learner has learned, as D → ∞.

Equation here [theory: trained-attention, Eq. (5)]. Labels show the matrix Y = c (S* + √δ Z), and
the penalty shrinks its values by F, of slope f above a threshold θ. Values are eigenvalues, or
singular values, of a matrix over (dL)^{1/4}; μ_δ is the law of those of S* + √δ Z:

    μ_S(s) = μ_δ((θ + s/f)/c)/(c f)   (s > 0),     mass at zero  ∫_{|c x| <= θ} μ_δ
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.learners.matrix_erm import Shrinkage
from jaxsmi.numerics.symmetric_spectrum import AbstractSpectrum


class LearnedSpectrum(eqx.Module):
    """Spectrum of a learned matrix: an atom at zero and a density.

    Values s are eigenvalues of S/√d if S is symmetric (of `smi.AttentionIndexed`: of S itself, in
    the units of that model), else singular values of S/(dL)^{1/4}. They are of order one.

    Attributes:
        zero: The fraction of them that is zero.
        edges: Edges (4,) of the bands from left to right; the two inner ones are NaN where there is
            one band. A second band of small mass holds the outliers.
    """

    zero: Array
    law: AbstractSpectrum
    gain: Array
    shrinkage: Shrinkage

    @property
    def edges(self) -> Array:
        """Edges of the bands of Y, shrunk."""
        return self.shrinkage(self.gain * self.law.edges)

    def density(self, values: ArrayLike) -> Array:
        """Compute μ_S of values other than zero, elementwise; with `zero` it integrates to one.

        Args:
            values: Real numbers of any shape. Singular values are positive.

        Returns:
            Densities, of that shape; 0 at zero.

        Raises:
            ValueError: For values that are not finite real numbers.
        """
        s = validate.array("values", values, "finite real numbers", interval=validate.FINITE)
        shrink = self.shrinkage
        size = jnp.abs(s) / shrink.slope + shrink.threshold
        # laws of singular values are even, and cover the positive half twice
        signed = self.law.copies == 1.0
        x = jnp.where(s < 0.0, -size, size) if signed else size
        density = self.law.copies * self.law.green(x / self.gain)[1]
        none = (s == 0.0) | ((s < 0.0) & (shrink.positive or not signed))
        return jnp.where(none, 0.0, density / (self.gain * shrink.slope))
