"""The command `jaxsmi risk MODEL`: what the minimum of a loss with a ridge learns, in the limit of
large dimension.

No equation lives here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from tqdm import tqdm

import jaxsmi as smi
from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import model_of, progress, setting_of
from jaxsmi.cli.models import defaults_for
from jaxsmi.cli.report import Report, finite, plain, table, timed, with_error, wrapped
from jaxsmi.cli.solving import theory_key
from jaxsmi.core import labelled
from jaxsmi.core.codes import Result
from jaxsmi.core.provenance import fields_of
from jaxsmi.core.results import LearnerSolution
from jaxsmi.models import links
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COMMAND"]

_LOSSES = {
    "squared": smi.losses.squared,
    "logistic": smi.losses.logistic,
    "hinge": smi.losses.hinge,
}
_NUMBERS = ("train_loss", "test_loss", "error", "energy", "stability", "jump_fraction")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument(
        "--alpha", type=float, nargs="+", required=True, help="sample complexities N/D"
    )
    parser.add_argument(
        "--ridge",
        type=float,
        nargs="+",
        default=[0.1],
        help="lambda of the sum of losses + (lambda/2) |W|^2: one, or several to compare",
    )
    parser.add_argument("--loss", choices=tuple(_LOSSES), default="squared", help="of one sample")
    parser.add_argument(
        "--student",
        choices=("same", "linear"),
        default="same",
        help="the network that learns: that of the labels, or one linear unit",
    )
    parser.add_argument(
        "--best-ridge", action="store_true", help="look for the ridge of smallest error instead"
    )
    parser.add_argument("--samples", type=int, help="points of the average (default: 16384)")
    parser.add_argument("--max-steps", type=int, default=300, help="step budget")


def _execute(arguments: argparse.Namespace) -> Report:
    """Solve state evolution of the learner at all alphas and ridges, a row for each."""
    model = model_of(arguments)
    student = links.linear() if arguments.student == "linear" else None
    loss = _LOSSES[arguments.loss]
    key = theory_key(arguments)
    make = lambda ridge: smi.Erm(student, loss=loss, ridge=ridge)
    alphas = sorted(set(arguments.alpha))
    ridges = [None] if arguments.best_ridge else sorted(set(arguments.ridge))
    curves: dict[float | None, list[LearnerSolution]] = {ridge: [] for ridge in ridges}
    rows = []
    messages = []
    total = len(alphas) * len(ridges)
    with timed() as seconds, tqdm(total=total, leave=False, disable=not progress(arguments)) as bar:
        for ridge, curve in curves.items():
            for alpha in alphas:
                held = ridge
                if held is None:
                    held, point = _best(model, alpha, arguments, make)
                else:
                    point = smi.state_evolution(
                        model,
                        alpha,
                        key=key,
                        learner=make(held),
                        samples=arguments.samples,
                        max_steps=arguments.max_steps,
                    )
                assert isinstance(point, LearnerSolution)
                curve.append(point)
                rows.append(_row(point, held))
                code = Result(int(point.result)).name
                messages.append(wrapped(f"{code}: {point.message}"))
                bar.update()
    indices = len(curves[ridges[0]][0].overlap)
    names = [f"Q of {name}" for name in labelled.index_names(student or model, indices)]
    header = ["alpha", "ridge", *names, "cosine", "train loss", "test loss", "error", "energy"]
    text = [
        setting_of(arguments),
        table([*header, "steps", "result"], rows),
        *dict.fromkeys(messages),
        f"{seconds[0]:.1f} s.",
    ]
    data = {
        "curves": [
            {"ridge": ridge, "curve": [_said(point) for point in curve]}
            for ridge, curve in curves.items()
        ],
        "seconds": seconds[0],
    }

    def draw(figure: Figure) -> None:
        labels = ["best ridge" if r is None else f"λ = {r:g}" for r in ridges]
        quantity = "error" if arguments.loss == "squared" else "test_loss"
        ax = figure.subplots()
        plotting.risk_against_alpha(list(curves.values()), labels, ax=ax, quantity=quantity)

    stored = {f"ridge_{number}": curve for number, curve in enumerate(curves.values())}
    return Report(data, "\n".join(text), draw, lambda: stored)


def _best(
    model: AbstractModel,
    alpha: float,
    arguments: argparse.Namespace,
    make: Callable[[ArrayLike], smi.Erm],
) -> tuple[float, LearnerSolution]:
    """The ridge of smallest error, and its theory."""
    search = smi.search_learner(
        model,
        alpha,
        lambda p: make(jnp.exp(p)),
        float(np.log(arguments.ridge[0])),
        key=theory_key(arguments),
        samples=arguments.samples,
    )
    return float(np.exp(search.parameters)), search.solution


def _row(point: LearnerSolution, ridge: float) -> list[str]:
    """The cells of one solution."""
    numbers = fields_of(point, ("train_loss", "test_loss", "error", "energy")).values()
    return [
        f"{float(point.alpha):g}",
        f"{ridge:.4g}",
        *[with_error(point, p) for p in range(len(point.overlap))],
        f"{_cosine(point):.4f}",
        *[f"{float(number):.4g}" for number in numbers],
        f"{int(point.steps)}",
        Result(int(point.result)).name,
    ]


def _cosine(point: LearnerSolution) -> float:
    """‖M‖/√(tr Q tr S): of one index the cosine of student and teacher."""
    S = point.model.prior.second_moment(point.model.indices)
    M = np.asarray(point.teacher_overlap)
    return float(np.linalg.norm(M) / np.sqrt(np.trace(point.overlap) * np.trace(S)))


def _said(point: LearnerSolution) -> dict[str, Any]:
    """What JSON says of a solution."""
    more = {name: finite(value) for name, value in fields_of(point, _NUMBERS).items()}
    assert point.stderrs is not None
    errors = {name: finite(np.max(np.asarray(point.stderrs[name]))) for name in ("error", "energy")}
    overlap = {"teacher_overlap": point.teacher_overlap, "cosine": finite(_cosine(point))}
    return plain(point) | overlap | more | {"stderrs": errors}


COMMAND = Command(
    "risk",
    "What the minimum of a loss with a ridge learns, at one or several alphas and ridges: the end "
    "of gradient descent with weight decay.",
    _add_flags,
    _execute,
    defaults=defaults_for,
)
