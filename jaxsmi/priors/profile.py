r"""Independent Gaussian columns of unequal variances: iid weights seen in whitened coordinates.

Equations here [theory: inputs, Eqs. (6) to (8)], column i of w ~ N(0, s_i C_0), averages over i:

    f_i = s_i C_0 (I + s_i A C_0)^{-1} b_i,   V = ⟨s C_0 (I + s Q̂ C_0)^{-1}⟩
    Φ_w = ⟨½ s tr C_0Q̂ - ½ log det(I + s C_0Q̂)⟩
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core.border import anything, checked, numbers
from jaxsmi.core.checks import POSITIVE, Arguments, check
from jaxsmi.core.programs import program
from jaxsmi.numerics.linear_algebra import inverse_of_many, symmetric
from jaxsmi.priors.gaussian import Gaussian
from jaxsmi.priors.iid import (
    AbstractIidPrior,
    answered,
    averaged,
    check_sizes,
    counted,
    drawn,
    precision_matrix,
)
from jaxsmi.priors.mixture import Mixture

__all__ = ["GaussianProfile"]


class GaussianProfile(AbstractIidPrior):
    """Gaussian prior whose columns have known, unequal variances.

        w_i ~ N(0, s_i C_0):  f_i = (C_0^{-1}/s_i + A)^{-1} b_i

    Weights W of iid columns N(0, C_0), seen through inputs of covariance Σ, are of this law in the
    coordinates of `data.whiten(Σ)`, with s = `whitening.variances`: message passing with it is
    Bayes-optimal there, and theory is that of D → ∞ with this profile.

    Args:
        variances: s (D,), positive numbers: their order is that of the coordinates.
        covariance: C_0 (P, P). Default: the identity, for any P.

    Returns:
        A prior; all its averages are closed forms.

    Raises:
        ValueError: For variances that are not positive, or a `covariance` that `Gaussian` refuses.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxsmi.priors import GaussianProfile
        >>> GaussianProfile([1.0, 3.0]).mmse(jnp.eye(1))  # (1/2 + 3/4)/2
        Array([[0.625]], dtype=...)

    Cost:
        O(D P³).

    Source:
        [theory: inputs, section 2].
    """

    variances: Float[Array, " D"]
    base: Gaussian

    @checked(
        variances=numbers("variances (D,), finite numbers > 0", POSITIVE, dimensions=1),
        covariance=anything,
    )
    def __init__(self, variances: ArrayLike, covariance: ArrayLike | None = None):
        arguments = Arguments()
        allowed = "positive numbers (D,)"
        s = arguments.array("variances", variances, allowed)
        check(s.ndim == 1 and s.size > 0, "variances", variances, allowed)
        self.variances = arguments.masked(s, jnp.all(s > 0.0), "variances", variances, allowed)
        self.base = Gaussian(covariance)  # pyright: ignore[reportArgumentType]

    @property
    def continuous(self) -> bool:
        """It has a density."""
        return True

    @property
    def alike(self) -> bool:
        """Columns have laws of their own."""
        return False

    def column(self, indices: int) -> Mixture:
        """The law of a column whose place is not known: a component for each."""
        factor = self.base.mixture(indices).factor[0]
        D = self.variances.size
        weight = jnp.full(D, -jnp.log(float(D)), factor.dtype)
        mean = jnp.zeros((D, indices), factor.dtype)
        return Mixture(weight, mean, jnp.sqrt(self.variances)[:, None, None] * factor)

    @counted
    def second_moment(self, indices: int) -> Float[Array, "P P"]:
        """⟨s⟩ C_0; see `AbstractIidPrior.second_moment`."""
        return jnp.mean(self.variances) * self.base.second_moment(indices)

    @drawn
    def sample(self, key: PRNGKeyArray, indices: int, dimension: int) -> Float[Array, "P D"]:
        """Draw W, D the number of variances; see `AbstractIidPrior.sample`."""
        check_sizes(indices, dimension)
        D = self.variances.size
        check(dimension == D, "dimension", dimension, f"{D}, the number of variances of the prior")
        return jnp.sqrt(self.variances) * self.base.sample(key, indices, dimension)

    @answered
    def posterior(
        self, b: Float[Array, "P D"], A: Float[Array, "P P"]
    ) -> tuple[Float[Array, "P D"], Float[Array, "P P"]]:
        """Means of all columns, and the average of their covariances; see
        `AbstractIidPrior.posterior`."""
        b = jnp.asarray(b)
        A = jnp.asarray(A)
        D = self.variances.size
        check(b.ndim == 2 and b.shape[1] == D, "b", b, f"an array of shape (indices P, {D})")
        covariances = self._covariances(A)
        return jnp.einsum("dpq,qd->pd", covariances, b), jnp.mean(covariances, axis=0)

    @averaged
    def overlap(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """Q = ⟨V(s) Q̂ s⟩ C_0; see `AbstractIidPrior.overlap`."""
        Qhat = precision_matrix(Qhat)
        C = self.base.second_moment(len(Qhat))
        each = self._covariances(Qhat)
        weighted = jnp.mean(self.variances[:, None, None] * each, axis=0)
        return symmetric(weighted @ Qhat @ C)

    @averaged
    def mmse(self, Qhat: Float[Array, "P P"]) -> Float[Array, "P P"]:
        """V = ⟨s C_0 (I + s Q̂ C_0)^{-1}⟩; see `AbstractIidPrior.mmse`."""
        return jnp.mean(self._covariances(precision_matrix(Qhat)), axis=0)

    @averaged
    def free_entropy(self, Qhat: Float[Array, "P P"]) -> Float[Array, ""]:
        """Φ_w (module docstring); see `AbstractIidPrior.free_entropy`."""
        Qhat = precision_matrix(Qhat)
        product = self.base.second_moment(len(Qhat)) @ Qhat
        identity = jnp.eye(len(Qhat), dtype=Qhat.dtype)
        one: Callable[[Array], Array] = lambda s: (
            0.5 * s * jnp.trace(product) - 0.5 * jnp.linalg.slogdet(identity + s * product)[1]
        )
        return jnp.mean(jax.vmap(one)(self.variances))

    @program
    def _covariances(self, A: Array) -> Array:
        """(C_0^{-1}/s_i + A)^{-1} = s_i L (I + s_i LᵀAL)^{-1} Lᵀ of all columns (D, P, P)."""
        L = self.base.mixture(len(A)).factor[0]
        s = self.variances[:, None, None]
        inverse, _ = inverse_of_many(jnp.eye(len(A), dtype=A.dtype) + s * (L.T @ A @ L))
        return s * (L @ inverse @ L.T)
