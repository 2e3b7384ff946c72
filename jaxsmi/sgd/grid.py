r"""Integrals over a few Gaussian tokens, as trapezoidal sums on one uniform grid for each token.

    E f(ξ) ≈ Σ_{i_1..i_L} w_{i_1} .. w_{i_L} f(y_{i_1}, .., y_{i_L}),   w_i = h φ(y_i)

and the correlation of two functions of teacher and student [theory: online-sgd, Eqs. (9) to (12)],

    C[g, f](m, e) = E⟨g(z*), f(z)⟩,   z_l = e_l + m z*_l + s ξ_l,   s = √(1 - m²)
    C = Σ_i w_i g(y_i) (K^1 ⊗ .. ⊗ K^L f)(y_i),   K^l_ik = h/s φ((y_k - e_l - m y_i)/s)

which smooths f token by token. For smooth functions the error falls faster than any power of h,
whatever poles they have beside the real axis. The number of nodes grows as n^L: up to four tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree
from jaxsmi.numerics.quadrature import hermite

# Step and half width by the number of tokens: errors of 1e-13 for one and two, 1e-10 for three and
# 1e-8 for four tokens of softmax attention, whose table fits into memory.
_STEPS = {1: 0.05, 2: 0.1, 3: 0.2, 4: 0.3}
_WIDTHS = {1: 10.0, 2: 10.0, 3: 8.0, 4: 9.0}
_COARSE = 0.2, 8.0  # errors of 1e-10, for integrals that are taken thousands of times

# The trapezoidal sum over a Gaussian of width s is wrong by exp(-2π² s²/h²), and its second
# derivative in m by (4π s/h²)² times that: below 1e-14 where s is 1.6 steps.
_NARROW = 1.6
# Gauss-Hermite nodes of each token where the kernel is narrower, by the share of that width up to
# which they serve: f is smooth on this scale (errors of 1e-12). At s = 0 there is no noise.
_INNER = ((1.0, 8), (0.25, 4), (0.0, 1))

MAX_TOKENS = max(_STEPS)

_Function = Callable[[Array], Array]


class Grid(NamedTuple):
    """The nodes (n,) of one token, the step between them, and their Gaussian weights (n,)."""

    nodes: np.ndarray
    step: float
    weights: np.ndarray

    @classmethod
    def of(cls, length: int, reach: float = 0.0, shift: float = 0.0, coarse: bool = False) -> Grid:
        """The grid of L tokens; `reach` is the largest distance of a field's mean from zero,
        `shift` moves the grid by a part of its step."""
        step, width = _STEPS[length], _WIDTHS[length]
        if coarse:
            step, width = max(step, _COARSE[0]), _COARSE[1]
        half = round((width + float(np.ceil(5 * max(reach - 1.0, 0.0))) / 5) / step)
        nodes = step * (np.arange(-half, half + 1) + shift)
        return cls(nodes, step, step * np.exp(-0.5 * nodes**2) / np.sqrt(2 * np.pi))


def tabulate(function: _Function, nodes: ArrayLike, length: int) -> Array:
    """The values of a function of (L,) on the grid, flattened: (n,) * L + (k,)."""
    nodes = jnp.asarray(nodes)
    flat = lambda z: jnp.ravel(function(z))
    if length == 1:
        return jax.vmap(lambda x: flat(x[None]))(nodes)
    mesh = jnp.meshgrid(*([nodes] * (length - 1)), indexing="ij")
    inner = jnp.stack(mesh, axis=-1).reshape(-1, length - 1)

    def row(first: Array) -> Array:
        return jax.vmap(lambda rest: flat(jnp.concatenate([first[None], rest])))(inner)

    # rows one after the other from three tokens on: a function's own temporaries fill memory
    table = jax.vmap(row)(nodes) if length == 2 else lax.map(row, nodes)
    return table.reshape(*(len(nodes),) * length, -1)


def contract(table: Array, matrices: Sequence[ArrayLike], length: int) -> Array:
    """Each token's axis of a table (n, .., n, k) contracted with a matrix (p, n): (p, .., p, k)."""
    for matrix in matrices:  # the first axis goes to the back, before k
        table = jnp.moveaxis(jnp.tensordot(jnp.asarray(matrix), table, axes=(1, 0)), 0, length - 1)
    return table


