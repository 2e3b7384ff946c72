"""Integrals over a few Gaussian tokens on a uniform grid, and Hermite coefficients of functions of
the fields [theory: online-sgd, Eqs. (9) to (12), (15), (19)]."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import PyTree, as_module
from jaxsmi.core.validate import Interval
from jaxsmi.models.teacher_student import HermiteSeries, Network
from jaxsmi.numerics.quadrature import hermite, hermite_polynomials, legendre_panel

# Step and half width by the number of tokens: errors of 1e-13 for one and two, 1e-10 for three and
# 1e-8 for four tokens of softmax attention, whose table fits into memory.
_GRID_STEPS = {1: 0.05, 2: 0.1, 3: 0.2, 4: 0.3}
_GRID_WIDTHS = {1: 10.0, 2: 10.0, 3: 8.0, 4: 9.0}
_COARSE_GRID = 0.2, 8.0  # errors of 1e-10, for integrals that are taken thousands of times

# The trapezoidal sum over a Gaussian of width s is wrong by exp(-2π² s²/h²), and its second
# derivative in m by (4π s/h²)² times that: below 1e-14 where s is 1.6 steps.
_MIN_WIDTH = 1.6
# Gauss-Hermite nodes of each token where the kernel is narrower, by the share of that width up to
# which they serve: f is smooth on this scale (errors of 1e-12). At s = 0 there is no noise.
_NARROW_RULES = ((1.0, 8), (0.25, 4), (0.0, 1))

MAX_TOKENS = max(_GRID_STEPS)

_Function = Callable[[Array], Array]


class TokenGrid(NamedTuple):
    """The nodes (n,) of one token, the step between them, and their Gaussian weights (n,)."""

    nodes: np.ndarray
    step: float
    weights: np.ndarray

    @classmethod
    def of(cls, length: int, reach: float = 0.0, shift: float = 0.0, coarse: bool = False) -> Self:
        """The grid of L tokens; `reach` is the largest distance of a field's mean from zero,
        `shift` moves the grid by a part of its step."""
        step, width = _GRID_STEPS[length], _GRID_WIDTHS[length]
        if coarse:
            step, width = max(step, _COARSE_GRID[0]), _COARSE_GRID[1]
        half = round((width + float(np.ceil(5 * max(reach - 1.0, 0.0))) / 5) / step)
        nodes = step * (np.arange(-half, half + 1) + shift)
        return cls(nodes, step, step * np.exp(-0.5 * nodes**2) / np.sqrt(2 * np.pi))

    def coarser(self, stride: int) -> TokenGrid:
        """Every `stride`-th node."""
        return TokenGrid(self.nodes[::stride], stride * self.step, stride * self.weights[::stride])


def tabulate(function: _Function, nodes: ArrayLike, length: int) -> Array:
    """The values of a function of (L,) on the grid, flattened: (n,) * L + (k,)."""
    nodes = jnp.asarray(nodes)
    mesh = np.indices((len(nodes),) * (length - 1))
    inner = nodes[mesh.reshape(length - 1, len(nodes) ** (length - 1)).T]

    def row(first: Array) -> Array:
        at = lambda rest: jnp.ravel(function(jnp.concatenate([first[None], rest])))
        return jax.vmap(at)(inner)

    # rows one after the other from three tokens on: a function's own temporaries fill memory
    table = jax.vmap(row)(nodes) if length <= 2 else lax.map(row, nodes)
    return table.reshape(*(len(nodes),) * length, -1)


def contract(table: Array, matrices: Sequence[ArrayLike]) -> Array:
    """Each token's axis of a table (n, .., n, k) contracted with a matrix (p, n): (p, .., p, k)."""
    for matrix in matrices:  # the first axis goes to the back, before k
        table = jnp.moveaxis(jnp.tensordot(jnp.asarray(matrix), table, axes=(1, 0)), 0, -2)
    return table


def expectation(function: _Function, e: Array, grid: TokenGrid) -> Array:
    """E f(ξ + e) of a function (L,) -> (), e (L,), as a trapezoidal sum.

    For smooth functions the error falls faster than any power of the step, whatever poles they have
    beside the real axis. The number of nodes grows as n^L: up to four tokens.
    """
    nodes, size = jnp.asarray(grid.nodes), grid.step / np.sqrt(2 * np.pi)
    weights = [size * jnp.exp(-0.5 * (nodes - mean) ** 2)[None] for mean in e]
    return contract(tabulate(function, nodes, len(e)), weights).reshape(())


