"""Processes on this machine, each a program of its own: no fork of a JAX that has threads.

No equation lives here.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import SpawnContext, SpawnProcess

import jax

from jaxsmi.core.setup import CACHE_SETTINGS

__all__ = ["processes"]


class _Deaf(SpawnProcess):
    """A process that never hears Ctrl-C, not even before its first task, while it imports: a
    terminal sends it to all processes, and Python would print a traceback of each."""

    def start(self) -> None:
        """Begin, with the signal blocked: what a program blocks, the one that it starts does."""
        if sys.platform == "win32":  # signals cannot be blocked there
            super().start()
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Spawn(SpawnContext):
    """Processes that are programs of their own, and deaf."""

    Process = _Deaf


def processes(count: int) -> ProcessPoolExecutor:
    """A pool of `count` processes in the precision of this one, which keep their programs where it
    does and leave Ctrl-C to it."""
    settings = {name: jax.config.values[name] for name in ("jax_enable_x64", *CACHE_SETTINGS)}
    return ProcessPoolExecutor(count, _Spawn(), initializer=_begin, initargs=(settings,))


def _begin(settings: Mapping[str, object]) -> None:
    """Before the first task of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name, value in settings.items():
        jax.config.update(name, value)
