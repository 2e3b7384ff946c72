"""Figures of "Bayes-optimal learning of an extensive-width neural network from quadratically many
samples" (arXiv 2408.03733), listed in [theory: bilinear, section 7].

Sizes as in `jaxsmi.papers.bilinear`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from jaxsmi.descent.training import train
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.papers.bilinear.descent import Runs, descents, quarter
from jaxsmi.papers.bilinear.theory import errors
from jaxsmi.papers.common import (
    DOTS,
    Article,
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    dots,
    finite_size,
    note,
    overlay,
    published,
    with_bars,
)
from jaxsmi.workbench.plotting import colour, legend, legend_above, line, markers, shades
from jaxsmi.workbench.plotting.palette import INK, MAP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ARTICLE"]


ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/d^2$"


def _theory(reference: Folder, ax: Axes, kappa: float, noise: float, file: str) -> list[Comparison]:
    """Our errors at the rows of a published line."""
    table = published(reference, "quadratic", file)
    if table is None:
        return []
    alpha = table["alpha"]
    error = table["gen_error"]
    overlay(ax, alpha, error, line=True)
    ours = errors(alpha, 1.0, kappa, noise, symmetric=True)
    rough = [float(np.max(np.abs(np.diff(values, 2)))) for values in (ours, error)]
    remark = (
        "tolerance: quadrature errors of the table; largest second differences "
        f"{rough[0]:.1e} of ours, {rough[1]:.1e} of it"
    )
    return [compare(f"theory, κ = {kappa:g}, Δ = {noise:g}", ours, error, 1e-4, remark)]


def quadratic_error(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Errors, and their map over α and width."""
    del progress  # no runs
    compared: list[Comparison] = []
    figure, (left, right) = axes_row(2, ordinate=ERROR)
    alphas = np.linspace(0.002, 0.6, 200 if full else 100)
    widths = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 5.0])
    theory = errors(alphas, 1.0, widths[:, None], symmetric=True)
    size = 32 if full else 24
    rows = np.linspace(0.001, 2.0, size)
    columns = np.linspace(0.001, 0.6, size)
    heat = errors(columns, 1.0, rows[:, None], symmetric=True)
    for tint, width, error in zip(shades(len(widths)), widths, theory, strict=True):
        compared += _theory(reference, left, width, 0.0, f"line_no_noise_{float(width)}.csv")
        left.plot(alphas, error, color=tint, label=rf"$\kappa = {width:g}$")
    left.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    legend_above(left, 4)
    shown = right.pcolormesh(columns, rows, heat, shading="nearest", cmap=MAP, rasterized=True)
    figure.colorbar(shown, ax=right, label=ERROR)
    edge = np.where(rows < 1.0, rows - 0.5 * rows**2, 0.5)
    right.plot(edge, rows, color=colour(4), ls="--", label="perfect recovery")
    legend_above(right, 1)
    right.grid(False)
    right.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    right.set_ylabel(r"width $\kappa = r/d$")
    arrays = {
        "alpha": alphas,
        "widths": widths,
        "theory": theory,
        "map_alpha": columns,
        "map_kappa": rows,
        "map": heat,
    }
    caption = "Quadratic network: perfect recovery at α = κ - κ²/2, 1/2 from κ = 1 (dashed)."
    return Drawn(figure, arrays, caption + note(reference), compared)


