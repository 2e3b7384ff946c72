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
Prox = Callable[[Array, Array, Array], Array]  # proximal point from a label, ω and V
Law = Callable[[Array, Array], Array]  # label of a sample from teacher fields (P*, M) and noise


class ProximalOutput(eqx.Module):
    """g of a learner at the label of one sample, and its derivatives (or, with a leading axis, of a
    batch); for a posterior mean, `loss` and `envelope` are NaN.

    Attributes:
        g: (P, M).
        dg: (P, M, P, M).
        label_derivative: Σ_m ∂g_m/∂z*_m through the label, (P, P*); NaN if unknown.
        loss: ℓ_y at the proximal point.
        envelope: 𝓜.
        error: Norm of the gradient that remained (of a posterior, error of g).
        has_other_minimum: True if the search met more than one minimum.
    """

    g: Array
    dg: Array
    label_derivative: Array
    loss: Array
    envelope: Array
    error: Array
    has_other_minimum: Array


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
        """Return the value at τ."""
        return 0.5 * jnp.sum(tau**2) + self.loss(self.label, self.fields(tau))


def points_by_descent(
    loss: Loss, law: Law, teacher_fields: Array, noise: Array, omega: Array, V: Array, starts: Array
) -> ProximalOutput:
    """Find the proximal points of a batch by damped Newton steps.

    Args:
        loss: ℓ_y(z) of one sample, twice differentiable.
        law: Label of one sample from the teacher's fields and the noise.
        teacher_fields: z* (n, P*, M), for `label_derivative`.
        noise: The second argument of `law`, (n, ...).
        omega: ω (n, P, M).
        V: (P, P), positive definite.
        starts: Fields to begin at, (n, K, P, M).

    Returns:
        A `ProximalOutput` with a leading axis of samples.
    """
    root = jnp.linalg.cholesky(V)
    labels = jax.vmap(law)(teacher_fields, noise)
    # the descent has no derivative of its own: reverse mode would store all its steps
    still = frozen((loss, labels, omega, root))
    inverse = solve_triangular(still[3], jnp.eye(len(V), dtype=V.dtype), lower=True)
    begin = lax.stop_gradient(starts) - still[2][:, None]
    flat = jnp.einsum("pq,nkqm->nkpm", inverse, begin).reshape(*begin.shape[:2], -1)
    function = lambda sample, tau: _Problem(still[0], sample[0], sample[1], still[3])(tau)
    lowest = lowest_minima(function, (still[1], still[2]), flat)

    def one(z_star: Array, noise: Array, omega: Array, lowest: Minimum) -> ProximalOutput:
        label = law(z_star, noise)
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
        mixed = jax.jacfwd(pull)(z_star).reshape(tau.size, z_star.size)
        response = -(inverse @ mixed).reshape(shape + z_star.shape)
        value = loss(label, problem.fields(tau))
        return ProximalOutput(
            g=unwhiten @ tau.reshape(shape),
            dg=jnp.einsum("ap,pmqn,bq->ambn", unwhiten, bracket, unwhiten),
            label_derivative=jnp.einsum("ap,pmqm->aq", unwhiten, response),
            loss=value,
            envelope=value + 0.5 * jnp.sum(tau**2),
            error=lowest.residual,
            has_other_minimum=lowest.has_other_minimum,
        )

    return jax.vmap(one)(teacher_fields, noise, omega, lowest)


def points_by_formula(
    prox: Prox, loss: Loss, law: Law, teacher_fields: Array, noise: Array, omega: Array, V: Array
) -> ProximalOutput:
    """Find the proximal points of a batch by a formula, prox(y, ω, V): for losses with kinks.

    Args and Returns as `points_by_descent`; ∂g and ∂g/∂z* are derivatives of the formula.
    """
    # V is small, and shared by all samples
    inverse = jnp.linalg.inv(V)
    answer = lambda y, w: inverse @ (prox(y, w, V) - w)

    def one(z_star: Array, noise: Array, omega: Array) -> ProximalOutput:
        label = law(z_star, noise)
        z = prox(label, omega, V)
        g = answer(label, omega)
        slope = jax.jacfwd(lambda z: answer(law(z, noise), omega))(z_star)
        value = loss(label, z)
        return ProximalOutput(
            g=g,
            dg=jax.jacfwd(answer, argnums=1)(label, omega),
            label_derivative=jnp.einsum("pmqm->pq", slope),
            loss=value,
            envelope=value + 0.5 * jnp.sum(g * (z - omega)),
            error=jnp.zeros_like(value),
            has_other_minimum=jnp.zeros((), bool),
        )

    return jax.vmap(one)(teacher_fields, noise, omega)


def hinge_point(label: Array, omega: Array, V: Array) -> Array:
    """Return the proximal point of the hinge for ŷ = z: z = ω + y clip(1 - y ω, 0, V)."""
    return omega + label * jnp.clip(1.0 - label * omega, 0.0, V[0, 0])
