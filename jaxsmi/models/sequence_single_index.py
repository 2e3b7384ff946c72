r"""Sequence single-index models: one hidden direction, seen through L tokens, and its student.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (1) to (7)]. Tokens x_l ~ N(0, I/d), hidden
direction w* and student w on the sphere of radius √d, positional encoding u_l (rows; at most of
norm O(1)), hidden fields z*_l = x_l·w*, student's fields

    z_l = (x_l + u_l/√d)·w,     ℓ = c ‖g(z*) - F(z)‖²

with targets g and students F of teacher_student.py, or any functions. The encoding is stored as the
coordinates C (L, K) of its rows in an orthonormal frame b_1..b_K orthogonal to w*:

    m = w·w*/d,   e = (b_k·w)/√d (K,),   E z_l = (C e)_l,   m² + ‖e‖² <= 1
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import as_module, concrete, theory_dtype
from jaxsmi.core.validate import POSITIVE, Interval, check
from jaxsmi.models.index import output_shape
from jaxsmi.models.teacher_student import (
    LOSSES,
    AbstractTeacher,
    Attention,
    Network,
    SequenceLoss,
    TeacherStudent,
    known_gram,
)

_FUNCTION = "a JAX function of the fields (L,)"
# ratio to the largest singular value below which directions of an encoding are rounding
_RANK_TOLERANCE = 1e-12


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
        >>> model.encoding.shape  # one positional overlap
        (2, 1)
    """

    target: Callable[[Array], Array]
    student: Callable[[Array], Array]
    encoding: Array
    loss_factor: Array
    length: int = eqx.field(static=True)
    loss: str = eqx.field(static=True)
    tied: bool = eqx.field(static=True)  # one direction serves all tokens

    def __init__(
        self,
        target: Callable[[Array], Array],
        length: int,
        student: Callable[[Array], Array] | None = None,
        encoding: ArrayLike | str | None = None,
        loss_factor: ArrayLike = 0.5,
        loss: str = "squared",
    ):
        self.length = validate.count("length", length)
        self.loss = validate.choice("loss", loss, LOSSES)
        self.loss_factor = validate.number("loss_factor", loss_factor, POSITIVE)
        self.target = as_module(validate.function("target", target, _FUNCTION))
        student = Attention() if student is None else student
        self.student = as_module(validate.function("student", student, _FUNCTION))
        shape = _answer_shape(self.target, self.length, "target")
        other = _answer_shape(self.student, self.length, "student")
        allowed = f"answers of the shape of the target's, {shape}"
        check(shape == other, "student", f"answers of shape {other}", allowed)
        self.encoding = _coordinates(encoding, self.length)
        network = isinstance(self.student, Network)
        check(not (network and self.encoding.shape[1]), "encoding", encoding, "None for a network")
        self.tied = not network or self.student.tied

    def teacher_student(
        self,
        student: AbstractTeacher | None = None,
        loss: Callable[[Array, Array], Array] | None = None,
    ) -> TeacherStudent:
        """Pair the model's target with its student, on the sphere; each row of an untied network is
        a group."""
        check(student is None, "student", student, "None: the model has a student of its own")
        check(loss is None, "loss", loss, "None: the model has a loss of its own")
        own_loss = SequenceLoss(self.target, self.student, self.loss_factor, self.loss)
        return TeacherStudent(
            label=own_loss.label,
            loss=own_loss,
            squared=own_loss if self.loss == "squared" else None,
            agreement=_Size(self.tied),
            # the norm of the hidden direction is fixed
            draw_gram=eqx.Partial(known_gram, jnp.ones((1, 1), theory_dtype())),
            encoding=self.encoding,
            # directions of the encoding are orthonormal, and orthogonal to the hidden one
            gram=jnp.eye(1 + self.encoding.shape[1], dtype=theory_dtype()),
            targets=1,
            rows=1,
            groups=1 if self.tied else self.length,
            tokens=self.length if self.tied else 1,
            noise_size=0,
            spherical=True,
            tied=self.tied,
        )

    def link_of_fields(self) -> tuple[Callable[[Array], Array], int, int]:
        """Return g, one row, and L."""
        return self.target, 1, self.length

    def sample_loss(self, hidden: Array, fields: Array) -> Array:
        """Return ℓ of one sample from z* and z (L,)."""
        return self.teacher_student().sample_loss(hidden, fields, jnp.zeros(0))


