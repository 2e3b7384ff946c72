"""The tasks of `jaxsmi sgd`: what each computes, prints, stores and draws.

No equation lives here.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi import sgd as online
from jaxsmi.cli.flags import progress
from jaxsmi.cli.report import finite, table
from jaxsmi.cli.sgd_answer import Answer, curves
from jaxsmi.core.codes import Result
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.workbench import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TASKS", "Task"]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: its help, what computes it, what its problem is called, and the defaults that are its
    own.
    """

    help: str
    answer: Callable[[SequenceSingleIndex, argparse.Namespace], Answer]
    title: Callable[[argparse.Namespace], str]
    defaults: Mapping[str, float]


def _problem(arguments: argparse.Namespace) -> str:
    """What the target and the student are."""
    if arguments.hermite is None:
        return f"Semantic/positional problem: omega {arguments.omega:g}, a {arguments.a:g}."
    target = " ".join(arguments.hermite)
    return f"Target: {target}; student: {arguments.student}; encoding: {arguments.encoding}."


def _key(arguments: argparse.Namespace) -> jax.Array:
    """The key of all random numbers."""
    return jax.random.key(arguments.seed)


def _names(model: SequenceSingleIndex, count: int) -> list[str]:
    """What the overlaps are called."""
    if not model.tied:
        return [f"m_{l + 1}" for l in range(count)]
    return ["m", *(["e"] if count == 2 else [f"e_{k + 1}" for k in range(count - 1)])]


def _exponent(model: SequenceSingleIndex, arguments: argparse.Namespace) -> Answer:
    """The information exponent, with the weight of each order."""
    exponent = online.information_exponent(
        model.target, model.length, student=model.student, key=_key(arguments)
    )
    rows = [
        [str(k), f"{weight:.6g}", f"{error:.1g}"]
        for k, (weight, error) in enumerate(zip(exponent.levels, exponent.errors, strict=True))
    ]
    order = exponent.status if exponent.order is None else exponent.order
    relative = "none found" if exponent.student_order is None else exponent.student_order
    lines = [
        table(["k", "weight P_k", "error"], rows),
        f"Information exponent: {order}; relative to the student: {relative}.",
    ]

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.bar(range(len(exponent.levels)), exponent.levels)
        ax.set_xlabel("order $k$")
        ax.set_ylabel("weight $P_k$")

    arrays = {"levels": np.asarray(exponent.levels), "errors": np.asarray(exponent.errors)}
    return Answer(exponent._asdict(), lines, arrays, draw)


def _risk(model: SequenceSingleIndex, arguments: argparse.Namespace) -> Answer:
    """The risk at an overlap, its Hessian and the noise of its gradient; flatness at the origin."""
    m = 0.0 if arguments.m is None else arguments.m
    e = arguments.e
    key = _key(arguments)
    risk = online.risk(model, m, e, key=key)
    noise = online.gradient_noise(model, m, e, key=key)
    H = np.asarray(online.hessian(model, m, e, key=key))
    data: dict[str, Any] = {
        "m": m,
        "e": e,
        "risk": risk.value,
        "stderr": risk.stderr,
        "hessian": H,
        "gradient_noise": noise.value,
        "gradient_noise_stderr": noise.stderr,
    }
    value = f"{float(risk.value):.12g} ± {float(risk.stderr):.1g}"
    lines = [
        f"R({m:g}, {e:g}) = {value}; V = {float(noise.value):.6g}.",
        table(["Hessian", *("" for _ in H[1:])], [[f"{x:.9f}" for x in row] for row in H]),
    ]
    if model.tied and model.loss == "squared" and model.length <= 4:
        flat = online.flatness(model)
        data |= {"kappa": finite(flat.order), "kappa_escape": finite(flat.escape)}
        orders = f"kappa {flat.order:g}, kappa_esc {flat.escape:g}"
        lines.append(f"Flatness at the origin: {orders} (inf: SGD does not leave).")
    return Answer(data, lines, {"hessian": H})


