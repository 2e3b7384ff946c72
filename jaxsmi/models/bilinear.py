r"""Bilinear sequence regression: a label linear in a sequence, through a matrix of extensive rank.

Equations here [ETBMZ25; theory: bilinear, Eqs. (1) to (4), (14) to (20)], a sequence X of L tokens
in d dimensions, S = (U V)ᵀ/√r (L, d) with U (d, r) and V (r, L) iid N(0, 1), β = L/d, ρ = r/d:

    y = ⟨X, S⟩/√(dL) + √Δ z,     α = n/(dL);   error ‖Ŝ - S‖²/(dL) = V, of a new label V (+ Δ)
    perfect recovery (Δ = 0) from α = D = ρ (1 + β - ρ)/β (ρ <= 1, ρ <= β), else 1
    small width, ᾱ = n/(r (d + L)), ρ -> 0: something is learned from ᾱ = (1 + Δ) √β/(1 + β)
    β -> ∞ (Δ = 0): V = (1 - α)(1 - α/ρ);   ρ -> ∞: ridge regression with penalty Δ

Symmetric [MTMKZ24; theory: bilinear, Eqs. (6), (7), (11), (15), (20)], S = W Wᵀ/√r (d, d),
X symmetric and Gaussian, of variance 1 off the diagonal and 2 on it:

    y = ⟨X, S⟩/d + √Δ z,     α = n/d²;    error ‖Ŝ - S‖²/d² = V, of a new label 2V (+ Δ)
    small width, ᾱ = n/(r d), ρ -> 0: something is learned from ᾱ = (1 + Δ/2)/2

which is `AttentionIndexed(1, ρ, "linear", noise=Δ)` with X in place of x xᵀ - I: a quadratic
network, with the same asymptotics. A hidden layer with noise σ, y = (1/√r) Σ_k (w_k·x/√d + σ z_k)²,
has Δ = 4σ² + 2σ⁴.

Other outputs, y = φ(z) + √Δ ξ of the field z [theory: bilinear, Eqs. (33) to (37)], have the
channels of index models with P = M = 1 (matrix_outputs.py); signs of S are lost where φ is even.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.matrix_scores import LinearField, LinearScores
from jaxsmi.channels.symmetric_fields import SymmetricFields
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.border import (
    checked,
    choice,
    either,
    flag,
    function,
    instance,
    numbers,
    optional,
    scalar,
)
from jaxsmi.core.checks import (
    NON_NEGATIVE,
    POSITIVE,
    VARIANCE,
    Ability,
    Arguments,
    Interval,
    check,
    check_rows,
)
from jaxsmi.core.data import Dataset, Regenerated
from jaxsmi.core.results import Estimate
from jaxsmi.models.base import overlaps_of
from jaxsmi.models.matrix import AbstractMatrixModel
from jaxsmi.models.matrix_outputs import Labels, field_output
from jaxsmi.models.multi_index import MultiIndex
from jaxsmi.models.score_error import sampled_error
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.linear_algebra import goe
from jaxsmi.priors.product import ProductPrior, gaussian_error
from jaxsmi.priors.spectral import SpectralPrior
from jaxsmi.priors.wishart import WishartPrior
from jaxsmi.sensing.blocks import LAWS, draw_inputs, gaussian
from jaxsmi.sensing.rectangular import RectangularSensing

__all__ = [
    "Bilinear",
]


OUTPUTS = ("linear", "sign", "absolute")
_ASPECT = scalar(Interval("a number > 0, or infinity", low=0.0, open_low=True, infinite=True))
_RANK = scalar(POSITIVE)
_NOISE = scalar(VARIANCE)
_OUTPUT = f"one of {OUTPUTS}, a JAX function of one number, or a link of smi.links"


def symmetric_gaussian(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Symmetric matrices (n, d, d): off-diagonal entries of variance 1, diagonal ones of 2."""
    return goe(gaussian(key, shape, dtype))


