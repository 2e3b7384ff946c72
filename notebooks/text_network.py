r"""The network of notebook 07: two layers of attention that classify questions [TCDKZ25, Fig. 3].

Tokens t_1..t_M of a question, X_0 = E[t] (M, d), weights W_l (h, d), padding left out:

    X_l = [c I + softmax(X_{l-1} W_lᵀ W_l X_{l-1}ᵀ / √h)] X_{l-1}
    logits = A · mean_i X_L,i + b
    similarity_l(t) = ⟨W_l(t), W_l(T)⟩ / (‖W_l(t)‖ ‖W_l(T)‖)
"""

import re
from collections import Counter
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

PAD, UNKNOWN = 0, 1


class Classifier(eqx.Module):
    """Embedding, tied attention layers with skip, mean over the words, linear head."""

    embedding: jax.Array  # (words, d)
    layers: jax.Array  # (L, h, d)
    head: jax.Array  # (classes, d)
    bias: jax.Array
    skip: float = eqx.field(static=True)

    def __init__(self, words, classes, *, key, width=128, hidden=64, depth=2, skip=1.0):
        keys = jax.random.split(key, 3)
        self.embedding = jax.random.normal(keys[0], (words, width))
        self.layers = jax.random.normal(keys[1], (depth, hidden, width)) / np.sqrt(width)
        self.head = jax.random.normal(keys[2], (classes, width)) / np.sqrt(width)
        self.bias, self.skip = jnp.zeros(classes), skip

    def __call__(self, ids):
        """Logits (classes,) of one question (M,)."""
        mask = ids != PAD
        X = self.embedding[ids]
        for W in self.layers:
            scores = (X @ W.T) @ (X @ W.T).T / np.sqrt(len(W))
            X = self.skip * X + jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1) @ X
        mean = jnp.sum(jnp.where(mask[:, None], X, 0.0), axis=0) / jnp.sum(mask)
        return self.head @ mean + self.bias


def words_of(text):
    """Lower-cased runs of letters, digits, apostrophes and hyphens; other signs one by one."""
    return re.findall(r"[\w'-]+|[^\w\s]", text.lower())


def encode(texts, vocabulary, length=40):
    """Ids (texts, length) of the words, cut or padded."""
    table = np.full((len(texts), length), PAD, np.int32)
    for row, text in zip(table, texts, strict=True):
        ids = [vocabulary.get(word, UNKNOWN) for word in words_of(text)][:length]
        row[: len(ids)] = ids
    return table


def vocabulary_of(texts):
    """Ids of the words of some texts, the most frequent first."""
    counts = Counter(word for text in texts for word in words_of(text))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: n for n, word in enumerate(ordered, UNKNOWN + 1)}


def load(path):
    """Classes and texts of a file with lines `LABEL:sub text`, as TREC's train_5500.label."""
    lines = Path(path).read_bytes().decode("latin-1").split("\n")
    pairs = [line.split(None, 1) for line in lines if line.strip()]
    return [head.partition(":")[0] for head, _ in pairs], [text.strip() for _, text in pairs]


FILLS = {
    "PLACE": "France Lisbon Norway Texas Cairo Kenya Lima Oslo Peru Tokyo Naples Quebec Ghana",
    "PERSON": "Newton Mozart Cleopatra Darwin Picasso Curie Homer Lincoln Galileo Austen",
    "THING": "telescope violin compass bicycle lighthouse microscope parachute thermometer piano",
    "IDEA": "gravity inflation photosynthesis democracy friction evolution erosion magnetism",
    "SHORT": "NASA DNA UNESCO NATO RADAR LASER FIFA OPEC CPU",
    "YEAR": "1492 1666 1789 1815 1848 1903 1914 1929 1945 1969",
}
TEMPLATES = {
    "ABBR": "What does SHORT stand for ?|What do the letters SHORT mean ?|How is PLACE abbreviated ?",
    "DESC": "What is IDEA ?|How does a THING work ?|Why did PERSON leave PLACE ?|What causes IDEA ?",
    "ENTY": "What instrument did PERSON play ?|Which sport is played with a THING in PLACE ?",
    "HUM": "Who invented the THING ?|Who was the king of PLACE in YEAR ?|Who discovered IDEA ?",
    "LOC": "Where was PERSON born ?|What is the capital of PLACE ?|Where was the THING invented ?",
    "NUM": "When was PERSON born ?|How many people live in PLACE ?|How much does a THING weigh ?",
}


def synthetic(count, seed=0):
    """Classes and texts of synthetic questions: templates over the six classes of TREC."""
    random = np.random.default_rng(seed)
    labels = [list(TEMPLATES)[n % len(TEMPLATES)] for n in range(count)]
    fill = lambda slot: random.choice(FILLS[slot.group()].split())
    pattern = "|".join(FILLS)
    choose = lambda label: random.choice(TEMPLATES[label].split("|"))
    return labels, [re.sub(pattern, fill, choose(label)) for label in labels]


def fit(network, ids, labels, *, key, epochs, optimizer, batch=32):
    """Train by the cross entropy, and return the network and its layers after each epoch."""

    def loss(network, ids, labels):
        logits = jax.vmap(network)(ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(carry, chosen):
        network, state = carry
        gradient = jax.grad(loss)(network, ids[chosen], labels[chosen])
        updates, state = optimizer.update(gradient, state, network)
        return (optax.apply_updates(network, updates), state), None

    def epoch(carry, key):
        order = jax.random.permutation(key, len(ids))
        order = order[: len(ids) // batch * batch].reshape(-1, batch)
        carry, _ = jax.lax.scan(step, carry, order)
        return carry, carry[0].layers

    start = (network, optimizer.init(network))
    (end, _), layers = jax.jit(lambda s: jax.lax.scan(epoch, s, jax.random.split(key, epochs)))(
        start
    )
    return end, jnp.concatenate([network.layers[None], layers])


def similarity(layers):
    """Cosine of each layer with its end (records, L), from layers (records, L, h, d)."""
    flat = layers.reshape(*layers.shape[:2], -1)
    unit = flat / jnp.linalg.norm(flat, axis=-1, keepdims=True)
    return jnp.einsum("tlx,lx->tl", unit, unit[-1])
