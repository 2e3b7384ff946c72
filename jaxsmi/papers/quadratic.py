"""The figures of "Bayes-optimal learning of an extensive-width neural network from quadratically many samples" (arXiv
2408.03733), listed in [theory: bilinear, section 7]. Sizes as in `jaxsmi.figures.bilinear`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from jaxsmi.descent.training import train
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.papers.bilinear import descents, errors, quarter
from jaxsmi.papers.common import (
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


def _theory(reference: Folder, ax: Any, kappa: float, noise: float, file: str) -> list[Comparison]:
    """Our errors at the rows of a published line."""
    table = published(reference, "quadratic", file)
    if table is None:
        return []
    alpha, error = table["alpha"], table["gen_error"]
    overlay(ax, alpha, error, line=True, label=None)
    ours = errors(alpha, 1.0, kappa, noise, symmetric=True)
    rough = [float(np.max(np.abs(np.diff(values, 2)))) for values in (ours, error)]
    remark = f"tolerance: quadrature errors of the table; largest second differences {rough[0]:.1e} of ours, {rough[1]:.1e} of it"
    return [compare(f"theory, κ = {kappa:g}, Δ = {noise:g}", ours, error, 1e-4, remark)]


def quadratic_error(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Errors, and their map over α and width."""
    del progress  # no runs
    compared = []
    figure, (left, right) = axes_row(2)
    alphas, widths = (
        np.linspace(0.002, 0.6, 200 if full else 100),
        np.array([0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 5.0]),
    )
    theory = errors(alphas, 1.0, widths[:, None], symmetric=True)
    size = 32 if full else 24
    rows, columns = np.linspace(0.001, 2.0, size), np.linspace(0.001, 0.6, size)
    heat = errors(columns, 1.0, rows[:, None], symmetric=True)
    for k, width in enumerate(widths):
        compared += _theory(reference, left, width, 0.0, f"line_no_noise_{float(width)}.csv")
        left.plot(alphas, theory[k], color=f"C{k}", label=rf"$\kappa = {width:g}$")
    left.set_xlabel(r"$\alpha = n/d^2$")
    left.legend(fontsize=8, frameon=False)
    shown = right.pcolormesh(columns, rows, heat, shading="nearest", cmap="viridis")
    figure.colorbar(shown, ax=right, label="estimation error")
    right.plot(np.where(rows < 1.0, rows - 0.5 * rows**2, 0.5), rows, "w--", lw=1.0)
    right.set_xlabel(r"$\alpha = n/d^2$")
    right.set_ylabel(r"$\kappa = r/d$")
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
    compared = []
    figure, (ax,) = axes_row()
    dimension, seeds = (100, 8) if full else (50, 3)
    alphas, at = (
        np.linspace(0.01, 0.5, 100),
        np.linspace(0.05, 0.45, 9) if full else np.array([0.1, 0.2, 0.3]),
    )
    arrays: dict[str, Any] = {"alpha": alphas, "at": at}
    for k, (kappa, noise) in enumerate([(0.5, 0.0), (0.5, 0.25), (1.0, 0.0)]):
        name, model = f"{kappa:g}_{noise:g}", Bilinear(1.0, kappa, noise, symmetric=True)
        arrays[f"theory_{name}"] = errors(alphas, 1.0, kappa, noise, symmetric=True)
        arrays[f"gamp_{name}"] = dots(model, at, dimension, seeds, progress, "float32", 150)
        ax.plot(
            alphas,
            arrays[f"theory_{name}"],
            color=f"C{k}",
            label=rf"$\kappa = {kappa:g}$, $\Delta = {noise:g}$",
        )
        with_bars(ax, at, arrays[f"gamp_{name}"], color=f"C{k}")
        setting = f"κ = {kappa:g}, Δ = {noise:g}"
        known = errors(at, 1.0, kappa, noise, symmetric=True)
        compared.append(
            finite_size(f"message passing, {setting}", arrays[f"gamp_{name}"], known, dimension)
        )
        if kappa == 0.5 and noise > 0.0:
            compared += _theory(
                reference, ax, kappa, noise, f"line_noise_{kappa:.1f}_{noise:g}.csv"
            )
        table = published(
            reference, "quadratic", f"AMP_100_{kappa:.1f}_{noise if noise else 0.0}.csv"
        )
        if table is not None:
            overlay(ax, table["alpha"], table["AMP_mean"], table["AMP_std"], label=None)
            ours = errors(table["alpha"], 1.0, kappa, noise, symmetric=True)
            remark = "published message passing at d = 100, inputs x xᵀ - I; tolerance: three of its standard deviations and 1/d"
            allowed = 3.0 * table["AMP_std"] + 0.01
            compared.append(compare(f"theory, {setting}", ours, table["AMP_mean"], allowed, remark))
    ax.set_xlabel(r"$\alpha = n/d^2$")
    ax.legend(fontsize=8, frameon=False)
    caption = (
        f"Quadratic network, message passing with Gaussian inputs: d = {dimension}, {seeds} seeds."
    )
    return Drawn(figure, arrays, caption + note(reference), compared)


