"""Ctrl-C: print and save the finished parts, and leave within a second with status 130.

XLA looks at no signal while it computes or compiles, and its threads must not run while the
interpreter shuts down. So a thread waits for the signal, does what `on_interrupt` was told, and
leaves by `os._exit`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable

STATUS = 130  # 128 + SIGINT, as shells report it

_PATIENCE = 5.0  # seconds that saving may take; it takes a fraction of one

writing = threading.Lock()  # held by whoever writes files and prints results

_actions: list[Callable[[], object]] = []


def on_interrupt(action: Callable[[], object]) -> None:
    """Set what is done before the program leaves."""
    _actions[:] = [action]


def act() -> None:
    """Do what was set before the program leaves."""
    for action in _actions or [lambda: print("jaxsmi: interrupted", file=sys.stderr)]:
        action()


def listen() -> None:
    """Wait for Ctrl-C, unless the parent process has it ignored or signals cannot be waited for
    (Windows). Call it before other threads and processes start: they inherit the blocked signal."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN or not hasattr(signal, "sigwait"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    """Leave at the first Ctrl-C."""
    signal.sigwait({signal.SIGINT})
    deadline = threading.Timer(_PATIENCE, os._exit, (STATUS,))
    deadline.daemon = True
    deadline.start()
    try:
        with writing:  # a result that is being printed is printed
            act()
    finally:
        leave(STATUS)


def leave(status: int) -> None:
    """End the program at once: its child processes, its output, then itself."""
    for process in multiprocessing.active_children():
        process.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe
            stream.flush()
    os._exit(status)
