r"""Deep attention: L low-rank self-attention layers, as a network on x and as a link on Z.

Equations here [TCDKZ25; theory: deep-attention, Eqs. (1) to (6)], tokens as rows, X_0 = x (M, D),
weights w_ℓ (P_ℓ, D):

    X_ℓ = [ c_ℓ I + S_ℓ(X_{ℓ-1}) ] X_{ℓ-1},   S_ℓ(X) = σ_β( X w_ℓᵀ w_ℓ Xᵀ / D )
    y = S_L(X_{L-1}) (+ noise)

and, as extensions, S_ℓ the mean of several heads, query and key untied (S = σ_β(X w_qᵀ w_k Xᵀ/D)),
and σ_∞ (hardmax). Tokens are only mixed among themselves, so y depends on x through Z = W xᵀ/√D
alone: that link, its inversion and the exact channel are in channels/attention_link.py and
channels/attention.py. `model.student.outputs` is the network on x; that it agrees with the
equations above, layer by layer, is a tested identity.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.channels.attention import DeepAttentionChannel, SingleAttentionChannel
from jaxsmi.channels.attention_link import Layer, attention_link, hardmax_link
from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.likelihood import IntegratedChannel, NoInference
from jaxsmi.channels.paired_attention import PairedAttentionChannel
from jaxsmi.core import validate
from jaxsmi.core.arrays import is_zero, nan_unless
from jaxsmi.core.validate import NON_NEGATIVE, POSITIVE, VARIANCE, check
from jaxsmi.models.index import IndexModel, default_tolerance
from jaxsmi.models.symmetry import AbstractSymmetry, Exchange, QueryAndKey, Rotation, SignedOrder
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors import AbstractIidPrior
from jaxsmi.priors.iid import iid_prior

ACTIVATIONS = ("softmax", "hardmax")

_Setting = TypeVar("_Setting")


class DeepAttention(IndexModel):
    r"""L self-attention layers learned from their output matrix: y = σ_β(h_Lᵀ h_L) ∈ R^{M×M}.

    Rows of W: layer by layer, in a layer head by head, in a head the query's rows, then the key's
    if untied. The exact channel needs no noise and, in the last layer, one head, tied and of rank
    one or two, or untied and of rank one; the other layers may be any (two untied layers take
    seconds a sample, and may miss the tolerance: theory of them is out of reach). With noise the
    channel integrates over all fields. Everything else can be sampled and trained;
    `noiseless_limit` and `weak_recovery(noises=..)` extrapolate to zero noise, and `gamp` raises a
    ValueError. Hardmax can only be sampled: train a softmax student on its data.

    Args:
        depth: L >= 1, the number of layers.
        tokens: M >= 2.
        skip: Residual strength c >= 0, a number, or one for each of the L - 1 hidden layers.
            Default 1.
        ranks: P_ℓ, a number or one a layer. Default 1.
        beta: Inverse temperature > 0. Default 1.
        heads: Heads >= 1 whose attention matrices are averaged, a number or one a layer. Default 1.
        tied: False if query and key differ, one value or one a layer. Default True.
        noise: Variance Δ >= 0 of Gaussian label noise. Default 0.
        activation: "softmax" or "hardmax" (σ_∞). Default "softmax".
        prior: Prior of the weights. Default: iid N(0, 1).
        tolerance: Error of g, relative to 1 + max|g|, that the exact channel aims at. Default
            1e-3, 1e-2 for more than three inner variables, 0.05 for three layers and more between
            two tokens.
        max_nodes: Nodes that it may spend on one sample. Default 2^20.

    Raises:
        ValueError: For any of these outside its range (inside jit: the number is NaN, and `valid`
            False).

    Example:
        >>> import jaxsmi as smi
        >>> model = smi.DeepAttention(depth=2, tokens=2, skip=1.0)
        >>> model.indices, model.tokens
        (2, 2)
    """

    skip: Array
    beta: Array
    noise: Array
    layers: tuple[Layer, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        depth: int,
        tokens: int,
        skip: ArrayLike = 1.0,
        ranks: int | Sequence[int] = 1,
        beta: ArrayLike = 1.0,
        *,
        heads: int | Sequence[int] = 1,
        tied: bool | Sequence[bool] = True,
        noise: ArrayLike = 0.0,
        activation: str = "softmax",
        prior: AbstractIidPrior | None = None,
        tolerance: float | None = None,
        max_nodes: int = 2**20,
    ):
        depth = validate.count("depth", depth)
        tokens = validate.count("tokens", tokens, at_least=2)
        max_nodes = validate.count("max_nodes", max_nodes)
        validate.optional(validate.number, "tolerance", tolerance, POSITIVE)
        widths = _per_layer("ranks", ranks, depth, validate.count)
        many = _per_layer("heads", heads, depth, validate.count)
        ties = _per_layer("tied", tied, depth, validate.flag)
        self.layers = tuple(Layer(*each) for each in zip(widths, many, ties, strict=True))
        self.activation = validate.choice("activation", activation, ACTIVATIONS)
        self.beta = validate.number("beta", beta, POSITIVE)
        self.noise = validate.number("noise", noise, VARIANCE)
        if self.activation == "hardmax":
            # hardmax can only be sampled: it has no channel that noise could enter
            check(self.noise == 0.0, "noise", noise, "0 with hardmax")
            self.noise = nan_unless(self.noise, self.noise == 0.0)
        # with a negative skip layers can lose rank, and the inversion of the channel fails
        allowed = f"one finite number >= 0, or {depth - 1} of them, one for each hidden layer"
        strengths = validate.array("skip", skip, allowed, interval=NON_NEGATIVE, empty=True)
        fits = strengths.ndim == 0 or strengths.shape == (depth - 1,)
        check(fits, "skip", skip, allowed)
        self.skip = jnp.broadcast_to(strengths, (depth - 1,))
        self.prior = iid_prior(prior)
        # rows of a layer begin where those of the layer before end
        starts = np.cumsum([0, *(layer.indices for layer in self.layers)])
        self.symmetry = tuple(
            _symmetry(layer, int(start))
            for layer, start in zip(self.layers, starts[:-1], strict=True)
            if self.prior.traits.even  # others distinguish heads and layers
        )
        self.channel = self._channel(tokens, is_zero(noise), tolerance, max_nodes)

    def _channel(
        self, tokens: int, noiseless: bool, tolerance: float | None, max_nodes: int
    ) -> AbstractChannel:
        """Return the exact channel if there is one; with noise the numerical one; else one that
        refuses inference."""
        indices = sum(layer.indices for layer in self.layers)
        last = self.layers[-1]
        link = jax.tree_util.Partial(_link, self.layers, self.activation, self.skip, self.beta)
        refuse = functools.partial(NoInference, link_function=link, indices=indices, tokens=tokens)
        if self.activation == "hardmax":
            remedy = "a softmax student, trained on data of this model"
            return refuse(name="hardmax attention", remedy=remedy)
        # without noise the label fixes the last layer: the integral is over the others
        inner = (indices - last.indices if noiseless else indices) * tokens
        paired = noiseless and PairedAttentionChannel.fits(tokens, self.layers)
        # the grid of paired tokens reaches only this within its nodes
        default = PairedAttentionChannel.wanted if paired else default_tolerance(inner)
        budget = Budget(default if tolerance is None else tolerance, max_nodes)
        # with noise no layer is fixed by the label: one integral over all fields
        if not noiseless:
            return IntegratedChannel(indices, tokens, budget, link, self.noise)
        error = default_tolerance(indices * tokens) if tolerance is None else tolerance
        if not last.invertible:
            shape = f"rank {last.rank}, {last.heads} heads, tied={last.tied}"
            name = f"noiseless attention with a last layer of {shape}"
            remedy = (
                "one head in the last layer, tied of rank one or two, or untied of rank one, or "
                "noise > 0 (integrated numerically)"
            )
            return refuse(name=name, remedy=remedy, budget=Budget(error, max_nodes))
        # one layer of rank one: the label fixes the fields, in closed form without a grid
        network = (indices, tokens, self.layers, self.skip, self.beta)
        if indices == 1:
            return SingleAttentionChannel(*network)
        kind = PairedAttentionChannel if paired else DeepAttentionChannel
        return kind(*network, budget)

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return len(self.layers)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each layer."""
        return tuple(layer.rank for layer in self.layers)

    @property
    def index_names(self) -> tuple[str, ...]:
        """Names of the rows of W: "layer 1", "layer 2, head 1, key", .. ."""
        names = []
        for number, layer in enumerate(self.layers, 1):
            # a layer with one head, of rank one or tied has no word for it
            heads = [f"head {h}" for h in range(1, layer.heads + 1)] if layer.heads > 1 else [""]
            parts = [""] if layer.tied else ["query", "key"]
            rows = [f"index {r}" for r in range(1, layer.rank + 1)] if layer.rank > 1 else [""]
            every = itertools.product([f"layer {number}"], heads, parts, rows)
            names += [", ".join(filter(None, words)) for words in every]
        return tuple(names)


