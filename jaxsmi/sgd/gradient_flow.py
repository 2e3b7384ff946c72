r"""The limit of many dimensions: overlaps of online SGD against time, and weak recovery.

Equations here [ALSKZ25, Eq. 11, Prop. 2; theory: online-sgd, Eqs. (28) to (32), (66), (67)], κ the
learning rate for each sample, t = κ α, λ_t the weight decay for a unit of t, averages A_T, A_Z,
N_s of sample_averages.py:

    dM/dt = -A_T - λ_t M,   dQ/dt = -(A_Z + A_Zᵀ) + κ N_s - 2 λ_t Q
    sphere: a = diag(dQ)/(2 diag Q),   dM -= a M,   dQ -= a Q + Q a
    t_p = min{t: cosine_p(t) >= level}

κ → 0 is (projected) gradient flow. Of one direction on the sphere this is

    dv/dt = -(I - v vᵀ) ∇R(v) - (γ/2) N_s(v) v,   v = (m, e),   γ = κ

The N_s term is what normalisation costs: without it the flow is too fast already at γ = 0.1 and
ends at |m| = 1, where SGD does not. Each net of an average is integrated alone, so that the spread
of the answers is the error of the end.

Letters here: N_s the noise of the gradient, E[s sᵀ] of slopes s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import results, validate
from jaxsmi.core.arrays import concrete, nan_unless
from jaxsmi.core.options import Averages, Iteration
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Estimate
from jaxsmi.core.validate import NON_NEGATIVE, UNIT_INTERVAL, check
from jaxsmi.models.teacher_student import AbstractFlowTeacher
from jaxsmi.sgd.extensive_rank import FACTOR_RATE, matrix_start
from jaxsmi.sgd.problem import Initial, Overlaps, Rule, check_moving, pair_of
from jaxsmi.sgd.sample_averages import (
    AbstractAverages,
    AbstractMotion,
    SgdSetting,
    spread,
)

if TYPE_CHECKING:
    import diffrax  # importing it takes a second: it is imported where a flow is solved


# points of all nets, and nets: error bars of 1e-3 of two layers at κ = 0.2
_SIZES = 2**15, 8
_RTOL, _MAX_STEPS = 1e-7, 4096
_MAX_TIME = 1e4  # time at which a recovery is given up: rates of escape are above 1e-3


class FlowRecords(NamedTuple):
    """Numbers of each record of a `Flow`, or their standard errors over independent nets: zero
    where nothing is sampled."""

    teacher_overlap: Array
    overlap: Array
    cosine: Array
    risk: Array


class Flow(eqx.Module):
    """Overlaps against time.

    Attributes:
        time: Times t = κ α of the records (T,).
        teacher_overlap: M (T, P, k), with the teacher's rows and then with the directions of the
            inputs; NaN where a time was not reached.
        overlap: Q (T, P, P).
        cosine: Cosines (T, P) up to the symmetries of the model; of a `SequenceSingleIndex`
            ‖(m, e)‖ (T,).
        risk: E ℓ (T,), with the noise of labels; NaN of a `SequenceSingleIndex`: `risk`.
        stderr: Standard errors of these four.
        result: A `Result` code.
        kappa: κ.
    """

    time: Array
    teacher_overlap: Array
    overlap: Array
    cosine: Array
    risk: Array
    stderr: FlowRecords
    result: Array
    kappa: Array

    @property
    def alpha(self) -> Array:
        """α = t/κ of the records; inf for κ = 0."""
        return self.time / self.kappa

    @property
    def message(self) -> str:
        """The sentence that goes with the result code (outside jit and vmap)."""
        return results.message(self.result, "training")


class RowMotion(AbstractMotion):
    """Overlaps move by themselves (module docstring)."""

    start: Overlaps
    kappa: Array
    decay: Array
    noisy: bool = eqx.field(static=True)
    projected: bool = eqx.field(static=True)

    def velocity(self, averages: AbstractAverages, state: Overlaps) -> Overlaps:
        M, Q = state
        moments = averages.at(M, Q, self.noisy)
        dM = -moments.teacher_gradient - self.decay * M
        A_Z = moments.student_gradient
        dQ = -(A_Z + A_Z.T) + self.kappa * moments.gradient_noise - 2.0 * self.decay * Q
        if not self.projected:
            return Overlaps(dM, dQ)
        a = jnp.diagonal(dQ) / (2.0 * jnp.diagonal(Q))
        return Overlaps(dM - a[:, None] * M, dQ - a[:, None] * Q - Q * a)

    def overlaps(self, state: Overlaps) -> Overlaps:
        return state


class _FlowEquation(eqx.Module):
    """Differential equation from one start at one learning rate, and settings of its solver."""

    setting: SgdSetting
    motion: AbstractMotion
    kappa: Array
    rtol: Array
    max_steps: int = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        model: object,
        start: Any,
        rate: ArrayLike | Rule,
        student: object,
        key: PRNGKeyArray | None,
        averages: Averages | None,
        iteration: Iteration | None,
    ) -> _FlowEquation:
        """Validate the arguments of a call."""
        rule = Rule.of(rate)
        check(rule.rate.ndim == 0, "rate", rule.rate, "one number")
        allowed = "a smi.Iteration of max_steps and tolerance alone"
        iteration = validate.settings("iteration", iteration, Iteration, allowed)
        unused = iteration.damping is None and iteration.newton is None
        check(unused, "iteration", iteration, allowed)
        # momentum multiplies steps by 1/(1 - β) for slow overlaps, decay as well as learning
        kappa = rule.per_sample()
        decay = jnp.zeros(()) if rule.weight_decay is None else rule.weight_decay
        decay = decay if rule.momentum is None else decay / (1.0 - rule.momentum)
        allowed = "0, as there is no learning rate to scale it"
        check((kappa > 0.0) | (decay == 0.0), "weight_decay", decay, allowed)
        pair = pair_of(model, student, rule.gradient.loss, AbstractFlowTeacher)
        initial, factors = Initial.of(start), None
        if pair.matrix is not None:
            pair, initial, factors = matrix_start(pair, initial)
        setting = SgdSetting.of(pair, initial, key, averages, _SIZES, coarse=True)
        # a flow at rest would integrate to its last time, and return the start
        check_moving(setting.pair, setting.overlaps.M)
        rtol = jnp.asarray(_RTOL) if iteration.tolerance is None else iteration.tolerance
        # N_s costs as much as the gradient, so it is left out where it is known to vanish
        noisy = not (concrete(kappa) and float(kappa) == 0.0)
        projected = setting.pair.spherical or rule.projection == "sphere"
        max_steps = iteration.max_steps or _MAX_STEPS
        # t = κ α: decay for a unit of α is κ times that for a unit of t
        per_time = decay / jnp.where(kappa > 0.0, kappa, 1.0)
        if factors is not None:
            check((kappa == 0.0) & (not projected), "rate", rate, FACTOR_RATE)
            kappa = nan_unless(kappa, kappa == 0.0)
            return cls(setting, factors, kappa, rtol, max_steps)
        # d² numbers of a symmetric matrix have d²/2 directions: half of κ is that of its row
        share = 1.0 if pair.matrix is None else 0.5
        motion = RowMotion(setting.overlaps, share * kappa, per_time, noisy, projected)
        return cls(setting, motion, kappa, rtol, max_steps)

    def agreement(self, x: Overlaps) -> Array:
        """Cosines, up to the symmetries of the model."""
        return self.setting.pair.agreement(x.M, x.Q, self.setting.gram)

    def solve(
        self,
        averages: AbstractAverages,
        last: Array,
        saveat: diffrax.SaveAt,
        event: diffrax.Event | None = None,
    ) -> diffrax.Solution:
        """Integrate from t = 0 to `last`, or to an event, with the averages of one net."""
        import diffrax

        # a NaN would take all steps: the answer is masked by its validity instead
        motion = jax.tree.map(lambda x: jnp.where(jnp.isnan(x), 0.0, x), self.motion)
        drift = lambda t, state, args: args[1].velocity(args[0], state)

        return diffrax.diffeqsolve(
            diffrax.ODETerm(drift),
            diffrax.Tsit5(),
            t0=jnp.zeros_like(last),
            t1=last,
            dt0=None,
            y0=motion.start,
            args=(averages, motion),
            saveat=saveat,
            # overlaps are of order one; those of a start, 1/√D, are resolved at any D below 1e10
            stepsize_controller=diffrax.PIDController(rtol=self.rtol, atol=1e-2 * self.rtol),
            max_steps=self.max_steps,
            event=event,
            throw=False,
        )


def flow(
    model: AbstractFlowTeacher,
    start: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial,
    times: ArrayLike,
    *,
    rate: ArrayLike | Rule = 0.0,
    student: AbstractFlowTeacher | None = None,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
    iteration: Iteration | None = None,
) -> Flow:
    r"""Integrate the overlaps of online SGD over time, in the limit D → ∞ at fixed κ.

        dM/dt = -A_T - λ_t M,   dQ/dt = -(A_Z + A_Zᵀ) + κ N_s - 2 λ_t Q,   t = κ α,   α = N/D
        one direction on the sphere:  dv/dt = -(I - v vᵀ) ∇R(v) - (γ/2) N_s(v) v,   t = γ τ/d
        factors of a matrix:  dW/dt = -(4/√ρ_1) W (g_11 S_1 + g_12 S_2),   t = η n/d² of n steps
        the matrix itself:  dq_12/dt = -A_T,   dq_11/dt = -2 A_Z + (κ/2) N_s

    Args:
        model: The teacher: an index model, a `SequenceSingleIndex`, or an `AttentionIndexed` (M and
            Q are q_12 and q_11, q_kl = Tr S_k S_l/d; the error is Q_0 - 2 q_12 + q_11).
        start: Overlaps (M, Q), M (P, k) with the fixed rows, Q (P, P); of a `SequenceSingleIndex`
            m or (m, e_1, .., e_K), of an untied network m_1, .., m_L; or an `Initial` that has a
            Gram matrix of the teacher, too. Of an `AttentionIndexed` the scale ν > 0 of factors
            N(0, 1), which are trained (κ = 0 alone), or (q_12, q_11), of a matrix that is trained
            itself; an `Initial` has eigenvalues of the teacher's matrix (n,), too.
        times: Times t of the records (T,), increasing, >= 0.
        rate: κ, the learning rate for each sample, a number >= 0; or a `Rule`.
            Default 0, gradient flow.
        student: Another index model, or `AttentionIndexed`, of as many tokens. Default: the model.
        key: A random key, for averages that are sampled (the same points at all times): those of
            index models, and where `risk` needs one.
        averages: Points of all nets (default 2^15), and nets (8), each of which is integrated
            alone. A `smi.Averages`.
        iteration: `tolerance` of the integrator, relative (default 1e-7), and its `max_steps`
            (4096). A `smi.Iteration`.

    Returns:
        A `Flow`. Times that were not reached are NaN, with the code MAX_STEPS.

    Raises:
        ValueError: For a start that no weights have or that is at rest, κ < 0, times that do not
            increase, another number out of range, another matrix model, or a missing key.

    Example:
        >>> import jaxsmi as smi
        >>> series = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
        >>> network = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
        >>> model = smi.SequenceSingleIndex(series, 1, network, loss_factor=1.0)
        >>> path = smi.sgd.flow(model, 0.1, [0.5])  # dm/dt = 4 m (1 - m²)
        >>> round(float(path.teacher_overlap[0, 0, 0]), 6)
        0.596205

    Cost:
        Some 500 to 1000 averages: of an index model a gradient a point; of one direction 2 to 20 s
        for two tokens on a core, milliseconds for networks with a series; of factors 3 s.

    Source:
        [ALSKZ25, Eq. 11]; [theory: online-sgd, Eqs. (29), (30), (66), (67), (77) to (81)].
    """
    increasing = "increasing numbers >= 0"
    record_times = jnp.atleast_1d(validate.array("times", times, increasing, interval=NON_NEGATIVE))
    check(record_times.ndim == 1, "times", times, increasing)
    ordered = jnp.all(jnp.diff(record_times) > 0)
    check(ordered, "times", times, increasing)
    equation = _FlowEquation.of(model, start, rate, student, key, averages, iteration)
    records, complete = _trajectories(equation, jnp.nan_to_num(record_times))
    valid = ordered & validate.valid((equation, record_times))
    clean = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x) & valid, x, jnp.nan), records)
    result = jnp.where(jnp.all(complete), int(Result.SUCCESS), int(Result.MAX_STEPS))
    return Flow(
        record_times,
        *(jnp.mean(x, axis=0) for x in clean),
        stderr=jax.tree.map(spread, clean),
        result=jnp.where(valid, result, int(Result.INVALID)),
        kappa=equation.kappa,
    )


def recovery_time(
    model: AbstractFlowTeacher,
    start: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial,
    *,
    rate: ArrayLike | Rule = 0.0,
    level: ArrayLike = 0.5,
    student: AbstractFlowTeacher | None = None,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
    iteration: Iteration | None = None,
) -> Estimate:
    r"""Compute the time t = κ α of weak recovery in the limit of many dimensions.

        t_p = min{t: cosine_p(t) >= level},   of one direction on the sphere ‖(m, e)(t)‖ >= η

    (of an untied network ‖m‖/√L >= η).

    Args:
        model: The teacher: an index model, or a `SequenceSingleIndex`.
        start: Overlaps at the start, as for `flow`.
        rate: κ, or a `Rule`, as for `flow`. Default 0, gradient flow.
        level: The level, a number in (0, 1). Default 1/2.
        student: See `flow`.
        key: See `flow`.
        averages: See `flow`.
        iteration: See `flow`.

    Returns:
        An Estimate(value, stderr) of t for each index (P,), of one direction a number: 0 where the
        start is there already, inf where the level is not reached until t = 10^4, NaN where the
        steps ran out. α = t/κ.

    Raises:
        ValueError: In the cases of `flow`, or for a level outside (0, 1).

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
        >>> network = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
        >>> model = smi.SequenceSingleIndex(square, 1, network, loss_factor=1.0)
        >>> round(float(smi.sgd.recovery_time(model, 0.1).value), 6)  # ln(33)/8
        0.437063

    Cost:
        One `flow` for each index.

    Source:
        [theory: online-sgd, Eq. (32)].
    """
    height = validate.number("level", level, UNIT_INTERVAL)
    equation = _FlowEquation.of(model, start, rate, student, key, averages, iteration)
    time, known = _passages(equation, jnp.nan_to_num(height))
    # not known where the steps ran out: inf would say that the level is never reached
    time = jnp.where(known & validate.valid((equation, height)), time, jnp.nan)
    if equation.setting.pair.spherical:
        time = time[:, 0]
    return Estimate(jnp.mean(time, axis=0), spread(time))


@eqx.filter_jit
def _trajectories(equation: _FlowEquation, times: Array) -> tuple[FlowRecords, Array]:
    """Records of each net, and True where all its times were reached."""
    import diffrax

    def one(averages: AbstractAverages) -> tuple[FlowRecords, Array]:
        solution = equation.solve(averages, times[-1], diffrax.SaveAt(ts=times))
        assert solution.ys is not None
        path = jax.vmap(equation.motion.overlaps)(solution.ys)
        risk = jnp.full(len(times), jnp.nan, times.dtype)
        if not equation.setting.pair.spherical:  # there it is a sum of its own, and public: risk
            risk = lax.map(lambda x: averages.risk(x.M, x.Q), path)
        cosine = jax.vmap(equation.agreement)(path)
        complete = solution.result == diffrax.RESULTS.successful
        return FlowRecords(path.M, path.Q, cosine, risk), complete

    return equation.setting.averages.over_nets(one)


@eqx.filter_jit
def _passages(equation: _FlowEquation, level: Array) -> tuple[Array, Array]:
    """Times (nets, n) at which each cosine has the level (inf: never), and True where they are
    known."""
    import diffrax
    import optimistix

    last = jnp.asarray(_MAX_TIME)
    sizes = lambda x: jnp.atleast_1d(equation.agreement(equation.motion.overlaps(x)))
    first = sizes(equation.motion.start) >= level

    def passage(averages: AbstractAverages, index: int) -> tuple[Array, Array]:
        height = lambda t, y, args, **_: sizes(y)[index] - level
        # the step in which the level is passed is refined to the passage
        event = diffrax.Event(height, optimistix.Newton(1e-10, 1e-10))
        solution = equation.solve(averages, last, diffrax.SaveAt(t1=True), event)
        happened = solution.result == diffrax.RESULTS.event_occurred
        assert solution.ts is not None
        time = jnp.where(happened, solution.ts[-1], jnp.inf)
        known = happened | (solution.result == diffrax.RESULTS.successful)
        return jnp.where(first[index], 0.0, time), known | first[index]

    def one(averages: AbstractAverages) -> tuple[Array, Array]:
        found = [passage(averages, p) for p in range(len(first))]
        return jnp.stack([t for t, _ in found]), jnp.stack([k for _, k in found])

    return equation.setting.averages.over_nets(one)
