r"""Gradient descent on a finite data set, each sample used many times: its law as D → ∞ at N = α D.

Equations here [theory: descent, Eqs. (13) to (18)], with p, q rows of the student, t steps, and
⟨a, b⟩ = E Σ_m a_m b_m over the samples:

    W = √D L O,   W* = √D L* O,   O orthonormal directions, L (P, K)
    M = L L*ᵀ,   Q = L Lᵀ
    z = L A   (P, tokens),   A = n + e/√α   (K, tokens): fields of a sample of the data
    w = L n                                             of a new sample
    S = sel ∂ℓ/∂z,   F = α ⟨S, A⟩,   L ← L + optimiser(F)

n_k are standard normals and e_k is zero for the K0 directions of teacher and start. Each step adds
a direction for each row: its e_k is what the earlier e leave of S_p, normalised, its n_k fresh. So
A is a data set of K directions, of which descent on the coordinates L sees ever more; e_k/√α is
what the weights remember of the samples.

Samples are points of independent nets. All n_k, e_k and slopes lie in the span of one orthonormal
basis of vectors over the points (rows of `vectors`: constants, the first n_k, then for each step
what is new in S and the fresh normals), and are rows of coefficients in it. Linear problems are
then exact to rounding, at any number of points.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, concrete, is_zero, missing, positive_root
from jaxsmi.core.options import Averages
from jaxsmi.core.results import Result, choose
from jaxsmi.core.solution import LearnerSolution
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.descent.options import parts_of
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.numerics.implicit import forwards, not_differentiable
from jaxsmi.numerics.linear_algebra import coordinates_of, triangular_root
from jaxsmi.numerics.quadrature import randomised_gaussians, standard_error
from jaxsmi.sgd.problem import (
    Initial,
    Overlaps,
    Rule,
    as_modules,
    check_gradient,
    gram_of,
    is_even,
    pair_of,
    slopes_continue,
)
from jaxsmi.sgd.sample_averages import sizes_of

_SIZES = 2**17, 8  # points of all nets, and nets: M of two layers after 40 steps to 0.005
# A slope has something new where the rest is above rounding, relative to the slope.
_NEW = 1e-13
# Q beyond so many times its start, or one: a learning rate too large (as in smi.train, squared)
_MAX_GROWTH = 1e4
# Least ratio of the numbers of a net to its vectors, and least samples of a batch in it. Empirical:
# losses are 1.7 standard errors too low at a ratio of six, overlaps wrong below one and a half.
_LEAST, _LEAST_BATCH = 4, 32
_SHUFFLE, _FRESH = 0, 1  # streams of random numbers


class _Basis(eqx.Module):
    """Orthonormal vectors (rows, tokens · n) under ⟨·, ·⟩, zero beyond the first `used`."""

    vectors: Array
    used: Array
    points: int = eqx.field(static=True)

    def coefficients(self, x: Array) -> Array:
        """⟨x, v⟩ of some x (m, tokens · n) with all vectors v: (m, rows)."""
        return x @ self.vectors.T / self.points

    def extended(self, x: Array, floor: Array) -> tuple[_Basis, Array]:
        """Extend the basis by a vector for each x; return it and the coefficients of all x. A part
        of x outside the basis of at most the size `floor` (m,) counts as zero."""
        c = self.coefficients(x)
        rest = x - c @ self.vectors
        # twice: what is new may be a millionth of a slope, which rounding of one pass would hide
        more = self.coefficients(rest)
        x, c = rest - more @ self.vectors, c + more
        new: list[Array] = []
        own = []
        for v, least in zip(x, floor, strict=True):
            among = [jnp.vdot(v, u) / self.points for u in new]
            for a, u in zip(among, new, strict=True):
                v = v - a * u
            square = jnp.vdot(v, v) / self.points
            size = positive_root(square, least**2)
            new.append(v / jnp.where(size > 0.0, size, jnp.inf))
            own.append(jnp.stack([*among, size, *[jnp.zeros_like(size)] * (len(x) - len(new))]))
        c = lax.dynamic_update_slice(c, jnp.stack(own), (0, self.used))
        vectors = lax.dynamic_update_slice_in_dim(self.vectors, jnp.stack(new), self.used, 0)
        return _Basis(vectors, self.used + len(x), self.points), c


class _State(NamedTuple):
    """L (P, K), the optimiser's memory, the basis, the coefficients of all e_k (K, rows), and the
    fields z and w (P, tokens, n)."""

    weights: Array
    optimizer: PyTree
    basis: _Basis
    memory: Array
    fields: Array
    new_fields: Array


class _Points(NamedTuple):
    """Samples of a net: n_k of the first directions (K0, tokens, n), labels (.., n), also without
    noise; `copies` of each point with other signs of the teacher's fields."""

    normals: Array
    labels: Array
    noiseless: Array
    copies: int


