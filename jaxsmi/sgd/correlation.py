r"""The correlation of two functions of the fields, and all its derivatives.

Equations here [theory: online-sgd, Eqs. (9) to (12)]:

    C[g, f](m, e) = E⟨g(z*), f(z)⟩,   z_l = e_l + m z*_l + s ξ_l,   s = √(1 - m²)
    C = Σ_i w_i g(y_i) (K^1 ⊗ .. ⊗ K^L f)(y_i),   K^l_ik = h/s φ((y_k - e_l - m y_i)/s)
    ∂_{e_l} C[g, f] = C[g, ∂_l f],   ∂_m C[g, f] = Σ_l C[z_l g, ∂_l f] - m C[g, Δf]

The second line smooths f token by token. Derivatives of C are C of derivatives, so that they exist
at m = ±1, where the noise ξ vanishes; near there C is a sum over few nodes in ξ.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree
from jaxsmi.numerics.quadrature import hermite
from jaxsmi.sgd.functions import Joined, Laplacian, LinearTimes, Scaled, Slopes, Tangent
from jaxsmi.sgd.grid import Grid, contract, tabulate

# A kernel narrower than so many steps of the grid is under-resolved by more than 1e-14.
_NARROW = 1.3

# Nodes in ξ of each token where the kernel is narrow, by step of the grid, and where it is a
# quarter of that: errors of 1e-11 (three tokens: 1e-9), and 1e-10 on a coarse grid.
_INNER = {0.05: 12, 0.1: 6, 0.2: 8}
_INNER_OF_THREE = 6
_FEW = 4


@eqx.filter_custom_jvp
def correlation(
    g: Callable[[Array], Array],
    f: Callable[[Array], Array],
    m: Array,
    e: Array,
    *,
    reach: float = 1.0,
    stride: int = 1,
    coarse: bool = False,
) -> Array:
    """C[g, f](m, e) for trees g, f: (L,) -> (k,), f smooth, m in [-1, 1], e (L,); NaN outside.

    `reach` is how far e may lie from zero; only every `stride`-th node in z* is used (for an error
    estimate).
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
    s = jnp.sqrt(jnp.maximum(1.0 - m**2, 0.0))
    narrow = s < _NARROW * step

    def smoothed() -> Array:
        width = jnp.where(narrow, 1.0, s)
        kernel = lambda shift: (
            jnp.exp(-0.5 * ((nodes - shift - m * outer[:, None]) / width) ** 2)
            * (step / (width * np.sqrt(2 * np.pi)))
        )
        return jnp.sum(G * contract(tabulate(f, nodes, L), [kernel(e[l]) for l in range(L)], L))

    def summed(count: int) -> Array:
        def one(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
            xi, weight = node
            value = jnp.sum(G * tabulate(lambda y: f(e + m * y + s * xi), outer, L))
            return total + weight * value, None

        points, mass = _gauss_hermite(count, L)
        return lax.scan(one, jnp.zeros((), G.dtype), (jnp.asarray(points), jnp.asarray(mass)))[0]

    def noiseless() -> Array:
        return jnp.sum(G * tabulate(lambda y: f(e + m * y), outer, L))

    inner = _INNER[step] if L < 3 else _INNER_OF_THREE
    cases = [smoothed, lambda: summed(inner), lambda: summed(_FEW), noiseless]
    case = narrow.astype(int) + (s < 0.25 * _NARROW * step) + (s == 0.0)
    return jnp.where(jnp.abs(m) <= 1.0, lax.switch(case, cases), jnp.nan)


def _gauss_hermite(count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (count^L, L) and weights of the Gauss-Hermite rule under N(0, I_L)."""
    nodes, mass = hermite(count)
    product = lambda x: np.stack(np.meshgrid(*[x] * length, indexing="ij"), -1).reshape(-1, length)
    return product(nodes), np.prod(product(mass), axis=1)


@correlation.def_jvp
def _correlation_jvp(
    primals: tuple[Callable[[Array], Array], Callable[[Array], Array], Array, Array],
    tangents: tuple[PyTree, PyTree, Array | None, Array | None],
    *,
    reach: float = 1.0,
    stride: int = 1,
    coarse: bool = False,
) -> tuple[Array, Array]:
    """The derivative, as one more correlation: a sum of them is that of functions side by side."""
    g, f, m, e = primals
    along_g, along_f, along_m, along_e = tangents
    of = lambda first, second: correlation(
        first, second, m, e, reach=reach, stride=stride, coarse=coarse
    )
    value = of(g, f)
    # what is linear in the tangents is the first function of a pair: reverse mode transposes it
    pairs: list[tuple[Callable[[Array], Array], Callable[[Array], Array]]] = []
    if _moves(along_g):
        pairs.append((Tangent(g, along_g), f))
    if along_m is not None or along_e is not None:
        a = jnp.zeros_like(m) if along_m is None else along_m
        b = jnp.zeros_like(e) if along_e is None else along_e
        pairs.append((LinearTimes(g, a, b), Slopes(f)))
    if along_m is not None:
        pairs.append((Scaled(g, -m * along_m), Laplacian(f)))
    change = jnp.zeros_like(value)
    if pairs:
        first, second = (Joined(parts) for parts in zip(*pairs, strict=True))
        change = of(first, second)
    if _moves(along_f):
        change = change + of(g, Tangent(f, along_f))
    return value, change


def _moves(tangent: PyTree) -> bool:
    """Whether a function is differentiated in any of its numbers."""
    return any(x is not None for x in jax.tree.leaves(tangent))
