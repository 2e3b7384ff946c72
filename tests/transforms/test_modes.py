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
NETS, STEPS = smi.Averages(64, 2), smi.Iteration(max_steps=3)


def run_gamp(model, alpha=2.0, **settings):
    data = model.sample(KEY, dimension=12, alpha=alpha)
    return smi.gamp(model, data, key=KEY, **{"iteration": STEPS} | settings)


def evolve(model, alpha=1.0, **settings):
    return smi.state_evolution(model, alpha, key=KEY, **settings)


def weak(model):
    return smi.weak_recovery(model, key=KEY, averages=smi.Averages(256, 2))


def train(model):
    # plain SGD: Adam of optax itself does not run under strict promotion
    data = model.sample(KEY, dimension=12, alpha=2.0)
    return smi.train(model, data, optax.sgd(0.01), key=KEY, steps=3)


SIGN, LINEAR, PHASES = smi.links.sign(), smi.links.linear(0.5), smi.links.phase_retrieval()
ONE_LAYER, TWO_LAYERS = smi.DeepAttention(1, 2, skip=0.5), smi.DeepAttention(2, 2)
MATRIX, BILINEAR = smi.AttentionIndexed(tokens=2, rank_ratio=0.5), smi.Bilinear(1.0, 0.2)
RIDGE, OTHER = smi.Erm(LINEAR, ridge=0.1), smi.Mismatched(smi.links.linear(1.0))
ON_A_GRID = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0] ** 2), indices=1, noise=0.1)
SMALL = {"averages": NETS, "iteration": STEPS}
CALLS = {
    "state evolution": lambda: evolve(SIGN, **SMALL),
    "state evolution, converged": lambda: evolve(LINEAR),
    "state evolution, attention": lambda: evolve(ONE_LAYER, **SMALL),
    "state evolution, matrix": lambda: smi.state_evolution(MATRIX, 0.1),
    "state evolution, bilinear": lambda: smi.state_evolution(BILINEAR, 0.5),
    "state evolution, learner": lambda: evolve(LINEAR, 2.0, learner=RIDGE),
    "state evolution, mismatched": lambda: evolve(LINEAR, 2.0, learner=OTHER),
    "message passing, mismatched": lambda: run_gamp(LINEAR, learner=OTHER),
    "free energy": lambda: smi.free_entropy(SIGN, 1.0, 0.5, key=KEY, averages=NETS),
    "message passing": lambda: run_gamp(SIGN),
    # of one start the signal is recovered: its free entropy is infinite
    "message passing, two starts": lambda: run_gamp(PHASES, start=(1e-3, 0.5), iteration=None),
    "message passing, matrix": lambda: run_gamp(MATRIX, 0.2),
    "spectral": lambda: smi.spectral(PHASES, PHASES.sample(KEY, dimension=12, alpha=4.0), key=KEY),
    "spectral overlap": lambda: smi.spectral_overlap(PHASES, 2.0, key=KEY, averages=NETS),
    "weak recovery": lambda: weak(PHASES),
    "weak recovery of a link on a grid": lambda: weak(ON_A_GRID),
    "weak recovery of attention": lambda: weak(TWO_LAYERS),
    "training": lambda: train(LINEAR),
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