class _Descent(eqx.Module):
    """Descent from one start: what does not depend on the net."""

    pair: TeacherStudent
    gram: Array
    start: Overlaps
    alpha: Array
    optimizer: optax.GradientTransformation
    share: float | None = eqx.field(static=True)
    order: str = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    symmetric: bool = eqx.field(static=True)

    def path(self, normals: Array, key: PRNGKeyArray) -> dict[str, Array]:
        """Records at steps 0 to T, from standard normals (variables, n) at the points of a net."""
        pair, P = self.pair, self.pair.rows
        frame = triangular_root(self.gram)
        points = self._points(normals, frame)
        K0, tokens, n = points.normals.shape
        K, used = K0 + P * self.steps, tokens + K0
        room = used + 2 * P * self.steps
        dtype = points.normals.dtype
        constants = jnp.repeat(jnp.eye(tokens, dtype=dtype), n, axis=1)
        first = points.normals.reshape(K0, -1) / np.sqrt(tokens)
        vectors = jnp.zeros((room, tokens * n), dtype)
        vectors = vectors.at[:used].set(jnp.concatenate([constants, first]))
        basis = _Basis(vectors, jnp.asarray(used), n)
        # coefficients of n_k: √tokens of one vector of the basis, and for fixed rows their means
        later = used + np.arange(self.steps)[:, None] * 2 * P + P + np.arange(P)
        place = np.concatenate([tokens + np.arange(K0), later.ravel()])
        fresh = jnp.zeros((K, room), dtype).at[np.arange(K), place].set(np.sqrt(tokens))
        fresh = fresh.at[: pair.fixed, :tokens].set(self._means(frame))
        L = jnp.zeros((P, K), dtype)
        L = L.at[:, :K0].set(jnp.concatenate(coordinates_of(frame, *self.start), axis=1))
        z = (L @ fresh @ vectors).reshape(P, tokens, n)
        memory = jnp.zeros((K, room), dtype)
        state = _State(L, self.optimizer.init(L), basis, memory, z, z)

        def step(state: _State, t: Array) -> tuple[_State, dict[str, Array]]:
            one = jax.value_and_grad(self.pair.loss, argnums=1)
            losses, S = jax.vmap(one, -1, -1)(points.labels, state.fields)
            record = self._record(state, points, frame, jnp.mean(losses))
            return self._step(state, t, S, points.copies, fresh, key), record

        state, records = lax.scan(step, state, jnp.arange(self.steps))
        last = self._record(state, points, frame, self._loss(state.fields, points.labels))
        records = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), records, last)
        return records | {"error": self._loss(state.new_fields, points.noiseless)}

    def _points(self, normals: Array, frame: Array) -> _Points:
        pair = self.pair
        normals = _whitened(normals)
        K0 = pair.fixed + pair.rows
        body = normals[: K0 * pair.tokens].reshape(K0, pair.tokens, -1)
        noise, copies = normals[K0 * pair.tokens :], 1
        if self.symmetric:
            # each point with the opposite teacher's fields, too: M = 0 stays exactly zero
            signs = np.ones((K0, 1, 2, 1))
            signs[: pair.targets, :, 1] = -1.0
            body = (body[:, :, None] * signs).reshape(K0, pair.tokens, -1)
            noise, copies = jnp.tile(noise, 2), 2
        fixed = body[: pair.fixed] + self._means(frame)[:, :, None]
        teacher_fields = jnp.tensordot(frame, fixed, axes=1)[: pair.targets]
        label = jax.vmap(pair.label, -1, -1)
        labels, noiseless = (label(teacher_fields, x) for x in (noise, jnp.zeros_like(noise)))
        return _Points(body, labels, noiseless, copies)

    def _means(self, frame: Array) -> Array:
        """Means of the tokens along the fixed rows (k, tokens)."""
        return frame[self.pair.targets :].T @ self.pair.encoding.T

    def _step(
        self, state: _State, t: Array, S: Array, copies: int, fresh: Array, key: PRNGKeyArray
    ) -> _State:
        """One step of slopes S (P, tokens, n): what is new in them, the gradient, the update."""
        P, L = self.pair.rows, state.weights
        K0, n = self.pair.fixed + P, S.shape[-1] // copies
        S = S * jnp.tile(self._selected(key, t, n), copies)
        draw = jax.random.fold_in(jax.random.fold_in(key, _FRESH), t)
        g = jax.random.normal(draw, (*S.shape[:-1], n), S.dtype)
        both = jnp.concatenate([S, jnp.tile(g, copies)]).reshape(2 * P, -1)
        size = jnp.sqrt(jnp.mean(jnp.sum(S**2, axis=1), axis=1))
        basis, c = state.basis.extended(both, jnp.concatenate([_NEW * size, jnp.zeros(P)]))
        # Gram-Schmidt of the slopes among the e_k, in coefficients
        memory = state.memory
        for p in range(P):
            rest = c[p]
            for _ in range(2):
                rest = rest - (memory @ rest) @ memory
            norm = positive_root(rest @ rest, (_NEW * size[p]) ** 2)
            e = rest / jnp.where(norm > 0.0, norm, jnp.inf)
            memory = lax.dynamic_update_slice(memory, e[None], (K0 + P * t + p, 0))
        data = fresh + memory / jnp.sqrt(self.alpha)
        gradient = self.alpha * c[:P] @ data.T
        update, optimizer = self.optimizer.update(gradient, state.optimizer, L)
        L = L + jnp.asarray(update)
        fields = (jnp.concatenate([L @ data, L @ fresh]) @ basis.vectors).reshape(2, *S.shape)
        return _State(L, optimizer, basis, memory, *fields)

    def _selected(self, key: PRNGKeyArray, t: Array, n: int) -> Array:
        """Mask (n,): one for samples in the batch of a step, else zero."""
        if self.share is None:
            return jnp.ones(n)
        parts = parts_of(self.share)
        stream = {"bernoulli": t, "shuffled": t // parts, "cyclic": 0}[self.order]
        draw = jax.random.fold_in(jax.random.fold_in(key, _SHUFFLE), stream)
        # stratified: the number of samples in a batch is their share, up to one, and on average
        own, of_all = jax.random.split(draw)
        rank = (jax.random.permutation(own, n).astype(float) + jax.random.uniform(of_all)) / n
        place = (jnp.zeros_like(t) if self.order == "bernoulli" else t % parts).astype(float)
        low = place * self.share
        return ((rank >= low) & (rank < low + self.share)).astype(float)

    def _loss(self, z: Array, labels: Array) -> Array:
        return jnp.mean(jax.vmap(self.pair.loss, -1)(labels, z))

    def _record(
        self, state: _State, points: _Points, frame: Array, train_loss: Array
    ) -> dict[str, Array]:
        L, k = state.weights, self.pair.fixed
        M, Q = L[:, :k] @ frame.T, L @ L.T
        return {
            "overlap": Q,
            "teacher_overlap": M,
            "cosine": self.pair.agreement(M, Q, self.gram),
            "train_loss": train_loss,
            "test_loss": self._loss(state.new_fields, points.labels),
        }


def _whitened(x: Array) -> Array:
    """Variables (v, n) with means zero and second moments one over the points, exactly."""
    x = x - jnp.mean(x, axis=1, keepdims=True)
    root = jnp.linalg.cholesky(x @ x.T / x.shape[1])
    return jax.scipy.linalg.solve_triangular(root, x, lower=True)


def descent_theory(
    model: AbstractTeacher,
    alpha: ArrayLike,
    start: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial,
    *,
    rate: ArrayLike | Rule | optax.GradientTransformation,
    steps: int,
    key: PRNGKeyArray,
    student: AbstractTeacher | None = None,
    averages: Averages | None = None,
) -> LearnerSolution:
    r"""Compute what gradient descent on a data set has learned after each step, as D → ∞.

    N = α D samples; full batch, mini-batches, epochs:

        loss = Σ_{μ ∈ batch} ℓ(link(W x_μ/√D), y_μ),   W ← W + optimiser(∇loss)

    `smi.train` from the same overlaps is the same descent at finite D: its `start=(M, Q)`, the same
    optimiser, `gradient=smi.Gradient(reduction="sum")`.

    Args:
        model: The teacher, an index model.
        alpha: N/D > 0.
        start: Overlaps (M, Q) of the student, M (P, P*), Q (P, P), numbers for multiples of the
            identity; or an `Initial` that has a Gram matrix of the teacher, too. From M = 0 a
            student of an even link learns nothing as D → ∞. Unless M = 0 is traced, the history
            then has "gain", too: ∂M_pq(t)/∂M_pq(0), (steps + 1, P, P*), NaN where slopes jump (|z|:
            start at a small M).
        rate: κ, the learning rate of the summed loss, of order one, or one for each row (P,); or a
            `smi.sgd.Rule(rate, gradient=smi.Gradient(loss=.., batch_size=0.25, order=..))`, the
            batch as a share of the samples, with momentum, weight decay (Λ for a unit of α; a
            smaller last part of an epoch decays as the others) and projection; or
            any transformation of optax that commutes with rotations and scales of the weights: SGD
            with momentum, Nesterov, weight decay, schedules.
        steps: Updates T.
        key: A random key.
        student: Another index model of as many tokens. Default: the model.
        averages: Points of all nets (default 2^17), and nets (8), each of which is a data set of
            its own. Losses have a bias inversely proportional to the points of a net: about a third
            of a standard error by default (extrapolated), two at 512 points a net. Links with heavy
            tails, such as z², need more points for `test_loss`.

    Returns:
        A `LearnerSolution` at the last step, with `history`: "step", "overlap" Q,
        "teacher_overlap" M, "cosine", "train_loss" (of all samples), "test_loss" (of a new one),
        "stderr" of each of them. `error` is NaN of losses of your own. Codes: SUCCESS, DIVERGED
        (NaN from there on, or Q 10^4 times as large as it was). Differentiable in all numbers, NaN
        where the slopes of the loss jump (|z|, relu), in numbers of a teacher whose labels jump,
        and in a start in the span of the teacher.

    Raises:
        ValueError: For α <= 0, a start that no weights have, a reduction other than "sum", a number
            of samples in place of a share, too few points for the steps, an optimiser such as Adam,
            or a link without a gradient.

    Example:
        >>> import jax, jaxsmi as smi
        >>> jax.config.update("jax_enable_x64", True)
        >>> model, key = smi.links.linear(0.2), jax.random.key(0)
        >>> few = smi.Averages(points=2048, nets=2)
        >>> theory = smi.descent_theory(
        ...     model, 1.5, (0.1, 0.8), rate=0.08, steps=20, key=key, averages=few
        ... )
        >>> round(float(theory.teacher_overlap[0, 0]), 6)
        0.868894

    Cost:
        O(n M P² T²) operations for n points, M tokens and T steps: two layers, 40 steps, some 5 s
        on one core. Memory of a net 2 (n/nets) M P T numbers.

    Source:
        [MKUZ20], [CCM21], [GTMKZ22]; this form: [theory: descent, Eqs. (13) to (18), (21)].
    """
    rule = Rule.of(rate, optimisers=True)
    pair = pair_of(model, student, rule.gradient.loss)
    check(not pair.spherical, "model", model, "an index model such as smi.DeepAttention(2, 2)")
    alpha = validate.number("alpha", alpha, POSITIVE)
    steps = validate.count("steps", steps)
    key = validate.key("key", key)
    share = _share(rule)
    initial = Initial.of(start)
    gram = gram_of(pair, initial.teacher)
    overlaps = Overlaps.of(pair, gram, initial.student)
    points, nets = sizes_of(averages, *_SIZES)
    check_gradient(pair)
    _check_points(pair, points, nets, steps, share)
    # the user's number: an array of JAX would be traced under jit
    still = isinstance(initial.student, (tuple, list)) and is_zero(initial.student[0])
    at_rest = still and not pair.directions and concrete(pair) and is_even(pair, 0, together=True)
    optimizer = _optimizer(rule, alpha * (1.0 if share is None else share), pair.rows)
    order = rule.gradient.order
    descent = _Descent(pair, gram, overlaps, alpha, optimizer, share, order, steps, at_rest)
    records = forwards(lambda descent, key: _solve(descent, points, nets, key), descent, key)
    # derivatives along the points miss the jumps of slopes (|z|, relu), and those of labels
    smooth, clear = slopes_continue(pair)
    records = not_differentiable(records, descent, unless=smooth)
    records = not_differentiable(records, (pair, gram), unless=clear)
    # rows in the span of the teacher have no direction of their own, which derivatives would miss
    across = coordinates_of(triangular_root(gram), *overlaps)[1]
    regular = jnp.all(jnp.diagonal(across) != 0.0)
    records = not_differentiable(records, (gram, overlaps), unless=regular)
    learner, known = model if student is None else student, rule.gradient.loss is None
    return _solution(learner, records, descent, key, known, validate.valid((descent, rule)))


def _share(rule: Rule) -> float | None:
    """The share of the samples in a batch; None: all of them."""
    gradient = rule.gradient
    allowed = "'sum' (the mean is the sum with a rate |B| times as small, which has no limit D → ∞)"
    check(gradient.reduction in (None, "sum"), "reduction", gradient.reduction, allowed)
    size = gradient.batch_size
    allowed = "a share of the samples below one, such as 0.25 (of few samples: smi.sgd.flow)"
    check(not isinstance(size, int), "batch_size", size, allowed)
    check(gradient.repeats == 1, "repeats", gradient.repeats, "1")
    return size


def _check_points(
    pair: TeacherStudent, points: int, nets: int, steps: int, share: float | None
) -> None:
    """Raise a ValueError for nets with too few points for the vectors of the steps or a batch."""
    vectors = pair.tokens + pair.fixed + pair.rows * (1 + 2 * steps)
    least = max(_LEAST * vectors / pair.tokens, 0.0 if share is None else _LEAST_BATCH / share)
    allowed = f"at least {math.ceil(least)} for these steps and batches: raise averages.points"
    check(points >= least, "averages", f"{points} points in each of {nets} nets", allowed)


def _optimizer(rule: Rule, alpha: Array, rows: int) -> optax.GradientTransformation:
    """The optimiser of coordinates; `alpha`: samples of a step over dimension."""
    if rule.optimizer is None:
        check(rule.rate.ndim == 0 or len(rule.rate) == rows, "rate", rule.rate, f"{rows} numbers")
        # U ← β U + λ L + κ F,   L ← L - U
        steps = [optax.scale(rule.rate.reshape(-1, 1))]
        if rule.weight_decay is not None:
            steps.append(optax.add_decayed_weights(rule.weight_decay * alpha))
        if rule.momentum is not None:
            steps.append(optax.trace(rule.momentum))
        steps.append(optax.scale(-1.0))
        if rule.projection is not None:
            steps.append(optax.GradientTransformation(_norms, _keep_norms))
        return as_modules(optax.chain(*steps))
    if concrete(rule.optimizer):
        with jax.ensure_compile_time_eval():
            allowed = (
                "one that commutes with rotations and scales of the weights, such as optax.sgd "
                "(Adam, signs and clipped steps have no such theory: smi.train)"
            )
            commutes = validate.call_user_function("rate", _commutes, allowed, rule.optimizer, rows)
            check(commutes, "rate", "an optimiser", allowed)
    return rule.optimizer


def _norms(params: Any) -> Array:
    return jnp.linalg.norm(params, axis=1, keepdims=True)


def _keep_norms(updates: Any, state: Any, params: Any = None) -> tuple[Array, Array]:
    """Keep the norms of the rows at those of the start, which are the state."""
    after = params + updates
    return after * state / _norms(after) - params, state


def _commutes(optimizer: optax.GradientTransformation, rows: int) -> bool:
    """True if three steps of weights and gradients that are rotated and much larger are the steps
    rotated and scaled."""
    keys = jax.random.split(jax.random.key(0), 5)
    L, *gradients = [jax.random.normal(key, (rows, 4)) for key in keys[:4]]
    turn = 1e6 * jnp.linalg.qr(jax.random.normal(keys[4], (4, 4)))[0]

    def end(by: Array) -> Array:
        x = L @ by
        memory = optimizer.init(x)
        for gradient in gradients:
            update, memory = optimizer.update(gradient @ by, memory, x)
            x = x + jnp.asarray(update)
        return x

    plain = end(jnp.eye(4)) @ turn
    return bool(jnp.max(jnp.abs(end(turn) - plain)) <= 1e-4 * jnp.max(jnp.abs(plain)))


@eqx.filter_jit
def _solve(descent: _Descent, points: int, nets: int, key: PRNGKeyArray) -> dict[str, Array]:
    """Records of each net (nets, steps + 1, ..)."""
    pair, copies = descent.pair, 2 if descent.symmetric else 1
    variables = (pair.fixed + pair.rows) * pair.tokens + pair.noise_size
    normals = randomised_gaussians(key, max(points // copies, 1), nets, variables)
    keys = jax.random.split(jax.random.fold_in(key, 1), nets)

    def one(net: tuple[Array, Array]) -> dict[str, Array]:
        if not descent.symmetric:
            return descent.path(net[0].T, net[1])

        def overlap(M: Array) -> tuple[Array, dict[str, Array]]:
            moved = eqx.tree_at(lambda d: d.start.M, descent, M)
            records = moved.path(net[0].T, net[1])
            known = slopes_continue(pair)[0]
            return not_differentiable(records["teacher_overlap"], M, unless=known), records

        slopes, records = jax.jacfwd(overlap, has_aux=True)(descent.start.M)
        return records | {"gain": jnp.einsum("tpqpq->tpq", slopes)}

    return lax.map(one, (normals, keys))


def _solution(
    model: AbstractTeacher,
    records: dict[str, Array],
    descent: _Descent,
    key: PRNGKeyArray,
    known: bool,
    valid: Array,
) -> LearnerSolution:
    """Means and standard errors over nets; `known`: the loss without noise is the error."""
    records = jax.tree.map(lambda x: jnp.where(valid, x, missing()), records)
    value = {name: jnp.mean(x, axis=0) for name, x in records.items()}
    stderr = {name: standard_error(x) for name, x in records.items()}
    error, stderr["error"] = (
        x if known else jnp.full((), missing()) for x in (value.pop("error"), stderr["error"])
    )
    Q = value["overlap"]
    finite = jnp.all(jnp.isfinite(Q), axis=(1, 2))
    growth = jnp.max(jnp.abs(Q[-1])) / jnp.maximum(jnp.max(jnp.abs(Q[0])), 1.0)
    last = lambda tree, name: tree[name][-1]
    end = LearnerSolution(
        overlap=Q[-1],
        stderr=last(stderr, "overlap"),
        error=error,
        alpha=descent.alpha,
        steps=jnp.asarray(descent.steps),
        residual=jnp.max(jnp.abs(Q[-1] - Q[-2])),
        result=choose(
            (True, Result.SUCCESS),
            (~(growth < _MAX_GROWTH), Result.DIVERGED),
            (~valid, Result.INVALID),
        ),
        history={
            "step": jnp.where(finite, jnp.arange(len(Q), dtype=Q.dtype), missing()),
            **value,
            "stderr": {name: stderr[name] for name in value},
        },
        covariance=jnp.full_like(Q[-1], missing()),
        spectral_radius=jnp.full((), missing()),
        model=model,
        key=key,
        kind="descent_theory",
        teacher_overlap=last(value, "teacher_overlap"),
        train_loss=last(value, "train_loss"),
        test_loss=last(value, "test_loss"),
        stderrs={"error": stderr["error"]}
        | {name: last(stderr, name) for name in ("teacher_overlap", "train_loss", "test_loss")},
    )
    ends = {name: records[name][:, -1] for name in ("overlap", "teacher_overlap")}
    cosine = standard_error(end.cosines(ends))
    return dataclasses.replace(end, stderrs={**end.stderrs, "cosine": cosine})
