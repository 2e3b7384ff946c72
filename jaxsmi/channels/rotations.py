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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.channels.base import unwhiten
from jaxsmi.channels.nested import with_difference
from jaxsmi.numerics.refining import Moments
from jaxsmi.numerics.refining_sums import Branch, Copy

__all__ = ["alone", "copies"]

_NODES = (16, 24)  # of each arc, inside another integral: the error of the first to the power 3/2
_BLOCK = 256  # samples worked on at once
_FINE_NODES = (32, 48)  # where the angle is all there is: their difference is the error

_SCAN = 32  # angles among which the maxima are looked for
_NEWTON = 6  # steps towards each of them
_LOOKS = 4  # steps towards its width
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


class _Height(NamedTuple):
    """ℓ(θ) up to a constant, by a few numbers that are computed once: what nodes are placed by.

    The quadratic form of (cos θ, sin θ) and its linear part; with a free component across, of the
    tokens' deviations from their mean, and the means' distance (`across` · (1, cos θ, sin θ))² from
    the line n(θ), over |n|², `norm` its three entries.
    """

    square: Array
    linear: Array
    across: Array | None
    norm: Array | None

    def __call__(self, angle: Array) -> Array:
        cos = jnp.cos(angle)
        sin = jnp.sin(angle)
        a, b, c = self.square
        form = 0.5 * (a * cos * cos + b * sin * sin) + c * cos * sin
        height = self.linear[0] * cos + self.linear[1] * sin - form
        if self.across is None or self.norm is None:
            return height
        n = self.norm[0] * cos * cos + self.norm[1] * sin * sin + self.norm[2] * cos * sin
        distance = self.across[0] + self.across[1] * cos + self.across[2] * sin
        # two tokens: M distance²/2
        return height - distance * distance / n - 0.5 * jnp.log(n)


def _height(orbit: Orbit) -> _Height:
    """The height of an orbit."""
    P, Q, a, N = orbit
    across = norm = None
    if N is not None:
        p, q, mean = (jnp.mean(x, axis=1) for x in (P, Q, a))
        P = P - p[:, None]
        Q = Q - q[:, None]
        a = a - mean[:, None]
        cross = lambda x, y: x[0] * y[1] - x[1] * y[0]
        constant = cross(N[:, 1], p)  # n × N e v̄, whatever the angle
        columns = [cross(N[:, 1], mean), cross(N[:, 0], mean)]
        shape = jnp.broadcast_shapes(constant.shape, columns[0].shape)
        each = [constant, -columns[0], columns[1]]
        across = jnp.stack([jnp.broadcast_to(x, shape) for x in each])
        norm = jnp.stack([N[:, 1] @ N[:, 1], N[:, 0] @ N[:, 0], -2.0 * (N[:, 0] @ N[:, 1])])
    total = lambda x, y: jnp.sum(x * y, axis=(0, 1))
    square = jnp.stack([total(P, P), total(Q, Q), total(P, Q)])
    return _Height(square, jnp.stack([total(P, a), total(Q, a)]), across, norm)


def orbit_of(X: Array, centre: Array, whiten: Array) -> Orbit:
    """The orbit of X (2, M, ...), the last block up to a rotation, around its whitened mean
    `centre` (2, M, ...); `whiten` (2, 2) is N."""
    free = X.shape[1] == 2
    copies = X[:, :, None, None]
    if not free:
        mirrored = jnp.stack([X[0], -X[1]])
        copies = jnp.stack([X, mirrored], axis=2)[:, :, None]
    turned = jnp.stack([-copies[1], copies[0]])

    def whitened(x: Array) -> Array:
        # a sum of two terms, not a contraction: which would round in single precision on some GPUs
        return jnp.stack([whiten[p, 0] * x[0] + whiten[p, 1] * x[1] for p in range(2)])

    across = whiten if free else None
    return Orbit(whitened(copies), whitened(turned), centre[:, :, None, None], across)


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


def _arcs(height: _Height) -> _Arcs:
    """The circle, cut at the lowest points between its two highest maxima."""
    step = 2.0 * np.pi / _SCAN
    dtype = height.linear.dtype
    values = lax.map(lambda k: height((k * step).astype(dtype)), jnp.arange(_SCAN))
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


def _half_width(height: _Height, top: Array) -> Array:
    """How far from a maximum ℓ falls by about one half; from its curvature, then by looking, for
    maxima that are flat, or about to part into two."""
    peak = height(top)
    bend = _slopes(height, top)[1]
    width = 1.0 / jnp.sqrt(jnp.maximum(-bend, 1.0))

    def look(_: int, width: Array) -> Array:
        lowest = jnp.minimum(height(top + width), height(top - width))
        drop = jnp.clip(2.0 * (peak - lowest), 0.1, 1e6)
        return jnp.minimum(width * drop**-0.4, 0.75)

    return lax.fori_loop(0, _LOOKS, look, width)