def correlation(
    g: _Function, f: _Function, m: Array, e: Array, inner: TokenGrid, outer: TokenGrid
) -> Array:
    """C[g, f](m, e) for trees g, f of (L,), f smooth, m in [-1, 1], e (L,); NaN outside.

        C[g, f](m, e) = E⟨g(z*), f(z)⟩,   z_l = e_l + m z*_l + s ξ_l,   s = √(1 - m²)
        C = Σ_i w_i g(y_i) (K^1 ⊗ .. ⊗ K^L f)(y_i),   K^l_ik = h/s φ((y_k - e_l - m y_i)/s)

    z* takes the nodes of `outer` (two of these grids differ by the error of the coarser), z those
    of `inner`.
    """
    L, step = len(e), inner.step
    nodes, teacher_nodes = jnp.asarray(inner.nodes), jnp.asarray(outer.nodes)
    G, weights = tabulate(g, teacher_nodes, L), jnp.asarray(outer.weights)
    for axis in range(L):
        G = G * weights.reshape(-1, *(1,) * (L - axis))
    # zero at |m| = 1 up to rounding, with the derivative -2m, which clipping would halve
    variance = 1.0 - m**2 - lax.stop_gradient(jnp.minimum(1.0 - m**2, 0.0))
    limit = (_MIN_WIDTH * step) ** 2
    narrow = variance < limit

    def smoothed() -> Array:
        # the branch that is not taken must have finite derivatives, too
        width = jnp.sqrt(jnp.where(narrow, 1.0, variance))
        kernel = lambda shift: (
            jnp.exp(-0.5 * ((nodes - shift - m * teacher_nodes[:, None]) / width) ** 2)
            * (step / (width * np.sqrt(2 * np.pi)))
        )
        return jnp.sum(G * contract(tabulate(f, nodes, L), [kernel(mean) for mean in e]))

    def summed(count: int) -> Callable[[], Array]:
        average = lambda y: _noise_average(f, e + m * y, variance, count=count)
        # the noise is averaged at each node, where a kernel narrower than a step would miss it
        return lambda: jnp.sum(G * tabulate(average, teacher_nodes, L))

    shares = np.array([share for share, _ in _NARROW_RULES])
    case = jnp.sum(variance <= jnp.asarray(shares**2) * limit)
    value = lax.switch(case, [smoothed, *(summed(count) for _, count in _NARROW_RULES)])
    return jnp.where(jnp.abs(m) <= 1.0, value, jnp.nan)


