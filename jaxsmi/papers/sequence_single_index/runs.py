"""Figures 3 to 5: gain of tied networks, phases, runs of SGD.

Source: [theory: online-sgd, section 9].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxsmi import sgd
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.papers.common import DOTS, Drawn, Folder, axes_row, compare
from jaxsmi.papers.sequence_single_index.landscapes import draw_landscape, surface
from jaxsmi.sgd.diagram import BOUNDARIES
from jaxsmi.sgd.tying import SCHEDULES, sum_of_squares
from jaxsmi.workbench import plotting
from jaxsmi.workbench.plotting import colour, legend
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "DENSE",
    "TO_MEANING",
    "convergence",
    "crossing",
    "draw_runs",
    "phases",
    "semantic",
    "tying",
]

TO_MEANING: dict[str, Any] = {"color": "w", "lw": 0.7}  # of a run on the map of the risk
TO_POSITION: dict[str, Any] = {"color": colour(4), "lw": 0.9, "ls": "--"}
_SHOWN = (0.76, 0.95)  # a and ω of figure 13, misaligned dynamics
DENSE = (  # ω of figure 5
    0.0,
    0.1,
    0.2,
    0.3,
    0.4,
    *np.arange(0.42, 0.58, 0.02),
    *np.arange(0.58, 0.705, 0.01),
    *np.arange(0.72, 1.005, 0.02),
)


def tying(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 3: steps of untied over tied networks."""
    del reference  # none is published
    figure, (left, right) = axes_row(2)
    lengths = (1, 2, 3, 4, 6, 8, 10) if full else (1, 2, 4)
    dimension = 1000 if full else 200
    gamma = 0.002 if full else 0.01
    arrays = {"lengths": np.array(lengths)}
    compared = []
    for k, (schedule, law) in enumerate((("equal", 1), ("linear", 2))):
        gain = sgd.gain(
            jax.random.key(0),
            lengths,
            schedule=schedule,
            progress=progress,
            dimension=dimension,
            gamma=gamma,
            runs=(24, 6),
        )
        arrays |= {f"gain_{schedule}": gain.gain, f"gain_se_{schedule}": gain.stderr}
        arrays[f"exponent_{schedule}"] = np.array([gain.exponent, gain.exponent_stderr])
        arrays[f"tau_tied_{schedule}"] = np.array(gain.tied)
        arrays[f"tau_untied_{schedule}"] = np.array(gain.untied)
        remark = "tolerance: three standard errors of the fit, and 0.1 for steps that are not small"
        what = f"exponent of the gain, {schedule} rates"
        allowed = 3.0 * gain.exponent_stderr + 0.1
        compared.append(compare(what, gain.exponent, law, allowed, remark, "the article"))
        label = rf"{schedule} rates: $L^{{{gain.exponent:.2f} \pm {gain.exponent_stderr:.2f}}}$"
        style: dict[str, Any] = DOTS | {"marker": "os"[k], "color": colour(k), "label": label}
        left.errorbar(lengths, gain.gain, gain.stderr, **style)
        power: dict[str, Any] = {"color": colour(k), "lw": 0.9, "ls": ("-", "--")[k]}
        label = ("$L$", "$L^2$")[k]
        left.loglog(lengths, np.array(lengths, float) ** law, label=label, **power)
    left.set_xticks(lengths, [str(L) for L in lengths])
    left.set_xticks([], minor=True)
    left.set_xlabel("tokens $L$")
    left.set_ylabel("steps, untied over tied")
    legend(left)
    arrays |= _tied_and_untied(right, lengths[-1], dimension, gamma)
    caption = (
        f"Left: gain for Σ h_2, ReLU, d = {dimension}: L at equal learning rates, L² if γ_tied = L "
        "γ_untied "
        f"is imposed. Right: L = {lengths[-1]}, runs of SGD and the flow of order two."
    )
    return Drawn(figure, arrays, caption, compared)


