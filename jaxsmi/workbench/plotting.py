"""Figures of overlaps: axes in, axes out. Theory is a line with its error band, message passing is markers.

The one relation used here: for a Bayes-optimal run, cosine² = Q/ρ with ρ the second moment of the signal, so that
cos² of a GAMP run is laid over the overlap of state evolution.

matplotlib is imported only when a function here is called; it comes with `pip install 'jaxsmi[plot]'`.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsmi.core.checks import check
from jaxsmi.core.records import index_names, provenance
from jaxsmi.core.results import Solution, Threshold
from jaxsmi.workbench.storage import from_xarray

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from jaxsmi.descent.order import LearningOrder
    from jaxsmi.text.classifier import TextRun


# Okabe and Ito's palette (told apart with any colour vision); the markers tell the indices apart in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


_METADATA = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}


def require() -> ModuleType:
    """matplotlib.pyplot, or an ImportError that says how to install it."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError(
            "matplotlib is needed to plot. Install it with: pip install 'jaxsmi[plot]'"
        ) from error
    return matplotlib.pyplot


def overlap_against_alpha(
    theory: xarray.Dataset | Solution | Iterable[Solution] | None = None,
    gamp: xarray.Dataset | Solution | Iterable[Solution] | None = None,
    ax: Axes | None = None,
    *,
    names: list[str] | None = None,
    bands: float = 2.0,
    legend: bool = True,
) -> Axes:
    """The overlaps of all indices against α: state evolution as lines with error bands, GAMP as markers.

    Points of theory that did not converge are crosses.

    Arguments: `theory`, of which Q/ρ is drawn, and `gamp`, of which cos² is drawn (Q without a teacher): each a curve
    from `storage.stack`, a Solution, or several; `ax`, new if left out; `names` of the indices; `bands`, half width of
    the error band in standard errors; `legend`, whether to draw one.

    Returns: the axes.

    Raises ValueError without any solution, ImportError (with the remedy) without matplotlib.
    """
    lines, runs, names = read_row(theory, gamp, names)
    ax = _axes(ax)
    for p in range(len(names)):
        if lines:
            alpha, overlap, stderr = np.array([_end(solution, p) for solution in lines]).T
            crosses = [i for i, solution in enumerate(lines) if not bool(solution.converged)]
            dots = [i for i in range(len(lines)) if i not in crosses]
            ax.plot(alpha, overlap, color=_colour(p), marker=".", markersize=5, markevery=dots)
            if crosses:
                ax.plot(
                    alpha[crosses],
                    overlap[crosses],
                    color=_colour(p),
                    marker="x",
                    markersize=5,
                    linestyle="none",
                )
            ax.fill_between(
                alpha,
                overlap - bands * stderr,
                overlap + bands * stderr,
                color=_colour(p),
                alpha=0.2,
                lw=0,
            )
        if runs:
            alpha, overlap, _ = np.array([_end(solution, p) for solution in runs]).T
            ax.plot(alpha, overlap, **_markers(p, size=8.0))
    ax.set_xlabel(r"sample complexity $\alpha$")
    return _finished(ax, "overlap", names, lines, runs, legend)


def overlap_against_iteration(
    gamp: xarray.Dataset | Solution | None = None,
    theory: xarray.Dataset | Solution | None = None,
    ax: Axes | None = None,
    *,
    quantity: str = "cosine",
    names: list[str] | None = None,
    legend: bool = True,
) -> Axes:
    """How each index is learned: a GAMP run as markers on the trajectory of state evolution.

    Arguments: `gamp` and `theory`, solutions with a history; `ax`, new if left out; `quantity`: "cosine" draws cos²
    of GAMP (it needs a teacher) on Q/ρ of state evolution, "overlap" draws Q of both; `names` of the indices;
    `legend`, whether to draw one.

    Returns: the axes.

    Raises ValueError without any solution or for another quantity, ImportError (with the remedy) without matplotlib.
    """
    check(quantity in ("cosine", "overlap"), "quantity", quantity, "'cosine' or 'overlap'")
    lines, runs, names = read_row(theory, gamp, names)
    ax = _axes(ax)
    last = max((solution.trajectory["step"][-1] for solution in runs), default=0)
    for p in range(len(names)):
        for solution in lines:
            past = solution.trajectory
            scale = _second_moment(solution)[p] if quantity == "cosine" else 1.0
            step, overlap = past["step"], past["overlap"][:, p, p] / scale
            if bool(solution.converged) and step[-1] < last:  # it stays where it ended
                step, overlap = np.append(step, last), np.append(overlap, overlap[-1])
            ax.plot(step, overlap, color=_colour(p))
        for solution in runs:
            past = solution.trajectory
            values = past["cosine"][:, p] ** 2 if quantity == "cosine" else past["overlap"][:, p, p]
            ax.plot(past["step"], values, markevery=math.ceil(len(values) / 40), **_markers(p))
    ax.set_xlim(left=0)
    ax.set_xlabel("iteration")
    return _finished(
        ax, "squared cosine" if quantity == "cosine" else "overlap", names, lines, runs, legend
    )


