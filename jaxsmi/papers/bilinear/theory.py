"""Figures of theory alone: Bayes-optimal errors, perfect recovery, free entropy.

Source: [theory: bilinear, section 7].
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.descent.baselines import nuclear_norm_threshold, ridge_error
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.potential import free_entropy
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.papers.common import (
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    note,
    overlay,
    published,
)
from jaxsmi.workbench.plotting import colour, label_ends, legend, legend_of_all, line, shades
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ERROR", "aspects", "bayes_error", "entropies", "errors", "thresholds"]

ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/(dL)$"
WIDTHS = (2.0, 1.0, 0.5, 0.2, 0.05)
INFINITE = float("inf")
_LIMIT: dict[str, Any] = {"marker": "_", "ms": 9.0, "mew": 1.4, "ls": "none"}


@functools.partial(jax.jit, static_argnums=4)
@functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None))
def _errors(alpha: Array, beta: Array, rho: Array, noise: Array, symmetric: bool) -> Array:
    """Bayes-optimal errors, elementwise."""
    return state_evolution(Bilinear(1.0 if symmetric else beta, rho, noise, symmetric), alpha).error


def errors(
    alphas: ArrayLike,
    beta: ArrayLike,
    rho: ArrayLike,
    noise: float = 0.0,
    symmetric: bool = False,
) -> np.ndarray:
    """Bayes-optimal errors of broadcast arguments."""
    grid = np.broadcast_arrays(*(np.asarray(x, float) for x in (alphas, beta, rho, noise)))
    flat = _errors(*(jnp.asarray(x.ravel()) for x in grid), symmetric)
    return np.asarray(flat).reshape(grid[0].shape)


def _named(beta: float) -> str:
    """β as a label writes it."""
    return r"\infty" if np.isinf(beta) else f"{beta:g}"


def _beside_tables(
    reference: Folder,
    beta: float,
    noise: float,
    axes: dict[float, Axes],
) -> list[Comparison]:
    """Our errors at the rows of a published table, which are drawn on the axes of their width."""
    table = published(reference, "bsr", "theory", f"delta_{noise:g}_beta_{beta:g}.csv")
    if table is None:
        return []
    chosen = np.isin(table["rho"], list(axes)) & (table["alpha"] > 0)
    rho, alpha, error = (table[name][chosen] for name in ("rho", "alpha", "mmse"))
    ours = errors(alpha, beta, rho, noise)
    for width, ax in axes.items():
        row = rho == width
        overlay(ax, alpha[row], error[row], line=True)
    recovered = np.inf
    if noise == 0.0:
        recovered = np.where(rho < 1.0, rho * (1.0 + (1.0 - rho) / beta), 1.0)
    away = np.abs(alpha - recovered) > 1e-9
    remark = (
        "tolerance: quadrature errors of the table, which is not converged at perfect recovery "
        "itself "
        "(left out)"
    )
    what = f"theory, β = {beta:g}, Δ = {noise:g}"
    return [compare(what, ours[away], error[away], 5e-5, remark)]


def bayes_error(
    full: bool = False, progress: bool = False, reference: Folder = None, noise: float = 0.0
) -> Drawn:
    """Figure 1 (and with noise): errors against α and against n/(r (d + L))."""
    del progress  # no runs
    compared: list[Comparison] = []
    figure, axes = axes_row(2, 3, ERROR)
    alphas = np.linspace(0.005, 1.0, 200 if full else 100)
    scaled = np.linspace(0.02, 2.0 if noise else 1.2, 100)
    ridge = np.asarray(ridge_error(alphas, noise, noise))
    arrays = {"alpha": alphas, "scaled": scaled, "widths": np.array(WIDTHS), "ridge": ridge}
    for row, beta in enumerate((1.0, 5.0, INFINITE)):
        left, right = axes[2 * row : 2 * row + 2]
        factor = 1.0 if np.isinf(beta) else (1.0 + beta) / beta  # α = ᾱ ρ (1 + β)/β
        widths = np.array(WIDTHS)[:, None]
        theory = errors(alphas, beta, widths, noise)
        again = errors(scaled * factor * widths, beta, widths, noise)
        arrays |= {f"theory_{beta:g}": theory, f"scaled_{beta:g}": again}
        for k, tint in enumerate(reversed(shades(len(WIDTHS)))):
            left.plot(alphas, theory[k], color=tint, label=rf"$\rho = {WIDTHS[k]:g}$")
            right.plot(scaled, again[k], color=tint, label=rf"$\rho = {WIDTHS[k]:g}$")
        left.plot(alphas, ridge, color=INK, ls="--", lw=1.0, label="ridge regression")
        arrays[f"limit_{beta:g}"] = _draw_limit(right, scaled, beta, noise)
        compared += _beside_tables(reference, beta, noise, dict.fromkeys(WIDTHS, left))
        left.set_title(rf"$\beta = {_named(beta)}$")
        right.set_title(rf"$\beta = {_named(beta)}$")
        left.set_xlabel(r"sample complexity $\alpha = n/(dL)$")
        right.set_xlabel(r"sample complexity $\bar\alpha = n/(r(d + L))$")
    legend_of_all(figure, 5)
    caption = f"Bayes-optimal error, noise {noise:g}; dotted: where learning starts as ρ → 0."
    return Drawn(figure, arrays, caption + note(reference), compared)


def _draw_limit(ax: Axes, scaled: np.ndarray, beta: float, noise: float) -> np.ndarray:
    """Draw the error as ρ → 0, and where learning starts; returns the error."""
    if np.isinf(beta):
        limit = np.asarray(ridge_error(scaled, noise, noise))
    else:
        thin = Bilinear(beta, 1.0, noise)
        limit = np.asarray(thin.small_width_error(scaled))
        begins = float(thin.small_width_threshold)
        ax.axvline(begins, color=INK, ls=":", lw=0.9, label=r"learning starts, $\rho \to 0$")
    ax.plot(scaled, limit, color=INK, ls="--", lw=1.0, label=r"$\rho \to 0$")
    return limit


def aspects(
    full: bool = False, progress: bool = False, reference: Folder = None, noise: float = 0.0
) -> Drawn:
    """Figure 2 (and with noise): errors at several β."""
    del progress  # no runs
    figure, axes = axes_row(2, 2, ERROR)
    alphas = np.linspace(0.005, 1.0, 200 if full else 100)
    betas = (1.0, 2.0, 5.0, 10.0, 100.0, INFINITE)
    ridge = np.asarray(ridge_error(alphas, noise, noise))
    arrays: dict[str, np.ndarray] = {"alpha": alphas, "betas": np.array(betas), "ridge": ridge}
    panels = dict(zip((1.0, 0.5, 0.2, 0.1), axes, strict=True))
    compared: list[Comparison] = []
    for beta in (1.0, INFINITE):
        compared += _beside_tables(reference, beta, noise, panels)
    for width, ax in panels.items():
        theory = errors(alphas, np.array(betas)[:, None], width, noise)
        arrays[f"theory_{width:g}"] = theory
        for tint, beta, error in zip(shades(len(betas)), betas, theory, strict=True):
            ax.plot(alphas, error, color=tint, label=rf"$\beta = {_named(beta)}$")
        ax.plot(alphas, ridge, color=INK, ls="--", lw=1.0, label="ridge regression")
        ax.set_title(rf"$\rho = {width:g}$")
        ax.set_xlabel(r"sample complexity $\alpha = n/(dL)$")
    legend_of_all(figure, 4)
    caption = f"Bayes-optimal error against sequence length, noise {noise:g}."
    return Drawn(figure, arrays, caption + note(reference), compared)


def _recovery(beta: float, rho: ArrayLike) -> Array:
    """The α of perfect recovery."""
    return Bilinear(beta, rho).recovery


def _over_widths(
    law: Callable[[float, ArrayLike], Array], beta: float, widths: np.ndarray
) -> np.ndarray:
    """A threshold at all widths ρ."""
    return np.asarray(jax.vmap(functools.partial(law, beta))(jnp.asarray(widths)))


def thresholds(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 4: perfect recovery, Bayes-optimal and by the nuclear norm."""
    del progress  # no runs
    compared: list[Comparison] = []
    table = published(reference, "bsr", "min_norm", "thresholds.csv")
    figure, axes = axes_row(2)
    widths = np.linspace(0.001, 1.0, 1000 if full else 200)
    arrays = {"rho": widths}
    betas = (1.0, 2.0, 5.0)
    for tint, beta in zip(shades(len(betas)), betas, strict=True):
        best = _over_widths(_recovery, beta, widths)
        nuclear = _over_widths(nuclear_norm_threshold, beta, widths)
        arrays |= {f"bayes_{beta:g}": best, f"nuclear_{beta:g}": nuclear}
        for ax, scale in zip(axes, (1.0, beta / ((1.0 + beta) * widths)), strict=True):
            ax.plot(widths, best * scale, color=tint, label=rf"$\beta = {beta:g}$")
            ax.plot(widths, nuclear * scale, color=tint, ls="--")
        if table is not None:
            compared += _published_thresholds(table, beta, axes[0])
        limit = 2.0 * (1.0 + np.sqrt(beta) / (1.0 + beta))
        axes[1].plot(0.0, limit, color=tint, clip_on=False, zorder=3, **_LIMIT)
    for ax, name in zip(axes, (r"$\alpha$", r"$\bar\alpha$"), strict=True):
        ax.set_xlabel(r"width $\rho = r/L$")
        ax.set_ylabel(f"{name} of perfect recovery")
    keys: dict[str, Any] = {"Bayes-optimal": {"ls": "-"}, "nuclear norm": {"ls": "--"}}
    legend(axes[0], keys)
    label_ends(axes[1], keys | {r"nuclear norm, $\rho \to 0$": _LIMIT})
    caption = "Perfect recovery: Bayes-optimal (solid), minimum of the nuclear norm (dashed)."
    return Drawn(figure, arrays, caption + note(reference), compared)


