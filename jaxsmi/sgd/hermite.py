r"""Hermite expansions of targets and students: information exponents, and the Taylor series of the risk at the origin.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (19) to (27)], h_n = Π_l h_{n_l} orthonormal under N(0, I_L):

    ĝ_n = E[g(ξ) h_n(ξ)],   P_k = Σ_{|n|=k} ‖ĝ_n‖²,   SIE(g) = min{k >= 1: P_k > 0}

    R(m, e)/c = E‖g‖² + Σ_α e^α/√α! [‖F‖²]^_α - 2 Σ_n m^|n| Σ_α e^α √((n+α)!/n!)/α! ⟨ĝ_n, F̂_{n+α}⟩

    κ     = the lowest order of a derivative of R in (m, e) at the origin that is not zero
    κ_esc = the lowest order k of the leading term of R along a direction in which it is negative: what SGD escapes by
    n     = d t_η/γ,  t_η = η/a (k = 1),  ln(η/m_0)/a (k = 2),  (m_0^{2-k} - η^{2-k})/((k-2) a) (k >= 3),  a = -∂_m^k R(0)/(k-1)!

Integrals are trapezoidal sums on a grid, whose error falls faster than any power of its step for smooth functions; up to four
tokens. A second grid, shifted by half a step, says how far to trust them. With more tokens, quasi-Monte-Carlo nets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import comb
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.models.sequence_single_index import HermiteSeries, Network, SequenceSingleIndex
from jaxsmi.numerics.nets import randomised_gaussians
from jaxsmi.numerics.quadrature import hermite_polynomials, legendre

_DEGREES = {1: 12, 2: 12, 3: 8, 4: 6}  # looked for by default


_SAMPLED_DEGREE = 4


_STEPS = {1: 0.05, 2: 0.1, 3: 0.2, 4: 0.3}


_WIDTHS = {1: 10.0, 2: 10.0, 3: 8.0, 4: 9.0}


MAX_TOKENS = max(_STEPS)  # on grids


class Grid(NamedTuple):
    """Nodes (n,) of one token, their distance, and their Gaussian weights (n,)."""

    nodes: np.ndarray
    step: float
    weights: np.ndarray

    @classmethod
    def of(cls, length: int, reach: float = 0.0, shift: float = 0.0, coarse: bool = False) -> Grid:
        """The grid for L tokens; `reach`: how far the mean of a field may lie from zero; `shift` in steps; `coarse`: errors
        of 1e-10 instead of 1e-13, for integrals that are taken thousands of times."""
        step, width = (
            (max(_STEPS[length], 0.2), 8.0) if coarse else (_STEPS[length], _WIDTHS[length])
        )
        half = round((width + float(np.ceil(5 * max(reach - 1.0, 0.0))) / 5) / step)
        nodes = step * (np.arange(-half, half + 1) + shift)
        return cls(nodes, step, step * np.exp(-0.5 * nodes**2) / np.sqrt(2 * np.pi))


def values(function: Callable[[Array], Array], nodes: Any, length: int) -> Array:
    """What a function of (L,) answers on the grid: (n,)*L + (k,), its answer flattened."""
    nodes = jnp.asarray(nodes)
    flat = lambda z: jnp.ravel(function(z))
    if length == 1:
        return jax.vmap(lambda x: flat(x[None]))(nodes)
    inner = jnp.stack(jnp.meshgrid(*([nodes] * (length - 1)), indexing="ij"), axis=-1).reshape(
        -1, length - 1
    )

    def row(first: Array) -> Array:
        return jax.vmap(lambda rest: flat(jnp.concatenate([first[None], rest])))(inner)

    table = jax.vmap(row)(nodes) if length == 2 else lax.map(row, nodes)
    return table.reshape(*(len(nodes),) * length, -1)


def contract(table: Array, matrices: Any, length: int) -> Array:
    """Each token's axis of a table (n, .., n, k) contracted with a matrix (p_l, n): (p_1, .., p_L, k)."""
    for matrix in matrices:  # the axis in front goes to the back, before k
        table = jnp.moveaxis(jnp.tensordot(jnp.asarray(matrix), table, axes=(1, 0)), 0, length - 1)
    return table


