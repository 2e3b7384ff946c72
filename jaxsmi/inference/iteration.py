r"""One step of generalised approximate message passing, as a solver of the one driver.

Equations here [Rangan11; TCDKZ25; theory: multi-index, Eqs. (31) to (41)], for the signal W, the
covariance C of what is not known of it, and the fields' variance V = C:

    ω = sensing.forward(W) - memory           (Onsager term: memory = C g, C = ∂W/∂b)
    V widened where labels are missed by more than it says (calibration.py)
    g = channel.respond(y, ω, V)        (of a learner other than Bayes: its own, learners/base.py)
    A = the precision of the fields: "controlled": α ⟨g gᵀ⟩ with a control variate;
        "outer": (1/D) Σ g gᵀ; "divergence": -(1/D) Σ ∂g; "state": that of state evolution at V
    b = sensing.adjoint(g) + A W
    A, b calibrated by the data (calibration.py)
    W, C = prior.posterior(b, A)
    then damping, (W, C, memory) ← (1 - d) new + d old    (Eq. (41), `GampIteration._damped`)

A damped W remembers every g it is made of, and the Onsager term with it: it is the memory C g that
is damped, not C alone. How much is in pace.py.

Bayes-optimality gives Ŵ W*ᵀ/D ≈ Ŵ Ŵᵀ/D and C ≈ S - Ŵ Ŵᵀ/D along the run; both are in the history.

The signal is W (P, D), or one matrix (1, rows, columns), whose entries take the place of D and
whose fields are the entries of one small matrix a sample: the same contractions over the first
axis, P = 1 [theory: attention-indexed, Eqs. (40) to (44)].

Where the samples are spread over devices (`Dataset.sharded`) each device takes a step with its own,
ω_μ and g_μ stay with them, and every Σ_μ goes over all devices; W, C, O and A are the same on all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.core.arrays import PyTree, not_recorded, not_recorded_where, theory_dtype
from jaxsmi.core.codes import INACCURATE_SHARE, Result, choose
from jaxsmi.core.data import Dataset, Regenerated
from jaxsmi.core.driver import AbstractSolver, GeometricDecay
from jaxsmi.core.validate import call_user_function
from jaxsmi.design.base import AbstractOperator
from jaxsmi.inference.calibration import (
    Draws,
    calibration,
    draws,
    misfit,
    no_calibration,
    widened,
)
from jaxsmi.inference.devices import EVERYWHERE, SPREAD, on_devices
from jaxsmi.inference.pace import Pace
from jaxsmi.learners.base import AbstractResponder
from jaxsmi.models.base import AbstractModel

__all__ = ["GampIteration", "GampState", "Position", "SideInformation"]


class GampState(eqx.Module):
    """State after a step, which `record` functions see and `state=` continues from.

    `weights` Ŵ (P, D), `covariance` C (P, P), `memory` (N, P, M), what the Onsager term takes off
    the next fields, `g` (N, P, M), `omega` (N, P, M), `precision` A (P, P), `step`, the number of
    steps taken.
    """

    weights: Array
    covariance: Array
    memory: Array
    g: Array
    omega: Array
    precision: Array
    step: Array

    @classmethod
    def start(cls, weights: Array, covariance: Array, fields: tuple[int, ...]) -> GampState:
        """Before the first step: weights and covariance, fields (N, P, M) that nothing is known
        of."""
        nothing = jnp.zeros(fields, weights.dtype)
        no_precision = jnp.zeros_like(covariance)
        step = jnp.zeros((), int)
        return cls(weights, covariance, nothing, nothing, nothing, no_precision, step)


class SideInformation(NamedTuple):
    """What side information adds to A (P, P) and to b (P, D)."""

    precision: Array
    fields: Array


class Position(eqx.Module):
    """Where a run is: its `state`, the last finite one, and what the stopping test looks at.

    `residual`: root mean square change of Ŵ in the last step; `pace`: the damping, and what it is
    chosen by (pace.py); `ratio` of tr C over the last step;
    `ray`: steps in a row on the recovery ray; `inaccurate`: fraction of posteriors that missed
    their tolerance; `misfit`: of the labels, significantly above one where V is too small
    (calibration.py); `emerging` (P,): rows that are next to zero and grow; `start_norm`: size of Ŵ
    at the start.
    """

    state: GampState
    residual: Array
    pace: Pace
    ratio: Array
    ray: Array
    inaccurate: Array
    misfit: Array
    emerging: Array
    finite: Array
    start_norm: Array


def contract(A: Array, W: Array) -> Array:
    """A W, along the first axis of a signal of any shape."""
    return jnp.tensordot(A, W, axes=1)


_GROWN = 1e6  # of |W|² at the start: a minimiser has no other bound
_EMERGING = 1e-2  # of S: what is smaller is next to nothing
_DRAWS = 1  # the stream of the numbers that labels are compared by


class Responses(NamedTuple):
    """What the fields of one step say: ω, the V that is believed in, the misfit of the labels, the
    posteriors of the fields, and Σ g x/√D."""

    omega: Array
    V: Array
    excess: Array
    posterior: Posterior
    fields: Array


_Moved = tuple[Array, Array, Array]  # Ŵ, C and the memory, which are damped


class GampIteration(AbstractSolver[Position]):
    """Message passing on one data set (module docstring)."""

    model: AbstractModel
    learner: AbstractResponder
    data: Dataset
    start: GampState | None
    spectral: Array | None
    statistic: Array
    side: SideInformation
    damping: Array
    tolerance: Array
    key: PRNGKeyArray
    record: Callable[[GampState], PyTree] | None
    mesh: Mesh | None = eqx.field(static=True)
    precision: str = eqx.field(static=True)
    calibrate: bool = eqx.field(static=True)
    adaptive: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    @property
    def largest(self) -> Array:
        """tr S."""
        return jnp.trace(self.model.prior.second_moment(self.model.indices))

    @property
    def ray(self) -> GeometricDecay:
        """A run of finite dimension fluctuates: a ratio steady to a tenth, for ten steps."""
        return GeometricDecay(self.largest, slowest=0.98, spread=0.1, steps=10)

    @property
    def sensing(self) -> AbstractOperator:
        """How the signal is seen; on each device of the mesh, through its part of the samples."""
        sensing = self.model.design.operator(self.data.inputs)
        if self.mesh is None:
            return sensing
        return dataclasses.replace(sensing, axes=self.mesh.axis_names)

    # What the driver asks for

    def init(self) -> Position:
        """The start."""
        assert self.start is not None  # it is taken out of the solver once the run has begun
        dtype = theory_dtype()
        unknown = not_recorded((), dtype)
        overlap = self.model.metric.overlaps(self.start.weights, self.data.teacher)["overlap"]
        return Position(
            state=self.start,
            residual=unknown,
            pace=Pace.start(self.damping, self.start.weights),
            ratio=unknown,
            ray=jnp.zeros((), int),
            inaccurate=jnp.zeros((), dtype),
            misfit=jnp.ones((), dtype),
            emerging=jnp.zeros(len(self.start.weights), bool),
            finite=jnp.ones((), bool),
            start_norm=jnp.sqrt(jnp.trace(overlap)),
        )

    def step(self, state: Position, count: Array) -> Position:
        """One step; a non-finite one is not taken."""
        del count
        old = state.state
        new, (inaccurate, excess) = self._step(old, state.pace.damping)
        trace = jnp.trace(new.covariance)
        ratio = trace / jnp.trace(old.covariance)
        weights = new.weights
        covariance = new.covariance
        finite = jnp.all(jnp.isfinite(weights)) & jnp.all(jnp.isfinite(covariance))
        reached = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
        change = weights - old.weights
        pace = state.pace.follow(change, weights, trace)
        return Position(
            state=eqx.tree_at(lambda s: s.step, reached, new.step),
            residual=jnp.sqrt(jnp.mean(change**2)),
            pace=pace if self.adaptive else state.pace.measured(pace),
            ratio=ratio,
            ray=self.ray.follow(state.ray, trace, ratio, state.ratio),
            inaccurate=inaccurate,
            misfit=excess,
            emerging=self._emerging(old.weights, weights),
            finite=finite,
            start_norm=state.start_norm,
        )

    def observe(self, state: Position, count: Array) -> dict[str, Array]:
        """Overlaps and cosines, C, the damping, the residual, and what the user asked to record."""
        now = state.state
        entry = {
            "step": now.step.astype(now.weights.dtype),
            **self.model.metric.overlaps(now.weights, self.data.teacher),
            "covariance": now.covariance,
            "damping": state.pace.damping,
            "residual": not_recorded_where(count == 0, state.residual),
            "inaccurate": state.inaccurate,
            "misfit": state.misfit,
        }
        if self.record is not None:
            made = call_user_function("record", self.record, "a function of a GampState", now)
            entry["record"] = jax.tree.map(jnp.asarray, made)
        return entry

    def recorded(self, state: Position, count: Array) -> Array:
        """Finite states only."""
        del count
        return state.finite

    def terminate(self, state: Position, count: Array) -> Array:
        """SUCCESS where Ŵ moves no more, or has shrunk away (nothing is learned); RECOVERED on the
        recovery ray."""
        weights = state.state.weights
        norm = jnp.sqrt(jnp.mean(weights**2))
        size = jnp.sum(weights**2) / weights[0].size
        still = (state.pace.relative <= self.tolerance) & ~jnp.any(state.emerging)
        vanished = norm <= 1e-5 * state.start_norm
        ended = still | vanished
        trace = jnp.trace(state.state.covariance)
        recovered = jnp.zeros((), bool)
        grown = size > _GROWN * state.start_norm**2
        lost = Result.DIVERGED  # λ + A is not positive definite
        if self.learner.bayes:
            recovered = self.model.channel.noiseless & self.ray.reached(state.ray, trace)
            grown = size > 10.0 * self.largest
            lost = Result.NONFINITE
        return choose(
            (count >= self.max_steps, Result.MAX_STEPS),
            (ended, Result.SUCCESS),
            (ended & (state.inaccurate > INACCURATE_SHARE), Result.INACCURATE),
            (recovered, Result.RECOVERED),
            (grown, Result.DIVERGED),
            (~state.finite, lost),
        )

    def progress(self, state: Position) -> Mapping[str, str]:
        """What is not known yet of each index."""
        return {"C": " ".join(f"{c:.4f}" for c in jnp.diagonal(state.state.covariance))}

    # The step

    def fields(self, state: GampState) -> Array:
        """The fields (N, P, M) of the estimate."""
        return on_devices(
            lambda problem, state: problem.sensing.forward(state.weights),
            self.mesh,
            (self, state),
            _of_samples,
            SPREAD,
        )

    @property
    def compares(self) -> bool:
        """Whether labels are compared with those that a run believes in."""
        return self.calibrate and self.model.channel.drawable

    def _step(self, state: GampState, damping: Array) -> tuple[GampState, tuple[Array, Array]]:
        """The next state, the fraction of posteriors that missed their tolerance, and the misfit of
        the labels."""
        everywhere = jax.tree.map(lambda _: EVERYWHERE, state)
        spread = eqx.tree_at(lambda s: (s.memory, s.g, s.omega), everywhere, (SPREAD,) * 3)
        key = jax.random.fold_in(jax.random.fold_in(self.key, state.step), _DRAWS)
        compares = self.compares
        numbers = draws(self.model.channel, self.data.samples, key) if compares else None
        return on_devices(
            GampIteration._device_step,
            self.mesh,
            (self, state, damping, numbers),
            _of_samples,
            (spread, (EVERYWHERE, EVERYWHERE)),
        )

    def _device_step(
        self, state: GampState, damping: Array, numbers: Draws | None
    ) -> tuple[GampState, tuple[Array, Array]]:
        """`_step`, as one device sees it."""
        model = self.model
        sensing = self.sensing
        seen = self._responses(sensing, state, numbers)
        V = seen.V
        posterior = seen.posterior
        g = posterior.g
        A = self._precision(sensing, posterior, V)
        b = seen.fields + contract(A, state.weights)
        calibrated = no_calibration(A)
        if self.calibrate:
            second_moment = model.prior.second_moment(A.shape[0])
            calibrated = calibration(b, A, sensing.outer_precision(g), second_moment)
        b = contract(calibrated.rescaling, b) + self.side.fields
        weights, covariance = self.learner.posterior(b, calibrated.precision + self.side.precision)
        onsager = covariance @ calibrated.rescaling
        weights, covariance, memory = self._damped(
            (weights, covariance, jnp.einsum("pq,nqm->npm", onsager, g)),
            (state.weights, state.covariance, state.memory),
            damping,
        )
        missed = posterior.error > self.learner.tolerance
        inaccurate = sensing.mean(missed.astype(weights.dtype))
        next_state = GampState(
            weights=weights,
            covariance=covariance,
            memory=memory,
            g=g,
            omega=seen.omega,
            precision=calibrated.precision,
            step=state.step + 1,
        )
        return next_state, (inaccurate, seen.excess)

    def _responses(
        self, sensing: AbstractOperator, state: GampState, numbers: Draws | None
    ) -> Responses:
        """What the fields of the estimate say.

        Inputs that are drawn again are drawn once, for ω and for Σ g x/√D: of labels that V
        explains these are the answer; else V is widened by what all ω say, and they are drawn a
        second time.
        """
        key = jax.random.fold_in(self.key, state.step)
        rows = (self.statistic, state.memory)

        def believed(omega: Array) -> tuple[Array, Array]:
            V = state.covariance
            if numbers is None:
                return V, jnp.ones((), V.dtype)
            model = self.model
            excess = misfit(model.channel, self.data.labels, omega, V, numbers, sensing).excess
            return widened(V, model.prior.second_moment(model.indices), excess), excess

        def through(V: Array) -> Responses:
            def answer(fields: Array, rows: PyTree) -> tuple[Array, PyTree]:
                statistic, memory = rows
                omega = fields - memory
                posterior = self.learner.respond(statistic, omega, V, key)
                return posterior.g, (omega, posterior)

            kept, total = sensing.forward_adjoint(state.weights, rows, answer)
            omega, posterior = kept
            return Responses(omega, *believed(omega), posterior, total)

        if not isinstance(sensing.inputs, Regenerated):
            omega = sensing.forward(state.weights) - state.memory
            V, excess = believed(omega)
            posterior = self.learner.respond(self.statistic, omega, V, key)
            return Responses(omega, V, excess, posterior, sensing.adjoint(posterior.g))
        if numbers is None:
            return through(state.covariance)

        def unexplained(now: tuple[Array, Responses]) -> Array:
            count, found = now
            return (count == 0) | (count == 1) & (found.excess > 1.0)

        def again(now: tuple[Array, Responses]) -> tuple[Array, Responses]:
            count, found = now
            return count + 1, through(found.V)

        shapes = jax.eval_shape(through, state.covariance)
        unseen = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        first = (jnp.zeros((), int), unseen._replace(V=state.covariance))
        return lax.while_loop(unexplained, again, first)[1]

    def _emerging(self, old: Array, new: Array) -> Array:
        """Which rows (P,) are next to zero and grow: a run whose other rows stand still goes on."""
        size = lambda W: jnp.sum(W**2, axis=tuple(range(1, W.ndim))) / W[0].size
        second_moment = jnp.diagonal(self.model.prior.second_moment(self.model.indices))
        rest = jnp.max(size(new)) > _EMERGING * jnp.max(second_moment)
        return rest & (size(new) < _EMERGING * second_moment) & (size(new) > size(old))

    def _damped(self, new: _Moved, old: _Moved, d: Array) -> _Moved:
        """The damping rule (1 - d) new + d old, of Ŵ, C and the memory; `Pace.relative` undoes its
        factor 1 - d in the change of Ŵ: a change here is a change there."""
        return jax.tree.map(lambda x, y: (1.0 - d) * x + d * y, new, old)

    def _precision(self, sensing: AbstractOperator, posterior: Posterior, V: Array) -> Array:
        """A (P, P), by the estimate that was asked for; "state": that of theory."""
        estimate = sensing.precisions.get(self.precision)
        if estimate is not None:
            return estimate(posterior.g, posterior.dg)
        Q = self.model.prior.second_moment(self.model.indices) - V
        return sensing.alpha * self.model.channel.expected(Q, V, self.key)


def _of_samples(
    arguments: tuple[GampIteration, GampState]
    | tuple[GampIteration, GampState, Array, Draws | None],
) -> list[Array]:
    """The arrays that have a leading axis of samples."""
    problem, state, *others = arguments
    drawn = [x for numbers in others[1:] if numbers is not None for x in numbers]
    return [*problem.data.of_samples, problem.statistic, state.memory, state.g, state.omega, *drawn]
