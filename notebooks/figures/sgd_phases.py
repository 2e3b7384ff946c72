r"""
Semantic or positional: the phase diagram of online SGD
=======================================================

.. image:: /assets/figures/sgd_phases.png
   :alt: The plane of a and omega, coloured by the minimum that is lower and the one SGD sets out for.

Which minimum is lower, and for which online SGD sets out, against the mixture and the encoding.

Minima of the population risk of the semantic/positional problem [ALSKZ25, Fig. 4], and which of them
SGD sets out for from the origin. The colours come from a polar grid of the disc m² + e² <= 1, the
lines from derivatives at three points [theory: online-sgd, Eqs. (40) to (44)].
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_phases.png'
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

import jaxsmi as smi
from _common import INK, QUICK, axes, compare, save

LABELS = (  # glob + 2 dyn + 4 multi: lowest minimum positional, first step positional, two minima
    "unique semantic",
    "unique positional, semantic dynamics",
    "unique semantic, misaligned dynamics",
    "unique positional",
    "global semantic",
    "global positional, semantic dynamics",
    "global semantic, positional dynamics",
    "global positional",
)
POINTS = {"origin": (0.0, 0.0), "semantic": (1.0, 0.0), "positional": (0.0, 1.0)}
# But for a constant the risk is linear in ω and, at ω = 1, in β = σ(2a²): three problems span all.
ENDS = [(0.0, 1.0), (1.0, 1.0), (1.0, 1e-4)]


def combined(three, omega, a):
    """A quantity that is linear in the risk, of (ω, a), from those of the three problems."""
    low, high = (1.0 / (1.0 + np.exp(-2.0 * end[1] ** 2)) for end in (ENDS[2], ENDS[1]))
    share = (jax.nn.sigmoid(2.0 * jnp.asarray(a) ** 2) - low) / (high - low)
    return (1 - omega) * three[0] + omega * (share * three[1] + (1 - share) * three[2])


def derivatives(point):
    """Values (3,), gradients (3, 2) and Hessians (3, 2, 2) at (m, e)."""
    value = jax.jit(lambda v, p: smi.sgd.risk(smi.sgd.semantic_positional(*p), v).value)
    both = [value, jax.jit(jax.jacfwd(value)), jax.jit(jax.jacfwd(jax.jacfwd(value)))]
    ends = jnp.asarray(ENDS)
    return [np.stack([np.asarray(f(jnp.asarray(point), p)) for p in ends]) for f in both]


AT = {name: derivatives(point) for name, point in POINTS.items()}


def boundaries(a):
    """ω(a) of the four boundaries; NaN where there is none in [0, 1]."""
    a = jnp.asarray(a)

    def conditions(omega):
        at = lambda name, k, *entry: combined(AT[name][k][(slice(None), *entry)], omega, a)
        return {  # what vanishes: the corners are minima where the risk rises along the circle
            "positional minimum": at("positional", 2, 0, 0) - at("positional", 1, 1),
            "transition": at("origin", 2, 0, 0) - at("origin", 2, 1, 1),
            "equal depth": at("semantic", 0) - at("positional", 0),
            "semantic minimum": at("semantic", 2, 1, 1) - at("semantic", 1, 0),
        }

    lower, upper = conditions(0.0), conditions(1.0)
    omega = {name: lower[name] / (lower[name] - upper[name]) for name in lower}
    return {name: jnp.where((x >= 0) & (x <= 1), x, jnp.nan) for name, x in omega.items()}


class Diagram(NamedTuple):
    """Labels (W, A), Hessians at the origin and minima (m, e) of each (ω, a)."""

    label: np.ndarray
    hessian: list
    minima: list


def phase_diagram(a, omega, angles=91, radii=21):
    """Minima on the quadrant: points of a polar grid lower than their neighbours; exact corners."""
    theta, r = np.linspace(0.0, np.pi / 2, angles), np.linspace(0.0, 1.0, radii)[1:]
    points = np.stack([r[:, None] * np.cos(theta), r[:, None] * np.sin(theta)], axis=-1)
    points[np.abs(points) < 1e-15] = 0.0
    points[-1, 0], points[-1, -1] = POINTS["semantic"], POINTS["positional"]
    value = lambda p: lambda v: smi.sgd.risk(smi.sgd.semantic_positional(*p), v).value
    rows = jax.jit(lambda p, x: jax.lax.map(value(p), x))
    three = [np.stack([rows(jnp.asarray(p), jnp.asarray(x)) for x in points]) for p in ENDS]

    def cell(w, x):
        at = lambda name, k: np.asarray(combined(AT[name][k], w, x))
        H, R = at("origin", 2), np.asarray(combined(np.stack(three), w, x))
        padded = np.pad(R, ((0, 0), (1, 1)), mode="reflect")
        padded = np.pad(padded, ((1, 1), (0, 0)), constant_values=np.inf)
        padded[0] = -np.inf  # the origin: a saddle, and no minimum next to it
        shifts = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
        rows, columns = R.shape
        low = np.all([padded[i : i + rows, j : j + columns] > R for i, j in shifts], axis=0)
        m_slope, e_slope = at("semantic", 1)[0], at("positional", 1)[1]
        low[-1, 0] = m_slope < 0 < at("semantic", 2)[1, 1] - m_slope
        low[-1, -1] = e_slope < 0 < at("positional", 2)[0, 0] - e_slope
        if not low.any():
            low.flat[np.argmin(R)] = True
        minima = points[low][np.argsort(R[low], kind="stable")]
        label = (minima[0, 1] > 0.5) + 2 * (H[1, 1] < H[0, 0]) + 4 * (len(minima) > 1)
        return int(label), H, points[low]

    cells = [[cell(float(w), float(x)) for x in a] for w in omega]
    label, H, minima = ([[c[k] for c in row] for row in cells] for k in range(3))
    return Diagram(np.array(label), H, minima)


def draw():
    cells, grid = ((13, 12), {"angles": 19, "radii": 6}) if QUICK else ((31, 30), {})
    a, omega = np.linspace(0.7, 1.0, cells[0]), np.linspace(0.4, 0.98, cells[1])
    diagram, lines = phase_diagram(a, omega, **grid), boundaries(a)
    colours = [
        "#4477aa",
        "#000000",
        "#eecc66",
        "#cc6677",
        "#88ccee",
        "#444444",
        "#aa4499",
        "#ee8866",
    ]
    ax, beside = axes(columns=2)
    ax.pcolormesh(a, omega, diagram.label, cmap=ListedColormap(colours), vmin=-0.5, vmax=7.5)
    for (name, line), dashes in zip(lines.items(), (":", "-", "--", "-."), strict=True):
        ax.plot(a, line, color=INK, ls=dashes, label=name)
    areas = [Patch(color=colours[k], label=LABELS[k]) for k in np.unique(diagram.label)]
    handles = [*areas, *ax.get_legend_handles_labels()[0]]
    beside.set_axis_off()
    beside.legend(handles=handles, loc="center left")
    ax.set(xlabel="a", ylabel="ω", ylim=(omega[0], omega[-1]))
    save(ax, "sgd_phases")
    # [theory: online-sgd, Tables 4 and 5]; on the grid of that table its cells, ties near corners
    known = (0.508214, 0.640963, 0.737607, 0.841605)
    compare("boundaries, a = 1", [x[-1] for x in lines.values()], known, 2e-6)
    if not QUICK:
        counts = [int(np.sum(diagram.label == k)) for k in (0, 2, 4, 6, 7, 3)]
        compare("cells of each phase", counts, (542, 8, 99, 93, 79, 109), 6)


if __name__ == "__main__":
    draw()
