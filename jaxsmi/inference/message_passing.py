r"""Generalised approximate message passing on a data set: one engine for every model.

The step is in iteration.py, the start in starts.py, the damping in pace.py, the loop in
core/driver.py. Here: when a run is tried again with more damping, when it goes on, and what its
end means.

    goes on     where it stands still and labels tell of directions that it does not know (outside
                jit, after a spectral start)
    the end     V that falls to zero is perfect recovery only if the estimate reproduces the labels
    lost        a run of which a row has less in common with its spectral estimate than theory says,
                or has learned less, gives back its start

Source: [Rangan11], [TCDKZ25], [theory: multi-index, Eqs. (31) to (41)].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, concrete, is_zero, theory_dtype
from jaxsmi.core.border import (
    anything,
    checked,
    flag,
    instance,
    optional,
    random_key,
    scalar,
    text,
    whole,
)
from jaxsmi.core.checks import FRACTION, POSITIVE, Arguments, check
from jaxsmi.core.codes import RUNNING, Result
from jaxsmi.core.data import Dataset, is_dataset
from jaxsmi.core.driver import Record, Run, drive, is_record, ready
from jaxsmi.core.results import Solution
from jaxsmi.inference import starts
from jaxsmi.inference.assumptions import warn_of_inputs
from jaxsmi.inference.iteration import GampIteration, GampState, Position
from jaxsmi.inference.learner_passing import Plan, learned, statistic_of
from jaxsmi.inference.matrix_learner import matrix_learned
from jaxsmi.learners.base import AbstractLearner, Bayes
from jaxsmi.learners.matrix_erm import MatrixErm
from jaxsmi.models.base import AbstractModel, check_data, is_model, model_argument

__all__ = ["GampState", "gamp"]

_KEPT = 0.5  # of what a spectral estimate has in common with itself
_SMALL = 1e-6  # of the whole estimate: a row that is none
_MISFIT = 4.0  # a ratio of labels' distances: V is off by as much
_AGAIN = (Result.DIVERGED, Result.NONFINITE, Result.OVERCONFIDENT)


@checked(
    model=is_model,
    data=is_dataset,
    key=optional(random_key),
    learner=anything,
    max_steps=whole(),
    tolerance=scalar(POSITIVE),
    damping=optional(scalar(FRACTION)),
    precision=optional(text),
    calibrate=optional(flag),
    init=anything,
    side_information=scalar(FRACTION),
    record=is_record,
    state=optional(instance(GampState, "the state of a Solution of gamp: solution.state")),
    progress=optional(flag),
)
def gamp(
    model: AbstractModel,
    data: Dataset,
    *,
    key: PRNGKeyArray | None = None,
    learner: AbstractLearner | MatrixErm | None = None,
    max_steps: int = 300,
    tolerance: ArrayLike = 1e-4,
    damping: ArrayLike | None = None,
    precision: str | None = None,
    calibrate: bool | None = None,
    init: ArrayLike | str | None = None,
    side_information: ArrayLike = 0.0,
    record: Record | Callable[[GampState], PyTree] | None = None,
    state: GampState | None = None,
    progress: bool = False,
) -> Solution:
    r"""Bayes-optimal message passing on a data set: learns W from inputs and labels.

        ω = Ŵ x/√D - C g,   g = channel(y, ω, C),   Ŵ, C = prior(Σ g x/√D + A Ŵ, A)

    It starts from the spectral estimate where there is one, follows state evolution step by step,
    and is damped once nothing grows. Where it stands still and knows nothing of some directions, a
    spectral estimate of these is added if labels tell of them. It assumes inputs of iid entries,
    mean zero, variance one, of any law: stored ones that are far from that are warned of, with the
    remedy (`data.second_moments()`).

    Args:
        model: Any model with a posterior.
        data: N samples, inputs float32 or float64 (labels of noiseless attention float64), with or
            without a teacher.
        key: Random key of the start, and of channels that sample; required.
        learner: Who learns, if not Bayes: `smi.Erm` (the run ends at a stationary point of its
            risk) or `smi.Mismatched`; of a matrix `smi.MatrixErm`. Default None.
        max_steps: Steps at most. Default 300.
        tolerance: On the change of Ŵ in a step (before damping), relative to Ŵ. Default 1e-4.
        damping: Of Ŵ, C and the memory of the Onsager term, in [0, 1). None: of indices 0, which
            follows state evolution step by step, and more once nothing grows and nothing converges;
            of matrices the model's own, and more in another run where one diverges (outside jit).
            history["damping"] says what it was.
        precision: How A is estimated: "controlled", "outer", "divergence" or "state" (that of state
            evolution at the current V). None: the model's own; indices "controlled", matrices
            "state", but for hardmax; of a learner "divergence" (of a matrix "state").
        calibrate: Whether A and b are calibrated by the data. None: the model's own; always for
            indices, never for matrices.
        init: "spectral" (the estimate of `smi.spectral`, and a random 1e-3 beside it), the size of
            a random start, a number > 0 (1e-3 is uninformative; larger ones with C = S end
            overconfident), "informed" (the posterior mean given the teacher seen with side
            information 0.99; of a learner the teacher), or the signal itself, (P, D). Default None:
            "spectral" where labels do not change with the sign of the fields, 1e-3 where they do or
            where anything else starts the run (side information, `state`), for matrices, and inside
            jit where numbers of the model itself are traced; of a learner 0.5.
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
        was widened by it, else 1. Of matrix models `weights` is Ŝ (d, d), `overlap` Tr Ŝ²/d,
        `error` ‖Ŝ - S*‖²/d. Codes: SUCCESS, RECOVERED, MAX_STEPS,
        DIVERGED, NONFINITE, INACCURATE, OVERCONFIDENT (the labels are missed by more than V says),
        LOST (a row left its spectral estimate behind; weights, covariance and state are those of
        the start); a diverged run keeps its history. After a spectral start of one index the prior
        of `model` has the norm that the labels tell.

    Raises:
        ValueError: Outside jit, for arguments out of range, shapes that do not fit, labels the
            channel cannot produce, a model without a posterior, init="spectral" of a matrix model
            or of labels that tell W at first order. Inside jit: NaN, and the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, key = smi.links.linear(0.1), jax.random.key(0)
        >>> sol = smi.gamp(model, model.sample(key, dimension=200, alpha=3.0), key=key)
        >>> bool(sol.converged), bool(sol.overlap[0, 0] > 0.8)
        (True, True)

    Cost:
        Per step two passes over the N·M·D inputs and N posteriors; memory O(N M (D + P)); a
        spectral start that of `spectral`, and about as much compilation again. Of
        matrices N T d² operations and an eigendecomposition, 4096 samples at a time.

    Source:
        [Rangan11], [TCDKZ25], [theory: multi-index, section 4].
    """
    model = model_argument(model, None if learner is not None else "inference")
    arguments = Arguments()
    tolerance = arguments.number("tolerance", tolerance, POSITIVE)
    settings = model.design.message_passing
    chosen = settings.dampings[0] if damping is None else damping
    function, every = Record.of(record)
    warn_of_inputs(model, data)
    if learner is not None:
        _check_beside(learner, precision, calibrate, side_information)
        weight = arguments.number("damping", chosen, FRACTION)
        free = damping is None
        plan = Plan(init, state, weight, free, tolerance, function, every, max_steps, progress)
        if isinstance(learner, MatrixErm):
            return matrix_learned(model, data, learner, arguments.key("key", key), plan, arguments)
        return learned(model, data, learner, arguments.key("key", key), plan, arguments)
    options = _Options(
        damping=arguments.number("damping", chosen, FRACTION),
        tolerance=tolerance,
        precision=arguments.choice(
            "precision", precision or settings.precisions[0], settings.precisions
        ),
        calibrate=_calibrated(model, calibrate),
        adaptive=damping is None and len(settings.dampings) == 1,
        record=function,
        every=every,
        max_steps=max_steps,
    )
    strength = arguments.number("side_information", side_information, FRACTION)
    data = _check_data(model, data, state)
    key = arguments.key("key", key)
    # another stream than that of `sample`: with one key for both, the start would be the teacher
    *start_keys, run_key = _streams(key)
    aided = not isinstance(side_information, (int, float)) or side_information != 0
    start = starts.begin(
        model, data, start_keys, init, strength if aided else None, state, arguments
    )
    problem = _problem(start, data, run_key, options)
    valid = arguments.valid & validate.valid(model)
    end = _run(problem, options, progress, key, valid)
    for more in settings.dampings[1:] if damping is None else ():  # where the run can be looked at
        if not (concrete(end.result) and int(end.result) in _AGAIN):
            break
        again = eqx.tree_at(lambda p: p.damping, problem, jnp.asarray(more, theory_dtype()))
        end = _run(again, options, progress, key, valid)
    return end


@jax.jit
def _streams(key: PRNGKeyArray) -> tuple[PRNGKeyArray, ...]:
    """The keys of the start, of its side information, and of the run."""
    keys = jax.random.split(jax.random.fold_in(key, 1), 3)
    return keys[0], keys[1], keys[2]


class _Options(NamedTuple):
    """How a run goes, checked."""

    damping: Array
    tolerance: Array
    precision: str
    calibrate: bool
    adaptive: bool
    record: Callable[[GampState], PyTree] | None
    every: int
    max_steps: int


def _calibrated(model: AbstractModel, calibrate: bool | None) -> bool:
    """Whether a run calibrates; refused where the model cannot."""
    if calibrate is None:
        return model.design.message_passing.calibrated
    Arguments().flag("calibrate", calibrate)
    able = model.design.message_passing.calibrated
    check(able or not calibrate, "calibrate", calibrate, "False for this model")
    return bool(calibrate)


def _check_beside(
    learner: AbstractLearner | MatrixErm,
    precision: str | None,
    calibrate: bool | None,
    side_information: ArrayLike,
) -> None:
    """Raise a ValueError for settings that hold for Bayes alone."""
    own = "state" if isinstance(learner, MatrixErm) else "divergence"
    allowed = f"{own!r} with this learner (others assume the Nishimori line)"
    check(precision in (None, own), "precision", precision, allowed)
    check(calibrate in (None, False), "calibrate", calibrate, "False with a learner")
    check(is_zero(side_information), "side_information", side_information, "0 with a learner")


def _check_data(model: AbstractModel, data: Dataset, state: GampState | None) -> Dataset:
    """The data; a ValueError for data, labels or a state that do not fit the model."""
    data = check_data(model, data)
    signal, fields = model.design.shapes(data.inputs.shape)
    model.channel.check_labels(data.labels)
    if state is not None:
        expected = f"the state of a run with weights {signal}"
        check(state.weights.shape == signal, "state", state.weights, expected)
        expected = f"the state of a run on {data.samples} samples"
        check(state.g.shape == fields, "state", state.g, expected)
    return data


def _problem(
    start: starts.Start, data: Dataset, key: PRNGKeyArray, options: _Options
) -> GampIteration:
    """The solver of a run."""
    learner = Bayes(start.model)
    return GampIteration(
        model=start.model,
        learner=learner,
        data=data,
        start=start.state,
        spectral=start.spectral,
        statistic=statistic_of(learner, data.labels),
        side=start.side,
        damping=options.damping,
        tolerance=options.tolerance,
        key=key,
        record=options.record,
        mesh=data.mesh,
        precision=options.precision,
        calibrate=options.calibrate,
        adaptive=options.adaptive,
        max_steps=options.max_steps,
    )


def _run(
    problem: GampIteration, options: _Options, progress: bool, key: PRNGKeyArray, valid: Array
) -> Solution:
    """One run to its end, with or without a progress bar."""
    every = options.every
    steps = options.max_steps
    data = problem.data
    run = ready(problem, steps // every)
    label = f"GAMP, D={data.dimension}, N={data.samples}" if progress else None
    for more in range(problem.model.indices - 1, -1, -1):
        running = eqx.tree_at(lambda p: p.start, problem, None)
        run = drive(running, run, steps, every=every, label=label)
        following = _following(problem, run, jax.random.fold_in(key, 2 + more)) if more else None
        if following is None:
            break
        problem = following
        run = Run(_restarted(problem), run.step, jnp.full_like(run.result, RUNNING), run.history)
    return _solution(problem, run, key, valid)


def _following(
    problem: GampIteration, run: Run[Position], key: PRNGKeyArray
) -> GampIteration | None:
    """The solver that goes on from a run that stands still, with a spectral estimate of directions
    that it does not know; None where there is none, or no such start, or inside jit."""
    if problem.spectral is None or not concrete(run.result):
        return None
    if int(run.result) not in (Result.SUCCESS, Result.INACCURATE):
        return None
    state = run.state.state
    more = starts.further(problem.model, problem.data, state, problem.spectral, key)
    if more is None:
        return None
    start, estimate = more
    return dataclasses.replace(problem, start=start, spectral=estimate)


@eqx.filter_jit
def _restarted(problem: GampIteration) -> Position:
    return problem.init()


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


def _lost(start: Array, W: Array) -> Array:
    """Whether a row has left its spectral estimate Ŵ_s behind: of posterior means and what the same
    data say of them, Ŵ Ŵ_sᵀ/D = Ŵ_s Ŵ_sᵀ/D, and Ŵ Ŵᵀ/D is not smaller."""
    known = jnp.sum(start**2, axis=1)
    common = jnp.sum(W * start, axis=1)
    least = jnp.minimum(common, jnp.sum(W**2, axis=1))
    return jnp.any((least < _KEPT * known) & (known > _SMALL * jnp.sum(known)))


def _ending(
    history: dict[str, Array], overlaps: dict[str, Array], covariance: Array
) -> dict[str, Array]:
    """The history with what is returned as its last record."""
    last = jnp.sum(jnp.isfinite(history["step"])) - 1
    returned = {**overlaps, "covariance": covariance}
    return history | {k: history[k].at[last].set(x) for k, x in returned.items()}


@eqx.filter_jit
def _solution(
    problem: GampIteration, end: Run[Position], key: PRNGKeyArray, valid: Array
) -> Solution:
    """What the end of a run means."""
    model = problem.model
    data = problem.data
    state = end.state.state
    steps = state.step
    P = model.indices
    code = jnp.where(_overconfident(problem, end), int(Result.OVERCONFIDENT), end.result)
    history = end.history
    if problem.spectral is not None:
        broken = (code == Result.NONFINITE) | (code == Result.DIVERGED)
        lost = _lost(problem.spectral, state.weights) & ~broken
        code = jnp.where(lost, int(Result.LOST), code)
        state = jax.tree.map(lambda a, b: jnp.where(lost, a, b), problem.start, state)
        overlaps = model.metric.overlaps(state.weights, data.teacher)
        history = _ending(history, overlaps, state.covariance)
    weights = state.weights
    Q = model.metric.overlaps(weights, None)["overlap"]
    error = model.metric.error(weights, data, key=jax.random.fold_in(problem.key, 1))
    code = jnp.where(valid, code, int(Result.INVALID))
    nothing = ~valid | (code == Result.NONFINITE)
    Q, error = (jnp.where(nothing, jnp.nan, x) for x in (Q, error))
    masked = lambda x: jnp.where(valid, x, jnp.nan)
    return Solution(
        overlap=Q,
        stderr=jnp.zeros((P, P), Q.dtype),
        error=error,
        alpha=jnp.asarray(model.design.operator(data.inputs).alpha, Q.dtype),
        steps=steps,
        residual=end.state.residual,
        result=code,
        history=jax.tree.map(masked, history),
        covariance=masked(state.covariance),
        rho=jnp.asarray(jnp.nan, Q.dtype),
        weights=masked(model.student.estimate(weights)),
        state=state,
        model=model,
        key=key,
        kind="gamp",
    )
