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

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.numerics.quadrature import legendre_panel
from jaxsmi.numerics.roots import bisect, differentiable_root
from jaxsmi.numerics.symmetric_spectrum import AbstractSymmetricSpectrum

_NODES, _LEAST = 768, 16  # nodes in all, and of one eigenvalue's part of a band


class AtomicSpectrum(AbstractSymmetricSpectrum):
    """The law of R, for eigenvalues `atoms` (K,) in increasing order with `masses` (K,).

    `starts`, `ends`: limits in u of the part of the band that belongs to each eigenvalue.
    """

    copies: ClassVar[float] = 1.0
    atoms: Array
    masses: Array
    delta: Array
    starts: Array
    ends: Array

    def _sum(self, u: Array, power: int, square: Array | float = 0.0) -> Array:
        """Σ_k p_k (u - λ_k)^power/((u - λ_k)² + v²)."""
        away = u[..., None] - self.atoms
        return (away**power / (away**2 + jnp.asarray(square)[..., None])) @ self.masses

    def _curve(self, u: Array) -> tuple[Array, Array, Array]:
        """v, x and H along u."""
        excess = lambda v2: 1.0 / self.delta - self._sum(u, 0, v2)
        v2 = differentiable_root(excess, jnp.zeros_like(u), self.delta * jnp.ones_like(u))
        v2 = jnp.where(excess(jnp.zeros_like(u)) < 0.0, v2, 0.0)
        hilbert = self._sum(u, 1, v2)
        return v2, u + self.delta * hilbert, hilbert

    def _position(self, x: Array) -> Array:
        """u where x(u) = x."""
        reach = jnp.sqrt(self.delta)
        low = jnp.minimum(x, self.atoms[0]) - 2.0 * reach
        high = jnp.maximum(x, self.atoms[-1]) + 2.0 * reach
        return differentiable_root(lambda u: self._curve(u)[1] - x, low, high)

    def green(self, points: Array) -> tuple[Array, Array]:
        v2, _, hilbert = self._curve(self._position(jnp.asarray(points, self.delta.dtype)))
        return hilbert, jnp.sqrt(v2) / (np.pi * self.delta)

    def rule(self, cuts: Array) -> tuple[Array, Array, Array]:
        at = lax.stop_gradient(self._position(cuts))
        return self._nodes(at)[:3]

    def _nodes(self, cuts: Array) -> tuple[Array, Array, Array, Array, Array]:
        """x, masses, H, densities and logarithmic potentials at nodes, on both sides of `cuts` in
        u."""
        starts, ends = self.starts[:, None], self.ends[:, None]
        infinite = jnp.full(1, jnp.inf)
        low = jnp.clip(
            starts, jnp.concatenate([-infinite, cuts]), jnp.concatenate([cuts, infinite])
        )
        high = jnp.clip(ends, jnp.concatenate([-infinite, cuts]), jnp.concatenate([cuts, infinite]))
        low, high = (jnp.ravel(lax.stop_gradient(a))[:, None] for a in (low, high))
        theta, weight = legendre_panel(max(_LEAST, _NODES // len(self.atoms)), 0.0, np.pi)
        half = 0.5 * (high - low)
        u = jnp.ravel(0.5 * (high + low) - half * np.cos(theta))
        measure = jnp.ravel(half * np.sin(theta) * weight)
        v2, x, hilbert = self._curve(u)
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


@jax.jit
def atomic_spectrum(atoms: Array, masses: Array, delta: Array) -> AtomicSpectrum:
    """The law of S + √Δ Z (module docstring), for eigenvalues in increasing order.

    Source:
        [B97], [theory: random-matrices, section 6].
    """
    nothing = jnp.zeros(1)
    law = AtomicSpectrum(
        edges=jnp.zeros(4),
        x=nothing,
        density=nothing,
        hilbert=nothing,
        log_potential=nothing,
        weight=nothing,
        atoms=atoms,
        masses=masses,
        delta=delta,
        starts=nothing,
        ends=nothing,
    )
    starts, ends = lax.stop_gradient(_limits(law))
    law = dataclasses.replace(law, starts=starts, ends=ends)
    x, mass, hilbert, density, potential = law._nodes(jnp.zeros(0))
    outer = law._curve(jnp.stack([starts[0], ends[-1]]))[1]
    # many bands have no four edges: the inner ones are not stated
    inner = jnp.full(2, jnp.nan)
    return dataclasses.replace(
        law,
        edges=jnp.concatenate([outer[:1], inner, outer[1:]]),
        x=x,
        density=density,
        hilbert=hilbert,
        log_potential=potential,
        weight=mass / jnp.where(density > 0.0, density, 1.0),
    )


def _limits(law: AtomicSpectrum) -> tuple[Array, Array]:
    """Limits in u of the part of each eigenvalue (K,)."""
    atoms, reach = law.atoms, jnp.sqrt(law.delta)
    level = lambda u: law._sum(u, 0) - 1.0 / law.delta

    def rises(u: Array) -> Array:
        away = u[:, None] - atoms
        return (away**-3.0) @ law.masses < 0.0

    left, right = atoms[:-1], atoms[1:]
    # the convex sum is least where its slope changes sign
    least = bisect(rises, left, right)
    gap = level(least) < 0.0
    ends = bisect(lambda u: level(u) < 0.0, left, least)
    starts = bisect(lambda u: level(u) > 0.0, least, right)
    outer = lambda a, b, above: bisect(lambda u: above * level(u) > 0.0, a, b)
    first = outer(atoms[:1] - reach, atoms[:1], 1.0)
    last = outer(atoms[-1:], atoms[-1:] + reach, -1.0)
    ends = jnp.concatenate([jnp.where(gap, ends, least), last])
    return jnp.concatenate([first, jnp.where(gap, starts, least)]), ends
