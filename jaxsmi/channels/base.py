"""Output channels: the law of labels given fields, and the posterior of fields given a label.

Equations here [TCDKZ25; theory: multi-index, Eqs. (17) to (21)]; ω, z (P, M), V (P, P) shared by
the M tokens:

    Z_out(y; ω, V) = ∫ Π_m N(z_m; ω_m, V) p(y|z) dz
    g  = ∂_ω log Z_out = V^{-1} (E[z|y,ω,V] - ω)                                   (P, M)
    ∂g = ∂²_ω log Z_out = V^{-1} Cov[z|y] V^{-1} - V^{-1} ⊗ I_M                    (P, M, P, M)

A channel with a closed-form log Z_out defines only that (`ClosedFormChannel`): g and ∂g come by
autodiff.

Averages of the posterior over fields and labels, on common random numbers [TCDKZ25; theory:
multi-index, Eqs. (49) to (53)], V = S - Q:

    response(Q) = E Σ_m g_m g_mᵀ,  ω = Q^{1/2} ξ, z = ω + V^{1/2} η, y ~ p(y|z)    (P, P)
                = E_ω Σ_y Z_out(y; ω, V) Σ_m g_m g_mᵀ  for finitely many labels y
    d response(Q)[dQ] = E Σ_{m,n} ∂g_{mn} dQ ∂g_{mn}ᵀ

The points depend on the key alone, so that Q -> response(Q) is one smooth map. `points` counts
those of each net; the spread of independent `nets` is the statistical error.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.jumps import continuous
from jaxsmi.core import validate
from jaxsmi.core.arrays import clamp_to_tiny, concrete, symmetric, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.numerics.implicit import numbers_of
from jaxsmi.numerics.linear_algebra import conjugation, sqrt_psd
from jaxsmi.numerics.quadrature import (
    FEWEST_FINE,
    Points,
    covariance_and_variance,
    fine_points,
    gaussian_points,
    quotient,
    randomised_gaussians,
)

Key = PRNGKeyArray | None  # key of random nodes; None if a channel has none
# empirical: from so many points an axis on, grids of two variables err less than nets at ω = 0 (|z|
# with noise .1 to .001: 20 to 1000 times less)
_FEWEST_SMOOTH = 24


class Posterior(eqx.Module):
    """Posterior of the fields of one sample (or, with a leading axis, of a batch).

    Attributes:
        log_partition: log Z_out.
        g: V^{-1}(E[z|y] - ω), (P, M).
        dg: Derivative of g in ω, (P, M, P, M).
        ess: Effective number of integration nodes (inf for closed forms).
        error: Estimated error of g, relative to 1 + max|g|.
        dg_error: Estimated error of dg, relative to 1 + max|dg|.
        halves: g and dg of two independent halves of random nodes, (N, 2, ...); None where nodes
            are not random.
    """

    log_partition: Array
    g: Array
    dg: Array
    ess: Array
    error: Array
    dg_error: Array
    halves: tuple[Array, Array] | None = None

    @property
    def factors(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Two pairs (g, ∂g) of a batch, the factors of a product that is averaged."""
        # independent halves: the noise of random nodes drops out of a product, not of a square
        if self.halves is None:
            return (self.g, self.dg), (self.g, self.dg)
        g, dg = self.halves
        return (g[:, 0], dg[:, 0]), (g[:, 1], dg[:, 1])

    def mean(self, omega: Array, V: Array) -> Array:
        """Posterior mean of the fields, E[z|y] = ω + V g (one sample)."""
        return omega + V @ self.g


class Response(eqx.Module):
    """Average of Σ_m g_m g_mᵀ over fields and labels at one overlap: the precision that a label
    adds.

    Attributes:
        mean: E Σ_m g_m g_mᵀ, (P, P).
        replicas: The same from each net of outer points, (R, P, P): their spread is the
            statistical error.
        jacobian: d mean_{ab} / d Q_{cd}, (P, P, P, P).
        log_partition: E log Z_out from each net, (R,).
        error: Error of `mean` (P, P) from inner integrals on grids (random nodes differ from net to
            net).
        inaccurate: Fraction of samples whose inner integral missed its tolerance.
    """

    mean: Array
    replicas: Array
    jacobian: Array
    log_partition: Array
    error: Array
    inaccurate: Array


