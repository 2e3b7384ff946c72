"""The tables of docs/accelerators.md: sizes, memory and operations of the programs of
tests/programs.py.

    python benchmarks/accelerators.py
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxsmi as smi

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import programs
from programs import SINGLE, TWO, message_passing, step_of


def parts():
    """What is compiled and counted, by its name."""
    retrieval = programs.retrieval()
    risk = smi.Erm(programs.tanh(), ridge=0.1)
    steps = {
        "GAMP, phase retrieval, float32, N = D = 1000": message_passing(
            retrieval, 1000, 1.0, dtype=jnp.float32
        ),
        "GAMP, phase retrieval, regenerated": message_passing(retrieval, 1000, 1.0, **SINGLE),
        "GAMP, two layers, N = D = 500": message_passing(TWO, 500, 1.0),
        "GAMP, softmax scores, d = 100, N = d²": message_passing(programs.softmax(), 100, 1.0),
        "GAMP, bilinear, d = L = 50, N = dL/2": message_passing(programs.bilinear(), 50, 0.5),
        "GAMP, quadratic, d = 50, N = d²/2": message_passing(programs.quadratic(), 50, 0.5),
        "state evolution, phase retrieval, 2^13 samples": programs.evolution(
            retrieval, samples=2**13
        ),
        "state evolution, two layers, 2^13 samples": programs.evolution(TWO, samples=2**13),
        "state evolution, minimiser of a risk": programs.evolution(smi.links.sign(), learner=risk),
        "training, two layers, D = 500, N = 1000": programs.training(TWO, 500),
        "online SGD, chain, a block": programs.online(retrieval),
    }
    yield from ((name, step_of(program)) for name, program in steps.items())
    for name, model in (("phase retrieval", retrieval), ("two layers", TWO)):
        call = programs.weak_recovery(model)
        yield f"weak recovery, {name}, 2^16 samples", programs.Part(call, programs.KEY)


def main():
    columns = "arguments (bytes) | temporary (bytes) | operations | kernels | lines"
    print(f"| program | {columns} | lowering (s) | compiling (s) |\n|---|{'---:|' * 7}")
    for name, part in parts():
        begin = time.process_time()
        part.lower()
        lowering = time.process_time() - begin
        c = programs.cost(part)
        compiling = time.process_time() - begin - 2 * lowering
        lines = c.text.count("\n")
        shown = f"{c.arguments} | {c.temporary} | {c.operations:.2g} | {c.kernels} | {lines}"
        print(f"| {name} | {shown} | {lowering:.1f} | {compiling:.1f} |", flush=True)
    print("\n| program | lines for one device | libraries called |\n|---|---:|---|")
    for name, build in programs.PROGRAMS.items():
        text = programs.lowered(build(), ("cuda",)).mlir_module()
        called = ", ".join(sorted(programs.calls(text))) or "none"
        lines = text.count("\n")
        print(f"| {name} | {lines} | {called} |", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
