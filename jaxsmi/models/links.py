"""Ready-made links: `MultiIndex` models by name, with their closed-form channels where there are any.

| link | y | channel |
|---|---|---|
| linear(noise) | z + √Δ ξ | closed form |
| sign() | sign z | closed form |
| phase_retrieval() | |z| or z² | closed form |
| sign_product(k) | sign(z_1 .. z_k) | k = 1, 2, 3 |
| product(k) | z_1 .. z_k | k = 1, 2 (others sample and train) |
| square_plus_sign_parity() | z_1² + sign(z_1 z_2 z_3) | exact |
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.channels.products import ProductChannel, SquarePlusSignParityChannel, TripleSignChannel
from jaxsmi.channels.scalar import LinearChannel, ModulusChannel, SignChannel, SignProductChannel
from jaxsmi.core.checks import check
from jaxsmi.models.multi_index import MultiIndex
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors.iid import AbstractIidPrior

# Named functions, not lambdas: two models of the same link are then the same program, compiled once.


def _sign(z: Array) -> Array:
    return jnp.where(z >= 0.0, 1.0, -1.0)


def _first_row(z: Array) -> Array:
    return z[0]


def _sign_of_product(z: Array) -> Array:
    return _sign(jnp.prod(z[:, 0]))


def _modulus(z: Array) -> Array:
    return jnp.abs(z[0, 0])


def _square(z: Array) -> Array:
    return z[0, 0] ** 2


def _product(z: Array) -> Array:
    return jnp.prod(z[:, 0])


def _square_plus_sign_parity(z: Array) -> Array:
    return z[0, 0] ** 2 + _sign(z[0, 0] * z[1, 0] * z[2, 0])


def linear(noise: Any = 0.0, tokens: int = 1, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Linear regression with Gaussian noise, y = z + √Δ ξ (M tokens: M measurements a sample).

    Arguments: `noise` Δ >= 0, `tokens` M, `prior`. Raises: ValueError for Δ < 0 or M < 1.
    Exact: Q̂ = αM/(1 - q + Δ). Source: [theory: multi-index, Eq. (22), Table 1].
    Example:
    >>> import jaxsmi as smi
    >>> smi.links.linear(0.1).indices
    1
    """
    noise = jnp.asarray(noise, float)
    check(jnp.isfinite(noise) & (noise >= 0), "noise", noise, "a variance >= 0")
    return MultiIndex(
        _first_row,
        indices=1,
        tokens=tokens,
        prior=prior,
        channel=LinearChannel(noise, tokens),
        name="linear",
    )


def sign(prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Perceptron, y = sign z. With a Rademacher prior: the binary perceptron. Source: [theory: multi-index, Eq. (23)].

    Example:
    >>> import jaxsmi as smi
    >>> smi.links.sign(smi.priors.Rademacher()).name
    'sign'
    """
    return MultiIndex(_sign_of_product, indices=1, prior=prior, channel=SignChannel(), name="sign")


def phase_retrieval(squared: bool = False, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Phase retrieval, y = |z| (or z² with `squared=True`). Weak recovery at α = 1/2. Source: [MM18],
    [theory: multi-index, Eq. (24), Table 1].

    Example:
    >>> import jaxsmi as smi
    >>> smi.links.phase_retrieval().symmetry[0].kind
    'sign'
    """
    channel = ModulusChannel(squared=squared)
    return MultiIndex(
        _square if squared else _modulus,
        indices=1, prior=prior, channel=channel, symmetry=[((0,), "sign")], name="phase_retrieval",
    )  # fmt: skip


def sign_product(k: int = 2, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Parity of k signs, y = sign(z_1 z_2 .. z_k). Inference for k <= 3.

    Source: [TDDZLK24], [theory: multi-index, Eqs. (25), (29), Table 1].

    Arguments: `k` >= 1, the number of factors. Raises: ValueError for k < 1.
    Example:
    >>> import jaxsmi as smi
    >>> smi.links.sign_product(2).indices
    2
    """
    check(isinstance(k, int) and k >= 1, "k", k, "an integer number of factors >= 1")
    if k == 1:
        return sign(prior)
    channel = {2: SignProductChannel(), 3: TripleSignChannel()}.get(k)
    return MultiIndex(
        _sign_of_product, indices=k, prior=prior, channel=channel,
        symmetry=[(tuple(range(k)), "even signed permutation")], name=f"sign_product({k})",
    )  # fmt: skip


def product(k: int = 2, prior: AbstractIidPrior | None = None) -> MultiIndex:
    """Product of k fields, y = z_1 z_2 .. z_k. Inference for k <= 2.

    Source: [TDDZLK24], [theory: multi-index, Eq. (26), Table 1].

    Arguments: `k` >= 1. Raises: ValueError for k < 1.
    Example:
    >>> import jaxsmi as smi
    >>> smi.links.product(2).indices
    2
    """
    check(isinstance(k, int) and k >= 1, "k", k, "an integer number of factors >= 1")
    if k == 1:
        return linear(0.0, prior=prior)
    channel = ProductChannel(Budget(1e-6)) if k == 2 else None
    return MultiIndex(
        _product, indices=k, prior=prior, channel=channel,
        symmetry=[(tuple(range(k)), "even signed permutation")], name=f"product({k})",
    )  # fmt: skip


def square_plus_sign_parity(prior: AbstractIidPrior | None = None) -> MultiIndex:
    """The staircase example y = z_1² + sign(z_1 z_2 z_3).

    Source: [TDDZLK24], [theory: multi-index, Eq. (27), Table 1].

    Example:
    >>> import jaxsmi as smi
    >>> smi.links.square_plus_sign_parity().indices
    3
    """
    return MultiIndex(
        _square_plus_sign_parity, indices=3, prior=prior, channel=SquarePlusSignParityChannel(),
        symmetry=[((0,), "sign"), ((1, 2), "signed permutation")], name="square_plus_sign_parity",
    )  # fmt: skip
