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
# # Quickstart: how much data does it take to learn a direction?
#
# A direction $w^*\in\mathbb R^D$ is hidden. We see $N=\alpha D$ Gaussian inputs $x_\mu$ and, of each, only a modulus:
#
# $$y_\mu = |z_\mu|,\qquad z_\mu = \frac{w^*\cdot x_\mu}{\sqrt D}\qquad\text{(phase retrieval).}$$
#
# How well can $w^*$ be known, as $D\to\infty$ at fixed $\alpha$? Three answers that must agree: an algorithm on data (`gamp`),
# the exact theory of that algorithm (`state_evolution`), and the $\alpha$ where learning starts (`weak_recovery`).
#
# Sources: Barbier, Krzakala, Macris, Miolane, Zdeborová, PNAS 2019 (arXiv 1708.03395); Mondelli, Montanari, COLT 2018
# (arXiv 1708.05932). Run time: about a minute on two cores, most of it compilation.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsmi as smi
from jaxsmi import plotting

jax.config.update("jax_enable_x64", True)  # theory is float64
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension, samples, points = (400, 2**11, 4) if small else (2000, 2**13, 14)
key = jax.random.key(0)

# %% [markdown]
# ## 1. Data, and an algorithm
#
# A model draws a teacher, inputs and labels. `gamp` sees inputs and labels only; it starts from noise of size $10^{-3}$. The
# label does not know the sign of $w^*$, so the cosine is taken up to that sign.

# %%
model = smi.links.phase_retrieval()
data = model.sample(key, dimension=dimension, alpha=0.9)
learned = smi.gamp(model, data, key=key)
print(f"{data.samples} samples in {data.dimension} dimensions, {int(learned.steps)} steps: {learned.message}")
print(f"cosine with the teacher: {learned.cosine[0]:.4f}")

# %% [markdown]
# ## 2. What theory says about it
#
# State evolution follows the overlap $q = \hat w\cdot\hat w/D$, which for the Bayes-optimal algorithm is also
# $\hat w\cdot w^*/D$ and the squared cosine:
#
# $$\hat q = \alpha\,\mathbb E\,g(y;\omega,1-q)^2,\qquad q \leftarrow \frac{\hat q}{1+\hat q},\qquad
# \omega\sim\mathcal N(0,q).$$
#
# Every number comes with its standard error; `message` says how the iteration ended.

# %%
alphas = np.linspace(0.3, 1.3, points)
curve = [smi.state_evolution(model, alpha, key=key, samples=samples) for alpha in alphas]
theory = smi.state_evolution(model, 0.9, key=key, samples=samples)
print(f"theory at alpha = 0.9: q = {theory.overlap[0, 0]:.4f} ± {theory.stderr[0, 0]:.4f}. {theory.message}")

ax = plotting.overlap_against_alpha([*curve, theory], learned, names=["w"], legend=False)
ax.set_title(f"phase retrieval: state evolution (line), GAMP at D = {dimension} (circle)", fontsize="medium")
plt.show()

# %% [markdown]
# One run differs from theory by fluctuations of order $1/\sqrt D$. Their prefactor is of order one away from a threshold;
# here, between two thresholds, runs scatter by two or three such units, and eight are taken for a failure.

# %%
apart = float(learned.cosine[0] ** 2 - theory.overlap[0, 0])
print(f"cosine² - q = {apart:+.4f}, in units of 1/√D: {apart * dimension**0.5:+.2f}")
assert abs(apart) < 8 / dimension**0.5 + 3 * float(theory.stderr[0, 0])

# %% [markdown]
# ## 3. Where learning starts
#
# Below $\alpha_c$ the overlap is zero. The threshold is a property of the link alone:
# $1/\alpha_c = \mathbb E\,(\mathbb E[z^2|y]-1)^2$. Here $y$ fixes $z^2$, so that $1/\alpha_c = \mathbb E(z^2-1)^2 = 2$, exactly.

# %%
threshold = smi.weak_recovery(model, key=key, samples=4 * samples)
print(f"alpha_c = {threshold.alpha:.4f} ± {threshold.stderr:.4f}, exactly 0.5")
assert abs(float(threshold.alpha) - 0.5) < 4 * float(threshold.stderr)
assert float(curve[0].overlap[0, 0]) < 1e-3  # alpha = 0.3: nothing is learned
assert float(curve[-1].overlap[0, 0]) > 0.99  # alpha = 1.3, above 1.13: everything

# %% [markdown]
# ## 4. Use what was learned
#
# `predict` labels new inputs. Their error is the one that theory gives for the same overlap (`generalization_error`), up to
# the fluctuations of the test set and of $|w^*|^2/D$, which are $\sqrt{2/D}$.

# %%
new = model.sample(jax.random.key(1), dimension=dimension, alpha=5.0, teacher=data.teacher)
squared = (model.predict(learned, new.inputs) - new.labels) ** 2
error, stderr = float(jnp.mean(squared)), float(jnp.std(squared) / new.samples**0.5)
expected = smi.generalization_error(model, learned.overlap, key=key)
print(f"error on {new.samples} new samples: {error:.4f} ± {stderr:.4f}; theory at this overlap: {expected.value:.4f}")
assert abs(error - float(expected.value)) < 4 * stderr + 3 * (2 / dimension) ** 0.5

# %% [markdown]
# ## 5. Your own link
#
# Any JAX function of the fields (a row for each index, a column for each token) is a model, with label noise of a given
# variance: `gamp`, `state_evolution`, `weak_recovery` and `train` take it as it is. Its prediction error at overlap $q$, for
# $y=z^2$, is $\mathbb E(z^2-\omega^2)^2 = 3-2q-q^2$.

# %%
mine = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, tokens=1, noise=0.5)
at_half = smi.generalization_error(mine, 0.5, key=key)
print(f"my link at q = 1/2: {at_half.value:.4f} ± {at_half.stderr:.4f}, exactly {3 - 2 * 0.5 - 0.5**2}")
assert abs(float(at_half.value) - 1.75) < 5 * float(at_half.stderr)
