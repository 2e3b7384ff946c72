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
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from tqdm import tqdm

import jaxsmi as smi
from jaxsmi import costs, learning, plotting, reports, storage, sweeps
from jaxsmi.cli_figures import figure
from jaxsmi.cli_models import FLAGS, MODELS, OWN
from jaxsmi.cli_sgd import sgd
from jaxsmi.cli_sweep import sweep
from jaxsmi.reports import Report, progress, timed
from jaxsmi.types import Result, Solution, Threshold, check, outcome

__all__ = ["main"]

_OUTPUT: dict[str, dict[str, Any]] = {
    "out": {"type": pathlib.Path, "help": "write figure, netCDF and table to this folder"},
    "json": {"action": "store_true", "help": "print one JSON object instead of the table"},
    "quiet": {"action": "store_true", "help": "no progress bars"},
}


def run(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Draw a teacher, learn it by GAMP from a random start, and lay the run over state evolution."""
    _add_gamp(parser)
    parser.add_argument("--samples", type=int, default=2048, help="points of the outer average of state evolution")
    parser.add_argument("--randomisations", type=int, default=8, help="parts of the points, whose spread is the error bar")
    parser.add_argument("--points", type=int, default=13, help="values of alpha on the curve of state evolution")
    parser.add_argument("--curve-steps", type=int, default=50, help="step budget of each of them")

    def execute(arguments: argparse.Namespace) -> Report:
        check(arguments.points >= 2, "--points", arguments.points, "at least 2")
        model = _model(arguments)
        learned, found = _learn(model, arguments)
        settings = {name: getattr(arguments, name) for name in ("samples", "randomisations")}
        iteration = {"max_steps": arguments.max_steps} if isinstance(model, smi.models.AbstractMatrixModel) else {}
        # A random start has cosine² of about 1/D, and the cosine² of GAMP is what state evolution calls Q.
        with timed() as seconds:
            theory = smi.state_evolution(
                model,
                arguments.alpha,
                key=_theory_key(arguments),
                q0=1.0 / arguments.dimension,
                # what chance keeps telling about a layer not learned yet
                side_information=0.0 if iteration else 1.0 / arguments.dimension,
                newton=False,
                progress=progress(arguments),
                **(settings | iteration),
            )
        top = max(1.3, arguments.alpha * arguments.points / (arguments.points - 0.5))
        if iteration:  # matrices: a little beyond perfect recovery
            end = float(smi.recovery_threshold(model).alpha)
            top = max(1.2 * end if np.isfinite(end) else 0.0, 1.5 * arguments.alpha)
        grid = (np.arange(arguments.points) + 0.5) / arguments.points * top
        with timed() as curve_seconds:
            curve = _curve(model, grid, arguments, settings | {"max_steps": arguments.curve_steps, "tolerance": 1e-3})

        rows = [
            [name, *reports.row(learned, p), reports.with_error(theory, p)]
            for p, name in enumerate(storage.index_names(model, model.indices))
        ]
        unfinished = ", ".join(f"{float(point.alpha):.4g}" for point in curve if not point.converged)
        text = [
            _setting(arguments),
            reports.table(["", "cosine", "cosine²", "Q of GAMP", "Q of state evolution"], rows),
            reports.outcome("GAMP", learned, found["seconds"]),
            reports.outcome("State evolution", theory, seconds[0]),
            f"Curve against alpha: {len(curve)} points, {curve_seconds[0]:.1f} s."
            + (f" Not converged (crosses) at alpha = {unfinished}." if unfinished else ""),
        ]
        data = {
            "gamp": found,
            "state_evolution": reports.plain(theory) | {"seconds": seconds[0]},
            "curve": [reports.plain(point) for point in curve],
        }

        def draw(figure: Any) -> None:
            figure.set_size_inches(9, 3.8)
            left, right = figure.subplots(1, 2, sharey=True)
            plotting.overlap_against_iteration(learned, theory, left)
            plotting.overlap_against_alpha(curve, learned, right, legend=False)

        return Report(data, "\n".join(text), draw, {"gamp": learned, "trajectory": theory, "curve": curve})

    return execute


def gamp(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Draw a teacher and a data set, and learn it by generalised approximate message passing."""
    _add_gamp(parser)
    parser.add_argument("--dtype", choices=("float64", "float32", "bfloat16"), default="float64", help="of the inputs")
    parser.add_argument(
        "--regenerate", action="store_true", help="do not store the inputs: draw them again whenever they are read (float32)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what memory and time it would take; do nothing")

    def execute(arguments: argparse.Namespace) -> Report:
        model = _model(arguments)
        if arguments.dry_run:
            cost = costs.gamp_cost(model, dimension=arguments.dimension, alpha=arguments.alpha, **_storage(arguments))
            return reports.foreseen(cost, arguments.max_steps, costs.copy_bandwidth())
        learned, found = _learn(model, arguments)
        rows = [[name, *reports.row(learned, p)] for p, name in enumerate(storage.index_names(model, model.indices))]
        text = [
            _setting(arguments),
            reports.table(["", "cosine", "cosine²", "Q"], rows),
            f"{reports.error_name(model)}: {float(learned.error):.4g}.",
            reports.outcome("GAMP", learned, found["seconds"]),
        ]

        def draw(figure: Any) -> None:
            plotting.overlap_against_iteration(learned, ax=figure.subplots())

        return Report(found, "\n".join(text), draw, learned)

    return execute


def state_evolution(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Overlaps in the limit of large dimension, at one or several alphas, each starting from the one before."""
    parser.add_argument("--alpha", type=float, nargs="+", required=True, help="sample complexities N/D, n/d^2 or n/(dL)")
    parser.add_argument("--q0", type=float, default=argparse.SUPPRESS, help="start every alpha from this overlap instead")
    parser.add_argument("--samples", type=int, default=8192, help="points of the outer average")
    parser.add_argument("--randomisations", type=int, default=8, help="parts of the points, whose spread is the error bar")
    parser.add_argument("--max-steps", type=int, default=300, help="step budget")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="stop at this distance from the fixed point")

    def execute(arguments: argparse.Namespace) -> Report:
        model = _model(arguments)
        settings = {name: getattr(arguments, name) for name in ("samples", "randomisations", "max_steps", "tolerance")}
        with timed() as seconds:
            curve = _curve(model, sorted(set(arguments.alpha)), arguments, settings, getattr(arguments, "q0", None))
        rows = [
            [
                f"{float(point.alpha):g}",
                *(reports.with_error(point, p) for p in range(model.indices)),
                f"{float(point.error):.4g}",
                f"{int(point.steps)}",
                reports.code(point),
            ]
            for point in curve
        ]
        text = [
            _setting(arguments),
            reports.table(["alpha", *storage.index_names(model, model.indices), "error", "steps", "result"], rows),
            *dict.fromkeys(reports.wrapped(f"{reports.code(point)}: {point.message}") for point in curve),
            f"{seconds[0]:.1f} s.",
        ]
        data = {"curve": [reports.plain(point) for point in curve], "seconds": seconds[0]}

        def draw(figure: Any) -> None:
            plotting.overlap_against_alpha(curve, ax=figure.subplots())

        return Report(data, "\n".join(text), draw, curve)

    return execute


def threshold(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Thresholds in the order of learning, for one model or against one of its parameters."""
    parser.add_argument("--vary", default=argparse.SUPPRESS, metavar="FLAG", help="a flag of the model, e.g. skip")
    parser.add_argument("--values", type=float, nargs="+", default=argparse.SUPPRESS, help="values of that flag")
    parser.add_argument("--alpha-max", type=float, default=10.0, help="look no further than this")
    parser.add_argument("--first", action="store_true", help="weak recovery alone, not the whole staircase")
    parser.add_argument("--samples", type=int, default=8192, help="samples in all, for each threshold")
    parser.add_argument("--replicas", type=int, default=16, help="parts of the samples, whose spread is the error bar")

    def execute(arguments: argparse.Namespace) -> Report:
        vary, values = getattr(arguments, "vary", "").replace("-", "_") or None, getattr(arguments, "values", None)
        if (vary is None) != (values is None):
            raise ValueError("--vary and --values go together: got one of the two.")
        flags = _flags(arguments)
        if vary is not None and vary not in flags:
            raise ValueError(f"--vary: got {vary!r}; allowed: a flag of {arguments.model}: {', '.join(flags) or 'none'}.")
        integral = vary is not None and FLAGS[vary].get("type") is int
        if vary in ("ranks", "output", "symmetric"):
            raise ValueError(f"--vary: got {vary!r}; allowed: a flag of one number.")
        if integral and any(value != int(value) for value in values or []):
            raise ValueError(f"--values: got {values}; allowed: whole numbers, for --vary {vary}.")
        make = MODELS[arguments.model][0]
        settings = {"samples": arguments.samples, "key": _theory_key(arguments)}
        stairs: list[list[Threshold]] = []
        model: Any = None
        with timed() as seconds:
            for value in tqdm(sorted(values) if values else [None], desc=vary, disable=not progress(arguments)):
                own = {} if vary is None or value is None else {vary: int(value) if integral else value}
                model = make(**(flags | own))
                if isinstance(model, smi.models.AbstractMatrixModel):
                    stairs.append([smi.recovery_threshold(model)])
                elif arguments.first:
                    first = smi.weak_recovery(model, randomisations=arguments.replicas, **settings)
                    stairs.append([first] if first.alpha <= arguments.alpha_max or np.isinf(first.alpha) else [])
                else:
                    near = stairs[-1] if stairs and not integral else None
                    found = smi.staircase(
                        model, replicas=arguments.replicas, alpha_max=arguments.alpha_max, guess=near, **settings
                    )
                    stairs.append(found)
        shown = sorted(values) if values else [None]
        rows = [
            [*([] if value is None else [f"{value:g}"]), f"{k + 1}", *reports.stair(step)]
            for value, steps in zip(shown, stairs, strict=True)
            for k, step in enumerate(steps)
        ]
        absent = [value for value, steps in zip(shown, stairs, strict=True) if not steps and value is not None]
        rows += [[f"{value:g}", *"-----"] for value in absent] if rows else []
        header = [*([] if vary is None else [vary]), "step", "alpha", "learned there", "overlap there", "result"]
        nothing = [] if rows else [f"Nothing is learned from labels alone up to alpha = {arguments.alpha_max:g}."]
        met = {Result(int(step.result)) for steps in stairs for step in steps}
        text = [
            _setting(arguments),
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
                        {n: getattr(t, n) for n in names} | {"never": bool(np.isinf(t.alpha)), "result": reports.name(t)}
                        for t in steps
                    ],
                }
                for value, steps in zip(shown, stairs, strict=True)
            ],
            "seconds": seconds[0],
        }

        def draw(figure: Any) -> None:
            plotting.thresholds_against(stairs, values and shown, figure.subplots(), parameter=vary or arguments.model)

        kept = storage.thresholds(stairs, vary or "model", values and shown) if arguments.out and rows else {}
        return Report(data, "\n".join(text), draw if rows else lambda figure: None, kept)

    return execute


