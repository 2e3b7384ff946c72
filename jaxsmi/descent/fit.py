"""Validation of the arguments of a training against each other, and its first state."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import check
from jaxsmi.descent.loop import TrainState
from jaxsmi.descent.options import Gradient, Monitor
from jaxsmi.descent.stream import Stream
from jaxsmi.models.base import AbstractModel, check_data

_PROBE = 8  # a loss is tried in this dimension at most: one that is flat there is flat in any
_LOSS = "a JAX function of (prediction, label) that returns one number"


def initial_state(
    model: AbstractModel,
    data: Dataset | Stream,
    optimizer: optax.GradientTransformation,
    key: PRNGKeyArray,
    start: ArrayLike | Solution | TrainState,
) -> TrainState:
    """The state at which a run, or one for each key, starts."""
    dimension = data.dimension
    shape = model.student.shape(dimension)
    dtype = jnp.dtype(
        data.inputs.dtype if isinstance(data, Dataset) else data.dtype or theory_dtype()
    )
    many = key.ndim == (1 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 2)
    if isinstance(start, Solution):
        start = validate.instance("start", start.state, TrainState, "a Solution of smi.train")
    if isinstance(start, TrainState):
        runs = len(key) if many else None
        batch = start.weights.shape[0] if start.weights.ndim == 3 else None
        memory = jax.eval_shape(optimizer.init, start.weights[0] if batch else start.weights)
        same = jax.tree.structure(start.optimizer) == jax.tree.structure(memory)
        together = jnp.max(start.step) == jnp.min(start.step)
        shown = f"a state of {batch or 'one'} run(s) with {runs} keys"
        for condition, value, allowed in (
            (start.weights.shape[-2:] == shape, start.weights, f"a state with weights {shape}"),
            (start.weights.dtype == dtype, start.weights.dtype.name, f"weights in {dtype.name}"),
            (runs in (None, batch), shown, "one key (it is not used), or as many as runs"),
            (same, "the memory of another optimiser", "one of this optimiser"),
            # the loop counts for all runs
            (together, start.step, "runs at one step (continue each run by itself)"),
        ):
            check(condition, "start", value, allowed)
        return start
    allowed = f"a scale, weights {shape}, or a Solution of smi.train"
    scale = validate.array("start", start, allowed, dtype=dtype)
    check(scale.shape in ((), shape), "start", start, allowed)

    def fresh(key: PRNGKeyArray) -> TrainState:
        # another stream than that of `sample`: one key for both would start at the teacher
        start_key, order_key = jax.random.split(jax.random.fold_in(key, 1))
        words = jax.random.bits(order_key, (2,), jnp.uint32)
        weights = scale
        if scale.ndim == 0:
            weights = model.student.start(start_key, dimension, scale, dtype)
        return TrainState(weights, optimizer.init(weights), jnp.zeros((), int), words)

    return jax.vmap(fresh)(key) if many else fresh(key)


@eqx.filter_jit
def _gradient(
    model: AbstractModel,
    loss: Callable[[Array, Array], Array],
    weights: Array,
    teacher: Array,
    shape: tuple[int, ...],
) -> Array:
    """That of the loss of weights (P, D) on the labels of others, for random inputs of a shape."""
    inputs = jax.random.normal(jax.random.key(0), shape, weights.dtype)
    labels = model.student.outputs(teacher, inputs)
    total = lambda w: jnp.sum(jax.vmap(loss)(model.student.outputs(w, inputs), labels))
    return jax.grad(total)(weights)


def check_loss(model: AbstractModel, loss: Callable[[Array, Array], Array], dimension: int) -> None:
    """Raise a ValueError for a loss that fails or does not return one number, and for a link whose
    gradient is zero (signs, hardmax); warn where it is zero for some of the rows."""
    D = min(dimension, _PROBE)
    shape = (16, *model.design.input_shape(D))
    weights = jax.eval_shape(lambda: model.student.start(jax.random.key(0), D))
    inputs = jax.ShapeDtypeStruct(shape, weights.dtype)
    one = jax.eval_shape(lambda w, x: model.student.outputs(w, x)[0], weights, inputs)
    value = validate.call_user_function("loss", jax.eval_shape, _LOSS, loss, one, one)
    shapes = [leaf.shape for leaf in jax.tree.leaves(value)]
    check(shapes == [()], "loss", f"values of shapes {shapes}", _LOSS)
    if not concrete((model, loss)):
        return  # no numbers to look at

    with jax.ensure_compile_time_eval():  # concrete under jit too
        # outside of the compiled gradient: widths of factors follow from numbers of the model
        start = lambda n: model.student.start(jax.random.key(n), D)
        gradient = _gradient(model, loss, start(1), start(2), shape)
        flat = np.all(np.asarray(gradient) == 0.0, axis=1)
    allowed = (
        "a link with a gradient (signs and hardmax have none: train another, such as a softmax "
        "student, on their data)"
    )
    check(not flat.all(), "model", "a link whose gradient is zero", allowed)
    if flat.any():
        rows = np.flatnonzero(flat).tolist()
        message = f"jaxsmi: rows {rows} of the weights have no gradient: they stay as they are."
        warnings.warn(message, stacklevel=3)  # 3: the caller of smi.train


def check_settings(
    model: AbstractModel, data: Dataset | Stream, gradient: Gradient, monitor: Monitor
) -> tuple[Dataset | Stream, Monitor]:
    """The data and the monitor, labels in the shape of the link's; a ValueError where the shapes of
    model, data, batches and test set do not agree, or an early stop has nothing to watch."""
    size, test, teacher = gradient.batch_size, monitor.test, data.teacher
    if test is not None:
        check(not test.regenerated, "test", "regenerated inputs", "stored ones: test.stored()")
        test = check_data(model, test, teacher=False)
        monitor = dataclasses.replace(monitor, test=test)
        allowed = f"inputs of dimension {data.dimension}"
        check(test.dimension == data.dimension, "test", test.inputs, allowed)
    allowed = "None without a test set or a teacher: nothing to watch"
    watched = monitor.patience is None or test is not None or teacher is not None
    check(watched, "patience", monitor.patience, allowed)
    if monitor.target is not None:
        rows = model.student.shape(data.dimension)[0]
        found = "none" if teacher is None else f"one of {teacher.shape[0]} rows"
        allowed = f"None without a teacher of {rows} rows, as the student's; there is {found}"
        compared = teacher is not None and model.metric.comparable(teacher)
        check(compared, "target", monitor.target, allowed)
    if isinstance(data, Stream):
        check(size is not None, "batch_size", size, "an integer >= 1 for a Stream")
        sample = jax.eval_shape(lambda: Dataset(*data.draw(jax.random.key(0), 1)))
        check_data(model, sample, teacher=False)
        return data, monitor
    data = check_data(model, data, teacher=False)
    # gradients in bfloat16 lose small updates, and regenerated inputs have no batches to index
    stored = not data.regenerated and data.inputs.dtype != jnp.bfloat16
    allowed = "stored float32 or float64; or a Stream"
    check(stored, "data.inputs", "inputs that are not stored, or bfloat16", allowed)
    allowed = f"at most {data.samples}, the samples that there are; None: all of them"
    check(size is None or size <= data.samples, "batch_size", size, allowed)
    return data, monitor


def check_one_pass(data: Dataset, gradient: Gradient, steps: int, state: TrainState) -> None:
    """Raise a ValueError where the pass has fewer batches left."""
    done = int(jnp.max(state.step)) if concrete(state.step) else 0
    size = gradient.batch_size or data.samples
    rest = data.samples // size - done
    allowed = f"at most {rest} batches of {size}: one_pass uses each of {data.samples} samples once"
    check(steps <= rest, "steps", steps, allowed)
