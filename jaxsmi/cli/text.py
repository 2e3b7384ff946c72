"""TODO cli.text."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import optax

import jaxsmi as smi
from jaxsmi.cli import report as reports
from jaxsmi.cli.report import Report, progress, timed
from jaxsmi.core.checks import check
from jaxsmi.workbench import plotting, storage


def text(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Train a small attention classifier of questions, and show when each of its layers settles."""
    parser.add_argument(
        "--file",
        type=pathlib.Path,
        default=argparse.SUPPRESS,
        help="lines `LABEL:sub text`; else built in",
    )
    parser.add_argument(
        "--test-file", type=pathlib.Path, default=argparse.SUPPRESS, help="else a fifth is held out"
    )
    parser.add_argument(
        "--questions", type=int, default=600, help="how many synthetic questions, without a file"
    )
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
        questions = (
            smi.text.load(path)
            if path
            else smi.text.synthetic_questions(arguments.questions, arguments.seed)
        )
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
        source = (
            str(path) if path else f"{len(questions)} synthetic questions (templates, not TREC)"
        )
        lines = [
            f"{source}; {len(found.classes)} classes, {len(found.vocabulary)} words.",
            reports.table(["", "similarity at the start", "epoch of half-way"], rows),
            f"Accuracy: {found.accuracy[-1]:.3f}; on held-out questions: {found.test_accuracy[-1]:.3f}.",
            f"{found.result.name}, {seconds[0]:.1f} s.",
        ]
        names = ("step", "epoch", "similarity", "train_loss", "accuracy", "test_accuracy")
        data = {name: getattr(found, name) for name in names}
        data |= {
            "classes": found.classes,
            "words": len(found.vocabulary),
            "settled_at": settled,
            "seconds": seconds[0],
        }
        data |= {"synthetic": path is None, "result": found.result.name}

        def draw(figure: Any) -> None:
            plotting.text_curves(found, figure.subplots())

        kept = storage.text_run(found) if arguments.out else {}
        return Report(data, "\n".join(lines), draw, kept)

    return execute
