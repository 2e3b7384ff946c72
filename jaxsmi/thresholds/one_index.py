"""All fixed points of a model of one index, as a curve, and the thresholds that are read off it.

Equations here [theory: multi-index, Eqs. (51), (70)], with the precision Q̂ = e^x as parameter, f
the prior's part of the free entropy and L = E log Z_out:

    Q = overlap(Q̂),  α = Q̂ / response(Q),  Φ = f(Q, Q̂) + α L(Q)

Fixed points are stable where α grows with Q̂. The ends of the branches are extrema of α, and at
every fixed point dΦ/dQ̂ = 0: derivatives of the thresholds, and their errors by nets, are those at
constant Q̂. Between two branches Φ differs by h, and dh/dα is the difference of L.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.core.arrays import frozen, missing, theory_dtype
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Threshold
from jaxsmi.models.base import AbstractModel, regular_along
from jaxsmi.numerics import implicit, roots
from jaxsmi.numerics.quadrature import INTEGRAL_ERROR, standard_error

# Q/S and V/S at the ends of the curve: α is off by about Q/S at the first, √(V/S) at the other
_SMALLEST_Q, _SMALLEST_V = 1e-6, 1e-7
# V/S that stands for Q = S in L: for signs the error is of order √V
_PERFECT_V = 1e-14
# two V/S, and the share of labels with a density that counts: E log Z_out ~ ½ share log 1/V
_NARROW, _DENSE = (1e-8, 1e-10), 1e-3
_LARGEST_QHAT = 1e11  # Q̂ S beyond which rounding of Φ, Q̂ε, moves the α of equal Φ by 1e-5
SCAN = 96  # points of the curve: four in an e-fold of Q̂ under a Gaussian prior
# points about an extremum, added so many times on ever shorter intervals
_ZOOM, _ZOOMS = 8, 3
_CHUNK = 4  # points in one call of compiled code
# α counts as falling beyond this relative fall, and beyond three standard errors of it
_FALL, _SIGNIFICANT = 1e-6, 3.0
_NOISY = 0.1  # relative error of α at a small V beyond which the curve counts as unknown
# Newton steps to the α of equal Φ, and the relative size of the last one
_ROUNDS, _LAST = 12, 1e-8
_ROUNDING = 256.0  # rounding of α, in units of ε
# α diverges for Q → 0 where the first point of the curve exceeds the second by this factor
_DIVERGES = 1.05

Ends = tuple[Threshold, Threshold, Threshold]  # algorithmic, information-theoretic, spinodal


class _Points(NamedTuple):
    """Fixed points (n,), and of each of R nets their response and L, (n, R); `error`: of the
    response by inner integrals, relative."""

    x: Array
    Q: Array
    f: Array
    response: Array
    L: Array
    error: Array

    @property
    def alpha(self) -> np.ndarray:
        """α (n,) by the mean over nets."""
        return np.exp(self.x) / np.mean(self.response, axis=1)

    @property
    def replicas(self) -> np.ndarray:
        """α (n, R) of each net."""
        with np.errstate(divide="ignore"):  # no point of a net is next to a jump: α = inf
            return np.exp(self.x)[:, None] / self.response


class Sizes(NamedTuple):
    """The key, the points in each net and the number of nets of an average."""

    key: PRNGKeyArray
    points_per_net: int
    nets: int


@eqx.filter_jit
def _points(model: AbstractModel, x: Array, sizes: Sizes) -> _Points:
    def one(x: Array) -> _Points:
        prior, Qhat = model.prior, jnp.exp(x) * jnp.ones((1, 1), x.dtype)
        S, Q = prior.second_moment(1), prior.overlap(Qhat)
        # V of discrete priors underflows
        V = jnp.maximum(prior.mmse(Qhat), _PERFECT_V * S)
        key, points, nets = sizes
        response = model.channel.response(
            jnp.minimum(Q, S - V), V, key=key, points=points, nets=nets, tangents=False
        )
        f, R = prior.entropy_term(Q, Qhat), response.replicas[:, 0, 0]
        return _Points(x, Q[0, 0], f, R, response.log_partition, response.error[0, 0] / jnp.mean(R))

    return lax.map(one, x)


def free_entropy_diverges(model: AbstractModel, sizes: Sizes) -> bool:
    """True if Φ = ∞ at perfect recovery, which is then optimal wherever it is stable: that of
    weights with a density, or a share of them; or from labels with a density and no noise, whose
    E log Z_out grows as log 1/V."""
    channel, S = model.channel, model.prior.second_moment(model.indices)
    if not model.prior.traits.discrete:
        return True
    if channel.outcomes is not None or not channel.noiseless:
        return False
    wide, narrow = (float(mean_log_partition(channel, share * S, S, sizes)) for share in _NARROW)
    return narrow - wide > _DENSE * np.log(_NARROW[0] / _NARROW[1])


@eqx.filter_jit
def mean_log_partition(channel: AbstractChannel, V: Array, S: Array, sizes: Sizes) -> Array:
    """E log Z_out at the posterior covariance V (P, P)."""
    key, points, nets = sizes
    # no tangents: Φ needs the partition function alone
    response = channel.response(S - V, V, key=key, points=points, nets=nets, tangents=False)
    return jnp.mean(response.log_partition)


@eqx.filter_jit
def _slopes(
    model: AbstractModel, at: tuple[Array, ...], sizes: Sizes, directions: list[Array]
) -> tuple[Array, Array]:
    """Tangents, along directions of the numbers of the model, of α at fixed Q̂ and of Φ at fixed Q,
    Q̂ and α, for each of the points (x, Q, α)."""
    key, points, nets = sizes

    def numbers(model: AbstractModel, x: Array, Q: Array, alpha: Array) -> tuple[Array, Array]:
        prior, Qhat = model.prior, jnp.exp(x) * jnp.ones((1, 1), x.dtype)
        S = prior.second_moment(1)
        overlap = S - prior.mmse(Qhat)  # its derivative is right where V is small, too
        # Q = S moves with S
        Q = jnp.minimum(Q, (1.0 - _PERFECT_V) * S)
        response = model.channel.response(Q, S - Q, key=key, points=points, nets=nets)
        R = response.mean + frozen(response.jacobian[:, :, 0, 0]) * overlap
        Phi = prior.entropy_term(Q, Qhat) + alpha * jnp.mean(response.log_partition)
        return -frozen(jnp.exp(x) / response.mean[0, 0] ** 2) * R[0, 0], Phi

    return lax.map(lambda p: implicit.derivative(lambda m: numbers(m, *p), model, directions), at)


class FixedPointCurve:
    """The curve of fixed points, on the host.

    Args:
        model: A model of one index.
        sizes: Of all averages.
        most: The largest α of interest.
        recovers: V may fall to 0.
        update: Is told how many points were computed.

    Attributes:
        at: The points, in the order of x.
        recovery: The α from which on Q = S is stable; inf: at none.
        recovery_error: Its error, as it is extrapolated.
        perfect: x that stands for Q = S.
        known: True if α is known up to `most`.
        counted: True if the recovery of weights with a density is known from a count of unknowns.
        complete: True if the informed branch is on the curve up to the largest α.
    """

    def __init__(
        self,
        model: AbstractModel,
        sizes: Sizes,
        most: float,
        recovers: bool,
        update: Callable[[int], object],
    ) -> None:
        self.model, self.sizes, self.update = model, sizes, update
        S = float(model.prior.second_moment(1)[0, 0])
        V = lambda x: model.prior.mmse(jnp.exp(x) * jnp.ones((1, 1)))[0, 0]
        # smaller changes are rounding in float32
        rough = float(jnp.finfo(theory_dtype()).eps) ** 0.5
        smallest, self.least_fall = max(_SMALLEST_V, rough) * S, max(_FALL, rough)
        # Q = Q̂ S² at small Q̂, and V ≤ 1/Q̂
        low, high = np.log(max(_SMALLEST_Q, rough) / S), -np.log(smallest)
        bounds = jnp.asarray(low), jnp.asarray(high)
        high = float(roots.bisect(lambda x: V(x) < smallest, *bounds))
        points = self._compute(np.linspace(low, high, SCAN))
        # little noise: the informed branch is there, at a V of its order
        gap, highest = points.x[-1] - points.x[-2], np.log(_LARGEST_QHAT / S)
        while not recovers and points.alpha[-1] < points.alpha.max() and points.x[-1] < highest:
            more = self._compute(np.asarray(points.x[-1] + gap * np.arange(1, _CHUNK + 1)))
            points = jax.tree.map(lambda *a: np.concatenate(a), points, more)
        self.complete = recovers or points.alpha[-1] >= points.alpha.max()
        self.perfect = points.x[-1] + np.log(10.0)  # V underflows there under a discrete prior
        alpha, error = points.alpha, np.asarray(standard_error(points.replicas.T))
        # integrals may miss the narrow posteriors of small V
        bad = (points.Q > 0.5 * S) & ~(error < _NOISY * alpha)
        end = int(np.argmax(bad)) if bad.any() else len(alpha)
        self.at = jax.tree.map(lambda a: a[:end], points)
        whole = self.complete and end == len(alpha)
        self.recovery, self.recovery_error = np.inf, 0.0
        self.counted = model.channel.constraints is not None and not model.prior.traits.discrete
        if recovers and model.prior.traits.discrete:
            self.recovery = 0.0
        elif recovers and self.counted:
            self.recovery = float(model.recovery_alpha)
        elif recovers and whole:
            # α = α(0) + c √V at most, as signs of labels are lost
            before, last = self.add(high - np.asarray([np.log(4.0), 0.0])).alpha
            self.recovery = np.inf if last > _DIVERGES * before else 2.0 * last - before
            self.recovery_error = abs(last - before)
        self.known = whole or self.recovery == 0.0 or alpha[end - 1] > most

    def _compute(self, x: np.ndarray) -> _Points:
        padded = np.concatenate([x, np.full(-len(x) % _CHUNK, x[-1])]).reshape(-1, _CHUNK)
        results = []
        for part in padded:
            results.append(_points(self.model, jnp.asarray(part), self.sizes))
            self.update(_CHUNK)
        return jax.tree.map(lambda *a: np.concatenate(a)[: len(x)], *results)

    def add(self, x: np.ndarray) -> _Points:
        """Compute the points at x, and put them into the curve (without Q = S)."""
        new = self._compute(x)
        merged = jax.tree.map(lambda a, b: np.concatenate([a, b[x < self.perfect]]), self.at, new)
        _, order = np.unique(merged.x, return_index=True)
        self.at = jax.tree.map(lambda a: a[order], merged)
        return new

    def folds(self) -> tuple[np.ndarray, np.ndarray]:
        """x at which stable pieces of the uninformed and of the informed branch end: α falls below
        a maximum of all before it, or comes from above a minimum of all after it."""

        def maxima(x: np.ndarray, alpha: np.ndarray, replicas: np.ndarray) -> np.ndarray:
            top = np.asarray([np.argmax(alpha[: k + 1]) for k in range(len(alpha))])
            error = np.asarray(standard_error((replicas[top] - replicas).T))
            least = self.least_fall * np.abs(alpha) + _SIGNIFICANT * error
            return x[np.unique(top[alpha[top] - alpha > least])]

        x, alpha, replicas = np.asarray(self.at.x), self.at.alpha, self.at.replicas
        return maxima(x, alpha, replicas), maxima(x[::-1], -alpha[::-1], -replicas[::-1])[::-1]

    def jump(self) -> tuple[float, float] | None:
        """x of the last point of the uninformed branch and of the first one of the informed branch;
        None without a transition."""
        x, alpha = self.at.x, self.at.alpha
        maxima, minima = self.folds()
        falls = len(maxima) > 0 and len(minima) > 0
        least = self.recovery + _SIGNIFICANT * self.recovery_error
        recovered = least < (1.0 - self.least_fall) * alpha.max()
        if not (falls or recovered):
            return None
        last = maxima[-1] if falls else x[np.argmax(alpha)]
        lowest = alpha[x == minima[0]][0] if falls else np.inf
        first = self.perfect if recovered and self.recovery <= lowest else minima[0]
        return float(last), float(first)

    def extremum(self, x: float, sign: float) -> _Points:
        """The maximum (`sign` 1) or minimum (-1) of α next to the point at x."""
        k = int(np.searchsorted(self.at.x, x))
        near = jax.tree.map(lambda y: y[max(k - 1, 0) : k + 2], self.at)
        for _ in range(_ZOOMS):
            k = int(np.argmax(sign * near.alpha))
            low, high = near.x[[max(k - 1, 0), min(k + 1, len(near.x) - 1)]]
            near = self.add(np.linspace(low, high, _ZOOM))
        best = int(np.argmax(sign * near.alpha))
        if not 0 < best < _ZOOM - 1:
            return jax.tree.map(lambda y: y[best : best + 1], near)
        # vertex of the parabola through three points
        a, b, c = near.alpha[best - 1 : best + 2]
        step = 0.5 * (a - c) / (a - 2.0 * b + c)
        return self.add(near.x[best : best + 1] + step * (near.x[1] - near.x[0]))

    def branches(self, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x of the uninformed and of the informed branch (K,) at some α (K,)."""
        from scipy.interpolate import PchipInterpolator  # here: it takes long to import

        curve = PchipInterpolator(self.at.x, np.log(self.at.alpha))
        low, high = self.at.x[[0, -1]]
        ends = []
        for a in alpha:
            solutions = curve.solve(np.log(a), extrapolate=False)
            below, recovered = a < self.at.alpha[0], a > self.recovery
            # no crossing: nothing is learned below the curve, everything above it
            crossings = solutions if len(solutions) else [low if below else high]
            beyond = recovered and not (below or len(solutions))
            first = low if below else self.perfect if beyond else crossings[0]
            ends.append((first, self.perfect if recovered else crossings[-1]))
        return tuple(np.asarray(ends).T)

    def equal(self, low: float, high: float) -> tuple[float, _Points]:
        """The α between two others at which Φ of both branches is the same, and their points."""
        alpha = float(np.sqrt(max(low, 0.01) * min(high, 100.0)))
        for _ in range(_ROUNDS):
            points = self.add(np.ravel(self.branches(np.asarray([alpha]))))
            L = points.L.mean(1)
            h = float(np.diff(points.f + alpha * L)[0])
            low, high = (low, alpha) if h > 0.0 else (alpha, high)
            # the branches may have met, of averages that err
            slope = max(float(np.diff(L)[0]), np.finfo(float).tiny)
            last, newton = alpha, alpha - h / slope
            alpha = newton if low <= newton <= high else 0.5 * (low + min(high, 4.0 * alpha))
            if abs(alpha - last) < _LAST * alpha:
                break
        return alpha, points

    def other_folds(self) -> list[float]:
        """α at which either branch jumps to a third one, below the end of the uninformed branch and
        above that of the informed one."""
        maxima, minima = self.folds()
        ends = [(x, 1.0) for x in maxima[:-1]] + [(x, -1.0) for x in minima[1:]]
        return [float(self.extremum(x, sign).alpha[0]) for x, sign in ends]

    def overlaps(self, x: np.ndarray) -> Array:
        """Q (K, 1, 1) at x."""
        Qhat = jnp.exp(x)[:, None, None] * jnp.ones((1, 1))
        return jax.vmap(self.model.prior.overlap)(Qhat)

    def thresholds(self, model: AbstractModel) -> Ends | None:
        """The algorithmic, information-theoretic and spinodal thresholds, with derivatives in the
        numbers of the model; None without a transition."""
        jump = self.jump()
        if jump is None:
            return None
        (start, after), (last, first) = self.at.alpha[:2], jump
        top, perfect = self.extremum(last, 1.0), first == self.perfect
        # nothing is learned on a curve that rises for Q → 0
        diverges = last == self.at.x[0] and start > _DIVERGES * after
        high = np.inf if diverges else float(top.alpha[0])
        bottom = self.add(self.at.x[-1:]) if perfect else self.extremum(first, -1.0)
        low = self.recovery if perfect else float(bottom.alpha[0])
        # the value, that of each net, Q, and the error that nets share
        S = float(self.model.prior.second_moment(1)[0, 0])
        end = (S, self.recovery_error) if perfect else (bottom.Q[0], low * bottom.error[0])
        rows = [
            (high, top.replicas[0], top.Q[0], top.alpha[0] * top.error[0]),
            (low, bottom.replicas[0], *end),
        ]
        infinite = perfect and free_entropy_diverges(self.model, self.sizes)
        if infinite:
            alpha, middle, slope = low, (bottom, bottom), 1.0
            rows.insert(1, rows[1])
        else:
            alpha, pair = self.equal(low, high)
            alpha = alpha if self.complete else np.nan
            middle, L = (pair,), pair.L.mean(1)
            slope = float(np.diff(L)[0])
            replicas = alpha - alpha * np.diff(pair.L - L[:, None], axis=0)[0] / slope
            rows.insert(1, (alpha, replicas, pair.Q[1], alpha * np.sqrt(_PERFECT_V) / slope))
        points = jax.tree.map(lambda *a: np.concatenate(a), top, *middle, bottom)
        context = (
            (points.x, points.Q, np.asarray([high, alpha, alpha, low])),
            np.asarray([value for value, *_ in rows]),
            np.asarray(slope),
        )
        noiseless = self.model if perfect and self.counted else None
        alphas = implicit.differentiable(
            lambda _, context: context[1],
            partial(_push, sizes=self.sizes, infinite=infinite, noiseless=noiseless),
            model,
            jax.tree.map(jnp.asarray, context),
        )
        result = Result.SUCCESS if self.known else Result.INACCURATE
        algorithmic, optimal, spinodal = (
            _threshold(alpha, replicas, Q, shared, result)
            for alpha, (_, replicas, Q, shared) in zip(alphas, rows, strict=True)
        )
        return algorithmic, optimal, spinodal


