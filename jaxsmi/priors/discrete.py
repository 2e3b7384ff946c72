"""Priors that are mixtures of several Gaussians: binary and sparse weights, weights with peaks.

Rademacher weights are w_p = ±1, a mixture of 2^P points. Bernoulli–Gauss weights are zero with
probability 1-ρ, else N(0, 1/ρ): a mixture of 2^P supports. Weights with several peaks are a mixture
of Gaussians each, with either sign or as they stand: zeros and ones, unequal peaks. Averages over
their fields are quadratures (field_averages.py).
"""

from __future__ import annotations

import abc
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import checked, flag, numbers, scalar
from jaxsmi.core.checks import Arguments, Interval, check
from jaxsmi.priors import field_averages
from jaxsmi.priors.iid import AbstractIidPrior, averaged, check_sizes, drawn, precision_matrix, real
from jaxsmi.priors.mixture import Mixture

__all__ = [
    "AbstractAveragedPrior",
    "AbstractMixturePrior",
    "BernoulliGauss",
    "GaussianMixture",
    "Rademacher",
]

_MAX_INDICES = 8  # 2^8 components
_MOST = 2**_MAX_INDICES
_DENSITY = Interval("a number in (0, 1]", low=0.0, high=1.0, open_low=True)


class AbstractAveragedPrior(AbstractIidPrior):
    """A prior whose averages are quadratures over the nodes of its `column`."""

    @averaged
    def overlap(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """Q = E[f fᵀ] by quadrature; see `AbstractIidPrior.overlap`."""
        return field_averages.overlap(self, precision_matrix(Qhat))

    @averaged
    def mmse(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """V = E[C] by quadrature; see `AbstractIidPrior.mmse`."""
        return field_averages.mmse(self, precision_matrix(Qhat))

    @averaged
    def free_entropy(self, Qhat: Float[Array, "P P"]) -> Float[Array, ""]:
        """Φ_w = E log Z_w by quadrature; see `AbstractIidPrior.free_entropy`."""
        return field_averages.free_entropy(self, precision_matrix(Qhat))


class AbstractMixturePrior(AbstractAveragedPrior):
    """A mixture of several Gaussians: a family says its `mixture` and draws a `sample`."""

    @abc.abstractmethod
    def mixture(self, indices: int) -> Mixture:
        """The prior of a P-vector as a mixture of Gaussians, P = `indices`."""

    def column(self, indices: int) -> Mixture:
        """The mixture."""
        return self.mixture(indices)


def _supports(indices: int) -> Array:
    """All 2^P vectors of zeros and ones, (2^P, P)."""
    allowed = f"1 to {_MAX_INDICES}: the 2^P components are enumerated"
    check(1 <= indices <= _MAX_INDICES, "indices", indices, allowed)
    vectors = np.array(list(itertools.product((0.0, 1.0), repeat=indices)))
    return jnp.asarray(vectors, theory_dtype())


class Rademacher(AbstractMixturePrior):
    """Binary prior with independent signs, for at most eight indices.

        w_p = ±1;  P = 1: f = tanh b, Q = E tanh²(q̂ + √q̂ ξ)

    Returns:
        A prior.

    Raises:
        ValueError: From its methods, for P > 8.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Rademacher
        >>> Rademacher().overlap(jnp.eye(1))
        Array([[0.5504]], dtype=...)

    Cost:
        See `AbstractIidPrior.overlap`.

    Source:
        [TCDKZ25], [theory: multi-index, section 2].
    """

    @property
    def discrete(self) -> bool:
        """2^P points."""
        return True

    def mixture(self, indices: int) -> Mixture:
        """2^P points of equal weight."""
        signs = 2.0 * _supports(indices) - 1.0
        log_weight = jnp.full(len(signs), -indices * math.log(2.0), signs.dtype)
        return Mixture(log_weight, signs, jnp.zeros((*signs.shape, indices), signs.dtype))

    @drawn
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw P·D independent signs; see `AbstractIidPrior.sample`."""
        check_sizes(indices, dimension)
        return jax.random.rademacher(key, (indices, dimension), theory_dtype())


@checked(density=scalar(_DENSITY))
class BernoulliGauss(AbstractMixturePrior):
    """Sparse prior with independent entries of unit variance, for at most eight indices.

        w_p = 0 with probability 1-ρ, else N(0, 1/ρ), so that E[w_p²] = 1

    Args:
        density: ρ, a number in (0, 1]; one is the Gaussian prior.

    Returns:
        A prior.

    Raises:
        ValueError: For ρ outside (0, 1]; from its methods, for P > 8.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import BernoulliGauss
        >>> BernoulliGauss(1.0).overlap(jnp.eye(1))
        Array([[0.5]], dtype=...)

    Cost:
        See `AbstractIidPrior.overlap`.

    Source:
        [TCDKZ25], [theory: multi-index, section 2].
    """

    density: Float[Array, ""] = eqx.field(
        converter=lambda x: Arguments().number("density", x, _DENSITY)
    )

    def mixture(self, indices: int) -> Mixture:
        """2^P supports."""
        support = _supports(indices)
        # one rounding error away from density 1 the logarithm and its derivative are finite,
        # and the weights right
        zero = 1.0 - self.density * (1.0 - jnp.finfo(support.dtype).eps)
        log_weight = support @ jnp.full(indices, jnp.log(self.density))
        log_weight += (1.0 - support) @ jnp.full(indices, jnp.log(zero))
        factor = jax.vmap(jnp.diag)(support / jnp.sqrt(self.density))
        return Mixture(log_weight, jnp.zeros_like(support), factor)

    @drawn
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw supports and values; see `AbstractIidPrior.sample`."""
        check_sizes(indices, dimension)
        support_key, value_key = jax.random.split(key)
        support = jax.random.bernoulli(support_key, self.density, (indices, dimension))
        values = jax.random.normal(value_key, support.shape, theory_dtype())
        return support * values / jnp.sqrt(self.density)


# Inside jit, where nothing can be raised, what is out of range becomes NaN.


def _as_probabilities(weights: object) -> Array:
    """Numbers >= 0 that add up to one."""
    value = real(weights, "weights")
    sound = jnp.all(value >= 0.0) & (jnp.abs(jnp.sum(value) - 1.0) < 1e-6)
    return Arguments().masked(value, sound, "weights", value, "numbers >= 0 that add up to one")


def _as_scales(scales: object) -> Array:
    """Numbers >= 0."""
    value = real(scales, "scales")
    return Arguments().masked(value, jnp.all(value >= 0.0), "scales", value, "numbers >= 0")


@checked(
    weights=numbers("probabilities (K,)"),
    means=numbers("numbers (K,)"),
    scales=numbers("numbers (K,)"),
    mirrored=flag,
)
class GaussianMixture(AbstractMixturePrior):
    """Prior with independent entries, each a mixture of Gaussians.

        w_p ~ Σ_k π_k ½ [N(μ_k, s_k²) + N(-μ_k, s_k²)];   one-sided: w_p ~ Σ_k π_k N(μ_k, s_k²)

    Args:
        weights: π (K,), numbers >= 0 that add up to one.
        means: μ (K,).
        scales: s (K,), numbers >= 0.
        mirrored: Whether each peak comes with either sign. False: peaks as they stand, such as
            weights [1-ρ, ρ], means [0, 1], scales [0, 0] for zeros and ones; a mean that is not
            zero tells of W from the start. Default True.

    Returns:
        A prior.

    Raises:
        ValueError: For arrays that do not fit, weights that are no probabilities, or scales below
            zero; from its methods, for more than 2^8 components (2K)^P, one-sided K^P.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import GaussianMixture
        >>> GaussianMixture([1.0], [1.0], [0.0]).overlap(jnp.eye(1))  # Rademacher
        Array([[0.5504]], dtype=...)
        >>> rare = GaussianMixture([0.9, 0.1], [0.0, 1.0], [0.0, 0.0], mirrored=False)
        >>> rare.overlap(jnp.zeros((1, 1)))  # the square of the mean
        Array([[0.01]], dtype=...)

    Cost:
        See `AbstractIidPrior.overlap`, with (2K)^P components for 2^P.

    Source:
        [theory: multi-index, section 2].
    """

    weights: Float[Array, " K"] = eqx.field(converter=_as_probabilities)
    means: Float[Array, " K"] = eqx.field(
        converter=lambda x: Arguments().array("means", x, "numbers (K,)")
    )
    scales: Float[Array, " K"] = eqx.field(converter=_as_scales)

    mirrored: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        check(isinstance(self.mirrored, bool), "mirrored", self.mirrored, "True or False")
        shape = self.weights.shape
        check(len(shape) == 1 and shape[0] > 0, "weights", self.weights, "probabilities (K,)")
        for name, value in (("means", self.means), ("scales", self.scales)):
            check(value.shape == shape, name, value, f"numbers {shape}, one a weight")

    @property
    def even(self) -> bool:
        """Where peaks are mirrored."""
        return self.mirrored

    def mixture(self, indices: int) -> Mixture:
        """(2K)^P components, a peak and a sign for each entry; one-sided K^P."""
        sides = 2 if self.mirrored else 1
        peaks = sides * len(self.weights)
        allowed = f"1 or more with K^P <= {_MOST} components, K = {peaks} peaks"
        check(indices >= 1 and peaks**indices <= _MOST, "indices", indices, allowed)
        choice = np.array(list(itertools.product(range(peaks), repeat=indices)))
        kind, sign = choice // sides, jnp.asarray(1.0 - 2.0 * (choice % sides), self.means.dtype)
        floor = jnp.finfo(self.weights.dtype).tiny
        log_weight = jnp.sum(jnp.log(jnp.maximum(self.weights / sides, floor))[kind], axis=1)
        factor = jax.vmap(jnp.diag)(self.scales[kind])
        return Mixture(log_weight, sign * self.means[kind], factor)

    @drawn
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw peaks, signs and values; see `AbstractIidPrior.sample`."""
        check_sizes(indices, dimension)
        peak_key, sign_key, value_key = jax.random.split(key, 3)
        shape = (indices, dimension)
        kind = jax.random.choice(peak_key, len(self.weights), shape, p=self.weights)
        values = jax.random.normal(value_key, shape, theory_dtype())
        signs = jax.random.rademacher(sign_key, shape, theory_dtype()) if self.mirrored else 1.0
        return signs * self.means[kind] + self.scales[kind] * values
