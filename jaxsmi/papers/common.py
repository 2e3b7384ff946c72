"""What the recipes share: a figure with its arrays, caption and comparisons; published data.

Axes, dots with error bars, runs.

A comparison is measured when the figure is made: deviations of our numbers from published, exact or
theoretical ones at the same abscissae, over the tolerance that their error bars allow.
"""

from __future__ import annotations

import csv
import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from tqdm import tqdm

from jaxsmi.inference.message_passing import gamp
from jaxsmi.models.matrix import AbstractMatrixModel
from jaxsmi.workbench.plotting import canvas, style
from jaxsmi.workbench.plotting.palette import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "DOTS",
    "Article",
    "Comparison",
    "Drawn",
    "Folder",
    "Recipe",
    "axes_row",
    "compare",
    "dots",
    "finite_size",
    "mean_and_error",
    "note",
    "overlay",
    "published",
    "with_bars",
]

Folder = pathlib.Path | None  # of published data, where there is one
DOTS: dict[str, Any] = {"marker": "o", "mfc": "none", "ls": "none"}  # runs, with their error bars


@dataclasses.dataclass
class Drawn:
    """A figure, the arrays behind it, what it shows, and what was compared with what."""

    figure: Figure
    arrays: dict[str, np.ndarray]
    caption: str
    compared: list[Comparison] = dataclasses.field(default_factory=list)


Recipe = Callable[..., Drawn]  # of full, progress and reference


@dataclasses.dataclass(frozen=True)
class Article:
    """An article whose figures are made again.

    `prefix` begins the names of its figures; `title` and `arxiv` number ("": none) stand in the
    gallery; `recipes` by the rest of the figure's name.
    """

    prefix: str
    title: str
    arxiv: str
    recipes: Mapping[str, Recipe]

    @property
    def figures(self) -> dict[str, Recipe]:
        """The recipes by the whole names of the figures."""
        return {f"{self.prefix}-{name}": recipe for name, recipe in self.recipes.items()}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Our numbers beside others.

    `what` is compared, `against` what, over how many `points`; `largest` and `median` deviation
    |ours - other|, `tolerance` (its median), and `ratio`, the largest deviation over its tolerance;
    `remark`: where the tolerance comes from, or the known reason of a difference.
    """

    what: str
    against: str
    points: int
    largest: float
    median: float
    tolerance: float
    ratio: float
    remark: str = ""

    @property
    def agrees(self) -> bool:
        """Whether every point is within its tolerance; never without a point."""
        return self.points > 0 and self.ratio <= 1.0


def compare(
    what: str,
    ours: ArrayLike,
    other: ArrayLike,
    tolerance: ArrayLike,
    remark: str = "",
    against: str = "published data",
) -> Comparison:
    """A `Comparison` of two arrays of one shape, points without a number left out.

    `tolerance`: a number, or one a point.
    """
    ours = np.asarray(ours, float)
    allowed = np.broadcast_to(np.asarray(tolerance, float), ours.shape)
    gap = np.abs(ours - np.asarray(other, float))
    known = np.isfinite(gap) & np.isfinite(allowed)
    gap = gap[known]
    allowed = allowed[known]
    if not gap.size:
        return Comparison(what, against, 0, np.nan, np.nan, np.nan, np.nan, remark)
    return Comparison(
        what,
        against,
        gap.size,
        largest=float(np.max(gap)),
        median=float(np.median(gap)),
        tolerance=float(np.median(allowed)),
        ratio=float(np.max(gap / allowed)),
        remark=remark,
    )


def published(reference: Folder, *parts: str) -> dict[str, np.ndarray] | None:
    """Columns of a published table by name, or None where there is no such file."""
    path = None if reference is None else pathlib.Path(reference).joinpath(*parts)
    if path is None or not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def note(reference: Folder) -> str:
    """What a caption says of published data."""
    return (
        " Published data were not at hand: nothing is overlaid."
        if reference is None
        else " Grey: published data."
    )


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of values (x, seeds) and their standard errors, runs without a number left out.

    NaN for fewer than two runs.
    """
    count = np.sum(np.isfinite(values), axis=1)
    with warnings.catch_warnings():  # at a point where no run, or a single one, has a number
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(values, axis=1), np.nanstd(values, axis=1, ddof=1) / np.sqrt(count)


def finite_size(what: str, values: np.ndarray, theory: ArrayLike, dimension: int) -> Comparison:
    """Runs (x, seeds) at finite dimension against theory: three standard errors of the mean and 5/d
    are allowed.
    """
    mean, error = mean_and_error(values)
    remark = f"tolerance: three standard errors and 5/d for finite size, d = {dimension}"
    return compare(
        what, mean, theory, 3.0 * np.nan_to_num(error) + 5.0 / dimension, remark, "theory"
    )


def dots(
    model: AbstractMatrixModel,
    alphas: np.ndarray,
    dimension: int,
    seeds: int,
    progress: bool,
    dtype: DTypeLike | None = None,
    max_steps: int = 80,
) -> np.ndarray:
    """Errors (α, seeds) of message passing; NaN where a run diverged."""
    errors = np.full((len(alphas), seeds), np.nan)
    title = f"message passing, d={dimension}"
    bar = tqdm(total=errors.size, desc=title, disable=not progress, leave=False)
    for i, alpha in enumerate(alphas):
        for seed in range(seeds):
            key = jax.random.fold_in(jax.random.key(seed), i)
            data = model.sample(key, dimension=dimension, alpha=float(alpha), dtype=dtype)
            run = gamp(model, data, key=key, max_steps=max_steps)
            if float(run.error) < 10 * float(model.prior.norm):
                errors[i, seed] = float(run.error)
            bar.update()
    return errors


def axes_row(
    columns: int = 1, rows: int = 1, ordinate: str = "", height: float = 2.55
) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, row by row, each `height` inches; `ordinate`: what they show, with
    what it is normalised by.
    """
    figure = canvas(columns, rows, height)
    with style():
        axes = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
        for ax in axes:
            ax.set_ylabel(ordinate)
    return figure, axes


def with_bars(ax: Axes, x: ArrayLike, values: np.ndarray, **look: Any) -> None:
    """Means of values (x, seeds) with their standard errors."""
    mean, error = mean_and_error(values)
    drawn: dict[str, Any] = DOTS | {"elinewidth": 0.9} | look
    ax.errorbar(x, mean, error, **drawn)


def overlay(
    ax: Axes,
    x: ArrayLike,
    y: ArrayLike,
    error: ArrayLike | None = None,
    line: bool = False,
    label: str = "",
) -> None:
    """Published values in grey, behind ours: a line, or dots with their error bars.

    `label` "": that they are published.
    """
    look: dict[str, Any] = {"ls": "none", "marker": "d", "ms": 3.0}
    if line:
        look: dict[str, Any] = {"ls": "-", "marker": "", "lw": 2.8}
    look |= {"color": GREY, "capsize": 0, "elinewidth": 0.7, "zorder": 0.5}
    ax.errorbar(x, y, error, label=label or ("published" if line else "published runs"), **look)
