"""What a task of `jaxsmi sgd` answers, and its curves. No equation lives here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxsmi.cli.report import draw_nothing
from jaxsmi.workbench import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Answer", "curves"]


class Answer(NamedTuple):
    """What a task computed: for JSON, for the reader, for the netCDF file, and how it is drawn."""

    data: Mapping[str, Any]
    lines: Sequence[str]
    arrays: Mapping[str, np.ndarray]
    draw: Callable[[Figure], object] = draw_nothing


def curves(
    x: np.ndarray,
    overlaps: np.ndarray,
    names: list[str],
    across: str = "time t",
    up: str = "overlap",
) -> Callable[[Figure], object]:
    """Draws overlaps (runs, T, n) against the time."""

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        for k, name in enumerate(names):
            lines = ax.plot(x, overlaps[..., k].T, color=plotting.colour(k), lw=0.8)
            lines[0].set_label(name)
        ax.set_xlabel(across)
        ax.set_ylabel(up)
        plotting.legend(ax)

    return draw
