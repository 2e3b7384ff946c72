r"""A real task beside the solvable ones: a small attention classifier of questions, and when each layer settles.

Equations here [TCDKZ25, Fig. 3; theory: descent, Eqs. (10) to (12)]. Tokens t_1..t_M of a question, mask m (0 for padding),
X_0 = E[t] (M, d), two attention layers with tied weights W_ℓ (h, d):

    X_ℓ = [ c I + softmax_m( X_{ℓ-1} W_ℓᵀ W_ℓ X_{ℓ-1}ᵀ / √h ) ] X_{ℓ-1},     logits = A · (Σ_i m_i X_L,i / Σ_i m_i) + b,
    similarity_ℓ(t) = ⟨W_ℓ(t), W_ℓ(T)⟩ / (‖W_ℓ(t)‖ ‖W_ℓ(T)‖)         to the weights at the end of training

A file of questions has lines `LABEL:sub text` (the TREC format) or `LABEL text`; no download is ever made by these functions but
`load_huggingface`, which needs the extra `text`. The built-in questions are synthetic: templates, filled at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.descent.loop import Descent, Epochs, TrainState, descend
from jaxsmi.text.questions import PAD, Question, Vocabulary, held_out

# The network ---------------------------------------------------------------------------------------------------------------


class Classifier(eqx.Module):
    """Embedding, tied attention layers with skip, mean over the words, linear head (module docstring).

    `embedding` (words, d); `layers` (L, h, d); `head` (classes, d); `bias` (classes,); `skip`.
    """

    embedding: Array
    layers: Array
    head: Array
    bias: Array
    skip: float = eqx.field(static=True)

    def __init__(self, words: int, classes: int, *, key: Array, width: int = 128, hidden: int = 64, depth: int = 2,
                 skip: float = 1.0):  # fmt: skip
        one, two, three = jax.random.split(key, 3)
        self.embedding = jax.random.normal(one, (words, width), jnp.float32)
        self.layers = jax.random.normal(two, (depth, hidden, width), jnp.float32) / np.sqrt(width)
        self.head = jax.random.normal(three, (classes, width), jnp.float32) / np.sqrt(width)
        self.bias, self.skip = jnp.zeros((classes,), jnp.float32), float(skip)

    def __call__(self, ids: Array) -> Array:
        """Logits (classes,) of one question (M,); a question of padding alone gets those of an empty mean."""
        mask = ids != PAD
        X = self.embedding[ids]
        for W in self.layers:
            h = X @ W.T
            scores = jnp.where(
                mask[None, :], h @ h.T / np.sqrt(W.shape[0]).astype(np.float32), -jnp.inf
            )
            scores = jnp.where(jnp.any(mask), scores, 0.0)
            X = self.skip * X + jax.nn.softmax(scores, axis=-1) @ X
        mean = jnp.sum(jnp.where(mask[:, None], X, 0.0), axis=0) / jnp.maximum(jnp.sum(mask), 1)
        return self.head @ mean + self.bias


class _Task(Descent):
    ids: Array
    labels: Array
    test_ids: Array
    test_labels: Array
    target: Any
    size: int = eqx.field(static=True)
    patience: int | None = eqx.field(static=True)

    @property
    def epochs(self) -> Epochs:
        return Epochs(self.ids.shape[0], self.size, True)

    def start(self, key: Array, step: Array) -> Array:
        return self.epochs.start(key, step)

    def batch(self, key: Array, carried: Array, step: Array) -> tuple[Array, Any]:
        carried, chosen, inside = self.epochs.next(key, carried, step)
        return carried, (self.ids[chosen], self.labels[chosen], inside)

    def objective(self, weights: Classifier, batch: Any) -> Array:
        ids, labels, inside = batch
        losses = optax.softmax_cross_entropy_with_integer_labels(jax.vmap(weights)(ids), labels)
        return jnp.sum(jnp.where(inside, losses, 0.0)) / jnp.sum(inside)

    def observe(self, weights: Classifier) -> dict[str, Any]:
        def accuracy(ids: Array, labels: Array) -> Array:
            return jnp.mean(jnp.argmax(jax.lax.map(weights, ids, batch_size=256), -1) == labels)

        tested = accuracy(self.test_ids, self.test_labels)
        return {
            "layers": weights.layers,
            "accuracy": accuracy(self.ids, self.labels),
            "test_accuracy": tested,
            "watched": 1.0 - tested,
        }


class TextRun(NamedTuple):
    """A trained classifier: `network`, `vocabulary`, `classes`, and per record `step` and `epoch` (T,), `similarity` of each
    layer to its end (T, L), `train_loss`, `accuracy`, `test_accuracy` (T,); `result` code."""

    network: Classifier
    vocabulary: Vocabulary
    classes: list[str]
    length: int
    step: np.ndarray
    epoch: np.ndarray
    similarity: np.ndarray
    train_loss: np.ndarray
    accuracy: np.ndarray
    test_accuracy: np.ndarray
    result: Result

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The class of each text."""
        ids = self.vocabulary.encode(list(texts), self.length)
        return [self.classes[int(np.argmax(self.network(jnp.asarray(row))))] for row in ids]


