r"""Weights on the half-line: half-normal, exponential and truncated Gaussian ones.

Equations here [theory: multi-index, Eqs. (12a) to (12c)], w > 0 of density e^{hw - ½aw²}/I(h, a):

    I(h, a) = ∫_0^∞ e^{hw - ½aw²} dw = e^{x²/2} Φ(x) √(2π/a),   x = h/√a
    log Z_w(b, A) = log I(h + b, a + A) - log I(h, a)
    f = (h' + 1/I')/a',   C = 1/a' - f/I',   h' = h + b, a' = a + A, I' = I(h', a')

Where h' is negative these cancel, and a' may be zero; there they are continued fractions,

    c_n = 1/(u + n a' c_{n+1}),  u = -h':   I' = c_1,  f = c_2,  C = f (2 c_3 - f)
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.priors.base import Traits
from jaxsmi.priors.columns import AbstractColumn, Mixture
from jaxsmi.priors.field_averages import REACH, on_a_line
from jaxsmi.priors.iid import AbstractIidPrior, sizes

_SWITCH = -3.0  # x below which the fractions are taken: 48 terms are exact to rounding there
_NO_GAUSSIANS = (
    "prior: got Positive; allowed: a mixture of Gaussians, for a learner that is mistaken."
)
# at x = _SWITCH the 48th term is below rounding
_TERMS = 48
_SHARP = 9.0  # widths of a peak from the edge, beyond which the edge weighs nothing
_NEWTON = 30  # steps of `_quantile`: monotone, and exact to rounding for shares from 1e-300


class Positive(AbstractIidPrior):
    r"""Weights w > 0 of one index: half-normal, exponential or truncated Gaussian.

        p(w) ∝ exp(hw - ½aw²),  w > 0

    `Positive(0, 1)` is |N(0, 1)|, `Positive(-1, 0)` exponential of mean one, `Positive(m/s²,
    1/s²)` a Gaussian N(m, s²) cut at zero. The mean gives an overlap before any label.

    Args:
        slope: h, a number. Default 0.
        precision: a, a number >= 0; zero only with h < 0. Default 1.

    Raises:
        ValueError: For a < 0, or a = 0 with h >= 0; from its methods, for P > 1, whose posterior
            is an integral over P - 1 numbers.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Positive
        >>> Positive(-1.0, 0.0).second_moment(1)
        Array([[2.]], dtype=...)

    Cost:
        As `AbstractIidPrior.overlap`, with 512 nodes.

    Source:
        [theory: multi-index, section 2].
    """

    traits: ClassVar[Traits] = Traits(continuous=True, even=False)
    slope: Float[Array, ""]
    precision: Float[Array, ""]

    def __init__(self, slope: ArrayLike = 0.0, precision: ArrayLike = 1.0):
        h = validate.number("slope", slope)
        a = validate.number("precision", precision, validate.NON_NEGATIVE)
        normalisable = (a > 0) | (h < 0)
        validate.check(normalisable, "precision", precision, "> 0, or 0 with a slope < 0")
        self.slope = h
        self.precision = jnp.where(normalisable, a, jnp.nan)

    def column(self, indices: int) -> _HalfLine:
        """The law of one number."""
        allowed = "1 with a Positive prior; for more, a GaussianMixture(.., mirrored=False)"
        validate.check(indices == 1, "indices", indices, allowed)
        return _HalfLine(self.slope, self.precision)

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw by inverting the distribution; see `AbstractIidPrior.sample`."""
        key, P, D = sizes(key, indices, dimension)
        self.column(P)
        # a share of zero is a weight of infinity
        tiny = jnp.finfo(theory_dtype()).tiny
        uniform = jax.random.uniform(key, (P, D), theory_dtype(), minval=tiny)
        return _quantile(uniform, self.slope, self.precision)


class _Integral(eqx.Module):
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


