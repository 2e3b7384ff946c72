"""Run a command and report its results: a table or JSON on stdout, arrays and a figure in files."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import json
import pathlib
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from jaxsmi.cli.flags import CommandLine, call, check_names, flags_of, in_shell
from jaxsmi.cli.process import INTERRUPTED, raise_at_interrupt
from jaxsmi.core import validate
from jaxsmi.core.display import format_estimate, number, table
from jaxsmi.core.options import setup, user_cache
from jaxsmi.core.results import Result, counts
from jaxsmi.core.solution import LearnerSolution, Solution, Threshold, index_names
from jaxsmi.learners.losses import misclassification
from jaxsmi.models.base import RUN_POINTS
from jaxsmi.models.index import IndexModel
from jaxsmi.models.prediction import generalization_error
from jaxsmi.thresholds.stairs import Stairs
from jaxsmi.thresholds.transitions import FirstOrder
from jaxsmi.workbench import plotting, storage
from jaxsmi.workbench.plotting import drawing
from jaxsmi.workbench.storage import (
    atomic_write,
    import_xarray,
    make_folder,
    named_leaves,
    parameters,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxsmi.workbench.storage import Storable


_ENDINGS = (".nc", ".txt", ".png")
# fields of a solution that are not printed, but saved in the netCDF file
_LARGE = ("history", "state", "model", "learner", "key", "weights")


@dataclasses.dataclass
class Report:
    """The results of a command, or of its finished parts.

    Args:
        data: For JSON.
        text: For the reader.
        stored: Makes what the netCDF file holds. Default None: no files.
        draw: Draws into a figure. Default None: no figure.
        problem: A sentence that says which part of the work failed. Default "": none.
        appendix: After the text in the file, too long for a screen. Default "": none.
    """

    data: dict[str, Any]
    text: str
    stored: Callable[[], Storable] | None = None
    draw: Callable[[Figure], object] | None = None
    problem: str = ""
    appendix: str = ""


def set_up(words: CommandLine) -> None:
    """Set up JAX for a process of its own, and show warnings as one line, without the code."""
    raise_at_interrupt()
    said = lambda message, *_, **__: f"jaxsmi: {in_shell(str(message), words)}\n"
    warnings.formatwarning = said
    setup(cache=user_cache())


def execute(words: CommandLine) -> int:
    """Run a command, print its report and write its files; returns the exit status.

    Raises:
        ValueError: For a wrong argument.
        ImportError: Without a package of an extra.
        OSError: Where a file cannot be written.
    """
    if words.common.get("out") is not None:
        _prepare(words)
    done = Report({}, "")
    # wall time: what a user waits for, compilation included
    begin = time.perf_counter()
    try:
        for done in _reports(words):  # noqa: B007  (the last one is the result)
            pass
    except (ValueError, FileNotFoundError):
        if words.common.get("out") is not None:
            with contextlib.suppress(OSError):  # it holds files
                words.common["out"].rmdir()
        raise
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or _finish_part(words, done)
        print(f"jaxsmi {words.name}: {said}", file=sys.stderr)
        return INTERRUPTED
    done.data["seconds"] = time.perf_counter() - begin
    took = "This check took " * bool(words.values.get("dry_run"))
    done.text += f"\n{took}{done.data['seconds']:.1f} s."
    _finish(words, done)
    if done.problem:
        print(f"jaxsmi {words.name}: {done.problem}", file=sys.stderr)
    return 1 if done.problem else 0


def _prepare(words: CommandLine) -> None:
    """Make the output folder; raise before the work if its results cannot be written."""
    out = words.common["out"]
    import_xarray()
    if not _draws():
        print("jaxsmi: no figure without matplotlib: pip install 'jaxsmi[plot]'", file=sys.stderr)
    there = [path.name for path in _paths(words) if path.exists()]
    # a sweep goes on in its folder, which is checked by itself
    again = words.common.get("overwrite", False) or words.name == "sweep"
    found = f"files of an earlier run, {', '.join(there)}"
    validate.check(again or not there, "out", found, "another folder, or --overwrite")
    make_folder(out)


def _draws() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def _paths(words: CommandLine) -> list[pathlib.Path]:
    """The files of a command: arrays, table, figure."""
    return [words.common["out"] / (words.name.replace(" ", "-") + end) for end in _ENDINGS]


def _reports(words: CommandLine) -> Iterator[Report]:
    """A report after each part of the work, of all parts so far."""
    varied, axis = _axis(words)
    if not varied:
        result = call(words, words.values)
        # `run` and `sweep` report themselves
        yield from result if isinstance(result, Iterator) else [report(result)]
    results: list[Any] = []
    curve = _alphas(words) if varied != "alpha" else []
    for value in axis:
        # one call each, not a vmap: a size may vary, and Ctrl-C keeps what is finished
        points = [{varied: value, "alpha": alpha} for alpha in curve] or [{varied: value}]
        done = [call(words, {**words.values, **point}) for point in points]
        done = [list(x)[-1] if isinstance(x, Iterator) else x for x in done]
        results.append(done if curve else done[0])
        yield (_curves if curve else several)(varied, axis[: len(results)], results)


def _axis(words: CommandLine) -> tuple[str, list[Any]]:
    """The flag that varies and its values; "" where none does."""
    flags = flags_of(words)
    if "vary" in words.common:
        name, _, listed = words.common["vary"].partition("=")
        name = name.lstrip("-").replace("-", "_")
        check_names("--vary: ", [name], list(flags))
        validate.check(listed, "vary", words.common["vary"], "NAME=VALUE,VALUE,..")
        return name, [_number(word) for word in listed.split(",")]
    curve = _alphas(words)
    return ("alpha", curve) if curve else ("", [])


def _alphas(words: CommandLine) -> list[float]:
    """Several α of a call that takes one, which are a curve; [] of others."""
    alpha, flags = words.values.get("alpha"), flags_of(words)
    single = "alpha" in flags and flags["alpha"].path == ("alpha",) and not words.command.grid
    if single and isinstance(alpha, tuple) and len(alpha) > 1:
        return sorted(set(alpha))
    return []


def _number(word: str) -> Any:
    try:
        # a literal of Python: the type of a flag is not known where words can be several
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def _finish(words: CommandLine, done: Report) -> None:
    """Write the files, then print the report."""
    # JSON and netCDF keep the names of Python
    done.text = in_shell(done.text, words)
    about = {"command": words.name, "settings": parameters(words.settings)}
    files: list[str] = []
    if words.common.get("out") is not None and done.stored is not None:
        files = [str(path) for path in _write(words, done, about)]
    if words.common.get("json"):
        data = {**about, **done.data, "files": files}
        # NaN is no JSON, and many readers stop at it: parameters writes null
        text = json.dumps(parameters(data, largest=np.inf), allow_nan=False)
    else:
        text = "\n".join([done.text, *(f"Written: {file}" for file in files)])
    # flushed here: a closed pipe must show before the program reports success
    print(text, flush=True)


def _write(words: CommandLine, done: Report, about: Mapping[str, Any]) -> list[pathlib.Path]:
    """Write netCDF, table and figure; returns their paths."""
    arrays, lines, picture = _paths(words)
    assert done.stored is not None
    storage.save(done.stored(), arrays, **about)
    with atomic_write(lines) as temporary:
        temporary.write_text(f"{done.text}\n{done.appendix}", encoding="utf-8")
    if done.draw is None or not _draws():
        return [arrays, lines]
    canvas = plotting.canvas(height=2.7)
    with plotting.style():
        done.draw(canvas)
        if "vary" in words.common:
            canvas.suptitle(_title(words), fontsize=7, x=0.02, ha="left")
    plotting.savefig(canvas, picture, **about)
    return [picture, arrays, lines]


def _title(words: CommandLine) -> str:
    """The command, its model and all that decides the numbers, but for what varies."""
    numerical = [x.name for x in flags_of(words).values() if x.path[0] in ("averages", "iteration")]
    hidden = ("model", "vary", "seed", _axis(words)[0], *numerical)
    fixed = {name: np.ravel(x).tolist() for name, x in words.settings.items() if name not in hidden}
    listed = [" ".join([name, *map(str, x)]) for name, x in fixed.items()]
    title = ", ".join(filter(None, [words.name, words.model, *listed]))
    return textwrap.fill(title.replace("_", " "), 68)


def _finish_part(words: CommandLine, done: Report) -> str:
    """Print and save what was finished before Ctrl-C; returns a sentence about it."""
    if not done.data:
        return "interrupted before the first result; the same command starts over"
    # no figure: its curves would look finished
    _finish(words, dataclasses.replace(done, data=done.data | {"interrupted": True}, draw=None))
    saved = words.common.get("out") is not None and done.stored is not None
    kept, again = ("printed and saved", " with --overwrite") if saved else ("printed", "")
    return f"interrupted; the finished part is {kept}; the same command{again} starts over"


def report(result: Any) -> Report:
    """Describe the result of any public function."""
    if isinstance(result, Report):
        return result
    axes = lambda figure: result.plot(figure.subplots())
    # a batch has no single table and no single curve
    if isinstance(result, Solution) and np.ndim(result.overlap) == 2:
        # a root has no trajectory to draw
        draw = axes if "step" in result.history else None
        return Report(plain(result), text_of(result), lambda: result, draw)
    steps: Any = [result] if isinstance(result, Threshold) else result
    if isinstance(steps, list) and all(isinstance(step, Threshold) for step in steps):
        stored = lambda: steps or storage.arrays({})
        text = repr(result)
        message = {"message": result.message} if isinstance(result, Stairs) else {}
        return Report({"thresholds": plain(steps)} | message, text, stored)
    data = plain(result)
    arrays = named_leaves(data)
    text = repr(result) if isinstance(result, Solution | FirstOrder) else _lines(arrays)
    if isinstance(steps, list) and {*map(type, steps)} == {LearnerSolution}:  # minima
        text = "\n\n".join(map(text_of, steps))
    data = data if isinstance(data, dict) else {"value": data}
    draw = axes if isinstance(result, FirstOrder) else None
    return Report(data, text, lambda: storage.arrays(arrays), draw)


def text_of(solution: Solution) -> str:
    """The text of a solution, with the share of wrong signs if its labels are signs."""
    share = wrong_signs(solution)
    words = "" if share is None else f"wrong signs {format_estimate(*share)}, "
    return repr(solution).replace("\n  error ", f"\n  {words}error ", 1)


def wrong_signs(solution: Solution) -> tuple[Any, Any] | None:
    """The share of wrong signs on new inputs, label noise apart, and its error; None if labels are
    not ±1, and for the run of a learner of several indices."""
    learner = isinstance(solution, LearnerSolution)
    student = getattr(solution.learner, "student", None) if learner else solution.model
    run, cosine, bars = solution.weights is not None, solution.cosine, solution.stderrs
    if student is None or not has_signs(solution.model) or (learner and run and cosine.size > 1):
        return None
    if not learner:  # a wrong sign costs (1 + 1)²
        share = solution.error / 4.0
        # a share of sampled inputs, unless it is the angle of one field
        angle = np.isclose(share, np.arccos(np.minimum(cosine[0], 1.0)) / np.pi, atol=1e-9)
        sampled = 0.0 if angle else np.sqrt(share * (1.0 - share) / RUN_POINTS)
        return share, sampled if run else bars.get("error", np.zeros(())) / 4.0
    if run:  # as theory, whose teacher has the norm S
        M = cosine * np.sqrt(solution.overlap * solution.model.prior.second_moment(1))
        solution = dataclasses.replace(solution, weights=None, teacher_overlap=M)
    key = jax.random.key(0)
    share = generalization_error(student, solution, key=key, loss=misclassification)
    slope = np.pi * np.sqrt(np.maximum(1.0 - cosine[0] ** 2, 1e-12))  # infinite at recovery
    moved = bars.get("cosine", np.zeros(1))[0] / slope
    return share.value, share.stderr or moved


def has_signs(model: Any) -> bool:
    """Labels are ±1."""
    labels: Any = model.channel.outcomes if isinstance(model, IndexModel) else None
    return np.ndim(labels) == 1 and bool(np.all(np.abs(labels) == 1.0))


def several(name: str, values: Sequence[Any], results: Sequence[Any]) -> Report:
    """Describe the results at several values of a flag."""
    reports = [report(result) for result in results]
    single = all(isinstance(x, Solution) and np.ndim(x.overlap) == 2 for x in results)
    pairs = list(zip(values, reports, strict=True))
    if name == "alpha" and single:
        curve = list(results)
        draw = lambda figure: plotting.overlap_against_alpha(curve, ax=figure.subplots())
        text = _table(name, [x.alpha for x in curve], curve)
        return Report({"curve": plain(curve)}, text, lambda: curve, draw)
    data = {"varied": name, "results": [{"value": value, **one.data} for value, one in pairs]}
    groups: Any = lambda: {f"{name}={value}": one.stored() for value, one in pairs if one.stored}
    rows = [_estimates(result) for result in results]
    # one table where all have the same numbers; more layers have more indices
    if rows[0] and all(row.keys() == rows[0].keys() for row in rows):
        numbers = all(isinstance(value, (int, float)) for value in values)
        draw = lambda figure: _draw_against(figure, name, values, rows)
        if all(isinstance(result, Stairs) for result in results):
            draw = lambda figure: plotting.thresholds_against(
                results, np.asarray(values), figure.subplots(), parameter=name.replace("_", " ")
            )
        return Report(data, _table(name, values, results), groups, draw if numbers else None)
    text = "\n\n".join(f"{name} = {value}\n{one.text}" for value, one in pairs)
    return Report(data, text, groups)


def _curves(name: str, values: Sequence[Any], results: Sequence[list[Solution]]) -> Report:
    """Describe curves against α at several values of another flag."""
    pairs = list(zip(values, results, strict=True))
    words = name.replace("_", " ")

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for value, curve in pairs:
            plotting.overlap_against_alpha(curve, ax=axes, label=f"{words} {value}")

    tables = [
        f"{words} {value}\n{_table('alpha', [x.alpha for x in curve], curve)}"
        for value, curve in pairs
    ]
    data = {"varied": name, "results": [{"value": x, "curve": plain(curve)} for x, curve in pairs]}
    stored = lambda: {f"{name}={value}": curve for value, curve in pairs}
    return Report(data, "\n\n".join(tables), stored, draw)


def _estimates(result: Any) -> dict[str, tuple[Any, Any]]:
    """Return the numbers of one row of a table with their errors: overlaps, cosines of learners, or
    α of thresholds; none for other results."""
    if isinstance(result, Solution) and np.ndim(result.overlap) == 2:
        kind, columns = "overlap", (np.diagonal(result.overlap), np.diagonal(result.stderr))
        # the overlap of a learner is the size of its weights, not what was learned
        if isinstance(result, LearnerSolution) and np.all(np.isfinite(result.cosine)):
            bars = result.stderrs.get("cosine", 0.0 * result.cosine)
            kind, columns = "cosine", (result.cosine, bars)
        names = [f"{kind} of {name}" for name in index_names(result.model, len(result.overlap))]
        share = wrong_signs(result)
        error = {"error": (result.error, result.stderrs.get("error", np.zeros(())))}
        error = error if share is None else {"wrong signs": share}
        return dict(zip(names, zip(*columns, strict=True), strict=True)) | error
    found: dict[str, Any] = {}
    if isinstance(result, Threshold):
        found = {"threshold": result}
    elif isinstance(result, FirstOrder):
        inside = lambda x: x if x and 0.0 < float(x.alpha) < np.inf else None
        found = {name: inside(x) for name, x in result.thresholds.items()}
    elif isinstance(result, Stairs):
        found = {f"step {k + 1}": step for k, step in enumerate(result)}
    none = np.asarray(np.nan), np.asarray(0.0)
    return {name: (x.alpha, x.stderr) if x else none for name, x in found.items()}


def _table(name: str, values: Sequence[Any], results: Sequence[Any]) -> str:
    """A table of estimates and outcomes, one row a value of a flag."""
    single = isinstance(results[0], Solution)
    ends = ["steps", "result"] if single else ["result"] * isinstance(results[0], Threshold)
    rows = [[name, *_estimates(results[0]), *ends]]
    for value, found in zip(values, results, strict=True):
        cells = starmap(format_estimate, _estimates(found).values())
        if not ends and isinstance(results[0], FirstOrder):  # outside of the grid, too
            cells = map(found.shown, found.thresholds.values())
        ended = [number(found.steps)] if single else []
        ended += [counts(found.result)] if ends else []
        rows.append([value if isinstance(value, str) else number(value), *cells, *ended])
    # each sentence once, however many values end with it
    said = dict.fromkeys(f"{counts(x.result)}: {x.message}" if ends else x.message for x in results)
    sentences = [textwrap.fill(x, 100, subsequent_indent="  ") for x in said]
    return "\n".join([*table(rows), "", *sentences])


def _draw_against(
    figure: Figure, name: str, values: Sequence[float], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Draw overlaps or thresholds against a flag, with bars of two standard errors."""
    axes = figure.subplots()
    labels = [label for label in rows[0] if label not in ("error", "wrong signs")]
    solved = len(labels) < len(rows[0])
    for k, label in enumerate(labels):
        estimates, errors = np.array([row[label] for row in rows], float).T
        missing = int(np.sum(~np.isfinite(estimates)))
        shown = label.partition(" of ")[2] or label
        shown += f" (not in range at {missing} of {len(values)})" * (missing > 0)
        look: dict[str, Any] = drawing.markers(k) | {"linestyle": "-"}
        axes.errorbar(values, estimates, 2.0 * np.nan_to_num(errors), label=shown, **look)
    axes.update_datalim(np.transpose([values, values]), updatey=False)  # also where nothing is
    what = labels[0].partition(" of ")[0] if solved else r"threshold $\alpha$"
    axes.set(xlabel=drawing.with_symbol(name.replace("_", " ")), ylabel=what)
    if min(values) > 0.0 and max(values) > 30.0 * min(values):  # e.g. ridges 0.01, 0.1, 1
        axes.set_xscale("log")
    if not solved:
        drawing.from_zero(axes)
    if len(labels) > 1 or not np.all(np.isfinite([row[labels[0]][0] for row in rows])):
        drawing.legend_above(axes, 2)


