"""One iteration of state evolution, beside the standard error it reached.

taskset -c 0 python -m pytest benchmarks/bench_state_evolution.py --benchmark-only
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi

jax.config.update("jax_enable_x64", True)

NETS, POINTS = 10, 1024


def iteration(benchmark, model, alpha, Q, rounds):
    """Time V <- mmse(α response) with its Jacobian on 10,240 outer points."""
    V = jnp.eye(model.indices) - Q

    @jax.jit
    def step(V, key):
        found = model.channel.response(
            jnp.eye(model.indices) - V, V, key=key, points=POINTS, nets=NETS
        )
        new = jax.vmap(lambda R: jnp.eye(model.indices) - model.prior.mmse(alpha * R))(
            found.replicas
        )
        return new, found.jacobian, found.inaccurate, found.error

    key = jax.random.key(0)
    overlaps, _, inaccurate, error = jax.block_until_ready(step(V, key))
    benchmark.pedantic(
        lambda: jax.block_until_ready(step(V, key)), rounds=rounds, iterations=1, warmup_rounds=1
    )
    diagonal = np.diagonal(np.asarray(overlaps), axis1=1, axis2=2)
    benchmark.extra_info.update(
        {
            "outer_samples": NETS * POINTS,
            "overlap": diagonal.mean(axis=0).tolist(),
            "standard_error": (diagonal.std(axis=0, ddof=1) / np.sqrt(NETS)).tolist(),
            "largest_accepted_inner_error": float(error),
            "fraction_inaccurate": float(inaccurate),
        }
    )
    print(benchmark.stats.stats.min, benchmark.extra_info)


@pytest.mark.parametrize("overlap", [(0.0, 0.5), (0.5, 0.95), (0.995, 0.99995)], ids=str)
def bench_two_layers(benchmark, overlap):
    """10^4 outer points at Q = diag(0.5, 0.95) within 2 seconds
    on one core; also before and after the first layer."""
    iteration(benchmark, smi.DeepAttention(2, 2), 0.9, jnp.diag(jnp.asarray(overlap)), 3)


def bench_phase_retrieval(benchmark):
    """A closed form, for scale."""
    iteration(benchmark, smi.links.phase_retrieval(), 0.9, 0.5 * jnp.eye(1), 10)
