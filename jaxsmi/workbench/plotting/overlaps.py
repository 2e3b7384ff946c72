"""Overlaps against α and against the iteration: state evolution as lines, message passing as
markers.

The one relation used here: for a Bayes-optimal run, cosine² = Q/ρ with ρ the second moment of the
signal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.labelled import index_names, is_labelled
from jaxsmi.core.results import Solution
from jaxsmi.core.shown import number
from jaxsmi.workbench.plotting.labels import legend_above
from jaxsmi.workbench.plotting.palette import INK, colour, line, markers
from jaxsmi.workbench.plotting.style import axes_or_new, band, frame, styled
from jaxsmi.workbench.storage import from_xarray

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    Curve = xarray.Dataset | Solution | Iterable[Solution]

__all__ = ["CROSS", "overlap_against_alpha", "overlap_against_iteration"]

_OURS = "_overlap of "  # of labels that stay out of legends until a second call
_KINDS = {"gamp": "GAMP"}
CROSS: dict[str, Any] = {"marker": "x", "markersize": 4, "linestyle": "none"}  # not converged


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
    """The overlaps of all indices against α: state evolution as lines with error bands, message
    passing as markers.

    Points of theory that did not converge are crosses.

    Args:
        theory: State evolution, of which Q/ρ is drawn: a curve from `storage.stack`, a Solution, or
            several.
        gamp: Message passing, of which cos² is drawn (Q without a teacher), in the same forms.
        ax: Axes to draw in. Default None: new ones. What is drawn onto those of an earlier call
            has the next colours, and the legend says which is which.
        names: Of the indices. Default None: those of the file or of the model.
        bands: Half width of the error band in standard errors. Default 2.
        legend: Whether to draw one. Default True.

    Returns:
        The axes.

    Raises:
        ValueError: Without any solution.
        ImportError: Without matplotlib, with the remedy.
    """
    curves = _curves(theory, gamp, names)
    ax = axes_or_new(ax)
    first = _first(ax)
    for p, name in enumerate(curves.names):
        if curves.theory:
            look = _look(first, p, curves) | {"label": _label(ax, name, curves.theory)}
            _draw_theory(ax, curves.theory, p, look, bands)
        if curves.gamp:
            ends = [_end(solution, p) for solution in curves.gamp]
            alpha = [end.alpha for end in ends]
            label = _label(ax, name, curves.gamp)
            drawn = markers(first + p, size=5.5)
            ax.plot(alpha, [end.overlap for end in ends], label=label, **drawn)
    ax.set_xlabel(r"sample complexity $\alpha$")
    return _finish(ax, r"overlap $Q/\rho$", curves, first, legend)


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
    """How each index is learned: a run of message passing as markers on the trajectory of state
    evolution.

    Args:
        gamp: A solution of message passing with a history.
        theory: A solution of state evolution with a history.
        ax: Axes to draw in. Default None: new ones.
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
    squared = Arguments().choice("quantity", quantity, ("cosine", "overlap")) == "cosine"
    curves = _curves(theory, gamp, names)
    ax = axes_or_new(ax)
    first = _first(ax)
    last = max((solution.trajectory["step"][-1] for solution in curves.gamp), default=0)
    for p, name in enumerate(curves.names):
        for solution in curves.theory:
            trajectory = solution.trajectory
            scale = _second_moment(solution)[p] if squared else 1.0
            step = trajectory["step"]
            overlap = trajectory["overlap"][:, p, p] / scale
            if bool(solution.converged) and step[-1] < last:  # it stays where it ended
                step = np.append(step, last)
                overlap = np.append(overlap, overlap[-1])
            label = _label(ax, name, [solution])
            ax.plot(step, overlap, label=label, **_look(first, p, curves))
        for solution in curves.gamp:
            trajectory = solution.trajectory
            values = trajectory["cosine"][:, p] ** 2 if squared else trajectory["overlap"][:, p, p]
            every = math.ceil(len(values) / 40)
            label = _label(ax, name, [solution])
            ax.plot(trajectory["step"], values, label=label, markevery=every, **markers(first + p))
    ax.set_xlim(left=0)
    ax.set_xlabel("iteration")
    return _finish(ax, "squared cosine" if squared else "overlap $Q$", curves, first, legend)


class _Curves(NamedTuple):
    """Solutions of state evolution and of message passing, and the names of the indices."""

    theory: list[Solution]
    gamp: list[Solution]
    names: list[str]


class _End(NamedTuple):
    """Where a solution ended: α, the overlap over the second moment of the signal, and its standard
    error.
    """

    alpha: float
    overlap: float
    stderr: float


def _curves(theory: Curve | None, gamp: Curve | None, names: list[str] | None) -> _Curves:
    """Both as lists of solutions, and the names of the indices: from the file, or from the model of
    a solution.
    """
    files = [item for item in (theory, gamp) if is_labelled(item)]
    lines = _solutions(theory)
    runs = _solutions(gamp)
    solutions = lines + runs
    check(len(solutions) > 0, "theory, gamp", "no solution", "at least one in one of the two")
    if names is None and files:
        names = [str(name) for name in files[0]["name"].values]
    elif names is None:
        model = next((solution.model for solution in solutions if solution.model is not None), None)
        names = index_names(model, np.shape(solutions[0].overlap)[0])
    return _Curves(lines, runs, names)


