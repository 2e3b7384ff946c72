# pyright: strict, reportUnknownMemberType=false, reportMissingTypeStubs=false
"""A user's script: `make lint` checks its types, under the strict rules of pyright."""

from typing import assert_type

import jax
import jax.numpy as jnp
import optax
from jax import Array

import jaxsmi as smi

key = jax.random.key(0)
model = smi.DeepAttention(depth=2, tokens=2, skip=1.0)
data = assert_type(model.sample(key, dimension=100, alpha=1.2), smi.Dataset)
learned = assert_type(smi.gamp(model, data, key=key, iteration=smi.Iteration(3)), smi.Solution)
theory = assert_type(
    smi.state_evolution(model, 0.5, key=key, averages=smi.Averages(512)), smi.Solution
)
assert_type(theory.overlap, Array)
assert_type(theory.message, str)
assert_type(smi.weak_recovery(model, key=key).alpha, Array)
assert_type(smi.Result(int(learned.result)).remedy, str)


def link(z: Array) -> Array:
    return jnp.sum(jnp.tanh(z))


own = smi.MultiIndex(link, indices=2, noise=0.1, prior=smi.priors.Rademacher())
fit = assert_type(smi.train(own, data, optax.adam(1e-2), key=key, steps=10), smi.Solution)
steps: list[float] = [float(step.alpha) for step in smi.staircase(model, key=key)]
print(smi.__version__, steps, smi.sgd.risk(smi.sgd.semantic_positional(0.6), 0.5).value)
