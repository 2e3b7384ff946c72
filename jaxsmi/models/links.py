"""Links by name: `MultiIndex` models with their channels.

| link | y | channel |
|---|---|---|
| linear(noise) | z + √Δ ξ | closed form |
| sign(noise, flip) | sign(z + √Δ ξ) | closed form |
| phase_retrieval() | |z| or z² | closed form |
| sign_product(k) | sign(z_1 .. z_k) | k = 1, 2, 3 (others sample and train) |
| sign_committee(k, vote, noise, flip) | sign Σ_i sign z_i, or the mean | k <= 3 (others sample) |
| product(k) | z_1 .. z_k | k = 1, 2 (others sample and train) |
| square_plus_sign_parity() | z_1² + sign(z_1 z_2 z_3) | exact |
| logistic(beta) | ±1 with probability ς(βyz) | one-dimensional sum |
| softmax(classes) | a unit vector, with probability softmax(z) | integrated |
| poisson(size) | a count of mean e^{size z} | integrated |
| piecewise_linear(slopes, offsets, knots, noise, flip) | a_s z + b_s + √Δ ξ | closed form |
| relu(noise, leak), hard_tanh(noise), absolute(noise), door(width, flip) | pieces | closed form |

The law of a label is that of the channel; only links without a channel are written here.
Source: [BKMMZ19; TDDZLK24; theory: multi-index, section 3].
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.likelihood import IntegratedChannel, Likelihood
from jaxsmi.channels.orbits import ProductChannel
from jaxsmi.channels.orthants import MOST_FIELDS, orthant_channel, sign_patterns
from jaxsmi.channels.piecewise import ModulusChannel, PiecewiseLinearChannel, linear_channel
from jaxsmi.channels.signs import (
    LogisticChannel,
    SignChannel,
    SignProductChannel,
    SquarePlusSignParityChannel,
)
from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, is_zero, nan_unless
from jaxsmi.core.validate import FINITE, POSITIVE, VARIANCE, check
from jaxsmi.models.index import MultiIndex, default_tolerance
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors.iid import AbstractIidPrior, iid_prior

__all__ = [
    "absolute",
    "door",
    "hard_tanh",
    "linear",
    "logistic",
    "phase_retrieval",
    "piecewise_linear",
    "poisson",
    "product",
    "relu",
    "sign",
    "sign_committee",
    "sign_product",
    "softmax",
    "square_plus_sign_parity",
]


validate.suggest_names(__name__, "smi.links")


def __dir__() -> list[str]:
    return __all__


Prior = AbstractIidPrior | None

HALF_WIDTH = 0.6744897501960817  # half of N(0, 1) lies within it
# range of β: the sum of 361 terms is exact up to β√V = 10
_BETA = dataclasses.replace(POSITIVE, allowed="a number in (0, 10]", high=10.0)
# range of Δ inside a sign: labels of infinite noise are coin tosses, the end of a sweep over noise
_SIGN_NOISE = dataclasses.replace(VARIANCE, infinite=True)
# beyond 1/2 labels are those of the opposite members
_FLIP = validate.Interval("a probability in [0, 1/2]", low=0.0, high=0.5)


def _model(
    channel: AbstractChannel, prior: Prior, name: str, symmetry: str | None = None
) -> MultiIndex:
    """Build the model of a channel whose rows have a symmetry if the prior is even."""
    rows = tuple(range(channel.indices))
    # a prior that is not even breaks it: the remaining symmetry is then found from labels
    given = [(rows, symmetry)] if symmetry and iid_prior(prior).traits.even else None
    return MultiIndex(channel=channel, prior=prior, symmetry=given, name=name)


def _unless_zero(given: ArrayLike, number: Array) -> Array | None:
    """Return None for a known zero: the program has no noise then."""
    return None if is_zero(given) else number


@validate.explained
def linear(noise: ArrayLike = 0.0, tokens: int = 1, prior: Prior = None) -> MultiIndex:
    """Linear regression with Gaussian noise, y = z + √Δ ξ.

    State evolution is exact: Q̂ = αM/(1 - q + Δ).

    Args:
        noise: Variance Δ >= 0. Default 0.
        tokens: M, the measurements of one sample. Default 1.
        prior: Prior of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0 or M < 1.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.linear(0.1).indices
        1

    Source:
        [theory: multi-index, Eq. (22), Table 1].
    """
    variance = validate.number("noise", noise, VARIANCE)
    return _model(linear_channel(variance, validate.count("tokens", tokens)), prior, "linear")


@validate.explained
def sign(noise: ArrayLike = 0.0, flip: ArrayLike = 0.0, prior: Prior = None) -> MultiIndex:
    """Perceptron, y = sign(z + √Δ ξ). With a Rademacher prior: the binary perceptron.

    Args:
        noise: Variance Δ >= 0 of the noise inside the sign; infinite: labels are random signs.
            Default 0.
        flip: Probability p in [0, 1/2] of the opposite label. Default 0.
        prior: Prior of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0, or p outside [0, 1/2].

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.sign(prior=smi.priors.Rademacher()).name
        'sign'

    Source:
        [theory: multi-index, Eq. (23)].
    """
    variance = validate.number("noise", noise, _SIGN_NOISE)
    p = validate.number("flip", flip, _FLIP)
    channel = SignChannel(noise=_unless_zero(noise, variance), flip=_unless_zero(flip, p))
    return _model(channel, prior, "sign")


@validate.explained
def phase_retrieval(squared: bool = False, prior: Prior = None) -> MultiIndex:
    """Phase retrieval, y = |z| or z². Weak recovery at α = 1/2.

    These labels have no noise; with noise use `smi.links.absolute(noise=..)`.

    Args:
        squared: y = z² instead of |z|. Default False.
        prior: Prior of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.phase_retrieval().symmetry[0].kind
        'sign'

    Source:
        [MM18], [theory: multi-index, Eq. (24), Table 1].
    """
    channel = ModulusChannel(squared=validate.flag("squared", squared))
    return _model(channel, prior, "phase_retrieval", "sign")


@validate.explained
def sign_product(k: int = 2, prior: Prior = None) -> MultiIndex:
    """Parity of k signs, y = sign(z_1 z_2 .. z_k). Inference for k <= 3.

    Args:
        k: Number of factors, at least 1. Default 2.
        prior: Prior of the rows of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For k < 1.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.sign_product(2).indices
        2

    Source:
        [TDDZLK24], [theory: multi-index, Eqs. (25), (29), Table 1].
    """
    if validate.count("k", k) == 1:
        return sign(prior=prior)
    name = f"sign_product({k})"
    channel = SignProductChannel(indices=k)
    # no channel is written for more factors: those models sample and train
    if k > 3:
        channel = MultiIndex(_sign_product, indices=k, name=name).channel
    return _model(channel, prior, name, "even signed permutation")


@validate.explained
def sign_committee(
    k: int = 2,
    vote: str = "majority",
    noise: ArrayLike = 0.0,
    flip: ArrayLike = 0.0,
    prior: Prior = None,
) -> MultiIndex:
    """Committee of k signs, y = sign(Σ_i sign z_i), zero for a tie. Inference for k <= 3.

    The second step of `smi.staircase` is its specialisation: α = 2.0524 for two members.

    Args:
        k: Number of members, at least 1. Default 2.
        vote: "majority", or "mean": y = (1/k) Σ_i sign z_i. Default "majority".
        noise: Variance Δ >= 0 of Gaussian noise that is added to the label. Default 0.
        flip: Probability p in [0, 1/2] of the opposite label -y; a tie stays zero. For at most
            three members without noise. Default 0.
        prior: Prior of the rows of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For k < 1, another word, Δ < 0, p outside [0, 1/2], or flips with noise, or of
            more than three members.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.sign_committee(2).channel.outcomes.tolist()
        [-1.0, 0.0, 1.0]

    Source:
        [AMBKMZ18], [theory: multi-index, Eq. (30)].
    """
    k = validate.count("k", k)
    majority = validate.choice("vote", vote, ("majority", "mean")) == "majority"
    variance = validate.number("noise", noise, VARIANCE)
    p = validate.number("flip", flip, _FLIP)
    allowed = f"0 for labels with Gaussian noise, and for more than {MOST_FIELDS} members"
    check(is_zero(flip) or (k <= MOST_FIELDS and is_zero(noise)), "flip", flip, allowed)
    name = f"sign_committee({k})"
    # no channel is written for more members: those models sample
    if k > MOST_FIELDS:
        link = functools.partial(_committee, k, majority)
        return MultiIndex(link, indices=k, noise=noise, prior=prior, name=name)
    values = _vote(sign_patterns(k).sum(axis=1), k, majority)
    channel = orthant_channel(values, _unless_zero(noise, variance), k, _unless_zero(flip, p))
    return _model(channel, prior, name, "permutation")


def _vote(total: Any, k: int, majority: bool) -> Any:
    # known numbers stay known inside jit
    sign = np.sign if isinstance(total, np.ndarray) else jnp.sign
    return sign(total) if majority else total / k


def _committee(k: int, majority: bool, z: Array) -> Array:
    return _vote(jnp.sum(jnp.sign(z)), k, majority)


@validate.explained
def product(k: int = 2, prior: Prior = None) -> MultiIndex:
    """Product of k fields, y = z_1 z_2 .. z_k. Inference for k <= 2.

    Args:
        k: Number of factors, at least 1. Default 2.
        prior: Prior of the rows of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For k < 1.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.product(2).indices
        2

    Source:
        [TDDZLK24], [theory: multi-index, Eq. (26), Table 1].
    """
    if validate.count("k", k) == 1:
        return linear(0.0, prior=prior)
    # empirical: a one-dimensional integral, where 1e-6 is cheap
    channel = ProductChannel(Budget(1e-6))
    # no channel is written for more factors: those models sample and train
    if k > 2:
        channel = MultiIndex(_product, indices=k, name=f"product({k})").channel
    return _model(channel, prior, f"product({k})", "even signed permutation")


@validate.explained
def square_plus_sign_parity(prior: Prior = None) -> MultiIndex:
    """The staircase example y = z_1² + sign(z_1 z_2 z_3).

    An even number of the three signs can be flipped, and z_2 and z_3 exchanged.

    Args:
        prior: Prior of the rows of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.square_plus_sign_parity().indices
        3

    Source:
        [TDDZLK24], [theory: multi-index, Eq. (27), Table 1].
    """
    kind = "even signed permutation, the first in place"
    return _model(SquarePlusSignParityChannel(), prior, "square_plus_sign_parity", kind)


@validate.explained
def logistic(beta: ArrayLike = 1.0, prior: Prior = None) -> MultiIndex:
    """Logistic regression: y = ±1 with probability 1/(1 + e^{-βyz}).

    Args:
        beta: β, in (0, 10]. Default 1.
        prior: Prior of the row of W. Default: iid N(0, 1).

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
        [theory: multi-index, Eq. (34)].
    """
    return _model(LogisticChannel(validate.number("beta", beta, _BETA)), prior, "logistic")


@validate.explained
def softmax(classes: int = 3, tolerance: float | None = None, prior: Prior = None) -> MultiIndex:
    """Classes: y is the k-th unit vector with probability softmax(z)_k, one field a class.

    Args:
        classes: Number of classes, and indices P, at least 2. Default 3.
        tolerance: Error of g, relative to 1 + max|g|, that integrals aim at. Default 1e-3, 1e-2 for
            more than three fields.
        prior: Prior of the rows of W. Default: iid N(0, 1).

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
    K = validate.count("classes", classes, at_least=2)
    return MultiIndex(
        log_likelihood=_log_softmax,
        indices=K,
        outcomes=np.eye(K),
        tolerance=tolerance,
        prior=prior,
        name=f"softmax({K})",
    )


