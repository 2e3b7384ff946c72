"""Figures 12 and 13: the semantic/positional problem at d = 100, and its misaligned phase.

Source: [ALSKZ25, appendix F.2; theory: online-sgd, sections 6 and 9].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi import sgd
from jaxsmi.core.programs import program
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.papers.common import DOTS, Comparison, Drawn, Folder, axes_row, compare
from jaxsmi.papers.sequence_single_index.landscapes import draw_landscape, surface
from jaxsmi.papers.sequence_single_index.runs import DENSE, crossing, draw_runs, semantic
from jaxsmi.sgd.population import gradient
from jaxsmi.workbench.plotting import colour, legend, line
from jaxsmi.workbench.plotting.palette import GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["misaligned_runs", "small_dimension"]

# ω: share of semantic runs, unsquared loss, [theory: online-sgd, Table 8].
_HUNDRED = {0.5: 1.0, 0.6: 0.85, 0.64: 0.44, 0.7: 0.09, 0.8: 0.0}
_THOUSAND = {0.5: 1.0, 0.56: 0.98, 0.6: 0.89, 0.61: 0.8, 0.62: 0.5, 0.64: 0.36}
_THOUSAND |= {0.66: 0.22, 0.68: 0.08, 0.72: 0.02}
_TRANSITION = 0.6277  # of the unsquared loss, [theory: online-sgd, Table 4]
_OVERLAPS = ("semantic $|m|$", "positional $|e|$")
_YELLOW = (0.95, 0.76)  # ω and a of the article's yellow point
_RISKS = {  # at a = 0.76, ω = 0.95, [theory: online-sgd, Table 3]
    (0.0, 0.0): 0.0979971777300,
    (1.0, 0.0): 0.0905623529170,
    (0.0, 1.0): 0.0948970119483,
    (0.6, 0.5): 0.0945985812170,
}


def _binomial(share: np.ndarray, runs: int) -> np.ndarray:
    """Standard error of a share of runs; where all agree, that of one more, which does not."""
    return np.maximum(np.sqrt(share * (1.0 - share) / runs), np.sqrt(runs) / (runs + 1) ** 1.5)


def small_dimension(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 12: figure 5 at d = 100, where the transition is smoother."""
    del reference  # none is published
    figure, (plane, shares) = axes_row(2)
    arrays = draw_runs(plane, 100, 101 if full else 61, progress)
    omegas = np.array(DENSE if full else (0.5, 0.56, 0.6, 0.62, 0.64, 0.66, 0.7, 0.8))
    count = 128 if full else 64
    problems = [sgd.semantic_positional(omega, 1.0, 1.0, "frobenius") for omega in omegas]
    P, error, stopped = semantic(problems, count, 100, 0.05, 300_000, progress)
    arrays |= {"omega": omegas, "P": P, "se": error, "converged": stopped}
    style: dict[str, Any] = DOTS | {"ls": "-", "lw": 0.8, "color": colour(0)}
    shares.errorbar(omegas, P, error, label="$d = 100$", **style)
    independent = {"ls": "none", "color": GREY, "ms": 6.5, "mfc": "none"}
    for marker, d, table in (("s", 100, _HUNDRED), ("d", 1000, _THOUSAND)):
        label = f"$d = {d}$, independent"
        shares.plot(list(table), list(table.values()), marker, label=label, **independent)
    shares.axvline(_TRANSITION, color=INK, ls=":", lw=0.9, label=f"transition, {_TRANSITION}")
    shares.axhline(0.5, color=INK, lw=0.4)
    shares.set_xlabel(r"weight of the positional part $\omega$")
    shares.set_ylabel("probability of the semantic minimum")
    legend(shares)
    caption = (
        "Left: 16 runs of SGD (squared loss, γ = 1/2) on the risk of ω = 0.67 at d = 100, folded "
        "into one quadrant; white: semantic, dashed orange: positional. Right: "
        f"{count} runs each with the unsquared loss and γ = 0.05 of the published configuration, "
        "from the origin until ‖(m, e)‖² > 0.8; standard errors are binomial. The transition is "
        "smoother than at d = 1000. Grey: shares of an independent computation. The article "
        "averages over 25 runs."
    )
    return Drawn(figure, arrays, caption, _compared_shares(omegas, P, count))


def _compared_shares(omegas: np.ndarray, P: np.ndarray, count: int) -> list[Comparison]:
    """Shares beside those of an independent computation, and the middle of the transition."""
    which = [int(np.argmin(np.abs(omegas - omega))) for omega in _HUNDRED]
    known = np.array(list(_HUNDRED.values()))
    present = np.abs(omegas[which] - np.array(list(_HUNDRED))) < 1e-9
    ours = np.where(present, P[which], np.nan)
    allowed = 3.0 * np.hypot(_binomial(P[which], count), _binomial(known, 128))
    remark = f"tolerance: three standard errors of {count} runs here and 128 there"
    what = "share of semantic runs, d = 100"
    compared = [compare(what, ours, known, allowed, remark, "an independent computation")]
    remark = f"interpolated; tolerance: 0.03, of {count} runs, the grid, and d = 100"
    middle = crossing(omegas, P - 0.5)
    return [*compared, compare("ω at probability 1/2", middle, 0.64, 0.03, remark, "the article")]


