"""The phases of the semantic/positional problem of online SGD, as areas with their boundaries.

No equation lives here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jaxsmi.sgd.diagram import BOUNDARIES, LABELS, PhaseDiagram
from jaxsmi.workbench.plotting.palette import INK, REGIONS
from jaxsmi.workbench.plotting.style import axes_or_new, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["phases"]


@styled
def phases(diagram: PhaseDiagram, a: ArrayLike, omega: ArrayLike, ax: Axes | None = None) -> Axes:
    """The phases in the plane (a, ω) as colours, the boundaries as lines, and the legend beside it.

    Args:
        diagram: From `jaxsmi.sgd.phase_diagram`.
        a: Strengths of the encoding of its columns.
        omega: Weights of the positional part, of its rows.
        ax: Axes to draw in. Default None: new ones.

    Returns:
        The axes.

    Raises:
        ImportError: Without matplotlib, with the remedy.
    """
    ax = axes_or_new(ax)
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    omega = np.asarray(omega)
    style: dict[str, Any] = {"cmap": ListedColormap(REGIONS), "vmin": -0.5, "vmax": 7.5}
    ax.pcolormesh(a, omega, diagram.label, rasterized=True, **style)
    for name, dashes in zip(BOUNDARIES, (":", "-", "--", "-."), strict=True):
        ax.plot(a, diagram.boundaries[name], color=INK, lw=1.2, ls=dashes, label=name)
    shown = [k for k in range(len(REGIONS)) if np.any(np.asarray(diagram.label) == k)]
    areas = [Patch(color=REGIONS[k], label=LABELS[k]) for k in shown]
    lines = ax.get_legend_handles_labels()[0]
    ax.legend(handles=[*areas, *lines], loc="center left", bbox_to_anchor=(1.0, 0.5))
    ax.grid(False)
    ax.set_xlabel("strength of the encoding $a$")
    ax.set_ylabel(r"weight of the positional part $\omega$")
    ax.set_ylim(omega[0], omega[-1])
    return ax
