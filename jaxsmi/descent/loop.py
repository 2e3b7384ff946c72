r"""Gradient descent as a solver of the one driver: many runs at once, a record every so many
updates.

    weights ← weights + optimiser(∇objective(weights; batch)),   `repeats` times on each batch

A step of the driver is the stretch between two records, of all runs together. The loops count for
all runs, and only what is inside them is vmapped: a condition that differed between runs would make
XLA compute both of its branches, on a copy of the data for each run. The order of the samples is a
function of the key and the step alone, so that a run of 2000 steps and one of 1000 continued for
1000 are the same run.

A run has diverged when its weights, of order one at the start as the teacher's are, have grown a
hundredfold in norm.
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
from jaxtyping import Array, PRNGKeyArray, PyTree

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.codes import RUNNING, Result
from jaxsmi.core.driver import AbstractSolver, drive, ready

__all__ = ["Descent", "Epochs", "DescentEnd", "TrainState", "descend"]

_GROWTH = 100.0  # norm of the weights, relative to the start, from which on a run has diverged


class TrainState(eqx.Module):
    """What continues a run: the weights, the optimiser's memory, the number of steps taken, and the
    words of its key.

    The key is plain numbers, so that `eqx.tree_serialise_leaves` can write all of it.
    """

    weights: PyTree
    optimizer: PyTree
    step: Array
    key: Array

    @property
    def random_key(self) -> PRNGKeyArray:
        """The key, made of its words."""
        return jax.random.wrap_key_data(self.key, impl="threefry2x32")


class Epochs(eqx.Module):
    """Which samples make the batch of a step: an order of all samples, renewed at the start of each
    epoch.

    Each epoch is a new permutation; its last batch may be smaller.
    """

    samples: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    shuffled: bool = eqx.field(static=True)

    @property
    def batches(self) -> int:
        """Batches an epoch."""
        return -(-self.samples // self.size)

    def order(self, key: PRNGKeyArray, step: Array) -> Array:
        """The order of the samples in the epoch of a step."""
        key = jax.random.fold_in(key, step // self.batches)
        return jax.random.permutation(key, self.samples).astype(jnp.int32)

    def start(self, key: PRNGKeyArray, step: Array) -> Array:
        """What the loop carries along: nothing where all samples are used at once, or each once."""
        return self.order(key, step) if self.shuffled else jnp.zeros((0,), jnp.int32)

    def next(self, key: PRNGKeyArray, order: Array, step: Array) -> tuple[Array, Array, Array]:
        """The order, and the samples of this step with their weights (0 past the end of the
        epoch)."""
        if self.shuffled:
            order = lax.cond(step % self.batches == 0, lambda: self.order(key, step), lambda: order)
        place = (step % self.batches) * self.size + jnp.arange(self.size)
        inside = place < self.samples
        place = jnp.where(inside, place, 0)
        return order, order[place] if self.shuffled else place, inside


class Descent(eqx.Module):
    """A problem of descent: subclasses say the loss, the batches and what is recorded.

    `patience` and `target` stop a run early: after so many records without a smaller "watched"
    number, and where every "cosine" is as large.
    """

    patience: eqx.AbstractVar[int | None]
    target: eqx.AbstractVar[Array | None]

    @abc.abstractmethod
    def objective(self, weights: PyTree, batch: PyTree) -> Array:
        """The loss of a batch."""

    @abc.abstractmethod
    def start(self, key: PRNGKeyArray, step: Array) -> Array:
        """What `batch` carries from step to step."""

    @abc.abstractmethod
    def batch(self, key: PRNGKeyArray, carried: Array, step: Array) -> tuple[Array, PyTree]:
        """(carried, batch) of a step."""

    @abc.abstractmethod
    def observe(self, weights: PyTree) -> dict[str, PyTree]:
        """What is recorded: with "watched", the number `patience` watches, and "cosine" where there
        is a `target`."""


class _Descending(eqx.Module):
    """Where the runs are, each array with a leading axis of runs: their states, the last record,
    the result, the last relative update, what early stopping remembers, what the batches carry, and
    the size of the weights at the start."""

    state: TrainState
    record: dict[str, PyTree]
    result: Array
    change: Array
    best: Array
    stale: Array
    carried: Array
    start_norm: Array


class _Update(NamedTuple):
    """What one update of one run carries."""

    weights: PyTree
    memory: PyTree
    carried: Array
    total: Array
    change: Array


class _Stretches(AbstractSolver[_Descending]):
    """The solver: a step is `every` updates of all runs, and a record."""

    problem: Descent
    optimizer: optax.GradientTransformation
    start: TrainState
    origin: Array
    last: Array
    every: Array
    repeats: int = eqx.field(static=True)

    @property
    def stopping(self) -> bool:
        """Whether runs may stop early."""
        return self.problem.patience is not None or self.problem.target is not None

    def init(self) -> _Descending:
        """The runs before their first update, with a record of the start."""
        state = self.start
        dtype = theory_dtype()
        runs = state.step.shape[0]
        size = jax.vmap(lambda w: optax.tree.norm(w).astype(dtype))(state.weights)
        blank = _Descending(
            state=state,
            record={},
            result=jnp.full((runs,), RUNNING),
            change=jnp.full((runs,), jnp.nan, dtype),
            best=jnp.full((runs,), jnp.inf, dtype),
            stale=jnp.zeros((runs,), int),
            carried=jax.vmap(lambda s: self.problem.start(s.random_key, s.step))(state),
            start_norm=jnp.maximum(size, jnp.sqrt(_count(state.weights))),
        )
        return jax.vmap(self._judged)(
            blank, state, blank.carried, jnp.full((runs,), jnp.nan, dtype)
        )

    def step(self, state: _Descending, count: Array) -> _Descending:
        """The next stretch; runs that have stopped stay where they are."""
        first = self.origin + count * self.every
        end = jnp.minimum(first + self.every, self.last)
        zero = jnp.zeros(state.result.shape, theory_dtype())
        now = state.state
        carry = _Update(now.weights, now.optimizer, state.carried, zero, zero)

        def update(i: Array, carry: _Update) -> _Update:
            return jax.vmap(lambda run, key: self._update(run, key, i))(carry, now.key)

        carry = lax.fori_loop(first, end, update, carry)
        mean = carry.total / (end - first)
        moved = TrainState(carry.weights, carry.memory, jnp.full_like(now.step, end), now.key)
        new = eqx.tree_at(lambda s: s.change, state, carry.change)
        new = jax.vmap(self._judged)(new, moved, carry.carried, mean)
        if not self.stopping:
            return new
        going = state.result == RUNNING

        def kept(x: Array, y: Array | float) -> Array:
            return jnp.where(going.reshape(going.shape + (1,) * (x.ndim - 1)), x, y)

        record = jax.tree.map(lambda x: kept(x, jnp.nan), new.record)
        frozen = jax.tree.map(kept, new, state)
        return eqx.tree_at(lambda s: s.record, frozen, record)

    def _update(self, run: _Update, words: Array, step: Array) -> _Update:
        """One step of one run: `repeats` updates on its batch."""
        problem = self.problem
        dtype = theory_dtype()
        update = optax.with_extra_args_support(self.optimizer).update
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        carried, sample = problem.batch(key, run.carried, step)
        weights = run.weights
        memory = run.memory
        total = run.total
        size = run.change
        for repeat in range(self.repeats):
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
            # rates may promote the memory
            memory = jax.tree.map(lambda x, y: jnp.asarray(x, jnp.asarray(y).dtype), new, memory)
            size = optax.tree.norm(change) / jnp.maximum(optax.tree.norm(weights), 1e-30)
            weights = optax.apply_updates(weights, change)
            total = total + (value.astype(dtype) if repeat == 0 else 0.0)
        return _Update(weights, memory, carried, total, size.astype(dtype))

    def _judged(
        self, run: _Descending, state: TrainState, carried: Array, train_loss: Array
    ) -> _Descending:
        """One run at a record: what is seen of it, and whether it goes on."""
        problem = self.problem
        weights = state.weights
        record = {"step": state.step.astype(theory_dtype()), "train_loss": train_loss}
        record |= problem.observe(weights)
        watched = record.pop("watched")
        better = watched < run.best * (1.0 - 1e-4)
        stale = jnp.where(better, 0, run.stale + 1)
        result = run.result
        if problem.patience is not None:
            result = jnp.where(stale >= problem.patience, int(Result.SUCCESS), result)
        if problem.target is not None:
            reached = jnp.all(record["cosine"] >= problem.target)
            result = jnp.where(reached, int(Result.SUCCESS), result)
        finite = jnp.asarray([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(weights)])
        result = jnp.where(jnp.all(finite), result, int(Result.NONFINITE))
        return _Descending(
            state=state,
            record=record,
            result=result.astype(run.result.dtype),
            change=run.change,
            best=jnp.where(better, watched, run.best),
            stale=stale,
            carried=carried,
            start_norm=run.start_norm,
        )

    def observe(self, state: _Descending, count: Array) -> dict[str, PyTree]:
        """The record that was made with the step."""
        del count
        return state.record

    def terminate(self, state: _Descending, count: Array) -> Array:
        """The result of each run, decided at its last record by `_judged` (the rules of `Stop`)."""
        del count
        return state.result

    def progress(self, state: _Descending) -> Mapping[str, str]:
        """The loss, averaged over the runs."""
        return {"loss": f"{float(jnp.nanmean(state.record['train_loss'])):.3g}"}


def _count(weights: PyTree) -> float:
    """How many numbers one run's weights are."""
    return float(sum(x[0].size for x in jax.tree.leaves(weights)))


