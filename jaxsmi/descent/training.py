"""Gradient descent on the tasks of message passing, by any optax optimiser [theory: descent,
Eqs. (1) to (3)]: `train` and its solution, the validation of its arguments, and the first state."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, missing, theory_dtype, users_level
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Run, init_run, run_solver
from jaxsmi.core.results import RUNNING, Result, choose
from jaxsmi.core.solution import Solution
from jaxsmi.core.validate import check
from jaxsmi.descent.loop import Descent, Runs, TrainState
from jaxsmi.descent.options import Gradient, Monitor, Stream, check_scalar
from jaxsmi.descent.overlaps import overlaps_of_weights, pair_of_arrays
from jaxsmi.models.base import AbstractModel, check_data, label_shape
from jaxsmi.models.teacher_student import squared_loss
from jaxsmi.numerics.linear_algebra import coordinates_of, triangular_root

# Weights are O(1) at the start, as the teacher's are, and so are those of a student that has
# learned it: a norm a hundred times as large is an overshoot.
_MAX_GROWTH = 100.0
# standard deviations of the cosine of two random directions: 0.3 % of them are beyond
_CHANCE_SIGMAS = 3.0
_DEFAULT_RECORDS = 200  # records of a run: as many as a curve on a page can show
_LAST_FIELDS = ("overlap", "error", "cosine")


@validate.explained
def train(
    model: AbstractModel,
    data: Dataset | Stream,
    optimizer: optax.GradientTransformation,
    *,
    key: PRNGKeyArray,
    steps: int = 1000,
    gradient: Gradient | None = None,
    start: ArrayLike | tuple[ArrayLike, ArrayLike] | Solution | TrainState = 1.0,
    monitor: Monitor | None = None,
) -> Solution:
    r"""Train a student of a model by gradient descent; weights O(1), as the teacher's.

        loss = c Σ_μ ℓ(link(Ŵ x_μ/√D), y_μ),   Ŵ ← Ŵ + optimiser(∇loss)

    A coordinate of the gradient of the mean loss is O(1/D) along the teacher: plain SGD needs a
    learning rate of order D on "mean", and of order D/|B| on "sum/D". Weight decay belongs to the
    optimiser.

    Many runs: an array of keys, `key=jax.random.split(key, 8)`, gives a Solution with a leading
    axis of runs from one compilation; jax.vmap does too, over learning rates for example:
    `jax.vmap(lambda rate: smi.train(model, data, optax.sgd(rate), key=key))(rates)`. A new
    optimiser object compiles again: keep it. `eqx.tree_serialise_leaves(path, fit.state)` saves a
    state.

    Args:
        model: The student, with a link that has a gradient.
        data: A `Dataset`, or a `Stream` of fresh samples.
        optimizer: Any optax transformation, schedules and weight decay included.
        key: Random key of the start and of the order of the samples, or keys, one per run.
        steps: Batches taken. Default 1000.
        gradient: A `Gradient`: loss, reduction and batches. Default: the mean squared error of all
            samples. A `Stream` needs a `batch_size`.
        start: Scale of random weights, or weights of a student's shape; or overlaps (M, Q) with the
            teacher and itself (numbers: of each row), else in random directions; or the Solution,
            or its `state`, to continue. Default 1.
        monitor: A `Monitor`: test data, records, early stopping, progress bar. Without test data
            the error is that of the population, from the overlaps on 4096 quasi-random points, to
            about 1 %, where there is a teacher.

    Returns:
        A `Solution` with `weights` (P, D) (of matrix models Ŝ, its factors in `state.weights`, and
        `error` ‖Ŝ - S*‖²/d unless there are test data), `overlap`, `error`, `state`, and `history`:
        "step", "cosine", "overlap", "teacher_overlap", "train_loss" (mean of the batches since the
        last record), "error". `covariance` is NaN. Codes: SUCCESS (all steps taken, or stopped
        early), NOTHING_LEARNED (the same, but no cosine with the teacher exceeds chance, 3/√D),
        MAX_STEPS (`patience` or `target` never met), DIVERGED (weights a hundred times their size),
        NONFINITE.

    Raises:
        ValueError: For shapes that do not fit, a link without a gradient, or an early stop without
            an error or a teacher to watch.

    Example:
        >>> import jax, optax, jaxsmi as smi
        >>> model, key = smi.links.linear(0.0), jax.random.key(0)
        >>> data = model.sample(key, dimension=50, alpha=4.0)
        >>> fit = smi.train(model, data, optax.adam(0.1), key=key, steps=200)
        >>> bool(fit.history["cosine"][-1, 0] > 0.99)
        True

    Cost:
        4 |B| M P D operations an update (fields and gradient), in the precision of the inputs.

    Source:
        [theory: descent, Eqs. (1) to (3)].
    """
    validate.instance("model", model, AbstractModel, "a model")
    validate.instance("data", data, (Dataset, Stream), "a Dataset or a Stream")
    allowed = "one of optax, such as optax.adam(1e-2)"
    validate.instance("optimizer", optimizer, optax.GradientTransformation, allowed)
    key = validate.key("key", key, many=True)
    steps = validate.count("steps", steps)
    gradient = validate.settings("gradient", gradient, Gradient, "smi.Gradient(batch_size=.., ..)")
    monitor = validate.settings("monitor", monitor, Monitor, "smi.Monitor(every=.., ..)")
    data, monitor = check_settings(model, data, gradient, monitor)
    state = initial_state(model, data, optimizer, key, start)
    # last: it compiles a gradient
    check_loss(model, gradient.loss or squared_loss, data.dimension)
    every = min(monitor.every or max(steps // _DEFAULT_RECORDS, 1), steps)
    label = f"train, D={data.dimension}" if monitor.progress else None
    if not concrete((state, data, optimizer)):
        label = None  # under jit or vmap there is no host to show a bar
    several = state.step.ndim == 1
    descent = Descent(
        model=model,
        data=data,
        gradient=gradient,
        # its `every` and `progress` are static, and would make another program of each number
        monitor=dataclasses.replace(monitor, every=None, progress=False),
        optimizer=optimizer,
        start=state if several else jax.tree.map(lambda x: x[None], state),
        # arrays: runs of other lengths with as many records are the same program
        steps=jnp.asarray(steps),
        every=jnp.asarray(every),
    )
    records = -(-steps // every)
    end = run_solver(descent, init_run(descent, records), records, label=label, unit=every)
    return _solution(descent, end, key, several)


def _codes(descent: Descent, end: Run[Runs], cosines: Array) -> Array:
    """Result codes of the runs, from the last cosines (runs, P)."""
    early = descent.monitor.patience is not None or descent.monitor.target is not None
    unmet = Result.MAX_STEPS if early else Result.SUCCESS
    norm, start = jax.vmap(optax.tree.norm), descent.start.weights
    # a start near zero may grow to O(1) per weight
    usual = jnp.maximum(norm(start), jnp.sqrt(float(start[0].size)))
    # weights that are not finite say more than their size
    overshoot = norm(end.state.state.weights) > _MAX_GROWTH * usual
    overshoot = overshoot & (end.result != Result.NONFINITE)
    code = choose((end.result == RUNNING, unmet), (overshoot, Result.DIVERGED), start=end.result)
    # the mean that all random matrices share has a cosine: they have no such chance level
    if not descent.model.design.has_rows:
        return code
    # √(D-1) cos/√(1 - cos²) of two random directions follows Student's law, which for large D is
    # that of √D cos
    chance = _CHANCE_SIGMAS / jnp.sqrt(descent.data.dimension - 1.0 + _CHANCE_SIGMAS**2)
    nothing = jnp.all(jnp.abs(cosines) < chance, axis=-1)  # false for NaN, without a teacher
    return choose(((code == Result.SUCCESS) & nothing, Result.NOTHING_LEARNED), start=code)


def _solution(descent: Descent, end: Run[Runs], key: PRNGKeyArray, several: bool) -> Solution:
    """The last records; the axis of runs is dropped unless there are several."""
    model, data = descent.model, descent.data
    dtype = theory_dtype()
    runs, P = end.result.shape, model.indices
    history = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), end.history)
    # a run that stopped early has NaN in the records after its last
    index = jnp.sum(jnp.isfinite(history["step"]), axis=-1) - 1
    last = {name: history[name][jnp.arange(runs[0]), index] for name in _LAST_FIELDS}
    result = _codes(descent, end, last["cosine"])
    # overlaps of the last finite record would hide that the weights are lost
    nonfinite = result == Result.NONFINITE
    alpha = jnp.inf
    if isinstance(data, Dataset):
        alpha = data.samples / model.design.entries(data.dimension)
    numbers = {
        "overlap": jnp.where(nonfinite[:, None, None], missing(), last["overlap"]),
        "stderr": jnp.zeros((*runs, P, P), dtype),
        "error": jnp.where(nonfinite, missing(), last["error"]),
        "alpha": jnp.full(runs, alpha, dtype),
        "steps": end.state.state.step,
        "residual": end.state.change,
        "result": result,
        "history": history,
        "covariance": jnp.full((*runs, P, P), missing(), dtype),
        "spectral_radius": jnp.full(runs, missing(), dtype),
        "weights": jax.vmap(model.student.estimate)(end.state.state.weights),
        "state": end.state.state,
    }
    if not several:
        numbers = jax.tree.map(lambda x: x[0], numbers)
    return Solution(**numbers, model=model, key=key, kind="train")


# a loss is tried in this dimension at most: one that is flat there is flat in any
_PROBE_DIMENSION = 8


def initial_state(
    model: AbstractModel,
    data: Dataset | Stream,
    optimizer: optax.GradientTransformation,
    key: PRNGKeyArray,
    start: ArrayLike | tuple[ArrayLike, ArrayLike] | Solution | TrainState,
) -> TrainState:
    """The state at which a run, or one for each key, starts."""
    dimension = data.dimension
    shape = model.student.shape(dimension)
    own = data.inputs.dtype if isinstance(data, Dataset) else data.dtype
    dtype = jnp.dtype(own or theory_dtype())
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
        W = start.weights
        check(W.shape[-2:] == shape, "start", W, f"a state with weights {shape}")
        check(W.dtype == dtype, "start", W.dtype.name, f"weights in {dtype.name}")
        check(runs in (None, batch), "start", shown, "one key, or one for each run")
        check(same, "start", "the memory of another optimiser", "the memory of this optimiser")
        # the loop counts for all runs
        allowed = "runs that are all at the same step (or continue each run by itself)"
        check(together, "start", start.step, allowed)
        return start
    allowed = f"a scale, weights {shape}, a tuple (M, Q) of overlaps, or a Solution of smi.train"
    if isinstance(start, tuple):  # a list may be weights
        check(model.design.has_rows, "start", start, allowed)
        placed = _at_overlaps(data, start, shape[0])
        draw = lambda key: placed(key).astype(dtype)
    else:
        scale = validate.array("start", start, allowed, shape=shape, scalar=True, dtype=dtype)
        random = lambda key: model.student.start(key, dimension, scale, dtype)
        draw = (lambda key: scale) if scale.ndim else random

    def fresh(key: PRNGKeyArray) -> TrainState:
        # another stream than that of `sample`: one key for both would start at the teacher
        start_key, order_key = jax.random.split(jax.random.fold_in(key, 1))
        words = jax.random.bits(order_key, (2,), jnp.uint32)
        weights = draw(start_key)
        return TrainState(weights, optimizer.init(weights), jnp.zeros((), int), words)

    return jax.vmap(fresh)(key) if many else fresh(key)


def _at_overlaps(
    data: Dataset | Stream, overlaps: Any, rows: int
) -> Callable[[PRNGKeyArray], Array]:
    """Weights with overlaps M (P, P*) with the teacher (and the directions of the inputs) and Q
    (P, P), else at random: W = √D (Y O + Z R), orthonormal O that span the fixed rows and R
    orthogonal to them."""
    teacher, D = data.teacher, data.dimension
    if teacher is None:
        raise ValueError(
            "start: got overlaps (M, Q) and data without a teacher; allowed: data with a teacher."
        )
    fixed = teacher.astype(theory_dtype())
    if data.directions is not None:
        fixed = jnp.concatenate([fixed, data.directions.astype(fixed.dtype)])
    allowed = f"dimensions for {len(fixed)} fixed rows and {rows} that move"
    check(len(fixed) + rows <= D, "data", f"dimension {D}", allowed)
    gram = fixed @ fixed.T / D
    M, Q = pair_of_arrays(overlaps, rows, len(teacher), len(fixed))
    M, Q = overlaps_of_weights(gram, M, Q)
    Y, Z = coordinates_of(triangular_root(gram), M, Q)

    def draw(key: PRNGKeyArray) -> Array:
        beyond = jax.random.normal(key, (rows, D), fixed.dtype)
        basis, triangle = jnp.linalg.qr(jnp.concatenate([fixed, beyond]).T)
        # QR leaves the signs of its directions open: those of the frame are positive
        basis = basis * jnp.where(jnp.diagonal(triangle) < 0.0, -1.0, 1.0)
        return np.sqrt(D) * jnp.concatenate([Y, Z], axis=1) @ basis.T

    return draw


@eqx.filter_jit
def _gradient(
    model: AbstractModel,
    loss: Callable[[Array, Array], Array],
    weights: Array,
    teacher: Array,
    shape: tuple[int, ...],
) -> Array:
    """Gradient of the loss of weights (P, D) on labels of others, at random inputs of a shape."""
    inputs = jax.random.normal(jax.random.key(0), shape, weights.dtype)
    labels = model.student.outputs(teacher, inputs)
    total = lambda w: jnp.sum(jax.vmap(loss)(model.student.outputs(w, inputs), labels))
    return jax.grad(total)(weights)


def check_loss(model: AbstractModel, loss: Callable[[Array, Array], Array], dimension: int) -> None:
    """Raise a ValueError for a loss that fails or does not return one number, and for a link whose
    gradient is zero (signs, hardmax); warn where it is zero for some of the rows."""
    label = jax.ShapeDtypeStruct(label_shape(model), theory_dtype())
    check_scalar(loss, label, label)
    if not concrete((model, loss)):
        return  # no numbers to look at
    D = min(dimension, _PROBE_DIMENSION)
    shape = (16, *model.design.input_shape(D))
    with jax.ensure_compile_time_eval():  # concrete under jit too
        # outside of the compiled gradient: widths of factors follow from numbers of the model
        start = lambda n: model.student.start(jax.random.key(n), D)
        gradient = _gradient(model, loss, start(1), start(2), shape)
        flat = np.all(np.asarray(gradient) == 0.0, axis=1)
    allowed = (
        "a link with a gradient (signs and hardmax have none: train another one, such as a "
        "softmax student, on their data)"
    )
    check(not flat.all(), "model", "a link whose gradient is zero", allowed)
    if flat.any():
        rows = np.flatnonzero(flat).tolist()
        message = f"jaxsmi: rows {rows} of the weights have no gradient and do not move."
        warnings.warn(message, stacklevel=users_level())


def check_settings(
    model: AbstractModel, data: Dataset | Stream, gradient: Gradient, monitor: Monitor
) -> tuple[Dataset | Stream, Monitor]:
    """Return data and monitor, labels in the shape of the link's; raise a ValueError where the
    shapes of model, data, batches and test set disagree, or an early stop has nothing to watch."""
    size, test, teacher = gradient.batch_size, monitor.test, data.teacher
    if test is not None:
        check(not test.regenerated, "test", "regenerated inputs", "stored ones: test.stored()")
        test = check_data(model, test, teacher=False)
        monitor = dataclasses.replace(monitor, test=test)
        allowed = f"inputs of dimension {data.dimension}"
        check(test.dimension == data.dimension, "test", test.inputs, allowed)
    allowed = "None for data without a test set or a teacher"
    watched = monitor.patience is None or test is not None or teacher is not None
    check(watched, "patience", monitor.patience, allowed)
    if monitor.target is not None:
        rows = model.student.shape(data.dimension)[0]
        found = "none" if teacher is None else f"one of {teacher.shape[0]} rows"
        allowed = f"None without a teacher of {rows} rows, as the student's; there is {found}"
        compared = teacher is not None and model.metric.comparable(teacher)
        check(compared, "target", monitor.target, allowed)
    if isinstance(data, Stream):
        check(isinstance(size, int), "batch_size", size, "an integer >= 1 for a Stream")
        allowed = "'shuffled' for a Stream, which draws new samples at each step"
        check(gradient.order == "shuffled", "order", gradient.order, allowed)
        sample = jax.eval_shape(lambda: Dataset(*data.draw(jax.random.key(0), 1)))
        check_data(model, sample, teacher=False)
        return data, monitor
    data = check_data(model, data, teacher=False)
    # gradients in bfloat16 lose small updates, and regenerated inputs have no batches to index
    stored = not data.regenerated and data.inputs.dtype != jnp.bfloat16
    allowed = "stored float32 or float64; or a Stream"
    check(stored, "data.inputs", "inputs that are not stored, or bfloat16", allowed)
    allowed = f"at most {data.samples}, the number of samples, or None for all"
    check(size is None or size <= data.samples, "batch_size", size, allowed)
    return data, monitor
