r"""
Bilinear sequence regression: the Bayes-optimal error
=====================================================

.. image:: /assets/figures/bilinear_error.png
   :alt: Estimation errors against samples for several widths and lengths, with runs and ridge.

Bayes-optimal error of bilinear regression against the number of samples, for several widths and
lengths.

Error per entry of the signal :math:`S` (d, L) of rank r: for several widths :math:`\rho = r/L` and
lengths :math:`\beta = L/d`, with message passing at finite d, ridge regression, and the limit of
small width, in which all curves start at one threshold. Grey: published (arXiv 2410.18858).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/bilinear_error.png'
import jax
import numpy as np

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
from jaxsmi.workbench.plotting import legend, shades

ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/(dL)$"
WIDTHS, LENGTHS = (0.05, 0.2, 0.5, 1.0, 2.0), (1.0, 2.0, 5.0, np.inf)


@jax.jit
def errors(alphas, beta, rho, noise):
    """Bayes-optimal errors at several α."""
    model = smi.Bilinear(beta, rho, noise)
    return jax.vmap(lambda alpha: smi.state_evolution(model, alpha).error)(alphas)


alphas = np.linspace(0.005, 1.0, 40 if QUICK else 100)
first, second, third = ax = axes(3)
for rho, tint in zip(WIDTHS, shades(len(WIDTHS)), strict=True):
    first.plot(alphas, errors(alphas, 1.0, rho, 0.0), color=tint, label=rf"$\rho = {rho:g}$")
    scale = 2.0 * rho  # α = n/(dL) over n/(r(d + L)) at β = 1
    second.plot(1.2 * alphas, errors(scale * 1.2 * alphas, 1.0, rho, 0.0), color=tint)
for beta, tint in zip(LENGTHS, shades(len(LENGTHS)), strict=True):
    name = r"\infty" if np.isinf(beta) else f"{beta:g}"
    third.plot(alphas, errors(alphas, beta, 0.2, 0.1), color=tint, label=rf"$\beta = {name}$")
for panel, noise in ((first, 0.0), (third, 0.1)):
    ridge = smi.baselines.ridge_error(alphas, noise, noise)
    panel.plot(alphas, ridge, color=INK, ls="--", lw=1.0, label="ridge regression")
thin = smi.Bilinear(1.0, 1.0, 0.0)
limit = thin.small_width_error(1.2 * alphas)
second.plot(1.2 * alphas, limit, color=INK, ls="--", lw=1.0, label=r"$\rho \to 0$")
second.axvline(
    float(thin.small_width_threshold), color=INK, ls=":", lw=0.9, label="learning starts"
)

# %%
# Message passing at ρ = 1/2, β = 1.
dimension, runs = (40, 3) if QUICK else (60, 4)
at = np.array([0.2, 0.4, 0.6])
model = smi.Bilinear(1.0, 0.5)
dots = gamp_runs(
    model, at, dimension, runs, lambda run: run.error, iteration=smi.Iteration(max_steps=150)
)
error_bars(first, at, dots, color=shades(len(WIDTHS))[2], label=f"GAMP, $d = {dimension}$")
mean, stderr = mean_and_stderr(dots)
compare("message passing", mean, errors(at, 1.0, 0.5, 0.0), 3.0 * stderr + 5.0 / dimension)

# %%
# Published tables; they are not converged at perfect recovery itself, which is left out.
for panel, beta, noise, rhos in ((first, 1, 0.0, WIDTHS[1:]), (third, 1, 0.1, (0.2,))):
    table = published("bsr", "theory", f"delta_{noise:g}_beta_{beta}.csv")
    for rho in rhos if table else ():
        rows = (table["rho"] == rho) & (table["alpha"] > 0)
        alpha, error = table["alpha"][rows], table["mmse"][rows]
        panel.plot(alpha, error, color=GREY, lw=2.8, zorder=0.5)
        recovery = 1.0 if rho >= 1 else rho * (2.0 - rho)
        away = (np.abs(alpha - recovery) > 1e-9) | (noise > 0)
        ours = errors(alpha[away], float(beta), rho, noise)
        compare(f"theory, ρ = {rho:g}, Δ = {noise:g}", ours, error[away], 5e-5)

first.set(xlabel=r"$\alpha = n/(dL)$", ylabel=ERROR, title=r"$\beta = 1$, $\Delta = 0$")
second.set(xlabel=r"$\bar\alpha = n/(r(d + L))$", title=r"$\beta = 1$, $\Delta = 0$")
third.set(xlabel=r"$\alpha = n/(dL)$", title=r"$\rho = 0.2$, $\Delta = 0.1$")
for panel in ax:
    legend(panel)
save(ax, "bilinear_error")
