"""Programs for accelerators that are not at hand: they lower, call nothing on the host, keep to
the precision of their inputs, and take the memory that is stated.

Lowered by `jax.export` for CUDA, ROCm and TPU at once; memory and kernels are those of the program
compiled for the CPU. Nothing is computed here."""

import importlib
import itertools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import programs
import pytest

import jaxsmi as smi
from helpers import slow_but
from jaxsmi.design.products import MAX_BLOCK_SIZE
from jaxsmi.numerics import refining, refining_sums
from jaxsmi.numerics.refining_sums import Block, block_within, working_memory

OVER_DEVICES = [
    f"message passing, {name}"
    for name in ("linear", "softmax scores", "regenerated", "two layers", "bilinear", "quadratic")
]

# Every accelerator ----------------------------------------------------------------------------


FEW = smi.Averages(points=2**8)


def stays_on_the_device(text):
    """No call of Python, of the CPU's linear algebra, no transfer to the host or back."""
    strange = [name for name in programs.calls(text) if re.search("callback|python|lapack", name)]
    return not strange and not re.search(r"stablehlo\.(send|recv|infeed|outfeed)\b", text)


@pytest.mark.parametrize("name", slow_but(programs.PROGRAMS, *programs.FAST))
def test_lowers_for_every_accelerator(name):
    exported = programs.lowered(programs.PROGRAMS[name]())
    assert exported.platforms == programs.ACCELERATORS
    assert stays_on_the_device(exported.mlir_module())


@pytest.mark.parametrize("name", slow_but(OVER_DEVICES, OVER_DEVICES[0]))
def test_lowers_over_four_devices(name, monkeypatch):
    """Sums over samples go over the devices, and no array with an axis of samples does."""
    exported = programs.sum_devices(programs.PROGRAMS[name](), monkeypatch)
    text = exported.mlir_module()
    assert exported.nr_devices == 4
    assert stays_on_the_device(text)
    assert "stablehlo.all_reduce" in text
    assert not re.search(r"stablehlo\.(all_gather|all_to_all|collective_permute)", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda key: smi.staircase(smi.links.sign(), key=key, alpha_max=2.0, averages=FEW),
        lambda key: smi.gamp(*_sampled(), key=key, iteration=smi.Iteration(3)),
        lambda key: smi.free_entropy(smi.links.sign(), 1.0, 0.5, key=key),
        lambda key: smi.sgd.maximal_rate(programs.tanh(noise=0.0), key=key),
    ],
    ids=["staircase", "spectral start", "free entropy", "maximal rate"],
)
def test_programs_between_which_the_host_decides(call):
    """Each of them, as they are compiled when the call is made."""
    with programs.compiled_parts() as parts:
        call(jax.random.key(0))
    assert parts
    for part in parts:
        assert stays_on_the_device(part.export().mlir_module())


def _sampled():
    model = smi.links.phase_retrieval()
    return model, model.sample(jax.random.key(0), dimension=20, alpha=2.0)


# Precision ------------------------------------------------------------------------------------

