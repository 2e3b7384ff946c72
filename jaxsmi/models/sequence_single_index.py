r"""Sequence single-index models: a target of one direction, seen through L tokens, and a student of one direction that learns it.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (1) to (7)]. Tokens x_l ~ N(0, I/d), hidden direction w* and student w on the
sphere of radius √d, positional encoding u_l (rows; at most of norm O(1)), hidden fields z*_l = x_l·w*, student's fields

    z_l = (x_l + u_l/√d)·w,     A_ij = exp(z_i z_j)/Σ_j' exp(z_i z_j'),     ℓ = c ‖g(z*) - F(z)‖²,   F(z) = Red(A(z))

    Red: trace (Σ_i A_ii, over √L by default), identity (A itself), bilinear aᵀ A b; linear attention: F = (Σ_l z_l/√L)²
    networks: F = σ(Σ_l x_l·w_l/√L), with all w_l = w ("tied") or each its own ("untied")

The encoding is kept as the coordinates C (L, K) of its rows in an orthonormal frame b_1..b_K orthogonal to w*; then

    m = w·w*/d,   e = (b_k·w)/√d (K,),   E z_l = (C e)_l,   m² + ‖e‖² <= 1
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from math import comb, factorial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.data import Dataset
from jaxsmi.numerics.quadrature import hermite_polynomials

REDUCTIONS = ("trace", "identity", "bilinear")


LOSSES = ("squared", "frobenius")


class HermiteSeries(eqx.Module):
    """g(z) = Σ_n a_n Π_l H_{n_l}(z_l), with H = He (probabilists', of norm √n!) or, `normalised`, h = He/√n!.

    Arguments: `terms`: a mapping from the degrees of the L tokens to a coefficient: {(2, 0): 1.0, (0, 2): 1.0}; `normalised`.
    Raises: ValueError for no terms, degrees that are no whole numbers >= 0, unequal lengths, or non-finite coefficients.
    Example:
    >>> import jax.numpy as jnp, jaxsmi as smi
    >>> float(
    ...     smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 4): 1.0})(jnp.array([2.0, 1.0]))
    ... )  # He2(2) + He4(1)
    1.0
    """

    coefficients: Array
    degrees: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    normalised: bool = eqx.field(static=True)

    def __init__(self, terms: Mapping[tuple[int, ...], Any], normalised: bool = False):
        check(len(terms) > 0, "terms", dict(terms), "at least one term")
        degrees = [tuple(n) for n in terms]
        whole = all(isinstance(k, (int, np.integer)) and k >= 0 for n in degrees for k in n)
        check(whole and len({len(n) for n in degrees}) == 1 and len(degrees[0]) >= 1, "terms", degrees,
              "one whole number >= 0 for each of the tokens")  # fmt: skip
        self.degrees, self.normalised = (
            tuple(tuple(int(k) for k in n) for n in degrees),
            bool(normalised),
        )
        self.coefficients = jnp.stack([jnp.asarray(a, float) for a in terms.values()])
        check(
            jnp.all(jnp.isfinite(self.coefficients)),
            "terms",
            list(terms.values()),
            "finite coefficients",
        )

    @property
    def length(self) -> int:
        """L."""
        return len(self.degrees[0])

    @property
    def orthonormal(self) -> Array:
        """The coefficients of Π_l h_{n_l}, one for each of `degrees`."""
        factorials = np.array([float(np.prod([factorial(k) for k in n])) for n in self.degrees])
        scale = jnp.asarray(np.ones_like(factorials) if self.normalised else np.sqrt(factorials))
        return self.coefficients * scale.reshape(-1, *(1,) * (self.coefficients.ndim - 1))

    def squared(self) -> HermiteSeries:
        """The series of g², a number: He_a He_b = Σ_r r! C(a, r) C(b, r) He_{a+b-2r}, token by token."""
        check(
            self.coefficients.ndim == 1,
            "series",
            "an array of answers",
            "a series whose answer is a number",
        )
        factorials = [float(np.prod([factorial(k) for k in n])) for n in self.degrees]
        plain = self.orthonormal / jnp.sqrt(jnp.asarray(factorials))  # coefficients of He
        found: dict[tuple[int, ...], Any] = {}
        for (a, x), (b, y) in itertools.product(zip(self.degrees, plain, strict=True), repeat=2):
            for r in itertools.product(*(range(min(i, j) + 1) for i, j in zip(a, b, strict=True))):
                size = np.prod(
                    [
                        factorial(t) * comb(i, t) * comb(j, t)
                        for i, j, t in zip(a, b, r, strict=True)
                    ]
                )
                n = tuple(i + j - 2 * t for i, j, t in zip(a, b, r, strict=True))
                found[n] = found.get(n, 0.0) + x * y * float(size)
        return HermiteSeries(found)

    def __call__(self, fields: Array) -> Array:
        """g(z)."""
        check(
            fields.shape == (self.length,),
            "fields",
            fields,
            f"an array of shape {(self.length,)}, one for each token",
        )
        table = hermite_polynomials(fields, max(max(n) for n in self.degrees))
        each = jnp.take_along_axis(table, jnp.asarray(self.degrees), axis=0)  # (terms, L)
        return jnp.tensordot(jnp.prod(each, axis=1), self.orthonormal, axes=1)


class Attention(eqx.Module):
    """Tied softmax attention, head dimension one, values the tokens themselves (module docstring).

    Arguments: `reduction`: "trace", "identity" or "bilinear"; `trace_norm`: "sqrtL" (over √L) or "none"; `left`, `right` (L,)
    of the bilinear reduction. The factor of the trace decides the sign of a curvature [theory: online-sgd, Table 2].
    Raises: ValueError for an unknown name, or `left`, `right` that are no vectors of norm > 0.
    """

    left: Array | None
    right: Array | None
    reduction: str = eqx.field(static=True)
    trace_norm: str = eqx.field(static=True)

    def __init__(
        self,
        reduction: str = "trace",
        trace_norm: str = "sqrtL",
        left: Any = None,
        right: Any = None,
    ):
        check(reduction in REDUCTIONS, "reduction", reduction, f"one of {REDUCTIONS}")
        check(trace_norm in ("sqrtL", "none"), "trace_norm", trace_norm, "'sqrtL' or 'none'")
        self.reduction, self.trace_norm = reduction, trace_norm
        self.left, self.right = (
            None if v is None else jnp.asarray(v, float) for v in (left, right)
        )
        for name, v in (("left", self.left), ("right", self.right)):
            check(
                (v is not None) == (reduction == "bilinear"),
                name,
                v,
                "a vector (L,), with reduction='bilinear' and only there",
            )
            if v is not None:
                check(
                    v.ndim == 1 and jnp.all(jnp.isfinite(v)) & jnp.any(v != 0.0),
                    name,
                    v,
                    "a vector (L,) of norm > 0",
                )

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        A = jax.nn.softmax(fields[:, None] * fields, axis=-1)
        if self.reduction == "identity":
            return A
        if self.reduction == "trace":
            return jnp.trace(A) / (np.sqrt(len(fields)) if self.trace_norm == "sqrtL" else 1.0)
        assert self.left is not None
        assert self.right is not None
        return self.left @ A @ self.right


class LinearAttention(eqx.Module):
    """Attention without softmax: F = (Σ_l z_l/√L)²."""

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        return jnp.sum(fields) ** 2 / len(fields)


class Network(eqx.Module):
    """F = σ(Σ_l x_l·w_l/√L): one direction for all tokens, or, not `tied`, one for each. No positional encoding.

    Arguments: `activation`: any JAX function of a number, smooth but perhaps at 0; `tied`.
    """

    activation: Callable[[Array], Array] = eqx.field(static=True)
    tied: bool = eqx.field(static=True)

    def __init__(self, activation: Callable[[Array], Array] = jax.nn.relu, tied: bool = True):
        check(callable(activation), "activation", activation, "a JAX function of a number")
        self.activation, self.tied = activation, bool(tied)

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        return self.activation(jnp.sum(fields) / np.sqrt(len(fields)))


class SequenceSingleIndex(eqx.Module):
    r"""A target of one hidden direction over L tokens, and the student that learns it by online SGD (module docstring).

    Arguments: `target` g: any JAX function of the fields (L,), with a number or an array for answer, or `sgd.HermiteSeries`;
    `length` L; `student`: `sgd.Attention(...)` (default: trace over √L), `sgd.LinearAttention()`, `sgd.Network(...)`, or any
    smooth JAX function of the fields with answers of the target's shape; `encoding`: None, "paired" (u_1 = -u_2 a unit
    vector, L = 2), "orthonormal", or rows (L, K) in an orthonormal frame orthogonal to the hidden direction (of dependent
    columns the principal axes; inside jit rows of norm <= 1); `loss_factor` c > 0; `loss`: "squared" c‖y - F‖², or
    "frobenius" c‖y - F‖.

    Raises: ValueError for L < 1, a target or student that fails or answers in another shape or not in finite real numbers, an
    encoding of another shape, an encoding with a network, c <= 0, an unknown loss.
    Example:
    >>> import jax.numpy as jnp, jaxsmi as smi
    >>> model = smi.SequenceSingleIndex(lambda z: jnp.sum(z**2), length=2, encoding="paired")
    >>> model.overlaps  # m and e
    2
    """

    target: Any
    student: Any
    encoding: Array
    loss_factor: Array
    length: int = eqx.field(static=True)
    loss: str = eqx.field(static=True)
    reach: float = eqx.field(static=True)

    def __init__(
        self,
        target: Callable[[Array], Array],
        length: int,
        student: Any = None,
        encoding: Any = None,
        loss_factor: Any = 0.5,
        loss: str = "squared",
    ):
        check(
            isinstance(length, (int, np.integer)) and length >= 1,
            "length",
            length,
            "an integer L >= 1",
        )
        check(loss in LOSSES, "loss", loss, f"one of {LOSSES}")
        self.length, self.loss = int(length), loss
        self.loss_factor = jnp.asarray(loss_factor, float)
        positive = jnp.isfinite(self.loss_factor) & (self.loss_factor > 0.0)
        check(self.loss_factor.shape == () and positive, "loss_factor", loss_factor, "a number > 0")
        self.target = _pytree(target)
        self.student = Attention() if student is None else _pytree(student)
        wanted = {
            name: _shape(getattr(self, name), self.length, name) for name in ("target", "student")
        }
        check(wanted["target"] == wanted["student"], "student", f"answers of shape {wanted['student']}",
              f"answers of the shape of the target's, {wanted['target']}")  # fmt: skip
        self.encoding = _coordinates(encoding, self.length)
        # how far the mean of a field may lie from zero: what grids must cover, so a number that is known when they are made
        norms = (
            np.linalg.norm(np.asarray(self.encoding), axis=1)
            if concrete(self.encoding)
            else np.zeros(1)
        )
        self.reach = float(np.ceil(np.max(norms, initial=1.0)))
        check(
            not (isinstance(self.student, Network) and self.encoding.shape[1]),
            "encoding",
            encoding,
            "None for a network",
        )

    @property
    def tied(self) -> bool:
        """Whether one direction serves all tokens (all students but untied networks)."""
        return not isinstance(self.student, Network) or self.student.tied

    @property
    def overlaps(self) -> int:
        """How many overlaps describe the student: m and the K of e; of an untied network m_1..m_L."""
        return 1 + self.encoding.shape[1] if self.tied else self.length

    def split(self, v: Array) -> tuple[Array, Array]:
        """Of the overlaps (overlaps,): m of each token (L,), and the means of the fields (L,)."""
        if not self.tied:
            return v, jnp.zeros_like(v)
        return jnp.broadcast_to(v[0], (self.length,)), self.encoding.astype(v.dtype) @ v[1:]

    def sample_loss(self, hidden: Array, fields: Array) -> Array:
        """ℓ of one sample from z* and z (L,); the slope of the unsquared loss at a residual of zero is taken to be zero."""
        square = jnp.sum((self.target(hidden) - self.student(fields)) ** 2)
        if self.loss == "squared":
            return self.loss_factor * square
        apart = square > 0.0
        return self.loss_factor * jnp.where(apart, jnp.sqrt(jnp.where(apart, square, 1.0)), 0.0)

    def sample(
        self, key: Array, *, dimension: int, samples: int, teacher: Any = None, dtype: Any = None
    ) -> Dataset:
        """Inputs √d x (samples, L, d), their labels g(z*), and the hidden direction (1, d), as every model's data sets."""
        check(
            isinstance(dimension, (int, np.integer)) and dimension >= 2,
            "dimension",
            dimension,
            "an integer d >= 2",
        )
        check(
            isinstance(samples, (int, np.integer)) and samples >= 1,
            "samples",
            samples,
            "an integer >= 1",
        )
        teacher_key, input_key = jax.random.split(key)
        if teacher is None:
            teacher = jax.random.normal(teacher_key, (1, dimension), theory_dtype())
            teacher = teacher * np.sqrt(dimension) / jnp.linalg.norm(teacher)
        teacher = jnp.asarray(teacher)
        check(
            teacher.shape == (1, dimension),
            "teacher",
            teacher,
            f"an array of shape {(1, dimension)}",
        )
        inputs = jax.random.normal(
            input_key, (samples, self.length, dimension), dtype or theory_dtype()
        )
        fields = jnp.einsum(
            "nld,d->nl", inputs, teacher[0].astype(inputs.dtype), precision="highest"
        ) / np.sqrt(dimension)
        return Dataset(inputs, jax.vmap(self.target)(fields.astype(theory_dtype())), teacher)


