"""Figures of learners other than Bayes: double descent, classifiers, one layer of attention, and
positional and semantic attention [theory: empirical-risk].

Theory of "High-dimensional learning of narrow neural networks" (arXiv 2409.13904) [Cui24]; signs
[AKLZ20]; positional and semantic minima [CBKZ24]. All figures are ours. What they are compared
with, in closed form:

    ridge regression: [theory: empirical-risk, Eq. (21)]
    error of a sign:  arccos(cosine)/π
    largest margin:   κ where min_m {α E(κ - t)₊² - (1 - m²)} = 0,  m the cosine, t of density
        2 Φ(m t/√(1 - m²)) φ(t); random labels have m = 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr
from tqdm import tqdm

from jaxsmi.core.codes import Result
from jaxsmi.core.results import LearnerSolution, Solution
from jaxsmi.descent.training import train
from jaxsmi.inference.branches import global_minimum
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.learners import losses
from jaxsmi.learners.erm import Erm
from jaxsmi.models import links
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.models.index import AbstractIndexModel
from jaxsmi.models.multi_index import MultiIndex
from jaxsmi.models.tokens import Tokens
from jaxsmi.papers.common import (
    Article,
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    finite_size,
    overlay,
    small_legend,
    with_bars,
)
from jaxsmi.priors.gaussian import Gaussian
from jaxsmi.workbench.plotting.risk import risk_against_alpha
from jaxsmi.workbench.plotting.style import colour, legend_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ARTICLE", "attention_risk", "double_descent", "positional_semantic", "signs"]

_NOISE = 0.25  # Δ of the linear teacher
_RIDGES = (0.001, 0.01, 0.1, 1.0)
_RUN_RIDGE = 0.01  # of the runs on double descent
_LOGISTIC = 0.1  # λ of the logistic loss
_MARGIN = 1e-4  # λ of the hinge: the largest margin is its limit λ → 0
_SEPARABLE = 2.0  # α from which random labels cannot be separated
_ATTENTION = (0.1, 0.3, 1.0)
_SPREAD = 0.25  # variance of a token, and of a weight in its units [CBKZ24]

# What [CBKZ24] prints (docs/print.md, section 1.6), in the units of theory: α, Q, |M| or |B|, energy
_PRINTED = {
    "semantic": ((1.25, 0.08188, 0.12171, 0.0027203), (2.0, 0.11415, 0.15856, 0.0035994)),
    "positional": ((1.25, 0.04636, 0.12667, 0.0027097), (2.0, 0.05001, 0.129285, 0.0045153)),
}
_PRINTED_TRANSITION = 1.262


def _key() -> jax.Array:
    """One key for all theory here: common random numbers along a curve."""
    return jax.random.key(0)


def _curve(
    model: AbstractIndexModel, alphas: np.ndarray, learner: Erm, **settings: Any
) -> list[LearnerSolution]:
    """Theory of a learner at several α."""
    evolve = lambda alpha: state_evolution(model, alpha, learner=learner, key=_key(), **settings)
    return [cast(LearnerSolution, evolve(float(alpha))) for alpha in alphas]


def _column(curve: Sequence[Solution], quantity: str) -> np.ndarray:
    """A number of every solution; of matrices the first entry."""
    return np.array([float(np.ravel(getattr(point, quantity))[0]) for point in curve])


def _bars(curve: Sequence[LearnerSolution], quantity: str) -> np.ndarray:
    """The standard errors of `_column`."""
    each = [p.stderr if quantity == "overlap" else p.stderrs[quantity] for p in curve]
    return np.array([float(np.ravel(bar)[0]) for bar in each])


def _arrays(curve: Sequence[LearnerSolution], name: str) -> dict[str, np.ndarray]:
    """What is stored of a curve."""
    quantities = ("overlap", "teacher_overlap", "covariance", "energy", "error")
    arrays = {f"{name}_{quantity}": _column(curve, quantity) for quantity in quantities}
    arrays |= {f"{name}_{quantity}_stderr": _bars(curve, quantity) for quantity in quantities}
    for quantity in ("stability", "jump_fraction", "result"):
        arrays[f"{name}_{quantity}"] = _column(curve, quantity)
    return arrays


def _runs(
    model: AbstractIndexModel,
    at: np.ndarray,
    dimension: int,
    seeds: int,
    progress: bool,
    measure: Callable[..., float],
) -> np.ndarray:
    """A number (α, seeds) of runs, each on its own data: `measure(data, key)`."""
    values = np.full((len(at), seeds), np.nan)
    bar = tqdm(total=values.size, desc=f"runs, D={dimension}", disable=not progress, leave=False)
    for i, alpha in enumerate(at):
        for seed in range(seeds):
            data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
            data = model.sample(data_key, dimension=dimension, alpha=float(alpha))
            values[i, seed] = measure(data, key)
            bar.update()
    return values


# Double descent


def double_descent(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Double descent of ridge regression: the test error peaks at α = 1 for a small ridge, and not
    at all for the best one."""
    del reference  # compared with a closed form
    figure, (ax,) = axes_row()
    dimension, seeds = (400, 16) if full else (200, 8)
    beyond = np.linspace(1.2, 3.0, 19 if full else 10)
    alphas = np.concatenate([np.linspace(0.1, 1.1, 41 if full else 21), beyond])
    at = np.array([0.5, 0.8, 1.5, 2.5])
    model = links.linear(_NOISE)
    ridges = (*_RIDGES, _NOISE)
    curves = [_curve(model, alphas, Erm(ridge=ridge)) for ridge in ridges]
    known = [_ridge_error(alphas, ridge) for ridge in ridges]

    def measure(data: Any, key: jax.Array) -> float:
        run = gamp(model, data, learner=Erm(ridge=_RUN_RIDGE), key=key, max_steps=400)
        return float(run.error)

    runs = _runs(model, at, dimension, seeds, progress, measure)
    for k, exact in enumerate(known):
        overlay(ax, alphas, exact, line=True, label=None if k else "closed form")
    labels = [rf"$\lambda = {ridge:g}$" for ridge in _RIDGES]
    risk_against_alpha(curves, [*labels, rf"$\lambda = {_NOISE:g}$, the best"], ax)
    with_bars(ax, at, runs, color="k", label=rf"GAMP, $\lambda = {_RUN_RIDGE:g}$", zorder=3)
    ax.set_yscale("log")
    ax.set_ylabel(r"test error $E(\hat y - z^*)^2$")
    legend_above(ax, 3)
    arrays = {"alpha": alphas, "at": at, "runs": runs}
    for ridge, curve in zip(ridges, curves, strict=True):
        arrays |= _arrays(curve, f"ridge_{ridge:g}")
    caption = (
        f"Ridge regression on y = z* + noise of variance Δ = {_NOISE:g}: error on new samples, "
        "without their noise. Lines: theory of the minimum of the risk; grey: closed form. The "
        f"posterior mean is the ridge λ = Δ. Dots: message passing, D = {dimension}, means of "
        f"{seeds} data sets with their standard errors."
    )
    compared = _compared_ridges(alphas, curves, known)
    there = _ridge_error(at, _RUN_RIDGE)
    compared.append(finite_size(f"runs, λ = {_RUN_RIDGE:g}", runs, there, dimension))
    return Drawn(figure, arrays, caption, compared)