def quadratic_descent(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Gradient descent, and the average of its runs."""
    del reference  # no table is at hand
    figure, (ax,) = axes_row()
    dimension, teachers, starts, steps = (100, 4, 64, 3000) if full else (24, 2, 8, 1500)
    alphas, at = (
        np.linspace(0.01, 0.5, 100),
        np.linspace(0.05, 0.45, 9) if full else np.array([0.1, 0.2, 0.3]),
    )
    model = Bilinear(1.0, 0.5, symmetric=True)
    arrays = {"alpha": alphas, "at": at, "theory": errors(alphas, 1.0, 0.5, symmetric=True)}
    arrays |= descents(model, at, dimension, teachers, starts, steps, 0.1, 1.0, progress)
    ax.plot(alphas, arrays["theory"], color="C0", label="Bayes-optimal")
    with_bars(ax, at, arrays["single"], color="C1", label="descent")
    with_bars(ax, at, arrays["averaged"], color="C2", marker="^", label=f"average of {starts}")
    ax.set_xlabel(r"$\alpha = n/d^2$")
    ax.legend(fontsize=8, frameon=False)
    known = errors(at, 1.0, 0.5, symmetric=True)
    remark = f"expected of posterior samples: (1 + 1/{starts}) of it; tolerance: a quarter of it, and 5/d for finite size"
    mean, expected = np.nanmean(arrays["averaged"], axis=1), (1.0 + 1.0 / starts) * known
    compared = [
        compare(
            "averaged descent", mean, expected, 0.25 * known + 5.0 / dimension, remark, "theory"
        )
    ]
    caption = f"Quadratic network, κ = 1/2, rate 0.1: d = {dimension}, {teachers} teachers, {steps} steps."
    return Drawn(figure, arrays, caption, compared)


def quadratic_decay(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Gradient descent with weight decay."""
    del reference  # no table is at hand
    figure, (ax,) = axes_row()
    dimension, starts, steps = (100, 8, 3000) if full else (24, 4, 1500)
    decays = np.array([0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5])
    arrays: dict[str, Any] = {"decays": decays}
    for k, (alpha, noise) in enumerate([(0.2, 0.0), (0.3, 0.25)]):
        model = Bilinear(1.0, 0.5, noise, symmetric=True)
        data = model.sample(jax.random.key(0), dimension=dimension, alpha=alpha, dtype="float32")
        keys = jax.random.split(jax.random.key(1), starts)

        def one(decay: Any, model: Any = model, data: Any = data, keys: Any = keys) -> Any:
            optimizer = optax.chain(optax.add_decayed_weights(decay), optax.adam(0.01))
            return train(
                model, data, optimizer, key=keys, steps=steps, reduction="sum", loss=quarter
            ).error

        name = f"{alpha:g}_{noise:g}"
        arrays[name] = np.array(
            [
                one(decay)
                for decay in tqdm(decays, desc="weight decay", disable=not progress, leave=False)
            ]
        )
        label = rf"$\alpha = {alpha:g}$, $\Delta = {noise:g}$"
        with_bars(ax, np.arange(len(decays)), arrays[name], color=f"C{k}", label=label)
        ax.axhline(float(errors(alpha, 1.0, 0.5, noise, symmetric=True)), color=f"C{k}", lw=0.8)
    ax.set_xticks(np.arange(len(decays)), [f"{decay:g}" for decay in decays])
    ax.set_xlabel("weight decay")
    ax.legend(fontsize=8, frameon=False)
    return Drawn(
        figure,
        arrays,
        f"Adam with weight decay, κ = 1/2, d = {dimension}, {starts} starts; lines: Bayes-optimal.",
    )


def spread(
    model: Any, alphas: np.ndarray, dimension: int, starts: int, steps: int, progress: bool
) -> np.ndarray:
    """‖Ŝ_k - S̄‖²/d², mean over runs of descent from `starts` starts on one data set, for each α."""
    found, optimizer = [], optax.adam(0.02)
    for i, alpha in enumerate(
        tqdm(alphas, desc=f"starts, d={dimension}", disable=not progress, leave=False)
    ):
        data = model.sample(
            jax.random.key(i), dimension=dimension, alpha=float(alpha), dtype="float32"
        )
        keys = jax.random.split(jax.random.key(100 + i), starts)
        fit = train(model, data, optimizer, key=keys, steps=steps, reduction="sum", loss=quarter)
        matrices = jnp.asarray(fit.weights)
        found.append(
            float(
                jnp.mean(jnp.sum((matrices - matrices.mean(axis=0)) ** 2, axis=(1, 2)))
                / dimension**2
            )
        )
    return np.array(found)


def trivialisation(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """From how many samples on descent from any start ends at one and the same matrix, against noise."""
    del reference  # no table is at hand
    figure, (left, right) = axes_row(2)
    dimension, starts, steps = (60, 8, 10000) if full else (20, 4, 2500)
    noises = (0.0, 0.1, 0.25, 0.5, 1.0) if full else (0.0, 0.25, 1.0)
    alphas = np.linspace(0.1, 0.7, 13) if full else np.linspace(0.1, 0.7, 7)
    level, threshold = 1e-3, []
    arrays: dict[str, Any] = {"alpha": alphas, "noises": np.array(noises)}
    for k, noise in enumerate(noises):
        model = Bilinear(1.0, 0.5, noise, symmetric=True)
        arrays[f"spread_{noise:g}"] = spread(model, alphas, dimension, starts, steps, progress)
        above = np.flatnonzero(arrays[f"spread_{noise:g}"] > level)
        last = above[-1] if above.size else -1
        threshold.append(
            0.5 * (alphas[last] + alphas[last + 1]) if 0 <= last < len(alphas) - 1 else np.nan
        )
        left.semilogy(
            alphas,
            np.maximum(arrays[f"spread_{noise:g}"], 1e-12),
            "o-",
            color=f"C{k}",
            label=rf"$\Delta = {noise:g}$",
        )
    arrays["threshold"] = np.array(threshold)
    left.axhline(level, color="k", lw=0.8, ls=":")
    left.set_xlabel(r"$\alpha = n/d^2$")
    left.set_ylabel("spread between starts")
    left.legend(fontsize=8, frameon=False)
    cell = 0.5 * (alphas[1] - alphas[0])
    right.errorbar(noises, threshold, cell, fmt="o", mfc="none", capsize=2)
    right.axhline(float(Bilinear(1.0, 0.5, symmetric=True).recovery), color="k", lw=0.8, ls="--")
    right.set_xlabel(r"$\Delta$")
    right.set_ylabel(r"$\alpha$ from which all starts agree")
    caption = (
        f"Quadratic network, κ = 1/2: Adam from {starts} starts on one data set, d = {dimension}, {steps} steps; they are "
        f"one where their spread is below {level:g} (dotted). Bars: half a step of the grid. Dashed: recovery without noise."
    )
    return Drawn(figure, arrays, caption)


RECIPES: dict[str, Callable[..., Drawn]] = {
    "quadratic-1": quadratic_error,
    "quadratic-2": quadratic_message_passing,
    "quadratic-3": quadratic_descent,
    "quadratic-4": quadratic_decay,
    "quadratic-5": trivialisation,
}
