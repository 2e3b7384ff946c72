"""One step of generalised approximate message passing, as a solver of the one driver.

Equations here [Rangan11; TCDKZ25; theory: multi-index, Eqs. (35) to (46)], for the signal W, its
posterior covariance C, and the variance of the fields V = C:

    ω = operator.forward(W) - onsager          (Onsager term: C g, C = ∂W/∂b)
    g = channel.respond(y, ω, V)               (of a learner other than Bayes: its own response)
    A = the precision of the fields: "controlled": α ⟨g gᵀ⟩ with a control variate;
        "outer": (1/D) Σ g gᵀ; "divergence": -(1/D) Σ ∂g; "state": that of state evolution at V
    b = operator.adjoint(g) + A W
    W, C = prior.posterior(b, A)

At finite dimension three corrections are added (corrections.py): V is widened (`misfit`), A and b
are calibrated (`calibration`), and steps are damped (`Damping`). At D → ∞ from a Bayes-consistent
start nothing is corrected, and undamped message passing follows state evolution step by step:
Ŵ W*ᵀ/D ≈ Ŵ Ŵᵀ/D and C ≈ S - Ŵ Ŵᵀ/D along the run; both are in the history.

The signal is W (P, D), or one matrix (1, rows, columns), whose entries take the place of D and
whose fields are the entries of one small matrix a sample: the same contractions over the first
axis, P = 1 [theory: attention-indexed, Eqs. (43) to (47)].

Where the samples are spread over devices (`Dataset.sharded`) each device takes a step with its own,
ω_μ and g_μ stay with them, and every Σ_μ goes over all devices; W, C and A are the same on all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior
from jaxsmi.core.arrays import PyTree, missing_array, missing_where, theory_dtype
from jaxsmi.core.data import Dataset, Regenerated
from jaxsmi.core.driver import AbstractSolver
from jaxsmi.core.results import INACCURATE_SHARE, Result, choose
from jaxsmi.core.validate import call_user_function
from jaxsmi.design.designs import EVERYWHERE, SPREAD, AbstractOperator, on_devices
from jaxsmi.inference.corrections import Damping, Draws, calibration, misfit, widened
from jaxsmi.learners.base import AbstractResponder, BayesResponder
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.fixed_point import GeometricDecay, perron
from jaxsmi.numerics.linear_algebra import inverse_root

_MAX_GROWTH = 1e6  # bound on |W|² over its start: a minimiser has no other bound
_MAX_NORM = 10.0  # bound on |W|² over tr S: a posterior mean stays below one
_MIN_NORM = 1e-5  # |W| over its start that counts as zero: rounding, from which nothing grows
_LEAST_V = 1e-10  # V/S of fields of weights that are known: rounding is below
_MIN_OVERLAP = 1e-2  # |w|² over S below which a row has not been learned

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
        """The axes of the mesh of devices."""
        return () if self.mesh is None else self.mesh.axis_names

    @property
    def operator(self) -> AbstractOperator:
        """Map the signal to its fields; on each device of the mesh, those of its samples."""
        return dataclasses.replace(self.model.design.operator(self.data.inputs), axes=self.axes)

    def prior_response(self, key: PRNGKeyArray) -> Posterior:
        """Posteriors of the labels before anything is learned, ω = 0 and V = S, (N, ..)."""
        S = self.second_moment
        _, fields = self.model.design.shapes(self.data.inputs.shape)
        return self.model.channel.respond(self.statistic, jnp.zeros(fields, S.dtype), S, key)

    def forward(self, W: Array) -> Array:
        """Fields (N, P, M) of a signal."""
        fields = lambda observations, W: observations.operator.forward(W)
        of_samples = lambda arguments: arguments[0].of_samples
        return on_devices(fields, self.mesh, (self, W), of_samples, SPREAD)


class GampState(eqx.Module):
    """State after a step, which `record` functions receive and `smi.gamp(start=state)` continues.

    `weights` Ŵ (P, D), `covariance` C (P, P), `onsager` (N, P, M), the Onsager term C g
    subtracted from the next ω, `g` (N, P, M), `omega` (N, P, M), `precision` A (P, P), `step`, the
    number of steps taken.
    """

    weights: Array
    covariance: Array
    onsager: Array
    g: Array
    omega: Array
    precision: Array
    step: Array

    @classmethod
    def start(cls, weights: Array, covariance: Array, fields: tuple[int, ...]) -> GampState:
        """Start from weights and a covariance; all other messages are zero."""
        zero = jnp.zeros(fields, weights.dtype)
        no_precision = jnp.zeros_like(covariance)
        return cls(weights, covariance, zero, zero, zero, no_precision, jnp.zeros((), int))


class SideInformation(NamedTuple):
    """The terms that side information adds to A (P, P) and to b (P, D)."""

    precision: Array
    b: Array


class GampLoopState(eqx.Module):
    """The carry of the loop: the `state` of a run, the last finite one, and numbers of the stopping
    test.

    `damping`: its value, the last change of Ŵ, and what it is chosen by; `ratio` of tr C over the
    last step; `decay_count`: steps in a row of geometric decay; `inaccurate`: fraction of
    posteriors that missed their tolerance; `misfit`: of the labels, significantly above one where V
    is too small.
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
        dampings: The damping of the run, and of the runs that follow while they diverge.
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
    # True for learners other than Bayes: the posterior of the model calibrates, not theirs
    calibrate: bool = False
    adaptive: bool = True

    @property
    def bayes(self) -> bool:
        """True if the learner is the posterior of the model."""
        return self.risk is None


