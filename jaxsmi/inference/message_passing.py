r"""Generalised approximate message passing on a data set: one engine for every model.

The step is in iteration.py, the loop in core/driver.py. Here: where a run starts, when it is tried
again with more damping, and what its end means.

    start       Ŵ ~ size × N(0, 1), C = S: a tiny start says nothing, and grows as theory says
    informed    the posterior mean given √λ W* + √(1-λ) ξ, λ = 0.99
    the end     V that falls to zero is perfect recovery only if the estimate reproduces the labels

Source: [Rangan11], [TCDKZ25], [theory: multi-index, Eqs. (31) to (41)].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray, PyTree

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import FRACTION, POSITIVE, Ability, Arguments, check
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Record, Run, drive, ready
from jaxsmi.core.results import Solution
from jaxsmi.inference.iteration import GampIteration, GampState, Position, SideInformation
from jaxsmi.models.base import AbstractModel, model_argument

__all__ = ["GampState", "gamp"]

_INFORMED = 0.99  # side information λ of an informed start
_MISFIT = 4.0  # a ratio of labels' distances: V is off by as much
_LOST = (Result.DIVERGED, Result.NONFINITE, Result.OVERCONFIDENT)
_STRETCH = 2  # steps between two looks at a run with a progress bar


def gamp(
    model: AbstractModel,
    data: Dataset,
    *,
    key: PRNGKeyArray | None = None,
    max_steps: int = 100,
    tolerance: ArrayLike = 1e-4,
    damping: ArrayLike | None = None,
    precision: str | None = None,
    calibrate: bool | None = None,
    init: ArrayLike | str = 1e-3,
    side_information: ArrayLike = 0.0,
    record: Record | Callable[[GampState], PyTree] | None = None,
    state: GampState | None = None,
    progress: bool = False,
) -> Solution:
    r"""Bayes-optimal message passing on a data set: learns W from inputs and labels.

        ω = Ŵ x/√D - C g,   g = channel(y, ω, C),   Ŵ, C = prior(Σ g x/√D + A Ŵ, A)

    A start of order one with C = S, or C from ∂g, ends overconfident with the first layer
    unlearned: start tiny, undamped.

    Args:
        model: Any model with a posterior.
        data: N samples, inputs float32 or float64 (labels of noiseless attention float64), with or
            without a teacher.
        key: Random key of the start, and of channels that sample; required.
        max_steps: Steps at most. Default 100.
        tolerance: On the change of Ŵ in a step (before damping), relative to Ŵ. Default 1e-4.
        damping: Of Ŵ, C and the Onsager term, in [0, 1). None: the model's own; for indices 0,
            which follows state evolution step by step; matrices start again with more where a run
            diverges (outside jit): history["damping"] says what it was.
        precision: How A is estimated: "controlled", "outer", "divergence" or "state" (that of state
            evolution at the current V). None: the model's own; indices "controlled", matrices
            "state", but for hardmax.
        calibrate: Whether A and b are calibrated by the data. None: the model's own; always for
            indices, never for matrices.
        init: Size of a random start, a number > 0 (default 1e-3: uninformative), "informed" (the
            posterior mean given the teacher seen with side information 0.99), or the signal itself,
            (P, D).
        side_information: λ in [0, 1): the run also sees √λ W* + √(1-λ) noise, and starts from what
            that says. Default 0.
        record: A function of a `GampState`, kept in history["record"]; or a `Record` that also says
            how often.
        state: Continue from the `state` of a solution.
        progress: Show a bar on stderr. Default False.

    Returns:
        A `Solution` with `weights` Ŵ, `overlap` Q = ŴŴᵀ/D, `covariance` C, `error` (plug-in, NaN
        without a teacher), `state`, and `history` with "step", "overlap", "teacher_overlap" M,
        "cosine", "covariance", "residual", "damping", "inaccurate", "misfit" of the labels where V
        was widened by it, else 1. Of matrix models `weights` is Ŝ
        (d, d), `overlap` Tr Ŝ²/d, `error` ‖Ŝ - S*‖²/d. Codes: SUCCESS, RECOVERED, MAX_STEPS,
        DIVERGED, NONFINITE, INACCURATE, OVERCONFIDENT; a diverged run keeps its history.

    Raises:
        ValueError: Outside jit, for arguments out of range, shapes that do not fit, labels the
            channel cannot produce, a model without a posterior. Inside jit: NaN, and the code
            INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, key = smi.links.linear(0.1), jax.random.key(0)
        >>> sol = smi.gamp(model, model.sample(key, dimension=200, alpha=3.0), key=key)
        >>> bool(sol.converged), bool(sol.overlap[0, 0] > 0.8)
        (True, True)

    Cost:
        Per step two passes over the N·M·D inputs and N posteriors; memory O(N M (D + P)). Of
        matrices N T d² operations and an eigendecomposition, 4096 samples at a time.

    Source:
        [Rangan11], [TCDKZ25], [theory: multi-index, section 4].
    """
    model = model_argument(model, Ability.INFERENCE)
    arguments = Arguments()
    max_steps = arguments.count("max_steps", max_steps)
    tolerance = arguments.number("tolerance", tolerance, POSITIVE)
    chosen = model.dampings[0] if damping is None else damping
    function, every = Record.of(record)
    options = _Options(
        damping=arguments.number("damping", chosen, FRACTION),
        tolerance=tolerance,
        precision=arguments.choice("precision", precision or model.precisions[0], model.precisions),
        calibrate=_calibrated(model, calibrate),
        record=function,
        every=every,
        max_steps=max_steps,
    )
    strength = arguments.number("side_information", side_information, FRACTION)
    progress = arguments.flag("progress", progress)
    _check_data(model, data, state)
    key = arguments.key("key", key)
    # another stream than that of `sample`: with one key for both, the start would be the teacher
    *start_keys, run_key = jax.random.split(jax.random.fold_in(key, 1), 3)
    aided = not isinstance(side_information, (int, float)) or side_information != 0
    start, side = _start(model, data, start_keys, init, strength if aided else None, arguments)
    problem = _problem(model, data, start if state is None else state, side, run_key, options)
    valid = arguments.valid & model.valid
    end = _run(problem, options, progress, key, valid)
    for more in model.dampings[1:] if damping is None else ():  # where the run can be looked at
        if not (concrete(end.result) and int(end.result) in _LOST):
            break
        again = eqx.tree_at(lambda p: p.damping, problem, jnp.asarray(more, theory_dtype()))
        end = _run(again, options, progress, key, valid)
    return end


class _Options(NamedTuple):
    """How a run goes, checked."""

    damping: Array
    tolerance: Array
    precision: str
    calibrate: bool
    record: Callable[[GampState], PyTree] | None
    every: int
    max_steps: int


def _calibrated(model: AbstractModel, calibrate: bool | None) -> bool:
    """Whether a run calibrates; refused where the model cannot."""
    if calibrate is None:
        return model.calibrated
    Arguments().flag("calibrate", calibrate)
    check(model.calibrated or not calibrate, "calibrate", calibrate, "False for this model")
    return bool(calibrate)


def _check_data(model: AbstractModel, data: Dataset, state: GampState | None) -> None:
    """Raise a ValueError for data, labels or a state that do not fit the model."""
    Arguments().instance(
        "data", data, Dataset, "a Dataset: model.sample(..) or smi.Dataset(inputs, labels)"
    )
    signal, fields = model.shapes(data)
    model.channel.check_labels(data.labels)
    if state is not None:
        allowed = "the state of a Solution of gamp: solution.state"
        Arguments().instance("state", state, GampState, allowed)
        expected = f"the state of a run with weights {signal}"
        check(state.weights.shape == signal, "state", state.weights, expected)
        expected = f"the state of a run on {data.samples} samples"
        check(state.g.shape == fields, "state", state.g, expected)


def _start(
    model: AbstractModel,
    data: Dataset,
    keys: list[PRNGKeyArray],
    init: ArrayLike | str,
    strength: Array | None,
    arguments: Arguments,
) -> tuple[GampState, SideInformation]:
    """The state before the first step, and side information of that strength (None: none)."""
    dtype = theory_dtype()
    signal, fields = model.shapes(data)
    start_key, side_key = keys
    P = model.indices
    prior = model.prior
    side = SideInformation(jnp.zeros((P, P), dtype), jnp.zeros(signal, dtype))
    scale, given = _scale_or_signal(init, signal, strength is not None, arguments)
    if given is None or strength is not None:
        check(
            data.teacher is not None,
            "data.teacher",
            None,
            "a teacher, for side information or an informed start",
        )
        assert data.teacher is not None
        teacher = model.signal(data.teacher)
        if strength is not None:
            side = SideInformation(*prior.side_information(side_key, teacher, strength))
        if given is None:
            A, b = prior.side_information(side_key, teacher, jnp.asarray(_INFORMED, dtype))
            weights, covariance = prior.posterior(b, A)
        else:  # a start of exactly zero (λ = 0, traced) would be a fixed point of even labels
            weights, covariance = prior.posterior(side.fields, side.precision)
            weights = weights + scale * jax.random.normal(start_key, signal, dtype)
    else:
        weights, covariance = prior.start(start_key, signal, scale)
    if given is not None and given.ndim:
        weights = given
    nothing = jnp.zeros(fields, dtype)
    state = GampState(
        weights=weights,
        covariance=covariance,
        onsager=covariance,
        g=nothing,
        omega=nothing,
        precision=0.0 * side.precision,
        step=jnp.zeros((), int),
    )
    return state, side


def _scale_or_signal(
    init: ArrayLike | str, signal: tuple[int, ...], aided: bool, arguments: Arguments
) -> tuple[Array, Array | None]:
    """The scale of a random start (0 where it is not random), and what was given: a number, the
    signal itself, or None for "informed". `aided`: side information makes the start not zero."""
    nothing = jnp.zeros((), theory_dtype())
    allowed = f"a positive number, 'informed', or an array {signal}"
    if isinstance(init, str):
        check(init == "informed", "init", init, allowed)
        return nothing, None
    given = arguments.array("init", init, allowed)
    check(given.shape in ((), signal), "init", given, allowed)
    if given.ndim:
        return nothing, given
    enough = (given >= 0) if aided else (given > 0)
    allowed = "a positive number (0 is a fixed point of an even label)"
    arguments.condition(enough, "init", given, allowed)
    return given, given


def _problem(
    model: AbstractModel,
    data: Dataset,
    start: GampState,
    side: SideInformation,
    key: PRNGKeyArray,
    options: _Options,
) -> GampIteration:
    """The solver of a run."""
    return GampIteration(
        model=model,
        data=data,
        start=start,
        statistic=_statistic(model.channel, data.labels),
        side=side,
        damping=options.damping,
        tolerance=options.tolerance,
        key=key,
        record=options.record,
        mesh=data.mesh,
        precision=options.precision,
        calibrate=options.calibrate,
        max_steps=options.max_steps,
    )


@eqx.filter_jit
def _statistic(channel: AbstractChannel, labels: Array) -> Array:
    return channel.statistic(labels)


def _run(
    problem: GampIteration, options: _Options, progress: bool, key: PRNGKeyArray, valid: Array
) -> Solution:
    """One run to its end, with or without a progress bar."""
    every = options.every
    steps = options.max_steps
    data = problem.data
    run = ready(problem, steps // every)
    running = eqx.tree_at(lambda p: p.start, problem, None)
    label = f"GAMP, D={data.dimension}, N={data.samples}" if progress else None
    end = drive(running, run, steps, every=every, label=label, stretch=_STRETCH)
    return _solution(running, end, key, valid)


def _overconfident(problem: GampIteration, end: Run[Position]) -> Array:
    """Whether a run ended quietly with labels that are missed by more than V explains.

    A run that is not calibrated does not compare them on its way: V falling to zero is then
    recovery only if the estimate reproduces the labels.
    """
    quiet = (end.result == Result.SUCCESS) | (end.result == Result.RECOVERED)
    if problem.compares:
        return quiet & (end.state.misfit > _MISFIT)
    labels = problem.data.labels
    outputs = jax.vmap(problem.model.link)(problem.fields(end.state.state))
    missed = jnp.mean((outputs - labels) ** 2)
    spread = jnp.mean((labels - jnp.mean(labels, 0)) ** 2)
    return (end.result == Result.RECOVERED) & ~(missed < 0.05 * spread)


@eqx.filter_jit
def _solution(
    problem: GampIteration, end: Run[Position], key: PRNGKeyArray, valid: Array
) -> Solution:
    """What the end of a run means."""
    model = problem.model
    data = problem.data
    state = end.state.state
    P = model.indices
    Q = model.overlaps(state.weights, None)["overlap"]
    error = model.error_of(state.weights, data, key=jax.random.fold_in(problem.key, 1))
    code = jnp.where(_overconfident(problem, end), int(Result.OVERCONFIDENT), end.result)
    code = jnp.where(valid, code, int(Result.INVALID))
    lost = ~valid | (code == Result.NONFINITE)
    Q, error = (jnp.where(lost, jnp.nan, x) for x in (Q, error))
    masked = lambda x: jnp.where(valid, x, jnp.nan)
    return Solution(
        overlap=Q,
        stderr=jnp.zeros((P, P), Q.dtype),
        error=error,
        alpha=jnp.asarray(model.sensing(data).alpha, Q.dtype),
        steps=state.step,
        residual=end.state.residual,
        result=code,
        history=jax.tree.map(masked, end.history),
        covariance=masked(state.covariance),
        rho=jnp.asarray(jnp.nan, Q.dtype),
        weights=masked(model.estimate(state.weights)),
        state=state,
        model=model,
        key=key,
        kind="gamp",
    )
