r"""Posterior moments by integrals that refine themselves, each with an error estimate.

Equations here [theory: numerics, Eqs. (10) to (12)]; t ∈ R^d is standard Gaussian, the branches s
are copies of the integrand of other signs:

    mass = Σ_s ∫ φ(t) f(t) e^{ℓ_s(t)} dt,   ⟨τ⟩, ⟨τ τᵀ⟩ under its weight,   τ = (t, r_s(t))
    done where   error(g) <= tolerance,   error(∂g) <= 10 tolerance,   ESS >= 32

`self_refining_moments` computes the first two moments of a posterior, one integral a sample. A
sample whose own error estimate misses the tolerance goes on to a rule with more nodes, alone. All
integrals over fields go through it. The rules are in refining_rules.py, the sums over their nodes
in refining_sums.py; this file has the integral of a block of samples at one level, and the loop
over levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.validate import POSITIVE
from jaxsmi.numerics.refining_rules import (
    RADIUS,
    WIDE_OFFSET,
    AbstractRule,
    NetRule,
    TrapezoidRule,
    grid_fits,
)
from jaxsmi.numerics.refining_sums import (
    Block,
    Branch,
    Nodes,
    Sums,
    block_within,
    merged,
    moments_of,
    no_sums,
    no_weight,
    sums_over,
    working_memory,
)

# empirical: below 32 effective nodes the groups of a rule may agree by chance
_MIN_ESS = 32.0
_LOOSER = 10.0  # the error of dg may be so many times that of g (`Budget`)
_MAX_CORRECTION = 0.5  # a larger correction of a logarithm means that one node has all the mass
# an error of the tail by which a sample counts as beyond its ball, in tolerances
_OUTSIDE = 0.5

Integrand = Callable[[PyTree, Array], tuple[Array, Sequence[Branch]]]
Respond = Callable[[Array, Array], tuple[Array, Array]]


class FieldMoments(eqx.Module):
    """Integrals over the fields with their errors; all with a leading sample axis.

    Attributes:
        log_mass: Logarithm of the integral.
        g: The response that the caller computes from the first two moments.
        dg: Its derivative, likewise.
        ess: Effective number of nodes.
        error: Estimated error of g, relative to 1 + max|g|.
        dg_error: Estimated error of dg, relative to 1 + max|dg|.
        nodes: Number of nodes of the last rule.
        halves: (g, dg) of two independent halves of the nodes, (N, 2, ...) each: their products are
            free of the bias σ² that noise gives a square. None where nodes are not random.
    """

    log_mass: Array
    g: Array
    dg: Array
    ess: Array
    error: Array
    dg_error: Array
    nodes: Array
    halves: tuple[Array, Array] | None = None

    def met(self, tolerance: Array) -> Array:
        """The samples (N,) that are done."""
        accurate = (self.error <= tolerance) & (self.dg_error <= _LOOSER * tolerance)
        return accurate & (self.ess >= _MIN_ESS)


class Budget(eqx.Module):
    """Accuracy and cost of an integral.

    Args:
        tolerance: Largest error of g, relative to 1 + max|g|, a number > 0; that of dg may be ten
            times as large.
        max_nodes: Largest number of nodes a sample, at least 2048. Default 2^20.
        grids: Sum over grids where they fit. False: over random nodes alone, whose two halves give
            a product without bias. Default True.
        share: Fraction of a batch, from its first sample on, that is computed; integrals of the
            others are zero. None: all. Default None.

    Raises:
        ValueError: For a tolerance that is not positive, or too few nodes.
    """

    tolerance: Array = eqx.field(converter=partial(validate.number, "tolerance", interval=POSITIVE))
    max_nodes: int = eqx.field(
        converter=partial(validate.count, "max_nodes", at_least=2**11), static=True, default=2**20
    )
    grids: bool = eqx.field(static=True, default=True)
    share: Array | None = None

    def grid_fits(self, dimension: int) -> bool:
        """True if integrals over so many variables are sums over grids, and not over nets."""
        return self.grids and grid_fits(dimension, self.max_nodes)


class Integral(eqx.Module):
    r"""An integral for each of a batch of samples, t ∈ R^inner standard Gaussian.

    Attributes:
        integrand: `integrand(block, t)` for a block of S samples and nodes t (n, inner): the
            positive factor f (S, n), and the branches.
        samples: A tree of arrays with leading axis N.
        respond: `respond(mean (S, K), covariance (S, K, K))` -> (g, dg), the quantities whose error
            counts.
        inner: Number of variables t.
        outer: Number of residuals r.
        shared: The first so many of the t are components of τ; the others only place the nodes,
            and what τ has beside the shared ones are residuals, which may then differ from branch
            to branch. Default: all.
        start: Level to begin with, a number, or one for each sample (N,). Default: the first.
        analytic: The integrand is smooth, which the error estimate of grids may then rely on, a
            boolean number.
        jumps: The integrand jumps, a boolean number. None: never.
        single: Nets may weigh their nodes in single precision, a boolean number: three times as
            fast, and the caller answers for the rounding of r. None: no.
    """

    integrand: Integrand
    samples: PyTree
    respond: Respond
    inner: int
    outer: int
    shared: int | None = None
    start: Array | None = None
    analytic: Array | bool = True
    jumps: Array | None = None
    single: Array | None = None

    @property
    def shared_variables(self) -> int:
        """Number of the t that are components of τ."""
        return self.inner if self.shared is None else self.shared

    @property
    def components(self) -> int:
        """K, the size of τ."""
        return self.shared_variables + self.outer


def self_refining_moments(
    integral: Integral, budget: Budget, key: PRNGKeyArray | None = None
) -> FieldMoments:
    r"""Posterior moments of τ = (t, r(t)) for a batch of samples, refined until the error is met.

    For each sample, with t ∈ R^inner standard Gaussian and one or more branches s (sign copies),
        mass = Σ_s ∫ φ(t) f(t) e^{ℓ_s(t)} dt,   τ = (t, r_s(t)) ∈ R^{inner+outer},
    and ⟨τ⟩, ⟨ττᵀ⟩ under the normalised weight.

    The groups of each rule (half-grids, randomised nets) are compared with the whole, at no cost.
    Samples that miss the tolerance at the last level keep their error, for the caller to see.
    Memory is bounded by the block, whatever N. Forward-mode differentiable; not in reverse mode, as
    the lengths of loops depend on the data.

    Args:
        integral: The integrals.
        budget: Tolerance, and the largest rule.
        key: Randomisation of the nets (where grids do not fit, `grid_fits`). Default
            jax.random.key(0).

    Returns:
        `FieldMoments` of all samples.

    Cost:
        Nodes × (one integrand + about (K+1)²/2 multiply-adds a branch), K = inner + outer.

    Source:
        [TW14], [M98], [theory: numerics, section 3].
    """
    sizes = integral.inner, budget.max_nodes
    if budget.grid_fits(integral.inner):
        rule: AbstractRule = TrapezoidRule(*sizes, integral.analytic, integral.jumps)
    else:
        key = jax.random.key(0) if key is None else key
        rule = NetRule(*sizes, key, wide=integral.shared is None)
    return _Refinement(integral, rule, budget.tolerance, budget.share).solve()


def level_for_width(inner: int, budget: Budget, width: Array) -> Array:
    """The level to begin with, from a guess of the `width` of the narrowest feature in t, a number
    or one for each sample."""
    if not budget.grid_fits(inner):
        return jnp.zeros(jnp.shape(width), int)
    return TrapezoidRule(inner, budget.max_nodes, True).level_for_width(width)


class _Level(NamedTuple):
    """A level of the rule, and its `rows` (see `AbstractRule.rows`)."""

    number: Array
    rows: Array


class _State(NamedTuple):
    """Next level, level (N,) at which each sample is due, and the latest moments of all samples."""

    level: Array
    due: Array
    moments: FieldMoments


class _Refinement(eqx.Module):
    """The integrals of a batch of samples, block by block and level by level."""

    integral: Integral
    rule: AbstractRule
    tolerance: Array
    share: Array | None = None

    @property
    def last(self) -> int:
        return len(self.rule.sizes) - 1

    @property
    def total(self) -> int:
        return jax.tree.leaves(self.integral.samples)[0].shape[0]

    @property
    def shape(self) -> Block:
        """Samples and nodes worked on at once, by the memory of the device."""
        K = self.integral.components
        # numbers a node: the distinct entries of the table, the weight of the tail, and w²
        numbers = (K + 1) * (K + 2) // 2 + 2
        return block_within(working_memory(), numbers, *self.rule.blocks)

    @property
    def block(self) -> int:
        return min(self.shape.samples, self.total)

    def group_sums(self, block: PyTree, group: Array, level: _Level) -> Sums:
        """Sums over all nodes of one group, chunk by chunk."""
        integral, chunk = self.integral, self.shape.nodes

        def over(block: PyTree, nodes: Nodes) -> Sums:
            values = integral.integrand(block, nodes.points)
            return sums_over(nodes, integral.shared_variables, *values)

        def in_single(block: PyTree, nodes: Nodes) -> Sums:
            narrow = lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x
            block, nodes = jax.tree.map(narrow, (block, nodes))
            log_weight = jnp.maximum(nodes.log_weight, no_weight(jnp.float32))
            return over(block, nodes._replace(log_weight=log_weight))

        def add(step: Array, sums: Sums) -> Sums:
            nodes = self.rule.nodes(step * chunk, chunk, group, level.number, level.rows)
            single = integral.single
            if single is None or not self.rule.single_precision or theory_dtype() != jnp.float64:
                return merged(sums, over(block, nodes))
            return merged(sums, lax.cond(single, in_single, over, block, nodes))

        none = no_sums(self.block, integral.components)
        return lax.fori_loop(0, -(-level.rows[-1] // chunk), add, none)

    def at_level(self, block: PyTree, level: _Level) -> tuple[FieldMoments, Array]:
        """The moments of a block by one rule, and the error (S,) of the tail beyond its nodes."""
        S, rule = self.block, self.rule
        of_group = lambda group: self.group_sums(block, group, level)
        groups = lax.map(of_group, jnp.arange(rule.groups))
        top = jnp.max(groups.top, axis=0)
        each = jax.vmap(Sums.relative_to, in_axes=(0, None))(groups, top)
        sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), each)
        g, dg = self.responses(sums.table)
        parts = rule.compared(each.table)
        part_g, part_dg = self.responses(parts)

        def error_of(full: Array, part: Array) -> Array:
            error = rule.disagreement(full.reshape(S, -1), part.reshape(len(parts), S, -1))
            # never below half the digits: parts may agree to rounding by a symmetry
            floor = jnp.sqrt(jnp.finfo(full.dtype).eps)
            return jnp.where(jnp.isfinite(error), jnp.maximum(error, floor), jnp.inf)

        # the tail moves second moments of τ, and means by a radius less [theory: numerics, Eq. (3)]
        tail = sums.tail / sums.mass
        cut, dg_cut = self.changes(sums, g, dg, tail / RADIUS, tail)
        share = sums.squares / sums.mass**2
        error = error_of(g, part_g)
        if rule.hidden is not None:
            # half a node's share 1/ESS of the mass may lie beyond a jump and one deviation off:
            # the groups do not always show it
            hidden, _ = self.changes(sums, g, dg, 0.5 * share, jnp.zeros_like(share))
            error = jnp.where(rule.hidden, jnp.maximum(error, hidden), error)
        split = rule.halves(parts)
        moments = FieldMoments(
            log_mass=top + self.log_of(sums.mass, each.table[..., 0, 0], split is not None),
            g=g,
            dg=dg,
            ess=1.0 / share,
            error=error + cut,
            dg_error=jnp.maximum(error, error_of(dg, part_dg)) + dg_cut,
            nodes=jnp.full((S,), rule.groups * level.rows[-1]),
            halves=None if split is None else self.without_bias(split),
        )
        return moments, jnp.maximum(cut, dg_cut / _LOOSER)

    def log_of(self, mass: Array, parts: Array, random: bool) -> Array:
        """The logarithm of a mass (S,), the sum of those of the groups (G, S)."""
        log = jnp.log(mass)
        if not random:
            return log
        # the jackknife, as in `without_bias`: the logarithm of a noisy sum is too low by half the
        # square of its noise
        n = len(parts)
        others = jnp.mean(jnp.log((mass - parts) * (n / (n - 1))), axis=0)
        correction = (n - 1) * (log - others)
        return log + jnp.where(jnp.abs(correction) < _MAX_CORRECTION, correction, 0.0)

    def responses(self, table: Array) -> tuple[Array, Array]:
        """(g, dg) of tables with any leading axes, which become one."""
        return self.integral.respond(*moments_of(table.reshape(-1, *table.shape[-2:])))

    def changes(
        self, sums: Sums, g: Array, dg: Array, shift: Array, spread: Array
    ) -> tuple[Array, Array]:
        """Relative changes (S,) of g and dg where means move by `shift` (S,) and second moments by
        `spread` (S,)."""
        mean, covariance = moments_of(sums.table)
        one = jnp.eye(mean.shape[-1], dtype=spread.dtype)
        wider = covariance + spread[:, None, None] * one
        moved = self.integral.respond(mean + shift[:, None], wider)
        return _relative_change(moved[0], g), _relative_change(moved[1], dg)

    def without_bias(self, split: Array) -> tuple[Array, Array]:
        """(g, dg), (S, 2, ...), of two halves of the nets, from tables (2, G/2, S, ...)."""
        # the jackknife: a quotient is biased by its noise, and n times it less n - 1 times the mean
        # of those without one of the n nets has no bias of first order
        n = split.shape[1]
        whole = jnp.sum(split, axis=1, keepdims=True)
        values = self.responses(jnp.concatenate([whole, whole - split], axis=1))

        def corrected(x: Array) -> Array:
            x = x.reshape(2, n + 1, self.block, *x.shape[1:])
            better = n * x[:, 0] - (n - 1) * jnp.mean(x[:, 1:], axis=1)
            return jnp.where(jnp.isfinite(better), better, x[:, 0]).swapaxes(0, 1)

        return corrected(values[0]), corrected(values[1])

    def next_level(self, level: Array, new: FieldMoments, cut: Array) -> Array:
        """The level (S,) that samples are due at after this one; done ones are due beyond the last.

        Far from the goal a level is skipped. Samples at the edge of the ball go to the wide one.
        """
        rule, tolerance, last, narrow = self.rule, self.tolerance, self.last, self.rule.narrow
        outside = cut > _OUTSIDE * tolerance
        end = jnp.where(level < narrow, narrow - 1, last)
        stride = rule.stride(jnp.maximum(new.error, new.dg_error / _LOOSER), tolerance)
        finer = jnp.where(level >= end, last + 1, jnp.minimum(level + stride, end))
        at_edge = outside & (level < narrow) & (narrow <= last)
        # two levels down in the wide family is about the same spacing
        due = jnp.where(at_edge, narrow + jnp.maximum(level - WIDE_OFFSET, 0), finer)
        # NaN went in, or the posterior lies outside even the wide ball: no rule will help
        hopeless = ~jnp.isfinite(new.log_mass) | (outside & (level >= narrow))
        return jnp.where(new.met(tolerance) | hopeless, last + 1, due)

    def step(self, state: _State) -> _State:
        """Solve all samples that are due at a level, block by block."""
        S, total = self.block, self.total
        pending = state.due == state.level
        level = _Level(state.level, self.rule.rows(state.level))
        # samples that are due first: blocks are full, and cost nothing for those that are done
        order = jnp.argsort(jnp.where(pending, 0, 1), stable=True)
        count = jnp.sum(pending)

        def one_block(b: Array, carry: tuple[Array, FieldMoments]) -> tuple[Array, FieldMoments]:
            due, moments = carry
            position = b * S + jnp.arange(S)
            which = order[jnp.minimum(position, total - 1)]
            # out of range: dropped by the scatter, clamped by the gather
            which = jnp.where(position < count, which, total)
            block = jax.tree.map(lambda x: x.at[which].get(mode="clip"), self.integral.samples)
            new, cut = self.at_level(block, level)
            put = lambda old, x: old.at[which].set(x, mode="drop")
            due = put(due, self.next_level(state.level, new, cut))
            return due, jax.tree.map(put, moments, new)

        carry = (state.due, state.moments)
        due, moments = lax.fori_loop(0, -(-count // S), one_block, carry)
        return _State(state.level + 1, due, moments)

    def solve(self) -> FieldMoments:
        """The moments of all samples."""
        start = self.integral.start
        start = jnp.zeros((), int) if start is None else jnp.clip(start, 0, self.rule.narrow - 1)
        due = jnp.broadcast_to(start, (self.total,))
        if self.share is not None:
            due = jnp.where(jnp.arange(self.total) < self.share * self.total, due, self.last + 1)
        lowest = jnp.min(due)
        shape_of = lambda x: jax.ShapeDtypeStruct((self.block, *x.shape[1:]), x.dtype)
        block = jax.tree.map(shape_of, self.integral.samples)
        level = _Level(lowest, self.rule.rows(lowest))
        shapes = jax.eval_shape(lambda block: self.at_level(block, level)[0], block)
        empty = lambda x: jnp.zeros((self.total, *x.shape[1:]), x.dtype)
        state = _State(lowest, due, jax.tree.map(empty, shapes))
        unfinished = lambda s: (s.level <= self.last) & jnp.any(s.due <= self.last)
        return lax.while_loop(unfinished, lambda s: self.step(s), state).moments


def _relative_change(moved: Array, x: Array) -> Array:
    """The largest change (S,) of x (S, ...), relative to one plus its largest entry."""
    moved, x = (y.reshape(len(x), -1) for y in (moved, x))
    return jnp.max(jnp.abs(moved - x), axis=1) / (1.0 + jnp.max(jnp.abs(x), axis=1))
