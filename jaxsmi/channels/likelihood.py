r"""The channel of any JAX link with a likelihood, integrated numerically.

Equation here [theory: multi-index, section 3]: Z_out(y; ω, V) = ∫ Π_m N(z_m; ω_m, V) p(y|z) dz over
the P·M fields, z = ω + V^{1/2} t, with p(y|z) = N(y; link(z), Δ I) for Gaussian label noise, or any
log p(y|z) the user gives. Up to three fields: refined trapezoidal sums; more: randomised nets; both
through `numerics.refining.self_refining_moments`, which reports its error.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel, Posterior, as_posterior, unwhiten
from jaxsmi.channels.jumps import continuous
from jaxsmi.core.checks import check
from jaxsmi.numerics.refining import Budget, level_for_width, self_refining_moments

__all__ = ["IntegratedChannel"]


class IntegratedChannel(AbstractChannel):
    """p(y|z) = N(y; link(z), Δ) or exp(log_likelihood(y, z)) for any JAX link, integrated over all
    P·M fields."""

    law: Callable[[Array], Array]
    log_likelihood: Callable[[Array, Array], Array] | None
    noise: Array
    budget: Budget
    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    label_shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        law: Callable[[Array], Array],
        indices: int,
        tokens: int,
        noise: Array,
        budget: Budget,
        log_likelihood: Callable[[Array, Array], Array] | None = None,
    ):
        self.law = law
        self.indices = indices
        self.tokens = tokens
        self.noise = noise
        self.budget = budget
        self.log_likelihood = log_likelihood
        self.label_shape = jax.eval_shape(law, jax.ShapeDtypeStruct((indices, tokens), float)).shape

    @property
    def smooth(self) -> Array:
        """Whether the link is continuous, by looking (`jumps`)."""
        return continuous(self.law, self.indices, self.tokens)

    @property
    def noise_size(self) -> int:
        """One normal for each entry of the label."""
        return int(np.prod(self.label_shape))

    @property
    def drawable(self) -> bool:
        """Unless the likelihood is a user's."""
        return self.log_likelihood is None

    @property
    def tolerance(self) -> Array:
        """The tolerance of the integral."""
        return self.budget.tolerance

    def link(self, fields: Array) -> Array:
        """link(z)."""
        return self.law(fields)

    def label(self, fields: Array, noise: Array) -> Array:
        """link(z) + √Δ ξ. A user's likelihood has no sampler, and is refused rather than sampled
        from another law."""
        if self.log_likelihood is not None:
            raise ValueError(
                "model: got a log_likelihood=, which says how likely a label is but not how to "
                "draw one; sampling and state evolution are not possible. Allowed: noise= for "
                "Gaussian label noise; gamp on your own data."
            )
        return self.link(fields) + jnp.sqrt(self.noise) * noise.reshape(self.label_shape)

    def check_labels(self, labels: Array) -> None:
        """Finite numbers of the link's output shape."""
        allowed = f"rows of shape {self.label_shape}, as the link's"
        check(labels.shape[1:] == self.label_shape, "labels", labels, allowed)
        check(jnp.all(jnp.isfinite(labels)), "labels", labels, "finite numbers")

    def statistic(self, labels: Array) -> Array:
        """The labels themselves."""
        return labels

    def log_probability(self, y: Array, fields: Array) -> Array:
        """log p(y|z) of one sample."""
        if self.log_likelihood is not None:
            return self.log_likelihood(y, fields)
        squares = jnp.sum((y - self.link(fields)) ** 2)
        log_norm = 0.5 * self.noise_size * jnp.log(2 * jnp.pi * self.noise)
        return -0.5 * squares / self.noise - log_norm

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Batch posterior from labels (N, ...), omega (N, P, M), V (P, P)."""
        P = self.indices
        M = self.tokens
        L = jnp.linalg.cholesky(V)

        def integrand(
            block: tuple[Array, Array], t: Array
        ) -> tuple[Array, list[tuple[Array, list[Array]]]]:
            labels, w = block
            deviation = jnp.einsum("pq,nqm->npm", L, t.reshape(-1, P, M))
            each_node = jax.vmap(self.log_probability, in_axes=(None, 0))
            value = jax.vmap(lambda y, o: each_node(y, o + deviation))(labels, w)
            return jnp.ones_like(value), [(value, [])]

        # noise resolves the fields to about √Δ: the narrowest feature in t
        width = jnp.sqrt(self.noise / (self.noise + jnp.max(jnp.diagonal(V))))
        start = level_for_width(P * M, self.budget, width) if self.log_likelihood is None else None
        moments = self_refining_moments(
            integrand,
            (statistic, omega),
            lambda *tau: unwhiten(L, M, *tau),
            inner=P * M,
            outer=0,
            budget=self.budget,
            start=start,
            analytic=False,
            key=key,
        )
        return as_posterior(moments, omega.shape)
