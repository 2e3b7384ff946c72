r"""
Two layers of attention: what is learned, and from when on
==========================================================

.. image:: /assets/figures/deep_two_layers.png
   :alt: Overlaps and errors against samples, theory and runs; thresholds against the skip strength.

Overlaps of two layers against the number of samples, and both thresholds against the skip
strength.

Two layers, two tokens, skip strength c = 1: state evolution (lines, with bands of two standard errors)
and message passing (markers). The last layer is learned first; everything is recovered from
:math:`\alpha = 1` on. Right: both thresholds against c. Grey: published (arXiv 2502.00901), where V is
padded and the iteration stops early, so that layer 1 comes out too small above 0.8.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/deep_two_layers.png'
import jax
import numpy as np

import jaxsmi as smi
from _common import GREY, QUICK, axes, compare, published, save
from jaxsmi.workbench import plotting
from jaxsmi.workbench.plotting import colour, legend

model, key = smi.DeepAttention(2, 2), jax.random.key(0)
alphas = (
    [0.1, 0.4, 0.7, 0.9, 1.2]
    if QUICK
    else [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.76, 0.83, 0.9, 0.96, 1.2, 1.5]
)
left, middle, right = ax = axes(3, height=3.0)
theory = [
    smi.state_evolution(model, alpha, key=key, averages=smi.Averages(points=2**10))
    for alpha in alphas
]

# %%
# Message passing from a random start, on the line between points of theory within 3.5/√D.
dimension, runs = 500, []
for i, alpha in enumerate((0.5, 1.2)):
    for run in range(1 if QUICK else 2):
        data_key, run_key = jax.random.split(jax.random.fold_in(jax.random.key(run), i))
        data = model.sample(data_key, dimension=dimension, alpha=alpha)
        runs.append(smi.gamp(model, data, key=run_key, start=1e-3))
overlaps = np.array([np.diagonal(point.overlap) for point in theory])
stderr = np.array([np.diagonal(point.stderr) for point in theory])
for p in range(2):
    expected = np.interp([float(run.alpha) for run in runs], alphas, overlaps[:, p])
    compare(
        f"GAMP, layer {p + 1}", [run.cosine[p] ** 2 for run in runs], expected, 3.5 / dimension**0.5
    )

# %%
# Published overlaps and errors, where they are converged (away from the threshold of layer 2).
low = [k for k, alpha in enumerate(alphas) if alpha <= 0.75 and abs(alpha - 0.185) > 0.03]
if table := published("smi", "BO_2w.csv"):
    for p, name in enumerate(("Q11", "Q22")):
        left.plot(table["alpha"], table[name], color=GREY, lw=2.8, zorder=0.5)
        known = np.interp(np.array(alphas)[low], table["alpha"], table[name])
        compare(f"overlap of layer {p + 1}", overlaps[low, p], known, 0.015 + 3.0 * stderr[low, p])
if table := published("smi", "gen_error_BO_2w.csv"):
    middle.plot(table["alpha"], table["gen_error"], color=GREY, lw=2.8, zorder=0.5)
    known = np.interp(np.array(alphas)[low], table["alpha"], table["gen_error"])
    compare("prediction error", [float(theory[k].error) for k in low], known, 0.015)
plotting.overlap_against_alpha(theory, runs, left, legend=False)
left.text(0.38, 0.8, "layer 2", color=colour(1), ha="right")
left.text(1.05, 0.3, "layer 1", color=colour(0))
middle.plot(alphas, [point.error for point in theory], ".-", label="state evolution")
at = [float(run.alpha) for run in runs]
middle.plot(at, [run.error for run in runs], "o", mfc="none", color=colour(0), label="GAMP")
middle.set(
    xlabel=r"sample complexity $\alpha$", ylabel=r"prediction error $E\Vert\hat y-y\Vert_F^2$"
)
legend(middle, loc="upper right")

# %%
# Thresholds. Printed at c = 1: 0.14 (which the published overlaps themselves contradict) and 0.79;
# an independent quadrature gives 0.186(2) for the first.
skips = [1.0] if QUICK else [0.25, 1.0, 4.0]
stairs = [
    smi.staircase(
        smi.DeepAttention(2, 2, skip=c), key=key, alpha_max=3.0, averages=smi.Averages(2**11, 8)
    )
    for c in skips
]
plotting.thresholds_against(stairs, skips, right, parameter="skip strength c")
right.get_legend().remove()
right.text(0.5, 0.83, "layer 1", color=colour(0), transform=right.transAxes)
right.text(0.5, 0.33, "layer 2", color=colour(1), transform=right.transAxes)
first, second = stairs[skips.index(1.0)]
compare("layer 2 is learned at", first.alpha, 0.186, 3.0 * np.hypot(float(first.stderr), 0.002))
compare("layer 1 is learned at", second.alpha, 0.79, 3.0 * float(second.stderr) + 0.08)
save(ax, "deep_two_layers")
