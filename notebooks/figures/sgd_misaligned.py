r"""
Online SGD: first towards the positional corner, then away
==========================================================

.. image:: /assets/figures/sgd_misaligned.png
   :alt: Runs of SGD on the risk at a = 0.76, omega = 0.95, and their overlaps against time.

Runs of online SGD that first go to the positional corner, and then turn to the semantic minimum.

The misaligned phase of the semantic/positional problem (a = 0.76, ω = 0.95): the positional direction
is the steepest at the origin, but on the e axis the risk has a saddle that is nearly flat along m.
Runs stay there for long, before they turn to the semantic minimum, the only one (arXiv 2506.02651,
figure 13).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_misaligned.png'
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

import jaxsmi as smi
from _common import QUICK, axes, compare, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import colour, legend

model = sgd.semantic_positional(0.95, 0.76)
risk = jax.jit(lambda v: sgd.risk(model, v).value)

# %%
# The saddle, and risks at four points, from an independent computation.
slope = jax.jit(jax.grad(lambda e: risk(jnp.stack([0.0 * e, e]))))
saddle = brentq(lambda e: float(slope(jnp.asarray(e))), 0.8, 0.95)
compare("e of the saddle", saddle, 0.8756, 5e-5)
compare("risk of the saddle", risk(jnp.array([0.0, saddle])), 0.0946897, 5e-8)
compare("R_mm at the saddle", sgd.hessian(model, [0.0, saddle])[0, 0], -0.00229, 6e-6)
known = {(0.0, 0.0): 0.0979971777300, (1.0, 0.0): 0.0905623529170, (0.6, 0.5): 0.0945985812170}
compare("risks", [risk(jnp.array(point)) for point in known], list(known.values()), 1e-12)

# %%
# The map, and runs from the origin, folded into one quadrant.
plane, paths = ax = axes(2)
axis = np.linspace(0.0, 1.0, 8 if QUICK else 21)
points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
inside = np.sum(points**2, axis=-1) <= 1.0
R = np.full(inside.shape, np.nan)
R[inside] = jax.lax.map(risk, jnp.asarray(points[inside]))
drawn = plane.contourf(axis, axis, R.T, levels=24, cmap="viridis")
plane.figure.colorbar(drawn, ax=plane, label="risk $R$")
dimension, rate, steps, count = 100, 0.05, 6_000_000, 2 if QUICK else 4
keys = jax.random.split(jax.random.key(13), count)
monitor = smi.Monitor(target=0.95, every=steps // 1000)
settings = {"dimension": dimension, "rate": rate, "alpha": steps / dimension, "start": [0.0, 0.0]}
runs = sgd.simulate(model, keys, monitor=monitor, **settings)
for m, e in np.abs(np.asarray(runs.teacher_overlap)[:, :, 0]).transpose(0, 2, 1):
    plane.plot(m, e, color="w", lw=0.5, alpha=0.8)
    for k, overlap in enumerate((m, e)):
        paths.plot(runs.time, overlap, lw=0.5, color=colour(k))
plane.set(xlabel="semantic overlap $|m|$", ylabel="positional overlap $|e|$")
plane.grid(False)
paths.set(xlabel=r"time $t = \gamma\tau/d$", ylabel="overlap of a run")
legend(paths, {name: {"color": colour(k)} for k, name in enumerate(("semantic", "positional"))})
m, e = np.abs(np.asarray(runs.end)[:, 0]).T
compare("share of runs that end semantic", np.mean(m > e), 1.0, 1e-9)
save(ax, "sgd_misaligned")
