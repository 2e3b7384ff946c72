"""TODO cli.train."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import jaxsmi as smi
from jaxsmi.cli import report as reports
from jaxsmi.cli.flags import model_of, setting_of
from jaxsmi.cli.report import Report, progress, timed
from jaxsmi.core.checks import Ability, check
from jaxsmi.core.codes import Result, outcome
from jaxsmi.descent import order as learning
from jaxsmi.workbench import plotting, storage

OPTIMIZERS: dict[str, tuple[str, Callable[..., optax.GradientTransformation]]] = {
    "sgd": ("SGD", optax.sgd),
    "momentum": ("SGD with momentum 0.9", lambda rate: optax.sgd(rate, momentum=0.9)),
    "adam": ("Adam", optax.adam),
}


def train(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Learn a teacher by gradient descent, several runs at once, and compare the order of learning with GAMP.

    The defaults are the published setting of two attention layers, cut to fewer steps.
    """
    parser.add_argument(
        "--alpha",
        type=float,
        default=15.0,
        help="sample complexity N/D (matrices: n/d^2 or n/(dL))",
    )
    parser.add_argument("--dimension", type=int, default=500, help="dimension D of a token")
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="sgd", help="; ".join(OPTIMIZERS)
    )
    parser.add_argument(
        "--learning-rate", type=float, default=15.0, help="learning rate (of order 0.01 for adam)"
    )
    parser.add_argument(
        "--weight-decay", type=float, default=0.07, help="decay of the weights, divided by D"
    )
    parser.add_argument(
        "--reduction", choices=("sum/D", "mean", "sum"), default="sum/D", help="loss of a batch"
    )
    parser.add_argument(
        "--batch-size", type=int, default=200, help="samples in a batch; 0: all of them"
    )
    parser.add_argument("--repeats", type=int, default=3, help="consecutive updates on each batch")
    parser.add_argument("--steps", type=int, default=10000, help="batches")
    parser.add_argument(
        "--online", action="store_true", help="fresh samples at each step, none used twice"
    )
    parser.add_argument("--init", type=float, default=0.9, help="size of the random start")
    parser.add_argument("--runs", type=int, default=4, help="runs at once, from different starts")
    parser.add_argument("--level", type=float, default=0.5, help="cosine that counts as learned")
    parser.add_argument(
        "--gamp",
        type=float,
        default=0.0,
        metavar="ALPHA",
        help="lay GAMP at this alpha beside it; 0: no",
    )

    def execute(arguments: argparse.Namespace) -> Report:
        check(arguments.gamp >= 0, "--gamp", arguments.gamp, "a number >= 0")
        check(arguments.runs >= 1, "--runs", arguments.runs, "an integer >= 1")
        check(0 < arguments.level < 1, "--level", arguments.level, "a cosine in (0, 1)")
        check(arguments.batch_size >= 0, "--batch-size", arguments.batch_size, "an integer >= 0")
        check(
            not (arguments.online and arguments.gamp),
            "--gamp",
            arguments.gamp,
            "0 with --online: no data are kept",
        )
        model = model_of(arguments)
        method = OPTIMIZERS[arguments.optimizer][0]
        with timed() as seconds:
            order, teacher = _learning_order(model, arguments, method)
            jax.block_until_ready([s.weights for s in order.solutions.values()])
        found = {name: reports.learned(order, name) for name in order.solutions}
        matrices = model.refusal(Ability.AVERAGES) is None and arguments.runs > 1
        met = {Result[code] for one in found.values() for code in one["result"]}
        text = [
            setting_of(arguments),
            reports.table(
                ["method", "", "learned at", "runs", "final cosine"],
                [row for name in found for row in reports.learned_rows(order, name)],
            ),
            *(
                f"Order of {name}: {', then '.join(one['order']) or 'nothing learned'}."
                for name, one in found.items()
            ),
            *(reports.wrapped(f"{code.name}: {outcome(code, 'train')}") for code in sorted(met)),
            *([reports.averaged(order.solutions[method], teacher)] if matrices else []),
            f"{seconds[0]:.1f} s with compilation; {method}: {_rate(order, method, arguments, seconds[0]):.3g} samples/s.",
        ]

        def draw(figure: Any) -> None:
            count = len(order.solutions)
            figure.set_size_inches(4.4 * count + 0.6, 3.8)
            plotting.learning_order(
                order, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
            )

        kept = (
            {name: storage.runs(solution) for name, solution in order.solutions.items()}
            if arguments.out
            else {}
        )
        return Report({"methods": found, "seconds": seconds[0]}, "\n".join(text), draw, kept)

    return execute


def _learning_order(
    model: Any, arguments: argparse.Namespace, method: str
) -> tuple[learning.LearningOrder, Any]:
    """The gradient method, with GAMP beside it where it is asked for, and the teacher."""
    data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(arguments.seed), 1))
    D = arguments.dimension
    step = OPTIMIZERS[arguments.optimizer][1](arguments.learning_rate)
    if arguments.weight_decay:
        step = optax.chain(optax.add_decayed_weights(arguments.weight_decay / D), step)
    settings = {
        name: getattr(arguments, name) for name in ("repeats", "steps", "reduction", "init")
    }
    settings |= {"optimizer": step, "batch_size": arguments.batch_size or None}
    if arguments.online:
        check(arguments.batch_size > 0, "--batch-size", 0, "at least 1 with --online")
        stream = smi.Stream(model, model.start(data_key, D), dtype="float32")
        keys = jax.random.split(key, arguments.runs)
        fit = smi.train(model, stream, key=keys, progress=progress(arguments), **settings)
        learned = {method: smi.learned_at(fit, arguments.level)}
        return learning.LearningOrder(
            {method: fit}, learned, arguments.level, {method: float("inf")}, {}
        ), stream.teacher
    data = model.sample(data_key, dimension=D, alpha=arguments.alpha, dtype="float32")
    methods: dict[str, dict[str, Any]] = (
        {"GAMP": {"alpha": arguments.gamp}} if arguments.gamp else {}
    )
    order = smi.learning_order(
        model, data, methods | {method: settings}, key=key, seeds=arguments.runs, level=arguments.level,
        progress=progress(arguments),
    )  # fmt: skip
    return order, data.teacher


def _rate(
    order: learning.LearningOrder, method: str, arguments: argparse.Namespace, seconds: float
) -> float:
    """Samples a second of the gradient method: its updates times its batch."""
    updates = (
        int(np.max(np.asarray(order.solutions[method].steps))) * arguments.repeats * arguments.runs
    )
    whole = round(
        arguments.alpha / order.solutions[method].model.complexity(1, arguments.dimension)
    )
    batch = arguments.batch_size if arguments.online else min(arguments.batch_size or whole, whole)
    return updates * batch / order.seconds.get(method, seconds)