def _published_thresholds(table: dict[str, np.ndarray], beta: float, ax: Axes) -> list[Comparison]:
    """Both thresholds beside the published ones, which are drawn."""
    rows = (table["beta"] == beta) & (table["rho"] > 0)
    x = table["rho"][rows]
    compared = []
    for what, column, law in (
        ("Bayes-optimal", "alpha_BO", _recovery),
        ("nuclear norm", "alpha_MNNE", nuclear_norm_threshold),
    ):
        overlay(ax, x, table[column][rows], line=True)
        ours = _over_widths(law, beta, x)
        name = f"{what} recovery, β = {beta:g}"
        compared.append(
            compare(name, ours, table[column][rows], 1e-5, "tolerance: that of the table")
        )
    return compared


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, None, None, 0))
def _potential(beta: float, rho: float, alpha: float, q: Array) -> Array:
    """Free entropy at several overlaps q."""
    return free_entropy(Bilinear(beta, rho), alpha, q).value


def entropies(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 8: free entropy against 1 - q."""
    del progress, reference  # no runs; no table is at hand
    figure, axes = axes_row(2, 2)
    tops: list[tuple[float, float]] = []
    distance = np.logspace(-4, np.log10(0.9), 50 if full else 30)  # 1 - q
    arrays: dict[str, Any] = {"left": distance}
    panels: Sequence[tuple[int, float, tuple[float, ...]]] = (
        (1, 1, (0.5, 0.95, 0.99)),
        (2, 1, (0.5, 0.95, 0.99)),
        (1, 0.5, (0.35, 0.7, 0.74)),
        (2, 0.5, (0.2, 0.575, 0.615)),
    )
    for ax, (beta, rho, alphas) in zip(axes, panels, strict=True):
        for k, alpha in enumerate(alphas):
            phi = np.asarray(_potential(float(beta), rho, alpha, jnp.asarray(1.0 - distance)))
            error = float(errors(alpha, beta, rho))
            peak = float(_potential(float(beta), rho, alpha, jnp.asarray([1.0 - error]))[0])
            arrays[f"phi_{beta}_{rho}_{alpha}"] = phi
            tops.append((float(phi.max()), peak))
            look: dict[str, Any] = line(k) | {"color": colour(k), "label": rf"$\alpha = {alpha:g}$"}
            ax.semilogx(distance, phi, **look)
            ax.plot(error, peak, "o", color=colour(k))
        ax.set_title(rf"$\beta = {beta:g}$, $\rho = {rho:g}$")
        ax.set_xlabel(r"$1 - q$")
        ax.set_ylabel("free entropy, up to a constant")
        legend(ax, {"Bayes-optimal error": {"marker": "o", "ls": "none", "mfc": INK}})
    caption = (
        "Free entropy (up to a constant of each curve), its maximum at the Bayes-optimal error "
        "(dots)."
    )
    remark = "tolerance: 2e-3, what a maximum may lose between two points of the grid"
    grid, top = np.array(tops).T
    what = "maximum of the free entropy on the grid"
    compared = [compare(what, grid, top, 2e-3, remark, "its value at the fixed point")]
    return Drawn(figure, arrays, caption, compared)
