"""The command `jaxsmi train MODEL`: gradient descent beside message passing.

No equation lives here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jaxtyping import Array

import jaxsmi as smi
from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import model_of, progress, setting_of
from jaxsmi.cli.models import defaults_for
from jaxsmi.cli.report import Report, average, learned, learned_rows, table, timed, wrapped
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result, outcome
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench import plotting, storage
from jaxsmi.workbench.order import LearningOrder
from jaxsmi.workbench.plotting.drawing import PAGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxsmi.workbench.storage import Storable

__all__ = ["COMMAND"]

OPTIMIZERS: dict[str, tuple[str, Callable[..., optax.GradientTransformation]]] = {
    "sgd": ("SGD", optax.sgd),
    "momentum": ("SGD with momentum 0.9", lambda rate: optax.sgd(rate, momentum=0.9)),
    "adam": ("Adam", optax.adam),
}
_ADAM_RATE = 0.01


def _defaults(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Those of the model; Adam's rate where the model's own is that of another optimiser."""
    usual = defaults_for(arguments)
    adam = vars(arguments).get("optimizer") == "adam"  # of the help no word is known but the model
    other = adam and usual.get("optimizer") != "adam"
    return {**usual, "learning_rate": _ADAM_RATE} if other else usual


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add = parser.add_argument
    add(
        "--alpha",
        type=float,
        default=15.0,
        help="sample complexity N/D (matrices: n/d^2 or n/(dL))",
    )
    add("--dimension", type=int, default=500, help="dimension D of a token")
    add("--optimizer", choices=OPTIMIZERS, default="sgd", help="; ".join(OPTIMIZERS))
    add("--learning-rate", type=float, default=15.0, help="learning rate; of adam 0.01 by default")
    add("--weight-decay", type=float, default=0.07, help="decay of the weights, divided by D")
    add("--reduction", choices=("sum/D", "mean", "sum"), default="sum/D", help="loss of a batch")
    add(
        "--batch-size",
        type=int,
        default=200,
        help="samples in a batch; 0, or more than there are: all of them",
    )
    add("--repeats", type=int, default=3, help="consecutive updates on each batch")
    add("--steps", type=int, default=10000, help="batches")
    add("--online", action="store_true", help="fresh samples at each step, none used twice")
    add("--init", type=float, default=0.9, help="size of the random start")
    add("--runs", type=int, default=4, help="runs at once, from different starts")
    add("--level", type=float, default=0.5, help="cosine that counts as learned")
    add(
        "--gamp",
        type=float,
        default=0.0,
        metavar="ALPHA",
        help="lay GAMP at this alpha beside it; 0: no",
    )


def _check(arguments: argparse.Namespace) -> None:
    """Raise a ValueError for a flag out of its range."""
    online = arguments.online
    batch = arguments.batch_size
    check(arguments.gamp >= 0, "--gamp", arguments.gamp, "a number >= 0")
    check(arguments.runs >= 1, "--runs", arguments.runs, "an integer >= 1")
    check(0 < arguments.level < 1, "--level", arguments.level, "a cosine in (0, 1)")
    check(batch >= 0, "--batch-size", batch, "an integer >= 0")
    allowed = "0 with --online: no data are kept"
    check(not (online and arguments.gamp), "--gamp", arguments.gamp, allowed)
    check(batch > 0 or not online, "--batch-size", batch, "at least 1 with --online")


