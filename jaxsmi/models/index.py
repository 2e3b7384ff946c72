r"""What every index model can do: draw data, predict, and measure an estimate.

Equations here [TCDKZ25; theory: multi-index, Eqs. (1) to (3), (62) to (66)]:

    Z = W* x/√D (P, M),   y = link(Z) (+ noise),   α = N/D
    cosine_p = |M_pp| / √(Q_pp ρ_p),   M = Ŵ W*ᵀ/D,   Q = Ŵ Ŵᵀ/D,   ρ = W* W*ᵀ/D
        (up to the symmetries of the model: models/symmetry.py)
    plug-in error:  E ‖link(z) - link(ω)‖²,   (z, ω) Gaussian of covariance [[ρ, Mᵀ], [M, Q]]
    Bayes error:    E ‖link(z) - E[link(z)|ω]‖² = ½ E ‖link(z) - link(z')‖²,
                    z, z' independent given ω
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import Ability, Arguments, check, check_rows
from jaxsmi.core.data import Dataset, Regenerated
from jaxsmi.core.inputs import all_finite
from jaxsmi.core.results import Estimate
from jaxsmi.models.base import AbstractModel, overlaps_of
from jaxsmi.models.prediction import (
    compiled_prediction_error,
    error_of_rows,
    prediction_error,
)
from jaxsmi.models.symmetry import AbstractSymmetry, NoSymmetry
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent, squared_loss
from jaxsmi.models.tokens import Directions, Tokens
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.priors.gaussian import Gaussian
from jaxsmi.priors.iid import AbstractIidPrior
from jaxsmi.sensing.blocks import product_dtype
from jaxsmi.sensing.index import IndexSensing

__all__ = ["AbstractIndexModel"]


class AbstractIndexModel(AbstractModel, AbstractTeacher):
    """A sequence multi-index model: prior on W (P, D), fields Z = W x/√D (P, M), channel p(y|Z)."""

    prior: eqx.AbstractVar[AbstractIidPrior]
    channel: eqx.AbstractVar[AbstractChannel]
    symmetry: eqx.AbstractVar[tuple[AbstractSymmetry, ...]]

    @property
    def indices(self) -> int:
        """P, the number of indices."""
        return self.channel.indices

    @property
    def tokens(self) -> int:
        """M, the number of tokens."""
        return self.channel.tokens

    def link(self, fields: Array) -> Array:
        """The noiseless label of one sample from its fields (P, M): the channel's link."""
        return self.channel.link(fields)

    def noisy(self, noises: Array) -> Sequence[AbstractIndexModel]:
        """By the channel; numbers beside it stay."""
        channels = self.channel.noisy(noises)
        return [eqx.tree_at(lambda model: model.channel, self, channel) for channel in channels]

    def refusal(self, ability: Ability) -> str | None:
        """Also directions under a prior whose columns differ: what grows first is not what S
        says."""
        if ability is Ability.DIRECTIONS and not self.prior.traits.identical:
            return (
                "model: got a prior whose columns have laws of their own; allowed: one of iid "
                "columns, such as smi.priors.Gaussian() (state_evolution takes both)."
            )
        return super().refusal(ability)

    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs of other tokens, labels of another size, or, if asked to, a
        teacher of other rows."""
        shown = f"(N, {self.tokens}, D): M tokens a sample"
        check(data.inputs.shape[1] == self.tokens, "data.inputs", data.inputs, shown)
        if teacher and data.teacher is not None:
            shown = f"({self.indices}, D): P rows"
            check(self.comparable(data.teacher), "data.teacher", data.teacher, shown)
        fields = jax.ShapeDtypeStruct((self.indices, self.tokens), float)
        shape = jax.eval_shape(self.link, fields).shape
        given = data.labels.shape[1:]
        # a student may predict one number as (1,) for labels of shape (), and the reverse
        single = not teacher and np.prod(given) == 1 and np.prod(shape) == 1
        if not single:
            check_rows(data.labels, shape)

    @property
    def of_rows(self) -> bool:
        """It is."""
        return True

    @property
    def inputs(self) -> Tokens | None:
        """Fixed directions of the inputs; None: they are centred."""
        return None

    # Message passing and theory

    @property
    def precisions(self) -> tuple[str, ...]:
        """The control variate first."""
        return ("controlled", "outer", "divergence", "state")

    @property
    def dampings(self) -> tuple[float, ...]:
        """0 alone: undamped, a run follows state evolution step by step."""
        return (0.0,)

    @property
    def calibrated(self) -> bool:
        """By default."""
        return True

    @property
    def recovery(self) -> Array:
        """P/k of noiseless labels that fix k combinations of the fields, under a prior with a
        density."""
        fixed = self.channel.constraints
        allowed = (
            "a noiseless model whose label fixes some combinations of its fields (attention, the "
            "last layer one head, tied of rank one or two, or untied of rank one)"
        )
        check(fixed is not None, "model", self.title, allowed)
        check(self.prior.traits.continuous, "model", self.prior, "a continuous (Gaussian) prior")
        return jnp.asarray(self.indices / (fixed or jnp.nan), theory_dtype())

    def shapes(self, data: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the signal (P, D) and of its fields (N, P, M) in message passing."""
        self.check_data(data)
        return (self.indices, data.dimension), (data.samples, self.indices, self.tokens)

    def signal(self, teacher: Array) -> Array:
        """The signal of message passing, from a teacher: the same."""
        return teacher

    def estimate(self, signal: Array) -> Array:
        """What a user sees of the signal of message passing: all of it."""
        return signal

    def sensing(self, data: Dataset) -> IndexSensing:
        """How the signal is seen through the inputs of `data`."""
        self.check_data(data, teacher=False)
        return IndexSensing(data.inputs)

    # Data

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input, (M, D)."""
        return (self.tokens, dimension)

    def complexity(self, samples: int, dimension: int) -> float:
        """α = N/D."""
        return samples / dimension

    def samples_at(self, alpha: float, dimension: int) -> int:
        """N = round(α D)."""
        return round(alpha * dimension)

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Rows (P, D) by the prior."""
        return self.prior.sample(key, self.indices, dimension)

    def admit_teacher(self, teacher: Array, dimension: int) -> None:
        """Finite rows (P, D)."""
        shape = self.student_shape(dimension)
        check(teacher.shape == shape, "teacher", teacher, f"shape {shape}")
        if concrete(teacher):
            check(all_finite(teacher), "teacher", teacher, "finite numbers")

    def directions_of(
        self, key: PRNGKeyArray | None, teacher: Array, given: ArrayLike | None
    ) -> Directions | None:
        """Those of `inputs`."""
        if self.inputs is None:
            return super().directions_of(key, teacher, given)
        S = self.prior.second_moment(self.indices)
        return self.inputs.around(key, teacher.astype(S.dtype), S, given)

    def draw_labels(self, key: PRNGKeyArray, teacher: Array, inputs: Array | Regenerated) -> Array:
        """Labels (N, ...) of the channel."""
        return _labels(self.channel, inputs, teacher, key)

    # The network

    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student, (P, D)."""
        return (self.indices, dimension)

    def start(
        self,
        key: PRNGKeyArray,
        dimension: int,
        scale: ArrayLike = 1.0,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Random weights (P, D) of a student: scale × N(0, 1)."""
        shape = self.student_shape(dimension)
        return jnp.multiply(scale, jax.random.normal(key, shape, dtype or theory_dtype()))

    def outputs(self, weights: Array, inputs: Array) -> Array:
        """link(W x/√D) of inputs (N, M, D), in the precision of the inputs."""
        dtype = product_dtype(inputs)
        cast = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, self)
        return jax.vmap(cast.link)(IndexSensing(inputs).forward(weights).astype(dtype))

    def predicted_shape(self, estimate: Array) -> tuple[int, int]:
        """(M, D) for an estimate (P, D)."""
        shown = f"weights of shape ({self.indices}, D)"
        check(estimate.shape[:-1] == (self.indices,), "solution", estimate, shown)
        return (self.tokens, estimate.shape[-1])

    def predicted_labels(self, estimate: Array, inputs: Array) -> Array:
        """link(Ŵ x/√D)."""
        return jax.vmap(self.link)(IndexSensing(inputs).forward(estimate))

    def teacher_student(
        self,
        student: AbstractTeacher | None = None,
        loss: Callable[[Array, Array], Array] | None = None,
    ) -> TeacherStudent:
        """The model beside a student, any index model of as many tokens and the same labels."""
        learner = self if student is None else student
        allowed = f"an index model of {self.tokens} tokens"
        learner = Arguments().instance("student", learner, AbstractIndexModel, allowed)
        check(learner.tokens == self.tokens, "student", learner.title, allowed)
        check(self.channel.drawable, "model", self.title, "one whose labels can be drawn")
        shapes = [
            jax.eval_shape(m.link, jax.ShapeDtypeStruct((m.indices, m.tokens), float)).shape
            for m in (self, learner)
        ]
        allowed = f"one with predictions of the labels' shape {shapes[0]}"
        same = shapes[0] == shapes[1] or set(shapes) == {(), (1,)}
        check(same, "student", f"predictions of shape {shapes[1]}", allowed)
        S = self.prior.second_moment(self.indices)
        gram = S
        encoding = jnp.zeros((self.tokens, 0), S.dtype)
        if self.inputs is not None:
            R = self.inputs.of(self.indices).astype(S.dtype)
            encoding = self.inputs.encoding
            gram = jnp.block([[S, R], [R.T, self.inputs.gram]])
        return TeacherStudent(
            sample_loss=_Loss(self.channel, learner, squared_loss if loss is None else loss),
            agreement=_Cosines(learner, self.indices),
            draw_gram=_DrawnGram(self),
            encoding=encoding,
            gram=gram,
            targets=self.indices,
            rows=learner.indices,
            groups=1,
            tokens=self.tokens,
            noise_size=self.channel.noise_size,
            sized=not isinstance(self.prior, Gaussian),
        )

    # What was learned

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """What an estimate (P, D) has in common with itself and with a teacher (P*, D).

        Returns:
            "overlap" Q = Ŵ Ŵᵀ/D (P, P), "teacher_overlap" M = Ŵ W*ᵀ/D (P, P*), "cosine" (P,);
            NaN without a teacher, the cosine also where P* is not P.
        """
        weights, D = weights.astype(theory_dtype()), weights.shape[1]
        Q = weights @ weights.T / D
        if teacher is None:
            return overlaps_of(Q)
        teacher = teacher.astype(Q.dtype)
        cross = weights @ teacher.T / D
        if not self.comparable(teacher):
            return overlaps_of(Q, cross)
        return overlaps_of(Q, cross, self.cosines(cross, Q, teacher @ teacher.T / D))

    def cosines(self, cross: Array, Q: Array, rho: Array) -> Array:
        """Cosine similarity (P,) of each index from M, Q and ρ (P, P), up to the symmetries; 0 for
        a zero estimate."""
        values = NoSymmetry(tuple(range(self.indices))).cosines(cross, Q, rho)
        for symmetry in self.symmetry:
            rows = np.asarray(symmetry.indices)
            block = np.ix_(rows, rows)
            values = values.at[rows].set(symmetry.cosines(cross[block], Q[block], rho[block]))
        return values

    @property
    def error_name(self) -> str:
        """The error of the plug-in predictor on new inputs."""
        return "Prediction error"

    def error_of(
        self, weights: Array, data: Dataset, *, key: PRNGKeyArray, samples: int = 2048
    ) -> Array:
        """Plug-in prediction error of an estimate (P, D) on new Gaussian inputs, noiseless labels
        of the data's teacher; NaN without a teacher."""
        if data.teacher is None:
            return jnp.asarray(jnp.nan, theory_dtype())
        return error_of_rows(self, weights, data, key=key, samples=samples).value

    def comparable(self, teacher: Array) -> bool:
        """Whether the teacher has P rows."""
        return teacher.shape[0] == self.indices

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, samples: int
    ) -> Estimate:
        """By randomised nets of about so many samples in all."""
        if key is None:
            raise ValueError("key: got None; allowed: a key: jax.random.key(0).")
        return compiled_prediction_error(
            self, Q, key=key, bayes=bayes, samples=power_of_two(samples // 8), randomisations=8
        )

    def theory_error(self, V: Array, *, key: PRNGKeyArray, samples: int) -> Array:
        """The plug-in prediction error."""
        Q = self.prior.second_moment(self.indices) - V
        return prediction_error(self, Q, key=key, samples=samples).value


@eqx.filter_jit
def _labels(
    channel: AbstractChannel, inputs: Array | Regenerated, teacher: Array, key: PRNGKeyArray
) -> Array:
    """Labels (N, ...) of a teacher (P, D), compiled once for each channel and shape."""
    noise = jax.random.normal(key, (inputs.shape[0], channel.noise_size), theory_dtype())
    return jax.vmap(channel.label)(IndexSensing(inputs).forward(teacher), noise)


class _Loss(eqx.Module):
    """ℓ(link(z), y) of one sample, y drawn from z* (P*, M) by a channel."""

    channel: AbstractChannel
    student: AbstractIndexModel
    loss: Callable[[Array, Array], Array] = eqx.field(static=True)

    def __call__(self, hidden: Array, fields: Array, noise: Array) -> Array:
        label = self.channel.label(hidden, noise)
        return self.loss(self.student.link(fields).reshape(label.shape), label)


class _Cosines(eqx.Module):
    """Cosines (P,) of a student's rows up to its symmetries; where the teacher has other rows, of
    each row that with the teacher's nearest."""

    student: AbstractIndexModel
    targets: int = eqx.field(static=True)

    def __call__(self, cross: Array, Q: Array, gram: Array) -> Array:
        M = cross[:, : self.targets]
        rho = gram[: self.targets, : self.targets]
        if self.student.indices == self.targets:
            return self.student.cosines(M, Q, rho)
        scale = jnp.sqrt(jnp.outer(jnp.diagonal(Q), jnp.diagonal(rho)))
        return jnp.max(jnp.abs(M) / jnp.where(scale > 0.0, scale, 1.0), axis=1)


class _DrawnGram(eqx.Module):
    """W* W*ᵀ/D (P*, P*) of a teacher drawn by the prior."""

    model: AbstractIndexModel

    def __call__(self, key: PRNGKeyArray, dimension: int | Array) -> Array:
        return self.model.prior.gram(key, self.model.indices, dimension)
