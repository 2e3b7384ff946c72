"""Weak recovery: growth of a small overlap in the directions that are not learned yet, and the α
from which on anything is learned from labels alone."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Posterior, weighted_posteriors
from jaxsmi.channels.likelihood import noisy
from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny, missing, symmetric
from jaxsmi.core.options import Averages
from jaxsmi.core.results import INACCURATE_SHARE, Result, choose
from jaxsmi.core.solution import Threshold
from jaxsmi.core.validate import check
from jaxsmi.models.base import (
    CENTRED,
    AbstractModel,
    is_centred,
    model_argument,
    regular_numbers,
)
from jaxsmi.numerics.continuation import Limit, geometric_steps, limit
from jaxsmi.numerics.implicit import forwards, not_differentiable
from jaxsmi.numerics.linear_algebra import conjugation, sqrt_psd, symmetric_basis
from jaxsmi.numerics.quadrature import INTEGRAL_ERROR, power_of_two, standard_error

# empirical, over 48 keys: with 16 error bars of |z| were missed by up to five, with 32 by two
_NETS = 32
_EQUAL_RATES = 1e-6  # eigenvalues closer than rounding are one eigenspace
_EQUAL_SIGMAS = 4.0  # and so are those within four standard errors
_LINEAR_SIGMAS = 5.0  # E g gᵀ is non-zero from so many standard errors: 3e-7 by chance
_BIAS_FACTOR = 25.0  # squared errors of integrals times 5²: five of their standard deviations
_SIGNAL_ROUNDING, _RATE_ROUNDING = 1e-12, 1e-10  # rounding of E g gᵀ and λ_max in float64


def leading_eigenmatrix(growth: Array) -> Array:
    """The positive semi-definite X of unit norm with 𝒢(X) = λ_max X: the projection of the identity
    on the leading eigenspace, from 𝒢 of each net (nets, P, P, P, P)."""
    basis = jnp.asarray(symmetric_basis(growth.shape[-1]), growth.dtype)
    matrices = symmetric(jnp.einsum("ipq,tpqab,jab->tij", basis, growth, basis))
    # one basis for all nets: that of a single net may turn between directions of near equal growth
    values, vectors = jnp.linalg.eigh(jnp.mean(matrices, axis=0))
    rates = jnp.einsum("ik,tij,jk->tk", vectors, matrices, vectors)
    spread = standard_error(rates)
    slack = _EQUAL_RATES * jnp.abs(values[-1]) + _EQUAL_SIGMAS * jnp.maximum(spread, spread[-1])
    top = values >= values[-1] - slack
    top = top & (values > 0.5 * values[-1])  # however large the errors are
    weights = jnp.where(top, vectors.T @ jnp.einsum("ipp->i", basis), 0.0)
    X = symmetric(jnp.einsum("k,ik,ipq->pq", weights, vectors, basis))
    return X / clamp_to_tiny(jnp.linalg.norm(X))


class Growth(eqx.Module):
    r"""Growth of an overlap in the directions that are not learned, at a fixed point.

    With N the projector on these directions, V = S - Q, ω drawn at the overlap Q:

        G = N V^{1/2} ∂g V^{1/2} N,   𝒢_Q(X)_{pp'} = E Σ_{m,n} (G_{mn} X G_{mn}ᵀ)_{pp'}

    𝒢 is self-adjoint and maps positive matrices to positive ones: λ_max is its spectral radius, and
    X what is learned next. Learned × new directions grow more slowly: 𝒢 is completely positive, so
    that their rate is at most the geometric mean of those of learned × learned, below one, and
    new × new. Where N E[g gᵀ] N ≠ 0 these directions are learned at once.
    [TDDZLK24; TCDKZ25; theory: multi-index, Eqs. (59), (61)]

    Attributes:
        rate_per_net: ⟨X, 𝒢 X⟩ of each net (R,).
        subspace: X (P, P), the leading eigenmatrix of 𝒢.
        linear_signal: E g gᵀ of each net, whitened (R, P, P).
        rate_error: Error of the rate from inner integrals on grids (random nodes differ from net to
            net).
        slope_error: Error of ∂g from the inner integrals that biases averages.
        field_error: Error of g from the inner integrals that biases averages.
        inaccurate: Fraction of samples whose inner integral missed its tolerance.
    """

    rate_per_net: Array
    subspace: Array
    linear_signal: Array
    rate_error: Array
    slope_error: Array
    field_error: Array
    inaccurate: Array

    @property
    def rate(self) -> Array:
        """λ_max(𝒢)."""
        return jnp.mean(self.rate_per_net)

    @property
    def absent(self) -> Array:
        """True if the growth rate is no more than errors of integration."""
        return self.rate <= _RATE_ROUNDING + _BIAS_FACTOR * self.slope_error**2

    def log_growth(self, alpha: Array) -> Array:
        """h = log α λ_max, negative where nothing grows; large and finite at λ_max = 0."""
        # finite, so that a scan can distinguish it from a failed growth rate
        return jnp.log(jnp.maximum(alpha * self.rate, 1e-30))

    def linear_directions(self) -> tuple[Array, Array]:
        """Return directions (columns), and a mask of those that labels depend on linearly.

        E g gᵀ must lie above its standard errors, and above the bias of integrals.
        """
        values, vectors = jnp.linalg.eigh(jnp.mean(self.linear_signal, axis=0))
        along = jnp.einsum("pk,rpq,qk->rk", vectors, self.linear_signal, vectors)
        noise = standard_error(along)
        floor = _SIGNAL_ROUNDING + _BIAS_FACTOR * self.field_error**2
        return vectors, (values > _LINEAR_SIGMAS * noise) & (values > floor)


def growth(
    model: AbstractModel,
    sample: tuple[Posterior, Array],
    V: Array,
    unlearned: Array,
    nets: int,
    eigenmatrix: Array | None = None,
) -> Growth:
    """Growth of a small overlap in the directions of the projector `unlearned`, from a sample of
    posteriors at S - V and their weights. `eigenmatrix`: X, where it is known."""
    post, weight = sample
    P = model.indices
    root = unlearned @ sqrt_psd(V)
    # Σ w G X Gᵀ and Σ w g gᵀ with the root of the weight in both factors; off zero, where the root
    # has no derivative
    share = jnp.sqrt(jnp.maximum(weight, 1e-30))

    def whiten(g: Array, dg: Array) -> tuple[Array, Array]:
        G = jnp.einsum("n,ab,nbmcl,dc->namdl", share, root, dg, root)
        return jnp.einsum("n,ab,nbm->nam", share, root, g), G

    (g, G), (g_other, G_other) = (whiten(*factor) for factor in post.factors)
    field_error, slope_error = _bias(post, weight, (g, g_other), (G, G_other))
    G, G_other = (x.reshape(nets, -1, *x.shape[1:]) for x in (G, G_other))
    # a change of X changes ⟨X, 𝒢 X⟩ at second order only
    tensor = jax.vmap(conjugation)(G, G_other)
    X = lax.stop_gradient(leading_eigenmatrix(tensor)) if eigenmatrix is None else eigenmatrix
    outer = symmetric(jnp.einsum("npm,nqm->npq", g, g_other)).reshape(nets, -1, P, P)
    inaccurate = post.error > model.channel.averaging.tolerance
    # δ(G X G) = 2 G X δG, with an error of ∂g relative to 1 + |∂g|
    slope = jnp.max(jnp.abs(post.dg), axis=(1, 2, 3, 4))
    errors = jnp.where(inaccurate, 0.0, weight * slope * (1.0 + slope) * post.dg_error)
    rate_error = 2.0 * jnp.max(jnp.abs(V)) ** 2 * jnp.mean(errors)
    rate_error = rate_error if post.halves is None else jnp.zeros_like(rate_error)
    return Growth(
        rate_per_net=jnp.einsum("pq,rpqab,ab->r", X, tensor, X),
        subspace=X,
        linear_signal=outer.mean(1),
        rate_error=rate_error,
        slope_error=slope_error,
        field_error=field_error,
        inaccurate=jnp.mean(jnp.where(inaccurate, weight, 0.0)),
    )


def _bias(
    post: Posterior, weight: Array, fields: tuple[Array, Array], slopes: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Errors of g and ∂g that bias averages.

    Products of two halves are unbiased over nodes, but all samples of a net share their nodes: up
    to half the variance is left. `_BIAS_FACTOR` is 25, so this returns a fifth of that bound.
    Medians: a few samples in ten thousand may miss the tolerance of the inner integral without a
    bias of the average.
    """
    if post.halves is None:
        largest_slope = jnp.max(jnp.abs(post.dg), axis=(1, 2, 3, 4))
        largest_field = jnp.max(jnp.abs(post.g), axis=(1, 2))
        slope_error = _median(post.dg_error, weight) * (1.0 + jnp.mean(weight * largest_slope))
        return _median(post.error, weight) * (1.0 + jnp.mean(weight * largest_field)), slope_error
    noise = [
        jnp.max(jnp.abs(one - two).reshape(len(one), -1), axis=1) for one, two in (fields, slopes)
    ]
    field_error, slope_error = (_median(x, weight) / np.sqrt(10.0) for x in noise)
    return field_error, slope_error


