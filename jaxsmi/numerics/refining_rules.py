r"""The rules that `self_refining_moments` climbs: trapezoidal grids, and randomised nets.

Equations here:

* the trapezoidal rule, ∫ φ(t) f(t) dt ≈ h^d Σ_k φ(t_k) f(t_k), on the nodes of a ball: for a smooth
  f the error falls faster than any power of h [TW14], [theory: numerics, Eqs. (1) to (4)];
* a randomised Gaussian net, (1/N) Σ_i f(t_i) [M98], [theory: numerics, Eqs. (8), (9)]; at fine
  levels the net of a wider Gaussian, (1/N) Σ_i f(s t_i) φ(s t_i) s^d/φ(t_i), whose effective
  number of points at f = 1 is that of a net over (s²/√(2s² - 1))^d.

A rule is a list of levels, from coarse to fine. Its nodes fall into groups, interleaved parts that
are rules of their own; their disagreement with the whole is the error estimate, at no cost.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.quadrature import Net, nets
from jaxsmi.numerics.refining_sums import Block, Nodes, no_weight

# Radius of the ball of nodes in standard deviations (4e-8 of a Gaussian's mass lies outside 5.5),
# and that of a second family of rules, for the few samples whose posterior reaches the first's edge
RADIUS = 5.5
WIDE_RADIUS = 9.0
WIDE_OFFSET = 2  # the two coarsest sizes are too coarse there

# sizes of the levels by the number of variables: powers of two where nodes are cheap; in more
# variables, where each node is dear, steps of about 2^(1/2)
NODES_PER_AXIS: dict[int, tuple[int, ...]] = {
    1: tuple(2**k for k in range(5, 17)),
    2: (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
    3: (20, 28, 40, 56, 80, 100, 128, 160),
}
# volume of a ball over that of the box around it
_BALL = {1: 1.0, 2: np.pi / 4, 3: np.pi / 6}

# spacing of the first level, in widths of the narrowest feature: at 2 to 3 widths of a Gaussian the
# trapezoidal error is 1e-2 to 1e-1, where refining starts to pay
_FIRST_SPACING = 2.6

# c and p of the error c e^p, e the largest difference of a half, on grids that are moved or not
# [theory: numerics, Eq. (4)]
_ON_MOVED = (3.0, 4.0 / 3.0)
_ON_CENTRED = (1.0, 1.5)

_SHIFT = 0.25  # share of a spacing by which a grid is moved off its centre of symmetry
# nodes worked on at once, at least; of two axes the groups of the first grids have 203, 451, 807
# and 1808 (empirical: these fill the blocks best)
_NODES = {1: 64, 2: 228, 3: 128}

_NETS = 8  # independent randomisations of a net: their spread is the error
_ERRORS = 3.0  # standard errors, of F components with seven degrees of freedom each
# empirical: error of scrambled nets on posteriors of attention falls as N^(-0.9); at most five
# doublings at once, as an error estimate of few nodes is not to be trusted further
_RATE, _DOUBLINGS = 0.9, 5
# From the level of 8192 points on the points of a net are those of a wider Gaussian: what is left
# there is in the tails. Its width is such that the effective number of points halves where the
# integrand is flat (empirical: of 4096 labels of unbounded links of two and three fields none then
# needed more than 65536 points, instead of a million). Where an integrand places its nodes itself,
# they reach the tails as they are.
_WIDE_LEVEL, _LOSS = 3, 2.0
_KINKED = 3.0  # error of links with kinks over the difference of a half [theory: numerics, Eq. (4)]

_NET_SIZES = tuple(_NETS * 2**k for k in range(7, 21))


def grid_fits(dimension: int, max_nodes: int) -> bool:
    """An integral is a sum over grids: of at most three variables, and with nodes enough for the
    coarsest. One of no variables is no integral, and fits."""
    if dimension not in NODES_PER_AXIS:
        return dimension == 0
    return _BALL[dimension] * NODES_PER_AXIS[dimension][0] ** dimension <= max_nodes


def standard_error(full: Array, parts: Array) -> Array:
    """The largest one (S,) of F averages (S, F) of groups (G, S, F)."""
    groups = len(parts)
    variance = jnp.sum((parts - full) ** 2, axis=0) / (groups * (groups - 1))
    return jnp.sqrt(jnp.max(variance, axis=-1))


class AbstractRule(eqx.Module):
    """A family of rules for integrals against a standard Gaussian, from coarse to fine.

    Attributes:
        sizes: Of each level: nodes per axis, or points of all nets.
        narrow: Number of levels in the narrow ball; those after them lie in the wide one, for
            samples whose posterior reaches the edge.
        groups: Number of interleaved parts of a level, each a rule of its own.
        single_precision: Nodes may be weighed in single precision.
        blocks: Samples and nodes worked on at once, at least and at most (`block_within`).
    """

    single_precision: ClassVar[bool] = False

    sizes: tuple[int, ...] = eqx.field(static=True)
    narrow: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    blocks: tuple[Block, Block] = eqx.field(static=True)

    @abc.abstractmethod
    def rows(self, level: Array) -> Array:
        """Number of nodes of one group in the rows up to each; the last entry counts all."""

    @abc.abstractmethod
    def nodes(self, start: Array, count: int, group: Array, level: Array, rows: Array) -> Nodes:
        """`count` nodes of a group, from number `start` on; those past its end have no weight."""

    @property
    def hidden(self) -> Array | None:
        """Jumps of the integrand may cancel in all groups; None where they never do."""
        return None

    def halves(self, parts: Array) -> Array | None:
        """The tables (G, S, ...) of the groups in two independent halves, (2, G/2, S, ...); None
        where the nodes are not random."""
        return None

    @abc.abstractmethod
    def stride(self, error: Array, tolerance: Array) -> Array:
        """Number of levels to go up from an error that misses the tolerance."""

    @abc.abstractmethod
    def disagreement(self, full: Array, parts: Array) -> Array:
        """Error (S,) of a rule, from its value (S, F) and those of its groups (G, S, F).

        It is relative to 1 + max|full|.
        """

    def compared(self, parts: Array) -> Array:
        """The tables that are compared with the whole, from those of the groups (G, S, ...)."""
        return parts


class TrapezoidRule(AbstractRule):
    """Trapezoidal sums in one to three variables on the nodes of a ball |t| <= radius.

    A group holds the nodes of one parity along every axis, 2^d in all, mirror images of one another
    [theory: numerics, section 3]. Halves of one parity along one axis, and of one chequerboard of
    two axes, are compared with the whole: a chequerboard of all axes is blind to what is narrow
    along one of them and wide along another, as to a jump across a plane along an axis
    [theory: numerics, Eq. (5)].

    What is even in t and narrow, mirror images see alike. The fields of attention change their sign
    token by token together, which a chequerboard of two axes sees. In one variable, and where
    `jumps` says that labels may be anything, the grid is moved by a quarter of its spacing instead,
    after which its halves are no mirror images.

    Dropping the corners of the box saves 21 % of the nodes in two dimensions and 48 % in three, at
    the price of a tail e^{-radius²/2} that the error estimate includes.
    """

    dimension: int = eqx.field(static=True)
    radii: tuple[float, ...] = eqx.field(static=True)
    shift: float = eqx.field(static=True)
    analytic: Array
    jumps: Array | None

    def __init__(
        self,
        dimension: int,
        max_nodes: int,
        analytic: Array | bool = True,
        jumps: Array | None = None,
    ):
        table = NODES_PER_AXIS[dimension]
        sizes = tuple(size for size in table if _BALL[dimension] * size**dimension <= max_nodes)
        wide = sizes[WIDE_OFFSET:]
        self.dimension = dimension
        self.sizes: tuple[int, ...] = sizes + wide
        self.narrow: int = len(sizes)
        self.radii = (RADIUS,) * len(sizes) + (WIDE_RADIUS,) * len(wide)
        self.shift = 0.0 if dimension > 1 and jumps is None else _SHIFT
        self.analytic = jnp.asarray(analytic)
        self.jumps = jumps
        self.groups: int = 2**dimension
        # the groups of the first levels should fill the smallest
        self.blocks: tuple[Block, Block] = Block(16, _NODES[dimension]), Block(512, 2048)

    @property
    def hidden(self) -> Array | None:
        """True where one variable has jumps: even and odd nodes miss two jumps that cancel."""
        return self.jumps if self.dimension == 1 else None

    def rows(self, level: Array) -> Array:
        """Number of nodes of one group in the rows up to each; a row is a line of nodes along the
        last axis."""
        size = jnp.asarray(self.sizes)[level]
        radius = jnp.asarray(self.radii, theory_dtype())[level]
        count = size // 2
        row = jnp.arange((max(self.sizes) // 2) ** (self.dimension - 1))
        step = 2 * radius / size.astype(radius.dtype)
        square = radius**2
        for digit in self.digits(row, count):
            square = square - ((digit.astype(step.dtype) + 0.5) * step - radius) ** 2
        # columns run symmetrically about the centre (size is even): half of them are even
        per_row = jnp.floor(jnp.sqrt(jnp.maximum(square, 0.0)) / step + 0.5).astype(int)
        return jnp.cumsum(jnp.where(row < count ** (self.dimension - 1), per_row, 0))

    def digits(self, row: Array, count: Array) -> list[Array]:
        """Position of a row of the first group along the axes before the last."""
        return [2 * ((row // count**k) % count) for k in range(self.dimension - 1)]

    def nodes(self, start: Array, count: int, group: Array, level: Array, rows: Array) -> Nodes:
        """Nodes of a group, row by row."""
        dtype = theory_dtype()
        index = start + jnp.arange(count)
        size = jnp.asarray(self.sizes)[level]
        radius = jnp.asarray(self.radii, dtype)[level]
        step = 2 * radius / size.astype(dtype)
        row = jnp.searchsorted(rows, index, side="right").astype(index.dtype)
        row = jnp.minimum(row, rows.shape[0] - 1)
        before = jnp.where(row > 0, rows[row - 1], 0)
        digits = self.digits(row, size // 2)
        first = size // 2 - (rows[row] - before)
        digits.append(first + first % 2 + 2 * (index - before))
        t = (jnp.stack(digits, axis=1).astype(dtype) + 0.5) * step - radius
        bits = (group >> jnp.arange(self.dimension)) & 1
        t = t * (1 - 2 * bits).astype(dtype)
        outermost = jnp.sum(t * t, axis=1) > (radius - step) ** 2
        t = t + self.shift * step
        square = jnp.sum(t * t, axis=1)
        log_weight = -0.5 * square + self.dimension * (jnp.log(step) - 0.5 * np.log(2 * np.pi))
        log_weight = jnp.where(index < rows[-1], log_weight, no_weight(dtype))
        # mass beyond the ball per weight in its last shell; second moments take it times radius²
        beyond = radius**2 / jnp.expm1((radius - 0.5 * step) * step)
        tail = jnp.where(outermost, beyond, 0.0)
        return Nodes(t, log_weight, tail.astype(dtype))

    def stride(self, error: Array, tolerance: Array) -> Array:
        """One level, or two where the grid resolves nothing yet."""
        return jnp.where(error > 1.0, 2, 1)

    def compared(self, parts: Array) -> Array:
        """Both halves along each axis and of the chequerboard of each pair of axes, d (d + 1) in
        all; where the integrand may jump the groups as well."""
        bits = np.arange(self.groups) >> np.arange(self.dimension)[:, None] & 1
        first, second = np.triu_indices(self.dimension, 1)
        odd = np.concatenate([bits, bits[first] ^ bits[second]])
        halves = jnp.asarray(np.concatenate([1 - odd, odd]), parts.dtype)
        compared = jnp.tensordot(halves, parts, axes=1)
        by_groups = self.jumps is not None and self.dimension > 1
        return jnp.concatenate([compared, parts]) if by_groups else compared

    def disagreement(self, full: Array, parts: Array) -> Array:
        """c e^p, e the largest difference of a half; of links with kinks 3e; where the integrand
        jumps three standard errors of the mean of the groups [theory: numerics, Eq. (4)].

        Trapezoidal sums of analytic integrands converge so fast that the error is at most about the
        square of that of half the nodes; where a small part of the mass is not resolved it is that
        of half the nodes. A jump across a plane along the axes moves all groups by the same
        distance to either side, and the whole by at most as much: three standard errors are 1.7 and
        1.1 of that in two and three variables. What vanishes by a symmetry t -> -t of all nodes,
        which halves along one axis lack, is exact.
        """
        halves, groups = jnp.split(parts, [self.dimension * (self.dimension + 1)])
        scale = 1.0 + jnp.max(jnp.abs(full), axis=-1)
        nothing = jnp.sqrt(jnp.finfo(full.dtype).eps) * jnp.max(jnp.abs(halves), axis=0)
        apart = jnp.where(jnp.abs(full) <= nothing, 0.0, jnp.abs(halves - full))
        error = jnp.max(apart, axis=(0, -1)) / scale
        factor, power = _ON_MOVED if self.shift else _ON_CENTRED
        smooth = factor * jnp.where(error < 1.0, error**power, error)
        error = jnp.where(self.analytic, smooth, _KINKED * error)
        if self.jumps is None or self.dimension == 1:
            return error
        return jnp.where(self.jumps, _ERRORS * standard_error(full, groups) / scale, error)

    def level_for_width(self, width: Array) -> Array:
        """The first level whose spacing is at most 2.6 widths."""
        spacing = 2 * RADIUS / jnp.asarray(self.sizes[: self.narrow - 1], theory_dtype())
        return jnp.sum(spacing > _FIRST_SPACING * width[..., None], axis=-1)


class NetRule(AbstractRule):
    """Averages over randomised Gaussian nets, in any number of variables; a group is one net."""

    single_precision: ClassVar[bool] = True

    net: Net
    scale: float = eqx.field(static=True)

    def __init__(self, dimension: int, max_nodes: int, key: PRNGKeyArray, wide: bool = True):
        self.net = nets(key, _NETS, dimension)
        c = _LOSS ** (2.0 / dimension)  # s⁴/(2s² - 1) = c
        self.scale: float = float(np.sqrt(c + np.sqrt(c * (c - 1.0)))) if wide else 1.0
        self.sizes: tuple[int, ...] = tuple(size for size in _NET_SIZES if size <= max_nodes)
        self.narrow: int = len(self.sizes)
        self.groups: int = _NETS
        # points are costly, and many samples share them
        self.blocks: tuple[Block, Block] = Block(4, 128), Block(64, 16384)

    def rows(self, level: Array) -> Array:
        """One row holds all points of a group."""
        return jnp.asarray(self.sizes)[level][None] // self.groups

    def nodes(self, start: Array, count: int, group: Array, level: Array, rows: Array) -> Nodes:
        """Points of one randomisation, of equal weights."""
        dtype = theory_dtype()
        index = start + jnp.arange(count)
        size = jnp.asarray(self.sizes)[level]
        t = jax.tree.map(lambda x: x[group], self.net).gaussians(start, count)
        scale = jnp.where(level >= _WIDE_LEVEL, self.scale, 1.0)
        log_weight = -jnp.log(size.astype(dtype)) + t.shape[1] * jnp.log(scale)
        log_weight = log_weight - 0.5 * (scale**2 - 1.0) * jnp.sum(t * t, axis=1)
        t = scale * t
        log_weight = jnp.where(index < rows[-1], log_weight, no_weight(dtype))
        return Nodes(t, log_weight, jnp.zeros(index.shape, dtype))

    def halves(self, parts: Array) -> Array:
        """Every other net."""
        return parts.reshape(-1, 2, *parts.shape[1:]).swapaxes(0, 1)

    def stride(self, error: Array, tolerance: Array) -> Array:
        """Doublings that the error is short of (`_RATE`)."""
        doublings = jnp.ceil(jnp.log2(jnp.maximum(error / tolerance, 1.0)) / _RATE)
        return jnp.clip(jnp.nan_to_num(doublings, posinf=_DOUBLINGS), 1, _DOUBLINGS).astype(int)

    def disagreement(self, full: Array, parts: Array) -> Array:
        """Three standard errors: F components, with seven degrees of freedom each."""
        scale = 1.0 + jnp.max(jnp.abs(full), axis=-1)
        return _ERRORS * standard_error(full, parts) / scale
