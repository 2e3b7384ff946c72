"""Figure 10: softmax attention beside networks with squared activation.

Equations here [ALSKZ25, appendix E.3; theory: online-sgd, Eqs. (16), (24), (26)]. Target g =
Σ_l h_2(z_l)/√L, c = 1; near the origin an overlap grows as exp(λ t) with

    λ = -R_mm(0) - (γ/2) V(0)                       softmax attention, the trace over √L
    -R_mm(0) = 4 √2/√L                              linear attention, a tied network of x²
    -∂²R/∂m_l² = 4 √2/L^{3/2}, and V/L              the untied network of x²
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi import sgd
from jaxsmi.models.sequence_single_index import HermiteSeries, SequenceSingleIndex
from jaxsmi.papers.common import DOTS, Comparison, Drawn, Folder, axes_row, compare
from jaxsmi.workbench.plotting import colour, legend_above
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["attention_beside_squares", "mean_of_squares"]

STUDENTS: dict[str, Callable[[Array], Array]] = {
    "softmax attention": sgd.Attention(),
    "tied, x² (linear attention)": sgd.Network(jnp.square),
    "untied, x²": sgd.Network(jnp.square, tied=False),
}
_MARKERS = "os^Dv"


class Setting(NamedTuple):
    """Sizes of the runs.

    Attributes:
        dimension: d.
        gamma: Learning rate γ, of all students.
        lengths: Numbers of tokens.
        shown: Those whose paths are drawn.
        runs: How many of each student at each length.
        eta: The level of weak recovery.
    """

    dimension: int
    gamma: float
    lengths: tuple[int, ...]
    shown: tuple[int, ...]
    runs: int
    eta: float = 0.2

    @property
    def m(self) -> float:
        """The overlap at the start, [theory: online-sgd, Eq. (49)]."""
        o = 1.0 / np.sqrt(self.dimension)
        return float(o / np.sqrt((1 - o) ** 2 + o**2))


def mean_of_squares(length: int) -> HermiteSeries:
    """g = Σ_l h_2(z_l)/√L.

    Source: [ALSKZ25, appendix E.3].
    """
    terms = {tuple(2 * (i == l) for i in range(length)): length**-0.5 for l in range(length)}
    return HermiteSeries(terms, normalised=True)


def attention_beside_squares(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Figure 10: softmax attention, linear attention, and an untied network of squares."""
    del reference  # none is published
    if full:
        setting = Setting(1000, 5e-4, (3, 4, 5, 6, 7, 8, 9), (3, 6, 9), 10)
    else:
        setting = Setting(200, 2e-3, (2, 4, 8), (2, 8), 8)
    figure, (paths, times) = axes_row(2)
    shape = (len(STUDENTS), len(setting.lengths))
    table = {name: np.full(shape, np.nan) for name in ("curvature", "rate", "steps", "steps_se")}
    arrays = {"lengths": np.array(setting.lengths)}
    for k, length in enumerate(setting.lengths):
        for row, student in enumerate(STUDENTS.values()):
            model = SequenceSingleIndex(mean_of_squares(length), length, student, loss_factor=1.0)
            table["curvature"][row, k], table["rate"][row, k] = _growth(model, setting.gamma)
            step, size, reached = _runs(
                model, setting, table["curvature"][row, k], table["rate"][row, k], progress
            )
            table["steps"][row, k] = np.mean(reached)
            table["steps_se"][row, k] = np.std(reached, ddof=1) / np.sqrt(len(reached))
            if length in setting.shown:
                _draw_path(paths, setting, length, row, step, size)
                arrays |= {f"steps_{row}_{length}": step, f"m_{row}_{length}": size}
    _finish(paths, times, setting, table)
    caption = (
        f"g = Σ h_2(z_l)/√L, d = {setting.dimension}, γ = {setting.gamma:g} for all students, η = "
        "0.2. Dots: means over runs of SGD; lines: linear growth at the origin. The article's "
        "caption says ReLU, its text a tied network with squared activation, the published "
        "configuration an untied one; all of them are here. What the article says, that softmax "
        "attention is the faster from some length on, holds beside the untied network (from L = "
        "6), not beside the tied one. The target's factor 1/√L is that of the configuration."
    )
    return Drawn(figure, arrays | table, caption, _compared(setting, table))


def _growth(model: SequenceSingleIndex, gamma: float) -> tuple[float, float]:
    """-R_mm at the origin (of one row), and the rate λ of growth."""
    key = None if model.length <= 2 else jax.random.key(0)
    curvature = -float(sgd.hessian(model, key=key, samples=2**13)[0, 0])
    V = float(sgd.gradient_noise(model, key=key, samples=2**12).value) / (
        1 if model.tied else model.length
    )
    return curvature, curvature - 0.5 * gamma * V


