"""The Gaussian prior: every average in closed form.

Equations here [TCDKZ25], [theory: multi-index, section 2], w ~ N(0, C_0):

    f = (C_0^{-1} + A)^{-1} b,   Q = C_0 - (C_0^{-1} + Q̂)^{-1}
    Φ_w = ½ tr C_0Q̂ - ½ log det(I + C_0Q̂)
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core.arrays import arithmetic, theory_dtype
from jaxsmi.core.border import anything, checked, instance, optional
from jaxsmi.core.checks import Arguments, check
from jaxsmi.numerics.linear_algebra import sqrt_psd, symmetric
from jaxsmi.numerics.triangular import bartlett, bartlett_size
from jaxsmi.priors.iid import AbstractIidPrior, averaged, check_sizes, drawn, precision_matrix, real
from jaxsmi.priors.mixture import Mixture

__all__ = ["Gaussian", "iid_prior"]


def _as_covariance(C: object) -> Array | None:
    """A covariance; NaN where it is traced and none."""
    if C is None:
        return None
    covariance = real(C, "covariance")
    shape = covariance.shape
    square = len(shape) == 2 and shape[0] == shape[-1]
    check(square, "covariance", covariance, "a square array (P, P)")
    xp = arithmetic(covariance)
    value = xp.asarray(lax.stop_gradient(covariance))
    finite = xp.all(xp.isfinite(value))
    value = xp.where(finite, value, 0.0)
    floor = -64 * jnp.finfo(value.dtype).eps * xp.max(xp.abs(value), initial=0.0)
    sound = finite & xp.allclose(value, value.T)
    sound = sound & (xp.min(xp.linalg.eigvalsh(value), initial=0.0) >= floor)
    allowed = "finite, symmetric and positive semi-definite"
    return Arguments().masked(covariance, sound, "covariance", covariance, allowed)


@checked(covariance=anything)
class Gaussian(AbstractIidPrior):
    """Gaussian prior; the default of every index model.

        w ~ N(0, C_0):  f = (C_0^{-1} + A)^{-1} b,  Q = C_0 - (C_0^{-1} + Q̂)^{-1}

    Args:
        covariance: C_0 (P, P), symmetric and positive semi-definite, may be singular. Default: the
            identity, for any P.

    Returns:
        A prior; all its averages are closed forms.

    Raises:
        ValueError: For a `covariance` that is not square, symmetric and positive semi-definite.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Gaussian
        >>> Gaussian().overlap(jnp.eye(2))
        Array([[0.5, 0. ],
               [0. , 0.5]], dtype=...)

    Cost:
        O(P³).

    Source:
        [TCDKZ25], [theory: multi-index, section 2].
    """

    covariance: Float[Array, "P P"] | None = eqx.field(converter=_as_covariance, default=None)

    @property
    def continuous(self) -> bool:
        """It has a density."""
        return True

    @property
    def wishart(self) -> bool:
        """Rows are Gaussian."""
        return True

    def mixture(self, indices: int) -> Mixture:
        """One component, N(0, C_0)."""
        check(indices >= 1, "indices", indices, "an integer of at least 1")
        if self.covariance is None:
            factor = jnp.asarray(np.eye(indices, dtype=theory_dtype()))
        else:
            size = self.covariance.shape[0]
            check(size == indices, "indices", indices, f"{size}, the size of the covariance")
            factor = sqrt_psd(self.covariance, 0.0)
        weight = jnp.asarray(np.zeros(1, factor.dtype))
        return Mixture(weight, jnp.asarray(np.zeros((1, indices), factor.dtype)), factor[None])

    def column(self, indices: int) -> Mixture:
        """One component."""
        return self.mixture(indices)

    @drawn
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw W = C_0^{1/2} ξ, (P, D); see `AbstractIidPrior.sample`."""
        check_sizes(indices, dimension)
        return _drawn(self, key, indices, dimension)

    def gram(self, key: PRNGKeyArray, indices: int, dimension: int | Array) -> Float[Array, "P P"]:
        """W Wᵀ/D of a drawn signal by Wishart's law, D >= P: at a cost that does not know D, which
        may be traced."""
        factor = self.mixture(indices).factor[0]
        normals = jax.random.normal(key, (bartlett_size(indices),), factor.dtype)
        root = factor @ bartlett(normals, indices, dimension)
        return root @ root.T / dimension

    @averaged
    def overlap(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """Q = C_0 (I + Q̂C_0)^{-1} Q̂C_0; see `AbstractIidPrior.overlap`."""
        Qhat = precision_matrix(Qhat)
        covariance = self.mixture(Qhat.shape[0]).covariance[0]
        product = Qhat @ covariance
        identity = jnp.eye(Qhat.shape[0], dtype=Qhat.dtype)
        return symmetric(covariance @ jnp.linalg.solve(identity + product, product))

    @averaged
    def mmse(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """V = (I + C_0Q̂)^{-1} C_0; see `AbstractIidPrior.mmse`."""
        Qhat = precision_matrix(Qhat)
        return self.mixture(Qhat.shape[0]).respond(jnp.zeros_like(Qhat[0]), Qhat)[2]

    @averaged
    def free_entropy(self, Qhat: Float[Array, "P P"]) -> Float[Array, ""]:
        """Φ_w = ½ tr(C_0Q̂) - ½ log det(I + C_0Q̂); see `AbstractIidPrior.free_entropy`."""
        Qhat = precision_matrix(Qhat)
        mixture = self.mixture(Qhat.shape[0])
        log_partition = mixture.respond(jnp.zeros_like(Qhat[0]), Qhat)[0]
        return 0.5 * jnp.sum(mixture.covariance[0] * Qhat) + log_partition


@eqx.filter_jit
def _drawn(prior: Gaussian, key: PRNGKeyArray, indices: int, dimension: int) -> Array:
    """C_0^{1/2} ξ (P, D)."""
    factor = prior.mixture(indices).factor[0]
    return factor @ jax.random.normal(key, (indices, dimension), factor.dtype)


def iid_prior(prior: AbstractIidPrior | None) -> AbstractIidPrior:
    """The prior of the rows of a model: the one that was given, or iid N(0, 1)."""
    if prior is None:
        return Gaussian()
    return Arguments().instance("prior", prior, AbstractIidPrior, _PRIOR)


_PRIOR = "a prior of independent columns, such as smi.priors.Rademacher()"
is_prior = optional(instance(AbstractIidPrior, _PRIOR))
