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
# # In which order are the layers learned, by message passing and by gradient descent?
#
# Both see the same teacher: two layers of attention, two tokens, skip strength one (notebook 02). Message passing is the
# best that is known to be possible, and learns the last layer first, with a long plateau before the first one. Gradient
# descent,
#
# $$w \leftarrow w - \eta\,\nabla_w\,\frac1{|B|}\sum_{\mu\in B}\|y_\mu - f_w(x_\mu)\|^2,$$
#
# knows neither the prior nor the channel. Does it go through the layers in the same order, and how much more data does it take?
#
# Source: Troiani, Cui, Dandi, Krzakala, Zdeborová, ICML 2025 (arXiv 2502.00901), section 5. Run time: two minutes on two cores.

# %%
import os

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension, alpha, steps, seeds = (200, 6.0, 300, 2) if small else (500, 15.0, 3000, 4)
key = jax.random.key(0)

# %% [markdown]
# ## 1. Two methods, one teacher
#
# `learning_order` runs each method from several random starts: GAMP on the first $1.2\,D$ samples, Adam on all $\alpha D$, in
# batches. "Learned" means that the cosine with the teacher has passed 1/2.

# %%
model = smi.DeepAttention(depth=2, tokens=2, skip=1.0)
data = model.sample(key, dimension=dimension, alpha=alpha)
methods = {
    "GAMP": {"alpha": 1.2},
    "Adam": {
        "optimizer": optax.adam(3e-2 if small else 1e-2),
        "steps": steps,
        "gradient": smi.Gradient(batch_size=dimension // 5 * 2),
    },
}
order = smi.learning_order(model, data, methods, key=key, seeds=seeds)

plotting.learning_order(order)
plt.show()

# %% [markdown]
# ## 2. When each layer was learned
#
# Steps at which half of the runs had passed 1/2 (`inf`: fewer than half did), and the spread between runs.

# %%
for name in methods:
    layer1, layer2 = order.median(name)
    runs = np.asarray(order.learned[name])
    first, last = runs[:, 1].min(), runs[:, 1].max()
    print(
        f"{name} at alpha = {order.alpha[name]:g}: layer 2 at step {layer2:.0f} ({first:.0f} to {last:.0f}),",
        end=" ",
    )
    print(
        f"layer 1 at step {layer1:.0f}; order of learning: layers {[p + 1 for p in order.order(name)]}"
    )
assert order.order("GAMP") == [1, 0]  # both, the last layer first
assert order.order("Adam")[0] == 1  # the last layer first, too
assert np.all(order.median("Adam") > order.median("GAMP"))

# %% [markdown]
# ## 3. What the loss shows of it
#
# The error on new samples falls when the last layer is learned and then rests on a plateau: the first layer hardly matters for
# it. The error of a student that knows layer 2 perfectly and nothing of layer 1 is the height of that plateau, and
# `generalization_error` gives it at the overlap $Q = \mathrm{diag}(0, 1)$.

# %%
plateau = smi.generalization_error(model, np.diag([0.0, 1.0]), key=key)
nothing = smi.generalization_error(model, np.zeros((2, 2)), key=key)
history = order.solutions["Adam"].history
with plotting.style():
    fig, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
    ax.semilogy(np.asarray(history["step"]).T, np.asarray(history["error"]).T, color="C0", lw=0.8)
    ax.axhline(float(plateau.value), color="k", ls="--", lw=1, label="layer 2 known, layer 1 zero")
    ax.set_xlabel("step of Adam")
    ax.set_ylabel("prediction error")
    ax.legend(frameon=False)
    plt.show()
print(f"Q = 0: {nothing.value:.4f}; plateau: {plateau.value:.4f} ± {plateau.stderr:.4f}")
ends = np.asarray(history["error"])[:, -1]
print(f"errors at the end of the runs: {np.array2string(ends, precision=4)}")
if small:  # too few steps to come to the plateau
    assert np.nanmin(history["error"]) < float(nothing.value)
else:
    assert (
        abs(np.median(ends) / float(plateau.value) - 1) < 0.1
    )  # a layer 1 that is slowly being learned lowers it

# %% [markdown]
# ## 4. Full-batch descent has an exact theory
#
# Descent that sees all $N=\alpha D$ samples at each step either learns or memorises. `descent_theory` gives what it has after each
# step as $D\to\infty$, from overlaps $M=0.1\,I$ with the teacher; dots are one run each at finite $D$ from the same overlaps (they scatter by some 0.1 at $D=500$ where nothing is learned). At
# $\alpha=1$ the training loss falls to a sixth of the loss on new samples, and the cosines stay where they were: memorised. At $\alpha=5$ the
# last layer is learned, and the first one is not, as by message passing.

# %%
start, summed, last = (0.1, 1.0), smi.Gradient(reduction="sum"), 15 if small else 40
few = smi.Averages(points=2**13 if small else 2**16)
with plotting.style():
    fig, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained", sharex=True)
    for style, a in (("--", 1.0), ("-", 5.0)):
        rate = 0.3 / a
        theory = smi.descent_theory(model, a, start, rate=rate, steps=last, key=key, averages=few)
        run = smi.train(
            model,
            model.sample(key, dimension=dimension, alpha=a),
            optax.sgd(rate),
            key=key,
            steps=last,
            gradient=summed,
            start=start,
            monitor=smi.Monitor(every=5),
        )
        step = theory.history["step"]
        for p in range(2):
            label = f"layer {p + 1}, $\\alpha$ = {a:g}"
            axes[0].plot(step, theory.history["cosine"][:, p], style, color=f"C{p}", label=label)
            axes[0].plot(
                run.history["step"], run.history["cosine"][:, p], "o", mfc="none", color=f"C{p}"
            )
        for color, name in (("k", "train_loss"), ("0.6", "test_loss")):
            label = f"{name.replace('_', ' ')}, $\\alpha$ = {a:g}"
            axes[1].semilogy(step, theory.history[name], style, color=color, label=label)
    axes[0].set_ylabel("cosine with the teacher")
    axes[1].set_ylabel("loss of a sample")
    for ax in axes:
        ax.set_xlabel("step of full-batch descent")
        ax.legend(frameon=False, fontsize=7)
    plt.show()
print(theory)
assert theory.cosine[1] > 5 * theory.cosine[0] or small  # alpha = 5: layer 2 alone
