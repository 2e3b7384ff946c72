# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Which skip connection makes attention learnable with the fewest samples?
#
# Two attention layers learn their last layer at $\alpha_2$ and their first at $\alpha_1 > \alpha_2$ samples per dimension. Both
# depend on the skip strength $c$. The thresholds are differentiable (implicitly, through the fixed point of state evolution),
# so a gradient search finds the best $c$. This runs in a notebook (jupytext) or as `python notebooks/threshold_search.py`;
# the search for the first layer alone takes more than ten minutes.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxsmi as smi
from jaxsmi import plotting

jax.config.update("jax_enable_x64", True)
key = jax.random.key(0)


def model_of(log_skip):
    return smi.DeepAttention(depth=2, tokens=2, skip=jnp.exp(log_skip))


# %% [markdown]
# The weak-recovery threshold, and its derivative: more skip is better for the last layer, without end.

# %%
first = smi.weak_recovery(model_of(0.0), key=key, samples=2**14)
slope = jax.grad(lambda p: smi.weak_recovery(model_of(p), key=key, samples=2**14).alpha)(0.0)
print(f"skip 1: alpha_2 = {float(first.alpha):.4f} ± {float(first.stderr):.4f}, d alpha_2 / d log skip = {float(slope):.4f}")

# %% [markdown]
# A prescribed threshold: which skip strength starts learning at 0.2 samples per dimension?

# %%
wanted = smi.search_threshold(model_of, jnp.log(1.5), key=key, target=0.2, samples=2**13)
print(f"alpha_2 = 0.2 at skip {float(np.exp(wanted.parameters)):.4f} after {wanted.steps} evaluations: {wanted.message}")

# %% [markdown]
# The first layer has a best skip strength. Its threshold is flat: against skip 1, -0.0019(10) at skip 0.35 and +0.0015(7) at
# skip 3 to 6. All evaluations share one key, so that the search sees a smooth function; with fewer than some 2^15 samples noise
# decides where its minimum is.

# %%
many = {"key": jax.random.key(5), "samples": 2**15}
best = smi.search_threshold(model_of, 0.0, step=1, tolerance=0.03, **many)
skip, least = float(np.exp(best.parameters)), best.threshold
print(f"smallest alpha_1 = {float(least.alpha):.4f} ± {float(least.stderr):.4f} at skip {skip:.3f}: {best.message}")

# %% [markdown]
# Checked against the curve it lies on.

# %%
skips, stairs = np.array([0.17, 0.25, 0.5, 1.0, 2.0]), []
for value in skips:
    near = stairs[-1] if stairs else None
    stairs.append(smi.staircase(model_of(np.log(value)), guess=near, **many))
ax = plotting.thresholds_against(stairs, skips, parameter="skip strength")
ax.plot(skip, float(least.alpha), "k*", markersize=12)
plt.show()
assert min(float(stair[1].alpha) for stair in stairs) > float(least.alpha) - 1e-4
