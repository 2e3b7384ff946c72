r"""
One layer of attention: a minimum of the risk beside Bayes
==========================================================

.. image:: /assets/figures/risk_attention.png
   :alt: Test error of two ridges and of Bayes against samples, with runs of descent.

Test error of attention trained with a ridge, beside the Bayes-optimal one.

One layer of tied attention on itself, two tokens, no label noise: test error of a minimum of the
squared loss with a ridge :math:`\lambda`. Open circles: replica symmetry is broken or the proximal
point jumps, and the numbers are approximations. Dots: gradient descent with weight decay from the
teacher. Dash-dotted: Bayes, whose error ends at perfect recovery.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/risk_attention.png'
import jax
import numpy as np
import optax

import jaxsmi as smi
from _common import INK, QUICK, axes, compare, error_bars, mean_and_stderr, save
from jaxsmi.workbench.plotting import legend_above, risk_against_alpha

model, key = smi.DeepAttention(depth=1, tokens=2), jax.random.key(0)
points = smi.Averages(points=2**13)
alphas = [2.0, 4.0] if QUICK else [0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0]
ridges = (0.1,) if QUICK else (0.1, 0.3)
curves = [
    [
        smi.state_evolution(model, a, learner=smi.Erm(ridge=r), key=key, averages=points)
        for a in alphas
    ]
    for r in ridges
]
ax = axes()
ax[0].set(yscale="log", ylim=(1e-3, 0.4))
risk_against_alpha(curves, [rf"$\lambda = {ridge:g}$" for ridge in ridges], ax[0])

# %%
# Bayes, down to where its error is zero.
fine = np.linspace(0.1, 0.6, 6 if QUICK else 11)
bayes = [smi.state_evolution(model, alpha, key=key) for alpha in fine]
recovered = [int(point.result) == smi.Result.RECOVERED for point in bayes]
edge = fine[recovered][0]
compare(
    "perfect recovery", edge, float(smi.recovery_threshold(model).alpha), 1.01 * (fine[1] - fine[0])
)
shown = [k for k, alpha in enumerate(fine) if alpha < edge]
errors = [float(bayes[k].error) for k in shown]
ax[0].plot([*fine[shown], edge], [*errors, 1e-5], color=INK, ls="-.", label="Bayes-optimal")

# %%
# Gradient descent with weight decay, within three standard errors and 5/D.
dimension, seeds, at, ridge = 200, 3 if QUICK else 4, [2.0, 4.0], 0.1
optimizer = optax.chain(optax.add_decayed_weights(ridge), optax.sgd(0.1))
runs = np.zeros((len(at), seeds))
for i, seed in np.ndindex(runs.shape):
    data = model.sample(
        jax.random.fold_in(jax.random.key(seed), i), dimension=dimension, alpha=at[i]
    )
    gradient = smi.Gradient(loss=smi.losses.squared, reduction="sum")
    settings = {"steps": 500, "gradient": gradient, "start": data.teacher}
    runs[i, seed] = smi.train(model, data, optimizer, key=key, **settings).error
error_bars(ax[0], at, runs, color=INK, zorder=3, label=r"descent, $\lambda = 0.1$")
mean, stderr = mean_and_stderr(runs)
expected = np.array([float(curves[0][alphas.index(alpha)].error) for alpha in at])
compare("descent", mean / expected, 1.0, 3.0 * stderr / expected + 5.0 / dimension)
ax[0].set_ylabel(r"test error $E\Vert\hat y - y\Vert^2$")
legend_above(ax[0], 2)
save(ax, "risk_attention")
