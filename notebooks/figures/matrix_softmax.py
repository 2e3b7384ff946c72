r"""
Attention-indexed model: softmax
================================

.. image:: /assets/figures/matrix_softmax.png
   :alt: Errors for several widths; all numbers of tokens on one curve, with runs; small widths.

Error of the matrix behind softmax attention against the number of samples.

Error of the matrix behind softmax attention of T tokens. Left: two tokens, several widths
:math:`\rho = r/d`; bars mark perfect recovery. Middle: all numbers of tokens, and all scores
observed, fall on one curve of :math:`\alpha(T^2 + T - 2)`; dots are message passing and Adam. Right:
small width. Grey: published (arXiv 2506.01582).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/matrix_softmax.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import (
    GREY,
    INK,
    QUICK,
    axes,
    compare,
    error_bars,
    gamp_runs,
    mean_and_stderr,
    published,
    save,
)
from jaxsmi.workbench.plotting import colour, legend, shades

ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/d$"
WIDTHS = (0.1, 0.3, 0.5, 1.0, 2.0)


def errors(alphas, width, tokens=2, output="softmax"):
    """Bayes-optimal errors at several α."""
    model = smi.AttentionIndexed(tokens, width, output)
    return jax.jit(jax.vmap(lambda alpha: smi.state_evolution(model, alpha).error))(alphas)


left, middle, right = ax = axes(3)
alphas = np.linspace(0.002, 0.26, 40 if QUICK else 100)
for width, tint in zip(WIDTHS, shades(len(WIDTHS)), strict=True):
    left.plot(alphas, errors(alphas, width), color=tint, label=rf"$\rho = {width:g}$")
    recovery = float(smi.recovery_threshold(smi.AttentionIndexed(2, width)).alpha)
    left.plot(recovery, 0.0, "|", color=tint, ms=9, clip_on=False)
    if table := published("aim", f"SE_softmax_T=2_rho={width:.1f}.csv"):
        left.plot(table["alpha"], table["mmse"], color=GREY, lw=2.8, zorder=0.5)
        # off in print: the first points, the end of the iteration near recovery, and for
        # ρ = 0.1 the rows where two bands of the spectrum merge
        settled = (table["alpha"] > 0.02 * recovery) & (table["alpha"] < 0.9 * recovery)
        ours = errors(table["alpha"][settled], width)
        compare(
            f"theory, ρ = {width:g}", ours, table["mmse"][settled], 2e-2 if width == 0.1 else 2e-3
        )
left.set(xlabel=r"sample complexity $\alpha = n/d^2$", ylabel=ERROR)
legend(left, {"perfect recovery": {"marker": "|", "ls": "none"}})

# %%
# One curve for all T at ρ = 1/2, and for observed scores; message passing on it.
x, at = np.linspace(0.01, 0.8, 60), np.array([0.3, 0.45, 0.6])
middle.plot(x, errors(x / 4, 0.5), color=INK, ls="--", lw=1.0, label="Bayes-optimal")
for tokens, output in ((3, "softmax"), (5, "softmax"), (2, "linear")):
    scale = tokens**2 + tokens - (2 if output == "softmax" else 0)
    compare(
        f"{output}, T = {tokens}", errors(x / scale, 0.5, tokens, output), errors(x / 4, 0.5), 1e-8
    )
dimension, runs, known = 40, 3, errors(at / 4, 0.5)
for k, tokens in enumerate((2, 3)):
    model, scale = smi.AttentionIndexed(tokens, 0.5), tokens**2 + tokens - 2
    dots = gamp_runs(
        model,
        at / scale,
        dimension,
        runs,
        lambda run: run.error,
        iteration=smi.Iteration(max_steps=80),
    )
    error_bars(middle, at, dots, color=colour(k), marker="os"[k], label=f"GAMP, T = {tokens}")
    mean, stderr = mean_and_stderr(dots)
    compare(f"message passing, T = {tokens}", mean, known, 3.0 * stderr + 5.0 / dimension)

# %%
# Adam, and the average of its starts, which stays above the optimum.
starts, steps, seeds = (4, 300, 2) if QUICK else (8, 1000, 3)
model, optimizer = smi.AttentionIndexed(2, 0.5), optax.adam(0.1)
single, average = np.zeros((2, len(at), seeds))
for i, seed in np.ndindex(single.shape):
    key = jax.random.fold_in(jax.random.key(seed), i)
    data = model.sample(key, dimension=dimension, alpha=at[i] / 4)
    keys = jax.random.split(key, starts)
    gradient = smi.Gradient(reduction="sum/D")
    fit = smi.train(model, data, optimizer, key=keys, steps=steps, gradient=gradient)
    single[i, seed] = np.mean(fit.error)
    average[i, seed] = smi.averaged(fit, data.teacher).extrapolated
error_bars(middle, at, single, color=colour(4), marker="D", label="Adam")
error_bars(middle, at, average, color=colour(3), marker="^", label="Adam, averaged")
compare("averaged descent", mean_and_stderr(average)[0], known, 0.3 * known + 5.0 / dimension)
middle.set_xlabel(r"$\alpha\,(T^2 + T - 2)$")
legend(middle)

# %%
# Small width, against n/(dr).
x = np.linspace(0.005, 0.55, 40 if QUICK else 80)
limit = smi.AttentionIndexed(2, 0.5).small_width_error(x)
for width, tint in zip((0.001, 0.05, 0.5), shades(3), strict=True):
    error = errors(width * x, width)
    right.plot(x, error, color=tint, label=rf"$\rho = {width:g}$")
    if width == 0.001:  # the first correction at the transition is of order ρ^(2/3)
        compare("small width", error, limit, 3.0 * width ** (2 / 3))
right.plot(x, limit, color=INK, ls="--", lw=1.0, label=r"$\rho \to 0$")
right.set_xlabel(r"sample complexity $\bar\alpha = n/(dr)$")
legend(right)
save(ax, "matrix_softmax")
