r"""Channels whose log-partition is closed form, or a one-dimensional integral done to rounding.

Equations here (ω, V as in channels/base.py; φ, Φ the Gaussian density and distribution function):

* linear, y = z + √Δ ξ, any P = 1 row:       Z_out = Π_m N(y_m; ω_m, V + Δ)
* sign, y = sign(z + √Δ ξ):                    Z_out = Φ(y ω/√(V + Δ))
* modulus, y = |z| (or z²):                   Z_out = N(y; ω, V) + N(-y; ω, V)
* sign of a product, y = sign(z_1 z_2):       Z_out = P(z_1 z_2 y > 0), each quadrant a
                                              one-dimensional integral

Source: [TCDKZ25], [TDDZLK24], [BKMMZ19]; [theory: multi-index, Eqs. (22) to (25)].
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array

from jaxsmi.channels.base import AbstractChannel, ClosedFormChannel
from jaxsmi.core.checks import check
from jaxsmi.numerics.quadrature import legendre
from jaxsmi.numerics.roots import bisect

__all__ = [
    "AbstractScalarChannel",
    "AbstractSignsChannel",
    "LinearChannel",
    "ModulusChannel",
    "SignChannel",
    "SignProductChannel",
    "check_label_shape",
    "check_signs",
    "log_quadrant",
]

_NODES, _WEIGHTS = legendre(64)


def check_label_shape(labels: Array, shape: tuple[int, ...]) -> None:
    """Raise unless labels are finite and of shape (N, *shape)."""
    shown = ", ".join(["N", *map(str, shape)]) + ("," if not shape else "")
    check(labels.shape[1:] == shape, "labels", labels, f"an array of shape ({shown})")
    check(jnp.all(jnp.isfinite(labels)), "labels", labels, "finite numbers")


def check_signs(labels: Array) -> None:
    """Raise unless labels are ±1, of shape (N,)."""
    check_label_shape(labels, ())
    check(jnp.all(jnp.abs(labels) == 1.0), "labels", labels, "only +1 and -1")


class AbstractScalarChannel(AbstractChannel):
    """What the channels of one number a sample, labels (N,) that are their own statistic, share."""

    def statistic(self, labels: Array) -> Array:
        """The labels themselves."""
        return labels


class AbstractSignsChannel(AbstractScalarChannel):
    """What the channels of labels ±1 share."""

    @property
    def smooth(self) -> bool:
        """Labels jump."""
        return False

    @property
    def outcomes(self) -> Array:
        """+1 and -1."""
        return jnp.array([1.0, -1.0])

    def check_labels(self, labels: Array) -> None:
        """±1, shape (N,)."""
        check_signs(labels)


class LinearChannel(ClosedFormChannel):
    """y = z + √Δ ξ for one index and M tokens: log Z_out = Σ_m log N(y_m; ω_m, V + Δ)."""

    noise: Array
    tokens: int = eqx.field(static=True)
    indices: int = eqx.field(static=True)

    def __init__(self, noise: Array, tokens: int = 1):
        self.noise = noise
        self.tokens = tokens
        self.indices = 1

    @property
    def noise_size(self) -> int:
        """One normal a token."""
        return self.tokens

    @property
    def noiseless(self) -> Array:
        """Where Δ = 0."""
        return self.noise == 0.0

    def link(self, fields: Array) -> Array:
        """z (M,)."""
        return fields[0]

    def label(self, fields: Array, noise: Array) -> Array:
        """z + √Δ ξ (M,)."""
        return self.link(fields) + jnp.sqrt(self.noise) * noise

    def check_labels(self, labels: Array) -> None:
        """Finite numbers of shape (N, M)."""
        check_label_shape(labels, (self.tokens,))

    def statistic(self, labels: Array) -> Array:
        """The labels themselves."""
        return labels

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Σ_m log N(y_m; ω_m, V + Δ)."""
        v = V[0, 0] + self.noise
        squares = jnp.sum((statistic - omega[0]) ** 2)
        return -0.5 * squares / v - 0.5 * self.tokens * jnp.log(2 * jnp.pi * v)


