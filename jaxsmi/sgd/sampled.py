r"""Hermite coefficients of functions of many fields, by randomised nets, with their errors.

Equations here [theory: online-sgd, Eqs. (75), (75a)]: over R independent randomisations of a net

    ĝ_n = mean_r ĝ_n^{(r)},   ĝ_n^{(r)} = mean_i g(ξ_i) h_n(ξ_i),   stderr² = var_r/R

A coefficient is told from zero where |ĝ_n| > t · stderr, t the quantile of Student's law with R - 1
degrees of freedom at a risk that is divided by the number of coefficients: one wrong coefficient
among all of them has at most that risk.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.numerics.nets import randomised_gaussians
from jaxsmi.numerics.quadrature import hermite_polynomials
from jaxsmi.sgd.hermite import multi_indices

__all__ = ["NETS", "RISK", "SampledCoefficients", "affordable", "sampled_coefficients"]

RISK = 1e-3  # of one coefficient or more that is zero and taken for one that is not
NETS = 32
_CHUNK = 2**10
_USUAL = 1000  # multi-indices by default
_MOST = 10_000
_HIGHEST = 8


class SampledCoefficients(NamedTuple):
    """Coefficients with errors.

    Attributes:
        orders: Multi-indices (n, L), that of the mean first.
        value: ĝ (n, k).
        stderr: Their standard errors (n, k).
        variance: Σ Var g, of all entries of the function together.
    """

    orders: np.ndarray
    value: np.ndarray
    stderr: np.ndarray
    variance: float

    @property
    def width(self) -> float:
        """How many standard errors tell a coefficient from zero."""
        from scipy.special import stdtrit  # here: importing it takes longer than the quantile

        tests = max(self.value.size, 1)
        return float(-stdtrit(NETS - 1, 0.5 * RISK / tests))

    def sure(self, tolerance: float) -> np.ndarray:
        """Which multi-indices (n,) are not zero: one of their entries is told from zero, and is
        above a part of the variance, `tolerance`, squared."""
        told = np.abs(self.value) > self.width * self.stderr
        large = self.value**2 > tolerance * self.variance
        seen = np.any(told & large, axis=1)
        seen[0] = False
        return seen

    @property
    def hidden(self) -> np.ndarray:
        """Up to which size (n,), over the deviation of the function, each may hide."""
        reach = self.width * np.max(self.stderr, axis=1)
        return reach / max(self.variance, np.finfo(float).tiny) ** 0.5


def affordable(length: int, most: bool = False) -> int:
    """The highest total order, at most eight, of which L fields have no more than 1000
    multi-indices (`most`: 10 000); 0 if not even of the first."""
    count = _MOST if most else _USUAL
    kept = [d for d in range(1, _HIGHEST + 1) if comb(length + d, d) <= count]
    return max(kept, default=0)


def sampled_coefficients(
    function: Callable[[Array], Array],
    length: int,
    order: int,
    key: PRNGKeyArray,
    samples: int,
) -> SampledCoefficients:
    """Coefficients of all multi-indices |n| <= `order` of a function of L fields.

    Args:
        function: A JAX function of the fields (L,).
        length: L.
        order: The highest total order.
        key: A random key.
        samples: Points of each of 32 nets, a power of two.
    """
    orders = np.array([n for k in range(order + 1) for n in multi_indices(length, k)])
    each, square = _means(function, length, jnp.asarray(orders), order, key, samples)
    values = np.asarray(each, float)
    mean = values.mean(axis=0)
    stderr = values.std(axis=0, ddof=1) / np.sqrt(NETS)
    variance = float(np.sum(np.asarray(square) - mean[0] ** 2))
    return SampledCoefficients(orders, mean, stderr, variance)


@eqx.filter_jit
def _means(
    function: Callable[[Array], Array],
    length: int,
    orders: Array,
    order: int,
    key: PRNGKeyArray,
    samples: int,
) -> tuple[Array, Array]:
    """Means over each net (R, n, k), and of the squares over all (k,)."""
    points = randomised_gaussians(key, samples, NETS, length)
    size = min(samples, _CHUNK)

    def part(z: Array) -> tuple[Array, Array]:
        values = jax.vmap(lambda x: jnp.ravel(function(x)))(z)
        table = jnp.moveaxis(hermite_polynomials(z.T, order), 0, -1)  # (L, points, orders)
        times = lambda product, one: (product * one[0][:, one[1]], None)
        product = jnp.ones((len(z), len(orders)), z.dtype)
        product = jax.lax.scan(times, product, (table, orders.T))[0]
        return product.T @ values / samples, jnp.sum(values**2, axis=0) / samples

    def net(z: Array) -> tuple[Array, Array]:
        parts = jax.lax.map(part, z.reshape(-1, size, length))
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), parts)

    each, squares = jax.lax.map(net, points)
    return each, jnp.mean(squares, axis=0)
