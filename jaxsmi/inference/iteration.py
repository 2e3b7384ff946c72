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
    then damping, (W, C, memory) ← (1 - d) new + d old                               (Eq. (41))

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

from collections.abc import Callable, Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.core.arrays import PyTree, not_recorded, not_recorded_where, theory_dtype
from jaxsmi.core.codes import INACCURATE_SHARE, Result, choose
from jaxsmi.core.data import Regenerated
from jaxsmi.core.driver import AbstractSolver, GeometricDecay
from jaxsmi.core.validate import call_user_function
from jaxsmi.design.base import AbstractOperator
from jaxsmi.inference.calibration import Calibration, Draws, calibration, draws, misfit, widened
from jaxsmi.inference.observations import EVERYWHERE, SPREAD, Observations, on_devices
from jaxsmi.inference.pace import Pace
from jaxsmi.learners.base import AbstractResponder

_GROWN = 1e6  # of |W|² at the start: a minimiser has no other bound
_BEYOND = 10.0  # of tr S: the posterior mean of Bayes is below one of it
_VANISHED = 1e-5  # of |W| at the start: rounding, of which nothing grows again
_EMERGING = 1e-2  # of S: a smaller row has not been learned
_DRAWS = 1  # the stream of the numbers that labels are compared by


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

    `pace`: the damping, the last change of Ŵ, and what the damping is chosen by (pace.py); `ratio`
    of tr C over the last step; `decay_count`: steps in a row of geometric decay; `inaccurate`:
    fraction of posteriors that missed their tolerance; `misfit`: of the labels, significantly above
    one where V is too small (calibration.py); `start_norm`: size of Ŵ at the start.
    """

    state: GampState
    pace: Pace
    ratio: Array
    decay_count: Array
    inaccurate: Array
    misfit: Array
    finite: Array
    start_norm: Array

    @property
    def residual(self) -> Array:
        """Root mean square change of Ŵ in the last step."""
        return jnp.sqrt(jnp.mean(self.pace.change**2))


@eqx.filter_jit
def statistic_of(learner: AbstractResponder, labels: Array) -> Array:
    """What `respond` needs of the labels, once for a run."""
    return learner.statistic(labels)


def contract(A: Array, W: Array) -> Array:
    """A W, along the first axis of a signal of any shape."""
    return jnp.tensordot(A, W, axes=1)


class Responses(NamedTuple):
    """What the fields of one step say: ω, the V that is believed in, the misfit of the labels, the
    posteriors of the fields, and Σ g x/√D."""

    omega: Array
    V: Array
    excess: Array
    posterior: Posterior
    fields: Array


class GampIteration(AbstractSolver[Position]):
    """Message passing on one data set (module docstring).

    `start`: where it begins; `spectral`: the spectral estimate (P, D) in it, if any; `statistic`:
    what responses need of the labels; `precision`: the estimate of A; `calibrate`: A, b and V by
    the data; `adaptive`: the damping is chosen by pace.py.
    """

    observations: Observations
    learner: AbstractResponder
    start: GampState
    spectral: Array | None
    statistic: Array
    side: SideInformation
    damping: Array
    tolerance: Array
    key: PRNGKeyArray
    record: Callable[[GampState], PyTree] | None
    precision: str = eqx.field(static=True)
    calibrate: bool = eqx.field(static=True)
    adaptive: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    @property
    def second_moment(self) -> Array:
        """S (P, P)."""
        model = self.observations.model
        return model.prior.second_moment(model.indices)

    @property
    def decay(self) -> GeometricDecay:
        """A run of finite dimension fluctuates: a ratio steady to a tenth, for ten steps."""
        return GeometricDecay(jnp.trace(self.second_moment), slowest=0.98, spread=0.1, steps=10)

    @property
    def compares(self) -> bool:
        """Labels are compared with those that a run believes in."""
        return self.calibrate and self.observations.model.channel.drawable

    # The interface of a solver

    def init(self) -> Position:
        """The start."""
        dtype = theory_dtype()
        teacher = self.observations.data.teacher
        overlaps = self.observations.model.metric.overlaps(self.start.weights, teacher)
        return Position(
            state=self.start,
            pace=Pace.start(self.damping, self.start.weights),
            ratio=not_recorded((), dtype),
            decay_count=jnp.zeros((), int),
            inaccurate=jnp.zeros((), dtype),
            misfit=jnp.ones((), dtype),
            finite=jnp.ones((), bool),
            start_norm=jnp.sqrt(jnp.trace(overlaps["overlap"])),
        )

    def step(self, state: Position, count: Array) -> Position:
        """One step; a non-finite one is not taken."""
        del count
        old = state.state
        new, (inaccurate, excess) = self._step(old, state.pace.damping)
        trace = jnp.trace(new.covariance)
        ratio = trace / jnp.trace(old.covariance)
        finite = jnp.all(jnp.isfinite(new.weights)) & jnp.all(jnp.isfinite(new.covariance))
        reached = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
        change = new.weights - old.weights
        return Position(
            state=eqx.tree_at(lambda s: s.step, reached, new.step),
            pace=state.pace.follow(change, new.weights, trace, self.adaptive),
            ratio=ratio,
            decay_count=self.decay.follow(state.decay_count, trace, ratio, state.ratio),
            inaccurate=inaccurate,
            misfit=excess,
            finite=finite,
            start_norm=state.start_norm,
        )

    def observe(self, state: Position, count: Array) -> dict[str, Array]:
        """Overlaps and cosines, C, the damping, the residual, and what the user asked to record."""
        now = state.state
        entry = {
            "step": now.step.astype(now.weights.dtype),
            **self.observations.model.metric.overlaps(now.weights, self.observations.data.teacher),
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
        """SUCCESS where Ŵ moves no more, or has shrunk away (nothing is learned); RECOVERED where
        tr C decays geometrically."""
        weights = state.state.weights
        size = jnp.sum(weights**2) / weights[0].size
        still = (state.pace.relative <= self.tolerance) & ~self._emerging(state)
        ended = still | (jnp.sqrt(jnp.mean(weights**2)) <= _VANISHED * state.start_norm)
        recovered = jnp.zeros((), bool)
        grown = size > _GROWN * state.start_norm**2
        broken = Result.DIVERGED  # of a minimiser: λ + A is not positive definite
        if self.learner.bayes:
            trace = jnp.trace(state.state.covariance)
            noiseless = self.observations.model.channel.noiseless
            recovered = noiseless & self.decay.reached(state.decay_count, trace)
            grown = size > _BEYOND * jnp.trace(self.second_moment)
            broken = Result.NONFINITE
        return choose(
            (count >= self.max_steps, Result.MAX_STEPS),
            (ended, Result.SUCCESS),
            (ended & (state.inaccurate > INACCURATE_SHARE), Result.INACCURATE),
            (recovered, Result.RECOVERED),
            (grown, Result.DIVERGED),
            (~state.finite, broken),
        )

    def _emerging(self, state: Position) -> Array:
        """A row is next to zero and grows: a run whose other rows stand still goes on."""
        size = lambda W: jnp.sum(W**2, axis=tuple(range(1, W.ndim))) / W[0].size
        new = size(state.state.weights)
        old = size(state.state.weights - state.pace.change)
        S = jnp.diagonal(self.second_moment)
        others = jnp.max(new) > _EMERGING * jnp.max(S)
        return others & jnp.any((new < _EMERGING * S) & (new > old))

    def progress(self, state: Position) -> Mapping[str, str]:
        """What is not known yet of each index."""
        return {"C": " ".join(f"{c:.4f}" for c in jnp.diagonal(state.state.covariance))}

    # The step

    def _step(self, state: GampState, damping: Array) -> tuple[GampState, tuple[Array, Array]]:
        """The next state, the fraction of posteriors that missed their tolerance, and the misfit of
        the labels."""
        everywhere = jax.tree.map(lambda _: EVERYWHERE, state)
        spread = eqx.tree_at(lambda s: (s.memory, s.g, s.omega), everywhere, (SPREAD,) * 3)
        numbers = None
        if self.compares:
            # of all samples at once: the same numbers for any number of devices
            key = jax.random.fold_in(jax.random.fold_in(self.key, state.step), _DRAWS)
            numbers = draws(self.observations.model.channel, self.observations.data.samples, key)
        return on_devices(
            GampIteration._device_step,
            self.observations.mesh,
            (self, state, damping, numbers),
            _of_samples,
            (spread, (EVERYWHERE, EVERYWHERE)),
        )

    def _device_step(
        self, state: GampState, damping: Array, numbers: Draws | None
    ) -> tuple[GampState, tuple[Array, Array]]:
        """`_step`, as one device sees it."""
        operator = self.observations.operator
        seen = self._responses(operator, state, numbers)
        g = seen.posterior.g
        A = self._precision(operator, seen.posterior, seen.V)
        b = seen.fields + contract(A, state.weights)
        # the textbook algorithm: A as it is, b as it is
        calibrated = Calibration(A, jnp.eye(len(A), dtype=A.dtype))
        if self.calibrate:
            calibrated = calibration(b, A, operator.outer_precision(g), self.second_moment)
        b = contract(calibrated.rescaling, b) + self.side.fields
        weights, covariance = self.learner.posterior(b, calibrated.precision + self.side.precision)
        memory = jnp.einsum("pq,nqm->npm", covariance @ calibrated.rescaling, g)
        # `Pace.relative` undoes the factor 1 - d in the change of Ŵ: a change here is one there
        weights, covariance, memory = jax.tree.map(
            lambda new, old: (1.0 - damping) * new + damping * old,
            (weights, covariance, memory),
            (state.weights, state.covariance, state.memory),
        )
        missed = seen.posterior.error > self.learner.tolerance
        next_state = GampState(
            weights=weights,
            covariance=covariance,
            memory=memory,
            g=g,
            omega=seen.omega,
            precision=calibrated.precision,
            step=state.step + 1,
        )
        return next_state, (operator.mean(missed.astype(weights.dtype)), seen.excess)

    def _responses(
        self, operator: AbstractOperator, state: GampState, numbers: Draws | None
    ) -> Responses:
        """What the fields of the estimate say.

        Inputs that are drawn again are drawn once, for ω and for Σ g x/√D: of labels that V
        explains these are the answer; else V is widened by what all ω say, and they are drawn a
        second time.
        """
        model = self.observations.model
        key = jax.random.fold_in(self.key, state.step)
        C = state.covariance

        def believed(omega: Array) -> tuple[Array, Array]:
            if numbers is None:
                return C, jnp.ones((), C.dtype)
            labels = self.observations.data.labels
            excess = misfit(model.channel, labels, omega, C, numbers, operator).excess
            return widened(C, self.second_moment, excess), excess

        if not isinstance(operator.inputs, Regenerated):
            omega = operator.forward(state.weights) - state.memory
            V, excess = believed(omega)
            posterior = self.learner.respond(self.statistic, omega, V, key)
            return Responses(omega, V, excess, posterior, operator.adjoint(posterior.g))

        def through(V: Array) -> Responses:
            def answer(fields: Array, rows: PyTree) -> tuple[Array, PyTree]:
                statistic, memory = rows
                omega = fields - memory
                posterior = self.learner.respond(statistic, omega, V, key)
                return posterior.g, (omega, posterior)

            rows = (self.statistic, state.memory)
            (omega, posterior), total = operator.forward_adjoint(state.weights, rows, answer)
            return Responses(omega, *believed(omega), posterior, total)

        if numbers is None:
            return through(C)
        # a loop, not a branch: the program of a pass is large, and is compiled once
        shapes = jax.eval_shape(through, C)
        unseen = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return lax.while_loop(
            lambda now: (now[0] == 0) | (now[0] == 1) & (now[1].excess > 1.0),
            lambda now: (now[0] + 1, through(now[1].V)),
            (jnp.zeros((), int), unseen._replace(V=C)),
        )[1]

    def _precision(self, operator: AbstractOperator, posterior: Posterior, V: Array) -> Array:
        """A (P, P), by the estimate that was asked for; "state": that of theory."""
        estimate = operator.precisions.get(self.precision)
        if estimate is not None:
            return estimate(posterior.g, posterior.dg)
        Q = self.second_moment - V
        return operator.alpha * self.observations.model.channel.expected(Q, V, self.key)


def _of_samples(
    arguments: tuple[GampIteration, GampState, Array, Draws | None],
) -> list[Array]:
    """The arrays that have a leading axis of samples."""
    problem, state, _, numbers = arguments
    fields = [x for s in (problem.start, state) for x in (s.memory, s.g, s.omega)]
    drawn = [] if numbers is None else [*numbers]
    return [*problem.observations.data.of_samples, problem.statistic, *fields, *drawn]
