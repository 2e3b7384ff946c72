r"""
Online SGD: an encoding that makes odd targets visible
======================================================

.. image:: /assets/figures/sgd_injection.png
   :alt: Risk against overlap with and without an injected encoding; runs of SGD beside the flow.

An encoding along the student's own weights makes odd targets visible to attention.

Attention is even, so that the risk of an odd target is flat. With an encoding along the student's own
weights its fields z become z + c, and the risk of a target of order k is one power of m:
:math:`R(0) - 2 c_k m^k`. Right: SGD of that student (dots) beside the flow (arXiv 2506.02651,
appendix D; c = (1, 1) is reconstructed).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_injection.png'
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from _common import INK, QUICK, axes, compare, error_bars, mean_and_stderr, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import colour, legend, line

plain = sgd.Attention(trace_norm="none")
injected = lambda z: plain(z + 1.0)
m = np.linspace(-0.9, 0.9, 13 if QUICK else 41)
ax = axes(3)
for panel, order in zip(ax, (1, 3), strict=False):
    target = sgd.HermiteSeries({(order, 0): 1.0, (0, order): 1.0})
    for k, (name, student) in enumerate((("no encoding", plain), ("injected", injected))):
        model = smi.SequenceSingleIndex(target, 2, student)
        risk = np.asarray(jax.lax.map(lambda x, f=model: sgd.risk(f, x).value, jnp.asarray(m)))
        panel.plot(m, risk, color=colour(k), label=name, **line(k))
        middle = risk[len(m) // 2]
        power = (risk[-1] - middle) * (m / m[-1]) ** order if k else 0.0
        # one power of m; rounding of integrals on a grid
        compare(f"risk, He{order}, {name}", risk, middle + power, 1e-9)
    panel.set(title=f"$He_{order}$", xlabel="overlap $m$", ylabel="risk $R(m)$")
    legend(panel)

# %%
# Runs on the target of order one, towards the side to which the risk falls.
dimension, count, rate = 200, 8 if QUICK else 16, 0.5
target = sgd.HermiteSeries({(1, 0): 1.0, (0, 1): 1.0})
model, start = smi.SequenceSingleIndex(target, 2, injected), -1.0 / np.sqrt(dimension)
keys = jax.random.split(jax.random.key(0), count)
monitor = smi.Monitor(every=int(dimension / rate))
runs = sgd.simulate(
    model, keys, dimension=dimension, rate=rate, alpha=12.0 / rate, start=start, monitor=monitor
)
overlap = np.asarray(runs.teacher_overlap)[:, 1:, 0, 0]
times = np.asarray(runs.time)[1:]
iteration = smi.Iteration(tolerance=1e-5)
flow = sgd.flow(model, start, times, rate=rate, iteration=iteration).teacher_overlap[:, 0, 0]
error_bars(ax[2], times, overlap.T, color=colour(1), label=f"mean of {count} runs")
ax[2].plot(times, flow, color=INK, label="flow")
ax[2].set(title=rf"SGD, $d = {dimension}$", xlabel=r"time $t = \gamma\tau/d$", ylabel="overlap $m$")
legend(ax[2])
mean, stderr = mean_and_stderr(overlap.T)
compare("SGD beside the flow", mean, flow, 3.0 * stderr + 5.0 / dimension)
save(ax, "sgd_injection")
