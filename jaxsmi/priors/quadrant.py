r"""The law of two independent numbers on the half-line, which a field couples.

Equations here [theory: multi-index, Eqs. (12d), (12e)], w in the quadrant, I of half_line.py:

    p(w | b, A) ∝ e^{h'·w - ½ w·H w},   h' = (h, h) + b,   H = a 1 + A
    p(w_1 | b, A) ∝ e^{h'_1 w_1 - ½ H_11 w_1²} I(h'_2 - H_12 w_1, H_22),  concave as a logarithm
    u = Q̂^{1/2}w + ξ of density ∝ e^{-½u²} Z_w(Q̂^{1/2}u, Q̂)

The integral over w_1 is a Gauss–Legendre rule on panels between the points where its logarithm has
fallen by given amounts, and around h'_2/H_12, where w_2 leaves the edge. Products of large numbers
that nearly cancel are written as differences from the peak.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsmi.core.programs import program
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.roots import bisect
from jaxsmi.priors.half_line import NO_GAUSSIANS, HalfLine, Integral, integral
from jaxsmi.priors.mixture import AbstractColumn, Mixture
from jaxsmi.priors.nodes import CHUNK, REACH, on_a_line

__all__ = ["Quadrant"]

_FALLS = (1.0, 6.0, 18.0, 42.0)  # of the logarithm, from the peak to where a panel ends
_BENDS = (-8.0, -3.0, 0.0, 3.0, 8.0)  # ends around the bend, in its widths
_EACH = 12  # nodes of a panel
_NODES = _EACH * (2 * len(_FALLS) + len(_BENDS))
_SPAN = 40.0  # logarithm of the largest distance that is looked at, in the least scale
_HALVINGS = 20
_ON_LINE = 32  # nodes for each centre of an average over fields


class _Posterior(NamedTuple):
    """∫ e^{h·w - ½w·Hw} over the quadrant is e^{h·p - ½p·Hp + rest}, p the `point`."""

    point: Array
    rest: Array
    mean: Array
    covariance: Array


def _given(h: Array, H: Array, w: Array) -> Integral:
    """The law of w_2 where w_1 is w."""
    return integral(h[1] - H[0, 1] * w, H[1, 1])


def _height(h: Array, H: Array, point: Array, w: Array, given: Integral) -> Array:
    """Logarithm of the density of w_1 at w, less h·p - ½p·Hp at the `point` p."""
    slope = h - H @ point
    x = w - point[0]
    y = given.center - point[1]
    square = H[0, 0] * x**2 + 2.0 * H[0, 1] * x * y + H[1, 1] * y**2
    return slope[0] * x + slope[1] * y - 0.5 * square + given.rest


def _panels(h: Array, H: Array) -> tuple[Array, Array, Array]:
    """The peak p, the ends of panels that hold all of w_1, in order, and whether that is so."""
    span = jnp.asarray(_SPAN, h.dtype)
    tiny = jnp.finfo(h.dtype).tiny
    scale = 1.0 / jnp.maximum(jnp.maximum(jnp.sqrt(jnp.abs(H[0, 0])), jnp.abs(h[0])), tiny)

    def sinks(log_w: Array) -> Array:
        w = scale * jnp.exp(log_w)
        return h[0] - H[0, 0] * w - H[0, 1] * _given(h, H, w).mean < 0.0

    peak = scale * jnp.exp(bisect(sinks, -span, span, 32))
    at_peak = _given(h, H, peak)
    point = jnp.stack([peak, at_peak.center])
    levels = at_peak.rest - jnp.asarray(_FALLS, h.dtype)
    half_step = span / 2.0**_HALVINGS  # ends lie beyond the levels, also where these are a cliff
    distance = lambda log_x: scale * jnp.exp(log_x)
    height = lambda w: _height(h, H, point, w, _given(h, H, w))
    right = lambda log_x: height(peak + distance(log_x)) < levels
    left = lambda log_x: height(jnp.maximum(peak - distance(log_x), 0.0)) < levels
    high = jnp.full_like(levels, span)
    right_ends = peak + distance(bisect(right, -high, high, _HALVINGS) + half_step)
    left_ends = distance(bisect(left, -high, high, _HALVINGS) + half_step)
    left_ends = jnp.maximum(peak - left_ends, 0.0)
    holds = height(right_ends)[-1] < levels[-1]
    coupled = H[0, 1] != 0.0
    coupling = jnp.where(coupled, H[0, 1], 1.0)
    width = jnp.sqrt(jnp.abs(H[1, 1])) / jnp.abs(coupling)
    bends = h[1] / coupling + width * jnp.asarray(_BENDS, h.dtype)
    bends = jnp.clip(jnp.where(coupled, bends, peak), left_ends[-1], right_ends[-1])
    ends = jnp.sort(jnp.concatenate([left_ends, peak[None], right_ends, bends]))
    return point, ends, holds


def _posterior(h: Array, H: Array) -> _Posterior:
    """The law e^{h·w - ½w·Hw} in the quadrant; NaN where it has no integral, and where H has a
    negative eigenvalue."""
    point, ends, holds = _panels(*jax.lax.stop_gradient((h, H)))
    x, step = (jnp.asarray(part, h.dtype) for part in legendre(_EACH))
    half = 0.5 * jnp.diff(ends)[:, None]
    w = (ends[:-1, None] + half * (1.0 + x)).reshape(-1)
    given = _given(h, H, w)
    log_term = _height(h, H, point, w, given) + jnp.log((half * step).reshape(-1))
    rest = jax.nn.logsumexp(log_term)
    weight = jnp.exp(log_term - rest)
    mean = jnp.stack([weight @ w, weight @ given.mean])
    away = jnp.stack([w, given.mean]) - mean[:, None]
    covariance = (away * weight) @ away.T
    covariance = covariance.at[1, 1].add(weight @ given.variance)
    product = H[0, 0] * H[1, 1]
    rounding = 64.0 * jnp.finfo(h.dtype).eps * product
    sound = (H[0, 0] >= 0.0) & (H[1, 1] >= 0.0) & (product - H[0, 1] ** 2 >= -rounding) & holds
    known = lambda value: jnp.where(sound, value, jnp.nan)
    return _Posterior(point, known(rest), known(mean), known(covariance))


class Quadrant(AbstractColumn):
    """Two independent numbers of one law on the half-line.

    Args:
        each: The law of either.
    """

    each: HalfLine

    @property
    def first_moment(self) -> Float[Array, " P"]:
        """E w."""
        return jnp.repeat(self.each.first_moment, 2)

    @property
    def second_moment(self) -> Float[Array, "P P"]:
        """E w wᵀ."""
        mean = self.first_moment
        variance = self.each.second_moment[0, 0] - mean[0] ** 2
        return jnp.outer(mean, mean) + variance * jnp.eye(2, dtype=mean.dtype)

    @property
    def size(self) -> int:
        """Some eight numbers a node."""
        return 8 * _NODES

    @program
    def respond(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> tuple[Array, Array, Array]:
        """log Z_w, posterior mean f and posterior covariance C at one field b, by a quadrature over
        w_1 of closed forms in w_2."""
        h, H = self._coupled(b, A)
        known = _posterior(h, H)
        top = h @ known.point - 0.5 * known.point @ H @ known.point
        return top + known.rest - 2.0 * self._nothing, known.mean, known.covariance

    def nodes(self, root: Float[Array, "P P"]) -> tuple[Array, Array]:
        """Nodes along the axes of Q̂, first the one that is known best: dense at the edges, which
        along the second are elsewhere at each node of the first, and around the mean."""
        r, axes = jnp.linalg.eigh(root)
        r = jnp.maximum(r, 0.0)
        first = axes[:, 1]
        second = axes[:, 0]
        mean = self.each.first_moment[0]
        spread = jnp.sqrt(1.0 + r**2 * (self.each.second_moment[0, 0] - mean**2))
        box = self.each.reach
        ends = lambda axis: jnp.sum(jnp.sort(axis[:, None] * box, axis=1), axis=0)
        low, high = ends(first) * r[1] + jnp.asarray([-REACH, REACH], r.dtype)
        centers = jnp.stack([0.0, r[1] * mean * jnp.sum(first)])
        widths = jnp.stack([1.0, spread[1]])
        v, dv = on_a_line(jnp.clip(centers, low, high), widths, low, high, _ON_LINE)
        safe = lambda x: jnp.where(jnp.abs(x) > 1e-9, x, 1e-9)
        tilt = r[0] / jnp.where(r[1] > 0.0, r[1], 1.0) * second / safe(first)
        below, above = ends(second) * r[0] + jnp.asarray([-REACH, REACH], r.dtype)
        across = jnp.stack([1.0, 1.0, spread[0]])

        def line(along: Array) -> tuple[Array, Array]:
            edges = jnp.append(tilt * along, r[0] * mean * jnp.sum(second))
            return on_a_line(jnp.clip(edges, below, above), across, below, above, _ON_LINE)

        t, dt = jax.vmap(line)(v)
        u = (v[:, None, None] * first + t[:, :, None] * second).reshape(-1, 2)
        log_weight = self._log_density(u, root) + jnp.log((dv[:, None] * dt).reshape(-1))
        return u, jax.nn.softmax(log_weight)

    def gaussians(self) -> Mixture:
        """It is no mixture of Gaussians."""
        raise ValueError(NO_GAUSSIANS)

    @property
    def _nothing(self) -> Array:
        """log I(h, a)."""
        return integral(self.each.slope, self.each.precision).log_value

    def _coupled(self, b: Array, A: Array) -> tuple[Array, Array]:
        """h' and H."""
        return self.each.slope + b, A + self.each.precision * jnp.eye(2, dtype=A.dtype)

    def _log_density(self, u: Array, root: Array) -> Array:
        """log density of each u (n, 2), but for a constant: the exponents at the peak, and what
        `_posterior` leaves."""
        h = self.each.slope
        a = self.each.precision

        def one(u: Array) -> Array:
            known = _posterior(*self._coupled(root @ u, root @ root))
            p = known.point
            return known.rest + jnp.sum(h * p - 0.5 * a * p**2) - 0.5 * jnp.sum((root @ p - u) ** 2)

        return jax.lax.map(one, u, batch_size=CHUNK)
