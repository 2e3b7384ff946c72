"""TODO workbench.sweeps.cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxsmi.core.checks import check

if TYPE_CHECKING:
    from jaxsmi.workbench.sweeps.grid import Sweep


if TYPE_CHECKING:
    pass

_RETRIES = 5  # of rows whose worker is lost


# Where rows are solved -----------------------------------------------------------------------------------------------------


Solved = tuple[Sequence[int], list[dict[str, np.ndarray]]]


def solve_here(task: Sweep, chunks: list[list[int]]) -> Iterator[Solved]:
    for numbers in chunks:
        yield numbers, task.solve(numbers)


def _solved_there(task: Sweep, numbers: list[int], x64: bool) -> Solved:
    jax.config.update("jax_enable_x64", x64)  # a worker is a program of its own
    return numbers, task.solve(numbers)


@contextlib.contextmanager
def _client(scheduler: Any) -> Iterator[Any]:
    """A client of the cluster: a user's own stays open."""
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
            Client(cluster) as own,
        ):
            yield own
    elif isinstance(scheduler, str):
        with Client(scheduler) as own:
            yield own
    else:
        yield scheduler


def solve_there(task: Sweep, chunks: list[list[int]], scheduler: Any) -> Iterator[Solved]:
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    with _client(scheduler) as client:
        from dask.distributed import as_completed

        futures = [
            client.submit(_solved_there, task, numbers, x64, pure=False, retries=_RETRIES)
            for numbers in chunks
        ]
        for future in as_completed(futures):
            yield future.result()
            future.release()
