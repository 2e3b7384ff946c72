r"""Fixed points of monotone maps of a covariance, with an honest stopping test.

Equations here, for V ↦ F(V) on P×P symmetric matrices with Jacobian J:

* residual r = F(V) - V; the distance to the fixed point is about (I - J)^{-1} r, and where J is known badly ‖r‖/(1 - ρ), ρ the
  spectral radius of J: the larger of them, not the (damped) step, is what the tolerance is compared with (J is not normal:
  what is left of one layer can move another thirty times as much);
* Newton polish V + (I - J)^{-1} r, taken only where the iteration already contracts (ρ < 1);
* ρ by a shifted power iteration from the identity: J maps positive matrices to positive matrices, its leading
  eigenvalue is real with a positive eigenvector, and the shift kills oscillation between blocks;
* error propagation: an error δ of F moves the fixed point by (I - J)^{-1} δ;
* implicit derivative: dV = (I - J)^{-1} ∂_θ F dθ. At a marginal fixed point I - J is singular: NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxsmi.types import Array, Result


def apply(J: Array, X: Array) -> Array:
    """J[X] for a Jacobian (P, P, P, P) and a matrix (P, P)."""
    return jnp.einsum("abcd,cd->ab", J, X)


def bisect(above: Callable[[Array], Array], low: Array, high: Array, steps: int = 60) -> Array:
    """The point from which on `above(x)` is true, to (high - low)/2^(steps + 1); brackets of any one shape."""

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        over = above(middle)
        return jnp.where(over, ends[0], middle), jnp.where(over, middle, ends[1])

    low, high = lax.fori_loop(0, steps, halve, (low, high))
    return 0.5 * (low + high)


class Root(NamedTuple):
    """A root `x`, the `slope` there (a central difference, to about 1e-6), and the `values` at the ends of the bracket."""

    x: Array
    slope: Array
    values: Array


def root(function: Callable[[Array], Array], low: Array, high: Array, tolerance: float = 1e-9, steps: int = 80) -> Root:
    """Where `function`, of opposite signs at `low` and `high`, is zero, to an absolute `tolerance`: Chandrupatla's method,
    inverse quadratic interpolation where that is safe and bisection elsewhere; about ten evaluations. Scalars (vmap for more).

    The function occurs once in the compiled program, ends and slope included: what is solved for here takes seconds to compile.
    """
    apart = 1e-4  # of the two points that give the slope

    def step(c: tuple[Array, ...]) -> tuple[Array, ...]:
        a, b, _, fa, fb, _, t, ends, sides, count, tail = c
        smaller = jnp.abs(fa) < jnp.abs(fb)
        best, f_best = jnp.where(smaller, a, b), jnp.where(smaller, fa, fb)
        # written so that a NaN ends the search
        found = (count >= 2) & (~(jnp.abs(b - a) > tolerance) | (f_best == 0.0) | ~(count < steps))
        x = jnp.where(count == 0, low, jnp.where(count == 1, high, a + t * (b - a)))
        x = jnp.where(found, best + apart * jnp.where(tail == 0, -1.0, 1.0), x)
        f = function(x)
        ends = jnp.where((jnp.arange(2) == count) & ~found, f, ends)
        sides = jnp.where((jnp.arange(2) == tail) & found, f, sides)
        same = jnp.sign(f) == jnp.sign(fa)  # the root is between x and b; else between x and a
        last, f_last = jnp.where(same, a, b), jnp.where(same, fa, fb)
        other, f_other = jnp.where(same, b, a), jnp.where(same, fb, fa)
        xi, phi = (x - other) / (last - other), (f - f_other) / (f_last - f_other)
        safe = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
        one = f / (f_other - f) * f_last / (f_other - f_last)
        two = f / (f_last - f) * f_other / (f_last - f_other) * (last - x) / (other - x)
        edge = jnp.minimum(0.5, 0.25 * tolerance / jnp.abs(other - x))
        t = jnp.clip(jnp.where(safe, one + two, 0.5), edge, 1.0 - edge)
        begun = (low, high, low, ends[0], ends[1], ends[0], 0.5 * jnp.ones_like(t))
        moved = (x, other, last, f, f_other, f_last, t)
        new = (jnp.where(found, w, jnp.where(count < 2, u, v)) for u, v, w in zip(begun, moved, c[:7], strict=True))
        return *new, ends, sides, count + 1, jnp.where(found, tail + 1, tail)

    one, zero = jnp.ones_like(low), jnp.zeros((), int)
    pair = jnp.stack([one, -one])
    start = (low, high, low, one, -one, one, 0.5 * one, pair, pair, zero, zero)
    a, b, _, fa, fb, _, _, ends, sides, *_ = lax.while_loop(lambda c: c[-1] < 2, step, start)
    return Root(jnp.where(jnp.abs(fa) < jnp.abs(fb), a, b), (sides[1] - sides[0]) / (2.0 * apart), ends)


def spectral_radius(J: Array, steps: int = 200) -> Array:
    """Leading eigenvalue of a positive map J (P, P, P, P) on symmetric matrices, by shifted power iteration."""
    P = J.shape[0]
    shift = 0.25 * jnp.sqrt(jnp.sum(J * J)) / P + 1e-30

    def step(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        X, _ = carry
        Y = apply(J, X) + shift * X
        Y = 0.5 * (Y + Y.T)
        norm = jnp.sqrt(jnp.sum(Y * Y))
        return Y / jnp.where(norm > 0, norm, 1.0), norm - shift

    start = jnp.eye(P, dtype=J.dtype) / jnp.sqrt(float(P))
    return lax.fori_loop(0, steps, step, (start, jnp.zeros((), J.dtype)))[1]


def resolvent(J: Array, X: Array) -> Array:
    """(I - J)^{-1} X on P×P matrices."""
    P = J.shape[0]
    return jnp.linalg.solve(jnp.eye(P * P, dtype=J.dtype) - J.reshape(P * P, P * P), X.reshape(P * P)).reshape(P, P)


class Evaluation(eqx.Module):
    """F(V), its Jacobian (P, P, P, P), its replicas (R, P, P) and whatever else is to be kept of the last call."""

    value: Array
    jacobian: Array
    replicas: Array
    extra: Any


class FixedPoint(eqx.Module):
    """State of the iteration, and at its end the answer. `history` arrays have a leading axis of steps + 1."""

    V: Array
    evaluation: Evaluation
    residual: Array
    rho: Array
    step: Array
    result: Array
    steady: Array
    trust: Array
    took: Array
    history: dict[str, Array]


def solve(
    map_of: Callable[[Array], Evaluation],
    V0: Array,
    scale: Array,
    *,
    max_steps: int,
    tolerance: Array,
    newton: bool,
    geometric: bool,
    until: Array | None = None,
    state: FixedPoint | None = None,
) -> FixedPoint:
    r"""Iterate V ← F(V) until the largest entry of the distance (module docstring) is within the tolerance; say where it ended
    and how well.

    Arguments: `V0` (P, P); `scale` (P, P): the largest V (the prior's second moment), for the tests on relative size;
    `newton`: polish once the iteration contracts; `geometric`: whether V may fall to zero along a ray, to be recognised as
    perfect recovery: tr V below 1e-3 of its scale, its step-to-step ratio below one and steady to 1 % for five steps (or
    V below 1e-6 and falling a hundredfold, or below 1e-12). `until`, `state`: run a stretch of the iteration and come back
    (for progress bars).
    Codes: SUCCESS, RECOVERED, MAX_STEPS, NONFINITE. Cost: one F a step.
    """
    dtype, largest = V0.dtype, jnp.trace(scale)

    def record(history: dict[str, Array], step: Array, V: Array, residual: Array) -> dict[str, Array]:
        new = {"step": step.astype(dtype), "covariance": V, "overlap": scale - V, "residual": residual}
        return {name: history[name].at[step].set(value) for name, value in new.items()}

    def begin() -> FixedPoint:
        shapes = {"step": (), "covariance": V0.shape, "overlap": V0.shape, "residual": ()}
        history = {name: jnp.full((max_steps + 1, *shape), jnp.nan, dtype) for name, shape in shapes.items()}
        evaluation = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(map_of, V0))
        infinite, zero = jnp.asarray(jnp.inf, dtype), jnp.zeros((), int)
        history = record(history, zero, V0, jnp.asarray(jnp.nan, dtype))
        one, no = jnp.ones((), dtype), jnp.zeros((), bool)
        return FixedPoint(V0, evaluation, infinite, infinite, zero, zero - 1, zero, one, no, history)

    def body(s: FixedPoint) -> FixedPoint:
        found = map_of(s.V)
        residual_matrix = found.value - s.V
        residual = jnp.max(jnp.abs(residual_matrix))
        rho = spectral_radius(found.jacobian)
        newton_step = resolvent(found.jacobian, residual_matrix)
        distance = jnp.maximum(residual / jnp.maximum(1.0 - rho, 1e-6), jnp.max(jnp.abs(newton_step)))
        # where a polished step did not halve the residual, the Jacobian's statistical error was too large for all of it
        trust = jnp.where(s.took & (residual > 0.5 * s.residual), 0.5 * s.trust, s.trust)
        polished = found.value + trust * (s.V + newton_step - found.value)
        polished = 0.5 * (polished + polished.T)
        # only where the map contracts, the residual falls, and the answer is a covariance of about this size next to V: the
        # Jacobian has statistical errors, which near a spinodal would throw a longer step onto another branch
        root = jnp.linalg.cholesky(s.V)
        whitened = jax.scipy.linalg.solve_triangular(root, polished, lower=True)
        whitened = jax.scipy.linalg.solve_triangular(root, whitened.T, lower=True)
        sane = jnp.min(jnp.linalg.eigvalsh(whitened)) > 0.3
        sane = sane & (jnp.max(jnp.abs(polished - s.V)) < 0.05 * jnp.max(scale))
        inside = jnp.min(jnp.linalg.eigvalsh(scale - polished)) > -1e-3 * largest
        take = newton & (rho < 0.98) & ((residual < s.residual) | s.took) & sane & inside & jnp.all(jnp.isfinite(polished))
        values, vectors = jnp.linalg.eigh(scale - jnp.where(take, polished, found.value))
        V = jnp.where(take, scale - (vectors * jnp.maximum(values, 0.0)) @ vectors.T, found.value)
        step = s.step + 1
        ratio = jnp.trace(found.value) / jnp.trace(s.V)
        before = jnp.trace(s.V) / jnp.trace(s.history["covariance"][jnp.maximum(s.step - 1, 0)])
        small = jnp.trace(s.V) < 1e-3 * largest
        steady = jnp.where(small & (ratio < 0.995) & (jnp.abs(ratio - before) < 0.01), s.steady + 1, 0)
        # faster than any ray (discrete priors): stop before V is so small that no sample sees it, where F falls back to S
        collapsed = (jnp.trace(found.value) < 1e-6 * largest) & (ratio < 1e-2)
        recovered = geometric & ((steady >= 5) | collapsed | (jnp.trace(V) < 1e-12 * largest))
        finite = jnp.all(jnp.isfinite(found.value))
        code = jnp.where(step >= max_steps, Result.MAX_STEPS, -1)
        code = jnp.where((distance <= tolerance) & (rho < 1.0), Result.SUCCESS, code)
        code = jnp.where(recovered, Result.RECOVERED, code)
        code = jnp.where(finite, code, Result.NONFINITE)
        history = record(s.history, step, jnp.where(finite, V, jnp.nan), residual)
        return FixedPoint(V, found, residual, rho, step, code.astype(s.result.dtype), steady, trust, take, history)

    first = begin() if state is None else state
    limit = jnp.asarray(max_steps if until is None else until)
    return lax.while_loop(lambda s: (s.result < 0) & (s.step < limit), body, first)


def propagated_error(J: Array, replicas: Array) -> Array:
    """Standard error (P, P) of the fixed point: independent errors of F (replicas (R, P, P)) carried by (I - J)^{-1}."""
    R = replicas.shape[0]
    moved = jax.vmap(lambda d: resolvent(J, d))(replicas - jnp.mean(replicas, axis=0))
    return jnp.sqrt(jnp.sum(moved**2, axis=0) / (R * (R - 1)))


def pathwise_jacobian(map_of: Callable[[Array], Evaluation], V: Array, Q: Array) -> Array:
    """Jacobian (P, P, P, P) of the map as computed, on its own random points: what differences with common numbers see.

    In the directions of the null space of Q, where fields are of size √Q and the points' own slope is all noise, the
    map's stated Jacobian takes its place.
    """
    values, vectors = jnp.linalg.eigh(0.5 * (Q + Q.T))
    roots = jnp.sqrt(jnp.maximum(values, 0.0))
    stated = map_of(V).jacobian
    rows, columns = np.triu_indices(len(values))

    def along(pair: tuple[Array, Array]) -> Array:
        i, j = pair
        outer = vectors[:, i][:, None] * vectors[:, j]
        X = 0.5 * (outer + outer.T)
        moved = jax.jvp(lambda x: map_of(x).value, (V,), (X,))[1]
        return jnp.where(roots[i] + roots[j] > 0.1, 0.5 * (moved + moved.T), apply(stated, X))

    found = lax.map(along, (jnp.asarray(rows), jnp.asarray(columns)))
    table = jnp.zeros((*Q.shape, *Q.shape), V.dtype).at[rows, columns].set(found).at[columns, rows].set(found)
    return jnp.einsum("ijab,ci,dj->abcd", table, vectors, vectors)


@jax.custom_jvp
def with_slope(x: Array, factor: Any) -> Array:
    """x, its derivative times `factor`: NaN says that there is none."""
    del factor
    return x


@with_slope.defjvp
def _with_slope_jvp(primals: tuple[Array, Any], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    return primals[0], primals[1] * tangents[0]


def numbers_of(tree: Any) -> tuple[list[Array], Callable[[list[Array]], Any]]:
    """The floating point arrays of a tree, and the function that puts others in their place."""
    floats, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(floats)
    return leaves, lambda new: eqx.combine(jax.tree.unflatten(structure, new), rest)


def differentiable(
    solve: Callable[[Any, Any], Any],
    push: Callable[[Any, Any, Any, Any], Any],
    parameters: Any,
    context: Any,
    prepare: Callable[[Any, Any, Any], Any] = lambda parameters, context, answer: answer,
) -> Any:
    """`solve(parameters, context)` with the derivative `push(parameters, context, prepared, directions)`: its tangents.

    `prepare(parameters, context, answer)` is called once, and `push` once for every number of `parameters` that is
    differentiated: reverse mode works where these functions run loops whose length depends on the data (which JAX
    differentiates forwards only). First derivatives only: a second one is NaN. Everything traced that the functions need
    is in `context`, which is held fixed.
    """
    leaves, _ = numbers_of(parameters)
    kept, static = eqx.partition((parameters, context), eqx.is_array)
    context_leaves, structure = jax.tree.flatten(kept)

    def both(leaves: list[Array], context_leaves: list[Array]) -> tuple[Any, Any]:
        parameters, context = eqx.combine(jax.tree.unflatten(structure, context_leaves), static)
        return numbers_of(parameters)[1](leaves), context

    def primal(leaves: list[Array], context_leaves: list[Array]) -> Any:
        return solve(*both(leaves, context_leaves))

    def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (leaves, context_leaves), (directions, _) = primals, tangents
        out = wrapped(leaves, context_leaves)
        moving, fixed = eqx.partition(out, eqx.is_inexact_array)
        total = jax.tree.map(jnp.zeros_like, moving)
        held = lax.stop_gradient(leaves)
        parameters, context = both(held, context_leaves)
        moves = any(not isinstance(direction, SymbolicZero) for direction in directions)
        prepared = prepare(parameters, context, lax.stop_gradient(out)) if moves else None
        for position, (leaf, direction) in enumerate(zip(leaves, directions, strict=True)):
            if isinstance(direction, SymbolicZero):
                continue  # nobody asks how the answer depends on this array

            def along(unit: Array, position: int = position) -> Any:
                units = [unit if k == position else jnp.zeros_like(x) for k, x in enumerate(held)]
                return push(parameters, context, prepared, units)

            basis = jnp.eye(leaf.size, dtype=leaf.dtype).reshape(leaf.size, *leaf.shape)
            # one number: no loop, which outside jit would be compiled anew at each call
            columns = lax.map(along, basis) if leaf.size > 1 else jax.tree.map(lambda x: x[None], along(basis[0]))
            columns = _first_order_only(columns, leaves)
            total = jax.tree.map(lambda t, c, d=direction: t + jnp.tensordot(jnp.ravel(d), c, axes=1), total, columns)
        tangent_of_fixed = jax.tree.map(lambda x: np.zeros(jnp.shape(x), jax.dtypes.float0), fixed)
        return out, eqx.combine(total, tangent_of_fixed)

    wrapped = jax.custom_jvp(primal)
    wrapped.defjvp(rule, symbolic_zeros=True)
    frozen = [lax.stop_gradient(x) if eqx.is_inexact_array(x) else x for x in context_leaves]
    return wrapped(leaves, frozen)


def derivative(function: Callable[[Any], Any], parameters: Any, directions: list[Array]) -> Any:
    """Tangents of the floating point part of `function(parameters)` along `directions`, one for each of its arrays."""
    leaves, put = numbers_of(parameters)
    return jax.jvp(lambda x: eqx.filter(function(put(x)), eqx.is_inexact_array), (leaves,), (directions,))[1]


@jax.custom_jvp
def _first_order_only(tree: Any, leaves: list[Array]) -> Any:
    return tree


@_first_order_only.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    tree, _ = primals
    moved = sum(jnp.sum(x) for x in tangents[1])
    return tree, jax.tree.map(lambda x: jnp.nan * moved + jnp.zeros_like(x), tree)
