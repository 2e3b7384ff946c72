r"""The exact channels of noiseless attention: the posterior of the fields of an attention matrix.

Equations here [TCDKZ25; theory: deep-attention, Eqs. (1) to (38)]. With Z_ℓ (P_ℓ, M) the block of
layer ℓ and the link of channels/attention_link.py (h_ℓ, A_ℓ, B_ℓ):

    inversion, the last layer one tied head of rank one, u = h_L:
        log(y_ij/y_ii)/β = u_i (u_j - u_i) gives u up to one global sign
    channel:
        Z_out = Σ_{s=±1} ∫ dZ_1..dZ_{L-1} |det B_{L-1}|^{-1}
                N((Z_1, .., Z_{L-1}, s u B_{L-1}^{-ᵀ}); ω, V)
    rank two: h_L up to R in O(2), with two tokens up to a component c across as well [Eqs. (20)
    to (26)]; the sum over signs is an integral over R (and c), and |det B|^{-2} its Jacobian
    untied, rank one: h_L = (q, k) up to c x, x'/c + m 1, c of either sign [Eqs. (28) to (31)]

In whitened fields τ = chol(V)^{-1}(z - ω), the inner blocks are standard Gaussians t and the last
block is a residual r_s(t). The rotation and the scale are integrated at each t (orbits.py).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.channels import orbits
from jaxsmi.channels.attention_link import (
    Layer,
    attention_link,
    balanced,
    invert_attention,
    invert_untied_attention,
    last_fields,
    mixing_matrices,
    unmix,
    with_skip,
)
from jaxsmi.channels.base import AbstractChannel, ClosedFormChannel
from jaxsmi.channels.fibres import Fibre, FibreChannel, single_suffices, whitened_response
from jaxsmi.core.arrays import array_module, clamp_to_tiny
from jaxsmi.core.validate import check
from jaxsmi.numerics.refining import Integral, level_for_width
from jaxsmi.numerics.refining_sums import Branch

# empirical: slope of the last block in t, per distance between the two tokens of u
_SLOPE = 0.55


class AbstractAttentionChannel(AbstractChannel):
    """The link of noiseless attention, its labels and their inversion."""

    layers: tuple[Layer, ...] = eqx.field(static=True)
    skip: Array
    beta: Array
    pathwise: ClassVar[property] = property(lambda self: True)  # labels are smooth in the fields

    @property
    def visible_rank(self) -> int:
        """k = min(r, M - 1): a label determines k rows of h_L (r, M), up to O(r)."""
        return min(self.layers[-1].rank, self.tokens - 1)

    @property
    def constraints(self) -> int:
        """Number of combinations of the fields that a label fixes: u (k, M) up to O(k); untied, of
        rank one, the entries of a matrix q κᵀ with κ of mean zero."""
        k, M = self.visible_rank, self.tokens
        return k * M - k * (k - 1) // 2 if self.layers[-1].tied else 2 * M - 2

    def link(self, fields: Array) -> Array:
        """Return y = S_L(h_L)."""
        return attention_link(fields, self.layers, self.skip, self.beta)

    def check_labels(self, labels: Array) -> None:
        """Check that rows of y are probabilities, in float64."""
        M = self.tokens
        fits = labels.ndim == 3 and labels.shape[1:] == (M, M)
        check(fits, "labels", labels, f"an array of shape (N, {M}, {M})")
        allowed = "float64, by smi.setup() (a float32 softmax cannot be inverted)"
        check(labels.dtype == jnp.float64, "labels", labels.dtype.name, allowed)
        allowed = "positive attention weights (softmax weights must not underflow to zero)"
        xp = array_module(labels)
        y = xp.asarray(labels)
        check(xp.all(y > 0.0), "labels", labels, allowed)
        # a softmax of float64 sums to one within 1e-15; 1e-8 detects converted float32
        gap = xp.abs(xp.sum(y, -1) - 1.0)
        check(xp.all(gap < 1e-8), "labels", labels, "rows that sum to one")

    def observe(self, fields: Array, noise: Array) -> Array:
        """Return h_L itself, or the part that the label shows for two tokens in a plane: exact even
        if labels would underflow."""
        h = last_fields(fields, self.layers, self.skip, self.beta)
        if not self.layers[-1].tied:
            return balanced(h[0], h[1])
        if len(h) == 1:
            return h[0]
        return h if self.visible_rank == 2 else _along_the_line(h)

    def statistic(self, labels: Array) -> Array:
        """Invert labels to u (N, M), up to a sign for each sample; of rank two (N, 2, M), up to a
        rotation; untied, of rank one, (N, 2, M), up to a scale."""
        if not self.layers[-1].tied:
            return jax.vmap(lambda y: invert_untied_attention(y, self.beta))(labels)
        u = jax.vmap(lambda y: invert_attention(y, self.beta, self.visible_rank))(labels)
        hidden = self.layers[-1].rank - self.visible_rank
        if self.layers[-1].rank == 1:
            return u[:, 0]
        return jnp.concatenate([u, jnp.zeros((len(u), hidden, self.tokens), u.dtype)], axis=1)


def _along_the_line(h: Array) -> Array:
    """Return (v, 0) (2, 2), v the components along h_2 - h_1 of the fields h of two tokens in a
    plane: a label does not show the other component, which the tokens have in common."""
    difference = h[:, 1] - h[:, 0]
    v = difference @ h / jnp.sqrt(jnp.sum(difference**2))
    return jnp.stack([v, jnp.zeros_like(v)])


class SingleAttentionChannel(ClosedFormChannel, AbstractAttentionChannel):
    """One attention layer of rank one: a label gives the fields up to a sign,
    Z_out = Σ_s Π_m N(s u_m; ω_m, V)."""

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Return log Σ_{s=±1} Π_m N(s u_m; ω_m, V)."""
        v = V[0, 0]
        # the Jacobian of h -> y is the same for both signs, and drops out of g
        exponents = [-0.5 * jnp.sum((s * statistic - omega[0]) ** 2) / v for s in (1.0, -1.0)]
        return jnp.logaddexp(*exponents) - 0.5 * self.tokens * jnp.log(2 * jnp.pi * v)


