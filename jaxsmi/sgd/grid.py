r"""Integrals over a few Gaussian tokens, as trapezoidal sums on one uniform grid for each token.

    E f(ξ) ≈ Σ_{i_1..i_L} w_{i_1} .. w_{i_L} f(y_{i_1}, .., y_{i_L}),   w_i = h φ(y_i)

For smooth functions the error falls faster than any power of the step h, whatever poles they have
beside the real axis [theory: online-sgd, Eqs. (10), (11)]. The number of nodes grows as n^L: up to
four tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array

_STEPS = {1: 0.05, 2: 0.1, 3: 0.2, 4: 0.3}
_WIDTHS = {1: 10.0, 2: 10.0, 3: 8.0, 4: 9.0}

MAX_TOKENS = max(_STEPS)


class Grid(NamedTuple):
    """The nodes (n,) of one token, the step between them, and their Gaussian weights (n,)."""

    nodes: np.ndarray
    step: float
    weights: np.ndarray

    @classmethod
    def of(cls, length: int, reach: float = 0.0, shift: float = 0.0, coarse: bool = False) -> Grid:
        """The grid that L tokens can afford.

        `reach` is how far the mean of a field may lie from zero, `shift` moves the grid by a part
        of its step, and a `coarse` grid has errors of 1e-10 instead of 1e-13, for integrals that
        are taken thousands of times.
        """
        step = _STEPS[length]
        width = _WIDTHS[length]
        if coarse:
            step = max(step, 0.2)
            width = 8.0
        half = round((width + float(np.ceil(5 * max(reach - 1.0, 0.0))) / 5) / step)
        nodes = step * (np.arange(-half, half + 1) + shift)
        return cls(nodes, step, step * np.exp(-0.5 * nodes**2) / np.sqrt(2 * np.pi))


def tabulate(function: Callable[[Array], Array], nodes: ArrayLike, length: int) -> Array:
    """The values of a function of (L,) on the grid, flattened: (n,) * L + (k,)."""
    nodes = jnp.asarray(nodes)
    flat = lambda z: jnp.ravel(function(z))
    if length == 1:
        return jax.vmap(lambda x: flat(x[None]))(nodes)
    mesh = jnp.meshgrid(*([nodes] * (length - 1)), indexing="ij")
    inner = jnp.stack(mesh, axis=-1).reshape(-1, length - 1)

    def row(first: Array) -> Array:
        return jax.vmap(lambda rest: flat(jnp.concatenate([first[None], rest])))(inner)

    table = jax.vmap(row)(nodes) if length == 2 else lax.map(row, nodes)
    return table.reshape(*(len(nodes),) * length, -1)


def contract(table: Array, matrices: Sequence[ArrayLike], length: int) -> Array:
    """Each token's axis of a table (n, .., n, k) contracted with a matrix (p, n): (p, .., p, k)."""
    for matrix in matrices:  # the axis in front goes to the back, before k
        table = jnp.moveaxis(jnp.tensordot(jnp.asarray(matrix), table, axes=(1, 0)), 0, length - 1)
    return table


def expectation(
    function: Callable[[Array], Array],
    e: Array,
    *,
    reach: float = 1.0,
    stride: int = 1,
    coarse: bool = False,
) -> Array:
    """E f(ξ + e) of a function (L,) -> (), e (L,), from every `stride`-th node."""
    L = e.shape[0]
    grid = Grid.of(L, reach, coarse=coarse)
    nodes = jnp.asarray(grid.nodes[::stride])
    table = tabulate(function, nodes, L)
    weights = [
        (grid.step * stride / np.sqrt(2 * np.pi)) * jnp.exp(-0.5 * (nodes - e[l]) ** 2)[None]
        for l in range(L)
    ]
    return contract(table, weights, L).reshape(())
