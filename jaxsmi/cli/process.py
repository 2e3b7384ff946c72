"""The command line as a program: it leaves with status 130 at Ctrl-C, with 141 at a closed pipe.

XLA looks at no signal while it computes or compiles, and its threads must not run while the
interpreter shuts down. So a thread waits for Ctrl-C, prints and saves the finished parts as
`on_interrupt` was called with, and leaves by `os._exit` within a second.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_CLOSED_PIPE = 141  # 128 + SIGPIPE, as of any program in `.. | head`

_PATIENCE = 5.0  # seconds that saving may take; it takes a fraction of one

writing: threading.Lock = threading.Lock()  # held by whoever writes files and prints results

_actions: list[Callable[[], object]] = []


def start() -> None:
    """Run the command line as the shell calls it; ends the program.

    Raises:
        SystemExit: With the exit status.
    """
    _listen()
    # a helper of multiprocessing cleans up after Ctrl-C, and would warn that it does
    sys.warnoptions.append("ignore:resource_tracker")
    try:
        # imported here: it takes a fraction of a second, in which Ctrl-C is heard already
        status = importlib.import_module("jaxsmi.cli.main").main(setup=True)
        sys.stdout.flush()
    except BrokenPipeError:
        # the rest of the buffer goes nowhere: the interpreter would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _CLOSED_PIPE
    if status == INTERRUPTED:
        _leave()
    raise SystemExit(status)


def on_interrupt(action: Callable[[], object]) -> None:
    """Set what is done before the program leaves."""
    _actions[:] = [action]


def act() -> None:
    """Do what was set before the program leaves."""
    for action in _actions or [lambda: print("jaxsmi: interrupted", file=sys.stderr)]:
        action()


def _listen() -> None:
    """Wait for Ctrl-C, unless the parent process has it ignored or signals cannot be waited for
    (Windows). Call it before other threads and processes start: they inherit the blocked signal."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN or not hasattr(signal, "sigwait"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    """Leave at the first Ctrl-C."""
    signal.sigwait({signal.SIGINT})
    deadline = threading.Timer(_PATIENCE, os._exit, (INTERRUPTED,))
    deadline.daemon = True
    deadline.start()
    try:
        with writing:  # a result that is being printed is printed
            act()
    finally:
        _leave()


def _leave() -> None:
    """End the program at once: its child processes, its output, then itself."""
    for process in multiprocessing.active_children():
        process.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe
            stream.flush()
    os._exit(INTERRUPTED)
