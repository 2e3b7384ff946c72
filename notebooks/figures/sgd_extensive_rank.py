r"""
Attention of extensive rank: factors against the matrix
=======================================================

.. image:: /assets/figures/sgd_extensive_rank.png
   :alt: Cosines, errors and times of escape of attention trained by its factors or directly.

Online SGD of an attention matrix, by its factors or directly.

Online SGD of the factors (tied) of a softmax attention matrix of two tokens, and of the matrix itself
(direct), from one start. Left: cosine with the teacher; dots are runs of `smi.train`. Middle: error;
dashed: Bayes-optimal from :math:`\alpha=0.1`, dotted: the minimum of the same loss with a small weight
decay on as many samples; SGD of a rate :math:`\kappa` has seen :math:`\alpha=t/\kappa`. Right: labels
even in the scores, a teacher of eigenvalues :math:`\pm1`: time to a cosine of 1/2 from one of
:math:`1/d`; it grows as :math:`\log d`. Grey: derived, one teacher of :math:`d=150`.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/sgd_extensive_rank.png'
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxsmi as smi
from _common import DOTS, GREY, INK, QUICK, axes, compare, published, save
from jaxsmi.workbench.plotting import colour, legend, legend_above

WIDTH, SCALE, KAPPA, key = 1.0, 0.8, 0.15, jax.random.key(0)
model, student = smi.AttentionIndexed(2, 0.5), smi.AttentionIndexed(2, WIDTH)
gradient = smi.Gradient(loss=smi.losses.squared)
flow = {"rate": smi.sgd.Rule(0.0, gradient=gradient), "student": student, "key": key}
times = np.linspace(0.0, 2.5, 6 if QUICK else 31)
overlaps = (SCALE**2 * (0.5 * WIDTH) ** 0.5, SCALE**4 * (1.0 + WIDTH))
paths = {
    "tied": smi.sgd.flow(model, SCALE, times, **flow),
    "direct": smi.sgd.flow(model, overlaps, times, **flow),
}
left, middle, right = ax = axes(3)
for k, (name, path) in enumerate(paths.items()):
    error = 1.5 - 2.0 * path.teacher_overlap[:, 0, 0] + path.overlap[:, 0, 0]
    left.plot(times, path.cosine[:, 0], color=colour(k), label=name)
    middle.plot(times, error, color=colour(k))
bayes = float(smi.state_evolution(model, 0.1).error)
middle.axhline(bayes, color=INK, ls="--", lw=1.0, label=r"Bayes-optimal, $\alpha = 0.1$")
decay = smi.MatrixErm(nuclear=0.005)
trained = float(smi.state_evolution(model, 0.1, learner=decay, key=key).error)
middle.axhline(trained, color=INK, ls=":", lw=1.0, label=r"trained to the minimum, $\alpha = 0.1$")
compare("Bayes below the minimum", bayes / trained, 0.5, 0.5)
if table := published("peers", "derived", "tied_attention_online_sgd.csv"):
    cosine = table["q12_theory"] / np.sqrt(1.5 * table["q11_theory"])
    left.plot(table["t"] / 4.0, cosine, color=GREY, lw=2.8, zorder=0.5)
    at = smi.sgd.flow(model, SCALE, table["t"] / 4.0, **flow)
    compare("overlaps of one teacher", at.teacher_overlap, table["q12_theory"], 0.013 * 1.2)
    compare("losses of one teacher", at.risk, table["loss_theory"], 2e-3)

# %%
# Runs of whole matrices: rate η = κB, α = nB/d².
dimension, batch, ends = (60, 32, 1.0) if QUICK else (100, 64, times[-1])
steps = round(ends * dimension**2 / (KAPPA * batch))
fit = smi.train(
    student,
    smi.Stream(model, model.student.start(key, dimension), dtype=jnp.float32),
    optax.sgd(KAPPA * batch),
    key=jax.random.split(jax.random.key(1), 2),
    steps=steps,
    start=SCALE,
    gradient=smi.Gradient(loss=smi.losses.squared, batch_size=batch),
    monitor=smi.Monitor(every=steps // 8),
)
at = KAPPA * batch * fit.history["step"][0] / dimension**2
cosine = np.mean(fit.history["cosine"][..., 0], axis=0)
left.plot(at, cosine, color=colour(0), label=f"SGD, $d={dimension}$", **DOTS)
exact = smi.sgd.flow(model, SCALE, at[1:], **flow).cosine[:, 0]
compare("runs", cosine[1:], exact, 4.0 / dimension + 0.2 * KAPPA)
left.set(xlabel=r"time $t=\kappa\alpha$", ylabel="cosine with the teacher")
middle.set(
    xlabel=r"time $t=\kappa\alpha$", ylabel=r"error $\Vert S_1-S_2\Vert_F^2/d$", yscale="log"
)
legend(left), legend_above(middle, 1)

# %%
# Weak recovery: S_2 of eigenvalues ±1, its mean the first overlap.
even = smi.AttentionIndexed(1, 1.0, lambda h: h**2)
signs, sizes = np.repeat([-1.0, 1.0], 16), 10.0 ** -np.arange(1, 4 if QUICK else 7)
for k, name in enumerate(paths):
    found = []
    for size in sizes:
        tied = smi.sgd.Initial(SCALE, teacher=signs + size)
        direct = smi.sgd.Initial((SCALE**2 * size, 2.0 * SCALE**4), teacher=signs + size)
        start = tied if name == "tied" else direct
        found.append(float(smi.sgd.recovery_time(even, start, key=key).value[0]))
    right.plot(1.0 / sizes, found, color=colour(k), marker="o", mfc="none", label=name)
    if not QUICK:
        compare(f"logarithm, {name}", np.diff(found)[2:], np.diff(found)[-1], 0.03 * found[0])
right.set(xlabel=r"dimension $d$", ylabel="time to a cosine of 1/2", xscale="log")
legend(right)
save(ax, "sgd_extensive_rank")
