"""Passes over many rows; data that are not stored, stored in bfloat16, or spread over devices: the
same numbers; and the memory of a run."""

import dataclasses
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from jax import export

import jaxsmi as smi
from helpers import slow_but
from jaxsmi.design.designs import IndexOperator, RectangularOperator, SymmetricOperator
from jaxsmi.design.products import draw_inputs

KEY, LINEAR = jax.random.key(3), smi.links.linear(0.1)
MODELS = {
    "index": (LINEAR, 60, 2.0),
    "attention-indexed": (smi.AttentionIndexed(2, 0.5, "linear", noise=0.1), 12, 0.5),
    "bilinear": (smi.Bilinear(1.0, 0.25, 0.1), 12, 0.5),
    "quadratic": (smi.Bilinear(1.0, 0.25, 0.1, symmetric=True), 12, 0.5),
}


# Passes over many rows ------------------------------------------------------------------------

ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-24}  # of the products
ROWS, LENGTH = 1103, 1001  # more than 2^20 numbers, a prime number of rows: loops, and a rest


def drawn(dtype, indices, tokens=1):
    shapes = (ROWS, tokens, LENGTH), (indices, LENGTH), (ROWS, indices, tokens)
    x, W, g = (np.random.default_rng(k).standard_normal(shape) for k, shape in enumerate(shapes))
    return jnp.asarray(x).astype(dtype), jnp.asarray(W), jnp.asarray(g)


@pytest.mark.parametrize("indices", [1, 2, 3])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_both_passes_are_the_products(dtype, indices):
    """Beside NumPy in float64, from the same inputs. W and g are rounded, too: with K terms, each
    off by two roundings and its sum by K, the error is a normal number of about (2 + √K) roundings
    of √K; ten of these."""
    x, W, g = drawn(dtype, indices)
    fields, total = eqx.filter_jit(lambda s, W, g: (s.forward(W), s.adjoint(g)))(
        IndexOperator(x), W, g
    )
    flat, root = np.asarray(x[:, 0], np.float64), np.sqrt(LENGTH)
    for found, true, terms in (
        (fields[:, :, 0], flat @ np.asarray(W).T / root, LENGTH),
        (total, np.asarray(g)[:, :, 0].T @ flat / root, ROWS),
    ):
        error = 10 * ROUNDING[dtype] * (2 + np.sqrt(terms)) * np.sqrt(terms) / root
        np.testing.assert_allclose(found, true, atol=error, rtol=0)


@pytest.mark.slow
def test_transposes_of_each_other():
    """⟨forward S, g⟩ = ⟨S, adjoint g⟩, of rows and of matrices, with batches that do and do not
    divide the samples, to the rounding of N D terms; a rectangular field, and its precision."""
    x, W, g = drawn("float64", 2, tokens=2)
    rng = np.random.default_rng(0)
    inputs, G, S = (rng.standard_normal(n) for n in ((7, 3, 5), (7, 1, 3, 3), (1, 5, 5)))
    both = S + S.swapaxes(1, 2), (G + G.swapaxes(2, 3)).reshape(7, 1, 9)
    for sensing, signal, field in (
        (IndexOperator(x), W, g),
        (RectangularOperator(x), W[None], g[:, :1, :1]),
        (SymmetricOperator(jnp.asarray(inputs), batch=4), *both),
        (SymmetricOperator(jnp.asarray(inputs)), *both),
        (RectangularOperator(jnp.asarray(inputs)), S[:, :3], G[:, :, :1, 0]),
    ):
        signal, field = jnp.asarray(signal), jnp.asarray(field)
        forward = sensing.forward(signal)
        one, other = jnp.vdot(forward, field), jnp.vdot(signal, sensing.adjoint(field))
        scale = jnp.linalg.norm(forward) * jnp.linalg.norm(field)
        assert abs(float(one - other)) <= 1e-14 * float(scale)
    fields = jnp.einsum("nld,ld->n", inputs, S[0, :3]) / np.sqrt(15)
    np.testing.assert_allclose(forward[:, 0, 0], fields, rtol=1e-12)
    precision = sensing.precisions["outer"](field, field)[0, 0]
    np.testing.assert_allclose(precision, jnp.sum(field**2) / 15, rtol=1e-12)


