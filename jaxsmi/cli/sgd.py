"""The command `jaxsmi sgd TASK`: what `jaxsmi.sgd` answers about one problem.

No equation lives here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from jaxsmi import sgd as online
from jaxsmi.cli.command import Command
from jaxsmi.cli.report import Report, timed, wrapped
from jaxsmi.cli.sgd_index import INDEX_TASKS, add_model_flags, index_model, index_title
from jaxsmi.cli.sgd_tasks import TASKS
from jaxsmi.core.checks import check
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.workbench import storage

if TYPE_CHECKING:
    from jaxsmi.workbench.storage import Storable

__all__ = ["COMMAND"]

STUDENTS = ("attention", "linear-attention", "tied", "untied")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    tasks = "; ".join(f"{name}: {task.help}" for name, task in TASKS.items())
    parser.add_argument("task", metavar="TASK", choices=TASKS, help=tasks)
    _add_problem(parser.add_argument_group("the problem"))
    add_model_flags(parser.add_argument_group("an index model instead"))
    add = parser.add_argument_group("learning").add_argument
    add("--gamma", "--rate", type=float, help="learning rate for each sample (0.2; gain: 0.002)")
    add("--dimension", type=int, default=1000, help="dimension d")
    add(
        "--m",
        type=float,
        help="overlap at the start (flow: 1/sqrt(d); --model: M = m I, 0.1)",
    )
    add("--e", type=float, default=0.0, help="positional overlap at the start")
    add("--time", type=float, help="time t = gamma steps/d = kappa alpha to go to (100)")
    add("--alpha", type=float, help="the same as samples over dimension, alpha = t/kappa")
    add("--eta", type=float, help="weak recovery (0.5; gain: 0.2)")
    add("--runs", type=int, default=64, help="runs at once")
    add("--until", type=float, help="a run stops at this norm of the overlaps")
    add("--lengths", type=int, nargs="+", default=[1, 2, 4], help="lengths (gain)")
    add(
        "--schedule",
        choices=("equal", "linear", "sqrt"),
        default="equal",
        help="tied rate over untied (gain)",
    )
    add("--cells", type=int, default=31, help="cells of each axis (phase-diagram)")


def _add_problem(group: argparse._ArgumentGroup) -> None:
    """Flags of the problem: the target and the student."""
    add = group.add_argument
    add("--omega", type=float, help="weight of the positional part of the target (0.5)")
    add("--a", type=float, help="strength of the positional part (1.0)")
    add(
        "--hermite",
        nargs="+",
        metavar="N,..,N:C",
        help="a target instead: degree of each token, and coefficient, e.g. 2,0:1 0,2:1",
    )
    add("--normalised", action="store_true", help="the series is one of orthonormal polynomials")
    add(
        "--student",
        choices=STUDENTS,
        default="attention",
        help="of a Hermite target; tied and untied: ReLU networks",
    )
    add(
        "--trace-norm",
        choices=("sqrtL", "none"),
        default="sqrtL",
        help="factor of attention's trace",
    )
    add(
        "--encoding",
        choices=("none", "paired", "orthonormal"),
        default="none",
        help="positional encoding",
    )
    add("--loss-factor", type=float, default=0.5, help="factor c of the loss")
    add("--loss", choices=("squared", "frobenius"), default="squared", help="squared, or its root")


def _execute(arguments: argparse.Namespace) -> Report:
    """Answer the task, and lay out its lines."""
    _settle_time(arguments)
    _settle_target(arguments)
    check(arguments.runs >= 1, "--runs", arguments.runs, "an integer >= 1")
    check(arguments.cells >= 2, "--cells", arguments.cells, "an integer >= 2")
    task = TASKS[arguments.task]
    model = index_model(arguments)
    with timed() as seconds:
        if model is None:
            title = task.title(arguments)
            answer = task.answer(_model_of(arguments), arguments)
        else:
            tasks = tuple(INDEX_TASKS)
            check(arguments.task in tasks, "task", arguments.task, f"one of {tasks}, with --model")
            allowed = "nothing beside --model: it is the target of another problem"
            check(arguments.hermite is None, "--hermite", arguments.hermite, allowed)
            title = index_title(model, arguments)
            answer = INDEX_TASKS[arguments.task](model, arguments)
    text = "\n".join([wrapped(title), *answer.lines, f"{seconds[0]:.1f} s."])

    def stored() -> Storable:
        return storage.arrays(answer.arrays) if answer.arrays else {}

    data = dict(answer.data) | {"seconds": seconds[0]}
    return Report(data, text, answer.draw, stored)


def _settle_time(arguments: argparse.Namespace) -> None:
    """The time to go to, of --time or of --alpha."""
    both = arguments.time is not None and arguments.alpha is not None
    check(not both, "--alpha", arguments.alpha, "one of --alpha and --time")
    if arguments.alpha is not None:
        check(arguments.alpha > 0, "--alpha", arguments.alpha, "a number > 0")
        arguments.time = arguments.alpha * arguments.gamma
    arguments.time = 100.0 if arguments.time is None else arguments.time
    check(arguments.time > 0, "--time", arguments.time, "a number > 0")


def _settle_target(arguments: argparse.Namespace) -> None:
    """The weights of the semantic/positional target, where that is the problem."""
    other = "--hermite" if arguments.hermite is not None else "--model"
    elsewhere = arguments.hermite is not None or arguments.index_model is not None
    for name, usual in {"omega": 0.5, "a": 1.0}.items():
        value = vars(arguments)[name]
        allowed = f"nothing beside {other}, which is another target"
        check(value is None or not elsewhere, f"--{name}", value, allowed)
        vars(arguments)[name] = usual if value is None and not elsewhere else value


def _model_of(arguments: argparse.Namespace) -> SequenceSingleIndex:
    """The problem: semantic/positional, or a Hermite target and a student."""
    factor = arguments.loss_factor
    loss = arguments.loss
    if arguments.hermite is None:
        return online.semantic_positional(arguments.omega, arguments.a, factor, loss)
    terms = dict(_term(word) for word in arguments.hermite)
    series = online.HermiteSeries(terms, arguments.normalised)
    encoding = None if arguments.encoding == "none" else arguments.encoding
    student = _student(arguments)
    return SequenceSingleIndex(series, series.length, student, encoding, factor, loss)


def _student(
    arguments: argparse.Namespace,
) -> online.Attention | online.LinearAttention | online.Network:
    """The student of a Hermite target."""
    if arguments.student == "attention":
        return online.Attention(trace_norm=arguments.trace_norm)
    if arguments.student == "linear-attention":
        return online.LinearAttention()
    return online.Network(jax.nn.relu, tied=arguments.student == "tied")


def _term(word: str) -> tuple[tuple[int, ...], float]:
    """Degrees and coefficient of a word such as 2,0:1."""
    try:
        degrees, coefficient = word.split(":")
        return tuple(int(n) for n in degrees.split(",")), float(coefficient)
    except ValueError as failure:
        allowed = "degrees and coefficient, such as 2,0:1"
        raise ValueError(f"--hermite: got {word!r}; allowed: {allowed}.") from failure


def _defaults(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Defaults of the task at hand."""
    return TASKS[arguments.task].defaults


COMMAND = Command(
    "sgd",
    "Online SGD: exponents, risk, flow, runs, growth rates, phase diagram, gain.",
    _add_flags,
    _execute,
    details=(
        "The problem is the semantic/positional one (--omega, --a), or a target given as a Hermite "
        "series (--hermite), or an index model (--model)."
    ),
    takes_model=False,
    operand="TASK",
    defaults=_defaults,
    stem=lambda arguments: f"sgd-{arguments.task}",
)