def _push(
    model: AbstractModel,
    context: tuple[tuple[Array, ...], Array, Array],
    _: Array,
    directions: list[Array],
    *,
    sizes: Sizes,
    infinite: bool,
    noiseless: AbstractModel | None,
) -> Array:
    """Tangents of the three thresholds: of α at the ends of the branches, -dh/(dh/dα) between."""
    at, alphas, slope = context
    tangents, Phi = _slopes(model, at, sizes, directions)
    spinodal = tangents[3]
    if noiseless is not None:  # at Q = S itself, whose α is a count of the prior
        count = lambda m: dataclasses.replace(noiseless, prior=m.prior).recovery_alpha
        spinodal = implicit.derivative(count, model, directions)
    equal = spinodal if infinite else (Phi[1] - Phi[2]) / slope
    tangents = jnp.stack([tangents[0], equal, spinodal])
    tangents = jnp.where(jnp.isfinite(alphas) & (alphas > 0.0), tangents, 0.0)
    return jnp.where(regular_along(model, directions), tangents, missing())


def _threshold(
    alpha: Array, each: ArrayLike, Q: ArrayLike, shared: ArrayLike, result: Result
) -> Threshold:
    one, value = jnp.ones((1, 1), alpha.dtype), frozen(alpha)
    regular = jnp.isfinite(value) & (value > 0.0)
    rounding = max(INTEGRAL_ERROR, _ROUNDING * float(jnp.finfo(alpha.dtype).eps)) * value
    error = jnp.hypot(jnp.hypot(standard_error(each), shared), rounding)
    stderr = jnp.where(regular, error, jnp.where(jnp.isnan(value), value, 0.0))
    replicas = jnp.where(regular, jnp.asarray(each), value)
    return Threshold(alpha, stderr, replicas, one, jnp.asarray(Q) * one, jnp.asarray(int(result)))
