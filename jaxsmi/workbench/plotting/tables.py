"""Thresholds against a parameter, and what a sweep computed. No equation lives here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.checks import check
from jaxsmi.core.results import Threshold
from jaxsmi.workbench.plotting.labels import label_ends, legend
from jaxsmi.workbench.plotting.palette import MAP, colour, markers, shades
from jaxsmi.workbench.plotting.style import COLUMN, PAGE, axes_or_new, frame, styled

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["sweep", "thresholds_against"]

_SHARE = "overlap / second moment"
_NAMED = 10  # curves with a name


@styled
def thresholds_against(
    stairs: Sequence[Sequence[Threshold]],
    values: ArrayLike | Sequence[float] | None = None,
    ax: Axes | None = None,
    *,
    parameter: str = "parameter",
) -> Axes:
    """Thresholds in the order of learning against a parameter of the model, with 95 % confidence
    intervals.

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
    ax = axes_or_new(ax)
    x = np.arange(len(stairs)) if values is None else np.asarray(values, float)
    for step in range(max(len(steps) for steps in stairs)):
        known = [(v, steps[step]) for v, steps in zip(x, stairs, strict=True) if len(steps) > step]
        at = [value for value, _ in known]
        alpha = np.array([float(threshold.alpha) for _, threshold in known])
        low = np.array([threshold.interval()[0] for _, threshold in known])
        half = np.nan_to_num(alpha - low)
        style: dict[str, Any] = markers(step) | {"linestyle": "-" if len(known) > 1 else "none"}
        ax.plot(at, alpha, label=f"threshold {step + 1}", **style)
        ax.errorbar(
            at,
            alpha,
            half,
            fmt="none",
            ecolor=colour(step),
        )
    ax.set_xlabel(parameter)
    ax.set_ylabel(r"critical sample complexity $\alpha_c$")
    ax.set_ylim(bottom=0)
    frame(ax)
    label_ends(ax, {"95 % interval": {"marker": "|", "ls": "none", "ms": 7}}, columns=3)
    return ax


@styled
def sweep(table: xarray.Dataset, figure: Figure) -> Figure:
    """The share of each index that a sweep learned, one panel an index.

    The share is Q/(Q + V) on the diagonal (of training Q itself), the mean over seeds. It is drawn
    as a map over α and one parameter of four or more numbers, else as curves over α. Points without
    a number stay white.

    Args:
        table: From `jaxsmi.sweep`.
        figure: A figure to draw into, whose size is set.

    Returns:
        The figure.
    """
    whole = (table.overlap + table.covariance).where(np.isfinite(table.covariance), 1.0)
    share = (table.overlap / whole).mean("seed")
    parameters = [str(name) for name in share.dims[:-3]]
    axes = [name for name in parameters if share.sizes[name] > 1] or parameters[:1]
    count = share.sizes["index"]
    figure.set_size_inches(PAGE if count > 1 else COLUMN, 2.7)
    panels = np.ravel(figure.subplots(1, count, sharey=True, squeeze=False))
    mapped = _is_map(table, axes, share)
    drawn = None
    for p, ax in enumerate(panels):
        constant = [name for name in parameters if name not in axes]
        values = share.isel(index=p, index_=p).squeeze(constant, drop=True)
        if mapped:
            drawn = _draw_map(ax, table[axes[0]], values)
            ax.set_ylabel(axes[0] if p == 0 else "")
        else:
            _draw_curves(ax, values, axes)
            ax.set_ylabel(_SHARE if p == 0 else "")
            if p == 0 and axes:
                legend(ax)
        ax.set_xlabel(r"$\alpha$")
        ax.set_title(f"index {p + 1}" if count > 1 else "")
    if drawn is not None:
        figure.colorbar(drawn, ax=list(panels), label=_SHARE)
    return figure


def _is_map(table: xarray.Dataset, axes: Sequence[str], share: xarray.DataArray) -> bool:
    """Whether there is one parameter, of four or more numbers."""
    if len(axes) != 1 or axes[0] not in table.coords:
        return False
    return np.issubdtype(table[axes[0]].dtype, np.number) and share.sizes[axes[0]] >= 4


def _draw_map(ax: Axes, parameter: xarray.DataArray, values: xarray.DataArray) -> Any:
    """The share over α and a parameter, whose axis is logarithmic where it spans more than a factor
    of eight.
    """
    style: dict[str, Any] = {"vmin": 0.0, "vmax": 1.0, "cmap": MAP, "rasterized": True}
    drawn = ax.pcolormesh(values.alpha, parameter, values, **style)
    lowest = float(parameter.min())
    logarithmic = lowest > 0 and float(parameter.max() / parameter.min()) > 8
    ax.set_yscale("log" if logarithmic else "linear")
    return drawn


def _draw_curves(ax: Axes, values: xarray.DataArray, axes: Sequence[str]) -> None:
    """The share against α, a curve for each combination of parameters, in their order from dark to
    light.
    """
    if axes:
        rows = values.stack(row=list(axes)).transpose("row", "alpha")
    else:
        rows = values.expand_dims("row")
    tints = shades(rows.sizes["row"])
    for k, tint in enumerate(tints):
        label = ", ".join(f"{name} {rows[name].values[k]}" for name in axes)
        style: dict[str, Any] = {"marker": markers(k)["marker"], "markersize": 3, "color": tint}
        ax.plot(values.alpha, rows[k], label=label if len(tints) <= _NAMED else None, **style)
    frame(ax)
