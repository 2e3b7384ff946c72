"""The command line as a program: status 130 after Ctrl-C, 141 after a closed pipe."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import types

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_CLOSED_PIPE = 141  # 128 + SIGPIPE, as of any program in `.. | head`


def start() -> None:
    """Run the command line as the shell calls it; ends the program with the exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored
        signal.signal(signal.SIGINT, _leave)
    try:
        # imported here: it takes a fraction of a second, in which Ctrl-C is answered already
        status = importlib.import_module("jaxsmi.cli.main").main(setup=True)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("jaxsmi: interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:
        # the rest of the buffer goes nowhere: the interpreter would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _CLOSED_PIPE
    if status:
        sys.stderr.flush()
        os._exit(status)  # leave at once: Python would wait for threads that compute


def raise_at_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _raise)


def _leave(*_: object) -> None:
    """Leave at Ctrl-C during imports: jaxlib swallows a KeyboardInterrupt there, or crashes."""
    os.write(2, b"jaxsmi: interrupted\n")
    os._exit(INTERRUPTED)


def _raise(number: int, frame: types.FrameType | None) -> None:
    if frame is not None and _drops_exceptions(frame):
        threading.Timer(0.1, signal.raise_signal, (number,)).start()  # try again
        return
    raise KeyboardInterrupt


def _drops_exceptions(frame: types.FrameType) -> bool:
    """Python drops what callbacks of its garbage collector and of weak references raise; JAX has
    one that runs at each collection."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    module = frame.f_globals.get("__name__")
    # weakref_cb: of the threads of concurrent.futures
    known = frame.f_code in callbacks or frame.f_code.co_name == "weakref_cb"
    return known or module in ("weakref", "_weakrefset")
