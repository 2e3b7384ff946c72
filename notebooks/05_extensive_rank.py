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
# # Matrices of extensive rank
#
# In a model of a few directions, $N=\alpha D$ samples are the scale. Here the signal is a matrix of rank proportional to its
# dimension, and the scale is $n\propto d^2$. Two such models are solved in the same way: by message passing with a denoiser
# that shrinks eigenvalues or singular values, and by a state evolution that is an explicit equation for one number.
#
# Sources: Boncoraglio, Troiani, Erba, Zdeborová (arXiv 2506.01582); Erba, Troiani, Biggio, Maillard, Zdeborová, Phys. Rev. X
# (arXiv 2410.18858); Donoho, Gavish, Montanari, PNAS 2013. Run time: a minute on two cores.

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
dimension, runs, steps, points = (16, 4, 300, 6) if small else (60, 8, 1500, 60)
key = jax.random.key(0)

# %% [markdown]
# ## 1. Attention of extensive rank
#
# $$S = \frac{WW^\top}{\sqrt{rd}},\qquad h_{ab} = \frac{x_a^\top S x_b - \delta_{ab}\mathrm{Tr}\,S}{\sqrt d},\qquad
# y = \mathrm{softmax}(h),\qquad \alpha = \frac n{d^2},\quad\rho = \frac rd .$$
#
# With $T$ tokens a label fixes $(T^2+T-2)/2$ linear combinations of $S$, and $S$ has $d^2D_{\rm f}(\rho)/2$ free entries,
# $D_{\rm f}(\rho)=2\rho-\rho^2$ for $\rho\le1$. By counting, $S$ can be known from $\alpha = D_{\rm f}(\rho)/(T^2+T-2)$ on. State evolution
# agrees, and gives the error below it:
#
# $$V = \mathrm{MMSE}(\hat q),\qquad \hat q = \alpha\,\times\,\text{(information of a label at overlap } q = Q_0 - V).$$

# %%
model = smi.AttentionIndexed(tokens=2, rank_ratio=0.5, output="softmax")
recovery = float(smi.recovery_threshold(model).alpha)
alphas = np.linspace(0.01, 1.15 * recovery, points)
errors = np.array([float(smi.state_evolution(model, alpha).error) for alpha in alphas])
at = 0.1
theory = float(smi.state_evolution(model, at).error)
print(f"perfect recovery from alpha = {recovery:.6f}; error at alpha = {at}: {theory:.6f}")

# %% tags=["remove-cell"]
assert abs(recovery - 0.1875) < 1e-9
assert abs(theory - 0.39219602) < 1e-8  # from an independent quadrature, to its last digit

# %% [markdown]
# ## 2. Message passing and descent on one matrix
#
# GAMP reaches the Bayes-optimal error up to finite-size corrections. Gradient descent on the factors $W$ ends, from each
# start, at another matrix that fits the data. If each were a sample of the posterior, its error would be *twice* the optimal
# one, $2V$, and the error of the mean of $K$ runs would be $V(1+1/K)$. (Matrices are averaged, not factors, which are determined only up to a
# rotation.) Runs of descent are not exactly such samples: the error extrapolated to infinitely many runs stays above theory.

# %%
data = model.sample(key, dimension=dimension, alpha=at)
learned = smi.gamp(model, data, key=key)
fit = smi.train(model, data, optax.adam(0.05), key=jax.random.split(key, runs), steps=steps)
mean = smi.averaged(fit, data.teacher)
print(
    f"GAMP {learned.error:.3f}; one run of Adam {mean.single:.3f} ± {mean.stderr:.3f}, "
    f"mean of {runs} {mean.error:.3f}"
)
print(f"theory {theory:.3f}; extrapolated to infinitely many runs {mean.extrapolated:.3f}")

with plotting.style():
    fig, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    ax.plot(alphas, errors, "k", label="state evolution")
    ax.axvline(recovery, color="0.5", lw=0.8, ls=":")
    for value, marker, label in [
        (learned.error, "o", "GAMP"),
        (mean.single, "s", "one run of Adam"),
        (mean.error, "^", f"mean of {runs} runs"),
    ]:
        ax.plot(at, float(value), marker, mfc="none", ms=8, label=f"{label}, d = {dimension}")
    ax.set_xlabel(r"$\alpha = n/d^2$")
    ax.set_ylabel(r"estimation error $\|\hat S-S\|^2/d$")
    ax.legend(frameon=False)
    plt.show()

# %% tags=["remove-cell"]
assert mean.error < mean.single  # a mean of distinct matrices that are equally good: Jensen
assert (
    abs(float(learned.error) - theory) < 6 / dimension
)  # corrections of order 1/d, of a few units

# %% [markdown]
# ## 3. Bilinear sequence regression, and what the nuclear norm misses
#
# $$y = \frac{\langle X, S\rangle}{\sqrt{dL}},\qquad X, S\in\mathbb R^{L\times d},\quad\mathrm{rank}\,S = \rho d,\qquad
# \alpha = \frac n{dL}.$$
#
# Without noise, $r(d+L-r)$ equations fix $S$; at $L=d$ that is $\alpha = 2\rho-\rho^2$. The matrix of smallest nuclear norm that
# reproduces the labels is the convex method of choice; it is exact only from a larger $\alpha_{\rm NN}$ on. Between the two,
# message passing finds $S$ and the convex method does not.

# %%
model = smi.Bilinear(aspect_ratio=1.0, rank_ratio=0.2, noise=0.0)
optimal = float(smi.recovery_threshold(model).alpha)
convex = float(smi.baselines.nuclear_norm_threshold(1.0, 0.2))
alphas = np.linspace(0.02, 0.7, points)
errors = np.array([float(smi.state_evolution(model, alpha).error) for alpha in alphas])
size, between = (20, 0.5) if small else (40, 0.45)
data = model.sample(key, dimension=size, alpha=between)
learned = smi.gamp(model, data, key=key, iteration=smi.Iteration(200))
baseline = smi.baselines.minimum_nuclear_norm(model, data)
print(f"thresholds: optimal {optimal:.6f}, nuclear norm {convex:.6f}")
print(
    f"at alpha = {between}, d = {size}: GAMP {learned.error:.1e}, nuclear norm {baseline.error:.3f}"
)

with plotting.style():
    fig, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    ax.plot(alphas, errors, "k", label="state evolution")
    ax.plot(alphas, smi.baselines.ridge_error(alphas, 0.0), color="0.6", label="ridge regression")
    ax.axvline(convex, color="C3", lw=1, ls=":", label="nuclear norm exact from here")
    ax.plot(between, float(learned.error), "o", mfc="none", ms=8, label=f"GAMP, d = {size}")
    ax.plot(
        between, float(baseline.error), "C3s", mfc="none", ms=8, label=f"nuclear norm, d = {size}"
    )
    ax.set_xlabel(r"$\alpha = n/(dL)$")
    ax.set_ylabel(r"estimation error $\|\hat S-S\|^2/(dL)$")
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    plt.show()

# %% tags=["remove-cell"]
assert abs(optimal - (2 * 0.2 - 0.2**2)) < 1e-9
assert abs(convex - 0.5716899213) < 1e-8
assert learned.error < 1e-2
assert baseline.error > 2e-2
