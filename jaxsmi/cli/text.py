"""The command `jaxsmi text`: a small attention classifier of questions. No equation lives here."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING

import jax
import optax

import jaxsmi as smi
from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import progress
from jaxsmi.cli.report import Report, table, timed
from jaxsmi.core.checks import check
from jaxsmi.core.provenance import fields_of
from jaxsmi.workbench import plotting, storage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("--file", type=pathlib.Path, help="lines `LABEL:sub text`; else built in")
    parser.add_argument(
        "--test-file", type=pathlib.Path, help="of the same form; else a fifth is held out"
    )
    parser.add_argument(
        "--questions", type=int, default=600, help="how many synthetic questions, without a file"
    )
    parser.add_argument("--epochs", type=int, default=40, help="passes over the questions")
    parser.add_argument(
        "--learning-rate", type=float, help="of AdamW (5e-5 for a file, 5e-4 for the few built in)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="questions in a batch")


def _execute(arguments: argparse.Namespace) -> Report:
    """Train the classifier, and say when each layer settled."""
    path = arguments.file
    tests = arguments.test_file
    check(tests is None or path is not None, "--test-file", tests, "only with --file")
    if path is None:
        questions = smi.text.synthetic_questions(arguments.questions, arguments.seed)
        source = f"{len(questions)} synthetic questions (templates, not TREC)"
    else:
        questions = smi.text.load(path)
        source = str(path)
    rate = arguments.learning_rate
    if rate is None:
        rate = 5e-4 if path is None else 5e-5
    with timed() as seconds:
        run = smi.text.classify(
            questions,
            smi.text.load(tests) if tests else None,
            key=jax.random.key(arguments.seed),
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            optimizer=optax.adamw(rate),
            progress=progress(arguments),
        )
    settled = smi.text.settled_at(run)
    rows = [
        [f"layer {p + 1}", f"{run.similarity[0, p]:.4f}", f"{settled[p]:.3g}"]
        for p in range(run.similarity.shape[1])
    ]
    accuracy = f"{run.accuracy[-1]:.3f}; on held-out questions: {run.test_accuracy[-1]:.3f}"
    lines = [
        f"{source}; {len(run.classes)} classes, {len(run.vocabulary)} words.",
        f"AdamW, rate {rate:g}, batches of {arguments.batch_size}, {arguments.epochs} epochs.",
        table(["", "similarity at the start", "epoch of half-way"], rows),
        f"Accuracy: {accuracy}.",
        f"{run.result.name}, {seconds[0]:.1f} s.",
    ]
    names = ("step", "epoch", "similarity", "train_loss", "accuracy", "test_accuracy", "classes")
    data = fields_of(run, names)
    data |= {
        "learning_rate": rate,
        "length": run.length,
        "words": len(run.vocabulary),
        "settled_at": settled,
        "seconds": seconds[0],
        "synthetic": path is None,
        "result": run.result.name,
    }

    def draw(figure: Figure) -> None:
        plotting.text_curves(run, figure.subplots())

    return Report(data, "\n".join(lines), draw, lambda: storage.text_run(run))


COMMAND = Command(
    "text",
    "Train a small attention classifier of questions, and show when each of its layers settles.",
    _add_flags,
    _execute,
    takes_model=False,
)
