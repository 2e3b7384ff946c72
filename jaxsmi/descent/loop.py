r"""Gradient descent of many runs at once, as one solver of the library's loop.

    weights ← weights + optimiser(∇loss(weights; batch)),   `repeats` times on each batch

**A step of the solver is many updates**: `step` takes all runs from one record to the next, `every`
batches with `repeats` updates each. What users call a step (`steps`, `TrainState.step`) is a batch.

The loop counts for all runs, and only its body is vmapped: under a condition that differed between
runs XLA would compute both branches, on a copy of the data for each run. The order of the samples
depends on the key and the step alone, so that 1000 steps continued for 1000 are one run of 2000.
"""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, clamp_to_tiny, missing, theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import AbstractSolver
from jaxsmi.core.results import RUNNING, Result
from jaxsmi.descent.options import Gradient, Monitor, Stream, samples_of
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.teacher_student import squared_loss

# relative fall of the error that `patience` counts: above rounding of float32
_MIN_IMPROVEMENT = 1e-4
# empirical: 512 points in each of 8 nets give the population error to about 1 %, enough for a curve
_ERROR_POINTS = 512


class TrainState(eqx.Module):
    """State of a run: weights, the optimiser's memory, steps taken, and the words of its key.

    The key is plain numbers, so that `eqx.tree_serialise_leaves` writes all of the state.
    """

    weights: PyTree
    optimizer: PyTree
    step: Array
    key: Array


class Runs(eqx.Module):
    """All runs, each array with a leading axis: their states, the order of the samples, the last
    record, result code and relative update, the smallest error, and the records since then."""

    state: TrainState
    order: Array
    record: dict[str, PyTree]
    result: Array
    change: Array
    best: Array
    stale: Array