def _lines(arrays: Mapping[str, np.ndarray]) -> str:
    """Print each array in one line, long ones by their ends."""
    show = lambda x: np.array2string(x, precision=4, threshold=12, edgeitems=2)
    return "\n".join(f"{name}: {' '.join(show(x).split())}" for name, x in arrays.items())


def plain(value: Any) -> Any:
    """A result as plain data: dicts of its fields, names of result codes, messages."""
    fields = value
    if hasattr(value, "_asdict"):  # a named tuple
        fields = value._asdict()
    elif isinstance(value, eqx.Module):
        names = [field.name for field in dataclasses.fields(value)]
        fields = {name: getattr(value, name, None) for name in names if name not in _LARGE}
    if isinstance(fields, (list, tuple)):
        return [plain(entry) for entry in fields]
    if not isinstance(fields, Mapping):
        return value
    data = {str(name): plain(entry) for name, entry in fields.items()}
    if isinstance(value, (Solution, Threshold)):
        names = [Result(int(code)).name for code in np.ravel(value.result)]
        data["result"] = names if np.ndim(value.result) else names[0]
        data["message"] = value.message
    if isinstance(value, Solution):
        data |= {"converged": value.converged, "cosine": value.cosine}
        if np.ndim(value.overlap) == 2 and (share := wrong_signs(value)) is not None:
            data["wrong_signs"], data["stderrs"]["wrong_signs"] = share
    return data