def misaligned_runs(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 13: SGD in the misaligned phase, first towards the positional corner, then away."""
    del reference  # none is published
    figure, (plane, paths) = axes_row(2)
    model = sgd.semantic_positional(*_YELLOW)
    axis, R = surface(model, 101 if full else 61)
    draw_landscape(plane, axis, R, r"$\omega = 0.95$, $a = 0.76$")
    plane.set_xlim(-0.1, 1.05)
    plane.set_ylim(-0.1, 1.05)
    trained = sgd.semantic_positional(*_YELLOW, 1.0, "frobenius") if full else model
    dimension = 1000 if full else 100
    steps = 10**8 if full else 6 * 10**6
    runs = sgd.simulate(
        trained,
        jax.random.split(jax.random.key(13), 20 if full else 4),
        dimension=dimension,
        gamma=0.05,
        steps=steps,
        m=0.0,
        until=0.95,
        every=steps // 1000,
        progress=progress,
    )
    end = np.asarray(runs.end)
    m = np.asarray(runs.m) * np.sign(end[:, :1])
    e = np.asarray(runs.e)[..., 0] * np.sign(end[:, 1:])
    times = np.asarray(runs.time)
    for x, y in zip(m, e, strict=True):
        plane.plot(x, y, lw=0.5, color="w", alpha=0.8)
        for k, overlap in enumerate((x, y)):
            paths.plot(times, np.abs(overlap), lw=0.5, color=colour(k))
    arrays = {"m": axis, "e": axis, "R": R, "time": times, "run_m": m, "run_e": e, "end": end}
    if full:
        longest = float(np.max(np.asarray(runs.steps))) * 0.05 / dimension
        arrays |= _draw_flow(plane, paths, model, longest)
    runs_of = {name: {"color": colour(k), "lw": 0.5} for k, name in enumerate(_OVERLAPS)}
    paths.set_xlabel(r"time $t = \gamma\tau/d$")
    paths.set_ylabel("overlap of a run")
    legend(paths, runs_of)
    legend(
        plane,
        {"single runs": {"color": "w", "lw": 0.5}},
        labelcolor="w",
        facecolor="0.35",
        loc="upper right",
    )
    thick = "Thick: the flow of order two of the squared loss. "
    caption = (
        f"White: SGD with the {'un' if full else ''}squared loss from the origin, d = {dimension}, "
        "γ = 0.05, until ‖(m, e)‖ > 0.95, folded into one quadrant. "
        f"{thick if full else ''}The positional direction is the steepest at the origin; "
        "on the e axis the risk has a saddle that is nearly flat along m, and runs stay "
        "there for long before they turn to the semantic minimum, the only one. The article trains "
        "with the unsquared loss at d = 1000 for 10^8 steps."
    )
    return Drawn(figure, arrays, caption, _compared_yellow(model, runs.semantic))


def _draw_flow(
    plane: Axes, paths: Axes, model: SequenceSingleIndex, longest: float
) -> dict[str, np.ndarray]:
    """The flow of order two from (0.01, 0.03), which takes most of a minute."""
    times = np.linspace(0.0, longest, 400)[1:]
    flow = np.asarray(sgd.flow(model, 0.01, 0.03, times=times, gamma=0.05, rtol=1e-4).overlaps)
    plane.plot(flow[:, 0], flow[:, 1], color=INK, lw=1.6, label="flow")
    for k, name in enumerate(_OVERLAPS):
        label = f"{name}, flow"
        paths.plot(times, np.abs(flow[:, k]), color=colour(k), label=label, **line(k))
    return {"flow_time": times, "flow_m": flow[:, 0], "flow_e": flow[:, 1]}


@program
def _slopes(model: SequenceSingleIndex, e: Array) -> Array:
    """∂R/∂e along m = 0."""
    return lax.map(lambda e: gradient(model, jnp.stack([jnp.zeros_like(e), e]))[1], e)


def _compared_yellow(model: SequenceSingleIndex, semantic: jax.Array) -> list[Comparison]:
    """The saddle on the e axis, risks, the phase, and where the runs ended."""
    axis = np.linspace(0.8, 0.95, 61)
    saddle = crossing(axis, np.asarray(_slopes(model, jnp.asarray(axis))))
    curvature = float(sgd.hessian(model, 0.0, saddle)[0, 0])
    height = float(sgd.risk(model, 0.0, saddle).value)
    independent = "an independent computation"
    digits = "tolerance: half of the last digit given there"
    also = f"{digits}, and what half of that of e changes"
    risks = np.array([float(sgd.risk(model, m, e).value) for m, e in _RISKS])
    known = np.array(list(_RISKS.values()))
    diagram = sgd.phase_diagram(jnp.asarray([_YELLOW[1]]), jnp.asarray([_YELLOW[0]]))
    label = float(diagram.label[0, 0])
    return [
        compare("e of the saddle", saddle, 0.8756, 5e-5, digits, independent),
        compare("risk of the saddle", height, 0.0946897, 5e-8, digits, independent),
        compare("R_mm at the saddle", curvature, -0.00229, 6e-6, also, independent),
        compare("risks at a = 0.76, ω = 0.95", risks, known, 1e-12, digits, independent),
        compare("phase: unique semantic, misaligned", label, 2.0, 0.5, "its label", "the article"),
        compare(
            "share of runs that end semantic",
            float(np.mean(np.asarray(semantic))),
            1.0,
            1e-9,
            "all of them",
            "the article",
        ),
    ]
