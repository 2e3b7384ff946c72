r"""The integral over the scale that attention with query and key of its own leaves open.

Equations here [theory: deep-attention, Eqs. (40) to (43)]. The label of a last layer of rank one
fixes q κᵀ, κ = k less its mean over tokens: so q = c x and κ = x'/c, for every c ≠ 0 of weight dc,
and the mean m of the key is free. Whitened by the root Λ of the covariance of the last block, with
(a_1, a_2) its mean given the inner fields,

    r_1(c) = (c X - a_1)/Λ_11,   r_2(c) = (X'/c - a_2 - Λ_21 r_1)/Λ_22 less its mean over tokens
    e^ℓ = Λ_22 √(2π/M) Σ_± ∫ dc e^{-|r(c)|²/2},   Cov over m: 1/M between entries of r_2

|r|² is A (c - c_0)² + B (1/c - d_0)² up to a constant. A sign of c at a time, nodes lie evenly in
log|c| where half of that is within 40 of its least value, however small V is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.channels.attention_link import Components
from jaxsmi.channels.fibres import with_difference
from jaxsmi.numerics.refining_sums import Branch

__all__ = ["copies"]

_DEPTH = 40.0  # e^-40: what the ends of the interval weigh
_NEWTON = 12  # steps towards the largest weight
_LOOKED = 16  # points at which an interval is looked at,
_ROUNDS = 3  # so many times


class Scales(NamedTuple):
    """Whitened residuals r(c) = c · `direct` + `inverse`/c - `centre` (2, M, ...), the second row
    less its mean over tokens."""

    direct: Array
    inverse: Array
    centre: Array

    @property
    def tokens(self) -> int:
        """M."""
        return self.direct.shape[1]

    def residuals(self, c: Array) -> list[list[Array]]:
        """r, row by row, of one array a token."""
        M = range(self.tokens)
        P, Q, a = self
        return [[c * P[p, m] + Q[p, m] / c - a[p, m] for m in M] for p in range(2)]


def _scales(x: Array, mean: Array, root: Array) -> Scales:
    """Of a block x (2, M, ...) around its mean (2, M, ...), `root` (2, 2) lower triangular."""
    centred = lambda rows: rows - jnp.mean(rows, axis=0)
    slope = root[1, 0] / root[0, 0]
    x, mean = (jnp.broadcast_to(v, jnp.broadcast_shapes(x.shape, mean.shape)) for v in (x, mean))
    none = jnp.zeros_like(x[0])
    direct = jnp.stack([x[0] / root[0, 0], centred(-slope * x[0] / root[1, 1])])
    inverse = jnp.stack([none, centred(x[1] / root[1, 1])])
    rest = (mean[1] - slope * mean[0]) / root[1, 1]
    return Scales(direct, inverse, jnp.stack([mean[0] / root[0, 0], centred(rest)]))


class _Interval(NamedTuple):
    """Of x = log|c|, for one sign."""

    low: Array
    high: Array


def _intervals(scales: Scales) -> list[_Interval]:
    """Where either sign of c has its weight (module docstring); of a sign that has none, around its
    best c."""
    P, Q, a = scales
    total = lambda u, v: jnp.sum(u * v, axis=(0, 1))
    A = total(P, P)
    B = total(Q, Q)
    tiny = jnp.finfo(A.dtype).tiny
    A = jnp.maximum(A, tiny)
    B = jnp.maximum(B, tiny)
    c0 = total(P, a) / A
    d0 = total(Q, a) / B

    def height(sign: float, x: Array) -> Array:
        c = sign * jnp.exp(x)
        return 0.5 * (A * (c - c0) ** 2 + B * (1.0 / c - d0) ** 2)

    def lowest(sign: float) -> Array:
        even = 0.25 * jnp.log(B / A)  # where both terms vary alike
        starts = [even]
        for at, turned in ((c0, 1.0), (d0, -1.0)):
            there = sign * at > 0.0
            log = jnp.log(jnp.where(there, sign * at, 1.0))
            starts.append(jnp.where(there, turned * log, even))
        values = jnp.stack([height(sign, x) for x in starts])
        x = jnp.take_along_axis(jnp.stack(starts), jnp.argmin(values, axis=0)[None], axis=0)[0]

        def step(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            x, size = carry
            c = sign * jnp.exp(x)
            slope = A * (c - c0) * c - B * (1.0 / c - d0) / c
            move = slope / (A * c * c + B / (c * c))  # of Gauss and Newton
            near = x - size * jnp.clip(move, -1.0, 1.0)
            lower = height(sign, near) < height(sign, x)
            return jnp.where(lower, near, x), jnp.where(lower, size, 0.5 * size)

        return lax.fori_loop(0, _NEWTON, step, (x, jnp.ones_like(x)))[0]

    best = [lowest(sign) for sign in (1.0, -1.0)]
    depth = _DEPTH + jnp.minimum(height(1.0, best[0]), height(-1.0, best[1]))
    reach = (jnp.sqrt(2.0 * depth / A), jnp.sqrt(2.0 * depth / B))
    intervals = []
    eps = 8.0 * jnp.finfo(A.dtype).eps
    for sign, x in zip((1.0, -1.0), best, strict=True):
        # both terms below the depth: too much, where they are large together
        logs = [jnp.log(jnp.maximum(v, tiny)) for v in (sign * c0 - reach[0], sign * d0 - reach[1])]
        ends = [sign * c0 + reach[0], sign * d0 + reach[1]]
        high, low = (jnp.log(jnp.maximum(end, tiny)) for end in ends)
        margin = eps * (1.0 + jnp.abs(x))  # no interval is empty
        low = jnp.minimum(jnp.maximum(-low, logs[0]), x - margin)
        high = jnp.maximum(jnp.minimum(high, -logs[1]), x + margin)
        inside = lambda x, sign=sign: height(sign, x) < depth
        intervals.append(_Interval(*_narrowed(low, high, x, inside)))
    return intervals


def _narrowed(
    low: Array, high: Array, best: Array, inside: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """The interval less what lies outside at either end, by looking; `best` stays."""

    def look(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        cell = (high - low) / _LOOKED

        def widen(k: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
            x = low + k * cell
            there = inside(x)
            first = jnp.where(there, jnp.minimum(found[0], x), found[0])
            return first, jnp.where(there, jnp.maximum(found[1], x), found[1])

        first, last = lax.fori_loop(1, _LOOKED, widen, (best, best))
        return jnp.maximum(first - cell, low), jnp.minimum(last + cell, high)

    return lax.fori_loop(0, _ROUNDS, look, (low, high))


def _log_volume(root: Array, tokens: int) -> Array:
    """log ∫ dm e^{-M m²/(2 Λ_22²)}, of the free mean of the key."""
    return jnp.log(root[1, 1]) + 0.5 * np.log(2.0 * np.pi / tokens)


def copies(block: Components, centre: Components, root: Array, nodes: int) -> list[Branch]:
    """Both signs of the scale that a label leaves open of the last block, rows of M arrays (S, n),
    each an integral by `nodes` nodes; `centre` is the block's mean given the inner fields, `root`
    (2, 2) its Λ."""
    x, mean = (jnp.stack([jnp.stack(list(row)) for row in rows]) for rows in (block, centre))
    scales = _scales(x, mean, root)
    volume = _log_volume(root, scales.tokens)
    intervals = _intervals(lax.stop_gradient(scales))  # where nodes lie changes nothing
    return [
        _integrated(scales, sign, interval, nodes, volume)
        for sign, interval in zip((1.0, -1.0), intervals, strict=True)
    ]


def _integrated(
    scales: Scales, sign: float, interval: _Interval, nodes: int, volume: Array
) -> Branch:
    """The integral over one sign of c: its logarithm, mean and second moments of r.

    Around ĉ, the middle of the interval, r = r̂ + u X + w X', u = c - ĉ, w = 1/c - 1/ĉ, in which
    nothing cancels however small V is: six sums are all that is needed.
    """
    M = scales.tokens
    P, Q, _ = scales
    middle = 0.5 * (interval.low + interval.high)
    step = (interval.high - interval.low) / nodes
    at = sign * jnp.exp(middle)
    rows = scales.residuals(at)
    r = [*rows[0], *rows[1]]
    p, q = ([*x[0], *x[1]] for x in (P, Q))
    dot = lambda a, b: sum((x * y for x, y in zip(a[1:], b[1:], strict=True)), a[0] * b[0])
    linear = (dot(p, r), dot(q, r))
    square = (0.5 * dot(p, p), 0.5 * dot(q, q), dot(p, q))

    def shifts(k: Array) -> tuple[Array, Array, Array]:
        y = (k - 0.5 * (nodes - 1)) * step
        u = at * jnp.expm1(y)
        w = jnp.expm1(-y) / at
        form = square[0] * u * u + square[1] * w * w + square[2] * u * w
        return u, w, y - linear[0] * u - linear[1] * w - form

    count = jnp.arange(nodes)
    heights = lambda k, top: jnp.maximum(top, shifts(count[k])[2])
    top = lax.fori_loop(0, nodes, heights, jnp.full(step.shape, -jnp.inf, step.dtype))
    top = lax.stop_gradient(top)

    def add(k: Array, sums: Array) -> Array:
        halves = []
        for side in range(2):
            u, w, height = shifts(2 * count[k] + side)
            weight = jnp.exp(height - top)
            terms = [weight * v for v in (jnp.ones_like(u), u, w, u * u, u * w, w * w)]
            halves.append(jnp.stack(terms))
        return sums + jnp.stack(halves)

    shape = (2, 6, *top.shape)
    parts = lax.fori_loop(0, nodes // 2, add, jnp.zeros(shape, top.dtype))
    mass, *moments = parts[0] + parts[1]
    u, w, uu, uw, ww = (moment / mass for moment in moments)
    means = [a + u * b + w * d for a, b, d in zip(r, p, q, strict=True)]
    products = {}
    for i in range(2 * M):
        for j in range(i, 2 * M):
            linear = u * (r[i] * p[j] + p[i] * r[j]) + w * (r[i] * q[j] + q[i] * r[j])
            square = uu * p[i] * p[j] + ww * q[i] * q[j] + uw * (p[i] * q[j] + q[i] * p[j])
            products[i, j] = r[i] * r[j] + linear + square + (1.0 / M if i >= M else 0.0)
    log_weight = volume + middle + jnp.log(step) - 0.5 * dot(r, r) + top + jnp.log(mass)
    half = parts[0] / jnp.maximum(parts[0, 0], jnp.finfo(mass.dtype).tiny)
    off = [jnp.abs((half[1] - u) * b + (half[2] - w) * d) for b, d in zip(p, q, strict=True)]
    shares = jnp.abs(2.0 * parts[0, 0] / mass - 1.0)
    return with_difference(log_weight, means, products, shares + functools.reduce(jnp.maximum, off))
