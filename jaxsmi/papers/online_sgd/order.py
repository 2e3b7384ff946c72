"""Which layer is learned first, and after how many samples: message passing, descent that sees its
data many times, and online SGD, with their theories, in one picture.

No article has it: the learning times of online SGD and the rates behind them are ours. Source:
[theory: online-sgd, section 13].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import optax
from tqdm import tqdm

from jaxsmi import sgd
from jaxsmi.descent.training import train
from jaxsmi.inference.message_passing import gamp
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.papers.common import (
    DOTS,
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    mean_and_error,
)
from jaxsmi.workbench.plotting import band, colour, legend
from jaxsmi.workbench.plotting.style import PAGE
from jaxsmi.workbench.sweeps.solvers import curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["all_learners"]

_KAPPA = 0.2  # learning rate for each sample
_BATCH = 10  # of descent that sees its data many times, at the same κ
_DIMENSION = 500
_LEVEL = 0.5
_INDEPENDENT = {1: (11.9, 10.6, 13.1), 0: (175.0, 146.0, 216.0)}  # [theory: online-sgd, Table 10]
_FLOWS = 9  # starts of the chain from which the flow begins
_SEEN = np.geomspace(1.0, 400.0, 80)  # α at which online SGD is drawn


class _Sizes(NamedTuple):
    """How much is computed: theory's points and their α, the α of learners with data sets, how many
    of them, runs of SGD, how far whole vectors are followed, updates of many passes over D."""

    samples: int
    alphas: np.ndarray
    passing: np.ndarray
    descent: np.ndarray
    seeds: int
    runs: int
    vectors: int
    last: float
    updates: int


_SMALL = _Sizes(
    samples=2**10,
    alphas=np.array([0.12, 0.16, 0.18, 0.2, 0.25, 0.35, 0.5, 0.6, 0.66, 0.72, 0.78, 0.9, 1.2]),
    passing=np.array([0.12, 0.35, 0.5, 0.9, 1.2]),
    descent=np.array([2.0, 4.0, 8.0]),
    seeds=4,
    runs=48,
    vectors=4,
    last=25.0,
    updates=400,
)
_FULL = _Sizes(
    samples=2**14,
    alphas=np.union1d(np.geomspace(0.1, 2.0, 40), [0.12, 0.2, 0.25, 0.35, 0.5, 0.6, 0.9, 1.2]),
    passing=np.array([0.12, 0.2, 0.25, 0.35, 0.5, 0.6, 0.9, 1.2]),
    descent=np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0]),
    seeds=8,
    runs=256,
    vectors=8,
    last=300.0,
    updates=2000,
)


def all_learners(full: bool = False, progress: bool = False, reference: Folder = None) -> Drawn:
    """Two layers of attention: cosines with the teacher of all learners against the samples that
    each has seen."""
    del reference  # none is published
    sizes = _FULL if full else _SMALL
    model = DeepAttention(2, 2)
    key = jax.random.key(0)
    solved = curve(model, sizes.alphas, key=key, progress=progress, samples=sizes.samples)
    Q = np.array([np.diagonal(one.overlap) for one in solved])
    arrays = {"alpha": sizes.alphas, "theory": np.sqrt(np.maximum(Q, 0.0))}
    arrays |= _from_data(model, sizes, progress)
    arrays |= _online(model, sizes, progress)
    figure, (ax,) = axes_row(height=3.6)
    figure.set_size_inches(PAGE, 3.6)
    _draw(ax, arrays)
    reached = np.median(arrays["reached"], axis=0)
    order = (arrays["reached"][:, 1] < arrays["reached"][:, 0]).mean()
    caption = (
        f"Two layers of attention, two tokens, c = 1, D = {_DIMENSION}, all from random starts. "
        f"Every learner learns the last layer first, online SGD in {100 * order:.0f} % of its "
        f"runs. Message passing beside state evolution: means of {sizes.seeds} data sets. SGD of "
        f"many passes: single runs of {sizes.updates * _DIMENSION // _BATCH} batches of {_BATCH}, "
        "out of the same αD samples again and again; no theory is known. Online SGD: medians and "
        f"quartiles of {sizes.runs} runs of the exact chain; they pass a cosine of 1/2 at α = "
        f"{reached[1]:.3g} and {reached[0]:.3g}. Dashed: the flow D → ∞ from {_FLOWS} of their "
        "starts, medians; it lacks the noise of the first steps, which is as large as starts of "
        f"size 1/√D are. Crosses: whole weight vectors, means of {sizes.vectors} runs to α = "
        f"{sizes.last:g}. Every SGD has κ = {_KAPPA}."
    )
    return Drawn(figure, arrays, caption, _compared(sizes, arrays))


def _from_data(model: DeepAttention, sizes: _Sizes, progress: bool) -> dict[str, np.ndarray]:
    """Cosines (α, seeds, P) of message passing on several data sets, of many passes from several
    starts on the first of them."""
    passing = np.full((len(sizes.passing), sizes.seeds, 2), np.nan)
    descent = np.full((len(sizes.descent), sizes.seeds, 2), np.nan)
    bar = tqdm(total=passing.size // 2, desc="message passing", disable=not progress, leave=False)
    rule: dict[str, Any] = {"steps": sizes.updates * _DIMENSION // _BATCH, "batch_size": _BATCH}
    largest = float(max(*sizes.passing, *sizes.descent))
    for seed in range(sizes.seeds):
        data_key, key = jax.random.split(jax.random.key(seed))
        data = model.sample(data_key, dimension=_DIMENSION, alpha=largest)
        for i, alpha in enumerate(sizes.passing):
            part = data.first(round(float(alpha) * _DIMENSION))
            passing[i, seed] = gamp(model, part, key=key, init=1e-3).cosine
            bar.update()
        if seed == 0:
            keys = jax.random.split(key, sizes.seeds)
            for i, alpha in enumerate(sizes.descent):
                part = data.first(round(float(alpha) * _DIMENSION))
                optimizer = optax.sgd(_KAPPA * _BATCH)
                descent[i] = train(
                    model, part, optimizer, key=keys, progress=progress, **rule
                ).cosine
    return {
        "passing_alpha": sizes.passing,
        "passing": passing,
        "descent_alpha": sizes.descent,
        "descent": descent,
    }


def _online(model: DeepAttention, sizes: _Sizes, progress: bool) -> dict[str, np.ndarray]:
    """Cosines of the chain (runs, α, P), of whole vectors and of the flow from the chain's starts,
    and the α at which each layer's cosine passes 1/2."""
    keys = jax.random.split(jax.random.key(0), sizes.runs)
    rule: dict[str, Any] = {"dimension": _DIMENSION, "rate": _KAPPA, "teacher": "orthonormal"}
    rule |= {"every": _DIMENSION // 2, "progress": progress}
    chain = sgd.simulate(model, keys, alpha=float(_SEEN[-1]), level=_LEVEL, **rule)
    few = keys[: sizes.vectors]
    vectors = sgd.simulate(model, few, alpha=sizes.last, method="full", **rule)

    def limit(M: jax.Array, Q: jax.Array) -> jax.Array:
        settings: dict[str, Any] = {"key": jax.random.key(1), "samples": 2**14, "rtol": 1e-4}
        return sgd.flow(model, (M, Q), times=_KAPPA * _SEEN, rate=_KAPPA, **settings).cosine

    starts = (chain.teacher_overlap[:_FLOWS, 0], chain.overlap[:_FLOWS, 0])
    return {
        "chain_alpha": np.asarray(chain.alpha),
        "chain": np.asarray(chain.cosine),
        "reached": np.asarray(chain.reached_alpha),
        "vectors_alpha": np.asarray(vectors.alpha),
        "vectors": np.asarray(vectors.cosine),
        "flow_alpha": _SEEN,
        "flow": np.asarray(jax.vmap(limit)(*starts)),
    }


def _draw(ax: Axes, arrays: dict[str, np.ndarray]) -> None:
    """Cosines against α: a colour for each layer, a mark or line for each learner."""
    for p in (1, 0):
        tint = colour(1 - p)
        hollow: dict[str, Any] = DOTS | {"color": tint}
        ax.plot(arrays["alpha"], arrays["theory"][:, p], color=tint)
        mean, error = mean_and_error(arrays["passing"][:, :, p])
        ax.errorbar(arrays["passing_alpha"], mean, error, **hollow)
        descent = arrays["descent"][:, :, p]
        ax.plot(arrays["descent_alpha"], descent, ls="none", mfc="none", marker="s", color=tint)
        _draw_online(ax, arrays, p, tint)
    ax.set_xscale("log")
    ax.set_ylim(0.0, 1.05)
    ax.set_xlabel(r"samples over dimension $\alpha=N/D$")
    ax.set_ylabel("cosine with the teacher")
    keys: dict[str, Any] = {
        "layer 2": {"color": colour(0), "lw": 4.0},
        "layer 1": {"color": colour(1), "lw": 4.0},
        "state evolution": {},
        "GAMP": DOTS,
        "SGD, many passes": DOTS | {"marker": "s"},
        "online SGD, median": {"lw": 2.4, "alpha": 0.6},
        "its quartiles": {"lw": 6.0, "alpha": 0.2},
        "its flow": {"ls": "--", "lw": 1.1},
        "whole vectors": {"marker": "x", "ls": "none"},
    }
    legend(ax, keys, loc="center left", bbox_to_anchor=(1.01, 0.5))


def _draw_online(ax: Axes, arrays: dict[str, np.ndarray], p: int, tint: str) -> None:
    """Runs of online SGD of a layer, their quartiles, whole vectors, and the flow."""
    shown = arrays["chain_alpha"] >= _SEEN[0]
    sparse = np.unique(np.searchsorted(arrays["vectors_alpha"], np.geomspace(1.0, 300.0, 18)))
    sparse = sparse[sparse < len(arrays["vectors_alpha"])]
    low, middle, high = np.quantile(arrays["chain"][:, shown, p], [0.25, 0.5, 0.75], axis=0)
    alpha = arrays["chain_alpha"][shown]
    band(ax, alpha, low, high, tint, within=(-1.0, 1.0))
    ax.plot(alpha, middle, lw=2.4, alpha=0.6, color=tint)
    flow = np.median(arrays["flow"][:, :, p], axis=0)
    ax.plot(arrays["flow_alpha"], flow, "--", lw=1.1, color=tint)
    mean = arrays["vectors"][:, sparse, p].mean(axis=0)
    ax.plot(arrays["vectors_alpha"][sparse], mean, "x", ms=4, color=tint)


def _compared(sizes: _Sizes, arrays: dict[str, np.ndarray]) -> list[Comparison]:
    """Learning times beside an independent computation, vectors beside the chain, message passing
    beside theory."""
    compared = []
    remark = "tolerance: three standard errors of both medians, 1.25 IQR/(1.35 √runs) each"
    for p, (middle, low, high) in _INDEPENDENT.items():
        times = arrays["reached"][:, p]
        spread = 1.25 / 1.35 * (high - low)
        allowed = 3.0 * spread * np.hypot(len(times) ** -0.5, 48**-0.5)
        what = f"median α at cosine 1/2, layer {p + 1}"
        ours = np.atleast_1d(np.median(times))
        compared.append(compare(what, ours, middle, allowed, remark, "independent runs"))
    ends = np.array([arrays["vectors"][:, -1, 1]])
    at = np.argmin(np.abs(arrays["chain_alpha"] - arrays["vectors_alpha"][-1]))
    others = np.array([arrays["chain"][:, at, 1]])
    (ours, error), (mean, other) = mean_and_error(ends), mean_and_error(others)
    remark = "tolerance: four standard errors of both"
    what = f"cosine of layer 2, whole vectors at α = {sizes.last:g}"
    compared.append(compare(what, ours, mean, 4.0 * np.hypot(error, other), remark, "the chain"))
    remark = f"tolerance: 3.5/√D, D = {_DIMENSION}, and three standard errors"
    for p in range(2):
        ours, error = mean_and_error(arrays["passing"][:, :, p])
        theory = np.interp(sizes.passing, sizes.alphas, arrays["theory"][:, p])
        allowed = 3.5 / _DIMENSION**0.5 + 3.0 * error
        what = f"message passing, layer {p + 1}"
        compared.append(compare(what, ours, theory, allowed, remark, "theory"))
    return compared
