"""Questions to classify: from files, from Hugging Face, or made from templates.

A file has lines `LABEL:sub text` (the TREC format) or `LABEL text`. Nothing is ever downloaded but
by `load_huggingface`, which needs the extra `text`. The built-in questions are synthetic: templates
over the six coarse classes of TREC, filled at random.
"""

from __future__ import annotations

import os
import pathlib
import re
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxsmi.core.border import checked, instance, is_path, sequence, text, whole
from jaxsmi.core.checks import check

_SHOWN = 60  # characters of a line that a message shows


class Question(NamedTuple):
    """A labelled text: its coarse `label`, its subclass `sub` ("" if none), the `text`."""

    label: str
    sub: str
    text: str


is_questions = sequence("a list of smi.text.Question, at least one", instance(Question, ""))


@checked(path=is_path)
def load(path: str | os.PathLike[str]) -> list[Question]:
    """Questions of a plain file, a line each: `LABEL:sub text` or `LABEL text`.

    Args:
        path: The file, in UTF-8, or in Latin-1 as TREC's train_5500.label and TREC_10.label.

    Returns:
        The questions; empty lines are skipped.

    Raises:
        ValueError: For a line without a label and a text (it names the first), or no questions.
        OSError: Without a file.

    Example:
        >>> load("train_5500.label")[0].label  # doctest: +SKIP
        'DESC'

    Cost:
        One pass over the file.

    Source:
        [theory: descent, section 4].
    """
    raw = pathlib.Path(path).read_bytes()
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        content = raw.decode("latin-1")
    questions = []
    # not splitlines: questions may hold other separators
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        head, *rest = line.split(None, 1)
        label, _, sub = head.partition(":")
        allowed = "'LABEL:sub text' or 'LABEL text'"
        check(bool(label and rest), f"{path}, line {number}", line.strip()[:_SHOWN], allowed)
        questions.append(Question(label, sub, rest[0].strip()))
    check(len(questions) > 0, "path", str(path), "a file with at least one question")
    return questions


@checked(name=text, split=text, label=text)
def load_huggingface(
    name: str = "CogComp/trec", split: str = "train", label: str = "coarse_label"
) -> list[Question]:
    """Questions of a Hugging Face data set with a text and a class-label column.

    Args:
        name: Name of the data set. Default "CogComp/trec".
        split: Which part of it. Default "train".
        label: Its column of labels. Default "coarse_label".

    Returns:
        The questions.

    Raises:
        ImportError: Without the package `datasets`, with the remedy.
        ValueError: For a data set without such columns.

    Example:
        >>> load_huggingface()[0].label  # doctest: +SKIP
        'DESC'

    Cost:
        A download at the first call.

    Source:
        [theory: descent, section 4].
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "Hugging Face's datasets is needed. Install it with: pip install 'jaxsmi[text]'"
        ) from error
    table = datasets.load_dataset(name, split=split)
    columns = table.column_names
    check(label in columns and "text" in columns, "label", label, f"one of {columns}")
    feature = table.features[label]
    names = feature.names if isinstance(feature, datasets.ClassLabel) else None
    return [
        Question(names[row[label]] if names else str(row[label]), "", row["text"]) for row in table
    ]


def held_out(questions: list[Question], key: PRNGKeyArray) -> tuple[list[Question], list[Question]]:
    """A fifth of the different texts of each class set apart, all copies of a text on one side."""
    chosen: set[str] = set()
    for label in sorted({question.label for question in questions}):
        texts = sorted({question.text for question in questions if question.label == label})
        key, order_key = jax.random.split(key)
        order = np.asarray(jax.random.permutation(order_key, len(texts)))
        chosen |= {texts[i] for i in order[: len(texts) // 5]}
    allowed = "questions to test on: no class has five different texts to set one apart"
    check(len(chosen) > 0, "test", None, allowed)
    learned = [question for question in questions if question.text not in chosen]
    return learned, [question for question in questions if question.text in chosen]


# Synthetic questions

# What fills a slot, words apart by spaces.
_SLOTS = {
    "PLACE": (
        "France Lisbon Norway Texas Cairo Kenya Lima Oslo "
        "Peru Tokyo Bolivia Naples Quebec Vienna Ghana"
    ),
    "PERSON": (
        "Newton Mozart Cleopatra Darwin Picasso Curie "
        "Gandhi Homer Lincoln Shakespeare Galileo Austen"
    ),
    "THING": (
        "telescope violin compass bicycle lighthouse "
        "printing-press microscope parachute thermometer piano"
    ),
    "ANIMAL": "whale spider eagle camel salmon wolf tortoise owl dolphin beaver",
    "IDEA": (
        "gravity inflation photosynthesis democracy friction "
        "evolution erosion magnetism irony insurance"
    ),
    "SHORT": "NASA DNA UNESCO AIDS NATO RADAR LASER FIFA OPEC CPU",
    "WORK": "opera novel film painting symphony treaty poem statue play song",
    "YEAR": "1492 1666 1789 1815 1848 1903 1914 1929 1945 1969",
}


# Templates of the six coarse classes of TREC.
_TEMPLATES = {
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


@checked(count=whole(2 * len(_TEMPLATES)), seed=whole(0))
def synthetic_questions(count: int = 600, seed: int = 0) -> list[Question]:
    """Synthetic questions: templates over the six coarse classes of TREC, filled at random.

    Args:
        count: How many, an integer >= 12. Default 600.
        seed: Seed of the generator, an integer >= 0. Default 0.

    Returns:
        The questions, the classes equally often, with "synthetic" for subclass.

    Raises:
        ValueError: For a smaller count, or a seed < 0.

    Example:
        >>> synthetic_questions(12)[3].label, synthetic_questions(12)[3].sub
        ('HUM', 'synthetic')

    Cost:
        Microseconds a question.

    Source:
        [theory: descent, section 4].
    """
    random = np.random.default_rng(seed)
    fill = lambda slot: str(random.choice(_SLOTS[slot.group(1)].split()))
    questions = []
    for n in range(count):
        label = list(_TEMPLATES)[n % len(_TEMPLATES)]
        template = str(random.choice(_TEMPLATES[label]))
        questions.append(Question(label, "synthetic", re.sub(r"\{(\w+)\}", fill, template)))
    return questions
