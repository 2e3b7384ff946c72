"""Figure 11: targets that a tied network is blind to, and what fixed weights of the tokens mend.

Equations here [ALSKZ25, appendix E.4; theory: online-sgd, Eqs. (15), (16), (46)]: a tied network
sees the level k of a target through Σ_{|n|=k} √(k!/n!) ĝ_n, which vanishes for

    g = z_1 - z_2   (k = 1),   g = (z_1² - z_2²)/√2 = h_2(z_1) - h_2(z_2)   (k = 2)

An untied network, and a tied one whose tokens have weights a_l, see Σ_n √(k!/n!) ĝ_n Π_l a_l^{n_l}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi import sgd
from jaxsmi.models.sequence_single_index import HermiteSeries, SequenceSingleIndex
from jaxsmi.papers.common import Comparison, Drawn, Folder, axes_row, compare
from jaxsmi.papers.sequence_single_index.students import (
    Weighted,
    flow_of_weighted,
    random_weights,
)
from jaxsmi.workbench.plotting import colour, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["difference", "what_tied_networks_cannot_see"]

_COLOURS = {"tied": colour(0), "untied": colour(1), "weighted": colour(2)}
_MARKERS = {2: "o", 5: "s", 10: "^"}


class Case(NamedTuple):
    """One panel: a target, its lengths, and the runs.

    Attributes:
        order: The information exponent k.
        lengths: Numbers of tokens.
        steps: Steps of a run.
        runs: How many.
    """

    order: int
    lengths: tuple[int, ...]
    steps: int
    runs: int


_DIMENSION = 1000
_GAMMA = 0.005
_START = (1.0 / np.sqrt(_DIMENSION)) / np.hypot(1 - 1 / np.sqrt(_DIMENSION), _DIMENSION**-0.5)


def difference(order: int, length: int) -> HermiteSeries:
    """g = h_k(z_1) - h_k(z_2) of L tokens: antisymmetric, so that a tied network is blind to it.

    Source: [ALSKZ25, appendix E.4].
    """
    first, second = (tuple(order * (l == token) for l in range(length)) for token in (0, 1))
    return HermiteSeries({first: 1.0, second: -1.0}, normalised=True)


def what_tied_networks_cannot_see(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Figure 11: antisymmetric targets, learned by untied networks and not by tied ones."""
    del reference  # none is published
    figure, axes = axes_row(2)
    cases = (
        Case(1, (2, 5, 10), 100_000, 16 if full else 6),
        Case(2, (2,), 1_000_000, 16 if full else 6),
    )
    arrays: dict[str, np.ndarray] = {}
    compared: list[Comparison] = []
    for ax, case in zip(axes, cases, strict=True):
        for name in _COLOURS:
            ends = []
            for length in case.lengths[: 1 if name == "weighted" else None]:
                numbers, end = _draw_network(ax, case, length, name, progress)
                arrays |= {f"{key}_{name}_{case.order}_{length}": v for key, v in numbers.items()}
                ends.append(end)
            compared.append(_against_the_flow(case, name, np.concatenate(ends, axis=1)))
        compared.append(_blindness(case))
        ax.set_title(("$z_1 - z_2$", r"$(z_1^2 - z_2^2)/\sqrt{2}$")[case.order - 1])
        ax.set_xlabel("steps")
        ax.set_ylabel(r"overlap $\|m\|/\sqrt{L}$")
        ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
        legend(ax, {"flow": {"lw": 0.9}}, loc="upper left")
    caption = (
        f"ReLU, d = {_DIMENSION}, γ = {_GAMMA:g}; targets and sizes are those of the published "
        "configurations. Markers: means over runs of SGD; lines: the flow of order two. A tied "
        "network is blind to these targets: nothing drives its overlap. Not in the article's "
        'figure is "weighted": tied, with fixed random weights of the tokens, which the article '
        "leaves for future work; it learns, if the target's contraction with the weights is "
        "positive, as is arranged here by the order of two of them."
    )
    return Drawn(figure, arrays, caption, compared)


def _draw_network(
    ax: Axes, case: Case, length: int, name: str, progress: bool
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Runs and flow of one network; at the end of each row mean, its error, and flow (3, rows)."""
    target = difference(case.order, length)
    student = {
        "tied": sgd.Network(jax.nn.relu),
        "untied": sgd.Network(jax.nn.relu, tied=False),
        "weighted": Weighted(_favourable_weights(case.order, length), jax.nn.relu),
    }[name]
    model = SequenceSingleIndex(target, length, student, loss_factor=1.0)
    runs = sgd.simulate(
        model,
        jax.random.split(jax.random.fold_in(jax.random.key(11), length), case.runs),
        dimension=_DIMENSION,
        gamma=_GAMMA,
        steps=case.steps,
        m=_START,
        progress=progress,
    )
    times = np.asarray(runs.time)
    if name == "weighted":
        line = flow_of_weighted(target, student, _START, times, _GAMMA)[:, None]
    else:
        line = np.asarray(sgd.flow(model, _START, times=times, gamma=_GAMMA).overlaps)
    paths = np.asarray(runs.overlaps)  # (runs, records, rows)
    step = np.asarray(runs.step)
    size, flow = (np.linalg.norm(v, axis=-1) / np.sqrt(v.shape[-1]) for v in (paths, line))
    style: dict[str, Any] = {"color": _COLOURS[name], "mfc": "none", "ls": "none"}
    mean = np.mean(size, axis=0)
    ax.plot(step[::8], mean[::8], _MARKERS[length], label=f"{name}, $L = {length}$", **style)
    ax.plot(step, flow, color=_COLOURS[name], lw=0.9)
    arrays = {"steps": step, "m": mean, "flow": flow}
    error = np.std(paths[:, -1], axis=0, ddof=1) / np.sqrt(case.runs)
    return arrays, np.array([np.mean(paths[:, -1], axis=0), error, line[-1]])


def _favourable_weights(order: int, length: int) -> Array:
    """Random weights, the first two in the order in which a_1^k - a_2^k, the contraction, is >= 0.

    The article assumes that of its coefficients; else an even order has its minimum at m = 0.
    """
    weights = random_weights(jax.random.key(length), length)
    swapped = jnp.concatenate([weights[1::-1], weights[2:]])
    return jnp.where(weights[0] ** order >= weights[1] ** order, weights, swapped)


def _against_the_flow(case: Case, name: str, ends: np.ndarray) -> Comparison:
    """Mean overlaps of the rows of all lengths at the end beside the flow, from (3, rows)."""
    mean, error, flow = ends
    allowed = 3.0 * error + 5.0 / _DIMENSION
    remark = f"every row; tolerance: three standard errors of {case.runs} runs, and 5/d"
    what = f"overlaps at the end, {name}, exponent {case.order}"
    return compare(what, mean, flow, allowed, remark, "the flow")


def _blindness(case: Case) -> Comparison:
    """The risk of a tied network does not depend on m."""
    table = []
    for length in case.lengths:
        network = sgd.Network(jax.nn.relu)
        model = SequenceSingleIndex(difference(case.order, length), length, network)
        table.append([float(sgd.risk(model, m).value) for m in (0.0, 0.3, 0.7, 1.0)])
    risks = np.array(table)
    remark = "at m = 0.3, 0.7, 1 for all lengths; tolerance: rounding"
    what = f"risk of the tied network, exponent {case.order}"
    return compare(what, risks[:, 1:], risks[:, :1] + np.zeros(3), 1e-12, remark, "that at m = 0")
