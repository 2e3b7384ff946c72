"""Links whose labels are random, or linear piece by piece: `MultiIndex` models by name.

| link | y | channel |
|---|---|---|
| logistic(beta) | ±1 with probability ς(βyz) | one-dimensional sum |
| softmax(classes) | a unit vector, with probability softmax(z) | integrated |
| poisson(size) | a count of mean e^{size z} | integrated |
| piecewise_linear(slopes, offsets, knots, noise) | a_s z + b_s + √Δ ξ | closed form |
| relu(noise, leak), hard_tanh(noise), absolute(noise), door(width) | pieces | closed form |

Source: [BKMMZ19; theory: multi-index, section 3].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.likelihood import IntegratedChannel, Likelihood
from jaxsmi.channels.piecewise import PiecewiseLinearChannel
from jaxsmi.channels.signs import LogisticChannel
from jaxsmi.core.arrays import concrete, is_zero
from jaxsmi.core.border import anything, checked, numbers, optional, scalar, text, whole
from jaxsmi.core.checks import FINITE, POSITIVE, VARIANCE, Arguments, check
from jaxsmi.models.multi_index import MultiIndex, default_tolerance
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors.gaussian import is_prior
from jaxsmi.priors.iid import AbstractIidPrior

__all__ = [
    "HALF_WIDTH",
    "absolute",
    "door",
    "hard_tanh",
    "logistic",
    "piecewise_linear",
    "poisson",
    "relu",
    "softmax",
]

_STEEPEST = dataclasses.replace(POSITIVE, allowed="a number in (0, 10]", high=10.0)
HALF_WIDTH = 0.6744897501960817  # half of N(0, 1) lies within it


@checked(beta=scalar(_STEEPEST), prior=is_prior)
def logistic(beta: ArrayLike = 1.0, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Logistic regression: y = ±1 with probability 1/(1 + e^{-βyz}).

    Args:
        beta: β, in (0, 10]. Default 1.
        prior: Of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For β out of range (steeper ones: `sign`).

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, key = smi.links.logistic(), jax.random.key(0)
        >>> round(float(smi.state_evolution(model, 4.0, key=key).overlap[0, 0]), 2)
        0.42

    Cost:
        A sum of 361 terms a denoiser, exact but for rounding up to β√V = 10.

    Source:
        [theory: multi-index, Eq. (69)].
    """
    steepness = Arguments().number("beta", beta, _STEEPEST)
    return MultiIndex(channel=LogisticChannel(steepness), prior=prior, name="logistic")


@checked(classes=whole(2), tolerance=optional(scalar(POSITIVE)), prior=is_prior)
def softmax(
    classes: int = 3, tolerance: float | None = None, prior: AbstractIidPrior | None = None
) -> MultiIndex:
    """Classes: y is the k-th unit vector with probability softmax(z)_k, one field a class.

    Args:
        classes: How many there are, and indices P, at least 2. Default 3.
        tolerance: That of `MultiIndex`. Default None.
        prior: Of the rows of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For fewer than two classes.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model = smi.links.softmax(3)
        >>> data = model.sample(jax.random.key(0), dimension=20, alpha=2.0)
        >>> data.labels.shape  # one of three for each of 40 samples
        (40, 3)

    Cost:
        An integral over `classes` fields a denoiser: milliseconds for three.

    Source:
        [theory: multi-index, section 3].
    """
    K = classes
    name = f"softmax({K})"
    setting = {"indices": K, "outcomes": np.eye(K), "tolerance": tolerance, "prior": prior}
    return MultiIndex(log_likelihood=_log_softmax, name=name, **setting)


