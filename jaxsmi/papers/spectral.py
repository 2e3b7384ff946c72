"""Figures of the spectral estimator of "Fundamental limits of weak recovery with applications to
phase retrieval" (arXiv 1708.05932), and of message passing that starts from it.

The article gives the optimal estimator and its threshold; the eigenvalues and overlaps drawn here
are ours. Source: [MM18], [theory: spectral, sections 3 to 5].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.inference.spectral import REGULARISATION, spectral
from jaxsmi.inference.spectral_outlier import transformed
from jaxsmi.inference.spectral_theory import spectral_overlap
from jaxsmi.models import links
from jaxsmi.papers.common import (
    Article,
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    finite_size,
    with_bars,
)
from jaxsmi.workbench.plotting import colour, legend, legend_above
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ARTICLE", "spectral_start"]

_LEARNED = colour(0)
_SPECTRUM = colour(1)
_SHOWN = 2.0  # α of the eigenvalues
_LOWEST = -2.0  # eigenvalue that is drawn
_CLEAR = 1.4  # from this α on both transitions, at 0.5 and 1.13, are behind


class _Runs(NamedTuple):
    """Runs (α, seeds) on fresh data sets: squared cosines of the spectral estimate and of message
    passing, the top eigenvalue, and theory's outlier."""

    spectral: np.ndarray
    gamp: np.ndarray
    eigenvalue: np.ndarray
    outlier: np.ndarray


