"""The command line: `jaxsmi run | gamp | state-evolution | risk | threshold | train |
sgd | sweep`.

A table, or with `--json` one JSON object, on stdout. A command is one file of this folder, with
a `COMMAND`; it returns a `Report`, which this file alone prints and writes, and from which the
exit status comes. No equation lives here.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from jaxsmi.cli import interrupts, kept
from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import Formatter, add_model, add_output, settings_of
from jaxsmi.cli.models import MODELS
from jaxsmi.cli.report import Report
from jaxsmi.core import labelled
from jaxsmi.core.checks import check
from jaxsmi.core.driver import watching
from jaxsmi.core.files import discard, write_text
from jaxsmi.core.parts import declared
from jaxsmi.core.provenance import parameters, version
from jaxsmi.core.setup import setup, user_cache
from jaxsmi.core.words import nearest
from jaxsmi.workbench import plotting, storage

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Command] = {
    command.name: command for command in declared("jaxsmi.cli", "COMMAND", Command)
}

_STATUSES = """
exit status: 0; 1 where a part of the work failed (the report says which); 2 for a wrong argument
or a missing package; 130 when interrupted, after what was there is saved; 141 where the reader of
the output has gone. A run that did not converge is no error: its report says so.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The words after `jaxsmi`. Default None: those of the shell.

    Returns:
        The exit status, as `--help` lists them.

    Raises:
        SystemExit: From argparse, for `--help` and for words it cannot read.
        BrokenPipeError: Nobody reads the output any more.
    """
    arguments = parsed(argv)
    # the library leaves the precision, and a cache, to programs, and this is one
    setup(cache=user_cache())
    name = arguments.command
    kept.forget()
    interrupts.on_interrupt(functools.partial(_interrupted, arguments))
    try:
        _prepare(arguments)
        with watching(kept.look):
            report = COMMANDS[name].execute(arguments)
        with interrupts.writing:
            files = _write(report, arguments)
            # drawing takes seconds: Ctrl-C does not wait for it
            interrupts.on_interrupt(functools.partial(_without, report, arguments, files))
        pictures = _draw(report, arguments)
        with interrupts.writing:
            interrupts.on_interrupt(lambda: None)  # nothing is left to be saved
            _print(report, arguments, list(dict.fromkeys([*pictures, *files])))
    except BrokenPipeError:
        raise
    except (ValueError, ImportError, OSError) as error:
        print(f"jaxsmi {name}: {_with_flag(str(error), arguments)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # where nobody listens for it, as in a notebook
        interrupts.act()
        return interrupts.STATUS
    if report.problem:
        print(f"jaxsmi {name}: {report.problem}", file=sys.stderr)
    return 1 if report.problem else 0


def _print(report: Report, arguments: argparse.Namespace, files: list[str]) -> None:
    """The report on stdout, all of it at once."""
    if arguments.json:
        head = {"command": arguments.command, "settings": settings_of(arguments)}
        data = parameters({**head, **report.data, "files": files}, largest=np.inf)
        text = json.dumps(data, allow_nan=False)
    else:
        text = "\n".join([report.text, *(f"Written: {file}" for file in files)])
    print(text, flush=True)


def _without(report: Report, arguments: argparse.Namespace, files: list[str]) -> None:
    """Print a finished report whose picture was not waited for, and say so."""
    report.data["interrupted"] = True
    if files:
        discard(arguments.out)  # the picture, if it was being written
    _print(report, arguments, files)
    missing = "; its picture is not drawn" if files and _draws() else ""
    print(f"jaxsmi {arguments.command}: interrupted{missing}", file=sys.stderr)


def _interrupted(arguments: argparse.Namespace) -> None:
    """Save and print what the command has kept, and say so."""
    report = kept.report()
    done = kept.progress()
    if report is not None:
        files = _write(report, arguments)
        report.data["interrupted"] = True
        _print(report, arguments, files)
    elif arguments.out and (arrays := kept.arrays()):
        partial = Report({}, done, stored=lambda: storage.arrays(arrays))
        done += "; written: " + ", ".join(_write(partial, arguments))
    if arguments.out and not arguments.dry_run:
        discard(arguments.out)
    print(f"jaxsmi {arguments.command}: interrupted{done}", file=sys.stderr)


def _with_flag(sentence: str, arguments: argparse.Namespace) -> str:
    """A sentence that begins with the name of an argument begins with its flag."""
    name = re.match(r"(\w+): ", sentence)
    if name and name[1] in vars(arguments) and name[1] not in ("command", "model", "file", "name"):
        return f"--{name[1].replace('_', '-')}{sentence[name.end(1) :]}"
    return sentence


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The words, read a second time where they ask for other defaults: those of a model, or of a
    task.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    model = next((word for word in words[1:] if word in MODELS), None)
    arguments = _read(parser_of(model=model), words)
    defaults = COMMANDS[arguments.command].defaults(arguments)
    if defaults:
        arguments = parser_of({arguments.command: defaults}).parse_args(words)
    return arguments


def _read(parser: _Parser, words: Sequence[str]) -> argparse.Namespace:
    """The words, or one sentence of the command that does not know one of them."""
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        command = parser.commands[arguments.command]
        flags = set(re.findall(r"--[a-z][a-z-]*", command.format_help()))
        near = nearest(unknown[0].partition("=")[0], sorted(flags))
        meant = f"; did you mean {near}?" if near else ""
        command.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return arguments


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence; `commands`: those of its commands, by name."""

    commands: Mapping[str, argparse.ArgumentParser]

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, which word may be meant, and where to read more; status 2."""
        choice = re.search(r"invalid choice: '?([^' ]*)'? \(choose from (.*)\)$", message)
        near = nearest(choice[1], re.findall(r"[\w.-]+", choice[2])) if choice else ""
        message += f"; did you mean {near}?" if near else ""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')} (see {self.prog} --help)\n")


def parser_of(
    defaults: Mapping[str, Mapping[str, Any]] | None = None, model: str | None = None
) -> _Parser:
    """The command line; `defaults` of a command that replace its usual ones, and the `model` whose
    flags the help shows, None for all."""
    parser = _Parser(
        prog="jaxsmi",
        description="Solvable models of learning with attention.",
        epilog=_STATUSES,
    )
    parser.add_argument("--version", action="version", version=f"jaxsmi {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.commands = commands.choices
    for name, command in COMMANDS.items():
        child = commands.add_parser(
            name,
            usage=command.usage if model is None else command.usage.replace("MODEL", model),
            help=command.summary,
            description=command.description,
            formatter_class=Formatter,
        )
        if command.takes_model:
            add_model(child, model)
        child.set_defaults(dry_run=False)
        command.add_flags(child)
        add_output(child)
        if model is not None:
            child.set_defaults(**command.defaults_of(model))
        child.set_defaults(**(defaults or {}).get(name, {}))
    return parser


def _prepare(arguments: argparse.Namespace) -> None:
    """Find out before the work, not after it, that its results cannot be written."""
    if not arguments.out or arguments.dry_run:
        return
    command = COMMANDS[arguments.command]
    labelled.import_xarray()
    if not _draws() and not command.resumes:
        print("jaxsmi: no picture without matplotlib: pip install 'jaxsmi[plot]'", file=sys.stderr)
    if not command.resumes and not arguments.overwrite:
        stem = arguments.out / command.stem(arguments)
        there = [path for end in _ENDINGS if (path := stem.with_name(stem.name + end)).exists()]
        allowed = "another folder, or --overwrite"
        check(not there, "--out", f"files from before, {there[-1].name}" if there else "", allowed)
    # what xarray imports for its first file it imports now, not when Ctrl-C asks for a file at once
    with tempfile.TemporaryDirectory() as folder:
        storage.save(storage.arrays({"step": np.zeros(1)}), pathlib.Path(folder) / "first.nc")
    arguments.out.mkdir(parents=True, exist_ok=True)


_ENDINGS = (".png", ".nc", ".txt")


def _draws() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def _paths(report: Report, arguments: argparse.Namespace) -> list[pathlib.Path]:
    """Figure, netCDF and table, named after the command; none without --out."""
    if not arguments.out or arguments.dry_run:
        return []
    stem = report.stem or COMMANDS[arguments.command].stem(arguments)
    return [arguments.out / f"{stem}{end}" for end in _ENDINGS]


def _made(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the files of a command say of it."""
    return {"command": arguments.command, "settings": settings_of(arguments)}


def _write(report: Report, arguments: argparse.Namespace) -> list[str]:
    """Write netCDF and table; returns their paths, and those of what the command wrote itself."""
    written = _paths(report, arguments)[1:]
    if written:
        arrays, words = written
        storage.save(report.stored(), arrays, **_made(arguments))
        write_text(words, report.text + "\n")
    return [str(path) for path in dict.fromkeys([*written, *report.written])]


def _draw(report: Report, arguments: argparse.Namespace) -> list[str]:
    """Draw and write the figure, where there is matplotlib; returns its path."""
    written = _paths(report, arguments)[:1] if _draws() else []
    for path in written:
        drawing = report.figure or plotting.canvas(height=2.7)
        with plotting.style():
            report.draw(drawing)
        plotting.savefig(drawing, path, **_made(arguments))
    return [str(path) for path in written]
