"""Figures of gradient descent: from starts of order one and from small ones.

Source: [theory: bilinear, section 7].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.results import Solution
from jaxsmi.descent.averaging import averaged
from jaxsmi.descent.baselines import minimum_nuclear_norm, nuclear_norm_threshold
from jaxsmi.descent.training import train
from jaxsmi.models.bilinear import Bilinear
from jaxsmi.papers.bilinear.runs import Published, beside, minimum_norm, published_norms
from jaxsmi.papers.bilinear.theory import ERROR, errors
from jaxsmi.papers.common import (
    DOTS,
    Comparison,
    Drawn,
    Folder,
    axes_row,
    dots,
    note,
    overlay,
    published,
    with_bars,
)
from jaxsmi.workbench.plotting import colour, legend, legend_above, legend_of_all, line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Runs", "descent", "descents", "learning_rates", "quarter", "small_start"]

_FINITE = (
    "published at d = 100 and of 64 starts, learning rate not stated; tolerance: three joint "
    "standard errors, 5/d for finite "
    "size, and for averages the share of fewer starts. The end depends on the rate and on the "
    "training error reached, so "
    "that it need not agree"
)


def quarter(prediction: Array, label: Array) -> Array:
    """The article's loss: a quarter of the sum of squares."""
    return 0.25 * (prediction - label) ** 2


class Runs(NamedTuple):
    """Sizes of runs of descent: dimension, teachers, starts for each, steps, learning rate, size of
    the start.
    """

    dimension: int
    teachers: int
    starts: int
    steps: int
    rate: float
    init: float = 1.0


def descents(
    model: Bilinear, alphas: np.ndarray, runs: Runs, progress: bool
) -> dict[str, np.ndarray]:
    """Errors (α, teachers) of gradient descent.

    "single" run, "averaged" over the starts, "early" (smallest along a run), and the error on the
    training data "train".
    """
    names = ("single", "averaged", "early", "train")
    values = {name: np.full((len(alphas), runs.teachers), np.nan) for name in names}
    title = f"descent, d={runs.dimension}"
    for i, alpha in enumerate(tqdm(alphas, desc=title, disable=not progress, leave=False)):
        for seed in range(runs.teachers):
            key = jax.random.fold_in(jax.random.key(seed), i)
            data = model.sample(key, dimension=runs.dimension, alpha=float(alpha), dtype="float32")
            fit = train(
                model,
                data,
                optax.sgd(runs.rate),
                key=jax.random.split(key, runs.starts),
                steps=runs.steps,
                reduction="sum",
                loss=quarter,
                init=runs.init,
            )
            if np.isfinite(np.asarray(fit.error)).any():  # else all runs diverged: NaN
                for name, value in _ends(fit, runs.init, data.samples, data.teacher).items():
                    values[name][i, seed] = value
    return values


def _ends(
    fit: Solution, init: float, samples: int, teacher: Array | np.ndarray | None
) -> dict[str, float]:
    """The errors of one data set, by what they are called in `descents`."""
    history = np.asarray(fit.history["error"])
    trained = np.asarray(fit.history["train_loss"])[:, -1]
    ends = {
        "single": float(np.nanmedian(fit.error) if init < 1.0 else np.nanmean(fit.error)),
        "early": float(np.nanmedian(np.nanmin(history, axis=1))),
        "train": float(4.0 * np.nanmean(trained) / samples),
    }
    if np.isfinite(np.asarray(fit.error)).all():
        ends["averaged"] = float(averaged(fit, jnp.asarray(teacher)).error)
    return ends


def _published_descent(reference: Folder, file: str) -> Published | None:
    """Published means of gradient descent and their standard deviations, or None where they are not
    at hand.
    """
    table = published(reference, "bsr", "gd", file)
    if table is None:
        return None
    return Published(table["alpha"], table["gen_error_mean"], table["gen_error_std"])


