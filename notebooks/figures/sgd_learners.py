r"""
All learners of two layers of attention in one picture
======================================================

.. image:: /assets/figures/sgd_learners.png
   :alt: Cosines of both layers against samples over dimension for four learners.

All learners of two layers of attention, from message passing to online SGD, learn the last layer
first.

Cosines of both layers with the teacher against the samples that each learner has: message passing
on its state evolution; full-batch descent, 80 steps from a cosine of 0.1 at :math:`\alpha` = 1, 2 and 5,
on its theory; and online SGD (medians and quartiles of runs at D = 500, with the flow
:math:`D \to \infty`, dashed). All learn the last layer first; full-batch descent memorises at
:math:`\alpha = 1`.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_learners.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import QUICK, axes, compare, error_bars, gamp_runs, mean_and_stderr, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import band, colour, legend

model, key = smi.DeepAttention(2, 2), jax.random.key(0)
dimension, kappa = 500, 0.2
(ax,) = axes(2, height=3.6)[:1] if QUICK else axes(height=3.2)
ax.figure.set_size_inches(7.1, 3.6)

# %%
# Message passing on its theory.
alphas = np.array(
    [0.12, 0.35, 0.9]
    if QUICK
    else [0.12, 0.16, 0.2, 0.25, 0.35, 0.5, 0.6, 0.66, 0.72, 0.78, 0.9, 1.2]
)
theory = [
    smi.state_evolution(model, alpha, key=key, averages=smi.Averages(2**10)) for alpha in alphas
]
limit = np.sqrt(np.maximum([np.diagonal(point.overlap) for point in theory], 0.0))
at = np.array([0.35, 0.9])
passing = gamp_runs(model, at, dimension, 3, lambda run: run.cosine[1], start=1e-3)
mean, stderr = mean_and_stderr(passing)
expected = np.interp(at, alphas, limit[:, 1])
compare("message passing, layer 2", mean, expected, 3.5 / dimension**0.5 + 3.0 * stderr)
for p in range(2):
    ax.plot(alphas, limit[:, p], color=colour(p))
error_bars(ax, at, passing, color=colour(1))

# %%
# Full-batch descent from M = I/10, Q = I at α = 1, 2, 5: 80 steps at D = 1000, on its theory.
# The first value memorises its samples, the last one learns layer 2.
steps, runs = (10, 3) if QUICK else (80, 12)
summed, begin = smi.Gradient(reduction="sum"), (0.1, 1.0)
for alpha in (5.0,) if QUICK else (1.0, 2.0, 5.0):
    rate = 0.3 / alpha
    end = smi.descent_theory(model, alpha, begin, rate=rate, steps=steps, key=key)
    cosines = []
    for run in range(runs):
        own = jax.random.key(run)
        teacher = np.linalg.qr(np.random.default_rng(run).standard_normal((1000, 2)))[0].T
        data = model.sample(own, dimension=1000, alpha=alpha, teacher=1000**0.5 * teacher)
        fit = smi.train(
            model, data, optax.sgd(rate), key=own, steps=steps, gradient=summed, start=begin
        )
        cosines.append(fit.cosine)
    mean, stderr = mean_and_stderr(np.transpose(cosines))
    own = np.asarray(end.history["stderr"]["cosine"][-1])
    # corrections of finite D are of order 1/D
    spread = 3.5 * np.hypot(stderr, own) + 5e-3
    compare(f"full-batch descent at α = {alpha:g}", mean, end.cosine, spread)
    for p in range(2):
        error_bars(ax, [alpha], np.array([np.array(cosines)[:, p]]), color=colour(p), marker="s")
        ax.plot(alpha, end.cosine[p], "x", ms=7.0, color=colour(p))

# %%
# Online SGD: exact runs, and the flow from some of their starts. Medians of an independent
# computation and quartiles: [theory: online-sgd, Table 10].
count, last = (24, 40.0) if QUICK else (48, 400.0)
monitor = smi.Monitor(level=0.5, every=dimension // 2)
initial = sgd.Initial(teacher="orthonormal")
keys = jax.random.split(key, count)
runs = sgd.simulate(
    model, keys, dimension=dimension, rate=kappa, alpha=last, start=initial, monitor=monitor
)
for p, (median, low, high) in {1: (11.9, 10.6, 13.1), 0: (175.0, 146.0, 216.0)}.items():
    if p == 1 or not QUICK:
        ours = np.median(runs.reached_alpha[:, p])
        error = 1.25 / 1.35 * (high - low) * np.hypot(count**-0.5, 48**-0.5)
        compare(f"median α at cosine 1/2, layer {p + 1}", ours, median, 3.0 * error)
seen = np.geomspace(1.0, last, 20 if QUICK else 60)
averages, iteration = smi.Averages(points=2**14), smi.Iteration(tolerance=1e-4)
flows = []
for run in range(1 if QUICK else 5):
    start = (runs.teacher_overlap[run, 0], runs.overlap[run, 0])
    settings = {"rate": kappa, "key": key, "averages": averages, "iteration": iteration}
    flows.append(sgd.flow(model, start, kappa * seen, **settings).cosine)
shown = np.asarray(runs.alpha) >= 1.0
for p in range(2):
    quartiles = np.quantile(np.asarray(runs.cosine)[:, shown, p], [0.25, 0.5, 0.75], axis=0)
    band(ax, runs.alpha[shown], quartiles[0], quartiles[2], colour(p), within=(-1.0, 1.0))
    ax.plot(runs.alpha[shown], quartiles[1], lw=2.4, alpha=0.6, color=colour(p))
    ax.plot(seen, np.median(flows, axis=0)[:, p], "--", lw=1.1, color=colour(p))
keys = {f"layer {p + 1}": {"color": colour(p), "lw": 4.0} for p in range(2)}
keys |= {"state evolution": {}, "GAMP": {"marker": "o", "ls": "none"}}
keys |= {"full-batch descent": {"marker": "s", "ls": "none"}}
keys |= {"its theory": {"marker": "x", "ls": "none"}, "online SGD": {"lw": 2.4, "alpha": 0.6}}
legend(ax, keys | {"its flow": {"ls": "--"}}, loc="center left", bbox_to_anchor=(1.01, 0.5))
ax.set(xscale="log", ylim=(0.0, 1.05), ylabel="cosine with the teacher")
ax.set_xlabel(r"samples over dimension $\alpha=N/D$")
save(ax, "sgd_learners")
