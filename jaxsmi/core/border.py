"""The public border: what each argument of a public function may be, declared above its signature.

    @checked(model=is_model, alpha=scalar(POSITIVE), samples=optional(whole(2)), progress=flag)
    def state_evolution(model, alpha, *, samples=None, progress=False): ...

Every argument has a predicate, or the import fails: a new one cannot be forgotten. A predicate
takes the name and the value and returns the value, or raises a ValueError that names the argument,
says what came and what is allowed. All are asked before the function begins. Defaults are not
looked at. Of a traced value only the type and the shape are known, and the values of an array of
more than 4096 numbers are left to the function, which looks at them where they lie; what depends on
several arguments, and what becomes of a traced number out of range, stays in the function
(`core.checks.Arguments`).
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.core.arrays import arithmetic, concrete
from jaxsmi.core.checks import NON_NEGATIVE, Arguments, Interval, check
from jaxsmi.core.words import nearest

__all__ = [
    "EXACT",
    "Predicate",
    "anything",
    "asked",
    "checked",
    "choice",
    "either",
    "flag",
    "function",
    "instance",
    "is_path",
    "mapping",
    "numbers",
    "one_label",
    "optional",
    "precision",
    "random_key",
    "random_keys",
    "scalar",
    "sequence",
    "square",
    "text",
    "whole",
]

Predicate = Callable[[str, object], object]
Answer = TypeVar("Answer")
Checked = TypeVar("Checked", bound=Callable[..., Any])

_LARGEST = 2**31 - 1  # whole numbers count things in memory: JAX indexes with 32 bits
EXACT = 2**53  # whole numbers that a formula takes, as far as a float has all of them
_LOOKED_AT = 4096
_MOST = float(np.finfo(np.float64).max)
_LONG = 2**63  # a Python integer beyond it is no number of JAX, but as a float
_PRECISIONS = ("float64", "float32", "bfloat16", "float16")


def checked(**predicates: Predicate) -> Callable[[Checked], Checked]:
    """Declare what the arguments of a function, or of the constructor of a class, may be.

    Args:
        predicates: One for each argument; `self` has none.

    Returns:
        A decorator. The signature, the name and the docstring stay; `__checked__` of the result
        holds the predicates.

    Raises:
        TypeError: At the definition, where an argument has no predicate, or a predicate no
            argument.
    """

    def decorate(target: Checked) -> Checked:
        made: Any = target
        if not inspect.isclass(made):
            return _looking(made, predicates)
        made.__init__ = _looking(made.__init__, predicates)
        return target

    return decorate


def _looking(target: Callable[..., Any], predicates: Mapping[str, Predicate]) -> Any:
    """The function, its arguments looked at before."""
    kinds = inspect.Parameter
    parameters = inspect.signature(target).parameters.values()
    given = [p.name for p in parameters if p.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)]
    open_ended = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    places = [p.kind for p in parameters]
    most = _by_place(places)
    bound = len({"self", "cls"}.intersection(given[:1]))
    missing = (set(given) - {"self", "cls"}) ^ set(predicates)
    if missing:
        where = f"{target.__module__}.{target.__qualname__}"
        raise TypeError(f"{where}: predicates and arguments differ in {sorted(missing)}.")

    @functools.wraps(target)
    def looking(*args: Any, **kwargs: Any) -> Any:
        for name, value in kwargs.items():
            if name in predicates:
                kwargs[name] = predicates[name](name, value)
            elif not open_ended:
                raise TypeError(_unknown(target, name, predicates))
        if len(args) > most and kinds.VAR_POSITIONAL not in places:
            raise TypeError(_too_many(target, len(args) - bound, given[bound:most], given[most:]))
        values = [
            predicates[name](name, value) if name in predicates else value
            for name, value in zip(given, args, strict=False)
        ]
        values += args[len(values) :]
        return target(*values, **kwargs)

    looking.__checked__ = predicates  # pyright: ignore[reportAttributeAccessIssue]
    return looking


def _by_place(kinds: Iterable[inspect._ParameterKind]) -> int:
    """How many arguments may be given by their place."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([kind for kind in kinds if kind in places])


