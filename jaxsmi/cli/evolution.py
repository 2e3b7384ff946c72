"""The command `jaxsmi state-evolution MODEL`: overlaps in the limit of large dimension.

No equation lives here.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import model_of, setting_of
from jaxsmi.cli.models import defaults_for
from jaxsmi.cli.report import Report, plain, table, timed, with_error, wrapped
from jaxsmi.cli.solving import curve_of
from jaxsmi.core import labelled
from jaxsmi.core.codes import Result
from jaxsmi.workbench import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument(
        "--alpha",
        type=float,
        nargs="+",
        required=True,
        help="sample complexities N/D, n/d^2 or n/(dL)",
    )
    parser.add_argument("--q0", type=float, help="start every alpha from this overlap instead")
    parser.add_argument(
        "--samples", type=int, help="points of the outer average (default: 8192; matrices: none)"
    )
    parser.add_argument(
        "--randomisations",
        type=int,
        help="parts of the points, whose spread is the error bar (default: 8; matrices: none)",
    )
    parser.add_argument(
        "--noises",
        type=float,
        nargs="+",
        help="noiseless without a channel: extrapolate from such label noises (.08 .04 .02 .01)",
    )
    parser.add_argument("--max-steps", type=int, default=300, help="step budget")
    parser.add_argument(
        "--tolerance",
        type=float,
        help="stop at this distance from the fixed point (default: 1e-4; matrices: none)",
    )


def _execute(arguments: argparse.Namespace) -> Report:
    """Solve state evolution at all alphas, and lay out a row for each."""
    model = model_of(arguments)
    words = vars(arguments)
    names = ("q0", "samples", "randomisations", "noises", "max_steps", "tolerance")
    settings = {name: words[name] for name in names if words[name] is not None}
    with timed() as seconds:
        curve = curve_of(model, sorted(set(arguments.alpha)), arguments, **settings)
    rows = []
    messages = []
    for point in curve:
        code = Result(int(point.result)).name
        overlaps = [with_error(point, p) for p in range(model.indices)]
        ended = [f"{float(point.error):.4g}", f"{int(point.steps)}", code]
        rows.append([f"{float(point.alpha):g}", *overlaps, *ended])
        messages.append(wrapped(f"{code}: {point.message}"))
    names = labelled.index_names(model, model.indices)
    text = [
        setting_of(arguments),
        table(["alpha", *names, "error", "steps", "result"], rows),
        *dict.fromkeys(messages),
        f"{seconds[0]:.1f} s.",
    ]
    data = {"curve": [plain(point) for point in curve], "seconds": seconds[0]}

    def draw(figure: Figure) -> None:
        plotting.overlap_against_alpha(curve, ax=figure.subplots())

    return Report(data, "\n".join(text), draw, lambda: curve)


COMMAND = Command(
    "state-evolution",
    "Overlaps in the limit of large dimension, at one or several alphas, each starting from the "
    "one before.",
    _add_flags,
    _execute,
    defaults=defaults_for,
)
