r"""Learners in message passing: their responses, how their runs go, and their risk at the end.

Equations here [Cui24; theory: empirical-risk, sections 1, 2 and 7], along the iteration of
iteration.py with g of the learner; of rows A is the divergence, of a matrix that of theory:

    R(W) = Σ_μ ℓ(link(W x_μ/√D), y_μ) + (λ/2) ‖W‖²,    ∇R = (1/√D) Σ_μ ∂ℓ(z_μ) x_μᵀ + λ W

A fixed point is a stationary point of R: ‖∇R‖/√D is returned with it. Undamped, a run follows the
state evolution of its learner step by step. Inputs with fixed directions make both overshoot: where
no damping is asked for, a run that does not settle is damped, and one that diverged begins again.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.core.options import Bayes
from jaxsmi.core.validate import check
from jaxsmi.learners.base import (
    AbstractIndexLearner,
    AbstractModelResponder,
    AbstractResponder,
    BayesResponder,
    learner_of,
)
from jaxsmi.learners.matrix_erm import MatrixErm, believed, residual, student_of
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.matrix import MatrixModel

_MORE = 0.8  # damping of a second run, after one that diverged (empirical)


class AbstractRisk(eqx.Module):
    """The risk that a learner descends."""

    @abc.abstractmethod
    def __call__(self, W: Array, data: Dataset) -> dict[str, Any]:
        """What a `LearnerSolution` holds beyond a `Solution`, at the signal W."""


class Task(NamedTuple):
    """A learner as message passing takes it.

    Attributes:
        model: Prior, design and channel that it believes in.
        responder: Its responses, from that model with the norm that labels tell.
        risk: None for the posterior of the model.
        precision: The estimate of A.
        calibrate: A, b and V are calibrated by the data.
        dampings: Of a run, and of further ones while they diverge.
        adaptive: The damping of a run is chosen on its way.
        check_labels: Raises a ValueError for labels that it cannot take.
    """

    model: AbstractModel
    responder: Callable[[AbstractModel], AbstractResponder]
    risk: AbstractRisk | None
    precision: str
    calibrate: bool
    dampings: tuple[float, ...]
    adaptive: bool
    check_labels: Callable[[Array], None]


def bayes_task(model: AbstractModel, learner: Bayes) -> Task:
    """The learner that knows the model."""
    settings = model.design.message_passing
    precision = learner.precision or settings.precisions[0]
    validate.choice("precision", precision, settings.precisions)
    allowed = "False for this model"
    check(settings.calibrated or not learner.calibrate, "calibrate", learner.calibrate, allowed)
    calibrate = settings.calibrated if learner.calibrate is None else learner.calibrate
    return Task(
        model=model,
        responder=BayesResponder,
        risk=None,
        precision=precision,
        calibrate=calibrate,
        dampings=settings.dampings,
        # where a family has dampings of its own, the choice is not left to pace.py
        adaptive=len(settings.dampings) == 1,
        check_labels=model.channel.check_labels,
    )


def _index_task(model: AbstractModel, learner: AbstractIndexLearner) -> Task:
    """A learner of rows."""
    student, _ = learner_of(learner, model)
    task = _risk_task(student.network, student, _IndexRisk(student), "divergence")
    return task._replace(check_labels=student.check_labels)


def _matrix_task(model: AbstractModel, learner: MatrixErm) -> Task:
    """A learner of one matrix."""
    teacher = student_of(model)
    responder = _MatrixResponder(believed(teacher), learner)
    return _risk_task(responder.student, responder, _MatrixRisk(teacher, responder), "state")


def _risk_task(
    model: AbstractModel, responder: AbstractResponder, risk: AbstractRisk, precision: str
) -> Task:
    return Task(
        model=model,
        responder=lambda _: responder,
        risk=risk,
        precision=precision,
        calibrate=False,  # by the posterior of the model, which is not the learner's
        dampings=(model.design.message_passing.dampings[0], _MORE),
        adaptive=True,
        check_labels=model.channel.check_labels,
    )


# by `AbstractLearner.explicit`: of rows, and of one matrix
TASKS: Mapping[bool, Callable[..., Task]] = {False: _index_task, True: _matrix_task}


class _IndexRisk(AbstractRisk):
    """R of a loss of fields."""

    learner: AbstractIndexLearner

    def __call__(self, W: Array, data: Dataset) -> dict[str, Any]:
        learner = self.learner
        operator = learner.network.design.operator(data.inputs)
        loss = lambda fields, label: learner.losses(fields[None], label[None])[0]
        losses, slope = jax.vmap(jax.value_and_grad(loss))(operator.forward(W), data.labels)
        gradient = operator.adjoint(slope) + learner.decay * W
        D = data.dimension
        return {
            "train_loss": jnp.mean(losses),
            "energy": jnp.sum(losses) / D + 0.5 * learner.decay * jnp.sum(W**2) / D,
            "gradient_norm": jnp.sqrt(jnp.sum(gradient**2) / D),
            "direction_overlap": None if data.directions is None else W @ data.directions.T / D,
        }


class _MatrixResponder(AbstractModelResponder):
    """Responses of a model with label noise of variance one, and the shrinkage of the penalty."""

    student: MatrixModel
    learner: MatrixErm

    def posterior(self, b: Array, A: Array) -> tuple[Array, Array]:
        """S (1, L, d) and V (1, 1) from b (1, L, d) of precision A (1, 1)."""
        prior = self.student.prior
        precision = A[0, 0]
        shrinkage = self.learner.shrinkage(precision, prior.weight, prior.symmetric)
        # singular values of entries O(1) grow with the sides: over this unit they are O(1)
        unit = float(b.shape[1] * b.shape[2]) ** 0.25
        R = b[0] / (precision * unit)
        made, slope = shrinkage.symmetric_matrix(R) if prior.symmetric else shrinkage.matrix(R)
        return unit * made[None], slope / precision * jnp.ones((1, 1))


class _MatrixRisk(AbstractRisk):
    """R of a matrix; the model of its solution is the teacher's, with the noise of that."""

    teacher: MatrixModel
    responder: _MatrixResponder

    def __call__(self, W: Array, data: Dataset) -> dict[str, Any]:
        operator = self.teacher.design.operator(data.inputs)
        missed = residual(self.teacher, W, data)
        loss = 0.5 * jnp.sum(missed**2) / data.samples
        # a nuclear norm has no gradient: instead a step of size one down the loss, and the
        # shrinkage of the penalty. It moves S nowhere at the minimum alone, and without that norm
        # by (1 + λ)^{-1} ∇R
        A = jnp.ones((1, 1), theory_dtype()) / (2.0 * self.teacher.prior.weight)
        moved, _ = self.responder.posterior((W + operator.adjoint(missed)) * A[0, 0], A)
        return {
            "train_loss": loss,
            "energy": operator.alpha * loss + self.responder.learner.penalty(W),
            "gradient_norm": jnp.sqrt(jnp.mean((moved - W) ** 2)),
            "model": self.teacher,
        }
