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
# # Two layers of attention: which one is learned first, and from how much data?
#
# The teacher is an attention network of two layers without value matrices, each of rank one, with a skip connection of
# strength $c=1$. Of a sequence $x\in\mathbb R^{D\times 2}$ of two Gaussian tokens we are told the attention matrix of the last
# layer:
#
# $$x_1 = x\,[\,c\,I + \sigma(x^\top w_1 w_1^\top x/D)\,]^\top,\qquad
# y = \sigma(x_1^\top w_2 w_2^\top x_1/D)\in\mathbb R^{2\times 2},$$
#
# $\sigma$ the softmax of the rows. Since tokens are only mixed among themselves, $y$ depends on $x$ through the fields
# $Z = Wx/\sqrt D\in\mathbb R^{2\times 2}$ alone: a sequence multi-index model, with $N=\alpha D$ samples.
#
# Source: Troiani, Cui, Dandi, Krzakala, Zdeborová, ICML 2025 (arXiv 2502.00901). Run time: about four minutes on two cores.

# %%
import os

import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension, samples = (200, 2**8) if small else (1000, 2**11)
alphas = (
    [0.1, 0.5]
    if small
    else [0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0, 1.1]
)
key = jax.random.key(0)
plain = {
    "key": key,
    "averages": smi.Averages(samples),
    "iteration": smi.Iteration(100, newton=False),
}  # the iteration itself, step by step

# %% [markdown]
# ## 1. One run of GAMP at $\alpha=1.2$, and the theory of it
#
# GAMP starts from noise (by default it would start from the spectral estimate); chance gives it a squared cosine of about $1/D$
# with each layer. State evolution starts there too, and is told as much about a waiting layer as chance tells the run
# (`side_information`). Nothing else is fitted.

# %%
model = smi.DeepAttention(depth=2, tokens=2, skip=1.0)
data = model.sample(key, dimension=dimension, alpha=1.2)
learned = smi.gamp(model, data, key=key, start=1e-3)
theory = smi.state_evolution(
    model, 1.2, start=smi.Start(1 / dimension, side_information=1 / dimension), **plain
)
when = smi.learned_at(learned, level=0.5)
print(f"GAMP, {int(learned.steps)} steps: {learned.message}")
print(
    f"cosines {learned.cosine}; layer 2 learned at step {when[1]:.1f}, layer 1 at step {when[0]:.1f}"
)

ax = plotting.overlap_against_iteration(learned, theory)
_ = ax.text(0.97, 0.08, f"α = 1.2, D = {dimension}", transform=ax.transAxes, ha="right")
plt.show()
assert when[1] < when[0] < np.inf  # the last layer first
assert np.all(learned.cosine > 0.99)

# %% [markdown]
# The last layer is learned in a few steps, the first after a long plateau. That both end at cosine one is a prediction: for
# noiseless attention whose last layer has rank one, perfect recovery is stable from $\alpha = P/M = 1$ on ($P=2$ rows of $W$,
# $M=2$ tokens), and beyond it the remaining variance falls by $P/(\alpha M) = 1/\alpha$ per step.

# %%
recovery = smi.recovery_threshold(model)
left = np.trace(learned.trajectory["covariance"], axis1=1, axis2=2)
tail = np.log(left[-1] / left[-6]) / 5
print(f"perfect recovery from alpha = {recovery.alpha:g}")
print(f"V falls by {np.exp(tail):.3f} a step at the end of the run; theory: {1 / 1.2:.3f}")
assert abs(float(recovery.alpha) - 1.0) < 1e-12
assert (
    np.exp(tail) < 0.95
)  # it falls; to the asymptotic rate by finite-size corrections of a few per cent

# %% [markdown]
# ## 2. How much data: the overlap against $\alpha$
#
# $Q_{\ell\ell}$ is the squared cosine of layer $\ell$ that the best algorithm known reaches from nothing, as $D\to\infty$.
# Crosses mark points where a hundred plain steps were not enough: close to a threshold convergence is slow.

# %%
curve = [smi.state_evolution(model, alpha, **plain) for alpha in alphas]
ax = plotting.overlap_against_alpha(curve, learned)
for alpha in (0.186, 0.719):  # from section 3
    ax.axvline(alpha, color="0.5", lw=0.8, ls=":")
plt.show()
half = curve[alphas.index(0.5)]
print(
    f"alpha = 0.5: Q11 = {half.overlap[0, 0]:.4f}, Q22 = {half.overlap[1, 1]:.4f} ± {half.stderr[1, 1]:.4f}"
)
assert float(half.overlap[0, 0]) < 0.01
assert abs(float(half.overlap[1, 1]) - 0.772) < 4 * float(
    half.stderr[1, 1]
)  # 0.772(3), from 8192 samples

# %% [markdown]
# ## 3. The thresholds, without running anything
#
# Layer 2 starts where $Q=0$ becomes unstable; layer 1 where the fixed point *with layer 2 learned* does:
#
# $$\alpha\,\lambda_{\max}(F_{Q(\alpha)}) = 1,\qquad
# F_Q(X) = \mathbb E\sum_{mn} G_{mn}XG_{mn}^\top,\quad G = \partial_\omega g .$$
#
# `staircase` finds these roots one after the other, each with its standard error over independent nets and with the subspace
# that is learned there. The values of an independent quadrature are 0.186(2) and 0.719(6).

# %%
stairs = smi.staircase(
    model,
    key=key,
    max_thresholds=1 if small else 2,
    averages=smi.Averages(points=2**8 if small else 2**12),
)
for step in stairs:
    layer = 1 + int(np.argmax(np.diagonal(step.subspace)))
    print(f"layer {layer} from alpha = {step.alpha:.4f} ± {step.stderr:.4f}")
for step, (alpha, stderr) in zip(stairs, [(0.186, 0.002), (0.719, 0.006)], strict=False):
    assert abs(float(step.alpha) - alpha) < 4 * (float(step.stderr) ** 2 + stderr**2) ** 0.5
assert float(stairs[0].subspace[1, 1]) > 0.99  # the last layer first
