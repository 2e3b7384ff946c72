"""Flags of a command: the arguments of the functions that it calls, whoever changes these.

Nothing here names a keyword of a solver. A record of settings, a model, a data set or a learner
among the arguments is replaced by the arguments that make it, and so on down: `--points` reaches
`averages=smi.Averages(points=..)`.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from jaxsmi.cli import signatures
from jaxsmi.cli.signatures import Argument, load


class Command(NamedTuple):
    """A command: the public function that it calls, and how its results are shown.

    Args:
        target: The function, as "module:name".
        learner: What makes the argument `learner`, by family: index models, matrices.
        models: False: the next word is no model.
        runs: True: several keys make several runs.
    """

    target: str
    learner: tuple[str, str] | None = None
    models: bool = True
    runs: bool = False


_ERM = ("learners.erm:Erm", "learners.matrix_erm:MatrixErm")  # of index models, of matrices

COMMANDS: dict[str, Command] = {
    "run": Command("cli.run:run"),
    "sweep": Command("cli.run:sweep", models=False),
    "gamp": Command("inference.message_passing:gamp"),
    "state-evolution": Command("inference.evolution:state_evolution"),
    "free-entropy": Command("inference.potential:free_entropy"),
    "risk": Command("inference.evolution:state_evolution", learner=_ERM),
    "global-minimum": Command("inference.branches:global_minimum", learner=_ERM),
    "spectral": Command("inference.spectral:spectral"),
    "spectral-overlap": Command("inference.spectral_theory:spectral_overlap"),
    "weak-recovery": Command("thresholds.weak:weak_recovery"),
    "staircase": Command("thresholds.stairs:staircase"),
    "first-order": Command("thresholds.transitions:first_order"),
    "recovery-threshold": Command("thresholds.transitions:recovery_threshold"),
    "train": Command("descent.training:train", runs=True),
    "sgd flow": Command("sgd.flow:flow"),
    "sgd simulate": Command("sgd.simulation:simulate", runs=True),
    "sgd recovery-time": Command("sgd.flow:recovery_time"),
    "sgd rates": Command("sgd.landscape:rates"),
    "sgd risk": Command("sgd.landscape:risk"),
    "sgd exponents": Command("sgd.exponents:exponents"),
}

_LINKS = {
    name.replace("_", "-"): f"models.links:{name}"
    for name in signatures.public_functions("models.links")
}
MODELS: dict[str, str] = {
    "deep-attention": "models.deep_attention:DeepAttention",
    "attention-indexed": "models.attention_indexed:AttentionIndexed",
    "bilinear": "models.bilinear:Bilinear",
    "semantic-positional": "models.sequence_single_index:semantic_positional",
    **_LINKS,
}
_MATRICES = ("attention-indexed", "bilinear")

# Values of arguments that have no default in Python: README's demo, and sizes that take a minute.
_PRESETS: dict[str, dict[str, Any]] = {
    "": {"alpha": 1.2, "dimension": 1000},
    "deep-attention": {"depth": 2, "tokens": 2},
    "attention-indexed": {"tokens": 2, "rank_ratio": 0.5, "alpha": 0.15, "dimension": 100},
    "bilinear": {"alpha": 0.3, "dimension": 60},
    "semantic-positional": {"omega": 0.5},
}
_RECORDS = {
    "Averages": "core.options:Averages",
    "Bayes": "core.options:Bayes",
    "Iteration": "core.options:Iteration",
    "Record": "core.options:Record",
    "Start": "core.options:Start",
    "Gradient": "descent.options:Gradient",
    "Monitor": "descent.options:Monitor",
}
_MODEL_TYPES = {"AbstractModel", "IndexModel", "AbstractTeacher"}
_REQUIRED = {"model", "data", "optimizer"}  # made of presets where no flag asks for them
_FROM_COMMON = ("key", "out", "progress")  # set by --seed, --out, --quiet


class Flag(NamedTuple):
    """A flag: where its value goes, such as ("averages", "points"), and its type."""

    name: str
    path: tuple[str, ...]
    kind: Any
    help: str
    required: bool = False
    preset: Any = None


class Words(NamedTuple):
    """The words of a command line: a command, its model, the values of its flags, and those of
    flags that all commands have."""

    name: str
    model: str = ""
    values: Mapping[str, Any] = {}
    common: Mapping[str, Any] = {}

    @property
    def command(self) -> Command:
        """The command."""
        return COMMANDS[self.name]

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the numbers, for the files and the JSON object."""
        presets = {name: x.preset for name, x in flags_of(self).items() if x.preset is not None}
        values = {name: _single(value) for name, value in self.values.items()}
        common = {name: self.common[name] for name in ("runs", "vary") if name in self.common}
        head = {"model": self.model} if self.model else {}
        return head | presets | values | common | {"seed": self.common.get("seed", 0)}


def flags_of(words: Words) -> dict[str, Flag]:
    """The flags of a command with a model, by name."""
    # of two arguments of one name the outer one has the short flag
    flags: dict[str, Flag] = {}
    presets = _PRESETS[""] | _PRESETS.get(words.model, {})

    def add(target: str, path: tuple[str, ...]) -> None:
        for argument in signatures.read(target).arguments:
            here = (*path, argument.name)
            maker = _maker(argument, words)
            if maker is not None:
                add(maker, here)
            kind = _kind(argument)
            if kind is None or argument.name in _FROM_COMMON:
                continue
            name = argument.name if argument.name not in flags else "_".join(here)
            required = argument.default is None and set(path) <= _REQUIRED
            # theory has no α by default: its curve is what a user asks for
            sized = argument.name != "alpha" or target.endswith((".sample", ":run"))
            preset = presets.get(argument.name) if required and sized else None
            required = required and preset is None
            flags[name] = Flag(name, here, kind, _help(argument), required, preset)

    add(words.command.target, ())
    return flags


