"""What learners other than Bayes make of their data, against α.

No equation lives here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.core.results import LearnerSolution
from jaxsmi.workbench.plotting.labels import label_ends
from jaxsmi.workbench.plotting.palette import colour, line
from jaxsmi.workbench.plotting.style import axes_or_new, band, frame, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["risk_against_alpha", "unreached_keys"]

_REACHED = (Result.SUCCESS, Result.UNSTABLE)
_CROSS: dict[str, Any] = {"linestyle": "none", "marker": "x"}
_RING: dict[str, Any] = {"linestyle": "none", "marker": "o", "markerfacecolor": "none"}


@styled
def risk_against_alpha(
    curves: Sequence[Sequence[LearnerSolution]],
    labels: Sequence[str],
    ax: Axes | None = None,
    *,
    quantity: str = "error",
    bands: float = 2.0,
) -> Axes:
    """A number of several learners against α, with error bands; crosses where a fixed point was not
    reached, open circles where it is unstable.

    Args:
        curves: Solutions of `state_evolution(.., learner=)`, one curve for each learner.
        labels: What to call the learners.
        ax: Axes to draw in. Default None: new ones.
        quantity: "error", "test_loss", "train_loss" or "energy". Default "error".
        bands: Half width of the error band in standard errors. Default 2.

    Returns:
        The axes.

    Raises:
        ValueError: Without a curve, or with another number of labels.
        ImportError: Without matplotlib, with the remedy.
    """
    check(len(curves) > 0, "curves", "none", "at least one")
    check(len(curves) == len(labels), "labels", labels, f"{len(curves)} of them")
    ax = axes_or_new(ax)
    for number, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        alpha = np.array([float(point.alpha) for point in curve])
        value = np.array([float(getattr(point, quantity)) for point in curve])
        bar = np.array([float((point.stderrs or {})[quantity]) for point in curve])
        codes = np.array([int(point.result) for point in curve])
        marker = "." if len(curve) < 12 else ""
        tint = colour(number)
        ax.plot(alpha, value, label=label, color=tint, marker=marker, **line(number))
        band(ax, alpha, value - bands * bar, value + bands * bar, tint)
        lost = ~np.isin(codes, _REACHED)
        ax.plot(alpha[lost], value[lost], color=tint, **_CROSS)
        unstable = codes == Result.UNSTABLE
        ax.plot(alpha[unstable], value[unstable], color=tint, **_RING)
    ax.set_xlabel(r"sample complexity $\alpha$")
    ax.set_ylabel(quantity.replace("_", " "))
    frame(ax)
    label_ends(ax, unreached_keys(curves), columns=min(len(curves), 3))
    return ax


def unreached_keys(curves: Sequence[Sequence[LearnerSolution]]) -> dict[str, dict[str, Any]]:
    """What crosses and open circles are, for a legend, where there are any."""
    codes = {int(point.result) for curve in curves for point in curve}
    keys = {"no fixed point": _CROSS} if codes - {int(code) for code in _REACHED} else {}
    return keys | ({"unstable": _RING} if int(Result.UNSTABLE) in codes else {})
