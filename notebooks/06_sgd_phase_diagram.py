# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Meaning or position: what does online SGD of one attention head find first?
#
# Two tokens $x_1,x_2\in\mathbb R^d$ with positional encodings $\pm e$ are read by tied softmax attention with one weight vector
# $w$, $|w|=1$. The target mixes what depends on the tokens along a hidden direction $w^*$ with what depends on the positions
# alone,
#
# $$g = (1-\omega)\,\mathrm{softmax}(z^*z^{*\top}) + \omega\,\mathrm{softmax}\begin{pmatrix}a^2&-a^2\\-a^2&a^2\end{pmatrix},
# \qquad z^*_\ell = w^*\cdot x_\ell .$$
#
# Two overlaps describe the student: $m = w\cdot w^*$ (semantic) and $e = w\cdot u$ with the encoding (positional). The population
# risk $R(m,e)$ has minima at $(\pm1,0)$ and $(0,\pm1)$: which of them is lower, which of them exist, and for which does SGD set
# out from $(0,0)$?
#
# Source: Arnaboldi, Loureiro, Stephan, Krzakala, Zdeborová (arXiv 2506.02651). Run time: one minute on two cores.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
cells = 9 if small else 33
dimension, runs = (100, 16) if small else (200, 48)

# %% [markdown]
# ## 1. The transition at the origin
#
# SGD leaves the origin along the more unstable direction of the Hessian. Semantic and positional curvature are equal at
#
# $$R_{mm}(0,0;\omega) = R_{ee}(0,0;\omega,a),$$
#
# linear in $\omega$, so that its root is known to rounding. Below $a = 0.7244$ it lies at $\omega > 1$: SGD always starts
# semantically.


# %%
def transition(a):
    """The ω at which both curvatures of the origin are equal, from those at ω = 0 and ω = 1."""
    problems = [smi.sgd.semantic_positional(omega, a) for omega in (0.0, 1.0)]
    low, high = (H[0, 0] - H[1, 1] for H in (smi.sgd.hessian(p, [0.0, 0.0]) for p in problems))
    return low / (low - high)


omega_c, slope = map(float, jax.jit(jax.value_and_grad(transition))(1.0))
print(f"omega_c(a = 1) = {omega_c:.9f}, d omega_c/da = {slope:.4f}")
H = smi.sgd.hessian(smi.sgd.semantic_positional(omega_c), [0.0, 0.0])
print(f"curvatures there: R_mm = {H[0, 0]:.9f}, R_ee = {H[1, 1]:.9f}")
assert abs(omega_c - 0.640962617902) < 1e-9  # integrals to 1e-12, and a quotient of them
assert abs(H[0, 0] - H[1, 1]) < 1e-9

# %% [markdown]
# ## 2. The landscape
#
# The risk on the disc at $a=1$, below and above the transition. The whole plane $(\omega, a)$, with the minimum that is
# lower and the one for which SGD sets out, is drawn by `notebooks/figures/sgd_phases.py`.

# %%
axis = np.linspace(0.0, 1.0, cells)
m, e = np.meshgrid(axis, axis, indexing="ij")
inside = m**2 + e**2 <= 1.0
points = jnp.asarray(np.stack([m[inside], e[inside]], axis=-1))
surface = jax.jit(
    lambda w, v: jax.lax.map(lambda x: smi.sgd.risk(smi.sgd.semantic_positional(w), x).value, v)
)
with plotting.style():
    fig, axs = plt.subplots(1, 2, figsize=(7.5, 3.4), layout="constrained", sharey=True)
    for ax, omega in zip(axs, (0.5, 0.8), strict=True):
        R = np.full(m.shape, np.nan)
        R[inside] = surface(omega, points)
        ax.contourf(axis, axis, R.T, levels=20, cmap="viridis")
        ax.set(title=f"ω = {omega}", xlabel="m, semantic", aspect="equal")
        corner = R[-1, 0] - R[0, -1]
        print(f"omega = {omega}: R(1, 0) - R(0, 1) = {corner:+.5f}")
        assert (corner < 0) == (omega < 0.737607)  # equal depth
    axs[0].set_ylabel("e, positional")
    plt.show()

# %% [markdown]
# ## 3. What runs of SGD do
#
# `simulate` follows $(m, e)$ of each run exactly, at a cost that does not depend on $d$. Runs start at $m=e=0$ and stop where
# $\sqrt{m^2+e^2} = 0.8$, on the way to one of the minima. At finite $d$ and learning rate the change from semantic to positional
# is a crossover, which passes 1/2 at $\omega_c$ within the error bars. A fraction of runs is one of *all* runs only if all have
# arrived: close to $\omega_c$ the landscape is flat between the minima, and a larger learning rate would keep some runs there.

# %%
omegas = np.array([0.45, 0.8] if small else [0.5, 0.56, 0.6, 0.62, 0.64, 0.66, 0.68, 0.72, 0.78])
table = []
for k, value in enumerate(omegas):
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), k), runs)
    model = smi.sgd.semantic_positional(value)
    settings = {"dimension": dimension, "rate": 0.5, "alpha": 4000.0, "start": 0.0}
    found = smi.sgd.simulate(model, keys, monitor=smi.Monitor(target=0.8), **settings)
    done = np.asarray(found.result) == smi.Result.SUCCESS
    m, e = np.abs(np.asarray(found.end)[done, 0]).T
    share = np.mean(m > e)
    spread = max(share * (1.0 - share), 1.0 / runs)  # where all agree, that of one more run
    table.append((share, np.sqrt(spread / runs), done.sum()))
fraction, stderr, arrived = (np.array(column) for column in zip(*table, strict=True))

with plotting.style():
    fig, ax = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
    ax.errorbar(
        omegas,
        fraction,
        stderr,
        fmt="o-",
        capsize=2,
        label=f"{runs} runs each, d = {dimension}, γ = 1/2",
    )
    ax.axvline(omega_c, color="k", ls=":", label="transition")
    ax.set(xlabel="ω", ylabel="fraction of runs that end semantic")
    ax.legend(frameon=False, fontsize="small")
    plt.show()
print("arrived:", arrived, "of", runs)
assert np.all(arrived == runs)
assert fraction[0] > 0.8
assert fraction[-1] < 0.2
