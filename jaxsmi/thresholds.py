r"""Where learning starts: the stability of state evolution's fixed points.

Equations here [TDDZLK24; TCDKZ25, section 4; spec section 6], S the second moment of a prior of mean zero:

* linear response at Q = 0, whitened by S^{1/2}: G = S^{1/2} ∂g S^{1/2} at ω = 0, V = S,
      F(X)_{pp'} = E Σ_{m,n} (G_{mn} X G_{mn}ᵀ)_{pp'},     α_c = 1/λ_max(F)
  F maps positive matrices to positive matrices and is self-adjoint: λ_max is its spectral radius, and the projection of the
  identity on its eigenspace is positive semi-definite, the subspace learned first;
* E[g gᵀ] ≠ 0 at Q = 0: that subspace is learned at any α > 0, α_c = 0;
* derivative of a threshold: dλ = ⟨X, dF X⟩ for the unit eigenvector X, dα_c = -dλ/λ²;
* perfect recovery of noiseless attention, the last layer of rank one: Q = I is stable iff α > P/M.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxsmi.channels.base import sqrt_psd
from jaxsmi.integrate import power_of_two
from jaxsmi.types import Array, Result, Threshold, check, theory_dtype

_DENSE = 8  # up to this many indices the map is a matrix; above, an operator on the samples


def _applied(G: Array, X: Array) -> Array:
    """Σ_{m,n} G_{mn} X G_{mn}ᵀ averaged over samples: G (.., n, P, M, P, M), X (P, P) to (.., P, P)."""
    half = jnp.einsum("...npaqb,qr->...npabr", G, X)
    return jnp.einsum("...npabr,...nsarb->...ps", half, G) / G.shape[-5]


def _leading(G: Array) -> Array:
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
        spread = jnp.std(jnp.einsum("ik,tij,jk->tk", vectors, matrices, vectors), axis=0) / np.sqrt(len(G) - 1)
        # eigenvalues that agree to rounding or to four standard errors are one eigenspace
        top = values >= values[-1] - 1e-6 * jnp.abs(values[-1]) - 4.0 * jnp.maximum(spread, spread[-1])
        weights = jnp.where(top, vectors.T @ jnp.einsum("ipp->i", basis), 0.0)
        X = jnp.einsum("k,ik,ipq->pq", weights, vectors, basis)
    else:
        flat = G.reshape(-1, *G.shape[-4:])

        def step(_: int, X: Array) -> Array:
            Y = _applied(flat, X)
            Y = Y + 0.25 * jnp.linalg.norm(Y) * X  # the shift kills oscillation between blocks
            return Y / jnp.maximum(jnp.linalg.norm(Y), 1e-300)

        X = lax.fori_loop(0, 300, step, jnp.eye(P, dtype=dtype) / np.sqrt(P))
    X = 0.5 * (X + X.T)
    return X / jnp.maximum(jnp.linalg.norm(X), 1e-300)


def _growth(model: Any, key: Array, samples: int, randomisations: int) -> dict[str, Array]:
    """Growth rate of a small overlap, and what it was computed from."""
    P = model.indices
    S = model.prior.second_moment(P)
    root = sqrt_psd(S)
    post = model.channel.draw(jnp.zeros_like(S), S, key=key, samples=samples, randomisations=randomisations)
    G = jnp.einsum("ab,nbmcl,cd->namdl", root, post.dg, root)
    G = G.reshape(randomisations, samples, *G.shape[1:])
    X = lax.stop_gradient(_leading(G))
    each = jnp.einsum("pq,rpq->r", X, _applied(G, X))
    g = jnp.einsum("ab,nbm->nam", root, post.g)
    start = jnp.einsum("npm,nqm->npq", g, g).reshape(randomisations, samples, P, P).mean(1)
    return {
        "each": each,
        "subspace": X,
        "start": start,
        "slope_error": jnp.median(post.dg_error) * (1.0 + jnp.max(jnp.abs(post.dg), axis=(1, 2, 3, 4)).mean()),
        "field_error": jnp.median(post.error) * (1.0 + jnp.max(jnp.abs(post.g), axis=(1, 2)).mean()),
        "inaccurate": jnp.mean(post.error > model.channel.tolerated),
    }


@eqx.filter_jit
def _weak_recovery(model: Any, key: Array, samples: int, randomisations: int) -> Threshold:
    seen = _growth(model, key, samples, randomisations)
    R = randomisations
    # directions known at Q = 0: above five standard errors, and above what the integration error alone would give
    start = jnp.mean(seen["start"], axis=0)
    values, vectors = jnp.linalg.eigh(start)
    along = jnp.einsum("pk,rpq,qk->rk", vectors, seen["start"], vectors)
    noise = jnp.std(along, axis=0, ddof=1) / np.sqrt(R)
    known = (values > 5.0 * noise) & (values > 1e-12 + 25.0 * seen["field_error"] ** 2)
    trivial = jnp.any(known)
    rate = jnp.mean(seen["each"])
    never = rate <= 1e-10 + 25.0 * seen["slope_error"] ** 2
    alpha = jnp.where(trivial, 0.0, jnp.where(never, jnp.inf, 1.0 / jnp.where(never, 1.0, rate)))
    fixed = trivial | never
    # the mean of 1/λ_r is biased; the first-order replicas are not
    replicas = jnp.where(fixed, alpha, alpha - (seen["each"] - rate) * jnp.where(fixed, 0.0, alpha) ** 2)
    stderr = jnp.where(fixed, 0.0, jnp.std(seen["each"], ddof=1) / np.sqrt(R) * jnp.where(fixed, 0.0, alpha) ** 2)
    grows = (vectors * known) @ vectors.T
    subspace = jnp.where(trivial, grows, jnp.where(never, 0.0, seen["subspace"]))
    subspace = subspace / jnp.maximum(jnp.trace(subspace), 1e-300)
    finite = jnp.isfinite(rate) & jnp.all(jnp.isfinite(start))
    code = jnp.where(seen["inaccurate"] > 0.01, Result.INACCURATE, Result.SUCCESS)
    code = jnp.where(finite, code, Result.NONFINITE)
    alpha, stderr, replicas = (jnp.where(finite, x, jnp.nan) for x in (alpha, stderr, replicas))
    return Threshold(alpha, stderr, replicas, subspace, jnp.zeros_like(start), code)


def _float_leaves(model: Any) -> tuple[list[Array], Any]:
    floats, rest = eqx.partition(model, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(floats)
    return leaves, (structure, rest)


def weak_recovery(model: Any, *, key: Array, samples: int = 2**16, randomisations: int = 16) -> Threshold:
    r"""The smallest α at which anything is learned from labels alone: α_c = 1/λ_max(F) (module docstring).

    F(X) = E Σ_{m,n} G_{mn} X G_{mn}ᵀ,  G = E[zzᵀ|y] - I at ω = 0

    Arguments: `model`: any index model with a channel and a prior of mean zero; `key`: common random numbers, so that two
    calls with one key differ smoothly; `samples` in all, split over `randomisations` independent nets whose spread is the
    error bar (16 or more: G has heavy tails, and Student's law of `Threshold.interval` needs the degrees of freedom).
    Returns: a `Threshold`: `alpha` 0 where a direction is learned at any α > 0 (E[z|y] ≠ 0), inf where nothing grows;
    `subspace` (P, P) the directions learned. Differentiable, forwards and backwards, in every array of the model.
    Codes: SUCCESS, INACCURATE, NONFINITE. Raises: ValueError for a model without inference or a prior with a mean.
    Cost: `samples` posteriors: 2^16 of two-layer attention take about 2 s on one core after compilation.
    Source: [TDDZLK24], [TCDKZ25], spec section 6.
    Example:
    >>> import jax, jaxsmi as smi
    >>> threshold = smi.weak_recovery(smi.links.phase_retrieval(), key=jax.random.key(0), samples=2**13)
    >>> round(float(threshold.alpha), 1)
    0.5
    """
    _ = model.channel.tolerated  # refuses models without inference
    check(randomisations >= 2, "randomisations", randomisations, "at least 2: their spread is the error bar")
    check(samples >= 2 * randomisations, "samples", samples, "at least two points a randomisation")
    P = model.indices
    mean = model.prior.overlap(jnp.zeros((P, P), theory_dtype()))
    check(jnp.max(jnp.abs(mean)) <= 1e-12, "model", model.prior, "a prior of mean zero (else all is learned from the start)")
    each = power_of_two(max(samples // randomisations, 2))
    leaves, (structure, rest) = _float_leaves(model)

    def solve(leaves: list[Array]) -> Threshold:
        return _weak_recovery(eqx.combine(jax.tree.unflatten(structure, leaves), rest), key, each, randomisations)

    return _with_jacobian(solve)(leaves)


def _with_jacobian(solve: Any) -> Any:
    """`solve` of a list of arrays, differentiated forwards once for every number in them, so that reverse mode works too.

    (The integrals of a channel run loops whose length depends on the data, which JAX differentiates forwards only.)
    """
    wrapped = jax.custom_jvp(solve)

    def rule(primals: tuple[list[Array]], tangents: tuple[list[Array]]) -> tuple[Any, Any]:
        (leaves,), (directions,) = primals, tangents
        out = solve(leaves)
        moving, fixed = eqx.partition(out, eqx.is_inexact_array)
        total = jax.tree.map(jnp.zeros_like, moving)
        for position, (leaf, direction) in enumerate(zip(leaves, directions, strict=True)):
            if isinstance(direction, SymbolicZero):
                continue  # nobody asks how the threshold depends on this array

            def along(unit: Array, position: int = position) -> Any:
                units = [unit if k == position else jnp.zeros_like(x) for k, x in enumerate(leaves)]
                return jax.jvp(lambda x: eqx.filter(solve(x), eqx.is_inexact_array), (leaves,), (units,))[1]

            basis = jnp.eye(leaf.size, dtype=leaf.dtype).reshape(leaf.size, *leaf.shape)
            columns = lax.map(along, basis)
            total = jax.tree.map(lambda t, c, d=direction: t + jnp.tensordot(jnp.ravel(d), c, axes=1), total, columns)
        tangent_of_fixed = jax.tree.map(lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0), fixed)
        return out, eqx.combine(total, tangent_of_fixed)

    wrapped.defjvp(rule, symbolic_zeros=True)
    return wrapped


def recovery_threshold(model: Any, *, key: Array | None = None) -> Threshold:
    r"""Perfect recovery: the α above which Q = S is a stable fixed point of state evolution, for noiseless attention P/M.

    For V → 0 a label of M numbers fixes M combinations of the P·M fields: tr(V Q̂) = αM, so that V falls by P/(αM) a step.

    Arguments: `model`: a noiseless attention model with a Gaussian prior, the last layer of rank one. Returns: a
    `Threshold` (exact, no error bar), its subspace everything. Raises: ValueError for other models.
    Stability does not prove that the branch from small overlap reaches Q = S. Cost: none. Source: spec section 6.
    Example:
    >>> import jaxsmi as smi
    >>> float(smi.recovery_threshold(smi.DeepAttention(3, 2)).alpha)
    1.5
    """
    del key
    P, dtype = model.indices, theory_dtype()
    seen = getattr(model.channel, "visible", None)
    allowed = "a noiseless model whose label fixes M combinations of its fields (attention, the last layer of rank one)"
    check(seen is not None, "model", getattr(model, "name", type(model).__name__), allowed)
    check(hasattr(model.prior, "covariance"), "model", model.prior, "a continuous (Gaussian) prior")
    alpha = jnp.asarray(P / (seen or jnp.nan), dtype)
    eye = jnp.eye(P, dtype=dtype)
    return Threshold(
        alpha, jnp.zeros((), dtype), jnp.full((1,), alpha), eye / P, eye, jnp.asarray(Result.SUCCESS)
    )  # fmt: skip
