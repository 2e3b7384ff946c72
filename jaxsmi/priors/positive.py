"""Weights on the half-line: half-normal, exponential and truncated Gaussian ones."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.priors.base import Traits
from jaxsmi.priors.half_line import SWITCH, HalfLine, far
from jaxsmi.priors.iid import AbstractIidPrior, sizes

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

    def column(self, indices: int) -> HalfLine:
        """The law of one number."""
        allowed = "1 with a Positive prior; for more, a GaussianMixture(.., mirrored=False)"
        validate.check(indices == 1, "indices", indices, allowed)
        return HalfLine(self.slope, self.precision)

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw by inverting the distribution; see `AbstractIidPrior.sample`."""
        key, P, D = sizes(key, indices, dimension)
        self.column(P)
        # a share of zero is a weight of infinity
        tiny = jnp.finfo(theory_dtype()).tiny
        uniform = jax.random.uniform(key, (P, D), theory_dtype(), minval=tiny)
        return _quantile(uniform, self.slope, self.precision)


def _quantile(p: Array, h: Array, a: Array) -> Array:
    """The w > 0 that a share p of the weights exceeds: Φ((h - aw)/√a) = p Φ(h/√a).

    Far below the edge the logarithm of that share is concave, of slope -1/I(h - aw, a): Newton's
    method then converges monotonically.
    """
    root = jnp.sqrt(jnp.where(a > 0.0, a, 1.0))
    x = h / root
    below = (a == 0.0) | (x < SWITCH)
    # above the switch by the inverse normal distribution, which loses all digits below
    near = (x - jax.scipy.special.ndtri(p * jax.scipy.special.ndtr(x))) / root
    u = jnp.where(below, -h, 1.0)
    a = jnp.where(below, a, 0.0)
    log_total = far(u, a).log_value

    def newton(_: int, w: Array) -> Array:
        rest = far(u + a * w, a).log_value
        return w + (rest - u * w - 0.5 * a * w**2 - log_total - jnp.log(p)) * jnp.exp(rest)

    return jnp.where(below, jax.lax.fori_loop(0, _NEWTON, newton, jnp.zeros_like(p)), near)
