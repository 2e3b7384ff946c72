r"""
Does descent on a data set leave the unlearned state?
=====================================================

.. image:: /assets/figures/descent_gain.png
   :alt: Growth of a small overlap under full-batch descent, of phase retrieval and one layer.

How much full-batch descent amplifies a small overlap with the teacher, for several numbers of
samples.

The growth is :math:`\partial M(t)/\partial M(0)` at :math:`M = 0`, under
full-batch descent on :math:`N = \alpha D` samples, as :math:`D \to \infty`, with one standard error.
With few samples the student memorises them before it has left the unlearned state. Crosses:
runs at D = 1000 from :math:`M = 0.1`.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/descent_gain.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import QUICK, axes, compare, mean_and_stderr, save
from jaxsmi.workbench.plotting import band, colour

key = jax.random.key(0)
square = smi.links.phase_retrieval(squared=True)
layer = smi.DeepAttention(1, 2)
averages = smi.Averages(points=2**13 if QUICK else 2**17)
panels = axes(2, height=2.8)
# κ of each α; at κ = 0.02 large labels z² would make the steps of their own samples diverge
cases = {
    "phase retrieval, $y = z^2$": (square, lambda alpha: 0.005, 45, (1.0, 2.0, 3.0, 4.0)),
    "one layer of attention": (layer, lambda alpha: 0.3 / alpha, 60, (1.0, 1.25, 2.0, 3.0)),
}
growth = {}
for ax, (title, (model, rate, steps, alphas)) in zip(panels, cases.items(), strict=True):
    weak = smi.weak_recovery(model, key=key).alpha
    steps = 10 if QUICK else steps
    for n, alpha in enumerate(alphas):
        theory = smi.descent_theory(
            model, alpha, (0.0, 1.0), rate=rate(alpha), steps=steps, key=key, averages=averages
        )
        gain, stderr = (x["gain"][:, 0, 0] for x in (theory.history, theory.history["stderr"]))
        time = rate(alpha) * alpha * np.arange(steps + 1)
        ax.plot(time, gain, color=colour(n), label=rf"$\alpha$ = {alpha:g}")
        band(ax, time, gain - stderr, gain + stderr, colour(n), within=(-1.0, 100.0))
        growth[title, alpha] = gain, stderr
    ax.axhline(1.0, color="0.7", lw=0.8)
    ax.set(title=rf"{title} ($\alpha_c$ = {float(weak):.2f})", xlabel=r"time $\kappa\alpha t$")
    ax.set(yscale="log", ylim=(0.4, 20.0), ylabel="gain of the overlap")
    ax.legend(loc="upper left")

# %%
# An independent computation of phase retrieval by response functions, and runs of one layer.
gain, stderr = growth["phase retrieval, $y = z^2$", 4.0]
for step, value, error in ((5, 1.494, 0.006), (10, 2.23, 0.06)):
    spread = 4.0 * np.hypot(error, stderr[step])
    compare(f"gain of phase retrieval, step {step}", gain[step], value, spread)
gain, stderr = growth["one layer of attention", 3.0]
summed, steps, cosines = smi.Gradient(reduction="sum"), 10, []
for run in range(4 if QUICK else 24):
    own = jax.random.key(run)
    teacher = np.random.default_rng(run).standard_normal((1, 1000))
    teacher *= 1000**0.5 / np.linalg.norm(teacher)
    data = layer.sample(own, dimension=1000, alpha=3.0, teacher=teacher)
    fit = smi.train(
        layer, data, optax.sgd(0.1), key=own, steps=steps, gradient=summed, start=(0.1, 1.0)
    )
    cosines.append(fit.history["teacher_overlap"][-1, 0, 0] / 0.1)
mean, error = mean_and_stderr(np.array(cosines))
panels[1].errorbar(0.3 * steps, mean, error, marker="x", color=colour(3))
# of third order in M: (0.1)² of some times the gain
compare("gain of one layer", mean, gain[steps], 4.0 * np.hypot(error, stderr[steps]) + 0.1)
save(panels, "descent_gain")
