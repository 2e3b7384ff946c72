r"""Settings: records that several calls take, and those of JAX for a whole process.

A field of a record is None for the default of the call. Counts are static; numbers are arrays, so
that another value does not retrace. Importing the package sets nothing: `setup` is the one call.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, as_module, is_zero, warn_of_single
from jaxsmi.core.validate import FRACTION, POSITIVE

_PRECISIONS = ("controlled", "outer", "divergence", "state")


class Averages(eqx.Module):
    """Sampling of averages. A net is one randomised low-discrepancy (Sobol) sequence.

    Args:
        points: Quasi-random points, summed over nets.
        nets: Independent randomisations, at least 2: the standard error is their spread.

    Raises:
        ValueError: For a count out of its range.

    Example:
        >>> Averages(points=4096).nets is None
        True
    """

    points: int | None = eqx.field(static=True)
    nets: int | None = eqx.field(static=True)

    def __init__(self, points: int | None = None, nets: int | None = None):
        self.points = validate.optional(validate.count, "points", points)
        # one net has no spread, and so no error bar
        self.nets = validate.optional(validate.count, "nets", nets, 2)

    @classmethod
    def of(cls, averages: Averages | None) -> Averages:
        """Validate the argument `averages` of a call; None stands for the defaults."""
        return validate.settings("averages", averages, cls, "smi.Averages(points, nets)")

    def sizes(self, points: int, nets: int, images: int = 1) -> tuple[int, int]:
        """Return (points per net, nets), with the defaults of a call; a net has at least
        `images` points."""
        nets = nets if self.nets is None else self.nets
        points = points if self.points is None else self.points
        # each point comes with its mirror images, and a net must hold all of them
        return validate.count("points", points, images * nets) // nets, nets


class Iteration(eqx.Module):
    """How many steps an iteration takes, and when it ends.

    Args:
        max_steps: Step budget.
        tolerance: The iteration ends at a residual below it, which each solver defines. (The
            tolerance of a model is the error of integrals inside a step.)
        damping: Share of the old state in the new one, in [0, 1).
        newton: End by Newton steps; False: the plain trajectory.

    Raises:
        ValueError: For a number out of its range.

    Example:
        >>> Iteration(max_steps=10).max_steps
        10
    """

    max_steps: int | None = eqx.field(static=True)
    tolerance: Array | None
    damping: Array | None
    newton: bool | None = eqx.field(static=True)

    def __init__(
        self,
        max_steps: int | None = None,
        tolerance: ArrayLike | None = None,
        damping: ArrayLike | None = None,
        newton: bool | None = None,
    ):
        self.max_steps = validate.optional(validate.count, "max_steps", max_steps)
        self.tolerance = validate.optional(validate.number, "tolerance", tolerance, POSITIVE)
        self.damping = validate.optional(validate.number, "damping", damping, FRACTION)
        self.newton = validate.optional(validate.flag, "newton", newton)

    @classmethod
    def of(cls, iteration: Iteration | None) -> Iteration:
        """Validate the argument `iteration` of a call; None stands for the defaults."""
        return validate.settings("iteration", iteration, cls, "smi.Iteration(max_steps, ..)")


class Start(eqx.Module):
    """The start of an iteration.

    Args:
        overlap: Q (P, P), or a number times the second moment of the prior.
        teacher_overlap: With a learner, M (P, P*), or a number.
        variance: With a learner, V (P, P), or a number times the identity.
        direction_overlap: With a learner and fixed directions of the inputs, B (P, K), or a number.
        weights: Of message passing: the size of random weights, "spectral", "informed", the weights
            themselves, or a solution to continue.
        side_information: Strength λ in [0, 1) of a direct observation √λ W* + √(1-λ) noise of the
            signal. Default 0.

    Raises:
        ValueError: For a number out of its range.

    Example:
        >>> float(Start(overlap=0.5).overlap)
        0.5
    """

    overlap: Array | None
    teacher_overlap: Array | None
    variance: Array | None
    direction_overlap: Array | None
    weights: Any
    side_information: Array
    aided: bool = eqx.field(static=True)  # side information is not known to be zero

    def __init__(
        self,
        overlap: ArrayLike | None = None,
        teacher_overlap: ArrayLike | None = None,
        variance: ArrayLike | None = None,
        direction_overlap: ArrayLike | None = None,
        weights: Any = None,
        side_information: ArrayLike = 0.0,
    ):
        # message passing validates the weights: their shape depends on the model
        self.weights = weights
        # static: without side information its terms are not compiled
        self.aided = not is_zero(side_information)
        self.overlap = _numbers("overlap", overlap)
        self.teacher_overlap = _numbers("teacher_overlap", teacher_overlap)
        self.variance = _numbers("variance", variance)
        self.direction_overlap = _numbers("direction_overlap", direction_overlap)
        self.side_information = validate.number("side_information", side_information, FRACTION)


class Bayes(eqx.Module):
    """The Bayes-optimal learner, which knows the model, and its settings in message passing.

    Args:
        precision: How message passing estimates A, the precision of the field b = A W* + A^{1/2} ξ
            that the prior receives: "outer" (1/D) Σ g gᵀ, "divergence" -(1/D) Σ ∂g, "controlled"
            the first with a control variate, "state" the value of state evolution at the current V.
            Default: the model's own; indices "controlled", matrices "state", hardmax "outer".
        calibrate: Rescale A and b if the norm of b disagrees with A, and widen V if the labels
            disagree with it. Default: True for index models, False for matrices.

    Raises:
        ValueError: For another word.

    Example:
        >>> Bayes(precision="divergence").calibrate is None
        True
    """

    precision: str | None = eqx.field(static=True)
    calibrate: bool | None = eqx.field(static=True)

    def __init__(self, precision: str | None = None, calibrate: bool | None = None):
        self.precision = validate.optional(validate.choice, "precision", precision, _PRECISIONS)
        self.calibrate = validate.optional(validate.flag, "calibrate", calibrate)


class Record(eqx.Module):
    """A quantity that a run records besides its usual history, and how often it records.

    Args:
        function: Any function of a state (of the weights, in training) to a tree of arrays, kept in
            history["record"]. Default None.
        every: Steps between two records. Default None: that of the call (message passing each
            step, training 200 times in all).

    Raises:
        ValueError: For a `function` that is none, or `every` below one.

    Example:
        >>> Record(lambda state: state.omega.mean(), every=5).every
        5
    """

    function: Callable[..., PyTree] | None
    every: int | None = eqx.field(static=True)

    def __init__(self, function: Callable[..., PyTree] | None = None, every: int | None = None):
        allowed = "a function of a state"
        function = validate.optional(validate.function, "function", function, allowed)
        self.function = as_module(function)
        self.every = validate.optional(validate.count, "every", every)

    @classmethod
    def of(
        cls, record: Record | Callable[..., PyTree] | None, usual: int = 1
    ) -> tuple[Callable[..., PyTree] | None, int]:
        """The function and the steps between records, `usual` by default."""
        if not isinstance(record, Record):
            # validated here, because the argument of the call is `record`, not `function`
            allowed = "a function of a state, or smi.Record(..)"
            record = cls(validate.optional(validate.function, "record", record, allowed))
        return record.function, usual if record.every is None else record.every


def _numbers(name: str, value: ArrayLike | None) -> Array | None:
    """Validate None, a number or a matrix (B (P, 0) for inputs without fixed directions)."""
    allowed = "a number, or a matrix"
    array = validate.optional(validate.array, name, value, allowed, empty=True)
    validate.check(array is None or array.ndim in (0, 2), name, value, allowed)
    return array


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
_UNTESTED = (
    "quick_compile has no effect with jaxlib {}: its flags of XLA are known for {} alone. Results "
    "are the same, and compiling takes about twice as long. (smi.setup(quick_compile=False): no "
    "warning.)"
)

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
        x64: Enable double precision, which theory needs; False: float32, without the warning that
            says so. Default True.
        quick_compile: Let XLA compile faster and optimise less (a half of the compile time; long
            runs may be slower). It has no effect once a device has started, nor, with a warning,
            for versions of jaxlib whose flags are not known. Variables in XLA_FLAGS are left as
            they are. Default True.
        cache: Folder of JAX's persistent compilation cache, a gigabyte at most. A folder that JAX
            already has is kept. Default None: no cache is set.

    Raises:
        ValueError: For an argument of another type.
        OSError: Where the cache folder cannot be made.

    Example:
        >>> import jaxsmi as smi
        >>> smi.setup(quick_compile=False)
    """
    jax.config.update("jax_enable_x64", validate.flag("x64", x64))
    warn_of_single(x64)
    if validate.flag("quick_compile", quick_compile):
        _compile_quickly()
    folder = validate.optional(validate.path, "cache", cache)
    if folder is not None and jax.config.values["jax_compilation_cache_dir"] is None:
        path = Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)  # its files are run
        values = (_CACHE_SIZE, _CACHE_SECONDS, str(path))
        for name, value in zip(CACHE_SETTINGS, values, strict=True):
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX remembers that there was none


def user_cache() -> Path | None:
    """The cache folder of the command line: JAXSMI_CACHE, or `jaxsmi` in the user's cache folder;
    None where JAXSMI_CACHE is "off"."""
    setting = os.environ.get("JAXSMI_CACHE", "")
    if setting.lower() == "off":
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(setting or f"{caches}/jaxsmi").expanduser()


def _compile_quickly() -> None:
    version = importlib.metadata.version("jaxlib")
    if ".".join(version.split(".")[:2]) not in _TESTED:
        warnings.warn(_UNTESTED.format(version, " and ".join(_TESTED)), stacklevel=3)
        return
    before = os.environ.get("XLA_FLAGS", "")
    accelerated = importlib.metadata.entry_points(group="jax_plugins")
    quick = _QUICK_CPU if accelerated else _QUICK_CPU | _QUICK_LLVM
    new = [f"--{name}={value}" for name, value in quick.items() if name not in before]
    os.environ["XLA_FLAGS"] = " ".join([before, *new]).strip()
