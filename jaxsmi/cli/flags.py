"""Flags that commands share, and what they say: the model, its settings, the seed.

No equation lives here.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

from jaxsmi.cli.models import FLAGS, MODELS
from jaxsmi.cli.report import short, wrapped
from jaxsmi.models.base import AbstractModel

__all__ = [
    "Formatter",
    "add_gamp",
    "add_model",
    "add_output",
    "flags_of",
    "model_of",
    "progress",
    "setting_of",
    "settings_of",
]

_OUTPUT = ("out", "json", "quiet", "overwrite")
_ASIDE = {
    "command",
    "model",
    "dry_run",
    *_OUTPUT,
    *FLAGS,
}  # `settings_of` adds model and flags itself


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help with defaults, but for flags that have none."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        absent = action.default is None or isinstance(action.default, bool)
        return action.help if absent else super()._get_help_string(action)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Flags of all commands: the seed, and what is written and printed."""
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers")
    parser.add_argument(
        "--out", type=pathlib.Path, help="write figure, netCDF and table to this folder"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the table"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="write over the files of an earlier run in --out"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def add_model(parser: argparse.ArgumentParser, shown: str | None = None) -> None:
    """The model and the flags of all models; None for flags that are not given.

    The help lists those of the model `shown`; of all models where it is None.
    """
    parser.add_argument("model", metavar="MODEL", choices=MODELS, help=" | ".join(MODELS))
    group = parser.add_argument_group("the model's own flags")
    for name, flag in FLAGS.items():
        defaults = [
            f"{model}: {entry.flags[name]}"
            for model, entry in MODELS.items()
            if name in entry.flags
        ]
        help = f"{flag.help} ({', '.join(defaults)})"
        if shown is not None:
            own = MODELS[shown].flags
            help = argparse.SUPPRESS
            if name in own:
                help = f"{flag.help} (default: {own[name]})"
        flag.add(group, name, help)


def add_gamp(parser: argparse.ArgumentParser) -> None:
    """Flags of message passing and of its data."""
    parser.add_argument(
        "--alpha", type=float, default=1.2, help="sample complexity N/D (matrices: n/d^2 or n/(dL))"
    )
    parser.add_argument("--dimension", type=int, default=1000, help="dimension D of a token")
    parser.add_argument("--max-steps", type=int, default=300, help="step budget of GAMP")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        help="stop GAMP at this change of its estimate, relative to it",
    )
    parser.add_argument(
        "--damping",
        type=float,
        help="damping of GAMP (default: as much as it needs)",
    )


def progress(arguments: argparse.Namespace) -> bool:
    """Whether to show progress bars: at a terminal, unless told to be quiet."""
    return sys.stderr.isatty() and not arguments.quiet


def model_of(arguments: argparse.Namespace) -> AbstractModel:
    """The model that the words describe."""
    return MODELS[arguments.model].make(**flags_of(arguments))


def flags_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The model's own flags, with defaults; a ValueError for a flag of another model."""
    flags = dict(MODELS[arguments.model].flags)
    words = vars(arguments)
    for name in FLAGS:
        value = words[name]
        if value is None:
            continue
        if name not in flags:
            allowed = ", ".join(f"--{name}" for name in flags) or "none"
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} is no flag of {arguments.model}; its own: {allowed}.")
        flags[name] = value[0] if isinstance(value, list) and len(value) == 1 else value
    return flags


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that decides the numbers.

    Flags that were not given and have no default are left out.
    """
    words = vars(arguments)
    rest = {
        name: value for name, value in words.items() if name not in _ASIDE and value is not None
    }
    if "model" not in words:
        return rest
    return {"model": arguments.model, **flags_of(arguments), **rest}


def setting_of(arguments: argparse.Namespace) -> str:
    """The model and all settings, for the reader."""
    settings = settings_of(arguments)
    model = settings.pop("model")
    return wrapped(f"{model}: {', '.join(f'{name} {short(it)}' for name, it in settings.items())}")
