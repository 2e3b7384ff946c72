"""Ready-made links: `MultiIndex` models by name, with their closed-form channels.

| link | y | channel |
|---|---|---|
| linear(noise) | z + √Δ ξ | closed form |
| sign(noise) | sign(z + √Δ ξ) | closed form |
| phase_retrieval() | |z| or z² | closed form |
| sign_product(k) | sign(z_1 .. z_k) | k = 1, 2, 3 (others sample and train) |
| product(k) | z_1 .. z_k | k = 1, 2 (others sample and train) |
| square_plus_sign_parity() | z_1² + sign(z_1 z_2 z_3) | exact |

and those of label_links.py: random labels, and pieces of straight lines.

The law of a label is that of the channel; only links without a channel are written here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.channels.piecewise import ModulusChannel, linear_channel
from jaxsmi.channels.products import ProductChannel, SquarePlusSignParityChannel
from jaxsmi.channels.signs import SignChannel, SignProductChannel
from jaxsmi.core.arrays import is_zero
from jaxsmi.core.border import checked, flag, scalar, whole
from jaxsmi.core.checks import VARIANCE, Arguments
from jaxsmi.core.words import nearest
from jaxsmi.models.label_links import (
    absolute,
    door,
    hard_tanh,
    logistic,
    piecewise_linear,
    poisson,
    relu,
    softmax,
)
from jaxsmi.models.multi_index import MultiIndex
from jaxsmi.models.symmetry import Block
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors.gaussian import iid_prior, is_prior
from jaxsmi.priors.iid import AbstractIidPrior

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
    "sign_product",
    "softmax",
    "square_plus_sign_parity",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> NoReturn:
    near = nearest(name, __all__)
    meant = f"did you mean {near!r}? " if near else ""
    own = "one of your own is smi.MultiIndex(link, indices=..)"
    # with a name, and no object, Python adds no second guess of its own
    raise AttributeError(f"jaxsmi.links has no {name!r}; {meant}{own}", name=name)


_INSIDE = dataclasses.replace(VARIANCE, infinite=True)  # of the noise inside a sign


@checked(noise=scalar(VARIANCE), tokens=whole(), prior=is_prior)
def linear(
    noise: ArrayLike = 0.0, tokens: int = 1, prior: AbstractIidPrior | None = None
) -> MultiIndex:
    """Linear regression with Gaussian noise, y = z + √Δ ξ.

    State evolution is exact: Q̂ = αM/(1 - q + Δ).

    Args:
        noise: Variance Δ >= 0. Default 0.
        tokens: M, the measurements of one sample. Default 1.
        prior: Of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0 or M < 1.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.linear(0.1).indices
        1

    Cost:
        None: nothing is computed before the model is used.

    Source:
        [theory: multi-index, Eq. (22), Table 1].
    """
    arguments = Arguments()
    variance = arguments.number("noise", noise, VARIANCE)
    return MultiIndex(channel=linear_channel(variance, tokens), prior=prior, name="linear")


@checked(prior=is_prior, noise=scalar(_INSIDE))
def sign(prior: AbstractIidPrior | None = None, noise: ArrayLike = 0.0) -> MultiIndex:
    """Perceptron, y = sign(z + √Δ ξ). With a Rademacher prior: the binary perceptron.

    Args:
        prior: Of the row of W. Default: iid N(0, 1).
        noise: Variance Δ >= 0 of the noise inside the sign; infinite: labels are random signs.
            Default 0.

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For Δ < 0.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.sign(smi.priors.Rademacher()).name
        'sign'

    Cost:
        None: nothing is computed before the model is used.

    Source:
        [theory: multi-index, Eq. (23)].
    """
    variance = None if is_zero(noise) else Arguments().number("noise", noise, _INSIDE)
    return MultiIndex(channel=SignChannel(noise=variance), prior=prior, name="sign")


def _unbroken(
    symmetry: Sequence[tuple[Block, str]], prior: AbstractIidPrior | None
) -> Sequence[tuple[Block, str]] | None:
    """The symmetry of a link; None, to be looked for, where the prior tells signs."""
    return symmetry if iid_prior(prior).traits.even else None


@checked(squared=flag, prior=is_prior)
def phase_retrieval(squared: bool = False, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Phase retrieval, y = |z| or z². Weak recovery at α = 1/2.

    Args:
        squared: y = z² instead of |z|. Default False.
        prior: Of the row of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        Nothing.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.phase_retrieval().symmetry[0].kind
        'sign'

    Cost:
        None: nothing is computed before the model is used.

    Source:
        [MM18], [theory: multi-index, Eq. (24), Table 1].
    """
    channel = ModulusChannel(squared=squared)
    symmetry = _unbroken([((0,), "sign")], prior)
    return MultiIndex(channel=channel, prior=prior, symmetry=symmetry, name="phase_retrieval")