def _on_grid(function: Any, length: int, degree: int, shift: float, part: float = 1.0) -> Array:
    """Projections on h_n; `part` of the grid's width, the rest left out."""
    grid = Grid.of(length, shift=shift)
    weights = (
        np.where(np.abs(grid.nodes) <= part * grid.nodes[-1], grid.weights, 0.0)
        if part < 1.0
        else grid.weights
    )
    return _projected(function, jnp.asarray(grid.nodes), jnp.asarray(weights), length, degree)


@eqx.filter_jit
def _projected(function: Any, nodes: Array, weights: Array, length: int, degree: int) -> Array:
    return contract(
        values(function, nodes, length),
        [hermite_polynomials(nodes, degree) * weights] * length,
        length,
    )


def coefficients(
    function: Callable[[Array], Array], length: int, degree: int, shift: float = 0.0
) -> Array:
    """ĝ_n of a JAX function of (L,) (module docstring), L <= 4; a HermiteSeries or a Network exactly.

    Arguments: `function`; `length` L; `degree`: the highest of each token; `shift` of the grid, in steps.
    Returns: (degree + 1,)*L + (k,), the function's answer flattened.
    Raises: ValueError for L > 4 or degree < 0.
    """
    check(1 <= length <= MAX_TOKENS, "length", length, f"1 to {MAX_TOKENS} on a grid")
    check(degree >= 0, "degree", degree, "an integer >= 0")
    if isinstance(function, HermiteSeries):
        answer = function.orthonormal.reshape(len(function.degrees), -1)
        table = jnp.zeros(
            ((max(degree, max(map(max, function.degrees))) + 1,) * length) + answer.shape[1:]
        )
        return table.at[tuple(np.transpose(function.degrees))].add(answer)[
            (slice(degree + 1),) * length
        ]
    if isinstance(function, Network):  # F̂_n = √(|n|!/n!) c_|n| L^{-|n|/2}
        orders = np.indices((degree + 1,) * length)
        c = np.asarray(activation_coefficients(function.activation, degree * length))
        logs = np.cumsum(np.log(np.maximum(np.arange(degree * length + 1), 1)))  # log k!
        total = orders.sum(axis=0)
        size = np.exp(0.5 * (logs[total] - logs[orders].sum(axis=0))) * float(length) ** (
            -0.5 * total
        )
        return jnp.asarray(size * c[total])[..., None]
    return _on_grid(
        function if isinstance(function, eqx.Module) else jax.tree_util.Partial(function),
        length,
        degree,
        shift,
    )


def activation_coefficients(activation: Callable[[Array], Array], degree: int) -> Array:
    """E σ(N) h_k(N) for k <= degree: Gauss–Legendre on either side of zero, where σ may have a kink."""
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


class Exponent(NamedTuple):
    """`order`: the information exponent (None where there is none), `status`: "found", "constant" or "undetermined" up to
    the degree looked at; `levels` P_0, P_1, ..; `errors` of the levels; `student_order`: the lowest k >= 1 with
    Σ_{|n|=k} ⟨ĝ_n, F̂_n⟩ != 0 for the student that was given, None without one or where there is none."""

    order: int | None
    status: str
    levels: np.ndarray
    errors: np.ndarray
    student_order: int | None


def _sums(product: np.ndarray, length: int, degree: int) -> np.ndarray:
    return np.array(
        [sum(float(product[n].sum()) for n in multi_indices(length, k)) for k in range(degree + 1)]
    )


