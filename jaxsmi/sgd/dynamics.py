r"""The limit of many dimensions: the differential equation of the overlaps, of order one and two.

Equations here [ALSKZ25, Eq. 11, Prop. 2; theory: online-sgd, Eqs. (28) to (31)], t = γ τ/d,
V = E Σ_l s_l²:

    dv/dt = -(I - v vᵀ) ∇R(v) - (γ/2) V(v) v,   v = (m, e)            γ → 0: spherical gradient flow
    dm_l/dt = -(1 - m_l²) ∂R/∂m_l - (γ/2) (V/L) m_l                   untied networks, row by row
    γ_max = 2 |λ_min|/V(0)                                            from an origin of order two

The V term is what normalisation costs: without it the flow is too fast already at γ = 0.1 and ends
at |m| = 1, where SGD does not. Integrated by diffrax, Tsitouras' method of order five with adaptive
steps; overlaps are kept inside the ball.
"""

from __future__ import annotations

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete
from jaxsmi.core.checks import NON_NEGATIVE, POSITIVE, UNIT_INTERVAL, Arguments
from jaxsmi.core.codes import Result
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.sgd.noise import noise_at
from jaxsmi.sgd.population import (
    gradient,
    hessian,
    in_range,
    overlap_norm,
    overlaps,
    sampling,
)

_START = "a point away from the origin, which is at rest: about 1/√d"


class Flow(eqx.Module):
    """What `flow` returns.

    Attributes:
        time: Times t of the records (T,).
        overlaps: (m, e_1..e_K), of an untied network m_1..m_L (T, n); NaN where they were not
            reached.
        result: A `Result` code.
        tied: Whether one direction serves all tokens.
    """

    time: Array
    overlaps: Array
    result: Array
    tied: bool = eqx.field(static=True)

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
    """dv/dt at the overlaps v (module docstring); `order` 1 leaves the V term out."""
    size = jnp.linalg.norm(v) if model.tied else jnp.abs(v)
    v = v / jnp.maximum(size, 1.0)  # a stage may step outside
    slope = gradient(model, v, key, samples, coarse=True)
    fall = slope - v * (v @ slope) if model.tied else (1.0 - v**2) * slope
    if order == 1:
        return -fall
    V = noise_at(model, v, key, samples, coarse=True).value
    return -fall - 0.5 * gamma * (V if model.tied else V / model.length) * v


class _Equation(eqx.Module):
    """The differential equation of one model at one learning rate, and the accuracy asked for."""

    model: SequenceSingleIndex
    gamma: Array
    key: PRNGKeyArray | None
    samples: int = eqx.field(static=True)
    order: int = eqx.field(static=True)
    rtol: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def drift(self, v: Array) -> Array:
        """dv/dt."""
        return drift(self.model, v, self.gamma, self.key, self.samples, self.order)

    def solve(
        self, v: Array, last: Array, saveat: diffrax.SaveAt, event: diffrax.Event | None = None
    ) -> diffrax.Solution:
        """From v at t = 0 to `last`, or to an event."""
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, v, equation: equation.drift(v)),
            diffrax.Tsit5(),
            t0=jnp.zeros_like(last),
            t1=last,
            dt0=None,
            y0=v,
            args=self,
            saveat=saveat,
            stepsize_controller=diffrax.PIDController(rtol=self.rtol, atol=1e-2 * self.rtol),
            max_steps=self.max_steps,
            event=event,
            throw=False,
        )


@eqx.filter_jit
def _trajectory(equation: _Equation, v: Array, times: Array) -> tuple[Array, Array]:
    """Overlaps (T, n) at the times, and whether all were reached."""
    solution = equation.solve(v, times[-1], diffrax.SaveAt(ts=times))
    assert solution.ys is not None
    return solution.ys, solution.result == diffrax.RESULTS.successful