@eqx.filter_jit
def at_once_and_alone(function, many):
    """All at once, one after the other, and the derivative along the second: it is linear."""
    alone = jax.lax.map(function, many)
    return jax.vmap(function)(many), alone, jax.jvp(function, (many[0],), (many[1],))[1]


@pytest.mark.parametrize("way", ["forward", "adjoint"])
def test_alone_or_together(way):
    x, W, g = drawn("float64", 2)
    many = jnp.stack([W, -2.0 * W + 1.0]) if way == "forward" else jnp.stack([g, g[::-1]])
    function = IndexOperator(x).forward if way == "forward" else IndexOperator(x).adjoint
    together, alone, slope = at_once_and_alone(function, many)
    size = float(jnp.max(jnp.abs(alone)))
    np.testing.assert_allclose(together, alone, atol=1e-13 * size, rtol=0)
    np.testing.assert_allclose(slope, alone[1], atol=1e-13 * size, rtol=0)


def test_no_copy_of_bfloat16_inputs():
    """Temporary arrays are far smaller than the inputs; on other devices no array in float32 is as
    large as they are."""
    shapes = [
        jax.ShapeDtypeStruct((2**16, 1, 2**10), jnp.bfloat16),
        jax.ShapeDtypeStruct((2, 2**10), jnp.float64),
        jax.ShapeDtypeStruct((2**16, 2, 1), jnp.float64),
    ]
    both = jax.jit(lambda x, W, g: (IndexOperator(x).forward(W), IndexOperator(x).adjoint(g)))
    taken = both.lower(*shapes).compile().memory_analysis()
    assert taken.temp_size_in_bytes < 0.1 * 2**26 * 2
    text = export.export(both, platforms=["cuda", "rocm", "tpu"])(*shapes).mlir_module()
    assert "tensor<8192x1024xf32>" in text
    assert "65536x1x1024xbf16" in text
    assert not re.search(r"65536x(1x)?1024xf(32|64)", text)


# Inputs that are regenerated, rounded or spread ------------------------------------------------


@pytest.mark.parametrize("name", slow_but(MODELS, "index"))
def test_regenerated_inputs_are_the_stored_ones(name):
    """Fields and their transposes, block by block or at once: only the order of sums differs."""
    model, dimension, alpha = MODELS[name]
    lazy = model.sample(KEY, dimension=dimension, alpha=alpha, store=False, dtype=jnp.float64)
    data = lazy.stored()
    assert lazy.samples == data.samples == alpha * dimension ** (1 if name == "index" else 2)
    signal, fields = model.design.shapes(data.inputs.shape)
    W, g = jax.random.normal(KEY, signal), jax.random.normal(KEY, fields)
    W = 0.5 * (W + jnp.swapaxes(W, -1, -2)) if name in ("attention-indexed", "quadratic") else W
    one, other = model.design.operator(data.inputs), model.design.operator(lazy.inputs)
    np.testing.assert_allclose(other.forward(W), one.forward(W), atol=1e-12)
    np.testing.assert_allclose(other.adjoint(g), one.adjoint(g), atol=1e-11)
    assert float(jnp.vdot(other.forward(W), g)) == pytest.approx(
        float(jnp.vdot(W, other.adjoint(g))), abs=1e-10
    )
    assert float(jnp.std(data.labels)) > 0.1


@pytest.mark.slow
def test_a_run_on_regenerated_inputs_is_that_on_stored_ones():
    """Labels that V explains, and labels three times as large, for which V is widened by what the
    fields of all samples say: the same steps, but for the order of sums."""
    lazy = LINEAR.sample(KEY, dimension=60, alpha=2.0, store=False, dtype=jnp.float64)
    for factor in (1.0, 3.0):
        there = dataclasses.replace(lazy, labels=factor * lazy.labels)
        one, other = (
            smi.gamp(LINEAR, data, key=KEY, iteration=smi.Iteration(4), start=0.5)
            for data in (there.stored(), there)
        )
        np.testing.assert_allclose(other.weights, one.weights, atol=1e-10)
        np.testing.assert_allclose(other.history["misfit"], one.history["misfit"], rtol=1e-10)
        assert (jnp.nanmax(other.history["misfit"]) > 1.0) == (factor > 1.0)


