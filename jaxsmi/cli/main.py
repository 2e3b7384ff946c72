"""The command line: `jaxsmi run | gamp | state-evolution | risk | threshold | train |
universality | sgd | sweep | text | figure`.

A table, or with `--json` one JSON object, on stdout. A command is one file of this folder, with
a `COMMAND`; it returns a `Report`, which this file alone prints and writes, and from which the
exit status comes. No equation lives here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import Formatter, add_model, add_output, settings_of
from jaxsmi.cli.report import Report
from jaxsmi.core import labelled
from jaxsmi.core.cache import keep_programs
from jaxsmi.core.parts import declared
from jaxsmi.core.provenance import parameters, version
from jaxsmi.workbench import plotting, storage

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Command] = {
    command.name: command for command in declared("jaxsmi.cli", "COMMAND", Command)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The words after `jaxsmi`. Default None: those of the shell.

    Returns:
        The exit status: 0, 1 where a part of the work failed (the report says which), 2 for an
        argument out of range, 130 when interrupted. A run that did not converge is no error: its
        report says so.

    Raises:
        SystemExit: From argparse, for `--help` and for words it cannot read.
    """
    arguments = parsed(argv)
    # the library leaves the precision, and a cache, to programs, and this is one
    keep_programs()
    jax.config.update("jax_enable_x64", True)
    name = arguments.command
    try:
        _prepare(arguments)
        report = COMMANDS[name].execute(arguments)
        files = _write(report, arguments)
    except (ValueError, ImportError, OSError) as error:
        print(f"jaxsmi {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"jaxsmi {name}: interrupted", file=sys.stderr)
        return 130
    if arguments.json:
        head = {"command": name, "settings": settings_of(arguments)}
        data = parameters({**head, **report.data, "files": files}, largest=np.inf)
        print(json.dumps(data, allow_nan=False))
    else:
        print("\n".join([report.text, *(f"Written: {file}" for file in files)]))
    if report.problem:
        print(f"jaxsmi {name}: {report.problem}", file=sys.stderr)
    return 1 if report.problem else 0


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The words, read a second time where they ask for other defaults: those of a model, or of a
    task.
    """
    arguments = parser_of().parse_args(argv)
    defaults = COMMANDS[arguments.command].defaults(arguments)
    if defaults:
        arguments = parser_of({arguments.command: defaults}).parse_args(argv)
    return arguments


def parser_of(defaults: Mapping[str, Mapping[str, Any]] | None = None) -> argparse.ArgumentParser:
    """The command line; `defaults` of a command that replace its usual ones."""
    parser = argparse.ArgumentParser(
        prog="jaxsmi", description="Solvable models of learning with attention."
    )
    parser.add_argument("--version", action="version", version=f"jaxsmi {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        child = commands.add_parser(
            name,
            usage=command.usage,
            help=command.summary,
            description=command.description,
            formatter_class=Formatter,
        )
        if command.takes_model:
            add_model(child)
        child.set_defaults(dry_run=False)
        command.add_flags(child)
        add_output(child)
        child.set_defaults(**(defaults or {}).get(name, {}))
    return parser


def _prepare(arguments: argparse.Namespace) -> None:
    """Find out before the work, not after it, that its results cannot be written."""
    if arguments.out and not arguments.dry_run:
        plotting.import_pyplot()
        labelled.import_xarray()
        arguments.out.mkdir(parents=True, exist_ok=True)


def _write(report: Report, arguments: argparse.Namespace) -> list[str]:
    """Figure, netCDF and table, named after the command; returns their paths."""
    if not arguments.out or arguments.dry_run:
        return []
    from matplotlib.figure import Figure  # not pyplot: no window, whatever the machine

    drawing = report.figure or Figure(figsize=(5, 3.6), layout="constrained")
    report.draw(drawing)
    made = {"command": arguments.command, "settings": settings_of(arguments)}
    stem = report.stem or arguments.command
    picture, arrays, words = (arguments.out / f"{stem}{end}" for end in (".png", ".nc", ".txt"))
    plotting.savefig(drawing, picture, **made)
    storage.save(report.stored(), arrays, **made)
    words.write_text(report.text + "\n", encoding="utf-8")
    return [str(path) for path in (picture, arrays, words)]
