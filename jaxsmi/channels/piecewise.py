r"""The channel of a label that is linear in its field, piece by piece: ReLU, door, hard tanh.

Equations here, P = M = 1, pieces s of [k_s, k_{s+1}] on which the link is a_s z + b_s, φ, Φ the
Gaussian density and distribution function [theory: multi-index, Eqs. (67), (68)]:

    noise Δ    Z_out = Σ_s N(y; a_s ω + b_s, a_s² V + Δ) [Φ(u_{s+1}) - Φ(u_s)],
               u = (k - μ_s)/σ_s,   σ_s² = VΔ/(a_s² V + Δ),
               μ_s = ω + a_s V (y - a_s ω - b_s)/(a_s² V + Δ)
    none       a flat piece at y:  Z_out = Σ_{flat s at y} [Φ((k_{s+1} - ω)/√V) - Φ((k_s - ω)/√V)],
               else   Z_out = Σ_{s: z_s in the piece} N(z_s; ω, V)/|a_s|,   z_s = (y - b_s)/a_s
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array

from jaxsmi.channels.base import ClosedFormChannel
from jaxsmi.channels.jumps import continuous
from jaxsmi.channels.scalar import AbstractScalarChannel, check_label_shape
from jaxsmi.core.arrays import off_zero
from jaxsmi.core.checks import check

__all__ = ["PiecewiseLinearChannel"]

_SAME = 1e-6  # relative distance of a label from a flat piece that it belongs to (float32)


def _log_between(low: Array, high: Array) -> Array:
    """log(Φ(high) - Φ(low)), low < high, in the tail where both are small."""
    flip = low > 0.0
    a = jnp.where(flip, -high, low)
    b = jnp.where(flip, -low, high)
    top = log_ndtr(b)
    gap = -off_zero(top - log_ndtr(a))
    return top + jnp.log(-jnp.expm1(gap))


class PiecewiseLinearChannel(AbstractScalarChannel, ClosedFormChannel):
    """y = a_s z + b_s + √Δ ξ on pieces of z that `knots` separate (P = M = 1).

    `slopes` a and `offsets` b (S,), `knots` (S - 1,) increasing; `flat` says which slopes are zero;
    `noise` Δ > 0, None: no noise.
    """

    slopes: Array
    offsets: Array
    knots: Array
    noise: Array | None
    flat: tuple[bool, ...] = eqx.field(static=True)
    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    def __init__(
        self,
        slopes: Array,
        offsets: Array,
        knots: Array,
        flat: tuple[bool, ...],
        noise: Array | None = None,
    ):
        self.slopes = slopes
        self.offsets = offsets
        self.knots = knots
        self.flat = flat
        self.noise = noise
        self.indices = 1
        self.tokens = 1

    @property
    def noise_size(self) -> int:
        """One normal, where there is noise."""
        return 0 if self.noise is None else 1

    @property
    def constraints(self) -> int | None:
        """The field itself, where every piece is steep."""
        return None if any(self.flat) else 1

    @property
    def noiseless(self) -> Array:
        """Where a label fixes the field for certain."""
        return jnp.asarray(self.noise is None and not any(self.flat))

    @property
    def smooth(self) -> bool | Array:
        """Whether pieces meet; what is only flat jumps."""
        if all(self.flat):
            return False
        return continuous(self.link, 1, 1)

    def link(self, fields: Array) -> Array:
        """a_s z + b_s of the piece of z; at a knot that of the piece above."""
        z = fields[0, 0]
        piece = jnp.sum(z >= self.knots)
        return self.slopes[piece] * z + self.offsets[piece]

    def label(self, fields: Array, noise: Array) -> Array:
        """link(z) + √Δ ξ."""
        if self.noise is None:
            return self.link(fields)
        return self.link(fields) + jnp.sqrt(self.noise) * noise[0]

    def check_labels(self, labels: Array) -> None:
        """Finite numbers (N,), of a link without noise in its range."""
        check_label_shape(labels, ())
        if self.noise is None:
            _, inside = self._preimages(labels[:, None])
            reached = jnp.any(inside | self._flat_at(labels[:, None]), axis=1)
            check(jnp.all(reached), "labels", labels, "numbers in the range of the link")

    def _ends(self) -> tuple[Array, Array]:
        """Where pieces begin and end (S,)."""
        far = jnp.full(1, jnp.inf, self.knots.dtype)
        return jnp.concatenate([-far, self.knots]), jnp.concatenate([self.knots, far])

    def _flat_at(self, y: Array) -> Array:
        """Whether a piece (S,) is flat, and at the label."""
        near = jnp.abs(y - self.offsets) <= _SAME * (1.0 + jnp.abs(self.offsets))
        return jnp.asarray(np.array(self.flat)) & near

    def _preimages(self, y: Array) -> tuple[Array, Array]:
        """The field in every piece (S,) that gives y, and whether it lies there; none in a flat
        one."""
        steep = jnp.asarray(~np.array(self.flat))
        z = (y - self.offsets) / jnp.where(steep, self.slopes, 1.0)
        low, high = self._ends()
        room = _SAME * (1.0 + jnp.abs(z))
        return z, steep & (z >= low - room) & (z <= high + room)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Z_out."""
        y = statistic
        w = omega[0, 0]
        v = V[0, 0]
        if self.noise is not None:
            noisy = self.slopes**2 * v + self.noise
            rest = y - self.slopes * w - self.offsets
            density = -0.5 * rest**2 / noisy - 0.5 * jnp.log(2 * jnp.pi * noisy)
            centre = w + self.slopes * v * rest / noisy
            return logsumexp(density + self._log_masses(centre, jnp.sqrt(v * self.noise / noisy)))
        known = self._flat_at(y)
        mass = jnp.where(known, self._log_masses(w + 0.0 * self.slopes, jnp.sqrt(v)), -jnp.inf)
        z, inside = self._preimages(y)
        steepness = jnp.log(jnp.where(np.array(self.flat), 1.0, jnp.abs(self.slopes)))
        each = -0.5 * (z - w) ** 2 / v - 0.5 * jnp.log(2 * jnp.pi * v) - steepness
        each = jnp.where(inside, each, -jnp.inf)
        values = jnp.where(jnp.any(known), mass, each)
        return logsumexp(jnp.where(jnp.any(known | inside), values, jnp.nan))

    def _log_masses(self, centre: Array, scale: Array) -> Array:
        """log of what N(centre, scale²) puts on each piece (S,)."""
        count = len(self.flat)
        if count == 1:
            return jnp.zeros(1, centre.dtype)
        scale = jnp.broadcast_to(scale, centre.shape)
        first = log_ndtr((self.knots[0] - centre[0]) / scale[0])
        last = log_ndtr((centre[-1] - self.knots[-1]) / scale[-1])
        inner = slice(1, count - 1)
        low = (self.knots[:-1] - centre[inner]) / scale[inner]
        high = (self.knots[1:] - centre[inner]) / scale[inner]
        return jnp.concatenate([first[None], _log_between(low, high), last[None]])
