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
# A direction $w^*\in\mathbb R^D$ is hidden. We see $N=\alpha D$ Gaussian inputs $x_\mu$ and, of each, on which side of a plane it
# lies:
#
# $$y_\mu = \mathrm{sign}(z_\mu),\qquad z_\mu = \frac{w^*\cdot x_\mu}{\sqrt D}\qquad\text{(the perceptron).}$$
#
# How well can $w^*$ be known, as $D\to\infty$ at fixed $\alpha$? Two answers must agree: an algorithm on data (`gamp`), and the
# exact theory of that algorithm (`state_evolution`). A third question, for links that do not know the sign of $w^*$: from which
# $\alpha$ on is anything learned at all (`weak_recovery`)?
#
# Sources: Barbier, Krzakala, Macris, Miolane, Zdeborová, PNAS 2019 (arXiv 1708.03395); Mondelli, Montanari, COLT 2018
# (arXiv 1708.05932). Run time: a minute or two on two cores, most of it compilation.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()  # double precision, which theory needs
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension, samples, points = (400, 2**11, 4) if small else (2000, 2**13, 14)
key = jax.random.key(0)

# %% [markdown]
# ## 1. Data, and an algorithm
#
# A model draws a teacher, inputs and labels. `gamp` sees inputs and labels only, and starts from noise of size $10^{-3}$.

# %%
model = smi.links.sign()
data = model.sample(key, dimension=dimension, alpha=2.0)
learned = smi.gamp(model, data, key=key)
print(
    f"{data.samples} samples in {data.dimension} dimensions, {int(learned.steps)} steps: {learned.message}"
)
print(f"cosine with the teacher: {learned.cosine[0]:.4f}")

# %% [markdown]
# ## 2. What theory says about it
#
# State evolution follows the overlap $q = \hat w\cdot\hat w/D$, which for the Bayes-optimal algorithm is also
# $\hat w\cdot w^*/D$ and the squared cosine:
#
# $$\hat q = \alpha\,\mathbb E\,g(y;\omega,1-q)^2,\qquad q \leftarrow \frac{\hat q}{1+\hat q},\qquad
# \omega\sim\mathcal N(0,q),$$
#
# $g$ the derivative of $\log p(y|\omega)$. Every number comes with its standard error; `message` says how the iteration ended.

# %%
alphas = np.linspace(0.2, 5.0, points)
curve = [
    smi.state_evolution(model, alpha, key=key, averages=smi.Averages(samples)) for alpha in alphas
]
theory = smi.state_evolution(model, 2.0, key=key, averages=smi.Averages(samples))
print(
    f"theory at alpha = 2: q = {theory.overlap[0, 0]:.4f} ± {theory.stderr[0, 0]:.0e}. {theory.message}"
)

ax = plotting.overlap_against_alpha([*curve, theory], learned, names=["w"], legend=False)
ax.set_title(
    f"state evolution (line), GAMP at D = {dimension} (circle)", fontsize="medium", loc="right"
)
plt.show()

# %% [markdown]
# One run differs from theory by fluctuations of order $1/\sqrt D$; of a squared cosine of order one, their prefactor is of order
# one as well, and four units are taken for a failure.

# %%
apart = float(learned.cosine[0] ** 2 - theory.overlap[0, 0])
print(f"cosine² - q = {apart:+.4f}, in units of 1/√D: {apart * dimension**0.5:+.2f}")
assert abs(apart) < 4 / dimension**0.5

# %% [markdown]
# ## 3. Use what was learned
#
# `predict` labels new inputs. For signs, the part that is wrong is the angle between $\hat w$ and $w^*$ over $\pi$.

# %%
new = model.sample(jax.random.key(1), dimension=dimension, alpha=5.0, teacher=data.teacher)
wrong = float(jnp.mean(model.predict(learned, new.inputs) != new.labels))
angle = float(np.arccos(learned.cosine[0]) / np.pi)
stderr = (angle * (1 - angle) / new.samples) ** 0.5
print(f"wrong on {new.samples} new inputs: {wrong:.4f} ± {stderr:.4f}; angle/π: {angle:.4f}")
print(f"in the limit D → ∞: {float(jnp.arccos(jnp.sqrt(theory.overlap[0, 0])) / jnp.pi):.4f}")
assert abs(wrong - angle) < 4 * stderr

# %% [markdown]
# ## 4. Where learning starts
#
# If only $y=|z|$ is seen (phase retrieval), both signs of $w^*$ are equally likely and nothing is learned below a threshold, a
# property of the link alone: $1/\alpha_c = \mathbb E\,(\mathbb E[z^2|y]-1)^2$. Here $y$ fixes $z^2$, so that
# $1/\alpha_c = \mathbb E(z^2-1)^2 = 2$, exactly.

# %%
threshold = smi.weak_recovery(
    smi.links.phase_retrieval(), key=key, averages=smi.Averages(points=4 * samples)
)
print(f"alpha_c = {threshold.alpha:.4f} ± {threshold.stderr:.4f}, exactly 0.5")
assert abs(float(threshold.alpha) - 0.5) < 4 * float(threshold.stderr)

# %% [markdown]
# ## 5. A spectral start
#
# Above this threshold the labels' variances alone tell something of $w^*$: with $G(y)=\mathbb E[z^2|y]-1$, here $y^2-1$, the top
# eigenvector of $\frac1D\sum_\mu x_\mu\frac{G(y_\mu)}{1+sG(y_\mu)}x_\mu^\top$, $s=0.95$. `spectral` finds it, and
# `spectral_overlap` says what the best such estimate ($s\to1$) is worth as $D\to\infty$. `gamp` goes on from it, by default
# wherever labels do not change with the sign of the fields; from noise (`start=1e-3`) a run has to find the direction by itself,
# and at finite $D$ it sometimes ends with less.

# %%
retrieval = smi.links.phase_retrieval()
known = []
print("cosine²: spectral, GAMP from it, GAMP from noise")
for data_key, start_key in jax.random.split(key, (4, 2)):
    data = retrieval.sample(data_key, dimension=dimension, alpha=0.9)
    estimate = smi.spectral(retrieval, data, key=start_key)
    runs = [smi.gamp(retrieval, data, key=start_key, start=start) for start in ("spectral", 1e-3)]
    known.append([float(run.cosine[0] ** 2) for run in (estimate, *runs)])
    print("{:17.3f}{:14.3f}{:17.3f}".format(*known[-1]))

mean = np.mean(known, axis=0)
limit = smi.spectral_overlap(retrieval, 0.9, key=key)
print(f"means: {mean[0]:.3f}, {mean[1]:.3f}, {mean[2]:.3f}")
print(f"spectral as D → ∞: {limit.value[0, 0]:.3f} ± {limit.stderr[0, 0]:.3f}")
assert abs(mean[0] - float(limit.value[0, 0])) < 4 / dimension**0.5

# %% [markdown]
# ## 6. Your own link
#
# Any JAX function of the fields (a row for each index, a column for each token) is a model, with label noise of a given
# variance: `gamp`, `state_evolution`, `weak_recovery` and `train` take it as it is. Its prediction error at overlap $q$, for
# $y=z^2$, is $\mathbb E(z^2-\omega^2)^2 = 3-2q-q^2$.

# %%
mine = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, tokens=1, noise=0.5)
at_half = smi.generalization_error(mine, 0.5, key=key)
print(
    f"my link at q = 1/2: {at_half.value:.4f} ± {at_half.stderr:.4f}, exactly {3 - 2 * 0.5 - 0.5**2}"
)
assert abs(float(at_half.value) - 1.75) < 5 * float(at_half.stderr)
