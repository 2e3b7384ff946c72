r"""Gradient descent on the same tasks as message passing, by any optax optimiser.

Equations here [theory: descent, Eqs. (1) to (3)], student weights Ŵ, outputs ŷ = link(Ŵ x/√D), a
batch B of samples:

    loss(Ŵ; B) = c Σ_{μ ∈ B} ℓ(ŷ_μ, y_μ),     c = 1/|B| ("mean"), 1 ("sum"), 1/D ("sum/D")
    Ŵ ← Ŵ + optimiser(∇loss),  `repeats` times on each batch; weight decay belongs to the optimiser

A coordinate of the gradient of the mean loss is O(1/D) along the teacher: plain SGD on "mean" wants
a learning rate of order D, on "sum/D" of order D/|B|.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, concrete, theory_dtype
from jaxsmi.core.border import (
    checked,
    choice,
    either,
    flag,
    function,
    instance,
    numbers,
    optional,
    random_keys,
    whole,
)
from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset, is_dataset
from jaxsmi.core.driver import Record, is_record
from jaxsmi.core.results import Solution
from jaxsmi.descent.loop import DescentEnd, TrainState, descend
from jaxsmi.descent.stream import Stream
from jaxsmi.descent.student import batch_size_of, begin_training, check_gradient, check_loss
from jaxsmi.descent.task import REDUCTIONS, Batches, Stop, Task
from jaxsmi.models.base import AbstractModel, is_model
from jaxsmi.models.teacher_student import squared_loss

__all__ = ["TrainState", "train"]

_CHANCE = 3.0  # standard deviations of the cosine of two random directions
_RECORDS = 200  # of a run, if nothing else is said


@checked(
    model=is_model,
    data=instance((Dataset, Stream), "a Dataset or a Stream"),
    optimizer=instance(optax.GradientTransformation, "one of optax, such as optax.adam(1e-2)"),
    key=optional(random_keys),
    steps=whole(),
    batch_size=optional(either("an integer >= 1, or smi.Batches", whole(), instance(Batches, ""))),
    reduction=choice(*REDUCTIONS),
    loss=function("a function of a prediction and a label"),
    init=numbers("a scale, or weights (P, D)"),
    test=optional(is_dataset),
    record=is_record,
    stop=optional(instance(Stop, "smi.Stop(patience, target)")),
    state=optional(instance(TrainState, "the `state` of a solution of train")),
    progress=optional(flag),
)
def train(
    model: AbstractModel,
    data: Dataset | Stream,
    optimizer: optax.GradientTransformation,
    *,
    key: PRNGKeyArray | None = None,
    steps: int = 1000,
    batch_size: int | Batches | None = None,
    reduction: str = "mean",
    loss: Callable[[Array, Array], Array] = squared_loss,
    init: ArrayLike = 1.0,
    test: Dataset | None = None,
    record: Record | Callable[[Array], PyTree] | None = None,
    stop: Stop | None = None,
    state: TrainState | None = None,
    progress: bool = False,
) -> Solution:
    r"""Train a student of a model by gradient descent; weights O(1), as the teacher's.

        loss = c Σ_μ ℓ(link(Ŵ x_μ/√D), y_μ),   Ŵ ← Ŵ + optimiser(∇loss)

    Many runs: an array of keys, `key=jax.random.split(key, 8)`, gives a Solution with a leading
    axis of runs from one compilation; jax.vmap does too, over learning rates for example:
    `jax.vmap(lambda rate: smi.train(model, data, optax.sgd(rate), key=key))(rates)`. A new
    optimiser object compiles again: keep it. `eqx.tree_serialise_leaves(path, fit.state)` saves a
    state.

    Args:
        model: The student, any link that has a gradient.
        data: A `Dataset`, or a `Stream` of fresh samples.
        optimizer: Any optax transformation, schedules and weight decay included.
        key: Random key of the start and of the order of the samples, required; or keys, one a run.
        steps: Batches taken. Default 1000.
        batch_size: Samples in a batch, of a `Dataset` no more than it has; None: all at once. Or a
            `Batches`, which also says how often each is used, and whether each sample is used once.
        reduction: "mean", "sum" or "sum/D": c above. Default "mean".
        loss: ℓ(prediction, label) of one sample. Default: ‖ŷ - y‖².
        init: Scale of a random start, or weights of a student's shape. Default 1.
        test: Data on which the error is measured: ‖ŷ - y‖² of the link, whatever the `loss` (which
            is in "train_loss"). None: the population error of Gaussian inputs, from the overlaps,
            on 4096 quasi-random points, the same in all runs, to about 1 %, where there is a
            teacher. `patience` watches it.
        record: A function of the weights, kept in history["record"]; or a `Record` that also says
            how often anything is recorded (else 200 times).
        stop: When to stop early, a `Stop`. None: never.
        state: Continue from `fit.state` (`patience` starts anew).
        progress: Show a bar on stderr. Default False.

    Returns:
        A `Solution` with `weights` (P, D) (of matrix models Ŝ, its factors in `state.weights`, and
        `error` ‖Ŝ - S*‖²/d unless there is a `test`), `overlap`, `error`, `state`, and `history`:
        "step", "cosine", "overlap", "teacher_overlap", "train_loss" (mean of the batches since the
        last record), "error". `covariance` is NaN. Codes: SUCCESS (all steps taken, or stopped
        early), NOTHING_LEARNED (so, but no cosine with the teacher is beyond chance, 3/√D),
        MAX_STEPS (`stop` never met), DIVERGED (weights a hundred times their size), NONFINITE.

    Raises:
        ValueError: Outside jit, for arguments out of range, shapes that do not fit, a link without
            a gradient.

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
    arguments = Arguments()
    batches = (batch_size if isinstance(batch_size, Batches) else Batches(batch_size)).checked()
    stopping = Stop() if stop is None else stop
    stopping.checked()
    function, every = Record.of(record, max(steps // _RECORDS, 1))
    _check_stop(model, data, test, stopping)
    size = batch_size_of(model, data, batches.size, test)
    check_loss(model, loss, data.dimension)
    key = arguments.key("key", key, many=True)
    begin = begin_training(model, data, optimizer, key, init, state)
    if batches.one_pass and isinstance(data, Dataset):
        _check_one_pass(data, size, steps, begin)
    check_gradient(model, loss, data.dimension)
    target = None if stopping.target is None else jnp.asarray(stopping.target, theory_dtype())
    task = Task(
        model=model,
        data=data,
        test=test,
        target=target,
        loss=loss,
        record=function,
        reduction=reduction,
        size=size,
        one_pass=batches.one_pass,
        patience=stopping.patience,
    )
    visible = progress and concrete((begin, data, optimizer))
    end = descend(
        task,
        optimizer,
        begin,
        steps=steps,
        every=min(every, steps),
        repeats=batches.repeats,
        label=f"train, D={data.dimension}" if visible else None,
    )
    return _solution(task, end, key)


def _check_stop(
    model: AbstractModel, data: Dataset | Stream, test: Dataset | None, stop: Stop
) -> None:
    """Raise a ValueError where there is nothing to watch."""
    teacher = data.teacher
    watching = test is not None or teacher is not None
    allowed = "None without a test set or a teacher: nothing to watch"
    check(stop.patience is None or watching, "patience", stop.patience, allowed)
    if stop.target is None:
        return
    check(teacher is not None, "target", stop.target, "None without a teacher")
    if teacher is not None:
        rows = model.student_shape(data.dimension)[0]
        allowed = f"None for a teacher of {teacher.shape[0]} rows and a student of {rows}"
        check(model.comparable(teacher), "target", stop.target, allowed)


def _check_one_pass(data: Dataset, size: int, steps: int, state: TrainState) -> None:
    """Raise a ValueError where one pass has not so many batches left."""
    done = int(jnp.max(state.step)) if concrete(state.step) else 0
    rest = data.samples // size - done
    allowed = f"at most {rest} batches of {size}: one_pass uses each of {data.samples} samples once"
    check(steps <= rest, "steps", steps, allowed)


def _outcome(task: Task, result: Array, cosines: Array) -> Array:
    """The result; NOTHING_LEARNED where a run that went well has no cosine beyond chance.

    Of two random directions √(D-1) cos/√(1 - cos²) follows Student's law, which for large D is that
    of √D cos. Matrices have no such chance level: what is common to all of them has a cosine.
    """
    if not task.model.of_rows:
        return result
    chance = _CHANCE / jnp.sqrt(task.data.dimension - 1.0 + _CHANCE**2)
    nothing = jnp.all(jnp.abs(cosines) < chance, axis=-1)  # not of NaN, without a teacher
    blind = (result == Result.SUCCESS) & nothing
    return jnp.where(blind, int(Result.NOTHING_LEARNED), result)


def _solution(task: Task, end: DescentEnd, key: PRNGKeyArray) -> Solution:
    """The last record of a run (or of each run) as a solution."""
    model = task.model
    data = task.data
    dtype = theory_dtype()
    P = model.indices
    runs = end.result.shape
    place = jnp.sum(jnp.isfinite(end.history["step"]), axis=-1) - 1

    def last(values: Array) -> Array:
        if not runs:
            return values[place]
        return jax.vmap(lambda v, i: v[i])(values, place)

    lost = end.result == Result.NONFINITE
    alpha = jnp.inf
    if isinstance(data, Dataset):
        alpha = model.complexity(data.samples, data.dimension)
    weights = end.state.weights
    return Solution(
        overlap=jnp.where(lost[..., None, None], jnp.nan, last(end.history["overlap"])),
        stderr=jnp.zeros((*runs, P, P), dtype),
        error=jnp.where(lost, jnp.nan, last(end.history["error"])),
        alpha=jnp.broadcast_to(jnp.asarray(alpha, dtype), runs),
        steps=end.state.step,
        residual=end.change,
        result=_outcome(task, end.result, last(end.history["cosine"])),
        history=end.history,
        covariance=jnp.full((*runs, P, P), jnp.nan, dtype),
        rho=jnp.full(runs, jnp.nan, dtype),
        weights=jax.vmap(model.estimate)(weights) if runs else model.estimate(weights),
        state=end.state,
        model=model,
        key=key,
        kind="train",
    )
