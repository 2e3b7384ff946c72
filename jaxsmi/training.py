r"""Gradient descent on the same tasks, by any optax optimiser: one compiled loop for every model and every sampling of data.

Equations here [spec section 8], student weights Ŵ, outputs ŷ = link(Ŵ x/√D), a batch B of samples:

    loss(Ŵ; B) = c Σ_{μ ∈ B} ℓ(ŷ_μ, y_μ),     ℓ = ‖ŷ - y‖² unless another is given,
    c = 1/|B| ("mean", the default), 1 ("sum"), 1/D ("sum/D")
    Ŵ ← Ŵ + optimiser(∇loss),  `repeats` times on each batch; weight decay belongs to the optimiser

A coordinate of the gradient of the mean loss is O(1/D) along the teacher: plain SGD on "mean" wants a learning rate of order D,
on "sum/D" of order D/|B|.

The order of the samples is a function of the key and the step alone, so that a run of 2000 steps and one of 1000 continued for
1000 are the same run. Each epoch is a new permutation; its last batch may be smaller.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from tqdm import tqdm

from jaxsmi.models import AbstractMatrixModel
from jaxsmi.types import Array, Dataset, Regenerated, Result, Solution, check, concrete, theory_dtype

__all__ = ["Descent", "Epochs", "Stream", "TrainState", "descend", "squared_loss", "train"]

REDUCTIONS = ("mean", "sum", "sum/D")


def squared_loss(prediction: Array, label: Array) -> Array:
    """ℓ = ‖ŷ - y‖² of one sample (Frobenius)."""
    return jnp.sum((prediction - label) ** 2)


class Stream(eqx.Module):
    """Endless fresh samples of a teacher: data of one-pass (online) learning that are never stored.

    Arguments: `model` that makes the labels; `teacher` (P, D); `dtype` of the inputs.
    Raises: ValueError for a teacher that is not (P, D).
    Example:
    >>> import jax, optax, jaxsmi as smi
    >>> model, key = smi.links.phase_retrieval(), jax.random.key(0)
    >>> stream = smi.Stream(model, model.start(key, 50))
    >>> smi.train(model, stream, optax.sgd(1.0), key=key, steps=20, batch_size=10).weights.shape
    (1, 50)
    """

    model: Any
    teacher: Array
    dtype: Any = eqx.field(static=True)

    def __init__(self, model: Any, teacher: Any, dtype: Any = None):
        teacher = jnp.asarray(teacher)
        shape = model.student_shape(teacher.shape[-1])
        check(teacher.shape == shape, "teacher", teacher, f"{shape}")
        self.model, self.teacher, self.dtype = model, teacher, dtype

    @property
    def dimension(self) -> int:
        """D."""
        return self.teacher.shape[1]

    @property
    def alpha(self) -> float:
        """N/D, without end."""
        return float("inf")

    def draw(self, key: Array, samples: int) -> tuple[Array, Array]:
        """Inputs (samples, M, D) and their labels."""
        alpha = self.model.complexity(samples, self.dimension)
        data = self.model.sample(key, dimension=self.dimension, alpha=alpha, teacher=self.teacher, dtype=self.dtype)
        return data.inputs, data.labels


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
    shapes = {"step": jax.ShapeDtypeStruct((), dtype), "train_loss": jax.ShapeDtypeStruct((), dtype)}
    shapes |= {name: shape for name, shape in seen.items() if name != "watched"}
    history = jax.tree.map(lambda x: jnp.full((runs, slots + 1, *x.shape), jnp.nan, x.dtype), shapes)
    keys = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    carried = jax.vmap(problem.start)(keys, state.step)
    full = lambda value, kind: jnp.full((runs,), value, kind)
    return Progress(state, history, full(-1, int), full(jnp.nan, dtype), full(jnp.inf, dtype), full(0, int), carried)


@eqx.filter_jit
def _advance(
    problem: Descent, optimizer: Any, at: Progress, origin: Array, last: Array, every: Array, slots: Array, repeats: int
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
            carried, sample = problem.batch(jax.random.wrap_key_data(key, impl="threefry2x32"), carried, i)
            size = jnp.zeros((), dtype)
            for repeat in range(repeats):
                value, gradient = jax.value_and_grad(problem.objective)(weights, sample)
                # line searches and learning rates that look at the loss ask for more than the gradient
                change, new = update(
                    gradient, memory, weights, value=value, grad=gradient, value_fn=lambda w: problem.objective(w, sample)
                )
                memory = jax.tree.map(lambda x, y: jnp.asarray(x, jnp.asarray(y).dtype), new, memory)  # rates may promote
                size = optax.tree.norm(change) / jnp.maximum(optax.tree.norm(weights), 1e-30)
                weights = optax.apply_updates(weights, change)
                total = total + (value.astype(dtype) if repeat == 0 else 0.0)
            return weights, memory, key, carried, total, size.astype(dtype)

        return jax.vmap(each)(*c[:-1])

    def recorded(n: Array, end: Array, mean: Array, at: Progress, weights: Any, rest: Any) -> Progress:
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
        new = Progress(state, history, result, size, jnp.where(better, watched, at.best), stale, carried)
        return jax.tree.map(lambda x, y: jnp.where(at.result < 0, x, y), new, at) if stopping else new

    def chunk(n: Array, at: Progress) -> Progress:
        first, end = origin + jnp.maximum(n, 0) * every, jnp.minimum(origin + (n + 1) * every, last)
        zero = jnp.zeros(at.result.shape, dtype)
        inner = (at.state.weights, at.state.optimizer, at.state.key, at.carried, zero, zero)
        weights, *rest, total, size = lax.fori_loop(first, end, one, inner)
        mean, rest = total / (end - first), (*rest, size)
        return jax.vmap(lambda m, a, w, r: recorded(n, end, m, a, w, r))(mean, at, weights, rest)

    def guarded(n: Array, at: Progress) -> Progress:
        return lax.cond(jnp.any(at.result < 0), lambda: chunk(n, at), lambda: at) if stopping else chunk(n, at)

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
                bar.set_postfix(loss=f"{float(jnp.nanmean(at.history['train_loss'][:, min(n + per, slots)])):.3g}")
                if bool(jnp.all(at.result >= 0)):
                    break
    unmet = Result.SUCCESS if problem.patience is None and problem.target is None else Result.MAX_STEPS
    at = eqx.tree_at(lambda p: p.result, at, jnp.where(at.result < 0, unmet, at.result))
    return at if batch else jax.tree.map(lambda x: x[0], at)


# Students of a model -------------------------------------------------------------------------------------------------------


class _Task(Descent):
    """A student of a model."""

    model: Any
    data: Any
    test: Dataset | None
    target: Any
    loss: Callable = eqx.field(static=True)
    record: Callable | None = eqx.field(static=True)
    reduction: str = eqx.field(static=True)
    size: int = eqx.field(static=True)
    one_pass: bool = eqx.field(static=True)
    patience: int | None = eqx.field(static=True)

    @property
    def epochs(self) -> Epochs:
        return Epochs(int(self.data.samples), self.size, not self.one_pass)

    @property
    def at_once(self) -> bool:
        return isinstance(self.data, Dataset) and self.size >= self.data.samples

    def start(self, key: Array, step: Array) -> Array:
        if isinstance(self.data, Stream) or self.at_once:
            return jnp.zeros((0,), jnp.int32)
        return self.epochs.start(key, step)

    def batch(self, key: Array, carried: Array, step: Array) -> tuple[Array, Any]:
        if isinstance(self.data, Stream):
            return carried, (*self.data.draw(jax.random.fold_in(key, step), self.size), None)
        if self.at_once:
            return carried, (self.data.inputs, self.data.labels, None)
        carried, chosen, inside = self.epochs.next(key, carried, step)
        whole = self.data.samples % self.size == 0
        return carried, (self.data.inputs[chosen], self.data.labels[chosen], None if whole else inside)

    def objective(self, weights: Array, batch: Any) -> Array:
        inputs, labels, inside = batch
        values = jax.vmap(self.loss)(self.model.outputs(weights, inputs), labels.astype(inputs.dtype))
        count = len(values)
        if inside is not None:
            values, count = jnp.where(inside, values, 0.0), jnp.sum(inside)
        total = jnp.sum(values)
        return {"mean": total / count, "sum": total, "sum/D": total / self.data.dimension}[self.reduction]

    def observe(self, weights: Array) -> dict[str, Any]:
        seen = self.model.overlaps(weights, self.data.teacher)
        if self.test is not None:
            labels = self.test.labels.astype(self.test.inputs.dtype)
            error = jnp.mean(jax.vmap(squared_loss)(self.model.outputs(weights, self.test.inputs), labels))
        else:
            error = self.model.error_of(weights, self.data, key=jax.random.key(0), samples=512)
        error = error.astype(theory_dtype())
        seen |= {"error": error, "watched": error}
        if self.record is not None:

            def exact(x: Any) -> Array:  # so that NaN can mark what was not recorded
                x = jnp.asarray(x)
                return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(theory_dtype())

            seen["record"] = jax.tree.map(exact, self.record(weights))
        return seen


def train(
    model: Any,
    data: Any,
    optimizer: optax.GradientTransformation,
    *,
    key: Array | None = None,
    steps: int = 1000,
    batch_size: int | None = None,
    one_pass: bool = False,
    repeats: int = 1,
    reduction: str = "mean",
    loss: Callable[[Array, Array], Array] = squared_loss,
    init: Any = 1.0,
    test: Dataset | None = None,
    record: Callable[[Array], Any] | None = None,
    record_every: int | None = None,
    patience: int | None = None,
    target: Any = None,
    state: TrainState | None = None,
    progress: bool = False,
) -> Solution:
    r"""Train a student of `model` on `data` by gradient descent (module docstring); weights O(1), as the teacher's.

    Arguments: `model`: the student, any link that has a gradient; `data`: a `Dataset`, or a `Stream` of fresh samples;
    `optimizer`: any optax transformation, schedules and weight decay included; `key`: start and order of the samples, or keys;
    `steps`: batches taken, with `repeats` updates on each; `batch_size` (None: all samples at once); `one_pass`: each sample
    of a Dataset once, in order; `reduction`: "mean", "sum" or "sum/D"; `loss(prediction, label)` of one sample; `init`: scale
    of a random start, or weights (P, D); `test`: Dataset on which the error is measured (None: the population error of Gaussian
    inputs, from the overlaps, on 4096 quasi-random points, the same in all runs, to about 1 %, where there is a teacher);
    `record`: any function of the weights;
    `record_every` steps (None: 200 records); `patience`: stop after so many records without a smaller error;
    `target`: stop when every layer's cosine is as large (of ranks above one: of the spans of their rows, which do not say all);
    `state`: continue from `fit.state` (`patience` starts anew); `progress` bar.

    Returns: a `Solution` with `weights` (P, D) (of matrix models Ŝ, its factors in `state.weights`, and `error` ‖Ŝ - S*‖²/d
    unless there is a `test`), `overlap`, `error`, `state`, and `history`: "step", "cosine", "overlap",
    "teacher_overlap", "train_loss" (mean of the batches since the last record), "error". `covariance` is NaN.
    Codes: SUCCESS (all steps taken, or stopped early), MAX_STEPS (`patience` or `target` never met), NONFINITE.
    Raises: ValueError outside jit for arguments out of range, shapes that do not fit, a link without a gradient.
    Many runs: an array of keys, `key=jax.random.split(key, 8)`, gives a Solution with a leading axis of runs from one
    compilation; jax.vmap does too, over learning rates for example:
        jax.vmap(lambda rate: smi.train(model, data, optax.sgd(rate), key=key))(rates)
    A new optimiser object compiles again: keep it. `eqx.tree_serialise_leaves(path, fit.state)` saves a state.
    Cost: 4 |B| M P D operations an update (fields and gradient), in the precision of the inputs. Source: spec section 8.
    Example:
    >>> import jax, optax, jaxsmi as smi
    >>> model, key = smi.links.linear(0.0), jax.random.key(0)
    >>> data = model.sample(key, dimension=50, alpha=4.0)
    >>> fit = smi.train(model, data, optax.adam(0.1), key=key, steps=200)
    >>> bool(fit.history["cosine"][-1, 0] > 0.99)
    True
    """
    for name, value in (("steps", steps), ("repeats", repeats)):
        check(isinstance(value, (int, np.integer)) and value >= 1, name, value, "an integer >= 1")
    check(reduction in REDUCTIONS, "reduction", reduction, f"one of {REDUCTIONS}")
    check(hasattr(optimizer, "update"), "optimizer", optimizer, "an optax GradientTransformation, such as optax.adam(1e-2)")
    check(isinstance(data, (Dataset, Stream)), "data", type(data).__name__, "a Dataset or a Stream")
    every = max(int(steps) // 200, 1) if record_every is None else record_every
    check(isinstance(every, (int, np.integer)) and every >= 1, "record_every", record_every, "an integer >= 1")
    check(patience is None or patience >= 1, "patience", patience, "an integer >= 1, or None")
    watching = test is not None or data.teacher is not None
    check(patience is None or watching, "patience", patience, "None without a test set or a teacher: nothing to watch")
    check(target is None or data.teacher is not None, "target", target, "None without a teacher")
    size = _batch_size(model, data, batch_size, test)
    key = jax.random.key(0) if key is None else key
    _check_gradient(model, loss, data.dimension)
    state = _start(model, data, optimizer, key, init, state)
    done = int(jnp.max(state.step)) if concrete(state.step) else 0
    if one_pass and isinstance(data, Dataset):
        left = data.samples // size - done
        check(
            steps <= left,
            "steps",
            steps,
            f"at most {left} batches of {size}: one_pass uses each of {data.samples} samples once",
        )
    check(target is None or (jnp.asarray(target) > 0) & (jnp.asarray(target) <= 1), "target", target, "a cosine in (0, 1]")
    if target is not None and data.teacher is not None:
        rows = data.teacher.shape[0]
        own = model.student_shape(data.dimension)[0]
        same = rows == own or isinstance(model, AbstractMatrixModel)
        check(same, "target", target, f"None for a teacher of {rows} rows and a student of {own}")
    target = None if target is None else jnp.asarray(target, theory_dtype())
    task = _Task(
        model=model, data=data, test=test, target=target, loss=loss, record=record, reduction=reduction,
        size=size, one_pass=one_pass, patience=patience,
    )  # fmt: skip
    label = f"train, D={data.dimension}" if progress and concrete((state, data, optimizer)) else None
    end = descend(task, optimizer, state, steps=int(steps), every=min(int(every), int(steps)), repeats=repeats, label=label)
    return _solution(task, end, key)


def _start(model: Any, data: Any, optimizer: Any, key: Array, init: Any, state: TrainState | None) -> TrainState:
    """Where a run, or one for each key, begins: at `state` once it is seen to fit, else at fresh weights."""
    D, shape = data.dimension, model.student_shape(data.dimension)
    dtype = data.inputs.dtype if isinstance(data, Dataset) else jnp.dtype(data.dtype or theory_dtype())
    many = key.ndim == (1 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 2)
    if state is not None:
        _check_state(state, model, optimizer, D, dtype, key.shape[0] if many else None)
        return state
    # another stream than that of `sample`: with one key for both, the start would be the teacher
    split = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, 1)))(key if many else key[None])
    start_keys, words = split[:, 0], jax.vmap(lambda k: jax.random.bits(k, (2,), jnp.uint32))(split[:, 1])
    init = jnp.asarray(init, dtype)
    check(init.shape in ((), shape), "init", init, f"a scale, or weights {shape}")
    check(jnp.all(jnp.isfinite(init)), "init", init, "finite numbers")

    def fresh(start_key: Array, words: Array) -> TrainState:
        weights = model.start(start_key, D, init, dtype) if init.ndim == 0 else init
        return TrainState(weights, optimizer.init(weights), jnp.zeros((), int), words)

    return jax.vmap(fresh)(start_keys, words) if many else fresh(start_keys[0], words[0])


@eqx.filter_jit
def _slopes(model: Any, loss: Any, weights: Array, teacher: Array, shape: tuple[int, int]) -> Array:
    """Gradient of the loss at some weights on random inputs and a teacher's labels."""
    inputs = jax.random.normal(jax.random.key(0), (16, *shape), theory_dtype())
    labels = model.outputs(teacher, inputs)
    return jax.grad(lambda w: jnp.sum(jax.vmap(loss)(model.outputs(w, inputs), labels)))(weights)