def descent(
    full: bool = False, progress: bool = False, reference: Folder = None, beta: float = 1.0
) -> Drawn:
    """Figure 6 (and β = 2): gradient descent at a large learning rate, and the average of its
    runs."""
    compared: list[Comparison] = []
    noises = (0.0, 0.5) if beta == 1.0 else (0.0,)
    figure, axes = axes_row(len(noises), ordinate=ERROR)
    arrays: dict[str, np.ndarray] = {}
    sizes = Runs(100, 4, 64, 50000, 0.7) if full else Runs(25, 2, 8, 1500, 0.7)
    for ax, noise in zip(axes, noises, strict=True):
        model = Bilinear(beta, 0.2, noise)
        top = 1.5 if noise else 0.45
        alphas = np.linspace(0.01, top, 100)
        at = top * (np.linspace(0.1, 0.9, 9) if full else np.array([0.25, 0.5, 0.75]))
        runs = sizes._replace(rate=0.3) if noise else sizes
        theory = errors(alphas, beta, 0.2, noise)
        ends = descents(model, at, runs, progress)
        passed = dots(model, at, runs.dimension, runs.teachers, progress, "float32", 150)
        arrays |= {f"alpha_{noise:g}": alphas, f"at_{noise:g}": at, f"theory_{noise:g}": theory}
        arrays |= {f"{name}_{noise:g}": values for name, values in ends.items()}
        arrays[f"gamp_{noise:g}"] = passed
        ax.plot(alphas, theory, color=colour(0), label="Bayes-optimal")
        ax.plot(alphas, 2.0 * theory, color=colour(0), ls="--", label="twice that")
        with_bars(ax, at, passed, color=colour(0), marker="x", label="message passing")
        with_bars(ax, at, ends["single"], color=colour(1), label="descent")
        average = f"average of {runs.starts} runs"
        with_bars(ax, at, ends["averaged"], color=colour(2), marker="^", label=average)
        with_bars(ax, at, ends["train"], color=colour(3), marker="v", label="training error")
        compared += _beside_descent(ax, model, at, ends, runs, reference)
        ax.set_title(rf"$\Delta = {noise:g}$, $\beta = {beta:g}$")
        ax.set_xlabel(r"sample complexity $\alpha = n/(dL)$")
    legend_of_all(figure, 4 if len(noises) > 1 else 2)
    caption = "Gradient descent at learning rate 0.7 (with noise 0.3): the rate decides the error"
    caption += f". d = {sizes.dimension}, {sizes.teachers} teachers, {sizes.steps} steps."
    return Drawn(figure, arrays, caption + note(reference), compared)


def _beside_descent(
    ax: Axes,
    model: Bilinear,
    at: np.ndarray,
    ends: dict[str, np.ndarray],
    runs: Runs,
    reference: Folder,
) -> list[Comparison]:
    """Single and averaged runs beside the published ones, which are drawn.

    Averages of fewer starts are worse by a share.
    """
    beta = float(model.aspect_ratio)
    noise = float(model.noise)
    compared = []
    for kind, name, what, share in (
        ("GD", "single", "descent", 0.0),
        ("AGD", "averaged", "averaged descent", 1.0 / runs.starts),
    ):
        file = f"{kind}_beta_{beta:.1f}_rho_0.2_delta_{noise:.1f}_D_100.csv"
        known = _published_descent(reference, file)
        if known is not None:
            overlay(ax, *known)
            extra = np.interp(at, known.alpha, known.mean) * share + 5.0 / runs.dimension
            title = f"{what}, β = {beta:g}, Δ = {noise:g}"
            compared.append(beside(title, at, ends[name], known, extra, _FINITE))
    return compared