def quadratic_message_passing(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Message passing on the curves of theory."""
    compared: list[Comparison] = []
    figure, (ax,) = axes_row(ordinate=ERROR)
    dimension, seeds = (100, 8) if full else (50, 3)
    alphas = np.linspace(0.01, 0.5, 100)
    at = np.linspace(0.05, 0.45, 9) if full else np.array([0.1, 0.2, 0.3])
    arrays = {"alpha": alphas, "at": at}
    for k, (kappa, noise) in enumerate([(0.5, 0.0), (0.5, 0.25), (1.0, 0.0)]):
        name = f"{kappa:g}_{noise:g}"
        model = Bilinear(1.0, kappa, noise, symmetric=True)
        theory = errors(alphas, 1.0, kappa, noise, symmetric=True)
        runs = dots(model, at, dimension, seeds, progress, "float32", 150)
        arrays |= {f"theory_{name}": theory, f"gamp_{name}": runs}
        label = rf"$\kappa = {kappa:g}$, $\Delta = {noise:g}$"
        ax.plot(alphas, theory, label=label, color=colour(k), **line(k))
        with_bars(ax, at, runs, color=colour(k))
        setting = f"κ = {kappa:g}, Δ = {noise:g}"
        known = errors(at, 1.0, kappa, noise, symmetric=True)
        compared.append(finite_size(f"message passing, {setting}", runs, known, dimension))
        if kappa == 0.5 and noise > 0.0:
            file = f"line_noise_{kappa:.1f}_{noise:g}.csv"
            compared += _theory(reference, ax, kappa, noise, file)
        compared += _beside_runs(reference, ax, kappa, noise)
    ax.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    legend(ax, {f"message passing, $d = {dimension}$": DOTS})
    caption = (
        f"Quadratic network, message passing with Gaussian inputs: d = {dimension}, {seeds} seeds."
    )
    return Drawn(figure, arrays, caption + note(reference), compared)


def _beside_runs(reference: Folder, ax: Axes, kappa: float, noise: float) -> list[Comparison]:
    """Our errors at the abscissae of published message passing, which is drawn."""
    table = published(reference, "quadratic", f"AMP_100_{kappa:.1f}_{noise if noise else 0.0}.csv")
    if table is None:
        return []
    overlay(ax, table["alpha"], table["AMP_mean"], table["AMP_std"])
    ours = errors(table["alpha"], 1.0, kappa, noise, symmetric=True)
    remark = (
        "published message passing at d = 100, inputs x xᵀ - I; tolerance: three of its standard "
        "deviations and 1/d"
    )
    allowed = 3.0 * table["AMP_std"] + 0.01
    what = f"theory, κ = {kappa:g}, Δ = {noise:g}"
    return [compare(what, ours, table["AMP_mean"], allowed, remark)]


def quadratic_descent(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Gradient descent, and the average of its runs."""
    del reference  # no table is at hand
    figure, (ax,) = axes_row(ordinate=ERROR)
    runs = Runs(100, 4, 64, 3000, 0.1) if full else Runs(24, 2, 8, 1500, 0.1)
    alphas = np.linspace(0.01, 0.5, 100)
    at = np.linspace(0.05, 0.45, 9) if full else np.array([0.1, 0.2, 0.3])
    model = Bilinear(1.0, 0.5, symmetric=True)
    arrays = {"alpha": alphas, "at": at, "theory": errors(alphas, 1.0, 0.5, symmetric=True)}
    arrays |= descents(model, at, runs, progress)
    ax.plot(alphas, arrays["theory"], color=colour(0), label="Bayes-optimal")
    with_bars(ax, at, arrays["single"], color=colour(1), label="descent")
    average = f"average of {runs.starts} runs"
    with_bars(ax, at, arrays["averaged"], color=colour(2), marker="^", label=average)
    ax.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    legend(ax)
    known = errors(at, 1.0, 0.5, symmetric=True)
    remark = (
        f"expected of posterior samples: (1 + 1/{runs.starts}) of it; tolerance: a quarter of it, "
        "and "
        "5/d for finite size"
    )
    mean = np.nanmean(arrays["averaged"], axis=1)
    expected = (1.0 + 1.0 / runs.starts) * known
    allowed = 0.25 * known + 5.0 / runs.dimension
    compared = [compare("averaged descent", mean, expected, allowed, remark, "theory")]
    caption = (
        f"Quadratic network, κ = 1/2, rate 0.1: d = {runs.dimension}, {runs.teachers} teachers, "
        f"{runs.steps} steps."
    )
    return Drawn(figure, arrays, caption, compared)


def quadratic_decay(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Gradient descent with weight decay."""
    del reference  # no table is at hand
    figure, (ax,) = axes_row(ordinate=ERROR)
    dimension, starts, steps = (100, 8, 3000) if full else (24, 4, 1500)
    decays = np.array([0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5])
    arrays = {"decays": decays}
    for k, (alpha, noise) in enumerate([(0.2, 0.0), (0.3, 0.25)]):
        model = Bilinear(1.0, 0.5, noise, symmetric=True)
        data = model.sample(jax.random.key(0), dimension=dimension, alpha=alpha, dtype="float32")
        keys = jax.random.split(jax.random.key(1), starts)
        ends = []
        for decay in tqdm(decays, desc="weight decay", disable=not progress, leave=False):
            optimizer = optax.chain(optax.add_decayed_weights(decay), optax.adam(0.01))
            fit = train(
                model, data, optimizer, key=keys, steps=steps, reduction="sum", loss=quarter
            )
            ends.append(np.asarray(fit.error))
        name = f"{alpha:g}_{noise:g}"
        arrays[name] = np.array(ends)
        label = rf"$\alpha = {alpha:g}$, $\Delta = {noise:g}$"
        look: dict[str, Any] = {"color": colour(k), "marker": "os"[k], "label": label}
        with_bars(ax, np.arange(len(decays)), arrays[name], **look)
        best = float(errors(alpha, 1.0, 0.5, noise, symmetric=True))
        ax.axhline(best, color=colour(k), linestyle=line(k)["linestyle"], lw=1.0)
    ax.set_xticks(np.arange(len(decays)), [f"{decay:g}" for decay in decays])
    ax.set_xlabel("weight decay")
    legend(ax, {"Bayes-optimal": {"lw": 1.0}})
    caption = (
        f"Adam with weight decay, κ = 1/2, d = {dimension}, {starts} starts; lines: Bayes-optimal."
    )
    return Drawn(figure, arrays, caption)


def spread(
    model: Bilinear, alphas: np.ndarray, dimension: int, starts: int, steps: int, progress: bool
) -> np.ndarray:
    """‖Ŝ_k - S̄‖²/d², mean over runs of descent from `starts` starts on one data set, for each
    α."""
    spreads = []
    optimizer = optax.adam(0.02)
    title = f"starts, d={dimension}"
    for i, alpha in enumerate(tqdm(alphas, desc=title, disable=not progress, leave=False)):
        key = jax.random.key(i)
        data = model.sample(key, dimension=dimension, alpha=float(alpha), dtype="float32")
        keys = jax.random.split(jax.random.key(100 + i), starts)
        fit = train(model, data, optimizer, key=keys, steps=steps, reduction="sum", loss=quarter)
        matrices = jnp.asarray(fit.weights)
        squares = jnp.sum((matrices - matrices.mean(axis=0)) ** 2, axis=(1, 2))
        spreads.append(float(jnp.mean(squares) / dimension**2))
    return np.array(spreads)


def trivialisation(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """From how many samples on descent from any start ends at one and the same matrix, against
    noise.
    """
    del reference  # no table is at hand
    figure, (left, right) = axes_row(2)
    dimension, starts, steps = (60, 8, 10000) if full else (20, 4, 2500)
    noises = (0.0, 0.1, 0.25, 0.5, 1.0) if full else (0.0, 0.25, 1.0)
    alphas = np.linspace(0.1, 0.7, 13) if full else np.linspace(0.1, 0.7, 7)
    level = 1e-3
    threshold = []
    arrays = {"alpha": alphas, "noises": np.array(noises)}
    for k, (tint, noise) in enumerate(zip(shades(len(noises)), noises, strict=True)):
        model = Bilinear(1.0, 0.5, noise, symmetric=True)
        spreads = spread(model, alphas, dimension, starts, steps, progress)
        arrays[f"spread_{noise:g}"] = spreads
        above = np.flatnonzero(spreads > level)
        last = above[-1] if above.size else -1
        inside = 0 <= last < len(alphas) - 1
        threshold.append(0.5 * (alphas[last] + alphas[last + 1]) if inside else np.nan)
        label = rf"$\Delta = {noise:g}$"
        look: dict[str, Any] = markers(k) | {"color": tint, "linestyle": "-", "label": label}
        left.semilogy(alphas, np.maximum(spreads, 1e-12), **look)
    arrays["threshold"] = np.array(threshold)
    left.axhline(level, color=INK, lw=0.9, ls=":", label="one matrix below")
    left.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    left.set_ylabel(r"spread of starts $\Vert\hat S_k-\bar S\Vert_F^2/d^2$")
    legend(left)
    cell = 0.5 * (alphas[1] - alphas[0])
    right.errorbar(
        noises, threshold, cell, color=colour(0), label="half a step of the grid", **DOTS
    )
    recovered = float(Bilinear(1.0, 0.5, symmetric=True).recovery)
    right.axhline(recovered, color=INK, lw=0.9, ls="--", label="recovery without noise")
    legend(right)
    right.set_xlabel(r"noise $\Delta$")
    right.set_ylabel(r"$\alpha$ from which all starts agree")
    caption = (
        f"Quadratic network, κ = 1/2: Adam from {starts} starts on one data set, d = {dimension}, "
        f"{steps} steps; they are "
        f"one where their spread is below {level:g} (dotted). Bars: half a step of the grid. "
        "Dashed: recovery without noise."
    )
    return Drawn(figure, arrays, caption)


ARTICLE = Article(
    "quadratic",
    "Bayes-optimal learning of an extensive-width neural network from quadratically many samples",
    "2408.03733",
    {
        "1": quadratic_error,
        "2": quadratic_message_passing,
        "3": quadratic_descent,
        "4": quadratic_decay,
        "5": trivialisation,
    },
)
