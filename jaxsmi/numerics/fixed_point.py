r"""Fixed points of monotone maps of a covariance, with an honest stopping test.

Equations here, for V ↦ F(V) on P×P symmetric matrices with Jacobian J:

* residual r = F(V) - V; the distance to the fixed point is about (I - J)^{-1} r, and where J is
  known badly ‖r‖/(1 - ρ), ρ the spectral radius of J: the larger of them, not the (damped) step, is
  what the tolerance is compared with (J is not normal: one layer's uncertainty can move another
  thirty times as much);
* Newton polish V + t (I - J)^{-1} r, t halved after a step that did not halve the residual, taken
  only where the iteration already contracts (ρ < 0.98), the residual falls, and the step stays near
  V;
* ρ by a shifted power iteration from the identity: J maps positive matrices to positive matrices,
  its leading eigenvalue is real with a positive eigenvector, and the shift kills oscillation
  between blocks;
* what the tolerance leaves open: (I - J)^{-1} r before the last step, J times that after a plain
  one, and half of it after a Newton step, which has to halve the residual;
* a fixed point V > 0 or perfect recovery: as long as V is no larger than twice that distance and
  falls geometrically, zero is as good an answer, and the iteration goes on;
* error propagation: an error δ of F moves the fixed point by (I - J)^{-1} δ;
* implicit derivative: dV = (I - J)^{-1} ∂_θ F dθ. At a marginal fixed point I - J is singular: NaN.

Source: [theory: numerics, Eqs. (18) to (23)].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.codes import Result, choose
from jaxsmi.core.driver import AbstractSolver, RecoveryRay, Run, advance, begin
from jaxsmi.numerics.linear_algebra import symmetric


def apply(J: Array, X: Array) -> Array:
    """J[X] for a Jacobian (P, P, P, P) and a matrix (P, P)."""
    return jnp.einsum("abcd,cd->ab", J, X)


def perron_value(J: Array, steps: int = 200) -> Array:
    """Leading eigenvalue of a positive map J (P, P, P, P) on symmetric matrices, by shifted power
    iteration."""
    P = J.shape[0]
    shift = 0.25 * jnp.sqrt(jnp.sum(J * J)) / P + 1e-30

    def step(_: int | Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        X, _ = carry
        Y = apply(J, X) + shift * X
        Y = symmetric(Y)
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
    """F(V), its Jacobian (P, P, P, P), its replicas (R, P, P), and the fraction of samples whose
    inner integral was inaccurate."""

    value: Array
    jacobian: Array
    replicas: Array
    inaccurate: Array


class Iterate(eqx.Module):
    """The state of the iteration: V, the last evaluation of F (at the V before) and what the
    stopping test made of it.

    `trace` is tr V before the last step; `ray`: steps in a row on the recovery ray; `trust`: the
    part of a Newton step that is taken; `polished`: whether the last step was one; `open`: how far
    the fixed point still is from V, (P, P) without signs; `undecided`: whether it may as well be
    zero.
    """

    V: Array
    evaluation: Evaluation
    residual: Array
    distance: Array
    rho: Array
    trace: Array
    ray: Array
    trust: Array
    polished: Array
    open: Array
    undecided: Array
    finite: Array
    recovered: Array


class Iteration(AbstractSolver[Iterate]):
    """V ← F(V) until the distance to the fixed point is within the tolerance, polished by Newton
    steps where the map contracts (module docstring).

    Args:
        map_of: V (P, P) to an `Evaluation` of F.
        V0: Where to start, (P, P).
        scale: The largest V (P, P), the second moment of the prior: what sizes are relative to.
        tolerance: On the largest entry of the distance.
        geometric: Whether V may fall to zero along a ray, which is then perfect recovery
            (`core.driver.RecoveryRay`); so is V below 1e-6 of its scale that falls a hundredfold.
        newton: Whether to polish once the iteration contracts.
        max_steps: Steps at most.
        downwards: Whether to ask only where V0 leads, up or down. F is monotone: once V ≻ V0 the
            iteration never comes back (MAX_STEPS), and once V ≺ V0 it stays below, which without
            noise counts as perfect recovery (RECOVERED). Default None: it goes on.
        fold: Whether the end of a branch may be near: Newton steps are then taken up to ρ = 0.998,
            and one that leaves the region where F contracts is taken back, with plain steps from
            there (J has statistical errors). Default False: up to 0.98.
    """

    map_of: Callable[[Array], Evaluation]
    V0: Array
    scale: Array
    tolerance: Array
    geometric: Array | bool
    newton: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    downwards: Array | None = None
    fold: bool = eqx.field(static=True, default=False)

    @property
    def ray(self) -> RecoveryRay:
        """Without fluctuations: a ratio below one that is steady to 1 % for five steps."""
        return RecoveryRay(jnp.trace(self.scale), slowest=0.995, spread=0.01, steps=5)

    def init(self) -> Iterate:
        """V0, nothing known of F yet."""
        V0 = self.V0
        dtype = self.V0.dtype
        shapes = eqx.filter_eval_shape(_mapped, self.map_of, V0)
        unknown = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        infinite = jnp.asarray(jnp.inf, dtype)
        no = jnp.zeros((), bool)
        return Iterate(
            V=V0,
            evaluation=unknown,
            residual=infinite,
            distance=infinite,
            rho=infinite,
            trace=jnp.trace(V0),
            ray=jnp.zeros((), int),
            trust=jnp.ones((), dtype),
            polished=no,
            open=jnp.full_like(V0, jnp.inf),
            undecided=no,
            finite=jnp.ones((), bool),
            recovered=no,
        )

    def step(self, state: Iterate, count: Array) -> Iterate:
        """F(V), or the Newton step from it where that is sound."""
        del count
        V = state.V
        scale = self.scale
        evaluation = _mapped(self.map_of, V)
        value = evaluation.value
        difference = value - V
        residual = jnp.max(jnp.abs(difference))
        rho = perron_value(evaluation.jacobian)
        newton_step = resolvent(evaluation.jacobian, difference)
        distance = jnp.maximum(
            residual / jnp.maximum(1.0 - rho, 1e-6), jnp.max(jnp.abs(newton_step))
        )
        # where a polished step did not halve the residual, the Jacobian's statistical error was too
        # large for all of it
        trust = jnp.where(
            state.polished & (residual > 0.5 * state.residual), 0.5 * state.trust, state.trust
        )
        candidate = value + trust * (V + newton_step - value)
        candidate = symmetric(candidate)
        falls = (residual < state.residual) | state.polished
        contracts = rho < (0.998 if self.fold else 0.98)
        take = self.newton & contracts & falls & self._sound(V, candidate)
        values, vectors = jnp.linalg.eigh(scale - jnp.where(take, candidate, value))
        inside = scale - (vectors * jnp.maximum(values, 0.0)) @ vectors.T
        new = jnp.where(take, inside, value)
        if self.fold:
            take = take & (trust > 0.0)
            left = state.polished & (rho >= 1.0)
            trust = jnp.where(left, 0.0, trust)
            new = jnp.where(left, state.evaluation.value, jnp.where(take, inside, value))
        trace = jnp.trace(V)
        ratio = jnp.trace(value) / trace
        ray = self.ray.follow(state.ray, trace, ratio, trace / state.trace)
        undecided = (ratio < self.ray.slowest) & (trace <= 2.0 * len(V) * distance)
        remains = jnp.where(
            take, (1.0 - 0.5 * trust) * newton_step, apply(evaluation.jacobian, newton_step)
        )
        # faster than any ray (discrete priors): stop before V is so small that no sample sees it,
        # where F falls back to S
        collapsed = (jnp.trace(value) < 1e-6 * jnp.trace(scale)) & (ratio < 1e-2)
        return Iterate(
            V=new,
            evaluation=evaluation,
            residual=residual,
            distance=distance,
            rho=rho,
            trace=trace,
            ray=ray,
            trust=trust,
            polished=take,
            open=jnp.abs(symmetric(remains)),
            undecided=self.geometric & undecided,
            finite=jnp.all(jnp.isfinite(value)),
            recovered=self.geometric & (self.ray.reached(ray, jnp.trace(new)) | collapsed),
        )

    def _sound(self, V: Array, candidate: Array) -> Array:
        """Whether a Newton step is a covariance of about the size of V, inside 0 ⪯ V ⪯ S, and
        short.

        The Jacobian has statistical errors, which near a spinodal would throw a longer step onto
        another branch.
        """
        root = jnp.linalg.cholesky(V)
        whitened = jax.scipy.linalg.solve_triangular(root, candidate, lower=True)
        whitened = jax.scipy.linalg.solve_triangular(root, whitened.T, lower=True)
        similar = jnp.min(jnp.linalg.eigvalsh(whitened)) > 0.3
        short = jnp.max(jnp.abs(candidate - V)) < 0.05 * jnp.max(self.scale)
        spare = jnp.min(jnp.linalg.eigvalsh(self.scale - candidate))
        inside = spare > -1e-3 * jnp.trace(self.scale)
        return similar & short & inside & jnp.all(jnp.isfinite(candidate))

    def observe(self, state: Iterate, count: Array) -> dict[str, Array]:
        """V, Q = S - V and the residual."""
        V = jnp.where(state.finite, state.V, jnp.nan)
        return {
            "step": count.astype(V.dtype),
            "covariance": V,
            "overlap": self.scale - V,
            "residual": jnp.where(count == 0, jnp.nan, state.residual),
        }

    def progress(self, state: Iterate) -> Mapping[str, str]:
        """The overlaps of the single directions."""
        overlaps = jnp.diagonal(self.scale - state.V)
        return {"Q": " ".join(f"{q:.4f}" for q in overlaps)}

    def terminate(self, state: Iterate, count: Array) -> Array:
        """SUCCESS within the tolerance and away from zero, RECOVERED on the recovery ray, else
        MAX_STEPS or NONFINITE."""
        near = (state.distance <= self.tolerance) & (state.rho < 1.0)
        rises: Array | bool = False
        falls: Array | bool = False
        if self.downwards is not None:
            moved = jnp.linalg.eigvalsh(state.V - self.V0)
            rises = self.downwards & (moved[0] > 0.0)
            falls = self.downwards & self.geometric & (moved[-1] < 0.0)
        return choose(
            ((count >= self.max_steps) | rises, Result.MAX_STEPS),
            (near & ~state.undecided, Result.SUCCESS),
            (state.recovered | falls, Result.RECOVERED),
            (~state.finite, Result.NONFINITE),
        )


@eqx.filter_jit
def _mapped(map_of: Callable[[Array], Evaluation], V: Array) -> Evaluation:
    """The map at V, traced once for the start of the iteration and its steps."""
    return map_of(V)


def solve(iteration: Iteration) -> Run[Iterate]:
    """The iteration run to its end, inside jit: codes SUCCESS, RECOVERED, MAX_STEPS, NONFINITE.

    One F a step.
    """
    steps = iteration.max_steps
    return advance(iteration, begin(iteration, steps), jnp.asarray(steps))


def propagated_error(J: Array, replicas: Array) -> Array:
    """Standard error (P, P) of the fixed point: independent errors of F (replicas (R, P, P))
    carried by (I - J)^{-1}."""
    R = replicas.shape[0]
    moved = jax.vmap(lambda d: resolvent(J, d))(replicas - jnp.mean(replicas, axis=0))
    return jnp.sqrt(jnp.sum(moved**2, axis=0) / (R * (R - 1)))


def pathwise_jacobian(map_of: Callable[[Array], Evaluation], V: Array, Q: Array) -> Array:
    """Jacobian (P, P, P, P) of the map as computed, on its own random points: what differences with
    common numbers see.

    In the directions of the null space of Q, where fields are of size √Q and the points' own slope
    is all noise, the map's stated Jacobian takes its place.
    """
    values, vectors = jnp.linalg.eigh(symmetric(Q))
    roots = jnp.sqrt(jnp.maximum(values, 0.0))
    stated = map_of(V).jacobian
    rows, columns = np.triu_indices(len(values))

    def along(pair: tuple[Array, Array]) -> Array:
        i, j = pair
        outer = vectors[:, i][:, None] * vectors[:, j]
        X = symmetric(outer)
        moved = jax.jvp(lambda x: map_of(x).value, (V,), (X,))[1]
        return jnp.where(roots[i] + roots[j] > 0.1, symmetric(moved), apply(stated, X))

    entries = lax.map(along, (jnp.asarray(rows), jnp.asarray(columns)))
    table = (
        jnp.zeros((*Q.shape, *Q.shape), V.dtype)
        .at[rows, columns]
        .set(entries)
        .at[columns, rows]
        .set(entries)
    )
    return jnp.einsum("ijab,ci,dj->abcd", table, vectors, vectors)