def small_start(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 7: gradient descent from a small start, its end and its way, beside the nuclear
    norm."""
    figure, (ax, right) = axes_row(2, ordinate=ERROR)
    runs = Runs(50, 4, 4, 50000, 0.3, 1e-4) if full else Runs(20, 3, 3, 4000, 0.3, 1e-4)
    model = Bilinear(1.0, 0.2)
    alphas = np.linspace(0.01, 0.7, 100)
    at = np.linspace(0.1, 0.65, 12) if full else np.array([0.2, 0.35, 0.5])
    arrays = {"alpha": alphas, "at": at, "theory": errors(alphas, 1.0, 0.2)}
    arrays |= descents(model, at, runs, progress)
    arrays["nuclear"] = minimum_norm(model, at, runs.dimension, runs.teachers, progress)
    ax.plot(alphas, arrays["theory"], color=colour(0), label="Bayes-optimal")
    ax.plot(alphas, 2.0 * arrays["theory"], color=colour(0), ls="--", label="twice that")
    with_bars(ax, at, arrays["single"], color=colour(1), label="small start, end")
    with_bars(ax, at, arrays["early"], color=colour(2), marker="^", label="small start, best")
    with_bars(ax, at, arrays["nuclear"], color=colour(3), marker="s", label="nuclear norm")
    exact = float(nuclear_norm_threshold(1.0, 0.2))
    ax.axvline(exact, color=colour(3), ls=":", lw=0.9, label="nuclear norm is exact")
    ax.set_xlabel(r"sample complexity $\alpha = n/(dL)$")
    compared = _beside_small_start(ax, at, arrays, runs.dimension, reference)
    arrays |= _along_descent(right, model, runs)
    legend_above(ax, 2)
    caption = (
        f"Descent from factors of size 1e-4: d = {runs.dimension}, {runs.teachers} teachers, "
        f"{runs.steps} steps. Right: the way at α = 0.45 on one data set (median of the starts; no "
        "published data)."
    )
    return Drawn(figure, arrays, caption + note(reference), compared)


def _beside_small_start(
    ax: Axes, at: np.ndarray, arrays: dict[str, np.ndarray], dimension: int, reference: Folder
) -> list[Comparison]:
    """End and best of descent from a small start, and the nuclear norm, beside published runs.

    Those of descent are drawn.
    """
    remark = (
        "published at d = 50 after longer runs; tolerance: three joint standard errors, and 5/d at "
        f"d = {dimension}"
    )
    compared = []
    for kind, name, which in (("zero", "single", "end"), ("zero_early", "early", "best")):
        file = f"{kind}_GD_beta_1.0_rho_0.2_delta_0.0_D_50.csv"
        known = _published_descent(reference, file)
        if known is not None:
            overlay(ax, *known)
            what = f"descent from a small start, {which}"
            compared.append(beside(what, at, arrays[name], known, 5.0 / dimension, remark))
    known = published_norms(reference, "D20R0.2B1.0")
    if known is not None:
        compared.append(beside("nuclear norm", at, arrays["nuclear"], known, 0.02))
    return compared


def _along_descent(ax: Axes, model: Bilinear, runs: Runs) -> dict[str, np.ndarray]:
    """Errors along descent from a small start at two learning rates, drawn beside the nuclear norm
    of the same data.
    """
    data = model.sample(jax.random.key(0), dimension=runs.dimension, alpha=0.45)
    arrays: dict[str, np.ndarray] = {}
    for k, rate in enumerate((0.1, 0.3)):
        fit = train(
            model,
            data,
            optax.sgd(rate),
            key=jax.random.split(jax.random.key(1), runs.starts),
            steps=runs.steps,
            reduction="sum",
            loss=quarter,
            init=runs.init,
        )
        steps = np.asarray(fit.history["step"])[0]
        error = np.asarray(fit.history["error"])
        arrays |= {"way_step": steps, f"way_{rate:g}": error}
        median = np.nanmedian(error, axis=0)
        look: dict[str, Any] = line(k) | {"color": colour(k), "label": f"learning rate {rate:g}"}
        ax.loglog(steps[1:], median[1:], **look)
    arrays["way_nuclear"] = np.asarray(minimum_nuclear_norm(model, data).error)
    ax.axhline(float(arrays["way_nuclear"]), color=colour(3), lw=1.0, ls=":", label="nuclear norm")
    ax.set_xlabel("steps")
    legend_above(ax, 2)
    return arrays


def learning_rates(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """The learning-rate figure: the end of descent at α = 0.44, from small and from order-one
    factors.
    """
    del reference  # no table is at hand
    figure, axes = axes_row(2, ordinate=ERROR)
    dimension, starts, steps = (50, 16, 10000) if full else (20, 6, 2000)
    rates = np.array([0.01, *np.arange(1, 8) / 10]) if full else np.array([0.1, 0.3, 0.5, 0.7])
    model = Bilinear(1.0, 0.2)
    arrays = {"rates": rates}
    data = model.sample(jax.random.key(0), dimension=dimension, alpha=0.44, dtype="float32")
    keys = jax.random.split(jax.random.key(1), starts)
    for ax, init, name in zip(
        axes, (1e-4, 1.0), ("small start", "start of order one"), strict=True
    ):
        ends = []
        for rate in tqdm(rates, desc=name, disable=not progress, leave=False):
            fit = train(
                model,
                data,
                optax.sgd(rate),
                key=keys,
                steps=steps,
                reduction="sum",
                loss=quarter,
                init=init,
            )
            ends.append(np.asarray(fit.error))
        arrays[f"error_{init:g}"] = np.array(ends)
        ax.semilogy(rates, arrays[f"error_{init:g}"], "o", color=colour(0), mfc="none")
        legend(ax, {"one start": DOTS})
        ax.set_title(name)
        ax.set_xlabel("learning rate")
    caption = (
        f"End of descent after {steps} steps, {starts} starts, d = {dimension}, α = 0.44, ρ = 0.2."
    )
    return Drawn(figure, arrays, caption)
