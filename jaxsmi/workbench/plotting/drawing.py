"""The style of all figures: colours, lines and markers, axes at the widths of an article, legends,
and files that record their provenance."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.results import Solution
from jaxsmi.core.validate import check
from jaxsmi.workbench.files import whole
from jaxsmi.workbench.provenance import provenance

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

P = ParamSpec("P")
T = TypeVar("T")
Keys = Mapping[str, Mapping[str, Any]]  # entries of a legend: label -> line style

COLUMN = 3.5  # inches: one column of a two-column page, and its whole width
PAGE = 7.1
INK = "0.15"  # theory without a colour of its own, levels and limits
MAP = "viridis"  # of heights; shades of a parameter are taken from it
CROSS: dict[str, Any] = {"marker": "x", "markersize": 4, "linestyle": "none"}  # not converged

# Okabe and Ito: distinguishable with any colour vision
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", (0, (1, 1)))
_LIGHTEST = 0.8  # empirical: the end of viridis that is still visible on white
_METADATA = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}
STYLE = str(pathlib.Path(__file__).with_name("article.mplstyle"))


def colour(p: int) -> str:
    """Colour of index p."""
    return _COLOURS[p % len(_COLOURS)]


def shades(count: int) -> list[str]:
    """Colours of `count` values of a parameter in its order, dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[MAP](_LIGHTEST * k / max(count - 1, 1))) for k in range(count)]


def line(p: int) -> dict[str, Any]:
    """Line style number p."""
    return {"linestyle": _LINES[p % len(_LINES)], "linewidth": 1.4}


def markers(p: int, shape: int | None = None) -> dict[str, Any]:
    """Hollow markers in the colour of index p, without a line."""
    return {
        "color": colour(p),
        "marker": _MARKERS[(p if shape is None else shape) % len(_MARKERS)],
        "markerfacecolor": "none",
        "linestyle": "none",
        "zorder": 3,
        "clip_on": False,  # whole at the limits of the axes
    }


def style() -> contextlib.AbstractContextManager[None]:
    """The style of all figures, while they are drawn and saved."""
    return import_pyplot().style.context(STYLE)


def styled(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that draws, so that it draws in this style."""

    @functools.wraps(function)
    def draws(*arguments: P.args, **settings: P.kwargs) -> T:
        with style():
            return function(*arguments, **settings)

    return draws


def import_pyplot() -> ModuleType:
    """matplotlib.pyplot, or an ImportError that says how to install it."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError(
            "matplotlib is needed to plot. Install it with: pip install 'jaxsmi[plot]'"
        ) from error
    return matplotlib.pyplot


def canvas(columns: int = 1, rows: int = 1, height: float = 2.55) -> Figure:
    """An empty figure for a grid of panels, one column wide for one panel, else a page; rows are
    `height` inches high."""
    import_pyplot()
    from matplotlib.figure import Figure  # not pyplot: opens no window

    size = (COLUMN if columns == 1 else PAGE, height * rows)
    with style():
        return Figure(figsize=size, layout="constrained")


def axes_or_new(ax: Axes | None) -> Axes:
    """`ax`, or the axes of a new figure one column wide."""
    return ax or import_pyplot().subplots(figsize=(COLUMN, 2.7), layout="constrained")[1]


def band(
    ax: Axes,
    x: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    tint: str,
    within: tuple[float, float] = (-np.inf, np.inf),
) -> None:
    """Shade between two curves, clipped to the values that the quantity can have."""
    low, high = (np.clip(np.asarray(y), *within) for y in (low, high))
    ax.fill_between(np.asarray(x), low, high, color=tint, alpha=0.2, lw=0)


def legend(ax: Axes, keys: Keys | None = None, **settings: Any) -> None:
    """Draw a legend of the labelled artists, each label once, and of `keys`, which explain line
    styles and markers: `{"GAMP": {"marker": "o", "ls": "none"}}`."""
    _draw_legend(ax, _entries(ax, keys or {}), settings)


def legend_above(
    ax: Axes,
    columns: int,
    keys: Keys | None = None,
    entries: Mapping[str, Artist] | None = None,
    **settings: Any,
) -> None:
    """Draw the legend above the axes, in at most `columns` columns; of `entries` alone (handles by
    label) where they are passed."""
    entries = _entries(ax, keys or {}) if entries is None else entries
    if entries:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3}
        _draw_legend(ax, entries, place | {"ncols": min(columns, _room(ax, entries))} | settings)


def _draw_legend(ax: Axes, entries: Mapping[str, Artist], settings: dict[str, Any]) -> None:
    if entries:
        ax.legend(list(entries.values()), list(entries), **settings)


