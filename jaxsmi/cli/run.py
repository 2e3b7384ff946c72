"""Commands that are more than one call: `run` and `sweep`.

They yield a report after each part of their work, so that an interruption keeps the finished parts.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import jaxsmi as smi
from jaxsmi.cli.flags import check_names, make_model, with_records
from jaxsmi.cli.report import Report, has_signs, plain, report, text_of
from jaxsmi.core import validate
from jaxsmi.core.display import format_estimate, number, table
from jaxsmi.core.results import Result, counts
from jaxsmi.core.solution import Solution
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench import plotting, sweeps
from jaxsmi.workbench.rows import SOLVERS, Grid, Row, setting_names

if TYPE_CHECKING:
    import xarray


_RANDOM_START = 1e-3  # start of GAMP: uninformative, as the start of the theory beside it


def run(
    model: AbstractModel,
    *,
    alpha: float,
    dimension: int,
    key: PRNGKeyArray,
    averages: smi.Averages | None = None,
    max_steps: int = 300,
    curve_points: int = 8,
    progress: bool = False,
) -> Iterator[Report]:
    """Run message passing on a data set, beside its theory and the curve of theory against α.

    GAMP starts at random, and state evolution at side information 1/D, as much as by chance.

    Args:
        model: The model.
        alpha: Sample complexity N/D (matrices: n/d^2 or n/(dL)).
        dimension: Dimension D of a token.
        key: Random key of all random numbers.
        averages: Averages of the curve of state evolution. Default: 1024 points in 4 nets.
        max_steps: Step budget of GAMP. Default 300.
        curve_points: Values of alpha on the curve of state evolution. Default 8.
        progress: Show bars. Default False.
    """
    validate.instance("model", model, AbstractModel, "a model that message passing learns")
    validate.count("curve_points", curve_points, 2)
    data_key, start_key, theory_key = jax.random.split(key, 3)
    data = model.sample(data_key, dimension=dimension, alpha=alpha)
    # theory needs no data: beside the run it takes another core
    pool = concurrent.futures.ThreadPoolExecutor(1)
    beside = pool.submit(
        _theory, model, alpha, dimension, theory_key, averages, curve_points, progress
    )
    iteration = smi.Iteration(max_steps)
    learned = smi.gamp(
        model, data, key=start_key, start=_RANDOM_START, iteration=iteration, progress=progress
    )
    yield report(learned)
    yield _beside(learned, *beside.result(), dimension)


def _theory(
    model: AbstractModel,
    alpha: float,
    dimension: int,
    key: PRNGKeyArray,
    averages: smi.Averages | None,
    curve_points: int,
    progress: bool,
) -> tuple[Solution, smi.Curve]:
    """The trajectory beside a run, and the curve."""
    # arguments for the trajectory of the theory, and for a point of its curve
    step: dict[str, Any] = {"iteration": smi.Iteration(newton=False)}
    point: dict[str, Any] = {}
    if model.channel.closed_form:  # theory is exact: no points, no start
        recovery = float(smi.recovery_threshold(model).alpha)
        # a little beyond perfect recovery and beyond the run
        top = max(1.2 * recovery if np.isfinite(recovery) else 0.0, 1.5 * alpha)
    else:
        averages = smi.Averages() if averages is None else averages
        # empirical: error bars of a percent, of several where the curve is steep, at two thirds of
        # the time of 2048 points; a trajectory beside one run needs half as many
        points, nets = averages.points or 1024, averages.nets or 4
        averages, fewer = smi.Averages(points, nets), smi.Averages(max(points // 2, nets), nets)
        # a random start has cosine² of about 1/D, as an unlearned layer has by chance
        chance = 1.0 / model.design.entries(dimension)
        step |= {"averages": fewer, "start": smi.Start(chance, side_information=chance)}
        # a picture: the curve needs no more digits, and points in the plateau may stay crosses
        point = {"averages": averages, "iteration": smi.Iteration(50, tolerance=1e-3)}
        # beyond perfect recovery of two layers, and beyond the run: the last of eight points is at
        # 15/16 of it
        top = max(1.3, 1.08 * alpha)
    theory = smi.state_evolution(model, alpha, key=key, progress=progress, **step)
    # the ends are left out: there is nothing to solve at α = 0
    alphas = (np.arange(curve_points) + 0.5) / curve_points * top
    return theory, smi.curve(model, alphas, key=key, progress=progress, **point)


def _beside(learned: Solution, theory: Solution, curve: smi.Curve, dimension: int) -> Report:
    """The report of a run and its theory."""
    text = [text_of(learned), text_of(theory)]
    missed = ", ".join(number(x.alpha) for x in curve if not bool(x.converged))
    if missed:
        text.append(f"The curve did not converge at alpha = {missed}, drawn as crosses.")

    def draw(figure: Any) -> None:
        figure.set_size_inches(2.0 * figure.get_figwidth(), 2.9)
        left, right = figure.subplots(1, 2, sharey=True)
        plotting.overlap_against_iteration(learned, theory, left)
        plotting.overlap_against_alpha(curve, learned, right, legend=False)
        right.tick_params(labelleft=True)
        # theory is of infinite D: the markers of one run scatter about it by O(1/√D)
        right.set_title(f"one run, $D={dimension}$")

    data = {"gamp": plain(learned), "state_evolution": plain(theory), "curve": plain(list(curve))}
    stored = lambda: {"gamp": learned, "trajectory": theory, "curve": curve}
    return Report(data, "\n".join(text), stored, draw)


def sweep(
    file: pathlib.Path,
    *,
    workers: int = 0,
    scheduler: str | None = None,
    dry_run: bool = False,
    out: pathlib.Path | None = None,
    progress: bool = False,
) -> Iterator[Report]:
    """Solve a grid of problems that a TOML file lists; the same command resumes it.

    Args:
        file: A TOML file with entries model, alpha, solver ("state-evolution", "gamp" or "train"),
            seeds, and tables [parameters] of the model and [settings] of the solver; alpha and
            parameters are numbers, lists, or ranges {from, to, points, scale = "log"}.
        workers: Dask processes on this machine. Default 0: this process.
        scheduler: Address of a Dask cluster, host:port.
        dry_run: Solve none: say how many rows there are and how many are solved, the time for the
            others, and the memory of the largest data set.
        out: Folder of the rows.
        progress: Show a bar. Default False.
    """
    grid = read_grid(file)
    folder = None if out is None else out / "rows"
    if dry_run:
        solved = {}
        if folder is not None:
            sweeps.check_folder(grid, folder)
            solved = sweeps.solved_rows(grid, folder)
        yield _forecast(grid, solved)
        return
    where = scheduler or validate.count("workers", workers, 0) or None
    results = sweeps.solve_grid(grid, folder, where, progress)
    yield _of_sweep(results, grid, sweeps.unconverged(grid, results))


def _forecast(grid: Grid, solved: Mapping[int, Row]) -> Report:
    """Estimate the time of a sweep from its solved rows, and its memory from shapes."""
    count, done = len(grid.rows), len(solved)
    text = f"{count} rows of {len(grid.alpha)} alpha; {done} are solved."
    data: dict[str, Any] = {"rows": count, "solved": done}
    # some rows also compiled: their mean is too long rather than too short
    seconds = [float(row["seconds"]) for row in solved.values()]
    if 0 < done < count:
        data["seconds_left"] = float(np.mean(seconds)) * (count - done)
        text += f" About {data['seconds_left']:.3g} s left, {np.mean(seconds):.3g} s a row"
        text += ", compilation included."
    elif not done:
        text += " The time can be told once a row is solved in the folder --out."
    size = grid.data_bytes()
    if size:
        data["data_bytes"] = size
        text += f" The largest data set takes {size / 1e9:.2g} GB."
    if size and not done and len(grid.alpha) > 1:
        text += f" The first row takes longest: it compiles for {len(grid.alpha)} sizes of data."
    return Report(data, text)


_MOST_ROWS = 24  # rows of a printed table that fit a screen


def _estimates(results: xarray.Dataset, signs: bool) -> tuple[list[str], list[dict[str, Any]]]:
    """Tabulate the means over seeds, and list each point for JSON: overlaps, of runs cosines (norms
    of teachers differ), and of signs the share of wrong ones."""
    axes = [*map(str, results.overlap.dims[:-4]), "alpha"]
    runs = results.attrs["solver"] != '"state_evolution"'
    each = results.cosine if runs else results.overlap
    own = 0.0 * each if runs else results.stderr
    found = each.mean("seed", skipna=False).values, sweeps.mean_error(each, own).values
    Q, errors = found if runs else (np.einsum("...pp->...p", x) for x in found)  # (.., alpha, P)
    share = results.error / 4.0  # a wrong sign costs (1 + 1)²
    codes, P = results.result.values, Q.shape[-1]
    word = "cosine" if runs else "overlap"
    arrays = {word: (Q, errors)}
    if signs:  # of one seed the error is not known
        bars = sweeps.mean_error(share, np.nan * share).values
        arrays["wrong_signs"] = share.mean("seed", skipna=False).values, bars
    heads = [word] if P == 1 else [f"{word} {p + 1}" for p in range(P)]
    rows, points = [[*axes, *heads, *["wrong signs"] * signs, "result"]], []
    for k in np.ndindex(Q.shape[:-1]):
        place = [results[name].values[i] for name, i in zip(axes, k, strict=True)]
        shown = [number(x) if isinstance(x, (int, float)) else str(x) for x in place]
        ended = counts(codes[(*k[:-1], slice(None), k[-1])])
        found, bars = ({name: x[i][k] for name, x in arrays.items()} for i in (0, 1))
        pairs = zip(*(np.hstack([*x.values()]) for x in (found, bars)), strict=True)
        rows.append([*shown, *(format_estimate(x, np.nan_to_num(e)) for x, e in pairs), ended])
        at = dict(zip(axes, place, strict=True))
        points.append(at | found | {"stderrs": bars, "result": ended})
    return table(rows), points


def _of_sweep(results: xarray.Dataset, grid: Grid, missed: str) -> Report:
    codes = results.result.values
    failures = [word for word in results.message.values.flat if word]
    messages = [*([missed] if missed else []), *dict.fromkeys(failures)]
    sizes = [f"{name} {n}" for name, n in results.sizes.items() if name != "index_"]
    rows, model = len(grid.rows), grid.build(**{name: axis[0] for name, axis in grid.axes.items()})
    (lines, points), appendix = _estimates(results, has_signs(model)), ""
    if (hidden := len(lines) - 1 - _MOST_ROWS) > 0:
        appendix = "\n".join(["", "All points:", *lines, ""])
        lines[1 + _MOST_ROWS :] = [
            f".. and {hidden} points more: sweep.txt in the folder of --out has all"
        ]
    means = "; means over seeds ± one standard error" if results.sizes["seed"] > 1 else ""
    text = [f"{rows} rows, {', '.join(sizes)}{means}.", f"Results: {counts(codes)}.", *lines]
    text += messages[:5]
    ended = collections.Counter(Result(int(code)).name for code in codes.flat)
    data = {"points": codes.size, "results": dict(ended), "messages": messages, "estimates": points}
    problem = f"{len(failures)} points failed: {failures[0]}" if failures else ""
    draw = functools.partial(plotting.sweep, results)
    return Report(data, "\n".join(text), lambda: results, draw, problem, appendix)


_REQUIRED = ("model", "alpha")
_ENTRIES = (*_REQUIRED, "solver", "seeds", "parameters", "settings")


def read_grid(file: pathlib.Path) -> Grid:
    """Read the grid of a sweep from a TOML file.

    Raises:
        ValueError: For an entry that cannot be read.
        FileNotFoundError: Where there is no file.
        IsADirectoryError: For a folder.
    """
    try:
        return _grid(tomllib.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError as failure:
        raise FileNotFoundError(f"{file}: no such file.") from failure
    except IsADirectoryError as failure:
        raise IsADirectoryError(f"{file}: a folder; allowed: a TOML file.") from failure
    except ValueError as failure:  # TOML errors, and those of the model
        sentence = str(failure)
        if sentence.startswith("Invalid value"):  # TOML: most often a word without quotes
            sentence += '; a word needs quotes, as in model = "sign"'
        raise ValueError(f"{file}: {sentence}{'' if sentence[-1] in '.?' else '.'}") from failure


def _grid(entries: dict[str, Any]) -> Grid:
    """The grid of the entries of a file."""
    check_names("", entries, _ENTRIES)
    missing = [name for name in _REQUIRED if name not in entries]
    if missing:
        raise ValueError(f"missing: {' and '.join(missing)}.")
    of = lambda name: validate.instance(name, entries.get(name, {}), dict, f"a table [{name}]")
    parameters, settings = of("parameters"), of("settings")
    values = {name: _range(name, x) for name, x in parameters.items()}
    axes = {name: value for name, value in values.items() if isinstance(value, list)}
    fixed = {name: value for name, value in values.items() if name not in axes}
    build = functools.partial(make_model, str(entries["model"]), **fixed)
    # one model now: a misspelt parameter must not wait for the first row
    build(**{name: axis[0] for name, axis in axes.items() if axis})
    words = [name.replace("_", "-") for name in SOLVERS]
    solver = str(entries.get("solver", words[0])).replace("_", "-")
    validate.check(solver in words, "solver", solver, f"one of {', '.join(words)}")
    name = solver.replace("-", "_")
    settings = with_records(solver, setting_names(name)[0], settings)
    alpha = _range("alpha", entries["alpha"])
    return Grid(build, alpha, axes, entries.get("seeds", 1), name, settings)


def _range(name: str, value: Any) -> Any:
    """A range as a list of its points; anything else as it is."""
    if not isinstance(value, dict):
        return value
    allowed = '{from, to, points, scale = "linear" or "log", with positive ends}'
    scale = value.get("scale", "linear")
    right = set(value) - {"scale"} == {"from", "to", "points"} and scale in ("linear", "log")
    given = [value.get(x) for x in ("from", "to", "points")]
    numbers = [x for x in given if isinstance(x, (int, float))]
    right = right and len(numbers) == 3 and (scale == "linear" or min(numbers[:2]) > 0)
    validate.check(right, name, value, allowed)
    space = np.geomspace if scale == "log" else np.linspace
    # twelve digits, so that a point can be named in a selection
    return [float(f"{x:.12g}") for x in space(value["from"], value["to"], int(value["points"]))]
