r"""Teachers and students as online SGD sees them: fields of a few rows, functions of them, losses.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (1) to (7), (18), (50) to (52)], fixed rows
T = [W*; U] (k, D) of the teacher and of the directions of the inputs, student rows W (P, D), tokens
x_t:

    h_t = T x_t/√D (k,),   z_t = W x_t/√D (P,),   ℓ(z*, z),   z* = the first P* rows of h
    S_pt = ∂ℓ/∂z_pt

and functions of the fields z (L,) of one direction over L tokens:

    Hermite series    g(z) = Σ_n a_n Π_l H_{n_l}(z_l),   H = He (norm √n!) or, normalised, He/√n!
                      He_a He_b = Σ_r r! C(a, r) C(b, r) He_{a+b-2r}
    attention         F(z) = Red(A(z)),   A_ij = exp(z_i z_j)/Σ_j' exp(z_i z_j')
                      Red: trace (Σ_i A_ii, over √L by default), identity (A itself)
    linear attention  F = (Σ_l z_l/√L)²
    networks          F = σ(Σ_l x_l·w_l/√L), all w_l = w ("tied") or each its own ("untied")

A student may have several groups of rows, each of which sees tokens of its own (an untied network:
one row for each token); rows of different groups never meet.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Mapping
from math import comb, factorial, prod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import positive_root
from jaxsmi.core.validate import check
from jaxsmi.numerics.quadrature import hermite_polynomials

LOSSES = ("squared", "frobenius")
REDUCTIONS = ("trace", "identity")


def squared_loss(prediction: Array, label: Array) -> Array:
    """ℓ = ‖ŷ - y‖² of one sample (Frobenius)."""
    return jnp.sum((prediction - label) ** 2)


def known_gram(gram: Array, key: PRNGKeyArray, dimension: int | Array) -> Array:
    """The Gram matrix of rows whose overlaps do not fluctuate, at any dimension."""
    return gram


class StudentLoss(eqx.Module):
    """ℓ(link(z), y) of one sample."""

    link: Callable[[Array], Array]
    loss: Callable[[Array, Array], Array]

    def __call__(self, label: Array, fields: Array) -> Array:
        return self.loss(self.link(fields).reshape(label.shape), label)


class TeacherStudent(eqx.Module):
    """Pair of a teacher that makes labels and a student that learns from them (module docstring).

    Attributes:
        label: y from z* (P*, tokens of a sample) and the label's noise.
        loss: ℓ from y and z (P, tokens).
        agreement: Agreement of a student with the teacher, from M (P, k), Q (P, P) and the Gram
            matrix of the fixed rows (k, k): the numbers that `Monitor.level` and `Monitor.target`
            compare.
        draw_gram: draw_gram(key, dimension=D) draws the Gram matrix W* W*ᵀ/D (P*, P*) of a teacher.
        encoding: E (tokens of a sample, k - P*), of the directions of the inputs.
        gram: Expected Gram matrix of the fixed rows (k, k).
        targets: P*, rows of the teacher.
        rows: P, rows of the student in a group.
        groups: Number of groups of rows.
        tokens: Tokens that a group sees.
        noise_size: Standard normals in the label of a sample.
        sized: Whether `draw_gram` must know D as an integer.
        spherical: Whether rows stay on the sphere, the losses of a batch are added up, and the
            overlaps of a student are written as one vector (m, e_1..e_K).
        tied: Whether every row sees all tokens. (One of an untied network of one token does, too.)
        squared: g, F and c of the loss c ‖g(z*) - F(z)‖² of one direction on the sphere, whose
            averages need no sampling. None: another loss.
        matrix: The matrices of extensive rank whose scores the fields are; None: rows.
    """

    label: Callable[[Array, Array], Array]
    loss: Callable[[Array, Array], Array]
    agreement: Callable[[Array, Array, Array], Array]
    draw_gram: Callable[..., Array]
    encoding: Array
    gram: Array
    targets: int = eqx.field(static=True)
    rows: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    noise_size: int = eqx.field(static=True)
    # only Wishart matrices are drawn at a D that is traced
    sized: bool = eqx.field(static=True, default=False)
    spherical: bool = eqx.field(static=True, default=False)
    # not groups == 1: an untied network of one token has one group, too
    tied: bool = eqx.field(static=True, default=True)
    squared: SequenceLoss | None = None
    matrix: MatrixPair | None = None

    def sample_loss(self, teacher_fields: Array, fields: Array, noise: Array) -> Array:
        """ℓ from z*, z and the label's noise."""
        return self.loss(self.label(teacher_fields, noise), fields)

    @property
    def fixed(self) -> int:
        """k, rows that stay: the teacher's and the directions of the inputs."""
        return len(self.gram)

    @property
    def directions(self) -> int:
        """Directions of the inputs."""
        return self.fixed - self.targets


