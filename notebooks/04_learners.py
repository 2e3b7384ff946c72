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
# # Learners and their theories
#
# **What you learn:** to compute what ridge regression, or gradient descent with weight decay, learns; to find the best ridge; and to draw
# double descent. *A minute and a half on one core.*
#
# Gradient descent with weight decay ends at a minimum of the risk
#
# $$R(W)=\sum_\mu\ell\big(\hat y_W(x_\mu),\,y_\mu\big)+\frac\lambda2\lVert W\rVert^2 .$$
#
# It knows neither the prior nor the noise. In high dimension its errors are known as exactly as those of the Bayes-optimal
# algorithm: `smi.state_evolution(model, alpha, learner=smi.Erm(ridge=...))`.
#
# Source: Cui, *High-dimensional learning of narrow neural networks* (arXiv 2409.13904).

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()  # double precision
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension, seeds, samples = (200, 2, 4096) if small else (400, 4, 8192)
key = jax.random.key(0)

# %% [markdown]
# ## 1. Bayes, a minimiser, and their theories
#
# Labels are $y=\tanh z^*+z^*/2$ with noise of variance 1/4. Three algorithms learn from the same data: message passing for the Bayes-optimal
# estimate, message passing for the minimum of the risk, and gradient descent on that risk. Two theories need no data.
# `learning_order` runs them side by side; a step of theory is one of message passing.

# %%
teacher = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]) + 0.5 * z[0, 0], indices=1, noise=0.25)
data = teacher.sample(key, dimension=dimension, alpha=2.0)
learner = smi.Erm(ridge=0.05)
descent = {
    "optimizer": optax.chain(optax.add_decayed_weights(learner.ridge), optax.sgd(0.05)),
    "steps": 1000,
    "gradient": smi.Gradient(loss=learner.loss, reduction="sum"),
    "start": 0.1,
}
methods = {
    "Bayes": {},
    "theory of Bayes": {"theory": True},
    "risk, GAMP": {"learner": learner, "start": 0.1},
    "risk, descent": descent,
    "theory of the risk": {
        "theory": True,
        "learner": learner,
        "start": smi.Start(teacher_overlap=0.01),
    },
}
order = smi.learning_order(teacher, data, methods, key=key, seeds=seeds)
last = {name: float(np.ravel(run.cosine)[0]) for name, run in order.solutions.items()}
for name, cosine in last.items():
    print(f"{name:20} cosine with the teacher {cosine:.4f}")
names = ("risk, GAMP", "risk, descent")
weights = [np.asarray(order.solutions[name].weights)[0] for name in names]
off = float(np.linalg.norm(weights[0] - weights[1]) / np.linalg.norm(weights[1]))
print(f"distance of the two minima of the risk, relative: {off:.1e}")

chance = 4.0 * np.sqrt((1.0 - last["theory of Bayes"] ** 2) / dimension)  # four standard errors

# %% tags=["remove-cell"]
assert off < 1e-3  # message passing and descent end at one minimum
assert abs(last["Bayes"] - last["theory of Bayes"]) < chance
assert abs(last["risk, descent"] - last["theory of the risk"]) < chance
assert last["theory of the risk"] < last["theory of Bayes"]

# %%
with plotting.style():
    fig, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    for k, (name, run) in enumerate(order.solutions.items()):
        history = run.history
        style = "--" if name.startswith("theory") else "-"
        step, cosine = (np.asarray(history[part]) for part in ("step", "cosine"))
        step, cosine = (
            np.atleast_2d(step)[0],
            cosine.reshape(-1, step.shape[-1])[0],
        )  # the first run
        ax.semilogx(step + 1, cosine, style, color=f"C{k}", label=name)
    ax.set_xlabel("step + 1")
    ax.set_ylabel("cosine with the teacher")
    ax.legend(frameon=False)
    plt.show()

# %% [markdown]
# ## 2. The best ridge
#
# `search_learner` follows the gradient of the test error of theory in $\log\lambda$. For a linear teacher the answer is known: the
# best $\lambda$ is the variance of the noise, and ridge regression is then Bayes-optimal.

# %%
noise = 0.25
linear = smi.links.linear(noise)
best = smi.search_learner(linear, 2.0, lambda p: smi.Erm(ridge=jnp.exp(p)), 0.0, key=key)
bayes = 1.0 - float(smi.state_evolution(linear, 2.0, key=key).overlap[0, 0])  # of a linear link
ridge, error = float(jnp.exp(best.parameters)), float(best.solution.error)
bar = float(best.solution.stderrs["error"])
print(f"best ridge {ridge:.4f}, its error {error:.5f} ± {bar:.5f};", end=" ")
print(f"of ridge 1 {float(best.history['error'][0]):.5f}, of Bayes {bayes:.5f}")
np.testing.assert_allclose(ridge, noise, rtol=1e-2)  # flat there: off by the last step
np.testing.assert_allclose(error, bayes, atol=5.0 * bar)

# %% tags=["remove-cell"]
assert error < float(best.history["error"][0])

# %% [markdown]
# ## 3. Double descent
#
# With a small ridge the test error has a peak at $\alpha=1$, where there are as many samples as weights: the weights just fit the
# noise. With the best ridge there is no peak. All curves are theory.

# %%
alphas = np.concatenate([np.linspace(0.2, 1.1, 19), np.linspace(1.3, 2.5, 7)])
ridges = (0.001, 0.01, 0.1, noise)
curves = [
    [smi.state_evolution(linear, a, learner=smi.Erm(ridge=ridge), key=key) for a in alphas]
    for ridge in ridges
]
ax = plotting.risk_against_alpha(curves, [rf"$\lambda={ridge:g}$" for ridge in ridges])
ax.set_yscale("log")
ax.set_ylabel("test error")
plt.show()
errors = np.array([[float(point.error) for point in curve] for curve in curves])
peak = alphas[np.argmax(errors[0])]
print(f"ridge {ridges[0]:g}: largest error {errors[0].max():.2f}, at alpha = {peak:.2f};", end=" ")
print(f"ridge {noise:g}: {errors[-1].max():.2f} at alpha = {alphas[0]:g}, then falling")

# %% tags=["remove-cell"]
assert abs(peak - 1.0) < 0.06  # the spacing of alpha
assert np.all(np.diff(errors[-1]) < 0.0)

# %% [markdown]
# **More:** a risk with two minima, positional and semantic, is in [a script of the gallery](figures/risk_positional.py);
# logistic loss, other learners and descent in time are on the page
# [which learner for which question](../docs/how-to/which-learner.md).
