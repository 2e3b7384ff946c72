"""Flags of a command: the arguments of the functions that it calls, read from their signatures.

Solvers may add keywords freely. Only model, data, learner, loss and student need rules here
(`_target_of`, `_word_type`), because a word stands for an object. An argument that is a record of
settings, a model, a data set or a learner has the flags of its own arguments: `--points` reaches
`averages=smi.Averages(points=..)`. Signatures are read from the source, so that `--help` and an
answer to a misspelt flag need not wait for the import of JAX, which takes over a second.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from docstring_parser import google

_PACKAGE = pathlib.Path(__file__).parents[1]


class Argument(NamedTuple):
    """An argument of a function or of a constructor."""

    name: str
    types: set[str]  # all names in its annotation; "Callable" alone for a function
    default: str | None  # source text; None: required
    help: str


class Signature(NamedTuple):
    """The summary and the arguments of a function."""

    summary: str
    arguments: tuple[Argument, ...]


@functools.cache
def read(target: str) -> Signature:
    """The signature of a target, "module:function" or "module:class.method" of this package."""
    module, _, name = target.partition(":")
    definition: Any = _tree(module)
    for part in name.split("."):
        definition = next(x for x in definition.body if getattr(x, "name", None) == part)
    doc = ast.get_docstring(definition) or ""
    # "depth, tokens: .." says the same of several
    entries = [(x.arg_name.split(","), x.description or "") for x in google.parse(doc).params]
    help = {x.strip(): _expanded(x.strip(), said) for names, said in entries for x in names}
    arguments = []
    for name, annotation, default in _arguments(definition):
        said, written = help.get(name, ""), default and ast.unparse(default)
        if written not in (None, "None") and "Default" not in said:
            said = f"{said} Default {written}.".strip()
        text = "" if annotation is None else ast.unparse(annotation)
        # types inside Callable[..] are not those of the argument itself
        types = set(re.findall(r"\w+", re.sub(r"Callable\[.*\]", "Callable", text)))
        arguments.append(Argument(name, types, written, said))
    return Signature(doc.partition("\n\n")[0].replace("\n", " "), tuple(arguments))


def _expanded(name: str, said: str) -> str:
    """The help of an argument; where it refers to the function of a command, the help there."""
    said = " ".join(said.split())
    refers = re.match(r"[^.]*?\b(?:[Aa]s in|as for|See) `(\w+)`\)?", said)
    targets = [x.target for x in COMMANDS.values() if refers and x.target.endswith(f":{refers[1]}")]
    there = [x.help for x in read(targets[0]).arguments if x.name == name] if targets else []
    if not refers or not there:
        return said
    rest = said[refers.end() :]
    return there[0].partition(" Default" if "efault" in rest else "\n")[0].rstrip(".") + rest


@functools.cache  # a command reads the same module for several records
def _tree(module: str) -> ast.Module:
    path = _PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _arguments(definition: Any) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    """Name, annotation and default of each argument; of a class those of its constructor, or its
    fields."""
    if isinstance(definition, ast.ClassDef):
        constructors = [x for x in definition.body if getattr(x, "name", "") == "__init__"]
        if constructors:
            return _arguments(constructors[0])
        fields = [x for x in definition.body if isinstance(x, ast.AnnAssign)]
        fields = [x for x in fields if "ClassVar" not in ast.unparse(x.annotation)]
        return [(ast.unparse(x.target), x.annotation, _field_default(x.value)) for x in fields]
    arguments = [*definition.args.posonlyargs, *definition.args.args]
    required = [None] * (len(arguments) - len(definition.args.defaults))
    arguments += definition.args.kwonlyargs
    defaults = [*required, *definition.args.defaults, *definition.args.kw_defaults]
    listed = zip(arguments, defaults, strict=True)
    return [(x.arg, x.annotation, default) for x, default in listed if x.arg != "self"]


def _field_default(value: ast.expr | None) -> ast.expr | None:
    if not isinstance(value, ast.Call):
        return value
    # eqx.field(static=True, default=..)
    named = {keyword.arg: keyword.value for keyword in value.keywords}
    return named.get("default", named.get("default_factory"))


def public_functions(module: str) -> list[str]:
    """Names of the functions of a module that do not begin with an underscore."""
    functions = [node for node in _tree(module).body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if not node.name.startswith("_")]


def load(target: str) -> Any:
    """The object that a target names."""
    module, _, name = target.partition(":")
    return functools.reduce(getattr, name.split("."), importlib.import_module(f"jaxsmi.{module}"))


class Command(NamedTuple):
    """A command: the public function that it calls, and how its results are shown.

    Args:
        target: The function, as "module:name".
        learner: True: the argument `learner` is made of flags, too; None: if one of these is given,
            else it is Bayes.
        models: False: the next word is no model.
        runs: True: several keys make several runs.
        grid: True: several α are the grid of one call, not one call each.
        summary: What it does. Default: the first sentence of the function's docstring.
    """

    target: str
    learner: bool | None = False
    models: bool = True
    runs: bool = False
    grid: bool = False
    summary: str = ""


COMMANDS: dict[str, Command] = {
    "run": Command("cli.run:run"),
    "sweep": Command("cli.run:sweep", models=False),
    "gamp": Command("inference.message_passing:gamp", learner=None),
    "state-evolution": Command("inference.evolution:state_evolution"),
    "free-entropy": Command("inference.evolution:free_entropy"),
    "risk": Command(
        "inference.evolution:state_evolution",
        learner=True,
        summary="Compute what ridge, logistic regression or another minimum of a loss has learned.",
    ),
    "global-minimum": Command("inference.learner_search:global_minimum", learner=True),
    "spectral": Command("inference.spectral:spectral"),
    "spectral-overlap": Command("inference.spectral_theory:spectral_overlap"),
    "weak-recovery": Command("thresholds.weak:weak_recovery"),
    "staircase": Command("thresholds.stairs:staircase"),
    "first-order": Command("thresholds.transitions:first_order", grid=True),
    "recovery-threshold": Command("thresholds.transitions:recovery_threshold"),
    "train": Command("descent.training:train", runs=True),
    "descent-theory": Command("sgd.multi_pass:descent_theory"),
    "sgd flow": Command("sgd.gradient_flow:flow"),
    "sgd simulate": Command("sgd.simulation:simulate", runs=True),
    "sgd recovery-time": Command("sgd.gradient_flow:recovery_time"),
    "sgd rates": Command("sgd.landscape:rates"),
    "sgd risk": Command("sgd.landscape:risk"),
    "sgd exponents": Command("sgd.leaps:exponents"),
}

_LINKS = {x.replace("_", "-"): f"models.links:{x}" for x in public_functions("models.links")}
MODELS: dict[str, str] = {
    "deep-attention": "models.deep_attention:DeepAttention",
    "attention-indexed": "models.attention_indexed:AttentionIndexed",
    "bilinear": "models.bilinear:Bilinear",
    "semantic-positional": "models.sequence_single_index:semantic_positional",
    **_LINKS,
}
_MATRICES = {"attention-indexed": "n/d²", "bilinear": "n/(dL)"}  # of these, what α is
_FLAT = ("sign", "sign-product", "sign-committee", "logistic", "door")  # links without a gradient
# those that need no number; a sparse one is --density
_PRIORS = {"gaussian": "priors.iid:Gaussian", "rademacher": "priors.discrete:Rademacher"}
_SPARSE = "priors.discrete:BernoulliGauss"

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
# help of arguments that take more in Python than words can say
_HELP = {
    "student": "The link of the predictions. Default: that of the model, which makes the labels.",
    "ridge": "λ >= 0 of the penalty (λ/2) ‖W‖². Default 0.1.",
    "start": '"spectral", "informed", or a number, the size of random weights; several: one for '
    "each run, the best is shown. Default: spectral or 1e-3, even matrices 0.1 0.3, learners 0.5.",
}
_ALPHA = re.compile(r"N/D (for index models, .* for matrices|\(matrices: .*\)\))")
_MODEL_TYPES = {"AbstractModel", "IndexModel", "AbstractTeacher", "AbstractFlowTeacher"}
_PRIOR_TYPES = {"Prior", "AbstractIidPrior"}
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

    @property
    def several(self) -> bool:
        """Takes several values, by its help: a shape, "one for each"; several α are a curve."""
        shape = r"\((?!\d)[^()]*,[^()]*\)"  # (P, P), not the interval (0, 1)
        said = self.path == ("alpha",) or re.search(rf"{shape}|one (a|for each) ", self.help)
        return "tuple" in str(self.kind) and bool(said)


class CommandLine(NamedTuple):
    """The words of a command line: a command, its model, the values of its flags, and those of
    flags that all commands have."""

    name: str = ""
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
        common = {name: self.common[name] for name in ("runs", "vary") if name in self.common}
        head = {"model": self.model} if self.model else {}
        values = _with_presets(self, self.values)
        return head | values | common | {"seed": self.common.get("seed", 0)}


def flags_of(words: CommandLine) -> dict[str, Flag]:
    """The flags of a command with a model, by name."""
    # where two arguments share a name, the outer one has the short flag
    flags: dict[str, Flag] = {}
    presets = _PRESETS[""] | _PRESETS.get(words.model, {})

    def add(target: str, path: tuple[str, ...]) -> None:
        for argument in read(target).arguments:
            here = (*path, argument.name)
            made_by = _target_of(argument, words)
            also = argument.name == "learner" and words.command.learner is None
            for maker in filter(None, [made_by, _RECORDS["Bayes"] if also else None]):
                add(maker, here)
            kind = _word_type(argument)
            if kind is None or argument.name in _FROM_COMMON:
                continue
            bayes = words.command.learner is False
            if bayes and argument.help.startswith("With a learner"):
                continue
            name = argument.name if argument.name not in flags else "_".join(here)
            required = argument.default is None and set(path) <= _REQUIRED
            # theory has no α by default: its curve is what a user asks for
            sized = argument.name != "alpha" or target.endswith((".sample", ":run"))
            preset = presets.get(argument.name) if required and sized else None
            required = required and preset is None
            said = target in ("inference.message_passing:gamp", "learners.erm:Erm")
            help = _HELP.get(argument.name, argument.help) if said else argument.help
            help = re.sub(" and, with a learner.*", ".", help) if bayes else help
            help = _ALPHA.sub(_MATRICES.get(words.model, "N/D"), help)
            help = re.sub("`| ?Default None[.]| None(?=:)", "", in_shell(help, words))
            if kind is bool:
                word = name.replace("_", "-")
                help = help.replace("False", f"--no-{word}").replace("True", f"--{word}")
            flags[name] = Flag(name, here, kind, help, required, preset)

    add(words.command.target, ())
    return flags


def _target_of(argument: Argument, words: CommandLine) -> str | None:
    """Return the function that builds an argument from flags of its own, or None."""
    names = argument.types
    if argument.name == "learner" and words.command.learner is not False:
        matrix = words.model in _MATRICES
        return "learners.matrix_erm:MatrixErm" if matrix else "learners.erm:Erm"
    if words.model and argument.name == "model":
        return MODELS[words.model]
    if words.model and argument.name == "data":
        return "models.base:AbstractModel.sample"
    # where an argument may be a number, too, the flag is the number
    if argument.name == "prior" and names & _PRIOR_TYPES:
        return _SPARSE
    if "GradientTransformation" in names and "ArrayLike" not in names:
        return "workbench.rows:make_optimizer"
    return next((target for name, target in _RECORDS.items() if name in names), None)


def _word_type(argument: Argument) -> Any:
    """The type of the words that give an argument; None where words cannot."""
    names = argument.types
    # a function has no words but those of the functions that the package has
    if argument.name == "loss" and "Callable" in names:
        return Literal[tuple(public_functions("learners.losses"))]
    if argument.name == "student" and names & _MODEL_TYPES:
        return Literal[tuple(_LINKS)]
    if argument.name == "prior" and names & _PRIOR_TYPES:
        return Literal[tuple(_PRIORS)]
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


def _with_presets(words: CommandLine, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all flags that have one; a word that could have been several as one value."""
    flags, arguments = flags_of(words), read(words.command.target).arguments
    # data that the function does not require are made only if a flag asks for them
    unused = {x.name for x in arguments if x.default} - {flags[name].path[0] for name in values}
    used = {name: flag.preset for name, flag in flags.items() if flag.path[0] not in unused}
    presets = {name: preset for name, preset in used.items() if preset is not None}
    single = lambda value: value[0] if isinstance(value, tuple) and len(value) == 1 else value
    return presets | {name: single(value) for name, value in values.items()}


