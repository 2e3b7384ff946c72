"""The population risk over the overlaps, its averages, its shape at the origin, how fast online SGD
leaves the unlearned state, and rates that are too large."""

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
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, symmetric, theory_dtype
from jaxsmi.core.options import Averages
from jaxsmi.core.solution import Estimate
from jaxsmi.core.validate import POSITIVE, Interval, check
from jaxsmi.models.base import title
from jaxsmi.models.index import IndexModel
from jaxsmi.models.teacher_student import AbstractTeacher, SequenceLoss, TeacherStudent
from jaxsmi.numerics.linear_algebra import conjugation, inverse_root, sqrt_psd, triangular_root
from jaxsmi.numerics.quadrature import gaussian_points
from jaxsmi.sgd.hermite import MAX_TOKENS, coefficients, multi_indices, second_moment, square
from jaxsmi.sgd.problem import Initial, check_gradient, check_noiseless, is_even, pair_of
from jaxsmi.sgd.sample_averages import (
    MIN_AXIS_POINTS,
    GradientMoments,
    SgdSetting,
    net_averages,
    sizes_of,
    spread,
)

_SIZES = 2**18, 16  # points of all nets, and nets: errors of 1e-4 of the risk of attention
_RISK_ROUNDING = 1e3  # machine epsilons of the risk: a sum over 1e4 nodes loses less
_RANDOM_RAYS = 4096  # random rays of the escape: within 2 degrees of any in three dimensions


def risk(
    model: AbstractTeacher,
    overlaps: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial,
    *,
    student: AbstractTeacher | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> Estimate:
    r"""Compute the population risk, differentiable in the overlaps and in the model's numbers.

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
    setting = SgdSetting.of(pair_of(model, student, loss), overlaps, key, averages, _SIZES)
    values, rounding = _risk(setting)
    exists, allowed = setting.averages.exists(), "a function with a finite second moment"
    check(exists, "target", "a function without a second moment", allowed)
    return Estimate(jnp.mean(values), spread(values) + rounding)


@eqx.filter_jit
def _risk(setting: SgdSetting) -> tuple[Array, Array]:
    values = setting.averages.over_nets(lambda net: net.risk(*setting.overlaps))
    return values, lax.stop_gradient(setting.averages.rounding(*setting.overlaps))


def averages(
    model: AbstractTeacher,
    overlaps: ArrayLike | tuple[ArrayLike, ArrayLike] | Initial,
    *,
    student: AbstractTeacher | None = None,
    loss: Callable[[Array, Array], Array] | None = None,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> tuple[GradientMoments, GradientMoments]:
    r"""Average over a fresh sample at overlaps: the terms of the flow, and of its variants.

        A_T = E[s hᵀ],   A_Z = E[s zᵀ],   N_s = E[s sᵀ],   R = E ℓ,   s = ∂ℓ/∂z

    of fields h = T x/√D of the fixed rows and z = W x/√D, summed over tokens. Of one direction on
    the sphere A_T = ∇R(m, e), and N_s is the strength of the gradient's noise: a step of SGD
    has squared length about γ² N_s.

    Args:
        model: A `SequenceSingleIndex`, or an index model.
        overlaps: See `risk`.
        student: See `risk`.
        loss: See `risk`.
        key: See `risk`.
        averages: See `risk`.

    Returns:
        The averages, with fields `teacher_gradient` A_T (P, k), `student_gradient` A_Z (P, P),
        `gradient_noise` N_s (P, P) and `risk`; and their standard errors, zero where nothing is
        sampled.

    Raises:
        ValueError: In the cases of `risk`.

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 2): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(
        ...     square, 2, smi.sgd.Network(jax.nn.relu), loss_factor=1.0
        ... )
        >>> values, errors = smi.sgd.averages(model, 0.0)
        >>> round(float(values.gradient_noise[0, 0]), 6)  # 2 (L + 1)
        6.0

    Cost:
        About three times that of `risk`.

    Source:
        [theory: online-sgd, Eqs. (13), (14), (17), (63)].
    """
    setting = SgdSetting.of(pair_of(model, student, loss), overlaps, key, averages, _SIZES)
    found = _averages(setting)
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), found)
    return mean, jax.tree.map(spread, found)


@eqx.filter_jit
def _averages(setting: SgdSetting) -> GradientMoments:
    M, Q = setting.overlaps
    return setting.averages.over_nets(lambda net: net.at(M, Q)._replace(risk=net.risk(M, Q)))


def hessian(
    model: AbstractTeacher,
    overlaps: ArrayLike = 0.0,
    *,
    key: PRNGKeyArray | None = None,
    averages: Averages | None = None,
) -> Array:
    r"""Differentiate the population risk of one direction twice in its overlaps.

        ∂²R/∂v_i ∂v_j,   v = (m, e_1..e_K), of an untied network (m_1..m_L)

    Args:
        model: A `SequenceSingleIndex`.
        overlaps: See `risk`. Default 0, the origin.
        key: See `risk`.
        averages: See `risk`.

    Returns:
        An array (1 + K, 1 + K), of an untied network (L, L); NaN where `risk` is NaN.

    Raises:
        ValueError: In the cases of `risk`, or for an index model.

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
    setting = SgdSetting.of(pair_of(model), overlaps, key, averages, _SIZES)
    check(setting.pair.spherical, "model", model, "a SequenceSingleIndex")
    return _hessian(setting)