@eqx.filter_jit
def _passage(equation: _Equation, v: Array, eta: Array, last: Array) -> tuple[Array, Array]:
    """Time of the first passage of η (inf: none until `last`), and whether it is known."""
    level = lambda t, y, args, **_: overlap_norm(equation.model, y) - eta
    event = diffrax.Event(level, optimistix.Newton(1e-10, 1e-10))
    solution = equation.solve(v, last, diffrax.SaveAt(t1=True), event)
    happened = solution.result == diffrax.RESULTS.event_occurred
    assert solution.ts is not None
    time = jnp.where(happened, solution.ts[-1], jnp.inf)
    return time, happened | (solution.result == diffrax.RESULTS.successful)


def _equation(
    arguments: Arguments,
    model: SequenceSingleIndex,
    v: Array,
    gamma: ArrayLike,
    key: PRNGKeyArray | None,
    samples: int,
    rtol: float,
    max_steps: int,
) -> _Equation:
    """The equation of a call, its arguments checked."""
    rate = arguments.number("gamma", gamma, NON_NEGATIVE)
    rate = jnp.where(jnp.isnan(rate), 0.0, rate)  # the answer is masked; NaN would take all steps
    arguments.condition(jnp.any(v != 0.0), "(m, e)", v, _START)
    arguments.condition(in_range(model, v), "(m, e)", v, _START)
    samples = sampling(arguments, model, key, samples)
    arguments.number("rtol", rtol, POSITIVE)
    max_steps = arguments.count("max_steps", max_steps)
    # the V term costs as much as the gradient, so it is left out where it is known to vanish
    order = 1 if concrete(rate) and float(rate) == 0.0 else 2
    return _Equation(model, rate, key, samples, order, float(rtol), max_steps)


def flow(
    model: SequenceSingleIndex,
    m: ArrayLike,
    e: ArrayLike = 0.0,
    *,
    times: ArrayLike,
    gamma: ArrayLike = 0.0,
    key: PRNGKeyArray | None = None,
    samples: int = 2**12,
    rtol: float = 1e-7,
    max_steps: int = 4096,
) -> Flow:
    r"""Overlaps against time in the limit of many dimensions, d → ∞ at fixed γ.

        dv/dt = -(I - v vᵀ) ∇R(v) - (γ/2) V(v) v,   t = γ τ/d

    Args:
        model: A `SequenceSingleIndex`.
        m: Semantic overlap at the start, as for `risk`.
        e: Positional overlaps at the start, as for `risk`; not both zero. Default 0.
        times: Times t of the records (T,), increasing, >= 0.
        gamma: Learning rate γ, a number >= 0. Default 0, gradient flow.
        key: A random key, needed where the risk is sampled (the same points at all times).
        samples: Points of each of 16 nets, there. Default 4096.
        rtol: Relative tolerance of the integrator, a number > 0. Default 1e-7.
        max_steps: Largest number of its steps, an integer >= 1. Default 4096.

    Returns:
        A `Flow`. Times that were not reached are NaN, with the code MAX_STEPS.

    Raises:
        ValueError: For a start outside the ball or at the origin, γ < 0, times that do not
            increase, another number out of range, or a missing key.

    Example:
        >>> import jaxsmi as smi
        >>> series = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
        >>> network = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
        >>> model = smi.SequenceSingleIndex(series, 1, network, loss_factor=1.0)
        >>> round(float(smi.sgd.flow(model, 0.1, times=[0.5]).m[0]), 6)  # dm/dt = 4 m (1 - m²)
        0.596205

    Cost:
        About a thousand gradients of the risk: 2 to 20 s for two tokens on a core, milliseconds for
        networks with a series.

    Source:
        [ALSKZ25, Eq. 11]; [theory: online-sgd, Eqs. (29), (30)].
    """
    arguments = Arguments()
    v = overlaps(model, m, e)
    equation = _equation(arguments, model, v, gamma, key, samples, rtol, max_steps)
    increasing = "increasing numbers >= 0"
    moments = jnp.atleast_1d(arguments.array("times", times, increasing))
    arguments.condition(moments.ndim == 1 and moments.size > 0, "times", times, increasing)
    ordered = (moments[0] >= 0) & jnp.all(jnp.diff(moments) > 0)
    arguments.condition(ordered, "times", times, increasing)
    path, complete = _trajectory(equation, v, moments)
    path = jnp.where(jnp.isfinite(path) & arguments.valid, path, jnp.nan)
    result = jnp.where(complete, int(Result.SUCCESS), int(Result.MAX_STEPS))
    result = jnp.where(arguments.valid, result, int(Result.INVALID))
    return Flow(moments, path, result, model.tied)


