r"""Nested integrals over the curve of last fields that give a label: rotations, scales, products.

Equations here [theory: deep-attention, Eqs. (21) to (26), (28) to (31); multi-index, Eq. (26)]. A
label fixes two rows of fields up to a curve h(x) (2, M), and possibly up to a component c along
e(x), common to the tokens. In whitened fields, N = Λ^{-1} of the rows' root of covariance, a their
whitened mean,

    r(x) = N h(x) - a,   n = N e/|N e|,   e^ℓ = ∫ dx J(x) ∫ dc e^{-|r(x) + c N e(x)|²/2}

    rank two     h = R_θ X, of three tokens and more X also mirrored;  J = 1;  e = R_θ e_2 of two
    untied       h = (c X_1, X_2/c), c of either sign, x = log|c|;  J = |c|;   e = e_2
    a product    the same of one token, y = z_1 z_2, X = √|y| (1, sign y);  J = 1;  no e

The integral over c is a Gaussian one, the other a Gauss-Legendre sum on each of a few intervals of
x, which hold one peak each and are narrowed until their ends weigh nothing, however small V is. The
circle is cut between its two highest maxima; in log|c|, where

    |r|² = A (c - c_0)² + B (1/c - d_0)² + a constant,

each sign has one interval, of a half of that within 30 of its least value.
"""

from __future__ import annotations

import abc
import functools
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.channels.base import check_label_shape
from jaxsmi.channels.fibres import Fibre, FibreChannel, whitened_response, with_difference
from jaxsmi.core.arrays import clamp_to_tiny, frozen
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.refining import Integral
from jaxsmi.numerics.refining_rules import no_weight
from jaxsmi.numerics.refining_sums import Branch

# empirical, against fine rules at V from 1 to 1e-6 (tests/unit/test_deep_attention.py):
_ANGLES = 32  # angles among which maxima are searched: ℓ has few, of its two harmonics
_MAX_DEPTH = 30.0  # an interval ends where the log-weight is this far below its maximum
_CELLS = 8  # parts of an interval; parts without weight are dropped
# each round leaves two cells of a narrow peak: one 4^8 times narrower than the interval is resolved
_ROUNDS = 8


class AbstractOrbit(eqx.Module):
    """A curve of fields (2, M, ...) that give one label; axes after the first two are arcs, copies
    of the curve (mirror images, signs), samples and nodes.

    `block`: X. `centre`: a. `whitening`: N (2, 2), lower triangular.
    """

    block: Array
    centre: Array
    whitening: Array

    @abc.abstractmethod
    def intervals(self) -> tuple[Array, Array]:
        """Return the ends of intervals of x with one peak each, beyond which nothing has weight."""

    @abc.abstractmethod
    def point(self, x: Array) -> tuple[Array, Array | None, Array | float]:
        """Return h (2, M, ...), e (2, ...) or None, and log J at x (...)."""

    def whitened(self, rows: Array) -> Array:
        """Multiply two rows by N."""
        # a sum of two terms, not a contraction: which would round in single precision on some GPUs
        N = self.whitening
        return jnp.stack([N[0, 0] * rows[0], N[1, 0] * rows[0] + N[1, 1] * rows[1]])

    def residuals(self, x: Array) -> tuple[Array, Array | None, Array]:
        """Return r (2, M, ...) at the mean of the free component, n (2, ...), and the
        log-weight."""
        h, e, log_weight = self.point(x)
        r = self.whitened(h) - self.centre
        n = None
        if e is not None:
            M = r.shape[1]
            n = self.whitened(e)
            size = jnp.sqrt(jnp.sum(n * n, axis=0))
            n = n / size
            r = r - (n * jnp.sum(n * jnp.mean(r, axis=1), axis=0))[:, None]
            constant = 0.5 * float(np.log(2.0 * np.pi / M))
            log_weight = log_weight + constant - jnp.log(size)
        return r, n, log_weight - 0.5 * jnp.sum(r * r, axis=(0, 1))

    def height(self, x: Array) -> Array:
        """Return the log-weight alone."""
        return self.residuals(x)[2]


