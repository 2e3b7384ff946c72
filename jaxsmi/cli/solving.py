"""What several commands compute: a run of message passing, and a curve of state evolution.

No equation lives here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
from jaxtyping import PRNGKeyArray

import jaxsmi as smi
from jaxsmi.cli.flags import progress
from jaxsmi.cli.report import plain, timed
from jaxsmi.core.results import Solution
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench import sweeps

__all__ = ["Learned", "curve_of", "learn", "theory_key"]


class Learned(NamedTuple):
    """A run of message passing, and how long it took."""

    solution: Solution
    seconds: float

    @property
    def data(self) -> dict[str, Any]:
        """What JSON says of it."""
        more = {"cosine": self.solution.cosine, "seconds": self.seconds}
        return plain(self.solution) | more


def learn(
    model: AbstractModel,
    arguments: argparse.Namespace,
    init: str | float | None,
    **storage: Any,
) -> Learned:
    """Draw a teacher and data, and learn it by message passing.

    `init`: where it starts, as `smi.gamp` takes it; `storage`: how the inputs are kept.
    """
    data_key, start_key = jax.random.split(jax.random.fold_in(jax.random.key(arguments.seed), 1))
    with timed() as seconds:
        data = model.sample(
            data_key, dimension=arguments.dimension, alpha=arguments.alpha, **storage
        )
        solution = smi.gamp(
            model,
            data,
            key=start_key,
            max_steps=arguments.max_steps,
            tolerance=arguments.tolerance,
            damping=arguments.damping,
            init=init,
            progress=progress(arguments),
        )
        jax.block_until_ready(solution.overlap)
    return Learned(solution, seconds[0])


def theory_key(arguments: argparse.Namespace) -> PRNGKeyArray:
    """The key of state evolution and of thresholds."""
    return jax.random.fold_in(jax.random.key(arguments.seed), 2)


def curve_of(
    model: AbstractModel, alphas: Iterable[float], arguments: argparse.Namespace, **settings: Any
) -> list[Solution]:
    """State evolution in ascending alpha.

    Without `q0` each point starts near the one before: the branch from below.
    """
    key = theory_key(arguments)
    return sweeps.curve(model, alphas, key=key, progress=progress(arguments), **settings)