def _too_many(
    target: Callable[..., Any], count: int, places: Sequence[str], names: Sequence[str]
) -> str:
    """What is said of more arguments than have a place."""
    called = target.__qualname__.removesuffix(".__init__")
    by_name = f"; by name: {', '.join(f'{name}=' for name in names)}" if names else ""
    allowed = ", ".join(places) or "none"
    return f"{called}() got {count} arguments without a name; allowed: {allowed}{by_name}."


def _unknown(target: Callable[..., Any], name: str, allowed: Iterable[str]) -> str:
    """What is said of a keyword that is no argument."""
    near = nearest(name, allowed)
    meant = f"did you mean {near!r}?" if near else f"allowed: {', '.join(allowed) or 'none'}."
    called = target.__qualname__.removesuffix(".__init__")
    return f"{called}() got an unexpected keyword argument {name!r}; {meant}"


def asked(
    name: str, asked_function: Callable[..., Answer], allowed: str, *values: object
) -> Answer:
    """What a user's function answers; where it fails, a ValueError that names it (but for one that
    names an argument itself: the function may call this package)."""
    try:
        return asked_function(*values)
    except Exception as failure:
        if isinstance(failure, ValueError) and "; allowed: " in str(failure):
            raise
        said = f"one that fails ({type(failure).__name__}: {failure})"
        raise ValueError(f"{name}: got {said}; allowed: {allowed}.") from failure


# Predicates ----------------------------------------------------------------------------------


def anything(name: str, value: object) -> object:
    """No condition, or one that only the function knows."""
    del name
    return value


def optional(predicate: Predicate) -> Predicate:
    """None, or what a predicate allows."""

    def look(name: str, value: object) -> object:
        return None if value is None else predicate(name, value)

    return look


def either(allowed: str, *predicates: Predicate) -> Predicate:
    """What one of several predicates allows."""

    def look(name: str, value: object) -> object:
        for predicate in predicates:
            try:
                return predicate(name, value)
            except ValueError:
                continue
        check(False, name, value, allowed)
        return value

    return look


def whole(at_least: int = 1, at_most: int = _LARGEST) -> Predicate:
    """A whole number: no float, array, truth value or word."""

    def look(name: str, value: object) -> object:
        if type(value) is int and at_least <= value <= at_most:
            return value
        count = Arguments().count(name, value, at_least)
        check(count <= at_most, name, value, f"an integer from {at_least} to {at_most}")
        return count

    return look


def flag(name: str, value: object) -> object:
    """True or False."""
    if type(value) is bool:
        return value
    return Arguments().flag(name, value)


def text(name: str, value: object) -> object:
    """A word."""
    check(isinstance(value, str), name, value, "a word (str)")
    return value


def is_path(name: str, value: object) -> object:
    """The name of a file or folder."""
    check(isinstance(value, (str, os.PathLike)), name, value, "a path (str or os.PathLike)")
    return value


def choice(*options: str) -> Predicate:
    """One of a few words."""
    return lambda name, value: Arguments().choice(name, value, options)


