r"""Gradient descent as a solver of the common driver: many runs at once, a record every so many
steps.

    weights ← weights + optimiser(∇objective(weights; batch)),   `repeats` times on each batch

One step of the driver takes all runs from one record to the next. The loop counts for all runs, and
only its body is vmapped: under a condition that differed between runs XLA would compute both
branches, on a copy of the data for each run. The order of the samples depends on the key and the
step alone, so that 1000 steps continued for 1000 are one run of 2000.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.codes import RUNNING, Result
from jaxsmi.core.driver import AbstractSolver, init_run, run_solver

__all__ = ["AbstractObjective", "DescentEnd", "Epochs", "TrainState", "descend"]

# Weights are O(1) at the start, as the teacher's are, and so are those of a student that has
# learned it: a norm a hundred times as large is an overshoot.
_DIVERGED = 100.0
_BETTER = 1e-4  # relative fall of the error that `patience` counts: above rounding of float32


class TrainState(eqx.Module):
    """State of a run: weights, the optimiser's memory, steps taken, and the words of its key.

    The key is plain numbers, so that `eqx.tree_serialise_leaves` writes all of the state.
    """

    weights: PyTree
    optimizer: PyTree
    step: Array
    key: Array


def _key(words: Array) -> PRNGKeyArray:
    return jax.random.wrap_key_data(words, impl="threefry2x32")


class Epochs(eqx.Module):
    """Batches of a data set: an order of all samples, renewed at the start of each epoch; the last
    batch of an epoch may be smaller."""

    samples: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    shuffled: bool = eqx.field(static=True)

    @property
    def batches(self) -> int:
        """Batches per epoch."""
        return -(-self.samples // self.size)

    def order(self, key: PRNGKeyArray, step: Array) -> Array:
        """The order of the samples in the epoch of a step; empty where they are not shuffled."""
        if not self.shuffled:
            return jnp.zeros((0,), jnp.int32)
        key = jax.random.fold_in(key, step // self.batches)
        return jax.random.permutation(key, self.samples).astype(jnp.int32)

    def next(self, key: PRNGKeyArray, order: Array, step: Array) -> tuple[Array, Array, Array]:
        """The order, the samples of this step, and which of them count (not past the epoch's
        end)."""
        if self.shuffled:
            order = lax.cond(step % self.batches == 0, lambda: self.order(key, step), lambda: order)
        place = (step % self.batches) * self.size + jnp.arange(self.size)
        inside = place < self.samples
        place = jnp.where(inside, place, 0)
        return order, order[place] if self.shuffled else place, inside


class AbstractObjective(eqx.Module):
    """A loss over batches, and the quantities recorded of the weights."""

    @abc.abstractmethod
    def objective(self, weights: PyTree, batch: PyTree) -> Array:
        """The loss of a batch."""

    @abc.abstractmethod
    def batch(self, key: PRNGKeyArray, order: Array, step: Array) -> tuple[Array, PyTree]:
        """The order of the samples and the batch of a step."""

    @abc.abstractmethod
    def observe(self, weights: PyTree) -> dict[str, PyTree]:
        """One record, with "error" for `patience` and "cosine" for `target`."""

    def order(self, key: PRNGKeyArray, step: Array) -> Array:
        """The order of the samples at a step; empty where each step draws fresh ones."""
        del key, step
        return jnp.zeros((0,), jnp.int32)


class _Runs(eqx.Module):
    """All runs, each array with a leading axis: their states, the last record and result code, the
    last relative update, the smallest error and the records since then, the order of the samples,
    and the norm of the weights at the start."""

    state: TrainState
    record: dict[str, PyTree]
    result: Array
    change: Array
    best: Array
    stale: Array
    order: Array
    start_norm: Array


class _Update(NamedTuple):
    """The part of one run that changes with every update."""

    weights: PyTree
    memory: PyTree
    order: Array
    total_loss: Array
    change: Array


class _Solver(AbstractSolver[_Runs]):
    """A step is `every` steps of all runs, and a record."""

    objective: AbstractObjective
    optimizer: optax.GradientTransformation
    start: TrainState
    first: Array
    last: Array
    every: Array
    target: Array | None
    repeats: int = eqx.field(static=True)
    patience: int | None = eqx.field(static=True)

    @property
    def stops_early(self) -> bool:
        """Runs may stop before their last step."""
        return self.patience is not None or self.target is not None

    def init(self) -> _Runs:
        """The runs before their first update, with a record of the start."""
        state = self.start
        dtype = theory_dtype()
        shape = state.step.shape
        numbers = sum(x[0].size for x in jax.tree.leaves(state.weights))
        norm = jax.vmap(lambda w: optax.tree.norm(w).astype(dtype))(state.weights)
        runs = _Runs(
            state=state,
            record={},
            result=jnp.full(shape, RUNNING),
            change=jnp.full(shape, jnp.nan, dtype),
            best=jnp.full(shape, jnp.inf, dtype),
            stale=jnp.zeros(shape, int),
            order=jax.vmap(lambda s: self.objective.order(_key(s.key), s.step))(state),
            start_norm=jnp.maximum(norm, jnp.sqrt(float(numbers))),
        )
        return jax.vmap(self._recorded)(runs, state, runs.order, runs.change)

    def step(self, state: _Runs, count: Array) -> _Runs:
        """All runs up to the next record; runs that have stopped keep their state."""
        first = self.first + count * self.every
        end = jnp.minimum(first + self.every, self.last)
        zero, now = jnp.zeros(state.result.shape, theory_dtype()), state.state

        def update(step: Array, runs: _Update) -> _Update:
            return jax.vmap(lambda run, words: self._update(run, _key(words), step))(runs, now.key)

        start = _Update(now.weights, now.optimizer, state.order, zero, zero)
        runs = lax.fori_loop(first, end, update, start)
        loss = runs.total_loss / (end - first)
        after = TrainState(runs.weights, runs.memory, jnp.full_like(now.step, end), now.key)
        new = eqx.tree_at(lambda s: s.change, state, runs.change)
        new = jax.vmap(self._recorded)(new, after, runs.order, loss)
        if not self.stops_early:
            return new

        def where_running(x: Array, y: Array | float) -> Array:
            running = (state.result == RUNNING).reshape(-1, *(1,) * (x.ndim - 1))
            return jnp.where(running, x, y)

        record = jax.tree.map(lambda x: where_running(x, jnp.nan), new.record)
        return eqx.tree_at(lambda s: s.record, jax.tree.map(where_running, new, state), record)

    def _update(self, run: _Update, key: PRNGKeyArray, step: Array) -> _Update:
        """One step of one run: `repeats` updates on its batch."""
        objective = self.objective.objective
        dtype = theory_dtype()
        # line searches and learning rates that depend on the loss take more than the gradient
        optimizer = optax.with_extra_args_support(self.optimizer)
        order, batch = self.objective.batch(key, run.order, step)
        weights, memory, total, size = run.weights, run.memory, run.total_loss, run.change
        for repeat in range(self.repeats):
            value, gradient = jax.value_and_grad(objective)(weights, batch)
            extra = {"value": value, "grad": gradient, "value_fn": lambda w: objective(w, batch)}
            change, new = optimizer.update(gradient, memory, weights, **extra)
            # a rate in double precision promotes the memory of single-precision weights
            memory = jax.tree.map(lambda x, y: jnp.asarray(x, jnp.asarray(y).dtype), new, memory)
            size = optax.tree.norm(change) / jnp.maximum(optax.tree.norm(weights), 1e-30)
            weights = optax.apply_updates(weights, change)
            # fresh batches: the loss before the first update is that of new samples
            total = total + (value.astype(dtype) if repeat == 0 else 0.0)
        return _Update(weights, memory, order, total, size.astype(dtype))

    def _recorded(self, run: _Runs, state: TrainState, order: Array, loss: Array) -> _Runs:
        """One run with a new record, and the result code that follows from it."""
        record = {"step": state.step.astype(theory_dtype()), "train_loss": loss}
        record |= self.objective.observe(state.weights)
        best, stale, result = run.best, run.stale, run.result
        if self.patience is not None:
            better = record["error"] < best * (1.0 - _BETTER)
            stale = jnp.where(better, 0, stale + 1)
            best = jnp.where(better, record["error"], best)
            result = jnp.where(stale >= self.patience, int(Result.SUCCESS), result)
        if self.target is not None:
            reached = jnp.all(record["cosine"] >= self.target)
            result = jnp.where(reached, int(Result.SUCCESS), result)
        leaves = jax.tree.leaves(state.weights)
        finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in leaves]))
        result = jnp.where(finite, result, int(Result.NONFINITE)).astype(run.result.dtype)
        return _Runs(state, record, result, run.change, best, stale, order, run.start_norm)

    def observe(self, state: _Runs, count: Array) -> dict[str, PyTree]:
        """The record that belongs to the step."""
        del count
        return state.record

    def terminate(self, state: _Runs, count: Array) -> Array:
        """The result codes of the last record."""
        del count
        return state.result

    def progress(self, state: _Runs) -> Mapping[str, str]:
        """The loss, averaged over the runs."""
        return {"loss": f"{float(jnp.nanmean(state.record['train_loss'])):.3g}"}


class DescentEnd(eqx.Module):
    """End of a descent: state, history (leading axis of records, NaN after the end), result code
    and last relative update; of several runs with a leading axis of runs."""

    state: TrainState
    history: dict[str, PyTree]
    result: Array
    change: Array


def descend(
    objective: AbstractObjective,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    *,
    steps: int,
    every: int,
    repeats: int = 1,
    stop: tuple[int | None, Array | None] = (None, None),
    label: str | None = None,
) -> DescentEnd:
    """Take `steps` steps from a state, or from each of several.

    Args:
        objective: The loss, the batches and the records.
        optimizer: Any optax transformation.
        state: Where to start; arrays with a leading axis are a batch of runs at one step.
        steps: Batches taken.
        every: Steps between two records.
        repeats: Updates on each batch. Default 1.
        stop: `patience` and `target` of a `Monitor`. Default: neither.
        label: Name of the progress bar; None: no bar.

    Returns:
        A `DescentEnd`. Codes: SUCCESS (all steps taken, or stopped early), MAX_STEPS (`patience` or
        `target` never met), DIVERGED, NONFINITE.
    """
    records = -(-steps // every)
    batch = state.step.ndim == 1
    start = state if batch else jax.tree.map(lambda x: x[None], state)
    first = start.step[0]
    patience, target = stop
    solver = _Solver(
        objective=objective,
        optimizer=optimizer,
        start=start,
        first=first,
        last=first + steps,
        every=jnp.asarray(every),
        target=target,
        repeats=repeats,
        patience=patience,
    )
    end = run_solver(solver, init_run(solver, records), records, label=label, unit=every)
    unmet = Result.MAX_STEPS if solver.stops_early else Result.SUCCESS
    result = jnp.where(end.result == RUNNING, int(unmet), end.result)
    norm = jax.vmap(optax.tree.norm)(end.state.state.weights)
    diverged = (norm > _DIVERGED * end.state.start_norm) & (result != Result.NONFINITE)
    result = jnp.where(diverged, int(Result.DIVERGED), result)
    history = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), end.history)
    ended = DescentEnd(end.state.state, history, result, end.state.change)
    return ended if batch else jax.tree.map(lambda x: x[0], ended)
