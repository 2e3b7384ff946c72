"""One iteration of message passing on two-layer attention,
D = 1000, α = 1.2, and what it spends where.

    taskset -c 0 python -m pytest benchmarks/bench_gamp.py --benchmark-only

Three moments of one run: both layers unknown, the last learned, both nearly known.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi

jax.config.update("jax_enable_x64", True)

MOMENTS = {"start": 2, "last layer learned": 15, "nearly recovered": 35}


@functools.cache
def problem(dtype="float64"):
    model, key = smi.DeepAttention(2, 2), jax.random.key(0)
    return model, model.sample(key, dimension=1000, alpha=1.2, dtype=jnp.dtype(dtype))


@functools.cache
def state(moment, dtype):
    model, data = problem(dtype)
    return smi.gamp(model, data, key=jax.random.key(0), iteration=smi.Iteration(MOMENTS[moment]))


def describe(benchmark, solution, **more):
    history = solution.trajectory
    benchmark.extra_info.update(
        {
            "step": int(solution.steps),
            "cosine": history["cosine"][-1].tolist(),
            "covariance": np.diagonal(history["covariance"][-1]).tolist(),
            "fraction_inaccurate": float(history["inaccurate"][-1]),
            **more,
        }
    )
    print(f"{benchmark.stats.stats.min:.4f} s", benchmark.extra_info)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("moment", MOMENTS)
def bench_iteration(benchmark, moment, dtype):
    """A whole iteration as `gamp` runs it, with what a call
    costs besides (checks, the plug-in error at its end)."""
    model, data = problem(dtype)
    solution = state(moment, dtype)

    def run():
        return jax.block_until_ready(
            smi.gamp(
                model, data, start=solution.state, key=jax.random.key(1), iteration=smi.Iteration(1)
            ).weights
        )

    run()
    benchmark.pedantic(run, rounds=3, iterations=1, warmup_rounds=1)
    describe(benchmark, solution)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def bench_data_passes(benchmark, dtype):
    """The two passes over the inputs: forward and adjoint."""
    model, data = problem(dtype)
    solution = state("start", dtype)

    @jax.jit
    def passes(data, weights, g):
        sensing = model.design.operator(data.inputs)
        return sensing.forward(weights), sensing.adjoint(g)

    benchmark.pedantic(
        lambda: jax.block_until_ready(passes(data, solution.weights, solution.state.g)),
        rounds=10, iterations=1, warmup_rounds=1,
    )  # fmt: skip
    describe(benchmark, solution, bytes_read=2 * data.inputs.size * data.inputs.dtype.itemsize)


@pytest.mark.parametrize("moment", MOMENTS)
def bench_denoiser(benchmark, moment):
    """The posteriors of the N = 1200 samples, with the true
    error of 64 of them against tolerance 1e-8."""
    model, data = problem()
    solution = state(moment, "float64")
    omega, V = solution.state.omega, jnp.asarray(solution.trajectory["covariance"][-2])
    statistic = model.channel.statistic(data.labels)
    respond = eqx.filter_jit(model.channel.respond)
    found = respond(statistic, omega, V)
    benchmark.pedantic(
        lambda: jax.block_until_ready(respond(statistic, omega, V)),
        rounds=3,
        iterations=1,
        warmup_rounds=1,
    )
    fine = smi.DeepAttention(2, 2, tolerance=1e-8, max_nodes=2**22).channel
    true = eqx.filter_jit(fine.respond)(statistic[:64], omega[:64], V)
    error = np.abs(np.asarray(found.g)[:64] - true.g).max(axis=(1, 2)) / (
        1 + np.abs(true.g).max(axis=(1, 2))
    )
    describe(
        benchmark,
        solution,
        samples_per_second=data.samples / benchmark.stats.stats.min,
        error_of_g_median=float(np.median(error)),
        error_of_g_max=float(error.max()),
        largest_ratio_true_to_reported=float(
            (error / np.maximum(np.asarray(found.error)[:64], 1e-7)).max()
        ),
        effective_nodes_min=float(np.min(found.ess)),
    )
