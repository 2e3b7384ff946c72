r"""One step of generalised approximate message passing, as a solver of the one driver.

Equations here [Rangan11; TCDKZ25; theory: multi-index, Eqs. (31) to (41)], for the signal W, the
covariance C of what is not known of it, and the fields' variance V = C:

    ω = operator.forward(W) - memory           (Onsager term: memory = C g, C = ∂W/∂b)
    V widened where labels are missed by more than it says (calibration.py)
    g = channel.respond(y, ω, V)        (of a learner other than Bayes: its own, learners/base.py)
    A = the precision of the fields: "controlled": α ⟨g gᵀ⟩ with a control variate;
        "outer": (1/D) Σ g gᵀ; "divergence": -(1/D) Σ ∂g; "state": that of state evolution at V
    b = operator.adjoint(g) + A W
    A, b calibrated by the data (calibration.py)
    W, C = prior.posterior(b, A)
    then damping, (W, C, memory) ← (1 - d) new + d old                               (Eq. (41))

A damped W remembers every g it is made of, and the Onsager term with it: it is the memory C g that
is damped, not C alone; by how much, `Damping` says (calibration.py).

Bayes-optimality gives Ŵ W*ᵀ/D ≈ Ŵ Ŵᵀ/D and C ≈ S - Ŵ Ŵᵀ/D along the run; both are in the history.

The signal is W (P, D), or one matrix (1, rows, columns), whose entries take the place of D and
whose fields are the entries of one small matrix a sample: the same contractions over the first
axis, P = 1 [theory: attention-indexed, Eqs. (40) to (44)].

Where the samples are spread over devices (`Dataset.sharded`) each device takes a step with its own,
ω_μ and g_μ stay with them, and every Σ_μ goes over all devices; W, C, O and A are the same on all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.core.arrays import PyTree, not_recorded, not_recorded_where, theory_dtype
from jaxsmi.core.data import Dataset, Regenerated
from jaxsmi.core.driver import AbstractSolver, GeometricDecay
from jaxsmi.core.results import INACCURATE_SHARE, Result, choose
from jaxsmi.core.validate import call_user_function
from jaxsmi.design.base import AbstractOperator
from jaxsmi.inference.calibration import Damping, Draws, calibration, draws, misfit, widened
from jaxsmi.learners.base import AbstractResponder, BayesResponder
from jaxsmi.models.base import AbstractModel

_GROWN = 1e6  # of |W|² at the start: a minimiser has no other bound
_BEYOND = 10.0  # of tr S: the posterior mean of Bayes is below one of it
_VANISHED = 1e-5  # of |W| at the start: rounding, of which nothing grows again
_EMERGING = 1e-2  # of S: a smaller row has not been learned
_DRAWS = 1  # the stream of the numbers that labels are compared by

# How an array lies on the devices of a mesh: one part of the samples each, or the same on all
SPREAD = "spread"
EVERYWHERE = "everywhere"

Answer = TypeVar("Answer")


def on_devices(
    function: Callable[..., Answer],
    mesh: Mesh | None,
    arguments: tuple[object, ...],
    of_samples: Callable[..., Sequence[object]],
    out: object,
) -> Answer:
    """function(*arguments), by each device of the mesh on its own samples; None: as it is.

    Args:
        function: What to compute; it sees only its device's samples, and sums over all of them by
            `AbstractOperator.sum_devices`.
        mesh: The devices.
        arguments: Trees of arrays and other things.
        of_samples: The arrays of the arguments that have a leading axis of samples.
        out: The tree of the answer, SPREAD or EVERYWHERE for each of its arrays.

    Returns:
        The answer, its spread arrays put together.
    """
    if mesh is None:
        return function(*arguments)
    arrays, rest = eqx.partition(arguments, eqx.is_array)
    places = {SPREAD: PartitionSpec(mesh.axis_names), EVERYWHERE: PartitionSpec()}
    marks = jax.tree.map(lambda _: EVERYWHERE, arrays)
    marks = eqx.tree_at(of_samples, marks, replace_fn=lambda _: SPREAD)
    return jax.shard_map(
        lambda arrays: function(*eqx.combine(arrays, rest)),
        mesh=mesh,
        in_specs=(jax.tree.map(places.get, marks),),
        out_specs=jax.tree.map(places.get, out),
        # loops inside start from zeros that are alike on all devices, which the check refuses
        check_vma=False,
    )(arrays)


# compiled by itself: the spectral estimator and message passing share the program
_statistic = eqx.filter_jit(lambda learner, labels: learner.statistic(labels))


class Observations(eqx.Module):
    """A model, its data, and the devices that they lie on; `statistic`: what responses need of the
    labels."""

    model: AbstractModel
    data: Dataset
    statistic: Array
    # static: inside jit the data do not say where they lie
    mesh: Mesh | None = eqx.field(static=True)

    @classmethod
    def of(
        cls, model: AbstractModel, data: Dataset, learner: AbstractResponder | None = None
    ) -> Observations:
        """Data as a learner sees them, by default the posterior of the model."""
        learner = BayesResponder(model) if learner is None else learner
        return cls(model, data, _statistic(learner, data.labels), data.mesh)

    @property
    def of_samples(self) -> list[Array]:
        """The arrays with a leading axis of samples."""
        return [*self.data.of_samples, self.statistic]

    @property
    def second_moment(self) -> Array:
        """S (P, P) of the prior."""
        return self.model.prior.second_moment(self.model.indices)

    @property
    def alpha(self) -> float:
        """N over the entries of the signal."""
        return self.data.samples / self.model.design.entries(self.data.dimension)

    @property
    def axes(self) -> tuple[str, ...]:
        """Of the mesh."""
        return () if self.mesh is None else self.mesh.axis_names

    @property
    def operator(self) -> AbstractOperator:
        """From the signal to its fields; on each device of the mesh, those of its samples."""
        return dataclasses.replace(self.model.design.operator(self.data.inputs), axes=self.axes)

    def forward(self, W: Array) -> Array:
        """Fields (N, P, M) of a signal."""
        return on_devices(
            lambda observations, W: observations.operator.forward(W),
            self.mesh,
            (self, W),
            lambda arguments: arguments[0].of_samples,
            SPREAD,
        )


class GampState(eqx.Module):
    """State after a step, which `record` functions receive and `smi.gamp(start=state)` continues.

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

    `damping`: its value, the last change of Ŵ, and what it is chosen by; `ratio` of tr C over the
    last step; `decay_count`: steps in a row of geometric decay; `inaccurate`: fraction of
    posteriors that missed their tolerance; `misfit`: of the labels, significantly above one where V
    is too small (calibration.py).
    """

    state: GampState
    damping: Damping
    ratio: Array
    decay_count: Array
    inaccurate: Array
    misfit: Array
    finite: Array

    @property
    def residual(self) -> Array:
        """Root mean square change of Ŵ in the last step."""
        return jnp.sqrt(jnp.mean(self.damping.change**2))


def contract(A: Array, W: Array) -> Array:
    """A W, along the first axis of a signal of any shape."""
    return jnp.tensordot(A, W, axes=1)


# The risk that a learner descends: of a signal and data, what a `LearnerSolution` holds beyond a
# `Solution`
Risk = Callable[[Array, Dataset], dict[str, Any]]


class Task(NamedTuple):
    """A learner as message passing takes it.

    Attributes:
        model: Prior, design and channel that it believes in.
        responder: Its responses, from that model with the norm estimated from the labels.
        risk: None for the posterior of the model.
        precision: The estimate of A.
        dampings: Of a run, and of further ones while they diverge.
        check_labels: Raises a ValueError for labels that it cannot take.
        calibrate: A, b and V are calibrated by the data.
        adaptive: The damping of a run is chosen on its way.
    """

    model: AbstractModel
    responder: Callable[[AbstractModel], AbstractResponder]
    risk: Risk | None
    precision: str
    dampings: tuple[ArrayLike, ...]
    check_labels: Callable[[Array], None]
    # of learners other than Bayes: calibration is by the posterior of the model, not by theirs
    calibrate: bool = False
    adaptive: bool = True


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

    `start`: where it begins; `spectral`: the spectral estimate (P, D) in it, if any; `precision`:
    the estimate of A; `calibrate`: A, b and V by the data; `adaptive`: the damping is chosen on the
    way.
    """

    observations: Observations
    learner: AbstractResponder
    start: GampState
    spectral: Array | None
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
    def decay(self) -> GeometricDecay:
        """A run of finite dimension fluctuates: a ratio steady to a tenth, for ten steps."""
        return GeometricDecay(
            jnp.trace(self.observations.second_moment), slowest=0.98, spread=0.1, steps=10
        )

    @property
    def compares(self) -> bool:
        """Labels are compared with those that a run believes in."""
        return self.calibrate and self.observations.model.channel.drawable

    # The interface of a solver

    def init(self) -> Position:
        """The start."""
        dtype = theory_dtype()
        return Position(
            state=self.start,
            damping=Damping.start(self.damping, self.start.weights),
            ratio=not_recorded((), dtype),  # NaN: one ratio alone is no steady decay
            decay_count=jnp.zeros((), int),
            inaccurate=jnp.zeros((), dtype),
            misfit=jnp.ones((), dtype),
            finite=jnp.ones((), bool),
        )

    def step(self, state: Position, count: Array) -> Position:
        """One step; a non-finite one is not taken."""
        del count
        old = state.state
        new, (inaccurate, excess) = self._step(old, state.damping.value)
        trace = jnp.trace(new.covariance)
        ratio = trace / jnp.trace(old.covariance)
        finite = jnp.all(jnp.isfinite(new.weights)) & jnp.all(jnp.isfinite(new.covariance))
        reached = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
        change = new.weights - old.weights
        return Position(
            # the count goes on: history says at which step a run broke
            state=eqx.tree_at(lambda s: s.step, reached, new.step),
            damping=state.damping.follow(change, new.weights, trace, self.adaptive),
            ratio=ratio,
            decay_count=self.decay.follow(state.decay_count, trace, ratio, state.ratio),
            inaccurate=inaccurate,
            misfit=excess,
            finite=finite,
        )

    def observe(self, state: Position, count: Array) -> dict[str, Array]:
        """Overlaps and cosines, C, the damping, the residual, and what the user asked to record."""
        now = state.state
        entry = {
            "step": now.step.astype(now.weights.dtype),
            **self.observations.model.metric.overlaps(now.weights, self.observations.data.teacher),
            "covariance": now.covariance,
            "damping": state.damping.value,
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
        size, start = (jnp.sum(W**2) / W[0].size for W in (weights, self.start.weights))
        still = (state.damping.relative <= self.tolerance) & ~self._emerging(state)
        ended = still | (jnp.mean(weights**2) <= _VANISHED**2 * start)
        recovered = jnp.zeros((), bool)
        grown = size > _GROWN * start
        broken = Result.DIVERGED  # of a minimiser: λ + A is not positive definite
        if self.learner.bayes:
            # V of a posterior is its error; that of a minimiser is a response, and need not fall
            trace = jnp.trace(state.state.covariance)
            noiseless = self.observations.model.channel.noiseless
            recovered = noiseless & self.decay.reached(state.decay_count, trace)
            grown = size > _BEYOND * jnp.trace(self.observations.second_moment)
            broken = Result.NONFINITE
        # later entries win
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
        old = size(state.state.weights - state.damping.change)
        S = jnp.diagonal(self.observations.second_moment)
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
        g, S = seen.posterior.g, self.observations.second_moment
        A = self._precision(operator, seen.posterior, seen.V)
        b = seen.fields + contract(A, state.weights)
        rescaling = jnp.eye(len(A), dtype=A.dtype)  # the textbook algorithm: A and b as they are
        if self.calibrate:
            A, rescaling = calibration(b, A, operator.outer_precision(g), S)
        b = contract(rescaling, b) + self.side.fields
        weights, covariance = self.learner.posterior(b, A + self.side.precision)
        memory = jnp.einsum("pq,nqm->npm", covariance @ rescaling, g)
        # `Damping.relative` undoes the factor 1 - d in the change of Ŵ: a change here is one there
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
            precision=A,
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
            return widened(C, self.observations.second_moment, excess), excess

        if not isinstance(operator.inputs, Regenerated):
            omega = operator.forward(state.weights) - state.memory
            V, excess = believed(omega)
            posterior = self.learner.respond(self.observations.statistic, omega, V, key)
            return Responses(omega, V, excess, posterior, operator.adjoint(posterior.g))

        def through(V: Array) -> Responses:
            def answer(fields: Array, rows: PyTree) -> tuple[Array, PyTree]:
                statistic, memory = rows
                omega = fields - memory
                posterior = self.learner.respond(statistic, omega, V, key)
                return posterior.g, (omega, posterior)

            rows = (self.observations.statistic, state.memory)
            (omega, posterior), total = operator.forward_adjoint(state.weights, rows, answer)
            return Responses(omega, *believed(omega), posterior, total)

        if numbers is None:
            return through(C)
        # a loop, not a branch: the program of a pass is large, and is compiled once
        unseen = jax.tree.map(jnp.zeros_like, jax.eval_shape(through, C))
        return lax.while_loop(
            lambda now: (now[0] == 0) | (now[0] == 1) & (now[1].excess > 1.0),
            lambda now: (now[0] + 1, through(now[1].V)),
            (jnp.zeros((), int), unseen._replace(V=C)),
        )[1]

    def _precision(self, operator: AbstractOperator, posterior: Posterior, V: Array) -> Array:
        """A (P, P), by the estimate that was asked for; "state": that of theory."""
        if self.precision != "state":
            return operator.precisions[self.precision](posterior.g, posterior.dg)
        Q = self.observations.second_moment - V
        return operator.alpha * self.observations.model.channel.expected(Q, V, self.key)


def _of_samples(
    arguments: tuple[GampIteration, GampState, Array, Draws | None],
) -> list[Array]:
    """The arrays that have a leading axis of samples."""
    problem, state, _, numbers = arguments
    fields = [x for s in (problem.start, state) for x in (s.memory, s.g, s.omega)]
    drawn = [] if numbers is None else [*numbers]
    return [*problem.observations.of_samples, *fields, *drawn]
