r"""The population risk over the overlaps, its averages, and its shape at the origin.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (7), (12), (23) to (25), (63)], v = (m, e):

    R(m, e)/c = E‖g‖² + Σ_α ε^α/√α! [‖F‖²]^_α - 2 Σ_n m^|n| Σ_α ε^α √((n+α)!/n!)/α! ⟨ĝ_n, F̂_{n+α}⟩
    ε = C e

    κ     = the lowest order of a derivative of R in (m, e) at the origin that is not zero
    κ_esc = the lowest order k of a leading term of R, along some direction, that is negative

SGD escapes from the origin by the order κ_esc: a positive curvature lowers κ and does not help.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from math import factorial, prod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.options import Averages
from jaxsmi.core.results import Estimate
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.models.sequence_single_index import SequenceLoss
from jaxsmi.models.teacher_student import AbstractTeacher, TeacherStudent
from jaxsmi.sgd.averages import (
    AbstractAverages,
    Moments,
    averages_of,
    spread,
)
from jaxsmi.sgd.grid import MAX_TOKENS
from jaxsmi.sgd.hermite import coefficients, multi_indices, second_moment, square
from jaxsmi.sgd.problem import Initial, Point, check_gradient, gram_of, pair_of, point_of

_USUAL = 2**18, 16  # points of all nets, and nets: errors of 1e-4 of the risk of attention
_ROUNDING = 1e3  # machine epsilons of the risk: a sum over 1e4 nodes loses less
_DIRECTIONS = 4096  # random ones for the escape: within 2 degrees of any in three dimensions


def _place(
    model: object,
    overlaps: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial,
    student: object,
    loss: Callable[[Array, Array], Array] | None,
    key: PRNGKeyArray | None,
    settings: Averages | None,
) -> tuple[TeacherStudent, AbstractAverages, Point]:
    """Teacher and student of a call, their averages, and where these are taken."""
    pair = pair_of(model, student, loss)
    initial = Initial.of(overlaps)
    gram = gram_of(pair, initial.teacher)
    point = point_of(pair, gram, initial.student)
    law = averages_of(pair, gram, key, settings, _USUAL)
    check_gradient(pair)
    return pair, law, point


def risk(
    model: AbstractTeacher,
    overlaps: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial,
    *,
    student: AbstractTeacher | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> Estimate:
    r"""Population risk, differentiable in the overlaps and in the model's numbers.

        R(m, e) = c E‖g(z*) - F(z)‖²,   z = C e + m z* + √(1 - m²) ξ
        index models:  R(M, Q) = E ℓ(link(z), y), with the noise of labels

    Derivatives exist at |m| = 1 too, but where the risk is sampled: there, and of an index model
    where Q - M ρ⁺ Mᵀ is singular, they are NaN.

    Args:
        model: A `SequenceSingleIndex`, or an index model.
        overlaps: Overlaps (M, Q), or an `Initial`; of a `SequenceSingleIndex` m, or
            (m, e_1, .., e_K) with m² + ‖e‖² <= 1, or m_1, .., m_L of an untied network.
        student: Another index model of as many tokens. Default: the model.
        loss: ℓ(prediction, label) of a sample. Default ‖ŷ - y‖².
        key: A random key, where the risk is sampled: with more than three tokens, for networks
            whose target is no `HermiteSeries`, for the unsquared loss, and index models.
        averages: Points of all nets (default 2^18) and nets (16), there. A `smi.Averages`.

    Returns:
        Estimate(value, stderr). On grids `stderr` is the change with half of the nodes: about 1e-13
        for smooth functions of size one of one and two tokens and 1e-10 of three. NaN under jit
        where no weights have such overlaps.

    Raises:
        ValueError: For overlaps that no weights have, other shapes, a target without a second
            moment, or a missing key.

    Example:
        >>> import jaxsmi as smi
        >>> round(float(smi.sgd.risk(smi.sgd.semantic_positional(0.67), [0.5, 0.4]).value), 10)
        0.1175037044

    Cost:
        2 L n^{L+1} operations, n = 201 nodes for two tokens (2 ms), 81 for three (0.5 s); for |m|
        so close to one that √(1 - m²) < 1.6 steps, 8^L n^L evaluations of F. Many points at once
        by `jax.lax.map`: vmap takes all rules for each.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (8) to (11)].
    """
    _, law, point = _place(model, overlaps, student, loss, key, averages)
    values, rounding = _risk(law, point)
    check(law.exists(), "target", "a function without a second moment", "one that has it")
    return Estimate(jnp.mean(values), spread(values) + rounding)


@eqx.filter_jit
def _risk(law: AbstractAverages, point: Point) -> tuple[Array, Array]:
    values = law.over_nets(lambda net: net.risk(*point))
    return values, jax.lax.stop_gradient(law.rounding(*point))


def averages(
    model: AbstractTeacher,
    overlaps: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial,
    *,
    student: AbstractTeacher | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> tuple[Moments, Moments]:
    r"""Averages over a fresh sample at overlaps: the terms of the flow, and of its variants.

        A_T = E[s hᵀ],   A_Z = E[s zᵀ],   V = E[s sᵀ],   R = E ℓ,   s = ∂ℓ/∂z

    of fields h = T x/√D of the fixed rows and z = W x/√D, summed over tokens. Of one direction on
    the sphere A_T = ∇R(m, e), and V is the strength of the gradient's noise: a step of SGD has
    squared length about γ² V.

    Args:
        model: A `SequenceSingleIndex`, or an index model.
        overlaps: As for `risk`.
        student: As for `risk`.
        loss: As for `risk`.
        key: As for `risk`.
        averages: As for `risk`.

    Returns:
        The averages, with fields `fixed` A_T (P, k), `own` A_Z (P, P), `square` V (P, P) and
        `risk`; and their standard errors, zero where nothing is sampled.

    Raises:
        ValueError: As `risk`.

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 2): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(
        ...     square, 2, smi.sgd.Network(jax.nn.relu), loss_factor=1.0
        ... )
        >>> values, errors = smi.sgd.averages(model, 0.0)
        >>> round(float(values.square[0, 0]), 6)  # 2 (L + 1)
        6.0

    Cost:
        About three times that of `risk`.

    Source:
        [theory: online-sgd, Eqs. (13), (14), (17), (63)].
    """
    _, law, point = _place(model, overlaps, student, loss, key, averages)
    found = _averages(law, point)
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), found)
    return mean, jax.tree.map(spread, found)


@eqx.filter_jit
def _averages(law: AbstractAverages, point: Point) -> Moments:
    return law.over_nets(lambda net: net.at(*point)._replace(risk=net.risk(*point)))


def hessian(
    model: AbstractTeacher,
    overlaps: ArrayLike = 0.0,
    *,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> Array:
    r"""Hessian of the population risk of one direction in its overlaps, by differentiation.

        ∂²R/∂v_i ∂v_j,   v = (m, e_1..e_K), of an untied network (m_1..m_L)

    Args:
        model: A `SequenceSingleIndex`.
        overlaps: As for `risk`. Default 0, the origin.
        key: As for `risk`.
        averages: As for `risk`.

    Returns:
        An array (1 + K, 1 + K), of an untied network (L, L); NaN where `risk` is NaN.

    Raises:
        ValueError: As `risk`, or for an index model.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> hessian = smi.sgd.hessian(smi.sgd.semantic_positional(0.64))  # doctest: +SKIP
        >>> jnp.diag(hessian).round(6).tolist()  # R_mm, R_ee  # doctest: +SKIP
        [-0.079381, -0.07885]

    Cost:
        20 times that of `risk`, and seconds to compile.

    Source:
        [theory: online-sgd, Eqs. (12), (24)].
    """
    pair, law, point = _place(model, overlaps, None, None, key, averages)
    check(pair.spherical, "model", model, "a SequenceSingleIndex")
    return _hessian(law, point)


@eqx.filter_jit
def _hessian(law: AbstractAverages, point: Point) -> Array:
    shape = point.M.shape

    def value(v: Array) -> Array:
        return jnp.mean(law.over_nets(lambda net: net.risk(v.reshape(shape), point.Q)))

    # forward mode twice: reverse mode would keep the tables of the grid
    return jax.jacfwd(jax.jacfwd(value))(jnp.ravel(point.M))


class Flatness(NamedTuple):
    """The shape of the risk at the origin.

    Attributes:
        order: κ, the lowest order of the risk's series at the origin (inf: none up to the order
            of the call).
        escape: κ_esc, that of a term by which some direction goes down (inf: none).
        direction: The direction (1 + K,) in (m, e) in which that term is steepest; NaN where there
            is none.
        series: The Taylor coefficients of the risk by exponents of (m, e_1..e_K), from order one
            on, without those that are zero to the tolerance.
    """

    order: float
    escape: float
    direction: np.ndarray
    series: dict[tuple[int, ...], float]


def flatness(model: AbstractTeacher, order: int = 6, tolerance: float = 1e-10) -> Flatness:
    r"""Taylor series of the risk at the origin, and the order by which SGD escapes from there.

        κ = min{k >= 1: ∇^k R(0, 0) != 0}
        κ_esc = min{k: the leading term of R along some direction has order k and is negative}

    A positive curvature counts for κ, and does not help SGD away. Directions of the sphere in (m,
    e) are its axes, the eigenvectors of the Hessian, their pairwise sums, and 4096 others, at each
    order inside the null space of the Hessian.

    Args:
        model: A `SequenceSingleIndex` of at most four tokens with the squared loss, whose student
            has one direction.
        order: The highest order, an integer >= 1. Default 6.
        tolerance: A term counts above this part of c (E‖g‖² + E‖F‖²), a number > 0. Default 1e-10.

    Returns:
        A `Flatness`.

    Raises:
        ValueError: For an untied network, the unsquared loss, more than four tokens, an index
            model, or numbers out of range.

    Example:
        >>> import jaxsmi as smi
        >>> cube = smi.sgd.HermiteSeries({(3,): 1.0}, normalised=True)
        >>> flat = smi.sgd.flatness(smi.SequenceSingleIndex(cube, 1, cube, loss_factor=1.0))
        >>> flat.escape, round(float(flat.series[3,]), 6)  # R = 2 - 2 m³
        (3, -2.0)

    Cost:
        That of the coefficients of target and student, and `order` products over 10,000 directions.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (23) to (25)].
    """
    pair = pair_of(model)
    loss = pair.squared
    allowed = f"a SequenceSingleIndex of one direction and 1 to {MAX_TOKENS} tokens, squared loss"
    if loss is None or not pair.tied:
        raise ValueError(f"model: got {type(model).__name__}; allowed: {allowed}.")
    check(pair.tokens <= MAX_TOKENS, "model", f"{pair.tokens} tokens", allowed)
    order = validate.count("order", order)
    part = float(validate.number("tolerance", tolerance, POSITIVE))
    # rounding of the coefficients of an integral, in the precision of the moment
    part = max(part, _ROUNDING * float(jnp.finfo(theory_dtype()).eps))
    moments = [second_moment(f, pair.tokens) for f in (loss.target, loss.student)]
    small = part * float(loss.factor) * sum(moments)
    series = _series(loss, np.asarray(pair.encoding, float), order)
    series = {n: value for n, value in series.items() if abs(value) > small}
    lowest = min(map(sum, series), default=np.inf)
    rays = _rays(series, pair.fixed, small)
    level = np.ones(len(rays), bool)  # rays along which all lower orders vanish
    for k in range(1, order + 1):
        terms = np.zeros(len(rays))
        for n, value in series.items():
            terms += value * np.prod(rays**n, axis=1) if sum(n) == k else 0.0
        # a ray that already rose or fell at a lower order has its escape decided there
        down = np.where(level, terms, 0.0)
        if down.min() < -small:
            return Flatness(lowest, k, rays[np.argmin(down)], series)
        level &= np.abs(terms) <= small
    return Flatness(lowest, np.inf, np.full(pair.fixed, np.nan), series)


def _series(loss: SequenceLoss, encoding: np.ndarray, order: int) -> dict[tuple[int, ...], float]:
    """Coefficients of the risk by exponents of (m, e_1..e_K); `encoding` is C (L, K)."""
    L, K = encoding.shape
    g, F = (np.asarray(coefficients(f, L, order)) for f in (loss.target, loss.student))
    squares = np.asarray(coefficients(square(loss.student), L, order))[..., 0]
    factorials = lambda n: float(prod(map(factorial, n)))
    series: dict[tuple[int, ...], float] = defaultdict(float)
    for total, j in itertools.product(range(1, order + 1), range(order + 1)):
        shifts = total - j
        if shifts < 0 or (shifts > 0 and not K):
            continue
        for alpha in multi_indices(L, shifts):
            # without m the first sum is that of E‖F‖²
            value = float(squares[alpha]) / np.sqrt(factorials(alpha)) if j == 0 else 0.0
            for n in multi_indices(L, j):
                both = tuple(np.add(n, alpha))
                size = np.sqrt(factorials(both) / factorials(n)) / factorials(alpha)
                value -= 2.0 * size * float(g[n] @ F[both])
            # ε^α = Π_l (Σ_k C_lk e_k)^{α_l}, multiplied out: one k for each factor
            rows = [l for l, power in enumerate(alpha) for _ in range(power)]
            for columns in itertools.product(range(K), repeat=shifts):
                powers = (j, *(columns.count(k) for k in range(K)))
                weight = float(loss.factor) * float(np.prod(encoding[rows, columns]))
                series[powers] += weight * value
    return dict(series)


def _rays(series: dict[tuple[int, ...], float], size: int, small: float) -> np.ndarray:
    """Unit vectors (rays, 1 + K) along which the risk is followed, each with its opposite."""
    hessian = np.zeros((size, size))
    for n, value in series.items():
        if sum(n) == 2:
            i, j = np.repeat(np.arange(size), n)
            hessian[i, j] = hessian[j, i] = value * (2.0 if i == j else 1.0)
    curvature, axes = np.linalg.eigh(hessian)
    # higher orders matter only where the curvature vanishes, a set that random rays would miss
    null = axes[:, np.abs(curvature) <= small]
    inside = null if null.shape[1] else axes
    # a fixed seed: the same model has the same answer
    normal = np.random.default_rng(0).standard_normal((_DIRECTIONS, inside.shape[1]))
    pairs = [s * a + b for a, b in itertools.combinations(np.eye(size), 2) for s in (1, -1)]
    sums = np.reshape(pairs, (-1, size))
    # a quartic that is negative between two axes alone escapes their sums only
    rays = np.concatenate([np.eye(size), axes.T, inside.T, sums, normal @ inside.T])
    rays = np.concatenate([rays, -rays])
    return rays / np.linalg.norm(rays, axis=1, keepdims=True)
