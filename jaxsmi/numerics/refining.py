r"""Numerical integration against Gaussians, always with an error estimate.

Equations here:

* the trapezoidal rule on a box, ∫ φ(t) f(t) dt ≈ h^d Σ_k φ(t_k) f(t_k): for a smooth f the error falls faster than any
  power of h [TW14];
* Sobol nets with a random linear scramble and digital shift, mapped to Gaussians by t = Φ^{-1}(x) [M98]: unbiased, and
  independent randomisations give a standard error;
* effective number of nodes, ESS = (Σ w)² / Σ w²;
* control variates: E x = E[x - β d] for any d of mean zero, β = Cov(x, d)/Var(d);
* orthonormal Hermite polynomials: √(n+1) h_{n+1}(x) = x h_n(x) - √n h_{n-1}(x), E h_n h_m = δ_nm under N(0, 1).

`self_refining_moments` is the heart: the first two moments of a posterior, one integral per sample, on nodes that are
doubled for those samples whose own error estimate asks for it. Everything else in the library that integrates over
fields goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.numerics.nets import Net, nets

# Half-width of the trapezoidal box in standard deviations (4e-8 of a Gaussian's mass lies outside 5.5), and that of a second
# family of rules for the rare samples whose posterior reaches the edge of the first.
_HALF_WIDTH, _WIDE = 5.5, 9.0


_MIN_ESS = 32.0  # fewer effective nodes than this are refined whatever the error estimate says


_NODES_PER_AXIS = {
    1: (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    2: (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
    3: (20, 28, 40, 56, 80, 100, 128, 160),
}


_NETS = 8  # independent randomisations of the net used above three dimensions: their spread is the error


_NET_SIZES = tuple(_NETS * 2**k for k in range(8, 21))


class Moments(eqx.Module):
    """What an integral over the fields of one sample gives, and how good it is (all with a leading sample axis).

    `log_mass`: log of the integral; `g`, `dg`: the response computed from the first two moments (see
    `self_refining_moments`); `ess`: effective number of nodes; `error`, `dg_error`: estimated errors of g and dg
    relative to 1 + max|g| and 1 + max|dg|; `nodes`: nodes spent on the last rule.
    """

    log_mass: Array
    g: Array
    dg: Array
    ess: Array
    error: Array
    dg_error: Array
    nodes: Array


class Budget(eqx.Module):
    """How hard an inner integral tries: error wanted of g (that of dg may be ten times as large), and when to give up.

    `tolerance`: relative to 1 + max|g|. `max_nodes`: nodes per sample of the finest rule allowed.
    """

    tolerance: Array = eqx.field(converter=jnp.asarray)
    max_nodes: int = eqx.field(static=True)

    def __init__(self, tolerance: Any, max_nodes: int = 2**20):
        if max_nodes < 2**11:
            raise ValueError(
                f"max_nodes: got {max_nodes}; allowed: at least {2**11} nodes per sample."
            )
        self.tolerance, self.max_nodes = jnp.asarray(tolerance, dtype=float), max_nodes
        check(self.tolerance > 0, "tolerance", tolerance, "a positive number")


class _Rule(eqx.Module):
    """The family of rules used in `dimension` inner variables: trapezoidal up to three, a Gaussian net above.

    Levels run over `sizes` in the narrow box and then, for samples whose posterior reaches its edge, in the wide one.
    """

    dimension: int = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    half_widths: tuple[float, ...] = eqx.field(static=True)
    narrow: int = eqx.field(static=True)
    analytic: bool = eqx.field(static=True)

    def __init__(self, dimension: int, max_nodes: int, analytic: bool = True):
        self.dimension, self.analytic = dimension, analytic
        table = _NODES_PER_AXIS.get(dimension, _NET_SIZES)
        sizes = tuple(s for s in table if self.count(s) <= max_nodes)
        wide = tuple(s for s in sizes[2:]) if self.trapezoid else ()
        self.sizes, self.narrow = sizes + wide, len(sizes)
        self.half_widths = (_HALF_WIDTH,) * len(sizes) + (_WIDE,) * len(wide)

    @property
    def trapezoid(self) -> bool:
        """Whether the rule is a trapezoidal one (else a net)."""
        return self.dimension in _NODES_PER_AXIS

    @property
    def groups(self) -> int:
        """Interleaved parts of the rule whose disagreement gives the error: two half-grids, or randomisations of a net."""
        return 2 if self.trapezoid else _NETS

    def count(self, size: int) -> int:
        """Nodes of the enclosing box, at trace time: what `max_nodes` bounds."""
        return size**self.dimension if self.trapezoid else size

    def rows(self, level: Array) -> Array:
        """How many nodes of one group lie inside the ball |t| <= R in the rows up to each: an index finds its row there.

        A row is a line of nodes along the last axis. Dropping the corners of the box saves 21 % of the nodes in two
        dimensions and 48 % in three, at the price of a tail e^{-R²/2} that the error estimate includes.
        """
        size = jnp.asarray(self.sizes)[level]
        if not self.trapezoid:
            return size[None] // self.groups
        half_width = jnp.asarray(self.half_widths, theory_dtype())[level]
        row = jnp.arange(max(self.sizes) ** (self.dimension - 1))
        step = 2 * half_width / size
        radius = half_width**2
        for k in range(self.dimension - 1):
            radius = radius - (((row // size**k) % size + 0.5) * step - half_width) ** 2
        # columns run symmetrically about the centre (size is even), and alternate between the two groups
        per_row = jnp.floor(jnp.sqrt(jnp.maximum(radius, 0.0)) / step + 0.5).astype(int)
        return jnp.cumsum(jnp.where(row < size ** (self.dimension - 1), per_row, 0))

    def nodes(
        self, start: Array, count: int, group: Array, level: Array, rows: Array, net: Net
    ) -> tuple[Array, Array, Array]:
        """`count` nodes t (n, d) of a group, their log-weights (n,), and the weight of the cut-off tail (n,)."""
        index = start + jnp.arange(count)
        dtype = theory_dtype()
        size = jnp.asarray(self.sizes)[level]
        inside = index < rows[-1]
        if not self.trapezoid:
            t = jax.tree.map(lambda x: x[group], net).gaussians(start, count)
            log_weight = jnp.full(index.shape, -jnp.log(size.astype(dtype)))
            tail = jnp.zeros(index.shape, dtype)
        else:
            half_width = jnp.asarray(self.half_widths, dtype)[level]
            step = 2 * half_width / size
            row = jnp.minimum(jnp.searchsorted(rows, index, side="right"), rows.shape[0] - 1)
            before = jnp.where(row > 0, rows[row - 1], 0)
            digits = [(row // size**k) % size for k in range(self.dimension - 1)]
            first = size // 2 - (rows[row] - before)
            parity = (
                sum(digits) + first + group
            ) % 2  # chequerboard: a group holds the nodes of one parity
            digits.append(first + 2 * (index - before) + parity)
            t = jnp.stack([(digit + 0.5) * step - half_width for digit in digits], axis=1).astype(
                dtype
            )
            square = jnp.sum(t * t, axis=1)
            log_weight = -0.5 * square + self.dimension * (jnp.log(step) - 0.5 * np.log(2 * np.pi))
            # mass beyond R per weight in the last shell is 1/(R h); it enters second moments times R²
            tail = jnp.where(square > (half_width - step) ** 2, half_width / step, 0.0)
        return t, jnp.where(inside, log_weight, _nothing(dtype)), tail.astype(dtype)

    def stride(self, error: Array, tolerance: Array) -> Array:
        """Levels to go up: two where a grid resolves nothing yet; for nets as many doublings as N^(-0.9) asks for."""
        if self.trapezoid:
            return jnp.where(error > 1.0, 2, 1)
        doublings = jnp.ceil(jnp.log2(jnp.maximum(error / tolerance, 1.0)) / 0.9)
        return jnp.clip(jnp.nan_to_num(doublings, posinf=5.0), 1, 5).astype(int)

    def error(self, full: Array, parts: Array) -> Array:
        """Error of the full rule (S,) from its value (S, F) and those of its groups (G, S, F), relative to 1 + max|full|.

        Trapezoidal sums of analytic integrands converge so fast that the error is about the square of that of half the
        nodes; the power 1.5 is the one that held in all brute-force comparisons. Where the integrand may have steps
        (`analytic=False`): three times the difference. Nets: three standard errors, being the
        largest of several components with seven degrees of freedom each.
        """
        scale = 1.0 + jnp.max(jnp.abs(full), axis=-1)
        if self.trapezoid:
            error = jnp.max(jnp.abs(parts - full), axis=(0, -1)) / scale
            error = jnp.where(error < 1.0, error**1.5, error) if self.analytic else 3.0 * error
        else:
            variance = jnp.sum((parts - full) ** 2, axis=0) / (self.groups * (self.groups - 1))
            error = 3.0 * jnp.sqrt(jnp.max(variance, axis=-1)) / scale
        floor = jnp.sqrt(jnp.finfo(full.dtype).eps)  # no estimate is trusted below half the digits
        return jnp.where(jnp.isfinite(error), jnp.maximum(error, floor), jnp.inf)


def _nothing(dtype: Any) -> Any:
    """The logarithm of no weight: finite, so that differences of two of them are not NaN."""
    return jnp.finfo(dtype).min / 4


def _block_shape(trapezoid: bool) -> tuple[int, int]:
    """Samples and nodes worked on at once: cache-sized on a CPU, occupancy-sized on an accelerator."""
    if jax.default_backend() == "cpu":
        return (
            (16, 512) if trapezoid else (64, 256)
        )  # a net's points cost more to make: share them among more samples
    return (512, 2048) if trapezoid else (64, 16384)


def self_refining_moments(
    integrand: Callable[[Any, Array], tuple[Array, Sequence[tuple[Array, Sequence[Array]]]]],
    samples: Any,
    respond: Callable[[Array, Array], tuple[Array, Array]],
    *,
    inner: int,
    outer: int,
    budget: Budget,
    start: Array | None = None,
    analytic: bool = True,
    key: Array | None = None,
    single: Array | None = None,
) -> Moments:
    r"""Posterior moments of τ = (t, r(t)) for a batch of samples, refined sample by sample until the error is met.

    For each sample, with t ∈ R^inner standard Gaussian and one or more branches s (sign copies),
        mass = Σ_s ∫ φ(t) f(t) e^{ℓ_s(t)} dt,   ⟨τ⟩, ⟨ττᵀ⟩ under the normalised weight,   τ = (t, r_s(t)) ∈ R^{inner+outer}.

    Arguments: `integrand(block, t)`: for a block of S samples and nodes t (n, inner), the positive factor f (S, n) and one
    (ℓ (S, n), [r_1 .. r_outer]) per branch. `samples`: pytree with leading axis N. `respond(mean (S, K), covariance
    (S, K, K))` -> (g, dg), the quantities whose error counts. `budget`: tolerance and largest rule. `start`: level to
    begin with (scalar). `analytic`: whether the integrand is smooth, which the error estimate of grids may then rely on.
    `key`: randomisation of the nets (more than three inner variables). `single`: whether nets may weigh their nodes in
    single precision (scalar boolean, the default is no): three times as fast, and the caller answers for the rounding of r.

    The groups of each rule (half-grids, randomised nets) are compared with the whole, at no cost. Samples that miss the
    tolerance go on to the next level, alone; those that still miss it at the last keep their error, for the caller to
    see. Memory is bounded by the block, whatever N. Forward-mode differentiable; not reverse-mode (trip counts are dynamic).
    Cost: (nodes) × (one integrand + about (K+1)²/2 multiply-adds per branch).
    """
    total = jax.tree.leaves(samples)[0].shape[0]
    K = inner + outer
    rule = _Rule(inner, budget.max_nodes, analytic)
    net = nets(jax.random.key(0) if key is None else key, rule.groups, inner)
    narrow, last = rule.narrow, len(rule.sizes) - 1
    size_of_block, chunk = _block_shape(rule.trapezoid)
    S = min(size_of_block, total)
    dtype = theory_dtype()
    pairs_in = [(i, j) for i in range(inner) for j in range(i, inner)]
    pairs_out = [(i, j) for i in range(outer) for j in range(i, outer)]
    quadratic = 1 + inner + len(pairs_in)
    columns = (
        quadratic + outer * (1 + inner) + len(pairs_out) + 2
    )  # .. + tail + sum of squared weights

    def weighted_sums(block: Any, t: Array, log_node: Array, tail: Array) -> tuple[Array, Array]:
        """Sums over nodes of w × (1, t, tt; r, r t; r r; tail; w), the largest log-weight taken out."""
        factor, branches = integrand(block, t)
        branches = [(ell + log_node, residuals) for ell, residuals in branches]
        top = jnp.max(jnp.stack([jnp.max(ell, axis=1) for ell, _ in branches]), axis=0)
        top = lax.stop_gradient(jnp.maximum(top, _nothing(top.dtype) / 2))
        weights = [factor * jnp.exp(ell - top[:, None]) for ell, _ in branches]
        residuals = [r for _, r in branches]

        def total_of(terms: list[Array], features: list[Array]) -> Array:
            return jnp.dot(
                sum(terms[1:], terms[0]), jnp.stack(features, axis=1), precision="highest"
            )

        one = jnp.ones_like(tail)
        sums = [total_of(weights, [one, *t.T, *(t[:, i] * t[:, j] for i, j in pairs_in)])]
        for m in range(outer):
            sums.append(
                total_of([w * r[m] for w, r in zip(weights, residuals, strict=True)], [one, *t.T])
            )
        for m, n in pairs_out:
            sums.append(
                total_of([w * r[m] * r[n] for w, r in zip(weights, residuals, strict=True)], [one])
            )
        sums.append(total_of(weights, [tail]))
        squares = jnp.sum(jnp.stack([jnp.sum(w * w, axis=1) for w in weights]), axis=0)
        return top.astype(dtype), jnp.concatenate([*sums, squares[:, None]], axis=1).astype(dtype)

    def chunk_sums(
        block: Any, start: Array, group: Array, level: Array, rows: Array
    ) -> tuple[Array, Array]:
        """`weighted_sums` over one chunk of nodes, in single precision where that is enough."""
        t, log_node, tail = rule.nodes(start, chunk, group, level, rows, net)

        def in_single(operands: Any) -> tuple[Array, Array]:
            reals = jax.tree.map(
                lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, operands
            )
            block, t, log_node, tail = reals
            return weighted_sums(block, t, jnp.maximum(log_node, _nothing(jnp.float32)), tail)

        operands = (block, t, log_node, tail)
        if single is None or rule.trapezoid or dtype != jnp.float64:
            return weighted_sums(*operands)
        return lax.cond(single, in_single, lambda operands: weighted_sums(*operands), operands)

    def moments(sums: Array) -> tuple[Array, Array]:
        """Mean (.., K) and covariance (.., K, K) of τ from sums (.., columns)."""
        mass, offset, second = sums[..., 0], quadratic, {}
        mean = [sums[..., 1 + i] for i in range(inner)]
        for k, (i, j) in enumerate(pairs_in):
            second[i, j] = sums[..., 1 + inner + k]
        for m in range(outer):
            mean.append(sums[..., offset])
            second.update({(i, inner + m): sums[..., offset + 1 + i] for i in range(inner)})
            offset += 1 + inner
        for k, (m, n) in enumerate(pairs_out):
            second[inner + m, inner + n] = sums[..., offset + k]
        mean = jnp.stack(mean, axis=-1) / mass[..., None]
        second = jnp.stack(
            [second[min(i, j), max(i, j)] for i in range(K) for j in range(K)], axis=-1
        )
        second = second.reshape(*mass.shape, K, K) / mass[..., None, None]
        return mean, second - mean[..., :, None] * mean[..., None, :]

    def solve_block(block: Any, level: Array, rows: Array) -> tuple[Moments, Array]:
        steps = -(-rows[-1] // chunk)
        is_square = (
            jnp.arange(columns) == columns - 1
        )  # scales twice when the largest log-weight changes

        def rescaled(top: Array, sums: Array, to: Array) -> Array:
            scale = jnp.exp(top - to)[:, None]
            return sums * jnp.where(is_square, scale * scale, scale)

        def group_sums(group: Array) -> tuple[Array, Array]:
            def merge(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
                top, sums = carry
                new_top, new = chunk_sums(block, step * chunk, group, level, rows)
                both = jnp.maximum(top, new_top)
                return both, rescaled(top, sums, both) + rescaled(new_top, new, both)

            return lax.fori_loop(
                0,
                steps,
                merge,
                (jnp.full((S,), _nothing(dtype), dtype), jnp.zeros((S, columns), dtype)),
            )

        tops, parts = lax.map(group_sums, jnp.arange(rule.groups))
        top = jnp.max(tops, axis=0)
        parts = jax.vmap(rescaled, in_axes=(0, 0, None))(tops, parts, top)
        sums = jnp.sum(parts, axis=0)
        g, dg = respond(*moments(sums))
        part_mean, part_covariance = moments(parts.reshape(rule.groups * S, columns))
        part_g, part_dg = respond(part_mean, part_covariance)

        def error_of(full: Array, part: Array) -> Array:
            return rule.error(full.reshape(S, -1), part.reshape(rule.groups, S, -1))

        mass, tail = sums[:, 0], sums[:, -2] / sums[:, 0]
        error = error_of(g, part_g)
        dg_error = jnp.maximum(error, error_of(dg, part_dg))
        nodes = jnp.full((S,), rule.groups * rows[-1])
        found = Moments(
            top + jnp.log(mass), g, dg, mass**2 / sums[:, -1], error + tail, dg_error + tail, nodes
        )
        return found, tail

    def level_pass(carry: tuple[Array, Array, Moments]) -> tuple[Array, Array, Moments]:
        level, due, store = carry
        pending, rows = due == level, rule.rows(level)
        order = jnp.argsort(jnp.where(pending, 0, 1), stable=True)
        count = jnp.sum(pending)

        def one_block(b: Array, inner_carry: tuple[Array, Moments]) -> tuple[Array, Moments]:
            due, store = inner_carry
            which = order[jnp.minimum(b * S + jnp.arange(S), total - 1)]
            valid = b * S + jnp.arange(S) < count
            which = jnp.where(
                valid, which, total
            )  # out of range: dropped by the scatter, clamped by the gather
            new, tail = solve_block(
                jax.tree.map(lambda x: x.at[which].get(mode="clip"), samples), level, rows
            )
            met = (
                (new.error <= budget.tolerance)
                & (new.dg_error <= 10 * budget.tolerance)
                & (new.ess >= _MIN_ESS)
            )
            # far from the goal: skip a level; at the edge of the box: go to the wide one; out of levels: keep the
            # error for the caller to see
            end = jnp.where(level < narrow, narrow - 1, last)
            finer = jnp.minimum(
                level + rule.stride(jnp.maximum(new.error, 0.1 * new.dg_error), budget.tolerance),
                end,
            )
            wider = narrow + jnp.maximum(level - 2, 0)
            at_edge = (tail > 0.5 * budget.tolerance) & (level < narrow) & (narrow <= last)
            next_due = jnp.where(at_edge, wider, jnp.where(level >= end, last + 1, finer))
            # not-a-number went in, or the posterior lies outside even the wide box: no rule will help
            hopeless = ~jnp.isfinite(new.log_mass) | (
                (tail > 0.5 * budget.tolerance) & (level >= narrow)
            )
            next_due = jnp.where(met | hopeless, last + 1, next_due)
            store = jax.tree.map(lambda old, x: old.at[which].set(x, mode="drop"), store, new)
            return due.at[which].set(next_due, mode="drop"), store

        due, store = lax.fori_loop(0, -(-count // S), one_block, (due, store))
        return level + 1, due, store

    def empty(shape: Any) -> Array:
        return jnp.zeros((total, *shape.shape[1:]), shape.dtype)

    first = jnp.zeros((), int) if start is None else jnp.clip(start, 0, narrow - 1)
    sample_block = jax.tree.map(lambda x: jax.ShapeDtypeStruct((S, *x.shape[1:]), x.dtype), samples)
    shapes = jax.eval_shape(
        lambda block: solve_block(block, first, rule.rows(first))[0], sample_block
    )
    store = jax.tree.map(empty, shapes)
    due = jnp.full((total,), first)
    _, _, store = lax.while_loop(
        lambda c: (c[0] <= last) & jnp.any(c[1] <= last), level_pass, (first, due, store)
    )
    return store


def level_for_width(inner: int, budget: Budget, width: Array) -> Array:
    """First refinement level whose node spacing is at most 2.6 times `width`, a guess of the narrowest feature in t.

    (2.6: at a spacing of 2 to 3 widths of a Gaussian the trapezoidal error is 1e-2 to 1e-1, where refining starts to pay.)
    """
    rule = _Rule(inner, budget.max_nodes)
    if not rule.trapezoid:
        return jnp.zeros((), int)
    spacing = 2 * _HALF_WIDTH / jnp.asarray(rule.sizes[: rule.narrow - 1], theory_dtype())
    return jnp.sum(spacing > 2.6 * width)