def square(allowed: str) -> Predicate:
    """One number >= 0, or a square matrix of them."""

    def look(name: str, value: object) -> object:
        numbers(allowed, NON_NEGATIVE)(name, value)
        shape = np.shape(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
        fits = math.prod(shape) == 1 or (len(shape) == 2 and shape[0] == shape[1])
        check(fits, name, value, allowed)
        return value

    return look


def function(allowed: str) -> Predicate:
    """Something that can be called; `allowed` says with what."""

    def look(name: str, value: object) -> object:
        check(callable(value), name, value, allowed)
        return value

    return look


def instance(kind: type | tuple[type, ...], allowed: str) -> Predicate:
    """An object of a class."""
    return lambda name, value: Arguments().instance(name, value, kind, allowed)


def mapping(allowed: str) -> Predicate:
    """A mapping, such as a dictionary."""
    return instance(Mapping, allowed)


def sequence(allowed: str, predicate: Predicate = anything, empty: bool = False) -> Predicate:
    """A list, a tuple or a vector, not empty, its entries as a predicate allows them."""

    def look(name: str, value: object) -> object:
        listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        check(listed or (isinstance(value, np.ndarray) and value.ndim == 1), name, value, allowed)
        assert isinstance(value, (Sequence, np.ndarray))
        check(empty or len(value) > 0, name, "none", allowed)
        for number, entry in enumerate(value):
            predicate(f"{name}[{number}]", entry)
        return value

    return look


def random_key(name: str, value: object) -> object:
    """A random key, typed or (as JAX allows) the two words of an old one."""
    return Arguments().key(name, value)


def random_keys(name: str, value: object) -> object:
    """A random key, or an array of them."""
    return Arguments().key(name, value, many=True)


def precision(name: str, value: object) -> object:
    """A floating-point precision."""
    try:
        named = value is not None and not isinstance(value, (list, Mapping))
        known = named and str(np.dtype(value)) in _PRECISIONS  # pyright: ignore
    except (TypeError, ValueError):
        known = False
    check(known, name, value, f"one of {_PRECISIONS}")
    return value


def scalar(interval: Interval) -> Predicate:
    """One real number of an interval; of a traced one, that it is a number."""

    def look(name: str, value: object) -> object:
        if isinstance(value, (int, float)) and type(value) is not bool and _holds(value, interval):
            return value if abs(value) < _LONG else float(value)
        found = _reals(value)
        check(found is not None, name, value, interval.allowed)
        assert found is not None
        allowed = interval.allowed if found.size < 2 else f"{interval.allowed} (jax.vmap for many)"
        check(found.shape == (), name, value, allowed)
        if isinstance(found, np.ndarray):
            check(_inside(found, interval), name, value, interval.allowed)
        return value

    return look


_ANY = Interval("finite real numbers")


def numbers(
    allowed: str, interval: Interval = _ANY, dimensions: int | None = None, empty: bool = False
) -> Predicate:
    """An array of finite real numbers, or nested lists of them: not empty unless said so, all of
    an interval, with so many axes."""

    def look(name: str, value: object) -> object:
        found = _reals(value)
        fits = found is not None and (empty or found.size > 0) and not _long(found)
        check(fits, name, value, allowed)
        assert found is not None
        check(dimensions is None or found.ndim == dimensions, name, value, allowed)
        if isinstance(found, np.ndarray) and found.size <= _LOOKED_AT:
            finite = allowed if "finite" in allowed else f"{allowed}, finite numbers"
            check(_inside(found, interval), name, value, finite)
        return value

    return look


def one_label(name: str, value: object) -> object:
    """One label, which messages call by the name of many."""
    del name
    return numbers("real numbers")("labels", value)


def _reals(value: object) -> np.ndarray | jax.ShapeDtypeStruct | None:
    """A value as numbers: on the host where they are known and few, else their shape; None where
    they are no real numbers."""
    if value is None or isinstance(value, (str, bytes, bool, np.bool_)):
        return None
    try:
        if isinstance(value, jax.Array) and arithmetic(value) is jnp:
            found = jax.ShapeDtypeStruct(value.shape, value.dtype)
        elif concrete(value):
            found = np.asarray(value)
        else:  # nested lists with traced entries
            found = jax.eval_shape(jnp.asarray, value)
    except (TypeError, ValueError, OverflowError):
        return None
    real = any(jnp.issubdtype(found.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
    return found if real or _long(found) else None


def _long(found: Any) -> bool:
    """Whether it is one Python integer too long for NumPy."""
    if not isinstance(found, np.ndarray) or found.dtype != object or found.shape != ():
        return False
    value: Any = found[()]
    return type(value) is int and abs(value) <= _MOST


def _holds(x: float, interval: Interval) -> bool:
    """Whether a Python number lies in an interval."""
    low = x > interval.low if interval.open_low else x >= interval.low
    high = x < interval.high if interval.open_high else x <= interval.high
    return low and high and (abs(x) <= _MOST or (interval.infinite and abs(x) == math.inf))


def _inside(found: np.ndarray, interval: Interval) -> bool:
    """Whether known numbers lie in an interval, decided outside of JAX (inside jit as well)."""
    x = found.astype(np.float64)
    low = x > interval.low if interval.open_low else x >= interval.low
    high = x < interval.high if interval.open_high else x <= interval.high
    finite = ~np.isnan(x) if interval.infinite else np.isfinite(x)
    return bool(np.all(low & high & finite))