def classify(
    questions: Sequence[Question],
    test: Sequence[Question] | None = None,
    *,
    key: Array | None = None,
    epochs: int = 40,
    optimizer: optax.GradientTransformation | None = None,
    batch_size: int = 32,
    width: int = 128,
    hidden: int = 64,
    depth: int = 2,
    skip: float = 1.0,
    max_length: int = 40,
    records: int = 200,
    progress: bool = False,
) -> TextRun:
    r"""Train the attention classifier on questions, and measure the similarity of each layer to where it ends.

    Arguments: `questions` to learn; `test` (None: a fifth of the different texts of each class); `key`; `epochs`;
    `optimizer` (None: AdamW with learning rate 5e-5); `batch_size`; `width` d of the embedding, `hidden` h and `depth` L of
    the attention layers, `skip` c;
    `max_length`: longer questions are cut; `records` along the run; `progress` bar.
    Returns: a `TextRun`. Raises: ValueError for arguments out of range, or fewer than two classes.
    Cost: one forward and backward pass of the network a batch. Source: [TCDKZ25, Fig. 3], [theory: descent, section 4].
    Example:
    >>> run = classify(synthetic_questions(60), epochs=2)  # doctest: +SKIP
    >>> run.similarity.shape[1], float(run.similarity[-1].min().round(3))  # doctest: +SKIP
    (2, 1.0)
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("width", width), ("hidden", hidden),
                        ("depth", depth), ("max_length", max_length), ("records", records)):  # fmt: skip
        check(isinstance(value, (int, np.integer)) and value >= 1, name, value, "an integer >= 1")
    key = jax.random.key(0) if key is None else key
    split_key, start_key, order_key = jax.random.split(key, 3)
    questions = list(questions)
    labels_given = sorted({question.label for question in questions})
    check(
        len(labels_given) >= 2,
        "questions",
        f"classes {labels_given}",
        "at least two classes to learn",
    )
    if test is None:
        questions, test = held_out(questions, split_key)
    classes = sorted({question.label for question in questions})
    check(len(test) >= 1, "test", "none", "at least one question")
    strange = sorted({question.label for question in test} - set(classes))
    check(not strange, "test", f"classes {strange}", f"those of the training questions: {classes}")
    vocabulary = Vocabulary([question.text for question in questions])
    length = min(max(len(Vocabulary.words(question.text)) for question in questions), max_length)

    def arrays(part: Sequence[Question]) -> tuple[Array, Array]:
        ids = vocabulary.encode([question.text for question in part], length)
        return jnp.asarray(ids), jnp.asarray(
            [classes.index(question.label) for question in part], jnp.int32
        )

    size = min(batch_size, len(questions))
    (ids, labels), (test_ids, test_labels) = arrays(questions), arrays(test)
    task = _Task(
        ids=ids, labels=labels, test_ids=test_ids, test_labels=test_labels, target=None, size=size, patience=None
    )  # fmt: skip
    start = Classifier(
        len(vocabulary),
        len(classes),
        key=start_key,
        width=width,
        hidden=hidden,
        depth=depth,
        skip=skip,
    )
    optimizer = optax.adamw(5e-5) if optimizer is None else optimizer
    state = TrainState(
        start,
        optimizer.init(eqx.filter(start, eqx.is_inexact_array)),
        jnp.zeros((), int),
        jax.random.bits(order_key, (2,), jnp.uint32),
    )
    batches = Epochs(len(questions), size, True).batches
    steps = epochs * batches
    label = "text" if progress else None
    end = descend(task, optimizer, state, steps=steps, every=max(steps // records, 1), label=label)
    history: dict[str, Any] = jax.tree.map(np.asarray, end.history)
    recorded = np.isfinite(history["step"])
    past = {name: values[recorded] for name, values in history.items()}
    layers = past["layers"].reshape(len(past["layers"]), depth, -1).astype(np.float64)
    unit = layers / np.linalg.norm(layers, axis=-1, keepdims=True)
    return TextRun(
        end.state.weights, vocabulary, classes, length, past["step"], past["step"] / batches,
        np.einsum("tlx,lx->tl", unit, unit[-1]), past["train_loss"], past["accuracy"], past["test_accuracy"],
        Result(int(end.result)),
    )  # fmt: skip


def settled_at(run: TextRun) -> np.ndarray:
    """Epoch (L,) at which each layer has gone half of the way of its similarity, from the start to one.

    Arguments: `run` from `classify`. Returns: epochs, by linear interpolation between records; 0 for a layer that never
    moved, NaN for a run that ended without finite numbers.
    """
    if run.result == Result.NONFINITE:
        return np.full(run.similarity.shape[1], np.nan)
    settled = []
    for similarity in run.similarity.T:
        half = 0.5 * (1.0 + similarity[0])
        after = int(np.argmax(similarity >= half))
        before = max(after - 1, 0)
        rise = similarity[after] - similarity[before]
        part = (half - similarity[before]) / rise if rise > 0 else 0.0
        settled.append(run.epoch[before] + part * (run.epoch[after] - run.epoch[before]))
    return np.asarray(settled)
