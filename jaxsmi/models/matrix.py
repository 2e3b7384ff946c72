r"""Models of one matrix of extensive rank: scalar overlaps, and the limit of small width.

Equations here, small width ρ -> 0 at fixed ᾱ = n/(numbers in the factors)
[theory: attention-indexed, Eq. (33); bilinear, Eqs. (18), (20)], V(t) of the prior, Q_0 = 1:

    t = c ᾱ f(1 - V),   c = 1, or 1 + β of a rectangular matrix;   something is learned from
    ᾱ_c = t_c/(c f(0)),  the t_c at which V(t) starts to fall

A symmetric S has n/(r d) = ᾱ, a rectangular one n/(r (d + L)) = ᾱ.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.matrix_scores import AbstractExplicitChannel
from jaxsmi.core import validate
from jaxsmi.core.arrays import not_recorded, theory_dtype
from jaxsmi.core.data import HasTeacher
from jaxsmi.core.validate import NON_NEGATIVE, check
from jaxsmi.design.base import AbstractMatrixDesign
from jaxsmi.design.blocks import Inputs
from jaxsmi.models.base import (
    AbstractMetric,
    AbstractModel,
    AbstractStudent,
    overlap_entries,
    title,
)
from jaxsmi.numerics.roots import bisect
from jaxsmi.priors.spectral import SpectralPrior

__all__ = ["MatrixMetric", "MatrixModel", "MatrixStudent"]

_LARGEST = 1e10  # q̂ in units of the width, from which on V counts as zero


class MatrixModel(AbstractModel):
    """A model whose signal is one matrix S, of extensive rank: scalar overlap q and precision,
    spectral prior.

    `readout`: the channel of the fields that a label is a function of (of several layers, the last
    one's); the channel where there is one layer. Where its response is not explicit, state
    evolution is that of index models, with this prior.
    """

    prior: eqx.AbstractVar[SpectralPrior]
    channel: eqx.AbstractVar[AbstractChannel]
    readout: eqx.AbstractVar[AbstractChannel]
    noise: eqx.AbstractVar[Array]

    @property
    @abc.abstractmethod
    def design(self) -> AbstractMatrixDesign:
        """Shapes, inputs and teachers of the data."""

    @property
    def rank_ratio(self) -> Array:
        """ρ of the prior."""
        return self.prior.law.rank_ratio

    @property
    def student(self) -> MatrixStudent:
        """Factors."""
        return MatrixStudent(self)

    def unsupported_reason(self, purpose: str = "inference") -> str | None:
        """One matrix has no rows, and no directions that could grow one by one but for those of
        a sampled channel."""
        grows = not self.prior.symmetric and not self.readout.explicit
        if purpose == "spectral" or (purpose == "directions" and not grows):
            return (
                f"model: got {title(self)}; allowed: a model of indices (for matrices: "
                "recovery_threshold, and model.small_width_threshold)."
            )
        return None if purpose == "averages" else super().unsupported_reason(purpose)

    @property
    def index_names(self) -> tuple[str, ...]:
        """The name of the matrix."""
        return ("S",)

    @property
    def explicit_readout(self) -> AbstractExplicitChannel:
        """The readout, where its response is a function in closed form; else a ValueError."""
        self._check_inference()
        allowed = "one with an explicit response, such as the linear output"
        check(isinstance(self.readout, AbstractExplicitChannel), "model", title(self), allowed)
        return self.readout  # pyright: ignore[reportReturnType]

    def _check_inference(self) -> None:
        reason = self.unsupported_reason()
        if reason is not None:
            raise ValueError(reason)

    @property
    def recovery(self) -> Array:
        """α = D/M of perfect recovery, by counting: degrees of freedom over the numbers that a
        label fixes [theory: attention-indexed, Eqs. (31), (57); bilinear, Eq. (14)]; L times as
        much of L matrices; inf with noise, or where a label fixes no numbers."""
        self._check_inference()
        readout = self.readout
        degrees = self.indices * self.prior.law.degrees_of_freedom
        if isinstance(readout, AbstractExplicitChannel):
            exact = degrees / float(readout.measurements)
            return jnp.where(self.noise > 0.0, jnp.inf, exact)
        if readout.outcomes is not None or readout.noise_size or readout.smooth is False:
            return jnp.full_like(degrees, jnp.inf)
        allowed = "an output whose label fixes its fields, or never does"
        check(readout.constraints is not None, "model", title(self), allowed)
        # of a symmetric matrix a field of variance 2V
        return 2.0 * self.prior.weight * degrees / float(readout.constraints or jnp.nan)

    @property
    def small_width_threshold(self) -> Array:
        """The ᾱ from which on something is learned, as ρ -> 0."""
        readout = self._readout_of_one()
        one = jnp.ones((), theory_dtype())
        _, start, scale = self.prior.law.small_width
        return start / (scale * readout.information(0.0 * one, one))

    def _readout_of_one(self) -> AbstractExplicitChannel:
        """The explicit readout; a ValueError for several matrices."""
        self._check_inference()
        check(self.indices == 1, "model", f"{self.indices} matrices", "one matrix")
        return self.explicit_readout

    def small_width_error(self, scaled: ArrayLike) -> Array:
        """V at ᾱ as ρ -> 0 (module docstring), elementwise."""
        readout = self._readout_of_one()
        allowed = "finite numbers >= 0"
        scaled = validate.array("scaled", scaled, allowed, interval=NON_NEGATIVE)
        error, start, scale = self.prior.law.small_width

        def height(log_t: Array) -> Array:
            V = error(jnp.exp(log_t))
            return log_t - jnp.log(scale * readout.information(1.0 - V, V))

        low = lax.stop_gradient(jnp.log(start) + jnp.zeros_like(scaled))
        above = lambda log_t: height(log_t) > jnp.log(scaled)
        root = lax.stop_gradient(bisect(above, low, jnp.full_like(scaled, np.log(_LARGEST))))
        # next to the start the root is the start itself: nothing is learned below the threshold
        learned = (root - low > 1e-12) & (root < np.log(0.9 * _LARGEST))
        inside = jnp.where(learned, root, low + 1.0)
        slope = lax.stop_gradient(jax.jvp(height, (inside,), (jnp.ones_like(inside),))[1])
        # a Newton step makes the derivative
        # at the root of the traced `scaled`, whose derivative bisection would lose
        move = (height(inside) - jnp.log(jnp.where(learned, scaled, 1.0))) / slope
        log_t = jnp.where(learned, inside - move, root)
        V = jnp.where(root - low > 1e-12, error(jnp.exp(log_t)), 1.0)
        return jnp.where(root > np.log(0.9 * _LARGEST), 0.0, jnp.where(scaled >= 0.0, V, jnp.nan))


class MatrixStudent(AbstractStudent):
    """Factors of the matrices."""

    model: MatrixModel

    def shape(self, dimension: int) -> tuple[int, int]:
        """Shape of the factors."""
        return self.model.design.factor_shape(dimension)

    def start(
        self,
        key: PRNGKeyArray,
        dimension: int,
        scale: ArrayLike = 1.0,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Random factors: scale × N(0, 1), drawn in the precision of theory: the teacher's law."""
        factors = super().start(key, dimension, scale)
        return factors.astype(dtype or factors.dtype)

    def fields(self, weights: Array, inputs: Inputs) -> Array:
        """Those of the factors."""
        return self.model.design.factor_fields(weights, inputs)

    def teacher_fields(self, teacher: Array, inputs: Inputs) -> Array:
        """Those of the teacher's matrices."""
        return self.model.design.teacher_fields(teacher, inputs)

    def estimate(self, weights: Array) -> Array:
        """S (a, b), of several layers (L, a, b), from the signal or from factors."""
        design = self.model.design
        signal = design.signal(weights)
        S = signal / design.unit(signal.shape[-1])
        return S if self.model.indices > 1 else S[0]

    def signal(self, estimate: Array) -> Array:
        """The signal (L, a, b) of S."""
        design = self.model.design
        d = estimate.shape[-1] if estimate.ndim else 0
        shape = design.shapes((1, *design.input_shape(d))).signal if d else ()
        shape = shape if self.model.indices > 1 else shape[1:]
        check(estimate.shape == shape, "solution", estimate, f"a matrix {shape}")
        return design.unit(d) * estimate.reshape(-1, *estimate.shape[-2:])

    def teacher_signal(self, teacher: Array) -> Array:
        """The signal (L, a, b) of a teacher."""
        return self.model.design.teacher_signal(teacher)


class MatrixMetric(AbstractMetric):
    """Overlaps per entry of the signal, and the distance to the teacher's matrix; up to the sign of
    S where it is `even`."""

    model: eqx.AbstractVar[MatrixModel]

    @property
    def even(self) -> bool:
        """Labels do not tell the sign of S."""
        return False

    @property
    def error_name(self) -> str:
        """The distance to the teacher's matrix."""
        return "Estimation error"

    def overlaps(self, weights: Array, teacher: Array | None) -> dict[str, Array]:
        """⟨Ŝ_l, Ŝ_k⟩ as "overlap" (L, L), ⟨Ŝ_l, S*_k⟩ as "teacher_overlap", "cosine" (L,) of both,
        ⟨,⟩ the mean product of entries of the signal; NaN without S*."""
        design = self.model.design
        product = lambda a, b: jnp.einsum("lij,kij->lk", a, b) / (a.shape[1] * a.shape[2])
        S = design.signal(weights, None if teacher is None else teacher.shape[0])
        Q = product(S, S)
        if teacher is None:
            return overlap_entries(Q)
        truth = design.teacher_signal(teacher)
        cross = product(S, truth)
        norms = jnp.diagonal(Q) * jnp.diagonal(product(truth, truth))
        cosine = jnp.diagonal(cross) / jnp.sqrt(norms)
        return overlap_entries(Q, cross, jnp.abs(cosine) if self.even else cosine)

    def comparable(self, teacher: Array) -> bool:
        """Always: matrices are compared, whatever their rank."""
        del teacher
        return True

    def error(
        self, weights: Array, data: HasTeacher, *, key: PRNGKeyArray, points: int = 0
    ) -> Array:
        """Estimation error per entry, of several layers their mean; NaN without a teacher."""
        del key, points
        teacher = self.teacher_of(data)
        if teacher is None:
            return not_recorded((), theory_dtype())
        return self._distance(self.model.design.signal(weights, teacher.shape[0]), teacher)

    def estimation_error(self, estimate: Array, teacher: Array) -> Array:
        """‖Ŝ - S*‖² per entry of the signal, of an estimate S."""
        return self._distance(self.model.student.signal(estimate), teacher)

    def _distance(self, signal: Array, teacher: Array) -> Array:
        truth = self.model.design.teacher_signal(teacher)
        error = jnp.mean((signal - truth) ** 2)
        return jnp.minimum(error, jnp.mean((signal + truth) ** 2)) if self.even else error

    def theory_error(self, V: Array, *, key: PRNGKeyArray, points: int) -> Array:
        """V itself, of several matrices its mean."""
        del key, points
        return jnp.mean(jnp.diagonal(V))
