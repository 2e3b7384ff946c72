"""Softmax of two and more tokens, and all scores observed: theory, message passing and descent.

No equation lives here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxsmi.descent.averaging import averaged
from jaxsmi.descent.training import train
from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.papers.attention_indexed.curves import (
    ERROR,
    LIMIT,
    beside_dots,
    beside_limit,
    draw_small_widths,
    errors,
    sizes,
    table_of,
    unconverged,
)
from jaxsmi.papers.common import (
    DOTS,
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
    with_bars,
)
from jaxsmi.thresholds.recovery import recovery_threshold
from jaxsmi.workbench.plotting import colour, legend, line, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["linear", "more_tokens", "small_width", "two_tokens"]

WIDTHS = (0.1, 0.3, 0.5, 1.0, 2.0)  # of the published curves
_RECOVERY: dict[str, Any] = {"marker": "|", "ms": 9.0, "mew": 1.4, "ls": "none"}
AVERAGED = 32  # runs of the published averages
STEP = 3e-5  # of the published iteration, where it stopped


def _mark_recovery(ax: Axes, model: AttentionIndexed, tint: str) -> float:
    """Mark α of perfect recovery on the axis; returns it."""
    alpha = float(recovery_threshold(model).alpha)
    ax.plot(alpha, 0.0, color=tint, clip_on=False, zorder=3, **_RECOVERY)
    return alpha


def _beside_curve(reference: Folder, ax: Axes, width: float, output: str) -> list[Comparison]:
    """Our errors at the rows of a published softmax curve of two tokens, which is drawn; linear
    ones at 2α/3, where they are the same.
    """
    table = table_of(reference, f"SE_softmax_T=2_rho={width:.1f}")
    if table is None:
        return []
    alpha = table["alpha"]
    shown = alpha if output == "softmax" else alpha / 1.5
    overlay(ax, shown, table["mmse"], line=True)
    ours = errors(2, (width,), output, shown)[0]
    allowed = unconverged(width, alpha, ours, STEP)
    begun = alpha > 0.02 * float(recovery_threshold(AttentionIndexed(2, width)).alpha)
    remark = (
        f"tolerance: {STEP:g}/(1 - J), what is left where steps are that short; below α_rec, "
        "without its first 2 %, where the published quadrature is coarse"
    )
    if width == 0.1:
        remark += "; rows at 0.6 to 0.8 α_rec, where two bands merge, are off in print"
    what = f"{output}, T = 2, ρ = {width:g}"
    return [compare(what, np.where(begun, ours, np.nan), table["mmse"], allowed, remark)]


def _beside_descent(
    reference: Folder, at: np.ndarray, single: np.ndarray, mean: np.ndarray, dimension: int
) -> list[Comparison]:
    """Descent (α, seeds) of two tokens beside the published one, and averages of as many runs."""
    compared: list[Comparison] = []
    ending = f"_averages={AVERAGED}"
    for what, values, name in (("one run", single, ""), ("averaged", mean, ending)):
        table = table_of(reference, f"GD_softmax_D=200_rho=0.5_T=2{name}")
        if table is not None:
            ours, error = mean_and_error(values)
            known = np.interp(at, table["alpha"], table["mmse"])
            theirs = np.interp(at, table["alpha"], table["mmse_std"]) / 4.0  # 16 instances
            remark = (
                "published at d = 200; tolerance: three joint standard errors, and 5/d for finite "
                f"size, d = {dimension}"
            )
            allowed = 3.0 * np.hypot(np.nan_to_num(error), theirs) + 5.0 / dimension
            compared.append(compare(f"descent, T = 2, {what}", ours, known, allowed, remark))
    return compared


def _overlay_descents(reference: Folder, ax: Axes) -> None:
    """Published descent, one run and averaged, of 2, 3, 5 and 6 tokens against α (T² + T - 2)."""
    for tokens in (2, 3, 5, 6):
        for name in ("", f"_averages={AVERAGED}"):
            table = table_of(reference, f"GD_softmax_D=200_rho=0.5_T={tokens}{name}")
            if table is not None:
                x = (tokens**2 + tokens - 2) * table["alpha"]
                overlay(ax, x, table["mmse"], table["mmse_std"])


def two_tokens(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 2: softmax with two tokens, and all numbers of tokens on one curve with message
    passing and descent.
    """
    compared: list[Comparison] = []
    figure, (left, right) = axes_row(2, ordinate=ERROR, height=2.8)
    alphas = np.linspace(0.002, 0.26, 200 if full else 100)
    theory = errors(2, WIDTHS, "softmax", alphas)
    arrays = {"widths": np.array(WIDTHS), "alpha": alphas, "theory": theory}
    for tint, width, error in zip(shades(len(WIDTHS)), WIDTHS, theory, strict=True):
        left.plot(alphas, error, color=tint, label=rf"$\rho = {width:g}$")
        _mark_recovery(left, AttentionIndexed(2, width), tint)
        compared += _beside_curve(reference, left, width, "softmax")
    left.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    legend(left, {"perfect recovery": _RECOVERY})
    dimension, seeds = sizes(full)
    x = np.linspace(0.01, 0.8, 80)
    at = np.linspace(0.2, 0.7, 6) if full else np.array([0.3, 0.45, 0.6])
    known = errors(2, (0.5,), "softmax", at / 4)[0]
    arrays |= {"x": x, "collapsed": errors(2, (0.5,), "softmax", x / 4)[0], "at": at}
    right.plot(x, arrays["collapsed"], label="Bayes-optimal", **LIMIT)
    for k, tokens in enumerate((2, 3)):
        model = AttentionIndexed(tokens, 0.5)
        runs = dots(model, at / (tokens**2 + tokens - 2), dimension, seeds, progress)
        arrays[f"gamp_{tokens}"] = runs
        with_bars(right, at, runs, color=colour(k), marker="os"[k], label=f"GAMP, T = {tokens}")
        compared.append(finite_size(f"message passing, T = {tokens}", runs, known, dimension))
    for tokens in (2, 4):
        collapse = float(tokens**2 + tokens - 2)
        name = f"AMP_softmax_T={tokens}_rho=0.5"
        compared += beside_dots(reference, right, name, tokens, 0.5, "softmax", collapse)
    dimension, seeds, starts = (200, 4, AVERAGED) if full else (40, 3, 8)
    single, mean = descents(at / 4, dimension, seeds, starts)
    arrays |= {"descent": single, "averaged": mean}
    compared.append(_averaging(mean, known, dimension))
    compared += _beside_descent(reference, at / 4, single, mean, dimension)
    _overlay_descents(reference, right)
    with_bars(right, at, single, color=colour(4), marker="D", label="Adam")
    with_bars(right, at, mean, color=colour(3), marker="^", label=f"Adam, {AVERAGED} averaged")
    right.set_xlim(0.0, 0.95)
    right.set_xlabel(r"$\alpha\,(T^2 + T - 2)$")
    legend(right)
    caption = (
        "Softmax: perfect recovery at α = D(ρ)/4 (bars, T = 2); all T on one curve of α (T² + T - "
        f"2), ρ = 1/2, up to 0.75. Dots: message passing, d = {sizes(full)[0]}, {sizes(full)[1]} "
        f"seeds; descent, d = {dimension}, {seeds} seeds.{note(reference)}"
    )
    return Drawn(figure, arrays, caption, compared)


