"""Public calls under strict dtype promotion, and under jax_debug_nans.

Strict promotion raises where an array of one precision meets another (an integer index, a float32
constant): a float32 user would silently compute in float64. jax_debug_nans raises at the first NaN:
marks of missing records must not be NaN there, and no branch may compute 0/0.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi
from helpers import slow_but

KEY = jax.random.key(0)
SMALL = {"averages": smi.Averages(64, 2), "iteration": smi.Iteration(max_steps=3)}
NETS = smi.Averages(64, 2)
STEPS = smi.Iteration(max_steps=3)


def data_of(model, alpha=2.0, dimension=12):
    return model.sample(KEY, dimension=dimension, alpha=alpha)


def run_gamp(model, alpha=2.0):
    return smi.gamp(model, data_of(model, alpha), key=KEY, iteration=STEPS)


SIGN = smi.links.sign()
LINEAR = smi.links.linear(0.5)
OTHER = smi.Mismatched(smi.links.linear(1.0))
PHASES = smi.links.phase_retrieval()
MATRIX = smi.AttentionIndexed(tokens=2, rank_ratio=0.5)
CALLS = {
    "state evolution": lambda: smi.state_evolution(SIGN, 1.0, key=KEY, **SMALL),
    "state evolution, converged": lambda: smi.state_evolution(LINEAR, 1.0, key=KEY),
    "state evolution, attention": lambda: smi.state_evolution(
        smi.DeepAttention(1, 2, skip=0.5), 1.0, key=KEY, **SMALL
    ),
    "state evolution, matrix": lambda: smi.state_evolution(MATRIX, 0.1),
    "state evolution, bilinear": lambda: smi.state_evolution(smi.Bilinear(1.0, 0.2), 0.5),
    "state evolution, learner": lambda: smi.state_evolution(
        LINEAR, 2.0, key=KEY, learner=smi.Erm(LINEAR, ridge=0.1)
    ),
    "state evolution, mismatched": lambda: smi.state_evolution(LINEAR, 2.0, key=KEY, learner=OTHER),
    "message passing, mismatched": lambda: smi.gamp(
        LINEAR, data_of(LINEAR), key=KEY, learner=OTHER, iteration=STEPS
    ),
    "free energy": lambda: smi.free_entropy(SIGN, 1.0, 0.5, key=KEY, averages=NETS),
    "message passing": lambda: run_gamp(SIGN),
    # of one start the signal is recovered: its free entropy is infinite
    "message passing, two starts": lambda: smi.gamp(
        PHASES, data_of(PHASES), key=KEY, start=(1e-3, 0.5)
    ),
    "message passing, matrix": lambda: run_gamp(MATRIX, 0.2),
    "spectral": lambda: smi.spectral(
        smi.links.phase_retrieval(), data_of(smi.links.phase_retrieval(), 4.0), key=KEY
    ),
    "spectral overlap": lambda: smi.spectral_overlap(
        smi.links.phase_retrieval(), 2.0, key=KEY, averages=NETS
    ),
    "weak recovery": lambda: smi.weak_recovery(
        smi.links.phase_retrieval(), key=KEY, averages=smi.Averages(256, 2)
    ),
    "weak recovery of a link on a grid": lambda: smi.weak_recovery(
        smi.MultiIndex(lambda z: jnp.tanh(z[0, 0] ** 2), indices=1, noise=0.1),
        key=KEY,
        averages=smi.Averages(256, 2),
    ),
    "weak recovery of attention": lambda: smi.weak_recovery(
        smi.DeepAttention(2, 2), key=KEY, averages=smi.Averages(256, 2)
    ),
    # plain SGD: Adam of optax itself does not run under strict promotion
    "training": lambda: smi.train(LINEAR, data_of(LINEAR), optax.sgd(0.01), key=KEY, steps=3),
    "generalization error": lambda: smi.generalization_error(SIGN, 0.5, key=KEY),
}


# each kind of loop: a map at its fixed point, a run with data, descent; nets of points
FAST = ("state evolution, converged", "message passing", "training")


@pytest.fixture(scope="module")
def strict():
    jax.clear_caches()  # jit would run programs that were traced in another mode
    with jax.numpy_dtype_promotion("strict"), jax.debug_nans(True):
        yield
    jax.clear_caches()


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("call", slow_but(CALLS, *FAST))
def test_call_runs(call):
    answer = CALLS[call]()
    found = [
        getattr(answer, name) for name in ("overlap", "value", "alpha") if hasattr(answer, name)
    ]
    assert found
    assert all(np.all(np.isfinite(number)) for number in found)
