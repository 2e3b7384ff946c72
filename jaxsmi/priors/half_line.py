r"""The law of one number on the half-line, in closed form.

Equations here [theory: multi-index, Eqs. (12a) to (12c)], w > 0 of density e^{hw - ½aw²}/I(h, a):

    I(h, a) = ∫_0^∞ e^{hw - ½aw²} dw = e^{x²/2} Φ(x) √(2π/a),   x = h/√a
    log Z_w(b, A) = log I(h + b, a + A) - log I(h, a)
    f = (h' + 1/I')/a',   C = 1/a' - f/I',   h' = h + b, a' = a + A, I' = I(h', a')

Where h' is negative these cancel, and a' may be zero; there they are continued fractions,

    c_n = 1/(u + n a' c_{n+1}),  u = -h':   I' = c_1,  f = c_2,  C = f (2 c_3 - f)
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsmi.priors.columns import AbstractColumn, Mixture
from jaxsmi.priors.nodes import REACH, on_a_line

SWITCH = -3.0  # x below which the fractions are taken: 48 terms are exact to rounding there
NO_GAUSSIANS = (
    "prior: got Positive; allowed: a mixture of Gaussians, for a learner that is mistaken."
)
# at x = SWITCH the 48th term is below rounding
_TERMS = 48
_SHARP = 9.0  # widths of a peak from the edge, beyond which the edge weighs nothing


class Integral(eqx.Module):
    """log I(h, a) in two parts, and mean and variance of the density e^{hw - ½aw²} on w > 0.

    `square` is ½h²/a, zero where the edge is all there is (x < -3). `rest` is what is left of
    log I.
    """

    rest: Array
    square: Array
    mean: Array
    variance: Array

    @property
    def log_value(self) -> Array:
        """log I."""
        return self.rest + self.square


def integral(h: Array, a: Array) -> Integral:
    """The integral at numbers h and a >= 0; NaN where it diverges."""
    root = jnp.sqrt(jnp.where(a > 0.0, a, 1.0))
    x = jnp.where(a > 0.0, h / root, -jnp.inf)
    below = (x < SWITCH) & (h < 0.0)
    # both are computed: each gets arguments where it is finite, or its derivative is NaN
    near = _near(jnp.where(below, 0.0, h), jnp.where(below, 1.0, root))
    beyond = far(jnp.where(below, -h, 1.0), jnp.where(below, a, 0.0))
    sound = (a > 0.0) | ((a == 0.0) & (h < 0.0))
    values = jax.tree.map(lambda one, other: jnp.where(below, one, other), beyond, near)
    return jax.tree.map(lambda value: jnp.where(sound, value, jnp.nan), values)


def _near(h: Array, root: Array) -> Integral:
    """By the normal distribution: x above the switch."""
    x = h / root
    log_normal = jax.scipy.special.log_ndtr(x)
    rest = log_normal + 0.5 * np.log(2.0 * np.pi) - jnp.log(root)
    hazard = jnp.exp(-0.5 * x**2 - log_normal - 0.5 * np.log(2.0 * np.pi))
    mean = (x + hazard) / root
    # cancels far below the edge, where the hazard is close to -x: hence SWITCH
    variance = (1.0 - hazard * (x + hazard)) / root**2
    return Integral(rest, 0.5 * x**2, mean, variance)


def far(u: Array, a: Array) -> Integral:
    """By continued fractions: u = -h > 0, far below the edge."""
    terms = jnp.arange(_TERMS, 2, -1, dtype=u.dtype)
    third = jax.lax.scan(lambda c, n: (1.0 / (u + n * a * c), None), 1.0 / u, terms)[0]
    mean = 1.0 / (u + 2.0 * a * third)
    value = 1.0 / (u + a * mean)
    return Integral(jnp.log(value), jnp.zeros_like(value), mean, mean * (2.0 * third - mean))


class HalfLine(AbstractColumn):
    """The density e^{hw - ½aw²}/I(h, a) on w > 0.

    Args:
        slope: h.
        precision: a >= 0; with a = 0 the slope is negative.
    """

    slope: Float[Array, ""]
    precision: Float[Array, ""]

    @property
    def first_moment(self) -> Float[Array, " P"]:
        """E w."""
        return integral(self.slope, self.precision).mean[None]

    @property
    def second_moment(self) -> Float[Array, "P P"]:
        """E w²."""
        known = integral(self.slope, self.precision)
        return (known.mean**2 + known.variance)[None, None]

    @property
    def size(self) -> int:
        """One number, and its fractions."""
        return _TERMS

    def respond(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> tuple[Array, Array, Array]:
        """log Z_w, posterior mean f and posterior covariance C at one field b, by closed forms."""
        known = integral(self.slope + b[0], self.precision + A[0, 0])
        nothing = integral(self.slope, self.precision).log_value
        return known.log_value - nothing, known.mean[None], known.variance[None, None]

    def nodes(self, root: Float[Array, "P P"]) -> tuple[Array, Array]:
        """Nodes dense at the edge, or around a peak that is far from it."""
        r = root[0, 0]
        h = self.slope
        a = self.precision
        safe = jnp.where(a > 0.0, a, 1.0)
        sharp = (a > 0.0) & (h > _SHARP * jnp.sqrt(safe))
        peak = jnp.where(sharp, h / safe, 0.0)
        spread = jnp.sqrt(1.0 + r**2 / safe)
        # up to where the density of w is e^{-REACH²/2} of its largest, a root of ½aw² - hw = e: of
        # its two forms that which does not cancel, for either sign of h
        e = 0.5 * REACH**2
        root_of_square = jnp.sqrt(h**2 + 2.0 * a * e)
        above = (jnp.maximum(h, 0.0) + root_of_square) / safe
        end = jnp.where(h > 0.0, above, 2.0 * e / (root_of_square - jnp.minimum(h, 0.0)))
        # at an edge the posterior changes on the scale one of the noise
        width = jnp.where(sharp, spread, 1.0)
        low = jnp.where(sharp, r * peak - REACH * spread, -REACH)
        high = jnp.where(sharp, r * peak + REACH * spread, r * end + REACH)
        u, step = on_a_line((r * peak)[None], width, low, high)
        respond = lambda u: self._log_density(u, r)
        # normalised by their own sum, which takes the constant of the density with it
        weight = jnp.exp(jax.vmap(respond)(u)) * step
        return u[:, None], weight / jnp.sum(weight)

    def gaussians(self) -> Mixture:
        """It is no mixture of Gaussians."""
        raise ValueError(NO_GAUSSIANS)

    def _log_density(self, u: Array, root: Array) -> Array:
        """log density of u = Q̂^{1/2}w + ξ, but for a constant: -u²/2 + log I(h + b, a + Q̂),
        with squares that would cancel put together."""
        h = self.slope
        a = self.precision
        total = a + root**2
        known = integral(h + root * u, total)
        near = -0.5 * (a * u**2 - 2.0 * h * root * u - h**2) / jnp.where(total > 0.0, total, 1.0)
        # where `square` is zero there is no other square that could cancel it
        return known.rest + jnp.where(known.square > 0.0, near, -0.5 * u**2)
