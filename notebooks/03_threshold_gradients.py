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
# # Thresholds by gradients
#
# **What you learn:** to differentiate a threshold in a parameter of the model, and to find the parameter that gives a wanted threshold.
# *A minute on one core.*
#
# The $\alpha$ at which learning starts is a function of the parameters of the model, and it has derivatives. So one can ask the
# inverse question: which model starts to be learned at a given amount of data?
#
# Sources: Troiani, Dandi, Defilippis, Zdeborová, Loureiro, Krzakala, AISTATS 2025 (arXiv 2405.15480); Troiani, Cui, Dandi,
# Krzakala, Zdeborová, ICML 2025 (arXiv 2502.00901).

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()  # double precision
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
averages = smi.Averages(points=2**11 if small else 2**13)
key = jax.random.key(0)


# %% [markdown]
# ## 1. What the skip connection does to the threshold
#
# Of two attention layers the last one is learned first ([two layers](01_two_layers.ipynb)), from $\alpha_2(c) = 1/\lambda_{\max}$ on:
# $\lambda_{\max}$ is the largest eigenvalue of a linear map, and $c$ the strength of the skip connection. The parameter is $\log c$, which keeps $c$
# positive. All calls have one key, and so one set of random points: $\alpha_2$ is then a smooth function of $c$, and a finite difference can
# check its derivative.


# %%
def attention(log_skip):
    return smi.DeepAttention(depth=2, tokens=2, skip=jnp.exp(log_skip))


def height(log_skip):
    return smi.weak_recovery(attention(log_skip), key=key, averages=averages).alpha


start, slope = jax.value_and_grad(height)(0.0)
step = 1e-3
difference = (height(step) - height(-step)) / (2 * step)
print(
    f"alpha_2 = {start:.4f}, d alpha_2/d log c = {slope:.5f}, "
    f"by a finite difference {difference:.5f}"
)

skips = np.array([0.5, 1.0, 2.0]) if small else np.geomspace(0.25, 4.0, 9)
stairs = [
    [smi.weak_recovery(attention(np.log(skip)), key=key, averages=averages)] for skip in skips
]
ax = plotting.thresholds_against(
    stairs, skips, parameter="skip strength c", names=["layer 1", "layer 2"]
)
near = np.geomspace(0.6, 1.7, 20)
ax.plot(near, start + slope * np.log(near), "k--", lw=1.2, label="tangent at c = 1")
ax.set_xscale("log")
ax.minorticks_off()
ax.set_xticks([0.25, 0.5, 1.0, 2.0, 4.0], ["1/4", "1/2", "1", "2", "4"])
ax.legend(frameon=False, fontsize="small")
plt.show()

# %% tags=["remove-cell"]
assert (
    abs(float(slope - difference)) < 1e-3 * abs(float(slope)) + 1e-5
)  # second order in the step, rounding below that
assert float(slope) < 0  # a stronger skip connection needs less data

# %% [markdown]
# ## 2. The model with a given threshold
#
# A stronger skip connection lowers the threshold. At which strength does learning start at $\alpha = 0.2$? `search_threshold` finds
# it by Newton steps along the derivative. A second key, with other random points, tests the answer.

# %%
settings = {"averages": averages, "iteration": smi.Iteration(max_steps=8)}
wanted = smi.search_threshold(attention, 0.0, key=key, target=0.2, **settings)
again = smi.weak_recovery(attention(wanted.parameters), key=jax.random.key(1), averages=averages)
print(
    f"alpha_2 = 0.2 at skip {float(np.exp(wanted.parameters)):.3f}, {wanted.steps} evaluations. "
    f"{wanted.message}"
)
print(f"with another key: alpha_2 = {again.alpha:.4f} ± {again.stderr:.4f}")

# %% tags=["remove-cell"]
assert abs(float(wanted.threshold.alpha) - 0.2) < 5e-4
assert (
    abs(float(again.alpha) - 0.2)
    < 4 * (float(again.stderr) ** 2 + float(wanted.threshold.stderr) ** 2) ** 0.5
)

# %% [markdown]
# ## 3. Later thresholds
#
# `step=1` asks for the second threshold, that of the first layer. It is computed along the fixed point that has
# the last layer learned, and so is its derivative. It hardly depends on the skip connection, so that the search
# needs many random points, and more than ten minutes on one core. It is not run here:
#
# ```python
# precise = {"averages": smi.Averages(points=2**15), "iteration": smi.Iteration(tolerance=0.03)}
# best = smi.search_threshold(attention, 0.0, key=key, step=1, **precise)
# ```
#
# **Next:** [learners and their theories](04_learners.ipynb), or [differentiate through your own link](../docs/how-to/differentiate.md).
