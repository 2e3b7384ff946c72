"""Priors that are mixtures of several Gaussians: binary and sparse weights, weights with peaks.

Rademacher weights are w_p = ±1, a mixture of 2^P points. Bernoulli–Gauss weights are zero with
probability 1-ρ, else N(0, 1/ρ): a mixture of 2^P supports. Weights with several peaks are a mixture
of Gaussians each, mirrored or one-sided (zeros and ones, unequal peaks). Averages over their fields
are quadratures (field_averages.py).
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.priors.base import Traits
from jaxsmi.priors.columns import Mixture
from jaxsmi.priors.iid import AbstractIidPrior, sizes

__all__ = ["BernoulliGauss", "GaussianMixture", "Rademacher"]

_MAX_INDICES = 8  # 2^8 components: a posterior of one column takes 2^8 P² operations
_MAX_COMPONENTS = 2**_MAX_INDICES
_DENSITY = validate.Interval("a number in (0, 1]", low=0.0, high=1.0, open_low=True)


def _supports(indices: int) -> Array:
    """All 2^P vectors of zeros and ones, (2^P, P)."""
    allowed = f"1 to {_MAX_INDICES}: the 2^P components are enumerated"
    validate.check(1 <= indices <= _MAX_INDICES, "indices", indices, allowed)
    vectors = np.array(list(itertools.product((0.0, 1.0), repeat=indices)))
    return jnp.asarray(vectors, theory_dtype())


class Rademacher(AbstractIidPrior):
    """Binary prior with independent signs, for at most eight indices.

        w_p = ±1;  P = 1: f = tanh b, Q = E tanh²(q̂ + √q̂ ξ)

    Raises:
        ValueError: From its methods, for P > 8.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Rademacher
        >>> Rademacher().overlap(jnp.eye(1))
        Array([[0.5504]], dtype=...)

    Source:
        [TCDKZ25], [theory: multi-index, section 2].
    """

    traits: ClassVar[Traits] = Traits(discrete=True)

    def column(self, indices: int) -> Mixture:
        """2^P points of equal weight."""
        signs = 2.0 * _supports(indices) - 1.0
        log_weight = jnp.full(len(signs), -indices * math.log(2.0), signs.dtype)
        # points are Gaussians without width: one formula serves both
        return Mixture(log_weight, signs, jnp.zeros((*signs.shape, indices), signs.dtype))

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw P·D independent signs; see `AbstractIidPrior.sample`."""
        key, P, D = sizes(key, indices, dimension)
        return jax.random.rademacher(key, (P, D), theory_dtype())


