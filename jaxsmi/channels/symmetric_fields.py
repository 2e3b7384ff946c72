r"""A channel of independent fields, as one of a symmetric matrix of scores.

Equations here [theory: attention-indexed, Eqs. (49) to (51)]: v = Bᵀ h are the coordinates of a
symmetric h (T, T) under the Frobenius product, v_aa = h_aa, v_ab = √2 h_ab (a < b). Given ω they
are M = T(T+1)/2 independent fields of variance 2V, of which any channel of one index knows g_v:

    Γ = 2 B g_v(y; Bᵀω, 2V),   f(q) = 4 E‖g_v‖² at (2q, 2V),   Ψ unchanged

T = 1 is the field of a symmetric matrix seen through symmetric Gaussian inputs.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel, Posterior, Response
from jaxsmi.core.checks import Ability
from jaxsmi.numerics.linear_algebra import symmetric_basis

__all__ = ["SymmetricFields", "frame"]


def frame(size: int) -> np.ndarray:
    """B (T², M): an orthonormal basis of the symmetric matrices (T, T), one a column."""
    return symmetric_basis(size).reshape(-1, size * size).T


class SymmetricFields(AbstractChannel):
    """What `inner`, a channel of one index and T(T+1)/2 tokens, says of scores (T, T) (module
    docstring); their field vector has T² components."""

    inner: AbstractChannel
    size: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    indices: int = eqx.field(static=True)

    def __init__(self, inner: AbstractChannel, size: int):
        self.inner = inner
        self.size = size
        self.tokens = size * size
        self.indices = 1

    def fields(self, scores: Array) -> Array:
        """v (1, M) of scores (T, T), or of their field vector (1, T²)."""
        basis = jnp.asarray(frame(self.size), scores.dtype)
        return (scores.reshape(-1) @ basis)[None]

    def refusal(self, ability: Ability) -> str | None:
        """That of `inner`."""
        return self.inner.refusal(ability)

    @property
    def constraints(self) -> int | None:
        """Those of `inner`."""
        return self.inner.constraints

    @property
    def outcomes(self) -> Array | None:
        """Those of `inner`."""
        return self.inner.outcomes

    @property
    def smooth(self) -> bool | Array:
        """Whether labels of `inner` are."""
        return self.inner.smooth

    @property
    def noise_size(self) -> int:
        """That of `inner`."""
        return self.inner.noise_size

    @property
    def noiseless(self) -> Array:
        """Whether `inner` is."""
        return self.inner.noiseless

    @property
    def random_nodes(self) -> bool:
        """Whether those of `inner` are."""
        return self.inner.random_nodes

    @property
    def drawable(self) -> bool:
        """Whether labels of `inner` are."""
        return self.inner.drawable

    @property
    def tolerance(self) -> Array:
        """That of `inner`."""
        return self.inner.tolerance

    def link(self, fields: Array) -> Array:
        """The label of scores without its noise."""
        return self.inner.link(self.fields(fields))

    def label(self, fields: Array, noise: Array) -> Array:
        """The label of scores."""
        return self.inner.label(self.fields(fields), noise)

    def check_labels(self, labels: Array) -> None:
        """As `inner`."""
        self.inner.check_labels(labels)

    def statistic(self, labels: Array) -> Array:
        """That of `inner`."""
        return self.inner.statistic(labels)

    def respond(
        self, statistic: Array, omega: Array, V: Array, key: PRNGKeyArray | None = None
    ) -> Posterior:
        """Γ = 2 B g_v as the engine's fields: ω (N, 1, T²), V (1, 1)."""
        basis = jnp.asarray(frame(self.size), omega.dtype)
        post = self.inner.respond(statistic, omega @ basis, 2.0 * V, key)
        g = 2.0 * post.g @ basis.T
        dg = 2.0 * jnp.einsum("am,npmqk,bk->npaqb", basis, post.dg, basis)
        return Posterior(post.log_partition, g, dg, post.ess, post.error, post.dg_error)

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
        """f(q) = 4 E‖g_v‖² at (2q, 2V)."""
        inner = self.inner.response(
            2.0 * Q,
            2.0 * V,
            key=key,
            samples=samples,
            randomisations=randomisations,
            tangents=tangents,
        )
        return Response(
            4.0 * inner.mean,
            4.0 * inner.replicas,
            8.0 * inner.jacobian,
            inner.log_partition,
            inner.error,
            inner.inaccurate,
        )
