"""Cold starts: processor seconds from the start of a process to its answer.

    python benchmarks/cold.py                       # the table
    python benchmarks/cold.py --json FILE           # and its numbers
    python benchmarks/cold.py --cases import gamp   # some of them
    python benchmarks/cold.py --cache FOLDER        # with compiled programs kept there
    PYTHONPATH=TREE python benchmarks/cold.py       # of another tree

Each case is a process of its own, for which nothing was compiled before. Columns: `cold`, user and
system time of the whole process; `warm`, of the same call once more; of the cold call, what JAX
traced, lowered to MLIR and compiled (seconds), and into how many programs; `answer`, to see that
two trees agree.
Processor time of all threads: other jobs disturb it little, and compiling on many cores hides
nothing. Python's modules are compiled to bytecode before, as they are after an installation. On one
core (`taskset -c 0`) it is what a user waits for.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import equinox as eqx

KEPT = ("cold", "warm", "traced", "lowered", "compiled", "programs", "answer")


def denoiser():
    """4096 posteriors of two layers at nothing learned, compiled as the library does."""
    return _posteriors(depth=2, count=4096)


def three_layers():
    """128 posteriors of three layers at nothing learned."""
    return _posteriors(depth=3, count=128)


def _posteriors(depth: int, count: int):
    """Posteriors of so many labels of attention layers, of which nothing is learned."""
    import jax
    import jax.numpy as jnp

    import jaxsmi as smi

    model = smi.DeepAttention(depth, 2, skip=1.0)
    fields = jax.random.normal(jax.random.key(0), (count, depth, 2))
    omega, V = jnp.zeros_like(fields), jnp.eye(depth)

    @eqx.filter_jit
    def respond(channel, fields, omega, V):
        statistic = jax.vmap(lambda z: channel.observe(z, jnp.zeros(0)))(fields)
        return channel.respond(statistic, omega, V).g.std()

    return lambda: respond(model.channel, fields, omega, V)


def two_layers():
    """State evolution of two layers at one alpha."""
    import jax

    import jaxsmi as smi

    model = smi.DeepAttention(2, 2, skip=1.0)
    return lambda: smi.state_evolution(model, 0.5, key=jax.random.key(0)).overlap[1, 1]


def one_layer():
    """State evolution of one layer at one alpha."""
    import jax

    import jaxsmi as smi

    model = smi.DeepAttention(1, 2)
    return lambda: smi.state_evolution(model, 0.5, key=jax.random.key(0)).overlap[0, 0]


def phase_retrieval():
    """State evolution of phase retrieval at one alpha."""
    import jax

    import jaxsmi as smi

    model = smi.links.phase_retrieval()
    return lambda: smi.state_evolution(model, 0.8, key=jax.random.key(0)).overlap[0, 0]


def weak_recovery():
    """The weak-recovery threshold of two layers."""
    import jax

    import jaxsmi as smi

    model = smi.DeepAttention(2, 2, skip=1.0)
    return lambda: smi.weak_recovery(model, key=jax.random.key(0)).alpha


def gamp():
    """Message passing of two layers, D = 1000, alpha = 1.2."""
    import jax

    import jaxsmi as smi

    model = smi.DeepAttention(2, 2, skip=1.0)

    def run():
        data = model.sample(jax.random.key(1), dimension=1000, alpha=1.2)
        return smi.gamp(model, data, key=jax.random.key(0)).overlap[1, 1]

    return run


def package():
    """`import jaxsmi` alone."""
    import jaxsmi

    del jaxsmi
    return None


CASES: dict[str, Callable] = {
    "import": package,
    "denoiser": denoiser,
    "three-layers": three_layers,
    "one-layer": one_layer,
    "phase-retrieval": phase_retrieval,
    "two-layers": two_layers,
    "weak-recovery": weak_recovery,
    "gamp": gamp,
}


def measure(case: str) -> dict[str, float]:
    """What one case costs: run in a process that has done nothing else."""
    if case == "import":
        package()
        return {"cold": time.process_time()}
    import jax

    jax.config.update("jax_enable_x64", True)
    spent = {"traced": 0.0, "lowered": 0.0, "compiled": 0.0, "programs": 0}
    events = {
        "/jax/core/compile/jaxpr_trace_duration": "traced",
        "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowered",
        "/jax/core/compile/backend_compile_duration": "compiled",
    }

    def heard(event: str, seconds: float, **_: object) -> None:
        name = events.get(event)
        if name is not None:
            spent[name] += seconds
            spent["programs"] += name == "compiled"

    jax.monitoring.register_event_duration_secs_listener(heard)
    from jaxsmi.core.options import setup

    setup(cache=os.environ.get("JAXSMI_CACHE"))
    run = CASES[case]()
    answer = float(run())
    cold = time.process_time()
    of_cold = dict(spent)
    float(run())
    return {"cold": cold, "warm": time.process_time() - cold, **of_cold, "answer": answer}


def fresh(case: str, cache: str | None, bytecode: str) -> dict[str, float]:
    """`measure` in a fresh process, with the bytecode of Python's modules in a folder."""
    ours = ("JAX_COMPILATION_CACHE_DIR", "JAXSMI_CACHE", "PYTHONDONTWRITEBYTECODE")
    environment = {name: x for name, x in os.environ.items() if name not in ours}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    if cache is not None:
        environment["JAXSMI_CACHE"] = cache
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", case]
    with tempfile.TemporaryFile() as out:
        done = subprocess.run(command, env=environment, stdout=out, check=True)
        del done
        out.seek(0)
        return json.loads(out.read())


def main() -> None:
    """Every case, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--cache", help="folder of compiled programs")
    parser.add_argument("--json", type=Path, help="file of the numbers")
    parser.add_argument("--measure", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as bytecode:
        fresh("phase-retrieval", None, bytecode)  # as after an installation: modules are compiled
        table(arguments, bytecode)


def table(arguments: argparse.Namespace, bytecode: str) -> None:
    """The table of the cases that were asked for."""
    rows = {}
    print(f"{'case':16}" + "".join(f"{name:>10}" for name in KEPT), flush=True)
    for case in arguments.cases:
        rows[case] = fresh(case, arguments.cache, bytecode)
        cells = (f"{rows[case].get(name, float('nan')):10.4g}" for name in KEPT)
        print(f"{case:16}" + "".join(cells), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
