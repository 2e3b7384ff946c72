r"""
Quadratic network: the Bayes-optimal error
==========================================

.. image:: /assets/figures/quadratic_error.png
   :alt: Errors against samples for several widths with runs; map of the error over samples and width.

Bayes-optimal error of a quadratic network against the number of samples and its width.

A network of :math:`r = \kappa d` hidden units with squared activation, learned from :math:`n = \alpha
d^2` samples. Left: lines are theory, circles message passing at finite d, grey what is published
(arXiv 2408.03733). Right: perfect recovery from :math:`\kappa - \kappa^2/2` on, 1/2 for
:math:`\kappa \geq 1`.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/quadratic_error.png'
import jax
import numpy as np

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
from jaxsmi.workbench.plotting import colour, legend, line, shades

ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/d^2$"


def network(kappa, noise=0.0):
    """The quadratic network: a symmetric bilinear model."""
    return smi.Bilinear(1.0, kappa, noise, symmetric=True)


@jax.jit
@jax.vmap
def errors(alpha, kappa, noise):
    """Bayes-optimal errors, elementwise."""
    return smi.state_evolution(network(kappa, noise), alpha).error


def curve(alphas, kappa, noise=0.0):
    """Bayes-optimal errors at several α."""
    return errors(alphas, np.full(len(alphas), kappa), np.full(len(alphas), noise))


left, right = ax = axes(2)
alphas = np.linspace(0.002, 0.6, 40 if QUICK else 100)
tables = {0.1: "no_noise_0.1", 0.5: "no_noise_0.5", 1.0: "no_noise_1.0", 5.0: "no_noise_5.0"}
for kappa, tint in zip(tables, shades(len(tables)), strict=True):
    left.plot(alphas, curve(alphas, kappa), color=tint, label=rf"$\kappa = {kappa:g}$")
    if table := published("quadratic", f"line_{tables[kappa]}.csv"):
        left.plot(table["alpha"], table["gen_error"], color=GREY, lw=2.8, zorder=0.5)
        ours = curve(table["alpha"], kappa)
        # the table's quadrature; for κ = 0.1 it is coarse where two bands of the spectrum merge
        compare(f"theory, κ = {kappa:g}", ours, table["gen_error"], 1e-4 if kappa > 0.1 else 5e-3)

# %%
# Message passing at κ = 1/2, without and with noise, within three standard errors and 5/d.
dimension, runs, at = 40 if QUICK else 50, 3, np.array([0.1, 0.2, 0.3])
for noise in (0.0, 0.25):
    model = network(0.5, noise)
    dots = gamp_runs(
        model, at, dimension, runs, lambda run: run.error, iteration=smi.Iteration(max_steps=150)
    )
    mean, stderr = mean_and_stderr(dots)
    compare(f"GAMP, Δ = {noise:g}", mean, curve(at, 0.5, noise), 3 * stderr + 5 / dimension)
    look = {"color": colour(1), **line(2)}
    error_bars(left, at, dots, color=colour(1) if noise else shades(4)[1])
    if noise:
        left.plot(alphas, curve(alphas, 0.5, noise), label=r"0.5, $\Delta = 0.25$", **look)
left.set(xlabel=r"sample complexity $\alpha = n/d^2$", ylabel=ERROR)
legend(left, {f"GAMP, $d = {dimension}$": {"marker": "o", "ls": "none"}})

# %%
# The map, and the line of perfect recovery.
size = 12 if QUICK else 32
kappas, columns = np.linspace(0.001, 2.0, size), np.linspace(0.001, 0.6, size)
grid = np.meshgrid(columns, kappas)
heat = errors(*(x.ravel() for x in grid), np.zeros(size**2)).reshape(size, size)
shown = right.pcolormesh(columns, kappas, heat, shading="nearest", rasterized=True)
right.figure.colorbar(shown, ax=right, label=ERROR)
edge = np.where(kappas < 1.0, kappas - 0.5 * kappas**2, 0.5)
right.plot(edge, kappas, color=colour(4), ls="--", label="perfect recovery")
right.grid(False)
right.set(xlabel=r"sample complexity $\alpha = n/d^2$", ylabel=r"width $\kappa = r/d$")
legend(right)
compare("recovery", [float(network(kappa).recovery_alpha) for kappa in kappas], edge, 1e-12)
save(ax, "quadratic_error")
