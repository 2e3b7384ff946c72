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
# # Which model starts to be learned at a given amount of data? Gradients of thresholds
#
# A threshold $\alpha_c$ is a function of the parameters of the link, and differentiable: as the largest eigenvalue of a map
# for weak recovery, by the implicit function theorem for later steps of the staircase. So one can follow the gradient to the
# model that is learned from the least data, or to one that starts to be learned at a prescribed $\alpha$.
#
# Sources: Troiani, Dandi, Defilippis, Zdeborová, Loureiro, Krzakala, AISTATS 2025 (arXiv 2405.15480); Troiani, Cui, Dandi,
# Krzakala, Zdeborová, ICML 2025 (arXiv 2502.00901). Run time: two minutes on two cores.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
averages = smi.Averages(points=2**12 if small else 2**14)
key = jax.random.key(0)

# %% [markdown]
# ## 1. What the skip connection does to the threshold
#
# Of two attention layers with two tokens the last one is learned first, from $\alpha_2(c) = 1/\lambda_{\max}(F)$ on, where $c$
# is the strength of the skip connection around the first layer (notebook 02). The derivative of an eigenvalue is that of the
# map between its eigenvectors, $\mathrm d\lambda = \langle X, \mathrm dF(X)\rangle$. The parameter is $\log c$: it keeps $c$
# positive, and a unit of it is a sensible step. One key for all evaluations makes a smooth function of them, so that a finite
# difference is good to the square of its step:


# %%
def attention(log_skip):
    return smi.DeepAttention(depth=2, tokens=2, skip=jnp.exp(log_skip))


def height(log_skip):
    return smi.weak_recovery(attention(log_skip), key=key, averages=averages).alpha


start, slope = jax.value_and_grad(height)(0.0)
step = 1e-3
difference = (height(step) - height(-step)) / (2 * step)
print(
    f"alpha_2 = {start:.4f}, d alpha_2/d log c = {slope:.5f}, by a finite difference {difference:.5f}"
)
assert (
    abs(float(slope - difference)) < 1e-3 * abs(float(slope)) + 1e-5
)  # second order in the step, rounding below that

skips = np.array([0.5, 1.0, 2.0]) if small else np.geomspace(0.25, 4.0, 9)
stairs = [
    [smi.weak_recovery(attention(np.log(skip)), key=key, averages=averages)] for skip in skips
]
ax = plotting.thresholds_against(stairs, skips, parameter="skip strength c")
near = np.geomspace(0.6, 1.7, 20)
ax.plot(near, start + slope * np.log(near), "k--", lw=1.2, label="tangent at c = 1")
ax.set_xscale("log")
ax.minorticks_off()
ax.set_xticks([0.25, 0.5, 1.0, 2.0, 4.0], ["1/4", "1/2", "1", "2", "4"])
ax.legend(frameon=False, fontsize="small")
plt.show()
assert float(slope) < 0  # skips help

# %% [markdown]
# ## 2. A prescribed threshold
#
# Skips help. Which strength starts to learn at $\alpha = 0.2$? The answer is tested with a key of its own: an
# independent estimate of the threshold must agree within the two error bars.

# %%
settings = {"averages": averages, "iteration": smi.Iteration(max_steps=8)}
wanted = smi.search_threshold(attention, 0.0, key=key, target=0.2, **settings)
again = smi.weak_recovery(attention(wanted.parameters), key=jax.random.key(1), averages=averages)
print(
    f"alpha_2 = 0.2 at skip {float(np.exp(wanted.parameters)):.3f}, {wanted.steps} evaluations. {wanted.message}"
)
print(f"with another key: alpha_2 = {again.alpha:.4f} ± {again.stderr:.4f}")
assert abs(float(wanted.threshold.alpha) - 0.2) < 5e-4
assert (
    abs(float(again.alpha) - 0.2)
    < 4 * (float(again.stderr) ** 2 + float(wanted.threshold.stderr) ** 2) ** 0.5
)

# %% [markdown]
# ## 3. Thresholds beyond the first
#
# `step=1` asks for the second step of the staircase, the first layer: its threshold is found along the fixed point that has
# the last layer learned, and so is its derivative. That threshold is almost flat in the skip strength, so that the search
# needs more than $2^{15}$ samples and some ten minutes; it is not run here.
#
# ```python
# precise = {"averages": smi.Averages(points=2**15), "iteration": smi.Iteration(tolerance=0.03)}
# best = smi.search_threshold(attention, 0.0, key=key, step=1, **precise)
# ```
