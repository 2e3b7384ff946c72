r"""What a run of message passing will take, before it is started: memory by counting, time by a small part of the same work.

Counted, for N samples of M·D numbers and fields of F numbers (P·M of indices, T² of matrices), signal of s numbers:

    inputs    N·M·D numbers as stored; regenerated: six times one block (its bits, their normals, what is made of them)
    fields    8 N (6 F + 2 F²) bytes: g and ω of two steps, the fields, their labels; ∂g twice
    signal    8 × 8 s bytes
    program   0.6 GiB: Python, JAX, compiled code

Timed: forward and adjoint, the posteriors of the first step (later ones may need finer rules: twelve times as much for two layers
nearly recovered, benchmarks/bench_side_by_side.py), and the input denoiser, on a block of samples, then scaled to N.
Source: architecture of this library.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import Dataset, Regenerated

_PROGRAM = 0.6 * 2**30


_PROBE = 2**24  # numbers of inputs in the part that is timed


class Cost(NamedTuple):
    """`samples` N; `memory` in bytes and `seconds` of a step, by what they are for."""

    samples: int
    memory: dict[str, float]
    seconds: dict[str, float]


def _shapes(
    model: Any, dimension: int, alpha: Any, dtype: Any, store: bool
) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """The data set as it would be, and the shapes of signal and fields; nothing is drawn."""
    found: list[Any] = []

    def draw(key: Any) -> Any:
        data = model.sample(key, dimension=dimension, alpha=alpha, dtype=dtype, store=store)
        found.extend(model.shapes(data))
        return data

    return (jax.eval_shape(draw, jax.random.key(0)), *found)


def gamp_cost(
    model: Any,
    *,
    dimension: int,
    alpha: Any,
    dtype: Any = None,
    store: bool = True,
    probe: bool = True,
) -> Cost:
    """Memory and time of message passing (module docstring).

    Arguments: `model`, `dimension`, `alpha`, `dtype`, `store` as of `model.sample`; `probe`: False to leave time out.
    Returns: a `Cost`. Raises: ValueError as `model.sample`. Cost: seconds, most of them compilation; memory of a block.
    Example:
    >>> import jaxsmi as smi
    >>> cost = gamp_cost(smi.links.sign(), dimension=20000, alpha=1.0, probe=False)
    >>> cost.samples, cost.memory["inputs"] / 1e9  # float64
    (20000, 3.2)
    """
    data, signal, fields = _shapes(model, dimension, alpha, dtype, store)
    inputs, N = data.inputs, data.labels.shape[0]
    each = float(np.prod(fields[1:]))
    if isinstance(inputs, Regenerated):
        held = 6.0 * inputs.each * np.prod(inputs.form) * max(jnp.dtype(inputs.dtype).itemsize, 4)
    else:
        held = float(np.prod(inputs.shape)) * jnp.dtype(inputs.dtype).itemsize
    memory = {
        "inputs": held,
        "fields": 8.0 * N * (6.0 * each + 2.0 * each**2),
        "signal": 64.0 * float(np.prod(signal)),
    }
    seconds = _timed(model, dimension, alpha, dtype, store, N, inputs) if probe else {}
    return Cost(N, memory | {"program": _PROGRAM}, seconds)


def _timed(
    model: Any, dimension: int, alpha: Any, dtype: Any, store: bool, N: int, inputs: Any
) -> dict[str, float]:
    part = min(N, max(64, _PROBE // int(np.prod(inputs.shape[1:]))))
    key = jax.random.key(0)
    data: Dataset = model.sample(
        key, dimension=dimension, alpha=alpha * part / N, dtype=dtype, store=store
    )
    signal, fields = model.shapes(data)
    sensing, n, P = model.sensing(data), data.samples, signal[0]
    weights, V = model.prior.start(key, signal, jnp.asarray(1e-3, theory_dtype()))
    statistic = model.channel.statistic(data.labels)
    omega = jnp.zeros(fields, theory_dtype()) + 1e-3

    def through(weights: Any) -> Any:
        return sensing.adjoint(sensing.forward(weights))

    respond = lambda omega: model.channel.respond(statistic, omega, V, key).g
    posterior = lambda weights: model.prior.posterior(weights, jnp.eye(P, dtype=theory_dtype()))
    return {
        "inputs": _seconds(through, weights) * N / n,
        "posteriors": _seconds(respond, omega) * N / n,
        "signal": _seconds(posterior, weights),
    }


def _seconds(function: Callable[[Any], Any], argument: Any) -> float:
    """Of a call, after compilation."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(argument))
    begin = time.perf_counter()
    jax.block_until_ready(compiled(argument))
    return time.perf_counter() - begin


def copy_bandwidth(size: int = 2**28) -> float:
    """Bytes a second that this device reads and writes when it goes over `size` bytes: the best of five times, in place, since
    memory that was just handed out costs more to write the first time than to copy."""
    x = jnp.ones(size // 4, jnp.float32)
    pass_over = jax.jit(lambda x: x + 1.0, donate_argnums=0)
    x = jax.block_until_ready(pass_over(x))
    best = np.inf
    for _ in range(5):
        begin = time.perf_counter()
        x = jax.block_until_ready(pass_over(x))
        best = min(best, time.perf_counter() - begin)
    return 2.0 * size / best
