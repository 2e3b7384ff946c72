"""The command `jaxsmi sweep grid.toml --out DIR`: a grid of problems from a file. No equation lives here.

model = "deep-attention"                # any model of the command line
solver = "state-evolution"              # or "gamp", "train"
alpha = { from = 0.1, to = 1.6, points = 20 }      # or a list
seeds = 1

[parameters]                            # the model's flags: a list or a range is an axis, anything else is fixed
skip = { from = 0.25, to = 4, points = 12, scale = "log" }

[settings]                              # of the solver
stderr = 0.02
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import tomllib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsmi.cli.models import build
from jaxsmi.cli.report import Report, progress, table, timed, wrapped
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.workbench import costs, plotting, sweeps

KNOWN = ("model", "solver", "alpha", "seeds", "key", "parameters", "settings")


def sweep(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Solve a grid of problems described by a file; interrupted, it goes on from what lies in the folder.

    The file is TOML: model, solver ("state-evolution", "gamp", "train"), alpha, seeds, key, [parameters], [settings]; alpha and
    parameters are lists, or ranges {from, to, points, scale = "log"}.
    """
    parser.add_argument(
        "file", metavar="FILE", type=pathlib.Path, help="what to sweep, e.g. grid.toml"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes on this machine; 0: this one alone"
    )
    parser.add_argument(
        "--scheduler",
        default=argparse.SUPPRESS,
        metavar="ADDRESS",
        help="solve on the Dask cluster of this address",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be done, with its memory and time; do nothing",
    )

    def execute(arguments: argparse.Namespace) -> Report:
        check(arguments.workers >= 0, "--workers", arguments.workers, "an integer >= 0")
        grid = read(arguments.file)
        task = sweeps.planned(**grid)
        folder = arguments.out / "rows" if arguments.out else None
        if arguments.dry_run:
            return _foreseen(task, folder)
        scheduler = getattr(arguments, "scheduler", None) or arguments.workers or None
        with timed() as seconds:
            found = sweeps.sweep(
                **grid, out=folder, scheduler=scheduler, progress=progress(arguments)
            )
        return _report(task, found, seconds[0])

    return execute


def read(path: pathlib.Path) -> dict[str, Any]:
    """The arguments of `smi.sweep` that a file describes. Raises ValueError, naming the entry, for what it cannot read."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as failure:
        raise ValueError(f"{path}: {failure}.") from failure
    unknown = sorted(set(told) - set(KNOWN))
    check(not unknown, str(path), ", ".join(unknown), f"entries {', '.join(KNOWN)}")
    for name in ("model", "alpha"):
        check(name in told, str(path), f"no {name}", f"an entry {name}")
    parameters = {name: _values(name, value) for name, value in told.get("parameters", {}).items()}
    fixed = {name: value for name, value in parameters.items() if not isinstance(value, list)}
    axes = {name: value for name, value in parameters.items() if isinstance(value, list)}
    alpha = _values("alpha", told["alpha"])
    make = functools.partial(build, told["model"], **fixed)
    make(**{name: values[0] for name, values in axes.items()})  # a wrong name is found now
    return {
        "build": make, "alpha": alpha, "parameters": axes, "key": told.get("key", 0), "seeds": told.get("seeds", 1),
        "solver": told.get("solver", "state-evolution").replace("-", "_"), "settings": told.get("settings", {}),
    }  # fmt: skip


def _values(name: str, value: Any) -> Any:
    """A range as a list of its points; anything else as it is."""
    if not isinstance(value, dict):
        return value
    known = {"from", "to", "points", "scale"}
    check(
        set(value) <= known and {"from", "to", "points"} <= set(value),
        name,
        value,
        "{from, to, points, scale}",
    )
    check(
        value.get("scale", "linear") in ("linear", "log"),
        f"{name}.scale",
        value.get("scale"),
        "'linear' or 'log'",
    )
    logarithmic = value.get("scale") == "log"
    check(
        not logarithmic or min(value["from"], value["to"]) > 0,
        name,
        value,
        "positive ends on a log scale",
    )
    space = np.geomspace if logarithmic else np.linspace
    return [float(f"{x:.12g}") for x in space(value["from"], value["to"], int(value["points"]))]


def _foreseen(task: sweeps.Sweep, folder: pathlib.Path | None) -> Report:
    """Rows, points, what is finished, and what the rest will take."""
    there = sweeps.finished(task, folder) if folder is not None and folder.exists() else {}
    rows, points = len(task.rows), len(task.rows) * len(task.alpha)
    data: dict[str, Any] = {
        "rows": rows,
        "points": points,
        "finished": len(there),
        "rows_at_once": task.together,
    }
    lines = [
        f"{rows} rows of {len(task.alpha)} alpha: {points} points; {len(there)} rows are finished."
    ]
    if there:
        each = float(np.mean([float(row["seconds"]) for row in there.values()]))
        data |= {"seconds_per_row": each, "seconds_left": each * (rows - len(there))}
        lines.append(
            f"{each:.3g} s a row so far: about {each * (rows - len(there)):.3g} s of one process left."
        )
    if task.solver in ("gamp", "train"):
        model = task.build(**task.points[-1])
        dimension = task.settings.get("dimension", 1000 if task.solver == "gamp" else 500)
        cost = costs.gamp_cost(
            model,
            dimension=dimension,
            alpha=max(task.alpha),
            store=task.settings.get("store", True),
            probe=False,
        )
        data["memory"] = sum(cost.memory.values())
        lines.append(f"Memory of the largest point: {data['memory'] / 2**30:.2f} GiB a process.")
    return Report(data, "\n".join(lines), lambda figure: None, {}, stem="sweep")


def _report(task: sweeps.Sweep, found: Any, seconds: float) -> Report:
    codes, counts = np.unique(
        np.nan_to_num(found.result.values, nan=Result.INVALID), return_counts=True
    )
    ended = {Result(int(code)).name: int(count) for code, count in zip(codes, counts, strict=True)}
    messages = list(dict.fromkeys(message for message in np.ravel(found.message.values) if message))
    text = [
        wrapped(
            f"{len(task.rows)} rows of {len(task.alpha)} alpha; axes {', '.join(f'{k} {n}' for k, n in found.sizes.items())}."
        ),
        table(["result", "points"], [[name, str(count)] for name, count in ended.items()]),
        *(
            wrapped(f"{Result[name].name}: {Result[name].remedy}")
            for name in ended
            if name not in ("SUCCESS", "RECOVERED")
        ),
        *(wrapped(message) for message in messages[:5]),
        f"{seconds:.1f} s.",
    ]
    data = {
        "points": int(found.result.size),
        "results": ended,
        "messages": messages,
        "seconds": seconds,
    }
    return Report(
        data, "\n".join(text), lambda figure: plotting.sweep(found, figure), found, stem="sweep"
    )
