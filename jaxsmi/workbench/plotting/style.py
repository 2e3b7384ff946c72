"""What all figures share: one style, axes at the widths of an article, error bands, legends, and
files that say how they were made.

No equation lives here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.checks import check
from jaxsmi.core.files import whole
from jaxsmi.core.provenance import provenance
from jaxsmi.core.results import Solution
from jaxsmi.workbench.plotting.palette import colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "axes_or_new",
    "band",
    "canvas",
    "frame",
    "import_pyplot",
    "savefig",
    "style",
    "styled",
]

P = ParamSpec("P")
T = TypeVar("T")

COLUMN = 3.5  # inches: one column of a page, and the whole of it
PAGE = 7.1
_METADATA = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}
_LETTERS = 8.0
_SMALL = 7.0
_RULES: dict[str, Any] = {
    "font.size": _LETTERS,
    "axes.labelsize": _LETTERS,
    "axes.titlesize": _LETTERS,
    "xtick.labelsize": _SMALL,
    "ytick.labelsize": _SMALL,
    "legend.fontsize": _SMALL,
    "legend.title_fontsize": _SMALL,
    "legend.frameon": True,  # without an edge, but what is behind it shines through less
    "legend.fancybox": False,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.handlelength": 1.8,
    "legend.labelspacing": 0.3,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "lines.markeredgewidth": 1.0,
    "errorbar.capsize": 1.5,
    "patch.linewidth": 0.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "svg.fonttype": "none",  # letters stay letters, in svg and in pdf
    "pdf.fonttype": 42,
    "savefig.dpi": 220,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The one style of all figures, while they are made and saved."""
    import_pyplot()
    from cycler import cycler
    from matplotlib import rc_context

    rules: Any = _RULES | {"axes.prop_cycle": cycler(color=[colour(p) for p in range(7)])}
    with rc_context(rules):
        yield


def styled(function: Callable[P, T]) -> Callable[P, T]:
    """A function that draws, in that style whatever the caller's is."""

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
    """An empty figure without a window for so many panels: a column of an article for one, the page
    for more; `height` of a row in inches.
    """
    import_pyplot()
    from matplotlib.figure import Figure  # not pyplot: no window, whatever the machine

    width = COLUMN if columns == 1 else PAGE
    with style():
        return Figure(figsize=(width, height * rows), layout="constrained")


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes that were given, or those of a new figure with the size of a column."""
    if ax is not None:
        return ax
    with style():
        return import_pyplot().subplots(figsize=(COLUMN, 2.7), layout="constrained")[1]


def frame(ax: Axes) -> None:
    """A light grid, and no lines above and at the right."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(color=_RULES["grid.color"], lw=_RULES["grid.linewidth"])


def band(
    ax: Axes,
    x: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    tint: str,
    within: tuple[float, float] = (-np.inf, np.inf),
) -> None:
    """A light band between two curves, no further than the values that the quantity can have."""
    bottom = np.clip(low, *within)
    top = np.clip(high, *within)
    ax.fill_between(np.asarray(x), bottom, top, color=tint, alpha=0.2, lw=0)


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
    made = provenance(solution, **attributes)
    written = {_METADATA[ending]: json.dumps(made), "Creator": f"jaxsmi {made['jaxsmi']}"}
    with style(), whole(path) as aside:
        figure.savefig(aside, metadata=written)
