r"""What a run of message passing will take, before it is started.

Memory is counted, time is that of a small part of the same work. Counted, for N samples of M·D
numbers and fields of F numbers (P·M of indices, T² of matrices), signal of s numbers:

    inputs    N·M·D numbers as stored; regenerated: six times one block
              (its bits, their normals, what is made of them)
    fields    8 N (6 F + 2 F²) bytes: g and ω of two steps, the fields, their labels; ∂g twice
    signal    8 × 8 s bytes
    program   0.4 GiB: Python, JAX, compiled code

Timed: forward and adjoint, the posteriors of the first step (later ones may need finer rules:
twelve times as much for two layers nearly recovered, benchmarks/bench_side_by_side.py), and the
input denoiser, on a block of samples, then scaled to N. Source: measurement; no article.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import Dataset, Regenerated
from jaxsmi.models.base import AbstractModel

__all__ = ["Cost", "copy_bandwidth", "gamp_cost"]

_PROGRAM = 0.4 * 2**30

_PROBE = 2**24  # numbers of inputs in the part that is timed


class Cost(NamedTuple):
    """`samples` N; `memory` in bytes and `seconds` of a step, by what they are for."""

    samples: int
    memory: dict[str, float]
    seconds: dict[str, float]


def gamp_cost(
    model: AbstractModel,
    *,
    dimension: int,
    alpha: ArrayLike,
    dtype: DTypeLike | None = None,
    store: bool = True,
    probe: bool = True,
) -> Cost:
    """Memory and time of message passing (module docstring).

    Args:
        model: The model.
        dimension: Dimension D of a token.
        alpha: Sample complexity, a number > 0.
        dtype: Precision of the inputs, as of `model.sample`. Default None.
        store: Whether the inputs are stored, as of `model.sample`. Default True.
        probe: False to leave time out. Default True.

    Returns:
        A `Cost`.

    Raises:
        ValueError: As `model.sample`.

    Example:
        >>> import jaxsmi as smi
        >>> cost = gamp_cost(smi.links.sign(), dimension=20000, alpha=1.0, probe=False)
        >>> cost.samples, cost.memory["inputs"] / 1e9  # float64
        (20000, 3.2)

    Cost:
        Seconds, most of them compilation; memory of a block.
    """

    def draw(key: PRNGKeyArray, alpha: float) -> Dataset:
        return model.sample(key, dimension=dimension, alpha=alpha, dtype=dtype, store=store)

    complexity = float(jnp.asarray(alpha))
    shapes = _shapes(model, lambda key: draw(key, complexity))
    inputs = shapes.data.inputs
    samples = shapes.data.labels.shape[0]
    each = float(np.prod(shapes.fields[1:]))
    if isinstance(inputs, Regenerated):
        width = max(jnp.dtype(inputs.dtype).itemsize, 4)
        stored = 6.0 * inputs.each * np.prod(inputs.form) * width
    else:
        stored = float(np.prod(inputs.shape)) * jnp.dtype(inputs.dtype).itemsize
    memory = {
        "inputs": stored,
        "fields": 8.0 * samples * (6.0 * each + 2.0 * each**2),
        "signal": 64.0 * float(np.prod(shapes.signal)),
        "program": _PROGRAM,
    }
    if not probe:
        return Cost(samples, memory, {})
    part = min(samples, max(64, _PROBE // int(np.prod(inputs.shape[1:]))))
    seconds = _timed(model, draw(jax.random.key(0), complexity * part / samples), samples)
    return Cost(samples, memory, seconds)


class _Shapes(NamedTuple):
    """A data set as it would be, and the shapes of signal and fields."""

    data: Dataset
    signal: tuple[int, ...]
    fields: tuple[int, ...]


def _shapes(model: AbstractModel, draw: Callable[[PRNGKeyArray], Dataset]) -> _Shapes:
    """Shapes of what `draw` would draw; nothing is drawn."""
    shapes: list[tuple[int, ...]] = []

    def traced(key: PRNGKeyArray) -> Dataset:
        data = draw(key)
        shapes.extend(model.design.shapes(data.inputs.shape))
        return data

    return _Shapes(jax.eval_shape(traced, jax.random.key(0)), *shapes)


def _timed(model: AbstractModel, data: Dataset, samples: int) -> dict[str, float]:
    """Seconds of a step over so many samples, by a step over a part of them."""
    signal, fields = model.design.shapes(data.inputs.shape)
    sensing = model.design.operator(data.inputs)
    key = jax.random.key(0)
    weights, V = model.prior.start(key, signal, jnp.asarray(1e-3, theory_dtype()))
    statistic = model.channel.statistic(data.labels)
    omega = jnp.zeros(fields, theory_dtype()) + 1e-3
    A = jnp.eye(signal[0], dtype=theory_dtype())
    through = lambda weights: sensing.adjoint(sensing.forward(weights))  # pyright: ignore
    respond = lambda omega: model.channel.respond(statistic, omega, V, key).g
    posterior = lambda weights: model.prior.posterior(weights, A)
    return {
        "inputs": _seconds(through, weights) * samples / data.samples,
        "posteriors": _seconds(respond, omega) * samples / data.samples,
        "signal": _seconds(posterior, weights),
    }


def _seconds(function: Callable[[Array], object], argument: Array) -> float:
    """Seconds of a call, after compilation."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(argument))
    begin = time.perf_counter()
    jax.block_until_ready(compiled(argument))
    return time.perf_counter() - begin


def copy_bandwidth(size: int = 2**28) -> float:
    """Bytes a second that this device reads and writes when it goes over `size` bytes.

    The best of five times, in place, since memory that was just handed out costs more to write the
    first time than to copy.
    """
    x = jnp.ones(size // 4, jnp.float32)
    pass_over = jax.jit(lambda x: x + 1.0, donate_argnums=0)
    x = jax.block_until_ready(pass_over(x))
    best = np.inf
    for _ in range(5):
        begin = time.perf_counter()
        x = jax.block_until_ready(pass_over(x))
        best = min(best, time.perf_counter() - begin)
    return 2.0 * size / best
