r"""The spectrum of a matrix that a learner has learned, as D → ∞.

Equation here [theory: trained-attention, section 2], μ_R the law of the eigenvalues, or singular
values, of the matrix R that labels tell of, and F the shrinkage of the penalty, of slope f above
its threshold θ:

    μ_S(s) = μ_R(θ + s/f)/f   (s > 0),     mass at zero  ∫_{|x| <= θ} μ_R
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
    """Eigenvalues of a symmetric S, or singular values of S/(dL)^{1/4}: an atom and a density.

    Attributes:
        zero: The fraction of them that is zero.
        edges: Edges (4,) of the bands from left to right; the two inner ones are NaN where there is
            one band. A band next to another with a small mass has the outliers.
    """

    zero: Array
    law: AbstractSpectrum
    gain: Array
    shrinkage: Shrinkage

    @property
    def edges(self) -> Array:
        """Edges of the bands of R, shrunk."""
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