def _ridge_error(alphas: np.ndarray, ridge: float) -> np.ndarray:
    """E(ŷ - z*)² = 1 - 2m + q of ridge regression [theory: empirical-risk, Eq. (21)]."""
    b = ridge + alphas - 1.0
    V = (np.sqrt(b * b + 4.0 * ridge) - b) / (2.0 * ridge)
    m = V * alphas / (1.0 + V)
    c = alphas * V**2 / (1.0 + V) ** 2
    q = (m * m + c * (1.0 + _NOISE - 2.0 * m)) / (1.0 - c)
    return 1.0 - 2.0 * m + q


def _compared_ridges(
    alphas: np.ndarray, curves: Sequence[Sequence[LearnerSolution]], known: Sequence[np.ndarray]
) -> list[Comparison]:
    """Errors beside the closed form, the place of the peak, and the posterior mean."""
    compared = []
    for ridge, curve, exact in zip((*_RIDGES, _NOISE), curves, known, strict=True):
        tolerance = 5.0 * _bars(curve, "error") + 1e-6
        remark = "tolerance: five standard errors of the average, and 1e-6 of the fixed point"
        what = f"test error, λ = {ridge:g}"
        ours = _column(curve, "error")
        compared.append(compare(what, ours, exact, tolerance, remark, "closed form"))
    peak = alphas[np.argmax(_column(curves[0], "error"))]
    spacing = float(np.max(np.diff(alphas[alphas < 1.1])))
    what = f"peak of the test error, λ = {_RIDGES[0]:g}"
    remark = "tolerance: the spacing of α"
    compared.append(compare(what, peak, 1.0, spacing, remark, "α = 1 as λ → 0"))
    bayes = [state_evolution(links.linear(_NOISE), float(alpha), key=_key()) for alpha in alphas]
    best = _column(curves[-1], "error")
    tolerance = 5.0 * (_bars(curves[-1], "error") + _column(bayes, "stderr")) + 1e-3
    remark = "tolerance: five standard errors, and ten times the residual of Bayes, 1e-4"
    compared.append(
        compare("test error of λ = Δ", best, _column(bayes, "error"), tolerance, remark, "Bayes")
    )
    return compared


