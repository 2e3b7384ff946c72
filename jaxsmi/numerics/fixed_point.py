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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.codes import Result


def apply(J: Array, X: Array) -> Array:
    """J[X] for a Jacobian (P, P, P, P) and a matrix (P, P)."""
    return jnp.einsum("abcd,cd->ab", J, X)


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
    return jnp.linalg.solve(
        jnp.eye(P * P, dtype=J.dtype) - J.reshape(P * P, P * P), X.reshape(P * P)
    ).reshape(P, P)


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

    def record(
        history: dict[str, Array], step: Array, V: Array, residual: Array
    ) -> dict[str, Array]:
        new = {
            "step": step.astype(dtype),
            "covariance": V,
            "overlap": scale - V,
            "residual": residual,
        }
        return {name: history[name].at[step].set(value) for name, value in new.items()}

    def begin() -> FixedPoint:
        shapes = {"step": (), "covariance": V0.shape, "overlap": V0.shape, "residual": ()}
        history = {
            name: jnp.full((max_steps + 1, *shape), jnp.nan, dtype)
            for name, shape in shapes.items()
        }
        evaluation = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(map_of, V0))
        infinite, zero = jnp.asarray(jnp.inf, dtype), jnp.zeros((), int)
        history = record(history, zero, V0, jnp.asarray(jnp.nan, dtype))
        one, no = jnp.ones((), dtype), jnp.zeros((), bool)
        return FixedPoint(
            V0, evaluation, infinite, infinite, zero, zero - 1, zero, one, no, history
        )

    def body(s: FixedPoint) -> FixedPoint:
        found = map_of(s.V)
        residual_matrix = found.value - s.V
        residual = jnp.max(jnp.abs(residual_matrix))
        rho = spectral_radius(found.jacobian)
        newton_step = resolvent(found.jacobian, residual_matrix)
        distance = jnp.maximum(
            residual / jnp.maximum(1.0 - rho, 1e-6), jnp.max(jnp.abs(newton_step))
        )
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
        take = (
            newton
            & (rho < 0.98)
            & ((residual < s.residual) | s.took)
            & sane
            & inside
            & jnp.all(jnp.isfinite(polished))
        )
        values, vectors = jnp.linalg.eigh(scale - jnp.where(take, polished, found.value))
        V = jnp.where(take, scale - (vectors * jnp.maximum(values, 0.0)) @ vectors.T, found.value)
        step = s.step + 1
        ratio = jnp.trace(found.value) / jnp.trace(s.V)
        before = jnp.trace(s.V) / jnp.trace(s.history["covariance"][jnp.maximum(s.step - 1, 0)])
        small = jnp.trace(s.V) < 1e-3 * largest
        steady = jnp.where(
            small & (ratio < 0.995) & (jnp.abs(ratio - before) < 0.01), s.steady + 1, 0
        )
        # faster than any ray (discrete priors): stop before V is so small that no sample sees it, where F falls back to S
        collapsed = (jnp.trace(found.value) < 1e-6 * largest) & (ratio < 1e-2)
        recovered = geometric & ((steady >= 5) | collapsed | (jnp.trace(V) < 1e-12 * largest))
        finite = jnp.all(jnp.isfinite(found.value))
        code = jnp.where(step >= max_steps, Result.MAX_STEPS, -1)
        code = jnp.where((distance <= tolerance) & (rho < 1.0), Result.SUCCESS, code)
        code = jnp.where(recovered, Result.RECOVERED, code)
        code = jnp.where(finite, code, Result.NONFINITE)
        history = record(s.history, step, jnp.where(finite, V, jnp.nan), residual)
        return FixedPoint(
            V, found, residual, rho, step, code.astype(s.result.dtype), steady, trust, take, history
        )

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
    table = (
        jnp.zeros((*Q.shape, *Q.shape), V.dtype)
        .at[rows, columns]
        .set(found)
        .at[columns, rows]
        .set(found)
    )
    return jnp.einsum("ijab,ci,dj->abcd", table, vectors, vectors)
