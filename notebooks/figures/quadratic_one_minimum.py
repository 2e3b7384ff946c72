r"""
Quadratic network: from how many samples on all starts agree
============================================================

.. image:: /assets/figures/quadratic_one_minimum.png
   :alt: Spread between starts against samples for several noises; the threshold against noise.

The number of samples from which descent from all starts ends at one matrix.

Adam from several starts on one data set, width :math:`\kappa = 1/2`. Left: the spread between their
ends; below the dotted level they are one matrix. Right: the :math:`\alpha` from which they are, with
half a step of the grid, beside recovery without noise (dashed; arXiv 2408.03733).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/quadratic_one_minimum.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import DOTS, INK, QUICK, axes, compare, save
from jaxsmi.workbench.plotting import colour, legend, markers, shades

dimension, starts, steps, level = 20, 4, 2500, 1e-3
noises = (0.0, 1.0) if QUICK else (0.0, 0.25, 1.0)
alphas = np.linspace(0.1, 0.7, 4 if QUICK else 7)
optimizer = optax.adam(0.02)

left, right = ax = axes(2)
thresholds = []
for k, (tint, noise) in enumerate(zip(shades(len(noises)), noises, strict=True)):
    model = smi.Bilinear(1.0, 0.5, noise, symmetric=True)
    spread = []
    for i, alpha in enumerate(alphas):
        data = model.sample(jax.random.key(i), dimension=dimension, alpha=alpha)
        keys = jax.random.split(jax.random.key(100 + i), starts)
        gradient = smi.Gradient(reduction="sum")
        fit = smi.train(model, data, optimizer, key=keys, steps=steps, gradient=gradient)
        spread.append(np.sum(np.var(fit.weights, axis=0)) / dimension**2)
    last = np.flatnonzero(np.array(spread) > level)[-1]  # the last α at which starts differ
    thresholds.append(np.mean(alphas[last : last + 2]))
    look = markers(k) | {"color": tint, "linestyle": "-", "label": rf"$\Delta = {noise:g}$"}
    left.semilogy(alphas, np.maximum(spread, 1e-12), **look)
left.axhline(level, color=INK, lw=0.9, ls=":", label="one matrix below")
left.set_xlabel(r"sample complexity $\alpha = n/d^2$")
left.set_ylabel(r"spread of starts $\Vert\hat S_k-\bar S\Vert_F^2/d^2$")
legend(left)

step = alphas[1] - alphas[0]
right.errorbar(noises, thresholds, step / 2, color=colour(0), label="half a grid step", **DOTS)
recovery = float(smi.Bilinear(1.0, 0.5, symmetric=True).recovery_alpha)
right.axhline(recovery, color=INK, lw=0.9, ls="--", label="recovery without noise")
right.set(xlabel=r"noise $\Delta$", ylabel=r"$\alpha$ from which all starts agree")
legend(right)
# d = 20 and finite training blur the transition by about a step of the grid
compare("one minimum without noise from recovery on", thresholds[0], recovery, 1.5 * step)
save(ax, "quadratic_one_minimum")
