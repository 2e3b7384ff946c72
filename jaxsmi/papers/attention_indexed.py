"""The five figures of "Bayes optimal learning of attention-indexed models" (arXiv 2506.01582).

They are listed in [theory: attention-indexed, section 9].

Dots are message passing and gradient descent at finite d (runs that diverged are NaN in the arrays
and left out of means). By default they are few and small, so that a figure takes a minute or
two; `full=True` has the sizes of the article (d = 100 and 120, 16 seeds), which take hours. Errors
are ‖Ŝ - S‖²/d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.descent.averaging import averaged
from jaxsmi.descent.training import train
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.papers.common import (
    Article,
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    dots,
    finite_size,
    small_legend,
    with_bars,
)
from jaxsmi.thresholds.recovery import recovery_threshold

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ARTICLE"]

# Of figures 1 to 3; the article's list is not known [theory: attention-indexed, section 9].
WIDTHS = (0.05, 0.2, 0.5, 1.0, 2.0)


def errors(tokens: int, widths: Sequence[float], output: str, alphas: ArrayLike) -> np.ndarray:
    """Bayes-optimal error (widths, α); `alphas` (α,) or (widths, α)."""
    grid = jnp.broadcast_to(jnp.asarray(alphas, float), (len(widths), np.shape(alphas)[-1]))

    def one(width: Array, alpha: Array) -> Array:
        return state_evolution(AttentionIndexed(tokens, width, output), alpha).error

    return np.asarray(jax.jit(jax.vmap(jax.vmap(one, (None, 0))))(jnp.asarray(widths, float), grid))


def _sizes(full: bool, dimension: int = 100) -> tuple[int, int]:
    """Dimension and seeds of runs."""
    return (dimension, 16) if full else (40, 3)


def hardmax(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 1: hardmax with two tokens, and its limit of small width."""
    del reference  # none is published
    compared: list[Comparison] = []
    figure, (left, right) = axes_row(2)
    alphas = np.logspace(-2, 1.5, 60)
    theory = errors(2, WIDTHS, "hardmax", alphas)
    dimension, seeds = _sizes(full)
    at = np.logspace(-1.3, 0.3, 8) if full else np.array([0.1, 0.4])
    arrays = {"widths": np.array(WIDTHS), "alpha": alphas, "theory": theory, "gamp_alpha": at}
    for k, width in enumerate(WIDTHS):
        model = AttentionIndexed(2, width, "hardmax")
        left.loglog(alphas, theory[k], color=f"C{k}", label=rf"$\rho = {width:g}$")
        law = float(model.decay) / alphas**2
        left.loglog(alphas, np.where(law < 0.1, law, np.nan), color=f"C{k}", ls=":", lw=0.8)
        if full or width == 0.5:
            runs = dots(model, at, dimension, seeds, progress)
            arrays[f"gamp_{width:g}"] = runs
            with_bars(left, at, runs, color=f"C{k}")
            known = errors(2, (width,), "hardmax", at)[0]
            compared.append(finite_size(f"message passing, ρ = {width:g}", runs, known, dimension))
    left.set_ylim(theory.min() / 2, 1.5)
    left.set_xlabel(r"$\alpha = n/d^2$")
    small_legend(left)
    x = np.linspace(0.02, 2.0, 80)
    widths = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
    small = errors(2, widths, "hardmax", np.outer(widths, x))
    limit = _draw_small_widths(right, AttentionIndexed(2, 0.5, "hardmax"), x, widths, small)
    arrays |= {"x": x, "small_widths": np.array(widths), "small": small, "limit": limit}
    compared.append(_beside_limit(small[0], limit, widths[0]))
    caption = (
        "Hardmax, T = 2: V ~ c(ρ)/α² (dotted); nothing is learned below ᾱ = 0.403 (vertical) as ρ "
        "→ 0. "
        f"Dots: message passing, d = {dimension}, {seeds} seeds."
    )
    return Drawn(figure, arrays, caption, compared)


def _draw_small_widths(
    ax: Axes, model: AttentionIndexed, x: np.ndarray, widths: Sequence[float], theory: np.ndarray
) -> np.ndarray:
    """Errors (widths, x) against x = n/(dr), the limit ρ → 0 and its threshold.

    Returns the limit.
    """
    for k, width in enumerate(widths):
        ax.plot(x, theory[k], color=f"C{k}", label=rf"$\rho = {width:g}$")
    limit = np.asarray(model.small_width_error(x))
    ax.plot(x, limit, "k--", lw=1.0, label=r"$\rho \to 0$")
    ax.axvline(float(model.small_width_threshold), color="k", ls=":", lw=0.8)
    ax.set_xlabel(r"$\bar\alpha = n/(dr)$")
    small_legend(ax)
    return limit


