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
# # Two layers of attention, learned in order
#
# **What you learn:** to run message passing on data, to compute its theory, and to find from how much data each layer is learned.
# *Two minutes on one core.*
#
# The teacher has two layers of attention without value matrices, each of rank one, and a skip connection. The label of a sequence
# $x\in\mathbb R^{D\times 2}$ of two Gaussian tokens is the attention matrix of the last layer,
#
# $$x_1 = x\,[\,I + \sigma(x^\top w_1 w_1^\top x/D)\,]^\top,\qquad
# y = \sigma(x_1^\top w_2 w_2^\top x_1/D)\in\mathbb R^{2\times 2},$$
#
# $\sigma$ the softmax of the rows. We see $N=\alpha D$ samples and look for both layers, $w_1$ and $w_2$.
#
# Source: Troiani, Cui, Dandi, Krzakala, Zdeborová, ICML 2025 (arXiv 2502.00901).

# %%
import os

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()  # double precision
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension, points = (200, 2**8) if small else (1000, 2**11)
key = jax.random.key(0)
averages = smi.Averages(points)

# %% [markdown]
# ## 1. Message passing on data
#
# `sample` draws a teacher, inputs and labels. `gamp` sees inputs and labels only. We start it from small random weights to
# watch it learn.
#
# Each new number of samples is compiled once (10 to 20 s); `smi.setup(cache="folder")` keeps the compiled programs for later processes.

# %%
model = smi.DeepAttention(depth=2, tokens=2, skip=1.0)
data = model.sample(key, dimension=dimension, alpha=1.2)
learned = smi.gamp(model, data, key=key, start=1e-3)
when = smi.learned_at(learned, level=0.5)
print(f"{int(learned.steps)} steps: {learned.message}")
print("cosine with the teacher, layers 1 and 2:", learned.cosine.round(4))
print(f"cosine 1/2 is passed at step {when[1]:.1f} by layer 2, at step {when[0]:.1f} by layer 1")

# %% tags=["remove-cell"]
assert when[1] < when[0] < np.inf  # the last layer first
assert np.all(learned.cosine > 0.99)

# %% [markdown]
# The last layer is learned in a few steps, the first one after a long plateau. Theory predicts the whole curve: as $D\to\infty$ the
# squared cosine of each layer follows a deterministic recursion, *state evolution*. A random start of dimension $D$ has
# squared cosines of about $1/D$, so theory is started there, too; `side_information` keeps the same $1/D$ for a layer that is not
# learned yet. Nothing is fitted.

# %%
theory = smi.state_evolution(
    model,
    1.2,
    key=key,
    start=smi.Start(1 / dimension, side_information=1 / dimension),
    averages=averages,
    iteration=smi.Iteration(100, newton=False),  # the recursion, step by step
)
ax = plotting.overlap_against_iteration(learned, theory)
_ = ax.text(0.97, 0.08, f"α = 1.2, D = {dimension}", transform=ax.transAxes, ha="right")
plt.show()

# %% [markdown]
# ## 2. How much data each layer needs
#
# The fixed point of the recursion is the overlap that message passing reaches. Here it is plotted against $\alpha$, with error bars from
# independent sets of random points.

# %%
alphas = (
    [0.1, 0.5] if small else [0.1, 0.17, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.1]
)
curve = [smi.state_evolution(model, alpha, key=key, averages=averages) for alpha in alphas]
plotting.overlap_against_alpha(curve, learned)
plt.show()
half = curve[alphas.index(0.5)]
bar = float(half.stderr[1, 1])
print(f"α = 0.5: layer 1 {half.overlap[0, 0]:.4f}, layer 2 {half.overlap[1, 1]:.4f} ± {bar:.4f}")

# %% tags=["remove-cell"]
assert float(half.overlap[0, 0]) < 0.01
assert (
    abs(float(half.overlap[1, 1]) - 0.772) < 4 * (bar**2 + 0.003**2) ** 0.5
)  # 0.772(3): an independent quadrature

# %% [markdown]
# ## 3. The thresholds
#
# Layer 2 starts to be learned at the $\alpha$ at which the fixed point of zero overlap becomes unstable, layer 1 at the $\alpha$ at which the
# fixed point with only layer 2 learned does. `staircase` finds these $\alpha$ directly. From `recovery_threshold` on, recovery is perfect:
# two rows are unknown, and each sample gives two equations.

# %%
stairs = smi.staircase(
    model,
    key=key,
    max_thresholds=1 if small else 2,
    averages=smi.Averages(points=2**8 if small else 2**11),
)
for step in stairs:
    layer = 1 + int(np.argmax(np.diagonal(step.subspace)))
    print(f"layer {layer} is learned from α = {step.alpha:.4f} ± {step.stderr:.4f} on")
recovery = smi.recovery_threshold(model)
print(f"recovery is perfect from α = {recovery.alpha:g} on")

# %% tags=["remove-cell"]
for step, (alpha, stderr) in zip(
    stairs, [(0.186, 0.002), (0.719, 0.006)], strict=False
):  # an independent quadrature
    assert abs(float(step.alpha) - alpha) < 4 * (float(step.stderr) ** 2 + stderr**2) ** 0.5
assert float(stairs[0].subspace[1, 1]) > 0.99  # the last layer first
assert abs(float(recovery.alpha) - 1.0) < 1e-12

# %% [markdown]
# ## 4. Gradient descent learns in the same order
#
# Adam on the squared error knows neither the prior nor the noise. It needs more data, and learns the last layer first,
# too. `learning_order` runs both methods on one teacher, from several random starts.

# %%
size, alpha, steps = (200, 6.0, 300) if small else (300, 15.0, 3000)
data = model.sample(key, dimension=size, alpha=alpha)
descent = {
    "optimizer": optax.adam(3e-2 if small else 2e-2),
    "steps": steps,
    "gradient": smi.Gradient(batch_size=size // 5 * 2),
}
order = smi.learning_order(model, data, {"GAMP": {"alpha": 1.2}, "Adam": descent}, key=key, seeds=2)
print(order)
plotting.learning_order(order)
plt.show()

# %% tags=["remove-cell"]
assert order.order("Adam")[0] == 1  # the last layer first

# %% [markdown]
# **Next:** [your own model](02_own_model.ipynb), or [how to compute thresholds](../docs/how-to/thresholds.md).