def _rotated(orbit: Orbit, arcs: _Arcs, nodes: int) -> tuple[Branch, Array]:
    """The integral over the angle by `nodes` nodes on each arc: its logarithm, and mean and second
    moments of r, row by row; beside it (Σ w)²/Σ w²."""
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
        each = jnp.concatenate([jnp.ones_like(w)[None], w[None], flat, products])
        return sums + jnp.sum(w * each, axis=(1, 2))

    count = 2 + 2 * M + len(pairs)
    sums = lax.fori_loop(0, nodes, add, jnp.zeros((count, *top.shape), top.dtype))
    mass = sums[0]
    moments = sums[2:] / mass
    products = dict(zip(pairs, moments[2 * M :], strict=True))
    return Branch(top + jnp.log(mass), list(moments[: 2 * M]), products), mass**2 / sums[1]


def copies(
    block: Sequence[Sequence[Array]], centre: Sequence[Sequence[Array]], root: Array
) -> list[Copy]:
    """What a label leaves open of the last block, rows of M arrays (S, n): two signs of rank one,
    an orbit of rank two; `centre` is its mean given the inner fields, `root` (r, r) its Λ."""
    if len(block) == 1:
        scale = 1.0 / root[0, 0]
        pairs = list(zip(block[0], centre[0], strict=True))
        signs = []
        for sign in (1.0, -1.0):
            r = [scale * (sign * v - c) for v, c in pairs]
            signs.append(Branch(-0.5 * sum((x * x for x in r[1:]), r[0] * r[0]), r))
        return signs
    X, mean = (jnp.stack([jnp.stack(list(row)) for row in rows]) for rows in (block, centre))
    orbit = _whitened(X, mean, root)
    # where nodes lie changes nothing
    arcs = _arcs(_height(lax.stop_gradient(orbit)))
    rough, fine = (_rotated(orbit, arcs, nodes)[0] for nodes in _NODES)
    differences = [jnp.abs(a - b) for a, b in zip(rough.residuals, fine.residuals, strict=True)]
    difference = jnp.abs(jnp.expm1(rough.log_weight - fine.log_weight))
    difference = difference + functools.reduce(jnp.maximum, differences)
    products = fine.products or {}
    return [with_difference(fine.log_weight, fine.residuals, products, difference)]


def _whitened(X: Array, mean: Array, root: Array) -> Orbit:
    """The orbit of a block X (2, M, ...) around its mean (2, M, ...)."""
    a = 1.0 / root[0, 0]
    b = root[1, 0]
    c = 1.0 / root[1, 1]
    whiten = jnp.stack([jnp.stack([a, jnp.zeros_like(a)]), jnp.stack([-a * b * c, c])])
    mean = jnp.stack([a * mean[0], c * (mean[1] - a * b * mean[0])])
    return orbit_of(X, mean, whiten)


def alone(u: Array, omega: Array, root: Array) -> Moments:
    """The moments of a single layer of rank two, whose only integral is that over the angle, from
    u and omega (N, 2, M)."""
    total = len(u)
    size = min(_BLOCK, total)
    order = jnp.arange(-(-total // size) * size).reshape(-1, size)

    def block(which: Array) -> Moments:
        X, mean = (x[jnp.minimum(which, total - 1)].transpose(1, 2, 0) for x in (u, omega))
        orbit = _whitened(X, mean, root)
        arcs = _arcs(_height(lax.stop_gradient(orbit)))
        rough, fine = (_response(orbit, arcs, nodes, root) for nodes in _FINE_NODES)
        floor = jnp.sqrt(jnp.finfo(u.dtype).eps)

        def apart(one: Array, two: Array) -> Array:
            one, two = (x.reshape(size, -1) for x in (one, two))
            error = jnp.max(jnp.abs(one - two), axis=1) / (1.0 + jnp.max(jnp.abs(two), axis=1))
            return jnp.where(jnp.isfinite(error), jnp.maximum(error, floor), jnp.inf)

        error = apart(rough.g, fine.g)
        slope = apart(rough.dg, fine.dg)
        count = jnp.full((size,), 2 * max(_FINE_NODES))
        return Moments(fine.log_mass, fine.g, fine.dg, fine.ess, error, slope, count)

    moments = lax.map(block, order)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:total], moments)


class _Response(NamedTuple):
    """log of the mass (S,), g and ∂g of one rule, and the effective number of nodes."""

    log_mass: Array
    g: Array
    dg: Array
    ess: Array


def _response(orbit: Orbit, arcs: _Arcs, nodes: int, root: Array) -> _Response:
    """The response of a block of samples."""
    branch, ess = _rotated(orbit, arcs, nodes)
    size = 2 * orbit.tokens
    mean = jnp.stack(list(branch.residuals), axis=-1)
    entries = [branch.product(min(i, j), max(i, j)) for i in range(size) for j in range(size)]
    second = jnp.stack(entries, axis=-1).reshape(-1, size, size)
    covariance = second - mean[:, :, None] * mean[:, None, :]
    g, dg = unwhiten(root, orbit.tokens, mean, covariance)
    return _Response(branch.log_weight, g, dg, ess)
