r"""What an output channel is: p(y|z) seen through one Gaussian of fields.

Equations here [TCDKZ25; theory: multi-index, Eqs. (17) to (21), (42) to (46)]; ω, z (P, M),
V (P, P) shared by the M tokens:

    Z_out(y; ω, V) = ∫ Π_m N(z_m; ω_m, V) p(y|z) dz
    g  = ∂_ω log Z_out = V^{-1} (E[z|y,ω,V] - ω)                                   (P, M)
    ∂g = ∂²_ω log Z_out = V^{-1} Cov[z|y] V^{-1} - V^{-1} ⊗ I_M                    (P, M, P, M)
    response(Q) = E Σ_m g_m g_mᵀ,  ω = Q^{1/2} ξ, z = ω + V^{1/2} η, y ~ p(y|z)    (P, P)
                  = E_ω Σ_y Z_out(y; ω, V) Σ_m g_m g_mᵀ  where labels are few
    d response(Q)[dQ] = E Σ_{m,n} ∂g_{mn} dQ ∂g_{mn}ᵀ

A channel with a closed-form log Z_out needs to say nothing else (`ClosedFormChannel`): g and ∂g
come by autodiff.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import checked, numbers, one_label, optional, random_key
from jaxsmi.core.checks import Ability, check, positive_definite
from jaxsmi.numerics.averages import covariance_and_variance, quotient
from jaxsmi.numerics.linear_algebra import conjugation, sqrt_psd, symmetric
from jaxsmi.numerics.nets import randomised_gaussians
from jaxsmi.numerics.refining import Moments


class Posterior(eqx.Module):
    """Posterior of the fields of one sample (or, with a leading axis, of a batch).

    `log_partition`: log Z_out; `g` (P, M); `dg` (P, M, P, M); `ess`: effective number of
    integration nodes (inf for closed forms); `error`, `dg_error`: estimated errors of g and dg
    relative to 1 + max|g| and 1 + max|dg|; `halves`: g and dg of two independent halves of random
    nodes, (N, 2, ...), None where nodes are not random.
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
        """(g, ∂g) twice, of a batch, as the two factors of a product that is averaged.

        They are those of the halves of random nodes: the noise of one factor is independent of the
        other's and drops out, where that of a square would stay.
        """
        if self.halves is None:
            return (self.g, self.dg), (self.g, self.dg)
        g, dg = self.halves
        return (g[:, 0], dg[:, 0]), (g[:, 1], dg[:, 1])

    def mean(self, omega: Array, V: Array) -> Array:
        """Posterior mean of the fields, E[z|y] = ω + V g (one sample)."""
        return omega + V @ self.g


class Response(eqx.Module):
    """State evolution's output side at one overlap.

    `mean` (P, P): E Σ_m g gᵀ; `replicas` (R, P, P): the same from each randomisation of the outer
    points, whose spread is the statistical error; `jacobian` (P, P, P, P): d mean_{ab} / d Q_{cd};
    `log_partition` (R,): E log Z_out from each randomisation; `error`: largest accepted error of an
    inner integral; `inaccurate`: fraction of samples whose inner integral missed its tolerance.
    """

    mean: Array
    replicas: Array
    jacobian: Array
    log_partition: Array
    error: Array
    inaccurate: Array


