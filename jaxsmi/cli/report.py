"""How a command shows its results: tables for the reader, plain dicts for JSON, and time.

No equation lives here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array

from jaxsmi.core import labelled
from jaxsmi.core.codes import Result
from jaxsmi.core.provenance import fields_of
from jaxsmi.core.results import Solution, Threshold
from jaxsmi.descent.averaging import averaged
from jaxsmi.workbench.costs import Cost
from jaxsmi.workbench.order import LearningOrder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxsmi.workbench.storage import Storable

__all__ = [
    "Report",
    "average",
    "finite",
    "foreseen",
    "learned",
    "learned_rows",
    "outcome",
    "plain",
    "rounded",
    "run_cells",
    "short",
    "threshold_cells",
    "table",
    "timed",
    "with_error",
    "wrapped",
]


def draw_nothing(figure: Figure) -> None:
    """For a command without a figure."""
    del figure


@dataclasses.dataclass
class Report:
    """What a command computed; `main` prints it and writes its files.

    Args:
        data: For JSON.
        text: For the reader.
        draw: Draws into a figure, for --out. Default: nothing.
        stored: Makes what the netCDF file holds, for --out. Default: an empty file.
        figure: A figure to draw into, where it is not a new one. Default None.
        stem: How the names of the files begin. Default "": with the command.
        written: Files that the command has written by itself. Default: none.
        problem: What went wrong, one sentence; "" where all went well. The exit status is 1 if
            there is one.
    """

    data: dict[str, Any]
    text: str
    draw: Callable[[Figure], object] = draw_nothing
    stored: Callable[[], Storable] = dict
    figure: Figure | None = None
    stem: str = ""
    written: Sequence[pathlib.Path] = ()
    problem: str = ""


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """A list whose one entry is, after the block, its duration in seconds."""
    begin = time.perf_counter()
    seconds = [0.0]
    yield seconds
    seconds[0] = time.perf_counter() - begin


# Text


def wrapped(text: str) -> str:
    """Text in lines of at most 100 characters, hanging indent."""
    return textwrap.fill(text, 100, subsequent_indent="  ")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns of text, aligned to the right, between empty lines."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True))
        for row in [header, *rows]
    ]
    return "\n".join(["", *(line.rstrip() for line in lines), ""])


def short(value: object) -> str:
    """A setting as one writes it."""
    if isinstance(value, list):
        return " ".join(map(short, value))
    return str(value) if isinstance(value, (str, bool, pathlib.Path)) else f"{value:g}"


def rounded(value: float) -> str:
    """A share or an overlap to three digits; what is left of a zero is 0."""
    return "0" if abs(value) < 1e-6 else f"{value:.3g}"


def finite(value: float | np.ndarray | Array) -> float | None:
    """A number for JSON: None where it is not finite."""
    return float(value) if np.isfinite(value) else None


# Solutions


def plain(solution: Solution) -> dict[str, Any]:
    """What JSON says of a solution."""
    names = (
        "kind",
        "alpha",
        "overlap",
        "stderr",
        "covariance",
        "error",
        "steps",
        "residual",
        "converged",
        "message",
    )
    fields = fields_of(solution, names)
    return fields | {"result": Result(int(solution.result)).name}


def outcome(name: str, solution: Solution, seconds: float) -> str:
    """One sentence: steps, time and how it ended."""
    return wrapped(f"{name}: {int(solution.steps)} steps, {seconds:.1f} s. {solution.message}")


def run_cells(solution: Solution, p: int) -> list[str]:
    """Cells of an index of a run of message passing: cosine, its square, overlap."""
    cosine = solution.cosine[p]
    return [f"{cosine:.4f}", f"{cosine**2:.4f}", f"{float(solution.overlap[p, p]):.4f}"]


def with_error(solution: Solution, p: int) -> str:
    """The overlap of an index with its standard error."""
    return f"{float(solution.overlap[p, p]):.4f} ± {float(solution.stderr[p, p]):.4f}"


def threshold_cells(step: Threshold) -> list[str]:
    """Cells of a step of a staircase: α with its error, what is learned, the overlap there, the
    code.
    """
    diagonals = [
        " ".join(rounded(x) for x in np.diagonal(np.asarray(matrix)))
        for matrix in (step.subspace, step.overlap)
    ]
    alpha = f"{float(step.alpha):.4f} ± {float(step.stderr):.4f}"
    return [alpha, *diagonals, Result(int(step.result)).name]


# Learning


def average(fit: Solution, teacher: Array) -> str:
    """What averaging the runs gives."""
    mean = averaged(fit, teacher)
    return wrapped(
        f"Estimation error: {float(mean.single):.4f} ± {float(mean.stderr):.4f} of one run, "
        f"{float(mean.error):.4f} of the average of {len(fit.result)}, "
        f"{float(mean.extrapolated):.4f} extrapolated to infinitely many."
    )


def learned(order: LearningOrder, method: str) -> dict[str, Any]:
    """What one method learned, for JSON."""
    solution = order.solutions[method]
    names = labelled.index_names(solution.model, len(order.learned[method][0]))
    return {
        "alpha": order.alpha[method],
        "learned_at": order.learned[method],
        "cosine": solution.cosine,
        "error": solution.error,
        "steps": solution.steps,
        "result": [Result(int(code)).name for code in np.asarray(solution.result)],
        "order": [names[p] for p in order.order(method)],
    }


def learned_rows(order: LearningOrder, method: str) -> list[list[str]]:
    """Rows of one method: when each index was learned, in how many runs, and how well."""
    solution = order.solutions[method]
    ended = np.asarray(solution.result) != Result.NONFINITE
    times = np.asarray(order.learned[method])
    median = order.median(method)
    names = labelled.index_names(solution.model, times.shape[1])
    rows = []
    for p, (name, cosine) in enumerate(zip(names, solution.cosine.T, strict=True)):
        last = "-"
        if ended.any():
            last = f"{np.nanmean(cosine[ended]):.4f} ± {np.nanstd(cosine[ended]):.4f}"
        when = "never"
        if np.isfinite(median[p]):
            when = f"{median[p]:.4g}"
            if len(times) > 1:
                when += f" ± {_half_range(times[:, p]):.2g}"
        runs = f"{int(np.isfinite(times[:, p]).sum())}/{len(times)}"
        rows.append([method if p == 0 else "", name, when, runs, last])
    return rows


def _half_range(times: np.ndarray) -> float:
    """Half of the distance between the quartiles of those that are finite."""
    low, high = np.quantile(times[np.isfinite(times)], [0.25, 0.75])
    return float(high - low) / 2.0


# Costs


def foreseen(cost: Cost, steps: int, bandwidth: float) -> Report:
    """What a run of message passing will take."""
    memory = sum(cost.memory.values())
    step = sum(cost.seconds.values())
    rows = []
    for name in dict.fromkeys([*cost.memory, *cost.seconds]):
        size = f"{cost.memory[name] / 2**30:.3f}" if name in cost.memory else ""
        seconds = f"{cost.seconds[name]:.3g}" if name in cost.seconds else ""
        rows.append([name, size, seconds])
    rows.append(["all", f"{memory / 2**30:.3f}", f"{step:.3g}"])
    reading = cost.seconds["inputs"] / step
    text = [
        f"N = {cost.samples} samples.",
        table(["", "GiB", "s a step"], rows),
        wrapped(
            f"{steps} steps: at most about {steps * step:.3g} s, of which {reading:.0%} read the "
            "inputs; the "
            "posteriors may need finer rules near perfect recovery. This device copies "
            f"{bandwidth / 1e9:.3g} GB/s."
        ),
    ]
    data = {
        "samples": cost.samples,
        "memory": cost.memory,
        "seconds_per_step": cost.seconds,
        "steps": steps,
        "copy_bandwidth": bandwidth,
    }
    return Report(data, "\n".join(text))