class Descent(AbstractSolver[Runs]):
    """Descent of a student on data; a step is `every` updates of all runs, and a record.

    Args:
        model: The student.
        data: A `Dataset` or a `Stream`.
        gradient: Loss, reduction and batches.
        monitor: The test set, the record, `patience` and `target`.
        optimizer: Any optax transformation.
        start: The first states, each array with a leading axis of runs, all at one step.
        steps: Batches taken.
        every: Batches between two records.
    """

    model: AbstractModel
    data: Dataset | Stream
    gradient: Gradient
    monitor: Monitor
    optimizer: optax.GradientTransformation
    start: TrainState
    steps: Array
    every: Array

    def init(self) -> Runs:
        """The runs before their first update, with a record of the start."""
        state, dtype = self.start, theory_dtype()
        full = lambda value: jnp.full(state.step.shape, value, dtype)
        order = jax.vmap(lambda s: self.order(_key(s.key), s.step))(state)
        # int32 code: that of `terminate` in all later steps
        codes, stale = jnp.full(state.step.shape, RUNNING), jnp.zeros(state.step.shape, int)
        runs = Runs(state, order, {}, codes, full(missing()), full(jnp.inf), stale)
        return jax.vmap(self._recorded)(runs, runs.change)

    def step(self, state: Runs, count: Array) -> Runs:
        """Take all runs to the next record, `every` batches on; runs that have stopped keep their
        state."""
        begin = self.start.step[0]
        first = begin + count * self.every
        end = jnp.minimum(first + self.every, begin + self.steps)

        def update(step: Array, carry: tuple[TrainState, Array, Array, Array]) -> tuple:
            return jax.vmap(lambda *run: self._update(step, *run))(*carry)

        zero = jnp.zeros(state.result.shape, theory_dtype())
        start = (state.state, state.order, zero, zero)
        after, order, loss, change = lax.fori_loop(first, end, update, start)
        new = eqx.tree_at(lambda s: (s.state, s.order, s.change), state, (after, order, change))
        new = jax.vmap(self._recorded)(new, loss / (end - first).astype(loss.dtype))
        if self.monitor.patience is None and self.monitor.target is None:
            return new

        def where_running(x: Array, y: Array | float) -> Array:
            running = (state.result == RUNNING).reshape(-1, *(1,) * (x.ndim - 1))
            return jnp.where(running, x, y)

        # NaN records: the history of a run ends where the run does
        record = jax.tree.map(lambda x: where_running(x, missing()), new.record)
        return eqx.tree_at(lambda s: s.record, jax.tree.map(where_running, new, state), record)

    def _update(
        self, step: Array, state: TrainState, order: Array, total: Array, size: Array
    ) -> tuple[TrainState, Array, Array, Array]:
        """Take one batch of one run: `repeats` updates on it."""
        dtype = theory_dtype()
        # line searches and learning rates that depend on the loss take more than the gradient
        optimizer = optax.with_extra_args_support(self.optimizer)
        order, batch = self.batch(_key(state.key), order, step)
        loss = lambda w: self._loss(w, *batch)
        weights, memory = state.weights, state.optimizer
        for repeat in range(self.gradient.repeats):
            value, gradient = jax.value_and_grad(loss)(weights)
            extra = {"value": value, "grad": gradient, "value_fn": loss}
            change, new = optimizer.update(gradient, memory, weights, **extra)
            # a rate in double precision promotes the memory of single-precision weights
            memory = jax.tree.map(lambda x, y: jnp.asarray(x, jnp.asarray(y).dtype), new, memory)
            size = optax.tree.norm(change) / clamp_to_tiny(optax.tree.norm(weights))
            weights = optax.apply_updates(weights, change)
            # fresh batches: the loss before the first update is that of new samples
            total = total + (value.astype(dtype) if repeat == 0 else 0.0)
        state = TrainState(weights, memory, jnp.full_like(state.step, step + 1), state.key)
        return state, order, total, size.astype(dtype)

    @property
    def _size(self) -> int:
        """Samples of a batch, or of the data where a step takes all of them."""
        size, samples = self.gradient.batch_size, getattr(self.data, "samples", 1)
        if size is None:
            return samples
        return size if isinstance(size, int) else samples_of(size, samples)

    def order(self, key: PRNGKeyArray, step: Array) -> Array:
        """The order of the samples in the epoch of a step; empty where a step takes all of them (a
        gather would copy them) or fresh ones."""
        size, samples = self._size, getattr(self.data, "samples", 0)
        if size >= samples or self.gradient.order == "bernoulli":
            return jnp.zeros((0,), jnp.int32)
        # folding the epoch in, not splitting on, makes a continued run the uninterrupted one
        epoch = 0 if self.gradient.order == "cyclic" else step // -(-samples // size)
        key = jax.random.fold_in(key, epoch)
        return jax.random.permutation(key, samples).astype(jnp.int32)

    def batch(
        self, key: PRNGKeyArray, order: Array, step: Array
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        """The order, and the inputs, labels and mask of a step."""
        data, size = self.data, self._size
        if isinstance(data, Stream):
            inputs, labels = data.draw(jax.random.fold_in(key, step), size)
            return order, (inputs, labels, jnp.ones(size, bool))
        if order.size == 0:
            inside = jnp.ones(data.samples, bool)
            if self.gradient.order == "bernoulli":
                share = size / data.samples
                inside = jax.random.bernoulli(jax.random.fold_in(key, step), share, inside.shape)
            return order, (data.stored_inputs, data.labels, inside)
        place = step % -(-data.samples // size)  # among the batches of an epoch
        order = lax.cond(place == 0, lambda: self.order(key, step), lambda: order)
        chosen = place * size + jnp.arange(size)
        inside = chosen < data.samples
        # static shapes: a smaller last batch repeats a sample, and the mask leaves it out
        chosen = order[jnp.where(inside, chosen, 0)]
        return order, (data.stored_inputs[chosen], data.labels[chosen], inside)

    def _loss(self, weights: Array, inputs: Array, labels: Array, inside: Array) -> Array:
        outputs = self.model.student.outputs(weights, inputs)
        loss = self.gradient.loss or squared_loss
        values = jax.vmap(loss)(outputs, labels.astype(inputs.dtype))
        count = jnp.sum(inside).astype(values.dtype)
        total = jnp.sum(jnp.where(inside, values, 0.0))
        return total / self.gradient.divisor(count, self.data.dimension)

    def _recorded(self, run: Runs, loss: Array) -> Runs:
        """Add a record to one run, and set the result code that follows from it."""
        weights, monitor = run.state.weights, self.monitor
        record = {"step": run.state.step.astype(theory_dtype()), "train_loss": loss}
        record |= self.model.metric.overlaps(weights, self.model.metric.teacher_of(self.data))
        record["error"] = self._error(weights).astype(theory_dtype())
        if monitor.record is not None:
            allowed = "a function of the weights"
            value = validate.call_user_function("record", monitor.record, allowed, weights)
            record["record"] = jax.tree.map(jnp.asarray, value)
        best, stale, result = run.best, run.stale, run.result
        if monitor.patience is not None:
            better = record["error"] < best * (1.0 - _MIN_IMPROVEMENT)
            stale = jnp.where(better, 0, stale + 1)
            best = jnp.where(better, record["error"], best)
            result = jnp.where(stale >= monitor.patience, int(Result.SUCCESS), result)
        if monitor.target is not None:
            reached = jnp.all(record["cosine"] >= monitor.target)
            result = jnp.where(reached, int(Result.SUCCESS), result)
        finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(weights)]))
        # last, so that a run that stops early on NaN is not a success
        result = jnp.where(finite, result, int(Result.NONFINITE)).astype(run.result.dtype)
        return Runs(run.state, run.order, record, result, run.change, best, stale)

    def _error(self, weights: Array) -> Array:
        """Error on the test set; without one, that of the population from the overlaps."""
        test = self.monitor.test
        if test is None:
            key = jax.random.key(0)  # the same points in all runs: their errors compare
            return self.model.metric.error(weights, self.data, key=key, points=_ERROR_POINTS)
        inputs = test.stored_inputs
        outputs = self.model.student.outputs(weights, inputs)
        return jnp.mean(jax.vmap(squared_loss)(outputs, test.labels.astype(inputs.dtype)))

    def observe(self, state: Runs, count: Array) -> dict[str, PyTree]:
        """The last record."""
        return state.record

    def terminate(self, state: Runs, count: Array) -> Array:
        """The result codes of the last record."""
        return state.result

    def progress(self, state: Runs) -> Mapping[str, str]:
        """The loss, averaged over the runs."""
        return {"loss": f"{float(jnp.nanmean(state.record['train_loss'])):.3g}"}


def _key(words: Array) -> PRNGKeyArray:
    return jax.random.wrap_key_data(words, impl="threefry2x32")
