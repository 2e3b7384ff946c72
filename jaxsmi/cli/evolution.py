"""TODO cli.evolution."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from jaxsmi.cli import report as reports
from jaxsmi.cli.flags import curve_of, model_of, setting_of
from jaxsmi.cli.report import Report, timed
from jaxsmi.core import records
from jaxsmi.workbench import plotting


def state_evolution(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Overlaps in the limit of large dimension, at one or several alphas, each starting from the one before."""
    parser.add_argument(
        "--alpha",
        type=float,
        nargs="+",
        required=True,
        help="sample complexities N/D, n/d^2 or n/(dL)",
    )
    parser.add_argument(
        "--q0",
        type=float,
        default=argparse.SUPPRESS,
        help="start every alpha from this overlap instead",
    )
    parser.add_argument("--samples", type=int, default=8192, help="points of the outer average")
    parser.add_argument(
        "--randomisations",
        type=int,
        default=8,
        help="parts of the points, whose spread is the error bar",
    )
    parser.add_argument("--max-steps", type=int, default=300, help="step budget")
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="stop at this distance from the fixed point"
    )

    def execute(arguments: argparse.Namespace) -> Report:
        model = model_of(arguments)
        settings = {
            name: getattr(arguments, name)
            for name in ("samples", "randomisations", "max_steps", "tolerance")
        }
        with timed() as seconds:
            curve = curve_of(
                model,
                sorted(set(arguments.alpha)),
                arguments,
                settings,
                getattr(arguments, "q0", None),
            )
        rows = [
            [
                f"{float(point.alpha):g}",
                *(reports.with_error(point, p) for p in range(model.indices)),
                f"{float(point.error):.4g}",
                f"{int(point.steps)}",
                reports.code(point),
            ]
            for point in curve
        ]
        text = [
            setting_of(arguments),
            reports.table(
                ["alpha", *records.index_names(model, model.indices), "error", "steps", "result"],
                rows,
            ),
            *dict.fromkeys(
                reports.wrapped(f"{reports.code(point)}: {point.message}") for point in curve
            ),
            f"{seconds[0]:.1f} s.",
        ]
        data = {"curve": [reports.plain(point) for point in curve], "seconds": seconds[0]}

        def draw(figure: Any) -> None:
            plotting.overlap_against_alpha(curve, ax=figure.subplots())

        return Report(data, "\n".join(text), draw, curve)

    return execute
