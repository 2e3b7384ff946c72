"""TODO cli.flags."""

from __future__ import annotations

import argparse
from typing import Any

import jax

import jaxsmi as smi
from jaxsmi.cli import report as reports
from jaxsmi.cli.main import _OUTPUT
from jaxsmi.cli.models import FLAGS, MODELS
from jaxsmi.cli.report import progress, timed
from jaxsmi.core.results import Solution
from jaxsmi.workbench import sweeps


def add_gamp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--alpha", type=float, default=1.2, help="sample complexity N/D (matrices: n/d^2 or n/(dL))"
    )
    parser.add_argument("--dimension", type=int, default=1000, help="dimension D of a token")
    parser.add_argument("--max-steps", type=int, default=100, help="step budget of GAMP")
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, help="stop GAMP at this change of a weight"
    )
    parser.add_argument(
        "--damping",
        type=float,
        default=argparse.SUPPRESS,
        help="damping of GAMP (default: none; of a matrix, as much as it needs)",
    )


def model_of(arguments: argparse.Namespace) -> Any:
    return MODELS[arguments.model][0](**flags_of(arguments))


def flags_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The model's own flags, with defaults; a flag of another model is an error."""
    flags = dict(MODELS[arguments.model][1])
    for flag in FLAGS:
        if hasattr(arguments, flag):
            if flag not in flags:
                own = ", ".join(f"--{own}" for own in flags) or "none"
                raise ValueError(
                    f"--{flag.replace('_', '-')} is no flag of {arguments.model}; its own: {own}."
                )
            value = getattr(arguments, flag)
            flags[flag] = value[0] if isinstance(value, list) and len(value) == 1 else value
    return flags


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that decides the numbers."""
    aside = {"command", "execute", "model", *_OUTPUT, *FLAGS}
    rest = {name: value for name, value in vars(arguments).items() if name not in aside}
    if not hasattr(arguments, "model"):
        return rest
    return {"model": arguments.model, **flags_of(arguments), **rest}


def learn(model: Any, arguments: argparse.Namespace) -> tuple[Solution, dict[str, Any]]:
    data_key, start_key = jax.random.split(jax.random.fold_in(jax.random.key(arguments.seed), 1))
    with timed() as seconds:
        data = model.sample(
            data_key, dimension=arguments.dimension, alpha=arguments.alpha, **storage_of(arguments)
        )
        solution = smi.gamp(
            model,
            data,
            key=start_key,
            max_steps=arguments.max_steps,
            tolerance=arguments.tolerance,
            damping=getattr(arguments, "damping", None),
            progress=progress(arguments),
        )
        jax.block_until_ready(solution.overlap)
    found = {"cosine": solution.cosine, "seconds": seconds[0]}
    return solution, reports.plain(solution) | found


def storage_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """How the inputs are kept."""
    if getattr(arguments, "regenerate", False):
        return {"store": False}
    return {"dtype": getattr(arguments, "dtype", None)}


def theory_key(arguments: argparse.Namespace) -> jax.Array:
    return jax.random.fold_in(jax.random.key(arguments.seed), 2)


def curve_of(
    model: Any,
    alphas: Any,
    arguments: argparse.Namespace,
    settings: dict[str, Any],
    q0: float | None = None,
) -> list[Solution]:
    """State evolution in ascending alpha; without `q0` each point starts near the one before: the branch from below."""
    start = {} if q0 is None else {"q0": q0}
    if model.channel.explicit:  # the defaults of the options are those of index models
        settings = {name: settings[name] for name in ("max_steps",) if name in settings}
    return sweeps.curve(
        model, alphas, key=theory_key(arguments), progress=progress(arguments), **start, **settings
    )


def setting_of(arguments: argparse.Namespace) -> str:
    settings = settings_of(arguments)
    return reports.wrapped(
        settings.pop("model")
        + ": "
        + ", ".join(f"{name} {reports.short(it)}" for name, it in settings.items())
    )
