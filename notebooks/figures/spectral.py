r"""
Spectral start of phase retrieval
=================================

.. image:: /assets/figures/spectral.png
   :alt: Left: eigenvalues of the spectral matrix, one above the bulk. Right: squared cosines.

One eigenvalue of the spectral matrix leaves the bulk, and its eigenvector starts message passing.

Left: the largest eigenvalues of the spectral matrix for one data set, beside the edge of its bulk and
its outlier in the limit of large D. Right: squared cosines of its top eigenvector, and of message
passing that starts from it, on their theories [MM18].
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/spectral.png'
import jax
import numpy as np

import jaxsmi as smi
from _common import INK, QUICK, axes, compare, error_bars, mean_and_stderr, save
from jaxsmi.workbench.plotting import colour, legend_above

model = smi.links.phase_retrieval()
dimension, runs = (200, 4) if QUICK else (500, 8)
at = np.array([1.5, 2.0]) if QUICK else np.array([0.75, 1.0, 1.5, 2.0])
alphas = at if QUICK else np.union1d(np.linspace(0.5, 2.0, 16), np.linspace(1.05, 1.175, 6))
key = jax.random.key(0)

# %%
# Theory of both, as D → ∞.
best = np.array([smi.spectral_overlap(model, a, key=key).value[0, 0] for a in alphas])
bayes = np.array([smi.state_evolution(model, a, key=key).overlap[0, 0] for a in alphas])

# %%
# Runs on fresh data: the spectral estimate and message passing from it.
spectral, passing = np.zeros((2, len(at), runs))
for i, alpha in enumerate(at):
    for run in range(runs):
        data_key, run_key = jax.random.split(jax.random.fold_in(jax.random.key(run), i))
        data = model.sample(data_key, dimension=dimension, alpha=alpha)
        estimate = smi.spectral(model, data, key=run_key)
        spectral[i, run] = estimate.cosine[0] ** 2
        passing[i, run] = smi.gamp(model, data, key=run_key, start="spectral").cosine[0] ** 2

# %%
# All eigenvalues of the matrix of the last data set, T_s = (1/D) Σ x T_s(y) xᵀ with
# T_s(y) = G/(1 + sG), G = y²/S - 1 and s = 0.95. Theory's edge and outlier are those of the mean
# over labels: all eigenvalues are moved by what the labels drawn have beyond it.
S = estimate.model.prior.second_moment(1)[0, 0]
G = np.ravel(data.labels) ** 2 / S - 1.0
x = np.asarray(data.inputs)[:, 0]
values, vectors = np.linalg.eigh(x.T @ ((G / (1.0 + 0.95 * G))[:, None] * x) / dimension)
edge, outlier, top = (
    float(np.ravel(estimate.history[name])[0]) for name in ("edge", "outlier", "eigenvalue")
)
values += top - values[-1]

left, right = ax = axes(2)
left.hist(values[values > -2.0], bins=40, color=colour(1), alpha=0.45, lw=0)
left.axvline(edge, color=INK, lw=0.9, ls="--", label="edge of the bulk, theory")
left.axvline(outlier, color=colour(0), lw=0.9, label="outlier, theory")
left.plot(top, 1.0, "v", color=colour(1), clip_on=False, zorder=3, label="top eigenvalue")
left.set(xlim=(-2.0, 1.15 * outlier), xlabel="eigenvalue of $T_s$", ylabel="eigenvalues in a bin")
legend_above(left, 1)
right.plot(alphas, bayes, color=colour(0), label="state evolution")
right.plot(alphas, best, color=colour(1), label="spectral, theory")
error_bars(right, at, passing, color=colour(0), label="GAMP, spectral start")
error_bars(right, at, spectral, color=colour(1), marker="s", label="spectral estimate")
right.set(xlabel=r"sample complexity $\alpha$", ylabel="squared cosine")
right.set_ylim(bottom=0.0)
legend_above(right, 2)
save(ax, "spectral")

# %%
# The eigensolver beside dense diagonalisation; runs beyond both transitions (0.5 and 1.13) beside
# theory, within three standard errors and 5/D for the finite size.
w = np.ravel(data.teacher)
tolerance = 4.0 * float(estimate.residual) / (values[-1] - values[-2])
compare("top eigenvector", estimate.cosine[0] ** 2, (vectors[:, -1] @ w) ** 2 / (w @ w), tolerance)
clear = at > 1.4
for name, values, theory in (("spectral", spectral, best), ("GAMP", passing, bayes)):
    mean, stderr = mean_and_stderr(values[clear])
    expected = np.interp(at[clear], alphas, theory)
    compare(f"squared cosine, {name}", mean, expected, 3.0 * stderr + 5.0 / dimension)
