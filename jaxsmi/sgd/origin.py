r"""The risk at the origin: its Taylor series, its flatness, and how many samples escape takes.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (23) to (27)]:

    R(m, e)/c = E‖g‖² + Σ_α e^α/√α! [‖F‖²]^_α - 2 Σ_n m^|n| Σ_α e^α √((n+α)!/n!)/α! ⟨ĝ_n, F̂_{n+α}⟩

    κ     = the lowest order of a derivative of R in (m, e) at the origin that is not zero
    κ_esc = the lowest order k of a leading term of R, along some direction, that is negative
    n     = d t_η/γ,  t_η = η/a (k = 1),  ln(η/m_0)/a (k = 2),  (m_0^{2-k} - η^{2-k})/((k-2) a)
    a     = -∂_m^k R(0)/(k-1)!

SGD escapes from the origin by the order κ_esc: a positive curvature lowers κ and does not help.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.border import EXACT, checked, numbers, optional, scalar, whole
from jaxsmi.core.checks import POSITIVE, UNIT_INTERVAL, Arguments, check
from jaxsmi.models.sequence_single_index import SequenceSingleIndex, is_sequence
from jaxsmi.sgd.exponents import DEGREES
from jaxsmi.sgd.functions import SquaredNorm
from jaxsmi.sgd.grid import MAX_TOKENS
from jaxsmi.sgd.hermite import coefficients, multi_indices, second_moment

_RANDOM_DIRECTIONS = 4096


@checked(model=is_sequence, order=whole())
def taylor(model: SequenceSingleIndex, order: int) -> dict[tuple[int, ...], float]:
    r"""Coefficients of the risk's Taylor series in (m, e_1..e_K) at the origin.

        R(m, e)/c = E‖g‖² + Σ_α e^α/√α! [‖F‖²]^_α - 2 Σ_n m^|n| Σ_α e^α √((n+α)!/n!)/α! ⟨ĝ_n,
        F̂_{n+α}⟩

    Args:
        model: A model of at most four tokens with the squared loss, whose student has one
            direction.
        order: The highest order, an integer >= 1.

    Returns:
        The coefficients from order one on, by the exponents of (m, e_1..e_K).

    Raises:
        ValueError: For an untied network, the unsquared loss, more than four tokens, or an order <
            1.

    Example:
        >>> import jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(square, 1, square, loss_factor=1.0)
        >>> round(float(smi.sgd.taylor(model, 2)[2,]), 6)  # R = 2 - 2 m²
        -2.0

    Cost:
        That of the coefficients of target and student, `coefficients`.

    Source:
        [theory: online-sgd, Eq. (23)].
    """
    _check_series(model)
    rows = np.asarray(model.encoding, float)
    series: dict[tuple[int, ...], float] = {}
    for m_power, alpha, value in _terms(model, order):
        for exponents, coefficient in _multiplied_out(value, alpha, rows).items():
            place = (m_power, *exponents)
            series[place] = series.get(place, 0.0) + coefficient
    return series


def _terms(model: SequenceSingleIndex, order: int) -> Iterator[tuple[int, tuple[int, ...], float]]:
    """(j, α, value) for the terms value m^j Π_l (C e)_l^{α_l} of the risk."""
    L = model.length
    encoded = model.encoding.shape[1] > 0
    c = float(model.loss_factor)
    g, F = (np.asarray(coefficients(f, L, order)) for f in (model.target, model.student))
    square = np.zeros(0)
    if encoded:
        square = np.asarray(coefficients(SquaredNorm(model.student), L, order))[..., 0]
    for total in range(1, order + 1):
        for j in range(total + 1):
            if not encoded and total > j:
                continue
            for alpha in multi_indices(L, total - j):
                if j == 0 and encoded:
                    yield 0, alpha, c * square[alpha] / np.sqrt(_factorial(alpha))
                for n in multi_indices(L, j):
                    both = tuple(a + b for a, b in zip(n, alpha, strict=True))
                    size = np.sqrt(_factorial(both) / _factorial(n)) / _factorial(alpha)
                    yield j, alpha, -2.0 * c * size * float(g[n] @ F[both])


def _factorial(n: tuple[int, ...]) -> float:
    """n! = Π_l n_l!."""
    return float(np.prod([np.prod(np.arange(1, k + 1)) for k in n]))


def _multiplied_out(
    value: float, alpha: tuple[int, ...], rows: np.ndarray
) -> dict[tuple[int, ...], float]:
    """value Π_l (C e)_l^{α_l} as a polynomial in e_1..e_K; `rows` is C (L, K)."""
    K = rows.shape[1]
    polynomial = {(0,) * K: value}
    for row, power in zip(rows, alpha, strict=True):
        for _ in range(power):
            product: dict[tuple[int, ...], float] = {}
            for exponents, coefficient in polynomial.items():
                for k in range(K):
                    raised = (*exponents[:k], exponents[k] + 1, *exponents[k + 1 :])
                    product[raised] = product.get(raised, 0.0) + coefficient * row[k]
            polynomial = product
    return polynomial


def _check_series(model: SequenceSingleIndex) -> None:
    """Raise a ValueError for a model without such a series, or one that cannot be computed."""
    Arguments().instance("model", model, SequenceSingleIndex, "a SequenceSingleIndex")
    check(model.tied, "model", "an untied network", "a student of one direction")
    squared = "'squared': the unsquared loss has no such series"
    check(model.loss == "squared", "model.loss", model.loss, squared)
    few = f"1 to {MAX_TOKENS}: coefficients are integrals on a grid"
    check(model.length <= MAX_TOKENS, "model.length", model.length, few)


def _scale(model: SequenceSingleIndex) -> float:
    """c (E‖g‖² + E‖F‖²): what a coefficient of the risk is small against."""
    return float(model.loss_factor) * sum(
        second_moment(f, model.length) for f in (model.target, model.student)
    )


@checked(model=is_sequence)
def hessian_at_origin(model: SequenceSingleIndex) -> np.ndarray:
    r"""Hessian of the risk in (m, e_1..e_K) at the origin, from Hermite coefficients.

        R_mm = -4c Σ_{|n|=2} ⟨ĝ_n, F̂_n⟩
        R_{ε_l ε_l'} = c √α! ([‖F‖²]^_α - 2 ⟨ĝ_0, F̂_α⟩),   ε = C e,   α = 1_l + 1_l'

    Args:
        model: As for `taylor`.

    Returns:
        An array (1 + K, 1 + K): what `hessian` computes by differentiation.

    Raises:
        ValueError: As `taylor`.

    Example:
        >>> import jaxsmi as smi
        >>> smi.sgd.hessian_at_origin(smi.sgd.semantic_positional(0.64)).round(6).tolist()
        [[-0.079381, 0.0], [0.0, -0.07885]]

    Cost:
        That of the coefficients of target and student up to order two.

    Source:
        [theory: online-sgd, Eq. (24), Table 2].
    """
    series = taylor(model, 2)
    size = 1 + model.encoding.shape[1]
    hessian = np.zeros((size, size))
    for exponents, value in series.items():
        if sum(exponents) == 2:
            i, j = (k for k, power in enumerate(exponents) for _ in range(power))
            hessian[i, j] = hessian[j, i] = value * (2.0 if i == j else 1.0)
    return hessian


class Flatness(NamedTuple):
    """What `flatness` returns.

    Attributes:
        order: κ, the lowest order of the risk's series at the origin (inf: none up to the order
            looked at).
        escape: κ_esc, that of a term by which some direction goes down (inf: none up to the order
            looked at).
        direction: The direction (1 + K,) in (m, e) in which that term is steepest; NaN where there
            is none.
        series: The Taylor coefficients that count, by exponents.
    """

    order: float
    escape: float
    direction: np.ndarray
    series: dict[tuple[int, ...], float]


@checked(model=is_sequence, order=whole(), tolerance=scalar(POSITIVE))
def flatness(model: SequenceSingleIndex, order: int = 6, tolerance: float = 1e-10) -> Flatness:
    r"""Flatness index of the risk at the origin, and the order by which SGD escapes from there.

        κ = min{k >= 1: ∇^k R(0, 0) != 0}
        κ_esc = min{k: the leading term of R along some direction has order k and is negative}

    A positive curvature counts for κ, and does not help SGD away. Directions of the sphere in (m,
    e) are its axes, the eigenvectors of the Hessian, their pairwise sums, and 4096 others, at each
    order inside the null space of the Hessian.

    Args:
        model: As for `taylor`.
        order: The highest order looked at, an integer >= 1. Default 6.
        tolerance: A term counts above this part of c (E‖g‖² + E‖F‖²), a number > 0. Default 1e-10.

    Returns:
        A `Flatness`.

    Raises:
        ValueError: As `taylor`.

    Example:
        >>> import jaxsmi as smi
        >>> cube = smi.sgd.HermiteSeries({(3,): 1.0}, normalised=True)
        >>> smi.sgd.flatness(smi.SequenceSingleIndex(cube, 1, cube)).escape
        3

    Cost:
        That of the coefficients of target and student, and `order` products over 10,000 directions.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eq. (25)].
    """
    arguments = Arguments()
    arguments.number("tolerance", tolerance, POSITIVE)
    series = taylor(model, order)
    tolerance = max(tolerance, 1e3 * float(jnp.finfo(theory_dtype()).eps))
    small = tolerance * _scale(model)
    series = {n: value for n, value in series.items() if abs(value) > small}
    lowest = min((sum(n) for n in series), default=np.inf)
    directions = _directions(hessian_at_origin(model), small)
    level = np.ones(len(directions), bool)  # directions along which all lower orders vanish
    for k in range(1, order + 1):
        terms = np.zeros(len(directions))
        for n, value in series.items():
            if sum(n) == k:
                terms += value * np.prod(directions ** np.array(n), axis=1)
        down = np.where(level, terms, 0.0)
        if down.min() < -small:
            return Flatness(lowest, k, directions[np.argmin(down)], series)
        level &= np.abs(terms) <= small
    return Flatness(lowest, np.inf, np.full(directions.shape[1], np.nan), series)


def _directions(hessian: np.ndarray, small: float) -> np.ndarray:
    """Unit vectors (directions, 1 + K) along which the risk is followed, each with its opposite."""
    dimension = len(hessian)
    curvature, axes = np.linalg.eigh(hessian)
    null = axes[:, np.abs(curvature) <= small]
    inside = null if null.shape[1] else axes
    normal = np.random.default_rng(0).standard_normal((_RANDOM_DIRECTIONS, inside.shape[1]))
    pairs = [s * a + b for a, b in itertools.combinations(np.eye(dimension), 2) for s in (1, -1)]
    sums = np.array(pairs).reshape(-1, dimension)
    rays = np.concatenate([np.eye(dimension), axes.T, inside.T, sums, normal @ inside.T])
    rays = np.concatenate([rays, -rays])
    return rays / np.linalg.norm(rays, axis=1, keepdims=True)


@checked(
    model=is_sequence,
    dimension=whole(2, EXACT),
    gamma=numbers("numbers > 0", POSITIVE),
    eta=scalar(UNIT_INTERVAL),
    start=optional(scalar(UNIT_INTERVAL)),
)
def sample_complexity(
    model: SequenceSingleIndex,
    dimension: int,
    gamma: ArrayLike,
    eta: float = 0.5,
    start: float | None = None,
) -> Array:
    r"""Steps, which are samples, until m reaches η by the leading drift alone.

        n = d t_η/γ,   t_η = η/a (k = 1),   ln(η/m_0)/a (k = 2)
        t_η = (m_0^{2-k} - η^{2-k})/((k-2) a) (k >= 3)
        a = -∂_m^k R(0)/(k-1)!

    Args:
        model: As for `taylor`.
        dimension: The dimension d, an integer >= 2.
        gamma: Learning rates γ, numbers > 0.
        eta: The level η of m, a number in (m_0, 1). Default 1/2.
        start: The overlap m_0 at the start, a number in (0, η). Default 1/√d.

    Returns:
        n, of the shape of `gamma`; inf where the leading term along m does not go down from m_0 >
        0.

    Raises:
        ValueError: For a number out of range, and as `taylor`.

    Example:
        >>> import jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2,): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(square, 1, square, loss_factor=1.0)
        >>> round(float(smi.sgd.sample_complexity(model, 400, 0.01)))  # d ln(10)/(4 γ)
        23026

    Cost:
        That of the coefficients of target and student.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (26), (27)].
    """
    arguments = Arguments()
    rates = arguments.array("gamma", gamma, "numbers > 0")
    check(concrete(rates), "gamma", "a traced number", "known numbers: call it outside jit")
    arguments.condition(jnp.all(rates > 0.0), "gamma", gamma, "numbers > 0")
    first = float(1.0 / np.sqrt(dimension)) if start is None else start
    arguments.number("start", first, UNIT_INTERVAL)
    arguments.number("eta", eta, UNIT_INTERVAL)
    arguments.condition(first < eta, "eta", eta, f"a number in (start, 1), start = {first:.3g}")
    _check_series(model)
    series = taylor(model, DEGREES[model.length])
    small = 1e-10 * _scale(model)
    along = {n[0]: v for n, v in series.items() if not any(n[1:]) and abs(v) > small}
    k = min(along, default=0)
    if k == 0 or along[k] >= 0:
        return jnp.full(rates.shape, jnp.inf)
    a = -k * along[k]  # d^k R/(k-1)! = k times the coefficient
    if k == 1:
        time = eta / a
    elif k == 2:
        time = np.log(eta / first) / a
    else:
        time = (first ** (2.0 - k) - eta ** (2.0 - k)) / ((k - 2) * a)
    return jnp.asarray(dimension * time / np.asarray(gamma))
