"""Hardmax with two tokens: theory, message passing, and published curves with a wrong derivative.

No equation lives here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.papers.attention_indexed.curves import (
    ERROR,
    beside_dots,
    beside_limit,
    draw_small_widths,
    errors,
    sizes,
    table_of,
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
    note,
    overlay,
    with_bars,
)
from jaxsmi.workbench.plotting import label_ends, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["two_tokens"]

WIDTHS = (0.1, 0.2, 0.5, 1.0, 2.0)  # of the published curves
SMALL_WIDTHS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)


def _beside_curve(reference: Folder, ax: Axes, name: str, width: float) -> list[Comparison]:
    """Our errors at the rows of a published curve, drawn against α, or against ᾱ = n/(dr) where it
    is one of small widths. Of width 0 its column alpha is ᾱ, else it is α.
    """
    table = table_of(reference, f"SE_hardmax_{name}rho={width:g}" + ".0" * (width >= 1.0))
    if table is None:
        return []
    alpha = table["alpha"]
    small = name == "rescaled_"
    shown = alpha / width if small and width > 0.0 else alpha
    overlay(ax, shown, table["mmse"], line=True)
    if width > 0.0:
        ours = errors(2, (width,), "hardmax", alpha)[0]
    else:
        ours = np.asarray(AttentionIndexed(2, 0.5, "hardmax").small_width_error(alpha))
    remark = (
        "tolerance: that of the published softmax curves; the published hardmax curves have a "
        "wrong derivative [print, section 1.8]"
    )
    what = f"{'small-width curve' if small else 'theory'}, ρ = {width:g}"
    return [compare(what, ours, table["mmse"], 1e-3, remark)]


def two_tokens(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 1: hardmax with two tokens, and its limit of small width."""
    compared: list[Comparison] = []
    figure, (left, right) = axes_row(2, ordinate=ERROR, height=2.8)
    alphas = np.logspace(-2, 1.5, 60)
    theory = errors(2, WIDTHS, "hardmax", alphas)
    dimension, seeds = sizes(full)
    at = np.logspace(-1.3, 0.3, 8) if full else np.array([0.1, 0.4])
    arrays = {"widths": np.array(WIDTHS), "alpha": alphas, "theory": theory, "gamp_alpha": at}
    for k, (tint, width) in enumerate(zip(shades(len(WIDTHS)), WIDTHS, strict=True)):
        model = AttentionIndexed(2, width, "hardmax")
        left.loglog(alphas, theory[k], color=tint, label=rf"$\rho = {width:g}$")
        law = float(model.decay) / alphas**2
        left.loglog(alphas, np.where(law < 0.1, law, np.nan), color=tint, ls=":", lw=0.8)
        if full or width == 0.5:
            runs = dots(model, at, dimension, seeds, progress)
            arrays[f"gamp_{width:g}"] = runs
            with_bars(left, at, runs, color=tint)
            known = errors(2, (width,), "hardmax", at)[0]
            compared.append(finite_size(f"message passing, ρ = {width:g}", runs, known, dimension))
        compared += _beside_curve(reference, left, "", width)
        dotted = f"AMP_hardmax_rho={width:.1f}"
        compared += beside_dots(reference, left, dotted, 2, width, "hardmax", 1.0)
    left.set_ylim(theory.min() / 2, 1.5)
    left.set_xlim(alphas[0] / 1.2, 1.2 * alphas[-1])
    left.set_xlabel(r"sample complexity $\alpha = n/d^2$")
    keys = {r"$c(\rho)/\alpha^2$": {"ls": ":", "lw": 0.8}, "message passing": DOTS}
    label_ends(left, keys)
    x = np.linspace(0.02, 2.0, 80)
    small = errors(2, SMALL_WIDTHS, "hardmax", np.outer(SMALL_WIDTHS, x))
    for width in (0.0, 0.05, 0.1, 0.2, 0.5):
        compared += _beside_curve(reference, right, "rescaled_", width)
    right.set_xlim(0.0, x[-1])
    limit = draw_small_widths(right, AttentionIndexed(2, 0.5, "hardmax"), x, SMALL_WIDTHS, small)
    arrays |= {"x": x, "small_widths": np.array(SMALL_WIDTHS), "small": small, "limit": limit}
    compared.append(beside_limit(small[0], limit, SMALL_WIDTHS[0]))
    caption = (
        "Hardmax, T = 2: V ~ c(ρ)/α² (dotted); nothing is learned below ᾱ = 0.403 (vertical) as ρ "
        f"→ 0. Dots: message passing, d = {dimension}, {seeds} seeds.{note(reference)}"
    )
    if reference is not None:
        caption += (
            " A wrong derivative of the label's law puts it too high, and its threshold at 0.563."
        )
    return Drawn(figure, arrays, caption, compared)