def _tied_and_untied(ax: Axes, length: int, dimension: int, gamma: float) -> dict[str, np.ndarray]:
    """Runs of SGD of a tied and of an untied network from one overlap, drawn beside the flow."""
    arrays: dict[str, np.ndarray] = {}
    m = 1.0 / np.sqrt(dimension)
    rates = SCHEDULES["equal"](length, gamma)
    for k, (name, tied, rate) in enumerate((("tied", True, rates[0]), ("untied", False, rates[1]))):
        student = sgd.Network(jax.nn.relu, tied)
        model = SequenceSingleIndex(sum_of_squares(length), length, student, loss_factor=1.0)
        time = float(sgd.recovery_time(model, m, gamma=rate, eta=0.6))
        runs = sgd.simulate(
            model,
            jax.random.split(jax.random.key(1), 4),
            dimension=dimension,
            gamma=rate,
            steps=int(1.3 * time * dimension / rate),
            m=m,
            eta=0.9,
        )
        times = np.maximum(np.asarray(runs.time), 1e-9 * np.arange(len(runs.step)))
        flow = sgd.flow(model, m, times=times, gamma=rate)
        norm = 1.0 if tied else np.sqrt(length)
        size = np.asarray(runs.m)
        size = size if tied else np.linalg.norm(size, axis=-1) / norm
        line = np.linalg.norm(np.asarray(flow.overlaps), axis=-1) / norm
        step = np.asarray(runs.step)
        arrays |= {f"steps_{name}": step, f"m_{name}": size, f"flow_{name}": line}
        ax.plot(step, size.T, color=colour(k), lw=0.5, alpha=0.6)
        ax.plot(step, line, color=colour(k), ls=("-", "--")[k], label=f"{name}, flow")
    ax.set_xscale("log")
    ax.set_xlabel("steps")
    ax.set_ylabel(r"overlap $\Vert m\Vert$, untied over $\sqrt{L}$")
    legend(ax, {"single runs": {"lw": 0.5, "alpha": 0.6}})
    return arrays


def crossing(x: np.ndarray, height: np.ndarray) -> float:
    """Where a sampled height first changes its sign, by linear interpolation.

    NaN where it never does.
    """
    change = np.flatnonzero(np.sign(height[1:]) != np.sign(height[:-1]))
    if not change.size:
        return np.nan
    k = change[0]
    return float(x[k] - height[k] * (x[k + 1] - x[k]) / (height[k + 1] - height[k]))


