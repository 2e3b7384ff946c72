"""Processes on this machine, each a program of its own: no fork of a JAX that has threads.

No equation lives here.
"""

from __future__ import annotations

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor

import jax

__all__ = ["processes"]


def processes(count: int) -> ProcessPoolExecutor:
    """A pool of `count` processes in the precision of this one, which leave Ctrl-C to it."""
    x64 = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, spawn, initializer=_begin, initargs=(x64,))


def _begin(x64: bool) -> None:
    """Before the first task of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jax.config.update("jax_enable_x64", x64)
