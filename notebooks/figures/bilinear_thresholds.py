r"""
Bilinear sequence regression: perfect recovery and the nuclear norm
===================================================================

.. image:: /assets/figures/bilinear_thresholds.png
   :alt: Recovery thresholds against width; errors of the nuclear norm beside the optimal one.

The number of samples from which recovery is perfect, Bayes-optimally and by the minimum nuclear
norm.

Left: from which :math:`\alpha = n/(dL)` on the signal is recovered perfectly, Bayes-optimally and by
the matrix of least nuclear norm that fits the labels. Right: the error of that matrix on data.
Grey: published (arXiv 2410.18858).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/bilinear_thresholds.png'
import jax
import numpy as np

import jaxsmi as smi
from _common import (
    GREY,
    QUICK,
    REFERENCE,
    axes,
    compare,
    error_bars,
    mean_and_stderr,
    published,
    save,
)
from jaxsmi.workbench.plotting import colour, legend, shades

LENGTHS = (1.0, 2.0, 5.0)


def recovery(beta, rhos):
    """The α of perfect recovery, Bayes-optimal."""
    return np.array([float(smi.Bilinear(beta, rho).recovery_alpha) for rho in rhos])


def nuclear(beta, rhos):
    """The α from which the nuclear norm is exact."""
    return np.array([float(smi.baselines.nuclear_norm_threshold(beta, rho)) for rho in rhos])


left, right = ax = axes(2)
rhos = np.linspace(0.001, 1.0, 41)
table = published("bsr", "min_norm", "thresholds.csv")
for beta, tint in zip(LENGTHS, shades(len(LENGTHS)), strict=True):
    left.plot(rhos, recovery(beta, rhos), color=tint, label=rf"$\beta = {beta:g}$")
    left.plot(rhos, nuclear(beta, rhos), color=tint, ls="--")
    if table:
        rows = np.flatnonzero((table["beta"] == beta) & (table["rho"] > 0))[:: 10 if QUICK else 3]
        for name, function in (("alpha_BO", recovery), ("alpha_MNNE", nuclear)):
            known = table[name][rows]
            left.plot(table["rho"][rows], known, color=GREY, lw=2.8, zorder=0.5)
            compare(f"{name}, β = {beta:g}", function(beta, table["rho"][rows]), known, 1e-5)
left.set(xlabel=r"width $\rho = r/L$", ylabel=r"$\alpha$ of perfect recovery")
legend(left, {"Bayes-optimal": {}, "nuclear norm": {"ls": "--"}})

# %%
# The minimum of the nuclear norm on data at d = L = 20.
dimension, runs = 20, 3 if QUICK else 6
at, alphas = np.array([0.2, 0.4, 0.6]), np.linspace(0.01, 1.0, 50)
for k, rho in enumerate((0.2, 0.5)):
    model = smi.Bilinear(1.0, rho)
    optimal = jax.jit(jax.vmap(lambda alpha, model=model: smi.state_evolution(model, alpha).error))
    right.plot(alphas, optimal(alphas), color=colour(k), label=rf"Bayes-optimal, $\rho = {rho:g}$")
    errors = np.zeros((len(at), runs))
    for i, run in np.ndindex(errors.shape):
        key = jax.random.fold_in(jax.random.key(run), i)
        data = model.sample(key, dimension=dimension, alpha=at[i])
        errors[i, run] = smi.baselines.minimum_nuclear_norm(model, data).error
    error_bars(right, at, errors, color=colour(k), label=rf"nuclear norm, $\rho = {rho:g}$")
    right.axvline(nuclear(1.0, [rho])[0], color=colour(k), ls=":", lw=0.9)
    files = [REFERENCE / "bsr/min_norm" / f"{name}_D20R{rho}B1.0.npy" for name in ("alpha", "MSE")]
    if table and all(file.is_file() for file in files):
        known_alpha, (known, known_stderr) = np.load(files[0]), mean_and_stderr(np.load(files[1]))
        right.errorbar(known_alpha, known, known_stderr, color=GREY, ls="none", marker="d", ms=3)
        mean, stderr = mean_and_stderr(errors)
        joint = np.hypot(stderr, np.interp(at, known_alpha, known_stderr))
        expected = np.interp(at, known_alpha, known)
        compare(f"nuclear norm, ρ = {rho:g}", mean, expected, 3.0 * joint + 0.02)
right.set(xlabel=r"sample complexity $\alpha = n/(dL)$", ylabel=r"$\Vert\hat S-S\Vert_F^2/(dL)$")
legend(right, {"nuclear norm is exact": {"ls": ":", "lw": 0.9}})
save(ax, "bilinear_thresholds")
