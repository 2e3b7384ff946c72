r"""Hermite coefficients of functions of the fields [theory: online-sgd, Eq. (19)].

    ĝ_n = E[g(ξ) h_n(ξ)],   h_n = Π_l h_{n_l},   orthonormal under N(0, I_L)

A Hermite series knows its own; a tied network has them in closed form,

    F̂_n = √(|n|!/n!) c_|n| L^{-|n|/2},   c_k = E σ(N) h_k(N)

of any other JAX function they are integrals on a grid, of up to four tokens.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxsmi.core.border import checked, function, scalar, whole
from jaxsmi.core.checks import Arguments, Interval
from jaxsmi.models.sequence_single_index import HermiteSeries, Network
from jaxsmi.numerics.quadrature import hermite_polynomials, legendre
from jaxsmi.sgd.functions import SquaredNorm
from jaxsmi.sgd.grid import MAX_TOKENS, Grid, contract, tabulate

_SHIFT = Interval("a finite number, in steps of the grid")


@checked(
    function=function("a JAX function of the fields"),
    length=whole(),
    degree=whole(0),
    shift=scalar(_SHIFT),
)
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
        shift: How far the grid is moved, in steps: what two grids disagree by
            is an error estimate. Default 0.

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
    arguments = Arguments()
    arguments.condition(length <= MAX_TOKENS, "length", length, f"1 to {MAX_TOKENS} on a grid")
    arguments.number("shift", shift, _SHIFT)
    return _expansion(function, length, degree, float(shift))


@functools.singledispatch
def _expansion(function: Callable[[Array], Array], length: int, degree: int, shift: float) -> Array:
    """Of any JAX function: integrals on the grid."""
    return _on_grid(function, length, degree, shift)


@_expansion.register(HermiteSeries)
def _series_expansion(series: HermiteSeries, length: int, degree: int, shift: float) -> Array:
    """Of a series: its own coefficients, of several terms of the same degrees their sum."""
    del shift
    terms = series.orthonormal.reshape(len(series.degrees), -1)
    highest = max(degree, max(map(max, series.degrees)))
    table = jnp.zeros(((highest + 1,) * length) + terms.shape[1:])
    table = table.at[tuple(np.transpose(series.degrees))].add(terms)
    return table[(slice(degree + 1),) * length]


@_expansion.register(Network)
def _network_expansion(network: Network, length: int, degree: int, shift: float) -> Array:
    """Of a tied network: F̂_n = √(|n|!/n!) c_|n| L^{-|n|/2}."""
    del shift
    orders = np.indices((degree + 1,) * length)
    c = np.asarray(activation_coefficients(network.activation, degree * length))
    logs = np.cumsum(np.log(np.maximum(np.arange(degree * length + 1), 1)))  # log k!
    total = orders.sum(axis=0)
    size = np.exp(0.5 * (logs[total] - logs[orders].sum(axis=0)))
    size = size * float(length) ** (-0.5 * total)
    return jnp.asarray(size * c[total])[..., None]


def _on_grid(
    function: Callable[[Array], Array], length: int, degree: int, shift: float, part: float = 1.0
) -> Array:
    """Projections on h_n; with `part` < 1 the outer part of the grid is left out."""
    grid = Grid.of(length, shift=shift)
    weights = grid.weights
    if part < 1.0:
        weights = np.where(np.abs(grid.nodes) <= part * grid.nodes[-1], weights, 0.0)
    return _projections(function, jnp.asarray(grid.nodes), jnp.asarray(weights), length, degree)


@eqx.filter_jit
def _projections(
    function: Callable[[Array], Array], nodes: Array, weights: Array, length: int, degree: int
) -> Array:
    matrix = hermite_polynomials(nodes, degree) * weights
    return contract(tabulate(function, nodes, length), [matrix] * length, length)


def activation_coefficients(activation: Callable[[Array], Array], degree: int) -> Array:
    """c_k = E σ(N) h_k(N) for k <= degree: Gauss-Legendre on either side of a kink at zero."""
    x, w = legendre(200)
    x = np.concatenate([6.5 * (x - 1.0), 6.5 * (x + 1.0)])
    weights = np.tile(6.5 * w, 2) * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    nodes = jnp.asarray(x)
    return hermite_polynomials(nodes, degree) @ (jax.vmap(activation)(nodes) * weights)


def multi_indices(length: int, order: int) -> list[tuple[int, ...]]:
    """All n of L whole numbers >= 0 with |n| = order."""
    places = itertools.combinations(range(order + length - 1), length - 1)
    return [
        tuple(b - a - 1 for a, b in itertools.pairwise((-1, *bars, order + length - 1)))
        for bars in places
    ]


@functools.singledispatch
def second_moment(function: Callable[[Array], Array], length: int, shift: float = 0.0) -> float:
    """E‖f(ξ)‖², of a series exactly, of other functions on the grid."""
    return _second_moment_within(function, length, shift=shift)


@second_moment.register(HermiteSeries)
def _series_second_moment(series: HermiteSeries, length: int, shift: float = 0.0) -> float:
    """The sum of the squares of the coefficients."""
    del shift
    return float(jnp.sum(coefficients(series, length, max(map(max, series.degrees))) ** 2))


def _second_moment_within(
    function: Callable[[Array], Array], length: int, *, shift: float = 0.0, part: float = 1.0
) -> float:
    return float(_on_grid(SquaredNorm(function), length, 0, shift, part).ravel()[0])


@functools.singledispatch
def has_second_moment(function: Callable[[Array], Array], length: int) -> bool:
    """Whether E‖f‖² converges on the grid: of a divergent integral most lies at its end."""
    whole = _second_moment_within(function, length)
    inner = _second_moment_within(function, length, part=0.95)
    return bool(np.isfinite(whole)) and whole - inner <= 1e-3 * whole


@has_second_moment.register(HermiteSeries)
def _series_has_second_moment(series: HermiteSeries, length: int) -> bool:
    """A finite sum always has one."""
    del series, length
    return True