def information_exponent(
    target: Callable[[Array], Array],
    length: int,
    *,
    degree: int | None = None,
    tolerance: float = 1e-10,
    student: Callable[[Array], Array] | None = None,
    key: Array | None = None,
    samples: int = 2**14,
) -> Exponent:
    r"""Sequence information exponent: the order of the first Hermite coefficient of a target that is not zero.

        SIE(g) = min{k >= 1: P_k > 0},   P_k = Σ_{|n|=k} ‖E[g(ξ) h_n(ξ)]‖²

    Arguments: `target`: a JAX function of (L,) -> number or array, or a HermiteSeries; `length` L; `degree`: the highest order
    looked at (12 for one or two tokens, 8, 6; 4 for five and more); `tolerance`: P_k counts above this part of the variance, and
    above what a second grid changes of it; `student`: also the exponent relative to it; with five tokens and more, where
    the coefficients are sampled: `key`, and `samples` of each of 16 nets (a level then counts from five standard errors on).

    Returns: Exponent(order, status, levels, errors, student_order); `order` is None where the target is "constant" or where
    no level was found up to the degree ("undetermined"). A level that is neither zero nor certain ends the search there.
    Raises: ValueError for a length < 1, a degree < 1, a tolerance <= 0, a target of another shape than the student's, one
    whose second moment is not finite, or five and more tokens without a key.

    Example:
    >>> import jaxsmi as smi
    >>> smi.sgd.information_exponent(lambda z: z[0] * z[1], 2).order
    2

    Cost: (2 x 10/0.1)² evaluations for two tokens, 81³ for three, 61⁴ for four; C(L + k - 1, k) averages of 16 nets above.
    Source: [ALSKZ25]; [theory: online-sgd, Eqs. (19) to (22)].
    """
    check(
        isinstance(length, (int, np.integer)) and length >= 1, "length", length, "an integer L >= 1"
    )
    degree = _DEGREES.get(length, _SAMPLED_DEGREE) if degree is None else degree
    check(
        isinstance(degree, (int, np.integer)) and degree >= 1, "degree", degree, "an integer >= 1"
    )
    check(np.isfinite(tolerance) and tolerance > 0, "tolerance", tolerance, "a number > 0")
    model = SequenceSingleIndex(
        target, length, target if student is None else student
    )  # its checks
    target, other = model.target, None if student is None else model.student
    if (
        length > MAX_TOKENS and isinstance(target, HermiteSeries) and other is None
    ):  # nothing has to be integrated
        levels = np.zeros(1 + max(sum(n) for n in target.degrees))
        combined: dict[tuple[int, ...], Any] = {}
        for n, value in zip(target.degrees, np.asarray(target.orthonormal), strict=True):
            combined[n] = combined.get(n, 0.0) + value
        for n, value in combined.items():
            levels[sum(n)] += np.sum(value**2)
        order = next((k for k in range(1, len(levels)) if levels[k] > 0.0), None)
        return Exponent(
            order, "constant" if order is None else "found", levels, np.zeros_like(levels), None
        )
    if length > MAX_TOKENS:
        check(
            key is not None,
            "key",
            key,
            f"a key: with more than {MAX_TOKENS} tokens the coefficients are sampled",
        )
        assert key is not None
        return _sampled_exponent(target, other, length, degree, key, samples)

    def squares(shift: float) -> tuple[np.ndarray, float, np.ndarray | None]:
        g = np.asarray(coefficients(target, length, degree, shift))
        second = _second_moment(target, length, shift)
        F = None if other is None else np.asarray(coefficients(other, length, degree, shift))
        return g, second, None if F is None else _sums(g * F, length, degree)

    (g, second, cross), (again, _, cross_again) = squares(0.0), squares(0.5)
    check(has_second_moment(target, length), "target", target, "a function of finite second moment")
    levels, errors = _sums(g**2, length, degree), _sums((g - again) ** 2, length, degree)
    variance = second - levels[0]
    # rounding of g_n is squared in P_k, so that levels are exact to about eps² of the second moment
    order, status = _first(
        levels, np.maximum(tolerance * variance, 9.0 * errors), tolerance * variance
    )
    if variance <= 1e-12 * second:
        return Exponent(None, "constant", levels, errors, None)
    student_order = None
    if cross is not None and cross_again is not None:
        size = np.sqrt(variance * max(_second_moment(other, length), 1e-300))
        unsure = 9.0 * np.abs(cross - cross_again)
        student_order, _ = _first(
            np.abs(cross), np.maximum(np.sqrt(tolerance) * 1e-5 * size, unsure), np.inf
        )
    return Exponent(order, status, levels, np.sqrt(errors * levels) * 2 + errors, student_order)


