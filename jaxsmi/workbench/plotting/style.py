"""What all figures share: axes, colours, markers, legends, and files that say how they were made.

No equation lives here.
"""

from __future__ import annotations

import json
import os
import pathlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxsmi.core.checks import check
from jaxsmi.core.provenance import provenance
from jaxsmi.core.results import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "axes_or_new",
    "colour",
    "frame",
    "legend_above",
    "line",
    "markers",
    "import_pyplot",
    "savefig",
]

# Okabe and Ito's palette, told apart with any colour vision; markers tell indices apart in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", (0, (1, 1)))
_METADATA = {".png": "Description", ".svg": "Description", ".pdf": "Subject"}


def import_pyplot() -> ModuleType:
    """matplotlib.pyplot, or an ImportError that says how to install it."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError(
            "matplotlib is needed to plot. Install it with: pip install 'jaxsmi[plot]'"
        ) from error
    return matplotlib.pyplot


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes that were given, or those of a new figure."""
    return (
        ax
        if ax is not None
        else import_pyplot().subplots(figsize=(5, 3.6), layout="constrained")[1]
    )


def colour(p: int) -> str:
    """Colour of index p."""
    return _COLOURS[p % len(_COLOURS)]


def line(p: int) -> dict[str, Any]:
    """Style of the line of index p."""
    return {"linestyle": _LINES[p % len(_LINES)], "linewidth": 1.6}


def markers(p: int, grey: str | None = None, size: float = 5.0) -> dict[str, Any]:
    """Hollow markers of index p without a line, drawn whole at the limits of the axes."""
    return {
        "color": grey or colour(p),
        "marker": _MARKERS[p % len(_MARKERS)],
        "markersize": size,
        "markerfacecolor": "none",
        "markeredgewidth": 1.2,
        "linestyle": "none",
        "zorder": 3,
        "clip_on": False,
    }


def frame(ax: Axes) -> None:
    """A light grid, and no lines above and at the right."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, lw=0.6)


def legend_above(ax: Axes, columns: int, **settings: Any) -> None:
    """The legend above the axes, where it hides nothing."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        fontsize="small",
        **settings,
    )


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
    figure.savefig(
        path,
        dpi=160,
        metadata={_METADATA[ending]: json.dumps(made), "Creator": f"jaxsmi {made['jaxsmi']}"},
    )
