"""Figure 2: which layer is learned first, by message passing and by descent.

Source: [theory: deep-attention, section 7].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxsmi.core.driver import Record
from jaxsmi.core.results import Solution
from jaxsmi.descent.order import learned_at
from jaxsmi.descent.task import Batches
from jaxsmi.descent.training import train
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.models.deep_attention import DeepAttention
from jaxsmi.papers.common import (
    Comparison,
    Drawn,
    Folder,
    axes_row,
    compare,
    note,
    overlay,
    published,
)
from jaxsmi.papers.multi_index.two_layers import KEY
from jaxsmi.workbench import plotting
from jaxsmi.workbench.order import learning_order
from jaxsmi.workbench.plotting.palette import INK

__all__ = ["which_layer_first"]


def which_layer_first(
    full: bool = False, progress: bool = False, reference: Folder = None
) -> Drawn:
    """Figure 2: cosine similarity of each layer with the teacher's, along message passing and along
    gradient descent.
    """
    figure, (left, right) = axes_row(2, height=3.1)
    dimension, seeds = (1000, 16) if full else (500, 3)
    model, fit = _descent(full, progress)
    key = jax.random.key(1)
    data = model.sample(key, dimension=dimension, alpha=1.2)
    order = learning_order(model, data, {"GAMP": {}}, key=key, seeds=seeds, progress=progress)
    runs = order.solutions["GAMP"]
    trajectory = _theory(model, dimension, full)
    for p in range(2):
        cosine = np.sqrt(np.maximum(trajectory["overlap"][:, p, p], 0.0))
        label = r"state evolution, $\sqrt{Q}$" if p == 0 else None
        left.plot(trajectory["step"], cosine, color=INK, lw=0.9, zorder=1, label=label)
    plotting.learning_curves(runs, left, level=0.5)
    left.set_title(rf"GAMP, $\alpha = 1.2$, $D = {dimension}$", loc="right", y=0.04)
    compared = [_recovered(runs, dimension)]
    table = published(reference, "smi", "sgd_cosine_2layer.csv")
    if table is not None:
        for p in (1, 2):
            overlay(right, table["step"], table[f"cos{p}_mean"], line=True)
        compared += _same_descent(fit, table)
    plotting.learning_curves(fit, right, level=0.5, logarithmic=True)
    right.set_title(r"SGD, $\alpha = 15$, $D = 500$", loc="right", y=0.04)
    arrays = {
        "sgd_step": np.asarray(fit.history["step"])[0],
        "sgd_cosine": np.asarray(fit.history["cosine"]),
        "sgd_learned_at": np.asarray(learned_at(fit)),
        "gamp_cosine": np.asarray(runs.history["cosine"]),
        "gamp_learned_at": np.asarray(order.learned["GAMP"]),
        "theory_step": trajectory["step"],
        "theory_overlap": trajectory["overlap"],
    }
    first = {
        name: int(np.sum(arrays[f"{name}_learned_at"][:, 1] < arrays[f"{name}_learned_at"][:, 0]))
        for name in ("gamp", "sgd")
    }
    caption = (
        f"Both learn the last layer first: GAMP in {first['gamp']} of {seeds} runs, SGD in "
        f"{first['sgd']} "
        f"of {len(arrays['sgd_cosine'])} (at cosine 0.5 up to sign, dotted). Bands: one standard "
        "deviation "
        f"between runs. Thin: √Q of state evolution. SGD: {int(arrays['sgd_step'][-1])} batches, "
        "each used "
        "three times."
    )
    return Drawn(figure, arrays, caption + note(reference), compared)


def _descent(full: bool, progress: bool) -> tuple[DeepAttention, Solution]:
    """The published run: D = 500, α = 15, batches of 200 used three times, learning rate 15 on the
    loss over D.
    """
    model = DeepAttention(2, 2)
    dimension = 500
    key = jax.random.key(KEY)
    data = model.sample(key, dimension=dimension, alpha=15.0, dtype=jnp.float32)
    fit = train(
        model,
        data,
        optax.chain(optax.add_decayed_weights(0.07 / dimension), optax.sgd(15.0)),
        key=jax.random.split(key, 8 if full else 4),
        steps=64600 if full else 2500,
        batch_size=Batches(200, repeats=3),
        reduction="sum/D",
        init=0.9,
        record=Record(every=50 if full else 10),
        progress=progress,
    )
    return model, fit


def _theory(model: DeepAttention, dimension: int, full: bool) -> dict[str, np.ndarray]:
    """The trajectory of state evolution from the overlap that chance gives at this dimension."""
    solution = state_evolution(
        model,
        1.2,
        key=jax.random.key(KEY),
        q0=1.0 / dimension,
        side_information=1.0 / dimension,
        newton=False,
        samples=2**13 if full else 2**10,
        max_steps=100,
    )
    return solution.trajectory


def _recovered(runs: Solution, dimension: int) -> Comparison:
    """Cosines at the end of message passing beside perfect recovery."""
    cosines = np.asarray(runs.cosine).ravel()
    remark = f"tolerance: 0.02; D = {dimension}"
    return compare("cosines where GAMP ends", cosines, 1.0, 0.02, remark, "perfect recovery")


def _same_descent(fit: Solution, table: dict[str, np.ndarray]) -> list[Comparison]:
    """Mean cosines beside published ones, at the published steps that were recorded."""
    steps = np.asarray(fit.history["step"])[0]
    cosines = np.asarray(fit.history["cosine"])
    _, here, there = np.intersect1d(steps, table["step"], return_indices=True)
    remark = "tolerance: 0.05 and three joint standard errors of our and the eight published runs"
    compared = []
    for p in range(2):
        mean = cosines[:, here, p].mean(axis=0)
        stderr = cosines[:, here, p].std(axis=0, ddof=1) / len(cosines) ** 0.5
        known = table[f"cos{p + 1}_mean"][there]
        spread = table[f"cos{p + 1}_std"][there]
        allowed = 0.05 + 3.0 * np.hypot(stderr, spread / 8**0.5)
        compared.append(compare(f"cosine of layer {p + 1} along SGD", mean, known, allowed, remark))
    return compared
