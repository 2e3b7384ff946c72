r"""Channels that integrate over the fields that give a label.

Words here: the fibre of a label is the set of fields that give it; its open variables t are the
coordinates along it, which the label does not fix; a branch s is one of the discrete solutions at
given t (signs, mirror images). The statistic of a label is the function of it that `respond` takes,
and a level is a number of nodes in a sequence of rules, from few to many.

Equations here [theory: numerics, Eqs. (10), (11)]; L Lᵀ = V, τ = L^{-1}(z - ω) the whitened fields:

    Z_out = e^{-log_norm} Σ_s ∫ φ(t) f(t) e^{ℓ_s(t)} dt,    τ = (t, r_s(t)) on the fibre
    g  = L^{-ᵀ} ⟨τ⟩,      ∂g = L^{-ᵀ} (Cov τ - I) L^{-1}

A channel says how many variables t are open, and gives weights and residuals r_s at their nodes
(`fibre`). Residuals stay right when V goes to zero, where a density in z would not.

A nested branch is itself an integral, done by a rule of its own at each node of t. A rule with
fewer nodes, half or two thirds of them, is compared with it at each node: with d the difference of
mass and of means of residuals, d^{3/2} is the error of the finer one if d < 1, as of grids [theory:
numerics, Eq. (4)]. Its mean over t, one more residual, bounds the error of the whitened means.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from jaxsmi.channels.base import AbstractChannel, Key, Posterior
from jaxsmi.core.arrays import PyTree
from jaxsmi.numerics.refining import Budget, FieldMoments, Integral, Respond, self_refining_moments
from jaxsmi.numerics.refining_rules import Nodes
from jaxsmi.numerics.refining_sums import Branch, moments_of, sums_over

# |τ_i| + |τ_j|, two deviations each: factor from an error of the means to one of second moments
_MAX_TAU = 4.0
_BLOCK_SIZE = 256  # samples at once, if all integrals are nested: some 100 MB


class Fibre(NamedTuple):
    """Integrals over the fibres of a batch of labels, the logarithm of the norm that they are
    divided by, and `nested`: branches are integrals, with their error as last residual."""

    integral: Integral
    log_norm: Array | float
    nested: bool = False


class FibreChannel(AbstractChannel):
    """A channel whose posterior is an integral over the fibre of a label (module docstring)."""

    budget: Budget

    @property
    @abc.abstractmethod
    def open_variables(self) -> int:
        """Number of variables t that a label leaves open."""

    @abc.abstractmethod
    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """Return the integrals for statistic (N, ...), omega (N, P, M) and the lower triangular
        root of V (P, P)."""

    @property
    def tolerance(self) -> Array:
        """Error of g that the integral aims at."""
        return self.budget.tolerance

    @property
    def random_nodes(self) -> bool:
        """True if the open variables are more than a grid can cover."""
        return not self.budget.grid_fits(self.open_variables)

    def partial(self, share: Array) -> FibreChannel:
        """Return the channel that computes the first `share` of a batch."""
        budget = dataclasses.replace(self.budget, share=share)
        return eqx.tree_at(lambda c: c.budget, self, budget)

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Compute the posterior of a batch: statistic (N, ...), omega (N, P, M), V (P, P)."""
        # triangular, so that the first whitened rows, the nodes t, are fields of the first
        # layers alone
        root = jnp.linalg.cholesky(V)
        fibre = self.fibre(statistic, omega, root)
        if self.open_variables:
            moments = self_refining_moments(fibre.integral, self.budget, key)
        else:
            moments = _direct_moments(fibre.integral)
        if fibre.nested:
            moments = _without_difference(moments, root)
        m, halves = moments, moments.halves
        # g of nested branches is flat
        g = m.g.reshape(omega.shape)
        if halves is not None:
            halves = (halves[0].reshape(len(omega), 2, *omega.shape[1:]), halves[1])
        log_partition = m.log_mass - fibre.log_norm
        return Posterior(log_partition, g, m.dg, m.ess, m.error, m.dg_error, halves)


def single_suffices(budget: Budget, deviation: Array) -> Array:
    """Return True if single precision is enough for residuals of fields of this standard deviation
    given the others."""
    # rounding moves z by ε|z| and with it g by ε|z|/V: a hundredth of the tolerance is no loss
    return 0.01 * budget.tolerance * deviation**2 >= float(jnp.finfo(jnp.float32).eps)


