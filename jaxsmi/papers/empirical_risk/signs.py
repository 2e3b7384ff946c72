"""Classifiers of a sign teacher [AKLZ20]: logistic regression and the largest margin.

Equations here, of a cosine m with the teacher:

    share of wrong labels   arccos(m)/π
    largest margin          κ at which min_m {α E(κ - t)₊² - (1 - m²)} = 0,  t of density
        2 Φ(m t/√(1 - m²)) φ(t); random labels have m = 0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.learners import losses
from jaxsmi.learners.erm import Erm
from jaxsmi.models import links
from jaxsmi.papers.common import (
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    finite_size,
    overlay,
    with_bars,
)
from jaxsmi.papers.empirical_risk.curves import (
    arrays_of,
    column,
    curve_of,
    followed,
    runs_of,
    theory_key,
)
from jaxsmi.workbench.plotting import colour, label_ends, legend, line
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["signs"]

_LOGISTIC = 0.1  # λ of the logistic loss
_MARGIN = 1e-4  # λ of the hinge: the largest margin is its limit λ → 0
_SEPARABLE = 2.0  # α from which random labels cannot be separated


def signs(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Classifiers of a sign teacher: logistic regression and the largest margin beside Bayes."""
    del reference  # compared with another formula
    figure, (errors, margins) = axes_row(2)
    dimension, seeds = (400, 16) if full else (200, 4)
    alphas = np.geomspace(0.5, 10.0, 31 if full else 13)
    random = np.linspace(0.2, 1.9, 18 if full else 9)
    at = np.array([1.0, 3.0])
    model = links.sign()
    student = links.linear()
    logistic = Erm(student, loss=losses.logistic, ridge=_LOGISTIC)
    hinge = Erm(student, loss=losses.hinge, ridge=_MARGIN)
    curves = {
        "logistic": curve_of(model, alphas, logistic),
        "margin": followed(model, alphas, hinge),
    }
    noise = followed(links.sign(noise=jnp.inf), random, hinge)
    bayes = [state_evolution(model, float(a), key=theory_key(), q0=0.5) for a in alphas]
    known = [_largest_margin(float(alpha)) for alpha in alphas]
    separated = np.array([_random_margin(float(alpha)) for alpha in random])

    def measure(data: Any, key: jax.Array) -> float:
        return float(gamp(model, data, learner=logistic, key=key).cosine[0])

    runs = runs_of(model, at, dimension, seeds, progress, measure)
    arrays = {"alpha": alphas, "alpha_random": random, "at": at, "runs": runs}
    arrays |= {"bayes_overlap": column(bayes, "overlap"), "known_random": separated}
    arrays |= {"bayes_stderr": column(bayes, "stderr")}
    arrays |= {
        f"known_{name}": np.array([getattr(m, name) for m in known]) for name in known[0]._fields
    }
    for name, curve in (*curves.items(), ("random", noise)):
        arrays |= arrays_of(curve, name)
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
    from scipy.integrate import quad
    from scipy.special import log_ndtr

    steepness = cosine / np.sqrt(1.0 - cosine**2)
    density = lambda t: 2.0 * np.exp(log_ndtr(steepness * t) - 0.5 * t * t) / np.sqrt(2.0 * np.pi)
    lowest = -12.0  # of a normal number
    points = [0.0] if margin > 0.0 else None
    value, _ = quad(lambda t: (margin - t) ** 2 * density(t), lowest, margin, points=points)
    return float(value)


def _largest_margin(alpha: float) -> _Margin:
    """The κ at which min_m {α E(κ - t)₊² - (1 - m²)} is zero, and that m."""

    from scipy.optimize import minimize_scalar, root_scalar

    def lowest(margin: float) -> Any:
        height = lambda m: alpha * _shortfall(margin, m) - (1.0 - m * m)
        return minimize_scalar(
            height, bounds=(0.0, 1.0 - 1e-9), method="bounded", options={"xatol": 1e-10}
        )

    margin = root_scalar(lambda x: lowest(x).fun, bracket=(1e-3, 10.0), xtol=1e-12).root
    return _Margin(float(margin), float(lowest(margin).x))


def _random_margin(alpha: float) -> float:
    """The κ of random labels, at which α E(κ - t)₊² is one for m = 0."""
    from scipy.optimize import root_scalar

    gap = lambda margin: alpha * _shortfall(margin, 0.0) - 1.0
    return float(root_scalar(gap, bracket=(0.0, 10.0), xtol=1e-12).root)


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
        ax.plot(alpha, _wrong(_cosine(arrays, name)), color=colour(k), label=label, **line(k))
    bayes = _wrong(np.sqrt(arrays["bayes_overlap"]))
    ax.plot(alpha, bayes, color=INK, ls="-.", label="Bayes-optimal")
    with_bars(ax, arrays["at"], _wrong(arrays["runs"]), color=colour(0), label="GAMP, logistic")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks([0.5, 1.0, 2.0, 5.0, 10.0], ["0.5", "1", "2", "5", "10"])
    ax.set_yticks([0.05, 0.1, 0.2, 0.3], ["0.05", "0.1", "0.2", "0.3"])
    ax.minorticks_off()
    ax.set_xlabel(r"sample complexity $\alpha$")
    ax.set_ylabel("share of wrong labels")
    label_ends(ax)


def _draw_margins(ax: Axes, arrays: dict[str, np.ndarray]) -> None:
    """Largest margins against α."""
    cases = (("margin", "alpha", "sign teacher"), ("random", "alpha_random", "random labels"))
    for k, (name, alpha, label) in enumerate(cases):
        exact = arrays["known_margin" if name == "margin" else "known_random"]
        overlay(ax, arrays[alpha], exact, line=True, label="another formula")
        margin = 1.0 / np.sqrt(arrays[f"{name}_overlap"])
        ax.plot(arrays[alpha], margin, color=colour(k + 1), label=label, **line(k))
    ax.axvline(_SEPARABLE, color=INK, ls=":", lw=0.9, label="random labels separable")
    ax.set_ylim(bottom=0.0)
    ax.set_xlabel(r"sample complexity $\alpha$")
    ax.set_ylabel(r"largest margin $\kappa = 1/\sqrt{Q}$")
    legend(ax)


def _compared_signs(arrays: dict[str, np.ndarray], dimension: int) -> list[Comparison]:
    """Margins and cosine beside the other formula, runs beside theory."""
    compared = []
    remark = (
        "tolerance: five standard errors of the average, and 1e-6 for the ridge, which is not 0"
    )
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
