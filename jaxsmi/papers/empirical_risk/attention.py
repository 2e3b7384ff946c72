"""One layer of attention: its error beside that of Bayes [Cui24], and its positional and semantic
minima [CBKZ24].

No equation lives here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from jaxsmi.core.codes import Result
from jaxsmi.core.results import LearnerSolution
from jaxsmi.descent.training import train
from jaxsmi.inference.branches import global_minimum
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.learners import losses
from jaxsmi.learners.erm import Erm
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.models.multi_index import MultiIndex
from jaxsmi.models.tokens import Tokens
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
    error_bars,
    runs_of,
    theory_key,
)
from jaxsmi.priors.gaussian import Gaussian
from jaxsmi.workbench.plotting import colour, legend, legend_above, line
from jaxsmi.workbench.plotting.palette import INK
from jaxsmi.workbench.plotting.risk import risk_against_alpha, unreached_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["attention_risk", "positional_semantic"]

_ATTENTION = (0.1, 0.3)
_REACHED = (Result.SUCCESS, Result.UNSTABLE)
_BOTTOM = 1e-3  # of the errors that are drawn
_RINGS: dict[str, Any] = {"marker": "o", "ms": 7.0, "mfc": "none", "ls": "none"}
_SPREAD = 0.25  # variance of a token, and of a weight in its units [CBKZ24]

# What is printed [CBKZ24] (docs/print.md, section 1.6), in our units: α, Q, |M| or |B|, energy
_PRINTED = {
    "semantic": ((1.25, 0.08188, 0.12171, 0.0027203), (2.0, 0.11415, 0.15856, 0.0035994)),
    "positional": ((1.25, 0.04636, 0.12667, 0.0027097), (2.0, 0.05001, 0.129285, 0.0045153)),
}
_PRINTED_TRANSITION = 1.262


def attention_risk(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """One layer of attention: the error of a minimum of the risk, for several ridges, and that of
    Bayes."""
    del reference  # no table is at hand
    figure, (ax,) = axes_row()
    dimension, seeds = (400, 16) if full else (200, 4)
    some = [0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0]
    alphas = np.linspace(0.2, 4.0, 39) if full else np.array(some)
    fine = np.union1d(np.linspace(0.1, 0.6, 51 if full else 11), alphas)
    at = np.array([2.0, 4.0])
    model = DeepAttention(depth=1, tokens=2)
    samples = 2**15 if full else 2**13
    curves = [curve_of(model, alphas, Erm(ridge=ridge), samples) for ridge in _ATTENTION]
    bayes = [state_evolution(model, float(a), key=theory_key(), tolerance=1e-9) for a in fine]
    ridge = _ATTENTION[0]
    descent = optax.chain(optax.add_decayed_weights(ridge), optax.sgd(0.1))

    def measure(data: Any, key: jax.Array) -> float:
        settings = {"steps": 500, "reduction": "sum", "loss": losses.squared}
        run = train(model, data, descent, key=key, init=data.teacher, **settings)
        return float(run.error)

    runs = runs_of(model, at, dimension, seeds, progress, measure)
    arrays = {"alpha": alphas, "alpha_bayes": fine, "at": at, "runs": runs}
    arrays |= {f"bayes_{name}": column(bayes, name) for name in ("error", "overlap", "result")}
    for value, curve in zip(_ATTENTION, curves, strict=True):
        arrays |= arrays_of(curve, f"ridge_{value:g}")
    labels = [rf"$\lambda = {value:g}$" for value in _ATTENTION]
    ax.set_yscale("log")
    ax.set_ylim(_BOTTOM, 0.4)
    risk_against_alpha(curves, labels, ax)
    recovered = _draw_bayes(ax, arrays)
    with_bars(ax, at, runs, color=INK, label=rf"descent, $\lambda = {ridge:g}$", zorder=3)
    legend_above(ax, 2, unreached_keys(curves))
    caption = (
        "One layer of tied attention on itself, two tokens, without label noise: error on new "
        "samples against α. Lines: theory of the minimum of the squared loss with a ridge λ; open "
        "circles: UNSTABLE, replica symmetry is broken or the proximal point jumps, and the "
        "numbers are approximations; crosses: no fixed point was reached. Dash-dotted: Bayes, "
        f"whose error is zero from α = {recovered:g} on. Dots: gradient descent with weight decay "
        f"from the teacher, D = {dimension}, means of {seeds} data sets with their standard errors."
    )
    theory = np.interp(at, alphas, arrays[f"ridge_{ridge:g}_error"])
    ratio = runs / theory[:, None]
    compared = [finite_size(f"descent, λ = {ridge:g}: error, ratio", ratio, 1.0, dimension)]
    return Drawn(figure, arrays, caption, compared)


def _draw_bayes(ax: Axes, arrays: dict[str, np.ndarray]) -> float:
    """The error of Bayes down to where it is zero, on a logarithmic axis; that α is returned."""
    alpha = arrays["alpha_bayes"]
    error = arrays["bayes_error"]
    shown = arrays["bayes_result"] == Result.SUCCESS
    recovered = alpha[arrays["bayes_result"] == Result.RECOVERED]
    edge = float(np.min(recovered)) if len(recovered) else np.inf
    shown &= alpha < edge
    ax.set_ylabel(r"test error $E\Vert\hat y - y\Vert^2$")
    x = np.append(alpha[shown], edge)
    ax.plot(x, np.append(error[shown], 1e-2 * _BOTTOM), color=INK, ls="-.", label="Bayes-optimal")
    return edge


# Positional and semantic attention


def positional_semantic(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Positional and semantic minima of one layer of attention: their energies cross."""
    del reference  # what is printed at two α is at hand
    figure, (energies, overlaps) = axes_row(2)
    grid = np.linspace(2.0, 0.8, 25) if full else np.array([2.0, 1.6, 1.25, 1.0])
    teacher, learner = _positional_semantic()
    curves: dict[str, list[LearnerSolution]] = {"semantic": [], "positional": []}
    starts: Sequence[Any] = ("informed", "directions")
    settings = {"samples": 2**15 if full else 2**13, "key": theory_key(), "learner": learner}
    for alpha in tqdm(grid, desc="α", disable=not progress, leave=False):
        branches = global_minimum(teacher, float(alpha), starts=starts, **settings)
        starts = [branch for branch in branches if int(branch.result) in _REACHED]
        for branch in starts:
            M = abs(column([branch], "teacher_overlap")[0])
            B = abs(column([branch], "direction_overlap")[0])
            curves["semantic" if M > B else "positional"].append(branch)
    arrays: dict[str, np.ndarray] = {}
    for name, curve in curves.items():
        curve.reverse()  # upwards in α
        arrays |= {f"{name}_alpha": column(curve, "alpha")} | arrays_of(curve, name)
        arrays[f"{name}_direction_overlap"] = column(curve, "direction_overlap")
        arrays[f"{name}_direction_overlap_stderr"] = error_bars(curve, "direction_overlap")
    crossing = _crossing(curves)
    arrays |= {"transition": np.array(crossing.alpha), "transition_error": np.array(crossing.error)}
    _draw_branches(energies, overlaps, arrays)
    caption = (
        "Attention that can answer by meaning or by position: a semantic minimum of the risk (M, "
        "overlap with the teacher) and a positional one (B, with the fixed direction). Left: their "
        f"energies, equal at α = {crossing.alpha:.3f} ± {crossing.error:.3f} (dotted). Open "
        "circles: UNSTABLE, the proximal point jumps for too many samples. Diamonds: printed, of a "
        "theory that takes the local minimum of the proximal problem [CBKZ24]."
    )
    return Drawn(figure, arrays, caption, _compared_branches(curves, crossing))


