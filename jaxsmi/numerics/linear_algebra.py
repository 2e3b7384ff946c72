"""Functions of symmetric matrices by their eigenvalues, differentiable where eigenvalues agree.

Equation here [theory: numerics, Eq. (17)]: the root R of a positive semi-definite Q has the
derivative that solves R dR + dR R = dQ.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def symmetric(matrix: Array) -> Array:
    """The symmetric part of matrices (..., P, P)."""
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


def symmetric_basis(size: int) -> np.ndarray:
    """Orthonormal basis (n, P, P) of the symmetric P×P matrices, n = P(P+1)/2."""
    rows, columns = np.triu_indices(size)
    each = np.arange(len(rows))
    basis = np.zeros((len(rows), size, size))
    basis[each, rows, columns] = np.where(rows == columns, 1.0, np.sqrt(0.5))
    basis[each, columns, rows] = basis[each, rows, columns]
    return basis


def goe(normal: Array) -> Array:
    """Matrices (..., n, n) of the Gaussian orthogonal ensemble from iid N(0, 1) ones: entries of
    variance 1, on the diagonal 2."""
    return (normal + jnp.swapaxes(normal, -1, -2)) * np.sqrt(0.5).astype(normal.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def sqrt_psd(Q: Array, null: float = 1e-7) -> Array:
    """The symmetric square root R of a positive semi-definite matrix.

    Eigenvalues that rounding made negative count as zero. In the eigenbasis (dR)_ij = (dQ)_ij/(r_i
    + r_j), r the eigenvalues of R: also where eigenvalues of Q agree. Inside the null space of Q
    the root has no derivative, and that part of dQ is dropped. Fixed points never ask for it: a
    direction that is not learned stays so.

    Args:
        Q: The matrix (P, P); its symmetric part is taken.
        null: Where r_i + r_j is at most `null` times √(1 + max r²), i and j are in the null space.
            Zero drops a part only where the root is exactly zero, so that R R keeps the derivative
            dQ wherever it can. Default 1e-7.

    Returns:
        R (P, P).
    """
    del null
    roots, vectors = _roots(Q)
    return (vectors * roots) @ vectors.T


def _roots(Q: Array) -> tuple[Array, Array]:
    """Square roots of the eigenvalues, and the eigenvectors."""
    values, vectors = jnp.linalg.eigh(symmetric(Q))
    positive = values > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1.0)), 0.0), vectors


@sqrt_psd.defjvp
def _sqrt_psd_jvp(
    null: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    roots, vectors = _roots(primals[0])
    change = vectors.T @ symmetric(tangents[0]) @ vectors
    sums = roots[:, None] + roots[None, :]
    # the derivative would be infinite there
    dropped = sums <= null * jnp.sqrt(1.0 + jnp.max(roots) ** 2)
    change = jnp.where(dropped, 0.0, change / jnp.where(dropped, 1.0, sums))
    return (vectors * roots) @ vectors.T, vectors @ change @ vectors.T


def inverse_root(matrix: Array) -> Array:
    """Q^{-1/2} of a positive semi-definite matrix (P, P).

    Directions below 1e-14 of the largest eigenvalue give zero.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    tiny = jnp.finfo(matrix.dtype).tiny
    # 1e-14: smaller eigenvalues are rounding of the largest one
    scale = jnp.where(values > 1e-14 * values[-1], 1.0 / jnp.sqrt(jnp.maximum(values, tiny)), 0.0)
    return (vectors * scale) @ vectors.T


def positive_part(matrix: Array) -> Array:
    """The symmetric part of a matrix (P, P), its negative eigenvalues replaced by zero."""
    values, vectors = jnp.linalg.eigh(symmetric(matrix))
    return (vectors * jnp.maximum(values, 0.0)) @ vectors.T


def conjugation(A: Array, B: Array) -> Array:
    """X ↦ ⟨Σ_{t,u} A_{tu} X B_{tu}ᵀ⟩ of samples A, B (n, P, M, P, M), as a tensor (P, P, P, P)."""
    return jnp.einsum("npmat,nqmbt->pqab", A, B) / len(A)


def inverse_of_many(matrices: Array) -> tuple[Array, Array]:
    """Invert many small positive definite matrices (n, k, k).

    A batched LAPACK call does one after the other, and inside two nested loops it does not come
    back (jaxlib 0.10, CPU, k = 4, n = 4096): Gauss-Jordan steps over all of them instead.

    Returns:
        The inverses (n, k, k), and True if all matrices are positive definite.
    """
    unit = jnp.eye(matrices.shape[-1], dtype=matrices.dtype)
    inverses, definite = jax.vmap(lambda A: solve_definite(A, unit))(matrices)
    return inverses, jnp.all(definite)


def solve_definite(A: Array, b: Array) -> tuple[Array, Array]:
    """A^{-1} b for one small symmetric A (k, k) and b (k, m), for many under `vmap`.

    Gauss-Jordan steps, unrolled: elementwise operations over all samples (see `inverse_of_many`).

    Returns:
        A^{-1} b (k, m), and True if A is positive definite (its pivots are positive).
    """
    definite = jnp.asarray(True)
    size = A.shape[-1]
    table = jnp.concatenate([A, b], axis=1)
    for i in range(size):
        pivot = table[i, i]  # no search for a larger one: definite matrices need none
        definite = definite & (pivot > 0.0)
        row = table[i] / jnp.where(pivot != 0.0, pivot, 1.0)
        table = (table - table[:, i][:, None] * row).at[i].set(row)
    return table[:, size:], definite


def spectral_radius(J: Array) -> Array:
    """Spectral radius of any square matrix, by the growth of its powers: ‖J^n‖^{1/n}, n = 2^30."""
    # no eigenvalues: those of a general matrix are not there on every accelerator. ‖J^n‖^{1/n}
    # exceeds the radius by at most c^{1/n}, c the condition of the eigenvectors: to rounding
    squarings = 30
    tiny = jnp.finfo(J.dtype).tiny

    def square(_: int | Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        power, exponent = carry
        power = power @ power
        # normalised, as the power itself would overflow
        norm = jnp.sqrt(jnp.sum(power**2)) + tiny
        return power / norm, 2.0 * exponent + jnp.log(norm)

    norm = jnp.sqrt(jnp.sum(J**2)) + tiny
    start = (J / norm, jnp.log(norm))
    return jnp.exp(jax.lax.fori_loop(0, squarings, square, start)[1] / 2.0**squarings)
