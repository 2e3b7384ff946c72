r"""
Online SGD: targets that a tied network cannot see
==================================================

.. image:: /assets/figures/sgd_blind.png
   :alt: Overlaps of tied, untied and weighted networks along SGD on two antisymmetric targets.

Targets that a tied network cannot learn, and that an untied or a weighted one can.

Of :math:`z_1 - z_2` and :math:`(z_1^2 - z_2^2)/\sqrt 2` a tied network sees a contraction of exactly
zero: nothing drives its overlap. An untied network learns them, and so does a tied one whose tokens
have fixed weights (arXiv 2506.02651, appendix E.4; the weights are not in the article). Lines: the
flow.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_blind.png'
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from _common import QUICK, axes, compare, mean_and_stderr, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import colour, legend

dimension, rate, count = 1000, 0.005, 4 if QUICK else 6
start = 1.0 / np.sqrt(dimension)
weights = jnp.array([0.8, 0.6])  # the contraction a_1^k - a_2^k is positive
STUDENTS = {
    "tied": sgd.Network(jax.nn.relu),
    "untied": sgd.Network(jax.nn.relu, tied=False),
    "weighted": lambda z: jax.nn.relu(weights @ z),
}


def growth(order, m, time):
    """Overlap of the weighted network at that time, from m: dm/dt = 2 c k C m^{k-1} (1 - m²), where
    C is the contraction of the target with the network, for which E relu' = 1/2, E relu'' = φ(0)."""
    if order == 1:
        return np.tanh(np.arctanh(m) + time * (weights[0] - weights[1]))
    rate = 2.0 * (weights[0] ** 2 - weights[1] ** 2) / np.pi**0.5
    return 1.0 / np.sqrt(1.0 + (1.0 / m**2 - 1.0) * np.exp(-2.0 * rate * time))


ax = axes(2)
for panel, order, steps in zip(ax, (1, 2), (100_000, 1_000_000), strict=True):
    if QUICK and order == 2:
        continue
    target = sgd.HermiteSeries({(order, 0): 1.0, (0, order): -1.0}, normalised=True)
    for k, (name, student) in enumerate(STUDENTS.items()):
        model = smi.SequenceSingleIndex(target, 2, student, loss_factor=1.0)
        first = [start, start] if name == "untied" else start
        keys = jax.random.split(jax.random.key(11), count)
        settings = {"dimension": dimension, "rate": rate, "start": first}
        runs = sgd.simulate(model, keys, alpha=steps / dimension, **settings)
        size = np.asarray(runs.cosine)
        panel.plot(
            runs.step[::8],
            size.mean(axis=0)[::8],
            "os^"[k],
            color=colour(k),
            mfc="none",
            label=name,
        )
        rows = np.asarray(runs.teacher_overlap)[:, -1, :, 0].T
        mean, stderr = mean_and_stderr(rows)
        if name == "weighted":
            limit = growth(order, start, np.asarray(runs.time)[-1])
            compare(f"weighted, k = {order}", mean, limit, 4.0 * stderr + 5.0 / dimension)
            continue
        flow = sgd.flow(model, first, np.asarray(runs.time)[1:], rate=rate)
        panel.plot(runs.step[1:], flow.cosine, color=colour(k), lw=0.9)
        limit = flow.teacher_overlap[-1, :, 0]
        compare(f"{name}, k = {order}", mean, limit, 3.0 * stderr + 5.0 / dimension)
    tied = smi.SequenceSingleIndex(target, 2, STUDENTS["tied"])
    risks = [float(sgd.risk(tied, x).value) for x in (0.0, 0.3, 0.7)]
    compare(f"risk of the tied network is flat, k = {order}", risks, risks[0], 1e-12)
    panel.set(title=("$z_1 - z_2$", r"$(z_1^2 - z_2^2)/\sqrt{2}$")[order - 1], xlabel="steps")
    panel.set_ylabel(r"overlap $\|m\|/\sqrt{L}$")
    legend(panel, {"flow": {"lw": 0.9}})
save(ax, "sgd_blind")
