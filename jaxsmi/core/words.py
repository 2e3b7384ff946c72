"""Misspelt words. Nothing heavy is imported here: `import jaxsmi` takes this module with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, words: Iterable[str]) -> str:
    """The one of some words that a misspelt one is nearest to; "" where none is near."""
    return "".join(difflib.get_close_matches(word, list(words), 1, 0.5))
