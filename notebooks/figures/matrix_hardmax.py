r"""
Attention-indexed model: hardmax
================================

.. image:: /assets/figures/matrix_hardmax.png
   :alt: Errors against samples with their power law and runs; the limit of small width.

Error of the matrix behind hardmax attention, which is never recovered perfectly.

Labels say only which token is attended, T = 2. Left: the error falls as :math:`c(\rho)/\alpha^2` (dotted). Right: small width; nothing is learned below
:math:`\bar\alpha = 0.403`. Grey: published (arXiv 2506.01582), with a wrong derivative of the law of
the label, and therefore too high.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/matrix_hardmax.png'
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

ERROR = r"estimation error $\Vert\hat S-S\Vert_F^2/d$"
WIDTHS, SMALL = (0.1, 0.2, 0.5, 1.0, 2.0), (0.001, 0.01, 0.1, 0.5)


@jax.jit
def errors(alphas, width):
    """Bayes-optimal errors at several α."""
    model = smi.AttentionIndexed(2, width, "hardmax")
    return jax.vmap(lambda alpha: smi.state_evolution(model, alpha).error)(alphas)


left, right = ax = axes(2)
alphas = np.logspace(-2, 1.5, 20 if QUICK else 60)
for width, tint in zip(WIDTHS, shades(len(WIDTHS)), strict=True):
    error = errors(alphas, width)
    left.loglog(alphas, error, color=tint, label=rf"$\rho = {width:g}$")
    law = float(smi.AttentionIndexed(2, width, "hardmax").decay) / alphas**2
    left.loglog(alphas, np.where(law < 0.1, law, np.nan), color=tint, ls=":", lw=0.8)
    compare(f"power law, ρ = {width:g}", error[-1] / law[-1], 1.0, 0.1)  # corrections of order 1/α
    if table := published("aim", f"SE_hardmax_rho={width:.1f}.csv"):
        left.plot(table["alpha"], table["mmse"], color=GREY, lw=2.8, zorder=0.5)
dimension, runs, at = 40, 3, np.array([0.1, 0.4])
model = smi.AttentionIndexed(2, 0.5, "hardmax")
dots = gamp_runs(
    model, at, dimension, runs, lambda run: run.error, iteration=smi.Iteration(max_steps=80)
)
error_bars(left, at, dots, color=shades(len(WIDTHS))[2])
mean, stderr = mean_and_stderr(dots)
compare("message passing", mean, errors(at, 0.5), 3.0 * stderr + 5.0 / dimension)
left.set(xlabel=r"sample complexity $\alpha = n/d^2$", ylabel=ERROR, ylim=(1e-4, 1.5))
keys = {r"$c(\rho)/\alpha^2$": {"ls": ":", "lw": 0.8}, "GAMP": {"marker": "o", "ls": "none"}}
legend(left, keys)

# %%
# Small widths, against n/(dr).
x = np.linspace(0.02, 2.0, 20 if QUICK else 80)
limit = model.small_width_error(x)
for width, tint in zip(SMALL, shades(len(SMALL)), strict=True):
    error = errors(width * x, width)
    right.plot(x, error, color=tint, label=rf"$\rho = {width:g}$")
    if width == SMALL[0]:  # the first correction at the transition is of order ρ^(2/3)
        compare("small width", error, limit, 3.0 * width ** (2 / 3))
right.plot(x, limit, color=INK, ls="--", lw=1.0, label=r"$\rho \to 0$")
threshold = float(model.small_width_threshold)
right.axvline(threshold, color=INK, ls=":", lw=0.9, label="learning starts")
compare("threshold of small width", threshold, 0.403, 1e-3)
right.set(xlabel=r"sample complexity $\bar\alpha = n/(dr)$", ylabel=ERROR)
legend(right)
save(ax, "matrix_hardmax")
