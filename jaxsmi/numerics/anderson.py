r"""Fixed points of smooth maps of any tree of arrays, by Anderson's acceleration.

Equations here [WN11; theory: empirical-risk, Eq. (19)], r_k = F(x_k) - x_k:

    x_{k+1} = x_k + β r_k - Σ_j γ_j (x_{j+1} - x_j + β (r_{j+1} - r_j)),
    γ = argmin ‖r_k - Σ_j γ_j (r_{j+1} - r_j)‖

over the last five steps, every number measured in its own units, β = 1. A step that leaves the
region of the map is x_k + β r_k. Where the residual has more than doubled, the iteration goes back
to its best x, forgets the steps before, and takes a third of β, so that it converges for maps that
overshoot, too. With `growth` β grows again, up to one, in steps that are the best so far: a slow
transient may have made it small.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree, missing_where
from jaxsmi.core.driver import AbstractSolver
from jaxsmi.core.results import Result, choose

_DEPTH = 5  # usual [WN11]: the gain beyond is small
_RIDGE = 1e-14  # relative ridge of the least squares: above rounding of its normal equations
_WORSE, _CUT = 2.0, 3.0  # growth of the residual that cuts β, and by which factor: empirical
_LEAST = 0.05  # β at least: slopes down to -39 still converge


class AndersonState(eqx.Module):
    """State: x, the last residual in units, β, the last x and r (depth + 1, n), newest first, with
    the number of differences between them that count, the best x and r with their residual."""

    x: PyTree
    residual: Array
    mixing: Array
    positions: Array
    moves: Array
    count: Array
    best: tuple[Array, Array]
    least: Array
    finite: Array


class Anderson(AbstractSolver[AndersonState]):
    """x ← F(x), accelerated (module docstring).

    Args:
        map_of: F, of a tree to a tree of the same shapes.
        initial: x_0.
        units: units(x), a tree like x: the size that each number is measured by.
        admissible: admissible(x), True where F is defined.
        observed: observed(x), the record of x.
        tolerance: On the largest residual, in units.
        accelerated: False: plain steps.
        max_steps: Steps at most.
        growth: Of β, up to one, in a step that is the best so far. Default 1: it does not grow.
    """

    map_of: Callable[[PyTree], PyTree]
    initial: PyTree
    units: Callable[[PyTree], PyTree]
    admissible: Callable[[PyTree], Array]
    observed: Callable[[PyTree], dict[str, Array]]
    tolerance: Array
    accelerated: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    growth: float = eqx.field(static=True, default=1.0)

    def init(self) -> AndersonState:
        """x_0."""
        flat, _ = ravel_pytree(self.initial)
        none = jnp.zeros((_DEPTH + 1, flat.size), flat.dtype)
        infinite = jnp.asarray(jnp.inf, flat.dtype)
        return AndersonState(
            x=self.initial,
            residual=infinite,
            mixing=jnp.ones((), flat.dtype),
            positions=none,
            moves=none,
            count=jnp.asarray(-1),  # the first step has no x before it
            best=(flat, jnp.zeros_like(flat)),
            least=infinite,
            finite=jnp.ones((), bool),
        )

    def step(self, state: AndersonState, count: Array) -> AndersonState:
        """The step from x (module docstring)."""
        x, build = ravel_pytree(state.x)
        value, _ = ravel_pytree(self.map_of(state.x))
        units, _ = ravel_pytree(self.units(state.x))
        r = value - x
        residual = jnp.max(jnp.abs(r / units))
        finite = jnp.all(jnp.isfinite(value))
        back = self.accelerated & (state.mixing > _LEAST) & jnp.isfinite(state.least)
        worse = back & ~(residual <= _WORSE * state.least)
        pick = lambda a, b: jnp.where(worse, a, b)  # back to the best x
        x, r = pick(state.best[0], x), pick(state.best[1], r)
        # only in the best steps: growth after any step would undo the cut and cycle
        grown = jnp.where(residual < state.least, self.growth * state.mixing, state.mixing)
        mixing = pick(state.mixing / _CUT, jnp.minimum(grown, 1.0))
        push = lambda table, row: jnp.roll(table, 1, axis=0).at[0].set(row)
        positions, moves = push(state.positions, x), push(state.moves, r)
        # the way back starts afresh: differences of an overshoot mislead the fit
        kept = pick(0, jnp.minimum(state.count + 1, _DEPTH))
        inside = (jnp.arange(_DEPTH) < kept)[:, None]
        moved, change = (jnp.where(inside, t[:-1] - t[1:], 0.0) for t in (positions, moves))
        plain = x + mixing * r
        # least squares in units: the order parameters differ by orders of magnitude
        scaled = change / units
        gram = scaled @ scaled.T
        ridge = _RIDGE * jnp.trace(gram) + jnp.finfo(gram.dtype).tiny
        table = gram + ridge * jnp.eye(_DEPTH, dtype=gram.dtype)
        weight = jnp.linalg.solve(table, scaled @ (r / units))
        candidate = plain - weight @ (moved + mixing * change)
        # differences that are all zero leave a singular table
        candidate = jnp.where(jnp.all(jnp.isfinite(candidate)), candidate, plain)
        take = self.accelerated & (kept > 0) & self.admissible(build(candidate))
        new = jnp.where(take, candidate, plain)
        # β cannot shrink below its least value: there every step counts as the best
        better = finite & ((residual < state.least) | (state.mixing <= _LEAST))
        return AndersonState(
            x=build(new),
            residual=residual,
            mixing=mixing,
            positions=positions,
            moves=moves,
            count=kept,
            best=(jnp.where(better, x, state.best[0]), jnp.where(better, r, state.best[1])),
            least=jnp.where(better, residual, state.least),
            finite=finite | worse,
        )

    def observe(self, state: AndersonState, count: Array) -> dict[str, Array]:
        """x and the residual."""
        entry = self.observed(state.x)
        residual = missing_where(count == 0, state.residual)
        return {"step": count.astype(residual.dtype), **entry, "residual": residual}

    def terminate(self, state: AndersonState, count: Array) -> Array:
        """SUCCESS within the tolerance, MAX_STEPS, or DIVERGED where F is not finite any more."""
        return choose(
            (count >= self.max_steps, Result.MAX_STEPS),
            (state.residual <= self.tolerance, Result.SUCCESS),
            (~state.finite, Result.DIVERGED),
        )
