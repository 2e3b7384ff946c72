r"""Output channel of several attention layers of extensive rank: inner scores are integrated over.

Equations here [theory: attention-indexed, Eqs. (45), (52) to (57)]. Layer l has scores h^l (T, T),
ω^l + a Gaussian symmetric matrix of covariance V (L, L) across the layers, entries as GOE(T):

    B_0 = I,   B_l = (c I + softmax(β B_{l-1} h^l B_{l-1}ᵀ)) B_{l-1},
    y = softmax(β B_{L-1} h^L B_{L-1}ᵀ)
    B_l 1 = (1 + c)^l 1:   y is a function of the P h^l = h^l - mean(h^l) 1 1ᵀ alone
    h^l = √2 Σ_i z^l_i E_i + (a multiple of 1 1ᵀ),  E_i orthonormal:  z_i ~ N(ω_i, V), i = 1 .. m,
    m = (T² + T - 2)/2
    Z_out = E_{z^1..z^{L-1}} |det B_{L-1}|^{-(T+1)} N(coordinates of B^{-1} s B^{-ᵀ}; ω^L, V),
    s = P(log y/β, symmetric),    Γ^l = √2 Σ_i (∂ log Z_out/∂ω^l_i) E_i

For the common engine a sample has L field vectors of T² components, g = Γ:
q̂_lk = α ⟨Tr Γ^l Γ^k⟩ = 2 α ⟨Σ_i g^l_i g^k_i⟩ (pullback.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.channels.attention import shifted_rows
from jaxsmi.channels.attention_link import Matrix, eliminate, transfer, with_skip
from jaxsmi.channels.fibres import Fibre, FibreChannel, single_suffices, whitened_response
from jaxsmi.channels.matrix_scores import SoftmaxScores, centred
from jaxsmi.channels.pullback import PullbackChannel, frame
from jaxsmi.numerics.refining import Budget, Integral, level_for_width
from jaxsmi.numerics.refining_sums import Branch


def layered_scores(h: Array, skip: Array, attention: Callable[[Array], Array]) -> Array:
    """B_{L-1} h^L B_{L-1}ᵀ (T, T), of which a label is the attention, from the scores (L, T, T)."""
    identity = jnp.eye(h.shape[-1], dtype=h.dtype)
    B = identity
    for inner in h[:-1]:
        B = (skip * identity + attention(B @ inner @ B.T)) @ B
    return B @ h[-1] @ B.T


def layered_channel(
    layers: int, skip: Array, readout: SoftmaxScores, budget: Budget
) -> PullbackChannel:
    """The channel of the scores of two or more softmax layers, under the diagonal ansatz."""
    size = (readout.tokens**2 + readout.tokens - 2) // 2
    inner = LayeredCoordinates(
        indices=layers, tokens=size, skip=skip, readout=readout, budget=budget
    )
    # coordinates of a GOE matrix have variance 2: c² = 1/2 makes it V
    basis = inner.basis.reshape(size, -1).T
    return PullbackChannel(inner, basis, scale=0.5**0.5, diagonal=True)


class LayeredCoordinates(FibreChannel):
    """Coordinates z^l (L, m) of the scores of two or more softmax layers; the (L-1) m inner ones
    are integrated over. `tokens` is m."""

    skip: Array
    readout: SoftmaxScores

    @property
    def size(self) -> int:
        """T."""
        return self.readout.tokens

    @property
    def constraints(self) -> int:
        """m, the coordinates that a label fixes."""
        return self.tokens

    @property
    def open_variables(self) -> int:
        """The coordinates of the inner layers."""
        return (self.indices - 1) * self.tokens

    @property
    def basis(self) -> np.ndarray:
        """E_i (m, T, T): orthonormal symmetric matrices of mean zero."""
        ones = np.ones((self.size**2, 1))
        # the columns of Q are orthonormal, the first along 1 1ᵀ; one of the frame is dependent
        Q = np.linalg.qr(np.concatenate([ones, frame(self.size)], axis=1))[0]
        return Q[:, 1 : self.tokens + 1].T.reshape(-1, self.size, self.size)

    def last_scores(self, fields: Array) -> Array:
        """B h^L Bᵀ (T, T) from the coordinates (L, m)."""
        T = self.size
        h = np.sqrt(2.0) * fields @ self.basis.reshape(-1, T * T)
        return layered_scores(h.reshape(-1, T, T), self.skip, self.readout.link)

    def link(self, fields: Array) -> Array:
        """y (T, T) from the coordinates (L, m)."""
        return self.readout.link(self.last_scores(fields))

    def check_labels(self, labels: Array) -> None:
        """Rows of positive numbers of sum one."""
        self.readout.check_labels(labels)

    def statistic(self, labels: Array) -> Array:
        """s (N, T, T), the last scores without their mean."""
        return self.readout.statistic(labels)

    def observe(self, fields: Array, noise: Array) -> Array:
        """s itself: exact where labels would underflow."""
        return centred(self.last_scores(fields))

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """From s (N, T, T)."""
        L, T, m = self.indices, self.size, self.tokens

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
            s, w = block
            inner, centre = shifted_rows(w, root.astype(t.dtype), t, L - 1)
            E = jnp.asarray(self.basis, t.dtype)
            # along a unit matrix E a GOE matrix has variance 2V, its coordinate z here V
            h = jnp.sqrt(2.0).astype(t.dtype) * _contract("iab,li...->lab...", E, inner)
            last, inverse_det = self._last(jnp.moveaxis(s, 0, -1)[..., None], h)
            z = jnp.sqrt(0.5).astype(t.dtype) * _contract("iab,ab...->i...", E, last)
            r = (z - centre[0]) / root[-1, -1].astype(t.dtype)
            return inverse_det ** (T + 1), [Branch(-0.5 * jnp.sum(r * r, axis=0), list(r))]

        # narrowest feature in t: the last layer's width over that of the widest inner one
        # a softmax turns within 1/β of a score
        steepness = jnp.maximum(self.readout.beta, 1.0)
        width = root[-1, -1] / (jnp.max(jnp.diagonal(root)[:-1]) * steepness)
        integral = Integral(
            integrand,
            (statistic, omega),
            whitened_response(root, m),
            inner=self.open_variables,
            outer=m,
            start=level_for_width(self.open_variables, self.budget, width),
            single=single_suffices(self.budget, root[-1, -1]),
        )
        return Fibre(integral, m * (jnp.log(root[-1, -1]) + 0.5 * jnp.log(2 * jnp.pi)))

    def _last(self, s: Array, inner: Array) -> tuple[Array, Array]:
        """B^{-1} s B^{-ᵀ} (T, T, ...) and 1/|det B| at the nodes, from the scores of the inner
        layers (L - 1, T, T, ...)."""
        skip, beta = self.skip.astype(s.dtype), self.readout.beta.astype(s.dtype)
        transposed = lambda X: X.swapaxes(0, 1)
        matrices: list[Matrix] = []
        for h in inner:
            for A in matrices:
                h = transfer(A, transposed(transfer(A, h)))  # A h Aᵀ of a symmetric h
            matrices.append(with_skip(h[None], skip, beta))
        last, inverse_det = s, jnp.ones((), s.dtype)
        for A in reversed(matrices):
            half, one = eliminate(A, last)
            last = jnp.stack(eliminate(A, transposed(jnp.stack(half)))[0])
            inverse_det = inverse_det * one
        return last, inverse_det


# in full precision: a contraction would round in single precision on some GPUs
_contract = functools.partial(jnp.einsum, precision="highest")
