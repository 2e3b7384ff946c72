r"""Arrays: precision, values that may be traced, and functions of a user as pytrees.

    c = jnp.array(0.5)                                  # or a tracer, inside jax.grad
    link = as_module(lambda z: jnp.tanh(c * z[0, 0]))   # an eqx.Module with the leaf c

A link, loss or likelihood that closes over a traced array would otherwise leak the tracer, or lose
its derivative where a solver has a rule of its own. `jax.closure_convert` would give a jaxpr of one
shape and one precision; here the Python function itself is pickled with its arrays taken out, and
unpickled with others in their places.

Arrays are found wherever cloudpickle looks: in closure cells, default values, the `self` of bound
methods, arguments of `functools.partial`, functions under `jax.jit`, containers, attributes of
objects, and globals of the user's own functions. JAX arrays become leaves. Python numbers and NumPy
arrays stay static, compared by value: two functions of equal code that close over equal values are
one compiled program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import operator
import pickle
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Hashable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array

if TYPE_CHECKING:
    PyTree: TypeAlias = Any  # type checkers see no type in jaxtyping's PyTree
else:
    from jaxtyping import PyTree

Tree = TypeVar("Tree")

_SINGLE = (
    "channels and fixed points need float64, which is off. Call smi.setup() at the start "
    "of the program; until then errors below about 1e-3 are not reached, and reported errors are "
    "floored there. (smi.setup(x64=False) asks for float32: no warning.)"
)
_warned = False
_TRACERS = ("jax", "equinox")
# up to so many numbers NumPy on the host is faster than compiling an operation of jax.numpy
_FEW = 2**16


def array_module(*values: PyTree) -> ModuleType:
    """NumPy where values are known to this process and few, jax.numpy elsewhere: outside jit every
    operation of jax.numpy is a program of its own, which takes longer to compile than all checks
    together."""
    leaves = jax.tree.leaves(values)
    few = sum(np.size(leaf) for leaf in leaves) <= _FEW
    return np if few and concrete(values) and all(map(_addressable, leaves)) else jnp


def _addressable(leaf: object) -> bool:  # an array may lie on several hosts
    alone = not isinstance(leaf, jax.Array)
    return alone or leaf.is_fully_addressable or leaf.is_fully_replicated


def nan_unless(x: Array, *conditions: ArrayLike) -> Array:
    """x where all conditions hold, else NaN, which `validate.valid` finds."""
    for condition in conditions:
        if not concrete(condition):  # inside jit, where jax_debug_nans ignores a NaN
            x = jnp.where(condition, x, jnp.nan)
        elif not bool(condition):
            x = missing_where(True, x)
    return x


def clamp_to_tiny(x: Array) -> Array:
    """x, at least the smallest normal number of its type, so that logs and quotients stay finite.
    (A literal such as 1e-300 is zero in float32.)"""
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)


def symmetric(matrix: Array) -> Array:
    """The symmetric part of matrices (..., P, P)."""
    return 0.5 * (matrix + matrix.swapaxes(-1, -2))


def positive_root(square: Array, least: ArrayLike = 0.0) -> Array:
    """√square; zero up to `least`, without the derivative that is infinite at zero."""
    positive = square > least
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def missing() -> float:
    """The mark of unknown numbers: NaN, or infinity with jax_debug_nans, which stops at NaN.

    It is a constant of compiled programs. A user's own jit stops at the NaN of one compiled before
    jax_debug_nans was switched on; `jax.clear_caches()` compiles it again."""
    debugging = jax.config.jax_debug_nans  # pyright: ignore[reportAttributeAccessIssue]
    return jnp.inf if debugging else jnp.nan


def missing_array(shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """An array of `missing()`, in the default precision where the dtype has none."""
    return jnp.full(shape, missing(), dtype if jnp.issubdtype(dtype, jnp.inexact) else float)


def missing_where(condition: ArrayLike, x: Array) -> Array:
    """x, marked as `missing_array` where the condition holds."""
    return jnp.where(condition, missing(), x)


def concrete(value: PyTree) -> bool:
    """True where no leaf is a tracer, so that values can be validated."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def frozen(tree: Tree) -> Tree:
    """The tree, constant under differentiation."""
    return jax.tree.map(lambda x: lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


def theory_dtype() -> jnp.dtype:
    """float64 where JAX has it enabled; else float32, with one warning."""
    global _warned
    if jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        return jnp.dtype("float64")
    if not _warned:
        _warned = True
        warnings.warn(_SINGLE, stacklevel=users_level())
    return jnp.dtype("float32")


def precision_of(*values: object) -> jnp.dtype:
    """The finest floating-point precision of some arrays; that of theory where none has one."""
    dtypes = [x.dtype for x in values if isinstance(x, (jax.Array, np.ndarray))]
    dtypes = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    # not jnp.result_type: strict dtype promotion allows no mixture
    return max(dtypes, key=lambda dtype: dtype.itemsize, default=theory_dtype())


def warn_of_single(warn: bool) -> None:
    """Warn once more where float64 is off; False: never, the user asked for float32."""
    global _warned
    _warned = not warn


def users_level() -> int:
    """The `stacklevel`, seen from the caller, of the line that called the package."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    packages = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    # the outermost call: between frames of the package are those of JAX, which traces it
    level = max((k for k, package in enumerate(packages, 1) if package == "jaxsmi"), default=1)
    # and that may be by way of a method of a module, or of jax.vmap
    between = itertools.takewhile(lambda package: package in _TRACERS, packages[level:])
    return level + sum(1 for _ in between) + 1


def is_zero(value: object) -> bool:
    """True where the number is known to be zero. Inside jit call it before jnp.asarray, which
    traces known numbers."""
    return concrete(value) and not np.any(np.asarray(value) != 0)


_Function = TypeVar("_Function", bound="Callable[..., Any] | None")


@dataclasses.dataclass(frozen=True)
class _Template:
    """A function without its arrays; equal to another of equal code and static values.

    `constants` are objects that are not pickled but compared by identity: by address in the key.
    The template keeps them alive, so that no other object gets the address.
    """

    key: Hashable
    original: Any = dataclasses.field(compare=False)
    constants: dict[int, Any] = dataclasses.field(compare=False)


class ClosedFunction(eqx.Module):
    """A function whose arrays are leaves. Made by `as_module`.

    Attributes:
        arrays: The arrays that the function closes over, and `eqx.Module`s with arrays.
        template: The function without these.
    """

    arrays: tuple[Any, ...]
    template: _Template = eqx.field(static=True)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)

    def __reduce__(self) -> tuple[Any, ...]:
        # addresses of constants are those of this process: another one takes the arrays out anew
        return as_module, (self.function,)

    @property
    def function(self) -> Callable[..., Any]:
        """The Python function, with the arrays in their places."""
        # a function without arrays stays the same object, as do lists that its owner appends to
        if not self.arrays:
            return self.template.original
        return _Unpickler(self.template, self.arrays).load()

    @property
    def __name__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        function = self.template.original
        return getattr(function, "__qualname__", type(function).__name__)


def as_module(function: _Function) -> _Function:
    """The function as a pytree, with the arrays that it closes over as leaves.

    Args:
        function: A callable, or None.

    Returns:
        A `ClosedFunction`, whose `function` without arrays is the function itself. An `eqx.Module`
        stays one, with the functions in its leaves converted. None stays None.
    """
    if isinstance(function, eqx.Module) and hasattr(function, "__wrapped__"):  # eqx.filter_jit
        return as_module(function.__wrapped__)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(function, eqx.Module) or function is None:
        convert = lambda leaf: as_module(leaf) if callable(leaf) else leaf
        return jax.tree.map(convert, function)
    pickler = _Pickler()
    try:
        pickler.dump(function)
    except Exception:  # an object's own pickling may raise anything: equal to itself only, then
        template = _Template(id(function), function, {})
        return ClosedFunction((), template)  # pyright: ignore[reportReturnType]
    template = _Template(pickler.file.getvalue(), function, pickler.constants)
    return ClosedFunction(tuple(pickler.arrays), template)  # pyright: ignore[reportReturnType]


def check_closure(name: str, function: Callable[..., Any], *values: PyTree) -> None:
    """Raise a ValueError for a function of these values (arrays, or their shapes) that depends on a
    traced array which `as_module` did not find."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), values)
    dynamic, static = eqx.partition(function, eqx.is_array)
    jaxpr = jax.make_jaxpr(lambda d, v: eqx.combine(d, static)(*v))(dynamic, shapes)
    if any(isinstance(constant, Tracer) for constant in jaxpr.consts):
        raise ValueError(
            f"{name}: got a function that depends on a traced array in a place that is not "
            "searched; allowed: arrays in its closure, its default values or functools.partial, or "
            "an eqx.Module with the array as a field."
        )


class _Pickler(cloudpickle.Pickler):
    """Pickles a function and takes its arrays out."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        self.arrays: list[Any] = []
        self.constants: dict[int, Any] = {}
        super().__init__(self.file)

    def persistent_id(self, obj: Any) -> int | None:
        """Return the place of an array, or of a module that may hold some; -1: the constants."""
        if obj is self.constants:
            return -1
        if not isinstance(obj, (jax.Array, eqx.Module)):
            return None
        module: Any = obj if isinstance(obj, eqx.Module) else None
        self.arrays.append(obj if module is None else as_module(module))
        return len(self.arrays) - 1

    def reducer_override(self, obj: Any) -> Any:
        """Keep objects that have no copies: classes, and unpicklable ones (caches, locks)."""
        if isinstance(obj, types.FunctionType) or type(obj) in self.dispatch_table:
            return super().reducer_override(obj)
        # cloudpickle would copy a class of a notebook, and unpickle into the class itself: its
        # methods would then hold the tracers of the solver that calls the copy
        if not isinstance(obj, type):
            with contextlib.suppress(TypeError):
                return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        self.constants[id(obj)] = obj
        return operator.getitem, (self.constants, id(obj))


class _Unpickler(pickle.Unpickler):
    """Unpickles a function with other arrays in their places."""

    def __init__(self, template: _Template, arrays: tuple[Any, ...]) -> None:
        pickled: Any = template.key
        super().__init__(io.BytesIO(pickled))
        self.places = (*arrays, template.constants)

    def persistent_load(self, pid: int) -> Any:
        """Return the array of a place, or the constants."""
        return self.places[pid]
