r"""Prediction error of an index model at given overlaps, by randomised nets.

Equations here [theory: multi-index, Eqs. (62) to (64)], ω = Q^{1/2} ξ, ξ and η iid N(0, 1):

    theory:            z = ω + (ρ - Q)^{1/2} η
    of an estimate:    z = Mᵀ Q^{-1} ω + (ρ - Mᵀ Q^{-1} M)^{1/2} η
    (around the means B Eᵀ and R* Eᵀ, where inputs have fixed directions)
    plug-in:  E ‖link(z) - link(ω)‖²;     Bayes:  ½ E ‖link(z) - link(z')‖²
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core.arrays import PyTree, theory_dtype
from jaxsmi.core.data import HasTeacher
from jaxsmi.core.results import Estimate
from jaxsmi.design.tokens import Directions
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.linear_algebra import inverse_root, sqrt_psd
from jaxsmi.numerics.quadrature import randomised_gaussians


class Truth(NamedTuple):
    """A teacher that an estimate is compared with.

    Attributes:
        cross: M (P, P*), its overlap with the estimate.
        gram: ρ (P*, P*).
        model: The model that makes the labels; None: the one that predicts them.
        means: Of the fields of the estimate, B Eᵀ (P, M), and of the teacher, R* Eᵀ (P*, M); None:
            zero.
    """

    cross: Array
    gram: Array
    model: Any = None
    means: tuple[Array, Array] | None = None


def prediction_error(
    model: AbstractModel,
    Q: Array,
    *,
    key: PRNGKeyArray,
    truth: Truth | None = None,
    bayes: bool = False,
    points: int = 4096,
    nets: int = 8,
) -> Estimate:
    """Prediction error at given overlaps (module docstring).

    Args:
        model: Makes the predictions.
        Q: Overlap of the estimate (P, P).
        key: Of the nets.
        truth: The teacher. Default: one of the model's prior, at M = Q.
        bayes: The Bayes predictor instead of the plug-in predictor.
        points: Points of each net, a power of two.
        nets: Independent nets.

    Returns:
        An `Estimate`, its standard error from the spread over the nets.
    """
    P = model.indices
    M = model.channel.tokens
    law = model if truth is None or truth.model is None else truth.model
    rho = model.prior.second_moment(P) if truth is None else truth.gram
    goal = rho.shape[0]
    # z and z' are independent given ω: two sets of η over one of ξ
    copies = 2 if bayes else 1
    normal = randomised_gaussians(key, points, nets, (P + copies * goal) * M)
    parts = normal.reshape(nets, points, -1, M)
    xi = parts[:, :, :P]
    eta = parts[:, :, P : P + goal]
    # Q of an estimate may be singular: a row that nothing was learned of is zero
    root = sqrt_psd(Q)
    if truth is None:
        # at M = Q, z = Q^{1/2} ξ + (S - Q)^{1/2} η: no inverse, and a regular derivative in Q
        into = root
        rest = sqrt_psd(rho - Q)
    else:
        inverse = inverse_root(Q)
        into = truth.cross.T @ inverse
        rest = sqrt_psd(rho - truth.cross.T @ inverse @ inverse @ truth.cross)
    omega = jnp.einsum("pq,rsqm->rspm", root, xi)
    mean = jnp.einsum("pq,rsqm->rspm", into, xi)
    if truth is not None and truth.means is not None:
        omega = omega + truth.means[0]
        mean = mean + truth.means[1]
    # the teacher may be another model than the student that predicts
    true_link = jax.vmap(jax.vmap(law.link))
    labels = true_link(mean + jnp.einsum("pq,rsqm->rspm", rest, eta))
    if bayes:
        other = true_link(mean + jnp.einsum("pq,rsqm->rspm", rest, parts[:, :, P + goal :]))
    else:
        other = jax.vmap(jax.vmap(model.link))(omega)
    estimate = mean_squared_gap(labels, other, bayes)
    overlaps = (Q,) if truth is None else (Q, truth.cross, truth.gram)
    return derivative_of_labels(estimate, (model, *overlaps), model.channel)


def derivative_of_labels(
    estimate: Estimate, parameters: PyTree, channel: AbstractChannel
) -> Estimate:
    """The estimate, whose derivative in the parameters is an error where sampled labels jump."""
    # labels jump where they are few, also where averages over these have derivatives
    moves = (channel.outcomes is None) & channel.pathwise
    return not_differentiable(estimate, parameters, unless=moves)


compiled_prediction_error = eqx.filter_jit(prediction_error)


def mean_squared_gap(labels: Array, other: Array, bayes: bool) -> Estimate:
    """E ‖y - y'‖² of labels (nets, points, ...) and predictions, or of two labels of one posterior
    (`bayes`), with the standard error from the spread over the nets."""
    nets, points = labels.shape[:2]
    labels, other = labels.reshape(nets, points, -1), other.reshape(nets, points, -1)
    # predictions of another size than the labels (a score, say) do not compare
    gap = labels - other if labels.shape == other.shape else jnp.full((nets, points, 1), jnp.nan)
    # two labels of one posterior differ by twice the error of its mean
    each = jnp.mean(jnp.sum(gap**2, axis=-1) * (0.5 if bayes else 1.0), axis=1)
    return Estimate(jnp.mean(each), jnp.std(each, ddof=1) / np.sqrt(nets))


def error_of_rows(
    model: AbstractModel,
    weights: Array,
    data: HasTeacher,
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
    # the mean of a token is O(1/√D) an entry, but its field is O(1)
    if data.directions is not None and data.encoding is not None:
        mean = Directions(data.directions, data.encoding).mean.T / jnp.sqrt(float(D))
        means = (W @ mean, teacher @ mean)
    truth = Truth(W @ teacher.T / D, teacher @ teacher.T / D, data.model, means)
    return prediction_error(model, W @ W.T / D, key=key, truth=truth, bayes=bayes, points=points)
