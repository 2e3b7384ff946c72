"""Reports of results: a table for the reader, plain data for JSON, arrays for a file, a figure."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from jaxsmi.core.codes import Result
from jaxsmi.core.display import table
from jaxsmi.core.results import Solution, Threshold, index_names
from jaxsmi.workbench import plotting, storage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxsmi.workbench.storage import Storable


# of a solution: neither shown nor printed, but in the netCDF file
_LARGE = ("history", "state", "model", "key", "weights")


@dataclasses.dataclass
class Report:
    """What a command computed.

    Args:
        data: For JSON.
        text: For the reader.
        stored: Makes what the netCDF file holds. Default None: no files.
        draw: Draws into a figure. Default None: no figure.
        problem: A sentence that says which part of the work failed. Default "": none.
    """

    data: dict[str, Any]
    text: str
    stored: Callable[[], Storable] | None = None
    draw: Callable[[Figure], object] | None = None
    problem: str = ""


_kept: list[tuple[Report | None, Callable[[], str]]] = []


def keep(finished: Report | None, sentence: Callable[[], str] = lambda: "interrupted") -> None:
    """Keep the finished parts, and what to say of the rest, for an interruption."""
    _kept[:] = [(finished, sentence)]


def kept() -> tuple[Report | None, Callable[[], str]]:
    """The finished parts, and what to say of the rest."""
    return _kept[0] if _kept else (None, lambda: "interrupted")


def report(result: Any) -> Report:
    """Describe the result of any public function."""
    if isinstance(result, Report):
        return result
    # a batch has no single table and no single curve
    if isinstance(result, Solution) and np.ndim(result.overlap) == 2:
        axes = lambda figure: result.plot(figure.subplots())
        # a root has no trajectory to draw
        draw = axes if "step" in result.history else None
        return Report(plain(result), repr(result), lambda: result, draw)
    steps = [result] if isinstance(result, Threshold) else result
    if isinstance(steps, list) and all(isinstance(step, Threshold) for step in steps):
        stored = lambda: storage.arrays(_columns(steps))
        text = "\n".join(map(repr, steps)) or "Nothing is learned from the labels alone."
        return Report({"thresholds": plain(steps)}, text, stored)
    data = plain(result)
    arrays = _arrays(data)
    text = repr(result) if isinstance(result, Solution) else _lines(arrays)
    data = data if isinstance(data, dict) else {"value": data}
    return Report(data, text, lambda: storage.arrays(arrays))


def several(name: str, values: Sequence[Any], results: Sequence[Any]) -> Report:
    """Describe the results at several values of a flag."""
    reports = [report(result) for result in results]
    single = all(isinstance(x, Solution) and np.ndim(x.overlap) == 2 for x in results)
    pairs = list(zip(values, reports, strict=True))
    if name == "alpha" and single:
        curve = list(results)
        draw = lambda figure: plotting.overlap_against_alpha(curve, ax=figure.subplots())
        return Report({"curve": plain(curve)}, _curve(curve), lambda: curve, draw)
    data = {"varied": name, "results": [{"value": value, **one.data} for value, one in pairs]}
    text = "\n\n".join(f"{name} = {value}\n{one.text}" for value, one in pairs)
    groups = lambda: {f"{name}={value}": one.stored() for value, one in pairs if one.stored}
    return Report(data, text, groups)  # pyright: ignore[reportArgumentType]


def _curve(curve: Sequence[Solution]) -> str:
    names = index_names(curve[0].model, len(curve[0].overlap))
    rows = []
    for point in curve:
        overlaps = [
            f"{float(point.overlap[p, p]):.4f} ± {float(point.stderr[p, p]):.4f}"
            for p in range(len(names))
        ]
        ended = [f"{float(point.error):.4g}", f"{int(point.steps)}", Result(int(point.result)).name]
        rows.append([f"{float(point.alpha):g}", *overlaps, *ended])
    # each sentence once, however many points end with it
    messages = dict.fromkeys(f"{Result(int(x.result)).name}: {x.message}" for x in curve)
    said = [textwrap.fill(message, 100, subsequent_indent="  ") for message in messages]
    header = ["alpha", *names, "error", "steps", "result"]
    return "\n".join([*table([header, *rows]), "", *said])


def _lines(arrays: Mapping[str, np.ndarray]) -> str:
    """One line an array; long ones by their ends."""
    show = lambda x: np.array2string(x, precision=4, threshold=12, edgeitems=2)
    return "\n".join(f"{name}: {' '.join(show(x).split())}" for name, x in arrays.items())


def _arrays(data: Any) -> dict[str, np.ndarray]:
    """All numbers and words of plain data, by name."""
    leaves = jax.tree.leaves_with_path(data)
    named = lambda path: jax.tree_util.keystr(path, simple=True, separator="_") or "value"
    return {named(path): np.asarray(leaf) for path, leaf in leaves}


def _fields(value: Any) -> Mapping[str, Any] | None:
    """The parts of a record."""
    if isinstance(value, Mapping):
        return {str(name): entry for name, entry in value.items()}
    if isinstance(value, eqx.Module):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name, None) for name in names if name not in _LARGE}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    return None


def plain(value: Any) -> Any:
    """A result as plain data: dicts of its fields, names of result codes, messages."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
        return [plain(entry) for entry in value]
    fields = _fields(value)
    if fields is None:
        return value
    data = {name: plain(entry) for name, entry in fields.items()}
    if isinstance(value, (Solution, Threshold)):
        codes = [Result(int(code)).name for code in np.ravel(np.asarray(value.result))]
        data["result"] = codes if np.ndim(value.result) else codes[0]
        data["message"] = value.message
    if isinstance(value, Solution):
        data |= {"converged": value.converged, "cosine": value.cosine}
    return data


def _columns(steps: Sequence[Threshold]) -> dict[str, np.ndarray]:
    """Each field of several thresholds, with the threshold as the leading axis."""
    names = [field.name for field in dataclasses.fields(steps[0])] if steps else []
    return {name: np.stack([np.asarray(getattr(step, name)) for step in steps]) for name in names}