def call(words: CommandLine, values: Mapping[str, Any]) -> Any:
    """Call the function of a command with the values of its flags."""
    # not at the head: help does not wait for JAX
    import jax

    from jaxsmi.core.validate import check

    flags = flags_of(words)
    values = _with_presets(words, values)
    places = {flags[name].path: _value(flags[name], value) for name, value in values.items()}
    bayes = arguments_of(_RECORDS["Bayes"])
    of_loss = [x for x in places if x[0] == "learner" and x[-1] not in bayes]
    student = values.get("student", words.model)
    if student in _FLAT and (words.command.learner or of_loss):
        raise ValueError(f"--student: {student} has no gradient; write --student linear.")
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
        for argument in read(target).arguments:
            name, here = argument.name, (*path, argument.name)
            needed = argument.default is None or (name == "learner" and words.command.learner)
            asked = [place for place in places if place[: len(here)] == here]
            made_by = _target_of(argument, words)
            if name == "learner" and asked and not of_loss:
                made_by = _RECORDS["Bayes"]
            both = " and ".join(f"--{place[-1]}" for place in asked)
            single = len(asked) == 1 or here not in asked
            single &= name != "learner" or of_loss in ([], asked)
            check(single, name, both, "one of these flags")
            if name in common:
                keywords[name] = common[name]
            elif here in asked:
                keywords[name] = places[here]
            elif made_by and (asked or needed):
                keywords[name] = make(made_by, here)
        # the data are those of the model that was made for the same call
        if path == ("data",):
            # a target of online SGD has no data sets
            check(hasattr(model, "sample"), "model", words.model, "models with data sets")
            return model.sample(**keywords)
        made = load(target)(**keywords)
        model = made if path == ("model",) else model
        # as in theory: the labels are those of the model, not of the student
        run = not path and words.name == "gamp" and hasattr(made, "learner")
        return dataclasses.replace(made, model=model) if run else made

    return make(words.command.target, ())