def _median(values: Array, weight: Array) -> Array:
    """The median of values (n,) with weights (n,)."""
    order = jnp.argsort(values)
    below = jnp.cumsum(weight[order])
    return values[order][jnp.argmax(below >= 0.5 * below[-1])]


def check_model(model: AbstractModel) -> Array:
    """Raise a ValueError for a model without directions or a prior with a mean. Return True for a
    valid model, traced ones included."""
    model_argument(model, "directions")
    centred = is_centred(model)
    check(centred, "model", model.prior, CENTRED)
    return jnp.asarray(centred) & validate.valid(model)


@validate.explained
def weak_recovery(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    averages: Averages | None = None,
    noises: ArrayLike | None = None,
) -> Threshold:
    r"""Compute the smallest α at which anything is learned from labels alone.

    α_c = 1/λ_max(𝒢),  𝒢(X) = E Σ_{m,n} G_{mn} X G_{mn}ᵀ,  G = E[zzᵀ|y] - I at ω = 0

    Args:
        model: An index model with a channel and a prior of mean zero.
        key: Random key, common random numbers: two calls with one key differ smoothly.
        averages: `smi.Averages(points, nets)`. Default 2^16 points in 32 nets, whose spread is the
            error bar. Take 32 nets or more: G has heavy tails, and `Threshold.interval` needs many
            degrees of freedom.
        noises: For a noiseless link that is continuous but has no channel (several heads, untied
            query and key, any function): variances Δ of label noise, four or more, each the same
            fraction of the one before, such as (.08, .04, .02, .01). 1/α_c at each is extrapolated
            to Δ = 0 by a fitted power Δ^p, p in [1/4, 2], and `stderr` contains the error of that.
            The first Δ should lie below the variance of a label. Default None.

    Returns:
        A `Threshold`: `alpha` is 0 where a direction is learned at any α > 0 (E[z|y] ≠ 0), and inf
        where nothing grows; `subspace` (P, P) is what is learned. Differentiable, forwards and
        backwards, in every array of the model (NaN in numbers that move a jump of the labels,
        unless these are few and in closed form). Codes: SUCCESS, INACCURATE, NONFINITE; INVALID.

    Raises:
        ValueError: For a model without inference, a prior with a mean, or fewer than two points a
            net. Under jit the answer is NaN with the code INVALID.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, few = smi.links.phase_retrieval(), smi.Averages(points=2**13)
        >>> round(float(smi.weak_recovery(model, key=jax.random.key(0), averages=few).alpha), 1)
        0.5

    Cost:
        One posterior a point: 2^16 of two-layer attention take about 2 s on one core after
        compilation, of any link of two or three fields with noise 1 to 5 s; with `noises` so many
        at each, by the integral over all fields.

    Source:
        [TDDZLK24], [TCDKZ25], [theory: multi-index, Eqs. (59) to (61), (73) to (75)].
    """
    key = validate.key("key", key)
    points_per_net, nets = Averages.of(averages).sizes(2**16, _NETS, 2)
    model = model_argument(model)
    models, steps = [model], None
    if noises is not None:
        steps = geometric_steps("noises", noises)
        check(model.design.has_rows, "noises", noises, "None for a matrix model")
        # only numbers of the channel differ: one compilation for all noises
        channels = noisy(model.channel, steps)
        models = [eqx.tree_at(lambda m: m.channel, model, channel) for channel in channels]
    valid = check_model(models[0]) & validate.valid((models[-1], steps))
    growths = [_growth(m, key, power_of_two(points_per_net), nets) for m in models]
    return _threshold(growths, steps, model.prior.second_moment(model.indices), valid)


