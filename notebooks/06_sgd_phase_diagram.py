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
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
cells, grid = (12, {"angles": 19, "radii": 6}) if small else (60, {})
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
omega_c = float(smi.sgd.transition(1.0))
slope = float(jax.grad(smi.sgd.transition)(1.0))
print(f"omega_c(a = 1) = {omega_c:.9f}, d omega_c/da = {slope:.4f}")
positional, semantic = smi.sgd.phase_diagram(1.0, omega_c, **grid).hessian[0, 0]
print(f"curvatures there: R_ee = {positional:.9f}, R_mm = {semantic:.9f}")
assert abs(omega_c - 0.640962617902) < 1e-9  # integrals to 1e-12, and a quotient of them
assert abs(positional - semantic) < 1e-9
assert np.isnan(smi.sgd.transition(0.7))

# %% [markdown]
# ## 2. The phase diagram
#
# Each cell says which minimum is the lowest, whether there is another, and for which SGD sets out. Four lines: from which
# $\omega$ the positional corner is a minimum, the transition above, where both minima are equally deep, and up to which
# $\omega$ the semantic corner is a minimum. The colours come from minima searched on a grid, the lines from derivatives at the
# corners and at the origin: they agree to the width of a cell.

# %%
a, omega = np.linspace(0.7, 1.0, cells), np.linspace(0.4, 0.99, cells)
found = smi.sgd.phase_diagram(a, omega, **grid)
colors = ["#4477aa", "#000000", "#eecc66", "#cc6677", "#88ccee", "#444444", "#aa4499", "#ee8866"]
with plotting.style():
    fig, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
    ax.pcolormesh(a, omega, found.label, cmap=ListedColormap(colors), vmin=-0.5, vmax=7.5)
    styles = zip(smi.sgd.BOUNDARIES, (":", "-", "--", "-."), strict=True)
    lines = [
        ax.plot(a, found.boundaries[name], "k", ls=style, lw=1.2, label=name)[0]
        for name, style in styles
    ]
    shown = [Patch(color=colors[k], label=smi.sgd.LABELS[k]) for k in np.unique(found.label)]
    ax.legend(
        handles=[*shown, *lines],
        fontsize=8,
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
    ax.set(xlabel="a", ylabel="ω", ylim=(omega[0], omega[-1]))
    plt.show()

# %% [markdown]
# Along $a=1$, the labels change where the lines say.

# %%
sets_out = found.hessian[:, -1, 0] < found.hessian[:, -1, 1]  # for the positional minimum
step = omega[1] - omega[0]
edges = {"transition": np.argmax(sets_out), "equal depth": np.argmax(found.label[:, -1] % 2)}
for name, index in edges.items():
    line = found.boundaries[name][-1]
    print(
        f"{name}: line at {line:.4f}, labels change between {omega[index] - step:.4f} and {omega[index]:.4f}"
    )
    assert omega[index] - step <= line + 1e-9 <= omega[index] + 2e-9

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
    settings = {
        "dimension": dimension,
        "gamma": 0.5,
        "steps": 4000 * dimension,
        "m": 0.0,
        "until": 0.8,
    }
    table.append(smi.sgd.semantic_fraction(smi.sgd.simulate(model, keys, **settings)))
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
