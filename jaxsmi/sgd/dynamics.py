r"""The limit of many dimensions: the ordinary differential equation of the overlaps, gradient flow and order two.

Equations here [ALSKZ25, Eq. 11, Prop. 2; theory: online-sgd, Eqs. (28) to (31)], t = γ τ/d, V = E Σ_l s_l²:

    dv/dt = -(I - v vᵀ) ∇R(v) - (γ/2) V(v) v,   v = (m, e)            γ → 0: spherical gradient flow
    dm_l/dt = -(1 - m_l²) ∂R/∂m_l - (γ/2) (V/L) m_l                   untied networks, row by row
    γ_max = 2 |λ_min|/V(0)                                            where the origin repels by order two

The V term is what normalisation costs: without it the flow is too fast already at γ = 0.1 and ends at |m| = 1, where SGD
does not. Integrated by diffrax, Tsitouras' method of order five with adaptive steps; overlaps are kept inside the ball.
"""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optimistix
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.sgd.population import gradient, hessian, noise_at, on_grid, overlaps
from jaxsmi.sgd.simulation import length_of


class Flow(eqx.Module):
    """`time` (T,), `overlaps` (T, n): (m, e_1..e_K), of an untied network m_1..m_L; `result`: a `Result` code."""

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
    key: Array | None = None,
    samples: int = 2**12,
    order: int = 2,
) -> Array:
    """dv/dt (module docstring); `order` 1 leaves the V term out."""
    size = jnp.linalg.norm(v) if model.tied else jnp.abs(v)
    v = v / jnp.maximum(size, 1.0)  # a stage may step outside
    slope = gradient(model, v, key, samples, coarse=True)
    fall = slope - v * (v @ slope) if model.tied else (1.0 - v**2) * slope
    if order == 1:
        return -fall
    V = noise_at(model, v, key, samples, coarse=True).value
    return -fall - 0.5 * gamma * (V if model.tied else V / model.length) * v


def _solve(
    model: SequenceSingleIndex, v: Array, gamma: Array, key: Array | None, samples: int, order: int, rtol: float, max_steps: int,
    last: Array, saveat: diffrax.SaveAt, event: diffrax.Event | None,
) -> diffrax.Solution:  # fmt: skip
    term = diffrax.ODETerm(lambda t, v, args: drift(args[0], v, args[1], args[2], samples, order))
    return diffrax.diffeqsolve(
        term,
        diffrax.Tsit5(),
        t0=jnp.zeros_like(last),
        t1=last,
        dt0=None,
        y0=v,
        args=(model, gamma, key),
        saveat=saveat,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=1e-2 * rtol),
        max_steps=max_steps,
        event=event,
        throw=False,
    )


@eqx.filter_jit
def _trajectory(
    model: SequenceSingleIndex, v: Array, gamma: Array, times: Array, key: Array | None, samples: int, order: int, rtol: float,
    max_steps: int,
) -> tuple[Array, Array]:  # fmt: skip
    last, saveat = times[-1], diffrax.SaveAt(ts=times)
    found = _solve(model, v, gamma, key, samples, order, rtol, max_steps, last, saveat, None)
    return _required(found.ys), found.result == diffrax.RESULTS.successful


@eqx.filter_jit
def _passage(
    model: SequenceSingleIndex, v: Array, gamma: Array, eta: Array, last: Array, key: Array | None, samples: int, order: int,
    rtol: float, max_steps: int,
) -> tuple[Array, Array]:  # fmt: skip
    event = diffrax.Event(
        lambda t, y, args, **_: length_of(model, y) - eta, optimistix.Newton(1e-10, 1e-10)
    )
    found = _solve(
        model, v, gamma, key, samples, order, rtol, max_steps, last, diffrax.SaveAt(t1=True), event
    )
    happened = found.result == diffrax.RESULTS.event_occurred
    time = _required(found.ts)[-1]
    return jnp.where(happened, time, jnp.inf), happened | (
        found.result == diffrax.RESULTS.successful
    )


def _required(value: Any) -> Any:
    assert value is not None
    return value


def _start(
    model: SequenceSingleIndex, m: Any, e: Any, gamma: Any, key: Array | None
) -> tuple[Array, Array]:
    v, gamma = overlaps(model, m, e), jnp.asarray(gamma, theory_dtype())
    check(gamma.shape == () and jnp.isfinite(gamma) & (gamma >= 0), "gamma", gamma, "a number >= 0")
    check(
        jnp.any(v != 0.0), "(m, e)", v, "a point away from the origin, which is at rest: about 1/√d"
    )
    check(on_grid(model) or key is not None, "key", key, "a key: the risk of this model is sampled")
    return v, gamma


