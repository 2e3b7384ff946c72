r"""
Online SGD: what an encoding of positions does to the risk
==========================================================

.. image:: /assets/figures/sgd_landscapes.png
   :alt: Maps of the population risk over the semantic and the positional overlap, four targets.

Population risk over the semantic and the positional overlap, with two kinds of encoding.

Population risk of attention over the semantic overlap m and the positional one e (arXiv 2506.02651).
Above: with a paired encoding, whose direction has positive curvature: SGD escapes no sooner. Below: a
target, 4/3 + He4(z_1) + 2 He4(z_2), of which the encoding makes an escape of order two, if the trace
is over √2. Arrows: descending eigenvectors at the origin.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_landscapes.png'
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from _common import QUICK, axes, compare, save
from jaxsmi import sgd
from jaxsmi.workbench.plotting import colour

HE2, HE4 = ({(k, 0): 1.0, (0, k): 1.0} for k in (2, 4))
MIXED = {(0, 0): 4 / 3, (4, 0): 1.0, (0, 4): 2.0}
PANELS = (  # title, target, factor of the trace, encoding, κ, κ_esc
    ("He2 + He2, encoding", HE2, "none", "paired", 2, 2),
    ("He4 + He4, encoding", HE4, "none", "paired", 2, np.inf),
    ("mixed, no encoding", MIXED, "sqrtL", None, 4, np.inf),
    ("mixed, encoding", MIXED, "sqrtL", "paired", 2, 2),
)


def surface(model, size):
    """The risk on a square grid of (m, e), NaN outside of the disc."""
    axis = np.linspace(-1.0, 1.0, size)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    inside = np.sum(points**2, axis=-1) <= 1.0
    points = points[inside][:, : 1 + model.encoding.shape[1]]
    risk = jax.jit(lambda x: jax.lax.map(lambda v: sgd.risk(model, v).value, x))
    R = np.full(inside.shape, np.nan)
    R[inside] = risk(jnp.asarray(points))
    return axis, R


ax = axes(2, 2, height=2.9)
for panel, (title, terms, norm, encoding, order, escape) in zip(ax, PANELS, strict=True):
    student = sgd.Attention(trace_norm=norm)
    model = smi.SequenceSingleIndex(sgd.HermiteSeries(terms), 2, student, encoding)
    axis, R = surface(model, 13 if QUICK else 31)
    drawn = panel.contourf(axis, axis, R.T, levels=24, cmap="viridis")
    panel.figure.colorbar(drawn, ax=panel, label="risk $R$")
    flat = sgd.flatness(model)
    compare(f"κ, {title}", flat.order, order, 0.5)
    compare(f"1/κ_esc, {title}", 1.0 / flat.escape, 1.0 / escape, 1e-9)
    values, vectors = np.linalg.eigh(sgd.hessian(model))
    for value, vector in zip(values, vectors.T, strict=True):
        if value < -1e-9:
            end = 0.5 * np.append(vector, 0.0)[:2]
            panel.annotate("", end, (0, 0), arrowprops={"arrowstyle": "->", "color": colour(1)})
    panel.set(title=title, xlabel="semantic overlap $m$", ylabel="positional overlap $e$")
    panel.set_aspect("equal")
    panel.grid(False)
save(ax, "sgd_landscapes")
