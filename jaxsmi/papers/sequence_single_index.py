"""Figures 1 to 5 of "Asymptotics of SGD in sequence-single index models" (arXiv 2506.02651),
listed in [theory: online-sgd, section 9].

Risks and the phase diagram are exact; dots and lines with noise are runs of SGD by the exact chain of the overlaps. By default
grids are coarse and runs few, so that a figure takes a minute or two; `full=True` has the sizes of the article.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxsmi import sgd
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.papers.common import Comparison, Drawn, Folder, axes_row, compare
from jaxsmi.sgd.diagram import BOUNDARIES, LABELS
from jaxsmi.sgd.population import risk_at
from jaxsmi.sgd.tying import SCHEDULES, sum_of_squares

HE2 = {(2, 0): 1.0, (0, 2): 1.0}


HE4 = {(4, 0): 1.0, (0, 4): 1.0}


MIXED = {(0, 0): 4 / 3, (4, 0): 1.0, (0, 4): 2.0}


def surface(model: SequenceSingleIndex, points: int) -> tuple[np.ndarray, np.ndarray]:
    """(axis (N,), R (N, N)) at m, e on a square grid, NaN outside the disc; without an encoding R does not depend on e."""
    axis = np.linspace(-1.0, 1.0, points)
    m, e = np.meshgrid(axis, axis, indexing="ij")
    inside = m**2 + e**2 <= 1.0
    encoded = model.encoding.shape[1] > 0
    where = np.column_stack([m[inside], e[inside]]) if encoded else axis[:, None]

    @eqx.filter_jit
    def values(model: SequenceSingleIndex, where: Any) -> Any:
        return lax.map(lambda v: risk_at(model, v, coarse=True).value, where)

    found = np.asarray(values(model, jnp.asarray(where)))
    R = np.full(m.shape, np.nan)
    R[inside] = found if encoded else np.broadcast_to(found[:, None], m.shape)[inside]
    return axis, R


def _landscape(ax: Any, axis: np.ndarray, R: np.ndarray, title: str) -> None:
    drawn = ax.contourf(axis, axis, R.T, levels=24, cmap="viridis")
    ax.figure.colorbar(drawn, ax=ax, shrink=0.85)
    ax.set_aspect("equal")
    ax.set_xlabel("m")
    ax.set_ylabel("e")
    ax.set_title(title, fontsize=9)
    ax.grid(False)


def _panels(
    models: dict[str, SequenceSingleIndex], points: int
) -> tuple[Any, dict[str, np.ndarray]]:
    figure, axes = axes_row(2, 2)
    arrays: dict[str, Any] = {
        name: []
        for name in ("R", "hessian", "eigenvalues", "m4", "exponent", "kappa", "kappa_escape")
    }
    for ax, (name, model) in zip(axes, models.items(), strict=True):
        axis, R = surface(model, points)
        flat, H = sgd.flatness(model), sgd.hessian_at_origin(model)
        values, vectors = np.linalg.eigh(H)
        exponent = sgd.information_exponent(model.target, model.length).order
        for key, value in (
            ("R", R),
            ("kappa", flat.order),
            ("kappa_escape", flat.escape),
            ("exponent", exponent),
        ):
            arrays[key].append(value)
        K = model.encoding.shape[1]
        arrays["m4"].append(flat.series.get((4,) + (0,) * K, 0.0))
        arrays["hessian"].append(np.pad(H, (0, 1 - K), constant_values=np.nan))
        arrays["eigenvalues"].append(np.pad(values, (0, 1 - K), constant_values=np.nan))
        _landscape(ax, axis, R, f"{name}: κ = {flat.order:g}, κ_esc = {flat.escape:g}")
        for value, vector in zip(values, vectors.T, strict=True):
            if value < -1e-9:
                direction = np.pad(vector, (0, 1 - K))
                ax.annotate(
                    "", 0.5 * direction, (0, 0), arrowprops={"arrowstyle": "->", "color": "w"}
                )
    return figure, {"m": axis, "e": axis} | {k: np.array(v, float) for k, v in arrays.items()}


def encoding_changes_the_landscape(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Figure 1: risk of attention with the trace, with and without positional encoding."""
    del progress, reference  # no runs; none is published
    models = {
        f"{name} {'with' if encoding else 'without'} encoding": SequenceSingleIndex(
            sgd.HermiteSeries(terms), 2, sgd.Attention(trace_norm="none"), encoding
        )
        for encoding in (None, "paired")
        for name, terms in (("He2 + He2", HE2), ("He4 + He4", HE4))
    }
    figure, arrays = _panels(models, 101 if full else 41)
    caption = (
        "Risk over the overlaps (m, e), trace without factor. An encoding adds a direction; here its curvature is positive, so "
        "that SGD escapes no sooner (κ falls from 4 to 2 for He4, κ_esc does not). Arrows: descending eigenvectors at the origin."
    )
    orders = [
        _order("information exponents", arrays["exponent"], (2, 4, 2, 4)),
        _order("κ", arrays["kappa"], (2, 4, 2, 2)),
    ]
    return Drawn(figure, arrays, caption, orders)


