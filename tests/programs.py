"""The programs that the library hands to XLA, as text, for accelerators that need not be there.

A program is a function of a random key that draws its data, too: it is traced and lowered without
a number being drawn. `step_of` cuts out the step of a solver, the body of the one loop, which is
compiled for the CPU to count its memory and its kernels. `benchmarks/accelerators.py` prints them.
"""

from __future__ import annotations

import collections
import contextlib
import math
import re
import sys
import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import export
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import jaxsmi as smi
from jaxsmi.core import driver
from jaxsmi.core.data import Dataset, Regenerated

ACCELERATORS = ("cuda", "rocm", "tpu")
KEY = jax.ShapeDtypeStruct((), jax.eval_shape(lambda: jax.random.key(0)).dtype)

# The programs -------------------------------------------------------------------------------


def arrays(tree):
    """What a compiled program can return."""
    return eqx.filter(tree, eqx.is_array)


def message_passing(model, dimension, alpha, learner=None, **drawing):
    def program(key):
        data = model.sample(key, dimension=dimension, alpha=alpha, **drawing)
        return arrays(smi.gamp(model, data, key=key, learner=learner, iteration=smi.Iteration(10)))

    return program


def counted_memory(model, dimension, alpha, **drawing):
    """Bytes of message passing by use, for N samples of fields of F numbers, without drawing them.

    inputs    as stored; regenerated: six times one block (bits, normals, inputs of them)
    fields    8 N (6 F + 2 F²): g and ω of two steps, the fields, their labels; ∂g twice
    signal    8 × 8 s
    """
    draw = lambda key: model.sample(key, dimension=dimension, alpha=alpha, **drawing)
    data = jax.eval_shape(draw, KEY)
    inputs = data.inputs
    signal, fields = model.design.shapes(inputs.shape)
    F = math.prod(fields[1:])
    if isinstance(inputs, Regenerated):
        width = max(jnp.dtype(inputs.dtype).itemsize, 4)
        stored = 6.0 * inputs.block_size * math.prod(inputs.input_shape) * width
    else:
        stored = float(math.prod(inputs.shape)) * jnp.dtype(inputs.dtype).itemsize
    return {
        "inputs": stored,
        "fields": 8.0 * data.labels.shape[0] * (6.0 * F + 2.0 * F**2),
        "signal": 64.0 * math.prod(signal),
    }


def evolution(model, alpha=1.0, samples=None, **options):
    averages = smi.Averages(samples)
    solve = lambda key: smi.state_evolution(model, alpha, key=key, averages=averages, **options)
    return lambda key: arrays(solve(key))


def weak_recovery(model, **options):
    return lambda key: arrays(smi.weak_recovery(model, key=key, averages=smi.Averages(**options)))


def training(model, dimension, dtype=None, **options):
    def program(key):
        data = model.sample(key, dimension=dimension, alpha=2.0, dtype=dtype)
        fit = smi.train(model, data, optax.adam(1e-2), key=key, steps=20, **options)
        return arrays(fit)

    return program


def online(model, **options):
    rule = smi.sgd.Rule(0.1, **options)
    return lambda key: arrays(smi.sgd.simulate(model, key, dimension=100, alpha=1.0, rate=rule))


def retrieval():
    return smi.links.phase_retrieval()


def two_layers():
    return smi.DeepAttention(2, 2)


def softmax():
    return smi.AttentionIndexed(2, 0.5)


def bilinear():
    return smi.Bilinear(1.0, 0.25)


def quadratic():
    return smi.Bilinear(1.0, 0.5, 0.1, symmetric=True)


def committee():
    """Four fields, integrated over nets."""
    return smi.MultiIndex(lambda z: jnp.tanh(jnp.sum(z)), indices=2, tokens=2, noise=0.1)


def tanh(noise=0.1):
    return smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]), indices=1, noise=noise)


