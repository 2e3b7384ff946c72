r"""The outlier of the regularised spectral matrix as D → ∞: its place, and what its vector knows.

Equations here [theory: spectral, Eqs. (7) to (12)], in units S = I. The spectral estimator takes
the top eigenvectors of

    T_s = (1/D) Σ_μ x_μ 𝒯_s(y_μ) x_μᵀ,    𝒯_s = G (I + sG)^{-1},   0 < s < 1

which is bounded where that of s = 1, optimal, is not; less α⟨Tr_M G⟩, which is zero up to the
labels at hand. At a spectral parameter m outside the bulk

    V = (m I - α ⟨Tr_M (H - G)⟩)^{-1},   H = 𝒯_s (I - V 𝒯_s)^{-1}       the resolvent
    bulk edge   N ↦ V α⟨Tr_M[H N H]⟩ V              has the eigenvalue one
    outlier     M ↦ V α⟨Tr_M[H M G]⟩                has the eigenvalue one
    noise       N = V α⟨Tr_M[H (M (I+G) Mᵀ + N) H]⟩ V
    vector      W W*ᵀ/D = M,   W Wᵀ/D = M Mᵀ + N
    estimate    Ŵ = R W,   R = Mᵀ (M Mᵀ + N)^+,   Q = Ŵ Ŵᵀ/D = Ŵ W*ᵀ/D = R M

At s = 1 the outlier is at m = 1, and at 1 + (1 - s)/(1 - q) beside it: it is looked for above one.
(V, M, N act on fields as V ⊗ I_M.) Where the labels do not change under a group of transformations
of the indices, several M share the eigenvalue; the one nearest to Q of the optimal estimator is
taken.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.inference.spectral_theory import response
from jaxsmi.numerics.linear_algebra import conjugation, sqrt_psd, symmetric

__all__ = ["Outlier", "outlier", "transformed"]

_NEWTON = 50  # steps to the resolvent at one m
_HUGE = 1e6
_SETTLED = 1e-9
_HALVINGS = 24  # of an interval of m some 10 wide: to 1e-6 (of the edge, 200 wide: to 1e-5)
_APART = 1e-4
_SAME = 0.95  # eigenvalues from here to the top are copies of one
_NULL = 1e-9


class Outlier(eqx.Module):
    """What theory says of the top eigenvectors (module docstring).

    Attributes:
        eigenvalue: m of the outlier.
        edge: m of the bulk's edge.
        resolvent: V (P, P) at the outlier.
        scale: R (P, P).
        gram: W Wᵀ/D (P, P) of the eigenvector.
        overlap: Q (P, P) of the estimate.
        copies: How many eigenvalues come together.
    """

    eigenvalue: Array
    edge: Array
    resolvent: Array
    scale: Array
    gram: Array
    overlap: Array
    copies: Array


def transformed(G: Array, s: Array | float) -> Array:
    """𝒯_s = G (I + sG)^{-1} of excess covariances G (..., PM, PM)."""
    return response(G, s * jnp.ones((1, 1), G.dtype))[0]


class _Newton(NamedTuple):
    """Where the search for a resolvent is: V, what the map itself makes of the last V that was
    admitted, the last change and the steps taken."""

    V: Array
    mapped: Array
    change: Array
    count: Array


class _Bulk(eqx.Module):
    """The averages over labels at one V, for excess covariances G and 𝒯_s (n, P, M, P, M)."""

    G: Array
    T: Array
    alpha: Array

    def response(self, V: Array) -> tuple[Array, Array]:
        """H = 𝒯_s (I - V 𝒯_s)^{-1}, and whether 1/V is above all eigenvalues of 𝒯_s."""
        n, P, M = self.G.shape[:3]
        H, above = response(self.T.reshape(n, P * M, P * M), V, -1.0)
        return H.reshape(self.G.shape), above

    def trace(self, H: Array) -> Array:
        """α⟨Tr_M H⟩ (P, P)."""
        return self.alpha * jnp.einsum("npmqm->pq", H) / len(H)

    def between(self, H: Array, inner: Array) -> Array:
        """N ↦ α⟨Tr_M[H N inner]⟩ as a tensor (P, P, P, P); both are symmetric."""
        return self.alpha * conjugation(H, inner)

    def resolvent(self, m: Array, V: Array) -> tuple[Array, Array, Array]:
        """V at m, by Newton steps from one at a larger m (the map itself, which grows, where such a
        step leads too far); H there; and whether m is outside the bulk."""
        one = jnp.eye(len(V), dtype=V.dtype)
        size = V.size
        unknown = jnp.full_like(V, jnp.nan)

        def step(now: _Newton) -> _Newton:
            V = now.V
            H, admitted = self.response(V)
            admitted = admitted & _definite(V)
            new = jnp.linalg.inv(m * one - self.trace(H - self.G))
            J = jnp.einsum("pa,abcd,bq->pqcd", new, self.between(H, H), new)
            linear = jnp.eye(size, dtype=V.dtype) - J.reshape(size, size)
            ahead = V + symmetric(jnp.linalg.solve(linear, (new - V).ravel()).reshape(V.shape))
            change = jnp.where(admitted, jnp.max(jnp.abs(ahead - V)), jnp.inf)
            ahead = jnp.where(admitted, ahead, now.mapped)
            return _Newton(ahead, jnp.where(admitted, new, unknown), change, now.count + 1)

        def goes_on(now: _Newton) -> Array:
            moving = (now.change > _SETTLED) & (now.count < _NEWTON)
            return moving & jnp.all(jnp.isfinite(now.V))

        infinite = jnp.asarray(jnp.inf, V.dtype)
        start = _Newton(V, unknown, infinite, jnp.zeros((), int))
        end = lax.while_loop(goes_on, step, start)
        sound = (end.change <= _SETTLED) & _definite(end.V)
        new = jnp.where(sound, end.V, V)
        H, _ = self.response(new)
        return new, H, sound & (self.top(new, H, H)[0][-1] < 1.0)

    def top(self, V: Array, H: Array, inner: Array) -> tuple[Array, Array]:
        """Eigenvalues, and eigenmatrices (P², K), of N ↦ V^{1/2} α⟨Tr_M[H N' inner]⟩, N = V^{1/2}N'
        (its like on both sides where `inner` is H): symmetric."""
        root = sqrt_psd(V)
        K = self.between(H, inner)
        size = V.size
        if inner is H:
            K = jnp.einsum("pc,qd,cdef,ea,fb->pqab", root, root, K, root, root)
        else:
            K = jnp.einsum("pc,cqeb,ea->pqab", root, K, root)
        return jnp.linalg.eigh(symmetric(K.reshape(size, size)))


def outlier(G: Array, tokens: int, alpha: Array, s: Array, optimal: Array) -> Outlier:
    """The outlier of T_s (module docstring).

    Args:
        G: Excess covariances of labels, (n, PM, PM).
        tokens: M.
        alpha: Sample complexity, above that of weak recovery.
        s: In (0, 1).
        optimal: Q (P, P) of the optimal estimator.

    Returns:
        An `Outlier`; NaN where nothing stands out of the bulk.
    """
    n, size = G.shape[:2]
    P = size // tokens
    shape = (n, P, tokens, P, tokens)
    bulk = _Bulk(G.reshape(shape), transformed(G, s).reshape(shape), alpha)
    spread = (1.0 + jnp.sqrt(alpha * tokens)) ** 2
    high = spread / s + jnp.max(jnp.abs(bulk.trace(bulk.G)))
    start = jnp.eye(P, dtype=G.dtype) / high
    m, V = _last(bulk, jnp.ones(()), high, start, stands_out=True)
    edge, _ = _last(bulk, -spread / (1.0 - s), m, V, stands_out=False)
    H, _ = bulk.response(V)
    values, modes = bulk.top(V, H, bulk.G)
    copy = values > _SAME * values[-1]
    root = sqrt_psd(V)
    wanted = jnp.linalg.solve(root, optimal).ravel()
    M = root @ (modes @ jnp.where(copy, modes.T @ wanted, 0.0)).reshape(P, P)
    M = M / jnp.sqrt(jnp.sum(M**2))
    N = _noise(bulk, V, H, M)
    gram = symmetric(M @ M.T + N)
    scale = M.T @ _pseudo_inverse(gram)
    stands_out = (m - edge > _APART * m) & (m - 1.0 > _APART * (1.0 - s))
    nan = jnp.where(stands_out, 0.0, jnp.nan)
    return Outlier(m, edge, V + nan, scale + nan, gram, symmetric(scale @ M) + nan, jnp.sum(copy))


def _last(
    bulk: _Bulk, low: Array, high: Array, start: Array, stands_out: bool
) -> tuple[Array, Array]:
    """The smallest m, and its V, that is outside the bulk and, if asked to, above the outlier; NaN
    where none below `high` is."""

    def halve(_: int | Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, V = carry
        middle = 0.5 * (low + high)
        new, H, above = bulk.resolvent(middle, V)
        if stands_out:
            above = above & (bulk.top(new, H, bulk.G)[0][-1] < 1.0)
        low = jnp.where(above, low, middle)
        high = jnp.where(above, middle, high)
        return low, high, jnp.where(above, new, V)

    _, m, V = lax.fori_loop(0, _HALVINGS, halve, (low, high, start))
    return jnp.where(m < high, m, jnp.nan), V


def _definite(V: Array) -> Array:
    """Whether V is positive definite; an eigensolver may not end on what is not a number."""
    finite = jnp.all(jnp.abs(V) < _HUGE)
    return finite & (jnp.linalg.eigvalsh(jnp.where(finite, V, 0.0))[0] > 0.0)


def _noise(bulk: _Bulk, V: Array, H: Array, M: Array) -> Array:
    """N (P, P) of an eigenvector that has M in common with the signal."""
    P = len(V)
    tokens = bulk.G.shape[2]
    covariance = bulk.G + jnp.einsum("pq,mn->pmqn", jnp.eye(P), jnp.eye(tokens))
    signal = jnp.einsum("pa,namct,qc->npmqt", M, covariance, M)
    source = bulk.trace(jnp.einsum("npmas,nasct,nctqr->npmqr", H, signal, H))
    J = jnp.einsum("pa,abcd,bq->pqcd", V, bulk.between(H, H), V).reshape(P * P, P * P)
    noise = jnp.linalg.solve(jnp.eye(P * P, dtype=V.dtype) - J, (V @ source @ V).ravel())
    return symmetric(noise.reshape(P, P))


def _pseudo_inverse(matrix: Array) -> Array:
    """The inverse of a positive semi-definite matrix on what is not its null space."""
    values, vectors = jnp.linalg.eigh(matrix)
    kept = values > _NULL * values[-1]
    return (vectors * jnp.where(kept, 1.0 / jnp.where(kept, values, 1.0), 0.0)) @ vectors.T
