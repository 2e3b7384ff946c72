"""Progress bars of long calls, on a terminal and in notebooks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # in a notebook without ipywidgets bars are plain text
    from tqdm.auto import tqdm

_SOON = 2.0  # seconds: an unrequested bar of a shorter call would only flicker


def _attended() -> bool:
    """True where a reader may see a bar: stderr is a terminal, or this is a notebook, and the
    environment does not set TQDM_DISABLE."""
    if os.environ.get("TQDM_DISABLE"):
        return False
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Bar(tqdm):
    """A progress bar; a context.

    Args:
        total: The count at the end.
        label: Its title.
        progress: True: it is shown; None: on a terminal and in a notebook, after two seconds.
    """

    def __init__(self, total: int, label: str, progress: bool | None) -> None:
        delay = _SOON if progress is None else 0.0
        shown = _attended() if progress is None else progress
        self.count = 0  # of its own: a hidden bar of tqdm does not count
        super().__init__(total=total, desc=label, leave=False, disable=not shown, delay=delay)
        # the first step includes compilation, and a bar that stands still looks like a fault
        self.set_postfix_str("compiling", refresh=progress is True)

    def update(self, n: int = 1, beside: Mapping[str, str] | None = None) -> None:  # pyright: ignore
        """Count `n` more; `beside`: numbers to the right of the bar."""
        self.count += n
        if beside is not None:
            words = ", ".join(f"{name} {value}" for name, value in beside.items())
            self.set_postfix_str(words, refresh=False)
        super().update(n)
