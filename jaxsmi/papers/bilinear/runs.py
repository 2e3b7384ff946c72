"""Figures of runs beside theory: message passing and the minimum of the nuclear norm.

Source: [theory: bilinear, section 7].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from tqdm import tqdm

from jaxsmi.descent.baselines import minimum_nuclear_norm, nuclear_norm_threshold
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.papers.bilinear.theory import ERROR, errors
from jaxsmi.papers.common import (
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    dots,
    finite_size,
    mean_and_error,
    note,
    overlay,
    published,
    with_bars,
)
from jaxsmi.workbench.plotting import colour, legend_of_all, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Published",
    "beside",
    "message_passing",
    "minimum_norm",
    "nuclear_norm",
    "published_norms",
]


class Published(NamedTuple):
    """Published means at α, and their errors: standard errors, or standard deviations as the table
    has them.
    """

    alpha: np.ndarray
    mean: np.ndarray
    error: np.ndarray


def beside(
    what: str,
    at: np.ndarray,
    values: np.ndarray,
    known: Published,
    extra: ArrayLike,
    remark: str = "",
) -> Comparison:
    """Our runs (α, seeds) beside published means, interpolated.

    Three joint standard errors and `extra` are allowed.
    """
    inside = (at >= known.alpha.min()) & (at <= known.alpha.max())
    mean, error = mean_and_error(values)
    joint = np.hypot(np.nan_to_num(error), np.interp(at, known.alpha, known.error))
    other = np.interp(at, known.alpha, known.mean)
    if not remark:
        remark = "interpolated between published points; tolerance: three joint standard errors"
    ours = np.where(inside, mean, np.nan)
    return compare(what, ours, other, 3.0 * joint + np.asarray(extra), remark)


def message_passing(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 3: message passing on the curves of theory."""
    figure, axes = axes_row(2, ordinate=ERROR)
    dimension = 100 if full else 30
    seeds = 4
    arrays: dict[str, np.ndarray] = {}
    compared: list[Comparison] = []
    for ax, noise, top in zip(axes, (0.0, 0.1), (1.1, 0.5), strict=True):
        alphas = np.linspace(0.01, top, 100)
        at = top * (np.linspace(0.1, 0.9, 9) if full else np.array([0.25, 0.6]))
        arrays |= {f"alpha_{noise:g}": alphas, f"gamp_alpha_{noise:g}": at}
        for k, (rho, beta) in enumerate([(1.0, 1.0), (1.0, 2.0), (0.2, 1.0), (0.2, 2.0)]):
            model = Bilinear(beta, rho, noise)
            theory = errors(alphas, beta, rho, noise)
            runs = dots(model, at, dimension, seeds, progress, "float32", 150)
            name = f"{rho:g}_{beta:g}_{noise:g}"
            arrays |= {f"theory_{name}": theory, f"gamp_{name}": runs}
            label = rf"$\rho = {rho:g}$, $\beta = {beta:g}$"
            ax.plot(alphas, theory, label=label, color=colour(k), **line(k))
            with_bars(ax, at, runs, color=colour(k), marker="x")
            known = errors(at, beta, rho, noise)
            problem = f"ρ = {rho:g}, β = {beta:g}, Δ = {noise:g}"
            compared.append(finite_size(f"message passing, {problem}", runs, known, dimension))
            file = f"AMP_rho_{rho:.1f}_beta_{beta:.1f}_delta_{noise:.1f}_D_100.csv"
            table = published(reference, "bsr", "amp", file)
            if table is not None:
                shown = (table["mmse"] < 2.0) & (table["alpha"] <= top)  # the others diverged
                ours = errors(table["alpha"][shown], beta, rho, noise)
                compared.append(_single_runs(ax, f"theory, {problem}", ours, table, shown))
        ax.set_title(rf"$\Delta = {noise:g}$")
        ax.set_xlabel(r"sample complexity $\alpha = n/(dL)$")
    crosses = {"marker": "x", "ls": "none"}
    legend_of_all(figure, 3, {f"message passing, $d = {dimension}$": crosses})
    caption = f"Message passing (crosses: d = {dimension}, {seeds} seeds) and theory."
    return Drawn(figure, arrays, caption + note(reference), compared)


