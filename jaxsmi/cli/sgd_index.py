"""The tasks of `jaxsmi sgd --model MODEL`: runs, flow and rates of an index model.

No equation lives here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxsmi import sgd as online
from jaxsmi.cli.models import FLAGS, MODELS
from jaxsmi.cli.report import finite, table, wrapped
from jaxsmi.cli.sgd_answer import Answer, curves
from jaxsmi.core.checks import Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.models.index import IndexModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["INDEX_TASKS", "add_model_flags", "index_model", "index_title"]

_NAMES = ("depth", "tokens", "skip", "beta", "ranks", "factors", "noise")
_NAMES += ("classes", "size", "leak", "width")
_PREFIX = "own_"


def add_model_flags(group: argparse._ArgumentGroup) -> None:
    """The model, and the flags of its own."""
    names = [name for name in MODELS if name not in ("attention-indexed", "bilinear")]
    group.add_argument(
        "--model",
        dest="index_model",
        choices=names,
        help="an index model instead, for simulate, flow and rates",
    )
    for name in _NAMES:
        flag = FLAGS[name]
        group.add_argument(
            f"--{name}",
            dest=_PREFIX + name,
            type=flag.kind,
            nargs="+" if flag.many else None,
            help=f"{flag.help} (of --model)",
        )


def index_model(arguments: argparse.Namespace) -> IndexModel | None:
    """The model of --model, with the flags that were given; None: another problem was asked for."""
    words = vars(arguments)
    given = {name: words[_PREFIX + name] for name in _NAMES}
    given = {name: value for name, value in given.items() if value is not None}
    chosen = arguments.index_model
    if chosen is None:
        shown = " ".join(f"--{name}" for name in given)
        check(not given, "--model", shown, "a model for these flags")
        return None
    entry = MODELS[chosen]
    unknown = [f"--{name}" for name in given if name not in entry.flags]
    own = ", ".join(f"--{name}" for name in entry.flags) or "none"
    check(not unknown, " ".join(unknown), chosen, f"the flags of this model: {own}")
    single = lambda x: x[0] if isinstance(x, list) and len(x) == 1 else x
    flags = dict(entry.flags) | {name: single(value) for name, value in given.items()}
    made = entry.make(**flags)
    return Arguments().instance("--model", made, IndexModel, "an index model")


def index_title(model: IndexModel, arguments: argparse.Namespace) -> str:
    """What is learned, and how."""
    rate = f"kappa = {arguments.gamma:g}"
    return f"{arguments.index_model}, P = {model.indices}, {rate}, D = {arguments.dimension}."


def _key(arguments: argparse.Namespace) -> jax.Array:
    """The key of all random numbers."""
    return jax.random.key(arguments.seed)


def _simulate(model: IndexModel, arguments: argparse.Namespace) -> Answer:
    """Runs by the exact chain: cosines at the end, and when each index is learned."""
    runs = online.simulate(
        model,
        jax.random.split(_key(arguments), arguments.runs),
        dimension=arguments.dimension,
        rate=arguments.gamma,
        alpha=arguments.time / arguments.gamma,
        level=arguments.eta,
        until=arguments.until,
    )
    cosine = np.asarray(runs.cosine)
    reached = np.asarray(runs.reached_alpha)
    last = np.asarray(runs.final)
    rows = []
    for p, name in enumerate(model.index_names):
        spread = last[:, p].std() / np.sqrt(max(len(last) - 1, 1))
        learned = np.isfinite(reached[:, p])
        median = np.sort(reached[:, p])[(len(last) - 1) // 2]
        when = f"{median:.4g}" if np.isfinite(median) else "later"
        cells = [f"{last[:, p].mean():.4f} ± {spread:.4f}", f"{learned.sum()} of {len(last)}", when]
        rows.append([name, *cells])
    names = ["", "cosine at the end", f"reached {arguments.eta:g}", "median alpha"]
    codes = [Result(int(code)).name for code in np.asarray(runs.result)]
    data = {
        "cosine": last,
        "reached_alpha": [[finite(x) for x in row] for row in reached],
        "steps": runs.steps,
        "result": codes,
    }
    alpha = np.asarray(runs.alpha)
    arrays = {"alpha": alpha, "cosine": cosine, "reached_alpha": reached}
    ended = {name: codes.count(name) for name in dict.fromkeys(codes)}
    lines = [table(names, rows), ", ".join(f"{n} {name}" for name, n in ended.items()) + "."]
    draw = curves(alpha, cosine, list(model.index_names), "α = N/D", "cosine")
    return Answer(data, lines, arrays, draw)


def _flow(model: IndexModel, arguments: argparse.Namespace) -> Answer:
    """The flow from M = m I, Q = I, and when each index is learned."""
    P = model.indices
    m = 0.1 if arguments.m is None else arguments.m
    start = (m * np.eye(P), np.eye(P))
    times = np.linspace(0.0, arguments.time, 101)[1:]
    path = online.flow(model, start, times=times, rate=arguments.gamma, key=_key(arguments))
    cosine = np.asarray(path.cosine)
    error = np.asarray(path.stderr.cosine)
    names = list(model.index_names)
    rows = [
        [
            f"{float(path.alpha[k]):.4g}",
            *(f"{x:.4f} ± {e:.4f}" for x, e in zip(cosine[k], error[k], strict=True)),
            f"{float(path.risk[k]):.4g}",
        ]
        for k in range(9, 100, 10)
    ]
    result = Result(int(path.result))
    lines = [table(["alpha", *names, "risk"], rows), result.remedy]
    arrays = {
        "alpha": np.asarray(path.alpha),
        "cosine": cosine,
        "cosine_stderr": error,
        "teacher_overlap": np.asarray(path.teacher_overlap),
        "overlap": np.asarray(path.overlap),
        "risk": np.asarray(path.risk),
    }
    draw = curves(arrays["alpha"], cosine[None], names, "α = N/D", "cosine")
    return Answer({**arrays, "result": result.name}, lines, arrays, draw)


def _rates(model: IndexModel, arguments: argparse.Namespace) -> Answer:
    """Growth rates of the unlearned state: which index is learned first."""
    kappa = arguments.gamma
    found = online.rates(model, key=_key(arguments))
    growth = np.asarray(found.cosine(kappa))
    escape = np.asarray(found.escape(kappa, arguments.dimension))
    names = list(model.index_names)
    rows = [
        [
            f"{name} to teacher's {goal}",
            f"{float(found.signal[p, q]):.5f} ± {float(found.stderr.signal[p, q]):.5f}",
            f"{float(found.plain[p, q]):.5f}",
            f"{growth[p, q]:.5f}",
        ]
        for p, name in enumerate(names)
        for q, goal in enumerate(names)
    ]
    order = [names[p] for p in np.argsort(-np.diagonal(growth))]
    soonest = int(np.argmax(np.diagonal(growth)))
    first = f"Growing from nothing: {', then '.join(order)}."
    if np.isfinite(escape[soonest]):
        first += f" {names[soonest]} leaves after alpha ~ ln D/(2 rate) = {escape[soonest]:.3g}"
        first += (
            ", to leading order. "
            if len(names) == 1
            else (
                ", to leading order; the others then wait at another saddle (jaxsmi sgd simulate)."
            )
        )
    lines = [
        table(["", "Lambda", "mu of M", f"of cosines, kappa {kappa:g}"], rows),
        wrapped(first),
    ]
    arrays = {
        "signal": np.asarray(found.signal),
        "signal_stderr": np.asarray(found.stderr.signal),
        "plain": np.asarray(found.plain),
        "growth": growth,
    }

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.bar(range(len(names)), np.diagonal(growth))
        ax.set_xticks(range(len(names)), names)
        ax.set_ylabel("growth rate of the cosine with α")

    return Answer({**arrays, "escape": [finite(x) for x in escape]}, lines, arrays, draw)


INDEX_TASKS: dict[str, Callable[[IndexModel, argparse.Namespace], Answer]] = {
    "simulate": _simulate,
    "flow": _flow,
    "rates": _rates,
}