# Signs


def signs(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Classifiers of a sign teacher: logistic regression and the largest margin beside Bayes."""
    del reference  # compared with another formula
    figure, (errors, margins) = axes_row(2)
    dimension, seeds = (400, 16) if full else (200, 8)
    alphas = np.geomspace(0.5, 10.0, 31 if full else 13)
    random = np.linspace(0.2, 1.9, 18 if full else 9)
    at = np.array([1.0, 3.0])
    model = links.sign()
    student = links.linear()
    logistic = Erm(student, loss=losses.logistic, ridge=_LOGISTIC)
    hinge = Erm(student, loss=losses.hinge, ridge=_MARGIN)
    curves = {"logistic": _curve(model, alphas, logistic), "margin": _curve(model, alphas, hinge)}
    noise = _curve(links.sign(noise=jnp.inf), random, hinge)
    bayes = [state_evolution(model, float(a), key=_key(), q0=0.5) for a in alphas]
    known = [_largest_margin(float(alpha)) for alpha in alphas]
    separated = np.array([_random_margin(float(alpha)) for alpha in random])

    def measure(data: Any, key: jax.Array) -> float:
        return float(gamp(model, data, learner=logistic, key=key).cosine[0])

    runs = _runs(model, at, dimension, seeds, progress, measure)
    arrays = {"alpha": alphas, "alpha_random": random, "at": at, "runs": runs}
    arrays |= {"bayes_overlap": _column(bayes, "overlap"), "known_random": separated}
    arrays |= {"bayes_stderr": _column(bayes, "stderr")}
    arrays |= {f"known_{name}": np.array([getattr(m, name) for m in known]) for name in known[0]._fields}
    for name, curve in (*curves.items(), ("random", noise)):
        arrays |= _arrays(curve, name)
    _draw_errors(errors, arrays)
    _draw_margins(margins, arrays)
    caption = (
        "Labels sign(z*). Left: share of new labels that are wrong, arccos(cosine)/π, of the "
        f"logistic loss with λ = {_LOGISTIC:g}, of the hinge with λ = {_MARGIN:g}, whose minimum "
        "has the largest margin where the labels can be separated, and of Bayes. Dots: message "
        f"passing of the logistic loss, D = {dimension}, means of {seeds} data sets with their "
        "standard errors. Right: the largest margin κ = 1/√Q, also of random labels, which cannot "
        f"be separated from α = {_SEPARABLE:g} on; grey: computed another way, from the smallest "
        "loss at a given margin and cosine."
    )
    return Drawn(figure, arrays, caption, _compared_signs(arrays, dimension))


class _Margin(NamedTuple):
    """The largest margin κ of the labels of a teacher, and its cosine with the teacher."""

    margin: float
    cosine: float


def _shortfall(margin: float, cosine: float) -> float:
    """E(κ - t)₊², t of density 2 Φ(m t/√(1 - m²)) φ(t)."""
    steepness = cosine / np.sqrt(1.0 - cosine**2)
    density = lambda t: 2.0 * np.exp(log_ndtr(steepness * t) - 0.5 * t * t) / np.sqrt(2.0 * np.pi)
    lowest = -12.0  # of a normal number
    points = [0.0] if margin > 0.0 else None
    value, _ = quad(lambda t: (margin - t) ** 2 * density(t), lowest, margin, points=points)
    return float(value)


def _largest_margin(alpha: float) -> _Margin:
    """The κ at which min_m {α E(κ - t)₊² - (1 - m²)} is zero, and that m."""

    def lowest(margin: float) -> Any:
        height = lambda m: alpha * _shortfall(margin, m) - (1.0 - m * m)
        return minimize_scalar(height, bounds=(0.0, 1.0 - 1e-9), method="bounded", options={"xatol": 1e-10})

    margin = brentq(lambda margin: lowest(margin).fun, 1e-3, 10.0, xtol=1e-12)
    return _Margin(float(margin), float(lowest(margin).x))


def _random_margin(alpha: float) -> float:
    """The κ of random labels, at which α E(κ - t)₊² is one for m = 0."""
    return float(brentq(lambda margin: alpha * _shortfall(margin, 0.0) - 1.0, 0.0, 10.0, xtol=1e-12))


def _cosine(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    """M/√Q, of S = 1."""
    return arrays[f"{name}_teacher_overlap"] / np.sqrt(arrays[f"{name}_overlap"])


def _wrong(cosine: np.ndarray) -> np.ndarray:
    """The share of labels that are wrong, arccos(cosine)/π."""
    return np.arccos(cosine) / np.pi


def _draw_errors(ax: Axes, arrays: dict[str, np.ndarray]) -> None:
    """Classification errors against α."""
    alpha = arrays["alpha"]
    names = {"logistic": rf"logistic, $\lambda = {_LOGISTIC:g}$", "margin": "largest margin"}
    for k, (name, label) in enumerate(names.items()):
        ax.plot(alpha, _wrong(_cosine(arrays, name)), color=colour(k), label=label)
    ax.plot(alpha, _wrong(np.sqrt(arrays["bayes_overlap"])), "k--", label="Bayes")
    with_bars(ax, arrays["at"], _wrong(arrays["runs"]), color=colour(0), label="GAMP, logistic")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks([0.5, 1.0, 2.0, 5.0, 10.0], ["0.5", "1", "2", "5", "10"])
    ax.set_yticks([0.05, 0.1, 0.2, 0.3], ["0.05", "0.1", "0.2", "0.3"])
    ax.minorticks_off()
    ax.set_xlabel(r"sample complexity $\alpha$")
    ax.set_ylabel("classification error")
    small_legend(ax)


def _draw_margins(ax: Axes, arrays: dict[str, np.ndarray]) -> None:
    """Largest margins against α."""
    cases = (("margin", "alpha", "sign teacher"), ("random", "alpha_random", "random labels"))
    for k, (name, alpha, label) in enumerate(cases):
        exact = arrays["known_margin" if name == "margin" else "known_random"]
        overlay(ax, arrays[alpha], exact, line=True, label=None if k else "another formula")
        margin = 1.0 / np.sqrt(arrays[f"{name}_overlap"])
        ax.plot(arrays[alpha], margin, color=colour(k + 1), label=label)
    ax.axvline(_SEPARABLE, color="k", ls=":", lw=0.9)
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel(r"sample complexity $\alpha$")
    ax.set_ylabel(r"largest margin $\kappa = 1/\sqrt{Q}$")
    small_legend(ax)


def _compared_signs(arrays: dict[str, np.ndarray], dimension: int) -> list[Comparison]:
    """Margins and cosine beside the other formula, runs beside theory."""
    compared = []
    remark = "tolerance: five standard errors of the average, and 1e-6 for the ridge, which is not 0"
    for what, name, known in (
        ("largest margin, sign teacher", "margin", "known_margin"),
        ("largest margin, random labels", "random", "known_random"),
    ):
        Q = arrays[f"{name}_overlap"]
        tolerance = 2.5 * arrays[f"{name}_overlap_stderr"] / Q**1.5 + 1e-6
        ours = 1.0 / np.sqrt(Q)
        compared.append(compare(what, ours, arrays[known], tolerance, remark, "another formula"))
    Q = arrays["margin_overlap"]
    tolerance = 5.0 * arrays["margin_teacher_overlap_stderr"] / np.sqrt(Q) + 1e-6
    tolerance += 2.5 * arrays["margin_overlap_stderr"] / Q
    what = "cosine at the largest margin"
    known = arrays["known_cosine"]
    compared.append(
        compare(what, _cosine(arrays, "margin"), known, tolerance, remark, "another formula")
    )
    theory = np.interp(np.log(arrays["at"]), np.log(arrays["alpha"]), _cosine(arrays, "logistic"))
    compared.append(finite_size("cosine, logistic", arrays["runs"], theory, dimension))
    return compared


ARTICLE = Article(
    "empirical-risk",
    "High-dimensional learning of narrow neural networks",
    "2409.13904",
    {
        "double-descent": double_descent,
        "signs": signs,
    },
)