class BernoulliGauss(AbstractIidPrior):
    """Sparse prior with independent entries of unit variance, for at most eight indices.

        w_p = 0 with probability 1-ρ, else N(0, 1/ρ), so that E[w_p²] = 1

    Args:
        density: ρ, a number in (0, 1]; one is the Gaussian prior.

    Raises:
        ValueError: For ρ outside (0, 1]; from its methods, for P > 8.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import BernoulliGauss
        >>> BernoulliGauss(1.0).overlap(jnp.eye(1))
        Array([[0.5]], dtype=...)

    Source:
        [TCDKZ25], [theory: multi-index, section 2].
    """

    traits: ClassVar[Traits] = Traits()
    density: Float[Array, ""] = eqx.field(
        converter=lambda x: validate.number("density", x, _DENSITY)
    )

    def column(self, indices: int) -> Mixture:
        """2^P supports."""
        support = _supports(indices)
        # one rounding error away from density 1 the logarithm and its derivative are finite,
        # and the weights right
        zero = 1.0 - self.density * (1.0 - jnp.finfo(support.dtype).eps)
        log_weight = support @ jnp.full(indices, jnp.log(self.density))
        log_weight += (1.0 - support) @ jnp.full(indices, jnp.log(zero))
        factor = jax.vmap(jnp.diag)(support / jnp.sqrt(self.density))
        return Mixture(log_weight, jnp.zeros_like(support), factor)

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw supports and values; see `AbstractIidPrior.sample`."""
        key, P, D = sizes(key, indices, dimension)
        support_key, value_key = jax.random.split(key)
        support = jax.random.bernoulli(support_key, self.density, (P, D))
        values = jax.random.normal(value_key, support.shape, theory_dtype())
        return support * values / jnp.sqrt(self.density)


def _probabilities(weights: object) -> Array:
    value = validate.array("weights", weights, "probabilities (K,)", interval=validate.NON_NEGATIVE)
    # 1e-6: probabilities that were rounded to float32
    sums = jnp.abs(jnp.sum(value) - 1.0) < 1e-6
    validate.check(sums, "weights", value, "numbers >= 0 that add up to one")
    return jnp.where(sums, value, jnp.nan)  # traced weights that do not add up


class GaussianMixture(AbstractIidPrior):
    """Prior with independent entries, each a mixture of Gaussians.

        w_p ~ Σ_k π_k ½ [N(μ_k, s_k²) + N(-μ_k, s_k²)];   one-sided: w_p ~ Σ_k π_k N(μ_k, s_k²)

    Args:
        weights: π (K,), numbers >= 0 that add up to one.
        means: μ (K,).
        scales: s (K,), numbers >= 0.
        mirrored: Each peak comes with either sign. False: one-sided peaks, such as weights
            [1-ρ, ρ], means [0, 1], scales [0, 0] for zeros and ones; a non-zero mean gives an
            overlap before any label. Default True.

    Raises:
        ValueError: For arrays of different shapes, weights that are not probabilities, or scales
            below zero; from its methods, for more than 2^8 components (2K)^P, one-sided K^P.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import GaussianMixture
        >>> GaussianMixture([1.0], [1.0], [0.0]).overlap(jnp.eye(1))  # Rademacher
        Array([[0.5504]], dtype=...)
        >>> rare = GaussianMixture([0.9, 0.1], [0.0, 1.0], [0.0, 0.0], mirrored=False)
        >>> rare.overlap(jnp.zeros((1, 1)))  # the square of the mean
        Array([[0.01]], dtype=...)

    Source:
        [theory: multi-index, section 2].
    """

    weights: Float[Array, " K"] = eqx.field(converter=_probabilities)
    means: Float[Array, " K"] = eqx.field(
        converter=lambda x: validate.array("means", x, "numbers (K,)")
    )
    scales: Float[Array, " K"] = eqx.field(
        converter=lambda x: validate.array(
            "scales", x, "numbers >= 0 (K,)", interval=validate.NON_NEGATIVE
        )
    )
    mirrored: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        validate.flag("mirrored", self.mirrored)
        shape = self.weights.shape
        one_axis = len(shape) == 1 and shape[0] > 0
        validate.check(one_axis, "weights", self.weights, "probabilities (K,)")
        for name, value in (("means", self.means), ("scales", self.scales)):
            allowed = f"numbers of shape {shape}, one a weight"
            validate.check(value.shape == shape, name, value, allowed)

    @property
    def traits(self) -> Traits:
        return Traits(even=self.mirrored)

    def column(self, indices: int) -> Mixture:
        """(2K)^P components, a peak and a sign for each entry; one-sided K^P."""
        sides = 2 if self.mirrored else 1
        peaks = sides * len(self.weights)
        allowed = f"1 or more with K^P <= {_MAX_COMPONENTS} components, K = {peaks} peaks"
        enumerable = indices >= 1 and peaks**indices <= _MAX_COMPONENTS
        validate.check(enumerable, "indices", indices, allowed)
        choice = np.array(list(itertools.product(range(peaks), repeat=indices)))
        # neighbours in the enumeration are the two signs of a peak
        kind, sign = choice // sides, jnp.asarray(1.0 - 2.0 * (choice % sides), self.means.dtype)
        # a weight of zero has a logarithm with an infinite derivative
        floor = jnp.finfo(self.weights.dtype).tiny
        log_weight = jnp.sum(jnp.log(jnp.maximum(self.weights / sides, floor))[kind], axis=1)
        factor = jax.vmap(jnp.diag)(self.scales[kind])
        return Mixture(log_weight, sign * self.means[kind], factor)

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw peaks, signs and values; see `AbstractIidPrior.sample`."""
        key, *shape = sizes(key, indices, dimension)
        peak_key, sign_key, value_key = jax.random.split(key, 3)
        kind = jax.random.choice(peak_key, len(self.weights), shape, p=self.weights)
        values = jax.random.normal(value_key, shape, theory_dtype())
        signs = jax.random.rademacher(sign_key, shape, theory_dtype()) if self.mirrored else 1.0
        return signs * self.means[kind] + self.scales[kind] * values
