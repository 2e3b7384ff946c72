r"""The exact channels of noiseless attention: what an attention matrix says about its fields.

Equations here [TCDKZ25; theory: deep-attention, Eqs. (1) to (20)]. With Z_ℓ (P_ℓ, M) the block of
layer ℓ and the link of channels/attention_link.py (h_ℓ, A_ℓ, B_ℓ):

    inversion, the last layer one tied head of rank one, u = h_L:
        log(y_ij/y_ii)/β = u_i (u_j - u_i) gives u up to one global sign
    channel:
        Z_out = Σ_{s=±1} ∫ dZ_1..dZ_{L-1} |det B_{L-1}|^{-1}
                N((Z_1, .., Z_{L-1}, s u B_{L-1}^{-ᵀ}); ω, V)
    rank two: h_L up to R in O(2), with two tokens up to a component c across as well [Eqs. (27)
    to (33)]; the sum over signs is an integral over R (and c), and |det B|^{-2} its Jacobian
    untied, rank one: h_L = (q, k) up to c x, x'/c + m 1, c of either sign [Eqs. (40) to (43)]

In whitened fields τ = chol(V)^{-1}(z - ω), the inner blocks are standard Gaussians t and the last
block is a residual r_s(t); that is the form `numerics.refining.self_refining_moments` takes, and it
stays right when V goes to zero. The rotation is integrated at each t (rotations.py), and so is the
scale (scales.py).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels import rotations, scales
from jaxsmi.channels.attention_link import (
    Layer,
    attention_link,
    balanced,
    eliminate,
    inner_matrices,
    invert_attention,
    invert_untied_attention,
    last_fields,
    split_rows,
    total,
)
from jaxsmi.channels.base import (
    AbstractChannel,
    ClosedFormChannel,
    Posterior,
    as_posterior,
    unwhiten,
)
from jaxsmi.channels.nested import unwhitened, without_difference
from jaxsmi.core.arrays import arithmetic
from jaxsmi.core.checks import check
from jaxsmi.numerics.refining import (
    Budget,
    Moments,
    Rest,
    level_for_width,
    self_refining_moments,
)
from jaxsmi.numerics.refining_rules import LARGEST_GRID, grid_fits
from jaxsmi.numerics.refining_sums import Copy

__all__ = ["DeepAttentionChannel", "SingleAttentionChannel"]

_STEEP = 0.55  # how far the last block moves with t, per distance between the two tokens of u


class AbstractAttentionChannel(AbstractChannel):
    """What the channels of noiseless attention share: the link, its labels and their inversion."""

    layers: eqx.AbstractVar[tuple[Layer, ...]]
    skip: eqx.AbstractVar[Array]
    beta: eqx.AbstractVar[Array]

    @property
    def seen(self) -> int:
        """k = min(r, M - 1), the dimension of what a label shows of h_L (r, M), up to O(r)."""
        return min(self.layers[-1].rank, self.tokens - 1)

    @property
    def constraints(self) -> int:
        """Combinations of the fields that a label fixes: u (k, M) up to O(k); untied, of rank one,
        the entries of a matrix q κᵀ with κ of mean zero."""
        k = self.seen
        M = self.tokens
        last = self.layers[-1]
        return k * M - k * (k - 1) // 2 if last.tied else 2 * M - 2

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
        xp = arithmetic(labels)
        y = xp.asarray(labels)
        check(xp.all(y > 0.0), "labels", labels, allowed)
        gap = xp.abs(xp.sum(y, -1) - 1.0)
        check(xp.all(gap < 1e-8), "labels", labels, "rows of y that sum to one")

    def observe(self, fields: Array, noise: Array) -> Array:
        """h_L itself, of two tokens in a plane what the label shows of it: exact where labels would
        underflow."""
        h = last_fields(fields, self.layers, self.skip, self.beta)
        if not self.layers[-1].tied:
            return balanced(h[0], h[1])
        if len(h) == 1:
            return h[0]
        return h if self.seen == 2 else _along_the_line(h)

    def statistic(self, labels: Array) -> Array:
        """u (N, M), up to a sign for each sample; of rank two u (N, 2, M), up to a rotation;
        untied, of rank one, (N, 2, M), up to a scale."""
        if not self.layers[-1].tied:
            return jax.vmap(lambda y: invert_untied_attention(y, self.beta))(labels)
        u = jax.vmap(lambda y: invert_attention(y, self.beta, self.seen))(labels)
        rank = self.layers[-1].rank
        if rank == 1:
            return u[:, 0]
        return jnp.concatenate([u, jnp.zeros((len(u), rank - self.seen, self.tokens))], axis=1)


def _along_the_line(h: Array) -> Array:
    """(v, 0) (2, 2) of the fields h of two tokens in a plane, v their components along h_2 - h_1:
    a label does not show the other, which the tokens have in common."""
    difference = h[:, 1] - h[:, 0]
    v = difference @ h / jnp.sqrt(jnp.sum(difference**2))
    return jnp.stack([v, jnp.zeros_like(v)])


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
    """The exact noiseless channel of attention layers, the last one head, tied of rank one or two,
    or untied of rank one, the others any.

    The inner blocks Z_1..Z_{L-1} (M Σ_{ℓ<L} P_ℓ variables) are integrated over with
    `self_refining_moments`; `budget` says how accurate g must be and how many nodes a sample may
    cost. Two layers of two tokens cost about 20 ns × 1024 nodes at the first level on one CPU core;
    a last layer of rank two costs some thousand times as much, its angle being integrated at each
    node (a single one of rank two below a millisecond a sample).
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

    @property
    def random_nodes(self) -> bool:
        """In more variables than a grid can cover."""
        return not grid_fits(self.inner * self.tokens, self.budget.max_nodes)

    @property
    def inner(self) -> int:
        """Rows of the inner layers."""
        return self.indices - self.layers[-1].indices

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Batch posterior from u (N, M) or (N, 2, M), omega (N, P, M), V (P, P)."""
        P = self.inner
        M = self.tokens
        last = self.layers[-1]
        rank = last.indices
        chol = jnp.linalg.cholesky(V)
        u = statistic.reshape(-1, rank, M)
        if P == 0:
            moments = rotations.alone(u, omega, chol) if last.tied else scales.alone(u, omega, chol)
        else:
            moments = self.moments(u, omega, chol, self.budget, key)
        log_norm = M * (jnp.sum(jnp.log(jnp.diagonal(chol)[P:])) + 0.5 * rank * jnp.log(2 * jnp.pi))
        if (
            self.seen < rank or not last.tied
        ):  # the component across, common to the tokens: B 1 = Π(1 + c_ℓ) 1
            log_norm = log_norm - jnp.sum(jnp.log1p(self.skip))
        post = as_posterior(moments, omega.shape)
        return eqx.tree_at(lambda p: p.log_partition, post, post.log_partition - log_norm)

    def width(self, chol: Array) -> Array:
        """That of the narrowest feature in t: of the last block given the inner ones, in units of
        the widest inner field."""
        P = self.inner
        return jnp.min(jnp.diagonal(chol)[P:]) / jnp.max(jnp.diagonal(chol)[:P])

    def first_level(self, u: Array, chol: Array, budget: Budget, largest: int) -> Array:
        """That of grids, by the width; of two layers and two tokens one for each sample (N,), as
        the last block moves with t as far as the tokens of u lie apart [theory: deep-attention, Eq.
        (17a)]."""
        level = lambda width: level_for_width(self.inner * self.tokens, budget, width, largest)
        width = self.width(chol)
        if self.tokens != 2 or len(self.layers) != 2 or self.layers[-1] != Layer():
            return level(width)
        apart = jnp.abs(u[:, 0, 0] - u[:, 0, 1])
        each = width / jnp.maximum(_STEEP * apart, jnp.finfo(u.dtype).tiny)
        # few samples at a level of their own leave most of a block empty
        return jnp.minimum(level(each), level(width) + 2)

    def moments(
        self,
        u: Array,
        omega: Array,
        chol: Array,
        budget: Budget,
        key: PRNGKeyArray | None,
        rest: Rest | None = None,
        largest: int = LARGEST_GRID,
    ) -> Moments:
        """Those of the whitened fields, from u (N, r, M), omega (N, P, M) and the root of V."""
        P = self.inner
        M = self.tokens
        last = self.layers[-1]
        rank = last.indices

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Copy]]:
            u, w = block  # (S, r, M), (S, P, M)
            L, skip, beta = (x.astype(t.dtype) for x in (chol, self.skip, self.beta))
            rows = t.T.reshape(P, M, -1)  # t_{p,m} at the n nodes
            moved = lambda p, m: total(L[p, q] * rows[q, m] for q in range(min(p + 1, P)))
            z = [[w[:, p, m, None] + moved(p, m) for m in range(M)] for p in range(P)]
            matrices = inner_matrices(split_rows(z, self.layers[:-1]), self.layers[:-1], skip, beta)
            # Z_L = R u B^{-ᵀ}, that is v = A_1^{-1} .. A_{L-1}^{-1} u, row by row
            v = [[u[:, p, m, None] for m in range(M)] for p in range(rank)]
            jacobian = 1.0
            for A in reversed(matrices):
                solved = [eliminate(A, row) for row in v]
                v = [row for row, _ in solved]
                for _, inverse_det in solved:
                    jacobian = jacobian * inverse_det
            # mean of the last block given the inner ones
            centre = [
                [w[:, P + p, m, None] + moved(P + p, m) for m in range(M)] for p in range(rank)
            ]
            return jacobian, what.copies(v, centre, L[P:, P:])  # pyright: ignore[reportReturnType]

        what = rotations if last.tied else scales
        nested = rank > 1  # copies of the last block are integrals, each with its error
        respond = unwhitened if nested else unwhiten
        # rounding moves z_L by ε|z_L| and with it g by ε|z_L|/V: a hundredth of the tolerance is no
        # loss
        limit = jnp.asarray(0.01 * budget.tolerance * jnp.min(jnp.diagonal(chol)[P:]) ** 2)
        moments = self_refining_moments(
            integrand,
            (u, omega),
            lambda *tau: respond(chol, M, *tau),
            inner=P * M,
            outer=rank * M + int(nested),
            budget=budget,
            start=self.first_level(u, chol, budget, largest),
            key=key,
            single=jnp.greater_equal(limit, jnp.finfo(jnp.float32).eps),
            rest=rest,
            largest=largest,
        )
        return without_difference(moments, chol) if nested else moments