def arguments_of(target: str, words: bool = True) -> list[str]:
    """Names of the arguments of a target that words can give; False: of those that take objects."""
    own = [x for x in read(target).arguments if x.name not in ("model", "data", *_FROM_COMMON)]
    return [x.name for x in own if words is (_word_type(x) is not None)]


def _value(flag: Flag, value: Any) -> Any:
    """The value of a flag as the function takes it."""
    if flag.path[-1] == "student":
        return load(MODELS[value])()
    # the name of a loss of the package, not a setting that is a word itself
    if flag.path[-1] == "loss" and flag.kind is not str:
        loss = load(f"learners.losses:{value}")
        # huber and quantile make a loss of their threshold or level
        return loss if "prediction" in inspect.signature(loss).parameters else loss()
    return _prior(value) if flag.path[-1] == "prior" else value


def _prior(name: str) -> Any:
    from jaxsmi.core.validate import check

    check(name in _PRIORS, "prior", name, f"one of {', '.join(_PRIORS)}")
    return load(_PRIORS[name])()


@functools.cache
def _python_names() -> dict[str, tuple[str, str]]:
    """Names of `smi` that the shell has: its words, and the target whose arguments are flags."""
    of = lambda target: target.partition(":")[2]
    learners = {"Erm": "learners.erm:Erm", "MatrixErm": "learners.matrix_erm:MatrixErm"}
    return {
        **{name: ("", target) for name, target in (_RECORDS | learners).items()},
        "priors.BernoulliGauss": ("", _SPARSE),
        "sgd": ("jaxsmi sgd", ""),
        **{
            x.replace("-", "_").replace(" ", "."): (f"jaxsmi {x}", y.target)
            for x, y in COMMANDS.items()
        },
        **{("links." if x in _LINKS else "") + of(y): (x, y) for x, y in MODELS.items()},
        **{f"priors.{of(y)}": (f"--prior {x}", y) for x, y in _PRIORS.items()},
        **{f"losses.{x}": (f"--loss {x}", "") for x in public_functions("learners.losses")},
    }


