"""How a command shows what it found: tables for the reader, plain dicts for JSON, time and progress. No equation lives here."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxsmi.core import records
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Solution, Threshold
from jaxsmi.descent import averaging
from jaxsmi.descent import order as learning
from jaxsmi.workbench import costs


@dataclasses.dataclass
class Report:
    """What a command found: `data` for JSON, `text` for the reader; for --out what draws into a figure (or a `figure` that is
    drawn already), the solutions, and a `stem` for the names of the files (else the command)."""

    data: dict[str, Any]
    text: str
    draw: Callable[[Any], None]
    solutions: Any
    figure: Any = None
    stem: str = ""


def progress(arguments: argparse.Namespace) -> bool:
    """Whether to show progress bars: at a terminal, unless told to be quiet."""
    return sys.stderr.isatty() and not arguments.quiet


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """A list whose one entry is, after the block, its duration in seconds."""
    begin, seconds = time.perf_counter(), [0.0]
    yield seconds
    seconds[0] = time.perf_counter() - begin


def foreseen(cost: costs.Cost, steps: int, bandwidth: float) -> Report:
    """What a run of message passing will take."""
    memory, step = sum(cost.memory.values()), sum(cost.seconds.values())
    cell = lambda values, name, scale, form: (
        f"{values[name] / scale:{form}}" if name in values else ""
    )
    names = dict.fromkeys([*cost.memory, *cost.seconds])
    rows = [
        [name, cell(cost.memory, name, 2**30, ".3f"), cell(cost.seconds, name, 1, ".3g")]
        for name in names
    ]
    lines = [
        f"N = {cost.samples} samples.",
        table(["", "GiB", "s a step"], [*rows, ["all", f"{memory / 2**30:.3f}", f"{step:.3g}"]]),
        f"{steps} steps: at most about {steps * step:.3g} s, of which {cost.seconds['inputs'] / step:.0%} read the inputs; the "
        f"posteriors may need finer rules near perfect recovery. This device copies {bandwidth / 1e9:.3g} GB/s.",
    ]
    data = {"samples": cost.samples, "memory": cost.memory, "seconds_per_step": cost.seconds, "steps": steps,
            "copy_bandwidth": bandwidth}  # fmt: skip
    return Report(data, "\n".join([lines[0], lines[1], wrapped(lines[2])]), lambda figure: None, {})


def name(step: Threshold) -> str:
    """The result code of a threshold, by name."""
    return Result(int(step.result)).name


def stair(step: Threshold) -> list[str]:
    """Cells of a step of a staircase: α with its error, what is learned, the overlap there, the code."""
    low, high = (
        " ".join(f"{x:.3g}" for x in np.diagonal(np.asarray(M)))
        for M in (step.subspace, step.overlap)
    )
    return [f"{float(step.alpha):.4f} ± {float(step.stderr):.4f}", low, high, name(step)]


def averaged(fit: Solution, teacher: Any) -> str:
    """What averaging the runs gives."""
    mean = averaging.averaged(fit, teacher)
    return wrapped(
        f"Estimation error: {float(mean.single):.4f} ± {float(mean.stderr):.4f} of one run, {float(mean.error):.4f} of the "
        f"average of {len(fit.result)}, {float(mean.extrapolated):.4f} extrapolated to infinitely many."
    )


def learned(order: learning.LearningOrder, name: str) -> dict[str, Any]:
    """What one method found, for JSON."""
    solution, names = (
        order.solutions[name],
        records.index_names(order.solutions[name].model, len(order.learned[name][0])),
    )
    return {
        "alpha": order.alpha[name],
        "learned_at": order.learned[name],
        "cosine": solution.cosine,
        "error": solution.error,
        "steps": solution.steps,
        "result": [Result(int(code)).name for code in np.asarray(solution.result)],
        "order": [names[p] for p in order.order(name)],
    }


def learned_rows(order: learning.LearningOrder, name: str) -> list[list[str]]:
    """Rows of one method: when each index was learned, in how many runs, and how well at the end."""
    finite = np.asarray(order.solutions[name].result) != Result.NONFINITE
    solution, times, when = (
        order.solutions[name],
        np.asarray(order.learned[name]),
        order.median(name),
    )
    return [
        [
            name if p == 0 else "",
            index,
            f"{when[p]:.4g}" if np.isfinite(when[p]) else "never",
            f"{int(np.isfinite(times[:, p]).sum())}/{len(times)}",
            f"{np.nanmean(cosine[finite]):.4f} ± {np.nanstd(cosine[finite]):.4f}"
            if finite.any()
            else "-",
        ]
        for p, (index, cosine) in enumerate(
            zip(records.index_names(solution.model, times.shape[1]), solution.cosine.T, strict=True)
        )
    ]


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
    return {name: getattr(solution, name) for name in names} | {"result": code(solution)}


def error_name(model: Any) -> str:
    """What the `error` of a solution of this model is."""
    return model.error_name


def code(solution: Solution) -> str:
    """The result code of a solution, by name."""
    return Result(int(solution.result)).name


def outcome(name: str, solution: Solution, seconds: float) -> str:
    """One sentence: steps, time and how it ended."""
    return wrapped(f"{name}: {int(solution.steps)} steps, {seconds:.1f} s. {solution.message}")


def wrapped(text: str) -> str:
    """Text in lines of at most 100 characters, hanging indent."""
    return textwrap.fill(text, 100, subsequent_indent="  ")


def row(solution: Solution, p: int) -> list[str]:
    """Cells of an index of a GAMP run: cosine, its square, overlap."""
    cosine = solution.cosine[p]
    return [f"{cosine:.4f}", f"{cosine**2:.4f}", f"{float(solution.overlap[p, p]):.4f}"]


def with_error(solution: Solution, p: int) -> str:
    """The overlap of an index with its standard error."""
    return f"{float(solution.overlap[p, p]):.4f} ± {float(solution.stderr[p, p]):.4f}"


def short(value: Any) -> str:
    """A setting as one writes it."""
    if isinstance(value, list):
        return " ".join(map(short, value))
    return str(value) if isinstance(value, (str, bool, pathlib.Path)) else f"{value:g}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns of text, aligned to the right, between empty lines."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True))
        for row in [header, *rows]
    ]
    return "\n".join(["", *(line.rstrip() for line in lines), ""])