def _first(levels: np.ndarray, certain: np.ndarray, possible: float) -> tuple[int | None, str]:
    """The first order >= 1 that is certainly there; "undetermined" where one that may be there comes before it."""
    for k in range(1, len(levels)):
        if levels[k] > certain[k]:
            return k, "found"
        if levels[k] > possible:
            break
    return None, "undetermined"


def _second_moment(function: Any, length: int, shift: float = 0.0, part: float = 1.0) -> float:
    if isinstance(function, HermiteSeries):
        return float(jnp.sum(coefficients(function, length, max(map(max, function.degrees))) ** 2))
    square = jax.tree_util.Partial(_squared_norm, function)
    return float(_on_grid(square, length, 0, shift, part).ravel()[0])


def has_second_moment(function: Any, length: int) -> bool:
    """Whether E‖f‖² converges on the grid: of a divergent integral most lies at its end."""
    whole = _second_moment(function, length)
    return (
        bool(np.isfinite(whole))
        and whole - _second_moment(function, length, part=0.95) <= 1e-3 * whole
    )


def _squared_norm(function: Any, z: Array) -> Array:
    return jnp.sum(function(z) ** 2)


def _sampled_exponent(
    target: Any, student: Any, length: int, degree: int, key: Array, samples: int
) -> Exponent:
    """From unbiased squares of averages over 16 independent nets: a level counts from five standard errors on."""
    R = 16
    points = randomised_gaussians(key, samples, R, length)
    count = sum(comb(length + k - 1, k) for k in range(degree + 1))
    check(
        count <= 20_000,
        "degree",
        degree,
        f"fewer than the {count} coefficients that {length} tokens have up to there",
    )

    @eqx.filter_jit
    def averages(function: Any, which: Array, z: Array) -> tuple[Array, Array]:
        g = jax.vmap(lambda x: jnp.ravel(function(x)))(z)  # (samples, k)
        table = hermite_polynomials(z.T, degree)  # (degree + 1, L, samples)
        # coefficients less the mean of g: the level zero would be the noise of all others
        h = lambda n: jnp.prod(jnp.take_along_axis(table, n[None, :, None], axis=0)[0], axis=0)
        return lax.map(
            lambda n: h(n) @ (g - jnp.mean(g, axis=0) * (jnp.sum(n) > 0)) / len(z), which
        ), jnp.mean(jnp.sum(g**2, -1))

    levels, errors, relative, relative_errors, second = [], [], [], [], 0.0
    for k in range(degree + 1):
        which = jnp.asarray(multi_indices(length, k))
        a, b = [], []
        for z in points:
            found, second = averages(target, which, z)
            a.append(np.asarray(found).ravel())
            if student is not None:
                b.append(np.asarray(averages(student, which, z)[0]).ravel())
        for first, other, out, out_error in (
            (a, a, levels, errors),
            (a, b, relative, relative_errors),
        ):
            if other:
                value, error = _unbiased(np.stack(first), np.stack(other))
                out.append(value)
                out_error.append(error)
    levels, errors = np.array(levels), np.array(errors)
    variance = float(second) - levels[0]
    if variance <= 1e-12 * float(second):
        return Exponent(None, "constant", levels, errors, None)
    order = next((k for k in range(1, degree + 1) if levels[k] > 5.0 * errors[k]), None)
    relative_order = next(
        (k for k in range(1, len(relative)) if abs(relative[k]) > 5.0 * relative_errors[k]), None
    )
    return Exponent(
        order, "undetermined" if order is None else "found", levels, errors, relative_order
    )


