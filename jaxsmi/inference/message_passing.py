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
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, concrete, nan, not_recorded, theory_dtype
from jaxsmi.core.codes import RUNNING, Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Run, init_run, run_solver
from jaxsmi.core.options import Bayes, Iteration, Record, Start
from jaxsmi.core.results import Solution
from jaxsmi.core.validate import check
from jaxsmi.inference import starts
from jaxsmi.inference.assumptions import warn_of_inputs
from jaxsmi.inference.iteration import GampIteration, GampState, Position
from jaxsmi.inference.learner_passing import Plan, learned, statistic_of
from jaxsmi.inference.matrix_passing import matrix_learned
from jaxsmi.learners.base import AbstractLearner, BayesResponder
from jaxsmi.models.base import AbstractModel, check_data, model_argument

__all__ = ["GampState", "gamp"]

_MAX_STEPS = 300
_TOLERANCE = 1e-4
_KEPT = 0.5  # of what a spectral estimate has in common with itself
_SMALL = 1e-6  # of the whole estimate: a row that is none
_MISFIT = 4.0  # a ratio of labels' distances: V is off by as much
_AGAIN = (Result.DIVERGED, Result.NONFINITE, Result.OVERCONFIDENT)


def gamp(
    model: AbstractModel,
    data: Dataset,
    *,
    key: PRNGKeyArray | None = None,
    learner: Bayes | AbstractLearner | None = None,
    start: ArrayLike | str | Start | Solution | GampState | None = None,
    iteration: Iteration = Iteration(),  # noqa: B008  (immutable)
    record: Record | Callable[[GampState], PyTree] | None = None,
    progress: bool = False,
) -> Solution:
    r"""Run message passing on a data set: learn W from inputs and labels.

        ω = Ŵ x/√D - C g,   g = channel(y, ω, C),   Ŵ, C = prior(Σ g x/√D + A Ŵ, A)

    It starts from the spectral estimate where there is one, follows state evolution step by step,
    and is damped once nothing grows. If the run converges with some directions still at zero
    overlap, and the labels carry a spectral signal for them, it restarts with that spectral
    estimate added. It assumes inputs of iid entries of mean zero and variance one, of any law, and
    warns of stored inputs that are far from that, with the remedy (`data.second_moments()`).

    Args:
        model: Any model with a posterior.
        data: N samples, inputs float32 or float64 (labels of noiseless attention float64), with or
            without a teacher.
        key: Random key of the start, and of channels that sample; required.
        learner: `smi.Bayes(precision, calibrate)`, the default; `smi.Erm` (the run ends at a
            stationary point of its risk) or `smi.Mismatched`; for a matrix `smi.MatrixErm`.
        start: "spectral" (the estimate of `smi.spectral`, and random weights of size 1e-3), the
            size of a random start, a number > 0 (1e-3 is uninformative; larger ones with C = S end
            overconfident), "informed" (the posterior mean given the teacher with side information
            0.99; with a learner the teacher), the signal itself, (P, D), or a solution of `gamp` or
            its `state`, to continue. A `smi.Start(weights=.., side_information=λ)` adds a direct
            observation √λ W* + √(1-λ) noise. Default: "spectral" where labels do not change with
            the sign of the fields; 1e-3 where they do, with side information, for matrices, and
            inside jit where numbers of the model are traced; with a learner 0.5.
        iteration: `smi.Iteration(max_steps, tolerance, damping)`. Default 300 steps; tolerance 1e-4
            on the change of Ŵ in a step (before damping), relative to Ŵ; damping of Ŵ, C and the
            memory of the Onsager term, in [0, 1): for indices 0, which follows state evolution step
            by step, and more once nothing grows and nothing converges; for matrices the model's
            own, and more in another run where one diverges (outside jit). history["damping"] holds
            it.
        record: A function of a `GampState`, kept in history["record"]; or a `smi.Record` that also
            sets how often.
        progress: Show a bar on stderr.

    Returns:
        A `Solution` with `weights` Ŵ, `overlap` Q = ŴŴᵀ/D, `covariance` C, `error` (plug-in, NaN
        without a teacher), `state`, and `history` with "step", "overlap", "teacher_overlap" M,
        "cosine", "covariance", "residual", "damping", "inaccurate", and "misfit" of the labels
        where V was widened by it, else 1. For matrix models `weights` is Ŝ (d, d), `overlap`
        Tr Ŝ²/d, `error` ‖Ŝ - S*‖²/d. Codes: SUCCESS, RECOVERED, MAX_STEPS, DIVERGED, NONFINITE,
        INACCURATE, OVERCONFIDENT (the labels are missed by more than V allows), REGRESSED (a row
        ended with less overlap than its spectral estimate; weights, covariance and state are those
        of the start). A diverged run keeps its history. After a spectral start of one index the
        prior of `model` has the norm that the labels imply.

    Raises:
        ValueError: Outside jit, for arguments out of range, shapes that do not fit, labels that the
            channel cannot produce, a model without a posterior, start="spectral" for a matrix model
            or for labels with E[z|y] not zero. Inside jit: NaN, and the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, key = smi.links.linear(0.1), jax.random.key(0)
        >>> sol = smi.gamp(model, model.sample(key, dimension=200, alpha=3.0), key=key)
        >>> bool(sol.converged), bool(sol.overlap[0, 0] > 0.8)
        (True, True)

    Cost:
        Per step two passes over the N·M·D inputs and N posteriors; memory O(N M (D + P)); a
        spectral start that of `spectral`, and about as much compilation again. For
        matrices N T d² operations and an eigendecomposition, 4096 samples at a time.

    Source:
        [Rangan11], [TCDKZ25], [theory: multi-index, section 4].
    """
    known = learner is None or isinstance(learner, Bayes)
    model = model_argument(model, "inference" if known else None)
    validate.instance("data", data, Dataset, "a smi.Dataset, such as model.sample(..)")
    validate.instance("iteration", iteration, Iteration, "smi.Iteration(max_steps, ..)")
    validate.optional(validate.flag, "progress", progress)
    start = start if isinstance(start, Start) else Start(weights=start)
    init, state = _weights_or_state(start)
    function, every = Record.of(record)
    warn_of_inputs(model, data)
    damping = (
        model.design.message_passing.dampings[0] if iteration.damping is None else iteration.damping
    )
    tolerance = _TOLERANCE if iteration.tolerance is None else iteration.tolerance
    plan = Plan(
        init=init,
        state=state,
        damping=jnp.asarray(damping, theory_dtype()),
        adaptive=iteration.damping is None,
        tolerance=jnp.asarray(tolerance, theory_dtype()),
        record=function,
        every=every,
        max_steps=iteration.max_steps or _MAX_STEPS,
        progress=progress,
    )
    if learner is None or isinstance(learner, Bayes):
        return _run_bayes(model, data, learner or Bayes(), key, start, plan)
    allowed = "smi.Bayes(..), smi.Erm(..), smi.Mismatched(..) or smi.MatrixErm(..)"
    learner = validate.instance("learner", learner, AbstractLearner, allowed)
    check(not start.aided, "side_information", start.side_information, "0 with a learner")
    return _ENGINES[learner.explicit](model, data, learner, key, plan)


