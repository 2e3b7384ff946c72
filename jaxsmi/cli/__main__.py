"""`jaxsmi` and `python -m jaxsmi`: the command line."""

import importlib
import os
import sys

from jaxsmi.cli import interrupts

_CLOSED_PIPE = 141  # 128 + SIGPIPE, as of any program in `.. | head`


def start() -> None:
    """Run the command line as the shell calls it; ends the program.

    Raises:
        SystemExit: With the exit status.
    """
    interrupts.listen()
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
    if status == interrupts.STATUS:
        interrupts.leave(status)
    raise SystemExit(status)


if __name__ == "__main__":
    start()