def _maker(argument: Argument, words: Words) -> str | None:
    """The target that makes an argument out of flags of its own."""
    names = signatures.names_in(argument.annotation)
    if argument.name == "learner" and words.command.learner:
        return words.command.learner[words.model in _MATRICES]
    if words.model and argument.name == "model":
        return MODELS[words.model]
    if words.model and argument.name == "data":
        return "models.base:AbstractModel.sample"
    if "GradientTransformation" in names:
        return "cli.run:optimizer"
    return next((target for name, target in _RECORDS.items() if name in names), None)


def _kind(argument: Argument) -> Any:
    """The type of the words that give an argument; None where words cannot."""
    names = signatures.names_in(argument.annotation)
    # a function has no words but those of the functions that the package has
    if argument.name == "loss" and "Callable" in names:
        return Literal[tuple(signatures.public_functions("learners.losses"))]
    if argument.name == "student" and names & _MODEL_TYPES:
        return Literal[tuple(_LINKS)]
    if "bool" in names or "Path" in names:
        return bool if "bool" in names else pathlib.Path
    kind: Any = int if "int" in names else None
    kind = float if names & {"float", "ArrayLike", "Array"} else kind
    kind = float | str if "Any" in names else kind
    if names & {"str", "DTypeLike"}:
        kind = str if kind is None else kind | str
    # a number may stand for a vector or a matrix, of which words give the entries
    several = kind is not None and names & {"Any", "ArrayLike", "Array", "Sequence", "list"}
    return tuple[kind, ...] if several else kind


def _help(argument: Argument) -> str:
    if argument.default in (None, "None") or "Default" in argument.help:
        return argument.help
    return f"{argument.help} Default {argument.default}.".strip()


def call(words: Words, values: Mapping[str, Any]) -> Any:
    """Call the function of a command with the values of its flags."""
    import jax  # not at the head: help does not wait for it

    flags = flags_of(words)
    values = {name: x.preset for name, x in flags.items() if x.preset is not None} | dict(values)
    places = {flags[name].path: _value(flags[name], value) for name, value in values.items()}
    shown = sys.stderr.isatty() and not words.common.get("quiet", False)
    runs = words.common.get("runs")
    model: Any = None

    def make(target: str, path: tuple[str, ...]) -> Any:
        nonlocal model
        # the same seed gives other numbers to the data than to the start of a run
        key = jax.random.fold_in(jax.random.key(words.common.get("seed", 0)), len(path))
        key = jax.random.split(key, runs) if runs and not path else key
        common = {"progress": shown, "out": words.common.get("out"), "key": key}
        keywords: dict[str, Any] = {}
        for argument in signatures.read(target).arguments:
            name, here = argument.name, (*path, argument.name)
            needed = argument.default is None or (name == "learner" and words.command.learner)
            asked = [place for place in places if place[: len(here)] == here]
            maker = _maker(argument, words)
            if here in asked and len(asked) > 1:
                both = " and ".join(f"--{place[-1]}" for place in asked)
                raise ValueError(f"{name}: got {both}; allowed: one of these flags.")
            if name in common:
                keywords[name] = common[name]
            elif here in asked:
                keywords[name] = places[here]
            elif maker and (asked or needed):
                keywords[name] = make(maker, here)
        # the data are those of the model that was made for the same call
        if path == ("data",):
            if not hasattr(model, "sample"):  # a target of online SGD has no data sets
                raise ValueError(f"model: got {words.model!r}; allowed: models with data sets.")
            return model.sample(**keywords)
        made = load(target)(**keywords)
        model = made if path == ("model",) else model
        return made

    return make(words.command.target, ())


def _value(flag: Flag, value: Any) -> Any:
    """The value of a flag as the function takes it."""
    if flag.path[-1] == "loss" and isinstance(value, str) and flag.kind is not str:
        return load(f"learners.losses:{value}")
    if flag.path[-1] == "student":
        return load(MODELS[value])()
    return _single(value)


def _single(value: Any) -> Any:
    """A word that could have been several, as one value."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def make_model(name: str, **parameters: Any) -> Any:
    """Make a model by its name on the command line.

    Raises:
        ValueError: For an unknown name or parameter.
    """
    if name not in MODELS:
        raise ValueError(f"model: got {name!r}; allowed: {', '.join(MODELS)}.")
    names = [argument.name for argument in signatures.read(MODELS[name]).arguments]
    unknown = ", ".join(word for word in parameters if word not in names)
    if unknown:
        raise ValueError(f"parameters: got {unknown}; allowed for {name}: {', '.join(names)}.")
    # α and the dimension are those of the command
    presets = {key: x for key, x in _PRESETS.get(name, {}).items() if key in names}
    return load(MODELS[name])(**presets | parameters)


def with_records(solver: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a solver, the fields of its records of settings gathered in these."""
    keywords = dict(settings)
    command = COMMANDS[solver.replace("_", "-")]
    for argument in signatures.read(command.target).arguments:
        names = signatures.names_in(argument.annotation)
        for target in [target for name, target in _RECORDS.items() if name in names]:
            fields = [field.name for field in signatures.read(target).arguments]
            values = {field: keywords.pop(field) for field in fields if field in keywords}
            if values:
                keywords[argument.name] = load(target)(**values)
    return keywords
