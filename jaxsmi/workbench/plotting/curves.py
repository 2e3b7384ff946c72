"""Overlaps against α and the iteration, learning curves, errors of learners, thresholds, sweeps.

Theory is a line with its error band, message passing is markers. For a Bayes-optimal run
cosine² = Q/S, with S the second moment of the signal, so that cos² of a run is laid over Q/S.
"""

from __future__ import annotations

import json
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, product, zip_longest
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import equinox as eqx
import numpy as np
from jax.typing import ArrayLike

from jaxsmi.core.display import format_estimate
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Estimate, LearnerSolution, Solution, Threshold, index_names
from jaxsmi.core.validate import check, choice
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.thresholds.transitions import jumps
from jaxsmi.workbench import storage
from jaxsmi.workbench.plotting import drawing
from jaxsmi.workbench.plotting.drawing import CROSS, INK, colour, line, markers, style
from jaxsmi.workbench.sweeps import mean_error

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from jaxsmi.thresholds.stairs import Stairs
    from jaxsmi.thresholds.transitions import FirstOrder
    from jaxsmi.workbench.order import LearningOrder

    Curve = Solution | Iterable[Solution] | xarray.Dataset

_MOST_NAMES = 10
_WIDE = 0.05  # share of the largest value: a larger step to recovery is drawn dotted
_APART = 0.05  # standard deviation of cos² of runs from which on their mean hides what they do
_MOST_MARKERS = 40  # markers of a run: more would overlap at the width of a column
# codes of points that lines join and that means include: runs whose starts disagree have ended, and
# means without them would be too high
_ENDED = (Result.SUCCESS, Result.RECOVERED, Result.NOTHING_LEARNED, Result.AMBIGUOUS)
_SOUND = [int(code) for code in _ENDED]
_THEORY = ("state_evolution", "descent_theory")  # kinds of solutions; others are runs
_WORDS = {"gamp": "GAMP", "train": "training"}
_MARKS = {"gamp": 0, "train": 1}  # numbers of the markers of methods; of others 2
_STEP, _SOLVER_STEP = "iteration", "accelerated step"
_ERRORS = ("mean squared error (plug-in)", "mean squared error of the matrix")
_ALPHA = r"sample complexity $\alpha$"
_OVERLAP = "overlap $Q/S$"
_SQUARED = "squared cosine"
_THRESHOLDS = (":", "--", "-.")  # line styles, in the order in which they are drawn
_MEANS = "means of runs"  # gid of an entry of the legend
_HEAD, _NOISE = ("name", "prior"), ("density", "noise", "flip")  # of a title
_KEY = "index or model"  # gid of entries of the legend
_HIDDEN = "_: "  # before the labels of lines that such entries explain
_THRESHOLD = "threshold"  # gid of lines of thresholds
_AT = r", $\alpha="  # between the name of a threshold and its value
_UNIT = (-0.03, 1.05)  # a little more than [0, 1]: markers at both ends stay whole
# model of each line of theory in words, and under "" the end of the label that names it
_MODELS: WeakKeyDictionary[Line2D, dict[str, str]] = WeakKeyDictionary()
_RING: dict[str, Any] = {"linestyle": "none", "marker": "o", "markerfacecolor": "none"}


@style()
def overlap_against_alpha(
    theory: Curve | None = None,
    gamp: Curve | None = None,
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    label: str | None = None,
    bands: float = 2.0,
    legend: bool = True,
) -> Axes:
    """Draw the overlaps of all indices against α.

    Points of theory, and runs, that did not converge are crosses, and no part of a mean. Lines join
    neighbouring points, also those on both sides of a jump, which a curve does not know:
    `FirstOrder.plot` leaves a gap there. Of lines that coincide the first ones are broader, and
    markers of later learners are smaller.

    Args:
        theory: State evolution, of which Q/S is drawn (of a learner the squared cosine): one
            solution, or several, or the table that `smi.load` reads of them.
        gamp: Runs of message passing, of which cos² is drawn (Q of Bayes without a teacher), in the
            same forms, or the table of `smi.sweep(.., solver="gamp")`. Of several that converged at
            one α the mean, with its error bar within [0, 1]; where their standard deviation
            exceeds 0.05, some may recover and others not: dots show each.
        ax: Axes to draw in. Default None: new ones. Each learner or label on the same axes has its
            own line style and markers, and with a single index its own colour; of several indices
            colours tell the indices.
        names: Of the indices. Default None: those of the model.
        label: In the legend. Default None: "state evolution" and "GAMP", or the learner, with what
            differs between the models of the lines, as "noise 0.2".
        bands: Half width of error bands, and of the error bars of means, in standard errors.
            Default 2.
        legend: Draw one. Default True.

    Returns:
        The axes.

    Raises:
        ValueError: Without any solution, or for runs of another learner or model than the curve's.
        ImportError: Without matplotlib, with the remedy.
    """
    # lists at once: a generator gives its solutions once only
    curve, runs = _ascending("theory", theory), _ascending("runs (gamp)", gamp)
    _check_owners(runs, *[_owner(x) for x in curve[:1] if x.kind == "state_evolution"])
    _check_models(curve, runs)
    names = list(names or _names_in(theory)) or _names([*curve, *runs])
    title, ax = _title([*curve, *runs]), drawing.axes_or_new(ax)
    of_curve, of_runs = _owners(ax, curve, runs, label=label)
    for p in range(len(names)):
        if curve:
            points = np.array([_point(solution, p) for solution in curve]).T
            look = _look(ax, p, names, of_curve, curve[0].kind)
            _theory(ax, curve, points, bands, look, within=(0.0, 1.0))
        if runs:
            points = np.array([_point(solution, p) for solution in runs]).T
            look = _look(ax, p, names, of_runs, runs[0].kind)
            _means(ax, runs, points, bands, look, squared=True)
    if curve and label is None:  # lines of other models than these get their differences
        told, n = _facts(storage.parameters(_model(curve))), of_curve.rpartition("|")[2]
        of = {x: told | {"": f" ({n})" * (n != "1")} for x in ax.lines if x.get_gid() == of_curve}
        _MODELS.update(of)
    ordinate = _ordinate(ax, [*curve, *runs])
    return _finish(ax, 2 * legend, title, xlabel=_ALPHA, ylabel=ordinate, ylim=_UNIT)


