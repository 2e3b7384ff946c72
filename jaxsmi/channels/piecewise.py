r"""The channel of a label that is linear in its field, piece by piece: linear, |z|, ReLU, door.

Equations here, P = M = 1, pieces s of [k_s, k_{s+1}] on which the link is a_s z + b_s, φ, Φ the
Gaussian density and distribution function [theory: multi-index, Eqs. (32), (33)]:

    noise Δ    Z_out = Σ_s N(y; a_s ω + b_s, a_s² V + Δ) [Φ(u_{s+1}) - Φ(u_s)],
               u = (k - μ_s)/σ_s,   σ_s² = VΔ/(a_s² V + Δ),
               μ_s = ω + a_s V (y - a_s ω - b_s)/(a_s² V + Δ)
    none       a flat piece at y:  Z_out = Σ_{flat s at y} [Φ((k_{s+1} - ω)/√V) - Φ((k_s - ω)/√V)],
               else   Z_out = Σ_{s: z_s in the piece} N(z_s; ω, V)/|a_s|,   z_s = (y - b_s)/a_s
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, logsumexp, ndtr
from jaxtyping import Array

from jaxsmi.channels.base import ClosedFormChannel, check_label_shape
from jaxsmi.channels.jumps import continuous, steady
from jaxsmi.core.arrays import clamp_to_tiny, concrete, positive_root, theory_dtype
from jaxsmi.core.validate import check

# relative distance up to which a label lies on a flat piece: rounding of labels in float32
_LABEL_ROUNDING = 1e-6


class PiecewiseLinearChannel(ClosedFormChannel):
    """y = a_s z + b_s + √Δ ξ on pieces of z that `knots` separate, for each of M tokens (P = 1).

    Args:
        slopes: a (S,).
        offsets: b (S,).
        knots: Ends of pieces, (S - 1,), increasing.
        flat: The slopes that are zero.
        noise: Δ. None: no noise.
        label_shape: (M,) of M tokens; (): one token, and labels are numbers.
        flip: Of flat pieces at -1 and 1 without noise, p in (0, 1/2] of the opposite label. None:
            no label is flipped.
        levels: Without noise and with flat pieces alone, the first piece of each label; else ().
    """

    slopes: Array
    offsets: Array
    knots: Array
    flat: tuple[bool, ...] = eqx.field(static=True)
    noise: Array | None = None
    label_shape: tuple[int, ...] = eqx.field(static=True, default=())
    levels: tuple[int, ...] = eqx.field(static=True, default=())
    flip: Array | None = None
    indices: int = eqx.field(static=True, default=1, kw_only=True)
    tokens: int = eqx.field(static=True, default=1, kw_only=True)

    @property
    def noise_size(self) -> int:
        """One normal per token if there is noise, or if labels are flipped, else none."""
        return 0 if self.flip is None and self.noise is None else self.tokens

    @property
    def outcomes(self) -> Array | None:
        """The labels of flat pieces alone, as far as they are known when the model is made."""
        return self.offsets[np.array(self.levels)] if self.levels else None

    @property
    def constraints(self) -> Array | None:
        """The probability that the field lies on a steep piece, where a label fixes it, times M;
        None with noise, or with flat pieces alone."""
        exact = self.noise is None or (concrete(self.noise) and bool(self.noise == 0.0))
        if not exact or all(self.flat):
            return None
        mass = jnp.diff(jnp.concatenate([jnp.zeros(1), ndtr(self.knots), jnp.ones(1)]))
        return self.tokens * jnp.sum(jnp.where(np.array(self.flat), 0.0, mass))

    @property
    def noiseless(self) -> Array:
        """True if there is no noise: V may fall to zero."""
        return jnp.asarray(self.flip is None) if self.noise is None else self.noise == 0.0

    @property
    def sharp(self) -> Array:
        """Also with noise, where the link jumps."""
        return self.noiseless | ~continuous(self.link, 1, self.tokens)

    @property
    def pathwise(self) -> bool | Array:
        """True if the pieces meet, and no label without noise has a piece more or less than one
        next to it; flat pieces alone jump, and are summed over where known."""
        if all(self.flat):
            return bool(self.levels)
        if len(self.flat) == 1:
            return True
        return continuous(self.link, 1, self.tokens) & ~self._crossing

    @property
    def _crossing(self) -> Array:
        """True if, without noise, the label at the end of a steep piece is one of another steep
        piece: the posterior jumps there."""
        steep, place = ~np.array(self.flat), np.arange(len(self.flat))
        if self.noise is not None:
            return jnp.asarray(False)
        ends = jnp.where(steep, self.slopes, 1.0) * jnp.stack(self._ends()) + self.offsets
        at_knots = self.slopes[:-1] * self.knots + self.offsets[:-1]
        inside = (at_knots[:, None] >= jnp.min(ends, 0)) & (at_knots[:, None] <= jnp.max(ends, 0))
        # the two pieces that meet at a knot do not count
        others = steep & (place != place[:-1, None]) & (place != place[1:, None])
        return jnp.any(inside & others & (steep[:-1] | steep[1:])[:, None])

    @property
    def _edges(self) -> Array:
        """The knots."""
        count = len(self.flat) - 1
        if count == 0:
            return super()._edges
        return self.knots[np.arange(2 ** math.ceil(math.log2(count))) % count]

    @property
    def regular(self) -> tuple[bool | Array, list[bool | Array]]:
        """Where pieces do not meet, in the numbers that move none of the jumps."""
        # without noise the posterior jumps where a label enters the range of another piece
        if self.pathwise is True or self.noise is None:
            return super().regular
        return self.pathwise, [*steady(eqx.Partial(type(self).link, self), 1, self.tokens)]

    def link(self, fields: Array) -> Array:
        """Return a_s z + b_s of the piece of z; at a knot, of the piece above."""
        # the piece above at a knot, so that a step has its label there
        z = fields[0]
        piece = jnp.sum(z[:, None] >= self.knots, axis=1)
        return (self.slopes[piece] * z + self.offsets[piece]).reshape(self.label_shape)

    def label(self, fields: Array, noise: Array) -> Array:
        """Return link(z) + √Δ ξ, or -link(z) if Φ(ξ) < p."""
        if self.flip is not None:
            clean = self.link(fields)
            return jnp.where(ndtr(noise.reshape(self.label_shape)) < self.flip, -clean, clean)
        if self.noise is None:
            return self.link(fields)
        return self.link(fields) + positive_root(self.noise) * noise.reshape(self.label_shape)

    def proximal_point(self, label: Array, omega: Array, V: Array) -> Array:
        """Return argmin_z ½ ‖link(z) - y‖² + ½ ‖z - ω‖²/V: for each token the best piece."""
        allowed = f"{self.tokens}, as of the student's link"
        check(label.size == self.tokens, "labels", f"{label.size} numbers a sample", allowed)
        a, b, v = self.slopes, self.offsets, V[0, 0]
        low, high = self._ends()
        # a knot belongs to the piece above
        below = self.knots - jnp.finfo(self.knots.dtype).eps * (1.0 + jnp.abs(self.knots))
        high = jnp.concatenate([below, high[-1:]])

        def one(y: Array, w: Array) -> Array:
            z = jnp.clip((w + v * a * (y - b)) / (1.0 + v * a**2), low, high)
            return z[jnp.argmin((a * z + b - y) ** 2 + (z - w) ** 2 / v)]

        return jax.vmap(one)(label.reshape(-1), omega[0])[None]

    def check_labels(self, labels: Array) -> None:
        """Check that labels are finite, and in the range of a link without noise."""
        check_label_shape(labels, self.label_shape)
        if self.noise is None:
            y = labels.reshape(-1, 1)
            _, inside = self._preimages(y)
            reached = jnp.any(inside | self._flat_at(y), axis=1)
            check(jnp.all(reached), "labels", labels, "numbers in the range of the link")

    def _ends(self) -> tuple[Array, Array]:
        """Return the ends of the pieces (S,)."""
        far = jnp.full(1, jnp.inf, self.knots.dtype)
        return jnp.concatenate([-far, self.knots]), jnp.concatenate([self.knots, far])

    def _flat_at(self, y: Array) -> Array:
        """Return a mask (S,) of the flat pieces that the label lies on."""
        near = jnp.abs(y - self.offsets) <= _LABEL_ROUNDING * (1.0 + jnp.abs(self.offsets))
        return jnp.asarray(np.array(self.flat)) & near

    def _preimages(self, y: Array) -> tuple[Array, Array]:
        """Return the field that gives y by the slope of every piece (S,), and a mask of the steep
        pieces that it lies in."""
        # which slopes are zero is static: a traced zero would divide by itself
        steep = jnp.asarray(~np.array(self.flat))
        z = (y - self.offsets) / jnp.where(steep, self.slopes, 1.0)
        low, high = self._ends()
        margin = _LABEL_ROUNDING * (1.0 + jnp.abs(z))
        return z, steep & (z >= low - margin) & (z <= high + margin)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Return log Z_out."""

        def one(y: Array, w: Array) -> Array:
            if self.flip is None:
                return self._of_token(y, w, V[0, 0])
            each = jax.vmap(lambda y: self._of_token(y, w, V[0, 0]))(jnp.stack([y, -y]))
            return logsumexp(each + jnp.stack([jnp.log1p(-self.flip), jnp.log(self.flip)]))

        return jnp.sum(jax.vmap(one)(statistic.reshape(-1), omega[0]))

    def _of_token(self, y: Array, w: Array, v: Array) -> Array:
        if self.noise is not None:
            noisy = self.slopes**2 * v + self.noise
            rest = y - self.slopes * w - self.offsets
            density = -0.5 * rest**2 / noisy - 0.5 * jnp.log(2 * jnp.pi * noisy)
            centre = w + self.slopes * v * rest / noisy
            return logsumexp(density + self._log_masses(centre, jnp.sqrt(v * self.noise / noisy)))
        z, inside = self._preimages(y)
        steepness = jnp.log(jnp.where(np.array(self.flat), 1.0, jnp.abs(self.slopes)))
        density = -0.5 * (z - w) ** 2 / v - 0.5 * jnp.log(2 * jnp.pi * v) - steepness
        values = jnp.where(inside, density, -jnp.inf)
        # derivatives of log Φ take most of the time, and no steep piece needs them
        if any(self.flat):
            # a label of a flat piece has a probability, others a density: the former wins
            known = self._flat_at(y)
            mass = jnp.where(known, self._log_masses(w + 0.0 * self.slopes, jnp.sqrt(v)), -jnp.inf)
            values, inside = jnp.where(jnp.any(known), mass, values), known | inside
        return logsumexp(jnp.where(jnp.any(inside), values, jnp.nan))

    def _log_masses(self, centre: Array, scale: Array) -> Array:
        """Compute the log-mass of N(centre, scale²) on each piece (S,)."""
        count = len(self.flat)
        if count == 1:
            return jnp.zeros(1, centre.dtype)
        scale = jnp.broadcast_to(scale, centre.shape)
        low, high = (
            (self.knots[place] - centre) / scale
            for place in np.clip([np.arange(-1, count - 1), np.arange(count)], 0, count - 2)
        )
        # log(Φ(high) - Φ(low)) in the tail where both are small, and their logarithms exact; the
        # outer pieces, without a lower end there, have ends that do not count
        first, last = (np.arange(count) == place for place in (0, count - 1))
        outer, flip = first | last, last | (low > 0.0) & ~first
        # one call: its second derivatives take seconds to compile
        top, bottom = log_ndtr(jnp.where(flip, jnp.stack([-low, -high]), jnp.stack([high, low])))
        gap = jnp.where(outer, -1.0, -clamp_to_tiny(top - bottom))
        return top + jnp.where(outer, 0.0, jnp.log(-jnp.expm1(gap)))


