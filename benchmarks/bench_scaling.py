"""What cost grows with: exponents of D, N, P, M and L, and the memory of data passes.

    python -m pytest benchmarks/bench_scaling.py --benchmark-only

Processor time of a call after compilation, the best of five, at three sizes of one parameter with
all others kept; the exponent is that of a straight line through the logarithms, its error the
standard error of the line. Sizes are small: constants have not died out where an exponent is below
that of theory.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxsmi as smi
from jaxsmi.design.designs import IndexOperator

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)


@eqx.filter_jit
def passes(sensing, W, g):
    return sensing.forward(W), sensing.adjoint(g)


def arguments(N, D, P=2, M=1, dtype=jnp.float64):
    """Inputs, a signal, and vectors of samples."""
    x = jax.random.normal(KEY, (N, M, D), jnp.float32).astype(dtype)
    return IndexOperator(x), jnp.ones((P, D)), jnp.ones((N, P, M))


def both_passes(N=4000, D=2000, P=2, M=1):
    made = arguments(N, D, P, M)
    return lambda: passes(*made)


@eqx.filter_jit
def posterior(channel, statistic, omega, V):
    return channel.respond(statistic, omega, V).g


def posteriors(depth, samples=16):
    """Of labels of attention layers of which nothing is learned."""
    model = smi.DeepAttention(depth, 2)
    fields = jax.random.normal(KEY, (samples, depth, 2))
    statistic = model.channel.statistic(jax.vmap(model.link)(fields))
    return lambda: posterior(model.channel, statistic, jnp.zeros_like(fields), jnp.eye(depth))


@eqx.filter_jit
def closed(channel, statistic, omega, V):
    return channel.respond(statistic, omega, V).g


def closed_posteriors(samples):
    model = smi.links.sign_product(2)
    omega = jax.random.normal(KEY, (samples, 2, 1))
    statistic = model.channel.statistic(jnp.ones(samples))
    return lambda: closed(model.channel, statistic, omega, 0.5 * jnp.eye(2))


AXES = {
    "data passes against D": ((1000, 2000, 4000), lambda D: both_passes(D=D)),
    "data passes against N": ((2000, 4000, 8000), lambda N: both_passes(N=N)),
    "data passes against P": ((2, 4, 8), lambda P: both_passes(P=P)),
    "data passes against M": ((1, 2, 4), lambda M: both_passes(M=M)),
    "posteriors in closed form against N": ((2**14, 2**15, 2**16), closed_posteriors),
    "posteriors of attention against L": ((1, 2, 3), posteriors),
}


def best(run):
    """Shortest of five, seconds of processor time."""
    jax.block_until_ready(run())
    times = []
    for _ in range(5):
        begin = time.process_time()
        jax.block_until_ready(run())
        times.append(time.process_time() - begin)
    return min(times)


def line(sizes, seconds):
    """Slope of log seconds against log size, and its standard error."""
    fit = stats.linregress(np.log(sizes), np.log(seconds))
    return float(fit.slope), float(fit.stderr)


@pytest.mark.parametrize("axis", AXES)
def bench_exponent(benchmark, axis):
    sizes, make = AXES[axis]
    seconds = benchmark.pedantic(lambda: [best(make(size)) for size in sizes], rounds=1)
    exponent, error = line(sizes, seconds)
    benchmark.extra_info.update(
        {
            "axis": axis,
            "sizes": list(sizes),
            "seconds": seconds,
            "exponent": exponent,
            "error": error,
        }
    )
    print(f"{axis}: {exponent:.2f}({error:.2f})")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def bench_memory(benchmark, dtype):
    """Temporary arrays of both passes, beside the inputs, N = 2000, D = 2000, P = 2."""
    made = arguments(2000, 2000, dtype=jnp.dtype(dtype))
    both = jax.jit(lambda sensing, W, g: (sensing.forward(W), sensing.adjoint(g)))
    compiled = benchmark.pedantic(lambda: both.lower(*made).compile(), rounds=1)
    taken = compiled.memory_analysis().temp_size_in_bytes
    inputs = made[0].inputs.nbytes
    benchmark.extra_info.update({"memory": dtype, "inputs": inputs, "temporary": taken})
    print(f"{dtype}: inputs {inputs / 2**20:.1f} MiB, temporary {taken / 2**20:.2f} MiB")
