"""The Gaussian prior: every average in closed form.

Equations here [TCDKZ25], [theory: multi-index, section 2], w ~ N(0, C_0):

    f = (C_0^{-1} + A)^{-1} b,   Q = C_0 - (C_0^{-1} + Q̂)^{-1}
    Φ_w = ½ tr C_0Q̂ - ½ log det(I + C_0Q̂)
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import arithmetic, nan_unless, theory_dtype
from jaxsmi.numerics.linear_algebra import sqrt_psd, symmetric
from jaxsmi.numerics.triangular import bartlett, bartlett_size
from jaxsmi.priors.base import Traits
from jaxsmi.priors.columns import Mixture
from jaxsmi.priors.iid import AbstractIidPrior, precision_matrix, sizes


def semi_definite(name: str, value: object, allowed: str, size: int | None = None) -> Array:
    """Validate a symmetric positive semi-definite matrix (size, size), up to rounding; NaN where it
    is traced and is none."""
    C = validate.array(name, value, allowed)
    square = C.ndim == 2 and C.shape[0] == C.shape[1] and size in (None, len(C))
    validate.check(square, name, value, allowed)
    xp = arithmetic(C)
    known = xp.asarray(lax.stop_gradient(C))
    # eigenvalues of NaN would stop a program under jax_debug_nans
    finite = xp.all(xp.isfinite(known))
    known = xp.where(finite, known, 0.0)
    # a singular matrix has eigenvalues that are negative by rounding: in float64 some 1e6 of it,
    # as covariances are products of data
    rounding = max(1e-9, 64.0 * float(jnp.finfo(C.dtype).eps))
    floor = -rounding * xp.max(xp.abs(known), initial=0.0)
    sound = finite & xp.allclose(known, known.T)
    sound = sound & (xp.min(xp.linalg.eigvalsh(known), initial=0.0) >= floor)
    validate.check(sound, name, value, allowed)
    return nan_unless(C, sound)


def _covariance(C: object) -> Array | None:
    """A covariance (P, P), or None."""
    allowed = "a finite, symmetric and positive semi-definite array (P, P)"
    return None if C is None else semi_definite("covariance", C, allowed)


class Gaussian(AbstractIidPrior):
    """Gaussian prior; the default of every index model.

        w ~ N(0, C_0):  f = (C_0^{-1} + A)^{-1} b,  Q = C_0 - (C_0^{-1} + Q̂)^{-1}

    Args:
        covariance: C_0 (P, P), symmetric and positive semi-definite, may be singular. Default: the
            identity, for any P.

    Raises:
        ValueError: For a `covariance` that is not square, symmetric and positive semi-definite.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import Gaussian
        >>> Gaussian().overlap(jnp.eye(2))
        Array([[0.5, 0. ],
               [0. , 0.5]], dtype=...)

    Source:
        [TCDKZ25], [theory: multi-index, section 2].
    """

    traits: ClassVar[Traits] = Traits(continuous=True, wishart=True)
    covariance: Float[Array, "P P"] | None = eqx.field(converter=_covariance, default=None)

    def column(self, indices: int) -> Mixture:
        """One component, N(0, C_0)."""
        validate.check(indices >= 1, "indices", indices, "an integer >= 1")
        if self.covariance is None:
            # NumPy: outside jit each array of jax.numpy is compiled as a program
            factor = jnp.asarray(np.eye(indices, dtype=theory_dtype()))
        else:
            size = self.covariance.shape[0]
            allowed = f"{size}, the size of the covariance"
            validate.check(size == indices, "indices", indices, allowed)
            # null = 0: small variances are variances, not rounding
            factor = sqrt_psd(self.covariance, 0.0)
        weight = jnp.asarray(np.zeros(1, factor.dtype))
        return Mixture(weight, jnp.asarray(np.zeros((1, indices), factor.dtype)), factor[None])

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw W = C_0^{1/2} ξ; see `AbstractIidPrior.sample`."""
        return _draw(self, *sizes(key, indices, dimension))

    def gram(self, key: PRNGKeyArray, indices: int, dimension: int | Array) -> Float[Array, "P P"]:
        """W Wᵀ/D from Wishart's law, D >= P: the cost does not grow with D, which may be traced."""
        factor = self.column(indices).factor[0]
        normals = jax.random.normal(key, (bartlett_size(indices),), factor.dtype)
        # Bartlett: the root of a Wishart matrix is triangular, with P(P+1)/2 random numbers
        root = factor @ bartlett(normals, indices, dimension)
        return root @ root.T / dimension

    def overlap(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """Q = C_0 (I + Q̂C_0)^{-1} Q̂C_0; see `AbstractIidPrior.overlap`."""
        Qhat = precision_matrix(Qhat)
        covariance = self.column(len(Qhat)).covariance[0]
        product = Qhat @ covariance
        identity = jnp.eye(len(Qhat), dtype=Qhat.dtype)
        return symmetric(covariance @ jnp.linalg.solve(identity + product, product))

    def mmse(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """V = (I + C_0Q̂)^{-1} C_0; see `AbstractIidPrior.mmse`."""
        Qhat = precision_matrix(Qhat)
        return self.column(len(Qhat)).respond(jnp.zeros_like(Qhat[0]), Qhat)[2]

    def free_entropy(self, Qhat: ArrayLike) -> Float[Array, ""]:
        """Φ_w = ½ tr(C_0Q̂) - ½ log det(I + C_0Q̂); see `AbstractIidPrior.free_entropy`."""
        Qhat = precision_matrix(Qhat)
        column = self.column(len(Qhat))
        log_partition = column.respond(jnp.zeros_like(Qhat[0]), Qhat)[0]
        return 0.5 * jnp.sum(column.covariance[0] * Qhat) + log_partition


@eqx.filter_jit
def _draw(prior: Gaussian, key: PRNGKeyArray, indices: int, dimension: int) -> Array:
    """C_0^{1/2} ξ (P, D)."""
    factor = prior.column(indices).factor[0]
    return factor @ jax.random.normal(key, (indices, dimension), factor.dtype)


def iid_prior(prior: AbstractIidPrior | None) -> AbstractIidPrior:
    """Validate the prior of the rows of a model; the default is iid N(0, 1)."""
    if prior is None:
        return Gaussian()
    return validate.instance("prior", prior, AbstractIidPrior, _PRIOR)


_PRIOR = "a prior of independent columns, such as smi.priors.Rademacher()"
