"""The style of all figures: colours, lines and markers, axes at the widths of an article, legends,
and files that record their provenance."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.solution import Solution
from jaxsmi.core.validate import check
from jaxsmi.workbench.storage import atomic_write, provenance

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Keys = Mapping[str, Mapping[str, Any]]  # entries of a legend: label -> line style
Columns = int | Sequence[Sequence[str]]  # columns of a legend: their number, or the labels in each

COLUMN = 3.5  # inches: one column of a two-column page, and its whole width
PAGE = 7.1
_HEIGHT = 2.7
INK = "0.15"  # theory without a colour of its own, levels and limits
MAP = "viridis"  # colour map of heights; shades of a parameter are taken from it
_FEW = 8  # points of a line that are not enough for a smooth one
CROSS: dict[str, Any] = {"marker": "x", "markersize": 4, "linestyle": "none"}  # not converged

# Okabe and Ito: distinguishable with any colour vision
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", (0, (1, 1)), (0, (8, 2)), (0, (5, 1, 1, 1, 1, 1)))
_LIGHTEST = 0.8  # empirical: the end of viridis that is still visible on white
_COVER = "extent of the legend"  # label of invisible axes
_HIGHEST = 0.24  # part of a figure's height that a legend may take; then its letters are smaller
_OWN = "made here"  # gid of figures that may grow with their legend
_METADATA = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}
_SMALL = {"fontsize": 6, "title_fontsize": 6}
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


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The style of all figures, while they are drawn and saved; also a decorator, `@style()`."""
    with import_pyplot().style.context(STYLE):
        yield


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

    # drawn at its printed size: letters of a scaled figure would have another height
    size = (COLUMN if columns == 1 else PAGE, height * rows)
    with style():
        return Figure(figsize=size, layout="constrained")


def axes_or_new(ax: Axes | None) -> Axes:
    """`ax`, or the axes of a new figure one column wide."""
    allowed = "axes of matplotlib, such as those of plt.subplots()[1], or None"
    check(ax is None or hasattr(ax, "get_xlabel"), "ax", ax, allowed)
    if ax is not None:
        return ax
    figure = import_pyplot().figure(figsize=(COLUMN, _HEIGHT), layout="constrained", gid=_OWN)
    return figure.subplots()


def joined(ax: Axes, x: ArrayLike, y: ArrayLike, **look: Any) -> None:
    """Draw a line; points without a neighbour to join them to are dots, and all of a few, whose
    line may be far from the curve between them."""
    known = np.pad(np.isfinite(np.asarray(y)), 1)
    alone = ~known[:-2] & ~known[2:] | (np.sum(known) < _FEW)
    dots = np.flatnonzero(known[1:-1] & alone)
    dot = {"marker": ".", "markevery": dots} if dots.size else {}
    ax.plot(x, y, **dot | look)


def band(
    ax: Axes,
    x: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    tint: str,
    within: tuple[float, float] = (-np.inf, np.inf),
    label: str | None = None,
) -> None:
    """Shade between two curves, clipped to the values that the quantity can have. A legend has the
    label if the band is broader than a line."""
    low, high = (np.clip(np.asarray(y), *within) for y in (low, high))
    ax.fill_between(np.asarray(x), low, high, color=tint, alpha=0.2, lw=0, gid=label)


def with_symbol(parameter: str) -> str:
    """The name of a parameter on an axis, of noise with its symbol in the equations."""
    return rf"{parameter} $\Delta$" if parameter == "noise" else parameter


def integer_ticks(ax: Axes) -> None:
    """Ticks of steps at integers; those of other scales, and of the user, stay."""
    from matplotlib.ticker import MaxNLocator

    locator = ax.xaxis.get_major_locator()
    if isinstance(locator, MaxNLocator):
        locator.set_params(integer=True)


def from_zero(ax: Axes) -> None:
    """Begin the ordinate at zero, unless all values are far from it."""
    low, high = ax.get_ylim()
    if low < 0.5 * high:
        ax.set_ylim(bottom=0.0)


def legend(ax: Axes, keys: Keys | None = None, columns: Columns = 1, **settings: Any) -> None:
    """Draw a legend of the labelled artists, each label once, lines before the others, and of
    `keys`, which explain line styles and markers: `{"GAMP": {"marker": "o", "ls": "none"}}`.
    With as many `ncols`, `columns` are the labels in each ("" is a gap); the others follow."""
    from matplotlib.lines import Line2D

    ax.get_ylim()  # final, before heights are measured
    for shade in (x for x in ax.collections if str(x.get_gid()).startswith("band: ")):
        # a closed polygon: the low end at each x, then the high ones in reverse
        ends = [ax.transData.transform(path.vertices)[:, 1] for path in shade.get_paths()]
        if any(np.any(np.abs(y - y[::-1]) > 0.02 * ax.figure.dpi) for y in ends):
            shade.set_label(str(shade.get_gid()))
    entries: dict[str, Artist] = {}
    bare = lambda pair: not isinstance(pair[0], Line2D) or pair[0].get_linestyle() == "None"
    for handle, label in sorted(zip(*ax.get_legend_handles_labels(), strict=True), key=bare):
        entries.setdefault(label, handle)
    for label, drawn in (keys or {}).items():
        look: dict[str, Any] = {"color": INK, "mfc": "none"} | dict(drawn)
        entries[label] = Line2D([], [], **look)
    labels = list(entries)
    if not isinstance(columns, int) and len(columns) == settings.get("ncols"):
        table = [[x if x in entries else "" for x in column] for column in columns]
        for label in (x for x in labels if not any(x in column for column in columns)):
            min(table, key=len).append(label)
        entries[""] = Line2D([], [], linestyle="none")
        filled = zip(*zip_longest(*table, fillvalue=""), strict=True)  # one after the other
        labels = [x for column in filled for x in column]
    if entries:
        look = {"alignment": "left", "title_fontsize": 7} | settings
        ax.legend([entries[x] for x in labels], labels, **look)


