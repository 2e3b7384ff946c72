r"""
Online SGD: tied and untied networks
====================================

.. image:: /assets/figures/sgd_tying.png
   :alt: Overlaps along runs; steps to recovery against the number of tokens; gain of tying.

A tied network recovers the target sooner than an untied one, by a factor of the number of tokens.

A network that shares one direction between its L tokens against one that has a direction for each, on
:math:`g = \sum_l z_l/\sqrt L` (arXiv 2506.02651). At equal rates the untied one takes L times as long;
at the rate :math:`L\gamma` it would be as fast, but slows down, and from :math:`L = (1 + \eta)/(2
\gamma\eta)` on it never reaches the level :math:`\eta`. Lines: the flow, in closed form
:math:`\dot m = (1 - m)(1 + m - 2\gamma m)`, for untied networks over L.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_tying.png'
import jax
import numpy as np
from scipy.integrate import quad

import jaxsmi as smi
from _common import DOTS, INK, QUICK, axes, compare, mean_and_stderr, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import colour, legend, markers

dimension, level, count = 1000, 0.2, 6 if QUICK else 12
noise = 1.0 / np.sqrt(dimension)
start = noise / np.hypot(1.0 - noise, noise)


def passage(rate):
    """Time of the flow from the start to the level."""
    speed = lambda m: (1.0 - m) * (1.0 + (1.0 - 2.0 * rate) * m)
    return quad(lambda m: 1.0 / speed(m), start, level)[0]


def runs(length, tied, rate, steps):
    """Runs of SGD at a learning rate, all rows from one overlap."""
    terms = {tuple(int(i == l) for i in range(length)): length**-0.5 for l in range(length)}
    network = sgd.Network(jax.nn.relu, tied)
    model = smi.SequenceSingleIndex(sgd.HermiteSeries(terms), length, network, loss_factor=1.0)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), length), count)
    monitor = smi.Monitor(level=level)
    first = start if tied else [start] * length
    alpha = steps / dimension
    return sgd.simulate(
        model, keys, dimension=dimension, rate=rate, alpha=alpha, start=first, monitor=monitor
    )


# %%
# Equal rates: steps, and their ratio.
rate, lengths = 0.01, [1, 2, 5] if QUICK else [1, 2, 5, 10]
expected = passage(rate) * dimension / rate
paths, times, growing = ax = axes(3, height=2.8)
steps = np.zeros((2, len(lengths), count))
for i, length in enumerate(lengths):
    for row, tied in enumerate((True, False)):
        flow = expected * (1 if tied else length)
        run = runs(length, tied, rate, 1.6 * flow)
        steps[row, i] = run.reached
        if length == lengths[-1]:
            name = "tied" if tied else "untied"
            label = f"{name}, $L = {length}$"
            paths.semilogx(run.step, np.mean(run.cosine, axis=0), color=colour(row), label=label)
for row, name in enumerate(("tied", "untied")):
    mean, stderr = mean_and_stderr(steps[row])
    flow = expected * np.array(lengths if row else [1] * len(lengths))
    times.errorbar(lengths, mean, stderr, label=name, **(DOTS | {"color": colour(row)}))
    times.loglog(lengths, flow, color=colour(row), lw=0.9)
    # three standard errors, and 5 % for the noise at the start, of size 1/√D
    compare(f"steps to recovery, {name}", mean, flow, 3.0 * stderr + 0.05 * flow)
paths.axhline(level, color=INK, lw=0.8, ls=":", label=rf"level $\eta = {level:g}$")
paths.set(xlabel="steps", ylabel=r"overlap $\|m\|/\sqrt{L}$", ylim=(0, 0.5))
times.set(xlabel="tokens $L$", ylabel=rf"steps to $\eta = {level:g}$")
legend(paths)
legend(times, {"flow": {"lw": 0.9}})

# %%
# The rate grows with the length: γ_untied = L γ.
rate = 0.05
longest = (1.0 + level) / (2.0 * rate * level)
tied = passage(rate) * dimension / rate
every = np.linspace(1.0, longest, 100, endpoint=False)
growing.plot(every, [passage(rate * x) / passage(rate) for x in every], color=INK, label="flow")
growing.axvline(longest, color=colour(1), ls=":", label=rf"$L = {longest:g}$")
many = [10, 70] if QUICK else [10, 30, 50, 70]
for length in many:
    run = runs(length, False, length * rate, 20_000)
    arrived = np.asarray(run.reached)
    below = length < longest
    compare(f"share of runs that arrive, L = {length}", np.mean(np.isfinite(arrived)), below, 0.01)
    if below:
        mean, stderr = mean_and_stderr(arrived / tied)
        growing.errorbar(length, mean, stderr, **markers(2))
        expected = passage(rate * length) / passage(rate)
        # at high rates ‖m‖ is read with fluctuations of the rows of size 1/√D
        compare(f"gain, L = {length}", mean, expected, 3.0 * stderr + 0.1 * expected)
growing.set(xlabel="tokens $L$", ylabel=r"steps, untied at $L\gamma$ over tied", ylim=(0, 8))
legend(growing, {"SGD": markers(2)})
save(ax, "sgd_tying")
