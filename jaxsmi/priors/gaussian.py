"""Gaussian priors, of iid columns and of columns of unequal variances, in closed form.

Equations here [TCDKZ25], [theory: multi-index, section 2], w ~ N(0, C_0):

    f = (C_0^{-1} + A)^{-1} b,   Q = C_0 - (C_0^{-1} + Q̂)^{-1}
    Φ_w = ½ tr C_0Q̂ - ½ log det(I + C_0Q̂)

and of a profile [theory: inputs, Eqs. (6) to (8)], column i of w ~ N(0, s_i C_0), averages over i:

    f_i = s_i C_0 (I + s_i A C_0)^{-1} b_i,   V = ⟨s C_0 (I + s Q̂ C_0)^{-1}⟩
    Φ_w = ⟨½ s tr C_0Q̂ - ½ log det(I + s C_0Q̂)⟩
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
from jaxsmi.numerics.linear_algebra import (
    bartlett,
    bartlett_size,
    inverse_of_many,
    sqrt_psd,
    symmetric,
)
from jaxsmi.priors.base import Traits
from jaxsmi.priors.columns import Mixture
from jaxsmi.priors.iid import AbstractIidPrior, fields, precision_matrix, sizes


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


class GaussianProfile(AbstractIidPrior):
    """Gaussian prior whose columns have unequal variances.

        w_i ~ N(0, s_i C_0):  f_i = (C_0^{-1}/s_i + A)^{-1} b_i

    Weights W of iid columns N(0, C_0), observed through inputs of covariance Σ, have this law in
    the coordinates of `data.whiten(Σ)`, with s = `whitening.variances`: message passing with it is
    Bayes-optimal there, and theory is that of D → ∞ with this profile.

    Args:
        variances: s (D,), positive numbers, in the order of the coordinates.
        covariance: C_0 (P, P). Default: the identity, for any P.

    Raises:
        ValueError: For variances that are not positive, or a `covariance` that `Gaussian` rejects.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import GaussianProfile
        >>> GaussianProfile([1.0, 3.0]).mmse(jnp.eye(1))  # (1/2 + 3/4)/2
        Array([[0.625]], dtype=...)

    Cost:
        O(D P³) for each average.

    Source:
        [theory: inputs, section 2].
    """

    traits: ClassVar[Traits] = Traits(continuous=True, identical=False)
    variances: Float[Array, " D"]
    base: Gaussian

    def __init__(self, variances: ArrayLike, covariance: ArrayLike | None = None):
        allowed = "variances (D,), finite numbers > 0"
        s = validate.array("variances", variances, allowed, interval=validate.POSITIVE)
        validate.check(s.ndim == 1 and s.size > 0, "variances", variances, allowed)
        self.variances = s
        # one validation of C_0 for both
        self.base = Gaussian(covariance)  # pyright: ignore[reportArgumentType]

    def column(self, indices: int) -> Mixture:
        """The law of a column at a random place: one component for each variance."""
        factor = self.base.column(indices).factor[0]
        D = self.variances.size
        # for marginals only: message passing knows the variance of each column
        weight = jnp.full(D, -jnp.log(float(D)), factor.dtype)
        mean = jnp.zeros((D, indices), factor.dtype)
        return Mixture(weight, mean, jnp.sqrt(self.variances)[:, None, None] * factor)

    def second_moment(self, indices: int) -> Float[Array, "P P"]:
        """⟨s⟩ C_0; see `AbstractIidPrior.second_moment`."""
        return jnp.mean(self.variances) * self.base.second_moment(indices)

    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw W, D the number of variances; see `AbstractIidPrior.sample`."""
        key, P, D = sizes(key, indices, dimension)
        allowed = f"{self.variances.size}, the number of variances of the prior"
        validate.check(self.variances.size == D, "dimension", dimension, allowed)
        return jnp.sqrt(self.variances) * self.base.sample(key, P, D)

    def posterior(self, b: ArrayLike, A: ArrayLike) -> tuple[Float[Array, "P D"], Array]:
        """See `AbstractIidPrior.posterior`."""
        b, A = fields(b, A)
        D = self.variances.size
        validate.check(b.shape[1] == D, "b", b, f"an array of shape (indices P, {D})")
        covariances = self._covariances(A)
        return jnp.einsum("dpq,qd->pd", covariances, b), jnp.mean(covariances, axis=0)

    def overlap(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """Q = ⟨V(s) Q̂ s⟩ C_0; see `AbstractIidPrior.overlap`."""
        Qhat = precision_matrix(Qhat)
        C = self.base.second_moment(len(Qhat))
        weighted = jnp.mean(self.variances[:, None, None] * self._covariances(Qhat), axis=0)
        return symmetric(weighted @ Qhat @ C)

    def mmse(self, Qhat: ArrayLike) -> Float[Array, "P P"]:
        """V = ⟨s C_0 (I + s Q̂ C_0)^{-1}⟩; see `AbstractIidPrior.mmse`."""
        return jnp.mean(self._covariances(precision_matrix(Qhat)), axis=0)

    def free_entropy(self, Qhat: ArrayLike) -> Float[Array, ""]:
        """Φ_w (module docstring); see `AbstractIidPrior.free_entropy`."""
        Qhat = precision_matrix(Qhat)
        product = self.base.second_moment(len(Qhat)) @ Qhat
        identity = jnp.eye(len(Qhat), dtype=Qhat.dtype)

        def of_one(s: Array) -> Array:
            log_det = jnp.linalg.slogdet(identity + s * product)[1]
            return 0.5 * s * jnp.trace(product) - 0.5 * log_det

        return jnp.mean(jax.vmap(of_one)(self.variances))

    @eqx.filter_jit
    def _covariances(self, A: Array) -> Array:
        """(C_0^{-1}/s_i + A)^{-1} = s_i L (I + s_i LᵀAL)^{-1} Lᵀ of all columns (D, P, P)."""
        L = self.base.column(len(A)).factor[0]
        s = self.variances[:, None, None]
        # through L: C_0 may be singular, and its inverse is never needed
        inverse, _ = inverse_of_many(jnp.eye(len(A), dtype=A.dtype) + s * (L.T @ A @ L))
        return s * (L @ inverse @ L.T)


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
