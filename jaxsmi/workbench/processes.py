"""Processes on this machine, each a program of its own: no fork of a JAX that has threads.

No equation lives here.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jax

from jaxsmi.core.cache import SETTINGS
from jaxsmi.core.calls import keep, kept_in

__all__ = ["processes"]


def processes(count: int) -> ProcessPoolExecutor:
    """A pool of `count` processes in the precision of this one, which keep their programs where it
    does and leave Ctrl-C to it."""
    settings = {name: jax.config.values[name] for name in ("jax_enable_x64", *SETTINGS)}
    spawn = multiprocessing.get_context("spawn")
    initargs = (settings, kept_in())
    return ProcessPoolExecutor(count, spawn, initializer=_begin, initargs=initargs)


def _begin(settings: Mapping[str, object], calls: Path | None) -> None:
    """Before the first task of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name, value in settings.items():
        jax.config.update(name, value)
    keep(calls)
