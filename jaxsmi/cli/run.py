"""TODO cli.run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import jaxsmi as smi
from jaxsmi.cli import report as reports
from jaxsmi.cli.flags import add_gamp, curve_of, learn, model_of, setting_of, theory_key
from jaxsmi.cli.report import Report, progress, timed
from jaxsmi.core import records
from jaxsmi.core.checks import check
from jaxsmi.workbench import plotting


def run(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Draw a teacher, learn it by GAMP from a random start, and lay the run over state evolution."""
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

    def execute(arguments: argparse.Namespace) -> Report:
        check(arguments.points >= 2, "--points", arguments.points, "at least 2")
        model = model_of(arguments)
        learned, found = learn(model, arguments)
        sampling = ("samples", "randomisations")
        settings: dict[str, Any] = {name: getattr(arguments, name) for name in sampling}
        iteration: dict[str, Any] = (
            {"max_steps": arguments.max_steps} if model.channel.explicit else {}
        )
        # A random start has cosine² of about 1/D, and the cosine² of GAMP is what state evolution
        # calls Q; side information: what chance keeps telling about a layer not learned yet
        chance = 1.0 / arguments.dimension
        start: dict[str, Any] = {"q0": chance, "side_information": chance}
        with timed() as seconds:
            theory = smi.state_evolution(
                model,
                arguments.alpha,
                key=theory_key(arguments),
                newton=False,
                progress=progress(arguments),
                **(iteration or settings | start),
            )
        top = max(1.3, arguments.alpha * arguments.points / (arguments.points - 0.5))
        if iteration:  # matrices: a little beyond perfect recovery
            end = float(smi.recovery_threshold(model).alpha)
            top = max(1.2 * end if np.isfinite(end) else 0.0, 1.5 * arguments.alpha)
        grid = (np.arange(arguments.points) + 0.5) / arguments.points * top
        with timed() as curve_seconds:
            curve = curve_of(
                model,
                grid,
                arguments,
                settings | {"max_steps": arguments.curve_steps, "tolerance": 1e-3},
            )

        rows = [
            [name, *reports.row(learned, p), reports.with_error(theory, p)]
            for p, name in enumerate(records.index_names(model, model.indices))
        ]
        unfinished = ", ".join(
            f"{float(point.alpha):.4g}" for point in curve if not point.converged
        )
        text = [
            setting_of(arguments),
            reports.table(["", "cosine", "cosine²", "Q of GAMP", "Q of state evolution"], rows),
            reports.outcome("GAMP", learned, found["seconds"]),
            reports.outcome("State evolution", theory, seconds[0]),
            f"Curve against alpha: {len(curve)} points, {curve_seconds[0]:.1f} s."
            + (f" Not converged (crosses) at alpha = {unfinished}." if unfinished else ""),
        ]
        data = {
            "gamp": found,
            "state_evolution": reports.plain(theory) | {"seconds": seconds[0]},
            "curve": [reports.plain(point) for point in curve],
        }

        def draw(figure: Any) -> None:
            figure.set_size_inches(9, 3.8)
            left, right = figure.subplots(1, 2, sharey=True)
            plotting.overlap_against_iteration(learned, theory, left)
            plotting.overlap_against_alpha(curve, learned, right, legend=False)

        return Report(
            data, "\n".join(text), draw, {"gamp": learned, "trajectory": theory, "curve": curve}
        )

    return execute
