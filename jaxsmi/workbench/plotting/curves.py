"""Overlaps against α and the iteration, learning curves, and errors of learners.

Theory is a line with its error band, message passing is markers. For a Bayes-optimal run
cosine² = Q/ρ, with ρ the second moment of the signal, so that cos² of a run is laid over Q/ρ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsmi.core.codes import Result
from jaxsmi.core.results import LearnerSolution, Solution, index_names
from jaxsmi.core.validate import check, choice
from jaxsmi.workbench.labelled import is_labelled
from jaxsmi.workbench.plotting import drawing
from jaxsmi.workbench.plotting.drawing import CROSS, INK, colour, line, markers, styled
from jaxsmi.workbench.storage import from_xarray

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

    from jaxsmi.workbench.order import LearningOrder

    Curve = xarray.Dataset | Solution | Iterable[Solution]

_MOST_MARKERS = 40  # of a run: more would overlap at the width of a column
_Curves = tuple[list[Solution], list[Solution], list[str]]  # theory, runs, names of the indices
_REACHED = (Result.SUCCESS, Result.UNSTABLE)
_RING: dict[str, Any] = {"linestyle": "none", "marker": "o", "markerfacecolor": "none"}


@styled
def overlap_against_alpha(
    theory: Curve | None = None,
    gamp: Curve | None = None,
    ax: Axes | None = None,
    *,
    names: list[str] | None = None,
    bands: float = 2.0,
    legend: bool = True,
) -> Axes:
    """Draw the overlaps of all indices against α.

    Points of theory that did not converge are crosses.

    Args:
        theory: State evolution, of which Q/ρ is drawn: a curve from `storage.stack`, a Solution, or
            several.
        gamp: Message passing, of which cos² is drawn (Q without a teacher), in the same forms.
        ax: Axes to draw in. Default None: new ones. A second call on the same axes has other line
            styles and markers, and the legend names each line.
        names: Of the indices. Default None: those of the file or of the model.
        bands: Half width of the error band in standard errors. Default 2.
        legend: Whether to draw one. Default True.

    Returns:
        The axes.

    Raises:
        ValueError: Without any solution.
        ImportError: Without matplotlib, with the remedy.
    """
    lines, runs, names = curves = _curves(theory, gamp, names)
    ax = drawing.axes_or_new(ax)
    call = _call(ax)
    for p, name in enumerate(names):
        if lines:
            alpha, overlap, error = np.array([_point(solution, p) for solution in lines]).T
            failed = np.array([not bool(solution.converged) for solution in lines])
            look = {"color": colour(p), "gid": _gid(call, name, lines), **line(call)}
            dots = np.flatnonzero(~failed).tolist()
            ax.plot(alpha, overlap, marker=".", markersize=3.5, markevery=dots, **look)
            if failed.any():
                ax.plot(alpha[failed], overlap[failed], color=colour(p), **CROSS)
            low, high = overlap - bands * error, overlap + bands * error
            drawing.band(ax, alpha, low, high, colour(p), within=(0.0, 1.0))
        if runs:
            alpha, overlap, _ = np.array([_point(solution, p) for solution in runs]).T
            gid = _gid(call, name, runs)
            ax.plot(alpha, overlap, gid=gid, **_marks(p, call))
    ax.set_xlabel(r"sample complexity $\alpha$")
    return _finish(ax, r"overlap $Q/\rho$", curves, call, legend)


@styled
def overlap_against_iteration(
    gamp: xarray.Dataset | Solution | None = None,
    theory: xarray.Dataset | Solution | None = None,
    ax: Axes | None = None,
    *,
    quantity: str = "cosine",
    names: list[str] | None = None,
    legend: bool = True,
) -> Axes:
    """Draw how each index is learned: message passing as markers on state evolution.

    Args:
        gamp: A solution of message passing with a history.
        theory: A solution of state evolution with a history.
        ax: As in `overlap_against_alpha`.
        quantity: "cosine" draws cos² of message passing (it needs a teacher) on Q/ρ of state
            evolution, "overlap" draws Q of both. Default "cosine".
        names: Of the indices. Default None: those of the file or of the model.
        legend: Whether to draw one. Default True.

    Returns:
        The axes.

    Raises:
        ValueError: Without any solution, or for another quantity.
        ImportError: Without matplotlib, with the remedy.
    """
    squared = choice("quantity", quantity, ("cosine", "overlap")) == "cosine"
    lines, runs, names = curves = _curves(theory, gamp, names)
    ax = drawing.axes_or_new(ax)
    call = _call(ax)
    last = max((solution.trajectory["step"][-1] for solution in runs), default=0)
    for p, name in enumerate(names):
        for solution in lines:
            step = solution.trajectory["step"]
            scale = _second_moment(solution)[p] if squared else 1.0
            overlap = solution.trajectory["overlap"][:, p, p] / scale
            if bool(solution.converged) and step[-1] < last:  # it stays where it ended
                step, overlap = np.append(step, last), np.append(overlap, overlap[-1])
            gid = _gid(call, name, [solution])
            ax.plot(step, overlap, color=colour(p), gid=gid, **line(call))
        for solution in runs:
            trajectory = solution.trajectory
            values = trajectory["cosine"][:, p] ** 2 if squared else trajectory["overlap"][:, p, p]
            look = {"markevery": -(-len(values) // _MOST_MARKERS), **_marks(p, call)}
            ax.plot(trajectory["step"], values, gid=_gid(call, name, [solution]), **look)
    ax.set_xlim(left=0)
    ax.set_xlabel("iteration")
    return _finish(ax, "squared cosine" if squared else "overlap $Q$", curves, call, legend)


def _curves(theory: Curve | None, gamp: Curve | None, names: list[str] | None) -> _Curves:
    """Both as lists of solutions by ascending α, and the names of the indices."""
    both = _solutions(theory), _solutions(gamp)
    solutions = [*both[0], *both[1]]
    check(len(solutions) > 0, "theory, gamp", "no solution", "at least one in one of the two")
    files = [item for item in (theory, gamp) if is_labelled(item)]
    if names is None and files:
        names = [str(name) for name in files[0]["name"].values]
    elif names is None:
        model = next((solution.model for solution in solutions if solution.model is not None), None)
        names = index_names(model, np.shape(solutions[0].overlap)[0])
    return *both, names


def _solutions(item: Curve | None) -> list[Solution]:
    if item is None or isinstance(item, Solution):
        return [] if item is None else [item]
    if is_labelled(item):
        points = [item.isel(alpha=k) for k in range(item.sizes.get("alpha", 0))] or [item]
        return [from_xarray(point) for point in points]
    return sorted(item, key=lambda solution: float(solution.alpha))  # pyright: ignore


def _call(ax: Axes) -> int:
    """Number of calls that drew on these axes before; lines carry their call in their gid."""
    calls = [str(drawn.get_gid()).partition("|")[0] for drawn in ax.lines if drawn.get_gid()]
    return max((int(call) + 1 for call in calls if call.isdigit()), default=0)


def _gid(call: int, name: str, solutions: Sequence[Solution]) -> str:
    """Call and full name of a line, for the legend of a second call."""
    kind = "GAMP" if solutions[0].kind == "gamp" else solutions[0].kind.replace("_", " ")
    alpha = float(solutions[0].alpha)
    at = rf" at $\alpha={alpha:.4g}$" if len(solutions) == 1 and np.isfinite(alpha) else ""
    return f"{call}|{name}, {kind}{at}"


def _marks(p: int, call: int) -> dict[str, Any]:
    return markers(p, shape=p + 2 * call) | {"markersize": 5.5}


def _point(solution: Solution, p: int) -> tuple[float, float, float]:
    """α and cos² of a run with a teacher, else Q over the second moment, with its error."""
    alpha = float(solution.alpha)
    if solution.kind != "state_evolution" and np.isfinite(cosine := solution.cosine[p]):
        return alpha, float(cosine) ** 2, 0.0
    scale = _second_moment(solution)[p]
    overlap, stderr = (float(x[p, p]) / scale for x in (solution.overlap, solution.stderr))
    return alpha, overlap, stderr


def _second_moment(solution: Solution) -> np.ndarray:
    """ρ of each index, Q + V in theory; one for a run, whose Q + V only approaches ρ."""
    if solution.kind != "state_evolution":
        return np.ones(np.shape(solution.overlap)[0])
    return np.diagonal(np.asarray(solution.overlap) + np.asarray(solution.covariance))


def _finish(ax: Axes, ordinate: str, curves: _Curves, call: int, legend: bool) -> Axes:
    ax.set_ylabel(ordinate)
    ax.set_ylim(-0.03, 1.05)
    if legend:
        drawing.legend_above(ax, 2, entries=_named_lines(ax) if call else _handles(curves))
    return ax


def _named_lines(ax: Axes) -> dict[str, Any]:
    """All lines of several calls by their full names, repeated names with a number."""
    entries: dict[str, Any] = {}
    for drawn in ax.lines:
        name = str(drawn.get_gid() or "").partition("|")[2]
        if name:
            same = sum(name in (other, other.rpartition(" (")[0]) for other in entries)
            entries[f"{name} ({same + 1})" if same else name] = drawn
    return entries


def _handles(curves: _Curves) -> dict[str, Any]:
    """Entries of one call: the indices, and what lines, markers and crosses are."""
    lines, runs, names = curves
    from matplotlib.lines import Line2D

    looks: dict[str, dict[str, Any]] = {}
    for p, name in enumerate(names):
        looks[name] = (_marks(p, 0) if runs else {"color": colour(p)}) | {
            "linestyle": "-" if lines else "none"
        }
    if lines and runs:
        looks["state evolution"] = {"color": INK}
        looks["GAMP"] = _marks(0, 0) | {"color": INK}
    if any(not bool(solution.converged) for solution in lines):
        looks["not converged"] = {"color": INK, **CROSS}
    return {name: Line2D([], [], label=name, **look) for name, look in looks.items()}


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
    """Draw the cosine of each index with the teacher against the step.

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
    ax = drawing.axes_or_new(ax)
    steps, cosines = _recorded(solution)
    names = index_names(solution.model, cosines.shape[2]) if names is None else names
    mean, spread = cosines.mean(axis=0), cosines.std(axis=0)
    for p, name in enumerate(names):
        ax.plot(steps, mean[:, p], color=colour(p), label=name, **line(p))
        if len(cosines) > 1:
            low, high = mean[:, p] - spread[:, p], mean[:, p] + spread[:, p]
            drawing.band(ax, steps, low, high, colour(p), within=(-1.0, 1.0))
        if level is not None and np.any(mean[:, p] >= level):
            ax.axvline(steps[np.argmax(mean[:, p] >= level)], color=colour(p), lw=0.8, ls=":")
    if level is not None:
        ax.axhline(level, color=INK, lw=0.8, ls=":")
    if logarithmic:
        ax.set_xscale("symlog", linthresh=max(steps[1], 1.0))
    ax.set_xlim(left=0)
    ax.set_ylim(-0.03, 1.05)
    ax.set_xlabel("iteration" if solution.kind == "gamp" else "step")
    ax.set_ylabel("cosine similarity")
    if legend:
        keys = {} if level is None else {f"cosine {level:g}": {"ls": ":", "lw": 0.8}}
        if len(cosines) > 1:
            keys["± one standard deviation"] = {"lw": 5.0, "alpha": 0.2}
        drawing.legend_above(ax, 2, keys)
    return ax