class _Size(eqx.Module):
    """‖(m, e)‖ of M (1, 1 + K), ‖m‖/√L of M (L, 1) of an untied network: the measure of weak
    recovery."""

    tied: bool = eqx.field(static=True)

    def __call__(self, cross: Array, Q: Array, gram: Array) -> Array:
        size = jnp.sqrt(jnp.sum(cross**2))
        # an untied network has one overlap a token: the root mean square of them is compared
        return size if self.tied else size / np.sqrt(len(cross))


class SemanticPositional(eqx.Module):
    """g(z) = (1 - ω) softmax(z zᵀ) + ω B(a)."""

    omega: Array
    a: Array

    def __call__(self, fields: Array) -> Array:
        """g(z)."""
        beta = jax.nn.sigmoid(2.0 * self.a**2)
        B = jnp.stack([jnp.stack([beta, 1.0 - beta]), jnp.stack([1.0 - beta, beta])])
        return (1.0 - self.omega) * Attention("identity")(fields) + self.omega * B


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

    Source:
        [ALSKZ25; theory: online-sgd, Eqs. (36) to (38)].
    """
    weight = Interval("a number in [0, 1]", low=0.0, high=1.0)
    angle = Interval("a number in (0, 1]", low=0.0, high=1.0, open_low=True)
    share = validate.number("omega", omega, weight)
    target = SemanticPositional(share, validate.number("a", a, angle))
    return SequenceSingleIndex(target, 2, Attention("identity"), "paired", loss_factor, loss)


def _answer_shape(function: Callable[..., Array], length: int, name: str) -> tuple[int, ...]:
    """Return the shape of a function's result, which must be finite at one point."""
    point = np.linspace(0.3, 0.7, length)  # known under jit, too
    shape = output_shape(name, function, f"the fields ({length},)", point)
    if concrete(function):
        with jax.ensure_compile_time_eval():
            value = np.asarray(function(jnp.asarray(point)))
        check(np.isfinite(value).all(), name, value, "a JAX function whose answers are finite")
    return shape


def _coordinates(encoding: ArrayLike | str | None, length: int) -> Array:
    """Return C (L, K), rows of the encoding in an orthonormal frame of the directions that they
    span."""
    if encoding is None:
        return jnp.zeros((length, 0))
    words = f"None, 'paired' (two tokens), 'orthonormal', or rows ({length}, K) that are not zero"
    if isinstance(encoding, str):
        validate.choice("encoding", encoding, ("paired", "orthonormal"))
        check(encoding != "paired" or length == 2, "encoding", encoding, words)
        return jnp.asarray([[1.0], [-1.0]]) if encoding == "paired" else jnp.eye(length)
    rows = validate.array("encoding", encoding, words, shape=(length, None))
    # the rank is a size, and unknown inside jit: columns are taken as they are
    if not concrete(rows):
        check(rows.shape[1] <= length, "encoding", rows, f"inside jit, at most {length} columns")
        return rows
    directions, sizes, _ = np.linalg.svd(np.asarray(rows), full_matrices=False)
    rank = int(np.sum(sizes > _RANK_TOLERANCE * sizes[0]))
    check(rank >= 1, "encoding", rows, words)
    # rows of full rank stay as they are, so that overlaps keep their meaning for the user
    if rank == rows.shape[1]:
        return rows
    axes = (directions * sizes)[:, :rank]
    # singular vectors have no sign of their own: the first token's share is made positive
    lead = axes[np.argmax(np.abs(axes) > _RANK_TOLERANCE * sizes[0], axis=0), np.arange(rank)]
    return jnp.asarray(axes * np.sign(lead))
