r"""Information exponents: the order of the first Hermite coefficient of a target that is not zero.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (19) to (22)]:

    P_k = Σ_{|n|=k} ‖ĝ_n‖²,   SIE(g) = min{k >= 1: P_k > 0}
    of a student F: min{k >= 1: Σ_{|n|=k} ⟨ĝ_n, F̂_n⟩ != 0}

Up to four tokens the coefficients are integrals on a grid, and a second grid, shifted by half a
step, says how far to trust them. With more tokens they are averages over independent
quasi-Monte-Carlo nets, whose squares are made unbiased.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.border import checked, function, optional, random_key, scalar, whole
from jaxsmi.core.checks import POSITIVE, Arguments, check
from jaxsmi.models.sequence_single_index import HermiteSeries, SequenceSingleIndex
from jaxsmi.numerics.nets import power_of_two, randomised_gaussians
from jaxsmi.numerics.quadrature import hermite_polynomials
from jaxsmi.sgd.grid import MAX_TOKENS
from jaxsmi.sgd.hermite import coefficients, has_second_moment, multi_indices, second_moment

# The highest order looked at by default: by number of tokens on a grid, and on nets.
DEGREES = {1: 12, 2: 12, 3: 8, 4: 6}
_SAMPLED_DEGREE = 4

_NETS = 16
_MAX_COEFFICIENTS = 20_000


class Exponent(NamedTuple):
    """What `information_exponent` returns.

    Attributes:
        order: The information exponent; None where there is none.
        status: "found", "constant", or "undetermined" up to the degree looked at.
        levels: P_0, P_1, .. (orders,).
        errors: Errors of the levels (orders,).
        student_order: The lowest k >= 1 with Σ_{|n|=k} ⟨ĝ_n, F̂_n⟩ != 0 for the student that was
            given; None without a student, or where there is none.
    """

    order: int | None
    status: str
    levels: np.ndarray
    errors: np.ndarray
    student_order: int | None


@checked(
    target=function("a function of the fields (L,)"),
    length=whole(),
    degree=optional(whole()),
    tolerance=scalar(POSITIVE),
    student=optional(function("a function of the fields (L,)")),
    key=optional(random_key),
    samples=whole(),
)
def information_exponent(
    target: Callable[[Array], Array],
    length: int,
    *,
    degree: int | None = None,
    tolerance: float = 1e-10,
    student: Callable[[Array], Array] | None = None,
    key: PRNGKeyArray | None = None,
    samples: int = 2**14,
) -> Exponent:
    r"""Sequence information exponent: the order of the first Hermite coefficient that is not zero.

        SIE(g) = min{k >= 1: P_k > 0},   P_k = Σ_{|n|=k} ‖E[g(ξ) h_n(ξ)]‖²

    Args:
        target: A JAX function of the fields (L,), answering a number or an array, or a
            `HermiteSeries`.
        length: The number of tokens L, an integer >= 1.
        degree: The highest order looked at. Default 12 for one or two tokens, 8 for three, 6 for
            four, 4 for more.
        tolerance: P_k counts above this part of the variance, and above what a second grid changes
            of it; a number > 0. Default 1e-10.
        student: A function of the fields with answers of the target's shape: the exponent relative
            to it is computed too. Default None.
        key: A random key, needed with five tokens and more, where the coefficients are sampled.
        samples: Points of each of 16 nets, there; rounded up to a power of two. Default 16384.

    Returns:
        An `Exponent`. Its `order` is None where the target is "constant", or where no level was
        found up to the degree ("undetermined"). A level that is neither zero nor certain ends the
        search. Sampled levels count from five standard errors on.

    Raises:
        ValueError: For a number out of range, a target of another shape than the student's or
            without a finite second moment, or five and more tokens without a key.

    Example:
        >>> import jaxsmi as smi
        >>> smi.sgd.information_exponent(lambda z: z[0] * z[1], 2).order
        2

    Cost:
        (2 x 201)² evaluations for two tokens, 81³ for three, 61⁴ for four; above, C(L + k - 1, k)
        averages of 16 nets.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (19) to (22)].
    """
    arguments = Arguments()
    if degree is None:
        degree = DEGREES.get(length, _SAMPLED_DEGREE)
    arguments.number("tolerance", tolerance, POSITIVE)
    samples = power_of_two(samples)
    model = SequenceSingleIndex(target, length, target if student is None else student)
    target = model.target
    other = None if student is None else model.student
    if length <= MAX_TOKENS:
        return _on_grids(target, other, length, degree, float(tolerance))
    if isinstance(target, HermiteSeries) and other is None:
        return _of_series(target)
    return _on_nets(target, other, degree, _points(arguments, key, samples, length, degree))


# A series of many tokens, where nothing has to be integrated


def _of_series(series: HermiteSeries) -> Exponent:
    levels = np.zeros(1 + max(sum(n) for n in series.degrees))
    terms: dict[tuple[int, ...], np.ndarray] = {}
    for n, value in zip(series.degrees, np.asarray(series.orthonormal), strict=True):
        terms[n] = terms.get(n, 0.0) + value
    for n, value in terms.items():
        levels[sum(n)] += np.sum(value**2)
    order = next((k for k in range(1, len(levels)) if levels[k] > 0.0), None)
    status = "constant" if order is None else "found"
    return Exponent(order, status, levels, np.zeros_like(levels), None)


# Up to four tokens, on two grids


class _OnGrid(NamedTuple):
    """Coefficients ĝ_n, E‖g‖², and Σ_{|n|=k} ⟨ĝ_n, F̂_n⟩ by order k if there is a student."""

    coefficients: np.ndarray
    second_moment: float
    products: np.ndarray | None


def _integrals(
    target: Callable[[Array], Array],
    student: Callable[[Array], Array] | None,
    length: int,
    degree: int,
    shift: float,
) -> _OnGrid:
    g = np.asarray(coefficients(target, length, degree, shift))
    moment = second_moment(target, length, shift)
    if student is None:
        return _OnGrid(g, moment, None)
    F = np.asarray(coefficients(student, length, degree, shift))
    return _OnGrid(g, moment, _by_order(g * F, length, degree))


def _by_order(table: np.ndarray, length: int, degree: int) -> np.ndarray:
    """Sums of a table of multi-indices over |n| = k, for each k (degree + 1,)."""
    return np.array(
        [sum(float(table[n].sum()) for n in multi_indices(length, k)) for k in range(degree + 1)]
    )


def _on_grids(
    target: Callable[[Array], Array],
    student: Callable[[Array], Array] | None,
    length: int,
    degree: int,
    tolerance: float,
) -> Exponent:
    first = _integrals(target, student, length, degree, 0.0)
    second = _integrals(target, student, length, degree, 0.5)
    check(has_second_moment(target, length), "target", target, "a function of finite second moment")
    g = first.coefficients
    moment = first.second_moment
    levels = _by_order(g**2, length, degree)
    errors = _by_order((g - second.coefficients) ** 2, length, degree)
    variance = moment - levels[0]
    # rounding of g_n is squared in P_k, so that levels are exact to about eps² of the second moment
    certain = np.maximum(tolerance * variance, 9.0 * errors)
    order, status = _first(levels, certain, tolerance * variance)
    if variance <= 1e-12 * moment:
        return Exponent(None, "constant", levels, errors, None)
    student_order = None
    if student is not None and first.products is not None and second.products is not None:
        size = np.sqrt(variance * max(second_moment(student, length), 1e-300))
        unsure = 9.0 * np.abs(first.products - second.products)
        certain = np.maximum(np.sqrt(tolerance) * 1e-5 * size, unsure)
        student_order, _ = _first(np.abs(first.products), certain, np.inf)
    return Exponent(order, status, levels, np.sqrt(errors * levels) * 2 + errors, student_order)


def _first(levels: np.ndarray, certain: np.ndarray, possible: float) -> tuple[int | None, str]:
    """The first order >= 1 that is certain; "undetermined" where a possible one precedes it."""
    for k in range(1, len(levels)):
        if levels[k] > certain[k]:
            return k, "found"
        if levels[k] > possible:
            break
    return None, "undetermined"


# Five tokens and more, on nets


def _points(
    arguments: Arguments, key: PRNGKeyArray | None, samples: int, length: int, degree: int
) -> Array:
    """Independent nets (nets, samples, L), if there is a key and not too much to compute."""
    sampled = f"a key: with more than {MAX_TOKENS} tokens the coefficients are sampled"
    check(key is not None, "key", key, sampled)
    key = arguments.key("key", key)
    count = sum(comb(length + k - 1, k) for k in range(degree + 1))
    allowed = f"fewer than the {count} coefficients that {length} tokens have up to there"
    check(count <= _MAX_COEFFICIENTS, "degree", degree, allowed)
    return randomised_gaussians(key, samples, _NETS, length)


def _on_nets(
    target: Callable[[Array], Array],
    student: Callable[[Array], Array] | None,
    degree: int,
    points: Array,
) -> Exponent:
    """From unbiased squares over independent nets: a level counts from five standard errors on."""
    levels = []
    relative = []
    moment = 0.0
    for k in range(degree + 1):
        which = jnp.asarray(multi_indices(points.shape[-1], k))
        g, moment = _averages_of_nets(target, which, points, degree)
        levels.append(_unbiased(g, g))
        if student is not None:
            F, _ = _averages_of_nets(student, which, points, degree)
            relative.append(_unbiased(g, F))
    values, errors = np.array(levels).T
    variance = moment - values[0]
    if variance <= 1e-12 * moment:
        return Exponent(None, "constant", values, errors, None)
    order = next((k for k in range(1, degree + 1) if values[k] > 5.0 * errors[k]), None)
    student_order = next((k for k, (x, dx) in enumerate(relative) if k and abs(x) > 5.0 * dx), None)
    status = "undetermined" if order is None else "found"
    return Exponent(order, status, values, errors, student_order)


def _averages_of_nets(
    function: Callable[[Array], Array], which: Array, points: Array, degree: int
) -> tuple[np.ndarray, float]:
    """Coefficients at the multi-indices (n, L) by net (nets, n k), and E‖f‖² of all nets."""
    averages = [_averages(function, which, z, degree) for z in points]
    return np.stack([np.asarray(x).ravel() for x, _ in averages]), float(
        np.mean([moment for _, moment in averages])
    )


@eqx.filter_jit
def _averages(
    function: Callable[[Array], Array], which: Array, z: Array, degree: int
) -> tuple[Array, Array]:
    values = jax.vmap(lambda x: jnp.ravel(function(x)))(z)  # (samples, k)
    table = hermite_polynomials(z.T, degree)  # (degree + 1, L, samples)
    h = lambda n: jnp.prod(jnp.take_along_axis(table, n[None, :, None], axis=0)[0], axis=0)

    def one(n: Array) -> Array:
        # less the mean of the function: its noise would be that of all orders above zero
        return h(n) @ (values - jnp.mean(values, axis=0) * (jnp.sum(n) > 0)) / len(z)

    return lax.map(one, which), jnp.mean(jnp.sum(values**2, -1))


def _unbiased(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Σ_n a_n b_n without the bias of shared noise, from independent rows; its jackknife error."""

    def estimate(a: np.ndarray, b: np.ndarray) -> float:
        R = len(a)
        return float(np.sum(a.sum(0) * b.sum(0) - (a * b).sum(0)) / (R * (R - 1)))

    R = len(a)
    without = np.array([estimate(np.delete(a, r, 0), np.delete(b, r, 0)) for r in range(R)])
    return estimate(a, b), float(np.sqrt((R - 1) / R * np.sum((without - without.mean()) ** 2)))
