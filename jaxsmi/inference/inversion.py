"""TODO inference.inversion."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import frozen
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Solution
from jaxsmi.numerics import roots

_FAR = 1e10  # a precision beyond this is perfect recovery


@eqx.filter_jit
def inverted(model: Any, alpha: Array, key: Any, steps: int) -> Solution:
    """Root of log q̂ - log response(q(q̂)) = log α, which increases with q̂; with `steps` of the plain iteration as a history."""
    prior, channel, dtype = model.prior, model.channel, alpha.dtype

    def height(model: Any, l: Array) -> tuple[Array, Array]:
        """log q̂ - log response, and V."""
        V = model.prior.mmse(jnp.exp(l))
        return l - jnp.log(model.channel.information(model.prior.norm - V, V)), V

    valid = jnp.isfinite(alpha) & (alpha > 0) & model.valid
    goal = jnp.log(jnp.where(valid, alpha, 1.0))
    held, still = frozen(model), lax.stop_gradient(goal)
    start = jnp.ones((), dtype)  # V at q̂ = 0
    first = still + jnp.log(
        held.channel.information(held.prior.norm - start, start)
    )  # the response grows with q
    top = jnp.log(jnp.asarray(_FAR, dtype))
    found = lax.stop_gradient(roots.root(lambda l: height(held, l)[0] - still, first, top))
    far = found.values[1] < 0.0
    recovered = (alpha >= model.recovery) | (far & jnp.isfinite(model.recovery))
    # recovered: any number whose derivative is finite
    l = jnp.where(recovered, first, jnp.where(far, top, found.x))
    slope = jnp.where(recovered | ~(found.slope > 0.0), 1.0, found.slope)

    def newton(_: int, c: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        l = c[0]
        above, V = height(model, l)
        return jnp.where(recovered, first, l - (above - goal) / slope), l, V

    # derivatives go through these steps: each takes away an order of the error of the slope; the last only looks at V
    _, l, V = lax.fori_loop(0, 4, newton, (l, l, start))
    V = jnp.where(recovered, 0.0, V)
    spread = jnp.zeros_like(V)
    if channel.sampled:  # an error e of log f moves log q̂ by e/slope
        moved = jax.jvp(
            lambda l: held.prior.mmse(jnp.exp(l)), (lax.stop_gradient(l),), (jnp.ones_like(l),)
        )[1]
        spread = jnp.abs(moved / slope) * channel.uncertainty(prior.norm - V, lax.stop_gradient(V))
    spread = jnp.where(recovered, 0.0, lax.stop_gradient(spread))
    V = jnp.where(valid, V, jnp.nan)
    one = jnp.ones((1, 1), dtype)

    def step(V: Array, count: Array) -> tuple[Array, dict[str, Array]]:
        new = held.prior.mmse(
            lax.stop_gradient(alpha) * held.channel.information(held.prior.norm - V, V)
        )
        seen = {
            "overlap": (held.prior.norm - new) * one,
            "covariance": new * one,
            "residual": jnp.abs(new - V),
        }
        return new, {"step": count.astype(dtype), **seen}

    begin = {"step": jnp.zeros((), dtype), "overlap": (held.prior.norm - start) * one, "covariance": start * one,
             "residual": jnp.asarray(jnp.nan, dtype)}  # fmt: skip
    history = {}
    if steps:
        history = lax.scan(step, start, jnp.arange(1, steps + 1))[1]
        history = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), begin, history)
    code = jnp.where(
        far, Result.INACCURATE, Result.SUCCESS
    )  # q̂ beyond 1e10 without recovery: V is only known to be as small
    code = jnp.where(valid, jnp.where(recovered, Result.RECOVERED, code), Result.INVALID)
    return Solution(
        overlap=(prior.norm - V) * one,
        stderr=spread * one,
        error=V,
        alpha=alpha,
        steps=jnp.asarray(steps),
        residual=jnp.zeros((), dtype),
        result=code,
        history=history,
        covariance=V * one,
        rho=jnp.asarray(jnp.nan, dtype),
        state={"qhat": jnp.where(recovered, jnp.inf, jnp.exp(l))},
        model=model,
        key=key,
        kind="state_evolution",
    )
