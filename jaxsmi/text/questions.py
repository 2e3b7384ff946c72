"""TODO text.questions."""

from __future__ import annotations

import os
import pathlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from jaxsmi.core.checks import check

PAD, UNKNOWN = 0, 1


class Question(NamedTuple):
    """A labelled text: coarse `label`, its subclass `sub` ("" if none), `text`."""

    label: str
    sub: str
    text: str


# Questions -----------------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> list[Question]:
    """Questions of a plain file, a line each: `LABEL:sub text` or `LABEL text` (UTF-8, or Latin-1 as the original TREC files).

    Arguments: `path`. Returns: the questions. Empty lines are skipped.
    Raises: ValueError naming the first line without a label and a text, or a file without questions; OSError without a file.
    Example: `smi.text.load("train_5500.label")[0].label`.
    """
    raw = pathlib.Path(path).read_bytes()
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        content = raw.decode("latin-1")
    questions = []
    for number, line in enumerate(
        content.split("\n"), 1
    ):  # not splitlines: questions may hold other separators
        if not line.strip():
            continue
        head, *rest = line.split(None, 1)
        label, _, sub = head.partition(":")
        check(
            bool(label and rest),
            f"{path}, line {number}",
            line.strip()[:60],
            "'LABEL:sub text' or 'LABEL text'",
        )
        questions.append(Question(label, sub, rest[0].strip()))
    check(len(questions) > 0, "path", str(path), "a file with at least one question")
    return questions