def _solutions(item: Curve | None) -> list[Solution]:
    """The solutions of a file, of a list, or a single one, by ascending α."""
    if item is None:
        return []
    if isinstance(item, Solution):
        return [item]
    if is_labelled(item):
        points = [item]
        if "alpha" in item.dims:
            points = [item.isel(alpha=point) for point in range(item.sizes["alpha"])]
        return [from_xarray(point) for point in points]
    return sorted(item, key=lambda solution: float(solution.alpha))  # pyright: ignore


def _first(ax: Axes) -> int:
    """How many colours earlier calls have used on these axes: those of a call are the next."""
    return len({drawn.get_color() for drawn in _before(ax).values()})


def _before(ax: Axes) -> dict[str, Line2D]:
    """What was drawn here on these axes, by its label."""
    labels = [str(drawn.get_label()).partition(_OURS)[2] for drawn in ax.lines]
    return {label: drawn for label, drawn in zip(labels, ax.lines, strict=True) if label}


def _label(ax: Axes, name: str, solutions: Sequence[Solution]) -> str:
    """What a line is called where several calls drew on the same axes: another name than those
    before it. Until then no legend shows it."""
    kind = solutions[0].kind
    label = f"{name}, {_KINDS.get(kind, kind.replace('_', ' '))}"
    if len(solutions) == 1 and np.isfinite(solutions[0].alpha):
        label += rf" at $\alpha={number(solutions[0].alpha)}$"
    same = sum(label in (other, other.rpartition(" (")[0]) for other in _before(ax))
    return f"{_OURS}{label} ({same + 1})" if same else f"{_OURS}{label}"


def _look(first: int, p: int, curves: _Curves) -> dict[str, Any]:
    """Style of the line of theory of index p: of a later call with other dashes."""
    return {"color": colour(first + p), **line(first // len(curves.names))}


def _draw_theory(
    ax: Axes, solutions: Sequence[Solution], p: int, look: dict[str, Any], bands: float
) -> None:
    """The line of an index with its error band; crosses where state evolution did not converge."""
    alpha, overlap, stderr = np.array([_end(solution, p) for solution in solutions]).T
    crosses = [k for k, solution in enumerate(solutions) if not bool(solution.converged)]
    dots = [k for k in range(len(solutions)) if k not in crosses]
    ax.plot(alpha, overlap, marker=".", markersize=3.5, markevery=dots, **look)
    if crosses:
        ax.plot(alpha[crosses], overlap[crosses], color=look["color"], **CROSS)
    half = bands * stderr
    band(ax, alpha, overlap - half, overlap + half, look["color"], within=(0.0, 1.0))


def _end(solution: Solution, p: int) -> _End:
    """Where index p ended: cos² of a run with a teacher, else Q over the second moment."""
    alpha = float(solution.alpha)
    if solution.kind != "state_evolution" and np.isfinite(cosine := solution.cosine[p]):
        return _End(alpha, float(cosine) ** 2, 0.0)
    scale = _second_moment(solution)[p]
    overlap = float(solution.overlap[p, p]) / scale
    return _End(alpha, overlap, float(solution.stderr[p, p]) / scale)


def _second_moment(solution: Solution) -> np.ndarray:
    """ρ of each index: V + Q in theory.

    A run only approaches that, so its overlap is left as it is.
    """
    if solution.kind != "state_evolution":
        return np.ones(np.shape(solution.overlap)[0])
    return np.diagonal(np.asarray(solution.overlap) + np.asarray(solution.covariance))


def _finish(ax: Axes, ordinate: str, curves: _Curves, first: int, legend: bool) -> Axes:
    """Labels, limits, and the legend: of all lines, where an earlier call drew some."""
    ax.set_ylabel(ordinate)
    ax.set_ylim(-0.03, 1.05)
    frame(ax)
    if legend:
        entries = {str(handle.get_label()): handle for handle in _handles(curves)}
        if first:
            entries = _before(ax)
        legend_above(ax, 2 if len(curves.names) in (2, 3) else 3, entries=entries)
    return ax


def _handles(curves: _Curves) -> list[Any]:
    """Entries of the legend: the indices, and what lines and markers are where there are both."""
    from matplotlib.lines import Line2D

    handles = []
    for p, name in enumerate(curves.names):
        style: dict[str, Any] = markers(p) if curves.gamp else {"color": colour(p)}
        handles.append(Line2D([], [], label=name, **style))
        handles[-1].set_linestyle("-" if curves.theory else "none")
    if curves.theory and curves.gamp:
        handles.append(Line2D([], [], label="state evolution", color=INK))
        handles.append(Line2D([], [], label="GAMP", **markers(0, INK)))
    if any(not bool(solution.converged) for solution in curves.theory):
        handles.append(Line2D([], [], label="not converged", color=INK, **CROSS))
    return handles