OPTIMIZERS: dict[str, tuple[str, Callable[..., optax.GradientTransformation]]] = {
    "sgd": ("SGD", optax.sgd),
    "momentum": ("SGD with momentum 0.9", lambda rate: optax.sgd(rate, momentum=0.9)),
    "adam": ("Adam", optax.adam),
}


def train(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Learn a teacher by gradient descent, several runs at once, and compare the order of learning with GAMP.

    The defaults are the published setting of two attention layers, cut to fewer steps.
    """
    parser.add_argument("--alpha", type=float, default=15.0, help="sample complexity N/D (matrices: n/d^2 or n/(dL))")
    parser.add_argument("--dimension", type=int, default=500, help="dimension D of a token")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help="; ".join(OPTIMIZERS))
    parser.add_argument("--learning-rate", type=float, default=15.0, help="learning rate (of order 0.01 for adam)")
    parser.add_argument("--weight-decay", type=float, default=0.07, help="decay of the weights, divided by D")
    parser.add_argument("--reduction", choices=("sum/D", "mean", "sum"), default="sum/D", help="loss of a batch")
    parser.add_argument("--batch-size", type=int, default=200, help="samples in a batch; 0: all of them")
    parser.add_argument("--repeats", type=int, default=3, help="consecutive updates on each batch")
    parser.add_argument("--steps", type=int, default=10000, help="batches")
    parser.add_argument("--online", action="store_true", help="fresh samples at each step, none used twice")
    parser.add_argument("--init", type=float, default=0.9, help="size of the random start")
    parser.add_argument("--runs", type=int, default=4, help="runs at once, from different starts")
    parser.add_argument("--level", type=float, default=0.5, help="cosine that counts as learned")
    parser.add_argument("--gamp", type=float, default=0.0, metavar="ALPHA", help="lay GAMP at this alpha beside it; 0: no")

    def execute(arguments: argparse.Namespace) -> Report:
        check(arguments.gamp >= 0, "--gamp", arguments.gamp, "a number >= 0")
        check(arguments.runs >= 1, "--runs", arguments.runs, "an integer >= 1")
        check(0 < arguments.level < 1, "--level", arguments.level, "a cosine in (0, 1)")
        check(arguments.batch_size >= 0, "--batch-size", arguments.batch_size, "an integer >= 0")
        check(not (arguments.online and arguments.gamp), "--gamp", arguments.gamp, "0 with --online: no data are kept")
        model = _model(arguments)
        method = OPTIMIZERS[arguments.optimizer][0]
        with timed() as seconds:
            order, teacher = _learning_order(model, arguments, method)
            jax.block_until_ready([s.weights for s in order.solutions.values()])
        found = {name: reports.learned(order, name) for name in order.solutions}
        matrices = isinstance(model, smi.models.AbstractMatrixModel) and arguments.runs > 1
        met = {Result[code] for one in found.values() for code in one["result"]}
        text = [
            _setting(arguments),
            reports.table(
                ["method", "", "learned at", "runs", "final cosine"],
                [row for name in found for row in reports.learned_rows(order, name)],
            ),
            *(f"Order of {name}: {', then '.join(one['order']) or 'nothing learned'}." for name, one in found.items()),
            *(reports.wrapped(f"{code.name}: {outcome(code, 'train')}") for code in sorted(met)),
            *([reports.averaged(order.solutions[method], teacher)] if matrices else []),
            f"{seconds[0]:.1f} s with compilation; {method}: {_rate(order, method, arguments, seconds[0]):.3g} samples/s.",
        ]

        def draw(figure: Any) -> None:
            count = len(order.solutions)
            figure.set_size_inches(4.4 * count + 0.6, 3.8)
            plotting.learning_order(order, list(figure.subplots(1, count, sharey=True, squeeze=False)[0]))

        kept = {name: storage.runs(solution) for name, solution in order.solutions.items()} if arguments.out else {}
        return Report({"methods": found, "seconds": seconds[0]}, "\n".join(text), draw, kept)

    return execute


def _learning_order(model: Any, arguments: argparse.Namespace, method: str) -> tuple[learning.LearningOrder, Any]:
    """The gradient method, with GAMP beside it where it is asked for, and the teacher."""
    data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(arguments.seed), 1))
    D = arguments.dimension
    step = OPTIMIZERS[arguments.optimizer][1](arguments.learning_rate)
    if arguments.weight_decay:
        step = optax.chain(optax.add_decayed_weights(arguments.weight_decay / D), step)
    settings = {name: getattr(arguments, name) for name in ("repeats", "steps", "reduction", "init")}
    settings |= {"optimizer": step, "batch_size": arguments.batch_size or None}
    if arguments.online:
        check(arguments.batch_size > 0, "--batch-size", 0, "at least 1 with --online")
        stream = smi.Stream(model, model.start(data_key, D), dtype="float32")
        keys = jax.random.split(key, arguments.runs)
        fit = smi.train(model, stream, key=keys, progress=progress(arguments), **settings)
        learned = {method: smi.learned_at(fit, arguments.level)}
        return learning.LearningOrder({method: fit}, learned, arguments.level, {method: float("inf")}, {}), stream.teacher
    data = model.sample(data_key, dimension=D, alpha=arguments.alpha, dtype="float32")
    methods: dict[str, dict[str, Any]] = {"GAMP": {"alpha": arguments.gamp}} if arguments.gamp else {}
    order = smi.learning_order(
        model, data, methods | {method: settings}, key=key, seeds=arguments.runs, level=arguments.level,
        progress=progress(arguments),
    )  # fmt: skip
    return order, data.teacher


def _rate(order: learning.LearningOrder, method: str, arguments: argparse.Namespace, seconds: float) -> float:
    """Samples a second of the gradient method: its updates times its batch."""
    updates = int(np.max(np.asarray(order.solutions[method].steps))) * arguments.repeats * arguments.runs
    whole = round(arguments.alpha / order.solutions[method].model.complexity(1, arguments.dimension))
    batch = arguments.batch_size if arguments.online else min(arguments.batch_size or whole, whole)
    return updates * batch / order.seconds.get(method, seconds)


def text(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Train a small attention classifier of questions, and show when each of its layers settles."""
    parser.add_argument("--file", type=pathlib.Path, default=argparse.SUPPRESS, help="lines `LABEL:sub text`; else built in")
    parser.add_argument("--test-file", type=pathlib.Path, default=argparse.SUPPRESS, help="else a fifth is held out")
    parser.add_argument("--questions", type=int, default=600, help="how many synthetic questions, without a file")
    parser.add_argument("--epochs", type=int, default=40, help="passes over the questions")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=argparse.SUPPRESS,
        help="of AdamW (5e-5 for a file, 5e-4 for the few built in)",
    )
    parser.add_argument("--batch-size", type=int, default=32, help="questions in a batch")

    def execute(arguments: argparse.Namespace) -> Report:
        path, tests = getattr(arguments, "file", None), getattr(arguments, "test_file", None)
        check(tests is None or path is not None, "--test-file", tests, "only with --file")
        questions = smi.text.load(path) if path else smi.text.synthetic_questions(arguments.questions, arguments.seed)
        with timed() as seconds:
            found = smi.text.classify(
                questions,
                smi.text.load(tests) if tests else None,
                key=jax.random.key(arguments.seed),
                epochs=arguments.epochs,
                batch_size=arguments.batch_size,
                optimizer=optax.adamw(getattr(arguments, "learning_rate", 5e-5 if path else 5e-4)),
                progress=progress(arguments),
            )
        settled = smi.text.settled_at(found)
        rows = [
            [f"layer {p + 1}", f"{found.similarity[0, p]:.4f}", f"{settled[p]:.3g}"]
            for p in range(found.similarity.shape[1])
        ]
        source = str(path) if path else f"{len(questions)} synthetic questions (templates, not TREC)"
        lines = [
            f"{source}; {len(found.classes)} classes, {len(found.vocabulary)} words.",
            reports.table(["", "similarity at the start", "epoch of half-way"], rows),
            f"Accuracy: {found.accuracy[-1]:.3f}; on held-out questions: {found.test_accuracy[-1]:.3f}.",
            f"{found.result.name}, {seconds[0]:.1f} s.",
        ]
        names = ("step", "epoch", "similarity", "train_loss", "accuracy", "test_accuracy")
        data = {name: getattr(found, name) for name in names}
        data |= {"classes": found.classes, "words": len(found.vocabulary), "settled_at": settled, "seconds": seconds[0]}
        data |= {"synthetic": path is None, "result": found.result.name}

        def draw(figure: Any) -> None:
            plotting.text_curves(found, figure.subplots())

        kept = storage.text_run(found) if arguments.out else {}
        return Report(data, "\n".join(lines), draw, kept)

    return execute


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
    jax.config.update("jax_enable_x64", True)  # the library leaves that to programs, and this is one
    try:
        _prepare(arguments)
        report = arguments.execute(arguments)
        files = [] if getattr(arguments, "dry_run", False) else _write(report, arguments)
    except (ValueError, ImportError, OSError) as error:
        print(f"jaxsmi {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"jaxsmi {arguments.command}: interrupted", file=sys.stderr)
        return 130
    if arguments.json:
        data = {"command": arguments.command, "settings": _settings(arguments), **report.data, "files": files}
        print(json.dumps(storage.parameters(data, largest=np.inf), allow_nan=False))
    else:
        print("\n".join([report.text, *(f"Written: {file}" for file in files)]))
    return 0


def _parser(defaults: dict[str, dict[str, Any]] | None = None) -> argparse.ArgumentParser:
    """The command line; `defaults` of a command that are others for the model at hand."""
    parser = argparse.ArgumentParser(prog="jaxsmi", description="Solvable models of learning with attention.")
    parser.add_argument("--version", action="version", version=f"jaxsmi {storage.version()}")
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
                owners = [f"{model}: {flags[flag]}" for model, (_, flags) in MODELS.items() if flag in flags]
                shown: dict[str, Any] = {"help": f"{settings['help']} ({', '.join(owners)})"}
                shown |= {} if "action" in settings else {"metavar": flag[0].upper()}
                own.add_argument(f"--{flag.replace('_', '-')}", default=argparse.SUPPRESS, **(settings | shown))
        child.set_defaults(execute=command(child), out=None, json=False, quiet=False)
        child.add_argument("--seed", type=int, default=0, help="seed of all random numbers")
        # suppressed, so that the help does not show an empty default for them
        for flag, settings in _OUTPUT.items():
            child.add_argument(f"--{flag}", default=argparse.SUPPRESS, **settings)
        child.set_defaults(**(defaults or {}).get(name, {}))
    return parser


def _add_gamp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alpha", type=float, default=1.2, help="sample complexity N/D (matrices: n/d^2 or n/(dL))")
    parser.add_argument("--dimension", type=int, default=1000, help="dimension D of a token")
    parser.add_argument("--max-steps", type=int, default=100, help="step budget of GAMP")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="stop GAMP at this change of a weight")
    parser.add_argument(
        "--damping",
        type=float,
        default=argparse.SUPPRESS,
        help="damping of GAMP (default: none; of a matrix, as much as it needs)",
    )


