r"""Output channels: how labels arise from fields, and what a label says about its fields.

Equations here [TCDKZ25; theory: multi-index, Eqs. (17) to (21)]; ω, z (P, M), V (P, P) shared by
the M tokens:

    Z_out(y; ω, V) = ∫ Π_m N(z_m; ω_m, V) p(y|z) dz
    g  = ∂_ω log Z_out = V^{-1} (E[z|y,ω,V] - ω)                                   (P, M)
    ∂g = ∂²_ω log Z_out = V^{-1} Cov[z|y] V^{-1} - V^{-1} ⊗ I_M                    (P, M, P, M)

A channel with a closed-form log Z_out needs to state nothing else (`ClosedFormChannel`): g and ∂g
come by autodiff. Averages over labels are in posterior.py.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.jumps import continuous
from jaxsmi.channels.posterior import Key, Posterior, Response, response_of, weighted_posteriors
from jaxsmi.core import validate
from jaxsmi.core.validate import check


class AbstractLabels(eqx.Module):
    """Labels of fields z (P, M), P `indices` and M `tokens`: a link, and noise."""

    indices: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)

    @property
    def unsupported_reason(self) -> str | None:
        """Why there is no posterior, as one sentence with its remedy; None where there is one."""
        return None

    def noisy(self, noises: Array) -> Sequence[AbstractChannel]:
        """The same link with Gaussian label noise of these variances (K,), for the limit of
        vanishing noise; a ValueError where there is no such limit."""
        del noises
        raise ValueError("noises: got some for labels that have a posterior; allowed: None.")

    @property
    def constraints(self) -> int | None:
        """Number of combinations of a sample's fields that a noiseless label fixes; None where it
        is not known."""
        return None

    @property
    def outcomes(self) -> Array | None:
        """All labels (K, ...), where they are finitely many; None for a continuum."""
        return None

    @property
    def pathwise(self) -> bool | Array:
        """The derivative of an average over labels is the average of the derivatives at its points:
        labels are summed over, or move continuously with the fields. Derivatives in numbers of the
        model are NaN where this is false, as points miss jumps. A channel that does not state it is
        examined numerically."""
        if self.outcomes is not None:
            return True
        return continuous(self.link, self.indices, self.tokens)

    @property
    def noise_size(self) -> int:
        """Number of standard normals that a label needs beside its fields."""
        return 0

    @property
    def noiseless(self) -> Array:
        """A label fixes combinations of the fields exactly, so that V may fall to 0 by a constant
        factor a step (a boolean, traced or not)."""
        return jnp.asarray(self.noise_size == 0)

    @property
    def drawable(self) -> bool:
        """Labels can be drawn (not from a likelihood without a sampler)."""
        return True

    @abc.abstractmethod
    def link(self, fields: Array) -> Array:
        """The label of one sample without its noise, from its fields (P, M)."""

    def label(self, fields: Array, noise: Array) -> Array:
        """The label of one sample from its fields (P, M) and `noise` (noise_size,) standard
        normals."""
        del noise
        return self.link(fields)


class AbstractChannel(AbstractLabels):
    """p(y|z) with the posterior of the fields z (P, M) of a label.

    `explicit`: `response` is a function in closed form, without random points and a key.
    """

    explicit: ClassVar[bool] = False

    @abc.abstractmethod
    def check_labels(self, labels: Array) -> None:
        """Raise a ValueError where concrete labels (N, ...) are outside the channel's range."""

    def statistic(self, labels: Array) -> Array:
        """The function of the labels (N, ...) that `respond` takes, computed once per dataset; the
        labels themselves unless a channel says otherwise."""
        return labels

    def observe(self, fields: Array, noise: Array) -> Array:
        """The statistic of a label drawn from fields (P, M)."""
        return self.statistic(self.label(fields, noise)[None])[0]

    @abc.abstractmethod
    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Posterior of a batch: statistic (N, ...), omega (N, P, M), V (P, P)."""

    @property
    @abc.abstractmethod
    def tolerance(self) -> Array:
        """The error of g that counts as accurate (infinite for closed forms)."""

    @property
    def random_nodes(self) -> bool:
        """`respond` integrates over random nodes, which its key draws."""
        return False

    @property
    def averaging(self) -> AbstractChannel:
        """The channel that averages over labels integrate with: they may need less accuracy of each
        posterior than message passing does."""
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
        square = (self.indices, self.indices)
        allowed = f"an array of shape (indices, indices) = {square}"
        V = validate.array("V", V, allowed, shape=square)
        # 1e-8: a covariance that a user computed is symmetric to rounding only
        check(jnp.max(jnp.abs(V - V.T)) <= 1e-8 * jnp.max(jnp.abs(V)), "V", V, "a symmetric matrix")
        proper = validate.positive_definite(V)
        check(proper, "V", V, "a positive definite covariance")
        key = validate.optional(validate.key, "key", key)
        # in their own precision: attention cannot be inverted from labels that were float32
        dtype = getattr(y, "dtype", None)
        real = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
        label = validate.array("labels", y, "real numbers", dtype=dtype if real else None)
        self.check_labels(label[None])
        # one program a channel: outside jit each operation of jax.numpy would be compiled by itself
        batch = _respond(self, self.statistic(label[None]), omega[None], V, key)
        # a traced V cannot raise: the answer is marked instead
        valid = proper & validate.valid((omega, V))
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
        r"""E Σ_m g_m g_mᵀ over ω ~ N(0, Q ⊗ I), z ~ N(ω, V ⊗ I), y ~ p(y|z).

        Args:
            Q: Overlap (P, P); Q + V is the second moment of the signal.
            V: Covariance of the fields (P, P).
            key: Of the points.
            points: Points in each net, a power of two.
            nets: Independent scrambles of one net.
            tangents: Compute `jacobian`, too, from d response = E Σ ∂g dQ ∂gᵀ.

        Returns:
            A `Response`; NaN where Q or V is not finite or V is not positive definite.
        """
        if key is None:
            raise ValueError("key: got None; allowed: a key: jax.random.key(0).")
        # posteriors are kept apart from their average: thresholds need them one by one
        post, weight = weighted_posteriors(self, Q, V, key=key, points=points, nets=nets)
        return response_of(self, post, weight, nets, tangents)

    def expected(self, Q: Array, V: Array, key: PRNGKeyArray) -> Array:
        """`response` on few points, for the precision "state" of message passing."""
        return self.response(Q, V, key=key, points=512, nets=4, tangents=False).mean


@eqx.filter_jit
def _respond(
    channel: AbstractChannel, statistic: Array, omega: Array, V: Array, key: Key
) -> Posterior:
    return channel.respond(statistic, omega, V, key)


class ClosedFormChannel(AbstractChannel):
    """A channel with a log-partition in closed form; g and ∂g follow by autodiff."""

    @abc.abstractmethod
    def log_partition(self, statistic: Array, omega: Array, V: Array) -> Array:
        """log Z_out for one sample: statistic of its label, omega (P, M), V (P, P)."""

    def respond(self, statistic: Array, omega: Array, V: Array, key: Key = None) -> Posterior:
        """Batch posterior."""

        def one(sample: tuple[Array, Array]) -> tuple[Array, Array, Array]:
            y, w = sample
            value, g = jax.value_and_grad(self.log_partition, argnums=1)(y, w, V)
            # forward over reverse: log Z_out is one number, g has P M components
            return value, g, jax.jacfwd(jax.grad(self.log_partition, argnums=1), argnums=1)(y, w, V)

        # 4096 at once: some megabytes of intermediate values, and enough to fill vector units
        value, g, dg = lax.map(one, (statistic, omega), batch_size=min(4096, omega.shape[0]))
        zero = jnp.zeros_like(value)
        rounding = zero + jnp.finfo(value.dtype).eps
        return Posterior(value, g, dg, zero + jnp.inf, rounding, rounding)

    @property
    def tolerance(self) -> Array:
        """Closed forms are exact."""
        return jnp.asarray(jnp.inf)


def check_label_shape(labels: Array, shape: tuple[int, ...]) -> None:
    """Raise a ValueError unless labels are finite and of shape (N, *shape)."""
    rows = f"rows of shape {shape}" if shape else "one number a sample, shape (N,)"
    check(labels.shape[1:] == shape, "labels", labels, rows)
    check(jnp.all(jnp.isfinite(labels)), "labels", labels, "finite numbers")
