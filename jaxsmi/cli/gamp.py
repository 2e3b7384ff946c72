"""TODO cli.gamp."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from jaxsmi.cli import report as reports
from jaxsmi.cli.flags import add_gamp, learn, model_of, setting_of, storage_of
from jaxsmi.cli.report import Report
from jaxsmi.core import records
from jaxsmi.workbench import costs, plotting


def gamp(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Draw a teacher and a data set, and learn it by generalised approximate message passing."""
    add_gamp(parser)
    parser.add_argument(
        "--dtype",
        choices=("float64", "float32", "bfloat16"),
        default="float64",
        help="of the inputs",
    )
    parser.add_argument(
        "--regenerate",
        action="store_true",
        help="do not store the inputs: draw them again whenever they are read (float32)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what memory and time it would take; do nothing"
    )

    def execute(arguments: argparse.Namespace) -> Report:
        model = model_of(arguments)
        if arguments.dry_run:
            cost = costs.gamp_cost(
                model, dimension=arguments.dimension, alpha=arguments.alpha, **storage_of(arguments)
            )
            return reports.foreseen(cost, arguments.max_steps, costs.copy_bandwidth())
        learned, found = learn(model, arguments)
        rows = [
            [name, *reports.row(learned, p)]
            for p, name in enumerate(records.index_names(model, model.indices))
        ]
        text = [
            setting_of(arguments),
            reports.table(["", "cosine", "cosine²", "Q"], rows),
            f"{reports.error_name(model)}: {float(learned.error):.4g}.",
            reports.outcome("GAMP", learned, found["seconds"]),
        ]

        def draw(figure: Any) -> None:
            plotting.overlap_against_iteration(learned, ax=figure.subplots())

        return Report(found, "\n".join(text), draw, learned)

    return execute
