"""Students of the article's appendix: attention with an injected encoding, weighted tokens.

Equations here [ALSKZ25; theory: online-sgd, section 9], on the fields z (L,):

    injected   F(z + c): the encoding is c wᵀ with the student's weights w, and w·w = d leaves c
    weighted   σ(Σ_l a_l z_l), ‖a‖ = 1: tied weights, each token times a number that is not trained
    its flow   dm/dt = 2 Φ'(m) (1 - m²) - (γ/2) V m,   Φ = E g F,   V = 4 E (F - g)² σ'²   (c = 1)
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.models.sequence_single_index import HermiteSeries
from jaxsmi.sgd.hermite import activation_coefficients
from jaxsmi.sgd.networks import projected

__all__ = ["Injected", "Weighted", "flow_of_weighted", "random_weights"]


class Injected(eqx.Module):
    """F(z + c): a student with an encoding along its own weights, which is not even any more.

    Source: [ALSKZ25, appendix D].
    """

    student: Callable[[Array], Array]
    shift: Array

    def __call__(self, fields: Array) -> Array:
        """F(z + c)."""
        return self.student(fields + self.shift)


class Weighted(eqx.Module):
    """σ(Σ_l a_l z_l): a tied network whose tokens have fixed weights a, of norm one.

    Source: [ALSKZ25, appendix E.4].
    """

    weights: Array
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __call__(self, fields: Array) -> Array:
        """F(z)."""
        return self.activation(self.weights @ fields)


def random_weights(key: PRNGKeyArray, length: int) -> Array:
    """Weights a (L,) of the tokens, uniform on the sphere of radius one.

    Source: [ALSKZ25, appendix E.4].
    """
    drawn = jax.random.normal(key, (length,))
    return drawn / jnp.linalg.norm(drawn)


def flow_of_weighted(
    series: HermiteSeries, student: Weighted, m: float, times: np.ndarray, gamma: float
) -> np.ndarray:
    """m at increasing times t (T,) of a weighted network, from m at t = 0, in the limit of many
    dimensions (c = 1).

    Φ and V are finite sums: those of a network whose ρ_l are a_l m.

    Source: [theory: online-sgd, Eqs. (15) to (17), (29)].
    """
    sigma = student.activation
    square = series.squared()
    order, highest = (max(sum(n) for n in one.degrees) for one in (series, square))
    slope = lambda x: jax.grad(sigma)(x) ** 2
    c = activation_coefficients(sigma, order)
    from scipy.integrate import solve_ivp

    own = activation_coefficients(lambda x: slope(x) * sigma(x) ** 2, 0)[0]
    mixed = activation_coefficients(lambda x: slope(x) * sigma(x), order)
    slopes = activation_coefficients(slope, highest)

    @jax.jit
    def drift(m: Array) -> Array:
        rho = student.weights * m
        pull = jax.grad(lambda x: projected(series, student.weights * x, c))(m)
        V = 4.0 * (own - 2.0 * projected(series, rho, mixed) + projected(square, rho, slopes))
        return 2.0 * pull * (1.0 - m**2) - 0.5 * gamma * V * m

    solution = solve_ivp(
        lambda t, v: [float(drift(jnp.asarray(v[0])))],
        (0.0, float(times[-1])),
        [m],
        t_eval=times,
        rtol=1e-8,
        atol=1e-10,
    )
    return solution.y[0]
