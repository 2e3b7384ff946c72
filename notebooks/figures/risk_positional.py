r"""
Attention by meaning or by position
===================================

.. image:: /assets/figures/risk_positional.png
   :alt: Energies of two minima cross; their overlaps with the teacher and with the fixed direction.

The semantic and the positional minimum of a risk exchange their order as samples are added.

One layer of attention that can answer by meaning or by position has two minima of its risk: a
semantic one (overlap M with the teacher) and a positional one (B with the fixed direction of the
positions). Left: their energies, equal at the dotted :math:`\alpha`. Diamonds: printed (arXiv
2402.03902), of a theory that takes a local minimum of the proximal problem.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/risk_positional.png'
import jax
import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from _common import GREY, INK, QUICK, axes, compare, save
from jaxsmi.workbench.plotting import colour, legend, line

SPREAD = 0.25  # variance of a token, and of a weight in its units
# printed: α, Q, |M| (semantic) or |B| (positional), energy; in our units
PRINTED = {
    "semantic": ((1.25, 0.08188, 0.12171, 0.0027203), (2.0, 0.11415, 0.15856, 0.0035994)),
    "positional": ((1.25, 0.04636, 0.12667, 0.0027097), (2.0, 0.05001, 0.129285, 0.0045153)),
}
POSITION = jnp.array([[0.6, 0.4], [0.4, 0.6]])


def attention(z):
    """Softmax of the scores of two tokens with themselves."""
    return jax.nn.softmax(z.T @ z, axis=-1)


teacher = smi.MultiIndex(
    lambda z: 0.7 * attention(z) + 0.3 * POSITION,
    indices=1,
    tokens=2,
    prior=smi.priors.Gaussian([[SPREAD]]),
    inputs=smi.Tokens(encoding=jnp.array([2.0, -2.0])),
)
student = smi.MultiIndex(attention, indices=1, tokens=2)
loss = lambda prediction, label: 0.5 * SPREAD * jnp.sum((prediction - label) ** 2)
learner = smi.Erm(student, loss=loss, ridge=0.04)

# %%
# Both minima, followed from one α to the next.
settings = {
    "learner": learner,
    "key": jax.random.key(0),
    "averages": smi.Averages(2**12 if QUICK else 2**13),
}
branches = {"semantic": [], "positional": []}
starts = ("informed", "directions")
for alpha in [2.0, 1.25] if QUICK else [2.0, 1.6, 1.25, 1.0]:
    found = smi.global_minimum(teacher, alpha, starts=starts, **settings)
    starts = [p for p in found if int(p.result) in (smi.Result.SUCCESS, smi.Result.UNSTABLE)]
    for point in starts:
        M, B = (float(abs(x[0, 0])) for x in (point.teacher_overlap, point.direction_overlap))
        overlap = "teacher_overlap" if M > B else "direction_overlap"
        row = [alpha]
        for name in ("overlap", overlap, "energy"):
            stderr = point.stderr if name == "overlap" else point.stderrs[name]
            row += [abs(float(np.ravel(x)[0])) for x in (getattr(point, name), stderr)]
        branches["semantic" if M > B else "positional"].append(row)

energies, overlaps = ax = axes(2)
table = {name: np.array(sorted(rows)).T for name, rows in branches.items()}
for k, (name, letter) in enumerate((("semantic", "M"), ("positional", "B"))):
    alpha, Q, Q_stderr, overlap, overlap_stderr, energy, energy_stderr = table[name]
    look = {"color": colour(k), "marker": ".", **line(k)}
    energies.errorbar(alpha, 1e3 * energy, 1e3 * energy_stderr, label=f"{name} minimum", **look)
    overlaps.errorbar(alpha, overlap, overlap_stderr, label=f"{name}: $|{letter}|$", **look)
    printed = np.array(PRINTED[name]).T
    energies.plot(printed[0], 1e3 * printed[3], "d", color=GREY, zorder=0.5)
    overlaps.plot(printed[0], printed[2], "d", color=GREY, zorder=0.5)
    # five standard errors, and the share by which print's local minimum differs
    here = np.isin(alpha, printed[0])
    for what, ours, stderr, known, share in (
        ("overlap", Q, Q_stderr, printed[1], 0.04),
        (f"|{letter}|", overlap, overlap_stderr, printed[2], 0.035),
        ("energy", energy, energy_stderr, printed[3], 0.005),
    ):
        compare(f"{name}: {what}", ours[here], known, 5.0 * stderr[here] + share * known)

# %%
# Equal energies, between the two α where their difference changes its sign.
alpha, gap = table["semantic"][0], table["semantic"][5] - table["positional"][5]
crossing = np.interp(0.0, -gap, alpha)
compare("equal energies", crossing, 1.262, 0.05)
for panel in ax:
    panel.axvline(crossing, color=INK, ls=":", lw=0.9, label="equal energies")
    panel.set_xlabel(r"sample complexity $\alpha$")
    legend(panel, {"printed": {"marker": "d", "ls": "none", "color": GREY}})
energies.set_ylabel("$10^3$ energy $R/D$")
overlaps.set_ylabel("overlap")
save(ax, "risk_positional")
