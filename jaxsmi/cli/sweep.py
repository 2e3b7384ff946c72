"""The command `jaxsmi sweep grid.toml --out DIR`: a grid of problems from a file.

No equation lives here. A file says, the model's flags under [parameters], where a list or a range
is an axis and anything else is fixed, and what the solver is asked under [settings]:

    model = "deep-attention"                        # any model of the command line
    solver = "state-evolution"                      # or "gamp", "train"
    alpha = { from = 0.1, to = 1.6, points = 20 }   # or a list
    seeds = 1

    [parameters]
    skip = { from = 0.25, to = 4, points = 12, scale = "log" }

    [settings]
    stderr = 0.02
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import tomllib
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import progress
from jaxsmi.cli.models import build
from jaxsmi.cli.report import Report, table, timed, wrapped
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result, outcome
from jaxsmi.workbench import costs, plotting, sweeps

if TYPE_CHECKING:
    import xarray

__all__ = ["COMMAND", "read"]

KNOWN = ("model", "solver", "alpha", "seeds", "key", "parameters", "settings")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument(
        "file", metavar="FILE", type=pathlib.Path, help="what to sweep, e.g. grid.toml"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes on this machine; 0: this one alone"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="solve on the Dask cluster of this address"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be done, with its memory and time; do nothing",
    )


def _execute(arguments: argparse.Namespace) -> Report:
    """Solve the grid of a file, or say what it would take."""
    check(arguments.workers >= 0, "--workers", arguments.workers, "an integer >= 0")
    grid = read(arguments.file)
    task = sweeps.planned(**grid)
    folder = arguments.out / "rows" if arguments.out else None
    if arguments.dry_run:
        return _foreseen(task, folder)
    scheduler = arguments.scheduler or arguments.workers or None
    with timed() as seconds:
        results = sweeps.sweep(
            **grid, out=folder, scheduler=scheduler, progress=progress(arguments)
        )
    return _report(task, results, seconds[0])


def read(path: pathlib.Path) -> dict[str, Any]:
    """The arguments of `smi.sweep` that a file describes.

    A ValueError names an entry that cannot be read.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as failure:
        raise ValueError(f"{path}: {failure}.") from failure
    unknown = sorted(set(entries) - set(KNOWN))
    check(not unknown, str(path), ", ".join(unknown), f"entries {', '.join(KNOWN)}")
    for name in ("model", "alpha"):
        check(name in entries, str(path), f"no {name}", f"an entry {name}")
    given = entries.get("parameters", {})
    parameters = {name: _values(name, value) for name, value in given.items()}
    fixed = {name: value for name, value in parameters.items() if not isinstance(value, list)}
    axes = {name: value for name, value in parameters.items() if isinstance(value, list)}
    make = functools.partial(build, entries["model"], **fixed)
    make(**{name: values[0] for name, values in axes.items()})  # a wrong name is refused here
    return {
        "build": make,
        "alpha": _values("alpha", entries["alpha"]),
        "parameters": axes,
        "key": entries.get("key", 0),
        "seeds": entries.get("seeds", 1),
        "solver": entries.get("solver", "state-evolution").replace("-", "_"),
        "settings": entries.get("settings", {}),
    }


def _values(name: str, value: object) -> Any:
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
    rows = len(task.rows)
    points = rows * len(task.alpha)
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
        rest = each * (rows - len(there))
        data |= {"seconds_per_row": each, "seconds_left": rest}
        lines.append(f"{each:.3g} s a row so far: about {rest:.3g} s of one process left.")
    dimension = task.dimension
    if dimension is not None:
        cost = costs.gamp_cost(
            task.build(**task.points[-1]),
            dimension=dimension,
            alpha=max(task.alpha),
            store=task.settings.get("store", True),
            probe=False,
        )
        data["memory"] = sum(cost.memory.values())
        lines.append(f"Memory of the largest point: {data['memory'] / 2**30:.2f} GiB a process.")
    return Report(data, "\n".join(lines), stem="sweep")


def _report(task: sweeps.Sweep, results: xarray.Dataset, seconds: float) -> Report:
    """How many points ended how, and why points failed."""
    numbers = np.nan_to_num(results.result.values, nan=Result.INVALID)
    codes, counts = np.unique(numbers, return_counts=True)
    ended = {Result(int(code)): int(count) for code, count in zip(codes, counts, strict=True)}
    messages = list(dict.fromkeys(word for word in np.ravel(results.message.values) if word))
    sizes = ", ".join(f"{name} {size}" for name, size in results.sizes.items())
    rows = [[code.name, str(count)] for code, count in ended.items()]
    bad = [code for code in ended if code not in (Result.SUCCESS, Result.RECOVERED)]
    text = [
        wrapped(f"{len(task.rows)} rows of {len(task.alpha)} alpha; axes {sizes}."),
        table(["result", "points"], rows),
        *(wrapped(f"{code.name}: {outcome(code, str(task.solver))}") for code in bad),
        *(wrapped(message) for message in messages[:5]),
        f"{seconds:.1f} s.",
    ]
    data = {
        "points": int(results.result.size),
        "results": {code.name: count for code, count in ended.items()},
        "messages": messages,
        "seconds": seconds,
    }
    return Report(
        data,
        "\n".join(text),
        lambda figure: plotting.sweep(results, figure),
        lambda: results,
        stem="sweep",
    )


COMMAND = Command(
    "sweep",
    "Solve a grid of problems described by a file; interrupted, it goes on from what lies in the "
    "folder.",
    _add_flags,
    _execute,
    details=(
        'The file is TOML: model, solver ("state-evolution", "gamp", "train"), alpha, seeds, key, '
        "[parameters], "
        '[settings]; alpha and parameters are lists, or ranges {from, to, points, scale = "log"}.'
    ),
    takes_model=False,
    operand="FILE",
    resumes=True,
)
