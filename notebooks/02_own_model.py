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
# # Your own model
#
# **What you learn:** to turn a JAX function into a model, to learn it from data, and to check theory against data.
# *A minute and a half on one core.*
#
# Our labels are a saturating measure of intensity, with noise of variance $\Delta$:
#
# $$y = \tanh(z^2) + \sqrt\Delta\,\xi,\qquad z = \frac{w^*\cdot x}{\sqrt D},\qquad \Delta = 0.1 .$$
#
# How well can the direction $w^*\in\mathbb R^D$ be learned from $N=\alpha D$ samples, by the best algorithm and by gradient descent?

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()  # double precision
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension, points = (300, 2**9) if small else (1000, 2**11)
key = jax.random.key(0)
averages = smi.Averages(points)


# %% [markdown]
# ## 1. The model
#
# A link takes the fields of one sample, an array (indices, tokens), here (1, 1). It is an ordinary JAX function.


# %%
def link(z):
    return jnp.tanh(z[0, 0] ** 2)


model = smi.MultiIndex(link, indices=1, noise=0.1)

# %% [markdown]
# ## 2. From how much data on is anything learned?
#
# $w^*$ and $-w^*$ give the same labels, so labels are not correlated with $z$: below a threshold in $\alpha$ no fast algorithm
# learns anything.

# %%
threshold = smi.weak_recovery(model, key=key)
print(f"learning starts at α = {threshold.alpha:.4f} ± {threshold.stderr:.4f}")

# %% [markdown]
# The formula behind it is $1/\alpha_c = \mathbb E\,(\mathbb E[z^2|y]-1)^2$. For a known link we can check it: if
# $y=|z|$ without noise, the label fixes $z^2$, and $\alpha_c = 1/\mathbb E(z^2-1)^2 = 1/2$.

# %%
known = smi.weak_recovery(smi.links.phase_retrieval(), key=key)
print(f"y = |z|: α = {known.alpha:.4f} ± {known.stderr:.4f}, exactly 0.5")

# %% tags=["remove-cell"]
assert abs(float(known.alpha) - 0.5) < 4 * float(known.stderr)

# %% [markdown]
# ## 3. How much is learned above it?
#
# The overlap is the squared cosine of estimate and teacher as $D\to\infty$. `gamp` learns from data of finite $D$; circles are single
# runs.

# %%
alphas = [1.0, 3.0] if small else [0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0]
curve = [smi.state_evolution(model, alpha, key=key, averages=averages) for alpha in alphas]
runs = {}
for alpha in (3.0,) if small else (3.0, 5.0):
    data = model.sample(key, dimension=dimension, alpha=alpha)
    runs[alpha] = smi.gamp(model, data, key=key)
    print(f"α = {alpha:g}: squared cosine {float(runs[alpha].cosine[0]) ** 2:.3f}")
    assert runs[alpha].converged

ax = plotting.overlap_against_alpha(curve, runs[3.0], names=["w"], legend=False)
for alpha, run in runs.items():
    ax.plot(alpha, float(run.cosine[0]) ** 2, "o", mfc="none", color="C0")
ax.axvline(float(threshold.alpha), color="0.5", lw=0.8, ls=":")
ax.set_title(f"theory (line), one run each at D = {dimension} (circles)", fontsize="medium")
plt.show()
theory = curve[alphas.index(3.0)]
apart = float(runs[3.0].cosine[0] ** 2 - theory.overlap[0, 0])
print(f"α = 3: run - theory = {apart:+.3f} = {apart * dimension**0.5:+.1f}/√D")

# %% tags=["remove-cell"]
assert abs(apart) < 4 / dimension**0.5  # fluctuations are of order 1/√D

# %% [markdown]
# ## 4. Predict new labels
#
# `predict` applies the link to the learned direction. `generalization_error` is its mean squared error as $D\to\infty$, from the
# overlap of theory. To compare with new labels, add the variance of their noise.

# %%
data = model.sample(key, dimension=dimension, alpha=3.0)
new = model.sample(jax.random.key(1), dimension=dimension, alpha=5.0, teacher=data.teacher)
squares = (model.predict(runs[3.0], new.inputs) - new.labels) ** 2
measured, spread = float(squares.mean()), float(squares.std()) / new.samples**0.5
limit = smi.generalization_error(model, theory.overlap, key=key)
print(f"on {new.samples} new labels: {measured:.4f} ± {spread:.4f}")
print(f"theory: {float(limit.value) + 0.1:.4f}")

# %% tags=["remove-cell"]
assert abs(measured - float(limit.value) - 0.1) < 5 * spread + 2 / dimension**0.5


# %% [markdown]
# ## 5. Change it
#
# A parameter of the link is an argument of a Python function. How does the threshold depend on the gain $c$ of
# $\tanh(c z^2)$?


# %%
def with_gain(c):
    return smi.MultiIndex(lambda z: jnp.tanh(c * z[0, 0] ** 2), indices=1, noise=0.1)


gains = [0.5, 2.0] if small else [0.25, 0.5, 1.0, 2.0, 4.0]
found = [smi.weak_recovery(with_gain(c), key=key, averages=smi.Averages(4 * points)) for c in gains]
for c, one in zip(gains, found, strict=True):
    print(f"gain {c:g}: α = {one.alpha:.3f} ± {one.stderr:.3f}")

# %% [markdown]
# **Next:** [thresholds by gradients](03_threshold_gradients.ipynb) answers this by derivatives; links of several fields, random labels and
# noiseless links are on the page [your own link](../docs/how-to/own-link.md).
