r"""The classifier's network: an embedding, tied attention layers, a mean over the words.

Equations here [TCDKZ25; theory: descent, Eqs. (10), (11)]. Tokens t_1..t_M of a question, mask m (0
for padding), X_0 = E[t] (M, d), weights W_l (h, d):

    X_l = [ c I + softmax_m( X_{l-1} W_lᵀ W_l X_{l-1}ᵀ / √h ) ] X_{l-1}
    logits = A · (Σ_i m_i X_L,i / Σ_i m_i) + b
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import checked, random_key, scalar, whole
from jaxsmi.core.checks import FINITE
from jaxsmi.text.vocabulary import PAD


class Classifier(eqx.Module):
    """Embedding, tied attention layers with skip, mean over the words, linear head.

    Args:
        words: Words of the vocabulary, an integer >= 1.
        classes: Classes, an integer >= 1.
        key: A random key, for the start.
        width: Dimension d of the embedding. Default 128.
        hidden: Rows h of each layer's weights. Default 64.
        depth: Number L of layers. Default 2.
        skip: Strength c of the skip connection. Default 1.

    Attributes:
        embedding: (words, d).
        layers: (L, h, d).
        head: (classes, d).
        bias: (classes,).
        skip: c.

    Raises:
        ValueError: For a size < 1.

    Example:
        >>> import jax
        >>> Classifier(20, 3, key=jax.random.key(0))(jax.numpy.array([3, 7, 0])).shape
        (3,)
    """

    embedding: Array
    layers: Array
    head: Array
    bias: Array
    skip: float = eqx.field(static=True)

    @checked(
        words=whole(),
        classes=whole(),
        key=random_key,
        width=whole(),
        hidden=whole(),
        depth=whole(),
        skip=scalar(FINITE),
    )
    def __init__(
        self,
        words: int,
        classes: int,
        *,
        key: PRNGKeyArray,
        width: int = 128,
        hidden: int = 64,
        depth: int = 2,
        skip: float = 1.0,
    ):
        shape = (depth, hidden, width)
        word_key, layer_key, head_key = jax.random.split(key, 3)
        self.embedding = jax.random.normal(word_key, (words, width), jnp.float32)
        self.layers = jax.random.normal(layer_key, shape, jnp.float32) / np.sqrt(width)
        self.head = jax.random.normal(head_key, (classes, width), jnp.float32) / np.sqrt(width)
        self.bias = jnp.zeros((classes,), jnp.float32)
        self.skip = float(skip)

    def __call__(self, ids: Array) -> Array:
        """Logits (classes,) of one question (M,); of padding alone those of an empty mean."""
        mask = ids != PAD
        X = self.embedding[ids]
        for W in self.layers:
            h = X @ W.T
            scores = h @ h.T / np.sqrt(W.shape[0]).astype(np.float32)
            scores = jnp.where(mask[None, :], scores, -jnp.inf)
            scores = jnp.where(jnp.any(mask), scores, 0.0)
            X = self.skip * X + jax.nn.softmax(scores, axis=-1) @ X
        mean = jnp.sum(jnp.where(mask[:, None], X, 0.0), axis=0) / jnp.maximum(jnp.sum(mask), 1)
        return self.head @ mean + self.bias