SINGLE = {"store": False, "dtype": jnp.float32}
TWO, DEEP, LINEAR = smi.DeepAttention(2, 2), smi.DeepAttention(3, 2), smi.links.linear(0.1)
RANK_TWO, UNTIED = smi.DeepAttention(2, 2, ranks=(1, 2)), smi.DeepAttention(1, 2, tied=False)
HARDMAX = smi.AttentionIndexed(2, 0.5, "hardmax")
RISK, OTHER = smi.Erm(tanh(), ridge=0.1), smi.Mismatched(smi.links.linear(0.3))
NUCLEAR = smi.MatrixErm(0.1)
BATCHES = smi.Gradient(batch_size=10)
MOMENTUM = {"momentum": 0.5, "gradient": smi.Gradient(repeats=2, batch_size=2)}

FAST = {
    "message passing, softmax scores": lambda: message_passing(softmax(), 16, 0.5, **SINGLE),
    "state evolution, linear": lambda: evolution(LINEAR),
    "state evolution, softmax scores": lambda: evolution(softmax(), 0.2),
    "weak recovery, phase retrieval": lambda: weak_recovery(retrieval()),
    "online SGD, chain": lambda: online(retrieval()),
}

SLOW = {
    "message passing, bilinear": lambda: message_passing(bilinear(), 16, 0.5),
    "message passing, linear": lambda: message_passing(LINEAR, 40, 2.0),
    "message passing, phase retrieval": lambda: message_passing(retrieval(), 40, 2.0),
    "message passing, two layers": lambda: message_passing(TWO, 40, 1.2),
    "message passing, three layers": lambda: message_passing(DEEP, 20, 1.2),
    "message passing, rank two": lambda: message_passing(RANK_TWO, 20, 1.2),
    "message passing, untied": lambda: message_passing(UNTIED, 20, 1.2),
    "message passing, any link": lambda: message_passing(tanh(), 20, 2.0),
    "message passing, nets": lambda: message_passing(committee(), 20, 2.0),
    "message passing, regenerated": lambda: message_passing(retrieval(), 64, 2.0, **SINGLE),
    "message passing, stored scores": lambda: message_passing(softmax(), 16, 0.5),
    "message passing, hardmax scores": lambda: message_passing(HARDMAX, 16, 0.5),
    "message passing, quadratic": lambda: message_passing(quadratic(), 16, 0.5),
    "message passing, ridge": lambda: message_passing(LINEAR, 40, 2.0, smi.Erm()),
    "message passing, nuclear norm": lambda: message_passing(bilinear(), 16, 0.5, NUCLEAR),
    "state evolution, two layers": lambda: evolution(TWO),
    "state evolution, nets": lambda: evolution(committee()),
    "state evolution, bilinear": lambda: evolution(bilinear(), 0.2),
    "state evolution, mismatched": lambda: evolution(LINEAR, learner=OTHER),
    "state evolution, risk": lambda: evolution(smi.links.sign(), learner=RISK),
    "weak recovery, two layers": lambda: weak_recovery(TWO),
    "weak recovery, three layers": lambda: weak_recovery(DEEP),
    "training, phase retrieval": lambda: training(retrieval(), 20),
    "training, two layers, batches": lambda: training(TWO, 20, gradient=BATCHES),
    "training, softmax scores": lambda: training(softmax(), 16),
    "training, bilinear": lambda: training(bilinear(), 16),
    "online SGD, momentum": lambda: online(retrieval(), **MOMENTUM),
}

PROGRAMS = FAST | SLOW

# Lowering ------------------------------------------------------------------------------------


def lowered(program, platforms=ACCELERATORS, key=KEY):
    """The program for these platforms, as `jax.export` makes it: it refuses calls of the host and
    of libraries that promise nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return export.export(jax.jit(program), platforms=platforms)(key)


def sum_devices(program, monkeypatch, devices=4):
    """The program on data that are spread over so many devices."""
    mesh = AbstractMesh((devices,), ("samples",))
    monkeypatch.setattr(Dataset, "mesh", property(lambda data: mesh))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return lowered(program, key=jax.ShapeDtypeStruct((), KEY.dtype, sharding=everywhere))


def calls(text):
    """The libraries' functions that a program calls, and how often it names them."""
    return collections.Counter(re.findall(r"custom_call @(\w+)", text))