@eqx.filter_jit
def _hessian(setting: SgdSetting) -> Array:
    M, Q = setting.overlaps

    def value(v: Array) -> Array:
        return jnp.mean(setting.averages.over_nets(lambda net: net.risk(v.reshape(M.shape), Q)))

    # forward mode twice: reverse mode would keep the tables of the grid
    return jax.jacfwd(jax.jacfwd(value))(jnp.ravel(M))


class Flatness(NamedTuple):
    """The shape of the risk at the origin.

    Attributes:
        order: κ, the lowest order of the risk's series at the origin (inf: none up to the order
            of the call).
        escape: κ_esc, the order of a term by which some direction goes down (inf: none).
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
    r"""Expand the risk at the origin, and find the order by which SGD escapes from there.

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
        The coefficients of target and student, and `order` products over 10,000 directions.

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
    part = max(part, _RISK_ROUNDING * float(jnp.finfo(theory_dtype()).eps))
    moments = [second_moment(f, pair.tokens) for f in (loss.target, loss.student)]
    small = part * float(loss.factor) * sum(moments)
    series = _series(loss, np.asarray(pair.encoding, float), order)
    series = {n: value for n, value in series.items() if abs(value) > small}
    lowest = min(map(sum, series), default=np.inf)
    rays = _rays(series, pair.fixed, small)
    level = np.ones(len(rays), bool)  # rays along which all lower orders vanish
    for k in range(1, order + 1):
        along = [value * np.prod(rays**n, axis=1) for n, value in series.items() if sum(n) == k]
        terms = np.sum(along, axis=0) if along else np.zeros(len(rays))
        # a ray that already rose or fell at a lower order has its escape decided there
        down = np.where(level, terms, 0.0)
        if down.min() < -small:
            return Flatness(lowest, k, rays[np.argmin(down)], series)
        level &= np.abs(terms) <= small
    return Flatness(lowest, np.inf, np.full(pair.fixed, np.nan), series)


def _series(loss: SequenceLoss, encoding: np.ndarray, order: int) -> dict[tuple[int, ...], float]:
    r"""Coefficients of the risk by exponents of (m, e_1..e_K); `encoding` is C (L, K), ε = C e.

    R/c = E‖g‖² + Σ_α ε^α/√α! [‖F‖²]^_α - 2 Σ_n m^|n| Σ_α ε^α √((n+α)!/n!)/α! ⟨ĝ_n, F̂_{n+α}⟩
    """
    L, K = encoding.shape
    g, F = (np.asarray(coefficients(f, L, order)) for f in (loss.target, loss.student))
    squares = np.asarray(coefficients(square(loss.student), L, order))[..., 0]
    factorials = lambda n: float(prod(map(factorial, n)))
    series: dict[tuple[int, ...], float] = defaultdict(float)
    for j, shifts in ((j, total - j) for total in range(1, order + 1) for j in range(total + 1)):
        for alpha in multi_indices(L, shifts):
            # terms without m (j = 0) include those of E‖F‖²
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
    normal = np.random.default_rng(0).standard_normal((_RANDOM_RAYS, inside.shape[1]))
    pairs = [s * a + b for a, b in itertools.combinations(np.eye(size), 2) for s in (1, -1)]
    sums = np.reshape(pairs, (-1, size))
    # a quartic that is negative between two axes alone escapes their sums only
    rays = np.concatenate([np.eye(size), axes.T, inside.T, sums, normal @ inside.T])
    rays = np.concatenate([rays, -rays])
    return rays / np.linalg.norm(rays, axis=1, keepdims=True)


