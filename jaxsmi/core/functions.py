"""Functions of a user as pytrees: the arrays that a function closes over become leaves.

    c = jnp.array(0.5)                                  # or a tracer, inside jax.grad
    link = as_module(lambda z: jnp.tanh(c * z[0, 0]))   # an eqx.Module with the leaf c

A link, loss or likelihood that closes over a traced array would otherwise leak the tracer, or lose
its derivative where a solver has a rule of its own. The Python function itself is rebuilt with new
closure cells, not a jaxpr of it, so that it stays polymorphic in shapes and precisions.

Arrays are found in closure cells, default values, the `self` of bound methods, arguments of
`functools.partial`, `jax.tree_util.Partial` and `eqx.Partial`, functions wrapped by JAX's
transformations, containers, attributes of the user's own objects, and globals of the user's own
modules. JAX arrays become leaves. Python numbers and NumPy arrays stay static, compared by value:
two functions of equal code that close over equal values are one compiled program.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from jaxsmi.core.arrays import PyTree

__all__ = ["ClosedFunction", "as_module", "check_closure"]

_Function = TypeVar("_Function", bound="Callable[..., Any] | None")

_PLAIN = (str, bytes, int, bool, type(None), type(Ellipsis))
_PARTS = (types.FunctionType, types.MethodType, functools.partial, tuple, list, dict)
_WRAPPED = tuple(map(type, (jax.jit(abs),)))  # has no attributes but the function it wraps


class ClosedFunction(eqx.Module):
    """A function whose arrays are leaves. Made by `as_module`.

    Attributes:
        arrays: The arrays that the function closes over.
        template: The function, with slots where these arrays were.
    """

    arrays: tuple[Any, ...]
    template: _Template = eqx.field(static=True)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)

    @property
    def function(self) -> Callable[..., Any]:
        """The Python function, with the arrays in their places."""
        return _Rebuilder(lambda slot: self.arrays[slot.place]).rebuild(self.template.function)

    @property
    def __name__(self) -> str:
        return repr(self.template)

    def __repr__(self) -> str:
        return repr(self.template)


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
    arrays: list[Any] = []

    def take(array: Any) -> _Slot:
        arrays.append(array)
        return _Slot(len(arrays) - 1)

    hollow = _Rebuilder(take).rebuild(function)
    return ClosedFunction(tuple(arrays), _Template(hollow))  # pyright: ignore[reportReturnType]


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


class _Slot:
    """The place of an array in a template."""

    def __init__(self, place: int):
        self.place = place


class _Template:
    """A function with slots for its arrays; equal to another of equal code and static values."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        return tuple(_identity(self.function, {}))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Template) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[type[_Template], tuple[Any]]:
        return _Template, (self.function,)  # the key holds addresses of this process

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