def _beside_limit(error: np.ndarray, limit: np.ndarray, width: float) -> Comparison:
    """The error of the smallest width beside its limit."""
    remark = "tolerance: 3 ρ^(2/3), the order of the first correction at the transition"
    what = f"width {width:g} against the limit ρ → 0"
    return compare(what, error, limit, 3.0 * width ** (2 / 3), remark, "theory")


def _mark_recovery(ax: Axes, model: AttentionIndexed, colour: str) -> float:
    """Mark α of perfect recovery on the axis; returns it."""
    alpha = float(recovery_threshold(model).alpha)
    ax.plot(alpha, 0.0, "|", color=colour, ms=10)
    return alpha


def softmax(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 2: softmax with two tokens, and all numbers of tokens on one curve with message
    passing and descent.
    """
    del reference  # none is published
    compared: list[Comparison] = []
    figure, (left, right) = axes_row(2)
    alphas = np.linspace(0.002, 0.26, 200 if full else 100)
    theory = errors(2, WIDTHS, "softmax", alphas)
    arrays = {"widths": np.array(WIDTHS), "alpha": alphas, "theory": theory}
    for k, width in enumerate(WIDTHS):
        left.plot(alphas, theory[k], color=f"C{k}", label=rf"$\rho = {width:g}$")
        _mark_recovery(left, AttentionIndexed(2, width), f"C{k}")
    left.set_xlabel(r"$\alpha = n/d^2$")
    small_legend(left)
    dimension, seeds = _sizes(full)
    x = np.linspace(0.01, 0.8, 80)
    at = np.linspace(0.2, 0.7, 6) if full else np.array([0.3, 0.45, 0.6])
    known = errors(2, (0.5,), "softmax", at / 4)[0]
    arrays |= {"x": x, "collapsed": errors(2, (0.5,), "softmax", x / 4)[0], "at": at}
    right.plot(x, arrays["collapsed"], "k--", label="Bayes-optimal")
    for k, tokens in enumerate((2, 3)):
        model = AttentionIndexed(tokens, 0.5)
        runs = dots(model, at / (tokens**2 + tokens - 2), dimension, seeds, progress)
        arrays[f"gamp_{tokens}"] = runs
        with_bars(right, at, runs, color=f"C{k}", label=f"GAMP, T = {tokens}")
        compared.append(finite_size(f"message passing, T = {tokens}", runs, known, dimension))
    single, mean = descents(at / 4, dimension, seeds, 2000 if full else 800)
    arrays |= {"descent": single, "averaged": mean}
    compared.append(_averaging(mean, known, dimension))
    with_bars(right, at, single, color="C2", marker="s", label="Adam")
    label = f"averaged Adam, K = {16 if full else 8}"
    with_bars(right, at, mean, color="C3", marker="^", label=label)
    right.set_xlabel(r"$\alpha\,(T^2 + T - 2)$")
    small_legend(right)
    caption = (
        "Softmax: perfect recovery at α = D(ρ)/4 (bars, T = 2); all T on one curve of α (T² + T - "
        "2), "
        f"ρ = 1/2, up to 0.75. Dots: d = {dimension}, {seeds} seeds."
    )
    return Drawn(figure, arrays, caption, compared)


def _averaging(mean: np.ndarray, known: np.ndarray, dimension: int) -> Comparison:
    """Averaged descent (α, seeds) beside the Bayes-optimal error, to which it is not proved to
    tend.
    """
    remark = (
        "it stays above, more so near recovery and for few runs; tolerance: a quarter of the "
        "error, and "
        "5/d for finite size"
    )
    allowed = 0.25 * known + 5.0 / dimension
    ours = np.nanmean(mean, axis=1)
    return compare("averaged descent", ours, known, allowed, remark, "theory")


def descents(
    alphas: np.ndarray, dimension: int, seeds: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Errors (α, seeds) of one run of Adam, and of the average of 8 (of 16, at d = 100), T = 2, ρ =
    1/2.
    """
    model = AttentionIndexed(2, 0.5)
    runs = 16 if dimension >= 100 else 8
    single = np.zeros((len(alphas), seeds))
    mean = np.zeros((len(alphas), seeds))
    optimizer = optax.adam(0.05)
    for i, alpha in enumerate(alphas):
        for seed in range(seeds):
            key = jax.random.fold_in(jax.random.key(seed), i)
            data = model.sample(key, dimension=dimension, alpha=float(alpha))
            fit = train(model, data, optimizer, key=jax.random.split(key, runs), steps=steps)
            average = averaged(fit, jnp.asarray(data.teacher))
            single[i, seed] = float(average.single)
            mean[i, seed] = float(average.error)
    return single, mean


def linear(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 3: all scores observed."""
    del progress, reference  # no runs; none is published
    figure, (ax,) = axes_row()
    alphas = np.linspace(0.002, 0.175, 200 if full else 100)
    theory = errors(2, WIDTHS, "linear", alphas)
    arrays = {"widths": np.array(WIDTHS), "alpha": alphas, "theory": theory}
    for k, width in enumerate(WIDTHS):
        ax.plot(alphas, theory[k], color=f"C{k}", label=rf"$\rho = {width:g}$")
        _mark_recovery(ax, AttentionIndexed(2, width, "linear"), f"C{k}")
    ax.set_xlabel(r"$\alpha = n/d^2$")
    small_legend(ax)
    same = errors(2, WIDTHS, "softmax", 1.5 * alphas)  # α (T² + T) here is α (T² + T - 2) there
    remark = "tolerance: that of the solver"
    compared = [compare("the curve of softmax at 3α/2", theory, same, 1e-8, remark, "theory")]
    return Drawn(figure, arrays, "Linear, T = 2: perfect recovery at α = D(ρ)/6 (bars).", compared)


def more_tokens(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 4: softmax with four and five tokens."""
    del reference  # none is published
    compared: list[Comparison] = []
    figure, (ax,) = axes_row()
    dimension, seeds = _sizes(full, 120)
    alphas = np.linspace(0.001, 0.045, 100)
    arrays = {"alpha": alphas}
    for k, tokens in enumerate((4, 5)):
        model = AttentionIndexed(tokens, 0.5)
        theory = errors(tokens, (0.5,), "softmax", alphas)[0]
        ax.plot(alphas, theory, color=f"C{k}", label=f"T = {tokens}")
        end = _mark_recovery(ax, model, f"C{k}")
        at = end * (np.linspace(0.3, 0.95, 6) if full else np.array([0.5, 0.75]))
        runs = dots(model, at, dimension, seeds, progress)
        with_bars(ax, at, runs, color=f"C{k}")
        arrays[f"theory_{tokens}"] = theory
        arrays[f"gamp_alpha_{tokens}"] = at
        arrays[f"gamp_{tokens}"] = runs
        known = errors(tokens, (0.5,), "softmax", at)[0]
        compared.append(finite_size(f"message passing, T = {tokens}", runs, known, dimension))
    ax.set_xlabel(r"$\alpha = n/d^2$")
    small_legend(ax)
    caption = (
        "Softmax, T = 4 and 5, ρ = 1/2: recovery at D/18 and D/28. "
        f"Dots: d = {dimension}, {seeds} seeds."
    )
    return Drawn(figure, arrays, caption, compared)


def small_width(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 5: softmax with two tokens and small width."""
    del full, progress, reference  # exact, no runs; none is published
    figure, (ax,) = axes_row()
    x = np.linspace(0.005, 0.55, 110)
    widths = (0.001, 0.01, 0.05, 0.2, 0.5)
    theory = errors(2, widths, "softmax", np.outer(widths, x))
    limit = _draw_small_widths(ax, AttentionIndexed(2, 0.5), x, widths, theory)
    arrays = {"x": x, "widths": np.array(widths), "theory": theory, "limit": limit}
    compared = [_beside_limit(theory[0], limit, widths[0])]
    caption = "Softmax, T = 2, small width: learning starts at ᾱ = 1/4 and ends at 1/2 as ρ → 0."
    return Drawn(figure, arrays, caption, compared)


ARTICLE = Article(
    "attention-indexed",
    "Bayes optimal learning of attention-indexed models",
    "2506.01582",
    {
        "1": hardmax,
        "2": softmax,
        "3": linear,
        "4": more_tokens,
        "5": small_width,
    },
)