class MatrixPair(NamedTuple):
    """A teacher's matrix S_2 and the width of a student's factors.

    Attributes:
        eigenvalues: Nodes s (n,) of averages over the spectrum of S_2.
        weights: Their weights (n,), of sum one.
        width: ρ_1 = r_1/d of the student.
    """

    eigenvalues: Array
    weights: Array
    width: Array


class AbstractFlowTeacher(eqx.Module):
    """A model whose labels a student can learn by a flow of few numbers."""

    @abc.abstractmethod
    def teacher_student(
        self, student: Any = None, loss: Callable[[Array, Array], Array] | None = None
    ) -> TeacherStudent:
        """Pair the model with a student of as many tokens (default: the model itself), under a loss
        of (prediction, label) (default: the loss of the model, else ‖ŷ - y‖²)."""


class AbstractTeacher(AbstractFlowTeacher):
    """A model whose labels a student of few rows can learn by online SGD."""

    @abc.abstractmethod
    def link_of_fields(self) -> tuple[Callable[[Array], Array], int, int]:
        """Return labels without Gaussian noise, or the probabilities of their few outcomes, as a
        function of the fields (P·M,); P and M."""


class SequenceLoss(eqx.Module):
    """ℓ of one sample: c ‖g(z*) - F(z)‖², or with `loss` "frobenius" c ‖g(z*) - F(z)‖."""

    target: Callable[[Array], Array]
    student: Callable[[Array], Array]
    factor: Array
    loss: str = eqx.field(static=True)

    @property
    def series(self) -> tuple[HermiteSeries, Callable[[Array], Array]] | None:
        """g and σ of a network that learns a finite series; None for another pair."""
        if isinstance(self.student, Network) and isinstance(self.target, HermiteSeries):
            return self.target, self.student.activation
        return None

    @property
    def smooth(self) -> bool:
        """True if F is smooth enough for a grid: the activation of a network may have a kink."""
        return not isinstance(self.student, Network)

    def label(self, teacher_fields: Array, noise: Array | None = None) -> Array:
        """g(z*) from z* (1, L) or (L,), without noise."""
        return self.target(jnp.ravel(teacher_fields))

    def __call__(self, label: Array, fields: Array) -> Array:
        """Return ℓ from g(z*) and z (1, L) or (L,)."""
        change = label - self.student(jnp.ravel(fields))
        square = jnp.sum(change**2)
        if self.loss == "squared":
            return self.factor * square
        # the slope at a residual of zero is taken to be zero
        return self.factor * positive_root(square)


