r"""The exact channels of noiseless attention: what an attention matrix says about its fields.

Equations here [TCDKZ25; theory: deep-attention, Eqs. (1) to (20)]. With Z_ℓ (P_ℓ, M) the block of
layer ℓ and the link of channels/attention_link.py (h_ℓ, A_ℓ, B_ℓ):

    inversion, the last layer one tied head of rank one, u = h_L:
        log(y_ij/y_ii)/β = u_i (u_j - u_i) gives u up to one global sign
    channel:
        Z_out = Σ_{s=±1} ∫ dZ_1..dZ_{L-1} |det B_{L-1}|^{-1}
                N((Z_1, .., Z_{L-1}, s u B_{L-1}^{-ᵀ}); ω, V)

In whitened fields τ = chol(V)^{-1}(z - ω), the inner blocks are standard Gaussians t and the last
block is a residual r_s(t); that is the form `numerics.refining.self_refining_moments` takes, and it
stays right when V goes to zero.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.attention_link import (
    Layer,
    attention_link,
    eliminate,
    inner_matrices,
    invert_attention,
    last_fields,
    split_rows,
)
from jaxsmi.channels.base import (
    AbstractChannel,
    ClosedFormChannel,
    Posterior,
    as_posterior,
    unwhiten,
)
from jaxsmi.core.checks import check
from jaxsmi.numerics.refining import Budget, level_for_width, self_refining_moments

__all__ = ["DeepAttentionChannel", "SingleAttentionChannel"]


class AbstractAttentionChannel(AbstractChannel):
    """What the channels of noiseless attention share: the link, its labels and their inversion."""

    layers: eqx.AbstractVar[tuple[Layer, ...]]
    skip: eqx.AbstractVar[Array]
    beta: eqx.AbstractVar[Array]

    @property
    def constraints(self) -> int:
        """Combinations of the fields that a label fixes: u (M,), up to its sign."""
        return self.tokens

    def link(self, fields: Array) -> Array:
        """y = S_L(h_L)."""
        return attention_link(fields, self.layers, self.skip, self.beta)

    def check_labels(self, labels: Array) -> None:
        """Rows of y must be probabilities, in float64."""
        M = self.tokens
        fits = labels.ndim == 3 and labels.shape[1:] == (M, M)
        check(fits, "labels", labels, f"an array of shape (N, {M}, {M})")
        allowed = (
            "float64, by jax.config.update('jax_enable_x64', True) (a float32 softmax cannot be "
            "inverted)"
        )
        check(labels.dtype == jnp.float64, "labels", labels.dtype.name, allowed)
        allowed = "strictly positive attention weights (none underflowed to zero)"
        check(jnp.all(labels > 0.0), "labels", labels, allowed)
        gap = jnp.abs(jnp.sum(labels, -1) - 1.0)
        check(jnp.all(gap < 1e-8), "labels", labels, "rows of y that sum to one")

    def observe(self, fields: Array, noise: Array) -> Array:
        """u = h_L itself: exact where labels would underflow."""
        return last_fields(fields, self.layers, self.skip, self.beta)[0]

    def statistic(self, labels: Array) -> Array:
        """u (N, M), up to a sign for each sample."""
        return jax.vmap(lambda y: invert_attention(y, self.beta))(labels)


class SingleAttentionChannel(ClosedFormChannel, AbstractAttentionChannel):
    """One attention layer of rank one: the fields are seen up to a sign,
    Z_out = Σ_s Π_m N(s u_m; ω_m, V)."""

    tokens: int = eqx.field(static=True)
    indices: int = eqx.field(static=True)
    layers: tuple[Layer, ...] = eqx.field(static=True)
    skip: Array
    beta: Array

    def __init__(self, tokens: int, beta: Array):
        self.tokens = tokens
        self.indices = 1
        self.layers = (Layer(),)
        self.skip = jnp.zeros((0,))
        self.beta = beta

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Σ_{s=±1} Π_m N(s u_m; ω_m, V)."""
        v = V[0, 0]
        exponents = [-0.5 * jnp.sum((s * statistic - omega[0]) ** 2) / v for s in (1.0, -1.0)]
        return jnp.logaddexp(*exponents) - 0.5 * self.tokens * jnp.log(2 * jnp.pi * v)


