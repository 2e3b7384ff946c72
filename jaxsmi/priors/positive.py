r"""Weights on the half-line: half-normal, exponential and truncated Gaussian ones.

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
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.border import checked, scalar
from jaxsmi.core.checks import FINITE, NON_NEGATIVE, check
from jaxsmi.priors.discrete import AbstractAveragedPrior
from jaxsmi.priors.iid import check_sizes, drawn, real
from jaxsmi.priors.mixture import AbstractColumn, Mixture
from jaxsmi.priors.nodes import REACH, on_a_line

__all__ = ["HalfLine", "Positive"]

_SWITCH = -3.0  # x below which the fractions are taken: 48 terms are exact to rounding there
_TERMS = 48
_NEWTON = 30
_SHARP = 9.0  # widths of a peak from the edge, beyond which the edge weighs nothing


class _Integral(eqx.Module):
    """log I(h, a), and mean and variance of the density e^{hw - ½aw²} on w > 0."""

    log_value: Array
    mean: Array
    variance: Array


def _integral(h: Array, a: Array) -> _Integral:
    """The integral at numbers h and a >= 0; NaN where it diverges."""
    root = jnp.sqrt(jnp.where(a > 0.0, a, 1.0))
    x = jnp.where(a > 0.0, h / root, -jnp.inf)
    far = (x < _SWITCH) & (h < 0.0)
    near = _near(jnp.where(far, 0.0, h), jnp.where(far, 1.0, root))
    beyond = _far(jnp.where(far, -h, 1.0), jnp.where(far, a, 0.0))
    sound = (a > 0.0) | ((a == 0.0) & (h < 0.0))
    values = jax.tree.map(lambda one, other: jnp.where(far, one, other), beyond, near)
    return jax.tree.map(lambda value: jnp.where(sound, value, jnp.nan), values)


def _near(h: Array, root: Array) -> _Integral:
    """By the normal distribution: x above the switch."""
    x = h / root
    log_normal = jax.scipy.special.log_ndtr(x)
    log_value = log_normal + 0.5 * x**2 + 0.5 * np.log(2.0 * np.pi) - jnp.log(root)
    hazard = jnp.exp(-0.5 * x**2 - log_normal - 0.5 * np.log(2.0 * np.pi))
    mean = (x + hazard) / root
    return _Integral(log_value, mean, (1.0 - hazard * (x + hazard)) / root**2)


def _far(u: Array, a: Array) -> _Integral:
    """By continued fractions: u = -h > 0, far below the edge."""
    terms = jnp.arange(_TERMS, 2, -1, dtype=u.dtype)
    third = jax.lax.scan(lambda c, n: (1.0 / (u + n * a * c), None), 1.0 / u, terms)[0]
    mean = 1.0 / (u + 2.0 * a * third)
    value = 1.0 / (u + a * mean)
    return _Integral(jnp.log(value), mean, mean * (2.0 * third - mean))


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
        # where the density of w is e^{-REACH²/2} of its largest: the root of ½aw² - hw = e
        e = 0.5 * REACH**2
        top = jnp.maximum(h, 0.0) + jnp.sqrt(h**2 + 2.0 * a * e)
        end = jnp.where(h > 0.0, top / safe, 2.0 * e / (jnp.sqrt(h**2 + 2.0 * a * e) - h))
        width = jnp.where(sharp, spread, 1.0)
        low = jnp.where(sharp, r * peak - REACH * spread, -REACH)
        high = jnp.where(sharp, r * peak + REACH * spread, r * end + REACH)
        u, step = on_a_line((r * peak)[None], width, low, high)
        respond = lambda u: self._log_density(u, r)
        weight = jnp.exp(jax.vmap(respond)(u)) * step
        return u[:, None], weight / jnp.sum(weight)

    def gaussians(self) -> Mixture:
        """It is no mixture of Gaussians."""
        raise ValueError(
            "prior: got Positive; allowed: a mixture of Gaussians, for a learner that is mistaken."
        )

    def _log_density(self, u: Array, root: Array) -> Array:
        """log density of u = Q̂^{1/2}w + ξ, but for a constant: -u²/2 + log I(h + b, a + Q̂),
        with squares that would cancel put together."""
        h = self.slope
        a = self.precision
        total = a + root**2
        field = h + root * u
        far = (field < 0.0) & (field**2 > _SWITCH**2 * total)
        safe = jnp.where(total > 0.0, total, 1.0)
        square = (a * u**2 - 2.0 * h * root * u) / safe
        x = jnp.where(far, 0.0, field / jnp.sqrt(safe))
        near = jax.scipy.special.log_ndtr(x) - 0.5 * square - 0.5 * jnp.log(safe)
        near = near + 0.5 * h**2 / safe + 0.5 * np.log(2.0 * np.pi)
        beyond = _far(jnp.where(far, -field, 1.0), jnp.where(far, total, 0.0)).log_value
        return jnp.where(far, beyond - 0.5 * u**2, near)


@checked(slope=scalar(FINITE), precision=scalar(NON_NEGATIVE))
class Positive(AbstractAveragedPrior):
    r"""Weights w > 0 of one index: half-normal, exponential or truncated Gaussian.

        p(w) ∝ exp(hw - ½aw²),  w > 0

    `Positive(0, 1)` is |N(0, 1)|, `Positive(-1, 0)` exponential of mean one, `Positive(m/s²,
    1/s²)` a Gaussian N(m, s²) cut at zero. The mean tells of W from the start.

    Args:
        slope: h, a number. Default 0.
        precision: a, a number >= 0; zero only with h < 0. Default 1.

    Returns:
        A prior of one index.

    Raises:
        ValueError: For a < 0, or a = 0 with h >= 0; from its methods, for P > 1, whose posterior
            has no closed form.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Positive
        >>> Positive(-1.0, 0.0).second_moment(1)
        Array([[2.]], dtype=...)

    Cost:
        See `AbstractIidPrior.overlap`, with 512 nodes.

    Source:
        [theory: multi-index, section 2].
    """

    slope: Float[Array, ""] = eqx.field(converter=lambda x: real(x, "slope"), default=0.0)
    precision: Float[Array, ""] = eqx.field(converter=lambda x: real(x, "precision"), default=1.0)

    def __check_init__(self):
        for name, value in (("slope", self.slope), ("precision", self.precision)):
            check(value.ndim == 0 and jnp.all(jnp.isfinite(value)), name, value, "a finite number")
        if concrete((self.slope, self.precision)):
            sound = self.precision > 0 or (self.precision == 0 and self.slope < 0)
            check(sound, "precision", self.precision, "a number > 0, or 0 with a slope < 0")

    @property
    def continuous(self) -> bool:
        """It has a density."""
        return True

    @property
    def even(self) -> bool:
        """Never."""
        return False

    def column(self, indices: int) -> HalfLine:
        """The law of one number."""
        check(
            indices == 1, "indices", indices, "1 with a Positive prior, whose posterior is closed"
        )
        return HalfLine(self.slope, self.precision)

    @drawn
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw by inverting the distribution; see `AbstractIidPrior.sample`."""
        check_sizes(indices, dimension)
        column = self.column(indices)
        uniform = jax.random.uniform(
            key, (indices, dimension), theory_dtype(), minval=jnp.finfo(theory_dtype()).tiny
        )
        return _quantile(uniform, column.slope, column.precision)


def _quantile(p: Array, h: Array, a: Array) -> Array:
    """The w > 0 that a share p of the weights lies above: Φ((h - aw)/√a) = p Φ(h/√a), and far
    below the edge Newton's method on the logarithm of that share, which is concave, of slope
    -1/I(h - aw, a)."""
    root = jnp.sqrt(jnp.where(a > 0.0, a, 1.0))
    x = h / root
    far = (a == 0.0) | (x < _SWITCH)
    near = (x - jax.scipy.special.ndtri(p * jax.scipy.special.ndtr(x))) / root
    u = jnp.where(far, -h, 1.0)
    a = jnp.where(far, a, 0.0)
    nothing = _far(u, a).log_value

    def closer(_: int, w: Array) -> Array:
        rest = _far(u + a * w, a).log_value
        return w + (rest - u * w - 0.5 * a * w**2 - nothing - jnp.log(p)) * jnp.exp(rest)

    return jnp.where(far, jax.lax.fori_loop(0, _NEWTON, closer, jnp.zeros_like(p)), near)
