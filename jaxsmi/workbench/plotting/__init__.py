"""Figures in one style: axes in, axes out. Theory is a line with its error band, message passing is
markers.

The one relation used here: for a Bayes-optimal run, cosine² = Q/ρ with ρ the second moment of the
signal, so that cos² of a run of message passing is laid over the overlap of state evolution.

matplotlib is imported only when a function here is called; it comes with `pip install
'jaxsmi[plot]'`.
"""

from jaxsmi.workbench.plotting.labels import label_ends, legend, legend_above, legend_of_all
from jaxsmi.workbench.plotting.learning import learning_curves, learning_order
from jaxsmi.workbench.plotting.overlaps import overlap_against_alpha, overlap_against_iteration
from jaxsmi.workbench.plotting.palette import colour, line, markers, shades
from jaxsmi.workbench.plotting.phases import phases
from jaxsmi.workbench.plotting.risk import risk_against_alpha
from jaxsmi.workbench.plotting.style import (
    band,
    canvas,
    frame,
    import_pyplot,
    savefig,
    style,
    styled,
)
from jaxsmi.workbench.plotting.tables import sweep, thresholds_against

__all__ = [
    "band",
    "canvas",
    "colour",
    "frame",
    "import_pyplot",
    "label_ends",
    "learning_curves",
    "learning_order",
    "legend",
    "legend_above",
    "legend_of_all",
    "line",
    "markers",
    "overlap_against_alpha",
    "overlap_against_iteration",
    "phases",
    "risk_against_alpha",
    "savefig",
    "shades",
    "style",
    "styled",
    "sweep",
    "thresholds_against",
]