class SignChannel(AbstractSignsChannel, ClosedFormChannel):
    """y = sign(z + √Δ ξ) (P = M = 1): log Z_out = log Φ(y ω/√(V + Δ)).

    Args:
        noise: Δ, may be infinite: the label then says nothing. None: no noise.
    """

    noise: Array | None = None
    indices: int = eqx.field(static=True, default=1)
    tokens: int = eqx.field(static=True, default=1)

    @property
    def noise_size(self) -> int:
        """One normal, where there is noise."""
        return 0 if self.noise is None else 1

    def link(self, fields: Array) -> Array:
        """sign z, with sign 0 = 1."""
        return jnp.where(fields[0, 0] >= 0.0, 1.0, -1.0)

    def label(self, fields: Array, noise: Array) -> Array:
        """sign(z + √Δ ξ)."""
        if self.noise is None:
            return self.link(fields)
        return self.link(fields + jnp.sqrt(self.noise) * noise[0])

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Φ(y ω/√(V + Δ))."""
        variance = V[0, 0] if self.noise is None else V[0, 0] + self.noise
        return log_ndtr(statistic * omega[0, 0] / jnp.sqrt(variance))


class ModulusChannel(AbstractScalarChannel, ClosedFormChannel):
    """Phase retrieval, y = |z| or z² (P = M = 1): Z_out = N(y; ω, V) + N(-y; ω, V) with y = |z|."""

    squared: bool = eqx.field(static=True, default=False)
    indices: int = eqx.field(static=True, default=1)
    tokens: int = eqx.field(static=True, default=1)

    @property
    def constraints(self) -> int:
        """The field itself is fixed by a label, up to its sign."""
        return 1

    def link(self, fields: Array) -> Array:
        """|z| or z²."""
        return fields[0, 0] ** 2 if self.squared else jnp.abs(fields[0, 0])

    def check_labels(self, labels: Array) -> None:
        """Non-negative numbers, shape (N,)."""
        check_label_shape(labels, ())
        check(jnp.all(labels >= 0.0), "labels", labels, "non-negative numbers")

    def statistic(self, labels: Array) -> Array:
        """|z|."""
        return jnp.sqrt(labels) if self.squared else labels

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log of the density of |z|."""
        w = omega[0, 0]
        v = V[0, 0]
        exponents = (-0.5 * (statistic - w) ** 2 / v, -0.5 * (statistic + w) ** 2 / v)
        return jnp.logaddexp(*exponents) - 0.5 * jnp.log(2 * jnp.pi * v)


def log_quadrant(a: Array, b: Array, rho: Array, *, steep: bool = True) -> Array:
    r"""log P(x > -a, x' > -b) for standard Gaussians of correlation ρ.

    = log ∫_0^∞ φ(s - a) Φ((b + ρ (s - a))/√(1-ρ²)) ds. The integrand is log-concave: bisection
    finds its mode on s >= 0 and, on either side, where it has fallen by e^{-40}; 64 Gauss-Legendre
    nodes on each panel do the rest. `steep=False` is for |ρ| < 1/2, where the step of Φ is as wide
    as the panels and needs none of its own: half the cost.
    """
    root = jnp.sqrt(1.0 - rho**2)

    def log_integrand(s: Array, a: Array, b: Array, rho: Array, root: Array) -> Array:
        x = s - a
        return -0.5 * x * x + log_ndtr((b + rho * x) / root)

    fixed = jax.lax.stop_gradient((a, b, rho, root))

    zero = fixed[0] * 0.0
    end = jnp.abs(fixed[0]) + jnp.abs(fixed[1]) + 15.0
    slope = jax.grad(log_integrand)
    # where panels meet does not need many digits
    mode = bisect(lambda s: slope(s, *fixed) <= 0.0, zero, end, 25)
    goal = log_integrand(mode, *fixed) - 40.0
    high = bisect(lambda s: log_integrand(s, *fixed) <= goal, mode, mode + 10.0, 12)
    low = bisect(lambda s: log_integrand(s, *fixed) >= goal, zero, mode, 16)
    low = jnp.where(log_integrand(zero, *fixed) >= goal, zero, low)
    # panels meet at the mode, and around the step of Φ, narrow where the correlation is strong
    cuts = jnp.stack([low, mode, high])
    if steep:
        slow = jnp.where(jnp.abs(fixed[2]) > 1e-3, fixed[2], 1e-3)
        turn = fixed[0] - fixed[1] / slow
        width = 12.0 * fixed[3] / jnp.abs(slow)
        step = jnp.stack([turn - width, turn + width])
        cuts = jnp.sort(jnp.clip(jnp.append(cuts, step), low, high))
    cuts = jax.lax.stop_gradient(cuts)
    half = 0.5 * (cuts[1:] - cuts[:-1])[:, None]
    s = (0.5 * (cuts[1:] + cuts[:-1])[:, None] + half * jnp.asarray(_NODES)).ravel()
    weights = (half * jnp.asarray(_WEIGHTS)).ravel()
    values = jax.vmap(lambda x: log_integrand(x, a, b, rho, root))(s)
    return logsumexp(values, b=weights) - 0.5 * jnp.log(2 * jnp.pi)


class SignProductChannel(AbstractSignsChannel, ClosedFormChannel):
    """y = sign(z_1 z_2) (P = 2, M = 1), any V: the quadrants in which the product has sign y."""

    indices: int = eqx.field(static=True, default=2)
    tokens: int = eqx.field(static=True, default=1)

    def link(self, fields: Array) -> Array:
        """sign(z_1 z_2), with sign 0 = 1."""
        return jnp.where(fields[0, 0] * fields[1, 0] >= 0.0, 1.0, -1.0)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log P(z_1 z_2 y > 0)."""
        scale = jnp.sqrt(jnp.diagonal(V))
        a = omega[0, 0] / scale[0]
        b = statistic * omega[1, 0] / scale[1]
        rho = statistic * V[0, 1] / (scale[0] * scale[1])
        return jnp.logaddexp(log_quadrant(a, b, rho), log_quadrant(-a, -b, rho))
