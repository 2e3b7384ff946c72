r"""Deep attention: L tied, low-rank self-attention layers, as a network on x and as a multi-index link on Z.

Equations here [TCDKZ25, Eq. of section 1; spec section 1], tokens as rows, X_0 = x (M, D), weights w_ℓ (P_ℓ, D):

    X_ℓ = [ c_ℓ I + σ_β( X_{ℓ-1} w_ℓᵀ w_ℓ X_{ℓ-1}ᵀ / D ) ] X_{ℓ-1},   y = σ_β( X_{L-1} w_Lᵀ w_L X_{L-1}ᵀ / D )

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

from jaxsmi.channels import AbstractChannel, DeepAttentionChannel, NoInference, SingleAttentionChannel
from jaxsmi.channels.attention import attention_link
from jaxsmi.integrate import Budget
from jaxsmi.models.base import AbstractIndexModel, Symmetry
from jaxsmi.models.multi_index import default_tolerance
from jaxsmi.priors import AbstractPrior, Gaussian
from jaxsmi.types import Array, check


class DeepAttention(AbstractIndexModel):
    r"""L tied self-attention layers learned from their output attention matrix: y = σ_β(h_Lᵀ h_L) ∈ R^{M×M}.

    Arguments: `depth` L >= 1; `tokens` M >= 2; `skip` c >= 0, a number or one a layer (L-1 of them); `ranks` P_ℓ, a number
    or one a layer; `beta` > 0, inverse temperature; `prior` of the weights; `tolerance`, `max_nodes`: error of g aimed at
    by the exact channel (default 1e-3, 1e-2 for more than three inner variables) and nodes it may spend on one sample.

    The exact channel needs rank one in the last layer; other ranks sample and train, and inference refuses them.
    Raises: ValueError for any of these outside its range.
    Example:
    >>> import jaxsmi as smi
    >>> model = smi.DeepAttention(depth=2, tokens=2, skip=1.0)
    >>> model.indices, model.tokens
    (2, 2)
    """

    prior: AbstractPrior
    channel: AbstractChannel
    skip: Array
    beta: Array
    ranks: tuple[int, ...] = eqx.field(static=True)
    symmetry: tuple[Symmetry, ...] = eqx.field(static=True)

    def __init__(
        self,
        depth: int,
        tokens: int,
        skip: Any = 1.0,
        ranks: int | Sequence[int] = 1,
        beta: Any = 1.0,
        *,
        prior: AbstractPrior | None = None,
        tolerance: Any = None,
        max_nodes: int = 2**20,
    ):
        check(isinstance(depth, (int, np.integer)) and depth >= 1, "depth", depth, "an integer number of layers >= 1")
        check(isinstance(tokens, (int, np.integer)) and tokens >= 2, "tokens", tokens, "an integer >= 2 for attention")
        depth, tokens = int(depth), int(tokens)
        widths = (int(ranks),) * depth if isinstance(ranks, (int, np.integer)) else tuple(int(r) for r in ranks)
        check(len(widths) == depth and min(widths) >= 1, "ranks", ranks, f"an integer >= 1, or {depth} of them")
        skip, beta = jnp.asarray(skip, float), jnp.asarray(beta, float)
        check(skip.ndim == 0 or skip.shape == (depth - 1,), "skip", skip, f"a number, or {depth - 1}: one a hidden layer")
        check(jnp.all(jnp.isfinite(skip) & (skip >= 0)), "skip", skip, "finite numbers >= 0 (below, layers lose rank)")
        check(beta.ndim == 0 and jnp.isfinite(beta) & (beta > 0), "beta", beta, "a finite number > 0")
        self.skip, self.beta, self.ranks = jnp.broadcast_to(skip, (depth - 1,)), beta, widths
        self.prior = Gaussian() if prior is None else prior
        ends = np.cumsum(widths)
        blocks = [tuple(range(end - rank, end)) for end, rank in zip(ends, widths, strict=True)]
        self.symmetry = tuple(Symmetry(block, "sign" if len(block) == 1 else "rotation") for block in blocks)
        if widths[-1] > 1:
            link = jax.tree_util.Partial(_link, widths, self.skip, self.beta)
            name = f"DeepAttention with ranks {widths} (rank above one in the last layer)"
            self.channel = NoInference(link=link, indices=sum(widths), tokens=tokens, name=name)
        elif depth == 1:
            self.channel = SingleAttentionChannel(tokens, self.beta)
        else:
            inner = (sum(widths) - 1) * tokens
            budget = Budget(default_tolerance(inner) if tolerance is None else tolerance, max_nodes)
            self.channel = DeepAttentionChannel(tokens, widths, self.skip, self.beta, budget)

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return len(self.ranks)

    def link(self, fields: Array) -> Array:
        """y (M, M) from the fields (P, M) of one sample."""
        return attention_link(fields, self.ranks, self.skip, self.beta)

    def network(self, weights: Array, x: Array) -> Array:
        r"""The network itself: y (M, M) of one input x (M, D) with weights (P, D), layer by layer.

        Raises ValueError where the shapes do not fit. Cost: O(M P D + M² D) a layer.
        """
        weights, x = jnp.asarray(weights), jnp.asarray(x)
        check(weights.ndim == 2 and weights.shape[0] == self.indices, "weights", weights, f"({self.indices}, D)")
        check(x.shape == (self.tokens, weights.shape[1]), "x", x, f"({self.tokens}, {weights.shape[1]}): tokens as rows")
        layers = jnp.split(weights, np.cumsum(self.ranks)[:-1])

        def attention(X: Array, w: Array) -> Array:
            h = X @ w.T / jnp.sqrt(float(X.shape[1]))
            return jax.nn.softmax(self.beta * (h @ h.T), axis=-1)

        for skip, w in zip(self.skip, layers[:-1], strict=True):
            x = skip * x + attention(x, w) @ x
        return attention(x, layers[-1])


def _link(ranks: tuple[int, ...], skip: Array, beta: Array, fields: Array) -> Array:
    return attention_link(fields, ranks, skip, beta)