@checked(size=scalar(POSITIVE), tolerance=optional(scalar(POSITIVE)), prior=is_prior)
def poisson(
    size: ArrayLike = 1.0, tolerance: float | None = None, prior: AbstractIidPrior | None = None
) -> MultiIndex:
    """Counts: y is a Poisson number of mean e^{size z}.

    Args:
        size: Of the logarithm of the mean, a number > 0. Default 1.
        tolerance: That of `MultiIndex`. Default None.
        prior: Of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For a size that is not positive.

    Example:
        >>> import jax, jaxsmi as smi
        >>> data = smi.links.poisson(0.5).sample(jax.random.key(0), dimension=20, alpha=2.0)
        >>> bool((data.labels >= 0).all())
        True

    Cost:
        A one-dimensional integral a denoiser.

    Source:
        [theory: multi-index, section 3].
    """
    law = _Counts(Arguments().number("size", size, POSITIVE))
    labels = Likelihood(law.log_likelihood, law.draw, counts=True)
    budget = Budget(default_tolerance(1) if tolerance is None else tolerance)
    channel = IntegratedChannel(law.mean, 1, 1, jnp.zeros(()), budget, labels)
    return MultiIndex(channel=channel, prior=prior, name="poisson")


@checked(
    slopes=numbers("numbers (S,), S >= 1"),
    offsets=numbers("numbers (S,), one a slope"),
    knots=anything,
    noise=scalar(VARIANCE),
    prior=is_prior,
    name=text,
)
def piecewise_linear(
    slopes: ArrayLike,
    offsets: ArrayLike,
    knots: ArrayLike,
    noise: ArrayLike = 0.0,
    prior: AbstractIidPrior | None = None,
    name: str = "piecewise_linear",
) -> MultiIndex:
    """A link that is linear piece by piece, y = a_s z + b_s + √Δ ξ for z between two knots.

    Args:
        slopes: a (S,).
        offsets: b (S,).
        knots: Ends of the pieces (S - 1,), increasing.
        noise: Variance Δ >= 0. Default 0.
        prior: Of the row of W. Default: iid N(0, 1).
        name: What to call the model. Default "piecewise_linear".

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For arrays that do not fit, knots that do not increase, a link that is constant,
            or Δ < 0.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model = smi.links.piecewise_linear([0, 1, 0], [-1, 0, 1], [-1, 1])  # hard tanh
        >>> model.sample(jax.random.key(0), dimension=20, alpha=2.0).labels.shape
        (40,)

    Cost:
        A closed form for each piece.

    Source:
        [theory: multi-index, Eqs. (67), (68)].
    """
    arguments = Arguments()
    a = arguments.array("slopes", slopes, "numbers (S,), S >= 1")
    check(a.ndim == 1 and len(a) >= 1, "slopes", slopes, "numbers (S,), S >= 1")
    b = arguments.array("offsets", offsets, f"numbers ({len(a)},), one a slope")
    check(b.shape == a.shape, "offsets", offsets, f"numbers ({len(a)},), one a slope")
    allowed = f"increasing numbers ({len(a) - 1},), one less than slopes"
    k = arguments.array("knots", knots, allowed)
    check(k.shape == (len(a) - 1,), "knots", knots, allowed)
    k = arguments.masked(k, jnp.all(jnp.diff(k) > 0.0), "knots", knots, allowed)
    # of the slopes as they came: an array that is made inside jit is traced, and not known
    flat = _zeros(slopes)
    varies = jnp.any(jnp.diff(b) != 0.0) if all(flat) else True
    a = arguments.masked(a, varies, "slopes", slopes, "a link that is not constant")
    return _of_pieces(a, b, k, flat, noise, prior, name)


def _zeros(slopes: ArrayLike) -> tuple[bool, ...]:
    """Which slopes are known to be zero."""
    each = np.asarray(slopes) if concrete(slopes) else cast(Iterable[object], slopes)
    return tuple(is_zero(slope) for slope in each)


def _of_pieces(
    slopes: Array,
    offsets: Array,
    knots: Array,
    flat: tuple[bool, ...],
    noise: ArrayLike,
    prior: AbstractIidPrior | None,
    name: str,
) -> MultiIndex:
    """The model of pieces that fit; `flat`: which slopes are known to be zero."""
    arguments = Arguments()
    variance = None if is_zero(noise) else arguments.number("noise", noise, VARIANCE)
    if variance is None:  # a traced slope may not be zero: whether it is decides the program
        steep = jnp.all((slopes != 0.0) | np.array(flat))
        allowed = "no zero that is traced, where there is no noise"
        slopes = arguments.masked(slopes, steep, "slopes", slopes, allowed)
    channel = PiecewiseLinearChannel(slopes, offsets, knots, flat, variance)
    return MultiIndex(channel=channel, prior=prior, name=name)


