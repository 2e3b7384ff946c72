"""What a command has by now: a report of its finished parts, and where its last run stands.

No equation lives here.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxsmi.cli.report import Report
from jaxsmi.core.driver import Run

__all__ = ["arrays", "forget", "keep", "look", "progress", "report"]

_reports: list[Report] = []
_runs: list[tuple[int, int, dict[str, np.ndarray]]] = []  # steps, of how many, history


def forget() -> None:
    """Before a command begins."""
    _reports.clear()
    _runs.clear()


def keep(finished: Report) -> None:
    """A report of the parts that are finished, which an interruption prints and writes."""
    _reports[:] = [finished]


def look(run: Run[Any], max_steps: int) -> None:
    """Where a run stands, as NumPy arrays: the device may be busy when they are asked for."""
    leaves = jax.tree_util.tree_leaves_with_path(run.history)
    separate = "[]'."  # ["record"][0] becomes record_0
    name = lambda path: "_".join(jax.tree_util.keystr((key,)).strip(separate) for key in path)
    history = {name(path): np.array(leaf) for path, leaf in leaves}
    _runs[:] = [(int(run.step), max_steps, history)]


def report() -> Report | None:
    """The report of the finished parts."""
    return _reports[0] if _reports else None


def progress() -> str:
    """How far the last run is, after a word such as "interrupted"."""
    if not _runs:
        return ""
    step, steps, _ = _runs[0]
    return f" after {step} of {steps} steps of its last run"


def arrays() -> dict[str, np.ndarray]:
    """The history of the last run up to now: arrays by their names."""
    return _runs[0][2] if _runs else {}
