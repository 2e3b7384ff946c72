r"""Search for jumps of a function of the fields, and of its gradient: derivatives along its labels
miss such jumps [theory: numerics, section 9], and sums over grids converge slowly
[theory: numerics, Eq. (4)].

Lines through random fields are cut into intervals, and each interval is halved, towards the half in
which the label changes more, until its ends are neighbours in floating point. A label that is
continuous changes there by rounding; one that jumps, by the jump.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.numerics.implicit import numbers_of
from jaxsmi.numerics.quadrature import WIDEST

_LINES = 16  # random lines through the fields
_INTERVALS = 128  # intervals on each line

# a gradient that changes by this share of its range within _TURN_HALVINGS halvings (some 0.005 of a
# field) is as bad as a kink: tanh(13 z), sin(20 z)
_TURN = 0.05
_TURN_HALVINGS = 3


class _Changes(NamedTuple):
    """Largest change of a label across an interval after `_TURN_HALVINGS`, the final changes across
    all intervals (lines, intervals), the range of labels, the function from points of the lines to
    labels of a law, and the ends of the intervals."""

    early: Array
    each: Array
    scale: Array
    labels: Callable[[Callable[[Array], Array], Array], Array]
    ends: tuple[Array, Array]

    @property
    def jumps(self) -> Array:
        """The intervals (lines, intervals) whose last change exceeds the smallest jump that differs
        from a steep rise."""
        # far above rounding of a label, far below any jump that matters
        smallest = 1e-6 if self.each.dtype == jnp.float64 else 1e-3
        return self.each > smallest * self.scale


def continuous(law: Callable[[Array], Array], indices: int, tokens: int) -> Array:
    """Return True if a label (of any shape) is continuous in fields (P, M): a boolean, traced if
    the law's parameters are.

    Cost: some 10⁵ labels.
    """
    return ~jnp.any(_changes(law, indices, tokens).jumps)


def steady(law: Callable[[Array], Array], indices: int, tokens: int) -> list[Array]:
    """Return, for each floating point array of a law that is a tree, True if its numbers move no
    jump of the label: where fields are fixed, the label then has a derivative in them.

    Next to every jump that the search finds, the numbers move by much more than its accuracy; a
    label that changes by half of the jump has been passed by it.

    Cost: that of `continuous`, and some 10⁴ labels for each array.
    """
    changes = _changes(law, indices, tokens)
    double = changes.each.dtype == jnp.float64
    # the ends are apart by some rounding errors, so that no other program sees the jump elsewhere
    apart, step = (1e-13, 1e-9) if double else (1e-6, 1e-3)
    low, high = changes.ends
    points = jnp.concatenate([low - apart, high + apart], axis=1)
    before = changes.labels(law, points)
    leaves, put = numbers_of(law)
    sizes = jnp.tile(changes.each, (1, 2))
    found = jnp.tile(changes.jumps, (1, 2))

    def stays(place: int) -> Array:
        leaf = leaves[place]
        # random steps away from zero, so that no two numbers of an array cancel
        share = np.random.default_rng(place).uniform(0.5, 1.0, leaf.shape)
        moved = leaf + jnp.asarray(step * share, leaf.dtype) * (1.0 + jnp.abs(leaf))
        after = changes.labels(put([*leaves[:place], moved, *leaves[place + 1 :]]), points)
        change = jnp.max(jnp.abs(after - before), axis=-1)
        return jnp.all(~found | (change < 0.5 * sizes))

    return [stays(place) for place in range(len(leaves))]


def _changes(law: Callable[[Array], Array], indices: int, tokens: int) -> _Changes:
    """Find the largest change of a label across an interval, by halving."""
    dtype = theory_dtype()
    # halve from 2^-7 of a line down to neighbours in floating point
    halvings = 44 if dtype == jnp.float64 else 18
    # lines twice as long as fields: jumps in the tails count as well
    ends = np.random.default_rng(0).standard_normal((2, _LINES, indices, tokens)) * 2.0
    lines, intervals = _LINES, _INTERVALS
    if indices * tokens == 1:  # one line holds all fields
        ends, lines, intervals = WIDEST * np.array([[[[-1.0]]], [[[1.0]]]]), 1, _LINES * _INTERVALS
    first, last = (jnp.asarray(end, dtype) for end in ends)

    def labels_of(law: Callable[[Array], Array], t: Array) -> Array:
        """Return labels (lines, intervals, ..) at the points t (lines, intervals) of the lines."""
        share = t[..., None, None]
        fields = (1.0 - share) * first[:, None] + share * last[:, None]
        return jax.vmap(jax.vmap(law))(fields).reshape(*t.shape, -1)

    def change(one: Array, other: Array) -> Array:
        return jnp.max(jnp.abs(one - other), axis=-1)

    def halve(step: int | Array, now: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, at_low, at_high, early = now
        early = jnp.where(step == _TURN_HALVINGS, jnp.max(change(at_low, at_high)), early)
        middle = 0.5 * (low + high)
        between = labels_of(law, middle)
        lower = change(between, at_low) >= change(at_high, between)
        low, high = jnp.where(lower, low, middle), jnp.where(lower, middle, high)
        lower = lower[..., None]
        at_low, at_high = jnp.where(lower, at_low, between), jnp.where(lower, between, at_high)
        return low, high, at_low, at_high, early

    grid = jnp.tile(jnp.linspace(0.0, 1.0, intervals + 1, dtype=dtype), (lines, 1))
    labels = labels_of(law, grid)
    start = (grid[:, :-1], grid[:, 1:], labels[:, :-1], labels[:, 1:], jnp.zeros((), labels.dtype))
    low, high, at_low, at_high, early = lax.fori_loop(0, halvings, halve, start)
    scale = jnp.max(labels) - jnp.min(labels)
    return _Changes(early, change(at_low, at_high), scale, labels_of, (low, high))


def jumps_of(law: Callable[[Array], Array], count: int) -> tuple[Array, Array]:
    """Return the jumps (count,) of a label of one field that are next to 0, again and again if they
    are fewer, 0 without a jump; and their number.

    Cost: that of `continuous`.
    """
    changes = _changes(law, 1, 1)
    jumps, share = changes.jumps[0], changes.ends[0][0]
    field = jnp.where(jumps, WIDEST * (2.0 * share - 1.0), 0.0)
    nearest = field[jnp.argsort(jnp.where(jumps, jnp.abs(field), jnp.inf))]
    found = jnp.sum(jumps)
    return nearest[jnp.arange(count) % jnp.clip(found, 1, count)], found


def gradient_of(law: Callable[[Array], Array], indices: int, tokens: int) -> Callable | None:
    """Return the gradient of a label; None if JAX has none, as of a rule for reverse mode alone."""
    gradient = jax.jacfwd(law)
    try:
        jax.eval_shape(gradient, jnp.zeros((indices, tokens), theory_dtype()))
    except TypeError:
        return None
    return gradient


def kinked(law: Callable[[Array], Array], indices: int, tokens: int) -> Array:
    """Return True if the gradient of a label jumps, or turns so fast that grids see a jump of it
    (`_TURN`), or if JAX has none.

    Cost: some 10⁵ gradients.
    """
    gradient = gradient_of(law, indices, tokens)
    if gradient is None:
        return jnp.ones((), bool)
    changes = _changes(gradient, indices, tokens)
    return jnp.any(changes.jumps) | (changes.early > _TURN * changes.scale)