class DescentEnd(eqx.Module):
    """Where a descent ended: its state, its history (leading axis of records, NaN where not
    reached), its result and the last relative update; of several runs with a leading axis of
    runs."""

    state: TrainState
    history: dict[str, PyTree]
    result: Array
    change: Array


def descend(
    problem: Descent,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    *,
    steps: int,
    every: int,
    repeats: int = 1,
    label: str | None = None,
) -> DescentEnd:
    """Take `steps` steps from a state, or from each of several.

    Args:
        problem: The loss, the batches and what is recorded.
        optimizer: Any optax transformation.
        state: Where to begin; arrays with a leading axis of runs are a batch of runs, all at the
            same step.
        steps: Batches taken.
        every: Steps between two records.
        repeats: Updates on each batch. Default 1.
        label: What the progress bar is called; None: no bar.

    Returns:
        A `DescentEnd`. Codes: SUCCESS (all steps taken, or stopped early), MAX_STEPS (`patience` or
        `target` never met), DIVERGED, NONFINITE.
    """
    records = -(-steps // every)
    batch = state.step.ndim == 1
    start = state if batch else jax.tree.map(lambda x: x[None], state)
    origin = start.step[0]
    solver = _Stretches(
        problem, optimizer, start, origin, origin + steps, jnp.asarray(every), repeats
    )
    run = ready(solver, records)
    end = drive(solver, run, records, label=label, unit=every)
    history = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), end.history)
    result = _ended(end.state, end.result, solver.stopping)
    ended = DescentEnd(end.state.state, history, result, end.state.change)
    return ended if batch else jax.tree.map(lambda x: x[0], ended)


def _ended(state: _Descending, result: Array, stopping: bool) -> Array:
    """The results of the runs, once all steps are taken: those still running have done what was
    asked, or have not met what was to stop them; and weights that have grown a hundredfold are no
    answer."""
    unmet = Result.MAX_STEPS if stopping else Result.SUCCESS
    result = jnp.where(result == RUNNING, int(unmet), result)
    norm = jax.vmap(optax.tree.norm)(state.state.weights)
    grown = (norm > _GROWTH * state.start_norm) & (result != Result.NONFINITE)
    return jnp.where(grown, int(Result.DIVERGED), result)
