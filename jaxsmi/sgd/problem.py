"""What functions of online SGD are asked: a teacher with its student, and where to begin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, is_zero, theory_dtype
from jaxsmi.core.border import either, instance, numbers, sequence
from jaxsmi.core.checks import POSITIVE, Arguments, Interval, check
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.numerics.linear_algebra import symmetric
from jaxsmi.numerics.triangular import triangular_root
from jaxsmi.sgd.population import overlaps
from jaxsmi.sgd.starts import Beginning, in_frame

__all__ = [
    "beginning_of",
    "check_gradient",
    "check_start",
    "frame_of",
    "guarded",
    "overlaps_of",
    "pair_of",
]

_MODEL = (
    "an index model such as smi.DeepAttention(2, 2), or a SequenceSingleIndex (a matrix has "
    "infinitely many overlaps: smi.train(model, smi.Stream(model, teacher), ..))"
)
_ROUNDING = 1e-9

is_teacher = instance(AbstractTeacher, _MODEL)
is_overlaps = sequence("two arrays, overlaps (M, Q)", numbers("finite numbers"))
is_point = either(
    "overlaps (M, Q), or of a SequenceSingleIndex numbers in [-1, 1]",
    numbers("", Interval("", -1.0, 1.0)),
    is_overlaps,
)


def pair_of(
    arguments: Arguments,
    model: object,
    student: object = None,
    loss: Callable[[Array, Array], Array] | None = None,
    encoding: ArrayLike | None = None,
) -> TeacherStudent:
    """Teacher and student of a call, or a ValueError."""
    teacher = arguments.instance("model", model, AbstractTeacher, _MODEL)
    learner = None
    if student is not None:
        learner = arguments.instance("student", student, AbstractTeacher, "an index model")
    allowed = "a function of (prediction, label), or None"
    check(loss is None or callable(loss), "loss", loss, allowed)
    pair = teacher.teacher_student(learner, loss)
    _check_loss(pair, loss)
    if encoding is None:
        return pair
    tokens = pair.tokens * pair.groups
    allowed = f"E of shape ({tokens}, K), of a model without inputs= or an encoding of its own"
    E = arguments.array("encoding", encoding, allowed)
    check(E.ndim == 2 and len(E) == tokens and not pair.directions, "encoding", encoding, allowed)
    P, K = pair.targets, E.shape[1]
    gram = jnp.block([[pair.gram, jnp.zeros((P, K))], [jnp.zeros((K, P)), jnp.eye(K)]])
    return eqx.tree_at(lambda p: (p.encoding, p.gram), pair, (E, gram))


def _check_loss(pair: TeacherStudent, loss: object) -> None:
    """Refuse a loss that fails, or is not one number."""
    tokens = pair.tokens * pair.groups
    shapes = ((pair.targets, tokens), (pair.rows, tokens), (pair.noise_size,))
    allowed = "a JAX function of (prediction, label) that returns one number"
    try:
        made = jax.eval_shape(
            pair.sample_loss, *(jax.ShapeDtypeStruct(shape, theory_dtype()) for shape in shapes)
        )
    except Exception as failure:
        said = str(failure).splitlines()[0]
        raise ValueError(f"loss: got one that fails ({said}); allowed: {allowed}.") from failure
    shapes = [leaf.shape for leaf in jax.tree.leaves(made)]
    check(shapes == [()], "loss", f"values of shapes {shapes}", allowed)


def check_gradient(pair: TeacherStudent) -> None:
    """Refuse a loss whose gradient is zero at all fields (signs, hardmax)."""
    if not concrete(pair):
        return
    tokens = pair.tokens * pair.groups
    with jax.ensure_compile_time_eval():
        points = np.cos(1.0 + 2.4 * np.arange(16.0 * tokens * (pair.targets + pair.rows)))
        points = points.reshape(16, -1, tokens)
        slope = bool(_sloped(pair, jnp.asarray(points)))
    allowed = (
        "a link with a gradient (signs and hardmax have none: another student, such as a softmax "
        "one, can learn their labels: student=)"
    )
    check(slope, "student", "a link whose gradient is zero", allowed)


@eqx.filter_jit
def _sloped(pair: TeacherStudent, points: Array) -> Array:
    """Whether the loss has a gradient at some points (n, P* + P, tokens)."""
    slopes = jax.vmap(jax.grad(pair.sample_loss, argnums=1), (0, 0, None))
    hidden = points[:, : pair.targets]
    fields = points[:, pair.targets :]
    return jnp.any(slopes(hidden, fields, jnp.zeros(pair.noise_size)) != 0.0)


def overlaps_of(
    arguments: Arguments,
    model: object,
    pair: TeacherStudent,
    given: object = None,
    m: ArrayLike | None = None,
    e: ArrayLike = 0.0,
) -> tuple[Array, Array] | None:
    """M (g P, k) and Q (g P, g P) of a given start: of (M, Q), or of (m, e) on the sphere; None:
    nothing of the kind was given."""
    rows, k = pair.groups * pair.rows, pair.fixed
    if m is not None:
        check(pair.spherical, "m", m, "nothing: init=(M, Q), of a model that is no sequence model")
        one = arguments.instance("model", model, SequenceSingleIndex, "a SequenceSingleIndex")
        v = overlaps(one, m, e)
        return (v[None] if pair.tied else v[:, None]), jnp.eye(rows, dtype=v.dtype)
    allowed = "0: the positional overlaps of a SequenceSingleIndex, beside its m"
    check(is_zero(e), "e", e, allowed)
    if not isinstance(given, tuple):
        return None
    check(len(given) == 2, "(M, Q)", given, "two arrays")
    allowed = f"M of shape ({rows}, {k})"
    M = arguments.array("M", given[0], allowed)
    M = M.reshape(rows, -1) if M.size in (rows * k, rows * pair.targets) else M
    if M.shape == (rows, pair.targets):
        M = jnp.pad(M, ((0, 0), (0, pair.directions)))
    check(M.shape == (rows, k), "M", given[0], allowed)
    allowed = f"a symmetric positive semi-definite Q of shape ({rows}, {rows})"
    Q = arguments.array("Q", given[1], allowed)
    check(Q.size == rows * rows, "Q", given[1], allowed)
    Q = Q.reshape(rows, rows)
    even = jnp.max(jnp.abs(Q - Q.T)) <= _ROUNDING * jnp.max(jnp.abs(Q))
    return M, arguments.masked(Q, even, "Q", given[1], allowed)


def frame_of(arguments: Arguments, pair: TeacherStudent, teacher: object) -> Array:
    """The Gram matrix ρ (k, k) of the fixed rows: as expected, or as given."""
    if teacher is None or isinstance(teacher, str):
        words = ("orthonormal", "iid")
        check(teacher in (None, *words), "teacher", teacher, f"one of {words}, ρ (k, k) or weights")
        return pair.gram
    k = pair.fixed
    allowed = f"a symmetric positive semi-definite ρ of shape ({k}, {k})"
    rho = arguments.array("teacher", teacher, allowed)
    check(rho.size == k * k, "teacher", teacher, allowed)
    rho = rho.reshape(k, k)
    size = jnp.max(jnp.abs(rho))
    even = jnp.max(jnp.abs(rho - rho.T)) <= 1e-12 * size
    definite = jnp.linalg.eigvalsh(symmetric(rho))[0] >= -1e-12 * size
    return arguments.masked(rho, even & definite, "teacher", teacher, allowed)


def check_start(
    arguments: Arguments, pair: TeacherStudent, gram: Array, start: tuple[Array, Array]
) -> None:
    """Raise a ValueError for overlaps that no weights have: Q - M ρ⁺ Mᵀ not positive
    semi-definite, or M outside of the range of ρ."""
    M, Q = start
    frame = triangular_root(gram)
    Y, _ = in_frame(frame, M, Q)
    size = 1.0 + jnp.max(jnp.abs(M))
    inside = jnp.max(jnp.abs(Y @ frame.T - M)) <= _ROUNDING * size
    arguments.condition(inside, "M", M, "overlaps in the range of the teacher's Gram matrix")
    blocks = np.kron(np.eye(pair.groups), np.ones((pair.rows, pair.rows)))
    rest = (Q - Y @ Y.T) * blocks
    allowed = "Q - M ρ⁺ Mᵀ positive semi-definite: overlaps that some weights have"
    least = jnp.linalg.eigvalsh(symmetric(rest))[0]
    least = least >= -_ROUNDING * (1.0 + jnp.max(jnp.abs(Q)))
    shown = tuple(x.tolist() if concrete(x) else x for x in (M, Q))
    arguments.condition(least, "(M, Q)", shown, allowed)


@jax.custom_jvp
def _kept(x: Array, singular: Array) -> Array:
    """x itself, with derivatives that are NaN where it is singular."""
    del singular
    return x


@_kept.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    x, singular = primals
    return x, tangents[0] * jnp.where(singular, jnp.nan, 1.0)


def guarded(pair: TeacherStudent, gram: Array, M: Array, Q: Array) -> tuple[Array, Array]:
    """Overlaps whose derivatives are NaN where Q - M ρ⁺ Mᵀ is singular: a row in the span of others
    has no coordinate of its own there, and its derivative would be lost in silence."""
    _, Z = in_frame(triangular_root(gram), M, Q)
    singular = jnp.any(jnp.diagonal(Z) == 0.0) & (pair.groups == 1)
    return _kept(M, singular), _kept(Q, singular)


def beginning_of(
    arguments: Arguments,
    pair: TeacherStudent,
    start: tuple[Array, Array] | None,
    init: object,
    teacher: object,
    dimension: int,
    exact: bool,
) -> Beginning:
    """Where runs begin, from the arguments of a call."""
    words = "'iid', 'orthonormal', ρ (k, k) or weights (P*, D)"
    named = teacher is None or isinstance(teacher, str)
    given = None if named else arguments.array("teacher", teacher, words)
    weighted = given is not None and given.ndim == 2 and given.shape[1] == dimension != pair.fixed
    allowed = "'iid', 'orthonormal' or weights (P*, D), of rows on the sphere"
    check(given is None or weighted or not pair.spherical, "teacher", teacher, allowed)
    one = jnp.ones((), theory_dtype())
    if start is None and jnp.ndim(init) == 2:  # pyright: ignore[reportArgumentType]
        allowed = f"W* ({pair.targets}, {dimension}) beside weights, of inputs without directions"
        check(weighted and not pair.directions, "teacher", teacher, allowed)
        W = arguments.array("init", init, f"weights ({pair.rows}, {dimension})")
        check(W.shape == (pair.rows, dimension), "init", W, f"weights ({pair.rows}, {dimension})")
        check(pair.tied, "init", W, "a scale or overlaps, for rows that see tokens of their own")
        T = arguments.array("teacher", given, allowed, (pair.targets, dimension))
        return Beginning(None, T, one, None, W, exact)
    if weighted and given is not None:
        rows = arguments.array("teacher", given, "W*", (pair.targets, dimension))
        gram = pair.gram.at[: pair.targets, : pair.targets].set(rows @ rows.T / dimension)
        least = jnp.linalg.eigvalsh(gram)[0] >= -_ROUNDING * jnp.max(jnp.abs(gram))
        allowed = "weights whose Gram matrix fits the overlaps with directions of the inputs"
        arguments.condition(least, "teacher", teacher, allowed)
    else:
        gram = frame_of(arguments, pair, teacher)
    if start is not None:
        known = teacher != "iid" if isinstance(teacher, str) else True
        check(known, "teacher", teacher, "'orthonormal', ρ or weights, beside given overlaps")
        check_start(arguments, pair, gram, start)
        return Beginning(gram, None, one, start, None, exact)
    kinds = dataclasses.replace(POSITIVE, allowed="a scale > 0, overlaps (M, Q), or weights (P, D)")
    scale = arguments.number("init", init, kinds)  # pyright: ignore[reportArgumentType]
    drawn = teacher is None or (isinstance(teacher, str) and teacher == "iid")
    return Beginning(None if drawn else gram, None, scale, None, None, exact)
