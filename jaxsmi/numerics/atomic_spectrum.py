r"""The free convolution of a law of finitely many eigenvalues with a semicircle.

Equations here [theory: random-matrices, Eqs. (42) to (45)], S of eigenvalues λ_k with weights p_k
and R = S + √Δ Z, along the curve w = u + i v(u) in the complex plane [B97]:

    Σ_k p_k/((u - λ_k)² + v²) = 1/Δ,  or v = 0 where the sum at v = 0 is smaller
    x(u) = u + Δ Σ_k p_k (u - λ_k)/((u - λ_k)² + v²),   H = (x - u)/Δ,   μ(x) = v/(πΔ)
    dx/du = |F|²/Re F,   F = 1 - Δ Σ_k p_k/(w - λ_k)²
    ∫ log|x - y| μ(dy) = Σ_k p_k log|w - λ_k| + ½ Δ (H² - v²/Δ²)

x grows with u, so that integrals run over u. Between two eigenvalues the sum at v = 0 is convex,
and its minimum says whether the band has a gap there.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.numerics.roots import bisect, differentiable_root
from jaxsmi.numerics.symmetric_spectrum import AbstractSymmetricSpectrum, band_nodes

_NODES, _LEAST = 768, 16  # nodes in all, and least number for the part of one eigenvalue


class _Curve(eqx.Module):
    """The curve w of the module docstring, for eigenvalues `atoms` (K,) in increasing order with
    `masses` (K,)."""

    atoms: Array
    masses: Array
    delta: Array

    def sum(self, u: Array, power: int, square: Array | float = 0.0) -> Array:
        """Σ_k p_k (u - λ_k)^power/((u - λ_k)² + v²)."""
        away = u[..., None] - self.atoms
        return (away**power / (away**2 + jnp.asarray(square)[..., None])) @ self.masses

    def at(self, u: Array) -> tuple[Array, Array, Array]:
        """v², x and H along u."""
        excess = lambda v2: 1.0 / self.delta - self.sum(u, 0, v2)
        v2 = differentiable_root(excess, jnp.zeros_like(u), self.delta * jnp.ones_like(u))
        v2 = jnp.where(excess(jnp.zeros_like(u)) < 0.0, v2, 0.0)
        hilbert = self.sum(u, 1, v2)
        return v2, u + self.delta * hilbert, hilbert

    def position(self, x: Array) -> Array:
        """u where x(u) = x."""
        reach = jnp.sqrt(self.delta)
        low = jnp.minimum(x, self.atoms[0]) - 2.0 * reach
        high = jnp.maximum(x, self.atoms[-1]) + 2.0 * reach
        return differentiable_root(lambda u: self.at(u)[1] - x, low, high)

    def nodes(self, limits: Array, cuts: Array) -> tuple[Array, Array, Array, Array, Array]:
        """x, masses, H, densities and logarithmic potentials at nodes between the `limits` (2, K)
        in u of each eigenvalue's part, on both sides of `cuts` in u."""
        ends = jnp.concatenate([jnp.full(1, -jnp.inf), cuts, jnp.full(1, jnp.inf)])
        low, high = jnp.clip(limits[..., None], ends[:-1], ends[1:]).reshape(2, -1)
        count = max(_LEAST, _NODES // len(self.atoms))
        u, measure = (a.ravel() for a in lax.stop_gradient(band_nodes(low, high, count)))
        v2, x, hilbert = self.at(u)
        inside = (measure > 0.0) & (v2 > 0.0)
        v = jnp.sqrt(jnp.where(inside, v2, 1.0))
        away = (u + 1j * v)[:, None] - self.atoms
        slope = 1.0 - self.delta * (away**-2.0) @ self.masses.astype(away.dtype)
        stretch = jnp.abs(slope) ** 2 / jnp.where(inside, slope.real, 1.0)
        density = jnp.where(inside, v / (np.pi * self.delta), 0.0)
        mass = jnp.where(inside, density * measure * stretch, 0.0)
        square = hilbert**2 - v2 / self.delta**2
        potential = jnp.log(jnp.abs(away)) @ self.masses + 0.5 * self.delta * square
        return x, mass, hilbert, density, potential

    def limits(self) -> Array:
        """Limits in u of the part of each eigenvalue, (2, K)."""
        atoms, reach = self.atoms, jnp.sqrt(self.delta)
        level = lambda u: self.sum(u, 0) - 1.0 / self.delta

        def rises(u: Array) -> Array:
            away = u[:, None] - atoms
            return (away**-3.0) @ self.masses < 0.0

        left, right = atoms[:-1], atoms[1:]
        # the convex sum is least where its slope changes sign
        least = bisect(rises, left, right)
        gap = level(least) < 0.0
        ends = bisect(lambda u: level(u) < 0.0, left, least)
        starts = bisect(lambda u: level(u) > 0.0, least, right)
        outer = lambda a, b, above: bisect(lambda u: above * level(u) > 0.0, a, b)
        first = outer(atoms[:1] - reach, atoms[:1], 1.0)
        last = outer(atoms[-1:], atoms[-1:] + reach, -1.0)
        starts = jnp.concatenate([first, jnp.where(gap, starts, least)])
        return jnp.stack([starts, jnp.concatenate([jnp.where(gap, ends, least), last])])


class AtomicSpectrum(AbstractSymmetricSpectrum):
    """The law of R; `limits` (2, K): of the part of the band that belongs to each eigenvalue, in
    u."""

    copies: ClassVar[float] = 1.0
    delta: Array
    curve: _Curve
    limits: Array

    def green(self, points: Array) -> tuple[Array, Array]:
        points = jnp.asarray(points, self.delta.dtype)
        v2, _, hilbert = self.curve.at(self.curve.position(points))
        return hilbert, jnp.sqrt(v2) / (np.pi * self.delta)

    def rule(self, cuts: Array) -> tuple[Array, Array, Array]:
        return self.curve.nodes(self.limits, lax.stop_gradient(self.curve.position(cuts)))[:3]


@jax.jit
def atomic_spectrum(atoms: Array, masses: Array, delta: Array) -> AtomicSpectrum:
    """The law of S + √Δ Z (module docstring), for eigenvalues in increasing order.

    Source:
        [B97], [theory: random-matrices, section 6].
    """
    curve = _Curve(atoms, masses, delta)
    limits = lax.stop_gradient(curve.limits())
    x, mass, hilbert, density, potential = curve.nodes(limits, jnp.zeros(0))
    outer = curve.at(jnp.stack([limits[0, 0], limits[1, -1]]))[1]
    # many bands have no four edges: the inner ones are not stated
    inner = jnp.full(2, jnp.nan)
    return AtomicSpectrum(
        edges=jnp.concatenate([outer[:1], inner, outer[1:]]),
        x=x,
        density=density,
        hilbert=hilbert,
        log_potential=potential,
        weight=mass / jnp.where(density > 0.0, density, 1.0),
        delta=delta,
        curve=curve,
        limits=limits,
    )
