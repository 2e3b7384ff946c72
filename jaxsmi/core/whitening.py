r"""Inputs with a covariance, and the coordinates in which they have none.

Equations here [theory: inputs, Eqs. (1) to (4)], features of covariance Σ (D, D), tokens of C (M,
M):

    Σ = U diag(s) Uᵀ,   x = C^{1/2} x' diag(s)^{1/2} Uᵀ,   W' = W U diag(s)^{1/2}
    W x^T/√D = (W' x'^T/√D) C^{1/2}

x' has iid entries where x is Gaussian, and iid weights have columns of variances s.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.validate import check

# Relative size of an eigenvalue below which rounding of `eigh`, 1e-16 times the largest one and
# amplified by its inverse, exceeds 1e-6 of the whitened inputs.
_SINGULAR = 1e-10


class Whitening(eqx.Module):
    """How inputs were whitened: what maps weights and inputs there and back.

    Attributes:
        variances: s (D,), the eigenvalues of Σ: the variances of iid weights in the new
            coordinates, of which the mean is their second moment.
        basis: U (D, D), the eigenvectors of Σ.
        tokens: C (M, M); None: tokens were left as they were.
    """

    variances: Array
    basis: Array
    tokens: Array | None = None

    def whitened(self, inputs: Array) -> Array:
        """x' = C^{-1/2} x U diag(s)^{-1/2} of inputs (N, M, D), in their precision."""
        wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
        if self.tokens is not None:
            wide = jnp.einsum("mk,nkd->nmd", _inverse_root(self.tokens).astype(wide.dtype), wide)
        inverse = (self.basis / jnp.sqrt(self.variances)).astype(wide.dtype)
        flat = jnp.matmul(wide, inverse, precision="highest")
        return flat.astype(inputs.dtype)

    def into(self, weights: Array) -> Array:
        """W' = W U diag(s)^{1/2} of weights (P, D)."""
        return (weights @ self.basis) * jnp.sqrt(self.variances)

    def back(self, weights: Array) -> Array:
        """W = W' diag(s)^{-1/2} Uᵀ of weights (P, D) in whitened coordinates."""
        return (weights / jnp.sqrt(self.variances)) @ self.basis.T


def covariance_of(inputs: Array) -> Array:
    """XᵀX/(NM) (D, D) of inputs (N, M, D)."""
    rows = inputs.reshape(-1, inputs.shape[2]).astype(theory_dtype())
    return rows.T @ rows / rows.shape[0]


def whitening_of(
    inputs: Array, covariance: ArrayLike | None, tokens: ArrayLike | None
) -> Whitening:
    """Validate the arguments of `Dataset.whiten`; estimate a covariance that is None."""
    N, M, D = inputs.shape
    C = None if tokens is None else _definite("tokens", tokens, M)
    if covariance is None:
        allowed = f"data of more than D = {D} tokens in all, or a covariance of other inputs"
        check(N * M > D, "covariance", f"None for {N * M} tokens", allowed)
        # the covariance of features is that of tokens without correlations
        independent = inputs
        if C is not None:
            independent = jnp.einsum("mk,nkd->nmd", _inverse_root(C), inputs.astype(theory_dtype()))
        covariance = covariance_of(independent)
    elif np.ndim(covariance) == 3:  # also of what is no array: the next line names it
        allowed = f"inputs (N', M', {D}) of more than {D} tokens in all"
        others = validate.array("covariance", covariance, allowed, shape=(None, None, D))
        share = D * D / others.size
        check(share < 1.0, "covariance", covariance, allowed)
        # Σ̂^{-1} of other samples has the mean Σ^{-1}/(1 - c), c = D over their tokens
        covariance = covariance_of(others) / (1.0 - share)
    Sigma = _definite("covariance", covariance, D)
    variances, basis = jnp.linalg.eigh(Sigma)
    return Whitening(variances, basis, C)


def _definite(name: str, value: ArrayLike, size: int) -> Array:
    allowed = f"a symmetric positive definite array ({size}, {size})"
    matrix = validate.array(name, value, allowed, shape=(size, size))
    # a covariance that was computed in single precision is symmetric to 1e-6 only
    gap = jnp.max(jnp.abs(matrix - matrix.T)) <= 1e-6 * jnp.max(jnp.abs(matrix))
    check(gap, name, value, allowed)
    matrix = 0.5 * (matrix + matrix.T)
    values = jnp.linalg.eigvalsh(matrix)
    check(values[0] > _SINGULAR * values[-1], name, value, allowed)
    return matrix


def _inverse_root(matrix: Array) -> Array:
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors / jnp.sqrt(values)) @ vectors.T
