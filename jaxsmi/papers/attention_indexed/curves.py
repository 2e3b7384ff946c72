"""What the figures share: theory along α, its limit of small width, published curves beside it.

No equation lives here.
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

from jaxsmi.inference.evolution import state_evolution
from jaxsmi.models.attention_indexed import AttentionIndexed
from jaxsmi.papers.common import Comparison, Folder, compare, overlay, published
from jaxsmi.workbench.plotting import legend_above, shades
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "ERROR",
    "LIMIT",
    "beside_dots",
    "beside_limit",
    "draw_small_widths",
    "errors",
    "sizes",
    "table_of",
    "unconverged",
]


ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/d$"
LIMIT: dict[str, Any] = {"color": INK, "ls": "--", "lw": 1.0}  # a limit or another line of theory
ROWS = 256  # a call has a multiple of these, so that tables of any length share a program


def errors(tokens: int, widths: Sequence[float], output: str, alphas: ArrayLike) -> np.ndarray:
    """Bayes-optimal error (widths, α); `alphas` (α,) or (widths, α)."""
    count = np.shape(alphas)[-1]
    grid = np.broadcast_to(np.asarray(alphas, float), (len(widths), count))
    grid = np.pad(grid, ((0, 0), (0, -count % ROWS)), mode="edge")
    return np.asarray(_solver(tokens, output)(jnp.asarray(widths, float), grid))[:, :count]


@functools.lru_cache(maxsize=8)
def _solver(tokens: int, output: str) -> Callable[[Array, ArrayLike], Array]:
    """Errors (widths, α) of widths and grids of them, compiled once for a shape."""

    def one(width: Array, alpha: Array) -> Array:
        return state_evolution(AttentionIndexed(tokens, width, output), alpha).error

    return jax.jit(jax.vmap(jax.vmap(one, (None, 0))))


def sizes(full: bool, dimension: int = 100) -> tuple[int, int]:
    """Dimension and seeds of runs of message passing."""
    return (dimension, 16) if full else (40, 3)


def table_of(reference: Folder, name: str) -> dict[str, np.ndarray] | None:
    """Columns alpha = n/d², mmse = ‖Ŝ - S‖²/d and others of a published table, or None."""
    return published(reference, "aim", f"{name}.csv")


def unconverged(width: float, alphas: np.ndarray, error: np.ndarray, step: float) -> np.ndarray:
    """How far an undamped iteration of V is from the softmax error V of two tokens when its steps
    are as short as `step`: step/(1 - J), J = -q̂ V'(q̂)/V the slope at the end.

    NaN where V = 0: it takes for ever there.
    """
    below = error > 0.0
    model = AttentionIndexed(2, width)
    V = jnp.asarray(np.where(below, error, 1.0))
    precision = jnp.asarray(alphas) * model.explicit_readout.information(model.prior.norm - V, V)
    slope = -jax.vmap(jax.grad(model.prior.mmse))(precision) * precision / V
    return np.where(below, step / (1.0 - np.asarray(slope)), np.nan)


def beside_dots(
    reference: Folder, ax: Axes, name: str, tokens: int, width: float, output: str, scale: float
) -> list[Comparison]:
    """Our errors at the α of published message passing, which is drawn against `scale` α."""
    table = table_of(reference, name)
    if table is None:
        return []
    alphas = table["alpha"]
    overlay(ax, scale * alphas, table["mmse"], table["mmse_std"])
    ours = errors(tokens, (width,), output, alphas)[0]
    remark = "published message passing; tolerance: three of its standard deviations and 0.01"
    if output == "hardmax":
        remark += "; it has a wrong derivative [print, section 1.8]"
    allowed = 3.0 * table["mmse_std"] + 0.01
    what = f"theory, T = {tokens}, ρ = {width:g}"
    return [compare(what, ours, table["mmse"], allowed, remark)]


def draw_small_widths(
    ax: Axes, model: AttentionIndexed, x: np.ndarray, widths: Sequence[float], theory: np.ndarray
) -> np.ndarray:
    """Errors (widths, x) against x = n/(dr), the limit ρ → 0 and its threshold.

    Returns the limit.
    """
    for tint, width, error in zip(shades(len(widths)), widths, theory, strict=True):
        ax.plot(x, error, color=tint, label=rf"$\rho = {width:g}$")
    limit = np.asarray(model.small_width_error(x))
    ax.plot(x, limit, label=r"$\rho \to 0$", **LIMIT)
    begins = float(model.small_width_threshold)
    ax.axvline(begins, color=INK, ls=":", lw=0.9, label=r"learning starts, $\rho \to 0$")
    ax.set_xlabel(r"sample complexity $\bar\alpha = n/(dr)$")
    legend_above(ax, 3)
    return limit


def beside_limit(error: np.ndarray, limit: np.ndarray, width: float) -> Comparison:
    """The error of the smallest width beside its limit."""
    remark = "tolerance: 3 ρ^(2/3), the order of the first correction at the transition"
    what = f"width {width:g} against the limit ρ → 0"
    return compare(what, error, limit, 3.0 * width ** (2 / 3), remark, "theory")
