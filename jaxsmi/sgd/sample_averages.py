r"""Averages over a fresh sample at overlaps (M, Q): the terms of the flow of online SGD.

Equations here [theory: online-sgd, Eqs. (63) to (65)], h = T x/√D of the k fixed rows, z with their
means, tokens summed over:

    A_T = E[s hᵀ] (P, k),   A_Z = E[s zᵀ] (P, P),   N_s = E[s sᵀ] (P, P),   R = E ℓ

at h = L N_T, z = Y N_T + Z N_Z with M = Y Lᵀ, Q = Y Yᵀ + Z Zᵀ. A flow, a rate or an exponent needs
an `AbstractAverages` and nothing else of a model; there are three of them:

    NetAverages      any link: points, an error bar from independent nets
    GridAverages     one direction on the sphere, up to three tokens: sums on a grid
    SeriesAverages   a network whose target is a Hermite series: finite sums

Of one direction on the sphere, v = (m, e), and up to a multiple of v that the projection removes,

    A_T = ∇R(v),   A_Z = v·∇R(v),   N_s = E Σ_l s_l²
    R = c {E‖g‖² + S(e) - 2 C[g, F](m, e)},   S = E‖F(ξ + C e)‖²
    N_s = 4c² {E Σ_l ⟨F, ∂_l F⟩² - 2 E⟨g, Σ_l ⟨F, ∂_l F⟩ ∂_l F⟩ + E⟨g gᵀ, Σ_l ∂_l F ∂_l Fᵀ⟩}

Letters here: s slopes ∂ℓ/∂z, N_s the noise of the gradient, T fixed rows, R risk, S = E‖F‖².
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete
from jaxsmi.core.options import Averages
from jaxsmi.models.teacher_student import HermiteSeries, SequenceLoss, TeacherStudent
from jaxsmi.numerics.implicit import not_differentiable
from jaxsmi.numerics.linear_algebra import triangular_root
from jaxsmi.numerics.quadrature import gaussian_points, power_of_two, standard_error
from jaxsmi.sgd.coordinates import Coordinates, add_means, coordinates_at, fields_of, slopes
from jaxsmi.sgd.hermite import (
    TokenGrid,
    activation_coefficients,
    correlation,
    expectation,
    second_moment,
    series_average,
    square,
)
from jaxsmi.sgd.problem import Initial, Overlaps, check_gradient, gram_of

# Signs of rows are flipped so that the symmetries of a model hold exactly, in so many copies
# of a point: more copies leave fewer independent points.
_MAX_COPIES = 8
MIN_AXIS_POINTS = 40  # points an axis of a grid, at least: softmax has poles near the real axis
_BLOCK_POINTS = 2**15  # points whose fields lie in memory together
_MAX_GRID_TOKENS = 3  # two tokens take milliseconds, three seconds, four would take minutes

_Result = TypeVar("_Result")


class GradientMoments(NamedTuple):
    """A_T (P, k), A_Z (P, P), N_s (P, P) and the risk R.

    Attributes:
        teacher_gradient: A_T = E[s hᵀ].
        student_gradient: A_Z = E[s zᵀ].
        gradient_noise: N_s = E[s sᵀ].
        risk: R = E ℓ.
    """

    teacher_gradient: Array
    student_gradient: Array
    gradient_noise: Array
    risk: Array


class AbstractAverages(eqx.Module):
    """Averages over a fresh sample at overlaps M (P, k), Q (P, P)."""

    @abc.abstractmethod
    def at(self, M: Array, Q: Array, noise: bool = True) -> GradientMoments:
        """The averages; without `noise` N_s may be zero, and the risk NaN where it costs extra."""

    @abc.abstractmethod
    def risk(self, M: Array, Q: Array) -> Array:
        """The risk R alone."""

    @abc.abstractmethod
    def over_nets(self, function: Callable[[AbstractAverages], _Result]) -> _Result:
        """Apply a function to the averages of each independent net, with a leading axis."""

    def rounding(self, M: Array, Q: Array) -> Array:
        """Error of a risk that is no average over nets, by its rounding."""
        return jnp.zeros(())

    def exists(self) -> bool:
        """Return False if the risk is known to diverge."""
        return True


# One direction on the sphere


class _SphereAverages(AbstractAverages):
    """Averages of one direction on the sphere (Q = 1), without sampling."""

    pair: TeacherStudent
    loss: SequenceLoss

    @abc.abstractmethod
    def risk_at(self, v: Array, stride: int = 1) -> Array:
        """R at v = (m, e), or m_1..m_L of an untied network."""

    @abc.abstractmethod
    def noise_at(self, v: Array) -> Array:
        """N_s of all rows together."""

    def over_nets(self, function: Callable[[AbstractAverages], _Result]) -> _Result:
        return jax.tree.map(lambda x: x[None], function(self))

    def risk(self, M: Array, Q: Array) -> Array:
        return self.risk_at(self._vector(M))

    def at(self, M: Array, Q: Array, noise: bool = True) -> GradientMoments:
        v = self._vector(M)
        tied = self.pair.tied
        size = jnp.linalg.norm(v) if tied else jnp.abs(v)
        v = v / jnp.maximum(size, 1.0)  # a stage of an integrator may step outside
        # one number of few: forward mode keeps no table of the grid in memory
        slope = jax.jacfwd(self.risk_at)(v)
        total = self.noise_at(v) if noise else jnp.zeros((), v.dtype)
        own = jnp.sum(v * slope)[None] if tied else v * slope
        # each row of an untied network has its share of N_s
        shares = jnp.diag(jnp.broadcast_to(total / len(M), (len(M),)))
        fixed = slope[None] if tied else slope[:, None]
        return GradientMoments(fixed, jnp.diag(own), shares, jnp.full((), jnp.nan, v.dtype))

    def _vector(self, M: Array) -> Array:
        return M[0] if self.pair.tied else M[:, 0]


class SeriesAverages(_SphereAverages):
    """Averages of a network whose target is a series [theory: online-sgd, Eqs. (15) to (17)]:

    R = c {‖ĝ‖² + E σ² - 2 E g F},   N_s = 4c² {E σ'² σ² - 2 E g σ'² σ + E g² σ'²}
    """

    def _parts(self, v: Array) -> tuple[HermiteSeries, Callable[[Array], Array], Array]:
        """g, σ, and the correlations of the tokens with the network's argument."""
        assert self.loss.series is not None
        tokens = self.pair.tokens * self.pair.groups
        return *self.loss.series, jnp.broadcast_to(v, (tokens,)) / np.sqrt(tokens)

    def risk_at(self, v: Array, stride: int = 1) -> Array:
        g, activation, rho = self._parts(v)
        target = jnp.sum(g.orthonormal**2)
        student = activation_coefficients(lambda x: activation(x) ** 2, 0)[0]
        overlap = series_average(g, rho, activation)
        return self.loss.factor * (target + student - 2.0 * overlap)

    def noise_at(self, v: Array) -> Array:
        g, activation, rho = self._parts(v)
        # ∂_l F = σ'/√L, whose squares add up to σ'² over the tokens
        slope = lambda x: jax.grad(activation)(x) ** 2
        student = activation_coefficients(lambda x: slope(x) * activation(x) ** 2, 0)[0]
        cross = series_average(g, rho, lambda x: slope(x) * activation(x))
        target = series_average(g.squared(), rho, slope)
        return 4.0 * self.loss.factor**2 * (student - 2.0 * cross + target)


class GridAverages(_SphereAverages):
    """Averages of one direction and up to three tokens on grids; `reach`: largest field mean."""

    reach: float = eqx.field(static=True)
    coarse: bool = eqx.field(static=True)

    def _settings(self, v: Array) -> tuple[Array, Array, TokenGrid]:
        """Clip m to [-1, 1]; return it with the means of the fields and the grid."""
        m = v[0] + lax.stop_gradient(jnp.clip(v[0], -1.0, 1.0) - v[0])
        means = self.pair.encoding.astype(v.dtype) @ v[1:]
        return m, means, TokenGrid.of(len(means), self.reach, coarse=self.coarse)

    def risk_at(self, v: Array, stride: int = 1) -> Array:
        m, e, grid = self._settings(v)
        outer = grid.coarser(stride)
        g, F = self.loss.target, self.loss.student
        target = expectation(square(g), jnp.zeros_like(e), outer)
        student = expectation(square(F), e, outer)
        both = correlation(g, F, m, e, grid, outer)
        return self.loss.factor * (target + student - 2.0 * both)

    def noise_at(self, v: Array) -> Array:
        m, e, grid = self._settings(v)
        target = eqx.Partial(_target_products, self.loss.target)
        student = eqx.Partial(_products, self.loss.student)
        return 4.0 * self.loss.factor**2 * correlation(target, student, m, e, grid, grid)

    def rounding(self, M: Array, Q: Array) -> Array:
        """The change of the risk with half of the nodes."""
        v = lax.stop_gradient(self._vector(M))
        return jnp.abs(self.risk_at(v) - self.risk_at(v, 2))

    def exists(self) -> bool:
        # traced numbers cannot be looked at
        return not concrete(self) or np.isfinite(second_moment(self.loss.target, self.pair.tokens))


def _products(f: Callable[[Array], Array], z: Array) -> Array:
    """Σ_l ⟨F, ∂_l F⟩², -2 Σ_l ⟨F, ∂_l F⟩ ∂_l F and Σ_l ∂_l F ⊗ ∂_l F: (1 + k + k²,)."""
    flat = lambda z: jnp.ravel(f(z))
    slopes = jax.jacfwd(flat)(z).T
    along = slopes @ flat(z)
    square = jnp.sum(along**2)[None]
    return jnp.concatenate([square, -2.0 * along @ slopes, jnp.ravel(slopes.T @ slopes)])


def _target_products(f: Callable[[Array], Array], z: Array) -> Array:
    """1, g and g ⊗ g: (1 + k + k²,)."""
    g = jnp.ravel(f(z))
    return jnp.concatenate([jnp.ones(1, g.dtype), g, jnp.ravel(g[:, None] * g)])


# Any link


class NetPoints(NamedTuple):
    """Standard normals at points of nets (leading axis): `fixed` N_T (k, tokens, g, n), `moving`
    N_Z (P, tokens, g, n), `noise` of labels (noise, n), `weight` (n,)."""

    fixed: Array
    moving: Array
    noise: Array
    weight: Array


class NetAverages(AbstractAverages):
    """Averages over points of independent nets, in the frame L of the fixed rows.

    All overlaps share the points (common random numbers).
    """

    pair: TeacherStudent
    frame: Array
    points: NetPoints

    def over_nets(self, function: Callable[[AbstractAverages], _Result]) -> _Result:
        return lax.map(lambda net: function(dataclasses.replace(self, points=net)), self.points)

    def risk(self, M: Array, Q: Array) -> Array:
        return self.at(M, Q).risk

    def at(self, M: Array, Q: Array, noise: bool = True) -> GradientMoments:
        """Sums over the points, block by block."""
        at = coordinates_at(self.pair, self.frame, M, Q)
        position = jax.tree.map(lambda x: x[..., None], at)
        blocks = max(self.points.weight.shape[0] // _BLOCK_POINTS, 1)
        cut = lambda x: jnp.moveaxis(x.reshape(*x.shape[:-1], blocks, x.shape[-1] // blocks), -2, 0)
        parts = lax.map(lambda part: self._sums(position, part), jax.tree.map(cut, self.points))
        moments = jax.tree.map(lambda x: jnp.sum(x, axis=0), parts)
        # a row in the span of the others has no coordinate of its own, and a part of the derivative
        # would be lost in silence
        regular = jnp.all(jnp.diagonal(at.across) != 0.0)
        return not_differentiable(moments, (M, Q), unless=regular)

    def _sums(self, position: Coordinates, points: NetPoints) -> GradientMoments:
        """The weighted sums over some points."""
        pair = self.pair
        inputs = add_means(pair, position.frame, points.fixed)
        h = fields_of(position.frame[:, :, None], inputs)
        z = fields_of(position.along, inputs) + fields_of(position.across, points.moving)
        teacher_fields = h[: pair.targets]
        s = slopes(pair, teacher_fields, z, points.noise[:, None])
        # (p, q, g): summed over tokens and points
        products = lambda a, b: jnp.sum(a[:, None] * b, axis=(2, -1))
        rows = lambda x: x.reshape(len(x), -1, x.shape[-1])
        values = jax.vmap(pair.sample_loss, -1)(rows(teacher_fields), rows(z), points.noise)
        weighted = s * points.weight
        return GradientMoments(
            teacher_gradient=jnp.moveaxis(products(weighted, h), -1, 0).reshape(-1, pair.fixed),
            student_gradient=self._blocks(products(weighted, z)),
            gradient_noise=self._blocks(products(weighted, s)),
            risk=jnp.sum(points.weight * values),
        )

    def _blocks(self, own: Array) -> Array:
        """Matrix (g P, g P) of the blocks (P, P, g), zero between groups."""
        groups = own.shape[-1]
        blocks = jnp.einsum("pqg,gh->gphq", own, jnp.eye(groups, dtype=own.dtype))
        return blocks.reshape(groups * len(own), -1)


def _flips(fixed: int, rows: int) -> np.ndarray:
    """Signs (copies, fixed + rows) of the rows of N_T and N_Z, one of each pair of opposite ones:
    of all rows independently, or of a teacher's and a student's row together, or none, the first of
    these that takes few copies."""
    alone, together = range(fixed + rows), [*range(fixed), *range(rows)]
    few = [x for x in (alone, together) if 2 ** max(x) <= _MAX_COPIES]
    sign_of = np.array(few[0] if few else [0] * len(alone))
    signs = [(1.0, *s) for s in itertools.product((1.0, -1.0), repeat=max(sign_of))]
    return np.array(signs)[:, sign_of]


def net_averages(
    pair: TeacherStudent, frame: Array, key: PRNGKeyArray, size: int, nets: int
) -> NetAverages:
    """Build averages on `nets` nets of `size` points each."""
    tokens = pair.tokens * pair.groups
    k, P = pair.fixed, pair.rows
    rows = (k + P) * tokens
    signs = jnp.asarray(_flips(k, P))
    copies = len(signs)
    # without its signs M = 0 would not be at rest, and the exit from it amplifies any error
    points = max(size // copies, 1)
    position, weight = gaussian_points(key, points, nets, rows + pair.noise_size, MIN_AXIS_POINTS)
    normals = jnp.moveaxis(position, -1, 1)  # (nets, rows + noise, n)
    body = normals[:, :rows].reshape(nets, k + P, 1, tokens, -1) * signs.T[:, :, None, None]
    body = jnp.moveaxis(body, 2, 3).reshape(nets, k + P, pair.tokens, pair.groups, -1)
    noise = jnp.tile(normals[:, rows:], (1, 1, copies))
    weights = jnp.tile(weight, (1, copies)) / copies
    # blocks are of one size: points of weight zero fill the last
    beyond = -weights.shape[1] % _BLOCK_POINTS if weights.shape[1] > _BLOCK_POINTS else 0
    points = NetPoints(body[:, :k], body[:, k:], noise, weights)
    pad = lambda x: jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, beyond),))
    return NetAverages(pair, frame, jax.tree.map(pad, points))


def sizes_of(averages: Averages | None, points: int, nets: int) -> tuple[int, int]:
    """Points of each net, a power of two, and nets, by the defaults of a call."""
    size, nets = Averages.of(averages).sizes(points, nets)
    return power_of_two(size), nets


class SgdSetting(NamedTuple):
    """Teacher and student of a call, the Gram matrix of the fixed rows, overlaps of the student,
    and the averages of a fresh sample."""

    pair: TeacherStudent
    gram: Array
    overlaps: Overlaps
    averages: AbstractAverages

    @classmethod
    def of(
        cls,
        pair: TeacherStudent,
        start: Any,
        key: PRNGKeyArray | None,
        averages: Averages | None,
        default_sizes: tuple[int, int],
        coarse: bool = False,
    ) -> SgdSetting:
        """Validate the other arguments of a call. Averages are exact where they can be, else on
        nets; `default_sizes`: points of all nets, and nets, where the call says nothing."""
        initial = Initial.of(start)
        gram = gram_of(pair, initial.teacher)
        overlaps = Overlaps.of(pair, gram, initial.student)
        sizes = sizes_of(averages, *default_sizes)
        key = validate.optional(validate.key, "key", key)
        found = _exact_averages(pair, coarse)
        if found is None:
            # None is an error only here, where averages are sampled
            found = net_averages(pair, triangular_root(gram), validate.key("key", key), *sizes)
        check_gradient(pair)
        return cls(pair, gram, overlaps, found)


class AbstractMotion(eqx.Module):
    """Velocity of a state from averages of a fresh sample, at overlaps that follow from it.

    Attributes:
        start: The state at t = 0.
    """

    start: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def velocity(self, averages: AbstractAverages, state: Any) -> Any:
        """d(state)/dt."""

    @abc.abstractmethod
    def overlaps(self, state: Any) -> Overlaps:
        """M and Q."""


def _exact_averages(pair: TeacherStudent, coarse: bool) -> AbstractAverages | None:
    """Averages without sampling of a squared loss of one direction, or None."""
    loss = pair.squared
    if loss is None:
        return None
    if loss.series is not None:
        return SeriesAverages(pair, loss)
    # trapezoidal sums lose their accuracy at a kink, and a network of a general target may have one
    if not loss.smooth or pair.tokens > _MAX_GRID_TOKENS:
        return None
    # the size of a grid is static: under jit, where it is unknown, rows of norm one
    rows = np.asarray(pair.encoding) if concrete(pair.encoding) else np.zeros((1, 1))
    reach = float(np.ceil(np.max(np.linalg.norm(rows, axis=1), initial=1.0)))
    return GridAverages(pair, loss, reach, coarse)


def spread(values: Array) -> Array:
    """Standard error of the mean over nets (leading axis), zero for one exact answer."""
    # an answer without sampling: the spread of one number would be NaN
    return jnp.zeros_like(values[0]) if len(values) == 1 else standard_error(values)