def redraw_labels(
    channel: AbstractChannel, omega: Array, V: Array, normal: Array, noise: Array
) -> Array:
    """Draw labels (N, ...) of fields ω + V^{1/2} η, with ω and η (`normal`) (N, P, M), V (P, P),
    and `noise` (N, noise_size)."""
    fields = omega + jnp.einsum("pq,nqm->npm", sqrt_psd(V), normal)
    return jax.vmap(channel.label)(fields, noise)


def draw_posteriors(
    channel: AbstractChannel,
    Q: Array | None,
    V: Array,
    *,
    key: PRNGKeyArray,
    points: int,
    nets: int,
) -> Posterior:
    """Compute the posteriors of points × nets labels that are drawn at overlap Q, net by net; None:
    at Q = 0."""
    normals = randomised_gaussians(key, points, nets, _variables(channel, Q))
    return _posteriors_at(channel, Q, V, normals.reshape(points * nets, -1), key, nets)


def _variables(channel: AbstractChannel, Q: Array | None) -> int:
    """Number of standard normals that a label is drawn from; at Q = 0 all points are spent on
    labels."""
    means = 1 if Q is None else 2
    return means * channel.indices * channel.tokens + channel.noise_size


def _posteriors_at(
    channel: AbstractChannel,
    Q: Array | None,
    V: Array,
    normals: Array,
    key: PRNGKeyArray,
    nets: int,
) -> Posterior:
    """The posteriors of labels drawn from standard normals (n, variables), net by net."""
    P, M, count = channel.indices, channel.tokens, len(normals)
    open_fields = 0 if Q is None else P * M
    xi, eta, noise = jnp.split(normals, [open_fields, open_fields + P * M], axis=1)
    omega = _means(Q, xi, (count, P, M))
    # a lower triangular root keeps each index on its own coordinates of the net
    root = jnp.linalg.cholesky(V)
    fields = omega + jnp.einsum("pq,nqm->npm", root, eta.reshape(count, P, M))
    statistic = jax.vmap(channel.observe)(fields, noise)
    # another stream than that of the points: inner nodes must not depend on them
    return _respond_by_net(channel, statistic, omega, V, jax.random.fold_in(key, 1), nets)


def _points(
    key: PRNGKeyArray,
    points: int,
    nets: int,
    variables: int,
    smooth: bool = False,
    centres: Array | None = None,
) -> tuple[Array, Array]:
    """Standard normals (n, variables) and weights (n,) of mean one, net by net, for averages over
    labels at ω = 0 (`smooth`), or over one ω of few labels, dense about `centres`."""
    if smooth and variables <= 2:
        rule = gaussian_points(key, points, nets, variables, _FEWEST_SMOOTH)
    elif centres is not None and variables == 1 and points >= FEWEST_FINE * len(centres):
        rule = fine_points(key, points, nets, centres)
    else:
        position = randomised_gaussians(key, points, nets, variables)
        rule = Points(position, jnp.full(position.shape[:2], 1.0 / points, position.dtype))
    size = rule.weight.size
    return rule.position.reshape(size, variables), rule.weight.reshape(size) * (size / nets)


def _means(Q: Array | None, xi: Array, shape: tuple[int, int, int]) -> Array:
    """ω = Q^{1/2} ξ (n, P, M)."""
    if Q is None:
        return jnp.zeros(shape, xi.dtype)
    return jnp.einsum("pq,nqm->npm", sqrt_psd(Q), xi.reshape(shape))