class _SemanticPositional(eqx.Module):
    """g(z) = (1 - ω) softmax(z zᵀ) + ω B(a)."""

    omega: Array
    a: Array

    def __call__(self, fields: Array) -> Array:
        beta = jax.nn.sigmoid(2.0 * self.a**2)
        B = jnp.stack([jnp.stack([beta, 1.0 - beta]), jnp.stack([1.0 - beta, beta])])
        return (1.0 - self.omega) * Attention("identity")(fields) + self.omega * B


def semantic_positional(
    omega: Any, a: Any = 1.0, loss_factor: Any = 0.5, loss: str = "squared"
) -> SequenceSingleIndex:
    r"""The semantic/positional problem of two tokens [ALSKZ25; theory: online-sgd, Eqs. (36) to (38)].

        g(z*) = (1 - ω) softmax(z* z*ᵀ) + ω B(a),   B = softmax([[a², -a²], [-a², a²]]),   F = softmax(z zᵀ),   paired encoding

    Its semantic solution is (m, e) = (±1, 0), the positional one (0, ±1).

    Arguments: ω in [0, 1]; a in (0, 1]; `loss_factor`, `loss`, as `SequenceSingleIndex`.
    Returns: a SequenceSingleIndex. Raises ValueError for ω or a out of range.
    """
    omega, a = jnp.asarray(omega, float), jnp.asarray(a, float)
    check((omega >= 0.0) & (omega <= 1.0), "omega", omega, "a number in [0, 1]")
    check((a > 0.0) & (a <= 1.0), "a", a, "a number in (0, 1]")
    return SequenceSingleIndex(
        _SemanticPositional(omega, a), 2, Attention("identity"), "paired", loss_factor, loss
    )


