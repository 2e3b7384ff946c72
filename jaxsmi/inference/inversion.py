r"""State evolution of matrix models, whose overlap is one number: a root instead of an iteration.

Equations here [theory: attention-indexed, Eq. (27)], f the information of the channel and V(q̂)
the error of the prior at the precision q̂:

    q̂ = α f(Q_0 - V(q̂))   ⇔   log q̂ - log f(Q_0 - V(q̂)) = log α

The left side increases with q̂, so that its root is bracketed and found however slowly an
iteration would crawl. Newton steps from the root make it differentiable twice.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import frozen, nan, not_recorded
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Solution
from jaxsmi.models.matrix import MatrixModel
from jaxsmi.numerics import roots

__all__ = ["inverted"]

_LARGEST_PRECISION = 1e10  # beyond it V is below what the spectra resolve
_NEWTON_STEPS = 4


class _Root(NamedTuple):
    """Root of the module's equation: log q̂, the slope there, and why there may be none.

    `recovered`: perfect recovery; `beyond`: the root is larger than the largest precision.
    """

    log_precision: Array
    slope: Array
    lowest: Array
    recovered: Array
    beyond: Array


def _level(model: MatrixModel, log_precision: Array) -> tuple[Array, Array]:
    """The left side log q̂ - log f(q(q̂)), and V(q̂)."""
    V = model.prior.mmse(jnp.exp(log_precision))
    return log_precision - jnp.log(model.explicit_readout.information(model.prior.norm - V, V)), V


def _root(model: MatrixModel, alpha: Array, goal: Array) -> _Root:
    """The root between q̂ = α f(q(0)), below which no root lies as f grows, and the largest q̂."""
    start = jnp.ones((), alpha.dtype)  # V at q̂ = 0
    lowest = goal + jnp.log(model.explicit_readout.information(model.prior.norm - start, start))
    highest = jnp.log(jnp.asarray(_LARGEST_PRECISION, alpha.dtype))
    root = lax.stop_gradient(roots.root(lambda l: _level(model, l)[0] - goal, lowest, highest))
    beyond = root.values[1] < 0.0
    recovered = (alpha >= model.recovery) | (beyond & jnp.isfinite(model.recovery))
    # where everything is recovered any number with a finite derivative will do
    log_precision = jnp.where(recovered, lowest, jnp.where(beyond, highest, root.x))
    slope = jnp.where(recovered | ~(root.slope > 0.0), 1.0, root.slope)
    return _Root(log_precision, slope, lowest, recovered, beyond)


def _polished(model: MatrixModel, goal: Array, root: _Root) -> tuple[Array, Array]:
    """log q̂ and V after Newton steps, through which derivatives go.

    Each step takes away one order of the error of the slope; the last one only evaluates V.
    """

    def newton(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        log_precision = carry[0]
        level, V = _level(model, log_precision)
        moved = log_precision - (level - goal) / root.slope
        return jnp.where(root.recovered, root.lowest, moved), log_precision, V

    first = (root.log_precision, root.log_precision, jnp.ones((), goal.dtype))
    _, log_precision, V = lax.fori_loop(0, _NEWTON_STEPS, newton, first)
    return log_precision, jnp.where(root.recovered, 0.0, V)


def _standard_error(model: MatrixModel, root: _Root, log_precision: Array, V: Array) -> Array:
    """Statistical error of V: zero unless f comes from Monte-Carlo.

    An error e of log f moves log q̂ by e over the slope.
    """
    if not model.explicit_readout.sampled:
        return lax.stop_gradient(jnp.zeros_like(V))
    moved = jax.jvp(
        lambda l: model.prior.mmse(jnp.exp(l)),
        (lax.stop_gradient(log_precision),),
        (jnp.ones_like(log_precision),),
    )[1]
    relative = model.explicit_readout.uncertainty(model.prior.norm - V, lax.stop_gradient(V))
    stderr = jnp.abs(moved / root.slope) * relative
    return jnp.where(root.recovered, 0.0, lax.stop_gradient(stderr))


def _trajectory(model: MatrixModel, alpha: Array, steps: int) -> dict[str, Array]:
    """The plain iteration V ← V(α f) from q̂ = 0, one entry a step; empty for no steps."""
    if not steps:
        return {}
    dtype = alpha.dtype

    def entry(count: Array, V: Array, residual: Array) -> dict[str, Array]:
        one = jnp.ones((1, 1), dtype)
        return {
            "step": count.astype(dtype),
            "overlap": (model.prior.norm - V) * one,
            "covariance": V * one,
            "residual": residual,
        }

    def step(V: Array, count: Array) -> tuple[Array, dict[str, Array]]:
        new = model.prior.mmse(alpha * model.explicit_readout.information(model.prior.norm - V, V))
        return new, entry(count, new, jnp.abs(new - V))

    start = jnp.ones((), dtype)
    begin = entry(jnp.zeros((), dtype), start, not_recorded((), dtype))
    history = lax.scan(step, start, jnp.arange(1, steps + 1))[1]
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), begin, history)


@eqx.filter_jit
def inverted(
    model: MatrixModel, alpha: Array, key: PRNGKeyArray | None, history_steps: int
) -> Solution:
    """The fixed point of a matrix model; its history are so many steps of the plain iteration."""
    dtype = alpha.dtype
    still = frozen(model)
    valid = jnp.isfinite(alpha) & (alpha > 0) & validate.valid(model)
    goal = jnp.log(jnp.where(valid, alpha, 1.0))
    root = _root(still, alpha, lax.stop_gradient(goal))
    log_precision, V = _polished(model, goal, root)
    stderr = _standard_error(still, root, log_precision, V)
    V = jnp.where(valid, V, nan())
    # beyond the largest precision without recovery, V is only known to be as small
    code = jnp.where(root.beyond, Result.INACCURATE, Result.SUCCESS)
    code = jnp.where(root.recovered, Result.RECOVERED, code)
    code = jnp.where(valid, code, Result.INVALID)
    one = jnp.ones((1, 1), dtype)
    return Solution(
        overlap=(model.prior.norm - V) * one,
        stderr=stderr * one,
        error=V,
        alpha=alpha,
        steps=jnp.asarray(history_steps),
        residual=jnp.zeros((), dtype),
        result=code,
        history=_trajectory(still, lax.stop_gradient(alpha), history_steps),
        covariance=V * one,
        spectral_radius=not_recorded((), dtype),
        state={"qhat": jnp.where(root.recovered, jnp.inf, jnp.exp(log_precision))},
        model=model,
        key=key,
        kind="state_evolution",
    )
