r"""
Attention of any depth: thresholds, and exchange of hidden layers
=================================================================

.. image:: /assets/figures/deep_depth.png
   :alt: Thresholds against depth; change of labels when two hidden layers are swapped.

Thresholds of attention against its depth, and whether hidden layers can be interchanged.

Left: from which :math:`\alpha` on the last of L layers is learned, and all of them. Right: how much
labels change when two hidden layers are swapped, over how much they change when both are drawn anew.
If hidden layers can be interchanged at large L, this vanishes: it does for neighbours when each layer
adds 1/L of its attention, not for layers I + S.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/deep_depth.png'
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from _common import DOTS, QUICK, axes, compare, save
from jaxsmi.workbench.plotting import colour, legend, legend_above, line

key = jax.random.key(0)
left, right = ax = axes(2)

# %%
# Thresholds; known: 1/(M (M + 1)) for one layer, independent quadratures for two and three.
known = {1: (1.0 / 6.0, 1e-6), 2: (0.186, 0.002), 3: (0.206, 0.006)}
depths = (1, 2) if QUICK else (1, 2, 3)
for depth in depths:
    model = smi.DeepAttention(depth, 2, tolerance=0.1, max_nodes=2**12)
    weak = smi.weak_recovery(model, key=key, averages=smi.Averages(2 ** (14 - 2 * (depth - 1))))
    everything = smi.recovery_threshold(smi.DeepAttention(depth, 2))
    labels = ("last layer is learned", "perfect recovery, $L/2$") if depth == 1 else (None, None)
    look = DOTS | {"color": colour(0), "label": labels[0]}
    left.errorbar(depth, weak.alpha, 2.0 * weak.stderr, **look)
    left.plot(depth, everything.alpha, "s", mfc="none", color=colour(1), label=labels[1])
    alpha, error = known[depth]
    compare(f"depth {depth}", weak.alpha, alpha, 3.0 * np.hypot(float(weak.stderr), error))
    compare(f"perfect recovery, depth {depth}", everything.alpha, depth / 2.0, 1e-9)
left.set(xticks=depths, xlabel="layers $L$", ylabel=r"critical sample complexity $\alpha_c$")
left.set_ylim(bottom=0.0)
legend(left)


# %%
# Exchanges.
def swapped(layers, skip):
    """Change of labels by a swap over that by drawing anew: neighbours, first and last hidden."""
    model = smi.DeepAttention(layers, 2, skip=skip)
    scale = skip ** -jnp.arange(float(layers))[:, None]  # tokens of order one: x (I + S/skip)
    link = jax.vmap(lambda z: model.link(scale * z))
    first, second = jax.random.normal(key, (2, 2**13, layers, 2))
    labels, ratios = link(first), []
    for pair in ((0, 1), (0, layers - 2)):
        change = labels - link(first.at[:, pair].set(first[:, pair[::-1]]))
        anew = labels - link(first.at[:, pair].set(second[:, pair]))
        ratios.append(float(jnp.mean(change**2) / jnp.mean(anew**2)))
    return ratios


many = np.array([4, 6, 8] if QUICK else [3, 4, 6, 8, 12, 16])
for k, (name, skip) in enumerate((("I + S", lambda layers: 1.0), ("I + S/L", float))):
    ratios = np.array([swapped(int(layers), skip(layers)) for layers in many])
    for pair, which in enumerate(("neighbours", "first and last")):
        look = {"color": colour(k), "marker": "os"[k], "mfc": "none", **line(pair)}
        right.loglog(many, ratios[:, pair], label=f"{name}, {which}", **look)
half = len(many) // 2
slope = np.polyfit(np.log(many[half:]), np.log(ratios[half:, 0]), 1)[0]
# commutators of A/L and B/L fall as 1/L²; at these L the exponent is not yet at its limit
compare("exponent of neighbours, I + S/L", slope, -2.0, 0.5)
right.set_xticks(many, [str(layers) for layers in many])
right.set_xticks([], minor=True)
right.set(xlabel="layers $L$", ylabel="change by a swap over drawing anew")
legend_above(right, 2)
save(ax, "deep_depth")
