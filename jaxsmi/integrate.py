r"""Numerical integration against Gaussians, always with an error estimate.

Equations here:

* the trapezoidal rule on a box, ∫ φ(t) f(t) dt ≈ h^d Σ_k φ(t_k) f(t_k): for a smooth f the error falls faster than any
  power of h [TW14];
* rank-one lattice rules, x_k = frac(k z/N + shift), mapped to Gaussians by t = Φ^{-1}(x) [CKN06]; a random shift makes the
  rule unbiased, and independent shifts give its standard error;
* effective number of nodes, ESS = (Σ w)² / Σ w².

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
from jax.scipy.special import ndtri

from jaxsmi.types import Array, theory_dtype

# Generating vector of an embedded (base 2) lattice sequence for up to 2^20 points [CKN06], first 32 dimensions.
_GENERATOR = np.array(
    [1, 182667, 469891, 498753, 110745, 446247, 250185, 118627, 245333, 283199, 408519, 391023, 246327, 126539, 399185,
     461527, 300343, 69681, 516695, 436179, 106383, 238523, 413283, 70841, 47719, 300129, 113029, 123925, 410745,
     211325, 17489, 511893],
    dtype=np.uint32,
)  # fmt: skip
# Half-width of the trapezoidal box in standard deviations (4e-8 of a Gaussian's mass lies outside 5.5), and that of a second
# family of rules for the rare samples whose posterior reaches the edge of the first.
_HALF_WIDTH, _WIDE = 5.5, 9.0
_MIN_ESS = 32.0  # fewer effective nodes than this are refined whatever the error estimate says
_NODES_PER_AXIS = {
    1: (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    2: (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
    3: (20, 28, 40, 56, 80, 100, 128, 160),
}
_LATTICE_SIZES = tuple(2**k for k in range(11, 21))


def uniform_lattice(index: Array, size: Array | int, dimension: int, shift: Array) -> Array:
    """Points frac(index·z/size + shift) of a rank-one lattice of `size` = 2^k <= 2^20 points: (n, dimension) in [0, 1).

    Arguments: `index` (n,) integers below `size`; `shift` (dimension,), uniform in [0, 1). Source: [CKN06].
    """
    if dimension > len(_GENERATOR):
        raise ValueError(f"dimension: got {dimension}; allowed: at most {len(_GENERATOR)} Gaussian variables per sample.")
    # unsigned products wrap modulo 2^32, a multiple of every allowed size
    residue = (index.astype(jnp.uint32)[:, None] * jnp.asarray(_GENERATOR[:dimension])) % jnp.asarray(size, jnp.uint32)
    return (residue.astype(shift.dtype) / size + shift) % 1.0


def gaussian_lattice(index: Array, size: Array | int, dimension: int, shift: Array) -> Array:
    """Standard Gaussian points Φ^{-1}(x) on a shifted rank-one lattice, (n, dimension). Source: [CKN06]."""
    tiny = float(jnp.finfo(shift.dtype).eps) / 4
    return ndtri(jnp.clip(uniform_lattice(index, size, dimension, shift), tiny, 1.0 - 2 * tiny))


def randomised_gaussians(key: Array, samples: int, randomisations: int, dimension: int) -> Array:
    """Independent random shifts of one Gaussian lattice: (randomisations, samples, dimension).

    Averages over the middle axis are independent and unbiased, so that their spread is an honest standard error.
    `samples` must be a power of two, at most 2^20. The points depend on `key` alone: common random numbers.
    """
    shifts = jax.random.uniform(key, (randomisations, dimension), dtype=theory_dtype())
    return jax.vmap(lambda s: gaussian_lattice(jnp.arange(samples), samples, dimension, s))(shifts)


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`, at most 2^20."""
    return min(1 << max(int(count) - 1, 0).bit_length(), 1 << 20)


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

    def __init__(self, tolerance: Any = 1e-3, max_nodes: int = 2**20):
        if max_nodes < 2**11:
            raise ValueError(f"max_nodes: got {max_nodes}; allowed: at least {2**11} nodes per sample.")
        self.tolerance, self.max_nodes = jnp.asarray(tolerance, dtype=float), max_nodes