class DeepAttentionChannel(AbstractAttentionChannel):
    """The exact noiseless channel of two or more attention layers, the last one tied head of rank
    one, the others any.

    The inner blocks Z_1..Z_{L-1} (M Σ_{ℓ<L} P_ℓ variables) are integrated over with
    `self_refining_moments`; `budget` says how accurate g must be and how many nodes a sample may
    cost. Two layers of two tokens cost about 20 ns × 1024 nodes at the first level on one CPU core.
    """

    tokens: int = eqx.field(static=True)
    indices: int = eqx.field(static=True)
    layers: tuple[Layer, ...] = eqx.field(static=True)
    skip: Array
    beta: Array
    budget: Budget

    def __init__(
        self, tokens: int, layers: tuple[Layer, ...], skip: Array, beta: Array, budget: Budget
    ):
        self.tokens = tokens
        self.indices = sum(layer.indices for layer in layers)
        self.layers = layers
        self.skip = skip
        self.beta = beta
        self.budget = budget

    @property
    def tolerance(self) -> Array:
        """The tolerance of the inner integral."""
        return self.budget.tolerance

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Batch posterior from u (N, M), omega (N, P, M), V (P, P)."""
        P = self.indices
        M = self.tokens
        chol = jnp.linalg.cholesky(V)

        def integrand(
            block: tuple[Array, Array], t: Array
        ) -> tuple[Array, list[tuple[Array, list[Array]]]]:
            u, w = block  # (S, M), (S, P, M)
            L, skip, beta = (x.astype(t.dtype) for x in (chol, self.skip, self.beta))
            rows = t.T.reshape(P - 1, M, -1)  # t_{p,m} at the n nodes
            deviation = jnp.einsum("pq,qmn->pmn", L[:-1, :-1], rows)
            z = [[w[:, p, m, None] + deviation[p, m] for m in range(M)] for p in range(P - 1)]
            matrices = inner_matrices(split_rows(z, self.layers[:-1]), self.layers[:-1], skip, beta)
            # Z_L = ±u B^{-ᵀ}, that is v = A_1^{-1} .. A_{L-1}^{-1} u
            scale = 1.0 / L[-1, -1]
            v = [u[:, m, None] * scale for m in range(M)]
            jacobian = 1.0
            for A in reversed(matrices):
                v, inverse_det = eliminate(A, v)
                jacobian = jacobian * inverse_det
            # mean of the last block given the inner ones, minus ω
            shift = jnp.einsum("q,qmn->mn", L[-1, :-1], rows)
            centre = [w[:, -1, m, None] * scale + shift[m] * scale for m in range(M)]
            branches = []
            for sign in (1.0, -1.0):
                r = [sign * v[m] - centre[m] for m in range(M)]
                branches.append((-0.5 * sum(x * x for x in r), r))
            return jacobian, branches  # pyright: ignore[reportReturnType]

        # narrowest feature in t: the width of the last block's conditional, in units of the widest
        # inner field
        width = chol[-1, -1] / jnp.max(jnp.diagonal(chol)[:-1])
        # rounding moves z_L by ε|z_L| and with it g by ε|z_L|/V: a hundredth of the tolerance is no
        # loss
        single = jnp.finfo(jnp.float32).eps <= 0.01 * self.budget.tolerance * chol[-1, -1] ** 2
        start = level_for_width((P - 1) * M, self.budget, width)
        moments = self_refining_moments(
            integrand,
            (statistic, omega),
            lambda *tau: unwhiten(chol, M, *tau),
            inner=(P - 1) * M,
            outer=M,
            budget=self.budget,
            start=start,
            key=key,
            single=single,
        )
        log_norm = M * (jnp.log(chol[-1, -1]) + 0.5 * jnp.log(2 * jnp.pi))
        post = as_posterior(moments, omega.shape)
        return eqx.tree_at(lambda p: p.log_partition, post, post.log_partition - log_norm)
