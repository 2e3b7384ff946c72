r"""
Online SGD: softmax attention beside networks of squares
========================================================

.. image:: /assets/figures/sgd_attention.png
   :alt: Overlaps along runs of three students; steps to recovery against the number of tokens.

Online SGD of softmax attention beside tied and untied networks of squares.

Three students of :math:`g = \sum_l h_2(z_l)/\sqrt L`: softmax attention, a tied network of squares
(linear attention) and an untied one (arXiv 2506.02651, figure 10). Dots: runs of SGD; lines: linear
growth at the origin. From some length on softmax attention is faster than the untied
network, but never faster than the tied one.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_attention.png'
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from _common import DOTS, INK, QUICK, axes, compare, mean_and_stderr, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import colour, legend, legend_above

STUDENTS = {
    "softmax attention": sgd.Attention(),
    "tied, x²": sgd.Network(jnp.square),
    "untied, x²": sgd.Network(jnp.square, tied=False),
}
dimension, rate, level, count = 200, 2e-3, 0.2, 4 if QUICK else 8
lengths = (2, 4) if QUICK else (2, 4, 8)
noise = 1.0 / np.sqrt(dimension)
start = noise / np.hypot(1.0 - noise, noise)


def model_of(length, student):
    """The target with one of the students."""
    terms = {tuple(2 * (i == l) for i in range(length)): length**-0.5 for l in range(length)}
    target = sgd.HermiteSeries(terms, normalised=True)
    return smi.SequenceSingleIndex(target, length, student, loss_factor=1.0)


paths, times = ax = axes(2)
steps, linear = np.zeros((3, len(lengths), count)), np.zeros((3, len(lengths)))
for i, length in enumerate(lengths):
    for row, (name, student) in enumerate(STUDENTS.items()):
        model = model_of(length, student)
        first = start if model.tied else [start] * length
        curvature = -float(
            sgd.hessian(model, 0.0 if model.tied else [0.0] * length, key=jax.random.key(0))[0, 0]
        )
        if row:  # exact: 4 √2/√L, untied over L
            exact = 4.0 * np.sqrt(2.0) * length ** (-0.5 if model.tied else -1.5)
            compare(f"curvature, {name}, L = {length}", curvature, exact, 1e-6)
        time = sgd.recovery_time(model, first, rate=rate, level=level, key=jax.random.key(0)).value
        linear[row, i] = time * dimension / rate
        keys = jax.random.split(jax.random.key(10), count)
        settings = {"dimension": dimension, "rate": rate, "start": first}
        settings |= {"alpha": 3.0 * float(time) / rate, "monitor": smi.Monitor(level=level)}
        runs = sgd.simulate(model, keys, **settings)
        steps[row, i] = runs.reached
        if length == lengths[-1]:
            look = {"color": colour(row), "label": f"{name}, $L = {length}$"}
            paths.semilogx(runs.step[1:], np.mean(runs.cosine, axis=0)[1:], **look)
paths.axhline(level, color=INK, lw=0.8, ls=":", label=rf"level $\eta = {level:g}$")
paths.set(xlabel="steps", ylabel=r"overlap $\|m\|$, untied over $\sqrt{L}$")
for row, name in enumerate(STUDENTS):
    mean, stderr = mean_and_stderr(steps[row])
    times.errorbar(lengths, mean, stderr, label=name, **(DOTS | {"color": colour(row)}))
    times.semilogy(lengths, linear[row], color=colour(row), lw=0.9)
    # three standard errors; noise at the start, of size 1/√d as the start itself, helps or delays
    compare(f"steps, {name}", mean, linear[row], 3.0 * stderr + 0.15 * linear[row])
times.set(xlabel="tokens $L$", ylabel=rf"steps to $\eta = {level:g}$")
order = np.sign(np.mean(steps[0] - steps[2], axis=-1))
compare("softmax is slower than untied x² for few tokens", order[0], 1.0, 0.5)
if not QUICK:
    compare("softmax is faster than untied x² for many", order[-1], -1.0, 0.5)
legend_above(paths, 2)
legend(times, {"flow": {"lw": 0.9}})
save(ax, "sgd_attention")