def _whitening(centre: Array, root: Array) -> tuple[Array, Array]:
    """Return a, with axes for arcs and copies, and N, from a mean (2, M, S, n) and Λ (2, 2)."""
    first, last = 1.0 / root[0, 0], 1.0 / root[1, 1]
    slope = root[1, 0] * first
    a = jnp.stack([first * centre[0], last * (centre[1] - slope * centre[0])])
    N = jnp.stack([jnp.stack([first, 0.0 * first]), jnp.stack([-slope * last, last])])
    return a[:, :, None, None], N


def _narrowed(orbit: AbstractOrbit) -> tuple[Array, Array]:
    """Find centres and half widths of the parts of the intervals that have weight."""

    def narrow(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        cell = (high - low) / _CELLS
        x = jnp.stack([low + k * cell for k in range(_CELLS + 1)])
        heights = lax.map(orbit.height, x)
        inside = heights > jnp.max(heights, axis=(0, 1, 2)) - _MAX_DEPTH
        # the best point of each interval stays, as a narrow peak may lie beside it
        inside = inside | (heights == jnp.max(heights, axis=0))
        first = jnp.min(jnp.where(inside, x, jnp.inf), axis=0) - cell
        last = jnp.max(jnp.where(inside, x, -jnp.inf), axis=0) + cell
        return jnp.maximum(first, low), jnp.minimum(last, high)

    low, high = lax.fori_loop(0, _ROUNDS, narrow, orbit.intervals())
    return 0.5 * (high + low), 0.5 * (high - low)


def _moments(orbit: AbstractOrbit, parts: tuple[Array, Array], count: int) -> tuple[Array, Array]:
    """Compute the logarithm of the integral, and the means of r, row by row, and of its products
    r_i r_j, i <= j, by `count` nodes on each interval."""
    M = orbit.block.shape[1]
    centre, half = parts
    left, right = np.triu_indices(2 * M)
    nodes, weights = (jnp.asarray(v, orbit.block.dtype) for v in legendre(count))

    def add(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        top, sums = carry
        r, n, height = orbit.residuals(centre + half * nodes[k])
        flat = r.reshape(2 * M, *r.shape[2:])
        pairs = flat[left] * flat[right]
        if n is not None:  # the covariance of the free component
            pairs = pairs + n[left // M] * n[right // M] / M
        # sums relative to the largest weight so far, as weights alone would underflow
        new = lax.stop_gradient(jnp.maximum(top, jnp.max(height, axis=(0, 1))))
        weight = weights[k] * half * jnp.exp(height - new)
        terms = jnp.concatenate([jnp.ones_like(weight)[None], flat, pairs])
        return new, jnp.exp(top - new) * sums + jnp.sum(weight * terms, axis=(1, 2))

    shape = jnp.broadcast_shapes(orbit.block.shape[-2:], orbit.centre.shape[-2:])
    top = jnp.full(shape, no_weight(nodes.dtype), nodes.dtype)
    sums = jnp.zeros((1 + 2 * M + len(left), *shape), nodes.dtype)
    top, sums = lax.fori_loop(0, count, add, (top, sums))
    return top + jnp.log(sums[0]), sums[1:] / sums[0]


def _integrated(orbit: AbstractOrbit, counts: tuple[int, int], power: float = 1.5) -> list[Branch]:
    """Integrate over the curve by a rough and a fine rule with these numbers of nodes; the error is
    this `power` of their difference."""
    size = 2 * orbit.block.shape[1]
    parts = _narrowed(frozen(orbit))  # the position of nodes needs no derivative
    (rough, rough_means), (log_weight, moments) = (_moments(orbit, parts, n) for n in counts)
    difference = jnp.max(jnp.abs(rough_means - moments)[:size], axis=0)
    difference = difference + jnp.abs(jnp.expm1(rough - log_weight))
    pairs = zip(*np.triu_indices(size), strict=True)
    products = {(int(i), int(j)): x for (i, j), x in zip(pairs, moments[size:], strict=True)}
    return [with_difference(log_weight, list(moments[:size]), products, difference, power)]


# Rotations


class _Rotations(AbstractOrbit):
    """h = R_θ X."""

    def intervals(self) -> tuple[Array, Array]:
        """Cut the circle at the lowest points between its two highest maxima."""
        step = 2.0 * np.pi / _ANGLES
        axes = [1] * (self.block.ndim - 2)
        angles = (jnp.arange(_ANGLES) * step).astype(self.block.dtype)
        values = lax.map(self.height, angles.reshape(-1, *axes))
        first = jnp.argmax(values, axis=0)
        apart = (jnp.arange(_ANGLES).reshape(-1, *axes) - first) % _ANGLES
        peak = (values >= jnp.roll(values, 1, axis=0)) & (values >= jnp.roll(values, -1, axis=0))
        peak = peak & (apart > 1) & (apart < _ANGLES - 1)
        second = jnp.argmax(jnp.where(peak, values, -jnp.inf), axis=0)
        # with a single maximum, the second interval begins opposite to it
        gap = jnp.where(jnp.any(peak, axis=0), (second - first) % _ANGLES, _ANGLES // 2)
        lowest = lambda inside: jnp.argmin(jnp.where(inside, values, jnp.inf), axis=0)
        after = (lowest((apart > 0) & (apart < gap)) - first) % _ANGLES
        before = (lowest(apart > gap) - first) % _ANGLES
        low = first + jnp.concatenate([before - _ANGLES, after])
        high = first + jnp.concatenate([after, before])
        return (low * step).astype(angles.dtype), (high * step).astype(angles.dtype)

    def point(self, x: Array) -> tuple[Array, Array | None, float]:
        """Rotate X by x; with two tokens the component across the line through them is free."""
        cos, sin = jnp.cos(x), jnp.sin(x)
        X = self.block
        h = jnp.stack([cos * X[0] - sin * X[1], sin * X[0] + cos * X[1]])
        return h, jnp.stack([-sin, cos]) if X.shape[1] == 2 else None, 0.0


def rotations(block: Array, centre: Array, root: Array, *, inside: bool) -> list[Branch]:
    """Integrate over the rotations of a last block of rank two (2, M, S, n), which give the same
    label; `centre` is its mean given the inner fields, `root` (2, 2) its Λ. `inside`: the integral
    is nested in another one."""
    mirrored = [] if block.shape[1] == 2 else [jnp.stack([block[0], -block[1]])]
    X = jnp.stack([block, *mirrored], axis=2)[:, :, None]
    orbit = _Rotations(X, *_whitening(centre, root))
    # alone, the difference of two rules is its own error bar
    return _integrated(orbit, *(((16, 24), 1.5) if inside else ((32, 48), 1.0)))


# Scales

_SIGNS = np.array([1.0, -1.0])[None, :, None, None]


class _Scales(AbstractOrbit):
    """h = (c X_1, X_2/c), c = ±e^x: of attention, whose key is free up to its mean over tokens, or
    of a product."""

    shared: bool = eqx.field(static=True)

    def point(self, x: Array) -> tuple[Array, Array | None, Array]:
        """Scale X by c; the measure is dc for attention, dc/|c| for a product."""
        c = _SIGNS.astype(x.dtype) * jnp.exp(x)
        h = jnp.stack(jnp.broadcast_arrays(c * self.block[0], self.block[1] / c))
        if not self.shared:
            return h, None, 0.0 * x
        return h, jnp.stack([jnp.zeros_like(c), jnp.ones_like(c)]), x

    def intervals(self) -> tuple[Array, Array]:
        """Return an interval of log|c| for each sign."""
        zero = jnp.zeros_like(self.block[0])
        rows = (jnp.stack([self.block[0], zero]), jnp.stack([zero, self.block[1]]))
        parts = [*map(self.whitened, rows), self.centre]
        if self.shared:
            parts = [x.at[1].add(-jnp.mean(x[1], axis=0)) for x in parts]
        P, Q, a = parts
        tiny = jnp.finfo(a.dtype).tiny
        A, B = (jnp.maximum(jnp.sum(x * x, axis=(0, 1)), tiny) for x in (P, Q))
        signs = _SIGNS.astype(a.dtype)
        c0, d0 = (signs * jnp.sum(x * a, axis=(0, 1)) / y for x, y in ((P, A), (Q, B)))

        def half_square(x: Array) -> Array:
            return 0.5 * (A * (jnp.exp(x) - c0) ** 2 + B * (jnp.exp(-x) - d0) ** 2)

        even = 0.25 * jnp.log(B / A)  # both terms vary alike there
        # a sign without any weight has ends far out, where squares of fields must stay finite
        log = lambda x: jnp.log(jnp.maximum(x, float(tiny) ** 0.25))
        starts = (even, jnp.where(c0 > 0.0, log(c0), even), jnp.where(d0 > 0.0, -log(d0), even))
        least = functools.reduce(jnp.minimum, (half_square(x) for x in starts))
        depth = _MAX_DEPTH + jnp.min(least, axis=1, keepdims=True)
        reach = (jnp.sqrt(2.0 * depth / A), jnp.sqrt(2.0 * depth / B))
        low = jnp.maximum(log(c0 - reach[0]), -log(d0 + reach[1]))
        high = jnp.minimum(log(c0 + reach[0]), -log(d0 - reach[1]))
        margin = 8.0 * jnp.finfo(a.dtype).eps * (1.0 + jnp.abs(low))  # no interval is empty
        return low, jnp.maximum(high, low + margin)


def scales(block: Array, centre: Array, root: Array, *, inside: bool) -> list[Branch]:
    """Integrate over the scales, of both signs, of a last block of query and key, which give the
    same label (arguments as of `rotations`)."""
    orbit = _Scales(block[:, :, None, None], *_whitening(centre, root), shared=True)
    return _integrated(orbit, (16, 32) if inside else (32, 64))


class ProductChannel(FibreChannel):
    """y = z_1 z_2 (P = 2, M = 1), any V: the fibre of a label (the fields that give it) is a
    hyperbola, integrated along its two branches; `budget` says which error counts as accurate.

    For labels below 1e-12 in units of the fields the curve outgrows its nodes, as its error says.
    """

    indices: int = eqx.field(static=True, default=2, kw_only=True)
    tokens: int = eqx.field(static=True, default=1, kw_only=True)
    pathwise: ClassVar[property] = property(lambda self: True)  # smooth in the fields
    constraints: ClassVar[int] = 1  # a label fixes the product of the fields
    open_variables: ClassVar[int] = 0  # the position along the hyperbola has a rule of its own

    def link(self, fields: Array) -> Array:
        """z_1 z_2."""
        return fields[0, 0] * fields[1, 0]

    def check_labels(self, labels: Array) -> None:
        """Check that labels are finite numbers, shape (N,)."""
        check_label_shape(labels, ())

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """Return the integrals along the hyperbolas of labels (N,)."""

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
            y, w = block
            # both fields of one size: then neither exponential overflows
            size = jnp.sqrt(clamp_to_tiny(jnp.abs(y)))[:, None]
            second = jnp.where(y >= 0.0, 1.0, -1.0)[:, None] * size
            fields = jnp.stack([size, second])[:, None]
            whitened = _whitening(w.transpose(1, 2, 0)[..., None], root)
            hyperbola = _Scales(fields[:, :, None, None], *whitened, shared=False)
            return jnp.ones((), w.dtype), _integrated(hyperbola, (64, 128))

        respond = whitened_response(root, 1, nested=True)
        # both fields are residuals, and the error of the rule is the third
        integral = Integral(integrand, (statistic, omega), respond, inner=0, outer=3)
        return Fibre(integral, jnp.log(2 * jnp.pi * root[0, 0] * root[1, 1]), nested=True)
