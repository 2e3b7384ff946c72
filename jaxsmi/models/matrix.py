r"""Models of one matrix of extensive rank: scalar overlaps, small width, factors as students.

Equations here, small width ρ -> 0 at fixed ᾱ = n/(numbers in the factors)
[theory: attention-indexed, Eq. (36); bilinear, Eqs. (23), (25)], V(t) of the prior, Q_0 = 1:

    t = c ᾱ f(1 - V),   c = 1, or 1 + β of a rectangular matrix;   something is learned from
    ᾱ_c = t_c/(c f(0)),  with t_c the t at which V(t) starts to fall

A symmetric S has n/(r d) = ᾱ, a rectangular one n/(r (d + L)) = ᾱ. Students and teachers are
factors [theory: attention-indexed, Eqs. (1), (43); bilinear, Eq. (1)]:

    symmetric    S_l = W_lᵀ W_l/√(r d),  W (L r, d) of L layers;   signal √d S (L, d, d)
    product      S = Bᵀ C/√r,  [B, C] (r, L + d), or S = Wᵀ W/√r of W (r, d);   signal S (1, L, d)
                 (S = (U V)ᵀ/√r of the prior: B = V (r, L), C = Uᵀ (r, d))

A signal has entries O(1). The teacher of a symmetric model is its factors, of a product S itself.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.matrix_scores import AbstractScores
from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny, concrete, missing_array, theory_dtype
from jaxsmi.core.data import HasTeacher
from jaxsmi.core.solution import Estimate
from jaxsmi.core.validate import NON_NEGATIVE, check
from jaxsmi.design.products import Inputs, mapped, product_dtype
from jaxsmi.models.base import (
    AbstractMetric,
    AbstractModel,
    AbstractStudent,
    Prediction,
    model_argument,
    title,
)
from jaxsmi.models.prediction import posterior_labels, prediction_error
from jaxsmi.models.symmetry import AbstractSymmetry
from jaxsmi.numerics.linear_algebra import goe
from jaxsmi.numerics.quadrature import power_of_two
from jaxsmi.numerics.roots import differentiable_root
from jaxsmi.priors.factors import WishartLaw
from jaxsmi.priors.spectral import AbstractSymmetricLaw, SpectralPrior

# q̂ in units of the width, from which on V counts as zero: V falls as 1/q̂ at least, and 1e-10 is
# beyond what fixed points resolve
_MAX_PRECISION = 1e10


class MatrixModel(AbstractModel):
    """A model whose signal is one matrix S, of extensive rank: scalar overlap q and precision,
    spectral prior.

    `readout`: channel of the fields of the last layer, which make the label; the channel of the
    model if there is one layer. State evolution is that of index models, with this prior, if its
    response has no closed form. `output`: its name. `tokens`: T of scores (T, T), 1 of one field.
    `symmetry`: the sign of S, if labels do not determine it.
    """

    prior: SpectralPrior
    readout: AbstractChannel
    output: str
    tokens: int
    symmetry: tuple[AbstractSymmetry, ...]

    @property
    def channel(self) -> AbstractChannel:
        """Channel of the fields of all layers; the readout for one layer."""
        return self.readout

    @property
    def metric(self) -> MatrixMetric:
        """⟨Ŝ, S*⟩ per entry, and errors of labels."""
        return MatrixMetric(self, self.symmetry)

    @abc.abstractmethod
    def exact_error(self, q: Array, *, bayes: bool) -> Estimate | None:
        """Return the prediction error at the overlap q of one matrix, or None if it has no closed
        form."""

    @property
    def linear(self) -> bool:
        """True if labels are the fields plus Gaussian noise."""
        return self.output == "linear" and self.readout.closed_form

    @property
    def rank_ratio(self) -> Array:
        """ρ of the prior."""
        return self.prior.law.rank_ratio

    def unsupported_reason(self, purpose: str = "inference") -> str | None:
        """Add refusals: a matrix has no rows; directions grow one by one only under a sampled
        channel; estimates of S and of -S have no mean."""
        # with a trace, or labels that depend on S at q = 0 (all closed forms), S is learned at
        # any α > 0: no direction is left to grow
        grows = not self.prior.symmetric and not self.readout.closed_form
        if purpose == "spectral" or (purpose == "directions" and not grows):
            return (
                f"model: got {title(self)}; allowed: a model of indices (for matrices: "
                "recovery_threshold, and model.small_width_threshold)."
            )
        if purpose != "averages":
            return super().unsupported_reason(purpose)
        tells = "fit: got runs with S up to its sign; allowed: an output that determines the sign."
        return tells if self.symmetry else None

    @property
    def index_names(self) -> tuple[str, ...]:
        """Names of the matrices: "S", or "layer 1" and so on for several layers."""
        layers = tuple(f"layer {number}" for number in range(1, self.indices + 1))
        return layers if self.indices > 1 else ("S",)

    @property
    def closed_form_readout(self) -> AbstractScores:
        """The readout, if its response has a closed form; else raise a ValueError."""
        model_argument(self, "inference")
        allowed = "one with an explicit response, such as the linear output"
        check(self.readout.closed_form, "model", title(self), allowed)
        return self.readout  # pyright: ignore[reportReturnType]

    @property
    def recovery_alpha(self) -> Array:
        """The α above which perfect recovery is stable, by counting: D_f/M_y, degrees of freedom
        over the numbers that a label fixes [theory: attention-indexed, Eq. (34); bilinear, Eq.
        (19)]; L times as much for L matrices; inf with noise, or if a label fixes no numbers."""
        model_argument(self, "inference")
        readout = self.readout
        degrees = self.indices * self.prior.law.degrees_of_freedom
        if readout.closed_form:
            exact = degrees / float(self.closed_form_readout.measurements)
            return jnp.where(readout.noiseless, exact, jnp.inf)
        # a sign fixes no number: V falls as a power of α, and never to zero
        if readout.outcomes is not None or readout.noise_size or readout.pathwise is False:
            return jnp.full_like(degrees, jnp.inf)
        allowed = "an output whose label either fixes its fields or does not"
        fixed = readout.constraints
        check(fixed is not None, "model", title(self), allowed)
        assert fixed is not None
        # a field of a symmetric matrix has variance 2V
        return 2.0 * self.prior.weight * degrees / fixed

    @property
    def small_width_threshold(self) -> Array:
        """The ᾱ above which something is learned, as ρ -> 0."""
        readout = self.closed_form_readout
        one = jnp.ones((), theory_dtype())
        _, threshold, scale = self.prior.law.small_width
        return threshold / (scale * readout.information(0.0 * one, one))

    def small_width_error(self, scaled: ArrayLike) -> Array:
        """Compute V at ᾱ as ρ -> 0 (module docstring), elementwise."""
        readout = self.closed_form_readout
        scaled = validate.array("scaled", scaled, "finite numbers >= 0", interval=NON_NEGATIVE)
        error, threshold, scale = self.prior.law.small_width

        # log 0 has no derivative, and at ᾱ = 0 nothing is learned
        log_alpha = jnp.log(clamp_to_tiny(scaled))

        def excess(log_t: Array) -> Array:
            V = error(jnp.exp(log_t))
            return log_t - jnp.log(scale * readout.information(1.0 - V, V)) - log_alpha

        # bisection in log t: t runs over ten decades
        low = lax.stop_gradient(jnp.log(threshold) + jnp.zeros_like(scaled))
        log_t = differentiable_root(excess, low, jnp.full_like(scaled, np.log(_MAX_PRECISION)))
        # a root next to the threshold is the threshold: nothing is learned below it
        above, below = log_t - low > 1e-12, log_t < np.log(0.9 * _MAX_PRECISION)
        # elsewhere V(t) may have no derivative, and 0 times NaN would spoil that of all entries
        log_t = jnp.where(above & below, log_t, lax.stop_gradient(log_t))
        V = jnp.where(below, jnp.where(above, error(jnp.exp(log_t)), 1.0), 0.0)
        return jnp.where(scaled >= 0.0, V, jnp.nan)


class MatrixMetric(AbstractMetric):
    """Overlaps per entry of the signal, the distance to the teacher's matrix, prediction errors."""

    model: MatrixModel

    def teacher_of(self, data: HasTeacher) -> Array | None:
        """Return the teacher if it has L layers, else None: its factors would be read as those of
        one matrix."""
        L = self.model.indices
        same = data.model is None or data.model.indices == L
        fits = data.teacher is not None and data.teacher.shape[0] % L == 0
        return data.teacher if same and fits else None

    def error(
        self, weights: Array, data: HasTeacher, *, key: PRNGKeyArray, points: int = 0
    ) -> Array:
        """Compute the estimation error per entry, the mean over layers; NaN without a teacher."""
        teacher = self.teacher_of(data)
        if teacher is None:
            return missing_array((), theory_dtype())
        return self._distance(self.model.student.to_signal(weights, teacher), teacher)

    def estimation_error(self, estimate: Array, teacher: Array) -> Array:
        """Compute ‖Ŝ - S*‖² per entry of the signal, of an estimate Ŝ."""
        return self._distance(self.model.student.signal(estimate), teacher)

    def _distance(self, signal: Array, teacher: Array) -> Array:
        truth = self.model.student.teacher_signal(teacher)
        error = jnp.mean((signal - truth) ** 2)
        # the sign of S is the only symmetry of matrices
        return jnp.minimum(error, jnp.mean((signal + truth) ** 2)) if self.symmetry else error

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, points: int
    ) -> Estimate:
        """Compute E ‖y(h) - ŷ(ω)‖² at overlap q, without label noise: ŷ = E[y|ω] (`bayes`) or y(ω);
        by sampling if it has no closed form."""
        exact = self.model.exact_error(Q[0, 0], bayes=bayes)
        if exact is not None:
            return exact
        key, size = validate.key("key", key), power_of_two(points // 8)
        scatter = self._scatter
        return prediction_error(self.model, Q, key=key, bayes=bayes, points=size, scatter=scatter)

    @property
    def _scatter(self) -> Callable[[Array], Array] | None:
        # scores of a symmetric matrix are GOE(T), the field of a rectangular one is N(0, 1)
        return _symmetric_fields if self.model.prior.symmetric else None

    def posterior_labels(self, omega: Array, V: Array) -> Prediction:
        """Average over scores ω + √V GOE(T), or fields ω + √V N(0, 1)."""
        return posterior_labels(self.model, omega, V, self._scatter)

    def theory_error(self, V: Array, *, key: PRNGKeyArray, points: int) -> Estimate:
        """Return V, the mean over matrices."""
        return Estimate(jnp.mean(jnp.diagonal(V)), jnp.zeros((), V.dtype))


def _symmetric_fields(normal: Array) -> Array:
    """Return scores GOE(T) (n, L, T²) of iid N(0, 1) ones."""
    T = math.isqrt(normal.shape[-1])
    return goe(normal.reshape(*normal.shape[:-1], T, T)).reshape(normal.shape)


class AbstractFactors(AbstractStudent):
    """Factors of matrices (module docstring)."""

    model: MatrixModel

    def unit(self, dimension: int) -> float:
        """Ratio of the signal to S."""
        return 1.0

    def estimate(self, weights: Array) -> Array:
        """Return S (a, b), or (L, a, b) for several layers, from the signal or from factors."""
        signal = self.to_signal(weights)
        S = signal / self.unit(signal.shape[-1])
        return S if self.model.indices > 1 else S[0]

    def signal(self, estimate: Array) -> Array:
        """Return the signal (L, a, b) of S."""
        design = self.model.design
        d = estimate.shape[-1] if estimate.ndim else 0
        shape = design.shapes((1, *design.input_shape(d))).signal if d else ()
        shape = shape if self.model.indices > 1 else shape[1:]
        check(estimate.shape == shape, "solution", estimate, f"a matrix {shape}")
        return self.unit(d) * estimate.reshape(-1, *estimate.shape[-2:])


class SymmetricFactors(AbstractFactors):
    """Factors W (L r, d) of symmetric matrices, seen by tokens; r = round(ρ d)."""

    law: AbstractSymmetricLaw

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Draw factors (L r, d)."""
        return self.law.factors(key, self.shape(dimension))

    def unit(self, dimension: int) -> float:
        """√d."""
        return math.sqrt(dimension)

    def shape(self, dimension: int) -> tuple[int, int]:
        """(L r, d)."""
        return (self.model.indices * self.model.prior.width(dimension), dimension)

    def _layers(self, weights: Array) -> Array:
        return weights.reshape(self.model.indices, -1, weights.shape[-1])

    def fields(self, weights: Array, inputs: Inputs) -> Array:
        """Compute scores h (n, L, T, T), in the wider precision of factors and inputs."""
        return jnp.stack([_scores(W, inputs) for W in self._layers(weights)], axis=1)

    def to_signal(self, weights: Array, teacher: Array | None = None) -> Array:
        """Return √d S (L, d, d) of factors (L r, d), or of a signal, itself."""
        weights = weights.astype(theory_dtype())
        if weights.ndim == 3:
            return weights
        matrices = jax.vmap(lambda W: WishartLaw.matrix(W.T))(self._layers(weights))
        return self.unit(weights.shape[-1]) * matrices

    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """Check that the teacher has factors (L r, d), of any r >= 1."""
        L = self.model.indices
        fits = teacher.ndim == 2 and teacher.shape[1] == dimension
        fits = fits and teacher.shape[0] % L == 0 and teacher.shape[0] > 0
        check(fits, "teacher", teacher, f"factors ({'' if L == 1 else f'{L} '}r, {dimension})")


def _scores(W: Array, inputs: Inputs) -> Array:
    """Compute scores h (n, T, T) of inputs (n, T, d) for W (r, d)."""
    r, d = W.shape
    narrow = W.T.astype(product_dtype(inputs))
    wide = jnp.promote_types(W.dtype, narrow.dtype)
    trace = jnp.sum(W.astype(wide) ** 2)

    # products through W, never S, which keep the digits that Tr S would take
    def products(x: Array) -> Array:
        z = jnp.einsum("ntd,dr->ntr", x, narrow, precision="highest").astype(wide)
        return jnp.einsum("nar,nbr->nab", z, z, precision="highest")

    scores = mapped(products, inputs) - trace * jnp.eye(inputs.shape[1], dtype=wide)
    return scores / math.sqrt(r * d) / math.sqrt(d)


class ProductFactors(AbstractFactors):
    """Factors (r, L + d) of a matrix S (L, d), or (r, d) of a symmetric one; r = round(ρ d)."""

    def shape(self, dimension: int) -> tuple[int, int]:
        """(r, L + d), or (r, d) if symmetric."""
        prior = self.model.prior
        columns = dimension + (0 if prior.symmetric else prior.length(dimension))
        return (prior.width(dimension), columns)

    def _product(self, factors: Array, length: int | None = None) -> Array:
        """Multiply factors to S (L, d), in their precision."""
        first = second = factors
        if not self.model.prior.symmetric:
            columns = factors.shape[1]  # L + d, L = round(β d)
            # training knows only its factors, and L from L + d is exact for β = L/d
            if length is None:
                beta = float(self.model.prior.law.aspect_ratio)
                length = max(columns - round(columns / (1.0 + beta)), 1)
            first, second = factors[:, :length], factors[:, length:]
        return jnp.matmul(first.T, second, precision="highest") / math.sqrt(factors.shape[0])

    def fields(self, weights: Array, inputs: Inputs) -> Array:
        """Compute ⟨X, S⟩/√(dL) (n, 1, 1) of factors."""
        S = self._product(weights.astype(product_dtype(inputs)), inputs.shape[1])
        return self.teacher_fields(S, inputs)

    def teacher_fields(self, teacher: Array, inputs: Inputs) -> Array:
        """Compute ⟨X, S⟩/√(dL) (n, 1, 1) of S."""
        return self.model.design.operator(inputs).forward(teacher[None])

    def to_signal(self, weights: Array, teacher: Array | None = None) -> Array:
        """Return S (1, L, d) of factors, or of a signal, itself; NaN if L follows from a traced β
        only."""
        weights = weights.astype(theory_dtype())
        if weights.ndim == 3:
            return weights
        prior = self.model.prior
        length = None if teacher is None else len(teacher)
        if length is None and not (prior.symmetric or concrete(prior.law.aspect_ratio)):
            return jnp.full((1, 1, 1), jnp.nan, weights.dtype)
        return self._product(weights, length)[None]

    def teacher_signal(self, teacher: Array) -> Array:
        """Return S (1, L, d)."""
        return teacher[None].astype(theory_dtype())

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Draw S (L, d) with Gaussian factors."""
        return self._product(self.start(key, dimension))

    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """Check that the teacher is S (L, d), of any rank; symmetric if the model is."""
        prior = self.model.prior
        known = prior.symmetric or concrete(prior.law.aspect_ratio)
        shape = self.model.design.input_shape(dimension) if known else teacher.shape
        check(teacher.shape == shape, "teacher", teacher, f"S {shape}")
        if prior.symmetric:
            # rounding of a product W Wᵀ in float32
            gap = jnp.max(jnp.abs(teacher - teacher.T)) <= 1e-6 * jnp.max(jnp.abs(teacher))
            check(gap, "teacher", teacher, "a symmetric matrix")
