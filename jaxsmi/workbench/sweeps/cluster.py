"""Where rows of a sweep are solved: in this process, in several on this machine, or on a Dask
cluster; again if a process is lost.

No equation lives here.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

import jax

from jaxsmi.core.checks import check
from jaxsmi.workbench.processes import processes
from jaxsmi.workbench.sweeps.rows import Row, Sweep

if TYPE_CHECKING:
    from dask.distributed import Client

__all__ = ["Solved", "solve_beside", "solve_here", "solve_there"]

_RETRIES = 5  # of rows whose worker is lost

Solved = tuple[Sequence[int], list[Row]]  # numbers of rows, and the rows


def solve_here(task: Sweep, chunks: list[list[int]]) -> Iterator[Solved]:
    """Chunks of rows, one after the other, in this process."""
    for numbers in chunks:
        yield numbers, task.solve(numbers)


def solve_beside(task: Sweep, chunks: list[list[int]], count: int) -> Iterator[Solved]:
    """Chunks of rows in `count` processes, as they are finished; those of a process that dies are
    solved again."""
    check(count >= 1, "scheduler", count, "an address, a Client, or a number of processes >= 1")
    packed = _packed(task)
    rest = {tuple(numbers) for numbers in chunks}
    for _ in range(1 + _RETRIES):
        if not rest:
            return
        pool = processes(min(count, len(rest)))
        try:
            jobs = [pool.submit(_solve, packed, numbers) for numbers in sorted(rest)]
            for job in as_completed(jobs):
                numbers, rows = job.result()
                rest.discard(tuple(numbers))
                yield numbers, rows
        except BrokenProcessPool:
            continue
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if rest:
        raise RuntimeError(
            f"sweep: {1 + _RETRIES} processes in a row died, with {len(rest)} parts left to solve "
            "(out of memory?)."
        )


def _packed(task: Sweep) -> bytes:
    """The sweep as it goes to a process; a ValueError where its functions cannot go."""
    try:
        import cloudpickle  # it takes lambdas, too; Dask brings it
    except ImportError:
        cloudpickle = pickle
    try:
        return cloudpickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as failure:
        allowed = (
            "with processes a function that a module defines; a lambda needs cloudpickle: "
            "pip install 'jaxsmi[cluster]'"
        )
        raise ValueError(f"build: got {task.build!r}; allowed: {allowed}.") from failure


def _solve(packed: bytes, numbers: tuple[int, ...]) -> Solved:
    """A chunk in a process."""
    return numbers, pickle.loads(packed).solve(numbers)


def solve_there(task: Sweep, chunks: list[list[int]], scheduler: str | Client) -> Iterator[Solved]:
    """Chunks of rows on a cluster, as they are finished."""
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    with _client(scheduler) as client:
        from dask.distributed import as_completed as finished

        futures = [
            client.submit(_solve_on_worker, task, numbers, x64, pure=False, retries=_RETRIES)
            for numbers in chunks
        ]
        for future in finished(futures):
            yield future.result()
            future.release()


def _solve_on_worker(task: Sweep, numbers: list[int], x64: bool) -> Solved:
    """A chunk on a worker, which is a program of its own and takes the precision of the caller."""
    jax.config.update("jax_enable_x64", x64)
    return numbers, task.solve(numbers)


@contextlib.contextmanager
def _client(scheduler: str | Client) -> Iterator[Client]:
    """A client of the cluster: one that the user gave stays open."""
    try:
        from dask.distributed import Client
    except ImportError as failure:
        raise ImportError("a scheduler needs dask: pip install 'jaxsmi[cluster]'") from failure
    if isinstance(scheduler, str):
        with Client(scheduler) as client:
            yield client
    else:
        yield scheduler