@validate.explained
def poisson(
    size: ArrayLike = 1.0, tolerance: float | None = None, prior: Prior = None
) -> MultiIndex:
    """Counts: y is a Poisson number of mean e^{size z}.

    Counts of another mean are a `MultiIndex` with `log_likelihood` and `outcomes`.

    Args:
        size: Factor of z in the logarithm of the mean, a number > 0. Default 1.
        tolerance: Error of g, relative to 1 + max|g|, that integrals aim at. Default 1e-3, 1e-2 for
            more than three fields.
        prior: Prior of the row of W. Default: iid N(0, 1).

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
    law = _Counts(validate.number("size", size, POSITIVE))
    validate.optional(validate.number, "tolerance", tolerance, POSITIVE)
    # counts: the average over labels is a sum over integers, not an integral
    labels = Likelihood(law.log_likelihood, law.draw, counts=True)
    budget = Budget(default_tolerance(1) if tolerance is None else tolerance)
    channel = IntegratedChannel(1, 1, budget, law.mean, jnp.zeros(()), labels)
    return _model(channel, prior, "poisson")


@validate.explained
def piecewise_linear(
    slopes: ArrayLike | Sequence[ArrayLike],
    offsets: ArrayLike | Sequence[ArrayLike],
    knots: ArrayLike | Sequence[ArrayLike],
    noise: ArrayLike = 0.0,
    flip: ArrayLike = 0.0,
    prior: Prior = None,
    name: str = "piecewise_linear",
) -> MultiIndex:
    """A link that is linear piece by piece, y = a_s z + b_s + √Δ ξ for z between two knots.

    Args:
        slopes: a (S,).
        offsets: b (S,).
        knots: Ends of the pieces (S - 1,), increasing.
        noise: Variance Δ >= 0. Default 0.
        flip: Probability p in [0, 1/2] of the opposite label, of slopes 0 and offsets -1 and 1
            without noise. Default 0.
        prior: Prior of the row of W. Default: iid N(0, 1).
        name: Name of the model. Default "piecewise_linear".

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For arrays that do not fit, knots that do not increase, a link that is constant,
            Δ < 0, p outside [0, 1/2], or flips of other labels than -1 and 1.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model = smi.links.piecewise_linear([0, 1, 0], [-1, 0, 1], [-1, 1])  # hard tanh
        >>> model.sample(jax.random.key(0), dimension=20, alpha=2.0).labels.shape
        (40,)

    Cost:
        A closed form for each piece.

    Source:
        [theory: multi-index, Eqs. (32), (33)].
    """
    a = validate.array("slopes", slopes, "numbers (S,), S >= 1")
    check(a.ndim == 1, "slopes", slopes, "numbers (S,), S >= 1")
    allowed = f"numbers ({len(a)},), one for each slope"
    b = validate.array("offsets", offsets, allowed, shape=a.shape)
    allowed = f"increasing numbers ({len(a) - 1},), one less than slopes"
    k = validate.array("knots", knots, allowed, shape=(len(a) - 1,))
    increasing = jnp.all(jnp.diff(k) > 0.0)
    check(increasing, "knots", knots, allowed)
    # which slopes are zero is decided by the slopes as they came: an array made inside jit is
    # traced, and unknown
    given: Any = np.asarray(slopes) if concrete(slopes) else slopes
    flat = tuple(is_zero(slope) for slope in given)
    varies = jnp.any(jnp.diff(b) != 0.0) if all(flat) else True
    check(varies, "slopes", slopes, "a link that is not constant")
    noiseless = is_zero(noise)
    # without noise a flat piece has another posterior, another program: a traced slope must be
    # known not to be zero
    steep = jnp.all((a != 0.0) | np.array(flat)) if noiseless else True
    allowed = "numbers that are not traced: without noise it must be known which slopes are zero"
    check(steep, "slopes", slopes, allowed)
    variance = validate.number("noise", noise, VARIANCE)
    a, k = nan_unless(a, varies, steep), nan_unless(k, increasing)
    # an average over few labels is a sum: drawn ones would jump as the overlap moves
    few = noiseless and all(flat) and concrete(b)
    levels = tuple(np.unique(np.asarray(b), return_index=True)[1].tolist()) if few else ()
    variance = None if noiseless else variance
    p = validate.number("flip", flip, _FLIP)
    signs = few and set(np.asarray(b).tolist()) == {-1.0, 1.0}
    check(is_zero(flip) or signs, "flip", flip, "0, unless slopes are 0, offsets -1 and 1, noise 0")
    flipped = _unless_zero(flip, p)
    channel = PiecewiseLinearChannel(a, b, k, flat, variance, levels=levels, flip=flipped)
    return _model(channel, prior, validate.instance("name", name, str, "a word"))


@validate.explained
def relu(noise: ArrayLike = 0.0, leak: ArrayLike = 0.0, prior: Prior = None) -> MultiIndex:
    """ReLU, leaky ReLU: y = z + √Δ ξ for z > 0, leak z + √Δ ξ below; as of `piecewise_linear`.

    Args:
        noise: Variance Δ >= 0. Default 0.
        leak: Slope for z < 0. Default 0.
        prior: Prior of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0, or a leak that is not finite.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.relu(noise=0.1).name
        'relu'
    """
    validate.number("leak", leak, FINITE)
    return piecewise_linear([leak, 1.0], [0.0, 0.0], [0.0], noise, prior=prior, name="relu")


@validate.explained
def hard_tanh(noise: ArrayLike = 0.0, prior: Prior = None) -> MultiIndex:
    """A field that is cut off, y = min(max(z, -1), 1) + √Δ ξ: pieces as of `piecewise_linear`.

    Args:
        noise: Variance Δ >= 0. Default 0.
        prior: Prior of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.hard_tanh().name
        'hard_tanh'
    """
    return piecewise_linear([0, 1, 0], [-1, 0, 1], [-1, 1], noise, prior=prior, name="hard_tanh")


@validate.explained
def absolute(noise: ArrayLike = 0.0, prior: Prior = None) -> MultiIndex:
    """The modulus with noise, y = |z| + √Δ ξ, as pieces; without noise: `phase_retrieval`.

    Args:
        noise: Variance Δ >= 0. Default 0.
        prior: Prior of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.absolute(0.1).symmetry[0].kind
        'sign'
    """
    return piecewise_linear([-1, 1], [0, 0], [0], noise, prior=prior, name="absolute")


@validate.explained
def door(width: ArrayLike = HALF_WIDTH, flip: ArrayLike = 0.0, prior: Prior = None) -> MultiIndex:
    """The symmetric door, y = sign(|z| - width): pieces as of `piecewise_linear`.

    Args:
        width: A number > 0. Default: half of all labels are 1.
        flip: Probability p in [0, 1/2] of the opposite label. Default 0.
        prior: Prior of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For a width that is not positive, or p outside [0, 1/2].

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.door().name  # weak recovery at α = 1.360, in closed form
        'door'
    """
    half = validate.number("width", width, POSITIVE)
    return piecewise_linear(
        [0, 0, 0], [1, -1, 1], [-half, half], flip=flip, prior=prior, name="door"
    )


# Named functions, not lambdas: two models of the same link are then one program, compiled once.


def _product(z: Array) -> Array:
    return jnp.prod(z[:, 0])


def _sign_product(z: Array) -> Array:
    return jnp.where(jnp.prod(z[:, 0]) >= 0.0, 1.0, -1.0)  # sign 0 = 1


def _log_softmax(y: Array, z: Array) -> Array:
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
