r"""
Online SGD: semantic or positional
==================================

.. image:: /assets/figures/sgd_convergence.png
   :alt: Runs of SGD on the map of the risk; share of runs that end at the semantic minimum.

Runs of online SGD that end in the semantic or in the positional minimum, and their share.

Left: runs of SGD on the risk of the semantic/positional problem at :math:`\omega = 0.67`, folded into
one quadrant; white: to the semantic minimum, dashed: to the positional one. Right: share of runs from
the origin that end at the semantic one, with binomial standard errors; the transition is where both
directions are equally steep at the origin (arXiv 2506.02651).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_convergence.png'
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from _common import DOTS, INK, QUICK, axes, compare, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import colour, legend

dimension, transition = 100 if QUICK else 200, 0.640962617902
left, right = ax = axes(2)


def simulate(omega, rate, time, start, target, count, seed):
    """Runs until ‖(m, e)‖ is at the target."""
    model, keys = sgd.semantic_positional(omega), jax.random.split(jax.random.key(seed), count)
    monitor = smi.Monitor(target=target, every=dimension)
    settings = {"dimension": dimension, "rate": rate, "alpha": time / rate, "start": start}
    return sgd.simulate(model, keys, monitor=monitor, **settings)


# %%
# The curvatures at the origin are equal at the transition.
H = sgd.hessian(sgd.semantic_positional(transition))
compare("curvatures at the transition", H[0, 0], H[1, 1], 1e-8)

# %%
# Runs on the map.
model, axis = sgd.semantic_positional(0.67), np.linspace(0.0, 1.0, 8 if QUICK else 21)
points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
inside = np.sum(points**2, axis=-1) <= 1.0
R = np.full(inside.shape, np.nan)
R[inside] = jax.lax.map(lambda v: sgd.risk(model, v).value, jnp.asarray(points[inside]))
drawn = left.contourf(axis, axis, R.T, levels=24, cmap="viridis")
left.figure.colorbar(drawn, ax=left, label="risk $R$")
run = simulate(0.67, 0.5, 400.0, None, 0.95, 8 if QUICK else 16, 0)
paths = np.abs(np.asarray(run.teacher_overlap)[:, :, 0])
end = np.abs(np.asarray(run.end)[:, 0])
for path, (m, e) in zip(paths, end, strict=True):
    left.plot(
        *path.T,
        **({"color": "w", "lw": 0.7} if m > e else {"color": colour(4), "ls": "--", "lw": 0.9}),
    )
left.set(
    xlabel="semantic overlap $|m|$", ylabel="positional overlap $|e|$", title=r"$\omega = 0.67$"
)
left.grid(False)

# %%
# Shares.
omegas = np.array(
    [0.5, 0.64, 0.78] if QUICK else [0.5, 0.56, 0.6, 0.62, 0.64, 0.66, 0.68, 0.72, 0.78]
)
count, share = 24 if QUICK else 48, []
for k, omega in enumerate(omegas):
    run = simulate(omega, 1.0, 1000.0, [0.0, 0.0], 0.8**0.5, count, 1 + k)
    m, e = np.abs(np.asarray(run.end)[:, 0]).T
    share.append(np.mean(m > e))
share = np.array(share)
error = np.sqrt(share * (1.0 - share) / count)
right.errorbar(omegas, share, error, color=colour(0), **(DOTS | {"ls": "-", "lw": 0.8}))
right.axvline(transition, color=INK, ls=":", lw=0.9, label="transition")
right.axhline(0.5, color=INK, lw=0.4)
right.set(xlabel=r"weight of the positional part $\omega$", ylabel="share of semantic runs")
legend(right)
middle = np.interp(0.5, share[::-1], omegas[::-1])
# 0.03 for the number of runs, a step of the grid, and the dimension
compare("ω at a share of 1/2", middle, transition, 0.06 if QUICK else 0.03)
compare("shares at the ends", share[[0, -1]], [1.0, 0.0], 0.1)
save(ax, "sgd_convergence")
