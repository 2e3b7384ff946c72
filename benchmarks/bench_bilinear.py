"""Bilinear sequence regression: two hundred points of state
evolution, the law of the singular values, an iteration, descent.

taskset -c 0 python -m pytest benchmarks/bench_bilinear.py --benchmark-only
"""

import functools
import time

import jax
import jax.numpy as jnp
import pytest

import jaxsmi as smi
from jaxsmi.numerics.rectangular_spectrum import rectangular_spectrum

jax.config.update("jax_enable_x64", True)


@jax.jit
def curve(beta, alphas):
    return jax.vmap(lambda alpha: smi.state_evolution(smi.Bilinear(beta, 0.2, 0.1), alpha).error)(
        alphas
    )


@pytest.mark.parametrize("beta", [1.0, 5.0])
def test_curve(benchmark, beta):
    alphas = jnp.linspace(0.005, 1.0, 200)
    begin = time.perf_counter()
    jax.block_until_ready(curve(beta, alphas))
    benchmark.extra_info["first_call_s"] = (
        time.perf_counter() - begin
    )  # compiles for the first β only
    benchmark.pedantic(
        lambda: jax.block_until_ready(curve(beta, alphas)), rounds=5, warmup_rounds=1
    )


def test_density_at_ten_thousand_points(benchmark):
    points, law = jnp.linspace(1e-3, 5.0, 10_000), rectangular_spectrum(2.0, 0.2, 0.1)
    benchmark.pedantic(lambda: jax.block_until_ready(law.green(points)), rounds=10, warmup_rounds=1)


PARTS = {
    "forward": lambda model, data, state: model.design.operator(data.inputs).forward(state.weights),
    "adjoint": lambda model, data, state: model.design.operator(data.inputs).adjoint(state.g),
    "posterior": lambda model, data, state: model.prior.posterior(state.weights, state.precision),
    "svd": lambda model, data, state: jnp.linalg.svd(state.weights[0], full_matrices=False),
}


@functools.cache
def problem(dimension, dtype):
    """Floor of forward or adjoint: one pass over n·L·d
    inputs; at d = 100, α = .3 in float32 120 MB."""
    model, key = smi.Bilinear(1.0, 0.2, 0.1), jax.random.key(0)
    data = model.sample(key, dimension=dimension, alpha=0.3, dtype=dtype)
    return (
        model,
        data,
        smi.gamp(model, data, key=key, iteration=smi.Iteration(10, tolerance=1e-12)).state,
    )


@pytest.mark.parametrize(
    ("dimension", "dtype"), [(60, "float32"), (100, "float32"), (100, "float64")]
)
@pytest.mark.parametrize("part", ["ten iterations", *PARTS])
def test_iteration(benchmark, dimension, dtype, part):
    model, data, state = problem(dimension, dtype)
    if part == "ten iterations":
        run = lambda: (
            smi.gamp(
                model, data, key=jax.random.key(1), iteration=smi.Iteration(10, tolerance=1e-12)
            ).weights
        )
    else:
        compiled = jax.jit(lambda data, state: PARTS[part](model, data, state))
        run = lambda: compiled(data, state)
    benchmark.pedantic(lambda: jax.block_until_ready(run()), rounds=5, warmup_rounds=1)
