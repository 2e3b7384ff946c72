r"""The optimal spectral estimator in high dimension: the limit of linear message passing.

Equations here [theory: spectral, Eqs. (1) to (6)], in units where the second moment S of the prior
is the identity. Each label says of its fields, before anything is learned (ω = 0, V = S),

    μ(y) = E[z|y],    I + G(y) = Cov[z|y]                                    (PM), (PM, PM)

and the Gaussian channel of the same mean and covariance has

    H = (I + G Q)^{-1} G,    Q̂ = α ⟨Tr_M[μ μᵀ + G - H]⟩,    Q = Q̂ (I + Q̂)^{-1}

Tr_M sums the diagonal blocks of the M tokens. The largest Q that solves this is the overlap of the
optimal spectral estimator, and of linear message passing; it leaves zero at the threshold of weak
recovery, α_c = 1/λ_max, as Q ← α ⟨Tr_M[G Q G]⟩ is the growth map. Directions that grow only once
others are learned are not found.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.averages import draw_posteriors
from jaxsmi.core import validate
from jaxsmi.core.arrays import nan
from jaxsmi.core.driver import Run
from jaxsmi.core.options import Averages
from jaxsmi.core.results import Estimate
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.models.base import CENTRED, AbstractModel, is_centred, model_argument, title
from jaxsmi.numerics import fixed_point
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.linear_algebra import conjugation, inverse_of_many, sqrt_psd, symmetric
from jaxsmi.numerics.nets import power_of_two

_POINTS = 2**14
_NETS = 16  # G has heavy tails: with fewer the spread is inaccurate
_ALL = 1e-3  # V/S of the start: everything is learned
_TOLERANCE = 1e-7
_STEPS = 400
_SIGMAS = 5.0
_LITTLE = 0.1  # of S: of a handful of labels the error bar is large
_ZERO = 1e-4  # a squared mean that quadrature may leave


class LabelMoments(NamedTuple):
    """What labels say of their fields before anything is learned, in units S = I.

    `mean` μ (.., P, M); `excess` G (.., PM, PM), the covariance beyond the identity.
    """

    mean: Array
    excess: Array


def label_moments(g: Array, dg: Array, second_moment: Array) -> LabelMoments:
    """The moments from a channel's g (.., P, M) and ∂g (.., P, M, P, M) at ω = 0, V = S."""
    root = sqrt_psd(second_moment)
    P, M = g.shape[-2:]
    mean = jnp.einsum("pq,...qm->...pm", root, g)
    excess = jnp.einsum("pa,...ambn,bq->...pmqn", root, dg, root)
    return LabelMoments(mean, symmetric(excess.reshape(*g.shape[:-2], P * M, P * M)))


def response(G: Array, Q: Array, sign: float = 1.0) -> tuple[Array, Array]:
    """H = G (I ± QG)^{-1} of symmetric G (n, PM, PM) for Q (P, P), 0 ⪯ Q.

    By I ± Q^{1/2} G Q^{1/2}, which has to be positive definite: no other inverse is needed.

    Returns:
        H (n, PM, PM), and whether all are.
    """
    M = G.shape[-1] // len(Q)
    root = jnp.kron(sqrt_psd(Q), jnp.eye(M, dtype=Q.dtype))
    weighted = G @ root
    inverse, sound = inverse_of_many(jnp.eye(len(root), dtype=Q.dtype) + sign * (root @ weighted))
    return symmetric(G - sign * weighted @ inverse @ jnp.swapaxes(weighted, -1, -2)), sound


def token_trace(H: Array, tokens: int) -> Array:
    """Tr_M (.., P, P), the sum of the diagonal blocks of the tokens, of matrices (.., PM, PM)."""
    P = H.shape[-1] // tokens
    return jnp.einsum("...pmqm->...pq", H.reshape(*H.shape[:-2], P, tokens, P, tokens))


class _SpectralMap(eqx.Module):
    """V = I - Q to the next V, on labels of R nets (module docstring)."""

    moments: LabelMoments  # (R, n, ..)
    alpha: Array

    def evaluate(self, V: Array) -> fixed_point.Evaluation:
        """The value of the map, its Jacobian dV ↦ V' α⟨Tr_M[H dV H]⟩ V', and one replica a net."""
        mean, G = self.moments
        P, M = mean.shape[-2:]
        identity = jnp.eye(P, dtype=V.dtype)
        H, _ = response(G.reshape(-1, P * M, P * M), identity - symmetric(V))
        squares = jnp.einsum("rnpm,rnqm->rnpq", mean, mean) + token_trace(G - H.reshape(G.shape), M)
        precision = self.alpha * symmetric(jnp.mean(squares, axis=1))
        new = jnp.linalg.inv(identity + jnp.mean(precision, axis=0))
        blocks = H.reshape(-1, P, M, P, M)
        pull = self.alpha * conjugation(blocks, blocks)
        return fixed_point.Evaluation(
            value=new,
            jacobian=jnp.einsum("pa,abcd,bq->pqcd", new, pull, new),
            replicas=jax.vmap(lambda A: new - new @ (A - jnp.mean(precision, 0)) @ new)(precision),
            inaccurate=jnp.zeros((), V.dtype),
        )


