r"""Points and weights of averages: rules in one variable, randomised nets, shifted grids.

Equations here [theory: numerics, Eqs. (1), (8), (9), (14), (16)]:

* Gauss–Legendre, ∫_a^b f dx ≈ Σ_k w_k f(x_k): exact for polynomials of degree 2n - 1;
* Gauss–Hermite, E f(x) ≈ Σ_k w_k f(x_k) under N(0, 1);
* orthonormal Hermite polynomials, √(n+1) h_{n+1}(x) = x h_n(x) - √n h_{n-1}(x), E h_n h_m = δ_nm
  under N(0, 1);
* randomised Sobol nets [M98]: the points x_i of a net in [0, 1)^d, scrambled by random lower
  triangular matrices of bits and shifted by random digits, become Gaussians by t = Φ^{-1}(x). Each
  point is uniform, so that (1/N) Σ f(t_i) is unbiased; R independent randomisations x_r give its
  standard error, with Student's factor t/2, P(T_{R-1} < t) = Φ(2):

      stderr = (t/2) √(Σ_r (x_r - x̄)²/(R (R - 1)))

* control variates: E x = E[x - β d] for any d of mean zero, of least variance at
  β = Cov(x, d)/Var(d);
* trapezoidal sums over a grid with a random shift u [theory: empirical-risk, Eqs. (16), (17)]:

      E f(t) ≈ h^d Σ_i f(h (i + u)) Π_k φ(h (i_k + u_k)),   i_k = -n/2, .., n/2 - 1

  Their average over u is the integral itself, and their error for a smooth f falls faster than any
  power of h. In one variable t = ε sinh s with s on the grid has points of all sizes from ε on, for
  functions that change within a short distance of 0.

Rules in one variable are computed once per process, as NumPy arrays: importing this module starts
no device. Random points depend on the key alone: two problems at one key share their noise (common
random numbers). Integrals that refine themselves are in refining.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import theory_dtype


def _read_only(rule: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The rule, read-only: all callers share one copy."""
    for part in rule:
        part.setflags(write=False)
    return rule


@functools.cache
def legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) of the Gauss–Legendre rule on [-1, 1]."""
    return _read_only(np.polynomial.legendre.leggauss(count))


def legendre_panel(count: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) of the Gauss–Legendre rule on [low, high]."""
    nodes, weights = legendre(count)
    half = 0.5 * (high - low)
    return 0.5 * (high + low) + half * nodes, half * weights


@functools.cache
def hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (count,) of the Gauss–Hermite rule under N(0, 1).

    The weights sum to one.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return _read_only((nodes, weights / np.sqrt(2.0 * np.pi)))


def hermite_polynomials(x: Array, degree: int) -> Array:
    """h_0(x) .. h_degree(x), stacked along a new first axis; He_n = √n! h_n."""
    # orthonormal: entries of order one, where He_n itself grows as √n!
    table = [jnp.ones_like(x), x]
    for n in range(1, degree):
        table.append((x * table[n] - np.sqrt(n) * table[n - 1]) / np.sqrt(n + 1))
    return jnp.stack(table[: degree + 1])


_BITS = 20  # a net has at most 2^20 points, more than any average here takes
_FILE = Path(__file__).with_name("directions.npy")  # generated_directions(128)


@functools.cache
def direction_numbers(dimension: int) -> np.ndarray:
    """Sobol direction numbers (dimension, 20), uint32: those of SciPy's generator, whose first
    dimensions are in a file, as importing scipy.stats takes two seconds."""
    stored = np.load(_FILE)
    return stored[:dimension] if dimension <= len(stored) else generated_directions(dimension)


def generated_directions(dimension: int) -> np.ndarray:
    """Sobol direction numbers from SciPy's generator."""
    from scipy.stats import qmc

    columns = []
    for k in range(_BITS):
        # the Gray code of 2^(k+1) - 1 is 2^k: that point is the k-th direction number
        sequence = qmc.Sobol(dimension, scramble=False, bits=32)
        point = sequence.fast_forward(2 ** (k + 1) - 1).random(1)[0]
        columns.append((point * 2.0**32).astype(np.uint32))
    return np.stack(columns, axis=1)


