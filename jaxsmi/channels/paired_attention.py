r"""The exact channel of three layers and more of attention between two tokens.

Equations here [theory: deep-attention, Eqs. (35) to (39)], c = c_{L-1}, z_ℓ = Z_ℓ in R²,
w = B_{L-2} z_L:

    A_{L-1} w = s u   fixes A_{L-1}:   p/(1 - p) = (s u_1 - c w_1 - w_2)/((1 + c) w_1 - s u_1),
                                       q likewise with 1 and 2 exchanged
    h_{L-1} = ±(log p/(1-p), -log q/(1-q))/(β δ),   β δ² = log p/(1-p) + log q/(1-q)

so that nodes of the last layers may be drawn in two ways: z_{L-1} from its Gaussian, which fixes
z_L, or z_L from its own, which fixes z_{L-1}. The first misses where layer L is known (a thin
surface carries the mass), the second where its Jacobian vanishes; with both and the weights

    N(z; ω, V)/|det B| / (density of the first + density of the second)

few nodes weigh much more than the others, however well the last layer is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.channels.attention import DeepAttentionChannel
from jaxsmi.channels.attention_link import (
    Components,
    Layer,
    eliminate,
    inner_matrices,
    split_rows,
)
from jaxsmi.channels.fibres import Fibre, single_suffices, whitened_response
from jaxsmi.numerics.refining import Integral
from jaxsmi.numerics.refining_rules import no_weight
from jaxsmi.numerics.refining_sums import Branch

__all__ = ["LastLayers", "PairedAttentionChannel"]

_Pair = tuple[Array, Array]  # of the two tokens
_LARGEST = 40.0  # of an exponent, so that nothing overflows in single precision


class PairedAttentionChannel(DeepAttentionChannel):
    """Two tokens, three layers and more, the last two one tied head of rank one each (module
    docstring).

    `wanted` is the tolerance by default. Averages take four times that: their products of
    independent halves have no noise of nodes (`Posterior.factors`), and halves no bias of first
    order. λ_1 of three layers at V_33 = .02 was then 1.041, 1.040, 1.031 for tolerances of .2, .1,
    .05 on the same 2048 labels (standard error .047), at .9, 2.0, 7.2 ms a sample.
    """

    wanted: ClassVar[float] = 0.05

    @staticmethod
    def fits(tokens: int, layers: tuple[Layer, ...]) -> bool:
        """The label and the last two layers are such."""
        return tokens == 2 and len(layers) > 2 and layers[-2:] == (Layer(), Layer())

    @property
    def averaging(self) -> PairedAttentionChannel:
        """With four times the tolerance."""
        return eqx.tree_at(lambda c: c.budget.tolerance, self, 4.0 * self.budget.tolerance)

    def fibre(self, statistic: Array, omega: Array, root: Array) -> Fibre:
        """From u (N, 2)."""
        P = self.indices

        def integrand(block: tuple[Array, Array], t: Array) -> tuple[Array, list[Branch]]:
            narrow = jax.tree.map(lambda x: x.astype(t.dtype), (root, self.skip, self.beta))
            return jnp.ones((), t.dtype), self._branches(*block, t, *narrow)

        integral = Integral(
            integrand,
            (statistic, omega),
            whitened_response(root, 2),
            inner=2 * (P - 1),
            outer=4,
            shared=2 * (P - 2),
            single=single_suffices(self.budget, root[-1, -1]),
        )
        return Fibre(integral, 2.0 * (jnp.log(root[-1, -1]) + 0.5 * jnp.log(2 * jnp.pi)))

    def _branches(
        self, u: Array, omega: Array, t: Array, chol: Array, skip: Array, beta: Array
    ) -> list[Branch]:
        """Both ways at the nodes t (n, 2(P-1)), for labels u (S, 2) and ω (S, P, 2)."""
        P = self.indices
        rows = t.T.reshape(P - 1, 2, -1)
        shift = jnp.einsum("pq,qmn->pmn", chol[:, : P - 2], rows[: P - 2])
        mean = [[omega[:, p, m, None] + shift[p, m] for m in range(2)] for p in range(P)]
        inner = self.layers[:-2]
        matrices = inner_matrices(split_rows(mean[:-2], inner), inner, skip, beta)
        det = jnp.ones((), t.dtype)
        for A in matrices:
            det = det * (A[0][0] * A[1][1] - A[0][1] * A[1][0])
        last = LastLayers(
            label=(u[:, 0, None], u[:, 1, None]),
            means=((mean[-2][0], mean[-2][1]), (mean[-1][0], mean[-1][1])),
            root=chol[-2:, -2:],
            matrices=matrices,
            det=det,
            skip=skip[-1],
            beta=beta,
        )
        return last.branches((rows[-1, 0], rows[-1, 1]))


class _Inner(NamedTuple):
    """Of layer L-1: `last` = B_{L-1}^{-1} u, `det` of A_{L-1}, and the `jacobian` |∂z_L/∂z_{L-1}|
    at a given label."""

    last: _Pair
    det: Array
    jacobian: Array


class LastLayers(NamedTuple):
    """What the integrand is made of at nodes where the layers up to L-2 are given.

    `label`: u. `means`: of z_{L-1} and of z_L, given the layers before. `root`: their lower
    triangular root of covariance. `matrices`: A_1 .. A_{L-2}, `det` that of their product. `skip`:
    c_{L-1}.
    """

    label: _Pair
    means: tuple[_Pair, _Pair]
    root: Array
    matrices: Sequence[Components]
    det: Array
    skip: Array
    beta: Array

    @property
    def spread(self) -> Array:
        """Standard deviation of z_L, given the layers up to L-2."""
        return jnp.hypot(self.root[1, 0], self.root[1, 1])

    def mixed(self, z: _Pair) -> _Pair:
        """B_{L-2} z."""
        for A in self.matrices:
            z = (A[0][0] * z[0] + A[0][1] * z[1], A[1][0] * z[0] + A[1][1] * z[1])
        return z

    def unmixed(self, w: _Pair) -> _Pair:
        """B_{L-2}^{-1} w."""
        for A in reversed(self.matrices):
            (first, second), _ = eliminate(A, list(w))
            w = (first, second)
        return w

    def branches(self, free: _Pair) -> list[Branch]:
        """Both ways at nodes `free`, for both signs of u and of h_{L-1}."""
        (a, _), _ = self.root
        h = self.mixed(_moved(self.means[0], a, free))
        gap = h[0] - h[1]
        exponents = (self.beta * h[0] * gap, -self.beta * h[1] * gap)
        odds = tuple(jnp.exp(jnp.clip(x, -_LARGEST, _LARGEST)) for x in exponents)
        first = self.before(gap, (odds[0], odds[1]))
        w = self.mixed(_moved(self.means[1], self.spread, free))

        # a loop over the signs, not two copies: what is left of it are arrays, which the sums read
        # without computing them again. (Stacked, all would be computed for each of its elements,
        # four times as slow.)
        def signed(sign: Array) -> list[tuple[Array, list[Array]]]:
            ways = [self.from_before(sign, free, first), *self.from_last(sign, free, w)]
            return [(log, [jnp.broadcast_to(x, log.shape) for x in r]) for log, r, _ in ways]

        each = jax.lax.map(signed, jnp.asarray([1.0, -1.0], gap.dtype))
        return [Branch(log[i], [x[i] for x in r]) for i in range(2) for log, r in each]

    def before(self, gap: Array, odds: _Pair) -> _Inner:
        """A_{L-1} of odds p/(1 - p), q/(1 - q) and w = A_{L-1}^{-1} u, `gap` = h_1 - h_2."""
        c = self.skip
        u = self.label
        p, q = (x / (1.0 + x) for x in odds)
        det = (1.0 + c) * jnp.maximum(c - 1.0 + p + q, jnp.finfo(p.dtype).tiny)
        w = (
            ((c + q) * u[0] - u[1] / (1.0 + odds[0])) / det,
            ((c + p) * u[1] - u[0] / (1.0 + odds[1])) / det,
        )
        slope = p / (1.0 + odds[0]) * q / (1.0 + odds[1])
        # J of the module docstring, as a product that does not overflow
        size = (self.beta * gap * (w[0] - w[1])) ** 2
        return _Inner(self.unmixed(w), det, 2.0 * size * slope / det)

    def from_before(self, sign: Array, free: _Pair, inner: _Inner) -> Branch:
        """z_{L-1} drawn, z_L = ±B_{L-1}^{-1} u."""
        _, (b, scale) = self.root
        rest = _whitened(inner.last, sign, self.means[1], b, free, scale)
        return self.branch(free, rest, inner)

    def from_last(self, sign: Array, free: _Pair, w: _Pair) -> list[Branch]:
        """z_L drawn, z_{L-1} what ±u = A_{L-1} w makes of it, w = B_{L-2} z_L; no weight where no
        A_{L-1} does."""
        c = self.skip
        (a, _), (b, scale) = self.root
        u = (sign * self.label[0], sign * self.label[1])
        odds = (
            _quotient(u[0] - c * w[0] - w[1], (1.0 + c) * w[0] - u[0]),
            _quotient(u[1] - c * w[1] - w[0], (1.0 + c) * w[1] - u[1]),
        )
        limits = math.exp(-_LARGEST), math.exp(_LARGEST)
        logits = tuple(jnp.log(jnp.clip(x, *limits)) for x in odds)
        total = logits[0] + logits[1]  # β δ²: where it is rounding alone the Jacobian vanishes
        inside = total > 8.0 * jnp.finfo(total.dtype).eps
        for x in odds:
            inside = inside & (x > limits[0]) & (x < limits[1])
        valid = (jnp.where(inside, odds[0], 2.0), jnp.where(inside, odds[1], 2.0))
        logits = tuple(jnp.where(inside, x, math.log(2.0)) for x in logits)
        gap = jnp.sqrt((logits[0] + logits[1]) / self.beta)
        z = self.unmixed((logits[0] / (self.beta * gap), -logits[1] / (self.beta * gap)))
        inner = self.before(gap, valid)
        branches = []
        for side in (1.0, -1.0):
            none = jnp.zeros((), gap.dtype)
            before = _whitened(z, side, self.means[0], none, free, a)
            rest = tuple((self.spread * free[m] - b * before[m]) / scale for m in range(2))
            log_weight, residuals, _ = self.branch(before, (rest[0], rest[1]), inner)
            log_weight = jnp.where(inside, log_weight, no_weight(gap.dtype))
            branches.append(Branch(log_weight, [jnp.where(inside, x, 0.0) for x in residuals]))
        return branches

    def branch(self, before: _Pair, rest: _Pair, inner: _Inner) -> Branch:
        """The weight of a point, over the density of both ways, and its whitened last layers:
        z_{L-1} and the residual of z_L."""
        (a, _), (b, scale) = self.root
        drawn = [(b * x + scale * y) / self.spread for x, y in zip(before, rest, strict=True)]
        exponent = 0.5 * sum(x * x - y * y for x, y in zip(before, drawn, strict=True))
        ratio = jnp.exp(jnp.clip(exponent, -_LARGEST, _LARGEST)) * (a / self.spread) ** 2
        both = self.det * inner.det * (1.0 + ratio * inner.jacobian)
        weight = -0.5 * (rest[0] ** 2 + rest[1] ** 2) - jnp.log(both)
        return Branch(weight, [*before, *rest])


def _moved(mean: _Pair, scale: Array, free: _Pair) -> _Pair:
    """mean + scale × free."""
    return (mean[0] + scale * free[0], mean[1] + scale * free[1])


def _whitened(
    z: _Pair, sign: Array | float, mean: _Pair, slope: Array, free: _Pair, scale: Array
) -> _Pair:
    """(sign z - mean - slope × free)/scale."""
    first, second = ((sign * z[m] - mean[m] - slope * free[m]) / scale for m in range(2))
    return (first, second)


def _quotient(x: Array, y: Array) -> Array:
    """x/y, and -1 where y = 0."""
    return jnp.where(y == 0.0, -1.0, x / jnp.where(y == 0.0, 1.0, y))