def _recorded(solution: Solution) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) of the longest run, and cosines (runs, T, P): a run that ended keeps its last
    value."""
    steps = np.atleast_2d(np.asarray(solution.history["step"]))
    cosines = np.asarray(solution.history["cosine"])
    cosines = cosines if cosines.ndim == 3 else cosines[None]
    longest = steps[np.argmax(np.isfinite(steps).sum(axis=1))]
    values = cosines[:, np.isfinite(longest)].copy()
    for t in range(1, values.shape[1]):
        values[:, t] = np.where(np.isnan(values[:, t]), values[:, t - 1], values[:, t])
    return longest[np.isfinite(longest)], values


@styled
def learning_order(order: LearningOrder, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw one panel a method: cosines of all indices, and where their mean passes the level.

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
        figure = drawing.import_pyplot().figure(figsize=(drawing.PAGE, 2.7), layout="constrained")
        axes = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    check(len(axes) == count, "axes", len(axes), f"{count}, one for each method")
    for n, (ax, (name, solution)) in enumerate(zip(axes, order.solutions.items(), strict=True)):
        logarithmic = solution.kind not in ("gamp", "state_evolution")
        learning_curves(solution, ax, level=order.level, logarithmic=logarithmic, legend=n == 0)
        ax.set_title(rf"{name}, $\alpha={order.alpha[name]:g}$", loc="right", y=0.04)
        if n:
            ax.set_ylabel("")
    return list(axes)


@styled
def risk_against_alpha(
    curves: Sequence[Sequence[LearnerSolution]],
    labels: Sequence[str],
    ax: Axes | None = None,
    *,
    quantity: str = "error",
    bands: float = 2.0,
) -> Axes:
    """Draw an error of several learners against α, with error bands; crosses where no fixed point
    was reached, open circles where it is unstable.

    Args:
        curves: Solutions of `state_evolution(.., learner=)`, one curve for each learner.
        labels: Names of the learners.
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
    ax = drawing.axes_or_new(ax)
    keys: dict[str, dict[str, Any]] = {}
    for k, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        alpha = np.array([float(point.alpha) for point in curve])
        value = np.array([float(getattr(point, quantity)) for point in curve])
        error = np.array([float((point.stderrs or {})[quantity]) for point in curve])
        codes = np.array([int(point.result) for point in curve])
        marker = "." if len(curve) < 12 else ""  # points of a coarse curve are shown
        ax.plot(alpha, value, label=label, color=colour(k), marker=marker, **line(k))
        drawing.band(ax, alpha, value - bands * error, value + bands * error, colour(k))
        failed, unstable = ~np.isin(codes, _REACHED), codes == Result.UNSTABLE
        for name, where, look in (("no fixed point", failed, CROSS), ("unstable", unstable, _RING)):
            if where.any():
                keys[name] = look
                ax.plot(alpha[where], value[where], color=colour(k), **look)
    ax.set_xlabel(r"sample complexity $\alpha$")
    ax.set_ylabel(quantity.replace("_", " "))
    drawing.label_ends(ax, keys, columns=min(len(curves), 3))
    return ax