def _model(arguments: argparse.Namespace) -> Any:
    return MODELS[arguments.model][0](**_flags(arguments))


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The model's own flags, with defaults; a flag of another model is an error."""
    flags = dict(MODELS[arguments.model][1])
    for flag in FLAGS:
        if hasattr(arguments, flag):
            if flag not in flags:
                own = ", ".join(f"--{own}" for own in flags) or "none"
                raise ValueError(f"--{flag.replace('_', '-')} is no flag of {arguments.model}; its own: {own}.")
            value = getattr(arguments, flag)
            flags[flag] = value[0] if isinstance(value, list) and len(value) == 1 else value
    return flags


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that decides the numbers."""
    aside = {"command", "execute", "model", *_OUTPUT, *FLAGS}
    rest = {name: value for name, value in vars(arguments).items() if name not in aside}
    if not hasattr(arguments, "model"):
        return rest
    return {"model": arguments.model, **_flags(arguments), **rest}


def _learn(model: Any, arguments: argparse.Namespace) -> tuple[Solution, dict[str, Any]]:
    data_key, start_key = jax.random.split(jax.random.fold_in(jax.random.key(arguments.seed), 1))
    with timed() as seconds:
        data = model.sample(data_key, dimension=arguments.dimension, alpha=arguments.alpha, **_storage(arguments))
        solution = smi.gamp(
            model,
            data,
            key=start_key,
            max_steps=arguments.max_steps,
            tolerance=arguments.tolerance,
            damping=getattr(arguments, "damping", None),
            progress=progress(arguments),
        )
        jax.block_until_ready(solution.overlap)
    found = {"cosine": solution.cosine, "seconds": seconds[0]}
    return solution, reports.plain(solution) | found


def _storage(arguments: argparse.Namespace) -> dict[str, Any]:
    """How the inputs are kept."""
    if getattr(arguments, "regenerate", False):
        return {"store": False}
    return {"dtype": getattr(arguments, "dtype", None)}


def _theory_key(arguments: argparse.Namespace) -> jax.Array:
    return jax.random.fold_in(jax.random.key(arguments.seed), 2)


def _curve(
    model: Any, alphas: Any, arguments: argparse.Namespace, settings: dict[str, Any], q0: float | None = None
) -> list[Solution]:
    """State evolution in ascending alpha; without `q0` each point starts near the one before: the branch from below."""
    start = {} if q0 is None else {"q0": q0}
    return sweeps.curve(model, alphas, key=_theory_key(arguments), progress=progress(arguments), **start, **settings)


def _setting(arguments: argparse.Namespace) -> str:
    settings = _settings(arguments)
    return reports.wrapped(
        settings.pop("model") + ": " + ", ".join(f"{name} {reports.short(it)}" for name, it in settings.items())
    )


def _prepare(arguments: argparse.Namespace) -> None:
    """Find out before the work, not after it, that its results cannot be written."""
    if arguments.out and not getattr(arguments, "dry_run", False):
        plotting.require()
        storage.require()
        arguments.out.mkdir(parents=True, exist_ok=True)


def _write(report: Report, arguments: argparse.Namespace) -> list[str]:
    """Figure, netCDF and table, named after the command; returns their paths."""
    if not arguments.out:
        return []
    from matplotlib.figure import Figure  # not pyplot: no window, whatever the machine

    figure = report.figure or Figure(figsize=(5, 3.6), layout="constrained")
    report.draw(figure)
    made = {"command": arguments.command, "settings": _settings(arguments)}
    paths = [arguments.out / f"{report.stem or arguments.command}{ending}" for ending in (".png", ".nc", ".txt")]
    plotting.savefig(figure, paths[0], **made)
    storage.save(report.solutions, paths[1], **made)
    paths[2].write_text(report.text + "\n", encoding="utf-8")
    return [str(path) for path in paths]