def spectral_start(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Phase retrieval: eigenvalues of the spectral matrix, and how much its top eigenvector and
    message passing from it know."""
    del reference  # no table is at hand
    figure, (histogram, overlaps) = axes_row(2)
    dimension, seeds = (1000, 16) if full else (500, 8)
    steep = np.linspace(1.05, 1.175, 11 if full else 6)  # around the jump of state evolution
    alphas = np.union1d(np.linspace(0.5, 2.0, 31 if full else 16), steep)
    at = np.array([0.6, 0.75, 0.9, 1.0, 1.25, 1.5, 1.75, 2.0] if full else [0.75, 1.0, 1.5, 2.0])
    arrays = {"alpha": alphas, "at": at} | _eigenvalues(dimension)
    arrays |= _theory(alphas, "")
    arrays |= _theory(at, "_at")
    runs = _runs(at, dimension, seeds, progress)
    arrays |= runs._asdict()
    _draw_eigenvalues(histogram, arrays)
    _draw_overlaps(overlaps, arrays)
    hidden = int(np.sum(arrays["eigenvalues"] < _LOWEST))
    caption = (
        f"Phase retrieval, D = {dimension}. Left: all eigenvalues of T_s for one data set at "
        f"α = {_SHOWN:g}, s = {REGULARISATION:g}, beside the edge of the bulk and the outlier as "
        "D → ∞; they are moved together by what the labels drawn have beyond their mean "
        f"[theory: spectral, section 4]. {hidden} lie below {_LOWEST:g}, down to "
        f"{arrays['eigenvalues'].min():.0f}. Right: squared cosines, means of {seeds} data sets "
        "with their standard errors; lines: D → ∞."
    )
    return Drawn(figure, arrays, caption, _compared(arrays, dimension))


def _eigenvalues(dimension: int) -> dict[str, np.ndarray]:
    """All eigenvalues of T_s for one data set, theory's edge and outlier, and the squared cosine of
    the top eigenvector by dense diagonalisation and by the eigensolver, with its error."""
    model = links.phase_retrieval()
    data_key, key = jax.random.split(jax.random.key(0))
    data = model.sample(data_key, dimension=dimension, alpha=_SHOWN)
    run = spectral(model, data, key=key, regularisation=REGULARISATION)
    values, vectors = np.linalg.eigh(_matrix(data, run))
    teacher = np.asarray(data.teacher).ravel()
    top = float(run.history["eigenvalue"][0, 0])
    return {
        "eigenvalues": values - values[-1] + top,
        "edge": np.asarray(run.history["edge"])[0],
        "shown_outlier": np.asarray(run.history["outlier"])[0, 0],
        "dense": (vectors[:, -1] @ teacher) ** 2 / (teacher @ teacher),
        "solver": np.asarray(run.cosine)[0] ** 2,
        "solver_error": 2.0 * np.asarray(run.residual) / (values[-1] - values[-2]),
    }


def _matrix(data: Dataset, run: Solution) -> np.ndarray:
    """T_s (D, D), 𝒯_s of G = y²/S - 1 at the norm S of the run."""
    S = run.model.prior.second_moment(1)[0, 0]
    G = data.labels.reshape(-1, 1, 1) ** 2 / S - 1.0
    T = transformed(G, REGULARISATION)[:, 0, 0]
    x = jnp.asarray(data.inputs)[:, 0]
    return np.asarray(x.T @ (T[:, None] * x)) / data.dimension


def _theory(alphas: np.ndarray, suffix: str) -> dict[str, np.ndarray]:
    """Overlaps as D → ∞ of the spectral estimator and of message passing, with standard errors."""
    model = links.phase_retrieval()
    key = jax.random.key(0)
    best = [spectral_overlap(model, float(alpha), key=key) for alpha in alphas]
    evolved = [state_evolution(model, float(alpha), key=key) for alpha in alphas]
    return {
        f"spectral_theory{suffix}": np.array([float(one.value[0, 0]) for one in best]),
        f"spectral_stderr{suffix}": np.array([float(one.stderr[0, 0]) for one in best]),
        f"evolution{suffix}": np.array([float(one.overlap[0, 0]) for one in evolved]),
        f"evolution_stderr{suffix}": np.array([float(one.stderr[0, 0]) for one in evolved]),
    }


def _runs(at: np.ndarray, dimension: int, seeds: int, progress: bool) -> _Runs:
    """The spectral estimate and message passing from it, on the same data."""
    model = links.phase_retrieval()
    runs = _Runs(*np.full((4, len(at), seeds), np.nan))
    title = f"spectral starts, D={dimension}"
    bar = tqdm(total=len(at) * seeds, desc=title, disable=not progress, leave=False)
    for i, alpha in enumerate(at):
        for seed in range(seeds):
            data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
            data = model.sample(data_key, dimension=dimension, alpha=float(alpha))
            start = spectral(model, data, key=key, regularisation=REGULARISATION)
            learned = gamp(model, data, key=key, init="spectral")
            runs.spectral[i, seed] = float(start.cosine[0]) ** 2
            runs.gamp[i, seed] = float(learned.cosine[0]) ** 2
            runs.eigenvalue[i, seed] = float(start.history["eigenvalue"][0, 0])
            runs.outlier[i, seed] = float(start.history["outlier"][0, 0])
            bar.update()
    return runs


def _draw_eigenvalues(ax: Axes, arrays: dict[str, np.ndarray]) -> None:
    """The histogram of eigenvalues, and theory's edge and outlier."""
    eigenvalues = arrays["eigenvalues"]
    shown = eigenvalues[eigenvalues > _LOWEST]
    ax.hist(shown, bins=40, color=_SPECTRUM, alpha=0.45, lw=0)
    ax.axvline(float(arrays["edge"]), color=INK, lw=0.9, ls="--", label="edge of the bulk, theory")
    outlier = float(arrays["shown_outlier"])
    ax.axvline(outlier, color=_LEARNED, lw=0.9, label="outlier, theory")
    top = {"marker": "v", "ls": "none", "color": _SPECTRUM, "clip_on": False, "zorder": 3}
    ax.plot(eigenvalues[-1], 1.0, label="top eigenvalue", **top)
    ax.set_xlim(_LOWEST, 1.15 * outlier)
    ax.set_xlabel(r"eigenvalue of $T_s$")
    ax.set_ylabel("eigenvalues in a bin")
    ax.locator_params(axis="y", integer=True)
    legend(ax)


def _draw_overlaps(ax: Axes, arrays: dict[str, np.ndarray]) -> None:
    """Squared cosines against α: lines of theory, runs with error bars."""
    for name, runs, tint, marker, line, dots in (
        ("evolution", "gamp", _LEARNED, "o", "state evolution", "GAMP from the spectral estimate"),
        ("spectral_theory", "spectral", _SPECTRUM, "s", "spectral, theory", "spectral estimate"),
    ):
        ax.plot(arrays["alpha"], arrays[name], color=tint, label=line)
        with_bars(ax, arrays["at"], arrays[runs], color=tint, marker=marker, label=dots)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel(r"sample complexity $\alpha$")
    ax.set_ylabel("squared cosine")
    legend_above(ax, 2)


def _compared(arrays: dict[str, np.ndarray], dimension: int) -> list[Comparison]:
    """The eigensolver beside dense diagonalisation, and runs beside theory."""
    remark = "tolerance: twice the residual of the eigensolver over the gap below the top"
    what = "squared cosine of the top eigenvector"
    solver = (arrays["solver"], arrays["dense"], arrays["solver_error"])
    compared = [compare(what, *solver, remark, against="dense diagonalisation")]
    clear = arrays["at"] > _CLEAR
    moved = (arrays["eigenvalue"] - arrays["outlier"])[clear]
    compared.append(finite_size(f"top eigenvalue, α > {_CLEAR:g}", moved, 0.0, dimension))
    for what, runs, theory in (
        ("spectral estimate", "spectral", "spectral_theory_at"),
        ("message passing", "gamp", "evolution_at"),
    ):
        for where, name in ((clear, f"α > {_CLEAR:g}"), (~clear, f"α < {_CLEAR:g}")):
            values = arrays[runs][where]
            compared.append(
                finite_size(f"{what}, {name}", values, arrays[theory][where], dimension)
            )
    return compared


ARTICLE = Article(
    "spectral",
    "Fundamental limits of weak recovery with applications to phase retrieval",
    "1708.05932",
    {"start": spectral_start},
)
