r"""The exact channel of one attention layer of two tied heads between two tokens.

Equations here [theory: deep-attention, Eqs. (44), (45)], z and w in R² the fields of the heads,
y = (σ_β(zᵀz) + σ_β(wᵀw))/2, p and q what the tokens keep for themselves:

    given z   p_w = 2 y_11 - p_z,  q_w = 2 y_22 - q_z,
              w = ±(log p_w/(1-p_w), -log q_w/(1-q_w))/(β δ), δ = |w_1 - w_2|
    J_h = |∂(p, q)/∂h| = 2 β² (h_1 - h_2)² p(1-p) q(1-q)
    Z_out = 4 Σ_± ∫ dz N((z, ±w); ω, V)/J_w

where both are probabilities, of odds whose product exceeds one. Nodes are drawn in two ways, z from
its Gaussian or w from its own, each with the weight

    N((z, w); ω, V)/(N(z) J_w + N(w) J_z),

which is large at neither where tokens of one head agree.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.attention import AbstractAttentionChannel
from jaxsmi.channels.attention_link import Layer, total
from jaxsmi.channels.base import Posterior, as_posterior, unwhiten
from jaxsmi.numerics.refining import Budget, self_refining_moments
from jaxsmi.numerics.refining_rules import no_weight

__all__ = ["TwoHeadsChannel"]


class TwoHeadsChannel(AbstractAttentionChannel):
    """Two tokens, two tied heads of rank one, no noise (module docstring): an integral over the
    fields of one head, at which those of the other are known up to a sign."""

    beta: Array
    budget: Budget
    skip: Array
    layers: tuple[Layer, ...] = eqx.field(static=True)
    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    def __init__(self, beta: Array, budget: Budget):
        self.beta = beta
        self.budget = budget
        self.skip = jnp.zeros((0,))
        self.layers = (Layer(heads=2),)
        self.indices = 2
        self.tokens = 2

    @staticmethod
    def fits(tokens: int, layers: tuple[Layer, ...]) -> bool:
        """Whether tokens and layers are such."""
        return tokens == 2 and layers == (Layer(heads=2),)

    @property
    def constraints(self) -> int:
        """The two rows of a label."""
        return 2

    @property
    def tolerance(self) -> Array:
        """The tolerance of the integral."""
        return self.budget.tolerance

    def observe(self, fields: Array, noise: Array) -> Array:
        """The label itself."""
        return self.label(fields, noise)

    def statistic(self, labels: Array) -> Array:
        """The labels themselves."""
        return labels

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Batch posterior from y (N, 2, 2), omega (N, 2, 2), V (2, 2)."""
        del key
        chol = jnp.linalg.cholesky(V)

        def integrand(
            block: tuple[Array, Array], t: Array
        ) -> tuple[Array, list[tuple[Array, list[Array]]]]:
            branches = [way for drawn in (0, 1) for way in self._ways(*block, t, chol, drawn)]
            return jnp.ones_like(branches[0][0]), branches

        moments = self_refining_moments(
            integrand,
            (statistic, omega),
            lambda *tau: unwhiten(chol, 2, *tau),
            inner=2,
            outer=4,
            shared=0,
            budget=self.budget,
            analytic=False,
        )
        post = as_posterior(moments, omega.shape)
        log_norm = jnp.log(2.0 * jnp.pi) - jnp.log(4.0)
        return eqx.tree_at(lambda p: p.log_partition, post, post.log_partition - log_norm)

    def _ways(
        self, y: Array, omega: Array, t: Array, chol: Array, drawn: int
    ) -> list[tuple[Array, list[Array]]]:
        """Log-weight and whitened fields at nodes t (n, 2) of the head that is drawn, for both
        signs of the other, for labels (S, 2, 2)."""
        variances = jnp.sum(chol * chol, axis=1)
        mean = [[omega[:, p, m, None] for m in range(2)] for p in range(2)]
        z = [mean[drawn][m] + jnp.sqrt(variances[drawn]) * t[:, m] for m in range(2)]
        v, (log_drawn, log_other), inside = self._other(y, z)
        log_z = -0.5 * jnp.sum(t * t, axis=1) - jnp.log(variances[drawn])
        ways = []
        for side in (1.0, -1.0):
            moved = [side * x for x in v]
            one, two = (z, moved) if drawn == 0 else (moved, z)
            first = [(one[m] - mean[0][m]) / chol[0, 0] for m in range(2)]
            rest = [(two[m] - mean[1][m] - chol[1, 0] * first[m]) / chol[1, 1] for m in range(2)]
            d = [moved[m] - mean[1 - drawn][m] for m in range(2)]
            variance = variances[1 - drawn]
            log_v = -0.5 * (d[0] ** 2 + d[1] ** 2) / variance - jnp.log(variance)
            log_both = -0.5 * total(x * x for x in [*first, *rest])
            log_both = log_both - 2.0 * jnp.log(chol[0, 0] * chol[1, 1])
            log_weight = log_both - jnp.logaddexp(log_z + log_other, log_v + log_drawn)
            residuals = [jnp.where(inside, x, 0.0) for x in [*first, *rest]]
            ways.append((jnp.where(inside, log_weight, no_weight(t.dtype)), residuals))
        return ways

    def _other(self, y: Array, z: list[Array]) -> tuple[list[Array], tuple[Array, Array], Array]:
        """Fields of the other head (up to a sign), log J of both heads, and where there is one, for
        labels (S, 2, 2) and fields z (S, n) of two tokens."""
        beta = self.beta
        gap = z[0] - z[1]
        exponents = (beta * z[0] * gap, -beta * z[1] * gap)
        keep = [jax.nn.sigmoid(x) for x in exponents]
        leave = [jax.nn.sigmoid(-x) for x in exponents]
        kept = [2.0 * y[:, m, m, None] - keep[m] for m in range(2)]
        left = [2.0 * y[:, m, 1 - m, None] - leave[m] for m in range(2)]
        tiny = jnp.finfo(gap.dtype).tiny
        inside = jnp.ones(gap.shape, bool)
        for x in [*kept, *left]:
            inside = inside & (x > tiny)
        kept, left = ([jnp.where(inside, x, 0.5) for x in each] for each in (kept, left))
        logits = [jnp.log(a / b) for a, b in zip(kept, left, strict=True)]
        square = logits[0] + logits[1]  # β δ²: where it is rounding alone there is no weight
        inside = inside & (square > 64.0 * jnp.finfo(gap.dtype).eps)
        delta = jnp.sqrt(jnp.where(inside, square, 1.0) / beta)
        other = [logits[0] / (beta * delta), -logits[1] / (beta * delta)]
        slopes = [-jax.nn.softplus(x) - jax.nn.softplus(-x) for x in exponents]
        log_size = lambda d: jnp.log(2.0 * beta**2) + 2.0 * jnp.log(jnp.maximum(d, 1e-150))
        jacobians = (
            log_size(jnp.abs(gap)) + slopes[0] + slopes[1],
            log_size(delta) + total(jnp.log(x) for x in [*kept, *left]),
        )
        return other, jacobians, inside