_RATES_SIZES = 2**19, 8  # points of all nets, and nets: Λ of two layers to 1 %
_RECOVERY_SIZES = 2**17, 8
_ZERO_CORRELATION = 1e-9  # correlations below it, relative to the largest entry, count as zero


class RatesErrors(NamedTuple):
    """Standard errors of `Rates`, over independent nets."""

    signal: Array
    pull: Array
    noise: Array


class Rates(eqx.Module):
    """Growth rates of the unlearned state.

    Attributes:
        signal: Λ (P, P*), the pull of the teacher's row q on the student's row p.
        pull: H (P,), how fast the row shrinks or grows.
        noise: E|s_p|² (P,).
        overlap: Q (P, P) of the unlearned state.
        stderr: Standard errors of the first three.
    """

    signal: Array
    pull: Array
    noise: Array
    overlap: Array
    stderr: RatesErrors

    @property
    def plain(self) -> Array:
        """μ (P, P*): dM_pq/dα = κ μ_pq M_pq."""
        return self.signal - self.pull[:, None]

    def cosine(self, rate: ArrayLike) -> Array:
        """Growth rate (P, P*) of the cosines with α at the learning rate κ, and of M on the
        sphere."""
        P = len(self.overlap)
        allowed = f"a finite number > 0, or one for each row ({P},)"
        kappa = validate.array("rate", rate, allowed, shape=(P,), scalar=True, interval=POSITIVE)
        kappa = jnp.broadcast_to(kappa, (P,))[:, None]
        size = jnp.diagonal(self.overlap)[:, None]
        return kappa * self.signal - 0.5 * kappa**2 * self.noise[:, None] / size

    def escape(self, rate: ArrayLike, dimension: ArrayLike) -> Array:
        """α (P,) after which a random start has left the unlearned state, to leading order:
        ln D/(2 rate) of the diagonal growth rates; inf where they are not positive.

        It is meant for the rows that leave first: once they are learned the others wait at another
        saddle, with another rate.
        """
        above_one = Interval("a number > 1", low=1.0, open_low=True)
        size = validate.number("dimension", dimension, above_one)
        growth = jnp.diagonal(self.cosine(rate))
        # keeps the derivative of the branch that is dropped finite
        safe = jnp.where(growth > 0.0, growth, 1.0)
        return jnp.where(growth > 0.0, jnp.log(size) / (2.0 * safe), jnp.inf)


def rates(
    model: AbstractTeacher,
    overlap: ArrayLike = 1.0,
    *,
    key: PRNGKeyArray,
    student: AbstractTeacher | None = None,
    averages: Averages | None = None,
) -> Rates:
    r"""Compute how fast online SGD leaves the unlearned state M = 0, row by row.

        dM_pq/dα = κ (Λ_pq - H_p) M_pq,   cosines: κ Λ_pq - (κ²/2) E|s_p|²/Q_pp

    Args:
        model: The teacher: an index model whose link is even in every row, with a prior of
            independent rows.
        overlap: Q (P, P) of the student, diagonal, or a number times I. Default 1.
        key: A random key, of the nets.
        student: Another index model of as many tokens, even in every row. Default: the model.
        averages: Points of all nets (default 2^19) and nets (8). A `smi.Averages`.

    Returns:
        A `Rates`: its `signal` Λ, `plain` μ, `cosine(rate)` and `escape(rate, dimension)`.

    Raises:
        ValueError: For a link that is not even in every row (it does not start at a saddle), a
            prior with correlated rows (entries of M then grow together), a Q that is not diagonal
            and positive, or numbers out of range.

    Example:
        >>> import jax, jaxsmi as smi
        >>> few = smi.Averages(points=2**15)
        >>> found = smi.sgd.rates(smi.DeepAttention(2, 2), key=jax.random.key(0), averages=few)
        >>> bool(found.signal[1, 1] > 10 * found.signal[0, 0])  # the last layer is learned first
        True

    Cost:
        A gradient of a sample at each point.

    Source:
        [theory: online-sgd, Eqs. (68) to (70)].
    """
    pair = pair_of(model, student)
    allowed = "an index model without directions of its inputs"
    teacher = validate.instance("model", model, IndexModel, allowed)
    check(not pair.directions, "model", title(teacher), allowed)
    learner = validate.instance("student", student or model, IndexModel, allowed)
    key = validate.key("key", key)
    size, nets = sizes_of(averages, *_RATES_SIZES)
    largest = lambda x: jnp.max(jnp.abs(x))
    diagonal = lambda x: largest(x - jnp.diag(jnp.diagonal(x))) <= _ZERO_CORRELATION * largest(x)
    independent = diagonal(pair.gram)
    check(independent, "model", title(teacher), "one whose prior has independent rows")
    P = pair.rows
    allowed = f"a number > 0, or a diagonal Q ({P}, {P})"
    Q = validate.array("overlap", overlap, allowed, shape=(P, P), scalar=True)
    Q = Q * jnp.eye(P, dtype=Q.dtype) if Q.ndim == 0 else Q
    positive = diagonal(Q) & jnp.all(jnp.diagonal(Q) > 0.0)
    check(positive, "overlap", overlap, allowed)
    allowed = "a link that is even in every row (others leave M = 0 at once: smi.sgd.flow)"
    for argument, (name, law) in enumerate((("model", teacher), ("student", learner))):
        check(not concrete(pair) or is_even(pair, argument), name, title(law), allowed)
    check_gradient(pair)
    # out of range inside jit: a Q that has an inverse, and an answer that is NaN
    valid = independent & positive & validate.valid(Q)
    safe = jnp.where(valid, Q, jnp.eye(P, dtype=Q.dtype))
    found = _rates(pair, (learner, teacher), safe, key, size, nets)
    signal, pull, noise = (jnp.where(valid, jnp.mean(x, axis=0), jnp.nan) for x in found)
    return Rates(signal, pull, noise, Q, RatesErrors(*map(spread, found)))


