"""TODO thresholds.branch."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.codes import Result
from jaxsmi.numerics import fixed_point
from jaxsmi.thresholds.growth import Growth, growth

# Staircase -----------------------------------------------------------------------------------------------------------------

SCRAMBLES = 4  # nets inside one replica of a threshold


DEEP = 1e-7  # V of directions that are recovered perfectly, in units of S: small enough for their signs to be known


class Branch(eqx.Module):
    """State evolution with only the directions U (P, k) learned, at one α, on V restricted to them (k, k)."""

    model: Any
    U: Array
    alpha: Array
    key: Array
    samples: int = eqx.field(static=True)
    randomisations: int = eqx.field(static=True)

    def whole(self, V: Array) -> tuple[Array, Array]:
        """Q and V (P, P) of V on the learned directions."""
        S = self.model.prior.second_moment(self.model.indices)
        Q = self.U @ (self.U.T @ S @ self.U - V) @ self.U.T
        return Q, S - Q

    def map_of(self, V: Array) -> fixed_point.Evaluation:
        """V ↦ prior.mmse(α response) on the learned directions, with Jacobian and replicas."""
        U, prior = self.U, self.model.prior
        Q, whole = self.whole(0.5 * (V + V.T))
        response = self.model.channel.response(
            Q, whole, key=self.key, samples=self.samples, randomisations=self.randomisations
        )

        def mmse(Rk: Array) -> Array:
            return U.T @ prior.mmse(self.alpha * U @ (0.5 * (Rk + Rk.T)) @ U.T) @ U

        value, pull = jax.linearize(mmse, U.T @ response.mean @ U)
        inner = jnp.einsum("pi,qj,pqrs,rk,sl->ijkl", U, U, response.jacobian, U, U)
        J = -jax.vmap(jax.vmap(pull, 2, 2), 3, 3)(inner)
        replicas = value + jax.vmap(lambda R: pull(U.T @ (R - response.mean) @ U))(
            response.replicas
        )
        return fixed_point.Evaluation(value, J, replicas, (response.inaccurate, response.error))

    def fixed_point(self, V0: Array, max_steps: int, tolerance: float) -> fixed_point.FixedPoint:
        """From V0 (k, k); perfectly recovered directions are followed down to `DEEP`."""
        S = self.U.T @ self.model.prior.second_moment(self.model.indices) @ self.U
        end = fixed_point.solve(
            self.map_of, V0, S, max_steps=max_steps, tolerance=jnp.asarray(tolerance, S.dtype), newton=True,
            geometric=self.model.channel.noiseless,
        )  # fmt: skip
        deep = end.V * jnp.minimum(DEEP * jnp.trace(S) / jnp.trace(end.V), 1.0)
        return eqx.tree_at(
            lambda e: e.V, end, jnp.where(end.result == Result.RECOVERED, deep, end.V)
        )

    def growth(self, V: Array, X: Array | None = None) -> Growth:
        """Growth of the directions not learned."""
        Q, whole = self.whole(V)
        rest = jnp.eye(len(Q), dtype=Q.dtype) - self.U @ self.U.T
        return growth(self.model, Q, whole, rest, self.key, self.samples, self.randomisations, X)