@pytest.mark.slow
def test_a_step_draws_regenerated_inputs_once():
    """Their fields and their transpose come from one drawing: the floor is the rate of drawing."""
    drawings = []

    def law(key, shape, dtype):
        jax.debug.callback(lambda: drawings.append(None))
        return jax.random.normal(key, shape, dtype)

    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=60, alpha=2.0, store=False)
    data = dataclasses.replace(data, inputs=dataclasses.replace(data.inputs, law=law))
    counts = []
    for steps in (1, 3):
        drawings.clear()
        jax.block_until_ready(
            smi.gamp(model, data, key=KEY, iteration=smi.Iteration(steps), start=0.5).weights
        )
        jax.effects_barrier()
        counts.append(len(drawings))
    # two runs of two more steps: one that does not settle is repeated without calibration
    assert counts[1] - counts[0] == 2 * 2 * len(data.inputs.numbers)


def test_blocks_cover_what_was_asked_for():
    """All N samples where N has a divisor that fits; else the nearest whole blocks, a multiple of
    eight of them."""
    for samples, form in ((20000, (2, 20000)), (1200, (2, 1000)), (99991, (1, 4000))):
        inputs = draw_inputs(KEY, samples, form, jnp.float32, store=False)
        assert len(inputs.numbers) % 8 == 0
        assert abs(inputs.shape[0] - samples) <= len(inputs.numbers) / 2
        assert inputs.block_size * np.prod(form) <= 2**23 + np.prod(form)
    assert draw_inputs(KEY, 20000, (2, 20000), jnp.float32, store=False).shape[0] == 20000


@pytest.mark.slow
def test_bfloat16_is_storage_not_arithmetic():
    """A run on bfloat16 inputs is that on the same numbers in float64, to the rounding of float32
    sums over D."""
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=300, alpha=2.0, dtype=jnp.bfloat16)
    assert data.inputs.dtype == jnp.bfloat16
    exact = smi.Dataset(data.inputs.astype(jnp.float64), data.labels, data.teacher)
    # drawn in float32 and rounded: the tails are there
    assert float(jnp.max(jnp.abs(exact.inputs))) > 3.5
    assert abs(float(jnp.var(exact.inputs)) - 1.0) < 4 * np.sqrt(2 / exact.inputs.size)
    one, other = (smi.gamp(model, d, key=KEY, iteration=smi.Iteration(20)) for d in (data, exact))
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, optax, jaxsmi as smi
jax.config.update("jax_enable_x64", True)
assert jax.device_count() == 4
key = jax.random.key(0)
big = lambda x: float(jnp.max(jnp.abs(x)))
for name, model, dimension, alpha, steps in (
    ("linear", smi.links.linear(0.1), 40, 2.0, 6),
    ("deep attention", smi.DeepAttention(2, 2), 60, 1.2, 12),
    ("phase retrieval", smi.links.phase_retrieval(), 60, 2.0, 12),
    ("softmax", smi.AttentionIndexed(2, 0.5), 16, 0.2, 10),
    ("bilinear", smi.Bilinear(1.0, 0.25), 16, 0.5, 10),
    ("quadratic", smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), 16, 0.5, 10),
):
    lazy = model.sample(key, dimension=dimension, alpha=alpha, store=False, dtype=jnp.float64)
    data = lazy.stored()
    given = dict(key=key, iteration=smi.Iteration(steps), start=0.1)
    alone = smi.gamp(model, data, **given)
    for there in (data.sharded(), lazy.sharded()):
        assert there.mesh.size == 4
        run = smi.gamp(model, there, **given)
        assert len(run.state.g.sharding.device_set) == 4  # the fields stay where their samples are
        assert int(run.result) == int(alone.result) and int(run.steps) == int(alone.steps)
        assert big(run.weights - alone.weights) <= 1e-10 * big(alone.weights), name
        np.testing.assert_allclose(run.history["overlap"], alone.history["overlap"], atol=1e-10)
        assert abs(run.error - alone.error) <= 1e-10