def _check_gradient(model: Any, loss: Any, D: int) -> None:
    """Refuse a link whose gradient is zero (signs, hardmax); warn where it is for some of the rows."""
    if not concrete(model):
        return
    with jax.ensure_compile_time_eval():  # concrete under jit too
        weights, teacher = (model.start(k, min(D, 8)) for k in jax.random.split(jax.random.key(1)))
        slopes = _slopes(model, loss, weights, teacher, model.input_shape(min(D, 8)))
        flat = np.flatnonzero(np.all(np.asarray(slopes) == 0.0, axis=1))
    allowed = "a link with a gradient (signs and hardmax have none: train another, such as a softmax student, on their data)"
    check(len(flat) < len(weights), "model", "a link whose gradient is zero", allowed)
    if len(flat):
        warnings.warn(
            f"jaxsmi: rows {[int(p) for p in flat]} of the weights have no gradient: they stay as they are.", stacklevel=3
        )


def _check_state(state: TrainState, model: Any, optimizer: Any, D: int, dtype: Any, runs: int | None) -> None:
    """Raise a ValueError for a state of another model, precision, optimiser or number of runs, or of runs at different steps."""
    weights = state.weights
    shape = model.student_shape(D)
    check(weights.shape[-2:] == shape, "state", weights, f"a state with weights {shape}")
    check(weights.dtype == dtype, "state", weights.dtype.name, f"weights of the inputs' precision, {jnp.dtype(dtype).name}")
    batch = weights.shape[0] if weights.ndim == 3 else None
    same = runs is None or runs == batch
    check(
        same, "state", f"a state of {batch or 'one'} run(s) with {runs} keys", "one key (it is not used), or as many as runs"
    )
    one = weights[0] if batch else weights
    kind = jax.tree.structure(jax.eval_shape(optimizer.init, one))
    check(jax.tree.structure(state.optimizer) == kind, "state", "the memory of another optimiser", "one of this optimiser")
    level = jnp.max(state.step) == jnp.min(state.step)
    check(
        level, "state", np.asarray(state.step), "runs at one step (early stopping left them apart: continue each by itself)"
    )


