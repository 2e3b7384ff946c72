r"""Posterior moments by integrals that refine themselves, each with an error estimate.

Equations here [theory: numerics, Eqs. (7) to (9)]; t ∈ R^d is standard Gaussian, and the branches s
are copies of the integrand of other signs:

    mass = Σ_s ∫ φ(t) f(t) e^{ℓ_s(t)} dt,   ⟨τ⟩, ⟨τ τᵀ⟩ under its weight,   τ = (t, r_s(t))
    effective number of nodes   ESS = (Σ w)²/Σ w²
    done where   error(g) <= tolerance,   error(∂g) <= 10 tolerance,   ESS >= 32

`self_refining_moments` finds the first two moments of a posterior, one integral a sample, on nodes
that are doubled for those samples whose own error estimate asks for it. Everything in the library
that integrates over fields goes through it. The rules are in refining_rules.py, the sums over their
nodes in refining_sums.py; here are the integral of one block of samples at one level, and the climb
from level to level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.checks import POSITIVE, Arguments
from jaxsmi.numerics.memory import Block, block_within, working_memory
from jaxsmi.numerics.refining_rules import (
    LARGEST_GRID,
    RADIUS,
    AbstractRule,
    Nodes,
    TrapezoidRule,
    grid_fits,
    no_weight,
    rule_for,
)
from jaxsmi.numerics.refining_sums import Columns, Copy, Sums

__all__ = ["Budget", "Moments", "Rest", "level_for_width", "self_refining_moments"]

_MIN_ESS = 32.0  # fewer effective nodes than this are refined whatever the error estimate says

Integrand = Callable[[PyTree, Array], tuple[Array, Sequence[Copy]]]
Respond = Callable[[Array, Array], tuple[Array, Array]]


class Moments(eqx.Module):
    """What an integral over the fields gives, and how good it is; all with a leading sample axis.

    Attributes:
        log_mass: Logarithm of the integral.
        g: The response that the caller computes from the first two moments.
        dg: Its derivative, likewise.
        ess: Effective number of nodes.
        error: Estimated error of g, relative to 1 + max|g|.
        dg_error: Estimated error of dg, relative to 1 + max|dg|.
        nodes: Nodes spent on the last rule.
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
        """Which samples (N,) are done."""
        accurate = (self.error <= tolerance) & (self.dg_error <= 10 * tolerance)
        return accurate & (self.ess >= _MIN_ESS)


class Rest(NamedTuple):
    """Which samples (N,) an integral is wanted of, and the `moments` that the others keep (None:
    zeros)."""

    due: Array
    moments: Moments | None = None


class Budget(eqx.Module):
    """How hard an integral tries.

    Args:
        tolerance: Error wanted of g, relative to 1 + max|g|, a number > 0; that of dg may be ten
            times as large.
        max_nodes: Nodes a sample of the finest rule allowed, at least 2048. Default 2^20.

    Raises:
        ValueError: For a tolerance that is not positive, or too few nodes.
    """

    tolerance: Array = eqx.field(converter=jnp.asarray)
    max_nodes: int = eqx.field(static=True)

    def __init__(self, tolerance: ArrayLike, max_nodes: int = 2**20):
        arguments = Arguments()
        self.max_nodes = arguments.count("max_nodes", max_nodes, at_least=2**11)
        self.tolerance = arguments.number("tolerance", tolerance, POSITIVE)


def _relative(moved: Array, x: Array) -> Array:
    """The largest change (S,) of x (S, ...), relative to one plus its largest entry."""
    moved, x = (y.reshape(len(x), -1) for y in (moved, x))
    return jnp.max(jnp.abs(moved - x), axis=1) / (1.0 + jnp.max(jnp.abs(x), axis=1))


def _is_none(x: object) -> bool:
    return x is None


def _with_halves(moments: Moments, like: Moments) -> Moments:
    """Moments of nodes that are not random among those of nets: their halves are equal."""
    if like.halves is None or moments.halves is not None:
        return moments
    twice = lambda x: jnp.stack([x, x], axis=1)
    halves = (twice(moments.g), twice(moments.dg))
    return eqx.tree_at(lambda m: m.halves, moments, halves, is_leaf=_is_none)


class _Level(NamedTuple):
    """A level of the rule, and its `rows` (see `AbstractRule.rows`)."""

    number: Array
    rows: Array


