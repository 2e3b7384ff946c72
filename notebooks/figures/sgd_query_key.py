r"""
Online SGD: query and key, tied and untied
==========================================

.. image:: /assets/figures/sgd_query_key.png
   :alt: Overlaps with the teacher of tied and untied students; overlap of query and key.

A student with query and key learns at half the rate of one with a single vector.

The label is the mean of a bilinear form of one direction, :math:`(\sum_l z_l)^2/L`; the student is the
same form with one vector (tied) or with a query and a key. These first agree with each other, to 1/2,
which gets the mean of the labels right, and then grow at half the rate of one vector. Bands: quartiles
of exact runs; dashed: the flow.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_query_key.png'
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import jaxsmi as smi
from _common import INK, QUICK, axes, compare, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import band, colour, legend

LENGTH, KAPPA, START = 4, 0.01, 0.04
dimension, count = (1000, 12) if QUICK else (2000, 48)


def mean_form(fields):
    """Σ_{l,m} q_l k_m/L of a query and a key (one row: the same)."""
    return jnp.sum(fields[0]) * jnp.sum(fields[-1]) / fields.shape[1]


def slopes(time, overlaps):
    """d(m, r)/dt of query and key at κ → 0, of overlaps m with the teacher and r with each other
    [theory: online-sgd, Eq. (74)]."""
    m, r = overlaps
    return 2 * m * (3 - 3 * r + 2 * r**2 - 2 * m**2), 4 * (1 - r) * (
        (1 - 2 * r) * (1 + r) + 2 * m**2
    )


teacher = smi.MultiIndex(mean_form, indices=1, tokens=LENGTH)
left, right = ax = axes(2)
key = jax.random.key(0)
for k, (name, rows, last) in enumerate((("tied", 1, 110.0), ("untied", 2, 220.0))):
    student = smi.MultiIndex(mean_form, indices=rows, tokens=LENGTH)
    start, rule = (np.full((rows, 1), START), np.eye(rows)), sgd.Rule(KAPPA, projection="sphere")
    keys = jax.random.split(key, count)
    runs = sgd.simulate(
        teacher, keys, dimension=dimension, rate=rule, alpha=last, start=start, student=student
    )
    times = KAPPA * np.linspace(0.0, last, 31)[1:]
    flow = sgd.flow(teacher, start, times, rate=rule, student=student, key=key)
    # without noise the flow is that of the closed equations
    still = sgd.Rule(0.0, projection="sphere")
    still = sgd.flow(teacher, start, times, rate=still, student=student, key=key)
    drift = slopes if rows == 2 else lambda t, v: (8 * v[0] * (1 - v[0] ** 2), 0.0 * v[1])
    exact = solve_ivp(drift, (0.0, times[-1]), [START, 0.0], t_eval=times, rtol=1e-10).y[0]
    stderr = still.stderr.teacher_overlap[:, 0, 0]
    compare(f"gradient flow, {name}", still.teacher_overlap[:, 0, 0], exact, 5.0 * stderr + 1e-6)
    overlap = np.abs(np.asarray(runs.teacher_overlap)[:, :, 0, 0])
    error = np.std(overlap[:, -1], ddof=1) / count**0.5
    limit = flow.teacher_overlap[-1, 0, 0]
    compare(f"runs at the end, {name}", np.mean(overlap[:, -1]), limit, 4.0 * error + 0.02)
    panels = [(left, overlap, flow.teacher_overlap[:, 0, 0])]
    if rows == 2:
        panels.append((right, np.asarray(runs.overlap)[:, :, 0, 1], flow.overlap[:, 0, 1]))
    for panel, values, path in panels:
        quartiles = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
        band(panel, runs.alpha, quartiles[0], quartiles[2], colour(k), within=(-1.0, 1.0))
        panel.plot(runs.alpha, quartiles[1], color=colour(k), label=f"{name}, median of runs")
        panel.plot(flow.alpha, path, "--", color=colour(k), label=f"{name}, flow")
right.axhline(0.5, color=INK, lw=0.9, ls=":", label="1/2")
for panel, name in ((left, "overlap with the teacher"), (right, "overlap of query and key")):
    panel.set(xlabel=r"samples over dimension $\alpha=N/D$", ylabel=name)
    legend(panel, {"quartiles": {"lw": 5.0, "alpha": 0.2}})
save(ax, "sgd_query_key")
