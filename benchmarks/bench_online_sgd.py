"""Online SGD of two layers of attention, B = 1: microseconds a step and run, compiled before.

By the chain at two dimensions. The floor of the chain: 21 standard
normals of 64 bits a step and run, 15 ns each on a core, and some 300 operations.
"""

import jax
import pytest

import jaxsmi as smi

MODEL = smi.DeepAttention(2, 2)
CASES = {
    "chain, D = 1000": (10**3, 256, 4000),
    "chain, D = 10^6": (10**6, 256, 4000),
}


@pytest.mark.parametrize("name", CASES)
def bench_step(benchmark, name):
    dimension, runs, steps = CASES[name]
    keys = jax.random.split(jax.random.key(0), runs)
    setting = {"dimension": dimension, "rate": 0.2, "alpha": steps / dimension}
    last = smi.Monitor(every=steps)

    def run():
        found = smi.sgd.simulate(MODEL, keys, monitor=last, **setting)
        return jax.block_until_ready(found.end)

    benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    benchmark.extra_info["microseconds"] = 1e6 * benchmark.stats.stats.min / (steps * runs)
