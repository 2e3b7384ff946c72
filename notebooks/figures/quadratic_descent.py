r"""
Quadratic network: gradient descent
===================================

.. image:: /assets/figures/quadratic_descent.png
   :alt: Errors of descent and its average beside Bayes; errors against weight decay.

Errors of gradient descent on a quadratic network, of its average over starts, and with weight
decay.

Left: gradient descent from random starts on the width :math:`\kappa = 1/2`, and the average of its
runs: a sample of the posterior would have twice the Bayes-optimal error, an average of K of them
:math:`1 + 1/K` times. Right: Adam with weight decay; lines: Bayes-optimal (arXiv 2408.03733).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/quadratic_descent.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import QUICK, axes, compare, error_bars, mean_and_stderr, save
from jaxsmi.workbench.plotting import colour, legend, line

ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/d^2$"
dimension, teachers, starts, steps = (20, 2, 4, 600) if QUICK else (24, 3, 8, 1500)


def quarter(prediction, label):
    """The loss of the article."""
    return 0.25 * (prediction - label) ** 2


def bayes(alphas, noise=0.0):
    """Bayes-optimal errors at several α."""
    model = smi.Bilinear(1.0, 0.5, noise, symmetric=True)
    return jax.jit(jax.vmap(lambda alpha: smi.state_evolution(model, alpha).error))(alphas)


def descent(noise, alpha, seed, optimizer):
    """Runs from several starts on one data set."""
    model = smi.Bilinear(1.0, 0.5, noise, symmetric=True)
    key = jax.random.key(seed)
    data = model.sample(key, dimension=dimension, alpha=alpha)
    keys = jax.random.split(jax.random.fold_in(key, 1), starts)
    gradient = smi.Gradient(loss=quarter, reduction="sum")
    fit = smi.train(model, data, optimizer, key=keys, steps=steps, gradient=gradient)
    return fit, data.teacher


left, right = ax = axes(2)
alphas, at = np.linspace(0.01, 0.5, 50), np.array([0.1, 0.2, 0.3])
single, average = np.zeros((2, len(at), teachers))
for i, seed in np.ndindex(single.shape):
    fit, teacher = descent(0.0, at[i], 10 * i + seed, optax.sgd(0.1))
    single[i, seed] = np.mean(fit.error)
    average[i, seed] = smi.averaged(fit, teacher).error
left.plot(alphas, bayes(alphas), color=colour(0), label="Bayes-optimal")
error_bars(left, at, single, color=colour(1), label="descent")
error_bars(left, at, average, color=colour(2), marker="^", label=f"average of {starts} runs")
left.set(xlabel=r"sample complexity $\alpha = n/d^2$", ylabel=ERROR)
legend(left)
# descent does not sample the posterior exactly: within a quarter, and 5/d for the finite size
expected = bayes(at)
mean = mean_and_stderr(average)[0]
compare("average", mean, (1 + 1 / starts) * expected, 0.25 * expected + 5.0 / dimension)

# %%
# Weight decay.
decays = np.array(
    [0.0, 0.01, 0.1, 0.5] if QUICK else [0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5]
)
for k, (alpha, noise) in enumerate([(0.2, 0.0), (0.3, 0.25)]):
    ends = []
    for decay in decays:
        optimizer = optax.chain(optax.add_decayed_weights(decay), optax.adam(0.01))
        ends.append(descent(noise, alpha, 0, optimizer)[0].error)
    label = rf"$\alpha = {alpha:g}$, $\Delta = {noise:g}$"
    error_bars(right, range(len(decays)), ends, color=colour(k), marker="os"[k], label=label)
    best = bayes(np.array([alpha]), noise)[0]
    right.axhline(best, color=colour(k), lw=1.0, ls=line(k)["linestyle"])
right.set_xticks(range(len(decays)), [f"{decay:g}" for decay in decays])
right.set(xlabel="weight decay", ylabel=ERROR)
legend(right, {"Bayes-optimal": {"lw": 1.0}})
save(ax, "quadratic_descent")
