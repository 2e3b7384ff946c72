"""Words of texts as numbers: the vocabulary of a classifier."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from jaxsmi.core.border import checked, optional, sequence, text, whole

# Ids of padding and of words that the vocabulary lacks.
PAD = 0
UNKNOWN = 1
_FIRST = 2


is_texts = sequence("a list of texts (str)", text, empty=True)


class Vocabulary:
    """Words of a set of texts, most frequent first; id 0 is padding, id 1 an unknown word.

    Words are lower-cased runs of letters, digits, apostrophes and hyphens; any other sign is a
    word of its own.

    Args:
        texts: The texts.
        size: The most words to keep, an integer >= 1. Default: all.

    Raises:
        ValueError: For a size < 1.

    Example:
        >>> vocabulary = Vocabulary(["Who is who?"])
        >>> vocabulary.encode(["who was it?"], 5).tolist()
        [[2, 1, 1, 3, 0]]
    """

    @checked(texts=is_texts, size=optional(whole()))
    def __init__(self, texts: Sequence[str], size: int | None = None):
        counts = Counter(word for text in texts for word in self.words(text))
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[:size]
        self.ids: dict[str, int] = {word: n for n, word in enumerate(frequent, _FIRST)}

    @staticmethod
    def words(text: str) -> list[str]:
        """The words of a text."""
        return re.findall(r"[\w'-]+|[^\w\s]", text.lower())

    def __len__(self) -> int:
        return len(self.ids) + _FIRST

    @checked(texts=is_texts, length=whole())
    def encode(self, texts: Sequence[str], length: int) -> np.ndarray:
        """Ids (texts, length), cut or padded with zeros."""
        table = np.zeros((len(texts), length), np.int32)
        for row, line in zip(table, texts, strict=True):
            ids = [self.ids.get(word, UNKNOWN) for word in self.words(line)][:length]
            row[: len(ids)] = ids
        return table