@eqx.filter_jit
def _rates(
    pair: TeacherStudent,
    models: tuple[IndexModel, IndexModel],
    Q: Array,
    key: PRNGKeyArray,
    size: int,
    nets: int,
) -> tuple[Array, Array, Array]:
    r"""Λ, H and E|s|² of each net, at M = 0: z ~ N(0, Q), z* ~ N(0, S), S diagonal.

    C_p = E Hess_pp link,   C*_q = E Hess_qq link*                    tokens × tokens
    Λ_pq = 2 S_qq Σ_{outputs,m,n} C_p[m, n] C*_q[m, n],   H_p = E[s_p·z_p]/Q_pp
    """
    # independent points: products of averages over one set would be biased
    keys = [jax.random.fold_in(key, i) for i in range(3)]
    sides = zip(models, (Q, pair.gram), keys, strict=False)
    curvatures = [_curvatures(*side, size, nets) for side in sides]
    averages = net_averages(pair, triangular_root(pair.gram), keys[2], size, nets)
    M = jnp.zeros((pair.rows, pair.fixed), Q.dtype)
    found = averages.over_nets(lambda net: net.at(M, Q))
    diagonal = lambda x: jnp.diagonal(x, axis1=-2, axis2=-1)
    pull = diagonal(found.student_gradient) / jnp.diagonal(Q)
    signal = 2.0 * jnp.einsum("rpomn,rqomn,q->rpq", *curvatures, jnp.diagonal(pair.gram))
    return signal, pull, diagonal(found.gradient_noise)


def _curvatures(model: IndexModel, Q: Array, key: PRNGKeyArray, size: int, nets: int) -> Array:
    """E Hess_pp link (nets, P, outputs, M, M) at z ~ N(0, Q), by Stein: E[link (u_p u_pᵀ -
    (Q^{-1})_pp I)], u = Q^{-1} z. (Derivatives of the link would miss its kinks.)"""
    M, inverse = model.tokens, jnp.linalg.inv(Q)

    def one(fields: tuple[Array, Array]) -> Array:
        z, weight = fields
        labels = jax.vmap(lambda z: jnp.ravel(model.link(z)))(z)
        # a constant has no curvature, but would add to the error
        centred = labels - jnp.sum(weight[:, None] * labels, axis=0)
        u = jnp.einsum("pq,nqm->npm", inverse, z)
        square = jnp.einsum("npm,npk->npmk", u, u)
        square = square - jnp.diagonal(inverse)[:, None, None] * jnp.eye(M)
        return jnp.einsum("n,no,npmk->pomk", weight, centred, square)

    return lax.map(one, _fields(Q, M, key, size, nets))


def _fields(Q: Array, tokens: int, key: PRNGKeyArray, size: int, nets: int) -> tuple[Array, Array]:
    """Draw points z ~ N(0, Q) of each net (nets, n, P, tokens), and their weights."""
    position, weight = gaussian_points(key, size, nets, len(Q) * tokens, MIN_AXIS_POINTS)
    normals = position.reshape(nets, -1, len(Q), tokens)
    return jnp.einsum("pq,rnqm->rnpm", sqrt_psd(Q), normals), weight


