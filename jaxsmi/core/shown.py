"""What a reader sees of an object at the prompt, and in a notebook: numbers with their errors, what
became of a run, and how to mend it.

No equation lives here. Under tracing numbers are not known: their type and shape stand for them.
"""

from __future__ import annotations

import dataclasses
import html
import inspect
import textwrap
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.arrays import concrete

__all__ = ["Shown", "brief", "constructed", "number", "readable", "with_error"]

_FEW = 6  # entries of an array that are written out


@dataclasses.dataclass(frozen=True)
class Shown:
    """A title, lines of facts, a table, and a remark, as text and as HTML."""

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
        if self.remark:
            lines += textwrap.wrap(self.remark, 98, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(lines)

    def html(self) -> str:
        """The same, everything escaped."""
        mark = lambda tag, text: f"<{tag}>{html.escape(text)}</{tag}>"
        line = lambda tag, row: f"<tr>{''.join(mark(tag, cell) for cell in row)}</tr>"
        parts = [mark("b", self.title), *(mark("div", fact) for fact in self.facts)]
        if self.rows:
            body = "".join(line("td", row) for row in self.rows)
            parts.append(f"<table>{line('th', self.header)}{body}</table>")
        if self.remark:
            parts.append(mark("em", self.remark))
        return f"<div>{''.join(parts)}</div>"


def readable(module: eqx.Module, shown: Callable[[], Shown]) -> str:
    """What a reader sees of a module; its plain tree, where its leaves are no numbers but their
    shapes, axes or specifications."""
    try:
        return shown().text()
    except (AttributeError, IndexError, TypeError, ValueError):
        return eqx.tree_pformat(module)


def number(value: ArrayLike, digits: int = 4) -> str:
    """A number as one writes it; of an array its few entries, or its type and shape."""
    if not concrete(value) or np.size(value) > _FEW:
        return f"{np.result_type(value).name}[{','.join(map(str, np.shape(value)))}]"
    entries = np.asarray(value)
    if entries.ndim == 0:
        return f"{entries.item():.{digits}g}" if entries.dtype != bool else str(entries.item())
    return f"[{', '.join(number(entry, digits) for entry in entries)}]"


def with_error(value: ArrayLike, stderr: ArrayLike) -> str:
    """A number and its error, to two digits of the error; the number alone where there is none."""
    if not concrete((value, stderr)) or np.ndim(value) or np.ndim(stderr):
        return f"{number(value)} ± {number(stderr)}"
    error = float(np.asarray(stderr))
    if not error > 0.0 or not np.isfinite(error) or not np.isfinite(value):
        return f"{number(value, 6)}" + ("" if error == 0.0 else f" ± {number(stderr, 2)}")
    places = max(1 - int(np.floor(np.log10(error))), 0)
    if places > 6:  # the number as far as one reads it
        return f"{number(value, 7)} ± {error:.2g}"
    return f"{float(np.asarray(value)):.{places}f} ± {error:.{places}f}"


def brief(value: object) -> str:
    """A field of a model in a few characters."""
    if isinstance(value, eqx.Module):
        return constructed(value, parts=False)
    if isinstance(value, (jax.Array, np.ndarray, float)):
        return number(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(brief, value))})"
    if isinstance(value, (str, int, bool, type(None))):
        return repr(value)
    return value.__qualname__ if inspect.isroutine(value) else type(value).__name__


def constructed(module: eqx.Module, parts: bool = True) -> str:
    """A module as a call of its constructor, with the numbers and names that it keeps, and with its
    parts unless told to leave them out; a model's prior always."""
    fields = dict(vars(module))
    words = list(inspect.signature(type(module)).parameters)
    for name in words:
        derived = inspect.getattr_static(type(module), name, None)
        if name not in fields and isinstance(derived, property) and derived.fget is not None:
            fields[name] = derived.fget(module)
    names = [name for name in dict.fromkeys((*words, "prior")) if name in fields]
    known = (str, int, float, jax.Array, np.ndarray, *((eqx.Module,) if parts else ()))
    given = [f"{name}={brief(fields[name])}" for name in names if isinstance(fields[name], known)]
    return f"{type(module).__name__}({', '.join(given)})"