class HermiteSeries(eqx.Module):
    """g(z) = Σ_n a_n Π_l H_{n_l}(z_l), with H = He (probabilists', of norm √n!) or h = He/√n!.

    Args:
        terms: Coefficient for the degrees of the L tokens: {(2, 0): 1.0, (0, 2): 1.0}.
        normalised: h instead of He. Default False.

    Raises:
        ValueError: For no terms, degrees that are no whole numbers >= 0, unequal lengths, or
            non-finite coefficients.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> series = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 4): 1.0})
        >>> float(series(jnp.array([2.0, 1.0])))  # He2(2) + He4(1)
        1.0
    """

    coefficients: Array
    degrees: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    normalised: bool = eqx.field(static=True)

    def __init__(self, terms: Mapping[tuple[int, ...], ArrayLike], normalised: bool = False):
        allowed = "coefficients by degrees, one integer >= 0 for each token: {(2, 0): 1.0}"
        terms = validate.instance("terms", terms, Mapping, allowed)
        check(len(terms) > 0, "terms", dict(terms), "at least one term")
        # another key than a tuple fails the next check, with its message
        degrees = [n if isinstance(n, tuple) else (None,) for n in terms]
        whole = all(isinstance(k, (int, np.integer)) and k >= 0 for n in degrees for k in n)
        equal = len({len(n) for n in degrees}) == 1 and len(degrees[0]) >= 1
        check(whole and equal, "terms", list(terms), allowed)
        self.degrees = tuple(tuple(int(k) for k in n) for n in terms)
        self.normalised = validate.flag("normalised", normalised)
        numbers = [validate.array("terms", a, "finite coefficients") for a in terms.values()]
        self.coefficients = jnp.stack(numbers)

    @property
    def length(self) -> int:
        """L."""
        return len(self.degrees[0])

    @property
    def _factorials(self) -> np.ndarray:
        """Π_l n_l! of each term."""
        return np.array([float(prod(factorial(k) for k in n)) for n in self.degrees])

    @property
    def orthonormal(self) -> Array:
        """Coefficients of Π_l h_{n_l}, one for each of `degrees`."""
        factorials = self._factorials
        scale = jnp.asarray(np.ones_like(factorials) if self.normalised else np.sqrt(factorials))
        return self.coefficients * scale.reshape(-1, *(1,) * (self.coefficients.ndim - 1))

    def squared(self) -> HermiteSeries:
        """Return the series of g², for a g that is a number."""
        allowed = "a series whose answer is a number"
        check(self.coefficients.ndim == 1, "series", "an array of answers", allowed)
        # the product formula has integer coefficients for He, not for h
        plain = self.orthonormal / jnp.sqrt(jnp.asarray(self._factorials))  # coefficients of He
        terms: dict[tuple[int, ...], ArrayLike] = {}
        for (a, x), (b, y) in itertools.product(zip(self.degrees, plain, strict=True), repeat=2):
            for r in itertools.product(*(range(min(i, j) + 1) for i, j in zip(a, b, strict=True))):
                triples = list(zip(a, b, r, strict=True))
                size = prod(factorial(t) * comb(i, t) * comb(j, t) for i, j, t in triples)
                n = tuple(i + j - 2 * t for i, j, t in triples)
                terms[n] = terms.get(n, 0.0) + x * y * float(size)
        return HermiteSeries(terms)

    def __call__(self, fields: Array) -> Array:
        """g(z)."""
        allowed = f"an array of shape {(self.length,)}, one for each token"
        check(fields.shape == (self.length,), "fields", fields, allowed)
        table = hermite_polynomials(fields, max(max(n) for n in self.degrees))
        factors = jnp.take_along_axis(table, jnp.asarray(self.degrees), axis=0)  # (terms, L)
        return jnp.tensordot(jnp.prod(factors, axis=1), self.orthonormal, axes=1)


class Attention(eqx.Module):
    """Tied softmax attention, head dimension one, values the tokens themselves (module docstring).

    The factor of the trace decides the sign of a curvature [theory: online-sgd, Table 2].

    Args:
        reduction: "trace" (the default) or "identity".
        trace_norm: "sqrtL" (over √L, the default) or "none".

    Raises:
        ValueError: For an unknown name.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> smi.sgd.Attention("identity")(jnp.zeros(2)).shape
        (2, 2)
    """

    reduction: str = eqx.field(static=True)
    trace_norm: str = eqx.field(static=True)

    def __init__(self, reduction: str = "trace", trace_norm: str = "sqrtL"):
        self.reduction = validate.choice("reduction", reduction, REDUCTIONS)
        self.trace_norm = validate.choice("trace_norm", trace_norm, ("sqrtL", "none"))

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        A = jax.nn.softmax(fields[:, None] * fields, axis=-1)
        if self.reduction == "identity":
            return A
        # over √L the trace of many tokens fluctuates by O(1)
        return jnp.trace(A) / (np.sqrt(len(fields)) if self.trace_norm == "sqrtL" else 1.0)


class LinearAttention(eqx.Module):
    """Attention without softmax: F = (Σ_l z_l/√L)²."""

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        return jnp.sum(fields) ** 2 / len(fields)


class Network(eqx.Module):
    """F = σ(Σ_l x_l·w_l/√L): one direction for all tokens, or one for each. No encoding.

    Args:
        activation: Any JAX function of a number, smooth but perhaps at 0. Default: relu.
        tied: One direction for all tokens. Default True.

    Raises:
        ValueError: For an activation that is no function.
    """

    activation: Callable[[Array], Array] = eqx.field(static=True)
    tied: bool = eqx.field(static=True)

    def __init__(self, activation: Callable[[Array], Array] = jax.nn.relu, tied: bool = True):
        self.activation = validate.function("activation", activation, "a JAX function of a number")
        self.tied = validate.flag("tied", tied)

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        return self.activation(jnp.sum(fields) / np.sqrt(len(fields)))
