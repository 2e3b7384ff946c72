"""TODO models.prediction."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.results import Estimate
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.linear_algebra import inverse_root, sqrt_psd
from jaxsmi.numerics.nets import randomised_gaussians


def prediction_error(
    model: AbstractModel,
    Q: Array,
    *,
    key: Array,
    cross: Array | None = None,
    second_moment: Array | None = None,
    bayes: bool = False,
    samples: int = 4096,
    randomisations: int = 8,
    truth: AbstractModel | None = None,
) -> Estimate:
    """Prediction error at given overlaps, by randomised nets. `cross` M defaults to Q, `second_moment` ρ to the prior's,
    `truth`, the model that makes the labels, to the model itself (else M is (P, P*) and ρ (P*, P*))."""
    P, M = model.indices, model.tokens
    truth = model if truth is None else truth
    rho = model.prior.second_moment(P) if second_moment is None else second_moment
    goal = rho.shape[0]
    points = randomised_gaussians(
        key, samples, randomisations, (P + (2 if bayes else 1) * goal) * M
    )
    parts = points.reshape(randomisations, samples, -1, M)
    xi, eta = parts[:, :, :P], parts[:, :, P : P + goal]
    root = sqrt_psd(Q)
    if (
        cross is None and second_moment is None
    ):  # z = Q^{1/2} ξ + (S - Q)^{1/2} η, whose derivative in Q is regular
        into, rest = root, sqrt_psd(rho - Q)
    else:  # with ω = Q^{1/2} ξ, z = Mᵀ Q^{-1/2} ξ + (ρ - Mᵀ Q^{-1} M)^{1/2} η
        cross, inverse = Q if cross is None else cross, inverse_root(Q)
        into, rest = cross.T @ inverse, sqrt_psd(rho - cross.T @ inverse @ inverse @ cross)
    omega = jnp.einsum("pq,rsqm->rspm", root, xi)
    mean = jnp.einsum("pq,rsqm->rspm", into, xi)
    link, true_link = jax.vmap(jax.vmap(model.link)), jax.vmap(jax.vmap(truth.link))
    labels = true_link(mean + jnp.einsum("pq,rsqm->rspm", rest, eta))
    other = link(omega)
    if bayes:
        other = true_link(mean + jnp.einsum("pq,rsqm->rspm", rest, parts[:, :, P + goal :]))
    squared = jnp.sum((labels - other).reshape(randomisations, samples, -1) ** 2, axis=-1) * (
        0.5 if bayes else 1.0
    )
    each = jnp.mean(squared, axis=1)
    return Estimate(jnp.mean(each), jnp.std(each, ddof=1) / np.sqrt(randomisations))


compiled_prediction_error = eqx.filter_jit(prediction_error)
