r"""
Three layers of attention
=========================

.. image:: /assets/figures/deep_three_layers.png
   :alt: Overlaps and prediction error of three layers against samples.

Of three layers the last is learned first, then the first, then the second.

State evolution of three layers, two tokens, c = 1; crosses mark points where the iteration was stopped
before it had converged. Layer 3 is learned first, then layer 1. Grey: published (arXiv 2502.00901),
whose inner integral has 10⁴ uniform points: good for the shape, too coarse where the hidden layers
are learned.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/deep_three_layers.png'
import jax
import numpy as np

import jaxsmi as smi
from _common import GREY, QUICK, axes, compare, published, save
from jaxsmi.workbench import plotting

model, key = smi.DeepAttention(3, 2, tolerance=0.1, max_nodes=2**12), jax.random.key(0)
alphas = [0.5, 1.0] if QUICK else [0.15, 0.25, 0.375, 0.5, 0.75, 1.0, 1.25, 1.75]
settings = {
    "averages": smi.Averages(2**8, 4),
    "iteration": smi.Iteration(max_steps=40, tolerance=1e-2),
}
theory = [smi.state_evolution(model, alpha, key=key, **settings) for alpha in alphas]

left, right = ax = axes(2, height=3.0)
if table := published("smi", "BO_3w.csv"):
    for p in range(3):
        known = table[f"Q{p + 1}{p + 1}"]
        left.plot(table["alpha"], known, color=GREY, lw=2.8, zorder=0.5)
        for alpha, point in zip(alphas, theory, strict=True):
            if alpha <= 1.0 and abs(alpha - 0.206) > 0.04:  # away from the threshold of layer 3
                allowed = 0.05 + 3.0 * float(point.stderr[p, p])
                expected = np.interp(alpha, table["alpha"], known)
                compare(f"layer {p + 1}, α = {alpha:g}", point.overlap[p, p], expected, allowed)
plotting.overlap_against_alpha(theory, ax=left)
right.plot(alphas, [point.error for point in theory], ".-", label="state evolution")
right.set_xlabel(r"sample complexity $\alpha$")
right.set_ylabel(r"prediction error $E\Vert\hat y-y\Vert_F^2$")
save(ax, "deep_three_layers")
