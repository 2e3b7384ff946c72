r"""Gradient descent on the tasks of message passing, by any optax optimiser.

Equations here [theory: descent, Eqs. (1) to (3)], student weights Ŵ, outputs ŷ = link(Ŵ x/√D), a
batch B of samples:

    loss(Ŵ; B) = c Σ_{μ ∈ B} ℓ(ŷ_μ, y_μ),     c = 1/|B| ("mean"), 1 ("sum"), 1/D ("sum/D")
    Ŵ ← Ŵ + optimiser(∇loss),  `repeats` times on each batch; weight decay belongs to the optimiser

A coordinate of the gradient of the mean loss is O(1/D) along the teacher: plain SGD on "mean" wants
a learning rate of order D, on "sum/D" of order D/|B|.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, nan, theory_dtype
from jaxsmi.core.codes import RUNNING, Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Run, init_run, run_solver
from jaxsmi.core.results import Solution
from jaxsmi.descent.fit import (
    check_loss,
    check_one_pass,
    check_settings,
    initial_state,
)
from jaxsmi.descent.loop import Descent, Runs, TrainState
from jaxsmi.descent.options import Gradient, Monitor
from jaxsmi.descent.stream import Stream
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.teacher_student import squared_loss

# Weights are O(1) at the start, as the teacher's are, and so are those of a student that has
# learned it: a norm a hundred times as large is an overshoot.
_DIVERGED = 100.0
# standard deviations of the cosine of two random directions: 0.3 % of them are beyond
_CHANCE = 3.0
_RECORDS = 200  # of a run, by default: as many as a curve on a page can show
_LAST = ("overlap", "error", "cosine")


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
    data, monitor = check_settings(model, data, gradient, monitor)
    state = initial_state(model, data, optimizer, key, start)
    # last: it compiles a gradient
    check_loss(model, gradient.loss or squared_loss, data.dimension)
    if gradient.one_pass and isinstance(data, Dataset):
        check_one_pass(data, gradient, steps, state)
    every = min(monitor.every or max(steps // _RECORDS, 1), steps)
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
    unmet = int(Result.MAX_STEPS if early else Result.SUCCESS)
    code = jnp.where(end.result == RUNNING, unmet, end.result)
    norm, start = jax.vmap(optax.tree.norm), descent.start.weights
    # a start near zero may grow to O(1) per weight
    usual = jnp.maximum(norm(start), jnp.sqrt(float(start[0].size)))
    # weights that are not finite say more than their size
    overshoot = (norm(end.state.state.weights) > _DIVERGED * usual) & (code != Result.NONFINITE)
    code = jnp.where(overshoot, int(Result.DIVERGED), code)
    # the mean that all random matrices share has a cosine: they have no such chance level
    if not descent.model.design.rows:
        return code
    # √(D-1) cos/√(1 - cos²) of two random directions follows Student's law, which for large D is
    # that of √D cos
    chance = _CHANCE / jnp.sqrt(descent.data.dimension - 1.0 + _CHANCE**2)
    nothing = jnp.all(jnp.abs(cosines) < chance, axis=-1)  # false for NaN, without a teacher
    return jnp.where((code == Result.SUCCESS) & nothing, int(Result.NOTHING_LEARNED), code)


def _solution(descent: Descent, end: Run[Runs], key: PRNGKeyArray, several: bool) -> Solution:
    """The last records; the axis of runs is dropped unless there are several."""
    model, data = descent.model, descent.data
    dtype = theory_dtype()
    runs, P = end.result.shape, model.indices
    history = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), end.history)
    # a run that stopped early has NaN in the records after its last
    place = jnp.sum(jnp.isfinite(history["step"]), axis=-1) - 1
    last = {name: history[name][jnp.arange(runs[0]), place] for name in _LAST}
    result = _codes(descent, end, last["cosine"])
    # overlaps of the last finite record would hide that the weights are lost
    nonfinite = result == Result.NONFINITE
    alpha = jnp.inf
    if isinstance(data, Dataset):
        alpha = data.samples / model.design.entries(data.dimension)
    numbers = {
        "overlap": jnp.where(nonfinite[:, None, None], nan(), last["overlap"]),
        "stderr": jnp.zeros((*runs, P, P), dtype),
        "error": jnp.where(nonfinite, nan(), last["error"]),
        "alpha": jnp.full(runs, alpha, dtype),
        "steps": end.state.state.step,
        "residual": end.state.change,
        "result": result,
        "history": history,
        "covariance": jnp.full((*runs, P, P), nan(), dtype),
        "spectral_radius": jnp.full(runs, nan(), dtype),
        "weights": jax.vmap(model.student.estimate)(end.state.state.weights),
        "state": end.state.state,
    }
    if not several:
        numbers = jax.tree.map(lambda x: x[0], numbers)
    return Solution(**numbers, model=model, key=key, kind="train")
