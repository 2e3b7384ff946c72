r"""Generalised approximate message passing: one engine for every model.

Equations here [Rangan11; TCDKZ25; theory: multi-index, Eqs. (31) to (41)],
one step for signal W, covariance C of what is left of it:

    V = C,   ω = sensing.forward(W) - O g_old                  (Onsager term, O = ∂W/∂b averaged over coordinates; = C)
    g = channel.respond(y, ω, V)
    A = sensing.precision(g)      ("controlled", "outer": (1/D) Σ g gᵀ, "divergence": -(1/D) Σ ∂g, "state": the theory's)
    b = sensing.adjoint(g) + A W
    W, C = prior.posterior(b, A)                               (then damping)

Bayes-optimality gives Ŵ W*ᵀ/D ≈ Ŵ Ŵᵀ/D and C ≈ S - Ŵ Ŵᵀ/D along the run; both are in the history. A random start breaks
this: its overlap M is √D times off its norm, and at finite D the mismatch grows with the signal. Calibration restores it.
Theory says b = A W* + A^{1/2} ξ. What holds off the Nishimori line too is b = m W* + n^{1/2} ξ, along each eigenvector u of
A (eigenvalue a, s = uᵀSu), with noise n = uᵀ(Σ g gᵀ/D)u. The data say T = uᵀb bᵀu/(nD) - 1 for the signal-to-noise ratio
m²s/n instead of a s, with standard error √(2/D)(1 + a s). Where the two differ by more than three of these, b is rescaled to
a sufficient statistic of the assumed form:

    A → a' = T/s along u (at least a/10⁴: T may be negative),   b → (a'/n)^{1/2} b,   O = C (a'/n)^{1/2}.

Once a layer is learned (a s > 1) Σ g gᵀ is heavy-tailed, and theory's n = a is the better noise: n → (n + a·as)/(1 + as).
At D → ∞ from a Bayes-consistent start nothing is rescaled, and undamped GAMP follows state evolution step by step.

The signal is W (P, D), or a symmetric matrix √d S (1, d, d), whose d² entries take the place of D and whose fields are the T²
entries of one matrix a sample: the same contractions over the first axis, P = 1
[theory: attention-indexed, Eqs. (40) to (44)].

Where the samples are spread over devices (`Dataset.sharded`) each device takes a step with its own, ω_μ and g_μ stay with them,
and every Σ_μ goes over all devices (sensing.py); W, C, O and A are the same on all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import Ability, check, require
from jaxsmi.core.codes import Result
from jaxsmi.core.data import Dataset
from jaxsmi.core.results import Solution
from jaxsmi.inference.devices import EVERYWHERE, SPREAD, on_devices

PRECISIONS = ("controlled", "outer", "divergence", "state")


def _mixed(A: Array, W: Array) -> Array:
    """A W, along the first axis."""
    return jnp.tensordot(A, W, axes=1)


class GampState(eqx.Module):
    """State after a step: `weights` Ŵ (P, D), `covariance` C (P, P), `onsager` O (P, P), `g` (N, P, M), `omega` (N, P, M),
    `precision` A (P, P), `step`; what `record` functions see, and what `state=` continues from.
    """

    weights: Array
    covariance: Array
    onsager: Array
    g: Array
    omega: Array
    precision: Array
    step: Array


class _Carry(eqx.Module):
    state: GampState
    residual: Array
    ratio: Array
    steady: Array
    inaccurate: Array
    result: Array
    history: dict[str, Any]


class _Problem(eqx.Module):
    model: Any
    data: Dataset
    statistic: Array
    side: tuple[Array, Array]
    damping: Array
    tolerance: Array
    key: Array
    record: Callable | None
    mesh: Mesh | None = eqx.field(static=True)
    precision: str = eqx.field(static=True)
    calibrate: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    every: int = eqx.field(static=True)

    def observe(self, state: GampState, residual: Array, inaccurate: Array) -> dict[str, Any]:
        """What goes into the history at one step."""
        seen = {
            "step": state.step.astype(state.weights.dtype),
            **self.model.overlaps(state.weights, self.data.teacher),
            "covariance": state.covariance,
            "damping": self.damping,
            "residual": residual,
            "inaccurate": inaccurate,
        }
        if self.record is not None:
            seen["record"] = self.record(state)
        return seen

    def calibration(self, b: Array, A: Array, noise: Array) -> tuple[Array, Array]:
        """The calibrated A (P, P) and the matrix (P, P) that rescales b (module docstring)."""
        D = b.shape[1]
        a, vectors = jnp.linalg.eigh(A)
        s = jnp.einsum("pk,pq,qk->k", vectors, self.model.prior.second_moment(A.shape[0]), vectors)
        n = jnp.einsum("pk,pq,qk->k", vectors, noise, vectors)
        positive = (a > 0.0) & (n > 0.0)
        a, n = jnp.where(positive, a, 1.0), jnp.where(positive, n, 1.0)
        n = (n + a * a * s) / (1.0 + a * s)
        T = jnp.sum((vectors.T @ b) ** 2, axis=1) / (n * D) - 1.0
        deviation = (T - a * s) / (jnp.sqrt(2.0 / D) * (1.0 + a * s))
        significant = jnp.where(jnp.abs(deviation) > 3.0, 1.0 - 9.0 / deviation**2, 0.0)
        new = jnp.maximum(a + significant * (T / s - a), 1e-4 * a)
        scale = jnp.where(significant > 0.0, jnp.sqrt(new / n), 1.0)
        new = jnp.where(positive, new, 0.0)
        return (vectors * new) @ vectors.T, (vectors * jnp.where(positive, scale, 1.0)) @ vectors.T

    @property
    def sensing(self) -> Any:
        """How the signal is seen; on each device of the mesh, through its part of the samples."""
        sensing = self.model.sensing(self.data)
        return (
            sensing
            if self.mesh is None
            else dataclasses.replace(sensing, axes=self.mesh.axis_names)
        )

    def step(self, state: GampState) -> tuple[GampState, Array]:
        """One step, and the fraction of samples whose posterior was integrated inaccurately."""
        spread: Any = eqx.tree_at(
            lambda s: (s.g, s.omega), jax.tree.map(lambda _: EVERYWHERE, state), (SPREAD, SPREAD)
        )
        return on_devices(_Problem.own_step, self, state, (spread, EVERYWHERE))

    def fields(self, state: GampState) -> Array:
        """The fields (N, P, M) of the estimate."""
        return on_devices(
            lambda problem, state: problem.sensing.forward(state.weights), self, state, SPREAD
        )

    def own_step(self, state: GampState) -> tuple[GampState, Array]:
        """`step`, as one device sees it."""
        model, sensing = self.model, self.sensing
        V = state.covariance
        omega = sensing.forward(state.weights) - jnp.einsum("pq,nqm->npm", state.onsager, state.g)
        post = model.channel.respond(
            self.statistic, omega, V, jax.random.fold_in(self.key, state.step)
        )
        if self.precision == "controlled":
            A = sensing.controlled_precision(post.g, post.dg)
        elif self.precision == "outer":
            A = sensing.outer_precision(post.g)
        elif self.precision == "divergence":
            A = sensing.divergence_precision(post.dg)
        else:
            A = sensing.alpha * model.channel.expected(
                model.prior.second_moment(model.indices) - V, V, self.key
            )
        b = sensing.adjoint(post.g) + _mixed(A, state.weights)
        calibrated, rescale = (
            self.calibration(b, A, sensing.outer_precision(post.g))
            if self.calibrate
            else (A, jnp.eye(A.shape[0], dtype=A.dtype))
        )
        weights, covariance = model.prior.posterior(
            _mixed(rescale, b) + self.side[1], calibrated + self.side[0]
        )
        new = (weights, covariance, covariance @ rescale)
        old = (state.weights, state.covariance, state.onsager)
        mixed = jax.tree.map(lambda x, y: (1.0 - self.damping) * x + self.damping * y, new, old)
        inaccurate = sensing.mean((post.error > model.channel.tolerance).astype(weights.dtype))
        weights, covariance, onsager = mixed
        return GampState(
            weights, covariance, onsager, post.g, omega, calibrated, state.step + 1
        ), inaccurate


def gamp(
    model: Any,
    data: Dataset,
    *,
    key: Array | None = None,
    max_steps: int = 100,
    tolerance: Any = 1e-4,
    damping: Any = None,
    precision: str | None = None,
    calibrate: bool | None = None,
    init: Any = 1e-3,
    side_information: Any = 0.0,
    record: Callable[[GampState], Any] | None = None,
    record_every: int = 1,
    state: GampState | None = None,
    progress: bool = False,
) -> Solution:
    r"""Bayes-optimal message passing on a dataset (module docstring): learns W from inputs and labels.

    Arguments: `model`; `data`: N samples, inputs float32 or float64 (labels of noiseless attention float64), with or without
    a teacher; `key`: for the start (and channels that sample); `max_steps`; `tolerance` on the change of Ŵ in a step
    (before damping) relative to Ŵ; `damping` in [0, 1) of Ŵ and C (0, the default for indices, follows state evolution step by
    step; matrices have their own default, and outside jit start again with more where a run diverges, from `state=` too:
    history["damping"] says what it was); `precision`: "controlled" (the default for indices, see sensing.py), "outer",
    "divergence" or "state" (of state evolution at the current V; the default for matrices but for hardmax);
    `calibrate`: see above (False: the textbook algorithm, and the only one for matrices);
    `init`: size of a random start (1e-3: uninformative; keep it
    small, see below), "informed" (the posterior mean given the teacher seen with side information 0.99), or weights (P, D);
    `side_information` λ in [0, 1): the run also sees √λ W* + √(1-λ) noise, and starts from what that says; `record`: any
    function of a `GampState`, kept in history["record"]; `record_every` steps; `state`: continue from `solution.state`.

    A start of order one with C = S, or C from ∂g, ends overconfident with the first layer unlearned: start tiny, undamped.

    Returns: a `Solution` with `weights` Ŵ, `overlap` Q = ŴŴᵀ/D, `covariance` C, `error` (plug-in, NaN without a teacher),
    `state`, and `history` with "step", "overlap", "teacher_overlap" M, "cosine", "covariance", "residual", "inaccurate".
    Codes: SUCCESS, RECOVERED, MAX_STEPS, DIVERGED, NONFINITE, INACCURATE; a diverged run keeps its history.
    Raises: ValueError outside jit for arguments out of range, shapes that do not fit, labels the channel cannot produce.
    Of matrix models `weights` is Ŝ (d, d), `overlap` Tr Ŝ²/d, `error` ‖Ŝ - S*‖²/d, and an `init` array the signal √d S (1, d, d).
    Cost: per step two passes over the N·M·D inputs and N posteriors; memory O(N M (D + P)); of matrices N T d² operations and
    an eigendecomposition, 4096 samples at a time.
    Source: [Rangan11], [TCDKZ25], [theory: multi-index, section 4].
    Example:
    >>> import jax, jaxsmi as smi
    >>> model, key = smi.links.linear(0.1), jax.random.key(0)
    >>> sol = smi.gamp(model, model.sample(key, dimension=200, alpha=3.0), key=key)
    >>> bool(sol.converged), bool(sol.overlap[0, 0] > 0.8)
    (True, True)
    """
    dtype = theory_dtype()
    key = jax.random.key(0) if key is None else key
    chosen = damping is None
    check(max_steps >= 1, "max_steps", max_steps, "an integer >= 1")
    check(record_every >= 1, "record_every", record_every, "an integer >= 1")
    damping, tolerance = (
        jnp.asarray(model.dampings[0] if damping is None else damping, dtype),
        jnp.asarray(tolerance, dtype),
    )
    check((damping >= 0) & (damping < 1), "damping", damping, "a number in [0, 1)")
    check(tolerance > 0, "tolerance", tolerance, "a positive number")
    precision = str(precision or model.precisions[0])
    check(precision in model.precisions, "precision", precision, f"one of {model.precisions}")
    calibrate = model.calibrated if calibrate is None else calibrate
    check(model.calibrated or not calibrate, "calibrate", calibrate, "False for this model")
    strength = jnp.asarray(side_information, dtype)
    check(
        (strength >= 0) & (strength < 1), "side_information", side_information, "a number in [0, 1)"
    )
    require(model, Ability.INFERENCE)
    signal, fields = model.shapes(data)  # checks them
    model.channel.check_labels(data.labels)
    # another stream than that of `sample`: with one key for both, the start would be the teacher
    *start_keys, run_key = jax.random.split(jax.random.fold_in(key, 1), 3)
    told = not isinstance(side_information, (int, float)) or side_information != 0
    start, side = _start(model, data, start_keys, init, strength if told else None)
    if state is None:
        state = start
    else:
        check(
            state.weights.shape == signal,
            "state",
            state.weights,
            f"the state of a run with weights {signal}",
        )
        check(
            state.g.shape == fields,
            "state",
            state.g,
            f"the state of a run on {data.samples} samples",
        )
    statistic = _statistic(model.channel, data.labels)
    problem = _Problem(
        model, data, statistic, side, damping, tolerance, run_key, record, data.mesh, precision, bool(calibrate), max_steps,
        record_every,
    )  # fmt: skip
    end = _run(problem, state, progress, key)
    for more in (
        model.dampings[1:] if chosen else ()
    ):  # more damping, where the run can be looked at
        if not (concrete(end.result) and int(end.result) in (Result.DIVERGED, Result.NONFINITE)):
            break
        end = _run(
            eqx.tree_at(lambda p: p.damping, problem, jnp.asarray(more, dtype)),
            state,
            progress,
            key,
        )
    return end


def _start(
    model: Any, data: Dataset, keys: list[Array], init: Any, strength: Array | None
) -> tuple[GampState, tuple[Array, Array]]:
    """The state before the first step, and what side information of that strength (None: none) adds to A and b."""
    P, dtype = model.indices, theory_dtype()
    signal, fields = model.shapes(data)
    start_key, side_key = keys
    teacher = None if data.teacher is None else model.signal(data.teacher)
    side, informed = (jnp.zeros((P, P), dtype), jnp.zeros(signal, dtype)), isinstance(init, str)
    if informed or strength is not None:
        check(
            teacher is not None,
            "data.teacher",
            None,
            "a teacher, for side information or an informed start",
        )
    if strength is not None:
        side = model.prior.side_information(side_key, teacher, strength)
    if informed:
        check(init == "informed", "init", init, "a positive number, 'informed', or an array (P, D)")
        seen = model.prior.side_information(side_key, teacher, jnp.asarray(0.99, dtype))
        weights, covariance = model.prior.posterior(seen[1], seen[0])
    elif (
        strength is not None
    ):  # a start of exactly zero (λ = 0, traced) would be a fixed point of even labels
        weights, covariance = model.prior.posterior(side[1], side[0])
        weights = weights + jnp.asarray(init, dtype) * jax.random.normal(start_key, signal, dtype)
    else:
        init = jnp.asarray(init, dtype)
        check(
            init.shape in ((), signal),
            "init",
            init,
            f"a positive number, 'informed', or an array {signal}",
        )
        check(
            (init > 0) | (init.ndim > 0),
            "init",
            init,
            "a positive number (0 is a fixed point of an even label)",
        )
        check(jnp.all(jnp.isfinite(init)), "init", init, "finite numbers")
        weights, covariance = model.prior.start(
            start_key, signal, init if init.ndim == 0 else jnp.zeros((), dtype)
        )
        weights = weights if init.ndim == 0 else init
    nothing = jnp.zeros(fields, dtype)
    return GampState(
        weights, covariance, covariance, nothing, nothing, 0.0 * side[0], jnp.zeros((), int)
    ), side


def _run(problem: _Problem, state: GampState, progress: bool, key: Array) -> Solution:
    """One run from a state, with or without a progress bar."""
    carry = _begin(problem, state)
    if not progress:
        return _finish(problem, _advance(problem, carry, carry.state.step + problem.max_steps), key)
    first, stretch, data = int(carry.state.step), 2, problem.data
    with tqdm(
        total=problem.max_steps, desc=f"GAMP, D={data.dimension}, N={data.samples}", leave=False
    ) as bar:
        for until in range(stretch, problem.max_steps + stretch, stretch):
            carry = _advance(problem, carry, jnp.asarray(first + min(until, problem.max_steps)))
            bar.update(int(carry.state.step) - first - bar.n)
            bar.set_postfix(C=" ".join(f"{c:.4f}" for c in jnp.diagonal(carry.state.covariance)))
            if int(carry.result) >= 0:
                break
    return _finish(problem, carry, key)


@eqx.filter_jit
def _statistic(channel: Any, labels: Array) -> Array:
    return channel.statistic(labels)


@eqx.filter_jit
def _begin(problem: _Problem, state: GampState) -> _Carry:
    dtype, slots = theory_dtype(), problem.max_steps // problem.every + 1
    nan, zero = jnp.asarray(jnp.nan, dtype), jnp.zeros((), int)
    seen = problem.observe(state, nan, jnp.zeros((), dtype))

    def buffer(x: Array) -> Array:
        x = jnp.asarray(x)
        x = (
            x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(dtype)
        )  # so that NaN can mark what was not recorded
        return jnp.full((slots, *x.shape), jnp.nan, x.dtype).at[0].set(x)

    return _Carry(
        state, nan + jnp.inf, nan, zero, jnp.zeros((), dtype), zero - 1, jax.tree.map(buffer, seen)
    )


@eqx.filter_jit
def _advance(problem: _Problem, carry: _Carry, until: Array) -> _Carry:
    model = problem.model
    largest = jnp.trace(model.prior.second_moment(model.indices))
    origin = carry.history["step"][0].astype(int)
    start_norm = jnp.sqrt(jnp.trace(carry.history["overlap"][0]))

    def body(c: _Carry) -> _Carry:
        new, inaccurate = problem.step(c.state)
        residual = jnp.sqrt(jnp.mean((new.weights - c.state.weights) ** 2))
        size = jnp.sum(new.weights**2) / new.weights[0].size
        left, before = jnp.trace(new.covariance), jnp.trace(c.state.covariance)
        ratio = left / before
        falling = (left < 1e-3 * largest) & (ratio < 0.98) & (jnp.abs(ratio - c.ratio) < 0.1)
        steady = jnp.where(falling, c.steady + 1, 0)
        # a noiseless channel whose V falls along a ray for ten steps, or has fallen to rounding, is perfect recovery
        recovered = model.channel.noiseless & ((steady >= 10) | (left < 1e-12 * largest))
        finite = jnp.all(jnp.isfinite(new.weights)) & jnp.all(jnp.isfinite(new.covariance))
        done = new.step - origin
        code = jnp.where(done >= problem.max_steps, Result.MAX_STEPS, -1)
        ended = jnp.where(inaccurate > 0.01, Result.INACCURATE, Result.SUCCESS)
        # the change that an undamped step would have made, relative to Ŵ; or Ŵ has shrunk away: nothing is learned
        norm = jnp.sqrt(jnp.mean(new.weights**2))
        still = residual / (1.0 - problem.damping) <= problem.tolerance * norm
        code = jnp.where(still | (norm <= 1e-5 * start_norm), ended, code)
        code = jnp.where(recovered, Result.RECOVERED, code)
        code = jnp.where(size > 10.0 * largest, Result.DIVERGED, code)
        code = jnp.where(finite, code, Result.NONFINITE).astype(c.result.dtype)
        # a non-finite step is not taken: the state stays the last finite one
        state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, c.state)
        state = eqx.tree_at(lambda s: s.step, state, new.step)
        kept = (done % problem.every == 0) & finite
        slot = jnp.where(kept, done // problem.every, problem.max_steps + 1)
        seen = problem.observe(new, residual, inaccurate)
        history = jax.tree.map(lambda h, x: h.at[slot].set(x, mode="drop"), c.history, seen)
        return _Carry(state, residual, ratio, steady, inaccurate, code, history)

    return lax.while_loop(lambda c: (c.result < 0) & (c.state.step < until), body, carry)


@eqx.filter_jit
def _finish(problem: _Problem, carry: _Carry, key: Array) -> Solution:
    state, P = carry.state, problem.model.indices
    Q = problem.model.overlaps(state.weights, None)["overlap"]
    error = problem.model.error_of(
        state.weights, problem.data, key=jax.random.fold_in(problem.key, 1)
    )
    # V falling to zero is recovery only if the estimate reproduces the labels; else the run was overconfident
    fields = problem.fields(state)
    labels = problem.data.labels
    misfit = jnp.mean((jax.vmap(problem.model.link)(fields) - labels) ** 2)
    overconfident = (carry.result == Result.RECOVERED) & ~(
        misfit < 0.05 * jnp.mean((labels - jnp.mean(labels, 0)) ** 2)
    )
    code = jnp.where(overconfident, Result.DIVERGED, carry.result)
    valid = (problem.damping >= 0) & (problem.damping < 1) & (problem.tolerance > 0)
    code = jnp.where(valid, code, Result.INVALID)
    lost = ~valid | (code == Result.NONFINITE)
    Q, error = (jnp.where(lost, jnp.nan, x) for x in (Q, error))
    return Solution(
        overlap=Q,
        stderr=jnp.zeros((P, P), Q.dtype),
        error=error,
        alpha=jnp.asarray(problem.model.sensing(problem.data).alpha, Q.dtype),
        steps=state.step,
        residual=carry.residual,
        result=code,
        history=carry.history,
        covariance=state.covariance,
        rho=jnp.asarray(jnp.nan, Q.dtype),
        weights=problem.model.estimate(state.weights),
        state=state,
        model=problem.model,
        key=key,
        kind="gamp",
    )
