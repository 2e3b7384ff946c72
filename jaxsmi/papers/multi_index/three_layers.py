"""Figure 3: three layers, and a text classifier of two.

Source: [theory: deep-attention, section 7].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import optax

from jaxsmi import text
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.papers.common import (
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    note,
    overlay,
    published,
)
from jaxsmi.papers.multi_index.two_layers import KEY, PREDICTION, fields_of
from jaxsmi.workbench import plotting
from jaxsmi.workbench.sweeps.solvers import curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jaxsmi.text.classifier import TextRun

__all__ = ["three_layers"]

_INTEGRAL = (
    "the published inner integral has 10⁴ uniform points: good for the shape; tolerance: 0.05 and "
    "three standard errors"
)
_FLOOR = "not learned yet; the published floor is 1e-3 α"
_COARSE = "known: the published inner integral is too coarse where the hidden layers are learned"


def three_layers(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 3: three layers, and when each layer of a text classifier settles."""
    figure, (left, middle, right) = axes_row(3, height=3.0)
    key = jax.random.key(KEY)
    if full:
        model = DeepAttention(3, 2)
        alphas = np.arange(1, 33) / 16
        settings: dict[str, Any] = {"samples": 10**4}
    else:
        model = DeepAttention(3, 2, tolerance=0.1, max_nodes=2**12)
        alphas = np.array([0.15, 0.25, 0.375, 0.5, 0.75, 1.0, 1.25, 1.75])
        settings = {"samples": 2**8, "randomisations": 4, "max_steps": 40, "tolerance": 1e-2}
    solutions = curve(model, alphas, key=key, progress=progress, **settings)
    theory = fields_of(solutions, "theory")
    compared: list[Comparison] = []
    table = published(reference, "smi", "BO_3w.csv")
    if table is not None:
        for p in range(3):
            overlay(left, table["alpha"], table[f"Q{p + 1}{p + 1}"], line=True)
        compared = _same_overlaps(theory, table)
    plotting.overlap_against_alpha(solutions, None, left)
    left.set_xlim(0.0, 2.05)
    look: dict[str, Any] = {"color": plotting.colour(0), "label": "state evolution"}
    middle.plot(theory["theory_alpha"], theory["theory_error"], ".-", **look)
    middle.set_xlabel(r"sample complexity $\alpha$")
    middle.set_ylabel(PREDICTION)
    plotting.legend(middle)
    run = _classifier(right, full, progress)
    settled = text.settled_at(run)
    arrays = theory | {
        "epoch": run.epoch,
        "similarity": run.similarity,
        "test_accuracy": run.test_accuracy,
        "settled_at": settled,
    }
    unfinished = [f"{float(one.alpha):.3g}" for one in solutions if not bool(one.converged)]
    caption = (
        "Left: three layers, c = 1; crosses, where the iteration was stopped before it had "
        "converged: "
        f"α = {', '.join(unfinished) or 'none'}. Layer 3 is learned first, then layer 1. "
        "Right: a text classifier of two attention layers on built-in synthetic questions, not on "
        "TREC, "
        f"whose files were not at hand: layers half-way at epochs {settled[0]:.2g} and "
        f"{settled[1]:.2g}, "
        f"test accuracy {run.test_accuracy[-1]:.2f}."
    )
    return Drawn(figure, arrays, caption + note(reference), compared)


def _classifier(ax: Axes, full: bool, progress: bool) -> TextRun:
    """Train the classifier of synthetic questions, and draw its curves."""
    questions = text.synthetic_questions(2000 if full else 300, KEY)
    run = text.classify(
        questions,
        key=jax.random.key(KEY),
        epochs=40,
        optimizer=optax.adamw(5e-4),
        progress=progress,
    )
    plotting.text_curves(run, ax)
    return run


class _Part(NamedTuple):
    """A range of α of an index p that is compared: its ends, what it is called, and the remark."""

    p: int
    above: float
    until: float
    name: str
    remark: str


def _same_overlaps(theory: dict[str, np.ndarray], table: dict[str, np.ndarray]) -> list[Comparison]:
    """Overlaps of three layers beside the published ones, away from the threshold."""
    alpha = theory["theory_alpha"]
    compared = []
    for p, above, until, name, remark in (
        _Part(2, 0.0, 1.0, "α ≤ 1", _INTEGRAL),
        _Part(0, 0.0, 1.0, "α ≤ 1", _FLOOR),
        _Part(1, 0.0, 1.0, "α ≤ 1", _FLOOR),
        _Part(0, 1.0, 2.0, "α > 1", _COARSE),
        _Part(1, 1.0, 2.0, "α > 1", _COARSE),
    ):
        where = (alpha > above) & (alpha <= until) & (np.abs(alpha - 0.206) > 0.04)
        ours = theory["theory_overlap"][where, p, p]
        known = np.interp(alpha[where], table["alpha"], table[f"Q{p + 1}{p + 1}"])
        allowed = 0.05 + 3.0 * np.nan_to_num(theory["theory_stderr"][where, p, p])
        compared.append(compare(f"overlap of layer {p + 1}, {name}", ours, known, allowed, remark))
    return compared
