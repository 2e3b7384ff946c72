r"""
Does the law of the inputs matter?
==================================

.. image:: /assets/figures/input_laws.png
   :alt: Squared cosines of runs on four laws of inputs, on the theory of Gaussian inputs.

Message passing on Gaussian, sign, uniform and sparse inputs ends where the theory of Gaussian
inputs says.

State evolution assumes Gaussian inputs. Message passing on inputs whose entries are Gaussian, signs,
uniform or sparse ends where it says, for labels sign(z) (universality; it fails for matrix models
with a trace).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/input_laws.png'
import jax
import numpy as np

import jaxsmi as smi
from _common import INK, QUICK, axes, compare, error_bars, mean_and_stderr, save
from jaxsmi.workbench.plotting import colour, legend

model, alpha = smi.links.sign(), 2.0
laws = ("gaussian", "rademacher", "uniform", "sparse")
dimension, runs = (200, 6) if QUICK else (500, 8)
theory = smi.state_evolution(model, alpha, key=jax.random.key(0))
limit, limit_stderr = float(theory.overlap[0, 0]), float(theory.stderr[0, 0])

squared = np.zeros((len(laws), runs))
for i, run in np.ndindex(squared.shape):
    data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(run), i))
    data = model.sample(data_key, dimension=dimension, alpha=alpha, inputs=laws[i])
    squared[i, run] = smi.gamp(model, data, key=key).cosine[0] ** 2

ax = axes()
ax[0].axhline(limit, color=INK, label="state evolution, Gaussian inputs")
error_bars(ax[0], range(len(laws)), squared, color=colour(0), label=f"GAMP, $D = {dimension}$")
ax[0].set_xticks(range(len(laws)), laws)
ax[0].set(ylabel="squared cosine", ylim=(0.6, 0.85))
legend(ax[0])
mean, stderr = mean_and_stderr(squared)
compare("theory", mean, limit, 4.0 * np.hypot(stderr, limit_stderr) + 1.0 / dimension)
compare("Gaussian inputs", mean[1:], mean[0], 4.0 * np.hypot(stderr[1:], stderr[0]))
save(ax, "input_laws")