def thresholds_against(
    stairs: Sequence[Sequence[Threshold]],
    values: Any = None,
    ax: Axes | None = None,
    *,
    parameter: str = "parameter",
) -> Axes:
    """Thresholds in the order of learning against a parameter of the model, with 95 % confidence intervals.

    Arguments: `stairs`: for each value of the parameter, its list of Thresholds; `values` of the parameter (their numbers if
    left out); `ax`, new if left out; `parameter`, its name on the axis. Returns: the axes.
    Raises ValueError without any threshold, ImportError (with the remedy) without matplotlib.
    """
    check(any(len(s) for s in stairs), "stairs", "no threshold", "at least one")
    ax = _axes(ax)
    x = np.arange(len(stairs)) if values is None else np.asarray(values, float)
    for step in range(max(len(s) for s in stairs)):
        here = [(v, s[step]) for v, s in zip(x, stairs, strict=True) if len(s) > step]
        alpha = np.array([float(t.alpha) for _, t in here])
        half = np.array([float(t.alpha) - t.interval()[0] for _, t in here])
        at = [v for v, _ in here]
        style: dict[str, Any] = _markers(step) | {"linestyle": "-" if len(here) > 1 else "none"}
        ax.plot(at, alpha, label=f"threshold {step + 1}", **style)
        ax.errorbar(at, alpha, np.nan_to_num(half), fmt="none", ecolor=_colour(step), capsize=2)
    ax.set_xlabel(parameter)
    ax.set_ylabel(r"critical sample complexity $\alpha_c$")
    ax.set_ylim(bottom=0)
    _frame(ax)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize="small")
    return ax


def learning_curves(
    solution: Solution,
    ax: Axes | None = None,
    *,
    level: float | None = None,
    names: list[str] | None = None,
    logarithmic: bool = False,
    legend: bool = True,
) -> Axes:
    """Cosine similarity of each index with the teacher against the step of GAMP or of gradient descent.

    Arguments: `solution` of gamp or train, one run or a batch (then the mean, and a band of one standard deviation between
    runs); `ax`, new if left out; `level`: a dotted line there, and a tick where the mean passes it; `names` of the indices;
    `logarithmic` axis of steps; `legend`. Returns: the axes.
    Raises ValueError for a solution without cosines, ImportError (with the remedy) without matplotlib.
    """
    check("cosine" in solution.history, "solution", solution.kind, "a solution of gamp or train")
    ax = _axes(ax)
    steps, cosines = (
        np.atleast_2d(np.asarray(solution.history["step"])),
        np.asarray(solution.history["cosine"]),
    )
    cosines = cosines if cosines.ndim == 3 else cosines[None]
    grid = steps[np.argmax(np.isfinite(steps).sum(axis=1))]
    recorded = np.isfinite(grid)
    grid, cosines = (
        grid[recorded],
        _held(cosines[:, recorded]),
    )  # a run that ended keeps its last value
    names = index_names(solution.model, cosines.shape[2]) if names is None else names
    mean, spread = cosines.mean(axis=0), cosines.std(axis=0)
    for p, name in enumerate(names):
        ax.plot(grid, mean[:, p], color=_colour(p), label=name, **_line(p))
        if len(cosines) > 1:
            low, high = mean[:, p] - spread[:, p], mean[:, p] + spread[:, p]
            ax.fill_between(grid, low, high, color=_colour(p), alpha=0.18, lw=0)
        if level is not None and np.any(mean[:, p] >= level):
            ax.axvline(grid[np.argmax(mean[:, p] >= level)], color=_colour(p), lw=0.8, ls=":")
    if level is not None:
        ax.axhline(level, color="0.5", lw=0.8, ls=":")
    if logarithmic:
        ax.set_xscale("symlog", linthresh=max(grid[1], 1.0))
    ax.set_xlim(left=0)
    ax.set_xlabel("iteration" if solution.kind == "gamp" else "step")
    ax.set_ylabel("cosine similarity")
    ax.set_ylim(-0.03, 1.05)
    _frame(ax)
    if legend:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize="small")
    return ax