class _Climb(NamedTuple):
    """The next level, the level (N,) that each sample is due at, and the latest moments of all."""

    level: Array
    due: Array
    store: Moments


class _Integral(eqx.Module):
    """The integrals of a batch of samples, block by block and level by level."""

    integrand: Integrand
    respond: Respond
    samples: PyTree
    rule: AbstractRule
    columns: Columns
    budget: Budget
    single: Array | None

    @property
    def total(self) -> int:
        """N, the number of samples."""
        return jax.tree.leaves(self.samples)[0].shape[0]

    @property
    def shape(self) -> Block:
        """Samples and nodes worked on at once, by the memory of the device."""
        return block_within(working_memory(), self.columns.count, *self.rule.blocks)

    @property
    def block(self) -> int:
        """S, the number of samples of a block."""
        return min(self.shape.samples, self.total)

    def level(self, number: Array) -> _Level:
        """The level of that number."""
        return _Level(number, self.rule.rows(number))

    def chunk_sums(self, block: PyTree, start: Array, group: Array, level: _Level) -> Sums:
        """Sums over one chunk of nodes, in single precision where that is enough."""
        chunk = self.shape.nodes
        nodes = self.rule.nodes(start, chunk, group, level.number, level.rows)

        def sums(operands: tuple[PyTree, Nodes]) -> Sums:
            block, nodes = operands
            return self.columns.over(nodes, *self.integrand(block, nodes.points))

        def in_single(operands: tuple[PyTree, Nodes]) -> Sums:
            narrow = lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x
            block, nodes = jax.tree.map(narrow, operands)
            log_weight = jnp.maximum(nodes.log_weight, no_weight(jnp.float32))
            return sums((block, nodes._replace(log_weight=log_weight)))

        if self.single is None or not self.rule.single_precision or theory_dtype() != jnp.float64:
            return sums((block, nodes))
        return lax.cond(self.single, in_single, sums, (block, nodes))

    def group_sums(self, block: PyTree, group: Array, level: _Level) -> Sums:
        """Sums over all nodes of one group."""
        chunk = self.shape.nodes

        def add(step: Array, sums: Sums) -> Sums:
            return self.columns.merged(sums, self.chunk_sums(block, step * chunk, group, level))

        return lax.fori_loop(0, -(-level.rows[-1] // chunk), add, self.columns.none(self.block))

    def at_level(self, block: PyTree, level: _Level) -> tuple[Moments, Array]:
        """The moments of a block by one rule, and the error (S,) of what lies beyond its nodes."""
        S = self.block
        G = self.rule.groups
        columns = self.columns
        groups = lax.map(lambda group: self.group_sums(block, group, level), jnp.arange(G))
        top = jnp.max(groups.top, axis=0)
        parts = jax.vmap(columns.rescaled, in_axes=(0, None))(groups, top)
        sums = jnp.sum(parts, axis=0)
        g, dg = self.respond(*columns.moments(sums))
        parts = self.rule.compared(parts)
        part_g, part_dg = self.respond(*columns.moments(parts.reshape(-1, columns.count)))

        def error_of(full: Array, part: Array) -> Array:
            return self.rule.error(full.reshape(S, -1), part.reshape(len(parts), S, -1))

        split = self.rule.halves(parts)
        halves = None if split is None else self.without_bias(split)
        mass = sums[:, 0]
        cut = self.cut(sums, g, dg)
        error = jnp.maximum(error_of(g, part_g), self.hidden(sums, g))
        moments = Moments(
            log_mass=top + jnp.log(mass),
            g=g,
            dg=dg,
            ess=mass**2 / sums[:, -1],
            error=error + cut[0],
            dg_error=jnp.maximum(error, error_of(dg, part_dg)) + cut[1],
            nodes=jnp.full((S,), G * level.rows[-1]),
            halves=halves,
        )
        return moments, jnp.maximum(cut[0], 0.1 * cut[1])

    def cut(self, sums: Array, g: Array, dg: Array) -> tuple[Array, Array]:
        """What g and dg change by where second moments of τ are moved by the tail beyond the nodes,
        of all columns' `sums` the last but one, and means by a radius less [theory: numerics, Eq.
        (3)]."""
        mean, covariance = self.columns.moments(sums)
        tail = sums[:, -2] / sums[:, 0]
        one = jnp.eye(mean.shape[-1], dtype=tail.dtype)
        moved_g, moved_dg = self.respond(
            mean + (tail / RADIUS)[:, None], covariance + tail[:, None, None] * one
        )
        return _relative(moved_g, g), _relative(moved_dg, dg)

    def hidden(self, sums: Array, g: Array) -> Array:
        """What g changes by where half a node's share 1/ESS of the mass lies beyond a jump and one
        deviation off, and the groups may not see it."""
        there = self.rule.hidden
        if there is None:
            return jnp.zeros(len(g), g.dtype)
        mean, covariance = self.columns.moments(sums)
        share = sums[:, -1] / sums[:, 0] ** 2
        moved, _ = self.respond(mean + 0.5 * share[:, None], covariance)
        return jnp.where(there, _relative(moved, g), 0.0)

    def without_bias(self, split: Array) -> tuple[Array, Array]:
        """(g, dg), (S, 2, ...), of two halves of the nets, from sums (2, G/2, S, columns).

        A posterior mean is a quotient, biased by its noise: n times it less n - 1 times the mean of
        those without one of the n nets has no bias of first order left (the jackknife).
        """
        n = split.shape[1]
        whole = jnp.sum(split, axis=1, keepdims=True)
        every = jnp.concatenate([whole, whole - split], axis=1)
        flat = every.reshape(-1, self.columns.count)
        values = self.respond(*self.columns.moments(flat))

        def corrected(x: Array) -> Array:
            x = x.reshape(2, n + 1, self.block, *x.shape[1:])
            better = n * x[:, 0] - (n - 1) * jnp.mean(x[:, 1:], axis=1)
            return jnp.where(jnp.isfinite(better), better, x[:, 0]).swapaxes(0, 1)

        return corrected(values[0]), corrected(values[1])

    def next_level(self, level: Array, new: Moments, cut: Array) -> Array:
        """The level (S,) that samples are due at after this one; done ones are due beyond the last.

        Far from the goal a level is skipped. Samples at the edge of the ball go to the wide one.
        Those that are out of levels keep their error, for the caller to see.
        """
        rule = self.rule
        tolerance = self.budget.tolerance
        narrow = rule.narrow
        last = rule.last
        met = new.met(tolerance)
        outside = cut > 0.5 * tolerance
        end = jnp.where(level < narrow, narrow - 1, last)
        stride = rule.stride(jnp.maximum(new.error, 0.1 * new.dg_error), tolerance)
        finer = jnp.where(level >= end, last + 1, jnp.minimum(level + stride, end))
        at_edge = outside & (level < narrow) & (narrow <= last)
        due = jnp.where(at_edge, narrow + jnp.maximum(level - 2, 0), finer)
        # not-a-number went in, or the posterior lies outside even the wide ball: no rule will help
        hopeless = ~jnp.isfinite(new.log_mass) | (outside & (level >= narrow))
        return jnp.where(met | hopeless, last + 1, due)

    def climbed(self, climb: _Climb) -> _Climb:
        """All samples that are due at a level, solved there, block by block."""
        S = self.block
        total = self.total
        pending = climb.due == climb.level
        level = self.level(climb.level)
        order = jnp.argsort(jnp.where(pending, 0, 1), stable=True)
        count = jnp.sum(pending)

        def one_block(b: Array, carry: tuple[Array, Moments]) -> tuple[Array, Moments]:
            due, store = carry
            position = b * S + jnp.arange(S)
            which = order[jnp.minimum(position, total - 1)]
            # out of range: dropped by the scatter, clamped by the gather
            which = jnp.where(position < count, which, total)
            block = jax.tree.map(lambda x: x.at[which].get(mode="clip"), self.samples)
            new, cut = self.at_level(block, level)
            put = lambda old, x: old.at[which].set(x, mode="drop")
            due = put(due, self.next_level(climb.level, new, cut))
            return due, jax.tree.map(put, store, new)

        due, store = lax.fori_loop(0, -(-count // S), one_block, (climb.due, climb.store))
        return _Climb(climb.level + 1, due, store)

    def solved(self, first: Array, rest: Rest | None = None) -> Moments:
        """The moments of all samples, or of the `rest`, from the levels `first` (N,) on."""
        S = self.block
        last = self.rule.last
        block = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((S, *x.shape[1:]), x.dtype), self.samples
        )
        lowest = jnp.min(first)
        shapes = jax.eval_shape(lambda block: self.at_level(block, self.level(lowest))[0], block)
        empty = lambda x: jnp.zeros((self.total, *x.shape[1:]), x.dtype)
        due = first
        store = jax.tree.map(empty, shapes)
        if rest is not None:
            due = jnp.where(rest.due, first, last + 1)
            store = store if rest.moments is None else _with_halves(rest.moments, store)
        start = _Climb(lowest, due, store)

        def unfinished(climb: _Climb) -> Array:
            return (climb.level <= last) & jnp.any(climb.due <= last)

        return lax.while_loop(unfinished, lambda climb: self.climbed(climb), start).store


def self_refining_moments(
    integrand: Integrand,
    samples: PyTree,
    respond: Respond,
    *,
    inner: int,
    outer: int,
    budget: Budget,
    start: Array | None = None,
    analytic: Array | bool = True,
    jumps: Array | None = None,
    key: PRNGKeyArray | None = None,
    single: Array | None = None,
    shared: int | None = None,
    rest: Rest | None = None,
    largest: int = LARGEST_GRID,
) -> Moments:
    r"""Posterior moments of τ = (t, r(t)) for a batch of samples, refined until the error is met.

    For each sample, with t ∈ R^inner standard Gaussian and one or more branches s (sign copies),
        mass = Σ_s ∫ φ(t) f(t) e^{ℓ_s(t)} dt,   τ = (t, r_s(t)) ∈ R^{inner+outer},
    and ⟨τ⟩, ⟨ττᵀ⟩ under the normalised weight.

    The groups of each rule (half-grids, randomised nets) are compared with the whole, at no cost.
    Samples that miss the tolerance go on to the next level, alone; those that still miss it at the
    last keep their error, for the caller to see. Memory is bounded by the block, whatever N.
    Forward-mode differentiable; not in reverse mode, as the lengths of loops depend on the data.

    Args:
        integrand: `integrand(block, t)` for a block of S samples and nodes t (n, inner): the
            positive factor f (S, n), and one (ℓ (S, n), [r_1 .. r_outer]) a branch, or a `Branch`
            where a copy is itself an integral.
        samples: A tree of arrays with leading axis N.
        respond: `respond(mean (S, K), covariance (S, K, K))` -> (g, dg), the quantities whose error
            counts.
        inner: Number of variables t.
        outer: Number of residuals r.
        budget: Tolerance, and the largest rule.
        start: Level to begin with, a number, or one for each sample (N,). Default: the first.
        analytic: Whether the integrand is smooth, which the error estimate of grids may then rely
            on, a boolean number. Default True.
        jumps: Whether the integrand jumps, a boolean number. Default: never.
        key: Randomisation of the nets (where grids do not fit, `grid_fits`). Default
            jax.random.key(0).
        single: Whether nets may weigh their nodes in single precision, a boolean number: three
            times as fast, and the caller answers for the rounding of r. Default: no.
        shared: How many of the t, from the first on, are components of τ. The others only say
            where the nodes are: whatever τ has beside the shared ones are residuals, which may then
            differ from branch to branch. Default: all.
        rest: Which samples are integrated, and what is known of the others. Default: all.
        largest: Variables that grids are taken for, at most: 3, or 4 where the integrand is smooth
            and has no narrow feature. Default 3.

    Returns:
        `Moments` of all samples.

    Cost:
        Nodes × (one integrand + about (K+1)²/2 multiply-adds a branch), K = inner + outer.

    Source:
        [TW14], [M98], [theory: numerics, section 3].
    """
    rule = rule_for(inner, budget.max_nodes, analytic, key, jumps, largest)
    columns = Columns(inner if shared is None else shared, outer)
    integral = _Integral(integrand, respond, samples, rule, columns, budget, single)
    first = jnp.zeros((), int) if start is None else jnp.clip(start, 0, rule.narrow - 1)
    return integral.solved(jnp.broadcast_to(first, (integral.total,)), rest)


def level_for_width(inner: int, budget: Budget, width: Array, largest: int = LARGEST_GRID) -> Array:
    """The level to begin with, from a guess of the `width` of the narrowest feature in t, a number
    or one for each sample."""
    if not grid_fits(inner, budget.max_nodes, largest):
        return jnp.zeros(jnp.shape(width), int)
    return TrapezoidRule(inner, budget.max_nodes, True).level_for_width(width)