def recovery_time(
    model: SequenceSingleIndex,
    m: ArrayLike,
    e: ArrayLike = 0.0,
    *,
    gamma: ArrayLike = 0.0,
    eta: ArrayLike = 0.5,
    longest: ArrayLike = 1e4,
    key: PRNGKeyArray | None = None,
    samples: int = 2**12,
    rtol: float = 1e-7,
    max_steps: int = 4096,
) -> Array:
    r"""Time t of weak recovery: the first at which the overlaps have the size η.

        t_η = min{t: ‖(m, e)(t)‖ >= η},   of an untied network ‖m‖/√L >= η

    Args:
        model: A `SequenceSingleIndex`.
        m: Semantic overlap at the start, as for `flow`.
        e: Positional overlaps at the start, as for `flow`. Default 0.
        gamma: Learning rate γ, a number >= 0. Default 0, gradient flow.
        eta: The level η, a number in (0, 1). Default 1/2.
        longest: The time at which to give up, a number > 0. Default 1e4.
        key: A random key, needed where the risk is sampled.
        samples: Points of each of 16 nets, there. Default 4096.
        rtol: Relative tolerance of the integrator, a number > 0. Default 1e-7.
        max_steps: Largest number of its steps, an integer >= 1. Default 4096.

    Returns:
        t; 0 where the start is there already, inf where η is not reached until `longest`, NaN where
        `max_steps` ran out.

    Raises:
        ValueError: As `flow`, or for η outside (0, 1).

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
        >>> network = smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5)
        >>> model = smi.SequenceSingleIndex(square, 1, network, loss_factor=1.0)
        >>> round(float(smi.sgd.recovery_time(model, 0.1)), 6)  # ln(33)/8
        0.437063

    Cost:
        As `flow`.

    Source:
        [theory: online-sgd, Eq. (32)].
    """
    arguments = Arguments()
    v = overlaps(model, m, e)
    equation = _equation(arguments, model, v, gamma, key, samples, rtol, max_steps)
    level = arguments.number("eta", eta, UNIT_INTERVAL)
    last = arguments.number("longest", longest, POSITIVE)
    time, known = _passage(equation, v, level, last)
    time = jnp.where(overlap_norm(model, v) >= level, 0.0, jnp.where(known, time, jnp.nan))
    return jnp.where(arguments.valid, time, jnp.nan)


def maximal_rate(
    model: SequenceSingleIndex, *, key: PRNGKeyArray | None = None, samples: int = 2**14
) -> Array:
    r"""Learning rate above which the flow of order two is trapped at the origin.

        γ_max = 2 |λ_min(∇²R(0))|/V(0),   of an untied network with V/L

    Args:
        model: A `SequenceSingleIndex`.
        key: A random key, needed where the risk is sampled.
        samples: Points of each of 16 nets, there. Default 16384.

    Returns:
        γ_max; 0 where the Hessian at the origin has no negative eigenvalue (for other orders see
        the source).

    Raises:
        ValueError: As `risk`.

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 2): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(
        ...     square, 2, smi.sgd.Network(jax.nn.relu), loss_factor=1.0
        ... )
        >>> round(float(smi.sgd.maximal_rate(model)), 6)  # (2/√π)/(L + 1)
        0.376126

    Cost:
        That of `hessian` and `gradient_noise`.

    Source:
        [theory: online-sgd, section 4, Eq. (31)].
    """
    lowest = jnp.linalg.eigvalsh(hessian(model, key=key, samples=samples))[0]
    samples = sampling(Arguments(), model, key, samples)
    V = noise_at(model, overlaps(model, 0.0), key, samples).value
    return jnp.maximum(-2.0 * lowest, 0.0) / (V if model.tied else V / np.float64(model.length))
