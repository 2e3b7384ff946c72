"""Arguments of the calls of online SGD: teacher and student, the update, overlaps to start from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.channels.jumps import continuous
from jaxsmi.core import validate
from jaxsmi.core.arrays import as_module, concrete, is_zero, theory_dtype
from jaxsmi.core.validate import FRACTION, NON_NEGATIVE, check
from jaxsmi.descent.options import Gradient, check_scalar
from jaxsmi.descent.overlaps import overlaps_of_weights, pair_of_arrays
from jaxsmi.models.teacher_student import AbstractFlowTeacher, AbstractTeacher, TeacherStudent

_MODEL = (
    "an index model such as smi.DeepAttention(2, 2), or a SequenceSingleIndex (a matrix has "
    "infinitely many overlaps: smi.train(model, smi.Stream(model, teacher), ..))"
)
_FLOW_MODEL = "an index model such as smi.DeepAttention(2, 2), or smi.AttentionIndexed(2, 0.5)"
# a Gram matrix of the teacher is written down, or computed in double precision
_GRAM_ROUNDING = 1e-12


class Overlaps(NamedTuple):
    """Overlaps M (P, k) and Q (P, P), or their velocities."""

    M: Array
    Q: Array

    @classmethod
    def of(cls, pair: TeacherStudent, gram: Array, value: Any) -> Overlaps:
        """Overlaps that some weights have, from (M, Q), or M alone on the sphere; NaN where they
        are traced and no weights have them."""
        if pair.spherical:
            M, Q = _on_sphere(pair, value)
            allowed = "m² + ‖e‖² <= 1" if pair.tied else "|m_l| <= 1"
            return cls(*overlaps_of_weights(gram, M, Q, pair.groups, allowed))
        M, Q = pair_of_arrays(value, pair.groups * pair.rows, pair.targets, pair.fixed)
        return cls(*overlaps_of_weights(gram, M, Q, pair.groups))


class Rule(eqx.Module):
    """One update of online SGD, and the same update in the limit of many dimensions.

        V ← β V + λ W + c Σ_μ ∇ℓ_μ,   W ← W - η V,   λ = Λ B/(η D)
        κ = c η/(1 - β),   c = 1/B ("mean"), 1 ("sum"), 1/D ("sum/D")

    Args:
        rate: Learning rate η >= 0, or one for each row (P,); in `smi.descent_theory` also a
            transformation of optax.
        gradient: Loss, batch size B, reduction and repeats, `smi.Gradient`. Default: one fresh
            sample a step.
        momentum: β of heavy-ball momentum, in [0, 1). Default 0.
        weight_decay: Λ >= 0, for a unit of α, so that it has a limit: λ = Λ B/(η D) in a step.
            Default 0.
        projection: "sphere": every row of W keeps the norm it started with. Default None.

    Raises:
        ValueError: For a number out of range, or another projection.

    Example:
        >>> import jaxsmi as smi
        >>> float(smi.sgd.Rule(15.0, gradient=smi.Gradient(batch_size=500)).per_sample())
        0.03
    """

    rate: Array
    gradient: Gradient
    momentum: Array | None
    weight_decay: Array | None
    projection: str | None = eqx.field(static=True)
    optimizer: optax.GradientTransformation | None

    @validate.explained
    def __init__(
        self,
        rate: ArrayLike | optax.GradientTransformation,
        *,
        gradient: Gradient | None = None,
        momentum: ArrayLike = 0.0,
        weight_decay: ArrayLike = 0.0,
        projection: str | None = None,
    ):
        allowed = "a finite number >= 0, or one for each row (P,)"
        self.optimizer = None
        if isinstance(rate, optax.GradientTransformation):
            self.optimizer = as_modules(rate)
            own = is_zero(momentum) and is_zero(weight_decay) and projection is None
            check(own, "rate", "an optimiser", "a number beside momentum, decay or projection")
            rate = 0.0
        self.rate = validate.array("rate", rate, allowed, interval=NON_NEGATIVE)
        check(self.rate.ndim <= 1, "rate", rate, allowed)
        self.gradient = validate.settings("gradient", gradient, Gradient, "a smi.Gradient")
        beta = validate.number("momentum", momentum, FRACTION)
        decay = validate.number("weight_decay", weight_decay, NON_NEGATIVE)
        # None where it is known to be zero: the state then has no velocities, a step no such term
        self.momentum = None if is_zero(momentum) else beta
        self.weight_decay = None if is_zero(weight_decay) else decay
        self.projection = validate.optional(validate.choice, "projection", projection, ("sphere",))

    @classmethod
    def of(
        cls, rate: ArrayLike | Rule | optax.GradientTransformation, optimisers: bool = False
    ) -> Rule:
        """Return a rule as it is; make one of a plain learning rate, or where `optimisers` are
        allowed of one of optax."""
        rule = rate if isinstance(rate, Rule) else cls(rate)
        allowed = "a learning rate (for other optimisers: smi.train on a smi.Stream)"
        check(optimisers or rule.optimizer is None, "rate", "an optimiser", allowed)
        return rule

    @property
    def batch_size(self) -> int:
        """B."""
        size, order = self.gradient.batch_size or 1, self.gradient.order
        allowed = "a number of samples: online SGD has no data set to pass through"
        check(isinstance(size, int), "batch_size", size, allowed)
        check(order == "shuffled", "order", order, "'shuffled': each sample is used once")
        return int(size)

    def per_sample(self, dimension: int | None = None) -> Array:
        """κ = c η/(1 - β), the learning rate for each sample; D for the reduction "sum/D"."""
        if self.gradient.reduction == "sum/D" or dimension is not None:
            dimension = validate.count("dimension", dimension)
        kappa = self.rate / self.gradient.divisor(self.batch_size, dimension or 1)
        return kappa if self.momentum is None else kappa / (1.0 - self.momentum)


def as_modules(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Modules of its functions, whose numbers are then traced and differentiable."""
    return optax.GradientTransformation(as_module(optimizer.init), as_module(optimizer.update))


