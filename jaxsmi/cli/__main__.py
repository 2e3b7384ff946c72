"""`jaxsmi`, and `python -m jaxsmi`: the command line. No equation lives here."""

import importlib
import os
import sys
import warnings

from jaxsmi.cli import interrupts

__all__ = ["start"]

_NO_READER = 141  # of a program that writes to a closed pipe, as in `jaxsmi .. | head`


def start() -> None:
    """The command line, as the shell calls it; ends the program.

    Raises:
        SystemExit: With the exit status.
    """
    interrupts.listen()
    # a helper of multiprocessing clears away what is left of us after Ctrl-C: it need not say so
    sys.warnoptions.append("ignore:resource_tracker")
    status = 0
    try:
        try:
            warnings.formatwarning = lambda message, *_, **__: f"jaxsmi: {message}\n"
            # not at the head of the file: it takes a second, in which Ctrl-C is heard already
            status = importlib.import_module("jaxsmi.cli.main").main()
        except SystemExit as end:  # of argparse
            status = end.code if isinstance(end.code, int) else 0
        sys.stdout.flush()
    except BrokenPipeError:
        # what is still in the buffer goes nowhere, or the interpreter would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _NO_READER
    if status == interrupts.STATUS:
        interrupts.leave(status)
    raise SystemExit(status)


if __name__ == "__main__":
    start()