class DeepAttentionChannel(FibreChannel, AbstractAttentionChannel):
    """The exact noiseless channel of attention layers, the last one head, tied of rank one or two,
    or untied of rank one, the others any.

    The open variables are the inner blocks Z_1..Z_{L-1} (M Σ_{ℓ<L} P_ℓ of them); given these, the
    branches are the last blocks that give the label (words: channels/fibres.py). Two layers of two
    tokens cost about 20 ns × 1024 nodes at the first level on one CPU core; a last layer of rank
    two costs some thousand times as much, its angle being integrated at each node (a single one of
    rank two below a millisecond a sample).
    """

    @property
    def inner(self) -> int:
        """Number of rows of the inner layers."""
        return self.indices - self.layers[-1].indices

    @property
    def open_variables(self) -> int:
        """Number of fields of the inner layers."""
        return self.inner * self.tokens

    def first_level(self, u: Array, root: Array) -> Array:
        """Choose the first level of grids by the narrowest feature in t: the deviation of the last
        block given the inner ones, in units of the widest inner field."""
        P = self.inner
        level = lambda width: level_for_width(self.open_variables, self.budget, width)
        width = jnp.min(jnp.diagonal(root)[P:]) / jnp.max(jnp.diagonal(root)[:P])
        if self.tokens != 2 or len(self.layers) != 2 or self.layers[-1] != Layer():
            return level(width)
        # one level per sample for two layers and two tokens: the last block moves with t in
        # proportion to the distance between the tokens of u [theory: deep-attention, Eq. (18)]
        apart = jnp.abs(u[:, 0, 0] - u[:, 0, 1])
        widths = width / clamp_to_tiny(_SLOPE * apart)
        # few samples at a level of their own leave most of a block empty
        return jnp.minimum(level(widths), level(width) + 2)

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """Return the integrals for u (N, M) or (N, 2, M)."""
        P, M, last = self.inner, self.tokens, self.layers[-1]
        rank = last.indices
        nested = rank > 1
        law = orbits.rotations if last.tied else orbits.scales
        u = statistic.reshape(-1, rank, M)

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
            u, w = block  # (S, r, M), (S, P, M)
            L, skip, beta = (x.astype(t.dtype) for x in (root, self.skip, self.beta))
            z, centre = shifted_rows(w, L, t, P)
            mixing = functools.partial(with_skip, beta=beta)
            matrices = mixing_matrices(z, self.layers[:-1], skip, mixing)
            # Z_L = R u B^{-ᵀ}, that is v = A_1^{-1} .. A_{L-1}^{-1} u, row by row
            v, inverse_det = unmix(matrices, u.T[..., None])  # M arrays (r, S, 1)
            # each of the r rows of the last block is divided by B
            jacobian = inverse_det**rank
            if nested:
                return jacobian, law(jnp.stack(v, axis=1), centre, L[P:, P:], inside=P > 0)
            return jacobian, _signs(v, centre, L[P:, P:])

        log_norm = M * (jnp.sum(jnp.log(jnp.diagonal(root)[P:])) + 0.5 * rank * jnp.log(2 * jnp.pi))
        if self.visible_rank < rank or not last.tied:
            # the component across, common to the tokens: B 1 = Π(1 + c_ℓ) 1
            log_norm = log_norm - jnp.sum(jnp.log1p(self.skip))
        integral = Integral(
            integrand,
            (u, omega),
            whitened_response(root, M, nested),
            inner=self.open_variables,
            outer=rank * M + int(nested),
            start=self.first_level(u, root) if P else None,
            single=single_suffices(self.budget, jnp.min(jnp.diagonal(root)[P:])),
        )
        return Fibre(integral, log_norm, nested)


def shifted_rows(omega: Array, root: Array, t: Array, free: int) -> tuple[Array, Array]:
    """Return the fields (free, M, S, n) of the first rows at whitened nodes t (n, free M), and the
    means (P - free, M, S, n) of the others given them; omega (S, P, M)."""
    rows = t.T.reshape(free, omega.shape[2], len(t))
    # a sum, not a contraction: which would round in single precision on some GPUs
    moved = lambda w, L: (
        jnp.moveaxis(w, 0, -1)[..., None] + jnp.sum(L[:, :, None, None] * rows, axis=1)[:, :, None]
    )
    # two arrays, not parts of one: XLA on a CPU would write that to memory
    return moved(omega[:, :free], root[:free, :free]), moved(omega[:, free:], root[free:, :free])


def _signs(block: Sequence[Array], centre: Array, root: Array) -> list[Branch]:
    """Return the branches of both signs of a last block of rank one, M arrays (1, S, n); `centre`
    is its mean given the inner fields, `root` (1, 1) its Λ."""
    signs = []
    for sign in (1.0, -1.0):
        r = [(sign * x[0] - c) / root[0, 0] for x, c in zip(block, centre[0], strict=True)]
        signs.append(Branch(-0.5 * functools.reduce(operator.add, [x * x for x in r]), r))
    return signs