class _Same:
    """Equal to itself only: an object that is compared by identity, and kept alive for that."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _identity(x: Any, seen: dict[int, int]) -> Iterator[Any]:
    """What makes a template equal to another: a flat list of types, codes and static values."""
    if isinstance(x, _Slot):
        yield _Slot, x.place
    elif id(x) in seen:
        yield "seen", seen[id(x)]
    elif isinstance(x, (*_PLAIN, float, complex)):
        yield type(x), repr(x) if isinstance(x, (float, complex)) else x  # nan == nan, -0 != 0
    elif isinstance(x, (np.ndarray, np.generic)) and x.dtype != object:
        yield type(x), x.dtype, x.shape, x.tobytes()
    elif (parts := _parts(x)) is None:
        yield _Same(x)
    else:
        seen[id(x)] = len(seen)
        yield type(x), *parts
        if isinstance(x, types.FunctionType):
            yield x.__code__
            if _of_library(x.__module__):  # the globals of others were not searched
                yield _Same(x.__globals__)
        for part in parts.values():
            yield from _identity(part, seen)


def _parts(x: Any) -> dict[Any, Any] | None:
    """What an object consists of, by name; None of one that is not looked into."""
    if isinstance(x, types.FunctionType):
        return _parts_of_function(x)
    if isinstance(x, types.MethodType):
        return {"function": x.__func__, "self": x.__self__}
    if isinstance(x, functools.partial):  # jax.tree_util.Partial is one
        return {"function": x.func, "args": x.args, "keywords": x.keywords}
    if isinstance(x, dict):
        return x
    if isinstance(x, (tuple, list)):
        return dict(enumerate(x))
    if isinstance(x, _WRAPPED):
        return {"function": x.__wrapped__}
    ours = isinstance(x, (eqx.Module, jax.custom_jvp, jax.custom_vjp))
    if isinstance(x, type) or not (ours or not _of_library(type(x).__module__)):
        return None
    slots = [name for kind in type(x).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = {name: getattr(x, name) for name in slots if hasattr(x, name)}
    return {**fields, **getattr(x, "__dict__", {})}


def _parts_of_function(x: types.FunctionType) -> dict[Any, Any]:
    cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
    parts: dict[Any, Any] = {("cell", name): _content(cell) for name, cell in cells}
    parts |= {("default", k): value for k, value in enumerate(x.__defaults__ or ())}
    parts |= {("keyword", k): value for k, value in (x.__kwdefaults__ or {}).items()}
    if not _of_library(x.__module__):
        names = dict.fromkeys(_names(x.__code__))
        parts |= {("global", k): x.__globals__[k] for k in names if k in x.__globals__}
    return parts


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def _names(code: types.CodeType) -> Iterator[str]:
    """The globals (and attributes) that a function's code names, and those of functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_library(module: str | None) -> bool:
    """A module of this package, of the standard library, or one that was installed."""
    top = (module or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names or top == "jaxsmi":
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


class _Rebuilder:
    """Rebuilds a function with other things in the places of its arrays, or of its slots."""

    def __init__(self, swap: Callable[[Any], Any]):
        self.swap = swap
        self.rebuilt: dict[int, Any] = {}

    def rebuild(self, x: Any) -> Any:
        """x with its arrays swapped; parts without arrays stay the same objects."""
        self.reaching = _reaching(x)
        return self._rebuild(x)

    def _rebuild(self, x: Any) -> Any:
        if id(x) in self.rebuilt:
            return self.rebuilt[id(x)]
        if id(x) not in self.reaching:
            return x
        if isinstance(x, (jax.Array, _Slot)):
            self.rebuilt[id(x)] = self.swap(x)
            return self.rebuilt[id(x)]
        if isinstance(x, types.FunctionType):
            return self._function(x)
        parts = _parts(x)
        assert parts is not None
        if isinstance(x, (dict, list)) or not isinstance(x, (*_PARTS, *_WRAPPED)):
            return self._mutable(x, parts)
        new = {name: self._rebuild(part) for name, part in parts.items()}
        if isinstance(x, types.MethodType):
            made = types.MethodType(new["function"], new["self"])
        elif isinstance(x, functools.partial):
            made = type(x)(new["function"], *new["args"], **new["keywords"])
        elif isinstance(x, tuple):
            values = tuple(new.values())
            made = type(x)(*values) if hasattr(x, "_fields") else type(x)(values)
        else:  # a function under jax.jit: what is traced around it compiles it all the same
            made = new["function"]
        self.rebuilt[id(x)] = made
        return made

    def _mutable(self, x: Any, parts: dict[Any, Any]) -> Any:
        """A container or an object, empty first: its parts may refer to it."""
        new: Any = type(x)() if isinstance(x, (dict, list)) else object.__new__(type(x))
        self.rebuilt[id(x)] = new
        for name, part in parts.items():
            made = self._rebuild(part)
            if isinstance(x, dict):
                new[name] = made
            elif isinstance(x, list):
                new.append(made)
            else:  # also where attributes are frozen
                object.__setattr__(new, name, made)
        return new

    def _function(self, x: types.FunctionType) -> types.FunctionType:
        """A function of the same code. Its cells are filled last: they may hold the function."""
        cells = tuple(types.CellType() for _ in x.__closure__ or ())
        names = dict(x.__globals__)
        new = types.FunctionType(x.__code__, names, x.__name__, None, cells or None)
        new.__qualname__, new.__module__, new.__doc__ = x.__qualname__, x.__module__, x.__doc__
        self.rebuilt[id(x)] = new
        for cell, old in zip(cells, x.__closure__ or (), strict=True):
            if old != types.CellType():  # else a variable that has no value yet
                cell.cell_contents = self._rebuild(_content(old))
        if x.__defaults__ is not None:
            new.__defaults__ = tuple(map(self._rebuild, x.__defaults__))
        if x.__kwdefaults__ is not None:
            new.__kwdefaults__ = {k: self._rebuild(v) for k, v in x.__kwdefaults__.items()}
        for (kind, name), part in _parts_of_function(x).items():
            if kind == "global":
                names[name] = self._rebuild(part)
        return new


def _reaching(x: Any) -> set[int]:
    """The addresses of all objects in x that an array, or a slot, is a part of."""
    holders: dict[int, list[int]] = {}  # of each object, those of which it is a part
    arrays: list[int] = []
    alive: list[Any] = []  # parts made on the way: an address is good while its object lives
    stack = [x]
    holders[id(x)] = []
    while stack:
        whole = stack.pop()
        alive.append(whole)
        if isinstance(whole, (jax.Array, _Slot)):
            arrays.append(id(whole))
            continue
        if isinstance(whole, (*_PLAIN, float, complex, np.ndarray, np.generic)):
            continue
        for part in (_parts(whole) or {}).values():
            if id(part) not in holders:
                holders[id(part)] = []
                stack.append(part)
            holders[id(part)].append(id(whole))
    found = set(arrays)
    while arrays:
        for holder in holders[arrays.pop()]:
            if holder not in found:
                found.add(holder)
                arrays.append(holder)
    return found