def _runs(
    model: SequenceSingleIndex, setting: Setting, curvature: float, rate: float, progress: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps of the records, mean ‖m‖ (over √L if untied), and steps to recovery of each run.

    Runs get 1.3 times what linear growth takes, and four standard deviations of the time, whose
    noise adds to m_0 = 1/√d while m is small: √(γV/2λ)/ln(η/m_0).
    """
    growth = np.log(setting.eta / setting.m)
    patience = 1.3 + 4.0 * np.sqrt((curvature - rate) / rate) / growth
    steps = int(patience * growth / rate * setting.dimension / setting.gamma)
    runs = sgd.simulate(
        model,
        jax.random.split(jax.random.key(10), setting.runs),
        dimension=setting.dimension,
        gamma=setting.gamma,
        steps=steps,
        m=setting.m,
        eta=setting.eta,
        progress=progress,
    )
    size = np.abs(np.asarray(runs.m))
    size = size if model.tied else np.linalg.norm(size, axis=-1) / np.sqrt(model.length)
    return np.asarray(runs.step), np.mean(size, axis=0), np.asarray(runs.reached)


def _draw_path(
    ax: Axes, setting: Setting, length: int, row: int, step: np.ndarray, size: np.ndarray
) -> None:
    """The mean path of one student at one length."""
    marker = _MARKERS[setting.shown.index(length)]
    name = list(STUDENTS)[row].split(" (")[0]
    style: dict[str, Any] = {"color": colour(row), "mfc": "none", "lw": 0.6}
    ax.plot(step[::4], size[::4], marker=marker, label=f"{name}, $L = {length}$", **style)


def _finish(paths: Axes, times: Axes, setting: Setting, table: dict[str, np.ndarray]) -> None:
    """Axes, levels and the panel of the recovery times."""
    paths.axhline(setting.eta, color=INK, lw=0.8, ls=":", label=rf"level $\eta = {setting.eta:g}$")
    paths.set_xscale("log")
    paths.set_xlabel("steps")
    paths.set_ylabel(r"overlap $\|m\|$, untied over $\sqrt{L}$")
    legend_above(paths, 2)
    scale = np.log(setting.eta / setting.m) * setting.dimension / setting.gamma
    for row, name in enumerate(STUDENTS):
        style: dict[str, Any] = DOTS | {"marker": _MARKERS[row], "color": colour(row)}
        mean, error = (table[key][row] for key in ("steps", "steps_se"))
        times.errorbar(setting.lengths, mean, error, label=name, **style)
        times.plot(setting.lengths, scale / table["rate"][row], color=colour(row), lw=0.9)
    times.set_yscale("log")
    times.set_xlabel("tokens $L$")
    times.set_ylabel(rf"steps to $\eta = {setting.eta:g}$")
    legend_above(times, 2, {"linear growth": {"lw": 0.9}})


def _compared(setting: Setting, table: dict[str, np.ndarray]) -> list[Comparison]:
    """Curvatures of the networks, and times of SGD beside linear growth."""
    L = np.array(setting.lengths, float)
    exact = "4√2/√L, untied over L"
    remark = "tolerance: rounding"
    curves = 4.0 * np.sqrt(2.0) * np.array([L**-0.5, L**-1.5])
    compared = [
        compare(
            "curvature at the origin, tied and untied x²",
            table["curvature"][1:],
            curves,
            1e-9,
            remark,
            exact,
        )
    ]
    linear = np.log(setting.eta / setting.m) / table["rate"] * setting.dimension / setting.gamma
    remark = (
        "tolerance: three standard errors, and 10%: m² at η is 4% of one, and noise at the start "
        "of size 1/√d adds to m_0 = 1/√d"
    )
    for row, name in enumerate(STUDENTS):
        allowed = 3.0 * table["steps_se"][row] + 0.1 * linear[row]
        what = f"steps to recovery, {name}"
        compared.append(
            compare(what, table["steps"][row], linear[row], allowed, remark, "linear growth")
        )
    order = np.sign(table["steps"][0] - table["steps"][2])[[0, -1]]
    what = "softmax slower than untied x² at the shortest length, faster at the longest"
    remark = "signs of the difference in steps"
    compared.append(compare(what, order, np.array([1.0, -1.0]), 0.5, remark, "the article"))
    return compared
