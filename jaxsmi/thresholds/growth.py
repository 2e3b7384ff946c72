r"""Growth of a small overlap in the directions that are not learned yet.

Equations here [TDDZLK24; TCDKZ25; theory: multi-index, Eqs. (52), (54)], S the second moment of a
prior of mean zero, V = S - Q, N the projector on the directions that are not learned (all of
them at Q = 0):

    G = N V^{1/2} ∂g V^{1/2} N,   ω drawn at the overlap Q of a fixed point,
    F_Q(X)_{pp'} = E Σ_{m,n} (G_{mn} X G_{mn}ᵀ)_{pp'}

* F maps positive matrices to positive matrices and is self-adjoint: λ_max is its spectral radius,
  and the projection of the identity on its eigenspace is positive semi-definite, the subspace that
  is learned next;
* learned × new directions grow more slowly: F is completely positive, so that their rate is at
  most the geometric mean of those of learned × learned, below one, and new × new;
* N E[g gᵀ] N ≠ 0: these directions are learned at once.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.averages import weighted_posteriors
from jaxsmi.channels.base import Posterior
from jaxsmi.core.arrays import off_zero
from jaxsmi.core.checks import Arguments
from jaxsmi.models.base import CENTRED, AbstractModel, is_centred, model_argument
from jaxsmi.numerics.linear_algebra import conjugation, sqrt_psd, symmetric, symmetric_basis

__all__ = ["Growth", "applied", "checked_sizes", "growth", "growth_from", "leading"]

_DENSE = 8  # up to this many indices the map is a matrix; above, an operator on the samples
_POWER_STEPS = 300
_SIGMAS = 5.0  # E g gᵀ counts as non-zero from so many standard errors


def applied(G: Array, X: Array, other: Array | None = None) -> Array:
    """F(X) (.., P, P), averaged over the samples of G (.., n, P, M, P, M), the second factor from
    `other` estimates of G where they are given."""
    half = jnp.einsum("...npaqb,qr->...npabr", G, X)
    second = G if other is None else other
    return symmetric(jnp.einsum("...npabr,...nsarb->...ps", half, second)) / G.shape[-5]


def leading(G: Array, other: Array | None = None) -> Array:
    """The positive semi-definite X of unit norm with F(X) = λ_max X.

    It is the projection of the identity on the leading eigenspace, by a dense eigendecomposition
    or by an iteration. `G` is (randomisations, samples, P, M, P, M); `other` as in `applied`.
    """
    other = G if other is None else other
    X = (_leading_dense if G.shape[-2] <= _DENSE else _leading_iterated)(G, other)
    X = symmetric(X)
    return X / off_zero(jnp.linalg.norm(X))


def _leading_dense(G: Array, other: Array) -> Array:
    """`leading` by the eigenvectors of F as a matrix on symmetric matrices."""
    basis = jnp.asarray(symmetric_basis(G.shape[-2]), G.dtype)
    tensor = jnp.swapaxes(jax.vmap(conjugation)(G, other), 2, 3)
    matrices = jnp.einsum("ips,tpqsr,jqr->tij", basis, tensor, basis)
    matrices = symmetric(matrices)
    values, vectors = jnp.linalg.eigh(jnp.mean(matrices, axis=0))
    rates = jnp.einsum("ik,tij,jk->tk", vectors, matrices, vectors)
    spread = jnp.std(rates, axis=0) / np.sqrt(len(G) - 1)
    # eigenvalues that agree to rounding or to four standard errors are one eigenspace ..
    slack = 1e-6 * jnp.abs(values[-1]) + 4.0 * jnp.maximum(spread, spread[-1])
    top = values >= values[-1] - slack
    top = top & (values > 0.5 * values[-1])  # .. but never all of it, however large the errors
    weights = jnp.where(top, vectors.T @ jnp.einsum("ipp->i", basis), 0.0)
    return jnp.einsum("k,ik,ipq->pq", weights, vectors, basis)


def _leading_iterated(G: Array, other: Array) -> Array:
    """`leading` by shifted power iteration; the shift kills oscillation between blocks."""
    P = G.shape[-2]
    flat, flat_too = (x.reshape(-1, *x.shape[-4:]) for x in (G, other))

    def step(_: int, X: Array) -> Array:
        Y = applied(flat, X, flat_too)
        Y = Y + 0.25 * jnp.linalg.norm(Y) * X
        return Y / off_zero(jnp.linalg.norm(Y))

    return lax.fori_loop(0, _POWER_STEPS, step, jnp.eye(P, dtype=G.dtype) / np.sqrt(P))


class Growth(eqx.Module):
    """What labels say of the directions that are not learned, at a fixed point.

    Attributes:
        each: ⟨X, F X⟩ of each randomisation (R,).
        subspace: X (P, P), the leading eigenmatrix of F.
        first_order: E g gᵀ of each randomisation, whitened (R, P, P).
        slope_error: Error of ∂g from the inner integrals, as far as it biases averages.
        field_error: The same of g.
        inaccurate: Fraction of samples whose inner integral missed its tolerance.
    """

    each: Array
    subspace: Array
    first_order: Array
    slope_error: Array
    field_error: Array
    inaccurate: Array

    @property
    def rate(self) -> Array:
        """λ_max(F)."""
        return jnp.mean(self.each)

    @property
    def never(self) -> Array:
        """Whether the growth rate is no more than errors of integration."""
        return self.rate <= 1e-10 + 25.0 * self.slope_error**2

    def known(self) -> tuple[Array, Array]:
        """Directions (columns) and which of them labels tell at first order.

        E g gᵀ must lie above five standard errors, and above what integration errors would give.
        """
        values, vectors = jnp.linalg.eigh(jnp.mean(self.first_order, axis=0))
        along = jnp.einsum("pk,rpq,qk->rk", vectors, self.first_order, vectors)
        noise = jnp.std(along, axis=0, ddof=1) / np.sqrt(along.shape[0])
        floor = 1e-12 + 25.0 * self.field_error**2
        return vectors, (values > _SIGMAS * noise) & (values > floor)


def growth(
    model: AbstractModel,
    Q: Array,
    V: Array,
    unlearned: Array,
    key: PRNGKeyArray,
    samples: int,
    randomisations: int,
    X: Array | None = None,
) -> Growth:
    """Growth of a small overlap in the directions of the projector `unlearned`, at the overlap Q.

    `X` is the leading eigenmatrix where it is known already. `samples` points in each net.
    """
    sizes = {"points": samples, "nets": randomisations}
    post, weight = weighted_posteriors(model.channel, Q, V, key=key, **sizes)
    return growth_from(model, post, weight, V, unlearned, randomisations, X)


def growth_from(
    model: AbstractModel,
    post: Posterior,
    weight: Array,
    V: Array,
    unlearned: Array,
    randomisations: int,
    X: Array | None = None,
) -> Growth:
    """`growth` from posteriors that are there already, with their weights."""
    P = model.indices
    root = unlearned @ sqrt_psd(V)
    # Σ w G X Gᵀ and Σ w g gᵀ with the root of the weight in both factors
    share = jnp.sqrt(jnp.maximum(weight, 1e-30))

    def whitened(g: Array, dg: Array) -> tuple[Array, Array]:
        G = jnp.einsum("n,ab,nbmcl,dc->namdl", share, root, dg, root)
        return jnp.einsum("n,ab,nbm->nam", share, root, g), G

    (g, G), (g_too, G_too) = (whitened(*factor) for factor in post.factors)
    field_error, slope_error = _bias(post, (g, g_too), (G, G_too))
    G, G_too = (x.reshape(randomisations, -1, *x.shape[1:]) for x in (G, G_too))
    X = lax.stop_gradient(leading(G, G_too)) if X is None else X
    outer = symmetric(jnp.einsum("npm,nqm->npq", g, g_too)).reshape(randomisations, -1, P, P)
    return Growth(
        each=jnp.einsum("pq,rpq->r", X, applied(G, X, G_too)),
        subspace=X,
        first_order=outer.mean(1),
        slope_error=slope_error,
        field_error=field_error,
        inaccurate=jnp.mean(weight * (post.error > model.channel.averaging.tolerance)),
    )


def _bias(
    post: Posterior, fields: tuple[Array, Array], slopes: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Errors of g and ∂g that averages feel.

    Of random nodes, whose noise drops out of products on average over nodes: all samples share
    their nodes, so that up to the variance of a half stays, five times that with the factor 25
    of `Growth`. A few samples in ten thousand may miss the tolerance of the inner integral: medians
    say how good the rest is.
    """
    if post.halves is None:
        largest_slope = jnp.max(jnp.abs(post.dg), axis=(1, 2, 3, 4)).mean()
        largest_field = jnp.max(jnp.abs(post.g), axis=(1, 2)).mean()
        slope_error = jnp.median(post.dg_error) * (1.0 + largest_slope)
        return jnp.median(post.error) * (1.0 + largest_field), slope_error
    noise = [
        jnp.max(jnp.abs(one - two).reshape(len(one), -1), axis=1) for one, two in (fields, slopes)
    ]
    field_error, slope_error = (jnp.median(x) / np.sqrt(10.0) for x in noise)
    return field_error, slope_error


def checked_sizes(
    arguments: Arguments, model: AbstractModel, samples: int, nets: int, name: str
) -> tuple[int, int]:
    """`samples` and the argument `name`, over which they are split.

    Raises a ValueError for too few of them, a model without directions, or a prior with a mean.
    """
    model_argument(model, "directions")
    nets = arguments.count(name, nets, at_least=2)
    samples = arguments.count("samples", samples, at_least=2 * nets)
    arguments.condition(is_centred(model), "model", model.prior, CENTRED)
    return samples, nets
