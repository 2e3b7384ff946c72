"""Colours, lines and markers of all figures, told apart with any colour vision and in grey.

Things of different kinds have Okabe and Ito's colours, each with a line and a marker of its own.
Values of a parameter have shades of one map, dark to light, in its order. No equation lives here.
"""

from __future__ import annotations

from typing import Any

__all__ = ["GREY", "INK", "MAP", "REGIONS", "colour", "line", "markers", "shades"]

INK = "0.15"  # theory without a colour, levels and limits
GREY = "0.7"  # published data, behind ours
MAP = "viridis"  # of heights; its shades are those of a parameter

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", (0, (1, 1)))
_LIGHTEST = 0.8  # the end of the map that is still seen on white

# Areas of a plane that lie beside each other, with room for lines and letters (Paul Tol's colours)
REGIONS = (
    "#4477aa",
    "#000000",
    "#eecc66",
    "#cc6677",
    "#88ccee",
    "#444444",
    "#aa4499",
    "#ee8866",
)


def colour(p: int) -> str:
    """Colour of index p."""
    return _COLOURS[p % len(_COLOURS)]


def shades(count: int) -> list[str]:
    """Colours of so many values of a parameter in its order, dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    where = [_LIGHTEST * k / max(count - 1, 1) for k in range(count)]
    return [to_hex(colormaps[MAP](x)) for x in where]


def line(p: int) -> dict[str, Any]:
    """Style of the line of index p."""
    return {"linestyle": _LINES[p % len(_LINES)], "linewidth": 1.4}


def markers(p: int, grey: str | None = None, size: float = 4.5) -> dict[str, Any]:
    """Hollow markers of index p without a line, drawn whole at the limits of the axes."""
    return {
        "color": grey or colour(p),
        "marker": _MARKERS[p % len(_MARKERS)],
        "markersize": size,
        "markerfacecolor": "none",
        "markeredgewidth": 1.0,
        "linestyle": "none",
        "zorder": 3,
        "clip_on": False,
    }