# eigenvectors are known to a residual of 1e-3, and Lanczos steps short of the end amplify rounding:
# measured 1e-9 to 1e-6 between one device and four
model = smi.DeepAttention(2, 2)
data = model.sample(key, dimension=60, alpha=1.2)
alone, run = (smi.spectral(model, there, key=key).weights for there in (data, data.sharded()))
assert big(run - alone) <= 1e-5 * big(alone), "spectral"
model = smi.links.linear(0.1)
data = model.sample(key, dimension=40, alpha=6.0)
for size in (None, 48):
    settings = dict(key=key, steps=20, gradient=smi.Gradient(batch_size=size))
    fits = [smi.train(model, d, optax.adam(0.01), **settings) for d in (data, data.sharded())]
    assert big(fits[0].weights - fits[1].weights) <= 1e-10 * big(fits[0].weights)
try:
    data.first(37).sharded()
except ValueError as refused:
    assert "data.first(36)" in str(refused)
else:
    raise AssertionError("37 samples over 4 devices")
"""


def virtual_devices(count):
    """The environment of a program that sees so many devices of the CPU: their number is fixed at
    its start."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


@pytest.mark.slow
def test_four_devices_are_one_for_every_family():
    command, environment = [sys.executable, "-c", SCRIPT], virtual_devices(4)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


HOST = """
import sys, jax, numpy as np, jaxsmi as smi
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:" + sys.argv[2], num_processes=2, process_id=int(sys.argv[1]))
assert (jax.device_count(), jax.local_device_count()) == (4, 2)
model, key = smi.links.linear(0.1), jax.random.key(0)
data = model.sample(key, dimension=40, alpha=2.0, store=False, dtype="float64")
run = smi.gamp(model, data.sharded(), key=key, iteration=smi.Iteration(6))
print("overlap", repr(float(np.asarray(run.overlap)[0, 0])))
"""


@pytest.mark.slow
def test_two_hosts_are_one():
    """Two programs of two devices each, over jax.distributed: every host ends with the overlap that
    one device finds.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, str(k), port],
            env=virtual_devices(2),
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    said = [host.communicate(timeout=300)[0] for host in hosts]
    key = jax.random.key(0)
    data = LINEAR.sample(key, dimension=40, alpha=2.0, store=False, dtype="float64")
    alone = float(smi.gamp(LINEAR, data, key=key, iteration=smi.Iteration(6)).overlap[0, 0])
    for words in said:
        assert float(words.split("overlap")[1]) == pytest.approx(alone, abs=1e-12)


def test_memory_is_counted_without_drawing_anything():
    model, size = smi.DeepAttention(2, 2), {"dimension": 20000, "alpha": 1.0}
    stored = programs.counted_memory(model, **size, dtype=jnp.float32)
    regenerated = programs.counted_memory(model, **size, store=False)
    assert stored["inputs"] == 20000 * 2 * 20000 * 4
    assert sum(regenerated.values()) < 2**30 < stored["inputs"]


@pytest.mark.slow
def test_memory_of_a_process_is_the_counted_one():
    """Peak memory of a process that runs GAMP, D = 16000: within 40 % of what is counted
    (allocators keep some). The peak is VmHWM, of the process itself: what getrusage says begins
    with the memory of the process that started it. Inputs that are drawn again are given a start:
    the spectral one draws them some 250 times."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak memory of a process is read from /proc")
    for store in (True, False):
        start = "" if store else ", start=1e-3"
        script = (
            "import re, jax, jax.numpy as jnp, jaxsmi as smi; "
            "jax.config.update('jax_enable_x64', True);"
            "key = jax.random.key(0); model = smi.links.phase_retrieval();"
            "data = model.sample(key, dimension=16000, alpha=1.0, dtype=jnp.float32, "
            f"store={store});"
            f"run = smi.gamp(model, data, key=key, iteration=smi.Iteration(2){start}); "
            "jax.block_until_ready(run.weights);"
            "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])"
        )
        # as users run it: the flags that compile tests quickly take other temporary arrays
        environment = {**os.environ, "XLA_FLAGS": ""}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        drawing = {"dtype": jnp.float32, "store": store}
        counted = programs.counted_memory(smi.links.phase_retrieval(), 16000, 1.0, **drawing)
        process = 0.4 * 2**30  # Python, JAX and compiled code (measured)
        assert sum(counted.values()) + process == pytest.approx(1024 * int(done.stdout), rel=0.4)