def learning_order(order: LearningOrder, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """One panel a method: cosines of all indices, with ticks where their mean passes the level.

    Arguments: `order` from `jaxsmi.learning_order`; `axes`, one for each method, new if left out. Returns: the axes.
    Raises ValueError for another number of axes, ImportError (with the remedy) without matplotlib.
    """
    count = len(order.solutions)
    if axes is None:
        figure = require().figure(figsize=(4.2 * count, 3.6), layout="constrained")
        axes = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    check(len(axes) == count, "axes", len(axes), f"{count}, one for each method")
    for n, (ax, (name, solution)) in enumerate(zip(axes, order.solutions.items(), strict=True)):
        learning_curves(
            solution, ax, level=order.level, logarithmic=solution.kind != "gamp", legend=n == 0
        )
        ax.set_title(rf"{name}, $\alpha={order.alpha[name]:g}$", fontsize="medium", loc="right")
        if n:
            ax.set_ylabel("")
    return list(axes)


def text_curves(run: TextRun, ax: Axes | None = None) -> Axes:
    """Similarity of each layer of a text classifier to its end, and the accuracy, against the epoch.

    Arguments: `run` from `jaxsmi.text.classify`; `ax`, new if left out. Returns: the axes.
    Raises ImportError (with the remedy) without matplotlib.
    """
    ax = _axes(ax)
    for p in range(run.similarity.shape[1]):
        ax.plot(
            run.epoch,
            run.similarity[:, p],
            color=_colour(p),
            label=f"layer {p + 1}, similarity",
            **_line(p),
        )
    ax.plot(run.epoch, run.test_accuracy, color="0.5", lw=1, label="test accuracy")
    ax.set_xlabel("epoch")
    ax.set_ylabel("cosine similarity with the end")
    ax.set_xlim(left=0)
    ax.set_ylim(top=1.02)
    _frame(ax)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize="small")
    return ax


def _held(values: np.ndarray) -> np.ndarray:
    """NaN at the end of a run (axis 1) replaced by the last finite value before it."""
    values = values.copy()
    for t in range(1, values.shape[1]):
        values[:, t] = np.where(np.isnan(values[:, t]), values[:, t - 1], values[:, t])
    return values


def _line(p: int) -> dict[str, Any]:
    return {"linestyle": ("-", "--", "-.", (0, (1, 1)))[p % 4], "linewidth": 1.6}


def savefig(
    figure: Figure,
    path: str | os.PathLike[str],
    solution: Solution | None = None,
    **attributes: Any,
) -> None:
    """Save a figure with its provenance inside the file, as JSON under "Description" (PDF: "Subject").

    Arguments: `figure`; `path`, ending in .png, .svg or .pdf; `solution`, whose model, key and outcome are added to the
    versions and the time; keyword arguments are added too.

    Raises ValueError for another ending.

    Example (to read it back): `json.loads(PIL.Image.open("out/run.png").text["Description"])`.
    """
    ending = pathlib.Path(path).suffix.lower()
    check(ending in _METADATA, "path", str(path), "a name ending in " + ", ".join(_METADATA))
    made = provenance(solution, **attributes)
    figure.savefig(
        path,
        dpi=160,
        metadata={_METADATA[ending]: json.dumps(made), "Creator": f"jaxsmi {made['jaxsmi']}"},
    )


def _end(solution: Solution, p: int) -> tuple[float, float, float]:
    """alpha, overlap divided by the second moment of the signal, and its standard error, for index p."""
    alpha = float(solution.alpha)
    if solution.kind != "state_evolution" and np.isfinite(cosine := solution.cosine[p]):
        return alpha, float(cosine) ** 2, 0.0
    scale = _second_moment(solution)[p]
    return alpha, float(solution.overlap[p, p]) / scale, float(solution.stderr[p, p]) / scale


def _second_moment(solution: Solution) -> np.ndarray:
    """ρ of each index: V + Q in theory. A GAMP run only approaches that, so its overlap is left as it is."""
    if solution.kind != "state_evolution":
        return np.ones(np.shape(solution.overlap)[0])
    return np.diagonal(np.asarray(solution.overlap) + np.asarray(solution.covariance))


def read_row(
    theory: Any, gamp: Any, names: list[str] | None
) -> tuple[list[Solution], list[Solution], list[str]]:
    """Both as lists of solutions, and the names of the indices: from the file, or from the model of a solution."""
    files = [item for item in (theory, gamp) if hasattr(item, "dims")]
    theory, gamp = _solutions(theory), _solutions(gamp)
    solutions = theory + gamp
    check(len(solutions) > 0, "theory, gamp", "no solution", "at least one in one of the two")
    if names is None and files:
        names = [str(name) for name in files[0]["name"].values]
    elif names is None:
        model = next((solution.model for solution in solutions if solution.model is not None), None)
        names = index_names(model, np.shape(solutions[0].overlap)[0])
    return theory, gamp, names


