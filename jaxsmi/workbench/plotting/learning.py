"""Learning curves: cosines against the step, and the order of learning of several
methods.

No equation lives here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxsmi.core.checks import check
from jaxsmi.core.labelled import index_names
from jaxsmi.core.results import Solution
from jaxsmi.workbench.plotting.labels import legend_above
from jaxsmi.workbench.plotting.palette import INK, colour, line
from jaxsmi.workbench.plotting.style import PAGE, axes_or_new, band, frame, import_pyplot, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jaxsmi.workbench.order import LearningOrder

__all__ = ["learning_curves", "learning_order"]


@styled
def learning_curves(
    solution: Solution,
    ax: Axes | None = None,
    *,
    level: float | None = None,
    names: list[str] | None = None,
    logarithmic: bool = False,
    legend: bool = True,
) -> Axes:
    """Cosine similarity of each index with the teacher against the step of message passing or
    descent.

    Args:
        solution: Of gamp or train, one run or a batch (then the mean, and a band of one standard
            deviation between runs).
        ax: Axes to draw in. Default None: new ones.
        level: A dotted line at this cosine, and one where the mean passes it. Default None:
            neither.
        names: Of the indices. Default None: those of the model.
        logarithmic: Whether the axis of steps is logarithmic. Default False.
        legend: Whether to draw one. Default True.

    Returns:
        The axes.

    Raises:
        ValueError: For a solution without cosines.
        ImportError: Without matplotlib, with the remedy.
    """
    check("cosine" in solution.history, "solution", solution.kind, "a solution of gamp or train")
    ax = axes_or_new(ax)
    steps, cosines = _recorded(solution)
    names = index_names(solution.model, cosines.shape[2]) if names is None else names
    mean = cosines.mean(axis=0)
    spread = cosines.std(axis=0)
    for p, name in enumerate(names):
        ax.plot(steps, mean[:, p], color=colour(p), label=name, **line(p))
        if len(cosines) > 1:
            low = mean[:, p] - spread[:, p]
            high = mean[:, p] + spread[:, p]
            band(ax, steps, low, high, colour(p), within=(-1.0, 1.0))
        if level is not None and np.any(mean[:, p] >= level):
            ax.axvline(steps[np.argmax(mean[:, p] >= level)], color=colour(p), lw=0.8, ls=":")
    if level is not None:
        ax.axhline(level, color=INK, lw=0.8, ls=":")
    if logarithmic:
        ax.set_xscale("symlog", linthresh=max(steps[1], 1.0))
    ax.set_xlim(left=0)
    ax.set_xlabel("iteration" if solution.kind == "gamp" else "step")
    ax.set_ylabel("cosine similarity")
    ax.set_ylim(-0.03, 1.05)
    frame(ax)
    if legend:
        keys = {} if level is None else {f"cosine {level:g}": {"ls": ":", "lw": 0.8}}
        if len(cosines) > 1:
            keys["± one standard deviation"] = {"lw": 5.0, "alpha": 0.2}
        legend_above(ax, 2, keys)
    return ax


def _recorded(solution: Solution) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) of the longest run, and cosines (runs, T, P): a run that ended keeps its last
    value.
    """
    steps = np.atleast_2d(np.asarray(solution.history["step"]))
    cosines = np.asarray(solution.history["cosine"])
    cosines = cosines if cosines.ndim == 3 else cosines[None]
    longest = steps[np.argmax(np.isfinite(steps).sum(axis=1))]
    recorded = np.isfinite(longest)
    values = cosines[:, recorded].copy()
    for t in range(1, values.shape[1]):
        values[:, t] = np.where(np.isnan(values[:, t]), values[:, t - 1], values[:, t])
    return longest[recorded], values


@styled
def learning_order(order: LearningOrder, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """One panel a method: cosines of all indices, with lines where their mean passes the level.

    Args:
        order: From `jaxsmi.learning_order`.
        axes: One for each method. Default None: new ones.

    Returns:
        The axes.

    Raises:
        ValueError: For another number of axes.
        ImportError: Without matplotlib, with the remedy.
    """
    count = len(order.solutions)
    if axes is None:
        figure = import_pyplot().figure(figsize=(PAGE, 2.7), layout="constrained")
        axes = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    check(len(axes) == count, "axes", len(axes), f"{count}, one for each method")
    for n, (ax, (name, solution)) in enumerate(zip(axes, order.solutions.items(), strict=True)):
        logarithmic = solution.kind not in ("gamp", "state_evolution")
        learning_curves(solution, ax, level=order.level, logarithmic=logarithmic, legend=n == 0)
        ax.set_title(rf"{name}, $\alpha={order.alpha[name]:g}$", loc="right", y=0.04)
        if n:
            ax.set_ylabel("")
    return list(axes)