def _flow(model: SequenceSingleIndex, arguments: argparse.Namespace) -> Answer:
    """The flow of the overlaps, and when it reaches weak recovery."""
    times = np.linspace(0.0, arguments.time, 101)[1:]
    m = 1.0 / np.sqrt(arguments.dimension) if arguments.m is None else arguments.m
    e = arguments.e
    gamma = arguments.gamma
    eta = arguments.eta
    key = _key(arguments)
    flow = online.flow(model, m, e, times=times, gamma=gamma, key=key)
    recovery = jnp.asarray(
        online.recovery_time(model, m, e, gamma=gamma, eta=eta, longest=arguments.time, key=key)
    )
    when = finite(recovery)
    overlaps = np.asarray(flow.overlaps)
    names = _names(model, overlaps.shape[1])
    rows = [[f"{times[k]:.4g}", *(f"{x:.6f}" for x in overlaps[k])] for k in range(9, 100, 10)]
    reached = "not reached"
    if when is not None:
        steps = when * arguments.dimension / gamma
        reached = f"t = {when:.5g}, {steps:.4g} steps at d = {arguments.dimension}"
    result = Result(int(flow.result))
    lines = [
        table(["t", *names], rows),
        f"Weak recovery (eta = {eta:g}): {reached}. {result.remedy}",
    ]
    arrays = {"time": times, "overlaps": overlaps}
    data = {**arrays, "recovery_time": when, "result": result.name}
    return Answer(data, lines, arrays, curves(times, overlaps[None], names))


def _simulate(model: SequenceSingleIndex, arguments: argparse.Namespace) -> Answer:
    """Runs by the exact chain: where they end, and when they arrive."""
    runs = online.simulate(
        model,
        jax.random.split(_key(arguments), arguments.runs),
        dimension=arguments.dimension,
        gamma=arguments.gamma,
        steps=int(np.ceil(arguments.time * arguments.dimension / arguments.gamma)),
        m=arguments.m,
        e=arguments.e,
        eta=arguments.eta,
        until=arguments.until,
        progress=progress(arguments),
    )
    end = np.asarray(runs.end)
    overlaps = np.asarray(runs.overlaps)
    reached = np.asarray(runs.reached)
    names = _names(model, end.shape[1])
    rows = []
    for name, size in zip(names, np.abs(end.T), strict=True):
        stderr = size.std() / np.sqrt(max(arguments.runs - 1, 1))
        rows.append([name, f"{size.mean():.5f} ± {stderr:.5f}", f"{size.std():.5f}"])
    arrived = np.isfinite(reached)
    arrival = f"{int(arrived.sum())} of {arguments.runs} runs reached {arguments.eta:g}"
    if arrived.any():
        arrival += f", after {reached[arrived].mean():.4g} steps on average"
    lines = [table(["", "|overlap| at the end", "spread"], rows), f"{arrival}."]
    data: dict[str, Any] = {
        "end": end,
        "steps": runs.steps,
        "reached": [finite(x) for x in reached],
        "result": [Result(int(code)).name for code in np.asarray(runs.result)],
    }
    if model.tied and model.encoding.shape[1]:
        share, error, count = online.semantic_fraction(runs)
        data["semantic_fraction"] = share if count else None
        data["semantic_stderr"] = error if count else None
        data["stopped"] = count
        stopped = f"of the {count} runs that stopped as asked"
        lines.append(f"Semantic: {share:.3f} ± {error:.3f} {stopped}.")
    arrays = {"step": np.asarray(runs.step), "overlaps": overlaps, "end": end}
    return Answer(data, lines, arrays, curves(np.asarray(runs.time), overlaps, names))


