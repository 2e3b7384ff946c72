"""The command `jaxsmi universality MODEL`: message passing on inputs of several laws beside theory.

No equation lives here.
"""

from __future__ import annotations

import argparse

import jax

from jaxsmi.cli.command import Command
from jaxsmi.cli.flags import add_gamp, model_of, progress, setting_of
from jaxsmi.cli.models import defaults_for
from jaxsmi.cli.report import Report, table, timed
from jaxsmi.sensing.blocks import LAWS
from jaxsmi.workbench import storage
from jaxsmi.workbench.universality import universality

__all__ = ["COMMAND"]


def _add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    add_gamp(parser)
    parser.add_argument(
        "--laws", nargs="+", choices=tuple(LAWS), default=list(LAWS), help="of entries of inputs"
    )
    parser.add_argument("--runs", type=int, default=8, help="runs of each law, two or more")


def _execute(arguments: argparse.Namespace) -> Report:
    """Run message passing on all laws, and theory once."""
    model = model_of(arguments)
    names = ("max_steps", "tolerance", "damping")
    settings = {name: vars(arguments)[name] for name in names}
    with timed() as seconds:
        beside = universality(
            model,
            arguments.alpha,
            dimension=arguments.dimension,
            key=jax.random.key(arguments.seed),
            laws=arguments.laws,
            runs=arguments.runs,
            settings=settings,
            progress=progress(arguments),
        )
    arrays = {
        "overlap": beside.mean,
        "stderr": beside.stderr,
        "theory": beside.theory,
        "theory_stderr": beside.theory_stderr,
        "z": beside.z,
        "z_law": beside.z_law,
        "converged": beside.converged,
    }
    header = ["law", "index", "cosine²", "theory", "z", f"z to {beside.laws[0]}", "converged"]
    text = [setting_of(arguments), table(header, beside.rows), f"{seconds[0]:.1f} s."]
    data = {"laws": list(beside.laws), **arrays, "seconds": seconds[0]}
    return Report(data, "\n".join(text), stored=lambda: storage.arrays(arrays))


COMMAND = Command(
    "universality",
    "Message passing on inputs of several laws beside the theory of Gaussian ones.",
    _add_flags,
    _execute,
    defaults=defaults_for,
)