_CALL = re.compile(
    r"(?P<before>\w+=|student )?\bsmi\.(?P<name>\w+(?:\.\w+)*)\b(?:\((?P<given>[^()]*)\)|(?!\())"
)


def in_shell(text: str, words: CommandLine) -> str:
    """A text that says what to write in Python, in the words of the shell:
    `iteration=smi.Iteration(max_steps=9)` becomes `--max-steps 9`."""
    # the file of a sweep has the names of Python
    if words.name not in COMMANDS or not words.command.models:
        return text

    def write(found: re.Match[str]) -> str:
        word, target = _python_names().get(found["name"], ("", ""))
        said = f"--student {word}" if found["before"] in ("student ", "student=") else word
        names = [argument.name for argument in read(target).arguments] if target else []
        given = re.findall(r"(\s*)(?:(\w+)=)?([^\s,]+|(?<==))", found["given"] or "")
        given = [x for x in given if x[1] or x[2] not in ("..", "model", "data")]
        for k, (space, name, value) in enumerate(given):
            if not name and k >= len(names):  # a function without flags
                return found[0]
            # a name without a value, or a value without its name
            name, value = (value, "") if value in names else (name or names[k], value.strip("'."))
            # a line that was broken stays broken
            gap = "\n  " if "\n" in space else " "
            said += f"{' and' if k and not value else ''}{gap}--{name.replace('_', '-')}"
            said += f" {value}" if value else ""
        return said.strip(" ") or found[0]

    text = _CALL.sub(write, text)
    start = lambda found: "--start " + re.sub("[',]", "", found[1])
    return re.sub(r"\bstart=\(([^()]*)\)", start, text)


