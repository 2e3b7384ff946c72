"""The one loop of the library: an iteration is a solver with four methods, run by `run_solver`.

    state = solver.init()
    while running:
        state = solver.step(state, count)
        code = solver.terminate(state, count)         a result code, RUNNING while it goes on
        history[slot] = solver.observe(state, count)  every so many steps

Message passing, fixed points of state evolution, training, online SGD and proximal baselines are
such solvers. A solver of several runs at once returns a code for each, and goes on while one of
them is running. The history is NaN where nothing was recorded.

The loop is one `lax.while_loop`: it can be jitted, vmapped and differentiated forwards. Outside of
these it is cut into chunks of about a fifth of a second, after which the host updates the progress
bar and can be interrupted; the numbers are the same.
"""

from __future__ import annotations

import abc
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree, concrete, frozen, missing_array
from jaxsmi.core.results import RUNNING

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # notebooks without ipywidgets: bars are plain text
    from tqdm.auto import tqdm


# Progress bars, and the loop

_SOON = 2.0  # seconds: an unrequested bar of a shorter call would only flicker


def attended() -> bool:
    """True where a reader may see a bar: stderr is a terminal, or this is a notebook, and the
    environment does not set TQDM_DISABLE."""
    if os.environ.get("TQDM_DISABLE"):
        return False
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Bar(tqdm):
    """A progress bar; a context.

    Args:
        total: The count at the end.
        label: Its title.
        progress: True: it is shown; None: on a terminal and in a notebook, after two seconds.
    """

    def __init__(self, total: int, label: str, progress: bool | None) -> None:
        delay = _SOON if progress is None else 0.0
        shown = attended() if progress is None else progress
        self.count: int = 0  # a hidden bar of tqdm does not count
        super().__init__(total=total, desc=label, leave=False, disable=not shown, delay=delay)
        # the first step includes compilation, and a bar that stands still looks like a fault
        self.set_postfix_str("compiling", refresh=progress is True)

    def update(self, n: int = 1, beside: Mapping[str, str] | None = None) -> None:  # pyright: ignore
        """Count `n` more; `beside`: numbers to the right of the bar."""
        self.count += n
        if beside is not None:
            words = ", ".join(f"{name} {value}" for name, value in beside.items())
            self.set_postfix_str(words, refresh=False)
        super().update(n)


State = TypeVar("State")


class AbstractSolver(eqx.Module, Generic[State]):
    """An iteration. Numbers that change from call to call are arrays in its fields."""

    @abc.abstractmethod
    def init(self) -> State:
        """The state before the first step."""

    @abc.abstractmethod
    def step(self, state: State, count: Array) -> State:
        """One step, after `count` steps."""

    @abc.abstractmethod
    def observe(self, state: State, count: Array) -> dict[str, Array]:
        """The entry of the history after `count` steps; an empty dict: no history."""

    @abc.abstractmethod
    def terminate(self, state: State, count: Array) -> Array:
        """The result code after `count` steps, `RUNNING` while the iteration goes on."""

    def recorded(self, state: State, count: Array) -> Array:
        """The state belongs into the history when its turn has come."""
        return jnp.asarray(True)

    def progress(self, state: State) -> Mapping[str, str]:
        """Numbers beside the progress bar (on the host)."""
        return {}


class Run(eqx.Module, Generic[State]):
    """An iteration at some step: its state, result code (one for each of several runs) and history,
    arrays with a leading axis of records."""

    state: State
    step: Array
    result: Array
    history: dict[str, Array]


def new_run(solver: AbstractSolver[State], records: int) -> Run[State]:
    """A run before its first step, its start recorded, with room for `records` more entries of the
    history."""
    state = solver.init()
    zero = jnp.zeros((), int)
    shapes = jax.eval_shape(solver.observe, state, zero)
    fill = lambda x: missing_array((records + 1, *x.shape), x.dtype)
    history = {name: jax.tree.map(fill, entry) for name, entry in shapes.items()}
    history = _put(history, zero, solver.observe(state, zero))
    code = jax.eval_shape(solver.terminate, state, zero)
    run = Run(state, zero, jnp.full(code.shape, RUNNING), history)
    return jax.tree.map(lambda x: _strong(x) if eqx.is_array(x) else x, run)


