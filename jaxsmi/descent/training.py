r"""Gradient descent on the same tasks, by any optax optimiser: one compiled loop for every model and every sampling of data.

Equations here [theory: descent, Eqs. (1) to (4)], student weights Ŵ, outputs ŷ = link(Ŵ x/√D), a batch B of samples:

    loss(Ŵ; B) = c Σ_{μ ∈ B} ℓ(ŷ_μ, y_μ),     ℓ = ‖ŷ - y‖² unless another is given,
    c = 1/|B| ("mean", the default), 1 ("sum"), 1/D ("sum/D")
    Ŵ ← Ŵ + optimiser(∇loss),  `repeats` times on each batch; weight decay belongs to the optimiser

A coordinate of the gradient of the mean loss is O(1/D) along the teacher: plain SGD on "mean" wants a learning rate of order D,
on "sum/D" of order D/|B|.

The order of the samples is a function of the key and the step alone, so that a run of 2000 steps and one of 1000 continued for
1000 are the same run. Each epoch is a new permutation; its last batch may be smaller.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset, Regenerated
from jaxsmi.core.results import Solution
from jaxsmi.descent.loop import Descent, Epochs, Progress, TrainState, descend
from jaxsmi.descent.stream import Stream

REDUCTIONS = ("mean", "sum", "sum/D")


def squared_loss(prediction: Array, label: Array) -> Array:
    """ℓ = ‖ŷ - y‖² of one sample (Frobenius)."""
    return jnp.sum((prediction - label) ** 2)


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
        return carried, (
            self.data.inputs[chosen],
            self.data.labels[chosen],
            None if whole else inside,
        )

    def objective(self, weights: Array, batch: Any) -> Array:
        inputs, labels, inside = batch
        values = jax.vmap(self.loss)(
            self.model.outputs(weights, inputs), labels.astype(inputs.dtype)
        )
        count = len(values)
        if inside is not None:
            values, count = jnp.where(inside, values, 0.0), jnp.sum(inside)
        total = jnp.sum(values)
        return {"mean": total / count, "sum": total, "sum/D": total / self.data.dimension}[
            self.reduction
        ]

    def observe(self, weights: Array) -> dict[str, Any]:
        seen = self.model.overlaps(weights, self.data.teacher)
        if self.test is not None:
            labels = self.test.labels.astype(self.test.inputs.dtype)
            error = jnp.mean(
                jax.vmap(squared_loss)(self.model.outputs(weights, self.test.inputs), labels)
            )
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
    Cost: 4 |B| M P D operations an update (fields and gradient), in the precision of the inputs. Source:
    [theory: descent, section 1].
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
    check(
        hasattr(optimizer, "update"),
        "optimizer",
        optimizer,
        "an optax GradientTransformation, such as optax.adam(1e-2)",
    )
    check(isinstance(data, (Dataset, Stream)), "data", type(data).__name__, "a Dataset or a Stream")
    every = max(int(steps) // 200, 1) if record_every is None else record_every
    check(
        isinstance(every, (int, np.integer)) and every >= 1,
        "record_every",
        record_every,
        "an integer >= 1",
    )
    check(patience is None or patience >= 1, "patience", patience, "an integer >= 1, or None")
    watching = test is not None or data.teacher is not None
    check(
        patience is None or watching,
        "patience",
        patience,
        "None without a test set or a teacher: nothing to watch",
    )
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
    check(
        target is None or (jnp.asarray(target) > 0) & (jnp.asarray(target) <= 1),
        "target",
        target,
        "a cosine in (0, 1]",
    )
    if target is not None and data.teacher is not None:
        rows, student = data.teacher.shape[0], model.student_shape(data.dimension)[0]
        check(
            model.comparable(data.teacher),
            "target",
            target,
            f"None for a teacher of {rows} rows and a student of {student}",
        )
    target = None if target is None else jnp.asarray(target, theory_dtype())
    task = _Task(
        model=model, data=data, test=test, target=target, loss=loss, record=record, reduction=reduction,
        size=size, one_pass=one_pass, patience=patience,
    )  # fmt: skip
    label = (
        f"train, D={data.dimension}" if progress and concrete((state, data, optimizer)) else None
    )
    end = descend(
        task,
        optimizer,
        state,
        steps=int(steps),
        every=min(int(every), int(steps)),
        repeats=repeats,
        label=label,
    )
    return _solution(task, end, key)


def _start(
    model: Any, data: Any, optimizer: Any, key: Array, init: Any, state: TrainState | None
) -> TrainState:
    """Where a run, or one for each key, begins: at `state` once it is seen to fit, else at fresh weights."""
    D, shape = data.dimension, model.student_shape(data.dimension)
    dtype = (
        data.inputs.dtype if isinstance(data, Dataset) else jnp.dtype(data.dtype or theory_dtype())
    )
    many = key.ndim == (1 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 2)
    if state is not None:
        _check_state(state, model, optimizer, D, dtype, key.shape[0] if many else None)
        return state
    # another stream than that of `sample`: with one key for both, the start would be the teacher
    split = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, 1)))(
        key if many else key[None]
    )
    start_keys, words = (
        split[:, 0],
        jax.vmap(lambda k: jax.random.bits(k, (2,), jnp.uint32))(split[:, 1]),
    )
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
            f"jaxsmi: rows {[int(p) for p in flat]} of the weights have no gradient: they stay as they are.",
            stacklevel=3,
        )


def _check_state(
    state: TrainState, model: Any, optimizer: Any, D: int, dtype: Any, runs: int | None
) -> None:
    """Raise a ValueError for a state of another model, precision, optimiser or number of runs, or of runs at different steps."""
    weights = state.weights
    shape = model.student_shape(D)
    check(weights.shape[-2:] == shape, "state", weights, f"a state with weights {shape}")
    check(
        weights.dtype == dtype,
        "state",
        weights.dtype.name,
        f"weights of the inputs' precision, {jnp.dtype(dtype).name}",
    )
    batch = weights.shape[0] if weights.ndim == 3 else None
    same = runs is None or runs == batch
    check(
        same,
        "state",
        f"a state of {batch or 'one'} run(s) with {runs} keys",
        "one key (it is not used), or as many as runs",
    )
    one = weights[0] if batch else weights
    kind = jax.tree.structure(jax.eval_shape(optimizer.init, one))
    check(
        jax.tree.structure(state.optimizer) == kind,
        "state",
        "the memory of another optimiser",
        "one of this optimiser",
    )
    level = jnp.max(state.step) == jnp.min(state.step)
    check(
        level,
        "state",
        np.asarray(state.step),
        "runs at one step (early stopping left them apart: continue each by itself)",
    )


def _batch_size(model: Any, data: Any, batch_size: Any, test: Dataset | None) -> int:
    """The size of a batch; raises a ValueError where shapes do not fit together."""
    check(batch_size is None or (isinstance(batch_size, (int, np.integer)) and batch_size >= 1), "batch_size", batch_size,
          "an integer >= 1, or None")  # fmt: skip
    if test is not None:
        model.check_data(test, teacher=False)
        check(
            test.dimension == data.dimension,
            "test",
            test.inputs,
            f"inputs of dimension {data.dimension}",
        )
    if isinstance(data, Stream):
        check(
            batch_size is not None,
            "batch_size",
            None,
            "an integer >= 1: samples drawn afresh at each step",
        )
        model.check_data(
            jax.eval_shape(lambda: Dataset(*data.draw(jax.random.key(0), 1))), teacher=False
        )
        return int(batch_size or 1)
    model.check_data(data, teacher=False)
    narrow = isinstance(data.inputs, Regenerated) or data.inputs.dtype == jnp.bfloat16
    check(
        not narrow,
        "data.inputs",
        "inputs that are not stored, or bfloat16",
        "stored float32 or float64; or a Stream",
    )
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
    alpha = jnp.asarray(
        jnp.inf if endless else task.model.complexity(data.samples, data.dimension), dtype
    )
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