def _unbiased(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Σ_n a_n b_n without the bias of the noise they share, from R independent rows, and its error by the jackknife."""

    def estimate(a: np.ndarray, b: np.ndarray) -> float:
        R = len(a)
        return float(np.sum(a.sum(0) * b.sum(0) - (a * b).sum(0)) / (R * (R - 1)))

    R = len(a)
    left_out = np.array([estimate(np.delete(a, r, 0), np.delete(b, r, 0)) for r in range(R)])
    return estimate(a, b), float(np.sqrt((R - 1) / R * np.sum((left_out - left_out.mean()) ** 2)))


# The risk at the origin ----------------------------------------------------------------------------------------------------


def taylor(model: SequenceSingleIndex, order: int) -> dict[tuple[int, ...], float]:
    """Coefficients of the risk's Taylor series in (m, e_1..e_K) at the origin, from order 1 to `order`, by exponents.

    From Hermite coefficients (module docstring), not from derivatives. Attention and other students of one direction, L <= 4.
    Raises: ValueError for an untied network, the unsquared loss, or more than four tokens.
    """
    _check_origin(model)
    L, K = model.length, model.encoding.shape[1]
    g, F = (np.asarray(coefficients(f, L, order)) for f in (model.target, model.student))
    square = np.zeros(0)
    if K:
        square = np.asarray(
            coefficients(jax.tree_util.Partial(_squared_norm, model.student), L, order)
        )[..., 0]
    factorial = lambda n: float(np.prod([np.prod(np.arange(1, k + 1)) for k in n]))
    C = np.asarray(model.encoding, float)
    found: dict[tuple[int, ...], float] = {}

    def add(m_power: int, alpha: tuple[int, ...], value: float) -> None:
        """value m^j Π_l (C e)_l^{α_l}, multiplied out."""
        expanded = {(0,) * K: value}
        for row, power in zip(C, alpha, strict=True):
            for _ in range(power):
                grown: dict[tuple[int, ...], float] = {}
                for exponents, coefficient in expanded.items():
                    for k in range(K):
                        raised = (*exponents[:k], exponents[k] + 1, *exponents[k + 1 :])
                        grown[raised] = grown.get(raised, 0.0) + coefficient * row[k]
                expanded = grown
        for exponents, coefficient in expanded.items():
            place = (m_power, *exponents)
            found[place] = found.get(place, 0.0) + coefficient

    c = float(model.loss_factor)
    for total in range(1, order + 1):
        for j in range(total + 1):
            for alpha in multi_indices(L, total - j):
                if K == 0 and total > j:
                    continue
                if j == 0 and K:
                    add(0, alpha, c * square[alpha] / np.sqrt(factorial(alpha)))
                for n in multi_indices(L, j):
                    both = tuple(a + b for a, b in zip(n, alpha, strict=True))
                    size = np.sqrt(factorial(both) / factorial(n)) / factorial(alpha)
                    add(j, alpha, -2.0 * c * size * float(g[n] @ F[both]))
    return found


def _check_origin(model: SequenceSingleIndex) -> None:
    check(model.tied, "model", "an untied network", "a student of one direction")
    check(
        model.loss == "squared",
        "model.loss",
        model.loss,
        "'squared': the unsquared loss has no such series",
    )
    check(
        model.length <= MAX_TOKENS,
        "model.length",
        model.length,
        f"1 to {MAX_TOKENS}: coefficients are integrals on a grid",
    )


def _scale(model: SequenceSingleIndex) -> float:
    """c (E‖g‖² + E‖F‖²): what a coefficient of the risk is small against."""
    return float(model.loss_factor) * sum(
        _second_moment(f, model.length) for f in (model.target, model.student)
    )


def hessian_at_origin(model: SequenceSingleIndex) -> np.ndarray:
    """Hessian of the risk in (m, e_1..e_K) at the origin, (1 + K, 1 + K), by Hermite coefficients: what `hessian`
    differentiates.
    """
    series, size = taylor(model, 2), 1 + model.encoding.shape[1]
    found = np.zeros((size, size))
    for exponents, value in series.items():
        if sum(exponents) == 2:
            i, j = (k for k, power in enumerate(exponents) for _ in range(power))
            found[i, j] = found[j, i] = value * (2.0 if i == j else 1.0)
    return found


class Flatness(NamedTuple):
    """`order` κ, the lowest order of the risk's series at the origin; `escape` κ_esc, that of a term by which some direction goes
    down (inf: none up to the order looked at); `direction` (1 + K,) in (m, e) of the steepest such term; `series`."""

    order: float
    escape: float
    direction: np.ndarray
    series: dict[tuple[int, ...], float]


def flatness(model: SequenceSingleIndex, order: int = 6, tolerance: float = 1e-10) -> Flatness:
    """Flatness index of the risk at the origin, and the order by which SGD escapes (a positive curvature does not help it).

    Directions of the sphere in (m, e): its axes, the eigenvectors of the Hessian, their pairwise sums and 4096 others, at each
    order inside the null space of the Hessian; a term counts above `tolerance` times c (E‖g‖² + E‖F‖²).

    Arguments: `model`; the highest `order` looked at; `tolerance`. Returns: Flatness. Raises as `taylor`.
    Source: [ALSKZ25]; [theory: online-sgd, Eq. (25)].
    """
    series = taylor(model, order)
    size, dimension = _scale(model), 1 + model.encoding.shape[1]
    tolerance = max(tolerance, 1e3 * float(jnp.finfo(theory_dtype()).eps))
    series = {n: v for n, v in series.items() if abs(v) > tolerance * size}
    lowest = min((sum(n) for n in series), default=np.inf)
    hessian = hessian_at_origin(model)
    curvature, axes = np.linalg.eigh(hessian)
    null = axes[:, np.abs(curvature) <= tolerance * size]
    inside = null if null.shape[1] else axes
    random = np.random.default_rng(0).standard_normal((4096, inside.shape[1])) @ inside.T
    pairs = [s * a + b for a, b in itertools.combinations(np.eye(dimension), 2) for s in (1, -1)]
    rays = np.concatenate(
        [np.eye(dimension), axes.T, inside.T, np.array(pairs).reshape(-1, dimension), random]
    )
    rays = np.concatenate([rays, -rays]) / np.linalg.norm(
        np.concatenate([rays, -rays]), axis=1, keepdims=True
    )
    alive = np.ones(len(rays), bool)
    for k in range(1, order + 1):
        terms = np.zeros(len(rays))
        for n, v in series.items():
            if sum(n) == k:
                terms += v * np.prod(rays ** np.array(n), axis=1)
        down = np.where(alive, terms, 0.0)
        if down.min() < -tolerance * size:
            return Flatness(lowest, k, rays[np.argmin(down)], series)
        alive &= np.abs(terms) <= tolerance * size
    return Flatness(lowest, np.inf, np.full(dimension, np.nan), series)


def sample_complexity(
    model: SequenceSingleIndex, dimension: int, gamma: Any, eta: float = 0.5, start: Any = None
) -> Array:
    """Steps, which are samples, until m reaches η, by the leading drift alone (module docstring): n = d t_η/γ.

    Arguments: `model`; `dimension` d; learning rate γ > 0; η in (0, 1); `start` m_0 (default: 1/√d).
    Returns: n; inf where the leading term along m does not go down from m_0 > 0.
    Raises: ValueError for a number out of range, and as `taylor`. Source: [ALSKZ25];
    [theory: online-sgd, Eqs. (26), (27)].
    """
    check(
        isinstance(dimension, (int, np.integer)) and dimension >= 2,
        "dimension",
        dimension,
        "an integer d >= 2",
    )
    check(
        np.all(np.isfinite(gamma)) and np.all(np.asarray(gamma) > 0), "gamma", gamma, "a number > 0"
    )
    start = 1.0 / np.sqrt(dimension) if start is None else start
    check(0 < start < eta < 1, "eta", eta, f"a number in (start, 1), start = {start:.3g}")
    series = taylor(model, _DEGREES[model.length])
    along = {
        n[0]: v for n, v in series.items() if not any(n[1:]) and abs(v) > 1e-10 * _scale(model)
    }
    k = min(along, default=0)
    if k == 0 or along[k] >= 0:
        return jnp.asarray(jnp.inf)
    a = -k * along[k]  # d^k R/(k-1)! = k times the coefficient
    time = {1: eta / a, 2: np.log(eta / start) / a}.get(k) or (
        start ** (2.0 - k) - eta ** (2.0 - k)
    ) / ((k - 2) * a)
    return jnp.asarray(dimension * time / np.asarray(gamma))