class Initial(eqx.Module):
    """Start of online SGD, and the teacher that it learns from.

    Args:
        student: Scale of a random student (None: 1); or overlaps (M, Q) with M (P, k), Q (P, P),
            numbers for multiples of the identity;
            or weights (P, D), beside weights of the teacher. Of a `SequenceSingleIndex` m, or
            (m, e_1, .., e_K), or m_1, .., m_L of an untied network; None: uniform on the sphere.
            Of a matrix in `smi.sgd.flow` the scale of its factors, or (M, Q) = (q_12, q_11).
        teacher: "iid" (drawn by the prior: its Gram matrix fluctuates by √(2/D)), "orthonormal"
            (the expected Gram matrix), a Gram matrix ρ (k, k) of the fixed rows, or weights
            (P*, D). Default: "iid" beside a random student of an index model, else "orthonormal".
            Of a matrix in `smi.sgd.flow` its eigenvalues (n,); default: those of the model.

    Example:
        >>> import jaxsmi as smi
        >>> smi.sgd.Initial(([[0.1]], [[1.0]]), teacher=[[1.0]]).teacher
        [[1.0]]
    """

    student: Any = None
    teacher: Any = None

    @classmethod
    def of(cls, start: Any) -> Initial:
        """Return a start as it is; make one of a student alone."""
        return start if isinstance(start, Initial) else cls(start)


def pair_of(
    model: object,
    student: object = None,
    loss: Callable[[Array, Array], Array] | None = None,
    kind: type[AbstractFlowTeacher] = AbstractTeacher,
) -> TeacherStudent:
    """Validate teacher, student and loss of a call, for models of a `kind`."""
    allowed = _MODEL if kind is AbstractTeacher else _FLOW_MODEL
    teacher = validate.instance("model", model, kind, allowed)
    learner = validate.optional(validate.instance, "student", student, kind, "an index model")
    loss = validate.optional(validate.loss, "loss", loss)
    pair = teacher.teacher_student(learner, loss)
    tokens = pair.tokens * pair.groups
    shapes = ((pair.targets, tokens), (pair.rows, tokens), (pair.noise_size,))
    check_scalar(pair.sample_loss, *(jax.ShapeDtypeStruct(s, theory_dtype()) for s in shapes))
    return pair


def _probe(pair: TeacherStudent, count: int) -> tuple[Array, Array]:
    """Fields z* (count, P*, tokens) and z (count, P, tokens) without special values."""
    tokens = pair.tokens * pair.groups
    # no two fields equal, none zero or of size one: what vanishes here vanishes everywhere
    points = np.cos(1.0 + 2.4 * np.arange(float(count * tokens * (pair.targets + pair.rows))))
    points = jnp.asarray(points.reshape(count, -1, tokens))
    return points[:, : pair.targets], points[:, pair.targets :]


def check_gradient(pair: TeacherStudent) -> None:
    """Raise a ValueError for a loss whose gradient is zero at all fields (signs, hardmax)."""
    if not concrete(pair):
        return
    with jax.ensure_compile_time_eval():
        has_gradient = bool(_has_gradient(pair, *_probe(pair, 16)))
    allowed = (
        "a link with a gradient (signs and hardmax have none: another student, such as a softmax "
        "one, can learn their labels: student=)"
    )
    check(has_gradient, "student", "a link whose gradient is zero", allowed)


