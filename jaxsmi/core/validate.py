"""Validation of arguments: converters that a public function calls in its body.

Each takes the name of an argument and its value, and returns the value in the type that the
computation needs, or raises a ValueError that names the argument, the value and what is allowed:

    alpha = validate.number("alpha", alpha, POSITIVE)
    max_steps = validate.count("max_steps", max_steps)

Under jit the values of traced numbers are unknown. A traced number outside of its interval becomes
NaN, and `valid(tree)`, at the end of the computation, sets the result code INVALID.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import (
    PyTree,
    array_module,
    concrete,
    frozen,
    nan_unless,
    symmetric,
    theory_dtype,
)

_Kind = TypeVar("_Kind")
_Value = TypeVar("_Value")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_LARGEST = 2**31 - 1  # counts are sizes in memory, and JAX indexes with 32 bits
_LONG = 2**63  # JAX takes no larger Python integer, but takes the float
_ASYMMETRY = 1e-6  # relative asymmetry of covariances computed in single precision
_LARGEST_FLOAT = float(np.finfo(np.float64).max)
# JAX computes random inputs and products in these; the theory is float64
_DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, without the ends where `open_low`, `open_high`; infinities only
    where `infinite`."""

    allowed: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    infinite: bool = False

    def inside(self, x: Array) -> Array:
        """Elementwise: x lies in the interval (NumPy in, NumPy out)."""
        xp = array_module(x)
        x = xp.asarray(x)
        above = x > self.low if self.open_low else x >= self.low
        below = x < self.high if self.open_high else x <= self.high
        finite = ~xp.isnan(x) if self.infinite else xp.isfinite(x)
        return above & below & finite


POSITIVE = Interval("a finite number > 0", low=0.0, open_low=True)
NON_NEGATIVE = Interval("a finite number >= 0", low=0.0)
FRACTION = Interval("a number in [0, 1)", low=0.0, high=1.0, open_high=True)
UNIT_INTERVAL = Interval("a number in (0, 1)", low=0.0, high=1.0, open_low=True, open_high=True)
VARIANCE = Interval("a variance >= 0", low=0.0)
FINITE = Interval("a finite number")
COSINE = Interval("a cosine in (0, 1]", low=0.0, high=1.0, open_low=True)
LOSS = (
    "a function of (prediction, label) to one number, such as smi.losses.squared or "
    "smi.losses.huber(1.0)"
)


def check(condition: object, name: str, value: Any, allowed: str) -> None:
    """Raise a ValueError where the condition is known to fail; do nothing where it is traced."""
    if concrete(condition) and not bool(np.all(np.asarray(condition))):
        raise _error(name, value, allowed)


def outside_jit(name: str, values: PyTree) -> None:
    """Raise a ValueError inside jax.jit and jax.vmap: the steps that follow depend on values."""
    # numbers without a batch are traced by jit alone, those of the argument by vmap
    known = concrete(frozen((values, jnp.zeros(()))))
    allowed = "a call outside of jax.jit and jax.vmap (jax.grad and jax.jvp may be around it)"
    check(known, name, "traced numbers", allowed)


def _error(name: str, value: Any, allowed: str) -> ValueError:
    call = uncalled(value)
    got = f"call it: {call}; got {value.__name__} itself" if call else f"got {_shown(value)}"
    return ValueError(f"{name}: {got}; allowed: {allowed}.")


def uncalled(value: Any) -> str:
    """The call of a class or a function of this package, named without its arguments, that was
    meant: "smi.links.sign()"; "" of any other value."""
    package, _, module = (getattr(value, "__module__", None) or "").partition(".")
    if package != "jaxsmi" or not (inspect.isclass(value) or inspect.isfunction(value)):
        return ""
    if inspect.isclass(value):
        return f"{value.__name__}(..)"
    # a loss is given as it is, unless it needs no argument: smi.losses.huber(1.0) makes one
    defaults = [x.default for x in inspect.signature(value).parameters.values()]
    maker = module == "learners.losses" and inspect.Parameter.empty not in defaults
    maker = maker or (module == "models.links" and not value.__name__.startswith("_"))
    return f"smi.{module.rpartition('.')[2]}.{value.__name__}()" if maker else ""