@style()
def overlap_against_iteration(
    gamp: Solution | Iterable[Solution] | None = None,
    theory: Solution | None = None,
    ax: Axes | None = None,
    *,
    quantity: str = "cosine",
    names: Sequence[str] | None = None,
    legend: bool = True,
) -> Axes:
    """Draw how each index is learned: message passing as markers on state evolution.

    Args:
        gamp: A run with a history, or several, which start alike: the mean, with a bar of two of
            its standard errors.
        theory: A solution of state evolution, or of `descent_theory`, with a history. Beside
            message passing it must be one with `iteration=smi.Iteration(newton=False)`: accelerated
            steps are others.
        ax: As in `overlap_against_alpha`.
        quantity: "cosine" draws cos² of message passing (it needs a teacher) on Q/S of state
            evolution, "overlap" draws Q of both. Default "cosine".
        names: Of the indices. Default None: those of the model.
        legend: Draw one. Default True.

    Returns:
        The axes.

    Raises:
        ValueError: Without any solution, for another quantity, or for theory with accelerated
            steps beside message passing or plain iterations.
        ImportError: Without matplotlib, with the remedy.
    """
    squared = choice("quantity", quantity, ("cosine", "overlap")) == "cosine"
    runs = [] if gamp is None else _solutions("runs (gamp)", gamp)
    single = all("step" in x.history and np.ndim(x.overlap) == 2 for x in runs)
    check(single, "runs (gamp)", "a batch, or runs without a history", "runs with a history")
    solutions = [*([] if theory is None else [theory]), *runs]
    names, title = list(names or ()) or _names(solutions), _title(solutions, alpha=True)
    ax = drawing.axes_or_new(ax)
    of_theory, of_run = _owners(ax, [] if theory is None else [theory], runs)
    paths = [x.trajectory for x in runs]
    at = max((x["step"] for x in paths), key=len, default=np.zeros(0))
    at = at[:: max(-(-len(at) // _MOST_MARKERS), 1)]
    steps = [_STEP] * bool(runs)
    steps += [] if theory is None else [_SOLVER_STEP if _accelerated(theory) else _STEP]
    drawn = {*steps, ax.get_xlabel()} & {_STEP, _SOLVER_STEP}
    allowed = "plain iterations, smi.state_evolution(.., iteration=smi.Iteration(newton=False))"
    check(len(drawn) == 1, "theory", "accelerated steps beside iterations", allowed)
    for p in range(len(names)):
        if theory is not None:
            recorded = theory.trajectory
            step, overlap = recorded["step"], recorded["overlap"][:, p, p]
            if squared:
                overlap = np.asarray(theory.cosines(recorded))[:, p] ** 2
            # a fixed point stays where it is while the run beside it goes on
            if bool(theory.converged) and len(at) and step[-1] < at[-1]:
                step, overlap = np.append(step, at[-1]), np.append(overlap, overlap[-1])
            drawing.joined(ax, step, overlap, **_look(ax, p, names, of_theory, theory.kind))
        if len(at):  # a run that ended keeps its last value
            of = lambda x: x["cosine"][:, p] ** 2 if squared else x["overlap"][:, p, p]  # noqa: B023
            values = np.array([np.interp(at, x["step"], of(x)) for x in paths])
            look = _look(ax, p, names, of_run, runs[0].kind)
            mean = values.mean(axis=0)
            if len(runs) > 1:
                look |= {"markerfacecolor": "white"}
                bars = 2.0 * values.std(axis=0, ddof=1) / np.sqrt(len(runs))
                ax.errorbar(at, mean, bars, fmt="none", ecolor=look["color"], capsize=0)
            ax.plot(at, mean, **look)
    if len(runs) > 1:
        _key_of_means(ax, np.array([len(runs)]), 2.0)
    ax.set_xlim(left=0)
    drawing.integer_ticks(ax)
    ordinate = _SQUARED if squared else "overlap $Q$"
    return _finish(ax, 2 * legend, title, xlabel=steps[0], ylabel=ordinate, ylim=_UNIT)


def _accelerated(theory: Solution) -> bool:
    """True if some step is longer than its residual: plain steps are not, Newton's are."""
    recorded = theory.trajectory
    if theory.kind != "state_evolution" or "error" in recorded:  # a learned matrix has logarithms
        return False
    Q, residual = recorded["overlap"], recorded["residual"][1:]
    # residuals of a learner are relative
    relative = isinstance(theory, LearnerSolution)
    size = np.trace(Q[:-1], axis1=1, axis2=2) / len(Q[0]) if relative else 1.0
    length = np.max(np.abs(np.diff(Q, axis=0)), axis=(1, 2)) / size
    rounding = 64.0 * np.finfo(Q.dtype).eps
    return bool(np.any(length > (1.0 + 1e-6) * residual + rounding))


def _ascending(name: str, curve: Curve | None) -> list[Solution]:
    return [] if curve is None else sorted(_solutions(name, curve), key=lambda x: float(x.alpha))


def _solutions(name: str, curve: Curve) -> list[Solution]:
    """A list of the solutions; a ValueError for a data set, of labels or of a file."""
    rows = _rows(curve) if hasattr(curve, "data_vars") else curve
    listed: list[Any] = list(rows) if isinstance(rows, Iterable) else [rows]
    allowed = (
        "solutions: smi.curve(..), a list of runs smi.gamp(model, data, key=key), the table that "
        "smi.save made of these, or that of smi.sweep, of parameters table.sel(noise=0.1)"
    )
    got = "another table" if hasattr(curve, "data_vars") else curve
    check(all(isinstance(x, Solution) for x in listed), name, got, allowed)
    return listed


def _rows(table: Any) -> Iterator[Any]:
    """The solutions of a sweep over seeds and α, or of a curve that was saved; the table itself if
    it holds anything else."""
    # "kind" is that of a curve or a run that `smi.save` stored
    solver, axes = table.attrs.get("solver", table.attrs.get("kind")), ("seed", "alpha")
    solver = str(solver).strip('"')
    if solver not in (*_MARKS, *_THEORY) or not set(axes).issuperset(table.result.dims):
        yield table
        return
    hashed = [x for x in (storage.MODEL_HASH,) if x in table]
    fields = [*storage.MATRICES, *storage.SCALARS, *(x for x in storage.OPTIONAL if x in table)]
    errors = [x for x in (*fields, "cosine") if f"{x}_stderr" in table]
    flat = table[[*fields, "cosine", *hashed, *(f"{x}_stderr" for x in errors)]]
    flat = flat.expand_dims([x for x in axes if x not in table.dims]).stack(row=axes)
    learner = table.attrs.get("learner_name", table.attrs.get("learner"))
    kind, own = (LearnerSolution, {"learner": learner}) if learner else (Solution, {})
    for row in (flat.isel(row=k) for k in range(flat.sizes["row"])):
        own |= {name: row[name].values for name in ("alpha", *fields)}
        own["stderrs"] = {name: row[f"{name}_stderr"].values for name in errors}
        history = {"cosine": row.cosine.values[None], **{x: row[x].values for x in hashed}}
        yield kind(**own, history=history, kind=solver)


def _check_owners(runs: Sequence[Solution], *of_curve: str) -> None:
    """Refuse runs of message passing of several learners, or of another one than the curve's, and
    theory."""
    allowed = "runs; of theory plotting.overlap_against_alpha(table) draws a curve"
    check(all(x.kind not in _THEORY for x in runs), "runs (gamp)", "solutions of theory", allowed)
    whose = list(dict.fromkeys([*of_curve, *(_owner(x) for x in runs if x.kind == "gamp")]))
    allowed = f"runs of one learner, that of the curve: {' '.join(whose[:1])}"
    check(len(whose) < 2, "runs (gamp)", f"runs of {' and '.join(whose[1:])}", allowed)


def _check_models(curve: Sequence[Solution], runs: Sequence[Solution]) -> None:
    """Refuse runs of a table of another model than the curve's. Models of runs themselves may
    differ: `gamp` gives their prior the norm that labels imply."""
    stored = lambda x: float(x.history.get(storage.MODEL_HASH, np.nan))
    own = [stored(x) if x.model is None else storage.model_hash(x.model) for x in curve[:1]]
    known = {x for x in (*own, *map(stored, runs)) if np.isfinite(x)}
    allowed = "runs of the model of the curve, with the same noise and prior"
    check(len(known) < 2, "runs (gamp)", "runs of another model", allowed)


def _names(solutions: Sequence[Solution]) -> list[str]:
    """Return the names of the indices; a single index needs none."""
    check(len(solutions) > 0, "theory, gamp", "no solution", "at least one in one of the two")
    names = index_names(_model(solutions), np.shape(solutions[0].overlap)[0])
    return names if len(names) > 1 else [""]


def _names_in(table: Any) -> list[str]:
    """The names of several indices in a table that `smi.load` reads, which has no model."""
    coordinates = getattr(table, "coords", {})
    named = "name" in coordinates and coordinates["name"].ndim == 1 and coordinates["name"].size > 1
    return [str(x) for x in coordinates["name"].values] if named else []


def _model(solutions: Sequence[Solution]) -> Any:
    return next((solution.model for solution in solutions if solution.model is not None), None)


def _title(solutions: Sequence[Solution], alpha: bool = False) -> str:
    """What the models have in common in a few words, α, and D of runs."""
    # the model of a learner's run is its student
    made = [x for x in solutions if x.kind in _THEORY or type(x) is Solution]
    models = {id(x.model): x.model for x in made if x.model is not None}
    words = [_named(_facts(storage.parameters(x))) for x in models.values()]
    words = [x for x in words[0] if all(x in y for y in words)] if words else []
    words += [rf"$\alpha={float(solutions[0].alpha):.3g}$"] * (alpha and bool(words))
    rows = [x.weights for x in solutions if not isinstance(x.model, MatrixModel)]
    sizes = {np.shape(x)[-1] for x in rows if x is not None}
    return ", ".join([*words, *(f"$D={size}$" for size in sizes if len(sizes) == 1)])


def _named(facts: Mapping[str, str], varied: Sequence[str] = ()) -> list[str]:
    """Name a model, its prior, and the numbers of its noise that are not zero."""
    own = {x: facts[x] for x in (*_HEAD, *_NOISE) if x in facts and x not in varied}
    return [words for name, words in own.items() if words != f"{name} 0"]


def _facts(model: Any) -> dict[str, str]:
    """A model, as `parameters` gives it, in words: its name, its prior, and its numbers."""

    def numbers(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for key, value in tree.items():
            listed = value if isinstance(value, list) else [value]
            if isinstance(value, dict):
                yield from numbers(value)
            elif listed and all(isinstance(x, float) for x in listed):
                yield key, " ".join([key.replace("_", " "), *(f"{x:.3g}" for x in listed)])

    if not isinstance(model, dict):  # it could not be built
        return {}
    found = {"name": str(model.get("name", model["type"])).replace("_", " ")}
    found |= {"prior": f"{model['prior']['type']} prior"} if model.get("prior") else {}
    return found | dict(numbers(model))


def _owner(solution: Solution) -> str:
    """Return the name of the learner of these weights, or "Bayes"."""
    if (learner := getattr(solution, "learner", None)) is not None:
        # a table stores the name alone
        return learner if isinstance(learner, str) else storage.learner_name(learner)
    return "Bayes" if solution.kind in ("state_evolution", "gamp") else _word(solution.kind)


def _word(kind: str) -> str:
    return _WORDS.get(kind, kind.replace("_", " "))


def _owners(ax: Axes, *groups: Sequence[Solution], label: str | None = None) -> list[str]:
    """Return the owners of theory and runs, numbered by such lines or markers on the axes."""
    names = [(label or _owner(group[0])) if group else "" for group in groups]
    drawn = {(x.get_gid(), x.get_linestyle() == "None") for x in ax.lines}
    shown = lambda n: any((f"{name}|{n}", bool(k)) in drawn for k, name in enumerate(names))
    number = next(n for n in count(1) if not shown(n))
    return [f"{name}|{number}" for name in names]


def _drawn(ax: Axes) -> list[str]:
    """Owners of the lines on these axes, which are their gid."""
    others = (None, _THRESHOLD, _MEANS, _KEY)
    return [x for x in dict.fromkeys(x.get_gid() for x in ax.lines) if x not in others]


def _look(ax: Axes, p: int, names: Sequence[str], owner: str, kind: str) -> dict[str, Any]:
    """Return the style: colours tell indices apart, or the owners of a single index."""
    word, theory, (name, _, number) = _word(kind), kind in _THEORY, owner.rpartition("|")
    call = [*_drawn(ax), owner].index(owner)
    hue = p if len(names) > 1 else call
    said = word if name in ("Bayes", word) else name if theory else f"{name}, {word}"
    label = ", ".join(filter(None, (names[p], said))) + f" ({number})" * (number != "1")
    # a line style for each index, too, as colours are alike in grey
    look = line(p + call) | {"color": colour(hue)} if theory else _marks(ax, kind, hue)
    return look | {"label": label, "gid": owner}


def _marks(ax: Axes, kind: str, hue: int) -> dict[str, Any]:
    """Return the markers of a method, or others if the axes have these in the same colour."""
    taken = [(x.get_color(), x.get_marker()) for x in ax.lines if x.get_gid()]
    looks = [markers(hue, n) for n in (_MARKS.get(kind, 2), *range(3, 7))]
    return next((x for x in looks if (x["color"], x["marker"]) not in taken), looks[0])


def _theory(
    ax: Axes, curve: Sequence[Solution], points: np.ndarray, bars: float, look: Any, **limits: Any
) -> None:
    """Draw x, y, errors (3, n) as a line with its band."""
    (x, y, error), tint = points, look["color"]
    _mark(ax, curve, points, color=tint)
    label = f"band: ± {bars:g} s.e."
    drawing.band(ax, x, y - bars * error, y + bars * error, tint, label=label, **limits)
    # a jump may lie anywhere between the last point and recovery
    recovered = np.array([int(solution.result) == Result.RECOVERED for solution in curve])
    wide = np.abs(np.diff(y)) > _WIDE * np.nanmax(np.abs(y))
    ends = np.flatnonzero((recovered[1:] != recovered[:-1]) & wide)
    for k in ends:
        ax.plot(x[k : k + 2], y[k : k + 2], color=tint, linestyle=":", linewidth=0.8)
    drawing.joined(ax, np.insert(x, ends + 1, np.nan), np.insert(y, ends + 1, np.nan), **look)


def _mark(ax: Axes, solutions: Sequence[Solution], points: np.ndarray, **look: Any) -> None:
    """Draw crosses where no fixed point was reached, open circles where it is unstable."""
    codes = np.array([int(solution.result) for solution in solutions])
    unstable = codes == Result.UNSTABLE
    failed = ~(np.isin(codes, _SOUND) | unstable)
    for name, where, mark in (("not converged", failed, CROSS), ("unstable", unstable, _RING)):
        if where.any():
            ax.plot(*points[:2, where], **look, **mark)
            ax.plot([], [], color=INK, label=name, **mark)  # for the legend


def _means(
    ax: Axes,
    runs: Sequence[Solution],
    points: np.ndarray,
    bars: float,
    look: dict[str, Any],
    squared: bool = False,
) -> None:
    """Draw x, y, errors (3, n) as markers: the mean of several at one x, with its error by their
    spread. Runs that did not converge are crosses and not in the mean. If they are the majority,
    the others are no fair sample: they are small markers without a mean. A warning names runs
    without y. Of squared cosines bars end at 0 and 1; where runs differ, dots show each instead."""
    _mark(ax, runs, points, color=look["color"])
    # smaller than those of others at the same α, which then show where they coincide
    there = lambda x: np.isin(x.get_xdata(), points[0]).any()
    others = {x.get_gid() for x in ax.lines if x.get_linestyle() == "None" and there(x)}
    before = len(others - {None, _MEANS, look["gid"]})
    size = drawing.import_pyplot().rcParams["lines.markersize"]
    look = look | {"markersize": size * 0.75**before}
    known = np.isfinite(points[1])
    sound = np.isin([int(run.result) for run in runs], _SOUND)
    at_same = (sound[known & (points[0] == a)] for a in points[0])
    fair = np.array([2 * np.sum(x) >= len(x) for x in at_same])
    if np.any(few := known & sound & ~fair):
        small: dict[str, Any] = look | {"markersize": 2.5, "label": None, "gid": None}
        ax.plot(*points[:2, few], **small)
        small |= {"color": INK, "label": "run, where most did not converge"}
        ax.plot([], [], **small)
    x, y, error = points[:, known & sound & fair]
    if not known.all():
        listed = ", ".join(f"{a:.4g}" for a in np.unique(points[0, ~np.isfinite(points[1])]))
        said = f"{look['label']}: runs without a teacher, or that failed, are not drawn, at α ="
        warnings.warn(f"{said} {listed}.", stacklevel=4)
    at, place, counts = np.unique(x, return_inverse=True, return_counts=True)
    mean, error = (np.bincount(place, a) / counts for a in (y, error))
    spread = np.bincount(place, (y - mean[place]) ** 2) / np.maximum(counts - 1, 1)
    error = np.where(counts > 1, np.sqrt(spread / counts), error)
    wide, half = spread > (_APART**2 if squared else np.inf), np.array([bars * error] * 2)
    if np.any(counts > 1):
        look |= {"markerfacecolor": "white"}
    if np.any(wide):
        ring: dict[str, Any] = {"s": 6, "facecolors": "none", "linewidths": 0.6, "zorder": 3.1}
        shown = wide[place]
        ax.scatter(x[shown], y[shown], edgecolors=look["color"], clip_on=False, **ring)
        ax.scatter([], [], edgecolors=INK, label="single run", **ring)
    if squared:  # shares
        half = np.minimum(half, np.clip([mean, 1.0 - mean], 0.0, None)) * ~wide
    if np.any(half > 0.0):
        ax.errorbar(at, mean, half, fmt="none", ecolor=look["color"], capsize=0, zorder=2.9)
    ax.plot(at, mean, **look)
    if np.any(error > 0.0):
        _key_of_means(ax, counts, bars)


def _key_of_means(ax: Axes, counts: np.ndarray, bars: float) -> None:
    """Make the last entry of the legend explain the bars of all runs in these axes."""
    before = [x for x in ax.lines if x.get_gid() == _MEANS]
    counts = np.concatenate([counts, *(np.asarray(x.get_xdata()) for x in before)])
    for old in before:
        old.remove()
    (key,) = ax.plot(counts, np.full(len(counts), np.nan), "|", color=INK, ms=7, gid=_MEANS)
    numbers = " to ".join(f"{n:.0f}" for n in dict.fromkeys((min(counts), max(counts))))
    key.set_label(f"mean of {numbers}, ± {bars:g} s.e." if max(counts) > 1 else f"± {bars:g} s.e.")


def _point(solution: Solution, p: int) -> tuple[float, float, float]:
    """Return α, cos² and its error; for Bayes without a teacher, α, Q and its error."""
    cosine = float(solution.cosine[p])
    if not np.isfinite(cosine) and type(solution) is Solution:
        return float(solution.alpha), float(solution.overlap[p, p]), float(solution.stderr[p, p])
    if isinstance(solution, LearnerSolution):
        errors = solution.stderrs.get("cosine")
        error = 0.0 if errors is None else 2.0 * abs(cosine) * float(errors[p])
    else:  # cos² = Q/S of Bayes
        Q = float(solution.overlap[p, p])
        error = cosine**2 * float(solution.stderr[p, p]) / Q if Q > 0.0 else 0.0
    return float(solution.alpha), cosine**2, error


def _ordinate(ax: Axes, solutions: Sequence[Solution]) -> str:
    """What `_point` gives, of theory of Bayes beside runs, too: Q/S is its squared cosine."""
    own = lambda x: isinstance(x, LearnerSolution) or x.kind != "state_evolution"
    squared = any(own(x) and np.all(np.isfinite(x.cosine)) for x in solutions)
    return _SQUARED if squared or ax.get_ylabel() == _SQUARED else _OVERLAP


def _finish(ax: Axes, columns: drawing.Columns, title: str = "", **labels: Any) -> Axes:
    """Label the axes; a legend in `columns` columns, none where this is zero, with a title of what
    all that was drawn has in common."""
    ax.set(**labels)
    for drawn in list(ax.lines):  # as they were before `_blocks`
        drawn.set_label(str(drawn.get_label()).removeprefix(_HIDDEN))
        if drawn.get_gid() == _KEY:
            drawn.remove()
    if not all(owner.startswith("Bayes|") for owner in _drawn(ax)):  # not the only state evolution
        for drawn in ax.lines:
            label = str(drawn.get_label())
            if str(drawn.get_gid()).startswith("Bayes|") and "Bayes" not in label:
                label = label.replace("GAMP", "Bayes, GAMP").replace("state evolution", "Bayes")
                drawn.set_label(label)
    _tell_apart(ax)
    blocks = _blocks(ax)
    if columns:
        if title and (before := ax.get_legend()) is not None:
            words = before.get_title().get_text().split(", ")
            title = ", ".join(word for word in words if word in title.split(", "))
        labelled = [x for x in ax.lines if not str(x.get_label()).startswith("_")]
        of_lines = [str(x.get_label()) for x in labelled if x.get_linestyle() != "None"]
        if columns == 2 and 2 * len(of_lines) <= len(labelled):  # theory, and runs beside it
            columns = [of_lines, []]
        columns = blocks or columns
        drawing.legend_above(ax, columns, title=title)
    return ax


def _tell_apart(ax: Axes) -> None:
    """Name what differs between the models of the lines, and let a line under others be broader,
    so that both are seen where they coincide."""
    told = [(x, facts) for x in ax.lines if (facts := _MODELS.get(x))]
    names = dict.fromkeys(name for _, facts in told for name in facts if name)
    differ = [name for name in names if len({facts.get(name) for _, facts in told}) > 1][:3]
    for k, (x, facts) in enumerate(told):
        before = str(x.get_label()).removesuffix(facts[""])
        facts[""] = "".join(f", {facts[name]}" for name in differ if name in facts)
        if before + facts[""] in [y.get_label() for y, _ in told[:k]]:  # again the same model
            facts[""] += f" ({str(x.get_gid()).rpartition('|')[2]})"
        x.set_label(before + facts[""])
    theory = [x for x in ax.lines if "|" in str(x.get_gid()) and x.get_linestyle() != "None"]
    owners = list(dict.fromkeys(x.get_gid() for x in theory))[::-1]
    for x in theory:
        x.set_linewidth(1.4 + min(0.4, 1.2 / len(owners)) * owners.index(x.get_gid()))


def _blocks(ax: Axes) -> list[list[str]]:
    """Of several models with several indices, colours tell indices apart, and line styles and
    markers models: the legend names each once. Returns its columns, none for other figures."""
    owned = [x for x in ax.lines if "|" in str(x.get_gid())]
    theory = Counter(x.get_gid() for x in owned if x.get_linestyle() != "None")
    if len(theory) < 2 or min(theory.values()) < 2:
        return []
    columns: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for x in owned:
        index, _, model = str(x.get_label()).partition(", ")
        x.set_label(f"{_HIDDEN}{x.get_label()}")
        look: dict[str, Any] = {"linestyle": "none", "marker": x.get_marker(), "mfc": "none"}
        if x.get_linestyle() != "None":
            look = line(list(theory).index(x.get_gid()))
            x.set_linestyle(look["linestyle"])
        columns[0].setdefault(index, {"color": x.get_color()})
        columns[1].setdefault(model.removeprefix("state evolution, "), {"color": INK} | look)
    for label, look in chain(*(x.items() for x in columns)):
        ax.plot([], [], label=label, gid=_KEY, **look)
    return [list(x) for x in columns]


@style()
def learning_curves(
    solution: Solution,
    ax: Axes | None = None,
    *,
    level: float | None = None,
    logarithmic: bool = False,
    legend: bool = True,
) -> Axes:
    """Draw the cosine of each index with the teacher against the step.

    Args:
        solution: Of gamp or train, one run or a batch (then the mean, and a band of one standard
            deviation between runs).
        ax: Axes to draw in. Default None: new ones.
        level: A dotted line at this cosine, and one where the mean passes it. Default None:
            neither.
        logarithmic: The axis of steps is logarithmic. Default False.
        legend: Draw one. Default True.

    Returns:
        The axes.

    Raises:
        ValueError: For a solution without cosines.
        ImportError: Without matplotlib, with the remedy.
    """
    check("cosine" in solution.history, "solution", solution.kind, "a solution of gamp or train")
    ax = drawing.axes_or_new(ax)
    steps, cosines = _recorded(solution)
    names = index_names(solution.model, cosines.shape[2])
    mean, spread = cosines.mean(axis=0), cosines.std(axis=0)
    for p, name in enumerate(names):
        ax.plot(steps, mean[:, p], color=colour(p), label=name, **line(p))
        if len(cosines) > 1:
            low, high = mean[:, p] - spread[:, p], mean[:, p] + spread[:, p]
            drawing.band(ax, steps, low, high, colour(p), within=(-1.0, 1.0))
        if level is not None and np.any(mean[:, p] >= level):
            ax.axvline(steps[np.argmax(mean[:, p] >= level)], color=colour(p), lw=0.8, ls=":")
    if level is not None:
        ax.axhline(level, color=INK, lw=0.8, ls=":", label=f"cosine {level:g}")
    if logarithmic:
        # linear up to the first record: step 0 has no logarithm
        ax.set_xscale("symlog", linthresh=max(steps[1], 1.0))
    ax.set_xlim(left=0)
    if logarithmic:  # powers of ten within the linear part would overlap
        ax.set_xticks([x for x in ax.get_xticks() if x == 0.0 or x >= steps[1]])
    drawing.integer_ticks(ax)
    step = "iteration" if solution.kind == "gamp" else "step"
    runs = f"mean and standard deviation of {len(cosines)} runs" if len(cosines) > 1 else ""
    title = runs or _title([solution])
    return _finish(ax, 2 * legend, title, xlabel=step, ylabel="cosine with the teacher", ylim=_UNIT)


def _recorded(solution: Solution) -> tuple[np.ndarray, np.ndarray]:
    """Steps (T,) of the longest run, and cosines (runs, T, P): a run that ended keeps its last
    value."""
    steps = np.atleast_2d(np.asarray(solution.history["step"]))
    cosines = np.asarray(solution.history["cosine"])
    cosines = cosines.reshape(-1, *cosines.shape[-2:])  # one run is a batch of one
    # runs that reached a target ended earlier, and a mean needs them all at each step
    longest = steps[np.argmax(np.isfinite(steps).sum(axis=1))]
    values = cosines[:, np.isfinite(longest)].copy()
    for t in range(1, values.shape[1]):
        values[:, t] = np.where(np.isnan(values[:, t]), values[:, t - 1], values[:, t])
    return longest[np.isfinite(longest)], values


@style()
def learning_order(order: LearningOrder, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw one panel a method: cosines of all indices, and where their mean passes the level.

    Args:
        order: From `jaxsmi.learning_order`.
        axes: One for each method. Default None: new ones.

    Returns:
        The axes.

    Raises:
        ValueError: For another number of axes.
        ImportError: Without matplotlib, with the remedy.
    """
    count = len(order.solutions)
    if axes is None:
        figure = drawing.import_pyplot().figure(figsize=(drawing.PAGE, 2.7), layout="constrained")
        axes = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    check(len(axes) == count, "axes", len(axes), f"{count}, one for each method")
    for n, (ax, (name, solution)) in enumerate(zip(axes, order.solutions.items(), strict=True)):
        # descent takes hundreds of steps where message passing takes ten
        logarithmic = solution.kind not in ("gamp", "state_evolution")
        learning_curves(solution, ax, level=order.level, logarithmic=logarithmic)
        drawn: Any = ax.get_legend()
        title = drawn.get_title()
        words = rf"{name}, $\alpha={order.alpha[name]:g}$", title.get_text()
        title.set_text(", ".join(filter(None, words)))
        if n:  # the panels share their ordinate
            ax.set_ylabel("")
    return list(axes)


@style()
def risk_against_alpha(
    curves: Sequence[Curve],
    labels: Sequence[str],
    ax: Axes | None = None,
    *,
    quantity: str = "error",
    values: Sequence[Estimate | ArrayLike] | None = None,
    relative_to: str | None = None,
) -> Axes:
    """Draw an error of several learners against α.

    Theory is a line with a band of two standard errors; crosses are points without a fixed point,
    open circles unstable ones. Runs are markers in the colour of the curve of their learner, those
    of GAMP circles. Of several runs at one α the mean is drawn, with a bar of two of its standard
    errors; runs that did not converge are crosses outside of the mean, and where they are more than
    half, there is no mean, and the others are small markers. Markers of later learners are smaller.
    `ax.set_yscale("log")` on the axes that are returned shows small errors.

    Args:
        curves: Solutions of `state_evolution`, one curve for each learner, and for Bayes; runs on
            data (`gamp`, `train`), which have an error if there is a teacher (else give `values`);
            each also as the table of `smi.sweep`, or that `smi.load` reads. List runs after their
            curve.
        labels: Names, one for each of `curves`, runs included. To one that is taken, the learner or
            method is added.
        ax: Axes to draw in. Default None: new ones.
        quantity: "error" (the mean squared error of the plug-in predictor, of matrix models of the
            matrix), "test_loss", "train_loss" or "energy"; with `values` their name on the axis.
            Default "error".
        values: Other errors, of each curve those at its points, in their order: `[
            smi.generalization_error(student, curve, key=key, loss=smi.losses.misclassification) for
            student, curve in ..]`, the shares of wrong signs; or arrays, which have no bands, of a
            table (seed, alpha), as `np.arccos(table.cosine[..., 0]) / np.pi`. Default None: those
            of the solutions.
        relative_to: One of `labels`, such as "Bayes": draws the ratio of each error to that of this
            curve, which must have the α of all others. Default None: the errors themselves. The
            posterior mean of the label predicts better than the plug-in, unless the link is linear:
            give `values=`, of Bayes `smi.generalization_error(model, curve, key=key, bayes=True)`.

    Returns:
        The axes.

    Raises:
        ValueError: Without a curve, with another number of labels or values, for a quantity
            that one of the solutions does not have, or for α that `relative_to` does not have.
        ImportError: Without matplotlib, with the remedy.
    """
    one = hasattr(curves, "overlap")  # a curve or a solution
    check(not one, "curves", curves, "a list with one curve for each learner, as [curve]")
    check(len(curves) > 0, "curves", "none", "at least one")
    allowed = f"{len(curves)} of them, one for each of the curves, runs included"
    check(len(curves) == len(labels), "labels", labels, allowed)
    curves = [_solutions(f"curves[{k}]", curve) for k, curve in enumerate(curves)]
    words = quantity.replace("_", " ")
    if values is None:
        points = [x for c in curves for x in c]
        found = [getattr(x, str(quantity), None) for x in points]
        known = [eqx.is_array_like(x) and np.shape(x) == () for x in found]  # pyright: ignore
        allowed = 'a number of all solutions, such as "error" (Bayes has no "test_loss")'
        check(all(known), "quantity", quantity, allowed)
        error_of = lambda x: (getattr(x, quantity), x.stderrs.get(quantity, 0.0))
        values = [Estimate(*np.array([error_of(x) for x in c], float).T) for c in curves]
        words = _ERRORS[isinstance(points[0].model, MatrixModel)] if words == "error" else words
    # a table is flattened seed by seed, as its runs are
    flat = lambda x: np.ravel(x.transpose("seed", ..., "alpha") if hasattr(x, "dims") else x)
    bare = lambda x: Estimate(*np.array([flat(x), np.zeros(np.size(x))], float))
    values = [x if isinstance(x, Estimate) else bare(x) for x in values]
    sizes = [(len(curve),) for curve in curves]
    shapes = [np.shape(np.atleast_1d(estimate.value)) for estimate in values]
    check(shapes == sizes, "values", f"numbers of shapes {shapes}", f"those of shapes {sizes}")
    if relative_to is not None:
        first = list(labels).index(choice("relative_to", relative_to, labels))
        values = _ratios(curves, values, first)
        words = f"{words.replace(_ERRORS[0], 'plug-in error')} / {relative_to}"
    of_theory = [n for n, c in enumerate(curves) if all(x.kind in _THEORY for x in c)]
    ax, hues = drawing.axes_or_new(ax), {}
    rows: dict[int, tuple[list[str], list[str]]] = {}  # legend: theory, its runs beside it
    for n, (solutions, estimate, label) in enumerate(zip(curves, values, labels, strict=True)):
        alpha, theory = [float(x.alpha) for x in solutions], n in of_theory
        order = np.argsort(alpha)
        curve = [solutions[k] for k in order]
        points = np.array([alpha, *map(np.atleast_1d, estimate)], float)[:, order]
        full = f"{label}, {_owner(curve[0]) if theory else _word(curve[0].kind)}"
        names = chain((label, full), (f"{full} ({k})" for k in count(2)))
        label = next(x for x in names if x not in ax.get_legend_handles_labels()[1])
        own = n if theory else _theory_of(n, curves, of_theory)
        hue = hues.setdefault(own, len(hues))
        rows.setdefault(own, ([], []))[not theory].append(label)
        look = line(hue) | {"color": colour(hue)} if theory else _marks(ax, curve[0].kind, hue)
        look |= {"label": label, "gid": f"{label}|1"}
        (_theory if theory else _means)(ax, curve, points, 2.0, look)
    beside = [row for _, own in sorted(rows.items()) for row in zip_longest(*own, fillvalue="")]
    mixed = 0 < len(of_theory) < len(curves)
    columns = list(zip(*beside, strict=True)) if mixed else min(len(curves), 3)
    return _finish(ax, columns, _title(list(chain(*curves))), xlabel=_ALPHA, ylabel=words)


def _ratios(
    curves: Sequence[Sequence[Solution]], values: Sequence[Any], base: int
) -> list[Estimate]:
    """Divide the errors by those of curve `base` at the same α. The two count as independent,
    although common random numbers cancel a part of the error."""
    alphas = [np.array([float(x.alpha) for x in curve]) for curve in curves]
    at, under, own = (np.ravel(x) for x in (alphas[base], *values[base]))
    ratios: list[Estimate] = []
    for n, (alpha, (value, error)) in enumerate(zip(alphas, values, strict=True)):
        near = np.abs(alpha[:, None] - at).argmin(axis=1)
        missed = alpha[~np.isclose(alpha, at[near], rtol=0.01)]
        check(not missed.size, "relative_to", f"one without α = {missed}", "a curve at all α")
        ratio = np.ravel(value) / under[near]
        spread = np.hypot(error, ratio * own[near]) / under[near]
        ratios.append(Estimate(*np.array([ratio, (n != base) * spread])))
    return ratios


def _theory_of(n: int, curves: Sequence[Sequence[Solution]], of_theory: list[int]) -> int:
    """Return the number of the curve of the same learner, or model, as runs n: the last one before
    them, or n itself if no curve is of the learner of message passing."""
    run, what = curves[n][0], lambda x: getattr(x, "learner", None) or x.model
    other = lambda k: run.kind == "gamp" and _owner(curves[k][0]) != _owner(run)
    same = lambda k: eqx.tree_equal(what(curves[k][0]), what(run))
    best = min(of_theory, key=lambda k: (other(k), not same(k), k > n, abs(k - n)), default=n)
    return n if other(best) else best


@style()
def thresholds_against(
    stairs: Sequence[Sequence[Threshold]],
    values: ArrayLike | None = None,
    ax: Axes | None = None,
    *,
    parameter: str = "parameter",
    names: Sequence[str] | None = None,
) -> Axes:
    """Draw thresholds in the order of learning against a parameter, with 95 % intervals.

    Args:
        stairs: For each value of the parameter its list of thresholds, from `smi.staircase`. A
            threshold is named by the index that is learned there, if that is the same everywhere.
        values: Of the parameter. Default None: their numbers.
        ax: Axes to draw in. Default None: new ones.
        parameter: Its name on the axis. Default "parameter".
        names: Of the indices. Default None: those of the model in `smi.staircase`.

    Returns:
        The axes.

    Raises:
        ValueError: Without any threshold.
        ImportError: Without matplotlib, with the remedy.
    """
    check(any(len(steps) for steps in stairs), "stairs", "no threshold", "at least one")
    ax = drawing.axes_or_new(ax)
    x = np.arange(len(stairs)) if values is None else np.asarray(values, float)
    tints, labels = _tints(stairs, names)
    for k in range(max(len(steps) for steps in stairs)):
        rows = [(v, steps[k]) for v, steps in zip(x, stairs, strict=True) if len(steps) > k]
        alpha = np.array([float(threshold.alpha) for _, threshold in rows])
        low = np.array([threshold.interval()[0] for _, threshold in rows])
        look: dict[str, Any] = markers(tints[k], k) | {"markerfacecolor": "white"}
        look |= {"linestyle": "-" if len(rows) > 1 else "none"}
        # no interval where α_c is infinite: matplotlib draws none of NaN, and fails
        at, half = [value for value, _ in rows], np.nan_to_num(alpha - low)
        ax.errorbar(at, alpha, half, label=labels[k], **look)
    drawing.from_zero(ax)
    if values is None:
        drawing.integer_ticks(ax)
    columns = 3 * (len(labels) > 1)  # a single curve needs no name
    ordinate = r"critical sample complexity $\alpha_c$"
    return _finish(ax, columns, xlabel=drawing.with_symbol(parameter), ylabel=ordinate)


def _tints(stairs: Sequence[Any], names: Any = None) -> tuple[list[int], list[str]]:
    """Number of the colour and name of each threshold in order: those of the index that is learned
    there, if it is one and the same; else a colour that is free, and "threshold 2"."""
    count = max(len(steps) for steps in stairs)
    learned: list[set[tuple[int, ...]]] = [set() for _ in range(count)]
    for steps in stairs:
        for k, step in enumerate(steps):
            shares = np.diagonal(np.asarray(step.subspace))  # zero where α_c is infinite
            if np.any(shares > 0.0):
                learned[k].add(tuple(np.flatnonzero(shares > 0.1).tolist()))
    alike = [next(iter(found)) if len(found) == 1 else () for found in learned]
    single = [found[0] if len(found) == 1 else -1 for found in alike]
    single = [-1 if p in single[:k] else p for k, p in enumerate(single)]
    free = iter(p for p in range(count + max(single) + 1) if p not in single)
    most = max((p + 1 for found in alike for p in found), default=0)
    known = names or getattr(stairs[0], "names", None) or index_names(None, most)
    # several indices are learned together
    labels = [" and ".join(known[p] for p in found) for found in alike]
    again = [not x or x in labels[:k] for k, x in enumerate(labels)]
    labels = [f"threshold {k + 1}" if again[k] else x for k, x in enumerate(labels)]
    return [next(free) if p < 0 else p for p in single], labels


@style()
def staircase(stairs: Stairs, ax: Axes | None = None) -> Axes:
    """See `Stairs.plot`."""
    tints, labels = _tints([stairs]) if stairs else ([], [])
    steps = list(zip(stairs, map(colour, tints), labels, strict=True))
    new, ax = ax is None, drawing.axes_or_new(ax)
    if not new:
        for critical, tint, name in steps:
            threshold(critical, ax, name, tint)
        return ax
    figure: Any = ax.figure
    figure.set_figheight(0.7 + 0.36 * max(len(stairs), 1))
    ax.locator_params(axis="x", nbins=4)  # of any width, so that the last tick ends the bars
    largest = np.nan_to_num([float(x.alpha) for x in stairs]).max(initial=0.0)
    end, rows = ax.xaxis.get_major_locator().tick_values(0.0, 1.2 * largest or 1.0)[-1], []
    for k, (critical, tint, name) in enumerate(steps):
        alpha, (low, _) = float(critical.alpha), critical.interval()
        shares = np.diagonal(critical.subspace)
        known = stairs.names or index_names(None, len(shares))
        arrow: dict[str, Any] = {"marker": 9, "markevery": [1], "mew": 0, "ms": 9, "clip_on": False}
        arrow |= {"color": tint, "alpha": 0.3, "lw": 7, "solid_capstyle": "butt"}
        ax.plot([alpha, end + 0.0 * alpha], [k, k], **arrow)  # nothing where α is NaN
        look: dict[str, Any] = markers(0) | {"color": tint, "markerfacecolor": "white"}
        ax.errorbar(alpha, k, xerr=np.nan_to_num(alpha - low), **look)
        said = rf"$\alpha=$ {format_estimate(critical.alpha, critical.stderr)}"
        said = "no root found" if np.isnan(alpha) else said if alpha else r"any $\alpha>0$"
        parts = [f"{x:.0%} {known[p]}" for p, x in enumerate(shares) if x > 0.1]
        mixed = len(parts) > 1 and shares.sum() < 1.5  # one direction, not a plane
        what = " + ".join(parts) if mixed else f"{name} learned"
        rows.append(f"{what}\n{said}")
    ax.grid(axis="y", visible=False)
    ax.set(xlim=(0.0, end), ylim=(-0.6, len(rows) - 0.4), xlabel=_ALPHA)
    ax.set_yticks(range(len(rows)), rows)
    message = textwrap.fill(stairs.message, 60)
    ax.set_title(message, loc="right", fontsize=7, multialignment="left")
    return ax


@style()
def threshold(
    critical: Threshold, ax: Axes | None = None, label: str | None = None, tint: str = INK
) -> Axes:
    """See `Threshold.plot`; nothing is drawn of an infinite one. The legend tells its α."""
    check(np.ndim(critical.alpha) == 0, "threshold", "a batch of them", "one threshold")
    ax = drawing.axes_or_new(ax)
    alpha, (low, high) = float(critical.alpha), critical.interval()
    if np.isfinite(alpha):
        before = [x for x in ax.lines if x.get_gid() == _THRESHOLD]
        # one style a name, whatever its α
        styles = {str(x.get_label()).partition(_AT)[0]: x.get_linestyle() for x in before}
        style = styles.get(str(label), _THRESHOLDS[len(styles) % len(_THRESHOLDS)])
        label = label if label is None else f"{label}{_AT}{alpha:.4g}$"
        if not ax.lines:  # a band of nothing but its own width would fill the axes
            ax.update_datalim([(0.5 * alpha, 0.0), (1.5 * alpha, 1.0)])
        ax.axvline(alpha, color=tint, label=label, lw=0.8, ls=style, gid=_THRESHOLD)
        if np.isfinite(low):
            ax.axvspan(low, high, color=tint, alpha=0.2, lw=0)
        if label is not None:
            before = ax.get_legend()
            title = before.get_title().get_text() if before else ""
            drawing.legend_above(ax, 2, title=title)
    if not ax.get_xlabel():
        ax.set_xlabel(_ALPHA)
    return ax


@style()
def transition(found: FirstOrder, ax: Axes | None = None, runs: Curve | None = None) -> Axes:
    """See `FirstOrder.plot`."""
    ax, runs = drawing.axes_or_new(ax), _ascending("runs", runs)
    _check_owners(runs, "Bayes")
    # the uninformed branch ends at the algorithmic threshold, the informed one begins at the
    # spinodal: no line there joins one branch to the other
    branches = {"uninformed": found.algorithmic, "informed": found.spinodal}
    indices, call = found.informed.shape[1], len(_drawn(ax))
    number = f" ({call + 1})" if call else ""
    gid = f"transition{number}"
    S = np.eye(indices) if found.second_moment is None else np.asarray(found.second_moment)
    for p in range(indices):
        index = f"index {p + 1}, " if indices > 1 else ""
        for k, (branch, jump) in enumerate(branches.items()):
            alpha, overlap = np.asarray(found.alpha), np.asarray(getattr(found, branch))
            Q = overlap[:, p, p] / S[p, p]
            gaps = jumps(alpha, Q)
            look = line(k) | {"label": f"{index}{branch}{number}", "gid": gid}
            look |= {"color": colour(p + call * indices)}
            end = 0.0 if jump is None else float(jump.alpha)
            at = int(np.searchsorted(alpha, end))
            gaps = np.union1d(gaps, at) if 0 < at < len(alpha) else gaps
            alpha, Q = np.insert(alpha, gaps, np.nan), np.insert(Q, gaps, np.nan)
            drawing.joined(ax, alpha, Q, **look)
        if runs:
            points = np.array([_point(run, p) for run in runs]).T
            look = {"label": f"{index}{_word(runs[0].kind)}{number}", "gid": gid}
            look |= _marks(ax, runs[0].kind, p + call * indices)
            _means(ax, runs, points, 2.0, look, squared=True)
    thresholds = {name: x for name, x in found.thresholds.items() if x is not None}
    for name, critical in thresholds.items():
        if float(critical.alpha) > 0.0:
            threshold(critical, ax, name, colour(call * indices) if call else INK)
    for side, outside in enumerate((0.0, np.inf)):
        beyond = {name: x for name, x in thresholds.items() if float(x.alpha) == outside}
        if beyond:
            where = found.shown(next(iter(beyond.values()))).removeprefix("0: ")
            label = f"{' and '.join(beyond)}: {where}"
            arrow = {"marker": "<>"[side], "color": INK, "linestyle": "none", "clip_on": False}
            ax.plot(0.02 + 0.96 * side, 0.06, transform=ax.transAxes, label=label, **arrow)
    return _finish(ax, 2, xlabel=_ALPHA, ylabel=_ordinate(ax, runs), ylim=_UNIT)


@style()
def sweep(table: xarray.Dataset, figure: Figure | None = None) -> Figure:
    """Draw the share of each index that a sweep learned against α, one panel an index, one curve a
    combination of parameters: colours tell values of the first one, from dark to light, line styles
    and markers those of the others.

    The share is Q/(Q + V) on the diagonal, of learners and of runs with a teacher cos², the mean
    over seeds. Bands are two standard errors (`sweeps.mean_error`). Points at which a seed did not
    converge are crosses (of several parameters within the marker of their curve), and no line joins
    them.

    Args:
        table: From `jaxsmi.sweep`.
        figure: A figure to draw into, whose size is set. Default None: a new one.

    Returns:
        The figure.
    """
    figure = _figure() if figure is None else figure
    # Q + V is the second moment in theory; a solver of one's own may have no V
    norm = (table.overlap + table.covariance).where(np.isfinite(table.covariance), 1.0)
    each, own = table.overlap / norm, table.stderr / norm
    squared = str(table.attrs.get("solver")).strip('"') in _MARKS or "learner" in table.attrs
    if squared:  # V of a learner is a response
        each = own = (table.cosine**2).expand_dims(index_=table.sizes["index"])
        each, own = each.transpose(*table.overlap.dims), 0.0 * own
    share, error = each.mean("seed"), mean_error(each, own)
    failed = (~table.result.isin(_SOUND)).any("seed")
    axes = [str(name) for name in share.dims[:-3]]
    count = share.sizes["index"]
    figure.set_size_inches(drawing.PAGE if count > 1 else drawing.COLUMN, 2.7)
    panels = np.ravel(figure.subplots(1, count, sharey=True, squeeze=False))
    number = lambda x: f"{x:.4g}" if isinstance(x, float) else str(x)
    said = [[f"{name} {number(x)}" for x in share[name].values] for name in axes]
    first, others = said[0] if said else [""], [", ".join(x) for x in product(*said[1:])]
    shapes = [markers(0, n)["marker"] for n in range(len(others))] if len(said) > 1 else ["."]
    looks = [line(n) | {"marker": x, "markersize": 3.5} for n, x in enumerate(shapes)]
    if table.attrs.get("solver") == '"state_evolution"' and len(shapes) < 7:  # theory is no data
        looks = [line(n) for n in range(len(shapes))]
    tints = drawing.shades(len(first))
    for p, ax in enumerate(panels):
        of_index = lambda x: x.isel(index=p, index_=p)  # noqa: B023
        flat = lambda x: x.stack(row=axes) if axes else x.expand_dims("row")
        rows, errors, missed = (
            flat(x).transpose("row", "alpha") for x in (of_index(share), of_index(error), failed)
        )
        for k, (tint, look) in enumerate(product(tints, looks)):
            known, crosses = rows[k].where(~missed[k]), rows[k].where(missed[k])
            drawing.joined(ax, rows.alpha, known, color=tint, **look)
            ax.plot(rows.alpha, crosses, color=tint, **CROSS)
            if len(said) > 1:  # crosses have no line style: around them the marker
                ring = _RING | {"marker": shapes[k % len(shapes)], "markersize": 6, "mew": 0.5}
                ax.plot(rows.alpha, crosses, color=tint, **ring)
            low, high = (known.values + x * errors[k].values for x in (-2.0, 2.0))
            drawing.band(ax, rows.alpha, low, high, tint, (0.0, 1.0), "band: ± 2 s.e.")
        ax.set(xlabel=_ALPHA, title=f"index {p + 1}" if count > 1 else "")
    panels[0].set_ylabel(_SQUARED if squared else _OVERLAP)
    # more names than this would hide the panels: a colour bar
    named = [x if len(x) <= _MOST_NAMES else [] for x in (first, others)[: len(said)]]
    last, keys = panels[-1], ([{"color": tint} for tint in tints], looks)
    for label, look in chain.from_iterable(map(zip, named, keys)):
        last.plot([], [], label=label, **{"color": INK} | look)
    if failed.any():
        last.plot([], [], color=INK, label="not converged", **CROSS)
    if len(tints) > _MOST_NAMES:
        _colour_bar(list(panels), first, tints)
    words = _named(_facts(json.loads(table.attrs.get("models", "[0]"))[0]), axes)
    words += [table.attrs.get("learner"), _word(str(table.attrs.get("solver", "")).strip('"'))]
    title = ", ".join(filter(None, words))
    if count > 1:  # the panels share it, at their right
        figure.suptitle(title, fontsize=7)
        drawing.legend(last, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        columns = [x[k : k + 5] for x in named for k in range(0, len(x), 5)]
        drawing.legend_above(last, columns if len(said) > 1 and columns else 4, title=title)
    return figure


def _figure() -> Figure:
    return drawing.import_pyplot().figure(layout="constrained")


def _colour_bar(panels: Sequence[Axes], names: Sequence[str], tints: Sequence[str]) -> None:
    """The values of a parameter by the colours of their curves, beside the panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    norm = BoundaryNorm(np.arange(len(tints) + 1) - 0.5, len(tints))
    bar = panels[0].figure.colorbar(ScalarMappable(norm, ListedColormap(tints)), ax=panels)
    ticks = np.linspace(0, len(tints) - 1, 5).astype(int).tolist()
    bar.set_label(names[0].partition(" ")[0])
    bar.set_ticks(ticks, labels=[x.partition(" ")[2] for x in np.array(names)[ticks]])
    bar.ax.minorticks_off()