class Net(eqx.Module):
    """One randomisation of a Sobol net: a random linear scramble and a digital shift [M98].

    Averages over its first 2^k points are unbiased; independent nets give independent averages.

    Args:
        key: Random key of the scramble and the shift.
        dimension: d, the number of variables.
    """

    directions: Array
    shift: Array

    def __init__(self, key: PRNGKeyArray, dimension: int):
        draw = lambda key: jax.random.bits(key, (dimension, 32, 32), jnp.uint32)
        # scramble and shift in one call: each call of a generator takes 0.1 s to compile
        words, shifts = jax.vmap(draw)(jax.random.split(key))
        lower = jnp.tril(words & 1, -1) | jnp.eye(32, dtype=jnp.uint32)
        # bit of each row, the most significant first
        place = jnp.uint32(1) << jnp.arange(31, -1, -1, dtype=jnp.uint32)
        masks = jnp.sum(lower * place, axis=-1, dtype=jnp.uint32)
        bits = masks[:, None, :] & jnp.asarray(direction_numbers(dimension))[:, :, None]
        parity = lax.population_count(bits) & 1
        self.directions = jnp.sum(parity * place, axis=-1, dtype=jnp.uint32)
        self.shift = shifts.ravel()[:dimension]

    def uniforms(self, start: ArrayLike, count: int) -> Array:
        """Points (count, d) in (0, 1) from position `start` on.

        `count` a power of two, `start` a multiple of it.
        """
        # digital nets are linear over bits: the point of start + i is that of start xor that of i
        base = self.shift
        for k in range(_BITS):
            base = base ^ (self.directions[:, k] * ((jnp.asarray(start, jnp.uint32) >> k) & 1))
        index = jnp.arange(count, dtype=jnp.uint32)
        x = jnp.broadcast_to(base[:, None], (base.shape[0], count))
        for k in range(count.bit_length() - 1):
            x = x ^ (self.directions[:, k, None] * ((index >> k) & 1))
        # half a digit off zero, and below one in float32, where Φ^{-1} is infinite
        dtype = theory_dtype()
        return jnp.minimum((x.astype(dtype) + 0.5) / 2.0**32, 1.0 - jnp.finfo(dtype).eps).T

    def gaussians(self, start: ArrayLike, count: int) -> Array:
        """Standard Gaussian points Φ^{-1}(x) (count, d), as `uniforms`."""
        return ndtri(self.uniforms(start, count).T).T  # the long axis last while computing


def nets(key: PRNGKeyArray, randomisations: int, dimension: int) -> Net:
    """Independent randomisations of one net, stacked along a leading axis."""
    return jax.vmap(lambda k: Net(k, dimension))(jax.random.split(key, randomisations))


def randomised_gaussians(
    key: PRNGKeyArray, samples: int, randomisations: int, dimension: int
) -> Array:
    """Independent randomisations of a Gaussian net.

    Averages over the middle axis are independent and unbiased, so that their spread is an honest
    standard error. The points depend on `key` alone: common random numbers.

    Args:
        key: A random key.
        samples: Points of each randomisation, a power of two, at most 2^20.
        randomisations: How many.
        dimension: d, the number of variables.

    Returns:
        Points (randomisations, samples, dimension).
    """
    return jax.vmap(lambda net: net.gaussians(0, samples))(nets(key, randomisations, dimension))


