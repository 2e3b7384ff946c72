"""The one loop: whatever iterates in this library is a solver with four methods, run by `drive`.

    state = solver.init()
    while running:
        state = solver.step(state, count)
        code = solver.terminate(state, count)         a result code, RUNNING while it goes on
        history[slot] = solver.observe(state, count)  every so many steps

Message passing, state evolution's fixed points, training, online SGD and the proximal baselines are
such solvers. The driver counts the steps, keeps the history (NaN where nothing was recorded), stops
at the step budget, and shows how far it is. A solver of several runs at once returns a code for
each, and goes on while one of them is running.

The loop is one `lax.while_loop`: it can be jitted, vmapped and differentiated forwards. Outside of
these it is cut into stretches of about a fifth of a second, between which the host looks at the
state, for the progress bar and for whoever asked to be told (`watching`), and can be interrupted;
the numbers are the same.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree, concrete
from jaxsmi.core.border import checked, either, function, instance, optional, whole
from jaxsmi.core.codes import RUNNING
from jaxsmi.core.progress import Bar

__all__ = [
    "AbstractSolver",
    "Record",
    "RecoveryRay",
    "Run",
    "advance",
    "begin",
    "drive",
    "ready",
    "watching",
]

State = TypeVar("State")


class AbstractSolver(eqx.Module, Generic[State]):
    """An iteration, as the driver sees it. Numbers that change from call to call are arrays in its
    fields."""

    @abc.abstractmethod
    def init(self) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def step(self, state: State, count: Array) -> State:
        """One step; `count` is the number of steps taken before it."""

    @abc.abstractmethod
    def observe(self, state: State, count: Array) -> dict[str, Array]:
        """What is recorded of a state after `count` steps; nothing: an empty dict."""

    @abc.abstractmethod
    def terminate(self, state: State, count: Array) -> Array:
        """The result code of a state after `count` steps, `RUNNING` while the iteration goes on."""

    def recorded(self, state: State, count: Array) -> Array:
        """Whether a state belongs into the history where its turn has come (a non-finite one may
        not)."""
        del state, count
        return jnp.asarray(True)

    def progress(self, state: State) -> Mapping[str, str]:
        """What stands beside the progress bar (on the host)."""
        del state
        return {}


class Run(eqx.Module, Generic[State]):
    """Where an iteration is: its state, the steps taken, its result code (of several runs, one
    each) and its history, arrays with a leading axis of records."""

    state: State
    step: Array
    result: Array
    history: dict[str, Array]


def begin(solver: AbstractSolver[State], records: int, start: bool = True) -> Run[State]:
    """A run before its first step.

    Args:
        solver: The iteration.
        records: Entries of the history beyond that of the start.
        start: Whether the state before the first step is the first record. Default True.

    Returns:
        A `Run` at step 0.
    """
    state = solver.init()
    zero = jnp.zeros((), int)
    shapes = jax.eval_shape(solver.observe, state, zero)
    history = {
        name: jax.tree.map(
            lambda x: jnp.full((records + 1, *x.shape), jnp.nan, _inexact(x.dtype)), entry
        )
        for name, entry in shapes.items()
    }
    if start:
        history = _put(history, zero, solver.observe(state, zero))
    code = jax.eval_shape(solver.terminate, state, zero)
    run = Run(state, zero, jnp.full(code.shape, RUNNING), history)
    return jax.tree.map(lambda x: _strong(x) if eqx.is_array(x) else x, run)


def _strong(x: Array) -> Array:
    """The array, not of a weak type: that of a run after some steps, so that these and the next are
    one program."""
    return lax.convert_element_type(x, x.dtype) if jax.typeof(x).weak_type else x


def _inexact(dtype: jnp.dtype) -> jnp.dtype:
    """A type that has a NaN, to mark what was not recorded."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)


def _put(history: dict[str, Array], slot: Array, entry: dict[str, Array]) -> dict[str, Array]:
    """The history with an entry at a slot; a slot beyond its end drops the entry."""
    return {
        name: jax.tree.map(
            lambda h, x: h.at[slot].set(x.astype(h.dtype), mode="drop"), past, entry[name]
        )
        for name, past in history.items()
    }


