r"""One-dimensional rules and series of integrals.

Equations here [theory: numerics, Eqs. (1), (12)]:

* Gauss–Legendre, ∫_a^b f dx ≈ Σ_k w_k f(x_k): exact for polynomials of degree 2n - 1;
* Gauss–Hermite, E f(x) ≈ Σ_k w_k f(x_k) under N(0, 1);
* Chebyshev series Σ_k c_k T_k(x), summed by Clenshaw's recursion;
* orthonormal Hermite polynomials, √(n+1) h_{n+1}(x) = x h_n(x) - √n h_{n-1}(x), E h_n h_m = δ_nm
  under N(0, 1).

Rules are computed once per process, as NumPy arrays: importing this module starts no device.
Integrals in several variables, which refine themselves, are in refining.py; randomised points in
nets.py.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def _frozen(rule: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The rule, read-only: all callers share one copy."""
    for part in rule:
        part.setflags(write=False)
    return rule


@functools.cache
def legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) of the Gauss–Legendre rule on [-1, 1]."""
    return _frozen(np.polynomial.legendre.leggauss(count))


def legendre_panel(count: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) of the Gauss–Legendre rule on [low, high]."""
    nodes, weights = legendre(count)
    half = 0.5 * (high - low)
    return 0.5 * (high + low) + half * nodes, half * weights


@functools.cache
def hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) of the Gauss–Hermite rule under N(0, 1).

    The weights sum to one.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return _frozen((nodes, weights / np.sqrt(2.0 * np.pi)))


def clenshaw(coefficients: np.ndarray, x: Array) -> Array:
    """The Chebyshev series Σ_k c_k T_k(x) of `coefficients` (degree + 1,), at x in [-1, 1]."""
    current = jnp.zeros_like(x)
    previous = jnp.zeros_like(x)
    # backwards from the highest degree: stable, and no table of polynomials
    for c in coefficients[:0:-1]:
        current, previous = 2.0 * x * current - previous + c, current
    return x * current - previous + coefficients[0]


def hermite_polynomials(x: Array, degree: int) -> Array:
    """h_0(x) .. h_degree(x), stacked along a new first axis; He_n = √n! h_n."""
    # orthonormal: entries of order one, where He_n itself grows as √n!
    table = [jnp.ones_like(x), x]
    for n in range(1, degree):
        table.append((x * table[n] - np.sqrt(n) * table[n - 1]) / np.sqrt(n + 1))
    return jnp.stack(table[: degree + 1])
