r"""Figures 7 to 9: how long tied and untied networks take, against the number of tokens.

Equations here [ALSKZ25, appendices E.1 and E.2; theory: online-sgd, Eqs. (15) to (17), (29), (30),
(47)], ReLU, c = 1, all rows from one overlap m_0. For g = Σ_l z_l/√L every row of both networks has

    dm/dt = (1 - m)(1 + m - 2γm),   V = 4 (1 - m),   untied: dm/dt over L
    t_η = ∫_{m_0}^η dm/((1 - m)(1 + (1 - 2γ) m)),   untied: times L

so that the gain is L at equal rates. At γ_untied = Lγ an untied network stops short of η from

    L = (1 + η)/(2γη)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxsmi import sgd
from jaxsmi.models.sequence_single_index import HermiteSeries, SequenceSingleIndex
from jaxsmi.papers.common import DOTS, Comparison, Drawn, Folder, axes_row, compare
from jaxsmi.sgd.tying import SCHEDULES, sum_of_squares
from jaxsmi.workbench.plotting import colour, legend, legend_above
from jaxsmi.workbench.plotting.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "equal_rates",
    "flow_of_linear_target",
    "growing_rate",
    "linear_target",
    "passage_time",
    "sum_of_fields",
]

NETWORKS = ("tied", "untied")
_MARKERS = "os^Dv"
_TABLE = {1: 0.99, 2: 1.97, 4: 3.86, 8: 7.96}  # [theory: online-sgd, Table 7], equal rates


class Race(NamedTuple):
    """What the runs of a figure have in common.

    Attributes:
        target: g of a number of tokens.
        rates: Learning rates of the tied and the untied network, from L and γ.
        gamma: γ.
        dimension: d.
        runs: How many of each network.
        eta: The level of weak recovery.
        steps: How many, where the flow does not reach that level.
        linear: Whether the target is that of the module docstring, whose flow is known.
    """

    target: Callable[[int], HermiteSeries]
    rates: Callable[[int, float], tuple[float, float]]
    gamma: float
    dimension: int
    runs: tuple[int, int]
    eta: float = 0.2
    steps: int = 20_000
    linear: bool = False

    @property
    def m(self) -> float:
        """The overlap at the start, [theory: online-sgd, Eq. (49)]."""
        o = 1.0 / np.sqrt(self.dimension)
        return float(o / np.sqrt((1 - o) ** 2 + o**2))


class Passage(NamedTuple):
    """Steps to weak recovery of one network at one length, and its mean path beside the flow.

    Attributes:
        mean: Over the runs (inf: a run did not arrive).
        stderr: Its standard error.
        flow: Of the flow of order two (inf: it does not get there).
        step: Steps of the records (records,).
        size: ‖m‖/√L, mean over the runs (records,).
        line: That of the flow (records,).
        allowed: Steps that each run had.
    """

    mean: float
    stderr: float
    flow: float
    step: np.ndarray
    size: np.ndarray
    line: np.ndarray
    allowed: int


def sum_of_fields(length: int) -> HermiteSeries:
    """g = Σ_l z_l/√L, of information exponent one."""
    terms = {tuple(int(i == l) for i in range(length)): length**-0.5 for l in range(length)}
    return HermiteSeries(terms)


def passage_time(gamma: float, m: float, eta: float) -> float:
    """t_η of a tied network for g = Σ_l z_l/√L (module docstring); inf where it stops short of η.

    Source: [theory: online-sgd, Eqs. (16), (17), (29)].
    """
    from scipy.integrate import quad

    if 1.0 + (1.0 - 2.0 * gamma) * eta <= 0.0:
        return np.inf
    return float(quad(lambda x: 1.0 / ((1.0 - x) * (1.0 + (1.0 - 2.0 * gamma) * x)), m, eta)[0])


def flow_of_linear_target(gamma: float, m: float, times: np.ndarray) -> np.ndarray:
    """m at the times t of a tied network for g = Σ_l z_l/√L (module docstring).

    Source: [theory: online-sgd, Eqs. (16), (17), (29)].
    """
    from scipy.integrate import solve_ivp

    drift = lambda t, v: (1.0 - v) * (1.0 + v - 2.0 * gamma * v)
    return solve_ivp(drift, (0.0, times[-1]), [m], t_eval=times, rtol=1e-9, atol=1e-12).y[0]


def _expected(race: Race, model: SequenceSingleIndex, rate: float) -> float:
    """Time at which the flow reaches η."""
    if race.linear:
        return passage_time(rate, race.m, race.eta) * (1.0 if model.tied else model.length)
    return float(sgd.recovery_time(model, race.m, gamma=rate, eta=race.eta, longest=100.0))


def _line(race: Race, model: SequenceSingleIndex, rate: float, times: np.ndarray) -> np.ndarray:
    """‖m‖/√L of the flow."""
    if race.linear:
        return flow_of_linear_target(rate, race.m, times / (1.0 if model.tied else model.length))
    overlaps = np.asarray(sgd.flow(model, race.m, times=times, gamma=rate).overlaps)
    return np.linalg.norm(overlaps, axis=-1) / (1.0 if model.tied else np.sqrt(model.length))


def _passage(race: Race, length: int, tied: bool, progress: bool) -> Passage:
    """Runs of one network, to 1.6 times what the flow takes."""
    network = sgd.Network(jax.nn.relu, tied)
    model = SequenceSingleIndex(race.target(length), length, network, loss_factor=1.0)
    rate = race.rates(length, race.gamma)[0 if tied else 1]
    expected = _expected(race, model, rate) * race.dimension / rate
    steps = int(1.6 * expected) if np.isfinite(expected) else race.steps
    runs = sgd.simulate(
        model,
        jax.random.split(jax.random.fold_in(jax.random.key(0), length), race.runs[1 - tied]),
        dimension=race.dimension,
        gamma=rate,
        steps=steps,
        m=race.m,
        eta=race.eta,
        progress=progress,
    )
    size = np.asarray(runs.m)
    size = size if tied else np.linalg.norm(size, axis=-1) / np.sqrt(length)
    reached = np.asarray(runs.reached)
    spread = np.std(reached, ddof=1) if np.all(np.isfinite(reached)) else np.nan
    return Passage(
        mean=float(np.mean(reached)),
        stderr=float(spread / np.sqrt(len(reached))),
        flow=expected,
        step=np.asarray(runs.step),
        size=np.mean(size, axis=0),
        line=_line(race, model, rate, np.asarray(runs.time)),
        allowed=steps,
    )


class _Result(NamedTuple):
    """Figure and panels of a race, its arrays, and its passages (tied and untied) by length."""

    figure: Figure
    axes: list[Axes]
    arrays: dict[str, np.ndarray]


def _draw(race: Race, lengths: tuple[int, ...], shown: tuple[int, ...], progress: bool) -> _Result:
    """Overlaps against steps at the lengths `shown`, steps to recovery, and the gain."""
    figure, axes = axes_row(3, height=2.8)
    paths, times, gains = axes
    table = np.full((2, 3, len(lengths)), np.nan)  # network; mean, its error, flow; length
    allowed = np.zeros((2, len(lengths)))
    arrays = {"lengths": np.array(lengths)}
    for k, length in enumerate(lengths):
        for row, name in enumerate(NETWORKS):
            one = _passage(race, length, row == 0, progress)
            table[row, :, k] = (one.mean, one.stderr, one.flow)
            allowed[row, k] = one.allowed
            if length in shown:
                marker = _MARKERS[shown.index(length)]
                style: dict[str, Any] = {"color": colour(row), "mfc": "none", "ls": "none"}
                label = f"{name}, $L = {length}$"
                paths.plot(one.step[::6], one.size[::6], marker, label=label, **style)
                paths.plot(one.step, one.line, color=colour(row), lw=0.9)
                path = {"steps": one.step, "m": one.size, "flow": one.line}
                arrays |= {f"{key}_{name}_{length}": value for key, value in path.items()}
    paths.axhline(race.eta, color=INK, lw=0.8, ls=":", label=rf"level $\eta = {race.eta:g}$")
    paths.set_xscale("log")
    paths.set_xlabel("steps")
    paths.set_ylabel(r"overlap $\|m\|/\sqrt{L}$")
    legend_above(paths, 2, {"flow": {"lw": 0.9}})
    for row, name in enumerate(NETWORKS):
        style: dict[str, Any] = DOTS | {"marker": _MARKERS[row], "color": colour(row)}
        times.errorbar(lengths, table[row, 0], table[row, 1], label=name, **style)
        if race.rates is SCHEDULES["equal"]:
            times.plot(lengths, table[row, 2], color=colour(row), lw=0.9)
    for ax, what in (
        (times, rf"steps to $\eta = {race.eta:g}$"),
        (gains, "steps, untied over tied"),
    ):
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("tokens $L$")
        ax.set_ylabel(what)
    legend(times, {"flow": {"lw": 0.9}})
    gain = table[1, 0] / table[0, 0]
    error = gain * np.hypot(*(table[:, 1] / table[:, 0]))
    arrays |= {f"steps_{name}": table[row, 0] for row, name in enumerate(NETWORKS)}
    arrays |= {f"steps_se_{name}": table[row, 1] for row, name in enumerate(NETWORKS)}
    arrays |= {f"steps_flow_{name}": table[row, 2] for row, name in enumerate(NETWORKS)}
    arrays |= {"gain": gain, "gain_se": error, "gain_flow": table[1, 2] / table[0, 2]}
    arrays["steps_allowed_untied"] = allowed[1]
    gains.errorbar(lengths, gain, error, color=colour(2), label="SGD", **DOTS)
    return _Result(figure, axes, arrays)


def _exponent(arrays: dict[str, np.ndarray]) -> tuple[float, float]:
    """Exponent of the gain by a weighted line in log L, and its standard error."""
    x = np.log(arrays["lengths"])
    weight = arrays["gain"] / arrays["gain_se"]
    fit, covariance = np.polyfit(x, np.log(arrays["gain"]), 1, w=weight, cov="unscaled")
    return float(fit[0]), float(np.sqrt(covariance[0, 0]))


def _equal(
    race: Race, lengths: tuple[int, ...], progress: bool
) -> tuple[_Result, list[Comparison]]:
    """A race at equal learning rates, and its comparisons: the gain is L."""
    shown = tuple(L for L in (1, 2, 4, 5, 10, 32) if L in lengths)[-3:]
    result = _draw(race, lengths, shown, progress)
    arrays = result.arrays
    slope, error = _exponent(arrays)
    arrays["exponent"] = np.array([slope, error])
    ax = result.axes[2]
    ax.plot(lengths, lengths, color=INK, lw=0.9, ls="--", label="$L$")
    ax.set_title(f"exponent {slope:.3f} ± {error:.3f}")
    for panel in result.axes[1:]:
        panel.set_xticks(lengths, [str(L) for L in lengths])
        panel.set_xticks([], minor=True)
    ax.set_yticks(lengths, [str(L) for L in lengths])
    ax.set_yticks([], minor=True)
    legend(ax)
    compared = [
        compare(
            "exponent of the gain, equal rates",
            slope,
            1.0,
            3.0 * error + 0.02,
            "tolerance: three standard errors of the fit, and 0.02 for starts of finite size",
            "the article",
        )
    ]
    for name in NETWORKS:
        flow = arrays[f"steps_flow_{name}"]
        allowed = 3.0 * arrays[f"steps_se_{name}"] + 0.03 * flow
        remark = "tolerance: three standard errors, and 3% for noise at the start, of size 1/√d"
        what = f"steps to recovery, {name}"
        compared.append(compare(what, arrays[f"steps_{name}"], flow, allowed, remark, "the flow"))
    return result, compared


def equal_rates(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 7: gain of tied networks at equal learning rates, a target of exponent two."""
    del reference  # none is published
    lengths = tuple(range(1, 11)) if full else (1, 2, 4)
    dimension = 1000 if full else 400
    race = Race(sum_of_squares, SCHEDULES["equal"], 0.005, dimension, (16, 12))
    result, compared = _equal(race, lengths, progress)
    arrays = result.arrays
    both = [k for k, L in enumerate(lengths) if L in _TABLE]
    known = np.array([_TABLE[lengths[k]] for k in both])
    allowed = 3.0 * np.hypot(arrays["gain_se"][both], 0.028 * known)
    remark = "tolerance: three standard errors of both, 2.8% there (γ = 0.002)"
    what = "gain against length"
    independent = "an independent computation"
    compared.append(compare(what, arrays["gain"][both], known, allowed, remark, independent))
    caption = (
        f"g = Σ h_2, ReLU, d = {dimension}, γ = 0.005 for both networks, η = 0.2. Dots: "
        "means over runs of SGD; lines: the flow of order two. The gain is L, against L² where "
        "γ_tied = L γ_untied (figure 3). The level η is chosen here."
    )
    return Drawn(result.figure, arrays, caption, compared)