DOUBLE = "layers|rank two|untied|heads|bilinear|nuclear"
SINGLE = [name for name in programs.PROGRAMS if not re.search(DOUBLE, name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
def test_no_double_precision_where_it_is_off(name):
    """Noiseless attention and rectangular matrices refuse single precision, with the remedy."""
    jax.clear_caches()  # JAX keeps the constants of a traced program in their precision
    try:
        with jax.enable_x64(False):
            # its models are arrays in the precision in which the module is loaded
            single = importlib.reload(programs)
            text = single.lowered(single.PROGRAMS[name]()).mlir_module()
    finally:
        jax.clear_caches()
        importlib.reload(programs)
    assert programs.largest(text, "f32") > 0
    assert programs.largest(text, "f64") == 0


TRAINED = ["retrieval", "two_layers", "softmax", "bilinear", "quadratic"]


@pytest.mark.parametrize("name", slow_but(TRAINED, "retrieval"))
def test_an_update_on_float32_inputs_is_float32(name):
    """In double precision are the labels that came so, and single numbers."""
    stretch = programs.solving(programs.training(getattr(programs, name)(), 30, jnp.float32))

    def gradient(solver, run):
        now = run.state
        words = jax.random.wrap_key_data(now.state.key[0])
        _, batch = solver.batch(words, now.order[0], run.step)
        weights = jax.tree.map(lambda x: x[0], now.state.weights)
        change = jax.value_and_grad(lambda w: solver._loss(w, *batch))(weights)
        return optax.apply_updates(weights, change[1])

    text = stretch.part(gradient).lower().as_text()
    wide = set(re.findall(r"(stablehlo\.\w+) .*tensor<\d[\dx]*xf64>", text))
    assert wide <= {"stablehlo.convert"}  # of the labels
    assert programs.largest(text, "f64") <= stretch.solver.data.labels.size
    assert programs.largest(text, "f32") >= stretch.solver.data.inputs.size


# Memory and kernels ---------------------------------------------------------------------------


class Case:
    """Message passing whose step is compiled for N samples, with what it may take beside the
    fields and the signal that `counted_memory` counts (`more` bytes), and how many kernels."""

    def __init__(self, model, dimension, alpha, kernels, more=0, **drawing):
        self.model, self.kernels, self.more, self.drawing = model, kernels, more, drawing
        self.size = {"dimension": dimension, "alpha": alpha}


def integral(columns):
    """Bytes of a block of the refining integral, twice over."""
    return 2 * 8 * columns * 16 * 512


SCORES = 4096  # samples that products of scores are made of at once

STEPS = {
    "phase retrieval": Case(programs.retrieval, 1000, 1.0, kernels=280, dtype=jnp.float32),
    "linear": Case(lambda: smi.links.linear(0.1), 1000, 1.0, kernels=280),
    "regenerated": Case(programs.retrieval, 1000, 1.0, kernels=450, **programs.SINGLE),
    # two inner fields, two residuals: 17 columns
    "two layers": Case(programs.two_layers, 500, 1.0, kernels=600, more=integral(17)),
    # inputs of two tokens, their products and copies of them in another order: eight such blocks
    "softmax scores": Case(programs.softmax, 100, 1.0, kernels=250, more=8 * SCORES * 2 * 100 * 8),
    "bilinear": Case(programs.bilinear, 50, 0.5, kernels=600),
    "quadratic": Case(programs.quadratic, 50, 0.5, kernels=200),
}


@pytest.mark.parametrize("name", slow_but(STEPS, "phase retrieval"))
def test_memory_and_kernels_of_a_step_of_message_passing(name):
    """No copy of the inputs: temporary arrays are the fields and the signal, as
    `counted_memory` counts them, six blocks of regenerated inputs, and a block of the integral or
    of products."""
    case = STEPS[name]
    model = case.model()
    part = programs.step_of(programs.message_passing(model, **case.size, **case.drawing))
    counted = programs.counted_memory(model, **case.size, **case.drawing)
    allowed = counted["fields"] + counted["signal"] + case.more
    if not case.drawing.get("store", True):
        allowed += counted["inputs"]
    elif not case.more:
        assert allowed < 0.1 * counted["inputs"]  # so that a copy would be seen
    found = programs.cost(part)
    assert found.temporary <= allowed
    assert found.kernels <= case.kernels
    if case.drawing:  # float32: the fields are double, no inputs or block of them is
        inputs = int(counted["inputs"]) // 4 // (1 if case.drawing.get("store", True) else 6)
        assert programs.largest(found.text, "f32") >= inputs
        assert programs.largest(found.text, "f64") < inputs / 10


@pytest.mark.slow
@pytest.mark.parametrize("samples", [2**13, 2**16])
@pytest.mark.parametrize("model", [programs.retrieval, programs.two_layers])
@pytest.mark.parametrize("program", ["step", "weak recovery"])
def test_memory_of_the_outer_average(program, model, samples):
    """State evolution and weak recovery hold the fields of all samples, 12 F + 2 F² numbers each
    (points of the net, ω, z, g, statistics; ∂g twice), as many for the block of 4096 that is worked
    on, or a block of the integral."""
    built = model()
    F = built.indices * built.tokens
    if program == "step":
        part = programs.step_of(programs.evolution(built, samples=samples))
    else:
        call = programs.weak_recovery(built, points=samples)
        part = programs.Part(call, programs.KEY)
    closed = F == 1
    allowed = 8 * (12 * F + 2 * F**2) * (samples + 4096 * closed) + integral(17) * (not closed)
    assert programs.cost(part).temporary <= allowed


# Blocks of the refining integral --------------------------------------------------------------


def device(bytes_limit, name="accelerator"):
    """What a device says of its memory."""
    stats = None if bytes_limit is None else {"bytes_limit": bytes_limit, "bytes_in_use": 0}
    return types.SimpleNamespace(platform=name, memory_stats=lambda: stats)


def test_blocks_follow_memory_and_not_names(monkeypatch):
    least, most = Block(16, 512), Block(512, 2048)

    def shape(size, name):
        monkeypatch.setattr(jax, "local_devices", lambda: [device(size, name)])
        return block_within(working_memory(), 17, least, most)

    for size in (None, 2**30, 2**33, 2**37):
        assert len({shape(size, name) for name in ("cpu", "gpu", "cuda", "rocm", "tpu")}) == 1
    assert shape(None, "gpu") == shape(0, "tpu") == least  # memory unknown: the cache
    assert shape(2**37, "cpu") == most
    sizes = [shape(2**k, "gpu") for k in range(20, 40)]
    assert len(set(sizes)) > 5
    for k, block in zip(range(20, 40), sizes, strict=True):
        taken = 8 * 17 * block.samples * block.nodes
        assert taken <= max(2**k // 64, 8 * 17 * 16 * 512)
    assert all(a.samples <= b.samples and a.nodes <= b.nodes for a, b in itertools.pairwise(sizes))


@pytest.mark.slow
def test_a_device_says_how_large_the_blocks_are(monkeypatch):
    """The program of a posterior of one field holds blocks of 512 samples and 2048 nodes where
    memory is large, of 128 and 64 where it is not known: what a cache takes."""
    channel = programs.tanh().channel
    given = [jax.ShapeDtypeStruct(shape, float) for shape in ((1024,), (1024, 1, 1), (1, 1))]
    for size, shape in ((None, "128x64"), (80 * 2**30, "512x2048")):
        monkeypatch.setattr(jax, "local_devices", lambda size=size: [device(size)])
        text = jax.jit(lambda *x: channel.respond(*x).g).lower(*given).as_text()
        blocks = re.findall(r"tensor<(128x64|512x2048)xf64>", text)
        assert set(blocks) == {shape}


@pytest.mark.slow
@pytest.mark.parametrize("model", [programs.tanh, programs.committee, programs.two_layers])
def test_blocks_change_no_number(model, monkeypatch):
    """The same sums in another order."""
    built = model()
    rng = np.random.default_rng(0)
    omega, fields = rng.standard_normal((2, 200, built.indices, built.tokens))
    channel = built.channel
    noise = jnp.asarray(rng.standard_normal((200, channel.noise_size)))
    statistic = channel.statistic(jax.vmap(channel.label)(jnp.asarray(fields), noise))
    V = 0.4 * jnp.eye(built.indices)
    found = []
    for size in (refining_sums.CACHE, 2**31):
        monkeypatch.setattr(refining, "working_memory", lambda size=size: size)
        found.append(jax.jit(lambda s, w: channel.respond(s, w, V))(statistic, omega))
    for name in ("log_partition", "g", "ess"):
        one, other = (getattr(posterior, name) for posterior in found)
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_blocks_of_regenerated_inputs_are_bounded():
    """A block holds 2^23 numbers at most, whatever N and D."""
    settings = {"dimension": 20000, "alpha": 1.0, "store": False}
    data = jax.eval_shape(lambda key: programs.retrieval().sample(key, **settings), programs.KEY)
    assert data.inputs.block_size * 20000 <= MAX_BLOCK_SIZE
