r"""Exponents of a link: the orders at which samples, or functions of their labels, show its rows.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (19) to (22), (75), (76)], z all P·M fields, h_n
orthonormal Hermite products, P_k = Σ_{|n|=k} ‖ĝ_n‖²:

    information   the least |n| >= 1 with ĝ_n = E[y h_n(z)] != 0
    generative    the least |n| >= 1 with E[h_n(z)|y] != 0, that is E[e^{i t·y} h_n(z)] != 0 for
                  some t: visible by reuse of samples, or to a well chosen loss
    leap          of rows K that are learned: the least order in the other rows among all such n;
                  its rows join K. The largest leap decides.
    student F     the least k >= 1 with Σ_{|n|=k} ⟨ĝ_n, F̂_n⟩ != 0

Coefficients of up to four fields are integrals on a grid, and a second grid, shifted by half a
step, says how far to trust them. Those of more fields are averages over R = 32 independent nets,
distinguished from zero by Student's law with R - 1 degrees of freedom, at a risk shared by all
coefficients.
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

from jaxsmi.core import validate
from jaxsmi.core.arrays import as_module
from jaxsmi.core.options import Averages
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.teacher_student import AbstractTeacher
from jaxsmi.numerics.quadrature import hermite_polynomials, randomised_gaussians
from jaxsmi.sgd.hermite import MAX_TOKENS, coefficients, multi_indices, second_moment, terms
from jaxsmi.sgd.sample_averages import sizes_of

# The highest total order, by the number of fields: on grids what takes seconds, on nets what has no
# more than 1000 multi-indices (10 000 on request), and never above eight.
_DEFAULT_ORDERS = {1: 12, 2: 12, 3: 8, 4: 6}
_DEFAULT_INDICES, _MAX_INDICES, _MAX_NET_ORDER = 1000, 10_000, 8
_NETS = 32
_POINTS = 2**16  # points of all nets together
_CHUNK_POINTS = 2**10  # points whose Hermite polynomials lie in memory together
_ERROR_RATE = 1e-3  # probability that any zero coefficient is taken for a non-zero one
_GRID_SIGMAS = 3.0  # differences of two grids: the error of the better one is smaller by far
_LABEL_DIRECTIONS = 6  # t of e^{i t·y}: an accidental zero along all of them has probability zero
_FUNCTION = "a JAX function of the fields (L,)"
_CONSTANT_VARIANCE = 1e-12  # variance over second moment: below it, variance is rounding

_Function = Callable[[Array], Array]


class Exponents(NamedTuple):
    """Exponents of a link.

    Attributes:
        steps: (order, rows) of each leap, in the order in which rows are learned.
        complete: All rows are reached; the others have no coefficient up to the highest order.
        status: "found", "constant", or "undetermined" up to the highest order.
        levels: P_0, P_1, .. (orders,).
        errors: Errors of the levels (orders,).
        hidden: The largest coefficient, over the deviation of the link, that is not distinguishable
            from zero below the first step: an order there could have one of that size.
        student_order: The exponent relative to a student; None without one, or where there is none.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]
    complete: bool
    status: str
    levels: np.ndarray
    errors: np.ndarray
    hidden: float
    student_order: int | None

    @property
    def order(self) -> int | None:
        """The exponent: the order of the first leap; None where there is none."""
        return self.steps[0][0] if self.steps else None

    @property
    def leap(self) -> int | None:
        """The largest leap; None where some row is never reached."""
        return max(order for order, _ in self.steps) if self.complete else None


class Expansion(NamedTuple):
    """Hermite coefficients with errors.

    Attributes:
        orders: Multi-indices (n, L), the mean's (zero) first.
        per_net: Coefficients of each net, or of two grids (R, n, k).
        moment: E‖f‖².
        sampled: True if the coefficients are averages over nets, False if integrals on two grids.
    """

    orders: np.ndarray
    per_net: np.ndarray
    moment: float
    sampled: bool

    @property
    def value(self) -> np.ndarray:
        """ĝ (n, k)."""
        return self.per_net.mean(axis=0) if self.sampled else self.per_net[0]

    @property
    def stderr(self) -> np.ndarray:
        """Standard errors (n, k), or the differences of two grids."""
        if not self.sampled:
            return np.abs(self.per_net[0] - self.per_net[-1])
        return self.per_net.std(axis=0, ddof=1) / np.sqrt(len(self.per_net))

    @property
    def variance(self) -> float:
        """Σ Var f, of all entries of the function together."""
        return self.moment - float(np.sum(self.value[0] ** 2))

    @property
    def width(self) -> float:
        """Number of standard errors above which a coefficient counts as not zero."""
        if not self.sampled:
            return _GRID_SIGMAS
        from scipy.special import stdtrit  # here: importing it takes longer than the quantile

        return float(-stdtrit(len(self.per_net) - 1, 0.5 * _ERROR_RATE / max(self.value.size, 1)))

    def is_large(self, tolerance: float) -> np.ndarray:
        """Mask (n, k) of squared coefficients above a part of the variance."""
        return self.value**2 > tolerance * self.variance

    def is_nonzero(self, tolerance: float) -> np.ndarray:
        """Mask (n,) of coefficients that are not zero, and above a part of the variance."""
        certain = np.abs(self.value) > self.width * self.stderr
        sure = np.any(certain & self.is_large(tolerance), axis=1)
        # the mean is no exponent, however large
        sure[0] = False
        return sure

    def hidden(self) -> np.ndarray:
        """Largest size (n,), over the deviation of f, of a coefficient taken for zero."""
        reach = self.width * np.max(self.stderr, axis=1)
        return reach / max(self.variance, np.finfo(float).tiny) ** 0.5


