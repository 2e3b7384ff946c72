r"""Where learning starts, and what is learned next: the stability of state evolution's fixed points.

Equations here [TDDZLK24; TCDKZ25; spec section 6], S the second moment of a prior of mean zero, V = S - Q:

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
from tqdm import tqdm

from jaxsmi import fixed_point
from jaxsmi.channels.base import sqrt_psd
from jaxsmi.fixed_point import derivative, differentiable
from jaxsmi.integrate import power_of_two
from jaxsmi.types import Array, Result, Threshold, check, frozen, theory_dtype

_DENSE = 8  # up to this many indices the map is a matrix; above, an operator on the samples


def _applied(G: Array, X: Array) -> Array:
    """Σ_{m,n} G_{mn} X G_{mn}ᵀ averaged over samples: G (.., n, P, M, P, M), X (P, P) to (.., P, P)."""
    half = jnp.einsum("...npaqb,qr->...npabr", G, X)
    return jnp.einsum("...npabr,...nsarb->...ps", half, G) / G.shape[-5]


def _leading(G: Array) -> Array:
    """The positive semi-definite X of unit norm with F(X) = λ_max X, from G (randomisations, samples, P, M, P, M).

    The projection of the identity on the leading eigenspace: by a dense eigendecomposition, or by iterating from it.
    """
    P, dtype = G.shape[-2], G.dtype
    if P <= _DENSE:
        rows, columns = np.triu_indices(P)
        scale = np.where(rows == columns, 1.0, np.sqrt(0.5))
        basis = np.zeros((len(rows), P, P))
        basis[np.arange(len(rows)), rows, columns] = scale
        basis[np.arange(len(rows)), columns, rows] = scale
        basis = jnp.asarray(basis, dtype)
        tensor = jnp.einsum("tnpaqb,tnsarb->tpqsr", G, G) / G.shape[1]
        matrices = jnp.einsum("ips,tpqsr,jqr->tij", basis, tensor, basis)
        matrices = 0.5 * (matrices + jnp.swapaxes(matrices, 1, 2))
        values, vectors = jnp.linalg.eigh(jnp.mean(matrices, axis=0))
        spread = jnp.std(jnp.einsum("ik,tij,jk->tk", vectors, matrices, vectors), axis=0) / np.sqrt(len(G) - 1)
        # eigenvalues that agree to rounding or to four standard errors are one eigenspace
        top = values >= values[-1] - 1e-6 * jnp.abs(values[-1]) - 4.0 * jnp.maximum(spread, spread[-1])
        top = top & (values > 0.5 * values[-1])  # ... but never all of it, however large the errors
        weights = jnp.where(top, vectors.T @ jnp.einsum("ipp->i", basis), 0.0)
        X = jnp.einsum("k,ik,ipq->pq", weights, vectors, basis)
    else:
        flat = G.reshape(-1, *G.shape[-4:])

        def step(_: int, X: Array) -> Array:
            Y = _applied(flat, X)
            Y = Y + 0.25 * jnp.linalg.norm(Y) * X  # the shift kills oscillation between blocks
            return Y / jnp.maximum(jnp.linalg.norm(Y), 1e-300)

        X = lax.fori_loop(0, 300, step, jnp.eye(P, dtype=dtype) / np.sqrt(P))
    X = 0.5 * (X + X.T)
    return X / jnp.maximum(jnp.linalg.norm(X), 1e-300)


class _Growth(eqx.Module):
    """What the labels say of the directions not learned, at a fixed point. `each` (R,): ⟨X, F X⟩ of each randomisation;
    `subspace` X; `start` (R, P, P): E g gᵀ, whitened; errors of g and ∂g from the inner integrals."""

    each: Array
    subspace: Array
    start: Array
    slope_error: Array
    field_error: Array
    inaccurate: Array

    @property
    def rate(self) -> Array:
        """λ_max(F)."""
        return jnp.mean(self.each)

    @property
    def never(self) -> Array:
        """Whether the growth rate is no more than errors of integration."""
        return self.rate <= 1e-10 + 25.0 * self.slope_error**2

    def known(self) -> tuple[Array, Array]:
        """Directions (columns) that labels tell at first order, and which of them: E g gᵀ above five standard errors, and
        above what integration errors alone would give."""
        values, vectors = jnp.linalg.eigh(jnp.mean(self.start, axis=0))
        along = jnp.einsum("pk,rpq,qk->rk", vectors, self.start, vectors)
        noise = jnp.std(along, axis=0, ddof=1) / np.sqrt(along.shape[0])
        return vectors, (values > 5.0 * noise) & (values > 1e-12 + 25.0 * self.field_error**2)


def _growth(
    model: Any, Q: Array, V: Array, rest: Array, key: Array, samples: int, randomisations: int, X: Array | None = None
) -> _Growth:
    """Growth of a small overlap in the directions of the projector `rest`, at the overlap Q."""
    P = model.indices
    root = rest @ sqrt_psd(V)
    post = model.channel.draw(Q, V, key=key, samples=samples, randomisations=randomisations)
    G = jnp.einsum("ab,nbmcl,dc->namdl", root, post.dg, root)
    G = G.reshape(randomisations, samples, *G.shape[1:])
    X = lax.stop_gradient(_leading(G)) if X is None else X
    g = jnp.einsum("ab,nbm->nam", root, post.g)
    # a few samples in ten thousand may miss the tolerance of the inner integral: medians say how good the rest is
    return _Growth(
        each=jnp.einsum("pq,rpq->r", X, _applied(G, X)),
        subspace=X,
        start=jnp.einsum("npm,nqm->npq", g, g).reshape(randomisations, samples, P, P).mean(1),
        slope_error=jnp.median(post.dg_error) * (1.0 + jnp.max(jnp.abs(post.dg), axis=(1, 2, 3, 4)).mean()),
        field_error=jnp.median(post.error) * (1.0 + jnp.max(jnp.abs(post.g), axis=(1, 2)).mean()),
        inaccurate=jnp.mean(post.error > model.channel.tolerated),
    )


# Weak recovery -------------------------------------------------------------------------------------------------------------


@eqx.filter_jit
def _weak_recovery(model: Any, key: Array, samples: int, R: int) -> Threshold:
    S = model.prior.second_moment(model.indices)
    seen = _growth(model, jnp.zeros_like(S), S, jnp.eye(len(S), dtype=S.dtype), key, samples, R)
    vectors, known = seen.known()
    trivial, rate, never = jnp.any(known), seen.rate, seen.never
    alpha = jnp.where(trivial, 0.0, jnp.where(never, jnp.inf, 1.0 / jnp.where(never, 1.0, rate)))
    fixed = trivial | never
    # the mean of 1/λ_r is biased; the first-order replicas are not
    replicas = jnp.where(fixed, alpha, alpha - (seen.each - rate) * jnp.where(fixed, 0.0, alpha) ** 2)
    stderr = jnp.where(fixed, 0.0, jnp.std(seen.each, ddof=1) / np.sqrt(R) * jnp.where(fixed, 0.0, alpha) ** 2)
    grows = (vectors * known) @ vectors.T
    subspace = jnp.where(trivial, grows, jnp.where(never, 0.0, seen.subspace))
    root = sqrt_psd(S)
    subspace = root @ subspace @ root  # of the signal, not of the whitened one
    subspace = subspace / jnp.maximum(jnp.trace(subspace), 1e-300)
    finite = jnp.isfinite(rate) & jnp.all(jnp.isfinite(seen.start))
    code = jnp.where(seen.inaccurate > 0.01, Result.INACCURATE, Result.SUCCESS)
    code = jnp.where(finite, code, Result.NONFINITE)
    alpha, stderr, replicas = (jnp.where(finite, x, jnp.nan) for x in (alpha, stderr, replicas))
    return Threshold(alpha, stderr, replicas, subspace, jnp.zeros_like(S), code)


def check_problem(model: Any, samples: int, randomisations: int) -> None:
    """Raise a ValueError for a model without inference, a prior with a mean, or too few samples."""
    allowed = "a model of indices (for matrices: recovery_threshold, and model.small_width_threshold)"
    check(not getattr(model, "scalar", False), "model", type(model).__name__, allowed)
    _ = model.channel.tolerated  # refuses models without inference
    check(randomisations >= 2, "randomisations", randomisations, "at least 2: their spread is the error bar")
    check(samples >= 2 * randomisations, "samples", samples, "at least two points a randomisation")
    P = model.indices
    mean = model.prior.overlap(jnp.zeros((P, P), theory_dtype()))
    check(jnp.max(jnp.abs(mean)) <= 1e-12, "model", model.prior, "a prior of mean zero (else all is learned from the start)")


def weak_recovery(model: Any, *, key: Array, samples: int = 2**16, randomisations: int = 16) -> Threshold:
    r"""The smallest α at which anything is learned from labels alone: α_c = 1/λ_max(F) (module docstring).

    F(X) = E Σ_{m,n} G_{mn} X G_{mn}ᵀ,  G = E[zzᵀ|y] - I at ω = 0

    Arguments: `model`: any index model with a channel and a prior of mean zero; `key`: common random numbers, so that two
    calls with one key differ smoothly; `samples` in all, split over `randomisations` independent nets whose spread is the
    error bar (16 or more: G has heavy tails, and Student's law of `Threshold.interval` needs the degrees of freedom).
    Returns: a `Threshold`: `alpha` 0 where a direction is learned at any α > 0 (E[z|y] ≠ 0), inf where nothing grows;
    `subspace` (P, P) the directions learned. Differentiable, forwards and backwards, in every array of the model.
    Codes: SUCCESS, INACCURATE, NONFINITE. Raises: ValueError for a model without inference or a prior with a mean.
    Cost: `samples` posteriors: 2^16 of two-layer attention take about 2 s on one core after compilation.
    Source: [TDDZLK24], [TCDKZ25], spec section 6.
    Example:
    >>> import jax, jaxsmi as smi
    >>> threshold = smi.weak_recovery(smi.links.phase_retrieval(), key=jax.random.key(0), samples=2**13)
    >>> round(float(threshold.alpha), 1)
    0.5
    """
    check_problem(model, samples, randomisations)
    each = power_of_two(max(samples // randomisations, 2))

    def solve(model: Any, key: Array) -> Threshold:
        return _weak_recovery(model, key, each, randomisations)

    def push(model: Any, key: Array, _: Threshold, directions: list[Array]) -> Any:
        return derivative(lambda m: solve(m, key), model, directions)

    return differentiable(solve, push, model, key)


# Staircase -----------------------------------------------------------------------------------------------------------------

_SCRAMBLES = 4  # nets inside one replica of a threshold
_DEEP = 1e-7  # V of directions that are recovered perfectly, in units of S: small enough for their signs to be known


class Branch(eqx.Module):
    """State evolution with only the directions U (P, k) learned, at one α, on V restricted to them (k, k)."""

    model: Any
    U: Array
    alpha: Array
    key: Array
    samples: int = eqx.field(static=True)
    randomisations: int = eqx.field(static=True)

    def whole(self, V: Array) -> tuple[Array, Array]:
        """Q and V (P, P) of V on the learned directions."""
        S = self.model.prior.second_moment(self.model.indices)
        Q = self.U @ (self.U.T @ S @ self.U - V) @ self.U.T
        return Q, S - Q

    def map_of(self, V: Array) -> fixed_point.Evaluation:
        """V ↦ prior.mmse(α response) on the learned directions, with Jacobian and replicas."""
        U, prior = self.U, self.model.prior
        Q, whole = self.whole(0.5 * (V + V.T))
        response = self.model.channel.response(
            Q, whole, key=self.key, samples=self.samples, randomisations=self.randomisations
        )

        def mmse(Rk: Array) -> Array:
            return U.T @ prior.mmse(self.alpha * U @ (0.5 * (Rk + Rk.T)) @ U.T) @ U

        value, pull = jax.linearize(mmse, U.T @ response.mean @ U)
        inner = jnp.einsum("pi,qj,pqrs,rk,sl->ijkl", U, U, response.jacobian, U, U)
        J = -jax.vmap(jax.vmap(pull, 2, 2), 3, 3)(inner)
        replicas = value + jax.vmap(lambda R: pull(U.T @ (R - response.mean) @ U))(response.replicas)
        return fixed_point.Evaluation(value, J, replicas, (response.inaccurate, response.error))

    def fixed_point(self, V0: Array, max_steps: int, tolerance: float) -> fixed_point.FixedPoint:
        """From V0 (k, k); perfectly recovered directions are followed down to `_DEEP`."""
        S = self.U.T @ self.model.prior.second_moment(self.model.indices) @ self.U
        end = fixed_point.solve(
            self.map_of, V0, S, max_steps=max_steps, tolerance=jnp.asarray(tolerance, S.dtype), newton=True,
            geometric=self.model.channel.noiseless,
        )  # fmt: skip
        deep = end.V * jnp.minimum(_DEEP * jnp.trace(S) / jnp.trace(end.V), 1.0)
        return eqx.tree_at(lambda e: e.V, end, jnp.where(end.result == Result.RECOVERED, deep, end.V))

    def growth(self, V: Array, X: Array | None = None) -> _Growth:
        """Growth of the directions not learned."""
        Q, whole = self.whole(V)
        rest = jnp.eye(len(Q), dtype=Q.dtype) - self.U @ self.U.T
        return _growth(self.model, Q, whole, rest, self.key, self.samples, self.randomisations, X)


@eqx.filter_jit
def _look(state: Branch, V0: Array) -> tuple[fixed_point.FixedPoint, _Growth, tuple[Array, Array]]:
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


def _replica(model: Any, U: Array, guess: Array, floor: Array, V0: Array, key: Array, samples: int) -> _Roots:
    """Root of h(α) = log α λ_max(F) near `guess` by safeguarded secants, the fixed point followed from V0."""

    def h(alpha: Array, V0: Array) -> tuple[Array, Array, Array, Array]:
        state = Branch(model, U, alpha, key, samples, _SCRAMBLES)
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
    code = jnp.where(jnp.isfinite(residual), jnp.where(good & (jnp.abs(residual) <= 1e-4), 0, Result.MAX_STEPS), 4)
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
def _slopes(model: Any, context: tuple[Array, ...], out: _Roots, samples: int) -> tuple[_Roots, Array, Array]:
    """For each replica the Jacobian of its fixed point, and dh/dα."""
    U, _, _, _, keys = context

    def one(key: Array, alpha: Array, V: Array, X: Array) -> tuple[Array, Array]:
        state = Branch(model, U, alpha, key, samples, _SCRAMBLES)
        J = fixed_point.pathwise_jacobian(state.map_of, V, U.T @ state.whole(V)[0] @ U)
        zero = jax.tree.map(lambda x: jnp.zeros_like(x) if eqx.is_inexact_array(x) else x, state)
        unit = eqx.tree_at(lambda s: s.alpha, zero, jnp.ones_like(alpha))
        return J, _along(state, V, X, J, fixed_point.numbers_of(unit)[0])

    return out, *lax.map(lambda x: one(*x), (keys, out.alpha, out.V, out.X))


@eqx.filter_jit
def _roots_tangent(model: Any, context: tuple[Array, ...], prepared: Any, directions: list[Array], samples: int) -> _Roots:
    U, _, _, _, keys = context
    out, J, slope = prepared

    def one(key: Array, alpha: Array, V: Array, X: Array, J: Array, slope: Array) -> Array:
        state = Branch(model, U, alpha, key, samples, _SCRAMBLES)
        still = [jnp.zeros_like(U), jnp.zeros_like(alpha)]
        found = -_along(state, V, X, J, [*directions, *still]) / slope
        return found if model.channel.smooth else jnp.full_like(found, jnp.nan)  # labels that jump: see AbstractChannel

    moved = lax.map(lambda x: one(*x), (keys, out.alpha, out.V, out.X, J, slope))
    return eqx.tree_at(lambda r: r.alpha, jax.tree.map(jnp.zeros_like, eqx.filter(out, eqx.is_inexact_array)), moved)


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
    Cost: about fifteen times `samples` posteriors a step, and a scan. Source: [TDDZLK24], [TCDKZ25], spec section 6.
    Example:
    >>> import jax, jaxsmi as smi
    >>> [
    ...     round(float(t.alpha), 1) for t in smi.staircase(smi.links.sign_product(2), key=jax.random.key(0), samples=2**10)
    ... ]  # doctest: +SKIP
    [2.5]
    """
    check_problem(model, samples, replicas)
    check(np.isfinite(alpha_max) and alpha_max > 0, "alpha_max", alpha_max, "a finite number > 0")
    check(steps is None or steps >= 1, "steps", steps, "at least 1, or None for all")
    listed = guess is None or (isinstance(guess, list) and all(isinstance(t, Threshold) for t in guess))
    check(listed, "guess", guess, "a list of Threshold, as `staircase` returns it")
    held, P = frozen(model), model.indices
    S = held.prior.second_moment(P)
    equal = jnp.max(jnp.abs(S - S[0, 0] * jnp.eye(P))) <= 1e-9 * S[0, 0]
    check(equal, "model", model.prior, "a prior with second moment proportional to the identity")
    each = power_of_two(max(samples // (replicas * _SCRAMBLES), 2))
    keys = jax.vmap(lambda k: jax.random.fold_in(key, 100 + k))(jnp.arange(replicas))
    first = weak_recovery(model, key=key, samples=samples, randomisations=replicas)
    alpha = float(lax.stop_gradient(first.alpha))
    if alpha > alpha_max:
        return []
    if np.isnan(alpha):
        return [first]
    stairs, guesses = [first], list(guess or [])
    U = _directions_of(np.asarray(lax.stop_gradient(first.subspace)))
    bar = tqdm(total=P, initial=U.shape[1], desc="staircase: directions learned", leave=False, disable=not progress)
    while U.shape[1] < P and (steps is None or len(stairs) < steps):
        basis = jnp.asarray(U, S.dtype)
        near = guesses[len(stairs)] if len(guesses) > len(stairs) else None
        found = _next(held, basis, alpha, alpha_max, jax.random.fold_in(key, 7 + len(stairs)), samples, near)
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


def _next(model: Any, U: Array, alpha: float, alpha_max: float, key: Array, samples: int, near: Threshold | None) -> Any:
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
        end, seen, (vectors, known) = _look(Branch(model, U, jnp.asarray(at, S.dtype), key, count, 16), V)
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


# Perfect recovery ----------------------------------------------------------------------------------------------------------


def recovery_threshold(model: Any, *, key: Array | None = None) -> Threshold:
    r"""Perfect recovery: the α above which Q = S is a stable fixed point of state evolution, for noiseless attention P/M.

    For V → 0 a label of M numbers fixes M combinations of the P·M fields: tr(V Q̂) = αM, so that V falls by P/(αM) a step.

    Arguments: `model`: a noiseless attention model with a Gaussian prior, the last layer of rank one; or a matrix model (by
    counting: D(ρ)/M, inf where nothing is recovered). Returns: a
    `Threshold` (exact, no error bar), its subspace everything. Raises: ValueError for models whose labels fix no combination.
    (Phase retrieval and z1 z2 fix one: the law holds for them too.)
    Stability does not prove that the branch from small overlap reaches Q = S. Measured for two tokens: it does, and without a
    jump. Fixed points with a small V lie at α < P/M, which they reach as V → 0: α M/P = 0.955, 0.986, 0.996 at V_11 = 0.1, 0.03,
    0.01 for one layer, 0.968(4), 0.989(2), 0.997(1) for two, and 0.98(1) at V_11 = 0.1 for three. Cost: none. Source: spec
    section 6.
    Example:
    >>> import jaxsmi as smi
    >>> float(smi.recovery_threshold(smi.DeepAttention(3, 2)).alpha)
    1.5
    """
    del key
    dtype = theory_dtype()
    if getattr(model, "scalar", False):
        one = jnp.ones((1, 1), dtype)
        alpha = jnp.where(model.valid, jnp.asarray(model.recovery, dtype), jnp.nan)
        overlap = model.prior.norm * one
        code = jnp.where(model.valid, Result.SUCCESS, Result.INVALID)
        return Threshold(alpha, jnp.zeros((), dtype), alpha[None], one, overlap, code)
    P = model.indices
    seen = getattr(model.channel, "visible", None)
    allowed = "a noiseless model whose label fixes M combinations of its fields (attention, the last layer of rank one)"
    check(seen is not None, "model", getattr(model, "name", type(model).__name__), allowed)
    check(hasattr(model.prior, "covariance"), "model", model.prior, "a continuous (Gaussian) prior")
    alpha = jnp.asarray(P / (seen or jnp.nan), dtype)
    S = model.prior.second_moment(P)
    return Threshold(
        alpha, jnp.zeros((), dtype), jnp.full((1,), alpha), S / jnp.trace(S), S, jnp.asarray(Result.SUCCESS)
    )  # fmt: skip
