r"""Whether a function of the fields jumps, or its gradient does, found by looking: derivatives
along its labels then miss the jumps [theory: numerics, section 9].

Lines through random fields are cut into intervals, and each interval is halved, towards the half in
which the label changes more, until its ends are neighbours in floating point. A label that is
continuous changes there by rounding; one that jumps, by the jump.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype

__all__ = ["continuous", "kinked"]

_LINES = 16
_INTERVALS = 128


def continuous(law: Callable[[Array], Array], indices: int, tokens: int) -> Array:
    """Whether a label (of any shape) is continuous in fields (P, M): a boolean, traced where the
    law's parameters are.

    Cost: some 10⁵ labels.
    """
    dtype = theory_dtype()
    # steps of the halving, and the smallest jump that is told from a steep rise, of the range
    halvings, smallest = (44, 1e-6) if dtype == jnp.float64 else (18, 1e-3)
    ends = np.random.default_rng(0).standard_normal((2, _LINES, indices, tokens)) * 2.0
    first = jnp.asarray(ends[0], dtype)
    last = jnp.asarray(ends[1], dtype)

    def label(t: Array) -> Array:
        """Labels (lines, intervals, ..) at the places t (lines, intervals) of the lines."""
        place = t[..., None, None]
        fields = (1.0 - place) * first[:, None] + place * last[:, None]
        return jax.vmap(jax.vmap(law))(fields).reshape(*t.shape, -1)

    def change(one: Array, other: Array) -> Array:
        return jnp.max(jnp.abs(one - other), axis=-1)

    def halve(_: int | Array, now: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, at_low, at_high = now
        middle = 0.5 * (low + high)
        between = label(middle)
        lower = change(between, at_low) >= change(at_high, between)
        return (
            jnp.where(lower, low, middle),
            jnp.where(lower, middle, high),
            jnp.where(lower[..., None], at_low, between),
            jnp.where(lower[..., None], between, at_high),
        )

    grid = jnp.tile(jnp.linspace(0.0, 1.0, _INTERVALS + 1, dtype=dtype), (_LINES, 1))
    labels = label(grid)
    start = (grid[:, :-1], grid[:, 1:], labels[:, :-1], labels[:, 1:])
    *_, at_low, at_high = lax.fori_loop(0, halvings, halve, start)
    scale = jnp.max(labels) - jnp.min(labels)
    return ~(jnp.max(change(at_low, at_high)) > smallest * scale)


def kinked(law: Callable[[Array], Array], indices: int, tokens: int) -> Array:
    """Whether the gradient of a label jumps, found likewise; where JAX has none, it may.

    Cost: some 10⁵ gradients.
    """
    gradient = jax.jacfwd(law)
    try:
        jax.eval_shape(gradient, jnp.zeros((indices, tokens), theory_dtype()))
    except TypeError:  # of a law with a rule for reverse mode alone
        return jnp.ones((), bool)
    return ~continuous(gradient, indices, tokens)