def make_model(name: str, **parameters: Any) -> Any:
    """Make a model by its name on the command line.

    Raises:
        ValueError: For an unknown name or parameter, in the terms of the file of a sweep.
    """
    from jaxsmi.core.validate import check

    check(name in MODELS, "model", name, f"one of {', '.join(MODELS)}")
    names = arguments_of(MODELS[name])
    check_names("[parameters] ", parameters, names + ["density"] * ("prior" in names))
    # α and the dimension are those of the command
    presets = {key: x for key, x in _PRESETS.get(name, {}).items() if key in names}
    if "prior" in parameters:
        parameters["prior"] = _prior(parameters["prior"])
    if "density" in parameters:
        check("prior" not in parameters, "prior", "prior and density", "one of them")
        parameters["prior"] = load(_SPARSE)(parameters.pop("density"))
    return load(MODELS[name])(**presets | parameters)


def check_names(place: str, given: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise a ValueError that names the first name that is not allowed, or the one meant by it."""
    for name in given:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, 1)
            names = f"; allowed: {', '.join(allowed) or 'none'}."
            said = f": did you mean {close[0]}?" if close else names
            raise ValueError(f"{place}{name} is unknown{said}")


def with_records(solver: str, names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a solver, the fields of its records of settings gathered in these.

    Args:
        solver: The name of its command.
        names: The keyword arguments that it may be given.
        settings: Values by their names, and by those of fields.

    Raises:
        ValueError: For a name that is neither.
    """
    keywords, words = dict(settings), list(names)
    for argument in read(COMMANDS[solver].target).arguments:
        for target in [_RECORDS[name] for name in _RECORDS if name in argument.types]:
            # a loss is a function, which only a command makes of its name
            fields = [field for field in arguments_of(target) if field != "loss"]
            words = [x for x in words if x != argument.name or _word_type(argument)] + fields
            values = {field: keywords.pop(field) for field in fields if field in keywords}
            if values:
                keywords[argument.name] = load(target)(**values)
    check_names("[settings] ", settings, list(dict.fromkeys(words)))
    return keywords
