r"""Prediction error of an index model at given overlaps, by randomised nets.

Equations here [theory: multi-index, Eqs. (62) to (64)], ω = Q^{1/2} ξ, ξ and η iid N(0, 1):

    theory:            z = ω + (ρ - Q)^{1/2} η
    of an estimate:    z = Mᵀ Q^{-1} ω + (ρ - Mᵀ Q^{-1} M)^{1/2} η
    (around the means B Eᵀ and R* Eᵀ, where inputs have fixed directions)
    plug-in:  E ‖link(z) - link(ω)‖²;     Bayes:  ½ E ‖link(z) - link(z')‖²
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.data import LabelLaw, Taught
from jaxsmi.core.results import Estimate
from jaxsmi.design.tokens import Directions
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.linear_algebra import inverse_root, sqrt_psd
from jaxsmi.numerics.nets import randomised_gaussians

__all__ = ["compiled_prediction_error", "error_of_rows", "prediction_error"]


def prediction_error(
    model: AbstractModel,
    Q: Array,
    *,
    key: PRNGKeyArray,
    cross: Array | None = None,
    second_moment: Array | None = None,
    bayes: bool = False,
    points: int = 4096,
    nets: int = 8,
    truth: LabelLaw | None = None,
    means: tuple[Array, Array] | None = None,
) -> Estimate:
    """Prediction error at given overlaps (module docstring).

    Args:
        model: Whose predictions they are.
        Q: Overlap of the estimate (P, P).
        key: Of the nets.
        cross: Overlap M (P, P*) with the teacher. Default: Q.
        second_moment: ρ (P*, P*) of the teacher. Default: the prior's.
        bayes: The Bayes predictor instead of the plug-in predictor.
        points: Points of each net, a power of two.
        nets: Independent nets.
        truth: The model that makes the labels. Default: `model`.
        means: Of the fields of the estimate, B Eᵀ (P, M), and of the teacher, R* Eᵀ (P*, M).
            Default: zero.

    Returns:
        An `Estimate`, its standard error from the spread over the nets.
    """
    P = model.indices
    M = model.channel.tokens
    label_law = model if truth is None else truth
    rho = model.prior.second_moment(P) if second_moment is None else second_moment
    goal = rho.shape[0]
    copies = 2 if bayes else 1
    normal = randomised_gaussians(key, points, nets, (P + copies * goal) * M)
    parts = normal.reshape(nets, points, -1, M)
    xi = parts[:, :, :P]
    eta = parts[:, :, P : P + goal]
    root = sqrt_psd(Q)
    if cross is None and second_moment is None:
        # here z = Q^{1/2} ξ + (S - Q)^{1/2} η, whose derivative in Q is regular
        into = root
        rest = sqrt_psd(rho - Q)
    else:  # z = Mᵀ Q^{-1/2} ξ + (ρ - Mᵀ Q^{-1} M)^{1/2} η
        cross = Q if cross is None else cross
        inverse = inverse_root(Q)
        into = cross.T @ inverse
        rest = sqrt_psd(rho - cross.T @ inverse @ inverse @ cross)
    omega = jnp.einsum("pq,rsqm->rspm", root, xi)
    mean = jnp.einsum("pq,rsqm->rspm", into, xi)
    if means is not None:
        omega = omega + means[0]
        mean = mean + means[1]
    link = jax.vmap(jax.vmap(model.link))
    true_link = jax.vmap(jax.vmap(label_law.link))
    labels = true_link(mean + jnp.einsum("pq,rsqm->rspm", rest, eta))
    other = link(omega)
    if bayes:
        other = true_link(mean + jnp.einsum("pq,rsqm->rspm", rest, parts[:, :, P + goal :]))
    shape = (nets, points, -1)
    labels, other = labels.reshape(shape), other.reshape(shape)
    # predictions of another size than the labels (a score, say) do not compare
    gap = labels - other if labels.shape == other.shape else jnp.full((*shape[:2], 1), jnp.nan)
    squared = jnp.sum(gap**2, axis=-1)
    each = jnp.mean(squared * (0.5 if bayes else 1.0), axis=1)
    estimate = Estimate(jnp.mean(each), jnp.std(each, ddof=1) / np.sqrt(nets))
    # labels that jump have no derivative along the sampled ones
    given = (model, Q, cross, second_moment)
    return not_differentiable(estimate, given, unless=model.channel.smooth)


compiled_prediction_error = eqx.filter_jit(prediction_error)


def error_of_rows(
    model: AbstractModel,
    weights: Array,
    data: Taught,
    *,
    key: PRNGKeyArray,
    bayes: bool = False,
    points: int = 2048,
) -> Estimate:
    """Prediction error of an estimate (P, D) against the teacher of its data, which must have one,
    on new Gaussian inputs and noiseless labels: at M, Q and ρ of the weights themselves; eight
    nets of `points` points."""
    assert data.teacher is not None
    W = weights.astype(theory_dtype())
    teacher = data.teacher.astype(theory_dtype())
    D = data.dimension
    means = None
    if data.directions is not None and data.encoding is not None:
        mean = Directions(data.directions, data.encoding).mean.T / jnp.sqrt(float(D))
        means = (W @ mean, teacher @ mean)
    return prediction_error(
        model,
        W @ W.T / D,
        key=key,
        cross=W @ teacher.T / D,
        second_moment=teacher @ teacher.T / D,
        bayes=bayes,
        points=points,
        truth=data.model,
        means=means,
    )
