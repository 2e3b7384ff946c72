"""What a curve is called: beside its end where there is room, else in a legend.

No equation lives here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["label_ends", "legend", "legend_above"]

_MOST = 6  # curves with a label at their end
_APART = 1.25  # lines of text between two labels
_AWAY = 2.0  # lines of text that a label may be away from its curve

Keys = Mapping[str, Mapping[str, Any]]  # entries of a legend: how what they name is drawn


def legend(ax: Axes, keys: Keys | None = None, **settings: Any) -> None:
    """The legend of what has a label, each label once, and of `keys`: what dashes, dots or ticks
    are in every colour, `{"message passing": {"marker": "o", "ls": "none"}}`.
    """
    entries = _entries(ax, keys or {})
    if entries:
        ax.legend(handles=list(entries.values()), labels=list(entries), **settings)


def legend_above(ax: Axes, columns: int, keys: Keys | None = None, **settings: Any) -> None:
    """The legend above the axes, where it hides nothing."""
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": columns, "borderaxespad": 0.3}
    if "handles" in settings:
        ax.legend(**place, **settings)
    else:
        legend(ax, keys, **place, **settings)


def _entries(ax: Axes, keys: Keys) -> dict[str, Artist]:
    """Handles by label: the first of each, and those of the keys, in grey unless they say more."""
    from matplotlib.lines import Line2D

    handles, labels = ax.get_legend_handles_labels()
    entries: dict[str, Artist] = {}
    for handle, label in zip(handles, labels, strict=True):
        entries.setdefault(label, handle)
    for label, drawn in keys.items():
        entries[label] = Line2D([], [], **({"color": INK, "mfc": "none"} | dict(drawn)))
    return entries


def label_ends(ax: Axes, keys: Keys | None = None, **settings: Any) -> bool:
    """Write the labels of lines at the right of the axes, at the height of their ends.

    Where there are too many of them, or ends are so close that a label would be away from its
    curve, there is a legend instead; `keys` and what has no line stay in one. Call it once the
    limits of the axes are what they shall be.

    Args:
        ax: The axes.
        keys: As in `legend`.
        **settings: Of the legend.

    Returns:
        Whether the ends have labels.
    """
    lines = [line for line in ax.lines if not line.get_label().startswith("_")]  # pyright: ignore
    heights = [_height(line) for line in lines]
    if not 0 < len(lines) <= _MOST or None in heights:
        legend(ax, keys, **settings)
        return False
    size = ax.xaxis.label.get_fontsize()
    inches = ax.figure.get_size_inches()[1] / _rows(ax) * 0.78  # what ticks and labels leave
    row = _APART * size / 72.0 / inches
    wanted = np.array(heights, float)
    placed = _apart(wanted, row)
    if np.max(np.abs(placed - wanted)) > _AWAY * row:
        legend(ax, keys, **settings)
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
    legend(ax, keys, **settings)
    return True


def _rows(ax: Axes) -> int:
    """Rows of panels of the figure."""
    spec = ax.get_subplotspec()
    return spec.get_gridspec().nrows if spec is not None else 1


def _height(line: Line2D) -> float | None:
    """Where a line ends, as a share of the axes' height; None if that is not at the right."""
    ax = line.axes
    if ax is None:
        return None
    x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
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
