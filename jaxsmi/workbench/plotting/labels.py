"""What a curve is called: beside its end where there is room, else in a legend.

No equation lives here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["label_ends", "legend", "legend_above", "legend_of_all"]

_MATHS = re.compile(r"\\[a-zA-Z]+|[${}^_\\]")  # what a formula has beside its letters
_LETTER = 0.5  # width of a letter over its height
_MARGIN = 30.0  # points for the ordinate of a panel
_MOST = 6  # curves with a label at their end
_APART = 1.45  # lines of text between two labels
_AWAY = 2.0  # lines of text that a label may be away from its curve

Keys = Mapping[str, Mapping[str, Any]]  # entries of a legend: how what they name is drawn


def legend(ax: Axes, keys: Keys | None = None, **settings: Any) -> None:
    """The legend of what has a label, each label once, and of `keys`: what dashes, dots or ticks
    are in every colour, `{"message passing": {"marker": "o", "ls": "none"}}`.
    """
    entries = _entries(ax, keys or {})
    if entries:
        ax.legend(handles=list(entries.values()), labels=list(entries), **settings)


def legend_above(
    ax: Axes,
    columns: int,
    keys: Keys | None = None,
    entries: Mapping[str, Artist] | None = None,
    **settings: Any,
) -> None:
    """The legend above the axes, where it hides nothing: in as many columns as there is room for,
    at most `columns`; of `entries` alone, handles by label, where they are given.
    """
    entries = _entries(ax, keys or {}) if entries is None else entries
    if entries:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3}
        place["ncols"] = min(columns, _room(ax, entries))
        ax.legend(handles=list(entries.values()), labels=list(entries), **place, **settings)


def legend_of_all(figure: Figure, columns: int, keys: Keys | None = None) -> None:
    """One legend above all panels of a figure, which share what it names."""
    entries: dict[str, Artist] = {}
    for ax in figure.axes:
        entries = _entries(ax, {}) | entries
    entries |= _entries(figure.axes[0], keys or {})
    order = [*{label: None for ax in figure.axes for label in _entries(ax, {})}, *(keys or {})]
    handles = [entries[label] for label in order]
    figure.legend(handles=handles, labels=order, loc="outside upper center", ncols=columns)


def _room(ax: Axes, entries: Mapping[str, Artist]) -> int:
    """How many columns of a legend are as wide as the axes, from the number of letters."""
    from matplotlib import rcParams

    size = float(rcParams["legend.fontsize"])
    letters = max(len(_MATHS.sub("", label)) for label in entries)
    handle = rcParams["legend.handlelength"] + rcParams["legend.handletextpad"]
    column = size * (_LETTER * letters + handle + rcParams["legend.columnspacing"])
    width = 72.0 * _whole(ax).get_figwidth() / _columns(ax) - _MARGIN
    return max(1, int((width + size * rcParams["legend.columnspacing"]) / column))


def _entries(ax: Axes, keys: Keys) -> dict[str, Artist]:
    """Handles by label: the first of each, and those of the keys, in grey unless they say more."""
    from matplotlib.lines import Line2D

    handles, labels = ax.get_legend_handles_labels()
    entries: dict[str, Artist] = {}
    for handle, label in zip(handles, labels, strict=True):
        entries.setdefault(label, handle)
    for label, drawn in keys.items():
        look: dict[str, Any] = {"color": INK, "mfc": "none"} | dict(drawn)
        entries[label] = Line2D([], [], **look)
    return entries


def label_ends(ax: Axes, keys: Keys | None = None, columns: int = 0) -> bool:
    """Write the labels of lines at the right of the axes, at the height of their ends.

    Where there are too many of them, or ends are so close that a label would be away from its
    curve, there is a legend instead; `keys` and what has no line stay in one. Call it once the
    limits of the axes are what they shall be.

    Args:
        ax: The axes.
        keys: As in `legend`.
        columns: Of a legend above the axes. Default 0: it is inside.

    Returns:
        Whether the ends have labels.
    """
    lines = [line for line in ax.lines if _is_curve(line)]
    heights = [_height(line) for line in lines]
    if not 0 < len(lines) <= _MOST or None in heights:
        _rest(ax, keys, columns)
        return False
    size = float(ax.xaxis.label.get_fontsize())
    inches = _whole(ax).get_figheight() / _rows(ax) * 0.78  # what ticks and labels leave
    row = _APART * size / 72.0 / inches
    wanted = np.array(heights, float)
    placed = _apart(wanted, row)
    if np.max(np.abs(placed - wanted)) > _AWAY * row:
        _rest(ax, keys, columns)
        return False
    for line, height in zip(lines, placed, strict=True):
        ax.annotate(
            str(line.get_label()),
            xy=(1.0, height),
            xycoords="axes fraction",
            xytext=(3.0, 0.0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
            annotation_clip=False,
        )
        line.set_label("_")
    _rest(ax, keys, columns)
    return True


def _rest(ax: Axes, keys: Keys | None, columns: int) -> None:
    """What has no label at its end: in a legend, inside or above the axes."""
    if columns:
        legend_above(ax, columns, keys)
    else:
        legend(ax, keys)


def _whole(ax: Axes) -> Figure:
    """The figure that the axes are in."""
    return cast("Figure", ax.figure)


def _rows(ax: Axes) -> int:
    """Rows of panels of the figure."""
    spec = ax.get_subplotspec()
    return spec.get_gridspec().nrows if spec is not None else 1


def _columns(ax: Axes) -> int:
    """Columns of panels of the figure."""
    spec = ax.get_subplotspec()
    return spec.get_gridspec().ncols if spec is not None else 1


def _is_curve(line: Line2D) -> bool:
    """Whether a line has a label and is no level that crosses the axes."""
    ax = line.axes
    named = not str(line.get_label()).startswith("_") and line.get_linestyle() != "None"
    return ax is not None and named and line.get_transform() is ax.transData


def _height(line: Line2D) -> float | None:
    """Where a line ends, as a share of the axes' height; None if that is not at the right."""
    ax = line.axes
    if ax is None:
        return None
    x = np.asarray(line.get_xdata(), float)
    y = np.asarray(line.get_ydata(), float)
    known = np.isfinite(x) & np.isfinite(y)
    low, high = ax.get_xlim()
    known &= (x >= min(low, high)) & (x <= max(low, high))
    if not known.any():
        return None
    last = np.flatnonzero(known)[np.argmax(x[known])]
    across, up = ax.transAxes.inverted().transform(ax.transData.transform((x[last], y[last])))
    return float(up) if across > 0.9 and -0.02 <= up <= 1.02 else None


def _apart(heights: np.ndarray, row: float) -> np.ndarray:
    """Heights moved as little as keeps them a row apart: groups that touch share their mean."""
    order = np.argsort(heights)
    groups: list[list[float]] = []  # of heights less the rows below them in their group
    for height in heights[order]:
        groups.append([float(height)])
        while len(groups) > 1 and _lowest(groups[-1], row) < _highest(groups[-2], row) + row:
            last = groups.pop()
            groups[-1] += last
    placed = np.empty(len(heights))
    ends = [_lowest(group, row) + row * k for group in groups for k in range(len(group))]
    placed[order] = ends
    return placed


def _lowest(group: list[float], row: float) -> float:
    """Where the lowest label of a group stands, so that the group is about the mean of its ends."""
    return float(np.mean(group)) - 0.5 * row * (len(group) - 1)


def _highest(group: list[float], row: float) -> float:
    """Where the highest one stands."""
    return _lowest(group, row) + row * (len(group) - 1)
