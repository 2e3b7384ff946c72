r"""Sequence single-index models: one hidden direction, seen through L tokens, and its student.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (1) to (7)]. Tokens x_l ~ N(0, I/d), hidden
direction w* and student w on the sphere of radius √d, positional encoding u_l (rows; at most of
norm O(1)), hidden fields z*_l = x_l·w*, student's fields

    z_l = (x_l + u_l/√d)·w,     ℓ = c ‖g(z*) - F(z)‖²

with targets g in models/hermite_series.py (or any function) and students F in models/students.py.
The encoding is kept as the coordinates C (L, K) of its rows in an orthonormal frame b_1..b_K
orthogonal to w*; then

    m = w·w*/d,   e = (b_k·w)/√d (K,),   E z_l = (C e)_l,   m² + ‖e‖² <= 1
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.border import (
    checked,
    choice,
    either,
    function,
    instance,
    numbers,
    optional,
    precision,
    random_key,
    scalar,
    whole,
)
from jaxsmi.core.checks import POSITIVE, Arguments, Interval, check
from jaxsmi.core.data import Dataset
from jaxsmi.models.hermite_series import HermiteSeries
from jaxsmi.models.multi_index import as_tree
from jaxsmi.models.students import REDUCTIONS, Attention, LinearAttention, Network
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent

__all__ = [
    "REDUCTIONS",
    "Attention",
    "HermiteSeries",
    "LinearAttention",
    "Network",
    "SequenceSingleIndex",
    "semantic_positional",
]

LOSSES = ("squared", "frobenius")
_WORDS = "'paired', 'orthonormal', or rows (L, K)"


class SequenceSingleIndex(AbstractTeacher):
    r"""A target of one hidden direction over L tokens, and the student that learns it by SGD.

    Args:
        target: g, any JAX function of the fields (L,), with a number or an array for answer, or
            `sgd.HermiteSeries`.
        length: L.
        student: `sgd.Attention(...)` (the default: trace over √L), `sgd.LinearAttention()`,
            `sgd.Network(...)`, or any smooth JAX function of the fields with answers of the
            target's shape.
        encoding: None, "paired" (u_1 = -u_2 a unit vector, L = 2), "orthonormal", or rows (L, K) in
            an orthonormal frame orthogonal to the hidden direction (of dependent columns the
            principal axes; inside jit rows of norm <= 1).
        loss_factor: c > 0. Default 1/2.
        loss: "squared" c‖y - F‖² (the default), or "frobenius" c‖y - F‖.

    Raises:
        ValueError: For L < 1, a target or student that fails or answers in another shape or not
            in finite real numbers, an encoding of another shape, an encoding with a network,
            c <= 0, an unknown loss.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> model = smi.SequenceSingleIndex(lambda z: jnp.sum(z**2), length=2, encoding="paired")
        >>> model.overlap_count  # m and e
        2
    """

    target: Callable[[Array], Array]
    student: Callable[[Array], Array]
    encoding: Array
    loss_factor: Array
    length: int = eqx.field(static=True)
    loss: str = eqx.field(static=True)
    reach: float = eqx.field(static=True)

    @checked(
        target=function("a function of the fields (L,)"),
        length=whole(),
        student=optional(function("a function of the fields (L,)")),
        encoding=optional(either(_WORDS, choice("paired", "orthonormal"), numbers(""))),
        loss_factor=scalar(POSITIVE),
        loss=choice(*LOSSES),
    )
    def __init__(
        self,
        target: Callable[[Array], Array],
        length: int,
        student: Callable[[Array], Array] | None = None,
        encoding: ArrayLike | str | None = None,
        loss_factor: ArrayLike = 0.5,
        loss: str = "squared",
    ):
        arguments = Arguments()
        self.length = length
        self.loss = loss
        self.loss_factor = arguments.number("loss_factor", loss_factor, POSITIVE)
        self.target = as_tree(target)
        self.student = Attention() if student is None else as_tree(student)
        wanted = _answer_shape(self.target, self.length, "target")
        actual = _answer_shape(self.student, self.length, "student")
        allowed = f"answers of the shape of the target's, {wanted}"
        check(wanted == actual, "student", f"answers of shape {actual}", allowed)
        self.encoding = _coordinates(encoding, self.length)
        plain = not (isinstance(self.student, Network) and self.encoding.shape[1])
        check(plain, "encoding", encoding, "None for a network")
        # how far the mean of a field may lie from zero: what grids must cover, so a number that is
        # known when they are made
        known = concrete(self.encoding)
        norms = np.linalg.norm(np.asarray(self.encoding), axis=1) if known else np.zeros(1)
        self.reach = float(np.ceil(np.max(norms, initial=1.0)))

    @property
    def tied(self) -> bool:
        """Whether one direction serves all tokens (all students but untied networks)."""
        return not isinstance(self.student, Network) or self.student.tied

    @property
    def overlap_count(self) -> int:
        """How many overlaps describe the student: m and the K of e; of an untied network
        m_1..m_L."""
        return 1 + self.encoding.shape[1] if self.tied else self.length

    def split(self, v: Array) -> tuple[Array, Array]:
        """Of the overlaps (overlaps,): m of each token (L,), and the means of the fields (L,)."""
        if not self.tied:
            return v, jnp.zeros_like(v)
        return jnp.broadcast_to(v[0], (self.length,)), self.encoding.astype(v.dtype) @ v[1:]

    def teacher_student(
        self,
        student: AbstractTeacher | None = None,
        loss: Callable[[Array, Array], Array] | None = None,
    ) -> TeacherStudent:
        """Its own target and student on the sphere; of an untied network every row is a group."""
        check(student is None, "student", student, "None: the model has a student of its own")
        check(loss is None, "loss", loss, "None: the model has a loss of its own")
        K = self.encoding.shape[1]
        return TeacherStudent(
            sample_loss=_Loss(self),
            agreement=_Size(self.tied),
            draw_gram=_Unit(),
            encoding=self.encoding,
            gram=jnp.eye(1 + K, dtype=theory_dtype()),
            targets=1,
            rows=1,
            groups=1 if self.tied else self.length,
            tokens=self.length if self.tied else 1,
            noise_size=0,
            spherical=True,
            tied=self.tied,
        )

    def sample_loss(self, hidden: Array, fields: Array) -> Array:
        """ℓ of one sample from z* and z (L,); the slope of the unsquared loss at a residual of zero
        is taken to be zero."""
        square = jnp.sum((self.target(hidden) - self.student(fields)) ** 2)
        if self.loss == "squared":
            return self.loss_factor * square
        apart = square > 0.0
        return self.loss_factor * jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)

    @checked(
        key=random_key,
        dimension=whole(2),
        samples=whole(),
        teacher=optional(numbers("rows (k, D)", dimensions=2)),
        dtype=optional(precision),
    )
    def sample(
        self,
        key: PRNGKeyArray,
        *,
        dimension: int,
        samples: int,
        teacher: ArrayLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> Dataset:
        """Inputs √d x (samples, L, d), their labels g(z*), and the hidden direction (1, d).

        Args:
            key: A random key.
            dimension: d >= 2.
            samples: How many.
            teacher: The hidden direction (1, d). Default: uniform on the sphere of radius √d.
            dtype: Of the inputs. Default: the precision of theory.

        Returns:
            A `Dataset`, as that of every model.

        Raises:
            ValueError: For arguments out of range.
        """
        teacher_key, input_key = jax.random.split(key)
        if teacher is None:
            drawn = jax.random.normal(teacher_key, (1, dimension), theory_dtype())
            teacher = drawn * np.sqrt(dimension) / jnp.linalg.norm(drawn)
        teacher = jnp.asarray(teacher)
        shape = (1, dimension)
        check(teacher.shape == shape, "teacher", teacher, f"an array of shape {shape}")
        size = (samples, self.length, dimension)
        inputs = jax.random.normal(input_key, size, dtype or theory_dtype())
        direction = teacher[0].astype(inputs.dtype)
        fields = jnp.einsum("nld,d->nl", inputs, direction, precision="highest")
        fields = (fields / np.sqrt(dimension)).astype(theory_dtype())
        return Dataset(inputs, jax.vmap(self.target)(fields), teacher)


class _Loss(eqx.Module):
    """ℓ of one sample from z* and z (1, L), without noise."""

    model: SequenceSingleIndex

    def __call__(self, hidden: Array, fields: Array, noise: Array) -> Array:
        del noise
        return self.model.sample_loss(hidden[0], fields[0])


class _Size(eqx.Module):
    """‖(m, e)‖ of M (1, 1 + K), of an untied network ‖m‖/√L of M (L, 1): the measure of weak
    recovery."""

    tied: bool = eqx.field(static=True)

    def __call__(self, cross: Array, Q: Array, gram: Array) -> Array:
        del Q, gram
        size = jnp.sqrt(jnp.sum(cross**2))
        return size if self.tied else size / np.sqrt(len(cross))


class _Unit(eqx.Module):
    """The hidden direction has norm one, in units of √d."""

    def __call__(self, key: PRNGKeyArray, dimension: int | Array) -> Array:
        del key, dimension
        return jnp.ones((1, 1), theory_dtype())


_WEIGHT = Interval("a number in [0, 1]", low=0.0, high=1.0)
_ANGLE = Interval("a number in (0, 1]", low=0.0, high=1.0, open_low=True)


class SemanticPositional(eqx.Module):
    """g(z) = (1 - ω) softmax(z zᵀ) + ω B(a)."""

    omega: Array
    a: Array

    def __call__(self, fields: Array) -> Array:
        """g(z)."""
        beta = jax.nn.sigmoid(2.0 * self.a**2)
        B = jnp.stack([jnp.stack([beta, 1.0 - beta]), jnp.stack([1.0 - beta, beta])])
        return (1.0 - self.omega) * Attention("identity")(fields) + self.omega * B


@checked(
    omega=scalar(_WEIGHT), a=scalar(_ANGLE), loss_factor=scalar(POSITIVE), loss=choice(*LOSSES)
)
def semantic_positional(
    omega: ArrayLike, a: ArrayLike = 1.0, loss_factor: ArrayLike = 0.5, loss: str = "squared"
) -> SequenceSingleIndex:
    r"""The semantic/positional problem of two tokens.

        g(z*) = (1 - ω) softmax(z* z*ᵀ) + ω B(a),   B = softmax([[a², -a²], [-a², a²]]),
        F = softmax(z zᵀ),   paired encoding

    Its semantic solution is (m, e) = (±1, 0), the positional one (0, ±1).

    Args:
        omega: ω in [0, 1], the weight of the positional part.
        a: In (0, 1]. Default 1.
        loss_factor: As of `SequenceSingleIndex`.
        loss: As of `SequenceSingleIndex`.

    Returns:
        A `SequenceSingleIndex`.

    Raises:
        ValueError: For ω or a out of range.

    Example:
        >>> import jaxsmi as smi
        >>> smi.sgd.semantic_positional(0.3).length
        2

    Cost:
        None: nothing is computed before the model is used.

    Source:
        [ALSKZ25; theory: online-sgd, Eqs. (36) to (38)].
    """
    arguments = Arguments()
    target = SemanticPositional(
        arguments.number("omega", omega, _WEIGHT), arguments.number("a", a, _ANGLE)
    )
    return SequenceSingleIndex(target, 2, Attention("identity"), "paired", loss_factor, loss)


def _answer_shape(function: Callable, length: int, name: str) -> tuple[int, ...]:
    """The shape of what a function answers; at one point its value is looked at too."""
    point = np.linspace(0.3, 0.7, length)
    shown = None
    try:
        value = jax.eval_shape(function, jax.ShapeDtypeStruct((length,), theory_dtype()))
        if concrete(function):
            with jax.ensure_compile_time_eval():
                shown = np.asarray(function(jnp.asarray(point)))
    except Exception as failure:
        raise ValueError(
            f"{name}: fails on fields of shape {(length,)} ({failure}); allowed: a JAX function of "
            "them."
        ) from failure
    one = isinstance(value, jax.ShapeDtypeStruct)
    real = one and not jnp.issubdtype(value.dtype, jnp.complexfloating)
    check(real, name, value, "a JAX function whose answer is one real number or array")
    finite = shown is None or np.isfinite(shown).all()
    check(finite, name, shown, "a JAX function whose answers are finite")
    return value.shape


def _coordinates(encoding: ArrayLike | str | None, length: int) -> Array:
    """C (L, K): rows of the encoding in an orthonormal frame of as few directions as they span."""
    if encoding is None:
        return jnp.zeros((length, 0))
    if isinstance(encoding, str):
        words = "None, 'paired', 'orthonormal' or an array (L, K)"
        check(encoding in ("paired", "orthonormal"), "encoding", encoding, words)
        two = encoding != "paired" or length == 2
        check(two, "encoding", encoding, "'paired' for two tokens only")
        return jnp.asarray([[1.0], [-1.0]]) if encoding == "paired" else jnp.eye(length)
    rows = jnp.asarray(encoding, float)
    fits = rows.ndim == 2 and rows.shape[0] == length and rows.shape[1] >= 1
    check(fits, "encoding", rows, f"rows of shape ({length}, K)")
    check(jnp.all(jnp.isfinite(rows)), "encoding", rows, "finite numbers")
    if not concrete(rows):
        check(rows.shape[1] <= length, "encoding", rows, f"inside jit, at most {length} columns")
        return rows
    directions, sizes, _ = np.linalg.svd(np.asarray(rows), full_matrices=False)
    rank = int(np.sum(sizes > 1e-12 * sizes[0]))
    check(rank >= 1, "encoding", rows, "rows that are not all zero (None: no encoding)")
    if rank == rows.shape[1]:
        return rows
    axes = (directions * sizes)[:, :rank]
    lead = axes[np.argmax(np.abs(axes) > 1e-12 * sizes[0], axis=0), np.arange(rank)]
    return jnp.asarray(axes * np.sign(lead))  # the first token's share is positive


is_sequence = instance(SequenceSingleIndex, "a SequenceSingleIndex")
