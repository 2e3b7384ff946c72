r"""Risk and gradient noise of networks whose target is a Hermite series, as finite sums.

Equations here [theory: online-sgd, Eqs. (15) to (17)], u ~ N(0, 1) with E z*_l u = ρ_l, c_k = E
φ(u) h_k(u):

    E g(z*) φ(u) = Σ_n ĝ_n √(|n|!/n!) c_|n| Π_l ρ_l^{n_l},   ρ_l = m_l/√L
    R = c {‖ĝ‖² + E σ² - 2 Φ(m)},   Φ(m) = E g F
    V = 4c² {E σ'² σ² - 2 E g σ'² σ + E g² σ'²}
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.models.sequence_single_index import HermiteSeries, Network, SequenceSingleIndex
from jaxsmi.sgd.hermite import activation_coefficients


def is_finite_sum(model: SequenceSingleIndex) -> bool:
    """Whether the model is a network whose target is a Hermite series."""
    return isinstance(model.student, Network) and isinstance(model.target, HermiteSeries)


def _parts(model: SequenceSingleIndex) -> tuple[HermiteSeries, Network]:
    """Target and student of such a model."""
    assert isinstance(model.target, HermiteSeries)
    assert isinstance(model.student, Network)
    return model.target, model.student


def projected(series: HermiteSeries, rho: Array, c: Array) -> Array:
    """E g(z*) φ(u) from the coefficients c_k = E φ h_k of a function of one number, rho (L,)."""
    factorial = np.cumprod([1.0, *range(1, len(c) + 1)])
    powers = jnp.stack([jnp.ones_like(rho)] + [rho] * (len(c) - 1)).cumprod(axis=0)  # (k, L)
    each = jnp.prod(jnp.take_along_axis(powers, jnp.asarray(series.degrees), axis=0), axis=1)
    size = [np.sqrt(factorial[sum(n)] / np.prod(factorial[list(n)])) for n in series.degrees]
    orders = np.array([sum(n) for n in series.degrees])
    return jnp.sum(series.orthonormal * jnp.asarray(size) * c[orders] * each)


def _highest_order(series: HermiteSeries) -> int:
    return max(sum(n) for n in series.degrees)


def network_overlap(model: SequenceSingleIndex, v: Array) -> Array:
    """Φ(m) = E g F at the overlaps v."""
    series, network = _parts(model)
    rho = model.split(v)[0] / np.sqrt(model.length)
    c = activation_coefficients(network.activation, _highest_order(series))
    return projected(series, rho, c)


def network_risk(model: SequenceSingleIndex, v: Array) -> Array:
    """R at the overlaps v."""
    series, network = _parts(model)
    target = jnp.sum(series.orthonormal**2)
    student = activation_coefficients(lambda x: network.activation(x) ** 2, 0)[0]
    return model.loss_factor * (target + student - 2.0 * network_overlap(model, v))


def network_noise(model: SequenceSingleIndex, v: Array) -> Array:
    """V at the overlaps v, from the series of g and of g²."""
    series, network = _parts(model)
    rho = model.split(v)[0] / np.sqrt(model.length)
    activation = network.activation
    square = series.squared()
    slope = lambda x: jax.grad(activation)(x) ** 2
    student = activation_coefficients(lambda x: slope(x) * activation(x) ** 2, 0)[0]
    c = activation_coefficients(lambda x: slope(x) * activation(x), _highest_order(series))
    cross = projected(series, rho, c)
    target = projected(square, rho, activation_coefficients(slope, _highest_order(square)))
    return 4.0 * model.loss_factor**2 * (student - 2.0 * cross + target)