def load_huggingface(
    name: str = "CogComp/trec", split: str = "train", label: str = "coarse_label"
) -> list[Question]:
    """Questions of a Hugging Face data set with a text and a class-label column. Needs the extra `text`, and the network.

    Arguments: `name` of the data set; `split`; `label`: its column of labels. Returns: the questions.
    Raises: ImportError (with the remedy) without `datasets`; ValueError for another column. Example: `load_huggingface()`.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "Hugging Face's datasets is needed. Install it with: pip install 'jaxsmi[text]'"
        ) from error
    table = datasets.load_dataset(name, split=split)
    check(
        label in table.column_names and "text" in table.column_names,
        "label",
        label,
        f"one of {table.column_names}",
    )
    names = getattr(table.features[label], "names", None)
    return [
        Question(names[row[label]] if names else str(row[label]), "", row["text"]) for row in table
    ]


_SLOTS = {  # words apart by spaces
    "PLACE": "France Lisbon Norway Texas Cairo Kenya Lima Oslo Peru Tokyo Bolivia Naples Quebec Vienna Ghana",
    "PERSON": "Newton Mozart Cleopatra Darwin Picasso Curie Gandhi Homer Lincoln Shakespeare Galileo Austen",
    "THING": "telescope violin compass bicycle lighthouse printing-press microscope parachute thermometer piano",
    "ANIMAL": "whale spider eagle camel salmon wolf tortoise owl dolphin beaver",
    "IDEA": "gravity inflation photosynthesis democracy friction evolution erosion magnetism irony insurance",
    "SHORT": "NASA DNA UNESCO AIDS NATO RADAR LASER FIFA OPEC CPU",
    "WORK": "opera novel film painting symphony treaty poem statue play song",
    "YEAR": "1492 1666 1789 1815 1848 1903 1914 1929 1945 1969",
}


_TEMPLATES = {  # the six coarse classes of TREC
    "ABBR": (
        "What does {SHORT} stand for ?",
        "What is the full form of {SHORT} ?",
        "What is the abbreviation of {IDEA} ?",
        "What do the letters {SHORT} mean ?",
        "How is {PLACE} abbreviated ?",
    ),
    "DESC": (
        "What is {IDEA} ?",
        "How does a {THING} work ?",
        "Why did {PERSON} leave {PLACE} ?",
        "What causes {IDEA} in {PLACE} ?",
        "How do you build a {THING} ?",
        "What is the origin of {IDEA} ?",
        "Why does a {ANIMAL} sleep ?",
    ),
    "ENTY": (
        "What {ANIMAL} is the fastest in {PLACE} ?",
        "Which {WORK} did {PERSON} make in {YEAR} ?",
        "What instrument did {PERSON} play ?",
        "What is the favourite food of a {ANIMAL} ?",
        "What sport is played with a {THING} in {PLACE} ?",
        "Which language is spoken in {PLACE} ?",
    ),
    "HUM": (
        "Who invented the {THING} ?",
        "Who wrote the {WORK} about {PLACE} ?",
        "Who was the king of {PLACE} in {YEAR} ?",
        "What scientist discovered {IDEA} ?",
        "Who taught {PERSON} the {THING} ?",
        "Which company sells the {THING} ?",
    ),
    "LOC": (
        "Where was {PERSON} born ?",
        "Where does the {ANIMAL} live ?",
        "What is the capital of {PLACE} ?",
        "What country borders {PLACE} ?",
        "Where was the {THING} invented ?",
        "Which city hosted the {WORK} of {YEAR} ?",
    ),
    "NUM": (
        "When was {PERSON} born ?",
        "How many people live in {PLACE} ?",
        "How long does a {ANIMAL} live ?",
        "What year was the {THING} invented ?",
        "How much does a {THING} weigh ?",
        "How far is {PLACE} from {PLACE} ?",
        "When did {PERSON} visit {PLACE} ?",
    ),
}


def synthetic_questions(count: int = 600, seed: int = 0) -> list[Question]:
    """Synthetic questions: templates over the six coarse classes of TREC, filled at random; marked "synthetic" as subclass.

    Arguments: `count` >= 12; `seed`. Returns: the questions, the classes equally often.
    Raises: ValueError for a smaller count.
    Example:
    >>> synthetic_questions(12)[3].label, synthetic_questions(12)[3].sub
    ('HUM', 'synthetic')
    """
    check(count >= 12, "count", count, "at least 12, two of each class")
    random = np.random.default_rng(seed)
    questions = []
    for n in range(count):
        label = list(_TEMPLATES)[n % len(_TEMPLATES)]
        template = str(random.choice(_TEMPLATES[label]))
        text = re.sub(
            r"\{(\w+)\}", lambda slot: str(random.choice(_SLOTS[slot.group(1)].split())), template
        )
        questions.append(Question(label, "synthetic", text))
    return questions


class Vocabulary:
    """Words of a set of texts, most frequent first; id 0 is padding, id 1 an unknown word. Words are lower-cased runs of
    letters, digits, apostrophes and hyphens; any other sign is a word of its own.

    Arguments: `texts`; `size`: at most so many words (None: all).
    """

    def __init__(self, texts: Sequence[str], size: int | None = None):
        counts = Counter(word for text in texts for word in self.words(text))
        kept = sorted(counts, key=lambda word: (-counts[word], word))[:size]
        self.ids = {word: n for n, word in enumerate(kept, 2)}

    @staticmethod
    def words(text: str) -> list[str]:
        """The words of a text."""
        return re.findall(r"[\w'-]+|[^\w\s]", text.lower())

    def __len__(self) -> int:
        return len(self.ids) + 2

    def encode(self, texts: Sequence[str], length: int) -> np.ndarray:
        """Ids (N, length), cut or padded with zeros."""
        table = np.zeros((len(texts), length), np.int32)
        for row, text in zip(table, texts, strict=True):
            ids = [self.ids.get(word, UNKNOWN) for word in self.words(text)][:length]
            row[: len(ids)] = ids
        return table


def held_out(questions: list[Question], key: Array) -> tuple[list[Question], list[Question]]:
    """A fifth of the different texts of each class set apart, all copies of a text on one side."""
    held: set[str] = set()
    for label in sorted({question.label for question in questions}):
        texts = sorted({question.text for question in questions if question.label == label})
        key, own = jax.random.split(key)
        order = np.asarray(jax.random.permutation(own, len(texts)))
        held |= {texts[i] for i in order[: len(texts) // 5]}
    check(
        len(held) > 0,
        "test",
        None,
        "questions to test on: no class has five different texts to set one apart",
    )
    kept = [question for question in questions if question.text not in held]
    return kept, [question for question in questions if question.text in held]