def _phase_diagram(model: SequenceSingleIndex, arguments: argparse.Namespace) -> Answer:
    """The minima at each point of the plane, and the boundaries between phases."""
    del model  # that of all points of the plane
    a = np.linspace(0.7, 1.0, arguments.cells)
    omega = np.linspace(0.4, 0.98, arguments.cells)
    diagram = online.phase_diagram(a, omega, progress=progress(arguments))
    counts = {name: count for name, count in diagram.counts().items() if count}
    lines = [
        table(["label", "cells"], [[name, str(count)] for name, count in counts.items()]),
        f"Transition at a = 1: omega = {float(online.transition(1.0)):.9f}.",
    ]
    arrays = {"a": a, "omega": omega, "label": diagram.label}
    lists = {name: [finite(y) for y in values] for name, values in diagram.boundaries.items()}
    data = {**arrays, "labels": list(online.LABELS), "counts": counts, "boundaries": lists}

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        figure.set_size_inches(5.6, 2.9)
        ax.pcolormesh(a, omega, diagram.label, rasterized=True)
        ax.set(xlabel="a", ylabel=r"$\omega$")

    return Answer(data, lines, arrays | {"hessian": diagram.hessian}, draw)


def _gain(model: SequenceSingleIndex, arguments: argparse.Namespace) -> Answer:
    """The gain of tied networks at each length, and its exponent."""
    del model  # tied and untied networks of each length
    gain = online.gain(
        _key(arguments),
        arguments.lengths,
        dimension=arguments.dimension,
        gamma=arguments.gamma,
        schedule=arguments.schedule,
        eta=arguments.eta,
        progress=progress(arguments),
    )
    rows = [
        [str(L), f"{value:.3f} ± {error:.3f}", bound]
        for L, value, error, bound in zip(
            gain.lengths, gain.gain, gain.stderr, gain.bound, strict=True
        )
    ]
    lines = [
        table(["L", "gain", "bound"], rows),
        f"gain ~ L^({gain.exponent:.3f} ± {gain.exponent_stderr:.3f}).",
    ]
    arrays = {"lengths": gain.lengths, "gain": gain.gain, "stderr": gain.stderr}
    data = {
        **arrays,
        "bound": gain.bound,
        "exponent": finite(gain.exponent),
        "exponent_stderr": finite(gain.exponent_stderr),
    }

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.errorbar(gain.lengths, gain.gain, gain.stderr, **plotting.markers(0))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("tokens $L$")
        ax.set_ylabel("steps, untied over tied")

    return Answer(data, lines, arrays, draw)


def _plane(arguments: argparse.Namespace) -> str:
    """The problem of the phase diagram."""
    del arguments
    return "Semantic/positional problem of two tokens."


def _networks(arguments: argparse.Namespace) -> str:
    """The problem of the gain."""
    numbers = f"d = {arguments.dimension}, gamma = {arguments.gamma:g}, eta = {arguments.eta:g}"
    return f"Target: the sum of h_2 over the tokens; ReLU; {numbers}."


def _no_rates(model: SequenceSingleIndex, arguments: argparse.Namespace) -> Answer:
    """Rates are those of index models."""
    del model, arguments
    raise ValueError("--model: got None; allowed: an index model, such as deep-attention.")


_USUAL = {"gamma": 0.2, "eta": 0.5}

TASKS: dict[str, Task] = {
    "exponent": Task(
        "information exponent of the target, and relative to the student",
        _exponent,
        _problem,
        _USUAL,
    ),
    "risk": Task(
        "risk and its Hessian at given overlaps, flatness and the noise of the gradient",
        _risk,
        _problem,
        _USUAL,
    ),
    "flow": Task("overlaps against time in the limit of many dimensions", _flow, _problem, _USUAL),
    "simulate": Task("runs of SGD by the exact chain of the overlaps", _simulate, _problem, _USUAL),
    "rates": Task(
        "growth rates of the unlearned state of --model, row by row", _no_rates, _problem, _USUAL
    ),
    "phase-diagram": Task(
        "minima in the plane (a, omega) of the semantic/positional problem",
        _phase_diagram,
        _plane,
        _USUAL,
    ),
    "gain": Task(
        "steps of untied over tied networks against the length",
        _gain,
        _networks,
        {"gamma": 0.002, "eta": 0.2},
    ),
}
