r"""Training of the classifier of questions, and when each of its layers settles.

Equations here [TCDKZ25, Fig. 3; theory: descent, Eq. (12)], W_l(t) the weights of layer l at time
t, T the end of training:

    similarity_l(t) = ⟨W_l(t), W_l(T)⟩ / (‖W_l(t)‖ ‖W_l(T)‖)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import checked, flag, instance, optional, random_key, scalar, whole
from jaxsmi.core.checks import FINITE, Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.descent.loop import Descent, Epochs, TrainState, descend
from jaxsmi.descent.order import crossing
from jaxsmi.text.network import Classifier
from jaxsmi.text.questions import Question, held_out, is_questions
from jaxsmi.text.vocabulary import Vocabulary, is_texts

_LEARNING_RATE = 5e-5


class TextRun(NamedTuple):
    """A trained classifier and its curves, by record (T,) and layer (L,).

    Attributes:
        network: The `Classifier` at the end.
        vocabulary: The words of the training questions.
        classes: The classes, in the order of the logits.
        length: Tokens to which questions are cut or padded.
        step: Steps taken (T,).
        epoch: The same in epochs (T,).
        similarity: Cosine of each layer with its end (T, L).
        train_loss: Mean cross entropy since the record before (T,).
        accuracy: Share of the training questions that are classified rightly (T,).
        test_accuracy: Share of the test questions (T,).
        result: A `Result` code.
    """

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

    @checked(texts=is_texts)
    def predict(self, texts: Sequence[str]) -> list[str]:
        """The class of each text."""
        ids = self.vocabulary.encode(list(texts), self.length)
        return [self.classes[int(np.argmax(self.network(jnp.asarray(row))))] for row in ids]


class _Batch(NamedTuple):
    """Ids (B, M) and classes (B,) of some questions, and which of them count (B,)."""

    ids: Array
    labels: Array
    inside: Array


class _Task(Descent):
    """Cross entropy on the training questions, in shuffled batches of `size`."""

    ids: Array
    labels: Array
    test_ids: Array
    test_labels: Array
    target: float | None
    size: int = eqx.field(static=True)
    patience: int | None = eqx.field(static=True)

    @property
    def epochs(self) -> Epochs:
        """Which questions make the batch of a step."""
        return Epochs(self.ids.shape[0], self.size, True)

    def start(self, key: PRNGKeyArray, step: Array) -> Array:
        """The order of the questions in the first epoch."""
        return self.epochs.start(key, step)

    def batch(self, key: PRNGKeyArray, carried: Array, step: Array) -> tuple[Array, _Batch]:
        """The questions of a step."""
        carried, chosen, inside = self.epochs.next(key, carried, step)
        return carried, _Batch(self.ids[chosen], self.labels[chosen], inside)

    def objective(self, weights: Classifier, batch: _Batch) -> Array:
        """Mean cross entropy of a batch."""
        logits = jax.vmap(weights)(batch.ids)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        return jnp.sum(jnp.where(batch.inside, losses, 0.0)) / jnp.sum(batch.inside)

    def observe(self, weights: Classifier) -> dict[str, Array]:
        """The layers, and the accuracies."""

        def accuracy(ids: Array, labels: Array) -> Array:
            return jnp.mean(jnp.argmax(jax.lax.map(weights, ids, batch_size=256), -1) == labels)

        tested = accuracy(self.test_ids, self.test_labels)
        return {
            "layers": weights.layers,
            "accuracy": accuracy(self.ids, self.labels),
            "test_accuracy": tested,
            "watched": 1.0 - tested,
        }


class _Corpus(NamedTuple):
    """Questions to learn and to test on, and how they become numbers."""

    questions: Sequence[Question]
    test: Sequence[Question]
    classes: list[str]
    vocabulary: Vocabulary
    length: int

    def arrays(self, part: Sequence[Question]) -> tuple[Array, Array]:
        """Ids (N, length) and classes (N,) of some questions."""
        ids = self.vocabulary.encode([question.text for question in part], self.length)
        labels = [self.classes.index(question.label) for question in part]
        return jnp.asarray(ids), jnp.asarray(labels, jnp.int32)


def _corpus(
    questions: Sequence[Question],
    test: Sequence[Question] | None,
    max_length: int,
    key: PRNGKeyArray,
) -> _Corpus:
    """The questions of a run, checked; a fifth is set apart where there are none to test on."""
    questions = list(questions)
    labels = sorted({question.label for question in questions})
    enough = "at least two classes to learn"
    check(len(labels) >= 2, "questions", f"classes {labels}", enough)
    if test is None:
        questions, test = held_out(questions, key)
    classes = sorted({question.label for question in questions})
    check(len(test) >= 1, "test", "none", "at least one question")
    strange = sorted({question.label for question in test} - set(classes))
    allowed = f"those of the training questions: {classes}"
    check(not strange, "test", f"classes {strange}", allowed)
    longest = max(len(Vocabulary.words(question.text)) for question in questions)
    vocabulary = Vocabulary([question.text for question in questions])
    return _Corpus(questions, test, classes, vocabulary, min(longest, max_length))


@checked(
    questions=is_questions,
    test=optional(is_questions),
    key=optional(random_key),
    epochs=whole(),
    optimizer=optional(instance(optax.GradientTransformation, "an optimiser of optax")),
    batch_size=whole(),
    width=whole(),
    hidden=whole(),
    depth=whole(),
    skip=scalar(FINITE),
    max_length=whole(),
    records=whole(),
    progress=optional(flag),
)
def classify(
    questions: Sequence[Question],
    test: Sequence[Question] | None = None,
    *,
    key: PRNGKeyArray | None = None,
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
    r"""Train the attention classifier on questions, and follow each layer to where it ends.

        similarity_l(t) = ⟨W_l(t), W_l(T)⟩ / (‖W_l(t)‖ ‖W_l(T)‖)

    Args:
        questions: Questions to learn, of at least two classes.
        test: Questions to test on. Default: a fifth of the different texts of each class.
        key: A random key. Default `jax.random.key(0)`.
        epochs: Passes over the questions, an integer >= 1. Default 40.
        optimizer: Any optax optimiser. Default AdamW with learning rate 5e-5.
        batch_size: Questions a step, an integer >= 1. Default 32.
        width: Dimension d of the embedding, an integer >= 1. Default 128.
        hidden: Rows h of each layer's weights, an integer >= 1. Default 64.
        depth: Number L of attention layers, an integer >= 1. Default 2.
        skip: Strength c of the skip connection. Default 1.
        max_length: Longer questions are cut to so many words, an integer >= 1. Default 40.
        records: Records along the run, an integer >= 1. Default 200.
        progress: Whether to show a bar. Default False.

    Returns:
        A `TextRun`.

    Raises:
        ValueError: For a number out of range, fewer than two classes, or test questions of a class
            that is not learned.

    Example:
        >>> run = classify(synthetic_questions(60), epochs=2)  # doctest: +SKIP
        >>> run.similarity.shape[1], float(run.similarity[-1].min().round(3))  # doctest: +SKIP
        (2, 1.0)

    Cost:
        One forward and backward pass of the network a batch.

    Source:
        [TCDKZ25, Fig. 3]; [theory: descent, section 4].
    """
    arguments = Arguments()
    sizes = {
        "width": width,
        "hidden": hidden,
        "depth": depth,
    }
    label = "text" if progress else None
    key = jax.random.key(0) if key is None else arguments.key("key", key)
    split_key, start_key, order_key = jax.random.split(key, 3)
    corpus = _corpus(questions, test, max_length, split_key)
    task = _task(corpus, batch_size)
    network = Classifier(
        len(corpus.vocabulary), len(corpus.classes), key=start_key, skip=skip, **sizes
    )
    optimizer = optax.adamw(_LEARNING_RATE) if optimizer is None else optimizer
    state = TrainState(
        network,
        optimizer.init(eqx.filter(network, eqx.is_inexact_array)),
        jnp.zeros((), int),
        jax.random.bits(order_key, (2,), jnp.uint32),
    )
    steps = epochs * task.epochs.batches
    every = max(steps // records, 1)
    end = descend(task, optimizer, state, steps=steps, every=every, label=label)
    history = jax.tree.map(np.asarray, end.history)
    return _curves(corpus, end.state.weights, history, task.epochs.batches, Result(int(end.result)))


def _task(corpus: _Corpus, batch_size: int) -> _Task:
    """The problem of descent on a corpus."""
    ids, labels = corpus.arrays(corpus.questions)
    test_ids, test_labels = corpus.arrays(corpus.test)
    return _Task(
        ids=ids,
        labels=labels,
        test_ids=test_ids,
        test_labels=test_labels,
        target=None,
        size=min(batch_size, len(corpus.questions)),
        patience=None,
    )


def _curves(
    corpus: _Corpus,
    network: Classifier,
    history: Mapping[str, np.ndarray],
    batches: int,
    result: Result,
) -> TextRun:
    """The curves over the records that were made."""
    recorded = np.isfinite(history["step"])
    past = {name: values[recorded] for name, values in history.items()}
    layers = past["layers"].reshape(*past["layers"].shape[:2], -1).astype(np.float64)
    unit = layers / np.linalg.norm(layers, axis=-1, keepdims=True)
    return TextRun(
        network=network,
        vocabulary=corpus.vocabulary,
        classes=corpus.classes,
        length=corpus.length,
        step=past["step"],
        epoch=past["step"] / batches,
        similarity=np.einsum("tlx,lx->tl", unit, unit[-1]),
        train_loss=past["train_loss"],
        accuracy=past["accuracy"],
        test_accuracy=past["test_accuracy"],
        result=result,
    )


@checked(run=instance(TextRun, "what smi.text.classify returns"))
def settled_at(run: TextRun) -> np.ndarray:
    r"""Epoch at which each layer has gone half of its way, from its first similarity to one.

        t_l = min{t: similarity_l(t) >= (1 + similarity_l(0))/2},   linear between records

    Args:
        run: What `classify` returned.

    Returns:
        Epochs (L,); 0 for a layer that never moved, NaN for a run that ended in NaN.

    Raises:
        ValueError: For anything but a `TextRun`.

    Example:
        >>> settled_at(classify(synthetic_questions(60), epochs=2)).shape  # doctest: +SKIP
        (2,)

    Cost:
        None.

    Source:
        [TCDKZ25, Fig. 3]; [theory: descent, section 4].
    """
    if run.result == Result.NONFINITE:
        return np.full(run.similarity.shape[1], np.nan)
    epoch = jnp.asarray(run.epoch)
    similarity = jnp.asarray(run.similarity)
    return np.asarray(crossing(epoch, similarity, 0.5 * (1.0 + similarity[0])))
