"""Whole public calls on the device that JAX finds: seconds of a first and of a second call, and the
answer, to see that two devices agree.

    python benchmarks/calls.py                        # a table in Markdown
    JAX_PLATFORMS=cpu python benchmarks/calls.py      # of the processor, to compare
    python benchmarks/calls.py denoiser staircase     # some of them

Large problems, where a device has something to do; `cold.py` times small ones on one core.
"""

import sys
import time

import jax
import jax.numpy as jnp
import optax

import jaxsmi as smi

smi.setup()
KEY = jax.random.key(0)
PHASE, TWO = smi.links.phase_retrieval(), smi.DeepAttention(2, 2)
SCORES, RECTANGLE = smi.AttentionIndexed(2, 0.5), smi.Bilinear(1.0, 0.25)


def steps_of(model, dimension, alpha, steps, **drawing):
    """Steps of message passing, and the overlap of the first index."""
    data = model.sample(KEY, dimension=dimension, alpha=alpha, **drawing)
    jax.block_until_ready(data.labels)
    settings = {"key": KEY, "iteration": smi.Iteration(steps, tolerance=1e-12)}
    return lambda: smi.gamp(model, data, start=0.1, **settings).overlap[0, 0]


def trained():
    """Adam on the whole data set of two layers."""
    data = TWO.sample(KEY, dimension=1000, alpha=4.0, dtype=jnp.float32)
    return lambda: smi.train(TWO, data, optax.adam(0.05), key=KEY, steps=200).overlap[1, 1]


def denoiser():
    """2^16 posteriors of two layers at nothing learned."""
    keys = jax.random.split(KEY, 2**16)
    labels = jax.vmap(lambda k: TWO.link(jax.random.normal(k, (2, 2))))(keys)
    zero, V = jnp.zeros((2, 2)), jnp.eye(2)
    every = jax.jit(jax.vmap(lambda y: TWO.channel.posterior(y, zero, V).g))
    return lambda: jnp.mean(every(labels) ** 2)


def chain():
    """256 runs of online SGD of phase retrieval in high dimension, up to α = 4."""
    keys = jax.random.split(KEY, 256)
    settings = {"dimension": 10000, "rate": 0.05, "alpha": 4.0, "start": 0.3}
    return lambda: smi.sgd.simulate(PHASE, keys, **settings).teacher_overlap[..., -1].mean()


def evolved():
    return lambda: smi.state_evolution(TWO, 0.5, key=KEY).overlap[1, 1]


def stairs():
    return lambda: smi.staircase(TWO, key=KEY)[1].alpha


FLOAT32 = {"dtype": jnp.float32}
CALLS = {
    "GAMP, phase retrieval, N = D = 16000, float32, 20 steps": lambda: steps_of(
        PHASE, 16000, 1.0, 20, **FLOAT32
    ),
    "GAMP, two layers, N = D = 4000, float32, 20 steps": lambda: steps_of(
        TWO, 4000, 1.0, 20, **FLOAT32
    ),
    "GAMP, softmax scores, d = 200, N = 0.15 d², 20 steps": lambda: steps_of(SCORES, 200, 0.15, 20),
    "GAMP, bilinear, d = L = 160, N = 0.6 dL, 20 steps": lambda: steps_of(RECTANGLE, 160, 0.6, 20),
    "state evolution, two layers": evolved,
    "weak recovery, two layers": lambda: lambda: smi.weak_recovery(TWO, key=KEY).alpha,
    "staircase, two layers": stairs,
    "denoiser, two layers, 2^16 labels": denoiser,
    "Adam, two layers, D = 1000, N = 4000, 200 updates": trained,
    "online SGD, 256 runs of the chain, D = 10000": chain,
}


def main(names):
    print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}\n")
    print("| call | first (s) | second (s) | answer |\n|---|---:|---:|---:|")
    for name, prepare in CALLS.items():
        if names and not any(word in name for word in names):
            continue
        call, seconds = prepare(), []
        for _ in range(2):
            begin = time.perf_counter()
            answer = jax.block_until_ready(call())
            seconds.append(time.perf_counter() - begin)
        shown = " | ".join(f"{s:.3g}" for s in seconds)
        print(f"| {name} | {shown} | {float(answer):.9g} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
