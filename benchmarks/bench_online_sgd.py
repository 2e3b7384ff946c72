"""Online SGD of two layers of attention, B = 1: microseconds a step and run, compiled before.

By the chain at two dimensions, and by whole weight vectors. The floor of the chain: 21 standard
normals of 64 bits a step and run, 15 ns each on a core, and some 300 operations.
"""

import jax
import pytest

import jaxsmi as smi

MODEL = smi.DeepAttention(2, 2)
CASES = {
    "chain, D = 1000": ("reduced", 10**3, 256, 4000),
    "chain, D = 10^6": ("reduced", 10**6, 256, 4000),
    "whole vectors, D = 1000": ("full", 10**3, 4, 1000),
}


@pytest.mark.parametrize("name", CASES)
def bench_step(benchmark, name):
    method, dimension, runs, steps = CASES[name]
    keys = jax.random.split(jax.random.key(0), runs)
    setting = {"dimension": dimension, "rate": 0.2, "steps": steps, "every": steps}

    def run():
        found = smi.sgd.simulate(MODEL, keys, method=method, **setting)
        return jax.block_until_ready(found.end)

    benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["microseconds"] = 1e6 * benchmark.stats.stats.min / (steps * runs)
