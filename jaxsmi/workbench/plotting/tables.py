"""Thresholds against a parameter, and the table of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.results import Threshold
from jaxsmi.core.validate import check
from jaxsmi.workbench.plotting import drawing
from jaxsmi.workbench.plotting.drawing import colour, markers, styled

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHARE = "overlap / second moment"
_NAMED = 10  # with more curves than this a legend hides the panel


@styled
def thresholds_against(
    stairs: Sequence[Sequence[Threshold]],
    values: ArrayLike | Sequence[float] | None = None,
    ax: Axes | None = None,
    *,
    parameter: str = "parameter",
) -> Axes:
    """Draw thresholds in the order of learning against a parameter, with 95 % intervals.

    Args:
        stairs: For each value of the parameter its list of thresholds.
        values: Of the parameter. Default None: their numbers.
        ax: Axes to draw in. Default None: new ones.
        parameter: Its name on the axis. Default "parameter".

    Returns:
        The axes.

    Raises:
        ValueError: Without any threshold.
        ImportError: Without matplotlib, with the remedy.
    """
    check(any(len(steps) for steps in stairs), "stairs", "no threshold", "at least one")
    ax = drawing.axes_or_new(ax)
    x = np.arange(len(stairs)) if values is None else np.asarray(values, float)
    for k in range(max(len(steps) for steps in stairs)):
        rows = [(v, steps[k]) for v, steps in zip(x, stairs, strict=True) if len(steps) > k]
        alpha = np.array([float(threshold.alpha) for _, threshold in rows])
        low = np.array([threshold.interval()[0] for _, threshold in rows])
        look: dict[str, Any] = markers(k) | {"linestyle": "-" if len(rows) > 1 else "none"}
        at = [value for value, _ in rows]
        ax.plot(at, alpha, label=f"threshold {k + 1}", **look)
        ax.errorbar(at, alpha, np.nan_to_num(alpha - low), fmt="none", ecolor=colour(k))
    ax.set_xlabel(parameter)
    ax.set_ylabel(r"critical sample complexity $\alpha_c$")
    ax.set_ylim(bottom=0)
    drawing.label_ends(ax, {"95 % interval": {"marker": "|", "ls": "none", "ms": 7}}, columns=3)
    return ax


@styled
def sweep(table: xarray.Dataset, figure: Figure) -> Figure:
    """Draw the share of each index that a sweep learned, one panel an index.

    The share is Q/(Q + V) on the diagonal (of training Q itself), the mean over seeds. It is a map
    over α and one parameter of four or more numbers, else curves over α. Points without a number
    stay white.

    Args:
        table: From `jaxsmi.sweep`.
        figure: A figure to draw into, whose size is set.

    Returns:
        The figure.
    """
    norm = (table.overlap + table.covariance).where(np.isfinite(table.covariance), 1.0)
    share = (table.overlap / norm).mean("seed")
    parameters = [str(name) for name in share.dims[:-3]]
    axes = [name for name in parameters if share.sizes[name] > 1] or parameters[:1]
    count = share.sizes["index"]
    figure.set_size_inches(drawing.PAGE if count > 1 else drawing.COLUMN, 2.7)
    panels = np.ravel(figure.subplots(1, count, sharey=True, squeeze=False))
    is_map = len(axes) == 1 and axes[0] in table.coords and share.sizes[axes[0]] >= 4
    is_map = is_map and np.issubdtype(table[axes[0]].dtype, np.number)
    for p, ax in enumerate(panels):
        constant = [name for name in parameters if name not in axes]
        values = share.isel(index=p, index_=p).squeeze(constant, drop=True)
        if is_map:
            drawn = _draw_map(ax, table[axes[0]], values)
            if p == count - 1:
                figure.colorbar(drawn, ax=list(panels), label=_SHARE)
        else:
            _draw_curves(ax, values, axes)
        if p == 0:
            ax.set_ylabel(axes[0] if is_map else _SHARE)
            drawing.legend(ax)
        ax.set_xlabel(r"$\alpha$")
        ax.set_title(f"index {p + 1}" if count > 1 else "")
    return figure


def _draw_map(ax: Axes, parameter: xarray.DataArray, values: xarray.DataArray) -> Any:
    """Draw the share over α and a parameter, whose axis is logarithmic beyond a factor of eight."""
    look: dict[str, Any] = {"vmin": 0.0, "vmax": 1.0, "cmap": drawing.MAP, "rasterized": True}
    drawn = ax.pcolormesh(values.alpha, parameter, values, **look)
    lowest = float(parameter.min())
    logarithmic = lowest > 0 and float(parameter.max()) > 8 * lowest
    ax.set_yscale("log" if logarithmic else "linear")
    return drawn


def _draw_curves(ax: Axes, values: xarray.DataArray, axes: Sequence[str]) -> None:
    """Draw the share against α, one curve a combination of parameters, from dark to light."""
    rows = values.stack(row=list(axes)) if axes else values.expand_dims("row")
    rows = rows.transpose("row", "alpha")
    tints = drawing.shades(rows.sizes["row"])
    for k, tint in enumerate(tints):
        label = ", ".join(f"{name} {rows[name].values[k]}" for name in axes)
        look: dict[str, Any] = {"marker": markers(k)["marker"], "markersize": 3, "color": tint}
        ax.plot(values.alpha, rows[k], label=label if len(tints) <= _NAMED else None, **look)