def weighted_posteriors(
    channel: AbstractChannel,
    Q: Array | None,
    V: Array,
    *,
    key: PRNGKeyArray,
    points: int,
    nets: int,
) -> tuple[Posterior, Array]:
    """Compute posteriors at overlap Q (None: zero) with weights (n,) of mean one, net by net: of
    drawn labels of weight one, or, if labels are finitely many, of each at every ω, weighted by its
    probability Z_out (with noise on few levels: of each level)."""
    outcomes = channel.outcomes
    noisy = channel if outcomes is None and isinstance(channel, LevelsChannel) else None
    if outcomes is None and noisy is None:
        normals, weight = _points(key, points, nets, _variables(channel, Q), Q is None)
        post = _posteriors_at(channel, Q, V, normals, key, nets)
        return post, _of_computed(post, weight)
    # the sum over labels is exact at every ω: no fields are drawn, and no noise but that of levels
    P, M = channel.indices, channel.tokens
    size = 0 if noisy is None else channel.noise_size
    points = points if size or Q is not None else 1
    centres = None if Q is None else channel._edges / jnp.sqrt(clamp_to_tiny(Q[0, 0]))
    normals, odds = _points(key, points, nets, P * M + size, centres=centres)
    omega = _means(Q, normals[:, : P * M], (points * nets, P, M))
    if noisy is not None:
        labels, log_odds = noisy.levels_of(omega, V, normals[:, P * M :])
        labels = labels.reshape(-1)
    else:
        assert outcomes is not None  # which a type checker cannot know
        labels, log_odds = jnp.tile(outcomes, (len(omega), *[1] * (outcomes.ndim - 1))), None
    count = len(labels) // len(omega)
    if isinstance(channel, LevelsChannel):
        post = channel.respond_to_each(labels.reshape(-1, count), omega, V)
    else:
        omega = jnp.repeat(omega, count, axis=0)
        statistic = channel.statistic(labels)
        post = _respond_by_net(channel, statistic, omega, V, jax.random.fold_in(key, 1), nets)
    # random nodes give sums of probabilities that are one on average only
    log_odds = post.log_partition.reshape(-1, count) if log_odds is None else log_odds
    weight = odds[:, None] * count * jax.nn.softmax(log_odds, axis=1)
    return post, _of_computed(post, weight.reshape(-1))


def _of_computed(post: Posterior, weight: Array) -> Array:
    """Weights (n,), zero for the posteriors that a `partial` channel does not compute."""
    computed = post.ess != 0.0
    return jnp.where(computed, weight / jnp.mean(computed, dtype=weight.dtype), 0.0)