def _order(what: str, found: np.ndarray, stated: tuple[float, ...]) -> Comparison:
    return compare(
        what,
        found,
        np.array(stated, float),
        0.5,
        "whole numbers, in the order of the panels",
        "the article",
    )


def encoding_helps(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 2: a target of which the encoding makes an escape of order two, if the trace is over √L."""
    del progress, reference  # no runs; none is published
    models = {
        f"{name}, {'with' if encoding else 'without'} encoding": SequenceSingleIndex(
            sgd.HermiteSeries(MIXED), 2, sgd.Attention(trace_norm=norm), encoding
        )
        for norm, name in (("none", "trace"), ("sqrtL", "trace/√2"))
        for encoding in (None, "paired")
    }
    figure, arrays = _panels(models, 101 if full else 41)
    raw, normalised = (float(np.nanmin(arrays["eigenvalues"][k])) for k in (1, 3))
    caption = (
        "4/3 + He4(z_1) + 2 He4(z_2): along m the origin is a minimum. The article's descending direction of order two, which "
        f"the encoding opens, is there with the trace over √L (smallest curvature {normalised:.4f}), not with the trace itself "
        f"({raw:.4f}). The global minimum is then positional, where the article says that encodings leave it as it is."
    )
    orders = [_order("information exponents", arrays["exponent"], (4, 4, 4, 4))]
    orders += [_order("κ_esc with encoding, trace/√2", arrays["kappa_escape"][3:], (2,))]
    return Drawn(figure, arrays, caption, orders)


def tying(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 3: steps of untied over tied networks."""
    del reference  # none is published
    compared = []
    figure, axes = axes_row(2)
    lengths = (1, 2, 3, 4, 6, 8, 10) if full else (1, 2, 4)
    settings = (
        {"dimension": 1000, "gamma": 0.002, "runs": (24, 6)}
        if full
        else {"dimension": 200, "gamma": 0.01, "runs": (24, 6)}
    )
    arrays: dict[str, np.ndarray] = {"lengths": np.array(lengths)}
    left, right = axes
    for color, (schedule, law) in enumerate((("equal", 1), ("linear", 2))):
        found = sgd.gain(
            jax.random.key(0), lengths, schedule=schedule, progress=progress, **settings
        )
        arrays |= {f"gain_{schedule}": found.gain, f"gain_se_{schedule}": found.stderr}
        arrays |= {f"exponent_{schedule}": np.array([found.exponent, found.exponent_stderr])}
        arrays |= {
            f"tau_{side}_{schedule}": np.array(getattr(found, side)) for side in ("tied", "untied")
        }
        remark = "tolerance: three standard errors of the fit, and 0.1 for steps that are not small"
        exponent = f"exponent of the gain, {schedule} rates"
        compared.append(
            compare(
                exponent,
                found.exponent,
                law,
                3.0 * found.exponent_stderr + 0.1,
                remark,
                "the article",
            )
        )
        label = rf"{schedule}: $L^{{{found.exponent:.2f} \pm {found.exponent_stderr:.2f}}}$"
        left.errorbar(
            lengths, found.gain, found.stderr, fmt="o", mfc="none", color=f"C{color}", label=label
        )
        left.loglog(lengths, np.array(lengths, float) ** law, color=f"C{color}", lw=0.8, ls="--")
    left.set_xticks(lengths, [str(L) for L in lengths])
    left.set_xticks([], minor=True)
    left.set_xlabel("length L")
    left.set_ylabel("steps untied/steps tied")
    left.legend(frameon=False, fontsize=8)
    L, d, gamma = lengths[-1], settings["dimension"], settings["gamma"]
    for color, tied in enumerate((True, False)):
        rate = SCHEDULES["equal"](L, gamma)[1 - tied]
        model = SequenceSingleIndex(
            sum_of_squares(L), L, sgd.Network(jax.nn.relu, tied), loss_factor=1.0
        )
        m = 1.0 / np.sqrt(d)
        steps = int(1.3 * float(sgd.recovery_time(model, m, gamma=rate, eta=0.6)) * d / rate)
        keys = jax.random.split(jax.random.key(1), 4)
        runs = sgd.simulate(model, keys, dimension=d, gamma=rate, steps=steps, m=m, eta=0.9)
        size = (
            np.asarray(runs.m) if tied else np.linalg.norm(np.asarray(runs.m), axis=-1) / np.sqrt(L)
        )
        name = "tied" if tied else "untied"
        theory = np.asarray(
            sgd.flow(
                model,
                m,
                times=np.maximum(np.asarray(runs.time), 1e-9 * np.arange(len(runs.step))),
                gamma=rate,
            ).overlaps
        )
        line = np.linalg.norm(theory, axis=-1) / (1.0 if tied else np.sqrt(L))
        arrays |= {f"steps_{name}": np.asarray(runs.step), f"m_{name}": size, f"flow_{name}": line}
        right.plot(np.asarray(runs.step), size.T, color=f"C{color}", lw=0.5, alpha=0.6)
        right.plot(np.asarray(runs.step), line, color=f"C{color}", lw=1.6, label=name)
    right.set_xscale("log")
    right.set_xlabel("steps")
    right.set_ylabel("overlap m")
    right.legend(frameon=False, fontsize=8)
    caption = (
        f"Left: gain for Σ h_2, ReLU, d = {d}: L at equal learning rates, L² if γ_tied = L γ_untied is imposed. "
        f"Right: L = {L}, runs of SGD and the flow of order two."
    )
    return Drawn(figure, arrays, caption, compared)


def _crossing(x: np.ndarray, height: np.ndarray) -> float:
    """Where a sampled height first changes its sign, by linear interpolation; NaN where it never does."""
    change = np.flatnonzero(np.sign(height[1:]) != np.sign(height[:-1]))
    if not change.size:
        return np.nan
    k = change[0]
    return float(x[k] - height[k] * (x[k + 1] - x[k]) / (height[k + 1] - height[k]))


def phases(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 4: semantic and positional minima in the plane (a, ω)."""
    del reference  # none is published
    figure, (ax,) = axes_row()
    cells = 200 if full else 60
    a, omega = np.linspace(0.7, 1.0, cells), np.linspace(0.4, 0.999, cells)
    found = sgd.phase_diagram(a, omega, progress=progress)
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colors = [
        "#4477aa",
        "#000000",
        "#eecc66",
        "#cc6677",
        "#88ccee",
        "#444444",
        "#aa4499",
        "#ee8866",
    ]
    ax.pcolormesh(
        a, omega, found.label, cmap=ListedColormap(colors), vmin=-0.5, vmax=7.5, rasterized=True
    )
    for name, style in zip(BOUNDARIES, (":", "-", "--", "-."), strict=True):
        ax.plot(a, found.boundaries[name], color="k", lw=1.2, ls=style, label=name)
    shown = [Patch(color=colors[k], label=LABELS[k]) for k in range(8) if np.any(found.label == k)]
    lines = ax.get_legend_handles_labels()[0]
    ax.legend(handles=[*shown, *lines], fontsize=6, frameon=True, loc="lower left")
    ax.plot(0.76, 0.95, "o", color="yellow", mec="k", ms=5)
    ax.set_xlabel("a")
    ax.set_ylabel("ω")
    ax.set_ylim(0.4, 1.0)
    arrays = {"a": a, "omega": omega, "label": found.label, "hessian": found.hessian}
    arrays |= {
        f"boundary_{name.replace(' ', '_')}": value for name, value in found.boundaries.items()
    }
    caption = (
        "Minima of the risk and what SGD sets out for. Lines: from which ω the positional corner is a minimum (dotted), "
        "transition at the origin (full), equal depth (dashed), up to which ω the semantic corner is a minimum (dash-dotted). "
        "Yellow: misaligned dynamics."
    )
    difference, line = (
        found.hessian[..., 1] - found.hessian[..., 0],
        found.boundaries[BOUNDARIES[1]],
    )
    cell = omega[1] - omega[0]
    signs = np.array([_crossing(omega, column) for column in difference.T])
    compared = [
        compare(
            "transition on the grid",
            signs,
            line,
            cell,
            "tolerance: a cell",
            "the root of the Hessian",
        )
    ]
    compared += [
        compare(
            "transition at a = 1", line[-1], 0.64, 0.005, "printed to two digits", "the article"
        )
    ]
    return Drawn(figure, arrays, caption, compared)


def convergence(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 5: runs on the landscape, and the probability to end at the semantic minimum."""
    del reference  # none is published
    compared = []
    figure, (left, right) = axes_row(2)
    model = sgd.semantic_positional(0.67)
    axis, R = surface(model, 101 if full else 41)
    d = 1000 if full else 200
    keys = jax.random.split(jax.random.key(0), 16)
    runs = sgd.simulate(
        model, keys, dimension=d, gamma=0.5, steps=800 * d, until=0.95, every=d, progress=progress
    )
    m, e = np.asarray(runs.m), np.asarray(runs.e)[..., 0]
    end = np.asarray(runs.end)
    m, e = m * np.sign(end[:, :1]), e * np.sign(end[:, 1:])  # folded into the quadrant of the end
    _landscape(left, axis, R, "ω = 0.67, a = 1")
    for x, y, semantic in zip(m, e, np.asarray(runs.semantic), strict=True):
        left.plot(x, y, lw=0.7, color="w" if semantic else "C3")
    left.set_xlim(-0.1, 1.05)
    left.set_ylim(-0.1, 1.05)
    dense = (
        0.0,
        0.1,
        0.2,
        0.3,
        0.4,
        *np.arange(0.42, 0.58, 0.02),
        *np.arange(0.58, 0.705, 0.01),
        *np.arange(0.72, 1.005, 0.02),
    )
    omegas = np.array(dense if full else (0.5, 0.56, 0.6, 0.62, 0.64, 0.66, 0.68, 0.72, 0.78))
    count = 64 if full else 48
    arrays: dict[str, Any] = {
        "m": axis,
        "e": axis,
        "R": R,
        "run_step": np.asarray(runs.step),
        "run_m": m,
        "run_e": e,
        "omega": omegas,
    }
    settings = (
        {"squared": (0.5, 0.2), "frobenius": (1.0, 0.05)} if full else {"squared": (0.5, 1.0)}
    )
    for color, (loss, (c, gamma)) in enumerate(settings.items()):
        table = []
        for k, omega in enumerate(omegas):
            problem = sgd.semantic_positional(omega, 1.0, c, loss)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(2), k), count)
            done = sgd.simulate(
                problem,
                keys,
                dimension=d,
                gamma=gamma,
                steps=int(2000 * d / gamma / c / 2),
                m=0.0,
                until=0.8**0.5,
                progress=progress,
            )
            table.append(sgd.semantic_fraction(done))
        P, error, arrived = map(np.array, zip(*table, strict=True))
        arrays |= {f"P_{loss}": P, f"se_{loss}": error, f"converged_{loss}": arrived}
        middle = _crossing(omegas, P - 0.5)
        remark = (
            f"interpolated; tolerance: 0.03, of {count} runs at a step of the grid and of d = {d}"
        )
        compared.append(
            compare(f"ω at probability 1/2, {loss}", middle, 0.64, 0.03, remark, "the article")
        )
        right.errorbar(
            omegas,
            P,
            error,
            fmt="o-",
            lw=0.8,
            ms=4,
            capsize=2,
            color=f"C{color}",
            label=f"{loss}, γ = {gamma:g}, d = {d}",
        )
    right.axvline(
        float(sgd.transition(1.0)), color="k", ls=":", lw=0.9, label="transition (squared)"
    )
    right.axhline(0.5, color="k", lw=0.4)
    right.set_xlabel("ω")
    right.set_ylabel("probability of the semantic minimum")
    right.legend(frameon=False, fontsize=8)
    caption = (
        f"Left: 16 runs of SGD at d = {d}, γ = 1/2, folded into one quadrant; white: semantic, red: positional. "
        f"Right: {count} runs from the origin until ‖(m, e)‖² > 0.8; standard errors are binomial."
    )
    return Drawn(figure, arrays, caption, compared)


RECIPES: dict[str, Callable[..., Drawn]] = {
    "single-index-1": encoding_changes_the_landscape,
    "single-index-2": encoding_helps,
    "single-index-3": tying,
    "single-index-4": phases,
    "single-index-5": convergence,
}
