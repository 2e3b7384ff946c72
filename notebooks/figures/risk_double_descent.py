r"""
Ridge regression: double descent
================================

.. image:: /assets/figures/risk_double_descent.png
   :alt: Test error against samples for several ridges, with runs; the peak at one for small ridges.

Test error of ridge regression, with a peak at :math:`\alpha = 1` for small ridges.

Test error of the minimum of the squared loss with a ridge :math:`\lambda`, on labels with noise
:math:`\Delta = 1/4`: theory (lines), the closed form (grey), message passing (dots). The posterior
mean is the ridge :math:`\lambda = \Delta`, which has no peak.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/risk_double_descent.png'
import jax
import numpy as np

import jaxsmi as smi
from _common import GREY, INK, QUICK, axes, compare, error_bars, gamp_runs, mean_and_stderr, save
from jaxsmi.workbench.plotting import legend_above, risk_against_alpha

NOISE = 0.25
model, key = smi.links.linear(NOISE), jax.random.key(0)
alphas = np.concatenate(
    [np.linspace(0.1, 1.1, 6 if QUICK else 21), np.linspace(1.2, 3.0, 4 if QUICK else 10)]
)
ridges = (0.01, NOISE) if QUICK else (0.001, 0.01, 0.1, 1.0, NOISE)
curves = [
    [smi.state_evolution(model, alpha, learner=smi.Erm(ridge=ridge), key=key) for alpha in alphas]
    for ridge in ridges
]

ax = axes()
for ridge, curve in zip(ridges, curves, strict=True):
    exact = smi.baselines.ridge_error(alphas, ridge, NOISE)
    ax[0].plot(alphas, exact, color=GREY, lw=4.5, zorder=0.5)
    allowed = 5.0 * np.array([float(point.stderrs["error"]) for point in curve]) + 1e-6
    compare(f"test error, λ = {ridge:g}", [point.error for point in curve], exact, allowed)
peak = alphas[np.argmax([point.error for point in curves[0]])]
compare("place of the peak", peak, 1.0, 0.25 if QUICK else 0.06)  # the grid's step
bayes = [smi.state_evolution(model, alpha, key=key).error for alpha in alphas[::5]]
best = [point.error for point in curves[-1][::5]]
compare("λ = Δ is Bayes-optimal", best, bayes, 1e-3)  # state evolution stops at 1e-4
ax[0].set_yscale("log")
labels = [rf"$\lambda = {ridge:g}$" for ridge in ridges[:-1]]
risk_against_alpha(curves, [*labels, rf"$\lambda = {NOISE:g}$, the best"], ax[0])

# %%
# Message passing of the learner, within three standard errors and 5/D.
dimension, runs, at = 200, 8, np.array([0.5, 1.5] if QUICK else [0.5, 0.8, 1.5, 2.5])
learner = smi.Erm(ridge=0.01)
dots = gamp_runs(
    model,
    at,
    dimension,
    runs,
    lambda run: run.error,
    learner=learner,
    iteration=smi.Iteration(max_steps=400),
)
error_bars(ax[0], at, dots, color=INK, zorder=3, label=r"GAMP, $\lambda = 0.01$")
mean, stderr = mean_and_stderr(dots)
exact = smi.baselines.ridge_error(at, 0.01, NOISE)
compare("message passing", mean, exact, 3.0 * stderr + 5.0 / dimension)
ax[0].set_ylabel(r"test error $E(\hat y - z^*)^2$")
legend_above(ax[0], 3)
save(ax, "risk_double_descent")
