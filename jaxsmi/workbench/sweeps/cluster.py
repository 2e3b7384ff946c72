"""Where rows of a sweep are solved: in this process, or on a Dask cluster, again if a worker is
lost.

No equation lives here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxsmi.core.checks import check
from jaxsmi.workbench.sweeps.rows import Row, Sweep

if TYPE_CHECKING:
    from dask.distributed import Client

__all__ = ["Solved", "solve_here", "solve_there"]

_RETRIES = 5  # of rows whose worker is lost

Solved = tuple[Sequence[int], list[Row]]  # numbers of rows, and the rows


def solve_here(task: Sweep, chunks: list[list[int]]) -> Iterator[Solved]:
    """Chunks of rows, one after the other, in this process."""
    for numbers in chunks:
        yield numbers, task.solve(numbers)


def solve_there(
    task: Sweep, chunks: list[list[int]], scheduler: str | int | Client
) -> Iterator[Solved]:
    """Chunks of rows on a cluster, as they are finished."""
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    with _client(scheduler) as client:
        from dask.distributed import as_completed

        futures = [
            client.submit(_solve_on_worker, task, numbers, x64, pure=False, retries=_RETRIES)
            for numbers in chunks
        ]
        for future in as_completed(futures):
            yield future.result()
            future.release()


def _solve_on_worker(task: Sweep, numbers: list[int], x64: bool) -> Solved:
    """A chunk on a worker, which is a program of its own and takes the precision of the caller."""
    jax.config.update("jax_enable_x64", x64)
    return numbers, task.solve(numbers)


@contextlib.contextmanager
def _client(scheduler: str | int | Client) -> Iterator[Client]:
    """A client of the cluster: one that the user gave stays open."""
    try:
        from dask.distributed import Client, LocalCluster
    except ImportError as failure:
        raise ImportError("a scheduler needs dask: pip install 'jaxsmi[cluster]'") from failure
    if isinstance(scheduler, (int, np.integer)):
        check(
            scheduler >= 1,
            "scheduler",
            scheduler,
            "an address, a Client, or a number of processes >= 1",
        )
        with (
            LocalCluster(
                n_workers=int(scheduler), threads_per_worker=1, dashboard_address=""
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
    elif isinstance(scheduler, str):
        with Client(scheduler) as client:
            yield client
    else:
        yield scheduler