def _attention(z: jax.Array) -> jax.Array:
    """Softmax of the scores of two tokens with themselves."""
    return jax.nn.softmax(z.T @ z, axis=-1)


def _positional_semantic() -> tuple[MultiIndex, Erm]:
    """The teacher and the learner of [theory: empirical-risk, section 6]."""
    position = jnp.array([[0.6, 0.4], [0.4, 0.6]])
    teacher = MultiIndex(
        lambda z: 0.7 * _attention(z) + 0.3 * position,
        indices=1,
        tokens=2,
        prior=Gaussian([[_SPREAD]]),
        inputs=Tokens(encoding=jnp.array([2.0, -2.0])),
    )
    student = MultiIndex(_attention, indices=1, tokens=2)
    loss = lambda prediction, label: 0.5 * _SPREAD * jnp.sum((prediction - label) ** 2)
    return teacher, Erm(student, loss=loss, ridge=0.04)


class _Crossing(NamedTuple):
    """Where two energies are equal, its standard error, and the slope of their difference."""

    alpha: float
    error: float
    slope: float


def _crossing(curves: dict[str, list[LearnerSolution]]) -> _Crossing:
    """The step of Newton to equal energies from the α at which they are closest, with dE/dα = E 𝓜
    of each branch."""
    pairs = [
        (one, other)
        for one in curves["semantic"]
        for other in curves["positional"]
        if float(one.alpha) == float(other.alpha)
    ]
    gap = lambda pair: float(np.subtract(*column(pair, "energy")))
    pair = min(pairs, key=lambda pair: abs(gap(pair)))
    slope = float(np.subtract(*(np.mean(point.state.envelope) for point in pair)))
    error = float(np.hypot(*error_bars(pair, "energy")) / abs(slope))
    return _Crossing(float(pair[0].alpha) - gap(pair) / slope, error, slope)