def _averaging(mean: np.ndarray, known: np.ndarray, dimension: int) -> Comparison:
    """Averaged descent (α, seeds) beside the Bayes-optimal error, to which it does not tend."""
    remark = (
        "it stays above, the more so towards recovery [theory: attention-indexed, section 8]; "
        "tolerance: a quarter of the error, and 5/d for finite size"
    )
    allowed = 0.25 * known + 5.0 / dimension
    ours = np.nanmean(mean, axis=1)
    return compare("averaged descent", ours, known, allowed, remark, "theory")


def descents(
    alphas: np.ndarray, dimension: int, seeds: int, starts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Errors (α, seeds) of one run of Adam and of the average of 32, from `starts` of them, T = 2,
    ρ = 1/2: rate 0.1, 1000 steps, loss Σ_μ ‖ŷ_μ - y_μ‖²/d, as published.
    """
    model = AttentionIndexed(2, 0.5)
    single = np.zeros((len(alphas), seeds))
    mean = np.zeros((len(alphas), seeds))
    optimizer = optax.adam(0.1)
    for i, alpha in enumerate(alphas):
        for seed in range(seeds):
            key = jax.random.fold_in(jax.random.key(seed), i)
            data = model.sample(key, dimension=dimension, alpha=float(alpha))
            keys = jax.random.split(key, starts)
            fit = train(model, data, optimizer, key=keys, steps=1000, reduction="sum/D")
            average = averaged(fit, jnp.asarray(data.teacher))
            rest = average.single - average.extrapolated
            single[i, seed] = float(average.single)
            mean[i, seed] = float(average.extrapolated + rest / AVERAGED)
    return single, mean


def linear(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 3: all scores observed."""
    del progress  # no runs
    figure, (ax,) = axes_row(ordinate=ERROR)
    alphas = np.linspace(0.002, 0.175, 200 if full else 100)
    theory = errors(2, WIDTHS, "linear", alphas)
    arrays = {"widths": np.array(WIDTHS), "alpha": alphas, "theory": theory}
    same = errors(2, WIDTHS, "softmax", 1.5 * alphas)  # α (T² + T) here is α (T² + T - 2) there
    remark = "tolerance: that of the solver"
    compared = [compare("the curve of softmax at 3α/2", theory, same, 1e-8, remark, "theory")]
    for tint, width, error in zip(shades(len(WIDTHS)), WIDTHS, theory, strict=True):
        ax.plot(alphas, error, color=tint, label=rf"$\rho = {width:g}$")
        _mark_recovery(ax, AttentionIndexed(2, width, "linear"), tint)
        compared += _beside_curve(reference, ax, width, "linear")
    ax.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    legend(ax, {"perfect recovery": _RECOVERY})
    caption = "Linear, T = 2: perfect recovery at α = D(ρ)/6 (bars)." + note(reference)
    if reference is not None:
        caption += " It is of softmax, at 2α/3; none of linear labels."
    return Drawn(figure, arrays, caption, compared)


def more_tokens(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 4: softmax with four and five tokens."""
    compared: list[Comparison] = []
    figure, (ax,) = axes_row(ordinate=ERROR)
    dimension, seeds = sizes(full, 120)
    alphas = np.linspace(0.001, 0.045, 100)
    arrays = {"alpha": alphas}
    for k, tokens in enumerate((4, 5)):
        model = AttentionIndexed(tokens, 0.5)
        theory = errors(tokens, (0.5,), "softmax", alphas)[0]
        style: dict[str, Any] = line(k) | {"color": colour(k)}
        ax.plot(alphas, theory, label=f"$T = {tokens}$", **style)
        end = _mark_recovery(ax, model, colour(k))
        at = end * (np.linspace(0.3, 0.95, 6) if full else np.array([0.5, 0.75]))
        runs = dots(model, at, dimension, seeds, progress)
        with_bars(ax, at, runs, color=colour(k), marker="os"[k])
        arrays[f"theory_{tokens}"] = theory
        arrays[f"gamp_alpha_{tokens}"] = at
        arrays[f"gamp_{tokens}"] = runs
        known = errors(tokens, (0.5,), "softmax", at)[0]
        compared.append(finite_size(f"message passing, T = {tokens}", runs, known, dimension))
    compared += beside_dots(reference, ax, "AMP_softmax_T=4_rho=0.5", 4, 0.5, "softmax", 1.0)
    ax.set_xlim(0.0, 0.046)
    ax.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    legend(ax, {"message passing": DOTS, "perfect recovery": _RECOVERY})
    caption = (
        "Softmax, T = 4 and 5, ρ = 1/2: recovery at D/18 and D/28. "
        f"Dots: d = {dimension}, {seeds} seeds.{note(reference)}"
    )
    return Drawn(figure, arrays, caption, compared)


def small_width(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 5: softmax with two tokens and small width."""
    del full, progress, reference  # exact, no runs; none is published
    figure, (ax,) = axes_row(ordinate=ERROR)
    x = np.linspace(0.005, 0.55, 110)
    widths = (0.001, 0.01, 0.05, 0.2, 0.5)
    theory = errors(2, widths, "softmax", np.outer(widths, x))
    limit = draw_small_widths(ax, AttentionIndexed(2, 0.5), x, widths, theory)
    arrays = {"x": x, "widths": np.array(widths), "theory": theory, "limit": limit}
    compared = [beside_limit(theory[0], limit, widths[0])]
    caption = "Softmax, T = 2, small width: learning starts at ᾱ = 1/4 and ends at 1/2 as ρ → 0."
    return Drawn(figure, arrays, caption, compared)
