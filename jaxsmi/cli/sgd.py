"""The command `jaxsmi sgd TASK`: what `jaxsmi.sgd` answers about one problem. No equation lives here."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxsmi import sgd as wing
from jaxsmi.cli.report import Report, progress, table, timed, wrapped
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.workbench import storage

TASKS = {
    "exponent": "information exponent of the target, and relative to the student",
    "risk": "risk, its Hessian at the origin, flatness and the noise of the gradient",
    "flow": "overlaps against time in the limit of many dimensions",
    "simulate": "runs of SGD by the exact chain of the overlaps",
    "phase-diagram": "minima in the plane (a, omega) of the semantic/positional problem",
    "gain": "steps of untied over tied networks against the length",
}


def sgd(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], Report]:
    """Online SGD of sequence single-index models: exponents, risk, flow, runs, phase diagram, gain.

    The problem is the semantic/positional one (--omega, --a), or a target given as a Hermite series (--hermite).
    """
    parser.add_argument(
        "task", metavar="TASK", choices=TASKS, help="; ".join(f"{k}: {v}" for k, v in TASKS.items())
    )
    problem = parser.add_argument_group("the problem")
    problem.add_argument(
        "--omega", type=float, default=0.5, help="weight of the positional part of the target"
    )
    problem.add_argument("--a", type=float, default=1.0, help="strength of the positional part")
    problem.add_argument("--hermite", nargs="+", metavar="N,..,N:C", default=argparse.SUPPRESS,
                         help="a target instead: degree of each token, and coefficient, e.g. 2,0:1 0,2:1")  # fmt: skip
    problem.add_argument(
        "--normalised", action="store_true", help="the series is one of orthonormal polynomials"
    )
    problem.add_argument("--student", choices=("attention", "linear-attention", "tied", "untied"), default="attention",
                         help="of a Hermite target; tied and untied: ReLU networks")  # fmt: skip
    problem.add_argument(
        "--trace-norm",
        choices=("sqrtL", "none"),
        default="sqrtL",
        help="factor of attention's trace",
    )
    problem.add_argument(
        "--encoding",
        choices=("none", "paired", "orthonormal"),
        default="none",
        help="positional encoding",
    )
    problem.add_argument("--loss-factor", type=float, default=0.5, help="factor c of the loss")
    problem.add_argument(
        "--loss", choices=("squared", "frobenius"), default="squared", help="squared, or its root"
    )
    dynamics = parser.add_argument_group("learning")
    dynamics.add_argument(
        "--gamma", type=float, default=argparse.SUPPRESS, help="learning rate (0.2; gain: 0.002)"
    )
    dynamics.add_argument("--dimension", type=int, default=1000, help="dimension d")
    dynamics.add_argument(
        "--m",
        type=float,
        default=argparse.SUPPRESS,
        help="semantic overlap at the start (flow: 1/sqrt(d))",
    )
    dynamics.add_argument("--e", type=float, default=0.0, help="positional overlap at the start")
    dynamics.add_argument(
        "--time", type=float, default=100.0, help="time t = gamma steps/d to go to"
    )
    dynamics.add_argument(
        "--eta", type=float, default=argparse.SUPPRESS, help="weak recovery (0.5; gain: 0.2)"
    )
    dynamics.add_argument("--runs", type=int, default=64, help="runs at once")
    dynamics.add_argument(
        "--until",
        type=float,
        default=argparse.SUPPRESS,
        help="a run stops at this norm of the overlaps",
    )
    dynamics.add_argument(
        "--lengths", type=int, nargs="+", default=[1, 2, 4], help="lengths (gain)"
    )
    dynamics.add_argument(
        "--schedule",
        choices=("equal", "linear", "sqrt"),
        default="equal",
        help="tied rate over untied (gain)",
    )
    dynamics.add_argument(
        "--cells", type=int, default=31, help="cells of each axis (phase-diagram)"
    )

    def execute(arguments: argparse.Namespace) -> Report:
        own = (
            {"gamma": 0.002, "eta": 0.2} if arguments.task == "gain" else {"gamma": 0.2, "eta": 0.5}
        )
        for flag, value in own.items():
            setattr(arguments, flag, getattr(arguments, flag, value))
        check(arguments.time > 0, "--time", arguments.time, "a number > 0")
        check(arguments.runs >= 1, "--runs", arguments.runs, "an integer >= 1")
        check(arguments.cells >= 2, "--cells", arguments.cells, "an integer >= 2")
        with timed() as seconds:
            data, lines, arrays, draw = _DO[arguments.task](arguments)
        text = "\n".join([wrapped(_title(arguments)), *lines, f"{seconds[0]:.1f} s."])
        kept = storage.arrays(arrays) if arguments.out and arrays else {}
        return Report(
            data | {"seconds": seconds[0]}, text, draw, kept, stem=f"sgd-{arguments.task}"
        )

    return execute


Found = tuple[dict[str, Any], list[str], dict[str, np.ndarray], Callable[[Any], None]]


def _title(arguments: argparse.Namespace) -> str:
    if arguments.task == "phase-diagram":
        return "Semantic/positional problem of two tokens."
    if arguments.task == "gain":
        numbers = f"d = {arguments.dimension}, gamma = {arguments.gamma:g}, eta = {arguments.eta:g}"
        return f"Target: the sum of h_2 over the tokens; ReLU; {numbers}."
    if hasattr(arguments, "hermite"):
        return f"Target: {' '.join(arguments.hermite)}; student: {arguments.student}; encoding: {arguments.encoding}."
    return f"Semantic/positional problem: omega {arguments.omega:g}, a {arguments.a:g}."


def model_of(arguments: argparse.Namespace) -> SequenceSingleIndex:
    if not hasattr(arguments, "hermite"):
        return wing.semantic_positional(
            arguments.omega, arguments.a, arguments.loss_factor, arguments.loss
        )
    terms = {}
    for word in arguments.hermite:
        try:
            degrees, coefficient = word.split(":")
            terms[tuple(int(n) for n in degrees.split(","))] = float(coefficient)
        except ValueError as failure:
            raise ValueError(
                f"--hermite: got {word!r}; allowed: degrees and coefficient, such as 2,0:1."
            ) from failure
    series = wing.HermiteSeries(terms, arguments.normalised)
    students = {
        "attention": lambda: wing.Attention(trace_norm=arguments.trace_norm),
        "linear-attention": wing.LinearAttention,
        "tied": lambda: wing.Network(jax.nn.relu),
        "untied": lambda: wing.Network(jax.nn.relu, tied=False),
    }
    encoding = None if arguments.encoding == "none" else arguments.encoding
    return SequenceSingleIndex(
        series,
        series.length,
        students[arguments.student](),
        encoding,
        arguments.loss_factor,
        arguments.loss,
    )


def _key(arguments: argparse.Namespace) -> jax.Array:
    return jax.random.key(arguments.seed)


def _nothing(figure: Any) -> None:
    del figure


def _exponent(arguments: argparse.Namespace) -> Found:
    model = model_of(arguments)
    found = wing.information_exponent(
        model.target, model.length, student=model.student, key=_key(arguments)
    )
    data = found._asdict()
    rows = [
        [str(k), f"{P:.6g}", f"{error:.1g}"]
        for k, (P, error) in enumerate(zip(found.levels, found.errors, strict=True))
    ]
    lines = [
        table(["k", "weight P_k", "error"], rows),
        f"Information exponent: {found.order if found.order is not None else found.status}; "
        f"relative to the student: {found.student_order if found.student_order is not None else 'none found'}.",
    ]

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        ax.bar(range(len(found.levels)), found.levels)
        ax.set_xlabel("order k")
        ax.set_ylabel("weight P_k")

    return data, lines, {"levels": found.levels, "errors": found.errors}, draw


def _risk(arguments: argparse.Namespace) -> Found:
    model = model_of(arguments)
    m = getattr(arguments, "m", 0.0)
    key = _key(arguments)
    found, V = (
        wing.risk(model, m, arguments.e, key=key),
        wing.gradient_noise(model, m, arguments.e, key=key),
    )
    H = np.asarray(wing.hessian(model, m, arguments.e, key=key))
    data: dict[str, Any] = {
        "m": m,
        "e": arguments.e,
        "risk": found.value,
        "stderr": found.stderr,
        "hessian": H,
    }
    data |= {"gradient_noise": V.value, "gradient_noise_stderr": V.stderr}
    lines = [
        f"R({m:g}, {arguments.e:g}) = {float(found.value):.12g} ± {float(found.stderr):.1g}; V = {float(V.value):.6g}.",
        table(["Hessian", *("" for _ in H[1:])], [[f"{x:.9f}" for x in row] for row in H]),
    ]
    if model.tied and model.loss == "squared" and model.length <= 4:
        flat = wing.flatness(model)
        finite = lambda x: float(x) if np.isfinite(x) else None
        data |= {"kappa": finite(flat.order), "kappa_escape": finite(flat.escape)}
        lines.append(
            f"Flatness at the origin: kappa {flat.order:g}, kappa_esc {flat.escape:g} (inf: SGD does not leave)."
        )
    return data, lines, {"hessian": H}, _nothing


def _flow(arguments: argparse.Namespace) -> Found:
    model, times = model_of(arguments), np.linspace(0.0, arguments.time, 101)[1:]
    m = getattr(arguments, "m", 1.0 / np.sqrt(arguments.dimension))
    key = _key(arguments)
    found = wing.flow(model, m, arguments.e, times=times, gamma=arguments.gamma, key=key)
    when = float(
        wing.recovery_time(
            model,
            m,
            arguments.e,
            gamma=arguments.gamma,
            eta=arguments.eta,
            longest=arguments.time,
            key=key,
        )
    )
    v = np.asarray(found.overlaps)
    names = _names(model, v.shape[1])
    rows = [[f"{times[k]:.4g}", *(f"{x:.6f}" for x in v[k])] for k in range(9, 100, 10)]
    steps = when * arguments.dimension / arguments.gamma
    reached = (
        f"t = {when:.5g}, {steps:.4g} steps at d = {arguments.dimension}"
        if np.isfinite(when)
        else "not reached"
    )
    lines = [
        table(["t", *names], rows),
        f"Weak recovery (eta = {arguments.eta:g}): {reached}. {Result(int(found.result)).remedy}",
    ]
    data = {
        "time": times,
        "overlaps": v,
        "recovery_time": when if np.isfinite(when) else None,
        "result": Result(int(found.result)).name,
    }
    return data, lines, {"time": times, "overlaps": v}, _curves(times, v[None], names, "time t")


def _simulate(arguments: argparse.Namespace) -> Found:
    model = model_of(arguments)
    keys = jax.random.split(_key(arguments), arguments.runs)
    found = wing.simulate(
        model, keys, dimension=arguments.dimension, gamma=arguments.gamma,
        steps=int(np.ceil(arguments.time * arguments.dimension / arguments.gamma)), m=getattr(arguments, "m", None),
        e=arguments.e, eta=arguments.eta, until=getattr(arguments, "until", None), progress=progress(arguments),
    )  # fmt: skip
    end, reached = np.asarray(found.end), np.asarray(found.reached)
    names, size = _names(model, end.shape[1]), max(arguments.runs - 1, 1)
    rows = [[name, f"{np.abs(x).mean():.5f} ± {np.abs(x).std() / np.sqrt(size):.5f}", f"{np.abs(x).std():.5f}"]
            for name, x in zip(names, end.T, strict=True)]  # fmt: skip
    arrived = np.isfinite(reached)
    lines = [
        table(["", "|overlap| at the end", "spread"], rows),
        f"{int(arrived.sum())} of {arguments.runs} runs reached {arguments.eta:g}"
        + (f", after {reached[arrived].mean():.4g} steps on average." if arrived.any() else "."),
    ]
    data: dict[str, Any] = {
        "end": end,
        "steps": found.steps,
        "reached": [float(x) if np.isfinite(x) else None for x in reached],
    }
    data["result"] = [Result(int(code)).name for code in np.asarray(found.result)]
    if model.tied and model.encoding.shape[1]:
        P, error, count = wing.semantic_fraction(found)
        data |= {
            "semantic_fraction": P if count else None,
            "semantic_stderr": error if count else None,
            "stopped": count,
        }
        lines.append(f"Semantic: {P:.3f} ± {error:.3f} of the {count} runs that stopped as asked.")
    draw = _curves(np.asarray(found.time), np.asarray(found.overlaps), names, "time t")
    return (
        data,
        lines,
        {"step": np.asarray(found.step), "overlaps": np.asarray(found.overlaps), "end": end},
        draw,
    )


def _phase_diagram(arguments: argparse.Namespace) -> Found:
    a, omega = np.linspace(0.7, 1.0, arguments.cells), np.linspace(0.4, 0.98, arguments.cells)
    found = wing.phase_diagram(a, omega, progress=progress(arguments))
    counts = {name: count for name, count in found.counts().items() if count}
    lines = [
        table(["label", "cells"], [[name, str(count)] for name, count in counts.items()]),
        f"Transition at a = 1: omega = {float(wing.transition(1.0)):.9f}.",
    ]
    finite = lambda x: [float(y) if np.isfinite(y) else None for y in x]
    data = {
        "a": a,
        "omega": omega,
        "label": found.label,
        "labels": list(wing.LABELS),
        "counts": counts,
    }
    data["boundaries"] = {name: finite(value) for name, value in found.boundaries.items()}

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        ax.pcolormesh(a, omega, found.label, cmap="tab10", vmin=0, vmax=9)
        for name, value in found.boundaries.items():
            ax.plot(a, value, label=name)
        ax.set_ylim(omega[0], omega[-1])
        ax.set_xlabel("a")
        ax.set_ylabel("ω")
        ax.legend(fontsize=7)

    return (
        data,
        lines,
        {"a": a, "omega": omega, "label": found.label, "hessian": found.hessian},
        draw,
    )


def _gain(arguments: argparse.Namespace) -> Found:
    found = wing.gain(
        _key(arguments), arguments.lengths, dimension=arguments.dimension, gamma=arguments.gamma, schedule=arguments.schedule,
        eta=arguments.eta, progress=progress(arguments),
    )  # fmt: skip
    rows = [
        [str(L), f"{g:.3f} ± {s:.3f}", b]
        for L, g, s, b in zip(found.lengths, found.gain, found.stderr, found.bound, strict=True)
    ]
    lines = [
        table(["L", "gain", "bound"], rows),
        f"gain ~ L^({found.exponent:.3f} ± {found.exponent_stderr:.3f}).",
    ]
    finite = lambda x: float(x) if np.isfinite(x) else None
    data = {
        "lengths": found.lengths,
        "gain": found.gain,
        "stderr": found.stderr,
        "bound": found.bound,
    }
    data |= {"exponent": finite(found.exponent), "exponent_stderr": finite(found.exponent_stderr)}

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        ax.errorbar(found.lengths, found.gain, found.stderr, fmt="o")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("length L")
        ax.set_ylabel("steps untied/steps tied")

    return data, lines, {"lengths": found.lengths, "gain": found.gain, "stderr": found.stderr}, draw


def _names(model: SequenceSingleIndex, count: int) -> list[str]:
    if not model.tied:
        return [f"m_{l + 1}" for l in range(count)]
    return ["m", *(["e"] if count == 2 else [f"e_{k + 1}" for k in range(count - 1)])]


def _curves(x: np.ndarray, v: np.ndarray, names: list[str], label: str) -> Callable[[Any], None]:
    """Overlaps v (runs, T, n) against x."""

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        for k, name in enumerate(names):
            lines = ax.plot(x, v[..., k].T, color=f"C{k}", lw=0.8)
            lines[0].set_label(name)
        ax.set_xlabel(label)
        ax.set_ylabel("overlap")
        ax.legend(frameon=False)

    return draw


_DO: dict[str, Callable[[argparse.Namespace], Found]] = {
    "exponent": _exponent,
    "risk": _risk,
    "flow": _flow,
    "simulate": _simulate,
    "phase-diagram": _phase_diagram,
    "gain": _gain,
}
