"""What the recipes share: a figure with its arrays and caption, axes, dots with error bars, runs of message passing."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from tqdm.auto import tqdm

from jaxsmi.message_passing import gamp
from jaxsmi.plotting import require


@dataclasses.dataclass
class Drawn:
    """A figure, the arrays behind it, and what it shows."""

    figure: Any
    arrays: dict[str, np.ndarray]
    caption: str


def dots(
    model: Any, alphas: np.ndarray, dimension: int, seeds: int, progress: bool, dtype: Any = None, max_steps: int = 80
) -> np.ndarray:
    """Errors (α, seeds) of message passing; NaN where a run diverged."""
    found = np.full((len(alphas), seeds), np.nan)
    bar = tqdm(total=found.size, desc=f"message passing, d={dimension}", disable=not progress, leave=False)
    for i, alpha in enumerate(alphas):
        for seed in range(seeds):
            key = jax.random.fold_in(jax.random.key(seed), i)
            data = model.sample(key, dimension=dimension, alpha=float(alpha), dtype=dtype)
            run = gamp(model, data, key=key, max_steps=max_steps)
            found[i, seed] = float(run.error) if float(run.error) < 10 * float(model.prior.norm) else np.nan
            bar.update()
    return found


def axes_row(columns: int = 1, rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure and its panels, row by row; their height is an estimation error."""
    require()
    from matplotlib.figure import Figure  # not pyplot: no window, whatever the machine

    figure = Figure(figsize=(4.8 * columns, 3.8 * rows), layout="constrained")
    axes = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, lw=0.6)
        ax.set_ylabel("estimation error")
    return figure, axes


def with_bars(ax: Any, x: Any, values: np.ndarray, **style: Any) -> None:
    """Means of values (x, seeds) with their standard errors."""
    spread = np.nanstd(values, axis=1, ddof=1) / np.sqrt(np.sum(np.isfinite(values), axis=1))
    ax.errorbar(
        x, np.nanmean(values, axis=1), spread, ls="none", ms=4, capsize=2, **({"marker": "o", "mfc": "none"} | style)
    )
