"""The grid of a sweep, and its rows: all α at one point of the other parameters, one after another.

The random numbers of a row depend on its seed alone. They are common to all α and all parameters,
and the same in whatever order and wherever the rows are solved.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.options import Averages, Start
from jaxsmi.core.solution import Solution
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.descent.training import train
from jaxsmi.inference.curve import next_start
from jaxsmi.inference.evolution import state_evolution
from jaxsmi.inference.message_passing import gamp
from jaxsmi.models.base import AbstractModel
from jaxsmi.workbench.storage import MATRICES, MODEL_HASH, OPTIONAL, SCALARS, model_hash
from jaxsmi.workbench.storage import parameters as parameters_of

FIELDS = ("cosine", *MATRICES, *SCALARS)
_RESERVED = ("alpha", "seed", "message", "index", "index_", MODEL_HASH, *FIELDS, *OPTIONAL)
OPTIMIZERS = ("adam", "adamw", "lion", "nadam", "radam", "rmsprop", "sgd")

# Fields over those α that were solved; over all α "message", empty where solved; "seconds"
Row = dict[str, np.ndarray]
Solver = Callable[..., Solution]


class Grid:
    """A grid of problems, its arguments validated.

    Args:
        build: Makes a model of the parameters.
        alpha: Sample complexities, ascending.
        parameters: Names and their values.
        seeds: How many, or which; common to all parameters.
        solver: A name of `SOLVERS`, or a function (model, alpha, key, previous, **settings).
        settings: Keyword arguments of the solver.

    Raises:
        ValueError: For a wrong argument or setting.
    """

    def __init__(
        self,
        build: Callable[..., AbstractModel],
        alpha: Sequence[float],
        parameters: Mapping[str, Sequence[Any]] | None,
        seeds: int | Sequence[int],
        solver: str | Solver,
        settings: dict[str, Any],
    ):
        validate.function("build", build, "a function of the parameters that makes a model")
        self.build = build
        allowed = "finite numbers > 0, ascending"
        validate.array("alpha", alpha, allowed, interval=POSITIVE)
        numbers = np.atleast_1d(np.asarray(alpha, float))  # float64 whatever the precision of JAX
        check(numbers.ndim == 1 and np.all(np.diff(numbers) > 0), "alpha", alpha, allowed)
        self.alpha: list[float] = numbers.tolist()
        axes = {} if parameters is None else parameters
        validate.instance("parameters", axes, Mapping, "values by name")
        self.axes = {name: _axis(name, values) for name, values in axes.items()}
        _check_names(build, list(self.axes))
        self.seeds: list[int] = _seeds(seeds)
        known = solver in SOLVERS if isinstance(solver, str) else callable(solver)
        check(known, "solver", solver, f"one of {tuple(SOLVERS)}, or a function")
        self.solver = solver
        names, others = setting_names(solver)
        unknown = ", ".join(name for name in settings if name not in names)
        own = f"settings of this solver: {', '.join(names) or 'none'}; of the sweep itself: seeds, "
        own += "out, scheduler, progress"
        check(others or not unknown, "settings", unknown, own)
        if isinstance(solver, str) and "optimizer" in settings:
            make_optimizer(settings["optimizer"])
        self.settings = settings

    @property
    def rows(self) -> list[tuple[dict[str, Any], int]]:
        """Parameters and seed of each row."""
        values = itertools.product(*self.axes.values())
        points = [dict(zip(self.axes, point, strict=True)) for point in values]
        return list(itertools.product(points, self.seeds))

    def check_models(self) -> None:
        """Raise the error of `build` at the first point where no point of the grid has a model."""
        others = self.rows[:: len(self.seeds)]
        while others:
            try:
                self.build(**others.pop()[0])
                return
            except Exception:
                if not others:
                    raise

    def solve(self, number: int) -> Row:
        """Solve a row; an α that fails has no fields, but a message."""
        values, seed = self.rows[number]
        solver = SOLVERS[self.solver][0] if isinstance(self.solver, str) else self.solver
        # common to all α and points: differences along a curve are not those of the random numbers
        key = jax.random.fold_in(jax.random.key(0), seed)
        begin = time.perf_counter()
        solutions: list[Row] = []
        messages: list[str] = []
        previous: Solution | None = None
        model: AbstractModel | None = None
        for alpha in self.alpha:
            try:
                model = self.build(**values) if model is None else model
                solution = solver(model, alpha, key, previous, **self.settings)
                solutions.append(_fields(solution) | {MODEL_HASH: np.asarray(model_hash(model))})
                messages.append("")
                # a start that did not converge would carry its error on to every later α
                previous = solution if bool(solution.converged) else previous
            except Exception as failure:  # user code runs here: no failure may end the sweep
                messages.append(f"{type(failure).__name__}: {failure}".splitlines()[0])
        row = {name: np.stack([x[name] for x in solutions]) for name in (solutions or [{}])[0]}
        seconds = np.asarray(time.perf_counter() - begin)
        return row | {"message": np.array(messages, str), "seconds": seconds}

    def data_bytes(self) -> int:
        """Bytes of the largest data set; 0 for a solver that draws none."""
        if self.solver not in ("gamp", "train"):
            return 0
        own = ("store", "inputs") if self.solver == "gamp" else ()
        options = {name: self.settings[name] for name in own if name in self.settings}
        # the defaults of _pass_messages and _descend
        size = self.settings.get("dimension", 1000 if self.solver == "gamp" else 500)
        largest = 0
        options |= {"dimension": size, "alpha": self.alpha[-1]}
        for values, _ in self.rows[:: len(self.seeds)]:
            with contextlib.suppress(ValueError):  # a point that cannot be made has no data
                draw = functools.partial(self.build(**values).sample, **options)
                arrays = jax.tree.leaves(jax.eval_shape(draw, jax.random.key(0)))
                largest = max(largest, sum(x.size * x.dtype.itemsize for x in arrays))
        return largest

    def description(self) -> dict[str, Any]:
        """All that decides the numbers, ready for JSON: axes, settings, solver, precision, and the
        models at the first and the last point."""
        corners = []
        for values, _ in (self.rows[0], self.rows[-1]):
            try:
                corners.append(parameters_of(self.build(**values)))
            except Exception as failure:  # the row says so, too
                corners.append(f"{type(failure).__name__}: {failure}")
        described: dict[str, object] = dict(vars(self))
        del described["build"]
        if not isinstance(self.solver, str):
            described["solver"] = _source(self.solver)
        described |= {"models": corners, "x64": jax.config.values["jax_enable_x64"]}
        return parameters_of(described, largest=np.inf)


def _axis(name: str, values: Sequence[Any]) -> list[Any]:
    free = isinstance(name, str) and name not in _RESERVED
    check(free, "parameters", name, f"names other than {', '.join(_RESERVED)}")
    allowed = "at least one value, each once"
    axis = validate.sequence(f"parameters[{name!r}]", values, allowed)
    # the repr of a module leaves out large arrays, its parameters do not
    distinct = {f"{value!r} {parameters_of(value, np.inf)}" for value in axis}
    check(len(distinct) == len(axis), f"parameters[{name!r}]", values, allowed)
    return axis


def _check_names(build: Callable[..., AbstractModel], names: list[str]) -> None:
    """Refuse parameters that `build` does not take, and some that it needs."""
    try:
        signature = inspect.signature(build)
    except ValueError:  # some functions written in C have no signature
        return
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError:
        own = ", ".join(signature.parameters) or "none"
        given = ", ".join(names) or "none"
        check(False, "parameters", given, f"the arguments of build: {own}")


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, (list, tuple, range, np.ndarray)):
        allowed = "integers from 0 to 2^32 - 1, each once"  # the range of jax.random.fold_in
        numbers = validate.sequence("seeds", list(seeds), allowed, validate.count, 0, 2**32 - 1)
        check(len(set(numbers)) == len(numbers), "seeds", seeds, allowed)
        return numbers
    return list(range(validate.count("seeds", seeds)))


def _fields(solution: Solution) -> Row:
    own = [name for name in OPTIONAL if getattr(solution, name, None) is not None]
    return {name: np.asarray(getattr(solution, name)) for name in (*FIELDS, *own)}


def _source(function: Solver) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # typed at a prompt, or a callable object
        return repr(type(function))


def evolve(
    model: AbstractModel,
    alpha: float,
    key: PRNGKeyArray,
    previous: Solution | None,
    stderr: float | None = None,
    most: int = 2**15,
    averages: Averages | None = None,
    **settings: Any,
) -> Solution:
    """State evolution from next to the previous α, with four times the points until all standard
    errors are below `stderr` or `most` points are used."""
    if model.channel.closed_form:  # exact: nothing to average, and a root instead of an iteration
        return state_evolution(model, alpha, key=key, averages=averages, **settings)
    averages = Averages.of(averages)
    recovered = previous is not None and bool(
        jnp.trace(previous.covariance) < 0.01 * jnp.trace(previous.overlap + previous.covariance)
    )
    # empirical: next to perfect recovery few points suffice, and each costs most there
    points = averages.points or (8192 if stderr is None else 512 if recovered else 2048)
    start: dict[str, Any] = {}
    if previous is not None and "start" not in settings:
        start = {"start": next_start(previous, Start())}
    while True:
        sizes = Averages(points, averages.nets)
        solution = state_evolution(model, alpha, key=key, averages=sizes, **(start | settings))
        # stderr is NaN, and not met, where state evolution did not converge
        met = stderr is None or bool(jnp.all(solution.stderr <= stderr))
        if met or 4 * points > most or not bool(jnp.all(jnp.isfinite(solution.overlap))):
            return solution
        # the error falls as 1/√points or faster: four times as many halve it at least
        points *= 4
        start = {"start": next_start(solution, Start())}


def _pass_messages(
    model: AbstractModel,
    alpha: float,
    key: PRNGKeyArray,
    _: Solution | None,
    dimension: int = 1000,
    store: bool = True,
    inputs: str = "gaussian",
    **settings: Any,
) -> Solution:
    """Message passing on a teacher and data of its own."""
    data_key, start_key = jax.random.split(key)
    data = model.sample(data_key, dimension=dimension, alpha=alpha, store=store, inputs=inputs)
    return gamp(model, data, key=start_key, **settings)


def _descend(
    model: AbstractModel,
    alpha: float,
    key: PRNGKeyArray,
    _: Solution | None,
    dimension: int = 500,
    optimizer: str = "adam",
    learning_rate: float = 1e-2,
    **settings: Any,
) -> Solution:
    """Gradient descent on a teacher and data of its own."""
    data_key, start_key = jax.random.split(key)
    data = model.sample(data_key, dimension=dimension, alpha=alpha)
    return train(model, data, make_optimizer(optimizer, learning_rate), key=start_key, **settings)


def make_optimizer(
    optimizer: str = "sgd",
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Make an optimizer of optax.

    Args:
        optimizer: adam, adamw, lion, nadam, radam, rmsprop or sgd. Default sgd.
        learning_rate: Learning rate of the optimizer. Default 0.1.
        momentum: Share of the last step's velocity that is kept, in [0, 1). Default 0.
        weight_decay: Factor of the weights that is added to their gradient; of adamw and lion to
            the step, which is then scaled by the learning rate (decoupled decay). Default 0.
    """
    name = validate.choice("optimizer", optimizer, OPTIMIZERS)
    make = getattr(optax, name)
    velocity = optax.trace(momentum) if momentum else optax.identity()
    if name in ("adamw", "lion"):  # optax's own default decays the weights
        return optax.chain(velocity, make(learning_rate, weight_decay=weight_decay))
    # decay before momentum, as in torch's SGD: the decayed gradient is what is accumulated
    decay = optax.add_decayed_weights(weight_decay)
    return optax.chain(decay, velocity, make(learning_rate))


# name -> the function that solves a point, and the public one whose keywords it passes on
SOLVERS: dict[str, tuple[Solver, Solver]] = {
    "state_evolution": (evolve, state_evolution),
    "gamp": (_pass_messages, gamp),
    "train": (_descend, train),
}


def setting_names(solver: str | Solver) -> tuple[list[str], bool]:
    """Names of the settings of a solver, and True if it takes any others."""
    own, called = SOLVERS[solver] if isinstance(solver, str) else (solver, None)
    # the first four are (model, alpha, key, previous), and the sweep passes them
    signature = validate.call_user_function("solver", inspect.signature, "a function", own)
    arguments = list(signature.parameters.values())[4:]
    open_ended = called is None and any(x.kind is x.VAR_KEYWORD for x in arguments)
    if called is not None:
        passed_on = inspect.signature(called).parameters.values()
        arguments += [x for x in passed_on if x.kind is x.KEYWORD_ONLY and x.name != "key"]
    names = dict.fromkeys(x.name for x in arguments if x.kind is not x.VAR_KEYWORD)
    return list(names), open_ended
