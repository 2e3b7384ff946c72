r"""
Bilinear sequence regression: descent from a small start
========================================================

.. image:: /assets/figures/bilinear_small_start.png
   :alt: Errors of descent from a small start and of the nuclear norm; the path of descent.

Gradient descent from small factors ends near the matrix of minimum nuclear norm.

Factors of size 1e-4 take gradient descent towards small nuclear norm. Left: its end and its best
iterate beside the minimum of the nuclear norm; grey: published at d = 50 (arXiv 2410.18858). Right:
the path at :math:`\alpha = 0.45` on one data set at two rates.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/bilinear_small_start.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import GREY, QUICK, axes, compare, error_bars, mean_and_stderr, published, save
from jaxsmi.workbench.plotting import colour, legend, line

ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/(dL)$"
dimension, teachers, starts, steps = (16, 2, 2, 2000) if QUICK else (20, 3, 3, 4000)
model = smi.Bilinear(1.0, 0.2)


def descent(data, seed, rate=0.3):
    """Runs from several small starts, with the loss (ŷ - y)²/4 of the article."""
    keys = jax.random.split(jax.random.key(seed), starts)
    loss = lambda prediction, label: 0.25 * (prediction - label) ** 2
    gradient = smi.Gradient(loss=loss, reduction="sum")
    optimizer = optax.sgd(rate)
    return smi.train(model, data, optimizer, key=keys, steps=steps, gradient=gradient, start=1e-4)


left, right = ax = axes(2)
alphas, at = np.linspace(0.01, 0.7, 60), np.array([0.2, 0.35, 0.5])
end, best, nuclear = np.zeros((3, len(at), teachers))
for i, seed in np.ndindex(end.shape):
    key = jax.random.fold_in(jax.random.key(seed), i)
    data = model.sample(key, dimension=dimension, alpha=at[i])
    fit = descent(data, seed)
    end[i, seed] = np.median(fit.error)
    best[i, seed] = np.median(np.nanmin(fit.history["error"], axis=1))
    nuclear[i, seed] = smi.baselines.minimum_nuclear_norm(model, data).error
bayes = jax.jit(jax.vmap(lambda alpha: smi.state_evolution(model, alpha).error))
left.plot(alphas, bayes(alphas), color=colour(0), label="Bayes-optimal")
error_bars(left, at, end, color=colour(1), label="small start, end")
error_bars(left, at, best, color=colour(2), marker="^", label="small start, best")
error_bars(left, at, nuclear, color=colour(3), marker="s", label="nuclear norm")
exact = float(smi.baselines.nuclear_norm_threshold(1.0, 0.2))
left.axvline(exact, color=colour(3), ls=":", lw=0.9, label="nuclear norm is exact")
left.set(xlabel=r"sample complexity $\alpha = n/(dL)$", ylabel=ERROR)
legend(left)

# %%
# Published runs, after longer training; 5/d for the finite size.
for kind, ours in (("zero", end), ("zero_early", best)):
    if table := published("bsr", "gd", f"{kind}_GD_beta_1.0_rho_0.2_delta_0.0_D_50.csv"):
        alpha, known, spread = table["alpha"], table["gen_error_mean"], table["gen_error_std"]
        left.errorbar(alpha, known, spread, color=GREY, ls="none", marker="d", ms=3, zorder=0.5)
        mean, stderr = mean_and_stderr(ours)
        joint = np.hypot(stderr, np.interp(at, alpha, spread))
        expected = np.interp(at, alpha, known)
        compare(f"published {kind}", mean, expected, 3.0 * joint + 5.0 / dimension)

# %%
# The way of descent, the median of its starts.
data = model.sample(jax.random.key(0), dimension=dimension, alpha=0.45)
for k, rate in enumerate((0.1, 0.3)):
    history = descent(data, 1, rate).history
    way = np.nanmedian(history["error"], axis=0)
    label = f"learning rate {rate:g}"
    right.loglog(history["step"][0, 1:], way[1:], color=colour(k + 1), label=label, **line(k))
norm = float(smi.baselines.minimum_nuclear_norm(model, data).error)
right.axhline(norm, color=colour(3), ls=":", label="nuclear norm")
right.set(xlabel="steps", ylabel=ERROR)
legend(right)
save(ax, "bilinear_small_start")
