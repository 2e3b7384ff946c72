r"""The law of a matrix plus noise: bands, quadrature and the best estimate.

A law μ lives on one or two bands of the real axis. Integrals over it run over a coordinate w in
which a band is smooth, w = middle - half·cos θ with Gauss–Legendre nodes in θ ∈ [0, π], which
removes the square roots at the edges: ∫ f dμ = Σ weight · density · f(x). A band of width zero has
weight zero [theory: random-matrices, section 3].
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.numerics.quadrature import legendre_panel

NODES = 96  # Gauss–Legendre nodes a band: 1e-13 for errors, 1e-11 where a gap closes

_THETA, _WEIGHT = legendre_panel(NODES, 0.0, np.pi)


class AbstractSpectrum(eqx.Module):
    """The law μ of the eigenvalues or singular values of a matrix plus noise.

    Attributes:
        edges: The edges (4,) from left to right; the two of the gap are NaN where there is none.
        gap: There is a gap.
        x: Nodes (192,) of quadrature, band by band.
        density: μ(x).
        hilbert: H(x).
        log_potential: ∫ log|x - y| μ(dy), of an even law over y > 0 with x² - y².
        weight: Weights of `mean`.
        copies: 2 where μ is even and the nodes cover its positive half, else 1.
    """

    edges: Array
    gap: Array
    x: Array
    density: Array
    hilbert: Array
    log_potential: Array
    weight: Array
    copies: eqx.AbstractClassVar[float]

    def mean(self, values: Array) -> Array:
        """∫ f dμ over the real axis, from f at the nodes `x`."""
        return self.copies * jnp.sum(self.weight * self.density * values)

    @property
    @abc.abstractmethod
    def error(self) -> Array:
        """Mean squared error of the best estimate of the matrix."""

    @abc.abstractmethod
    def green(self, points: Array) -> tuple[Array, Array]:
        """(H, μ) at real points of any shape: on the support, in the gap or outside."""

    @abc.abstractmethod
    def shrink(self, values: Array, hilbert: Array | None = None) -> Array:
        """Eigenvalues or singular values of the best estimate, from `values` and H there, by
        default that of the law."""


def band_nodes(low: Array, high: Array) -> tuple[Array, Array]:
    """Nodes and weights (bands, 96) of the rule on bands from `low` to `high` (bands,)."""
    half = 0.5 * (high - low)[:, None]
    middle = 0.5 * (high + low)[:, None]
    return middle - half * np.cos(_THETA), half * np.sin(_THETA) * _WEIGHT


def existing_edges(edges: Array, gap: Array) -> Array:
    """The edges (4,), those of the gap NaN where there is none."""
    return jnp.where(gap | jnp.asarray([True, False, False, True]), edges, jnp.nan)


def positive_root(square: Array) -> Array:
    """√square, zero where it is not positive, without NaN in the derivative."""
    positive = square > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
