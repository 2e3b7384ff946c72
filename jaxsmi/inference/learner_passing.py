r"""Learners in message passing: their responses, how their runs go, and their risk at the end.

Equations here [Cui24; theory: empirical-risk, sections 1, 2 and 7], along the iteration of
gamp_step.py with g of the learner; A is the divergence, of a linear matrix that of theory:

    R(W) = Σ_μ ℓ(link(W x_μ/√D), y_μ) + (λ/2) ‖W‖²,    ∇R = (1/√D) Σ_μ ∂ℓ(z_μ) x_μᵀ + λ W

A fixed point is a stationary point of R: ‖∇R‖/√D is returned with it. Undamped, a run follows the
state evolution of its learner step by step. Inputs with fixed directions make both overshoot: where
no damping is asked for, a run that does not settle is damped, and one that diverged begins again.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.channels.pullback import frame, pulled_back
from jaxsmi.core.arrays import missing_array, theory_dtype
from jaxsmi.core.data import Dataset
from jaxsmi.inference.gamp_step import Task
from jaxsmi.learners.base import (
    AbstractIndexLearner,
    AbstractModelResponder,
    learner_of,
)
from jaxsmi.learners.erm import Erm
from jaxsmi.learners.matrix_erm import MatrixErm, one_matrix, with_unit_noise
from jaxsmi.models.base import AbstractModel
from jaxsmi.models.matrix import MatrixModel

_MORE = 0.8  # damping of a second run, after one that diverged (empirical)


def learner_task(model: AbstractModel, learner: Any) -> Task:
    """Message passing of a learner of rows, or of one matrix."""
    precision = "divergence"
    if not learner.matrix:
        responder, _ = learner_of(learner, model)
        student, risk = responder.network, _IndexRisk(responder)
        check_labels = responder.check_labels
    else:
        teacher = one_matrix(model)
        if learner.closed_form(teacher):
            responder, precision = _MatrixResponder(with_unit_noise(teacher), learner), "state"
        else:
            responder = _LossResponder(teacher, learner, learner.of_fields(teacher)[0])
        student, risk = responder.student, _MatrixRisk(teacher, responder)
        check_labels = student.channel.check_labels
    return Task(
        model=student,
        responder=lambda _: responder,
        risk=risk,
        precision=precision,
        dampings=(student.design.message_passing.dampings[0], _MORE),
        check_labels=check_labels,
    )


class _IndexRisk(eqx.Module):
    """Risk R of a loss of fields; a posterior has none."""

    learner: AbstractIndexLearner

    def __call__(self, W: Array, data: Dataset) -> dict[str, Any]:
        learner, D = self.learner, data.dimension
        directions = data.directions
        B = None if directions is None else W @ directions.T / D
        penalty = learner.penalty
        if penalty is None:
            none = missing_array((), W.dtype)
            names = ("train_loss", "energy", "gradient_norm")
            return dict.fromkeys(names, none) | {"direction_overlap": B}
        operator = learner.network.design.operator(data.inputs)
        loss = lambda fields, label: learner.losses(fields[None], label[None])[0]
        losses, slope = jax.vmap(jax.value_and_grad(loss))(operator.forward(W), data.labels)
        gradient = penalty.subgradient(W, operator.adjoint(slope))
        return {
            "train_loss": jnp.mean(losses),
            "energy": (jnp.sum(losses) + penalty(W)) / D,
            "gradient_norm": jnp.sqrt(jnp.sum(gradient**2) / D),
            "direction_overlap": B,
        }


class _MatrixResponder(AbstractModelResponder):
    """Responses of the square loss, which are those of a model with label noise of variance one,
    and the shrinkage of the penalty."""

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
        shrunk, slope = shrinkage.symmetric_matrix(R) if prior.symmetric else shrinkage.matrix(R)
        return unit * shrunk[None], slope / precision * jnp.ones((1, 1))

    def bethe_terms(self, b: Array, A: Array) -> tuple[Array, Array]:
        """Return NaN, and C ⊗ C estimated by the response to one field of noise."""
        noise = self.student.prior.noise(jax.random.key(0), b.shape)
        _, change = jax.jvp(lambda b: self.posterior(b, A)[0], (b,), (noise,))
        return missing_array((), b.dtype), jnp.mean(change**2).reshape(1, 1, 1, 1)


class _LossResponder(_MatrixResponder):
    """Responses of any loss, by a learner of the coordinates of the fields."""

    fields: Erm

    @property
    def tolerance(self) -> Array:
        return self.fields.tolerance

    def statistic(self, labels: Array) -> Array:
        return labels

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        if not self.student.prior.symmetric:
            return self.fields.respond(statistic, omega, V)
        E = frame(self.student.tokens)
        scale = 0.5 / self.student.prior.weight
        return pulled_back(self.fields.respond(statistic, omega @ E, scale * V), E, scale)


class _MatrixRisk(eqx.Module):
    """Risk R of a matrix; the solution has the model and the noise of the teacher."""

    teacher: MatrixModel
    responder: _MatrixResponder

    def __call__(self, W: Array, data: Dataset) -> dict[str, Any]:
        learner = self.responder.learner
        operator = self.teacher.design.operator(data.inputs)
        loss = lambda h: learner.losses(self.teacher, h, data.labels)
        losses, pull = jax.vjp(loss, operator.forward(W))
        slope = pull(jnp.ones_like(losses))[0]
        # a nuclear norm has no gradient: instead a step of size one down the loss, and the
        # shrinkage of the penalty. It leaves S in place at the minimum only; without that norm it
        # moves S by (1 + λ)^{-1} ∇R
        A = jnp.ones((1, 1), theory_dtype()) / (2.0 * self.teacher.prior.weight)
        after, _ = self.responder.posterior((W - operator.adjoint(slope)) * A[0, 0], A)
        train = jnp.mean(losses)
        return {
            "train_loss": train,
            "energy": operator.alpha * train + learner.penalty(W),
            "gradient_norm": jnp.sqrt(jnp.mean((after - W) ** 2)),
            "model": self.teacher,
        }
