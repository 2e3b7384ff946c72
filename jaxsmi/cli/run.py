"""The command `jaxsmi run MODEL`: a run of message passing beside state evolution.

No equation lives here.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import jaxsmi as smi
from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import add_gamp, model_of, progress, setting_of
from jaxsmi.cli.kept import keep
from jaxsmi.cli.models import defaults_for
from jaxsmi.cli.report import Report, outcome, plain, run_cells, table, timed, with_error, wrapped
from jaxsmi.cli.solving import Learned, curve_of, learn, theory_key
from jaxsmi.core import labelled
from jaxsmi.core.checks import check
from jaxsmi.core.results import Solution
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench import plotting
from jaxsmi.workbench.plotting.drawing import CROSS, PAGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COMMAND"]

_RANDOM = 1e-3  # size of the start: what theory beside it starts from is chance, too


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_gamp(parser)
    parser.add_argument(
        "--samples", type=int, default=2048, help="points of the outer average of state evolution"
    )
    parser.add_argument(
        "--randomisations",
        type=int,
        default=8,
        help="parts of the points, whose spread is the error bar",
    )
    parser.add_argument(
        "--points", type=int, default=13, help="values of alpha on the curve of state evolution"
    )
    parser.add_argument("--curve-steps", type=int, default=50, help="step budget of each of them")


class _Theory(NamedTuple):
    """State evolution: its trajectory at α, its curve against α, and how long each took."""

    trajectory: Solution
    seconds: float
    curve: list[Solution]
    curve_seconds: float


def _execute(arguments: argparse.Namespace) -> Report:
    """Run message passing, and lay state evolution beside it."""
    check(arguments.points >= 2, "--points", arguments.points, "at least 2")
    model = model_of(arguments)
    learned = learn(model, arguments, _RANDOM)
    keep(_of_gamp(model, learned, arguments))
    theory = _theory(model, arguments)
    data = {
        "gamp": learned.data,
        "state_evolution": plain(theory.trajectory) | {"seconds": theory.seconds},
        "curve": [plain(point) for point in theory.curve],
    }

    def draw(figure: Figure) -> None:
        figure.set_size_inches(PAGE, 2.9)
        left, right = figure.subplots(1, 2, sharey=True)
        plotting.overlap_against_iteration(learned.solution, theory.trajectory, left)
        plotting.overlap_against_alpha(theory.curve, learned.solution, right, legend=False)
        if not all(bool(point.converged) for point in theory.curve):
            plotting.legend_above(right, 1, {"not converged": CROSS})

    def stored() -> dict[str, Solution | Sequence[Solution]]:
        return {"gamp": learned.solution, "trajectory": theory.trajectory, "curve": theory.curve}

    return Report(data, _text(model, learned, theory, arguments), draw, stored)


def _of_gamp(model: AbstractModel, learned: Learned, arguments: argparse.Namespace) -> Report:
    """What there is before theory has been computed."""
    solution = learned.solution
    names = labelled.index_names(model, model.indices)
    rows = [[name, *run_cells(solution, p)] for p, name in enumerate(names)]
    text = [
        setting_of(arguments),
        table(["", "cosine", "cosine²", "Q of GAMP"], rows),
        outcome("GAMP", solution, learned.seconds),
    ]
    return Report({"gamp": learned.data}, "\n".join(text), stored=lambda: {"gamp": solution})


def _theory(model: AbstractModel, arguments: argparse.Namespace) -> _Theory:
    """State evolution from where a run starts: a random start has cosine² of about 1/D, which is
    what Q is.
    """
    explicit = model.channel.explicit
    chance = 1.0 / model.design.entries(arguments.dimension)
    sampling = {"samples": arguments.samples, "randomisations": arguments.randomisations}
    # what chance keeps saying about a layer that is not learned yet
    random_start = {"q0": chance, "side_information": chance}
    settings: dict[str, Any] = sampling | random_start
    if explicit:  # of matrices theory is exact, and has nothing to sample
        settings = {"max_steps": arguments.max_steps}
    with timed() as seconds:
        trajectory = smi.state_evolution(
            model,
            arguments.alpha,
            key=theory_key(arguments),
            newton=False,
            progress=progress(arguments),
            **settings,
        )
    count = arguments.points
    grid = (np.arange(count) + 0.5) / count * _top(model, arguments.alpha, count)
    if not explicit:
        settings = sampling | {"max_steps": arguments.curve_steps, "tolerance": 1e-3}
    with timed() as curve_seconds:
        curve = curve_of(model, grid, arguments, **settings)
    return _Theory(trajectory, seconds[0], curve, curve_seconds[0])


def _top(model: AbstractModel, alpha: float, points: int) -> float:
    """The largest α of the curve; of matrices a little beyond perfect recovery."""
    if model.unsupported_reason("directions") is None:
        return max(1.3, alpha * points / (points - 0.5))
    recovery = float(smi.recovery_threshold(model).alpha)
    return max(1.2 * recovery if np.isfinite(recovery) else 0.0, 1.5 * alpha)


def _text(
    model: AbstractModel, learned: Learned, theory: _Theory, arguments: argparse.Namespace
) -> str:
    """Overlaps of both, and how each ended."""
    rows = [
        [name, *run_cells(learned.solution, p), with_error(theory.trajectory, p)]
        for p, name in enumerate(labelled.index_names(model, model.indices))
    ]
    curve = f"Curve against alpha: {len(theory.curve)} points, {theory.curve_seconds:.1f} s."
    unfinished = [f"{float(point.alpha):.4g}" for point in theory.curve if not point.converged]
    if unfinished:
        curve += f" Not converged (crosses) at alpha = {', '.join(unfinished)}: --curve-steps "
        curve += f"{4 * arguments.curve_steps} goes on."
    text = [
        setting_of(arguments),
        table(["", "cosine", "cosine²", "Q of GAMP", "Q of state evolution"], rows),
    ]
    if model.unsupported_reason("directions") is None:
        spread = math.sqrt(2.0 / arguments.dimension)
        text.append(f"Q of GAMP follows the norm of the teacher that was drawn, 1 ± {spread:.2g}.")
    text += [
        outcome("GAMP", learned.solution, learned.seconds),
        outcome("State evolution", theory.trajectory, theory.seconds),
        wrapped(curve),
    ]
    return "\n".join(text)


COMMAND = Command(
    "run",
    "Draw a teacher, learn it by GAMP from a random start, and lay the run over state evolution.",
    _add_flags,
    _execute,
    defaults=defaults_for,
)
