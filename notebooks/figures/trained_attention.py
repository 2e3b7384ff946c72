r"""
Trained attention: errors and the learned spectrum
===================================================

.. image:: /assets/figures/trained_attention.png
   :alt: Left: error against samples for weight decays, with runs. Right: eigenvalues of one run.

Distance to the teacher of trained attention against the number of samples, and the learned
spectrum.

Softmax attention of two tokens, a teacher of width :math:`d/2`, labels with noise of variance
:math:`\Delta = 0.05`, square loss. Left: distance to the teacher's matrix for weight decay of query
and key (a nuclear norm :math:`\tau`) and for a ridge of their product trained directly (dashed):
theory, message passing at :math:`d = 60` (dots), and the best of all (grey) without noise. Right:
eigenvalues of one noiseless run at :math:`d = 200` and the density of theory; the number in the
legend is the fraction that is zero.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/trained_attention.png'
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from _common import GREY, INK, QUICK, axes, compare, error_bars, gamp_runs, mean_and_stderr, save
from jaxsmi.workbench.plotting import legend_above

key = jax.random.key(0)
exact = smi.AttentionIndexed(2, 0.5)
noisy = smi.AttentionIndexed(2, 0.5, lambda h: jax.nn.softmax(h, axis=-1), noise=0.05)
square = lambda prediction, label: jnp.sum((prediction - label) ** 2)
alphas = np.geomspace(0.1, 2.0, 3 if QUICK else 8)
learners = {
    r"$\tau = 0.02$": smi.MatrixErm(nuclear=0.02, loss=square),
    r"$\tau = 0.1$": smi.MatrixErm(nuclear=0.1, loss=square),
    r"$\lambda = 0.02$": smi.MatrixErm(ridge=0.02, loss=square, positive=False),
}

ax = axes(2)
for label, learner in learners.items():
    curve = [smi.state_evolution(noisy, alpha, learner=learner, key=key) for alpha in alphas]
    style = "--" if "lambda" in label else "-"
    ax[0].plot(alphas, [point.error for point in curve], style, label=label)
    print(label, [f"{float(p.error):.4f}({float(p.stderrs['error']):.4f})" for p in curve])
at, settings = np.array([0.3, 1.0]), {"iteration": smi.Iteration(max_steps=500)}
learner = learners[r"$\tau = 0.1$"]
dots = gamp_runs(noisy, at, 40 if QUICK else 60, 4, lambda r: r.error, learner=learner, **settings)
error_bars(ax[0], at, dots, color=INK, zorder=3, label=r"GAMP, $\tau = 0.1$")
theory = [smi.state_evolution(noisy, alpha, learner=learner, key=key).error for alpha in at]
mean, stderr = mean_and_stderr(dots)
# matrices have corrections of order 1/d: Q_0 alone is larger by 1/d
compare("message passing", mean, theory, 3.0 * stderr + 5.0 / 60.0 * np.asarray(theory))
bayes = [float(smi.state_evolution(exact, alpha).error) for alpha in alphas]
ax[0].plot(alphas, np.where(np.array(bayes) > 1e-3, bayes, np.nan), color=GREY, label="Bayes")
ax[0].set(xscale="log", yscale="log", xlabel=r"$\alpha$", ylabel=r"$\|\hat S - S^*\|^2/d$")
legend_above(ax[0], 3)

# %%
# One run beside the spectrum of theory.
learner, alpha, dimension = smi.MatrixErm(nuclear=0.05, loss=square), 0.2, 80 if QUICK else 200
end = smi.state_evolution(exact, alpha, learner=learner, key=key)
data = exact.sample(jax.random.key(1), dimension=dimension, alpha=alpha)
run = smi.gamp(exact, data, learner=learner, key=key, **settings)
values = np.linalg.eigvalsh(np.asarray(run.weights))
zero = np.mean(values < 1e-6)
compare("fraction of zeros", zero, float(end.spectrum.zero), 3.0 / dimension)
bins = np.linspace(0.0, 1.05 * values.max(), 25)
weights = np.full(len(values), 1.0 / len(values) / (bins[1] - bins[0]))
told = f"run ({zero:.3f})"
ax[1].hist(values[values > 1e-6], bins, weights=weights[values > 1e-6], color=GREY, label=told)
s = np.linspace(1e-4, bins[-1], 400)
told = f"theory ({float(end.spectrum.zero):.3f})"
ax[1].plot(s, end.spectrum.density(s), color=INK, label=told)
ax[1].set(xlabel="eigenvalue", ylabel="density")
legend_above(ax[1], 2)
save(ax, "trained_attention")
