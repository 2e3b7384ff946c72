"""TODO workbench.sweeps.solvers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.results import Solution
from jaxsmi.descent.training import train
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp

if TYPE_CHECKING:
    pass


def warm_start(solution: Solution) -> Array:
    """Where to start the next α: not quite at Q, so that unlearned indices can grow, and V > 0 where they are recovered."""
    return 0.995 * solution.overlap + 0.03 * solution.covariance


def evolve(
    model: Any,
    alpha: float,
    key: Array,
    before: Solution | None,
    stderr: float | None = None,
    most: int = 2**15,
    samples: int | None = None,
    **settings: Any,
) -> Solution:
    """State evolution; with a `stderr`, of four times the samples, going on from what was found, until it is met or `most` are
    used; it begins with few where the α before was next to recovery: there they tell all, and cost most."""
    near = before is not None and bool(
        jnp.trace(before.covariance) < 0.01 * jnp.trace(before.overlap + before.covariance)
    )
    if model.channel.explicit:  # exact: no samples to add, no start to warm
        given: dict[str, Any] = {} if samples is None else {"samples": samples}
        return state_evolution(model, alpha, key=key, **(settings | given))
    samples = samples or (8192 if stderr is None else 512 if near else 2048)
    start: dict[str, Any] = (
        {"q0": warm_start(before)} if before is not None and "q0" not in settings else {}
    )
    while True:
        solution = state_evolution(model, alpha, key=key, samples=samples, **(start | settings))
        met = stderr is None or bool(
            jnp.all(solution.stderr <= stderr)
        )  # NaN, and so not met, where it did not converge
        if met or 4 * samples > most or not bool(jnp.all(jnp.isfinite(solution.overlap))):
            return solution
        samples, start = 4 * samples, {"q0": solution.overlap}


def _pass_messages(
    model: Any,
    alpha: float,
    key: Array,
    before: Solution | None,
    dimension: int = 1000,
    store: bool = True,
    **settings: Any,
) -> Solution:
    del before  # every run is one of its own
    data_key, start_key = jax.random.split(key)
    return gamp(
        model,
        model.sample(data_key, dimension=dimension, alpha=alpha, store=store),
        key=start_key,
        **settings,
    )


def _descend(
    model: Any,
    alpha: float,
    key: Array,
    before: Solution | None,
    dimension: int = 500,
    optimizer: str = "adam",
    learning_rate: float = 1e-2,
    **settings: Any,
) -> Solution:
    del before
    data_key, start_key = jax.random.split(key)
    data = model.sample(data_key, dimension=dimension, alpha=alpha)
    return train(model, data, getattr(optax, optimizer)(learning_rate), key=start_key, **settings)


def curve(
    model: Any, alphas: Any, *, key: Array, progress: bool = False, **settings: Any
) -> list[Solution]:
    """State evolution at ascending α, each starting near the one before: the branch that message passing finds. Settings as of
    `state_evolution`; with a `q0` every α starts there."""
    found: list[Solution] = []
    before: Solution | None = None
    for alpha in tqdm(alphas, desc="alpha", disable=not progress, leave=False):
        found.append(evolve(model, float(alpha), key, before, **settings))
        before = found[-1] if bool(found[-1].converged) else before
    return found


SOLVERS: dict[str, Callable[..., Solution]] = {
    "state_evolution": evolve,
    "gamp": _pass_messages,
    "train": _descend,
}
