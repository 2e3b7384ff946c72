r"""Channels of labels that depend on the signs of a few fields alone: committees of signs.

Equations here, s ∈ {±1}^P the signs of the fields (M = 1), v_s the label of each orthant (ω, V as
in channels/base.py):

    Z_out = Σ_s p(y|v_s) P_s,   P_s = P(s_1 z_1 > 0, .., s_P z_P > 0),   z ~ N(ω, V)

    P = 1, 2:  Φ(s ω/√V), and quadrants to rounding (`signs.log_quadrants`)
    P = 3:     Plackett's identity, integrated along V(λ) = diag V + λ (V - diag V):

        P_s = Π_i Φ(s_i ω_i/√V_ii)
            + ∫_0^1 dλ Σ_{i<j} s_i s_j V_ij N_2(z_i = z_j = 0) P(s_k z_k > 0 | z_i = z_j = 0)

    the opposite label with probability p:  p(y|v_s) = (1 - p) [y = v_s] + p [y = -v_s]

Source: [AMBKMZ18], [P54]; [theory: multi-index, Eq. (30)].
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr, logsumexp, ndtr
from jaxtyping import Array

from jaxsmi.channels.base import (
    LevelsChannel,
    Posterior,
    batch_size,
    check_label_shape,
    check_outcomes,
    exact_posterior,
)
from jaxsmi.channels.signs import log_quadrants, pair_at_zero, plackett_nodes
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.numerics.implicit import numbers_of
from jaxsmi.numerics.refining_rules import no_weight

# random fields at which a label must be that of its orthant, each also at a half, a quarter .. of
# its size: those of size one miss a jump at 0.07 in place of 0 in a quarter of all cases
_PROBES, _SIZES = 64, 2.0 ** -np.arange(10)
MOST_FIELDS = 3  # more fields have neither a closed form nor a sum in one variable


def sign_patterns(indices: int) -> np.ndarray:
    """All signs (2^P, P), the last one changing fastest, + before -."""
    order = np.arange(2**indices)[:, None] >> np.arange(indices)[::-1]
    return 1.0 - 2.0 * (order & 1)


class OrthantChannel(LevelsChannel):
    """y = v_s + √Δ ξ, s the signs of the fields (P = 1, 2 or 3, M = 1), any V; or ±v_s, the minus
    with probability p.

    For three fields with V far from diagonal, labels of probability below 1e-15 lose their digits.

    Args:
        values: v_s (2^P,), in the order of `sign_patterns`.
        noise: Δ > 0. None: no noise.
        flip: p in (0, 1/2], of values that come with both signs, without noise. None: no label is
            flipped.
        distinct: The values without repetitions (K,).
    """

    values: Array
    distinct: Array
    noise: Array | None = None
    flip: Array | None = None
    indices: int = eqx.field(static=True, kw_only=True)
    tokens: int = eqx.field(static=True, default=1, kw_only=True)

    @property
    def outcomes(self) -> Array | None:
        """The values, where there is no noise."""
        return self.distinct if self.noise is None else None

    @property
    def pathwise(self) -> bool:
        """True for labels that are summed over. With noise theory of learners and predictions draw
        them, and they jump."""
        return self.noise is None

    @property
    def regular(self) -> tuple[bool, list[bool]]:
        """Everywhere: averages of posteriors sum over the levels, with noise too."""
        return True, [True] * len(numbers_of(self)[0])

    @property
    def sharp(self) -> Array:
        """True: noise and flips keep the jumps."""
        return jnp.asarray(True)

    def levels_of(self, omega: Array, V: Array, noise: Array) -> tuple[Array, Array]:
        """The distinct values with noise, and their log-probabilities."""
        assert self.noise is not None
        labels = self.distinct + jnp.sqrt(self.noise) * noise
        of_value = self.distinct[:, None] == self.values  # (levels, orthants)

        def odds(w: Array) -> Array:
            masked = jnp.where(of_value, log_orthants(w, V), no_weight(w.dtype))
            return logsumexp(masked, axis=1)

        return labels, jax.vmap(odds)(omega[:, :, 0])

    @property
    def noise_size(self) -> int:
        """One normal if there is noise or a flip, else none."""
        return 0 if self.noise is None and self.flip is None else 1

    def link(self, fields: Array) -> Array:
        """Return v_s, with sign 0 = 1."""
        place = jnp.asarray(2 ** np.arange(self.indices)[::-1])
        return self.values[jnp.sum(jnp.where(fields[:, 0] < 0.0, place, 0))]

    def label(self, fields: Array, noise: Array) -> Array:
        """Return v_s + √Δ ξ, or -v_s if Φ(ξ) < p."""
        clean = self.link(fields)
        if self.flip is not None:
            return jnp.where(ndtr(noise[0]) < self.flip, -clean, clean)
        return clean if self.noise is None else clean + jnp.sqrt(self.noise) * noise[0]

    def check_labels(self, labels: Array) -> None:
        """Check that labels are numbers, without noise some of the orthants'."""
        check_label_shape(labels, ())
        if self.noise is None:
            known = jnp.any(labels[:, None] == self.values, axis=1)
            check_outcomes(labels, self.distinct, known)

    def log_likelihood(self, label: Array) -> Array:
        """log p(y|v_s) (2^P,)."""
        apart = label - self.values
        if self.noise is not None:
            return -0.5 * apart**2 / self.noise - 0.5 * jnp.log(2.0 * jnp.pi * self.noise)
        same, never = apart == 0.0, no_weight(apart.dtype)
        if self.flip is None:
            return jnp.where(same, 0.0, never)
        # zero is its own opposite
        opposite = label == -self.values
        flipped = jnp.where(opposite, jnp.log(self.flip), never)
        return jnp.where(same, jnp.where(opposite, 0.0, jnp.log1p(-self.flip)), flipped)

    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log of the sum over orthants."""
        return logsumexp(self.log_likelihood(statistic) + log_orthants(omega[:, 0], V))

    def respond_to_each(self, labels: Array, omega: Array, V: Array) -> Posterior:
        """Means over orthants r_s = p(y|v_s) P_s/Z_out: g = E ∂ log P_s,
        ∂g = E [∂² log P_s + (∂ log P_s)²] - g²."""
        of_orthants = lambda w: log_orthants(w, V)

        def one(sample: tuple[Array, Array]) -> tuple[Array, Array, Array]:
            y, w = sample
            log_P, slope = of_orthants(w), jax.jacfwd(of_orthants)(w)
            second = jax.jacfwd(jax.jacfwd(of_orthants))(w) + slope[:, :, None] * slope[:, None]
            terms = jax.vmap(self.log_likelihood)(y) + log_P
            share = jax.nn.softmax(terms, axis=1)
            g = share @ slope
            dg = jnp.einsum("ks,spq->kpq", share, second) - g[:, :, None] * g[:, None]
            return logsumexp(terms, axis=1), g[:, :, None], dg[:, :, None, :, None]

        each = lax.map(one, (labels, omega[:, :, 0]), batch_size=batch_size(omega))
        return exact_posterior(*(x.reshape(-1, *x.shape[2:]) for x in each))


def orthant_channel(
    values: np.ndarray, noise: Array | None, indices: int, flip: Array | None = None
) -> OrthantChannel:
    """The channel of labels v_s (2^P,), with noise Δ, flipped with probability p, or neither."""
    distinct = jnp.asarray(np.unique(np.asarray(values)))
    return OrthantChannel(jnp.asarray(values), distinct, noise, flip, indices=indices)


def values_on_orthants(
    law: Callable[[Array], Array], indices: int, tokens: int
) -> np.ndarray | None:
    """v_s (2^P,) of a label that depends on the signs of its fields alone, P <= 3, M = 1; None of
    another one, or of one that is traced. It is found at some random fields."""
    if indices > MOST_FIELDS or tokens != 1 or not concrete(law):
        return None
    fields = np.random.default_rng(2).standard_normal((_PROBES, indices, 1))
    fields = np.concatenate([size * fields for size in _SIZES])
    with jax.ensure_compile_time_eval():
        both = jnp.asarray(np.concatenate([sign_patterns(indices)[:, :, None], fields]))
        labels = np.asarray(jax.jit(jax.vmap(law))(both))
    if labels.shape != (len(both),):
        return None
    values = labels[: 2**indices]
    order = 2 ** np.arange(indices)[::-1]
    same = labels[2**indices :] == values[(fields[:, :, 0] < 0.0) @ order]
    # not jnp.asarray, which would trace them inside jit
    return np.asarray(values, theory_dtype()) if np.all(same) and np.ptp(values) else None


def log_orthants(w: Array, V: Array) -> Array:
    """log P_s (2^P,) of z ~ N(w, V), P = 1, 2 or 3."""
    signs = sign_patterns(len(w))
    scale = jnp.sqrt(jnp.diagonal(V))
    x = signs * (w / scale)
    if len(w) == 1:
        return log_ndtr(x[:, 0])
    if len(w) == 2:
        rho = V[0, 1] / (scale[0] * scale[1])
        # each integral is that of two opposite quadrants, and in the program once: (+, +) with
        # (-, -), (+, -) with (-, +)
        pairs = jax.vmap(log_quadrants)(x[:2, 0], x[:2, 1], jnp.stack([rho, -rho]))
        return jnp.concatenate([pairs[:, 0], pairs[::-1, 1]])
    total = jnp.exp(jnp.sum(log_ndtr(x), axis=1))
    levels, weights = plackett_nodes()
    for i, j, k in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        density, mean, variance = pair_at_zero(w, V, levels, i, j, k)
        # both signs of the third field, shared by the orthants
        beyond = ndtr(np.array([[1.0], [-1.0]]) * mean / jnp.sqrt(variance))
        rise = jnp.sum(weights * density * V[i, j] * beyond, axis=1)
        total = total + signs[:, i] * signs[:, j] * rise[np.where(signs[:, k] > 0.0, 0, 1)]
    return jnp.log(jnp.maximum(total, 1e-100))
