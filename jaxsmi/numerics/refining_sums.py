"""Sums over the nodes of a rule, and the moments that they make.

Weights are relative to the largest logarithm so far, chunk of nodes by chunk of nodes: nothing
overflows, and nothing is read twice [theory: numerics, section 3].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.refining_rules import Nodes, no_weight

__all__ = ["Branch", "Columns", "Sums"]


class Branch(NamedTuple):
    """One copy of the integrand: ℓ (S, n), and the residuals r_1 .. r_outer (S, n).

    Where a copy is itself an integral, residuals are its means, and `products` its second moments
    ⟨r_m r_n⟩ (S, n), m <= n.
    """

    log_weight: Array
    residuals: Sequence[Array]
    products: Mapping[tuple[int, int], Array] | None = None

    def product(self, m: int, n: int) -> Array:
        """⟨r_m r_n⟩."""
        if self.products is None:
            return self.residuals[m] * self.residuals[n]
        return self.products[m, n]


class Sums(NamedTuple):
    """Sums `values` (S, columns) over nodes, relative to the largest log-weight `top` (S,)."""

    top: Array
    values: Array


class Columns(eqx.Module):
    """The sums over nodes that make the moments: of w times 1, t and t tᵀ, r and r t for each
    residual, r r for each pair of residuals, the weight of the tail; and the sum of w²."""

    inner: int = eqx.field(static=True)
    outer: int = eqx.field(static=True)

    @property
    def inner_pairs(self) -> list[tuple[int, int]]:
        """Pairs of inner variables, i <= j."""
        return [(i, j) for i in range(self.inner) for j in range(i, self.inner)]

    @property
    def outer_pairs(self) -> list[tuple[int, int]]:
        """Pairs of residuals, m <= n."""
        return [(m, n) for m in range(self.outer) for n in range(m, self.outer)]

    @property
    def polynomial(self) -> int:
        """Number of columns that are sums of w × (1, t, t tᵀ), which come first."""
        return 1 + self.inner + len(self.inner_pairs)

    @property
    def count(self) -> int:
        """Number of columns; the last but one belongs to the tail, the last to w²."""
        return self.polynomial + self.outer * (1 + self.inner) + len(self.outer_pairs) + 2

    def none(self, samples: int) -> Sums:
        """Sums over no nodes."""
        dtype = theory_dtype()
        top = jnp.full((samples,), no_weight(dtype), dtype)
        return Sums(top, jnp.zeros((samples, self.count), dtype))

    def over(self, nodes: Nodes, factor: Array, branches: Sequence[Branch]) -> Sums:
        """The sums over some nodes, from the factor and the branches of the integrand there."""
        t, log_node, tail = nodes
        t = t[:, : self.inner]
        logs = [branch.log_weight + log_node for branch in branches]
        top = jnp.max(jnp.stack([jnp.max(ell, axis=1) for ell in logs]), axis=0)
        top = lax.stop_gradient(jnp.maximum(top, no_weight(top.dtype) / 2))
        weights = [factor * jnp.exp(ell - top[:, None]) for ell in logs]

        def total(terms: list[Array], features: list[Array]) -> Array:
            columns = jnp.stack(features, axis=1)
            return jnp.dot(sum(terms[1:], terms[0]), columns, precision="highest")

        one = jnp.ones_like(tail)
        pairs = list(zip(weights, branches, strict=True))
        sums = [total(weights, [one, *t.T, *(t[:, i] * t[:, j] for i, j in self.inner_pairs)])]
        for m in range(self.outer):
            sums.append(total([w * b.residuals[m] for w, b in pairs], [one, *t.T]))
        for m, n in self.outer_pairs:
            sums.append(total([w * b.product(m, n) for w, b in pairs], [one]))
        sums.append(total(weights, [tail]))
        squares = jnp.sum(jnp.stack([jnp.sum(w * w, axis=1) for w in weights]), axis=0)
        values = jnp.concatenate([*sums, squares[:, None]], axis=1)
        dtype = theory_dtype()
        return Sums(top.astype(dtype), values.astype(dtype))

    def rescaled(self, sums: Sums, top: Array) -> Array:
        """The values of sums relative to another log-weight; those of w² scale twice."""
        is_square = jnp.arange(self.count) == self.count - 1
        scale = jnp.exp(sums.top - top)[:, None]
        return sums.values * jnp.where(is_square, scale * scale, scale)

    def merged(self, one: Sums, two: Sums) -> Sums:
        """Sums over the nodes of both."""
        top = jnp.maximum(one.top, two.top)
        return Sums(top, self.rescaled(one, top) + self.rescaled(two, top))

    def moments(self, values: Array) -> tuple[Array, Array]:
        """Mean (.., K) and covariance (.., K, K) of τ from sums (.., columns)."""
        inner = self.inner
        outer = self.outer
        K = self.inner + self.outer
        mass = values[..., 0]
        mean = [values[..., 1 + i] for i in range(inner)]
        second = {}
        for k, (i, j) in enumerate(self.inner_pairs):
            second[i, j] = values[..., 1 + inner + k]
        offset = self.polynomial
        for m in range(outer):
            mean.append(values[..., offset])
            second.update({(i, inner + m): values[..., offset + 1 + i] for i in range(inner)})
            offset += 1 + inner
        for k, (m, n) in enumerate(self.outer_pairs):
            second[inner + m, inner + n] = values[..., offset + k]
        mean = jnp.stack(mean, axis=-1) / mass[..., None]
        entries = [second[min(i, j), max(i, j)] for i in range(K) for j in range(K)]
        second = jnp.stack(entries, axis=-1).reshape(*mass.shape, K, K) / mass[..., None, None]
        return mean, second - mean[..., :, None] * mean[..., None, :]