def _single_runs(
    ax: Axes, what: str, theory: np.ndarray, table: dict[str, np.ndarray], shown: np.ndarray
) -> Comparison:
    """Theory beside single published runs of message passing, which are drawn, by their own
    scatter.
    """
    error = table["mmse"][shown]
    overlay(ax, table["alpha"][shown], error)
    # the second difference of independent noise of variance s² on a smooth curve has variance 6 s²
    scatter = float(np.sqrt(np.mean(np.diff(error, 2) ** 2) / 6.0))
    diverged = int(np.sum(table["mmse"] >= 2.0))
    remark = (
        "single published runs, d = 100; tolerance: four times their own scatter, "
        f"{scatter:.3f} a run"
    )
    remark += f"; {diverged} that diverged left out" if diverged else ""
    return compare(what, theory, error, 4.0 * scatter, remark)


def minimum_norm(
    model: Bilinear, alphas: np.ndarray, dimension: int, seeds: int, progress: bool
) -> np.ndarray:
    """Errors (α, seeds) of the minimum of the nuclear norm."""
    values = np.zeros((len(alphas), seeds))
    title = f"nuclear norm, d={dimension}"
    for i, alpha in enumerate(tqdm(alphas, desc=title, disable=not progress, leave=False)):
        for seed in range(seeds):
            key = jax.random.fold_in(jax.random.key(seed), i)
            data = model.sample(key, dimension=dimension, alpha=float(alpha))
            values[i, seed] = float(minimum_nuclear_norm(model, data).error)
    return values


def published_norms(reference: Folder, name: str) -> Published | None:
    """Published errors of the minimum of the nuclear norm, or None where they are not at hand."""
    folder = None if reference is None else reference / "bsr" / "min_norm"
    if folder is None or not (folder / f"MSE_{name}.npy").is_file():
        return None
    alpha = np.load(folder / f"alpha_{name}.npy")
    return Published(alpha, *mean_and_error(np.load(folder / f"MSE_{name}.npy")))


def nuclear_norm(
    full: bool = False, progress: bool = False, reference: Folder = None, beta: float = 1.0
) -> Drawn:
    """Figure 5 (and β = 2): the minimum of the nuclear norm."""
    compared: list[Comparison] = []
    figure, axes = axes_row(2, ordinate=ERROR)
    dimension = 20
    size = 60 if full else 30  # of message passing
    seeds = 16 if full else 4
    alphas = np.linspace(0.01, 1.0, 100)
    at = np.linspace(0.1, 0.95, 12) if full else np.array([0.2, 0.4, 0.6])
    arrays = {"alpha": alphas, "at": at}
    for ax, rho in zip(axes, (0.2, 0.5), strict=True):
        model = Bilinear(beta, rho)
        theory = errors(alphas, beta, rho)
        norm = minimum_norm(model, at, int(dimension / max(beta, 1.0)), seeds, progress)
        runs = dots(model, at, size, seeds, progress, "float32", 150)
        arrays |= {f"theory_{rho:g}": theory, f"nuclear_{rho:g}": norm, f"gamp_{rho:g}": runs}
        ax.plot(alphas, theory, color=colour(0), label="Bayes-optimal")
        with_bars(ax, at, runs, color=colour(0), marker="x", label="message passing")
        with_bars(ax, at, norm, color=colour(1), label="nuclear norm")
        known = errors(at, beta, rho)
        compared.append(finite_size(f"message passing, ρ = {rho:g}", runs, known, size))
        table = published_norms(reference, f"D20R{rho:.1f}B{beta:.1f}")
        if table is not None:
            overlay(ax, *table)
            compared.append(beside(f"nuclear norm, ρ = {rho:g}", at, norm, table, 0.02))
        exact = float(nuclear_norm_threshold(beta, rho))
        ax.axvline(exact, color=colour(1), ls=":", lw=0.9, label="nuclear norm is exact")
        ax.set_title(rf"$\rho = {rho:g}$, $\beta = {beta:g}$")
        ax.set_xlabel(r"sample complexity $\alpha = n/(dL)$")
    legend_of_all(figure, 5)
    caption = (
        f"Minimum of the nuclear norm: longer side {dimension}, {seeds} seeds; dotted: where it is "
        "exact."
    )
    return Drawn(figure, arrays, caption + note(reference), compared)
