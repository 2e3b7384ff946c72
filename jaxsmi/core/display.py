"""The text of objects at the prompt and in notebooks.

Traced numbers are unknown: their type and shape stand for them.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.arrays import concrete

_FEW = 6  # longer arrays are shown by shape: a line has 100 characters


@dataclasses.dataclass(frozen=True)
class Summary:
    """A title, lines of facts, a table and a remark."""

    title: str
    facts: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    remark: str = ""

    def text(self) -> str:
        """Lines of at most 100 characters."""
        lines = [self.title, *(f"  {fact}" for fact in self.facts)]
        if self.rows:
            cells = [self.header, *self.rows]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines += [
                "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
                for row in cells
            ]
        lines += textwrap.wrap(self.remark, 98, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(lines)


def safe_repr(module: eqx.Module, summary: Callable[[], Summary]) -> str:
    """The text of the summary; the plain tree where the leaves are not arrays."""
    # JAX fills the leaves of trees with shapes, axes or shardings, and prints them in errors
    try:
        return summary().text()
    except (AttributeError, IndexError, TypeError, ValueError):
        return eqx.tree_pformat(module)


def number(value: ArrayLike, digits: int = 4) -> str:
    """A number to some digits; a short array by its entries, a longer one by type and shape."""
    if not concrete(value) or np.size(value) > _FEW:
        return f"{np.result_type(value).name}[{','.join(map(str, np.shape(value)))}]"
    entries = np.asarray(value)
    if entries.ndim == 0:
        return f"{entries.item():.{digits}g}" if entries.dtype != bool else str(entries.item())
    return f"[{', '.join(number(entry, digits) for entry in entries)}]"


def format_estimate(value: ArrayLike, stderr: ArrayLike) -> str:
    """A number and its error to two digits of the error; the number alone for an error of zero."""
    if not concrete((value, stderr)) or np.ndim(value) or np.ndim(stderr):
        return f"{number(value)} ± {number(stderr)}"
    error = float(np.asarray(stderr))
    if not error > 0.0 or not np.isfinite(error) or not np.isfinite(value):
        return f"{number(value, 6)}" + ("" if error == 0.0 else f" ± {number(stderr, 2)}")
    # two digits of the error: the third is noise, as the error is known to some percent
    places = max(1 - int(np.floor(np.log10(error))), 0)
    if places > 6:  # more digits than one reads, and than most tolerances reach
        return f"{number(value, 7)} ± {error:.2g}"
    return f"{float(np.asarray(value)):.{places}f} ± {error:.{places}f}"


def field_repr(value: object) -> str:
    """A field of a model in a few characters."""
    if isinstance(value, eqx.Module):
        return constructor_repr(value, parts=False)
    if isinstance(value, (jax.Array, np.ndarray, float)):
        return number(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(field_repr, value))})"
    if isinstance(value, (str, int, bool, type(None))):
        return repr(value)
    return value.__qualname__ if inspect.isroutine(value) else type(value).__name__


def constructor_repr(module: eqx.Module, parts: bool = True) -> str:
    """The call of the constructor that makes the module; `parts`: with the modules in it."""
    # a constructor may keep its arguments in other fields, with a property of their name
    fields = dict(vars(module))
    arguments = list(inspect.signature(type(module)).parameters)
    for name in arguments:
        derived = inspect.getattr_static(type(module), name, None)
        if name not in fields and isinstance(derived, property) and derived.fget is not None:
            fields[name] = derived.fget(module)
    # a prior is shown where it is no argument, too: the theory depends on it
    names = [name for name in dict.fromkeys((*arguments, "prior")) if name in fields]
    kinds = (str, int, float, jax.Array, np.ndarray, *((eqx.Module,) if parts else ()))
    shown = [f"{n}={field_repr(fields[n])}" for n in names if isinstance(fields[n], kinds)]
    return f"{type(module).__name__}({', '.join(shown)})"
