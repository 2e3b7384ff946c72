r"""Generalised approximate message passing on a data set: one engine for every model and learner.

    prepare     the learner's task (learner_passing.py), a start (gamp_starts.py), one
                `GampIteration`
    iterate     its steps (gamp_step.py) in the loop of core/driver.py. Outside jit, a run that
                converges where the fixed point is unstable on the data goes on along the unstable
                direction, and one that diverges is repeated with more damping
    finish      V that falls to zero is perfect recovery only if the estimate reproduces the labels.
                If a row ends with less than half the overlap theory gives its spectral estimate,
                the spectral start is returned
    compare     of several starts, the end with the largest free entropy is taken (gamp_ends.py)

Source: [Rangan11], [TCDKZ25], [theory: multi-index, Eqs. (35) to (46); spectral, section 5].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import (
    PyTree,
    concrete,
    missing,
    missing_array,
    theory_dtype,
)
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Run, init_run, run_solver
from jaxsmi.core.options import Bayes, Iteration, Record, Start
from jaxsmi.core.results import RUNNING, Result, choose
from jaxsmi.core.solution import LearnerSolution, Solution
from jaxsmi.core.validate import check
from jaxsmi.inference.corrections import SIGNIFICANT
from jaxsmi.inference.gamp_ends import (
    SAME_END,
    best_end,
    disagree,
)
from jaxsmi.inference.gamp_starts import FURTHER_SIZES, default_starts, make_start, streams
from jaxsmi.inference.gamp_step import (
    Bethe,
    GampIteration,
    GampLoopState,
    GampState,
    Observations,
    Risk,
    Task,
    contract,
)
from jaxsmi.inference.learner_passing import learner_task
from jaxsmi.learners.base import AbstractLearner, BayesResponder
from jaxsmi.models.base import (
    AbstractModel,
    check_data,
    model_argument,
    warn_of_inputs,
    warn_of_labels,
)
from jaxsmi.numerics.linear_algebra import sqrt_psd

_MAX_STEPS = 300
# relative change of Ŵ: its fluctuations at finite D are larger, of order 1/√D
_TOLERANCE = 1e-4
# A row regressed if it keeps less than this share of the overlap of its spectral estimate. A
# posterior mean keeps all of it; half leaves room for fluctuations at small D.
_MIN_KEPT = 0.5
_EMPTY_ROW = 1e-6  # a row with less than this share of the norm of the estimate is not compared
_MISFIT = 4.0  # labels missed by so many times what V allows: the run is overconfident
_UNEXPLAINED = 0.02  # noiseless labels missed by this share of their variance: no recovery
_KICKS = 3  # how often a run goes on from an unstable point (empirical: once is enough)
_KICK = 0.1  # size of the noise added there: Q changes by 0.01 in the unstable direction
_KICK_STREAM, _START_STREAM = 1000, 2000  # streams of keys
# a run with one of these codes is repeated with more damping
_DAMP_MORE_AFTER = (Result.DIVERGED, Result.NONFINITE, Result.OVERCONFIDENT)


@validate.explained
def gamp(
    model: AbstractModel,
    data: Dataset,
    *,
    key: PRNGKeyArray | None = None,
    learner: Bayes | AbstractLearner | None = None,
    start: ArrayLike | str | Start | Solution | GampState | None = None,
    iteration: Iteration | None = None,
    record: Record | Callable[[GampState], PyTree] | None = None,
    progress: bool = False,
) -> Solution:
    r"""Run message passing on a data set: learn W from inputs and labels.

        ω = Ŵ x/√D - C g,   g = channel(y, ω, C),   Ŵ, C = prior(Σ g x/√D + A Ŵ, A)

    By default the run starts from the spectral estimate, if there is one. It rescales b and widens
    V where these disagree with the labels (never with `smi.Bayes(calibrate=False)`), and adds
    damping once no direction grows. Outside jit and vmap, a run that converges to an unstable point
    continues along the unstable direction, and a matrix run that diverges is repeated with more
    damping. The textbook algorithm: `learner=smi.Bayes("divergence", calibrate=False)`,
    `start=1e-3`, `iteration=smi.Iteration(damping=0.0)`.

    Inputs are assumed to have iid entries of mean zero and variance one, of any law. If stored
    inputs are far from that, a warning says which moments fail and what to do
    (`data.standardise()`, for example; `data.second_moments()` lists all), and the code is INPUTS.

    Under jit or vmap no start is added if ends disagree, and if the model itself is traced the
    default is one start, 1e-3. Labels of an even link do not determine the sign of W: the signs of
    Ŵ and M are then arbitrary, and "cosine" does not depend on them.

    Args:
        model: Any model with a posterior.
        data: N samples, inputs float32 or float64 (labels of noiseless attention float64), with or
            without a teacher.
        key: Random key of the start, and of channels that sample; required.
        learner: `smi.Bayes(precision, calibrate)`, the default; `smi.Erm` (the run ends at a
            stationary point of its risk) or `smi.Mismatched`; for a matrix `smi.MatrixErm`.
        start: "spectral" (the estimate of `smi.spectral`, and random weights of size 1e-3), the
            size of a random start, a number > 0 (1e-3 is uninformative; a larger one claims too
            small a variance), "informed" (the posterior mean given the teacher with side
            information 0.99; with a learner the teacher), the signal itself, (P, D), or a solution
            of `gamp` or its `state`, to continue. A `smi.Start(weights=.., side_information=λ)`
            adds a direct observation √λ W* + √(1-λ) noise. A tuple of several, such as ("spectral",
            1e-3, 1e-3): each is run, and the end with the largest free entropy is returned.
            Default: if labels do not change with the sign of the fields, ("spectral", 1e-3), and
            two larger random starts if these two disagree (outside jit); if labels do change, with
            side information, and inside jit with a traced model, 1e-3; for a matrix and even labels
            (0.1, 0.3); with a learner 0.5.
        iteration: `smi.Iteration(max_steps, tolerance, damping)`. Default 300 steps; tolerance 1e-4
            on the change of Ŵ in a step (before damping), relative to Ŵ, of learners on its
            distance to the end; damping of Ŵ, C and the Onsager term, in [0, 1). For index models
            it is 0 at first, so that the run follows state evolution step by step, and is raised
            once nothing grows and nothing converges; for matrices it is the model's own, raised in
            a second run if the first one diverges (outside jit). history["damping"] records it.
        record: A function of a `GampState`, whose values are kept in history["record"]; or a
            `smi.Record`, which also sets the steps between records.
        progress: Show a bar on stderr.

    Returns:
        A `Solution` with `weights` Ŵ, `overlap` Q = ŴŴᵀ/D, `covariance` C, `error` (plug-in, NaN
        without a teacher), `state`, and `history` with "step", "overlap", "teacher_overlap" M,
        "cosine", "covariance", "residual", "damping", "inaccurate", and "misfit", the factor by
        which V was widened (else 1); `free_entropy` (Bethe, per entry of a row; NaN for a
        minimiser, and where V was widened), `stability` (the spectral radius of the map of a small
        change from one step to the next) and, with several starts, `ends`. For
        matrix models `weights` is Ŝ (d, d), `overlap` Tr Ŝ²/d, `error` ‖Ŝ - S*‖²/d.
        Codes: SUCCESS, RECOVERED, MAX_STEPS, DIVERGED,
        NONFINITE, INACCURATE, UNSTABLE (`stability` above one, also after three restarts with added
        noise), AMBIGUOUS (runs from several starts disagree, and their free entropies do not
        decide, or no end was reached twice), OVERCONFIDENT (the labels are missed by more than V
        allows), REGRESSED (a row ended with less overlap than its spectral estimate; weights,
        covariance and state are those of the start), INPUTS (the inputs are not as assumed;
        replaces the code of the run, except for minimisers of a risk that converged). A diverged
        run keeps its history. After a spectral start of a model of one index, the prior of
        `solution.model` has the norm that the labels imply.

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
        spectral start that of `spectral`, and about as much compilation again; a step more for the
        free entropy. For
        matrices N T d² operations and an eigendecomposition, 4096 samples at a time.

    Source:
        [Rangan11], [TCDKZ25], [theory: multi-index, section 4].
    """
    learner = Bayes() if learner is None else learner
    model = model_argument(model, "inference" if isinstance(learner, Bayes) else None)
    validate.instance("data", data, Dataset, "smi.Dataset(inputs, labels), or model.sample(..)")
    iteration = Iteration.of(iteration)
    validate.optional(validate.flag, "progress", progress)
    start = start if isinstance(start, Start) else Start(weights=start)
    function, every = Record.of(record)
    if isinstance(learner, Bayes):
        task = _bayes_task(model, learner)
    else:
        allowed = "smi.Bayes(..), smi.Erm(..), smi.Mismatched(..) or smi.MatrixErm(..)"
        learner = validate.instance("learner", learner, AbstractLearner, allowed)
        check(not start.aided, "side_information", start.side_information, "0 with a learner")
        task = learner_task(model, learner)
    if iteration.damping is not None:
        task = task._replace(dampings=(iteration.damping,), adaptive=False)
    key = validate.key("key", key)
    data = check_data(model, data, teacher=task.bayes)
    task.check_labels(data.labels)
    label = f"GAMP, D={data.dimension}, N={data.samples}" if progress else None
    choice = start.weights if isinstance(start.weights, tuple) else (start.weights,)
    check(len(choice) > 0, "start", start.weights, "a start, or a tuple of several")
    default = len(choice) == 1 and choice[0] is None
    at_fault = warn_of_inputs(model, data)
    choice = default_starts(task, start, data) if default else choice
    # the spectral start runs first: the others take from it the norm that the labels imply
    spectral = lambda item: isinstance(item[1], str) and item[1] == "spectral"
    remaining = sorted(enumerate(choice), key=lambda item: not spectral(item))
    several, ends = len(remaining) > 1, {}
    while remaining:
        place, weights = remaining.pop(0)
        number = len(ends) if several else None
        solver = _make_solver(task, data, key, start, weights, number, iteration, function)
        if not (at_fault or ends):  # once the start is known to be valid
            warn_of_labels(task.model, data)
        task = task._replace(model=solver.observations.model)
        ends[place] = _run_and_repeat(solver, task, start, every, label, key, several)
        if default and len(ends) == 2 and disagree([end for end, _ in ends.values()]):
            remaining = [*enumerate(FURTHER_SIZES, start=2)]
    # several by default: zero is a fixed point, so that it is an end to compare with
    nothing = _unlearned(solver.observations, solver.key) if default and several else None
    solutions, misfits = zip(*(ends[place] for place in sorted(ends)), strict=True)
    end = best_end([*solutions], [*misfits], nothing)
    if isinstance(end, LearnerSolution):
        end = dataclasses.replace(end, learner=learner)
    return _blame_inputs(end) if at_fault else end


def _blame_inputs(end: Solution) -> Solution:
    """Set the code INPUTS, unless the solution is the minimum of a risk, which assumes nothing of
    the inputs."""
    code = end.result
    fine = code == Result.INVALID
    if isinstance(end, LearnerSolution) and end.gradient_norm is not None:
        fine = fine | (code == Result.SUCCESS) & jnp.isfinite(end.gradient_norm)
    return dataclasses.replace(end, result=jnp.where(fine, code, Result.INPUTS))


# Prepare


def _make_solver(
    task: Task,
    data: Dataset,
    key: PRNGKeyArray,
    start: Start,
    weights: Any,
    number: int | None,
    iteration: Iteration,
    record: Callable[[GampState], PyTree] | None,
) -> GampIteration:
    """The solver of a start, from validated arguments; `number`: of several, as they run."""
    # another stream than that of `sample`: with one key for both, the start would be the teacher
    of_start = jax.random.fold_in(key, _START_STREAM + number) if number else key
    *start_keys, _ = streams(of_start)
    begin = make_start(task, data, start_keys, weights, start)
    spectral = begin.spectral
    if number is not None and task.bayes and spectral is None:
        # the estimate of a random start is zero: all are one program
        spectral = jnp.zeros_like(begin.state.weights)
    tolerance = _TOLERANCE if iteration.tolerance is None else iteration.tolerance
    return GampIteration(
        observations=begin.observations,
        learner=task.responder(begin.observations.model),
        start=begin.state,
        spectral=spectral,
        side=begin.side,
        damping=jnp.asarray(task.dampings[0], theory_dtype()),
        tolerance=jnp.asarray(tolerance, theory_dtype()),
        significance=jnp.asarray(SIGNIFICANT, theory_dtype()),
        key=streams(key)[-1],
        record=record,
        precision=task.precision,
        calibrate=task.calibrate,
        adaptive=task.adaptive,
        max_steps=iteration.max_steps or _MAX_STEPS,
    )


def _bayes_task(model: AbstractModel, learner: Bayes) -> Task:
    """The learner that knows the model."""
    settings = model.design.message_passing
    precision = learner.precision or settings.precisions[0]
    validate.choice("precision", precision, settings.precisions)
    allowed = "None or False: message passing on this model has no calibration"
    check(settings.calibrated or not learner.calibrate, "calibrate", learner.calibrate, allowed)
    return Task(
        model=model,
        responder=BayesResponder,
        risk=None,
        precision=precision,
        dampings=settings.dampings,
        check_labels=model.channel.check_labels,
        calibrate=settings.calibrated if learner.calibrate is None else learner.calibrate,
        # a family with dampings of its own does not leave the choice to the run
        adaptive=len(settings.dampings) == 1,
    )


# Iterate


def _run_and_repeat(
    solver: GampIteration,
    task: Task,
    start: Start,
    every: int,
    label: str | None,
    key: PRNGKeyArray,
    several: bool,
) -> tuple[Solution, Array]:
    """The end of a run, and of others with more damping while one diverges, with its misfit.

    If the end depends on rescaled messages, the run is repeated without calibration; that end is
    taken if it converged with a larger free entropy. (Of `several` starts the ends are compared
    anyway.)
    """
    numbers = (solver.start.weights, start.side_information, solver.damping, solver.tolerance)
    valid = validate.valid((task.model, task.risk, numbers))

    def end_of(solver: GampIteration) -> tuple[Solution, Array, Array]:
        solver, run, bethe = _run(solver, every, label, key)
        solution = _finish(solver, run, bethe, task.risk, key, valid)
        return solution, run.state.misfit, bethe.rescaled

    solution, misfit, rescaled = end_of(solver)
    for more in task.dampings[1:]:
        if not (concrete(solution.result) and int(solution.result) in _DAMP_MORE_AFTER):
            break
        solver = dataclasses.replace(solver, damping=jnp.asarray(more, theory_dtype()))
        solution, misfit, rescaled = end_of(solver)
    numbers = (rescaled, solution.result, solution.free_entropy)
    if not (task.calibrate and concrete(numbers)):
        return solution, misfit
    code = int(solution.result)
    doubtful = bool(rescaled) or code == Result.MAX_STEPS
    if several or not doubtful or code == Result.RECOVERED:
        return solution, misfit
    never = jnp.full_like(solver.significance, jnp.inf)
    plain, plain_misfit, _ = end_of(dataclasses.replace(solver, significance=never))
    # a run that has not settled is at its free entropy up to fluctuations
    slack = jnp.where(solution.converged, 0.0, SAME_END / solution.state.weights[0].size)
    gain = jnp.asarray(plain.free_entropy) - jnp.asarray(solution.free_entropy)
    better = plain.converged & (gain > -slack)
    return (plain, plain_misfit) if bool(better) else (solution, misfit)


def _run(
    solver: GampIteration, every: int, label: str | None, key: PRNGKeyArray
) -> tuple[GampIteration, Run[GampLoopState], Bethe]:
    """Run to the end; return it with its solver, which is a new one after a restart."""
    steps = solver.max_steps
    run = init_run(solver, steps // every)
    # a run that regressed returns the original start, not the state it was kicked from
    kicks, start = _KICKS, solver.start
    while True:
        run = run_solver(solver, run, steps, every=every, label=label)
        bethe = _bethe(solver, run.state.state)
        visible = concrete((run.result, bethe.stability))  # eager derivatives trace the stability
        quiet = visible and int(run.result) in (Result.SUCCESS, Result.INACCURATE)
        if not (quiet and kicks > 0 and float(bethe.stability) > 1.0):
            return dataclasses.replace(solver, start=start), run, bethe
        solver = _along_unstable(solver, run, bethe, jax.random.fold_in(key, _KICK_STREAM + kicks))
        kicks -= 1
        run = Run(_restarted(solver), run.step, jnp.full_like(run.result, RUNNING), run.history)


_bethe = eqx.filter_jit(GampIteration.bethe)


@eqx.filter_jit
def _unlearned(observations: Observations, key: PRNGKeyArray) -> Array:
    """Bethe free entropy at Ŵ = 0 and C = S, the uninformed fixed point of labels that are even in
    the fields."""
    return observations.alpha * jnp.mean(observations.prior_response(key).log_partition)


@eqx.filter_jit
def _along_unstable(
    solver: GampIteration, run: Run[GampLoopState], bethe: Bethe, key: PRNGKeyArray
) -> GampIteration:
    """Return the solver that restarts from an unstable point, with noise added along the unstable
    direction."""
    state, prior = run.state.state, solver.observations.model.prior
    draw = lambda size: prior.start(key, state.weights.shape, jnp.asarray(size))[0]
    noise = contract(sqrt_psd(bethe.direction), draw(_KICK) - draw(0.0))
    kicked = dataclasses.replace(state, weights=state.weights + noise)
    return dataclasses.replace(solver, start=kicked)


# compiled: from outside jit one program, not one an array
_restarted = eqx.filter_jit(GampIteration.init)


# Finish


@eqx.filter_jit
def _finish(
    solver: GampIteration,
    end: Run[GampLoopState],
    bethe: Bethe,
    risk: Risk | None,
    key: PRNGKeyArray,
    valid: Array,
) -> Solution:
    """The result of a run, from where it ended."""
    model, data = solver.observations.model, solver.observations.data
    state, code, history = end.state.state, end.result, end.history
    if solver.learner.bayes:
        unstable = (code == Result.SUCCESS) & (bethe.stability > 1.0)
        sure = _overconfident(solver, end)
        code = choose((unstable, Result.UNSTABLE), (sure, Result.OVERCONFIDENT), start=code)
    broken = (code == Result.NONFINITE) | (code == Result.DIVERGED)
    if solver.spectral is not None:
        lost = _regressed(solver.spectral, state.weights) & ~broken
        code = jnp.where(lost, Result.REGRESSED, code)
        state = jax.tree.map(lambda a, b: jnp.where(lost, a, b), solver.start, state)
    weights = state.weights
    if not solver.learner.bayes:
        # damping leaves a geometric tail of the weights that a penalty |w| sets to zero
        damped = (code == Result.SUCCESS) & (end.state.damping.value > 0.0)
        weights = jnp.where(damped, bethe.estimate.astype(weights.dtype), weights)
    overlaps = model.metric.overlaps(weights, data.teacher)
    if solver.spectral is not None:
        # the last record is that of the returned state
        last = jnp.sum(jnp.isfinite(history["step"])) - 1
        returned = {**overlaps, "covariance": state.covariance}
        history = history | {k: history[k].at[last].set(x) for k, x in returned.items()}
    code = jnp.where(valid, code, Result.INVALID)
    masked = lambda x: jnp.where(valid, x, missing())
    failed = ~valid | broken  # a broken run keeps its history and its last finite state
    Q = overlaps["overlap"]
    numbers: dict[str, Any] = {
        "overlap": Q,
        "error": model.metric.error(weights, data, key=jax.random.fold_in(solver.key, 1)),
        "covariance": state.covariance,
        "stability": bethe.stability,
        "free_entropy": bethe.free_entropy,
    }
    others: dict[str, Any] = {"model": model}
    if risk is not None:
        terms = risk(weights, data)
        others["model"] = terms.pop("model", model)
        numbers |= {"teacher_overlap": overlaps["teacher_overlap"], **terms}
    numbers = jax.tree.map(lambda x: jnp.where(failed, missing(), x), numbers)
    return (Solution if risk is None else LearnerSolution)(
        **numbers,
        **others,
        stderr=jnp.zeros_like(Q),
        # the operator takes α from shapes: the ratios of the model are traced here
        alpha=jnp.asarray(model.design.operator(data.inputs).alpha, Q.dtype),
        steps=end.state.state.step,
        residual=end.state.residual,
        result=code,
        history=jax.tree.map(masked, history),
        spectral_radius=missing_array((), Q.dtype),
        weights=masked(model.student.estimate(weights)),
        state=state,
        key=key,
        kind="gamp",
    )


def _overconfident(solver: GampIteration, end: Run[GampLoopState]) -> Array:
    """True if a run ended quietly although V does not explain the errors of its labels. V = 0 is a
    recovery only if the estimate reproduces the labels."""
    quiet = (end.result == Result.SUCCESS) | (end.result == Result.RECOVERED)
    missed = quiet & (end.state.misfit > _MISFIT) if solver.compares_labels else jnp.asarray(False)
    observations = solver.observations
    labels = observations.data.labels
    state = end.state.state
    outputs = jax.vmap(observations.model.link)(observations.forward(state.weights))
    distance = jnp.mean((outputs - labels) ** 2)
    spread = jnp.mean((labels - jnp.mean(labels, 0)) ** 2)
    noiseless = observations.model.channel.noiseless
    recovered = noiseless & (end.result == Result.RECOVERED)
    unexplained = recovered & ~(distance < _UNEXPLAINED * spread)
    # noiseless labels that jump err by about √(tr V/tr S), smooth ones by less
    unknown = jnp.sqrt(jnp.trace(state.covariance) / jnp.trace(observations.second_moment))
    contradicted = noiseless & quiet & (distance > _MISFIT * unknown * spread)
    return missed | unexplained | contradicted


def _regressed(start: Array, W: Array) -> Array:
    """Return True if a row has lost its spectral estimate Ŵ_s. Of posterior means the diagonals
    obey Ŵ Ŵ_sᵀ/D = Ŵ_s Ŵ_sᵀ/D <= Ŵ Ŵᵀ/D; a row below half of that has lost it."""
    norms = jnp.sum(start**2, axis=1)
    common = jnp.sum(W * start, axis=1)
    least = jnp.minimum(common, jnp.sum(W**2, axis=1))
    return jnp.any((least < _MIN_KEPT * norms) & (norms > _EMPTY_ROW * jnp.sum(norms)))
