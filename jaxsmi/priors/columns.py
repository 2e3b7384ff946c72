"""The law of one column: a mixture of Gaussians Σ_k π_k N(μ_k, S_k) in R^P.

Equations here [TCDKZ25], [theory: multi-index, section 2]:

    log Z_w(b, A) = log ∫ dP_w(w) exp(b·w - ½ wᵀA w),   f = ∂_b log Z_w,   C = ∂_b f
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsmi.priors.field_averages import mixture_nodes

_MEMORY = 2**22  # numbers in the posterior of one batch of columns: 32 MB in float64


class Mixture(eqx.Module):
    """The law Σ_k π_k N(μ_k, L_k L_kᵀ) of one column w in R^P, and its posterior given a field.

    Args:
        log_weight: log π_k (K,).
        mean: μ_k (K, P).
        factor: L_k (K, P, P).
    """

    log_weight: Float[Array, " K"]
    mean: Float[Array, "K P"]
    factor: Float[Array, "K P P"]

    @property
    def covariance(self) -> Float[Array, "K P P"]:
        """S_k = L_k L_kᵀ."""
        return self.factor @ jnp.swapaxes(self.factor, 1, 2)

    @property
    def first_moment(self) -> Float[Array, " P"]:
        """E w."""
        return jnp.exp(self.log_weight) @ self.mean

    @property
    def second_moment(self) -> Float[Array, "P P"]:
        """E w wᵀ."""
        points = jnp.einsum("kp,kq->kpq", self.mean, self.mean)
        return jnp.einsum("k,kpq->pq", jnp.exp(self.log_weight), self.covariance + points)

    @property
    def size(self) -> int:
        """Numbers held while computing the posterior of one column."""
        return self.factor.size

    def nodes(self, root: Float[Array, "P P"]) -> tuple[Array, Array]:
        """Nodes u (n, P) and weights (n,) for u = Q̂^{1/2}w + ξ, `root` = Q̂^{1/2}."""
        return mixture_nodes(self.log_weight, self.mean, self.covariance, root)

    @eqx.filter_jit
    def respond(self, b: Float[Array, " P"], A: Float[Array, "P P"]) -> tuple[Array, Array, Array]:
        """log Z_w, posterior mean f and posterior covariance C at one field b.

        They are NaN where the integral diverges. Component k: log π_k - ½ log det(I + S_k A) + ½ (b
        - Aμ_k)ᵀ C_k (b - Aμ_k) + b·μ_k - ½ μ_kᵀAμ_k, with C_k = (I + S_k A)^{-1} S_k and posterior
        mean m_k = μ_k + C_k (b - Aμ_k). With I + LᵀAL = KKᵀ and H = K^{-1}Lᵀ, C_k = HᵀH; C_k itself
        times a large b would cancel where A is nearly singular, H does not.
        """
        transposed = jnp.swapaxes(self.factor, 1, 2)
        identity = jnp.eye(b.shape[0], dtype=b.dtype)
        gain = jnp.linalg.cholesky(identity + transposed @ A @ self.factor)
        half = jax.scipy.linalg.solve_triangular(gain, transposed, lower=True)
        # of the triangular factor: a determinant of exponential size would overflow
        log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(gain, axis1=1, axis2=2)), axis=1)
        pull = jnp.einsum("kpq,kq->kp", half, b - self.mean @ A)
        log_term = self.log_weight - 0.5 * log_det + 0.5 * jnp.sum(pull**2, axis=1)
        # b·μ - ½ μᵀAμ in one product: the two parts cancel at large A
        log_term += jnp.sum(self.mean * (b - 0.5 * self.mean @ A), axis=1)
        log_partition = jax.nn.logsumexp(log_term)
        weight = jnp.exp(log_term - log_partition)
        # differences from the likeliest component keep C accurate relative to itself
        # when it is exponentially small
        center = self.mean + jnp.einsum("kpq,kp->kq", half, pull)
        likeliest = center[jnp.argmax(log_term)]
        offset = center - likeliest
        shift = weight @ offset
        offset = offset - shift
        within = jnp.einsum("k,krp,krq->pq", weight, half, half)
        between = jnp.einsum("k,kp,kq->pq", weight, offset, offset)
        return log_partition, likeliest + shift, within + between


@eqx.filter_jit
def posterior(column: Mixture, b: Array, A: Array) -> tuple[Array, Array]:
    """Posterior means (P, D) of the columns of b, and the average of their covariances (P, P)."""
    respond = lambda field: column.respond(field, A)[1:]
    batch = max(1, _MEMORY // column.size)
    # all columns at once where they fit: a loop over batches is slower
    if b.shape[1] <= batch:
        mean, covariance = jax.vmap(respond, in_axes=1)(b)
    else:
        mean, covariance = jax.lax.map(respond, b.T, batch_size=batch)
    return mean.T, jnp.mean(covariance, axis=0)