def _execute(arguments: argparse.Namespace) -> Report:
    """Train, and say in which order the indices were learned."""
    _check(arguments)
    model = model_of(arguments)
    method = OPTIMIZERS[arguments.optimizer][0]
    with timed() as seconds:
        order, teacher = _learning_order(model, arguments, method)
        jax.block_until_ready([solution.weights for solution in order.solutions.values()])
    methods = {name: learned(order, name) for name in order.solutions}
    rows = [row for name in methods for row in learned_rows(order, name)]
    outcomes = {
        (Result[code], outcome(Result[code], order.solutions[name].kind))
        for name, entry in methods.items()
        for code in entry["result"]
    }
    text = [
        setting_of(arguments),
        table(["method", "", "learned at", "runs", "final cosine"], rows),
    ]
    level = arguments.level
    said = (
        f"learned at: the step at which the cosine is first {level:g}, between records by a line, "
    )
    said += "median of the runs ± half of their quartiles' distance; final cosine: mean ± spread."
    text.append(wrapped(said))
    for name, entry in methods.items():
        text.append(f"Order of {name}: {', then '.join(entry['order']) or 'nothing learned'}.")
    text += [wrapped(f"{code.name}: {sentence}") for code, sentence in sorted(outcomes)]
    if model.unsupported_reason("averages") is None and arguments.runs > 1:
        text.append(average(order.solutions[method], teacher))
    rate = _rate(order, method, arguments, seconds[0])
    text.append(f"{seconds[0]:.1f} s with compilation; {method}: {rate:.3g} samples/s.")

    def draw(figure: Figure) -> None:
        count = len(order.solutions)
        figure.set_size_inches(max(PAGE, 2.4 * count), 2.9)
        axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
        plotting.learning_order(order, list(axes))

    def stored() -> Storable:
        return {name: storage.runs(solution) for name, solution in order.solutions.items()}

    return Report({"methods": methods, "seconds": seconds[0]}, "\n".join(text), draw, stored)


def _learning_order(
    model: AbstractModel, arguments: argparse.Namespace, method: str
) -> tuple[LearningOrder, Array]:
    """The gradient method, with message passing beside it if asked for, and the teacher."""
    data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(arguments.seed), 1))
    dimension = arguments.dimension
    step = OPTIMIZERS[arguments.optimizer][1](arguments.learning_rate)
    if arguments.weight_decay:
        decay = optax.add_decayed_weights(arguments.weight_decay / dimension)
        step = optax.chain(decay, step)
    settings: dict[str, Any] = {
        "steps": arguments.steps,
        "start": arguments.init,
        "optimizer": step,
    }
    gradient = {"reduction": arguments.reduction, "repeats": arguments.repeats}
    shown = progress(arguments)
    level = arguments.level
    if arguments.online:
        settings["gradient"] = smi.Gradient(batch_size=arguments.batch_size or None, **gradient)
        stream = smi.Stream(model, model.design.draw_teacher(data_key, dimension), dtype="float32")
        keys = jax.random.split(key, arguments.runs)
        fit = smi.train(model, stream, key=keys, monitor=smi.Monitor(progress=shown), **settings)
        times = {method: smi.learned_at(fit, level)}
        order = LearningOrder({method: fit}, times, level, {method: float("inf")}, {})
        return order, stream.teacher
    data = model.sample(data_key, dimension=dimension, alpha=arguments.alpha, dtype="float32")
    size = min(arguments.batch_size, data.samples)  # the default is for large data
    settings["gradient"] = smi.Gradient(batch_size=size or None, **gradient)
    methods: dict[str, dict[str, Any]] = {method: settings}
    if arguments.gamp:
        methods = {"GAMP": {"alpha": arguments.gamp}} | methods
    order = smi.learning_order(
        model, data, methods, key=key, seeds=arguments.runs, level=level, progress=shown
    )
    assert data.teacher is not None
    return order, data.teacher


def _rate(
    order: LearningOrder, method: str, arguments: argparse.Namespace, seconds: float
) -> float:
    """Samples a second of the gradient method: its updates times its batch."""
    solution = order.solutions[method]
    steps = int(np.max(np.asarray(solution.steps)))
    updates = steps * arguments.repeats * arguments.runs
    samples = round(arguments.alpha * solution.model.design.entries(arguments.dimension))
    batch = arguments.batch_size
    if not arguments.online:
        batch = min(batch or samples, samples)
    return updates * batch / order.seconds.get(method, seconds)


COMMAND = Command(
    "train",
    "Learn a teacher by gradient descent, several runs at once, and compare the order of learning "
    "with GAMP.",
    _add_flags,
    _execute,
    details="The defaults are the published setting of two attention layers, cut to fewer steps.",
    defaults=_defaults,
)
