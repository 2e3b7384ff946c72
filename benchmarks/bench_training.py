"""Throughput of training: eight runs at once on one dataset,
by plain gradient descent, SGD and Adam; compiled before."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsmi as smi

MODEL, D, RUNS = smi.DeepAttention(2, 2), 500, 8
METHODS = {
    "gradient descent": {"optimizer": optax.sgd(150.0), "steps": 40},
    "SGD": {"optimizer": optax.sgd(37.5), "steps": 1000, "gradient": smi.Gradient(batch_size=200)},
    "Adam": {
        "optimizer": optax.adam(1e-2),
        "steps": 1000,
        "gradient": smi.Gradient(batch_size=200),
    },
}


@pytest.mark.parametrize("name", METHODS)
def bench_eight_runs(benchmark, name):
    data = MODEL.sample(jax.random.key(0), dimension=D, alpha=15.0, dtype=jnp.float32)
    keys, settings = (
        jax.random.split(jax.random.key(1), RUNS),
        METHODS[name] | {"monitor": smi.Monitor(every=20)},
    )

    def run():
        return jax.block_until_ready(smi.train(MODEL, data, key=keys, **settings))

    fit = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    gradient = settings.get("gradient", smi.Gradient())
    used = settings["steps"] * (gradient.batch_size or data.samples) * RUNS
    benchmark.extra_info["samples_per_second"] = used / benchmark.stats.stats.min
    benchmark.extra_info["loss"] = float(np.mean(np.asarray(fit.history["train_loss"])[:, -1]))
    benchmark.extra_info["cosine"] = np.asarray(fit.history["cosine"])[:, -1].mean(0).tolist()
    assert np.all(np.isfinite(fit.weights))
