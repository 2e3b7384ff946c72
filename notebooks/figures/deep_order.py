r"""
Two layers of attention: which layer is learned first
=====================================================

.. image:: /assets/figures/deep_order.png
   :alt: Cosines of both layers along message passing and along gradient descent.

Message passing and gradient descent both learn the last of two layers first.

Cosine of each layer with the teacher's, along message passing (thin: state evolution) and along
gradient descent in batches of 200, each used three times. Grey: published descent (arXiv 2502.00901).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/deep_order.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import GREY, INK, QUICK, axes, compare, published, save
from jaxsmi.workbench import plotting

model, dimension, key = smi.DeepAttention(2, 2), 500, jax.random.key(1)
left, right = ax = axes(2, height=3.1)

# %%
# Message passing ends at perfect recovery.
data = model.sample(key, dimension=dimension, alpha=1.2)
order = smi.learning_order(model, data, {"GAMP": {}}, key=key, seeds=2 if QUICK else 3)
passing = order.solutions["GAMP"]
compare("cosines where GAMP ends", passing.cosine, 1.0, 0.02)
learned = np.asarray(order.learned["GAMP"])
compare("layer 2 before layer 1", np.sign(learned[:, 0] - learned[:, 1]), 1.0, 0.5)
chance = 1.0 / dimension  # the overlap of a random start
start = smi.Start(overlap=chance, side_information=chance)
plain, points = smi.Iteration(max_steps=100, newton=False), smi.Averages(points=2**10)
theory = smi.state_evolution(model, 1.2, key=key, start=start, averages=points, iteration=plain)
steps, overlaps = theory.trajectory["step"], theory.trajectory["overlap"]
for p in range(2):
    left.plot(steps, np.sqrt(np.maximum(overlaps[:, p, p], 0.0)), color=INK, lw=0.9, zorder=1)
plotting.learning_curves(passing, left, level=0.5)
left.set_title(rf"GAMP, $\alpha = 1.2$, $D = {dimension}$", loc="right", y=0.04)

# %%
# Descent as published: α = 15, rate 15 on the loss over D, a weight decay.
data = model.sample(jax.random.key(0), dimension=dimension, alpha=15.0, dtype="float32")
optimizer = optax.chain(optax.add_decayed_weights(0.07 / dimension), optax.sgd(15.0))
fit = smi.train(
    model,
    data,
    optimizer,
    key=jax.random.split(jax.random.key(0), 4),
    steps=1000 if QUICK else 2500,
    gradient=smi.Gradient(reduction="sum/D", batch_size=200, repeats=3),
    start=0.9,
    monitor=smi.Monitor(every=10),
)
if table := published("smi", "sgd_cosine_2layer.csv"):
    ours = np.asarray(fit.history["step"])[0]
    _, here, there = np.intersect1d(ours, table["step"], return_indices=True)
    for p in range(2):
        right.plot(table["step"], table[f"cos{p + 1}_mean"], color=GREY, lw=2.8, zorder=0.5)
        cosines = np.asarray(fit.history["cosine"])[:, here, p]
        stderr = cosines.std(axis=0, ddof=1) / len(cosines) ** 0.5
        spread = table[f"cos{p + 1}_std"][there] / 8**0.5  # eight published runs
        allowed = 0.05 + 3.0 * np.hypot(stderr, spread)
        known = table[f"cos{p + 1}_mean"][there]
        compare(f"descent, layer {p + 1}", cosines.mean(axis=0), known, allowed)
plotting.learning_curves(fit, right, level=0.5, logarithmic=True)
right.set_title(r"SGD, $\alpha = 15$, $D = 500$", loc="right", y=0.04)
save(ax, "deep_order")
