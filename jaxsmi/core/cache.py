"""Compiled programs kept on disk: what was compiled once, no later process compiles again.

The cache is JAX's own (`jax_compilation_cache_dir`), bounded in size, locked where processes share
it. Here stands where it lies. The command line keeps its programs; importing the library as one
sets no flag, and a script or notebook says so itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxsmi.core import calls

__all__ = ["SETTINGS", "keep_programs"]

VARIABLE = "JAXSMI_CACHE"
# what JAX is told, and processes that work for this one with it
SETTINGS = (
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_compilation_cache_dir",
)
SIZE = 2**30  # bytes: a gigabyte, some hundred runs; what was not used for longest goes first
SHORTEST = 0.1  # seconds: reading a program from disk takes some hundredths


def keep_programs(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep compiled programs on disk, for this process and all later ones: to be called once.

    A setting of JAX's own cache (`JAX_COMPILATION_CACHE_DIR`, or `jax_compilation_cache_dir`) is
    left as it is.

    Args:
        folder: Where they lie. Default None: where the environment's JAXSMI_CACHE says, nowhere if
            that is `off`; without it in `jaxsmi` of the user's cache folder (XDG_CACHE_HOME, else
            `~/.cache`, on all systems).

    Returns:
        The folder that programs are kept in; None where they are not.

    Raises:
        OSError: Where a `folder` that is given, or JAXSMI_CACHE, cannot be made.

    Example:
        >>> from jaxsmi.core.cache import keep_programs
        >>> keep_programs()  # doctest: +SKIP
        PosixPath('/home/me/.cache/jaxsmi')

    Cost:
        A gigabyte of disk at most. Reading a program takes some hundredths of a second.

    Source:
        JAX's persistent compilation cache; no equation.
    """
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if before is not None:
        return Path(before)
    wanted = os.environ.get(VARIABLE, "") if folder is None else os.fspath(folder)
    if folder is None and wanted.lower() == "off":
        return None
    kept = Path(wanted).expanduser() if wanted else _of_user()
    try:
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        if wanted:
            raise
        return None  # a user without a home: nothing was asked for
    jax.config.update("jax_compilation_cache_max_size", SIZE)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    jax.config.update("jax_compilation_cache_dir", str(kept))
    compilation_cache.reset_cache()  # what was compiled before has said that there is none
    calls.keep(kept / "calls")
    return kept


def _of_user() -> Path:
    """The folder of this library among the user's caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(caches) / "jaxsmi"
