r"""Mismatched inference: the posterior mean of a model that did not make the labels.

Equations here [theory: empirical-risk, sections 2 and 3]: g, ∂g of the student's channel, f and C
of its prior; with b = M̂ w* + Q̂^{1/2} ξ, w* drawn from the teacher's prior,

    Q = E f fᵀ,   M = E f w*ᵀ,   V = E C

in closed form if the student's prior is Gaussian (of any variance of each column), else by a grid
over w* and ξ.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve
from jaxtyping import Array

from jaxsmi.channels.base import ClosedFormChannel
from jaxsmi.channels.proximal import ProximalOutput
from jaxsmi.core import validate
from jaxsmi.core.arrays import symmetric
from jaxsmi.core.validate import check
from jaxsmi.learners.base import (
    AbstractIndexLearner,
    AbstractModelResponder,
    Conjugates,
    Law,
    OrderParameters,
    Regularity,
    TeacherLaw,
    WeightAverages,
    check_columns,
    linear_weight_averages,
)
from jaxsmi.models.index import IndexModel
from jaxsmi.numerics.linear_algebra import sqrt_psd
from jaxsmi.numerics.quadrature import gaussian_points

_GRID_NODES = 2**14  # nodes over w* and ξ, for each component of the teacher's prior


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

    def bind(self, model: IndexModel) -> Mismatched:
        """Return itself, if its student has the tokens of `model`."""
        student = self.student
        allowed = f"a student of {model.channel.tokens} tokens, as many as the model has"
        check(student.tokens == model.channel.tokens, "student", student.tokens, allowed)
        if not student.prior.traits.identical:
            columns = len(student.prior.column(student.indices).log_weight)
            check_columns("student", student.prior, columns, model)
        return self

    @property
    def regularity(self) -> Regularity:
        """A derivative through the label for a log-partition in closed form and labels that vary
        continuously."""
        channel = self.student.channel
        drawn = channel.outcomes is None
        known = isinstance(channel, ClosedFormChannel) and drawn and channel.pathwise is True
        return Regularity(label_slope=known)

    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError for labels outside of the support of the student's channel."""
        self.student.channel.check_labels(labels)

    def respond_to_teacher(
        self, law: Law, teacher_fields: Array, noise: Array, omega: Array, V: Array
    ) -> ProximalOutput:
        """Return g and ∂g of the student's channel; the derivative through the label is zero if the
        channel has no closed form (`regularity.label_slope`)."""
        respond = lambda z: self.respond(self.statistic(jax.vmap(law)(z, noise)), omega, V)
        posterior = respond(teacher_fields)
        none = jnp.zeros(len(omega), omega.dtype)  # neither a loss nor an envelope
        _, P_star, M = teacher_fields.shape
        slope = jnp.zeros((*omega.shape[:2], P_star), omega.dtype)
        if self.regularity.label_slope:
            # one direction at a time: a full Jacobian would hold those of all samples
            for m in range(M):
                for p in range(P_star):
                    unit = jnp.zeros_like(teacher_fields).at[:, p, m].set(1.0)
                    change = jax.jvp(lambda z: respond(z).g, (teacher_fields,), (unit,))[1]
                    slope = slope.at[:, :, p].add(change[:, :, m])
        single = jnp.zeros(len(omega), bool)  # a posterior mean is unique
        g, dg = posterior.g, posterior.dg
        return ProximalOutput(g, dg, slope, none, none, posterior.error, single)

    def weight_averages(self, conjugates: Conjugates, teacher: TeacherLaw) -> WeightAverages:
        """Average in closed form for a Gaussian prior, else by a grid over the teacher's weights
        and the noise."""
        P = self.student.indices
        A = conjugates.precision
        prior = self.student.prior
        mixture = prior.column(P)
        # one Gaussian, of all columns or of each: f is linear in b
        single = len(mixture.log_weight) == 1 or not prior.traits.identical
        if prior.traits.continuous and single:
            C0 = mixture.covariance
            C = solve(jnp.eye(P, dtype=A.dtype) + C0 @ A, C0)
            C = symmetric(C)
            return linear_weight_averages(C, self.ridge, conjugates, teacher)
        return self._grid_averages(conjugates, teacher)

    def _grid_averages(self, conjugates: Conjugates, teacher: TeacherLaw) -> WeightAverages:
        """Average by a sum over the components of the teacher's prior and a grid in each."""
        student = self.student.prior.column(self.student.indices)
        P_star = teacher.second_moment.shape[0]
        mixture = teacher.prior.column(P_star)
        # a fixed key: theory takes the same nodes at every step, or it would not converge
        points = gaussian_points(jax.random.key(0), _GRID_NODES, 1, P_star + len(conjugates.noise))
        zeta = points.position[0, :, :P_star]
        xi = points.position[0, :, P_star:] @ sqrt_psd(conjugates.noise)

        def component(log_weight: Array, mean: Array, factor: Array) -> WeightAverages:
            w = mean + zeta @ factor.T
            b = w @ conjugates.signal.T + xi
            _, f, C = jax.vmap(lambda b: student.respond(b, conjugates.precision))(b)
            weight = jnp.exp(log_weight) * points.weight[0]
            average = lambda x, y: jnp.einsum("n,np,nq->pq", weight, x, y)
            V = jnp.einsum("n,npq->pq", weight, C)
            nothing = jnp.zeros_like(conjugates.direction)
            overlaps = OrderParameters(average(f, f), average(f, w), V, nothing)
            squared = jnp.einsum("n,nac,nbd->abcd", weight, C, C)
            return WeightAverages(overlaps, squared, jnp.zeros((), V.dtype))

        terms = jax.vmap(component)(mixture.log_weight, mixture.mean, mixture.factor)
        return jax.tree.map(lambda x: jnp.sum(x, 0), terms)
