"""Functions of a user as pytrees: the arrays that a function closes over become leaves.

    c = jnp.array(0.5)                                  # or a tracer, inside jax.grad
    link = as_module(lambda z: jnp.tanh(c * z[0, 0]))   # an eqx.Module with the leaf c

A link, loss or likelihood that closes over a traced array would otherwise leak the tracer, or lose
its derivative where a solver has a rule of its own. `jax.closure_convert` would give a jaxpr of one
shape and one precision; here the Python function itself is rebuilt with new closure cells.

Arrays are found in closure cells, default values, the `self` of bound methods, arguments of
`functools.partial`, functions under `jax.jit`, containers, attributes of the user's own objects,
and globals of the user's own modules. JAX arrays become leaves. Python numbers and NumPy arrays
stay static, compared by value: two functions of equal code that close over equal values are one
compiled program.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from jaxsmi.core.arrays import PyTree

_Function = TypeVar("_Function", bound="Callable[..., Any] | None")

_NUMBERS = (str, bytes, int, float, complex, type(None), type(Ellipsis))
_JITTED = type(jax.jit(abs))


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
        return _filled(self.template, self.arrays)

    @property
    def __name__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        function = self.template.value
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
    arrays: list[Any] = []
    template = _template(function, arrays, frozenset())
    return ClosedFunction(tuple(arrays), template)  # pyright: ignore[reportReturnType]


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


@dataclasses.dataclass(frozen=True)
class _Template:
    """An object with slots for its arrays; equal to another of equal code and static values."""

    key: Hashable
    value: Any = dataclasses.field(compare=False)  # the object itself
    parts: dict[Any, _Template] | None = dataclasses.field(default=None, compare=False)
    slot: int | None = None  # its place among the arrays, if it is one


@dataclasses.dataclass(frozen=True)
class _Identity:
    """Equal to itself only; it keeps the object alive, so that its address is not used again."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _template(x: Any, arrays: list[Any], around: frozenset[int]) -> _Template:
    """Take the arrays out of x, which is inside the objects with the addresses `around`."""
    if isinstance(x, jax.Array):
        arrays.append(x)
        return _Template("array", None, slot=len(arrays) - 1)
    if isinstance(x, _NUMBERS):
        return _Template((type(x), repr(x)), x)  # the repr: nan is nan, and -0.0 is not 0.0
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype != object:
        return _Template((type(x), x.dtype, x.shape, x.tobytes()), x)
    if id(x) in around:
        # a function that calls itself is a program of its own each time: its arrays are constants
        return _Template(_Identity(object()), x)
    contents = _contents(x)
    if contents is None:
        return _Template(_Identity(x), x)
    before = len(arrays)
    parts = {name: _template(y, arrays, around | {id(x)}) for name, y in contents.items()}
    key = (type(x), getattr(x, "__code__", None), tuple(parts.items()))
    # without arrays it stays the same object, and so do lists in it that its owner appends to
    return _Template(key, x, parts if len(arrays) > before else None)


def _filled(template: _Template, arrays: tuple[Any, ...]) -> Any:
    """The object of a template, with arrays in its slots."""
    if template.slot is not None:
        return arrays[template.slot]
    if template.parts is None:
        return template.value
    parts = {name: _filled(part, arrays) for name, part in template.parts.items()}
    return _rebuilt(template.value, parts)


def _contents(x: Any) -> dict[Any, Any] | None:
    """What an object consists of, by name; None of one that is not looked into."""
    if isinstance(x, types.FunctionType):
        return _contents_of_function(x)
    if isinstance(x, types.MethodType):
        return {"function": x.__func__, "self": x.__self__}
    if isinstance(x, functools.partial):  # jax.tree_util.Partial is one
        return {"function": x.func, "args": x.args, "keywords": x.keywords}
    if isinstance(x, _JITTED):
        return {"function": getattr(x, "__wrapped__")}  # noqa: B009  (unknown to its stub)
    if isinstance(x, dict):
        return x
    if isinstance(x, (tuple, list)):
        return dict(enumerate(x))
    if isinstance(x, eqx.Module) or not (isinstance(x, type) or _of_library(type(x).__module__)):
        return getattr(x, "__dict__", None)
    return None


def _rebuilt(x: Any, parts: dict[Any, Any]) -> Any:
    """An object like x of other parts."""
    if isinstance(x, types.FunctionType):
        return _rebuilt_function(x, parts)
    if isinstance(x, types.MethodType):
        return types.MethodType(parts["function"], parts["self"])
    if isinstance(x, functools.partial):
        return type(x)(parts["function"], *parts["args"], **parts["keywords"])
    if isinstance(x, _JITTED):  # what is traced around it compiles it all the same
        return parts["function"]
    if isinstance(x, dict):
        return parts
    if isinstance(x, (tuple, list)):
        return type(x)(*parts.values()) if hasattr(x, "_fields") else type(x)(parts.values())
    new = object.__new__(type(x))
    new.__dict__.update(parts)  # also where attributes are frozen
    return new


def _contents_of_function(x: types.FunctionType) -> dict[Any, Any]:
    cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
    empty = types.CellType()  # that of a variable which has no value yet
    contents: dict[Any, Any] = {("cell", k): c.cell_contents for k, c in cells if c != empty}
    contents |= {("default", k): value for k, value in enumerate(x.__defaults__ or ())}
    contents |= {("keyword", k): value for k, value in (x.__kwdefaults__ or {}).items()}
    # a library's globals do not change, and they are too many to search
    if not _of_library(x.__module__):
        names = [name for name in _names(x.__code__) if name in x.__globals__]
        contents |= {("global", name): x.__globals__[name] for name in names}
    return contents


def _rebuilt_function(x: types.FunctionType, parts: dict[Any, Any]) -> types.FunctionType:
    groups: dict[str, dict[Any, Any]] = {"cell": {}, "default": {}, "keyword": {}, "global": {}}
    for (group, name), part in parts.items():
        groups[group][name] = part
    cells = [
        types.CellType(groups["cell"][name]) if name in groups["cell"] else types.CellType()
        for name in x.__code__.co_freevars
    ]
    defaults = tuple(groups["default"].values())
    names = x.__globals__ | groups["global"]
    new = types.FunctionType(x.__code__, names, x.__name__, defaults, tuple(cells) or None)
    new.__kwdefaults__ = groups["keyword"]
    new.__qualname__, new.__module__ = x.__qualname__, x.__module__
    return new


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
