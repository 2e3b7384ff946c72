r"""Where learning starts, and what is learned next: the stability of state evolution's fixed points.

Equations here [TDDZLK24; TCDKZ25; theory: multi-index, Eqs. (52) to (60)],
S the second moment of a prior of mean zero, V = S - Q:

* growth of a small overlap in the directions not learned yet, whitened by V^{1/2}, ω drawn at the overlap Q of a fixed
  point: G = N V^{1/2} ∂g V^{1/2} N, N the projector on those directions (all of them, at Q = 0),
      F_Q(X)_{pp'} = E Σ_{m,n} (G_{mn} X G_{mn}ᵀ)_{pp'}
  maps positive matrices to positive matrices and is self-adjoint: λ_max is its spectral radius, and the projection of the
  identity on its eigenspace is positive semi-definite, the subspace learned next. (Growth of old × new directions is slower:
  F is completely positive, so that its rate is at most the geometric mean of those of old × old, below one, and new × new.)
* weak recovery: α_c = 1/λ_max(F_0);
* staircase: α λ_max(F_{Q(α)}) = 1 along the stable fixed point Q(α) that has only the subspace Π learned,
      V = S - Π [S - prior.mmse(α Π response(Q) Π)] Π;
* N E[g gᵀ] N ≠ 0 at that fixed point: those directions are learned at once (α_c = 0 at Q = 0);
* derivative of a threshold: of h(α, θ) = log α λ_max(F_{Q(α, θ)}), dα_c = -∂_θ h/∂_α h, the eigenvector held (its own change
  is of second order), dQ by the implicit derivative of the fixed point;
* perfect recovery of noiseless attention, the last layer of rank one: Q = I is stable iff α > P/M.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.arrays import frozen
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Threshold
from jaxsmi.numerics import fixed_point, implicit
from jaxsmi.numerics.implicit import derivative, differentiable
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.branch import SCRAMBLES, Branch
from jaxsmi.thresholds.growth import Growth, check_problem
from jaxsmi.thresholds.weak import weak_recovery


@eqx.filter_jit
def _look(state: Branch, V0: Array) -> tuple[fixed_point.FixedPoint, Growth, tuple[Array, Array]]:
    end = state.fixed_point(V0, 100, 1e-3)
    seen = state.growth(end.V)
    return end, seen, seen.known()


class _Roots(eqx.Module):
    """One threshold from each replica, with what was found there."""

    alpha: Array
    V: Array
    X: Array
    residual: Array
    code: Array


def _replica(
    model: Any, U: Array, guess: Array, floor: Array, V0: Array, key: Array, samples: int
) -> _Roots:
    """Root of h(α) = log α λ_max(F) near `guess` by safeguarded secants, the fixed point followed from V0."""

    def h(alpha: Array, V0: Array) -> tuple[Array, Array, Array, Array]:
        state = Branch(model, U, alpha, key, samples, SCRAMBLES)
        end = state.fixed_point(V0, 60, 1e-5)
        seen = state.growth(end.V)
        return jnp.log(jnp.maximum(alpha * seen.rate, 1e-30)), end.V, seen.subspace, end.result

    def step(carry: Any) -> Any:
        count, a, ha, b, hb, V, X, code = carry
        slope = (hb - ha) / jnp.log(b / a)
        # between a slope of one (λ constant) and thirty (a steep rise of the overlap)
        slope = jnp.where(jnp.isfinite(slope), jnp.clip(slope, 0.5, 30.0), 1.0)
        c = jnp.maximum(b * jnp.exp(jnp.clip(-hb / slope, -0.15, 0.15)), floor)
        hc, V, X, code = h(c, V)
        return count + 1, b, hb, c, hc, V, X, code

    first, V, X, code = h(guess, V0)
    second = jnp.maximum(guess * jnp.exp(jnp.clip(-first / 2.0, -0.1, 0.1)) * 1.003, floor)
    after, V, X, code = h(second, V)
    start = (jnp.zeros((), int), guess, first, second, after, V, X, code)
    _, _, _, alpha, residual, V, X, code = lax.while_loop(
        lambda c: (c[0] < 25) & (jnp.abs(c[4]) > 1e-4) & jnp.isfinite(c[4]), step, start
    )
    good = (code == Result.SUCCESS) | (code == Result.RECOVERED)
    code = jnp.where(
        jnp.isfinite(residual),
        jnp.where(good & (jnp.abs(residual) <= 1e-4), 0, Result.MAX_STEPS),
        4,
    )
    return _Roots(alpha, V, X, residual, code)


@eqx.filter_jit
def _roots(model: Any, context: tuple[Array, ...], samples: int) -> _Roots:
    U, guess, floor, V0, keys = context
    return lax.map(lambda key: _replica(model, U, guess, floor, V0, key, samples), keys)


def _along(state: Branch, V: Array, X: Array, J: Array, directions: list[Array]) -> Array:
    """Derivative of h = log α λ_max(F) along `directions` of the numbers in `state`, the fixed point moving with them."""
    slope = derivative(lambda s: s.map_of(V).value, state, directions)
    moved = fixed_point.resolvent(J, slope)

    def h(both: tuple[Branch, Array]) -> Array:
        state, V = both
        return jnp.log(state.alpha * state.growth(V, X).rate)

    return derivative(h, (state, V), [*directions, moved])


@eqx.filter_jit
def _slopes(
    model: Any, context: tuple[Array, ...], out: _Roots, samples: int
) -> tuple[_Roots, Array, Array]:
    """For each replica the Jacobian of its fixed point, and dh/dα."""
    U, _, _, _, keys = context

    def one(key: Array, alpha: Array, V: Array, X: Array) -> tuple[Array, Array]:
        state = Branch(model, U, alpha, key, samples, SCRAMBLES)
        J = fixed_point.pathwise_jacobian(state.map_of, V, U.T @ state.whole(V)[0] @ U)
        zero = jax.tree.map(lambda x: jnp.zeros_like(x) if eqx.is_inexact_array(x) else x, state)
        unit = eqx.tree_at(lambda s: s.alpha, zero, jnp.ones_like(alpha))
        return J, _along(state, V, X, J, implicit.numbers_of(unit)[0])

    return out, *lax.map(lambda x: one(*x), (keys, out.alpha, out.V, out.X))


@eqx.filter_jit
def _roots_tangent(
    model: Any, context: tuple[Array, ...], prepared: Any, directions: list[Array], samples: int
) -> _Roots:
    U, _, _, _, keys = context
    out, J, slope = prepared

    def one(key: Array, alpha: Array, V: Array, X: Array, J: Array, slope: Array) -> Array:
        state = Branch(model, U, alpha, key, samples, SCRAMBLES)
        still = [jnp.zeros_like(U), jnp.zeros_like(alpha)]
        found = -_along(state, V, X, J, [*directions, *still]) / slope
        return (
            found if model.channel.smooth else jnp.full_like(found, jnp.nan)
        )  # labels that jump: see AbstractChannel

    moved = lax.map(lambda x: one(*x), (keys, out.alpha, out.V, out.X, J, slope))
    return eqx.tree_at(
        lambda r: r.alpha,
        jax.tree.map(jnp.zeros_like, eqx.filter(out, eqx.is_inexact_array)),
        moved,
    )


def _directions_of(X: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the range of a positive semi-definite matrix, errors of a few per cent left out."""
    values, vectors = np.linalg.eigh(np.asarray(X))
    return vectors[:, values > 0.05 * max(values[-1], 1e-300)]


