"""Small matrices: functions of eigenvalues, differentiable where these agree; triangular factors.

Equations here: the root R of a positive semi-definite Q has the derivative that solves R dR + dR R
= dQ [theory: numerics, Eq. (22)]; Λ Λᵀ = A (Cholesky); and Bartlett's decomposition of a Wishart
matrix [theory: online-sgd, Eqs. (54), (58)]: n rows of m standard normals have the Gram matrix A Aᵀ
with A_ii² ~ χ²_{m - i}, i = 0, .., n - 1, and A_ij ~ N(0, 1) below the diagonal, all independent.
χ² comes from Marsaglia and Tsang's rejection with a fixed number of tries, more of them for few
degrees of freedom; the error of its distribution is below 1e-6 in total variation.
"""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import clamp_to_tiny, positive_root, symmetric


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
    return positive_root(values), vectors


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
    # 1e-14: smaller eigenvalues are rounding of the largest one
    scale = jnp.where(values > 1e-14 * values[-1], 1.0 / jnp.sqrt(clamp_to_tiny(values)), 0.0)
    return (vectors * scale) @ vectors.T


def relative_eigenvalues(change: Array, matrix: Array) -> Array:
    """Eigenvalues of V^{-1/2} A V^{-1/2}, ascending, for a symmetric A and a positive
    semi-definite V; zero in the directions that `inverse_root` leaves out."""
    root = inverse_root(matrix)
    return jnp.linalg.eigvalsh(symmetric(root @ change @ root))


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
    # not every accelerator has eigenvalues of a general matrix. ‖J^n‖^{1/n}
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


_TRIES = 8  # proposals of a χ²: all fail with probability < 1e-6 at one degree of freedom
_FEW_TRIES, _MANY_FREEDOMS = 2, 57  # two proposals do from 57 degrees of freedom on
_PIVOT = 1e-14  # share of the largest entry: a smaller pivot is rounding


def total(terms: list[Array]) -> Array:
    """The sum of arrays, from left to right."""
    return functools.reduce(operator.add, terms)


def triangular_root(square: Array) -> Array:
    """Lower triangular Λ with Λ Λᵀ = A of a positive semi-definite A (n, n): Cholesky's, where a
    pivot below 1e-14 of the largest diagonal entry, or below zero, counts as zero."""
    n = len(square)
    least = _PIVOT * jnp.max(jnp.abs(jnp.diagonal(square)))
    zero = jnp.zeros((), square.dtype)
    Lambda = [[zero] * n for _ in range(n)]
    for j in range(n):
        # unrolled for small n: elementwise over all samples under vmap, unlike LAPACK's calls
        pivot = square[j, j] - total([zero, *(Lambda[j][i] ** 2 for i in range(j))])
        there = pivot > least
        root = jnp.sqrt(jnp.where(there, pivot, 1.0))
        Lambda[j][j] = jnp.where(there, root, 0.0)
        for i in range(j + 1, n):
            left = square[i, j] - total([zero, *(Lambda[i][k] * Lambda[j][k] for k in range(j))])
            Lambda[i][j] = jnp.where(there, left / root, 0.0)
    return jnp.stack([jnp.stack(row) for row in Lambda])


def coordinates_of(frame: Array, M: Array, Q: Array) -> tuple[Array, Array]:
    """Coordinates Y (P, k) and Z (P, P) of rows with overlaps M = Y Lᵀ with fixed rows of Gram
    matrix L Lᵀ, and Q = Y Yᵀ + Z Zᵀ; a fixed row that those before it span has none of its own."""
    # a zero pivot would make the solution, and its derivative, infinite
    independent = jnp.abs(jnp.diagonal(frame)) > 0.0
    safe = frame + jnp.diag(jnp.where(independent, 0.0, 1.0))
    Y = jax.scipy.linalg.solve_triangular(safe, M.T, lower=True)
    Y = jnp.where(independent[:, None], Y, 0.0).T
    return Y, triangular_root(Q - Y @ Y.T)


def acceptance_tries(freedom: int) -> int:
    """Proposals of a χ² with so many degrees of freedom: all fail with probability below 1e-6."""
    return _FEW_TRIES if freedom >= _MANY_FREEDOMS else _TRIES


def chi_square(count: Array, normals: Array) -> Array:
    """χ² with `count` degrees of freedom, of standard normals (.., 3, tries): the first of its
    proposals to be accepted. Half the sum of two squares is minus the logarithm of a uniform."""
    d = (0.5 * count - 1.0 / 3.0)[..., None]
    x = normals[..., 0, :]
    spare = 0.5 * (normals[..., 1, :] ** 2 + normals[..., 2, :] ** 2)
    v = (1.0 + x / jnp.sqrt(9.0 * d)) ** 3
    safe = jnp.where(v > 0.0, v, 1.0)
    accepted = (v > 0.0) & (-spare < 0.5 * x**2 + d * (1.0 - safe + jnp.log(safe)))
    # if all fail the last proposal stands; backwards, so that the first accepted one wins
    value = safe[..., -1]
    for k in range(x.shape[-1] - 2, -1, -1):
        value = jnp.where(accepted[..., k], safe[..., k], value)
    return 2.0 * d[..., 0] * value


def bartlett_size(rows: int) -> int:
    """How many standard normals `bartlett` needs."""
    return rows * (rows + 3 * _TRIES)


def bartlett(normals: Array, rows: int, freedom: ArrayLike) -> Array:
    """Bartlett's A (n, n) of n rows of `freedom` numbers, n <= freedom, from `bartlett_size`
    standard normals."""
    below, proposals = jnp.split(normals, [rows * rows])
    count = jnp.asarray(freedom, normals.dtype) - jnp.arange(rows, dtype=normals.dtype)
    diagonal = jnp.sqrt(chi_square(count, proposals.reshape(rows, 3, _TRIES)))
    return jnp.tril(below.reshape(rows, rows), -1) + jnp.diag(diagonal)