class FieldUpdate(NamedTuple):
    """The fields of one step: ω, V after widening, the misfit of the labels, the
    posteriors of the fields, and Σ_μ g x/√D (`backprojection`)."""

    omega: Array
    V: Array
    excess: Array
    posterior: Posterior
    backprojection: Array


class Messages(NamedTuple):
    """The messages of one step to the prior: the `fields`, A and b as the prior receives them,
    `precision` A as it was estimated, and what `rescaling` b and the Onsager term got."""

    fields: FieldUpdate
    A: Array
    b: Array
    precision: Array
    rescaling: Array


class Bethe(NamedTuple):
    """Numbers of the end of a run (`GampIteration.bethe`): the Bethe `free_entropy`, the
    `stability`, the `direction` (P, P) of fastest growth, of trace one, whether calibration
    `rescaled` the messages, and the `estimate` Ŵ of an undamped step."""

    free_entropy: Array
    stability: Array
    direction: Array
    rescaled: Array
    estimate: Array


class GampIteration(AbstractSolver[GampLoopState]):
    """Message passing on one data set (module docstring).

    `start`: where it begins; `spectral`: the spectral estimate (P, D) in it, if any; `precision`:
    the estimate of A; `calibrate`: A, b and V by the data, beyond `significance`; `adaptive`: the
    damping is chosen on the way.
    """

    observations: Observations
    learner: AbstractResponder
    start: GampState
    spectral: Array | None
    side: SideInformation
    damping: Array
    tolerance: Array
    significance: Array
    key: PRNGKeyArray
    record: Callable[[GampState], PyTree] | None
    precision: str = eqx.field(static=True)
    calibrate: bool = eqx.field(static=True)
    adaptive: bool = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    @property
    def decay(self) -> GeometricDecay:
        """A run of finite dimension fluctuates: a ratio steady to a tenth, for ten steps."""
        largest = jnp.trace(self.observations.second_moment)
        return GeometricDecay(largest, slowest=0.98, spread=0.1, steps=10)

    @property
    def compares_labels(self) -> bool:
        """Each step compares the labels with labels that it draws from its own posterior."""
        return self.calibrate and self.observations.model.channel.drawable

    # The interface of a solver

    def init(self) -> GampLoopState:
        """The start."""
        dtype = theory_dtype()
        return GampLoopState(
            state=self.start,
            damping=Damping.start(self.damping, self.start.weights),
            ratio=missing_array((), dtype),  # NaN: one ratio alone is no steady decay
            decay_count=jnp.zeros((), int),
            inaccurate=jnp.zeros((), dtype),
            misfit=jnp.ones((), dtype),
            finite=jnp.ones((), bool),
        )

    def step(self, state: GampLoopState, count: Array) -> GampLoopState:
        """One step; a non-finite one is not taken."""
        old = state.state
        new, (inaccurate, excess) = self._step(old, state.damping.value)
        trace = jnp.trace(new.covariance)
        ratio = trace / jnp.trace(old.covariance)
        finite = jnp.all(jnp.isfinite(new.weights)) & jnp.all(jnp.isfinite(new.covariance))
        reached = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
        change = new.weights - old.weights
        return GampLoopState(
            # the count goes on: history says at which step a run broke
            state=eqx.tree_at(lambda s: s.step, reached, new.step),
            damping=state.damping.follow(change, new.weights, trace, self.adaptive),
            ratio=ratio,
            decay_count=self.decay.follow(state.decay_count, trace, ratio, state.ratio),
            inaccurate=inaccurate,
            misfit=excess,
            finite=finite,
        )

    def observe(self, state: GampLoopState, count: Array) -> dict[str, Array]:
        """Overlaps and cosines, C, the damping, the residual, and what the user asked to record."""
        now = state.state
        entry = {
            "step": now.step.astype(now.weights.dtype),
            **self.observations.model.metric.overlaps(now.weights, self.observations.data.teacher),
            "covariance": now.covariance,
            "damping": state.damping.value,
            "residual": missing_where(count == 0, state.residual),
            "inaccurate": state.inaccurate,
            "misfit": state.misfit,
        }
        if self.record is not None:
            value = call_user_function("record", self.record, "a function of a GampState", now)
            entry["record"] = jax.tree.map(jnp.asarray, value)
        return entry

    def recorded(self, state: GampLoopState, count: Array) -> Array:
        """Finite states only."""
        return state.finite

    def terminate(self, state: GampLoopState, count: Array) -> Array:
        """SUCCESS where Ŵ moves no more, or has shrunk away (nothing is learned); RECOVERED where
        tr C decays geometrically, or all weights of a discrete prior are known."""
        weights = state.state.weights
        before = weights - state.damping.change
        estimates = (weights, before, self.start.weights)
        size, last, start = (jnp.sum(W**2) / W[0].size for W in estimates)
        # a posterior is known up to O(1/√D); a minimum has digits that other programs find, too
        damping = state.damping
        left = damping.relative if self.learner.bayes else damping.distance
        settled = (left <= self.tolerance) & ~self._emerging(state)
        zero, was_zero = (x <= weights.shape[0] * _MIN_NORM**2 * start for x in (size, last))
        # where the response overshoots, a penalty |w| sets all weights to zero for a single step:
        # the run ends only if they stay there
        ended = settled | (zero & (self.learner.bayes | was_zero))
        recovered = jnp.zeros((), bool)
        too_large = (size > _MAX_GROWTH * start) | (was_zero & ~zero & (count > 1))
        failure = Result.DIVERGED  # for a minimiser, λ + A is not positive definite
        if self.learner.bayes:
            # V of a posterior is its error; V of a minimiser is a response, and need not fall
            trace = jnp.trace(state.state.covariance)
            noiseless = self.observations.model.channel.noiseless
            recovered = noiseless & self.decay.reached(state.decay_count, trace)
            if self.learner.discrete:
                recovered = settled & self._known(state.state.covariance)
            too_large = size > _MAX_NORM * jnp.trace(self.observations.second_moment)
            failure = Result.NONFINITE
        # later entries win
        return choose(
            (count >= self.max_steps, Result.MAX_STEPS),
            (ended, Result.SUCCESS),
            (ended & (state.inaccurate > INACCURATE_SHARE), Result.INACCURATE),
            (recovered, Result.RECOVERED),
            (too_large, Result.DIVERGED),
            (~state.finite, failure),
        )

    def _known(self, C: Array) -> Array:
        """True if less than one of D runs has a wrong weight of a discrete prior."""
        relative = jnp.trace(C) / jnp.trace(self.observations.second_moment)
        return relative * self.observations.operator.entries**2 < 1.0

    def _emerging(self, state: GampLoopState) -> Array:
        """True if a row next to zero grows: the run goes on, even if its other rows stand still."""
        size = lambda W: jnp.sum(W**2, axis=tuple(range(1, W.ndim))) / W[0].size
        new = size(state.state.weights)
        old = size(state.state.weights - state.damping.change)
        S = jnp.diagonal(self.observations.second_moment)
        others = jnp.max(new) > _MIN_OVERLAP * jnp.max(S)
        return others & jnp.any((new < _MIN_OVERLAP * S) & (new > old))

    def progress(self, state: GampLoopState) -> Mapping[str, str]:
        """Show the share of each index that is not known yet."""
        return {"C": " ".join(f"{c:.4f}" for c in jnp.diagonal(state.state.covariance))}

    # The step

    def _step(self, state: GampState, damping: Array) -> tuple[GampState, tuple[Array, Array]]:
        """Return the next state, the fraction of posteriors that missed their tolerance, and the
        misfit of the labels."""
        everywhere = jax.tree.map(lambda _: EVERYWHERE, state)
        spread = eqx.tree_at(lambda s: (s.onsager, s.g, s.omega), everywhere, (SPREAD,) * 3)
        out = (spread, (EVERYWHERE, EVERYWHERE))
        return self._on_devices(GampIteration._device_step, state, out, damping)

    def _on_devices(
        self, function: Callable[..., Any], state: GampState, out: object, *others: Array
    ) -> Any:
        """Call function(self, state, draws, *others) on each device with its own samples."""
        arguments = (self, state, self._draws(state), *others)
        return on_devices(function, self.observations.mesh, arguments, _of_samples, out)

    def _draws(self, state: GampState) -> Draws | None:
        """Random numbers for all samples at once, the same in all steps, so that a run may end, and
        for any number of devices."""
        if not self.compares_labels:
            return None
        # 1: a stream of its own
        key = jax.random.fold_in(self.key, 1)
        return Draws.of(self.observations.model.channel, self.observations.data.samples, key)

    def _device_step(
        self, state: GampState, numbers: Draws | None, damping: Array
    ) -> tuple[GampState, tuple[Array, Array]]:
        """`_step`, as one device sees it."""
        operator = self.observations.operator
        fields, A, b, precision, rescaling = self._messages(operator, state, numbers)
        g = fields.posterior.g
        weights, covariance = self.learner.posterior(b, A)
        onsager = jnp.einsum("pq,nqm->npm", covariance @ rescaling, g)
        # `Damping.relative` undoes the factor 1 - d in the change of Ŵ: a change here is one there
        damped = lambda new, old: (1.0 - damping) * new + damping * old
        weights, covariance = damped(weights, state.weights), damped(covariance, state.covariance)
        onsager = damped(onsager, state.onsager)
        missed = fields.posterior.error > self.learner.tolerance
        new = GampState(weights, covariance, onsager, g, fields.omega, precision, state.step + 1)
        return new, (operator.mean(missed.astype(weights.dtype)), fields.excess)

    def _messages(
        self, operator: AbstractOperator, state: GampState, numbers: Draws | None
    ) -> Messages:
        """Compute the messages of an estimate to the prior."""
        S = self.observations.second_moment
        known = self._known(state.covariance) if self.learner.discrete else None
        if known is not None:
            V = state.covariance + jnp.where(known, _LEAST_V, 0.0) * S
            state = dataclasses.replace(state, covariance=V)
        fields = self._update_fields(operator, state, numbers)
        A = self._precision(operator, fields.posterior, fields.V)
        b = fields.backprojection + contract(A, state.weights)
        rescaling = jnp.eye(len(A), dtype=A.dtype)  # the textbook algorithm: A and b as they are
        if self.calibrate:
            noise = operator.precisions["outer"](fields.posterior.g, fields.posterior.dg)
            A, rescaling = calibration(b, A, noise, S, self.significance)
        total, b = A + self.side.precision, contract(rescaling, b) + self.side.b
        if known is not None:
            # Hardly any label lies within √V of a jump then: all g and A may vanish, and Ŵ with
            # them. A precision of 4 log D/S alone leaves C at the 1/D² where weights are known.
            root = inverse_root(S)
            least = jnp.where(known, 4.0 * jnp.log(operator.entries), 0.0) * root @ root
            total = total + least
            b = b + contract(least, state.weights).astype(b.dtype)
        return Messages(fields, total, b, A, rescaling)

    def bethe(self, state: GampState) -> Bethe:
        r"""Bethe free entropy and stability of a fixed point, per entry of a row of the signal.

            Φ = (1/n) [log Z_w(b, A) - 2χ b·Ŵ + χ tr A (Ŵ Ŵᵀ + n C)]
                + (1/n) Σ_μ [log Z_out(y_μ; ω_μ, V) + χ Σ_m g_mᵀ V g_m],     χ = ½ (symmetric: ¼)

        It is stationary in Ŵ, C and ω, so that errors of these enter to second order, and its
        derivative in a number of the model is that of log Z_w and log Z_out at fixed messages. A
        change of Ŵ of covariance X becomes, one step later, one of covariance

            X ↦ (1/n) Σ_i C_i [(1/n) Σ_μ Σ_{m,k} ∂g_{mk} X ∂g_{mk}ᵀ] C_i

        whose spectral radius is the stability: below one at a stable fixed point.

        Source: [Rangan11], [theory: multi-index, Eqs. (47), (48)].
        """
        everywhere = (EVERYWHERE,) * len(Bethe._fields)
        return Bethe(*self._on_devices(GampIteration._device_bethe, state, everywhere))

    def _device_bethe(self, state: GampState, numbers: Draws | None) -> tuple[Array, ...]:
        """`bethe`, as one device sees it."""
        operator = self.observations.operator
        messages = self._messages(operator, state, numbers)
        fields, A, b = messages.fields, messages.A, messages.b
        post, w, n = fields.posterior, self.observations.model.prior.weight, operator.entries
        (g, dg), (g_too, dg_too) = post.factors
        A, b = (x.astype(theory_dtype()) for x in (A, b))
        W, C = self.learner.posterior(b, A)
        log_prior, squared = self.learner.bethe_terms(b, A)
        # side information has its own labels
        b, A = b - self.side.b, A - self.side.precision
        flat = W.reshape(len(W), -1)
        second = flat @ flat.T / n + C
        of_signal = log_prior - 2.0 * w * jnp.sum(b * W) / n + w * jnp.sum(A * second)
        onsager = jnp.einsum("npm,pq,nqm->n", g, fields.V, g_too)
        of_labels = operator.alpha * operator.mean(post.log_partition + w * onsager)
        # stability of the iteration without the calibration of b
        replicon = jnp.einsum("abcd,cdef->abef", squared, operator.squared(dg, dg_too))
        stability, direction = perron(replicon)
        # V V^T of eigenvectors is one up to rounding
        rescaled = jnp.any(jnp.abs(messages.rescaling - jnp.eye(len(A))) > 1e-3)
        return of_signal + of_labels, stability, direction, rescaled, W

    def _update_fields(
        self, operator: AbstractOperator, state: GampState, numbers: Draws | None
    ) -> FieldUpdate:
        """Compute fields, posterior and back-projection of an estimate."""
        key = jax.random.fold_in(self.key, state.step)
        if isinstance(operator.inputs, Regenerated):
            return self._update_by_passes(operator, state, numbers, key)
        omega = operator.forward(state.weights) - state.onsager
        V, excess = self._variance(operator, omega, state.covariance, numbers)
        posterior = self.learner.respond(self.observations.statistic, omega, V, key)
        return FieldUpdate(omega, V, excess, posterior, operator.adjoint(posterior.g))

    def _update_by_passes(
        self,
        operator: AbstractOperator,
        state: GampState,
        numbers: Draws | None,
        key: PRNGKeyArray,
    ) -> FieldUpdate:
        """`_update_fields` of regenerated inputs, which are read once for ω and Σ g x/√D. If the
        misfit then widens V, a second pass uses the wider V."""
        C, rows = state.covariance, (self.observations.statistic, state.onsager)

        def one_pass(V: Array) -> FieldUpdate:
            def answer(fields: Array, rows: PyTree) -> tuple[Array, PyTree]:
                statistic, onsager = rows
                omega = fields - onsager
                posterior = self.learner.respond(statistic, omega, V, key)
                return posterior.g, (omega, posterior)

            (omega, posterior), total = operator.forward_adjoint(state.weights, rows, answer)
            variance = self._variance(operator, omega, C, numbers)
            return FieldUpdate(omega, *variance, posterior, total)

        if numbers is None:
            return one_pass(C)
        # a loop, not a branch: the program of a pass is large, and is compiled once
        unseen = jax.tree.map(jnp.zeros_like, jax.eval_shape(one_pass, C))
        return lax.while_loop(
            lambda now: (now[0] == 0) | (now[0] == 1) & (now[1].excess > 1.0),
            lambda now: (now[0] + 1, one_pass(now[1].V)),
            (jnp.zeros((), int), unseen._replace(V=C)),
        )[1]

    def _variance(
        self, operator: AbstractOperator, omega: Array, C: Array, numbers: Draws | None
    ) -> tuple[Array, Array]:
        """Return V of the fields (C, or a wider V if C does not explain the errors of the labels)
        and the misfit of the labels."""
        if numbers is None:
            return C, jnp.ones((), C.dtype)
        labels, channel = self.observations.data.labels, self.observations.model.channel
        excess = misfit(channel, labels, omega, C, numbers, operator).excess
        return widened(C, self.observations.second_moment, excess), excess

    def _precision(self, operator: AbstractOperator, posterior: Posterior, V: Array) -> Array:
        """A (P, P), by the estimate that was asked for; "state": that of theory."""
        if self.precision != "state":
            return operator.precisions[self.precision](posterior.g, posterior.dg)
        Q = self.observations.second_moment - V
        few = {"key": self.key, "points": 512, "nets": 4, "tangents": False}
        return operator.alpha * self.observations.model.channel.response(Q, V, **few).mean


def _of_samples(arguments: tuple[Any, ...]) -> list[Array]:
    """List the arrays with a leading axis of samples in a solver, its state and draws."""
    solver, state, numbers, *_ = arguments
    fields = [x for s in (solver.start, state) for x in (s.onsager, s.g, s.omega)]
    drawn = [] if numbers is None else [*numbers]
    return [*solver.observations.of_samples, *fields, *drawn]
