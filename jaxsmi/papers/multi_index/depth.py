"""Figure 4: thresholds against depth, and the exchange of hidden layers.

Source: [theory: deep-attention, section 7].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from tqdm import tqdm

from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.papers.common import DOTS, Comparison, Drawn, Folder, axes_row, compare
from jaxsmi.papers.multi_index.two_layers import KEY
from jaxsmi.thresholds.recovery import recovery_threshold
from jaxsmi.thresholds.weak import weak_recovery
from jaxsmi.workbench.plotting import colour, legend, legend_above, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["depth", "swapped"]


def swapped(layers: int, skip: float, samples: int, key: PRNGKeyArray) -> np.ndarray:
    """Change of labels by an exchange of two hidden layers, over that when both are drawn anew.

    E‖y - y'‖² for each, and their ratio (2,): for neighbours, and for the first and the last hidden
    layer.
    """
    model = DeepAttention(layers, 2, skip=skip)
    # as if layers were x_ℓ = x_{ℓ-1} (I + S/c): tokens of order one
    scale = skip ** -jnp.arange(float(layers))[:, None]
    link = jax.vmap(lambda z: model.link(scale * z))
    first, second = jax.random.normal(key, (2, samples, layers, 2))
    labels = link(first)
    ratios = []
    for a, b in ((0, 1), (0, layers - 2)):
        exchanged = link(first.at[:, (a, b)].set(first[:, (b, a)]))
        anew = link(first.at[:, (a, b)].set(second[:, (a, b)]))
        change = jnp.mean((labels - exchanged) ** 2)
        ratios.append(float(change / jnp.mean((labels - anew) ** 2)))
    return np.array(ratios)


def depth(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 4: thresholds against depth, and how far hidden layers are interchangeable."""
    del reference  # none is published
    figure, (left, right) = axes_row(2)
    depths = (1, 2, 3, 4) if full else (1, 2, 3)
    arrays = {"depths": np.array(depths)}
    arrays |= _thresholds(depths, full, progress)
    _draw_thresholds(left, depths, arrays)
    many = np.array([3, 4, 6, 8, 12, 16, 24, 32] if full else [3, 4, 6, 8, 12, 16])
    arrays |= {"many": many} | _exchanges(right, many, 2**16 if full else 2**13)
    fixed = arrays["swapped_fixed"]
    grown = arrays["swapped_growing"]
    compared = _same_thresholds(arrays["weak"], arrays["weak_stderr"])
    what = "change when hidden neighbours are swapped, layers I + S/L"
    compared.append(_slope(what, many, grown[:, 0]))
    caption = (
        "Left: from which α on the last of L layers is learned (two standard errors) and where "
        "recovery becomes perfect. Right: "
        "how much labels change when two hidden layers are swapped, over how much they change when "
        "both are drawn anew: the "
        "article's limit of interchangeable hidden layers wants this to vanish. If each layer adds "
        "1/L of its attention, an "
        f"assumption made here, it does for neighbours ({grown[0, 0]:.2g} to {grown[-1, 0]:.2g}) "
        "and stays small for the first "
        f"and the last ({grown[-1, 1]:.2g}); for layers I + S, as in figure 1, not "
        f"({fixed[-1, 0]:.2g}, {fixed[-1, 1]:.2g}). "
        "State evolution itself is not solved beyond three layers."
    )
    return Drawn(figure, arrays, caption, compared)


def _thresholds(depths: Sequence[int], full: bool, progress: bool) -> dict[str, np.ndarray]:
    """Weak recovery of each depth with its standard error, and perfect recovery."""
    settings: dict[str, Any] = {} if full else {"tolerance": 0.1, "max_nodes": 2**12}
    weak = []
    for layers in tqdm(depths, desc="depth", disable=not progress, leave=False):
        samples = 2**14 if full else 2 ** (14 - 2 * (layers - 1))
        model = DeepAttention(layers, 2, **settings)
        weak.append(weak_recovery(model, key=jax.random.key(KEY), samples=samples))
    perfect = [float(recovery_threshold(DeepAttention(layers, 2)).alpha) for layers in depths]
    return {
        "weak": np.array([float(one.alpha) for one in weak]),
        "weak_stderr": np.array([float(one.stderr) for one in weak]),
        "perfect": np.array(perfect),
    }


def _draw_thresholds(ax: Axes, depths: Sequence[int], arrays: dict[str, np.ndarray]) -> None:
    """Both thresholds against depth."""
    style: dict[str, Any] = DOTS | {"color": colour(0)}
    error = 2.0 * arrays["weak_stderr"]
    ax.errorbar(depths, arrays["weak"], error, label="last layer is learned", **style)
    style: dict[str, Any] = {"mfc": "none", "color": colour(1), "lw": 0.8}
    ax.plot(depths, arrays["perfect"], "s--", label="perfect recovery, $L/2$", **style)
    ax.set_xticks(depths)
    ax.set_xlabel("layers $L$")
    ax.set_ylabel(r"critical sample complexity $\alpha_c$")
    ax.set_ylim(bottom=0.0)
    legend(ax)


def _exchanges(ax: Axes, many: np.ndarray, samples: int) -> dict[str, np.ndarray]:
    """Exchanges of hidden layers against depth, for two laws of the skip strength, drawn."""
    laws: tuple[tuple[str, str, Callable[[int], float]], ...] = (
        ("fixed", "I + S", lambda layers: 1.0),
        ("growing", "I + S/L", float),
    )
    arrays: dict[str, np.ndarray] = {}
    for k, (name, layer, skip) in enumerate(laws):
        key = jax.random.key(KEY)
        ratios = np.array([swapped(int(L), skip(int(L)), samples, key) for L in many])
        arrays[f"swapped_{name}"] = ratios
        for pair, which in ((0, "neighbours"), (1, "first and last")):
            style: dict[str, Any] = line(pair) | {"marker": "os"[k], "mfc": "none"}
            ax.loglog(many, ratios[:, pair], color=colour(k), label=f"{layer}, {which}", **style)
    ax.set_xticks(many, [str(L) for L in many])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("layers $L$")
    ax.set_ylabel("change by a swap over drawing anew")
    legend_above(ax, 2)
    return arrays


def _same_thresholds(alpha: np.ndarray, stderr: np.ndarray) -> list[Comparison]:
    """Weak recovery of one to three layers beside independent values."""
    remark = "tolerance: three standard errors of both"
    known = (
        (1.0 / 6.0, 1e-6, "1/(M (M + 1))"),
        (0.186, 0.002, "independent quadrature"),
        (0.206, 0.006, "independent quadrature"),
    )
    compared = []
    for k, (value, error, source) in enumerate(known):
        allowed = 3.0 * np.hypot(stderr[k], error)
        what = f"the last of {k + 1} layers is learned at"
        compared.append(compare(what, alpha[k], value, allowed, remark, source))
    return compared


def _slope(what: str, x: np.ndarray, y: np.ndarray) -> Comparison:
    """Exponent of a power law beside -2, that of commutators of two layers in L."""
    exponent = float(np.polyfit(np.log(x[len(x) // 2 :]), np.log(y[len(x) // 2 :]), 1)[0])
    remark = "exponent in L; commutators of A/L and B/L fall as 1/L²; tolerance: 0.5 at these L"
    return compare(what, exponent, -2.0, 0.5, remark, "theory")