def phases(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 4: semantic and positional minima in the plane (a, ω)."""
    del reference  # none is published
    figure, (ax,) = axes_row()
    figure.set_size_inches(5.6, 2.9)
    cells = 200 if full else 60
    a = np.linspace(0.7, 1.0, cells)
    omega = np.linspace(0.4, 0.999, cells)
    diagram = sgd.phase_diagram(a, omega, progress=progress)
    ax.plot(*_SHOWN, "o", color="w", mec=INK, ls="none", label="figure 13", zorder=3)
    plotting.phases(diagram, a, omega, ax)
    ax.set_ylim(0.4, 1.0)
    arrays = {"a": a, "omega": omega, "label": diagram.label, "hessian": diagram.hessian}
    for name, values in diagram.boundaries.items():
        arrays[f"boundary_{name.replace(' ', '_')}"] = values
    caption = (
        "Minima of the risk and what SGD sets out for. Lines: from which ω the positional corner "
        "is a minimum (dotted), "
        "transition at the origin (full), equal depth (dashed), up to which ω the semantic corner "
        "is a minimum (dash-dotted). "
        "Yellow: misaligned dynamics; circle: figure 13."
    )
    difference = diagram.hessian[..., 1] - diagram.hessian[..., 0]
    transition = diagram.boundaries[BOUNDARIES[1]]
    signs = np.array([crossing(omega, column) for column in difference.T])
    cell = omega[1] - omega[0]
    what = "transition on the grid"
    compared = [
        compare(what, signs, transition, cell, "tolerance: a cell", "the root of the Hessian")
    ]
    end = transition[-1]
    remark = "printed to two digits"
    compared += [compare("transition at a = 1", end, 0.64, 0.005, remark, "the article")]
    return Drawn(figure, arrays, caption, compared)


def convergence(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 5: runs on the landscape, and the probability to end at the semantic minimum."""
    del reference  # none is published
    figure, (left, right) = axes_row(2)
    dimension = 1000 if full else 200
    arrays = draw_runs(left, dimension, 101 if full else 41, progress)
    omegas = np.array(DENSE if full else (0.5, 0.56, 0.6, 0.62, 0.64, 0.66, 0.68, 0.72, 0.78))
    arrays["omega"] = omegas
    count = 64 if full else 48
    losses = [("squared", 0.5, 0.2 if full else 1.0)]  # loss, its factor, learning rate
    losses += [("frobenius", 1.0, 0.05)] if full else []
    compared = []
    for k, (loss, factor, gamma) in enumerate(losses):
        problems = [sgd.semantic_positional(omega, 1.0, factor, loss) for omega in omegas]
        steps = int(2000 * dimension / gamma / factor / 2)
        P, error, stopped = semantic(problems, count, dimension, gamma, steps, progress)
        arrays |= {f"P_{loss}": P, f"se_{loss}": error, f"converged_{loss}": stopped}
        middle = crossing(omegas, P - 0.5)
        remark = (
            f"interpolated; tolerance: 0.03, of {count} runs at a step of the grid and of "
            f"d = {dimension}"
        )
        what = f"ω at probability 1/2, {loss}"
        compared.append(compare(what, middle, 0.64, 0.03, remark, "the article"))
        label = rf"{loss} loss, $\gamma = {gamma:g}$, $d = {dimension}$"
        style: dict[str, Any] = DOTS | {"ls": "-", "lw": 0.8, "marker": "os"[k], "color": colour(k)}
        right.errorbar(omegas, P, error, label=label, **style)
    transition = float(sgd.transition(1.0))
    right.axvline(transition, color=INK, ls=":", lw=0.9, label="transition, squared loss")
    right.axhline(0.5, color=INK, lw=0.4)
    right.set_xlabel(r"weight of the positional part $\omega$")
    right.set_ylabel("probability of the semantic minimum")
    legend(right)
    caption = (
        f"Left: 16 runs of SGD at d = {dimension}, γ = 1/2, folded into one quadrant; white: "
        "semantic, dashed orange: "
        f"positional. Right: {count} runs from the origin until ‖(m, e)‖² > 0.8; standard errors "
        "are binomial."
    )
    return Drawn(figure, arrays, caption, compared)


def draw_runs(ax: Axes, dimension: int, points: int, progress: bool) -> dict[str, np.ndarray]:
    """Runs of SGD on the landscape of ω = 0.67, folded into the quadrant of their end."""
    model = sgd.semantic_positional(0.67)
    axis, R = surface(model, points)
    runs = sgd.simulate(
        model,
        jax.random.split(jax.random.key(0), 16),
        dimension=dimension,
        gamma=0.5,
        steps=800 * dimension,
        until=0.95,
        every=dimension,
        progress=progress,
    )
    end = np.asarray(runs.end)
    m = np.asarray(runs.m) * np.sign(end[:, :1])
    e = np.asarray(runs.e)[..., 0] * np.sign(end[:, 1:])
    draw_landscape(ax, axis, R, r"$\omega = 0.67$, $a = 1$")
    for x, y, semantic in zip(m, e, np.asarray(runs.semantic), strict=True):
        ax.plot(x, y, **(TO_MEANING if semantic else TO_POSITION))
    named = {"to semantic": TO_MEANING, "to positional": TO_POSITION}
    legend(ax, named, labelcolor="w", facecolor="0.35", loc="upper right")
    ax.set_xlim(-0.1, 1.05)
    ax.set_ylim(-0.1, 1.05)
    step = np.asarray(runs.step)
    return {"m": axis, "e": axis, "R": R, "run_step": step, "run_m": m, "run_e": e}


def semantic(
    problems: Sequence[SequenceSingleIndex],
    count: int,
    dimension: int,
    gamma: float,
    steps: int,
    progress: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share of runs from the origin that end at the semantic minimum, its standard error, and how
    many stopped.
    """
    table = []
    for k, problem in enumerate(problems):
        runs = sgd.simulate(
            problem,
            jax.random.split(jax.random.fold_in(jax.random.key(2), k), count),
            dimension=dimension,
            gamma=gamma,
            steps=steps,
            m=0.0,
            until=0.8**0.5,
            progress=progress,
        )
        table.append(sgd.semantic_fraction(runs))
    share, error, stopped = map(np.array, zip(*table, strict=True))
    return share, error, stopped