def linear_channel(noise: Array, tokens: int = 1) -> PiecewiseLinearChannel:
    """Build the channel of y = z + √Δ ξ for one index and M tokens:
    log Z_out = Σ_m log N(y_m; ω_m, V + Δ)."""
    with jax.ensure_compile_time_eval():  # known inside jit, too: a learner asks for a line
        one = jnp.ones(1, noise.dtype)
        pieces = (one, 0.0 * one, one[:0], (False,))
    return PiecewiseLinearChannel(*pieces, noise, (tokens,), tokens=tokens)


class ModulusChannel(PiecewiseLinearChannel):
    """Phase retrieval, y = |z| or z² (P = M = 1): Z_out = N(y; ω, V) + N(-y; ω, V) with y = |z|."""

    squared: bool = eqx.field(static=True, default=False)

    def __init__(self, squared: bool = False):
        sides = jnp.asarray([-1.0, 1.0], theory_dtype())
        super().__init__(sides, jnp.zeros_like(sides), jnp.zeros(1, sides.dtype), (False, False))
        self.squared = squared

    @property
    def pathwise(self) -> bool:
        """True: the two sides meet."""
        return True

    def link(self, fields: Array) -> Array:
        """Return |z| or z²."""
        return fields[0, 0] ** 2 if self.squared else jnp.abs(fields[0, 0])

    def check_labels(self, labels: Array) -> None:
        """Check that labels are non-negative numbers, shape (N,)."""
        check_label_shape(labels, ())
        check(jnp.all(labels >= 0.0), "labels", labels, "non-negative numbers")

    def statistic(self, labels: Array) -> Array:
        """Return |z|."""
        return jnp.sqrt(labels) if self.squared else labels
