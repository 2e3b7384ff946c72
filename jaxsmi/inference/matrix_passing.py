"""Message passing of empirical risk over one matrix (matrix_learner.py has its theory)."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.core import validate
from jaxsmi.core.arrays import nan, not_recorded, theory_dtype
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.driver import Run
from jaxsmi.core.results import LearnerSolution
from jaxsmi.core.validate import POSITIVE
from jaxsmi.inference.iteration import GampIteration, GampState, Position
from jaxsmi.inference.learner_passing import SIZE, Plan, passed
from jaxsmi.learners.base import AbstractResponder
from jaxsmi.learners.matrix_erm import MatrixErm, believed, residual, student_of
from jaxsmi.models.base import AbstractModel, check_data
from jaxsmi.models.matrix import MatrixModel

__all__ = ["matrix_learned"]


class _Responder(AbstractResponder):
    """A learner of one matrix in message passing: responses of `model` with label noise of variance
    one, and the shrinkage of the penalty."""

    model: MatrixModel
    learner: MatrixErm

    @property
    def tolerance(self) -> Array:
        """The readout's."""
        return self.model.explicit_readout.tolerance

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """The readout's."""
        return self.model.explicit_readout.respond(statistic, omega, V, key)

    def statistic(self, labels: Array) -> Array:
        """The readout's."""
        return self.model.explicit_readout.statistic(labels)

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """S (1, L, d) and V (1, 1) from b (1, L, d) of precision A (1, 1)."""
        prior = self.model.prior
        precision = A[0, 0]
        shrinkage = self.learner.shrinkage(precision, prior.weight, prior.symmetric)
        unit = float(b.shape[1] * b.shape[2]) ** 0.25
        R = b[0] / (precision * unit)
        made, slope = shrinkage.symmetric_matrix(R) if prior.symmetric else shrinkage.matrix(R)
        return unit * made[None], slope / precision * jnp.ones((1, 1))


def matrix_learned(
    model: AbstractModel,
    data: Dataset,
    learner: MatrixErm,
    key: PRNGKeyArray | None,
    plan: Plan,
) -> LearnerSolution:
    """`gamp` of a learner of one matrix."""
    teacher = student_of(model)
    student = believed(teacher)
    check_data(student, data, teacher=False)
    student.readout.check_labels(data.labels)
    key = validate.key("key", key)
    signal, fields = student.design.shapes(data.inputs.shape)
    start_key, run_key = jax.random.split(jax.random.fold_in(key, 1))
    state = plan.state
    if state is None:
        size = validate.number("start", SIZE if plan.init is None else plan.init, POSITIVE)
        state = GampState.start(*student.prior.start(start_key, signal, size), fields)
    responder = _Responder(student, learner)
    run, running = passed(student, responder, data, state, run_key, plan, "state")
    valid = validate.valid(teacher) & validate.valid(
        (learner, state.weights, plan.damping, plan.tolerance)
    )
    return _found(running, teacher, learner, run, key, valid)


@eqx.filter_jit
def _found(
    problem: GampIteration,
    teacher: MatrixModel,
    learner: MatrixErm,
    end: Run[Position],
    key: PRNGKeyArray,
    valid: Array,
) -> LearnerSolution:
    """What the end of a run means."""
    data = problem.data
    state = end.state.state
    S = state.weights
    sensing = teacher.design.operator(data.inputs)
    overlaps = teacher.metric.overlaps(S, data.teacher)
    missed = residual(teacher, S, data)
    loss = 0.5 * jnp.sum(missed**2) / data.samples
    code = jnp.where(valid, end.result, int(Result.INVALID))
    nothing = ~valid | (code == Result.NONFINITE) | (code == Result.DIVERGED)
    masked = lambda x: jnp.where(nothing, nan(), x)
    return LearnerSolution(
        overlap=masked(overlaps["overlap"]),
        stderr=jnp.zeros((1, 1), theory_dtype()),
        error=masked(teacher.metric.error(S, data, key=key)),
        alpha=jnp.asarray(sensing.alpha, S.dtype),
        steps=state.step,
        residual=end.state.residual,
        result=code,
        history=jax.tree.map(lambda x: jnp.where(valid, x, nan()), end.history),
        covariance=masked(state.covariance),
        spectral_radius=not_recorded((), S.dtype),
        weights=jnp.where(valid, teacher.student.estimate(S), nan()),
        state=state,
        model=teacher,
        key=key,
        kind="gamp",
        teacher_overlap=masked(overlaps["teacher_overlap"]),
        train_loss=masked(loss),
        energy=masked(sensing.alpha * loss + learner.penalty(S)),
        gradient_norm=masked(_gradient(teacher, learner, S, sensing.adjoint(missed))),
    )


def _gradient(model: MatrixModel, learner: MatrixErm, S: Array, pull: Array) -> Array:
    """What a step of size one down the loss, and the penalty's shrinkage, move S by, over its
    entries: zero at the minimum alone, and without a nuclear norm (1 + λ)^{-1} ‖∇R‖."""
    one = jnp.ones((1, 1), theory_dtype()) / (2.0 * model.prior.weight)
    moved, _ = _Responder(model, learner).posterior((S + pull) * one[0, 0], one)
    return jnp.sqrt(jnp.mean((moved - S) ** 2))