def standard_error(replicas: ArrayLike) -> Array:
    """Standard error of the mean of R independent replicas (R, ...), with Student's factor: two of
    it hold the truth as often as two standard deviations of a Gaussian."""
    from scipy.special import ndtr, stdtrit  # here: importing it takes longer than the quantile

    values = jnp.asarray(replicas)
    R = len(values)
    # the spread of few replicas is itself uncertain: 1.21 for R = 8, 1.09 for 16
    factor = 0.5 * float(stdtrit(R - 1, ndtr(2.0)))
    return factor * jnp.std(values, axis=0, ddof=1) / np.sqrt(R)


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`, at most 2^20."""
    return min(1 << max(int(count) - 1, 0).bit_length(), 1 << _BITS)


def covariance_and_variance(
    values: Array, control: Array, axis: int, mean: Callable[..., Array] = jnp.mean
) -> tuple[Array, Array]:
    """Cov(x, d) and Var(d) along an axis: their quotient is the coefficient β of a control variate.

    Args:
        values: x, an array.
        control: d, of the shape of `values`.
        axis: The axis of the samples.
        mean: Their average, called as `mean(array, axis=axis)`. Default jnp.mean.

    Returns:
        Covariance and variance, without that axis.
    """
    centred = control - jnp.expand_dims(mean(control, axis=axis), axis)
    return mean(values * centred, axis=axis), mean(centred**2, axis=axis)


def quotient(numerator: Array, denominator: Array) -> Array:
    """numerator/denominator, zero where the denominator is not positive."""
    positive = denominator > 0.0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), 0.0)


_FEWEST = (
    8  # points per axis below which a grid is worse than a net [theory: empirical-risk, Eq. (16)]
)
WIDEST = 8.3  # a Gaussian has 1e-16 of its mass outside


# relative error of averages whose nets agree to rounding: the mass beyond `WIDEST` times the growth
# of the integrand (measured: 2e-12 for |z|, below 1e-12 for signs and logistic labels)
INTEGRAL_ERROR = 1e-11
# distance from a centre within which points of `fine_points` are as dense as they get
_FINEST = 1e-5
# points a centre that err less than a net (f = exp(-t²/2): 1e-5, 1e-9 with twice as many)
FEWEST_FINE = 128


class Points(NamedTuple):
    """Points of independent rules: `position` (R, n, d), `weight` (R, n), of sum one in each."""

    position: Array
    weight: Array


def gaussian_points(
    key: PRNGKeyArray,
    samples: int,
    randomisations: int,
    dimension: int,
    fewest: int = _FEWEST,
) -> Points:
    """Rules for averages over `dimension` standard normals.

    Args:
        key: Of the shifts or the nets; the points depend on it alone.
        samples: Points of each rule, at most.
        randomisations: R, independent rules.
        dimension: d, the number of variables.
        fewest: Points an axis below which a grid is worse than a net: more where the function has
            poles near the real axis. Default 8.

    Returns:
        `Points`: a grid where every axis has `fewest` points or more, else a net.
    """
    # 1e-9: the d-th root of a d-th power may round to below the integer
    side = int(np.floor(samples ** (1.0 / dimension) + 1e-9))
    if side < fewest:
        # the largest power of two up to `samples`: other counts lose the balance of a net
        size = power_of_two(samples // 2 + 1)
        position = randomised_gaussians(key, size, randomisations, dimension)
        return Points(position, jnp.full(position.shape[:2], 1.0 / size, position.dtype))
    # the mass outside and the error of the sum inside fall alike where the width is √(π n)
    width = min(np.sqrt(np.pi * side), WIDEST)
    step = 2.0 * width / side
    axes = np.meshgrid(*[np.arange(side) - side // 2] * dimension, indexing="ij")
    index = jnp.asarray(np.stack([axis.ravel() for axis in axes], -1), theory_dtype())
    shift = jax.random.uniform(key, (randomisations, 1, dimension), index.dtype)
    position = step * (index + shift)
    density = jnp.exp(-0.5 * jnp.sum(position**2, -1)) * (step / np.sqrt(2.0 * np.pi)) ** dimension
    # normalised in each rule: the average of a constant is exact, as in a net
    return Points(position, density / jnp.sum(density, -1, keepdims=True))


def fine_points(key: PRNGKeyArray, samples: int, randomisations: int, centres: Array) -> Points:
    """Rules for averages over one standard normal of functions that may change within 1e-5 of some
    centres (K,), as the posterior of a sign does at zero; `samples` and K: powers of two. The first
    half of a rule, or quarter, is a coarser rule.

    Each centre has a trapezoidal sum in s, t = c + ε sinh s, of its share q_c⁴/Σ q⁴ of the
    function, q_c = 1/√(ε² + (t - c)²) = ds/dt: a small share next to the other centres.
    """
    each, order = samples // len(centres), np.zeros(1)
    while len(order) < each:
        order = np.concatenate([2.0 * order, 2.0 * order + 1.0])
    c = jnp.clip(lax.stop_gradient(centres), -WIDEST, WIDEST)
    end = jnp.arcsinh((WIDEST + jnp.abs(c)) / _FINEST)
    # centres that are the same share one finer sum
    part = np.arange(len(centres)) / len(centres)
    shift = jax.random.uniform(key, (randomisations, 1, 1), theory_dtype())
    # around the ends, where nothing is: no shift leaves one of them out
    s = end * (2.0 * jnp.mod(order[:, None] + part + shift, each) / each - 1.0)
    t = c + _FINEST * jnp.sinh(s)
    q = jnp.sum(1.0 / jnp.hypot(t[..., None] - c, _FINEST) ** 4, -1)
    weight = end * jnp.exp(-0.5 * t**2) / (jnp.hypot(t - c, _FINEST) ** 3 * q)
    weight = weight.reshape(randomisations, -1)
    position = t.reshape(randomisations, -1, 1)
    return Points(position, weight / jnp.sum(weight, -1, keepdims=True))
