"""Attention of extensive rank: sixty points of state evolution,
the density, one iteration of message passing and its parts.

taskset -c 0 python -m pytest benchmarks/bench_attention_indexed.py --benchmark-only
"""

import functools
import time

import jax
import jax.numpy as jnp
import pytest

import jaxsmi as smi
from jaxsmi.numerics.symmetric_spectrum import spectrum

jax.config.update("jax_enable_x64", True)


@functools.partial(jax.jit, static_argnums=0)
def curve(output, alphas):
    return jax.vmap(
        lambda alpha: smi.state_evolution(smi.AttentionIndexed(2, 0.5, output), alpha).error
    )(alphas)


@pytest.mark.parametrize("output", ["hardmax", "softmax"])
def test_curve(benchmark, output):
    alphas = jnp.logspace(-2, 1.5, 60)
    begin = time.perf_counter()
    jax.block_until_ready(curve(output, alphas))
    benchmark.extra_info["cold_s"] = time.perf_counter() - begin
    benchmark.pedantic(
        lambda: jax.block_until_ready(curve(output, alphas)), rounds=5, warmup_rounds=1
    )
    print(output, benchmark.extra_info)


def test_density_at_ten_thousand_points(benchmark):
    points = jnp.linspace(-3.0, 6.0, 10_000)
    density = jax.jit(lambda x: spectrum(0.5, 1.0).green(x)[1])
    benchmark.pedantic(lambda: jax.block_until_ready(density(points)), rounds=20, warmup_rounds=1)


PARTS = {
    "forward": lambda model, data, state: model.design.operator(data.inputs).forward(state.weights),
    "adjoint": lambda model, data, state: model.design.operator(data.inputs).adjoint(state.g),
    "channel": lambda model, data, state: (
        model.channel.respond(model.channel.statistic(data.labels), state.omega, state.covariance).g
    ),
    "posterior": lambda model, data, state: model.prior.posterior(state.weights, state.precision),
    "eigh": lambda model, data, state: jnp.linalg.eigh(state.weights[0]),
}


@functools.cache
def problem(output, alpha, dimension):
    model, key = smi.AttentionIndexed(2, 0.5, output), jax.random.key(0)
    data = model.sample(key, dimension=dimension, alpha=alpha)
    return (
        model,
        data,
        smi.gamp(model, data, key=key, iteration=smi.Iteration(10, tolerance=1e-12)).state,
    )


@pytest.mark.parametrize(
    ("output", "alpha", "dimension"),
    [("softmax", 0.1, 100), ("softmax", 0.1, 200), ("hardmax", 0.5, 100)],
)
@pytest.mark.parametrize("part", ["iteration", *PARTS])
def test_iteration(benchmark, output, alpha, dimension, part):
    model, data, state = problem(output, alpha, dimension)
    if part == "iteration":
        run = lambda: (
            smi.gamp(
                model, data, key=jax.random.key(1), iteration=smi.Iteration(10, tolerance=1e-12)
            ).weights
        )  # ten of them
    else:
        compiled = jax.jit(functools.partial(PARTS[part], model, data))
        run = lambda: compiled(state)
    benchmark.pedantic(lambda: jax.block_until_ready(run()), rounds=5, warmup_rounds=1)
