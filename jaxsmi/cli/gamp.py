"""The command `jaxsmi gamp MODEL`: a run of message passing, or what it would take.

No equation lives here.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import add_gamp, model_of, setting_of
from jaxsmi.cli.models import defaults_for
from jaxsmi.cli.report import Report, foreseen, outcome, run_cells, table
from jaxsmi.cli.solving import learn
from jaxsmi.core import labelled
from jaxsmi.design.blocks import LAWS
from jaxsmi.workbench import costs, plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COMMAND"]

_STARTS = ("spectral", "informed")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_gamp(parser)
    parser.add_argument(
        "--init",
        type=_start,
        metavar="START",
        help="where GAMP starts: spectral, informed (near the teacher), or the size of a random "
        "start (default: spectral where labels do not change with the sign of the fields, else "
        "0.001)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float64", "float32", "bfloat16"),
        default="float64",
        help="of the inputs",
    )
    parser.add_argument(
        "--inputs",
        choices=tuple(LAWS),
        default="gaussian",
        help="law of their entries (all of them beside theory: jaxsmi universality)",
    )
    parser.add_argument(
        "--regenerate",
        action="store_true",
        help="do not store the inputs: draw them again whenever they are read (float32)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what memory and time it would take; do nothing"
    )


def _start(word: str) -> str | float:
    """A start by its name, or the size of a random one."""
    if word in _STARTS:
        return word
    try:
        size = float(word)
    except ValueError:
        size = math.nan
    if not 0.0 < size < math.inf:
        allowed = f"{', '.join(_STARTS)} or a number > 0"
        raise argparse.ArgumentTypeError(f"got {word}; allowed: {allowed}.")
    return size


def _execute(arguments: argparse.Namespace) -> Report:
    """Run message passing, or say what the run would take."""
    model = model_of(arguments)
    storage: dict[str, Any] = {"dtype": arguments.dtype}
    if arguments.regenerate:
        storage = {"store": False}
    if arguments.dry_run:
        cost = costs.gamp_cost(
            model, dimension=arguments.dimension, alpha=arguments.alpha, **storage
        )
        return foreseen(cost, arguments.max_steps, costs.copy_bandwidth())
    learned = learn(model, arguments, arguments.init, inputs=arguments.inputs, **storage)
    solution = learned.solution
    rows = [
        [name, *run_cells(solution, p)]
        for p, name in enumerate(labelled.index_names(model, model.indices))
    ]
    text = [
        setting_of(arguments),
        table(["", "cosine", "cosine²", "Q"], rows),
        f"{model.metric.error_name}: {float(solution.error):.4g}.",
        outcome("GAMP", solution, learned.seconds),
    ]

    def draw(figure: Figure) -> None:
        plotting.overlap_against_iteration(solution, ax=figure.subplots())

    return Report(learned.data, "\n".join(text), draw, lambda: solution)


COMMAND = Command(
    "gamp",
    "Draw a teacher and a data set, and learn it by generalised approximate message passing.",
    _add_flags,
    _execute,
    defaults=defaults_for,
)
