"""TODO cli.threshold."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from tqdm import tqdm

import jaxsmi as smi
from jaxsmi.cli import report as reports
from jaxsmi.cli.flags import flags_of, setting_of, theory_key
from jaxsmi.cli.models import FLAGS, MODELS
from jaxsmi.cli.report import Report, progress, timed
from jaxsmi.core.checks import Ability
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Threshold
from jaxsmi.workbench import plotting, storage


def threshold(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Thresholds in the order of learning, for one model or against one of its parameters."""
    parser.add_argument(
        "--vary", default=argparse.SUPPRESS, metavar="FLAG", help="a flag of the model, e.g. skip"
    )
    parser.add_argument(
        "--values", type=float, nargs="+", default=argparse.SUPPRESS, help="values of that flag"
    )
    parser.add_argument("--alpha-max", type=float, default=10.0, help="look no further than this")
    parser.add_argument(
        "--first", action="store_true", help="weak recovery alone, not the whole staircase"
    )
    parser.add_argument(
        "--samples", type=int, default=8192, help="samples in all, for each threshold"
    )
    parser.add_argument(
        "--replicas",
        type=int,
        default=16,
        help="parts of the samples, whose spread is the error bar",
    )

    def execute(arguments: argparse.Namespace) -> Report:
        vary, values = (
            getattr(arguments, "vary", "").replace("-", "_") or None,
            getattr(arguments, "values", None),
        )
        if (vary is None) != (values is None):
            raise ValueError("--vary and --values go together: got one of the two.")
        flags = flags_of(arguments)
        if vary is not None and vary not in flags:
            raise ValueError(
                f"--vary: got {vary!r}; allowed: a flag of {arguments.model}: {', '.join(flags) or 'none'}."
            )
        integral = vary is not None and FLAGS[vary].get("type") is int
        if vary in ("ranks", "output", "symmetric"):
            raise ValueError(f"--vary: got {vary!r}; allowed: a flag of one number.")
        if integral and any(value != int(value) for value in values or []):
            raise ValueError(f"--values: got {values}; allowed: whole numbers, for --vary {vary}.")
        make = MODELS[arguments.model][0]
        settings = {"samples": arguments.samples, "key": theory_key(arguments)}
        stairs: list[list[Threshold]] = []
        model: Any = None
        with timed() as seconds:
            for value in tqdm(
                sorted(values) if values else [None], desc=vary, disable=not progress(arguments)
            ):
                own = (
                    {}
                    if vary is None or value is None
                    else {vary: int(value) if integral else value}
                )
                model = make(**(flags | own))
                if model.refusal(Ability.DIRECTIONS) is not None:
                    stairs.append([smi.recovery_threshold(model)])
                elif arguments.first:
                    first = smi.weak_recovery(model, randomisations=arguments.replicas, **settings)
                    stairs.append(
                        [first]
                        if first.alpha <= arguments.alpha_max or np.isinf(first.alpha)
                        else []
                    )
                else:
                    near = stairs[-1] if stairs and not integral else None
                    found = smi.staircase(
                        model,
                        replicas=arguments.replicas,
                        alpha_max=arguments.alpha_max,
                        guess=near,
                        **settings,
                    )
                    stairs.append(found)
        shown = sorted(values) if values else [None]
        rows = [
            [*([] if value is None else [f"{value:g}"]), f"{k + 1}", *reports.stair(step)]
            for value, steps in zip(shown, stairs, strict=True)
            for k, step in enumerate(steps)
        ]
        absent = [
            value
            for value, steps in zip(shown, stairs, strict=True)
            if not steps and value is not None
        ]
        rows += [[f"{value:g}", *"-----"] for value in absent] if rows else []
        header = [
            *([] if vary is None else [vary]),
            "step",
            "alpha",
            "learned there",
            "overlap there",
            "result",
        ]
        nothing = (
            []
            if rows
            else [f"Nothing is learned from labels alone up to alpha = {arguments.alpha_max:g}."]
        )
        met = {Result(int(step.result)) for steps in stairs for step in steps}
        text = [
            setting_of(arguments),
            *([reports.table(header, rows)] if rows else nothing),
            *(reports.wrapped(f"{code.name}: {code.remedy}") for code in sorted(met)),
            f"{seconds[0]:.1f} s.",
        ]
        names = ("alpha", "stderr", "replicas", "subspace", "overlap", "message")
        data = {
            "thresholds": [
                {
                    "value": value,
                    "steps": [
                        {n: getattr(t, n) for n in names}
                        | {"never": bool(np.isinf(t.alpha)), "result": reports.name(t)}
                        for t in steps
                    ],
                }
                for value, steps in zip(shown, stairs, strict=True)
            ],
            "seconds": seconds[0],
        }

        def draw(figure: Any) -> None:
            plotting.thresholds_against(
                stairs, values and shown, figure.subplots(), parameter=vary or arguments.model
            )

        kept = (
            storage.thresholds(stairs, vary or "model", values and shown)
            if arguments.out and rows
            else {}
        )
        return Report(data, "\n".join(text), draw if rows else lambda figure: None, kept)

    return execute
