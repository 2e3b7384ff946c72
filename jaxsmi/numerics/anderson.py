r"""Fixed points of smooth maps of any tree of arrays, by Anderson's acceleration.

Equations here [WN11; theory: empirical-risk, Eq. (19)], r_k = F(x_k) - x_k:

    x_{k+1} = F(x_k) - Σ_j γ_j (F(x_{j+1}) - F(x_j)),   γ = argmin ‖r_k - Σ_j γ_j (r_{j+1} - r_j)‖

over the last five steps, every number measured in its own units. A step that leaves the region of
the map, or comes after a residual that more than doubled, is the plain F(x_k).
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from jaxsmi.core.codes import Result, choose
from jaxsmi.core.driver import AbstractSolver

__all__ = ["Anderson", "Place"]

_DEPTH = 5
_RIDGE = 1e-14  # of the least squares problem, relative


class Place(eqx.Module):
    """Where the iteration is: x, the last residual in units, the differences of the last steps in
    units (depth, n) of r and of F, the values before, and how many differences there are."""

    x: PyTree
    residual: Array
    change: Array
    moved: Array
    before: Array
    value: Array
    count: Array
    finite: Array


class Anderson(AbstractSolver[Place]):
    """x ← F(x), accelerated (module docstring).

    Args:
        map_of: F, of a tree to a tree of the same shapes.
        start: x_0.
        units: units(x), a tree like x: the size that each number is measured by.
        admissible: admissible(x), whether x lies where F is defined.
        observed: observed(x), what is recorded of x.
        tolerance: On the largest residual, in units.
        accelerated: False: plain steps.
        max_steps: Steps at most.
    """

    map_of: Callable[[PyTree], PyTree]
    initial: PyTree
    units: Callable[[PyTree], PyTree]
    admissible: Callable[[PyTree], Array]
    observed: Callable[[PyTree], dict[str, Array]]
    tolerance: Array
    accelerated: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def init(self) -> Place:
        """x_0."""
        flat, _ = ravel_pytree(self.initial)
        none = jnp.zeros((_DEPTH, flat.size), flat.dtype)
        infinite = jnp.asarray(jnp.inf, flat.dtype)
        nothing = jnp.zeros_like(flat)
        count = jnp.zeros((), int)
        yes = jnp.ones((), bool)
        return Place(self.initial, infinite, none, none, nothing, nothing, count, yes)

    def step(self, state: Place, count: Array) -> Place:
        """F(x), or the accelerated step from it."""
        x, build = ravel_pytree(state.x)
        value, _ = ravel_pytree(self.map_of(state.x))
        units, _ = ravel_pytree(self.units(state.x))
        r = (value - x) / units
        residual = jnp.max(jnp.abs(r))
        known = count > 0
        worse = residual > 2.0 * state.residual
        push = lambda table, row: jnp.roll(table, 1, axis=0).at[0].set(row)
        change = push(state.change, jnp.where(known, r - state.before, 0.0))
        moved = push(state.moved, jnp.where(known, value - state.value, 0.0))
        kept = jnp.where(worse, 0, jnp.minimum(state.count + known, _DEPTH))
        inside = (jnp.arange(_DEPTH) < kept)[:, None]
        change = jnp.where(inside, change, 0.0)
        moved = jnp.where(inside, moved, 0.0)
        gram = change @ change.T
        ridge = _RIDGE * jnp.trace(gram) + jnp.finfo(gram.dtype).tiny
        weight = jnp.linalg.solve(gram + ridge * jnp.eye(_DEPTH, dtype=gram.dtype), change @ r)
        candidate = value - weight @ moved
        candidate = jnp.where(jnp.all(jnp.isfinite(candidate)), candidate, value)
        take = self.accelerated & (kept > 0) & self.admissible(build(candidate))
        new = jnp.where(take, candidate, value)
        finite = jnp.all(jnp.isfinite(value))
        return Place(build(new), residual, change, moved, r, value, kept, finite)

    def observe(self, state: Place, count: Array) -> dict[str, Array]:
        """x and the residual."""
        entry = self.observed(state.x)
        residual = jnp.where(count == 0, jnp.nan, state.residual)
        return {"step": count.astype(residual.dtype), **entry, "residual": residual}

    def terminate(self, state: Place, count: Array) -> Array:
        """SUCCESS within the tolerance, MAX_STEPS, or DIVERGED where F is not finite any more."""
        return choose(
            (count >= self.max_steps, Result.MAX_STEPS),
            (state.residual <= self.tolerance, Result.SUCCESS),
            (~state.finite, Result.DIVERGED),
        )