class Bilinear(AbstractMatrixModel):
    r"""Bilinear sequence regression: y = φ(⟨X, S⟩/√(dL)) + √Δ z, S (L, d) a product of width r.

    Sample complexity is α = n/(dL), L = round(β d), r = round(ρ d). Inputs are (n, L, d), S and the
    teacher (L, d): one row a token. `sample` warns where rounding moves β, ρ or α by more than 1 %:
    compare with the theory of the actual ratios. Stored inputs are n·L·d = α (dL)² numbers: 0.4 GB
    in float64 at d = L = 100, α = 0.5.

    Args:
        aspect_ratio: β = L/d > 0 (infinite: theory only). Default 1.
        rank_ratio: ρ = r/d > 0. Default 0.2.
        noise: Δ >= 0, the variance of the label noise (of signs inside the sign). Default 0.
        symmetric: S = W Wᵀ/√r of a quadratic network (β = 1). Default False.
        output: φ: "linear", "sign" (one-bit sensing), "absolute" (phaseless: S is known up to its
            sign), a JAX function of one number (inference with noise > 0), or a link of one index,
            such as smi.links.relu(0.1). Default "linear"; with `outcomes` E[y|z].
        log_likelihood: log p(y|z) of (y, z), normalised, instead of Gaussian noise. Default None.
        sampler: Draws a label from (key, z), beside log_likelihood. Default None.
        outcomes: All labels (K, ...), where they are few, in place of a sampler. Default None.

    Raises:
        ValueError: For arguments out of range, or labels without a law.

    Example:
        >>> import jax, jaxsmi as smi
        >>> jax.config.update("jax_enable_x64", True)
        >>> model = smi.Bilinear(aspect_ratio=1.0, rank_ratio=0.2)
        >>> round(float(smi.state_evolution(model, 0.3).error), 10)
        0.3474043203
    """

    prior: SpectralPrior
    noise: Array
    scalar: AbstractChannel | None
    symmetric: bool = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    output: str = eqx.field(static=True)
    even: bool = eqx.field(static=True)

    @checked(
        aspect_ratio=_ASPECT,
        rank_ratio=_RANK,
        noise=_NOISE,
        symmetric=flag,
        output=optional(either(_OUTPUT, choice(*OUTPUTS), function(""), instance(MultiIndex, ""))),
        log_likelihood=optional(function("a function of (label, fields)")),
        sampler=optional(function("a function of (key, fields)")),
        outcomes=optional(numbers("all labels (K, ...), two or more")),
    )
    def __init__(
        self,
        aspect_ratio: ArrayLike = 1.0,
        rank_ratio: ArrayLike = 0.2,
        noise: ArrayLike = 0.0,
        symmetric: bool = False,
        *,
        output: str | Callable[[Array], Array] | MultiIndex | None = None,
        log_likelihood: Callable[[Array, Array], Array] | None = None,
        sampler: Callable[[PRNGKeyArray, Array], Array] | None = None,
        outcomes: ArrayLike | None = None,
    ):
        arguments = Arguments()
        self.symmetric = symmetric
        self.noise = arguments.number("noise", noise, VARIANCE)
        self.tokens = 1  # one field a sample
        labels = Labels(noise, log_likelihood, sampler, outcomes)
        if output is None and not labels.scattered:
            output = "linear"
        if isinstance(output, str):
            arguments.choice("output", output, OUTPUTS)
        known = field_output(output, labels)
        self.output = known.name
        self.scalar = known.channel
        self.even = known.even and not self.symmetric
        if self.symmetric:
            square = jnp.asarray(aspect_ratio) == 1.0
            check(square, "aspect_ratio", aspect_ratio, "1 for a symmetric matrix")
            self.prior = WishartPrior(jnp.where(square, rank_ratio, jnp.nan))  # NaN under jit
        else:
            self.prior = ProductPrior(aspect_ratio, rank_ratio)

    @property
    def aspect_ratio(self) -> Array:
        """β."""
        return self.prior.law.aspect_ratio

    def length(self, dimension: int) -> int:
        """L = round(β d)."""
        return self.prior.length(dimension)

    @property
    def readout(self) -> AbstractChannel:
        """What a label says about its field."""
        if self.scalar is not None:
            return SymmetricFields(self.scalar, 1) if self.symmetric else self.scalar
        if self.symmetric:
            return LinearScores(tokens=1, noise=self.noise)
        return LinearField(noise=self.noise)

    @property
    def channel(self) -> AbstractChannel:
        """The same."""
        return self.readout

    def refusal(self, ability: Ability) -> str | None:
        """Also of averages where the sign of S is lost."""
        if ability is Ability.AVERAGES and self.even:
            return "fit: got runs with S up to its sign; allowed: an output that tells the sign."
        return super().refusal(ability)

    @property
    def indices(self) -> int:
        """One matrix."""
        return 1

    @property
    def small_width_threshold(self) -> Array:
        """(1 + Δ) √β/(1 + β), 0 at β = ∞ [theory: bilinear, Eq. (19)]; of a symmetric matrix
        (1 + Δ/2)/2 [theory: bilinear, Eq. (20)]."""
        return jnp.where(jnp.isinf(self.aspect_ratio), 0.0, super().small_width_threshold)

    @checked(scaled=numbers("finite numbers >= 0", NON_NEGATIVE))
    def small_width_error(self, scaled: ArrayLike) -> Array:
        """V at ᾱ as ρ -> 0, elementwise; at β = ∞ that of a Gaussian S at α = ᾱ."""
        wide = gaussian_error(jnp.asarray(scaled, theory_dtype()), self.noise)
        return jnp.where(jnp.isinf(self.aspect_ratio), wide, super().small_width_error(scaled))

    # Message passing

    # with damping and without noise "outer" lets V collapse; undamped, "state" can explode
    @property
    def precisions(self) -> tuple[str, ...]:
        """That of theory first; of other outputs what was measured."""
        return ("state", "outer") if self.scalar is None else ("outer", "state")

    @property
    def dampings(self) -> tuple[float, ...]:
        """That `gamp` tries one after the other: without noise, undamped runs diverge."""
        return (0.5, 0.7, 0.85)

    def check_data(self, data: Dataset, teacher: bool = True) -> None:
        """Raise a ValueError for inputs, labels or a teacher of another shape."""
        L, d = data.inputs.shape[1:]
        if self.symmetric:
            check(d == L, "data.inputs", data.inputs, "(n, d, d)")
            allowed = "symmetric matrices (of vectors: AttentionIndexed(1, ρ, 'linear'))"
            if isinstance(data.inputs, jax.Array):  # others are symmetric by their law
                gap = jnp.max(jnp.abs(data.inputs - jnp.swapaxes(data.inputs, 1, 2)))
                check(gap <= 1e-5, "data.inputs", data.inputs, allowed)
        else:
            asked = self.length(d) if concrete(self.aspect_ratio) else L
            check(asked == L, "data.inputs", data.inputs, f"(n, {asked}, {d}): β d tokens a sample")
        shape = jax.eval_shape(self.link, jax.ShapeDtypeStruct((1, 1), float)).shape
        check_rows(data.labels, shape)
        if teacher and data.teacher is not None:
            check(data.teacher.shape == (L, d), "data.teacher", data.teacher, f"S ({L}, {d})")

    def shapes(self, data: Dataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the signal (1, L, d) and of its fields (n, 1, 1) in message passing."""
        self.check_data(data)
        return (1, *data.inputs.shape[1:]), (data.samples, 1, 1)

    def sensing(self, data: Dataset) -> RectangularSensing:
        """How the signal is seen through the inputs of `data`."""
        return RectangularSensing(data.inputs)

    def estimate(self, signal: Array) -> Array:
        """S (L, d) from the signal (1, L, d) of message passing, or from a student's factors."""
        signal = signal.astype(theory_dtype())
        return signal[0] if signal.ndim == 3 else self.product(signal)

    def product(self, factors: Array, length: int | None = None) -> Array:
        """S (L, d) of factors (r, L + d), V beside Uᵀ; of W (r, d) if symmetric. `length`: L, where
        β is traced."""
        first = second = factors
        if not self.symmetric:
            columns = factors.shape[1]  # L + d, L = round(β d)
            if length is None:
                length = max(columns - round(columns / (1.0 + float(self.aspect_ratio))), 1)
            first = factors[:, :length]
            second = factors[:, length:]
        return jnp.matmul(first.T, second, precision="highest") / math.sqrt(factors.shape[0])

    def signal(self, teacher: Array) -> Array:
        """The signal (1, L, d) of a teacher (L, d)."""
        return teacher[None].astype(theory_dtype())

    def signal_of(self, estimate: Array) -> Array:
        """S itself."""
        return estimate[None]

    # What was learned

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """⟨Ŝ, Ŝ⟩/(dL) as "overlap" (1, 1), ⟨Ŝ, S⟩/(dL) as "teacher_overlap" (1, 1), "cosine" (1,)
        of both; NaN without S. Of factors, inside a program and without S, all three are NaN: how
        long the sequences are is not known there."""
        weights = weights.astype(theory_dtype())
        if weights.ndim == 3:
            S = weights[0]
        elif teacher is None and not concrete(self.aspect_ratio):
            return overlaps_of(jnp.full((1, 1), jnp.nan, weights.dtype))
        else:
            S = self.product(weights, None if teacher is None else teacher.shape[0])
        one = jnp.ones((1, 1), S.dtype)
        Q = jnp.mean(S * S)
        if teacher is None:
            return overlaps_of(Q * one)
        truth = teacher.astype(S.dtype)
        cross = jnp.mean(S * truth)
        cosine = cross / jnp.sqrt(Q * jnp.mean(truth * truth))
        cosine = jnp.abs(cosine) if self.even else cosine
        return overlaps_of(Q * one, cross * one, cosine * one[0])

    def error_of(
        self, weights: Array, data: Dataset, *, key: PRNGKeyArray, samples: int = 0
    ) -> Array:
        """Estimation error per entry; NaN without a teacher."""
        if data.teacher is None or weights.ndim == 3:
            return super().error_of(weights, data, key=key, samples=samples)
        S = self.product(weights.astype(theory_dtype()), data.teacher.shape[0])
        return self.estimation_error(S, data.teacher)

    def estimation_error(self, estimate: Array, teacher: Array) -> Array:
        """‖Ŝ - S‖² per entry; up to the sign of S where labels do not tell it."""
        error = jnp.mean((estimate - teacher) ** 2)
        return jnp.minimum(error, jnp.mean((estimate + teacher) ** 2)) if self.even else error

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, samples: int
    ) -> Estimate:
        """V, of a symmetric matrix 2V, for either predictor: E[y|ω] = ω; of other outputs by
        sampling."""
        if self.scalar is not None:
            key = Arguments().key("key", key)
            half = 1.0 if self.symmetric else 0.5  # GOE(1) has variance 2
            q = half * Q
            V = half * self.prior.second_moment(1) - q
            error = sampled_error(self.link, 1, q, V, bayes=bayes, key=key, samples=samples)
            return not_differentiable(error, (self, Q), unless=self.scalar.smooth)
        value = (2.0 if self.symmetric else 1.0) * (self.prior.norm - Q[0, 0])
        return Estimate(value, jnp.zeros((), theory_dtype()))

    # The network

    def input_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of one input, (L, d)."""
        return (self.length(dimension), dimension)

    def student_shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the weights of a student: V (r, L) beside Uᵀ (r, d); W (r, d) if symmetric."""
        columns = dimension + (0 if self.symmetric else self.length(dimension))
        return (self.prior.width(dimension), columns)

    def link(self, fields: Array) -> Array:
        """The noiseless label φ(z) of a field."""
        field = fields.reshape(())
        return field if self.scalar is None else self.scalar.link(fields.reshape(1, 1))

    def outputs(self, weights: Array, inputs: Array) -> Array:
        """Labels of inputs (n, L, d) for factors, in the precision of the inputs."""
        cast = jax.tree.map(
            lambda x: x.astype(inputs.dtype) if eqx.is_inexact_array(x) else x, self
        )
        S = self.product(weights.astype(inputs.dtype), inputs.shape[1])
        return cast.predicted_labels(S, inputs)

    def predicted_shape(self, estimate: Array) -> tuple[int, int]:
        """That of S (L, d)."""
        check(estimate.ndim == 2, "solution", estimate, "a matrix (L, d)")
        return (estimate.shape[0], estimate.shape[1])

    def predicted_labels(self, estimate: Array, inputs: Array) -> Array:
        """φ(⟨X, Ŝ⟩/√(dL)) (n, ...)."""
        S = estimate.astype(inputs.dtype)
        fields = jnp.einsum("nld,ld->n", inputs, S, precision="highest")
        return jax.vmap(self.link)(fields / math.sqrt(estimate.size))

    # Data

    def complexity(self, samples: int, dimension: int) -> float:
        """α = n/(dL)."""
        return samples / (dimension * self.length(dimension))

    def samples_at(self, alpha: float, dimension: int) -> int:
        """n = round(α d L)."""
        return round(alpha * dimension * self.length(dimension))

    def warn_of_rounding(self, dimension: int, samples: int, alpha: float) -> None:
        """Warn where rounding moves β, ρ or α by more than 1 %."""
        d = dimension
        L = self.length(dimension)
        with jax.ensure_compile_time_eval():  # a known model is known inside jit, too
            rho = float(self.prior.law.rank_ratio)
            beta = float(self.aspect_ratio)
        ratios = {
            "rank_ratio": (rho, self.prior.width(d) / d),
            "alpha": (alpha, samples / (d * L)),
            "aspect_ratio": (beta, L / d),
        }
        moved = [
            f"{name} {asked:g} -> {actual:g}"
            for name, (asked, actual) in ratios.items()
            if abs(actual / asked - 1.0) > 0.01
        ]
        if moved:
            warnings.warn(f"rounded at dimension {d}: {', '.join(moved)}.", stacklevel=4)

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """S (L, d) of Gaussian factors."""
        return self.product(self.start(key, dimension))

    def admit_teacher(self, teacher: Array, dimension: int) -> None:
        """S (L, d), of any rank; symmetric where the model is."""
        shape = self.input_shape(dimension)
        check(teacher.shape == shape, "teacher", teacher, f"({shape[0]}, {shape[1]})")
        if self.symmetric:
            gap = jnp.max(jnp.abs(teacher - teacher.T)) <= 1e-6 * jnp.max(jnp.abs(teacher))
            check(gap, "teacher", teacher, "a symmetric matrix")

    def draw_inputs(
        self,
        key: PRNGKeyArray,
        samples: int,
        shape: tuple[int, int],
        dtype: DTypeLike,
        store: bool,
        law: str = "gaussian",
    ) -> Array | Regenerated:
        """Inputs (n, L, d) of iid entries; symmetric Gaussian ones of a symmetric model."""
        drawn = symmetric_gaussian if self.symmetric else LAWS[law]
        return draw_inputs(key, samples, shape, dtype, store, drawn)

    @property
    def input_laws(self) -> tuple[str, ...]:
        """Symmetric inputs are Gaussian."""
        return ("gaussian",) if self.symmetric else tuple(LAWS)

    def draw_labels(self, key: PRNGKeyArray, teacher: Array, inputs: Array | Regenerated) -> Array:
        """φ(⟨X, S⟩/√(dL)) + √Δ z (n, ...)."""
        labels = RectangularSensing(inputs).forward(teacher)[:, 0, 0]
        if self.scalar is not None:
            noise = jax.random.normal(key, (len(labels), self.scalar.noise_size), labels.dtype)
            return jax.vmap(self.scalar.label)(labels[:, None, None], noise)
        return labels + jnp.sqrt(self.noise) * jax.random.normal(key, labels.shape, labels.dtype)
