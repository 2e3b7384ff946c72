"""Settings of JAX for a whole process, in one explicit call; importing the package sets none."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxsmi.core import validate

# Fewer optimisations of programs that run once. On a CPU the older emitters of fused loops and
# LLVM's first level take half of the time to compile two-layer state evolution (empirical). At
# level 0 these emitters compiled a maximum inside a loop wrongly: tests/physics/test_jumps.py.
_QUICK_CPU = {
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_cpu_enable_concurrency_optimized_scheduler": "false",
}
_QUICK_LLVM = {  # would also slow the kernels of a GPU
    "xla_llvm_disable_expensive_passes": "true",
    "xla_backend_optimization_level": "1",
}
# versions of jaxlib that have these flags: XLA ends the process at a flag that it does not know
_TESTED = ("0.10",)

_CACHE_SIZE = 2**30  # bytes, some hundred runs; what was not used for longest goes first
_CACHE_SECONDS = 0.1  # reading a program takes some hundredths of a second
CACHE_SETTINGS = (
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_compilation_cache_dir",
)


def setup(
    x64: bool = True, quick_compile: bool = True, cache: str | os.PathLike[str] | None = None
) -> None:
    """Set up JAX for this process: call it once, before the first computation.

    Args:
        x64: Enable double precision, which theory needs. Default True.
        quick_compile: Let XLA compile faster and optimise less (a half of the compile time; long
            runs may be slower), with versions of jaxlib whose flags are known. It has no effect
            once a device has started. Variables in XLA_FLAGS are left as they are. Default True.
        cache: Folder of JAX's persistent compilation cache, a gigabyte at most. A folder that JAX
            was given otherwise stays. Default None: no cache is set.

    Raises:
        ValueError: For an argument of another type.
        OSError: Where the cache folder cannot be made.

    Example:
        >>> import jaxsmi as smi
        >>> smi.setup(quick_compile=False)
    """
    jax.config.update("jax_enable_x64", validate.flag("x64", x64))
    if validate.flag("quick_compile", quick_compile):
        _compile_quickly()
    folder = validate.optional(validate.path, "cache", cache)
    if folder is not None and jax.config.values["jax_compilation_cache_dir"] is None:
        kept = Path(folder).expanduser()
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)  # its files are run
        for name, value in zip(
            CACHE_SETTINGS, (_CACHE_SIZE, _CACHE_SECONDS, str(kept)), strict=True
        ):
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX remembers that there was none


def user_cache() -> Path | None:
    """The cache folder of the command line: JAXSMI_CACHE, or `jaxsmi` in the user's cache folder;
    None where JAXSMI_CACHE is "off"."""
    named = os.environ.get("JAXSMI_CACHE", "")
    if named.lower() == "off":
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named or f"{caches}/jaxsmi").expanduser()


def _compile_quickly() -> None:
    if importlib.metadata.version("jaxlib").rpartition(".")[0] not in _TESTED:
        return
    before = os.environ.get("XLA_FLAGS", "")
    accelerated = importlib.metadata.entry_points(group="jax_plugins")
    quick = _QUICK_CPU if accelerated else _QUICK_CPU | _QUICK_LLVM
    new = [f"--{name}={value}" for name, value in quick.items() if name not in before]
    os.environ["XLA_FLAGS"] = " ".join([before, *new]).strip()