def _joined(U: np.ndarray, new: np.ndarray) -> np.ndarray:
    if not new.shape[1]:
        return U
    rest = new - U @ (U.T @ new)
    left, sizes, _ = np.linalg.svd(rest, full_matrices=False)
    return np.concatenate([U, left[:, sizes > 1e-6]], axis=1)


def staircase(
    model: Any,
    *,
    key: Array,
    alpha_max: float = 10.0,
    samples: int = 2**14,
    replicas: int = 16,
    guess: list[Threshold] | None = None,
    steps: int | None = None,
    progress: bool = False,
) -> list[Threshold]:
    r"""Thresholds in the order of learning, with the subspace learned at each and the overlap just below it.

    α λ_max(F_{Q(α)}) = 1 along the fixed point Q(α) with only the earlier subspaces learned (module docstring).

    Arguments: `model`: any index model with a channel and a prior of mean zero; `alpha_max`: how far to look; `samples` in
    all, split over `replicas` independent searches for the root, whose spread is the error bar; `guess`: the stairs of a
    model nearby (saves the scan in α, e.g. along a curve or a search); `steps`: stop after so many; `progress`: a bar on stderr.
    Returns: a list of `Threshold` with α <= alpha_max, shorter than P where several indices are learned together or some
    never; directions that labels tell as soon as others are known belong to the step that makes them known. `alpha` and
    `replicas` are differentiable, forwards and backwards (once), in every array of the model; overlap and subspace are held.
    Derivatives of thresholds after the first are NaN for links with jumps (signs).
    Codes: SUCCESS, INACCURATE, MAX_STEPS (a replica found no root: `alpha` is NaN, its replicas say which; raise `samples`, or
    lower `replicas`), NONFINITE.
    Raises: ValueError as `weak_recovery`, for alpha_max <= 0, or a second moment not proportional to the identity.
    Runs outside jit and vmap (grad and jvp are fine).
    Cost: about fifteen times `samples` posteriors a step, and a scan. Source: [TDDZLK24], [TCDKZ25],
    [theory: multi-index, Eqs. (52) to (56), (60)].
    Example:
    >>> import jax, jaxsmi as smi
    >>> [
    ...     round(float(t.alpha), 1)
    ...     for t in smi.staircase(smi.links.sign_product(2), key=jax.random.key(0), samples=2**10)
    ... ]  # doctest: +SKIP
    [2.5]
    """
    check_problem(model, samples, replicas)
    check(np.isfinite(alpha_max) and alpha_max > 0, "alpha_max", alpha_max, "a finite number > 0")
    check(steps is None or steps >= 1, "steps", steps, "at least 1, or None for all")
    listed = guess is None or (
        isinstance(guess, list) and all(isinstance(t, Threshold) for t in guess)
    )
    check(listed, "guess", guess, "a list of Threshold, as `staircase` returns it")
    held, P = frozen(model), model.indices
    S = held.prior.second_moment(P)
    equal = jnp.max(jnp.abs(S - S[0, 0] * jnp.eye(P))) <= 1e-9 * S[0, 0]
    check(equal, "model", model.prior, "a prior with second moment proportional to the identity")
    each = power_of_two(max(samples // (replicas * SCRAMBLES), 2))
    keys = jax.vmap(lambda k: jax.random.fold_in(key, 100 + k))(jnp.arange(replicas))
    first = weak_recovery(model, key=key, samples=samples, randomisations=replicas)
    alpha = float(lax.stop_gradient(first.alpha))
    if alpha > alpha_max:
        return []
    if np.isnan(alpha):
        return [first]
    stairs, guesses = [first], list(guess or [])
    U = _directions_of(np.asarray(lax.stop_gradient(first.subspace)))
    bar = tqdm(
        total=P,
        initial=U.shape[1],
        desc="staircase: directions learned",
        leave=False,
        disable=not progress,
    )
    while U.shape[1] < P and (steps is None or len(stairs) < steps):
        basis = jnp.asarray(U, S.dtype)
        near = guesses[len(stairs)] if len(guesses) > len(stairs) else None
        found = _next(
            held, basis, alpha, alpha_max, jax.random.fold_in(key, 7 + len(stairs)), samples, near
        )
        if isinstance(found, np.ndarray):  # known as soon as the others are: part of the last step
            U = _joined(U, found)
            stairs[-1] = _with_directions(stairs[-1], U if len(stairs) == 1 else found, S)
            bar.update(U.shape[1] - bar.n)
            continue
        if found is None:
            break
        start, V0, inaccurate = found
        floor = jnp.asarray(max(alpha * 1.0005, 1e-6), S.dtype)
        context = (basis, jnp.asarray(start, S.dtype), floor, V0, keys)
        roots = differentiable(
            lambda m, c: _roots(m, c, each),
            lambda m, c, prepared, d: _roots_tangent(m, c, prepared, d, each),
            model, context,
            lambda m, c, out: _slopes(m, c, out, each),
        )  # fmt: skip
        code = Result(int(jnp.max(roots.code)))
        code = Result.INACCURATE if code == Result.SUCCESS and inaccurate > 0.01 else code
        valid = jnp.where(code in (Result.SUCCESS, Result.INACCURATE), 1.0, jnp.nan)
        X = np.mean(np.asarray(lax.stop_gradient(roots.X)), axis=0)
        Q = basis @ (basis.T @ S @ basis - jnp.mean(lax.stop_gradient(roots.V), axis=0)) @ basis.T
        alphas = jnp.where(roots.code == 0, roots.alpha, jnp.nan)
        stairs.append(
            Threshold(
                jnp.mean(alphas) * valid,
                jnp.std(lax.stop_gradient(alphas), ddof=1) / np.sqrt(replicas),
                alphas,
                jnp.asarray(X / max(np.trace(X), 1e-300)),
                Q,
                jnp.asarray(code),
            )
        )
        alpha = float(lax.stop_gradient(stairs[-1].alpha))
        if alpha > alpha_max:
            stairs.pop()
        if not alpha <= alpha_max:
            break
        U = _joined(U, _directions_of(X))
        bar.update(U.shape[1] - bar.n)
    bar.close()
    return stairs


def _with_directions(step: Threshold, directions: np.ndarray, S: Array) -> Threshold:
    projector = jnp.asarray(directions @ directions.T, S.dtype)
    subspace = step.subspace + projector / max(directions.shape[1], 1)
    return eqx.tree_at(lambda t: t.subspace, step, subspace / jnp.trace(subspace))


def _next(
    model: Any,
    U: Array,
    alpha: float,
    alpha_max: float,
    key: Array,
    samples: int,
    near: Threshold | None,
) -> Any:
    """Where to look for the next threshold: (α, V there, inaccurate), None up to alpha_max, or directions known at once."""
    P = model.indices
    S = U.T @ model.prior.second_moment(P) @ U
    V, ratio = 0.9 * S, 1.2
    count = power_of_two(max(samples // 32, 2))
    at = max(alpha * 1.1, 1e-2 if alpha == 0.0 else 0.0)
    near = None if near is None or not np.isfinite(float(near.alpha)) else near
    if near is not None:
        at = max(float(near.alpha), alpha * 1.001)
    last: tuple[float, float] | None = None
    while True:
        at = min(at, alpha_max)
        end, seen, (vectors, known) = _look(
            Branch(model, U, jnp.asarray(at, S.dtype), key, count, 16), V
        )
        if bool(jnp.any(known)):
            return np.asarray(vectors)[:, np.asarray(known)]
        height = float(jnp.log(jnp.maximum(at * seen.rate, 1e-30)))
        if not np.isfinite(height):
            return None
        if near is not None and abs(height) < 0.5:
            return at, end.V, float(seen.inaccurate)
        if near is not None:  # it was not so near: look from the beginning
            return _next(model, U, alpha, alpha_max, key, samples, None)
        if height >= 0.0:
            if last is not None:  # between the last two points of the scan, in log α
                low, before = last
                at = float(np.exp(np.log(low) + np.log(at / low) * before / (before - height)))
            return at, end.V, float(seen.inaccurate)
        if at >= alpha_max:
            return None
        V, last, at = end.V, (at, height), at * ratio
