"""Solvers of a sweep: how one point is solved, starting where the previous α ended.

No equation lives here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.checks import check
from jaxsmi.core.progress import tqdm
from jaxsmi.core.results import Solution
from jaxsmi.descent.training import train
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.models.base import AbstractModel

__all__ = ["SOLVERS", "Solver", "curve", "evolve", "settings_of", "warm_start"]


def warm_start(solution: Solution) -> Array:
    """Where to start the next α: not quite at Q, so that unlearned indices can grow, and V > 0
    where they are recovered.
    """
    return 0.995 * solution.overlap + 0.03 * solution.covariance


def evolve(
    model: AbstractModel,
    alpha: float,
    key: PRNGKeyArray,
    previous: Solution | None,
    stderr: float | None = None,
    most: int = 2**15,
    samples: int | None = None,
    **settings: Any,
) -> Solution:
    """State evolution, with as many samples as an error bar asks for.

    With a `stderr` it takes four times the samples, going on from its estimate, until the error bar
    is met or `most` are used. It begins with few where the previous α was next to recovery: there
    few samples suffice, and each costs most.
    """
    if model.channel.explicit:  # exact: no samples to add, no start to warm
        given: dict[str, Any] = {} if samples is None else {"samples": samples}
        return state_evolution(model, alpha, key=key, **(settings | given))
    recovering = previous is not None and bool(
        jnp.trace(previous.covariance) < 0.01 * jnp.trace(previous.overlap + previous.covariance)
    )
    samples = samples or (8192 if stderr is None else 512 if recovering else 2048)
    start: dict[str, Any] = {}
    if previous is not None and "q0" not in settings:
        start = {"q0": warm_start(previous)}
    while True:
        solution = state_evolution(model, alpha, key=key, samples=samples, **(start | settings))
        # stderr is NaN, and so not met, where state evolution did not converge
        met = stderr is None or bool(jnp.all(solution.stderr <= stderr))
        if met or 4 * samples > most or not bool(jnp.all(jnp.isfinite(solution.overlap))):
            return solution
        samples *= 4
        start = {"q0": solution.overlap}


def _pass_messages(
    model: AbstractModel,
    alpha: float,
    key: PRNGKeyArray,
    previous: Solution | None,
    dimension: int = 1000,
    store: bool = True,
    inputs: str = "gaussian",
    **settings: Any,
) -> Solution:
    """Message passing on a teacher and data of its own: no run depends on another."""
    del previous
    data_key, start_key = jax.random.split(key)
    data = model.sample(data_key, dimension=dimension, alpha=alpha, store=store, inputs=inputs)
    return gamp(model, data, key=start_key, **settings)


def _descend(
    model: AbstractModel,
    alpha: float,
    key: PRNGKeyArray,
    previous: Solution | None,
    dimension: int = 500,
    optimizer: str = "adam",
    learning_rate: float = 1e-2,
    **settings: Any,
) -> Solution:
    """Gradient descent on a teacher and data of its own: no run depends on another."""
    del previous
    data_key, start_key = jax.random.split(key)
    data = model.sample(data_key, dimension=dimension, alpha=alpha)
    step = optimizer_of(optimizer)(learning_rate)
    return train(model, data, step, key=start_key, **settings)


def optimizer_of(name: object) -> Callable[[float], optax.GradientTransformation]:
    """The optimizer of optax of that name: one that is made of a learning rate alone.

    Raises:
        ValueError: For another name; the message lists those that are allowed.
    """
    makers = {known: make for known, make in vars(optax).items() if _of_a_rate(make)}
    check(name in makers, "optimizer", name, f"one of optax: {', '.join(sorted(makers))}")
    return makers[str(name)]


def _of_a_rate(make: object) -> bool:
    """Whether something is a function of a learning rate, all of whose other arguments have
    defaults.
    """
    if not inspect.isfunction(make):
        return False
    arguments = inspect.signature(make).parameters
    needed = [
        name
        for name, argument in arguments.items()
        if argument.default is argument.empty
        and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
    ]
    return "learning_rate" in arguments and needed in ([], ["learning_rate"])


def curve(
    model: AbstractModel,
    alphas: Iterable[float],
    *,
    key: PRNGKeyArray,
    progress: bool = False,
    **settings: Any,
) -> list[Solution]:
    """State evolution at ascending α, each starting near the one before: the branch that message
    passing ends on.

    Args:
        model: The model.
        alphas: Sample complexities, ascending.
        key: The random key of all of them.
        progress: Whether to show a progress bar.
        **settings: As of `state_evolution`; with a `q0` every α starts there.

    Returns:
        One solution for each α.
    """
    solutions: list[Solution] = []
    previous: Solution | None = None
    for alpha in tqdm(alphas, desc="alpha", disable=not progress, leave=False):
        solutions.append(evolve(model, float(alpha), key, previous, **settings))
        previous = solutions[-1] if bool(solutions[-1].converged) else previous
    return solutions


@dataclasses.dataclass(frozen=True)
class Solver:
    """A solver with a name.

    Args:
        solve: (model, alpha, key, previous solution, **settings) -> Solution.
        calls: The function that it calls, whose keyword arguments are settings too.
        dimension: Dimension of a token in its runs, unless the settings say otherwise; None for
            theory.
    """

    solve: Callable[..., Solution]
    calls: Callable[..., Solution]
    dimension: int | None = None

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings: those of `solve`, and the keyword arguments of the function that
        it calls.
        """
        named = settings_of(self.solve)[0]
        passed = [
            name
            for name, argument in inspect.signature(self.calls).parameters.items()
            if argument.kind is argument.KEYWORD_ONLY and name != "key"
        ]
        return tuple(dict.fromkeys([*named, *passed]))

    def check(self, settings: Mapping[str, object]) -> None:
        """Raise a ValueError for a setting whose value can be judged before anything runs."""
        if "optimizer" in settings:
            optimizer_of(settings["optimizer"])


def settings_of(solve: Callable[..., Solution]) -> tuple[tuple[str, ...], bool]:
    """Names of the settings that a solver names itself, after its four arguments, and whether it
    takes any others.
    """
    try:
        arguments = list(inspect.signature(solve).parameters.values())[4:]
    except (TypeError, ValueError):  # a callable that does not say what it takes
        return (), True
    named = [
        argument.name
        for argument in arguments
        if argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY)
    ]
    return tuple(named), any(argument.kind is argument.VAR_KEYWORD for argument in arguments)


SOLVERS: dict[str, Solver] = {
    "state_evolution": Solver(evolve, state_evolution),
    "gamp": Solver(_pass_messages, gamp, dimension=1000),
    "train": Solver(_descend, train, dimension=500),
}