# of a learner of indices, and of one matrix
_ENGINES: Mapping[bool, Callable[..., Solution]] = {False: learned, True: matrix_learned}


def _weights_or_state(start: Start) -> tuple[ArrayLike | str | None, GampState | None]:
    """The weights of a start, or the state to continue from."""
    value = start.weights
    if isinstance(value, Solution):
        allowed = "a solution of gamp or spectral, which has a state to continue from"
        return None, validate.instance("start", value.state, GampState, allowed)
    if isinstance(value, GampState):
        return None, value
    return value, None


def _run_bayes(
    model: AbstractModel,
    data: Dataset,
    learner: Bayes,
    key: PRNGKeyArray | None,
    start: Start,
    plan: Plan,
) -> Solution:
    """Message passing of the learner that knows the model."""
    settings = model.design.message_passing
    precision = learner.precision or settings.precisions[0]
    validate.choice("precision", precision, settings.precisions)
    allowed = "False for this model"
    check(settings.calibrated or not learner.calibrate, "calibrate", learner.calibrate, allowed)
    calibrate = settings.calibrated if learner.calibrate is None else learner.calibrate
    data = _check_data(model, data, plan.state)
    key = validate.key("key", key)
    # another stream than that of `sample`: with one key for both, the start would be the teacher
    *start_keys, run_key = _streams(key)
    strength = start.side_information if start.aided else None
    begin = starts.begin(model, data, start_keys, plan.init, strength, plan.state)
    responder = BayesResponder(begin.model)
    problem = GampIteration(
        model=begin.model,
        learner=responder,
        data=data,
        start=begin.state,
        spectral=begin.spectral,
        statistic=statistic_of(responder, data.labels),
        side=begin.side,
        damping=plan.damping,
        tolerance=plan.tolerance,
        key=run_key,
        record=plan.record,
        mesh=data.mesh,
        precision=precision,
        calibrate=calibrate,
        adaptive=plan.adaptive and len(settings.dampings) == 1,
        max_steps=plan.max_steps,
    )
    numbers = (begin.state.weights, start.side_information, plan.damping, plan.tolerance)
    valid = validate.valid(numbers) & validate.valid(model)
    end = _run(problem, plan, key, valid)
    for damping in settings.dampings[1:] if plan.adaptive else ():
        if not (concrete(end.result) and int(end.result) in _AGAIN):
            break
        again = eqx.tree_at(lambda p: p.damping, problem, jnp.asarray(damping, theory_dtype()))
        end = _run(again, plan, key, valid)
    return end


@jax.jit
def _streams(key: PRNGKeyArray) -> tuple[PRNGKeyArray, ...]:
    """The keys of the start, of its side information, and of the run."""
    keys = jax.random.split(jax.random.fold_in(key, 1), 3)
    return keys[0], keys[1], keys[2]


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


def _run(problem: GampIteration, plan: Plan, key: PRNGKeyArray, valid: Array) -> Solution:
    """One run to its end."""
    steps, every = plan.max_steps, plan.every
    data = problem.data
    run = init_run(problem, steps // every)
    label = f"GAMP, D={data.dimension}, N={data.samples}" if plan.progress else None
    for more in range(problem.model.indices - 1, -1, -1):
        running = eqx.tree_at(lambda p: p.start, problem, None)
        run = run_solver(running, run, steps, every=every, label=label)
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
        code = jnp.where(lost, int(Result.REGRESSED), code)
        state = jax.tree.map(lambda a, b: jnp.where(lost, a, b), problem.start, state)
        overlaps = model.metric.overlaps(state.weights, data.teacher)
        history = _ending(history, overlaps, state.covariance)
    weights = state.weights
    Q = model.metric.overlaps(weights, None)["overlap"]
    error = model.metric.error(weights, data, key=jax.random.fold_in(problem.key, 1))
    code = jnp.where(valid, code, int(Result.INVALID))
    nothing = ~valid | (code == Result.NONFINITE)
    Q, error = (jnp.where(nothing, nan(), x) for x in (Q, error))
    masked = lambda x: jnp.where(valid, x, nan())
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
        spectral_radius=not_recorded((), Q.dtype),
        weights=masked(model.student.estimate(weights)),
        state=state,
        model=model,
        key=key,
        kind="gamp",
    )
