"""Runs of online SGD, by the exact chain of the overlaps or of whole weight vectors."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import POSITIVE, UNIT_INTERVAL, Arguments, Interval, check
from jaxsmi.core.codes import Result
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.sgd import chain, vectors
from jaxsmi.sgd.population import overlap_norm, overlaps
from jaxsmi.sgd.runs import Setting, Simulation

_RECORDS = 100
_UNTIL = Interval("a number in (0, 1], or None", low=0.0, high=1.0, open_low=True)
_METHODS = {"reduced": chain.run, "full": vectors.run}


def simulate(
    model: SequenceSingleIndex,
    key: PRNGKeyArray,
    *,
    dimension: int,
    gamma: ArrayLike,
    steps: int,
    m: ArrayLike | None = None,
    e: ArrayLike = 0.0,
    eta: ArrayLike | None = None,
    until: ArrayLike | None = None,
    every: int | None = None,
    method: str = "reduced",
    progress: bool = False,
) -> Simulation:
    r"""Online spherical SGD of the student, one fresh sample a step.

        w ← √d (w - γ ∇ℓ)/‖w - γ ∇ℓ‖,   t = γ τ/d

    Args:
        model: A `SequenceSingleIndex`.
        key: A random key, or keys (runs,) for several runs at once: the answer of each depends on
            its own key alone.
        dimension: The dimension d, an integer >= K + 3.
        gamma: Learning rate γ, a number > 0 (c γ is what matters).
        steps: The most steps of a run, an integer >= 1.
        m: Semantic overlap at the start, as for `risk`. Default: weights uniform on the sphere.
        e: Positional overlaps at the start, with `m` only. Default 0.
        eta: The level of the first passage `reached`, a number in (0, 1) above the start. Default
            1/2.
        until: A run stops at ‖(m, e)‖ >= until, a number in (0, 1]. Default: after `steps`.
        every: Steps between two records, an integer >= 1. Default: a hundred records.
        method: "reduced", the overlaps alone, exact at any d, or "full", whole weight vectors
            (`reached` and `until` then to the resolution of the records). Default "reduced".
        progress: Whether to show a bar. Default False.

    Returns:
        A `Simulation`.

    Raises:
        ValueError: For a number out of range, an `eta` that is not above the start, an unknown
            method, or a start outside m² + ‖e‖² <= 1.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, keys = smi.sgd.semantic_positional(0.3), jax.random.split(jax.random.key(0), 8)
        >>> runs = smi.sgd.simulate(model, keys, dimension=100, gamma=1.0, steps=20_000, until=0.9)
        >>> bool(runs.semantic.all())
        True

    Cost:
        0.3 to 0.5 µs a step of a reduced run, many at once; L d random numbers a step of a full
        one.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (5), (33) to (35)].
    """
    arguments = Arguments()
    arguments.instance("model", model, SequenceSingleIndex, "a SequenceSingleIndex")
    keys = _keys(arguments.key("key", key, many=True))
    steps = arguments.count("steps", steps)
    start = None
    if m is not None:
        start = overlaps(model, m, e)
    else:
        check(not np.any(np.asarray(e)), "e", e, "nothing without m")
    setting = Setting(
        model=model,
        gamma=arguments.number("gamma", gamma, POSITIVE),
        eta=_level(arguments, model, start, eta),
        stop=_stop(arguments, until),
        start=start,
        dimension=arguments.count("dimension", dimension, model.encoding.shape[1] + 3),
        steps=steps,
        every=max(-(-steps // _RECORDS), 1) if every is None else arguments.count("every", every),
    )
    run = _METHODS[arguments.choice("method", method, tuple(_METHODS))]
    runs = run(setting, keys, arguments.flag("progress", progress))
    result = jnp.where(arguments.valid, runs.result, int(Result.INVALID))
    path = jnp.where(arguments.valid, runs.overlaps, jnp.nan)
    end = jnp.where(arguments.valid, runs.end, jnp.nan)
    return eqx.tree_at(lambda r: (r.result, r.overlaps, r.end), runs, (result, path, end))


def _keys(key: PRNGKeyArray) -> PRNGKeyArray:
    """Typed keys (runs,), from one key or several, of the old kind or the new."""
    if jnp.issubdtype(key.dtype, jnp.uint32):
        key = jax.random.wrap_key_data(key)
    return jnp.reshape(key, (1,)) if key.ndim == 0 else key


def _stop(arguments: Arguments, until: ArrayLike | None) -> Array:
    """The level at which a run stops, inf where nothing was asked."""
    if until is None:
        return jnp.asarray(np.inf, theory_dtype())
    return arguments.number("until", until, _UNTIL)


def _level(
    arguments: Arguments, model: SequenceSingleIndex, start: Array | None, eta: ArrayLike | None
) -> Array:
    """The level of the first passage: 1/2, or one above the start."""
    if eta is None:
        return jnp.asarray(0.5, theory_dtype())
    level = arguments.number("eta", eta, UNIT_INTERVAL)
    if start is not None:
        size = overlap_norm(model, start)
        shown = f", {float(size):.3g}" if concrete(size) else ""
        arguments.condition(size < level, "eta", eta, f"a number above the start{shown}")
    return level