@checked(noise=scalar(VARIANCE), leak=scalar(FINITE), prior=is_prior)
def relu(
    noise: ArrayLike = 0.0, leak: ArrayLike = 0.0, prior: AbstractIidPrior | None = None
) -> MultiIndex:
    """Rectified linear unit, y = max(z, leak z) + √Δ ξ.

    Args:
        noise: Variance Δ >= 0. Default 0.
        leak: Slope for z < 0. Default 0.
        prior: Of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.relu(noise=0.1).name
        'relu'

    Cost:
        That of `piecewise_linear`.

    Source:
        [BKMMZ19].
    """
    low = Arguments().number("leak", leak, FINITE)
    slopes = jnp.stack([low, jnp.ones_like(low)])
    b, knots = jnp.zeros_like(slopes), jnp.zeros(1, slopes.dtype)
    return _of_pieces(slopes, b, knots, (is_zero(leak), False), noise, prior, "relu")


@checked(noise=scalar(VARIANCE), prior=is_prior)
def hard_tanh(noise: ArrayLike = 0.0, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """A field that is cut off, y = min(max(z, -1), 1) + √Δ ξ.

    Args:
        noise: Variance Δ >= 0. Default 0.
        prior: Of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.hard_tanh().name
        'hard_tanh'

    Cost:
        That of `piecewise_linear`.

    Source:
        [theory: multi-index, Eqs. (67), (68)].
    """
    return piecewise_linear(
        np.array([0, 1, 0]), np.array([-1, 0, 1]), np.array([-1, 1]), noise, prior, "hard_tanh"
    )


@checked(noise=scalar(VARIANCE), prior=is_prior)
def absolute(noise: ArrayLike = 0.0, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """The modulus with noise, y = |z| + √Δ ξ; without: `phase_retrieval`.

    Args:
        noise: Variance Δ >= 0. Default 0.
        prior: Of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.absolute(0.1).symmetry[0].kind
        'sign'

    Cost:
        That of `piecewise_linear`.

    Source:
        [BKMMZ19].
    """
    return piecewise_linear(
        np.array([-1, 1]), np.array([0, 0]), np.array([0]), noise, prior, "absolute"
    )


@checked(width=scalar(POSITIVE), prior=is_prior)
def door(width: ArrayLike = HALF_WIDTH, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """The symmetric door, y = sign(|z| - width).

    Args:
        width: A number > 0. Default: half of all labels are 1.
        prior: Of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For a width that is not positive.

    Example:
        >>> import jax, jaxsmi as smi
        >>> few = smi.Averages(points=2**10)
        >>> found = smi.weak_recovery(smi.links.door(), key=jax.random.key(0), averages=few)
        >>> round(float(found.alpha), 1)  # 1.360 in closed form
        1.4

    Cost:
        That of `piecewise_linear`.

    Source:
        [BKMMZ19].
    """
    half = Arguments().number("width", width, POSITIVE)
    knots = jnp.stack([-half, half])
    return piecewise_linear(np.array([0, 0, 0]), np.array([1, -1, 1]), knots, 0.0, prior, "door")


# Named functions, not lambdas: two models of the same link are then one program, compiled once.


def _log_softmax(y: Array, z: Array) -> Array:
    """log softmax(z)_k of the k-th unit vector."""
    return jnp.sum(y * jax.nn.log_softmax(z[:, 0]))


class _Counts(eqx.Module):
    """Poisson numbers of mean e^{size z}."""

    size: Array

    def mean(self, z: Array) -> Array:
        """E[y|z]."""
        return jnp.exp(self.size * z[0, 0])

    def log_likelihood(self, y: Array, z: Array) -> Array:
        """log p(y|z)."""
        rate = self.size * z[0, 0]
        return y * rate - jnp.exp(rate) - gammaln(y + 1.0)

    def draw(self, key: PRNGKeyArray, z: Array) -> Array:
        """A label."""
        return jax.random.poisson(key, self.mean(z))
