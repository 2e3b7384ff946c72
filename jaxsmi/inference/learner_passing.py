r"""Message passing of a learner other than Bayes: its start, and what its end says.

Equations here [Cui24; theory: empirical-risk, sections 1 and 2], along the iteration of
inference/iteration.py with g of the learner and the divergence for A:

    R(W) = Σ_μ ℓ(link(W x_μ/√D), y_μ) + (λ/2) ‖W‖²,    ∇R = (1/√D) Σ_μ ∂ℓ(z_μ) x_μᵀ + λ W

A fixed point is a stationary point of R: ‖∇R‖/√D is returned with it. Undamped, a run follows the
state evolution of its learner step by step. Inputs with fixed directions make both overshoot: where
no damping is asked for, a run that does not settle is damped, and one that diverged begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, concrete, nan, not_recorded, theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Run, init_run, run_solver
from jaxsmi.core.results import LearnerSolution
from jaxsmi.core.validate import check
from jaxsmi.inference.iteration import GampIteration, GampState, Position, SideInformation
from jaxsmi.learners.base import AbstractIndexLearner, AbstractResponder, learner_of
from jaxsmi.models.base import AbstractModel, check_data
from jaxsmi.models.index import IndexModel

__all__ = ["SIZE", "Plan", "learned", "passed", "statistic_of"]

_AGAIN = (Result.DIVERGED, Result.NONFINITE)
_MORE = 0.8  # damping of a second run, after one that diverged
SIZE = 0.5  # of a random start: a tiny one fails where the loss is not convex


class Plan(NamedTuple):
    """How a run goes, checked: where it starts (`init`, or `state` to go on from), its `damping`
    (`adaptive` where nobody said one) and `tolerance`, what is recorded and how often, and its
    steps."""

    init: ArrayLike | str | None
    state: GampState | None
    damping: Array
    adaptive: bool
    tolerance: Array
    record: Callable[[GampState], PyTree] | None
    every: int
    max_steps: int
    progress: bool


def learned(
    model: AbstractModel,
    data: Dataset,
    learner: AbstractIndexLearner,
    key: PRNGKeyArray | None,
    plan: Plan,
) -> LearnerSolution:
    """`gamp` with a learner of indices (module docstring)."""
    student, teacher = learner_of(learner, model)
    network = student.network
    check_data(network, data, teacher=False)
    student.check_labels(data.labels)
    key = validate.key("key", key)
    start_key, run_key = jax.random.split(jax.random.fold_in(key, 1))
    state = plan.state
    if state is None:
        state = _start(network, data, start_key, plan.init)
    run, running = passed(network, student, data, state, run_key, plan, "divergence")
    numbers = (student, state.weights, plan.damping, plan.tolerance)
    return _solution(running, student, run, key, validate.valid(teacher) & validate.valid(numbers))


def passed(
    network: AbstractModel,
    learner: AbstractResponder,
    data: Dataset,
    state: GampState,
    key: PRNGKeyArray,
    plan: Plan,
    precision: str,
) -> tuple[Run[Position], GampIteration]:
    """A run from `state` to its end, A estimated by `precision`; and its solver, whose start is let
    go. Where no damping was asked for, a run that diverged begins again with more."""
    P = network.indices
    dtype = theory_dtype()
    nothing = SideInformation(jnp.zeros((P, P), dtype), jnp.zeros(state.weights.shape, dtype))
    problem = GampIteration(
        model=network,
        learner=learner,
        data=data,
        start=state,
        spectral=None,
        statistic=statistic_of(learner, data.labels),
        side=nothing,
        damping=plan.damping,
        tolerance=plan.tolerance,
        key=key,
        record=plan.record,
        mesh=data.mesh,
        precision=precision,
        calibrate=False,
        adaptive=plan.adaptive,
        max_steps=plan.max_steps,
    )
    label = f"GAMP of a learner, D={data.dimension}, N={data.samples}" if plan.progress else None
    run, running = _once(problem, plan, label)
    if plan.adaptive and concrete(run.result) and int(run.result) in _AGAIN:
        again = eqx.tree_at(lambda p: p.damping, problem, jnp.asarray(_MORE, dtype))
        run, running = _once(again, plan, label)
    return run, running


def _once(
    problem: GampIteration, plan: Plan, label: str | None
) -> tuple[Run[Position], GampIteration]:
    """The iteration to its end; its start is let go."""
    run = init_run(problem, plan.max_steps // plan.every)
    running = eqx.tree_at(lambda p: p.start, problem, None)
    return run_solver(running, run, plan.max_steps, every=plan.every, label=label), running


@eqx.filter_jit
def statistic_of(learner: AbstractResponder, labels: Array) -> Array:
    """What `respond` needs of the labels, once for a run."""
    return learner.statistic(labels)


def _start(
    network: IndexModel,
    data: Dataset,
    key: PRNGKeyArray,
    init: ArrayLike | str | None,
) -> GampState:
    """Random weights of order one, those of the teacher, or those of the user, and C = I."""
    shape = network.student.shape(data.dimension)
    fields = (data.samples, network.indices, network.tokens)
    covariance = jnp.eye(network.indices, dtype=theory_dtype())
    allowed = f"a positive number, 'informed', or an array {shape}, with a learner"
    if isinstance(init, str):
        check(init == "informed", "start", init, allowed)
        teacher = data.teacher
        known = teacher is not None and teacher.shape == shape
        check(known, "start", init, f"'informed' for a teacher of shape {shape}; or an array")
        assert teacher is not None
        return GampState.start(teacher.astype(theory_dtype()), covariance, fields)
    weights = validate.array("start", SIZE if init is None else init, allowed)
    check(weights.shape in ((), shape), "start", init, allowed)
    if weights.ndim:
        return GampState.start(weights, covariance, fields)
    check(weights > 0.0, "start", init, allowed)
    size = jnp.where(weights > 0.0, weights, jnp.nan)
    return GampState.start(network.student.start(key, data.dimension, size), covariance, fields)


@eqx.filter_jit
def _solution(
    problem: GampIteration,
    learner: AbstractIndexLearner,
    end: Run[Position],
    key: PRNGKeyArray,
    valid: Array,
) -> LearnerSolution:
    """What the end of a run means."""
    network = problem.model
    data = problem.data
    state = end.state.state
    W = state.weights
    D = data.dimension
    sensing = network.design.operator(data.inputs)
    overlaps = network.metric.overlaps(W, data.teacher)
    fields = sensing.forward(W)
    losses, slope = jax.vmap(jax.value_and_grad(_one(learner)))(fields, data.labels)
    gradient = sensing.adjoint(slope) + learner.decay * W
    squares = jnp.sum(W**2) / D
    energy = jnp.sum(losses) / D + 0.5 * learner.decay * squares
    error = network.metric.error(W, data, key=jax.random.fold_in(problem.key, 1))
    code = jnp.where(valid, end.result, int(Result.INVALID))
    nothing = ~valid | (code == Result.NONFINITE) | (code == Result.DIVERGED)
    masked = lambda x: jnp.where(nothing, nan(), x)
    return LearnerSolution(
        overlap=masked(overlaps["overlap"]),
        stderr=jnp.zeros_like(overlaps["overlap"]),
        error=masked(error),
        alpha=jnp.asarray(sensing.alpha, W.dtype),
        steps=state.step,
        residual=end.state.residual,
        result=code,
        history=jax.tree.map(lambda x: jnp.where(valid, x, nan()), end.history),
        covariance=masked(state.covariance),
        spectral_radius=not_recorded((), W.dtype),
        weights=jnp.where(valid, W, nan()),
        state=state,
        model=network,
        key=key,
        kind="gamp",
        teacher_overlap=masked(overlaps["teacher_overlap"]),
        direction_overlap=None if data.directions is None else masked(W @ data.directions.T / D),
        train_loss=masked(jnp.mean(losses)),
        energy=masked(energy),
        gradient_norm=masked(jnp.sqrt(jnp.sum(gradient**2) / D)),
    )


def _one(learner: AbstractIndexLearner) -> Callable[[Array, Array], Array]:
    """The loss of one sample's fields."""
    return lambda fields, label: learner.losses(fields[None], label[None])[0]
