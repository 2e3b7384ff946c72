r"""Calibration of message passing: precision and fields brought to what the data say of them.

Theory says b = A W* + A^{1/2} ξ. A random start breaks this: its overlap M is √D times off its
norm, and at finite D the mismatch grows with the signal. What holds off the Nishimori line too,
along each eigenvector u of A (eigenvalue a, s = uᵀSu), is

    b = m W* + n^{1/2} ξ,   n = uᵀ(Σ g gᵀ/D)u

The data say T = uᵀb bᵀu/(nD) - 1 for the signal-to-noise ratio m²s/n instead of a s, with standard
error √(2/D)(1 + a s). Where the two differ by δ > 3 of these, b is rescaled to a sufficient
statistic of the assumed form:

    a → a' = a + (1 - 9/δ²)(T/s - a) along u (at least a/10⁴: T may be negative)
    b → (a'/n)^{1/2} b

Once a layer is learned (a s > 1) Σ g gᵀ is heavy-tailed, and theory's n = a is the better noise:

    n → (n + a·as)/(1 + as)

At D → ∞ from a Bayes-consistent start nothing is rescaled, and undamped
message passing follows state evolution step by step.

Source: derived for this library [theory: multi-index, Eqs. (38) to (40)].
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

__all__ = ["Calibration", "calibration", "no_calibration"]


class Calibration(eqx.Module):
    """`precision`: the calibrated A (P, P); `rescaling`: the matrix (P, P) that multiplies b, and
    the Onsager term."""

    precision: Array
    rescaling: Array


def no_calibration(A: Array) -> Calibration:
    """The textbook algorithm: A as it is, b as it is."""
    return Calibration(A, jnp.eye(A.shape[0], dtype=A.dtype))


def calibration(b: Array, A: Array, noise: Array, second_moment: Array) -> Calibration:
    """What the data say of precision and fields (module docstring).

    Args:
        b: Fields of the prior, (P, D).
        A: Their precision as it was estimated, (P, P).
        noise: Σ g gᵀ/D, (P, P).
        second_moment: S of the prior, (P, P).

    Returns:
        A `Calibration`.
    """
    D = b.shape[1]
    a, vectors = jnp.linalg.eigh(A)
    s = jnp.einsum("pk,pq,qk->k", vectors, second_moment, vectors)
    n = jnp.einsum("pk,pq,qk->k", vectors, noise, vectors)
    positive = (a > 0.0) & (n > 0.0)
    a = jnp.where(positive, a, 1.0)
    n = jnp.where(positive, n, 1.0)
    n = (n + a * a * s) / (1.0 + a * s)
    T = jnp.sum((vectors.T @ b) ** 2, axis=1) / (n * D) - 1.0
    deviation = (T - a * s) / (jnp.sqrt(2.0 / D) * (1.0 + a * s))
    significant = jnp.where(jnp.abs(deviation) > 3.0, 1.0 - 9.0 / deviation**2, 0.0)
    new = jnp.maximum(a + significant * (T / s - a), 1e-4 * a)
    scale = jnp.where(significant > 0.0, jnp.sqrt(new / n), 1.0)
    new = jnp.where(positive, new, 0.0)
    rescaling = (vectors * jnp.where(positive, scale, 1.0)) @ vectors.T
    return Calibration((vectors * new) @ vectors.T, rescaling)