def maximal_rate(
    model: AbstractTeacher, *, key: PRNGKeyArray | None = None, averages: Averages | None = None
) -> Estimate:
    r"""Compute the largest learning rate of perfect recovery; of one direction on the sphere, the
    largest at which it leaves the origin.

        index models     κ_max = 1/(2 λ): above, the error of noiseless labels never vanishes
        one direction    γ_max = 2 |λ_min(∇²R(0))|/N_s(0), of an untied network with N_s/L

    Args:
        model: A noiseless index model, or a `SequenceSingleIndex`.
        key: A random key, of the nets of an index model, and where the risk is sampled.
        averages: Points of all nets and nets. A `smi.Averages`. Default 2^17 and 8, of a
            `SequenceSingleIndex` those of `risk`.

    Returns:
        κ_max as an Estimate(value, stderr); γ_max of a `SequenceSingleIndex` (without its error),
        0 where the Hessian at the origin has no negative eigenvalue (for other orders see the
        source).

    Raises:
        ValueError: In the cases of `risk`; for labels with noise, or a missing key.

    Example:
        >>> import jax, jaxsmi as smi
        >>> square = smi.sgd.HermiteSeries({(2, 0): 1.0, (0, 2): 1.0}, normalised=True)
        >>> model = smi.SequenceSingleIndex(
        ...     square, 2, smi.sgd.Network(jax.nn.relu), loss_factor=1.0
        ... )
        >>> round(float(smi.sgd.maximal_rate(model).value), 6)  # (2/√π)/(L + 1)
        0.376126
        >>> phase = smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, tokens=1)
        >>> rate = smi.sgd.maximal_rate(phase, key=jax.random.key(0)).value
        >>> bool(abs(rate - 1 / 12) < 1e-6)
        True

    Cost:
        A Hessian of the loss at each point for an index model; else one `hessian` and one
        `averages`.

    Source:
        [theory: online-sgd, section 4, Eq. (31), and Eqs. (71), (72)].
    """
    pair = pair_of(model)
    # on the sphere recovery is no fixed point of the noise: what counts is to leave the origin
    if pair.spherical:
        setting = SgdSetting.of(pair, 0.0, key, averages, _SIZES)
        lowest = jnp.linalg.eigvalsh(_hessian(setting))[0]
        noise = jnp.mean(_averages(setting).gradient_noise, axis=0)[0, 0]
        return Estimate(jnp.maximum(-2.0 * lowest, 0.0) / noise, jnp.zeros(()))
    key = validate.key("key", key)
    size, nets = sizes_of(averages, *_RECOVERY_SIZES)
    check_noiseless(pair)
    check_gradient(pair)
    values = _recovery_rates(pair, key, size, nets)
    return Estimate(jnp.mean(values), spread(values))


@eqx.filter_jit
def _recovery_rates(pair: TeacherStudent, key: PRNGKeyArray, size: int, nets: int) -> Array:
    """κ_max of each net. At perfect recovery of a noiseless link, J its Jacobian, G = JᵀJ, error
    E = dW dWᵀ/D:

        dE/dα = -2κ (Ḡ E + E Ḡ) + 4κ² Σ_mn E[G_mn E G_mnᵀ],   Ḡ = Σ_m E G_mm
        κ_max = 1/(2 λ),   λ the largest eigenvalue of (Ḡ · + · Ḡ)^{-1} Σ_mn E[G_mn · G_mnᵀ]
    """
    P, S = pair.rows, pair.gram[: pair.targets, : pair.targets]
    zero_noise = jnp.zeros(pair.noise_size)

    def curvature(z: Array) -> Array:  # G of the squared loss, whose residual is zero here
        return 0.5 * jax.hessian(lambda x: pair.sample_loss(z, x, zero_noise))(z)

    def one(fields: tuple[Array, Array]) -> Array:
        z, weight = fields
        G = jax.vmap(curvature)(z)
        mean = jnp.einsum("n,npmqm->pq", weight, G)
        # `conjugation` averages over points of equal weight
        scaled = G * (len(weight) * weight)[:, None, None, None, None]
        noise = conjugation(scaled, G).reshape(P * P, P * P)
        identity = jnp.eye(P, dtype=theory_dtype())
        # both are symmetric: no eigenvalues of a matrix that is not, which a TPU does not have
        root = inverse_root(jnp.kron(mean, identity) + jnp.kron(identity, mean))
        return 0.5 / jnp.linalg.eigvalsh(symmetric(root @ noise @ root))[-1]

    return lax.map(one, _fields(S, pair.tokens, key, size, nets))