def suggest_names(module: str, public: str, synonyms: Mapping[str, str] | None = None) -> None:
    """Answer an unknown name of a module, `public` to users, by the closest one or a synonym."""
    namespace: Any = sys.modules[module]

    def refuse(name: str) -> NoReturn:
        close = difflib.get_close_matches(name, namespace.__all__, 1)
        meant = (synonyms or {}).get(name) or "".join(close)
        hint = f"; did you mean {public}.{meant}?" if meant else ""
        raise AttributeError(f"module {public!r} has no attribute {name!r}{hint}", name=name)

    # set, not defined there: type checkers would take every name for known
    namespace.__getattr__ = refuse


def explained(function: _Function) -> _Function:
    """Answer arguments that a function does not take by those that it takes, the one that was
    meant, the function that its docstring names ("with noise use .."), and by the record that has
    one of that name."""
    own = {x: y for x, y in inspect.signature(function).parameters.items() if x != "self"}

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except TypeError as failure:
            if failure.__traceback__ is None or failure.__traceback__.tb_next is not None:
                raise  # a call inside the function failed
            text = f"{failure}; it takes {', '.join(own)}"
        unknown = next((name for name in named if name not in own), "inputs")
        text += "".join(f": did you mean {x}?" for x in difflib.get_close_matches(unknown, own, 1))
        hint = re.search(rf"; (with {unknown} use )`(.+)`", function.__doc__ or "")
        text += f"; {hint[1]}{hint[2]}" if hint else ""
        for name, argument in own.items():
            for word in re.findall(r"\w+", str(argument.annotation)):
                kind: Any = function.__globals__.get(word)
                public = inspect.isclass(kind) and word in sys.modules["jaxsmi"].__all__
                if public and unknown in inspect.signature(kind).parameters:
                    text += f"; {unknown} is an argument of {name}=smi.{word}(..)"
        raise TypeError(text + "." * (text[-1] != "?"))

    return cast("_Function", call)


def valid(tree: PyTree) -> Array:
    """No number of the tree is NaN (a boolean array, traced if the tree is)."""
    leaves = [x for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]
    known = [x for x in leaves if concrete(x)]
    # known numbers on the host: no computation on the device, and no tracing of constants
    sound = jnp.asarray(not any(np.isnan(np.asarray(x)).any() for x in known))
    for leaf in leaves:
        if not concrete(leaf):
            sound = sound & ~jnp.any(jnp.isnan(leaf))
    return sound


def number(
    name: str, value: Any, interval: Interval = FINITE, many: str = "jax.vmap for many"
) -> Array:
    """One real number of an interval, in the theory's precision; NaN where it is traced and lies
    outside. `many`: what takes several."""
    x = _real_array(name, value, interval.allowed, theory_dtype())
    several = "" if x.ndim == 0 else f" ({many})"
    check(x.ndim == 0, name, value, interval.allowed + several)
    return _within(x, name, value, interval, interval.allowed)


def array(
    name: str,
    value: Any,
    allowed: str,
    *,
    shape: Sequence[int | None] | None = None,
    scalar: bool = False,
    interval: Interval = FINITE,
    dtype: DTypeLike | None = None,
    empty: bool = False,
) -> Array:
    """Real numbers of an interval, in the theory's precision or another; entries that are traced
    and lie outside become NaN. `shape`: with None for an axis of any length; `scalar`: or one
    number. `empty`: no numbers are allowed, too."""
    x = _real_array(name, value, allowed, theory_dtype() if dtype is None else dtype)
    fits = shape is None or len(shape) == x.ndim
    fits = fits and all(n in (None, m) for n, m in zip(shape or (), x.shape, strict=False))
    check(fits or (scalar and x.ndim == 0), name, value, allowed)
    check(empty or x.size > 0 or 0 in (shape or ()), name, value, allowed)
    allowed = allowed if "finite" in allowed else f"{allowed}, finite numbers"
    return _within(x, name, value, interval, allowed)


