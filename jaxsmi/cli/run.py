"""Commands that are more than one call: `run`, `sweep`, and optimizers by name."""

from __future__ import annotations

import functools
import pathlib
import tomllib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

import jaxsmi as smi
from jaxsmi.cli.flags import make_model, with_records
from jaxsmi.cli.report import Report, keep, plain, report
from jaxsmi.core import validate
from jaxsmi.core.codes import Result
from jaxsmi.core.display import table
from jaxsmi.core.progress import tqdm
from jaxsmi.core.results import Solution
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench import plotting, sweeps
from jaxsmi.workbench.rows import OPTIMIZERS, evolve

if TYPE_CHECKING:
    import xarray


def optimizer(
    optimizer: str = "sgd",
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Make an optimizer of optax.

    Args:
        optimizer: adam, adamw, lion, nadam, radam, rmsprop or sgd. Default sgd.
        learning_rate: Of the optimizer. Default 0.1.
        momentum: Of the gradients, in [0, 1). Default 0.
        weight_decay: Factor of the weights that is added to their gradient. Default 0.
    """
    name = validate.choice("optimizer", optimizer, OPTIMIZERS)
    # decay before momentum, as in torch's SGD: the decayed gradient is what is accumulated
    return optax.chain(
        optax.add_decayed_weights(weight_decay),
        optax.trace(momentum) if momentum else optax.identity(),
        getattr(optax, name)(learning_rate),
    )


_RANDOM_START = 1e-3  # of GAMP: uninformative, as the start of the theory beside it


def run(
    model: AbstractModel,
    *,
    alpha: float,
    dimension: int,
    key: PRNGKeyArray,
    averages: smi.Averages | None = None,
    max_steps: int = 300,
    curve_points: int = 9,
    progress: bool = False,
) -> Report:
    """Learn a teacher by GAMP from a random start, and lay the run over state evolution.

    Args:
        model: The model.
        alpha: Sample complexity N/D (matrices: n/d^2 or n/(dL)).
        dimension: Dimension D of a token.
        key: Random key of all random numbers.
        averages: Averages of state evolution. Default: 2048 points in 8 nets.
        max_steps: Step budget of GAMP. Default 300.
        curve_points: Values of alpha on the curve of state evolution. Default 9.
        progress: Show bars. Default False.
    """
    validate.instance("model", model, AbstractModel, "a model that message passing learns")
    validate.count("curve_points", curve_points, 2)
    data_key, start_key, theory_key = jax.random.split(key, 3)
    data = model.sample(data_key, dimension=dimension, alpha=alpha)
    learned = smi.gamp(
        model,
        data,
        key=start_key,
        start=_RANDOM_START,
        iteration=smi.Iteration(max_steps),
        progress=progress,
    )
    keep(report(learned), lambda: "interrupted before state evolution was finished")
    explicit = model.channel.explicit  # of matrices theory is exact: no points, no start
    # empirical: an error bar of a percent, which a line of the picture hides
    averages = smi.Averages() if averages is None else averages
    usual = smi.Averages(averages.points or 2048, averages.nets or 8)
    sizes: dict[str, Any] = {} if explicit else {"averages": usual}
    # a random start has cosine² of about 1/D, and chance tells as much of a layer not yet learned
    chance = 1.0 / model.design.entries(dimension)
    start = None if explicit else smi.Start(chance, side_information=chance)
    plain_steps = smi.Iteration(newton=False)
    theory = smi.state_evolution(
        model,
        alpha,
        key=theory_key,
        start=start,
        iteration=plain_steps,
        progress=progress,
        **sizes,
    )
    # beyond perfect recovery of two layers at α = 1.2, or a little beyond the run
    top = _top(model, alpha) if explicit else max(1.3, 1.04 * alpha)
    # a picture: the curve needs no more digits, and points in the plateau may stay crosses
    limits: dict[str, Any] = dict(sizes)
    if not explicit:
        limits |= {"iteration": smi.Iteration(50, tolerance=1e-3)}
    curve: list[Solution] = []
    previous = None
    # between the ends: at α = 0 there is nothing to solve
    alphas = (np.arange(curve_points) + 0.5) / curve_points * top
    for value in tqdm(alphas, desc="alpha", disable=not progress, leave=False):
        curve.append(evolve(model, float(value), theory_key, previous, **limits))
        previous = curve[-1] if bool(curve[-1].converged) else previous
    return _beside(learned, theory, curve)


def _top(model: AbstractModel, alpha: float) -> float:
    """The largest α of the curve of a matrix: a little beyond perfect recovery."""
    recovery = float(smi.recovery_threshold(model).alpha)
    return max(1.2 * recovery if np.isfinite(recovery) else 0.0, 1.5 * alpha)


def _beside(learned: Solution, theory: Solution, curve: list[Solution]) -> Report:
    """The report of a run and its theory."""
    text = [repr(learned), repr(theory)]
    unfinished = [f"{float(x.alpha):.4g}" for x in curve if not bool(x.converged)]
    if unfinished:
        missed = ", ".join(unfinished)
        text.append(f"The curve did not converge at alpha = {missed} (crosses).")

    def draw(figure: Any) -> None:
        figure.set_size_inches(2.0 * figure.get_figwidth(), 2.9)
        left, right = figure.subplots(1, 2, sharey=True)
        plotting.overlap_against_iteration(learned, theory, left)
        plotting.overlap_against_alpha(curve, learned, right, legend=False)

    data = {"gamp": plain(learned), "state_evolution": plain(theory), "curve": plain(curve)}
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
) -> Report:
    """Solve a grid of problems that a TOML file describes; interrupted, the same command goes on.

    Args:
        file: Entries model, alpha, solver ("state-evolution", "gamp", "train"), seeds, and tables
            [parameters] and [settings]; alpha and parameters are numbers, lists, or ranges
            {from, to, points, scale = "log"}.
        workers: Dask processes on this machine. Default 0: this process.
        scheduler: Address of a Dask cluster, host:port.
        dry_run: Say how many rows there are and how many are solved; solve none.
        out: Folder of the rows.
        progress: Show a bar. Default False.
    """
    arguments = read_grid(file)
    grid = sweeps.grid_of(**arguments)
    folder = None if out is None else out / "rows"
    count = len(grid.rows)
    if dry_run:
        solved = sweeps.solved_rows(grid, folder) if folder is not None else {}
        seconds = [float(row["seconds"]) for row in solved.values()]
        left = f", about {np.mean(seconds) * (count - len(solved)):.3g} s left" if seconds else ""
        text = f"{count} rows of {len(grid.alpha)} alpha; {len(solved)} are solved{left}."
        return Report({"rows": count, "solved": len(solved)}, text)
    # the rows are files already: an interruption has nothing to write
    keep(None, lambda: sweeps.rows_kept(grid, folder))
    where = scheduler or validate.count("workers", workers, 0) or None
    results = sweeps.sweep(**arguments, out=folder, scheduler=where, progress=progress)
    return _of_sweep(results, count)


def _of_sweep(results: xarray.Dataset, rows: int) -> Report:
    codes, counts = np.unique(results.result.values, return_counts=True)
    ended = {Result(int(code)).name: int(n) for code, n in zip(codes, counts, strict=True)}
    messages = list(dict.fromkeys(word for word in np.ravel(results.message.values) if word))
    text = [f"{rows} rows, {', '.join(f'{name} {n}' for name, n in results.sizes.items())}."]
    text += table([["result", "points"], *([name, str(n)] for name, n in ended.items())])
    data = {"points": int(results.result.size), "results": ended, "messages": messages}
    failed = int(np.sum(results.message.values != ""))
    problem = f"{failed} points failed: {messages[0]}" if failed else ""
    draw = functools.partial(plotting.sweep, results)
    return Report(data, "\n".join([*text, *messages[:5]]), lambda: results, draw, problem)


_ENTRIES = ("model", "alpha", "solver", "seeds", "parameters", "settings")


def read_grid(file: pathlib.Path) -> dict[str, Any]:
    """Read the arguments of `smi.sweep` from a TOML file.

    Raises:
        ValueError: For an entry that cannot be read.
    """
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as failure:
        raise ValueError(f"{file}: {failure}.") from failure
    unknown = ", ".join(name for name in entries if name not in _ENTRIES)
    missing = ", ".join(name for name in ("model", "alpha") if name not in entries)
    validate.check(not unknown, str(file), unknown, f"entries {', '.join(_ENTRIES)}")
    validate.check(not missing, str(file), f"no {missing}", "entries model and alpha at least")
    values = {name: _range(name, x) for name, x in entries.get("parameters", {}).items()}
    axes = {name: value for name, value in values.items() if isinstance(value, list)}
    fixed = {name: value for name, value in values.items() if name not in axes}
    build = functools.partial(make_model, entries["model"], **fixed)
    # one model now: a misspelt parameter must not wait for the first row
    build(**{name: axis[0] for name, axis in axes.items()})  # a wrong name is refused here
    solver = str(entries.get("solver", "state-evolution")).replace("-", "_")
    called = {"parameters": axes, "seeds": entries.get("seeds", 1), "solver": solver}
    settings = dict(entries.get("settings", {}))
    if solver in ("state_evolution", "gamp", "train"):
        settings = with_records(solver, settings)
    reserved = ", ".join(name for name in settings if name in ("out", "progress", "scheduler"))
    validate.check(not reserved, "settings", reserved, "keyword arguments of the solver")
    return {"build": build, "alpha": _range("alpha", entries["alpha"]), **called, **settings}


def _range(name: str, value: Any) -> Any:
    """A range as a list of its points; anything else as it is."""
    if not isinstance(value, dict):
        return value
    allowed = '{from, to, points, scale = "linear" or "log", with positive ends}'
    right = {"from", "to", "points"} <= set(value) <= {"from", "to", "points", "scale"}
    space = {"linear": np.linspace, "log": np.geomspace}.get(value.get("scale", "linear"))
    right = right and (space is np.linspace or min(value["from"], value["to"]) > 0)
    validate.check(right and space is not None, name, value, allowed)
    assert space is not None
    # twelve digits, so that a point can be named in a selection
    return [float(f"{x:.12g}") for x in space(value["from"], value["to"], int(value["points"]))]