def exponents(
    model: AbstractTeacher | _Function,
    length: int | None = None,
    *,
    generative: bool = False,
    student: _Function | None = None,
    degree: int | None = None,
    tolerance: float = 1e-10,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> Exponents:
    r"""Find the information or generative exponent of a link, and the leaps of its rows.

        information: least |n| >= 1 with E[y h_n(z)] != 0;   generative: with E[h_n(z)|y] != 0

    Args:
        model: An index model, a `SequenceSingleIndex`, or a JAX function of the fields (L,) such as
            a `HermiteSeries`. Gaussian label noise changes nothing and is left out; labels with few
            outcomes are replaced by their probabilities.
        length: The number of fields L of a function; None of a model.
        generative: The exponent of functions of the label, instead of the label. Default False.
        student: A function of the fields (P·M,) with answers of the label's shape: the exponent
            relative to it is computed too. Default None.
        degree: The highest total order. Default 12 for one or two fields, 8 for three, 6 for four,
            above that the highest with 1000 multi-indices, at most 8.
        tolerance: A coefficient counts if its square is above this part of the variance and it is
            above its error; a number > 0. Default 1e-10.
        key: A random key of the nets, which serve more than four fields, and jumps in three or four
            that the grid does not resolve. Default `jax.random.key(0)`.
        averages: Points of all nets. A `smi.Averages`. Default 2^16.

    Returns:
        An `Exponents`: `order`, `leap` and `steps`. Its `order` is None where the link is
        "constant", or where nothing was found up to the degree ("undetermined"). A coefficient of
        lower order that is neither zero nor certain makes it "undetermined", too.

    Raises:
        ValueError: For a matrix model, more than 999 fields, a link without a finite second moment,
            a student of another shape, or numbers out of range.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> smi.sgd.exponents(lambda z: z[0] * z[1], 2).order
        2
        >>> he3 = smi.MultiIndex(lambda z: z[0, 0] ** 3 - 3 * z[0, 0], indices=1)
        >>> smi.sgd.exponents(he3).order, smi.sgd.exponents(he3, generative=True).order
        (3, 1)

    Cost:
        Two evaluations of the link at each of 401, 201², 81³ or 61⁴ nodes; of more fields one at
        each point, times the multi-indices.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eqs. (19) to (22), (75)].
    """
    link, rows, tokens = _link_of(model, length)
    L = rows * tokens
    flag = validate.flag("generative", generative)
    part = float(validate.number("tolerance", tolerance, POSITIVE))
    key = jax.random.key(0) if key is None else validate.key("key", key)
    sizes = sizes_of(averages, _POINTS, _NETS)
    usual = _DEFAULT_ORDERS.get(L) or _max_order(L, _DEFAULT_INDICES)
    check(usual > 0, "model", f"{L} fields", "a link of fewer fields")
    highest = validate.count("degree", usual if degree is None else degree)
    most = np.inf if L <= MAX_TOKENS else _max_order(L, _MAX_INDICES)
    check(highest <= most, "degree", highest, f"1 to {most}, of {L} fields")
    if flag:
        link, key = _functions_of(link, L), jax.random.fold_in(key, 1)
    links = [link]
    if student is not None:
        links.append(as_module(validate.function("student", student, _FUNCTION)))
    point = jnp.linspace(0.3, 0.7, L)
    shapes = [
        validate.call_user_function(name, jax.eval_shape, _FUNCTION, f, point).shape
        for name, f in zip(("model", "student"), links, strict=False)
    ]
    check(shapes[0] == shapes[-1], "student", f"answers of shape {shapes[-1]}", f"{shapes[0]}")
    g, *rest = [_expansion(f, L, highest, key, *sizes) for f in links]
    # products of coefficients need both of the same orders, and on the same nets
    if not all(x.sampled == g.sampled and np.array_equal(x.orders, g.orders) for x in rest):
        g, *rest = [sampled_expansion(f, L, highest, key, *sizes) for f in links]
    return _exponents(g, rest[0] if rest else None, rows, tokens, part)


def _exponents(
    g: Expansion, F: Expansion | None, rows: int, tokens: int, tolerance: float
) -> Exponents:
    levels, errors = _levels(g, g)
    # before any test of coefficients: all of them are rounding of a constant
    if g.variance <= _CONSTANT_VARIANCE * g.moment:
        return Exponents((), False, "constant", levels, errors, 0.0, None)
    sure = g.is_nonzero(tolerance)
    totals = g.orders.sum(axis=1)
    below = (totals < min(totals[sure], default=np.inf)) & (totals > 0)
    hidden = tolerance**0.5
    if g.sampled:
        hidden = float(np.max(g.hidden(), where=below, initial=0.0))
    # grids converge: a coefficient that is large and not certain hides an order; nets say how much
    elif np.any(np.any(g.is_large(tolerance), axis=1) & below):
        sure = np.zeros_like(sure)
    steps, complete = _leaps(g.orders[sure], rows, tokens)
    status = "found" if steps else "undetermined"
    relative = None if F is None else _relative(g, F, tolerance)
    return Exponents(steps, complete, status, levels, errors, hidden, relative)


def _relative(g: Expansion, F: Expansion, tolerance: float) -> int | None:
    """The least order whose product of coefficients is not zero."""
    products, errors = _levels(g, F)
    size = np.sqrt(g.variance * max(F.moment, 1e-300))
    # five standard errors; on grids rounding of both factors, 1e-5 of the amplitude that counts
    rounding = np.maximum(np.sqrt(tolerance) * 1e-5 * size, _GRID_SIGMAS * errors)
    least = 5.0 * errors if g.sampled else rounding
    return next((k for k in range(1, len(products)) if abs(products[k]) > least[k]), None)


def _levels(a: Expansion, b: Expansion) -> tuple[np.ndarray, np.ndarray]:
    """Σ_{|n|=k} ⟨a_n, b_n⟩ for each order k, and their errors."""
    totals = a.orders.sum(axis=1)
    orders = range(totals.max() + 1)
    by_order = lambda x: np.array([x[..., totals == k, :].sum(axis=(-2, -1)) for k in orders])
    if not a.sampled:
        squares = [by_order(x**2) for x in (a.value, a.stderr, b.value, b.stderr)]
        x, dx, y, dy = map(np.sqrt, squares)  # Cauchy and Schwarz, of the two differences
        return by_order(a.value * b.value), x * dy + dx * y + dx * dy
    # shared noise of one net would bias a square: products of different nets alone
    R = len(a.per_net)
    x, y, own = a.per_net.sum(axis=0), b.per_net.sum(axis=0), a.per_net * b.per_net
    value = by_order(x * y - own.sum(axis=0)) / (R * (R - 1))
    without = by_order((x - a.per_net) * (y - b.per_net) - (own.sum(axis=0) - own))
    without = without / ((R - 1) * (R - 2))
    # the jackknife, since pairs of nets share nets
    return value, np.std(without, axis=1) * np.sqrt(R - 1)


def _link_of(model: AbstractTeacher | _Function, length: int | None) -> tuple[_Function, int, int]:
    """Labels (or probabilities of their outcomes) as a function of the fields (P·M,), P and M."""
    if length is None:
        allowed = "an index model, or a function and its length"
        return validate.instance("model", model, AbstractTeacher, allowed).link_of_fields()
    allowed = f"{_FUNCTION}, or a model, without a length of its own"
    function, L = validate.function("model", model, allowed), validate.count("length", length)
    # a model of it: its target is validated there
    return SequenceSingleIndex(function, L, function).link_of_fields()


def _functions_of(link: _Function, length: int) -> _Function:
    """cos and sin of t·y, y over its size at some random fields."""
    # fixed seeds: exponents are no matter of chance, and labels of any size need a scale
    points = jnp.asarray(np.random.default_rng(0).standard_normal((256, length)))
    labels = jax.vmap(lambda z: jnp.ravel(link(z)))(points)
    scale = jnp.maximum(jnp.std(labels, axis=0), 1e-12)
    t = np.random.default_rng(1).standard_normal((_LABEL_DIRECTIONS, labels.shape[1]))
    t = jnp.asarray(t / np.linalg.norm(t, axis=1, keepdims=True))
    # phases of 0.3 to 3 deviations: small ones are the label itself, large ones oscillate on a grid
    sizes = jnp.asarray(np.geomspace(0.3, 3.0, _LABEL_DIRECTIONS))

    def function(z: Array) -> Array:
        phase = sizes * (t @ (jnp.ravel(link(z)) / scale))
        return jnp.concatenate([jnp.cos(phase), jnp.sin(phase)])

    return function


def _leaps(
    orders: np.ndarray, rows: int, tokens: int
) -> tuple[tuple[tuple[int, tuple[int, ...]], ...], bool]:
    """Leaps from nothing, over multi-indices (n, P·M), and whether all rows are reached."""
    by_row = orders.reshape(-1, rows, tokens).sum(axis=-1)
    learned = np.zeros(rows, bool)
    steps = []
    while not learned.all():
        other = by_row[:, ~learned].sum(axis=1)
        if not (other > 0).any():
            break
        least = int(other[other > 0].min())
        new = (by_row[other == least] > 0).any(axis=0) & ~learned
        steps.append((least, tuple(int(p) for p in np.flatnonzero(new))))
        # all rows of the least order at once: samples show them at the same time
        learned |= new
    return tuple(steps), bool(learned.all())


# Coefficients with errors


def _max_order(length: int, most: int) -> int:
    """Highest total order with at most so many multi-indices of L fields; 0: the first has more."""
    orders = [d for d in range(1, _MAX_NET_ORDER + 1) if comb(length + d, d) <= most]
    return max(orders, default=0)


def _expansion(
    function: _Function, length: int, order: int, key: PRNGKeyArray, size: int, nets: int
) -> Expansion:
    series = terms(function)
    if length <= MAX_TOKENS:
        moment = second_moment(function, length)
        allowed = "a link with a finite second moment"
        check(np.isfinite(moment), "model", "a link without a second moment", allowed)
        orders = _orders(length, order)
        grids = [np.asarray(coefficients(function, length, order, s)) for s in (0.0, 0.5)]
        found = Expansion(orders, np.stack([x[tuple(orders.T)] for x in grids]), moment, False)
        # 81³ or 61⁴ nodes miss jumps by .1, where random points err by the root of their number
        if length <= 2 or np.max(found.stderr) <= (found.moment / size) ** 0.5:
            return found
    if series is None:
        return sampled_expansion(function, length, order, key, size, nets)
    # nothing is integrated, and of many fields the terms alone are listed, that of the mean first
    series = {(0,) * length: 0.0} | series
    width = max(map(np.size, series.values()))
    values = np.stack([np.broadcast_to(np.ravel(x), (width,)) for x in series.values()])
    return Expansion(np.array(list(series)), values[None], float(np.sum(values**2)), False)


def _orders(length: int, order: int) -> np.ndarray:
    return np.array([n for k in range(order + 1) for n in multi_indices(length, k)])


def sampled_expansion(
    function: _Function, length: int, order: int, key: PRNGKeyArray, size: int, nets: int = _NETS
) -> Expansion:
    """Coefficients of all |n| <= `order` of a function of L fields, on nets of `size` points."""
    orders = _orders(length, order)
    per_net, moment = _means(function, jnp.asarray(orders), order, key, (size, nets, length))
    return Expansion(orders, np.asarray(per_net, float), float(moment), True)


@eqx.filter_jit
def _means(
    function: _Function, orders: Array, order: int, key: PRNGKeyArray, sizes: tuple[int, int, int]
) -> tuple[Array, Array]:
    """Means over each net (R, n, k), and of the squared norm over all."""
    size, nets, length = sizes
    points = randomised_gaussians(key, size, nets, length)
    chunk = min(size, _CHUNK_POINTS)

    def part(z: Array) -> tuple[Array, Array]:
        values = jax.vmap(lambda x: jnp.ravel(function(x)))(z)
        table = jnp.moveaxis(hermite_polynomials(z.T, order), 0, -1)  # (L, points, orders)
        times = lambda product, field: (product * field[0][:, field[1]], None)
        product = jnp.ones((len(z), len(orders)), z.dtype)
        product = jax.lax.scan(times, product, (table, orders.T))[0]
        return product.T @ values / size, jnp.sum(values**2) / size

    def net(z: Array) -> tuple[Array, Array]:
        parts = jax.lax.map(part, z.reshape(-1, chunk, length))
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), parts)

    per_net, squares = jax.lax.map(net, points)
    return per_net, jnp.mean(squares, axis=0)