def flow(
    model: SequenceSingleIndex,
    m: Any,
    e: Any = 0.0,
    *,
    times: Any,
    gamma: Any = 0.0,
    key: Array | None = None,
    samples: int = 2**12,
    rtol: float = 1e-7,
    max_steps: int = 4096,
) -> Flow:
    r"""Overlaps against time in the limit of many dimensions, d → ∞ at fixed γ.

        dv/dt = -(I - v vᵀ) ∇R(v) - (γ/2) V(v) v,   t = γ τ/d

    Arguments: `model`; start `m`, `e` as `risk`, away from the origin; `times` (T,), increasing, >= 0; `gamma` γ >= 0 (0:
    gradient flow); `key`, `samples` of each of 16 nets where the risk is sampled (common to all times); `rtol`; `max_steps`.
    Returns: Flow; times that were not reached are NaN, with the code MAX_STEPS.
    Raises: ValueError for a start outside the ball or at the origin, γ < 0, times that do not increase, or a missing key.

    Example:
    >>> import jaxsmi as smi
    >>> series = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
    >>> model = smi.SequenceSingleIndex(
    ...     series, 1, smi.sgd.Network(lambda z: (z**2 - 1) / 2**0.5), loss_factor=1.0
    ... )
    >>> round(float(smi.sgd.flow(model, 0.1, times=[0.5]).m[0]), 6)  # dm/dt = 4 m (1 - m²)
    0.596205

    Cost: about a thousand gradients of the risk: 2 to 20 s for two tokens on a core, milliseconds for networks with a series.
    Source: [ALSKZ25, Eq. 11]; [theory: online-sgd, Eqs. (29), (30)].
    """
    v, gamma = _start(model, m, e, gamma, key)
    times = jnp.atleast_1d(jnp.asarray(times, theory_dtype()))
    check(times.ndim == 1 and jnp.all(jnp.isfinite(times)) & (times[0] >= 0) & jnp.all(jnp.diff(times) > 0), "times", times,
          "increasing numbers >= 0")  # fmt: skip
    found, well = _trajectory(model, v, gamma, times, key, samples, _order(gamma), rtol, max_steps)
    found = jnp.where(jnp.isfinite(found), found, jnp.nan)
    return Flow(
        times, found, jnp.where(well, int(Result.SUCCESS), int(Result.MAX_STEPS)), model.tied
    )


def recovery_time(
    model: SequenceSingleIndex,
    m: Any,
    e: Any = 0.0,
    *,
    gamma: Any = 0.0,
    eta: Any = 0.5,
    longest: Any = 1e4,
    key: Array | None = None,
    samples: int = 2**12,
    rtol: float = 1e-7,
    max_steps: int = 4096,
) -> Array:
    """Time t at which ‖(m, e)‖ first reaches η (of an untied network ‖m‖/√L): weak recovery. inf: not until `longest`.

    Arguments: `eta` in (0, 1); the rest as `flow`. Returns: t; 0 where the start is there already; NaN where max_steps ran out.
    Raises: ValueError as `flow`, or for η outside (0, 1). Source:
    [theory: online-sgd, Eq. (32)].
    """
    v, gamma = _start(model, m, e, gamma, key)
    check(0 < eta < 1, "eta", eta, "a number in (0, 1)")
    check(np.isfinite(longest) and longest > 0, "longest", longest, "a number > 0")
    eta, last = jnp.asarray(eta, theory_dtype()), jnp.asarray(longest, theory_dtype())
    time, well = _passage(model, v, gamma, eta, last, key, samples, _order(gamma), rtol, max_steps)
    return jnp.where(length_of(model, v) >= eta, 0.0, jnp.where(well, time, jnp.nan))


def _order(gamma: Array) -> int:
    """Whether the V term is needed at all: it costs as much as the gradient."""
    return 1 if concrete(gamma) and float(gamma) == 0.0 else 2


def maximal_rate(
    model: SequenceSingleIndex, *, key: Array | None = None, samples: int = 2**14
) -> Array:
    """γ_max = 2 |λ_min|/V(0): above it the order-two flow is trapped at the origin; of an untied network with V/L.

    Arguments: `model`; `key`, `samples` where the risk is sampled. Returns: γ_max; 0 where the Hessian at the origin has no
    negative eigenvalue (other orders: section 4 of the source). Raises: as `risk`. Source:
    [theory: online-sgd, Eq. (31)].
    """
    lowest = jnp.linalg.eigvalsh(hessian(model, key=key, samples=samples))[0]
    V = noise_at(model, overlaps(model, 0.0), key, samples).value
    return jnp.maximum(-2.0 * lowest, 0.0) / (V if model.tied else V / np.float64(model.length))
