r"""Models of indices: rows W (P, D) seen through the fields of M tokens.

Equations here [TCDKZ25; theory: multi-index, Eqs. (1) to (3), (62) to (66)]:

    Z = W* x/√D (P, M),   y = link(Z) (+ noise),   α = N/D
    cosine_p = |M_pp| / √(Q_pp ρ_p),   M = Ŵ W*ᵀ/D,   Q = Ŵ Ŵᵀ/D,   ρ = W* W*ᵀ/D
        (up to the symmetries of the model: models/symmetry.py)
    plug-in error:  E ‖link(z) - link(ω)‖²,   (z, ω) Gaussian of covariance [[ρ, Mᵀ], [M, Q]]
    Bayes error:    E ‖link(z) - E[link(z)|ω]‖² = ½ E ‖link(z) - link(z')‖²,
                    z, z' independent given ω
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core import validate
from jaxsmi.core.arrays import not_recorded, theory_dtype
from jaxsmi.core.data import HasTeacher
from jaxsmi.core.results import Estimate
from jaxsmi.core.validate import check
from jaxsmi.design.blocks import Inputs
from jaxsmi.design.designs import IndexDesign, IndexOperator
from jaxsmi.design.tokens import Tokens
from jaxsmi.models.base import (
    AbstractMetric,
    AbstractModel,
    AbstractStudent,
    label_shape,
    title,
)
from jaxsmi.models.prediction import error_of_rows, prediction_error
from jaxsmi.models.symmetry import AbstractSymmetry
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent, squared_loss
from jaxsmi.numerics.quadrature import power_of_two
from jaxsmi.priors.iid import AbstractIidPrior


class IndexModel(AbstractModel, AbstractTeacher):
    """A sequence multi-index model: prior on W (P, D), fields Z = W x/√D (P, M), channel p(y|Z).

    `inputs`: fixed directions of the inputs; None: they are centred.
    """

    prior: eqx.AbstractVar[AbstractIidPrior]
    channel: eqx.AbstractVar[AbstractChannel]
    symmetry: eqx.AbstractVar[tuple[AbstractSymmetry, ...]]
    inputs: Tokens | None = eqx.field(default=None, kw_only=True)

    @property
    def tokens(self) -> int:
        """M, the number of tokens."""
        return self.channel.tokens

    @property
    def design(self) -> IndexDesign:
        """Inputs (N, M, D), teachers W (P, D), α = N/D."""
        return IndexDesign(
            prior=self.prior, indices=self.indices, tokens=self.tokens, inputs=self.inputs
        )

    @property
    def student(self) -> IndexStudent:
        """Rows (P, D)."""
        return IndexStudent(self)

    @property
    def metric(self) -> IndexMetric:
        """Cosines up to the symmetries, and prediction errors."""
        return IndexMetric(self, self.symmetry)

    @property
    def recovery(self) -> Array:
        """P/k of noiseless labels that fix k combinations of the fields, under a prior with a
        density."""
        fixed = self.channel.constraints
        allowed = (
            "a noiseless model whose label fixes some combinations of its fields (attention, the "
            "last layer one head, tied of rank one or two, or untied of rank one)"
        )
        check(fixed is not None, "model", title(self), allowed)
        check(self.prior.traits.continuous, "model", self.prior, "a continuous (Gaussian) prior")
        # NaN never: `check` has raised, which a type checker cannot know
        return jnp.asarray(self.indices / (fixed or jnp.nan), theory_dtype())

    def unsupported_reason(self, purpose: str = "inference") -> str | None:
        """Also of averages, and of directions under a prior whose columns differ: then S does not
        say which direction grows first."""
        if purpose == "averages":
            return (
                f"fit: got runs of {title(self)}; allowed: runs of a matrix model (weights are "
                "known up to symmetries)."
            )
        if purpose == "directions" and not self.prior.traits.identical:
            return (
                "model: got a prior whose columns have laws of their own; allowed: one of iid "
                "columns, such as smi.priors.Gaussian() (state_evolution takes both)."
            )
        return super().unsupported_reason(purpose)

    def teacher_student(
        self,
        student: AbstractTeacher | None = None,
        loss: Callable[[Array, Array], Array] | None = None,
    ) -> TeacherStudent:
        """The model beside a student, any index model of as many tokens and the same labels."""
        allowed = f"an index model of {self.tokens} tokens"
        learner = self if student is None else student
        learner = validate.instance("student", learner, IndexModel, allowed)
        check(learner.tokens == self.tokens, "student", title(learner), allowed)
        check(self.channel.drawable, "model", title(self), "one whose labels can be drawn")
        shapes = [label_shape(self), label_shape(learner)]
        allowed = f"one with predictions of the labels' shape {shapes[0]}"
        # one number is one number, whatever its axes
        same = shapes[0] == shapes[1] or set(shapes) == {(), (1,)}
        check(same, "student", f"predictions of shape {shapes[1]}", allowed)
        S = self.prior.second_moment(self.indices)
        # without directions the fixed rows are those of the teacher alone
        gram, encoding = S, jnp.zeros((self.tokens, 0), S.dtype)
        if self.inputs is not None:
            gram, encoding = self.inputs.joint_gram(S), self.inputs.encoding
        return TeacherStudent(
            sample_loss=_Loss(self.channel, learner, squared_loss if loss is None else loss),
            agreement=_Cosines(learner, self.indices),
            draw_gram=eqx.Partial(self.prior.gram, indices=self.indices),
            encoding=encoding,
            gram=gram,
            targets=self.indices,
            rows=learner.indices,
            groups=1,
            tokens=self.tokens,
            noise_size=self.channel.noise_size,
            sized=not self.prior.traits.wishart,
        )

    def link_of_fields(self) -> tuple[Callable[[Array], Array], int, int]:
        """The link, or of a noisy channel with few outcomes their probabilities."""
        shape = (self.indices, self.tokens)
        channel = self.channel
        outcomes = channel.outcomes
        if outcomes is None or not channel.noise_size:
            return lambda z: jnp.ravel(channel.link(z.reshape(shape))), *shape
        V = 1e-8 * jnp.eye(shape[0])  # a channel smooths labels by V: nearly nothing

        def odds(z: Array) -> Array:
            omega = jnp.broadcast_to(z.reshape(shape), (len(outcomes), *shape))
            return jnp.exp(channel.respond(channel.statistic(outcomes), omega, V).log_partition)

        return odds, *shape


class IndexStudent(AbstractStudent):
    """Rows (P, D), seen as the teacher's."""

    model: IndexModel

    def shape(self, dimension: int) -> tuple[int, int]:
        """(P, D)."""
        return (self.model.indices, dimension)

    def fields(self, weights: Array, inputs: Inputs) -> Array:
        """Z = W x/√D (N, P, M)."""
        return IndexOperator(inputs).forward(weights)

    def signal(self, estimate: Array) -> Array:
        """The rows themselves."""
        P = self.model.indices
        rows = estimate.ndim == 2 and len(estimate) == P
        check(rows, "solution", estimate, f"weights of shape ({P}, D)")
        return estimate

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Rows (P, D) by the prior."""
        return self.model.prior.sample(key, self.model.indices, dimension)

    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """Finite rows (P, D)."""
        shape = self.shape(dimension)
        check(teacher.shape == shape, "teacher", teacher, f"shape {shape}")
        check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")


class IndexMetric(AbstractMetric):
    """Overlaps of rows, cosines up to the symmetries, prediction errors."""

    model: IndexModel

    def comparable(self, teacher: Array) -> bool:
        """The teacher has P rows."""
        return teacher.shape[0] == self.model.indices

    def error(
        self, weights: Array, data: HasTeacher, *, key: PRNGKeyArray, points: int = 2048
    ) -> Array:
        """Plug-in prediction error of an estimate (P, D) on new Gaussian inputs, noiseless labels
        of the data's teacher; NaN without a teacher."""
        if data.teacher is None:
            return not_recorded((), theory_dtype())
        return error_of_rows(self.model, weights, data, key=key, points=points).value

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, points: int
    ) -> Estimate:
        """By eight randomised nets of about so many points in all."""
        # nets of a power of two are balanced; eight of them give the spread to 27 %
        size = power_of_two(points // 8)
        key = validate.key("key", key)
        return prediction_error(self.model, Q, key=key, bayes=bayes, points=size)

    def theory_error(self, V: Array, *, key: PRNGKeyArray, points: int) -> Array:
        """The plug-in prediction error."""
        # at a fixed point of Bayes M = Q, so that V says all
        Q = self.model.prior.second_moment(self.model.indices) - V
        return prediction_error(self.model, Q, key=key, points=points).value


class _Loss(eqx.Module):
    """ℓ(link(z), y) of one sample, y drawn from z* (P*, M) by a channel."""

    channel: AbstractChannel
    student: IndexModel
    loss: Callable[[Array, Array], Array] = eqx.field(static=True)

    def __call__(self, hidden: Array, fields: Array, noise: Array) -> Array:
        label = self.channel.label(hidden, noise)
        return self.loss(self.student.link(fields).reshape(label.shape), label)


class _Cosines(eqx.Module):
    """Cosines (P,) of a student's rows up to its symmetries; where the teacher has another number
    of rows, of each row that with the closest of the teacher's."""

    student: IndexModel
    targets: int = eqx.field(static=True)

    def __call__(self, cross: Array, Q: Array, gram: Array) -> Array:
        M = cross[:, : self.targets]
        rho = gram[: self.targets, : self.targets]
        # another number of rows cannot be matched one to one
        if self.student.indices == self.targets:
            return self.student.metric.cosines(M, Q, rho)
        scale = jnp.sqrt(jnp.outer(jnp.diagonal(Q), jnp.diagonal(rho)))
        return jnp.max(jnp.abs(M) / jnp.where(scale > 0.0, scale, 1.0), axis=1)


def align(estimate: ArrayLike, teacher: ArrayLike, model: IndexModel) -> Array:
    r"""Bring an estimate onto a teacher by the symmetries of its model.

    Minimises ‖R Ŵ - W*‖_F over the group: signs of M_pp; the best signed permutation; Procrustes
    R = U Vᵀ of M_bᵀ. Two groups come near, and no nearer: of a query and its key the query is
    brought closest, and the key follows; an even group of more than six rows takes the order that
    is best for any signs.

    Args:
        estimate: Rows Ŵ (P, D).
        teacher: Rows W* (P, D).
        model: The index model whose symmetries may be used.

    Returns:
        The aligned estimate (P, D).

    Raises:
        ValueError: Where the shapes differ from each other or from P.

    Example:
        >>> import jax, jax.numpy as jnp, jaxsmi as smi
        >>> W = jax.random.normal(jax.random.key(0), (2, 5))
        >>> bool(jnp.allclose(smi.align(-W, W, smi.DeepAttention(2, 2)), W))
        True

    Cost:
        O(P² D).

    Source:
        [theory: multi-index, section 9].
    """
    allowed = "an index model, such as smi.DeepAttention(2, 2)"
    model = validate.instance("model", model, IndexModel, allowed)
    truth = validate.array("teacher", teacher, f"rows ({model.indices}, D)")
    rows = truth.ndim == 2 and len(truth) == model.indices
    check(rows, "teacher", teacher, f"({model.indices}, D)")
    aligned = validate.array("estimate", estimate, f"rows {truth.shape}")
    same = aligned.shape == truth.shape
    check(same, "estimate", estimate, f"the teacher's shape {truth.shape}")
    # symmetries act on different rows: their order does not matter
    for symmetry in model.symmetry:
        block = np.asarray(symmetry.indices)
        aligned = aligned.at[block].set(symmetry.align(aligned[block], truth[block]))
    return aligned