def _entries(ax: Axes, keys: Keys) -> dict[str, Artist]:
    from matplotlib.lines import Line2D

    entries: dict[str, Artist] = {}
    for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
        entries.setdefault(label, handle)
    for label, drawn in keys.items():
        look: dict[str, Any] = {"color": INK, "mfc": "none"} | dict(drawn)
        entries[label] = Line2D([], [], **look)
    return entries


def _room(ax: Axes, entries: Mapping[str, Artist]) -> int:
    """Number of legend columns that fit above the axes."""
    # a letter is half as wide as high; formulas have about as many commands as letters
    letters = max(len(re.sub(r"\\[a-zA-Z]+|[${}^_\\]", "", label)) for label in entries)
    column = 7.0 * (0.5 * letters + 3.5)  # handle and gaps are 3.5 letters high
    spec = ax.get_subplotspec()
    panels = spec.get_gridspec().ncols if spec is not None else 1
    width = 72.0 * cast("Figure", ax.figure).get_figwidth() / panels - 30.0  # less the ordinate
    return max(1, int(width / column))


def label_ends(ax: Axes, keys: Keys | None = None, columns: int = 0) -> bool:
    """Write the labels of curves at the right of the axes, at the height of their ends.

    With more than six curves, or ends closer than a row of text, a legend is drawn instead. Call it
    when the limits of the axes are final.

    Args:
        ax: The axes.
        keys: As in `legend`; they and labels without a curve always go to a legend.
        columns: Of a legend above the axes. Default 0: it is inside.

    Returns:
        Whether the labels are at the ends.
    """
    curves = [c for c in ax.lines if _is_curve(ax, c)]
    ends = [_end(ax, c) for c in curves]
    heights = np.array([np.nan if end is None else end for end in ends])
    inches = cast("Figure", ax.figure).get_figheight() * ax.get_position().height
    row = 1.3 * 8.0 / 72.0 / inches  # labels of 8 points, 1.3 of their height apart
    close = len(curves) > 1 and np.min(np.diff(np.sort(heights))) < row
    at_ends = 0 < len(curves) <= 6 and bool(np.all(np.isfinite(heights))) and not close
    for curve, height in zip(curves, heights, strict=True) if at_ends else ():
        place = {"xycoords": "axes fraction", "xytext": (3.0, 0.0), "textcoords": "offset points"}
        look: dict[str, Any] = place | {"va": "center", "color": curve.get_color()}
        ax.annotate(str(curve.get_label()), (1.0, height), annotation_clip=False, **look)
        curve.set_label("_")
    if columns:
        legend_above(ax, columns, keys)
    else:
        legend(ax, keys)
    return at_ends


def _is_curve(ax: Axes, drawn: Line2D) -> bool:
    """Whether it has a label and is not a level that crosses the axes."""
    named = not str(drawn.get_label()).startswith("_") and drawn.get_linestyle() != "None"
    return named and drawn.get_transform() is ax.transData


def _end(ax: Axes, drawn: Line2D) -> float | None:
    """Height of the right end of a curve as a share of the axes; None if it ends elsewhere."""
    points = np.column_stack([np.asarray(drawn.get_xdata(), float), drawn.get_ydata()])
    points = points[np.all(np.isfinite(points), axis=1)]
    shares = ax.transAxes.inverted().transform(ax.transData.transform(points))
    shares = shares[shares[:, 0] <= 1.0 + 1e-9]
    if not len(shares):
        return None
    across, up = shares[np.argmax(shares[:, 0])]
    return float(up) if across > 0.9 and -0.02 <= up <= 1.02 else None


def savefig(
    figure: Figure,
    path: str | os.PathLike[str],
    solution: Solution | None = None,
    **attributes: object,
) -> None:
    """Save a figure with its provenance inside the file, as JSON under "Description" (PDF:
    "Subject").

    Args:
        figure: The figure.
        path: Ends in .png, .svg or .pdf.
        solution: Its model, key and outcome are added to the versions and the time. Default None.
        **attributes: Added too.

    Raises:
        ValueError: For another ending.

    Example:
        To read it back: `json.loads(PIL.Image.open("out/run.png").text["Description"])`.
    """
    ending = pathlib.Path(path).suffix.lower()
    check(ending in _METADATA, "path", str(path), "a name ending in " + ", ".join(_METADATA))
    record = provenance(solution, **attributes)
    metadata = {_METADATA[ending]: json.dumps(record), "Creator": f"jaxsmi {record['jaxsmi']}"}
    with style(), whole(path) as aside:
        figure.savefig(aside, metadata=metadata)
