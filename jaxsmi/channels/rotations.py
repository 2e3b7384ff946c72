r"""The integral over the rotations that an attention matrix of rank two leaves open.

Equations here [theory: deep-attention, Eqs. (28) to (33)]. The label fixes h (2, M) up to an
orthogonal matrix; with two tokens, what it fixes is a line e vᵀ, and the component c of h across
it, common to the tokens, is free as well. In whitened fields, N = Λ_LL^{-1} of the last block and
a the whitened mean of that block given the inner ones,

    r(θ) = N R_θ X - a = cos θ · N X + sin θ · N J X - a,   J = [[0, -1], [1, 0]]
    e^ℓ = Σ_± ∫ dθ e^{-|r(θ)|²/2},   X_± = diag(1, ±1) X            three tokens or more
    e^ℓ = ∫ dθ ∫ dc e^{-|r(θ) + c n(θ)|²/2},   n = N e_⊥,   X = (v, 0)           two tokens

The integral over c is a Gaussian one.

As V falls to zero the angle is known ever more sharply, and the nodes follow: the circle is cut
between its two highest maxima, and on each arc Gauss-Legendre nodes sit at θ_0 + w tan x, with θ_0
the maximum and w a multiple of its width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.channels.attention_link import Components
from jaxsmi.channels.fibres import with_difference
from jaxsmi.numerics.refining_sums import Branch

__all__ = ["copies"]

# empirical, against fine rules at V from 1 to 1e-6 (tests/unit/test_orbits.py):
_SCAN = 32  # angles among which the maxima are searched: ℓ has at most four, by its two harmonics
_NEWTON = 6  # steps towards each of them
_WIDTH_STEPS = 4  # steps towards its width
_SPREAD = 2.5  # w in units of a maximum's half width


class Orbit(NamedTuple):
    """Whitened residuals r(θ) = cos θ · `cosine` + sin θ · `sine` - `centre` (2, M, 1, D, ...), the
    third axis for arcs, D reflections; `across` (2, 2) is N where a component across is free, else
    None."""

    cosine: Array
    sine: Array
    centre: Array
    across: Array | None

    @property
    def tokens(self) -> int:
        """M."""
        return self.cosine.shape[1]

    def direction(self, cos: Array, sin: Array) -> Array:
        """n(θ) (2, ...), along which the free component moves the whitened fields."""
        N = self.across
        assert N is not None
        return jnp.stack([N[p, 1] * cos - N[p, 0] * sin for p in range(2)])

    def residuals(self, angle: Array) -> tuple[Array, Array]:
        """r (2, M, ...) at the free component's mean, and the logarithm of the weight."""
        cos = jnp.cos(angle)
        sin = jnp.sin(angle)
        r = cos * self.cosine + sin * self.sine - self.centre
        if self.across is None:
            return r, -0.5 * jnp.sum(r * r, axis=(0, 1))
        n = self.direction(cos, sin)
        square = jnp.sum(n * n, axis=0)
        along = jnp.sum(n * jnp.mean(r, axis=1), axis=0) / square
        r = r - (n * along)[:, None]
        volume = 0.5 * (np.log(2.0 * np.pi / self.tokens) - jnp.log(square))
        return r, volume - 0.5 * jnp.sum(r * r, axis=(0, 1))


def _orbit(X: Array, mean: Array, root: Array) -> Orbit:
    """The orbit of a block X (2, M, ...), defined up to a rotation, around its mean (2, M, ...);
    `root` (2, 2) is Λ."""
    free = X.shape[1] == 2
    a, b, c = 1.0 / root[0, 0], root[1, 0], 1.0 / root[1, 1]
    zero = jnp.zeros_like(a)
    N = jnp.stack([jnp.stack([a, zero]), jnp.stack([-a * b * c, c])])
    centre = jnp.stack([a * mean[0], c * (mean[1] - a * b * mean[0])])
    mirrored = [] if free else [jnp.stack([X[0], -X[1]])]
    copies = jnp.stack([X, *mirrored], axis=2)[:, :, None]
    turned = jnp.stack([-copies[1], copies[0]])
    # a sum of two terms, not a contraction: which would round in single precision on some GPUs
    whiten = lambda x: jnp.stack([N[p, 0] * x[0] + N[p, 1] * x[1] for p in range(2)])
    return Orbit(whiten(copies), whiten(turned), centre[:, :, None, None], N if free else None)


class _Arcs(NamedTuple):
    """Two arcs of the circle: their maxima, the width w of the map, and the ends x of its
    variable, all (2, D, ...)."""

    top: Array
    width: Array
    low: Array
    high: Array