def _strong(x: Array) -> Array:
    # the state after a step is not weakly typed: the first chunk and the next are one program
    return lax.convert_element_type(x, x.dtype) if jax.typeof(x).weak_type else x


def _put(history: dict[str, Array], slot: Array, entry: dict[str, Array]) -> dict[str, Array]:
    """Write an entry into a slot of the history; a slot beyond the end drops it, branch-free."""
    put = lambda h, x: h.at[slot].set(x.astype(h.dtype), mode="drop")
    return {name: jax.tree.map(put, past, entry[name]) for name, past in history.items()}


def advance(
    solver: AbstractSolver[State], run: Run[State], until: Array, every: Array | int = 1
) -> Run[State]:
    """The run at step `until`, or where it ended before; a record every so many steps."""

    def body(run: Run[State]) -> Run[State]:
        state = solver.step(run.state, run.step)
        count = run.step + 1
        code = solver.terminate(state, count).astype(run.result.dtype)
        history = run.history
        if history:
            due = (count % every == 0) & solver.recorded(state, count)
            beyond = jax.tree.leaves(history)[0].shape[0]
            slot = jnp.where(due, count // every, beyond)
            history = _put(history, slot, solver.observe(state, count))
        return Run(state, count, code, history)

    def running(run: Run[State]) -> Array:
        return jnp.any(run.result == RUNNING) & (run.step < until)

    return lax.while_loop(running, body, run)


# compiled: outside jit one program, not one an array
init_run: Callable[..., Run[Any]] = eqx.filter_jit(new_run)
_advance = eqx.filter_jit(advance)

_CHUNK_SECONDS = 0.2  # Ctrl-C is answered at once, and the host's share stays below a percent
_FIRST_CHUNK = 16  # many solves finish within 16 steps: one chunk, no host round trip


def run_solver(
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
        run: Its start, by `init_run`.
        max_steps: Step budget.
        every: Steps between records. Default 1.
        label: Name of the progress bar. Default None: no bar.
        unit: Counts of the bar for a step. Default 1.

    Returns:
        The `Run` at its end; its code is `RUNNING` where the budget ran out first.
    """
    every_steps = jnp.asarray(every)
    if not concrete((solver, run, every_steps)):
        return _advance(solver, run, jnp.asarray(max_steps), every_steps)
    name = type(solver).__name__ if label is None else label
    until = int(run.step)
    several_hosts = jax.process_count() > 1  # they must all call the same programs
    chunk = max_steps if several_hosts else _FIRST_CHUNK if label is None else 1
    with Bar(max_steps * unit, name, label is not None) as bar:
        while until < max_steps:
            until = min(until + chunk, max_steps)
            start = time.perf_counter()
            run = _advance(solver, run, jnp.asarray(until), every_steps)
            if not concrete(run):  # inside a transformation that the arguments do not show
                return _advance(solver, run, jnp.asarray(max_steps), every_steps)
            done = not np.any(np.asarray(run.result) == RUNNING)  # waits for the device
            beside = {} if label is None else solver.progress(run.state)
            bar.update(int(run.step) * unit - bar.count, beside)
            if done:
                break
            # a chunk grows at most eightfold: the first timing includes compilation
            chunks = _CHUNK_SECONDS / max(time.perf_counter() - start, 1e-9)
            chunk = chunk if several_hosts else max(int(chunk * min(chunks, 8.0)), 1)
    return run


def one_by_one(function: Callable[[], PyTree], inputs: PyTree) -> PyTree:
    """`function()`, a tree of arrays, from the `inputs` that it closes over; where these are traced
    it is constant under differentiation, and vmapped on a CPU one element comes after the other.

    The loops of a batch run until its last element is done, and conditions take both branches: six
    α of one model would take six times as long as the slowest of them.
    """
    if concrete(inputs):
        return function()
    closed = eqx.filter_closure_convert(function)
    arrays, rest = eqx.partition(closed, eqx.is_array)
    call = lambda arrays: eqx.combine(arrays, rest)()
    if jax.default_backend() == "cpu":
        call = jax.custom_batching.sequential_vmap(call)
    return call(frozen(arrays))
