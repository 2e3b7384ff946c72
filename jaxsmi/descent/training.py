r"""Gradient descent on the tasks of message passing, by any optax optimiser.

Equations here [theory: descent, Eqs. (1) to (3)], student weights Ŵ, outputs ŷ = link(Ŵ x/√D), a
batch B of samples:

    loss(Ŵ; B) = c Σ_{μ ∈ B} ℓ(ŷ_μ, y_μ),     c = 1/|B| ("mean"), 1 ("sum"), 1/D ("sum/D")
    Ŵ ← Ŵ + optimiser(∇loss),  `repeats` times on each batch; weight decay belongs to the optimiser

A coordinate of the gradient of the mean loss is O(1/D) along the teacher: plain SGD on "mean" wants
a learning rate of order D, on "sum/D" of order D/|B|.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, concrete, theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import check
from jaxsmi.descent.fit import batch_size_of, check_gradient, check_loss, initial_state
from jaxsmi.descent.loop import AbstractObjective, DescentEnd, Epochs, TrainState, descend
from jaxsmi.descent.options import Gradient, Monitor, divisor
from jaxsmi.descent.stream import Stream
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.teacher_student import squared_loss

__all__ = ["TrainState", "train"]

_CHANCE = (
    3.0  # standard deviations of the cosine of two random directions: 0.3 % of them are beyond
)
_RECORDS = 200  # of a run, by default: as many as a curve on a page can show
_ERROR_POINTS = 512  # of each of 8 nets: the population error to about 1 %


class _StudentLoss(AbstractObjective):
    """A student of a model on a data set or a stream."""

    model: AbstractModel
    data: Dataset | Stream
    test: Dataset | None
    loss: Callable[[Array, Array], Array]
    record: Callable[[Array], PyTree] | None
    reduction: str = eqx.field(static=True)
    size: int = eqx.field(static=True)
    shuffled: bool = eqx.field(static=True)

    def order(self, key: PRNGKeyArray, step: Array) -> Array:
        """The order of the samples; empty for a stream and for all samples at once."""
        if isinstance(self.data, Stream) or self.size >= self.data.samples:
            return super().order(key, step)
        return Epochs(self.data.samples, self.size, self.shuffled).order(key, step)

    def batch(self, key: PRNGKeyArray, order: Array, step: Array) -> tuple[Array, PyTree]:
        """The order, and the inputs, labels and samples that count of a step."""
        data = self.data
        if isinstance(data, Stream):
            return order, (*data.draw(jax.random.fold_in(key, step), self.size), None)
        inputs = data.stored_inputs
        if self.size >= data.samples:
            return order, (inputs, data.labels, None)
        epochs = Epochs(data.samples, self.size, self.shuffled)
        order, chosen, inside = epochs.next(key, order, step)
        full = data.samples % self.size == 0
        return order, (inputs[chosen], data.labels[chosen], None if full else inside)

    def objective(self, weights: Array, batch: PyTree) -> Array:
        """The loss of a batch."""
        inputs, labels, inside = batch
        outputs = self.model.student.outputs(weights, inputs)
        values = jax.vmap(self.loss)(outputs, labels.astype(inputs.dtype))
        count = len(values)
        if inside is not None:
            values = jnp.where(inside, values, 0.0)
            count = jnp.sum(inside)
        return jnp.sum(values) / divisor(self.reduction, count, self.data.dimension)

    def observe(self, weights: Array) -> dict[str, PyTree]:
        """Overlaps and cosines, the error, and the user's record."""
        teacher = self.model.metric.teacher_of(self.data)
        entry: dict[str, PyTree] = dict(self.model.metric.overlaps(weights, teacher))
        entry["error"] = self._error(weights).astype(theory_dtype())
        if self.record is not None:
            recorded = validate.call_user_function(
                "record", self.record, "a function of the weights", weights
            )
            entry["record"] = jax.tree.map(jnp.asarray, recorded)
        return entry

    def _error(self, weights: Array) -> Array:
        """The error on the test set; without one that of the population, from the overlaps."""
        if self.test is None:
            key = jax.random.key(0)  # the same points in all runs: their errors compare
            return self.model.metric.error(weights, self.data, key=key, points=_ERROR_POINTS)
        inputs = self.test.stored_inputs
        labels = self.test.labels.astype(inputs.dtype)
        return jnp.mean(jax.vmap(squared_loss)(self.model.student.outputs(weights, inputs), labels))


