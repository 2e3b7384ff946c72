r"""Results of a channel: the posterior of the fields of a sample, and its averages over labels.

Equations here, z = ω + L τ with V = L Lᵀ [theory: multi-index, Eqs. (18) to (20)]:

    g  = L^{-ᵀ} ⟨τ⟩,      ∂g = L^{-ᵀ} (Cov τ - I) L^{-1}
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.numerics.refining import Moments

Key = PRNGKeyArray | None  # of random nodes; None where there are none


class Posterior(eqx.Module):
    """Posterior of the fields of one sample (or, with a leading axis, of a batch).

    Attributes:
        log_partition: log Z_out.
        g: Response V^{-1}(E[z|y] - ω), (P, M).
        dg: Its derivative in ω, (P, M, P, M).
        ess: Effective number of integration nodes (inf for closed forms).
        error: Estimated error of g, relative to 1 + max|g|.
        dg_error: Estimated error of dg, relative to 1 + max|dg|.
        halves: g and dg of two independent halves of random nodes, (N, 2, ...); None where nodes
            are not random.
    """

    log_partition: Array
    g: Array
    dg: Array
    ess: Array
    error: Array
    dg_error: Array
    halves: tuple[Array, Array] | None = None

    @property
    def factors(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """(g, ∂g) of a batch twice, as the two factors of a product that is averaged."""
        # independent halves: the noise of random nodes drops out of a product, not of a square
        if self.halves is None:
            return (self.g, self.dg), (self.g, self.dg)
        g, dg = self.halves
        return (g[:, 0], dg[:, 0]), (g[:, 1], dg[:, 1])

    def mean(self, omega: Array, V: Array) -> Array:
        """Posterior mean of the fields, E[z|y] = ω + V g (one sample)."""
        return omega + V @ self.g


class Response(eqx.Module):
    """Average of g gᵀ over fields and labels at one overlap.

    Attributes:
        mean: E Σ_m g_m g_mᵀ, (P, P).
        replicas: The same from each net of outer points, (R, P, P): their spread is the
            statistical error.
        jacobian: d mean_{ab} / d Q_{cd}, (P, P, P, P).
        log_partition: E log Z_out from each net, (R,).
        error: Largest error of an inner integral that met its tolerance.
        inaccurate: Fraction of samples whose inner integral missed its tolerance.
    """

    mean: Array
    replicas: Array
    jacobian: Array
    log_partition: Array
    error: Array
    inaccurate: Array


def unwhiten(L: Array, tokens: int, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """g (S, P, M) and ∂g (S, P, M, P, M) from moments of the whitened fields τ (S, P M)."""
    P, M = len(L), tokens
    # the inverse of a small matrix once, not a solve for each sample
    inverse = solve_triangular(L, jnp.eye(P, dtype=L.dtype), lower=True)
    centred = (covariance - jnp.eye(P * M, dtype=L.dtype)).reshape(-1, P, M, P, M)
    g = jnp.einsum("qp,sqm->spm", inverse, mean.reshape(-1, P, M))
    return g, jnp.einsum("ap,sambn,bq->spmqn", inverse, centred, inverse)


def as_posterior(moments: Moments, shape: tuple[int, ...], log_norm: Array | float) -> Posterior:
    """A batch Posterior from integrated moments; `log_norm` is the logarithm of the factor that
    the integrand lacks in its denominator."""
    m = moments
    log_partition = m.log_mass - log_norm
    return Posterior(log_partition, m.g.reshape(shape), m.dg, m.ess, m.error, m.dg_error, m.halves)
