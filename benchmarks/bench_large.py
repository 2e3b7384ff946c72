"""Large dimension: bytes of inputs read a second against
what a copy moves, and the time of an iteration against D.

    python -m pytest benchmarks/bench_large.py --benchmark-only

An iteration reads the inputs twice, once for the fields and once for their transpose:
that is its floor. Regenerated inputs move no memory; their floor is the rate at which
normal numbers are drawn. Runs on whatever device JAX finds; on a GPU the sizes grow.
"""

import functools
import os
import time
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.design.designs import IndexOperator
from jaxsmi.design.products import draw_inputs

jax.config.update("jax_enable_x64", True)

KEY = jax.random.key(0)
NUMBERS = 2**31 if jax.default_backend() == "gpu" else 2**27  # of inputs
KINDS = {
    "float64": jnp.float64,
    "float32": jnp.float32,
    "bfloat16": jnp.bfloat16,
    "regenerated": None,
}


@functools.cache
def updating():
    """Bytes a second, read and written, of an update of half a GiB in place (on a GPU of four).

    The best of five times, in place, since memory that was just allocated costs more to write the
    first time than to copy.
    """
    size = 2**32 if jax.default_backend() == "gpu" else 2**29
    pass_over = jax.jit(lambda x: x + 1.0, donate_argnums=0)
    x = jax.block_until_ready(pass_over(jnp.ones(size // 4, jnp.float32)))
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        x = jax.block_until_ready(pass_over(x))
        seconds.append(time.perf_counter() - begin)
    return 2.0 * size / min(seconds)


@functools.cache
def copying():
    """Bytes a second, read and written, of a copy of half a GiB into another array by as many
    threads as there are cores; other devices: of an update. A CPU reads the lines that it will
    write, too: a copy moves less than an update."""
    if jax.default_backend() != "cpu":
        return updating()
    source, target = np.ones(2**26), np.zeros(2**26)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = zip(np.array_split(source, cores), np.array_split(target, cores), strict=True)
    pairs, seconds = list(parts), []
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(5):
            begin = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            seconds.append(time.perf_counter() - begin)
    return 2 * source.nbytes / min(seconds)


@functools.cache
def sensing(kind, dimension):
    samples = NUMBERS // dimension // (4 if kind == "regenerated" else 1)
    return IndexOperator(
        draw_inputs(
            KEY, samples, (1, dimension), KINDS[kind] or jnp.float32, KINDS[kind] is not None
        )
    )


@pytest.mark.parametrize("dimension", [2000, 16000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["forward", "adjoint"])
def bench_pass(benchmark, way, kind, dimension):
    """One pass over the inputs, P = 2."""
    seen = sensing(kind, dimension)
    W, g = jnp.ones((2, dimension)), jnp.ones((seen.samples, 2, 1))
    run = eqx.filter_jit(
        lambda seen, W, g: seen.forward(W) if way == "forward" else seen.adjoint(g)
    )
    jax.block_until_ready(run(seen, W, g))
    benchmark.pedantic(lambda: jax.block_until_ready(run(seen, W, g)), rounds=3, iterations=1)
    numbers, seconds = seen.samples * dimension, benchmark.stats.stats.min
    if kind == "regenerated":
        benchmark.extra_info.update({"numbers_per_second": numbers / seconds})
        print(
            f"{way}, D = {dimension}, drawn again: {numbers / seconds / 1e6:.0f} million numbers/s"
        )
        return
    moved = numbers * jnp.dtype(seen.inputs.dtype).itemsize / seconds
    benchmark.extra_info.update(
        {
            "bytes_per_second": moved,
            "of_copy": moved / copying(),
            "of_update": moved / updating(),
        }
    )
    of_copy = f"{moved / copying():.0%} of a copy's {copying() / 1e9:.1f}"
    print(f"{way}, D = {dimension}, {kind}: {moved / 1e9:.2f} GB/s, {of_copy}")


@pytest.mark.parametrize("dimension", [1000, 2000, 4000])
@pytest.mark.parametrize("store", [True, False], ids=["stored", "regenerated"])
@pytest.mark.parametrize(
    "model", [smi.links.phase_retrieval(), smi.DeepAttention(2, 2)], ids=["phase", "attention"]
)
def bench_iteration(benchmark, model, store, dimension):
    """An iteration at α = 1 while nothing is learned yet: (time of
    four - time of one)/3, so that what a call costs drops out."""
    data = model.sample(KEY, dimension=dimension, alpha=1.0, dtype=jnp.float32, store=store)
    state = smi.gamp(model, data, key=KEY, iteration=smi.Iteration(1), start=1e-3).state

    def run(steps):
        return jax.block_until_ready(
            smi.gamp(
                model, data, key=KEY, start=state, iteration=smi.Iteration(steps, tolerance=1e-12)
            ).weights
        )

    timed = []
    for steps in (1, 4):
        run(steps)
        timed.append(min(_seconds(run, steps) for _ in range(2)))
    benchmark.pedantic(run, args=(4,), rounds=1, iterations=1)
    seconds = (timed[1] - timed[0]) / 3
    read = 2 * np.prod(data.inputs.shape)
    benchmark.extra_info.update({"seconds": seconds, "numbers_per_second": read / seconds})
    rate = f"{read / seconds / 1e6:.0f} million inputs read a second"
    print(f"D = {dimension}: {seconds:.3f} s an iteration, {rate}")


def _seconds(run, steps):
    begin = time.perf_counter()
    run(steps)
    return time.perf_counter() - begin
