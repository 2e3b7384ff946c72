r"""
Scaling: teachers with a power law
==================================

.. image:: /assets/figures/trained_scaling.png
   :alt: Left: error against samples for two exponents. Right: eigenvalues of a run against samples.

A teacher of eigenvalues :math:`\lambda_k\propto k^{-\gamma}`, of which labels tell linearly, with
noise or without. An eigenvalue is learned once it leaves the noise of the estimate,
:math:`\lambda_k^2>N\propto(e+\Delta)/\alpha`, so that the error falls as
:math:`\alpha^{-(2\gamma-1)}` without noise and as :math:`\alpha^{-(2\gamma-1)/2\gamma}` with it.
Left: Bayes (lines), weight decay (dots) and these powers (grey) for
:math:`d\to\infty` with 20000 eigenvalues. Right: eigenvalues of one trained matrix at
:math:`d = 200` (dots) against the samples, where each appears by theory (lines), and the teacher's
(grey).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/trained_scaling.png'
import itertools

import jax
import numpy as np

import jaxsmi as smi
from _common import DOTS, GREY, QUICK, axes, compare, save
from jaxsmi.workbench.plotting import legend_above

key = jax.random.key(0)
NOISE, COUNT, HEAD = 0.1, 20000, 30
ax = axes(2)


def power_law(gamma):
    """k^{-γ}: the first 30 one by one, the others in sixty bins."""
    s = np.arange(1.0, COUNT + 1.0) ** -gamma
    cuts = np.r_[np.arange(HEAD), np.geomspace(HEAD, COUNT, 61).round().astype(int)]
    bins = list(itertools.pairwise(cuts))
    return smi.priors.Spectrum([np.sqrt(np.mean(s[a:b] ** 2)) for a, b in bins], np.diff(cuts))


def trained(model, alpha, error):
    """The error of weight decay that removes noise N ∝ (e + Δ)/α, at almost its best strength."""
    learner = smi.MatrixErm(nuclear=2.6 * np.sqrt(alpha * (error + float(model.noise))))
    return float(smi.state_evolution(model, alpha, learner=learner).error)


# without noise the powers hold until all 20000 eigenvalues are learned, with it from where the noise
# of the labels is the larger one
RANGES = {0.0: (3e-4, 3e-3), NOISE: (1e-2, 1e-1)}
for gamma, noise in [(1.0, 0.0), (1.0, NOISE), (1.5, NOISE)]:
    model = smi.AttentionIndexed(2, power_law(gamma), "linear", noise=noise)
    alphas = np.geomspace(*RANGES[noise], 3 if QUICK else 5)
    error = np.array([float(smi.state_evolution(model, alpha, key=key).error) for alpha in alphas])
    power = (2 * gamma - 1) / (2 * gamma if noise else 1)
    slope = np.polyfit(np.log(alphas), np.log(error), 1)[0]
    (line,) = ax[0].plot(alphas, error, label=rf"$\gamma={gamma:g}$, $\Delta={noise:g}$")
    ax[0].plot(alphas, 1.4 * error[0] * (alphas / alphas[0]) ** -power, color=GREY, lw=0.8)
    decay = [trained(model, *point) for point in zip(alphas[::2], error[::2], strict=True)]
    ax[0].plot(alphas[::2], decay, **DOTS, color=line.get_color())
    print(gamma, noise, slope, -power, np.round(decay / error[::2], 3), flush=True)
    # for γ = 1 slopes between neighbouring α are off by 0.1 at the end of the range without noise,
    # where the last eigenvalues begin to be learned, and at the start of that with it
    compare("power", slope, -power, 0.1)
ax[0].set(xscale="log", yscale="log", xlabel=r"$\alpha$", ylabel=r"$\|\hat S - S^*\|^2/d$")
legend_above(ax[0], 2)

# %%
# One trained matrix: a matrix of few large eigenvalues and noise N shows each at λ + N/λ once
# λ² > N, and the penalty shrinks it.
dimension, tau = 60 if QUICK else 200, 0.003
shown = 6
model = smi.AttentionIndexed(
    2, smi.priors.Spectrum(smi.priors.power_law(dimension, 1.0)), "linear", noise=NOISE
)
values = np.asarray(model.prior.law.values)[::-1]  # of variance one
alphas = np.geomspace(0.015, 0.3, 3 if QUICK else 8)
largest, expected, spread = [], [], []
for alpha in alphas:
    learner = smi.MatrixErm(nuclear=tau)
    spectrum = smi.state_evolution(model, alpha, learner=learner).spectrum
    data = model.sample(jax.random.key(1), dimension=dimension, alpha=alpha)
    run = smi.gamp(model, data, learner=learner, key=key)
    largest.append(np.sort(np.linalg.eigvalsh(np.asarray(run.weights)))[::-1][:shown])
    out = values[:shown] + spectrum.law.delta / values[:shown]
    learned = values[:shown] ** 2 > spectrum.law.delta
    # an outlier moves by the noise along its vector, of variance 2N/d
    spread.append(np.full(shown, float(np.sqrt(2.0 * spectrum.law.delta / dimension))))
    expected.append(np.where(learned, spectrum.shrinkage(spectrum.gain * out), np.nan))
ax[1].plot(alphas, np.array(expected))
ax[1].set_prop_cycle(None)
ax[1].plot(alphas, np.array(largest), **DOTS)
for value in values[:shown]:
    ax[1].axhline(value, color=GREY, lw=0.6, zorder=0)
ax[1].set(xscale="log", yscale="log", xlabel=r"$\alpha$", ylabel="eigenvalue")
ax[1].set_xticks([0.02, 0.05, 0.1, 0.2], ["0.02", "0.05", "0.1", "0.2"])
ax[1].set_yticks([2, 3, 4, 6, 12], ["2", "3", "4", "6", "12"])
for axis in (ax[1].xaxis, ax[1].yaxis):
    axis.set_minor_formatter("")
learned = np.isfinite(expected)
sizes = (np.array(rows)[learned] for rows in (largest, expected, spread))
largest, expected, spread = sizes
compare("outliers", largest, expected, 3.0 * spread)
save(ax, "trained_scaling")
