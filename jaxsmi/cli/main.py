"""The command line, made by cyclopts of the signatures of public functions.

A table on stdout, or with `--json` one JSON object. Exit status: 0; 1 where a part of the work
failed; 2 for a wrong argument or a missing package; 130 when interrupted; 141 where the reader of
the output has gone. A run that did not converge is no error: its report says so.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import inspect
import pathlib
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    Token,
    UnusedCliTokensError,
)

from jaxsmi.cli.flags import (
    COMMANDS,
    MODELS,
    CommandLine,
    Flag,
    arguments_of,
    flags_of,
    in_shell,
    read,
)

_ABOUT = """Solvable models of learning with attention.

Exit status: 0; 1 where a part of the work failed; 2 for a wrong argument or a \
missing package; 130 when interrupted; 141 where the reader of the output has gone."""

# `jaxsmi sgd flow`, as `smi.sgd.flow`
_GROUPS = {"sgd": "Study online SGD: flow, runs, rates and exponents."}

_COMMON = {
    "seed": (int, "Seed of all random numbers. Default 0."),
    "out": (pathlib.Path, "Folder for the figure, the netCDF file and the table."),
    "overwrite": (bool, "Replace the files of an earlier run in --out."),
    "json": (bool, "Print one JSON object instead of the table."),
    "quiet": (bool, "No progress bars."),
    "vary": (str, "NAME=VALUE,VALUE,..: one result for each value of a flag, e.g. skip=0.5,1,2."),
}
# names of scikit-learn, and the flag that serves
_SYNONYMS = {
    "C": "ridge, 1/(C D), beside --student linear",
    "penalty": "ridge or --l1",
    "n-samples": "alpha, N = alpha D",
    "seeds": "seed, one number; several are seeds = 8 in the file of jaxsmi sweep",
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
    place, rest = _split(sys.argv[1:] if argv is None else list(argv))
    begin = " ".join(filter(None, ["jaxsmi", place.name, place.model]))
    try:
        words = _parse(place, rest, begin)
        if words is None:
            return 0
        # it imports JAX, which help and answers to misspelt words do not wait for
        report = importlib.import_module("jaxsmi.cli.report")
        if setup:
            report.set_up(words)
        return report.execute(words)
    except CycloptsError as error:
        sentence = f"{begin}: {_plain(error, rest)} (see {begin} --help)"
        lines = textwrap.fill(sentence, 100, subsequent_indent="  ", break_on_hyphens=False)
        print(lines, file=sys.stderr)
    except BrokenPipeError:
        raise
    # errors of users' words, packages and files; any other error is one of this package
    except (ValueError, ImportError, OSError) as error:
        print(f"{begin}: {in_shell(_with_flag(str(error)), place)}", file=sys.stderr)
    return 2


def _split(given: list[str]) -> tuple[CommandLine, list[str]]:
    """The command, or group of commands, and the model that the first words name; other words."""
    names = [*COMMANDS, *_GROUPS]
    name = next((x for x in names if given[: len(x.split())] == x.split()), "")
    rest = given[len(name.split()) :]
    takes_model = name in COMMANDS and COMMANDS[name].models
    model = rest[0] if takes_model and rest and rest[0] in MODELS else ""
    return CommandLine(name, model), rest[1:] if model else rest


def _parse(place: CommandLine, rest: list[str], begin: str) -> CommandLine | None:
    """Read the flags; None where the words asked for help, which is printed then."""
    app = App(name=begin, help=_summary(place.name), help_format="plaintext", version_flags=[])
    choices = {} if place.model else _choices(place.name)
    if choices and _kind(place) == "model":
        app.usage, app.group_commands = f"Usage: {begin} MODEL", "Models"
    word, asked = "".join(rest[:1]), {"-h", "--help", "--version"}
    if choices and word not in choices and not (word[:1] == "-" and asked & {*rest}):
        known = [*choices, "--help"] if place.name else [*choices, "--help", "--version"]
        close = difflib.get_close_matches(word, known, 1, 0.65)  # --alpha is not --help
        close = close or [x for x in choices if word.startswith(f"{x}-")]  # logistic-regression
        meant = f"Did you mean {close[0]}? " if close else ""
        kind, named = _kind(place), word[:1] > "-"
        said = f'Unknown {kind} "{word}". ' if named else ""
        said = f"Write the command first, then the model {word}. " if word in MODELS else said
        what = f"{kind.title()}s" if named else f"A {kind} is needed"
        raise CycloptsError(msg=f"{said}{meant}{what}: {', '.join(choices)}.")
    for choice, summary in choices.items():
        app.command(_stub, name=choice, help=summary)
    if not choices:
        # the flags of this command and model only: help must not wait for reading all modules
        app.default(_with_flags(place))
        _reject_unknown(place, rest, list(inspect.signature(_stub).parameters))
    if not place.name:
        app.version_flags = ["--version"]
        app.version = lambda: importlib.metadata.version("jaxsmi")
    function, bound, _ = app.parse_args(rest, exit_on_error=False, print_error=False)
    if function is not _stub:
        function(*bound.args, **bound.kwargs)  # help, or the version
        return None
    values = dict(bound.arguments)
    # a flag that may have several values may also have none to cyclopts
    for name in [name for name, value in values.items() if value == ()]:
        raise CycloptsError(msg=f"A value of --{name.replace('_', '-')} is needed.")
    common = {key: values.pop(key) for key in [*_COMMON, "runs"] if key in values}
    return place._replace(values=values, common=common)


def _kind(place: CommandLine) -> str:
    """Return the kind of the next word: a model or a command."""
    return "model" if place.name in COMMANDS else "command"


def _summary(name: str) -> str:
    """Return the summary of a command or of a group of commands."""
    if name not in COMMANDS:
        return _GROUPS.get(name, _ABOUT)
    command = COMMANDS[name]
    return command.summary or read(command.target).summary


def _choices(name: str) -> dict[str, str]:
    """The words that may follow a command or group, each with its summary."""
    if name in COMMANDS:
        models = MODELS.items() if COMMANDS[name].models else ()
        # a link that a summary names is a word here
        word = lambda found: found[1].replace("_", "-")
        return {x: re.sub(r"`(\w+)`", word, read(target).summary) for x, target in models}
    names = [other for other in [*COMMANDS, *_GROUPS] if other.rpartition(" ")[0] == name]
    return {other.split()[-1]: _summary(other) for other in names}


def _reject_unknown(place: CommandLine, rest: Sequence[str], names: list[str]) -> None:
    """Name a flag that the command does not have: cyclopts would name a missing one first."""
    for word in [x for x in rest if re.match(r"-(?!inf|nan)[a-z]{2}", x)]:
        raise CycloptsError(msg=f"A flag has two dashes: -{word}.")
    known = [name.replace("_", "-") for name in names] + ["help"]
    given = [word[2:].partition("=")[0].replace("_", "-") for word in rest if word[:2] == "--"]
    # --no-x switches x off
    for name in [x for x in given if x.removeprefix("no-") not in known]:
        argument = name.replace("-", "_")
        targets = [place.command.target, *([MODELS[place.model]] if place.model else [])]
        models = [x for x in MODELS if place.model and argument in arguments_of(MODELS[x])]
        close = difflib.get_close_matches(name, known, 1)
        close = close or [x for x in known if x.startswith(name)]
        said = f" Did you mean --{close[0]}?" if close else ""
        said = f" It belongs to {', '.join(models)}." if models else said
        if argument in arguments_of("learners.erm:Erm"):
            said = " It is one of jaxsmi gamp (a learner on data) and jaxsmi risk (its theory)."
        if re.split(r"\W", ours := _SYNONYMS.get(name, ""))[0] in known:
            said = f" Write --{ours}."
        objects = any(argument in arguments_of(target, words=False) for target in targets)
        if objects:
            raise CycloptsError(msg=f"--{name} takes an object: use Python.")
        raise CycloptsError(msg=f"There is no flag --{name} here.{said}")


def _stub(**values: Any) -> None:
    """Stand in for the function of a command while its words are read."""


def _with_flags(words: CommandLine) -> Any:
    """The stub with the signature of a command."""
    flags = flags_of(words)
    first = "" if words.model else next(iter(flags))  # the file of a sweep
    arguments = [_argument(flag, flag.name == first) for flag in flags.values()]
    common = _COMMON | ({"runs": _RUNS} if words.command.runs else {})
    if words.name == "sweep":  # it goes on in its folder
        common = {name: about for name, about in common.items() if name != "overwrite"}
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
        metavar=None if flag.several or flag.kind != tuple[float, ...] else "FLOAT",
        group=["Parameters", *flag.path][-2].replace("_", " ").capitalize(),
        negative=None if flag.kind is bool and flag.path[0] != "output" else (),
        consume_multiple=True,
        show_default=False,
        converter=_integer if flag.kind is int else None,
    )
    kinds = inspect.Parameter
    place = kinds.POSITIONAL_OR_KEYWORD if positional else kinds.KEYWORD_ONLY
    kind = Annotated[flag.kind if flag.required else flag.kind | None, about]
    default = kinds.empty if flag.required else None
    return kinds(flag.name, place, default=default, annotation=kind)


def _integer(_: type, tokens: Sequence[Token]) -> int:
    """Read an integer, such as 1e3; cyclopts would round other numbers."""
    word = tokens[0].value
    for read_as in (int, float):
        with contextlib.suppress(ValueError):
            if (number := read_as(word)) == number // 1:
                return int(number)
    raise ValueError(f"{word} is no integer")


def _plain(error: CycloptsError, rest: Sequence[str]) -> str:
    """Describe an error of the words `rest` in one sentence."""
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return f"A value of {error.argument.name} is needed."
    if isinstance(error, UnusedCliTokensError):
        words = " ".join(error.unused_tokens or [])
        many = re.search(rf"--([a-z-]+)[ =]([^ -]\S*) {re.escape(words)}(?= |$)", " ".join(rest))
        if many:
            several = f"{many[1]}={','.join([many[2], *words.split()])}"
            return f"One --{many[1]} is taken; for several write --vary {several}, or a sweep."
        hint = f" Write --{words}." if re.match(r"[a-z_-]+=", words) else ""
        return f'"{words}" belongs to no flag.{hint}'
    if isinstance(error, CoercionError) and error.token and "," in error.token.value:
        flag, word = error.token.keyword or "", error.token.value
        several = error.argument is not None and "tuple" in str(error.argument.hint)
        spaced = f"{flag} {word.replace(',', ' ')}"
        write = spaced if several else f"--vary {flag.removeprefix('--')}={word}"
        return f"{flag}: got {word}; for several values write {write}."
    return " ".join(str(error).split())


def _with_flag(sentence: str) -> str:
    """Replace the name of an argument that begins a message by its flag."""
    # the model is a word, not a flag
    name = re.match(r"(?!model:)([a-z]\w*): got ", sentence)
    if not name:
        return sentence
    flag = name[1].replace("_", "-")
    sentence = sentence.replace("jax.vmap for many", f"for several: --vary {flag}=VALUE,VALUE,..")
    return f"--{flag}{sentence[len(name[1]) :]}"