def advance(
    solver: AbstractSolver[State], run: Run[State], until: Array, every: Array | int = 1
) -> Run[State]:
    """The run at step `until`, or where it ended before; a record every so many steps.

    Args:
        solver: The iteration.
        run: Where it is.
        until: The step, of this run, to stop at.
        every: Steps between records. Default 1.

    Returns:
        The `Run` there.
    """

    def body(run: Run[State]) -> Run[State]:
        state = solver.step(run.state, run.step)
        count = run.step + 1
        code = solver.terminate(state, count).astype(run.result.dtype)
        history = run.history
        if history:
            due = (count % every == 0) & solver.recorded(state, count)
            beyond = jax.tree.leaves(history)[0].shape[0]
            history = _put(
                history, jnp.where(due, count // every, beyond), solver.observe(state, count)
            )
        return Run(state, count, code, history)

    def running(run: Run[State]) -> Array:
        return jnp.any(run.result == RUNNING) & (run.step < until)

    return lax.while_loop(running, body, run)


ready = eqx.filter_jit(begin)  # from outside jit: one program instead of one an array
_advance = eqx.filter_jit(advance)


_SECONDS = 0.2  # of a stretch: short enough to be interrupted, long beside its start
_UNSEEN = 16  # steps of the first one where nobody looks on: many runs are over by then

_watchers: list[Callable[[Run[Any], int], object]] = []


@contextlib.contextmanager
def watching(watcher: Callable[[Run[Any], int], object]) -> Iterator[None]:
    """Inside the block `watcher(run, max_steps)` is called after each stretch of each run."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def drive(
    solver: AbstractSolver[State],
    run: Run[State],
    max_steps: int,
    *,
    every: int = 1,
    label: str | None = None,
    unit: int = 1,
) -> Run[State]:
    """Run an iteration to its end, with a progress bar if it has a label.

    Args:
        solver: The iteration.
        run: Where it begins.
        max_steps: Steps at most.
        every: Steps between records. Default 1.
        label: What the progress bar is called; None: no bar.
        unit: What the bar counts for a step. Default 1.

    Returns:
        The `Run` at its end; its code is `RUNNING` where the steps ran out before the solver said
        anything.
    """
    every_steps = jnp.asarray(every)
    if not concrete((solver, run, every_steps)):
        return _advance(solver, run, jnp.asarray(max_steps), every_steps)
    name = type(solver).__name__ if label is None else label
    with Bar(max_steps * unit, name, label is not None, "compiling") as bar:
        until = int(run.step)
        alike = jax.process_count() > 1  # hosts that run one program take the same stretches
        stretch = 1 if label is not None or _watchers else max_steps if alike else _UNSEEN
        while until < max_steps:
            until = min(until + stretch, max_steps)
            begin = time.perf_counter()
            run = _advance(solver, run, jnp.asarray(until), every_steps)
            if not concrete(run):  # a function in the solver holds traced numbers
                return _advance(solver, run, jnp.asarray(max_steps), every_steps)
            done = not np.any(np.asarray(run.result) == RUNNING)  # waits for the device
            more = int(run.step) * unit - bar.count
            bar.update(more, {} if label is None else solver.progress(run.state))
            for watcher in _watchers:
                watcher(run, max_steps)
            if done:
                break
            stretch = stretch if alike else _next(stretch, time.perf_counter() - begin)
    return run


def _next(stretch: int, seconds: float) -> int:
    """The next stretch: of about `_SECONDS`, and at most eight times as long, as steps differ."""
    return max(min(8 * stretch, int(stretch * _SECONDS / max(seconds, 1e-9))), 1)


_FUNCTION = optional(function("a function of a state"))


class Record(eqx.Module):
    """What a run records of its states, beside what it always does, and how often.

    Args:
        function: Any function of a state (of the weights, in training) whose answer is a tree of
            arrays, kept in history["record"]; None: nothing more.
        every: Steps between two records, of everything. Default None: as often as the run does
            without a Record (message passing each step, training 200 times in all).

    Raises:
        ValueError: For a `function` that is none, or `every` below one.

    Example:
        >>> Record(lambda state: state.omega.mean(), every=5).every
        5
    """

    function: Callable[..., PyTree] | None
    every: int | None = eqx.field(static=True)

    @checked(function=_FUNCTION, every=optional(whole()))
    def __init__(self, function: Callable[..., PyTree] | None = None, every: int | None = None):
        self.function = function
        self.every = every

    @classmethod
    def of(
        cls, record: Record | Callable[..., PyTree] | None, usual: int = 1
    ) -> tuple[Callable[..., PyTree] | None, int]:
        """What is recorded and how often; `usual`: the steps between records where nothing is said
        of them."""
        made = record if isinstance(record, Record) else cls(record)
        return made.function, usual if made.every is None else made.every


is_record = optional(
    either("a function of a state, or a Record", instance(Record, ""), function(""))
)


class RecoveryRay(eqx.Module):
    """Perfect recovery as an iteration sees it: V falls to zero along a ray, by the same factor a
    step.

    The ray is reached once tr V is below 1e-3 of its largest value, its ratio from step to step
    below `slowest`, and that ratio steady to `spread`, for `steps` steps; or once tr V has fallen
    to rounding, 1e-12 of its largest value. Theory has no fluctuations and may ask for a steady
    ratio; a run of finite dimension fluctuates, and must be watched for longer.
    """

    largest: Array
    slowest: float = eqx.field(static=True)
    spread: float = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def follow(self, count: Array, trace: Array, ratio: Array, previous: Array) -> Array:
        """How many steps in a row V has been on the ray: `trace` of V, and its last two ratios."""
        falling = (trace < 1e-3 * self.largest) & (ratio < self.slowest)
        return jnp.where(falling & (jnp.abs(ratio - previous) < self.spread), count + 1, 0)

    def reached(self, count: Array, trace: Array) -> Array:
        """Whether V is on its way to zero, or there."""
        return (count >= self.steps) | (trace < 1e-12 * self.largest)
