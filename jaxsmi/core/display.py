"""The text of objects at the prompt and in notebooks.

Traced numbers are unknown: their type and shape stand for them.
"""

from __future__ import annotations

import abc
import inspect
import textwrap
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.arrays import ClosedFunction, concrete

_FEW = 6  # longer arrays are shown by shape: a line has 100 characters


def describe(
    title: str, facts: Sequence[str] = (), rows: Sequence[Sequence[str]] = (), remark: str = ""
) -> str:
    """A title, lines of facts, a table (its header is the first row) and a remark, in lines of at
    most 100 characters."""
    lines = [*facts, *table(rows), *textwrap.wrap(remark, 98)]
    return "\n".join([title, *(f"  {line}" for line in lines)])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)) for row in rows]
    return [line.rstrip() for line in lines]


def safe_repr(module: eqx.Module, text: Callable[[], str]) -> str:
    """The text of a module; the plain tree where the leaves are not arrays."""
    # JAX fills the leaves of trees with shapes, axes or shardings, and prints them in errors
    try:
        return text()
    except (AttributeError, IndexError, TypeError, ValueError):
        return eqx.tree_pformat(module)


class Described(eqx.Module):
    """A module that is shown as a text of its own."""

    def __repr__(self) -> str:
        return safe_repr(self, self._text)

    @abc.abstractmethod
    def _text(self) -> str:
        """Return the text that is shown at the prompt."""


def number(value: ArrayLike, digits: int = 4) -> str:
    """A number to some digits; a short array by its entries, a longer one by type and shape."""
    if not concrete(value) or np.size(value) > _FEW:
        return f"{np.result_type(value).name}[{','.join(map(str, np.shape(value)))}]"
    entries = np.asarray(value)
    if entries.ndim > 0:
        return f"[{', '.join(number(entry, digits) for entry in entries)}]"
    return str(entries.item()) if entries.dtype == bool else f"{entries.item():.{digits}g}"


def format_estimate(value: ArrayLike, stderr: ArrayLike) -> str:
    """A number and its error to two digits of the error; the number alone where that is zero."""
    if not concrete((value, stderr)) or np.ndim(value) or np.ndim(stderr):
        return f"{number(value)} ± {number(stderr)}"
    error = float(np.asarray(stderr))
    size = abs(float(np.asarray(value)))
    # an error below rounding is none
    if error <= np.finfo(float).eps * size or np.isnan(size):
        return number(value, 6)
    if np.isnan(error):
        return f"{number(value, 6)} (no error bar)"
    if not np.isfinite(error) or not np.isfinite(value):
        return f"{number(value, 6)} ± {number(stderr, 2)}"
    # two digits of the error: the third is noise, as the error is known to some percent
    places = max(1 - int(np.floor(np.log10(error))), 0)
    if places > 6:  # more digits than one reads, and than most tolerances reach
        return f"{number(value, 7)} ± {error:.2g}"
    return f"{float(np.asarray(value)):.{places}f} ± {error:.{places}f}"


def format_estimates(values: ArrayLike, stderrs: ArrayLike) -> str:
    """Arrays of numbers and of their errors, with the digits of the smallest error; long ones are
    summarised as NumPy does."""
    if not concrete((values, stderrs)) or np.ndim(values) == 0:
        return format_estimate(values, stderrs)
    errors = np.asarray(stderrs)
    finite = errors[np.isfinite(errors) & (errors > 0.0)]
    places = 1 - int(np.floor(np.log10(np.min(finite, initial=1.0))))
    shown = ".6g" if finite.size == 0 else ".7g" if places > 6 else f".{places}f"
    text = lambda array, form: np.array2string(
        array, separator=", ", threshold=20, formatter={"float": lambda x: f"{x:{form}}"}
    )
    return f"{text(np.asarray(values), shown)} ± {text(errors, '.2g')}"


def _field_repr(value: object) -> str:
    """A field of a model in a few characters."""
    if isinstance(value, ClosedFunction):
        return repr(value).rpartition("<locals>.")[2]
    if isinstance(value, eqx.Module):
        return constructor_repr(value, parts=False)
    if isinstance(value, (jax.Array, np.ndarray, float)):
        return number(value)
    return repr(value)


def constructor_repr(module: eqx.Module, parts: bool = True) -> str:
    """The call of the constructor that makes the module; `parts`: with the modules in it."""
    # a prior is shown where it is no argument, too: the theory depends on it
    names = dict.fromkeys([*inspect.signature(type(module)).parameters, "prior"])
    # getattr, as a constructor may keep an argument elsewhere, with a property of its name
    fields = {name: getattr(module, name) for name in names if hasattr(module, name)}
    # a method of an argument's name calls the user's function, which the channel keeps
    link = getattr(getattr(module, "channel", None), "link_function", None)
    fields = {name: link if hasattr(x, "__func__") else x for name, x in fields.items()}
    kinds = (str, int, float, jax.Array, np.ndarray, *((eqx.Module,) if parts else ()))
    shown = [f"{n}={_field_repr(value)}" for n, value in fields.items() if isinstance(value, kinds)]
    return f"{type(module).__name__}({', '.join(shown)})"