def spectral_overlap(
    model: AbstractModel,
    alpha: ArrayLike,
    *,
    key: PRNGKeyArray | None = None,
    averages: Averages = Averages(),  # noqa: B008  (immutable)
) -> Estimate:
    r"""Overlap of the optimal spectral estimator as D → ∞: what the covariances of fields given
    their labels tell.

        Q = Q̂ (I + Q̂)^{-1},   Q̂ = α ⟨Tr_M[G Q (I + G Q)^{-1} G]⟩,   I + G(y) = Cov[z|y]

    It starts at the threshold of weak recovery and lies below state evolution: a message-passing
    run goes on from there. Directions that are learned only after others stay at zero.

    Args:
        model: A model of indices, whose labels say nothing of W at first order (E[z|y] = 0).
        alpha: Sample complexity N/D, a number > 0.
        key: Random key of the labels. Required.
        averages: `smi.Averages(points, nets)`: labels in all nets, and independent nets, whose
            spread is the standard error; with fewer than 16 it is inaccurate, as G has heavy tails.
            Default 2^14 in 16 nets.

    Returns:
        An `Estimate`: `value` Q (P, P), of one index its squared cosine times S; `stderr`, with
        what the iteration, which is slow near the threshold, is away from its end. It has no
        derivative (NaN).

    Raises:
        ValueError: For an argument out of its range, a model without directions, a prior with a
            mean, or labels that tell W at first order (linear regression, signs): message passing
            starts there by itself. Under jit the answer is NaN.

    Example:
        >>> import jax, jaxsmi as smi
        >>> overlap = smi.spectral_overlap(smi.links.phase_retrieval(), 1.5, key=jax.random.key(0))
        >>> bool(abs(overlap.value[0, 0] - 0.4570764891) < 5 * overlap.stderr[0, 0])
        True

    Cost:
        `points` posteriors, and some ten to a hundred solutions of a linear system (PM, PM) for
        each.

    Source:
        [theory: spectral, Eqs. (1) to (6)].
    """
    model = model_argument(model, "spectral")
    alpha = validate.number("alpha", alpha, POSITIVE)
    validate.instance("averages", averages, Averages, "smi.Averages(points, nets)")
    points, nets = averages.sizes(_POINTS, _NETS, 2)
    key = validate.key("key", key)
    centred = is_centred(model)
    check(centred, "model", model.prior, CENTRED)
    moments = _drawn_moments(model, key, power_of_two(max(points, 2)), nets)
    silent = tells_nothing(moments.mean)
    allowed = (
        "one whose labels say nothing of W at first order: message passing needs no other start"
    )
    check(silent, "model", title(model), allowed)
    valid = centred & silent & validate.valid(alpha) & validate.valid(model)
    return _solved(model, jnp.where(valid, alpha, nan()), moments)


def tells_nothing(mean: Array) -> Array:
    """Labels of R nets, of means μ (R, n, P, M), say nothing of W at first order: E μμᵀ is zero
    within its error."""
    outer = jnp.einsum("rnpm,rnqm->rpq", mean, mean) / mean.shape[1]
    noise = jnp.std(outer, axis=0, ddof=min(len(mean) - 1, 1)) / jnp.sqrt(float(len(mean)))
    most = jnp.minimum(_SIGMAS * noise, _LITTLE)
    return jnp.all(jnp.mean(outer, axis=0) <= most + _ZERO)


@eqx.filter_jit
def _drawn_moments(
    model: AbstractModel, key: PRNGKeyArray, samples: int, nets: int
) -> LabelMoments:
    """Moments of labels that are drawn by the model, (R, n, ..)."""
    S = model.prior.second_moment(model.indices)
    nothing = jnp.zeros_like(S)
    post = draw_posteriors(model.channel, nothing, S, key=key, points=samples, nets=nets)
    moments = label_moments(post.g, post.dg, S)
    return jax.tree.map(lambda x: x.reshape(nets, samples, *x.shape[1:]), moments)


@eqx.filter_jit
def _solved(model: AbstractModel, alpha: Array, moments: LabelMoments) -> Estimate:
    """The largest Q, from above, in the units of S."""
    S = model.prior.second_moment(model.indices)
    end = largest_overlap(*lax.stop_gradient((moments, alpha))).state
    error = fixed_point.propagated_error(end.evaluation.jacobian, end.evaluation.replicas)
    error = jnp.sqrt(error**2 + end.distance**2)  # near the threshold the iteration is slow
    root = sqrt_psd(S)
    value = root @ (jnp.eye(len(S), dtype=S.dtype) - end.V) @ root
    stderr = jnp.sqrt((root**2) @ error**2 @ (root**2))
    return not_differentiable(Estimate(value, stderr), (model, alpha))


def largest_overlap(moments: LabelMoments, alpha: Array) -> Run[fixed_point.Iterate]:
    """The end of the iteration from above, in units S = I: V = I - Q."""
    one = jnp.eye(moments.mean.shape[-2], dtype=moments.mean.dtype)
    iteration = fixed_point.Iteration(
        map_of=_SpectralMap(moments, alpha).evaluate,
        V0=_ALL * one,
        scale=one,
        tolerance=jnp.asarray(_TOLERANCE, one.dtype),
        geometric=False,
        newton=True,
        max_steps=_STEPS,
    )
    return fixed_point.solve(iteration)