def _integral(h: Array, a: Array) -> _Integral:
    """The integral at numbers h and a >= 0; NaN where it diverges."""
    root = jnp.sqrt(jnp.where(a > 0.0, a, 1.0))
    x = jnp.where(a > 0.0, h / root, -jnp.inf)
    below = (x < _SWITCH) & (h < 0.0)
    # both are computed: each gets arguments where it is finite, or its derivative is NaN
    near = _near(jnp.where(below, 0.0, h), jnp.where(below, 1.0, root))
    beyond = _far(jnp.where(below, -h, 1.0), jnp.where(below, a, 0.0))
    sound = (a > 0.0) | ((a == 0.0) & (h < 0.0))
    values = jax.tree.map(lambda one, other: jnp.where(below, one, other), beyond, near)
    return jax.tree.map(lambda value: jnp.where(sound, value, jnp.nan), values)


def _near(h: Array, root: Array) -> _Integral:
    """By the normal distribution: x above the switch."""
    x = h / root
    log_normal = jax.scipy.special.log_ndtr(x)
    rest = log_normal + 0.5 * np.log(2.0 * np.pi) - jnp.log(root)
    hazard = jnp.exp(-0.5 * x**2 - log_normal - 0.5 * np.log(2.0 * np.pi))
    mean = (x + hazard) / root
    # cancels far below the edge, where the hazard is close to -x: hence _SWITCH
    variance = (1.0 - hazard * (x + hazard)) / root**2
    return _Integral(rest, 0.5 * x**2, mean, variance)


def _far(u: Array, a: Array) -> _Integral:
    """By continued fractions: u = -h > 0, far below the edge."""
    terms = jnp.arange(_TERMS, 2, -1, dtype=u.dtype)
    third = jax.lax.scan(lambda c, n: (1.0 / (u + n * a * c), None), 1.0 / u, terms)[0]
    mean = 1.0 / (u + 2.0 * a * third)
    value = 1.0 / (u + a * mean)
    return _Integral(jnp.log(value), jnp.zeros_like(value), mean, mean * (2.0 * third - mean))


class _HalfLine(AbstractColumn):
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
        return _integral(self.slope, self.precision).mean[None]

    @property
    def second_moment(self) -> Float[Array, "P P"]:
        """E w²."""
        known = _integral(self.slope, self.precision)
        return (known.mean**2 + known.variance)[None, None]

    @property
    def size(self) -> int:
        """One number, and its fractions."""
        return _TERMS

    def respond(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> tuple[Array, Array, Array]:
        """log Z_w, posterior mean f and posterior covariance C at one field b, by closed forms."""
        known = _integral(self.slope + b[0], self.precision + A[0, 0])
        nothing = _integral(self.slope, self.precision).log_value
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
        raise ValueError(_NO_GAUSSIANS)

    def _log_density(self, u: Array, root: Array) -> Array:
        """log density of u = Q̂^{1/2}w + ξ, but for a constant: -u²/2 + log I(h + b, a + Q̂),
        with squares that would cancel put together."""
        h = self.slope
        a = self.precision
        total = a + root**2
        known = _integral(h + root * u, total)
        near = -0.5 * (a * u**2 - 2.0 * h * root * u - h**2) / jnp.where(total > 0.0, total, 1.0)
        # where `square` is zero there is no other square that could cancel it
        return known.rest + jnp.where(known.square > 0.0, near, -0.5 * u**2)


def _quantile(p: Array, h: Array, a: Array) -> Array:
    """The w > 0 that a share p of the weights exceeds: Φ((h - aw)/√a) = p Φ(h/√a).

    Far below the edge the logarithm of that share is concave, of slope -1/I(h - aw, a): Newton's
    method then converges monotonically.
    """
    root = jnp.sqrt(jnp.where(a > 0.0, a, 1.0))
    x = h / root
    below = (a == 0.0) | (x < _SWITCH)
    # above the switch by the inverse normal distribution, which loses all digits below
    near = (x - jax.scipy.special.ndtri(p * jax.scipy.special.ndtr(x))) / root
    u = jnp.where(below, -h, 1.0)
    a = jnp.where(below, a, 0.0)
    log_total = _far(u, a).log_value

    def newton(_: int, w: Array) -> Array:
        rest = _far(u + a * w, a).log_value
        return w + (rest - u * w - 0.5 * a * w**2 - log_total - jnp.log(p)) * jnp.exp(rest)

    return jnp.where(below, jax.lax.fori_loop(0, _NEWTON, newton, jnp.zeros_like(p)), near)