def legend_above(ax: Axes, columns: Columns, **settings: Any) -> None:
    """Draw the legend above the axes, in `columns` columns (their number, or the labels in each) or
    the most that fit into the figure, of a high one in smaller letters, for which a new figure
    grows, and subplots of a figure without a layout engine are lowered; inside the axes if none
    fit. A title of the axes, also a later one, goes above it. Logarithmic axes get short labels."""
    from matplotlib.transforms import ScaledTranslation

    # matplotlib moves a title above inset axes, not above a legend: these have the legend's extent
    if not any(inset.get_label() == _COVER for inset in ax.child_axes):
        cover = ax.inset_axes((0, 1, 1, 0), label=_COVER, visible=False)
        cover.set_axes_locator(functools.partial(_legend_extent, ax))
    # it begins above the labels of the ordinate: a third of an inch makes a column more
    left = ax.transAxes + ScaledTranslation(-0.33, 0, ax.figure.dpi_scale_trans)
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3}
    place |= {"bbox_transform": left} | settings
    figure: Any = ax.figure
    own = figure.get_gid() == _OWN
    most = _HIGHEST * (figure.dpi * _HEIGHT if own else figure.bbox.height)
    for highest, look in ((most, {}), (np.inf, _SMALL)):
        for count in range(columns if isinstance(columns, int) else len(columns), 0, -1):
            legend(ax, None, columns, **look | place | {"ncols": count})
            if _legend_fits(ax, highest):
                if own and (drawn := ax.get_legend()):
                    more = max(drawn.get_window_extent().height - most, 0.0)
                    figure.set_figheight(_HEIGHT + more / figure.dpi)
                return
    legend(ax, None, **{"loc": "best"} | settings)


def _legend_extent(ax: Axes, *_: Any) -> Any:
    _log_labels(ax)  # before each drawing, as a user sets the scale after it
    drawn = ax.get_legend() or ax
    return drawn.get_window_extent().transformed(ax.figure.transSubfigure.inverted())


def _log_labels(ax: Axes) -> None:
    """Label 0.1, 0.2 and 0.5 within three decades, where matplotlib's 2 × 10⁻¹ would overlap."""
    from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation

    for axis in (ax.xaxis, ax.yaxis):
        view = axis.get_view_interval()
        decades = np.ptp(np.log10(view)) if axis.get_scale() == "log" else np.inf
        default = isinstance(axis.get_major_formatter(), LogFormatterSciNotation)
        if default and decades < 3.0 and min(view) >= 1e-4:
            first = ("1", "2", "5") if decades > 0.7 else tuple("123456789")
            for set_formatter in (axis.set_major_formatter, axis.set_minor_formatter):
                set_formatter(FuncFormatter(functools.partial(_short, first)))


def _short(first: tuple[str, ...], x: float, _: int) -> str:
    return f"{x:g}" if f"{x:.3e}".startswith(first) else ""


def _legend_fits(ax: Axes, highest: float) -> bool:
    drawn, figure = ax.get_legend(), ax.figure
    if drawn is None:
        return True
    box, room = drawn.get_window_extent(), figure.bbox
    # a layout engine makes room above the axes, and may move them to the right
    managed = figure.get_layout_engine() is not None
    title = figure.dpi / 72.0 * (float(ax.title.get_fontsize()) + 4.0)  # its height and distance
    if managed:
        return box.height <= highest and box.x1 <= room.x1 - 0.05 * room.width
    spec = ax.get_subplotspec()
    end = room.x1 if spec is None or spec.is_last_col() else ax.bbox.x1  # no panel's beside it
    fits = box.height <= highest and box.x1 <= end
    return fits and _lowered(ax, box.y1 + title - room.y1)


def _lowered(ax: Axes, excess: float) -> bool:
    """Lower the subplots by `excess` pixels, the top row to half of its height at most."""
    spec, figure = ax.get_subplotspec(), ax.figure
    if excess > 0.0 and spec and spec.is_first_row() and excess < 0.5 * ax.bbox.height:
        end, top = ax.bbox.y1, figure.subplotpars.top
        figure.subplots_adjust(top=top - excess / figure.bbox.height)
        excess -= end - ax.bbox.y1  # none of a grid with a top of its own
    return excess < 1.0


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
    # whole or not at all: a killed run leaves the figure of the one before
    with style(), atomic_write(path) as temporary:
        figure.savefig(temporary, metadata=metadata)