@eqx.filter_custom_jvp
def _noise_average(f: _Function, mean: Array, variance: Array, *, count: int) -> Array:
    """E f(μ + √v ξ), ξ ~ N(0, I_L), by `count` Gauss-Hermite nodes a token."""
    nodes, mass = hermite(count)
    product = lambda x: np.stack(np.meshgrid(*[x] * len(mean), indexing="ij"), -1)
    points = product(nodes).reshape(-1, len(mean))
    weights = np.prod(product(mass), axis=-1).ravel()
    # its derivative is never taken: the rule below has the heat equation's instead
    s = jnp.sqrt(jnp.maximum(variance, 0.0))

    def one(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        xi, weight = node
        return total + weight * f(mean + s * xi), None

    zero = jnp.zeros(jax.eval_shape(f, mean).shape, mean.dtype)
    return lax.scan(one, zero, (jnp.asarray(points), jnp.asarray(weights)))[0]


class _Change(eqx.Module):
    """z -> df(z) + ∇f(z)·dμ + ½ dv Δf(z): the change of f whose average is that of E f(μ + √v ξ).

    Through √v it would be a quotient 0/0 at v = 0; the heat equation has none.
    """

    f: _Function
    df: PyTree
    dmean: Array
    dvariance: Array

    def __call__(self, z: Array) -> Array:
        value = lambda f, z: f(z)
        slope = eqx.filter_jvp(value, (self.f, z), (self.df, self.dmean))[1]
        laplacian = jnp.trace(jax.jacfwd(jax.jacfwd(self.f))(z), axis1=-2, axis2=-1)
        return slope + 0.5 * self.dvariance * laplacian


@_noise_average.def_jvp
def _noise_average_jvp(
    primals: tuple[_Function, Array, Array],
    tangents: tuple[PyTree, Array | None, Array | None],
    *,
    count: int,
) -> tuple[Array, Array]:
    f, mean, variance = primals
    df, dmean, dvariance = tangents
    dmean = jnp.zeros_like(mean) if dmean is None else dmean
    dvariance = jnp.zeros_like(variance) if dvariance is None else dvariance
    change = _Change(f, df, dmean, dvariance)
    value = _noise_average(f, mean, variance, count=count)
    return value, _noise_average(change, mean, variance, count=count)


_WIDTH = 13.0  # half width of integrals over one number: a Gaussian has 1e-38 outside
_LEGENDRE_NODES = 200  # Gauss-Legendre on each half: errors of 1e-14 for ReLU and erf
# Most of a divergent second moment lies in the last twentieth of a grid, which holds 1e-12 of a
# Gaussian; a thousandth there distinguishes the two.
_CORE_SHARE, _TAIL_SHARE = 0.95, 1e-3


def coefficients(
    function: Callable[[Array], Array], length: int, degree: int, shift: float = 0.0
) -> Array:
    r"""Compute the Hermite coefficients of a function of the fields.

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
    allowed = "a JAX function of the fields (L,)"
    function = as_module(validate.function("function", function, allowed))
    length = validate.count("length", length, at_most=MAX_TOKENS)
    degree = validate.count("degree", degree, 0)
    steps = float(validate.number("shift", shift, Interval("a finite number, in steps")))
    shape = jax.ShapeDtypeStruct((length,), float)
    validate.call_user_function("function", jax.eval_shape, "a function of (L,)", function, shape)
    exact = _closed_form(function, length, degree)
    if exact is not None:
        return exact
    grid = TokenGrid.of(length, shift=steps)
    return _projections(function, grid.nodes, grid.weights, length, degree)


@functools.singledispatch
def terms(function: Callable[[Array], Array]) -> dict[tuple[int, ...], Array] | None:
    """Coefficients by multi-index of a function that is a finite series; None for another one."""


@terms.register
def _(function: HermiteSeries) -> dict[tuple[int, ...], Array]:
    return dict(zip(function.degrees, function.orthonormal, strict=True))


@functools.singledispatch
def _closed_form(function: Callable[[Array], Array], length: int, degree: int) -> Array | None:
    """Coefficients in closed form, or None."""


@_closed_form.register
def _(function: HermiteSeries, length: int, degree: int) -> Array:
    values = function.orthonormal.reshape(len(function.degrees), -1)
    highest = max(degree, max(map(max, function.degrees)))
    table = jnp.zeros(((highest + 1,) * length) + values.shape[1:])
    table = table.at[tuple(np.transpose(function.degrees))].add(values)
    return table[(slice(degree + 1),) * length]


@_closed_form.register
def _(function: Network, length: int, degree: int) -> Array:
    # F̂_n = √(|n|!/n!) c_|n| L^{-|n|/2}
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


def second_moment(function: Callable[[Array], Array], length: int) -> float:
    """E‖f‖²; inf where it diverges, as far as the grid shows."""
    series = terms(function)
    if series is not None:
        return float(sum(jnp.sum(x**2) for x in series.values()))
    grid = TokenGrid.of(length)
    inner = np.where(np.abs(grid.nodes) <= _CORE_SHARE * grid.nodes[-1], grid.weights, 0.0)
    norm = square(function)
    mean = lambda weights: float(_projections(norm, grid.nodes, weights, length, 0).ravel()[0])
    whole, part = mean(grid.weights), mean(inner)
    return whole if np.isfinite(whole) and whole - part <= _TAIL_SHARE * whole else np.inf


@eqx.filter_jit
def _projections(
    function: Callable[[Array], Array],
    nodes: ArrayLike,
    weights: ArrayLike,
    length: int,
    degree: int,
) -> Array:
    matrix = hermite_polynomials(jnp.asarray(nodes), degree) * weights
    return contract(tabulate(function, nodes, length), [matrix] * length)


def activation_coefficients(activation: Callable[[Array], Array], degree: int) -> Array:
    """c_k = E σ(N) h_k(N) for k <= degree: Gauss-Legendre on either side of a kink at zero."""
    # split at zero, where ReLU and its kin have their kink
    halves = [legendre_panel(_LEGENDRE_NODES, *ends) for ends in ((-_WIDTH, 0.0), (0.0, _WIDTH))]
    x, w = np.concatenate(halves, axis=1)
    weights = w * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    nodes = jnp.asarray(x)
    return hermite_polynomials(nodes, degree) @ (jax.vmap(activation)(nodes) * weights)


def series_average(series: HermiteSeries, rho: Array, function: Callable[[Array], Array]) -> Array:
    """E g(z*) φ(u) of a series and a function of one number u, E z*_l u = ρ_l (L,).

    Σ_n ĝ_n √(|n|!/n!) c_|n| Π_l ρ_l^{n_l},   c_k = E φ(N) h_k(N)   [theory: online-sgd, Eq. (15)]
    """
    degrees = np.array(series.degrees)
    highest = int(degrees.sum(axis=1).max())
    c = activation_coefficients(function, highest)
    powers = jnp.stack([jnp.ones_like(rho)] + [rho] * highest).cumprod(axis=0)  # (k, L)
    monomials = jnp.prod(jnp.take_along_axis(powers, jnp.asarray(degrees), axis=0), axis=1)
    size = jnp.asarray(_multiplicity(degrees.T))
    return jnp.sum(series.orthonormal * size * c[degrees.sum(axis=1)] * monomials)


def multi_indices(length: int, order: int) -> list[tuple[int, ...]]:
    """All n of L whole numbers >= 0 with |n| = order."""
    bars = itertools.combinations(range(order + length - 1), length - 1)
    return [
        tuple(b - a - 1 for a, b in itertools.pairwise((-1, *places, order + length - 1)))
        for places in bars
    ]


def square(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """z -> ‖f(z)‖², a tree, whose numbers can be differentiated."""
    return eqx.Partial(_square, function)


def _square(function: Callable[[Array], Array], z: Array) -> Array:
    return jnp.sum(function(z) ** 2)
