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
_runs: list[tuple[Run[Any], int]] = []


def forget() -> None:
    """Before a command begins."""
    _reports.clear()
    _runs.clear()


def keep(finished: Report) -> None:
    """A report of the parts that are finished, which an interruption prints and writes."""
    _reports[:] = [finished]


def look(run: Run[Any], max_steps: int) -> None:
    """Where a run stands."""
    _runs[:] = [(run, max_steps)]


def report() -> Report | None:
    """The report of the finished parts."""
    return _reports[0] if _reports else None


def progress() -> str:
    """How far the last run is, after a word such as "interrupted"."""
    if not _runs:
        return ""
    run, steps = _runs[0]
    return f" after {int(run.step)} of {steps} steps of its last run"


def arrays() -> dict[str, np.ndarray]:
    """The history of the last run up to now: arrays by their names."""
    if not _runs:
        return {}
    leaves = jax.tree_util.tree_leaves_with_path(_runs[0][0].history)
    separate = "[]'."  # ["record"][0] becomes record_0
    name = lambda path: "_".join(jax.tree_util.keystr((key,)).strip(separate) for key in path)
    return {name(path): np.asarray(leaf) for path, leaf in leaves}
