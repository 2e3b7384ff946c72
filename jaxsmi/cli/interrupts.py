"""Ctrl-C: what is there is saved, and the program leaves within a second with the status 130.

XLA looks at no signal while it computes or compiles, and its threads must not be at work while the
interpreter takes itself down. So a thread of its own waits for the signal, does what `on_interrupt`
was given, and leaves by `os._exit`, whatever the others do. No equation lives here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

__all__ = ["STATUS", "act", "leave", "listen", "on_interrupt", "writing"]

STATUS = 130  # of a program that was interrupted

_PATIENCE = 5.0  # seconds that saving may take; it takes a fraction of one

writing = threading.Lock()  # held by whoever writes files and prints results

_actions: list[Callable[[], object]] = []


def on_interrupt(action: Callable[[], object]) -> None:
    """What is done before the program leaves, instead of what was to be done before."""
    _actions[:] = [action]


def act() -> None:
    """Do what is to be done before the program leaves."""
    for action in _actions or [_say]:
        action()


def listen() -> None:
    """Wait for Ctrl-C, if the program that started this one has not asked to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)  # the thread does it all
    threading.Thread(target=_wait, args=(ear, mouth), daemon=True).start()


def _wait(ear: socket.socket, mouth: socket.socket) -> None:
    """Leave at the first Ctrl-C; `mouth` is kept open."""
    while signal.SIGINT not in ear.recv(16):
        pass
    last = threading.Timer(_PATIENCE, os._exit, (STATUS,))
    last.daemon = True
    last.start()
    try:
        with writing:  # a result that is being printed is printed
            act()
    finally:
        mouth.close()
        leave(STATUS)


def _say() -> None:
    """Before a command is known."""
    print("jaxsmi: interrupted", file=sys.stderr)


def leave(status: int) -> None:
    """End the program at once: its processes, what it has printed, then itself."""
    for process in multiprocessing.active_children():
        process.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has gone
            stream.flush()
    os._exit(status)
