r"""What the models of one matrix of extensive rank share: a scalar overlap, and the small width.

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
from jaxsmi.channels.explicit import ExplicitChannel
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import checked, numbers
from jaxsmi.core.checks import NON_NEGATIVE, Ability, check, require
from jaxsmi.core.data import Dataset
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.roots import bisect
from jaxsmi.priors.spectral import SpectralPrior


class AbstractMatrixModel(AbstractModel):
    """A model whose signal is one matrix S, of extensive rank: scalar overlap q and precision,
    spectral prior.

    `recovery`: the α of perfect recovery (inf: none). `readout`: what a label says about the fields
    it was made of; the channel where there is one. Where its response is not explicit, state
    evolution is that of index models, with this prior.
    """

    prior: eqx.AbstractVar[SpectralPrior]
    channel: eqx.AbstractVar[AbstractChannel]
    readout: eqx.AbstractVar[AbstractChannel]
    noise: eqx.AbstractVar[Array]

    @property
    def least_dimension(self) -> int:
        """A matrix has more than one entry."""
        return 2

    @property
    def calibrated(self) -> bool:
        """Never: the precision is a number that theory knows."""
        return False

    def refusal(self, ability: Ability) -> str | None:
        """One matrix has no directions that could grow one by one; else what the channel lacks."""
        grows = not self.prior.symmetric and not self.readout.explicit
        if ability is Ability.SPECTRAL or (ability is Ability.DIRECTIONS and not grows):
            return (
                f"model: got {self.title}; allowed: a model of indices (for matrices: "
                "recovery_threshold, and model.small_width_threshold)."
            )
        return None if ability is Ability.AVERAGES else super().refusal(ability)

    @property
    def index_names(self) -> tuple[str, ...]:
        """What to call the matrix."""
        return ("S",)

    @property
    def valid(self) -> Array:
        """Whether all parameters are in their ranges: under jit nothing else says so."""
        return super().valid & jnp.isfinite(self.noise) & (self.noise >= 0.0)

    def start(
        self,
        key: PRNGKeyArray,
        dimension: int,
        scale: ArrayLike = 1.0,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Random factors of a student: scale × N(0, 1)."""
        factors = jax.random.normal(key, self.student_shape(dimension), theory_dtype())
        return (jnp.asarray(scale) * factors).astype(dtype or theory_dtype())

    @abc.abstractmethod
    def signal_of(self, estimate: Array) -> Array:
        """The signal (1, L, d) of message passing, from what a user sees of it, S (L, d)."""

    def comparable(self, teacher: Array) -> bool:
        """Always: matrices are compared, whatever their rank."""
        del teacher
        return True

    @property
    def error_name(self) -> str:
        """The distance to the teacher's matrix."""
        return "Estimation error"

    def error_of(
        self, weights: Array, data: Dataset, *, key: PRNGKeyArray, samples: int = 0
    ) -> Array:
        """Estimation error per entry, of several layers their mean; NaN without a teacher."""
        del key, samples
        teacher = self.teacher_of(data)
        if teacher is None:
            return jnp.asarray(jnp.nan, theory_dtype())
        return self.estimation_error(self.estimate(weights), teacher)

    @property
    def explicit_readout(self) -> ExplicitChannel:
        """The readout, where its response is a function in closed form.

        Raises:
            ValueError: Where it is not.
        """
        require(self, Ability.INFERENCE)
        if not isinstance(self.readout, ExplicitChannel):
            allowed = "one with an explicit response, such as the linear output"
            raise ValueError(f"model: got {self.title}; allowed: {allowed}.")
        return self.readout

    def theory_error(self, V: Array, *, key: PRNGKeyArray, samples: int) -> Array:
        """V itself, of several matrices its mean."""
        del key, samples
        return jnp.mean(jnp.diagonal(V))

    @property
    def recovery(self) -> Array:
        """α = D/M of perfect recovery, by counting: degrees of freedom over what a label fixes
        [theory: attention-indexed, Eqs. (31), (57); bilinear, Eq. (14)]; L times as much of L
        matrices; inf with noise, or where a label fixes no numbers."""
        require(self, Ability.INFERENCE)
        readout = self.readout
        degrees = self.indices * self.prior.law.degrees_of_freedom
        if isinstance(readout, ExplicitChannel):
            exact = degrees / float(readout.measurements)
            return jnp.where(self.noise > 0.0, jnp.inf, exact)
        if readout.outcomes is not None or readout.noise_size or readout.smooth is False:
            return jnp.full_like(degrees, jnp.inf)
        allowed = "an output whose label fixes its fields, or never does"
        check(readout.constraints is not None, "model", self.title, allowed)
        # of a symmetric matrix a field of variance 2V
        return 2.0 * self.prior.weight * degrees / float(readout.constraints or jnp.nan)

    @property
    def small_width_threshold(self) -> Array:
        """The ᾱ from which on something is learned, as ρ -> 0."""
        self._check_one_matrix()
        readout = self.explicit_readout
        one = jnp.ones((), theory_dtype())
        _, start, scale = self.prior.law.small_width
        return start / (scale * readout.information(0.0 * one, one))

    def _check_one_matrix(self) -> None:
        """Raise a ValueError for several matrices, or without a posterior."""
        require(self, Ability.INFERENCE)
        check(self.indices == 1, "model", f"{self.indices} matrices", "one matrix")

    @checked(scaled=numbers("finite numbers >= 0", NON_NEGATIVE))
    def small_width_error(self, scaled: ArrayLike) -> Array:
        """V at ᾱ as ρ -> 0 (module docstring), elementwise."""
        self._check_one_matrix()
        readout = self.explicit_readout
        scaled = jnp.asarray(scaled, theory_dtype())
        check(jnp.all(scaled >= 0.0), "scaled", scaled, "numbers >= 0")
        error, start, scale = self.prior.law.small_width

        def height(log_t: Array) -> Array:
            V = error(jnp.exp(log_t))
            return log_t - jnp.log(scale * readout.information(1.0 - V, V))

        low = lax.stop_gradient(jnp.log(start) + jnp.zeros_like(scaled))
        above = lambda log_t: height(log_t) > jnp.log(scaled)
        root = lax.stop_gradient(bisect(above, low, jnp.full_like(scaled, np.log(1e10))))
        learned = (root - low > 1e-12) & (root < np.log(0.9e10))
        inside = jnp.where(learned, root, low + 1.0)
        slope = lax.stop_gradient(jax.jvp(height, (inside,), (jnp.ones_like(inside),))[1])
        # a Newton step makes the derivative
        move = (height(inside) - jnp.log(jnp.where(learned, scaled, 1.0))) / slope
        log_t = jnp.where(learned, inside - move, root)
        V = jnp.where(root - low > 1e-12, error(jnp.exp(log_t)), 1.0)
        return jnp.where(root > np.log(0.9e10), 0.0, jnp.where(scaled >= 0.0, V, jnp.nan))
