"""TODO descent.loop."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.codes import Result


class TrainState(eqx.Module):
    """What continues a run: parameters (the weights), the optimiser's memory, the number of steps taken, the words of its key
    (plain numbers, so that `eqx.tree_serialise_leaves` can write all of it)."""

    weights: Any
    optimizer: Any
    step: Array
    key: Array


# The loop ------------------------------------------------------------------------------------------------------------------


class Epochs(eqx.Module):
    """Which samples make the batch of a step: an order of all samples, renewed at the start of each epoch."""

    samples: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    shuffled: bool = eqx.field(static=True)

    @property
    def batches(self) -> int:
        """Batches an epoch."""
        return -(-self.samples // self.size)

    def order(self, key: Array, step: Array) -> Array:
        """The order of the samples in the epoch of a step."""
        key = jax.random.fold_in(key, step // self.batches)
        return jax.random.permutation(key, self.samples).astype(jnp.int32)

    def start(self, key: Array, step: Array) -> Array:
        """What the loop carries along: nothing where all samples are used at once, or each once."""
        return self.order(key, step) if self.shuffled else jnp.zeros((0,), jnp.int32)

    def next(self, key: Array, order: Array, step: Array) -> tuple[Array, Array, Array]:
        """The order, and the samples of this step with their weights (0 past the end of the epoch)."""
        if self.shuffled:
            order = lax.cond(step % self.batches == 0, lambda: self.order(key, step), lambda: order)
        place = (step % self.batches) * self.size + jnp.arange(self.size)
        inside = place < self.samples
        place = jnp.where(inside, place, 0)
        return order, order[place] if self.shuffled else place, inside


class Descent(eqx.Module):
    """A problem of descent: subclasses say the loss, the batches and what is recorded. `patience` and `target` stop early."""

    patience: eqx.AbstractVar[int | None]
    target: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def objective(self, weights: Any, batch: Any) -> Array:
        """The loss of a batch."""

    @abc.abstractmethod
    def start(self, key: Array, step: Array) -> Array:
        """What `batch` carries from step to step."""

    @abc.abstractmethod
    def batch(self, key: Array, carried: Array, step: Array) -> tuple[Array, Any]:
        """(carried, batch) of a step."""

    @abc.abstractmethod
    def observe(self, weights: Any) -> dict[str, Any]:
        """What is recorded: with "watched", the number `patience` watches, and "cosine" where there is a `target`."""


class Progress(eqx.Module):
    """Where a descent is: its state, its history (leading axis of records, NaN where not yet reached), its result (-1: going
    on), the last relative update, and what early stopping remembers. In the loop all have a leading axis of runs."""

    state: TrainState
    history: dict[str, Any]
    result: Array
    change: Array
    best: Array
    stale: Array
    carried: Array


def _begin(problem: Descent, state: TrainState, slots: int) -> Progress:
    """Before anything is recorded: room for the start and `slots` more records."""
    dtype, runs = theory_dtype(), state.step.shape[0]
    seen = jax.eval_shape(problem.observe, jax.tree.map(lambda x: x[0], state.weights))
    shapes = {
        "step": jax.ShapeDtypeStruct((), dtype),
        "train_loss": jax.ShapeDtypeStruct((), dtype),
    }
    shapes |= {name: shape for name, shape in seen.items() if name != "watched"}
    history = jax.tree.map(
        lambda x: jnp.full((runs, slots + 1, *x.shape), jnp.nan, x.dtype), shapes
    )
    keys = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    carried = jax.vmap(problem.start)(keys, state.step)
    full = lambda value, kind: jnp.full((runs,), value, kind)
    return Progress(
        state,
        history,
        full(-1, int),
        full(jnp.nan, dtype),
        full(jnp.inf, dtype),
        full(0, int),
        carried,
    )


@eqx.filter_jit
def _advance(
    problem: Descent,
    optimizer: Any,
    at: Progress,
    origin: Array,
    last: Array,
    every: Array,
    slots: Array,
    repeats: int,
) -> Progress:
    """Records slots[0] + 1 to slots[1] of runs from step `origin` to step `last`, a record `every` steps; from -1: the start too.

    The loops count for all runs together and only what is inside them is vmapped: a condition that differed between runs would
    make XLA compute both of its branches, on a copy of the data for each run.
    """
    dtype = theory_dtype()
    stopping = problem.patience is not None or problem.target is not None
    update = optax.with_extra_args_support(optimizer).update

    def one(i: Array, c: Any) -> Any:
        def each(weights: Any, memory: Any, key: Array, carried: Array, total: Array) -> Any:
            carried, sample = problem.batch(
                jax.random.wrap_key_data(key, impl="threefry2x32"), carried, i
            )
            size = jnp.zeros((), dtype)
            for repeat in range(repeats):
                value, gradient = jax.value_and_grad(problem.objective)(weights, sample)
                # line searches and learning rates that look at the loss ask for more than the gradient
                change, new = update(
                    gradient,
                    memory,
                    weights,
                    value=value,
                    grad=gradient,
                    value_fn=lambda w: problem.objective(w, sample),
                )
                memory = jax.tree.map(
                    lambda x, y: jnp.asarray(x, jnp.asarray(y).dtype), new, memory
                )  # rates may promote
                size = optax.tree.norm(change) / jnp.maximum(optax.tree.norm(weights), 1e-30)
                weights = optax.apply_updates(weights, change)
                total = total + (value.astype(dtype) if repeat == 0 else 0.0)
            return weights, memory, key, carried, total, size.astype(dtype)

        return jax.vmap(each)(*c[:-1])

    def recorded(
        n: Array, end: Array, mean: Array, at: Progress, weights: Any, rest: Any
    ) -> Progress:
        memory, key, carried, size = rest
        seen = {"step": end.astype(dtype), "train_loss": mean, **problem.observe(weights)}
        watched = seen.pop("watched")
        better = watched < at.best * (1.0 - 1e-4)
        stale = jnp.where(better, 0, at.stale + 1)
        result = at.result
        if problem.patience is not None:
            result = jnp.where(stale >= problem.patience, Result.SUCCESS, result)
        if problem.target is not None:
            result = jnp.where(jnp.all(seen["cosine"] >= problem.target), Result.SUCCESS, result)
        finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(weights)]))
        result = jnp.where(finite, result, Result.NONFINITE).astype(at.result.dtype)
        history = jax.tree.map(lambda h, x: h.at[n + 1].set(x), at.history, seen)
        state = TrainState(weights, memory, jnp.asarray(end, at.state.step.dtype), key)
        new = Progress(
            state, history, result, size, jnp.where(better, watched, at.best), stale, carried
        )
        return (
            jax.tree.map(lambda x, y: jnp.where(at.result < 0, x, y), new, at) if stopping else new
        )

    def chunk(n: Array, at: Progress) -> Progress:
        first, end = origin + jnp.maximum(n, 0) * every, jnp.minimum(origin + (n + 1) * every, last)
        zero = jnp.zeros(at.result.shape, dtype)
        inner = (at.state.weights, at.state.optimizer, at.state.key, at.carried, zero, zero)
        weights, *rest, total, size = lax.fori_loop(first, end, one, inner)
        mean, rest = total / (end - first), (*rest, size)
        return jax.vmap(lambda m, a, w, r: recorded(n, end, m, a, w, r))(mean, at, weights, rest)

    def guarded(n: Array, at: Progress) -> Progress:
        return (
            lax.cond(jnp.any(at.result < 0), lambda: chunk(n, at), lambda: at)
            if stopping
            else chunk(n, at)
        )

    return lax.fori_loop(slots[0], slots[1], guarded, at)


def descend(
    problem: Descent,
    optimizer: Any,
    state: TrainState,
    *,
    steps: int,
    every: int,
    repeats: int = 1,
    label: str | None = None,
) -> Progress:
    """`steps` steps with a record `every` so many; a progress bar named `label`, if there is one. A state whose arrays have a
    leading axis of runs is a batch of runs, all at the same step."""
    slots, batch = -(-steps // every), state.step.ndim == 1
    origin, every_ = jnp.ravel(state.step)[0], jnp.asarray(every)
    at = _begin(problem, state if batch else jax.tree.map(lambda x: x[None], state), slots)
    per = slots if label is None else max(slots // 50, 1)
    with tqdm(total=steps, desc=label, disable=label is None, leave=False) as bar:
        for n in range(0, slots, per):
            part = jnp.asarray([n if n else -1, min(n + per, slots)])
            at = _advance(problem, optimizer, at, origin, origin + steps, every_, part, repeats)
            if label is not None:
                bar.update(min((n + per) * every, steps) - bar.n)
                bar.set_postfix(
                    loss=f"{float(jnp.nanmean(at.history['train_loss'][:, min(n + per, slots)])):.3g}"
                )
                if bool(jnp.all(at.result >= 0)):
                    break
    unmet = (
        Result.SUCCESS if problem.patience is None and problem.target is None else Result.MAX_STEPS
    )
    at = eqx.tree_at(lambda p: p.result, at, jnp.where(at.result < 0, unmet, at.result))
    return at if batch else jax.tree.map(lambda x: x[0], at)