def expectation(
    function: _Function, e: Array, *, reach: float = 1.0, stride: int = 1, coarse: bool = False
) -> Array:
    """E f(ξ + e) of a function (L,) -> (), e (L,), from every `stride`-th node."""
    L = e.shape[0]
    grid = Grid.of(L, reach, coarse=coarse)
    nodes = jnp.asarray(grid.nodes[::stride])
    weights = [
        (grid.step * stride / np.sqrt(2 * np.pi)) * jnp.exp(-0.5 * (nodes - e[l]) ** 2)[None]
        for l in range(L)
    ]
    return contract(tabulate(function, nodes, L), weights, L).reshape(())


def correlation(
    g: _Function,
    f: _Function,
    m: Array,
    e: Array,
    *,
    reach: float = 1.0,
    stride: int = 1,
    coarse: bool = False,
) -> Array:
    """C[g, f](m, e) for trees g, f: (L,) -> (k,), f smooth, m in [-1, 1], e (L,); NaN outside.

    Only every `stride`-th node in z* is used (two strides differ by the error of the coarser).
    """
    L = e.shape[0]
    grid = Grid.of(L, reach, coarse=coarse)
    nodes = jnp.asarray(grid.nodes)
    step = grid.step
    outer = nodes[::stride]
    weights = jnp.asarray(grid.weights[::stride]) * stride
    G = tabulate(g, outer, L)
    for axis in range(L):
        G = G * weights.reshape(-1, *(1,) * (L - axis))
    # at |m| = 1 zero up to rounding, with the derivative -2m that clipping would halve
    variance = 1.0 - m**2 - lax.stop_gradient(jnp.minimum(1.0 - m**2, 0.0))
    limit = (_NARROW * step) ** 2
    narrow = variance < limit

    def smoothed() -> Array:
        # the branch that is not taken must have finite derivatives, too
        width = jnp.sqrt(jnp.where(narrow, 1.0, variance))
        kernel = lambda shift: (
            jnp.exp(-0.5 * ((nodes - shift - m * outer[:, None]) / width) ** 2)
            * (step / (width * np.sqrt(2 * np.pi)))
        )
        return jnp.sum(G * contract(tabulate(f, nodes, L), [kernel(e[l]) for l in range(L)], L))

    def summed(count: int) -> Callable[[], Array]:
        average = lambda y: _noise_average(f, e + m * y, variance, count=count)
        # the noise is averaged at each node, where a kernel narrower than a step would miss it
        return lambda: jnp.sum(G * tabulate(average, outer, L))

    shares = np.array([share for share, _ in _INNER])
    case = jnp.sum(variance <= jnp.asarray(shares**2) * limit)
    value = lax.switch(case, [smoothed, *(summed(count) for _, count in _INNER)])
    return jnp.where(jnp.abs(m) <= 1.0, value, jnp.nan)


@eqx.filter_custom_jvp
def _noise_average(f: _Function, mean: Array, variance: Array, *, count: int) -> Array:
    """E f(μ + √v ξ) (k,), ξ ~ N(0, I_L), by `count` Gauss-Hermite nodes a token."""
    nodes, mass = hermite(count)
    product = lambda x: np.stack(np.meshgrid(*[x] * len(mean), indexing="ij"), -1)
    points = product(nodes).reshape(-1, len(mean))
    weights = np.prod(product(mass), axis=-1).ravel()
    # its derivative is never taken: the rule below has the heat equation's instead
    s = jnp.sqrt(jnp.maximum(variance, 0.0))
    if count == 1:
        return f(mean)

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

        def second(direction: Array) -> Array:
            along = lambda x: jax.jvp(self.f, (x,), (direction,))[1]
            return jax.jvp(along, (z,), (direction,))[1]

        laplacian = jnp.sum(jax.vmap(second)(jnp.eye(len(z), dtype=z.dtype)), axis=0)
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
    return (
        _noise_average(f, mean, variance, count=count),
        _noise_average(change, mean, variance, count=count),
    )