def _solutions(item: Any) -> list[Solution]:
    if item is None:
        return []
    if isinstance(item, Solution):
        return [item]
    if hasattr(item, "dims"):  # an xarray.Dataset, recognised without importing xarray
        points = (
            [item.isel(alpha=point) for point in range(item.sizes["alpha"])]
            if "alpha" in item.dims
            else [item]
        )
        return [from_xarray(point) for point in points]
    return sorted(item, key=lambda solution: float(solution.alpha))


def sweep(table: Any, figure: Any) -> Any:
    """What share of each index a sweep found, Q/(Q + V) on the diagonal (of training Q itself; the mean over seeds), drawn into
    a figure, one panel an index: a map over α and one parameter of four or more numbers, else curves over α. Points without
    a number stay white.
    """
    whole = (table.overlap + table.covariance).where(np.isfinite(table.covariance), 1.0)
    overlap = (table.overlap / whole).mean("seed")
    axes = [name for name in overlap.dims[:-3] if overlap.sizes[name] > 1] or list(
        overlap.dims[:-3]
    )[:1]
    count = overlap.sizes["index"]
    figure.set_size_inches(4.6 * count, 3.8)
    panels = np.ravel(figure.subplots(1, count, sharey=True, squeeze=False))
    numbers = (
        len(axes) == 1
        and axes[0] in table.coords
        and np.issubdtype(table[axes[0]].dtype, np.number)
    )
    drawn = None
    for p, ax in enumerate(panels):
        values = overlap.isel(index=p, index_=p).squeeze(
            [name for name in overlap.dims[:-3] if name not in axes], drop=True
        )
        if numbers and overlap.sizes[axes[0]] >= 4:
            drawn = ax.pcolormesh(
                table.alpha,
                table[axes[0]],
                values,
                vmin=0.0,
                vmax=1.0,
                cmap="viridis",
                rasterized=True,
            )
            ratio = (
                float(table[axes[0]].max() / table[axes[0]].min())
                if float(table[axes[0]].min()) > 0
                else 1.0
            )
            ax.set_yscale("log" if ratio > 8 else "linear")
            ax.set_ylabel(axes[0] if p == 0 else "")
        else:
            rows = (
                values.stack(row=axes).transpose("row", "alpha")
                if axes
                else values.expand_dims("row")
            )
            for k in range(rows.sizes["row"]):
                label = ", ".join(f"{name} {rows[name].values[k]}" for name in axes)
                ax.plot(table.alpha, rows[k], "o-", ms=3, label=label)
            ax.set_ylabel("overlap / second moment" if p == 0 else "")
            _frame(ax)
            if p == 0 and axes and rows.sizes["row"] <= 10:
                ax.legend(frameon=False, fontsize="small")
        ax.set_xlabel(r"$\alpha$")
        ax.set_title(f"index {p + 1}" if count > 1 else "", fontsize="medium")
    if drawn is not None:
        figure.colorbar(drawn, ax=list(panels), label="overlap / second moment")
    return figure


def _frame(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, lw=0.6)


def _colour(p: int) -> str:
    return _COLOURS[p % len(_COLOURS)]


def _markers(p: int, colour: str | None = None, size: float = 5.0) -> dict[str, Any]:
    """Hollow markers without a line, drawn whole at the limits of the axes."""
    return {
        "color": colour or _colour(p),
        "marker": _MARKERS[p % len(_MARKERS)],
        "markersize": size,
        "markerfacecolor": "none",
        "markeredgewidth": 1.2,
        "linestyle": "none",
        "zorder": 3,
        "clip_on": False,
    }


def _finished(
    ax: Axes, ordinate: str, names: list[str], theory: list, gamp: list, legend: bool
) -> Axes:
    """Limits, and the legend above the axes, where it hides nothing."""
    ax.set_ylabel(ordinate)
    ax.set_ylim(-0.03, 1.05)
    _frame(ax)
    if legend:
        from matplotlib.lines import Line2D

        handles = []
        for p, name in enumerate(names):
            style: dict[str, Any] = _markers(p) if gamp else {"color": _colour(p)}
            handles.append(Line2D([], [], label=name, **style))
            handles[-1].set_linestyle("-" if theory else "none")
        if theory and gamp:
            handles += [
                Line2D([], [], label="state evolution", color="0.4"),
                Line2D([], [], label="GAMP", **_markers(0, "0.4")),
            ]
        ax.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2 if len(names) in (2, 3) else 3,
            frameon=False,
            fontsize="small",
        )
    return ax


def _axes(ax: Axes | None) -> Axes:
    return ax if ax is not None else require().subplots(figsize=(5, 3.6), layout="constrained")[1]
