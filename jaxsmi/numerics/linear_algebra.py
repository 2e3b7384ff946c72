"""TODO numerics.linear_algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array


@jax.custom_jvp
def sqrt_psd(Q: Array) -> Array:
    """Symmetric square root R of a positive semi-definite matrix; negative rounding is cut at zero.

    Its derivative solves R dR + dR R = dQ, also where eigenvalues of Q agree, for dQ that leave the null space of Q alone
    (as those of a fixed point do: a direction not learned stays so); the part of dQ inside the null space is dropped.
    """
    return _eigen_sqrt(Q)[2]


def _eigen_sqrt(Q: Array) -> tuple[Array, Array, Array]:
    values, vectors = jnp.linalg.eigh(0.5 * (Q + Q.T))
    safe = jnp.where(values > 0.0, values, 1.0)
    roots = jnp.where(values > 0.0, jnp.sqrt(safe), 0.0)
    return roots, vectors, (vectors * roots) @ vectors.T


@sqrt_psd.defjvp
def _sqrt_psd_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (Q,), (dQ,) = primals, tangents
    roots, vectors, root = _eigen_sqrt(Q)
    moved = vectors.T @ (0.5 * (dQ + dQ.T)) @ vectors
    sums = roots[:, None] + roots[None, :]
    null = sums <= 1e-7 * jnp.sqrt(1.0 + jnp.max(roots) ** 2)
    moved = jnp.where(null, 0.0, moved / jnp.where(null, 1.0, sums))
    return root, vectors @ moved @ vectors.T


def inverse_root(matrix: Array) -> Array:
    values, vectors = jnp.linalg.eigh(matrix)
    small = jnp.finfo(matrix.dtype).tiny
    scale = jnp.where(values > 1e-14 * values[-1], 1.0 / jnp.sqrt(jnp.maximum(values, small)), 0.0)
    return (vectors * scale) @ vectors.T