def _pytree(function: Any) -> Any:
    """A function as a tree, whose arrays can be differentiated; what it closes over becomes constants of the tree."""
    return function if isinstance(function, eqx.Module) else jax.tree_util.Partial(function)


def _shape(function: Any, length: int, name: str) -> tuple[int, ...]:
    """The shape of what a function answers; at one point its value is looked at too."""
    point = np.linspace(0.3, 0.7, length)
    try:
        value = jax.eval_shape(function, jax.ShapeDtypeStruct((length,), theory_dtype()))
        with jax.ensure_compile_time_eval():
            shown = np.asarray(function(jnp.asarray(point))) if concrete(function) else None
    except Exception as failure:
        raise ValueError(
            f"{name}: fails on fields of shape {(length,)} ({failure}); allowed: a JAX function of them."
        ) from failure
    check(isinstance(value, jax.ShapeDtypeStruct) and not jnp.issubdtype(value.dtype, jnp.complexfloating), name, value,
          "a JAX function whose answer is one real number or array")  # fmt: skip
    check(
        shown is None or np.isfinite(shown).all(),
        name,
        shown,
        "a JAX function whose answers are finite",
    )
    return value.shape


def _coordinates(encoding: Any, length: int) -> Array:
    """C (L, K): rows of the encoding in an orthonormal frame of as few directions as they span."""
    if encoding is None:
        return jnp.zeros((length, 0))
    if isinstance(encoding, str):
        check(
            encoding in ("paired", "orthonormal"),
            "encoding",
            encoding,
            "None, 'paired', 'orthonormal' or an array (L, K)",
        )
        check(
            encoding != "paired" or length == 2,
            "encoding",
            encoding,
            "'paired' for two tokens only",
        )
        return jnp.asarray([[1.0], [-1.0]]) if encoding == "paired" else jnp.eye(length)
    rows = jnp.asarray(encoding, float)
    check(
        rows.ndim == 2 and rows.shape[0] == length and rows.shape[1] >= 1,
        "encoding",
        rows,
        f"rows of shape ({length}, K)",
    )
    check(jnp.all(jnp.isfinite(rows)), "encoding", rows, "finite numbers")
    if not concrete(rows):
        check(rows.shape[1] <= length, "encoding", rows, f"inside jit, at most {length} columns")
        return rows
    left, sizes, _ = np.linalg.svd(np.asarray(rows), full_matrices=False)
    rank = int(np.sum(sizes > 1e-12 * sizes[0]))
    check(rank >= 1, "encoding", rows, "rows that are not all zero (None: no encoding)")
    if rank == rows.shape[1]:
        return rows
    axes = (left * sizes)[:, :rank]
    lead = axes[np.argmax(np.abs(axes) > 1e-12 * sizes[0], axis=0), np.arange(rank)]
    return jnp.asarray(axes * np.sign(lead))  # the first token's share is positive
