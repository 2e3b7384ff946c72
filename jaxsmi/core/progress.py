"""How far long calls are: bars on a terminal and in notebooks, lines of a logger everywhere.

No equation lives here. Where nobody sees a bar, `logging.basicConfig(level=logging.INFO)` shows the
lines of the logger "jaxsmi": one when a run begins and ends, one every ten seconds between.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping
from types import TracebackType

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # in a notebook without ipywidgets bars are plain text
    from tqdm.auto import tqdm

_SECONDS = 10.0  # between two lines of the logger
_SOON = 2.0  # seconds before a bar that nobody asked for is shown

_logger = logging.getLogger("jaxsmi")


def attended() -> bool:
    """Whether somebody looks on: stderr is a terminal, or this is a notebook, and the environment
    does not set TQDM_DISABLE."""
    if os.environ.get("TQDM_DISABLE"):
        return False
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Bar:
    """A progress bar and the lines of the logger that go with it; a context.

    Args:
        total: What `update` counts to.
        label: What the bar is called.
        progress: Whether it is shown; None: where somebody looks on, after two seconds.
        word: What stands beside it at the beginning.
    """

    def __init__(self, total: int, label: str, progress: bool | None, word: str = "") -> None:
        shown = attended() if progress is None else progress
        delay = _SOON if progress is None else 0.0
        self.total = total
        self.label = label
        self.count: int = 0
        self._begin = self._said = time.monotonic()
        self._bar = tqdm(total=total, desc=label, leave=False, disable=not shown, delay=delay)
        if shown and word:
            self._bar.set_postfix_str(word)
        _logger.info("%s: begins", label)

    def update(self, count: int, beside: Mapping[str, str] | None = None) -> None:
        """`count` more are done; `beside`: what stands beside the bar."""
        self.count += count
        now = time.monotonic()
        said = ", ".join(f"{name} {value}" for name, value in (beside or {}).items())
        if beside is not None:
            self._bar.set_postfix_str(said, refresh=False)
        self._bar.update(count)
        # a log file keeps every line, so that it gets one in ten seconds, not one a chunk
        if now - self._said > _SECONDS:
            self._said = now
            _logger.info("%s: %d of %d, %s", self.label, self.count, self.total, said)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()
        seconds = time.monotonic() - self._begin
        ended = "ended" if kind is None else f"stopped by {kind.__name__}"
        _logger.info(
            "%s: %s after %d of %d, %.1f s", self.label, ended, self.count, self.total, seconds
        )
