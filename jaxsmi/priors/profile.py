r"""Independent Gaussian columns of unequal variances: iid weights in whitened coordinates.

Equations here [theory: inputs, Eqs. (6) to (8)], column i of w ~ N(0, s_i C_0), averages over i:

    f_i = s_i C_0 (I + s_i A C_0)^{-1} b_i,   V = ⟨s C_0 (I + s Q̂ C_0)^{-1}⟩
    Φ_w = ⟨½ s tr C_0Q̂ - ½ log det(I + s C_0Q̂)⟩
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.numerics.linear_algebra import inverse_of_many, symmetric
from jaxsmi.priors.base import Traits
from jaxsmi.priors.columns import Mixture
from jaxsmi.priors.gaussian import Gaussian
from jaxsmi.priors.iid import AbstractIidPrior, fields, precision_matrix, sizes


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