def _growth(model: AbstractModel, key: PRNGKeyArray, points_per_net: int, nets: int) -> Growth:
    """Growth at Q = 0, with its derivatives in the model."""
    grown = forwards(lambda model, key: _at_zero(model, key, points_per_net, nets), model, key)
    return not_differentiable(grown, model, unless=regular_numbers(model))


@eqx.filter_jit
def _at_zero(model: AbstractModel, key: PRNGKeyArray, points_per_net: int, nets: int) -> Growth:
    S = model.prior.second_moment(model.indices)
    sizes = {"points": points_per_net, "nets": nets}
    sample = weighted_posteriors(model.channel, None, S, key=key, **sizes)
    return growth(model, sample, S, jnp.eye(len(S), dtype=S.dtype), nets)


@eqx.filter_jit
def _threshold(growths: list[Growth], steps: Array | None, S: Array, valid: Array) -> Threshold:
    """The threshold, from the growth at each of the noises, or at the only one."""
    # the smallest noise decides: the classes of a threshold do not change on the way to zero
    last = growths[-1]
    vectors, is_linear = last.linear_directions()
    trivial, absent = jnp.any(is_linear), last.absent
    exact = trivial | absent
    rates = Limit(last.rate, last.rate_per_net, jnp.zeros_like(last.rate))
    if steps is not None:
        # rates, not α: these are averages, and follow the power law in Δ
        rates = limit(steps, jnp.stack([grown.rate_per_net for grown in growths], axis=1))
    rate = jnp.where(exact, 1.0, rates.value)
    alpha = jnp.where(trivial, 0.0, jnp.where(absent, jnp.inf, 1.0 / rate))
    squared = jnp.where(exact, 0.0, 1.0 / rate) ** 2
    # the mean of 1/λ_r is biased; 1/λ to first order in λ_r - λ is not
    replicas = jnp.where(exact, alpha, alpha - (rates.replicas - rate) * squared)
    spread = jnp.hypot(standard_error(rates.replicas), INTEGRAL_ERROR * rate)
    spread = jnp.hypot(spread, last.rate_error)
    stderr = jnp.where(exact, 0.0, jnp.hypot(spread, rates.error) * squared)
    projector = jnp.where(is_linear, vectors, 0.0) @ vectors.T
    subspace = jnp.where(trivial, projector, jnp.where(absent, 0.0, last.subspace))
    root = sqrt_psd(S)
    subspace = root @ subspace @ root  # back from whitened rows to those of the signal
    subspace = subspace / clamp_to_tiny(jnp.trace(subspace))
    inaccurate = jnp.max(jnp.stack([grown.inaccurate for grown in growths])) > INACCURATE_SHARE
    finite = exact | (jnp.isfinite(rate) & (rate > 0.0))
    finite = finite & jnp.all(jnp.isfinite(last.linear_signal))
    code = choose(
        (True, Result.SUCCESS),
        (inaccurate, Result.INACCURATE),
        (~finite, Result.NONFINITE),
        (~valid, Result.INVALID),
    )
    masked = lambda x: jnp.where(valid & finite, x, missing())
    alpha, stderr, replicas = masked(alpha), masked(stderr), masked(replicas)
    return Threshold(alpha, stderr, replicas, subspace, jnp.zeros_like(S), code)
