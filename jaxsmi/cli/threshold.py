"""The command `jaxsmi threshold MODEL`: critical sample complexities. No equation lives here."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tqdm import tqdm

import jaxsmi as smi
from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import flags_of, progress, setting_of
from jaxsmi.cli.kept import keep
from jaxsmi.cli.models import FLAGS, MODELS, defaults_for
from jaxsmi.cli.report import Report, table, threshold_cells, timed, wrapped
from jaxsmi.cli.solving import theory_key
from jaxsmi.core.codes import Result
from jaxsmi.core.provenance import fields_of
from jaxsmi.core.results import Threshold
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench import plotting, storage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxsmi.workbench.storage import Storable

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("--vary", metavar="FLAG", help="a flag of the model, e.g. skip")
    parser.add_argument("--values", type=float, nargs="+", help="values of that flag")
    parser.add_argument("--alpha-max", type=float, default=10.0, help="look no further than this")
    parser.add_argument(
        "--first", action="store_true", help="weak recovery alone, not the whole staircase"
    )
    parser.add_argument(
        "--noises",
        type=float,
        nargs="+",
        help="with --first, noiseless without a channel: extrapolate from these label noises",
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


class _Axis(NamedTuple):
    """What is varied: a flag and its values, ascending; or nothing, at one value None."""

    flag: str | None
    values: list[float | None]

    @property
    def whole(self) -> bool:
        """Whether the values are whole numbers."""
        return self.flag is not None and FLAGS[self.flag].whole

    def first(self, count: int) -> _Axis:
        """Its first values."""
        return _Axis(self.flag, self.values[:count])

    def flags(self, value: float | None) -> dict[str, float | int]:
        """The flag at a value, for the model."""
        if self.flag is None or value is None:
            return {}
        return {self.flag: int(value) if self.whole else value}

    @property
    def numbers(self) -> list[float] | None:
        """The values as numbers; None where nothing is varied."""
        return None if self.flag is None else [x for x in self.values if x is not None]


def _axis(arguments: argparse.Namespace, flags: dict[str, Any]) -> _Axis:
    """What is varied, checked."""
    if (arguments.vary is None) != (arguments.values is None):
        raise ValueError("--vary and --values go together: got one of the two.")
    if arguments.vary is None:
        return _Axis(None, [None])
    flag = arguments.vary.replace("-", "_")
    values = arguments.values
    if flag not in flags:
        allowed = f"a flag of {arguments.model}: {', '.join(flags) or 'none'}"
        raise ValueError(f"--vary: got {flag!r}; allowed: {allowed}.")
    if not FLAGS[flag].varies:
        raise ValueError(f"--vary: got {flag!r}; allowed: a flag of one number.")
    if FLAGS[flag].whole and any(value != int(value) for value in values):
        raise ValueError(f"--values: got {values}; allowed: whole numbers, for --vary {flag}.")
    return _Axis(flag, sorted(values))


def _execute(arguments: argparse.Namespace) -> Report:
    """Thresholds at each value of what is varied."""
    flags = flags_of(arguments)
    axis = _axis(arguments, flags)
    stairs: list[list[Threshold]] = []
    bar = tqdm(axis.values, desc=axis.flag, disable=not progress(arguments))
    with timed() as seconds:
        for value in bar:
            model = MODELS[arguments.model].make(**(flags | axis.flags(value)))
            previous = stairs[-1] if stairs and not axis.whole else None
            stairs.append(_thresholds(model, arguments, previous))
            keep(_report(axis, list(stairs), arguments))
    report = _report(axis, stairs, arguments)
    report.data["seconds"] = seconds[0]
    report.text += f"\n{seconds[0]:.1f} s."
    return report


def _report(axis: _Axis, stairs: list[list[Threshold]], arguments: argparse.Namespace) -> Report:
    """The values that are finished."""
    axis = axis.first(len(stairs))
    name = axis.flag or arguments.model

    def draw(figure: Figure) -> None:
        if any(stairs):
            ax = figure.subplots()
            plotting.thresholds_against(stairs, axis.numbers, ax, parameter=name)

    def stored() -> Storable:
        if not any(stairs):
            return {}
        return storage.thresholds(stairs, axis.flag or "model", axis.numbers)

    return Report(_data(axis, stairs), _text(axis, stairs, arguments), draw, stored)


def _thresholds(
    model: AbstractModel, arguments: argparse.Namespace, previous: list[Threshold] | None
) -> list[Threshold]:
    """Thresholds of one model in the order of learning, up to --alpha-max."""
    noises = arguments.noises
    if noises is None and model.unsupported_reason("directions") is not None:
        return [smi.recovery_threshold(model)]
    if noises is not None and not arguments.first:
        raise ValueError(f"--noises: got {noises} without --first; allowed: with it.")
    settings = {"samples": arguments.samples, "key": theory_key(arguments)}
    if arguments.first:
        settings |= {"randomisations": arguments.replicas, "noises": noises}
        first = smi.weak_recovery(model, **settings)
        beyond = arguments.alpha_max < first.alpha < np.inf
        return [] if beyond else [first]
    return smi.staircase(
        model,
        replicas=arguments.replicas,
        alpha_max=arguments.alpha_max,
        guess=previous,
        progress=progress(arguments),
        **settings,
    )


def _text(axis: _Axis, stairs: list[list[Threshold]], arguments: argparse.Namespace) -> str:
    """A row for each threshold, then for each value without one; the codes that were met."""
    label = lambda value: [] if value is None else [f"{value:g}"]
    pairs = list(zip(axis.values, stairs, strict=True))
    rows = [
        [*label(value), f"{k + 1}", *threshold_cells(step)]
        for value, steps in pairs
        for k, step in enumerate(steps)
    ]
    text = f"Nothing is learned from labels alone up to alpha = {arguments.alpha_max:g}."
    if rows:
        rows += [[*label(value), *"-----"] for value, steps in pairs if not steps]
        varied = [] if axis.flag is None else [axis.flag]
        header = [*varied, "step", "alpha", "learned there", "overlap there", "result"]
        text = table(header, rows)
    codes = sorted({Result(int(step.result)) for steps in stairs for step in steps})
    remedies = [wrapped(f"{code.name}: {code.remedy}") for code in codes]
    return "\n".join([setting_of(arguments), text, *remedies])


def _data(axis: _Axis, stairs: list[list[Threshold]]) -> dict[str, Any]:
    """For each value its thresholds."""
    names = ("alpha", "stderr", "replicas", "subspace", "overlap", "message")
    thresholds = []
    for value, steps in zip(axis.values, stairs, strict=True):
        entries = []
        for step in steps:
            entry = fields_of(step, names)
            entry["never"] = bool(np.isinf(step.alpha))
            entry["result"] = Result(int(step.result)).name
            entries.append(entry)
        thresholds.append({"value": value, "steps": entries})
    return {"thresholds": thresholds}


COMMAND = Command(
    "threshold",
    "Thresholds in the order of learning, for one model or against one of its parameters.",
    _add_flags,
    _execute,
    defaults=defaults_for,
)
