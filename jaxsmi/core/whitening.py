"""Coordinates in which the covariance of inputs is the identity.

Equations [theory: inputs, Eqs. (1) to (4)], features of covariance Σ (D, D), tokens of C (M, M):

    Σ = U diag(s) Uᵀ,   x = C^{1/2} x' diag(s)^{1/2} Uᵀ,   W' = W U diag(s)^{1/2}
    W x^T/√D = (W' x'^T/√D) C^{1/2}

x' has iid entries where x is Gaussian, and iid weights have columns of variances s.

Letters of the shapes: N samples, M tokens, D dimension of a token, P indices.
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
# Standard deviation over mean of a column that counts as constant: rounding of float32 inputs
CONSTANT = 1e-6


class Whitening(eqx.Module):
    """How inputs were whitened or standardised: what maps weights and inputs there and back.

    Attributes:
        variances: s (D,), the eigenvalues of Σ, or the variances of the features: the variances of
            iid weights in the new coordinates, of which the mean is their second moment.
        basis: U (D, D), the eigenvectors of Σ; None: the features themselves.
        tokens: C (M, M); None: tokens were left as they were.
        mean: What was subtracted, (M, D); None: nothing.
        before: The change of coordinates before this one; None: there was none.
    """

    variances: Array
    basis: Array | None
    tokens: Array | None = None
    mean: Array | None = None
    before: Whitening | None = None

    def whitened(self, inputs: Array) -> Array:
        """Return x' = C^{-1/2} (x - x̄) U diag(s)^{-1/2} of inputs (N, M, D), in their precision."""
        inputs = inputs if self.before is None else self.before.whitened(inputs)
        wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
        if self.mean is not None:
            wide = wide - self.mean.astype(wide.dtype)
        if self.tokens is not None:
            wide = jnp.einsum("mk,nkd->nmd", _inverse_root(self.tokens).astype(wide.dtype), wide)
        root = jnp.sqrt(self.variances)
        if self.basis is None:
            flat = wide / root.astype(wide.dtype)
        else:
            flat = jnp.matmul(wide, (self.basis / root).astype(wide.dtype), precision="highest")
        return flat.astype(inputs.dtype)

    def into(self, weights: Array) -> Array:
        """Return W' = W U diag(s)^{1/2} of weights (P, D)."""
        rotated = weights if self.basis is None else weights @ self.basis
        return rotated * jnp.sqrt(self.variances)

    def back(self, weights: Array) -> Array:
        """Return W = W' diag(s)^{-1/2} Uᵀ of weights (P, D), in the coordinates as they came."""
        scaled = weights / jnp.sqrt(self.variances)
        rotated = scaled if self.basis is None else scaled @ self.basis.T
        return rotated if self.before is None else self.before.back(rotated)


def covariance_of(inputs: Array) -> Array:
    """XᵀX/(NM) (D, D) of inputs (N, M, D)."""
    rows = inputs.reshape(-1, inputs.shape[2]).astype(theory_dtype())
    return rows.T @ rows / rows.shape[0]


def whitening_of(
    inputs: Array, covariance: ArrayLike | None, tokens: ArrayLike | None
) -> Whitening:
    """Validate the arguments of `Dataset.whiten`; estimate a covariance that is None."""
    N, M, D = inputs.shape
    C = None if tokens is None else validate.semidefinite("tokens", tokens, M, _SINGULAR, True)
    if covariance is None:
        allowed = f"data of more than D = {D} tokens in all, or a covariance of other inputs"
        check(N * M > D, "covariance", f"None for {N * M} tokens", allowed)
        # the covariance of features is that of tokens without correlations
        independent = inputs
        if C is not None:
            independent = jnp.einsum("mk,nkd->nmd", _inverse_root(C), inputs.astype(theory_dtype()))
        covariance = covariance_of(independent)
    elif len(shape := np.shape(covariance)) == 3 or (len(shape) == 2 and shape[0] > D):
        allowed = f"inputs (N', M', {D}), or (N', {D}), of more than {D} tokens in all"
        others = validate.array("covariance", covariance, allowed)
        others = others[:, None] if others.ndim == 2 else others
        check(others.shape[-1] == D, "covariance", covariance, allowed)
        share = D * D / others.size
        check(share < 1.0, "covariance", covariance, allowed)
        # Σ̂^{-1} of other samples has the mean Σ^{-1}/(1 - c), c = D over their tokens
        covariance = covariance_of(others) / (1.0 - share)
    Sigma = validate.semidefinite("covariance", covariance, D, _SINGULAR, True)
    variances, basis = jnp.linalg.eigh(Sigma)
    return Whitening(variances, basis, C)


def _inverse_root(matrix: Array) -> Array:
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors / jnp.sqrt(values)) @ vectors.T
