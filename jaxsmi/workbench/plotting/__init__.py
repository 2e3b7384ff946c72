"""Figures in one style: axes in, axes out. Theory is a line with its error band, runs are markers,
index p has the same colour everywhere.

matplotlib is imported when a function here is called; it comes with `pip install 'jaxsmi[plot]'`.
"""

from jaxsmi.workbench.plotting.curves import (
    learning_curves,
    learning_order,
    overlap_against_alpha,
    overlap_against_iteration,
    risk_against_alpha,
    sweep,
    thresholds_against,
)
from jaxsmi.workbench.plotting.drawing import (
    STYLE,
    band,
    canvas,
    colour,
    import_pyplot,
    legend,
    legend_above,
    line,
    markers,
    savefig,
    shades,
    style,
)

__all__ = [
    "STYLE",
    "band",
    "canvas",
    "colour",
    "import_pyplot",
    "learning_curves",
    "learning_order",
    "legend",
    "legend_above",
    "line",
    "markers",
    "overlap_against_alpha",
    "overlap_against_iteration",
    "risk_against_alpha",
    "savefig",
    "shades",
    "style",
    "sweep",
    "thresholds_against",
]