class _Rule(eqx.Module):
    """The family of rules used in `dimension` inner variables: trapezoidal up to three, a Gaussian lattice above.

    Levels run over `sizes` in the narrow box and then, for samples whose posterior reaches its edge, in the wide one.
    """

    dimension: int = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    half_widths: tuple[float, ...] = eqx.field(static=True)
    narrow: int = eqx.field(static=True)

    def __init__(self, dimension: int, max_nodes: int):
        self.dimension = dimension
        table = _NODES_PER_AXIS.get(dimension, _LATTICE_SIZES)
        sizes = tuple(s for s in table if self.count(s) <= max_nodes)
        wide = tuple(s for s in sizes[2:]) if self.trapezoid else ()
        self.sizes, self.narrow = sizes + wide, len(sizes)
        self.half_widths = (_HALF_WIDTH,) * len(sizes) + (_WIDE,) * len(wide)

    @property
    def trapezoid(self) -> bool:
        return self.dimension in _NODES_PER_AXIS

    def count(self, size: int) -> int:
        """Nodes of the enclosing box, at trace time: what `max_nodes` bounds."""
        return size**self.dimension if self.trapezoid else size

    def rows(self, level: Array) -> Array:
        """How many nodes inside the ball |t| <= R lie in the lattice rows up to each: the index of a node finds its row.

        A row is a line of nodes along the last axis. Dropping the corners of the box saves 21 % of the nodes in two
        dimensions and 48 % in three, at the price of a tail e^{-R²/2} that the error estimate includes.
        """
        if not self.trapezoid:
            return jnp.asarray(self.sizes)[level][None]
        size, half_width = jnp.asarray(self.sizes)[level], jnp.asarray(self.half_widths)[level]
        row = jnp.arange(max(self.sizes) ** (self.dimension - 1))
        step = 2 * half_width / size
        radius = half_width**2
        for k in range(self.dimension - 1):
            radius = radius - (((row // size**k) % size + 0.5) * step - half_width) ** 2
        # columns run symmetrically about the centre, size being even
        per_row = 2 * jnp.floor(jnp.sqrt(jnp.maximum(radius, 0.0)) / step + 0.5).astype(int)
        return jnp.cumsum(jnp.where(row < size ** (self.dimension - 1), per_row, 0))

    def nodes(self, index: Array, level: Array, rows: Array) -> tuple[Array, Array, Array, Array]:
        """Nodes t (n, d), log-weights (n,), coset sign (n,) of the half-rule, and the weight of the cut-off tail (n,)."""
        dtype = theory_dtype()
        size = jnp.asarray(self.sizes)[level]
        inside = index < rows[-1]
        if not self.trapezoid:
            shift = jnp.full((self.dimension,), 0.5, dtype)
            t = gaussian_lattice(index, size, self.dimension, shift)
            log_weight = -jnp.log(size.astype(dtype)) * jnp.ones(index.shape, dtype)
            coset, tail = 1.0 - 2.0 * (index % 2), jnp.zeros(index.shape, dtype)
        else:
            half_width = jnp.asarray(self.half_widths, dtype)[level]
            step = 2 * half_width / size
            row = jnp.minimum(jnp.searchsorted(rows, index, side="right"), rows.shape[0] - 1)
            before = jnp.where(row > 0, rows[row - 1], 0)
            column = (size - (rows[row] - before)) // 2 + index - before
            digits = [*((row // size**k) % size for k in range(self.dimension - 1)), column]
            t = jnp.stack([(digit + 0.5) * step - half_width for digit in digits], axis=1).astype(dtype)
            square = jnp.sum(t * t, axis=1)
            log_weight = -0.5 * square + self.dimension * (jnp.log(step) - 0.5 * np.log(2 * np.pi))
            coset = 1.0 - 2.0 * (sum(digits) % 2)
            # mass beyond R per weight in the last shell is 1/(R h); it enters second moments times R²
            tail = jnp.where(square > (half_width - step) ** 2, half_width / step, 0.0)
        return t, jnp.where(inside, log_weight, -1e300), coset.astype(dtype), tail.astype(dtype)

    def trust(self, difference: Array) -> Array:
        """Error of the full rule, given its difference to the half-rule on one coset.

        Trapezoidal sums of analytic integrands converge so fast that the error is near the square of that of the coset
        with half the nodes; the power 1.5 is the one that held on all brute-force cases. Lattices: the difference.
        """
        return jnp.where(difference < 1.0, difference**1.5, difference) if self.trapezoid else difference


def _block_shape() -> tuple[int, int]:
    """Samples and nodes worked on at once: cache-sized on a CPU, occupancy-sized on an accelerator."""
    return (32, 256) if jax.default_backend() == "cpu" else (512, 2048)


def self_refining_moments(
    integrand: Callable[[Any, Array], tuple[Array, Sequence[tuple[Array, Sequence[Array]]]]],
    samples: Any,
    respond: Callable[[Array, Array], tuple[Array, Array]],
    *,
    inner: int,
    outer: int,
    budget: Budget,
    start: Array | None = None,
) -> Moments:
    r"""Posterior moments of τ = (t, r(t)) for a batch of samples, refined sample by sample until the error is met.

    For each sample, with t ∈ R^inner standard Gaussian and one or more branches s (sign copies),
        mass = Σ_s ∫ φ(t) f(t) e^{ℓ_s(t)} dt,   ⟨τ⟩, ⟨ττᵀ⟩ under the normalised weight,   τ = (t, r_s(t)) ∈ R^{inner+outer}.

    Arguments: `integrand(block, t)`: for a block of S samples and nodes t (n, inner), the positive factor f (S, n) and one
    (ℓ (S, n), [r_1 .. r_outer]) per branch. `samples`: pytree with leading axis N. `respond(mean (S, K), covariance (S, K, K))` -> (g, dg), the
    quantities whose error counts. `budget`: tolerance and largest rule. `start`: level to begin with (scalar).

    Each level is compared with its own half-rule (every second node), which costs nothing. Samples that miss the
    tolerance go on to the next level, alone; those that still miss it at the last keep their error, for the caller to
    see. Memory is bounded by the block, whatever N. Forward-mode differentiable; not reverse-mode (trip counts are dynamic).
    Cost: (nodes) × (one integrand + about (K+1)²/2 multiply-adds per branch).
    """
    size_of_block, chunk = _block_shape()
    total = jax.tree.leaves(samples)[0].shape[0]
    S = min(size_of_block, total)
    K = inner + outer
    rule = _Rule(inner, budget.max_nodes)
    narrow, last = rule.narrow, len(rule.sizes) - 1
    dtype = theory_dtype()
    upper_in = [(i, j) for i in range(inner) for j in range(i, inner)]
    upper_out = [(i, j) for i in range(outer) for j in range(i, outer)]

    def chunk_sums(block: Any, index: Array, level: Array, rows: Array) -> tuple[Array, Array]:
        t, log_node, coset, tail = rule.nodes(index, level, rows)
        factor, branches = integrand(block, t)
        branches = [(ell + log_node, residuals) for ell, residuals in branches]
        top = jnp.max(jnp.stack([jnp.max(ell, axis=1) for ell, _ in branches]), axis=0)
        top = lax.stop_gradient(jnp.maximum(top, -1e290))
        weights = [factor * jnp.exp(ell - top[:, None]) for ell, _ in branches]

        def total_of(terms: list[Array], features: Array) -> Array:
            return jnp.dot(sum(terms[1:], terms[0]), features, precision="highest")

        def both(features: list[Array]) -> Array:  # (n, 2F): over all nodes, and signed by coset
            stacked = jnp.stack(features, axis=1)
            return jnp.concatenate([stacked, stacked * coset[:, None]], axis=1)

        one = jnp.ones_like(coset)
        linear = both([one, *t.T])
        quadratic = both([one, *t.T, *(t[:, i] * t[:, j] for i, j in upper_in)])
        sums = [total_of(weights, jnp.concatenate([quadratic, tail[:, None]], axis=1))]
        for m in range(outer):
            sums.append(total_of([w * r[m] for w, (_, r) in zip(weights, branches, strict=True)], linear))
        for m, n in upper_out:
            sums.append(total_of([w * r[m] * r[n] for w, (_, r) in zip(weights, branches, strict=True)], both([one])))
        squares = sum(jnp.sum(w * w, axis=1) for w in weights)
        return top, jnp.concatenate([*sums, squares[:, None]], axis=1)

    columns = 2 * (1 + inner + len(upper_in)) + 1 + 2 * outer * (1 + inner) + 2 * len(upper_out) + 1

    def unpack(sums: Array, half: bool) -> tuple[Array, Array, Array]:
        """Mass, mean and covariance of τ, from all nodes or from those of one coset."""

        def take(position: int, width: int) -> Array:
            full, signed = sums[:, position : position + width], sums[:, position + width : position + 2 * width]
            return full + signed if half else full

        quadratic = take(0, 1 + inner + len(upper_in))
        mass, offset = quadratic[:, 0], 2 * (1 + inner + len(upper_in)) + 1
        mean, second = [quadratic[:, 1 + i] for i in range(inner)], {}
        for k, (i, j) in enumerate(upper_in):
            second[i, j] = quadratic[:, 1 + inner + k]
        for m in range(outer):
            cross = take(offset, 1 + inner)
            offset += 2 * (1 + inner)
            mean.append(cross[:, 0])
            second.update({(i, inner + m): cross[:, 1 + i] for i in range(inner)})
        for m, n in upper_out:
            second[inner + m, inner + n] = take(offset, 1)[:, 0]
            offset += 2
        mean = jnp.stack(mean, axis=1) / mass[:, None]
        second = jnp.stack([second[min(i, j), max(i, j)] for i in range(K) for j in range(K)], axis=1)
        covariance = second.reshape(-1, K, K) / mass[:, None, None] - mean[:, :, None] * mean[:, None, :]
        return mass, mean, covariance

    def solve_block(block: Any, level: Array, rows: Array) -> tuple[Moments, Array]:
        def merge(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            top, sums = carry
            new_top, new_sums = chunk_sums(block, step * chunk + jnp.arange(chunk), level, rows)
            both_top = jnp.maximum(top, new_top)
            scale, new_scale = jnp.exp(top - both_top)[:, None], jnp.exp(new_top - both_top)[:, None]
            is_square = jnp.arange(columns) == columns - 1  # the sum of squared weights scales twice
            scale, new_scale = (jnp.where(is_square, x * x, x) for x in (scale, new_scale))
            return both_top, sums * scale + new_sums * new_scale

        steps = -(-rows[-1] // chunk)
        initial = (jnp.full((S,), -1e300, dtype), jnp.zeros((S, columns), dtype))
        top, sums = lax.fori_loop(0, steps, merge, initial)
        mass, mean, covariance = unpack(sums, half=False)
        _, half_mean, half_covariance = unpack(sums, half=True)
        g, dg = respond(mean, covariance)
        half_g, half_dg = respond(half_mean, half_covariance)
        tail = sums[:, 2 * (1 + inner + len(upper_in))] / mass

        def relative(a: Array, b: Array) -> Array:
            a, b = a.reshape(S, -1), b.reshape(S, -1)
            difference = jnp.max(jnp.abs(a - b), axis=1) / (1.0 + jnp.max(jnp.abs(a), axis=1))
            return jnp.where(jnp.isfinite(difference), difference, jnp.inf)

        error = relative(g, half_g)
        dg_error = jnp.maximum(error, relative(dg, half_dg))
        ess = mass**2 / sums[:, -1]
        nodes = jnp.full((S,), rows[-1])
        errors = (rule.trust(x) + tail for x in (error, dg_error))
        return Moments(top + jnp.log(mass), g, dg, ess, *errors, nodes), tail

    def level_pass(carry: tuple[Array, Array, Moments]) -> tuple[Array, Array, Moments]:
        level, due, store = carry
        pending, rows = due == level, rule.rows(level)
        order = jnp.argsort(jnp.where(pending, 0, 1), stable=True)
        count = jnp.sum(pending)

        def one_block(b: Array, inner_carry: tuple[Array, Moments]) -> tuple[Array, Moments]:
            due, store = inner_carry
            which = order[jnp.minimum(b * S + jnp.arange(S), total - 1)]
            valid = b * S + jnp.arange(S) < count
            which = jnp.where(valid, which, total)  # out of range: dropped by the scatter, clamped by the gather
            new, tail = solve_block(jax.tree.map(lambda x: x.at[which].get(mode="clip"), samples), level, rows)
            met = (new.error <= budget.tolerance) & (new.dg_error <= 10 * budget.tolerance) & (new.ess >= _MIN_ESS)
            # far from the goal: skip a level; at the edge of the box: go to the wide one; out of levels: keep the
            # error for the caller to see
            end = jnp.where(level < narrow, narrow - 1, last)
            finer = jnp.minimum(level + jnp.where(new.error > 1.0, 2, 1), end)
            wider = narrow + jnp.maximum(level - 2, 0)
            at_edge = (tail > 0.5 * budget.tolerance) & (level < narrow) & (narrow <= last)
            next_due = jnp.where(at_edge, wider, jnp.where(level >= end, last + 1, finer))
            next_due = jnp.where(met, last + 1, next_due)
            store = jax.tree.map(lambda old, x: old.at[which].set(x, mode="drop"), store, new)
            return due.at[which].set(next_due, mode="drop"), store

        due, store = lax.fori_loop(0, -(-count // S), one_block, (due, store))
        return level + 1, due, store

    def empty(shape: Any) -> Array:
        return jnp.zeros((total, *shape.shape[1:]), shape.dtype)

    first = jnp.zeros((), int) if start is None else jnp.clip(start, 0, narrow - 1)
    sample_block = jax.tree.map(lambda x: jax.ShapeDtypeStruct((S, *x.shape[1:]), x.dtype), samples)
    shapes = jax.eval_shape(lambda block: solve_block(block, first, rule.rows(first))[0], sample_block)
    store = jax.tree.map(empty, shapes)
    due = jnp.full((total,), first)
    _, _, store = lax.while_loop(lambda c: (c[0] <= last) & jnp.any(c[1] <= last), level_pass, (first, due, store))
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
