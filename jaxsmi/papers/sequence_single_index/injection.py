"""Figure 6: targets of odd order, and an encoding that lets attention see them.

Equations here [ALSKZ25, appendix D; theory: online-sgd, Eqs. (9), (19), (23)]. F of attention is
even; G(z) = F(z + c) is not. Of a target whose Hermite expansion has one level k, the risk is one
power of m,

    R(m) = R(0) - 2c m^k Σ_{|n|=k} ⟨ĝ_n, Ĝ_n⟩
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi import sgd
from jaxsmi.core.programs import program
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.papers.common import DOTS, Comparison, Drawn, Folder, axes_row, compare
from jaxsmi.papers.sequence_single_index.students import Injected
from jaxsmi.sgd.population import risk_at
from jaxsmi.workbench.plotting import colour, legend, line
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["injection_shows_odd_targets"]

SHIFT = (1.0, 1.0)  # c; (1, -1) would not do: tokens then have opposite signs, which cancel
TARGETS = {1: {(1, 0): 1.0, (0, 1): 1.0}, 3: {(3, 0): 1.0, (0, 3): 1.0}}


def injection_shows_odd_targets(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Figure 6: odd targets, which attention sees only with an injected encoding."""
    del reference  # none is published
    figure, axes = axes_row(3)
    plain = sgd.Attention(trace_norm="none")
    injected = Injected(plain, jnp.asarray(SHIFT))
    m = np.linspace(-1.0, 1.0, 101 if full else 41)
    arrays = {"m": m, "c": np.array(SHIFT)}
    compared = []
    for ax, (order, terms) in zip(axes, TARGETS.items(), strict=False):
        target = sgd.HermiteSeries(terms)
        models = [SequenceSingleIndex(target, 2, student) for student in (plain, injected)]
        risks = [_risks(model, m) for model in models]
        flat = sgd.flatness(models[1])
        coefficient = sgd.taylor(models[1], order)[order,]
        arrays |= {f"R_plain_{order}": risks[0], f"R_injected_{order}": risks[1]}
        arrays |= {f"coefficient_{order}": np.array(coefficient)}
        compared += _compared(order, m, risks, coefficient, flat.order)
        for k, (risk, name) in enumerate(zip(risks, ("no encoding", "injected"), strict=True)):
            ax.plot(m, risk, label=name, color=colour(k), **line(k))
        ax.set_title(rf"$He_{order}$: $\kappa = {flat.order:g}$ if injected")
        ax.set_xlabel("overlap $m$")
        ax.set_ylabel("risk $R(m)$")
        legend(ax)
    runs, comparison = _draw_runs(axes[2], 1000 if full else 200, 32 if full else 16, progress)
    caption = (
        "Risk (c = 1/2) of attention with the trace against m, two tokens: flat without encoding, "
        "because attention is even and the targets are odd; with the encoding of the article's "
        "appendix D, injected along the student's weights so that fields z become z + c, a slope "
        "and a cubic. Right: SGD of the injected student (dots, standard errors) beside the flow. "
        "c = (1, 1) and the form z + c are reconstructed, the panel on the right is not in the "
        "article. The article draws each risk in a panel of its own."
    )
    return Drawn(figure, arrays | runs, caption, [*compared, comparison])


@program
def _table(model: SequenceSingleIndex, m: Array) -> Array:
    return lax.map(lambda x: risk_at(model, x[None]).value, m)


def _risks(model: SequenceSingleIndex, m: np.ndarray) -> np.ndarray:
    """R at overlaps m without positional ones."""
    return np.asarray(_table(model, jnp.asarray(m)))


def _compared(
    order: int, m: np.ndarray, risks: list[np.ndarray], coefficient: float, kappa: float
) -> list[Comparison]:
    """What is exact: no slope without encoding, one power of m with it, κ the exponent."""
    plain, injected = risks
    middle = len(m) // 2
    grid = "tolerance: rounding of the integrals on the grid"
    exact = "Hermite coefficients"
    power = injected[middle] + coefficient * m**order
    name = f"He{order}"
    return [
        compare(f"R(m), {name}, no encoding", plain, plain[middle] + 0 * m, 1e-10, grid, "R(0)"),
        compare(f"R(m), {name}, injected", injected, power, 1e-9, grid, exact),
        compare(f"κ, {name}, injected", kappa, order, 0.5, "whole numbers", "the article"),
    ]


def _draw_runs(
    ax: Axes, dimension: int, count: int, progress: bool
) -> tuple[dict[str, np.ndarray], Comparison]:
    """SGD of the injected student on the target of order one, beside the flow of order two."""
    gamma = 0.5
    student = Injected(sgd.Attention(trace_norm="none"), jnp.asarray(SHIFT))
    model = SequenceSingleIndex(sgd.HermiteSeries(TARGETS[1]), 2, student)
    start = -1.0 / np.sqrt(dimension)  # the side to which the risk falls
    runs = sgd.simulate(
        model,
        jax.random.split(jax.random.key(0), count),
        dimension=dimension,
        gamma=gamma,
        steps=int(12 * dimension / gamma),
        m=start,
        every=int(dimension / gamma),
        progress=progress,
    )
    times = np.asarray(runs.time)
    flow = np.asarray(sgd.flow(model, start, times=times, gamma=gamma, rtol=1e-5).m)
    paths = np.asarray(runs.m)
    mean = np.mean(paths, axis=0)
    error = np.std(paths, axis=0, ddof=1) / np.sqrt(count)
    ax.errorbar(times, mean, error, color=colour(1), label=f"mean of {count} runs", **DOTS)
    ax.plot(times, flow, color=INK, lw=1.2, label="flow")
    ax.set_title(rf"$He_1$, SGD: $d = {dimension}$, $\gamma = {gamma:g}$")
    ax.set_xlabel(r"time $t = \gamma\tau/d$")
    ax.set_ylabel("overlap $m$")
    legend(ax)
    remark = f"tolerance: three standard errors of {count} runs, and 5/d for finite size"
    what = "SGD of the injected student, He1"
    allowed = 3.0 * error + 5.0 / dimension
    arrays = {"time": times, "m_mean": mean, "m_stderr": error, "m_flow": flow}
    return arrays, compare(what, mean, flow, allowed, remark, "the flow")
