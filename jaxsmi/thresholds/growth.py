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
from jaxtyping import Array

from jaxsmi.channels.base import Posterior
from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny
from jaxsmi.core.options import Averages
from jaxsmi.core.validate import check
from jaxsmi.models.base import CENTRED, AbstractModel, is_centred, model_argument
from jaxsmi.numerics.linear_algebra import conjugation, sqrt_psd, symmetric, symmetric_basis

_EQUAL = 1e-6  # eigenvalues that agree to rounding are one eigenspace ..
_EQUAL_SIGMAS = 4.0  # .. and those that agree within so many standard errors
_FIRST_ORDER_SIGMAS = 5.0  # E g gᵀ is non-zero from so many standard errors: 3e-7 by chance
_BIAS = 25.0  # squared errors of integrals times 5²: five of their standard deviations
_ROUNDING = (1e-12, 1e-10)  # of E g gᵀ and of λ_max in float64


def _apply(G: Array, X: Array, other: Array) -> Array:
    """F(X) (.., P, P), averaged over the samples of G (.., n, P, M, P, M); `other` are estimates of
    G with independent noise, for the second factor."""
    half = jnp.einsum("...npaqb,qr->...npabr", G, X)
    return symmetric(jnp.einsum("...npabr,...nsarb->...ps", half, other)) / G.shape[-5]


def leading(G: Array, other: Array) -> Array:
    """The positive semi-definite X of unit norm with F(X) = λ_max X: the projection of the identity
    on the leading eigenspace. G and `other` are (nets, points, P, M, P, M)."""
    basis = jnp.asarray(symmetric_basis(G.shape[-2]), G.dtype)
    tensor = jnp.swapaxes(jax.vmap(conjugation)(G, other), 2, 3)
    matrices = jnp.einsum("ips,tpqsr,jqr->tij", basis, tensor, basis)
    matrices = symmetric(matrices)
    # one basis for all nets: that of a single net may turn between directions of near equal growth
    values, vectors = jnp.linalg.eigh(jnp.mean(matrices, axis=0))
    rates = jnp.einsum("ik,tij,jk->tk", vectors, matrices, vectors)
    spread = jnp.std(rates, axis=0) / np.sqrt(len(G) - 1)
    slack = _EQUAL * jnp.abs(values[-1]) + _EQUAL_SIGMAS * jnp.maximum(spread, spread[-1])
    top = values >= values[-1] - slack
    top = top & (values > 0.5 * values[-1])  # however large the errors are
    weights = jnp.where(top, vectors.T @ jnp.einsum("ipp->i", basis), 0.0)
    X = symmetric(jnp.einsum("k,ik,ipq->pq", weights, vectors, basis))
    return X / clamp_to_tiny(jnp.linalg.norm(X))


class Growth(eqx.Module):
    """Growth of an overlap in the directions that are not learned, at a fixed point.

    Attributes:
        each: ⟨X, F X⟩ of each net (R,).
        subspace: X (P, P), the leading eigenmatrix of F.
        first_order: E g gᵀ of each net, whitened (R, P, P).
        slope_error: Error of ∂g from the inner integrals that biases averages.
        field_error: Error of g from the inner integrals that biases averages.
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
    def absent(self) -> Array:
        """The growth rate is no more than errors of integration."""
        return self.rate <= _ROUNDING[1] + _BIAS * self.slope_error**2

    def level(self, alpha: Array) -> Array:
        """h = log α λ_max, negative where nothing grows; large and finite at λ_max = 0."""
        # finite, so that a scan can tell it from a growth rate that failed
        return jnp.log(jnp.maximum(alpha * self.rate, 1e-30))

    def first_order_directions(self) -> tuple[Array, Array]:
        """Directions (columns), and those of them that labels tell at first order.

        E g gᵀ must lie above its standard errors, and above the bias of integrals.
        """
        values, vectors = jnp.linalg.eigh(jnp.mean(self.first_order, axis=0))
        along = jnp.einsum("pk,rpq,qk->rk", vectors, self.first_order, vectors)
        noise = jnp.std(along, axis=0, ddof=1) / np.sqrt(along.shape[0])
        floor = _ROUNDING[0] + _BIAS * self.field_error**2
        return vectors, (values > _FIRST_ORDER_SIGMAS * noise) & (values > floor)


def growth(
    model: AbstractModel,
    sample: tuple[Posterior, Array],
    V: Array,
    unlearned: Array,
    nets: int,
    X: Array | None = None,
) -> Growth:
    """Growth of a small overlap in the directions of the projector `unlearned`, from a sample of
    posteriors at S - V and their weights. X: the leading eigenmatrix; default: computed."""
    post, weight = sample
    P = model.indices
    root = unlearned @ sqrt_psd(V)
    # Σ w G X Gᵀ and Σ w g gᵀ with the root of the weight in both factors; off zero, where the root
    # has no derivative
    share = jnp.sqrt(jnp.maximum(weight, 1e-30))

    def whiten(g: Array, dg: Array) -> tuple[Array, Array]:
        G = jnp.einsum("n,ab,nbmcl,dc->namdl", share, root, dg, root)
        return jnp.einsum("n,ab,nbm->nam", share, root, g), G

    (g, G), (g_other, G_other) = (whiten(*factor) for factor in post.factors)
    field_error, slope_error = _bias(post, (g, g_other), (G, G_other))
    G, G_other = (x.reshape(nets, -1, *x.shape[1:]) for x in (G, G_other))
    # a change of X changes ⟨X, F X⟩ at second order only
    X = lax.stop_gradient(leading(G, G_other)) if X is None else X
    outer = symmetric(jnp.einsum("npm,nqm->npq", g, g_other)).reshape(nets, -1, P, P)
    missed = post.error > model.channel.averaging.tolerance
    return Growth(
        each=jnp.einsum("pq,rpq->r", X, _apply(G, X, G_other)),
        subspace=X,
        first_order=outer.mean(1),
        slope_error=slope_error,
        field_error=field_error,
        inaccurate=jnp.mean(jnp.where(missed, weight, 0.0)),
    )


def _bias(
    post: Posterior, fields: tuple[Array, Array], slopes: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Errors of g and ∂g that bias averages.

    The noise of random nodes drops out of a product of two halves on average over nodes, but all
    samples of a net share their nodes: up to half the variance, of which a fifth is taken here
    because `_BIAS` multiplies it by 25. Medians: a few samples in ten thousand may miss the
    tolerance of the inner integral without a bias of the average.
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


def check_model(model: AbstractModel) -> Array:
    """Raise a ValueError for a model without directions or a prior with a mean. Return True for a
    valid model, traced ones included."""
    model_argument(model, "directions")
    centred = is_centred(model)
    check(centred, "model", model.prior, CENTRED)
    return jnp.asarray(centred) & validate.valid(model)


def sizes_of(averages: Averages | None, points: int, nets: int) -> tuple[int, int]:
    """Points of each net and number of nets, by the defaults of a call; two points a net at
    least."""
    chosen = Averages() if averages is None else averages
    validate.instance("averages", chosen, Averages, "smi.Averages(points=.., nets=..)")
    return chosen.sizes(points, nets, images=2)
