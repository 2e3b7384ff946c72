"""The error of a sum inside an integral: what a label leaves open is integrated at each node of the
inner fields, by a rule of its own.

A rule with fewer nodes, half or two thirds of them, is compared with it at each node: with d the
difference of mass and of means of residuals, d^{3/2} is the error of the finer one where d < 1, as
of grids [theory: numerics, Eq. (4)]. Its mean over the inner fields, one more residual, bounds the
error of the whitened means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from jaxsmi.channels.base import unwhiten
from jaxsmi.numerics.refining import Moments
from jaxsmi.numerics.refining_sums import Branch

__all__ = ["unwhitened", "with_difference", "without_difference"]

_SIZE = 4.0  # |τ_i| + |τ_j|, by which an error of the means is one of the second moments


def with_difference(
    log_weight: Array,
    means: Sequence[Array],
    products: Mapping[tuple[int, int], Array],
    difference: Array,
) -> Branch:
    """A copy that is an integral, with the error of its rule as one residual more; `difference` is
    that from a rule with fewer nodes."""
    size = len(means)
    error = jnp.where(difference < 1.0, difference**1.5, difference)
    none = jnp.zeros_like(error)
    rest = {(i, size): none for i in range(size + 1)}
    return Branch(log_weight, [*means, error], {**products, **rest})


def unwhitened(root: Array, tokens: int, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """g (S, P·M + 1) and ∂g of moments whose last component is an error: it stays the last."""
    g, dg = unwhiten(root, tokens, mean[:, :-1], covariance[:, :-1, :-1])
    return jnp.concatenate([g.reshape(len(g), -1), mean[:, -1:]], axis=1), dg


def without_difference(moments: Moments, root: Array) -> Moments:
    """Moments of `unwhitened`, whose errors include that of the rule inside."""
    g = moments.g[..., :-1]
    inverse = solve_triangular(root, jnp.eye(len(root), dtype=root.dtype), lower=True)
    inverse = jnp.max(jnp.sum(jnp.abs(inverse), axis=0))
    relative = lambda x: 1.0 + jnp.max(jnp.abs(x.reshape(len(x), -1)), axis=1)
    off = inverse * moments.g[..., -1]
    off = jnp.where(jnp.isfinite(off), off, jnp.inf)
    values = (
        g,
        moments.error + off / relative(g),
        moments.dg_error + _SIZE * inverse * off / relative(moments.dg),
    )
    moments = eqx.tree_at(lambda m: (m.g, m.error, m.dg_error), moments, values)
    if moments.halves is None:
        return moments
    halves = (moments.halves[0][..., :-1], moments.halves[1])
    return eqx.tree_at(lambda m: m.halves, moments, halves)