def unwhiten(L: Array, tokens: int, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """g (S, P, M) = L^{-ᵀ}⟨τ⟩ and ∂g (S, P, M, P, M) = L^{-ᵀ}(Cov τ - I)L^{-1} from moments of
    τ = L^{-1}(z - ω)."""
    P = L.shape[0]
    M = tokens
    inverse = solve_triangular(L, jnp.eye(P, dtype=L.dtype), lower=True)
    centred = (covariance - jnp.eye(P * M, dtype=L.dtype)).reshape(-1, P, M, P, M)
    g = jnp.einsum("qp,sqm->spm", inverse, mean.reshape(-1, P, M))
    return g, jnp.einsum("ap,sambn,bq->spmqn", inverse, centred, inverse)


def as_posterior(moments: Moments, shape: tuple[int, ...]) -> Posterior:
    """A batch Posterior from integrated moments."""
    m = moments
    return Posterior(m.log_mass, m.g.reshape(shape), m.dg, m.ess, m.error, m.dg_error, m.halves)


class AbstractChannel(eqx.Module):
    """p(y|z) for fields z (P, M): draws labels, and says what a label tells about the fields.

    `explicit`: whether `response` is a function known in closed form, without
    random points: it then needs no key.
    """

    explicit: ClassVar[bool] = False

    indices: eqx.AbstractVar[int]
    tokens: eqx.AbstractVar[int]

    def refusal(self, ability: Ability) -> str | None:
        """Why the channel lacks an ability, as one sentence with its remedy; None where it has
        it."""
        del ability
        return None

    def noisy(self, noises: Array) -> Sequence[AbstractChannel]:
        """The same link with Gaussian label noise of these variances (K,), for the limit of
        vanishing noise; refused where the channel itself has a posterior, or there is no such
        limit."""
        del noises
        raise ValueError(
            "noises: got some for labels that have a posterior of their own; allowed: None."
        )

    @property
    def constraints(self) -> int | None:
        """How many combinations of a sample's fields a noiseless label fixes; None where they were
        not counted."""
        return None

    @property
    def outcomes(self) -> Array | None:
        """All labels that there are (K, ...), where they are few; None where they are a
        continuum."""
        return None

    @property
    def smooth(self) -> bool | Array:
        """False where labels jump with the fields (signs): derivatives along sampled labels then
        miss the jumps. An array where that must be looked at."""
        return True

    @property
    def noise_size(self) -> int:
        """How many standard normals a label needs beyond its fields: none, unless a channel says
        otherwise."""
        return 0

    @abc.abstractmethod
    def link(self, fields: Array) -> Array:
        """The label of one sample without its noise, from its fields (P, M)."""

    def label(self, fields: Array, noise: Array) -> Array:
        """The label of one sample from its fields (P, M) and `noise` (noise_size,) standard
        normals; noiseless: the link."""
        del noise
        return self.link(fields)

    @property
    def noiseless(self) -> Array:
        """Whether a label fixes combinations of the fields exactly, so that V may fall to 0 by a
        constant factor a step (a traced or concrete boolean): where nothing is drawn, unless a
        channel says otherwise."""
        return jnp.asarray(self.noise_size == 0)

    def observe(self, fields: Array, noise: Array) -> Array:
        """The statistic of a label drawn from fields (P, M): that of `label`, unless a channel
        knows a more direct way."""
        return self.statistic(self.label(fields, noise)[None])[0]

    @property
    def random_nodes(self) -> bool:
        """Whether `respond` integrates over random nodes, which its key draws."""
        return False

    @property
    def averaging(self) -> AbstractChannel:
        """The channel that averages over labels integrate with: itself, unless they need less of
        each posterior than message passing does."""
        return self

    @property
    def drawable(self) -> bool:
        """Whether labels can be drawn: not from a likelihood alone."""
        return True

    def replicated(self, omega: Array, V: Array, normal: Array, noise: Array) -> Array:
        """Labels (N, ...) of fields ω + V^{1/2} η: ω and η, standard `normal`, (N, P, M), V (P, P),
        and `noise` (N, noise_size)."""
        fields = omega + jnp.einsum("pq,nqm->npm", sqrt_psd(V), normal)
        return jax.vmap(self.label)(fields, noise)

    @abc.abstractmethod
    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError where concrete labels (N, ...) are outside the channel's range."""

    @abc.abstractmethod
    def statistic(self, labels: Array) -> Array:
        """What `respond` needs of the labels (N, ...), computed once per dataset."""

    @abc.abstractmethod
    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Posterior of a batch: statistic (N, ...), omega (N, P, M), V (P, P)."""

    @checked(
        y=one_label,
        omega=numbers("fields (P, M)"),
        V=numbers("a covariance (P, P)"),
        key=optional(random_key),
    )
    def posterior(
        self, y: ArrayLike, omega: ArrayLike, V: ArrayLike, key: PRNGKeyArray | None = None
    ) -> Posterior:
        r"""Posterior of the fields of one sample, with its error.

        log Z_out, g = V^{-1}(E[z|y] - ω) and ∂g.

        Args:
            y: One label.
            omega: Means of the fields (P, M).
            V: Their covariance (P, P), positive definite.
            key: For channels that sample. Default None.

        Returns:
            A `Posterior`.

        Raises:
            ValueError: For wrong shapes, non-finite numbers, a V that is not positive definite,
                a y out of range.

        Cost:
            Microseconds for closed forms; see the channel for the others.

        Source:
            [TCDKZ25], [theory: multi-index, Eqs. (17) to (20)].
        """
        dtype = theory_dtype()
        y = jnp.asarray(y)
        omega = jnp.asarray(omega, dtype)
        V = jnp.asarray(V, dtype)
        P = self.indices
        M = self.tokens
        allowed = f"an array of shape (indices, tokens) = {(P, M)}"
        check(omega.shape == (P, M), "omega", omega, allowed)
        check(V.shape == (P, P), "V", V, f"an array of shape (indices, indices) = {(P, P)}")
        check(jnp.all(jnp.isfinite(omega)), "omega", omega, "finite numbers")
        check(jnp.all(jnp.isfinite(V)), "V", V, "finite numbers")
        check(jnp.max(jnp.abs(V - V.T)) <= 1e-8 * jnp.max(jnp.abs(V)), "V", V, "a symmetric matrix")
        check(positive_definite(V), "V", V, "a positive definite covariance")
        self.check_labels(y[None])
        batch = _respond(self, self.statistic(y[None]), omega[None], V, key)
        valid = jnp.all(jnp.isfinite(omega)) & jnp.all(jnp.isfinite(V)) & positive_definite(V)
        return jax.tree.map(lambda x: jnp.where(valid, x[0], jnp.nan), batch)

    def draw(
        self, Q: Array, V: Array, *, key: PRNGKeyArray, samples: int, randomisations: int
    ) -> Posterior:
        """Posteriors of samples × randomisations labels drawn at overlap Q (see `response`),
        randomisation by randomisation."""
        P = self.indices
        M = self.tokens
        count = samples * randomisations
        points = randomised_gaussians(
            key, samples, randomisations, 2 * P * M + self.noise_size
        ).reshape(count, -1)
        xi, eta = (points[:, k * P * M : (k + 1) * P * M].reshape(count, P, M) for k in range(2))
        omega = jnp.einsum("pq,nqm->npm", sqrt_psd(Q), xi)
        # a lower triangular root keeps each index on its own coordinates of the lattice
        fields = omega + jnp.einsum("pq,nqm->npm", jnp.linalg.cholesky(V), eta)
        statistic = jax.vmap(self.observe)(fields, points[:, 2 * P * M :])
        return self._apart(statistic, omega, V, jax.random.fold_in(key, 1), randomisations)

    def _apart(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray, randomisations: int
    ) -> Posterior:
        """`respond`; of random nodes each randomisation has its own, so that its spread holds their
        error too: shared nodes would err alike everywhere, and the spread not know it."""
        channel = self.averaging
        if not self.random_nodes:
            return channel.respond(statistic, omega, V, key)
        split = lambda x: x.reshape(randomisations, -1, *x.shape[1:])
        keys = jax.random.split(key, randomisations)
        post = lax.map(
            lambda part: channel.respond(part[0], part[1], V, part[2]),
            (split(statistic), split(omega), keys),
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), post)

    def weighted(
        self, Q: Array, V: Array, *, key: PRNGKeyArray, samples: int, randomisations: int
    ) -> tuple[Posterior, Array]:
        """Posteriors at overlap Q with weights (n,) of mean one, randomisation by randomisation:
        `draw`, or, where labels are few, every label at every ω, by its probability Z_out."""
        outcomes = self.outcomes
        if outcomes is None:
            post = self.draw(Q, V, key=key, samples=samples, randomisations=randomisations)
            return post, jnp.ones_like(post.log_partition)
        P = self.indices
        M = self.tokens
        points = randomised_gaussians(key, samples, randomisations, P * M).reshape(-1, P, M)
        omega = jnp.repeat(jnp.einsum("pq,nqm->npm", sqrt_psd(Q), points), len(outcomes), axis=0)
        labels = jnp.tile(outcomes, (len(points), *[1] * (outcomes.ndim - 1)))
        statistic = self.statistic(labels)
        post = self._apart(statistic, omega, V, jax.random.fold_in(key, 1), randomisations)
        return post, len(outcomes) * jnp.exp(post.log_partition)

    def response(
        self,
        Q: Array,
        V: Array,
        *,
        key: PRNGKeyArray | None,
        samples: int,
        randomisations: int,
        tangents: bool = True,
    ) -> Response:
        r"""E Σ_m g_m g_mᵀ over ω ~ N(0, Q ⊗ I), z ~ N(ω, V ⊗ I), y ~ p(y|z), on common random
        numbers.

        The points depend on the key alone, so that Q -> response(Q) is one smooth map.

        Args:
            Q: Overlap (P, P); Q + V is the second moment of the signal.
            V: Covariance of the fields (P, P).
            key: Of the points.
            samples: Points in each randomisation, a power of two.
            randomisations: Independent scrambles of one net.
            tangents: Whether `jacobian` is computed, from d response = E Σ ∂g dQ ∂gᵀ.

        Returns:
            A `Response`; NaN where Q or V is not finite or V is not positive definite.

        Cost:
            samples × randomisations posteriors, where labels are few one for each of them.

        Source:
            [TCDKZ25], [theory: multi-index, Eqs. (42), (43), (46)].
        """
        if key is None:
            raise ValueError("key: got None; allowed: a key: jax.random.key(0).")
        post, weight = self.weighted(Q, V, key=key, samples=samples, randomisations=randomisations)
        return self.averaged(post, weight, randomisations, tangents)

    def averaged(
        self, post: Posterior, weight: Array, randomisations: int, tangents: bool = True
    ) -> Response:
        """`response` from posteriors that are there already, those of `weighted`."""
        P = self.indices
        each = weight[:, None, None]
        (g, dg), (g_too, dg_too) = post.factors
        outer = each * symmetric(jnp.einsum("npm,nqm->npq", g, g_too))
        curvature = -each * jnp.einsum("npmqm->npq", 0.5 * (dg + dg_too))
        outer, curvature = (x.reshape(randomisations, -1, P, P) for x in (outer, curvature))
        # with all labels at hand the two agree at every ω, and have nothing to control
        drawn = self.outcomes is None
        replicas = _controlled(outer, outer - curvature) if drawn else jnp.mean(outer, axis=1)
        jacobian = jnp.zeros((P, P, P, P), outer.dtype)
        if tangents:
            jacobian = conjugation(each[..., None, None] * dg, dg_too)
        values = jnp.where(weight > 0.0, weight * post.log_partition, 0.0)
        log_partition = jnp.mean(values.reshape(randomisations, -1), axis=1)
        missed = post.error > self.averaging.tolerance
        error = jnp.max(jnp.where(missed, 0.0, post.error))
        share = jnp.mean(missed * weight)
        return Response(jnp.mean(replicas, 0), replicas, jacobian, log_partition, error, share)

    def expected(self, Q: Array, V: Array, key: PRNGKeyArray) -> Array:
        """`response` on few points: what the precision "state" of `gamp` uses."""
        return self.response(Q, V, key=key, samples=512, randomisations=4, tangents=False).mean

    def mixed(self, root: Array) -> AbstractChannel:
        """The channel of the same labels as a law of fields z' (P, M) with z = z' root. Refuses
        where the law is no function that could be composed."""
        del root
        raise ValueError(
            f"model: got the channel {type(self).__name__}, which has its fields' tokens "
            "independent; allowed: its link as a function: smi.MultiIndex(link, noise=..)."
        )

    @property
    @abc.abstractmethod
    def tolerance(self) -> Array:
        """The error of g that counts as accurate (infinite for closed forms)."""


@eqx.filter_jit
def _respond(
    channel: AbstractChannel, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None
) -> Posterior:
    """`respond`, compiled once for each channel."""
    return channel.respond(statistic, omega, V, key)


class ClosedFormChannel(AbstractChannel):
    """A channel given by its log-partition for one sample; g, ∂g and the free entropy follow by
    autodiff."""

    @abc.abstractmethod
    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Z_out for one sample: statistic of its label, omega (P, M), V (P, P)."""

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Batch posterior; memory bounded by mapping over blocks of 4096 samples."""

        def one(sample: tuple[Array, Array]) -> tuple[Array, Array, Array]:
            y, w = sample
            value, g = jax.value_and_grad(self.log_partition, argnums=1)(y, w, V)
            return value, g, jax.jacfwd(jax.grad(self.log_partition, argnums=1), argnums=1)(y, w, V)

        value, g, dg = lax.map(one, (statistic, omega), batch_size=min(4096, omega.shape[0]))
        zero = jnp.zeros_like(value)
        rounding = zero + jnp.finfo(value.dtype).eps
        return Posterior(value, g, dg, zero + jnp.inf, rounding, rounding)

    @property
    def tolerance(self) -> Array:
        """Closed forms are exact."""
        return jnp.asarray(jnp.inf)


def _controlled(values: Array, control: Array) -> Array:
    """Means (R, ...) of values (R, n, ...) with a control variate of mean zero (E Σ g gᵀ = -E Σ ∂g,
    so their difference).

    The coefficient of each randomisation is regressed on the others, which keeps the mean unbiased.
    Where the two are equivalent (linear channel) the result is exact.
    """
    covariance, variance = (
        jnp.sum(x, 0) - x for x in covariance_and_variance(values, control, axis=1)
    )
    slope = lax.stop_gradient(quotient(covariance, variance))
    return jnp.mean(values, axis=1) - slope * jnp.mean(control, axis=1)
