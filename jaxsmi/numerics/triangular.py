"""Triangular factors of Gram matrices, and of those of random rows.

Equations here [theory: online-sgd, Eqs. (54), (58)]: Λ Λᵀ = A (Cholesky), and Bartlett's
decomposition of a Wishart matrix: n rows of m standard normals have the Gram matrix A Aᵀ with
A_ii² ~ χ²_{m - i}, i = 0, .., n - 1, and A_ij ~ N(0, 1) below the diagonal, all independent. χ²
comes from Marsaglia and Tsang's rejection with a fixed number of tries, more of them for few
degrees of freedom; the error of its distribution is below 1e-6 in total variation.
"""

from __future__ import annotations

import functools
import operator

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

_TRIES = 8  # proposals of a χ²: all fail with probability < 1e-6 at one degree of freedom
_FEW_TRIES, _MANY_FREEDOMS = 2, 57  # two proposals do from 57 degrees of freedom on
_PIVOT = 1e-14  # of the largest entry: a smaller pivot is rounding


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
