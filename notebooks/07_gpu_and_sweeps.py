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
# # Where it runs: accelerators, precision, and sweeps that can be interrupted
#
# Nothing in a program changes for a GPU: JAX puts arrays on the first accelerator it finds. What is worth knowing is which parts
# gain from it, which numbers may be single precision, and how to keep a grid of problems that takes a night.
#
# Run time: half a minute on two cores. Installation: `pip install 'jaxsmi[cuda12]'` (or `cuda13`) on a machine with an NVIDIA
# driver, `pip install 'jaxsmi[cluster]'` for Dask.

# %%
import os
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsmi as smi
from jaxsmi.workbench import plotting

smi.setup()
small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
dimension = 300 if small else 2000
key = jax.random.key(0)

# %% [markdown]
# ## 1. Devices
#
# `jax.devices()` lists what JAX sees; `jax.default_device` places what is made inside it. The environment variable
# `JAX_PLATFORMS=cpu` (or `cuda`) decides for a whole program.

# %%
device = jax.devices()[0]
print(f"{len(jax.devices())} device(s) of platform {device.platform}")

# %% [markdown]
# ## 2. What may be single precision
#
# A step of message passing is two passes over the inputs, $N\times M\times D$ numbers: memory and bandwidth are theirs. They
# may be `float32`; labels, fields and all theory stay `float64`. For the linear channel $y = z+\sqrt\Delta\,\xi$ the error is
# known in closed form,
#
# $$V^2 + (\alpha-1+\Delta)\,V - \Delta = 0 .$$

# %%
model, alpha, noise = smi.links.linear(0.1), 2.0, 0.1
with jax.default_device(device):
    data = model.sample(key, dimension=dimension, alpha=alpha, dtype=jnp.float32)
    learned = smi.gamp(model, data, key=key)
b = alpha - 1 + noise
V = (np.sqrt(b**2 + 4 * noise) - b) / 2
error = float(jnp.mean((learned.weights - data.teacher) ** 2))
print(f"inputs {data.inputs.dtype}, {data.inputs.nbytes / 1e6:.1f} MB; labels {data.labels.dtype}")
print(
    f"V of message passing {learned.covariance[0, 0]:.6f}, measured error {error:.4f}; closed form {V:.6f}"
)
assert (
    abs(float(learned.covariance[0, 0]) - V) < 1e-3 * V
)  # the tolerance of the run, 1e-4, and float32 products
assert abs(error - V) < 5 * V * (2 / dimension) ** 0.5  # a mean of D squares

# %% [markdown]
# ## 3. Large dimensions, and many devices
#
# Inputs need not be stored: with `store=False` each block of samples is drawn again from the key whenever it is read, twice a
# step, and memory is that of one block. And samples can be spread over the devices of a mesh: `sharded()` takes all devices
# there are, each works on its part, and every sum over samples is one sum over devices. The numbers stay the same.
#
# On several hosts, `jax.distributed.initialize()` at the start of the same program is all that is added: each host draws only its
# own samples.

# %%
lazy = model.sample(key, dimension=dimension, alpha=alpha, store=False)
stored = smi.gamp(model, lazy.stored(), key=key)
again = smi.gamp(model, lazy.sharded(), key=key)
apart = float(jnp.max(jnp.abs(again.weights - stored.weights)))
print(
    f"{lazy.samples} samples in {len(lazy.inputs.numbers)} blocks; largest difference of a weight: {apart:.1e}"
)
assert apart < 1e-5  # float32 sums in another order

# %% [markdown]
# ## 4. A sweep
#
# `sweep` solves a grid, row by row: a row is all $\alpha$ at one point of the other parameters, and is written to the folder when
# it is finished. Here: the error of the Bayes-optimal estimate of an attention matrix of rank $\rho d$ (notebook 05).

# %%
alphas, ratios = (
    np.linspace(0.01, 0.25, 13 if small else 49),
    np.linspace(0.05, 1.0, 3 if small else 20),
)


def build(rank_ratio):
    return smi.AttentionIndexed(tokens=2, rank_ratio=rank_ratio, output="softmax")


with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / "attention"
    table = smi.sweep(build, alphas, {"rank_ratio": ratios}, out=out)
    print(len(list(out.glob("row-*.npz"))), "rows on disk")
    (out / "row-00001.npz").unlink()  # as if the program had been killed while it solved this row
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("row-*.npz")}
    again = smi.sweep(build, alphas, {"rank_ratio": ratios}, out=out)
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("row-*.npz")}
assert all(after[name] == time for name, time in times.items())  # finished rows were not touched
np.testing.assert_array_equal(table.error, again.error)  # the same numbers, bit by bit

# %% [markdown]
# The table is an `xarray.Dataset`, with the result code of each point, and provenance among its attributes. The white line is the
# exact threshold of perfect recovery, $\alpha = D(\rho)/4$ with $D(\rho) = 2\rho-\rho^2$; beyond it the error is zero.

# %%
error = table.error.squeeze("seed").transpose("alpha", "rank_ratio")
with plotting.style():
    fig, ax = plt.subplots(figsize=(5.5, 3.8), layout="constrained")
    image = ax.pcolormesh(ratios, alphas, error, vmin=0, vmax=1, shading="nearest")
    line = np.linspace(0.05, 1.0, 100)
    ax.plot(line, (2 * line - line**2) / 4, "w", lw=1.5)
    ax.set(xlabel="ρ = r/d", ylabel=r"$\alpha = n/d^2$", ylim=(alphas[0], alphas[-1]))
    fig.colorbar(image, label=r"error $\|\hat S-S\|^2/d$")
    plt.show()
recovery = (2 * ratios - ratios**2) / 4
beyond, before = alphas[:, None] > recovery + 1e-9, alphas[:, None] < recovery - 1e-9
print(f"largest error beyond the threshold: {float(np.max(error.values[beyond])):.1e}")
print(f"smallest before it: {float(np.min(error.values[before])):.1e}")
assert np.max(error.values[beyond]) < 1e-9 < np.min(error.values[before])

# %% [markdown]
# ## 5. A cluster
#
# With `scheduler=`, the address of a Dask cluster or its client, rows are solved by the workers, and again where a worker is
# lost. Random numbers depend on the key and the seed of a point, not on who computes it. On one machine:
#
# ```python
# from dask.distributed import Client, LocalCluster
#
# with LocalCluster(n_workers=4, threads_per_worker=1) as cluster, Client(cluster) as client:
#     table = smi.sweep(build, alphas, {"rank_ratio": ratios}, out="out/attention", scheduler=client)
# ```