@checked(k=whole(), prior=is_prior)
def sign_product(k: int = 2, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Parity of k signs, y = sign(z_1 z_2 .. z_k). Inference for k <= 3.

    Args:
        k: Number of factors, at least 1. Default 2.
        prior: Of the rows of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For k < 1.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.sign_product(2).indices
        2

    Cost:
        None: nothing is computed before the model is used.

    Source:
        [TDDZLK24], [theory: multi-index, Eqs. (25), (29), Table 1].
    """
    if k == 1:
        return sign(prior)
    name = f"sign_product({k})"
    symmetry = _unbroken([(range(k), "even signed permutation")], prior)
    if k > 3:
        return MultiIndex(_sign_product, indices=k, prior=prior, symmetry=symmetry, name=name)
    channel = SignProductChannel(indices=k)
    return MultiIndex(channel=channel, prior=prior, symmetry=symmetry, name=name)


@checked(k=whole(), prior=is_prior)
def product(k: int = 2, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Product of k fields, y = z_1 z_2 .. z_k. Inference for k <= 2.

    Args:
        k: Number of factors, at least 1. Default 2.
        prior: Of the rows of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        ValueError: For k < 1.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.product(2).indices
        2

    Cost:
        None: nothing is computed before the model is used.

    Source:
        [TDDZLK24], [theory: multi-index, Eq. (26), Table 1].
    """
    if k == 1:
        return linear(0.0, prior=prior)
    name = f"product({k})"
    symmetry = _unbroken([(range(k), "even signed permutation")], prior)
    if k > 2:
        return MultiIndex(_product, indices=k, prior=prior, symmetry=symmetry, name=name)
    channel = ProductChannel(Budget(1e-6))
    return MultiIndex(channel=channel, prior=prior, symmetry=symmetry, name=name)


@checked(prior=is_prior)
def square_plus_sign_parity(prior: AbstractIidPrior | None = None) -> MultiIndex:
    """The staircase example y = z_1² + sign(z_1 z_2 z_3).

    An even number of the three signs can be flipped, and z_2 and z_3 exchanged.

    Args:
        prior: Of the rows of W. Default: iid N(0, 1).

    Returns:
        A `MultiIndex` model.

    Raises:
        Nothing.

    Example:
        >>> import jaxsmi as smi
        >>> smi.links.square_plus_sign_parity().indices
        3

    Cost:
        None: nothing is computed before the model is used.

    Source:
        [TDDZLK24], [theory: multi-index, Eq. (27), Table 1].
    """
    symmetry = _unbroken([((0, 1, 2), "even signed permutation, the first in place")], prior)
    channel = SquarePlusSignParityChannel()
    name = "square_plus_sign_parity"
    return MultiIndex(channel=channel, prior=prior, symmetry=symmetry, name=name)


# Named functions, not lambdas: two models of the same link are then one program, compiled once.


def _product(z: Array) -> Array:
    """z_1 .. z_k."""
    return jnp.prod(z[:, 0])


def _sign_product(z: Array) -> Array:
    """sign(z_1 .. z_k), with sign 0 = 1."""
    return jnp.where(jnp.prod(z[:, 0]) >= 0.0, 1.0, -1.0)
