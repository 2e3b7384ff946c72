r"""The replica free entropy: the potential whose stationary points are the fixed points of state evolution.

Equations here [TCDKZ25; spec section 5], S the second moment of the prior, V = S - Q:

    Φ(Q) = -½ tr(Q Q̂) + Φ_w(Q̂) + α E log Z_out(y; Q^{1/2} ξ, V),     Q̂ = α channel.response(Q)
    ∂_Q [α E log Z_out] = ½ Q̂,   ∂Φ_w/∂Q̂ = ½ prior.overlap(Q̂)   so that   dΦ = ½ tr[(prior.overlap(Q̂) - Q) dQ̂]

The largest Φ among the fixed points is the Bayes-optimal one. Noiseless channels have Φ → ∞ at Q = S beyond perfect recovery:
compare differences away from there. log Z_out is that of `channel.statistic(y)`, which for attention is a density of u.

Matrices, per entry [spec/2, section 6; spec/3, section 6], q̂ = α f(q), I the mutual information of the prior, f = Ψ'/w:

    Φ(q) = w q̂ (Q_0 - q) - I(q̂) + α Ψ(q),      w = ¼ (symmetric), ½ (rectangular)
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxsmi.integrate import power_of_two
from jaxsmi.models import Estimate
from jaxsmi.types import Array, check, theory_dtype


def free_entropy(
    model: Any, alpha: Any, overlap: Any, *, key: Array | None = None, samples: int = 8192, randomisations: int = 8
) -> Estimate:
    r"""Φ(Q) in nats per dimension, at Q̂ = α·response(Q), with its standard error.

    Φ = -½ tr(Q Q̂) + Φ_w(Q̂) + α E log Z_out           (matrix models: module docstring, exact, no key)

    Arguments: `model` with a channel; `alpha` > 0; `overlap` Q (P, P), a number (times the second moment S) or a Solution,
    0 ⪯ Q ≺ S; `key`: common random numbers, so that differences of Φ at one key are much sharper than Φ itself; `samples`
    in all, over `randomisations` independent nets. Returns: an `Estimate` (value, stderr); at a fixed point the error of Q̂
    enters to second order only. Raises: ValueError for α <= 0, a wrong shape, or Q outside that range; inside jit: NaN.
    Cost: `samples` posteriors. Source: [TCDKZ25], spec section 5.
    Example:
    >>> import jax, jaxsmi as smi
    >>> value = smi.free_entropy(smi.links.linear(1.0), 1.0, 0.0, key=jax.random.key(0))
    >>> round(float(value.value), 2)  # -½ E y² / (1 + Δ) - ½ log 2π(1 + Δ) + (½ q̂ - ½ log(1 + q̂)),  q̂ = 1/2
    -1.72
    """
    dtype, P = theory_dtype(), model.indices
    alpha = jnp.asarray(alpha, dtype)
    check(jnp.isfinite(alpha) & (alpha > 0), "alpha", alpha, "a finite number > 0")
    check(randomisations >= 2, "randomisations", randomisations, "at least 2: their spread is the error bar")
    _ = model.channel.tolerated  # refuses models without inference
    S = model.prior.second_moment(P)
    Q = jnp.asarray(getattr(overlap, "overlap", overlap), dtype)
    Q = Q * S if Q.ndim == 0 else Q
    check(Q.shape == (P, P), "overlap", Q, f"a number or an array of shape {(P, P)}")
    check(jnp.all(jnp.isfinite(Q)), "overlap", Q, "finite numbers")
    check(jnp.max(jnp.abs(Q - Q.T)) <= 1e-10, "overlap", Q, "a symmetric matrix")
    inside = jnp.all(jnp.linalg.eigvalsh(Q) > -1e-10) & jnp.all(jnp.linalg.eigvalsh(S - Q) > 0)
    check(inside, "overlap", Q, "0 ⪯ Q, and Q below the second moment of the prior")
    if getattr(model, "scalar", False):
        value = _matrix_potential(model, alpha, Q[0, 0])
        return Estimate(jnp.where(inside & (alpha > 0), value, jnp.nan), jnp.zeros((), dtype))
    check(key is not None, "key", None, "a key: jax.random.key(0)")
    assert key is not None
    each = power_of_two(max(samples // randomisations, 2))
    valid = inside & jnp.isfinite(alpha) & (alpha > 0)
    found = potential_at(model, alpha, jnp.where(inside, Q, 0.5 * S), key, each, randomisations)
    return Estimate(jnp.where(valid, found.value, jnp.nan), jnp.where(valid, found.stderr, jnp.nan))


@eqx.filter_jit
def _matrix_potential(model: Any, alpha: Array, q: Array) -> Array:
    left = model.prior.norm - q
    qhat = alpha * model.channel.response(q, left)
    entropy = model.prior.weight * qhat * left - model.prior.mutual_information(qhat)
    return entropy + alpha * model.channel.log_partition(q, left)


@eqx.filter_jit
def potential_at(model: Any, alpha: Array, Q: Array, key: Array, samples: int, randomisations: int) -> Estimate:
    """`free_entropy` without its checks, `samples` points in each of `randomisations` nets."""
    S = model.prior.second_moment(model.indices)
    response = model.channel.response(Q, S - Q, key=key, samples=samples, randomisations=randomisations, tangents=False)
    Qhat = alpha * 0.5 * (response.mean + response.mean.T)
    value = -0.5 * jnp.sum(Q * Qhat) + model.prior.free_entropy(Qhat) + alpha * jnp.mean(response.log_partition)
    # to first order in the fluctuations of Q̂ and of log Z_out
    pull = 0.5 * (model.prior.overlap(Qhat) - Q)
    each = alpha * (jnp.einsum("rpq,pq->r", response.replicas - response.mean, pull) + response.log_partition)
    return Estimate(value, jnp.std(each, ddof=1) / jnp.sqrt(float(randomisations)))
