"""The command line: `jaxsmi run | gamp | state-evolution | threshold | train | sgd | sweep | text | figure`.

A table, or with `--json` one JSON object, on stdout.

A command is one function: it adds its flags to a parser and returns what to do with them; `COMMANDS` lists them. A
model is one line of `MODELS` (cli_models.py). No equation lives here.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxsmi.cli.evolution import state_evolution
from jaxsmi.cli.figure import figure
from jaxsmi.cli.flags import settings_of
from jaxsmi.cli.gamp import gamp
from jaxsmi.cli.models import FLAGS, MODELS, OWN
from jaxsmi.cli.report import Report
from jaxsmi.cli.run import run
from jaxsmi.cli.sgd import sgd
from jaxsmi.cli.sweep import sweep
from jaxsmi.cli.text import text
from jaxsmi.cli.threshold import threshold
from jaxsmi.cli.train import train
from jaxsmi.core import records
from jaxsmi.workbench import plotting, storage

_OUTPUT: dict[str, dict[str, Any]] = {
    "out": {"type": pathlib.Path, "help": "write figure, netCDF and table to this folder"},
    "json": {"action": "store_true", "help": "print one JSON object instead of the table"},
    "quiet": {"action": "store_true", "help": "no progress bars"},
}


COMMANDS = (run, gamp, state_evolution, threshold, train, sgd, sweep, text, figure)


WITHOUT_MODEL = (sgd, sweep, text, figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Arguments: `argv`, the words after `jaxsmi` (those of the shell if left out).

    Returns: the exit code: 0, 2 for an argument out of range, 130 when interrupted. A run that did not converge is no
    error: its report says so.

    Raises SystemExit, from argparse, for `--help` and for words it cannot read.
    """
    arguments = _parser().parse_args(argv)
    own = OWN.get(getattr(arguments, "model", ""), {})
    if arguments.command in own:
        arguments = _parser(own).parse_args(argv)
    jax.config.update(
        "jax_enable_x64", True
    )  # the library leaves that to programs, and this is one
    try:
        _prepare(arguments)
        report = arguments.execute(arguments)
        files = [] if getattr(arguments, "dry_run", False) else write_row(report, arguments)
    except (ValueError, ImportError, OSError) as error:
        print(f"jaxsmi {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"jaxsmi {arguments.command}: interrupted", file=sys.stderr)
        return 130
    if arguments.json:
        data = {
            "command": arguments.command,
            "settings": settings_of(arguments),
            **report.data,
            "files": files,
        }
        print(json.dumps(records.parameters(data, largest=np.inf), allow_nan=False))
    else:
        print("\n".join([report.text, *(f"Written: {file}" for file in files)]))
    return 0


def _parser(defaults: dict[str, dict[str, Any]] | None = None) -> argparse.ArgumentParser:
    """The command line; `defaults` of a command that are others for the model at hand."""
    parser = argparse.ArgumentParser(
        prog="jaxsmi", description="Solvable models of learning with attention."
    )
    parser.add_argument("--version", action="version", version=f"jaxsmi {records.version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.replace("_", "-")
        child = commands.add_parser(
            name,
            usage=f"jaxsmi {name}{'' if command in WITHOUT_MODEL else ' MODEL'} [flags]",
            help=(command.__doc__ or "").splitlines()[0],
            description=command.__doc__,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        if command not in WITHOUT_MODEL:
            child.add_argument("model", metavar="MODEL", choices=MODELS, help=" | ".join(MODELS))
            own = child.add_argument_group("the model's own flags")
            for flag, settings in FLAGS.items():
                owners = [
                    f"{model}: {flags[flag]}"
                    for model, (_, flags) in MODELS.items()
                    if flag in flags
                ]
                shown: dict[str, Any] = {"help": f"{settings['help']} ({', '.join(owners)})"}
                shown |= {} if "action" in settings else {"metavar": flag[0].upper()}
                own.add_argument(
                    f"--{flag.replace('_', '-')}", default=argparse.SUPPRESS, **(settings | shown)
                )
        child.set_defaults(execute=command(child), out=None, json=False, quiet=False)
        child.add_argument("--seed", type=int, default=0, help="seed of all random numbers")
        # suppressed, so that the help does not show an empty default for them
        for flag, settings in _OUTPUT.items():
            child.add_argument(f"--{flag}", default=argparse.SUPPRESS, **settings)
        child.set_defaults(**(defaults or {}).get(name, {}))
    return parser


def _prepare(arguments: argparse.Namespace) -> None:
    """Find out before the work, not after it, that its results cannot be written."""
    if arguments.out and not getattr(arguments, "dry_run", False):
        plotting.require()
        records.require()
        arguments.out.mkdir(parents=True, exist_ok=True)


def write_row(report: Report, arguments: argparse.Namespace) -> list[str]:
    """Figure, netCDF and table, named after the command; returns their paths."""
    if not arguments.out:
        return []
    from matplotlib.figure import Figure  # not pyplot: no window, whatever the machine

    figure = report.figure or Figure(figsize=(5, 3.6), layout="constrained")
    report.draw(figure)
    made = {"command": arguments.command, "settings": settings_of(arguments)}
    paths = [
        arguments.out / f"{report.stem or arguments.command}{ending}"
        for ending in (".png", ".nc", ".txt")
    ]
    plotting.savefig(figure, paths[0], **made)
    storage.save(report.solutions, paths[1], **made)
    paths[2].write_text(report.text + "\n", encoding="utf-8")
    return [str(path) for path in paths]
