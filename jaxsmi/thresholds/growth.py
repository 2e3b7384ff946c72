"""TODO thresholds.growth."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import Ability, check, require
from jaxsmi.numerics.linear_algebra import sqrt_psd

_DENSE = 8  # up to this many indices the map is a matrix; above, an operator on the samples


def applied(G: Array, X: Array) -> Array:
    """Σ_{m,n} G_{mn} X G_{mn}ᵀ averaged over samples: G (.., n, P, M, P, M), X (P, P) to (.., P, P)."""
    half = jnp.einsum("...npaqb,qr->...npabr", G, X)
    return jnp.einsum("...npabr,...nsarb->...ps", half, G) / G.shape[-5]


def leading(G: Array) -> Array:
    """The positive semi-definite X of unit norm with F(X) = λ_max X, from G (randomisations, samples, P, M, P, M).

    The projection of the identity on the leading eigenspace: by a dense eigendecomposition, or by iterating from it.
    """
    P, dtype = G.shape[-2], G.dtype
    if P <= _DENSE:
        rows, columns = np.triu_indices(P)
        scale = np.where(rows == columns, 1.0, np.sqrt(0.5))
        basis = np.zeros((len(rows), P, P))
        basis[np.arange(len(rows)), rows, columns] = scale
        basis[np.arange(len(rows)), columns, rows] = scale
        basis = jnp.asarray(basis, dtype)
        tensor = jnp.einsum("tnpaqb,tnsarb->tpqsr", G, G) / G.shape[1]
        matrices = jnp.einsum("ips,tpqsr,jqr->tij", basis, tensor, basis)
        matrices = 0.5 * (matrices + jnp.swapaxes(matrices, 1, 2))
        values, vectors = jnp.linalg.eigh(jnp.mean(matrices, axis=0))
        spread = jnp.std(jnp.einsum("ik,tij,jk->tk", vectors, matrices, vectors), axis=0) / np.sqrt(
            len(G) - 1
        )
        # eigenvalues that agree to rounding or to four standard errors are one eigenspace
        top = values >= values[-1] - 1e-6 * jnp.abs(values[-1]) - 4.0 * jnp.maximum(
            spread, spread[-1]
        )
        top = top & (values > 0.5 * values[-1])  # ... but never all of it, however large the errors
        weights = jnp.where(top, vectors.T @ jnp.einsum("ipp->i", basis), 0.0)
        X = jnp.einsum("k,ik,ipq->pq", weights, vectors, basis)
    else:
        flat = G.reshape(-1, *G.shape[-4:])

        def step(_: int, X: Array) -> Array:
            Y = applied(flat, X)
            Y = Y + 0.25 * jnp.linalg.norm(Y) * X  # the shift kills oscillation between blocks
            return Y / jnp.maximum(jnp.linalg.norm(Y), 1e-300)

        X = lax.fori_loop(0, 300, step, jnp.eye(P, dtype=dtype) / np.sqrt(P))
    X = 0.5 * (X + X.T)
    return X / jnp.maximum(jnp.linalg.norm(X), 1e-300)


class Growth(eqx.Module):
    """What the labels say of the directions not learned, at a fixed point. `each` (R,): ⟨X, F X⟩ of each randomisation;
    `subspace` X; `start` (R, P, P): E g gᵀ, whitened; errors of g and ∂g from the inner integrals."""

    each: Array
    subspace: Array
    start: Array
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
        """Directions (columns) that labels tell at first order, and which of them: E g gᵀ above five standard errors, and
        above what integration errors alone would give."""
        values, vectors = jnp.linalg.eigh(jnp.mean(self.start, axis=0))
        along = jnp.einsum("pk,rpq,qk->rk", vectors, self.start, vectors)
        noise = jnp.std(along, axis=0, ddof=1) / np.sqrt(along.shape[0])
        return vectors, (values > 5.0 * noise) & (values > 1e-12 + 25.0 * self.field_error**2)


def growth(
    model: Any,
    Q: Array,
    V: Array,
    rest: Array,
    key: Array,
    samples: int,
    randomisations: int,
    X: Array | None = None,
) -> Growth:
    """Growth of a small overlap in the directions of the projector `rest`, at the overlap Q."""
    P = model.indices
    root = rest @ sqrt_psd(V)
    post = model.channel.draw(Q, V, key=key, samples=samples, randomisations=randomisations)
    G = jnp.einsum("ab,nbmcl,dc->namdl", root, post.dg, root)
    G = G.reshape(randomisations, samples, *G.shape[1:])
    X = lax.stop_gradient(leading(G)) if X is None else X
    g = jnp.einsum("ab,nbm->nam", root, post.g)
    # a few samples in ten thousand may miss the tolerance of the inner integral: medians say how good the rest is
    return Growth(
        each=jnp.einsum("pq,rpq->r", X, applied(G, X)),
        subspace=X,
        start=jnp.einsum("npm,nqm->npq", g, g).reshape(randomisations, samples, P, P).mean(1),
        slope_error=jnp.median(post.dg_error)
        * (1.0 + jnp.max(jnp.abs(post.dg), axis=(1, 2, 3, 4)).mean()),
        field_error=jnp.median(post.error) * (1.0 + jnp.max(jnp.abs(post.g), axis=(1, 2)).mean()),
        inaccurate=jnp.mean(post.error > model.channel.tolerance),
    )


def check_problem(model: Any, samples: int, randomisations: int) -> None:
    """Raise a ValueError for a model without inference, a prior with a mean, or too few samples."""
    require(model, Ability.DIRECTIONS)
    check(
        randomisations >= 2,
        "randomisations",
        randomisations,
        "at least 2: their spread is the error bar",
    )
    check(samples >= 2 * randomisations, "samples", samples, "at least two points a randomisation")
    P = model.indices
    mean = model.prior.overlap(jnp.zeros((P, P), theory_dtype()))
    check(
        jnp.max(jnp.abs(mean)) <= 1e-12,
        "model",
        model.prior,
        "a prior of mean zero (else all is learned from the start)",
    )
