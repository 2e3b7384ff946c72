r"""Deep attention: L low-rank self-attention layers, as a network on x and as a multi-index link on Z.

Equations here [TCDKZ25; theory: deep-attention, Eqs. (1) to (6)], tokens as rows, X_0 = x (M, D), weights w_ℓ (P_ℓ, D):

    X_ℓ = [ c_ℓ I + S_ℓ(X_{ℓ-1}) ] X_{ℓ-1},   y = S_L(X_{L-1}) (+ noise),   S_ℓ(X) = σ_β( X w_ℓᵀ w_ℓ Xᵀ / D )

and, as extensions, S_ℓ the mean of several heads, query and key untied (S = σ_β(X w_qᵀ w_k Xᵀ/D)), σ_∞ (hardmax).
Tokens are only mixed among themselves, so y depends on x through Z = W xᵀ/√D alone: that link, its inversion and the
exact channel are in channels/attention.py. That network and link agree is a tested identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.channels.attention import DeepAttentionChannel, SingleAttentionChannel
from jaxsmi.channels.base import AbstractChannel, NoInference
from jaxsmi.channels.layers import Layer, attention_link, hardmax, hardmax_link
from jaxsmi.channels.likelihood import SampledChannel
from jaxsmi.core.arrays import concrete
from jaxsmi.core.checks import check
from jaxsmi.models.index import AbstractIndexModel
from jaxsmi.models.multi_index import default_tolerance
from jaxsmi.models.symmetry import Symmetry
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors import AbstractIidPrior, Gaussian

ACTIVATIONS = ("softmax", "hardmax")


class DeepAttention(AbstractIndexModel):
    r"""L self-attention layers learned from their output attention matrix: y = σ_β(h_Lᵀ h_L) ∈ R^{M×M}.

    Arguments: `depth` L >= 1; `tokens` M >= 2; `skip` c >= 0, a number or one a layer (L-1 of them); `ranks` P_ℓ, a number
    or one a layer; `beta` > 0, inverse temperature; `prior` of the weights; `tolerance`, `max_nodes`: error of g aimed at
    by the exact channel (default 1e-3, 1e-2 for more than three inner variables) and nodes it may spend on one sample.
    Extensions, each one value or one a layer: `heads` >= 1 (their attention matrices are averaged) and `tied` (False: query
    and key differ); `noise`: variance Δ >= 0 of Gaussian label noise; `activation`: "softmax" or "hardmax" (σ_∞).
    Rows of W: layer by layer, in a layer head by head, in a head the query's rows, then the key's if untied.

    The exact channel needs no noise and, in the last layer, one tied head of rank one; the other layers may be any. With
    noise the channel integrates over all fields. Everything else samples and trains, and inference refuses it; hardmax
    samples only: train a softmax student on its data.
    Raises: ValueError for any of these outside its range.
    Example:
    >>> import jaxsmi as smi
    >>> model = smi.DeepAttention(depth=2, tokens=2, skip=1.0)
    >>> model.indices, model.tokens
    (2, 2)
    """

    prior: AbstractIidPrior
    channel: AbstractChannel
    skip: Array
    beta: Array
    noise: Array
    layers: tuple[Layer, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    symmetry: tuple[Symmetry, ...] = eqx.field(static=True)

    def __init__(
        self,
        depth: int,
        tokens: int,
        skip: Any = 1.0,
        ranks: int | Sequence[int] = 1,
        beta: Any = 1.0,
        *,
        heads: int | Sequence[int] = 1,
        tied: bool | Sequence[bool] = True,
        noise: Any = 0.0,
        activation: str = "softmax",
        prior: AbstractIidPrior | None = None,
        tolerance: Any = None,
        max_nodes: int = 2**20,
    ):
        check(
            isinstance(depth, (int, np.integer)) and depth >= 1,
            "depth",
            depth,
            "an integer number of layers >= 1",
        )
        check(
            isinstance(tokens, (int, np.integer)) and tokens >= 2,
            "tokens",
            tokens,
            "an integer >= 2 for attention",
        )
        depth, tokens = int(depth), int(tokens)
        widths, many = _each("ranks", ranks, depth), _each("heads", heads, depth)
        ties = (tied,) * depth if isinstance(tied, (bool, np.bool_)) else tuple(tied)
        valid = len(ties) == depth and all(isinstance(t, (bool, np.bool_)) for t in ties)
        check(valid, "tied", tied, f"True or False, or {depth} of them")
        skip, beta, noise = (
            jnp.asarray(skip, float),
            jnp.asarray(beta, float),
            jnp.asarray(noise, float),
        )
        check(
            skip.ndim == 0 or skip.shape == (depth - 1,),
            "skip",
            skip,
            f"a number, or {depth - 1}: one a hidden layer",
        )
        check(
            jnp.all(jnp.isfinite(skip) & (skip >= 0)),
            "skip",
            skip,
            "finite numbers >= 0 (below, layers lose rank)",
        )
        check(
            beta.ndim == 0 and jnp.isfinite(beta) & (beta > 0), "beta", beta, "a finite number > 0"
        )
        check(
            noise.ndim == 0 and jnp.isfinite(noise) & (noise >= 0),
            "noise",
            noise,
            "a variance >= 0",
        )
        check(activation in ACTIVATIONS, "activation", activation, f"one of {ACTIVATIONS}")
        check((activation == "softmax") | (noise == 0), "noise", noise, "0 with hardmax")
        self.skip, self.beta, self.noise, self.activation = (
            jnp.broadcast_to(skip, (depth - 1,)),
            beta,
            noise,
            activation,
        )
        self.layers = tuple(
            Layer(*each) for each in zip(widths, many, map(bool, ties), strict=True)
        )
        self.prior = Gaussian() if prior is None else prior
        self.symmetry, start = (), 0
        for layer in self.layers:
            self.symmetry += (_symmetry(layer, start),)
            start += layer.indices
        self.channel = self._channel(tokens, tolerance, max_nodes)

    def _channel(self, tokens: int, tolerance: Any, max_nodes: int) -> AbstractChannel:
        indices, last = sum(layer.indices for layer in self.layers), self.layers[-1]
        link: Any = jax.tree_util.Partial(_link, self.layers, self.activation, self.skip, self.beta)
        if self.activation == "hardmax":
            remedy = "a softmax student, trained on data of this model"
            return NoInference(
                law=link, indices=indices, tokens=tokens, name="hardmax attention", remedy=remedy
            )
        if not concrete(self.noise) or float(self.noise) > 0.0:
            budget = Budget(
                default_tolerance(indices * tokens) if tolerance is None else tolerance, max_nodes
            )
            return SampledChannel(link, indices, tokens, self.noise, budget)
        if not last.invertible:
            name = f"noiseless attention with a last layer of rank {last.rank}, {last.heads} heads, tied={last.tied}"
            remedy = (
                "one tied head of rank one in the last layer, or noise > 0 (integrated numerically)"
            )
            return NoInference(law=link, indices=indices, tokens=tokens, name=name, remedy=remedy)
        if len(self.layers) == 1:
            return SingleAttentionChannel(tokens, self.beta)
        inner = (indices - 1) * tokens
        budget = Budget(default_tolerance(inner) if tolerance is None else tolerance, max_nodes)
        return DeepAttentionChannel(tokens, self.layers, self.skip, self.beta, budget)

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
        """What each row of W is: "layer 1", "layer 2, head 1, key", .. ."""
        names = []
        for number, layer in enumerate(self.layers, 1):
            for head in range(1, layer.heads + 1):
                for part in (None,) if layer.tied else ("query", "key"):
                    for row in range(1, layer.rank + 1):
                        words = [f"layer {number}"]
                        words += [f"head {head}"] if layer.heads > 1 else []
                        words += [part] if part else []
                        words += [f"index {row}"] if layer.rank > 1 else []
                        names.append(", ".join(words))
        return tuple(names)

    def link(self, fields: Array) -> Array:
        """y (M, M) from the fields (P, M) of one sample."""
        return _link(self.layers, self.activation, self.skip, self.beta, fields)

    def network(self, weights: Array, x: Array) -> Array:
        r"""The network itself: y (M, M) of one input x (M, D) with weights (P, D), layer by layer.

        Raises ValueError where the shapes do not fit. Cost: O(M P D + M² D) a layer.
        """
        weights, x = jnp.asarray(weights), jnp.asarray(x)
        check(
            weights.ndim == 2 and weights.shape[0] == self.indices,
            "weights",
            weights,
            f"({self.indices}, D)",
        )
        check(
            x.shape == (self.tokens, weights.shape[1]),
            "x",
            x,
            f"({self.tokens}, {weights.shape[1]}): tokens as rows",
        )

        def attention(X: Array, layer: Layer, w: Array) -> Array:
            h = jnp.einsum("md,hprd->hpmr", X, w.reshape(layer.heads, -1, layer.rank, X.shape[1]))
            scores = jnp.einsum("hmr,hnr->hmn", h[:, 0], h[:, -1]) / X.shape[1]
            if self.activation == "hardmax":
                return jnp.mean(hardmax(scores), axis=0)
            return jnp.mean(jax.nn.softmax(self.beta * scores, axis=-1), axis=0)

        *inner, last = jnp.split(weights, np.cumsum([layer.indices for layer in self.layers])[:-1])
        for skip, layer, w in zip(self.skip, self.layers[:-1], inner, strict=True):
            x = skip * x + attention(x, layer, w) @ x
        return attention(x, self.layers[-1], last)


def _each(name: str, value: Any, depth: int) -> tuple[int, ...]:
    """One integer >= 1 a layer."""
    numbers = (value,) * depth if isinstance(value, (int, np.integer)) else tuple(value)
    valid = len(numbers) == depth and all(
        isinstance(n, (int, np.integer)) and n >= 1 for n in numbers
    )
    check(valid, name, value, f"an integer >= 1, or {depth} of them")
    return tuple(int(n) for n in numbers)


def _symmetry(layer: Layer, start: int) -> Symmetry:
    """What can be done to the rows of a layer, from row `start`, without changing any label."""
    rows = tuple(range(start, start + layer.indices))
    if layer.tied:
        kind = "sign" if layer.rank == 1 else "rotation"
    else:
        kind = "query and key"
    if layer.heads == 1:
        return Symmetry(rows, kind)
    size = layer.indices // layer.heads
    return Symmetry(tuple(rows[h * size : (h + 1) * size] for h in range(layer.heads)), kind)


def _link(
    layers: tuple[Layer, ...], activation: str, skip: Array, beta: Array, fields: Array
) -> Array:
    if activation == "hardmax":
        return hardmax_link(fields, layers, skip)
    return attention_link(fields, layers, skip, beta)
