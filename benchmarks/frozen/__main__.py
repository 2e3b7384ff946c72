"""Numbers of the public API of jaxsmi, recorded to a file and compared between two trees.

    PYTHONPATH=TREE python benchmarks/frozen record FILE [--only GROUP ...] [--list] [--again]
    python benchmarks/frozen compare BEFORE AFTER [--rtol 1e-12] [--scale part|entry] [--quiet]

Which tree is recorded: PYTHONPATH. JAX on the CPU, one thread, float64, fixed keys. GROUP may be a
pattern ("gamp*").

An entry is one result: its parts (overlap, stderr, history/cosine ..) are nested lists of floats at
full precision. Arrays of more than `LONG` numbers are kept as a digest (norm, sum, a fixed
random-like combination, first entries). An entry that raises is kept as "raises: Type: message".
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# one thread; compilation, which takes most of the time, at the lowest level that vectorises
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1 --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false")  # fmt: skip
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import jax
from comparing import compare

CASES = (
    "models", "message_passing", "state_evolution", "thresholds", "descent", "sgd", "workbench",
)  # fmt: skip


def record_groups(given):
    """Record the groups that were asked for, or list them all."""
    jax.config.update("jax_enable_x64", True)
    if given.cache:
        jax.config.update("jax_compilation_cache_dir", os.path.abspath(given.cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    import recording  # jaxsmi: once the precision is set

    for cases in CASES:
        importlib.import_module(f"cases_{cases}")
    if given.list:
        for name, function in recording.GROUPS.items():
            print(f"{name:22s} {function.__doc__}")
        return
    recording.record(given.file, given.only, given.again)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("file", nargs="?")
    one.add_argument("--only", nargs="*")
    one.add_argument("--list", action="store_true")
    one.add_argument("--again", action="store_true")
    one.add_argument(
        "--cache",
        help="a folder of compiled programs: those that did not change are not compiled again",
    )
    two = commands.add_parser("compare")
    two.add_argument("before")
    two.add_argument("after")
    two.add_argument("--rtol", type=float, default=1e-12)
    two.add_argument(
        "--scale",
        choices=("part", "entry"),
        default="part",
        help="what a difference is relative to",
    )
    two.add_argument("--quiet", action="store_true", help="only what is beyond, and the counts")
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after, given.rtol, given.scale, given.quiet)
    if not given.list and not given.file:
        parser.error("record needs a FILE")
    record_groups(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