def count(name: str, value: Any, at_least: int = 1, at_most: int = _LARGEST) -> int:
    """An integer (no float, array, boolean or word)."""
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    check(integer and value >= at_least, name, value, f"an integer >= {at_least}")
    check(value <= at_most, name, value, f"an integer from {at_least} to {at_most}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """True or False."""
    # no truth value of other objects: "no" and an empty array would pass for a choice
    check(isinstance(value, (bool, np.bool_)), name, value, "True or False")
    return bool(value)


def choice(name: str, value: Any, options: Sequence[str]) -> str:
    """One of a few words."""
    check(isinstance(value, str) and value in options, name, value, f"one of {tuple(options)}")
    return str(value)


def path(name: str, value: Any) -> str | os.PathLike[str]:
    """The name of a file or folder."""
    return instance(name, value, (str, os.PathLike), "a path (str or os.PathLike)")


def dtype(name: str, value: Any) -> jnp.dtype:
    """A floating-point precision."""
    known = False
    with contextlib.suppress(TypeError, ValueError):
        # NumPy takes None and lists for precisions, too
        known = isinstance(value, (str, type, np.dtype)) and jnp.dtype(value).name in _DTYPES
    check(known, name, value, f"one of {_DTYPES}")
    return jnp.dtype(value)


def instance(
    name: str, value: Any, kind: type[_Kind] | tuple[type[_Kind], ...], allowed: str
) -> _Kind:
    """An object of a class."""
    if not isinstance(value, kind):
        raise _error(name, value, allowed)
    return value


def settings(name: str, value: Any, kind: type[_Kind], allowed: str) -> _Kind:
    """A record of settings; None stands for its defaults."""
    return instance(name, kind() if value is None else value, kind, allowed)


def function(name: str, value: Any, allowed: str) -> Callable[..., Any]:
    """A callable; `allowed` says of which arguments."""
    check(callable(value), name, value, allowed)
    return value


def loss(name: str, value: Any) -> Callable[..., Any]:
    """A loss of one sample."""
    check(callable(value) and not uncalled(value), name, value, LOSS)
    return value


def sequence(
    name: str,
    value: Any,
    allowed: str,
    converter: Callable[..., _Value] | None = None,
    *args: Any,
    empty: bool = False,
) -> list[_Value]:
    """The entries of a list, a tuple or a vector, each through a converter."""
    # a word is a sequence of letters, but nobody means it as one
    listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    vector = isinstance(value, (np.ndarray, jax.Array)) and value.ndim == 1
    check(listed or vector, name, value, allowed)
    check(empty or len(value) > 0, name, "none", allowed)
    if converter is None:
        return list(value)
    return [converter(f"{name}[{k}]", entry, *args) for k, entry in enumerate(value)]


def optional(
    converter: Callable[..., _Value], name: str, value: Any, *args: Any, **keywords: Any
) -> _Value | None:
    """None, or the value through a converter."""
    return None if value is None else converter(name, value, *args, **keywords)


def key(name: str, value: Any, many: bool = False) -> PRNGKeyArray:
    """A random key, typed or the two words of an old one; `many`: or an array of keys."""
    allowed = "a key: jax.random.key(0)"
    if many:
        allowed += ", or an array of them: jax.random.split(key, 8)"
    value = instance(name, value, (jax.Array, np.ndarray), allowed)
    typed = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    words = value.dtype == jnp.uint32 and value.shape[-1:] in ((2,), (4,))
    check(typed or words, name, value, allowed)
    dimensions = value.ndim - (0 if typed else 1)
    several = many and dimensions == 1 and len(value) > 0
    check(dimensions == 0 or several, name, value, allowed)
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def overlap(name: str, value: Any, second_moment: Array, strict: bool = True) -> Array:
    """An overlap Q (P, P), 0 ⪯ Q ⪯ S, or a number times S; `strict`: Q ≺ S, so that V = S - Q > 0.
    NaN where it is traced and is none."""
    S = second_moment
    allowed = f"a number or an array of shape {S.shape}"
    x = array(name, value, allowed, shape=S.shape, scalar=True)
    xp = array_module(x, S)
    x, S = xp.asarray(x), xp.asarray(S)
    Q = x * S if x.ndim == 0 else x
    # an overlap that was computed is symmetric and in its range to rounding only
    rounding = max(1e-10, 8.0 * float(jnp.finfo(Q.dtype).eps))
    size = xp.max(xp.abs(S))
    even = xp.max(xp.abs(Q - Q.T)) <= rounding * size
    check(even, name, value, "a symmetric matrix")
    low = xp.all(xp.linalg.eigvalsh(Q) > -rounding * size)
    # not strict: Q may be S up to rounding, which perfect recovery reaches
    high = xp.all(xp.linalg.eigvalsh(S - Q) > (0.0 if strict else -1e-9 * size))
    bounds = "0 ⪯ Q, and Q below the second moment S of the prior (perfect recovery, Q = S, is a "
    bounds += "limit: 1 - 1e-8 is next to it)"
    check(low & high, name, value, bounds if strict else "0 ⪯ Q ⪯ second moment")
    return nan_unless(jnp.asarray(Q), even, low, high)


def semidefinite(
    name: str, value: Any, size: int | None = None, rounding: float = 1e-9, definite: bool = False
) -> Array:
    """The symmetric part of a positive semi-definite matrix (size, size); NaN where it is traced
    and is none. `rounding`: the lowest eigenvalue, relative to the largest, is at least -rounding,
    or with `definite` above rounding."""
    shape = f" of shape ({size}, {size})" if size else ", square"
    allowed = f"a symmetric positive {'' if definite else 'semi-'}definite array{shape}"
    x = array(name, value, allowed)
    if size is not None and x.size == size * size:
        x = x.reshape(size, size)
    check(x.ndim == 2 and x.shape == 2 * (size or len(x),), name, value, allowed)
    xp = array_module(x)
    matrix = xp.asarray(jax.lax.stop_gradient(x))
    # eigenvalues of NaN would stop a program under jax_debug_nans
    finite = xp.all(xp.isfinite(matrix))
    matrix = xp.where(finite, matrix, 0.0)
    even = xp.max(xp.abs(matrix - matrix.T)) <= _ASYMMETRY * xp.max(xp.abs(matrix))
    values = xp.linalg.eigvalsh(symmetric(matrix))
    if definite:
        positive = values[0] > rounding * values[-1]
    else:
        # empirical: products of data have eigenvalues that rounding made negative by 1e6 epsilons
        rounding = max(rounding, 64.0 * float(jnp.finfo(x.dtype).eps))
        positive = values[0] >= -rounding * values[-1]
    check(finite & even & positive, name, value, allowed)
    return nan_unless(symmetric(x), finite, even, positive)


def call_user_function(
    name: str, function: Callable[..., _Value], allowed: str, *values: object
) -> _Value:
    """The result of a user's function; where it fails, a ValueError that names the argument."""
    try:
        return function(*values)
    except Exception as failure:
        # the function may call this package, whose message is the better one
        if isinstance(failure, ValueError) and "; allowed: " in str(failure):
            raise
        # the first line: JAX explains its errors at length
        reason = f"one that fails ({type(failure).__name__}: {str(failure).partition(chr(10))[0]})"
        if isinstance(failure, jax.errors.TracerArrayConversionError):
            reason = "one that calls NumPy"
            allowed += f": use jnp instead of np in `{name}`"
        elif isinstance(failure, jax.errors.ConcretizationTypeError):
            reason = "one that needs the value of an array, for if, while, float() or int()"
            use = "use jnp.where instead of if, jnp.sin instead of math.sin"
            allowed += f": {use}, and no float() in `{name}`"
        raise ValueError(f"{name}: got {reason}; allowed: {allowed}.") from failure


def _within(x: Array, name: str, value: Any, interval: Interval, allowed: str) -> Array:
    # inside jit x is traced, and known numbers still have to be refused
    known = concrete(value) and not isinstance(value, jax.Array)
    numbers: Any = np.asarray(value, x.dtype) if known else x
    if concrete(numbers) and array_module(numbers) is not np:
        inside = _all_inside(interval, numbers)
    else:
        inside = interval.inside(numbers)
    check(inside, name, value, allowed)
    floats = jnp.issubdtype(x.dtype, jnp.inexact)
    return x if concrete(inside) or not floats else jnp.where(inside, x, jnp.nan)


@functools.partial(jax.jit, static_argnums=0)
def _all_inside(interval: Interval, x: Array) -> Array:
    # compiled: one fused pass over many numbers, without a mask of their size
    return jnp.all(interval.inside(x))


def _real_array(name: str, value: Any, allowed: str, dtype: DTypeLike) -> Array:
    """The value as an array of a dtype; a ValueError where it is no array of real numbers."""
    try:
        check(is_real(value), name, value, allowed)
        long = isinstance(value, int) and _LONG <= abs(value) <= _LARGEST_FLOAT
        numbers = float(value) if long else value
        # on the host first: outside jit jnp.asarray of nested lists compiles a program per entry
        if concrete(numbers) and not isinstance(numbers, jax.Array):
            numbers = np.asarray(numbers, np.dtype(dtype))
        return jnp.asarray(numbers, dtype)
    except (TypeError, ValueError, OverflowError):
        raise _error(name, value, allowed) from None


def is_real(value: Any) -> bool:
    """May stand for real numbers: no word, boolean, complex number, key or None."""
    if value is None or isinstance(value, (str, bytes, bool, np.bool_)):
        return False
    return all(_real_dtype(leaf) for leaf in jax.tree.leaves(value))


def _real_dtype(leaf: Any) -> bool:
    if isinstance(leaf, int):  # one beyond 64 bits is an object to NumPy
        return True
    kind = leaf.dtype if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
    return any(jnp.issubdtype(kind, x) for x in (jnp.floating, jnp.integer, jnp.bool_))


def _shown(value: Any) -> str:
    """A value in a message: short ones in full, arrays by shape and range, tracers by type."""
    if isinstance(value, (jax.Array, np.ndarray)):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"keys of shape {value.shape}"
        # eight numbers still fit on a line of a message
        if not concrete(value) or value.size > 8 or value.dtype == object:
            return f"an array of shape {value.shape}{_range(value)}"
        return repr(value if value.ndim else value.item())
    if inspect.isfunction(value):  # its repr is an address
        return f"the function {value.__name__}"
    # one line: the repr of a data set has several; several words describe a value
    described = isinstance(value, str) and " " in value
    words = " ".join((value if described else repr(value)).split())
    return words if len(words) <= 120 else f"{words[:60]}.. ({type(value).__name__})"


def _range(value: jax.Array | np.ndarray) -> str:
    """ ", from 0 to 1" of known numbers; "" of traced ones, or of those of other hosts."""
    if not (concrete(value) and value.size and getattr(value, "is_fully_addressable", True)):
        return ""
    if not is_real(value):
        kind = type(np.ravel(value)[0]).__name__ if value.dtype == object else value.dtype.name
        return f", of {kind}"
    numbers = np.asarray(value, float if value.dtype == object else None)
    finite = np.isfinite(numbers)
    if not finite.all():
        first = [int(n) for n in np.unravel_index(np.argmin(finite), numbers.shape)]
        return f", {np.sum(~finite)} of them not finite, the first at {first}"
    return f", from {float(np.min(numbers)):.4g} to {float(np.max(numbers)):.4g}"