def largest(text, kind):
    """Entries of the largest array of a kind, such as f64; 0 where there is none."""
    shapes = re.findall(rf"tensor<((?:\d+x)*){kind}>", text)
    return max((math.prod(int(d) for d in s.split("x") if d) for s in shapes), default=0)


def shapes_of(tree):
    """The same tree, of shapes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


class Part(NamedTuple):
    """A function of arrays, of which only the shapes are known."""

    function: object
    shapes: object

    def lower(self):
        return jax.jit(self.function).lower(self.shapes)

    def export(self, platforms=ACCELERATORS):
        return export.export(jax.jit(self.function), platforms=platforms)(self.shapes)


class Solving(NamedTuple):
    """The first solver that a program drives, with its run: shapes of arrays, and the rest."""

    shapes: object
    rest: object

    @property
    def solver(self):
        return eqx.combine(self.shapes, self.rest)[0]

    def part(self, function):
        """A function of (solver, run) as a part of the program."""
        return Part(lambda x: arrays(function(*eqx.combine(x, self.rest))), self.shapes)


def solving(program):
    """What a program drives first; traced, not computed."""
    seen = []
    original = driver.run_solver
    for name in smi.__all__:  # loaded before they are looked through
        getattr(smi, name)

    def noted(solver, run, *arguments, **options):
        shapes, rest = eqx.partition((solver, run), eqx.is_array)
        seen.append(Solving(shapes_of(shapes), rest))
        return run

    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in [m for name, m in sys.modules.items() if name.startswith("jaxsmi.")]:
            if vars(module).get("run_solver") is original:
                module.run_solver = noted
                stack.callback(setattr, module, "run_solver", original)
        jax.eval_shape(program, KEY)
    return seen[0]


def step_of(program):
    """One step of the solver that a program drives."""
    return solving(program).part(lambda solver, run: solver.step(run.state, run.step))


@contextlib.contextmanager
def compiled_parts():
    """The programs of `eqx.filter_jit` that are run inside the block, from outside jit."""
    kind = type(eqx.filter_jit(lambda: None))
    original = kind.__call__
    parts = []

    def noted(self, *arguments, **options):
        given, rest = eqx.partition((arguments, options), eqx.is_array)
        # without options of the compiler, which JAX takes at the top alone
        plain = eqx.filter_jit(self.__wrapped__)
        if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(given)):

            def function(given):
                positional, named = eqx.combine(given, rest)
                return arrays(original(plain, *positional, **named))

            parts.append(Part(function, shapes_of(given)))
        return original(self, *arguments, **options)

    kind.__call__ = noted
    try:
        yield parts
    finally:
        kind.__call__ = original


# Counting ------------------------------------------------------------------------------------

# What is no kernel of its own
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota"}
_FREE |= {"while", "call", "conditional"}


def kernels(hlo):
    """Instructions of a compiled program in its entry and its loops, a fusion for one: each is a
    kernel or a call of a library; those of a loop are counted once. Of the CPU: a proxy."""
    count = 0
    counted = False
    for line in hlo.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            # the body of a loop returns a tuple, unlike conditions and what a reduction applies
            counted = line.startswith("ENTRY") or (") -> (" in line and "fused" not in line[:20])
        operation = re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][\w\-]*)\(", line)
        if operation and counted and operation.group(1) not in _FREE:
            count += 1
    return count


class Cost(NamedTuple):
    """StableHLO; bytes of arguments and temporary arrays, operations and kernels of the program
    compiled for this machine."""

    text: str
    arguments: int
    temporary: int
    operations: float
    kernels: int


def cost(part):
    low = part.lower()
    compiled = low.compile()
    memory = compiled.memory_analysis()
    operations = compiled.cost_analysis()["flops"]
    sizes = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    return Cost(low.as_text(), *sizes, operations, kernels(compiled.as_text()))
