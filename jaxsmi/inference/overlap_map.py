r"""The map whose iteration is state evolution: one step of undamped message passing as D → ∞.

Equations here [TCDKZ25; theory: multi-index, Eqs. (43), (45), (46), (55)], S the second moment of
the prior, V = S - Q, Λ the precision of side information:

    V ↦ prior.mmse(Q̂),   Q̂ = α channel.response(S - V) + Λ

With an orthonormal basis U (P, k) of the learned directions only they carry an overlap, and the
map is one of the (k, k) matrix V on them:

    Q = U (Uᵀ S U - V) Uᵀ,   V ↦ Uᵀ prior.mmse(U Q̂ Uᵀ) U,   Q̂ = α Uᵀ channel.response(Q) U + Λ
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import Response
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics import fixed_point
from jaxsmi.numerics.linear_algebra import symmetric

__all__ = ["OverlapMap"]


class OverlapMap(eqx.Module):
    """State evolution of a model at one α, as a map of V (k, k) on the learned directions.

    Args:
        model: A model whose channel has a response.
        alpha: Sample complexity N/D, an array of no dimension.
        key: Random key of the outer average: the map is one smooth function for each key.
        points: Points in each net of the outer average.
        nets: Independent nets, R; the map returns R replicas of its value.
        side_information: Precision Λ that is added to Q̂, times the identity. Default 0.
        learned: Orthonormal basis U (P, k) of the learned directions. Default all of them.
    """

    model: AbstractModel
    alpha: Array
    key: PRNGKeyArray
    points: int = eqx.field(static=True)
    nets: int = eqx.field(static=True)
    side_information: Array | float = 0.0
    learned: Array | None = None

    def restrict(self, X: Array) -> Array:
        """Uᵀ X U: a (P, P) matrix on the learned directions."""
        return X if self.learned is None else self.learned.T @ X @ self.learned

    def embed(self, X: Array) -> Array:
        """U X Uᵀ: a matrix on the learned directions, in all of them."""
        return X if self.learned is None else self.learned @ X @ self.learned.T

    @property
    def second_moment(self) -> Array:
        """S on the learned directions (k, k): the largest V."""
        return self.restrict(self.model.prior.second_moment(self.model.indices))

    def overlaps(self, V: Array) -> tuple[Array, Array]:
        """Q and S - Q, both (P, P), that belong to V on the learned directions."""
        Q = self.embed(self.second_moment - V)
        if self.learned is None:
            return Q, V
        return Q, self.model.prior.second_moment(self.model.indices) - Q

    def evaluate(self, V: Array) -> fixed_point.Evaluation:
        """The value of the map at V, its Jacobian, and one replica for each net.

        The Jacobian is that of the infinite average, d response[dQ] = E Σ ∂g dQ ∂gᵀ.
        """
        Q, covariance = self.overlaps(symmetric(V))
        response = self.model.channel.response(
            Q,
            covariance,
            key=self.key,
            points=self.points,
            nets=self.nets,
        )
        return self.returned(V, response)

    def returned(self, V: Array, response: Response) -> fixed_point.Evaluation:
        """`evaluate`, from the channel's response at V."""
        prior = self.model.prior
        side = self.side_information * jnp.eye(V.shape[0], dtype=V.dtype)

        def precision(replica: Array) -> Array:
            return self.alpha * symmetric(self.restrict(replica)) + side

        Qhat = precision(response.mean)
        value, pull = jax.linearize(lambda A: self.restrict(prior.mmse(self.embed(A))), Qhat)
        jacobian = self.alpha * self._restrict_tensor(response.jacobian)
        return fixed_point.Evaluation(
            value,
            -jax.vmap(jax.vmap(pull, 2, 2), 3, 3)(jacobian),  # dQ = -dV
            value + jax.vmap(lambda R: pull(precision(R) - Qhat))(response.replicas),
            response.inaccurate,
        )

    def iteration(
        self, V0: Array, *, max_steps: int, tolerance: Array, newton: bool = True
    ) -> fixed_point.Iteration:
        """The iteration of the map from V0 (k, k)."""
        return fixed_point.Iteration(
            map_of=self.evaluate,
            V0=V0,
            scale=self.second_moment,
            tolerance=tolerance,
            geometric=self.model.channel.noiseless,
            newton=newton,
            max_steps=max_steps,
        )

    def _restrict_tensor(self, J: Array) -> Array:
        """A map of (P, P) matrices on the learned directions, (k, k, k, k)."""
        U = self.learned
        return J if U is None else jnp.einsum("pi,qj,pqrs,rk,sl->ijkl", U, U, J, U, U)
