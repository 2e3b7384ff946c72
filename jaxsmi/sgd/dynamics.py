r"""The limit of many dimensions: overlaps of online SGD against time, and weak recovery.

Equations here [theory: online-sgd, Eqs. (28) to (32)]: those of equation.py, and

    t_p = min{t: cosine_p(t) >= level}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import (
    anything,
    checked,
    choice,
    function,
    numbers,
    optional,
    random_key,
    scalar,
    whole,
)
from jaxsmi.core.checks import NON_NEGATIVE, POSITIVE, UNIT_INTERVAL, Arguments, check
from jaxsmi.core.codes import Result, outcomes
from jaxsmi.core.results import Estimate
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.teacher_student import AbstractTeacher
from jaxsmi.sgd.averages import SphereAverages
from jaxsmi.sgd.equation import Options, passages, problem_of, trajectories, velocity
from jaxsmi.sgd.problem import is_point, is_teacher
from jaxsmi.sgd.runs import flattened

__all__ = ["Flow", "FlowErrors", "drift", "error_over_nets", "flow", "recovery_time"]


class FlowErrors(NamedTuple):
    """Standard errors of a `Flow`, over independent nets: zero where nothing is sampled."""

    teacher_overlap: Array
    overlap: Array
    cosine: Array
    risk: Array


class Flow(eqx.Module):
    """What `flow` returns.

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
        tied: Whether a row sees all tokens.
    """

    time: Array
    teacher_overlap: Array
    overlap: Array
    cosine: Array
    risk: Array
    stderr: FlowErrors
    result: Array
    kappa: Array
    tied: bool = eqx.field(static=True)

    @property
    def alpha(self) -> Array:
        """α = t/κ of the records; inf for κ = 0."""
        return self.time / self.kappa

    @property
    def message(self) -> str:
        """The sentence that goes with the result code (outside jit and vmap)."""
        return outcomes(self.result, "flow")

    @property
    def overlaps(self) -> Array:
        """(m, e_1..e_K) of one direction, of an untied network m_1..m_L (T, n)."""
        return flattened(self.teacher_overlap, self.tied)

    @property
    def m(self) -> Array:
        """Semantic overlaps (T,), of an untied network (T, L)."""
        return self.overlaps[:, 0] if self.tied else self.overlaps

    @property
    def e(self) -> Array:
        """Positional overlaps (T, K)."""
        return self.overlaps[:, 1:] if self.tied else self.overlaps[:, :0]


def drift(
    model: SequenceSingleIndex,
    v: Array,
    gamma: Array,
    key: PRNGKeyArray | None = None,
    samples: int = 2**12,
    order: int = 2,
) -> Array:
    """dv/dt of one direction at the overlaps v; `order` 1 leaves the V term out."""
    M = v[None] if model.tied else v[:, None]
    Q = jnp.eye(len(M), dtype=v.dtype)
    averages = SphereAverages(model, key, samples).at(M, Q, noise=order > 1)
    dM, _ = velocity(averages, M, Q, jnp.asarray(gamma), 0.0, projected=True)
    return dM[0] if model.tied else dM[:, 0]


@checked(
    model=is_teacher,
    m=is_point,
    e=is_point,
    times=numbers("increasing numbers >= 0", NON_NEGATIVE),
    rate=optional(scalar(NON_NEGATIVE)),
    student=optional(is_teacher),
    loss=optional(function("a function of (prediction, label)")),
    decay=scalar(NON_NEGATIVE),
    projection=optional(choice("sphere")),
    teacher=anything,
    encoding=anything,
    key=optional(random_key),
    samples=whole(),
    nets=whole(2),
    rtol=scalar(POSITIVE),
    max_steps=whole(),
    gamma=optional(scalar(NON_NEGATIVE)),
)
def flow(
    model: AbstractTeacher,
    m: ArrayLike | tuple[ArrayLike, ArrayLike],
    e: ArrayLike = 0.0,
    *,
    times: ArrayLike,
    rate: ArrayLike | None = None,
    student: AbstractTeacher | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    decay: ArrayLike = 0.0,
    projection: str | None = None,
    teacher: str | ArrayLike | None = None,
    encoding: ArrayLike | None = None,
    key: PRNGKeyArray | None = None,
    samples: int = 2**12,
    nets: int = 8,
    rtol: float = 1e-7,
    max_steps: int = 4096,
    gamma: ArrayLike | None = None,
) -> Flow:
    r"""Overlaps of online SGD against time in the limit of many dimensions, D → ∞ at fixed κ.

        dM/dt = -A_T - λ_t M,   dQ/dt = -(A_Z + A_Zᵀ) + κ V - 2 λ_t Q,   t = κ α,   α = N/D
        one direction on the sphere:  dv/dt = -(I - v vᵀ) ∇R(v) - (γ/2) V(v) v,   t = γ τ/d

    Args:
        model: The teacher: an index model, or a `SequenceSingleIndex`.
        m: Overlaps (M, Q) at the start, M (P, k) with the fixed rows, Q (P, P); of a
            `SequenceSingleIndex` the semantic overlap, as for `risk`.
        e: Positional overlaps of a `SequenceSingleIndex` at the start, as for `risk`. Default 0.
        times: Times t of the records (T,), increasing, >= 0.
        rate: κ, the learning rate for each sample (`per_sample_rate`), a number >= 0. Default 0,
            gradient flow.
        student: Another index model of as many tokens. Default: the model.
        loss: ℓ(prediction, label) of a sample. Default ‖ŷ - y‖².
        decay: Weight decay for a unit of α, η λ D/B, a number >= 0. Default 0.
        projection: "sphere": every row keeps its norm. Default None.
        teacher: Gram matrix ρ (k, k) of the fixed rows. Default: that of the prior.
        encoding: E (M, K), as for `simulate`. Default None.
        key: A random key, needed where averages are sampled (the same points at all times): for
            index models, and where `risk` needs one.
        samples: Points of each net, there. Default 4096.
        nets: Independent nets of an index model, an integer >= 2: each is integrated by itself.
            Default 8.
        rtol: Relative tolerance of the integrator, a number > 0. Default 1e-7.
        max_steps: Largest number of its steps, an integer >= 1. Default 4096.
        gamma: `rate`, of a `SequenceSingleIndex`.

    Returns:
        A `Flow`. Times that were not reached are NaN, with the code MAX_STEPS.

    Raises:
        ValueError: For a start that no weights have or that is at rest, κ < 0, times that do not
            increase, another number out of range, a matrix model, or a missing key.

    Example:
        >>> import jaxsmi as smi
        >>> series = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
        >>> network = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
        >>> model = smi.SequenceSingleIndex(series, 1, network, loss_factor=1.0)
        >>> round(float(smi.sgd.flow(model, 0.1, times=[0.5]).m[0]), 6)  # dm/dt = 4 m (1 - m²)
        0.596205

    Cost:
        Some 500 to 1000 averages: of an index model `nets` times `samples` gradients of a sample
        each; of one direction 2 to 20 s for two tokens on a core, milliseconds for networks with a
        series.

    Source:
        [ALSKZ25, Eq. 11]; [theory: online-sgd, Eqs. (29), (30), (66), (67)].
    """
    arguments = Arguments()
    options = Options(
        rate=rate,
        gamma=gamma,
        student=student,
        loss=loss,
        decay=decay,
        projection=projection,
        teacher=teacher,
        encoding=encoding,
        key=key,
        samples=samples,
        nets=nets,
        rtol=rtol,
        max_steps=max_steps,
    )
    problem = problem_of(arguments, model, m, e, options)
    increasing = "increasing numbers >= 0"
    moments = jnp.atleast_1d(arguments.array("times", times, increasing))
    arguments.condition(moments.ndim == 1 and moments.size > 0, "times", times, increasing)
    ordered = (moments[0] >= 0) & jnp.all(jnp.diff(moments) > 0)
    arguments.condition(ordered, "times", times, increasing)
    pair = problem.pair
    path = trajectories(problem.equations, pair, problem.gram, problem.start, moments)
    numbers = (path.M, path.Q, path.cosine, path.risk)
    clean = [jnp.where(jnp.isfinite(x) & arguments.valid, x, jnp.nan) for x in numbers]
    mean = [jnp.mean(x, axis=0) for x in clean]
    count = len(path.complete)
    spread = [error_over_nets(x, count) for x in clean]
    result = jnp.where(jnp.all(path.complete), int(Result.SUCCESS), int(Result.MAX_STEPS))
    result = jnp.where(arguments.valid, result, int(Result.INVALID))
    M, Q, cosine, risk = mean
    kappa = problem.equations.kappa[0]
    return Flow(moments, M, Q, cosine, risk, FlowErrors(*spread), result, kappa, pair.tied)


def error_over_nets(values: Array, nets: int) -> Array:
    """Standard error of the mean over nets (leading axis), zero for one exact answer."""
    if nets == 1:
        return jnp.zeros_like(values[0])
    return jnp.std(values, axis=0, ddof=1) / np.sqrt(nets)


@checked(
    model=is_teacher,
    m=is_point,
    e=is_point,
    rate=optional(scalar(NON_NEGATIVE)),
    level=optional(scalar(UNIT_INTERVAL)),
    longest=scalar(POSITIVE),
    student=optional(is_teacher),
    loss=optional(function("a function of (prediction, label)")),
    decay=scalar(NON_NEGATIVE),
    projection=optional(choice("sphere")),
    teacher=anything,
    encoding=anything,
    key=optional(random_key),
    samples=whole(),
    nets=whole(2),
    rtol=scalar(POSITIVE),
    max_steps=whole(),
    gamma=optional(scalar(NON_NEGATIVE)),
    eta=optional(scalar(UNIT_INTERVAL)),
)
def recovery_time(
    model: AbstractTeacher,
    m: ArrayLike | tuple[ArrayLike, ArrayLike],
    e: ArrayLike = 0.0,
    *,
    rate: ArrayLike | None = None,
    level: ArrayLike | None = None,
    longest: ArrayLike = 1e4,
    student: AbstractTeacher | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    decay: ArrayLike = 0.0,
    projection: str | None = None,
    teacher: str | ArrayLike | None = None,
    encoding: ArrayLike | None = None,
    key: PRNGKeyArray | None = None,
    samples: int = 2**12,
    nets: int = 8,
    rtol: float = 1e-7,
    max_steps: int = 4096,
    gamma: ArrayLike | None = None,
    eta: ArrayLike | None = None,
) -> Array | Estimate:
    r"""Time t = κ α of weak recovery in the limit of many dimensions.

        t_p = min{t: cosine_p(t) >= level},   of one direction on the sphere ‖(m, e)(t)‖ >= η

    (of an untied network ‖m‖/√L >= η).

    Args:
        model: The teacher: an index model, or a `SequenceSingleIndex`.
        m: Overlaps at the start, as for `flow`.
        e: Positional overlaps at the start, as for `flow`. Default 0.
        rate: κ, as for `flow`. Default 0, gradient flow.
        level: The level, a number in (0, 1). Default 1/2.
        longest: The time at which to give up, a number > 0. Default 1e4.
        student: As for `flow`.
        loss: As for `flow`.
        decay: As for `flow`. Default 0.
        projection: As for `flow`.
        teacher: As for `flow`.
        encoding: As for `flow`.
        key: As for `flow`.
        samples: As for `flow`. Default 4096.
        nets: As for `flow`. Default 8.
        rtol: As for `flow`. Default 1e-7.
        max_steps: As for `flow`. Default 4096.
        gamma: `rate`, of a `SequenceSingleIndex`.
        eta: `level`, of a `SequenceSingleIndex`.

    Returns:
        t, 0 where the start is there already, inf where the level is not reached until `longest`,
        NaN where `max_steps` ran out; of an index model an Estimate(value, stderr) of one time for
        each index (P,). α = t/κ.

    Raises:
        ValueError: As `flow`, or for a level outside (0, 1).

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
        >>> network = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
        >>> model = smi.SequenceSingleIndex(square, 1, network, loss_factor=1.0)
        >>> round(float(smi.sgd.recovery_time(model, 0.1)), 6)  # ln(33)/8
        0.437063

    Cost:
        That of `flow`, for each index.

    Source:
        [theory: online-sgd, Eq. (32)].
    """
    arguments = Arguments()
    options = Options(
        rate=rate,
        gamma=gamma,
        student=student,
        loss=loss,
        decay=decay,
        projection=projection,
        teacher=teacher,
        encoding=encoding,
        key=key,
        samples=samples,
        nets=nets,
        rtol=rtol,
        max_steps=max_steps,
    )
    problem = problem_of(arguments, model, m, e, options)
    check(level is None or eta is None, "eta", eta, "one of the two: eta= or level=")
    name, value = ("eta", eta) if eta is not None else ("level", level)
    height = arguments.number(name, 0.5 if value is None else value, UNIT_INTERVAL)
    last = arguments.number("longest", longest, POSITIVE)
    pair = problem.pair
    time, known = passages(problem.equations, pair, problem.gram, problem.start, height, last)
    time = jnp.where(known & arguments.valid, time, jnp.nan)
    if pair.spherical:
        return time[0, 0]
    return Estimate(jnp.mean(time, axis=0), error_over_nets(time, len(time)))
