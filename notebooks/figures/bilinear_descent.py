r"""
Bilinear sequence regression: gradient descent
==============================================

.. image:: /assets/figures/bilinear_descent.png
   :alt: Errors of descent, its average and message passing; ends of descent against the rate.

Errors of gradient descent, of its average over starts and of message passing, beside the
Bayes-optimal error.

Left: gradient descent at a large rate, the average over its starts, and message passing, beside the
Bayes-optimal error and twice that (what a sample of the posterior has). Grey: published (arXiv
2410.18858; its rate is not stated). Right: the end of descent depends on the rate, from small and
from order-one factors.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/bilinear_descent.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import (
    GREY,
    QUICK,
    axes,
    compare,
    error_bars,
    gamp_runs,
    mean_and_stderr,
    published,
    save,
)
from jaxsmi.workbench.plotting import colour, legend

ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/(dL)$"
dimension, teachers, starts, steps = (20, 2, 4, 800) if QUICK else (25, 2, 8, 1500)
model = smi.Bilinear(1.0, 0.2)


def descent(alpha, seed, rate, init):
    """Runs from several starts on one data set, with the loss (ŷ - y)²/4 of the article."""
    key = jax.random.fold_in(jax.random.key(seed), int(1000 * alpha))
    data = model.sample(key, dimension=dimension, alpha=alpha)
    keys = jax.random.split(jax.random.fold_in(key, 1), starts)
    loss = lambda prediction, label: 0.25 * (prediction - label) ** 2
    gradient = smi.Gradient(loss=loss, reduction="sum")
    optimizer = optax.sgd(rate)
    fit = smi.train(model, data, optimizer, key=keys, steps=steps, gradient=gradient, start=init)
    return fit, data


left, right = ax = axes(2)
alphas, at = np.linspace(0.01, 0.45, 60), np.array([0.12, 0.22, 0.33])
bayes = jax.jit(jax.vmap(lambda alpha: smi.state_evolution(model, alpha).error))
single, average = np.zeros((2, len(at), teachers))
for i, seed in np.ndindex(single.shape):
    fit, data = descent(at[i], seed, 0.7, 1.0)
    single[i, seed] = np.mean(fit.error)
    average[i, seed] = smi.averaged(fit, data.teacher).error
passing = gamp_runs(
    model, at, dimension, teachers, lambda run: run.error, iteration=smi.Iteration(max_steps=150)
)
left.plot(alphas, bayes(alphas), color=colour(0), label="Bayes-optimal")
left.plot(alphas, 2.0 * bayes(alphas), color=colour(0), ls="--", label="twice that")
error_bars(left, at, passing, color=colour(0), marker="x", label="message passing")
error_bars(left, at, single, color=colour(1), label="descent")
error_bars(left, at, average, color=colour(2), marker="^", label=f"average of {starts} runs")
left.set(xlabel=r"sample complexity $\alpha = n/(dL)$", ylabel=ERROR)
legend(left)
mean, stderr = mean_and_stderr(passing)
compare("message passing", mean, bayes(at), 3.0 * stderr + 5.0 / dimension)

# %%
# Published descent at d = 100, of 64 starts: an average of fewer is worse by a share.
for kind, ours, share in (("GD", single, 0.0), ("AGD", average, 1.0 / starts)):
    if table := published("bsr", "gd", f"{kind}_beta_1.0_rho_0.2_delta_0.0_D_100.csv"):
        alpha, known, spread = table["alpha"], table["gen_error_mean"], table["gen_error_std"]
        left.errorbar(alpha, known, spread, color=GREY, ls="none", marker="d", ms=3, zorder=0.5)
        mean, stderr = mean_and_stderr(ours)
        expected = np.interp(at, alpha, known)
        joint = np.hypot(stderr, np.interp(at, alpha, spread))
        allowed = 3.0 * joint + share * expected + 5.0 / dimension
        compare(f"published {kind}", mean, expected, allowed)

# %%
# The end against the rate, α = 0.44.
rates = np.array([0.1, 0.3, 0.5, 0.7])
for k, (init, name) in enumerate(((1e-4, "small start"), (1.0, "start of order one"))):
    for rate in rates:
        ends = descent(0.44, 0, rate, init)[0].error
        label = name if rate == rates[0] else None
        right.semilogy([rate] * starts, ends, "os"[k], color=colour(k), mfc="none", label=label)
right.set(xlabel="learning rate", ylabel=ERROR)
legend(right)
save(ax, "bilinear_descent")