def _slopes(function: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    """First and second derivative of an elementwise function."""
    one = jnp.ones_like(x)
    first = lambda x: jax.jvp(function, (x,), (one,))[1]
    return jax.jvp(first, (x,), (one,))


def _arcs(orbit: Orbit) -> _Arcs:
    """The circle, cut at the lowest points between its two highest maxima."""
    height = lambda angle: orbit.residuals(angle)[1]
    step = 2.0 * np.pi / _SCAN
    dtype = orbit.cosine.dtype
    angles = (jnp.arange(_SCAN) * step).astype(dtype)
    values = lax.map(height, angles.reshape(-1, *[1] * (orbit.cosine.ndim - 2)))
    k = jnp.arange(_SCAN).reshape(-1, *[1] * (values.ndim - 1))
    first = jnp.argmax(values, axis=0)
    peak = (values >= jnp.roll(values, 1, axis=0)) & (values >= jnp.roll(values, -1, axis=0))
    apart = (k - first) % _SCAN
    peak = peak & (apart > 1) & (apart < _SCAN - 1)
    second = jnp.argmax(jnp.where(peak, values, -jnp.inf), axis=0)
    alone = ~jnp.any(peak, axis=0)
    gap = jnp.where(alone, _SCAN // 2, (second - first) % _SCAN)
    lowest = lambda inside: jnp.argmin(jnp.where(inside, values, jnp.inf), axis=0)
    after = (lowest((apart > 0) & (apart < gap)) - first) % _SCAN
    before = (lowest(apart > gap) - first) % _SCAN
    # one maximum alone: two arcs that meet at a quarter turn from it
    after = jnp.where(alone, _SCAN // 4, after)
    before = jnp.where(alone, _SCAN - _SCAN // 4, before)
    start = first * step
    low = jnp.concatenate([before - _SCAN, after]) * step
    high = jnp.concatenate([after, before]) * step
    middle = jnp.concatenate([jnp.zeros_like(gap), gap]) * step
    low, high, middle = (x.astype(dtype) for x in (low, high, middle))

    def climb(_: int, angle: Array) -> Array:
        slope, bend = _slopes(height, start + angle)
        uphill = 0.25 * step * jnp.sign(slope)
        move = jnp.where(bend < 0.0, -slope / jnp.where(bend < 0.0, bend, -1.0), uphill)
        return jnp.clip(
            angle + move, jnp.maximum(middle - step, low), jnp.minimum(middle + step, high)
        )

    top = lax.fori_loop(0, _NEWTON, climb, middle)
    width = _SPREAD * _half_width(height, start + top)
    low, high = (jnp.arctan((x - top) / width) for x in (low, high))
    return _Arcs(start + top, width, low, high)


def _half_width(height: Callable[[Array], Array], top: Array) -> Array:
    """How far from a maximum ℓ falls by about one half; from its curvature, then by looking, for
    maxima that are flat, or about to part into two."""
    peak = height(top)
    bend = _slopes(height, top)[1]
    width = 1.0 / jnp.sqrt(jnp.maximum(-bend, 1.0))

    def look(_: int, width: Array) -> Array:
        lowest = jnp.minimum(height(top + width), height(top - width))
        drop = jnp.clip(2.0 * (peak - lowest), 0.1, 1e6)
        return jnp.minimum(width * drop**-0.4, 0.75)

    return lax.fori_loop(0, _WIDTH_STEPS, look, width)


def _rotated(orbit: Orbit, arcs: _Arcs, nodes: int) -> Branch:
    """The integral over the angle by `nodes` nodes on each arc: its logarithm, and mean and second
    moments of r, row by row."""
    M = orbit.tokens
    x, weight = (jnp.asarray(v, arcs.top.dtype) for v in np.polynomial.legendre.leggauss(nodes))
    top = jnp.max(lax.stop_gradient(orbit.residuals(arcs.top)[1]), axis=(0, 1))
    pairs = [(i, j) for i in range(2 * M) for j in range(i, 2 * M)]
    left, right = (np.array(side) for side in zip(*pairs, strict=True))
    middle = 0.5 * (arcs.high + arcs.low)
    half = 0.5 * (arcs.high - arcs.low)

    def add(k: Array, sums: Array) -> Array:
        shift = jnp.tan(middle + half * x[k])
        angle = arcs.top + arcs.width * shift
        r, log_weight = orbit.residuals(angle)
        spacing = weight[k] * half * arcs.width * (1.0 + shift * shift)
        w = spacing * jnp.exp(jnp.minimum(log_weight - top, 300.0))  # a peak that was missed
        flat = r.reshape(2 * M, *r.shape[2:])
        products = flat[left] * flat[right]
        if orbit.across is not None:
            n = orbit.direction(jnp.cos(angle), jnp.sin(angle))
            n = n / jnp.sqrt(jnp.sum(n * n, axis=0))
            products = products + n[left // M] * n[right // M] / M
        each = jnp.concatenate([jnp.ones_like(w)[None], flat, products])
        return sums + jnp.sum(w * each, axis=(1, 2))

    count = 1 + 2 * M + len(pairs)
    sums = lax.fori_loop(0, nodes, add, jnp.zeros((count, *top.shape), top.dtype))
    mass = sums[0]
    moments = sums[1:] / mass
    products = dict(zip(pairs, moments[2 * M :], strict=True))
    return Branch(top + jnp.log(mass), list(moments[: 2 * M]), products)


def copies(
    block: Components,
    centre: Components,
    root: Array,
    nodes: tuple[int, int],
    power: float = 1.5,
) -> list[Branch]:
    """The orbit that a label leaves open of a last block of rank two, rows of M arrays (S, n);
    `centre` is its mean given the inner fields, `root` (2, 2) its Λ. `nodes`: of each arc in a
    rough and a fine rule, the error being this `power` of their difference."""
    X, mean = (jnp.stack([jnp.stack(list(row)) for row in rows]) for rows in (block, centre))
    orbit = _orbit(X, mean, root)
    # where nodes lie changes nothing
    arcs = _arcs(lax.stop_gradient(orbit))
    rough, fine = (_rotated(orbit, arcs, count) for count in nodes)
    differences = [jnp.abs(a - b) for a, b in zip(rough.residuals, fine.residuals, strict=True)]
    difference = jnp.abs(jnp.expm1(rough.log_weight - fine.log_weight))
    difference = difference + functools.reduce(jnp.maximum, differences)
    products = fine.products or {}
    return [with_difference(fine.log_weight, fine.residuals, products, difference, power)]
