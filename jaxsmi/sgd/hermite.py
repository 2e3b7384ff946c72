r"""Hermite coefficients of functions of the fields [theory: online-sgd, Eq. (19)].

    ĝ_n = E[g(ξ) h_n(ξ)],   h_n = Π_l h_{n_l},   orthonormal under N(0, I_L)

A Hermite series has its own; those of a tied network are, with c_k = E σ(N) h_k(N),

    F̂_n = √(|n|!/n!) c_|n| L^{-|n|/2}

and averages of a series g with a function φ of one number u, E z*_l u = ρ_l, finite sums (Eq. 15):

    E g(z*) φ(u) = Σ_n ĝ_n √(|n|!/n!) c_|n| Π_l ρ_l^{n_l}

The coefficients of any other JAX function are integrals on a grid, of up to four tokens.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.functions import as_module
from jaxsmi.core.validate import Interval
from jaxsmi.models.hermite_series import HermiteSeries
from jaxsmi.models.students import Network
from jaxsmi.numerics.quadrature import hermite_polynomials, legendre
from jaxsmi.sgd.grid import MAX_TOKENS, Grid, contract, tabulate

_HALF_WIDTH = 13.0  # of the integrals over one number: a Gaussian has 1e-38 of its mass outside
_NODES = 200  # Gauss-Legendre on each half: errors of 1e-14 for ReLU and erf
# Of a divergent second moment most lies in the last twentieth of a grid, which holds 1e-12 of a
# Gaussian; a thousandth there tells the two apart.
_INNER, _OUTER_SHARE = 0.95, 1e-3


def coefficients(
    function: Callable[[Array], Array], length: int, degree: int, shift: float = 0.0
) -> Array:
    r"""Hermite coefficients of a function of the fields.

        ĝ_n = E[g(ξ) h_n(ξ)],   h_n orthonormal under N(0, I_L)

    Args:
        function: A JAX function of the fields (L,), answering a number or an array. Of a
            `HermiteSeries` and of a `Network` the coefficients are exact.
        length: The number of tokens L, from 1 to 4.
        degree: The highest degree of each token, an integer >= 0.
        shift: Shift of the grid, in steps; the difference between two grids is an error estimate.
            Default 0.

    Returns:
        An array of shape (degree + 1,) * L + (k,), where k is the number of entries of the
        function's answer.

    Raises:
        ValueError: For a length above 4, or a number out of range.

    Example:
        >>> import jaxsmi as smi
        >>> series = smi.sgd.HermiteSeries({(2,): 1.0})  # He_2 = √2 h_2
        >>> [round(float(c), 6) for c in smi.sgd.coefficients(series, 1, 2)[:, 0]]
        [0.0, 0.0, 1.414214]

    Cost:
        One evaluation of the function at each of 401, 201², 81³ or 61⁴ nodes.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eq. (19)].
    """
    function = as_module(
        validate.function("function", function, "a JAX function of the fields (L,)")
    )
    length = validate.count("length", length, at_most=MAX_TOKENS)
    degree = validate.count("degree", degree, 0)
    steps = float(validate.number("shift", shift, Interval("a finite number, in steps")))
    shape = jax.ShapeDtypeStruct((length,), float)
    validate.call_user_function("function", jax.eval_shape, "a function of (L,)", function, shape)
    exact = _closed_form(function, length, degree)
    return grid_coefficients(function, length, degree, steps) if exact is None else exact


@functools.singledispatch
def terms(function: Callable[[Array], Array]) -> dict[tuple[int, ...], Array] | None:
    """Coefficients by multi-indices of a function that is a finite series; None: it is none."""
    del function


@terms.register
def _(function: HermiteSeries) -> dict[tuple[int, ...], Array]:
    return dict(zip(function.degrees, function.orthonormal, strict=True))


@functools.singledispatch
def _closed_form(function: Callable[[Array], Array], length: int, degree: int) -> Array | None:
    """Coefficients without integrals over the fields; None: there are none."""
    del function, length, degree


@_closed_form.register
def _(function: HermiteSeries, length: int, degree: int) -> Array:
    values = function.orthonormal.reshape(len(function.degrees), -1)
    highest = max(degree, max(map(max, function.degrees)))
    table = jnp.zeros(((highest + 1,) * length) + values.shape[1:])
    table = table.at[tuple(np.transpose(function.degrees))].add(values)
    return table[(slice(degree + 1),) * length]


@_closed_form.register
def _(function: Network, length: int, degree: int) -> Array:
    orders = np.indices((degree + 1,) * length)
    c = np.asarray(activation_coefficients(function.activation, degree * length))
    total = orders.sum(axis=0)
    size = _multiplicity(orders) * float(length) ** (-0.5 * total)
    return jnp.asarray(size * c[total])[..., None]


def _multiplicity(orders: np.ndarray) -> np.ndarray:
    """√(|n|!/n!) of multi-indices along the first axis."""
    largest = max(int(np.max(orders.sum(axis=0))), 1)
    # logarithms: factorials of long orders overflow
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, largest + 1.0)))])  # log k!
    return np.exp(0.5 * (logs[orders.sum(axis=0)] - logs[orders].sum(axis=0)))


def grid_coefficients(
    function: Callable[[Array], Array], length: int, degree: int, shift: float = 0.0
) -> Array:
    """Integrals on the grid."""
    grid = Grid.of(length, shift=shift)
    return _projections(function, grid.nodes, grid.weights, length, degree)


def second_moment(function: Callable[[Array], Array], length: int) -> float:
    """E‖f‖²; inf where it diverges, as far as the grid can tell."""
    series = terms(function)
    if series is not None:
        return float(sum(jnp.sum(x**2) for x in series.values()))
    grid = Grid.of(length)
    inner = np.where(np.abs(grid.nodes) <= _INNER * grid.nodes[-1], grid.weights, 0.0)
    whole, part = (
        float(jnp.ravel(_projections(square(function), grid.nodes, weights, length, 0))[0])
        for weights in (grid.weights, inner)
    )
    return whole if np.isfinite(whole) and whole - part <= _OUTER_SHARE * whole else np.inf


@eqx.filter_jit
def _projections(
    function: Callable[[Array], Array],
    nodes: ArrayLike,
    weights: ArrayLike,
    length: int,
    degree: int,
) -> Array:
    matrix = hermite_polynomials(jnp.asarray(nodes), degree) * weights
    return contract(tabulate(function, nodes, length), [matrix] * length, length)


def activation_coefficients(activation: Callable[[Array], Array], degree: int) -> Array:
    """c_k = E σ(N) h_k(N) for k <= degree: Gauss-Legendre on either side of a kink at zero."""
    half = 0.5 * _HALF_WIDTH
    x, w = legendre(_NODES)
    # split at zero, where ReLU and its kin have their kink
    x = np.concatenate([half * (x - 1.0), half * (x + 1.0)])
    weights = np.tile(half * w, 2) * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    nodes = jnp.asarray(x)
    return hermite_polynomials(nodes, degree) @ (jax.vmap(activation)(nodes) * weights)


def series_average(series: HermiteSeries, rho: Array, function: Callable[[Array], Array]) -> Array:
    """E g(z*) φ(u) of a series and a function of one number, rho (L,)."""
    degrees = np.array(series.degrees)
    highest = int(degrees.sum(axis=1).max())
    c = activation_coefficients(function, highest)
    powers = jnp.stack([jnp.ones_like(rho)] + [rho] * highest).cumprod(axis=0)  # (k, L)
    each = jnp.prod(jnp.take_along_axis(powers, jnp.asarray(degrees), axis=0), axis=1)
    size = jnp.asarray(_multiplicity(degrees.T))
    return jnp.sum(series.orthonormal * size * c[degrees.sum(axis=1)] * each)


def multi_indices(length: int, order: int) -> list[tuple[int, ...]]:
    """All n of L whole numbers >= 0 with |n| = order."""
    bars = itertools.combinations(range(order + length - 1), length - 1)
    return [
        tuple(b - a - 1 for a, b in itertools.pairwise((-1, *places, order + length - 1)))
        for places in bars
    ]


def flat(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """z -> f(z), flattened (k,): a tree, whose numbers can be differentiated."""
    return eqx.Partial(_flat, function)


def square(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """z -> ‖f(z)‖², a tree."""
    return eqx.Partial(_square, function)


def _flat(function: Callable[[Array], Array], z: Array) -> Array:
    return jnp.ravel(function(z))


def _square(function: Callable[[Array], Array], z: Array) -> Array:
    return jnp.sum(function(z) ** 2)