def _respond_by_net(
    channel: AbstractChannel, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray, nets: int
) -> Posterior:
    averaging = channel.averaging
    if not averaging.random_nodes:
        # the first points of all nets first: a part of the batch is one of each net
        first = lambda x, rows: x.reshape(rows, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        post = averaging.respond(first(statistic, nets), first(omega, nets), V, key)
        return jax.tree.map(lambda x: first(x, len(x) // nets), post)
    # each net has random nodes of its own, so that the spread over nets holds their error, too:
    # nodes that nets share would err alike in all of them
    split = lambda x: x.reshape(nets, -1, *x.shape[1:])
    keys = jax.random.split(key, nets)
    post = lax.map(
        lambda part: averaging.respond(part[0], part[1], V, part[2]),
        (split(statistic), split(omega), keys),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), post)


def response_of(
    channel: AbstractChannel, post: Posterior, weight: Array, nets: int, tangents: bool = True
) -> Response:
    """Average the posteriors of `weighted_posteriors`, by their weights, to a response."""
    P = channel.indices
    w = weight[:, None, None]
    (g, dg), (g_too, dg_too) = post.factors
    outer = w * symmetric(jnp.einsum("npm,nqm->npq", g, g_too))
    curvature = -w * jnp.einsum("npmqm->npq", 0.5 * (dg + dg_too))
    outer, curvature = (x.reshape(nets, -1, P, P) for x in (outer, curvature))
    # summed over all labels, E Σ g gᵀ = -E Σ ∂g holds at every ω: nothing is left to control
    drawn = channel.outcomes is None
    replicas = _controlled(outer, outer - curvature) if drawn else jnp.mean(outer, axis=1)
    jacobian = jnp.zeros((P, P, P, P), outer.dtype)
    if tangents:
        jacobian = conjugation(w[..., None, None] * dg, dg_too)
    # 0 log 0 = 0, of labels without probability
    values = jnp.where(weight > 0.0, weight * post.log_partition, 0.0)
    log_partition = jnp.mean(values.reshape(nets, -1), axis=1)
    missed = post.error > channel.averaging.tolerance
    # δ(g gᵀ) = g δgᵀ + δg gᵀ, and the largest entry of δg is that error times 1 + max|g|
    relative_to = 1.0 + jnp.max(jnp.abs(post.g), axis=(1, 2))
    off = jnp.where(missed, 0.0, weight * relative_to * post.error)
    error = jnp.mean(off[:, None] * jnp.sum(jnp.abs(post.g), axis=2), axis=0)
    error = error[:, None] + error if post.halves is None else jnp.zeros((P, P), off.dtype)
    share = jnp.mean(jnp.where(missed, weight, 0.0))
    return Response(jnp.mean(replicas, 0), replicas, jacobian, log_partition, error, share)


def _controlled(values: Array, control: Array) -> Array:
    """Average values (R, n, ...) over n with a control variate of mean zero.

    E Σ g gᵀ = -E Σ ∂g: their difference is the control. It is exact for a linear channel.
    """
    covariance, variance = (
        # sums over the other nets: a coefficient from the same net would bias its mean
        jnp.sum(x, 0) - x
        for x in covariance_and_variance(values, control, axis=1)
    )
    slope = lax.stop_gradient(quotient(covariance, variance))
    return jnp.mean(values, axis=1) - slope * jnp.mean(control, axis=1)


class AbstractLabels(eqx.Module):
    """Labels of fields z (P, M), P `indices` and M `tokens`: a link, and noise."""

    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    @property
    def unsupported_reason(self) -> str | None:
        """One sentence, with the remedy, on why there is no posterior; None if there is one."""
        return None

    @property
    def constraints(self) -> int | Array | None:
        """Number of combinations of a sample's fields that a noiseless label fixes, on average over
        samples of variance one; None if unknown."""
        return None

    @property
    def outcomes(self) -> Array | None:
        """All labels (K, ...), if they are finitely many; None for a continuum."""
        return None

    @property
    def pathwise(self) -> bool | Array:
        """Whether pathwise derivatives of averages are valid: labels are continuous in the fields,
        or summed. If not, points miss the jumps, and derivatives in parameters that move them are
        NaN. A bool if known statically (`is True` and `is False` test it inside jit), else an
        array, from a numerical search for jumps."""
        if self.outcomes is not None:
            return True
        return continuous(self.link, self.indices, self.tokens)

    @property
    def noise_size(self) -> int:
        """Number of standard normals that a label needs beside its fields."""
        return 0

    @property
    def noiseless(self) -> Array:
        """True (a boolean, traced or not) if a label fixes combinations of the fields exactly."""
        return jnp.asarray(self.noise_size == 0)

    @property
    def sharp(self) -> Array:
        """True if V may fall to 0: labels have no noise, or their probability jumps with the
        fields, as that of a flipped sign does."""
        return self.noiseless

    @property
    def _edges(self) -> Array:
        """Fields (K,) of one index and token next to which the probability of a label may jump, K a
        power of two; by default 0 alone."""
        return jnp.zeros(1, theory_dtype())

    @property
    def drawable(self) -> bool:
        """True if labels can be drawn (not from a likelihood without a sampler)."""
        return True

    @abc.abstractmethod
    def link(self, fields: Array) -> Array:
        """Return the label of one sample without its noise, from its fields (P, M)."""

    def label(self, fields: Array, noise: Array) -> Array:
        """Return the label of one sample from its fields (P, M) and `noise` (noise_size,) standard
        normals."""
        del noise
        return self.link(fields)


class AbstractChannel(AbstractLabels):
    """p(y|z) with the posterior of the fields z (P, M) of a label.

    `closed_form`: averages over labels (`response`) have a closed form, without random points and a
    key; a `ClosedFormChannel` has one for log Z_out alone.
    """

    closed_form: ClassVar[bool] = False

    @abc.abstractmethod
    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError for concrete labels (N, ...) outside the channel's range."""

    def statistic(self, labels: Array) -> Array:
        """Compute from the labels (N, ...), once per dataset, the function of them that `respond`
        takes (such as inverted labels): by default the labels themselves."""
        return labels

    def observe(self, fields: Array, noise: Array) -> Array:
        """Return the statistic of a label drawn from fields (P, M)."""
        return self.statistic(self.label(fields, noise)[None])[0]

    @abc.abstractmethod
    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Compute the posterior of a batch: statistic (N, ...), omega (N, P, M), V (P, P)."""

    @property
    @abc.abstractmethod
    def tolerance(self) -> Array:
        """Error of g up to which it counts as accurate (infinite for closed forms)."""

    @property
    def regular(self) -> tuple[bool | Array, list[bool | Array]]:
        """Whether averages of posteriors have pathwise derivatives: in the overlap and the numbers
        of the prior, and in each floating point array of the channel at a fixed overlap."""
        return self.pathwise, [self.pathwise] * len(numbers_of(self)[0])

    @property
    def random_nodes(self) -> bool:
        """True if `respond` integrates over random nodes, which its key draws."""
        return False

    @property
    def averaging(self) -> AbstractChannel:
        """Channel for averages over labels, which may need less accuracy of each posterior than
        message passing does."""
        return self

    def partial(self, share: Array) -> AbstractChannel:
        """Return the channel that computes the first `share` of a batch only (the others have
        `Posterior.ess` zero), if that saves time; by default the channel itself."""
        del share
        return self

    def posterior(self, y: ArrayLike, omega: ArrayLike, V: ArrayLike, key: Key = None) -> Posterior:
        r"""Compute the posterior of the fields of one sample, with its error.

        log Z_out, g = V^{-1}(E[z|y] - ω) and ∂g.

        Args:
            y: One label.
            omega: Means of the fields (P, M).
            V: Their covariance (P, P), positive definite.
            key: For channels that sample. Default None.

        Returns:
            A `Posterior`; NaN for a traced V that is not positive definite.

        Raises:
            ValueError: For wrong shapes, non-finite numbers, a V that is not positive definite,
                a y out of range.

        Example:
            >>> import jax.numpy as jnp, jaxsmi as smi
            >>> post = smi.links.linear(1.0).channel.posterior([2.0], [[0.0]], [[1.0]])
            >>> round(float(post.g[0, 0]), 6)
            1.0

        Cost:
            Microseconds for closed forms; see the channel for the others.

        Source:
            [TCDKZ25], [theory: multi-index, Eqs. (17) to (20)].
        """
        shape = (self.indices, self.tokens)
        allowed = f"an array of shape (indices, tokens) = {shape}"
        omega = validate.array("omega", omega, allowed, shape=shape)
        V = validate.semidefinite("V", V, self.indices, 0.0, True)
        key = validate.optional(validate.key, "key", key)
        # labels keep their precision: attention cannot be inverted from float32 labels
        dtype = getattr(y, "dtype", None)
        real = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
        label = validate.array("labels", y, "real numbers", dtype=dtype if real else None)
        self.check_labels(label[None])
        # one program a channel: outside jit each operation of jax.numpy would be compiled by itself
        batch = _respond(self, self.statistic(label[None]), omega[None], V, key)
        # a traced V cannot raise: the answer is marked instead
        valid = validate.valid((omega, V))
        return jax.tree.map(lambda x: jnp.where(valid, x[0], jnp.nan), batch)

    def response(
        self,
        Q: Array,
        V: Array,
        *,
        key: PRNGKeyArray | None,
        points: int,
        nets: int,
        tangents: bool = True,
    ) -> Response:
        r"""Average Σ_m g_m g_mᵀ over ω ~ N(0, Q ⊗ I), z ~ N(ω, V ⊗ I), y ~ p(y|z).

        Args:
            Q: Overlap (P, P); Q + V is the second moment of the signal.
            V: Covariance of the fields (P, P).
            key: Random key of the points.
            points: Points in each net, a power of two.
            nets: Independent scrambles of one net.
            tangents: Compute `jacobian`, too, from d response = E Σ ∂g dQ ∂gᵀ.

        Returns:
            A `Response`; NaN if Q or V is not finite or V is not positive definite.
        """
        if key is None:
            raise ValueError("key: got None; allowed: a key: jax.random.key(0).")
        # posteriors are kept apart from their average: thresholds need them one by one
        post, weight = weighted_posteriors(self, Q, V, key=key, points=points, nets=nets)
        return response_of(self, post, weight, nets, tangents)


@eqx.filter_jit
def _respond(
    channel: AbstractChannel, statistic: Array, omega: Array, V: Array, key: Key
) -> Posterior:
    return channel.respond(statistic, omega, V, key)


class ClosedFormChannel(AbstractChannel):
    """A channel with a log-partition in closed form; g and ∂g follow by autodiff."""

    @abc.abstractmethod
    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """Return log Z_out of one sample: statistic of its label, omega (P, M), V (P, P)."""

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Compute the posterior of a batch."""

        def one(sample: tuple[Array, Array]) -> tuple[Array, Array, Array]:
            y, w = sample
            value, g = jax.value_and_grad(self.log_partition, argnums=1)(y, w, V)
            # forward over reverse: log Z_out is one number, g has P M components
            return value, g, jax.jacfwd(jax.grad(self.log_partition, argnums=1), argnums=1)(y, w, V)

        return exact_posterior(*lax.map(one, (statistic, omega), batch_size=batch_size(omega)))

    @property
    def tolerance(self) -> Array:
        """Infinity: closed forms are exact."""
        return jnp.asarray(jnp.inf)


def batch_size(omega: Array) -> int:
    """How many samples are worked on at once."""
    # 4096 at once: some megabytes of intermediate values, and enough to fill vector units
    return min(4096, omega.shape[0])


def exact_posterior(value: Array, g: Array, dg: Array) -> Posterior:
    """The posteriors of log Z_out (N,), g and ∂g without errors but rounding."""
    zero = jnp.zeros_like(value)
    rounding = zero + jnp.finfo(value.dtype).eps
    return Posterior(value, g, dg, zero + jnp.inf, rounding, rounding)


class LevelsChannel(ClosedFormChannel):
    """Labels of few levels: without noise the `outcomes`; with it `weighted_posteriors` sums over
    the levels, too."""

    @abc.abstractmethod
    def levels_of(self, omega: Array, V: Array, noise: Array) -> tuple[Array, Array]:
        """Labels (n, levels) with the noise (n, noise_size), and the logarithms of the levels'
        probabilities at omega (n, P, M)."""

    @abc.abstractmethod
    def respond_to_each(self, labels: Array, omega: Array, V: Array) -> Posterior:
        """The posteriors (n K,) of several labels (n, K) at each omega (n, P, M): what they share
        is computed once."""


def check_label_shape(labels: Array, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless labels are finite and of shape (N, *shape)."""
    rows = f"rows of shape {shape}" if shape else "one number a sample, shape (N,)"
    check(labels.shape[1:] == shape, "labels", labels, rows)
    check(jnp.all(jnp.isfinite(labels)), "labels", labels, "finite numbers")


def check_outcomes(
    labels: Array, outcomes: Array | tuple[float, ...], known: Array, remedy: str = ""
) -> None:
    """Raise a ValueError that names the first label not `known` (N, ...) as one of the outcomes
    (K, ...), with the remedy for 0 and 1 in place of signs."""
    values = np.asarray(outcomes).tolist() if concrete(outcomes) else []
    signs = sorted(np.ravel(values)) == [-1.0, 1.0]
    allowed = "+1 and -1" if signs else f"only the outcomes {values}" if values else "the outcomes"
    bits = signs and concrete(labels) and bool(np.all((labels == 0) | (labels == 1)))
    got: Any = labels
    if concrete((labels, known)) and not bool(jnp.all(known)):
        first = jnp.argmin(jnp.all(known.reshape(len(known), -1), axis=1))
        got = f"the label {np.asarray(labels[first]).tolist()}"
    allowed += ": take 2 * labels - 1" if bits else remedy
    check(known, "labels", got, allowed)
