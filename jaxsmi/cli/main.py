"""The command line, made by cyclopts of the signatures of public functions.

A table on stdout, or with `--json` one JSON object. Exit status: 0; 1 where a part of the work
failed; 2 for a wrong argument or a missing package; 130 when interrupted; 141 where the reader of
the output has gone. A run that did not converge is no error: its report says so.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from jaxsmi.cli import interrupts, signatures
from jaxsmi.cli.flags import COMMANDS, MODELS, Flag, Words, flags_of

_ABOUT = """Solvable models of learning with attention.

Exit status: 0; 1 where a part of the work failed; 2 for a wrong argument or a \
missing package; 130 when interrupted; 141 where the reader of the output has gone."""

_COMMON = {
    "seed": (int, "Seed of all random numbers. Default 0."),
    "out": (pathlib.Path, "Folder for the figure, the netCDF file and the table."),
    "overwrite": (bool, "Replace the files of an earlier run in --out."),
    "json": (bool, "Print one JSON object instead of the table."),
    "quiet": (bool, "No progress bars."),
    "vary": (str, "NAME=VALUE,VALUE,..: one result for each value of a flag, e.g. skip=0.5,1,2."),
}
_RUNS = (int, "Runs at once, from different random numbers.")


def main(argv: Sequence[str] | None = None, setup: bool = False) -> int:
    """Run the command line.

    Args:
        argv: The words after `jaxsmi`. Default None: those of the shell.
        setup: Set up JAX for this process, as a program of its own does. Default False.

    Returns:
        The exit status.

    Raises:
        BrokenPipeError: Nobody reads the output any more.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    name = _command(given)
    begin = f"jaxsmi {name}".strip()
    try:
        words = _parse(given, name)
        if words is None:
            return 0
        # it imports JAX, which help and answers to misspelt words do not wait for
        execute = importlib.import_module("jaxsmi.cli.execute")
        if setup:
            execute.set_up()
        return execute.execute(words)
    except CycloptsError as error:
        sentence = " ".join(str(error).split())
        print(f"{begin}: {sentence} (see {begin} --help)", file=sys.stderr)
    except BrokenPipeError:
        raise
    # errors of users' words, packages and files; any other error is one of this package
    except (ValueError, ImportError, OSError) as error:
        print(f"{begin}: {_with_flag(str(error))}", file=sys.stderr)
    except KeyboardInterrupt:  # where no thread listens for it, as in a notebook
        interrupts.act()
        return interrupts.STATUS
    return 2


def _command(words: Sequence[str]) -> str:
    """The command that the first words name; "" where they name none."""
    return next(
        (name for name in COMMANDS if list(words[: name.count(" ") + 1]) == name.split()), ""
    )


def _parse(words: list[str], name: str) -> Words | None:
    """Read the words; None where they asked for help, which is printed then."""
    command = COMMANDS.get(name)
    rest = words[name.count(" ") + 1 :] if command else words
    if not words or (command and command.models and not rest):
        choices = ", ".join(MODELS if words else COMMANDS)
        raise CycloptsError(msg=f"{'A model' if words else 'A command'} is needed: {choices}.")
    model = rest[0] if command and command.models and rest[0] in MODELS else ""
    # the flags of one command and one model only: help must not wait for reading all modules
    app = _app(name, model)
    function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    if command is None or function is not _stub or (command.models and not model):
        function(*bound.args, **bound.kwargs)  # help, or the version
        return None
    values = dict(bound.arguments)
    common = {key: values.pop(key) for key in [*_COMMON, "runs"] if key in values}
    return Words(name, model, values, common)


def _stub(**values: Any) -> None:
    """Stands for the function of a command while its words are read."""


def _app(name: str, model: str) -> App:
    """The commands; those that help lists with a summary, one of them with the flags of a model."""
    plain: Any = {"help_format": "plaintext", "version_flags": []}
    summary = lambda target, listed: signatures.read(target).summary if listed else ""
    app = App(name="jaxsmi", help=_ABOUT, **plain | {"version_flags": ["--version"]})
    app.version = lambda: importlib.metadata.version("jaxsmi")
    # the one group: `jaxsmi sgd flow`, as `smi.sgd.flow`
    online = App(name="sgd", help="Online SGD.", **plain)
    app.command(online)
    for other, command in COMMANDS.items():
        parent = online if " " in other else app
        about = {"name": other.split()[-1], "help": summary(command.target, name in ("", other))}
        if other == name and not command.models:
            parent.command(_with_flags(Words(name)), **about)
            continue
        parent.command(group := App(**about, **plain))
        for choice, target in MODELS.items() if other == name else ():
            chosen = choice == model
            stub = _with_flags(Words(name, model)) if chosen else _stub
            shown = about["help"] if chosen else summary(target, not model)
            group.command(stub, name=choice, help=shown)
    return app


def _with_flags(words: Words) -> Any:
    """The stub with the signature of a command."""
    flags = flags_of(words)
    first = "" if words.model else next(iter(flags))  # the file of a sweep
    arguments = [_argument(flag, flag.name == first) for flag in flags.values()]
    common = _COMMON | ({"runs": _RUNS} if words.command.runs else {})
    arguments += [
        _argument(Flag(name, ("output", name), kind, help)) for name, (kind, help) in common.items()
    ]
    _stub.__signature__ = inspect.Signature(arguments)  # pyright: ignore
    return _stub


def _argument(flag: Flag, positional: bool = False) -> inspect.Parameter:
    # a preset is no default of the function: cyclopts would not show it
    preset = f" [default: {flag.preset}]" if flag.preset is not None else ""
    about = Parameter(
        help=flag.help + preset,
        group=["Parameters", *flag.path][-2].replace("_", " ").capitalize(),
        negative=None if flag.kind is bool and flag.path[0] != "output" else (),
        consume_multiple=True,
        show_default=False,
    )
    kinds = inspect.Parameter
    place = kinds.POSITIONAL_OR_KEYWORD if positional else kinds.KEYWORD_ONLY
    kind = Annotated[flag.kind if flag.required else flag.kind | None, about]
    default = kinds.empty if flag.required else None
    return kinds(flag.name, place, default=default, annotation=kind)


def _with_flag(sentence: str) -> str:
    """A message that begins with the name of an argument begins with its flag."""
    name = re.match(r"([a-z]\w*): got ", sentence)
    return f"--{name[1].replace('_', '-')}{sentence[len(name[1]) :]}" if name else sentence
