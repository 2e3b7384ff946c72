"""Warnings, which point at a line of the user, not into a library. No equation lives here."""

from __future__ import annotations

import inspect
import warnings

__all__ = ["plainly", "warn"]

_PREFIX = "jaxsmi: "

# between the user's line and the one that warns there may be frames of these: constructors and
# transformations, and the threads of a pool
_LIBRARIES = frozenset(
    {
        "concurrent",
        "contextlib",
        "diffrax",
        "equinox",
        "functools",
        "jax",
        "jaxlib",
        "jaxsmi",
        "jaxtyping",
        "lineax",
        "multiprocessing",
        "optax",
        "optimistix",
        "threading",
    }
)


def plainly() -> None:
    """Show warnings of this package as a sentence, without a line of code: where the user wrote
    none, as on a command line."""
    usual = warnings.formatwarning

    def shown(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        said = str(message)
        ours = said != said.removeprefix(_PREFIX)
        return f"{said}\n" if ours else usual(message, category, filename, lineno, line)

    warnings.formatwarning = shown


def warn(said: str) -> None:
    """Warn of something, at the innermost line that is of no library; once a line for the same
    words, if the user's filters leave it so."""
    own = inspect.currentframe()
    caller = None if own is None else own.f_back
    del own  # a frame that knows itself lives on, with all that its callers hold
    frame = caller
    while frame is not None and _room(frame.f_globals) in _LIBRARIES:
        frame = frame.f_back
    place = caller if frame is None else frame
    if place is None:  # a Python without frames
        warnings.warn(f"{_PREFIX}{said}", stacklevel=2)
        return
    warnings.warn_explicit(
        f"{_PREFIX}{said}",
        UserWarning,
        place.f_code.co_filename,
        place.f_lineno,
        module=place.f_globals.get("__name__"),
        registry=place.f_globals.setdefault("__warningregistry__", {}),
    )


def _room(names: dict[str, object]) -> str:
    """The package that a frame's names belong to."""
    return str(names.get("__name__", "")).partition(".")[0]