def linear_target(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 8: gain of tied networks at equal learning rates, a target of exponent one."""
    del reference  # none is published
    lengths = (1, 2, 5, 8, 10, 15, 25, 32) if full else (1, 2, 5, 10)
    count = (24, 8) if full else (12, 6)
    race = Race(sum_of_fields, SCHEDULES["equal"], 0.005, 1000, count, linear=True)
    result, compared = _equal(race, lengths, progress)
    compared.append(_closed_form({1: race.gamma, 2: race.gamma}, race.m, race.eta))
    caption = (
        "g = Σ z_l/√L, of information exponent one, ReLU, d = 1000, γ = 0.005 for both networks, η "
        "= 0.2. Dots: means over runs of SGD; lines: the flow of order two. The gain is L = √L κ, "
        "κ = √L. The target's factor 1/√L, which keeps the largest rate of the untied network "
        "constant as the article says, and η are reconstructed."
    )
    return Drawn(result.figure, result.arrays, caption, compared)


def _closed_form(rates: Mapping[int, float], m: float, eta: float) -> Comparison:
    """Steps of the library's flow at a few lengths beside the integral of the module docstring."""
    ratios = []
    for length, rate in rates.items():
        network = sgd.Network(jax.nn.relu, length == 1)
        model = SequenceSingleIndex(sum_of_fields(length), length, network, loss_factor=1.0)
        time = float(sgd.recovery_time(model, m, gamma=rate, eta=eta, longest=100.0))
        ratios.append(time / (length * passage_time(rate, m, eta)))
    remark = f"lengths {', '.join(map(str, rates))}, relative; tolerance: that of the integrator"
    return compare(
        "time of the flow", np.array(ratios), np.ones(len(ratios)), 1e-5, remark, "an integral"
    )


def growing_rate(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Figure 9: an untied network whose learning rate grows with the length stops learning."""
    del reference  # none is published
    lengths = (1, 10, 20, 30, 40, 50, 55, 65, 80) if full else (1, 10, 30, 50, 70)
    lengths += (100, 150, 200) if full else ()
    rates = lambda L, gamma: (gamma, L * gamma)
    race = Race(sum_of_fields, rates, 0.05, 1000, (24, 24) if full else (12, 12), linear=True)
    result = _draw(race, lengths, (1, 30, 50, 80 if full else 70), progress)
    arrays = result.arrays
    longest = (1.0 + race.eta) / (2.0 * race.gamma * race.eta)
    every = np.linspace(1.0, longest, 200, endpoint=False)
    seconds = np.array([passage_time(race.gamma * L, race.m, race.eta) for L in every])
    first = passage_time(race.gamma, race.m, race.eta)
    ax = result.axes[2]
    ax.plot(every, seconds / first, color=INK, lw=1.0, label="flow, closed form")
    ax.axvline(
        longest, color=colour(1), ls=":", label=rf"$L = (1+\eta)/(2\gamma\eta) = {longest:g}$"
    )
    late = ~np.isfinite(arrays["gain"])
    bound = arrays["steps_allowed_untied"][late] / arrays["steps_tied"][late]
    ax.plot(arrays["lengths"][late], bound, "^", color=colour(2), mfc="none", label="more than")
    tied = first * race.dimension / race.gamma
    result.axes[1].plot(every, seconds / first * tied, color=colour(1), lw=0.9)
    for panel in result.axes[1:]:
        panel.set_xscale("linear")
        panel.set_yscale("linear")
    ax.set_ylim(0.0, 8.0)
    legend(ax)
    arrays |= {
        "longest": np.array(longest),
        "closed_lengths": every,
        "closed_gain": seconds / first,
    }
    caption = (
        f"g = Σ z_l/√L, ReLU, d = 1000, γ_tied = {race.gamma:g}, γ_untied = L γ_tied, η = 0.2. "
        "Naively the gain is 1; the untied network slows down and from L = 60 on it stays below "
        "η: its gain diverges. The rate 0.05 is that of the published configuration: with 0.005, "
        "which the article's caption has, the same happens at L = 600. η is chosen here. "
        "Triangles: bounds, where runs did not arrive."
    )
    return Drawn(result.figure, arrays, caption, _compared_growing(race, arrays, longest))


def _compared_growing(
    race: Race, arrays: dict[str, np.ndarray], longest: float
) -> list[Comparison]:
    """Times and gains where there are any, and the length from which there are none."""
    lengths = arrays["lengths"]
    scale = race.dimension / race.gamma
    lower = np.sqrt(race.eta**2 - 1.0 / race.dimension)
    exact, early = (
        scale * np.array([passage_time(race.gamma * L, race.m, level) for L in lengths])
        for level in (race.eta, lower)
    )
    tied = scale * passage_time(race.gamma, race.m, race.eta)
    finite = np.isfinite(exact) & np.isfinite(arrays["gain"])
    where = np.where(finite, exact, np.nan)
    spread = (where - np.where(finite, early, np.nan)) / tied
    allowed = 3.0 * arrays["gain_se"] + spread + 0.02 * where / tied
    remark = (
        "tolerance: three standard errors, 2% for noise at the start, and what η² - 1/d instead of "
        "η² changes: rows fluctuate by 1/√d"
    )
    checked = {L: race.rates(L, race.gamma)[1] for L in (1, 2, 3)}
    compared = [_closed_form(checked, race.m, race.eta)]
    compared.append(compare("gain", arrays["gain"], where / tied, allowed, remark, "the flow"))
    arrived = np.isfinite(arrays["steps_untied"])
    last, first = (float(f(lengths[mask])) for f, mask in ((np.max, arrived), (np.min, ~arrived)))
    remark = "tolerance: half of the gap between the lengths on the grid"
    what = "length at which untied runs stop learning"
    middle = 0.5 * (last + first)
    compared.append(compare(what, middle, longest, 0.5 * (first - last), remark, "(1 + η)/(2γη)"))
    return compared
