r"""The proximal channel: the fields of a label for a learner that minimises a loss.

Equations here [Cui24; theory: empirical-risk, Eqs. (3) to (5)], for a loss ℓ_y(z) of the fields
z (P, M) of one sample, V = L Lᵀ and τ = L^{-1}(z - ω):

    prox(y; ω, V) = argmin_z ½ Σ_m (z_m - ω_m)ᵀ V^{-1} (z_m - ω_m) + ℓ_y(z);   𝓜 the minimum
    g  = V^{-1}(prox - ω) = L^{-ᵀ} τ = -∂_ω 𝓜                                     (P, M)
    ∂g = L^{-ᵀ} [(I + Lᵀ H L)^{-1} - I] L^{-1},   H = ∂²ℓ_y(prox)                   (P, M, P, M)
    ∂g/∂z* = -L^{-ᵀ} (I + Lᵀ H L)^{-1} Lᵀ ∂_z ∂_{z*} ℓ_{y(z*)}                      (P, M, P*, M)

The branch is the global minimum, by several starts (numerics/minimum.py). Derivatives in every
number (ω, V, the label, the parameters of link and loss) come by the implicit function theorem: one
Newton step from the minimum, which does not move it, carries them.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from jaxsmi.core.arrays import frozen
from jaxsmi.numerics.linear_algebra import solve_definite
from jaxsmi.numerics.minimum import Minimum, hessian, lowest_minima

Loss = Callable[[Array, Array], Array]  # ℓ_y(z) of a label and of its fields
LabelOf = Callable[[Array, Array], Array]  # the label of teacher fields (P*, M) and its noise


class Reply(eqx.Module):
    """The response of a learner to the label of one sample (or, with a leading axis, of a batch).

    Attributes:
        g: (P, M).
        dg: (P, M, P, M).
        slope: Σ_m ∂g_m/∂z*_m through the label, (P, P*); NaN where the learner does not know it.
        loss: ℓ_y at the proximal point; NaN for a posterior.
        envelope: 𝓜, likewise.
        error: The gradient that remained.
        second: Another minimum was met.
    """

    g: Array
    dg: Array
    slope: Array
    loss: Array
    envelope: Array
    error: Array
    second: Array


class _Problem(eqx.Module):
    """½|τ|² + ℓ_y(ω + L τ), as a function of τ (P M,)."""

    loss: Loss
    label: Array
    omega: Array
    root: Array

    def fields(self, tau: Array) -> Array:
        """z = ω + L τ."""
        return self.omega + self.root @ tau.reshape(self.omega.shape)

    def __call__(self, tau: Array) -> Array:
        """The function itself."""
        return 0.5 * jnp.sum(tau**2) + self.loss(self.label, self.fields(tau))


def points_by_descent(
    loss: Loss, law: LabelOf, goal: Array, noise: Array, omega: Array, V: Array, starts: Array
) -> Reply:
    """The proximal points of a batch by damped Newton steps.

    Args:
        loss: ℓ_y(z) of one sample, twice differentiable.
        law: The label of the teacher's fields and its noise, of one sample.
        goal: z* (n, P*, M), for `slope`.
        noise: The second argument of `law`, (n, ...).
        omega: ω (n, P, M).
        V: (P, P), positive definite.
        starts: Fields to begin at, (n, K, P, M).

    Returns:
        A `Reply` with a leading axis of samples.
    """
    root = jnp.linalg.cholesky(V)
    labels = jax.vmap(law)(goal, noise)
    # the descent has no derivative of its own: reverse mode would store all its steps
    still = frozen((loss, labels, omega, root))
    inverse = solve_triangular(still[3], jnp.eye(len(V), dtype=V.dtype), lower=True)
    begin = lax.stop_gradient(starts) - still[2][:, None]
    flat = jnp.einsum("pq,nkqm->nkpm", inverse, begin).reshape(*begin.shape[:2], -1)
    function = lambda sample, tau: _Problem(still[0], sample[0], sample[1], still[3])(tau)
    lowest = lowest_minima(function, (still[1], still[2]), flat)

    def one(goal: Array, noise: Array, omega: Array, lowest: Minimum) -> Reply:
        label = law(goal, noise)
        problem = _Problem(loss, label, omega, root)
        # derivatives come by one Newton step from the frozen minimum, not through the descent
        fixed = frozen(problem)
        identity = jnp.eye(lowest.position.size, dtype=omega.dtype)
        inverse, _ = solve_definite(hessian(fixed, lowest.position), identity)
        # zero but for rounding, and for derivatives
        tau = lowest.position - lax.stop_gradient(inverse) @ jax.grad(problem)(lowest.position)
        inverse, _ = solve_definite(hessian(problem, tau), identity)
        unwhiten = solve_triangular(root, jnp.eye(len(root), dtype=root.dtype), lower=True, trans=1)
        shape = omega.shape
        bracket = (inverse - identity).reshape(shape + shape)
        # the label moves with the teacher, at a fixed point of the learner
        pull = lambda z: jax.grad(_Problem(loss, law(z, noise), omega, root))(tau)
        mixed = jax.jacfwd(pull)(goal).reshape(tau.size, goal.size)
        response = -(inverse @ mixed).reshape(shape + goal.shape)
        value = loss(label, problem.fields(tau))
        return Reply(
            g=unwhiten @ tau.reshape(shape),
            dg=jnp.einsum("ap,pmqn,bq->ambn", unwhiten, bracket, unwhiten),
            slope=jnp.einsum("ap,pmqm->aq", unwhiten, response),
            loss=value,
            envelope=value + 0.5 * jnp.sum(tau**2),
            error=lowest.residual,
            second=lowest.second,
        )

    return jax.vmap(one)(goal, noise, omega, lowest)


def points_by_formula(
    prox: Callable[[Array, Array, Array], Array],
    loss: Loss,
    law: LabelOf,
    goal: Array,
    noise: Array,
    omega: Array,
    V: Array,
) -> Reply:
    """The proximal points of a batch by a formula, prox(y, ω, V): for losses with kinks.

    Args and Returns as `points_by_descent`; ∂g and the slope are derivatives of the formula.
    """
    # V is small, and shared by all samples
    inverse = jnp.linalg.inv(V)
    answer = lambda y, w: inverse @ (prox(y, w, V) - w)

    def one(goal: Array, noise: Array, omega: Array) -> Reply:
        label = law(goal, noise)
        z = prox(label, omega, V)
        g = answer(label, omega)
        slope = jax.jacfwd(lambda goal: answer(law(goal, noise), omega))(goal)
        value = loss(label, z)
        return Reply(
            g=g,
            dg=jax.jacfwd(answer, argnums=1)(label, omega),
            slope=jnp.einsum("pmqm->pq", slope),
            loss=value,
            envelope=value + 0.5 * jnp.sum(g * (z - omega)),
            error=jnp.zeros_like(value),
            second=jnp.zeros((), bool),
        )

    return jax.vmap(one)(goal, noise, omega)


def hinge_point(label: Array, omega: Array, V: Array) -> Array:
    """The proximal point of the hinge for one index, ŷ = z: z = ω + y clip(1 - y ω, 0, V)."""
    return omega + label * jnp.clip(1.0 - label * omega, 0.0, V[0, 0])