def train(
    model: AbstractModel,
    data: Dataset | Stream,
    optimizer: optax.GradientTransformation,
    *,
    key: PRNGKeyArray,
    steps: int = 1000,
    gradient: Gradient | None = None,
    start: ArrayLike | Solution | TrainState = 1.0,
    monitor: Monitor | None = None,
) -> Solution:
    r"""Train a student of a model by gradient descent; weights O(1), as the teacher's.

        loss = c Σ_μ ℓ(link(Ŵ x_μ/√D), y_μ),   Ŵ ← Ŵ + optimiser(∇loss)

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
        start: Scale of random weights, or weights of a student's shape; or the Solution, or its
            `state`, to continue. Default 1.
        monitor: A `Monitor`: test data, records, early stopping, progress bar. Without test data
            the error is that of the population, from the overlaps on 4096 quasi-random points, to
            about 1 %, where there is a teacher.

    Returns:
        A `Solution` with `weights` (P, D) (of matrix models Ŝ, its factors in `state.weights`, and
        `error` ‖Ŝ - S*‖²/d unless there are test data), `overlap`, `error`, `state`, and `history`:
        "step", "cosine", "overlap", "teacher_overlap", "train_loss" (mean of the batches since the
        last record), "error". `covariance` is NaN. Codes: SUCCESS (all steps taken, or stopped
        early), NOTHING_LEARNED (so, but no cosine with the teacher is beyond chance, 3/√D),
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
    gradient = Gradient() if gradient is None else gradient
    validate.instance("gradient", gradient, Gradient, "smi.Gradient(batch_size=.., ..)")
    monitor = Monitor() if monitor is None else monitor
    validate.instance("monitor", monitor, Monitor, "smi.Monitor(every=.., ..)")
    _check_watched(model, data, monitor)
    size = batch_size_of(model, data, gradient.batch_size, monitor.test)
    loss = squared_loss if gradient.loss is None else gradient.loss
    check_loss(model, loss, data.dimension)
    state = initial_state(model, data, optimizer, key, start)
    if gradient.one_pass and isinstance(data, Dataset):
        _check_one_pass(data, size, steps, state)
    check_gradient(model, loss, data.dimension)
    objective = _StudentLoss(
        model=model,
        data=data,
        test=monitor.test,
        loss=loss,
        record=monitor.record,
        reduction=gradient.reduction or "mean",
        size=size,
        shuffled=not gradient.one_pass,
    )
    visible = monitor.progress and concrete((state, data, optimizer))
    end = descend(
        objective,
        optimizer,
        state,
        steps=steps,
        every=min(monitor.every or max(steps // _RECORDS, 1), steps),
        repeats=gradient.repeats,
        stop=(monitor.patience, monitor.target),
        label=f"train, D={data.dimension}" if visible else None,
    )
    return _solution(objective, end, key)


def _check_watched(model: AbstractModel, data: Dataset | Stream, monitor: Monitor) -> None:
    """Raise a ValueError for an early stop without an error or cosines to watch."""
    teacher, patience, target = data.teacher, monitor.patience, monitor.target
    watched = monitor.test is not None or teacher is not None
    allowed = "None without a test set or a teacher: nothing to watch"
    check(patience is None or watched, "patience", patience, allowed)
    check(target is None or teacher is not None, "target", target, "None without a teacher")
    if target is not None and teacher is not None:
        rows = model.student.shape(data.dimension)[0]
        allowed = f"None for a teacher of {teacher.shape[0]} rows and a student of {rows}"
        check(model.metric.comparable(teacher), "target", target, allowed)


def _check_one_pass(data: Dataset, size: int, steps: int, state: TrainState) -> None:
    """Raise a ValueError where the pass has fewer batches left."""
    done = int(jnp.max(state.step)) if concrete(state.step) else 0
    rest = data.samples // size - done
    allowed = f"at most {rest} batches of {size}: one_pass uses each of {data.samples} samples once"
    check(steps <= rest, "steps", steps, allowed)


def _learned(objective: _StudentLoss, result: Array, cosines: Array) -> Array:
    """The result; NOTHING_LEARNED where a run that went well has no cosine beyond chance.

    √(D-1) cos/√(1 - cos²) of two random directions follows Student's law, which for large D is that
    of √D cos. Matrices have no such chance level: the mean that they all share has a cosine.
    """
    if not objective.model.design.rows:
        return result
    chance = _CHANCE / jnp.sqrt(objective.data.dimension - 1.0 + _CHANCE**2)
    nothing = jnp.all(jnp.abs(cosines) < chance, axis=-1)  # false for NaN, without a teacher
    return jnp.where((result == Result.SUCCESS) & nothing, int(Result.NOTHING_LEARNED), result)


def _solution(objective: _StudentLoss, end: DescentEnd, key: PRNGKeyArray) -> Solution:
    """The last record of each run as a solution."""
    model, data = objective.model, objective.data
    dtype = theory_dtype()
    runs, P = end.result.shape, model.indices
    place = jnp.sum(jnp.isfinite(end.history["step"]), axis=-1) - 1

    def last(values: Array) -> Array:
        return jax.vmap(lambda v, i: v[i])(values, place) if runs else values[place]

    nonfinite = end.result == Result.NONFINITE
    finite = isinstance(data, Dataset)
    alpha = data.samples / model.design.entries(data.dimension) if finite else jnp.inf
    weights = end.state.weights
    return Solution(
        overlap=jnp.where(nonfinite[..., None, None], jnp.nan, last(end.history["overlap"])),
        stderr=jnp.zeros((*runs, P, P), dtype),
        error=jnp.where(nonfinite, jnp.nan, last(end.history["error"])),
        alpha=jnp.broadcast_to(jnp.asarray(alpha, dtype), runs),
        steps=end.state.step,
        residual=end.change,
        result=_learned(objective, end.result, last(end.history["cosine"])),
        history=end.history,
        covariance=jnp.full((*runs, P, P), jnp.nan, dtype),
        spectral_radius=jnp.full(runs, jnp.nan, dtype),
        weights=jax.vmap(model.student.estimate)(weights)
        if runs
        else model.student.estimate(weights),
        state=end.state,
        model=model,
        key=key,
        kind="train",
    )
