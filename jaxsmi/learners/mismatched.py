r"""Mismatched inference: the posterior mean of a model that did not make the labels.

Equations here [theory: empirical-risk, sections 2 and 3]: g, ∂g of the student's channel, f and C
of its prior; with b = M̂ w* + Q̂^{1/2} ξ, w* by the teacher's prior,

    Q = E f fᵀ,   M = E f w*ᵀ,   V = E C

in closed form where the student's prior is Gaussian, else by a grid over w* and ξ.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve
from jaxtyping import Array

from jaxsmi.channels.base import ClosedFormChannel
from jaxsmi.channels.proximal import Reply
from jaxsmi.core import validate
from jaxsmi.core.validate import check
from jaxsmi.learners.base import (
    AbstractIndexLearner,
    AbstractModelResponder,
    Conjugates,
    LabelOf,
    Moments,
    Overlaps,
    Truth,
    linear_moments,
)
from jaxsmi.models.index import IndexModel
from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.numerics.quadrature import gaussian_points

_NODES = 2**14  # of the average over weights, of each component of the teacher's prior


class Mismatched(AbstractModelResponder, AbstractIndexLearner):
    """The posterior mean of another model: its prior and its channel, on labels it did not make.

    Args:
        student: A model of indices with a posterior: `gamp` of it is the learner.

    Raises:
        ValueError: For a model without a posterior.

    Example:
        >>> import jaxsmi as smi
        >>> smi.Mismatched(smi.links.linear(0.5)).student.name
        'linear'

    Source:
        [theory: empirical-risk, section 2].
    """

    student: IndexModel

    def __check_init__(self) -> None:
        allowed = "a model of indices with a posterior, such as smi.links.linear(0.5)"
        validate.instance("student", self.student, IndexModel, allowed)
        reason = self.student.unsupported_reason()
        if reason is not None:
            raise ValueError(reason)

    def taught_by(self, model: IndexModel) -> Mismatched:
        """Itself, for labels that its student could have made."""
        student = self.student
        allowed = f"a student of {model.channel.tokens} tokens, as the labels'"
        check(student.tokens == model.channel.tokens, "student", student.tokens, allowed)
        return self

    @property
    def sloped(self) -> bool:
        """Where the log-partition is a closed form, of labels that do not jump."""
        channel = self.student.channel
        drawn = channel.outcomes is None
        return isinstance(channel, ClosedFormChannel) and drawn and channel.pathwise is True

    def check_labels(self, labels: Array) -> None:
        """Those of the student's channel."""
        self.student.channel.check_labels(labels)

    def reply(self, law: LabelOf, goal: Array, noise: Array, omega: Array, V: Array) -> Reply:
        """The student's channel, with the slope along the label where that is a closed form."""
        respond = lambda goal: self.respond(self.statistic(jax.vmap(law)(goal, noise)), omega, V)
        posterior = respond(goal)
        # a posterior has neither a proximal point nor an envelope
        unknown = jnp.full(len(omega), jnp.nan, omega.dtype)
        slope = jnp.full((*omega.shape[:2], goal.shape[1]), jnp.nan, omega.dtype)
        if self.sloped:
            slope = jnp.zeros_like(slope)
            # one direction at a time: a full Jacobian would hold those of all samples
            for m in range(goal.shape[2]):
                for p in range(goal.shape[1]):
                    unit = jnp.zeros_like(goal).at[:, p, m].set(1.0)
                    moved = jax.jvp(lambda goal: respond(goal).g, (goal,), (unit,))[1]
                    slope = slope.at[:, :, p].add(moved[:, :, m])
        second = jnp.zeros(len(omega), bool)
        g, dg = posterior.g, posterior.dg
        return Reply(g, dg, slope, unknown, unknown, posterior.error, second)

    def moments(self, conjugates: Conjugates, truth: Truth) -> Moments:
        """Closed forms of a Gaussian prior, else a grid over the teacher's weights and the
        noise."""
        P = self.student.indices
        A = conjugates.precision
        prior = self.student.prior
        mixture = prior.column(P)
        # one Gaussian: f is linear in b
        if prior.traits.continuous and len(mixture.log_weight) == 1:
            covariance = mixture.covariance[0]
            C = solve(jnp.eye(P, dtype=A.dtype) + covariance @ A, covariance)
            return linear_moments(0.5 * (C + C.T), conjugates, truth)
        return self._averaged(conjugates, truth)

    def _averaged(self, conjugates: Conjugates, truth: Truth) -> Moments:
        """`moments` by a sum over the components of the teacher's prior and a grid in each."""
        student = self.student.prior.column(self.student.indices)
        goal = truth.second_moment.shape[0]
        P = len(conjugates.noise)
        teacher = truth.prior.column(goal)
        # a fixed key: theory takes the same nodes at every step, or it would not converge
        points = gaussian_points(jax.random.key(0), _NODES, 1, goal + P)
        zeta = points.position[0, :, :goal]
        xi = points.position[0, :, goal:] @ sqrt_psd(conjugates.noise)

        def component(log_weight: Array, mean: Array, factor: Array) -> Moments:
            w = mean + zeta @ factor.T
            b = w @ conjugates.signal.T + xi
            respond = lambda b: student.respond(b, conjugates.precision)[1:]
            f, C = jax.vmap(respond)(b)
            weight = jnp.exp(log_weight) * points.weight[0]
            average = lambda x, y: jnp.einsum("n,np,nq->pq", weight, x, y)
            V = jnp.einsum("n,npq->pq", weight, C)
            nothing = jnp.zeros_like(conjugates.direction)
            overlaps = Overlaps(average(f, f), average(f, w), V, nothing)
            return Moments(overlaps, jnp.einsum("n,nac,nbd->abcd", weight, C, C))

        each = jax.vmap(component)(teacher.log_weight, teacher.mean, teacher.factor)
        return jax.tree.map(lambda x: jnp.sum(x, 0), each)
