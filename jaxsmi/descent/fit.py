"""Checks that model, data, batches, state and loss of a training fit together, and its start."""

from __future__ import annotations

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
from jaxsmi.descent.stream import Stream
from jaxsmi.models.base import AbstractModel, check_data

__all__ = ["batch_size_of", "check_gradient", "check_loss", "initial_state"]

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
        _check_state(start, optimizer, shape, dtype, key.shape[0] if many else None)
        return start
    # another stream than that of `sample`: with one key for both, the start would be the teacher
    keys = key if many else key[None]
    split = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, 1)))(keys)
    words = jax.vmap(lambda k: jax.random.bits(k, (2,), jnp.uint32))(split[:, 1])
    allowed = f"a scale, weights {shape}, or a Solution of smi.train"
    scale = validate.array("start", start, allowed, dtype=dtype)
    check(scale.shape in ((), shape), "start", start, allowed)

    def fresh(start_key: PRNGKeyArray, words: Array) -> TrainState:
        weights = (
            model.student.start(start_key, dimension, scale, dtype) if scale.ndim == 0 else scale
        )
        return TrainState(weights, optimizer.init(weights), jnp.zeros((), int), words)

    return jax.vmap(fresh)(split[:, 0], words) if many else fresh(split[0, 0], words[0])


def _check_state(
    state: TrainState,
    optimizer: optax.GradientTransformation,
    shape: tuple[int, ...],
    dtype: jnp.dtype,
    runs: int | None,
) -> None:
    """Raise a ValueError for a state of another model, precision, optimiser or number of runs, or
    of runs at different steps."""
    weights = state.weights
    batch = weights.shape[0] if weights.ndim == 3 else None
    memory = jax.eval_shape(optimizer.init, weights[0] if batch else weights)
    same = jax.tree.structure(state.optimizer) == jax.tree.structure(memory)
    runs_shown = f"a state of {batch or 'one'} run(s) with {runs} keys"
    for condition, value, allowed in (
        (weights.shape[-2:] == shape, weights, f"a state with weights {shape}"),
        (weights.dtype == dtype, weights.dtype.name, f"weights of the inputs' {dtype.name}"),
        (runs in (None, batch), runs_shown, "one key (it is not used), or as many as runs"),
        (same, "the memory of another optimiser", "one of this optimiser"),
        (
            jnp.max(state.step) == jnp.min(state.step),
            state.step,
            "runs at one step (after early stops: continue each run by itself)",
        ),
    ):
        check(condition, "start", value, allowed)


def check_loss(model: AbstractModel, loss: Callable[[Array, Array], Array], dimension: int) -> None:
    """Raise a ValueError for a loss that fails, or does not return one number."""
    D = min(dimension, _PROBE)

    def prediction(key: PRNGKeyArray) -> Array:
        inputs = jnp.zeros((1, *model.design.input_shape(D)), theory_dtype())
        return model.student.outputs(model.student.start(key, D), inputs)[0]

    one = jax.eval_shape(prediction, jax.random.key(0))
    value = validate.call_user_function("loss", jax.eval_shape, _LOSS, loss, one, one)
    shapes = [leaf.shape for leaf in jax.tree.leaves(value)]
    check(shapes == [()], "loss", f"values of shapes {shapes}", _LOSS)


@eqx.filter_jit
def _gradient(
    model: AbstractModel,
    loss: Callable[[Array, Array], Array],
    weights: Array,
    teacher: Array,
    shape: tuple[int, int],
) -> Array:
    """Gradient of the loss at some weights on random inputs and a teacher's labels."""
    inputs = jax.random.normal(jax.random.key(0), (16, *shape), theory_dtype())
    labels = model.student.outputs(teacher, inputs)
    return jax.grad(lambda w: jnp.sum(jax.vmap(loss)(model.student.outputs(w, inputs), labels)))(
        weights
    )


def check_gradient(
    model: AbstractModel, loss: Callable[[Array, Array], Array], dimension: int
) -> None:
    """Raise a ValueError for a link whose gradient is zero (signs, hardmax); warn where it is zero
    for some of the rows."""
    if not concrete((model, loss)):
        return
    D = min(dimension, _PROBE)
    with jax.ensure_compile_time_eval():  # concrete under jit too
        weights, teacher = (model.student.start(k, D) for k in jax.random.split(jax.random.key(1)))
        gradient = _gradient(model, loss, weights, teacher, model.design.input_shape(D))
        flat = np.flatnonzero(np.all(np.asarray(gradient) == 0.0, axis=1))
    allowed = (
        "a link with a gradient (signs and hardmax have none: train another, such as a softmax "
        "student, on their data)"
    )
    check(len(flat) < len(weights), "model", "a link whose gradient is zero", allowed)
    if len(flat):
        rows = [int(p) for p in flat]
        message = f"jaxsmi: rows {rows} of the weights have no gradient: they stay as they are."
        warnings.warn(message, stacklevel=3)  # 3: the caller of smi.train


def batch_size_of(
    model: AbstractModel, data: Dataset | Stream, size: int | None, test: Dataset | None
) -> int:
    """The size of a batch; raises a ValueError where shapes do not fit together."""
    if test is not None:
        check(not test.regenerated, "test", "regenerated inputs", "stored ones: test.stored()")
        check_data(model, test, teacher=False)
        allowed = f"inputs of dimension {data.dimension}"
        check(test.dimension == data.dimension, "test", test.inputs, allowed)
    if isinstance(data, Stream):
        check(size is not None, "batch_size", size, "an integer >= 1 for a Stream")
        assert size is not None
        sample = jax.eval_shape(lambda: Dataset(*data.draw(jax.random.key(0), 1)))
        check_data(model, sample, teacher=False)
        return size
    check_data(model, data, teacher=False)
    stored = not data.regenerated and data.inputs.dtype != jnp.bfloat16
    allowed = "stored float32 or float64; or a Stream"
    check(stored, "data.inputs", "inputs that are not stored, or bfloat16", allowed)
    size = data.samples if size is None else size
    allowed = f"at most {data.samples}, the samples that there are; None: all of them"
    check(size <= data.samples, "batch_size", size, allowed)
    return size