def _draw_branches(energies: Axes, overlaps: Axes, arrays: dict[str, np.ndarray]) -> None:
    """Energies and overlaps of both minima, with what is printed."""
    letters = {"semantic": ("teacher", "|M|"), "positional": ("direction", "|B|")}
    for k, (name, (overlap, letter)) in enumerate(letters.items()):
        alpha = arrays[f"{name}_alpha"]
        shown = {
            energies: ("energy", 3, 1e3, f"{name} minimum"),
            overlaps: (f"{overlap}_overlap", 2, 1.0, f"{name}: ${letter}$"),
        }
        unstable = arrays[f"{name}_result"] == Result.UNSTABLE
        for ax, (quantity, place, unit, label) in shown.items():
            value = unit * np.abs(arrays[f"{name}_{quantity}"])
            bar = unit * arrays[f"{name}_{quantity}_stderr"]
            style: dict[str, Any] = line(k) | {"color": colour(k), "marker": ".", "label": label}
            ax.errorbar(alpha, value, bar, **style)
            ax.plot(alpha[unstable], value[unstable], color=colour(k), **_RINGS)
            printed = np.array(_PRINTED[name])
            overlay(ax, printed[:, 0], unit * printed[:, place], label="printed")
    for ax in (energies, overlaps):
        ax.axvline(float(arrays["transition"]), color=INK, ls=":", lw=0.9, label="equal energies")
        ax.set_xlabel(r"sample complexity $\alpha$")
        legend(ax, {"unstable": _RINGS})
    energies.set_ylabel(r"$10^3$ energy $R/D$")
    overlaps.set_ylabel("overlap")


def _compared_branches(
    curves: dict[str, list[LearnerSolution]], crossing: _Crossing
) -> list[Comparison]:
    """Energies and overlaps at the α of print, and the transition."""
    compared = []
    remark = (
        "tolerance: five standard errors, and {:g} %, by which print's local minimum of the "
        "proximal problem differs"
    )
    direction = {"semantic": "teacher_overlap", "positional": "direction_overlap"}
    for name, rows in _PRINTED.items():
        points = [p for row in rows for p in curves[name] if np.isclose(float(p.alpha), row[0])]
        quantities = ((1, "overlap", 0.04), (2, direction[name], 0.035), (3, "energy", 0.005))
        for place, quantity, share in quantities:
            printed = np.array([row[place] for row in rows])
            ours = np.abs(column(points, quantity))
            tolerance = 5.0 * error_bars(points, quantity) + share * printed
            what = f"{name} minimum: {quantity.replace('_', ' ')}"
            said = remark.format(100.0 * share)
            compared.append(compare(what, ours, printed, tolerance, said, "what is printed"))
    energy = _PRINTED["semantic"][0][3]
    tolerance = 5.0 * crossing.error + 0.005 * energy / abs(crossing.slope)
    what = "transition: equal energies"
    said = "tolerance: that of the energies, over the difference of their slopes"
    ours = crossing.alpha
    compared.append(compare(what, ours, _PRINTED_TRANSITION, tolerance, said, "what is printed"))
    return compared
