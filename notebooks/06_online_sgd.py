# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Online SGD: which layer is learned first?
#
# Two layers of attention are learned by online SGD, which uses every sample once. The overlaps
#
# $$M=\frac{WW^{*\mathsf T}}D,\qquad Q=\frac{WW^{\mathsf T}}D$$
#
# of such a run are a Markov chain, which `smi.sgd.simulate` draws exactly at a cost independent of $D$. As $D\to\infty$ they follow a
# flow (`smi.sgd.flow`), and leave the unlearned state at computable rates (`smi.sgd.rates`). Which layer is learned first, and when?
#
# Theory: `docs/theory/online-sgd.md`, sections 11 to 13. Run time: some minutes on two cores.

# %%
import os
import time

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension, runs, samples = (200, 8, 2**14) if small else (500, 48, 2**17)
kappa = 0.2  # the learning rate for each sample
model = smi.DeepAttention(depth=2, tokens=2, skip=1.0)
key = jax.random.key(0)

# %% [markdown]
# ## 1. The rates of the unlearned state
#
# From a random start the cosine of the student's layer $p$ with the teacher's layer $q$ grows with $\alpha=N/D$ at the rate
# $\kappa\Lambda_{pq}-\frac{\kappa^2}2\mathbb E|s_p|^2/Q_{pp}$. Layer 2 grows 39 times faster than layer 1, which is at
# first drawn to the *teacher's layer 2*; its plain overlap does not even grow before layer 2 is known ($\mu_{11}<0$).

# %%
rates = smi.sgd.rates(model, key=key, averages=smi.Averages(8 * samples))
for p in range(2):
    for q in range(2):
        bar = float(rates.stderr.signal[p, q])
        print(
            f"layer {p + 1} to the teacher's layer {q + 1}: "
            f"Lambda = {float(rates.signal[p, q]):.4f} ± {bar:.4f},",
            f"mu = {float(rates.plain[p, q]):+.4f}",
        )

# %% tags=["remove-cell"]
assert rates.signal[1, 1] > 10 * rates.signal[0, 0]  # the last layer first
assert rates.signal[0, 1] > 3 * rates.signal[0, 0]  # drawn to the teacher's layer 2

# %% [markdown]
# ## 2. Runs, exact at any dimension
#
# The chain at $D=500$ from random starts until both cosines pass 0.9, and a few steps at $D=10^6$: they cost the same.

# %%
keys = jax.random.split(key, runs)
longest = 30.0 if small else 600.0
chain = smi.sgd.simulate(
    model,
    keys,
    dimension=dimension,
    rate=kappa,
    alpha=longest,
    monitor=smi.Monitor(target=0.9, every=dimension // 2),
)
reached = np.asarray(chain.reached_alpha)
for p in (1, 0):
    quartiles = np.sort(reached[:, p])[[runs // 4, runs // 2, 3 * runs // 4]]
    print(f"layer {p + 1}: alpha at cosine 1/2: quartiles", *(f"{a:.4g}" for a in quartiles))
if not small:
    assert (reached[:, 1] < reached[:, 0]).all()  # layer 2 first, in every run

seconds = []
for D in (10**3, 10**6):
    for _ in range(2):  # the second is compiled
        begin = time.perf_counter()
        far = smi.sgd.simulate(model, keys, dimension=D, rate=kappa, alpha=5000 / D)
        jax.block_until_ready(far.end)
    seconds.append((time.perf_counter() - begin) / (5000 * runs))
print(f"a step of a run: {1e6 * seconds[0]:.1f} µs at D = 1000, {1e6 * seconds[1]:.1f} µs at 10^6")

# %% [markdown]
# ## 3. The chain, whole vectors and the flow
#
# The same start for all three, $M$ of order 0.1. `smi.train` on a `Stream` moves whole weight vectors; the flow is the limit
# of many dimensions. Points are means of the runs with their standard errors.

# %%
start = ([[0.1, 0.02], [-0.03, 0.15]], [[1.0, 0.05], [0.05, 0.9]])
last = 4.0 if small else 40.0
alphas = np.linspace(0.0, last, 81)[1:]
path = smi.sgd.flow(
    model,
    start,
    kappa * alphas,
    rate=kappa,
    key=key,
    averages=smi.Averages(samples // 2),
    iteration=smi.Iteration(tolerance=1e-6),
)
chain = {"dimension": dimension, "rate": kappa, "alpha": last, "start": start}
many = smi.sgd.simulate(model, keys, **chain, monitor=smi.Monitor(every=dimension))
# whole vectors with the same overlaps: W = M W* + (Q - M Mᵀ)^{1/2} V of orthonormal rows W*, V
rows = np.linalg.qr(np.asarray(jax.random.normal(key, (dimension, 4))))[0].T * dimension**0.5
M, Q = map(np.array, start)
weights = M @ rows[:2] + np.linalg.cholesky(Q - M @ M.T) @ rows[2:]
few = smi.train(
    model,
    smi.Stream(model, rows[:2]),
    optax.sgd(kappa),
    key=keys[: 4 if small else 8],
    steps=int(last * dimension),
    gradient=smi.Gradient(batch_size=1),
    start=weights,
    monitor=smi.Monitor(every=5 * dimension),
)

with plotting.style():
    fig, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    for p in range(2):
        ax.plot(alphas, path.teacher_overlap[:, p, p], color=f"C{p}", label=f"layer {p + 1}, flow")
        whole = few.history["teacher_overlap"], few.history["step"][0] / dimension
        for (overlap, at), mark, name in (
            ((many.teacher_overlap, many.alpha), ".", "chain"),
            (whole, "o", "whole vectors"),
        ):
            M = np.asarray(overlap[:, :, p, p])
            bar = M.std(0, ddof=1) / np.sqrt(len(M))
            ax.errorbar(
                at,
                M.mean(0),
                bar,
                fmt=mark,
                mfc="none",
                color=f"C{p}",
                label=f"layer {p + 1}, {name}",
            )
    ax.set_xlabel(r"$\alpha=N/D$")
    ax.set_ylabel("overlap with the teacher")
    ax.legend(frameon=False, fontsize="small")
    plt.show()

gap = np.asarray(many.teacher_overlap[:, -1]).mean(0) - np.asarray(path.teacher_overlap[-1])
spread = np.asarray(many.teacher_overlap[:, -1]).std(0, ddof=1) / np.sqrt(runs)
allowed = 5.0 * np.hypot(spread, path.stderr.teacher_overlap[-1]) + 20.0 / dimension

# %% tags=["remove-cell"]
assert (np.abs(gap) < allowed).all()

# %% [markdown]
# ## 4. All learners in one picture
#
# Message passing finds layer 2 from $\alpha=0.186$ and layer 1 from $0.719$ on ([two layers](01_two_layers.ipynb)): in the same order,
# from two orders of magnitude fewer samples, each of which it may use many times. SGD that sees its data again and again is
# between the two. `notebooks/figures/sgd_learners.py` computes all of them, each beside its theory where one is known, in five
# minutes (`--full` for hours):
#
# ![cosines of both layers against samples over dimension, by all learners](../assets/online_sgd_order.png)
#
# Layer 1 waits at a second saddle: once layer 2 is learned its rate is positive, but small, and every saddle costs a
# logarithm of $D$. Above the learning rate `smi.sgd.maximal_rate(model, key=key)` the layers are found but not exactly.