def _batch_size(model: Any, data: Any, batch_size: Any, test: Dataset | None) -> int:
    """The size of a batch; raises a ValueError where shapes do not fit together."""
    check(batch_size is None or (isinstance(batch_size, (int, np.integer)) and batch_size >= 1), "batch_size", batch_size,
          "an integer >= 1, or None")  # fmt: skip
    if test is not None:
        model.check_data(test, teacher=False)
        check(test.dimension == data.dimension, "test", test.inputs, f"inputs of dimension {data.dimension}")
    if isinstance(data, Stream):
        check(batch_size is not None, "batch_size", None, "an integer >= 1: samples drawn afresh at each step")
        model.check_data(jax.eval_shape(lambda: Dataset(*data.draw(jax.random.key(0), 1))), teacher=False)
        return int(batch_size or 1)
    model.check_data(data, teacher=False)
    narrow = isinstance(data.inputs, Regenerated) or data.inputs.dtype == jnp.bfloat16
    check(not narrow, "data.inputs", "inputs that are not stored, or bfloat16", "stored float32 or float64; or a Stream")
    return data.samples if batch_size is None else min(int(batch_size), data.samples)


def _solution(task: _Task, end: Progress, key: Array) -> Solution:
    """From the last record of a run (or of each run)."""
    P, dtype, runs = task.model.indices, theory_dtype(), end.result.shape
    at = jnp.sum(jnp.isfinite(end.history["step"]), axis=-1) - 1

    def last(values: Array) -> Array:
        if not runs:
            return values[at]
        return jax.vmap(lambda v, i: v[i])(values, at)

    lost = end.result == Result.NONFINITE
    data, estimate = task.data, task.model.estimate
    endless = isinstance(data, Stream)
    alpha = jnp.asarray(jnp.inf if endless else task.model.complexity(data.samples, data.dimension), dtype)
    return Solution(
        overlap=jnp.where(lost[..., None, None], jnp.nan, last(end.history["overlap"])),
        stderr=jnp.zeros((*runs, P, P), dtype),
        error=jnp.where(lost, jnp.nan, last(end.history["error"])),
        alpha=jnp.broadcast_to(alpha, runs),
        steps=end.state.step,
        residual=end.change,
        result=end.result,
        history=end.history,
        covariance=jnp.full((*runs, P, P), jnp.nan, dtype),
        rho=jnp.full(runs, jnp.nan, dtype),
        weights=jax.vmap(estimate)(end.state.weights) if runs else estimate(end.state.weights),
        state=end.state,
        model=task.model,
        key=key,
        kind="train",
    )