@eqx.filter_jit
def _has_gradient(pair: TeacherStudent, teacher_fields: Array, fields: Array) -> Array:
    slopes = jax.vmap(jax.grad(pair.sample_loss, argnums=1), (0, 0, None))
    return jnp.any(slopes(teacher_fields, fields, jnp.zeros(pair.noise_size)) != 0.0)


def is_even(pair: TeacherStudent, argument: int, together: bool = False) -> bool:
    """True if the loss is even in every row of z* (argument 0) or z (1), or in all rows `together`,
    tested at one point."""
    with jax.ensure_compile_time_eval():
        fields = [x[0] for x in _probe(pair, 1)]
        rows = len(fields[argument])

        def loss(signs: Array) -> Array:
            flipped = list(fields)
            flipped[argument] = signs[:, None] * fields[argument]
            return pair.sample_loss(flipped[0], flipped[1], jnp.zeros(pair.noise_size))

        flips = -jnp.ones((1, rows)) if together else 1.0 - 2.0 * jnp.eye(rows)
        values = jax.vmap(loss)(flips)
        return bool(jnp.allclose(values, loss(jnp.ones(rows))))


@eqx.filter_jit
def slopes_continue(pair: TeacherStudent) -> tuple[Array, Array]:
    """True if the slopes ∂ℓ/∂z have no jumps in the student's fields; in the teacher's (of a label
    that jumps they do)."""
    # some fields of the other rows: a jump that none of them shows is rare
    (h, z), noise = _probe(pair, 4), jnp.linspace(-1.0, 1.0, 4)[:, None] * jnp.ones(pair.noise_size)
    slope = jax.vmap(jax.grad(pair.sample_loss, argnums=1), (0, 0, 0))
    tokens = pair.tokens * pair.groups
    all_of = lambda x: jnp.broadcast_to(x, (4, *x.shape))
    in_student = continuous(lambda x: slope(h, all_of(x), noise), pair.rows, tokens)
    in_teacher = continuous(lambda x: slope(all_of(x), z, noise), pair.targets, tokens)
    return in_student, in_teacher


def check_noiseless(pair: TeacherStudent) -> None:
    """Raise a ValueError for labels with noise: their loss is not zero at perfect recovery."""
    if not concrete(pair):
        return
    with jax.ensure_compile_time_eval():
        z = _probe(pair, 1)[1][0]
        noiseless = bool(pair.sample_loss(z, z, jnp.ones(pair.noise_size)) == 0.0)
    check(noiseless, "model", "labels with noise", "one with noiseless labels")


def check_moving(pair: TeacherStudent, M: Array) -> None:
    """Raise a ValueError for a flow at rest: from M = 0, of a loss that is even in every row."""
    if concrete((pair, M)) and not bool(jnp.any(M != 0.0)):
        allowed = "M of order 1/√D: the flow stays at M = 0 (smi.sgd.simulate leaves, by its noise)"
        check(not is_even(pair, 1), "M", M, allowed)


def gram_of(pair: TeacherStudent, teacher: object) -> Array:
    """Gram matrix ρ (k, k) of the fixed rows: the expected one, or the one given by a call."""
    words = "'iid', 'orthonormal', ρ (k, k) or weights (P*, D)"
    if teacher is None or isinstance(teacher, str):
        check(teacher in (None, "iid", "orthonormal"), "teacher", teacher, words)
        return pair.gram
    check(not pair.spherical, "teacher", teacher, "None: the direction has norm one")
    return validate.semidefinite("teacher", teacher, pair.fixed, _GRAM_ROUNDING)


def _on_sphere(pair: TeacherStudent, value: Any) -> Overlaps:
    """Overlaps of rows of norm one, from m, (m, e_1..e_K), or m_1..m_L of an untied network."""
    shape = (pair.groups, pair.fixed)
    count = shape[1] if pair.tied else shape[0]
    allowed = f"overlaps in [-1, 1]: m, or an array of shape ({count},)"
    M = validate.array("M", value, allowed)
    check(M.shape in ((), (count,), shape), "M", value, allowed)
    if M.ndim == 0:  # one number is m of all rows, and there is no positional overlap
        M = jnp.zeros(shape, M.dtype).at[:, 0].set(M)
    return Overlaps(M.reshape(shape), jnp.eye(shape[0], dtype=M.dtype))
