"""Run a command whose words have been read, print its report and write its files."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import pathlib
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxsmi.cli import interrupts, report
from jaxsmi.cli.flags import Words, call, flags_of
from jaxsmi.cli.report import Report
from jaxsmi.core import validate
from jaxsmi.core.setup import setup, user_cache
from jaxsmi.workbench import plotting, storage
from jaxsmi.workbench.provenance import parameters
from jaxsmi.workbench.storage import discard, import_xarray, whole

_ENDINGS = (".nc", ".txt", ".png")


def set_up() -> None:
    """Set up JAX for a process of its own, and show warnings as one line, without the code."""
    setup(cache=user_cache())
    warnings.formatwarning = lambda message, *_, **__: f"jaxsmi: {message}\n"


def execute(words: Words) -> int:
    """Run a command; returns the exit status.

    Raises:
        ValueError: For a wrong argument.
        ImportError: Without a package of an extra.
        OSError: Where a file cannot be written.
    """
    if words.common.get("out") is not None:
        _prepare(words)
    report.keep(None)
    interrupts.on_interrupt(functools.partial(_interrupted, words))
    # wall time: what a user waits for, compilation included
    begin = time.perf_counter()
    done = _call(words)
    done.data["seconds"] = time.perf_counter() - begin
    done.text += f"\n{done.data['seconds']:.1f} s."
    with interrupts.writing:
        interrupts.on_interrupt(lambda: None)  # nothing is left to be saved
        _finish(words, done)
    if done.problem:
        print(f"jaxsmi {words.name}: {done.problem}", file=sys.stderr)
    return 1 if done.problem else 0


def _prepare(words: Words) -> None:
    """Find out before the work that its results cannot be written."""
    out = words.common["out"]
    import_xarray()
    if not _draws():
        print("jaxsmi: no figure without matplotlib: pip install 'jaxsmi[plot]'", file=sys.stderr)
    stem = _stem(words)
    there = [path.name for end in _ENDINGS if (path := stem.with_name(stem.name + end)).exists()]
    # a sweep goes on in its folder, which is checked by itself
    again = words.common.get("overwrite", False) or words.name == "sweep"
    found = f"files of an earlier run, {', '.join(there)}"
    validate.check(again or not there, "out", found, "another folder, or --overwrite")
    out.mkdir(parents=True, exist_ok=True)


def _draws() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def _stem(words: Words) -> pathlib.Path:
    return words.common["out"] / words.name.replace(" ", "-")


def _call(words: Words) -> Report:
    """Call the function, once for each value of the flag that varies."""
    varied, axis = _axis(words)
    if not varied:
        return report.report(call(words, words.values))
    results: list[Any] = []
    for value in axis:
        # one call each, not a vmap: a size may vary, and Ctrl-C keeps what is finished
        results.append(call(words, {**words.values, varied: value}))
        report.keep(report.several(varied, axis[: len(results)], results))
    return report.several(varied, axis, results)


def _axis(words: Words) -> tuple[str, list[Any]]:
    """The flag that varies and its values; "" where none does."""
    flags = flags_of(words)
    if "vary" in words.common:
        name, _, listed = words.common["vary"].partition("=")
        name = name.lstrip("-").replace("-", "_")
        allowed = f"NAME=VALUE,VALUE,.. of {', '.join(flags)}"
        validate.check(name in flags and listed, "vary", words.common["vary"], allowed)
        return name, [_number(word) for word in listed.split(",")]
    alpha = words.values.get("alpha")
    # the call takes one α; several are a curve
    single = "alpha" in flags and flags["alpha"].path == ("alpha",)
    if single and isinstance(alpha, tuple) and len(alpha) > 1:
        return "alpha", sorted(set(alpha))
    return "", []


def _number(word: str) -> Any:
    try:
        # a literal of Python: the type of a flag is not known where words can be several
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def _finish(words: Words, done: Report, interrupted: bool = False) -> None:
    """Write the files, then print the report."""
    about = {"command": words.name, "settings": parameters(words.settings)}
    files: list[pathlib.Path] = []
    if words.common.get("out") is not None and done.stored is not None:
        files = _write(done, _stem(words), about, figure=not interrupted)
    if words.common.get("json"):
        mark = {"interrupted": True} if interrupted else {}
        data: Mapping[str, Any] = {**about, **done.data, **mark, "files": list(map(str, files))}
        # NaN is no JSON, and many readers stop at it: parameters writes null
        text = json.dumps(parameters(data, largest=np.inf), allow_nan=False)
    else:
        text = "\n".join([done.text, *(f"Written: {file}" for file in files)])
    # flushed here: a closed pipe must show before the program reports success
    print(text, flush=True)


def _write(
    done: Report, stem: pathlib.Path, about: Mapping[str, Any], figure: bool
) -> list[pathlib.Path]:
    """Write netCDF, table and figure; returns their paths."""
    arrays, table, picture = (stem.with_name(stem.name + ending) for ending in _ENDINGS)
    assert done.stored is not None
    storage.save(done.stored(), arrays, **about)
    with whole(table) as aside:
        aside.write_text(done.text + "\n", encoding="utf-8")
    if done.draw is None or not figure or not _draws():
        return [arrays, table]
    # no interrupted figure: its curves would look finished
    canvas = plotting.canvas(height=2.7)
    with plotting.style():
        done.draw(canvas)
    plotting.savefig(canvas, picture, **about)
    return [picture, arrays, table]


def _interrupted(words: Words) -> None:
    """Save and print the finished parts, and say in one sentence that the rest is missing."""
    finished, sentence = report.kept()
    if finished is not None:
        _finish(words, finished, interrupted=True)
    if words.common.get("out") is not None:
        discard(words.common["out"])
    print(f"jaxsmi {words.name}: {sentence()}", file=sys.stderr)
