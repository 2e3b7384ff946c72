r"""Query and key of one head, tied and untied, that learn a mean of a bilinear form.

Equations here, on the sphere, κ → 0 [theory: online-sgd, Eq. (74)]: with t = Σ_l z*_l/√L, a = Σ_l
q_l/√L, b = Σ_l k_l/√L the label is t² and the students a² and a b. Of equal overlaps m of query and
key with the teacher, and r with each other,

    dm/dt = 2m (3 - 3r + 2r² - 2m²),   dr/dt = 4 (1 - r)[(1 - 2r)(1 + r) + 2m²]
    tied:   dm/dt = 8m (1 - m²)

by Wick's theorem. While m is small r goes to 1/2, where m grows as e^{4t}; the tied one as e^{8t}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi import sgd
from jaxsmi.models.multi_index import MultiIndex
from jaxsmi.papers.common import Comparison, Drawn, Folder, axes_row, compare
from jaxsmi.workbench.plotting import band, colour, legend
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["untied"]

_LENGTH = 4
_KAPPA = 0.01
_START = 0.04  # overlaps with the teacher at the start
_COLOURS = {"tied": colour(0), "untied": colour(1)}


def mean_form(fields: Array) -> Array:
    """Σ_{l,m} q_l k_m/L of a query and a key (the same row, where there is one)."""
    return jnp.sum(fields[0]) * jnp.sum(fields[-1]) / fields.shape[1]


def untied(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """A mean of a bilinear form of one direction, learned by query and key, tied and untied."""
    del reference  # none is published
    dimension, runs = (10_000, 128) if full else (2000, 48)
    figure, (left, right) = axes_row(2)
    arrays: dict[str, np.ndarray] = {}
    last = {"tied": 110.0, "untied": 220.0}
    for name, rows in (("tied", 1), ("untied", 2)):
        arrays |= _race(name, rows, last[name], dimension, runs, progress)
        _draw_overlap(left, name, arrays)
    _draw_alignment(right, arrays)
    caption = (
        f"Label: the mean over {_LENGTH} queries of a bilinear form with one direction, "
        "(Σ_l z_l)²/L. Students: the same form with one vector (tied), or a query and a key "
        f"(untied), rows on the sphere, κ = {_KAPPA:g}, from overlaps {_START:g}, query and key "
        f"orthogonal. Bands: quartiles of {runs} exact runs at D = {dimension}; dashed: the flow "
        "D → ∞, which has no noise at the start. Left: overlap with the teacher, of the untied "
        "student that of its query. Right: query and key first agree with each other, to 1/2, "
        "which gets the mean of the labels right, and grow then at half the rate of one vector."
    )
    return Drawn(figure, arrays, caption, _compared(arrays))


def _race(
    name: str, rows: int, last: float, dimension: int, runs: int, progress: bool
) -> dict[str, np.ndarray]:
    """Runs and flow of one student: α, overlaps with the teacher, of query and key."""
    teacher = MultiIndex(mean_form, indices=1, tokens=_LENGTH)
    student = MultiIndex(mean_form, indices=rows, tokens=_LENGTH)
    start = (np.full((rows, 1), _START), np.eye(rows))
    rule: dict[str, Any] = {"student": student, "rate": _KAPPA, "projection": "sphere"}
    keys = jax.random.split(jax.random.key(0), runs)
    given = {"dimension": dimension, "alpha": last, "init": start, "progress": progress}
    chain = sgd.simulate(teacher, keys, **rule, **given)
    times = _KAPPA * np.linspace(0.0, last, 61)[1:]
    path = sgd.flow(teacher, start, times=times, key=jax.random.key(1), **rule)
    still: dict[str, Any] = rule | {"rate": 0.0}
    slow = sgd.flow(teacher, start, times=times, key=jax.random.key(1), **still)
    return {
        f"{name}_alpha": np.asarray(chain.alpha),
        f"{name}_m": np.abs(np.asarray(chain.teacher_overlap[:, :, 0, 0])),
        f"{name}_r": np.asarray(chain.overlap[:, :, 0, -1]),
        f"{name}_flow_alpha": np.asarray(path.alpha),
        f"{name}_flow_m": np.asarray(path.teacher_overlap[:, 0, 0]),
        f"{name}_flow_r": np.asarray(path.overlap[:, 0, -1]),
        f"{name}_flow_error": np.asarray(path.stderr.teacher_overlap[:, 0, 0]),
        f"{name}_slow": np.asarray(slow.teacher_overlap[:, 0, 0]),
        f"{name}_slow_error": np.asarray(slow.stderr.teacher_overlap[:, 0, 0]),
        f"{name}_times": times,
    }


def _slopes(m: float, r: float) -> tuple[float, float]:
    """dm/dt and dr/dt of query and key with equal overlaps m, at κ → 0 (Wick's theorem):
    E s_q t = 2 (m + 2rm - 3m), E s_q a = 2 (1 + 2r² - r - 2m²), E s_q b = 2 (3r - 1 - 2m²)."""
    along = -2.0 * (1.0 + 2.0 * r**2 - r - 2.0 * m**2)  # half of dQ_qq/dt: taken off on the sphere
    dm = -2.0 * (2.0 * r - 2.0) * m - along * m
    dr = -4.0 * (3.0 * r - 1.0 - 2.0 * m**2) - 2.0 * along * r
    return dm, dr


def _closed(name: str, times: np.ndarray) -> np.ndarray:
    """m at times t in closed equations: of the tied student dm/dt = 8 m (1 - m²)."""
    from scipy.integrate import solve_ivp

    if name == "tied":
        drift = lambda t, v: [8.0 * v[0] * (1.0 - v[0] ** 2)]
        start = [_START]
    else:
        drift = lambda t, v: list(_slopes(v[0], v[1]))
        start = [_START, 0.0]
    span = (0.0, float(times[-1]))
    return solve_ivp(drift, span, start, t_eval=times, rtol=1e-10, atol=1e-12).y[0]


def _draw_overlap(ax: Axes, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Overlap with the teacher of one student."""
    style: dict[str, Any] = {"color": _COLOURS[name]}
    low, middle, high = np.quantile(arrays[f"{name}_m"], [0.25, 0.5, 0.75], axis=0)
    band(ax, arrays[f"{name}_alpha"], low, high, _COLOURS[name], within=(0.0, 1.0))
    ax.plot(arrays[f"{name}_alpha"], middle, label=f"{name}, median of runs", **style)
    ax.plot(
        arrays[f"{name}_flow_alpha"], arrays[f"{name}_flow_m"], "--", label=f"{name}, flow", **style
    )
    ax.set_xlabel(r"samples over dimension $\alpha=N/D$")
    ax.set_ylabel("overlap with the teacher")
    legend(ax, {"quartiles": {"lw": 5.0, "alpha": 0.2}})


def _draw_alignment(ax: Axes, arrays: dict[str, np.ndarray]) -> None:
    """Overlap of query and key."""
    style: dict[str, Any] = {"color": _COLOURS["untied"]}
    low, middle, high = np.quantile(arrays["untied_r"], [0.25, 0.5, 0.75], axis=0)
    band(ax, arrays["untied_alpha"], low, high, _COLOURS["untied"], within=(-1.0, 1.0))
    ax.plot(arrays["untied_alpha"], middle, label="median of runs", **style)
    ax.plot(arrays["untied_flow_alpha"], arrays["untied_flow_r"], "--", label="flow", **style)
    ax.axhline(0.5, color=INK, lw=0.9, ls=":", label="1/2")
    ax.set_xlabel(r"samples over dimension $\alpha=N/D$")
    ax.set_ylabel("overlap of query and key")
    legend(ax, {"quartiles": {"lw": 5.0, "alpha": 0.2}})


def _compared(arrays: dict[str, np.ndarray]) -> list[Comparison]:
    """The flow without noise beside closed equations, and runs beside the flow."""
    compared = []
    for name in ("tied", "untied"):
        exact = _closed(name, arrays[f"{name}_times"])
        allowed = 5.0 * arrays[f"{name}_slow_error"] + 1e-6
        remark = "tolerance: five standard errors of the nets and 1e-6"
        what = f"gradient flow, {name}"
        ours = arrays[f"{name}_slow"]
        compared.append(compare(what, ours, exact, allowed, remark, "closed equations"))
        final = arrays[f"{name}_m"][:, -1]
        flow = arrays[f"{name}_flow_m"][-1:]
        allowed = 4.0 * np.std(final, ddof=1) / len(final) ** 0.5 + 0.01
        remark = "tolerance: four standard errors of the runs, and 0.01 for finite size"
        ours = np.atleast_1d(np.mean(final))
        compared.append(
            compare(f"runs at the end, {name}", ours, flow, allowed, remark, "the flow")
        )
    return compared
