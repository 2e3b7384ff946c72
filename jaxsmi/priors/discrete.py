"""Priors that are mixtures of several Gaussians: binary and sparse weights, weights with peaks.

Rademacher weights are w_p = ±1, a mixture of 2^P points. Bernoulli–Gauss weights are zero with
probability 1-ρ, else N(0, 1/ρ): a mixture of 2^P supports. Weights with several peaks are a mixture
of Gaussians each, mirrored or one-sided (zeros and ones, unequal peaks). Averages over their fields
are quadratures (field_averages.py).
"""

from __future__ import annotations

import abc
import itertools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny, concrete, nan_unless, theory_dtype
from jaxsmi.priors.base import Traits
from jaxsmi.priors.iid import AbstractIidPrior, Mixture, sizes

# eight indices of two components each: a posterior of one column takes 2^8 P² operations
_MAX_COMPONENTS = 2**8
_ROUNDED = 1e-6  # of a sum of probabilities that were rounded to float32
_DENSITY = validate.Interval("a number in (0, 1]", low=0.0, high=1.0, open_low=True)


class AbstractEntries(AbstractIidPrior):
    """A prior with independent entries, each a mixture of Gaussians Σ_k π_k N(μ_k, s_k²).

    To add one, subclass this with `traits` and `entry`. P indices need K^P <= 2^8.
    """

    def __check_init__(self):
        total = np.sum(np.exp(log)) if concrete(log := self.entry[0]) else 1.0
        allowed = "probabilities π of `entry` that add up to one"
        validate.check(abs(total - 1.0) < _ROUNDED or np.isnan(total), "entry", total, allowed)

    @property
    @abc.abstractmethod
    def entry(self) -> tuple[Array, Array, Array]:
        """The mixture of one entry: log π, μ and s (K,); the π add up to one."""

    def column(self, indices: int) -> Mixture:
        """Combine the components of all entries, K^P choices; see `AbstractIidPrior`."""
        log_weight, mean, scale = self.entry
        K = len(mean)
        allowed = f"1 or more with K^P <= {_MAX_COMPONENTS} components, K = {K} of an entry"
        enumerable = indices >= 1 and K**indices <= _MAX_COMPONENTS
        validate.check(enumerable, "indices", indices, allowed)
        choice = np.array(list(itertools.product(range(K), repeat=indices)))
        # points are Gaussians without width: one formula serves both
        factor = jax.vmap(jnp.diag)(scale[choice])
        return Mixture(jnp.sum(log_weight[choice], axis=1), mean[choice], factor)

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw P·D independent entries; see `AbstractIidPrior.sample`."""
        key, *shape = sizes(key, indices, dimension)
        kind_key, value_key = jax.random.split(key)
        log_weight, mean, scale = self.entry
        kind = jax.random.categorical(kind_key, log_weight, shape=tuple(shape))
        return mean[kind] + scale[kind] * jax.random.normal(value_key, kind.shape, mean.dtype)


class Rademacher(AbstractEntries):
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

    @property
    def entry(self) -> tuple[Array, Array, Array]:
        """Points ±1, of equal weight."""
        signs = jnp.asarray([-1.0, 1.0], theory_dtype())
        return jnp.full_like(signs, np.log(0.5)), signs, jnp.zeros_like(signs)


class BernoulliGauss(AbstractEntries):
    """Sparse prior with independent entries of unit variance, for at most eight indices.

        w_p = 0 with probability 1-ρ, else N(0, 1/ρ), so that E[w_p²] = 1

    Args:
        density: ρ in (0, 1], the share of weights that are not zero but N(0, 1/ρ); one is the
            Gaussian prior.

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

    @property
    def entry(self) -> tuple[Array, Array, Array]:
        """Zero, or a Gaussian of variance 1/ρ."""
        # one rounding error away from density 1 the logarithm and its derivative are finite,
        # and the weights right
        zero = 1.0 - self.density * (1.0 - jnp.finfo(self.density.dtype).eps)
        scale = 1.0 / jnp.sqrt(self.density)
        zeros = jnp.zeros_like(scale)
        log_weight = jnp.log(jnp.stack([zero, self.density]))
        return log_weight, jnp.stack([zeros, zeros]), jnp.stack([zeros, scale])


class GaussianMixture(AbstractEntries):
    """Prior with independent entries, each a mixture of Gaussians.

        w_p ~ Σ_k π_k ½ [N(μ_k, s_k²) + N(-μ_k, s_k²)];   one-sided: w_p ~ Σ_k π_k N(μ_k, s_k²)

    Args:
        weights: π (K,), numbers >= 0 that add up to one.
        means: μ (K,).
        scales: s (K,), numbers >= 0. All zero when the prior is made: a discrete law, whose
            optimal recovery `smi.first_order` computes.
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

    weights: Float[Array, " K"]
    means: Float[Array, " K"]
    scales: Float[Array, " K"]
    mirrored: bool = eqx.field(static=True)
    # inside jit the widths are traced
    _points: bool = eqx.field(static=True, init=False, repr=False)

    def __init__(
        self, weights: ArrayLike, means: ArrayLike, scales: ArrayLike, mirrored: bool = True
    ):
        allowed, positive = "probabilities (K,)", validate.NON_NEGATIVE
        share = validate.array("weights", weights, allowed, shape=(None,), interval=positive)
        sums = jnp.abs(jnp.sum(share) - 1.0) < _ROUNDED
        validate.check(sums, "weights", share, "numbers >= 0 that add up to one")
        self.weights, shape = nan_unless(share, sums), share.shape
        allowed = f"numbers of shape {shape}, one for each weight"
        self.means = validate.array("means", means, allowed, shape=shape)
        allowed = f"numbers >= 0 of shape {shape}, one for each weight"
        self.scales = validate.array("scales", scales, allowed, shape=shape, interval=positive)
        self.mirrored = validate.flag("mirrored", mirrored)
        self._points = concrete(self.scales) and not np.any(self.scales)

    @property
    def traits(self) -> Traits:
        return Traits(discrete=self._points, even=self.mirrored)

    @property
    def entry(self) -> tuple[Array, Array, Array]:
        """The peaks, with both signs if mirrored."""
        # a weight of zero has a logarithm with an infinite derivative
        log_weight = jnp.log(clamp_to_tiny(self.weights))
        if not self.mirrored:
            return log_weight, self.means, self.scales
        twice = lambda x: jnp.concatenate([x, x])
        means = jnp.concatenate([self.means, -self.means])
        return twice(log_weight) - np.log(2.0), means, twice(self.scales)
