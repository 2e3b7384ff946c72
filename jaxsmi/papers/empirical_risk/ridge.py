"""Double descent of ridge regression, beside its closed form (descent/baselines.py).

No equation lives here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxsmi.core.results import LearnerSolution
from jaxsmi.descent.baselines import ridge_error
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.learners.erm import Erm
from jaxsmi.models import links
from jaxsmi.papers.common import (
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    finite_size,
    overlay,
    with_bars,
)
from jaxsmi.papers.empirical_risk.curves import (
    arrays_of,
    column,
    curve_of,
    error_bars,
    runs_of,
    theory_key,
)
from jaxsmi.workbench.plotting import legend_above
from jaxsmi.workbench.plotting.palette import INK
from jaxsmi.workbench.plotting.risk import risk_against_alpha

__all__ = ["double_descent"]

_NOISE = 0.25  # Δ of the linear teacher
_RIDGES = (0.001, 0.01, 0.1, 1.0)
_RUN_RIDGE = 0.01  # of the runs on double descent


def double_descent(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Double descent of ridge regression: the test error peaks at α = 1 for a small ridge, and not
    at all for the best one."""
    del reference  # compared with a closed form
    figure, (ax,) = axes_row()
    dimension, seeds = (400, 16) if full else (200, 4)
    beyond = np.linspace(1.2, 3.0, 19 if full else 10)
    alphas = np.concatenate([np.linspace(0.1, 1.1, 41 if full else 21), beyond])
    at = np.array([0.5, 0.8, 1.5, 2.5])
    model = links.linear(_NOISE)
    ridges = (*_RIDGES, _NOISE)
    curves = [curve_of(model, alphas, Erm(ridge=ridge)) for ridge in ridges]
    known = [np.asarray(ridge_error(alphas, ridge, _NOISE)) for ridge in ridges]

    def measure(data: Any, key: jax.Array) -> float:
        run = gamp(model, data, learner=Erm(ridge=_RUN_RIDGE), key=key, max_steps=400)
        return float(run.error)

    runs = runs_of(model, at, dimension, seeds, progress, measure)
    for exact in known:
        overlay(ax, alphas, exact, line=True, label="closed form")
    labels = [rf"$\lambda = {ridge:g}$" for ridge in _RIDGES]
    ax.set_yscale("log")
    risk_against_alpha(curves, [*labels, rf"$\lambda = {_NOISE:g}$, the best"], ax)
    with_bars(ax, at, runs, color=INK, label=rf"GAMP, $\lambda = {_RUN_RIDGE:g}$", zorder=3)
    ax.set_ylabel(r"test error $E(\hat y - z^*)^2$")
    legend_above(ax, 3)
    arrays = {"alpha": alphas, "at": at, "runs": runs}
    for ridge, curve in zip(ridges, curves, strict=True):
        arrays |= arrays_of(curve, f"ridge_{ridge:g}")
    caption = (
        f"Ridge regression on y = z* + noise of variance Δ = {_NOISE:g}: error on new samples, "
        "without their noise. Lines: theory of the minimum of the risk; grey: closed form. The "
        f"posterior mean is the ridge λ = Δ. Dots: message passing, D = {dimension}, means of "
        f"{seeds} data sets with their standard errors."
    )
    compared = _compared_ridges(alphas, curves, known)
    there = np.asarray(ridge_error(at, _RUN_RIDGE, _NOISE))
    compared.append(finite_size(f"runs, λ = {_RUN_RIDGE:g}", runs, there, dimension))
    return Drawn(figure, arrays, caption, compared)


def _compared_ridges(
    alphas: np.ndarray, curves: Sequence[Sequence[LearnerSolution]], known: Sequence[np.ndarray]
) -> list[Comparison]:
    """Errors beside the closed form, the place of the peak, and the posterior mean."""
    compared = []
    for ridge, curve, exact in zip((*_RIDGES, _NOISE), curves, known, strict=True):
        tolerance = 5.0 * error_bars(curve, "error") + 1e-6
        remark = "tolerance: five standard errors of the average, and 1e-6 of the fixed point"
        what = f"test error, λ = {ridge:g}"
        ours = column(curve, "error")
        compared.append(compare(what, ours, exact, tolerance, remark, "closed form"))
    peak = alphas[np.argmax(column(curves[0], "error"))]
    spacing = float(np.max(np.diff(alphas[alphas < 1.1])))
    what = f"peak of the test error, λ = {_RIDGES[0]:g}"
    remark = "tolerance: the spacing of α"
    compared.append(compare(what, peak, 1.0, spacing, remark, "α = 1 as λ → 0"))
    some = slice(None, None, 5)
    posterior = links.linear(_NOISE)
    bayes = [state_evolution(posterior, float(alpha), key=theory_key()) for alpha in alphas[some]]
    best = column(curves[-1], "error")[some]
    tolerance = 5.0 * (error_bars(curves[-1], "error")[some] + column(bayes, "stderr")) + 1e-3
    remark = "tolerance: five standard errors, and ten times the residual of Bayes, 1e-4"
    compared.append(
        compare("test error of λ = Δ", best, column(bayes, "error"), tolerance, remark, "Bayes")
    )
    return compared