def _per_layer(
    name: str, value: Any, depth: int, converter: Callable[[str, Any], _Setting]
) -> tuple[_Setting, ...]:
    """Return a setting for each layer, from one for all or one a layer."""
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, str):
        return (converter(name, value),) * depth
    entries = validate.sequence(name, value, f"one, or {depth} of them", converter)
    check(len(entries) == depth, name, value, f"one, or {depth} of them")
    return tuple(entries)


def _symmetry(layer: Layer, start: int) -> AbstractSymmetry:
    """Return the group that acts on the rows of a layer, from row `start`, and changes no label."""
    sign = lambda rows: SignedOrder(rows, "sign")
    tied = sign if layer.rank == 1 else Rotation
    kind = tied if layer.tied else QueryAndKey
    size = layer.indices // layer.heads
    ends = range(start, start + layer.indices, size)
    heads = tuple(kind(tuple(range(first, first + size))) for first in ends)
    return heads[0] if layer.heads == 1 else Exchange(heads)


def _link(
    layers: tuple[Layer, ...], activation: str, skip: Array, beta: Array, fields: Array
) -> Array:
    """Link of a network whose channel does not know its layers."""
    if activation == "hardmax":
        return hardmax_link(fields, layers, skip)
    return attention_link(fields, layers, skip, beta)