def _unwhiten(L: Array, tokens: int, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Return g (S, P, M) and ∂g (S, P, M, P, M) from moments of the whitened fields τ (S, P M)."""
    P, M = len(L), tokens
    # the inverse of a small matrix once, not a solve for each sample
    inverse = solve_triangular(L, jnp.eye(P, dtype=L.dtype), lower=True)
    centred = (covariance - jnp.eye(P * M, dtype=L.dtype)).reshape(-1, P, M, P, M)
    g = jnp.einsum("qp,sqm->spm", inverse, mean.reshape(-1, P, M))
    return g, jnp.einsum("ap,sambn,bq->spmqn", inverse, centred, inverse)


def whitened_response(root: Array, tokens: int, nested: bool = False) -> Respond:
    """Return the function from the moments of whitened fields to g and ∂g; `nested`: g (S, P M + 1)
    has the error of the nested rule as last component."""
    if not nested:
        return functools.partial(_unwhiten, root, tokens)

    def respond(mean: Array, covariance: Array) -> tuple[Array, Array]:
        g, dg = _unwhiten(root, tokens, mean[:, :-1], covariance[:, :-1, :-1])
        return jnp.concatenate([g.reshape(len(g), -1), mean[:, -1:]], axis=1), dg

    return respond


def with_difference(
    log_weight: Array,
    means: Sequence[Array],
    products: Mapping[tuple[int, int], Array],
    difference: Array,
    power: float = 1.5,
) -> Branch:
    """Build a nested branch, with the error of its rule as one residual more, from the `difference`
    to a rule with fewer nodes."""
    size = len(means)
    error = jnp.where(difference < 1.0, difference**power, difference)
    none = jnp.zeros_like(error)
    rest = {(i, size): none for i in range(size + 1)}
    return Branch(log_weight, [*means, error], {**products, **rest})


def _without_difference(moments: FieldMoments, root: Array) -> FieldMoments:
    """Move the last component, the error of nested branches, from the moments to their errors."""
    # an error of the means of τ becomes one of g by L^{-ᵀ}: bounded by its largest row sum
    g = moments.g[..., :-1]
    inverse = solve_triangular(root, jnp.eye(len(root), dtype=root.dtype), lower=True)
    inverse = jnp.max(jnp.sum(jnp.abs(inverse), axis=0))
    relative = lambda x: 1.0 + jnp.max(jnp.abs(x.reshape(len(x), -1)), axis=1)
    off = inverse * moments.g[..., -1]
    off = jnp.where(jnp.isfinite(off), off, jnp.inf)
    error = moments.error + off / relative(g)
    # a field of size one is rounded by ε/√V in units of τ, and Cov τ - I by as much: where V is
    # small and a label says little of it that difference, over V, loses digits
    rounding = _MAX_TAU * jnp.finfo(g.dtype).eps * inverse**3
    dg_error = moments.dg_error + (_MAX_TAU * inverse * off + rounding) / relative(moments.dg)
    moments = eqx.tree_at(lambda m: (m.g, m.error, m.dg_error), moments, (g, error, dg_error))
    if moments.halves is None:
        return moments
    halves = (moments.halves[0][..., :-1], moments.halves[1])
    return eqx.tree_at(lambda m: m.halves, moments, halves)


def _direct_moments(integral: Integral) -> FieldMoments:
    """Compute moments without open variables: branches at a single node."""

    def one(sample: PyTree) -> FieldMoments:
        # one sample as a block of one, with a node that has no coordinates and weight one
        block = tuple(x[None] for x in sample)
        node = jnp.zeros((1, 0), sample[0].dtype)
        nodes = Nodes(node, jnp.zeros(1, node.dtype), jnp.zeros(1, node.dtype))
        sums = sums_over(nodes, 0, *integral.integrand(block, node))
        g, dg = integral.respond(*moments_of(sums.table))
        floor = jnp.sqrt(jnp.finfo(node.dtype).eps)
        log_mass = sums.top[0] + jnp.log(sums.mass[0])
        return FieldMoments(log_mass, g[0], dg[0], jnp.inf + floor, floor, floor, jnp.ones((), int))

    size = min(_BLOCK_SIZE, len(integral.samples[0]))
    return lax.map(one, integral.samples, batch_size=size)
